/* Line breaks. Texts of --help are ASCII: a byte is a column. Other lines may contain names in
 * UTF-8, and each character counts as one column. Called by all code that prints for people. */
#include "base/wrap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { HANG = 4, MOST_COLUMNS = 1000 };

/* -- Words --------------------------------------------------------------------------------------------------------- */

static bool is_argument(const char *word, size_t length) { return *word == '-' || *word == '"' || memchr(word, '=', length); }

/* Returns the bytes up to a blank, or to the end of a quotation. */
static size_t plain_length(const char *text, size_t length) {
    const char *quote = *text == '"' && length > 1 ? memchr(text + 1, '"', length - 1) : NULL;
    size_t start = quote ? (size_t)(quote - text) : 0, end = start;
    while (end < length && !strchr(" \n", text[end])) end++;
    return end;
}

static bool is_program(const char *text, size_t length) {
    static const char *const names[] = {"smelt ", "hf "};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (length > strlen(names[i]) && !memcmp(text, names[i], strlen(names[i]))) return true;
    return false;
}

/* Returns the bytes of a word, or of a command in a message. A command is meant to be copied and is
 * not broken: its name, following words, and their arguments, "smelt launch -n 2 -- train RUN
 * steps=700", up to punctuation or two blanks. */
static size_t word_length(const char *text, size_t length) {
    enum { PLAIN = 4 /* "data pack INPUT OUTPUT" */ };
    size_t bracket = length && *text == '(', all = plain_length(text, length);
    if (!is_program(text + bracket, length - bracket)) return all;
    for (int plain = PLAIN; all + 1 < length && !strchr(",;:).", text[all - 1]) && !strchr(" \n(", text[all + 1]);) {
        const char *word = text + all + 1;
        size_t bytes = plain_length(word, length - all - 1);
        bool argument = is_argument(word, bytes);
        if (!argument && plain-- == 0) break;
        if (*word == '-') plain = PLAIN; /* its value, or another command after "--" */
        all += 1 + bytes;
    }
    return all;
}

/* Prints the `length` bytes of words at `text`, and a newline. */
static void print_words(FILE *file, const char *text, size_t length, int column, int indent) {
    const char *end = text + length;
    bool first = true;
    for (;;) {
        text += strspn(text, " \n");
        if (text >= end) break;
        size_t word = word_length(text, (size_t)(end - text)), room = (size_t)(WRAP_WIDTH - indent);
        const char *bar = word > room ? memrchr(text, '|', room) : NULL;
        if (bar) word = (size_t)(bar + 1 - text);
        if (!first && column + 1 + (int)word > WRAP_WIDTH) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
            first = true;
        }
        column += fprintf(file, "%s", first ? "" : " ");
        for (size_t i = 0; i < word; i++) column += fputc(text[i] == '\n' ? ' ' : text[i], file) != EOF;
        first = false;
        text += word;
    }
    fprintf(file, "\n");
}

void wrap_words(FILE *file, const char *text, int column, int indent) { print_words(file, text, strlen(text), column, indent); }

/* Returns where the second column of "  NAME    what it is" begins; `none` if there is none. */
static size_t second_column(const char *line, size_t length, size_t none) {
    for (size_t i = strspn(line, " "); i + 1 < length; i++)
        if (line[i] == ' ' && line[i + 1] == ' ') return i + strspn(line + i, " ");
    return none;
}

/* Prints a separate line: "  NAME    what it is". */
static void print_line(FILE *file, const char *line, size_t length) {
    size_t start = strspn(line, " "), head = second_column(line, length, start);
    fprintf(file, "%.*s", (int)head, line);
    print_words(file, line + head, length - head, (int)head, (int)(head == start ? start + HANG : head));
}

/* Returns the length of a paragraph, which ends before an empty line or a separate line. */
static size_t paragraph_length(const char *text) {
    size_t length = strcspn(text, "\n");
    while (text[length] && text[length + 1] && !strchr(" \n", text[length + 1])) length += 1 + strcspn(text + length + 1, "\n");
    return length;
}

void wrap_text(FILE *file, const char *text) {
    while (*text) {
        if (*text == '\n') {
            fprintf(file, "\n");
            text++;
            continue;
        }
        bool line = *text == ' ';
        size_t length = line ? strcspn(text, "\n") : paragraph_length(text);
        if (line) print_line(file, text, length);
        else print_words(file, text, length, 0, 0);
        text += length + (text[length] == '\n');
    }
}

/* -- Lines for the terminal ---------------------------------------------------------------------------------------- */

const char *wrap_variable(int descriptor) { return descriptor == STDERR_FILENO ? "SMELT_STDERR_COLUMNS" : "SMELT_STDOUT_COLUMNS"; }

static long number_in(const char *variable) {
    const char *text = getenv(variable);
    return text ? strtol(text, NULL, 10) : 0;
}

int wrap_columns(int descriptor) {
    struct winsize size = {0};
    bool terminal = isatty(descriptor);
    long columns = number_in(terminal ? "COLUMNS" : wrap_variable(descriptor));
    if (columns <= 0 && terminal && ioctl(descriptor, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
    if (columns <= 0) return terminal ? WRAP_WIDTH : 0;
    return columns < MOST_COLUMNS ? (int)columns : MOST_COLUMNS;
}

static size_t characters(const char *text, size_t bytes) {
    size_t count = 0;
    for (size_t i = 0; i < bytes; i++) count += (text[i] & 0xc0) != 0x80;
    return count;
}

static void print_broken(FILE *file, const char *line, size_t length, size_t columns) {
    size_t start = strspn(line, " "), indent = second_column(line, length, start + HANG), used = 0;
    bool first = true; /* first word of a printed line */
    if (indent > columns / 2) indent = start + HANG;
    for (size_t at = 0; at < length;) {
        size_t blanks = strspn(line + at, " "), word = word_length(line + at + blanks, length - at - blanks),
               width = characters(line + at + blanks, word);
        if (first || used + blanks + width <= columns) {
            used += blanks + width;
            fprintf(file, "%.*s", (int)(blanks + word), line + at);
        } else {
            used = indent + width;
            fprintf(file, "\n%*s%.*s", (int)indent, "", (int)word, line + at + blanks);
        }
        first = false;
        at += blanks + word;
    }
}

void wrap_lines(FILE *file, const char *text, int columns) {
    for (;;) {
        size_t length = strcspn(text, "\n");
        if (columns > 0 && characters(text, length) > (size_t)columns) print_broken(file, text, length, (size_t)columns);
        else fprintf(file, "%.*s", (int)length, text);
        if (!text[length]) return;
        fputc('\n', file);
        text += length + 1;
    }
}

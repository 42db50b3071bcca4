/* Line breaks for a terminal of 80 columns. Texts are ours, in ASCII: a byte is a column. Called by --help. */
#include "base/wrap.h"

#include <stdbool.h>
#include <string.h>

/* Prints the `length` bytes of words at `text`, and a newline. */
static void print_words(FILE *file, const char *text, size_t length, int column, int indent) {
    const char *end = text + length;
    bool first = true;
    for (;;) {
        text += strspn(text, " \n");
        if (text >= end) break;
        size_t word = strcspn(text, " \n"), room = (size_t)(WRAP_WIDTH - indent);
        const char *bar = word > room ? memrchr(text, '|', room) : NULL;
        if (bar) word = (size_t)(bar + 1 - text);
        if (!first && column + 1 + (int)word > WRAP_WIDTH) {
            fprintf(file, "\n%*s", indent, "");
            column = indent;
            first = true;
        }
        column += fprintf(file, "%s%.*s", first ? "" : " ", (int)word, text);
        first = false;
        text += word;
    }
    fprintf(file, "\n");
}

void wrap_words(FILE *file, const char *text, int column, int indent) { print_words(file, text, strlen(text), column, indent); }

/* A line of its own: "  NAME    what it is". */
static void print_line(FILE *file, const char *line, size_t length) {
    size_t start = strspn(line, " "), indent = start + 4, head = start;
    for (size_t i = start; i + 1 < length && head == start; i++)
        if (line[i] == ' ' && line[i + 1] == ' ') head = indent = i + strspn(line + i, " ");
    fprintf(file, "%.*s", (int)head, line);
    print_words(file, line + head, length - head, (int)head, (int)indent);
}

/* A paragraph ends before an empty line and before a line of its own. */
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

/* Statistics of a text, which expressions read as text.NAME. The definitions are those of the papers
 * named in named_rules.c; where these leave one open, that of Hugging Face's datatrove.
 *
 * A word is a run of characters without spaces. A line ends at a line feed, a paragraph at several.
 * Lengths are in characters. Shares are 0 for a text without words or lines. A TextStatistics owns its
 * scratch, which grows with the words of a text and its different runs. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/array.h"
#include "base/memory.h"
#include "filter/filter_internal.h"

enum { TOP_LEAST = 2, TOP_MOST = 4, REPEATED_LEAST = 5, REPEATED_MOST = 10, SHORT_LINE = 30 };
/* Slots for runs at first, and the most words and slots that are kept for the next text. */
enum { FIRST_SLOTS = 1 << 12, KEPT = 1 << 20 };
/* What is computed together. Groups from GROUP_TOP and GROUP_REPEATED on are one for each number of words. */
typedef enum StatisticGroup {
    GROUP_SIZE,
    GROUP_WORDS,
    GROUP_LINES,
    GROUP_PARAGRAPHS,
    GROUP_PAGE,
    GROUP_TOP,
    GROUP_REPEATED = GROUP_TOP + TOP_MOST + 1 - TOP_LEAST,
} StatisticGroup;

typedef enum Statistic {
    BYTES,
    CHARACTERS,
    WORDS,
    WORD_LENGTH,
    HASHES,
    ELLIPSES,
    LETTER_WORDS,
    STOP_WORDS,
    LINES,
    BULLET_LINES,
    ELLIPSIS_LINES,
    CLOSED_LINES,
    SHORT_LINES,
    REPEATED_LINES,
    REPEATED_LINE_CHARACTERS,
    REPEATED_PARAGRAPHS,
    REPEATED_PARAGRAPH_CHARACTERS,
    SENTENCES,
    BRACES,
    LOREM_IPSUM,
    TOP_WORDS,
    REPEATED_WORDS = TOP_WORDS + TOP_MOST + 1 - TOP_LEAST,
    STATISTICS = REPEATED_WORDS + REPEATED_MOST + 1 - REPEATED_LEAST,
} Statistic;

static const struct {
    const char *name;
    StatisticGroup group;
} statistics[STATISTICS] = {
    [BYTES] = {"bytes", GROUP_SIZE},
    [CHARACTERS] = {"characters", GROUP_SIZE},
    [WORDS] = {"words", GROUP_WORDS},               /* with a letter or digit */
    [WORD_LENGTH] = {"word_length", GROUP_WORDS},   /* mean of these words */
    [HASHES] = {"hashes", GROUP_WORDS},             /* "#" per word */
    [ELLIPSES] = {"ellipses", GROUP_WORDS},         /* "..." and U+2026 per word */
    [LETTER_WORDS] = {"letter_words", GROUP_WORDS}, /* share of words with a letter */
    [STOP_WORDS] = {"stop_words", GROUP_WORDS},     /* how many of eight English words there are */
    [LINES] = {"lines", GROUP_LINES},               /* that are not blank */
    [BULLET_LINES] = {"bullet_lines", GROUP_LINES}, /* share of lines that begin with a bullet or a dash */
    [ELLIPSIS_LINES] = {"ellipsis_lines", GROUP_LINES},
    [CLOSED_LINES] = {"closed_lines", GROUP_LINES}, /* share of lines that end a sentence */
    [SHORT_LINES] = {"short_lines", GROUP_LINES},   /* share of lines of at most 30 characters */
    [REPEATED_LINES] = {"repeated_lines", GROUP_LINES},
    [REPEATED_LINE_CHARACTERS] = {"repeated_line_characters", GROUP_LINES},
    [REPEATED_PARAGRAPHS] = {"repeated_paragraphs", GROUP_PARAGRAPHS},
    [REPEATED_PARAGRAPH_CHARACTERS] = {"repeated_paragraph_characters", GROUP_PARAGRAPHS},
    [SENTENCES] = {"sentences", GROUP_PAGE}, /* ends of sentences before a space or the end of the text */
    [BRACES] = {"braces", GROUP_PAGE},
    [LOREM_IPSUM] = {"lorem_ipsum", GROUP_PAGE},
    /* The share of characters in the most common run of words, and in repeated runs. */
    [TOP_WORDS] = {"top_2_words", GROUP_TOP},
    {"top_3_words", GROUP_TOP + 1},
    {"top_4_words", GROUP_TOP + 2},
    [REPEATED_WORDS] = {"repeated_5_words", GROUP_REPEATED},
    {"repeated_6_words", GROUP_REPEATED + 1},
    {"repeated_7_words", GROUP_REPEATED + 2},
    {"repeated_8_words", GROUP_REPEATED + 3},
    {"repeated_9_words", GROUP_REPEATED + 4},
    {"repeated_10_words", GROUP_REPEATED + 5},
};

/* A text has less than 4 GiB, so that 32 bits count its characters and runs. */
typedef struct Word {
    uint64_t hash;
    uint32_t before; /* characters of the words before it */
    uint32_t characters;
} Word;

/* A run of text that was seen: how often, and where first. */
typedef struct SeenRun {
    uint64_t hash;
    uint32_t count, first;
} SeenRun;

struct TextStatistics {
    const char *text;
    size_t size;
    uint32_t computed; /* a bit for each group */
    double values[STATISTICS];
    Word *words;
    size_t word_count, word_capacity;
    bool split;    /* `words` are those of the text */
    SeenRun *seen; /* by open addressing: [slots], a power of two, at most half full */
    size_t slots, seen_capacity, runs;
};

int statistic_find(const char *name, size_t length) {
    for (int i = 0; i < STATISTICS; i++)
        if (strlen(statistics[i].name) == length && !memcmp(statistics[i].name, name, length)) return i;
    return -1;
}

void statistic_names(char *names, size_t room) {
    size_t used = 0;
    for (int i = 0; i < STATISTICS && used < room; i++)
        used += (size_t)snprintf(names + used, room - used, "%s%s", i ? ", " : "", statistics[i].name);
}

TextStatistics *statistics_open(void) { return memory_allocate(sizeof(TextStatistics)); }

void statistics_free(TextStatistics *own) {
    if (!own) return;
    free(own->words);
    free(own->seen);
    free(own);
}

void statistics_start(TextStatistics *own, const char *text, size_t size) {
    assert(size <= UINT32_MAX);
    if (own->word_capacity > KEPT) free(own->words), own->words = NULL, own->word_capacity = 0;
    if (own->seen_capacity > KEPT) free(own->seen), own->seen = NULL, own->seen_capacity = 0;
    own->text = text;
    own->size = size;
    own->computed = 0;
    own->word_count = 0;
    own->split = false;
}

static double share(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

/* -- Runs that were seen ------------------------------------------------------------------------------------------------ */

/* Forgets all runs before at most `count` others are counted. */
static void forget_runs(TextStatistics *own, size_t count) {
    own->slots = 16;
    own->runs = 0;
    while (own->slots < 2 * count && own->slots < FIRST_SLOTS) own->slots *= 2;
    array_reserve(own->seen, own->seen_capacity, own->slots);
    memset(own->seen, 0, own->slots * sizeof *own->seen);
}

/* Returns the slot of a run: its own, or the empty slot for it. */
static SeenRun *find_run(const TextStatistics *own, uint64_t hash) {
    size_t slot = hash & (own->slots - 1);
    while (own->seen[slot].count && own->seen[slot].hash != hash) slot = (slot + 1) & (own->slots - 1);
    return &own->seen[slot];
}

static void double_slots(TextStatistics *own) {
    SeenRun *old = own->seen;
    size_t count = own->slots;
    own->slots = own->seen_capacity = 2 * count;
    own->seen = memory_allocate(own->slots * sizeof *own->seen);
    for (size_t i = 0; i < count; i++)
        if (old[i].count) *find_run(own, old[i].hash) = old[i];
    free(old);
}

/* Returns the entry of a run, which counts it; an entry with count 1 is new. */
static const SeenRun *count_run(TextStatistics *own, uint64_t hash, size_t at) {
    if (2 * own->runs >= own->slots) double_slots(own);
    SeenRun *seen = find_run(own, hash);
    own->runs += !seen->count;
    if (!seen->count++) *seen = (SeenRun){hash, 1, (uint32_t)at};
    return seen;
}

/* -- Words ------------------------------------------------------------------------------------------------------------- */

static void split_words(TextStatistics *own) {
    uint32_t before = 0;
    if (own->split) return;
    own->split = true;
    for (size_t at = 0, start; next_text_word(own->text, own->size, &at, &start);) {
        uint32_t characters = (uint32_t)count_characters(own->text + start, at - start);
        array_reserve(own->words, own->word_capacity, own->word_count + 1);
        own->words[own->word_count++] = (Word){XXH3_64bits(own->text + start, at - start), before, characters};
        before += characters;
    }
}

static int find_stop_word(const char *word, size_t size) {
    static const char *const words[] = {"the", "be", "to", "of", "and", "that", "have", "with"};
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++)
        if (strlen(words[i]) == size && !memcmp(words[i], word, size)) return i;
    return -1;
}

static void compute_words(TextStatistics *own) {
    static const char dots[] = "\xe2\x80\xa6";
    int64_t all = 0, words = 0, characters = 0, letters = 0, hashes = 0, ellipses = 0;
    unsigned stop = 0;
    for (size_t at = 0, start; next_text_word(own->text, own->size, &at, &start); all++) {
        const char *word = own->text + start;
        size_t size = at - start;
        bool letter = false, symbol = true;
        int64_t count = 0;
        for (size_t i = 0; i < size; count++) {
            uint32_t character = utf8_character(word, size, &i);
            letter = letter || is_letter(character);
            symbol = symbol && is_symbol(character);
            hashes += character == '#';
        }
        for (size_t i = 0; i + 3 <= size;) {
            bool found = !memcmp(word + i, "...", 3) || !memcmp(word + i, dots, 3);
            ellipses += found;
            i += found ? 3 : 1;
        }
        letters += letter;
        words += !symbol;
        characters += symbol ? 0 : count;
        int known = find_stop_word(word, size);
        if (known >= 0) stop |= 1u << known;
    }
    own->values[WORDS] = (double)words;
    own->values[WORD_LENGTH] = share(characters, words);
    own->values[HASHES] = share(hashes, all);
    own->values[ELLIPSES] = share(ellipses, all);
    own->values[LETTER_WORDS] = share(letters, all);
    own->values[STOP_WORDS] = __builtin_popcount(stop);
}

/* The most common run of `length` words, with one space between words; the first of several. */
static void compute_top(TextStatistics *own, int length) {
    const SeenRun *top = NULL;
    split_words(own);
    size_t runs = own->word_count < (size_t)length ? 0 : own->word_count + 1 - (size_t)length;
    uint64_t hashes[TOP_MOST];
    forget_runs(own, runs);
    for (size_t i = 0; i < runs; i++) {
        for (int j = 0; j < length; j++) hashes[j] = own->words[i + (size_t)j].hash;
        count_run(own, XXH3_64bits(hashes, (size_t)length * sizeof *hashes), i);
    }
    for (const SeenRun *seen = own->seen; seen < own->seen + own->slots && runs > 0; seen++)
        if (seen->count && (!top || seen->count > top->count || (seen->count == top->count && seen->first < top->first))) top = seen;
    int64_t characters = 0;
    for (int j = 0; j < length && top; j++) characters += own->words[top->first + (size_t)j].characters;
    characters += length - 1;
    own->values[TOP_WORDS + length - TOP_LEAST] = top ? share(characters * top->count, count_characters(own->text, own->size)) : 0;
}

/* Runs of `length` words that occurred before; a repeated run is passed as a whole. */
static void compute_repeated(TextStatistics *own, int length) {
    split_words(own);
    uint64_t hashes[REPEATED_MOST];
    int64_t characters = 0;
    forget_runs(own, own->word_count);
    for (size_t i = 0; i + (size_t)length <= own->word_count;) {
        for (int j = 0; j < length; j++) hashes[j] = own->words[i + (size_t)j].hash;
        bool again = count_run(own, XXH3_64bits(hashes, (size_t)length * sizeof *hashes), i)->count > 1;
        const Word *last = &own->words[i + (size_t)length - 1];
        if (again) characters += last->before + last->characters - own->words[i].before;
        i += again ? (size_t)length : 1;
    }
    own->values[REPEATED_WORDS + length - REPEATED_LEAST] = share(characters, count_characters(own->text, own->size));
}

/* -- Lines and paragraphs ------------------------------------------------------------------------------------------------ */

/* Returns the part of a text without spaces at its ends. */
static const char *trim(const char *text, size_t *size) {
    size_t start = 0, end = 0, at = 0;
    bool begun = false;
    while (at < *size) {
        size_t before = at;
        if (is_wide_space(utf8_character(text, *size, &at))) continue;
        if (!begun) start = before;
        begun = true;
        end = at;
    }
    *size = end - start;
    return text + start;
}

static bool begins(const char *text, size_t size, const char *with) {
    size_t length = strlen(with);
    return size >= length && !memcmp(text, with, length);
}

static bool ends(const char *text, size_t size, const char *const *with) {
    for (; *with; with++) {
        size_t length = strlen(*with);
        if (size >= length && !memcmp(text + size - length, *with, length)) return true;
    }
    return false;
}

static const char *const sentence_ends[] = {".", "!", "?", "\"", "'", "\xe2\x80\x9d", "\xe3\x80\x82", "\xef\xbc\x81", "\xef\xbc\x9f", NULL};

static void compute_lines(TextStatistics *own) {
    static const char *const ellipses[] = {"...", "\xe2\x80\xa6", NULL};
    int64_t lines = 0, bullets = 0, dots = 0, closed = 0, narrow = 0, repeated = 0, characters = 0;
    size_t count = 1;
    for (size_t i = 0; i < own->size; i++) count += own->text[i] == '\n';
    forget_runs(own, count);
    for (size_t at = 0, end; at < own->size; at = end + 1) {
        const char *line = own->text + at, *feed = memchr(line, '\n', own->size - at);
        end = feed ? (size_t)(feed - own->text) : own->size;
        size_t size = end - at, trimmed = size;
        const char *core = trim(line, &trimmed);
        if (trimmed == 0) continue;
        int64_t length = count_characters(line, size);
        lines++;
        bullets += begins(core, trimmed, "-") || begins(core, trimmed, "\xe2\x80\xa2");
        dots += ends(core, trimmed, ellipses);
        closed += ends(core, trimmed, sentence_ends);
        narrow += length <= SHORT_LINE;
        bool again = count_run(own, XXH3_64bits(line, size), at)->count > 1;
        repeated += again;
        characters += again ? length : 0;
    }
    own->values[LINES] = (double)lines;
    own->values[BULLET_LINES] = share(bullets, lines);
    own->values[ELLIPSIS_LINES] = share(dots, lines);
    own->values[CLOSED_LINES] = share(closed, lines);
    own->values[SHORT_LINES] = share(narrow, lines);
    own->values[REPEATED_LINES] = share(repeated, lines);
    own->values[REPEATED_LINE_CHARACTERS] = share(characters, count_characters(own->text, own->size));
}

/* Returns the end of the paragraph that begins at `at`: its first of several line feeds, or the end. */
static size_t paragraph_end(const char *text, size_t size, size_t at) {
    while (at < size && !(text[at] == '\n' && at + 1 < size && text[at + 1] == '\n')) at++;
    return at;
}

static void compute_paragraphs(TextStatistics *own) {
    size_t size = own->size, count = 1;
    const char *text = trim(own->text, &size);
    int64_t paragraphs = 0, repeated = 0, characters = 0;
    for (size_t at = 0; (at = paragraph_end(text, size, at)) < size; at += 2) count++;
    forget_runs(own, count);
    for (size_t at = 0, end; at < size; at = end) {
        end = paragraph_end(text, size, at);
        bool again = count_run(own, XXH3_64bits(text + at, end - at), at)->count > 1;
        paragraphs++;
        repeated += again;
        characters += again ? count_characters(text + at, end - at) : 0;
        while (end < size && text[end] == '\n') end++;
    }
    own->values[REPEATED_PARAGRAPHS] = share(repeated, paragraphs);
    own->values[REPEATED_PARAGRAPH_CHARACTERS] = share(characters, count_characters(own->text, own->size));
}

/* -- Pages --------------------------------------------------------------------------------------------------------------- */

static bool is_ending(uint32_t c) { return c == '.' || c == '!' || c == '?' || c == 0x3002 || c == 0xff01 || c == 0xff1f; }

static void compute_page(TextStatistics *own) {
    static const char lorem[] = "lorem ipsum";
    int64_t sentences = 0, braces = 0, found = 0;
    bool ending = false;
    for (size_t at = 0; at < own->size;) {
        size_t left = own->size - at;
        found += left >= sizeof lorem - 1 && (own->text[at] | 0x20) == 'l' && !strncasecmp(own->text + at, lorem, sizeof lorem - 1);
        uint32_t character = utf8_character(own->text, own->size, &at);
        sentences += ending && is_wide_space(character);
        ending = is_ending(character) || (ending && (character == '"' || character == '\'' || character == ')' || character == 0x201d));
        braces += character == '{' || character == '}';
    }
    own->values[SENTENCES] = (double)(sentences + ending);
    own->values[BRACES] = (double)braces;
    own->values[LOREM_IPSUM] = (double)found;
}

double statistics_read(TextStatistics *own, int statistic) {
    StatisticGroup group = statistics[statistic].group;
    if (own->computed & 1u << group) return own->values[statistic];
    own->computed |= 1u << group;
    switch (group) {
    case GROUP_SIZE:
        own->values[BYTES] = (double)own->size;
        own->values[CHARACTERS] = (double)count_characters(own->text, own->size);
        break;
    case GROUP_WORDS: compute_words(own); break;
    case GROUP_LINES: compute_lines(own); break;
    case GROUP_PARAGRAPHS: compute_paragraphs(own); break;
    case GROUP_PAGE: compute_page(own); break;
    default:
        if (group < GROUP_REPEATED) compute_top(own, TOP_LEAST + (int)(group - GROUP_TOP));
        else compute_repeated(own, REPEATED_LEAST + (int)(group - GROUP_REPEATED));
    }
    return own->values[statistic];
}

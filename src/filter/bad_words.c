/* A list of words and phrases, one on each line, that no document may have. ASCII letters match in
 * both cases. A word of the text is a run of letters, digits and bytes above ASCII; a phrase of the
 * list matches its words one after the other, whatever is between them. A BadWords owns its table of
 * hashes. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"
#include "filter/filter_internal.h"

enum { PHRASE_WORDS = 8, LIST_BYTES = 64 << 20 };

struct BadWords {
    uint64_t *hashes; /* sorted */
    size_t count, capacity;
    int longest; /* words of the longest phrase */
    uint64_t identity;
};

static bool is_word_byte(unsigned char c) { return c >= 0x80 || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }

/* Finds the next word at or after *at; returns its hash in lower case, or 0 if there is none. */
static uint64_t next_word(const char *text, size_t size, size_t *at, size_t *start) {
    XXH64_hash_t hash = 0x9e3779b97f4a7c15u;
    while (*at < size && !is_word_byte((unsigned char)text[*at])) ++*at;
    *start = *at;
    for (; *at < size && is_word_byte((unsigned char)text[*at]); ++*at) {
        unsigned char c = (unsigned char)text[*at];
        hash = (hash ^ (c >= 'A' && c <= 'Z' ? c | 0x20u : c)) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return *at == *start ? 0 : hash ? hash : 1;
}

static int compare_hashes(const void *a, const void *b) {
    uint64_t left, right;
    memcpy(&left, a, sizeof left);
    memcpy(&right, b, sizeof right);
    return (left > right) - (left < right);
}

static bool add_phrase(BadWords *words, const char *line, size_t size, int number, const char *path, Error *error) {
    uint64_t phrase[PHRASE_WORDS];
    int count = 0;
    for (size_t at = 0, start; at < size;) {
        uint64_t hash = next_word(line, size, &at, &start);
        if (!hash) break;
        if (count == PHRASE_WORDS)
            return error_set(error, ERROR_DATA, "line %d of %s has more than %d words: shorten it", number, path, PHRASE_WORDS);
        phrase[count++] = hash;
    }
    if (count == 0) return true;
    array_reserve(words->hashes, words->capacity, words->count + 1);
    words->hashes[words->count++] = XXH3_64bits(phrase, (size_t)count * sizeof *phrase);
    if (count > words->longest) words->longest = count;
    return true;
}

BadWords *bad_words_open(const char *path, Error *error) {
    int64_t bytes;
    SCOPED_FREE char *text = file_read(path, LIST_BYTES, &bytes, error);
    if (!text) return error_recode(error, ERROR_DATA), NULL;
    BadWords *words = memory_allocate(sizeof *words);
    bool good = true;
    words->identity = XXH3_64bits(text, (size_t)bytes);
    for (size_t at = 0, end, size = (size_t)bytes, number = 1; at < size && good; at = end + 1, number++) {
        const char *feed = memchr(text + at, '\n', size - at);
        end = feed ? (size_t)(feed - text) : size;
        good = add_phrase(words, text + at, end - at, (int)number, path, error);
    }
    if (good && words->count == 0) good = error_set(error, ERROR_DATA, "%s has no words: write one on each line", path);
    if (good) qsort(words->hashes, words->count, sizeof *words->hashes, compare_hashes);
    if (good) return words;
    bad_words_free(words);
    return NULL;
}

void bad_words_free(BadWords *words) {
    if (!words) return;
    free(words->hashes);
    free(words);
}

uint64_t bad_words_identity(const BadWords *words) { return words->identity; }

bool bad_words_find(const BadWords *words, const char *text, size_t size, char *found, size_t room) {
    uint64_t hashes[PHRASE_WORDS]; /* of the last words, the newest last */
    size_t starts[PHRASE_WORDS];
    int known = 0;
    for (size_t at = 0, start; at < size;) {
        uint64_t hash = next_word(text, size, &at, &start);
        if (!hash) return false;
        if (known == words->longest) {
            memmove(hashes, hashes + 1, (size_t)(known - 1) * sizeof *hashes);
            memmove(starts, starts + 1, (size_t)(known - 1) * sizeof *starts);
            known--;
        }
        hashes[known] = hash;
        starts[known++] = start;
        for (int first = 0; first < known; first++) {
            uint64_t phrase = XXH3_64bits(hashes + first, (size_t)(known - first) * sizeof *hashes);
            if (!bsearch(&phrase, words->hashes, words->count, sizeof phrase, compare_hashes)) continue;
            size_t length = at - starts[first];
            if (length > room - 1) length = room - 1;
            memcpy(found, text + starts[first], length);
            found[length] = 0;
            return true;
        }
    }
    return false;
}

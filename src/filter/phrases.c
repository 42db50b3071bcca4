/* Words and phrases that no document may have: a list of them, or the runs of words of an evaluation
 * set. ASCII letters match in both cases. A word is a run of letters, digits and bytes above ASCII; a
 * phrase matches its words one after the other, whatever is between them. A Phrases owns its table
 * of hashes. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "filter/filter_internal.h"

/* An evaluation set has runs of 13 words, as in Brown et al., "Language Models are Few-Shot Learners", 2020, appendix C; a
 * shorter text of at least 8 words is one phrase. */
enum { PHRASE_WORDS = 16, RUN_WORDS = 13, RUN_LEAST = 8, LIST_BYTES = 64 << 20 };

struct Phrases {
    uint64_t *hashes; /* sorted */
    size_t count, capacity;
    int longest;      /* words of the longest phrase */
    uint32_t lengths; /* a bit for each number of words that a phrase has */
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

static void add_phrase(Phrases *own, const uint64_t *words, int count) {
    array_reserve(own->hashes, own->capacity, own->count + 1);
    own->hashes[own->count++] = XXH3_64bits(words, (size_t)count * sizeof *words);
    own->lengths |= 1u << count;
    if (count > own->longest) own->longest = count;
}

static bool add_line(Phrases *own, const char *line, size_t size, int number, const char *path, Error *error) {
    uint64_t phrase[PHRASE_WORDS], hash;
    int count = 0;
    for (size_t at = 0, start; (hash = next_word(line, size, &at, &start));) {
        if (count == PHRASE_WORDS)
            return error_set(error, ERROR_DATA, "line %d of %s has more than %d words: shorten it", number, path, PHRASE_WORDS);
        phrase[count++] = hash;
    }
    if (count > 0) add_phrase(own, phrase, count);
    return true;
}

/* Adds the runs of words of a text. */
static void add_runs(Phrases *own, const char *text, size_t size) {
    uint64_t run[RUN_WORDS], hash;
    int count = 0;
    bool whole = false;
    for (size_t at = 0, start; (hash = next_word(text, size, &at, &start));) {
        if (count == RUN_WORDS) memmove(run, run + 1, (size_t)--count * sizeof *run);
        run[count++] = hash;
        if (count == RUN_WORDS) add_phrase(own, run, count), whole = true;
    }
    if (!whole && count >= RUN_LEAST) add_phrase(own, run, count);
}

/* Adds every text of a record. The reader of JSON bounds the depth. */
static void add_texts(Phrases *own, const json_t *json) {
    const char *key;
    json_t *each;
    size_t at;
    if (json_is_string(json)) add_runs(own, json_string_value(json), json_string_length(json));
    json_array_foreach(json, at, each) add_texts(own, each);
    json_object_foreach((json_t *)json, key, each) add_texts(own, each);
}

static bool add_record(Phrases *own, const char *line, size_t size, int number, const char *path, Error *error) {
    Error fault = {0};
    if (strspn(line, " \t\r") >= size) return true;
    json_auto_t *json = json_parse(line, size, 0, &fault);
    if (!json) return error_set(error, ERROR_DATA, "line %d of %s is not a record of JSON: %s", number, path, fault.message);
    add_texts(own, json);
    return true;
}

Phrases *phrases_open(const char *path, bool records, Error *error) {
    int64_t bytes;
    SCOPED_FREE char *text = file_read(path, LIST_BYTES, &bytes, error);
    if (!text) return error_recode(error, ERROR_DATA), NULL;
    Phrases *own = memory_allocate(sizeof *own);
    bool good = true;
    own->identity = XXH3_64bits(text, (size_t)bytes);
    for (size_t at = 0, end, size = (size_t)bytes, number = 1; at < size && good; at = end + 1, number++) {
        const char *feed = memchr(text + at, '\n', size - at);
        end = feed ? (size_t)(feed - text) : size;
        good = (records ? add_record : add_line)(own, text + at, end - at, (int)number, path, error);
    }
    if (good && own->count == 0)
        good = error_set(error, ERROR_DATA,
            records ? "%s has no text of at least %d words: give the evaluation set as JSON lines"
                    : "%s has no words: write one on each line",
            path, RUN_LEAST);
    if (good) qsort(own->hashes, own->count, sizeof *own->hashes, compare_hashes);
    if (good) return own;
    phrases_free(own);
    return NULL;
}

void phrases_free(Phrases *own) {
    if (!own) return;
    free(own->hashes);
    free(own);
}

uint64_t phrases_identity(const Phrases *own) { return own->identity; }

bool phrases_find(const Phrases *own, const char *text, size_t size, char *found, size_t room) {
    uint64_t hashes[PHRASE_WORDS]; /* of the last words, the newest last */
    size_t starts[PHRASE_WORDS];
    int known = 0;
    for (size_t at = 0, start; at < size;) {
        uint64_t hash = next_word(text, size, &at, &start);
        if (!hash) return false;
        if (known == own->longest) {
            memmove(hashes, hashes + 1, (size_t)(known - 1) * sizeof *hashes);
            memmove(starts, starts + 1, (size_t)(known - 1) * sizeof *starts);
            known--;
        }
        hashes[known] = hash;
        starts[known++] = start;
        for (int first = 0; first < known; first++) {
            if (!(own->lengths >> (known - first) & 1)) continue;
            uint64_t phrase = XXH3_64bits(hashes + first, (size_t)(known - first) * sizeof *hashes);
            if (!bsearch(&phrase, own->hashes, own->count, sizeof phrase, compare_hashes)) continue;
            size_t length = at - starts[first];
            if (length > room - 1) length = room - 1;
            memcpy(found, text + starts[first], length);
            found[length] = 0;
            return true;
        }
    }
    return false;
}

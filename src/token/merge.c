/* Byte-pair encoding of one word. Its characters (or bytes) become symbols; then the adjacent pair
 * of the lowest rank is merged, the leftmost first, until no pair merges. Short words scan for the
 * lowest rank, which is fastest. Long words use a heap over a linked list, so a word of n
 * characters takes O(n log n). A Merger owns the arrays and is used by one encoder. */
#include <stdlib.h>

#include "base/array.h"
#include "token/token_internal.h"

enum { SCAN_LIMIT = 96, FEW = 256, KEEP_SYMBOLS = 1 << 20 };

void merger_free(Merger *merger) {
    free(merger->symbol);
    free(merger->pair);
    free(merger->next);
    free(merger->previous);
    free(merger->heap);
    *merger = (Merger){.plain = merger->plain, .lost = merger->lost};
}

/* Reserves one symbol per byte; the heap grows on demand. */
static void reserve(Merger *merger, size_t length) {
    if (length <= merger->capacity) return;
    merger_free(merger);
    merger->capacity = length < FEW ? FEW : length;
    merger->symbol = memory_resize(NULL, merger->capacity * sizeof *merger->symbol);
    merger->pair = memory_resize(NULL, merger->capacity * sizeof *merger->pair);
    merger->next = memory_resize(NULL, merger->capacity * sizeof *merger->next);
    merger->previous = memory_resize(NULL, merger->capacity * sizeof *merger->previous);
}

/* -- Symbols ------------------------------------------------------------------------------------------------------- */

static bool push_bytes(const Tokenizer *tokenizer, Merger *merger, const char *bytes, size_t size) {
    if (!tokenizer->byte_fallback) return false;
    for (size_t i = 0; i < size; i++)
        if (tokenizer->byte_id[(unsigned char)bytes[i]] == TOKEN_NONE) return false;
    for (size_t i = 0; i < size; i++) merger->symbol[merger->count++] = tokenizer->byte_id[(unsigned char)bytes[i]];
    return true;
}

/* With fuse_unknown, adjacent unknown characters are one symbol, even if byte tokens lie between
 * them, as in `tokenizers`. */
static void push_characters(const Tokenizer *tokenizer, Merger *merger, const char *word, size_t length) {
    size_t unknown = 0; /* unknown symbols not yet appended */
    for (size_t at = 0, size; at < length; at += size) {
        int32_t id = TOKEN_NONE;
        size = 1;
        if (text_well_formed(word + at, length - at < 4 ? length - at : 4) > 0)
            id = (int32_t)pair_map_get(&tokenizer->characters, text_character(word + at, &size));
        bool barred = token_is_barred(tokenizer, merger->plain, id);
        if (barred) id = TOKEN_NONE;
        if (id != TOKEN_NONE) {
            for (; unknown > 0; unknown--) merger->symbol[merger->count++] = tokenizer->unknown;
            merger->symbol[merger->count++] = id;
        } else if (!push_bytes(tokenizer, merger, word + at, size)) {
            merger->lost = merger->lost || (barred && tokenizer->unknown == TOKEN_NONE);
            if (tokenizer->unknown != TOKEN_NONE && (unknown == 0 || !tokenizer->fuse_unknown)) unknown++;
        }
    }
    for (; unknown > 0; unknown--) merger->symbol[merger->count++] = tokenizer->unknown;
}

static void push_raw(const Tokenizer *tokenizer, Merger *merger, const char *word, size_t length) {
    bool waiting = false;
    for (size_t i = 0; i < length; i++) {
        int32_t id = tokenizer->byte_id[(unsigned char)word[i]];
        bool barred = token_is_barred(tokenizer, merger->plain, id);
        if (id == TOKEN_NONE || barred) {
            id = tokenizer->unknown;
            merger->lost = merger->lost || (barred && id == TOKEN_NONE);
            if (id == TOKEN_NONE || (waiting && tokenizer->fuse_unknown)) continue;
            waiting = true;
        } else {
            waiting = false;
        }
        merger->symbol[merger->count++] = id;
    }
}

/* -- Merging ------------------------------------------------------------------------------------------------------- */

static uint64_t find_merge(const Tokenizer *tokenizer, const Merger *merger, int32_t left, int32_t right) {
    uint64_t found = pair_map_get(&tokenizer->merges, pair_key((uint32_t)left, (uint32_t)right));
    return token_is_barred(tokenizer, merger->plain, (int32_t)(uint32_t)found) ? PAIR_NONE : found;
}

static void merge_by_scan(const Tokenizer *tokenizer, Merger *merger) {
    int32_t *symbol = merger->symbol;
    uint64_t *pair = merger->pair;
    size_t count = merger->count;
    for (size_t i = 0; i + 1 < count; i++) pair[i] = find_merge(tokenizer, merger, symbol[i], symbol[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (pair[i] >> 32 < pair[best] >> 32) best = i;
        if (pair[best] == PAIR_NONE) break;
        symbol[best] = (int32_t)(uint32_t)pair[best];
        count--;
        memmove(symbol + best + 1, symbol + best + 2, (count - best - 1) * sizeof *symbol);
        memmove(pair + best, pair + best + 1, (count - best - 1) * sizeof *pair);
        if (best + 1 < count) pair[best] = find_merge(tokenizer, merger, symbol[best], symbol[best + 1]);
        if (best > 0) pair[best - 1] = find_merge(tokenizer, merger, symbol[best - 1], symbol[best]);
    }
    merger->count = count;
}

static void heap_push(Merger *merger, uint64_t value) {
    array_reserve(merger->heap, merger->heap_capacity, merger->heap_count + 1);
    size_t at = merger->heap_count++;
    for (; at > 0 && merger->heap[(at - 1) / 2] > value; at = (at - 1) / 2) merger->heap[at] = merger->heap[(at - 1) / 2];
    merger->heap[at] = value;
}

static uint64_t heap_pop(Merger *merger) {
    uint64_t *heap = merger->heap, top = heap[0], last = heap[--merger->heap_count];
    size_t at = 0;
    for (size_t child; (child = at * 2 + 1) < merger->heap_count; at = child) {
        if (child + 1 < merger->heap_count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* Looks up the pair that begins at `at` again. */
static void renew_pair(const Tokenizer *tokenizer, Merger *merger, uint32_t at) {
    uint32_t next = merger->next[at];
    merger->pair[at] = next < merger->count ? find_merge(tokenizer, merger, merger->symbol[at], merger->symbol[next]) : PAIR_NONE;
    if (merger->pair[at] != PAIR_NONE) heap_push(merger, (merger->pair[at] >> 32) << 32 | at);
}

/* A heap entry is stale if the pair at its place has another rank now; a place that was merged away
 * has no pair. */
static void merge_by_heap(const Tokenizer *tokenizer, Merger *merger) {
    uint32_t count = (uint32_t)merger->count;
    for (uint32_t i = 0; i < count; i++) {
        merger->next[i] = i + 1;
        merger->previous[i] = i - 1; /* UINT32_MAX for the first */
        renew_pair(tokenizer, merger, i);
    }
    while (merger->heap_count > 0) {
        uint64_t top = heap_pop(merger);
        uint32_t at = (uint32_t)top, right = merger->next[at];
        if (merger->pair[at] == PAIR_NONE || merger->pair[at] >> 32 != top >> 32) continue;
        merger->symbol[at] = (int32_t)(uint32_t)merger->pair[at];
        merger->pair[right] = PAIR_NONE;
        merger->next[at] = merger->next[right];
        if (merger->next[at] < count) merger->previous[merger->next[at]] = at;
        renew_pair(tokenizer, merger, at);
        if (merger->previous[at] != UINT32_MAX) renew_pair(tokenizer, merger, merger->previous[at]);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i = merger->next[i]) merger->symbol[kept++] = merger->symbol[i];
    merger->count = kept;
}

void merge_word(const Tokenizer *tokenizer, Merger *merger, const char *word, size_t length, TokenIds *out) {
    if (tokenizer->whole_words) {
        int32_t id = token_map_get(&tokenizer->words, word, length);
        if (id != TOKEN_NONE && !token_is_barred(tokenizer, merger->plain, id)) {
            token_ids_append(out, id);
            return;
        }
    }
    reserve(merger, length);
    merger->count = 0;
    (tokenizer->byte_level ? push_raw : push_characters)(tokenizer, merger, word, length);
    (merger->count <= SCAN_LIMIT ? merge_by_scan : merge_by_heap)(tokenizer, merger);
    for (size_t i = 0; i < merger->count; i++) token_ids_append(out, merger->symbol[i]);
    if (merger->capacity > KEEP_SYMBOLS) merger_free(merger);
}

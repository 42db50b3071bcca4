/* The ratio of Python's difflib.SequenceMatcher, which reward functions for texts use: twice the
 * characters in matching blocks, over those of both texts. Matching blocks are the longest one, and
 * those to its left and to its right. Owns nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "rl/reward_internal.h"

/* Positions of b, ordered by character and then by position. Characters that occur in more than 1% of a
 * text of 200 or more are not in it ("autojunk"). */
typedef struct Occurrences {
    const int32_t *b;
    size_t *positions, count;
} Occurrences;

static int compare_positions(const void *x, const void *y, void *text) {
    const int32_t *b = text;
    size_t i = *(const size_t *)x, j = *(const size_t *)y;
    if (b[i] != b[j]) return b[i] < b[j] ? -1 : 1;
    return (i > j) - (i < j);
}

static Occurrences find_occurrences(const int32_t *b, size_t count) {
    enum { LONG = 200 };
    Occurrences o = {.b = b, .positions = memory_allocate((count + 1) * sizeof *o.positions)};
    for (size_t i = 0; i < count; i++) o.positions[i] = i;
    qsort_r(o.positions, count, sizeof *o.positions, compare_positions, (void *)b);
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from; to < count && b[o.positions[to]] == b[o.positions[from]];) to++;
        if (count >= LONG && to - from > count / 100 + 1) continue;
        memmove(o.positions + o.count, o.positions + from, (to - from) * sizeof *o.positions);
        o.count += to - from;
    }
    return o;
}

static size_t first_occurrence(const Occurrences *o, int32_t character) {
    size_t low = 0, high = o->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (o->b[o->positions[middle]] < character) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* a[a_from, a_to) and b[b_from, b_to) */
typedef struct Ranges { size_t a_from, a_to, b_from, b_to; } Ranges;
typedef struct MatchingBlock { size_t a, b, size; } MatchingBlock;

/* Finds the longest block of characters of `o` in both, the first one of a and then of b, and extends it
 * by equal characters. `lengths` has one zero for each position of b, and one before. */
static MatchingBlock longest_block(const int32_t *a, const Occurrences *o, Ranges r, size_t *lengths, size_t *next) {
    MatchingBlock best = {r.a_from, r.b_from, 0};
    for (size_t i = r.a_from; i < r.a_to; i++) {
        for (size_t at = first_occurrence(o, a[i]); at < o->count && o->b[o->positions[at]] == a[i]; at++) {
            size_t j = o->positions[at];
            if (j < r.b_from) continue;
            if (j >= r.b_to) break;
            size_t size = next[j + 1] = lengths[j] + 1;
            if (size > best.size) best = (MatchingBlock){i + 1 - size, j + 1 - size, size};
        }
        memcpy(lengths + r.b_from + 1, next + r.b_from + 1, (r.b_to - r.b_from) * sizeof *next);
        memset(next + r.b_from + 1, 0, (r.b_to - r.b_from) * sizeof *next);
    }
    memset(lengths + r.b_from + 1, 0, (r.b_to - r.b_from) * sizeof *lengths);
    while (best.a > r.a_from && best.b > r.b_from && a[best.a - 1] == o->b[best.b - 1]) best.a--, best.b--, best.size++;
    while (best.a + best.size < r.a_to && best.b + best.size < r.b_to && a[best.a + best.size] == o->b[best.b + best.size]) best.size++;
    return best;
}

double reward_similarity(const int32_t *a, size_t a_count, const int32_t *b, size_t b_count) {
    Occurrences o = find_occurrences(b, b_count);
    SCOPED_FREE size_t *lengths = memory_allocate((b_count + 1) * sizeof *lengths);
    SCOPED_FREE size_t *next = memory_allocate((b_count + 1) * sizeof *next);
    /* At most one range per character of the shorter text waits, and one more. */
    SCOPED_FREE Ranges *waiting = memory_allocate((a_count + b_count + 2) * sizeof *waiting);
    size_t count = 0, same = 0;
    waiting[count++] = (Ranges){0, a_count, 0, b_count};
    while (count > 0) {
        Ranges r = waiting[--count];
        MatchingBlock block = longest_block(a, &o, r, lengths, next);
        if (!block.size) continue;
        same += block.size;
        if (r.a_from < block.a && r.b_from < block.b) waiting[count++] = (Ranges){r.a_from, block.a, r.b_from, block.b};
        if (block.a + block.size < r.a_to && block.b + block.size < r.b_to)
            waiting[count++] = (Ranges){block.a + block.size, r.a_to, block.b + block.size, r.b_to};
    }
    free(o.positions);
    return a_count + b_count ? 2.0 * (double)same / (double)(a_count + b_count) : 1;
}

/* Words that GPUs exchange through each other's memory, inside a kernel: each rank writes its words
 * into the windows of all other ranks (comm/comm.h) and waits for their words in its own. This is
 * for collectives whose time is mostly the launch (ops/collective/gpu.c), and for kernels that
 * continue with the received words.
 *
 * A word of four bytes travels with the number of its collective, in eight bytes that are
 * written and read atomically, so no other ordering is needed. A window has two slots per rank,
 * which collectives use alternately. A rank that writes to a slot again has received all words
 * of the collective in between, and each rank sends those after it has read the slot. Each group
 * of WORDS words of a slot counts its own collectives, so a collective uses only as many groups
 * as it needs. */
#pragma once

#include "backend/gpu/gpu.h"
#include "comm/comm.h"

enum {
    WORDS = 256,           /* per group */
    SLOT_WORDS = 80 << 10, /* most words that a rank can send in one collective */
    WORD_GROUPS = SLOT_WORDS / WORDS,
};
_Static_assert(SLOT_WORDS % WORDS == 0, "the last group's words are in the slot");

/* A window holds the number of each group's last collective, then slots by turn and by rank. */
typedef struct Windows {
    GLOBAL uint64_t *window[COMM_MOST_WINDOWS]; /* by rank */
    GLOBAL const uint32_t *stop;
    int32_t size, rank;
} Windows;

#ifdef GPU_DEVICE

INLINE GLOBAL uint64_t *slot_of(const Windows *a, GLOBAL uint64_t *window, uint32_t number, int rank) {
    return window + WORD_GROUPS + ((number & 1) * a->size + rank) * (int64_t)SLOT_WORDS;
}

INLINE GLOBAL uint64_t *own_window(const Windows *a) {
    GLOBAL uint64_t *own = a->window[0];
    UNROLL for (int r = 1; r < COMM_MOST_WINDOWS; r++) own = r == a->rank ? a->window[r] : own;
    return own;
}

/* number_of_group returns the number of a group's current collective. count_group stores it when
 * all words of the collective have arrived. */
INLINE uint32_t number_of_group(GLOBAL const uint64_t *window, int group) { return (uint32_t)window[group] + 1; }
INLINE void count_group(GLOBAL uint64_t *window, int group, uint32_t number) { window[group] = number; }

/* Sends a word to the rank that owns the window. */
INLINE void send_to(const Windows *a, GLOBAL uint64_t *window, int64_t word, uint32_t x, uint32_t number) {
    __atomic_store_n(&slot_of(a, window, number, a->rank)[word], (uint64_t)number << 32 | x, __ATOMIC_RELAXED);
}

/* FOR_OTHERS(a, r) statement: for each other rank r; unrolled, because windows are arguments. */
#define FOR_OTHERS(a, r)                                                                                                                   \
    UNROLL for (int r = 0; r < COMM_MOST_WINDOWS; r++)                                                                                     \
        if (r < (a)->size && r != (a)->rank)

/* Returns the content of another rank's word slot: `number` is in its upper half once the word has
 * arrived. */
INLINE uint64_t look(const Windows *a, GLOBAL uint64_t *own, int rank, int64_t word, uint32_t number) {
    return __atomic_load_n(&slot_of(a, own, number, rank)[word], __ATOMIC_RELAXED);
}
/* Returns whether the group of ranks has failed, so that missing words will not arrive; tested
 * every LOOKS looks. */
enum { LOOKS = 1024 };
INLINE bool have_failed(const Windows *a, int looks) { return looks % LOOKS == 0 && __atomic_load_n(a->stop, __ATOMIC_RELAXED); }

/* Returns another rank's word; 0 after the group has failed. */
INLINE uint32_t receive_words(const Windows *a, GLOBAL uint64_t *own, int rank, int64_t word, uint32_t number) {
    for (int i = 1;; i++) {
        uint64_t labeled = look(a, own, rank, word, number);
        if (labeled >> 32 == number) return (uint32_t)labeled;
        if (have_failed(a, i)) return 0;
    }
}

#else

#include <string.h>

static inline int64_t window_bytes(int size) { return (WORD_GROUPS + 2 * (int64_t)size * SLOT_WORDS) * (int64_t)sizeof(uint64_t); }

static inline Windows windows_of(const CommWindows *from) {
    Windows windows = {.stop = from->stop, .size = from->size, .rank = from->rank};
    memcpy(windows.window, from->window, sizeof windows.window);
    return windows;
}

#endif

/* Words that GPUs exchange through each other's memory, inside a kernel: each rank writes its words into the windows of all
 * others (comm/comm.h) and waits for theirs in its own. For collectives so small that a launch is most of their time
 * (ops/collective/gpu.c), and for kernels that go on with what they received.
 *
 * A word of four bytes travels with the number of its collective, in eight bytes that are written and read as one, so
 * that nothing else has to be ordered. A window has two slots for the words of each rank, which collectives take in turn:
 * who writes to a slot again has had all words of the collective between, which a rank sends after it has read the slot.
 * Each group of WORDS words of a slot counts its own collectives, so that each has as many words as it needs. */
#pragma once

#include "backend/gpu/gpu.h"
#include "comm/comm.h"

enum {
    WORDS = 256,           /* of a group */
    SLOT_WORDS = 80 << 10, /* that a rank can send in one collective */
    WORD_GROUPS = SLOT_WORDS / WORDS,
};
_Static_assert(SLOT_WORDS % WORDS == 0, "the last group's words are in the slot");

/* In a window: the number of each group's last collective, then slots by turn and by rank. */
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

/* The number of the collective that is under way, of a group; and the group's count, when all of its words are there. */
INLINE uint32_t number_of_group(GLOBAL const uint64_t *window, int group) { return (uint32_t)window[group] + 1; }
INLINE void count_group(GLOBAL uint64_t *window, int group, uint32_t number) { window[group] = number; }

/* To the rank whose window it is. */
INLINE void send_to(const Windows *a, GLOBAL uint64_t *window, int64_t word, uint32_t x, uint32_t number) {
    __atomic_store_n(&slot_of(a, window, number, a->rank)[word], (uint64_t)number << 32 | x, __ATOMIC_RELAXED);
}

/* FOR_OTHERS(a, r) statement: for each other rank r; unrolled, as windows are arguments. */
#define FOR_OTHERS(a, r)                                                                                                                   \
    UNROLL for (int r = 0; r < COMM_MOST_WINDOWS; r++)                                                                                     \
        if (r < (a)->size && r != (a)->rank)

/* What lies in the place of another rank's word: `number` in its upper half once that has arrived. */
INLINE uint64_t look(const Windows *a, GLOBAL uint64_t *own, int rank, int64_t word, uint32_t number) {
    return __atomic_load_n(&slot_of(a, own, number, rank)[word], __ATOMIC_RELAXED);
}
/* Whether the group of ranks has failed, and what is missing will not arrive; asked for every LOOKS looks. */
enum { LOOKS = 1024 };
INLINE bool have_failed(const Windows *a, int looks) { return looks % LOOKS == 0 && __atomic_load_n(a->stop, __ATOMIC_RELAXED); }

/* Another rank's word; 0 once the group has failed. */
INLINE uint32_t receive(const Windows *a, GLOBAL uint64_t *own, int rank, int64_t word, uint32_t number) {
    for (int i = 1;; i++) {
        uint64_t labelled = look(a, own, rank, word, number);
        if (labelled >> 32 == number) return (uint32_t)labelled;
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

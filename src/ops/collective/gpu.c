/* Collectives between GPUs. Most are the library's, which run beside the device's stream. The small ones of generation
 * (op_is_direct) are kernels of that stream, which are recorded with all others, and take a few microseconds where the
 * library's way there and back takes forty: each rank writes its words into the windows of all others (comm/comm.h) and
 * waits for theirs in its own.
 *
 * A word of four bytes travels with the number of its collective, in eight bytes that are written and read as one, so
 * that nothing else has to be ordered. A window has two slots for the words of each rank, which collectives take in turn:
 * who writes to a slot again has had all words of the collective between, which a rank sends after it has read the slot. */
#include "backend/gpu/gpu.h"
#include "comm/comm.h"

enum { WORDS = 256 /* of a rank that a block passes on, one a thread; it counts its own collectives */ };

/* In a window: the number of each block's last collective, as far as a slot's words go, then slots by turn and by rank. */
typedef struct Direct {
    GLOBAL const uint32_t *x;
    GLOBAL uint32_t *y;
    GLOBAL uint64_t *window[COMM_MOST_WINDOWS]; /* by rank */
    GLOBAL const uint32_t *stop;
    int64_t first[COMM_MOST_WINDOWS + 1]; /* of y, where a rank's words go; of a sum: from 0 for all */
    int32_t size, rank, blocks, slot;     /* blocks that a window counts for; words of a slot */
} Direct;

#ifdef GPU_DEVICE

INLINE GLOBAL uint64_t *slot_of(const Direct *a, GLOBAL uint64_t *window, uint32_t number, int rank) {
    return window + a->blocks + ((number & 1) * a->size + rank) * (int64_t)a->slot;
}

/* The number of the block's collective; and its count, when all of its threads have theirs. */
INLINE uint32_t number_of_block(GLOBAL const uint64_t *window) { return (uint32_t)window[block_x()] + 1; }
INLINE void count(GLOBAL uint64_t *window, uint32_t number) {
    barrier();
    if (thread_id() == 0) window[block_x()] = number;
}

/* To all others. */
INLINE void send(const Direct *a, int64_t word, uint32_t x, uint32_t number) {
    uint64_t labelled = (uint64_t)number << 32 | x;
    UNROLL for (int r = 0; r < COMM_MOST_WINDOWS; r++) if (r < a->size && r != a->rank)
        __atomic_store_n(&slot_of(a, a->window[r], number, a->rank)[word], labelled, __ATOMIC_RELAXED);
}

/* Another rank's word; 0 once the group has failed. */
INLINE uint32_t receive(const Direct *a, GLOBAL uint64_t *window, int rank, int64_t word, uint32_t number) {
    enum { LOOKS = 1024 };
    GLOBAL uint64_t *at = &slot_of(a, window, number, rank)[word];
    for (int i = 1;; i++) {
        uint64_t labelled = __atomic_load_n(at, __ATOMIC_RELAXED);
        if (labelled >> 32 == number) return (uint32_t)labelled;
        if (i % LOOKS == 0 && __atomic_load_n(a->stop, __ATOMIC_RELAXED)) return 0;
    }
}

INLINE GLOBAL uint64_t *own_window(const Direct *a) {
    GLOBAL uint64_t *own = a->window[0];
    UNROLL for (int r = 1; r < COMM_MOST_WINDOWS; r++) own = r == a->rank ? a->window[r] : own;
    return own;
}

/* y = the sum over ranks of x, added in their order: of bf16, two in a word, or of fp32. */
INLINE void sum_directly(const Direct *a, const bool wide) {
    GLOBAL uint64_t *own = own_window(a);
    int64_t word = (int64_t)block_x() * WORDS + thread_id();
    bool has_word = word < a->first[1];
    uint32_t x = has_word ? a->x[word] : 0, number = number_of_block(own);
    f32x2 sum = {0, 0};
    if (has_word) {
        send(a, word, x, number);
        for (int r = 0; r < a->size; r++) {
            uint32_t term = r == a->rank ? x : receive(a, own, r, word, number);
            sum += wide ? (f32x2){__builtin_bit_cast(float, term), 0} : (f32x2){to_float_low(term), to_float_high(term)};
        }
        a->y[word] = wide ? __builtin_bit_cast(uint32_t, sum.x) : to_bf16_pair(sum.x, sum.y);
    }
    count(own, number);
}

KERNEL(direct_sum_bf16, Direct) { sum_directly(&a, false); }
KERNEL(direct_sum_float, Direct) { sum_directly(&a, true); }

/* y = x of all ranks, one after another. */
KERNEL(direct_gather, Direct) {
    GLOBAL uint64_t *own = own_window(&a);
    int64_t word = (int64_t)block_x() * WORDS + thread_id();
    uint32_t number = number_of_block(own);
    UNROLL for (int r = 0; r < COMM_MOST_WINDOWS; r++) if (r == a.rank && word < a.first[r + 1] - a.first[r]) {
        uint32_t x = a.x[word];
        send(&a, word, x, number);
        a.y[a.first[r] + word] = x;
    }
    UNROLL for (int r = 0; r < COMM_MOST_WINDOWS; r++) if (r < a.size && r != a.rank && word < a.first[r + 1] - a.first[r])
        a.y[a.first[r] + word] = receive(&a, own, r, word, number);
    count(own, number);
}

#else

#include <string.h>

#include "backend/gpu/kernel_launch.h"
#include "ops/collective/collective.h"

LAUNCHERS(direct_sum, Direct, direct_sum_bf16, direct_sum_float)
LAUNCHER(direct_gather, Direct)

enum { SLOT_WORDS = COLLECTIVE_DIRECT_BYTES / sizeof(uint32_t), BLOCKS = SLOT_WORDS / WORDS };
static_assert(SLOT_WORDS % WORDS == 0, "the last block's words are in the slot");

int64_t collective_window_bytes(int size) { return (BLOCKS + 2 * (int64_t)size * SLOT_WORDS) * (int64_t)sizeof(uint64_t); }

static const CollectiveAttributes *attributes_of(const OpCall *call) { return call->attributes; }

static Direct direct_of(const OpCall *call) {
    const CommWindows *windows = comm_windows(mesh_group(call->mesh, attributes_of(call)->axes));
    Direct direct = {.x = call->in[COLLECTIVE_X],
        .y = call->out[COLLECTIVE_Y],
        .stop = windows->stop,
        .size = windows->size,
        .rank = windows->rank,
        .blocks = BLOCKS,
        .slot = SLOT_WORDS};
    memcpy(direct.window, windows->window, sizeof direct.window);
    return direct;
}

static LaunchShape shape_for(int64_t words) { return (LaunchShape){.x = divide_up(words, WORDS), .threads = WORDS}; }

/* Words of this rank's x. */
static int64_t words_of(const OpCall *call) {
    int64_t element = attributes_of(call)->type == TYPE_COMPUTE ? sizeof(bf16) : sizeof(float);
    return call->in_shape[COLLECTIVE_X][0] * call->in_shape[COLLECTIVE_X][1] * element / (int64_t)sizeof(uint32_t);
}

static void sum_direct(const OpCall *call) {
    Direct direct = direct_of(call);
    int64_t words = words_of(call);
    for (int i = 1; i <= direct.size; i++) direct.first[i] = words;
    launch_direct_sum(call->device, attributes_of(call)->type == TYPE_WIDE, shape_for(words), &direct);
}

static void gather_direct(const OpCall *call) {
    Direct direct = direct_of(call);
    int64_t words = words_of(call);
    for (int i = 0; i <= direct.size; i++) direct.first[i] = i * words;
    launch_direct_gather(call->device, shape_for(words), &direct);
}

/* Of one row, whose shares may differ by a column. */
static void gather_columns_direct(const OpCall *call) {
    Direct direct = direct_of(call);
    int64_t columns = call->out_shape[COLLECTIVE_Y][1];
    for (int i = 0; i <= direct.size; i++) direct.first[i] = cut_share(columns, i, direct.size).first;
    launch_direct_gather(call->device, shape_for(divide_up(columns, direct.size)), &direct);
}

GPU_OP(all_gather) {
    if (call->direct) gather_direct(call);
    else collective_all_gather(call, sizeof(bf16), sizeof(float));
}
GPU_OP(reduce_scatter) { collective_reduce_scatter(call, sizeof(bf16), sizeof(float)); }
GPU_OP(gather_columns, collective_columns_workspace) {
    if (call->direct) gather_columns_direct(call);
    else collective_gather_columns(call, sizeof(bf16), sizeof(float));
}
GPU_OP(all_reduce) {
    if (call->direct) sum_direct(call);
    else collective_all_reduce(call, sizeof(bf16), sizeof(float));
}

#endif

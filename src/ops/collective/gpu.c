/* Collectives between GPUs. Most of them use the library, which runs beside the device's stream.
 * The small ones in generation (op_is_direct) are kernels on the stream, recorded with all others.
 * They take a few microseconds instead of the library's forty: ranks exchange words
 * (backend/gpu/words.h), one per thread. */
#include "backend/gpu/words.h"

typedef struct Direct {
    GLOBAL const uint32_t *x;
    GLOBAL uint32_t *y;
    Windows windows;
    int64_t first[COMM_MOST_WINDOWS + 1]; /* word of y at which each rank's words start; for a sum: 0 for all ranks */
} Direct;

#ifdef GPU_DEVICE

/* Counts a collective of the block's words after all its threads have their words. */
INLINE void count_arrivals(GLOBAL uint64_t *own, uint32_t number) {
    barrier();
    if (thread_id() == 0) count_group(own, block_x(), number);
}

/* y = the sum over ranks of x, added in rank order: bf16, two per word, or fp32. */
INLINE void sum_directly(const Direct *a, const bool wide) {
    const Windows *windows = &a->windows;
    GLOBAL uint64_t *own = own_window(windows);
    int64_t word = (int64_t)block_x() * WORDS + thread_id();
    bool has_word = word < a->first[1];
    uint32_t x = has_word ? a->x[word] : 0, number = number_of_group(own, block_x());
    f32x2 sum = {0, 0};
    if (has_word) {
        FOR_OTHERS(windows, r) send_to(windows, windows->window[r], word, x, number);
        for (int r = 0; r < windows->size; r++) {
            uint32_t term = r == windows->rank ? x : receive_words(windows, own, r, word, number);
            sum += wide ? (f32x2){__builtin_bit_cast(float, term), 0} : (f32x2){to_float_low(term), to_float_high(term)};
        }
        a->y[word] = wide ? __builtin_bit_cast(uint32_t, sum.x) : to_bf16_pair(sum.x, sum.y);
    }
    count_arrivals(own, number);
}

KERNEL(direct_sum_bf16, Direct) { sum_directly(&a, false); }
KERNEL(direct_sum_float, Direct) { sum_directly(&a, true); }

/* y = x of all ranks, one after another. */
KERNEL(direct_gather, Direct) {
    const Windows *windows = &a.windows;
    GLOBAL uint64_t *own = own_window(windows);
    int64_t word = (int64_t)block_x() * WORDS + thread_id();
    uint32_t number = number_of_group(own, block_x());
    UNROLL for (int r = 0; r < COMM_MOST_WINDOWS; r++) if (r == windows->rank && word < a.first[r + 1] - a.first[r]) {
        uint32_t x = a.x[word];
        FOR_OTHERS(windows, other) send_to(windows, windows->window[other], word, x, number);
        a.y[a.first[r] + word] = x;
    }
    FOR_OTHERS(windows, r) if (word < a.first[r + 1] - a.first[r]) a.y[a.first[r] + word] = receive_words(windows, own, r, word, number);
    count_arrivals(own, number);
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/collective/collective.h"

LAUNCHERS(direct_sum, Direct, direct_sum_bf16, direct_sum_float)
LAUNCHER(direct_gather, Direct)

static_assert(SLOT_WORDS * sizeof(uint32_t) == COLLECTIVE_DIRECT_BYTES, "a slot has all words of a rank");

int64_t collective_window_bytes(int size) { return window_bytes(size); }

static const CollectiveAttributes *collective_axes(const OpCall *call) { return call->attributes; }

static Direct direct_of(const OpCall *call) {
    return (Direct){.x = call->in[COLLECTIVE_X],
        .y = call->out[COLLECTIVE_Y],
        .windows = windows_of(comm_windows(mesh_group(call->mesh, collective_axes(call)->axes)))};
}

static LaunchShape shape_for(int64_t words) { return (LaunchShape){.x = divide_up(words, WORDS), .threads = WORDS}; }

/* Returns the number of words of this rank's x. */
static int64_t words_of(const OpCall *call) {
    int64_t element = collective_axes(call)->type == TYPE_COMPUTE ? sizeof(bf16) : sizeof(float);
    return call->in_shape[COLLECTIVE_X][0] * call->in_shape[COLLECTIVE_X][1] * element / (int64_t)sizeof(uint32_t);
}

static void sum_direct(const OpCall *call) {
    Direct direct = direct_of(call);
    int64_t words = words_of(call);
    for (int i = 1; i <= direct.windows.size; i++) direct.first[i] = words;
    launch_direct_sum(call->device, collective_axes(call)->type == TYPE_WIDE, shape_for(words), &direct);
}

static void gather_direct(const OpCall *call) {
    Direct direct = direct_of(call);
    int64_t words = words_of(call);
    for (int i = 0; i <= direct.windows.size; i++) direct.first[i] = i * words;
    launch_direct_gather(call->device, shape_for(words), &direct);
}

/* Gathers one row, whose shares may differ by a column. */
static void gather_columns_direct(const OpCall *call) {
    Direct direct = direct_of(call);
    int64_t columns = call->out_shape[COLLECTIVE_Y][1];
    for (int i = 0; i <= direct.windows.size; i++) direct.first[i] = cut_share(columns, i, direct.windows.size).first;
    launch_direct_gather(call->device, shape_for(divide_up(columns, direct.windows.size)), &direct);
}

GPU_OP(all_gather, .rehearse = run_all_gather) {
    if (call->direct) gather_direct(call);
    else collective_all_gather(call, sizeof(bf16), sizeof(float));
}
GPU_OP(reduce_scatter, .rehearse = run_reduce_scatter) { collective_reduce_scatter(call, sizeof(bf16), sizeof(float)); }
GPU_OP(gather_columns, collective_columns_workspace, .rehearse = run_gather_columns) {
    if (call->direct) gather_columns_direct(call);
    else collective_gather_columns(call, sizeof(bf16), sizeof(float));
}
GPU_OP(all_reduce, .rehearse = run_all_reduce) {
    if (call->direct) sum_direct(call);
    else collective_all_reduce(call, sizeof(bf16), sizeof(float));
}

#endif

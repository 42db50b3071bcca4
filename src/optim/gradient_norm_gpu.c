/* Sums of squares over chunks: of all gradients (for clipping) and of Muon's directions (muon.c).
 * One block sums a chunk in double. Then one block per result adds the chunks' sums: thread t adds
 * chunks t, t + OPTIM_THREADS, ..., and a tree adds the threads' sums. The bits depend only on the
 * list of chunks. Reads every gradient once: 4 bytes per parameter, or 2 in pure bf16. Owns no
 * memory. */
#include "optim/optim_gpu_kernels.h"

enum { SUMS_AHEAD = 8 }; /* loads in flight per thread */

typedef struct SquaresArguments {
    const Chunk GLOBAL *chunks;
    const void GLOBAL *gradients;
    double GLOBAL *partials;
} SquaresArguments;
typedef struct SumsArguments {
    const double GLOBAL *partials;
    double GLOBAL *sums;
    int64_t each;
} SumsArguments;

#ifdef GPU_DEVICE

INLINE void sum_chunk(const SquaresArguments *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    int64_t fours = chunk_fours(chunk), i;
    double sum = 0;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) sum = add_squares(sum, load_state(a->gradients, chunk->index + i, pure_bf16, 4));
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS)
        sum = add_squares(sum, load_state(a->gradients, chunk->index + i, pure_bf16, 1));
    sum = block_sum_double(sum);
    if (thread_id() == 0) a->partials[block_x()] = sum;
}

KERNEL(squares, SquaresArguments) { sum_chunk(&a, false); }
KERNEL(squares_bf16, SquaresArguments) { sum_chunk(&a, true); }

KERNEL(sums, SumsArguments) {
    const double GLOBAL *from = a.partials + block_x() * a.each;
    int64_t i = thread_id();
    double sum = 0;
    for (; i + (SUMS_AHEAD - 1) * OPTIM_THREADS < a.each; i += SUMS_AHEAD * OPTIM_THREADS) {
        double x[SUMS_AHEAD];
        UNROLL for (int k = 0; k < SUMS_AHEAD; k++) x[k] = from[i + k * OPTIM_THREADS];
        UNROLL for (int k = 0; k < SUMS_AHEAD; k++) sum += x[k];
    }
    for (; i < a.each; i += OPTIM_THREADS) sum += from[i];
    sum = block_sum_double(sum);
    if (thread_id() == 0) a.sums[block_x()] = sum;
}

#else

LAUNCHERS(squares, SquaresArguments, squares, squares_bf16)
LAUNCHER(sums, SumsArguments)

void gpu_sum_partials(Device *device, int64_t each, int64_t count, const double *partials, double *sums) {
    launch_sums(device, (LaunchShape){.x = count, .threads = OPTIM_THREADS}, &(SumsArguments){partials, sums, each});
}

void gpu_sum_squares(const Optimizer *optimizer, const Segment *segment, const void *arena, PreciseSum *sum) {
    LaunchShape shape = {.x = segment->end - segment->first, .threads = OPTIM_THREADS};
    SquaresArguments arguments = {optimizer->device_chunks + segment->first, arena, optimizer->partials};
    launch_squares(optimizer->device, segment->pure_bf16, shape, &arguments);
    gpu_sum_partials(optimizer->device, shape.x, 1, optimizer->partials, &sum->high);
}

#endif

/* What Muon does to memory around its products (optim/muon_gpu.c), for all matrices of one shape at once: momentum and the direction's norm, the
 * direction in bf16, and at the end the update; 34 bytes a parameter in all. The pass that writes directions reads momentum and gradient again
 * instead of rounding a direction twice. Owns no memory. */
#include "kernel/optim.h"

typedef struct IdentityArguments {
    const bf16 GLOBAL *gram;
    bf16 GLOBAL *square;
    int64_t order, stride;
    float identity, linear, quadratic;
} IdentityArguments;

#ifdef GPU_DEVICE

/* The direction, for which the momentum has taken g in. */
INLINE f32x4 direction_of(const MuonGroup *a, f32x4 m, f32x4 g) { return a->scale * g + a->momentum * m; }

/* Where the chunk's part of it lies. */
INLINE bf16 GLOBAL *chunk_direction(const MuonGroup *a, const Chunk GLOBAL *chunk) {
    return a->x + (chunk->matrix - a->first_matrix) * a->stride + chunk->inner;
}

/* m = momentum m + scale g at `unit` elements; `sum` with the squares of their direction added. */
INLINE double update_momentum(const MuonGroup *a, float GLOBAL *momentum, const float GLOBAL *gradient, double sum, int unit) {
    f32x4 g = load4_wide(gradient, unit), m = a->momentum * load4_wide(momentum, unit) + a->scale * g;
    store4_wide(momentum, m, unit);
    return add_squares(sum, direction_of(a, m, g));
}

KERNEL(momentum, MuonGroup) {
    const Chunk GLOBAL *chunk = a.chunks + block_x();
    float GLOBAL *momentum = a.arenas.momentum + chunk->offset;
    const float GLOBAL *gradients = a.arenas.gradients + chunk->offset;
    int64_t fours = chunk_fours(chunk), i;
    double sum = 0;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) sum = update_momentum(&a, momentum + i, gradients + i, sum, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) sum = update_momentum(&a, momentum + i, gradients + i, sum, 1);
    sum = block_sum_double(sum);
    if (thread_id() == 0) a.partials[block_x()] = sum;
}

INLINE void write_direction(const MuonGroup *a, bf16 GLOBAL *x, const float GLOBAL *momentum, const float GLOBAL *gradient, float factor,
                            int unit) {
    store4_narrow(x, factor * direction_of(a, load4_wide(momentum, unit), load4_wide(gradient, unit)), unit);
}

KERNEL(direction, MuonGroup) {
    const Chunk GLOBAL *chunk = a.chunks + block_x();
    const float GLOBAL *momentum = a.arenas.momentum + chunk->offset, *gradients = a.arenas.gradients + chunk->offset;
    bf16 GLOBAL *x = chunk_direction(&a, chunk);
    float factor = 1 / ((float)a.norms[chunk->matrix - a.first_matrix] + (float)MUON_EPSILON);
    int64_t fours = chunk_fours(chunk), i;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) write_direction(&a, x + i, momentum + i, gradients + i, factor, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS)
        write_direction(&a, x + i, momentum + i, gradients + i, factor, 1);
}

/* The sum of squares of a row, in every lane of the wave that has it. */
INLINE float row_squares(const bf16 GLOBAL *row, int64_t order) {
    float sum = 0;
    if (order % 8 == 0)
        for (int64_t i = 8 * lane_id(); i < order; i += 8 * WAVE) {
            f32x8 x = load8_narrow(row + i, 8);
            UNROLL for (int k = 0; k < 8; k++) sum += x[k] * x[k];
        }
    else
        for (int64_t i = lane_id(); i < order; i += WAVE) sum += widen(row[i]) * widen(row[i]);
    return wave_sum(sum);
}

/* A wave for each row; gram is symmetric, so (gram^2)[i][i] is the sum of squares of row i. */
KERNEL(add_identity, IdentityArguments) {
    int64_t row = (int64_t)block_x() * (OPTIM_THREADS / WAVE) + wave_id(), at = block_y() * a.stride + row * a.order;
    if (row >= a.order) return;
    float squares = row_squares(a.gram + at, a.order);
    if (lane_id() == 0) a.square[at + row] = narrow(a.identity + a.linear * widen(a.gram[at + row]) + a.quadratic * squares);
}

INLINE void apply_direction(const MuonGroup *a, float GLOBAL *master, bf16 GLOBAL *weights, const bf16 GLOBAL *x, int unit) {
    f32x4 p = a->keep * load4_wide(master, unit) - a->rate * load4_narrow(x, unit);
    store4_wide(master, p, unit);
    store4_narrow(weights, p, unit);
}

KERNEL(apply, MuonGroup) {
    const Chunk GLOBAL *chunk = a.chunks + block_x();
    float GLOBAL *master = a.arenas.master + chunk->offset;
    bf16 GLOBAL *weights = a.arenas.weights + chunk->offset;
    const bf16 GLOBAL *x = chunk_direction(&a, chunk);
    int64_t fours = chunk_fours(chunk), i;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) apply_direction(&a, master + i, weights + i, x + i, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) apply_direction(&a, master + i, weights + i, x + i, 1);
}

#else

#include "kernel/launch.h"

LAUNCHER(muon, momentum, MuonGroup)
LAUNCHER(muon, direction, MuonGroup)
LAUNCHER(muon, add_identity, IdentityArguments)
LAUNCHER(muon, apply, MuonGroup)

static LaunchShape block_per_chunk(const MuonGroup *group) {
    return (LaunchShape){.x = group->matrices * group->chunks_each, .threads = OPTIM_THREADS};
}

void gpu_muon_load(Device *device, const MuonGroup *group) {
    launch_momentum(device, block_per_chunk(group), group);
    gpu_norms_of_partials(device, group->chunks_each, group->matrices, group->partials, group->norms);
    launch_direction(device, block_per_chunk(group), group);
}

void gpu_muon_add_identity(Device *device, const bf16 *gram, bf16 *square, int64_t order, int64_t count, int64_t stride, double identity,
                           double linear, double quadratic) {
    LaunchShape shape = {.x = ceil_divide(order, OPTIM_THREADS / device_info(device)->wave), .y = count, .threads = OPTIM_THREADS};
    launch_add_identity(device, shape, &(IdentityArguments){gram, square, order, stride, (float)identity, (float)linear, (float)quadratic});
}

void gpu_muon_apply(Device *device, const MuonGroup *group) { launch_apply(device, block_per_chunk(group), group); }

#endif

/* What Muon does to memory around its products (optim/muon_gpu.c), for all matrices of one shape at once: momentum and the direction's norm, the
 * direction in bf16, and at the end the update; 34 bytes a parameter in all, or 20 where all is kept in bf16. The pass that writes directions reads momentum and gradient again
 * instead of rounding a direction twice. Owns no memory. */
#include "optim/optim_gpu.h"

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
    return a->x + (chunk->matrix - a->first_matrix) * a->stride + chunk->second_index;
}

INLINE f32x4 gradient_at(const MuonGroup *a, int64_t at, bool pure_bf16, int unit) {
    return load_state(a->arenas.gradients, at, pure_bf16, unit);
}
INLINE f32x4 momentum_at(const MuonGroup *a, int64_t at, bool pure_bf16, int unit) {
    return load_state(a->arenas.momentum, at, pure_bf16, unit);
}

/* m = momentum m + scale g at `unit` elements of the chunk from `i` on; `sum` with the squares of their direction added. */
INLINE double update_momentum(
    const MuonGroup *a, const Chunk GLOBAL *chunk, uint32_t seed, int64_t i, double sum, bool pure_bf16, int unit) {
    int64_t at = chunk->index + i;
    f32x4 g = gradient_at(a, at, pure_bf16, unit), m = a->momentum * momentum_at(a, at, pure_bf16, unit) + a->scale * g;
    store_state(a->arenas.momentum, at, m, pure_bf16 ? noise_of(~seed, chunk->first + i) : (u32x4)0, pure_bf16, unit);
    return add_squares(sum, direction_of(a, m, g));
}

INLINE void update_momenta(const MuonGroup *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    uint32_t seed = optim_noise_seed(chunk->key, a->arenas.step);
    int64_t fours = chunk_fours(chunk), i;
    double sum = 0;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) sum = update_momentum(a, chunk, seed, i, sum, pure_bf16, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) sum = update_momentum(a, chunk, seed, i, sum, pure_bf16, 1);
    sum = block_sum_double(sum);
    if (thread_id() == 0) a->partials[block_x()] = sum;
}

KERNEL(momentum, MuonGroup) { update_momenta(&a, false); }
KERNEL(momentum_bf16, MuonGroup) { update_momenta(&a, true); }

INLINE void write_direction(const MuonGroup *a, bf16 GLOBAL *x, int64_t at, float factor, bool pure_bf16, int unit) {
    store4_bf16(x, factor * direction_of(a, momentum_at(a, at, pure_bf16, unit), gradient_at(a, at, pure_bf16, unit)), unit);
}

INLINE void write_directions(const MuonGroup *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    bf16 GLOBAL *x = chunk_direction(a, chunk);
    float factor = 1 / ((float)a->norms[chunk->matrix - a->first_matrix] + (float)MUON_EPSILON);
    int64_t fours = chunk_fours(chunk), i;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) write_direction(a, x + i, chunk->index + i, factor, pure_bf16, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) write_direction(a, x + i, chunk->index + i, factor, pure_bf16, 1);
}

KERNEL(direction, MuonGroup) { write_directions(&a, false); }
KERNEL(direction_bf16, MuonGroup) { write_directions(&a, true); }

/* The sum of squares of a row, in every lane of the wave that has it. */
INLINE float row_squares(const bf16 GLOBAL *row, int64_t order) {
    float sum = 0;
    if (order % 8 == 0)
        for (int64_t i = 8 * lane_id(); i < order; i += 8 * WAVE) {
            f32x8 x = load8_bf16(row + i, 8);
            UNROLL for (int k = 0; k < 8; k++) sum += x[k] * x[k];
        }
    else
        for (int64_t i = lane_id(); i < order; i += WAVE) sum += to_float(row[i]) * to_float(row[i]);
    return wave_sum(sum);
}

/* A wave for each row; gram is symmetric, so (gram^2)[i][i] is the sum of squares of row i. */
KERNEL(add_identity, IdentityArguments) {
    int64_t row = (int64_t)block_x() * (OPTIM_THREADS / WAVE) + wave_id(), at = block_y() * a.stride + row * a.order;
    if (row >= a.order) return;
    float squares = row_squares(a.gram + at, a.order);
    if (lane_id() == 0) a.square[at + row] = to_bf16(a.identity + a.linear * to_float(a.gram[at + row]) + a.quadratic * squares);
}

INLINE void apply_direction(
    const MuonGroup *a, const Chunk GLOBAL *chunk, const bf16 GLOBAL *x, uint32_t seed, int64_t i, bool pure_bf16, int unit) {
    int64_t at = chunk->index + i;
    f32x4 p = a->keep * load_state(a->arenas.master, at, pure_bf16, unit) - a->rate * load4_bf16(x + i, unit);
    u32x4 noise = pure_bf16 ? noise_of(seed, chunk->first + i) : (u32x4)0;
    store_state(a->arenas.master, at, p, noise, pure_bf16, unit);
    if (!a->arenas.weights) return;
    if (pure_bf16) store_state(a->arenas.weights, at, p, noise, true, unit);
    else store4_bf16(a->arenas.weights + at, p, unit);
}

INLINE void apply_directions(const MuonGroup *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    const bf16 GLOBAL *x = chunk_direction(a, chunk);
    uint32_t seed = optim_noise_seed(chunk->key, a->arenas.step);
    int64_t fours = chunk_fours(chunk), i;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) apply_direction(a, chunk, x, seed, i, pure_bf16, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) apply_direction(a, chunk, x, seed, i, pure_bf16, 1);
}

KERNEL(apply, MuonGroup) { apply_directions(&a, false); }
KERNEL(apply_bf16, MuonGroup) { apply_directions(&a, true); }

#else

#include "backend/gpu/kernel_launch.h"

LAUNCHER(momentum, MuonGroup)
LAUNCHER(momentum_bf16, MuonGroup)
LAUNCHER(direction, MuonGroup)
LAUNCHER(direction_bf16, MuonGroup)
LAUNCHER(add_identity, IdentityArguments)
LAUNCHER(apply, MuonGroup)
LAUNCHER(apply_bf16, MuonGroup)

static LaunchShape block_per_chunk(const MuonGroup *group) {
    return (LaunchShape){.x = group->matrices * group->chunks_each, .threads = OPTIM_THREADS};
}

void gpu_muon_load(Device *device, const MuonGroup *group) {
    bool pure_bf16 = group->arenas.pure_bf16;
    (pure_bf16 ? launch_momentum_bf16 : launch_momentum)(device, block_per_chunk(group), group);
    gpu_norms_of_partials(device, group->chunks_each, group->matrices, group->partials, group->norms);
    (pure_bf16 ? launch_direction_bf16 : launch_direction)(device, block_per_chunk(group), group);
}

void gpu_muon_add_identity(Device *device, const bf16 *gram, bf16 *square, int64_t order, int64_t count, int64_t stride, double identity,
    double linear, double quadratic) {
    LaunchShape shape = {.x = divide_up(order, OPTIM_THREADS / device_info(device)->wave), .y = count, .threads = OPTIM_THREADS};
    launch_add_identity(device, shape, &(IdentityArguments){gram, square, order, stride, (float)identity, (float)linear, (float)quadratic});
}

void gpu_muon_apply(Device *device, const MuonGroup *group) {
    (group->arenas.pure_bf16 ? launch_apply_bf16 : launch_apply)(device, block_per_chunk(group), group);
}

#endif

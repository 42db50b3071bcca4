/* Muon's step on a GPU (muon.c explains the method). The matrices of a group have one shape and a
 * constant stride in scratch, so every pass and every GEMM of the iteration is one launch for the
 * group. The symmetric GEMMs compute only on and below the diagonal (backend/gpu/gpu_gemm.c):
 *     gram = X X^T        square = c gram gram + b gram + a I        Y = square X
 * For a tall X, gram = X^T X and the factors of the last product are swapped. The passes around the
 * GEMMs move 34 bytes per parameter in total, or 20 if everything is bf16. The pass that writes
 * directions reads momentum and gradient again instead of rounding a direction twice. Owns no
 * memory. */
#include "optim/optim_gpu_kernels.h"

/* Arguments of the passes before and after the GEMMs, for a group of `matrices` of one shape, each
 * of `chunks_each` chunks. */
typedef struct MuonGroup {
    OptimArenas arenas;
    const Chunk GLOBAL *chunks; /* of these matrices only */
    double GLOBAL *partials;    /* one per chunk */
    double GLOBAL *squares;     /* one per matrix: of its direction, or of all slices of it */
    bf16 GLOBAL *x;             /* the first matrix's direction, or slices of directions; 16-byte aligned */
    int64_t stride;             /* elements between consecutive directions, a multiple of 8; 0 between slices */
    int64_t matrices, chunks_each;
    int32_t first_matrix;  /* index in the list of matrices */
    float momentum, scale; /* decay of the momentum; factor of gradients */
    float keep, rate;      /* p = keep p - rate x */
} MuonGroup;

/* MuonMove between `x`, of matrices of `width` columns, and slices. */
typedef struct PlaceArguments {
    bf16 GLOBAL *x;
    bf16 GLOBAL *slices;
    int64_t stride, distance; /* elements between consecutive matrices, or slices */
    int64_t at, rows, columns, width;
    int32_t back;
} PlaceArguments;

typedef struct IdentityArguments {
    const bf16 GLOBAL *gram;
    bf16 GLOBAL *square;
    int64_t order, stride;
    float identity, linear, quadratic;
} IdentityArguments;

/* Number of blocks that share a chunk in passes without sums, by the lanes of a wave: AMD GPUs have
 * more compute units than a small matrix has chunks. */
#define CHUNK_PARTS(wave) ((wave) == 64 ? 8 : 1)

#ifdef GPU_DEVICE

/* The range of this thread's elements in a chunk that CHUNK_PARTS blocks share, in groups of four;
 * the first block takes the rest. */
enum { PART = OPTIM_CHUNK / CHUNK_PARTS(WAVE) };
INLINE int64_t part_first(void) { return 4 * thread_id() + (CHUNK_PARTS(WAVE) > 1 ? block_y() * PART : 0); }
INLINE int64_t part_end(int64_t fours) {
    if (CHUNK_PARTS(WAVE) == 1) return fours;
    int64_t end = (block_y() + 1) * PART;
    return end < fours ? end : fours;
}
INLINE bool part_is_first(void) { return CHUNK_PARTS(WAVE) == 1 || block_y() == 0; }

/* Returns the direction; the momentum m already includes g. */
INLINE f32x4 direction_of(const MuonGroup *a, f32x4 m, f32x4 g) { return a->scale * g + a->momentum * m; }

/* Returns the address of the chunk's part of the direction. */
INLINE bf16 GLOBAL *chunk_direction(const MuonGroup *a, const Chunk GLOBAL *chunk) {
    return a->x + (chunk->matrix - a->first_matrix) * a->stride + chunk->second_index;
}

/* Computes m = momentum m + scale g for `unit` elements of the chunk starting at `i`. Returns `sum`
 * plus the squares of their direction. */
INLINE double update_momentum(
    const MuonGroup *a, const Chunk GLOBAL *chunk, uint32_t seed, int64_t i, double sum, bool pure_bf16, int unit) {
    int64_t at = chunk->index + i;
    f32x4 g = load_state(a->arenas.gradients, at, pure_bf16, unit);
    f32x4 m = a->momentum * load_state(a->arenas.momentum, at, pure_bf16, unit) + a->scale * g;
    store_state(a->arenas.momentum, at, m, pure_bf16 ? noise_of(~seed, chunk->first + i) : (u32x4)0, pure_bf16, unit);
    return add_squares(sum, direction_of(a, m, g));
}

#if defined __gfx942__ || defined __gfx950__ /* according to the performance model, gfx90a would lose */
/* Runs update_momentum for AHEAD steps of a thread with all loads in flight together, as long as
 * AHEAD steps remain from *i on. */
INLINE double update_many(
    const MuonGroup *a, const Chunk GLOBAL *chunk, uint32_t seed, int64_t fours, int64_t *i, double sum, bool pure_bf16) {
    enum { AHEAD = 8 };
    for (; *i + (AHEAD - 1) * OPTIM_STEP < fours; *i += AHEAD * OPTIM_STEP) {
        f32x4 g[AHEAD], before[AHEAD];
        UNROLL for (int k = 0; k < AHEAD; k++) {
            int64_t at = chunk->index + *i + k * OPTIM_STEP;
            g[k] = load_state(a->arenas.gradients, at, pure_bf16, 4);
            before[k] = load_state(a->arenas.momentum, at, pure_bf16, 4);
        }
        UNROLL for (int k = 0; k < AHEAD; k++) {
            int64_t step = *i + k * OPTIM_STEP;
            f32x4 m = a->momentum * before[k] + a->scale * g[k];
            store_state(
                a->arenas.momentum, chunk->index + step, m, pure_bf16 ? noise_of(~seed, chunk->first + step) : (u32x4)0, pure_bf16, 4);
            sum = add_squares(sum, direction_of(a, m, g[k]));
        }
    }
    return sum;
}
#endif

INLINE void update_momenta(const MuonGroup *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    uint32_t seed = optim_noise_seed(chunk->key, a->arenas.step);
    int64_t fours = chunk_fours(chunk), i = 4 * thread_id();
    double sum = 0;
#if defined __gfx942__ || defined __gfx950__
    sum = update_many(a, chunk, seed, fours, &i, sum, pure_bf16);
#endif
    for (; i < fours; i += OPTIM_STEP) sum = update_momentum(a, chunk, seed, i, sum, pure_bf16, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) sum = update_momentum(a, chunk, seed, i, sum, pure_bf16, 1);
    sum = block_sum_double(sum);
    if (thread_id() == 0) a->partials[block_x()] = sum;
}

KERNEL(momentum, MuonGroup) { update_momenta(&a, false); }
KERNEL(momentum_bf16, MuonGroup) { update_momenta(&a, true); }

INLINE void write_direction(const MuonGroup *a, bf16 GLOBAL *x, int64_t at, float factor, bool pure_bf16, int unit) {
    f32x4 m = load_state(a->arenas.momentum, at, pure_bf16, unit), g = load_state(a->arenas.gradients, at, pure_bf16, unit);
    store4_bf16(x, factor * direction_of(a, m, g), unit);
}

INLINE void write_directions(const MuonGroup *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    bf16 GLOBAL *x = chunk_direction(a, chunk);
    float norm = (float)__builtin_sqrt(a->squares[chunk->matrix]), factor = 1 / (norm + (float)MUON_EPSILON);
    int64_t fours = chunk_fours(chunk), i;
    for (i = part_first(); i < part_end(fours); i += OPTIM_STEP) write_direction(a, x + i, chunk->index + i, factor, pure_bf16, 4);
    for (i = fours + thread_id(); part_is_first() && i < chunk->count; i += OPTIM_THREADS)
        write_direction(a, x + i, chunk->index + i, factor, pure_bf16, 1);
}

KERNEL(direction, MuonGroup) { write_directions(&a, false); }
KERNEL(direction_bf16, MuonGroup) { write_directions(&a, true); }

/* Returns the sum of squares of a row, in every lane of the row's wave. */
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

/* One wave per row. gram is symmetric, so (gram^2)[i][i] is the sum of squares of row i. */
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
    store_parameters(&a->arenas, at, p, seed, chunk->first + i, pure_bf16, unit);
}

INLINE void apply_directions(const MuonGroup *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    const bf16 GLOBAL *x = chunk_direction(a, chunk);
    uint32_t seed = optim_noise_seed(chunk->key, a->arenas.step);
    int64_t fours = chunk_fours(chunk), i;
    for (i = part_first(); i < part_end(fours); i += OPTIM_STEP) apply_direction(a, chunk, x, seed, i, pure_bf16, 4);
    for (i = fours + thread_id(); part_is_first() && i < chunk->count; i += OPTIM_THREADS)
        apply_direction(a, chunk, x, seed, i, pure_bf16, 1);
}

KERNEL(apply, MuonGroup) { apply_directions(&a, false); }
KERNEL(apply_bf16, MuonGroup) { apply_directions(&a, true); }

/* One thread per element of a slice. */
KERNEL(place, PlaceArguments) {
    int64_t i = (int64_t)block_x() * OPTIM_THREADS + thread_id();
    if (i >= a.rows * a.columns) return;
    bf16 GLOBAL *in_matrix = a.x + block_y() * a.stride + a.at + i / a.columns * a.width + i % a.columns;
    bf16 GLOBAL *in_slice = a.slices + block_y() * a.distance + i;
    if (a.back) *in_slice = *in_matrix;
    else *in_matrix = *in_slice;
}

#else

#include "backend/gpu/gpu_gemm.h"
#include "base/math.h"

LAUNCHERS(momentum, MuonGroup, momentum, momentum_bf16)
LAUNCHERS(direction, MuonGroup, direction, direction_bf16)
LAUNCHER(add_identity, IdentityArguments)
LAUNCHERS(apply, MuonGroup, apply, apply_bf16)
LAUNCHER(place, PlaceArguments)

static LaunchShape block_per_chunk(const MuonGroup *group) {
    return (LaunchShape){.x = group->matrices * group->chunks_each, .threads = OPTIM_THREADS};
}

static LaunchShape blocks_of_chunks(const Optimizer *optimizer, const MuonGroup *group) {
    LaunchShape shape = block_per_chunk(group);
    shape.y = CHUNK_PARTS(device_info(optimizer->device)->wave);
    return shape;
}

/* -- GEMMs --------------------------------------------------------------------------------------------------------- */

/* The GEMMs of a group, whose matrices have one shape and a constant stride in scratch; pointers
 * refer to the first matrix. */
typedef struct GroupGemms {
    Device *device;
    const Matrix *matrix;
    int64_t count, stride; /* number of matrices; distance between them, in bf16 elements */
    bf16 *x, *y, *gram, *square;
} GroupGemms;

static GroupGemms gemms_of(const Optimizer *o, int first, int end) {
    const Matrix *m = &o->matrices[first];
    int64_t stride = end - first > 1 ? (m[1].x - m[0].x) / (int64_t)sizeof(bf16) : 0;
    char *scratch = o->scratch;
    return (GroupGemms){o->device, m, end - first, stride, (bf16 *)(scratch + m->x), (bf16 *)(scratch + m->y), (bf16 *)(scratch + m->gram),
        (bf16 *)(scratch + m->square)};
}

/* Computes c = alpha a b + beta d for every matrix of the group. */
static void multiply_group(const GroupGemms *p, Gemm first, bool symmetric, double alpha, double beta, const bf16 *d) {
    int64_t stride = p->stride;
    gpu_gemm_batch(p->device, &(GemmBatch){first, p->count, stride, stride, stride, alpha, beta, d, symmetric});
}

/* square = a I + b gram + c gram^2. The GEMM rounds once; the diagonals are recomputed from the
 * rows of gram, so that they are rounded only once as well. */
static void multiply_square(const GroupGemms *p) {
    int64_t order = p->matrix->order;
    Gemm square = muon_square_gemm(p->matrix, GEMM_BF16, GEMM_BF16, p->gram, p->square);
    multiply_group(p, square, true, NEWTON_SCHULZ_C, NEWTON_SCHULZ_B, p->gram);
    LaunchShape shape = {.x = divide_up(order, OPTIM_THREADS / device_info(p->device)->wave), .y = p->count, .threads = OPTIM_THREADS};
    IdentityArguments arguments = {p->gram, p->square, order, p->stride, NEWTON_SCHULZ_A, NEWTON_SCHULZ_B, NEWTON_SCHULZ_C};
    launch_add_identity(p->device, shape, &arguments);
}

/* y = square x, or x square for a tall x. This is over half of all work, so the vendor's library
 * does it if one matrix keeps the GPU busy. */
static void multiply_update(const GroupGemms *p, bool busy) {
    Gemm update = muon_update_gemm(p->matrix, GEMM_BF16, p->x, p->square, p->y);
    if (!busy) {
        multiply_group(p, update, false, 1, 0, NULL);
        return;
    }
    for (int64_t i = 0; i < p->count; i++) {
        device_gemm(p->device, &update);
        update.a = (const bf16 *)update.a + p->stride;
        update.b = (const bf16 *)update.b + p->stride;
        update.c = (bf16 *)update.c + p->stride;
    }
}

static void iterate(GroupGemms *p, bool busy) {
    multiply_group(p, muon_gram_gemm(p->matrix, GEMM_BF16, p->x, p->gram), true, 1, 0, NULL);
    multiply_square(p);
    multiply_update(p, busy);
    bf16 *x = p->x;
    p->x = p->y;
    p->y = x;
}

void gpu_muon_iterate(const Optimizer *optimizer, int first, int end) {
    const Matrix *m = &optimizer->matrices[first];
    GroupGemms gemms = gemms_of(optimizer, first, end);
    for (int64_t i = 0; i < optimizer->config.newton_schulz_steps; i++) iterate(&gemms, m->rows * m->columns >= optimizer->busy);
}

/* -- The passes ---------------------------------------------------------------------------------------------------- */

static MuonGroup muon_group(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end) {
    const Matrix *m = &optimizer->matrices[first];
    return (MuonGroup){
        .arenas = optim_arenas(optimizer, segment, update),
        .chunks = optimizer->device_chunks + m->first_chunk,
        .partials = optimizer->partials,
        .squares = optimizer->squares,
        .stride = m->exchange < 0 ? gemms_of(optimizer, first, end).stride : 0,
        .matrices = end - first,
        .chunks_each = m->end_chunk - m->first_chunk,
        .first_matrix = first,
        .momentum = (float)optimizer->config.momentum,
        .scale = (float)update->scale,
        .keep = (float)(1 - update->lr * optimizer->config.weight_decay),
        .rate = (float)muon_rate(m, update->lr),
    };
}

void gpu_muon_momenta(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end) {
    MuonGroup group = muon_group(optimizer, segment, update, first, end);
    launch_momentum(optimizer->device, segment->pure_bf16, block_per_chunk(&group), &group);
    gpu_sum_partials(optimizer->device, group.chunks_each, group.matrices, group.partials, group.squares + first);
}

void gpu_muon_directions(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end) {
    MuonGroup group = muon_group(optimizer, segment, update, first, end);
    group.x = muon_direction(optimizer, &optimizer->matrices[first]);
    launch_direction(optimizer->device, segment->pure_bf16, blocks_of_chunks(optimizer, &group), &group);
}

void gpu_muon_apply(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end) {
    MuonGroup group = muon_group(optimizer, segment, update, first, end);
    group.x = muon_result(optimizer, &optimizer->matrices[first]);
    launch_apply(optimizer->device, segment->pure_bf16, blocks_of_chunks(optimizer, &group), &group);
}

void gpu_muon_place(const Optimizer *optimizer, const MuonMove *move) {
    const Matrix *m = &optimizer->matrices[move->first];
    PlaceArguments arguments = {.x = move->back ? muon_iterated(optimizer, m) : (void *)((char *)optimizer->scratch + m->x),
        .slices = move->slices,
        .stride = gemms_of(optimizer, move->first, move->end).stride,
        .distance = move->distance,
        .at = move->at,
        .rows = move->rows,
        .columns = move->columns,
        .width = m->columns,
        .back = move->back};
    int64_t elements = move->rows * move->columns;
    if (elements == 0) return;
    LaunchShape shape = {.x = divide_up(elements, OPTIM_THREADS), .y = move->end - move->first, .threads = OPTIM_THREADS};
    launch_place(optimizer->device, shape, &arguments);
}

#endif

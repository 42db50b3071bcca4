/* The optimizer's back end on the CPU: parallel loops over chunks, and Muon's GEMMs as one batch for each group. Loops
 * that read and write the arenas share chunks out statically, so that pages touched first by a thread stay with it from
 * step to step. Arithmetic is in passes_cpu.c, which pure_bf16.c wraps where the state dtype is bf16. Owns no memory
 * but lists of GEMMs while they run; called by optimizer.c, adamw.c and muon.c through OptimBackend. */
#include "base/math.h"
#include "base/memory.h"
#include "optim/optim_internal.h"

#include <math.h>
#include <stdlib.h>

enum {
    TILE = 128,       /* rows of a symmetric GEMM computed at once: smaller wastes less, larger packs less */
    MIRROR_ROWS = 64, /* of a task that mirrors */
};

/* ---- Kernels ---- */

extern const OptimKernels kernel_optim_generic_fp32, kernel_optim_generic_bf16, kernel_optim_generic_fp64;
#ifdef __x86_64__
extern const OptimKernels kernel_optim_avx2_fp32, kernel_optim_avx2_bf16, kernel_optim_avx512_fp32, kernel_optim_avx512_bf16;
#endif

const OptimKernels *optim_kernels(Precision precision, CpuIsa isa) {
    static const OptimKernels *const variants[CPU_ISA_COUNT][3] = {
        [CPU_GENERIC] = {&kernel_optim_generic_bf16, &kernel_optim_generic_fp32, &kernel_optim_generic_fp64},
#ifdef __x86_64__
        [CPU_AVX2] = {&kernel_optim_avx2_bf16, &kernel_optim_avx2_fp32},
        [CPU_AVX512] = {&kernel_optim_avx512_bf16, &kernel_optim_avx512_fp32},
#endif
    };
    return variants[isa][precision == PRECISION_PURE_BF16 ? PRECISION_BF16 : precision];
}

const OptimKernels *optim_best_kernels(Precision precision) {
    CpuIsa isa = CPU_ISA_COUNT - 1;
    while (!cpu_has(isa) || !optim_kernels(precision, isa)) isa--;
    return optim_kernels(precision, isa);
}

/* ---- Sums of squares and AdamW ---- */

void cpu_sum_squares(const Optimizer *optimizer, int first, const void *arena, bool gradients, double *squares) {
    for (int k = first; k < optimizer->segment_count; k++) {
        const Segment *segment = &optimizer->segments[k];
        const void *from = gradients ? optim_gradients(optimizer, segment, arena) : arena;
#pragma omp parallel for schedule(static)
        for (int64_t i = segment->first; i < segment->end; i++) {
            const Chunk *chunk = &optimizer->chunks[i];
            const void *at = optim_at(from, chunk->index, optim_state_bytes(optimizer, segment));
            optimizer->partials[i] = segment->pure_bf16 ? bf16_sum_squares(optimizer->kernels, chunk->count, at)
                                                        : optimizer->kernels->sum_squares(chunk->count, at);
        }
        squares[k] = 0;
        for (int64_t i = segment->first; i < segment->end; i++) squares[k] += optimizer->partials[i];
    }
}

void cpu_adamw(const Optimizer *optimizer, const Segment *segment, const Update *update, const AdamwRates rates[RATES_COUNT]) {
    size_t bytes = optim_state_bytes(optimizer, segment);
#pragma omp parallel for schedule(static)
    for (int64_t i = segment->first; i < segment->end; i++) {
        const Chunk *chunk = &optimizer->chunks[i];
        void *master = optim_at(update->master, chunk->index, bytes),
             *weights = update->weights ? optim_at(update->weights, chunk->index, optimizer->compute) : master;
        void *momentum = optim_at(optimizer->momentum, chunk->index, bytes),
             *variance = optim_at(optimizer->variance, chunk->second_index, bytes);
        const void *gradient = optim_at(update->gradients, chunk->index, bytes);
        uint32_t seed = optim_noise_seed(chunk->key, update->step);
        if (segment->pure_bf16)
            bf16_adamw(optimizer->kernels, &rates[chunk->rates], chunk, seed, master, weights, gradient, momentum, variance);
        else optimizer->kernels->adamw(&rates[chunk->rates], chunk->count, master, weights, gradient, momentum, variance);
    }
}

/* ---- Muon's GEMMs ---- */

typedef struct Group {
    const Optimizer *optimizer;
    const Segment *segment;
    const Matrix *matrices;
    int count;
    Gemm *gemms;  /* room for those of one batch */
    bool swapped; /* X is in y, and y's memory is free */
} Group;

static void *scratch_at(const Group *group, int64_t bytes) { return (char *)group->optimizer->scratch + bytes; }
static void *current(const Group *group, const Matrix *m) { return scratch_at(group, group->swapped ? m->y : m->x); }
static void *next(const Group *group, const Matrix *m) { return scratch_at(group, group->swapped ? m->x : m->y); }

/* Appends the GEMMs that compute a symmetric `full` in tiles of rows, each only up to the diagonal's tile. */
static int64_t append_symmetric(const Optimizer *o, Gemm *gemms, Gemm full) {
    int64_t order = full.m, tiles = divide_up(order, TILE);
    size_t output = full.output == o->kernels->compute ? o->compute : o->wide;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t first = order * t / tiles, end = order * (t + 1) / tiles;
        gemms[t] = full;
        gemms[t].a = optim_at(full.a, full.transpose_a ? first : first * full.lda, o->compute);
        gemms[t].c = optim_at(full.c, first * full.ldc, output);
        gemms[t].m = end - first;
        gemms[t].n = end;
    }
    return tiles;
}

static void multiply_gram(const Group *group) {
    const Optimizer *o = group->optimizer;
    int64_t n = 0;
    for (int i = 0; i < group->count; i++) {
        const Matrix *m = &group->matrices[i];
        n += append_symmetric(o, group->gemms + n, muon_gram_gemm(m, o->kernels->compute, current(group, m), scratch_at(group, m->gram)));
    }
    gemm_batch(group->gemms, n);
}

static void multiply_square(const Group *group) {
    const Optimizer *o = group->optimizer;
    int64_t n = 0;
    for (int i = 0; i < group->count; i++) {
        const Matrix *m = &group->matrices[i];
        n += append_symmetric(o, group->gemms + n,
            muon_square_gemm(m, o->kernels->compute, o->kernels->wide, scratch_at(group, m->gram), scratch_at(group, m->square)));
    }
    gemm_batch(group->gemms, n);
}

static void multiply_update(const Group *group) {
    for (int i = 0; i < group->count; i++) {
        const Matrix *m = &group->matrices[i];
        group->gemms[i] =
            muon_update_gemm(m, group->optimizer->kernels->compute, current(group, m), scratch_at(group, m->gram), next(group, m));
    }
    gemm_batch(group->gemms, group->count);
}

/* ---- Muon's passes ---- */

/* Completes gram from its lower tiles; with `polynomial`, turns it into aI + b gram + c square on the way. Which thread
 * takes which rows has no influence on the values, so tasks are handed out as threads come. */
static void complete_gram(const Group *group, bool polynomial) {
    const OptimKernels *kernels = group->optimizer->kernels;
    int64_t most = 0;
    for (int i = 0; i < group->count; i++) most = int_max(most, divide_up(group->matrices[i].order, MIRROR_ROWS));
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int i = 0; i < group->count; i++)
        for (int64_t task = 0; task < most; task++) {
            const Matrix *m = &group->matrices[i];
            int64_t first = task * MIRROR_ROWS, end = int_min(m->order, first + MIRROR_ROWS);
            if (first >= end) continue;
            if (polynomial) kernels->polynomial(scratch_at(group, m->gram), scratch_at(group, m->square), m->order, first, end);
            kernels->mirror(scratch_at(group, m->gram), m->order, first, end);
        }
}

/* x = u / |u| with u = g + momentum * m, m updated; norms are of whole directions, from their chunks in order. */
static void load_direction(const Group *group, const Update *update) {
    const Optimizer *o = group->optimizer;
    size_t kept = optim_state_bytes(o, group->segment);
    double decay = o->config.momentum, scale = update->scale;
    int64_t first = group->matrices[0].first_chunk, end = group->matrices[group->count - 1].end_chunk;
#pragma omp parallel for schedule(static)
    for (int64_t i = first; i < end; i++) {
        const Chunk *c = &o->chunks[i];
        void *momentum = optim_at(o->momentum, c->index, kept), *gradient = optim_at(update->gradients, c->index, kept);
        o->partials[i] = group->segment->pure_bf16
                             ? bf16_momentum(o->kernels, decay, scale, c, optim_noise_seed(c->key, update->step), momentum, gradient)
                             : o->kernels->momentum(decay, scale, c->count, momentum, gradient);
    }
    for (int k = 0; k < group->count; k++) {
        double sum = 0;
        for (int64_t i = group->matrices[k].first_chunk; i < group->matrices[k].end_chunk; i++) sum += o->partials[i];
        o->norms[group->matrices + k - o->matrices] = sqrt(sum);
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = first; i < end; i++) {
        const Chunk *c = &o->chunks[i];
        void *momentum = optim_at(o->momentum, c->index, kept), *gradient = optim_at(update->gradients, c->index, kept);
        void *x = optim_at(current(group, &o->matrices[c->matrix]), c->second_index, o->compute);
        double factor = 1 / (o->norms[c->matrix] + MUON_EPSILON);
        if (group->segment->pure_bf16) bf16_direction(o->kernels, decay, scale, factor, c->count, x, momentum, gradient);
        else o->kernels->direction(decay, scale, factor, c->count, x, momentum, gradient);
    }
}

static void apply_direction(const Group *group, const Update *update) {
    const Optimizer *o = group->optimizer;
    double keep = 1 - update->lr * o->config.weight_decay;
    int64_t first = group->matrices[0].first_chunk, end = group->matrices[group->count - 1].end_chunk;
#pragma omp parallel for schedule(static)
    for (int64_t i = first; i < end; i++) {
        const Chunk *c = &o->chunks[i];
        const Matrix *m = &o->matrices[c->matrix];
        void *master = optim_at(update->master, c->index, optim_state_bytes(o, group->segment)),
             *x = optim_at(current(group, m), c->second_index, o->compute);
        void *weights = update->weights ? optim_at(update->weights, c->index, o->compute) : master;
        if (group->segment->pure_bf16)
            bf16_apply(o->kernels, keep, muon_rate(m, update->lr), c, optim_noise_seed(c->key, update->step), master, weights, x);
        else o->kernels->apply(keep, muon_rate(m, update->lr), c->count, master, weights, x);
    }
}

/* ---- Muon's step ---- */

void cpu_muon(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end) {
    int64_t tiles = 0;
    for (int i = first; i < end; i++) tiles += divide_up(optimizer->matrices[i].order, TILE);
    Group group = {.optimizer = optimizer, .segment = segment, .matrices = optimizer->matrices + first, .count = end - first};
    group.gemms = memory_allocate((size_t)tiles * sizeof(Gemm));
    load_direction(&group, update);
    for (int64_t i = 0; i < optimizer->config.newton_schulz_steps; i++) {
        multiply_gram(&group);
        complete_gram(&group, false);
        multiply_square(&group);
        complete_gram(&group, true);
        multiply_update(&group);
        group.swapped = !group.swapped;
    }
    apply_direction(&group, update);
    free(group.gemms);
}

/* The optimizer's back end on the CPU: parallel loops over chunks, and one batch for each kind of
 * Muon's GEMMs. Loops that read and write the arenas use a static schedule, so that a thread works
 * on the pages that it touched first in every step. Arithmetic is in passes_cpu.c, which
 * pure_bf16.c wraps if the state dtype is bf16. Owns only the lists of GEMMs while they run; called
 * by optimizer.c and muon.c through OptimBackend. */
#include "base/math.h"
#include "base/memory.h"
#include "optim/quantized_moments_internal.h"
#include "optim/optim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TILE = 128,       /* rows of a symmetric GEMM computed at once: a smaller tile wastes less, a larger one packs less */
    MIRROR_ROWS = 64, /* rows per mirroring task */
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
    while (!cpu_isa_runs(isa) || !optim_kernels(precision, isa)) isa--;
    return optim_kernels(precision, isa);
}

/* ---- Passes over chunks ---- */

/* An update of a segment's chunks; for Muon, of the chunks of a group of matrices. */
typedef struct CpuWork {
    const Optimizer *optimizer;
    const Segment *segment;
    const Update *update;
    const Matrix *matrices;
    int count;
    Gemm *gemms;  /* room for one batch */
    bool swapped; /* X is in y, and the memory of x is free */
} CpuWork;

static void *cpu_scratch(const CpuWork *work, int64_t bytes) { return (char *)work->optimizer->scratch + bytes; }
static void *current(const CpuWork *work, const Matrix *m) { return cpu_scratch(work, work->swapped ? m->y : m->x); }
static void *next(const CpuWork *work, const Matrix *m) { return cpu_scratch(work, work->swapped ? m->x : m->y); }

/* Points a pass to the quantized moments from element `at` on. */
static void point_to_quantized(PassMemory *memory, const QuantizedMoments *quantized, int64_t at) {
    memory->momentum = quantized->momentum + at;
    memory->variance = quantized->variance + at;
    memory->momentum_scales = quantized->momentum_scales + at / MOMENT_BLOCK;
    memory->variance_scales = quantized->variance_scales + at / MOMENT_BLOCK;
}

/* Runs a pass over chunk `i`. Updates of elements and sums of squares have no matrices, hence no
 * x. */
static PreciseSum run_cpu_pass(const CpuWork *work, int64_t i, OptimPass pass, const PassRates *rates) {
    const Optimizer *o = work->optimizer;
    const Update *update = work->update;
    const Chunk *c = &o->chunks[i];
    size_t bytes = optim_state_bytes(o, work->segment);
    PassMemory memory = {.count = c->count,
        .master = optim_at(update->master, c->index, bytes),
        .weights = optim_at(update->weights, c->index, o->compute),
        .gradient = optim_at(update->gradients, c->index, bytes),
        .momentum = optim_at(optim_momentum(o, work->segment), c->index, bytes),
        .variance = optim_at(o->variance, c->second_index, bytes)};
    if (optimizer_rules[work->segment->optimizer]->quantizes_moments) point_to_quantized(&memory, &o->quantized, c->second_index);
    if (!memory.weights) memory.weights = memory.master;
    const Matrix *matrix = work->count ? &o->matrices[c->matrix] : NULL;
    if (matrix) memory.x = optim_at((pass == PASS_APPLY ? muon_result : muon_direction)(o, matrix), c->second_index, o->compute);
    if (!work->segment->pure_bf16) return o->kernels->pass[pass](rates, &memory);
    return bf16_pass(o->kernels, pass, rates, &memory, optim_noise_seed(c->key, update->step), c->first);
}

/* ---- Sums of squares and updates of elements ---- */

void cpu_sum_squares(const Optimizer *optimizer, const Segment *segment, const void *arena, PreciseSum *sum) {
    Update update = {.gradients = arena};
    CpuWork work = {.optimizer = optimizer, .segment = segment, .update = &update};
    PreciseSum *partials = optimizer->partials;
#pragma omp parallel for schedule(static)
    for (int64_t i = segment->first; i < segment->end; i++) partials[i] = run_cpu_pass(&work, i, PASS_SQUARES, NULL);
    *sum = (PreciseSum){0};
    for (int64_t i = segment->first; i < segment->end; i++) precise_join(sum, partials[i]);
}

void cpu_elements(const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]) {
    CpuWork work = {.optimizer = optimizer, .segment = segment, .update = update};
    OptimPass pass = PASS_UPDATE + segment->optimizer;
#pragma omp parallel for schedule(static)
    for (int64_t i = segment->first; i < segment->end; i++)
        run_cpu_pass(&work, i, pass, &(PassRates){.elements = &rates[optimizer->chunks[i].rates]});
}

/* ---- Muon's GEMMs ---- */

/* Appends the GEMMs that compute a symmetric `full` in tiles of rows, each tile only up to the
 * diagonal. */
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

/* Computes gram of X, or the square of gram. */
static void multiply_symmetric(const CpuWork *work, bool square) {
    const OptimKernels *kernels = work->optimizer->kernels;
    int64_t n = 0;
    for (int i = 0; i < work->count; i++) {
        const Matrix *m = &work->matrices[i];
        void *gram = cpu_scratch(work, m->gram);
        Gemm full = square ? muon_square_gemm(m, kernels->compute, kernels->wide, gram, cpu_scratch(work, m->square))
                           : muon_gram_gemm(m, kernels->compute, current(work, m), gram);
        n += append_symmetric(work->optimizer, work->gemms + n, full);
    }
    gemm_batch(work->gemms, n);
}

static void multiply_update_cpu(const CpuWork *work) {
    for (int i = 0; i < work->count; i++) {
        const Matrix *m = &work->matrices[i];
        work->gemms[i] =
            muon_update_gemm(m, work->optimizer->kernels->compute, current(work, m), cpu_scratch(work, m->gram), next(work, m));
    }
    gemm_batch(work->gemms, work->count);
}

/* ---- Muon's passes ---- */

/* Completes gram from its lower tiles; with `polynomial`, replaces it by aI + b gram + c square on
 * the way. Values do not depend on which thread takes which rows, so the schedule is dynamic. */
static void complete_gram(const CpuWork *work, bool polynomial) {
    const OptimKernels *kernels = work->optimizer->kernels;
    int64_t most = 0;
    for (int i = 0; i < work->count; i++) most = int_max(most, divide_up(work->matrices[i].order, MIRROR_ROWS));
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int i = 0; i < work->count; i++)
        for (int64_t task = 0; task < most; task++) {
            const Matrix *m = &work->matrices[i];
            int64_t first = task * MIRROR_ROWS, end = int_min(m->order, first + MIRROR_ROWS);
            if (first >= end) continue;
            if (polynomial) kernels->polynomial(cpu_scratch(work, m->gram), cpu_scratch(work, m->square), m->order, first, end);
            kernels->mirror(cpu_scratch(work, m->gram), m->order, first, end);
        }
}

static CpuWork work_on(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end) {
    return (CpuWork){
        .optimizer = optimizer, .segment = segment, .update = update, .matrices = optimizer->matrices + first, .count = end - first};
}

static PassRates momentum_rates(const CpuWork *work) {
    return (PassRates){.decay = work->optimizer->config.momentum, .scale = work->update->scale};
}

/* Sums squares of whole directions, or of slices, from their chunks in order. */
void cpu_muon_momenta(const Optimizer *o, const Segment *segment, const Update *update, int first, int end) {
    CpuWork work = work_on(o, segment, update, first, end);
    PassRates momentum = momentum_rates(&work);
    PreciseSum *partials = o->partials;
#pragma omp parallel for schedule(static)
    for (int64_t i = o->matrices[first].first_chunk; i < o->matrices[end - 1].end_chunk; i++)
        partials[i] = run_cpu_pass(&work, i, PASS_MOMENTUM, &momentum);
    for (int k = first; k < end; k++) {
        PreciseSum sum = {0};
        for (int64_t i = o->matrices[k].first_chunk; i < o->matrices[k].end_chunk; i++) precise_join(&sum, partials[i]);
        o->squares[k] = precise_value(sum);
    }
}

/* x = u / |u| with u = g + momentum * m, using the updated m. */
void cpu_muon_directions(const Optimizer *o, const Segment *segment, const Update *update, int first, int end) {
    CpuWork work = work_on(o, segment, update, first, end);
#pragma omp parallel for schedule(static)
    for (int64_t i = o->matrices[first].first_chunk; i < o->matrices[end - 1].end_chunk; i++) {
        PassRates direction = momentum_rates(&work);
        direction.factor = 1 / (sqrt(o->squares[o->chunks[i].matrix]) + MUON_EPSILON);
        run_cpu_pass(&work, i, PASS_DIRECTION, &direction);
    }
}

void cpu_muon_apply(const Optimizer *o, const Segment *segment, const Update *update, int first, int end) {
    CpuWork work = work_on(o, segment, update, first, end);
    double lr = update->lr, keep = 1 - lr * o->config.weight_decay;
#pragma omp parallel for schedule(static)
    for (int64_t i = o->matrices[first].first_chunk; i < o->matrices[end - 1].end_chunk; i++)
        run_cpu_pass(&work, i, PASS_APPLY, &(PassRates){.keep = keep, .rate = muon_rate(&o->matrices[o->chunks[i].matrix], lr)});
}

/* ---- Muon's iterations ---- */

void cpu_muon_iterate(const Optimizer *optimizer, int first, int end) {
    int64_t tiles = 0;
    for (int i = first; i < end; i++) tiles += divide_up(optimizer->matrices[i].order, TILE);
    CpuWork work = work_on(optimizer, NULL, NULL, first, end);
    work.gemms = memory_allocate((size_t)tiles * sizeof(Gemm));
    for (int64_t i = 0; i < optimizer->config.newton_schulz_steps; i++) {
        multiply_symmetric(&work, false);
        complete_gram(&work, false);
        multiply_symmetric(&work, true);
        complete_gram(&work, true);
        multiply_update_cpu(&work);
        work.swapped = !work.swapped;
    }
    free(work.gemms);
}

void cpu_muon_place(const Optimizer *optimizer, const MuonMove *move) {
    const size_t width = optimizer->compute, bytes = (size_t)move->columns * width;
#pragma omp parallel for schedule(static) collapse(2)
    for (int i = move->first; i < move->end; i++)
        for (int64_t row = 0; row < move->rows; row++) {
            const Matrix *m = &optimizer->matrices[i];
            void *whole = move->back ? muon_iterated(optimizer, m) : (char *)optimizer->scratch + m->x;
            void *in_matrix = optim_at(whole, move->at + row * m->columns, width);
            void *in_slice = optim_at(move->slices, (i - move->first) * move->distance + row * move->columns, width);
            memcpy(move->back ? in_slice : in_matrix, move->back ? in_matrix : in_slice, bytes);
        }
}

/* The optimizer as callers see it: who updates what, the state and its layout, the gradient norm. Owns the list of chunks and, in the device's
 * memory, the state (momentum for all parameters at the offsets of the master arena, variance for those that AdamW updates, one after another) and
 * scratch. Called by the training loop, checkpoints and the memory table. */
#include "base/memory.h"
#include "optim/internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { USUAL_TILE = 128 * 128 }; /* elements of a product that one processor of a GPU computes at a time */

/* ---- Who updates what ---- */

bool optim_uses_muon(const OptimizerConfig *config, const Parameter *parameter) {
    return config->name == OPTIMIZER_MUON && parameter->kind == PARAMETER_MATRIX && parameter->rank >= 2 && parameter->count > 0;
}

static RateGroup rate_group(const OptimizerConfig *config, ParameterKind kind) {
    switch (kind) {
    case PARAMETER_MATRIX:
    case PARAMETER_EMBEDDING:
    case PARAMETER_CONVOLUTION: return RATES_DECAYED;
    case PARAMETER_CONTROLLER: return RATES_CONTROLLER;
    default: return config->decay_vectors ? RATES_DECAYED : RATES_PLAIN;
    }
}

/* ---- Layout ---- */

/* Elements of the variance arena; fills `offsets` (may be NULL), one per parameter. Parameters start at multiples of 64 elements. */
static int64_t variance_extent(const Graph *graph, const OptimizerConfig *config, int64_t *offsets) {
    int64_t extent = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        bool muon = optim_uses_muon(config, &graph->parameters[i]);
        if (offsets) offsets[i] = muon ? -1 : extent;
        if (!muon) extent += (graph->parameters[i].count + 63) / 64 * 64;
    }
    return extent;
}

/* ---- Chunks ---- */

static int64_t chunks_of(int64_t count) { return (count + OPTIM_CHUNK - 1) / OPTIM_CHUNK; }

static void append_chunks(Optimizer *optimizer, Chunk whole) {
    optimizer->chunks = memory_resize(optimizer->chunks, (size_t)(optimizer->chunk_count + chunks_of(whole.count)) * sizeof(Chunk));
    for (int64_t first = 0; first < whole.count; first += OPTIM_CHUNK) {
        Chunk chunk = whole;
        chunk.offset += first;
        chunk.inner += first;
        chunk.count = whole.count - first < OPTIM_CHUNK ? whole.count - first : OPTIM_CHUNK;
        optimizer->chunks[optimizer->chunk_count++] = chunk;
    }
}

static void append_adamw_chunks(Optimizer *optimizer, bool controllers) {
    for (int i = 0; i < optimizer->graph->parameter_count; i++) {
        const Parameter *p = &optimizer->graph->parameters[i];
        RateGroup rates = rate_group(&optimizer->config, p->kind);
        if (optimizer->variance_offset[i] >= 0 && (rates == RATES_CONTROLLER) == controllers)
            append_chunks(optimizer, (Chunk){.offset = p->offset, .count = p->count, .inner = optimizer->variance_offset[i], .rates = rates});
    }
}

static void append_muon_chunks(Optimizer *optimizer) {
    for (int i = 0; i < optimizer->matrix_count; i++) {
        Matrix *matrix = &optimizer->matrices[i];
        matrix->first_chunk = optimizer->chunk_count;
        append_chunks(optimizer, (Chunk){.offset = matrix->offset, .count = matrix->rows * matrix->columns, .matrix = i});
        matrix->end_chunk = optimizer->chunk_count;
    }
}

/* ---- Life ---- */

static const OptimKernels *choose_kernels(Precision precision) {
    int i = 0;
    while (optim_kernels[i].precision != precision || !optim_kernels[i].supported()) i++;
    return &optim_kernels[i];
}

static int64_t chunk_list_bytes(const Optimizer *optimizer) { return optimizer->chunk_count * (int64_t)sizeof(Chunk); }

/* Everything but the device and its memory. */
static Optimizer *lay_out(const Graph *graph, const OptimizerConfig *config, bool gpu) {
    Optimizer *optimizer = memory_allocate(sizeof *optimizer);
    optimizer->graph = graph;
    optimizer->config = *config;
    optimizer->gpu = gpu;
    optimizer->kernels = choose_kernels(graph->precision);
    optimizer->wide = precision_bytes(graph->precision, TYPE_WIDE);
    optimizer->compute = precision_bytes(graph->precision, TYPE_COMPUTE);
    optimizer->variance_offset = memory_allocate((size_t)graph->parameter_count * sizeof *optimizer->variance_offset);
    optimizer->momentum_bytes = graph->parameter_extent * (int64_t)optimizer->wide;
    optimizer->variance_bytes = variance_extent(graph, config, optimizer->variance_offset) * (int64_t)optimizer->wide;
    muon_lay_out(optimizer);
    append_adamw_chunks(optimizer, true);
    optimizer->controller_end = optimizer->chunk_count;
    append_adamw_chunks(optimizer, false);
    optimizer->adamw_end = optimizer->chunk_count;
    append_muon_chunks(optimizer);
    optimizer->scratch_bytes = optimizer->muon_bytes + (optimizer->chunk_count + optimizer->matrix_count + 1) * (int64_t)sizeof(double) +
                               (gpu ? chunk_list_bytes(optimizer) : 0);
    return optimizer;
}

static bool allocate_arenas(Optimizer *optimizer, Error *error) {
    struct {
        void **block;
        int64_t bytes;
        const char *what;
    } arenas[] = {
        {&optimizer->momentum, optimizer->momentum_bytes, "momentum"},
        {&optimizer->variance, optimizer->variance_bytes, "variance"},
        {&optimizer->scratch, optimizer->scratch_bytes, "scratch"},
    };
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++) {
        *arenas[i].block = device_allocate(optimizer->device, arenas[i].bytes, error);
        if (!*arenas[i].block) return error_context(error, "optimizer %s", arenas[i].what);
    }
    return true;
}

Optimizer *optimizer_create(const Graph *graph, const OptimizerConfig *config, Device *device, Error *error) {
    Optimizer *optimizer = lay_out(graph, config, device_is_gpu(device));
    assert(!optimizer->gpu || graph->precision == PRECISION_BF16);
    optimizer->device = device;
    optimizer->busy = (int64_t)device_info(device)->processors * USUAL_TILE;
    if (!allocate_arenas(optimizer, error)) {
        optimizer_free(optimizer);
        return NULL;
    }
    optimizer->partials = optim_at(optimizer->scratch, optimizer->muon_bytes, 1);
    optimizer->norms = optimizer->partials + optimizer->chunk_count;
    optimizer->device_chunks = (Chunk *)(optimizer->norms + optimizer->matrix_count + 1);
    if (optimizer->gpu) device_upload(device, optimizer->device_chunks, optimizer->chunks, chunk_list_bytes(optimizer));
    return optimizer;
}

void optimizer_free(Optimizer *optimizer) {
    if (!optimizer) return;
    if (optimizer->device) {
        device_free(optimizer->device, optimizer->momentum, optimizer->momentum_bytes);
        device_free(optimizer->device, optimizer->variance, optimizer->variance_bytes);
        device_free(optimizer->device, optimizer->scratch, optimizer->scratch_bytes);
    }
    free(optimizer->variance_offset);
    free(optimizer->chunks);
    free(optimizer->matrices);
    free(optimizer->products);
    free(optimizer);
}

int64_t optimizer_state_bytes(const Graph *graph, const OptimizerConfig *config) {
    return (graph->parameter_extent + variance_extent(graph, config, NULL)) * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

int64_t optimizer_workspace_bytes(const Graph *graph, const OptimizerConfig *config, bool gpu) {
    Optimizer *optimizer = lay_out(graph, config, gpu);
    int64_t bytes = optimizer->scratch_bytes;
    optimizer_free(optimizer);
    return bytes;
}

/* ---- Use ---- */

static double gradient_norm_gpu(const Optimizer *optimizer, const void *gradients) {
    double norm = NAN, *on_device = optimizer->norms + optimizer->matrix_count;
    gpu_gradient_norm(optimizer->device, optimizer->device_chunks + optimizer->controller_end, optimizer->chunk_count - optimizer->controller_end,
                      gradients, optimizer->partials, on_device);
    device_download(optimizer->device, &norm, on_device, sizeof norm);
    return norm;
}

double optimizer_gradient_norm(const Optimizer *optimizer, const void *gradients) {
    if (optimizer->gpu) return gradient_norm_gpu(optimizer, gradients);
#pragma omp parallel for schedule(static)
    for (int64_t i = optimizer->controller_end; i < optimizer->chunk_count; i++) {
        const Chunk *chunk = &optimizer->chunks[i];
        optimizer->partials[i] = optimizer->kernels->sum_squares(chunk->count, optim_at(gradients, chunk->offset, optimizer->wide));
    }
    double sum = 0;
    for (int64_t i = optimizer->controller_end; i < optimizer->chunk_count; i++) sum += optimizer->partials[i];
    return sqrt(sum);
}

void optimizer_step(Optimizer *optimizer, void *master, void *weights, const void *gradients, int64_t step, double lr, double scale) {
    assert(step >= 1);
    adamw_step(optimizer, master, weights, gradients, step, lr, scale);
    muon_step(optimizer, master, weights, gradients, lr, scale);
}

size_t optimizer_states(const Optimizer *optimizer, OptimizerState *states, size_t capacity) {
    size_t count = 0;
    for (int i = 0; i < optimizer->graph->parameter_count; i++) {
        int64_t offset = optimizer->graph->parameters[i].offset, variance = optimizer->variance_offset[i];
        if (count < capacity) states[count] = (OptimizerState){"momentum", i, optim_at(optimizer->momentum, offset, optimizer->wide)};
        count++;
        if (variance < 0) continue;
        if (count < capacity) states[count] = (OptimizerState){"variance", i, optim_at(optimizer->variance, variance, optimizer->wide)};
        count++;
    }
    return count;
}

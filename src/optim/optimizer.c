/* The optimizer's interface: which method updates which parameter, the state and its layout, the
 * gradient norm, the step. Owns the list of chunks. In device memory it owns the scratch and the
 * state: momentum for all parameters at the offsets of the master arena, and variance for those
 * whose optimizer keeps one, one after another. If moments of matrices are quantized, these have an
 * arena of their own, and the momentum of the other parameters is one after another too. Called by
 * the training loop, checkpoints and the memory table. */
#include "base/hash.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "optim/offload_internal.h"
#include "optim/quantized_moments_internal.h"
#include "optim/optim_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_TILE = 128 * 128 }; /* elements of C that one multiprocessor of a GPU computes at a time in a GEMM */

static const OptimBackend cpu = {cpu_sum_squares, cpu_elements, cpu_muon_momenta, cpu_muon_directions, cpu_muon_iterate, cpu_muon_apply,
    cpu_muon_place, .group_bytes = 64 << 20, .wide_square = true};
static const OptimBackend gpu = {gpu_sum_squares, gpu_elements, gpu_muon_momenta, gpu_muon_directions, gpu_muon_iterate, gpu_muon_apply,
    gpu_muon_place, .group_bytes = 1 << 30, .uniform_groups = true, .chunks_on_device = true};

/* The back ends of a device that computes nothing. Their sizes are those of the real back ends, because the order of
 * matrices and of collectives depends on them. */
static void idle_sum_squares(const Optimizer *optimizer, const Segment *segment, const void *gradients, PreciseSum *sum) {
    (void)optimizer, (void)segment, (void)gradients, (void)sum;
}
static void idle_elements(const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates *rates) {
    (void)optimizer, (void)segment, (void)update, (void)rates;
}
static void idle_pass(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end) {
    (void)optimizer, (void)segment, (void)update, (void)first, (void)end;
}
static void idle_iterate(const Optimizer *optimizer, int first, int end) { (void)optimizer, (void)first, (void)end; }
static void idle_place(const Optimizer *optimizer, const MuonMove *move) { (void)optimizer, (void)move; }
#define IDLE idle_sum_squares, idle_elements, idle_pass, idle_pass, idle_iterate, idle_pass, idle_place
static const OptimBackend idle_cpu = {IDLE, .group_bytes = 64 << 20, .wide_square = true};
static const OptimBackend idle_gpu = {IDLE, .group_bytes = 1 << 30, .uniform_groups = true};

static const OptimBackend *backend_of(const Device *device) {
    const DeviceInfo *info = device_info(device);
    if (info->rehearses) return info->massively_parallel ? &idle_gpu : &idle_cpu;
    return info->massively_parallel ? &gpu : &cpu;
}

/* ---- Who updates what ---- */

bool optimizer_takes_matrices(const OptimizerConfig *config, const Parameter *parameter) {
    return optimizer_of(config)->takes_matrices && parameter->kind == PARAMETER_MATRIX && parameter->rank >= 2 && parameter->count > 0;
}

enum { LEAST_CODED = 4096 }; /* elements of the smallest matrix whose moments are quantized: smaller ones save nothing */

/* Returns whether both moments of a parameter are quantized, on any rank of any layout. */
static bool quantizes_moments(const OptimizerConfig *config, const Parameter *p) {
    int64_t count = 1;
    for (int i = 0; i < p->rank; i++) count *= p->whole[i];
    return optimizer_of(config)->quantizes_moments && p->kind == PARAMETER_MATRIX && p->rank >= 2 && count >= LEAST_CODED &&
           p->whole[p->rank - 1] % MOMENT_BLOCK == 0;
}

/* Returns the optimizer of a parameter. AdamW updates load-balancing biases, and the parameters
 * that an optimizer of matrices does not take. */
static OptimizerName state_name(const OptimizerConfig *config, const Parameter *parameter) {
    const OptimizerRule *rule = optimizer_of(config);
    bool taken = rule->takes_matrices      ? optimizer_takes_matrices(config, parameter)
                 : rule->quantizes_moments ? quantizes_moments(config, parameter)
                                           : parameter->kind != PARAMETER_BALANCE_BIAS;
    return taken ? config->name : OPTIMIZER_adamw;
}

static bool keeps_variance(const OptimizerConfig *config, const Parameter *parameter) {
    return optimizer_rules[state_name(config, parameter)]->keeps_variance;
}

double optimizer_element_bytes(const OptimizerConfig *config, const Parameter *parameter) {
    if (quantizes_moments(config, parameter)) return 2 * (1 + sizeof(float) / (double)MOMENT_BLOCK);
    return (double)parameter->element_bytes * (keeps_variance(config, parameter) ? 2 : 1);
}

double optimizer_moves(const OptimizerConfig *config, const Parameter *parameter) {
    double quantized =
        quantizes_moments(config, parameter) ? 2 * optimizer_element_bytes(config, parameter) / (double)parameter->element_bytes : 0;
    return optimizer_rules[state_name(config, parameter)]->moves + quantized;
}

/* Returns the elements that this rank holds of one expert, or of the single matrix, with all its
 * projections. */
static int64_t stacked_elements(const Parameter *p) { return p->shape[p->rank - 2] * p->shape[p->rank - 1]; }

int64_t optimizer_matrices(const Parameter *p) { return p->count / stacked_elements(p) * p->projections; }

MuonMatrix optimizer_matrix(const Mesh *mesh, const Parameter *p, int64_t index) {
    const Cut *cut = &p->cut;
    int size = mesh_size(mesh, cut->axes), number = mesh_index(mesh, cut->axes);
    bool by_rows = cut->axes && cut->dimension == p->rank - 2, by_columns = cut->axes && cut->dimension == p->rank - 1;
    int64_t projection = index % p->projections, row = 0, share = 0;
    assert(!by_columns || cut->blocks == 1);
    for (int64_t i = 0; i <= projection; i++) {
        row += share;
        share = by_rows ? cut_share(p->projection_rows[i], number, size).count : p->projection_rows[i];
    }
    int64_t width = p->shape[p->rank - 1];
    return (MuonMatrix){.first = index / p->projections * stacked_elements(p) + row * width,
        .held = share * width,
        .rows = p->projection_rows[projection],
        .columns = p->whole[p->rank - 1],
        .by_columns = by_columns};
}

static RateGroup rate_group(const OptimizerConfig *config, ParameterKind kind) {
    switch (kind) {
    case PARAMETER_MATRIX:
    case PARAMETER_EMBEDDING:
    case PARAMETER_CONVOLUTION: return RATES_DECAYED;
    case PARAMETER_BALANCE_BIAS: return RATES_BALANCE_BIAS;
    case PARAMETER_VALUE_HEAD: return RATES_VALUE_HEAD;
    default: return config->decay_vectors ? RATES_DECAYED : RATES_PLAIN;
    }
}

/* ---- What this rank holds ---- */

/* Returns a shard of everything that is trained, at the graph's offsets. */
static OptimizerShard whole_shard(const Graph *graph) {
    OptimizerShard shard = {.bucket_count = 1, .bytes = graph->trained_bytes};
    shard.intervals = memory_allocate((size_t)graph->parameter_count * sizeof *shard.intervals);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->frozen) continue;
        shard.intervals[shard.interval_count++] = (ShardInterval){.elements = {i, 0, p->count}, .offset = p->offset, .holders = 1};
    }
    return shard;
}

static OptimizerShard copy_optimizer_shard(const OptimizerShard *shard) {
    OptimizerShard copy = *shard;
    size_t bytes = (size_t)shard->interval_count * sizeof *shard->intervals;
    copy.intervals = memory_allocate(bytes);
    if (bytes) memcpy(copy.intervals, shard->intervals, bytes);
    return copy;
}

static const Parameter *parameter_of(const Optimizer *optimizer, int interval) {
    return &optimizer->graph->parameters[optimizer->shard.intervals[interval].elements.parameter];
}

/* Places the state of an interval whose moments are not quantized. A momentum that does not
 * follow the master arena is at the same distance from a multiple of `alignment`. */
static StatePlace place_moments(Optimizer *o, int index, int64_t alignment) {
    const ShardInterval *interval = &o->shard.intervals[index];
    int64_t bytes = interval->elements.count * parameter_of(o, index)->element_bytes;
    StatePlace place = {.momentum = interval->offset, .variance = -1, .quantized = -1};
    if (optimizer_of(&o->config)->quantizes_moments) {
        place.momentum = round_up(o->momentum_bytes, alignment) + interval->offset % alignment;
        o->momentum_bytes = place.momentum + bytes;
    }
    if (keeps_variance(&o->config, parameter_of(o, index))) {
        place.variance = o->variance_bytes;
        o->variance_bytes = round_up(o->variance_bytes + bytes, alignment);
    }
    return place;
}

/* Sets the places of all states, and the sizes of their arenas. */
static void place_states(Optimizer *o) {
    int64_t count = o->shard.interval_count, alignment = precision_alignment(o->graph->precision);
    o->places = memory_allocate((size_t)count * sizeof *o->places);
    for (int i = 0; i < count; i++) {
        if (quantizes_moments(&o->config, parameter_of(o, i))) {
            o->places[i] = (StatePlace){.momentum = -1, .variance = -1, .quantized = o->coded};
            o->coded += o->shard.intervals[i].elements.count;
        } else o->places[i] = place_moments(o, i, alignment);
    }
    if (!optimizer_of(&o->config)->quantizes_moments) o->momentum_bytes = o->shard.bytes;
}

/* Checks that no block of quantized moments has elements of two ranks. Shards begin at multiples of
 * MOMENT_BLOCK elements, so only a cut of columns can be in the way. */
static bool check_blocks(const Optimizer *o, Error *error) {
    for (int i = 0; i < o->shard.interval_count; i++) {
        const Parameter *p = parameter_of(o, i);
        if (o->places[i].quantized < 0 || p->shape[p->rank - 1] % MOMENT_BLOCK == 0) continue;
        return error_set(error, ERROR_USAGE,
            "optimizer.name=%s: with layout.tp a rank has %lld columns of %s, but 8-bit states need a multiple of %d: use another "
            "layout.tp, or optimizer.name=adamw",
            optimizer_of(&o->config)->name, (long long)p->shape[p->rank - 1], p->name, MOMENT_BLOCK);
    }
    return true;
}

/* Returns the bytes of the arena of quantized moments. */
static int64_t count_quantized_bytes(const Optimizer *o) { return 2 * (o->coded + o->coded / MOMENT_BLOCK * (int64_t)sizeof(float)); }

/* ---- Chunks ---- */

/* Adds the chunks from `first` on, which belong to the interval, to the last segment or to a new
 * one. */
static void extend_segments(Optimizer *optimizer, int64_t first, int index, int exchange) {
    const ShardInterval *interval = &optimizer->shard.intervals[index];
    const Parameter *parameter = parameter_of(optimizer, index);
    Segment segment = {.first = first,
        .end = optimizer->chunk_count,
        .shift = parameter->offset + interval->elements.first * parameter->element_bytes - interval->offset,
        .momentum_shift = int_max(optimizer->places[index].momentum, 0) - (optimizer->places[index].quantized < 0 ? interval->offset : 0),
        .bucket = interval->bucket,
        .optimizer = state_name(&optimizer->config, parameter),
        .primary = interval->holder == 0,
        .pure_bf16 = graph_state_type(optimizer->graph, parameter) == TYPE_COMPUTE,
        .hosted = offload_hosts(&optimizer->shard.offload, interval->offset),
        .exchange = exchange};
    bool opens = first == 0 || first == optimizer->balance_end || first == optimizer->elements_end;
    if (first == segment.end) return;
    Segment *last = opens ? NULL : &optimizer->segments[optimizer->segment_count - 1];
    if (last && last->shift == segment.shift && last->momentum_shift == segment.momentum_shift && last->optimizer == segment.optimizer &&
        last->bucket == segment.bucket && last->primary == segment.primary && last->pure_bf16 == segment.pure_bf16 &&
        last->exchange == segment.exchange) {
        last->end = segment.end;
        return;
    }
    optimizer->segments = memory_resize(optimizer->segments, (size_t)(optimizer->segment_count + 1) * sizeof segment);
    optimizer->segments[optimizer->segment_count++] = segment;
}

/* Returns a chunk with the fields that depend on its parameter. */
static Chunk parameter_chunk(const Parameter *parameter, int64_t first) {
    return (Chunk){.first = first, .key = (uint32_t)hash_bytes(parameter->name, strlen(parameter->name))};
}

static void append_chunks(Optimizer *optimizer, Chunk whole) {
    int64_t needed = optimizer->chunk_count + divide_up(whole.count, OPTIM_CHUNK);
    if (needed > optimizer->chunk_room) {
        optimizer->chunk_room = 2 * needed;
        optimizer->chunks = memory_resize(optimizer->chunks, (size_t)optimizer->chunk_room * sizeof(Chunk));
    }
    for (int64_t first = 0; first < whole.count; first += OPTIM_CHUNK) {
        Chunk chunk = whole;
        chunk.index += first;
        chunk.second_index += first;
        chunk.first += first;
        chunk.count = int_min(OPTIM_CHUNK, whole.count - first);
        optimizer->chunks[optimizer->chunk_count++] = chunk;
    }
}

static void append_element_chunks(Optimizer *optimizer, bool balance_biases) {
    for (int i = 0; i < optimizer->shard.interval_count; i++) {
        const ShardInterval *interval = &optimizer->shard.intervals[i];
        RateGroup rates = rate_group(&optimizer->config, parameter_of(optimizer, i)->kind);
        int64_t first = optimizer->chunk_count;
        const Parameter *parameter = parameter_of(optimizer, i);
        bool matrices = optimizer_takes_matrices(&optimizer->config, parameter);
        if (matrices || (rates == RATES_BALANCE_BIAS) != balance_biases) continue;
        Chunk whole = parameter_chunk(parameter, interval->elements.first);
        assert(interval->offset % parameter->element_bytes == 0);
        whole.index = interval->offset / parameter->element_bytes;
        whole.count = interval->elements.count;
        StatePlace place = optimizer->places[i];
        whole.second_index = place.quantized >= 0 ? place.quantized : int_max(place.variance, 0) / parameter->element_bytes;
        assert(place.quantized < 0 || (whole.first % MOMENT_BLOCK == 0 && whole.count % MOMENT_BLOCK == 0));
        whole.rates = rates;
        append_chunks(optimizer, whole);
        extend_segments(optimizer, first, i, -1);
    }
}

static void append_muon_chunks(Optimizer *optimizer) {
    for (int i = 0; i < optimizer->matrix_count; i++) {
        Matrix *matrix = &optimizer->matrices[i];
        matrix->first_chunk = optimizer->chunk_count;
        const Parameter *parameter = parameter_of(optimizer, matrix->interval);
        const ShardInterval *interval = &optimizer->shard.intervals[matrix->interval];
        Chunk whole = parameter_chunk(parameter, interval->elements.first + (matrix->offset - interval->offset) / parameter->element_bytes);
        whole.index = matrix->offset / parameter->element_bytes;
        whole.count = matrix->held;
        whole.second_index = matrix->packed;
        whole.matrix = i;
        append_chunks(optimizer, whole);
        matrix->end_chunk = optimizer->chunk_count;
        extend_segments(optimizer, matrix->first_chunk, matrix->interval, matrix->exchange);
    }
}

/* ---- Life ---- */

static int64_t chunk_list_bytes(const Optimizer *optimizer) { return optimizer->chunk_count * (int64_t)sizeof(Chunk); }

/* Creates everything except the device and its memory. */
static Optimizer *lay_out_states(
    const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard, const OptimBackend *backend) {
    Optimizer *optimizer = memory_allocate(sizeof *optimizer);
    optimizer->graph = graph;
    optimizer->config = *config;
    optimizer->backend = backend;
    optimizer->load_unit = 1;
    optimizer->kernels = optim_best_kernels(graph->precision);
    optimizer->wide = precision_bytes(graph->precision, TYPE_WIDE);
    optimizer->compute = precision_bytes(graph->precision, TYPE_COMPUTE);
    optimizer->shard = shard ? copy_optimizer_shard(shard) : whole_shard(graph);
    place_states(optimizer);
    muon_lay_out(optimizer);
    append_element_chunks(optimizer, true);
    optimizer->balance_end = optimizer->chunk_count;
    optimizer->balance_segments = optimizer->segment_count;
    append_element_chunks(optimizer, false);
    optimizer->elements_end = optimizer->chunk_count;
    optimizer->element_segments = optimizer->segment_count;
    append_muon_chunks(optimizer);
    optimizer->offload = offload_lay_out(optimizer);
    optimizer->scratch_bytes = optimizer->muon_bytes + (optimizer->segment_count + optimizer->chunk_count) * (int64_t)sizeof(PreciseSum) +
                               optimizer->matrix_count * (int64_t)sizeof(double) +
                               (backend->chunks_on_device ? chunk_list_bytes(optimizer) : 0);
    return optimizer;
}

static bool allocate_state(Device *device, void **arena, int64_t bytes, const char *what, Error *error) {
    *arena = device_allocate(device, bytes, error);
    return *arena || error_context(error, "optimizer %s", what);
}

/* Return the bytes of an arena that are in device memory. */
static int64_t device_momentum_bytes(const Optimizer *o) { return o->offload ? o->offload->resident_momentum : o->momentum_bytes; }
static int64_t device_variance_bytes(const Optimizer *o) { return o->offload ? o->offload->resident_variance : o->variance_bytes; }

static bool allocate_arenas(Optimizer *o, Error *error) {
    return allocate_state(o->device, &o->momentum, device_momentum_bytes(o), "momentum", error) &&
           allocate_state(o->device, &o->variance, device_variance_bytes(o), "variance", error) &&
           (o->offload || allocate_state(o->device, (void **)&o->quantized.momentum, count_quantized_bytes(o), "quantized", error)) &&
           (!o->offload || offload_start(o->offload, o, error)) &&
           allocate_state(o->device, &o->scratch, o->scratch_bytes, "scratch", error);
}

static void place_quantized(Optimizer *o) {
    QuantizedMoments *quantized = &o->quantized;
    if (o->offload) {
        *quantized =
            (QuantizedMoments){(uint8_t *)o->offload->arrays[HOSTED_MOMENTUM_VALUES], (uint8_t *)o->offload->arrays[HOSTED_VARIANCE_VALUES],
                (float *)o->offload->arrays[HOSTED_MOMENTUM_SCALES], (float *)o->offload->arrays[HOSTED_VARIANCE_SCALES]};
        return;
    }
    quantized->variance = quantized->momentum + o->coded;
    quantized->momentum_scales = (float *)(quantized->variance + o->coded);
    quantized->variance_scales = quantized->momentum_scales + o->coded / MOMENT_BLOCK;
}

Optimizer *optimizer_create(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard, Device *device, Error *error) {
    Optimizer *optimizer = lay_out_states(graph, config, shard, backend_of(device));
    assert(device_info(device)->host_memory || precision_is_bf16(graph->precision));
    optimizer->device = device;
    optimizer->busy = (int64_t)device_info(device)->processors * USUAL_TILE;
    if (!check_blocks(optimizer, error) || !allocate_arenas(optimizer, error)) {
        optimizer_free(optimizer);
        return NULL;
    }
    place_quantized(optimizer);
    optimizer->segment_squares = optim_at(optimizer->scratch, optimizer->muon_bytes, 1);
    optimizer->partials = optimizer->segment_squares + optimizer->segment_count;
    optimizer->squares = (double *)((PreciseSum *)optimizer->partials + optimizer->chunk_count);
    optimizer->device_chunks = (Chunk *)(optimizer->squares + optimizer->matrix_count);
    if (optimizer->backend->chunks_on_device)
        device_upload(device, optimizer->device_chunks, optimizer->chunks, chunk_list_bytes(optimizer));
    return optimizer;
}

void optimizer_free(Optimizer *optimizer) {
    if (!optimizer) return;
    if (optimizer->device) {
        optimizer_settle(optimizer);
        device_free(optimizer->device, optimizer->momentum, device_momentum_bytes(optimizer));
        device_free(optimizer->device, optimizer->variance, device_variance_bytes(optimizer));
        if (!optimizer->offload) device_free(optimizer->device, optimizer->quantized.momentum, count_quantized_bytes(optimizer));
        device_free(optimizer->device, optimizer->scratch, optimizer->scratch_bytes);
    }
    offload_free(optimizer->offload);
    free(optimizer->shard.intervals);
    free(optimizer->places);
    free(optimizer->segments);
    free(optimizer->chunks);
    muon_free(optimizer);
    free(optimizer);
}

int64_t optimizer_state_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard) {
    Optimizer *optimizer = lay_out_states(graph, config, shard, &cpu); /* a GPU needs as much */
    int64_t bytes = optimizer->momentum_bytes + optimizer->variance_bytes + count_quantized_bytes(optimizer);
    optimizer_free(optimizer);
    return bytes;
}

int64_t optimizer_workspace_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard, const Device *device) {
    Optimizer *optimizer = lay_out_states(graph, config, shard, backend_of(device));
    int64_t bytes = optimizer->scratch_bytes + (optimizer->offload ? 2 * optimizer->offload->buffer_bytes : 0);
    optimizer_free(optimizer);
    return bytes;
}

int64_t optimizer_host_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard) {
    Optimizer *optimizer = lay_out_states(graph, config, shard, &cpu);
    int64_t bytes = optimizer->offload ? offload_host_bytes(optimizer->offload, optimizer) : 0;
    optimizer_free(optimizer);
    return bytes;
}

/* ---- Use ---- */

/* Returns the sum of the back end's sums over the segments from `first` on; with `primary`, over
 * the primary segments among them. Waits for the device. */
static PreciseSum add_parameter_squares(const Optimizer *optimizer, int first, bool primary) {
    int count = optimizer->segment_count - first;
    SCOPED_FREE PreciseSum *squares = memory_allocate((size_t)count * sizeof *squares);
    PreciseSum sum = {0};
    device_download(optimizer->device, squares, optimizer->segment_squares + first, count * (int64_t)sizeof *squares);
    for (int i = 0; i < count; i++)
        if (!primary || optimizer->segments[first + i].primary) precise_join(&sum, squares[i]);
    return sum;
}

void optimizer_note_squares(Optimizer *optimizer, int bucket, const void *gradients) {
    for (int i = optimizer->balance_segments; i < optimizer->segment_count; i++) {
        const Segment *segment = &optimizer->segments[i];
        if (segment->bucket == bucket)
            optimizer->backend->sum_squares(
                optimizer, segment, optim_gradients(optimizer, segment, gradients), &optimizer->segment_squares[i]);
    }
}

PreciseSum optimizer_noted_squares(const Optimizer *optimizer) {
    return add_parameter_squares(optimizer, optimizer->balance_segments, true);
}

PreciseSum optimizer_gradient_squares(Optimizer *optimizer, const void *gradients) {
    for (int bucket = 0; bucket < optimizer->shard.bucket_count; bucket++) optimizer_note_squares(optimizer, bucket, gradients);
    return optimizer_noted_squares(optimizer);
}

/* Returns the address of a segment's master weights, to which chunks' offsets are added. A GPU reads
 * host memory by pointer, slowly. */
static const void *optim_masters(const Optimizer *o, const Segment *segment, const void *master) {
    return segment->hosted && o->shard.offload.masters ? o->offload->arrays[HOSTED_MASTER] : master;
}

static int parameter_with_key(const Graph *graph, uint32_t key) {
    int i = 0;
    while (i < graph->parameter_count && parameter_chunk(&graph->parameters[i], 0).key != key) i++;
    assert(i < graph->parameter_count);
    return i;
}

void optimizer_parameter_squares(Optimizer *optimizer, const void *arena, bool gradients, double *squares) {
    optimizer_settle(optimizer);
    for (int i = optimizer->balance_segments; i < optimizer->segment_count; i++) {
        const Segment *segment = &optimizer->segments[i];
        const void *values = gradients ? optim_gradients(optimizer, segment, arena) : optim_masters(optimizer, segment, arena);
        Segment part = *segment; /* the chunks of one parameter */
        for (; segment->primary && part.first < segment->end; part.first = part.end) {
            const uint32_t key = optimizer->chunks[part.first].key;
            PreciseSum sum;
            for (part.end = part.first; part.end < segment->end && optimizer->chunks[part.end].key == key;) part.end++;
            optimizer->backend->sum_squares(optimizer, &part, values, &optimizer->segment_squares[i]);
            device_download(optimizer->device, &sum, &optimizer->segment_squares[i], sizeof sum);
            squares[parameter_with_key(optimizer->graph, key)] += precise_value(sum);
        }
    }
}

bool optimizer_is_finite(Optimizer *optimizer, const void *master) {
    optimizer_settle(optimizer);
    for (int i = 0; i < optimizer->segment_count; i++)
        optimizer->backend->sum_squares(
            optimizer, &optimizer->segments[i], optim_masters(optimizer, &optimizer->segments[i], master), &optimizer->segment_squares[i]);
    return isfinite(precise_value(add_parameter_squares(optimizer, 0, false)));
}

static void update_elements(const Optimizer *optimizer, const Segment *segment, const Update *update) {
    const OptimizerConfig *config = &optimizer->config;
    const OptimizerRule *rule = optimizer_rules[segment->optimizer];
    RateTerms plain = {update->lr, 0, update->scale, update->step},
              decayed = {update->lr, config->weight_decay, update->scale, update->step},
              balance = {config->balance_lr, 0, optimizer->load_unit, update->step};
    RateTerms values = decayed;
    if (config->value_lr > 0) values.lr *= config->value_lr / config->lr;
    ElementRates rates[RATES_COUNT] = {[RATES_BALANCE_BIAS] = adamw_rates(0.9, 0.999, 1e-8, &balance),
        [RATES_PLAIN] = rule->rates(config, &plain),
        [RATES_DECAYED] = rule->rates(config, &decayed),
        [RATES_VALUE_HEAD] = rule->rates(config, &values)};
    optimizer->backend->elements(optimizer, segment, update, rates);
}

/* Updates a segment, or some of its chunks. */
static void update_segment(const Optimizer *optimizer, int index, const Segment *segment, const Update *update) {
    Update shifted = *update;
    Precision precision = optimizer->graph->precision;
    bool serves = update->weights == update->master || (!segment->pure_bf16 && precision == PRECISION_PURE_BF16);
    shifted.weights =
        serves ? NULL : (char *)update->weights + (optimizer->shard.local_weights ? 0 : precision_weight_offset(precision, segment->shift));
    shifted.gradients = optim_gradients(optimizer, segment, update->gradients);
    if (index < optimizer->balance_segments && optimizer->config.balance_lr == 0) return;
    if (index < optimizer->element_segments) update_elements(optimizer, segment, &shifted);
    else muon_step(optimizer, segment, &shifted);
}

/* Updates elements whose state is in host memory. */
static void update_portion(const Optimizer *optimizer, HostedPortion *portion, const Update *update) {
    Update here = *update;
    const Optimizer view = offload_begin(optimizer, portion, &here.master);
    for (int i = portion->first_segment; i < portion->end_segment; i++) {
        Segment segment = optimizer->segments[i];
        segment.first = int_max(segment.first, portion->first);
        segment.end = int_min(segment.end, portion->end);
        update_segment(&view, i, &segment, &here);
    }
    offload_finish(optimizer, portion);
}

void optimizer_set_masters(Optimizer *optimizer, void *masters) {
    if (optimizer->offload) optimizer->offload->arrays[HOSTED_MASTER] = (char *)masters - optimizer->shard.offload.resident;
}

void optimizer_set_load_unit(Optimizer *optimizer, double unit) { optimizer->load_unit = unit; }

void optimizer_set_hook(Optimizer *optimizer, OptimizerHook updated, void *context) {
    optimizer->updated = updated;
    optimizer->updated_context = context;
}

void optimizer_step_bucket(Optimizer *optimizer, int bucket, const Update *update) {
    assert(update->step >= 1);
    for (int i = 0; i < optimizer->segment_count; i++)
        if (optimizer->segments[i].bucket == bucket && !optimizer->segments[i].hosted)
            update_segment(optimizer, i, &optimizer->segments[i], update);
    for (int i = 0; optimizer->offload && i < optimizer->offload->portion_count; i++)
        if (optimizer->offload->portions[i].bucket == bucket) update_portion(optimizer, &optimizer->offload->portions[i], update);
    if (optimizer->updated) optimizer->updated(optimizer->updated_context, bucket);
}

void optimizer_step(Optimizer *optimizer, const Update *update) {
    for (int bucket = 0; bucket < optimizer->shard.bucket_count; bucket++) optimizer_step_bucket(optimizer, bucket, update);
}

static OptimizerState state_of(const ShardInterval *interval, const char *kind, StateForm form, void *data) {
    return (OptimizerState){.kind = kind,
        .form = form,
        .each = form == STATE_SCALES ? MOMENT_BLOCK : 1,
        .elements = interval->elements,
        .data = data,
        .holders = interval->holders,
        .holder = interval->holder};
}

/* Lists the states of an interval; returns their number. */
static size_t states_of(const Optimizer *o, int index, OptimizerState states[4]) {
    const ShardInterval *interval = &o->shard.intervals[index];
    StatePlace place = o->places[index];
    int64_t block = place.quantized / MOMENT_BLOCK;
    size_t count = 0;
    bool hosted = offload_hosts(&o->shard.offload, interval->offset);
    char *momentum = hosted ? o->offload->arrays[HOSTED_MOMENTUM] : o->momentum,
         *variance = hosted ? o->offload->arrays[HOSTED_VARIANCE] : o->variance;
    if (place.momentum >= 0) states[count++] = state_of(interval, "momentum", STATE_WIDE, momentum + place.momentum);
    if (place.variance >= 0) states[count++] = state_of(interval, "variance", STATE_WIDE, variance + place.variance);
    if (place.quantized < 0) return count;
    states[count++] = state_of(interval, "momentum_codes", STATE_QUANTIZED, o->quantized.momentum + place.quantized);
    states[count++] = state_of(interval, "variance_codes", STATE_QUANTIZED, o->quantized.variance + place.quantized);
    states[count++] = state_of(interval, "momentum_scales", STATE_SCALES, o->quantized.momentum_scales + block);
    states[count++] = state_of(interval, "variance_scales", STATE_SCALES, o->quantized.variance_scales + block);
    return count;
}

size_t optimizer_states(const Optimizer *optimizer, OptimizerState *states, size_t capacity) {
    size_t count = 0;
    for (int i = 0; i < optimizer->shard.interval_count; i++) {
        OptimizerState own[4];
        size_t more = states_of(optimizer, i, own);
        for (size_t k = 0; k < more; k++, count++) {
            own[k].in_host = offload_hosts(&optimizer->shard.offload, optimizer->shard.intervals[i].offset);
            if (count < capacity) states[count] = own[k];
        }
    }
    return count;
}

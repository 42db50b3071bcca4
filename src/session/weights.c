/* Fills arenas with the weights of a source. They are converted to the requested type: checkpoints of
 * fp64 runs hold doubles, all others floats. */
#include "session/weights.h"

#include <assert.h>
#include <stdlib.h>

#include "backend/cpu/cpu_device.h"
#include "base/bf16.h"
#include "base/element.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "formats/llmc.h"
#include "run/source.h"
#include "session/adapter.h"

void weights_convert(const Graph *to, void *target, const Graph *from, const void *source) {
    for (int i = 0; i < to->parameter_count; i++) {
        const Parameter *p = &to->parameters[i], *q = &from->parameters[graph_find_parameter(from, p->name)];
        if (p->frozen) continue;
        size_t bytes = p->element_bytes, given = q->element_bytes;
        const void *read = parameter_in(q, source);
        for (ParameterInterval rest = {i, 0, p->count}; rest.count > 0;) {
            char *values = (char *)parameter_in(p, target) + rest.first * p->element_bytes;
            Slice slice = graph_take_slice(to, &rest);
#pragma omp parallel for schedule(static)
            for (int64_t j = 0; j < slice.count; j++) element_set(bytes, values, j, element_get(given, read, slice_at(&slice, j)));
        }
    }
}

static bool load_source(const char *folder, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error) {
    if (config->lora.rank) return adapter_load_merged(folder, config, graph, master, step, error);
    if (source_is_run(folder)) return session_load_weights(graph, config, folder, master, step, error);
    return llmc_is_model(folder) ? llmc_load_weights(folder, graph, master, error)
                                 : hf_load_weights(folder, &config->model, graph, master, error);
}

bool host_model_open(HostModel *host, const ModelConfig *config, const LoraConfig *lora, Precision precision, Error *error) {
    host->model = model_describe(config, lora, precision);
    host->master = memory_map((size_t)host->model.graph->parameter_bytes, error);
    return host->master != NULL;
}

void host_model_close(HostModel *host) {
    if (host->master) memory_unmap(host->master, (size_t)host->model.graph->parameter_bytes);
    model_free(&host->model);
}

/* Returns the model whose weights the graph has: programs of generation and evaluation have no layer for
 * multi-token prediction. */
static ModelConfig model_of_graph(const ModelConfig *config, const Graph *graph) {
    ModelConfig model = *config;
    bool predicts = false;
    for (int i = 0; i < graph->parameter_count; i++) predicts |= ends_with(graph->parameters[i].name, ".eh_proj.weight");
    if (!predicts) model.mtp = 0;
    return model;
}

bool weights_load(const char *folder, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error) {
    int64_t unasked;
    if (!step) step = &unasked;
    *step = 0;
    bool as_kept = source_is_run(folder) && !config->lora.rank; /* the merged weights of a run with adapters are read like a folder's */
    Precision given = as_kept ? config->precision : graph->precision == PRECISION_FP64 ? PRECISION_FP64 : PRECISION_FP32;
    bool same_layout = precision_state_bytes(given, TYPE_COMPUTE) == precision_state_bytes(graph->precision, TYPE_COMPUTE);
    if (same_layout && (as_kept || graph_is_whole(graph))) return load_source(folder, config, graph, master, step, error);
    SCOPED(host_model_close) HostModel kept = {0};
    const ModelConfig model = source_is_run(folder) ? config->model : model_of_graph(&config->model, graph);
    if (!host_model_open(&kept, &model, NULL, given, error) || !load_source(folder, config, kept.model.graph, kept.master, step, error))
        return false;
    weights_convert(graph, master, kept.model.graph, kept.master);
    return true;
}

/* -- Programs ------------------------------------------------------------------------------------------------------ */

static void read_parameter(const HfReader *reader, int index, bool as_bf16, void *to) {
    if (as_bf16) hf_reader_load_bf16(reader, index, to);
    else hf_reader_load(reader, index, to);
}

/* Returns all values of parameter `index`. *copy is set, to be freed, if they are not available
 * unconverted in the source's arena. */
static const char *whole_values(const WeightSource *source, int index, bool as_bf16, void **copy) {
    const Parameter *p = &source->graph->parameters[index];
    const void *kept = source->reader ? NULL : parameter_in(p, source->master);
    if (kept && (!as_bf16 || p->element_bytes == sizeof(uint16_t))) return kept;
    *copy = memory_allocate((size_t)p->count * (as_bf16 ? sizeof(uint16_t) : (size_t)p->element_bytes));
    if (kept) bf16_from_floats(*copy, kept, p->count);
    else read_parameter(source->reader, index, as_bf16, *copy);
    return *copy;
}

/* Fills device memory with a slice of host memory of `count` elements. */
static void upload_slice(Device *device, void *to, const Slice *slice, const char *values, int64_t count, int64_t width) {
    SCOPED_FREE char *packed = slice->run ? memory_allocate((size_t)(slice->count * width)) : NULL;
    if (packed) slice_copy(slice, packed, &(Slice){.count = count}, values, (size_t)width);
    device_upload(device, to, packed ? packed : values + slice->first * width, slice->count * width);
}

void weights_take(const WeightSource *source, const Graph *graph, ParameterInterval elements, bool as_bf16, Device *device, void *to) {
    const Parameter *p = &graph->parameters[elements.parameter];
    int index = graph_find_parameter(source->graph, p->name);
    assert(index >= 0);
    int64_t count = source->graph->parameters[index].count, width = as_bf16 ? (int64_t)sizeof(uint16_t) : p->element_bytes;
    if (source->reader && elements.count == count && device_info(device)->host_memory) {
        read_parameter(source->reader, index, as_bf16, to);
        return;
    }
    SCOPED_FREE void *copy = NULL;
    const char *values = whole_values(source, index, as_bf16, &copy);
    for (int64_t first = elements.first; elements.count > 0;) {
        char *at = (char *)to + (elements.first - first) * width;
        Slice slice = graph_take_slice(graph, &elements);
        upload_slice(device, at, &slice, values, count, width);
    }
}

void weights_take_shards(Session *session, const WeightSource *source) {
    const Graph *graph = session->training.model.graph;
    const Executor *executor = session->training.executor;
    for (int i = 0; i < session->layout->shard.interval_count; i++) {
        const ShardInterval *held = &session->layout->shard.intervals[i];
        const Parameter *p = &graph->parameters[held->elements.parameter];
        int index = graph_find_parameter(source->graph, p->name);
        if (index < 0 || source->graph->parameters[index].frozen) continue;
        Device *device = executor_hosts_master(executor, held->offset) ? device_cpu() : session->device;
        weights_take(
            source, graph, held->elements, graph_state_type(graph, p) == TYPE_COMPUTE, device, executor_master(executor, held->offset));
    }
}

static bool load_folder(
    const char *folder, const Config *config, const Graph *graph, Device *device, void *master, void *weights, Error *error) {
    SCOPED(model_free) Model whole = {0};
    const ModelConfig model = model_of_graph(&config->model, graph);
    if (!graph_is_whole(graph)) whole = model_describe(&model, NULL, graph->precision);
    const Graph *all = whole.graph ? whole.graph : graph;
    HfReader *reader = hf_reader_open(folder, &model, all, error);
    for (int i = 0; i < graph->parameter_count && reader; i++) {
        const Parameter *p = &graph->parameters[i];
        weights_take(&(WeightSource){.reader = reader, .graph = all}, graph, (ParameterInterval){i, 0, p->count},
            graph_state_type(graph, p) == TYPE_COMPUTE, device, parameter_in(p, master));
    }
    bool loaded = reader && device_ok(device, error);
    hf_reader_close(reader);
    if (loaded) model_cast_weights(graph, device, master, weights);
    return loaded;
}

static bool load_arenas(
    const char *folder, const Config *config, const Graph *graph, Device *device, void *master, void *weights, Error *error) {
    if (source_is_model_folder(folder)) return load_folder(folder, config, graph, device, master, weights, error);
    int64_t bytes = graph->parameter_bytes;
    void *view = device_view(device, master, bytes, VIEW_WRITE, error);
    bool loaded = view && weights_load(folder, config, graph, view, NULL, error);
    device_view_close(device, view, master, bytes, VIEW_WRITE);
    if (loaded) model_cast_weights(graph, device, master, weights);
    return loaded;
}

Generator *weights_open_generator(
    const char *folder, const Mesh *mesh, const Config *config, Precision precision, Device *device, bool cache, Error *error) {
    Generator *g = generator_create(mesh, &config->model, precision, device, cache, error);
    if (g && load_arenas(folder, config, generator_graph(g), device, generator_master(g), generator_weights(g), error)) return g;
    generator_free(g);
    return NULL;
}

Engine *weights_open_engine(const char *folder, const Config *config, EnginePlace place, EngineSizes sizes, Error *error) {
    Engine *e = engine_create(&config->model, place, sizes, error);
    if (e && load_arenas(folder, config, engine_graph(e), place.device, engine_master(e), engine_weights(e), error)) return e;
    engine_free(e);
    return NULL;
}

bool weights_load_program(const char *folder, const Config *config, Executor *executor, Error *error) {
    return load_arenas(folder, config, executor_graph(executor), executor_backend(executor)->device, executor_arena(executor, ARENA_MASTER),
        executor_arena(executor, ARENA_WEIGHT), error);
}

/* Records and reads traces of routers (routing_trace.h describes the file). Owns the copies of a
 * recorder. Called by the training loop, smelt bench train and forecasts. */
#include "train/routing_trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "config/family.h"
#include "graph/op.h"
#include "ops/router/router.h"

#define TRACE_FORMAT "smelt routing trace"

/* -- Recording ------------------------------------------------------------------------------------------------------ */

bool routing_record_node(void *context, const Graph *graph, int index, double seconds) {
    (void)seconds;
    RoutingRecorder *recorder = context;
    const Node *node = &graph->nodes[index];
    if (node->op != OP_router || node->clone_of >= 0) return true;
    SCOPED_FREE char *name = memory_format("layers.%d.experts", node->layer);
    for (size_t i = 0; i < recorder->count; i++)
        if (!strcmp(recorder->layers[i].name, name)) return true; /* a later microbatch */
    TensorId choices = node->out[ROUTER_INDEX];
    StoredTensor layer = {.name = memory_copy_string(name),
        .type = STORED_I32,
        .rank = 2,
        .shape = {graph_rows(graph, choices), graph_columns(graph, choices)}};
    void *copy = memory_allocate((size_t)graph_bytes(graph, choices));
    executor_read(recorder->executor, choices, copy);
    layer.data = copy;
    array_append(recorder->layers, recorder->count, layer);
    return true;
}

void routing_recorder_free(RoutingRecorder *recorder) {
    for (size_t i = 0; i < recorder->count; i++) {
        free((char *)recorder->layers[i].name);
        free((void *)recorder->layers[i].data);
    }
    free(recorder->layers);
    recorder->layers = NULL;
    recorder->count = 0;
}

bool routing_write(RoutingRecorder *recorder, const char *path, const ModelConfig *config, Error *error) {
    SCOPED_FREE char *experts = memory_format("%" PRId64, config->experts), *chosen = memory_format("%" PRId64, config->experts_per_token);
    json_auto_t *metadata = json_pack("{s:s, s:s, s:s}", "format", TRACE_FORMAT, "experts", experts, "experts_per_token", chosen);
    recorder->written = safetensors_write(path, recorder->layers, recorder->count, metadata, error);
    routing_recorder_free(recorder);
    return recorder->written;
}

/* -- Reading -------------------------------------------------------------------------------------------------------- */

static const char *trace_text(const RoutingTrace *trace, const char *key) {
    const char *text = json_string_value(json_object_get(trace->file.metadata, key));
    return text ? text : "";
}

static bool repeats_expert(const int32_t *chosen, int64_t count, int64_t experts) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < i; j++)
            if (chosen[i] == chosen[j] && chosen[i] < experts) return true;
    return false;
}

static bool check_row(const int32_t *chosen, const StoredTensor *layer, const char *path, const ModelConfig *config, Error *error) {
    int64_t k = config->experts_per_token, classes = config->experts + family_of(config)->skips_experts;
    for (int64_t i = 0; i < k; i++)
        if (chosen[i] < 0 || chosen[i] >= classes)
            return error_set(error, ERROR_CHECKPOINT, "%s: %s contains expert %d, but the model has %" PRId64 ": record the trace again",
                path, layer->name, chosen[i], config->experts);
    return !repeats_expert(chosen, k, config->experts) ||
           error_set(error, ERROR_CHECKPOINT, "%s: a row of %s has an expert twice: record the trace again", path, layer->name);
}

static bool check_choices(const StoredTensor *layer, const char *path, const ModelConfig *config, Error *error) {
    int64_t k = config->experts_per_token;
    if (layer->type != STORED_I32 || layer->rank != 2 || layer->shape[0] < 1 || layer->shape[1] != k)
        return error_set(error, ERROR_CHECKPOINT, "%s: %s is not I32 [rows, %" PRId64 "]: record the trace again", path, layer->name, k);
    SCOPED_FREE int32_t *chosen = memory_allocate((size_t)k * sizeof *chosen);
    for (int64_t row = 0; row < layer->shape[0]; row++) {
        memcpy(chosen, (const char *)layer->data + row * k * (int64_t)sizeof *chosen, (size_t)k * sizeof *chosen);
        if (!check_row(chosen, layer, path, config, error)) return false;
    }
    return true;
}

bool routing_trace_open(RoutingTrace *trace, const char *path, const ModelConfig *config, Error *error) {
    if (!safetensors_open(&trace->file, path, error)) return false;
    if (strcmp(trace_text(trace, "format"), TRACE_FORMAT) != 0)
        return error_set(
            error, ERROR_USAGE, "%s is not a trace of routers: record one with smelt train CONFIG.yaml routing_trace=FILE", path);
    const char *experts = trace_text(trace, "experts"), *chosen = trace_text(trace, "experts_per_token");
    if (strtoll(experts, NULL, 10) != config->experts || strtoll(chosen, NULL, 10) != config->experts_per_token)
        return error_set(error, ERROR_USAGE,
            "%s was recorded with model.experts=%s and model.experts_per_token=%s, but the model has %" PRId64 " and %" PRId64
            ": record a trace of such a model",
            path, experts, chosen, config->experts, config->experts_per_token);
    for (size_t i = 0; i < trace->file.count; i++)
        if (!check_choices(&trace->file.tensors[i], path, config, error)) return false;
    return true;
}

void routing_trace_close(RoutingTrace *trace) { safetensors_close(&trace->file); }

const void *routing_trace_layer(const RoutingTrace *trace, int64_t layer, int64_t *rows) {
    SCOPED_FREE char *name = memory_format("layers.%" PRId64 ".experts", layer);
    const StoredTensor *found = safetensors_find(&trace->file, name);
    *rows = found ? found->shape[0] : 0;
    return found ? found->data : NULL;
}

bool routing_trace_covers(const RoutingTrace *trace, const ModelConfig *config, Error *error) {
    int64_t rows;
    for (int64_t layer = config->experts_first; layer < config->layers + config->mtp; layer += config->experts_period)
        if (!routing_trace_layer(trace, layer, &rows))
            return error_set(error, ERROR_USAGE,
                "the trace has no layer %" PRId64 ", but layer %" PRId64 " of the model has experts: record a trace of this model", layer,
                layer);
    return true;
}

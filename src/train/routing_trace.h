/* Traces of routers: the experts that the routers of a training run chose for the rows of one microbatch.
 * `routing_trace=FILE` records one, and `smelt bench train bench.routing=trace` reads it.
 *
 * The file is in the safetensors format: a tensor layers.N.experts I32 [rows, k] for each layer N
 * with experts, and the metadata format="smelt routing trace", experts and experts_per_token. The
 * value `experts` means that the row skips the experts, in families that can. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "graph/graph.h"

/* Collects the choices. Zero-initialize; the caller sets `executor`. */
typedef struct RoutingRecorder {
    const Executor *executor; /* borrowed: that of the program that runs */
    StoredTensor *layers;     /* in the order of the program; names and data are owned */
    size_t count;
    bool written;
} RoutingRecorder;

/* An ExecutorHook; `context` is a RoutingRecorder. Copies the choices of each router at its first
 * run. */
bool routing_record_node(void *context, const Graph *graph, int node, double seconds);
/* Writes the file and frees what was collected. ERROR_CHECKPOINT. */
bool routing_write(RoutingRecorder *recorder, const char *path, const ModelConfig *config, Error *error);
void routing_recorder_free(RoutingRecorder *recorder);

/* A file that is read. Zero-initialize. */
typedef struct RoutingTrace { Safetensors file; } RoutingTrace;
/* Opens a trace for a model with as many experts and choices. ERROR_USAGE: it is another file, or
 * of another model; ERROR_CHECKPOINT: it is damaged. */
bool routing_trace_open(RoutingTrace *trace, const char *path, const ModelConfig *config, Error *error);
void routing_trace_close(RoutingTrace *trace);
/* Returns whether the trace has every layer of the model that has experts. ERROR_USAGE. */
bool routing_trace_covers(const RoutingTrace *trace, const ModelConfig *config, Error *error);
/* Returns the choices of a layer, possibly unaligned, and sets *rows; NULL: the trace lacks it. */
const void *routing_trace_layer(const RoutingTrace *trace, int64_t layer, int64_t *rows);

/* What the families share while they build. */
#ifndef SMELT_MODEL_INTERNAL_H
#define SMELT_MODEL_INTERNAL_H

#include "model/model.h"
#include "op/op.h"

typedef struct Builder {
    Graph *graph;
    const ModelConfig *config;
    ModelMode mode;
    int64_t length;
    TensorId tokens, positions, rope_table, share, loss;
    int layer;
} Builder;

/* What the head needs. */
typedef struct Trunk { TensorId normed, head; } Trunk;

Trunk zaya_build(Builder *builder);
Trunk llama_build(Builder *builder);

/* Parameters named model.layers.LAYER.NAME (layer >= 0) or NAME. Matrices are [out, in]. */
TensorId builder_matrix(Builder *builder, const char *name, int64_t out, int64_t in, bool fused);
TensorId builder_vector(Builder *builder, const char *name, ParameterKind kind, int64_t count, double value);
TensorId builder_parameter(Builder *builder, const char *name, ParameterKind kind, int rank, const int64_t *shape, double mean, double std, bool fused);
void builder_layer(Builder *builder, int layer); /* -1: outside */

/* Attention over packed qkv, cached when generating. */
TensorId builder_attention(Builder *builder, TensorId qkv);
/* SwiGLU experts over dispatched rows: PREFIX.gate_up_proj [E, 2F, D] and PREFIX.down_proj [E, D, F]. */
TensorId builder_experts(Builder *builder, const char *prefix, TensorId x, Routing routing);

#endif

/* What the families share while they build. */
#pragma once

#include "model/model.h"
#include "graph/op.h"
#include "ops/norm/norm.h"
#include "ops/router/router.h"

typedef struct Builder {
    Graph *graph;
    const ModelConfig *config;
    const LoraConfig *lora; /* NULL: no adapters */
    ModelMode mode;
    int64_t length;
    TensorId tokens, positions, rope_table, share, loss;
    const char *layer_names; /* before the number in names of a layer's parameters */
    int layer;
} Builder;

/* What the head needs. */
typedef struct Trunk { TensorId normed, head; } Trunk;

Trunk zaya_build(Builder *builder);
Trunk llama_build(Builder *builder);
Trunk mpt_build(Builder *builder);
Trunk gpt2_build(Builder *builder);

/* Parameters named LAYER_NAMES.LAYER.NAME (layer >= 0) or NAME. Matrices are [out, in]. */
TensorId builder_matrix(Builder *builder, const char *name, int64_t out, int64_t in, bool fused);
TensorId builder_vector(Builder *builder, const char *name, ParameterKind kind, int64_t count, double value);
TensorId builder_parameter(
    Builder *builder, const char *name, ParameterKind kind, int rank, const int64_t *shape, double mean, double std, bool fused);
void builder_layer(Builder *builder, int layer); /* -1: outside */

/* A norm of `columns` with the parameters NAME.weight and, if `biased`, NAME.bias. */
Norm builder_norm(Builder *builder, const char *name, NormKind kind, bool biased, int64_t columns);
/* op_linear, with adapters where the configuration has them for layers of this kind: LORA_ATTENTION or LORA_MLP. The leading dimensions of the matrices that `w`
 * is a view of are the parts that have one each (lora.c). */
TensorId builder_adaptable(Builder *builder, TensorId x, TensorId w, TensorId bias, LoraTargets kind);
/* The same of NAME.weight [out, in], whose initial values have the deviation `std`. */
TensorId builder_linear(Builder *builder, const char *name, TensorId x, int64_t out, double std, LoraTargets kind);
/* Deviation of what is added to the stream: init_std / sqrt(2 layers), as in GPT-2, so that the stream does not grow with depth. */
double builder_residual_std(const Builder *builder);
/* The token table, [vocabulary, width]; and the head: the same when tied. */
TensorId builder_table(Builder *builder, const char *name);
/* Cosines and sines for the configuration. */
TensorId builder_rope_table(Builder *builder);

/* Layers of attention and MLP with a norm before each, plain residual sums, and a last norm: what a family fills in. */
typedef struct Layers {
    const char *first, *second, *last; /* names of the norms */
    NormKind norm;
    bool biased;
    TensorId (*attention)(Builder *builder, TensorId x), (*mlp)(Builder *builder, TensorId x);
} Layers;
/* Returns the last norm of the stream. */
TensorId builder_layers(Builder *builder, TensorId stream, const Layers *layers);

/* Attention over packed qkv, cached when generating. */
TensorId builder_attention(Builder *builder, TensorId qkv);
/* SwiGLU experts over dispatched rows: PREFIX.gate_up_proj [E, 2F, D] and PREFIX.down_proj [E, D, F]. */
TensorId builder_experts(Builder *builder, const char *prefix, TensorId x, Routing routing);

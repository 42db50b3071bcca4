/* What a family builds with: parameters, linear layers, norms, and whole layers of attention and MLP. A family is
 * one function, NAME_build, which declares the parameters and appends the operations of one forward pass (builder.c,
 * lora.c).
 *
 * In shapes, R is the rows of a microbatch that this rank has (Model.rows), D = width, F = ffn, E = experts, V = vocabulary.
 * Activations are [R, columns]. Parameters lie in memory in the order in which they are declared; matrices are [out,
 * in]. Their names are those of the family's Hugging Face folder: LAYER_NAMES.N.NAME inside of a layer, NAME
 * outside. */
#pragma once

#include "config/lora_targets.h"
#include "graph/op.h"
#include "model/model.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/router/router.h"

typedef struct Builder {
    Graph *graph;
    const ModelConfig *config;
    const LoraConfig *lora; /* NULL: no adapters */
    ModelMode mode;
    int64_t length;             /* of a whole sequence */
    TensorId tokens, positions; /* INT32 [R] */
    TensorId share, loss;       /* as in Model; TENSOR_NONE where the mode has no loss */
    ImageInputs image;          /* of families of images, as in Model */
    TensorId rope_table;        /* set by families with rotary positions */
    TensorId window_rope_table; /* set by zaya: of layers with a window */
    double alibi;               /* set by families with ALiBi: the smallest slope is 2^-this; 0: none */
    TensorId router_state;      /* zaya: of the layer before, [R, router_width] */
    TensorId loads;             /* sums of the routers' loads so far, WIDE [2, classes] */
    const ModelCut *cut;        /* NULL: no pipeline */
    ModelChunk *chunks;         /* of the Model */
    const char *layer_names;    /* FamilyRule.layers; flux has two kinds of blocks, and sets them */
    int layer;                  /* -1: outside of the layers */
} Builder;

/* What a family's layers come to. A model of text: the last norm [R, D] and the head's matrix [V, D], neither on a stage without
 * the head. A model of images: the velocity of each image token, WIDE [samples * image tokens, channels]. */
typedef struct Trunk { TensorId normed, head, velocity; } Trunk;

/* -- Parameters ---------------------------------------------------------------------------------------------------- */

/* Shapes and counts are those of the whole model. `cut` says how ranks share the parameter out, NULL: each has it whole. */

/* Normal values of mean 0 and deviation init_std. `name` is the whole name, with ".weight" where there is one. */
TensorId builder_parameter(Builder *builder, const char *name, ParameterKind kind, int rank, const int64_t *shape, const Cut *cut);
/* NAME of NAME.weight, for the caller to free (lora.c). */
char *parameter_module(const char *parameter);
/* [count], all of one value. */
TensorId builder_vector(Builder *builder, const char *name, ParameterKind kind, int64_t count, double value, const Cut *cut);
/* NAME.weight [out, in], normal with the deviation `std`. */
TensorId builder_matrix(Builder *builder, const char *name, int64_t out, int64_t in, double std, const Cut *cut);
/* NAME.bias [count], zeros. */
TensorId builder_bias(Builder *builder, const char *name, int64_t count, const Cut *cut);
/* What a GEMM reads of a matrix or a view of several: codes become numbers first. */
TensorId builder_read(Builder *builder, TensorId weight);
/* The deviation of a matrix whose output is added to the residual stream: init_std / sqrt(2 layers), as in GPT-2, so
 * that the stream does not grow with depth. */
double builder_residual_std(const Builder *builder);

/* The axes that share out key heads: where there are fewer of them than tensor-parallel ranks, several ranks have the same
 * (comm/mesh.h). Queries, MLPs, embeddings and heads are shared out by AXES_TENSOR. */
enum { AXES_KEYS = 1 << AXIS_TP };

/* How ranks share a linear layer out (arXiv 1909.08053): by the columns of its output, or by those of its input, of which
 * each makes a part of the sum that the output is. */
typedef enum LinearSplit { SPLIT_OUTPUT, SPLIT_INPUT } LinearSplit;
/* A linear layer, or several of one input. */
typedef struct Linear {
    LinearPart parts[LINEAR_PARTS];
    CutShare rows[LINEAR_PARTS]; /* of a part's weight that this rank multiplies by; count 0: all */
    LinearSplit split;
} Linear;

/* NAME.weight [out, in] and, if `biased`, NAME.bias [out]. The output consists of `count` blocks of so many columns, and
 * each rank has its share of every one of them. */
Linear builder_split_output(Builder *builder, const char *name, const int64_t *blocks, int count, int64_t in, double std, bool biased);
Linear builder_split_input(Builder *builder, const char *name, int64_t out, int64_t in, double std, bool biased);

/* Linear layers of one input, stored apart and computed by one GEMM; ranks share their outputs out by `axes`. */
typedef struct Stacked {
    const char *name;
    int64_t out;
    MeshAxes axes;
} Stacked;
/* The matrices NAME.weight [out, in] and, if `biased`, NAME.bias [out] of the layers: those that follow each other and have
 * the same ranks lie one after another, and are one part [sum of out, in]. */
Linear builder_stacked(Builder *builder, const Stacked *layers, int count, int64_t in, bool biased);

/* The token embedding [V, D]; TENSOR_NONE on stages of a pipeline that lack it: only the first one has an embedding. */
TensorId builder_embedding(Builder *builder, const char *name);
/* A table of `entries`, which AXES_TENSOR share out, for the numbers `ids` INT32 [R]: rows WIDE [R, D], zero where another
 * rank has the entry. Bias and scale as in op_embed, padding of the whole table. */
TensorId builder_embed(Builder *builder, TensorId ids, TensorId table, int64_t entries, TensorId bias, TensorId scale, int64_t padding);
/* The head [V, D]: the embedding `name` when the model is tied, else lm_head.weight; TENSOR_NONE on stages that lack it. */
TensorId builder_head(Builder *builder, const char *name, TensorId embedding);
/* The rows of the table that lora.tokens trains, or TENSOR_NONE; and what this rank has of their runs, counted from its first row. */
TensorId builder_token_rows(const Builder *builder, TensorId table);
TokenRuns builder_token_runs(const Builder *builder);

/* -- Operations ---------------------------------------------------------------------------------------------------- */

/* Sequence parallelism (arXiv 2205.05198): between attention and MLPs, a rank has its part of the microbatch's rows of the
 * residual stream, [R / n, D] for n ranks of AXES_TENSOR. Without a loss all ranks have all rows. */
bool builder_shares_rows(const Builder *builder);
/* From the rank's rows to all. */
TensorId builder_gather(Builder *builder, TensorId x);
/* From parts of a sum, for all rows, to the rank's rows of the sum. */
TensorId builder_scatter(Builder *builder, TensorId x);
/* The heads that this rank has. */
Heads builder_heads(const Builder *builder);

/* A norm of `columns` with the parameters NAME.weight and, if `biased`, NAME.bias. */
Norm builder_norm(Builder *builder, const char *name, NormKind kind, bool biased, int64_t columns);
/* x weight^T + bias. SPLIT_OUTPUT: from the rank's rows to its columns of all rows; SPLIT_INPUT: back. Each matrix that a
 * weight is a view of gets an adapter where the configuration gives it one (lora_selects): `group` is what the layer is of. */
TensorId builder_linear(Builder *builder, TensorId x, const Linear *linear, LoraGroup group);
/* A layer of a router, which each rank has whole: x [R, in] NAME.weight [out, in]^T and, if `biased`, + NAME.bias; WIDE where
 * `wide`, else COMPUTE. With its adapter where it gets one. */
TensorId builder_router_linear(Builder *builder, TensorId x, const char *name, int64_t out, bool biased, bool wide);
/* y [slots, out], made of x [slots, in] by the layer NAME [E, out, in] of each slot's expert, with what their adapters add:
 * NAME.lora_A.weight [E, rank, in] and NAME.lora_B.weight [E, out, rank], or without E where the experts share one. */
TensorId builder_adapt_experts(Builder *builder, const char *name, TensorId x, TensorId y, const Dispatch *dispatch);
/* Whether a linear layer [out, in] over so many rows is computed in fp8 (fp8_choose). */
bool builder_is_fp8(const Builder *builder, int64_t rows, double expert_rows, int64_t out, int64_t in);
/* Cosines and sines of the configuration's rotary positions, of this base. */
TensorId builder_rope_table(Builder *builder, double theta);
/* Attention over packed qkv (ops/heads.h) of the rank's heads, [R, (heads + 2 kv_heads) * head_dim] to [R, heads *
 * head_dim]; with a cache when generating. */
TensorId builder_attention(Builder *builder, TensorId qkv);
/* A router over its logits [R, classes], with the load-balancing loss of the configuration: over each layer, or, where
 * the loss is one of the whole model, over the loads of all layers when it is the last. `bias` as in op_router. */
Routing builder_router(Builder *builder, TensorId logits, TensorId bias, bool skip);
/* SwiGLU experts, [R, D] to [R, D], over the rows that `routing` gives them: PREFIX.gate_up_proj [E, 2F, D] and
 * PREFIX.down_proj [E, D, F]. */
TensorId builder_experts(Builder *builder, const char *prefix, TensorId x, Routing routing);

/* -- Layers -------------------------------------------------------------------------------------------------------- */

/* Sets where parameters and operations that follow belong: a layer, or -1, outside. */
void builder_layer(Builder *builder, int layer);

/* Layers with a norm before attention and one before the MLP, and a last norm:
 *
 *     h = merge(attention(norm(h)), h);  h = merge(mlp(norm(h)), h)
 *
 * where merge(a, h) = a + h, or the affine merge of the family. Each norm is fused with the merge before it, so that
 * the residual stream h is read and written once per block. */
typedef struct Layers {
    const char *first, *second, *last; /* names of the norms: before attention, before the MLP, at the end */
    NormKind norm;
    bool biased;
    /* [R, D] to [R, D] */
    TensorId (*attention)(Builder *builder, TensorId x), (*mlp)(Builder *builder, TensorId x);
    /* Declares the vectors of a merge; NULL: a + h. */
    AffineMerge (*merge)(Builder *builder, bool after_mlp);
} Layers;
/* Appends all layers of this stage to the residual stream [R, D] (TENSOR_NONE: it is received) and returns its last norm
 * [R, D], TENSOR_NONE on stages before the last. */
TensorId builder_layers(Builder *builder, TensorId stream, const Layers *layers);

/* -- Stages of a pipeline (stage.c) -------------------------------------------------------------------------------- */

bool builder_is_first_stage(const Builder *builder);
bool builder_is_last_stage(const Builder *builder);
bool builder_is_last_piece(const Builder *builder, int chunk);
int builder_chunks(const Builder *builder);
/* The layers [first, end) of a chunk of this stage, whose nodes follow; sets the stream to what is received, unless the
 * chunk is the model's first. */
typedef struct LayerRange { int first, end; } LayerRange;
LayerRange builder_begin_chunk(Builder *builder, int chunk, TensorId *stream);
/* Takes note of what leaves the chunk, unless it is the model's last. */
void builder_end_chunk(Builder *builder, int chunk, TensorId stream);
/* Seeds of what later chunks send back, to differentiate from: at most EDGE_TENSORS of each chunk. Returns how many. */
int stage_list_seeds(Graph *graph, ModelChunk *chunks, int count, Seed *seeds);
/* After differentiation: keeps the gradients that go to chunks before. */
void stage_keep_gradients(Graph *graph, ModelChunk *chunks, int count);

/* The building blocks of a family: parameters, linear layers, norms, attention, experts (builder.c,
 * lora.c). A family declares its parameters and appends the operations of one forward pass:
 * decoders describe their layers (model/layer_spec.h), other models call these functions.
 *
 * In shapes, R is this rank's rows of a microbatch (Model.rows), D = width, F = ffn, E = experts, V
 * = vocabulary. Activations are [R, columns]. Parameters are stored in declaration order; matrices
 * are [out, in]. Their names are those of the family's Hugging Face folder: LAYER_NAMES.N.NAME
 * inside a layer, NAME outside. */
#pragma once

#include "config/lora_targets.h"
#include "graph/op.h"
#include "model/model.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/router/router.h"

/* A table of cosines and sines; `table` TENSOR_NONE: not yet appended. */
enum { ROPE_TABLES = 2 };
typedef struct RopeTable {
    double theta;
    bool scaled;
    TensorId table;
} RopeTable;

typedef struct Builder {
    Graph *graph;
    const ModelConfig *config;
    const LoraConfig *lora; /* NULL: no adapters */
    ModelMode mode;
    int64_t length;             /* of a whole sequence */
    TensorId tokens, positions; /* INT32 [R] */
    SlotSizes slot_sizes;       /* as SlotInputs, of model_build_slots */
    SlotInputs slots;
    bool draws;           /* of model_build_slots */
    AdapterPlace *places; /* as in Model */
    int place_count;
    TensorId share, loss;               /* as in Model; TENSOR_NONE if the mode has no loss */
    ImageInputs image;                  /* for families of images, as in Model */
    RopeTable rope_tables[ROPE_TABLES]; /* builder_rope_table */
    TensorId next_tokens;               /* INT32 [R], with multi-token prediction: PredictionTensors.tokens; else TENSOR_NONE */
    TensorId router_state;              /* zaya: of the previous layer, [R, router_width] */
    TensorId loads;                     /* sums of router loads so far, WIDE [2, classes] */
    const ModelCut *cut;                /* NULL: no pipeline */
    ModelChunk *chunks;                 /* those of the Model */
    TensorId *routing;                  /* that of the Model */
    const char *layer_names;            /* FamilyRule.layers; flux changes it for its two kinds of blocks */
    int layer;                          /* -1: outside layers */
} Builder;

/* The result of a family's layers. For a text model: the last norm [R, D] and the head's matrix
 * [V, D], both absent on a stage without the head. For an image model: the velocity of each image
 * token, WIDE [samples * image tokens, channels]. */
typedef struct Trunk {
    TensorId normed, head, velocity;
    TensorId mtp_normed; /* the same result of the layer for multi-token prediction; TENSOR_NONE: none */
} Trunk;

/* -- Parameters ---------------------------------------------------------------------------------------------------- */

/* Shapes and counts are those of the whole model. `cut` says how ranks divide the parameter; NULL:
 * each rank has it whole. */

/* Declares a parameter with normal initial values of mean 0 and deviation init_std. `name` is the
 * full name, including ".weight" if it has one. */
TensorId builder_parameter(Builder *builder, const char *name, ParameterKind kind, int rank, const int64_t *shape, const Cut *cut);
/* Returns NAME of NAME.weight, for the caller to free (lora.c). */
char *parameter_module(const char *parameter);
/* Declares a vector [count] of one value. */
TensorId builder_vector(Builder *builder, const char *name, ParameterKind kind, int64_t count, double value, const Cut *cut);
/* Declares NAME.weight [out, in], normal with deviation `std`. */
TensorId builder_matrix(Builder *builder, const char *name, int64_t out, int64_t in, double std, const Cut *cut);
/* Declares NAME.bias [count], zeros. */
TensorId builder_bias(Builder *builder, const char *name, int64_t count, const Cut *cut);
/* Returns what a GEMM reads for a matrix or a view of several: quantized values are dequantized
 * first. */
TensorId builder_read(Builder *builder, TensorId weight);
/* Returns the deviation of a matrix whose output is added to the residual stream: init_std / sqrt(2
 * layers), as in GPT-2, so that the stream does not grow with depth. */
double builder_residual_std(const Builder *builder);

/* The axes that divide key heads. If there are fewer key heads than tensor-parallel ranks,
 * several ranks hold the same ones (comm/mesh.h). AXES_TENSOR divides queries, MLPs, embeddings
 * and heads. */
enum { AXES_KEYS = 1 << AXIS_TP };

/* How ranks divide a linear layer (arXiv 1909.08053): by the columns of its output, or by the
 * columns of its input. With a divided input, each rank computes a partial sum of the output.
 * SPLIT_NONE: every rank has the whole layer and applies it to its own rows. */
typedef enum LinearSplit { SPLIT_OUTPUT, SPLIT_INPUT, SPLIT_NONE } LinearSplit;
/* One linear layer, or several with the same input. */
typedef struct Linear {
    LinearPart parts[LINEAR_PARTS];
    CutShare rows[LINEAR_PARTS]; /* the rows of a part's weight that this rank multiplies by; count 0: all */
    LinearSplit split;
} Linear;

/* Declare NAME.weight [out, in] and, if `biased`, NAME.bias [out]. builder_split_output: the output
 * has `count` blocks of blocks[i] columns, and each rank has its share of every block. */
Linear builder_split_output(Builder *builder, const char *name, const int64_t *blocks, int count, int64_t in, double std, bool biased);
Linear builder_split_input(Builder *builder, const char *name, int64_t out, int64_t in, double std, bool biased);

/* Linear layers with one input, stored separately and computed by one GEMM; the ranks of `axes`
 * divide their outputs. */
typedef struct Stacked {
    const char *name;
    int64_t out;
    MeshAxes axes;
} Stacked;
/* Declares the matrices NAME.weight [out, in] and, if `biased`, NAME.bias [out] of the layers. If
 * `axes` is 0, every rank has the whole layer; then it must be 0 for all layers of the call.
 * Consecutive layers on the same ranks are stored contiguously and form one part
 * [sum of out, in]. */
Linear builder_stacked(Builder *builder, const Stacked *layers, int count, int64_t in, bool biased);

/* Declares the token embedding [V, D]; TENSOR_NONE on pipeline stages after the first, which lack
 * it. */
TensorId builder_embedding(Builder *builder, const char *name);
/* `ids` INT32 [R] in a table of `entries` entries that AXES_TENSOR divides. Bias, scale and factor as
 * in op_embed; `padding` refers to the whole table. */
typedef struct Lookup {
    TensorId ids, table;
    int64_t entries, padding;
    TensorId bias, scale;
    double factor;
} Lookup;
/* Returns the rows, WIDE [R, D], zero if another rank has the entry. */
TensorId builder_embed(Builder *builder, const Lookup *lookup);
/* Returns the head [V, D]: the embedding `name` if the model is tied, otherwise lm_head.weight;
 * TENSOR_NONE on stages without the head. */
TensorId builder_head(Builder *builder, const char *name, TensorId embedding);
/* Returns the values of all rows, WIDE [R, 1], by a value head over the rank's rows of x. Declare it last, so that
 * parameters have the same indices in programs without it. Adapters do not freeze it. */
TensorId builder_value_head(Builder *builder, TensorId x);
/* Return the rows of the table that lora.tokens trains, or TENSOR_NONE; and this rank's part of
 * their runs, counted from its first row. */
TensorId builder_token_rows(const Builder *builder, TensorId table);
TokenRuns builder_token_runs(const Builder *builder);

/* -- Operations ---------------------------------------------------------------------------------------------------- */

/* Returns whether sequence parallelism is on (arXiv 2205.05198): between attention and MLPs each of
 * the n ranks of AXES_TENSOR has 1/n of the microbatch's rows of the residual stream, [R / n, D].
 * Without a loss all ranks have all rows. */
bool builder_shares_rows(const Builder *builder);
/* Gathers the rank's rows to all rows. */
TensorId builder_gather(Builder *builder, TensorId x);
/* Reduces partial sums of all rows to this rank's rows of the sum. */
TensorId builder_scatter(Builder *builder, TensorId x);
/* Returns the heads that this rank has. */
Heads builder_heads(const Builder *builder);

/* Declares a norm over `columns` columns with the parameters NAME.weight and, if `biased`,
 * NAME.bias. */
Norm builder_norm(Builder *builder, const char *name, NormKind kind, bool biased, int64_t columns);
/* Computes x weight^T + bias. SPLIT_OUTPUT: from the rank's rows to its columns of all rows;
 * SPLIT_INPUT: back; SPLIT_NONE: from the rank's rows to all columns of these rows. Each matrix in a
 * weight gets an adapter if the configuration selects it (lora_selects); `group` is the layer's group. */
TensorId builder_linear(Builder *builder, TensorId x, const Linear *linear, LoraGroup group);
/* Applies a router layer, which every rank has whole: x [R, in] NAME.weight [out, in]^T and, if
 * `biased`, + NAME.bias. The result is WIDE if `wide`, else COMPUTE. Includes the adapter if the
 * layer has one. */
TensorId builder_router_linear(Builder *builder, TensorId x, const char *name, int64_t out, bool biased, bool wide);
/* Adds adapters to y [slots, out], the result of x [slots, in] and the layer NAME [E, out, in] of
 * each slot's expert: NAME.lora_A.weight [E, rank, in] and NAME.lora_B.weight [E, out, rank],
 * without E if the experts share one adapter. */
TensorId builder_adapt_experts(Builder *builder, const char *name, TensorId x, TensorId y, const Dispatch *dispatch);
/* Returns whether a linear layer [out, in] over `rows` rows is computed in fp8 (fp8_choose). */
bool builder_is_fp8(const Builder *builder, int64_t rows, double expert_rows, int64_t out, int64_t in);
/* Returns the cosines and sines of the configuration's RoPE with base `theta`, with its scaling if
 * `scaled`. Layers with the same arguments share a table. */
TensorId builder_rope_table(Builder *builder, double theta, bool scaled);
/* Appends model.rope_query_scale to packed qkv, if it is above 0. */
TensorId builder_scale_queries(Builder *builder, TensorId qkv);
/* Appends attention over packed qkv (ops/heads.h) of the rank's heads, [R, heads_columns] to [R,
 * heads_out_columns]; with a cache in generation. */
TensorId builder_attention(Builder *builder, TensorId qkv, const AttentionScores *scores);
/* Appends multi-head latent attention (latent.c) by the fields of the layer, [R, D] to [R, D]. */
struct AttentionLayer;
TensorId builder_latent_attention(Builder *builder, TensorId x, const struct AttentionLayer *layer);
/* Appends a router over its logits [R, classes], with the configured load-balancing loss: per
 * layer, or, for a loss of the whole model, over the loads of all layers after the last router.
 * `bias` as in op_router. If a benchmark gives the routing, the experts come from its input, and the
 * gates remain those of the router's own choices. */
Routing builder_router(Builder *builder, TensorId logits, TensorId bias, bool skip);
/* Gated experts: PREFIX.gate_up_proj [E, 2F, D] and PREFIX.down_proj [E, D, F]. */
typedef struct ExpertsSpec {
    const char *prefix;
    bool biased;      /* also PREFIX.gate_up_proj_bias [E, 2F] and PREFIX.down_proj_bias [E, D] */
    bool interleaved; /* folders store matrices as [in, out], and columns of gate and up projection in turn */
} ExpertsSpec;
/* Appends experts, [R, D] to [R, D], over the rows that `routing` assigns to them. */
TensorId builder_experts(Builder *builder, const ExpertsSpec *spec, TensorId x, Routing routing);

/* -- Layers -------------------------------------------------------------------------------------------------------- */

/* Sets the layer of later parameters and operations; -1: outside layers. */
void builder_layer(Builder *builder, int layer);

/* -- Stages of a pipeline (stage.c) -------------------------------------------------------------------------------- */

bool builder_is_first_stage(const Builder *builder);
bool builder_is_last_stage(const Builder *builder);
bool builder_is_last_piece(const Builder *builder, int chunk);
int builder_chunks(const Builder *builder);
/* Starts a chunk of this stage, layers [first, end), whose nodes follow. Sets the stream to the
 * received tensor, unless the chunk is the model's first. */
typedef struct LayerRange { int first, end; } LayerRange;
LayerRange builder_begin_chunk(Builder *builder, int chunk, TensorId *stream);
/* Records the tensors that leave the chunk, unless it is the model's last. */
void builder_end_chunk(Builder *builder, int chunk, TensorId stream);
/* Lists the seeds of differentiation that later chunks send back, at most EDGE_TENSORS per chunk.
 * Returns their number. */
int stage_list_seeds(Graph *graph, ModelChunk *chunks, int count, Seed *seeds);
/* After differentiation, keeps the gradients that are sent to earlier chunks. */
void stage_keep_gradients(Graph *graph, ModelChunk *chunks, int count);

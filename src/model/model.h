/* Models: a family is a C function that appends its fused operations to a graph. Parameter names
 * are the tensor names of the family's Hugging Face folder, so export needs no mapping of names. A
 * `transposed` Parameter is stored in that folder as [in, out]; our arenas and checkpoints always
 * hold [out, in], so only import and export transpose. */
#pragma once

#include "config/family.h"
#include "graph/graph.h"
#include "ops/policy/policy.h"
#include "ops/preference/preference.h"

typedef enum ModelMode {
    MODEL_TRAIN,    /* loss and its gradients */
    MODEL_EVALUATE, /* loss only */
    MODEL_GENERATE, /* logits of the last row, with caches in the state arena */
    MODEL_SCORE,    /* logits of the last row of a whole sequence, without caches: verifies generation */
    MODEL_LOGITS,   /* logits of every row, to compare with other programs */
} ModelMode;

/* The tensors that a chunk of layers sends to the next one in a pipeline: the residual stream WIDE
 * [R, D], the state of ZAYA1's routers WIDE [R, router_width], and router loads for a loss of the
 * whole model WIDE [2, classes]. */
enum { EDGE_STREAM, EDGE_ROUTER_STATE, EDGE_LOADS, EDGE_TENSORS };
/* The edge tensors of a chunk and their gradients, all in the stash; TENSOR_NONE: not sent. `in`
 * and d_out are received, `out` and d_in sent. */
typedef struct ModelChunk { TensorId in[EDGE_TENSORS], out[EDGE_TENSORS], d_in[EDGE_TENSORS], d_out[EDGE_TENSORS]; } ModelChunk;

/* How a model is cut for a pipeline: piece p of pp * chunks has layers [begin[p], begin[p + 1]) and
 * is chunk p / pp of stage p % pp. */
typedef struct ModelCut {
    int chunks; /* per stage */
    bool splits_backward;
    int *begin;
} ModelCut;

/* Inputs of an image model, for S samples of I image and T text tokens. A sample's rows are its
 * image, then its text. An image of fewer than I tokens fills the last ones of its I rows. */
typedef struct ImageInputs {
    TensorId latents;           /* COMPUTE [S I, channels]: noised image tokens */
    TensorId target;            /* WIDE like latents: the loss compares the velocity with it */
    TensorId weights;           /* WIDE [S I]: weight of each token in the loss; 0 for padding */
    TensorId text;              /* COMPUTE [S T, text_width] */
    TensorId pooled;            /* COMPUTE [S, pooled_width] */
    TensorId time, guidance;    /* COMPUTE [S, IMAGE_TIME_WIDTH]: sinusoids; guidance is TENSOR_NONE without an embedding */
    TensorId places, positions; /* INT32 [S (I + T)]: row * IMAGE_GRID + column, 0 for text; and positions for attention */
} ImageInputs;
enum { IMAGE_TIME_WIDTH = 256, IMAGE_GRID = 128 };
/* Computes cosines, then sines, of a time from 0 to 1 or a guidance scale, times 1000, at
 * frequencies 10000^(-i / 128); in fp32, as models were trained. */
void image_time_features(double time, float features[IMAGE_TIME_WIDTH]);
static inline bool model_makes_images(const ModelConfig *config) { return family_of(config)->makes_images; }
/* Returns the tokens of the shortest sequence. */
static inline int64_t model_least_length(const ModelConfig *config) { return model_makes_images(config) ? config->text_tokens + 1 : 1; }

/* The unmerged adapters that generation can use at once; each sequence uses one of them or none.
 * Borrowed. */
typedef struct AdapterSet {
    int count;               /* 0: none */
    const LoraConfig *items; /* each has passed lora_check_unmerged */
} AdapterSet;
/* Returns the rank of the tables, which all adapters share: the largest rank, rounded up to a GPU's chunk.
 * Adapters of smaller rank are padded with zeros. */
int64_t adapter_set_rank(const AdapterSet *set);

/* The place of the adapters of a layer NAME.weight in tables of a program, tensors of the state arena:
 * A of adapter i has rows a_first + i * a_stride .. of `a`, [rank, in]; B has the `columns` rows from
 * b_first + i * columns on of `b`, [columns, rank]. These are rows `skipped` .. of the B that the rank
 * would have in training. */
typedef struct AdapterPlace {
    char *module; /* NAME; owned by the model */
    TensorId a, b;
    int64_t a_first, a_stride, b_first, columns, skipped;
} AdapterPlace;

/* Generation of several sequences at once: the most slots, and the rows of a cache that the slots
 * share. 0: one sequence, with a cache of config->context rows. */
typedef struct SlotSizes {
    int64_t slots, cache_rows;
    int64_t penalized; /* slots with a state of op_penalize, the first ones; 0: no penalties */
    int64_t top;       /* most_top of op_draw */
    AdapterSet adapters;
} SlotSizes;
/* Its inputs, INT32 [sequences]: the slot of each sequence, the cache row of its position 0, and the
 * index of the last of its `length` rows that is not padding. With adapters, `groups`, INT32
 * [adapters + 1]: rows groups[i] .. groups[i + 1] - 1 use adapter i, and those after them none. */
typedef struct SlotInputs { TensorId slots, first_rows, lasts, groups; } SlotInputs;

/* Inputs of the loss of multi-token prediction (ModelConfig.mtp), and its sum. Row r predicts the token
 * after the next one from its own last layer and the embedding of the next token. */
typedef struct PredictionTensors {
    TensorId tokens;  /* INT32 [rows]: the next token; any token if the text ends before it */
    TensorId targets; /* INT32 [rows]: the target of the next row; -1: none */
    TensorId scale;   /* WIDE [1]: Model.scale times ModelConfig.mtp_weight */
    TensorId loss;    /* WIDE [1]: multiplied by `scale` */
} PredictionTensors;

/* Inputs and results of a built model; TENSOR_NONE if the mode has none. */
typedef struct Model {
    Graph *graph;
    ModelMode mode;
    int64_t sequences, length;
    int64_t rows;                 /* this rank's rows of a microbatch, of all heads: sequences * length / cp */
    TensorId tokens, positions;   /* INT32 [rows] */
    SlotInputs slots;             /* of model_build_slots */
    TensorId targets;             /* INT32 [rows] */
    ImageInputs image;            /* for an image model, in place of tokens, positions and targets */
    TensorId velocity;            /* the result of an image model without a loss: WIDE [samples * image tokens, channels] */
    PreferenceInputs preference;  /* inputs of a loss over pairs of answers, with targets and scale */
    TensorId rewards;             /* sums of that loss, WIDE [REWARD_COUNT]; TENSOR_NONE: the loss is per token */
    PolicyTensors policy;         /* of a loss of reinforcement learning; without `sums`: another loss */
    PredictionTensors prediction; /* MODEL_TRAIN with ModelConfig.mtp */
    TensorId token_losses;        /* with this loss: -log p of all rows, WIDE [rows] */
    TensorId answers;             /* log-probabilities of answers, WIDE [preference_most_pairs(rows), 2]; on the stage with the head */
    TensorId scale;               /* WIDE [1]: 1 / targets in the step, or 1 / pairs (evaluation: 1) */
    TensorId share;               /* WIDE [1]: 1 / microbatches in the step, divided by the number of ranks that divide the rows of one */
    TensorId loss;                /* WIDE [2]: cross-entropy or loss over pairs, auxiliary loss */
    TensorId logits;              /* WIDE [1, vocabulary]; with MODEL_LOGITS and op_keep_logits: [rows, vocabulary] */
    TensorId limit, argmax;       /* MODEL_GENERATE: INT32 [1], and the largest logits of tokens below it (op_argmax) */
    TensorId choice, drawn;       /* of model_build_slots in place of argmax: as in op_draw, for each row */
    TensorId penalties, counts;   /* with SlotSizes.penalized: choice and state of op_penalize */
    TensorId *routing;            /* by layer, with ModelConfig.given_routing: INT32 [rows of the router, k], experts; else NULL */
    AdapterPlace *places;         /* with SlotSizes.adapters: of all layers with adapters */
    int place_count;
    ModelChunk *chunks; /* of a pipeline stage; NULL: the model is whole */
    int chunk_count;
} Model;

/* Builds the graph for one microbatch and, in MODEL_TRAIN, differentiates it; does not plan it. The
 * configuration must have passed config_check. MODEL_GENERATE and MODEL_SCORE: sequences is 1. */
Model model_build(
    const ModelConfig *config, Precision precision, ModelMode mode, int64_t sequences, int64_t length, RecomputePolicy recompute);
/* Builds what one rank of `mesh` has of the model (NULL: it is alone). The mesh must outlive the
 * model. If `lora` has a rank, the model has adapters for training (model/lora.c), and
 * everything else is frozen. In bf16 a layout places the parameters before the graph is planned,
 * and puts frozen matrices into the weight arena, without master weights. */
Model model_build_adapted(const Mesh *mesh, const ModelConfig *config, const LoraConfig *lora, Precision precision, ModelMode mode,
    int64_t sequences, int64_t length, RecomputePolicy recompute);
/* A run of a program of slots: `sequences` of `length` tokens each. If `draws` is set, it draws a token
 * after each row (op_draw); otherwise it only fills the caches. */
typedef struct SlotRun {
    int64_t sequences, length;
    bool draws;
} SlotRun;
/* Builds MODEL_GENERATE for sequences of the slots; `mesh` and `lora` as in model_build_adapted, or
 * NULL. */
Model model_build_slots(
    const Mesh *mesh, const ModelConfig *config, const LoraConfig *lora, Precision precision, const SlotSizes *slots, SlotRun run);
/* Builds a pipeline stage, the mesh's index on AXIS_PP: its layers; the embedding on the first
 * stage; the last norm, head and loss (or logits) on the last. `cut` NULL: the whole model. */
Model model_build_stage(const Mesh *mesh, const ModelCut *cut, const ModelConfig *config, const LoraConfig *lora, Precision precision,
    ModelMode mode, int64_t sequences, int64_t length, RecomputePolicy recompute);
/* ERROR_USAGE names targets of lora.targets or lora.modules_to_save that the model lacks
 * (model/lora.c). */
bool lora_check_targets(const ModelConfig *config, const LoraConfig *lora, Error *error);
/* ERROR_CHECKPOINT names targets of an adapter_config.json that the model lacks. */
bool lora_check_named(const ModelConfig *config, const LoraConfig *lora, Error *error);
/* Returns the same adapters on an unquantized base. */
static inline LoraConfig lora_unquantized(LoraConfig lora) {
    lora.base = LORA_BASE_SAME;
    return lora;
}
/* ERROR_USAGE names a parameter that generation cannot use unmerged: an adapter of experts or of a
 * router, or a table that is trained whole or in rows (model/lora.c). */
bool lora_check_unmerged(const ModelConfig *config, const LoraConfig *lora, Error *error);
/* Builds the smallest program of the whole model, to list its parameters; `lora` may be NULL. */
Model model_describe(const ModelConfig *config, const LoraConfig *lora, Precision precision);
void model_free(Model *model);

/* Extracts this rank's rows of a microbatch: from one number for each of sequences * length tokens
 * to an input of model->rows. */
void model_take_rows(const Model *model, int32_t *rows, const int32_t *whole);

/* Sets this rank's rows of PredictionTensors.tokens and targets from the tokens, targets and positions of
 * a whole microbatch. */
typedef struct TextRows { const int32_t *tokens, *targets, *positions; } TextRows;
void model_take_prediction(const Model *model, const TextRows *whole, int32_t *tokens, int32_t *targets);

/* Return the parameters that a gradient trains (routers' balancing biases are buffers and do not
 * count), and those used for one token. */
int64_t model_parameters(const Graph *graph);
int64_t model_trained_parameters(const Graph *graph); /* the same without frozen parameters */
int64_t model_active_parameters(const Graph *graph, const ModelConfig *config);

/* Totals of the whole model, for any number of ranks: parameters as above, and the FLOPs of
 * training on one microbatch, without recomputation. */
typedef struct ModelSize {
    int64_t parameters, trained, active;
    double flops;
} ModelSize;
ModelSize model_size(const ModelConfig *config, const LoraConfig *lora, Precision precision, int64_t sequences, int64_t length);

/* Writes initial weights: a pure function of seed, name and element of the whole parameter, with
 * the same bits on any device, in the parameter's state dtype (a frozen matrix: in the type of the
 * weights). `to` is device memory. */
void model_initialize_interval(
    const Graph *graph, const ModelConfig *config, uint64_t seed, const ParameterInterval *interval, Device *device, void *to);
/* Copies the master arena into the COMPUTE type (no-op if the arenas are the same). Both are device
 * memory. */
void model_cast_weights(const Graph *graph, Device *device, const void *master, void *weights);
/* Writes the initial weights of all parameters, frozen ones to `weights`, then calls
 * model_cast_weights. ERROR_DEVICE. */
bool model_initialize(
    const Graph *graph, const ModelConfig *config, uint64_t seed, Device *device, void *master, void *weights, Error *error);

/* -- Linear layers in fp8 (fp8_layers.c) ---------------------------------------------------------------------------- */

/* The decision whether a linear layer is computed in fp8, with the reason if it is not. */
typedef enum Fp8Choice {
    FP8_NOT_ASKED, /* there is no recipe */
    FP8_CHOSEN,
    FP8_BY_RULE,     /* head, router, adapter */
    FP8_UNEVEN,      /* rows or columns are not a multiple of 16, which matrix units need */
    FP8_UNEVEN_ROWS, /* in training: the rows of a microbatch, over which weight gradients sum, are not a multiple of 16 */
    FP8_TOO_SMALL,   /* fp8.min_size */
    FP8_TWO_PARTS,   /* tensor-parallel ranks divide its parts differently; one cast would need them together */
} Fp8Choice;

/* Returns the size that is compared with fp8.min_size, 1 / (1 / in + 1 / out). The time of a GEMM
 * over R rows grows with R in out; the time of casting x, y and their gradients grows with R (in +
 * out). An expert has so few rows that casting its weights, in out, counts as well: 1 / (1 / in + 1
 * / out + 1 / R). `expert_rows` 0: not a layer of experts, or its rows do not count. */
double fp8_layer_size(int64_t out, int64_t in, double expert_rows);
/* Chooses for a layer [out, in] over `rows` rows, of a kind that recipes apply to. Layers of
 * experts pass 16 rows. */
Fp8Choice fp8_choose(const Fp8Config *config, bool training, int64_t rows, double expert_rows, int64_t out, int64_t in);
/* Chooses for the LM head with its loss over `rows` rows. The ranks of the graph's mesh divide the
 * vocabulary. */
Fp8Choice fp8_choose_head(const Graph *graph, const ModelConfig *config, int64_t rows);

enum { FP8_LAYERS = 32, FP8_LAYER_NAME = 96 };
/* Layers of one kind. */
typedef struct Fp8Layer {
    char name[FP8_LAYER_NAME]; /* "mlp.down_proj", "q_proj, k_proj, v_proj": the parameters of one GEMM */
    int64_t rows, out, in, experts;
    double expert_rows; /* mean rows per expert in a microbatch; 0 without experts */
    int count;
    bool head;
    Fp8Choice choice;
    double flops; /* of all layers of this kind, forward */
} Fp8Layer;
/* Lists the kinds of layers of a graph of this configuration, in order of first use; returns their
 * number. The embedding has no GEMM and is not listed. */
int fp8_list_layers(const Graph *graph, const ModelConfig *config, Fp8Layer layers[FP8_LAYERS]);
/* Returns why a layer is not computed in fp8, for messages. NULL: it is. */
const char *fp8_reason(Fp8Choice choice);
/* Counts, for each choice, the linear layers of a program, including heads. Ranks whose programs
 * are stages of one model add up their counts. */
enum { FP8_CHOICES = FP8_TWO_PARTS + 1 };
typedef struct Fp8Use { int64_t layers[FP8_CHOICES], heads[FP8_CHOICES]; } Fp8Use;
Fp8Use fp8_count_use(const Graph *graph, const ModelConfig *config);
/* Warns if there is a recipe and no layer is computed in fp8 " in this phase", with the reasons,
 * and if fp8.head is set and the head is not in fp8. */
void fp8_warn_if_idle(const ModelConfig *config, const Fp8Use *use, const char *where);

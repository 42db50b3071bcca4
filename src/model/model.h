/* Models: a family is a C function that appends its fused operations to a graph. Parameter names are the tensor
 * names of the family's Hugging Face folder, so export needs no mapping of names. A Parameter that is `transposed`
 * lies in that folder as [in, out]; our arenas and checkpoints always hold [out, in], so only import and export
 * transpose it. */
#pragma once

#include "config/family.h"
#include "graph/graph.h"
#include "ops/preference/preference.h"

typedef enum ModelMode {
    MODEL_TRAIN,    /* loss and its gradients */
    MODEL_EVALUATE, /* loss only */
    MODEL_GENERATE, /* logits of the last row, with caches in the state arena */
    MODEL_SCORE,    /* logits of the last row of a whole sequence, without caches: the check on generation */
    MODEL_LOGITS,   /* logits of every row, to be compared with those of other programs */
} ModelMode;

/* What travels from a chunk of layers to the next one in a pipeline: the residual stream WIDE [R, D], the state of ZAYA1's
 * routers WIDE [R, router_width], and loads of routers for a loss of the whole model WIDE [2, classes]. */
enum { EDGE_STREAM, EDGE_ROUTER_STATE, EDGE_LOADS, EDGE_TENSORS };
/* The edges of a chunk, by tensor, with their gradients, all in the stash; TENSOR_NONE where nothing travels. `in` and d_out
 * are received, `out` and d_in sent. */
typedef struct ModelChunk { TensorId in[EDGE_TENSORS], out[EDGE_TENSORS], d_in[EDGE_TENSORS], d_out[EDGE_TENSORS]; } ModelChunk;

/* How a model is cut for a pipeline: piece p of pp * chunks has layers [begin[p], begin[p + 1]) and is chunk p / pp of stage
 * p % pp. */
typedef struct ModelCut {
    int chunks; /* of a stage */
    bool splits_backward;
    int *begin;
} ModelCut;

/* Inputs of a model of images, for S samples of I image and T text tokens; a sample's rows are its image, then its text. An
 * image of fewer tokens fills the last ones of its I. */
typedef struct ImageInputs {
    TensorId latents;           /* COMPUTE [S I, channels]: noised image tokens */
    TensorId target;            /* WIDE like latents: what the loss compares the velocity with */
    TensorId weights;           /* WIDE [S I]: of each token in the loss; 0 where there is none */
    TensorId text;              /* COMPUTE [S T, text_width] */
    TensorId pooled;            /* COMPUTE [S, pooled_width] */
    TensorId time, guidance;    /* COMPUTE [S, IMAGE_TIME_WIDTH]: sinusoids; guidance TENSOR_NONE without an embedding */
    TensorId places, positions; /* INT32 [S (I + T)]: row * IMAGE_GRID + column, text 0; and as attention takes them */
} ImageInputs;
enum { IMAGE_TIME_WIDTH = 256, IMAGE_GRID = 128 };
/* Cosines, then sines, of a time from 0 to 1 or a guidance scale, times 1000, at frequencies 10000^(-i / 128); in fp32, as models
 * were trained. */
void image_time_features(double time, float features[IMAGE_TIME_WIDTH]);
static inline bool model_makes_images(const ModelConfig *config) { return family_of(config)->makes_images; }
/* Tokens of the shortest sequence. */
static inline int64_t model_least_length(const ModelConfig *config) { return model_makes_images(config) ? config->text_tokens + 1 : 1; }

/* Inputs and results of a built model; TENSOR_NONE where the mode has none. */
typedef struct Model {
    Graph *graph;
    ModelMode mode;
    int64_t sequences, length;
    int64_t rows;                /* of a microbatch that this rank has, of all heads: sequences * length / cp */
    TensorId tokens, positions;  /* INT32 [rows] */
    TensorId targets;            /* INT32 [rows] */
    ImageInputs image;           /* of a model of images, in place of these three */
    TensorId velocity;           /* its result without a loss: WIDE [samples * image tokens, channels] */
    PreferenceInputs preference; /* of a loss over pairs of answers: what it takes, with targets and scale */
    TensorId rewards;            /* its sums, WIDE [REWARD_COUNT]; TENSOR_NONE: the loss is one of tokens */
    TensorId answers;            /* and log-probabilities of answers, WIDE [preference_most_pairs(rows), 2]; on the stage with the head */
    TensorId scale;              /* WIDE [1]: 1 / targets in the step, or 1 / pairs (evaluation: 1) */
    TensorId share;              /* WIDE [1]: 1 / microbatches in the step, divided by the ranks that share out the rows of one */
    TensorId loss;               /* WIDE [2]: cross-entropy or loss over pairs, auxiliary loss */
    TensorId logits;             /* WIDE [1, vocabulary]; MODEL_LOGITS, and with op_keep_logits: [rows, vocabulary] */
    TensorId limit, largest;     /* MODEL_GENERATE: INT32 [1], and the largest logits of tokens below it, as op_largest gives them */
    ModelChunk *chunks;          /* of a pipeline's stage; NULL: the model is whole */
    int chunk_count;
} Model;

/* Builds the graph for one microbatch; in MODEL_TRAIN also differentiates it. Not planned yet. The configuration
 * must have passed config_check. MODEL_GENERATE and MODEL_SCORE: sequences is 1. */
Model model_build(
    const ModelConfig *config, Precision precision, ModelMode mode, int64_t sequences, int64_t length, RecomputePolicy recompute);
/* What one rank of a mesh, which outlives it, has of the model (NULL: it is alone). With adapters for training
 * (model/lora.c) when `lora` has a rank: all but these is frozen. In bf16 a layout places it before it is planned, which
 * puts frozen matrices where they have no masters. */
Model model_build_adapted(const Mesh *mesh, const ModelConfig *config, const LoraConfig *lora, Precision precision, ModelMode mode,
    int64_t sequences, int64_t length, RecomputePolicy recompute);
/* The same of a stage of a pipeline, the mesh's on AXIS_PP: its layers; the embedding on the first one; the last norm, head
 * and loss (or logits) on the last. `cut` NULL: the whole model. */
Model model_build_stage(const Mesh *mesh, const ModelCut *cut, const ModelConfig *config, const LoraConfig *lora, Precision precision,
    ModelMode mode, int64_t sequences, int64_t length, RecomputePolicy recompute);
/* ERROR_USAGE naming what lora.targets or lora.modules_to_save names and the model lacks (model/lora.c). */
bool lora_check_targets(const ModelConfig *config, const LoraConfig *lora, Error *error);
/* The smallest program of the whole model, for what its parameters are; `lora` may be NULL. */
Model model_describe(const ModelConfig *config, const LoraConfig *lora, Precision precision);
void model_free(Model *model);

/* The rows of a microbatch that this rank has: from one number for each of sequences * length tokens to an input of
 * model->rows. */
void model_take_rows(const Model *model, int32_t *rows, const int32_t *whole);

/* Parameters that a gradient trains (routers' balancing biases are buffers and do not count), and those used for one
 * token. */
int64_t model_parameters(const Graph *graph);
int64_t model_trained_parameters(const Graph *graph); /* those of the first that are not frozen */
int64_t model_active_parameters(const Graph *graph, const ModelConfig *config);

/* What the whole model comes to, however many ranks share it: parameters as above, and the arithmetic of training on one
 * microbatch, without recomputation. */
typedef struct ModelSize {
    int64_t parameters, trained, active;
    double flops;
} ModelSize;
ModelSize model_size(const ModelConfig *config, const LoraConfig *lora, Precision precision, int64_t sequences, int64_t length);

/* Initial weights: a pure function of seed, name and element of the whole parameter, with the same bits on any device, in the
 * parameter's state dtype (a frozen matrix: in the type of the weights). `to` is memory of the device. */
void model_initialize_interval(
    const Graph *graph, const ModelConfig *config, uint64_t seed, const ParameterInterval *interval, Device *device, void *to);
/* All of them, into a MASTER arena of the device; none is frozen. */
void model_initialize(const Graph *graph, const ModelConfig *config, uint64_t seed, Device *device, void *master);
/* Copies the master arena into the COMPUTE type (no-op where the arenas are the same). Both are memory of the
 * device. */
void model_cast_weights(const Graph *graph, Device *device, const void *master, void *weights);
/* The initial weights of all parameters, frozen ones in `weights`, then model_cast_weights. ERROR_DEVICE. */
bool model_initialize_on(
    const Graph *graph, const ModelConfig *config, uint64_t seed, Device *device, void *master, void *weights, Error *error);

/* -- Linear layers in fp8 (fp8_layers.c) ---------------------------------------------------------------------------- */

/* Whether a linear layer is computed in fp8, or why not. */
typedef enum Fp8Choice {
    FP8_NOT_ASKED, /* there is no recipe */
    FP8_CHOSEN,
    FP8_BY_RULE,     /* head, router, adapter */
    FP8_UNEVEN,      /* matrix units take multiples of 16 rows and columns, ... */
    FP8_UNEVEN_ROWS, /* ... in training of rows of a microbatch too, which gradients of weights sum over */
    FP8_TOO_SMALL,   /* fp8.min_size */
    FP8_TWO_PARTS,   /* ranks of tensor parallelism share out parts of it differently, which one cast would need together */
} Fp8Choice;

/* What fp8.min_size is compared with, 1 / (1 / in + 1 / out): the time of a GEMM over R rows grows with R in out, that of
 * casting x, y and their gradients with R (in + out). An expert's rows are so few that casting its weights, in out, counts as
 * well: 1 / (1 / in + 1 / out + 1 / R). `expert_rows` 0: the layer is none of experts, or its rows do not count. */
double fp8_layer_size(int64_t out, int64_t in, double expert_rows);
/* Of a layer [out, in] over so many rows that is one of those that a recipe is for; one of experts takes 16. */
Fp8Choice fp8_choose(const Fp8Config *config, bool training, int64_t rows, double expert_rows, int64_t out, int64_t in);
/* The same of the LM head with its loss over so many rows, whose vocabulary the ranks of the graph's mesh share out. */
Fp8Choice fp8_choose_head(const Graph *graph, const ModelConfig *config, int64_t rows);

enum { FP8_LAYERS = 32, FP8_LAYER_NAME = 96 };
/* Layers of one kind. */
typedef struct Fp8Layer {
    char name[FP8_LAYER_NAME]; /* "mlp.down_proj", "q_proj, k_proj, v_proj": what one GEMM computes */
    int64_t rows, out, in, experts;
    double expert_rows; /* a microbatch's mean for one expert; 0 without experts */
    int count;
    bool head;
    Fp8Choice choice;
    double flops; /* of all, forward */
} Fp8Layer;
/* The kinds of layers of a graph of this configuration, in the order of their first ones; returns how many. The embedding,
 * which multiplies nothing, is none. */
int fp8_list_layers(const Graph *graph, const ModelConfig *config, Fp8Layer layers[FP8_LAYERS]);
/* Why a layer is not computed in fp8: "rows or columns that are no multiple of 16". NULL: it is. */
const char *fp8_reason(Fp8Choice choice);
/* How many linear layers of a program met each choice, the heads among them too. Ranks whose programs are stages of one model add
 * theirs up. */
enum { FP8_CHOICES = FP8_TWO_PARTS + 1 };
typedef struct Fp8Use { int64_t layers[FP8_CHOICES], heads[FP8_CHOICES]; } Fp8Use;
Fp8Use fp8_count_use(const Graph *graph, const ModelConfig *config);
/* Warns where there is a recipe and no layer is computed in fp8 " in this phase", with the reasons, and where fp8.head is asked for
 * and the head is not. */
void fp8_warn_if_idle(const ModelConfig *config, const Fp8Use *use, const char *where);

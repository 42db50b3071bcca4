/* From configuration to graph: inputs, the family's trunk, head and loss. Also operations on all
 * parameters: counting, initial values, casting. Owns nothing; the caller owns the graph that it
 * returns. Called by code that trains, evaluates, generates or sizes a model. */
#include "model/model.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/scope.h"
#include "model/builder.h"
#include "ops/collective/collective.h"
#include "ops/draw/draw.h"
#include "ops/activation/activation.h"
#include "ops/argmax/argmax.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"

/* -- Building ------------------------------------------------------------------------------------------------------ */

static TensorId integers(Graph *graph, int64_t count, const char *name) {
    return graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &count, name);
}

static TensorId real_input(Graph *graph, TypeClass type, int64_t rows, int64_t columns, const char *name) {
    return graph_tensor(graph, ARENA_INPUT, type, 2, (int64_t[]){rows, columns}, name);
}

static void declare_tokens(Model *model, bool loss) {
    model->tokens = integers(model->graph, model->rows, "tokens");
    model->positions = integers(model->graph, model->rows, "positions");
    if (loss) model->targets = integers(model->graph, model->rows, "targets");
}

static void declare_pairs(Model *model) {
    int64_t pairs = preference_most_pairs(model->rows), sums = REWARD_COUNT;
    model->preference = (PreferenceInputs){.targets = model->targets,
        .pairs = graph_tensor(model->graph, ARENA_INPUT, TYPE_INT32, 2, (int64_t[]){pairs, PAIR_BOUNDS}, "pairs"),
        .reference = real_input(model->graph, TYPE_WIDE, pairs, 2, "reference"),
        .scale = model->scale};
    model->rewards = graph_tensor(model->graph, ARENA_METRIC, TYPE_WIDE, 1, &sums, "rewards");
}

static void declare_policy(Model *model) {
    int64_t sums = POLICY_SUMS;
    model->policy = (PolicyTensors){.targets = model->targets,
        .sequences = graph_tensor(
            model->graph, ARENA_INPUT, TYPE_INT32, 2, (int64_t[]){policy_most_sequences(model->rows), SEQUENCE_BOUNDS}, "sequences"),
        .terms = real_input(model->graph, TYPE_WIDE, model->rows, POLICY_TERMS, "terms"),
        .loss = model->loss,
        .sums = graph_tensor(model->graph, ARENA_METRIC, TYPE_WIDE, 1, &sums, "policy_sums")};
}

/* Without a loss, declares only the input that makes the decoder append the layer and its parameters. */
static void declare_prediction(Model *model, bool loss) {
    int64_t one = 1;
    PredictionTensors *p = &model->prediction;
    p->tokens = integers(model->graph, model->rows, "next_tokens");
    if (!loss) return;
    p->targets = integers(model->graph, model->rows, "next_targets");
    p->scale = graph_tensor(model->graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "prediction_scale");
    p->loss = graph_tensor(model->graph, ARENA_METRIC, TYPE_WIDE, 1, &one, "prediction_loss");
}

static void declare_images(Model *model, const ModelConfig *c, bool loss) {
    Graph *graph = model->graph;
    int64_t samples = model->sequences, image = samples * (model->length - c->text_tokens);
    assert(model->length > c->text_tokens);
    model->image = (ImageInputs){.latents = real_input(graph, TYPE_COMPUTE, image, c->channels, "latents"),
        .text = real_input(graph, TYPE_COMPUTE, samples * c->text_tokens, c->text_width, "text"),
        .pooled = real_input(graph, TYPE_COMPUTE, samples, c->pooled_width, "pooled"),
        .time = real_input(graph, TYPE_COMPUTE, samples, IMAGE_TIME_WIDTH, "time"),
        .places = integers(graph, model->rows, "places"),
        .positions = integers(graph, model->rows, "positions")};
    if (c->guidance) model->image.guidance = real_input(graph, TYPE_COMPUTE, samples, IMAGE_TIME_WIDTH, "guidance");
    if (loss) model->image.target = real_input(graph, TYPE_WIDE, image, c->channels, "target");
    if (loss) model->image.weights = real_input(graph, TYPE_WIDE, image, 1, "weights");
}

/* The operands of a cross-entropy besides the head. */
typedef struct LossInputs { TensorId normed, targets, scale, loss; } LossInputs;

static void append_loss(Builder *b, const LossInputs *in, TensorId head) {
    const ModelConfig *config = b->config;
    TensorId x = builder_gather(b, in->normed);
    if (fp8_choose_head(b->graph, config, graph_rows(b->graph, x)) == FP8_CHOSEN)
        op_fp8_linear_cross_entropy(b->graph, x, head, in->targets, in->scale, in->loss, config->vocabulary, &config->fp8);
    else op_linear_cross_entropy(b->graph, x, head, in->targets, in->scale, in->loss, config->vocabulary);
}

/* Appends penalties of the tokens of one sequence a row; returns the logits to draw from. */
static TensorId append_penalties(const Builder *b, Model *model) {
    int64_t shape[] = {b->slot_sizes.penalized * PENALTY_STATE_ROWS, b->config->vocabulary};
    model->penalties = real_input(model->graph, TYPE_WIDE, model->rows, PENALTY_CHOICE_VALUES, "penalties");
    model->counts = graph_tensor(model->graph, ARENA_STATE, TYPE_WIDE, 2, shape, "token_counts");
    return op_penalize(model->graph, model->logits, model->tokens, model->slots.slots, model->penalties, model->counts);
}

/* Appends the head after the last norm, and the loss if there is one. */
static void append_head(Builder *b, Model *model, Trunk trunk, bool loss) {
    Graph *graph = model->graph;
    if (!trunk.normed) return; /* a stage before the last one */
    double divisor = b->config->logit_divisor;
    if (loss && b->config->policy.values) {
        model->policy.values = builder_value_head(b, trunk.normed);
        graph->tensors[model->policy.values].keep = true;
    }
    if (divisor != 1) trunk.normed = op_scale(graph, trunk.normed, 1 / divisor);
    if (loss && model->rewards) {
        model->answers = op_preference(graph, builder_gather(b, trunk.normed), trunk.head, &model->preference, &b->config->preference,
            model->loss, model->rewards, b->config->vocabulary);
    } else if (loss && model->policy.sums) {
        model->token_losses =
            op_policy(graph, builder_gather(b, trunk.normed), trunk.head, &model->policy, &b->config->policy, b->config->vocabulary);
    } else if (loss) {
        append_loss(b, &(LossInputs){trunk.normed, model->targets, model->scale, model->loss}, trunk.head);
        const PredictionTensors *p = &model->prediction;
        if (p->loss) append_loss(b, &(LossInputs){trunk.mtp_normed, p->targets, p->scale, p->loss}, trunk.head);
    }
    double cap = b->config->logit_cap;
    if (loss && cap > 0) op_cap_losses(graph, cap);
    TensorId rows = builder_token_rows(b, trunk.head);
    const TokenRuns runs = builder_token_runs(b);
    if (loss && rows) op_train_head_rows(graph, rows, &runs);
    if (loss || (model->slots.slots && !b->draws)) return;
    TensorId asked = b->mode == MODEL_LOGITS || model->slots.slots ? trunk.normed : op_last_row(graph, trunk.normed);
    TensorId logits = op_linear(graph, asked, trunk.head, TENSOR_NONE, true);
    if (cap > 0) logits = op_soft_cap(graph, logits, cap);
    model->logits = op_gather_columns(graph, logits, b->config->vocabulary, AXES_TENSOR);
    graph->tensors[model->logits].keep = !model->slots.slots;
    if (b->mode != MODEL_GENERATE) return;
    model->limit = integers(graph, 1, "limit");
    if (model->slots.slots) {
        model->choice = real_input(graph, TYPE_WIDE, model->rows, DRAW_CHOICE_VALUES, "choice");
        TensorId from = b->slot_sizes.penalized ? append_penalties(b, model) : model->logits;
        model->drawn = op_draw(graph, model->logits, from, model->choice, model->limit, b->slot_sizes.top);
        graph->tensors[model->drawn].keep = true;
        return;
    }
    model->argmax = op_argmax(graph, logits, model->limit, b->config->vocabulary, AXES_TENSOR);
    graph->tensors[model->argmax].keep = true;
}

/* Appends the loss or the output of a family that appended its own head. */
static void append_velocity(Model *model, TensorId velocity, bool loss) {
    if (loss) {
        op_squared_error(model->graph, velocity, model->image.target, model->image.weights, model->scale, model->loss);
        return;
    }
    model->velocity = velocity;
    model->graph->tensors[velocity].keep = true;
}

static void differentiate(Model *model, RecomputePolicy recompute) {
    SCOPED_FREE Seed *seeds = memory_allocate((EDGE_TENSORS * model->chunk_count + 1) * sizeof *seeds);
    int count = stage_list_seeds(model->graph, model->chunks, model->chunk_count, seeds);
    graph_differentiate(model->graph, recompute, seeds, count);
    stage_keep_gradients(model->graph, model->chunks, model->chunk_count);
}

/* The size and the purpose of the program of a microbatch. */
typedef struct ModelShape {
    ModelMode mode;
    int64_t sequences, length;
    RecomputePolicy recompute;
    SlotSizes slots; /* of generation; 0: none */
    bool draws;      /* with slots */
    bool describes;  /* has all parameters of a training */
} ModelShape;

static void declare_slots(Model *model, int adapters) {
    int64_t sequences = model->sequences;
    model->slots = (SlotInputs){.slots = integers(model->graph, sequences, "slots"),
        .first_rows = integers(model->graph, sequences, "first_rows"),
        .lasts = integers(model->graph, sequences, "lasts")};
    if (adapters) model->slots.groups = integers(model->graph, adapters + 1, "groups");
}

static Model build_model(const Mesh *mesh, const ModelCut *cut, const ModelConfig *config, const LoraConfig *lora, Precision precision,
    const ModelShape *shape) {
    const ModelMode mode = shape->mode;
    const int64_t sequences = shape->sequences, length = shape->length;
    Graph *graph = graph_create(precision, mode == MODEL_TRAIN);
    graph->frozen = lora && lora->rank;
    if (mesh) graph->mesh = mesh;
    /* In generation the ranks of AXIS_CP divide the caches, and every rank computes all new
     * rows. */
    int64_t rows = sequences * length / (mode == MODEL_GENERATE ? 1 : graph->mesh->size[AXIS_CP]), one = 1, two = 2;
    Model model = {.graph = graph, .mode = mode, .sequences = sequences, .length = length, .rows = rows};
    bool loss = mode == MODEL_TRAIN || mode == MODEL_EVALUATE;
    assert(cut || graph->mesh->size[AXIS_PP] == 1);
    if (cut) {
        graph->chunks = model.chunk_count = cut->chunks;
        graph->splits_backward = cut->splits_backward;
        model.chunks = memory_allocate((size_t)cut->chunks * sizeof *model.chunks);
    }
    bool images = model_makes_images(config);
    if (images) declare_images(&model, config, loss);
    else declare_tokens(&model, loss);
    if (shape->slots.slots) declare_slots(&model, shape->slots.adapters.count);
    if (loss) {
        model.scale = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "loss_scale");
        model.share = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "microbatch_share");
        model.loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &two, "loss");
    }
    if (loss && config->preference.loss != PREFERENCE_NONE) declare_pairs(&model);
    if (loss && config->policy.loss) declare_policy(&model);
    if (config->mtp && (mode == MODEL_TRAIN || shape->describes)) declare_prediction(&model, loss);
    if (config->given_routing && mode == MODEL_TRAIN)
        model.routing = memory_allocate((size_t)(config->layers + config->mtp) * sizeof *model.routing);
    Builder builder = {.graph = graph,
        .config = config,
        .lora = lora,
        .mode = mode,
        .length = length,
        .tokens = model.tokens,
        .positions = images ? model.image.positions : model.positions,
        .next_tokens = model.prediction.tokens,
        .image = model.image,
        .slot_sizes = shape->slots,
        .draws = shape->draws,
        .slots = model.slots,
        .share = model.share,
        .loss = model.loss,
        .cut = cut,
        .chunks = model.chunks,
        .routing = model.routing,
        .layer_names = family_of(config)->layers,
        .layer = -1};
    Trunk trunk = family_of(config)->build(&builder);
    builder_layer(&builder, -1);
    if (images) append_velocity(&model, trunk.velocity, loss);
    else append_head(&builder, &model, trunk, loss);
    model.places = builder.places;
    model.place_count = builder.place_count;
    if (mode == MODEL_TRAIN) differentiate(&model, shape->recompute);
    return model;
}

Model model_build_stage(const Mesh *mesh, const ModelCut *cut, const ModelConfig *config, const LoraConfig *lora, Precision precision,
    ModelMode mode, int64_t sequences, int64_t length, RecomputePolicy recompute) {
    return build_model(
        mesh, cut, config, lora, precision, &(ModelShape){.mode = mode, .sequences = sequences, .length = length, .recompute = recompute});
}

Model model_build_slots(
    const Mesh *mesh, const ModelConfig *config, const LoraConfig *lora, Precision precision, const SlotSizes *slots, SlotRun run) {
    ModelShape shape = {.mode = MODEL_GENERATE, .sequences = run.sequences, .length = run.length, .slots = *slots, .draws = run.draws};
    return build_model(mesh, NULL, config, lora, precision, &shape);
}

Model model_build_adapted(const Mesh *mesh, const ModelConfig *config, const LoraConfig *lora, Precision precision, ModelMode mode,
    int64_t sequences, int64_t length, RecomputePolicy recompute) {
    return model_build_stage(mesh, NULL, config, lora, precision, mode, sequences, length, recompute);
}

Model model_build(
    const ModelConfig *config, Precision precision, ModelMode mode, int64_t sequences, int64_t length, RecomputePolicy recompute) {
    return model_build_adapted(NULL, config, NULL, precision, mode, sequences, length, recompute);
}

Model model_describe(const ModelConfig *config, const LoraConfig *lora, Precision precision) {
    ModelShape shape = {.mode = MODEL_SCORE, .sequences = 1, .length = model_least_length(config), .describes = true};
    return build_model(NULL, NULL, config, lora, precision, &shape);
}

void model_free(Model *model) {
    for (int i = 0; i < model->place_count; i++) free(model->places[i].module);
    free(model->places);
    graph_free(model->graph);
    free(model->chunks);
    free(model->routing);
    *model = (Model){0};
}

void model_take_rows(const Model *model, int32_t *rows, const int32_t *whole) {
    const Mesh *mesh = model->graph->mesh;
    int64_t chunk = model->length / (2 * mesh->size[AXIS_CP]);
    if (mesh->size[AXIS_CP] == 1) {
        memcpy(rows, whole, model->rows * sizeof *rows);
        return;
    }
    for (int64_t s = 0; s < model->sequences; s++, whole += model->length)
        for (int which = 0; which < 2; which++, rows += chunk) memcpy(rows, whole + mesh_chunk(mesh, which) * chunk, chunk * sizeof *rows);
}

/* Row r + 1 continues row r if its position is one more: both are then in the same text. */
void model_take_prediction(const Model *model, const TextRows *whole, int32_t *tokens, int32_t *targets) {
    int64_t rows = model->sequences * model->length;
    SCOPED_FREE int32_t *next_tokens = memory_allocate(2 * (size_t)rows * sizeof *next_tokens);
    int32_t *next_targets = next_tokens + rows;
    for (int64_t r = 0; r < rows; r++) {
        bool continues = (r + 1) % model->length && whole->positions[r + 1] == whole->positions[r] + 1;
        next_tokens[r] = whole->tokens[r + continues];
        next_targets[r] = continues ? whole->targets[r + 1] : -1;
    }
    model_take_rows(model, tokens, next_tokens);
    model_take_rows(model, targets, next_targets);
}

/* -- All parameters ------------------------------------------------------------------------------------------------ */

static int64_t count_parameters(const Graph *graph, bool frozen_too) {
    int64_t count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->kind != PARAMETER_BALANCE_BIAS && (frozen_too || !p->frozen)) count += p->count;
    }
    return count;
}

int64_t model_parameters(const Graph *graph) { return count_parameters(graph, true); }
int64_t model_trained_parameters(const Graph *graph) { return count_parameters(graph, false); }

int64_t model_active_parameters(const Graph *graph, const ModelConfig *config) {
    int64_t count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        bool experts = p->rank == 3 && p->kind == PARAMETER_MATRIX;
        if (p->kind != PARAMETER_BALANCE_BIAS) count += experts ? p->count / config->experts * config->experts_per_token : p->count;
    }
    return count;
}

ModelSize model_size(const ModelConfig *config, const LoraConfig *lora, Precision precision, int64_t sequences, int64_t length) {
    Model model = model_build_adapted(NULL, config, lora, precision, MODEL_TRAIN, sequences, length, RECOMPUTE_NONE);
    ModelSize size = {.parameters = model_parameters(model.graph),
        .trained = model_trained_parameters(model.graph),
        .active = model_active_parameters(model.graph, config),
        .flops = graph_flops(model.graph)};
    model_free(&model);
    return size;
}

void model_initialize_interval(
    const Graph *graph, const ModelConfig *config, uint64_t seed, const ParameterInterval *interval, Device *device, void *to) {
    const Parameter *p = &graph->parameters[interval->parameter];
    Normals normals = {.seed = seed, .stream = hash_bytes(p->name, strlen(p->name)), .mean = p->init_mean, .deviation = p->init_std};
    bool bf16 = graph_state_type(graph, p) == TYPE_COMPUTE || (graph_is_base(graph, p) && precision_is_bf16(graph->precision));
    int64_t element = bf16 ? (int64_t)sizeof(uint16_t) : p->element_bytes, first = interval->first, count = interval->count;
    for (ParameterInterval rest = *interval; rest.count > 0;) {
        char *at = (char *)to + (rest.first - first) * element;
        Slice slice = graph_take_slice(graph, &rest);
        device_normals(device, at, (int)element, &slice, &normals);
    }
    /* The skip class starts out of reach and stays there (reference: the released ZAYA1
     * weights). */
    if (p->kind == PARAMETER_BALANCE_BIAS && family_of(config)->skips_experts && count && first + count == p->count) {
        float single = -1;
        double twice = -1;
        device_upload(device, (char *)to + (count - 1) * element, graph->precision == PRECISION_FP64 ? (void *)&twice : &single, element);
    }
}

bool model_initialize(
    const Graph *graph, const ModelConfig *config, uint64_t seed, Device *device, void *master, void *weights, Error *error) {
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->quantization) continue; /* model/quantized.h */
        void *to = graph_is_base(graph, p) ? (char *)weights + graph_get(graph, p->tensor)->offset : parameter_in(p, master);
        model_initialize_interval(graph, config, seed, &(ParameterInterval){.parameter = i, .count = p->count}, device, to);
    }
    model_cast_weights(graph, device, master, weights);
    return device_ok(device, error);
}

void model_cast_weights(const Graph *graph, Device *device, const void *master, void *weights) {
    if (graph->precision == PRECISION_BF16) device_cast_to_bf16(device, weights, master, graph->trained_bytes / (int64_t)sizeof(float));
}

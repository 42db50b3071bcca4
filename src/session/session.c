/* Plans a session and its memory budget, and starts it. Owns the fields of Session. Called by the
 * training loop and `train plan=true`. */
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "config/in_backward.h"
#include "graph/op.h"
#include "model/quantized.h"
#include "ops/loss/loss.h"
#include "run/corpus.h"
#include "session/fit.h"
#include "session/rehearsal.h"
#include "session/session_internal.h"

/* -- Plan ---------------------------------------------------------------------------------------------------------- */

static int64_t choose_bucket_bytes(const Config *config, const Device *device) {
    double given = config->layout.bucket_mb;
    return given > 0 ? (int64_t)(given * (1 << 20)) : device_info(device)->collective_bytes;
}

/* Returns the maximum of microbatches per step on this rank. */
static int64_t count_step_microbatches(const Session *session) {
    const Config *config = session->config;
    return divide_up(config->batch.tokens / (config->batch.sequences * config->data.length), mesh_size(session->mesh, AXES_DATA));
}

int64_t session_step_rows(const Session *session) {
    return count_step_microbatches(session) * session->config->batch.sequences * session->config->data.length;
}

/* Chooses how FP8 weights are held. With one microbatch per step, weights are quantized once by
 * rows and once by columns in any case. For sharded weights, kept quantized values would use up the
 * memory that sharding saves; they are gathered if the values by columns equal those by rows. */
static Fp8Weights fp8_weights(const Session *session) {
    const Fp8Config *fp8 = &session->config->model.fp8;
    bool sharded =
        layout_empty(session->mesh, &session->config->optimizer, &session->config->layout, session->config->precision).stage >= 3;
    bool again = count_step_microbatches(session) > 1 || session->config->batch.ramp_steps > 0;
    if (sharded) return fp8->recipe == FP8_TENSOR ? FP8_WEIGHTS_GATHERED : FP8_WEIGHTS_CAST;
    return fp8->keep_weights && again ? FP8_WEIGHTS_KEPT : FP8_WEIGHTS_CAST;
}

/* `base`: without adapters and without a value head. */
static Model build_session_model(const Session *session, const Mesh *mesh, ModelMode mode, int64_t sequences, int64_t length, bool base) {
    const Config *config = session->config;
    ModelConfig model = config->model;
    model.fp8.weights = fp8_weights(session);
    model.fp8.uneven_rows = config_has_uneven_rows(config);
    LoraConfig lora = config->lora;
    if (model.policy.loss) {
        model.logit_divisor *= config->rl.temperature;
        if (config->rl.kl == RL_KL_REWARD) model.policy.kl = 0;
        if (base) lora.alpha = 0, model.policy.values = false;
    }
    Model built = model_build_stage(mesh, session->pipeline ? &session->pipeline->cut : NULL, &model, &lora, config->precision, mode,
        sequences, length, mode == MODEL_TRAIN ? (RecomputePolicy)config_recompute(config) : RECOMPUTE_NONE);
    if (mode == MODEL_TRAIN && config->dump && config->dump[0]) built.logits = op_keep_logits(built.graph);
    return built;
}

/* Plans a program in the layout. The arenas of weights are training's, which have room for the slots
 * of every program. */
static bool plan_program(Session *session, Program *program, Error *error) {
    int64_t *most = session->training.plan.bytes;
    program->layout = session->layout;
    program->pipeline = session->pipeline;
    if (program != &session->training) layout_place(session->layout, program->model.graph);
    if (!program_plan(program, session->device, error)) return false;
    most[ARENA_WEIGHT] = int_max(most[ARENA_WEIGHT], program->plan.bytes[ARENA_WEIGHT]);
    most[ARENA_QUANTIZED] = int_max(most[ARENA_QUANTIZED], program->plan.bytes[ARENA_QUANTIZED]);
    return true;
}

/* Returns the rows of the program that writes text samples or makes pictures; 0: a run with these
 * settings writes none. */
static int64_t sample_rows(const Config *config) {
    enum { SPECIAL_TOKENS = 8 }; /* for the tokens that a tokenizer adds to a prompt; a prompt has no more tokens than bytes */
    const EvalConfig *eval = &config->eval;
    if (model_makes_images(&config->model)) return eval->pictures && config->data.valid[0] && !config->profile ? config->data.length : 0;
    if (!eval->sample_tokens || config->profile || config->model.policy.loss || !strcmp(config->data.tokenizer, NO_TOKENIZER)) return 0;
    if (!config->data.valid[0] && config->data.valid_fraction <= 0 && config->data.valid_documents <= 0) return 0;
    if (config->model.context < 2) return 0; /* no room for a token after a prompt */
    int64_t prompt = eval->prompt[0] ? (int64_t)strlen(eval->prompt) + SPECIAL_TOKENS : SAMPLE_PROMPT_TOKENS;
    return int_min(prompt + eval->sample_tokens, config->model.context);
}

bool session_check_fp8(const Config *config, const Device *device, Error *error) {
    const DeviceInfo *info = device_info(device);
    if (config->model.fp8.recipe == FP8_NONE) return true;
    if (!(info->gemm_inputs >> GEMM_E4M3 & 1))
        return error_set(error, ERROR_USAGE, "fp8.recipe: %s (%s) has no fp8 GEMMs: remove fp8.recipe", info->name, info->target);
    return config->model.fp8.recipe != FP8_MXFP8 || info->fp8_mx ||
           error_set(error, ERROR_USAGE,
               "fp8.recipe=mxfp8: %s (%s) has no GEMMs with one scale per 32 elements; only gfx950 and the CPU have them: use another "
               "recipe",
               info->name, info->target);
}

int64_t session_rollout_slots(const Session *session, int64_t judged) {
    const RlConfig *rl = &session->config->rl;
    int64_t drawn = divide_up(rl->prompts, mesh_size(session->mesh, AXES_DATA)) * rl->samples;
    return int_min(int_min(rl->slots, int_max(drawn, judged)), ENGINE_MOST_SLOTS);
}

/* Plans the engine of reinforcement learning. */
static bool plan_generation(Session *session, Error *error) {
    const Config *config = session->config;
    const EngineOwner owner = {&session->training, session->layout, &config->lora};
    if (!config->model.policy.loss || config->profile) return true;
    int64_t slots = session_rollout_slots(session, 0);
    const EngineSizes sizes = {.slots = slots, .cache_rows = slots * config->data.length, .limit = config->model.vocabulary};
    const EnginePlace place = {session->mesh, (Precision)config->precision, session->device};
    return engine_plan_beside(&config->model, &owner, place, sizes, &session->generation, error);
}

/* Portions are large because updates within the backward pass come in bursts, whose state must be
 * copied during the compute before the burst. A block of 100 million parameters with fp32 moments
 * and masters has 1.2 GB. */
static const int64_t PORTION_BYTES = 512 << 20;

/* On a CPU offload has no effect, because its device memory is host memory (config/needs.c). */
static bool has_host_link(const Session *session) { return !device_info(session->device)->host_memory; }

bool session_plan_rank(Session *session, const Config *config, Device *device, int rank, int size, Error *error) {
    *session = (Session){.config = config, .device = device};
    session->mesh = memory_allocate(sizeof *session->mesh);
    session->whole = memory_allocate(sizeof *session->whole);
    if (!layout_mesh(session->mesh, config, rank, size, error)) return false;
    if (!in_backward_check(config, mesh_size(session->mesh, AXES_DATA), error)) return false;
    *session->whole = mesh_without(session->mesh, AXIS_CP);
    if (!lora_check_targets(&config->model, &config->lora, error)) return false;
    if (!session_check_fp8(config, device, error)) return false;
    int64_t sequences = config->batch.sequences, length = config->data.length, sampled = sample_rows(config);
    bool scores = config->model.policy.values;
    session->pipeline = pipeline_plan_create(session->mesh, config, count_step_microbatches(session));
    session->training.model = build_session_model(session, session->mesh, MODEL_TRAIN, sequences, length, false);
    session->layout =
        layout_create(session->training.model.graph, &config->optimizer, &config->layout, choose_bucket_bytes(config, device));
    session->training.hosts_saved = config_offloads_saved(config) && has_host_link(session);
    if (config_offloads_state(config) && has_host_link(session))
        layout_offload(session->layout, (Precision)config->precision, PORTION_BYTES);
    session->evaluation.model = build_session_model(session, session->mesh, MODEL_EVALUATE, sequences, length, true);
    if (sampled) session->sampling.model = build_session_model(session, session->whole, MODEL_SCORE, 1, sampled, false);
    if (scores) session->scoring.model = build_session_model(session, session->mesh, MODEL_EVALUATE, sequences, length, false);
    return plan_program(session, &session->training, error) && plan_program(session, &session->evaluation, error) &&
           (!sampled || plan_program(session, &session->sampling, error)) && (!scores || plan_program(session, &session->scoring, error)) &&
           plan_generation(session, error);
}

bool session_plan(Session *session, const Config *config, Device *device, Error *error) {
    return session_plan_rank(session, config, device, 0, 1, error);
}

ModelSize session_size(const Session *session) {
    const Config *config = session->config;
    const Graph *graph = session->training.model.graph;
    if (mesh_size(session->mesh, MESH(AXIS_PP) | AXES_ROWS | AXES_EXPERTS) > 1)
        return model_size(&config->model, &config->lora, config->precision, config->batch.sequences, config->data.length);
    return (ModelSize){.parameters = model_parameters(graph),
        .trained = model_trained_parameters(graph),
        .active = model_active_parameters(graph, &config->model),
        .flops = session->training.plan.flops};
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Adds up the small arenas. The state arena has quantized weights in the training program, and
 * their amax in other programs. */
static int64_t small_arenas(const Plan *plan) { return plan->bytes[ARENA_INPUT] + plan->bytes[ARENA_CONSTANT] + plan->bytes[ARENA_METRIC]; }

/* Returns the activations of a program that uses the training activations if they are large
 * enough. */
static int64_t own_activations(const Session *session, const Plan *plan) {
    return plan->bytes[ARENA_STASH] +
           (plan->bytes[ARENA_ACTIVATION] > session->training.plan.bytes[ARENA_ACTIVATION] ? plan->bytes[ARENA_ACTIVATION] : 0);
}

/* Returns the number of NCCL or RCCL communicators that a step of this rank uses. */
static int count_communicators(const Session *session) {
    const Mesh *mesh = session->mesh;
    bool outer[AXES_ALL + 1] = {false}, inner[AXES_ALL + 1] = {false};
    int count = mesh->size[AXIS_PP] > 1; /* the ends of a pipeline */
    outer[mesh_significant(mesh, MESH(AXIS_PP))] = true;
    for (int b = 0; b < session->layout->bucket_count; b++) {
        MeshAxes axes = session->layout->buckets[b].axes;
        outer[mesh_significant(mesh, axes & ~MESH(AXIS_REPLICA))] = outer[mesh_significant(mesh, axes & MESH(AXIS_REPLICA))] = true;
    }
    for (int i = 0; i < LAYOUT_PROGRAM_GROUPS; i++) inner[mesh_significant(mesh, layout_program_groups[i])] = true;
    for (MeshAxes axes = 1; axes <= AXES_ALL; axes++) count += outer[axes] + inner[axes];
    return count;
}

/* Returns the margin for the device memory of NCCL or RCCL. */
static int64_t collective_buffers(const Session *session) {
    const DeviceInfo *info = device_info(session->device);
    int count = count_communicators(session);
    return count ? info->first_communicator + (count - 1) * info->further_communicator : 0;
}

/* Returns the most memory that comparing the algorithms of a GEMM takes in the first runs of a program. A GEMM's matrices are
 * inputs, outputs or scratch of its node. The trial has a second A and B, and two more C (backend/gpu/vendor_gemm.c). */
static int64_t largest_gemm_trial(const Program *program) {
    const Graph *graph = program->model.graph;
    int64_t most = 0;
    for (int i = 0; graph && i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        int64_t read = 0, written = op_workspace(&program->backend, graph, node);
        for (int k = 0; k < node->inputs; k++) read += node->in[k] ? graph_bytes(graph, node->in[k]) : 0;
        for (int k = 0; k < node->outputs; k++) written += node->out[k] ? graph_bytes(graph, node->out[k]) : 0;
        most = int_max(most, read + 2 * written);
    }
    return most;
}

/* Generation multiplies the same weights by fewer rows, so its trials are smaller. Matrices of Muon are in the optimizer's scratch. */
static int64_t count_gemm_trials(const Session *session, int64_t optimizer_scratch) {
    const Program *programs[] = {&session->training, &session->evaluation, &session->sampling, &session->scoring};
    int64_t most = 3 * optimizer_scratch;
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) most = int_max(most, largest_gemm_trial(programs[i]));
    return int_min(most, device_info(session->device)->gemm_trial);
}

Budget session_budget(const Session *session) {
    const Program *training = &session->training;
    const Graph *graph = training->model.graph;
    const Plan *plan = &training->plan, *evaluation = &session->evaluation.plan, *sampling = &session->sampling.plan,
               *scoring = &session->scoring.plan;
    const OptimizerConfig *optimizer = &session->config->optimizer;
    const OptimizerShard *shard = &session->layout->shard;
    int64_t rows = session_step_rows(session), step_tokens = rows * 3 * (int64_t)sizeof(int32_t);
    if (training->model.rewards)
        step_tokens += rows / training->model.rows * preference_most_pairs(training->model.rows) *
                       (int64_t)(PAIR_BOUNDS * sizeof(int32_t) + 2 * sizeof(double));
    int64_t history = amax_history_bytes(graph, session->config->model.fp8.amax_history_len);
    int64_t state_in_host = optimizer_host_bytes(graph, optimizer, shard);
    int64_t states = evaluation->bytes[ARENA_STATE] + sampling->bytes[ARENA_STATE] + scoring->bytes[ARENA_STATE];
    Budget budget = {
        .host = device_info(session->device)->host_memory,
        .weights = plan->bytes[ARENA_WEIGHT] + plan->bytes[ARENA_QUANTIZED],
        .quantized = plan->bytes[ARENA_STATE],
        .master = plan->bytes[ARENA_MASTER],
        .gradients = plan->bytes[ARENA_GRADIENT] + exchange_bytes(session->layout, training->schedule, graph),
        .optimizer = optimizer_state_bytes(graph, optimizer, shard) - state_in_host,
        .activations = plan->bytes[ARENA_ACTIVATION] + plan->bytes[ARENA_STASH],
        .scratch = optimizer_workspace_bytes(graph, optimizer, shard, session->device),
        .evaluation = own_activations(session, evaluation) + own_activations(session, sampling) + own_activations(session, scoring),
        .other = small_arenas(plan) + small_arenas(evaluation) + small_arenas(sampling) + small_arenas(scoring) + states + step_tokens,
        .collectives = collective_buffers(session),
        .generation = session->generation.least,
        .generation_most = session->generation.most,
        .hosted = state_in_host + plan->bytes[ARENA_HOST_MASTER],
        .saved = plan->bytes[ARENA_SAVED],
        .updated = session->layout->in_backward,
        .activation_floor = plan->activation_floor,
    };
    budget.trials = count_gemm_trials(session, budget.scratch);
    if (budget.host) budget.other += history;
    budget.copy = session_copy_bytes(session->config, session->layout, shard->bytes, budget.optimizer + state_in_host, history);
    budget.total = budget.weights + budget.quantized + budget.master + budget.gradients + budget.optimizer + budget.activations +
                   budget.scratch + budget.evaluation + budget.other + budget.collectives + budget.trials + budget.generation +
                   (budget.host ? budget.copy : 0);
    return budget;
}

static void print_budget_row(FILE *file, const char *name, int64_t bytes, int64_t total, const char *note) {
    char text[32];
    log_format_bytes((double)bytes, text);
    fprintf(file, "  %-20s %12s %5.1f%%  %s\n", name, text, total ? 100.0 * bytes / total : 0, note);
}

/* Prints "memory of the device: 43.10 GiB of 79.20 GiB" and a bar. */
static void print_sum(const Budget *budget, int64_t available, FILE *file) {
    enum { CELLS = 50 };
    char total[32], have[32], bar[CELLS + 1] = "";
    log_format_bytes((double)budget->total, total);
    log_format_bytes((double)available, have);
    fprintf(file, "memory of %s: %s", budget->host ? "this machine" : "the device", total);
    if (available <= 0) {
        fputc('\n', file);
        return;
    }
    double part = (double)budget->total / (double)available;
    for (int i = 0; i < CELLS; i++) bar[i] = i < part * CELLS ? '#' : '.';
    fprintf(file, " of %s: %s\n  [%s] %.0f%%\n", have, part <= 1 ? "fits" : "does not fit", bar, 100 * part);
}

void budget_print(const Budget *budget, int64_t available, FILE *file) {
    char floor[96], text[32];
    log_format_bytes((double)budget->activation_floor, text);
    snprintf(floor, sizeof floor, "one microbatch; at least %s", text);
    print_sum(budget, available, file);
    print_budget_row(file, "weights", budget->weights, budget->total, budget->weights ? "in the compute type" : "uses the master weights");
    if (budget->quantized) print_budget_row(file, "weights in fp8", budget->quantized, budget->total, "amax, and stored values");
    print_budget_row(file, "master weights", budget->master, budget->total, "");
    print_budget_row(file, "gradients", budget->gradients, budget->total, budget->updated ? "until the weights are updated" : "");
    print_budget_row(file, "optimizer state", budget->optimizer, budget->total, "");
    print_budget_row(file, "activations", budget->activations, budget->total, floor);
    print_budget_row(file, "optimizer scratch", budget->scratch, budget->total, "");
    print_budget_row(file, "evaluation", budget->evaluation, budget->total, "beyond the activations");
    log_format_bytes((double)budget->generation_most, text);
    snprintf(floor, sizeof floor, "caches of one sequence; %s with caches of all rl.slots", text);
    if (budget->generation) print_budget_row(file, "generation", budget->generation, budget->total, floor);
    print_budget_row(file, "inputs and constants", budget->other, budget->total, "");
    if (budget->collectives)
        print_budget_row(file, "collectives", budget->collectives, budget->total, "a margin for NCCL's or RCCL's buffers");
    if (budget->trials) print_budget_row(file, "GEMM trials", budget->trials, budget->total, "in the first step, for algorithms");
    log_format_bytes((double)budget->hosted, text);
    if (budget->hosted) fprintf(file, "memory of the host: %s pinned for the optimizer state of offload\n", text);
    log_format_bytes((double)budget->saved, text);
    if (budget->saved) fprintf(file, "memory of the host: %s pinned for the activations of offload\n", text);
    log_format_bytes((double)budget->copy, text);
    if (budget->host) print_budget_row(file, "checkpoint copy", budget->copy, budget->total, "none with checkpoint.async=false");
    else if (budget->copy) fprintf(file, "memory of the host: %s for checkpoints; none with checkpoint.async=false\n", text);
}

bool session_check_memory(const Session *session, int64_t available, Error *error) {
    const Layout *layout = session->layout;
    Budget budget = session_budget(session);
    if (available < 0 || budget.total <= available) return true;
    char needed[32], have[32];
    Fit fits[MOST_FITS];
    int rank = mesh_rank(session->mesh), first = 0;
    int count = fit_search(session->config, session->device, rank, layout_all_ranks(layout), available, fits);
    log_format_bytes((double)budget.total, needed);
    log_format_bytes((double)available, have);
    const char *whose = budget.host ? " beyond the process's own memory" : "";
    if (rank == 0) budget_print(&budget, available, stderr);
    if (rank == 0) fit_print(fits, count, stderr);
    while (first < count && !fits[first].fits) first++;
    if (first < count)
        return error_set(error, ERROR_MEMORY, "the plan needs %s, but only %s are available%s: it would fit with %s", needed, have, whose,
            fits[first].change);
    return error_set(error, ERROR_MEMORY,
        "the plan needs %s, but only %s are available%s: recomputation, smaller microbatches and up to 1024 ranks do not suffice; use a "
        "machine with more memory, a smaller model, or a shorter data.length",
        needed, have, whose);
}

bool session_check_host_memory(const Session *session, int local_ranks, Error *error) {
    Budget budget = session_budget(session);
    static const char *const names[] = {"", "offload=optimizer", "offload=activations", "offload=both"};
    int64_t bytes = budget.hosted + budget.saved;
    if (!bytes) return true;
    return memory_check(bytes * local_ranks, names[session->config->offload],
        budget.hosted ? "set optimizer.name=adamw_8bit, precision=pure_bf16 or offload=none, or use a machine with more memory"
                      : "set offload=none, reduce batch.sequences, or use a machine with more memory",
        error);
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

int64_t session_step_microbatches(const Session *session) { return count_step_microbatches(session); }

bool session_run(Session *session, const ProgramWork *work, Error *error) {
    const Program *training = &session->training;
    if (!exchange_find_amax(training->exchange, error)) return false;
    program_run(training, work);
    exchange_finish_gradients(training->exchange);
    return true;
}

/* -- Updates ------------------------------------------------------------------------------------------------------- */

/* Returns the arena of weights that an update writes beside the masters, or the masters' arena. */
static void *updated_weights(const Session *session) {
    return executor_arena(session->training.executor, session->layout->gathers_masters ? ARENA_MASTER : ARENA_WEIGHT);
}

static void update_bucket_within(Session *session, int bucket, double scale) {
    const Executor *executor = session->training.executor;
    Update update = {executor_arena(executor, ARENA_MASTER), updated_weights(session),
        exchange_gradients(session->training.exchange, bucket), session->update.step, session->update.lr, scale};
    optimizer_step_bucket(session->optimizer, bucket, &update);
}

/* Returns whether the loss is finite on all ranks, after waiting for the end of the forward pass. A
 * lost rank ends the step. */
static bool has_finite_loss(const Session *session) {
    Error error = {0};
    int64_t bad = !executor_finish(session->training.executor, &error);
    for (int i = 0; i < graph_elements(session->training.model.graph, session->training.model.loss); i++)
        bad |= !isfinite(executor_get_metric(session->training.executor, session->training.model.loss, i));
    TensorId mtp_loss = session->training.model.prediction.loss;
    bad |= mtp_loss && !isfinite(executor_get_metric(session->training.executor, mtp_loss, 0));
    return comm_host_all_reduce(session->comm, "bad losses", &bad, 1, COMM_I64, COMM_SUM, &error) && !bad;
}

/* An ExchangeUpdate. */
static void update_within(void *context, int bucket) {
    Session *session = context;
    StepUpdate *update = &session->update;
    double start = log_seconds();
    if (!update->judged) update->made = has_finite_loss(session);
    update->judged = true;
    if (!update->made) return;
    optimizer_note_squares(session->optimizer, bucket, exchange_gradients(session->training.exchange, bucket));
    update_bucket_within(session, bucket, 1);
    if (!session->config->profile) return;
    device_synchronize(session->device);
    update->seconds += log_seconds() - start;
}

void session_begin_step(Session *session, int64_t step, double lr, int64_t rows) {
    const ModelConfig *model = &session->config->model;
    double choices = (double)rows * (double)model->experts_per_token;
    session->update = (StepUpdate){.step = step, .lr = lr, .load_unit = model->experts ? 1 / ((double)model->experts * choices) : 1};
    optimizer_set_load_unit(session->optimizer, session->update.load_unit);
}

PreciseSum session_gradient_squares(Session *session) {
    if (!session->layout->in_backward)
        return optimizer_gradient_squares(session->optimizer, executor_arena(session->training.executor, ARENA_GRADIENT));
    return session->update.made ? optimizer_noted_squares(session->optimizer) : (PreciseSum){.high = NAN};
}

void session_update(Session *session, double norm) {
    double clip = session->config->optimizer.clip, scale = clip > 0 && norm > clip ? clip / norm : 1;
    if (session->layout->in_backward) return;
    for (int b = 0; b < session->layout->bucket_count; b++) update_bucket_within(session, b, scale);
}

/* -- Starting and ending ------------------------------------------------------------------------------------------- */

HeldMatrix session_held_matrix(const Session *session, int parameter) {
    const Graph *graph = session->training.model.graph;
    const Executor *executor = session->training.executor;
    const Parameter *p = &graph->parameters[parameter];
    const LayoutBucket *bucket = &session->layout->buckets[layout_bucket_at(session->layout, p->offset)];
    if (!bucket->sharded) return (HeldMatrix){{parameter, 0, p->count}, executor_tensor(executor, p->tensor)};
    ByteSpan shard = layout_bucket_shard(bucket);
    int64_t begin = int_max(p->offset, shard.begin), end = int_min(p->offset + p->count * p->element_bytes, shard.end);
    if (begin >= end) return (HeldMatrix){.elements = {.parameter = parameter}};
    return (HeldMatrix){{parameter, (begin - p->offset) / p->element_bytes, (end - begin) / p->element_bytes},
        (char *)executor_arena(executor, ARENA_WEIGHT) + precision_weight_offset(graph->precision, bucket->local + begin - shard.begin)};
}

/* Returns the bytes of a tensor at `offset` in a packed bucket that are in this rank's shard. */
static HeldBytes held_of_packed(const Session *session, const LayoutBucket *bucket, int64_t offset, int64_t bytes) {
    int64_t first = bucket->shards[bucket->rank], begin = int_max(offset, first),
            end = int_min(offset + bytes, bucket->shards[bucket->rank + 1]);
    if (begin >= end) return (HeldBytes){0};
    return (HeldBytes){
        begin - offset, end - begin, (char *)executor_arena(session->training.executor, ARENA_QUANTIZED) + bucket->local + begin - first};
}

QuantizedPlace session_quantized_place(const Session *session, int parameter) {
    const Graph *graph = session->training.model.graph;
    const Parameter *p = &graph->parameters[parameter];
    const LayoutBucket *bucket = &session->layout->buckets[layout_bucket_at(session->layout, p->offset)];
    const PackedOffsets *at = &session->layout->packed[parameter];
    if (!bucket->packed_bytes) return quantized_whole(session->training.executor, p);
    return (QuantizedPlace){held_of_packed(session, bucket, at->values, graph_bytes(graph, p->quantized)),
        held_of_packed(session, bucket, at->scales, graph_bytes(graph, p->scales))};
}

/* For quantized_fill. */
static QuantizedPlace place_of_quantized(const void *session, int parameter) { return session_quantized_place(session, parameter); }

/* Gives frozen parameters their initial values, for a model that is not loaded. */
static void initialize_frozen(Session *session, char *master) {
    const Config *config = session->config;
    const Graph *graph = session->training.model.graph;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (!p->frozen || p->quantization) continue;
        HeldMatrix held = {{i, 0, p->count}, parameter_in(p, master)};
        if (graph_is_base(graph, p)) held = session_held_matrix(session, i);
        if (held.elements.count)
            model_initialize_interval(graph, &config->model, config->seed, &held.elements, session->device, held.weights);
    }
}

static bool initialize_weights(Session *session, Error *error) {
    const Executor *executor = session->training.executor;
    void *master = executor_arena(executor, ARENA_MASTER), *weights = executor_arena(executor, ARENA_WEIGHT);
    quantized_fill(session->training.executor, place_of_quantized, session);
    if (!session->layout->stage && !session->layout->shard.offload.masters)
        return model_initialize(
            session->training.model.graph, &session->config->model, session->config->seed, session->device, master, weights, error);
    for (int i = 0; i < session->layout->shard.interval_count; i++) {
        const ShardInterval *interval = &session->layout->shard.intervals[i];
        model_initialize_interval(session->training.model.graph, &session->config->model, session->config->seed, &interval->elements,
            session->device, executor_master(executor, interval->offset));
    }
    initialize_frozen(session, master);
    session_spread_weights(session);
    device_synchronize(session->device); /* copies of offload are on other streams */
    return device_ok(session->device, error) && comm_ok(session->comm, error);
}

/* Opens the groups of ranks in which the buckets, the optimizer and the program communicate. */
static bool open_groups(Session *session, Error *error) {
    const Layout *layout = session->layout;
    SCOPED_FREE MeshAxes *axes = memory_allocate((LAYOUT_CUT_GROUPS + 1 + 3 * (size_t)layout->bucket_count) * sizeof *axes);
    int count = 0;
    axes[count++] = AXES_ALL & ~MESH(AXIS_PP); /* for amax_history_agree */
    for (int i = 0; i < LAYOUT_CUT_GROUPS; i++) axes[count++] = layout_cut_groups[i];
    for (int b = 0; b < layout->bucket_count; b++) {
        axes[count++] = layout->buckets[b].axes;
        axes[count++] = layout->buckets[b].axes & ~MESH(AXIS_REPLICA);
        axes[count++] = layout->buckets[b].axes & MESH(AXIS_REPLICA);
    }
    if (!mesh_open(session->mesh, session->comm, axes, count, error)) return false;
    if (!mesh_open_inner(session->mesh, layout_program_groups, LAYOUT_PROGRAM_GROUPS, error)) return false;
    *session->whole = mesh_without(session->mesh, AXIS_CP);
    return true;
}

/* Records the kernels of initialization and update, so that they are loaded together with the
 * programs' kernels. */
static void note_kernels(Session *session) {
    Error ignored;
    Device *device = session->device;
    void *master = executor_arena(session->training.executor, ARENA_MASTER), *weights = updated_weights(session);
    const void *gradients = executor_arena(session->training.executor, ARENA_GRADIENT);
    if (!device_prepare_begin(device)) return;
    model_initialize(session->training.model.graph, &session->config->model, session->config->seed, device, master, weights, &ignored);
    optimizer_gradient_squares(session->optimizer, gradients);
    optimizer_step(session->optimizer, &(Update){master, weights, gradients, 1, 0, 1});
    device_prepare_end(device);
}

bool session_start_training(Session *session, Comm *comm, Error *error) {
    Program *training = &session->training;
    session->comm = comm;
    if (!open_groups(session, error) || !program_start(training, NULL, error)) return false;
    session->optimizer =
        optimizer_create(training->model.graph, &session->config->optimizer, &session->layout->shard, session->device, error);
    if (!session->optimizer) return false;
    optimizer_set_masters(session->optimizer, executor_arena(training->executor, ARENA_HOST_MASTER));
    note_kernels(session); /* before the hook: a dry run sends nothing */
    optimizer_set_hook(session->optimizer, exchange_send_weights, training->exchange);
    exchange_set_update(training->exchange, update_within, session);
    return true;
}

bool session_start(Session *session, Comm *comm, Error *error) {
    const Program *training = &session->training;
    session->size = session_size(session);
    if (comm_size(comm) > 1 && !rehearsal_agree(session, comm, error)) return false;
    if (!session_start_training(session, comm, error) || !program_start_beside(&session->evaluation, training, error)) return false;
    if (session->scoring.model.graph && !program_start_beside(&session->scoring, training, error)) return false;
    session->history = amax_history_create(training->model.graph, session->config->model.fp8.amax_history_len);
    return initialize_weights(session, error);
}

void session_free(Session *session) {
    session_close_saver(session);
    if (session->optimizer) optimizer_settle(session->optimizer); /* copies to master weights */
    program_free(&session->scoring);
    program_free(&session->sampling);
    program_free(&session->evaluation);
    program_free(&session->training);
    if (session->mesh) mesh_close(session->mesh);
    optimizer_free(session->optimizer);
    amax_history_free(session->history);
    layout_free(session->layout);
    pipeline_plan_free(session->pipeline);
    free(session->whole);
    free(session->mesh);
    *session = (Session){0};
}

/* -- Weights ------------------------------------------------------------------------------------------------------- */

void session_spread_weights(Session *session) {
    for (int b = 0; b < session->layout->bucket_count; b++) exchange_make_weights(session->training.exchange, b);
    exchange_finish_weights(session->training.exchange);
}

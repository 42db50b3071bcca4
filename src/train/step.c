/* One step: the rank's microbatches are fetched, the program runs once for each, loss and gradients
 * are checked for NaN, the weights are updated, and the step is reported. With
 * optimizer.in_backward the program's only run updates the weights after the loss has been checked
 * (session.c).
 *
 * Microbatch j of a step belongs to group j mod n of the n groups of ranks with separate data
 * (AXES_DATA); all ranks of a group read it. Groups with fewer microbatches run empty ones, which
 * add zeros, because the collectives in a run of the program need all ranks. Owns nothing. Called
 * by the training loop. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "train/dump_internal.h"
#include "train/loop_internal.h"
#include "train/numerics_internal.h"

/* on_nan=skip gives up after more skipped updates in a row than this. It also gives up if more than
 * this were skipped in total and they are most of the run's updates. */
enum { MOST_SKIPS = 20 };

/* -- The rank's share of a step ------------------------------------------------------------------------------------ */

static int64_t microbatch_rows(const Config *config) { return config->batch.sequences * config->data.length; }

/* Returns the microbatches of a step of the phase, counted from 1, as if the phase had no end. */
static int64_t step_microbatches(const Config *config, int64_t step) {
    int64_t rows = microbatch_rows(config);
    return schedule_batch_tokens(&config->batch, rows, step) / rows;
}

static int64_t pick_batch(void *context) {
    BatchPicker *picker = context;
    for (int64_t count; picker->next >= (count = step_microbatches(picker->config, picker->step)); picker->step++) {
        if (picker->rank >= count && picker->step > picker->config->batch.ramp_steps)
            break; /* this rank never has one: any batch serves, because it is not read */
        picker->first += count;
        picker->next = picker->rank;
    }
    assert(picker->next % picker->size == picker->rank);
    int64_t batch = picker->first + picker->next;
    picker->next += picker->size;
    return batch;
}

/* mine <= rounds, and the sum of `mine` over ranks is `all`. Empty sequences may fill up the last
 * microbatch of a phase. */
typedef struct StepShare {
    int64_t all;     /* microbatches of the step on all ranks */
    int64_t samples; /* in them */
    int64_t mine;    /* microbatches of this rank */
    int64_t rounds;  /* runs of the program, equal on every rank */
    int64_t rows;    /* tokens of a microbatch */
    int64_t targets; /* of the whole step, or its preference pairs; from fetch on */
    int64_t tokens;  /* in them, without padding of samples of reinforcement learning */
} StepShare;

static StepShare step_share(const Loop *loop) {
    Position position = loop_position(loop);
    int64_t samples = phases_next(&loop->phases, &position), sequences = loop->config->batch.sequences;
    const Mesh *mesh = loop->session.mesh;
    if (loop->rollouts) samples = loop->batch.microbatches * sequences;
    int64_t all = divide_up(samples, sequences), size = mesh_size(mesh, AXES_DATA);
    return (StepShare){.all = all,
        .samples = samples,
        .mine = divide_up(all - mesh_index(mesh, AXES_DATA), size),
        .rounds = divide_up(all, size),
        .rows = microbatch_rows(loop->config),
        .tokens = loop->rollouts ? loop->batch.all : samples * loop->config->data.length};
}

static void note_wait(DataWait *wait, double seconds) {
    if (wait->steps++) wait->later += seconds;
    else wait->first = seconds;
    if (wait->steps > 1 && seconds > wait->longest) wait->longest = seconds;
}

/* Copies the rank's microbatches out of the loader; counts the targets, or preference pairs, of the
 * whole step. If a rank cannot read its data, all ranks learn of it together: ERROR_DATA, and
 * loop->unread. */
static bool fetch_batches(Loop *loop, StepShare *share, Error *error) {
    const Model *model = &loop->session.training.model;
    int64_t rows = share->rows;
    share->targets = loop->rollouts ? loop->batch.trained : share->samples; /* for images, whose losses are means */
    if (loop->corpus.image_length || loop->rollouts) return true;
    loop->inputs.rows = share->mine * rows;
    assert(share->mine <= share->rounds && share->mine * rows <= session_step_rows(&loop->session));
    bool counts = mesh_index(loop->session.mesh, AXES_ALL & ~AXES_DATA) == 0; /* other ranks read the same sequences */
    int64_t sums[2] = {0}, *counted = &sums[0], *failed = &sums[1];
    Error unread = {0};
    double waited = 0;
    for (int64_t i = 0; i < share->mine; i++) {
        double start = log_seconds();
        const Batch *batch = loader_next(loop->loader, &unread);
        waited += log_seconds() - start;
        if (!batch) {
            *failed = 1;
            break;
        }
        memcpy(loop->inputs.tokens + i * rows, batch->tokens, rows * sizeof(int32_t));
        memcpy(loop->inputs.targets + i * rows, batch->targets, rows * sizeof(int32_t));
        memcpy(loop->inputs.positions + i * rows, batch->positions, rows * sizeof(int32_t));
        int64_t pairs = pairs_take(&loop->inputs, model, i, batch, rows, &loop->corpus.reference);
        if (counts && model->rewards) *counted += pairs;
        for (int64_t j = 0; j < rows && !model->rewards; j++) *counted += counts && batch->targets[j] >= 0;
    }
    note_wait(&loop->data_wait, waited);
    if (!comm_host_all_reduce(loop->comm, "targets", sums, 2, COMM_I64, COMM_SUM, error)) return false;
    share->targets = *counted;
    loop->unread = *failed > 0;
    return !loop->unread || corpus_refuse_unread(&unread, *failed, loop->comm, error) ||
           error_context(error, "data.train=%s", loop->settings.data.train);
}

/* Returns which of a step's image microbatches is this rank's microbatch `index`. */
static int64_t image_microbatch(const Loop *loop, int64_t index) {
    const Mesh *mesh = loop->session.mesh;
    return index * mesh_size(mesh, AXES_DATA) + mesh_index(mesh, AXES_DATA);
}

/* Loads a microbatch. After the rank's last one it loads an empty one, without targets and without
 * a share of the load: its loss and gradients are 0. */
static void load_microbatch(const Loop *loop, const StepShare *share, int64_t index) {
    const Model *model = &loop->session.training.model;
    Executor *executor = loop->session.training.executor;
    const StepInputs *inputs = &loop->inputs;
    int64_t at = index * share->rows;
    const TextRows rows = {inputs->tokens + at, inputs->targets + at, inputs->positions + at};
    bool empty = index >= share->mine;
    executor_set_scalar(executor, model->share, empty ? 0 : 1.0 / (share->all * mesh_size(loop->session.mesh, AXES_ROWS)));
    amax_history_put(loop->session.history, executor, executor_get_metric(executor, model->scale, 0));
    exchange_put_amax(loop->session.training.exchange);
    if (loop->rollouts) {
        sample_batch_load(&loop->batch, executor,
            empty ? -1 : index * mesh_size(loop->session.mesh, AXES_DATA) + mesh_index(loop->session.mesh, AXES_DATA));
        return;
    }
    if (loop->corpus.image_length) {
        loop_put_images(loop, image_microbatch(loop, index), share->samples);
        return;
    }
    pairs_load(inputs, &loop->session.training, empty ? -1 : index);
    program_put_prediction(&loop->session.training, empty ? NULL : &rows, loop->config->model.mtp_weight);
    if (empty) {
        memset(executor_tensor(executor, model->targets), -1, model->rows * sizeof(int32_t));
        return;
    }
    model_take_rows(model, executor_tensor(executor, model->tokens), rows.tokens);
    model_take_rows(model, executor_tensor(executor, model->targets), rows.targets);
    model_take_rows(model, executor_tensor(executor, model->positions), rows.positions);
}

static size_t logits_bytes(const Loop *loop) {
    const Model *model = &loop->session.training.model;
    return (size_t)(graph_elements(model->graph, model->logits) * (int64_t)precision_bytes(model->graph->precision, TYPE_WIDE));
}

/* Allocates the logits of the next step if it is to be dumped. */
static bool prepare_dump(Loop *loop, const StepShare *share, Error *error) {
    if (!loop->config->dump[0] || loop->dumped) return true;
    loop->logits = memory_map(logits_bytes(loop) * (size_t)share->mine, error);
    return loop->logits || error_context(error, "the logits of a step");
}

static void drop_logits(Loop *loop) {
    if (loop->logits) memory_unmap(loop->logits, logits_bytes(loop) * (size_t)(loop->inputs.rows / microbatch_rows(loop->config)));
    loop->logits = NULL;
}

/* Writes inputs and results of the first step, for comparison with other programs. */
static bool dump(Loop *loop, Error *error) {
    if (!loop->logits) return true;
    loop->dumped = true;
    bool written = dump_step(&loop->session, loop->config->dump, &loop->inputs, loop->logits, error);
    drop_logits(loop);
    return written || error_context(error, "dump=%s", loop->config->dump);
}

static void allocate_inputs(Loop *loop) {
    int64_t rows = session_step_rows(&loop->session);
    int32_t *block = memory_allocate((size_t)rows * 3 * sizeof *block);
    loop->inputs = (StepInputs){.tokens = block, .targets = block + rows, .positions = block + 2 * rows};
    pairs_allocate(&loop->inputs, &loop->session.training.model, rows / microbatch_rows(loop->config));
}

bool loop_open_loader(Loop *loop, Error *error) {
    const Config *config = loop->config;
    const Corpus *corpus = &loop->corpus;
    if (corpus->image_length || corpus->prompts.count) return true; /* images are read, and samples made, when needed */
    SCOPED_FREE LoaderSource *sources = memory_allocate((size_t)corpus->train_count * sizeof *sources);
    for (int i = 0; i < corpus->train_count; i++)
        sources[i] = (LoaderSource){.set = &corpus->train[i], .bins = corpus->bins ? &corpus->bins[i] : NULL};
    LoaderOptions options = {.order = loop->order,
        .phase = loop->phase,
        .sources = sources,
        .sequences = config->batch.sequences,
        .vocabulary = (int32_t)config->model.vocabulary,
        .separator = loop->corpus.bytes ? BYTE_SEPARATOR : -1,
        .document_mask = config->data.document_mask,
        .pick = pick_batch,
        .pick_context = &loop->picker,
        .stop = loop->host->stop};
    Position now = loop_position(loop);
    if (!config->profile) options.end = phases_advance(&loop->phases, now, config->steps - now.step).samples;
    int index = mesh_index(loop->session.mesh, AXES_DATA);
    loop->picker = (BatchPicker){.config = config,
        .rank = index,
        .size = mesh_size(loop->session.mesh, AXES_DATA),
        .step = loop->session.step - loop->session.phase_step + 1,
        .next = index};
    allocate_inputs(loop);
    loop->loader = loader_open(&options, loop->session.samples, error);
    return loop->loader || error_context(error, "data.train=%s", config->data.train);
}

void loop_close_loader(Loop *loop) {
    drop_logits(loop);
    loader_close(loop->loader);
    free(loop->inputs.tokens);
    pairs_free(&loop->inputs);
    loop->loader = NULL;
    loop->inputs = (StepInputs){0};
}

/* -- One step ------------------------------------------------------------------------------------------------------ */

/* The result of a step, over all ranks. */
typedef struct StepOutcome {
    double loss, auxiliary, norm;
    double mtp_loss;              /* of multi-token prediction, before its weight */
    double rewards[REWARD_COUNT]; /* sums over preference pairs */
    double policy[POLICY_SUMS];   /* sums over tokens of reinforcement learning */
} StepOutcome;

/* Adds in rank order, so that all ranks have the same bits. An infinity that FP8 casts hide shows
 * in the norm. */
static bool sum_outcome(Loop *loop, StepOutcome *outcome, Error *error) {
    const Session *session = &loop->session;
    enum { LOSS, AUXILIARY, MTP_LOSS, SQUARES, SQUARES_LOW, REWARDS, POLICY = REWARDS + REWARD_COUNT, VALUES = POLICY + POLICY_SUMS };
    int rank = comm_rank(loop->comm), size = comm_size(loop->comm);
    SCOPED_FREE double *values = memory_allocate((size_t)size * VALUES * sizeof *values);
    double *mine = values + rank * VALUES, sum[VALUES] = {0};
    if (!amax_history_agree(session->history, session->training.executor, error)) return false;
    PreciseSum own = session_gradient_squares(&loop->session), squares = {0};
    if (!amax_history_is_finite(session->history)) own.high = NAN;
    mine[LOSS] = executor_get_metric(session->training.executor, session->training.model.loss, 0);
    mine[AUXILIARY] = executor_get_metric(session->training.executor, session->training.model.loss, 1);
    if (session->training.model.prediction.loss)
        mine[MTP_LOSS] = executor_get_metric(session->training.executor, session->training.model.prediction.loss, 0);
    mine[SQUARES] = own.high, mine[SQUARES_LOW] = own.low;
    pairs_add_rewards(&session->training, mine + REWARDS);
    for (int i = 0; i < POLICY_SUMS && loop->rollouts; i++)
        mine[POLICY + i] = executor_get_metric(session->training.executor, session->training.model.policy.sums, i);
    bool done = comm_host_all_gather(loop->comm, "outcome", values, VALUES, COMM_F64, error);
    for (int i = 0; i < size * VALUES; i++) sum[i % VALUES] += values[i];
    for (double *of = values; of < values + size * VALUES; of += VALUES) precise_join(&squares, (PreciseSum){of[SQUARES], of[SQUARES_LOW]});
    *outcome = (StepOutcome){.loss = sum[LOSS],
        .auxiliary = sum[AUXILIARY],
        .norm = sqrt(precise_value(squares)),
        .mtp_loss = sum[MTP_LOSS] / loop->config->model.mtp_weight};
    memcpy(outcome->rewards, sum + REWARDS, sizeof outcome->rewards);
    memcpy(outcome->policy, sum + POLICY, sizeof outcome->policy);
    return done;
}

static bool is_finite(const StepOutcome *outcome) {
    return isfinite(outcome->loss) && isfinite(outcome->auxiliary) && isfinite(outcome->norm) && isfinite(outcome->mtp_loss);
}

/* The context of the program's run over a share. */
typedef struct Running {
    Loop *loop;
    const StepShare *share;
} Running;

static void load_inputs(void *context, int64_t microbatch) {
    const Running *running = context;
    const Program *training = &running->loop->session.training;
    int64_t targets = running->share->targets;
    executor_set_scalar(training->executor, training->model.scale, 1.0 / (targets ? targets : 1));
    load_microbatch(running->loop, running->share, microbatch);
}

static void keep_logits(void *context, int64_t microbatch) {
    const Loop *loop = ((const Running *)context)->loop;
    const Program *training = &loop->session.training;
    if (loop->logits) executor_read(training->executor, training->model.logits, loop->logits + (size_t)microbatch * logits_bytes(loop));
}

/* Returns whether the next step's choices of experts are recorded. */
static bool records_routing(const Loop *loop) { return loop->config->routing_trace[0] && loop_leads(loop) && !loop->routing.written; }

static bool write_routing(Loop *loop, Error *error) {
    const Config *config = loop->config;
    if (!records_routing(loop)) return true;
    bool written = routing_write(&loop->routing, config->routing_trace, &config->model, error);
    if (written)
        log_info("wrote the experts that routers chose in step %lld to %s", (long long)loop->session.step + 1, config->routing_trace);
    return written || error_context(error, "routing_trace=%s", config->routing_trace);
}

static bool run_share(Loop *loop, const StepShare *share, Error *error) {
    const Program *training = &loop->session.training;
    ProgramWork work = {.microbatches = share->rounds,
        .load = load_inputs,
        .ran = keep_logits,
        .context = &(Running){loop, share},
        .hook = loop->config->profile ? profile_node : NULL,
        .hook_context = &loop->profile};
    if (records_routing(loop)) {
        loop->routing.executor = training->executor;
        work.hook = routing_record_node;
        work.hook_context = &loop->routing;
    }
    return session_run(&loop->session, &work, error) && executor_finish(training->executor, error) && comm_ok(loop->comm, error);
}

/* The location of a step's NaN: in its data, or in the model's results. text "": none on this
 * rank. */
typedef struct FoundNan {
    bool in_data;
    char text[255];
} FoundNan;

/* The context of a search for a NaN. */
typedef struct Searching {
    Running running;
    FoundNan *found;
} Searching;

static void load_again(void *context, int64_t microbatch) {
    Searching *searching = context;
    const Loop *loop = searching->running.loop;
    FoundNan *found = searching->found;
    load_inputs(&searching->running, microbatch);
    if (!loop->corpus.image_length || found->text[0]) return;
    loop_find_bad_image(loop, image_microbatch(loop, microbatch), searching->running.share->samples, found->text, sizeof found->text);
    found->in_data = found->text[0];
}

/* Runs the step's microbatches again, on all ranks, and describes the first NaN of the first rank
 * that has one. */
static bool find_nan(Loop *loop, const StepShare *share, char *where, size_t size, bool *in_data, Error *error) {
    int ranks = comm_size(loop->comm);
    SCOPED_FREE FoundNan *found = memory_allocate((size_t)ranks * sizeof *found);
    FoundNan *mine = &found[comm_rank(loop->comm)];
    Searching searching = {{loop, share}, mine};
    numerics_find(&loop->session, &(ProgramWork){.microbatches = share->rounds, .load = load_again, .context = &searching}, mine->text,
        sizeof mine->text);
    bool done = comm_host_all_gather(loop->comm, "NaN", found, sizeof *found, COMM_U8, error);
    snprintf(where, size, "a sum over microbatches (every tensor is finite when computed again)");
    *in_data = false;
    for (int r = ranks - 1; r >= 0; r--) {
        char rank[32] = "";
        if (ranks > 1) snprintf(rank, sizeof rank, ", on rank %d", r);
        if (!found[r].text[0]) continue;
        snprintf(where, size, "%s%s", found[r].text, rank);
        *in_data = found[r].in_data;
    }
    return done;
}

bool loop_refuse_skips(const Skips *skips, int64_t step, Error *error) {
    return error_set(error, ERROR_NUMERICS,
        "%lld of %lld updates had NaN or infinity and were skipped, which is too many. Lower optimizer.lr and continue from a checkpoint",
        (long long)skips->all, (long long)step);
}

/* Reports the location of the step's NaN or infinity; an error unless on_nan=skip allows one more
 * skipped update. */
static bool handle_nan(Loop *loop, int64_t step, const StepShare *share, Error *error) {
    char where[320];
    bool in_data;
    if (!find_nan(loop, share, where, sizeof where, &in_data, error)) return false;
    if (loop->config->on_nan == ON_NAN_STOP)
        return error_set(error, ERROR_NUMERICS,
            "step %lld: NaN or infinity in %s; the last checkpoint is intact. %s, or set on_nan=skip to skip such updates", (long long)step,
            where, in_data ? "Encode the sample again, or remove it" : "Lower optimizer.lr");
    Skips *skips = &loop->session.skips;
    skips->all++;
    if (++skips->row > MOST_SKIPS)
        return error_set(error, ERROR_NUMERICS,
            "step %lld: %lld consecutive updates had NaN or infinity, this time in %s: lower optimizer.lr", (long long)step,
            (long long)skips->row, where);
    if (skips->all > MOST_SKIPS && 2 * skips->all > step) return loop_refuse_skips(skips, step, error);
    if (loop_leads(loop)) log_warn("step %lld: NaN or infinity in %s, update skipped", (long long)step, where);
    loop_alarm(loop, RUN_EVENT_NAN, "step %lld: NaN or infinity in %s, update skipped", (long long)step, where);
    return true;
}

/* Returns the model's layer for index `index` of this rank's layers. */
static int64_t load_layer(const Session *session, int64_t index) {
    const PipelinePlan *pipeline = session->pipeline;
    if (!pipeline) return index;
    const int *begin = &pipeline->cut.begin[session->mesh->at[AXIS_PP]];
    for (; index >= begin[1] - begin[0]; begin += pipeline->shape.stages) index -= begin[1] - begin[0];
    return begin[0] + index;
}

/* Collective over the stages of a pipeline. */
static void report_load(Loop *loop, int64_t step) {
    const Graph *graph = loop->session.training.model.graph;
    const ModelConfig *model = &loop->config->model;
    if ((!loop->metrics && !loop->session.pipeline) || !model->experts || loop->config->lora.rank ||
        loop->config->precision == PRECISION_FP64)
        return;
    Error error = {0};
    SCOPED_FREE double *load = memory_allocate(model->layers * model->experts * sizeof *load);
    SCOPED_FREE float *excess = memory_allocate(model->experts * sizeof *excess);
    int64_t index = -1, layer; /* rows of layers without experts stay 0 */
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->kind != PARAMETER_BALANCE_BIAS) continue;
        do layer = load_layer(&loop->session, ++index);
        while (!model_layer_has_experts(model, layer));
        if (layer >= model->layers) continue; /* of multi-token prediction */
        const void *gradient = executor_device_tensor(loop->session.training.executor, graph_get(graph, p->tensor)->gradient);
        device_download(loop->session.device, excess, gradient, model->experts * sizeof *excess);
        double *of_layer = load + layer * model->experts;
        for (int64_t e = 0; e < model->experts; e++) of_layer[e] = excess[e] * loop->session.update.load_unit + 1.0 / model->experts;
    }
    Comm *stages = mesh_group(loop->session.mesh, MESH(AXIS_PP));
    if (!comm_host_all_reduce(stages, "load", load, model->layers * model->experts, COMM_F64, COMM_SUM, &error) || !loop->metrics) return;
    loop_note_record(loop, metrics_load(loop->metrics, step, model->layers, model->experts, load, &error), &error);
}

/* Returns bytes: the peak of the process if device memory is host memory, else the plan's. */
static int64_t memory_used(const Session *session) {
    return device_info(session->device)->host_memory ? memory_peak() : session_budget(session).total;
}

/* Returns seconds. */
static double time_left(const Loop *loop) {
    const Config *config = loop->config;
    int64_t step = loop->session.step, steps = config->steps, every = config->eval.every;
    Position now = loop_position(loop), end = phases_advance(&loop->phases, now, steps - step);
    int64_t tokens = phases_tokens(&loop->phases, end.samples) - phases_tokens(&loop->phases, now.samples);
    int64_t evaluations = every > 0 ? (steps - 1) / every - step / every + 1 : 1;
    return pace_left(&loop->pace, tokens, step < steps ? evaluations : 0);
}

/* Returns the seconds that this rank has waited for collectives since the last call; on a GPU as
 * far as it has run. NaN: it is the only rank. */
static double step_waiting(Loop *loop) {
    CommTotals totals = comm_totals(loop->comm);
    double before = loop->waited;
    loop->waited = totals.waited + totals.stalled;
    return comm_size(loop->comm) > 1 ? loop->waited - before : NAN;
}

/* Reports a loss far above those of the latest steps. */
static void check_loss(Loop *loop, double loss) {
    enum { SETTLED = 20, SMOOTHED = 50 };
    const double most_deviations = 6, least_part = 0.1;
    LossTrend *trend = &loop->trend;
    double above = loss - trend->mean, deviation = sqrt(trend->variance);
    if (!isfinite(loss)) return;
    if (trend->steps >= SETTLED && above > most_deviations * deviation && above > least_part * fabs(trend->mean))
        loop_alarm(loop, RUN_EVENT_LOSS_SPIKE,
            "the loss %.5g is far above the mean of the latest steps, %.5g, with a standard deviation of %.2g", loss, trend->mean,
            deviation);
    double weight = fmax(1.0 / SMOOTHED, 1.0 / (double)++trend->steps);
    trend->mean += weight * above;
    trend->variance = (1 - weight) * (trend->variance + weight * above * above);
}

/* Records and prints a step that took `seconds`. A step faster than the measured GEMM raises the
 * measured peak: the GEMM was measured at a bad moment. */
static void report_step(Loop *loop, const StepShare *share, const StepOutcome *outcome, double lr, double seconds) {
    const Config *config = loop->config;
    int64_t step = loop->session.step;
    Error error = {0};
    double flops = loop->session.size.flops * share->all;
    if (loop->measured_flops > 0) loop->measured_flops = fmax(loop->measured_flops, flops / seconds / comm_size(loop->comm));
    StepMetrics metrics = {.step = step,
        .steps = config->steps,
        .loss = outcome->loss,
        .auxiliary = outcome->auxiliary,
        .mtp_loss = config->model.mtp ? outcome->mtp_loss : NAN,
        .gradient_norm = outcome->norm,
        .lr = lr,
        .seconds = seconds,
        .tokens = share->tokens,
        .images = loop->corpus.image_length ? share->samples : 0,
        .tokens_seen = phases_tokens(&loop->phases, loop->session.samples),
        .flops = flops,
        .peak_flops = loop->host->peak_flops * comm_size(loop->comm),
        .measured_flops = loop->measured_flops * comm_size(loop->comm),
        .memory = memory_used(&loop->session),
        .waiting = step_waiting(loop),
        .skipped = !is_finite(outcome),
        .rewards = pairs_mean(outcome->rewards, loop->session.training.model.rewards ? share->targets : 0),
        .seconds_left = time_left(loop)};
    if (loop->rollouts) loop_describe_policy(loop, outcome->policy, &metrics.policy);
    if (!loop->metrics) return;
    console_step(loop->host->console, &metrics);
    check_loss(loop, outcome->loss);
    loop_note_record(loop, metrics_step(loop->metrics, &metrics, &error), &error);
    loop_report_warnings(loop, step);
    loop_report_machine(loop, step, false);
}

/* Sets the error of a step that has updated weights before a NaN or infinity was found in a
 * gradient. */
static bool refuse_broken_update(const Loop *loop, int64_t step, Error *error) {
    const Session *session = &loop->session;
    const char *parameter = numerics_bad_parameter(session);
    char broken[160] = "", from[96] = "starts again at step 0, because there is no checkpoint";
    if (parameter) snprintf(broken, sizeof broken, " and made %s NaN", parameter);
    if (session->parent)
        snprintf(from, sizeof from, "continues from the checkpoint of step %lld%s", (long long)session->parent,
            session_is_saving(session) ? ", or from the one being written" : "");
    return error_set(error, ERROR_NUMERICS,
        "step %lld: a gradient has NaN or infinity%s. With optimizer.in_backward=true, other weights are already updated, so the step "
        "cannot be skipped and is not saved. Lower optimizer.lr; the same command %s",
        (long long)step, broken, from);
}

/* Updates the weights, or skips the update after NaN. */
static bool apply_gradients(Loop *loop, int64_t step, const StepShare *share, const StepOutcome *outcome, Error *error) {
    if (!is_finite(outcome))
        return loop->session.update.made ? refuse_broken_update(loop, step, error) : handle_nan(loop, step, share, error);
    report_load(loop, step);
    loop_report_layers(loop, step);
    session_update(&loop->session, outcome->norm);
    loop->session.skips.row = 0;
    return true;
}

/* Notes that the step is done. */
static void pass(Loop *loop, int64_t step, int64_t samples) {
    Session *session = &loop->session;
    session->step = step;
    session->samples += samples;
    if (session->samples == phase_end(loop_phase(loop))) session->phase_step = step;
    if (loop_phase(loop)->name) session->begun = loop->phase + 1;
}

/* Long prompts can fill a batch: the step then has no gradient, and the mean over no tokens is
 * reported as 0. */
static void report_untrained(Loop *loop, int64_t step) {
    if (loop->untrained || !loop_leads(loop)) return;
    loop->untrained = true;
    log_warn("step %lld: its batch has no trained token, so its loss of 0 is meaningless, and more such steps may follow: increase "
             "batch.tokens, or use conversations with shorter prompts",
        (long long)step);
}

bool loop_step(Loop *loop, Error *error) {
    const Config *config = loop->config;
    Session *session = &loop->session;
    int64_t step = session->step + 1;
    double start = log_seconds();
    if (loop->rollouts && !loop_take_samples(loop, error)) return error_context(error, "step %lld", (long long)step);
    StepShare share = step_share(loop);
    StepOutcome outcome;
    double lr = schedule_lr(&config->schedule, config->optimizer.lr, step, config->steps);
    session_begin_step(session, step, lr, share.all * share.rows);
    if (!fetch_batches(loop, &share, error) || !prepare_dump(loop, &share, error) || !run_share(loop, &share, error))
        return error_context(error, "step %lld", (long long)step);
    if (!share.targets) report_untrained(loop, step);
    double executed = log_seconds();
    if (!sum_outcome(loop, &outcome, error) || !dump(loop, error) || !write_routing(loop, error) ||
        !apply_gradients(loop, step, &share, &outcome, error))
        return false;
    if (config->profile) device_synchronize(session->device);
    amax_history_note(session->history, step, is_finite(&outcome));
    double seconds = log_seconds() - start;
    loop->profile.steps++;
    loop->profile.seconds += seconds;
    loop->profile.optimizer += session->update.seconds + log_seconds() - executed;
    pace_step(&loop->pace, loop->rollouts ? config->batch.tokens : share.tokens, seconds);
    pass(loop, step, share.samples);
    loop->longest_step = fmax(0.99 * loop->longest_step, seconds);
    report_step(loop, &share, &outcome, lr, seconds);
    return true;
}

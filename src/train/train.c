/* The training loop. A step fetches its microbatches, runs the program once for each, checks loss and gradients for
 * NaN, updates, and reports; between steps the loop evaluates, writes checkpoints and heeds requests to stop. All
 * state that a step changes is in the session, so a checkpoint between two steps is complete.
 *
 * With several ranks every one of them runs this loop. Microbatch j of a step belongs to rank j mod ranks; ranks
 * that have fewer run empty microbatches, which add zeros, since what travels between ranks in a run of the program
 * does so on all of them. Whatever decides what comes next (targets, losses, norms, requests to stop, failures) is
 * agreed on by a collective first. Rank 0 reports.
 *
 * Owns everything in Loop but what its comments except. Called by `smelt train`. */
#include "train/train.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/version.h"
#include "backend/backend.h"
#include "ckpt/ckpt.h"
#include "device/gemm.h"
#include "model/hf.h"
#include "train/adapter.h"
#include "train/identity_internal.h"
#include "train/lineage.h"
#include "train/metrics_internal.h"
#include "train/pace_internal.h"
#include "train/profile_internal.h"
#include "train/run.h"
#include "train/source.h"
#include "train/summary_internal.h"

/* on_nan=skip gives up after so many skipped updates in a row, or when, after so many in all, most of a run's were. */
enum { MOST_SKIPS = 20 };

/* Chooses this rank's microbatches in the global order of the data, called by the loader's thread. `next` is the
 * rank's next microbatch of `step`, whose first one has the number `first` in the run: next % size == rank. */
typedef struct BatchPicker {
    const Config *config;
    int rank, size;
    int64_t step, first, next;
} BatchPicker;

typedef struct Loop {
    Config settings;      /* as given, with the steps that they come to */
    const Config *config; /* they */
    Comm *comm;
    const TrainHost *host;
    int lock; /* a descriptor: of the run folder; -1: none */
    Session session;
    Corpus corpus;
    Origin origin;    /* rank 0's is every rank's */
    json_t *identity; /* of the run; the session borrows it */
    json_t *changes;  /* since the newest checkpoint (lineage.h) */
    BatchPicker picker;
    Loader *loader;
    Watchdog *watchdog;    /* NULL until the first step can start */
    Metrics *metrics;      /* NULL on ranks other than 0, and while profiling: nothing is recorded */
    StepInputs inputs;     /* this rank's share of the step, so that targets can be counted first */
    double measured_flops; /* per second and rank: of a large GEMM, or of the quickest step */
    Pace pace;
    int64_t available; /* bytes of memory for this rank before it took any; -1: unknown */
    bool dumped;
    bool unrecorded;    /* the last record could not be written */
    bool unevaluated;   /* the last evaluation was given up for a signal */
    Error save_failure; /* of the last save that ended */
    double save_wait;   /* seconds that training stood still for saves, beside what reports know */
    Profile profile;    /* used when config->profile asks for it */
} Loop;

static bool leads(const Loop *loop) { return comm_rank(loop->comm) == 0; }

/* -- Agreement ----------------------------------------------------------------------------------------------------- */

/* Whether `good` is true on all ranks: the same answer on each. A rank with `good` false keeps its error. */
static bool agree(const Loop *loop, const char *name, bool good, Error *error) {
    int64_t failed = !good;
    Error ignored = {0};
    if (!comm_host_all_reduce(loop->comm, name, &failed, 1, COMM_I64, COMM_SUM, good ? error : &ignored)) return false;
    if (!good || !failed) return good;
    return error_set(error, ERROR_COMMUNICATION, "%lld of %d ranks cannot go on, as their messages say: this one stops too",
        (long long)failed, comm_size(loop->comm));
}

/* The signal that asked any rank to stop, or 0; -1 after a failure. */
static int agree_on_signal(const Loop *loop, Error *error) {
    int64_t signal = loop->host->stop->signal;
    return comm_host_all_reduce(loop->comm, "signal", &signal, 1, COMM_I64, COMM_MAX, error) ? (int)signal : -1;
}

/* -- The rank's share of a step ------------------------------------------------------------------------------------ */

static int64_t microbatch_rows(const Config *config) { return config->batch.sequences * config->data.length; }

static int64_t step_microbatches(const Config *config, int64_t step) {
    int64_t rows = microbatch_rows(config);
    return schedule_batch_tokens(&config->batch, rows, step) / rows;
}

static int64_t pick(void *context) {
    BatchPicker *picker = context;
    for (int64_t count; picker->next >= (count = step_microbatches(picker->config, picker->step)); picker->step++) {
        if (picker->rank >= count && picker->step > picker->config->batch.ramp_steps)
            break; /* the rank never has one: any batch will do, it is not read */
        picker->first += count;
        picker->next = picker->rank;
    }
    assert(picker->next % picker->size == picker->rank);
    int64_t batch = picker->first + picker->next;
    picker->next += picker->size;
    return batch;
}

/* mine <= rounds, and the sum of `mine` over ranks is `all`. */
typedef struct Share {
    int64_t all;    /* microbatches of the step, on all ranks */
    int64_t mine;   /* microbatches of this rank */
    int64_t rounds; /* runs of the program, on every rank as many */
    int64_t rows;   /* tokens of a microbatch */
} Share;

static Share share_of(const Loop *loop, int64_t step) {
    int64_t all = step_microbatches(loop->config, step), size = comm_size(loop->comm);
    return (Share){.all = all,
        .mine = (all - comm_rank(loop->comm) + size - 1) / size,
        .rounds = (all + size - 1) / size,
        .rows = microbatch_rows(loop->config)};
}

/* Copies the rank's microbatches out of the loader; sets how many targets the whole step has. */
static bool fetch(Loop *loop, const Share *share, int64_t *targets, Error *error) {
    int64_t rows = share->rows;
    loop->inputs.rows = share->mine * rows;
    assert(share->mine <= share->rounds && share->mine * rows <= session_step_rows(&loop->session));
    *targets = 0;
    for (int64_t i = 0; i < share->mine; i++) {
        const Batch *batch = loader_next(loop->loader);
        memcpy(loop->inputs.tokens + i * rows, batch->tokens, rows * sizeof(int32_t));
        memcpy(loop->inputs.targets + i * rows, batch->targets, rows * sizeof(int32_t));
        memcpy(loop->inputs.positions + i * rows, batch->positions, rows * sizeof(int32_t));
        for (int64_t j = 0; j < rows; j++) *targets += batch->targets[j] >= 0;
    }
    return comm_host_all_reduce(loop->comm, "targets", targets, 1, COMM_I64, COMM_SUM, error);
}

/* Past the rank's last microbatch an empty one, without targets and without a share of the load: its loss and
 * gradients are 0. */
static void load_microbatch(const Loop *loop, const Share *share, int64_t index) {
    const Model *model = &loop->session.model;
    Executor *executor = loop->session.executor;
    int64_t rows = share->rows;
    bool empty = index >= share->mine;
    executor_set_scalar(executor, model->share, empty ? 0 : 1.0 / share->all);
    if (empty) {
        memset(executor_tensor(executor, model->targets), -1, rows * sizeof(int32_t));
        return;
    }
    memcpy(executor_tensor(executor, model->tokens), loop->inputs.tokens + index * rows, rows * sizeof(int32_t));
    memcpy(executor_tensor(executor, model->targets), loop->inputs.targets + index * rows, rows * sizeof(int32_t));
    memcpy(executor_tensor(executor, model->positions), loop->inputs.positions + index * rows, rows * sizeof(int32_t));
}

/* -- One step ------------------------------------------------------------------------------------------------------ */

/* The result of a step, over all ranks. */
typedef struct Outcome { double loss, auxiliary, norm; } Outcome;

/* Adds in the order of the ranks, so that all have the same bits. */
static bool sum_outcome(Loop *loop, Outcome *outcome, Error *error) {
    const Session *session = &loop->session;
    enum { LOSS, AUXILIARY, SQUARES, VALUES };
    int rank = comm_rank(loop->comm), size = comm_size(loop->comm);
    SCOPED_FREE double *values = memory_allocate((size_t)size * VALUES * sizeof *values);
    double *mine = values + rank * VALUES, sum[VALUES] = {0};
    double norm = optimizer_gradient_norm(session->optimizer, executor_arena(session->executor, ARENA_GRADIENT));
    mine[LOSS] = executor_get_metric(session->executor, session->model.loss, 0);
    mine[AUXILIARY] = executor_get_metric(session->executor, session->model.loss, 1);
    mine[SQUARES] = norm * norm;
    bool done = comm_host_all_gather(loop->comm, "outcome", values, VALUES, COMM_F64, error);
    for (int i = 0; i < size * VALUES; i++) sum[i % VALUES] += values[i];
    *outcome = (Outcome){sum[LOSS], sum[AUXILIARY], sqrt(sum[SQUARES])};
    return done;
}

static bool is_finite(const Outcome *outcome) { return isfinite(outcome->loss) && isfinite(outcome->auxiliary) && isfinite(outcome->norm); }

static bool run_program(Loop *loop, const Share *share, int64_t targets, Error *error) {
    Session *session = &loop->session;
    executor_set_scalar(session->executor, session->model.scale, 1.0 / (targets ? targets : 1));
    executor_zero(session->executor);
    for (int64_t i = 0; i < share->rounds; i++) {
        load_microbatch(loop, share, i);
        exchange_set_last(session->exchange, i == share->rounds - 1);
        if (loop->config->profile) executor_run_hooked(session->executor, profile_node, &loop->profile);
        else executor_run(session->executor);
    }
    exchange_finish_gradients(session->exchange);
    return executor_finish(session->executor, error) && comm_ok(loop->comm, error);
}

/* Runs the step's microbatches again, on all ranks, and describes the first NaN of the first rank that has one. */
static bool find_nan(Loop *loop, const Share *share, char *where, size_t size, Error *error) {
    enum { TEXT = 256 };
    int ranks = comm_size(loop->comm);
    SCOPED_FREE char *texts = memory_allocate((size_t)ranks * TEXT);
    char *mine = texts + comm_rank(loop->comm) * TEXT;
    exchange_set_last(loop->session.exchange, false);
    for (int64_t i = 0; i < share->rounds; i++) {
        exchange_finish_gradients(loop->session.exchange);
        load_microbatch(loop, share, i);
        numerics_find(&loop->session, mine, TEXT);
    }
    bool done = comm_host_all_gather(loop->comm, "NaN", texts, TEXT, COMM_U8, error);
    snprintf(where, size, "no tensor when run again: the sum over microbatches overflowed");
    for (int r = ranks - 1; r >= 0; r--)
        if (texts[r * TEXT] && ranks > 1) snprintf(where, size, "%s, on rank %d", texts + r * TEXT, r);
        else if (texts[r * TEXT]) snprintf(where, size, "%s", texts + r * TEXT);
    return done;
}

static bool refuse_skips(const Skips *skips, int64_t step, Error *error) {
    return error_set(error, ERROR_NUMERICS,
        "%lld of %lld updates had NaN or infinity and were skipped: that is no training. Lower optimizer.lr; the checkpoints are untouched",
        (long long)skips->all, (long long)step);
}

/* Reports where the step has NaN or infinity; an error unless on_nan=skip allows one more skipped update. */
static bool handle_nan(Loop *loop, int64_t step, const Share *share, Error *error) {
    char where[320];
    if (!find_nan(loop, share, where, sizeof where, error)) return false;
    if (loop->config->on_nan == ON_NAN_STOP)
        return error_set(error, ERROR_NUMERICS,
            "step %lld: NaN or infinity in %s; the last checkpoint is untouched. Lower optimizer.lr, "
            "or set on_nan=skip to leave such updates out",
            (long long)step, where);
    Skips *skips = &loop->session.skips;
    skips->all++;
    if (++skips->row > MOST_SKIPS)
        return error_set(error, ERROR_NUMERICS, "step %lld: %lld updates in a row had NaN or infinity, this time in %s", (long long)step,
            (long long)skips->row, where);
    if (skips->all > MOST_SKIPS && 2 * skips->all > step) return refuse_skips(skips, step, error);
    if (leads(loop)) log_warn("step %lld: NaN or infinity in %s, update skipped", (long long)step, where);
    return true;
}

/* Takes note of whether a record was written: a full disk costs records, not the run. */
static void note_record(Loop *loop, bool written, Error *error) {
    if (!written && !loop->unrecorded) log_warn("%s; training goes on without records until it can", error->message);
    if (written && loop->unrecorded) log_info("records are written again");
    loop->unrecorded = !written;
    *error = (Error){0};
}

static void report_load(Loop *loop, int64_t step) {
    const Graph *graph = loop->session.model.graph;
    const ModelConfig *model = &loop->config->model;
    if (!loop->metrics || !model->experts || loop->config->lora.rank || loop->config->precision == PRECISION_FP64) return;
    Error error = {0};
    const void *gradients = executor_arena(loop->session.executor, ARENA_GRADIENT);
    SCOPED_FREE double *load = memory_allocate(model->layers * model->experts * sizeof *load);
    SCOPED_FREE float *excess = memory_allocate(model->experts * sizeof *excess);
    int64_t layer = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->kind != PARAMETER_BALANCE_BIAS) continue;
        device_download(loop->session.backend.device, excess, parameter_in(p, gradients), model->experts * sizeof *excess);
        for (int64_t e = 0; e < model->experts; e++) load[layer * model->experts + e] = excess[e] + 1.0 / model->experts;
        layer++;
    }
    note_record(loop, metrics_load(loop->metrics, step, model->layers, model->experts, load, &error), &error);
}

/* Bytes: the peak of the process where device memory is the host's, else what the plan takes. */
static int64_t memory_used(const Session *session) {
    return device_info(session->backend.device)->host_memory ? memory_peak() : session_budget(session).total;
}

/* Writes inputs and results of the first step, for comparison with other programs. */
static bool dump(Loop *loop, Error *error) {
    if (!loop->config->dump[0] || loop->dumped) return true;
    loop->dumped = true;
    return dump_step(&loop->session, loop->config->dump, &loop->inputs, error) || error_context(error, "dump=%s", loop->config->dump);
}

/* Seconds. */
static double time_left(const Loop *loop) {
    const Config *config = loop->config;
    int64_t step = loop->session.step, steps = config->steps, every = config->eval.every;
    int64_t tokens = session_samples_left(&loop->session) * config->data.length;
    int64_t evaluations = every > 0 ? (steps - 1) / every - step / every + 1 : 1;
    return pace_left(&loop->pace, tokens, step < steps ? evaluations : 0);
}

/* The record and the printed line of a step that took `seconds`. What a step reaches, the machine can: a GEMM that was
 * measured in a bad moment is no best. */
static void report_step(Loop *loop, const Share *share, const Outcome *outcome, double lr, double seconds) {
    const Config *config = loop->config;
    int64_t step = loop->session.step;
    Error error = {0};
    double flops = loop->session.plan.flops * share->all;
    if (loop->measured_flops > 0) loop->measured_flops = fmax(loop->measured_flops, flops / seconds / comm_size(loop->comm));
    StepMetrics metrics = {.step = step,
        .steps = config->steps,
        .loss = outcome->loss,
        .auxiliary = outcome->auxiliary,
        .gradient_norm = outcome->norm,
        .lr = lr,
        .seconds = seconds,
        .tokens = share->all * share->rows,
        .tokens_seen = loop->session.samples * config->data.length,
        .flops = flops,
        .peak_flops = loop->host->peak_flops * comm_size(loop->comm),
        .measured_flops = loop->measured_flops * comm_size(loop->comm),
        .memory = memory_used(&loop->session),
        .skipped = !is_finite(outcome),
        .seconds_left = time_left(loop)};
    if (!loop->metrics) return;
    console_step(loop->host->console, &metrics);
    note_record(loop, metrics_step(loop->metrics, &metrics, &error), &error);
}

/* Updates the weights, or leaves the update out after NaN. */
static bool apply_gradients(Loop *loop, int64_t step, const Share *share, const Outcome *outcome, double lr, Error *error) {
    if (!is_finite(outcome)) return handle_nan(loop, step, share, error);
    report_load(loop, step);
    session_update(&loop->session, step, lr, outcome->norm);
    loop->session.skips.row = 0;
    return true;
}

static bool run_step(Loop *loop, Error *error) {
    const Config *config = loop->config;
    Session *session = &loop->session;
    int64_t step = session->step + 1, targets;
    Share share = share_of(loop, step);
    Outcome outcome;
    double start = log_seconds(), lr = schedule_lr(&config->schedule, config->optimizer.lr, step, config->steps);
    if (!fetch(loop, &share, &targets, error) || !run_program(loop, &share, targets, error))
        return error_context(error, "step %lld", (long long)step);
    double executed = log_seconds();
    if (!sum_outcome(loop, &outcome, error) || !dump(loop, error) || !apply_gradients(loop, step, &share, &outcome, lr, error))
        return false;
    if (config->profile) device_synchronize(session->backend.device);
    double seconds = log_seconds() - start;
    loop->profile.steps++;
    loop->profile.seconds += seconds;
    loop->profile.optimizer += log_seconds() - executed;
    pace_step(&loop->pace, share.all * share.rows, seconds);
    session->samples += share.all * config->batch.sequences;
    session->step = step;
    report_step(loop, &share, &outcome, lr, seconds);
    return true;
}

/* -- Between steps ------------------------------------------------------------------------------------------------- */

/* Waits until `busy`, a question about the save under way, is false on all ranks. However long a store takes, that
 * is no hang. */
static bool await_save(Loop *loop, bool (*busy)(const Session *), Error *error) {
    double start = log_seconds();
    int64_t saving = 1;
    bool heard = true;
    while (saving && heard) {
        saving = busy(&loop->session);
        watchdog_alive(loop->watchdog, loop->session.step);
        heard = comm_host_all_reduce(loop->comm, "saving", &saving, 1, COMM_I64, COMM_SUM, error);
        if (saving && heard) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    loop->save_wait += log_seconds() - start;
    return heard;
}

/* Reports a save that has ended. A failed save costs a checkpoint, not the run, unless training has ended. */
static void report_save(Loop *loop, bool ended) {
    SaveReport report;
    Error error = {0};
    char size[32], rate[32], unchanged[32], shared[64] = "";
    const CheckpointStats *files = &report.files;
    if (!session_save_end(&loop->session, &report)) return;
    report.stall += loop->save_wait;
    loop->save_wait = 0;
    loop->save_failure = report.error;
    if (!report.saved && !ended) log_warn("%s; training goes on", report.error.message);
    if (!report.saved || !loop->metrics) return;
    log_format_bytes((double)files->bytes, size);
    log_format_bytes(files->seconds > 0 ? (files->bytes - files->shared) / files->seconds : 0, rate);
    log_format_bytes((double)files->shared, unchanged);
    if (files->shared) snprintf(shared, sizeof shared, " (%s unchanged)", unchanged);
    console_print(loop->host->console, "checkpoint of step %lld: %s%s in %.2f s, %s/s; training stood still for %.1f ms",
        (long long)report.step, size, shared, files->seconds, rate, report.stall * 1e3);
    note_record(loop, metrics_checkpoint(loop->metrics, report.step, files->seconds, files->bytes, &error), &error);
}

static bool end_save(Loop *loop, bool ended, Error *error) {
    if (!await_save(loop, session_is_saving, error)) return false;
    report_save(loop, ended);
    return true;
}

/* A checkpoint that survives a power cut is to find the records of its steps. */
static void sync_records(Loop *loop) {
    double start = log_seconds();
    Error error = {0};
    if (loop->metrics && !metrics_sync(loop->metrics, &error)) note_record(loop, false, &error);
    loop->save_wait += log_seconds() - start;
}

/* A store that does not answer may do so at the next save; one that another run has taken is its. */
static bool holds_store(const Loop *loop, Error *error) {
    Error failure = {0};
    if (!loop->session.lease || lease_check(loop->session.lease, &failure) || failure.code != ERROR_USAGE) return true;
    *error = failure;
    return error_context(error, "step %lld was not saved", (long long)loop->session.step);
}

static bool may_save(Loop *loop, Error *error) {
    const char *bad = numerics_bad_parameter(&loop->session);
    if (bad)
        return error_set(error, ERROR_NUMERICS,
            "step %lld: its update made NaN or infinity in parameter %s; it was not saved, and the last checkpoint is "
            "untouched. Lower optimizer.lr",
            (long long)loop->session.step, bad);
    return holds_store(loop, error);
}

static bool save(Loop *loop, Error *error) {
    if (!agree(loop, "save", may_save(loop, error), error) || !end_save(loop, false, error)) return false;
    sync_records(loop);
    return session_save_start(&loop->session, error) && await_save(loop, session_save_holds, error);
}

/* Waits for the last save, which must not fail. */
static bool finish_saves(Loop *loop, Error *error) {
    const Session *session = &loop->session;
    bool saved = end_save(loop, true, error);
    if (saved && loop->save_failure.code != ERROR_NONE)
        saved = error_set(error, loop->save_failure.code,
            "%s; training ended after step %lld, and the newest checkpoint is of step %lld: the same command continues from there",
            loop->save_failure.message, (long long)session->step, (long long)session->parent);
    return agree(loop, "last checkpoint", saved, error);
}

static void report_evaluation(Loop *loop, const Evaluation *result) {
    Error error = {0};
    int64_t step = loop->session.step;
    char bits[64] = "";
    if (!isnan(result->bits_per_byte)) snprintf(bits, sizeof bits, ", %.4f bits per byte", result->bits_per_byte);
    console_print(loop->host->console, "validation at step %lld: loss %.5f%s", (long long)step, result->loss, bits);
    note_record(loop, metrics_evaluation(loop->metrics, step, result->loss, result->bits_per_byte, result->tokens, result->seconds, &error),
        &error);
}

static void note_evaluation(Loop *loop, const Evaluation *result) {
    Validation *validation = &loop->session.validation;
    if (validation->tokens != result->tokens) *validation = (Validation){.tokens = result->tokens, .best_loss = NAN};
    validation->step = loop->session.step;
    validation->loss = result->loss;
    validation->waited++;
    if (!isfinite(result->loss) || (validation->best_step && result->loss >= validation->best_loss)) return;
    validation->best_step = validation->step;
    validation->best_loss = result->loss;
    validation->waited = 0;
}

/* eval.patience: whether enough evaluations brought nothing. All ranks know the same losses. */
static bool is_exhausted(const Loop *loop) {
    int64_t patience = loop->config->eval.patience;
    return patience && loop->session.validation.waited >= patience;
}

static void report_exhaustion(const Loop *loop) {
    const Validation *validation = &loop->session.validation;
    if (!leads(loop)) return;
    console_print(loop->host->console,
        "stopped early after step %lld: %lld evaluations since step %lld, whose validation loss is %.5f, brought no lower one; "
        "eval.patience=0 trains on",
        (long long)loop->session.step, (long long)validation->waited, (long long)validation->best_step, validation->best_loss);
}

static bool evaluate_and_report(Loop *loop, Error *error) {
    Evaluation result;
    if (!evaluate(&loop->session, &loop->corpus, loop->watchdog, loop->host->stop, &result, error)) return false;
    loop->unevaluated = result.stopped;
    if (result.stopped) return true;
    loop->pace.evaluation_seconds = result.seconds;
    note_evaluation(loop, &result);
    if (loop->metrics && metrics_evaluated(loop->metrics) < loop->session.step) report_evaluation(loop, &result);
    return isfinite(result.loss) || loop->config->on_nan == ON_NAN_SKIP ||
           error_set(error, ERROR_NUMERICS, "the validation loss after step %lld is %g: the model is broken. Lower optimizer.lr",
               (long long)loop->session.step, result.loss);
}

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static bool evaluation_due(const Loop *loop) {
    int64_t step = loop->session.step;
    return loop->corpus.has_valid && step > 0 && (due(step, loop->config->eval.every) || step == loop->config->steps);
}

/* Evaluates at the step that the run continues from, if the run was ended before it could; its checkpoint is to know. */
static bool catch_up(Loop *loop, Error *error) {
    if (!evaluation_due(loop) || loop->session.validation.step == loop->session.step) return true;
    return evaluate_and_report(loop, error) && (loop->unevaluated || save(loop, error));
}

/* Profiles the steps after one that warms caches up; writes no checkpoint and no record. */
static bool run_profile(Loop *loop, Error *error) {
    if (!run_step(loop, error)) return false;
    loop->profile = (Profile){0};
    for (int64_t i = 0; i < loop->config->profile; i++)
        if (!run_step(loop, error)) return false;
    if (leads(loop)) profile_print(&loop->profile, loop->measured_flops, stdout);
    return true;
}

/* Traffic and waiting since `before`, `seconds` ago. */
static void report_communication(const Loop *loop, const CommTotals *before, double seconds) {
    CommTotals now = comm_totals(loop->comm);
    char sent[32];
    double waited = now.waited + now.stalled - before->waited - before->stalled;
    if (!leads(loop) || comm_size(loop->comm) == 1) return;
    log_format_bytes((double)(now.bytes - before->bytes), sent);
    log_info("communication of rank 0: %s sent in %lld collectives, %.1f s (%.1f%% of all time) spent waiting for them", sent,
        (long long)(now.collectives - before->collectives), waited, seconds > 0 ? 100 * waited / seconds : 0);
}

/* The error of a run that ends before its last step, or before its last evaluation is complete. */
static bool report_stop(const Loop *loop, int signal, Error *error) {
    const char *name = signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGHUP";
    int64_t step = loop->session.step;
    if (step == 0)
        return error_set(error, ERROR_PREEMPTED, "%s before the first step: nothing is lost, the same command starts again", name);
    SCOPED_FREE char *command = comm_size(loop->comm) > 1 ? memory_copy_string("the same command") : summary_command(loop->config, "");
    return error_set(error, ERROR_PREEMPTED, "paused by %s after step %lld: a checkpoint was written; continue with: %s", name,
        (long long)step, command);
}

/* `end` has the first step and the negative of the tokens until then. */
static void report_end(const Loop *loop, SummaryEnd end, double seconds) {
    end.step = loop->session.step;
    end.tokens += loop->session.samples * loop->config->data.length;
    end.seconds = seconds;
    end.validation = loop->session.validation;
    console_end_steps(loop->host->console);
    summary_end(loop->host->console, loop->config, &end);
}

/* A step and what is due after it: evaluated before it is saved, so that a checkpoint knows its validation loss. *saved: the step of the newest checkpoint. */
static bool advance(Loop *loop, int64_t last, int64_t *saved, Error *error) {
    if (!run_step(loop, error)) return false;
    int64_t step = loop->session.step;
    if (step == loop->config->steps && 2 * loop->session.skips.all > step) return refuse_skips(&loop->session.skips, step, error);
    report_save(loop, false);
    watchdog_alive(loop->watchdog, step);
    session_prepare_save(&loop->session);
    if (evaluation_due(loop) && !evaluate_and_report(loop, error)) return false;
    bool best = loop->config->checkpoint.keep_best && loop->session.validation.best_step == step;
    if (due(step, loop->config->checkpoint.every) || step == last || best) {
        if (!save(loop, error)) return false;
        *saved = step;
    }
    watchdog_alive(loop->watchdog, step);
    return true;
}

/* Says of a run that has done `step` steps why it does no more, and how it would. */
static void report_nothing_to_do(const Config *config, int64_t step) {
    const char *run = config->run;
    if (step == config->steps)
        log_info("%s is finished, with all %lld steps done: smelt train %s steps=%lld goes on, init=%s starts another run from its weights",
            run, (long long)step, run, 2 * (long long)step, run);
    else if (config->stop_at && step >= config->stop_at)
        log_info("%s has done %lld of %lld steps, and stop_at=%lld is not beyond: leave it out, or give a later step", run, (long long)step,
            (long long)config->steps, (long long)config->stop_at);
}

static bool run_steps(Loop *loop, Error *error) {
    const Config *config = loop->config;
    int64_t last = config->stop_at && config->stop_at < config->steps ? config->stop_at : config->steps, saved = loop->session.step;
    int signal = 0;
    double start = log_seconds();
    SummaryEnd end = {.first = saved, .tokens = -loop->session.samples * config->data.length};
    CommTotals before = comm_totals(loop->comm);
    loop->watchdog = watchdog_start(loop->comm, config->hang, &loop->host->hang, error);
    if (!loop->watchdog || (loop->origin.forked && !save(loop, error)) || !catch_up(loop, error)) return false;
    if (leads(loop)) report_nothing_to_do(config, saved);
    while (loop->session.step < last && !is_exhausted(loop) && (signal = agree_on_signal(loop, error)) == 0)
        if (!advance(loop, last, &saved, error)) return false;
    if (signal < 0 || (saved != loop->session.step && !save(loop, error)) || !finish_saves(loop, error)) return false;
    report_communication(loop, &before, log_seconds() - start);
    if (is_exhausted(loop)) report_exhaustion(loop);
    if ((loop->session.step >= last || is_exhausted(loop)) && !loop->unevaluated) {
        if (leads(loop) && loop->session.step > end.first) report_end(loop, end, log_seconds() - start);
        return true;
    }
    if (!signal && (signal = agree_on_signal(loop, error)) < 0) return false;
    return report_stop(loop, signal, error);
}

/* -- Start and end ------------------------------------------------------------------------------------------------- */

/* FLOP/s of the best of a few large GEMMs in the run's precision: the machine's measured peak. About 50 ms. */
static double measure_gemm(const Config *config, Device *device) {
    enum { TRIES = 5 };
    GemmType type = precision_is_bf16(config->precision) ? GEMM_BF16 : config->precision == PRECISION_FP32 ? GEMM_F32 : GEMM_F64;
    int64_t size = device_info(device)->massively_parallel ? 8192 : 768,
            bytes = size * size * (int64_t)precision_bytes(config->precision, TYPE_COMPUTE);
    if (type == GEMM_F64 || strstr(device_info(device)->name, "emulated")) return 0; /* for checks, not for speed */
    Error ignored = {0};
    char *memory = device_allocate(device, 3 * bytes, &ignored);
    if (!memory) return 0;
    Gemm gemm = {.transpose_b = true, .input = type, .output = type, .a = memory, .b = memory + bytes, .c = memory + 2 * bytes};
    gemm.m = gemm.n = gemm.k = gemm.lda = gemm.ldb = gemm.ldc = size;
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        device_timer_start(device);
        device_gemm(device, &gemm);
        double rate = 2.0 * size * size * size / device_timer_stop(device);
        if (rate > best) best = rate;
    }
    device_free(device, memory, 3 * bytes);
    return best;
}

static bool report_start(Loop *loop, Error *error) {
    const Graph *graph = loop->session.model.graph;
    const DeviceInfo *device = device_info(loop->session.backend.device);
    SCOPED_FREE char *machine = run_describe_machine();
    json_auto_t *details =
        json_pack("{s:I, s:I, s:s, s:i, s:s, s:s}", "parameters", (json_int_t)model_parameters(graph), "active_parameters",
            (json_int_t)model_active_parameters(graph, &loop->config->model), "machine", machine, "threads", omp_get_max_threads(),
            "precision", precision_name(loop->config->precision), "device", device->kind == DEVICE_CPU ? "cpu" : device->name);
    return metrics_start(loop->metrics, loop->session.step, details, error);
}

static bool open_loader(Loop *loop, Error *error) {
    const Config *config = loop->config;
    LoaderOptions options = {.shard = &loop->corpus.train,
        .sequences = config->batch.sequences,
        .length = config->data.length,
        .vocabulary = (int32_t)config->model.vocabulary,
        .separator = loop->corpus.bytes ? BYTE_SEPARATOR : -1,
        .document_mask = config->data.document_mask,
        .shuffle = true,
        .seed = config->seed,
        .pick = pick,
        .pick_context = &loop->picker};
    int rank = comm_rank(loop->comm);
    loop->picker =
        (BatchPicker){.config = config, .rank = rank, .size = comm_size(loop->comm), .step = loop->session.step + 1, .next = rank};
    loop->loader = loader_open(&options, loop->session.samples, error);
    return loop->loader || error_context(error, "data.train=%s", config->data.train);
}

static bool load_weights(Session *session, const char *folder, const Config *origin, Error *error) {
    if (session->config->lora.rank) return adapter_load_base(session, folder, origin, error);
    if (!session->layout->stage) return source_load_program(folder, origin, session->executor, error);
    SCOPED(host_model_close) HostModel whole = {0};
    return host_model_open(&whole, &session->config->model, NULL, session->config->precision, error) &&
           source_load_weights(folder, origin, whole.model.graph, whole.master, NULL, error) &&
           session_set_master(session, whole.model.graph, whole.master, error);
}

/* Loads the weights of init=FOLDER into a run without steps, and the frozen ones of a run with adapters into any. */
static bool load_initial(Loop *loop, Error *error) {
    const char *folder = loop->config->init;
    Config origin;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    if (!folder[0] || (loop->session.step && !loop->config->lora.rank)) return true;
    if (!source_read_config(folder, &origin, &strings, error) || !load_weights(&loop->session, folder, &origin, error))
        return error_context(error, "init=%s", folder);
    if (leads(loop)) log_info("starting from the weights of %s", folder);
    return true;
}

/* Bytes for this rank: the ranks of a node share host memory. */
static int64_t available_memory(const Loop *loop, const Device *device) {
    int64_t available = device_available(device);
    return available < 0 || !device_info(device)->host_memory ? available : available / comm_local_size(loop->comm);
}

static bool check_settings(const Config *config, int ranks, Error *error) {
    if (config->lora.rank && !config->init[0])
        return error_set(error, ERROR_USAGE, "lora.rank=%lld trains beside the weights of a model: give its folder, init=FOLDER",
            (long long)config->lora.rank);
    if (config->lora.rank && config->dump[0])
        return error_set(error, ERROR_USAGE,
            "dump=%s writes all weights and gradients, of which a run with lora.rank has few: leave one out", config->dump);
    return ranks == 1 || !config->dump[0] ||
           error_set(error, ERROR_USAGE, "dump=%s works with one process, and there are %d: start one alone", config->dump, ranks);
}

/* All ranks must mean the same data. Rank 0 knows the origin, and compares the run with its newest checkpoint. */
static bool identify(Loop *loop, Error *error) {
    Origin *origin = &loop->origin;
    if (!comm_host_broadcast(loop->comm, "origin", origin, sizeof *origin, COMM_U8, 0, error)) return false;
    loop->identity = identity_create(loop->config, &loop->corpus, origin->number, origin->step > 0, error);
    loop->session.identity = loop->identity;
    loop->changes = json_array();
    if (!agree(loop, "identity", loop->identity, error)) return false;
    json_auto_t *content = identity_content(loop->identity);
    return agree(loop, "data", identity_agree(loop->comm, "data", content, error), error) &&
           (!leads(loop) || lineage_compare(loop->config, origin, loop->identity, loop->changes, error));
}

static bool take_store(Loop *loop, const char *number, Error *error) {
    const Config *config = loop->config;
    loop->session.lease = config->profile ? NULL : lease_take(run_checkpoints(config->run, config), number, config->run, error);
    return loop->session.lease || config->profile;
}

/* All ranks save into one store. */
static bool see_store(Loop *loop, Error *error) {
    const double limit = 20; /* seconds */
    const Config *config = loop->config;
    char holder[LEASE_HOLDER_BYTES] = "";
    if (config->profile) return true;
    if (leads(loop)) snprintf(holder, sizeof holder, "%s", lease_holder(loop->session.lease));
    return comm_host_broadcast(loop->comm, "store", holder, sizeof holder, COMM_U8, 0, error) &&
           (leads(loop) || lease_await(run_checkpoints(config->run, config), holder, limit, error));
}

/* Rank 0 makes the run folder and packs text; then the others open what it made. */
static bool open_run(Loop *loop, Error *error) {
    const Config *config = loop->config;
    bool opened = check_settings(config, comm_size(loop->comm), error) && identity_check_words(config->resume.accept, error);
    if (leads(loop))
        opened = opened && run_lock(config->run, &loop->lock, error) && run_open(config, error) &&
                 lineage_find(config, &loop->origin, error) && take_store(loop, loop->origin.number, error) &&
                 (!loop->origin.forked || corpus_fork(config, error)) &&
                 corpus_open(&loop->corpus, config, loop->origin.step ? CORPUS_PACKED : CORPUS_NEW, error);
    if (!agree(loop, "run folder", opened, error) || !agree(loop, "store", see_store(loop, error), error)) return false;
    opened = (leads(loop) || corpus_open(&loop->corpus, config, CORPUS_MADE, error)) &&
             corpus_resolve_steps(&loop->settings, &loop->corpus.train, error);
    return agree(loop, "corpus", opened, error) && identify(loop, error);
}

static bool same_settings(Loop *loop, Error *error) {
    json_auto_t *settings = identity_settings(loop->config, true);
    json_object_set_new(settings, "version", json_string(SMELT_VERSION));
    return agree(loop, "settings", identity_agree(loop->comm, "settings", settings, error), error);
}

static bool plan(Loop *loop, Device *device, Error *error) {
    Session *session = &loop->session;
    loop->available = available_memory(loop, device);
    return session_plan_rank(session, loop->config, device, comm_rank(loop->comm), comm_size(loop->comm), error) &&
           session_check_memory(session, loop->available, error);
}

/* A process that was killed after a save and before its record left a checkpoint without one. */
static void record_checkpoint(Loop *loop) {
    Error error = {0};
    int64_t step = loop->session.step;
    if (step == 0 || metrics_saved(loop->metrics) >= step) return;
    note_record(loop, metrics_checkpoint(loop->metrics, step, NAN, -1, &error), &error);
}

static bool open_records(Loop *loop, Error *error) {
    if (loop->config->profile || !leads(loop)) return true;
    if (!checkpoint_probe(run_checkpoints(loop->config->run, loop->config), error)) return false;
    loop->metrics = metrics_open(loop->config->run, loop->session.step, loop->config->tensorboard, error);
    if (!loop->metrics) return false;
    console_open_log(loop->host->console, loop->config->run);
    record_checkpoint(loop);
    SCOPED_FREE char *device = op_describe(&loop->session.backend);
    Computer computer = {comm_size(loop->comm), device};
    return report_start(loop, error) && lineage_write(loop->config, &loop->origin, &computer, loop->identity, loop->changes, error);
}

static void allocate_step(Loop *loop) {
    int64_t rows = session_step_rows(&loop->session);
    int32_t *block = memory_allocate((size_t)rows * 3 * sizeof *block);
    loop->inputs = (StepInputs){.tokens = block, .targets = block + rows, .positions = block + 2 * rows};
}

/* Says before the first step what `smelt convert` will refuse after the last: a model that no class of transformers
 * computes. A llama with experts is a Mixtral there, whose routers have no biases. */
static void warn_of_export(const Config *config) {
    Error reason = {0};
    if (!hf_check(&config->model, &reason))
        log_warn("smelt convert will refuse to write this model as a Hugging Face folder: %s", reason.message);
    else if (config->model.family == FAMILY_LLAMA && config->model.experts && config->optimizer.balance_lr > 0)
        log_warn(
            "optimizer.balance_lr=%g trains load-balancing biases, which MixtralForCausalLM lacks: smelt convert will refuse the model; "
            "optimizer.balance_lr=0 with model.auxiliary_loss balances without them",
            config->optimizer.balance_lr);
}

/* Text that is read up to 4 times teaches nearly as much as new text, and beyond 16 times hardly anything (Muennighoff et
 * al. 2023, arXiv 2305.16264, figure 5). */
static void warn_of_repetition(const Loop *loop) {
    enum { GOOD = 4, MUCH = 16 };
    const Config *config = loop->config;
    int64_t held = loop->corpus.train.token_count;
    int64_t read = (loop->session.samples + session_samples_left(&loop->session)) * config->data.length;
    if (read / held < MUCH) return;
    log_warn(
        "%lld steps read the %lld tokens of data.train %lld times, and the model will memorise them: give more text, or fewer steps (%lld "
        "read it %d times)",
        (long long)config->steps, (long long)held, (long long)(read / held), (long long)int_max(1, GOOD * held / config->batch.tokens),
        GOOD);
}

/* Rows that no token reaches cost memory and time; so many mean that the tokenizer is not the model's. */
static void warn_of_rows(const Loop *loop) {
    const Corpus *corpus = &loop->corpus;
    int64_t rows = loop->config->model.vocabulary, tokens = corpus->tokenizer ? tokenizer_vocabulary(corpus->tokenizer)
                                                            : corpus->bytes   ? BYTE_VOCABULARY
                                                                              : rows;
    if (rows > 2 * tokens)
        log_warn("model.vocabulary=%lld is more than twice the %lld tokens of %s: model.vocabulary=0 follows it", (long long)rows,
            (long long)tokens, corpus->bytes ? "the byte tokenizer" : "data.tokenizer");
}

static bool resume(Loop *loop, Error *error) {
    const Origin *origin = &loop->origin;
    SCOPED_FREE char *where = lineage_store(loop->config, origin, error);
    return agree(loop, "store of the checkpoint", where, error) &&
           session_resume(&loop->session, where, origin->forked ? origin->step : 0, error);
}

static bool start(Loop *loop, Device *device, Error *error) {
    const Config *config = loop->config;
    Session *session = &loop->session;
    bool ready = same_settings(loop, error) && agree(loop, "plan", plan(loop, device, error), error) && open_run(loop, error) &&
                 evaluate_check(session, &loop->corpus, error);
    if (!agree(loop, "data", ready, error)) return false;
    if (!session_start(session, loop->comm, error) || !resume(loop, error) || !load_initial(loop, error)) return false;
    if (session->step > config->steps)
        return error_set(error, ERROR_USAGE,
            "steps=%lld is below the %lld steps that %s has done: give more, or another run folder; smelt train %s fork=NEW "
            "from=STEP goes on from an earlier checkpoint",
            (long long)config->steps, (long long)session->step, config->run, config->run);
    if (leads(loop)) summary_start(loop->host->console, session, &loop->corpus, loop->available);
    if (leads(loop) && !session->step) {
        warn_of_export(config);
        warn_of_repetition(loop);
        warn_of_rows(loop);
    }
    allocate_step(loop);
    loop->measured_flops = measure_gemm(config, device);
    return agree(loop, "start", open_loader(loop, error) && open_records(loop, error), error);
}

static void finish(Loop *loop) {
    watchdog_stop(loop->watchdog);
    if (loop->metrics) metrics_close(loop->metrics);
    loader_close(loop->loader);
    free(loop->inputs.tokens);
    Lease *lease = loop->session.lease;
    session_free(&loop->session);
    lease_release(lease);
    corpus_close(&loop->corpus);
    json_decref(loop->identity);
    json_decref(loop->changes);
    if (loop->lock >= 0) close(loop->lock);
}

bool train_settings_agree(const Config *config, Comm *comm, Error *error) {
    Loop loop = {.config = config, .comm = comm, .lock = -1};
    return same_settings(&loop, error);
}

bool train(const Config *config, Device *device, Comm *comm, const TrainHost *host, Error *error) {
    Loop loop = {.settings = *config, .config = &loop.settings, .comm = comm, .host = host, .lock = -1};
    gemm_exact(config->exact_gemm);
    bool done = start(&loop, device, error);
    host->stop->heeded = 1;
    done = done && (config->profile ? run_profile(&loop, error) : run_steps(&loop, error));
    console_end_steps(host->console);
    finish(&loop);
    return done;
}

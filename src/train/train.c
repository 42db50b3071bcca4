/* The training loop: between steps it evaluates, writes checkpoints and handles requests to stop.
 * All state that a step changes is in the session, so a checkpoint between two steps is complete.
 *
 * With several ranks each of them runs this loop. Everything that decides the next action (losses,
 * requests to stop, failures) is first agreed on by a collective. Rank 0 reports. Called by `smelt
 * train`. */
#include "train/train.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"
#include "device/gemm.h"
#include "eval/evaluate.h"
#include "eval/picture_sample.h"
#include "eval/text_sample.h"
#include "run/run.h"
#include "run/run_state.h"
#include "train/loop_internal.h"
#include "train/numerics_internal.h"
#include "train/summary_internal.h"

/* -- Agreement ----------------------------------------------------------------------------------------------------- */

/* Returns the exit code of ranks that could have continued, from the number of ranks that failed
 * with each code. If a restart would not help, it is the code of the failure, so that the run has
 * one code. Other failures may belong to one node, so the other ranks end with ERROR_COMMUNICATION. */
static ErrorCode shared_code(const int64_t failed[ERROR_CODES]) {
    static const ErrorCode shared[] = {ERROR_USAGE, ERROR_DATA, ERROR_MEMORY, ERROR_CHECKPOINT, ERROR_NUMERICS};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        if (failed[shared[i]]) return shared[i];
    return ERROR_COMMUNICATION;
}

bool loop_agree(const Loop *loop, const char *name, bool good, Error *error) {
    int64_t failed[ERROR_CODES] = {0}, all = 0;
    Error ignored = {0};
    if (!good) failed[error->code]++;
    if (!comm_host_all_reduce(loop->comm, name, failed, ERROR_CODES, COMM_I64, COMM_SUM, good ? error : &ignored)) return false;
    for (int code = 0; code < ERROR_CODES; code++) all += failed[code];
    if (!good || !all) return good;
    return error_set(error, shared_code(failed), "%lld of %d ranks cannot continue, for the reasons in their messages; this rank stops too",
        (long long)all, comm_size(loop->comm));
}

/* The values that ranks exchange between steps and while they wait for a save. Each value is the maximum over all
 * ranks. */
typedef struct News {
    int64_t signal; /* the signal that asked a rank to stop; 0: none */
    int64_t busy;   /* whether a rank waits for its save */
    int64_t failed; /* 1 + the rank whose shard could not be written; 0: none */
} News;

/* Gives rank 0, which waits for all shards in the store, the reason for a missing shard. The rank
 * cannot use the store for this, because its connection to the store may have failed. */
static bool pass_failure(Loop *loop, int rank, Error *error) {
    char reason[1024] = "";
    const Error *own = session_failed_shard(&loop->session);
    if (own && rank == comm_rank(loop->comm)) snprintf(reason, sizeof reason, "rank %d: %.960s", rank, own->message);
    if (!comm_host_broadcast(loop->comm, "failed shard", reason, sizeof reason, COMM_U8, rank, error)) return false;
    session_give_up_shard(&loop->session, reason);
    return true;
}

static bool share_news(Loop *loop, bool busy, News *news, Error *error) {
    const bool failed = session_failed_shard(&loop->session);
    *news = (News){loop->host->stop->signal, busy, failed ? comm_rank(loop->comm) + 1 : 0};
    return comm_host_all_reduce(loop->comm, "news", news, sizeof *news / sizeof(int64_t), COMM_I64, COMM_MAX, error) &&
           (!news->failed || pass_failure(loop, (int)news->failed - 1, error));
}

/* Returns the signal that asked any rank to stop, or 0; -1 after a failure. */
static int agree_on_signal(Loop *loop, Error *error) {
    News news;
    return share_news(loop, false, &news, error) ? (int)news.signal : -1;
}

/* -- Records, saves, evaluations ----------------------------------------------------------------------------------- */

void loop_note_record(Loop *loop, bool written, Error *error) {
    if (!written && !loop->unrecorded) log_warn("%s; training continues without records until they can be written", error->message);
    if (written && loop->unrecorded) log_info("records are being written again");
    loop->unrecorded = !written;
    *error = (Error){0};
}

void loop_report_warnings(Loop *loop, int64_t step) {
    Error error = {0};
    for (char *text; loop->metrics && (text = console_next_warning(loop->host->console));) {
        loop_note_record(loop, metrics_event(loop->metrics, step, "warning", text, &error), &error);
        free(text);
    }
}

void loop_report_machine(Loop *loop, int64_t step, bool now) {
    SensorReading reading;
    Error error = {0};
    if (!loop->metrics || !sampler_take(loop->sampler, now, &reading)) return;
    loop_note_record(loop, metrics_system(loop->metrics, step, &reading, &error), &error);
}

void loop_alarm(Loop *loop, RunEventKind kind, const char *format, ...) {
    char message[512];
    Error error = {0};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    int64_t step = loop->session.step;
    if (events_send(loop->events, kind, NULL, step, message) && loop->metrics)
        loop_note_record(loop, metrics_event(loop->metrics, step, events_name(kind), message, &error), &error);
}

/* A checkpoint needs its room before older ones are removed. */
static void check_room(Loop *loop) {
    const char *where = run_checkpoints(loop->settings.run, &loop->settings);
    double room = loop->events && !file_scheme(where) ? file_free_bytes(where) : -1;
    char left[32], one[32];
    if (room < 0 || room >= (double)loop->save_bytes) return;
    log_format_bytes(room, left);
    log_format_bytes((double)loop->save_bytes, one);
    loop_alarm(loop, RUN_EVENT_DISK, "the disk of %s has %s free, and a checkpoint needs %s", where, left, one);
}

/* Waits until `busy`, a question about the save in progress, is false on all ranks. A slow store
 * does not count as a hang. */
static bool await_save(Loop *loop, bool (*busy)(const Session *), Error *error) {
    double start = log_seconds();
    News news = {.busy = true};
    bool heard = true;
    while (news.busy && heard) {
        watchdog_alive(loop->watchdog, loop->session.step);
        heard = share_news(loop, busy(&loop->session), &news, error);
        if (news.busy && heard) nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
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
    if (!report.saved && !ended) log_warn("%s; training continues", report.error.message);
    if (!report.saved) loop_alarm(loop, RUN_EVENT_CHECKPOINT_FAILED, "%s", report.error.message);
    if (!report.saved || !loop->metrics) return;
    log_format_bytes((double)files->bytes, size);
    log_format_bytes(files->seconds > 0 ? (files->bytes - files->shared) / files->seconds : 0, rate);
    log_format_bytes((double)files->shared, unchanged);
    if (files->shared) snprintf(shared, sizeof shared, " (%s unchanged)", unchanged);
    console_print(loop->host->console, "checkpoint of step %lld: %s%s in %.2f s, %s/s; training paused for %.1f ms", (long long)report.step,
        size, shared, files->seconds, rate, report.stall * 1e3);
    loop_note_record(loop, metrics_checkpoint(loop->metrics, report.step, files->seconds, files->bytes, &error), &error);
}

static void write_note(Loop *loop) {
    Error error = {0};
    if (!session_write_note(&loop->session, &error))
        log_warn("%s; the checkpoint lacks this evaluation, so a run that continues from it repeats the evaluation", error.message);
}

static bool end_save(Loop *loop, bool ended, Error *error) {
    if (!await_save(loop, session_is_saving, error)) return false;
    report_save(loop, ended);
    write_note(loop);
    return true;
}

/* Syncs the records. A checkpoint that survives a power cut then has the records of its steps. */
static void sync_records(Loop *loop) {
    double start = log_seconds();
    Error error = {0};
    if (loop->metrics && !metrics_sync(loop->metrics, &error)) loop_note_record(loop, false, &error);
    loop->save_wait += log_seconds() - start;
}

/* A store that does not answer may answer at the next save. A store that another run has leased is
 * a fatal error. */
static bool holds_store(const Loop *loop, Error *error) {
    Error failure = {0};
    if (!loop->session.lease || lease_check(loop->session.lease, &failure) || failure.code != ERROR_USAGE) return true;
    *error = failure;
    return error_context(error, "step %lld is not saved", (long long)loop->session.step);
}

static bool may_save(Loop *loop, Error *error) {
    const char *bad = numerics_bad_parameter(&loop->session);
    if (bad)
        return error_set(error, ERROR_NUMERICS,
            "step %lld: the update made NaN or infinity in parameter %s, so the step is not saved; the last checkpoint is intact. Lower "
            "optimizer.lr",
            (long long)loop->session.step, bad);
    return holds_store(loop, error);
}

static bool save(Loop *loop, Error *error) {
    if (!loop_agree(loop, "save", may_save(loop, error), error) || !end_save(loop, false, error)) return false;
    sync_records(loop);
    check_room(loop);
    return session_save_start(&loop->session, error) && await_save(loop, session_save_holds, error);
}

/* *again: the last save failed on some rank, and there is time left to retry it. */
static bool agree_on_retry(const Loop *loop, double until, bool *again, Error *error) {
    int64_t code = log_seconds() < until ? loop->save_failure.code : ERROR_NONE;
    bool heard = comm_host_all_reduce(loop->comm, "failed save", &code, 1, COMM_I64, COMM_MAX, error);
    *again = code != ERROR_NONE;
    return heard;
}

/* Waits for the last save, which must not fail: it is retried for a while. */
static bool finish_saves(Loop *loop, Error *error) {
    const Session *session = &loop->session;
    const int first = 2;        /* pauses start at 0.4 s */
    const double patience = 12; /* seconds; an attempt itself may take long */
    int attempts = first;
    bool again = false, saved = end_save(loop, true, error);
    double until = log_seconds() + patience;
    saved = saved && agree_on_retry(loop, until, &again, error);
    while (saved && again && thread_pause(&attempts)) {
        if (loop_leads(loop) && attempts == first + 1) log_warn("%s; trying again for a while", loop->save_failure.message);
        saved = save(loop, error) && end_save(loop, true, error) && agree_on_retry(loop, until, &again, error);
    }
    if (saved && loop->save_failure.code != ERROR_NONE)
        saved = error_set(error, loop->save_failure.code,
            "%s; training ended after step %lld, but the newest checkpoint is of step %lld: the same command continues from there",
            loop->save_failure.message, (long long)session->step, (long long)session->parent);
    return loop_agree(loop, "last checkpoint", saved, error);
}

static void report_evaluation(Loop *loop, const Evaluation *result) {
    Error error = {0};
    int64_t step = loop->session.step;
    int64_t length = loop->config->data.length;
    const Rewards *rewards = &result->rewards;
    char bits[128] = "", where[64] = "";
    if (!isnan(result->bits_per_byte)) snprintf(bits, sizeof bits, ", %.4f bits per byte", result->bits_per_byte);
    if (rewards->pairs)
        snprintf(bits, sizeof bits, ", margin %.4f, chosen preferred in %.1f%% of %lld pairs", rewards->chosen - rewards->rejected,
            100 * rewards->accuracy, (long long)rewards->pairs);
    if (loop->phases.count > 1) snprintf(where, sizeof where, " in sequences of %lld tokens", (long long)length);
    if (loop->rollouts)
        console_print(loop->host->console, "validation at step %lld: reward %.5f over %lld prompts", (long long)step, -result->loss,
            (long long)result->tokens);
    else console_print(loop->host->console, "validation at step %lld%s: loss %.5f%s", (long long)step, where, result->loss, bits);
    EvaluationMetrics metrics = {
        step, result->tokens, length, result->loss, result->bits_per_byte, result->seconds, *rewards, loop->rollouts ? -result->loss : NAN};
    loop_note_record(loop, metrics_evaluation(loop->metrics, &metrics, &error), &error);
}

static void note_evaluation(Loop *loop, const Evaluation *result) {
    Validation *validation = &loop->session.validation;
    if (validation->tokens != result->tokens) *validation = (Validation){.tokens = result->tokens, .best_loss = NAN};
    validation->length = loop->config->data.length;
    validation->step = loop->session.step;
    validation->loss = result->loss;
    validation->waited++;
    if (!isfinite(result->loss) || (validation->best_step && result->loss >= validation->best_loss)) return;
    validation->best_step = validation->step;
    validation->best_loss = result->loss;
    validation->waited = 0;
    loop_alarm(loop, RUN_EVENT_BEST, "the validation loss %.5f is the best so far", result->loss);
}

/* Returns whether enough evaluations brought no improvement, by eval.patience. All ranks know the
 * same losses. */
static bool is_exhausted(const Loop *loop) {
    int64_t patience = loop->config->eval.patience;
    return patience && loop->session.validation.waited >= patience;
}

static void report_exhaustion(const Loop *loop) {
    const Validation *validation = &loop->session.validation;
    if (!loop_leads(loop)) return;
    console_print(loop->host->console,
        "stopped early after step %lld: none of %lld evaluation%s after step %lld had a validation loss below %.5f; eval.patience=0 "
        "continues training",
        (long long)loop->session.step, (long long)validation->waited, plural(validation->waited), (long long)validation->best_step,
        validation->best_loss);
}

static void report_sample(Loop *loop, const TextSample *sample) {
    enum { SHOWN_PROMPT = 40, SHOWN_TEXT = 240 };
    Error error = {0};
    char prompt[4 * SHOWN_PROMPT + 4], text[4 * SHOWN_TEXT + 4];
    console_shorten(sample->prompt, SHOWN_PROMPT, prompt);
    console_shorten(sample->text, SHOWN_TEXT, text);
    console_print(loop->host->console, "  sample  after \"%s\": %s", prompt, text);
    loop_note_record(loop,
        metrics_sample(loop->metrics, loop->session.step, sample->prompt, sample->text, sample->tokens, sample->seconds, &error), &error);
}

static bool evaluate_and_report(Loop *loop, Error *error) {
    Evaluation result;
    SCOPED(text_sample_free) TextSample sample = {0};
    SCOPED_FREE char *pictures = NULL;
    const TextSampleInput input = {&loop->session, &loop->corpus, &loop->prompt, loop->watchdog, loop->host->stop};
    bool done = loop->rollouts ? loop_evaluate_policy(loop, &result, error)
                               : evaluate(&loop->session, &loop->corpus, loop->watchdog, loop->host->stop, &result, error);
    loop->unread = !done && error->code == ERROR_DATA; /* on all ranks */
    if (!done) return false;
    if (!result.stopped && isfinite(result.loss) && loop->prompt.count && !text_sample(&input, &sample, error)) return false;
    if (!result.stopped && !picture_sample(&loop->session, &loop->corpus, loop->watchdog, loop->host->stop, &pictures, error)) return false;
    loop->unevaluated = result.stopped || sample.stopped;
    if (loop->unevaluated) return true;
    loop->pace.evaluation_seconds = result.seconds + sample.seconds;
    if (result.missing) {
        if (loop_leads(loop))
            log_warn("validation at step %lld: %lld of %lld prompts have no reward, so it counts neither for the best checkpoint nor for "
                     "eval.patience",
                (long long)loop->session.step, (long long)result.missing, (long long)(result.tokens + result.missing));
        return true;
    }
    note_evaluation(loop, &result);
    if (loop->metrics) report_evaluation(loop, &result);
    if (loop->metrics && sample.text) report_sample(loop, &sample);
    if (pictures) console_print(loop->host->console, "  pictures %s", pictures);
    session_note_validation(&loop->session); /* after the records; a start without the note makes them again */
    write_note(loop);
    return isfinite(result.loss) || loop->config->on_nan == ON_NAN_SKIP ||
           error_set(error, ERROR_NUMERICS,
               "the validation loss after step %lld is %g. Lower optimizer.lr; smelt train %s fork=NEW from=STEP continues from an earlier "
               "checkpoint",
               (long long)loop->session.step, result.loss, loop->config->run);
}

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* Returns whether a phase with another sequence length begins here: the loss of the same weights at
 * both lengths connects the two curves. */
static bool changes_length(const Loop *loop) {
    const Phase *phase = loop_phase(loop);
    return loop->phase > 0 && loop->session.samples == phase->first_sample && phase->config.data.length != phase[-1].config.data.length;
}

static bool evaluation_due(const Loop *loop) {
    int64_t step = loop->session.step, every = loop->config->eval.every;
    bool asked = due(step, every) || (every > 0 && changes_length(loop));
    return loop->corpus.has_valid && step > 0 && (asked || step == loop->config->steps);
}

bool loop_owes_evaluation(const Loop *loop) { return evaluation_due(loop) && loop->session.validation.step != loop->session.step; }

/* Profiles the steps after one warm-up step; writes no checkpoint and no record. */
static bool run_profile(Loop *loop, Error *error) {
    if (!loop_step(loop, error)) return false;
    loop->profile = (Profile){0};
    for (int64_t i = 0; i < loop->config->profile && loop->session.samples < phase_end(loop_phase(loop)); i++)
        if (!loop_step(loop, error)) return false;
    if (loop_leads(loop)) profile_print(&loop->profile, loop->measured_flops, stdout);
    return true;
}

/* Reports traffic and waiting since `before`, `seconds` ago. */
static void report_communication(const Loop *loop, const CommTotals *before, double seconds) {
    CommTotals now = comm_totals(loop->comm);
    char sent[32];
    double waited = now.waited + now.stalled - before->waited - before->stalled;
    if (!loop_leads(loop) || comm_size(loop->comm) == 1) return;
    log_format_bytes((double)(now.bytes - before->bytes), sent);
    log_info("communication of rank 0: %s sent in %lld collectives, %.1f s (%.1f%% of all time) spent waiting", sent,
        (long long)(now.collectives - before->collectives), waited, seconds > 0 ? 100 * waited / seconds : 0);
}

/* Reports only on data in object stores, because a slow disk shows in the speed of the steps. */
static void report_data(const Loop *loop) {
    const DataWait *wait = &loop->data_wait;
    bool remote = false;
    for (int i = 0; i < loop->corpus.train_count; i++) remote |= loop->corpus.train[i].remote != NULL;
    if (!loop_leads(loop) || !remote || wait->steps < 2) return;
    log_info("data of s3:// on rank 0: the first step waited %.2f s; the other %lld waited %.3f ms on average and %.1f ms at most",
        wait->first, (long long)(wait->steps - 1), 1e3 * wait->later / (double)(wait->steps - 1), 1e3 * wait->longest);
}

/* Sets the error of a run that ends before its last step, or before its last evaluation is
 * complete. If it has a supervisor, the supervisor says how it continues. */
static bool report_run_stop(const Loop *loop, int signal, Error *error) {
    const char *name = signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "SIGHUP";
    int64_t step = loop->session.step;
    if (step == 0)
        return error_set(error, ERROR_PREEMPTED, "stopped by %s before the first step: nothing is lost; run the same command again", name);
    SCOPED_FREE char *command = summary_command(loop->config, loop->comm, "");
    SCOPED_FREE char *next = watchdog_is_supervised() ? NULL : memory_format("; continue with: %s", command);
    return error_set(
        error, ERROR_PREEMPTED, "paused by %s after step %lld: a checkpoint was written%s", name, (long long)step, next ? next : "");
}

/* `end` has the first step, and the negative of the tokens until then. */
static void report_run_end(const Loop *loop, SummaryEnd end, double seconds) {
    end.step = loop->session.step;
    end.tokens = loop->rollouts ? loop->sample_tokens : end.tokens + phases_tokens(&loop->phases, loop->session.samples);
    end.seconds = seconds;
    end.validation = loop->session.validation;
    end.exhausted = is_exhausted(loop);
    console_end_steps(loop->host->console);
    summary_end(loop, &end);
}

/* Reports a straggler once. */
static void check_ranks(Loop *loop) {
    int slow = watchdog_slow_rank(loop->watchdog);
    if (slow >= 0 && slow != loop->slow_rank)
        loop_alarm(loop, RUN_EVENT_SLOW_RANK, "rank %d is a straggler: the other ranks wait for it in every step", slow);
    loop->slow_rank = slow;
}

/* Makes a step and everything due after it. The step is saved before it is evaluated, which may
 * take long, so that a kill during the evaluation loses no step. The checkpoint gets the validation
 * loss afterwards (session_note_validation). A step that is saved because it is the best is
 * evaluated first. *saved: the step of the newest checkpoint. */
static bool advance_run(Loop *loop, int64_t last, int64_t *saved, Error *error) {
    if (!loop_step(loop, error)) return false;
    int64_t step = loop->session.step;
    events_alive(loop->events, step, INFINITY); /* saves and evaluations take as long as they take */
    if (step == loop->config->steps && 2 * loop->session.skips.all > step) return loop_refuse_skips(&loop->session.skips, step, error);
    report_save(loop, false);
    write_note(loop);
    watchdog_alive(loop->watchdog, step);
    session_prepare_save(&loop->session);
    bool saves = due(step, loop->config->checkpoint.every) || step == last || loop_ends_phase(loop);
    if (saves && !save(loop, error)) return false;
    if (evaluation_due(loop) && !evaluate_and_report(loop, error)) return false;
    bool best = loop->config->checkpoint.keep_best && loop->session.validation.best_step == step;
    if (best && !saves && !save(loop, error)) return false;
    if (best || saves) *saved = step;
    watchdog_alive(loop->watchdog, step);
    check_ranks(loop);
    events_alive(loop->events, step, run_patience(loop->longest_step, 0));
    return true;
}

/* Warns of the settings that record the first step of a start, for a start without steps. */
static void name_unwritten(const Config *config) {
    const char *const settings[][2] = {{"routing_trace", config->routing_trace}, {"dump", config->dump}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (settings[i][1][0])
            log_warn("%s=%s is not written: it records the first step of a start, and this start has no steps: raise steps or stop_at",
                settings[i][0], settings[i][1]);
}

/* Explains why a run that has done `step` steps does no more, and how to continue it. */
static void report_nothing_to_do(const Config *config, int64_t step) {
    const char *run = config->run;
    bool finished = step == config->steps, stops = config->stop_at && step >= config->stop_at;
    if (finished)
        log_info("%s is finished (%lld steps): smelt train %s steps=%lld continues it, init=%s starts another run from its weights", run,
            (long long)step, run, 2 * (long long)step, run);
    else if (stops)
        log_info("%s has done %lld of %lld steps, and stop_at=%lld is not beyond them: remove stop_at, or set a later step", run,
            (long long)step, (long long)config->steps, (long long)config->stop_at);
    if (finished || stops) name_unwritten(config);
}

/* Records the amounts read of a mixture. */
static void note_mixture(Loop *loop) {
    const Session *session = &loop->session;
    Error error = {0};
    if (!loop->metrics || !session->begun) return;
    json_t *read = phases_read(&loop->phases, loop->order, session->begun, session->samples);
    loop_note_record(loop, metrics_mixture(loop->metrics, session->step, read, &error), &error);
}

/* Continues with the next phase from the checkpoint of this phase's last step. */
static bool next_phase(Loop *loop, Error *error) {
    events_alive(loop->events, loop->session.step, INFINITY);
    note_mixture(loop);
    return finish_saves(loop, error) && loop_next_phase(loop, error) && (!loop_owes_evaluation(loop) || evaluate_and_report(loop, error));
}

/* Saves the steps before a step that had no data. Leaves the error of the data, on all ranks. */
static bool save_unread(Loop *loop, int64_t saved, Error *error) {
    Error reason = *error, failure = {0};
    int64_t step = loop->session.step;
    if (step > saved && !(save(loop, &failure) && finish_saves(loop, &failure))) log_warn("%s", failure.message);
    return error_set(error, reason.code,
        loop->session.step ? "%s; step %lld is saved, and the same command continues from there"
                           : "%s; after step %lld the same command starts again",
        reason.message, (long long)loop->session.parent);
}

/* Handles a step without data, for the reason *error. Returns whether a signal ended the wait for
 * data, which *signal receives. Otherwise saves the earlier steps. */
static bool stops_unread(Loop *loop, int *signal, int64_t saved, Error *error) {
    Error unheard = {0};
    *signal = agree_on_signal(loop, &unheard);
    if (*signal <= 0) return save_unread(loop, saved, error);
    *error = (Error){0};
    return true;
}

static bool run_steps(Loop *loop, Error *error) {
    const Config *config = &loop->settings;
    int64_t last = config->stop_at && config->stop_at < config->steps ? config->stop_at : config->steps, saved = loop->session.step;
    int signal = 0;
    double start = log_seconds();
    SummaryEnd end = {.first = saved, .tokens = -phases_tokens(&loop->phases, loop->session.samples)};
    CommTotals before = comm_totals(loop->comm);
    loop->watchdog = watchdog_start(loop->session.mesh, loop->comm, loop->session.step, config->hang, &loop->host->hang, error);
    if (!loop->watchdog || (loop->origin.forked && !save(loop, error))) return false;
    if (loop_owes_evaluation(loop) && !evaluate_and_report(loop, error)) return false;
    if (loop_leads(loop)) report_nothing_to_do(config, saved);
    while (
        loop->session.step < last && !is_exhausted(loop) && (signal = loop_within_rollout(loop) ? 0 : agree_on_signal(loop, error)) == 0) {
        if (loop_ends_phase(loop) && !next_phase(loop, error)) return false;
        if (advance_run(loop, last, &saved, error)) continue;
        if (!loop->unread || !stops_unread(loop, &signal, saved, error)) return false;
        break;
    }
    if (signal < 0 || (saved != loop->session.step && !save(loop, error)) || !finish_saves(loop, error)) return false;
    if (loop->session.step > end.first) note_mixture(loop);
    report_communication(loop, &before, log_seconds() - start);
    report_data(loop);
    if (is_exhausted(loop)) report_exhaustion(loop);
    if ((loop->session.step >= last || is_exhausted(loop)) && !loop->unevaluated) {
        if (loop_leads(loop) && loop->session.step > end.first) report_run_end(loop, end, log_seconds() - start);
        return true;
    }
    if (!signal && (signal = agree_on_signal(loop, error)) < 0) return false;
    return report_run_stop(loop, signal, error);
}

/* Records how this process ends. */
static void note_end(Loop *loop, bool done, const Error *reason) {
    Error error = {0};
    const Config *config = &loop->settings;
    int64_t step = loop->session.step, steps = done && is_exhausted(loop) ? step : config->steps;
    int code = done ? ERROR_NONE : (int)reason->code;
    if (!loop->metrics) return;
    SCOPED_FREE char *by_setting = memory_format("stop_at=%lld", (long long)config->stop_at);
    RunStatus status = run_status_of_end(code, step, steps, watchdog_is_supervised());
    const char *message = !done ? reason->message : status == RUN_IS_STOPPED ? by_setting : "";
    loop_report_warnings(loop, step);
    loop_report_machine(loop, step, true);
    loop_note_record(loop, metrics_end(loop->metrics, step, run_status_name(status), code, message, &error), &error);
    events_send(loop->events, RUN_EVENT_END, run_status_name(status), step, message);
}

bool train(const Config *config, Device *device, Comm *comm, const TrainHost *host, Error *error) {
    Loop loop = {.settings = *config, .config = &loop.settings, .device = device, .comm = comm, .host = host, .lock = -1, .slow_rank = -1};
    gemm_exact(config->exact_gemm);
    bool done = loop_start(&loop, error);
    host->stop->heeded = 1;
    done = done && (config->profile ? run_profile(&loop, error) : run_steps(&loop, error));
    console_end_steps(host->console);
    note_end(&loop, done, error);
    loop_close(&loop);
    return done;
}

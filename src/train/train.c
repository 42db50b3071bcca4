/* The training loop. A step fetches its microbatches, runs the program once for each, looks at the numbers, updates, reports; between
 * steps it evaluates, writes checkpoints and obeys signals. All state that a step changes is in the session, so that a checkpoint
 * between two steps is complete. */
#include "train/train.h"

#include <jansson.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "device/gemm.h"
#include "train/profile.h"
#include "train/run.h"
#include "train/source.h"

enum { MOST_SKIPS = 20 }; /* skipped updates in a row before on_nan=skip gives up */

static volatile sig_atomic_t stop_signal;
static void on_signal(int number) { stop_signal = number; }

typedef struct Loop {
    const Config *config;
    int lock;                              /* of the run folder, or -1 */
    Session session;
    Corpus corpus;
    Loader *loader;
    Metrics *metrics;                      /* NULL while profiling: the run's records stay as they are */
    int32_t *tokens, *targets, *positions; /* of the whole step: its targets are counted before it runs */
    double measured_flops;
    double seconds_per_step;               /* smoothed, for the time left */
    int64_t tokens_seen;
    bool dumped;
    int skips;                             /* in a row */
    Profile profile;                       /* used when config->profile asks for it */
} Loop;

/* -- One step ------------------------------------------------------------------------------------------------------ */

static double get_loss(const Session *session, int index) { return executor_get_metric(session->executor, session->model.loss, index); }

/* Copies the step's microbatches out of the loader; returns how many targets they have. */
static int64_t fetch(Loop *loop, int64_t microbatches, int64_t rows) {
    int64_t targets = 0;
    for (int64_t i = 0; i < microbatches; i++) {
        const Batch *batch = loader_next(loop->loader);
        memcpy(loop->tokens + i * rows, batch->tokens, rows * sizeof(int32_t));
        memcpy(loop->targets + i * rows, batch->targets, rows * sizeof(int32_t));
        memcpy(loop->positions + i * rows, batch->positions, rows * sizeof(int32_t));
        for (int64_t j = 0; j < rows; j++) targets += batch->targets[j] >= 0;
    }
    return targets;
}

static void load_microbatch(const Loop *loop, int64_t index, int64_t rows) {
    const Model *model = &loop->session.model;
    Executor *executor = loop->session.executor;
    memcpy(executor_tensor(executor, model->tokens), loop->tokens + index * rows, rows * sizeof(int32_t));
    memcpy(executor_tensor(executor, model->targets), loop->targets + index * rows, rows * sizeof(int32_t));
    memcpy(executor_tensor(executor, model->positions), loop->positions + index * rows, rows * sizeof(int32_t));
}

static bool step_is_finite(const Loop *loop, double norm) {
    return isfinite(get_loss(&loop->session, 0)) && isfinite(get_loss(&loop->session, 1)) && isfinite(norm);
}

/* Says where the step went wrong; an error unless updates may be skipped. */
static bool handle_nan(Loop *loop, int64_t step, int64_t microbatches, int64_t rows, Error *error) {
    char where[256] = "";
    for (int64_t i = 0; i < microbatches; i++) {
        load_microbatch(loop, i, rows);
        numerics_find(&loop->session, where, sizeof where);
        if (strncmp(where, "no tensor", 9)) break;
    }
    if (loop->config->on_nan == ON_NAN_STOP)
        return error_set(error, ERROR_NUMERICS, "step %lld: NaN or infinity in %s; the last checkpoint is untouched. Lower optimizer.lr, "
                         "or set on_nan=skip to leave such updates out", (long long)step, where);
    if (++loop->skips > MOST_SKIPS)
        return error_set(error, ERROR_NUMERICS, "step %lld: %d updates in a row had NaN or infinity, this time in %s", (long long)step, loop->skips, where);
    log_warn("step %lld: NaN or infinity in %s, update skipped", (long long)step, where);
    return true;
}

static bool report_load(Loop *loop, int64_t step, Error *error) {
    const Graph *graph = loop->session.model.graph;
    const ModelConfig *model = &loop->config->model;
    if (!loop->metrics || !model->experts || loop->config->precision == PRECISION_FP64) return true;
    const char *gradients = executor_arena(loop->session.executor, ARENA_GRADIENT);
    double *load = memory_allocate(model->layers * model->experts * sizeof *load);
    float *excess = memory_allocate(model->experts * sizeof *excess);
    int64_t layer = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->kind != PARAMETER_CONTROLLER) continue;
        device_download(loop->session.backend.device, excess, gradients + p->offset * sizeof *excess, model->experts * sizeof *excess);
        for (int64_t e = 0; e < model->experts; e++) load[layer * model->experts + e] = excess[e] + 1.0 / model->experts;
        layer++;
    }
    bool written = metrics_load(loop->metrics, step, model->layers, model->experts, load, error);
    free(excess);
    free(load);
    return written;
}

/* What the plan takes of a GPU; on the CPU the process's peak. */
static int64_t memory_used(const Session *session) {
    return device_is_gpu(session->backend.device) ? session_budget(session).total : memory_peak();
}

static bool run_step(Loop *loop, Error *error) {
    const Config *config = loop->config;
    Session *session = &loop->session;
    int64_t step = session->step + 1, rows = config->batch.sequences * config->data.length;
    int64_t tokens = schedule_batch_tokens(&config->batch, rows, step), microbatches = tokens / rows;
    double start = log_seconds();
    int64_t targets = fetch(loop, microbatches, rows);
    executor_set_scalar(session->executor, session->model.scale, 1.0 / (targets ? targets : 1));
    executor_set_scalar(session->executor, session->model.share, 1.0 / microbatches);
    executor_zero(session->executor);
    for (int64_t i = 0; i < microbatches; i++) {
        load_microbatch(loop, i, rows);
        if (config->profile) executor_run_hooked(session->executor, profile_node, &loop->profile);
        else executor_run(session->executor);
    }
    if (!executor_finish(session->executor, error)) return error_context(error, "step %lld", (long long)step);
    double executed = log_seconds();
    double norm = optimizer_gradient_norm(session->optimizer, executor_arena(session->executor, ARENA_GRADIENT));
    double loss = get_loss(session, 0), auxiliary = get_loss(session, 1), lr = schedule_lr(&config->schedule, config->optimizer.lr, step, config->steps);
    bool finite = step_is_finite(loop, norm);
    if (config->dump[0] && !loop->dumped) {
        StepInputs inputs = {.tokens = loop->tokens, .targets = loop->targets, .positions = loop->positions, .rows = tokens};
        if (!dump_step(session, config->dump, &inputs, error)) return error_context(error, "dump=%s", config->dump);
        loop->dumped = true;
    }
    if (finite) {
        double clip = config->optimizer.clip, scale = clip > 0 && norm > clip ? clip / norm : 1;
        if (!report_load(loop, step, error)) return false;
        optimizer_step(session->optimizer, executor_arena(session->executor, ARENA_MASTER), executor_arena(session->executor, ARENA_WEIGHT),
                       executor_arena(session->executor, ARENA_GRADIENT), step, lr, scale);
        loop->skips = 0;
    } else if (!handle_nan(loop, step, microbatches, rows, error)) {
        return false;
    }
    if (config->profile) device_synchronize(session->backend.device);
    double seconds = log_seconds() - start;
    loop->profile.steps++;
    loop->profile.seconds += seconds;
    loop->profile.optimizer += log_seconds() - executed;
    loop->seconds_per_step = loop->seconds_per_step > 0 ? 0.9 * loop->seconds_per_step + 0.1 * seconds : seconds;
    loop->tokens_seen += tokens;
    session->step = step;
    StepMetrics metrics = {.step = step, .steps = config->steps, .loss = loss, .auxiliary = auxiliary, .gradient_norm = norm, .lr = lr,
                           .seconds = seconds, .tokens = tokens, .tokens_seen = loop->tokens_seen, .flops = session->plan.flops * microbatches,
                           .measured_flops = loop->measured_flops, .memory = memory_used(session), .skipped = !finite,
                           .seconds_left = loop->seconds_per_step * (config->steps - step)};
    return !loop->metrics || metrics_step(loop->metrics, &metrics, error);
}

/* -- Between steps ------------------------------------------------------------------------------------------------- */

static bool save(Loop *loop, Error *error) {
    double seconds;
    int64_t bytes;
    char size[32], rate[32];
    const char *bad = numerics_bad_parameter(&loop->session);
    if (bad)
        return error_set(error, ERROR_NUMERICS, "step %lld: its update made NaN or infinity in parameter %s; it was not saved, and the last checkpoint is "
                         "untouched. Lower optimizer.lr", (long long)loop->session.step, bad);
    if (!session_save(&loop->session, &seconds, &bytes, error)) return false;
    log_format_bytes((double)bytes, size);
    log_format_bytes(seconds > 0 ? bytes / seconds : 0, rate);
    log_info("checkpoint of step %lld: %s in %.2f s, %s/s", (long long)loop->session.step, size, seconds, rate);
    return metrics_checkpoint(loop->metrics, loop->session.step, seconds, bytes, error);
}

static bool evaluate_and_report(Loop *loop, Error *error) {
    Evaluation result;
    if (!evaluate(&loop->session, &loop->corpus, &result, error)) return false;
    if (isnan(result.bits_per_byte)) log_info("validation at step %lld: loss %.5f", (long long)loop->session.step, result.loss);
    else log_info("validation at step %lld: loss %.5f, %.4f bits per byte", (long long)loop->session.step, result.loss, result.bits_per_byte);
    return metrics_evaluation(loop->metrics, loop->session.step, result.loss, result.bits_per_byte, result.tokens, result.seconds, error);
}

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* Profiles the steps after a first one that warms caches and memory; writes no checkpoint and no record. */
static bool run_profile(Loop *loop, Error *error) {
    if (!run_step(loop, error)) return false;
    loop->profile = (Profile){0};
    for (int64_t i = 0; i < loop->config->profile; i++)
        if (!run_step(loop, error)) return false;
    profile_print(&loop->profile, loop->measured_flops, stdout);
    return true;
}

static bool run_steps(Loop *loop, Error *error) {
    const Config *config = loop->config;
    int64_t last = config->stop_at && config->stop_at < config->steps ? config->stop_at : config->steps, saved = loop->session.step;
    metrics_header();
    while (loop->session.step < last && !stop_signal) {
        if (!run_step(loop, error)) return false;
        int64_t step = loop->session.step;
        if (loop->corpus.has_valid && (due(step, config->eval_every) || step == config->steps) && !evaluate_and_report(loop, error)) return false;
        if (due(step, config->checkpoint_every)) {
            if (!save(loop, error)) return false;
            saved = step;
        }
    }
    if (saved != loop->session.step && !save(loop, error)) return false;
    if (loop->session.step >= last) return true;
    const char *name = stop_signal == SIGTERM ? "SIGTERM" : "SIGINT";
    if (loop->session.step == 0) return error_set(error, ERROR_PREEMPTED, "%s before the first step: nothing is lost, the same command starts again", name);
    return error_set(error, ERROR_PREEMPTED, "%s after step %lld: a checkpoint was written, the same command continues", name, (long long)loop->session.step);
}

/* -- Start and end ------------------------------------------------------------------------------------------------- */

/* The best of a few large products in the run's precision: what this machine can do. About 50 ms. */
static double measure_gemm(const Config *config, Device *device) {
    enum { TRIES = 5 };
    bool gpu = device_is_gpu(device);
    GemmType type = config->precision == PRECISION_BF16 ? GEMM_BF16 : config->precision == PRECISION_FP32 ? GEMM_F32 : GEMM_F64;
    int64_t size = gpu ? 8192 : 768, bytes = size * size * (int64_t)precision_bytes(config->precision, TYPE_COMPUTE);
    if (type == GEMM_F64) return 0; /* a precision for checks, not for speed */
    Error ignored = {0};
    char *memory = device_allocate(device, 3 * bytes, &ignored);
    if (!memory) return 0;
    Gemm product = {.transpose_b = true, .input = type, .output = type, .m = size, .n = size, .k = size, .lda = size, .ldb = size, .ldc = size,
                    .a = memory, .b = memory + bytes, .c = memory + 2 * bytes};
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        double start = log_seconds();
        if (gpu) device_timer_start(device);
        device_gemm(device, &product);
        double rate = 2.0 * size * size * size / (gpu ? device_timer_stop(device) : log_seconds() - start);
        if (rate > best) best = rate;
    }
    device_free(device, memory, 3 * bytes);
    return best;
}

static bool report_start(Loop *loop, Error *error) {
    const Graph *graph = loop->session.model.graph;
    const DeviceInfo *device = device_info(loop->session.backend.device);
    char *machine = run_describe_machine();
    json_t *details = json_pack("{s:I, s:I, s:s, s:i, s:s, s:s}", "parameters", (json_int_t)model_parameters(graph), "active_parameters",
                                (json_int_t)model_active_parameters(graph, &loop->config->model), "machine", machine, "threads", omp_get_max_threads(),
                                "precision", loop->config->precision == PRECISION_BF16 ? "bf16" : loop->config->precision == PRECISION_FP32 ? "fp32" : "fp64",
                                "device", device->kind == DEVICE_CPU ? "cpu" : device->name);
    char *text = json_dumps(details, JSON_COMPACT), parameters[32];
    log_format_count((double)model_parameters(graph), parameters);
    if (device->kind == DEVICE_CPU) log_info("%s parameters, %s, %d threads", parameters, machine, omp_get_max_threads());
    else log_info("%s parameters, %s (%s)", parameters, device->name, device->target);
    bool written = metrics_start(loop->metrics, loop->session.step, text, error);
    json_decref(details);
    free(text);
    free(machine);
    return written;
}

static bool open_loader(Loop *loop, Error *error) {
    const Config *config = loop->config;
    LoaderOptions options = {.shard = &loop->corpus.train, .sequences = config->batch.sequences, .length = config->data.length,
                             .vocabulary = (int32_t)config->model.vocabulary, .separator = loop->corpus.bytes ? BYTE_SEPARATOR : -1,
                             .document_mask = config->data.document_mask, .shuffle = true, .seed = config->seed};
    loop->loader = loader_open(&options, schedule_samples_before(&config->batch, config->data.length, loop->session.step + 1), error);
    return loop->loader || error_context(error, "data.train=%s", config->data.train);
}

/* The weights of init=FOLDER, for a run without steps. */
static bool load_initial(Session *session, Error *error) {
    const char *folder = session->config->init;
    Config origin;
    OptionStrings strings = {0};
    int64_t step;
    if (!folder[0] || session->step) return true;
    bool loaded = source_read_config(folder, &origin, &strings, error) && source_load_program(folder, &origin, session->executor, &step, error);
    options_free_strings(&strings);
    if (!loaded) return error_context(error, "init=%s", folder);
    log_info("starting from the weights of %s", folder);
    return true;
}

static bool start(Loop *loop, Device *device, Error *error) {
    const Config *config = loop->config;
    if (!run_lock(config->run, &loop->lock, error) || !run_open(config, error) || !session_plan(&loop->session, config, device, error)) return false;
    if (!session_check_memory(&loop->session, device_available(device), error) || !corpus_open(&loop->corpus, config, error) ||
        !evaluate_check(&loop->session, &loop->corpus, error) || !session_start(&loop->session, error) ||
        !session_resume(&loop->session, error) || !load_initial(&loop->session, error) || !open_loader(loop, error))
        return false;
    if (loop->session.step) log_info("continuing %s after step %lld", config->run, (long long)loop->session.step);
    Budget budget = session_budget(&loop->session);
    budget_print(&budget, stderr);
    loop->tokens_seen = schedule_samples_before(&config->batch, config->data.length, loop->session.step + 1) * config->data.length;
    loop->tokens = memory_allocate(config->batch.tokens * sizeof(int32_t));
    loop->targets = memory_allocate(config->batch.tokens * sizeof(int32_t));
    loop->positions = memory_allocate(config->batch.tokens * sizeof(int32_t));
    loop->measured_flops = measure_gemm(config, device);
    if (config->profile) return true;
    loop->metrics = metrics_open(config->run, loop->session.step, config->tensorboard, error);
    return loop->metrics && report_start(loop, error);
}

static void finish(Loop *loop) {
    if (loop->metrics) metrics_close(loop->metrics);
    loader_close(loop->loader);
    free(loop->tokens);
    free(loop->targets);
    free(loop->positions);
    session_free(&loop->session);
    corpus_close(&loop->corpus);
    if (loop->lock >= 0) close(loop->lock);
}

bool train(const Config *config, Device *device, Error *error) {
    Loop loop = {.config = config, .lock = -1};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    stop_signal = 0;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (config->threads) omp_set_num_threads((int)config->threads);
    bool done = start(&loop, device, error) && (config->profile ? run_profile(&loop, error) : run_steps(&loop, error));
    finish(&loop);
    return done;
}

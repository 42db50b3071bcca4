/* Training speed of a configuration: whole steps on random tokens, with gradients accumulated over
 * microbatches, the norm and the update, but without a loader, records and checkpoints. The
 * microbatch is searched: it is halved from the largest whose plan fits, until smaller ones are
 * slower. Each size has its own training session (session/session.h).
 *
 * Several ranks train together in the configuration's layout. They agree on whether a plan fits and
 * on every time, so that all take the same decisions; rank 0 prints. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "advise/hardware.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/routing_internal.h"
#include "images/image_inputs.h"
#include "session/session.h"
#include "train/profile.h"

static const Option rows[] = {BENCH_ROWS, TRAIN_ROWS,
    {"bench.routing", OPTION_CHOICE, offsetof(TrainOptions, measure.routing), "untrained", 0, 0, "untrained|balanced|random|trace", "",
        "the experts of each row: chosen by the model's untrained routers; equally many rows per expert; random; or those of bench.trace"},
    {"bench.trace", OPTION_STRING, offsetof(TrainOptions, measure.trace), "", 0, 0, NULL, "",
        "a file that smelt train CONFIG.yaml routing_trace=FILE wrote, for bench.routing=trace"}};

/* -- A trainer ----------------------------------------------------------------------------------------------------- */

typedef struct Trainer {
    Device *device;
    Comm *comm;     /* all ranks */
    int64_t groups; /* number of ranks, or groups of ranks, that have different microbatches */
    Config config;  /* with the microbatch that is measured */
    Session session;
    BenchRouting routing;
    RoutingTrace trace; /* of BENCH_ROUTING_TRACE */
    int64_t available;  /* free bytes before any allocation */
} Trainer;

static void close_session(Trainer *trainer) { session_free(&trainer->session); }

static void close_trainer(Trainer *trainer) {
    close_session(trainer);
    routing_trace_close(&trainer->trace);
}

static int64_t rows_per_microbatch(const Config *config) { return config->batch.sequences * config->data.length; }

static void set_microbatch(Config *config, int64_t groups, int64_t sequences, int64_t accumulation) {
    assert(sequences > 0 && config->data.length > 0);
    int64_t tokens = groups * sequences * config->data.length;
    config->batch.sequences = sequences;
    config->batch.tokens = tokens * (accumulation ? accumulation : int_max(config->batch.tokens / tokens, 1));
    config->batch.ramp_tokens = 0;
}

static bool plan_microbatch(
    const Trainer *trainer, Session *session, Config *config, int64_t sequences, int64_t accumulation, Error *error) {
    set_microbatch(config, trainer->groups, sequences, accumulation);
    if (!config_check_started(config, comm_size(trainer->comm), error)) return false;
    config->model.given_routing = trainer->routing != BENCH_ROUTING_MODEL;
    return session_plan_rank(session, config, trainer->device, comm_rank(trainer->comm), comm_size(trainer->comm), error);
}

/* Returns the bytes that training with this microbatch needs; -1 if the configuration is
 * invalid. */
static int64_t bytes_needed(const Trainer *trainer, int64_t sequences) {
    Config config = trainer->config;
    SCOPED(session_free) Session session = {0};
    Error ignored = {0};
    if (!plan_microbatch(trainer, &session, &config, sequences, 1, &ignored)) return -1;
    return session_budget(&session).total;
}

/* Returns whether the plan fits on every rank. Collective; a lost rank shows in the next session. */
static bool batch_fits(const Trainer *trainer, int64_t sequences) {
    const double part = 0.97; /* of the free memory: libraries allocate some while they run */
    int64_t bytes = bytes_needed(trainer, sequences),
            fits = bytes >= 0 && (trainer->available < 0 || (double)bytes <= part * (double)trainer->available);
    Error ignored = {0};
    return comm_host_all_reduce(trainer->comm, "fits", &fits, 1, COMM_I64, COMM_MIN, &ignored) && fits;
}

/* With a pair loss, a sequence is two answers of half its length, and their reference is 0. */
static void fill_pairs(const Session *session) {
    const Model *model = &session->training.model;
    int32_t length = (int32_t)model->length, half = length / 2;
    if (!model->rewards) return;
    int32_t *pairs = executor_tensor(session->training.executor, model->preference.pairs),
            *positions = executor_tensor(session->training.executor, model->positions);
    for (int32_t s = 0; s < (int32_t)model->sequences && s < preference_most_pairs(model->rows); s++) {
        int32_t *pair = pairs + (int64_t)s * PAIR_BOUNDS, first = s * length;
        pair[PAIR_FIRST] = first;
        pair[PAIR_MIDDLE] = first + half;
        pair[PAIR_END] = first + length;
        for (int32_t i = half; i < length; i++) positions[first + i] = i - half;
    }
}

/* Fills random tokens; each token's target is the next token. */
static void fill_random_tokens(const Session *session) {
    const Config *config = session->config;
    const Model *model = &session->training.model;
    int64_t rows = rows_per_microbatch(config);
    SCOPED_FREE int32_t *tokens = memory_allocate((size_t)rows * 3 * sizeof *tokens);
    int32_t *targets = tokens + rows, *positions = targets + rows;
    for (int64_t i = 0; i < rows; i++) {
        tokens[i] = (int32_t)(rng_uniform(1, RNG_STREAM_BENCH, (uint64_t)i) * (double)config->model.vocabulary);
        positions[i] = (int32_t)(i % config->data.length);
    }
    for (int64_t i = 0; i < rows; i++) targets[i] = tokens[(i + 1) % rows];
    model_take_rows(model, executor_tensor(session->training.executor, model->tokens), tokens);
    model_take_rows(model, executor_tensor(session->training.executor, model->targets), targets);
    model_take_rows(model, executor_tensor(session->training.executor, model->positions), positions);
    program_put_prediction(&session->training, &(TextRows){tokens, targets, positions}, config->model.mtp_weight);
    fill_pairs(session);
}

static void fill_inputs(const Trainer *trainer) {
    const Session *session = &trainer->session;
    const Program *training = &session->training;
    if (model_makes_images(&session->config->model)) image_put_synthetic(&training->model, training->executor);
    else fill_random_tokens(session);
    bench_fill_routing(&training->model, &session->config->model, training->executor, trainer->routing, &trainer->trace);
}

/* Call close_session whether it succeeds or fails. */
static bool open_session(Trainer *trainer, int64_t sequences, int64_t accumulation, Error *error) {
    if (!plan_microbatch(trainer, &trainer->session, &trainer->config, sequences, accumulation, error) ||
        !session_check_host_memory(&trainer->session, comm_local_size(trainer->comm), error) ||
        !session_start(&trainer->session, trainer->comm, error))
        return false;
    Fp8Use use = fp8_count_use(trainer->session.training.model.graph, &trainer->config.model);
    if (comm_rank(trainer->comm) == 0) fp8_warn_if_idle(&trainer->config.model, &use, "");
    if (!trainer->session.pipeline) fill_inputs(trainer);
    return true;
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

/* Sets the inputs of a microbatch that are not data. */
static void put_scales(const Session *session) {
    const Config *config = session->config;
    const Program *training = &session->training;
    bool images = model_makes_images(&config->model); /* rows have weights: the loss is a mean over samples */
    double all = (double)(session_step_microbatches(session) * mesh_size(session->mesh, AXES_DATA | AXES_ROWS));
    executor_set_scalar(
        training->executor, training->model.scale, (images ? (double)config->data.length : 1.0) / (double)config->batch.tokens);
    executor_set_scalar(training->executor, training->model.share, 1.0 / all);
    amax_history_put(session->history, training->executor, 1.0 / (double)config->batch.tokens);
    exchange_put_amax(training->exchange);
}

/* Data stay in the inputs, except that stages of a pipeline have inputs of several microbatches. */
static void load_bench_inputs(void *context, int64_t microbatch) {
    const Trainer *trainer = context;
    (void)microbatch;
    put_scales(&trainer->session);
    if (trainer->session.pipeline) fill_inputs(trainer);
}

/* Runs the microbatches of a step; the gradients are complete afterwards. */
static bool run_microbatches(Trainer *trainer, Profile *profile, Error *error) {
    Session *session = &trainer->session;
    const ProgramWork work = {.microbatches = session_step_microbatches(session),
        .load = load_bench_inputs,
        .context = trainer,
        .hook = profile ? profile_node : NULL,
        .hook_context = profile};
    if (!session_run(session, &work, error)) return false;
    Executor *executor = session->training.executor;
    return executor_finish(executor, error) && amax_history_agree(session->history, executor, error);
}

/* Sets the norm of the gradients of all ranks. */
static bool find_norm(Session *session, double *norm, Error *error) {
    int size = comm_size(session->comm), rank = comm_rank(session->comm);
    SCOPED_FREE PreciseSum *squares = memory_allocate((size_t)size * sizeof *squares);
    PreciseSum sum = {0};
    squares[rank] = session_gradient_squares(session);
    if (!comm_host_all_gather(session->comm, "squares", squares, sizeof *squares, COMM_U8, error)) return false;
    for (int r = 0; r < size; r++) precise_join(&sum, squares[r]);
    *norm = sqrt(precise_value(sum));
    return true;
}

/* Runs a training step: zero, microbatches, norm, clipped update. `profile`, if not NULL, receives
 * its times. */
static bool run_timed_step(Trainer *trainer, Profile *profile, Error *error) {
    Session *session = &trainer->session;
    const Config *config = session->config;
    double start = log_seconds(), norm;
    session_begin_step(session, ++session->step, 1e-3 * config->optimizer.lr, config->batch.tokens);
    if (!run_microbatches(trainer, profile, error)) return false;
    amax_history_note(session->history, session->step, true);
    double executed = log_seconds();
    if (!find_norm(session, &norm, error)) return false;
    if (!isfinite(norm))
        return error_set(error, ERROR_NUMERICS, "the gradient norm is %g in step %lld on random tokens: change the configuration", norm,
            (long long)session->step);
    session_update(session, norm);
    if (!profile) return true;
    device_synchronize(session->device);
    profile->steps++;
    profile->optimizer += log_seconds() - executed;
    profile->seconds += log_seconds() - start;
    return true;
}

/* Measures the seconds per step of `steps` steps, on the slowest rank. One step before them chooses GEMM algorithms; if
 * the device records programs, a second one records the program. */
static bool time_steps(Trainer *trainer, int64_t steps, double *seconds, Error *error) {
    const Session *session = &trainer->session;
    Device *device = session->device;
    int64_t warm = device_info(device)->records && session_step_microbatches(session) == 1 ? 2 : 1;
    for (int64_t i = 0; i < warm; i++)
        if (!run_timed_step(trainer, NULL, error)) return false;
    device_synchronize(device);
    double start = log_seconds();
    for (int64_t i = 0; i < steps; i++)
        if (!run_timed_step(trainer, NULL, error)) return false;
    device_synchronize(device);
    *seconds = (log_seconds() - start) / (double)steps;
    return device_ok(device, error) && comm_host_all_reduce(session->comm, "seconds", seconds, 1, COMM_F64, COMM_MAX, error);
}

/* Prints to stderr the time of `steps` more steps by operation; stdout has only the table of
 * results. */
static bool profile_steps(Trainer *trainer, int64_t steps, Error *error) {
    const Session *session = &trainer->session;
    Profile profile = {0};
    for (int64_t i = 0; i < steps; i++)
        if (!run_timed_step(trainer, &profile, error)) return false;
    if (comm_rank(session->comm) == 0) profile_print(&profile, 0, stderr);
    return device_ok(session->device, error);
}

/* Measures the tokens per second of a microbatch. */
static bool try_microbatch(Trainer *trainer, int64_t sequences, int64_t accumulation, double *rate, Error *error) {
    double seconds;
    bool good = open_session(trainer, sequences, accumulation, error) && time_steps(trainer, 1, &seconds, error);
    close_session(trainer);
    if (!good) return false;
    *rate = (double)trainer->config.batch.tokens / seconds / comm_size(trainer->comm);
    if (comm_rank(trainer->comm) == 0) log_info("microbatch %lld: %.0f tokens/s", (long long)sequences, *rate);
    return true;
}

/* -- Search -------------------------------------------------------------------------------------------------------- */

static int64_t largest_fitting(const Trainer *trainer, int64_t most) {
    int64_t largest = 0;
    for (int64_t sequences = 1; sequences <= most && batch_fits(trainer, sequences); sequences *= 2) largest = sequences;
    return largest;
}

/* Searches from the largest microbatch down. Larger ones are usually at least as fast, so the
 * search ends when two in a row are slower than the best. All steps have as many tokens as one
 * largest microbatch, except with optimizer.in_backward, whose steps are one microbatch. A single
 * rank skips a size if its plan fits but its allocation fails. */
static bool search(Trainer *trainer, int64_t largest, int64_t *best, Error *error) {
    double best_rate = 0;
    int behind = 0;
    for (int64_t sequences = largest; sequences >= 1 && behind < 2; sequences /= 2) {
        double rate = 0;
        int64_t accumulation = trainer->config.optimizer.in_backward ? 1 : largest / sequences;
        bool tried = try_microbatch(trainer, sequences, accumulation, &rate, error);
        if (!tried && error->code == ERROR_MEMORY && sequences > 1 && comm_size(trainer->comm) == 1) continue;
        if (!tried) return false;
        behind = rate > best_rate ? 0 : behind + 1;
        if (rate <= best_rate) continue;
        best_rate = rate;
        *best = sequences;
    }
    return true;
}

/* Resolves recompute=auto for the smallest microbatch that is measured. */
static bool check_fit(Trainer *trainer, int64_t sequences, Error *error) {
    char needed[32], have[32];
    if (trainer->config.recompute == RECOMPUTE_AUTO)
        for (trainer->config.recompute = config_least_recompute(&trainer->config);
            trainer->config.recompute < RECOMPUTE_BLOCK && !batch_fits(trainer, sequences);)
            trainer->config.recompute++;
    Config config = trainer->config;
    SCOPED(session_free) Session session = {0};
    if (!plan_microbatch(trainer, &session, &config, sequences, 1, error)) return false;
    if (batch_fits(trainer, sequences)) return true;
    log_format_bytes((double)bytes_needed(trainer, sequences), needed);
    log_format_bytes((double)trainer->available, have);
    return error_set(error, ERROR_MEMORY,
        "a microbatch of %lld sequences of %lld tokens needs %s, but only %s are free: set recompute=block, reduce data.length, or use a "
        "smaller model",
        (long long)sequences, (long long)trainer->config.data.length, needed, have);
}

/* -- Measuring ----------------------------------------------------------------------------------------------------- */

static bool measure_trainer(Trainer *trainer, const TrainMeasure *measure, TrainSpeed *speed, Error *error) {
    Config *config = &trainer->config;
    Session *session = &trainer->session;
    int64_t sequences = measure->microbatch, tokens = config->batch.tokens,
            most = int_max(tokens / config->data.length / trainer->groups, 1);
    double seconds, ranks = comm_size(trainer->comm);
    if (config->optimizer.in_backward && measure->accumulation > 1)
        return error_set(error, ERROR_USAGE,
            "accumulation=%lld: optimizer.in_backward=true allows only one microbatch per step: set accumulation=1",
            (long long)measure->accumulation);
    if (!check_fit(trainer, sequences ? sequences : 1, error) ||
        (!sequences && !search(trainer, largest_fitting(trainer, most), &sequences, error)))
        return false;
    config->batch.tokens = tokens;
    if (!open_session(trainer, sequences, measure->accumulation, error) || !time_steps(trainer, measure->steps, &seconds, error))
        return false;
    if (config->profile && !profile_steps(trainer, config->profile, error)) return false;
    *speed = (TrainSpeed){.microbatch = sequences,
        .accumulation = session_step_microbatches(session),
        .step_seconds = seconds,
        .tokens_per_second = (double)config->batch.tokens / seconds / ranks,
        .flops = session->size.flops * (double)(session_step_microbatches(session) * trainer->groups) / seconds / ranks,
        .memory = device_info(trainer->device)->host_memory ? memory_peak() : session_budget(session).total,
        .parameters = session->size.parameters};
    return comm_host_all_reduce(trainer->comm, "memory", &speed->memory, 1, COMM_I64, COMM_MAX, error);
}

/* Sets the groups of a layout and the memory that every rank has. */
static bool set_ranks(Trainer *trainer, Error *error) {
    Mesh mesh;
    if (!layout_mesh(&mesh, &trainer->config, comm_rank(trainer->comm), comm_size(trainer->comm), error)) return false;
    trainer->groups = mesh_size(&mesh, AXES_DATA);
    trainer->available = device_available(trainer->device);
    if (device_info(trainer->device)->host_memory && trainer->available > 0) trainer->available /= comm_local_size(trainer->comm);
    return comm_host_all_reduce(trainer->comm, "available", &trainer->available, 1, COMM_I64, COMM_MIN, error);
}

/* Gives the model the routing that the options name. */
static bool take_routing(Trainer *trainer, const TrainMeasure *measure, Error *error) {
    static const char *const names[] = {"untrained", "balanced", "random", "trace"};
    const ModelConfig *model = &trainer->config.model;
    const char *path = measure->trace ? measure->trace : "";
    trainer->routing = (BenchRouting)measure->routing;
    if (trainer->routing != BENCH_ROUTING_MODEL && !model->experts)
        return error_set(
            error, ERROR_USAGE, "bench.routing=%s: the model has no experts: remove it, or set model.experts", names[trainer->routing]);
    if ((trainer->routing == BENCH_ROUTING_TRACE) != (*path != 0))
        return error_set(error, ERROR_USAGE, "bench.routing=%s with bench.trace=%s: set bench.routing=trace and bench.trace=FILE together",
            names[trainer->routing], *path ? path : "(empty)");
    return !*path || (routing_trace_open(&trainer->trace, path, model, error) && routing_trace_covers(&trainer->trace, model, error));
}

bool bench_train_measure(Bench *bench, const Config *config, const TrainMeasure *measure, TrainSpeed *speed, Error *error) {
    SCOPED(close_trainer)
    Trainer trainer = {.device = bench->device, .comm = bench->comm ? bench->comm : comm_alone(), .config = *config};
    return take_routing(&trainer, measure, error) && set_ranks(&trainer, error) && measure_trainer(&trainer, measure, speed, error);
}

/* -- The benchmark ------------------------------------------------------------------------------------------------- */

static const BenchColumn columns[] = {{"type", BENCH_TEXT, 5}, {"ranks", 0, 6}, {"parameters", 0, 12}, {"length", 0, 8},
    {"microbatch", 0, 10}, {"accumulation", 0, 12}, {"step_ms", 2, 11}, {"tokens_s", 1, 12}, {"tflops", 3, 9}, {"peak_percent", 1, 12},
    {"best_percent", 1, 12}, {"memory_bytes", 0, 14}, {"routing", BENCH_TEXT, 10}};

const char *bench_type_name(const Config *config) {
    return config->model.fp8.recipe ? "fp8" : precision_name((Precision)config->precision);
}

/* Measures on the ranks of bench->comm, each with its device. */
static bool run_ranks(Bench *bench, Error *error) {
    const TrainOptions *options = bench->options;
    const Config *config = &bench->config;
    Precision precision = (Precision)config->precision;
    TrainSpeed speed = {0};
    bench->silent = comm_rank(bench->comm) > 0;
    if (config->layout.choice == LAYOUT_AUTO && comm_size(bench->comm) > 1)
        return error_set(error, ERROR_USAGE,
            "layout=auto: smelt bench train measures the layout that is given: set the layout that smelt forecast chooses");
    bench->device = bench->open_local_device(options->common.device, precision, bench->comm, error);
    if (!bench->device || !comm_use_device(bench->comm, bench->device, error) ||
        !bench_train_measure(bench, config, &options->measure, &speed, error))
        return false;
    double best = bench_best_gemm(bench, precision);
    bool fp8 = config->model.fp8.recipe != FP8_NONE;
    bench_row(bench,
        (BenchCell[]){TEXT(bench_type_name(config)), NUMBER(comm_size(bench->comm)), NUMBER(speed.parameters), NUMBER(config->data.length),
            NUMBER(speed.microbatch), NUMBER(speed.accumulation), NUMBER(1e3 * speed.step_seconds), NUMBER(speed.tokens_per_second),
            NUMBER(speed.flops / 1e12), NUMBER(100 * speed.flops / hardware_peak(bench->device, precision, fp8)),
            NUMBER(best > 0 ? 100 * speed.flops / best : NAN), NUMBER(speed.memory),
            TEXT(bench_routing_name((BenchRouting)options->measure.routing, &config->model))});
    return true;
}

static bool run_training(Bench *bench, Error *error) {
    bench->comm = comm_open(&(CommOptions){.recommend = bench->recommend}, error);
    bool done = bench->comm && run_ranks(bench, error);
    comm_close(bench->comm);
    bench->comm = NULL;
    return done;
}

const Benchmark bench_train = {
    .name = "train",
    .summary = "training speed of a configuration, with the fastest microbatch",
    .explanation =
        "Measures whole training steps on random tokens, or for flux on random images and texts: images/s are tokens_s / data.length. The "
        "search for the fastest microbatch starts from the largest one that fits into memory. On several ranks, as in smelt launch -n 2 -- "
        "bench train CONFIG.yaml layout.zero=3, tokens_s and tflops are those of one rank, and memory is that of the fullest. TFLOP/s "
        "count the model's operations\n"
        "without recomputation. % of peak relates them to the vendor's figure for the GPU (the fp8 figure if fp8.recipe is set), % of best "
        "to the fastest large GEMM measured here in the configuration's precision. profile=N measures N more steps and prints the time of "
        "each operation.\n"
        "The routers of a new model are uneven. Figures of models with experts depend on the routing: bench.routing names it, and the "
        "column "
        "routing prints it.\n",
    .config = BENCH_CONFIG_REQUIRED,
    .ranks = true,
    BENCH_PARTS(TrainOptions, run_training),
    .plot = {"Training", "microbatch", "tokens_s", {"type"}, "sequences per microbatch", "tokens/s"},
};

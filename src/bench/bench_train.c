/* Training speed of a configuration: whole steps on random tokens, with gradients added up over microbatches, the
 * norm and the update, but without a loader, records and checkpoints. The microbatch is searched: from the largest
 * whose plan fits downwards by halves, for as long as smaller ones are not slower.
 *
 * Master weights, weights, gradients and the optimizer are made once; every microbatch size has its program
 * over them. */
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "graph/op.h"
#include "train/session.h"
#include "advise/hardware.h"
#include "backend/backend.h"

typedef struct TrainOptions {
    BenchOptions common;
    int64_t microbatch, accumulation, steps;
} TrainOptions;

#define FIELD(name) offsetof(TrainOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    INT_OPTION(microbatch, "0", 0, 1 << 24, "sequences", "of a microbatch; 0: search"),
    INT_OPTION(accumulation, "4", 0, 1 << 24, "microbatches", "of a step; 0: as batch.tokens of the configuration says"),
    {"measured_steps", OPTION_INT, FIELD(steps), "3", 1, 1000000, NULL, "steps", "that are timed together, after one that warms up"},
};

enum { BUCKET_BYTES = 64 << 20 }; /* of the layout; nothing travels */

/* -- A trainer ----------------------------------------------------------------------------------------------------- */

typedef struct Trainer {
    Bench *bench;
    Config config; /* with the microbatch that runs */
    Backend backend;
    Model model; /* of that microbatch */
    Plan plan;
    Executor *executor;
    Model smallest; /* of one sequence: what the optimizer knows parameters from */
    Layout *layout; /* of all programs */
    Optimizer *optimizer;
    void *shared[ARENA_COUNT];
    int64_t shared_bytes[ARENA_COUNT];
    int64_t available; /* before anything was allocated */
    int64_t step;
} Trainer;

static void set_microbatch(Config *config, int64_t sequences, int64_t accumulation) {
    assert(sequences > 0 && config->data.length > 0);
    int64_t tokens = sequences * config->data.length, wanted = config->batch.tokens / tokens;
    config->batch.sequences = sequences;
    config->batch.tokens = tokens * (accumulation ? accumulation : wanted > 0 ? wanted : 1);
    config->batch.ramp_tokens = 0;
}

/* Bytes that training with this microbatch takes; -1 when it is no valid configuration. */
static int64_t bytes_needed(const Trainer *trainer, int64_t sequences) {
    Config config = trainer->config;
    Session session;
    Error ignored = {0};
    set_microbatch(&config, sequences, 1);
    if (!config_check(&config, &ignored) || !session_plan(&session, &config, trainer->bench->device, &ignored)) return -1;
    int64_t bytes = session_budget(&session).total;
    session_free(&session);
    return bytes;
}

static bool fits(const Trainer *trainer, int64_t sequences) {
    const double part = 0.97; /* of what is free: libraries take some as they run */
    int64_t bytes = bytes_needed(trainer, sequences);
    return bytes >= 0 && (trainer->available < 0 || (double)bytes <= part * (double)trainer->available);
}

static Model build(const Trainer *trainer) {
    const Config *config = &trainer->config;
    Model model = model_build_adapted(&config->model, &config->lora, (Precision)config->precision, MODEL_TRAIN, config->batch.sequences,
        config->data.length, (RecomputePolicy)config->recompute);
    if (trainer->layout) layout_place(trainer->layout, model.graph);
    return model;
}

static bool make_shared(Trainer *trainer, Error *error) {
    const Arena arenas[] = {ARENA_MASTER, ARENA_WEIGHT, ARENA_GRADIENT};
    Device *device = trainer->bench->device;
    set_microbatch(&trainer->config, 1, 1);
    if (!op_backend(&trainer->backend, device, (Precision)trainer->config.precision, "", error)) return false;
    trainer->smallest = build(trainer);
    trainer->layout = layout_create(trainer->smallest.graph, &trainer->config.optimizer, &trainer->config.layout, BUCKET_BYTES, 0, 1);
    Plan plan = graph_plan(trainer->smallest.graph, &trainer->backend);
    for (int i = 0; i < 3; i++) {
        int64_t bytes = trainer->shared_bytes[arenas[i]] = plan.bytes[arenas[i]];
        if (bytes && !(trainer->shared[arenas[i]] = device_allocate(device, bytes, error))) return false;
    }
    if (!trainer->shared[ARENA_WEIGHT]) trainer->shared[ARENA_WEIGHT] = trainer->shared[ARENA_MASTER];
    trainer->optimizer = optimizer_create(trainer->smallest.graph, &trainer->config.optimizer, &trainer->layout->shard, device, error);
    return trainer->optimizer && model_initialize_on(trainer->smallest.graph, &trainer->config.model, (uint64_t)trainer->config.seed,
                                     device, trainer->shared[ARENA_MASTER], trainer->shared[ARENA_WEIGHT], error);
}

static void free_shared(Trainer *trainer) {
    if (trainer->shared[ARENA_WEIGHT] == trainer->shared[ARENA_MASTER]) trainer->shared[ARENA_WEIGHT] = NULL;
    for (Arena arena = 0; arena < ARENA_COUNT; arena++)
        if (trainer->shared[arena]) device_free(trainer->bench->device, trainer->shared[arena], trainer->shared_bytes[arena]);
    optimizer_free(trainer->optimizer);
    layout_free(trainer->layout);
    if (trainer->smallest.graph) model_free(&trainer->smallest);
}

static void fill_inputs(const Trainer *trainer) {
    const Config *config = &trainer->config;
    int64_t rows = config->batch.sequences * config->data.length;
    int32_t *tokens = executor_tensor(trainer->executor, trainer->model.tokens),
            *targets = executor_tensor(trainer->executor, trainer->model.targets);
    int32_t *positions = executor_tensor(trainer->executor, trainer->model.positions);
    for (int64_t i = 0; i < rows; i++) {
        tokens[i] = (int32_t)(rng_uniform(1, RNG_STREAM_BENCH, (uint64_t)i) * (double)config->model.vocabulary);
        positions[i] = (int32_t)(i % config->data.length);
    }
    for (int64_t i = 0; i < rows; i++) targets[i] = tokens[(i + 1) % rows];
}

/* Makes the program of a microbatch. */
static bool open_program(Trainer *trainer, int64_t sequences, int64_t accumulation, Error *error) {
    set_microbatch(&trainer->config, sequences, accumulation);
    if (!config_check(&trainer->config, error)) return false;
    trainer->model = build(trainer);
    trainer->plan = graph_plan(trainer->model.graph, &trainer->backend);
    trainer->executor = executor_create(trainer->model.graph, &trainer->plan, &trainer->backend, trainer->shared, error);
    if (trainer->executor) fill_inputs(trainer);
    return trainer->executor != NULL;
}

static void close_program(Trainer *trainer) {
    executor_free(trainer->executor);
    if (trainer->model.graph) model_free(&trainer->model);
    trainer->executor = NULL;
}

static int64_t microbatches(const Config *config) { return config->batch.tokens / (config->batch.sequences * config->data.length); }

/* -- Steps --------------------------------------------------------------------------------------------------------- */

/* As training makes it: zero, microbatches, norm, clipped update. */
static bool run_step(Trainer *trainer, Error *error) {
    const Config *config = &trainer->config;
    Executor *executor = trainer->executor;
    int64_t count = microbatches(config);
    executor_set_scalar(executor, trainer->model.scale, 1.0 / (double)config->batch.tokens);
    executor_set_scalar(executor, trainer->model.share, 1.0 / (double)count);
    executor_zero(executor);
    for (int64_t i = 0; i < count; i++) executor_run(executor);
    if (!executor_finish(executor, error)) return false;
    double norm = optimizer_gradient_norm(trainer->optimizer, trainer->shared[ARENA_GRADIENT]), clip = config->optimizer.clip;
    if (!isfinite(norm))
        return error_set(
            error, ERROR_NUMERICS, "the gradient's norm is %g after %lld updates on random tokens", norm, (long long)trainer->step);
    optimizer_step(trainer->optimizer, trainer->shared[ARENA_MASTER], trainer->shared[ARENA_WEIGHT], trainer->shared[ARENA_GRADIENT],
        ++trainer->step, 1e-3 * config->optimizer.lr, clip > 0 && norm > clip ? clip / norm : 1);
    return true;
}

/* Seconds of one of `steps` steps, after one that chooses GEMM algorithms and one, where the device records, that
 * records the program. */
static bool time_steps(Trainer *trainer, int64_t steps, double *seconds, Error *error) {
    Device *device = trainer->bench->device;
    int64_t microbatch_runs = microbatches(&trainer->config), warm = device_info(device)->records && microbatch_runs == 1 ? 2 : 1;
    for (int64_t i = 0; i < warm; i++)
        if (!run_step(trainer, error)) return false;
    device_synchronize(device);
    double start = log_seconds();
    for (int64_t i = 0; i < steps; i++)
        if (!run_step(trainer, error)) return false;
    device_synchronize(device);
    *seconds = (log_seconds() - start) / (double)steps;
    return device_ok(device, error);
}

/* Tokens per second with a microbatch. */
static bool try_microbatch(Trainer *trainer, int64_t sequences, int64_t accumulation, double *rate, Error *error) {
    double seconds;
    bool good = open_program(trainer, sequences, accumulation, error) && time_steps(trainer, 1, &seconds, error);
    if (good) *rate = (double)trainer->config.batch.tokens / seconds;
    close_program(trainer);
    if (good) log_info("microbatch %lld: %.0f tokens/s", (long long)sequences, *rate);
    return good;
}

/* -- Search -------------------------------------------------------------------------------------------------------- */

static int64_t largest_fitting(const Trainer *trainer, int64_t most) {
    int64_t largest = 0;
    for (int64_t sequences = 1; sequences <= most && fits(trainer, sequences); sequences *= 2) largest = sequences;
    return largest;
}

/* From the largest down. Larger ones are usually at least as fast, so the search ends when two in a row fall behind
 * the best. Compared at steps of as many tokens as the largest has. One that is refused memory although its plan
 * fits is passed over. */
static bool search(Trainer *trainer, int64_t largest, int64_t *best, Error *error) {
    double best_rate = 0;
    int behind = 0;
    for (int64_t sequences = largest; sequences >= 1 && behind < 2; sequences /= 2) {
        double rate = 0;
        bool tried = try_microbatch(trainer, sequences, largest / sequences, &rate, error);
        if (!tried && error->code == ERROR_MEMORY && sequences > 1) continue;
        if (!tried) return false;
        behind = rate > best_rate ? 0 : behind + 1;
        if (rate <= best_rate) continue;
        best_rate = rate;
        *best = sequences;
    }
    return true;
}

static bool check_fit(const Trainer *trainer, int64_t sequences, Error *error) {
    char needed[32], have[32];
    Config config = trainer->config;
    set_microbatch(&config, sequences, 1);
    if (!config_check(&config, error)) return false;
    if (fits(trainer, sequences)) return true;
    log_format_bytes((double)bytes_needed(trainer, sequences), needed);
    log_format_bytes((double)trainer->available, have);
    return error_set(error, ERROR_MEMORY,
        "a microbatch of %lld sequences of %lld tokens needs %s and %s are free: give recompute=block, a smaller data.length or a "
        "smaller model",
        (long long)sequences, (long long)trainer->config.data.length, needed, have);
}

/* -- Measuring ----------------------------------------------------------------------------------------------------- */

static int64_t memory_of(const Trainer *trainer) {
    return device_info(trainer->bench->device)->host_memory ? memory_peak() : bytes_needed(trainer, trainer->config.batch.sequences);
}

static bool measure_trainer(Trainer *trainer, const TrainMeasure *measure, TrainSpeed *speed, Error *error) {
    int64_t sequences = measure->microbatch, tokens = trainer->config.batch.tokens, most = tokens / trainer->config.data.length;
    if (!check_fit(trainer, sequences ? sequences : 1, error)) return false;
    int64_t largest = sequences ? sequences : largest_fitting(trainer, most > 0 ? most : 1);
    if (!make_shared(trainer, error) || (!sequences && !search(trainer, largest, &sequences, error))) return false;
    trainer->config.batch.tokens = tokens;
    double seconds;
    if (!open_program(trainer, sequences, measure->accumulation, error) || !time_steps(trainer, measure->steps, &seconds, error))
        return false;
    int64_t count = microbatches(&trainer->config);
    *speed = (TrainSpeed){.microbatch = sequences,
        .accumulation = count,
        .step_seconds = seconds,
        .tokens_per_second = (double)trainer->config.batch.tokens / seconds,
        .flops = trainer->plan.flops * (double)count / seconds,
        .memory = memory_of(trainer),
        .parameters = model_parameters(trainer->model.graph)};
    return true;
}

bool bench_train_measure(Bench *bench, const Config *config, const TrainMeasure *measure, TrainSpeed *speed, Error *error) {
    Trainer *trainer = memory_allocate(sizeof *trainer);
    *trainer = (Trainer){.bench = bench, .config = *config, .available = device_available(bench->device)};
    bool good = measure_trainer(trainer, measure, speed, error);
    close_program(trainer);
    free_shared(trainer);
    free(trainer);
    return good;
}

double bench_peak(const Bench *bench, Precision precision) {
    Hardware hardware;
    bool known = !device_info(bench->device)->host_memory && precision_is_bf16(precision) && hardware_of_device(&hardware, bench->device);
    return known && hardware.peak_bf16 > 0 ? hardware.peak_bf16 : NAN;
}

/* -- The benchmark ------------------------------------------------------------------------------------------------- */

static const BenchColumn columns[] = {{"type", BENCH_TEXT, 5}, {"parameters", 0, 12}, {"length", 0, 8}, {"microbatch", 0, 10},
    {"accumulation", 0, 12}, {"step_ms", 2, 11}, {"tokens_s", 1, 12}, {"tflops", 3, 9}, {"peak_percent", 1, 12}, {"best_percent", 1, 12},
    {"memory_bytes", 0, 14}};

static bool run(Bench *bench, Error *error) {
    const TrainOptions *options = bench->options;
    const Config *config = &bench->config;
    TrainSpeed speed;
    TrainMeasure measure = {.microbatch = options->microbatch, .accumulation = options->accumulation, .steps = options->steps};
    if (!bench_open_device(bench, (Precision)config->precision, error) || !bench_train_measure(bench, config, &measure, &speed, error))
        return false;
    double best = bench_best_gemm(bench, (Precision)config->precision);
    bench_row(
        bench, (BenchCell[]){TEXT(precision_name((Precision)config->precision)), NUMBER(speed.parameters), NUMBER(config->data.length),
                   NUMBER(speed.microbatch), NUMBER(speed.accumulation), NUMBER(1e3 * speed.step_seconds), NUMBER(speed.tokens_per_second),
                   NUMBER(speed.flops / 1e12), NUMBER(100 * speed.flops / bench_peak(bench, (Precision)config->precision)),
                   NUMBER(best > 0 ? 100 * speed.flops / best : NAN), NUMBER(speed.memory)});
    return true;
}

const Benchmark bench_train = {
    .name = "train",
    .summary = "how fast a configuration trains, with the best microbatch",
    .explanation =
        "Whole training steps on random tokens. The microbatch is searched from the largest whose plan fits downwards. TFLOP/s count what "
        "the model's operations need,\n"
        "without recomputation; % of peak is of the vendor's figure for the GPU, % of best of the best large GEMM measured here.\n",
    .config = BENCH_CONFIG_REQUIRED,
    BENCH_PARTS(TrainOptions),
    .plot = {"Training", "microbatch", "tokens_s", {"type"}, "sequences of a microbatch", "tokens/s"},
};

/* Speed of the engine for a configuration with random weights: N sequences at once, each with a
 * prompt of random tokens and then as many drawn ones, for several N in one engine. Owns the engine
 * while it runs. */
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/sort.h"
#include "bench/bench.h"
#include "engine/engine.h"
#include "model/model.h"

typedef struct BatchOptions {
    BenchOptions common;
    const char *sequences;
    int64_t prompt, tokens, limit, cache, adapters;
    double temperature;
} BatchOptions;

static const Option rows[] = {BENCH_ROWS,
    {"sequences", OPTION_STRING, offsetof(BatchOptions, sequences), "1,8,64", 0, 0, NULL, "", "sequences at once: numbers or ranges"},
    {"prompt", OPTION_INT, offsetof(BatchOptions, prompt), "512", 2, 1 << 24, NULL, "tokens", "tokens of each prompt"},
    {"tokens", OPTION_INT, offsetof(BatchOptions, tokens), "128", 2, 1 << 20, NULL, "tokens", "tokens drawn for each sequence"},
    {"limit", OPTION_INT, offsetof(BatchOptions, limit), "0", 0, 1 << 20, NULL, "tokens",
        "tokens that each sequence may draw; 0: as many as it draws"},
    {"cache", OPTION_INT, offsetof(BatchOptions, cache), "0", 0, 1LL << 40, NULL, "rows",
        "rows of the KV caches; 0: as many as all sequences may need"},
    {"adapters", OPTION_INT, offsetof(BatchOptions, adapters), "0", 0, ENGINE_MOST_ADAPTERS, NULL, "",
        "adapters at once, each of lora.rank and lora.targets; sequences take them in turn"},
    {"temperature", OPTION_REAL, offsetof(BatchOptions, temperature), "1", 0, 100, NULL, "", "of the draws; 0: the most likely token"}};

static const BenchColumn columns[] = {{"type", BENCH_TEXT, 9}, {"sequences", 0, 9}, {"prompt", 0, 9}, {"tokens", 0, 9},
    {"prompt_tokens_s", 1, 16}, {"step_ms", 3, 10}, {"step_tokens_s", 1, 14}, {"tokens_s", 1, 10}, {"at_once", 1, 8}};

/* Runs of a program before its times count: a device chooses algorithms in the first run and records
 * the second. */
enum { WARM_TOKENS = 4 };

typedef struct BatchRun {
    Engine *engine;
    const ModelConfig *model;
    double temperature;
    int32_t *prompts; /* [most sequences, prompt] */
    int64_t prompt, limit, adapters;
    int64_t *left; /* [most sequences]: tokens that a sequence is still to draw */
} BatchRun;

static bool count_token(void *context, int sample, const EngineToken *token) {
    int64_t *left = context;
    (void)sample, (void)token;
    return --*left > 0;
}
static void ignore_end(void *context, int sample, EngineEnd end) { (void)context, (void)sample, (void)end; }

static bool submit_sequences(const BatchRun *run, int64_t sequences, int64_t tokens, Error *error) {
    for (int64_t i = 0; i < sequences; i++) {
        run->left[i] = tokens;
        const EngineRequest request = {.prompt = run->prompts + i * run->prompt,
            .prompt_count = run->prompt,
            .tokens = run->limit,
            .samples = 1,
            .sampling = {.temperature = run->temperature, .top_p = 1},
            .number = (uint64_t)i,
            .adapter = run->adapters ? 1 + (int)(i % run->adapters) : 0,
            .token = count_token,
            .end = ignore_end,
            .context = &run->left[i]};
        if (!engine_submit(run->engine, &request, error)) return false;
    }
    return true;
}

static bool run_steps(const BatchRun *run, Error *error) {
    while (engine_busy(run->engine))
        if (!engine_step(run->engine, error)) return false;
    return true;
}

/* The times of N sequences. */
typedef struct BatchTimes {
    double prompts; /* until all prompts are in the caches */
    double step;    /* median of steps in which every sequence gets a token; 0: there are none */
    double all;
    double at_once; /* sequences in a step */
} BatchTimes;

static bool time_sequences(const BatchRun *run, int64_t sequences, int64_t tokens, BatchTimes *times, Error *error) {
    SCOPED_FREE double *seconds = memory_allocate((size_t)tokens * sizeof *seconds);
    EngineCounts first = engine_counts(run->engine);
    int64_t full = 0, fill = first.prompt_tokens + sequences * (run->prompt - 1);
    if (!submit_sequences(run, sequences, tokens, error)) return false;
    double begin = log_seconds();
    while (engine_busy(run->engine)) {
        EngineCounts before = engine_counts(run->engine);
        double start = log_seconds();
        if (!engine_step(run->engine, error)) return false;
        EngineCounts after = engine_counts(run->engine);
        if (before.prompt_tokens < fill && after.prompt_tokens >= fill) times->prompts = log_seconds() - begin;
        bool all = after.tokens - before.tokens == sequences && before.prompt_tokens == after.prompt_tokens;
        if (all) seconds[full++] = log_seconds() - start;
    }
    EngineCounts counts = engine_counts(run->engine);
    times->all = log_seconds() - begin;
    times->step = full ? sort_median(seconds, full) : 0;
    times->at_once = (double)(counts.sequences - first.sequences) / (double)(counts.steps - first.steps);
    return true;
}

static bool measure_sequences(Bench *bench, const BatchRun *run, Precision precision, int64_t sequences, Error *error) {
    const BatchOptions *options = bench->options;
    BatchTimes times = {0};
    if (!submit_sequences(run, sequences, WARM_TOKENS, error) || !run_steps(run, error) ||
        !time_sequences(run, sequences, options->tokens, &times, error))
        return false;
    bench_row(bench, (BenchCell[]){TEXT(precision_name(precision)), NUMBER(sequences), NUMBER(options->prompt), NUMBER(options->tokens),
                         NUMBER((double)(sequences * options->prompt) / times.prompts), NUMBER(1e3 * times.step),
                         NUMBER(times.step > 0 ? (double)sequences / times.step : 0),
                         NUMBER((double)(sequences * options->tokens) / times.all), NUMBER(times.at_once)});
    return true;
}

static void make_prompts(BatchRun *run, int64_t sequences) {
    int64_t count = sequences * run->prompt;
    run->prompts = memory_allocate((size_t)count * sizeof *run->prompts);
    run->left = memory_allocate((size_t)sequences * sizeof *run->left);
    for (int64_t i = 0; i < count; i++)
        run->prompts[i] = (int32_t)(rng_uniform(1, RNG_STREAM_BENCH, (uint64_t)i) * (double)run->model->vocabulary);
}

static void close_batch(BatchRun *run) {
    engine_free(run->engine);
    free(run->prompts);
    free(run->left);
}

static bool check_bench_adapters(const BatchOptions *options, const Config *config, Error *error) {
    if (options->adapters && !config->lora.rank)
        return error_set(error, ERROR_USAGE, "adapters=%lld needs the rank of the adapters: set lora.rank", (long long)options->adapters);
    return !options->adapters || lora_check_unmerged(&config->model, &config->lora, error);
}

static bool run_batch_bench(Bench *bench, Error *error) {
    const BatchOptions *options = bench->options;
    const Config *config = &bench->config;
    Precision precision = precision_for_inference((Precision)config->precision);
    BenchList list;
    int64_t most = 0, limit = int_max(options->limit, options->tokens), rows_each = options->prompt + limit;
    if (!bench_list(&list, "sequences", options->sequences, ENGINE_MOST_SLOTS, error)) return false;
    for (int i = 0; i < list.count; i++) most = int_max(most, list.numbers[i]);
    if (rows_each > config->model.context)
        return error_set(error, ERROR_USAGE, "prompt=%lld plus %s=%lld exceed model.context=%lld: reduce them", (long long)options->prompt,
            options->limit > options->tokens ? "limit" : "tokens", (long long)limit, (long long)config->model.context);
    if (!check_bench_adapters(options, config, error) || !bench_open_device(bench, precision, error)) return false;
    LoraConfig loras[ENGINE_MOST_ADAPTERS];
    for (int64_t i = 0; i < options->adapters; i++) loras[i] = config->lora;
    SCOPED(close_batch)
    BatchRun run = {.model = &config->model,
        .temperature = options->temperature,
        .prompt = options->prompt,
        .limit = limit,
        .adapters = options->adapters};
    EngineSizes sizes = {.slots = most,
        .cache_rows = options->cache ? options->cache : most * rows_each,
        .limit = config->model.vocabulary,
        .adapters = {(int)options->adapters, loras}};
    run.engine = engine_create(&config->model, (EnginePlace){NULL, precision, bench->device}, sizes, error);
    if (!run.engine || !model_initialize(engine_graph(run.engine), &config->model, config->seed, bench->device, engine_master(run.engine),
                           engine_weights(run.engine), error))
        return false;
    make_prompts(&run, most);
    for (int i = 0; i < list.count; i++)
        if (!measure_sequences(bench, &run, precision, list.numbers[i], error)) return false;
    return true;
}

const Benchmark bench_batch = {
    .name = "batch",
    .summary = "speed of generating many sequences at once",
    .explanation = "Gives each of N sequences a prompt of random tokens and draws tokens for all of them at once, with random weights.\n"
                   "prompt_tokens_s is the rate of prompts, step_ms the median time in which every sequence gets a token,\n"
                   "step_tokens_s the rate of such steps, and tokens_s the drawn tokens over the whole time, including prompts.\n"
                   "at_once is the number of sequences in a step, which cache= limits.\n"
                   "adapters=8 lora.rank=16 adds adapters, whose values are zero, to the rows of each step.\n",
    .config = BENCH_CONFIG_REQUIRED,
    BENCH_PARTS(BatchOptions, run_batch_bench),
    .plot = {"Generation of many sequences", "sequences", "tokens_s", {"type"}, "sequences at once", "tokens/s", .x_logarithmic = true},
};

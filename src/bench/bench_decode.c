/* Speed of generation for a configuration with random weights: a prompt of random tokens that fills
 * a context, then single tokens. Several ranks share caches and weights according to layout.cp and
 * layout.tp. Owns the ranks' groups and a generator while it runs. */
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/sort.h"
#include "bench/bench.h"
#include "graph/op.h"
#include "infer/generate.h"
#include "layout/layout.h"
#include "model/model.h"

typedef struct DecodeOptions {
    BenchOptions common;
    int64_t prompt, tokens;
} DecodeOptions;

static const Option rows[] = {BENCH_ROWS,
    {"prompt", OPTION_INT, offsetof(DecodeOptions, prompt), "0", 0, 1 << 24, NULL, "tokens",
        "tokens before the timed ones; 0: the rest of the context"},
    {"tokens", OPTION_INT, offsetof(DecodeOptions, tokens), "64", 1, 1 << 20, NULL, "tokens",
        "tokens timed one by one, after two warm-up tokens"}};

static const BenchColumn columns[] = {{"type", BENCH_TEXT, 9}, {"ranks", 0, 6}, {"cp", 0, 4}, {"tp", 0, 4}, {"context", 0, 9},
    {"prompt", 0, 9}, {"prompt_tokens_s", 1, 16}, {"token_ms", 3, 10}, {"best_ms", 3, 10}, {"tokens_s", 1, 10}, {"sent_bytes", 0, 12}};

enum { WARM = 2 /* tokens: a device chooses algorithms in a program's first run and records it in the second run */ };

typedef struct DecodeRun {
    Mesh mesh;
    Comm *comm;
    Generator *generator;
    int64_t prompt, tokens;
    double prompt_seconds, token_seconds, best_seconds; /* median and minimum of a token */
} DecodeRun;

static void close_decoding(DecodeRun *decoding) {
    generator_free(decoding->generator);
    mesh_close(&decoding->mesh);
    comm_close(decoding->comm);
}

static bool random_weights(Generator *generator, const Config *config, Device *device, Error *error) {
    return model_initialize(
        generator_graph(generator), &config->model, config->seed, device, generator_master(generator), generator_weights(generator), error);
}

static bool open_ranks(Bench *bench, DecodeRun *decoding, Precision precision, Error *error) {
    const DecodeOptions *options = bench->options;
    const Config *config = &bench->config;
    Comm *comm = decoding->comm = comm_open(&(CommOptions){.recommend = bench->recommend}, error);
    if (!comm) return false;
    bench->silent = comm_rank(comm) > 0;
    bench->device = bench->open_local_device(options->common.device, precision, comm, error);
    if (!bench->device || !comm_use_device(comm, bench->device, error)) return false;
    int size = comm_size(comm);
    if (size != config->layout.cp * config->layout.tp)
        return error_set(error, ERROR_USAGE, "layout.cp=%lld x layout.tp=%lld does not match %d started rank%s: set layout.cp=%d",
            (long long)config->layout.cp, (long long)config->layout.tp, size, size > 1 ? "s" : "", size);
    return layout_open_mesh(&decoding->mesh, config, comm, error);
}

static bool feed_tokens(DecodeRun *decoding, const Config *config, Error *error) {
    SCOPED_FREE int32_t *tokens = memory_allocate((size_t)decoding->prompt * sizeof *tokens);
    for (int64_t i = 0; i < decoding->prompt; i++)
        tokens[i] = (int32_t)(rng_uniform(1, RNG_STREAM_BENCH, (uint64_t)i) * (double)config->model.vocabulary);
    double start = log_seconds();
    bool done = generator_feed(decoding->generator, tokens, decoding->prompt, error) && generator_logits(decoding->generator, error);
    decoding->prompt_seconds = log_seconds() - start;
    return done;
}

/* Returns the bytes that this rank sends per token, by the rules of the operations. */
static double sent_bytes(const Graph *graph) {
    double bytes = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const Op *op = op_table[graph->nodes[i].op];
        if (!op->communicates) continue;
        Traffic traffic = op->traffic(graph, &graph->nodes[i]);
        bytes += traffic.bytes * (traffic.pairwise ? mesh_size(graph->mesh, traffic.axes) - 1 : 1);
    }
    return bytes;
}

/* Times drawing tokens, including all work of generation per token. */
static bool time_tokens(DecodeRun *decoding, Error *error) {
    SCOPED_FREE double *seconds = memory_allocate((size_t)decoding->tokens * sizeof *seconds);
    for (int64_t i = -WARM; i < decoding->tokens; i++) {
        int32_t token;
        double start = log_seconds();
        if (!generator_next(decoding->generator, &(Sampling){.top_p = 1}, INT64_MAX, &token, error)) return false;
        if (i >= 0) seconds[i] = log_seconds() - start;
    }
    decoding->token_seconds = sort_median(seconds, decoding->tokens);
    decoding->best_seconds = seconds[0];
    return true;
}

static bool run_decoding(Bench *bench, Error *error) {
    const DecodeOptions *options = bench->options;
    const Config *config = &bench->config;
    Precision precision = precision_for_inference((Precision)config->precision);
    SCOPED(close_decoding)
    DecodeRun decoding = {
        .tokens = options->tokens, .prompt = options->prompt ? options->prompt : config->model.context - options->tokens - WARM};
    if (decoding.prompt < 1 || decoding.prompt + decoding.tokens + WARM > config->model.context)
        return error_set(error, ERROR_USAGE,
            "prompt=%lld plus tokens=%lld plus %d warm-up tokens exceed model.context=%lld: reduce prompt or tokens",
            (long long)decoding.prompt, (long long)decoding.tokens, WARM, (long long)config->model.context);
    if (!open_ranks(bench, &decoding, precision, error)) return false;
    decoding.generator = generator_create(&decoding.mesh, &config->model, precision, bench->device, true, error);
    if (!decoding.generator || !random_weights(decoding.generator, config, bench->device, error) ||
        !feed_tokens(&decoding, config, error) || !time_tokens(&decoding, error))
        return false;
    bench_row(bench, (BenchCell[]){TEXT(precision_name(precision)), NUMBER(comm_size(decoding.comm)), NUMBER(config->layout.cp),
                         NUMBER(config->layout.tp), NUMBER(config->model.context), NUMBER(decoding.prompt),
                         NUMBER((double)decoding.prompt / decoding.prompt_seconds), NUMBER(1e3 * decoding.token_seconds),
                         NUMBER(1e3 * decoding.best_seconds), NUMBER(1 / decoding.token_seconds),
                         NUMBER(sent_bytes(generator_graph(decoding.generator)))});
    return true;
}

const Benchmark bench_decode = {
    .name = "decode",
    .summary = "speed of generation, on one rank or on several that share the cache",
    .explanation = "Fills the context with a prompt of random tokens, then generates tokens one by one, with random weights. On several "
                   "ranks, as in smelt launch -n 2 -- bench decode\n"
                   "CONFIG.yaml layout.cp=2, the ranks share the cache. token_ms is the median time per token, best_ms the minimum; "
                   "sent_bytes is the number of bytes that a rank sends per token.\n",
    .config = BENCH_CONFIG_REQUIRED,
    .ranks = true,
    BENCH_PARTS(DecodeOptions, run_decoding),
    .plot = {"Generation", "context", "tokens_s", {"ranks"}, "context in tokens", "tokens/s", .x_logarithmic = true},
};

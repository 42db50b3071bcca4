/* Attention, causal by default, forward and backward, over lengths and head sizes. It runs
 * training's operation as a program of one node and its gradient. Only the nodes are timed.
 * Operations are counted by the operation's cost rule: the products that causality (and a window)
 * leaves. */

#include "base/rng.h"
#include "base/sort.h"
#include "bench/bench.h"
#include "config/family.h"
#include "graph/op.h"
#include "backend/cpu/cpu_device.h"
#include "ops/attention/attention.h"
#include "program/program.h"
#include "ops/heads.h"

typedef struct AttentionOptions {
    BenchOptions common;
    const char *lengths, *head_dims;
    int64_t heads, kv_heads, tokens, window;
    int precision;
    bool bidirectional;
} AttentionOptions;

#define FIELD(name) offsetof(AttentionOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    STRING_OPTION(lengths, "", "tokens", "sequence lengths: numbers or ranges; empty: 256..2048, on a GPU 1024..16384"),
    STRING_OPTION(head_dims, "", "", "head dimensions: numbers or ranges; empty: the configuration's, else 64,128"),
    INT_OPTION(heads, "0", 0, 4096, "", "query heads; 0: the configuration's, else 8, on a GPU 32"),
    INT_OPTION(kv_heads, "0", 0, 4096, "", "key and value heads; 0: the configuration's, else a quarter of the query heads"),
    INT_OPTION(tokens, "0", 0, 1 << 24, "tokens", "total tokens of all sequences, at least one sequence; 0: 4096, on a GPU 32768"),
    INT_OPTION(window, "0", 0, 1 << 24, "tokens", "attention window; 0: the configuration's, else unlimited"),
    BOOL_OPTION(bidirectional, "false", "tokens also attend to later tokens, as in flux"),
    CHOICE_OPTION(precision, "bf16", "bf16|fp32", "type of queries, keys and values"),
};

static const BenchColumn columns[] = {{"pass", BENCH_TEXT, 8}, {"type", BENCH_TEXT, 5}, {"length", 0, 8}, {"sequences", 0, 9},
    {"heads", 0, 6}, {"kv_heads", 0, 8}, {"head_dim", 0, 8}, {"window", 0, 7}, {"us", 1, 12}, {"tflops", 3, 9}, {"best_tflops", 3, 11},
    {"gbps", 1, 8}};

/* -- One shape ----------------------------------------------------------------------------------------------------- */

/* Seconds of a run by pass, and the cost rule's values. */
typedef struct Passes { double seconds[2], flops[2], bytes[2]; } Passes;

static bool add_seconds(void *context, const Graph *graph, int node, double seconds) {
    Passes *passes = context;
    const Node *n = &graph->nodes[node];
    Cost cost = op_cost(graph, n);
    passes->seconds[n->backward] += seconds;
    passes->flops[n->backward] += cost.flops;
    passes->bytes[n->backward] += cost.bytes;
    return true;
}

static void fill_tensor(const Program *program, TensorId tensor, uint64_t seed) {
    const Graph *graph = program->model.graph;
    int bytes = (int)precision_bytes(graph->precision, TYPE_COMPUTE);
    Normals normals = {.seed = seed, .stream = RNG_STREAM_BENCH, .deviation = 1};
    device_normals(
        device_cpu(), executor_tensor(program->executor, tensor), bytes, &(Slice){.count = graph_elements(graph, tensor)}, &normals);
}

/* Opens a program of attention and its gradient. */
static bool open_attention(
    Program *program, Bench *bench, const AttentionSpec *spec, int64_t sequences, Precision precision, Error *error) {
    const Heads *h = &spec->heads;
    int64_t tokens = sequences * spec->length, attended = heads_out_columns(h), packed = heads_columns(h);
    Graph *graph = program->model.graph = graph_create(precision, true);
    TensorId qkv = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){tokens, packed}, "qkv");
    TensorId gradient = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){tokens, attended}, "d_attended");
    TensorId places = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &tokens, "positions");
    Seed seed = {op_attention(graph, qkv, places, spec), gradient};
    graph_differentiate(graph, RECOMPUTE_NONE, &seed, 1);
    if (!program_plan(program, bench->device, error)) return false;
    int64_t needed = program->plan.bytes[ARENA_INPUT] + program->plan.bytes[ARENA_ACTIVATION];
    if (!bench_fits(bench->device, needed, "attention", "fewer tokens", error) || !program_start(program, NULL, error)) return false;
    fill_tensor(program, qkv, 1);
    fill_tensor(program, gradient, 2);
    int32_t *positions = executor_tensor(program->executor, places);
    for (int64_t i = 0; i < tokens; i++) positions[i] = (int32_t)(i % spec->length);
    return true;
}

/* Runs until both the repeats and the seconds are reached; returns medians by pass. */
static bool time_passes(Bench *bench, const Program *program, double *median, double *best, Passes *cost, Error *error) {
    enum { MOST = 1000 };
    const BenchOptions *options = bench->options;
    double samples[2][MOST], spent = 0;
    int count = 0;
    for (int i = -1; i < MOST && (count < options->repeats || spent < options->seconds); i++) {
        *cost = (Passes){0};
        executor_run_hooked(program->executor, add_seconds, cost);
        if (i < 0) continue; /* warm-up */
        for (int pass = 0; pass < 2; pass++) spent += samples[pass][count] = cost->seconds[pass];
        count++;
    }
    for (int pass = 0; pass < 2; pass++) {
        median[pass] = sort_median(samples[pass], count);
        best[pass] = samples[pass][0];
    }
    return device_ok(bench->device, error);
}

static bool measure_attention(Bench *bench, const AttentionSpec *spec, int64_t sequences, Precision precision, Error *error) {
    static const char *const names[] = {"forward", "backward"};
    SCOPED(program_free) Program program = {0};
    Passes cost = {0};
    double median[2] = {0}, best[2] = {0};
    if (!open_attention(&program, bench, spec, sequences, precision, error) || !time_passes(bench, &program, median, best, &cost, error))
        return false;
    for (int pass = 0; pass < 2; pass++)
        bench_row(bench, (BenchCell[]){TEXT(names[pass]), TEXT(precision_name(precision)), NUMBER(spec->length), NUMBER(sequences),
                             NUMBER(spec->heads.heads), NUMBER(spec->heads.kv_heads), NUMBER(spec->heads.qk_dim),
                             NUMBER(spec->scores.window), NUMBER(1e6 * median[pass]), NUMBER(cost.flops[pass] / median[pass] / 1e12),
                             NUMBER(cost.flops[pass] / best[pass] / 1e12), NUMBER(cost.bytes[pass] / median[pass] / 1e9)});
    return true;
}

/* -- The benchmark ------------------------------------------------------------------------------------------------- */

static int64_t first_of(int64_t given, bool configured, int64_t of_config, int64_t otherwise) {
    return given ? given : configured ? of_config : otherwise;
}

static bool make_spec(const Bench *bench, AttentionSpec *spec, Error *error) {
    const AttentionOptions *options = bench->options;
    const ModelConfig *model = &bench->config.model;
    bool configured = bench->configured, alibi = configured && family_has(family_of(model), "model.alibi_max");
    spec->heads.heads = first_of(options->heads, configured, model->heads, bench_sizes(bench->device)->attention_heads);
    int64_t quarter = spec->heads.heads % 4 ? 1 : spec->heads.heads / 4;
    spec->heads.kv_heads = first_of(options->kv_heads, configured, model->kv_heads, quarter);
    spec->scores.window = first_of(options->window, configured, model->window, 0);
    spec->scores.alibi = alibi ? model->alibi_max : 0;
    spec->scores.scale = configured ? model->softmax_scale : 0;
    spec->bidirectional = options->bidirectional;
    if (spec->bidirectional && (spec->scores.window || spec->scores.alibi))
        return error_set(
            error, ERROR_USAGE, "bidirectional=true supports neither a window nor ALiBi: set window=0, or use a CONFIG.yaml without ALiBi");
    return spec->heads.heads % spec->heads.kv_heads == 0 ||
           error_set(error, ERROR_USAGE, "heads=%lld is not a multiple of kv_heads=%lld: change one of them", (long long)spec->heads.heads,
               (long long)spec->heads.kv_heads);
}

static bool run_attention(Bench *bench, Error *error) {
    const AttentionOptions *options = bench->options;
    const int64_t most_length = 1 << 24, most_head_dim = 1024;
    AttentionSpec spec = {0};
    if (!bench_open_device(bench, (Precision)options->precision, error) || !make_spec(bench, &spec, error)) return false;
    const BenchSizes *usual = bench_sizes(bench->device);
    int64_t tokens = options->tokens ? options->tokens : usual->attention_tokens;
    char of_config[32];
    snprintf(of_config, sizeof of_config, "%lld", (long long)bench->config.model.head_dim);
    BenchList lengths, head_dims;
    if (!bench_list(&lengths, "lengths", *options->lengths ? options->lengths : usual->attention_lengths, most_length, error) ||
        !bench_list(&head_dims, "head_dims",
            *options->head_dims ? options->head_dims
            : bench->configured ? of_config
                                : "64,128",
            most_head_dim, error))
        return false;
    for (int d = 0; d < head_dims.count; d++)
        for (int l = 0; l < lengths.count; l++) {
            spec.length = lengths.numbers[l];
            spec.heads.qk_dim = spec.heads.v_dim = head_dims.numbers[d];
            if (!measure_attention(bench, &spec, int_max(tokens / spec.length, 1), (Precision)options->precision, error)) return false;
        }
    return true;
}

const Benchmark bench_attention = {
    .name = "attention",
    .summary = "attention, forward and backward, over lengths and head dimensions",
    .explanation = "Measures the attention operation of training on random normal queries, keys and values. TFLOP/s count the GEMMs of the "
                   "causal half: 2 forward, 5 backward.\n"
                   "CONFIG.yaml gives heads, window and bias.\n",
    .config = BENCH_CONFIG_OPTIONAL,
    BENCH_PARTS(AttentionOptions, run_attention),
    .plot = {"Attention", "length", "tflops", {"pass", "head_dim"}, "tokens per sequence", "TFLOP/s", .x_logarithmic = true},
};

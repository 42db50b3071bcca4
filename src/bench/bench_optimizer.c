/* Optimizers: one update of all parameters of a model, or of square matrices, by each optimizer.
 * Bytes are the minimum that an update moves: it reads master weights, gradients and state, and
 * writes master weights, state and the weights in the compute type. */
#include <stdlib.h>

#include "base/memory.h"
#include "bench/bench.h"
#include "model/model.h"
#include "graph/op.h"
#include "optim/optim.h"

typedef struct OptimizerOptions {
    BenchOptions common;
    int optimizer;
    int64_t width, parameters;
} OptimizerOptions;

/* "all|adamw|muon|..." */
#define OPTIMIZER(name, kind) "|" #name
static const char choices[] = "all"
#include "config/optimizer_list.h"
    ;
#undef OPTIMIZER

#define FIELD(name) offsetof(OptimizerOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    CHOICE_OPTION(optimizer, "all", choices, "optimizer to measure"),
    INT_OPTION(width, "1024", 1, 65536, "", "dimension of the square matrices, without a configuration"),
    INT_OPTION(parameters, "0", 0, 1e12, "", "total parameters of all matrices, at least one matrix; 0: 32M, on a GPU 1G"),
};

static const BenchColumn columns[] = {{"optimizer", BENCH_TEXT, 9}, {"type", BENCH_TEXT, 5}, {"parameters", 0, 13}, {"bytes", 0, 15},
    {"ms", 3, 11}, {"gbps", 2, 9}, {"best_gbps", 2, 9}, {"gparams_s", 3, 9}, {"state_bytes", 0, 15}};

static Graph *matrices(Precision precision, int64_t width, int64_t count) {
    Graph *graph = graph_create(precision, true);
    for (int64_t i = 0; i < count; i++) {
        SCOPED_FREE char *name = memory_format("matrix%lld", (long long)i);
        graph_parameter(graph, name, PARAMETER_MATRIX, 2, (int64_t[]){width, width}, 0, 1, false);
    }
    return graph;
}

typedef struct BenchUpdate {
    Optimizer *optimizer;
    /* One set each: an update exceeds all caches, or is as small as in training. */
    BenchArena master, gradients, weights;
} BenchUpdate;

static void update_once(void *context, int64_t call) {
    const BenchUpdate *update = context;
    const double lr = 1e-5;
    void *weights = update->weights.memory ? update->weights.memory : update->master.memory;
    optimizer_step(update->optimizer, &(Update){update->master.memory, weights, update->gradients.memory, call + 1, lr, 1});
}

static bool open_update(BenchUpdate *update, Bench *bench, const Graph *graph, const OptimizerConfig *config, Error *error) {
    Device *device = bench->device;
    int64_t kept = bench_round(graph->parameter_bytes);
    GemmType type = graph->precision == PRECISION_PURE_BF16 ? GEMM_BF16 : GEMM_F32;
    bool copies = graph->precision == PRECISION_BF16;
    int64_t needed = 2 * kept + (copies ? kept / 2 : 0) + optimizer_state_bytes(graph, config, NULL) +
                     optimizer_workspace_bytes(graph, config, NULL, device);
    if (!bench_fits(device, needed, "an optimizer", "fewer parameters", error)) return false;
    return bench_arena_open(&update->master, device, kept, false, type, error) &&
           bench_arena_open(&update->gradients, device, kept, false, type, error) &&
           (!copies || bench_arena_open(&update->weights, device, bench_round(kept / 2), false, GEMM_BF16, error)) &&
           (update->optimizer = optimizer_create(graph, config, NULL, device, error));
}

static void close_update(BenchUpdate *update) {
    optimizer_free(update->optimizer);
    bench_arena_close(&update->weights);
    bench_arena_close(&update->gradients);
    bench_arena_close(&update->master);
}

static bool measure_step(Bench *bench, const Graph *graph, int name, Error *error) {
    OptimizerConfig config = bench->config.optimizer;
    config.name = name;
    SCOPED(close_update) BenchUpdate update = {0};
    BenchTime time;
    double parameters = (double)model_parameters(graph), state = (double)optimizer_state_bytes(graph, &config, NULL);
    double kept = (double)precision_state_bytes(graph->precision, TYPE_COMPUTE), copy = graph->precision == PRECISION_BF16 ? 2 : 0;
    double bytes = parameters * (3 * kept + copy) + 2 * state;
    if (!open_update(&update, bench, graph, &config, error) || !bench_time(bench, update_once, &update, &time, error)) return false;
    bench_row(bench, (BenchCell[]){TEXT(optimizer_rules[name]->name), TEXT(precision_name(graph->precision)), NUMBER(parameters),
                         NUMBER(bytes), NUMBER(1e3 * time.seconds), NUMBER(bytes / time.seconds / 1e9), NUMBER(bytes / time.best / 1e9),
                         NUMBER(parameters / time.seconds / 1e9), NUMBER(state)});
    return true;
}

static bool run_optimizer(Bench *bench, Error *error) {
    const OptimizerOptions *options = bench->options;
    Precision precision = bench->configured ? bench->config.precision : PRECISION_BF16;
    if (precision == PRECISION_FP64) return error_set(error, ERROR_USAGE, "precision=fp64 exists only for checks: set bf16 or fp32");
    if (!bench_open_device(bench, precision, error)) return false;
    int64_t wanted = options->parameters ? options->parameters : bench_sizes(bench->device)->optimizer_parameters;
    Graph *graph = bench->configured
                       ? model_build(&bench->config.model, precision, MODEL_TRAIN, 1, bench->config.data.length, RECOMPUTE_NONE).graph
                       : matrices(precision, options->width, int_max(wanted / options->width / options->width, 1));
    bool good = true; /* choice 0 is all */
    for (int i = 0; i < OPTIMIZER_COUNT && good; i++)
        if (!options->optimizer || options->optimizer == i + 1) good = measure_step(bench, graph, i, error);
    graph_free(graph);
    return good;
}

const Benchmark bench_optimizer = {
    .name = "optimizer",
    .summary = "an update of all parameters, by each optimizer",
    .explanation = "With CONFIG.yaml: measures its parameters and optimizer settings. Without: square matrices. GB/s count the minimum "
                   "traffic of an update: master weights,\n"
                   "gradients, optimizer state and weights. Muon also multiplies matrices, so its GB/s are lower.\n",
    .config = BENCH_CONFIG_OPTIONAL,
    BENCH_PARTS(OptimizerOptions, run_optimizer),
    .plot = {"Optimizers", "parameters", "gbps", {"optimizer"}, "parameters", "GB/s", .x_logarithmic = true},
};

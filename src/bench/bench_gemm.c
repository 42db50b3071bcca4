/* GEMMs of a model's training step, or a sweep of shapes. Operands are random normal numbers in
 * rotating buffers, so that each GEMM finds its operands outside the caches, as in training. On a
 * GPU it measures smelt's own kernels and training's choice (the vendor's library if present) side
 * by side, in bf16 and FP8; on a CPU smelt's own kernels and, if present, oneDNN's in fp32. Three
 * rows of every result are compared with dot products in double. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/library.h"
#include "base/log.h"
#include "base/math.h"
#include "advise/gemm_check.h"
#include "advise/work.h"
#include "bench/bench.h"
#include "model/model.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "graph/op.h"

typedef struct GemmOptions {
    BenchOptions common;
    const char *m, *n, *k;
    int type, layout, cache, provider;
} GemmOptions;

enum { CHOICE_ALL, CHOICE_BF16, CHOICE_FP8, CHOICE_FP32 }; /* type= */
enum { CACHE_COLD, CACHE_HOT };                            /* cache= */
enum { LAYOUT_NT, LAYOUT_NN, LAYOUT_TN, LAYOUT_ALL };      /* layout= */
static const int64_t MOST = 1 << 22;                       /* of m, n, k: leading dimensions of GPU kernels are below 2^23 */

#define FIELD(name) offsetof(GemmOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    STRING_OPTION(m, "", "", "rows of C: numbers, or ranges such as 256..8192; empty: 256..2048, on a GPU 1024..8192"),
    STRING_OPTION(n, "", "", "columns of C: numbers or ranges; empty: n = m"),
    STRING_OPTION(k, "", "", "depth: numbers or ranges; empty: k = m"),
    CHOICE_OPTION(type, "all", "all|bf16|fp8|fp32",
        "type of A and B; fp32: CPUs only; fp8: GPUs with fp8 only, with A in e4m3 and e5m2, B in e4m3, layout nt"),
    CHOICE_OPTION(layout, "nt", "nt|nn|tn|all",
        "layouts of a sweep: nt is the forward pass (x w^T), nn the gradient of x, tn the gradient of w in fp32"),
    CHOICE_OPTION(
        cache, "cold", "cold|hot", "cold: operands rotate through twice the last-level cache; hot: every call reuses the same operands"),
    CHOICE_OPTION(provider, "all", "all|own|chosen|onednn",
        "implementation: own: smelt's kernels, chosen: the GEMM that training runs, onednn: oneDNN"),
};

/* -- Shapes -------------------------------------------------------------------------------------------------------- */

/* A GEMM without its memory; gemm.count is how often a microbatch has it. `wide`: C is in fp32. */
typedef struct BenchShape {
    char name[48];
    int layout;
    bool wide;
    GemmShape gemm;
} BenchShape;
typedef struct Shapes {
    BenchShape *items;
    int count;
} Shapes;

static void free_shapes(Shapes *shapes) { free(shapes->items); }

static void add_shape(Shapes *shapes, const BenchShape *shape) {
    const GemmShape *new = &shape->gemm;
    for (int i = 0; i < shapes->count; i++) {
        BenchShape *s = &shapes->items[i];
        GemmShape *old = &s->gemm;
        if (s->layout != shape->layout || s->wide != shape->wide || old->m != new->m || old->n != new->n || old->k != new->k) continue;
        old->count += new->count;
        return;
    }
    array_append(shapes->items, shapes->count, *shape);
}

/* Adds the GEMM of a layer's forward pass (nt), input gradient (nn) or weight gradient (tn). `name`
 * is shortened: "self_attn.q_proj" for "d_model.layers.3.self_attn.q_proj.weight". */
static void add_layer(Shapes *shapes, int layout, const char *name, bool wide, GemmShape gemm) {
    BenchShape shape = {.layout = layout, .wide = layout == LAYOUT_TN || (wide && layout == LAYOUT_NT), .gemm = gemm};
    const char *layers = strstr(name, "layers.");
    if (layers) name = layers + strlen("layers.") + strspn(layers + strlen("layers."), "0123456789.");
    snprintf(shape.name, sizeof shape.name, "%s", name);
    char *weight = strstr(shape.name, ".weight");
    if (weight) *weight = '\0';
    add_shape(shapes, &shape);
}

static int operand_layout(int op) {
    if (op == OP_linear || op == OP_grouped_linear) return LAYOUT_NT;
    return op == OP_linear_grad_input || op == OP_grouped_linear_grad_input ? LAYOUT_NN : LAYOUT_TN;
}

/* Adds the GEMMs of a node: the LM head's in chunks of at most 4,096 rows, as on GPUs; experts get
 * equal shares of the tokens. */
static void add_node(Shapes *shapes, const Graph *graph, const Node *node) {
    const int64_t head_rows = 4096;
    Work work = work_of_node(graph, node);
    GemmShape g = work.gemm;
    if (work.class == WORK_GEMM) {
        bool wide = ((const LinearAttributes *)node->attributes)->wide;
        add_layer(shapes, operand_layout(node->op), graph_get(graph, linear_node_weight(node))->name, wide, g);
    } else if (work.class == WORK_EXPERTS || work.class == WORK_EXPERT_WEIGHTS) {
        add_layer(shapes, operand_layout(node->op), graph_get(graph, grouped_linear_node_weight(node))->name, false, g);
    } else if (work.class == WORK_HEAD) {
        int64_t chunk = int_min(g.m, head_rows), chunks = divide_up(g.m, chunk);
        add_layer(shapes, LAYOUT_NT, "head", false, (GemmShape){chunk, g.n, g.k, chunks});
        add_layer(shapes, LAYOUT_NN, "head", false, (GemmShape){chunk, g.k, g.n, chunks});
        add_layer(shapes, LAYOUT_TN, "head", false, (GemmShape){g.n, g.k, chunk, chunks});
    }
}

static void shapes_of_model(Shapes *shapes, const Config *config) {
    SCOPED(model_free)
    Model model = model_build(&config->model, config->precision, MODEL_TRAIN, config->batch.sequences, config->data.length, RECOMPUTE_NONE);
    for (int i = 0; i < model.graph->node_count; i++) add_node(shapes, model.graph, &model.graph->nodes[i]);
}

/* Adds every m with every n and k in every layout; an n or k that is not given equals m. */
static bool shapes_of_sweep(Shapes *shapes, const GemmOptions *options, const BenchSizes *sizes, Error *error) {
    const int64_t same = 0; /* as m */
    BenchList m, n = {{same}, 1}, k = {{same}, 1};
    if (!bench_list(&m, "m", *options->m ? options->m : sizes->gemm_m, MOST, error) ||
        (*options->n && !bench_list(&n, "n", options->n, MOST, error)) || (*options->k && !bench_list(&k, "k", options->k, MOST, error)))
        return false;
    for (int i = 0; i < m.count * n.count * k.count; i++)
        for (int layout = LAYOUT_NT; layout <= LAYOUT_TN; layout++) {
            if (options->layout != LAYOUT_ALL && options->layout != layout) continue;
            int64_t rows_of_c = m.numbers[i / (n.count * k.count)], columns_of_c = n.numbers[i / k.count % n.count],
                    depth = k.numbers[i % k.count];
            BenchShape shape = {.name = "sweep", .layout = layout, .wide = layout == LAYOUT_TN};
            shape.gemm = (GemmShape){rows_of_c, columns_of_c ? columns_of_c : rows_of_c, depth ? depth : rows_of_c, 1};
            add_shape(shapes, &shape);
        }
    return true;
}

/* -- A GEMM in memory ---------------------------------------------------------------------------------------------- */

/* Bytes of the operands; A and B are adjacent. */
typedef struct Sizes { int64_t a, inputs, output; } Sizes;

static GemmType output_of(const BenchShape *shape, GemmType type) { return shape->wide ? GEMM_F32 : gemm_is_fp8(type) ? GEMM_BF16 : type; }

static Sizes sizes_of(const BenchShape *shape, GemmType type) {
    const GemmShape *g = &shape->gemm;
    int64_t unit = bench_type_bytes(type), a = bench_round(g->m * g->k * unit), b = bench_round(g->k * g->n * unit);
    return (Sizes){.a = a, .inputs = a + b, .output = bench_round(g->m * g->n * bench_type_bytes(output_of(shape, type)))};
}

/* Returns the GEMM as training calls it: weight gradients are accumulated. */
static Gemm gemm_of(const BenchShape *shape, GemmType type, const char *inputs, char *output) {
    const GemmShape *s = &shape->gemm;
    bool tn = shape->layout == LAYOUT_TN, nt = shape->layout == LAYOUT_NT;
    return (Gemm){.transpose_a = tn,
        .transpose_b = nt,
        .accumulate = tn,
        .input = type,
        .output = output_of(shape, type),
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .a = inputs,
        .lda = tn ? s->m : s->k,
        .b = inputs + sizes_of(shape, type).a,
        .ldb = nt ? s->k : s->n,
        .c = output,
        .ldc = s->n};
}

/* choices of provider=, without all */
typedef enum Provider { PROVIDER_OWN, PROVIDER_CHOSEN, PROVIDER_ONEDNN, PROVIDER_COUNT } Provider;
static const char *const provider_names[] = {"own", "chosen", "onednn"};

/* dnnl_sgemm of oneDNN 2 and 3: row-major C = alpha op(A) op(B) + beta C; returns 0 on success. */
typedef int (*Sgemm)(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
    const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* A and B rotate in one arena, C in another that is never read as A or B: the sums of one shape
 * would not be random inputs for the next. */
typedef struct BenchTrial {
    const BenchShape *shape;
    GemmType type;
    Provider provider;
    void *library; /* oneDNN; NULL: missing */
    Sgemm sgemm;
    BenchArena inputs, outputs;
} BenchTrial;

static void find_sgemm(BenchTrial *trial) {
    static const char *const libraries[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !trial->library; i++)
        trial->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    if (trial->library) trial->sgemm = (Sgemm)dlsym(trial->library, "dnnl_sgemm");
}

/* Returns false if no provider computes the GEMM. This can happen only in FP8. */
static bool run_gemm(const BenchTrial *trial, const Gemm *g) {
    Device *device = trial->inputs.device;
    if (trial->provider == PROVIDER_OWN) return device_gemm_own(device, g);
    if (trial->provider == PROVIDER_CHOSEN && gemm_is_fp8(g->input)) return device_gemm_fp8(device, g);
    if (trial->provider == PROVIDER_ONEDNN)
        trial->sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k, 1, g->a, g->lda, g->b, g->ldb,
            g->accumulate ? 1 : 0, g->c, g->ldc);
    else device_gemm(device, g);
    return true;
}

static void run_trial(void *context, int64_t call) {
    const BenchTrial *trial = context;
    Sizes sizes = sizes_of(trial->shape, trial->type);
    Gemm g = gemm_of(trial->shape, trial->type, bench_arena_set(&trial->inputs, sizes.inputs, call),
        bench_arena_set(&trial->outputs, sizes.output, call));
    run_gemm(trial, &g);
}

/* -- Checking ------------------------------------------------------------------------------------------------------ */

/* Returns whether a row of C, `c`, is correct at up to 512 columns; A and B are in host memory. */
static bool row_is_right(const Gemm *g, const Device *device, int64_t row, const char *c) {
    const int64_t most_columns = 512;
    int64_t step = divide_up(g->n, most_columns);
    int wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
    for (int64_t column = 0; column < g->n; column += step) wrong += !gemm_element_is_right(g, device, row, column, c);
    return wrong == 0;
}

/* Runs the GEMM once, with C zeroed before, and checks its first, middle and last row. `made` is
 * false if no provider computes it. */
static bool check_gemm(const BenchTrial *trial, bool *made, bool *right, Error *error) {
    Device *device = trial->inputs.device;
    Sizes sizes = sizes_of(trial->shape, trial->type);
    Gemm g = gemm_of(trial->shape, trial->type, trial->inputs.memory, trial->outputs.memory);
    const int64_t rows[] = {0, g.m / 2, g.m - 1}, bytes = g.n * bench_type_bytes(g.output);
    device_fill(device, g.c, 0, sizes.output);
    *made = *right = run_gemm(trial, &g);
    if (!*made) return device_ok(device, error);
    char *inputs = device_view(device, trial->inputs.memory, sizes.inputs, VIEW_READ, error);
    if (!inputs) return false;
    SCOPED_FREE char *c = memory_allocate((size_t)bytes);
    Gemm on_host = gemm_of(trial->shape, trial->type, inputs, NULL);
    for (int i = 0; i < 3; i++) {
        device_download(device, c, (char *)g.c + rows[i] * bytes, bytes);
        *right = row_is_right(&on_host, device, rows[i], c) && *right;
    }
    device_view_close(device, inputs, trial->inputs.memory, sizes.inputs, VIEW_READ);
    return device_ok(device, error);
}

/* -- The benchmark ------------------------------------------------------------------------------------------------- */

static const BenchColumn columns[] = {{"gemm", BENCH_TEXT, 30}, {"layout", BENCH_TEXT, 6}, {"type", BENCH_TEXT, 5},
    {"output", BENCH_TEXT, 6}, {"provider", BENCH_TEXT, 8}, {"m", 0, 8}, {"n", 0, 8}, {"k", 0, 8}, {"calls", 0, 6}, {"us", 1, 11},
    {"tflops", 3, 9}, {"best_tflops", 3, 11}, {"gbps", 1, 8}, {"check", BENCH_TEXT, 5}};

static const char *const type_names[] = {[GEMM_F32] = "fp32", [GEMM_BF16] = "bf16", [GEMM_E4M3] = "e4m3", [GEMM_E5M2] = "e5m2"};

/* `missing`: FP8 GEMMs that no provider computes. */
typedef struct Tally {
    int wrong, missing;
    double best; /* FLOP/s */
    GemmShape best_shape;
    GemmType best_type;
} Tally;

static bool measure_trial(Bench *bench, const BenchTrial *trial, Tally *tally, Error *error) {
    static const char *const layouts[] = {"nt", "nn", "tn"};
    const BenchShape *s = trial->shape;
    const GemmShape *g = &s->gemm;
    bool made, right;
    BenchTime time;
    if (!check_gemm(trial, &made, &right, error)) return false;
    tally->missing += !made;
    if (!made) return true;
    if (!bench_time(bench, run_trial, (void *)trial, &time, error)) return false;
    Sizes sizes = sizes_of(s, trial->type);
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k, bytes = (double)(sizes.inputs + sizes.output);
    bench_row(bench, (BenchCell[]){TEXT(s->name), TEXT(layouts[s->layout]), TEXT(type_names[trial->type]),
                         TEXT(type_names[output_of(s, trial->type)]), TEXT(provider_names[trial->provider]), NUMBER(g->m), NUMBER(g->n),
                         NUMBER(g->k), NUMBER(g->count), NUMBER(1e6 * time.seconds), NUMBER(flops / time.seconds / 1e12),
                         NUMBER(flops / time.best / 1e12), NUMBER(bytes / time.seconds / 1e9), TEXT(right ? "ok" : "WRONG")});
    tally->wrong += !right;
    if (flops / time.seconds > tally->best) {
        tally->best = flops / time.seconds;
        tally->best_shape = *g;
        tally->best_type = trial->type;
    }
    return true;
}

/* Returns whether to measure the provider on a device. On a CPU these are smelt's own kernels,
 * which training runs, and oneDNN. */
static bool wants_provider(const BenchTrial *trial, int provider_option) {
    bool cpu = device_info(trial->inputs.device)->host_memory;
    if (provider_option && provider_option != (int)trial->provider + 1) return false;
    switch (trial->provider) {
    case PROVIDER_OWN: return true;
    case PROVIDER_CHOSEN: return !cpu;
    default: return cpu && trial->sgemm && trial->type == GEMM_F32;
    }
}

static bool allocate_operands(BenchTrial *trial, Device *device, const Sizes *sizes, bool cold, Error *error) {
    return bench_arena_open(&trial->inputs, device, sizes->inputs, cold, trial->type, error) &&
           bench_arena_open(&trial->outputs, device, sizes->output, cold, trial->type, error);
}

static void close_trial(BenchTrial *trial) {
    bench_arena_close(&trial->inputs);
    bench_arena_close(&trial->outputs);
    if (trial->library) dlclose(trial->library);
}

static bool measure_type(Bench *bench, const Shapes *shapes, GemmType type, Tally *tally, Error *error) {
    const GemmOptions *options = bench->options;
    Sizes most = {0};
    for (int i = 0; i < shapes->count; i++) {
        Sizes sizes = sizes_of(&shapes->items[i], type);
        most.inputs = int_max(most.inputs, sizes.inputs);
        most.output = int_max(most.output, sizes.output);
    }
    SCOPED(close_trial) BenchTrial trial = {.type = type};
    bool cold = options->cache == CACHE_COLD;
    find_sgemm(&trial);
    if (!allocate_operands(&trial, bench->device, &most, cold, error)) return false;
    for (int i = 0; i < shapes->count; i++)
        for (trial.provider = PROVIDER_OWN; trial.provider < PROVIDER_COUNT; trial.provider++) {
            BenchTrial one = trial;
            if (!wants_provider(&trial, options->provider)) continue;
            one.shape = &shapes->items[i];
            if (!cold) {
                one.inputs.bytes = sizes_of(one.shape, type).inputs;
                one.outputs.bytes = sizes_of(one.shape, type).output;
            }
            if (!measure_trial(bench, &one, tally, error)) return false;
        }
    return true;
}

/* A CPU computes FP8 GEMMs in fp32, for checks and not for speed. */
static bool has_gemms(const Bench *bench, GemmType type) {
    const DeviceInfo *info = device_info(bench->device);
    return info->gemm_inputs >> type & 1 && !(gemm_is_fp8(type) && info->host_memory);
}

/* FP8 has only the forward layout. A line reports the number of missing shapes. */
static bool measure_fp8(Bench *bench, const Shapes *shapes, Tally *tally, Error *error) {
    SCOPED(free_shapes) Shapes forward = {0};
    for (int i = 0; i < shapes->count; i++)
        if (shapes->items[i].layout == LAYOUT_NT) add_shape(&forward, &shapes->items[i]);
    bool good = !forward.count ||
                (measure_type(bench, &forward, GEMM_E4M3, tally, error) && measure_type(bench, &forward, GEMM_E5M2, tally, error));
    if (good && tally->missing)
        log_info("fp8: %s has no kernel for %d GEMMs, because their n or k is not a multiple of 16", device_info(bench->device)->name,
            tally->missing);
    return good;
}

static bool measure_types(Bench *bench, const Shapes *shapes, Tally *tally, Error *error) {
    static const GemmType types[] = {[CHOICE_BF16] = GEMM_BF16, [CHOICE_FP8] = GEMM_E4M3, [CHOICE_FP32] = GEMM_F32};
    int wanted = ((const GemmOptions *)bench->options)->type;
    bool good = true;
    for (int option = CHOICE_BF16; good && option <= CHOICE_FP32; option++) {
        GemmType type = types[option];
        if ((wanted != CHOICE_ALL && wanted != option) || !has_gemms(bench, type)) continue;
        good = gemm_is_fp8(type) ? measure_fp8(bench, shapes, tally, error) : measure_type(bench, shapes, type, tally, error);
    }
    return good;
}

static bool run_gemms(Bench *bench, Error *error) {
    const GemmOptions *options = bench->options;
    SCOPED(free_shapes) Shapes shapes = {0};
    Tally tally = {0};
    if (!bench_open_device(bench, options->type == CHOICE_FP32 ? PRECISION_FP32 : PRECISION_BF16, error)) return false;
    if (options->type == CHOICE_FP32 && !has_gemms(bench, GEMM_F32))
        return error_set(error, ERROR_USAGE, "type=fp32: GPUs have only bf16 and fp8 GEMMs: set device=cpu");
    if (options->type == CHOICE_FP8 && !has_gemms(bench, GEMM_E4M3))
        return error_set(
            error, ERROR_USAGE, "type=fp8: %s has no fp8 GEMMs: use another GPU or another type", device_info(bench->device)->name);
    if (bench->configured) {
        shapes_of_model(&shapes, &bench->config);
        bench->results.plot.x = "us";
        bench->results.plot.x_label = "microseconds";
    } else if (!shapes_of_sweep(&shapes, options, bench_sizes(bench->device), error)) {
        return false;
    }
    if (!measure_types(bench, &shapes, &tally, error)) return false;
    const GemmShape *best = &tally.best_shape;
    if (tally.best > 0)
        log_info("best: %.3f TFLOP/s, %s %" PRId64 " x %" PRId64 " x %" PRId64, tally.best / 1e12, type_names[tally.best_type], best->m,
            best->n, best->k);
    return !tally.wrong ||
           error_set(error, ERROR_NUMERICS, "%d GEMMs gave wrong results (marked WRONG): do not train on this device", tally.wrong);
}

const Benchmark bench_gemm = {
    .name = "gemm",
    .summary = "GEMMs of a model's training step, or a sweep over m, n and k",
    .explanation =
        "With CONFIG.yaml: measures every GEMM in one microbatch of its training step, and counts how often each occurs. Without: sweeps "
        "over m, n and k.\n"
        "Operands are random normal numbers that rotate through twice the last-level cache. A sample of every result is checked in double "
        "precision.\n"
        "On a GPU, own is smelt's kernel and chosen is the GEMM that training runs (the vendor's library if it is installed), also in fp8\n"
        "(A in e4m3 and e5m2, C in bf16, scales of one). On a CPU, onednn is oneDNN's fp32 GEMM if libdnnl is installed.\n",
    .config = BENCH_CONFIG_OPTIONAL,
    BENCH_PARTS(GemmOptions, run_gemms),
    .plot = {"GEMM", "m", "tflops", {"type", "provider", "layout"}, "rows of C", "TFLOP/s", .x_logarithmic = true},
};

/* -- The best GEMM ------------------------------------------------------------------------------------------------- */

double bench_best_gemm(Bench *bench, Precision precision) {
    const int64_t *order = bench_sizes(bench->device)->best_gemm;
    GemmType type = precision_is_bf16(precision) ? GEMM_BF16 : GEMM_F32;
    double best = 0;
    if (precision == PRECISION_FP64) return 0;
    for (int64_t size = order[0]; size <= order[1]; size *= 2) {
        BenchShape shape = {.layout = LAYOUT_NT, .gemm = {size, size, size, 1}};
        SCOPED(close_trial) BenchTrial trial = {.shape = &shape, .type = type, .provider = PROVIDER_CHOSEN};
        Sizes sizes = sizes_of(&shape, type);
        BenchTime time;
        Error ignored = {0};
        if (allocate_operands(&trial, bench->device, &sizes, false, &ignored) && bench_time(bench, run_trial, &trial, &time, &ignored))
            best = fmax(best, gemm_shape_flops(&shape.gemm) / time.seconds);
    }
    return best;
}

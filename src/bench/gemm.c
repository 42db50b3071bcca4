/* Matrix products: those of a model's training step, or a sweep of shapes. Random normal operands in buffers that rotate, so that each product finds its
 * operands out of the caches, as in training. On a GPU smelt's own kernels and what training chooses (the vendor's library where it is there) side by side; on a CPU
 * smelt's own beside oneDNN's in fp32, where that library is there.
 * A row of every result is compared with dot products in double. */
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "kernel/gemm_launch.h"
#include "model/model.h"
#include "op/linear.h"
#include "op/op.h"

typedef struct GemmOptions {
    BenchOptions common;
    const char *m, *n, *k;
    int type, layout, cache;
} GemmOptions;

enum { TYPE_ALL, TYPE_BF16, TYPE_FP32 };      /* type= */
enum { CACHE_COLD, CACHE_HOT };               /* cache= */
enum { LAYOUT_NT, LAYOUT_NN, LAYOUT_TN, LAYOUT_ALL }; /* layout= */
static const int64_t MOST = 1 << 22;           /* of a dimension: leading dimensions of GPU kernels are below 2^23 */

#define FIELD(name) offsetof(GemmOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    {"m", OPTION_STRING, FIELD(m), "", 0, 0, NULL, "", "rows of C: numbers, or ranges such as 256..8192; empty: 256..2048, on a GPU 1024..8192"},
    {"n", OPTION_STRING, FIELD(n), "", 0, 0, NULL, "", "columns of C, likewise; empty: n = m"},
    {"k", OPTION_STRING, FIELD(k), "", 0, 0, NULL, "", "depth, likewise; empty: k = m"},
    {"type", OPTION_CHOICE, FIELD(type), "all", 0, 0, "all|bf16|fp32", "", "of A and B; GPUs have bf16"},
    {"layout", OPTION_CHOICE, FIELD(layout), "nt", 0, 0, "nt|nn|tn|all", "", "of a sweep: nt is forward (x w^T), nn the gradient of x, tn that of w, in fp32"},
    {"cache", OPTION_CHOICE, FIELD(cache), "cold", 0, 0, "cold|hot", "", "cold: operands rotate through twice the last cache; hot: the same ones again"},
};
#undef FIELD

/* -- Shapes -------------------------------------------------------------------------------------------------------- */

/* A product without its memory, and how often a microbatch has it. */
typedef struct Shape { char name[48]; int layout; bool wide; int64_t m, n, k, calls; } Shape;
typedef struct Shapes { Shape *items; int count; } Shapes;

static void add_shape(Shapes *shapes, const Shape *shape) {
    for (int i = 0; i < shapes->count; i++) {
        Shape *s = &shapes->items[i];
        if (s->layout != shape->layout || s->wide != shape->wide || s->m != shape->m || s->n != shape->n || s->k != shape->k) continue;
        s->calls += shape->calls;
        return;
    }
    shapes->items = memory_resize(shapes->items, (size_t)(shapes->count + 1) * sizeof *shapes->items);
    shapes->items[shapes->count++] = *shape;
}

/* "self_attn.q_proj" of "d_model.layers.3.self_attn.q_proj.weight". */
static void short_name(const char *name, char text[48]) {
    const char *layers = strstr(name, "layers.");
    if (layers) name = layers + strlen("layers.") + strspn(layers + strlen("layers."), "0123456789.");
    snprintf(text, 48, "%s", name);
    char *weight = strstr(text, ".weight");
    if (weight) *weight = '\0';
}

/* Forward, gradient of the input, gradient of the weight [out, in], for `tokens` rows, `calls` times. */
static void add_layer(Shapes *shapes, int layout, const char *name, bool wide, int64_t tokens, int64_t out, int64_t in, int64_t calls) {
    Shape shape = {.layout = layout, .wide = layout == LAYOUT_TN || (wide && layout == LAYOUT_NT), .calls = calls};
    short_name(name, shape.name);
    shape.m = layout == LAYOUT_TN ? out : tokens;
    shape.n = layout == LAYOUT_NT ? out : in;
    shape.k = layout == LAYOUT_NT ? in : layout == LAYOUT_NN ? out : tokens;
    if (shape.m && shape.n && shape.k) add_shape(shapes, &shape);
}

/* The products of a node. Experts are taken to get equal shares of the tokens; the head is cut into chunks of at most 4,096 rows, as on GPUs. */
static void add_node(Shapes *shapes, const Graph *graph, const Node *node) {
    const int64_t head_rows = 4096;
    const Tensor *in = graph->tensors, *w;
    int64_t tokens = node->in[0] ? graph_rows(graph, node->in[0]) : 0, chunk;
    switch (node->op) {
    case OP_linear:
    case OP_linear_grad_input:
        w = &in[node->in[1]];
        add_layer(shapes, node->op == OP_linear ? LAYOUT_NT : LAYOUT_NN, w->name, ((const LinearAttributes *)node->attributes)->wide, tokens, w->shape[0],
                  graph_columns(graph, node->in[1]), 1);
        break;
    case OP_linear_grad_weight:
        w = &in[node->out[0]];
        add_layer(shapes, LAYOUT_TN, w->name, true, tokens, w->shape[0], graph_columns(graph, node->out[0]), 1);
        break;
    case OP_grouped_linear:
    case OP_grouped_linear_grad_input:
        w = &in[node->in[1]];
        add_layer(shapes, node->op == OP_grouped_linear ? LAYOUT_NT : LAYOUT_NN, w->name, false, tokens / w->shape[0], w->shape[1], w->shape[2], w->shape[0]);
        break;
    case OP_grouped_linear_grad_weight:
        w = &in[node->out[0]];
        add_layer(shapes, LAYOUT_TN, w->name, true, tokens / w->shape[0], w->shape[1], w->shape[2], w->shape[0]);
        break;
    case OP_linear_cross_entropy:
        w = &in[node->in[1]];
        chunk = tokens < head_rows ? tokens : head_rows;
        for (int layout = LAYOUT_NT; layout <= LAYOUT_TN; layout++)
            add_layer(shapes, layout, "head", false, chunk, w->shape[0], graph_columns(graph, node->in[1]), (tokens + chunk - 1) / chunk);
        break;
    default: break;
    }
}

static void shapes_of_model(Shapes *shapes, const Config *config) {
    Model model = model_build(&config->model, config->precision, MODEL_TRAIN, config->batch.sequences, config->data.length, RECOMPUTE_NONE);
    for (int i = 0; i < model.graph->node_count; i++) add_node(shapes, model.graph, &model.graph->nodes[i]);
    model_free(&model);
}

/* Every m with every n and k, or with itself where these are not given, in every layout. */
static bool shapes_of_sweep(Shapes *shapes, const GemmOptions *options, bool gpu, Error *error) {
    int m_count = 0, n_count = 1, k_count = 1;
    const char *m_text = *options->m ? options->m : gpu ? "1024..8192" : "256..2048";
    int64_t *m = bench_list("m", m_text, MOST, &m_count, error), *n = NULL, *k = NULL;
    bool good = m && (!*options->n || (n = bench_list("n", options->n, MOST, &n_count, error))) &&
                (!*options->k || (k = bench_list("k", options->k, MOST, &k_count, error)));
    for (int i = 0; good && i < m_count * n_count * k_count; i++)
        for (int layout = LAYOUT_NT; layout <= LAYOUT_TN; layout++) {
            if (options->layout != LAYOUT_ALL && options->layout != layout) continue;
            int64_t rows_of_c = m[i / (n_count * k_count)];
            Shape shape = {.name = "sweep", .layout = layout, .wide = layout == LAYOUT_TN, .m = rows_of_c, .n = n ? n[i / k_count % n_count] : rows_of_c,
                           .k = k ? k[i % k_count] : rows_of_c, .calls = 1};
            add_shape(shapes, &shape);
        }
    free(m);
    free(n);
    free(k);
    return good;
}

/* -- A product in memory ------------------------------------------------------------------------------------------- */

/* Bytes of the operands; A and B lie together. */
typedef struct Sizes { int64_t a, inputs, output; } Sizes;

static int64_t unit_of(GemmType type) { return type == GEMM_BF16 ? 2 : type == GEMM_F32 ? 4 : 8; }

static GemmType output_of(const Shape *shape, GemmType type) { return shape->wide ? GEMM_F32 : type; }

static Sizes sizes_of(const Shape *shape, GemmType type) {
    int64_t a = bench_round(shape->m * shape->k * unit_of(type)), b = bench_round(shape->k * shape->n * unit_of(type));
    return (Sizes){.a = a, .inputs = a + b, .output = bench_round(shape->m * shape->n * unit_of(output_of(shape, type)))};
}

/* As training calls it: weights' gradients are added to. */
static Gemm product_of(const Shape *shape, GemmType type, const char *inputs, char *output) {
    Gemm g = {.transpose_a = shape->layout == LAYOUT_TN, .transpose_b = shape->layout == LAYOUT_NT, .accumulate = shape->layout == LAYOUT_TN, .input = type,
              .output = output_of(shape, type), .m = shape->m, .n = shape->n, .k = shape->k, .a = inputs, .b = inputs + sizes_of(shape, type).a, .c = output};
    g.lda = g.transpose_a ? g.m : g.k;
    g.ldb = g.transpose_b ? g.k : g.n;
    g.ldc = g.n;
    return g;
}

typedef enum Provider { PROVIDER_OWN, PROVIDER_CHOSEN, PROVIDER_ONEDNN, PROVIDER_COUNT } Provider;
static const char *const provider_names[] = {"own", "chosen", "onednn"};

/* dnnl_sgemm of oneDNN 2 and 3: row-major C = alpha op(A) op(B) + beta C; 0 when it is done. */
typedef int (*Sgemm)(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b, int64_t ldb,
                     float beta, float *c, int64_t ldc);

static Sgemm find_sgemm(void **library) {
    static const char *const libraries[] = {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"};
    *library = NULL;
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries && !*library; i++) *library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    return *library ? (Sgemm)dlsym(*library, "dnnl_sgemm") : NULL;
}

/* A and B rotate in one arena and C in another, which nothing reads as A or B: sums of one shape are no random numbers for the next. */
typedef struct Work { const Shape *shape; GemmType type; Provider provider; Sgemm sgemm; BenchArena inputs, outputs; } Work;

static void run_product(const Work *work, const Gemm *product) {
    Device *device = work->inputs.device;
    const Gemm *g = product;
    if (work->provider == PROVIDER_ONEDNN)
        work->sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k, 1, g->a, g->lda, g->b, g->ldb, g->accumulate ? 1 : 0, g->c, g->ldc);
    else if (device_is_gpu(device) && work->provider == PROVIDER_OWN) gpu_gemm(device, product);
    else device_gemm(device, product);
}

static void run_work(void *context, int64_t call) {
    const Work *work = context;
    Sizes sizes = sizes_of(work->shape, work->type);
    Gemm product = product_of(work->shape, work->type, bench_arena_set(&work->inputs, sizes.inputs, call), bench_arena_set(&work->outputs, sizes.output, call));
    run_product(work, &product);
}

/* -- Checking ------------------------------------------------------------------------------------------------------ */

static double element(const void *data, GemmType type, int64_t index) {
    if (type == GEMM_BF16) return bf16_widen(((const uint16_t *)data)[index]);
    return ((const float *)data)[index];
}

/* A sum of k products of size `rms` rounded to fp32 after each is off by about k 2^-25 rms, whatever the order; GPUs truncate within a step. So 32 times k 2^-24 rms
 * leaves room and is far from one product that is missing. C in bf16 is half a unit in its last place off besides. */
static double bound_of(double exact, double squares, int64_t k, GemmType output) {
    double rms = sqrt(squares / (double)k), rounding = output == GEMM_BF16 ? 0x1p-8 : 0x1p-23;
    return 32 * (double)k * 0x1p-24 * rms + rounding * fabs(exact);
}

/* Whether row `row` of C, at up to 512 columns, is what A and B in host memory make. */
static bool row_is_right(const Gemm *g, int64_t row) {
    const int64_t most_columns = 512;
    int64_t step = (g->n + most_columns - 1) / most_columns;
    int wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
    for (int64_t column = 0; column < g->n; column += step) {
        double sum = 0, squares = 0;
        for (int64_t p = 0; p < g->k; p++) {
            double a = element(g->a, g->input, g->transpose_a ? p * g->lda + row : row * g->lda + p);
            double b = element(g->b, g->input, g->transpose_b ? column * g->ldb + p : p * g->ldb + column);
            sum += a * b;
            squares += a * b * a * b;
        }
        double c = element(g->c, g->output, row * g->ldc + column);
        wrong += !(fabs(c - sum) <= bound_of(sum, squares, g->k, g->output));
    }
    return wrong == 0;
}

/* Makes the product once, with C zero before, and checks its first, middle and last row. */
static bool product_is_right(const Work *work, bool *right, Error *error) {
    Device *device = work->inputs.device;
    Sizes sizes = sizes_of(work->shape, work->type);
    Gemm product = product_of(work->shape, work->type, work->inputs.memory, work->outputs.memory);
    device_fill(device, product.c, 0, sizes.output);
    run_product(work, &product);
    char *inputs = device_view(device, work->inputs.memory, sizes.inputs, VIEW_READ, error);
    char *output = inputs ? device_view(device, product.c, sizes.output, VIEW_READ, error) : NULL;
    if (output) {
        Gemm on_host = product_of(work->shape, work->type, inputs, output);
        *right = row_is_right(&on_host, 0) && row_is_right(&on_host, product.m / 2) && row_is_right(&on_host, product.m - 1);
    }
    if (output) device_view_close(device, output, product.c, sizes.output, VIEW_READ);
    if (inputs) device_view_close(device, inputs, work->inputs.memory, sizes.inputs, VIEW_READ);
    return output && device_ok(device, error);
}

/* -- The benchmark ------------------------------------------------------------------------------------------------- */

static const BenchColumn columns[] = {
    {"product", BENCH_TEXT, 30}, {"layout", BENCH_TEXT, 6}, {"type", BENCH_TEXT, 5}, {"output", BENCH_TEXT, 6}, {"provider", BENCH_TEXT, 8},
    {"m", 0, 8},                 {"n", 0, 8},               {"k", 0, 8},             {"calls", 0, 6},           {"us", 1, 11},
    {"tflops", 3, 9},            {"best_tflops", 3, 11},    {"gbps", 1, 8},          {"check", BENCH_TEXT, 5},
};

typedef struct Tally { int wrong; double best; char best_shape[96]; } Tally;

static bool measure(Bench *bench, const Work *work, Tally *tally, Error *error) {
    static const char *const layouts[] = {"nt", "nn", "tn"};
    const Shape *s = work->shape;
    bool right;
    BenchTime time;
    if (!product_is_right(work, &right, error) || !bench_time(bench, run_work, (void *)work, &time, error)) return false;
    Sizes sizes = sizes_of(s, work->type);
    double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k, bytes = (double)(sizes.inputs + sizes.output);
    const char *output = output_of(s, work->type) == GEMM_BF16 ? "bf16" : "fp32";
    bench_row(bench, (BenchCell[]){{.text = s->name}, {.text = layouts[s->layout]}, {.text = work->type == GEMM_BF16 ? "bf16" : "fp32"}, {.text = output},
                                   {.text = provider_names[work->provider]}, {.number = (double)s->m}, {.number = (double)s->n}, {.number = (double)s->k},
                                   {.number = (double)s->calls}, {.number = 1e6 * time.seconds}, {.number = flops / time.seconds / 1e12},
                                   {.number = flops / time.best / 1e12}, {.number = bytes / time.seconds / 1e9}, {.text = right ? "ok" : "WRONG"}});
    tally->wrong += !right;
    if (flops / time.seconds <= tally->best) return true;
    tally->best = flops / time.seconds;
    snprintf(tally->best_shape, sizeof tally->best_shape, "%" PRId64 " x %" PRId64 " x %" PRId64, s->m, s->n, s->k);
    return true;
}

static bool has_provider(const Work *work) {
    bool gpu = device_is_gpu(work->inputs.device);
    if (work->provider == PROVIDER_ONEDNN) return !gpu && work->sgemm && work->type == GEMM_F32;
    return work->provider == PROVIDER_OWN || gpu;
}

static bool measure_type(Bench *bench, const Shapes *shapes, GemmType type, Tally *tally, Error *error) {
    const GemmOptions *options = (const GemmOptions *)bench->options;
    Sizes most = {0};
    for (int i = 0; i < shapes->count; i++) {
        Sizes sizes = sizes_of(&shapes->items[i], type);
        most.inputs = sizes.inputs > most.inputs ? sizes.inputs : most.inputs;
        most.output = sizes.output > most.output ? sizes.output : most.output;
    }
    void *library;
    Work work = {.type = type, .sgemm = find_sgemm(&library)};
    bool cold = options->cache == CACHE_COLD, good = bench_arena_open(&work.inputs, bench->device, most.inputs, cold, type, error) &&
                                                    bench_arena_open(&work.outputs, bench->device, most.output, cold, type, error);
    for (int i = 0; good && i < shapes->count; i++)
        for (work.provider = PROVIDER_OWN; good && work.provider < PROVIDER_COUNT; work.provider++) {
            Work one = work;
            if (!has_provider(&work)) continue;
            one.shape = &shapes->items[i];
            if (!cold) {
                one.inputs.bytes = sizes_of(one.shape, type).inputs;
                one.outputs.bytes = sizes_of(one.shape, type).output;
            }
            good = measure(bench, &one, tally, error);
        }
    bench_arena_close(&work.inputs);
    bench_arena_close(&work.outputs);
    if (library) dlclose(library);
    return good;
}

static bool run(Bench *bench, Error *error) {
    const GemmOptions *options = (const GemmOptions *)bench->options;
    Shapes shapes = {0};
    Tally tally = {0};
    if (!bench_open_device(bench, options->type == TYPE_FP32 ? PRECISION_FP32 : PRECISION_BF16, error)) return false;
    bool gpu = device_is_gpu(bench->device);
    if (gpu && options->type == TYPE_FP32) return error_set(error, ERROR_USAGE, "type=fp32: GPUs have products of bf16 only; give device=cpu");
    if (bench->configured) shapes_of_model(&shapes, &bench->config);
    else if (!shapes_of_sweep(&shapes, options, gpu, error)) return false;
    bench_columns(bench, columns, sizeof columns / sizeof *columns);
    bench->results.plot = (BenchPlot){.title = "Matrix products", .x = bench->configured ? "us" : "m", .y = "tflops", .series = {"type", "provider", "layout"},
                                      .x_label = bench->configured ? "microseconds" : "rows of C", .y_label = "TFLOP/s", .x_logarithmic = true};
    bool good = (options->type == TYPE_FP32 || measure_type(bench, &shapes, GEMM_BF16, &tally, error)) &&
                (options->type == TYPE_BF16 || gpu || measure_type(bench, &shapes, GEMM_F32, &tally, error));
    free(shapes.items);
    if (good && tally.best > 0) log_info("best: %.3f TFLOP/s, %s", tally.best / 1e12, tally.best_shape);
    if (!good || !tally.wrong) return good;
    return error_set(error, ERROR_NUMERICS, "%d products gave wrong results (WRONG above): do not train with them", tally.wrong);
}

const Benchmark bench_gemm = {
    .name = "gemm",
    .summary = "matrix products: of a model's step, or a sweep of m, n, k",
    .explanation = "With CONFIG.yaml: every product of one microbatch of its training step, and how often it occurs. Without: a sweep over m, n and k.\n"
                   "Operands are random normal numbers that rotate through twice the last cache. A sample of every result is checked in double precision.\n"
                   "On a GPU smelt's own kernels (own) stand beside what training runs (chosen: the vendor's library where it is there); on a CPU\n"
                   "oneDNN's product in fp32, where libdnnl is installed.\n",
    .config = BENCH_CONFIG_OPTIONAL,
    .table = {rows, sizeof rows / sizeof *rows},
    .options_size = sizeof(GemmOptions),
    .run = run,
};

/* -- The yardstick ------------------------------------------------------------------------------------------------- */

double bench_best_product(Bench *bench, Precision precision) {
    bool gpu = device_is_gpu(bench->device);
    GemmType type = precision == PRECISION_BF16 ? GEMM_BF16 : GEMM_F32;
    double best = 0;
    if (precision == PRECISION_FP64) return 0;
    for (int64_t size = gpu ? 4096 : 512; size <= (gpu ? 8192 : 1024); size *= 2) {
        Shape shape = {.layout = LAYOUT_NT, .m = size, .n = size, .k = size};
        Work work = {.shape = &shape, .type = type, .provider = PROVIDER_CHOSEN};
        Sizes sizes = sizes_of(&shape, type);
        BenchTime time;
        Error ignored = {0};
        bool timed = bench_arena_open(&work.inputs, bench->device, sizes.inputs, false, type, &ignored) &&
                     bench_arena_open(&work.outputs, bench->device, sizes.output, false, type, &ignored) && bench_time(bench, run_work, &work, &time, &ignored);
        if (timed) best = fmax(best, 2.0 * (double)size * (double)size * (double)size / time.seconds);
        bench_arena_close(&work.inputs);
        bench_arena_close(&work.outputs);
    }
    return best;
}

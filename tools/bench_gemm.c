/* Our GEMM beside oneDNN's matmul on the shapes of small-model training: forward X W^T, input gradient dY W, weight gradient dY^T X
 * accumulated in fp32. Prints CSV of GFLOP/s, the best of several runs, on one thread and on all. oneDNN gets a primitive made
 * beforehand; ours has nothing to prepare. Build:
 *   gcc -std=gnu17 -O2 -fopenmp -D_GNU_SOURCE -Isrc tools/bench_gemm.c src/device/gemm*.c -ldnnl -lpthread -o build/bench_gemm
 * An argument forces an instruction set (avx512bf16, avx512, avx2, generic). */
#include "../src/device/gemm_internal.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef enum Form { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT } Form;

static const char *const form_names[] = {"forward", "input_gradient", "weight_gradient"};
static const int64_t shapes[][3] = { /* tokens, outputs, inputs */
    {1024, 64, 64}, {1024, 256, 256}, {4096, 128, 128}, {4096, 256, 256}, {4096, 1024, 256}, {4096, 256, 1024}, {4096, 512, 512},
    {4096, 768, 768}, {4096, 2048, 512}, {4096, 512, 2048}, {4096, 1536, 768}, {8192, 32, 192}, {8192, 192, 192}, {8192, 512, 192},
    {8192, 1024, 1024},
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void require(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return;
    fprintf(stderr, "bench_gemm: oneDNN: %s failed with status %d\n", what, status);
    exit(1);
}
#define REQUIRE(call) require(call, #call)

typedef struct Reference {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c;
} Reference;

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static dnnl_memory_desc_t describe(int64_t rows, int64_t columns, bool transposed, int64_t ld, GemmType type) {
    dnnl_memory_desc_t description;
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    REQUIRE(dnnl_memory_desc_init_by_strides(&description, 2, dims, type == GEMM_BF16 ? dnnl_bf16 : dnnl_f32, strides));
    return description;
}

static Reference new_reference(const Gemm *g) {
    Reference r;
    dnnl_memory_desc_t a = describe(g->m, g->k, g->transpose_a, g->lda, g->input), b = describe(g->k, g->n, g->transpose_b, g->ldb, g->input);
    dnnl_memory_desc_t c = describe(g->m, g->n, false, g->ldc, g->output);
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attributes;
    dnnl_post_ops_t operations;
    dnnl_primitive_desc_t primitive;
    REQUIRE(dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c));
    REQUIRE(dnnl_primitive_attr_create(&attributes));
    REQUIRE(dnnl_post_ops_create(&operations));
    if (g->accumulate) REQUIRE(dnnl_post_ops_append_sum(operations, 1));
    REQUIRE(dnnl_primitive_attr_set_post_ops(attributes, operations));
    REQUIRE(dnnl_primitive_desc_create(&primitive, &matmul, attributes, engine, NULL));
    REQUIRE(dnnl_primitive_create(&r.primitive, primitive));
    REQUIRE(dnnl_memory_create(&r.a, &a, engine, (void *)g->a));
    REQUIRE(dnnl_memory_create(&r.b, &b, engine, (void *)g->b));
    REQUIRE(dnnl_memory_create(&r.c, &c, engine, g->c));
    dnnl_post_ops_destroy(operations);
    dnnl_primitive_attr_destroy(attributes);
    dnnl_primitive_desc_destroy(primitive);
    return r;
}

static void run_reference(const Reference *r) {
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, r->a}, {DNNL_ARG_WEIGHTS, r->b}, {DNNL_ARG_DST, r->c}};
    REQUIRE(dnnl_primitive_execute(r->primitive, stream, 3, arguments));
    REQUIRE(dnnl_stream_wait(stream));
}

static void free_reference(Reference *r) {
    dnnl_primitive_destroy(r->primitive);
    dnnl_memory_destroy(r->a);
    dnnl_memory_destroy(r->b);
    dnnl_memory_destroy(r->c);
}

/* Prints GFLOP/s of ours and of oneDNN's; their runs alternate, so that both meet the same neighbours. */
static void compare(const Gemm *g, int threads) {
    omp_set_num_threads(threads);
    Reference r = new_reference(g);
    double ours = 1e9, theirs = 1e9, start = now();
    for (int i = 0; i < 5 || (now() - start < 0.4 && i < 100); i++) {
        double before = now();
        gemm(g);
        double middle = now();
        run_reference(&r);
        double after = now();
        if (middle - before < ours) ours = middle - before;
        if (after - middle < theirs) theirs = after - middle;
    }
    free_reference(&r);
    double gflop = 2e-9 * (double)g->m * (double)g->n * (double)g->k;
    printf(",%.1f,%.1f", gflop / ours, gflop / theirs);
    fflush(stdout);
}

static Gemm product(Form form, GemmType type, const int64_t *shape, void *a, void *b, void *c) {
    int64_t tokens = shape[0], outputs = shape[1], inputs = shape[2];
    Gemm g = {.transpose_a = form == WEIGHT_GRADIENT, .transpose_b = form == FORWARD, .accumulate = form == WEIGHT_GRADIENT, .input = type};
    g.output = form == WEIGHT_GRADIENT ? GEMM_F32 : type;
    g.m = form == WEIGHT_GRADIENT ? outputs : tokens;
    g.n = form == FORWARD ? outputs : inputs;
    g.k = form == FORWARD ? inputs : form == INPUT_GRADIENT ? outputs : tokens;
    g.a = a, g.b = b, g.c = c;
    g.lda = g.transpose_a ? g.m : g.k, g.ldb = g.transpose_b ? g.k : g.n, g.ldc = g.n;
    return g;
}

int main(int argc, char **argv) {
    enum { BYTES = 64 << 20 };
    int most = omp_get_max_threads();
    uint16_t *a = aligned_alloc(64, BYTES), *b = aligned_alloc(64, BYTES), *c = aligned_alloc(64, BYTES);
    if (!a || !b || !c || (argc > 1 && !gemm_force(argv[1]))) {
        fprintf(stderr, "bench_gemm: no memory, or this CPU does not run %s\n", argc > 1 ? argv[1] : "it");
        return 1;
    }
    for (int64_t i = 0; i < BYTES / 2; i++) a[i] = (uint16_t)(0x3f80 | i * 7919 % 128), b[i] = (uint16_t)(0xbf80 | i * 104729 % 128), c[i] = 0;
    REQUIRE(dnnl_engine_create(&engine, dnnl_cpu, 0));
    REQUIRE(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    printf("form,type,tokens,outputs,inputs,ours_1,onednn_1,ours_%d,onednn_%d\n", most, most);
    for (Form form = FORWARD; form <= WEIGHT_GRADIENT; form++)
        for (GemmType type = GEMM_F32; type <= GEMM_BF16; type++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                Gemm g = product(form, type, shapes[i], a, b, c);
                printf("%s,%s,%ld,%ld,%ld", form_names[form], type == GEMM_F32 ? "f32" : "bf16", (long)shapes[i][0], (long)shapes[i][1], (long)shapes[i][2]);
                compare(&g, 1);
                compare(&g, most);
                puts("");
            }
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    free(a), free(b), free(c);
}

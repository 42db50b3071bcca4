/* What `smelt bench gemm` and `bench memory` are compared with on a CPU (bench/machine.py): oneDNN's products and STREAM's triad as plain C with OpenMP, called as
 * often, in as many repeats and on the same kind of pages as smelt calls its own. Prints the rates of the median and of the best repeat, in TFLOP/s or GB/s.
 *   gcc -O3 -march=native -fopenmp bench/machine.c -ldnnl -o machine
 *   machine sgemm|matmul bf16|fp32 M N K REPEATS SECONDS      machine triad BYTES REPEATS SECONDS
 * sgemm is the function that smelt times as "onednn"; matmul the primitive that benchdnn times, which has bf16. */
#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static void require(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "machine: %s failed\n", what);
    exit(1);
}
#define DNNL(call) require((call) == dnnl_success, #call)

static void *allocate(int64_t bytes, int advice) {
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, "mmap");
    madvise(memory, (size_t)bytes, advice); /* a wish, as smelt's */
    return memory;
}

/* -- Timing -------------------------------------------------------------------------------------------------------- */

typedef void (*Work)(const void *context);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double time_calls(Work work, const void *context, int64_t count) {
    double start = now();
    for (int64_t i = 0; i < count; i++) work(context);
    return (now() - start) / (double)count;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* As bench_time of src/bench/timing.c. `amount`: of work in a call, in the rate's unit. */
static void measure(Work work, const void *context, double amount, char **arguments) {
    int repeats = atoi(arguments[0]);
    require(repeats > 0, "reading the repeats");
    double *samples = malloc((size_t)repeats * sizeof *samples);
    time_calls(work, context, 1);
    double wanted = atof(arguments[1]) / repeats / time_calls(work, context, 1);
    int64_t calls = wanted > 1 ? (int64_t)wanted : 1;
    time_calls(work, context, (repeats + 1) / 2 * calls);
    for (int i = 0; i < repeats; i++) samples[i] = time_calls(work, context, calls);
    qsort(samples, (size_t)repeats, sizeof *samples, ascending);
    double median = (samples[(repeats - 1) / 2] + samples[repeats / 2]) / 2;
    printf("%.6f %.6f\n", amount / median, amount / samples[0]);
}

/* -- oneDNN -------------------------------------------------------------------------------------------------------- */

/* C [m, n] = A [m, k] B^T, B stored [n, k]. */
typedef struct Product {
    int64_t m, n, k;
    void *a, *b, *c;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t arguments[3];
} Product;

static void run_sgemm(const void *context) {
    const Product *p = context;
    DNNL(dnnl_sgemm('N', 'T', p->m, p->n, p->k, 1, p->a, p->k, p->b, p->k, 0, p->c, p->n));
}

static void run_matmul(const void *context) {
    const Product *p = context;
    DNNL(dnnl_primitive_execute(p->primitive, p->stream, 3, p->arguments));
    DNNL(dnnl_stream_wait(p->stream));
}

static void make_matmul(Product *p, dnnl_data_type_t type) {
    dnnl_engine_t engine;
    dnnl_memory_desc_t a_form, b_form, c_form;
    dnnl_matmul_desc_t product;
    dnnl_primitive_desc_t description;
    dnnl_memory_t a, b, c;
    DNNL(dnnl_engine_create(&engine, dnnl_cpu, 0));
    DNNL(dnnl_stream_create(&p->stream, engine, dnnl_stream_default_flags));
    DNNL(dnnl_memory_desc_init_by_strides(&a_form, 2, (dnnl_dims_t){p->m, p->k}, type, (dnnl_dims_t){p->k, 1}));
    DNNL(dnnl_memory_desc_init_by_strides(&b_form, 2, (dnnl_dims_t){p->k, p->n}, type, (dnnl_dims_t){1, p->k}));
    DNNL(dnnl_memory_desc_init_by_strides(&c_form, 2, (dnnl_dims_t){p->m, p->n}, type, (dnnl_dims_t){p->n, 1}));
    DNNL(dnnl_matmul_desc_init(&product, &a_form, &b_form, NULL, &c_form));
    DNNL(dnnl_primitive_desc_create(&description, &product, NULL, engine, NULL));
    DNNL(dnnl_primitive_create(&p->primitive, description));
    DNNL(dnnl_memory_create(&a, &a_form, engine, p->a));
    DNNL(dnnl_memory_create(&b, &b_form, engine, p->b));
    DNNL(dnnl_memory_create(&c, &c_form, engine, p->c));
    p->arguments[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, a};
    p->arguments[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, b};
    p->arguments[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, c};
}

/* Memory with numbers uniform in [-1, 1], cut to bf16. */
static void *random_matrix(int64_t count, int bf16) {
    uint64_t state = 1;
    void *memory = allocate(count * (bf16 ? 2 : 4), MADV_HUGEPAGE);
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        union {
            float value;
            uint32_t bits;
        } u = {.value = (float)(int32_t)(state >> 32) * 0x1p-31f};
        if (bf16) ((uint16_t *)memory)[i] = (uint16_t)(u.bits >> 16);
        else ((float *)memory)[i] = u.value;
    }
    return memory;
}

static void measure_product(char **arguments) {
    int bf16 = !strcmp(arguments[1], "bf16"), matmul = !strcmp(arguments[0], "matmul");
    require(matmul || !bf16, "sgemm in bf16");
    Product p = {.m = atoll(arguments[2]), .n = atoll(arguments[3]), .k = atoll(arguments[4])};
    p.a = random_matrix(p.m * p.k, bf16);
    p.b = random_matrix(p.n * p.k, bf16);
    p.c = random_matrix(p.m * p.n, bf16);
    if (matmul) make_matmul(&p, bf16 ? dnnl_bf16 : dnnl_f32);
    measure(matmul ? run_matmul : run_sgemm, &p, 2e-12 * (double)p.m * (double)p.n * (double)p.k, arguments + 5);
}

/* -- STREAM -------------------------------------------------------------------------------------------------------- */

typedef struct Triad {
    double *a, *b, *c;
    int64_t count;
} Triad;

static void run_triad(const void *context) {
    const Triad *t = context;
    double *restrict a = t->a;
    const double *restrict b = t->b, *restrict c = t->c;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t->count; i++) a[i] = b[i] + 3 * c[i];
}

static void measure_triad(char **arguments) {
    Triad t = {.count = atoll(arguments[1]) / 24};
    t.a = allocate(t.count * 8, MADV_NOHUGEPAGE);
    t.b = allocate(t.count * 8, MADV_NOHUGEPAGE);
    t.c = allocate(t.count * 8, MADV_NOHUGEPAGE);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < t.count; i++) t.a[i] = 1, t.b[i] = 2, t.c[i] = 0.5;
    measure(run_triad, &t, 24e-9 * (double)t.count, arguments + 2);
    require(t.a[t.count / 2] == 3.5, "the triad");
}

int main(int argc, char **argv) {
    if (argc == 8 && (!strcmp(argv[1], "sgemm") || !strcmp(argv[1], "matmul"))) measure_product(argv + 1);
    else if (argc == 5 && !strcmp(argv[1], "triad")) measure_triad(argv + 1);
    else require(0, "reading the arguments");
    return 0;
}

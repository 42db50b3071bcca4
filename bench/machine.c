/* What `smelt bench gemm` and `bench memory` are compared with on a CPU (bench/machine.py): oneDNN's matmul, timed as its own benchdnn does, on the same memory over
 * and over, and STREAM's triad as plain C with OpenMP. Prints one number, of the best repeat as both of them do: TFLOP/s or GB/s.
 *   gcc -O3 -march=native -fopenmp bench/machine.c -ldnnl -o machine
 *   machine gemm bf16|fp32 M N K SECONDS      machine triad BYTES SECONDS */
#include <oneapi/dnnl/dnnl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void require(int good, const char *what) {
    if (good) return;
    fprintf(stderr, "machine: %s failed\n", what);
    exit(1);
}
#define DNNL(call) require((call) == dnnl_success, #call)

static void *allocate(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    require(memory != NULL, "aligned_alloc");
    return memory;
}

/* -- oneDNN -------------------------------------------------------------------------------------------------------- */

/* Uniform in [-1, 1], rounded to bf16. */
static void fill(void *memory, int64_t count, int bf16) {
    uint64_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        union { float value; uint32_t bits; } u = {.value = (float)(int32_t)(state >> 32) * 0x1p-31f};
        if (bf16) ((uint16_t *)memory)[i] = (uint16_t)(u.bits >> 16);
        else ((float *)memory)[i] = u.value;
    }
}

/* C [m, n] = A [m, k] B^T, B stored [n, k]. */
static double gemm(int bf16, int64_t m, int64_t n, int64_t k, double seconds) {
    dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    int64_t unit = bf16 ? 2 : 4;
    void *a = allocate((size_t)(m * k * unit)), *b = allocate((size_t)(n * k * unit)), *c = allocate((size_t)(m * n * unit));
    fill(a, m * k, bf16);
    fill(b, n * k, bf16);
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_memory_desc_t a_form, b_form, c_form;
    dnnl_matmul_desc_t product;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    dnnl_memory_t a_memory, b_memory, c_memory;
    DNNL(dnnl_engine_create(&engine, dnnl_cpu, 0));
    DNNL(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    DNNL(dnnl_memory_desc_init_by_strides(&a_form, 2, (dnnl_dims_t){m, k}, type, (dnnl_dims_t){k, 1}));
    DNNL(dnnl_memory_desc_init_by_strides(&b_form, 2, (dnnl_dims_t){k, n}, type, (dnnl_dims_t){1, k}));
    DNNL(dnnl_memory_desc_init_by_strides(&c_form, 2, (dnnl_dims_t){m, n}, type, (dnnl_dims_t){n, 1}));
    DNNL(dnnl_matmul_desc_init(&product, &a_form, &b_form, NULL, &c_form));
    DNNL(dnnl_primitive_desc_create(&description, &product, NULL, engine, NULL));
    DNNL(dnnl_primitive_create(&primitive, description));
    DNNL(dnnl_memory_create(&a_memory, &a_form, engine, a));
    DNNL(dnnl_memory_create(&b_memory, &b_form, engine, b));
    DNNL(dnnl_memory_create(&c_memory, &c_form, engine, c));
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}};
    double best = 1e30, start = now();
    for (int i = 0; i < 5 || now() - start < seconds; i++) {
        double before = now();
        DNNL(dnnl_primitive_execute(primitive, stream, 3, arguments));
        DNNL(dnnl_stream_wait(stream));
        double spent = now() - before;
        if (i > 0 && spent < best) best = spent;
    }
    return 2.0 * (double)m * (double)n * (double)k / best / 1e12;
}

/* -- STREAM -------------------------------------------------------------------------------------------------------- */

static double triad(int64_t bytes, double seconds) {
    int64_t count = bytes / 24;
    double *a = allocate((size_t)count * 8), *b = allocate((size_t)count * 8), *c = allocate((size_t)count * 8), best = 1e30;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) a[i] = 1, b[i] = 2, c[i] = 0.5;
    double start = now();
    for (int i = 0; i < 10 || now() - start < seconds; i++) {
        double before = now();
#pragma omp parallel for schedule(static)
        for (int64_t j = 0; j < count; j++) a[j] = b[j] + 3 * c[j];
        double spent = now() - before;
        if (i > 0 && spent < best) best = spent;
    }
    require(a[count / 2] == 3.5, "the triad");
    return 24.0 * (double)count / best / 1e9;
}

int main(int argc, char **argv) {
    if (argc == 7 && !strcmp(argv[1], "gemm")) printf("%.6f\n", gemm(!strcmp(argv[2], "bf16"), atoll(argv[3]), atoll(argv[4]), atoll(argv[5]), atof(argv[6])));
    else if (argc == 4 && !strcmp(argv[1], "triad")) printf("%.6f\n", triad(atoll(argv[2]), atof(argv[3])));
    else require(0, "reading the arguments");
    return 0;
}

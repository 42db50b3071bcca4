/* smelt's GEMM of fp8 on the GPU of SMELT_TEST_DEVICE (hip or cuda; skipped without it) against the CPU's: all scalings,
 * both types of A and of C, bias, accumulation, sizes that fill tiles and sizes that do not, experts; and always the same
 * bits.
 *
 * Small integers and scales that are powers of two have exact sums, also in the 14 bits or so that Hopper keeps: both
 * devices must give the same bits. Random numbers' sums may be off by 2^-10 of the sum of their magnitudes, as of 14 bits
 * that are truncated at every step; a wrong sign or a lost product of few is off by more.
 *
 * With SMELT_TEST_SPEED set, how fast they are, beside what training chooses.
 *
 * What must not be read or written is NaN: the gaps between rows, slots without an expert, C before it is written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/gpu/gpu_gemm.h"
#include "base/element.h"
#include "base/float8.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "support/check.h"

enum { GAP = 16 }; /* elements between rows */

static uint64_t random_index;
static double random_uniform(void) { return rng_uniform(8, 1, random_index++); }
static int random_integer(int most) { return (int)(random_uniform() * (2 * most + 1)) - most; }

/* The GPU; skips where it has no GEMM of fp8, which it then declines. */
static Device *fp8_gpu(void) {
    Device *gpu = check_gpu();
    if (!(device_info(gpu)->gemm_inputs >> GEMM_E4M3 & 1)) {
        assert_false(gpu_gemm_fp8(gpu,
            &(Gemm){
                .transpose_b = true, .input = GEMM_E4M3, .output = GEMM_F32, .m = 16, .n = 16, .k = 16, .lda = 16, .ldb = 16, .ldc = 16}));
        skip();
    }
    device_cpu()->info.fp8_fnuz = device_info(gpu)->fp8_fnuz;
    return gpu;
}

/* -- Memory on both sides ------------------------------------------------------------------------------------------ */

typedef struct Twin {
    void *host, *device;
    int64_t bytes;
} Twin;

static Twin twin_of(void *host, int64_t bytes) {
    Error error = {0};
    Twin twin = {host, device_allocate(check_device(), bytes, &error), bytes};
    if (!twin.device) fail_msg("%s", error.message);
    device_upload(check_device(), twin.device, host, bytes);
    return twin;
}

static void twin_free(Twin *twin) {
    device_free(check_device(), twin->device, twin->bytes);
    free(twin->host);
}

/* Rows of quantized values: integers, or normal numbers; the gaps are NaN. */
static Twin new_codes(GemmType type, int64_t rows, int64_t columns, bool exact) {
    Fp8Format format = gemm_fp8_format(type, device_info(check_device())->fp8_fnuz);
    uint8_t *quantized = memory_allocate((size_t)(rows * (columns + GAP)));
    for (int64_t i = 0; i < rows * (columns + GAP); i++) {
        double x = exact ? random_integer(3) : rng_normal(8, 2, random_index++);
        quantized[i] = i % (columns + GAP) < columns ? fp8_from_float((float)x, format) : format.nan;
    }
    return twin_of(quantized, rows * (columns + GAP));
}

/* Powers of two, or for a tensor of random numbers any. */
static Twin new_scales(GemmScaling scaling, int64_t count, bool exact) {
    float *scales = memory_allocate((size_t)(count + 1) * sizeof *scales);
    for (int64_t i = 0; i < count; i++)
        scales[i] = scaling == GEMM_SCALE_TENSOR && !exact ? (float)(0.5 + random_uniform()) : ldexpf(1, random_integer(2));
    return twin_of(scales, (count + 1) * (int64_t)sizeof *scales);
}

static size_t bytes_of(GemmType type) { return type == GEMM_BF16 ? 2 : 4; }

/* `there`: integers, in columns; else NaN, as are the gaps always. */
static Twin new_c(GemmType type, int64_t rows, int64_t columns, int64_t ld, bool there) {
    int64_t count = rows * ld, bytes = count * (int64_t)bytes_of(type);
    void *c = memory_allocate((size_t)bytes + 1);
    for (int64_t i = 0; i < count; i++) element_set(bytes_of(type), c, i, there && i % ld < columns ? random_integer(100) : NAN);
    return twin_of(c, bytes);
}

static Twin new_bias(int64_t columns) {
    float *bias = memory_allocate((size_t)columns * sizeof *bias);
    for (int64_t i = 0; i < columns; i++) bias[i] = (float)random_integer(50) / 4;
    return twin_of(bias, columns * (int64_t)sizeof *bias);
}

static void *copy_of(const Twin *twin) {
    void *copy = memory_allocate((size_t)twin->bytes + 1);
    memcpy(copy, twin->host, (size_t)twin->bytes);
    return copy;
}

static void expect_no_failure(void) {
    Error error = {0};
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
}

/* -- One problem, or one of each expert ---------------------------------------------------------------------------- */

/* Without experts `offset` is NULL, and there is one. `depth`: slots are values quantized along k, and `offset` counts pairs of them. */
typedef struct Case {
    Gemm form; /* sizes, types, scalings, accumulate */
    bool bias, exact, depth;
    const int32_t *offset;
    int64_t experts;
} Case;

typedef struct Run {
    Twin a, b, c, scale_a, scale_b, bias, offset;
    Gemm gemm; /* on the GPU */
} Run;

/* Of experts whose slots are values quantized along k each has a C, one after the other. */
static int64_t rows_of_c(const Case *p) { return p->form.m * (p->depth ? p->experts : 1); }

static Run open_run(const Case *p) {
    const Gemm *f = &p->form;
    int64_t experts = p->offset ? p->experts : 1, matrices = p->depth ? 1 : experts, ldc = f->n + (p->depth ? 0 : GAP);
    Run r = {.a = new_codes(f->input, f->m, f->k, p->exact),
        .b = new_codes(GEMM_E4M3, matrices * f->n, f->k, p->exact),
        .c = new_c(f->output, rows_of_c(p), f->n, ldc, f->accumulate),
        .scale_a = new_scales(f->scaling_a, gemm_scale_count(f->scaling_a, f->m, f->k), p->exact),
        .scale_b = new_scales(f->scaling_b, matrices * gemm_scale_count(f->scaling_b, f->n, f->k), p->exact),
        .bias = new_bias(f->n)};
    if (p->offset) {
        int64_t bytes = (experts + 1) * (int64_t)sizeof *p->offset;
        r.offset = twin_of(memcpy(memory_allocate((size_t)bytes), p->offset, (size_t)bytes), bytes);
    }
    r.gemm = *f;
    r.gemm.transpose_b = true;
    r.gemm.lda = r.gemm.ldb = f->k + GAP, r.gemm.ldc = ldc;
    r.gemm.a = r.a.device, r.gemm.b = r.b.device, r.gemm.c = r.c.device;
    r.gemm.bias = p->bias ? r.bias.device : NULL;
    r.gemm.scale_a = f->scaling_a ? r.scale_a.device : NULL, r.gemm.scale_b = f->scaling_b ? r.scale_b.device : NULL;
    return r;
}

static void close_run(const Case *p, Run *r) {
    twin_free(&r->a), twin_free(&r->b), twin_free(&r->c), twin_free(&r->scale_a), twin_free(&r->scale_b), twin_free(&r->bias);
    if (p->offset) twin_free(&r->offset);
}

static void run_gpu(const Case *p, const Run *r) {
    Device *gpu = check_device();
    GemmGrouped grouped = {.first = r->gemm, .offset = r->offset.device, .experts = p->experts, .slots_are_depth = p->depth};
    assert_true(p->offset ? gpu_gemm_grouped_fp8(gpu, &grouped) : gpu_gemm_fp8(gpu, &r->gemm));
    device_download(gpu, r->c.host, r->c.device, r->c.bytes);
    expect_no_failure();
}

/* The GEMM of expert e in host memory, C in `c`; `absolute`: of the magnitudes of all quantized values, without what is added. */
static Gemm host_gemm(const Case *p, const Run *r, int64_t e, void *c) {
    Gemm g = r->gemm;
    int64_t first = p->offset ? p->offset[e] : 0;
    g.a = (char *)r->a.host + first * g.lda, g.b = (char *)r->b.host + e * g.n * g.ldb,
    g.c = (char *)c + first * g.ldc * (int64_t)bytes_of(g.output);
    g.bias = p->bias ? r->bias.host : NULL;
    g.scale_a = (float *)r->scale_a.host;
    if (gemm_scales_lines(g.scaling_a)) g.scale_a += gemm_scale_count(g.scaling_a, first, g.k);
    g.scale_b = (float *)r->scale_b.host + e * gemm_scale_count(g.scaling_b, g.n, g.k);
    if (p->offset) g.m = p->offset[e + 1] - first;
    return g;
}

/* Of expert e, whose slots are values quantized along k: all of k, with zeros in the place of others' quantized values of A. */
static void run_cpu_depth(const Case *p, const Run *r, int64_t e, void *c) {
    Gemm g = r->gemm;
    SCOPED_FREE uint8_t *a = copy_of(&r->a);
    for (int64_t i = 0; i < g.m * g.lda; i++)
        if (i % g.lda / 2 < p->offset[e] || i % g.lda / 2 >= p->offset[e + 1]) a[i] = 0;
    g.a = a, g.b = r->b.host, g.c = (char *)c + e * g.m * g.ldc * (int64_t)bytes_of(g.output);
    g.scale_a = r->scale_a.host, g.scale_b = r->scale_b.host;
    assert_true(device_gemm_fp8(device_cpu(), &g));
}

static void run_cpu(const Case *p, const Run *r, void *c) {
    for (int64_t e = 0; e < p->experts && p->depth; e++) run_cpu_depth(p, r, e, c);
    for (int64_t e = 0; e < (p->offset ? p->experts : 1) && !p->depth; e++) {
        Gemm g = host_gemm(p, r, e, c);
        if (g.m) assert_true(device_gemm_fp8(device_cpu(), &g));
    }
}

/* The sums of products' magnitudes, in fp32: quantized values without signs. NaN stays NaN. */
static void *magnitudes(const Case *p, const Run *r) {
    Case bare = *p;
    Run without = *r;
    void *sums = memory_allocate((size_t)(rows_of_c(p) * r->gemm.ldc) * sizeof(float));
    bare.bias = false;
    without.gemm.output = GEMM_F32, without.gemm.accumulate = false;
    without.a.host = copy_of(&r->a), without.b.host = copy_of(&r->b);
    for (int64_t i = 0; i < r->a.bytes; i++) ((uint8_t *)without.a.host)[i] &= 0x7f;
    for (int64_t i = 0; i < r->b.bytes; i++) ((uint8_t *)without.b.host)[i] &= 0x7f;
    run_cpu(&bare, &without, sums);
    free(without.a.host), free(without.b.host);
    return sums;
}

static void describe(const Case *p, char text[160]) {
    const Gemm *f = &p->form;
    snprintf(text, 160, "m %d n %d k %d, %s, C %s%s%s, scalings %d %d%s", (int)f->m, (int)f->n, (int)f->k,
        f->input == GEMM_E5M2 ? "e5m2" : "e4m3", f->output == GEMM_BF16 ? "bf16" : "fp32", f->accumulate ? " +=" : "",
        p->bias ? " + bias" : "", f->scaling_a, f->scaling_b,
        p->depth    ? ", experts along k"
        : p->offset ? ", experts"
                    : "");
}

static void expect_close(const Case *p, const Run *r, const void *expected) {
    char text[160];
    const Gemm *f = &r->gemm;
    SCOPED_FREE float *sums = magnitudes(p, r);
    int64_t rows = p->offset && !p->depth ? p->offset[p->experts] : rows_of_c(p);
    for (int64_t i = 0; i < rows * f->ldc; i++) {
        if (i % f->ldc >= f->n) continue;
        double x = element_get(bytes_of(f->output), r->c.host, i), y = element_get(bytes_of(f->output), expected, i);
        double bound = 0x1p-10 * sums[i] + (f->output == GEMM_BF16 ? 1.01 / 128 : 0x1p-22) * fabs(y);
        if (fabs(x - y) <= bound) continue;
        describe(p, text);
        fail_msg("%s: C[%d][%d] is %.9g, expected %.9g +- %.2g", text, (int)(i / f->ldc), (int)(i % f->ldc), x, y, bound);
    }
}

static void expect_same(const Case *p, const Run *r, const void *expected) {
    char text[160];
    const Gemm *f = &r->gemm;
    for (int64_t i = 0; i < rows_of_c(p) * f->ldc; i++) {
        const size_t bytes = bytes_of(f->output);
        if (!memcmp((char *)r->c.host + i * (int64_t)bytes, (const char *)expected + i * (int64_t)bytes, bytes)) continue;
        describe(p, text);
        fail_msg("%s: C[%d][%d] is %.9g, expected %.9g", text, (int)(i / f->ldc), (int)(i % f->ldc), element_get(bytes, r->c.host, i),
            element_get(bytes, expected, i));
    }
}

static void check_case(const Case *p) {
    Run r = open_run(p);
    SCOPED_FREE void *before = copy_of(&r.c), *expected = copy_of(&r.c);
    run_cpu(p, &r, expected);
    run_gpu(p, &r);
    if (p->exact) expect_same(p, &r, expected);
    else expect_close(p, &r, expected);
    SCOPED_FREE void *first = copy_of(&r.c);
    device_upload(check_device(), r.c.device, before, r.c.bytes);
    run_gpu(p, &r);
    assert_memory_equal(first, r.c.host, (size_t)r.c.bytes);
    close_run(p, &r);
}

/* Every type, forms of C and bias alternating, exact and random. */
static void check_forms_of(Gemm sizes, const int32_t *offset, int64_t experts, bool depth) {
    for (int form = 0; form < 8; form++) {
        Case p = {.form = sizes, .exact = form / 4 == 0, .bias = form % 2 && !offset, .offset = offset, .experts = experts, .depth = depth};
        p.form.input = form & 2 ? GEMM_E5M2 : GEMM_E4M3;
        if (sizes.scaling_a >= GEMM_SCALE_GROUP) p.form.input = GEMM_E4M3; /* the other has no such kernel */
        p.form.output = (form & 1) ^ (form >> 1 & 1) ? GEMM_BF16 : GEMM_F32;
        for (int adds = 0; adds < 2; adds++) {
            p.form.accumulate = adds;
            check_case(&p);
        }
    }
}

static void check_forms(Gemm sizes, const int32_t *offset, int64_t experts) { check_forms_of(sizes, offset, experts, false); }

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static const GemmScaling once[][2] = {{GEMM_SCALE_ONE, GEMM_SCALE_ONE}, {GEMM_SCALE_TENSOR, GEMM_SCALE_TENSOR},
    {GEMM_SCALE_LINE, GEMM_SCALE_LINE}, {GEMM_SCALE_LINE, GEMM_SCALE_TENSOR}, {GEMM_SCALE_TENSOR, GEMM_SCALE_LINE},
    {GEMM_SCALE_ONE, GEMM_SCALE_LINE}};

static void sums_are_scaled_by_tensor_and_by_line(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 16, 16}, {16, 256, 128}, {128, 64, 144}, {77, 272, 400}, {129, 528, 48}, {321, 32, 1040}};
    fp8_gpu();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof once / sizeof *once; j++)
            check_forms(
                (Gemm){.m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .scaling_a = once[j][0], .scaling_b = once[j][1]}, NULL, 1);
}

static const GemmScaling promoted[][2] = {{GEMM_SCALE_GROUP, GEMM_SCALE_BLOCK}, {GEMM_SCALE_GROUP, GEMM_SCALE_GROUP}};

static void sums_are_scaled_by_groups_and_blocks(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 16, 16}, {128, 144, 128}, {77, 272, 400}, {129, 528, 1040}};
    fp8_gpu();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof promoted / sizeof *promoted; j++)
            check_forms(
                (Gemm){.m = sizes[i][0], .n = sizes[i][1], .k = sizes[i][2], .scaling_a = promoted[j][0], .scaling_b = promoted[j][1]},
                NULL, 1);
}

static void sums_are_scaled_by_32_elements(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{1, 16, 16}, {128, 144, 128}, {77, 272, 400}, {129, 528, 1040}};
    Device *gpu = fp8_gpu();
    Gemm g = {.scaling_a = GEMM_SCALE_MX, .scaling_b = GEMM_SCALE_MX};
    if (!device_info(gpu)->fp8_mx) {
        Run r = open_run(&(Case){.form = {.input = GEMM_E4M3,
                                     .output = GEMM_F32,
                                     .m = 16,
                                     .n = 16,
                                     .k = 32,
                                     .scaling_a = GEMM_SCALE_MX,
                                     .scaling_b = GEMM_SCALE_MX}});
        assert_false(gpu_gemm_fp8(gpu, &r.gemm));
        close_run(&(Case){0}, &r);
        skip();
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        g.m = sizes[i][0], g.n = sizes[i][1], g.k = sizes[i][2];
        check_forms(g, NULL, 1);
    }
}

/* More than any processor count, so that blocks make several. Too much for an emulator. */
static void many_tiles_are_scaled(void **state) {
    (void)state;
    static const GemmScaling scalings[][2] = {{GEMM_SCALE_TENSOR, GEMM_SCALE_TENSOR}, {GEMM_SCALE_LINE, GEMM_SCALE_LINE},
        {GEMM_SCALE_GROUP, GEMM_SCALE_BLOCK}, {GEMM_SCALE_GROUP, GEMM_SCALE_GROUP}};
    if (device_info(fp8_gpu())->kind != DEVICE_CUDA) skip();
    for (int i = 0; i < 4; i++) {
        Case p = {.form = {.input = GEMM_E4M3,
                      .output = GEMM_BF16,
                      .m = 3000,
                      .n = 5136,
                      .k = 400,
                      .scaling_a = scalings[i][0],
                      .scaling_b = scalings[i][1]},
            .exact = true};
        check_case(&p);
        if (i == 0) p.form.input = GEMM_E5M2, check_case(&p);
    }
}

/* The first has none, others end within a tile or with it; slots beyond the last are nobody's. */
static const int32_t few[] = {0, 0, 131, 132, 331, 340}, none[] = {0, 0, 0}, many[] = {0, 1000, 2300, 2300, 2364, 5900};

static void check_experts(GemmScaling a, GemmScaling b) {
    Gemm sizes = {.m = 350, .n = 208, .k = 144, .scaling_a = a, .scaling_b = b};
    check_forms(sizes, few, 5);
    sizes.m = 20;
    check_forms(sizes, none, 2);
    if (device_info(check_device())->kind != DEVICE_CUDA) return;
    Gemm large = {.input = GEMM_E4M3, .output = GEMM_BF16, .m = 6000, .n = 2048, .k = 272, .scaling_a = a, .scaling_b = b};
    check_case(&(Case){.form = large, .exact = true, .offset = many, .experts = 5});
}

static void slots_of_experts_meet_their_weights_and_scales(void **state) {
    (void)state;
    fp8_gpu();
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) check_experts(once[i][0], once[i][1]);
    for (size_t i = 0; i < sizeof promoted / sizeof *promoted; i++) check_experts(promoted[i][0], promoted[i][1]);
    if (device_info(check_device())->fp8_mx) check_experts(GEMM_SCALE_MX, GEMM_SCALE_MX);
}

/* Experts have 128, 384 and 256 quantized values along k, and beyond these are quantized values of none; and one for each of many experts. */
static const int32_t tiles[] = {0, 64, 256, 384};

static void check_experts_along_k(GemmScaling a, GemmScaling b) {
    enum { EACH = 12 };
    int32_t each[EACH + 1];
    check_forms_of((Gemm){.m = 144, .n = 208, .k = 1024, .scaling_a = a, .scaling_b = b}, tiles, 3, true);
    if (device_info(check_device())->kind != DEVICE_CUDA) return;
    for (int e = 0; e <= EACH; e++) each[e] = 64 * e;
    check_forms_of((Gemm){.m = 272, .n = 528, .k = EACH * 128, .scaling_a = a, .scaling_b = b}, each, EACH, true);
}

static void slots_of_experts_are_summed_over_along_k(void **state) {
    (void)state;
    fp8_gpu();
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) check_experts_along_k(once[i][0], once[i][1]);
    check_experts_along_k(GEMM_SCALE_GROUP, GEMM_SCALE_GROUP);
    if (device_info(check_device())->fp8_mx) check_experts_along_k(GEMM_SCALE_MX, GEMM_SCALE_MX);
}

static void what_no_kernel_has_is_declined(void **state) {
    (void)state;
    Device *gpu = fp8_gpu();
    Case p = {.form = {.input = GEMM_E4M3, .output = GEMM_F32, .m = 32, .n = 32, .k = 32}};
    Run r = open_run(&p);
    assert_true(gpu_gemm_fp8(gpu, &r.gemm));
    Gemm odd[] = {r.gemm, r.gemm, r.gemm, r.gemm};
    odd[0].n = 24, odd[1].k = 24, odd[2].a = (const char *)r.gemm.a + 8, odd[3].scaling_a = GEMM_SCALE_BLOCK;
    for (int i = 0; i < 4; i++) assert_false(gpu_gemm_fp8(gpu, &odd[i]));
    r.gemm.m = 0;
    assert_true(gpu_gemm_fp8(gpu, &r.gemm));
    expect_no_failure();
    close_run(&p, &r);
}

/* -- Speed --------------------------------------------------------------------------------------------------------- */

static void run_own(const void *gemm) { device_gemm_own(check_device(), gemm); }
static void run_chosen(const void *gemm) { device_gemm_fp8(check_device(), gemm); }

static void print_speed(const Case *p, const Gemm *g) {
    char text[160];
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k / 1e12;
    describe(p, text);
    print_message("%-60s own %7.1f chosen %7.1f TFLOP/s\n", text, flops / check_median_seconds(run_own, g),
        flops / check_median_seconds(run_chosen, g));
}

/* Scales of tensors, lines, blocks and groups; the gradient in e5m2; weights' gradients. */
static void speed(void **state) {
    (void)state;
    static const GemmScaling scalings[][2] = {{GEMM_SCALE_TENSOR, GEMM_SCALE_TENSOR}, {GEMM_SCALE_LINE, GEMM_SCALE_LINE},
        {GEMM_SCALE_GROUP, GEMM_SCALE_BLOCK}, {GEMM_SCALE_GROUP, GEMM_SCALE_GROUP}};
    static const int64_t sizes[][3] = {{8192, 8192, 8192}, {16384, 4096, 4096}, {16384, 14336, 4096}, {4096, 14336, 16384}};
    fp8_gpu();
    if (!getenv("SMELT_TEST_SPEED")) skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 6; form++) {
            Case p = {
                .form = {.input = form < 4 ? GEMM_E4M3 : GEMM_E5M2, .output = form < 5 ? GEMM_BF16 : GEMM_F32, .accumulate = form == 5}};
            p.form.m = sizes[i][0], p.form.n = sizes[i][1], p.form.k = sizes[i][2];
            p.form.scaling_a = scalings[form % 4][0], p.form.scaling_b = scalings[form % 4][1];
            if (form > 3) p.form.scaling_a = p.form.scaling_b = GEMM_SCALE_TENSOR;
            Run r = open_run(&p);
            print_speed(&p, &r.gemm);
            close_run(&p, &r);
        }
    expect_no_failure();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_scaled_by_tensor_and_by_line),
        cmocka_unit_test(sums_are_scaled_by_groups_and_blocks),
        cmocka_unit_test(sums_are_scaled_by_32_elements),
        cmocka_unit_test(many_tiles_are_scaled),
        cmocka_unit_test(slots_of_experts_meet_their_weights_and_scales),
        cmocka_unit_test(slots_of_experts_are_summed_over_along_k),
        cmocka_unit_test(what_no_kernel_has_is_declined),
        cmocka_unit_test(speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

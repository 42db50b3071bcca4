/* GEMMs on the vendors' libraries, against a loop in double precision: every layout, type, odd sizes, accumulation
 * and bias; which algorithm is taken, and the file that remembers it. What needs a GPU is skipped without
 * SMELT_TEST_DEVICE=hip or cuda.
 *
 * Tolerance: a sum of k products in fp32, in any order, is off by at most about k / 2^24 of the sum of their
 * magnitudes; storing as bf16 adds half a unit in the last place, 1/256, and so does a bias that is rounded to bf16.
 * A wrong sign or a lost product is off by a hundred times that. Hopper keeps sums of fp8 to about 14 bits within a
 * step, so 2^-10 of the magnitudes is allowed there: an element of other rows or columns is off by 20 times that. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/float8.h"
#include "base/memory.h"
#include "base/rng.h"
#include "support/check.h"
#include "support/files.h"
#include "backend/gpu/autotune_cache_internal.h"
#include "backend/gpu/driver.h"
#include "backend/gpu/vendor_gemm_internal.h"
#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

/* -- GEMM ---------------------------------------------------------------------------------------------------------- */

/* An operand on the host and, the same bits, on the device. */
typedef struct Operand {
    void *host, *device;
    int64_t bytes;
} Operand;

typedef struct GemmCase {
    Gemm gemm;
    Operand a, b, c, bias, scale_a, scale_b;
} GemmCase;

/* smelt's kernels. */
static bool own_gemm(Device *device, const Gemm *gemm) { return device_gemm_own(device, gemm); }

static VendorGemm *open_library(const char *cache_path) {
    Error error = {0};
    Device *device = check_gpu();
    VendorGemmHost host = {.device = device, .stream = gpu_of(device)->stream, .reference = own_gemm, .cache_path = cache_path};
    VendorGemm *vendor = vendor_gemm_open(&host, &error);
    if (!vendor) {
        print_message("skipped: %s\n", error.message);
        skip();
    }
    return vendor;
}

static uint16_t bf16_of(float x) {
    union {
        float value;
        uint32_t bits;
    } u = {.value = x};
    return (uint16_t)((u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16);
}

static Fp8Format format_of(GemmType type) { return gemm_fp8_format(type, device_info(check_device())->fp8_fnuz); }

static double value_at(const void *data, GemmType type, int64_t i) {
    if (gemm_is_fp8(type)) return fp8_to_float(((const uint8_t *)data)[i], format_of(type));
    union {
        uint32_t bits;
        float value;
    } u = {.bits = type == GEMM_BF16 ? (uint32_t)((const uint16_t *)data)[i] << 16 : ((const uint32_t *)data)[i]};
    return u.value;
}

static Operand new_operand(GemmType type, int64_t count, uint64_t stream) {
    Error error = {0};
    Operand operand = {.bytes = count * (gemm_is_fp8(type) ? 1 : type == GEMM_BF16 ? 2 : 4)};
    operand.host = memory_allocate((size_t)operand.bytes);
    for (int64_t i = 0; i < count; i++) {
        float x = (float)rng_normal(11, stream, i);
        if (gemm_is_fp8(type)) ((uint8_t *)operand.host)[i] = fp8_from_float(x, format_of(type));
        else if (type == GEMM_BF16) ((uint16_t *)operand.host)[i] = bf16_of(x);
        else ((float *)operand.host)[i] = x;
    }
    operand.device = device_allocate(check_device(), operand.bytes, &error);
    if (!operand.device) fail_msg("%s", error.message);
    device_upload(check_device(), operand.device, operand.host, operand.bytes);
    return operand;
}

static void free_operand(Operand *operand) {
    if (operand->device) device_free(check_device(), operand->device, operand->bytes);
    free(operand->host);
}

/* Random operands for the shape and types of `gemm`; leading dimensions are `gap` longer than they must be. */
static GemmCase new_gemm(Gemm gemm, int64_t gap) {
    GemmCase p = {.gemm = gemm};
    Gemm *g = &p.gemm;
    if (!gemm_is_fp8(g->input)) g->input = GEMM_BF16;
    g->lda = (g->transpose_a ? g->m : g->k) + gap;
    g->ldb = (g->transpose_b ? g->k : g->n) + gap;
    g->ldc = g->n + gap;
    p.a = new_operand(g->input, (g->transpose_a ? g->k : g->m) * g->lda, 1);
    p.b = new_operand(gemm_is_fp8(g->input) ? GEMM_E4M3 : g->input, (g->transpose_b ? g->n : g->k) * g->ldb, 2);
    p.c = new_operand(g->output, g->m * g->ldc, 3);
    if (g->bias) p.bias = new_operand(GEMM_F32, g->n, 4);
    g->a = p.a.device;
    g->b = p.b.device;
    g->c = p.c.device;
    g->bias = p.bias.device;
    if (g->scaling_a) p.scale_a = new_operand(GEMM_F32, gemm_scale_count(g->scaling_a, g->m, g->k), 5);
    if (g->scaling_b) p.scale_b = new_operand(GEMM_F32, gemm_scale_count(g->scaling_b, g->n, g->k), 6);
    g->scale_a = p.scale_a.device, g->scale_b = p.scale_b.device;
    return p;
}

static void free_gemm(GemmCase *p) {
    free_operand(&p->a);
    free_operand(&p->b);
    free_operand(&p->c);
    free_operand(&p->bias);
    free_operand(&p->scale_a);
    free_operand(&p->scale_b);
}

/* C of the device. The caller frees. */
static void *result_of(const GemmCase *p) {
    Error error = {0};
    void *c = memory_allocate((size_t)p->c.bytes);
    device_download(check_device(), c, p->c.device, p->c.bytes);
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
    return c;
}

/* Of a tensor, or of a line. */
static double scale_of(const Operand *scales, GemmScaling scaling, int64_t line) {
    return scaling ? ((const float *)scales->host)[scaling == GEMM_SCALE_LINE ? line : 0] : 1;
}

static void expect_element(const GemmCase *p, const void *c, int64_t i, int64_t j) {
    const Gemm *g = &p->gemm;
    double sum = 0, magnitude = 0, bias = p->bias.host ? ((float *)p->bias.host)[j] : 0, got = value_at(c, g->output, i * g->ldc + j);
    for (int64_t q = 0; q < g->k; q++) {
        double a = value_at(p->a.host, g->input, g->transpose_a ? q * g->lda + i : i * g->lda + q);
        double term =
            a * value_at(p->b.host, gemm_is_fp8(g->input) ? GEMM_E4M3 : g->input, g->transpose_b ? j * g->ldb + q : q * g->ldb + j);
        sum += term;
        magnitude += fabs(term);
    }
    double scale = scale_of(&p->scale_a, g->scaling_a, i) * scale_of(&p->scale_b, g->scaling_b, j);
    sum *= scale, magnitude *= fabs(scale);
    double product = sum;
    if (g->accumulate) sum += value_at(p->c.host, g->output, i * g->ldc + j);
    sum += bias;
    magnitude += fabs(bias) + 1;
    /* A library may round the sum before it adds C or the bias. */
    double rounded = fabs(sum) + fabs(bias) + (g->accumulate || g->bias ? fabs(product) : 0);
    double tolerance =
        (gemm_is_fp8(g->input) ? 0x1p-10 : (double)(g->k + 4) * 0x1p-24) * magnitude + (g->output == GEMM_BF16 ? rounded / 250 : 0);
    if (!(fabs(got - sum) <= tolerance))
        fail_msg("%c%c m %ld n %ld k %ld %s%s%s: C[%ld][%ld] is %.9g, expected %.9g +- %.2g", g->transpose_a ? 't' : 'n',
            g->transpose_b ? 't' : 'n', (long)g->m, (long)g->n, (long)g->k, g->output == GEMM_BF16 ? "bf16" : "fp32",
            g->accumulate ? " +=" : "", g->bias ? " bias" : "", (long)i, (long)j, got, sum, tolerance);
}

/* The corners, 300 other elements, and what lies between rows. */
static void expect_gemm(const GemmCase *p, const void *c) {
    const Gemm *g = &p->gemm;
    for (int64_t probe = 0; probe < 304; probe++) {
        int64_t i = probe < 4 ? probe % 2 * (g->m - 1) : (int64_t)(rng_normal(12, 1, probe) * 1e6) % g->m;
        int64_t j = probe < 4 ? probe / 2 * (g->n - 1) : (int64_t)(rng_normal(12, 2, probe) * 1e6) % g->n;
        expect_element(p, c, i < 0 ? -i : i, j < 0 ? -j : j);
    }
    size_t size = g->output == GEMM_BF16 ? 2 : 4;
    for (int64_t i = 0; i < g->m; i++) {
        size_t gap = (size_t)(i * g->ldc + g->n) * size;
        assert_memory_equal((const char *)c + gap, (const char *)p->c.host + gap, (size_t)(g->ldc - g->n) * size);
    }
}

/* Runs it and checks C, or, where the library declines, that C is untouched. Returns whether it ran. */
static bool check_gemm(VendorGemm *vendor, Gemm gemm, int64_t gap) {
    GemmCase p = new_gemm(gemm, gap);
    bool ran = vendor_gemm_run(vendor, &p.gemm, false);
    void *c = result_of(&p);
    if (ran) expect_gemm(&p, c);
    else assert_memory_equal(c, p.c.host, (size_t)p.c.bytes);
    free(c);
    free_gemm(&p);
    return ran;
}

static const float some_bias; /* only whether there is one counts before new_gemm */

/* All layouts with each of: bf16, bf16 with bias, fp32, fp32 with bias, fp32 and bf16 that is added to. */
static int check_all_forms(VendorGemm *vendor, int64_t m, int64_t n, int64_t k, int64_t gap) {
    int ran = 0;
    for (int form = 0; form < 24; form++) {
        int kind = form / 4;
        Gemm gemm = {.transpose_a = form & 1,
            .transpose_b = form & 2,
            .accumulate = kind >= 4,
            .output = kind < 2 || kind == 5 ? GEMM_BF16 : GEMM_F32,
            .m = m,
            .n = n,
            .k = k,
            .bias = kind == 1 || kind == 3 ? &some_bias : NULL};
        ran += check_gemm(vendor, gemm, gap);
    }
    return ran;
}

static void regular_gemms_of_every_form_run_and_match(void **state) {
    (void)state;
    VendorGemm *vendor = open_library(NULL);
    assert_int_equal(check_all_forms(vendor, 256, 384, 192, 0), 24);
    assert_int_equal(check_all_forms(vendor, 128, 64, 2048, 8), 24);
    vendor_gemm_close(vendor);
}

static void odd_gemms_match_or_are_declined(void **state) {
    (void)state;
    VendorGemm *vendor = open_library(NULL);
    check_all_forms(vendor, 1, 128, 64, 0);
    check_all_forms(vendor, 77, 39, 51, 0);
    check_all_forms(vendor, 130, 257, 8, 3);
    vendor_gemm_close(vendor);
}

/* What a library lacks it declines, as it does where smelt has no kernel to check it. Those of Hopper have scales of
 * tensors; of lines only late versions. */
static void gemms_of_fp8_match_or_are_declined(void **state) {
    (void)state;
    VendorGemm *vendor = open_library(NULL);
    bool hopper = !strcmp(device_info(check_device())->target, "sm_90a");
    static const GemmScaling offered[] = {GEMM_SCALE_ONE, GEMM_SCALE_TENSOR, GEMM_SCALE_LINE};
    for (int i = 0; i < 12; i++) {
        Gemm gemm = {.input = i % 2 ? GEMM_E5M2 : GEMM_E4M3, .transpose_b = true, .output = i / 2 % 2 ? GEMM_F32 : GEMM_BF16};
        gemm.scaling_a = gemm.scaling_b = offered[i / 4];
        gemm.m = 256, gemm.n = 384, gemm.k = 512;
        bool ran = check_gemm(vendor, gemm, 0);
        gemm.m = 128, gemm.n = 64, gemm.k = 2048;
        ran &= check_gemm(vendor, gemm, 16);
        if (hopper && i < 8) assert_true(ran);
        else if (hopper) print_message("scales of lines: %s\n", ran ? "computed" : "declined");
        gemm.accumulate = true;
        print_message(
            "C of fp8 %s += : %s\n", gemm.output == GEMM_F32 ? "fp32" : "bf16", check_gemm(vendor, gemm, 0) ? "computed" : "declined");
        gemm.m = 77, gemm.n = 39, gemm.k = 51;
        check_gemm(vendor, gemm, 0);
    }
    Gemm declined = {
        .input = GEMM_E4M3, .transpose_b = true, .output = GEMM_F32, .m = 128, .n = 128, .k = 128, .scaling_a = GEMM_SCALE_LINE};
    assert_false(check_gemm(vendor, declined, 0));
    declined.scaling_a = GEMM_SCALE_GROUP, declined.scaling_b = GEMM_SCALE_BLOCK;
    assert_false(check_gemm(vendor, declined, 0));
    declined.scaling_a = declined.scaling_b = GEMM_SCALE_ONE, declined.bias = &some_bias;
    assert_false(check_gemm(vendor, declined, 0));
    vendor_gemm_close(vendor);
}

static void empty_gemms_and_other_inputs_are_declined(void **state) {
    (void)state;
    VendorGemm *vendor = open_library(NULL);
    float memory[4] = {0};
    Gemm gemm = {.input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = 1,
        .n = 1,
        .k = 1,
        .a = memory,
        .lda = 1,
        .b = memory,
        .ldb = 1,
        .c = memory,
        .ldc = 1};
    Gemm empty = gemm, fp32 = gemm;
    empty.k = 0;
    fp32.input = GEMM_F32;
    assert_false(vendor_gemm_run(vendor, &empty, false));
    assert_false(vendor_gemm_run(vendor, &fp32, false));
    vendor_gemm_close(vendor);
}

static void a_gemm_gives_the_same_bits_every_time(void **state) {
    (void)state;
    VendorGemm *vendor = open_library(NULL);
    GemmCase p = new_gemm((Gemm){.transpose_b = true, .output = GEMM_BF16, .m = 192, .n = 320, .k = 4096}, 0);
    assert_true(vendor_gemm_run(vendor, &p.gemm, false));
    void *first = result_of(&p);
    for (int i = 0; i < 3; i++) {
        device_fill(check_device(), p.c.device, 0xff, p.c.bytes);
        assert_true(vendor_gemm_run(vendor, &p.gemm, false));
        void *again = result_of(&p);
        assert_memory_equal(again, first, (size_t)p.c.bytes);
        free(again);
    }
    free(first);
    free_gemm(&p);
    vendor_gemm_close(vendor);
}

static void a_new_shape_is_declined_while_recording(void **state) {
    (void)state;
    VendorGemm *vendor = open_library(NULL);
    GemmCase p = new_gemm((Gemm){.output = GEMM_BF16, .m = 64, .n = 64, .k = 64}, 0);
    assert_false(vendor_gemm_run(vendor, &p.gemm, true));
    assert_true(vendor_gemm_run(vendor, &p.gemm, false));
    assert_true(vendor_gemm_run(vendor, &p.gemm, true));
    free_gemm(&p);
    vendor_gemm_close(vendor);
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

static DeviceMethods unwatched;
static int64_t watched_bytes, most_watched_bytes;

static void *watched_allocate(Device *device, int64_t bytes, Error *error) {
    watched_bytes += bytes;
    if (watched_bytes > most_watched_bytes) most_watched_bytes = watched_bytes;
    return unwatched.allocate(device, bytes, error);
}

static void watched_free(Device *device, void *memory, int64_t bytes) {
    watched_bytes -= bytes;
    unwatched.free(device, memory, bytes);
}

/* Plans rely on this bound: a trial takes at most a second A and B and two more C, and frees them. */
static void a_trial_takes_the_memory_that_plans_have_for_it(void **state) {
    (void)state;
    VendorGemm *vendor = open_library(NULL);
    Device *device = check_device();
    const DeviceMethods *methods = device->methods;
    DeviceMethods watched = unwatched = *methods;
    watched.allocate = watched_allocate, watched.free = watched_free;
    for (int form = 0; form < 8; form++) {
        Gemm gemm = {
            .transpose_b = true, .output = form & 1 ? GEMM_F32 : GEMM_BF16, .accumulate = form & 2, .m = 40 + form, .n = 384, .k = 192};
        gemm.bias = form >= 4 && !gemm.accumulate ? &some_bias : NULL;
        GemmCase p = new_gemm(gemm, 8);
        watched_bytes = most_watched_bytes = 0;
        device->methods = &watched;
        assert_true(vendor_gemm_run(vendor, &p.gemm, false));
        device->methods = methods;
        assert_true(most_watched_bytes >= p.a.bytes + p.b.bytes);
        assert_true(most_watched_bytes <= p.a.bytes + p.b.bytes + 2 * p.c.bytes);
        assert_int_equal(watched_bytes, 0);
        free_gemm(&p);
    }
    vendor_gemm_close(vendor);
}

/* -- The judge ----------------------------------------------------------------------------------------------------- */

static bool wrong_reference(Device *device, const Gemm *gemm) {
    int64_t elements = (gemm->m - 1) * gemm->ldc + gemm->n;
    device_fill(device, gemm->c, 0x40, elements * (gemm->output == GEMM_BF16 ? 2 : 4));
    return true;
}

static void a_library_that_differs_from_our_kernel_is_not_used(void **state) {
    (void)state;
    vendor_gemm_close(open_library(NULL)); /* skips */
    Error error = {0};
    VendorGemmHost host = {.device = check_device(), .stream = gpu_of(check_device())->stream, .reference = wrong_reference};
    VendorGemm *vendor = vendor_gemm_open(&host, &error);
    GemmCase p = new_gemm((Gemm){.output = GEMM_F32, .accumulate = true, .m = 64, .n = 64, .k = 64}, 0);
    assert_false(vendor_gemm_run(vendor, &p.gemm, false));
    void *c = result_of(&p);
    assert_memory_equal(c, p.c.host, (size_t)p.c.bytes);
    free(c);
    free_gemm(&p);
    vendor_gemm_close(vendor);
}

/* -- The autotune cache -------------------------------------------------------------------------------------------- */

static char *temporary_folder(void) {
    char *folder = memory_copy_string("/tmp/smelt-test-gemm-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static void remove_folder(char *folder) {
    char *command = memory_format("rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    free(command);
    free(folder);
}

static int64_t size_of(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 ? status.st_size : -1;
}

static void algorithms_are_found_again_by_their_device_library_and_shape(void **state) {
    (void)state;
    char *folder = temporary_folder(), *path = memory_format("%s/new/folder/cache", folder), found[4];
    AutotuneCache *cache = autotune_cache_open(path, "GPU", "Lt 1", 4);
    autotune_cache_add(cache, "m=1", "\x01\x02\xfe\xff");
    autotune_cache_add(cache, "m=2", "abcd");
    autotune_cache_add(cache, "m=1", "\x05\x02\xfe\xff");
    autotune_cache_close(cache);
    cache = autotune_cache_open(path, "GPU", "Lt 1", 4);
    assert_true(autotune_cache_find(cache, "m=1", found));
    assert_memory_equal(found, "\x05\x02\xfe\xff", 4);
    assert_true(autotune_cache_find(cache, "m=2", found));
    assert_memory_equal(found, "abcd", 4);
    assert_false(autotune_cache_find(cache, "m=3", found));
    autotune_cache_close(cache);
    static const char *const others[][2] = {{"GPU", "Lt 2"}, {"GPU 2", "Lt 1"}};
    for (int i = 0; i < 2; i++) {
        cache = autotune_cache_open(path, others[i][0], others[i][1], 4);
        assert_false(autotune_cache_find(cache, "m=1", found));
        autotune_cache_close(cache);
    }
    free(path);
    remove_folder(folder);
}

static void lines_of_another_form_are_skipped(void **state) {
    (void)state;
    char *folder = temporary_folder(), *path = memory_format("%s/cache", folder), found[4];
    write_text(path, "\n\t\t\t\nGPU\tLt 1\nGPU\tLt 1\tshort\t0102\nGPU\tLt 1\tlong\t0102030405\nGPU\tLt 1\tletters\t0102030g\nGPU\tLt "
                     "1\tcapitals\t0102030A\n"
                     "GPU\tLt 1\tno algorithm\nGPU\tLt 1\tgood\t61626364\nGPU\tLt 1\tcut\t616263");
    AutotuneCache *cache = autotune_cache_open(path, "GPU", "Lt 1", 4);
    static const char *const bad[] = {"", "short", "long", "letters", "capitals", "no algorithm", "cut"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(autotune_cache_find(cache, bad[i], found));
    assert_true(autotune_cache_find(cache, "good", found));
    assert_memory_equal(found, "abcd", 4);
    autotune_cache_close(cache);
    free(path);
    remove_folder(folder);
}

static void a_file_that_cannot_be_used_leaves_the_cache_in_memory(void **state) {
    (void)state;
    char *folder = temporary_folder(), *fifo = memory_format("%s/fifo", folder), found[4];
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const char *const paths[] = {NULL, folder, fifo, "/proc/none/cache"};
    for (int i = 0; i < 4; i++) {
        AutotuneCache *cache = autotune_cache_open(paths[i], "GPU", "Lt 1", 4);
        autotune_cache_add(cache, "m=1", "abcd");
        assert_true(autotune_cache_find(cache, "m=1", found));
        autotune_cache_close(cache);
    }
    free(fifo);
    remove_folder(folder);
}

static void a_file_of_the_largest_size_does_not_grow(void **state) {
    (void)state;
    char *folder = temporary_folder(), *path = memory_format("%s/cache", folder);
    write_text(path, "");
    assert_int_equal(truncate(path, AUTOTUNE_CACHE_MOST_BYTES), 0);
    AutotuneCache *cache = autotune_cache_open(path, "GPU", "Lt 1", 4);
    autotune_cache_add(cache, "m=1", "abcd");
    autotune_cache_close(cache);
    assert_int_equal(size_of(path), AUTOTUNE_CACHE_MOST_BYTES);
    free(path);
    remove_folder(folder);
}

static char *copy_of_variable(const char *name) {
    const char *value = getenv(name);
    return memory_copy_string(value ? value : "");
}

static void the_file_lies_in_the_cache_folder(void **state) {
    (void)state;
    char *cache = copy_of_variable("XDG_CACHE_HOME"), *home = copy_of_variable("HOME");
    setenv("HOME", "/home/someone", 1);
    setenv("XDG_CACHE_HOME", "/cache", 1);
    char *path = autotune_cache_default_path();
    assert_string_equal(path, "/cache/smelt/gemm-autotune");
    free(path);
    unsetenv("XDG_CACHE_HOME");
    path = autotune_cache_default_path();
    assert_string_equal(path, "/home/someone/.cache/smelt/gemm-autotune");
    free(path);
    unsetenv("HOME");
    assert_null(autotune_cache_default_path());
    if (*cache) setenv("XDG_CACHE_HOME", cache, 1);
    if (*home) setenv("HOME", home, 1);
    free(cache);
    free(home);
}

/* The second process finds the line of the first and adds none. */
static void a_remembered_algorithm_is_taken_without_measuring(void **state) {
    (void)state;
    vendor_gemm_close(open_library(NULL)); /* skips */
    char *folder = temporary_folder(), *path = memory_format("%s/cache", folder);
    VendorGemm *vendor = open_library(path);
    GemmCase p = new_gemm((Gemm){.transpose_b = true, .output = GEMM_BF16, .m = 2048, .n = 1024, .k = 256}, 0);
    assert_true(vendor_gemm_run(vendor, &p.gemm, false));
    void *first = result_of(&p);
    vendor_gemm_close(vendor);
    int64_t size = size_of(path);
    assert_true(size > 0);
    vendor = open_library(path);
    assert_true(vendor_gemm_run(vendor, &p.gemm, false));
    void *second = result_of(&p);
    assert_memory_equal(first, second, (size_t)p.c.bytes);
    assert_int_equal(size_of(path), size);
    vendor_gemm_close(vendor);
    free(first);
    free(second);
    free_gemm(&p);
    free(path);
    remove_folder(folder);
}

/* Another program wrote that smelt's kernel is the fastest. */
static void poison(const char *path) {
    size_t length;
    if (access(path, F_OK) != 0) return; /* the shape is too small for a race */
    char *text = (char *)read_bytes(path, &length), *algorithm = strrchr(text, '\t');
    for (char *digit = algorithm + 1; *digit && *digit != '\n'; digit++) *digit = 'f';
    write_bytes(path, text, length);
    free(text);
}

/* What the cache says, whoever wrote it, and what the race measures decide speed alone. The long sums are those that
 * libraries like to split. */
static void no_race_and_no_cache_changes_the_bits_of_a_gemm(void **state) {
    (void)state;
    vendor_gemm_close(open_library(NULL)); /* skips */
    static const int64_t shapes[][3] = {{256, 256, 256}, {128, 128, 32768}, {64, 2048, 16384}, {2048, 2048, 2048}, {1000, 520, 4104}};
    enum { RACES = 4, FORMS = 6 }; /* bf16 and fp32: alone, added to C, with bias */
    for (size_t i = 0; i < FORMS * sizeof shapes / sizeof *shapes; i++) {
        const int64_t *shape = shapes[i / FORMS];
        bool f32 = i % 2, accumulate = i % FORMS / 2 == 1, bias = i % FORMS / 2 == 2;
        char *folder = temporary_folder(), *path = memory_format("%s/cache", folder);
        GemmCase p = new_gemm((Gemm){.transpose_b = true,
                                  .output = f32 ? GEMM_F32 : GEMM_BF16,
                                  .accumulate = accumulate,
                                  .bias = bias ? &some_bias : NULL,
                                  .m = shape[0],
                                  .n = shape[1],
                                  .k = shape[2]},
            0);
        void *first = NULL;
        for (int race = 0; race < RACES + 1; race++) {
            VendorGemm *vendor = open_library(path);
            if (bias) { /* biases begin as zeros, which tell nothing */
                device_fill(check_device(), p.bias.device, 0, p.bias.bytes);
                vendor_gemm_run(vendor, &p.gemm, false);
                device_upload(check_device(), p.bias.device, p.bias.host, p.bias.bytes);
            }
            device_upload(check_device(), p.c.device, p.c.host, p.c.bytes);
            if (!vendor_gemm_run(vendor, &p.gemm, false)) gpu_gemm(check_device(), &p.gemm);
            void *result = result_of(&p);
            if (!first) first = memory_allocate((size_t)p.c.bytes), memcpy(first, result, (size_t)p.c.bytes);
            if (memcmp(first, result, (size_t)p.c.bytes))
                fail_msg("m %ld n %ld k %ld %s%s%s: start %d gives other bits", (long)shape[0], (long)shape[1], (long)shape[2],
                    f32 ? "fp32" : "bf16", accumulate ? " +=" : "", bias ? " bias" : "", race);
            free(result);
            vendor_gemm_close(vendor);
            if (race == RACES - 1) poison(path);
            else remove(path);
        }
        free(first);
        free_gemm(&p);
        free(path);
        remove_folder(folder);
    }
}

/* Operands too large for a second set are tried as they are. Zeros tell no algorithms apart, so nothing is remembered of
 * them. */
static void a_gemm_of_zeros_decides_nothing(void **state) {
    (void)state;
    vendor_gemm_close(open_library(NULL)); /* skips */
    char *folder = temporary_folder(), *path = memory_format("%s/cache", folder);
    VendorGemm *vendor = open_library(path);
    GemmCase p = new_gemm((Gemm){.transpose_b = true, .output = GEMM_BF16, .m = 8192, .n = 264, .k = 16384}, 0);
    device_fill(check_device(), p.a.device, 0, p.a.bytes);
    vendor_gemm_run(vendor, &p.gemm, false);
    assert_true(access(path, F_OK) != 0);
    device_upload(check_device(), p.a.device, p.a.host, p.a.bytes);
    assert_true(vendor_gemm_run(vendor, &p.gemm, false));
    void *c = result_of(&p);
    expect_gemm(&p, c);
    assert_true(access(path, F_OK) == 0);
    free(c);
    vendor_gemm_close(vendor);
    free_gemm(&p);
    free(path);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regular_gemms_of_every_form_run_and_match),
        cmocka_unit_test(odd_gemms_match_or_are_declined),
        cmocka_unit_test(gemms_of_fp8_match_or_are_declined),
        cmocka_unit_test(empty_gemms_and_other_inputs_are_declined),
        cmocka_unit_test(a_gemm_gives_the_same_bits_every_time),
        cmocka_unit_test(a_new_shape_is_declined_while_recording),
        cmocka_unit_test(a_trial_takes_the_memory_that_plans_have_for_it),
        cmocka_unit_test(a_library_that_differs_from_our_kernel_is_not_used),
        cmocka_unit_test(algorithms_are_found_again_by_their_device_library_and_shape),
        cmocka_unit_test(lines_of_another_form_are_skipped),
        cmocka_unit_test(a_file_that_cannot_be_used_leaves_the_cache_in_memory),
        cmocka_unit_test(a_file_of_the_largest_size_does_not_grow),
        cmocka_unit_test(the_file_lies_in_the_cache_folder),
        cmocka_unit_test(a_remembered_algorithm_is_taken_without_measuring),
        cmocka_unit_test(no_race_and_no_cache_changes_the_bits_of_a_gemm),
        cmocka_unit_test(a_gemm_of_zeros_decides_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

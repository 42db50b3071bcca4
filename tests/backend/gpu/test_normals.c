/* Initial weights on the GPU of SMELT_TEST_DEVICE (skipped without it) against the host's, bit for bit; and the
 * copies large enough to go through pinned memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "base/rng.h"
#include "support/check.h"
#include "support/random_run.h"
#include "config/config.h"
#include "backend/backend.h"
#include "model/model.h"

enum { COUNT = 100003, BEYOND = 16 /* values that must stay as they are */ };
static const Normals WIDE = {.seed = 0x1234567890abcdef, .stream = 0xfedcba9876543210, .mean = 0.125, .deviation = 0.02};

/* What the GPU makes of a slice of COUNT values, followed by BEYOND untouched bytes of 0x55. */
static void *made(const Slice *slice, int unit, const Normals *normals) {
    int64_t bytes = COUNT * unit + BEYOND;
    Error error = {0};
    void *memory = device_allocate(check_device(), bytes, &error), *values = memory_allocate((size_t)bytes);
    if (!memory) fail_msg("%s", error.message);
    device_fill(check_device(), memory, 0x55, bytes);
    device_normals(check_device(), memory, unit, slice, normals);
    device_download(check_device(), values, memory, bytes);
    device_free(check_device(), memory, bytes);
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
    return values;
}

static void check_slice(Slice slice, int unit, const Normals *normals) {
    char *got = made(&slice, unit, normals);
    for (int64_t i = 0; i < COUNT; i++) {
        float wide =
            (float)(normals->mean + normals->deviation * rng_normal(normals->seed, normals->stream, (uint64_t)slice_at(&slice, i)));
        uint16_t rounded = bf16_from_float(wide);
        if (memcmp(got + i * unit, unit == 2 ? (void *)&rounded : &wide, (size_t)unit))
            fail_msg("value %lld of those from %lld on differs: the host's is %.9g", (long long)i, (long long)slice.first, (double)wide);
    }
    for (int64_t i = 0; i < BEYOND; i++) assert_int_equal(got[COUNT * unit + i], 0x55);
    free(got);
}

static void check_normals(int64_t first, int unit, const Normals *normals) {
    check_slice((Slice){.first = first, .count = COUNT}, unit, normals);
}

static void normals_have_the_hosts_bits_wherever_they_begin(void **state) {
    (void)state;
    check_gpu();
    for (int64_t first = 0; first < 4; first++) check_normals(first, 4, &WIDE);
    check_normals(((int64_t)1 << 34) + 1, 4, &WIDE);
}

static void normals_of_a_cut_matrix_have_the_hosts_bits(void **state) {
    (void)state;
    check_gpu();
    for (int64_t run = 1; run < 7; run++) check_slice((Slice){3 + run - 1, COUNT, run, run + 5, run - 1}, 4, &WIDE);
    check_slice((Slice){((int64_t)1 << 34) + 1, COUNT, 1024, 8192, 17}, 2, &WIDE);
}

static void normals_in_bf16_are_rounded_as_on_the_host(void **state) {
    (void)state;
    check_gpu();
    check_normals(1, 2, &WIDE);
}

static void constants_are_normals_without_deviation(void **state) {
    (void)state;
    check_gpu();
    check_normals(0, 4, &(Normals){.seed = 1, .mean = 1});
    check_normals(0, 4, &(Normals){.seed = 1});
}

/* All parameters of a model with a load-balancing bias, whose last element is no normal, in parts of 1,000 elements
 * as ranks might hold them. */
static void a_models_initial_weights_have_the_hosts_bits(void **state) {
    static const char *const settings[] = {"model.family=zaya", "model.experts=4", "model.router_width=16", "model.ffn=32", "model.heads=2",
        "model.kv_heads=1", "model.head_dim=16", "model.layers=2", "model.width=64", "model.vocabulary=100"};
    (void)state;
    check_gpu();
    enum { PART = 1000, SEED = 3 };
    Config config;
    OptionStrings strings = {0};
    Error error = {0};
    options_defaults(&config_table, &config, &strings);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!options_set(&config_table, &config, &strings, settings[i], &error)) fail_msg("%s", error.message);
    if (!config_check(&config, &error)) fail_msg("%s", error.message);
    Model model = model_build(&config.model, PRECISION_BF16, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    int64_t bytes = model.graph->parameter_bytes;
    char *memory = device_allocate(check_device(), bytes, &error), *expected = memory_allocate((size_t)bytes),
         *found = memory_allocate((size_t)bytes);
    if (!memory) fail_msg("%s", error.message);
    for (int i = 0; i < model.graph->parameter_count; i++) {
        const Parameter *p = &model.graph->parameters[i];
        for (int64_t first = 0; first < p->count; first += PART) {
            ParameterInterval interval = {i, first, p->count - first < PART ? p->count - first : PART};
            model_initialize_interval(
                model.graph, &config.model, SEED, &interval, check_device(), (float *)parameter_in(p, memory) + first);
        }
    }
    device_download(check_device(), found, memory, bytes);
    random_run_initialize(model.graph, &config.model, SEED, expected);
    assert_memory_equal(found, expected, bytes);
    device_free(check_device(), memory, bytes);
    free(expected);
    free(found);
    model_free(&model);
    options_free_strings(&strings);
}

static void check_copies(size_t bytes) {
    Error error = {0};
    char *memory = device_allocate(check_device(), (int64_t)bytes, &error), *from = memory_allocate(bytes),
         *to = memory_allocate(bytes + BEYOND);
    if (!memory) fail_msg("%s", error.message);
    for (size_t i = 0; i < bytes; i++) from[i] = (char)(i * 31 + i / 4096);
    memset(to + bytes, 0x55, BEYOND);
    device_upload(check_device(), memory, from, (int64_t)bytes);
    memset(from, 99, bytes); /* the upload took what was there when it was called */
    device_download(check_device(), to, memory, (int64_t)bytes);
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < bytes; i++)
        if (to[i] != (char)(i * 31 + i / 4096)) fail_msg("byte %zu of %zu is wrong", i, bytes);
    for (int64_t i = 0; i < BEYOND; i++) assert_int_equal(to[bytes + i], 0x55);
    device_free(check_device(), memory, (int64_t)bytes);
    free(from);
    free(to);
}

/* Pieces that fill slots and that do not, fewer than there are slots and more. */
static void large_copies_arrive_whole(void **state) {
    const size_t sizes[] = {(1 << 20) - 1, 1 << 20, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, 32 << 20, (32 << 20) + 1, (100 << 20) + 13};
    (void)state;
    check_gpu();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_copies(sizes[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normals_have_the_hosts_bits_wherever_they_begin),
        cmocka_unit_test(normals_of_a_cut_matrix_have_the_hosts_bits),
        cmocka_unit_test(normals_in_bf16_are_rounded_as_on_the_host),
        cmocka_unit_test(constants_are_normals_without_deviation),
        cmocka_unit_test(a_models_initial_weights_have_the_hosts_bits),
        cmocka_unit_test(large_copies_arrive_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

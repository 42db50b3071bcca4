/* Tests of sizing, cost and forecast: arithmetic against figures that were worked out by hand or measured, rules
 * against models that break them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "advise/cost.h"
#include "advise/forecast.h"
#include "advise/settings.h"
#include "advise/size.h"
#include "app/command.h"
#include "support/mentions.h"

/* A configuration that came from a file with settings on top; the strings go when the test ends. */
typedef struct Given {
    Config config;
    OptionStrings strings;
} Given;

static void give(Given *given, const char *path, int count, char **settings) {
    Error error = {0};
    *given = (Given){0};
    OptionStrings list = {.items = settings, .count = (size_t)count};
    if (!settings_read(&given->config, path, &list, &given->strings, &error)) fail_msg("%s", error.message);
}
#define GIVE(given, path, ...) give(given, path, sizeof (char *[]){__VA_ARGS__} / sizeof(char *), (char *[]){__VA_ARGS__})

static Hardware hardware(const char *name) {
    Hardware found;
    Error error = {0};
    if (!hardware_find(&found, name, &error)) fail_msg("%s", error.message);
    return found;
}

/* -- Hardware ------------------------------------------------------------------------------------------------------ */

static void every_listed_processor_is_in_the_table_with_rates(void **state) {
    (void)state;
    const char *names[] = {"mi250", "mi300x", "mi325x", "mi355x", "a100", "h100", "h200", "cpu"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Hardware found = hardware(names[i]);
        assert_non_null(strstr(hardware_names(), names[i]));
        assert_true(found.processors > 0 && found.memory > 0 && found.rates.gemm > 0 && found.rates.memory > 0);
        assert_true(found.rates.gemm < found.peak_bf16);
        assert_true(found.best_bf16 < found.peak_bf16);
        assert_true(!found.peak_fp8 || fabs(found.peak_fp8 / found.peak_bf16 - 2) < 1e-3);
    }
}

static void an_unknown_processor_is_refused_with_the_known_ones(void **state) {
    (void)state;
    Hardware found;
    Error error = {0};
    assert_false(hardware_find(&found, "mi100", &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "mi300x");
}

static void calibration_scales_rates_with_what_was_measured(void **state) {
    (void)state;
    Hardware table = hardware("h100"), machine = table;
    hardware_calibrate(&machine, 391e12, 1.49e12); /* half of the table's best GEMM and copy */
    assert_true(fabs(machine.rates.gemm / table.rates.gemm - 0.5) < 1e-9);
    assert_true(fabs(machine.rates.attention / table.rates.attention - 0.5) < 1e-9);
    assert_true(fabs(machine.rates.memory / table.rates.memory - 0.5) < 1e-9);
    hardware_calibrate(&table, 0, 0);
    assert_true(fabs(table.rates.gemm - 735e12) < 1);
}

/* -- GEMMs ------------------------------------------------------------------------------------------------------ */

static void whole_tiles_in_whole_waves_lose_nothing(void **state) {
    (void)state;
    Hardware mi300x = hardware("mi300x");
    GemmFit fit = gemm_fit(&(GemmShape){256 * 19, 256 * 16, 8192, 1, 8192}, &mi300x); /* 304 tiles of 256 x 256 */
    assert_int_equal(fit.tiles, 304);
    assert_int_equal(fit.waves, 1);
    assert_true(fit.tile == 1 && fit.wave == 1);
}

static void one_row_and_one_tile_too_many_cost_efficiency(void **state) {
    (void)state;
    Hardware mi300x = hardware("mi300x");
    double whole = gemm_fit(&(GemmShape){256 * 19, 256 * 16, 8192, 1, 8192}, &mi300x).efficiency;
    assert_true(gemm_fit(&(GemmShape){256 * 19 + 1, 256 * 16, 8192, 1, 8192}, &mi300x).efficiency < 0.95 * whole);
    assert_true(gemm_fit(&(GemmShape){256 * 20, 256 * 16, 8192, 1, 8192}, &mi300x).efficiency < 0.95 * whole);
}

static void long_sums_are_cut_to_fill_the_processor(void **state) {
    (void)state;
    Hardware mi300x = hardware("mi300x");
    GemmFit fit = gemm_fit(&(GemmShape){512, 512, 65536, 1, 512}, &mi300x);
    assert_true(fit.splits > 1);
    assert_true(fit.wave > 0.5); /* uncut, at most 64 tiles of 64 x 64 for 304 processors */
}

static void rows_that_are_no_multiples_of_16_bytes_cost_efficiency(void **state) {
    (void)state;
    Hardware h100 = hardware("h100");
    double whole = gemm_fit(&(GemmShape){8192, 8192, 8192, 1, 8192}, &h100).efficiency;
    assert_true(fabs(gemm_fit(&(GemmShape){8192, 8192, 8192, 1, 8193}, &h100).efficiency / whole - 0.5) < 1e-9);
}

/* -- Measured tables ----------------------------------------------------------------------------------------------- */

static bool read_text(Measured *measured, const char *text, Error *error) {
    char path[] = "/tmp/smelt-test-tune-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), (ssize_t)strlen(text));
    close(file);
    bool read = measured_read(measured, path, error);
    unlink(path);
    return read;
}

static void bench_results_give_gemms_and_the_copy_in_memory(void **state) {
    (void)state;
    Measured measured;
    Error error = {0};
    const char *text =
        "{\"rows\": [{\"m\": 1024, \"n\": 2048, \"k\": 512, \"type\": \"bf16\", \"tflops\": 100},"
        "{\"m\": 1024, \"n\": 2048, \"k\": 512, \"type\": \"bf16\", \"tflops\": 120}, {\"m\": 64, \"n\": 64, \"k\": 64, \"type\": "
        "\"fp32\", \"tflops\": 900},"
        "{\"kernel\": \"copy\", \"level\": \"memory\", \"gbps\": 2500}, {\"kernel\": \"copy\", \"level\": \"L1\", \"gbps\": 90000}]}";
    assert_true(read_text(&measured, text, &error));
    assert_int_equal(measured.count, 1);
    assert_true(measured.gemms[0].tflops == 120 && measured.best == 120e12 && measured.bandwidth == 2500e9);
    assert_ptr_equal(measured_find(&measured, 1100, 2048, 512), measured.gemms);
    assert_null(measured_find(&measured, 16384, 2048, 512));
    measured_free(&measured);
}

static void files_that_are_no_bench_results_are_refused(void **state) {
    (void)state;
    const char *texts[] = {"", "{", "[]", "{\"rows\": 5}", "[[1], 2, null]", "[{\"m\": -1, \"n\": 1, \"k\": 1, \"tflops\": 1}]",
        "[{\"m\": 1e300, \"n\": 1, \"k\": 1, \"tflops\": 1}]", "[{\"m\": 1, \"n\": 1, \"k\": 1, \"tflops\": \"fast\"}]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Measured measured;
        Error error = {0};
        assert_false(read_text(&measured, texts[i], &error));
        assert_int_equal(error.code, ERROR_DATA);
        measured_free(&measured);
    }
}

/* -- Sizing -------------------------------------------------------------------------------------------------------- */

static const Finding *fault_of(const Sizing *sizing, const char *dimension) {
    for (int i = 0; i < sizing->count; i++)
        if (sizing->findings[i].verdict == VERDICT_FAULT && !strcmp(sizing->findings[i].dimension, dimension)) return &sizing->findings[i];
    return NULL;
}

static void zaya1_passes_on_the_processor_that_it_was_made_for(void **state) {
    (void)state;
    Given given;
    Sizing sizing;
    GIVE(&given, "configs/zaya1-8b.yaml", "steps=1000000");
    size_check(&sizing, &(SizeQuestion){.config = &given.config, .hardware = hardware("mi300x"), .tensor = 1});
    assert_int_equal(sizing.faults, 0);
    options_free_strings(&given.strings);
}

static void the_tables_of_a_model_fit_80_columns(void **state) {
    (void)state;
    Given given;
    Sizing sizing;
    GIVE(&given, "configs/zaya1-8b.yaml", "steps=1000000");
    SizeQuestion question = {.config = &given.config, .hardware = hardware("mi300x"), .tensor = 1};
    size_check(&sizing, &question);
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    size_print(&sizing, &question, file);
    fclose(file);
    int rows = 0;
    for (char *line = strtok(strstr(text, "\noperation"), "\n"); line; line = strtok(NULL, "\n")) {
        bool sentence = strstr(line, "neighbors of");
        if (!sentence && strlen(line) > 80) fail_msg("%zu columns: %s", strlen(line), line);
        rows += strchr(line, '%') != NULL;
    }
    assert_true(rows > 16); /* of GEMMs and of experts */
    free(text);
    options_free_strings(&given.strings);
}

static void each_fault_of_a_spoiled_copy_is_reported_with_its_cost(void **state) {
    (void)state;
    static const char *const dimensions[] = {"model.vocabulary", "model.head_dim", "model.experts", "model.ffn"};
    static const int64_t values[] = {262145, 96, 15, 2000};
    Given given;
    Sizing sizing;
    GIVE(&given, "configs/zaya1-8b.yaml", "model.vocabulary=262145", "model.head_dim=96", "model.experts=15", "model.ffn=2000");
    size_check(&sizing, &(SizeQuestion){.config = &given.config, .hardware = hardware("mi300x"), .tensor = 1});
    assert_int_equal(sizing.faults, 4);
    for (int i = 0; i < 4; i++) {
        const Finding *fault = fault_of(&sizing, dimensions[i]);
        assert_non_null(fault);
        assert_int_equal(fault->value, values[i]);
        assert_true(fault->cost > 0 && fault->cost < 0.5);
    }
    assert_true(fabs(fault_of(&sizing, "model.experts")->cost - 1.0 / 16) < 1e-9); /* one of 16 places stays empty */
    options_free_strings(&given.strings);
}

static void what_costs_nothing_is_no_fault(void **state) {
    (void)state;
    Given given;
    Sizing sizing;
    GIVE(&given, "configs/llama-tiny.yaml", "steps=1000"); /* heads of 32: attention has tiles of 32 columns */
    size_check(&sizing, &(SizeQuestion){.config = &given.config, .hardware = hardware("h100"), .tensor = 1});
    assert_null(fault_of(&sizing, "model.head_dim"));
    options_free_strings(&given.strings);
    GIVE(&given, "configs/llama-tiny.yaml", "model.head_dim=24");
    size_check(&sizing, &(SizeQuestion){.config = &given.config, .hardware = hardware("h100"), .tensor = 1});
    assert_non_null(strstr(fault_of(&sizing, "model.head_dim")->text, "attention computes 32 columns for 24"));
    options_free_strings(&given.strings);
    GIVE(&given, "configs/zaya1-tiny.yaml", "model.experts=15"); /* a CPU has no node of 8 */
    size_check(&sizing, &(SizeQuestion){.config = &given.config, .hardware = hardware("cpu"), .tensor = 1});
    assert_null(fault_of(&sizing, "model.experts"));
    for (int i = 0; i < sizing.count; i++) assert_null(strstr(sizing.findings[i].text, "GPU"));
    options_free_strings(&given.strings);
}

static void without_a_name_the_processor_is_the_one_of_this_machine(void **state) {
    (void)state;
    Hardware found, expected;
    Measured measured;
    Error error = {0};
    Device *device = device_open(DEVICE_AUTO, 0, &error);
    assert_true(hardware_of_device(&expected, device));
    device_close(device);
    if (!settings_hardware("", "", &found, &measured, &error)) fail_msg("%s", error.message);
    assert_string_equal(found.name, expected.name);
}

static void matrices_must_divide_over_the_gpus_that_share_them(void **state) {
    (void)state;
    Given given;
    Sizing sizing;
    GIVE(&given, "configs/llama3.1-8b.yaml", "steps=1000000");
    SizeQuestion question = {.config = &given.config, .hardware = hardware("mi300x"), .tensor = 8};
    size_check(&sizing, &question);
    assert_int_equal(sizing.faults, 0);
    question.tensor = 16;
    size_check(&sizing, &question);
    assert_non_null(fault_of(&sizing, "model.kv_heads")); /* it has 8 */
    assert_null(fault_of(&sizing, "model.heads"));
    assert_string_equal(fault_of(&sizing, "model.kv_heads")->text, "does not divide over tensor=16");
    options_free_strings(&given.strings);
}

/* Heads that are proposed are of as many columns as attention computes. */
static void the_cure_of_a_fault_is_none(void **state) {
    (void)state;
    static const char *const processors[] = {"cpu", "h100", "mi300x"};
    for (int i = 0; i < 3; i++)
        for (int width = 8; width <= 256; width += 8) {
            Given given;
            Sizing sizing;
            long long wide, narrow, cure;
            char text[32];
            snprintf(text, sizeof text, "model.head_dim=%d", width);
            GIVE(&given, "configs/llama-tiny.yaml", text);
            SizeQuestion question = {.config = &given.config, .hardware = hardware(processors[i]), .tensor = 1};
            size_check(&sizing, &question);
            const Finding *fault = fault_of(&sizing, "model.head_dim");
            const char *cured = fault ? strstr(fault->text, "heads of ") : NULL;
            if (fault && (sscanf(strstr(fault->text, "computes"), "computes %lld columns for %lld", &wide, &narrow) != 2 ||
                             sscanf(cured, "heads of %lld", &cure) != 1 || narrow != width || cure < wide))
                fail_msg("%s: %s", processors[i], fault->text);
            options_free_strings(&given.strings);
        }
}

static void estimates_from_three_layers_are_those_of_the_whole_model(void **state) {
    (void)state;
    Given given;
    GIVE(&given, "configs/zaya1-8b.yaml", "batch.sequences=1");
    SizeQuestion question = {.config = &given.config, .hardware = hardware("mi300x"), .tensor = 1};
    SizeEstimate estimate = size_estimate(&question, &given.config.model);
    assert_true(estimate.parameters == 8840488784.0);
    Model model = model_build(&given.config.model, PRECISION_BF16, MODEL_TRAIN, 1, given.config.data.length, given.config.recompute);
    double seconds = work_times(model.graph, &question.hardware, NULL).total / (double)given.config.data.length;
    assert_true(fabs(estimate.seconds / seconds - 1) < 1e-9);
    model_free(&model);
    options_free_strings(&given.strings);
}

static void neighbors_have_as_many_parameters_and_no_faults(void **state) {
    (void)state;
    Given given;
    Neighbor neighbors[SIZE_NEIGHBORS];
    GIVE(&given, "configs/zaya1-8b.yaml", "model.vocabulary=262145", "model.head_dim=96", "model.experts=15", "model.ffn=2000");
    SizeQuestion question = {.config = &given.config, .hardware = hardware("mi300x"), .tensor = 1};
    double parameters = size_estimate(&question, &given.config.model).parameters;
    int count = size_neighbors(&question, neighbors);
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        Config config = given.config;
        Sizing sizing;
        config.model = neighbors[i].model;
        size_check(&sizing, &(SizeQuestion){.config = &config, .hardware = question.hardware, .tensor = 1});
        assert_int_equal(sizing.faults, 0);
        assert_true(fabs(neighbors[i].estimate.parameters / parameters - 1) <= 0.01);
        assert_true(i == 0 || i + 1 == count ||
                    neighbors[i].estimate.seconds >= 0.999 * neighbors[i - 1].estimate.seconds); /* the last may be the simplest */
    }
    options_free_strings(&given.strings);
}

static void many_narrow_experts_decode_quicker_and_fill_tiles_less(void **state) {
    (void)state;
    Given given;
    ExpertChoice choices[SIZE_EXPERT_CHOICES];
    GIVE(&given, "configs/zaya1-8b.yaml", "steps=1000000");
    SizeQuestion question = {.config = &given.config, .hardware = hardware("mi300x"), .tensor = 1};
    int count = size_experts(&question, choices), narrow = 0;
    while (narrow < count && choices[narrow].experts != 64) narrow++;
    assert_true(narrow < count && choices[narrow].chosen == 1);
    assert_int_equal(choices[0].experts, 16);
    assert_true(choices[narrow].efficiency < choices[0].efficiency);
    assert_true(choices[narrow].decode[0] < choices[0].decode[0] && choices[narrow].decode[1] < choices[0].decode[1]);
    double all = 2 * 8.84e9 / question.hardware.rates.memory; /* with 32 sequences at most the whole model is read */
    assert_true(choices[0].decode[1] < all && choices[0].decode[1] > 0.8 * all);
    options_free_strings(&given.strings);
}

/* -- Cost ---------------------------------------------------------------------------------------------------------- */

static void the_published_examples_come_out_to_three_digits(void **state) {
    (void)state;
    Offer h100 = {.price = 5.01, .rate = 2750, .gpus = 8, .per_node = 8}, mi300x = {.price = 2.05, .rate = 2500, .gpus = 64, .per_node = 8};
    assert_int_equal(lround(cost_of(&h100, 1e12).dollars / 1000), 506);
    assert_int_equal(lround(cost_of(&mi300x, 1e12).dollars / 1000), 228);
    assert_true(fabs(cost_of(&mi300x, 1e12).hours - 1e12 / (2500 * 64) / 3600) < 1e-6);
}

static void without_interruptions_only_checkpoints_that_were_asked_for_cost(void **state) {
    (void)state;
    Offer offer = {.price = 1, .rate = 1000, .gpus = 8, .per_node = 8, .checkpoint = 10, .restart = 300};
    CostEstimate cost = cost_of(&offer, 1e9);
    assert_true(cost.real_dollars == cost.dollars && isinf(cost.interval) && cost.interruptions == 0);
    offer.interval = 1000;
    assert_true(fabs(cost_of(&offer, 1e9).real_dollars / cost.dollars - 1.01) < 1e-9);
}

static void the_best_interval_is_near_youngs_and_costs_least(void **state) {
    (void)state;
    Offer offer = {.price = 1, .rate = 1000, .gpus = 8, .per_node = 8, .interruptions = 4, .checkpoint = 60, .restart = 300};
    CostEstimate best = cost_of(&offer, 1e10);
    assert_true(fabs(best.young - sqrt(2 * 60 * 21600)) < 1e-6);
    assert_true(fabs(best.interval / best.young - 1) < 0.05);
    for (double factor = 0.5; factor <= 2; factor += 0.25) {
        offer.interval = best.interval * factor;
        assert_true(cost_of(&offer, 1e10).real_dollars >= best.real_dollars * (1 - 1e-6)); /* Daly's formula is the minimum to this order */
    }
}

static void a_warning_that_leaves_time_for_a_checkpoint_saves_work(void **state) {
    (void)state;
    Offer offer = {.price = 1, .rate = 1000, .gpus = 64, .per_node = 8, .interruptions = 2, .checkpoint = 20, .restart = 300};
    double lost = cost_of(&offer, 1e11).real_dollars, base = cost_of(&offer, 1e11).dollars;
    offer.warning = 30;
    double warned = cost_of(&offer, 1e11).real_dollars;
    assert_true(base < warned && warned < lost);
    offer.warning = 10; /* too short */
    assert_true(cost_of(&offer, 1e11).real_dollars == lost);
}

/* -- Forecasts ----------------------------------------------------------------------------------------------------- */

static Forecast forecast(const Config *config, const char *gpu, int64_t gpus, int zero) {
    Cluster cluster = {.hardware = hardware(gpu), .gpus = gpus, .per_node = 8};
    ForecastLayout layout = {.ranks = config->layout, .recompute = config->recompute, .sequences = config->batch.sequences};
    Forecast made;
    Error error = {0};
    layout.ranks.zero = zero;
    if (!forecast_layout(&made, config, &cluster, &layout, &error)) fail_msg("%s", error.message);
    return made;
}

/* Shapes of bench/gpu.json, and one of them on a processor that no rate was fitted to; speed and memory as measured
 * with 2026-11-21's smelt (docs/forecast.md). */
static void forecasts_agree_with_what_was_measured_on_gpus(void **state) {
    (void)state;
    struct {
        char *settings[16];
        double tokens_per_second, gib;
        const char *gpu;
        Precision precision;
    } rows[] = {
        {{"model.family=llama", "model.layers=16", "model.width=2048", "model.heads=32", "model.kv_heads=8", "model.head_dim=64",
             "model.ffn=8192", "model.vocabulary=128256", "data.length=4096", "batch.sequences=4", "batch.tokens=16384"},
            63759, 43.1, "h100"},
        {{"model.family=llama", "model.layers=12", "model.width=768", "model.heads=12", "model.kv_heads=12", "model.head_dim=64",
             "model.ffn=2048", "model.vocabulary=50304", "data.length=1024", "batch.sequences=64", "batch.tokens=65536"},
            555995, 24.2, "h100"},
        {{"model.family=llama", "model.layers=8", "model.width=4096", "model.heads=32", "model.kv_heads=8", "model.head_dim=128",
             "model.ffn=14336", "model.vocabulary=128256", "data.length=8192", "batch.sequences=2", "batch.tokens=16384"},
            37943, 61.1, "h100"},
        {{"model.family=llama", "model.layers=8", "model.width=4096", "model.heads=32", "model.kv_heads=8", "model.head_dim=128",
             "model.ffn=14336", "model.vocabulary=128256", "data.length=8192", "batch.sequences=2", "batch.tokens=16384"},
            38684, 39.0, "h100", PRECISION_PURE_BF16},
        {{"model.family=zaya", "model.layers=8", "model.width=2048", "model.heads=8", "model.kv_heads=2", "model.head_dim=128",
             "model.ffn=2048", "model.vocabulary=262272", "data.length=4096", "batch.sequences=4", "batch.tokens=16384", "model.experts=16",
             "model.router_width=256", "model.rope_fraction=0.5"},
            103524, 49.7, "h100"},
        {{"model.family=zaya", "model.layers=8", "model.width=2048", "model.heads=8", "model.kv_heads=2", "model.head_dim=128",
             "model.ffn=2048", "model.vocabulary=262272", "data.length=4096", "batch.sequences=4", "batch.tokens=16384", "model.experts=16",
             "model.router_width=256", "model.rope_fraction=0.5"},
            115552, 27.3, "h100", PRECISION_PURE_BF16},
        {{"model.family=llama", "model.layers=16", "model.width=2048", "model.heads=32", "model.kv_heads=8", "model.head_dim=64",
             "model.ffn=8192", "model.vocabulary=128256", "data.length=4096", "batch.sequences=4", "batch.tokens=16384"},
            65183, 43.1, "h200"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Given given;
        int count = 0;
        while (count < 16 && rows[i].settings[count]) count++;
        give(&given, "configs/bench-llama.yaml", count, rows[i].settings);
        given.config.precision = rows[i].precision;
        Forecast made = forecast(&given.config, rows[i].gpu, 1, 0);
        print_message("%s %s: step %+.1f%%, memory %+.1f%%\n", rows[i].gpu, rows[i].settings[0],
            100 * (rows[i].tokens_per_second / made.tokens_per_second - 1),
            100 * ((double)made.memory.total / 1073741824 / rows[i].gib - 1));
        assert_true(fabs(made.tokens_per_second / rows[i].tokens_per_second - 1) < 0.15); /* the aims of the forecast */
        assert_true(fabs((double)made.memory.total / 1073741824 / rows[i].gib - 1) < 0.05);
        options_free_strings(&given.strings);
    }
}

/* A whole Llama-3.1-8B on one H200 with its optimizer state in host memory (docs/finetune.md). The first row is 21% too fast if
 * the copies also hide behind the forward pass, the second one 13% if they take no time. */
static void copies_of_offload_agree_with_an_h200(void **state) {
    (void)state;
    static const struct {
        const char *precision, *tokens, *in_backward;
        double seconds;
    } rows[] = {
        {"precision=pure_bf16", "batch.tokens=8192", "optimizer.in_backward=true", 1.117},
        {"precision=pure_bf16", "batch.tokens=65536", "optimizer.in_backward=false", 7.876},
        {"precision=bf16", "batch.tokens=8192", "optimizer.in_backward=true", 2.588},
        {"precision=bf16", "batch.tokens=65536", "optimizer.in_backward=false", 9.327},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Given given;
        GIVE(&given, "configs/llama3.1-8b.yaml", "recompute=block", "optimizer.clip=0", "offload=optimizer", (char *)rows[i].precision,
            (char *)rows[i].tokens, (char *)rows[i].in_backward);
        Forecast made = forecast(&given.config, "h200", 1, 0);
        print_message(
            "%s %s offload=optimizer: step %+.1f%%\n", rows[i].precision, rows[i].tokens, 100 * (made.step / rows[i].seconds - 1));
        assert_true(fabs(made.step / rows[i].seconds - 1) < 0.1);
        assert_true(made.memory.total < 53.0 * 1073741824 && made.memory.hosted > 29.0 * 1073741824);
        options_free_strings(&given.strings);
    }
}

/* AMD's processors have rates of the cycle model, none above the best that is known. Prints them beside public figures of other
 * programs (docs/forecast.md), of which the quickest bounds what a model within its error may say. */
static void forecasts_for_amd_stand_beside_public_figures(void **state) {
    (void)state;
    static const struct {
        const char *gpu, *file, *precision, *of;
        int64_t gpus;
        double tokens_per_second, most; /* most: of the ratio to it */
    } rows[] = {
        {"mi300x", "configs/llama3.1-8b.yaml", "fp8.recipe=none", "torchtitan, FSDP2, compiled", 8, 5376},
        {"mi300x", "configs/llama3.1-8b.yaml", "fp8.recipe=tensor", "torchtitan, FSDP2, torchao", 8, 6166},
        {"mi325x", "configs/llama3.1-8b.yaml", "fp8.recipe=tensor", "Primus, 1 node", 8, 16224, 1.3},
        {"mi300x", "configs/llama3.2-1b.yaml", "fp8.recipe=none", NULL, 1, 0},
        {"mi355x", "configs/llama3.1-8b.yaml", "fp8.recipe=none", NULL, 1, 0},
        {"mi300x", "configs/zaya1-8b.yaml", "fp8.recipe=none", NULL, 8, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Given given;
        GIVE(&given, rows[i].file, "precision=pure_bf16", "data.length=8192", "batch.sequences=1", "batch.tokens=16Mi",
            (char *)rows[i].precision);
        Hardware found = hardware(rows[i].gpu);
        assert_int_equal(found.source, RATES_MODELED);
        assert_true(!found.best_bf16 || found.rates.gemm <= found.best_bf16);
        Forecast made = forecast(&given.config, rows[i].gpu, rows[i].gpus, rows[i].gpus > 1 ? 1 : 0);
        double ratio = made.tokens_per_second / rows[i].tokens_per_second;
        print_message("%lld x %s, %s %s: %.0f tokens/s modeled", (long long)rows[i].gpus, rows[i].gpu, rows[i].file, rows[i].precision,
            made.tokens_per_second);
        if (rows[i].of) print_message(", %.2f of %s's %.0f", ratio, rows[i].of, rows[i].tokens_per_second);
        print_message("\n");
        assert_true(!rows[i].most || (ratio > 1 / rows[i].most && ratio < rows[i].most));
        options_free_strings(&given.strings);
    }
}

static void zero_shares_out_what_it_says(void **state) {
    (void)state;
    Given given;
    GIVE(&given, "configs/llama3.2-1b.yaml", "batch.tokens=4Mi");
    Forecast whole = forecast(&given.config, "mi300x", 8, 0), one = forecast(&given.config, "mi300x", 8, 1),
             two = forecast(&given.config, "mi300x", 8, 2), three = forecast(&given.config, "mi300x", 8, 3);
    const double shared = 1.1 / 8; /* padding, and vectors that every rank keeps */
    assert_true((double)one.memory.master < shared * (double)whole.memory.master &&
                (double)one.memory.optimizer < shared * (double)whole.memory.optimizer);
    assert_true(one.memory.gradients >= whole.memory.gradients && (double)two.memory.gradients < 0.7 * (double)whole.memory.gradients);
    assert_true((double)three.memory.weights < 0.7 * (double)whole.memory.weights);
    assert_true(whole.memory.total > one.memory.total && one.memory.total > two.memory.total && two.memory.total > three.memory.total);
    assert_true(whole.microbatches == 64 && whole.tokens == 4194304);
    options_free_strings(&given.strings);
}

static void one_gpu_communicates_nothing_and_many_do(void **state) {
    (void)state;
    Given given;
    GIVE(&given, "configs/llama3.2-1b.yaml", "batch.tokens=4Mi");
    assert_true(forecast(&given.config, "h100", 1, 0).communication == 0);
    Forecast many = forecast(&given.config, "h100", 64, 1);
    assert_true(many.communication > 0 && many.exposed > 0 && many.exposed <= many.communication);
    options_free_strings(&given.strings);
}

/* Writes a trace with 8 rows a layer. `first` of them choose an expert of the first half. */
static void write_trace(const char *path, const ModelConfig *model, int64_t layers, int first) {
    enum { ROWS = 8 };
    Error error = {0};
    RoutingRecorder recorder = {.count = (size_t)layers};
    recorder.layers = memory_allocate((size_t)layers * sizeof *recorder.layers);
    for (int64_t i = 0; i < layers; i++) {
        int32_t *choices = memory_allocate(ROWS * sizeof *choices);
        for (int r = 0; r < ROWS; r++) choices[r] = (int32_t)(r < first ? r % 2 : model->experts / 2 + r % 2);
        recorder.layers[i] = (StoredTensor){
            .name = memory_format("layers.%d.experts", (int)i), .type = STORED_I32, .rank = 2, .shape = {ROWS, 1}, .data = choices};
    }
    if (!routing_write(&recorder, path, model, &error)) fail_msg("%s", error.message);
}

static Forecast forecast_routed(const Config *config, const RoutedExperts *routed) {
    Cluster cluster = {.hardware = hardware("h200"), .gpus = 2, .per_node = 8, .routed = routed};
    ForecastLayout layout = {config->layout, config->recompute, config->batch.sequences};
    Forecast made;
    Error error = {0};
    if (!forecast_layout(&made, config, &cluster, &layout, &error)) fail_msg("%s", error.message);
    return made;
}

static void expect_load(const Config *config, const char *path, double load) {
    RoutedExperts routed = {0};
    Error error = {0};
    if (!routed_read(&routed, path, &config->model, &error)) fail_msg("%s", error.message);
    Forecast even = forecast_routed(config, NULL), uneven = forecast_routed(config, &routed);
    for (int class = 0; class < WORK_CLASSES; class++) {
        bool of_experts = class == WORK_EXPERTS || class == WORK_EXPERT_WEIGHTS;
        double expected = (of_experts ? load : 1) * even.work.seconds[class];
        assert_true(fabs(uneven.work.seconds[class] - expected) <= 1e-9 * expected);
    }
    if (load > 1) assert_true(uneven.step > even.step && uneven.communication > even.communication);
    else assert_true(fabs(uneven.step / even.step - 1) < 1e-9);
    routed_free(&routed);
}

/* A rank that has 6 of 8 rows takes 1.5 times as long as with 4. With layout.ep=1, a rank has all rows. */
static void experts_take_as_long_as_on_the_busiest_rank(void **state) {
    (void)state;
    char folder[] = "/tmp/smelt-trace-XXXXXX", path[64];
    Error error = {0};
    Given given;
    RoutedExperts routed = {0};
    GIVE(&given, "configs/zaya1-8b.yaml", "layout.ep=2", "model.layers=3", "batch.sequences=2", "recompute=norm");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/t.safetensors", folder);
    write_trace(path, &given.config.model, 3, 4);
    expect_load(&given.config, path, 1);
    write_trace(path, &given.config.model, 3, 6);
    expect_load(&given.config, path, 1.5);
    given.config.layout.ep = 1;
    expect_load(&given.config, path, 1);
    write_trace(path, &given.config.model, 2, 6);
    assert_false(routed_read(&routed, path, &given.config.model, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "layer");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    options_free_strings(&given.strings);
}

/* Six of eight choices are of no expert, and the rest of the first one: a rank has half of an even share. */
static void rows_without_an_expert_take_no_time(void **state) {
    (void)state;
    int64_t choices[] = {2, 0, 0, 0, 6};
    assert_float_equal(routed_load(&(RoutedExperts){1, 4, choices}, 0, 2), 0.5, 1e-9);
}

/* The seconds of an all-gather over all GPUs, in which each receives `bytes`. An all-reduce takes twice as long. */
static double all_gather_seconds(const Cluster *cluster, double bytes) {
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_DP] = (int)cluster->gpus;
    Traffic traffic = cluster_gather(&mesh, MESH(AXIS_DP), bytes);
    return cluster_seconds(cluster, &mesh, &traffic);
}

/* 2 nodes of 8 MI300X with 400 Gb/s cards: AMD's acceptance figures are 330 to 350 GB/s bus bandwidth at 8 and 16
 * GiB. */
static void collectives_over_two_nodes_match_published_bandwidth(void **state) {
    (void)state;
    Cluster cluster = {.hardware = hardware("mi300x"), .gpus = 16, .per_node = 8};
    double bytes = 16.0 * (1LL << 30), bus = 2 * bytes * 15 / 16 / (2 * all_gather_seconds(&cluster, bytes));
    assert_true(fabs(bus / 340e9 - 1) < 0.15);
    cluster.gpus = 8;
    bus = 2 * bytes * 7 / 8 / (2 * all_gather_seconds(&cluster, bytes));
    assert_true(fabs(bus / 315e9 - 1) < 0.1);
}

static void few_gpus_with_links_one_to_one_have_part_of_the_bandwidth(void **state) {
    (void)state;
    Cluster two = {.hardware = hardware("mi300x"), .gpus = 2, .per_node = 8},
            eight = {.hardware = hardware("mi300x"), .gpus = 8, .per_node = 8};
    assert_true(fabs(cluster_node_bandwidth(&two, 2) * 7 - cluster_node_bandwidth(&eight, 8)) < 1);
    two.hardware = eight.hardware = hardware("h100");
    assert_true(cluster_node_bandwidth(&two, 2) == cluster_node_bandwidth(&eight, 8));
}

static void the_best_layout_fits_where_the_plain_one_does_not(void **state) {
    (void)state;
    Given given;
    Cluster cluster = {.hardware = hardware("h100"), .gpus = 8, .per_node = 8};
    ForecastSearch search;
    Error error = {0};
    GIVE(&given, "configs/llama3.1-8b.yaml", "batch.tokens=4Mi");
    assert_false(forecast(&given.config, "h100", 8, 0).fits);
    if (!forecast_search(&search, &given.config, &cluster, &(ForecastFreedom){true, true, true}, &error)) fail_msg("%s", error.message);
    const Forecast *best = search.found;
    assert_true(best->fits && (double)best->memory.total <= cluster.hardware.memory && best->layout.ranks.zero > 0);
    for (int i = 0; i < search.count; i++) {
        Forecast again;
        assert_true(forecast_layout(&again, &given.config, &cluster, &search.found[i].layout, &error));
        assert_true(again.step == search.found[i].step && again.tokens_per_second <= best->tokens_per_second);
    }
    options_free_strings(&given.strings);
}

static void a_forecast_is_labeled_as_modeled_with_assumptions(void **state) {
    (void)state;
    Given given;
    GIVE(&given, "configs/llama3.2-1b.yaml", "batch.tokens=4Mi");
    Cluster cluster = {.hardware = hardware("mi355x"), .gpus = 16, .per_node = 8};
    Forecast made = forecast(&given.config, "mi355x", 16, 1);
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    forecast_print(&made, &given.config, &cluster, file);
    fclose(file);
    assert_int_equal(strncmp(text, "modeled, not measured", 21), 0);
    assert_non_null(strstr(text, "assumptions"));
    assert_non_null(strstr(text, "no GEMM was measured on this processor"));
    free(text);
    options_free_strings(&given.strings);
}

/* Of a step, layers' GEMMs become quicker by the gain that the table has of the processor, head and attention stay, and casts
 * are memory-bound; FLOP/s are of the peak in fp8. */
static void a_recipe_makes_gemms_as_much_quicker_as_the_processor_gains(void **state) {
    (void)state;
    Given plain, fp8;
    GIVE(&plain, "configs/llama3.1-8b.yaml", "recompute=block");
    GIVE(&fp8, "configs/llama3.1-8b.yaml", "recompute=block", "fp8.recipe=row");
    static const struct {
        const char *gpu;
        double gain;
    } rows[] = {{"h100", 1.73}, {"mi300x", 1.73}, {"mi355x", 1.73}, {"cpu", 0.5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Forecast before = forecast(&plain.config, rows[i].gpu, 8, 1), after = forecast(&fp8.config, rows[i].gpu, 8, 1);
        const double *a = before.work.seconds, *b = after.work.seconds;
        assert_true(fabs(a[WORK_GEMM] / b[WORK_GEMM] / rows[i].gain - 1) < 0.02); /* each node has a launch besides */
        assert_true(a[WORK_HEAD] == b[WORK_HEAD] && a[WORK_ATTENTION] == b[WORK_ATTENTION] && a[WORK_MEMORY] < b[WORK_MEMORY]);
        assert_true(after.memory.activations != before.memory.activations);
    }
    Cluster cluster = {.hardware = hardware("mi355x"), .gpus = 8, .per_node = 8};
    Forecast made = forecast(&fp8.config, "mi355x", 8, 1);
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    forecast_print(&made, &fp8.config, &cluster, file);
    fclose(file);
    assert_non_null(strstr(text, "% of peak in fp8"));
    assert_non_null(
        strstr(text, "GEMMs in fp8 are 1.73 times as fast as in bf16; casts run at the memory rate; this is the gain of an H100"));
    free(text);
    Hardware without = hardware("mi250");
    Error error = {0};
    assert_false(hardware_check_fp8(&without, &fp8.config, &error));
    assert_mentions(error.message, "MI250 GEMMs");
    fp8.config.model.fp8.recipe = FP8_MXFP8;
    without = hardware("h200");
    assert_false(hardware_check_fp8(&without, &fp8.config, &error));
    assert_mentions(error.message, "fp8.recipe=mxfp8 NVIDIA H200 SXM GEMMs 32");
    assert_true(hardware_check_fp8(&without, &plain.config, &error) && hardware_check_fp8(&cluster.hardware, &fp8.config, &error));
    options_free_strings(&plain.strings);
    options_free_strings(&fp8.strings);
}

static void a_forecast_for_a_cpu_does_not_call_it_a_gpu(void **state) {
    (void)state;
    Given given;
    GIVE(&given, "configs/llama-tiny.yaml");
    Cluster cluster = {.hardware = hardware("cpu"), .gpus = 1, .per_node = 1};
    Forecast made = forecast(&given.config, "cpu", 1, 0);
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    forecast_print(&made, &given.config, &cluster, file);
    fclose(file);
    assert_non_null(strstr(text, "tokens/s of a CPU"));
    assert_non_null(strstr(text, "TFLOP/s of a CPU"));
    assert_null(strstr(text, "of a GPU"));
    free(text);
    options_free_strings(&given.strings);
}

/* -- Settings ------------------------------------------------------------------------------------------------------ */

static void keys_are_the_commands_own_first_and_the_configurations_else(void **state) {
    (void)state;
    typedef struct Own { int64_t seed; } Own;
    const Option rows[] = {{"seed", OPTION_INT, offsetof(Own, seed), "7", 0, 100, NULL, "", ""}};
    const OptionTable table = {rows, 1};
    const Command command = {.name = "own", .words = "CONFIG", .table = &table, .takes_config = true};
    Own own;
    Config config;
    Invocation good = {.options = &own}, bad = {.options = &own};
    Error error = {0};
    assert_true(command_read(
        &command, 4, (char *[]){"configs/llama-tiny.yaml", "seed=9", "model.layers=3", "--optimizer.beta1=0.5"}, &good, &error));
    assert_true(settings_read(&config, good.words[0], &good.settings, &good.strings, &error));
    assert_true(own.seed == 9 && config.seed == 1 && config.model.layers == 3 && config.optimizer.beta1 == 0.5);
    assert_false(command_read(&command, 2, (char *[]){"configs/llama-tiny.yaml", "sead=9"}, &bad, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    options_free_strings(&good.strings);
    options_free_strings(&good.settings);
    options_free_strings(&bad.strings);
    free(good.words);
    free(bad.words);
}

static void a_model_folder_is_judged_for_sequences_of_its_context(void **state) {
    (void)state;
    Given given;
    GIVE(&given, "tests/golden/llama", "precision=bf16"); /* max_position_embeddings: 64 */
    assert_true(given.config.data.length == 64 && given.config.batch.sequences == 1 && given.config.batch.tokens == 64 * 64);
    options_free_strings(&given.strings);
    GIVE(&given, "tests/golden/llama", "data.length=16", "batch.sequences=4");
    assert_true(given.config.data.length == 16 && given.config.batch.sequences == 4 && given.config.batch.tokens == 64 * 64);
    options_free_strings(&given.strings);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_listed_processor_is_in_the_table_with_rates),
        cmocka_unit_test(the_cure_of_a_fault_is_none),
        cmocka_unit_test(a_model_folder_is_judged_for_sequences_of_its_context),
        cmocka_unit_test(an_unknown_processor_is_refused_with_the_known_ones),
        cmocka_unit_test(calibration_scales_rates_with_what_was_measured),
        cmocka_unit_test(whole_tiles_in_whole_waves_lose_nothing),
        cmocka_unit_test(one_row_and_one_tile_too_many_cost_efficiency),
        cmocka_unit_test(long_sums_are_cut_to_fill_the_processor),
        cmocka_unit_test(rows_that_are_no_multiples_of_16_bytes_cost_efficiency),
        cmocka_unit_test(bench_results_give_gemms_and_the_copy_in_memory),
        cmocka_unit_test(files_that_are_no_bench_results_are_refused),
        cmocka_unit_test(zaya1_passes_on_the_processor_that_it_was_made_for),
        cmocka_unit_test(the_tables_of_a_model_fit_80_columns),
        cmocka_unit_test(each_fault_of_a_spoiled_copy_is_reported_with_its_cost),
        cmocka_unit_test(what_costs_nothing_is_no_fault),
        cmocka_unit_test(without_a_name_the_processor_is_the_one_of_this_machine),
        cmocka_unit_test(matrices_must_divide_over_the_gpus_that_share_them),
        cmocka_unit_test(estimates_from_three_layers_are_those_of_the_whole_model),
        cmocka_unit_test(neighbors_have_as_many_parameters_and_no_faults),
        cmocka_unit_test(many_narrow_experts_decode_quicker_and_fill_tiles_less),
        cmocka_unit_test(the_published_examples_come_out_to_three_digits),
        cmocka_unit_test(without_interruptions_only_checkpoints_that_were_asked_for_cost),
        cmocka_unit_test(the_best_interval_is_near_youngs_and_costs_least),
        cmocka_unit_test(a_warning_that_leaves_time_for_a_checkpoint_saves_work),
        cmocka_unit_test(forecasts_agree_with_what_was_measured_on_gpus),
        cmocka_unit_test(copies_of_offload_agree_with_an_h200),
        cmocka_unit_test(forecasts_for_amd_stand_beside_public_figures),
        cmocka_unit_test(zero_shares_out_what_it_says),
        cmocka_unit_test(one_gpu_communicates_nothing_and_many_do),
        cmocka_unit_test(experts_take_as_long_as_on_the_busiest_rank),
        cmocka_unit_test(rows_without_an_expert_take_no_time),
        cmocka_unit_test(collectives_over_two_nodes_match_published_bandwidth),
        cmocka_unit_test(few_gpus_with_links_one_to_one_have_part_of_the_bandwidth),
        cmocka_unit_test(the_best_layout_fits_where_the_plain_one_does_not),
        cmocka_unit_test(a_forecast_is_labeled_as_modeled_with_assumptions),
        cmocka_unit_test(a_recipe_makes_gemms_as_much_quicker_as_the_processor_gains),
        cmocka_unit_test(a_forecast_for_a_cpu_does_not_call_it_a_gpu),
        cmocka_unit_test(keys_are_the_commands_own_first_and_the_configurations_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

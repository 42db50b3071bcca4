/* Tests of the search for a layout: bounds are below whole forecasts, and what is found is what forecasts of all layouts
 * give. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "advise/forecast_internal.h"
#include "advise/settings.h"
#include "base/scope.h"

typedef struct Setting {
    const char *path;
    char *settings[8]; /* the last one is NULL */
    int64_t gpus;
    double memory_mib; /* of each GPU; 0: all that the card has */
} Setting;

/* Small models; memories that some layouts fit and some do not. */
static const Setting cases[] = {
    {"configs/llama-tiny.yaml",
        {"model.heads=4", "model.kv_heads=2", "model.layers=6", "data.length=2048", "batch.tokens=64Ki", "batch.sequences=1"}, 4, 0},
    {"configs/llama-tiny.yaml",
        {"model.heads=4", "model.kv_heads=2", "model.layers=6", "data.length=2048", "batch.tokens=64Ki", "batch.sequences=1"}, 4, 1150},
    {"configs/llama-tiny.yaml", {"model.layers=5", "data.length=1024", "batch.tokens=48Ki", "batch.sequences=1", "model.tied=false"}, 6,
        1010},
    {"configs/zaya1-tiny.yaml", {"model.layers=4", "data.length=1024", "batch.tokens=16Ki", "batch.sequences=1", "optimizer.name=muon"}, 4,
        0},
    {"configs/zaya1-tiny.yaml", {"model.layers=4", "data.length=1024", "batch.tokens=16Ki", "batch.sequences=1", "precision=pure_bf16"}, 2,
        1050},
    {"configs/llama-tiny.yaml",
        {"model.layers=5", "data.length=1024", "batch.tokens=4Ki", "batch.sequences=1", "precision=pure_bf16", "optimizer.in_backward=true",
            "optimizer.clip=0"},
        4, 0},
    {"configs/llama-tiny.yaml",
        {"model.layers=5", "data.length=1024", "batch.tokens=16Ki", "batch.sequences=1", "lora.rank=4", "lora.base=nf4"}, 4, 0},
    {"configs/llama-tiny.yaml",
        {"model.layers=5", "data.length=1024", "batch.tokens=16Ki", "batch.sequences=1", "lora.rank=4", "precision=pure_bf16"}, 2, 0},
    {"configs/gpt2-tiny.yaml", {"model.layers=1", "data.length=128", "batch.tokens=1Ki", "batch.sequences=1"}, 2, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

static void open_case(const Setting *setting, Config *config, OptionStrings *strings, Cluster *cluster) {
    Error error = {0};
    OptionStrings settings = {.items = (char **)setting->settings};
    while (settings.items[settings.count]) settings.count++;
    if (!settings_read(config, setting->path, &settings, strings, &error)) fail_msg("%s", error.message);
    *cluster = (Cluster){.gpus = setting->gpus, .per_node = 2};
    if (!hardware_find(&cluster->hardware, "mi300x", &error)) fail_msg("%s", error.message);
    if (setting->memory_mib > 0) cluster->hardware.memory = setting->memory_mib * (1 << 20);
    memset(cluster->hardware.communicators, 0, sizeof cluster->hardware.communicators); /* larger than such a model */
    config->layout.dp = 0;
}

static void check_case(const Setting *setting) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    Cluster cluster;
    Error error = {0};
    ForecastSearch search;
    const ForecastFreedom all = {true, true, true};
    int count, fitting = 0;
    open_case(setting, &config, &strings, &cluster);
    SCOPED_FREE ForecastCandidate *candidates = forecast_candidates(&config, &cluster, &all, &count, &error);
    if (!candidates) fail_msg("%s", error.message);
    double quickest = INFINITY, tightness = 0;
    for (int i = 0; i < count; i++) {
        const ForecastCandidate *c = &candidates[i];
        Forecast whole;
        if (!forecast_layout(&whole, &config, &cluster, &c->layout, &error)) fail_msg("%s", error.message);
        if (c->bound.seconds > whole.step * (1 + 1e-9) || c->bound.memory > (double)whole.memory.total)
            fail_msg("tp %d cp %d ep %d pp %d schedule %d, %d chunks, zero %d, %d sequences, recompute %d: bounds %g s and %g bytes, %g s "
                     "and %lld",
                (int)c->layout.ranks.tp, (int)c->layout.ranks.cp, (int)c->layout.ranks.ep, (int)c->layout.ranks.pp,
                c->layout.ranks.pp_schedule, (int)c->layout.ranks.pp_chunks, (int)c->layout.ranks.zero, (int)c->layout.sequences,
                c->layout.recompute, c->bound.seconds, c->bound.memory, whole.step, (long long)whole.memory.total);
        tightness += c->bound.seconds / whole.step / count;
        fitting += whole.fits;
        if (whole.fits) quickest = fmin(quickest, whole.step);
    }
    if (!forecast_search(&search, &config, &cluster, &all, &error)) fail_msg("%s", error.message);
    print_message("%s on %d GPUs: %d layouts, %d fit, %d forecast whole; bounds are %.0f%% of whole forecasts\n", setting->path,
        (int)setting->gpus, count, fitting, search.whole, 100 * tightness);
    assert_int_equal(search.tried, count);
    assert_true(fitting > 0 && search.count > 0 && search.found->fits);
    if (setting->memory_mib > 0) assert_true(fitting < count);
    assert_true(search.found->step == quickest);
    for (int i = 1; i < search.count; i++) { /* the quickest first, of equally quick ones that of least memory */
        const Forecast *f = &search.found[i];
        assert_true(f->step > f[-1].step || (f->step == f[-1].step && f->memory.total >= f[-1].memory.total));
    }
}

static void the_search_finds_what_forecasts_of_all_layouts_give(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) check_case(&cases[i]);
}

static void where_none_fits_the_smallest_of_all_is_shown(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    Cluster cluster;
    Error error = {0};
    ForecastSearch search;
    const ForecastFreedom all = {true, true, true};
    int count;
    open_case(&cases[4], &config, &strings, &cluster);
    cluster.hardware.memory = 1 << 20;
    if (!forecast_search(&search, &config, &cluster, &all, &error)) fail_msg("%s", error.message);
    assert_true(search.count == 0 && search.unfit == search.tried && !search.found->fits);
    SCOPED_FREE ForecastCandidate *candidates = forecast_candidates(&config, &cluster, &all, &count, &error);
    for (int i = 0; i < count; i++) {
        Forecast whole;
        if (!forecast_layout(&whole, &config, &cluster, &candidates[i].layout, &error)) fail_msg("%s", error.message);
        assert_true(whole.memory.total >= search.found->memory.total);
    }
}

static void what_was_given_stays(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    Cluster cluster;
    Error error = {0};
    int count;
    open_case(&cases[0], &config, &strings, &cluster);
    config.layout.pp = 2;
    config.layout.pp_schedule = PIPELINE_ZERO_BUBBLE;
    config.recompute = RECOMPUTE_NORM;
    SCOPED_FREE ForecastCandidate *some =
        forecast_candidates(&config, &cluster, &(ForecastFreedom){.axes = true, .zero = true}, &count, &error);
    assert_true(count > 1);
    for (int i = 0; i < count; i++) {
        const ForecastLayout *layout = &some[i].layout;
        assert_true(layout->ranks.pp == 2 && layout->ranks.pp_schedule == PIPELINE_ZERO_BUBBLE);
        assert_true(layout->recompute == RECOMPUTE_NORM && layout->sequences == config.batch.sequences);
    }
    SCOPED_FREE ForecastCandidate *one = forecast_candidates(&config, &cluster, &(ForecastFreedom){0}, &count, &error);
    assert_true(count == 1 && one->layout.ranks.zero == config.layout.zero && one->layout.ranks.tp == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_search_finds_what_forecasts_of_all_layouts_give),
        cmocka_unit_test(where_none_fits_the_smallest_of_all_is_shown),
        cmocka_unit_test(what_was_given_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tests of layout=auto: it takes what the forecast finds, says why, is the same on all ranks, and is remembered by the
 * run. */
#include "support/train_run.h"

#include "advise/auto_layout.h"
#include "advise/forecast.h"
#include "advise/settings.h"
#include "base/scope.h"
#include "train/run.h"

static const char *const sizes[] = {"model.layers=8", "data.length=1024", "batch.tokens=512Ki", NULL};
static char *configuration; /* in full */

static void configure(Config *config, OptionStrings *strings) {
    Error error = {0};
    OptionStrings settings = {.items = (char **)sizes, .count = 3};
    if (!settings_read(config, configuration, &settings, strings, &error)) fail_msg("%s", error.message);
}

static Cluster cluster_of(int64_t gpus) {
    Cluster cluster = {.gpus = gpus, .per_node = 8};
    Error error = {0};
    if (!hardware_find(&cluster.hardware, "mi300x", &error)) fail_msg("%s", error.message);
    return cluster;
}

static void it_takes_the_quickest_that_the_forecast_finds(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config, given;
    Error error = {0};
    ForecastSearch search;
    Cluster cluster = cluster_of(16);
    char *text = NULL;
    size_t length;
    configure(&config, &strings);
    given = config;
    config.layout.choice = LAYOUT_AUTO;
    FILE *file = open_memstream(&text, &length);
    if (!auto_layout(&config, &cluster, file, &error)) fail_msg("%s", error.message);
    fclose(file);
    assert_true(forecast_search(&search, &given, &cluster, &(ForecastFreedom){true, true, true}, &error));
    ForecastLayout best = search.found->layout;
    assert_int_equal(config.layout.choice, LAYOUT_GIVEN);
    assert_int_equal(config.layout.dp, best.ranks.dp);
    assert_int_equal(config.layout.tp, best.ranks.tp);
    assert_int_equal(config.layout.zero, best.ranks.zero);
    assert_int_equal(config.batch.sequences, best.sequences);
    assert_int_equal(config.recompute, best.recompute);
    for (int i = 1; i < search.count; i++) assert_true(search.found[i].tokens_per_second <= search.found[0].tokens_per_second);
    assert_non_null(strstr(text, "layout=auto for 16 x AMD Instinct MI300X (modelled, not measured"));
    assert_non_null(strstr(text, "do not fit\n"));
    free(text);
}

static void what_does_not_fit_is_refused_with_the_least_that_it_needs(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    Error error = {0};
    Cluster cluster = cluster_of(2);
    configure(&config, &strings);
    cluster.hardware.memory = 1 << 20;
    FILE *file = fopen("/dev/null", "w");
    assert_false(auto_layout(&config, &cluster, file, &error));
    fclose(file);
    assert_int_equal(error.code, ERROR_MEMORY);
    assert_non_null(strstr(error.message, "no layout of 2 ranks fits"));
}

/* The layout that a run remembers. */
static LayoutConfig remembered(const char *run, int64_t *sequences) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, &strings);
    if (!run_read_config(run, &config, &strings, &error)) fail_msg("%s", error.message);
    *sequences = config.batch.sequences;
    return config.layout;
}

static void a_run_remembers_its_layout_and_goes_on_with_it(void **state) {
    (void)state;
    int64_t before, after;
    smelt_says(0, "layout=auto for 2 x", "launch -n 2 -- train %s steps=4 layout=auto run=r", TINY);
    LayoutConfig first = remembered("r", &before);
    assert_int_equal(first.choice, LAYOUT_GIVEN);
    assert_int_equal(first.dp * first.tp * first.pp * first.cp * first.ep, 2);
    smelt_says(0, "layout=auto: r goes on with its layout", "launch -n 2 -- train %s steps=6 layout=auto run=r", TINY);
    LayoutConfig second = remembered("r", &after);
    assert_int_equal(first.dp, second.dp);
    assert_int_equal(first.zero, second.zero);
    assert_int_equal(before, after);
    smelt_says(0, "layout=auto for 1 x", "train %s steps=8 layout=auto run=r", TINY);
    assert_int_equal(remembered("r", &after).dp, 1);
}

static void a_configuration_file_may_ask_for_it_and_a_plan_shows_it(void **state) {
    (void)state;
    FILE *file = fopen("auto.yaml", "w");
    assert_non_null(file);
    fprintf(file, "layout: auto\n");
    fclose(file);
    smelt_says(0, "layouts that were tried:", "train auto.yaml %s plan=true", TINY);
    smelt_says(0, "layout=auto for 64 x", "train auto.yaml %s plan=true layout.dp=64 batch.tokens=16Ki", TINY);
    smelt_says(0, ", over 64 ranks\n", "train auto.yaml %s plan=true layout.dp=64 batch.tokens=16Ki", TINY);
}

int main(void) {
    train_main();
    configuration = realpath("configs/llama-tiny.yaml", NULL);
    if (!configuration) return fprintf(stderr, "run this from the repository's root: configs/llama-tiny.yaml is not here\n"), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_takes_the_quickest_that_the_forecast_finds),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_least_that_it_needs),
        TRAIN_TEST(a_run_remembers_its_layout_and_goes_on_with_it),
        TRAIN_TEST(a_configuration_file_may_ask_for_it_and_a_plan_shows_it),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(configuration);
    return failed;
}

/* Tests of layout=auto: it takes what the forecast finds, says why, is the same on all ranks, and is remembered by the
 * run. */
#include "support/mentions.h"
#include "support/train_run.h"

#include "advise/auto_layout.h"
#include "advise/forecast.h"
#include "advise/settings.h"
#include "base/scope.h"
#include "run/run.h"

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
    assert_non_null(strstr(text, "layout=auto for 16 x AMD Instinct MI300X (modeled, not measured"));
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
    assert_mentions(error.message, "layout 2 ranks");
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
    smelt_says(0, "layout=auto 2", "launch -n 2 -- train %s steps=4 layout=auto run=r", TINY);
    LayoutConfig first = remembered("r", &before);
    assert_int_equal(first.choice, LAYOUT_GIVEN);
    assert_int_equal(first.dp * first.tp * first.pp * first.cp * first.ep, 2);
    smelt_says(0, "layout=auto: r keeps its layout", "launch -n 2 -- train %s steps=6 layout=auto run=r", TINY);
    LayoutConfig second = remembered("r", &after);
    assert_int_equal(first.dp, second.dp);
    assert_int_equal(first.zero, second.zero);
    assert_int_equal(before, after);
    smelt_says(0, "layout=auto 1", "train %s steps=8 layout=auto run=r", TINY);
    assert_int_equal(remembered("r", &after).dp, 1);
}

static void a_configuration_file_may_ask_for_it_and_a_plan_shows_it(void **state) {
    (void)state;
    FILE *file = fopen("auto.yaml", "w");
    assert_non_null(file);
    fprintf(file, "layout: auto\n");
    fclose(file);
    smelt_says(0, "layouts", "train auto.yaml %s plan=true", TINY);
    smelt_says(0, "layout=auto 64", "train auto.yaml %s plan=true layout.dp=64 batch.tokens=16Ki", TINY);
    smelt_says(0, ", over 64 ranks\n", "train auto.yaml %s plan=true layout.dp=64 batch.tokens=16Ki", TINY);
}

/* The load-balancing loss is of a microbatch: with another number of sequences it is another objective. */
static void the_objective_stays(void **state) {
    (void)state;
    static const struct {
        const char *settings[4];
        bool stays;
    } cases[] = {{{"model.experts=4", "model.experts_per_token=2", "model.auxiliary_loss=0.01"}, true},
        {{"model.experts=4", "model.experts_per_token=2", "model.auxiliary_loss=0"}, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config;
        Error error = {0};
        Cluster cluster = cluster_of(16);
        char *text = NULL;
        size_t length;
        configure(&config, &strings);
        for (int j = 0; j < 3; j++) assert_true(options_set(&config_table, &config, &strings, cases[i].settings[j], &error));
        int64_t given = config.batch.sequences = 2;
        FILE *file = open_memstream(&text, &length);
        if (!auto_layout(&config, &cluster, file, &error)) fail_msg("%s", error.message);
        fclose(file);
        assert_true((config.batch.sequences == given) == cases[i].stays);
        assert_true(!!strstr(text, "all with batch.sequences=2, on which the load-balancing loss depends") == cases[i].stays);
        assert_true(!strstr(text, "batch.sequences: 2 -> ") == cases[i].stays);
        free(text);
    }
}

#define MIXTRAL " model.experts=2 model.auxiliary_loss=0.01 batch.sequences=2"

/* A run that began with other sequences, such as one of an earlier smelt, goes on with those that are given. */
static void the_objective_stays_where_a_run_goes_on(void **state) {
    (void)state;
    int64_t sequences;
    smelt_says(0, "done", "launch -n 2 -- train %s steps=4 layout.dp=2 run=r" MIXTRAL, TINY);
    smelt_says(
        0, "layout=auto: r keeps its layout", "launch -n 2 -- train %s steps=6 layout=auto run=r" MIXTRAL " batch.sequences=1", TINY);
    remembered("r", &sequences);
    assert_int_equal(sequences, 1);
}

static void what_it_changes_is_named(void **state) {
    (void)state;
    int64_t sequences;
    static const char idle[] = "layout.pp_schedule: zero-bubble -> 1f1b";
    smelt_says(0, idle, "train %s steps=4 layout=auto layout.pp_schedule=zero-bubble run=r", TINY);
    assert_int_equal(remembered("r", &sequences).pp_schedule, PIPELINE_1F1B);
    smelt_says(0, idle, "train %s steps=6 layout=auto layout.pp_schedule=zero-bubble run=r", TINY);
    smelt_says(0, "continuing r", "train r steps=8");
    smelt_says(ERROR_USAGE, "layout.pp_schedule=zero-bubble has no effect",
        "forecast %s gpu=mi300x search=false layout.pp_schedule=zero-bubble", configuration);
    smelt_says(0, "pp", "forecast %s gpu=mi300x layout.pp_schedule=zero-bubble", configuration);
    smelt_says(ERROR_USAGE, "layout.pp_schedule=zero-bubble has no effect", "train %s steps=4 layout.pp_schedule=zero-bubble run=s", TINY);
}

/* A number of copies that was given is what the other axes leave of the GPUs, by choice of these where they are searched. */
static void a_forecast_is_for_the_copies_that_were_given(void **state) {
    (void)state;
    smelt_says(ERROR_USAGE, "layout.dp=2 = 4: layout.dp=4", "forecast %s gpu=mi300x gpus=4 search=false layout.dp=2", configuration);
    smelt_says(ERROR_USAGE, "layout.dp x tp x pp x cp x ep = 6 is not the ranks of the run = 8",
        "forecast %s gpu=mi300x gpus=8 search=false layout.dp=3 layout.pp=2", configuration);
    smelt_says(0, "dp 2, pp 2", "forecast %s gpu=mi300x gpus=4 search=false layout.dp=2 layout.pp=2", configuration);
    smelt_says(0, "dp 2, ", "forecast %s gpu=mi300x gpus=4 layout.dp=2", configuration);
    smelt_says(ERROR_USAGE, "layout.dp=3 is not the ranks of the run = 4", "forecast %s gpu=mi300x gpus=4 layout.dp=3", configuration);
    smelt_says(0, "done", "launch -n 2 -- train %s steps=4 layout.dp=2 run=r", TINY);
    smelt_says(0, "dp 4", "forecast r gpu=mi300x gpus=4 search=false"); /* those of the run were for its ranks */
}

static void what_only_more_ranks_use_is_named(void **state) {
    (void)state;
    smelt_says(0, "layout.zero=3", "train %s steps=4 layout.zero=3 run=a", TINY);
    smelt_says(0, "layout.zero=0", "train %s steps=4 layout.zero=0 run=a0", TINY);
    smelt_says(0, "layout.reduce=bf16 has no effect without other ranks", "train %s steps=4 layout.reduce=bf16 run=b", TINY);
    smelt_says(
        0, "layout.reduce=bf16 precision=bf16 fp32", "launch -n 2 -- train %s steps=4 layout.reduce=bf16 precision=fp64 run=b64", TINY);
    smelt_says(0, "layout.reduce=fp32 precision=bf16 fp32",
        "launch -n 2 -- train %s steps=4 layout.reduce=fp32 precision=pure_bf16 run=b16", TINY);
    smelt_says(0, "layout.bucket_mb=1 has no effect without other ranks", "train %s steps=4 layout.bucket_mb=1 run=c", TINY);
    static const char *const alone[] = {"layout.tp=2", "layout.pp=2"};
    for (int i = 0; i < 2; i++)
        smelt_says(0, "layout.zero=0 layout.bucket_mb=1 layout.reduce=bf16",
            "launch -n 2 -- train %s steps=4 layout.zero=0 layout.bucket_mb=1 layout.reduce=bf16 model.family=llama model.experts=0 "
            "model.kv_heads=2 %s run=alone%d",
            TINY, alone[i], i);
    smelt_says(0, "model.window=64 data.length", "train %s steps=4 model.window=64 run=w", TINY);
    smelt_says(0, "layout.zero=2 layout.zero=1 in a pipeline",
        "launch -n 4 -- train %s steps=4 layout.pp=2 layout.zero=2 layout.bucket_mb=1 layout.reduce=bf16 run=d", TINY);
    ProcessResult none = smelt("launch -n 2 -- train " TINY " steps=4 layout.zero=3 layout.bucket_mb=1 layout.reduce=bf16 run=e");
    assert_int_equal(none.code, 0);
    assert_null(strstr(none.errors, "no effect"));
    process_free(&none);
}

int main(void) {
    train_main();
    configuration = realpath("configs/llama-tiny.yaml", NULL);
    if (!configuration) return fprintf(stderr, "run this from the repository's root: configs/llama-tiny.yaml is not here\n"), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_takes_the_quickest_that_the_forecast_finds),
        cmocka_unit_test(what_does_not_fit_is_refused_with_the_least_that_it_needs),
        TRAIN_TEST(a_run_remembers_its_layout_and_goes_on_with_it),
        cmocka_unit_test(the_objective_stays),
        TRAIN_TEST(the_objective_stays_where_a_run_goes_on),
        TRAIN_TEST(what_it_changes_is_named),
        TRAIN_TEST(a_forecast_is_for_the_copies_that_were_given),
        TRAIN_TEST(what_only_more_ranks_use_is_named),
        TRAIN_TEST(a_configuration_file_may_ask_for_it_and_a_plan_shows_it),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(configuration);
    return failed;
}

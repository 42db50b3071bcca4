/* The rules of layouts: each is broken once, and the layout that its message names breaks none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "config/needs.h"
#include "support/mentions.h"

typedef struct Case {
    const char *settings; /* on top of `common` */
    int64_t ranks;        /* 0: not known */
    const char *message;
} Case;

/* 8 heads, 2 of them for keys; 4 microbatches of 2 sequences. */
static const char common[] = "model.heads=8 model.kv_heads=2 model.layers=6 model.width=256 model.ffn=768 model.vocabulary=320 "
                             "data.length=96 batch.sequences=2 batch.tokens=768";
static const char zaya[] = "model.family=zaya model.experts=12";

static void set_all(Config *config, OptionStrings *strings, const char *settings) {
    SCOPED_FREE char *words = memory_copy_string(settings);
    Error error = {0};
    char *rest = words;
    for (char *word; (word = strsep(&rest, " "));)
        if (*word && !options_set(&config_table, config, strings, word, &error)) fail_msg("%s", error.message);
}

static void configure(Config *config, OptionStrings *strings, const char *settings) {
    options_defaults(&config_table, config, strings);
    set_all(config, strings, common);
    set_all(config, strings, settings);
}

static const Case cases[] = {
    {"layout.tp=3", 0, "layout.tp=3 model.heads=8 layout.tp=4"},
    {"layout.tp=3", 6, "layout.tp=3 model.heads=8 layout.tp=2"},
    {"model.family=zaya model.experts=12 layout.tp=4", 0, "layout.tp=4 model.kv_heads=2 layout.tp=2"},
    {"model.heads=12 model.kv_heads=4 model.head_dim=32 layout.tp=3", 0, "layout.tp=3 model.kv_heads=4 layout.tp=4"},
    {"model.heads=12 model.kv_heads=4 model.head_dim=32 layout.tp=6", 0, "model.kv_heads=4 layout.tp=6 layout.tp=4"},
    {"model.ffn=510 layout.tp=4", 0, "layout.tp=4 model.ffn=510 MLP's layout.tp=2"},
    {"model.experts=4 model.experts_first=1 model.dense_ffn=510 layout.tp=4", 0, "layout.tp=4 model.dense_ffn=510 MLP's layout.tp=2"},
    {"model.vocabulary=3 layout.tp=4", 0, "layout.tp=4 model.vocabulary=3 layout.tp=2"},
    {"model.family=mpt layout.tp=4", 0, "layout.tp=4 model.kv_heads=2 layout.tp=2"},
    {"model.family=olmo layout.tp=2", 0, "layout.tp=2 = 1 layout.tp=1"},
    {"model.family=mpt model.qk_norm=true layout.tp=2", 0, "layout.tp=2 = 1 layout.tp=1"},
    {"data.length=95 batch.sequences=1 batch.tokens=380 model.kv_heads=1 layout.tp=2", 0,
        "layout.tp=2 batch.sequences data.length / layout.cp = 95 layout.tp=1"},
    {"layout.pp=8", 8, "layout.pp=8 model.layers=6 layout.pp=4"},
    {"layout.cp=5", 0, "2 layout.cp = 10 data.length=96 data.length=90 100 layout.cp=6"},
    {"layout.cp=64", 0, "2 layout.cp = 128 data.length=96 data.length=128 layout.cp=48"},
    {"model.family=zaya model.experts=12 layout.cp=48", 0, "4 layout.cp = 192 data.length=96 layout.cp=24"},
    {"layout.ep=2", 0, "layout.ep layout.tp = 2 model.experts=0 layout.ep=1"},
    {"model.family=zaya model.experts=12 layout.ep=4 layout.tp=2", 8, "layout.ep layout.tp = 8 model.experts=12 layout.ep=2"},
    {"layout.dp=4", 2, "layout.dp=4 = 2 layout.dp=2"},
    {"layout.dp=3 layout.tp=2", 8, "layout.dp = 6 = 8 layout.dp=4"},
    {"layout.tp=4", 6, "layout.tp = 4 = 6 layout.tp=2"},
    {"layout.shard=3", 8, "layout.shard=3 = 8 layout.shard=4"},
    {"layout.shard=8 layout.tp=2", 8, "layout.shard=8 = 4 layout.shard=4"},
};

/* The settings after "set". */
static void take_advice(Config *config, OptionStrings *strings, const char *message) {
    const char *advice = strstr(message, "; set ");
    if (!advice || !strstr(advice, "layout.")) fail_msg("no advice in: %s", message);
    set_all(config, strings, advice + strlen("; set "));
}

static void each_rule_is_broken_once_and_the_advice_holds(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config;
        Error error = {0};
        configure(&config, &strings, cases[i].settings);
        assert_false(layout_check(&config, cases[i].ranks, &error));
        assert_int_equal(error.code, ERROR_USAGE);
        assert_mentions(error.message, cases[i].message);
        take_advice(&config, &strings, error.message);
        if (!layout_check(&config, cases[i].ranks, &error)) fail_msg("after the advice: %s", error.message);
    }
}

static void several_faults_are_mended_at_once(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    Error error = {0};
    configure(&config, &strings, zaya);
    set_all(&config, &strings, "layout.tp=3 layout.pp=7 layout.cp=5 layout.ep=3 layout.dp=2");
    assert_false(layout_check(&config, 64, &error));
    take_advice(&config, &strings, error.message);
    if (!layout_check(&config, 64, &error)) fail_msg("after the advice: %s", error.message);
}

static void good_layouts_pass(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        int64_t ranks;
    } good[] = {{"", 1}, {"", 7}, {"layout.tp=8 layout.pp=6", 96}, {"layout.dp=2 layout.cp=8 layout.shard=2", 16},
        {"model.family=zaya model.experts=12 layout.tp=2 layout.ep=2 layout.cp=2 layout.pp=2 layout.dp=4", 64}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config;
        Error error = {0};
        configure(&config, &strings, good[i].settings);
        if (!layout_check(&config, good[i].ranks, &error) || !layout_check(&config, 0, &error)) fail_msg("%s", error.message);
    }
}

static void a_setting_that_its_layout_has_no_use_for_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *settings, *message, *used; /* settings with which it has an effect */
    } idle[] = {
        {"layout.pp_schedule=zero-bubble", "layout.pp_schedule=zero-bubble layout.pp=2 layout.pp_schedule=1f1b", "layout.pp=2"},
        {"layout.pp=2 layout.pp_chunks=3", "layout.pp_chunks=3 layout.pp_schedule=interleaved layout.pp=2 layout.pp_chunks=0",
            "layout.pp_schedule=interleaved"},
        {"layout.pp=2 layout.pp_schedule=interleaved layout.pp_chunks=1",
            "layout.pp_schedule=interleaved layout.pp_chunks 1 1f1b layout.pp_schedule=1f1b", "layout.pp_chunks=2"},
        {"layout.cp_exchange=ring", "layout.cp_exchange=ring layout.cp=2 layout.cp_exchange=gather", "layout.cp=2"},
        {"layout.shard=2 layout.zero=0", "layout.shard=2 layout.zero=1 2 3 layout.shard=0", "layout.zero=1"},
    };
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config, dropped;
        Error error = {0};
        configure(&config, &strings, idle[i].settings);
        assert_true(config_check(&config, &error)); /* a run that has it can be read */
        assert_false(needs_check_layout(&config, &config, &error));
        assert_int_equal(error.code, ERROR_USAGE);
        assert_mentions(error.message, idle[i].message);
        dropped = config;
        needs_drop_layout(&dropped);
        assert_true(needs_check_layout(&dropped, &dropped, &error));
        set_all(&config, &strings, strstr(error.message, ", or ") + strlen(", or "));
        assert_true(needs_check_layout(&config, &config, &error));
        assert_memory_equal(&config.layout, &dropped.layout, sizeof config.layout);
        configure(&config, &strings, idle[i].settings);
        set_all(&config, &strings, idle[i].used);
        if (!needs_check_layout(&config, &config, &error)) fail_msg("%s", error.message);
    }
}

/* A setting of layout.* that nobody gave never stops a start, whatever the others are. */
static void defaults_are_never_refused(void **state) {
    (void)state;
    static const char *const layouts[] = {"", "layout.zero=0", "layout.pp=2", "layout.cp=2", "layout.pp=2 layout.pp_schedule=interleaved",
        "layout.pp_chunks=1", "layout.pp_schedule=1f1b layout.cp_exchange=gather layout.shard=0 layout.reduce=auto", "precision=fp64"};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config;
        Error error = {0};
        configure(&config, &strings, layouts[i]);
        if (!needs_check_layout(&config, &config, &error)) fail_msg("%s", error.message);
    }
}

/* -- Advice is the nearest that works ------------------------------------------------------------------------------ */

static int64_t pick(uint64_t seed, uint64_t draw, int64_t least, int64_t most) {
    return least + (int64_t)(rng_bits(seed, 5, draw).word[0] % (uint64_t)(most - least + 1));
}

static double ratio(int64_t a, int64_t b) { return a && b ? fabs(log2((double)a / (double)b)) : 0; }

/* Of a layout from what was given: the ratios of all settings that count ranks. */
static double far_from(const LayoutConfig *a, const LayoutConfig *b) {
    return ratio(a->dp, b->dp) + ratio(a->tp, b->tp) + ratio(a->pp, b->pp) + ratio(a->cp, b->cp) + ratio(a->ep, b->ep) +
           ratio(a->shard, b->shard) + ratio(a->pp_chunks, b->pp_chunks);
}

/* The least distance of a valid layout among all with sizes up to MOST. */
static double nearest_of_all(const Config *given, int64_t ranks) {
    enum { MOST = 24 };
    Config c = *given;
    const LayoutConfig *g = &given->layout;
    double best = INFINITY;
    for (c.layout.tp = 1; c.layout.tp <= MOST; c.layout.tp++)
        for (c.layout.pp = 1; c.layout.pp <= MOST; c.layout.pp++)
            for (c.layout.cp = 1; c.layout.cp <= MOST; c.layout.cp++)
                for (c.layout.ep = 1; c.layout.ep <= MOST; c.layout.ep++)
                    for (c.layout.pp_chunks = g->pp_chunks ? 1 : 0; c.layout.pp_chunks <= (g->pp_chunks ? 6 : 0); c.layout.pp_chunks++) {
                        char broken[256];
                        c.layout.dp = g->dp && ranks ? ranks / layout_copy_ranks(&c.layout) : g->dp;
                        if ((g->dp && !c.layout.dp) || far_from(&c.layout, g) >= best || layout_breaks(&c, ranks, broken, sizeof broken))
                            continue;
                        best = far_from(&c.layout, g);
                    }
    return best;
}

/* A random layout of a small model. */
static void draw_layout(Config *config, OptionStrings *strings, uint64_t i, int64_t *ranks) {
    static const char *const kinds[] = {"1f1b", "interleaved", "zero-bubble"};
    int64_t kv_heads = (int64_t)1 << pick(i, 0, 0, 2), family = pick(i, 1, 0, 2), kind = pick(i, 2, 0, 2), length = 12 * pick(i, 3, 1, 20);
    int64_t heads = kv_heads * pick(i, 4, 1, 6);
    *ranks = pick(i, 5, 0, 1) ? pick(i, 6, 1, 24) : 0;
    SCOPED_FREE char *settings = memory_format("model.family=%s model.experts=%d model.heads=%d model.kv_heads=%d model.head_dim=32 "
                                               "model.layers=%d data.length=%d batch.tokens=%d layout.tp=%d layout.pp=%d layout.cp=%d "
                                               "layout.ep=%d layout.dp=%d layout.pp_schedule=%s layout.pp_chunks=%d",
        family == 2 ? "zaya" : "llama", family ? (int)(4 * pick(i, 7, 1, 6)) : 0, (int)heads, (int)kv_heads, (int)pick(i, 8, 1, 20),
        (int)length, (int)(4 * length), (int)pick(i, 9, 1, 8), (int)pick(i, 10, 2, 9), (int)pick(i, 11, 1, 6),
        (int)(family ? pick(i, 12, 1, 6) : 1), *ranks ? (int)pick(i, 13, 0, 3) : 0, kinds[kind], kind == 1 ? (int)pick(i, 14, 0, 6) : 0);
    configure(config, strings, settings);
}

static void every_layout_that_is_advised_is_the_nearest_that_works(void **state) {
    (void)state;
    int advised = 0;
    for (uint64_t i = 0; i < 400; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config;
        Error error = {0};
        int64_t ranks;
        draw_layout(&config, &strings, i, &ranks);
        if (layout_check(&config, ranks, &error)) continue;
        Config given = config;
        advised++;
        take_advice(&config, &strings, error.message);
        Error after = {0};
        if (!layout_check(&config, ranks, &after) || !needs_check_layout(&config, &config, &after))
            fail_msg("%s\nafter the advice: %s", error.message, after.message);
        if (i % 8) continue; /* all of them would take long */
        Config counted = config;
        if (given.layout.pp_chunks && !counted.layout.pp_chunks) counted.layout.pp_chunks = given.layout.pp_chunks; /* left out */
        double best = nearest_of_all(&given, ranks);
        if (far_from(&counted.layout, &given.layout) > best + 1e-9)
            fail_msg("%s\nis %g away, another layout %g", error.message, far_from(&counted.layout, &given.layout), best);
    }
    assert_true(advised > 200);
}

/* Rules of any number of ranks decide, those that were started what is advised. */
static void advice_before_ranks_have_met_is_for_those_that_were_started(void **state) {
    (void)state;
    int advised = 0;
    for (uint64_t i = 0; i < 400; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config;
        Error error = {0}, later = {0};
        char broken[256];
        int64_t ranks;
        draw_layout(&config, &strings, i, &ranks);
        bool breaks = layout_breaks(&config, 0, broken, sizeof broken);
        assert_int_equal(layout_check_early(&config, ranks, &error), !breaks);
        if (!breaks) continue;
        advised++;
        assert_memory_equal(error.message, broken, strlen(broken));
        take_advice(&config, &strings, error.message);
        if (!layout_check(&config, ranks, &later)) fail_msg("%s\nafter the advice: %s", error.message, later.message);
    }
    assert_true(advised > 150);
}

static void every_batch_that_is_advised_is_the_nearest_that_works(void **state) {
    (void)state;
    int advised = 0;
    for (uint64_t i = 0; i < 2000; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Config config;
        int64_t length = pick(i, 0, 1, 40), sequences = pick(i, 1, 1, 8), microbatch = length * sequences;
        int64_t tokens = pick(i, 2, 1, 2000), ramp = pick(i, 3, 0, 1) ? pick(i, 4, 1, tokens) : 0;
        SCOPED_FREE char *settings = memory_format(
            "data.length=%d batch.sequences=%d batch.tokens=%d batch.ramp_tokens=%d", (int)length, (int)sequences, (int)tokens, (int)ramp);
        configure(&config, &strings, settings);
        for (int tries = 0; tries < 2; tries++) {
            Error error = {0};
            if (config_check(&config, &error)) break;
            int64_t before[] = {config.batch.tokens, config.batch.ramp_tokens};
            const char *advice = strstr(error.message, "tokens: set ");
            if (!advice) fail_msg("%s", error.message);
            SCOPED_FREE char *setting = memory_format("%.*s", (int)strcspn(advice + 12, ","), advice + 12);
            set_all(&config, &strings, setting);
            int64_t after[] = {config.batch.tokens, config.batch.ramp_tokens};
            int at = before[0] == after[0];
            int64_t moved = llabs(after[at] - before[at]);
            bool bounded = after[at] == microbatch || (at == 1 && after[1] == after[0]);
            assert_true(after[at] % microbatch == 0 && (2 * moved <= microbatch || bounded));
            advised++;
        }
        Error error = {0};
        if (!config_check(&config, &error)) fail_msg("%s: %s", settings, error.message);
    }
    assert_true(advised > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_is_broken_once_and_the_advice_holds),
        cmocka_unit_test(several_faults_are_mended_at_once),
        cmocka_unit_test(good_layouts_pass),
        cmocka_unit_test(a_setting_that_its_layout_has_no_use_for_is_refused),
        cmocka_unit_test(defaults_are_never_refused),
        cmocka_unit_test(every_layout_that_is_advised_is_the_nearest_that_works),
        cmocka_unit_test(advice_before_ranks_have_met_is_for_those_that_were_started),
        cmocka_unit_test(every_batch_that_is_advised_is_the_nearest_that_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

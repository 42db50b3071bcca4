/* Tests of plan=true and of what is said to make a plan fit: every change that is named is planned again, from its own
 * words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "advise/plan_page.h"
#include "advise/settings.h"
#include "advise/work.h"
#include "backend/backend.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "session/fit.h"

static Device *h100; /* a description of one */

typedef struct Given {
    Config config;
    OptionStrings strings;
} Given;

static void set(Given *given, const char *setting) {
    Error error = {0};
    if (!options_set(&config_table, &given->config, &given->strings, setting, &error)) fail_msg("%s", error.message);
}

static Given give(const char *path) {
    Given given = {0};
    Error error = {0};
    if (!settings_read(&given.config, path, &(OptionStrings){0}, &given.strings, &error)) fail_msg("%s", error.message);
    return given;
}

static int64_t total(const Config *config, Device *device, int ranks) {
    SCOPED(session_free) Session session = {0};
    Error error = {0};
    if (!session_plan_rank(&session, config, device, 0, ranks, &error)) fail_msg("%s", error.message);
    return session_budget(&session).total;
}

static char *page(const Config *config, Device *device, int64_t available) {
    char *text = NULL;
    size_t length;
    Error error = {0};
    FILE *stream = open_memstream(&text, &length);
    if (!plan_print(config, (int)(int_max(config->layout.dp, 1) * config->layout.tp), 0, device, available, stream, &error))
        fail_msg("%s", error.message);
    fclose(stream);
    return text;
}

/* -- The size of the model ------------------------------------------------------------------------------------------ */

static void the_size_of_a_model_depends_on_no_layout_or_recomputation(void **state) {
    (void)state;
    static const char *const paths[] = {"configs/zaya1-tiny.yaml", "configs/llama-tiny.yaml"};
    for (int i = 0; i < 2; i++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        Given given = give(paths[i]);
        const Config *c = &given.config;
        strings = given.strings;
        ModelSize whole = model_size(&c->model, &c->lora, c->precision, c->batch.sequences, c->data.length);
        for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_BLOCK; policy++)
            for (int cp = 1; cp <= 2; cp++) {
                SCOPED(session_free) Session session = {0};
                Error error = {0};
                given.config.recompute = policy;
                given.config.layout.cp = cp;
                if (!session_plan_rank(&session, c, h100, 0, 2, &error)) fail_msg("%s", error.message);
                ModelSize size = session_size(&session);
                assert_true(size.parameters == whole.parameters && size.trained == whole.trained && size.active == whole.active);
                if (size.flops != whole.flops)
                    fail_msg("%s policy %d, cp %d: %.17g FLOP, not %.17g", paths[i], policy, cp, size.flops, whole.flops);
            }
    }
}

/* -- The page ------------------------------------------------------------------------------------------------------ */

static void expect_all(const char *text, const char *const *parts) {
    const char *at = text;
    for (; *parts; parts++)
        if (!(at = strstr(at, *parts))) fail_msg("\"%s\" is not in its place in:\n%s", *parts, text);
}

static void the_page_has_model_memory_speed_and_chosen_settings(void **state) {
    (void)state;
    Given given = give("configs/zaya1-8b.yaml");
    set(&given, "recompute=none");
    SCOPED_FREE char *text = page(&given.config, h100, 80LL << 30);
    expect_all(
        text, (const char *[]){"model       zaya, 40 layers of width 2048\n", "parameters  8840488784, 1290741584 active per token\n",
                  "device      NVIDIA H100 80GB SXM, bf16\n", "memory of the device: 161.52 GiB of 80.00 GiB: does not fit\n  [#####",
                  "] 202%\n", "  master weights", "memory of the host: 67.92 GiB for checkpoints", "ways to save memory",
                  "speed (modeled, not measured", " tok/s, ", "settings other than the defaults\n", "model.family               zaya\n",
                  "optimizer.name             muon\n", NULL});
    assert_null(strstr(text, "checkpoint.keep")); /* has its default */
    assert_null(strstr(text, "model.context"));   /* follows data.length */
    assert_null(strstr(text, "program of one microbatch"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strlen(line) > 80 && !strstr(line, "lora.rank")) fail_msg("%zu columns: %s", strlen(line), line);
    options_free_strings(&given.strings);
}

static void a_run_that_goes_on_is_planned_for_the_steps_that_are_left(void **state) {
    (void)state;
    Given given = give("configs/llama-tiny.yaml");
    char *text = NULL;
    size_t length;
    Error error = {0};
    FILE *stream = open_memstream(&text, &length);
    set(&given, "steps=700");
    assert_true(plan_print(&given.config, 1, 130, h100, -1, stream, &error));
    fclose(stream);
    assert_non_null(strstr(text, "\nsteps       700, in all 5.73M tokens\n"));
    assert_non_null(strstr(text, " for the 570 of 700 steps that are left\n"));
    assert_null(strstr(text, "head_dim")); /* is width / heads */
    free(text);
    options_free_strings(&given.strings);
}

static void the_page_of_a_recipe_has_its_layers_with_reasons_and_the_memory_without_it(void **state) {
    (void)state;
    Given given = give("configs/zaya1-8b.yaml");
    set(&given, "fp8.recipe=tensor");
    set(&given, "recompute=none");
    SCOPED_FREE char *text = page(&given.config, h100, 80LL << 30);
    expect_all(text, (const char *[]){"  inputs and constants", "\n  without fp8.recipe: 161.52 GiB, activations ", "ways to save memory",
                         "\nlinear layers with fp8.recipe=tensor: ", "% of their arithmetic is in fp8\n",
                         "\n  q_proj, k_proj, v_proj_current, v_proj_delayed   40      1536 x 2048  fp8\n", "  mlp.gate.router_mlp.fc1 ",
                         "256 x 256  by rule\n", "  mlp.experts.gate_up_proj ", "40  16: 4096 x 2048  fp8\n", "  head, tied ",
                         "  by rule: a router or adapter; a head without fp8.head, in bf16\n", NULL});
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strlen(line) > 80 && !strstr(line, "lora.rank")) fail_msg("%zu columns: %s", strlen(line), line);
    options_free_strings(&given.strings);
}

/* llama-tiny: width 192, 6 heads and 2 key heads of 32, ffn 512. */
static void each_reason_to_stay_in_bf16_is_told(void **state) {
    (void)state;
    static const struct {
        const char *settings[5], *line;
    } cases[] = {{{"fp8.min_size=0"}, "mlp.down_proj             4        192 x 512  fp8\n"},
        {{"fp8.min_size=139.7"}, "mlp.down_proj             4        192 x 512  size 140\n"},
        {{"fp8.min_size=0", "model.ffn=520"}, "mlp.down_proj             4        192 x 520  uneven\n"},
        {{"fp8.min_size=0", "data.length=41", "batch.sequences=1"}, "mlp.down_proj             4        192 x 512  rows\n"},
        {{"fp8.min_size=0", "model.heads=4", "model.head_dim=32", "model.kv_heads=2", "layout.tp=4"}, "parts\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Given given = give("configs/llama-tiny.yaml");
        set(&given, "fp8.recipe=row");
        for (int s = 0; s < 5 && cases[i].settings[s]; s++) set(&given, cases[i].settings[s]);
        SCOPED_FREE char *text = page(&given.config, h100, 80LL << 30);
        if (!strstr(text, cases[i].line)) fail_msg("\"%s\" is not in:\n%s", cases[i].line, text);
        options_free_strings(&given.strings);
    }
}

static void the_program_follows_when_it_is_asked_for(void **state) {
    (void)state;
    Given given = give("configs/llama-tiny.yaml");
    given.config.plan = PLAN_PROGRAM;
    SCOPED_FREE char *text = page(&given.config, device_cpu(), 1LL << 40);
    expect_all(text,
        (const char *[]){": fits\n", "\nprogram of one microbatch (32 sequences x 256 tokens)\n", "embed", "forward", "backward", NULL});
    assert_null(strstr(text, "ways to save memory"));
    options_free_strings(&given.strings);
}

/* The copy for checkpoints is in the host's memory: on a CPU a row of the sum, on a GPU no part of it. */
static void memory_of_device_and_host_are_never_added_up(void **state) {
    (void)state;
    Given given = give("configs/llama-tiny.yaml");
    SCOPED_FREE char *on_gpu = page(&given.config, h100, -1), *on_cpu = page(&given.config, device_cpu(), -1);
    assert_null(strstr(on_gpu, "checkpoint copy"));
    assert_non_null(strstr(on_gpu, "memory of the host: 18.72 MiB for checkpoints"));
    assert_non_null(strstr(on_cpu, "  checkpoint copy         18.72 MiB"));
    assert_null(strstr(on_cpu, "memory of the host"));
    SCOPED(session_free) Session session = {0};
    Error error = {0};
    assert_true(session_plan(&session, &given.config, h100, &error));
    Budget b = session_budget(&session);
    assert_true(b.copy > 0 && !b.host);
    assert_int_equal(
        b.total, b.weights + b.master + b.gradients + b.optimizer + b.activations + b.scratch + b.evaluation + b.other + b.trials);
    assert_in_range(b.trials, 1 << 20, 640 << 20);
    options_free_strings(&given.strings);
}

static void ranks_that_are_not_there_are_planned(void **state) {
    (void)state;
    Given given = give("configs/llama-tiny.yaml");
    set(&given, "layout.dp=64");
    SCOPED_FREE char *text = page(&given.config, device_cpu(), -1);
    assert_non_null(strstr(text, ", over 64 ranks\n"));
    assert_non_null(strstr(text, "\nof one of 64 ranks, memory of this machine: "));
    options_free_strings(&given.strings);
}

/* -- What would make it fit ---------------------------------------------------------------------------------------- */

/* Plans what the words of a change say. */
static int64_t planned(const char *path, Device *device, const char *change) {
    Given given = give(path);
    SCOPED_FREE char *words = memory_copy_string(change);
    int ranks = 1;
    char *rest = words;
    for (char *word; (word = strsep(&rest, " "));) {
        if (strcmp(word, "on") == 0) ranks = atoi(rest);
        if (strchr(word, '=') && strcmp(word, "init=FOLDER") != 0) set(&given, word);
    }
    int64_t bytes = total(&given.config, device, ranks);
    options_free_strings(&given.strings);
    return bytes;
}

static void every_change_saves_what_it_says(void **state) {
    (void)state;
    static const char *const paths[] = {"configs/llama-tiny.yaml", "configs/zaya1-tiny.yaml"};
    Device *const devices[] = {device_cpu(), h100};
    for (int i = 0; i < 4; i++) {
        Given given = give(paths[i / 2]);
        Device *device = devices[i % 2];
        int64_t now = total(&given.config, device, 1);
        for (int part = 1; part <= 16; part *= 2) {
            Fit fits[MOST_FITS];
            int count = fit_search(&given.config, device, 0, 1, now / part - 1, fits);
            assert_true(count >= 4);
            for (int f = 0; f < count; f++) {
                assert_int_equal(fits[f].bytes, planned(paths[i / 2], device, fits[f].change));
                assert_true(fits[f].bytes < now);
                assert_int_equal(fits[f].fits, fits[f].bytes <= now / part - 1);
            }
        }
        options_free_strings(&given.strings);
    }
}

/* The load-balancing loss is of a microbatch: a smaller one would be another objective. */
static void no_change_is_advised_that_changes_the_objective(void **state) {
    (void)state;
    for (int balanced = 0; balanced < 2; balanced++) {
        Given given = give("configs/zaya1-tiny.yaml");
        Fit fits[MOST_FITS];
        bool smaller = false;
        set(&given, balanced ? "model.auxiliary_loss=0.01" : "model.auxiliary_loss=0");
        int count = fit_search(&given.config, h100, 0, 1, 1, fits);
        assert_true(count > 0);
        for (int f = 0; f < count; f++) smaller |= strstr(fits[f].change, "batch.sequences") != NULL;
        assert_true(smaller == !balanced);
        options_free_strings(&given.strings);
    }
}

static int64_t collectives_of(const char *layout, Device *device, int ranks) {
    Given given = give("configs/llama-tiny.yaml");
    SCOPED(session_free) Session session = {0};
    Error error = {0};
    set(&given, layout);
    if (!session_plan_rank(&session, &given.config, device, 0, ranks, &error)) fail_msg("%s", error.message);
    Budget budget = session_budget(&session);
    assert_true(budget.total > budget.collectives);
    options_free_strings(&given.strings);
    return budget.collectives;
}

/* One communicator for gradients; tp has another one inside layers; a pipeline has one for transfers and one for its ends. */
static void gpus_that_communicate_plan_room_for_it(void **state) {
    (void)state;
    assert_int_equal(collectives_of("layout.zero=0", h100, 1), 0);
    assert_int_equal(collectives_of("layout.zero=1", h100, 4), FIRST_COMMUNICATOR);
    assert_int_equal(collectives_of("layout.tp=2", h100, 2), FIRST_COMMUNICATOR + FURTHER_COMMUNICATOR);
    assert_int_equal(collectives_of("layout.pp=2", h100, 2), FIRST_COMMUNICATOR + FURTHER_COMMUNICATOR);
    assert_int_equal(collectives_of("layout.tp=2", device_cpu(), 2), 0);
}

/* With one byte too few the cheapest changes suffice, and each by its smallest step. */
static void the_cheapest_change_comes_first(void **state) {
    (void)state;
    static const char *const changes[] = {"recompute=norm", "batch.sequences=16", "recompute=block offload=activations",
        "recompute=block offload=optimizer", "precision=pure_bf16", "layout.zero", "lora.rank=16 init=FOLDER"};
    Given given = give("configs/llama-tiny.yaml");
    Fit fits[MOST_FITS];
    Device plain = *h100;
    plain.info.first_communicator = 0; /* which is more than all of this model */
    int count = fit_search(&given.config, &plain, 0, 1, total(&given.config, &plain, 1) - 1, fits);
    assert_int_equal(count, 7);
    for (int i = 0; i < count; i++) {
        if (i == 5) assert_string_equal(fits[i].change, "on 2 such devices");
        else assert_string_equal(fits[i].change, changes[i]);
        assert_true(fits[i].fits);
    }
    options_free_strings(&given.strings);
}

/* The inputs of 31 of the 32 layers of 8B, 8,192 rows of 4,096 fp32 values each, wait in host memory. What remains is less than
 * what they took. recompute=auto becomes block. */
static void activations_wait_in_host_memory(void **state) {
    (void)state;
    Given given = give("configs/llama3.1-8b.yaml");
    Budget budgets[2];
    Error error = {0};
    set(&given, "batch.sequences=1");
    set(&given, "batch.tokens=8192");
    for (int i = 0; i < 2; i++) {
        SCOPED(session_free) Session session = {0};
        set(&given, i ? "offload=activations" : "recompute=block");
        assert_true(config_check(&given.config, &error) && session_plan(&session, &given.config, h100, &error));
        budgets[i] = session_budget(&session);
        if (!i) set(&given, "recompute=auto");
        else assert_false(session_check_host_memory(&session, 1 << 20, &error));
    }
    assert_non_null(strstr(error.message, "offload=activations needs"));
    const int64_t input = (int64_t)8192 * 4096 * 4;
    assert_true(budgets[0].saved == 0 && budgets[1].hosted == 0);
    assert_true(budgets[1].saved >= 30 * input && budgets[1].saved <= 34 * input);
    assert_true(budgets[0].activations - budgets[1].activations >= 26 * input);
    assert_true(budgets[0].total - budgets[1].total == budgets[0].activations - budgets[1].activations);
    set(&given, "recompute=norm");
    assert_false(config_check(&given.config, &error));
    assert_non_null(strstr(error.message, "offload=activations"));
    assert_non_null(strstr(error.message, "set recompute=block, or offload=none"));
    Config staged = given.config;
    staged.recompute = RECOMPUTE_BLOCK;
    staged.layout.pp = 2;
    assert_false(layout_check(&staged, 2, &error));
    assert_non_null(strstr(error.message, "offload=activations"));
    options_free_strings(&given.strings);
}

/* Of 8 billion parameters in bf16, 2 bytes of weights and 4 of gradients remain on the card, and 12 are on the host; a device with
 * host memory gets no such advice. Without gradients too, weights are what is left. */
static void state_in_host_memory_makes_a_model_fit(void **state) {
    (void)state;
    static const char *const settings[] = {
        "precision=bf16", "batch.sequences=1", "batch.tokens=8192", "optimizer.clip=0", "recompute=block", "offload=optimizer"};
    const double billion = 1e9;
    Given given = give("configs/llama3.1-8b.yaml");
    SCOPED(session_free) Session whole = {0};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (i == 5) {
            Fit fits[MOST_FITS];
            int count = fit_search(&given.config, h100, 0, 1, (int64_t)70 << 30, fits), advised = 0;
            for (int f = 0; f < count; f++) advised += strstr(fits[f].change, "offload=optimizer") && fits[f].fits;
            assert_int_equal(advised, 1);
            count = fit_search(&given.config, device_cpu(), 0, 1, (int64_t)70 << 30, fits);
            for (int f = 0; f < count; f++) assert_null(strstr(fits[f].change, "offload"));
        }
        set(&given, settings[i]);
    }
    Error error = {0};
    assert_true(session_plan(&whole, &given.config, h100, &error));
    Budget budget = session_budget(&whole);
    double parameters = (double)session_size(&whole).parameters;
    assert_true(fabs((double)budget.hosted / (12 * parameters) - 1) < 1e-3);
    assert_true(budget.master < 16 << 20 && budget.optimizer < 32 << 20 && budget.scratch <= (int64_t)5 << 28);
    assert_true((double)(budget.total - budget.activations - budget.trials) < 6 * parameters + 1.5 * billion);
    assert_false(session_check_host_memory(&whole, 1 << 20, &error)); /* ranks beside each other */
    assert_int_equal(error.code, ERROR_MEMORY);
    assert_non_null(strstr(error.message, "offload=optimizer needs"));
    assert_non_null(strstr(error.message, "offload=none"));
    set(&given, "optimizer.in_backward=true");
    SCOPED(session_free) Session within = {0};
    assert_true(session_plan(&within, &given.config, h100, &error));
    budget = session_budget(&within);
    assert_true(
        (double)(budget.total - budget.activations - budget.trials) < 2 * parameters + 4 * billion); /* the gradients of the two tables */
    options_free_strings(&given.strings);
}

/* A whole fine-tune of 8.8 billion parameters on a card of 80 GB: not with gradients beside weights and moments. */
static void updates_within_the_backward_pass_make_zaya_fit_into_80_gb(void **state) {
    (void)state;
    static const char *const settings[] = {
        "precision=pure_bf16", "optimizer.name=adamw", "batch.ramp_tokens=0", "batch.sequences=1", "batch.tokens=4096"};
    const int64_t memory = (int64_t)77 << 30;
    Given given = give("configs/zaya1-8b.yaml");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) set(&given, settings[i]);
    Fit fits[MOST_FITS];
    int count = fit_search(&given.config, h100, 0, 1, memory, fits), advised = 0;
    assert_true(total(&given.config, h100, 1) > memory);
    for (int f = 0; f < count; f++)
        if (!strcmp(fits[f].change, "optimizer.clip=0 optimizer.in_backward=true")) advised += fits[f].fits;
    assert_int_equal(advised, 1);
    set(&given, "optimizer.clip=0");
    set(&given, "optimizer.in_backward=true");
    SCOPED(session_free) Session session = {0};
    Error error = {0};
    assert_true(session_plan(&session, &given.config, h100, &error));
    Budget budget = session_budget(&session);
    assert_true(budget.total < memory && budget.master > (int64_t)16 << 30);
    assert_true(budget.gradients < budget.master / 12); /* the embedding is a 16th, as its gradients begin with the head's */
    options_free_strings(&given.strings);
}

/* What is left of 3% of the memory decides, from the quickest policy to the one that keeps least. */
static void auto_recomputes_the_least_that_fits(void **state) {
    (void)state;
    static const char *const names[] = {"none", "norm", "attention", "block"};
    Given given = give("configs/llama-tiny.yaml");
    assert_int_equal(given.config.recompute, RECOMPUTE_AUTO);
    Config chosen = given.config;
    for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_BLOCK; policy++) {
        chosen.recompute = policy;
        int64_t fits = (int64_t)((double)total(&chosen, h100, 1) / 0.97) + 1;
        assert_int_equal(fit_recompute(&given.config, h100, 0, 1, fits), policy);
        assert_int_equal(fit_recompute(&given.config, h100, 0, 1, fits - 3), policy < RECOMPUTE_BLOCK ? policy + 1 : policy);
        SCOPED_FREE char *text = page(&given.config, h100, fits), *line = memory_format("recompute   %s, chosen by auto\n", names[policy]);
        if (!strstr(text, line)) fail_msg("\"%s\" is not in:\n%s", line, text);
    }
    assert_int_equal(fit_recompute(&given.config, h100, 0, 1, -1), RECOMPUTE_NONE);
    assert_int_equal(fit_recompute(&given.config, h100, 0, 1, 1), RECOMPUTE_BLOCK);
    chosen.recompute = RECOMPUTE_NORM;
    assert_int_equal(fit_recompute(&chosen, h100, 0, 1, 1), RECOMPUTE_NORM);
    options_free_strings(&given.strings);
}

static void a_stage_of_zero_comes_before_recomputation_where_there_are_ranks(void **state) {
    (void)state;
    Given given = give("configs/llama-tiny.yaml");
    set(&given, "layout.zero=0");
    Fit fits[MOST_FITS];
    assert_true(fit_search(&given.config, h100, 0, 4, total(&given.config, h100, 4) - 1, fits) >= 5);
    assert_string_equal(fits[0].change, "layout.zero=1");
    options_free_strings(&given.strings);
}

/* ZAYA1-8B's head has a third of all FLOPs in a fifth of the time: stages are even by the rates that forecasts have, which know
 * the shape of each GEMM, though they were cut by coarser guesses. One layer is 2% of the model. */
static void stages_of_a_pipeline_take_the_same_time(void **state) {
    (void)state;
    Given given = give("configs/zaya1-8b.yaml");
    Hardware hardware;
    double seconds[2];
    set(&given, "layout.pp=2");
    assert_true(hardware_of_device(&hardware, h100));
    for (int rank = 0; rank < 2; rank++) {
        SCOPED(session_free) Session session = {0};
        Error error = {0};
        if (!session_plan_rank(&session, &given.config, h100, rank, 2, &error)) fail_msg("%s", error.message);
        seconds[rank] = work_times(session.training.model.graph, &hardware, NULL).total;
    }
    assert_true(fabs(seconds[0] - seconds[1]) < 0.04 * (seconds[0] + seconds[1]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_size_of_a_model_depends_on_no_layout_or_recomputation),
        cmocka_unit_test(the_page_has_model_memory_speed_and_chosen_settings),
        cmocka_unit_test(a_run_that_goes_on_is_planned_for_the_steps_that_are_left),
        cmocka_unit_test(the_page_of_a_recipe_has_its_layers_with_reasons_and_the_memory_without_it),
        cmocka_unit_test(each_reason_to_stay_in_bf16_is_told),
        cmocka_unit_test(the_program_follows_when_it_is_asked_for),
        cmocka_unit_test(memory_of_device_and_host_are_never_added_up),
        cmocka_unit_test(ranks_that_are_not_there_are_planned),
        cmocka_unit_test(every_change_saves_what_it_says),
        cmocka_unit_test(no_change_is_advised_that_changes_the_objective),
        cmocka_unit_test(gpus_that_communicate_plan_room_for_it),
        cmocka_unit_test(the_cheapest_change_comes_first),
        cmocka_unit_test(activations_wait_in_host_memory),
        cmocka_unit_test(state_in_host_memory_makes_a_model_fit),
        cmocka_unit_test(updates_within_the_backward_pass_make_zaya_fit_into_80_gb),
        cmocka_unit_test(auto_recomputes_the_least_that_fits),
        cmocka_unit_test(stages_of_a_pipeline_take_the_same_time),
        cmocka_unit_test(a_stage_of_zero_comes_before_recomputation_where_there_are_ranks),
    };
    Hardware hardware;
    Error error = {0};
    if (!hardware_find(&hardware, "h100", &error)) return 1;
    h100 = hardware_device(&hardware);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(h100);
    return failed;
}

/* End to end: a run goes on only as what it was. Each test changes one thing between two starts, and demands that the
 * second start names it, that resume.accept lets it through, and that `smelt show` tells of it afterwards. */
#include "base/scope.h"
#include "base/strings.h"
#include "config/config.h"
#include "run/identity.h"
#include "run/run.h"
#include "support/mentions.h"
#include "support/ranks_run.h"

enum { VALUE_BYTES = 512 };

/* A value that a setting of the tiny run does not have; NULL where every other value makes the configuration invalid for
 * one process, so that it is refused for another reason. */
static const char *other_value(const Option *option, const char *value, char other[VALUE_BYTES]) {
    static const struct {
        const char *name, *value;
    } given[] = {{"model.family", NULL}, {"model.width", "64"}, {"model.heads", "4"}, {"model.kv_heads", "2"}, {"model.head_dim", "32"},
        {"model.vocabulary", "384"}, {"model.experts", "5"}, {"model.experts_per_token", "2"}, {"model.context", "64"},
        {"model.experts_first", NULL}, {"model.experts_period", NULL}, {"model.dense_ffn", NULL}, {"model.window_period", NULL},
        {"model.window_first", NULL}, {"model.window_rope_theta", NULL}, {"model.window_skips", NULL}, {"model.single_layers", NULL},
        {"model.guidance", NULL}, {"model.qkv_bias", NULL}, {"model.qk_norm", NULL}, {"model.router_scores", NULL},
        {"model.expert_groups", NULL}, {"model.groups_chosen", NULL}, {"model.gate_scale", NULL}, {"model.shared_experts", NULL},
        {"model.q_lora_rank", NULL}, {"model.kv_lora_rank", NULL}, {"model.rope_dim", NULL}, {"model.value_dim", NULL},
        {"model.rope_interleave", NULL}, {"model.mtp", NULL}, {"model.rope_query_scale", NULL}, {"model.rope_mscale", NULL},
        {"model.delta_heads", NULL}, {"model.delta_key_heads", NULL}, {"model.delta_key_dim", NULL}, {"model.delta_value_dim", NULL},
        {"model.delta_taps", NULL}, {"model.attention_period", NULL}, {"model.clip_qkv", NULL}, {"model.activation", NULL},
        {"model.swiglu_alpha", NULL}, {"model.swiglu_limit", NULL}, {"model.softmax_scale", NULL}, {"model.nope_period", NULL},
        {"model.embedding_scale", NULL}, {"model.residual_scale", NULL}, {"model.logit_divisor", NULL}, {"model.score_cap", NULL},
        {"model.logit_cap", NULL}, {"model.rope_fraction", "0.5"}, {"model.rope_attention_factor", NULL}, {"data.length", "16"},
        {"batch.sequences", "8"}, {"batch.tokens", "512"}, {"batch.ramp_tokens", "128"}, {"steps", "50"}, {"precision", "fp32"},
        {"fp8.min_size", NULL}, {"fp8.head", NULL}, {"fp8.scaling", NULL}, {"fp8.amax_history_len", NULL}, {"fp8.keep_weights", NULL},
        {"init", NULL}, {"fork", NULL}, {"from", NULL}, {"tokens", NULL}, {"epochs", NULL}, {"run", "run2"}, {"resume.accept", "seed"},
        {"dump", "dumped"}, {"checkpoint.store", "store"}, {"data.train", "text2"}, {"data.valid", "text2"}, {"data.tokenizer", "none"},
        {"data.bos", "false"}, {"data.separator", "%"}, {"data.valid_documents", NULL}, {"eval.pictures", NULL}, {"eval.vae", NULL},
        {"eval.patience", NULL}, {"checkpoint.keep_best", NULL}, {"checkpoint.keep_every", NULL}, {"layout.tp", NULL}, {"layout.pp", NULL},
        {"layout.cp", NULL}, {"layout.ep", NULL}, {"layout.pp_chunks", NULL}, {"layout.pp_schedule", NULL}, {"layout.cp_exchange", NULL},
        {"model.channels", NULL}, {"model.text_width", NULL}, {"model.pooled_width", NULL}, {"model.text_tokens", NULL},
        {"model.rope_first", NULL}, {"optimizer.in_backward", NULL}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (!strcmp(given[i].name, option->name)) return given[i].value;
    static const char *const others[] = {
        "lora.", "flow.", "preference.", "rl."}; /* of runs with adapters, of images, of pairs, of rewards */
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (starts_with(option->name, others[i])) return NULL;
    switch (option->type) {
    case OPTION_BOOL: return strcmp(value, "true") ? "true" : "false";
    case OPTION_CHOICE:
        for (const char *choice = option->choices; choice; choice = strchr(choice, '|') ? strchr(choice, '|') + 1 : NULL) {
            size_t length = strcspn(choice, "|");
            if (length == strlen(value) && !strncmp(choice, value, length)) continue;
            snprintf(other, VALUE_BYTES, "%.*s", (int)length, choice);
            return other;
        }
        return NULL;
    case OPTION_INT: snprintf(other, VALUE_BYTES, "%lld", atoll(value) + 1); return other;
    case OPTION_REAL:
        snprintf(other, VALUE_BYTES, "%.12g", (atof(value) + option->minimum) / 2 + (atof(value) == option->minimum));
        return other;
    default: return NULL;
    }
}

/* Walks the table of settings, so that one that is added later is covered. Zeroed: before the first. */
typedef struct SettingChange {
    size_t next;
    const Option *option;
    char before[VALUE_BYTES], value[VALUE_BYTES]; /* that of the configuration, and another one */
} SettingChange;

static bool next_change(SettingChange *change, const char *path) {
    Config config;
    OptionStrings strings = {0};
    Error error = {0};
    const char *other = NULL;
    options_defaults(&config_table, &config, &strings);
    if (!options_read_yaml(&config_table, &config, &strings, path, &error)) fail_msg("%s", error.message);
    while (!other && change->next < config_table.count) {
        char made[VALUE_BYTES];
        change->option = &config_table.rows[change->next++];
        options_format_value(change->option, &config, change->before, VALUE_BYTES);
        other = other_value(change->option, change->before, made);
        if (other) snprintf(change->value, sizeof change->value, "%s", other);
    }
    options_free_strings(&strings);
    return other;
}

static void copy_run(const char *from, const char *to) {
    char *command = memory_format("rm -rf %s && cp -r %s %s", to, from, to);
    assert_int_equal(system(command), 0);
    free(command);
}

static void expect_remembered(const char *run, const char *name, const char *value, bool expected) {
    Config config;
    OptionStrings strings = {0};
    Error error = {0};
    char text[VALUE_BYTES];
    if (!run_read_config(run, &config, &strings, &error)) fail_msg("%s", error.message);
    options_format_value(options_find(&config_table, name, strlen(name)), &config, text, sizeof text);
    bool remembered = ends_with(text, value); /* paths are absolute */
    if (remembered != expected) fail_msg("%s=%s is %sremembered: config.yaml says %s", name, value, remembered ? "" : "not ", text);
    options_free_strings(&strings);
}

/* What is advised works, and resume.accept is not advised where it does not. */
static void a_fixed_setting_is_named_and_refused_with_a_cure(const SettingChange *change) {
    static const char advice[] = "; resume.accept=";
    char *line = memory_format("\n%s: ", change->option->name);
    copy_run("run", "other");
    assert_int_equal(remove("other/config.yaml"), 0); /* the checkpoint alone knows */
    char *words = memory_format("train " TINY " run=other stop_at=2 %s=%s", change->option->name, change->value);
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_USAGE, words);
    assert_mentions(result.errors, line);
    assert_true(access("other/config.yaml", F_OK) != 0);
    const char *cure = strstr(result.errors, advice);
    if (!cure == !strstr(result.errors, "resume.accept does not allow")) fail_msg("%s: %s", words, result.errors);
    if (cure && strcmp(change->option->name, "data.tokenizer") != 0) /* none, which no text has */
        train_good("run=other stop_at=2 %s=%s %.*s", change->option->name, change->value, (int)strcspn(cure + 2, " "), cure + 2);
    process_free(&result);
    free(words);
    free(line);
}

static void a_change_is_printed_recorded_and_remembered(const SettingChange *change) {
    const char *name = change->option->name;
    char *recorded = memory_format("changed: %s: ", name);
    copy_run("run", "other");
    train_says(ERROR_NONE, name, "run=other stop_at=2 %s=%s", name, change->value);
    ProcessResult shown = smelt("show other");
    if (!strstr(shown.output, recorded)) fail_msg("\"%s\" is not in:\n%s", recorded, shown.output);
    process_free(&shown);
    expect_remembered("other", name, change->value, true);
    assert_true(has_checkpoint("other", 2));
    free(recorded);
}

static void a_free_setting_changes_no_bit(const SettingChange *change) {
    const char *name = change->option->name;
    copy_run("run", "other");
    train_good("run=other stop_at=2 %s=%s", name, change->value);
    json_auto_t *record = json_load_file("other/run.json", 0, NULL);
    assert_int_equal(json_array_size(json_object_get(json_array_get(json_object_get(record, "history"), 1), "changes")), 0);
    char *step = shard_path("other", 2), *expected = shard_path("whole", 2);
    if (!same_bytes(step, expected)) fail_msg("%s=%s changes results", name, change->value);
    expect_remembered("other", name, change->value, true);
    free(step);
    free(expected);
}

static void a_setting_of_one_start_is_not_remembered(const SettingChange *change) {
    copy_run("run", "other");
    train_good("run=other steps=5 %s=%s", change->option->name, change->value);
    expect_remembered("other", change->option->name, change->option->initial, true);
}

static void every_setting_does_on_a_run_that_has_started_what_its_class_says(void **state) {
    (void)state;
    static void (*const checks[])(const SettingChange *) = {
        [OPTION_FIXED] = a_fixed_setting_is_named_and_refused_with_a_cure,
        [OPTION_CHANGES] = a_change_is_printed_recorded_and_remembered,
        [OPTION_FREE] = a_free_setting_changes_no_bit,
        [OPTION_ONCE] = a_setting_of_one_start_is_not_remembered,
    };
    int tried[OPTION_ONCE + 1] = {0};
    write_corpus("text2", 9000);
    train_good("run=whole stop_at=2");
    train_good("run=run stop_at=1");
    for (SettingChange change = {0}; next_change(&change, "run/config.yaml");) {
        if (!strcmp(change.option->name, "run") || !strcmp(change.option->name, "checkpoint.store")) continue; /* another place */
        checks[change.option->class](&change);
        tried[change.option->class]++;
    }
    assert_true(tried[OPTION_FIXED] >= 40 && tried[OPTION_CHANGES] >= 29 && tried[OPTION_FREE] >= 12 && tried[OPTION_ONCE] >= 5);
}

static void axes_of_a_layout_change_with_the_ranks(void **state) {
    (void)state;
    static const char *const names[] = {"layout.tp", "layout.pp", "layout.cp", "layout.ep"};
    static const char model[] = "model.heads=4 model.kv_heads=2";
    if (!has_mpi()) skip();
    train_ranks(0, "%s run=run stop_at=1", model);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *recorded = memory_format("changed: %s: 1 -> 2", names[i]);
        copy_run("run", "other");
        train_ranks(2, "%s run=other stop_at=2 %s=2", model, names[i]);
        ProcessResult shown = smelt("show other");
        if (!strstr(shown.output, recorded)) fail_msg("\"%s\" is not in:\n%s", recorded, shown.output);
        process_free(&shown);
        expect_remembered("other", names[i], "2", true);
        free(recorded);
    }
}

static void an_accepted_setting_is_recorded(void **state) {
    (void)state;
    train_good("run=run stop_at=10");
    train_says(ERROR_USAGE, "resume.accept=data.document_mask continues", "run=run data.document_mask=false");
    train_says(ERROR_USAGE, "'dota' results", "run=run data.document_mask=false resume.accept=dota");
    train_says(ERROR_NONE, "data.document_mask: true -> false (resume.accept) from step 11 on",
        "run=run data.document_mask=false resume.accept=data stop_at=20");
    train_good("run=run data.document_mask=false stop_at=20"); /* does nothing */
    train_good("run=run data.document_mask=false");
    ProcessResult shown = smelt("show run");
    expect_code(&shown, 0, "show run");
    assert_non_null(strstr(shown.output, "changed: data.document_mask: true -> false (resume.accept)"));
    const char *idle = strstr(shown.output, "no step of this start was kept"), *last = strstr(shown.output, "continued after step 20");
    assert_true(idle && last && idle > last && !strstr(idle + 1, "no step of this start"));
    assert_non_null(strstr(shown.output, "step 40, after that of step 20"));
    process_free(&shown);
}

/* What a checkpoint holds cannot be another's: the cure is another run, from these weights where they are its model's. */
static void a_setting_that_decides_what_a_checkpoint_holds_is_never_accepted(void **state) {
    (void)state;
    train_good("run=run steps=2 schedule.warmup=0");
    static const char none[] = "resume.accept does not allow its checkpoints another ";
    static const char *const changes[][2] = {
        {"precision=pure_bf16", "precision"}, {"model.width=64", "model.width"}, {"model.layers=3", "model.layers"}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        SCOPED_FREE char *expected = memory_format("%s%s", none, changes[i][1]);
        train_says(ERROR_USAGE, expected, "run=run steps=4 %s resume.accept=%s", changes[i][0], changes[i][1]);
    }
    train_says(ERROR_USAGE, "or another run folder with init=run, which starts from these weights", "run=run precision=pure_bf16");
    train_good("run=next init=run precision=pure_bf16 steps=1 schedule.warmup=0");
    train_says(ERROR_USAGE, "or another run folder; resume.accept does not allow", "run=run model.width=64");
    train_says(ERROR_USAGE, none, "run=run init=next resume.accept=init");
}

static void the_store_of_another_run_is_refused(void **state) {
    (void)state;
    train_good("run=first checkpoint.store=store stop_at=10");
    train_says(ERROR_USAGE, "\nrun: ", "run=second checkpoint.store=store");
    train_says(ERROR_NONE, "continuing second after step 10", "run=second checkpoint.store=store resume.accept=run stop_at=20");
    train_says(ERROR_USAGE, "\nrun: ", "run=first checkpoint.store=store");
    train_good("run=second checkpoint.store=store");
}

static void checkpoints_of_another_run_are_not_evaluated(void **state) {
    (void)state;
    train_good("run=first checkpoint.store=store stop_at=10");
    train_good("run=second checkpoint.store=store resume.accept=run stop_at=20");
    ProcessResult result = smelt("eval first text");
    expect_code(&result, ERROR_CHECKPOINT, "eval first");
    assert_mentions(result.errors, "/store belongs to run ");
    process_free(&result);
    result = smelt("eval second text");
    expect_code(&result, 0, "eval second");
    process_free(&result);
}

static void a_start_that_fails_leaves_the_run_as_it_was(void **state) {
    (void)state;
    train_good("run=run stop_at=10");
    assert_true(rename("run/run.json", "before") == 0 && link("before", "run/run.json") == 0);
    write_text("short", "too short\nfor that\n");
    train_says(ERROR_DATA, "data.valid=short: ", "run=run data.valid=short");
    train_says(ERROR_USAGE, "steps=8 10", "run=run steps=8");
    assert_true(same_bytes("before", "run/run.json"));
    train_good("run=run");
}

static void other_text_that_is_accepted_is_packed_anew(void **state) {
    (void)state;
    write_corpus("text2", 3000);
    train_good("run=run stop_at=10");
    train_good("run=fresh data.train=text2 stop_at=1");
    train_good("run=run data.train=text2 resume.accept=data stop_at=20");
    assert_true(same_bytes("run/data/text-train.bin", "fresh/data/text-train.bin"));
    train_good("run=run data.train=text2");
}

static void a_start_on_another_device_says_that_bits_may_differ(void **state) {
    (void)state;
    json_error_t reason;
    train_good("run=run stop_at=5");
    train_says(ERROR_NONE, "continuing run after step 5", "run=run stop_at=10");
    json_t *record = json_load_file("run/run.json", 0, &reason), *history = json_object_get(record, "history");
    json_t *start = json_array_get(history, json_array_size(history) - 1);
    assert_int_equal(json_integer_value(json_object_get(start, "ranks")), 1);
    assert_non_null(strstr(json_string_value(json_object_get(start, "device")), "CPU, kernels for "));
    json_object_set_new(start, "device", json_string("NVIDIA H200 (sm_90a), cuBLASLt 130100"));
    assert_int_equal(json_dump_file(record, "run/run.json", 0), 0);
    json_decref(record);
    train_says(ERROR_NONE, "warning: bits may differ from step 10 on: 1 rank of NVIDIA H200 (sm_90a), cuBLASLt 130100 before, 1 of CPU,",
        "run=run stop_at=15");
    Process process = train_start("run=run stop_at=20");
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_NONE, "run");
    assert_null(strstr(result.errors, "bits may differ"));
    process_free(&result);
}

static void a_broken_model_is_no_success(void **state) {
    (void)state;
    train_says(ERROR_NUMERICS, "validation after 2",
        "run=run steps=2 schedule.warmup=0 schedule.kind=constant optimizer.lr=100 optimizer.weight_decay=100 "
        "optimizer.decay_vectors=true");
}

static void two_living_runs_do_not_share_a_store(void **state) {
    (void)state;
    Process first = train_start("run=first checkpoint.store=store checkpoint.every=5 steps=1000000");
    process_await_steps(&first, 7);
    train_says(ERROR_USAGE, "store/ run", "run=second checkpoint.store=store steps=1000000 resume.accept=run");
    kill(first.id, SIGKILL);
    ProcessResult killed = process_finish(&first);
    process_free(&killed);
    Process second = train_start("run=second checkpoint.store=store steps=1000000 resume.accept=run"); /* the other one is dead */
    process_await_steps(&second, 2);
    kill(second.id, SIGTERM);
    ProcessResult stopped = process_finish(&second);
    expect_code(&stopped, ERROR_PREEMPTED, "second");
    process_free(&stopped);
    assert_true(access("store/lease.json", F_OK) != 0);
}

/* The first run stands still for so long that its lease ends: by the clock of its lease here, which is set back. */
static void a_run_that_has_lost_its_store_ends_before_it_saves_again(void **state) {
    (void)state;
    Process first = train_start("run=first checkpoint.store=store checkpoint.every=5 steps=1000000");
    process_await_text(&first, "checkpoint step 5", 1);
    kill(first.id, SIGSTOP);
    write_text(
        "store/lease.json", "{\"run\": \"r\", \"folder\": \"first\", \"holder\": \"elsewhere 1 1\", \"renewed\": 1, \"every\": 0.1}");
    Process second = train_start("run=second checkpoint.store=store checkpoint.every=1000000 steps=1000000 resume.accept=run");
    process_await_steps(&second, 1);
    kill(first.id, SIGCONT);
    ProcessResult lost = process_finish(&first);
    expect_code(&lost, ERROR_USAGE, "first");
    assert_mentions(lost.errors, "store/lease.json");
    process_free(&lost);
    assert_int_equal(access("store/lease.json", F_OK), 0);
    kill(second.id, SIGTERM);
    ProcessResult stopped = process_finish(&second);
    expect_code(&stopped, ERROR_PREEMPTED, "second");
    process_free(&stopped);
}

static void a_lease_that_was_removed_by_hand_does_not_end_the_saves(void **state) {
    (void)state;
    Process process = train_start("run=run checkpoint.every=5 steps=1000000");
    process_await_text(&process, "checkpoint step 5", 1);
    assert_int_equal(unlink("run/lease.json"), 0);
    WAIT_UNTIL(access("run/lease.json", F_OK) == 0, "run/lease.json was not written again");
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_PREEMPTED, "run");
    assert_null(strstr(result.errors, "was not saved"));
    process_free(&result);
}

static void a_run_folder_that_is_moved_while_it_trains_gets_no_more_checkpoints_elsewhere(void **state) {
    (void)state;
    Process process = train_start("run=run checkpoint.every=5 steps=1000000");
    process_await_steps(&process, 7);
    assert_int_equal(rename("run", "moved"), 0);
    process_await_text(&process, "lease.json", 1);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_CHECKPOINT, "moved");
    assert_mentions(result.errors, "training");
    assert_true(access("run", F_OK) != 0);
    process_free(&result);
    train_good("run=moved steps=1000000 stop_at=12");
}

static void a_run_folder_that_ranks_do_not_share_is_refused_before_the_first_step(void **state) {
    (void)state;
    int port = process_free_port();
    Process ranks[2];
    for (int r = 0; r < 2; r++) {
        char *folder = memory_format("node%d", r);
        assert_int_equal(mkdir(folder, 0777), 0);
        assert_true(chdir(folder) == 0 && symlink("../text", "text") == 0);
        ranks[r] = rank_start(r, port, "run=run checkpoint.every=5");
        assert_int_equal(chdir(".."), 0);
        free(folder);
    }
    ProcessResult results[2] = {process_finish(&ranks[0]), process_finish(&ranks[1])};
    expect_code(&results[1], ERROR_USAGE, "rank 1");
    expect_code(&results[0], ERROR_USAGE, "rank 0"); /* the reason of the one that cannot go on */
    assert_mentions(results[0].errors, "1 2 ranks");
    assert_mentions(results[1].errors, "run/lease.json rank 0 20 s");
    for (int r = 0; r < 2; r++) process_free(&results[r]);
}

/* Each update multiplies the weights by 1 - lr * weight_decay, some -10^4: infinity is a few steps away. */
#define EXPLODING "schedule.kind=constant schedule.warmup=0 optimizer.lr=100 optimizer.weight_decay=100 on_nan=skip"

static void skipped_updates_push_no_sound_checkpoint_out_and_a_restart_does_not_forget_them(void **state) {
    (void)state;
    train_says(ERROR_NUMERICS, "21 consecutive updates", "run=run checkpoint.every=1 checkpoint.keep=1 " EXPLODING);
    json_t *list = records("run", "step");
    size_t first = 0;
    while (!json_is_true(json_object_get(json_array_get(list, first), "skipped"))) first++;
    json_decref(list);
    assert_true(first > 0 && has_checkpoint("run", (int64_t)first));
    assert_true(has_checkpoint("run", (int64_t)first + 20));
    train_says(ERROR_NUMERICS, "21 consecutive updates", "run=run checkpoint.every=1 checkpoint.keep=1 " EXPLODING);
    assert_true(has_checkpoint("run", (int64_t)first));
}

static void a_run_most_of_whose_updates_were_skipped_fails(void **state) {
    (void)state;
    train_says(ERROR_NUMERICS, "infinity", "run=run steps=18 " EXPLODING);
    assert_false(has_checkpoint("run", 18));
    train_says(ERROR_NUMERICS, "infinity", "run=run steps=18 " EXPLODING);
}

static void a_lost_run_file_is_found_again_in_the_folders_own_checkpoints(void **state) {
    (void)state;
    train_good("run=run stop_at=10");
    ProcessResult before = smelt("show run");
    assert_int_equal(remove("run/run.json"), 0);
    train_good("run=run stop_at=20");
    ProcessResult after = smelt("show run");
    const char *line = strstr(before.output, "  run  ");
    assert_non_null(line);
    char *number = strndup(line, strcspn(line, "\n"));
    if (!strstr(after.output, number)) fail_msg("%s is not in:\n%s", number, after.output);
    free(number);
    process_free(&before);
    process_free(&after);
}

static void the_checksum_of_a_content_decides_and_not_the_words_before_it(void **state) {
    (void)state;
    static const char name[] = "data.train.content";
    json_auto_t *changes = json_array();
    json_auto_t *saved = identity_saved_settings(NULL);
    json_object_set_new(saved, name, json_string("1 documents, 5 tokens, xxh3 00000000000000aa"));
    json_auto_t *same = identity_saved_settings(NULL);
    json_object_set_new(same, name, json_string("1 document, 5 tokens, xxh3 00000000000000aa"));
    json_auto_t *other = identity_saved_settings(NULL);
    json_object_set_new(other, name, json_string("1 documents, 5 tokens, xxh3 00000000000000ab"));
    Error error = {0};
    assert_true(identity_check("a checkpoint", saved, same, "", changes, &error));
    assert_false(identity_check("a checkpoint", saved, other, "", changes, &error));
    assert_int_equal(error.code, ERROR_USAGE);
}

static void a_shard_that_was_packed_again_under_its_name_is_refused(void **state) {
    (void)state;
    train_good("run=packer stop_at=1");
    write_corpus("text2", 9000);
    train_good("run=other stop_at=1 data.train=text2");
    train_good("run=run data.train=packer/data/text-train data.valid=packer/data/text-valid stop_at=10");
    for (int i = 0; i < 2; i++) {
        const char *end = i ? "idx" : "bin";
        char *from = memory_format("other/data/text-train.%s", end), *to = memory_format("packer/data/text-train.%s", end);
        assert_int_equal(rename(from, to), 0);
        free(from);
        free(to);
    }
    train_says(ERROR_USAGE, "\ndata.train.content: ", "run=run data.train=packer/data/text-train data.valid=packer/data/text-valid");
    train_good("run=run data.train=packer/data/text-train data.valid=packer/data/text-valid resume.accept=data");
}

static void a_text_that_a_shard_of_the_same_name_shadows_is_refused(void **state) {
    (void)state;
    write_corpus("text2", 9000);
    train_good("run=other stop_at=1 data.train=text2");
    train_good("run=run stop_at=10");
    assert_int_equal(rename("other/data/text-train.bin", "text.bin"), 0);
    assert_int_equal(rename("other/data/text-train.idx", "text.idx"), 0);
    train_says(ERROR_USAGE, "\ndata.tokenizer: ", "run=run");
}

static void the_base_of_adapters_that_trained_on_is_refused(void **state) {
    (void)state;
    train_good("run=base stop_at=10 model.experts=0 model.family=llama");
    train_good("run=run init=base model.experts=0 model.family=llama lora.rank=2 stop_at=5");
    train_good("run=run init=base model.experts=0 model.family=llama lora.rank=2 stop_at=6");
    train_good("run=base model.experts=0 model.family=llama");
    train_says(ERROR_USAGE, "\ninit.content: ", "run=run init=base model.experts=0 model.family=llama lora.rank=2");
    ProcessResult result = smelt("eval run text");
    expect_code(&result, ERROR_CHECKPOINT, "eval run");
    assert_mentions(result.errors, "init=");
    process_free(&result);
    train_good("run=run init=base model.experts=0 model.family=llama lora.rank=2 resume.accept=init");
}

/* Inverts the lowest bit of a byte, where no sample of a file of more than 4 MiB lies. */
static void flip_between_samples(const char *path) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 70000, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, 70000, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

#define LARGE "model.experts=0 model.family=llama model.width=128 model.layers=6 model.ffn=512 model.router_width=64 precision=fp32 "
static void a_base_that_was_changed_between_samples_is_refused(void **state) {
    (void)state;
    static const char *const files[] = {"", "{", "[]", "{\"format\": 2, \"files\": {}}", "{\"format\": 1, \"files\": {}, \"xxh3\": \"1\"}"};
    static const char weights[] = "base/model.safetensors", on[] = "run=run init=base lora.rank=2 " LARGE "stop_at=%d";
    train_good("run=first stop_at=1 " LARGE);
    smelt_good("convert first base");
    int64_t bytes;
    assert_true(file_kind(weights, &bytes) == FILE_REGULAR && bytes > 5 << 20);
    train_good(on, 2);
    assert_true(file_exists("run/base.json"));
    train_good(on, 3);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_text("run/base.json", files[i]);
        train_good(on, 4 + (int)i);
    }
    flip_between_samples(weights);
    for (int i = 0; i < 2; i++) {
        train_says(ERROR_USAGE, "\ninit.content: ", on, 10);
        smelt_says(ERROR_CHECKPOINT, "init=", "eval run text");
        remove("run/base.json"); /* a file that is gone is as good as one that is not right */
    }
    flip_between_samples(weights);
    train_good(on, 10);
    smelt_good("eval run text");
}

/* One of two ranks, in a folder of its own with its own base. The first rank of a node reads the base whole. */
static Process start_beside_base(int rank, int nodes, int port, const char *run) {
    const int node = nodes == 2 ? rank : 0;
    SCOPED_FREE char *words = memory_format("-C node%d RANK=%d LOCAL_RANK=%d GROUP_RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
                                            "MASTER_PORT=%d %s train " TINY " run=%s init=base lora.rank=2 " LARGE "stop_at=1",
        rank, rank, rank - node, node, port, getenv("SMELT"), run);
    return words_start("/usr/bin/env", words);
}

static void bases_of_two_nodes_are_compared_whole(void **state) {
    train_good("run=first stop_at=1 " LARGE);
    assert_int_equal(system("$SMELT convert first node0/base && cp -r node0 node1 && ln -s ../text node0 && ln -s ../text node1"), 0);
    flip_between_samples("node1/base/model.safetensors");
    for (int nodes = 1; nodes <= 2; nodes++) {
        int port = process_free_port(), code = nodes == 2 ? ERROR_USAGE : ERROR_NONE;
        SCOPED_FREE char *run = memory_format("%s/run-%d", (char *)*state, nodes);
        Process ranks[2] = {start_beside_base(0, nodes, port, run), start_beside_base(1, nodes, port, run)};
        ProcessResult results[2] = {process_finish(&ranks[0]), process_finish(&ranks[1])};
        for (int rank = 0; rank < 2; rank++) expect_code(&results[rank], code, run);
        assert_int_equal(strstr(results[1].errors, "rank 1 and rank 0 differ in data: init.content") != NULL, nodes == 2);
        for (int rank = 0; rank < 2; rank++) process_free(&results[rank]);
    }
}

/* Checkpoints of older builds have the checksum of samples alone. */
static void contents_are_compared_by_the_checksums_that_both_have(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"xxh3 12", "xxh3 12", true},
        {"xxh3 12", "xxh3 13", false},
        {"1 documents, xxh3 12", "1 document, xxh3 12", true},
        {"xxh3 12", "xxh3 12, whole 34", true},
        {"xxh3 12, whole 34", "xxh3 12", true},
        {"xxh3 12, whole 34", "xxh3 12, whole 35", false},
        {"xxh3 12", "xxh3 13, whole 34", false},
        {"xxh3 1", "xxh3 12, whole 34", false},
        {"run 5 after step 4", "run 5 after step 5", false},
        {"run 5 after step 4", "xxh3 12, whole 34", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(identity_same_content(cases[i].a, cases[i].b), cases[i].same);
}

static void a_configuration_that_is_not_its_checkpoints_is_not_evaluated(void **state) {
    (void)state;
    train_good("run=run stop_at=10");
    ProcessResult good = smelt("eval run text");
    expect_code(&good, 0, "eval");
    process_free(&good);
    size_t length;
    char *text = (char *)read_bytes("run/config.yaml", &length), *at = memmem(text, length, "rope_theta: 10000", 17);
    assert_non_null(at);
    memcpy(at, "rope_theta: 20000", 17);
    write_bytes("run/config.yaml", (unsigned char *)text, length);
    free(text);
    ProcessResult result = smelt("eval run text");
    expect_code(&result, ERROR_CHECKPOINT, "eval");
    assert_mentions(result.errors, "model.rope_theta=10000");
    process_free(&result);
}

static void expect_other_rank(const char *setting, const char *name) {
    int port = process_free_port();
    char *other = memory_format("run=run %s", setting), *line = memory_format("%s is ", name);
    Process ranks[2] = {rank_start(0, port, "run=run"), rank_start(1, port, other)};
    ProcessResult results[2] = {process_finish(&ranks[0]), process_finish(&ranks[1])};
    expect_code(&results[0], ERROR_USAGE, other);
    expect_code(&results[1], ERROR_USAGE, other);
    if (!mentions(results[1].errors, line)) fail_msg("%s: not named in:\n%s", other, results[1].errors);
    process_free(&results[0]);
    process_free(&results[1]);
    free(other);
    free(line);
}

static void a_setting_of_one_rank_alone_is_named_before_anything_is_written(void **state) {
    (void)state;
    static const char *const elsewhere = "device"; /* decides whether ranks meet at all */
    SettingChange change = {0};
    int tried = 0;
    train_good("run=alone stop_at=1");
    while (next_change(&change, "alone/config.yaml")) {
        if (strstr(elsewhere, change.option->name)) continue;
        char *setting = memory_format("%s=%s", change.option->name, change.value);
        expect_other_rank(setting, change.option->name);
        free(setting);
        tried++;
    }
    assert_true(tried > 70);
    assert_true(access("run", F_OK) != 0);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(every_setting_does_on_a_run_that_has_started_what_its_class_says),
        TRAIN_TEST(axes_of_a_layout_change_with_the_ranks),
        TRAIN_TEST(an_accepted_setting_is_recorded),
        TRAIN_TEST(a_setting_that_decides_what_a_checkpoint_holds_is_never_accepted),
        TRAIN_TEST(the_store_of_another_run_is_refused),
        TRAIN_TEST(checkpoints_of_another_run_are_not_evaluated),
        TRAIN_TEST(a_start_that_fails_leaves_the_run_as_it_was),
        TRAIN_TEST(other_text_that_is_accepted_is_packed_anew),
        TRAIN_TEST(a_start_on_another_device_says_that_bits_may_differ),
        TRAIN_TEST(a_broken_model_is_no_success),
        TRAIN_TEST(two_living_runs_do_not_share_a_store),
        TRAIN_TEST(a_run_that_has_lost_its_store_ends_before_it_saves_again),
        TRAIN_TEST(a_lease_that_was_removed_by_hand_does_not_end_the_saves),
        TRAIN_TEST(a_run_folder_that_is_moved_while_it_trains_gets_no_more_checkpoints_elsewhere),
        TRAIN_TEST(a_run_folder_that_ranks_do_not_share_is_refused_before_the_first_step),
        TRAIN_TEST(skipped_updates_push_no_sound_checkpoint_out_and_a_restart_does_not_forget_them),
        TRAIN_TEST(a_run_most_of_whose_updates_were_skipped_fails),
        TRAIN_TEST(a_lost_run_file_is_found_again_in_the_folders_own_checkpoints),
        TRAIN_TEST(the_checksum_of_a_content_decides_and_not_the_words_before_it),
        TRAIN_TEST(a_shard_that_was_packed_again_under_its_name_is_refused),
        TRAIN_TEST(a_text_that_a_shard_of_the_same_name_shadows_is_refused),
        TRAIN_TEST(the_base_of_adapters_that_trained_on_is_refused),
        TRAIN_TEST(a_base_that_was_changed_between_samples_is_refused),
        TRAIN_TEST(bases_of_two_nodes_are_compared_whole),
        cmocka_unit_test(contents_are_compared_by_the_checksums_that_both_have),
        TRAIN_TEST(a_setting_of_one_rank_alone_is_named_before_anything_is_written),
        TRAIN_TEST(a_configuration_that_is_not_its_checkpoints_is_not_evaluated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* End to end: what a run with a mixture keeps and what may change, how its documents are packed, what is told of it, the
 * curricula that smelt comes with, and data that can no longer be read. */
#include "support/mentions.h"
#include "support/mixture_run.h"

static char *source_folder; /* an absolute path */

/* -- Changes ------------------------------------------------------------------------------------------------------- */

static void a_later_phase_may_change_and_one_that_has_begun_may_not(void **state) {
    (void)state;
    train_good(MIXED "run=r stop_at=%d", SHORT_END);
    change_mixture("prose: 75", "prose: 74");
    train_says(ERROR_USAGE, "data.train.phase.1: short, 2560 tokens, in sequences of 16, RoPE base 10000: prose 75, code 25 -> short",
        MIXED "run=r");
    change_mixture("prose: 1, code: 1", "prose: 2, code: 1");
    train_says(ERROR_NONE, "data.train.phase.2: middle, 2600 tokens, in sequences of 32, RoPE base 1e+06: prose 1, code 1 -> middle",
        MIXED "run=r stop_at=%d", SHORT_END + 2);
    assert_int_equal(count_records("r", "step"), SHORT_END + 2);
    write_text("mix.yaml", mixture_text);
    train_says(ERROR_USAGE, "data.train.phase.2: middle", MIXED "run=r");
    train_good(MIXED "run=r resume.accept=data.train.phase.2");
    assert_int_equal(count_records("r", "step"), STEPS);
}

static void sources_are_what_they_hold(void **state) {
    (void)state;
    train_good(MIXED "run=r stop_at=5");
    change_mixture("path: code", "path: text");
    train_says(ERROR_USAGE, "data.train.source.code.content", MIXED "run=r");
    assert_int_equal(rename("code", "moved"), 0);
    change_mixture("path: code", "path: moved");
    train_good(MIXED "run=r stop_at=8");
    change_mixture("- {name: prose", "- {name: unused, path: text}\n  - {name: prose");
    train_says(ERROR_USAGE, "data.train.source.prose.order 1 32 -> 2", MIXED "run=r");
}

/* A mixture travels with its data: it is found from any folder, and goes on where both have moved. */
static void a_mixture_moves_with_its_data(void **state) {
    (void)state;
    assert_int_equal(
        mkdir("set", 0777) + rename("mix.yaml", "set/mix.yaml") + rename("prose", "set/prose") + rename("code", "set/code"), 0);
    train_good(MIXED "data.train=set/mix.yaml run=r stop_at=5");
    assert_int_equal(mkdir("elsewhere", 0777) + chdir("elsewhere"), 0);
    ProcessResult result = smelt("train ../r stop_at=8");
    expect_code(&result, ERROR_NONE, "from another folder");
    assert_null(strstr(result.errors, "is gone"));
    process_free(&result);
    assert_int_equal(chdir(".."), 0);
    assert_int_equal(rename("set", "moved"), 0);
    train_good(MIXED "data.train=moved/mix.yaml run=r");
    assert_int_equal(count_records("r", "step"), STEPS);
}

/* A run reads its packed copy of a source, unless it is allowed to take what is there now. */
static void text_of_a_source_that_changes_is_named_and_taken_where_it_is_allowed(void **state) {
    (void)state;
    train_good(MIXED "run=r stop_at=3");
    write_corpus("prose", 6100);
    train_says(ERROR_NONE, "resume.accept=data.train.source.prose", MIXED "run=r stop_at=4");
    train_says(ERROR_NONE, "data.train.source.prose.content: ", MIXED "run=r stop_at=5 resume.accept=data.train.source.prose");
    assert_int_equal(rename("prose", "away"), 0);
    train_says(ERROR_NONE, "r/data", MIXED "run=r stop_at=6");
    train_says(ERROR_NONE, "33 steps=33", MIXED "run=r stop_at=7 steps=40");
}

static void a_mixture_in_place_of_data_is_refused_and_other_yaml_is_text(void **state) {
    (void)state;
    static const char refused[] = "mix.yaml data.train";
    train_says(ERROR_USAGE, refused, MIXED "run=r data.valid=mix.yaml");
    train_says(ERROR_USAGE, refused, MIXED "run=r data.valid=mix.yaml plan=true");
    smelt_says(ERROR_USAGE, refused, "data pack mix.yaml packed");
    write_text("outer.yaml", "sources: [{name: inner, path: mix.yaml}]\nphases: [{tokens: 2560, length: 16, weights: {inner: 1}}]\n");
    train_says(ERROR_USAGE, refused, "data.train=outer.yaml run=r");
    train_good(MIXED "run=r stop_at=1");
    smelt_says(ERROR_USAGE, refused, "eval r mix.yaml");
    write_text("other.yaml", "sources: none, for this is text\n");
    smelt_good("data pack other.yaml packed");
}

static void text_beside_shards_is_named_as_left_out(void **state) {
    (void)state;
    assert_int_equal(mkdir("both", 0777), 0);
    smelt_good("data pack code both/code");
    ProcessResult shards = smelt("data show both");
    assert_null(strstr(shards.errors, "left out"));
    process_free(&shards);
    write_text("both/a.txt", "text\n");
    write_text("both/b.jsonl", "{\"text\": \"text\"}\n");
    train_says(ERROR_NONE, "both token shards", "data.train=both run=r stop_at=1");
}

/* -- Validation documents ------------------------------------------------------------------------------------------- */

static void assert_same_evaluations(const char *one, const char *other) {
    int count = count_records(one, "evaluation");
    assert_true(count > 0 && count == count_records(other, "evaluation"));
    for (int i = 0; i < count; i++) assert_true(recorded(one, "evaluation", i, "loss") == recorded(other, "evaluation", i, "loss"));
}

/* A mixture of shards and text holds out the documents of data split, and a stopped run continues with them. */
static void documents_are_held_out_of_a_mixture_and_of_shards(void **state) {
    (void)state;
#define HELD_OUT "data.length=16 batch.sequences=8 steps=12 eval.every=4 data.tokenizer=bytes "
    FILE *file = fopen("code.jsonl", "w");
    for (int i = 0; i < 3000; i++) fprintf(file, "{\"text\": \"x%d = f(%d);\"}\n", i % 97, i * 31 % 101);
    fclose(file);
    smelt_good("data pack code.jsonl packed");
    smelt_good("data split packed part valid=0.1");
    train_good(HELD_OUT "run=split data.train=part-train data.valid=part-valid");
    train_good(HELD_OUT "run=whole data.train=packed data.valid_documents=0.1");
    assert_same_steps("split", "whole");
    assert_same_evaluations("split", "whole");
    write_text("mix.yaml", "sources: [{name: code, path: packed, epochs: 9}, {name: text, path: code.jsonl}]\n"
                           "phases: [{tokens: 512, length: 16, weights: {code: 1}}, {length: 16, weights: {code: 1, text: 1}}]\n");
    train_good(HELD_OUT "run=mixed data.train=mix.yaml data.valid_documents=0.1");
    train_good(HELD_OUT "run=stopped data.train=mix.yaml data.valid_documents=0.1 stop_at=5");
    smelt_good("train stopped fork=forked from=5");
    assert_int_equal(system("rm -r stopped/data/split*"), 0);
    train_good(HELD_OUT "run=stopped data.train=mix.yaml data.valid_documents=0.1");
    assert_same_steps("mixed", "stopped");
    assert_same_evaluations("mixed", "stopped");
    train_says(ERROR_USAGE, "data.valid_documents: 0.1 -> 0.2", HELD_OUT "run=stopped data.train=mix.yaml data.valid_documents=0.2");
    smelt_says(ERROR_NONE, "split-valid", "eval whole");
}

/* -- Packing ------------------------------------------------------------------------------------------------------- */

static void documents_are_packed_by_best_fit_where_a_source_has_one_length(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "source sequences 16 32", MIXED "run=r data.packing=best_fit");
    train_says(ERROR_USAGE, "data.document_mask=true", "run=r data.packing=best_fit data.document_mask=false");
    assert_int_not_equal(access("r", F_OK), 0);
    mkdir("lines", 0777);
    for (int i = 0; i < 200; i++) { /* 2 of 20 to 29 tokens do not share 48: a third of each sequence is padding, or more */
        SCOPED_FREE char *name = memory_format("lines/%d", i), *line = memory_format("%0*d", 24 + i % 10, i);
        write_text(name, line);
    }
    train_says(ERROR_NONE, "200 sequences 48 packed",
        "data.train=lines data.valid=text run=whole data.length=48 "
        "batch.sequences=2 batch.tokens=96 data.packing=best_fit");
    train_good(
        "data.train=lines data.valid=text run=parts data.length=48 batch.sequences=2 batch.tokens=96 data.packing=best_fit stop_at=7");
    assert_int_equal(system("rm parts/data/bins-*-48.bins"), 0); /* is made anew */
    train_good("data.train=lines data.valid=text run=parts data.length=48 batch.sequences=2 batch.tokens=96 data.packing=best_fit");
    assert_same_steps("whole", "parts");
    ProcessResult epoch =
        smelt("train data.train=lines data.valid=text run=epoch data.length=48 batch.sequences=2 batch.tokens=96 epochs=1 "
              "data.packing=best_fit model.width=32 model.layers=1 model.heads=2 model.ffn=32 schedule.warmup=1 threads=2");
    expect_code(&epoch, ERROR_NONE, "epoch");
    assert_non_null(strstr(epoch.output, "done     100 steps")); /* of 200 bins, though the tokens would fill 112 sequences */
    process_free(&epoch);
}

/* -- What is told -------------------------------------------------------------------------------------------------- */

static void what_was_read_of_a_mixture_is_told_and_recorded(void **state) {
    (void)state;
    ProcessResult trained = smelt("train " TINY " " MIXED "run=r");
    assert_non_null(strstr(trained.output, "read     short: prose 75.00% of 75%, code 25.00% of 25%"));
    assert_int_equal(process_lines(trained.output, "phase    1 short: "), 1);  /* at the start alone */
    assert_int_equal(process_lines(trained.output, "phase    2 middle: "), 2); /* and where it begins */
    process_free(&trained);
    json_auto_t *list = records("r", "mixture");
    assert_int_equal(json_array_size(list), 3); /* at the end of each phase */
    const json_t *last = json_object_get(json_array_get(list, 2), "phases"), *middle = json_array_get(last, 1);
    assert_int_equal(json_array_size(last), 3);
    const json_t *code = json_object_get(json_object_get(middle, "sources"), "code");
    assert_true(number(code, "asked") == 0.5 && number(code, "read") == 0.5);
    assert_int_equal(number(code, "samples"), 41);
    ProcessResult shown = smelt("show r");
    assert_non_null(strstr(shown.output, "mix.yaml\n  source.prose    "));
    assert_non_null(strstr(shown.output, "\n  phase.2         middle, 2600 tokens, in sequences of 32"));
    assert_null(strstr(shown.output, ".order"));
    process_free(&shown);
    smelt_good("report r");
    size_t length;
    SCOPED_FREE char *page = (char *)read_bytes("r/report.html", &length);
    assert_non_null(strstr(page, "phase 2, middle, begins after step 10: sequences of 32 tokens"));
    assert_non_null(strstr(page, "read: prose 50.00% of 50%, code 50.00% of 50%"));
    assert_null(strstr(page, "were invalid"));
}

static void a_phase_without_a_name_has_its_number(void **state) {
    (void)state;
    change_mixture("{name: short, ", "{");
    train_says(ERROR_NONE, "phase    1: steps 1 to 10, ", MIXED "run=r stop_at=1");
}

/* The text that smelt itself comes with, by the configuration that it comes with. */
static void the_small_curriculum_trains(void **state) {
    (void)state;
    SCOPED_FREE char *words = memory_format("train %s/configs/zaya1-curriculum-tiny.yaml data.train=mix.yaml data.valid=%s/README.md run=r "
                                            "threads=2",
        source_folder, source_folder);
    SCOPED_FREE char *path = memory_format("%s/configs/zaya1-mixture-tiny.yaml", source_folder);
    size_t length;
    SCOPED_FREE char *text = (char *)read_bytes(path, &length);
    SCOPED_FREE char *docs = memory_format("path: %s/docs,", source_folder), *code = memory_format("path: %s/src/train,", source_folder);
    SCOPED_FREE char *one = replaced(text, "path: ../docs,", docs), *both = replaced(one, "path: ../src,", code);
    write_text("mix.yaml", both);
    smelt_good(words);
    assert_int_equal(count_records("r", "phase"), 3);
    assert_true(recorded("r", "step", -1, "loss") < recorded("r", "step", 0, "loss") - 1);
    /* The same weights at the end of a phase, and at the beginning of the next. */
    assert_true(recorded("r", "evaluation", 1, "step") == 45 && recorded("r", "evaluation", 1, "length") == 256);
}

static void the_whole_curriculum_is_planned_as_it_stands(void **state) {
    (void)state;
    assert_int_equal(chdir(source_folder), 0); /* the path of the mixture is from there */
    ProcessResult result = smelt("train configs/zaya1-curriculum.yaml plan=true");
    expect_code(&result, ERROR_NONE, "plan");
    static const char *const parts[] = {"1 pretrain-1: steps 1 to 484348, 8.00T tokens in sequences of 4096, 16.8M a step, RoPE base 10000",
        "2 pretrain-2: steps 484349 to 722767, 4.00T tokens", "3 midtrain: steps 722768 to 794293, 1.20T tokens in sequences of 32768",
        "4 sft: steps 794294 to 833633, 660B tokens in sequences of 131072, 16.8M a step, RoPE base 5e+06",
        "phase sft, which needs the most memory"};
    const char *at = result.output;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!(at = strstr(at, parts[i]))) fail_msg("\"%s\" is not in the page, or not in its place:\n%s", parts[i], result.output);
    process_free(&result);
}

/* -- Weights of a phase -------------------------------------------------------------------------------------------- */

static void a_checkpoint_is_read_with_the_settings_of_its_phase(void **state) {
    (void)state;
    train_good(MIXED "run=r checkpoint.keep=9");
    static const struct {
        const char *checkpoint, *folder, *config;
        double base;
    } cases[] = {
        {"r@10", "first", "first/config.json", 1e4}, {"r@23", "second", "second/config.json", 1e6}, {"r", "last", "last/config.json", 5e6}};
    for (int i = 0; i < 3; i++) {
        SCOPED_FREE char *words = memory_format("convert %s %s", cases[i].checkpoint, cases[i].folder);
        smelt_good(words);
        json_auto_t *config = json_load_file(cases[i].config, 0, NULL);
        SCOPED_FREE char *text = json_dumps(config, 0), *base = memory_format("\"rope_theta\": %.1f", cases[i].base);
        if (!strstr(text, base)) fail_msg("%s is not in %s", base, text);
    }
}

/* -- Data that fails ----------------------------------------------------------------------------------------------- */

/* Packs the code, and puts that shard into its place in the mixture. */
static void pack_code(void) {
    smelt_good("data pack code shard");
    change_mixture("path: code", "path: shard");
}

/* Overwrites the tokens of the shard with ones that no byte is. */
static void spoil_shard(void) {
    size_t length;
    SCOPED_FREE unsigned char *bytes = read_bytes("shard.bin", &length);
    memset(bytes, 0xff, length);
    FILE *file = fopen("shard.bin", "r+b"); /* in place: the run has it mapped */
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

/* The sources stay as they are until the run has done some steps; batches that were read ahead are trained on. */
static void expect_spoiled(Process *process, const char *run, int ranks) {
    process_await_text(process, " 30/1000000 ", 1);
    spoil_shard();
    ProcessResult result = process_finish(process);
    expect_code(&result, ERROR_DATA, run);
    assert_mentions(result.errors, "shard.bin");
    assert_mentions(result.errors, "command");
    assert_int_equal(process_lines(result.errors, "error: "), ranks);
    process_free(&result);
    int last = count_records(run, "step");
    assert_true(last >= 30 && has_checkpoint(run, last));
}

static void data_that_becomes_unreadable_costs_no_step(void **state) {
    (void)state;
    pack_code();
    Process process = train_start(MIXED "run=r steps=1000000 checkpoint.every=0 eval.every=0 log.every=1");
    expect_spoiled(&process, "r", 1);
}

static void ranks_that_cannot_read_stop_together(void **state) {
    (void)state;
    pack_code();
    Process process =
        smelt_start("launch -n 3 -- train " TINY " " MIXED "run=r steps=1000000 checkpoint.every=0 eval.every=0 log.every=1 threads=1");
    expect_spoiled(&process, "r", 4); /* of each rank, and of their supervisor */
}

int main(void) {
    train_main();
    source_folder = realpath(".", NULL);
    static const struct CMUnitTest tests[] = {
        PHASES_TEST(a_later_phase_may_change_and_one_that_has_begun_may_not),
        PHASES_TEST(sources_are_what_they_hold),
        PHASES_TEST(a_mixture_moves_with_its_data),
        PHASES_TEST(text_of_a_source_that_changes_is_named_and_taken_where_it_is_allowed),
        PHASES_TEST(a_mixture_in_place_of_data_is_refused_and_other_yaml_is_text),
        PHASES_TEST(text_beside_shards_is_named_as_left_out),
        PHASES_TEST(documents_are_held_out_of_a_mixture_and_of_shards),
        PHASES_TEST(documents_are_packed_by_best_fit_where_a_source_has_one_length),
        PHASES_TEST(what_was_read_of_a_mixture_is_told_and_recorded),
        PHASES_TEST(a_phase_without_a_name_has_its_number),
        PHASES_TEST(the_small_curriculum_trains),
        PHASES_TEST(the_whole_curriculum_is_planned_as_it_stands),
        PHASES_TEST(a_checkpoint_is_read_with_the_settings_of_its_phase),
        PHASES_TEST(data_that_becomes_unreadable_costs_no_step),
        PHASES_TEST(ranks_that_cannot_read_stop_together),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(source_folder);
    return failed;
}

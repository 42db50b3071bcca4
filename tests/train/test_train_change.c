/* End to end: runs that are extended, changed and forked. A run that was changed on its way must be, bit for bit, what it
 * would have been with the change known from the start, and a fork what its run would have become. */
#include "support/mentions.h"
#include "support/train_run.h"

/* No learning rate of these depends on the number of steps. */
#define CONSTANT "schedule.kind=constant checkpoint.every=10 checkpoint.keep=9"

static void an_extended_run_is_the_longer_one_to_the_bit(void **state) {
    (void)state;
    train_good("run=long " CONSTANT);
    train_good("run=short steps=20 " CONSTANT);
    smelt_says(ERROR_NONE, "20 steps=40", "train short");
    assert_int_equal(mkdir("elsewhere", 0777), 0);
    assert_true(chdir("elsewhere") == 0 && remove("../text") == 0);
    smelt_says(ERROR_NONE, "steps 20 -> 40 step 21", "train ../short steps=40");
    assert_int_equal(chdir(".."), 0);
    assert_true(same_checkpoint("long", "short", 40));
    assert_same_steps("long", "short");
    smelt_says(ERROR_NONE, "40 80 stop_at=30", "train short steps=80 stop_at=30");
    smelt_says(ERROR_USAGE, "fork=NEW from=STEP", "train short steps=30");
}

static void a_schedule_that_is_drawn_again_tells_how_the_rate_jumps(void **state) {
    (void)state;
    train_good("run=run steps=20 schedule.minimum=0.1");
    smelt_says(ERROR_NONE, "learning rate 0.0005 -> 0.00295 21", "train run steps=40 stop_at=21");
    assert_true(fabs(recorded("run", "step", -1, "lr") - 0.00295) < 5e-6);
}

static void a_changed_rate_tells_the_jump_of_the_schedule_and_waits_where_the_run_is_finished(void **state) {
    (void)state;
    train_good("run=run steps=20 schedule.minimum=0.1");
    smelt_says(ERROR_NONE, "optimizer.lr 0.005 -> 0.001", "train run optimizer.lr=1e-3");
    ProcessResult result = smelt("train run optimizer.lr=1e-3 schedule.kind=constant steps=40 stop_at=21");
    assert_mentions(result.errors, "optimizer.lr 0.005 -> 0.001 21");
    assert_mentions(result.errors, "learning rate 0.0005 -> 0.001 21");
    process_free(&result);
    assert_true(recorded("run", "step", 19, "lr") == 5e-4 && recorded("run", "step", 20, "lr") == 1e-3);
}

static void a_fork_takes_the_settings_of_its_checkpoint(void **state) {
    (void)state;
    train_good("run=plain data.valid=text " CONSTANT);
    train_good("run=run data.valid=text stop_at=20 " CONSTANT);
    smelt_says(ERROR_NONE, "", "train run optimizer.lr=1e-3 batch.tokens=512 data.valid= log.every=3 stop_at=30");
    assert_int_equal(rename("text", "moved"), 0);
    smelt_says(ERROR_NONE, "", "train run data.train=moved log.every=3");
    ProcessResult result = smelt("train run fork=fork from=20");
    assert_true(result.code == 0 && !strstr(result.errors, " -> ") && !strstr(result.errors, "data.train="));
    process_free(&result);
    assert_true(same_checkpoint("plain", "fork", 40));
    char *config = read_text("fork/config.yaml");
    assert_non_null(strstr(config, "every: 3 "));
    free(config);
}

static void a_refused_fork_leaves_nothing(void **state) {
    (void)state;
    train_good("run=run stop_at=10 " CONSTANT);
    write_corpus("other", 9000);
    smelt_says(ERROR_USAGE, "model.width", "train run fork=fork model.width=64");
    assert_true(access("fork", F_OK) != 0);
    smelt_says(ERROR_USAGE, "data.train.text", "train run fork=fork data.train=other"); /* after its data were linked */
    assert_true(access("fork", F_OK) != 0);
    assert_int_equal(mkdir("fork", 0777), 0);
    smelt_says(ERROR_USAGE, "model.width", "train run fork=fork model.width=64");
    assert_true(access("fork", F_OK) == 0); /* what was there stays */
    smelt_says(ERROR_USAGE, "steps=5 10 fork=fork", "train run fork=fork steps=5");
    write_text("fork/notes", "mine");
    smelt_says(ERROR_USAGE, "fork=fork is a folder with files", "train run fork=fork");
    assert_int_equal(unlink("fork/notes"), 0);
    smelt_good("train run fork=fork stop_at=11");
}

static void a_rate_that_changes_is_that_of_a_fork(void **state) {
    (void)state;
    train_good("run=run stop_at=20 " CONSTANT);
    smelt_says(ERROR_NONE, "fork is forked from run after step 20\n", "train run/ fork=fork optimizer.lr=1e-3");
    smelt_says(ERROR_NONE, "optimizer.lr 0.005 -> 0.001 21", "train run optimizer.lr=1e-3");
    assert_true(same_checkpoint("run", "fork", 40));
    assert_true(recorded("run", "step", 19, "lr") == 5e-3 && recorded("run", "step", 20, "lr") == 1e-3);
    assert_same_steps("run", "fork");
    assert_int_equal(count_records("fork", "step"), 40);
}

static void a_fork_leaves_its_run_as_it_is_and_becomes_one_of_its_own(void **state) {
    (void)state;
    train_good("run=run " CONSTANT);
    assert_int_equal(system("cp -r run before"), 0);
    assert_int_equal(remove("text"), 0);
    smelt_says(ERROR_NONE, "fork is forked from run after step 20\n", "train run fork=fork from=20 stop_at=30");
    assert_int_equal(system("diff -r run before"), 0);
    smelt_says(ERROR_NONE, "", "train run fork=fork from=20 stop_at=35"); /* the same command goes on */
    assert_int_equal(system("rm -r run"), 0);
    smelt_says(ERROR_NONE, "", "train fork");
    assert_true(same_checkpoint("before", "fork", 40));
    assert_same_steps("before", "fork");
    ProcessResult shown = smelt("show fork");
    assert_non_null(strstr(shown.output, "/run after step 20: run "));
    assert_non_null(strstr(shown.output, "step 20, the first"));
    process_free(&shown);
}

/* The run trains on from the step of the fork, and half a record is under way. */
static void a_fork_has_the_whole_records_of_the_steps_before_it_and_no_others(void **state) {
    (void)state;
    train_good("run=run stop_at=20 " CONSTANT);
    train_good("run=run stop_at=30 " CONSTANT);
    FILE *file = fopen("run/metrics.jsonl", "a");
    assert_non_null(file);
    fputs("{\"kind\": \"step\", \"step\": 1", file);
    fclose(file);
    assert_int_equal(mkdir("fork", 0777), 0);
    write_text("fork/metrics.jsonl", "{\"kind\": \"step\", \"step\": 3}\n"); /* of an attempt that was ended early */
    smelt_good("train run fork=fork from=20 stop_at=21");
    assert_int_equal(count_records("fork", "step"), 21);
    assert_int_equal(count_records("fork", "start"), 2);
    assert_true(recorded("fork", "start", 0, "step") == 0 && recorded("fork", "start", 1, "step") == 20);
    assert_true(recorded("fork", "step", 0, "step") == 1 && recorded("fork", "step", 20, "tokens_seen") == 21 * 256);
}

static void other_validation_data_of_a_finished_run_are_evaluated_printed_and_recorded(void **state) {
    (void)state;
    write_corpus("v", 2000);
    train_good("run=run " CONSTANT);
    int before = count_records("run", "evaluation");
    smelt_says(ERROR_NONE, "validation step 40", "train run data.valid=v");
    assert_int_equal(count_records("run", "evaluation"), before + 1);
    assert_true(recorded("run", "evaluation", -1, "step") == 40);
    assert_true(recorded("run", "evaluation", -1, "loss") != recorded("run", "evaluation", -2, "loss"));
    smelt_good("train run");
    assert_int_equal(count_records("run", "evaluation"), before + 1);
    char *record = read_text("run/run.json");
    assert_non_null(strstr(record, "\"data.valid.content\": \"1 document, "));
    free(record);
}

static void a_fork_that_cannot_be_is_refused_with_what_would_be(void **state) {
    (void)state;
    train_good("run=run stop_at=20 " CONSTANT);
    smelt_says(ERROR_CHECKPOINT, "existing steps 20 10", "train run fork=fork from=15");
    smelt_says(ERROR_USAGE, "fork=run is the run itself", "train run fork=run");
    smelt_says(ERROR_USAGE, "RUN fork=new", "train fork=new data.train=text");
    smelt_says(ERROR_USAGE, "fork=NEW", "train run@10");
    smelt_says(ERROR_USAGE, "fork=new", "train run run=new");
    smelt_says(ERROR_USAGE, "\nmodel.width: 32 -> 64", "train run fork=fork model.width=64");
    smelt_says(ERROR_USAGE, "\nprecision: bf16 -> fp64", "train run fork=fork precision=fp64"); /* another state; fp32 has the same */
    train_good("run=other stop_at=5 " CONSTANT);
    smelt_says(ERROR_USAGE, "other is already a run, not a fork of run", "train run fork=other");
    train_good("run=stored stop_at=10 checkpoint.store=store " CONSTANT);
    smelt_says(ERROR_USAGE, "store contains the checkpoints of stored: checkpoint.store=ANOTHER for fork=fork", "train stored fork=fork");
    smelt_says(ERROR_USAGE, "/store contains the checkpoints of stored", "train stored fork=fork checkpoint.store=store/");
    smelt_says(ERROR_USAGE, "run contains the checkpoints of run", "train run fork=fork checkpoint.store=run/");
    smelt_says(ERROR_USAGE, "run@10 from=20", "train run@10 fork=fork from=20");
    smelt_says(ERROR_NONE, "", "train stored fork=fork checkpoint.store= steps=20");
    assert_true(has_checkpoint("fork", 20));
}

/* As a kill after the fork's record and before its first checkpoint leaves it. */
static void a_fork_without_a_checkpoint_does_not_start_anew(void **state) {
    (void)state;
    train_good("run=run stop_at=20 " CONSTANT);
    smelt_says(ERROR_NONE, "", "train run@10 fork=fork stop_at=15");
    assert_int_equal(system("rm -r fork/checkpoints"), 0);
    smelt_says(ERROR_USAGE, "fork=fork from=10", "train fork");
    smelt_says(ERROR_NONE, "fork is forked from run after step 10\n", "train run fork=fork from=10");
    smelt_says(ERROR_NONE, "", "train run");
    assert_true(same_checkpoint("run", "fork", 40));
}

static void the_decay_of_a_wsd_schedule_is_branched(void **state) {
    (void)state;
    train_good("run=run schedule.kind=wsd schedule.decay=10 checkpoint.every=10 checkpoint.keep=9");
    train_good("run=early schedule.kind=wsd schedule.decay=10 steps=30");
    smelt_says(ERROR_NONE, "", "train run@20 fork=branch steps=30");
    assert_true(same_checkpoint("early", "branch", 30));
}

/* The tokens of the first step of a start, by dump=; the caller frees. */
static unsigned char *dumped_tokens(const char *folder, size_t *bytes) {
    char *path = memory_format("%s/step.safetensors", folder);
    Safetensors file;
    Error error = {0};
    if (!safetensors_open(&file, path, &error)) fail_msg("%s", error.message);
    const StoredTensor *tokens = safetensors_find(&file, "tokens");
    *bytes = stored_type_bytes(tokens->type);
    for (int i = 0; i < tokens->rank; i++) *bytes *= (size_t)tokens->shape[i];
    unsigned char *copy = malloc(*bytes);
    memcpy(copy, tokens->data, *bytes);
    safetensors_close(&file);
    free(path);
    return copy;
}

static void another_batch_goes_on_where_the_data_was(void **state) {
    (void)state;
    size_t bytes, other_bytes;
    train_good("run=small stop_at=10 batch.tokens=256");
    train_good("run=large stop_at=5 batch.tokens=512");
    smelt_says(ERROR_NONE, "batch.tokens 256 -> 512 11", "train small batch.tokens=512 stop_at=15 dump=a");
    smelt_says(ERROR_NONE, "", "train large stop_at=6 dump=b");
    unsigned char *tokens = dumped_tokens("a", &bytes), *other = dumped_tokens("b", &other_bytes);
    assert_int_equal(bytes, 512 * sizeof(int32_t));
    assert_true(bytes == other_bytes && !memcmp(tokens, other, bytes));
    free(tokens);
    free(other);
    assert_true(recorded("small", "step", -1, "tokens_seen") == 10 * 256 + 5 * 512);
    smelt_says(ERROR_NONE, "batch.tokens 512 -> 256 16", "train small batch.tokens=256");
    assert_true(recorded("small", "step", -1, "tokens_seen") == 35 * 256 + 5 * 512);
}

static void another_length_of_samples_keeps_the_place_in_the_data(void **state) {
    (void)state;
    train_good("run=run stop_at=10 data.length=32 model.context=32 batch.sequences=4");
    train_good("run=run stop_at=11 data.length=16 model.context=32 batch.sequences=8 resume.accept=data.length");
    assert_true(recorded("run", "step", -1, "tokens_seen") == 11 * 256);
}

/* Losses of two runs from step 21 to 40. */
static void assert_near_losses(const char *run, const char *other, double tolerance) {
    for (int i = -20; i < 0; i++) {
        double loss = recorded(run, "step", i, "loss"), other_loss = recorded(other, "step", i, "loss");
        if (!(fabs(loss - other_loss) < tolerance)) fail_msg("%d steps before the end: %.9g and %.9g", -i, loss, other_loss);
    }
}

/* Sums of the same gradients in another order: some fp32 roundings of 6e-8 in 20 steps. */
static void half_the_microbatch_keeps_the_losses(void **state) {
    (void)state;
    train_good("run=run precision=fp32 stop_at=20 " CONSTANT);
    smelt_says(ERROR_NONE, "batch.sequences 4 -> 2 21", "train run fork=half batch.sequences=2");
    smelt_says(ERROR_NONE, "", "train run");
    assert_near_losses("run", "half", 1e-6 * recorded("run", "step", -1, "loss"));
}

static void another_number_of_ranks_and_zero_stage_keep_the_losses(void **state) {
    (void)state;
    train_good("run=run precision=fp32 stop_at=20 " CONSTANT);
    assert_int_equal(system("cp -r run ranks"), 0);
    int port = process_free_port();
    static const char settings[] = "run=ranks precision=fp32 layout.zero=3 " CONSTANT;
    Process ranks[2] = {rank_start(0, port, settings), rank_start(1, port, settings)};
    for (int r = 0; r < 2; r++) {
        ProcessResult result = process_finish(&ranks[r]);
        expect_code(&result, 0, settings);
        assert_true(!strstr(result.errors, "layout.zero: 1 -> 3 from step 21 on\n") == (r == 1));
        process_free(&result);
    }
    smelt_says(ERROR_NONE, "", "train run");
    assert_near_losses("run", "ranks", 1e-5);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(an_extended_run_is_the_longer_one_to_the_bit),
        TRAIN_TEST(a_schedule_that_is_drawn_again_tells_how_the_rate_jumps),
        TRAIN_TEST(a_changed_rate_tells_the_jump_of_the_schedule_and_waits_where_the_run_is_finished),
        TRAIN_TEST(a_fork_takes_the_settings_of_its_checkpoint),
        TRAIN_TEST(a_refused_fork_leaves_nothing),
        TRAIN_TEST(a_rate_that_changes_is_that_of_a_fork),
        TRAIN_TEST(a_fork_leaves_its_run_as_it_is_and_becomes_one_of_its_own),
        TRAIN_TEST(a_fork_has_the_whole_records_of_the_steps_before_it_and_no_others),
        TRAIN_TEST(other_validation_data_of_a_finished_run_are_evaluated_printed_and_recorded),
        TRAIN_TEST(a_fork_that_cannot_be_is_refused_with_what_would_be),
        TRAIN_TEST(a_fork_without_a_checkpoint_does_not_start_anew),
        TRAIN_TEST(the_decay_of_a_wsd_schedule_is_branched),
        TRAIN_TEST(another_batch_goes_on_where_the_data_was),
        TRAIN_TEST(another_length_of_samples_keeps_the_place_in_the_data),
        TRAIN_TEST(half_the_microbatch_keeps_the_losses),
        TRAIN_TEST(another_number_of_ranks_and_zero_stage_keep_the_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

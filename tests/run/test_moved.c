/* End to end: a run whose data, tokenizer or first weights lie elsewhere by now goes on where the content is the same,
 * or the run has a copy; what has changed or is missing is named. */
#include "support/train_run.h"

static char *gpt2, *llama3; /* tokenizers */

static void move(const char *from, const char *to) { assert_int_equal(rename(from, to), 0); }

static void shards_that_have_moved_are_the_same_data(void **state) {
    (void)state;
    smelt_good("data pack text s valid=0.1");
    train_good("run=whole data.train=s-train data.valid=s-valid");
    train_good("run=run data.train=s-train data.valid=s-valid stop_at=10");
    assert_int_equal(mkdir("away", 0777), 0);
    move("s-train.bin", "away/t.bin"), move("s-train.idx", "away/t.idx"), move("s-train.tokenizer", "away/t.tokenizer");
    move("s-valid.bin", "away/v.bin"), move("s-valid.idx", "away/v.idx"), move("s-valid.tokenizer", "away/v.tokenizer");
    train_says(ERROR_DATA, "data.train=s-train: neither run/data has no packed copy: smelt train run data.train=NEW",
        "run=run data.train=s-train data.valid=s-valid");
    train_good("run=run data.train=away/t data.valid=away/v");
    assert_true(same_checkpoint("whole", "run", 40));
}

static void other_shards_are_refused_by_path_and_content(void **state) {
    (void)state;
    write_corpus("text2", 9000);
    smelt_good("data pack text s"), smelt_good("data pack text2 t");
    train_good("run=run data.train=s stop_at=10");
    train_says(ERROR_USAGE, "/s -> /", "run=run data.train=t");
    train_says(ERROR_USAGE, "\ndata.train.content: ", "run=run data.train=t");
}

static void text_that_has_moved_is_the_same_text(void **state) {
    (void)state;
    train_good("run=whole");
    train_good("run=run stop_at=10");
    move("text", "elsewhere");
    train_good("run=run data.train=elsewhere stop_at=20");
    move("elsewhere", "text");
    train_good("run=run");
    assert_true(same_checkpoint("whole", "run", 40));
}

static void a_folder_of_text_that_has_moved_is_the_same_text(void **state) {
    (void)state;
    assert_true(mkdir("texts", 0777) == 0 && mkdir("texts/in", 0777) == 0);
    write_corpus("texts/a", 6000), write_corpus("texts/in/b", 4000);
    train_good("run=run data.train=texts stop_at=10");
    move("texts", "moved");
    train_good("run=run data.train=moved stop_at=20");
    move("moved/in/b", "moved/in/c"), move("moved", "again");
    train_says(ERROR_USAGE, "\ndata.train.text: ", "run=run data.train=again stop_at=30");
}

static void a_slash_behind_a_folder_is_no_difference(void **state) {
    (void)state;
    assert_true(mkdir("texts", 0777) == 0 && mkdir("else", 0777) == 0);
    write_corpus("texts/a", 6000), write_corpus("texts/b", 4000);
    train_good("run=run data.train=texts/ stop_at=5");
    train_good("run=run data.train=texts stop_at=10");
    move("texts", "else/texts");
    train_good("run=run data.train=else/texts stop_at=15");
    train_good("run=run data.train=else/texts// stop_at=20");
    assert_int_equal(count_records("run", "step"), 20);
}

static void edited_text_is_not_packed_in_place_of_a_lost_copy(void **state) {
    (void)state;
    char *text = read_text("text");
    write_corpus("v", 2000);
    train_good("run=run data.valid=v stop_at=10");
    move("run/data", "lost");
    write_corpus("text", 9999);
    train_says(ERROR_USAGE, "data.train=text run/data", "run=run data.valid=v stop_at=20");
    smelt_says(ERROR_USAGE, "data.train=", "train run fork=fork");
    assert_true(access("run/data", F_OK) != 0);
    write_text("text", text);
    write_corpus("v", 1999);
    train_says(ERROR_USAGE, "data.valid=v is not the text that run was started with", "run=run data.valid=v stop_at=20");
    train_good("run=run data.valid=v resume.accept=data.valid stop_at=20");
    free(text);
}

static void text_that_is_gone_is_in_the_run(void **state) {
    (void)state;
    train_good("run=whole");
    train_good("run=run stop_at=10");
    move("text", "elsewhere");
    train_says(ERROR_NONE, "data.train=text run/data", "run=run stop_at=20");
    train_says(ERROR_NONE, "data.train=text run/data", "run=run");
    assert_true(same_checkpoint("whole", "run", 40));
    move("run/data", "lost");
    train_says(ERROR_DATA, "data.train=text: neither run/data no packed copy", "run=run steps=41");
}

static void text_that_was_edited_is_named_and_not_read(void **state) {
    (void)state;
    train_good("run=whole");
    train_good("run=run stop_at=10");
    write_corpus("text", 9999);
    train_says(ERROR_NONE, "data.train=text run/data", "run=run");
    assert_true(same_checkpoint("whole", "run", 40));
}

static void validation_text_may_move_and_go_too(void **state) {
    (void)state;
    write_corpus("v", 2000);
    train_good("run=whole data.valid=v");
    train_good("run=run data.valid=v stop_at=10");
    move("v", "w");
    train_good("run=run data.valid=w stop_at=20");
    write_corpus("w", 1999);
    train_says(ERROR_NONE, "data.valid=w has changed since the run was started", "run=run data.valid=w stop_at=30");
    assert_int_equal(remove("w"), 0);
    train_says(ERROR_NONE, "data.valid=w run/data", "run=run data.valid=w");
    assert_float_equal(recorded("run", "evaluation", -1, "loss"), recorded("whole", "evaluation", -1, "loss"), 0);
}

static void a_refused_start_leaves_the_packed_copy(void **state) {
    (void)state;
    train_good("run=run stop_at=20");
    write_corpus("text", 9000);
    smelt_says(ERROR_USAGE, "steps=10 20", "train run steps=10 resume.accept=data");
    train_good("run=run");
    smelt_says(ERROR_NONE, "run/data", "train run steps=41");
}

static void other_text_is_refused_unless_it_is_wanted(void **state) {
    (void)state;
    write_corpus("text2", 9000);
    train_good("run=fresh data.train=text2 stop_at=1");
    train_good("run=run stop_at=10");
    train_says(ERROR_USAGE, "/text -> /", "run=run data.train=text2");
    train_says(ERROR_USAGE, "resume.accept=data.train", "run=run data.train=text2");
    train_says(ERROR_USAGE, "data.train is missing: the run in run trains on ", "run=run data.train=");
    train_good("run=run data.train=text2 resume.accept=data.train,data.valid stop_at=20");
    assert_true(same_bytes("run/data/text-train.bin", "fresh/data/text-train.bin"));
    train_good("run=run data.train=text2");
}

static void a_tokenizer_may_move_and_go_but_not_change(void **state) {
    (void)state;
    char *copy = read_text(gpt2);
    write_text("a.json", copy);
    train_good("run=whole data.tokenizer=a.json");
    train_good("run=run data.tokenizer=a.json stop_at=10");
    move("a.json", "b.json");
    train_good("run=run data.tokenizer=b.json stop_at=20");
    move("b.json", "c.json");
    train_says(ERROR_NONE, "data.tokenizer=b.json run/tokenizer", "run=run data.tokenizer=b.json stop_at=30");
    train_says(ERROR_USAGE, "\ndata.tokenizer.content: ", "run=run data.tokenizer=%s model.vocabulary=704", llama3);
    train_good("run=run data.tokenizer=c.json");
    assert_true(same_checkpoint("whole", "run", 40));
    free(copy);
}

static void a_run_that_has_started_does_not_need_what_it_started_from(void **state) {
    (void)state;
    train_good("run=base steps=5 data.tokenizer=%s", gpt2);
    train_good("run=whole init=base");
    train_good("run=run init=base stop_at=10");
    move("base", "moved");
    train_good("run=run init=moved stop_at=20");
    move("moved", "again");
    train_says(ERROR_NONE, "init=moved is missing: newest checkpoint", "run=run init=moved");
    assert_true(same_checkpoint("whole", "run", 40));
    train_good("run=other steps=6 data.tokenizer=%s", gpt2);
    train_says(ERROR_USAGE, "\ninit.content: ", "run=run init=other");
    train_says(ERROR_CHECKPOINT, "init=base: base is not a run folder", "run=new init=base");
    train_says(ERROR_CHECKPOINT, "meta-llama/Llama-3.2-1B meta-llama/Llama-3.2-1B", "run=new init=meta-llama/Llama-3.2-1B");
}

static void a_path_that_is_given_anew_must_exist(void **state) {
    (void)state;
    write_corpus("v", 2000);
    train_good("run=base steps=5 data.tokenizer=%s", gpt2);
    char *start = memory_format("run=run init=base data.valid=v data.tokenizer=%s", gpt2);
    train_good("%s stop_at=10", start);
    assert_int_equal(remove("text"), 0); /* those that are remembered may go */
    assert_int_equal(remove("v"), 0);
    move("base", "moved");
    static const char *const settings[] = {"data.train", "data.valid", "data.tokenizer", "init"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char *line = memory_format("error: %s=%s/typo does not exist", settings[i], getcwd((char[PATH_MAX]){0}, PATH_MAX));
        train_says(strcmp(settings[i], "init") ? ERROR_DATA : ERROR_CHECKPOINT, line, "%s %s=typo stop_at=20", start, settings[i]);
        free(line);
    }
    train_says(ERROR_CHECKPOINT, "typo does not exist", "%s init=typo resume.accept=init stop_at=20", start);
    train_good("%s stop_at=20", start);
    smelt_says(ERROR_DATA, "typo does not exist", "train run fork=other data.train=typo");
    smelt_says(ERROR_DATA, "typo does not exist", "train run fork=other data.valid=typo");
    smelt_good("train run fork=other stop_at=21");
    free(start);
}

static void a_run_that_started_without_init_takes_none(void **state) {
    (void)state;
    train_good("run=other steps=5");
    train_good("run=run stop_at=10");
    smelt_says(ERROR_USAGE, "\ninit: \"\" -> /", "train run init=other");
    smelt_says(ERROR_USAGE, "", "train run init=/nonexistent");
    smelt_says(ERROR_USAGE, "\ninit: \"\" -> /", "train run fork=fork init=other");
}

/* The frozen weights are in no checkpoint. */
static void adapters_follow_their_base_and_need_it(void **state) {
    (void)state;
    static const char adapt[] = "run=run lora.rank=2 lora.targets=attention model.family=llama model.experts=0";
    train_good("run=base steps=5 model.family=llama model.experts=0");
    train_good("%s init=base stop_at=10", adapt);
    move("base", "moved");
    train_says(ERROR_CHECKPOINT, "init=base (if it has moved: smelt train run init=FOLDER): cannot open base", "%s init=base", adapt);
    train_good("%s init=moved", adapt);
    smelt_good("eval run text");
}

int main(void) {
    train_main();
    gpt2 = golden_tokenizer("gpt2");
    llama3 = golden_tokenizer("llama3");
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(shards_that_have_moved_are_the_same_data),
        TRAIN_TEST(other_shards_are_refused_by_path_and_content),
        TRAIN_TEST(text_that_has_moved_is_the_same_text),
        TRAIN_TEST(a_folder_of_text_that_has_moved_is_the_same_text),
        TRAIN_TEST(a_slash_behind_a_folder_is_no_difference),
        TRAIN_TEST(edited_text_is_not_packed_in_place_of_a_lost_copy),
        TRAIN_TEST(text_that_is_gone_is_in_the_run),
        TRAIN_TEST(text_that_was_edited_is_named_and_not_read),
        TRAIN_TEST(validation_text_may_move_and_go_too),
        TRAIN_TEST(a_refused_start_leaves_the_packed_copy),
        TRAIN_TEST(other_text_is_refused_unless_it_is_wanted),
        TRAIN_TEST(a_tokenizer_may_move_and_go_but_not_change),
        TRAIN_TEST(a_run_that_has_started_does_not_need_what_it_started_from),
        TRAIN_TEST(a_path_that_is_given_anew_must_exist),
        TRAIN_TEST(a_run_that_started_without_init_takes_none),
        TRAIN_TEST(adapters_follow_their_base_and_need_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What is in a store that smelt does not know is refused by the name of its scheme wherever a path is given, and no folder
 * of that name is made here. */
#include "base/scope.h"
#include "support/mentions.h"
#include "support/train_run.h"

static void assert_no_folder(void) {
    static const char *const schemes[] = {"gs:", "s3:", "hdfs:", "https:", "file:", "abfss:", "hf:"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (access(schemes[i], F_OK) == 0) fail_msg("a folder %s was made", schemes[i]);
}

static void an_unknown_scheme_is_refused_wherever_a_path_is_given(void **state) {
    (void)state;
    static const char *const places[] = {"train " TINY " run=%s", "train " TINY " run=r data.train=%s",
        "train " TINY " run=r data.valid=%s", "train " TINY " run=r init=%s", "train " TINY " run=r data.tokenizer=%s",
        "train " TINY " run=r checkpoint.store=%s", "train " TINY " run=r data.cache=%s", "train " TINY " run=r dump=%s stop_at=1",
        "data pack text %s", "data pack %s out", "data show %s", "data train-tokenizer text %s", "data pack text out tokenizer=%s",
        "eval %s text", "eval text %s", "generate %s hello", "convert %s out", "convert text %s", "show %s", "report %s"};
    static const char *const schemes[] = {"gs://bucket/x", "hdfs://host:9000/x", "https://host/x", "file:///tmp/x", "abfss://a@b/x"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        for (size_t j = 0; j < (i == 0 ? sizeof schemes / sizeof *schemes : 1); j++) {
            SCOPED_FREE char *words = memory_format(places[i], schemes[j]);
            ProcessResult result = smelt(words);
            if (!result.code || !mentions(result.errors, schemes[j])) fail_msg("%s: exit code %d:\n%s", words, result.code, result.errors);
            process_free(&result);
        }
    assert_no_folder();
}

static void a_bucket_is_refused_where_a_folder_is_wanted(void **state) {
    (void)state;
    smelt_says(ERROR_USAGE, "s3://bucket/x s3://", "train " TINY " run=s3://bucket/x");
    smelt_says(ERROR_USAGE, "s3://bucket/x shard_tokens=", "data pack text s3://bucket/x");
    assert_no_folder();
}

/* The name of a folder with both would mean the run alone. */
static void a_model_and_a_run_are_not_in_one_folder(void **state) {
    (void)state;
    smelt_says(ERROR_NONE, "", "train " TINY " schedule.warmup=0 steps=2 run=run");
    smelt_says(ERROR_NONE, "", "convert run model");
    smelt_says(
        ERROR_USAGE, "run=model is the model of init=model", "train init=model data.train=text data.length=32 batch.tokens=512 run=model");
    smelt_says(ERROR_USAGE, "run=model contains a model", "train " TINY " run=model");
    smelt_says(
        ERROR_USAGE, "run=run is the model of init=run@2", "train init=run@2 data.train=text data.length=32 batch.tokens=512 run=run");
    assert_true(access("model/config.yaml", F_OK) != 0);
    smelt_says(ERROR_NONE, "", "eval model text length=32");
    static const char *const files[] = {"x.gguf", "adapter_config.json", "model-00001-of-00002.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        SCOPED_FREE char *folder = memory_format("other%zu", i), *path = memory_format("%s/%s", folder, files[i]);
        assert_int_equal(mkdir(folder, 0777), 0);
        write_text(path, "");
        smelt_says(ERROR_USAGE, files[i], "train " TINY " run=%s", folder);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(folder), 0); /* nothing was written */
    }
    assert_int_equal(rename("model/config.json", "run/config.json"), 0);
    assert_int_equal(rename("model/model.safetensors", "run/model.safetensors"), 0);
    smelt_says(ERROR_CHECKPOINT, "run contains a run (config.yaml) and a model (model.safetensors)", "eval run text length=32");
    smelt_says(ERROR_CHECKPOINT, "folder", "convert run@2 model");
    smelt_says(ERROR_NONE, "run contains a run (config.yaml) and a model", "train run steps=3 schedule.warmup=0");
    assert_int_equal(unlink("run/model.safetensors"), 0);
    smelt_says(ERROR_NONE, "", "eval run text");
}

/* A file is replaced by one of its kind alone; what else has its name stays. */
static void overwriting_replaces_only_what_the_command_writes(void **state) {
    (void)state;
    static const struct {
        const char *path, *words;
    } rows[] = {
        {"x.gguf", "convert run x.gguf overwrite=true"},
        {"x.bin", "convert run x.bin overwrite=true"},
        {"x.json", "data train-tokenizer text x.json vocabulary=300 overwrite=true"},
        {"x.idx", "data pack text x overwrite=true"},
        {"x-valid.idx", "data pack text x valid=0.1 overwrite=true"},
        {"x.csv", "bench memory bytes=1Mi seconds=0.01 csv=x.csv"},
        {"x.json", "bench memory bytes=1Mi seconds=0.01 json=x.json"},
        {"x.svg", "bench memory bytes=1Mi seconds=0.01 plot=x.svg"},
        {"x.html", "report run out=x.html"},
    };
    smelt_says(ERROR_NONE, "",
        "train data.train=text model.family=gpt2 model.width=32 model.layers=1 model.heads=2 model.ffn=128 model.tied=true "
        "model.norm_epsilon=1e-5 data.length=32 "
        "batch.sequences=4 batch.tokens=256 schedule.warmup=0 steps=1 device=cpu run=run");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static const char mine[] = "{\"mine\": true}\n";
        smelt_good(rows[i].words);
        smelt_good(rows[i].words);
        if (i == 0) smelt_good("convert x.gguf folder");
        write_text(rows[i].path, mine);
        smelt_says(ERROR_USAGE, rows[i].path, "%s", rows[i].words);
        SCOPED_FREE char *kept = read_text(rows[i].path);
        assert_string_equal(kept, mine);
        write_text(rows[i].path, ""); /* as mktemp makes it */
        if (strncmp(rows[i].words, "data pack", 9) != 0) smelt_good(rows[i].words);
        system("rm -rf x.* x-*");
    }
    smelt_good("data pack text x");
    assert_int_equal(unlink("x.idx"), 0);
    assert_int_equal(unlink("x.pack.json"), 0);
    smelt_says(ERROR_USAGE, "x.bin", "data pack text x overwrite=true");
}

/* Words that only look like a URL. */
static void a_prompt_and_a_path_with_a_colon_are_no_urls(void **state) {
    (void)state;
    smelt_good("train " TINY " run=a:/b steps=1 schedule.warmup=0");
    smelt_good("generate a:/b https://example.org tokens=1");
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(an_unknown_scheme_is_refused_wherever_a_path_is_given),
        TRAIN_TEST(a_bucket_is_refused_where_a_folder_is_wanted),
        TRAIN_TEST(a_model_and_a_run_are_not_in_one_folder),
        TRAIN_TEST(overwriting_replaces_only_what_the_command_writes),
        TRAIN_TEST(a_prompt_and_a_path_with_a_colon_are_no_urls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* End to end: the tokenizer travels with the tokens that it made, from shards to runs to model folders, and is never
 * guessed. */
#include <math.h>

#include "base/scope.h"
#include "ckpt/ckpt.h"
#include "support/train_run.h"

static char *gpt2, *llama3; /* tokenizers of 700 tokens and of others */

static void pack(const char *output, const char *tokenizer, const char *more) {
    char *words = memory_format("data pack text %s tokenizer=%s %s", output, tokenizer, more);
    smelt_good(words);
    free(words);
}

static void remove_folder(const char *path) { assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0); }

/* Neither the tokenizer nor the vocabulary is given, and the tokenizer's own file is elsewhere by then. */
static void a_shard_brings_its_tokenizer_to_run_text_and_folder(void **state) {
    (void)state;
    pack("s", gpt2, "valid=0.1");
    assert_true(same_bytes(gpt2, "s-train.tokenizer/tokenizer.json") && same_bytes(gpt2, "s-valid.tokenizer/tokenizer.json"));
    smelt_says(ERROR_NONE, "tokenizer:        s-train.tokenizer\n", "data show s-train");
    char *text = read_text("text"), *shown = memory_format("first tokens:     \"%.40s", text);
    smelt_says(ERROR_NONE, shown, "data show s-train");
    free(text);
    free(shown);
    train_good("run=run data.train=s-train data.valid=s-valid steps=3 schedule.warmup=0");
    char *settings = read_text("run/config.yaml");
    assert_non_null(strstr(settings, "  vocabulary: 704"));
    assert_non_null(strstr(settings, "/s-train.tokenizer\""));
    free(settings);
    remove_folder("s-train.tokenizer");
    smelt_says(ERROR_NONE, "A_model\n", "generate run A_model tokens=0");
    smelt_says(ERROR_NONE, "bits per byte", "eval run text");
    smelt_says(ERROR_NONE, "bits per byte", "eval run s-valid");
    smelt_good("convert run folder");
    assert_true(same_bytes(gpt2, "folder/tokenizer.json"));
    smelt_says(ERROR_NONE, "A_model\n", "generate folder A_model tokens=0");
}

static void bytes_are_recorded_too(void **state) {
    (void)state;
    pack("s", "", "");
    smelt_says(ERROR_NONE, "tokenizer:        bytes\n", "data show s");
    train_good("run=run data.train=s data.valid=s steps=3 schedule.warmup=0");
    smelt_says(ERROR_NONE, "A_model\n", "generate run A_model tokens=0");
    smelt_says(ERROR_NONE, "bits per byte", "eval run s");
    write_text("a.csv", "id,body\n1,one\n");
    smelt_says(ERROR_DATA, "error: a.csv is a table", "eval run a.csv");
    smelt_good("convert run folder");
    assert_true(access("folder/tokenizer.json", F_OK) == 0);
    static const char *const models[] = {"run", "folder"};
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *words = memory_format("convert %s more tokens.add=<|a|>", models[i]),
                         *told = memory_format("tokens.add=<|a|>: %s", models[i]);
        smelt_says(ERROR_USAGE, told, "%s", words);
    }
    smelt_says(ERROR_USAGE, "tokenizer=none", "convert folder more tokens.add=<|a|> tokenizer=none");
    char *settings = read_text("run/config.yaml");
    assert_non_null(strstr(settings, "  vocabulary: 320"));
    free(settings);
}

static void a_vocabulary_of_0_is_that_of_init(void **state) {
    (void)state;
    train_good("run=run data.tokenizer=%s steps=1 schedule.warmup=0", gpt2);
    train_good("run=next init=run model.vocabulary=0 steps=1 schedule.warmup=0");
    train_good("run=bytes steps=1 schedule.warmup=0");
    train_says(ERROR_USAGE, "remove data.tokenizer", "run=other init=bytes data.tokenizer=%s", gpt2);
    char *settings = read_text("next/config.yaml");
    assert_non_null(strstr(settings, "  vocabulary: 704"));
    free(settings);
}

/* As another program's shard: the program once took its tokens for bytes. */
/* The text that smelt continues; the caller frees. */
static char *continued(const char *model) {
    char *words = memory_format("generate %s A_model tokens=12 temperature=0 precision=fp32", model);
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    char *text = memory_copy_string(result.output);
    process_free(&result);
    free(words);
    return text;
}

static void a_gguf_file_serves_wherever_a_folder_does(void **state) {
    (void)state;
    train_good("run=run data.tokenizer=%s model.family=llama model.experts=0 precision=fp32 steps=3 schedule.warmup=0", gpt2);
    assert_int_equal(mkdir("model.gguf.partial-4711", 0777), 0); /* of a convert that was killed */
    write_text("model.gguf.partial-4711/config.json", "half");
    smelt_good("convert run model.gguf");
    assert_int_equal(access("model.gguf.partial-4711", F_OK), -1);
    smelt_says(ERROR_USAGE, "model.gguf overwrite=true", "convert run model.gguf");
    smelt_says(ERROR_USAGE, "OUT ends", "convert run folder dtype=q8_0");
    smelt_says(ERROR_USAGE, "dtype=same OUT", "convert run fp8.gguf dtype=fp8");
    char *trained = continued("run"), *file = continued("model.gguf");
    assert_string_equal(file, trained);
    smelt_says(ERROR_NONE, "bits per byte", "eval model.gguf text");
    smelt_good("convert model.gguf folder");
    smelt_good("convert model.gguf small.gguf dtype=q8_0");
    char *folder = continued("folder");
    assert_string_equal(folder, trained);
    smelt_says(ERROR_NONE, "A_model", "generate small.gguf A_model tokens=1");
    smelt_says(ERROR_NONE, "",
        "train init=model.gguf run=next data.train=text data.length=32 batch.sequences=4 batch.tokens=256 steps=1 device=cpu");
    smelt_says(ERROR_NONE, "A_model", "generate next A_model tokens=1");
    assert_true(same_bytes("next/tokenizer/tokenizer.json", "folder/tokenizer.json"));
    train_good("run=zaya steps=1 schedule.warmup=0");
    smelt_says(ERROR_USAGE, "GGUF has no architecture for ZayaForCausalLM", "convert zaya zaya.gguf");
    free(trained);
    free(file);
    free(folder);
}

static void without_a_record_the_tokenizer_is_not_guessed(void **state) {
    (void)state;
    pack("s", gpt2, "");
    remove_folder("s.tokenizer");
    smelt_says(ERROR_NONE, "tokenizer:        not recorded\n", "data show s");
    train_good("run=run data.train=s data.valid=s model.vocabulary=1024 steps=3 schedule.warmup=0");
    smelt_says(ERROR_USAGE, "run has no known tokenizer: tokenizer.json into RUN/tokenizer", "generate run the tokens=1");
    smelt_says(ERROR_USAGE, "tokenizer", "convert run folder");
    smelt_says(ERROR_USAGE, "tokenizer", "eval run text");
    smelt_good("generate run 5 tokens=1 text=false");
    ProcessResult result = smelt("eval run s");
    expect_code(&result, ERROR_NONE, "eval");
    assert_null(strstr(result.output, "bits per byte"));
    process_free(&result);
    smelt_good("convert run bare tokenizer=none");
    assert_true(access("bare/tokenizer.json", F_OK) != 0);
    char *words = memory_format("run=named data.train=s data.tokenizer=%s steps=3 schedule.warmup=0", gpt2);
    train_good("%s", words);
    free(words);
    smelt_says(ERROR_NONE, "A_model\n", "generate named A_model tokens=0");
    assert_int_equal(mkdir("run/tokenizer", 0777), 0);
    words = memory_format("%s/named/tokenizer/tokenizer.json", ".");
    assert_int_equal(rename(words, "run/tokenizer/tokenizer.json"), 0);
    free(words);
    smelt_says(ERROR_NONE, "A_model\n", "generate run A_model tokens=0");
}

static void tokens_of_two_tokenizers_do_not_meet(void **state) {
    (void)state;
    pack("s", gpt2, "");
    pack("other", llama3, "");
    pack("bytes", "", "");
    train_says(ERROR_USAGE, "data.valid=other other.tokenizer s.tokenizer", "run=run data.train=s data.valid=other");
    train_says(ERROR_USAGE, "data.valid=bytes was packed with the byte tokenizer", "run=run data.train=s data.valid=bytes");
    train_says(ERROR_USAGE, "data.train=s was packed with s.tokenizer", "run=run data.train=s data.tokenizer=%s", llama3);
    train_good("run=run data.train=s data.valid=s data.tokenizer=%s steps=3 schedule.warmup=0", gpt2);
    smelt_says(ERROR_DATA, "other.tokenizer run/tokenizer/tokenizer.json", "eval run other");
    smelt_says(ERROR_DATA, "bytes: it was packed with the byte tokenizer", "eval run bytes");
    smelt_says(ERROR_NONE, "bits per byte", "eval run s");
}

/* A folder, a tokenizer.json or a GGUF file with the byte tokenizer names the tokenizer of shards that record bytes. */
static void a_place_with_the_byte_tokenizer_names_bytes(void **state) {
    (void)state;
    pack("s", "", "");
    train_good("run=run data.train=s data.valid=s model.family=llama model.experts=0 precision=fp32 steps=3 schedule.warmup=0");
    smelt_good("convert run folder");
    smelt_good("convert run file.gguf");
    static const char *const places[] = {"folder", "folder/tokenizer.json", "file.gguf"};
    for (int i = 0; i < 3; i++) {
        pack("again", places[i], "overwrite=true");
        assert_true(same_bytes("s.bin", "again.bin"));
        train_good("run=run-%d data.train=again data.valid=s data.tokenizer=%s steps=3 schedule.warmup=0", i, places[i]);
    }
    train_says(ERROR_USAGE, "was packed with the byte tokenizer", "run=other data.train=s data.tokenizer=%s", gpt2);
}

/* The first two tokens of a shard. */
static void read_start(const char *prefix, uint16_t start[2]) {
    char *path = memory_format("%s.bin", prefix);
    size_t size;
    unsigned char *bytes = read_bytes(path, &size);
    assert_true(size >= 4);
    memcpy(start, bytes, 4);
    free(bytes);
    free(path);
}

static void assert_setting(const char *run, const char *line) {
    char *path = memory_format("%s/config.yaml", run), *settings = read_text(path);
    assert_holds(settings, line);
    free(settings);
    free(path);
}

/* Text was trained and evaluated without the token that generation put before a prompt. */
static void texts_begin_alike_in_training_evaluation_and_generation(void **state) {
    (void)state;
    uint16_t with[2], without[2], packed[2];
    pack("with", llama3, "");
    pack("without", llama3, "bos=false");
    read_start("with", with);
    read_start("without", without);
    assert_int_equal(with[1], without[0]);
    char *record = read_text("with.pack.json"), *other = read_text("without.pack.json");
    assert_holds(record, "\"bos\": true");
    assert_holds(other, "\"bos\": false");
    free(record);
    free(other);
    smelt_says(ERROR_USAGE, "bos=true bos_token", "data pack text bytes bos=true");

    train_good("run=run data.train=text data.tokenizer=%s steps=3 schedule.warmup=0", llama3);
    assert_setting("run", "  bos: true");
    read_start("run/data/text-train", packed);
    assert_memory_equal(packed, with, sizeof with);
    read_start("run/data/text-valid", packed);
    assert_int_equal(packed[0], with[0]);
    smelt_says(ERROR_NONE, "prompt: 2 tokens", "generate run A tokens=1");
    smelt_says(ERROR_NONE, "the texts of without do not begin with token", "eval run without");

    train_good("run=shards data.train=without data.valid=without steps=3 schedule.warmup=0");
    assert_setting("shards", "  bos: false");
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate shards A tokens=1");
    train_says(ERROR_USAGE, "the texts of without do not begin with token",
        "run=given data.train=without data.valid=without data.bos=true steps=1 schedule.warmup=0");
    train_says(
        ERROR_USAGE, "0 data.bos=false data.bos", "run=given data.train=with data.valid=with data.bos=false steps=1 schedule.warmup=0");
    train_says(ERROR_USAGE, "the texts of with begin with token",
        "run=given data.train=without data.valid=with data.bos=false steps=1 schedule.warmup=0");
    train_good("run=given data.train=without data.valid=with steps=1 schedule.warmup=0"); /* auto: a warning */
}

/* A run of a build without data.bos goes on as it began. */
static void a_run_that_began_without_a_setting_for_it_stays_without(void **state) {
    (void)state;
    train_good("run=run data.train=text data.tokenizer=%s data.bos=false steps=3 schedule.warmup=0", llama3);
    smelt_says(ERROR_NONE, "data.bos=false puts one before each text", "convert run folder"); /* a folder cannot say how texts begin */
    char *settings = read_text("run/config.yaml"), *line = strstr(settings, "  bos: false"), *end = line ? strchr(line, '\n') : NULL;
    assert_non_null(end);
    memmove(line, end + 1, strlen(end + 1) + 1);
    write_text("run/config.yaml", settings);
    free(settings);
    smelt_good("train run steps=4 checkpoint.every=1");
    assert_setting("run", "  bos: false");
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate run A tokens=1");
    smelt_good("train run fork=fork steps=5");
    assert_setting("fork", "  bos: false");
}

/* The rows of a table of a folder in fp32, [rows][width] of which *width is told; the caller frees. */
static float *read_table(const char *folder, const char *name, int64_t rows, int64_t *width) {
    Error error = {0};
    Safetensors file;
    char *path = memory_format("%s/model.safetensors", folder);
    assert_true(safetensors_open(&file, path, &error));
    const StoredTensor *tensor = safetensors_find(&file, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->type, STORED_F32);
    assert_int_equal(tensor->shape[0], rows);
    *width = tensor->shape[1];
    float *values = memory_allocate((size_t)(rows * *width) * sizeof *values);
    memcpy(values, tensor->data, (size_t)(rows * *width) * sizeof *values);
    safetensors_close(&file);
    free(path);
    return values;
}

/* Rows [0, 700) are those of the model, [700, 700 + added) and padding that is new the mean of those. */
static void check_grown(const char *name, int64_t added, int64_t rows) {
    int64_t width;
    float *old = read_table("folder", name, 704, &width), *grown = read_table("grown", name, rows, &width);
    assert_memory_equal(old, grown, (size_t)(700 * width) * sizeof *old);
    for (int64_t c = 0; c < width; c++) {
        double mean = 0;
        for (int64_t row = 0; row < 700; row++) mean += old[row * width + c] / 700;
        for (int64_t row = 700; row < rows; row++) {
            bool stays = row >= 700 + added && row < 704;
            assert_true(fabs(grown[row * width + c] - (stays ? old[row * width + c] : mean)) < 1e-6);
        }
    }
    free(old);
    free(grown);
}

static void new_tokens_get_rows_that_are_the_mean_of_the_others(void **state) {
    (void)state;
    static const struct {
        const char *list;
        int64_t added, rows;
    } rows[] = {{"<|a|>,<|b|>", 2, 704}, {"<|a|>,<|b|>,<|c|>,<|d|>,<|e|>", 5, 768}};
    train_good("run=run data.tokenizer=%s model.family=llama model.experts=0 precision=fp32 steps=3 schedule.warmup=0", gpt2);
    smelt_good("convert run folder");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *size = memory_format("\"vocab_size\": %d,", (int)rows[i].rows);
        char *words = memory_format("convert %s grown tokens.add=%s overwrite=true", i ? "folder" : "run", rows[i].list);
        smelt_good(words);
        check_grown("model.embed_tokens.weight", rows[i].added, rows[i].rows);
        char *config = read_text("grown/config.json"), *tokenizer = read_text("grown/tokenizer.json");
        assert_holds(config, size);
        assert_holds(tokenizer, "<|b|>");
        free(config);
        free(tokenizer);
        free(words);
        free(size);
    }
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate grown <|a|> tokens=1");
#define SMALL "data.train=text data.length=32 batch.sequences=4 batch.tokens=256 steps=1 schedule.warmup=0 device=cpu"
    smelt_good("train init=grown run=next " SMALL);
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate next <|a|> tokens=1");
    smelt_good("convert next next.gguf");
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate next.gguf <|a|> tokens=1");
    smelt_says(ERROR_NONE, "lora.tokens=700-701", "convert folder two tokens.add=<|a|>,<|b|>");
    smelt_good("train init=two run=rows lora.rank=2 lora.tokens=700-701 " SMALL);
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate rows <|b|> tokens=1");
    smelt_good("convert rows adapter adapter=true");
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate adapter <|b|> tokens=1");
    smelt_says(ERROR_NONE, "merged logits 16", "convert rows merged");
    smelt_good("convert rows rows.gguf");
    smelt_says(ERROR_NONE, "prompt: 1 token,", "generate rows.gguf <|b|> tokens=1");
    smelt_says(ERROR_USAGE, "tokens.add=A,B", "train init=folder run=more lora.rank=2 lora.tokens=704 " SMALL);
    smelt_says(ERROR_USAGE, "tokens.add: <|a|> 700", "convert grown more tokens.add=<|a|>");
    smelt_says(ERROR_USAGE, "twice", "convert grown more tokens.add=x1,x1");
    smelt_says(ERROR_USAGE, "empty", "convert grown more tokens.add=x1,,x2");
    smelt_says(ERROR_USAGE, "tokens.add .gguf", "convert grown more.gguf tokens.add=x1");
    smelt_says(ERROR_USAGE, "tokens.add=A,B", "train run=short init=folder data.tokenizer=grown " SMALL);
#undef SMALL
}

static void a_tokenizer_with_more_tokens_than_the_model_has_rows_is_not_exported(void **state) {
    (void)state;
    train_good("run=run data.tokenizer=%s steps=1 schedule.warmup=0", llama3);
    train_good("run=small data.tokenizer=%s steps=1 schedule.warmup=0", gpt2);
    smelt_good("data train-tokenizer text run/tokenizer/tokenizer.json vocabulary=257 overwrite=true");
    assert_int_equal(rename("run/tokenizer/tokenizer.json", "few.json"), 0);
    train_good("run=few data.tokenizer=few.json steps=1 schedule.warmup=0");
    assert_int_equal(rename("small/tokenizer/tokenizer.json", "few/tokenizer/tokenizer.json"), 0);
    smelt_says(ERROR_USAGE, "model.vocabulary=320 700 few/tokenizer/tokenizer.json", "convert few folder");
}

/* Up to the next power of two rows are padding; beyond, the tokenizer is another model's. */
static void a_model_and_a_tokenizer_that_do_not_belong_together_are_refused(void **state) {
    (void)state;
    const char refusal[] = "model.vocabulary=4096 is more than twice the 257 tokens of the byte tokenizer";
    train_says(ERROR_USAGE, refusal, "run=run model.vocabulary=4096 stop_at=1");
    train_good("run=padded model.vocabulary=512 steps=1 schedule.warmup=0");
    pack("s", gpt2, "");
    pack("bytes", "", "");
    train_good("run=large data.train=s data.valid=s data.tokenizer=none model.vocabulary=4096 steps=1 schedule.warmup=0");
    smelt_good("convert large folder tokenizer=none");
    smelt_says(ERROR_USAGE, refusal, "eval large bytes");
    assert_int_equal(mkdir("large/tokenizer", 0777), 0);
    char *text = read_text(gpt2);
    write_text("large/tokenizer/tokenizer.json", text);
    free(text);
    static const char other[] = "large: model.vocabulary=4096 is more than twice the 700 tokens of large/tokenizer/tokenizer.json";
    smelt_says(ERROR_USAGE, other, "convert large other");
    smelt_says(ERROR_USAGE, other, "generate large the tokens=1");
    smelt_says(ERROR_USAGE, other + strlen("large: "), "eval large text");
}

/* Bytes are the tokens of a model folder only when somebody says so. */
static void text_is_not_bytes_to_a_model_folder_without_a_tokenizer(void **state) {
    (void)state;
    train_good("run=run steps=1 schedule.warmup=0");
    smelt_good("convert run folder tokenizer=none");
    train_says(ERROR_USAGE, "init=folder has no tokenizer, data.train=text", "run=next init=folder");
    train_good("run=next init=folder data.tokenizer=bytes steps=1 schedule.warmup=0");
    smelt_says(ERROR_NONE, "A_model\n", "generate next A_model tokens=0");
    pack("s", "", "");
    train_good("run=shards init=folder data.train=s data.valid=s steps=1 schedule.warmup=0");
}

static void an_existing_shard_is_replaced_only_when_that_is_wanted(void **state) {
    (void)state;
    pack("s", gpt2, "");
    pack("t", "", "valid=0.1");
    smelt_says(ERROR_USAGE, "s.idx overwrite=true", "data pack text s");
    smelt_says(ERROR_USAGE, "t-train.idx exists", "data pack text t valid=0.2");
    smelt_says(ERROR_NONE, "tokenizer:        s.tokenizer\n", "data show s");
    smelt_good("data pack text s overwrite=true");
    smelt_says(ERROR_NONE, "tokenizer:        bytes\n", "data show s");
}

/* A folder or file of the user's under one of the names that a shard takes. */
static void what_is_no_shard_is_never_replaced(void **state) {
    (void)state;
    assert_int_equal(mkdir("s.tokenizer", 0777), 0);
    write_text("s.tokenizer/mine", "mine");
    smelt_says(ERROR_USAGE, "s.tokenizer overwrite=true", "data pack text s");
    smelt_says(ERROR_USAGE, "s.tokenizer", "data pack text s overwrite=true");
    write_text("t.bin", "mine");
    smelt_says(ERROR_USAGE, "t.bin", "data pack text t");
    smelt_good("data pack text u");
    assert_int_equal(rename("u.tokenizer/tokenizer.json", "kept.json"), 0);
    smelt_good("data train-tokenizer text u.tokenizer/tokenizer.json vocabulary=257");
    smelt_says(ERROR_USAGE, "u.tokenizer/tokenizer.json exists", "data train-tokenizer text u.tokenizer/tokenizer.json vocabulary=258");
    smelt_good("data pack text u tokenizer=u.tokenizer overwrite=true");
    smelt_says(ERROR_NONE, "tokenizer:        u.tokenizer\n", "data show u");
    assert_true(access("s.tokenizer/mine", F_OK) == 0 && access("s.bin", F_OK) != 0);
}

int main(void) {
    train_main();
    gpt2 = golden_tokenizer("gpt2");
    llama3 = golden_tokenizer("llama3");
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_shard_brings_its_tokenizer_to_run_text_and_folder),
        TRAIN_TEST(bytes_are_recorded_too),
        TRAIN_TEST(a_vocabulary_of_0_is_that_of_init),
        TRAIN_TEST(a_gguf_file_serves_wherever_a_folder_does),
        TRAIN_TEST(without_a_record_the_tokenizer_is_not_guessed),
        TRAIN_TEST(tokens_of_two_tokenizers_do_not_meet),
        TRAIN_TEST(a_place_with_the_byte_tokenizer_names_bytes),
        TRAIN_TEST(texts_begin_alike_in_training_evaluation_and_generation),
        TRAIN_TEST(a_run_that_began_without_a_setting_for_it_stays_without),
        TRAIN_TEST(new_tokens_get_rows_that_are_the_mean_of_the_others),
        TRAIN_TEST(a_tokenizer_with_more_tokens_than_the_model_has_rows_is_not_exported),
        TRAIN_TEST(a_model_and_a_tokenizer_that_do_not_belong_together_are_refused),
        TRAIN_TEST(text_is_not_bytes_to_a_model_folder_without_a_tokenizer),
        TRAIN_TEST(an_existing_shard_is_replaced_only_when_that_is_wanted),
        TRAIN_TEST(what_is_no_shard_is_never_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

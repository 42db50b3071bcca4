/* `smelt convert CONFIG.yaml OUT` writes a model folder with the initial weights of a training run, in bounded memory. */
#include <sys/resource.h>

#include "base/scope.h"
#include "support/ranks_run.h"
#include "support/sanitized.h"

static void say(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* fp32 holds the initial weights exactly, so every step has the same bits. Another seed gives other
 * losses. */
static void a_folder_of_random_weights_is_the_start_of_a_training(void **state) {
    (void)state;
    train_good("precision=fp32 seed=7 stop_at=4 run=a");
    smelt_good("convert a/config.yaml f dtype=fp32");
    smelt_good("convert a/config.yaml other dtype=fp32 seed=8");
    train_good("precision=fp32 seed=7 stop_at=4 run=b init=f data.tokenizer=bytes");
    train_good("precision=fp32 seed=7 stop_at=4 run=c init=other data.tokenizer=bytes");
    compare_records_within("b", "a", "step", "loss", 0);
    compare_records_within("b", "a", "step", "grad_norm", 0);
    json_t *first = records("a", "step"), *third = records("c", "step");
    assert_true(number(json_array_get(first, 0), "loss") != number(json_array_get(third, 0), "loss"));
    json_decref(first);
    json_decref(third);
}

/* With the same seed, a GGUF file and a folder with several files hold the same model as a folder with one file. */
static void every_form_of_output_holds_the_same_weights(void **state) {
    (void)state;
    say("c.yaml", "model: {family: llama, width: 64, layers: 2, heads: 2, kv_heads: 1, vocabulary: 300}\nprecision: fp32\n");
    smelt_good("convert c.yaml whole");
    smelt_good("convert c.yaml parts shard_bytes=50000");
    smelt_good("convert c.yaml x.gguf");
    assert_int_equal(access("parts/model-00002-of-00010.safetensors", F_OK), 0);
    static const char *const same[] = {"parts", "x.gguf"};
    for (int i = 0; i < 2; i++) {
        smelt_says(ERROR_NONE, "wrote", "convert %s again dtype=fp32 overwrite=true", same[i]);
        assert_int_equal(system("cmp whole/model.safetensors again/model.safetensors"), 0);
    }
}

/* 100 million parameters take 400 MB in fp32 and 200 MB in the folder, but only one file and the largest parameter are
 * in memory at a time. */
static void random_weights_need_the_memory_of_one_file(void **state) {
    (void)state;
    if (SANITIZED) skip(); /* a sanitizer keeps what was freed */
    enum { LIMIT_KIB = 160 << 10 };
    struct rusage use;
    say("c.yaml", "model: {family: llama, width: 512, layers: 26, ffn: 2048, heads: 8, kv_heads: 8, vocabulary: 512}\n");
    smelt_good("convert c.yaml big shard_bytes=8M");
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &use), 0);
    if (use.ru_maxrss > LIMIT_KIB) fail_msg("%ld KiB in memory", use.ru_maxrss);
}

static void what_has_no_random_weights_is_refused(void **state) {
    (void)state;
    say("c.yaml", "model: {family: gpt2, width: 64, layers: 1, heads: 2, vocabulary: 300}\n");
    smelt_says(ERROR_USAGE, "init=base init= (empty)", "convert c.yaml out init=base");
    smelt_says(ERROR_USAGE, "lora.rank=4 lora.rank=0", "convert c.yaml out lora.rank=4");
    smelt_says(ERROR_USAGE, "configuration folder or a GGUF file", "convert c.yaml out.bin");
    smelt_says(ERROR_USAGE, "configuration tokens.add", "convert c.yaml out tokens.add=<a>");
    smelt_says(ERROR_USAGE, "model.width=0", "convert c.yaml out model.width=0");
    smelt_says(
        ERROR_USAGE, "model.vocabulary=100 bytes model.vocabulary=0", "convert c.yaml out data.tokenizer=bytes model.vocabulary=100");
    smelt_good("convert c.yaml out");
    smelt_says(ERROR_USAGE, "'model.width=32' out configuration file", "convert out again model.width=32");
    assert_int_equal(access("out/tokenizer.json", F_OK), -1);
    assert_int_equal(access("again", F_OK), -1);
}

/* A folder that no training can start from would be of no use. */
static void settings_that_training_refuses_are_refused(void **state) {
    (void)state;
    static const char *const refused[][2] = {{"model.kv_lora_rank=8", "model.kv_lora_rank=8 model.family=deepseek"},
        {"layout.cp_exchange=ring", "layout.cp_exchange=ring layout.cp=2"}, {"steps=4 tokens=1M", "more than one of steps tokens"},
        {"model.context=64 data.length=128", "data.length=128 model.context=64"}, {"batch.tokens=1000", "batch.tokens=1000 multiple"},
        {"fp8.recipe=tensor precision=fp64", "fp8.recipe precision=fp64"}, {"schedule.warmup=9 steps=5", "schedule.warmup=9 steps=5"}};
    say("c.yaml", "model: {family: llama, width: 64, layers: 1, heads: 2}\n");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        smelt_says(ERROR_USAGE, refused[i][1], "convert c.yaml out %s", refused[i][0]);
        smelt_says(ERROR_USAGE, refused[i][1], "train c.yaml run=r %s", refused[i][0]);
        assert_int_equal(access("out", F_OK), -1);
    }
    smelt_good("convert c.yaml out data.length=128 batch.tokens=2048 steps=5 schedule.warmup=1");
}

/* Changes the last bit of a tensor of a folder. */
static void change_tensor(const char *folder, const char *name) {
    Safetensors file;
    Error error = {0};
    SCOPED_FREE char *path = memory_format("%s/model.safetensors", folder), *fresh = memory_format("%s/fresh", folder);
    assert_true(safetensors_open(&file, path, &error));
    SCOPED_FREE StoredTensor *tensors = memory_allocate(file.count * sizeof *tensors);
    memcpy(tensors, file.tensors, file.count * sizeof *tensors);
    StoredTensor *tensor = tensors;
    while (strcmp(tensor->name, name) != 0) tensor++;
    size_t bytes = (size_t)(tensor->shape[0] * tensor->shape[1]) * sizeof(float);
    SCOPED_FREE char *values = memory_allocate(bytes);
    memcpy(values, tensor->data, bytes);
    values[bytes - 1] ^= 1;
    tensor->data = values;
    assert_true(safetensors_write(fresh, tensors, file.count, NULL, &error));
    safetensors_close(&file);
    assert_int_equal(rename(fresh, path), 0);
}

/* Only a training with model.mtp=1 and a copy of the model need the layer. */
static void a_prediction_layer_with_its_own_embedding_can_be_omitted(void **state) {
    (void)state;
    const char *layer = "model.layers.1.embed_tokens.weight mtp=false";
    say("c.yaml", "model: {family: glm, width: 32, layers: 1, heads: 2, kv_heads: 2, ffn: 16, experts: 4, experts_per_token: 2, "
                  "shared_experts: 1, router_scores: sigmoid, auxiliary_loss: 0, mtp: 1, init_std: 0.1}\nprecision: fp32\n");
    smelt_good("convert c.yaml own");
    change_tensor("own", "model.layers.1.embed_tokens.weight");
    smelt_says(ERROR_CHECKPOINT, layer, "convert own copy");
    smelt_says(ERROR_CHECKPOINT, layer, "convert own copy.gguf");
    smelt_good("convert own copy mtp=false");
    smelt_says(ERROR_USAGE, "mtp=false copy", "convert copy again mtp=false");
    smelt_says(ERROR_USAGE, "mtp=false c.yaml model.mtp=0", "convert c.yaml again mtp=false");
    ProcessResult copied = smelt("generate copy the tokens=8 temperature=0 threads=1"),
                  divided = smelt("launch ranks=2 -- generate own the tokens=8 temperature=0 threads=1 layout.tp=2");
    expect_code(&copied, 0, "copy");
    expect_code(&divided, 0, "own, layout.tp=2");
    assert_true(strlen(copied.output) > 4);
    assert_string_equal(copied.output, divided.output);
    process_free(&copied);
    process_free(&divided);
}

static void a_model_of_bytes_gets_their_tokenizer(void **state) {
    (void)state;
    say("c.yaml", "model: {family: llama, width: 64, layers: 1, heads: 2}\n");
    smelt_good("convert c.yaml out");
    smelt_good("generate out hello tokens=2 seed=1 device=cpu");
    smelt_good("convert c.yaml plain tokenizer=none");
    assert_int_equal(access("plain/tokenizer.json", F_OK), -1);
    smelt_good("convert c.yaml again data.tokenizer=out/tokenizer.json");
    assert_int_equal(access("again/tokenizer.json", F_OK), 0);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_folder_of_random_weights_is_the_start_of_a_training),
        TRAIN_TEST(every_form_of_output_holds_the_same_weights),
        TRAIN_TEST(random_weights_need_the_memory_of_one_file),
        TRAIN_TEST(what_has_no_random_weights_is_refused),
        TRAIN_TEST(settings_that_training_refuses_are_refused),
        TRAIN_TEST(a_prediction_layer_with_its_own_embedding_can_be_omitted),
        TRAIN_TEST(a_model_of_bytes_gets_their_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

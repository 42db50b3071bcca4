/* Tests of training on conversations: the loss and the gradient of a step are means over its trained tokens, however these
 * are shared out: one large batch of single conversations, several packed into a sequence, microbatches, and two ranks. */
#include "base/scope.h"
#include "support/mentions.h"
#include "support/train_run.h"

/* 16 conversations of ragged lengths, 133 to 250 bytes with what ChatML puts around them: two of them never fit into a
 * sequence of 256. Answers are of 1 to 100 bytes, so that means over conversations or microbatches would differ. */
static void write_conversations(void) {
    FILE *file = fopen("chats.jsonl", "w");
    assert_non_null(file);
    for (int i = 0; i < 16; i++) {
        int answer = 1 + i * i * 99 / 225, question = 150 - answer - 4 * i / 3;
        fprintf(file, "{\"messages\": [{\"role\": \"user\", \"content\": \"%.*s\"}, {\"role\": \"assistant\", \"content\": \"", question,
            "what is it that the checkpoint of a model holds, and why is no weight of it lost when the machine stops, the disk is full or "
            "somebody "
            "pulls the plug of it, again?");
        for (int c = 0; c < answer; c++) fputc('a' + (c * (i + 3) + i) % 26, file);
        fprintf(file, "\"}]}\n");
    }
    assert_int_equal(fclose(file), 0);
    smelt_good("data pack chats.jsonl chats format=chat template=chatml");
}

#define CHAT_RUN                                                                                                                          \
    "data.train=chats data.valid=chats data.packing=best_fit precision=fp64 steps=1 schedule.warmup=0 eval.every=1 checkpoint.every=0 "   \
    "model.family=llama model.experts=0 model.context=1024 threads=1 "

typedef struct Result { double loss, norm, valid; } Result;

static Result result_of(const char *run) {
    return (Result){recorded(run, "step", -1, "loss"), recorded(run, "step", -1, "grad_norm"), recorded(run, "evaluation", -1, "loss")};
}

/* Sums are added in another order, in fp64. */
static void assert_same(Result a, Result b) {
    assert_true(fabs(a.loss - b.loss) < 1e-12 * fabs(a.loss));
    assert_true(fabs(a.norm - b.norm) < 1e-10 * fabs(a.norm));
}

/* Of evaluations of one length too, which cut the conversations at the same places, with the weights behind the step. */
static void assert_same_valid(Result a, Result b) {
    assert_same(a, b);
    assert_true(fabs(a.valid - b.valid) < 1e-9 * fabs(a.valid));
}

static void a_step_is_the_mean_over_its_trained_tokens(void **state) {
    (void)state;
    write_conversations();
    train_good(CHAT_RUN "run=single data.length=256 batch.sequences=16 batch.tokens=4096 model.rope_theta=10000");
    Result single = result_of("single");
    assert_true(single.loss > 0 && single.norm > 0);
    train_good(CHAT_RUN "run=accumulated data.length=256 batch.sequences=1 batch.tokens=4096");
    assert_same_valid(single, result_of("accumulated"));
    train_good(CHAT_RUN "run=packed data.length=1024 batch.sequences=1 batch.tokens=4096");
    assert_same(single, result_of("packed"));
    char *words = memory_format(
        "launch -n 2 self_test=false -- train %s %s run=two data.length=256 batch.sequences=2 batch.tokens=4096", TINY, CHAT_RUN);
    smelt_good(words);
    free(words);
    assert_same_valid(single, result_of("two"));
}

/* Conversations as the data of a run and of `smelt eval` are packed by the template of data.tokenizer. */
static void conversations_are_packed_by_the_run_itself(void **state) {
    (void)state;
    write_conversations();
    SCOPED_FREE char *copy = memory_format("mkdir tokens && cd tokens && cp %s/tests/golden/chat/tokenizer*.json . && cp "
                                           "%s/tests/golden/chat/templates/system.jinja chat_template.jinja",
        getenv("REPOSITORY"), getenv("REPOSITORY"));
    assert_int_equal(system(copy), 0);
    smelt_good("data pack chats.jsonl packed tokenizer=tokens");
#define BY_TEMPLATE "precision=fp64 steps=1 schedule.warmup=0 eval.every=1 model.family=llama model.experts=0 model.vocabulary=0 threads=1 "
    train_good(BY_TEMPLATE "run=first data.train=packed data.valid=packed");
    train_good(BY_TEMPLATE "run=second data.train=chats.jsonl data.valid=chats.jsonl data.tokenizer=tokens");
    assert_same_valid(result_of("first"), result_of("second"));
    ProcessResult of_text = smelt("eval second chats.jsonl device=cpu"), of_shard = smelt("eval second packed device=cpu");
    expect_code(&of_text, ERROR_NONE, "eval");
    assert_holds(of_text.output, "loss ");
    assert_string_equal(of_text.output, of_shard.output);
    process_free(&of_text);
    process_free(&of_shard);
}

static void a_run_without_the_mask_has_another_loss(void **state) {
    (void)state;
    write_conversations();
    smelt_good("data pack chats.jsonl plain format=text");
    train_good(CHAT_RUN "run=masked data.length=256 batch.sequences=16 batch.tokens=4096");
    train_good(CHAT_RUN "run=plain data.train=plain data.valid=plain data.length=256 batch.sequences=16 batch.tokens=4096");
    assert_true(fabs(result_of("masked").loss - result_of("plain").loss) > 1e-6);
}

static void conversations_that_are_cut_are_named(void **state) {
    (void)state;
    write_conversations();
    train_says(ERROR_NONE, "16 data.length=200", CHAT_RUN "run=short data.length=200 batch.sequences=1 batch.tokens=200");
    train_says(ERROR_NONE, "9 of 16 conversations data.length=200 split",
        CHAT_RUN "run=short2 data.length=200 batch.sequences=1 batch.tokens=200");
    train_says(ERROR_NONE, "data.packing=best_fit", CHAT_RUN "run=cut data.packing=cut data.length=256 batch.sequences=1 batch.tokens=256");
    ProcessResult whole = smelt("train " TINY " " CHAT_RUN "run=whole data.length=256 batch.sequences=1 batch.tokens=256");
    assert_int_equal(whole.code, 0);
    assert_null(strstr(whole.errors, "are split"));
    process_free(&whole);
}

static void an_evaluation_without_a_trained_token_is_refused_before_the_first_step(void **state) {
    (void)state;
    FILE *file = fopen("chats.jsonl", "w");
    assert_non_null(file);
    fprintf(file, "{\"messages\": [{\"role\": \"user\", \"content\": \"%0300d\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n", 0);
    assert_int_equal(fclose(file), 0);
    smelt_good("data pack chats.jsonl chats format=chat template=chatml");
    train_says(ERROR_DATA, "data.valid=chats: the evaluated sequences (the first 4)",
        CHAT_RUN "run=none data.packing=cut data.length=64 eval.sequences=4");
    assert_int_not_equal(access("none/checkpoints", F_OK), 0);
    train_says(ERROR_NONE, "trained",
        CHAT_RUN "run=some data.packing=cut data.length=64 batch.sequences=1 batch.tokens=64 steps=2 eval.sequences=6");
    assert_true(result_of("some").valid > 0);
    ProcessResult result = smelt("eval some chats length=64 sequences=4");
    expect_code(&result, ERROR_DATA, "eval");
    assert_mentions(result.errors, "chats: the evaluated sequences (the first 4)");
    process_free(&result);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_step_is_the_mean_over_its_trained_tokens),
        TRAIN_TEST(conversations_are_packed_by_the_run_itself),
        TRAIN_TEST(a_run_without_the_mask_has_another_loss),
        TRAIN_TEST(conversations_that_are_cut_are_named),
        TRAIN_TEST(an_evaluation_without_a_trained_token_is_refused_before_the_first_step),
    };
    train_main();
    setenv("REPOSITORY", realpath(".", NULL), 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every precision and kind of training beside every command that takes a run: each cell of the table is run, and a cell that is
 * not supported is refused by a message that names what is not. */
#include <math.h>

#include "support/mentions.h"
#include "support/train_run.h"

#include "base/scope.h"

/* -- The table ----------------------------------------------------------------------------------------------------- */

/* How weights are held and multiplied. */
typedef struct Numbers {
    const char *name, *settings;
    double loss; /* by how much losses of the same weights may differ, of about 5: rounding of bf16, or of fp8 */
} Numbers;
static const Numbers numbers[] = {
    {"fp32", "precision=fp32", 1e-5},
    {"bf16", "precision=bf16", 0.02},
    {"fp64", "precision=fp64", 1e-5},
    {"pure_bf16", "precision=pure_bf16", 0.02},
    {"fp8", "precision=bf16 fp8.recipe=tensor fp8.min_size=0 fp8.head=true", 0.1},
    {"fp8_pure", "precision=pure_bf16 fp8.recipe=row fp8.min_size=0", 0.1},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

typedef struct Kind {
    const char *name, *settings;
    bool adapters, own_base; /* own_base: the base is rounded, so that merged weights are not those that were trained */
    const char *refused;     /* the numbers that it is refused beside, and how that is said */
    const char *fragment;
} Kind;
static const Kind kinds[] = {
    {"full", "", false, false, "", ""},
    {"lora", "lora.rank=4 optimizer.lr=1e-2", true, false, "", ""},
    {"qlora", "lora.rank=4 optimizer.lr=1e-2 lora.base=nf4", true, true, "fp64 fp8 fp8_pure", "lora.base=nf4"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef enum Result {
    RESULT_NONE,    /* ends well */
    RESULT_MODEL,   /* writes `out`, with the loss of the run */
    RESULT_REFUSED, /* ends with `fragment` */
} Result;

typedef struct Consumer {
    const char *name, *words; /* %s: the run */
    Result full, adapted;     /* of all weights, of adapters */
    const char *out, *fragment;
} Consumer;
#define TRAIN "train data.train=text data.length=32 batch.sequences=4 batch.tokens=256 eval.sequences=0 threads=1 tensorboard=false "
static const Consumer consumers[] = {
    {"eval", "eval %s text", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"generate", "generate %s a tokens=2", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"generate without a cache", "generate %s a tokens=2 cache=false", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"chat", "chat %s template=chatml tokens=2", RESULT_NONE, RESULT_NONE, NULL, NULL}, /* which reads no message */
    {"show", "show %s", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"folder", "convert %s folder overwrite=true", RESULT_MODEL, RESULT_MODEL, "folder", NULL},
    {"folder in fp32", "convert %s folder dtype=fp32 overwrite=true", RESULT_MODEL, RESULT_MODEL, "folder", NULL},
    {"gguf", "convert %s model.gguf overwrite=true", RESULT_MODEL, RESULT_MODEL, "model.gguf", NULL},
    {"gguf in q8_0", "convert %s model.gguf dtype=q8_0 overwrite=true", RESULT_MODEL, RESULT_MODEL, "model.gguf", NULL},
    {"llm.c", "convert %s model.bin overwrite=true", RESULT_REFUSED, RESULT_REFUSED, NULL, "gpt2"},
    {"peft", "convert %s adapter adapter=true overwrite=true", RESULT_REFUSED, RESULT_MODEL, "adapter", "trains no adapters"},
    {"init of all weights", TRAIN "run=next steps=1 precision=fp32 init=%s", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"init in bf16", TRAIN "run=next steps=1 precision=pure_bf16 init=%s", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"other adapters", TRAIN "run=next steps=1 precision=fp32 lora.rank=2 init=%s", RESULT_NONE, RESULT_REFUSED, NULL,
        "set those of its config.yaml"},
    {"adapters go on", TRAIN "run=next steps=1 precision=fp32 lora.rank=4 init=%s", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"reference of DPO",
        "train data.train=pairs data.valid= data.length=32 batch.sequences=2 batch.tokens=64 eval.sequences=0 threads=1 tensorboard=false "
        "preference.loss=dpo data.packing=best_fit run=next steps=1 precision=fp32 init=%s",
        RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"fork", "train %s fork=next stop_at=5", RESULT_NONE, RESULT_NONE, NULL, NULL},
    {"resume", "train %s", RESULT_NONE, RESULT_NONE, NULL, NULL}, /* the last: it trains on */
};
enum { CONSUMERS = sizeof consumers / sizeof *consumers };

/* -- Cells --------------------------------------------------------------------------------------------------------- */

/* The loss that `smelt eval` prints. */
static double evaluated(const char *model) {
    SCOPED_FREE char *words = memory_format("eval %s text", model);
    ProcessResult result = smelt(words);
    const char *at = strstr(result.output, "loss");
    if (result.code || !at) fail_msg("%s: exit code %d:\n%s", words, result.code, result.errors);
    double loss = strtod(at + strlen("loss"), NULL);
    process_free(&result);
    return loss;
}

/* The difference that convert prints is that of the type which is written: q8_0 rounds to 1 part in 254, fp32 hardly. */
static void check_difference(const char *words, const ProcessResult *result) {
    static const char before[] = "differ by at most ";
    const char *at = strstr(result->errors, before);
    if (!at) fail_msg("%s: no difference is printed:\n%s", words, result->errors);
    double difference = strtod(at + strlen(before), NULL);
    bool rounds = strstr(words, "q8_0"), exact = strstr(words, "dtype=fp32");
    if ((rounds && difference < 1e-4) || (exact && difference > 1e-5)) fail_msg("%s: differs by %g", words, difference);
}

static void check_cell(const Numbers *n, const Kind *kind, const Consumer *consumer, const char *run, double trained) {
    Error ignored = {0};
    Result expected = kind->adapters ? consumer->adapted : consumer->full;
    file_remove("next", &ignored);
    SCOPED_FREE char *words = memory_format(consumer->words, run);
    ProcessResult result = smelt(words);
    bool refused = result.code != 0, says = consumer->fragment && mentions(result.errors, consumer->fragment);
    if (result.signal || refused != (expected == RESULT_REFUSED) || (refused && !says))
        fail_msg("%s, %s, %s: %s: exit code %d, signal %d:\n%s", n->name, kind->name, consumer->name, words, result.code, result.signal,
            result.errors);
    if (kind->adapters && expected == RESULT_MODEL && strcmp(consumer->name, "peft")) check_difference(words, &result);
    process_free(&result);
    if (expected != RESULT_MODEL) return;
    double loss = evaluated(consumer->out), bound = n->loss + (strstr(words, "q8_0") ? 0.02 : 0);
    if (!(fabs(loss - trained) < bound))
        fail_msg("%s, %s, %s: the loss is %g instead of %g", n->name, kind->name, consumer->name, loss, trained);
}

static void check_row(const Numbers *n, const Kind *kind) {
    SCOPED_FREE char *run = memory_format("%s-%s", n->name, kind->name);
    SCOPED_FREE char *words = memory_format(
        TRAIN "data.valid=text init=base run=%s steps=6 stop_at=4 checkpoint.every=4 %s %s", run, n->settings, kind->settings);
    ProcessResult result = smelt(words);
    bool refused = *kind->refused && strstr(kind->refused, n->name);
    if (refused ? !result.code || !mentions(result.errors, kind->fragment) : result.code)
        fail_msg("%s: exit code %d:\n%s", words, result.code, result.errors);
    process_free(&result);
    if (refused) return;
    double trained = evaluated(run);
    for (int c = 0; c < CONSUMERS; c++) check_cell(n, kind, &consumers[c], run, trained);
}

static void write_pairs(void) {
    FILE *file = fopen("pairs.jsonl", "w");
    assert_non_null(file);
    for (int i = 0; i < 20; i++) fprintf(file, "{\"prompt\": \"q%d:\", \"chosen\": \"a%d\", \"rejected\": \"%db\"}\n", i, i % 7, i % 5);
    assert_int_equal(fclose(file), 0);
    smelt_good("data pack pairs.jsonl pairs format=preference");
}

static int setup(void **state) {
    if (enter_folder(state) != 0) return -1;
    write_corpus("text", 300);
    write_pairs();
    train_good("run=base model.family=llama model.experts=0 precision=fp32 steps=5");
    return 0;
}

static void every_command_takes_every_run(void **state) {
    (void)state;
    for (int n = 0; n < NUMBERS; n++)
        for (int k = 0; k < KINDS; k++) check_row(&numbers[n], &kinds[k]);
}

int main(void) {
    train_main();
    if (!freopen("/dev/null", "r", stdin)) return 1; /* `smelt chat` reads it */
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(every_command_takes_every_run, setup, leave_folder)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

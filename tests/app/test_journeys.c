/* Sequences of the commands of a user, for random tiny models of random families: train, stop, continue,
 * export, convert to GGUF, train adapters, merge them, quantize, generate, evaluate. Each result must agree with the one
 * before it. Six models by default; SMELT_JOURNEYS=100 SMELT_JOURNEY_SEED=1 tries 100, beginning with number 1. The number
 * and the settings of each model are printed. */
#include <sys/stat.h>

#include "base/scope.h"
#include "support/train_run.h"

enum { JOURNEYS = 6, FIRST_SEED = 20261201 };

/* Settings of a kind of model beside its sizes. */
typedef struct Kind {
    const char *settings;
    bool has_gguf; /* these settings can be written as a GGUF file */
    bool square;   /* heads * head_dim = width, ffn = 4 * width, and as many key heads as heads */
} Kind;

#define EXPERTS " model.experts=4 model.experts_per_token=2"
/* Classes without balancing biases. */
#define UNBIASED EXPERTS " optimizer.balance_lr=0"
#define DELTA " model.attention_period=2 model.delta_heads=4 model.delta_key_heads=2 model.delta_key_dim=8 model.delta_value_dim=8"
static const Kind kinds[] = {
    {"model.family=llama model.tied=false", true, false},
    {"model.family=llama model.qkv_bias=true", true, false},
    {"model.family=llama model.qk_norm=true", true, false},
    {"model.family=llama model.window=9", false, false},
    {"model.family=llama model.rope_factor=4 model.rope_original_context=16", true, false},
    {"model.family=llama model.renormalise=true model.tied=false" UNBIASED, true, false},
    {"model.family=llama model.qk_norm=true model.renormalise=true model.tied=false" UNBIASED, true, false},
    {"model.family=olmo", true, false},
    {"model.family=olmo model.window=9 model.window_period=2 model.window_skips=true", false, false},
    {"model.family=olmo model.tied=false" UNBIASED, true, true},
    {"model.family=gemma model.qk_norm=true model.window=9 model.window_period=2 model.softmax_scale=0.2", false, false},
    {"model.family=gemma model.window=9 model.score_cap=20 model.logit_cap=10", false, false},
    {"model.family=gpt_oss model.qkv_bias=true model.window=9 model.window_period=2 model.renormalise=true model.tied=false" UNBIASED,
        false, false},
    {"model.family=deepseek model.kv_lora_rank=12 model.q_lora_rank=10 model.rope_dim=4 model.value_dim=6 model.shared_experts=1 "
     "model.norm_epsilon=1e-6" UNBIASED,
        true, true},
    {"model.family=deepseek model.kv_lora_rank=12 model.rope_dim=4 model.value_dim=6 model.shared_experts=1 model.router_scores=sigmoid "
     "model.auxiliary_loss=0 model.mtp=1 model.tied=false" EXPERTS,
        false, true},
    {"model.family=glm model.shared_experts=1 model.router_scores=sigmoid model.auxiliary_loss=0 model.qkv_bias=true "
     "model.rope_fraction=0.5" EXPERTS,
        true, false},
    {"model.family=minimax model.router_scores=sigmoid model.renormalise=true model.auxiliary_loss=0 model.rope_fraction=0.5 "
     "model.tied=false" EXPERTS,
        true, false},
    {"model.family=qwen3_5 model.rope_fraction=0.5" DELTA, true, false},
    {"model.family=qwen3_next model.rope_fraction=0.5 model.renormalise=true model.shared_experts=1" DELTA UNBIASED, true, false},
    {"model.family=granite model.embedding_scale=12 model.residual_scale=0.22 model.softmax_scale=0.1 model.logit_divisor=8", true, false},
    {"model.family=smollm3 model.nope_period=4", true, false},
    {"model.family=phi3", true, true},
    {"model.family=mpt", true, true},
    {"model.family=gpt2", true, true},
    {"model.family=zaya model.router_width=12 model.rope_fraction=0.5 model.experts=4", false, false},
};

typedef struct Draws { uint64_t seed, count; } Draws;

static int64_t draw_of(Draws *draws, int64_t count) {
    return (int64_t)(rng_bits(draws->seed, 1, draws->count++).word[0] % (uint64_t)count);
}

/* Returns the settings of a random model, for the caller to free. */
static char *draw_model(uint64_t seed, const Kind **kind) {
    Draws draws = {.seed = seed};
    *kind = &kinds[draw_of(&draws, sizeof kinds / sizeof *kinds)];
    int64_t group = 1 + draw_of(&draws, 2), kv_heads = 1 + draw_of(&draws, 2), heads = group * kv_heads;
    int64_t head_dim = 8 * (1 + draw_of(&draws, 3)), width = 16 * (1 + draw_of(&draws, 3)), layers = 1 + draw_of(&draws, 3);
    int64_t ffn = 8 * (2 + draw_of(&draws, 5));
    if (strstr((*kind)->settings, "attention_period")) layers++; /* llama.cpp needs a layer with attention */
    if ((*kind)->square) kv_heads = heads, width = heads * head_dim, ffn = 4 * width;
    static const char *const optimizers[] = {"adamw", "lion", "muon"}, *const policies[] = {"none", "block"};
    const char *optimizer = optimizers[draw_of(&draws, 3)], *policy = policies[draw_of(&draws, 2)];
    return memory_format(
        "%s optimizer.name=%s recompute=%s model.heads=%lld model.kv_heads=%lld model.head_dim=%lld model.width=%lld model.layers=%lld "
        "model.ffn=%lld",
        (*kind)->settings, optimizer, policy, (long long)heads, (long long)kv_heads, (long long)head_dim, (long long)width,
        (long long)layers, (long long)ffn);
}

/* PEFT has no adapters of shared experts. */
static const char *draw_targets(uint64_t seed, const char *model) {
    Draws draws = {.seed = seed, .count = 1000};
    if (!strstr(model, "model.experts=")) return "";
    return draw_of(&draws, 2) ? "lora.targets=attention" : "lora.targets=attention,experts";
}

/* Returns what a command writes to stdout, for the caller to free. */
__attribute__((format(printf, 1, 2))) static char *output_of(const char *format, ...) {
    char *words = NULL;
    va_list values;
    va_start(values, format);
    assert_true(vasprintf(&words, format, values) >= 0);
    va_end(values);
    ProcessResult result = smelt(words);
    expect_code(&result, 0, words);
    char *output = memory_copy_string(result.output);
    process_free(&result);
    free(words);
    return output;
}

/* Draws tokens: after few steps, the likeliest token is the same one after any text. */
#define WRITING "tokens=24 temperature=1 seed=3 threads=1"

static char *text_of(const char *model) {
    char *text = output_of("generate %s the " WRITING, model);
    if (strlen(text) < 16) fail_msg("%s writes only \"%s\"", model, text);
    return text;
}

/* Checks that two models write the same text. */
static void assert_same_text(const char *model, const char *other) {
    SCOPED_FREE char *text = text_of(model), *other_text = text_of(other);
    if (strcmp(text, other_text) != 0) fail_msg("%s writes \"%s\", and %s \"%s\"", model, text, other, other_text);
}

/* Returns the sum of the log-probabilities of greedy completions of three prompts at once. */
static double greedy_sum(const char *words) {
    double sum = 0, value;
    int count = 0;
    SCOPED_FREE char *lines = output_of("generate %s tokens=16 temperature=0 threads=1", words);
    for (const char *at = lines; (at = strstr(at, "\"logprob\":")); at++, count++) {
        assert_int_equal(sscanf(at, "\"logprob\":%lf", &value), 1);
        sum += value;
    }
    assert_int_equal(count, 3);
    return sum;
}

/* Checks that two models continue three prompts alike; the words name the prompts too. */
static void assert_same_greedy(const char *words, const char *others) {
    double sum = greedy_sum(words), other = greedy_sum(others);
    if (!(sum < -1 && fabs(sum - other) <= 1e-5 * fabs(sum)))
        fail_msg("log-probabilities are %.9g with %s, %.9g with %s", sum, words, other, others);
}

static double loss_of(const char *model) {
    double loss = NAN;
    char *text = output_of("eval %s ../text sequences=8 length=32 threads=1", model), *line = strstr(text, "loss ");
    if (!line || sscanf(line, "loss %lf", &loss) != 1) fail_msg("eval %s printed no loss: %s", model, text);
    free(text);
    return loss;
}

static void assert_loss(const char *model, double expected, double bound) {
    double loss = loss_of(model);
    if (!(fabs(loss - expected) <= bound)) fail_msg("%s has loss %.7f instead of %.7f", model, loss, expected);
}

#define TRAINING                                                                                                                           \
    "data.train=../text data.length=32 batch.sequences=4 batch.tokens=256 optimizer.lr=5e-3 schedule.warmup=2 eval.every=0 threads=1 "     \
    "tensorboard=false precision=fp32 "

/* eval prints six decimals. */
static const double printed = 2e-6;

/* A run that was stopped and continued equals an uninterrupted one. */
static void train_and_continue(const char *model) {
    SCOPED_FREE char *straight = memory_format("train " TRAINING "model.init_std=0.1 steps=6 run=straight %s", model);
    SCOPED_FREE char *stopped = memory_format("train " TRAINING "model.init_std=0.1 steps=6 run=run stop_at=3 %s", model);
    smelt_good(straight);
    smelt_good(stopped);
    smelt_good("train run");
    assert_same_steps("run", "straight");
    assert_true(same_checkpoint("run", "straight", 6));
}

static void export_folder(double loss) {
    smelt_good("convert run folder");
    assert_same_text("folder", "run");
    assert_loss("folder", loss, printed);
    smelt_good("convert folder copy");
    assert_true(same_bytes("folder/model.safetensors", "copy/model.safetensors"));
    SCOPED_FREE char *cached = text_of("folder"), *whole = output_of("generate folder the " WRITING " cache=false");
    assert_string_equal(cached, whole);
    assert_same_greedy("folder ../prompts.jsonl", "run ../prompts.jsonl");
}

/* Q8_0 keeps seven bits of each weight. */
static void export_gguf(double loss) {
    smelt_good("convert folder model.gguf");
    assert_same_text("model.gguf", "folder");
    assert_loss("model.gguf", loss, printed);
    smelt_good("convert model.gguf back");
    assert_same_text("back", "folder");
    smelt_good("convert folder small.gguf dtype=q8_0");
    assert_loss("small.gguf", loss, 0.05 * loss);
}

/* Adapters of a run, merged into a folder, and as PEFT's folder beside their base. */
static void train_adapters(double loss, const char *targets) {
    SCOPED_FREE char *plain = memory_format("train " TRAINING "init=folder steps=4 optimizer.lr=0.05 run=adapters lora.rank=2 %s", targets);
    SCOPED_FREE char *nf4 =
        memory_format("train " TRAINING "init=folder steps=4 optimizer.lr=0.05 run=nf4 lora.base=nf4 lora.rank=2 %s", targets);
    smelt_good(plain);
    double adapted = loss_of("adapters");
    assert_true(fabs(adapted - loss) > 1e-3);
    smelt_good("convert adapters merged");
    assert_same_text("merged", "adapters");
    assert_loss("merged", adapted, printed);
    smelt_good("convert adapters peft adapter=true");
    assert_same_text("peft@folder", "adapters");
    assert_loss("peft@folder", adapted, printed);
    if (!strstr(targets, "experts")) /* several adapters at once have none */
        assert_same_greedy("folder ../adapted.jsonl adapters={\"a\":\"peft\",\"b\":\"adapters\"}", "merged ../prompts.jsonl");
    smelt_good(nf4);
    double first = recorded("adapters", "step", 0, "loss"), rough = recorded("nf4", "step", 0, "loss");
    if (!(fabs(rough - first) < 0.1 * first)) fail_msg("loss %.7f with a base in NF4, and %.7f without", rough, first);
    /* A loss may be the same by chance: a small layer changes few of its digits. */
    assert_true(recorded("adapters", "step", 0, "grad_norm") != recorded("nf4", "step", 0, "grad_norm"));
}

static void travel(uint64_t seed) {
    const Kind *kind;
    SCOPED_FREE char *model = draw_model(seed, &kind), *folder = memory_format("journey-%llu", (unsigned long long)seed);
    printf("journey %llu: %s\n", (unsigned long long)seed, model);
    fflush(stdout);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chdir(folder), 0);
    train_and_continue(model);
    double loss = loss_of("run");
    export_folder(loss);
    if (kind->has_gguf) export_gguf(loss);
    train_adapters(loss, draw_targets(seed, model));
    assert_int_equal(chdir(".."), 0);
}

static uint64_t number_of_variable(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

#define PROMPTS(first, second, third) "{" first ":\"the\"}\n{" second ":\"a model of\"}\n{" third ":\"every weight\"}\n"

static void each_command_agrees_with_the_one_before(void **state) {
    (void)state;
    write_text("prompts.jsonl", PROMPTS("\"prompt\"", "\"prompt\"", "\"prompt\""));
    write_text("adapted.jsonl", PROMPTS("\"adapter\":\"a\",\"prompt\"", "\"adapter\":\"b\",\"prompt\"", "\"adapter\":\"a\",\"prompt\""));
    uint64_t first = number_of_variable("SMELT_JOURNEY_SEED", FIRST_SEED), count = number_of_variable("SMELT_JOURNEYS", JOURNEYS);
    for (uint64_t i = 0; i < count; i++) travel(first + i);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {TRAIN_TEST(each_command_agrees_with_the_one_before)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

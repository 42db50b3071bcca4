/* Log-probabilities of the engine and of the training program: the bits are equal with device_set_exact, whatever the
 * slots, the other sequences, the blocks of a prompt, and the rows of the training batch. On the GPU of
 * SMELT_TEST_DEVICE, else on the CPU, which is always exact. Prints how far apart they are without it.
 * SMELT_TEST_ROUNDS=N in the environment compares N times as many texts.
 *
 * The training batch has the finished texts in rows of their own, or one after another in one row, on a GPU each beginning
 * at a multiple of EXACT_ROWS. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "engine/engine.h"
#include "ops/attention/attention.h"
#include "ops/loss/loss.h"
#include "support/check.h"
#include "support/random_run.h"

enum { SETTINGS = 20, CONTEXT = 320, SMALL_CONTEXT = 160, REQUESTS = 6, MOST_TOKENS = 24, SMALL_TOKENS = 6 };

/* `large`: too slow for a CPU or an emulator. */
typedef struct Variety {
    const char *name;
    bool large;
    int vocabulary;
    const char *settings[SETTINGS];
} Variety;

static const Variety varieties[] = {
    {"llama", false, 203,
        {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=64", "model.head_dim=32", "model.ffn=96", "model.layers=2",
            "model.tied=false"}},
    {"qwen3", false, 200,
        {"model.family=llama", "model.heads=2", "model.kv_heads=1", "model.width=48", "model.head_dim=64", "model.ffn=80", "model.layers=2",
            "model.qk_norm=true", "model.tied=true"}},
    {"zaya", false, 196,
        {"model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=16", "model.width=48", "model.ffn=40",
            "model.router_width=16", "model.rope_fraction=0.5", "model.layers=2", "model.tied=false"}},
    {"mixtral", false, 200,
        {"model.family=llama", "model.heads=4", "model.kv_heads=1", "model.width=48", "model.ffn=40", "model.layers=2", "model.experts=4",
            "model.experts_per_token=2", "model.renormalise=true", "model.window=70", "model.tied=false"}},
    {"qwen3 with adapters", false, 200,
        {"model.family=llama", "model.heads=2", "model.kv_heads=1", "model.width=48", "model.head_dim=64", "model.ffn=80", "model.layers=2",
            "model.qk_norm=true", "model.tied=true", "lora.rank=4", "lora.targets=all", "lora.tokens=3-9"}},
    {"zaya with adapters", false, 196,
        {"model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=16", "model.width=48", "model.ffn=40",
            "model.router_width=16", "model.rope_fraction=0.5", "model.layers=2", "model.tied=false", "lora.rank=8",
            "lora.targets=all,router"}},
    {"llama with heads of 64", true, 1003,
        {"model.family=llama", "model.heads=8", "model.kv_heads=2", "model.width=512", "model.head_dim=64", "model.ffn=1408",
            "model.layers=4", "model.tied=false"}},
    {"llama with heads of 128", true, 1000,
        {"model.family=llama", "model.heads=8", "model.kv_heads=2", "model.width=1024", "model.head_dim=128", "model.ffn=2816",
            "model.layers=4", "model.tied=true"}},
    {"llama of 1024 with adapters", true, 1000,
        {"model.family=llama", "model.heads=8", "model.kv_heads=2", "model.width=1024", "model.head_dim=128", "model.ffn=2816",
            "model.layers=3", "model.tied=false", "lora.rank=16", "lora.targets=all"}},
    {"mixtral with adapters", true, 1000,
        {"model.family=llama", "model.heads=8", "model.kv_heads=2", "model.width=512", "model.head_dim=64", "model.ffn=512",
            "model.layers=3", "model.experts=8", "model.experts_per_token=2", "model.renormalise=true", "model.tied=false", "lora.rank=8",
            "lora.targets=all", "lora.experts=each"}},
    {"llama of 2048", true, 4100,
        {"model.family=llama", "model.heads=16", "model.kv_heads=4", "model.width=2048", "model.head_dim=128", "model.ffn=5632",
            "model.layers=2", "model.tied=true"}},
    {"qwen3 with heads of 128", true, 2004,
        {"model.family=llama", "model.heads=8", "model.kv_heads=4", "model.width=512", "model.head_dim=128", "model.ffn=1536",
            "model.layers=3", "model.qk_norm=true", "model.tied=true"}},
    {"zaya with heads of 128", true, 1000,
        {"model.family=zaya", "model.experts=16", "model.heads=8", "model.kv_heads=2", "model.head_dim=128", "model.width=512",
            "model.ffn=512", "model.router_width=64", "model.rope_fraction=0.5", "model.layers=4", "model.tied=true"}},
    {"mixtral with heads of 64", true, 1000,
        {"model.family=llama", "model.heads=8", "model.kv_heads=2", "model.width=512", "model.head_dim=64", "model.ffn=512",
            "model.layers=3", "model.experts=8", "model.experts_per_token=2", "model.renormalise=true", "model.tied=false"}},
};
enum { VARIETIES = sizeof varieties / sizeof *varieties };

/* -- Requests ------------------------------------------------------------------------------------------------------ */

/* A text: a prompt, and the tokens drawn after it, with the engine's log-probability of each but the first; of a prompt
 * only if it is scored. Some texts wait after their first drawn token until others are appended, whose log-probability is
 * NaN. */
typedef struct Text {
    int32_t tokens[CONTEXT];
    double log_probability[CONTEXT];
    int count, prompt, drawn, appended, scored_to; /* scored_to: 0, or the next token of the prompt to be scored */
    bool waits;
} Text;

static bool take_token(void *context, int sample, const EngineToken *token) {
    Text *text = context;
    assert_int_equal(sample, 0);
    assert_in_range(text->count, 1, CONTEXT - 1);
    text->tokens[text->count] = token->token;
    text->log_probability[text->count++] = token->log_probability;
    return !text->appended || text->count > text->prompt + 1;
}
static bool wait_for_more(void *context, int sample) {
    (void)sample;
    return ((Text *)context)->waits = true;
}
static void go_on(Engine *engine, Text *text) {
    if (!text->waits) return;
    text->waits = false;
    const int32_t *first = text->tokens + text->count;
    for (int i = 0; i < text->appended; i++) {
        text->tokens[text->count] = 7 * i % 190;
        text->log_probability[text->count++] = NAN;
    }
    engine_extend(engine, text, 0, first, text->appended);
}
static void take_score(void *context, const EngineToken *token) {
    Text *text = context;
    text->log_probability[text->scored_to++] = token->log_probability;
}
static void take_end(void *context, int sample, EngineEnd end) { (void)context, (void)sample, (void)end; }

static bool is_slow(const Device *device) { return device_info(device)->kind == DEVICE_CPU || device_info(device)->emulated; }
static int context_of(const Device *device) { return is_slow(device) ? SMALL_CONTEXT : CONTEXT; }
static uint64_t random_below(uint64_t *at, uint64_t limit) { return (uint64_t)(rng_uniform(78, 3, (*at)++) * (double)limit); }

/* Random weights in one layout: the engine has none of its own, as in a run of reinforcement learning, and the training
 * programs have copies. All are in the master arena. */
typedef struct Base {
    const Config *config;
    Precision precision;
    Device *device;
    Program program; /* never runs */
    Layout *layout;
    void *master; /* in host memory */
} Base;

static void put_weights(const Base *base, Executor *executor) {
    const Graph *graph = base->program.model.graph;
    void *master = executor_arena(executor, ARENA_MASTER);
    device_upload(base->device, master, base->master, graph->parameter_bytes);
    model_cast_weights(graph, base->device, master, executor_arena(executor, ARENA_WEIGHT));
    device_synchronize(base->device);
}

static Base base_create(const Config *config, Precision precision, Device *device) {
    Model model = model_build_adapted(NULL, &config->model, &config->lora, precision, MODEL_TRAIN, 1, 32, RECOMPUTE_NONE);
    for (int i = 0; i < model.graph->parameter_count; i++) model.graph->parameters[i].frozen = false;
    Base base = {.config = config, .precision = precision, .device = device};
    base.layout = layout_create(model.graph, &config->optimizer, &config->layout, 1 << 20);
    base.program = check_program(model, device);
    base.master = memory_allocate(model.graph->parameter_bytes);
    memset(base.master, 0, (size_t)model.graph->parameter_bytes);
    random_run_weights(model.graph, &config->model, base.master);
    put_weights(&base, base.program.executor);
    return base;
}

static void base_free(Base *base) {
    program_free(&base->program);
    layout_free(base->layout);
    free(base->master);
}

/* Generates all texts. Some arrive later, and a schedule has its slots and rows. */
static void generate(const Base *base, EngineSizes sizes, uint64_t at, Text *texts) {
    Error error = {0};
    const Config *config = base->config;
    const int context = context_of(base->device), most = is_slow(base->device) ? SMALL_TOKENS : MOST_TOKENS;
    sizes.limit = config->model.vocabulary;
    sizes.scores = true;
    const EngineOwner owner = {&base->program, base->layout, &config->lora};
    Engine *engine = engine_create_beside(&config->model, base->precision, &owner, base->device, sizes, &error);
    if (!engine) fail_msg("%s", error.message);
    for (int i = 0; i < REQUESTS; i++) {
        Text *text = &texts[i];
        *text = (Text){.prompt = i == 0 ? 1 : 1 + (int)random_below(&at, (uint64_t)(context - most - 1)), .scored_to = i % 2};
        text->count = text->prompt;
        text->drawn = 1 + (int)random_below(&at, (uint64_t)most);
        if (i % 3 == 2) text->drawn++, text->appended = (int)random_below(&at, (uint64_t)(context - text->prompt - text->drawn + 1));
        for (int j = 0; j < text->prompt; j++) text->tokens[j] = (int32_t)random_below(&at, (uint64_t)config->model.vocabulary);
        const EngineRequest request = {.prompt = text->tokens,
            .prompt_count = text->prompt,
            .tokens = text->drawn + text->appended,
            .samples = 1,
            .sampling = {.temperature = 1, .top_p = 1, .seed = 5},
            .number = (uint64_t)i,
            .token = take_token,
            .scored = text->scored_to ? take_score : NULL,
            .end = take_end,
            .wait = wait_for_more,
            .context = text};
        if (!engine_submit(engine, &request, &error)) fail_msg("%s", error.message);
        for (uint64_t steps = random_below(&at, 4); steps > 0; steps--)
            if (!engine_step(engine, &error)) fail_msg("%s", error.message);
    }
    while (engine_busy(engine)) {
        if (!engine_step(engine, &error)) fail_msg("%s", error.message);
        for (int i = 0; i < REQUESTS; i++)
            if (engine_waits(engine) || random_below(&at, 3) == 0) go_on(engine, &texts[i]);
    }
    engine_free(engine);
}

/* -- The training program ------------------------------------------------------------------------------------------ */

/* Makes the head of a training program write the loss of each row. */
static TensorId keep_row_losses(Graph *graph) {
    int64_t rows = 0;
    for (int i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].op != OP_linear_cross_entropy) continue;
        rows = graph_rows(graph, graph->nodes[i].in[LOSS_X]);
        TensorId losses = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &rows, "row_losses");
        graph->nodes[i].out[LOSS_ROWS] = losses;
        graph->nodes[i].outputs = (int)int_max(graph->nodes[i].outputs, LOSS_ROWS + 1);
        graph->tensors[losses].producer = i;
        graph->tensors[losses].keep = true;
        return losses;
    }
    fail_msg("the program has no loss");
    return TENSOR_NONE;
}

/* The difference between the engine and the training program, of some tokens. */
typedef struct Difference {
    double most, sum;
    int64_t count, differing;
} Difference;

/* Runs a training step with the texts in rows of `stride` tokens, of `per_row` texts each. */
static void train_texts(const Base *base, const Text *texts, int per_row, int64_t stride, Difference *difference) {
    const Config *config = base->config;
    Model model = model_build_adapted(
        NULL, &config->model, &config->lora, base->precision, MODEL_TRAIN, REQUESTS / per_row, stride * per_row, RECOMPUTE_NONE);
    layout_place(base->layout, model.graph);
    TensorId losses = keep_row_losses(model.graph);
    Program program = check_program(model, base->device);
    Executor *executor = program.executor;
    put_weights(base, executor);
    int32_t *tokens = executor_tensor(executor, model.tokens), *positions = executor_tensor(executor, model.positions),
            *targets = executor_tensor(executor, model.targets);
    for (int i = 0; i < REQUESTS; i++)
        for (int64_t j = 0; j < stride; j++) {
            const Text *text = &texts[i];
            tokens[i * stride + j] = j < text->count ? text->tokens[j] : 0;
            positions[i * stride + j] = j < text->count ? (int32_t)j : 0;
            targets[i * stride + j] = j + 1 < text->count ? text->tokens[j + 1] : -1;
        }
    executor_set_scalar(executor, model.scale, 1);
    if (model.share) executor_set_scalar(executor, model.share, 1);
    executor_zero(executor);
    executor_run(executor);
    int64_t rows = REQUESTS * stride;
    float *found = memory_allocate(rows * (int64_t)sizeof *found);
    executor_read(executor, losses, found);
    for (int i = 0; i < REQUESTS; i++)
        for (int j = texts[i].scored_to ? 1 : texts[i].prompt; j < texts[i].count; j++) {
            if (isnan(texts[i].log_probability[j])) continue;
            double own = -(double)found[i * stride + j - 1], apart = fabs(own - texts[i].log_probability[j]);
            difference->most = fmax(difference->most, apart);
            difference->sum += apart;
            difference->count++;
            difference->differing += own != texts[i].log_probability[j];
        }
    free(found);
    program_free(&program);
}

static Config configure(const Variety *variety, const Device *device, OptionStrings *strings) {
    SCOPED_FREE char *positions = memory_format("model.context=%d", context_of(device));
    const char *settings[SETTINGS + 3] = {"data.length=32", positions, "precision=bf16"};
    int count = 3;
    for (int i = 0; i < SETTINGS && variety->settings[i]; i++) settings[count++] = variety->settings[i];
    Config config;
    Error error = {0};
    if (!random_run_configure(&config, strings, settings, count, &error)) fail_msg("%s: %s", variety->name, error.message);
    config.model.vocabulary = variety->vocabulary;
    config.model.init_std = 2 / sqrt((double)config.model.width); /* log-probabilities are spread, so every bit counts */
    return config;
}

/* Returns how often the comparison is repeated with other texts. */
static int rounds(void) {
    const char *number = getenv("SMELT_TEST_ROUNDS");
    return number ? atoi(number) : 1;
}

/* `first`: of the random numbers. */
static Difference compare(const Base *base, bool exact, uint64_t first) {
    Device *device = base->device;
    device_set_exact(device, exact);
    Difference difference = {0};
    static Text texts[REQUESTS];
    const EngineSizes schedules[] = {{.slots = 4}, {.slots = 1}, {.slots = 7, .cache_rows = 2 * context_of(device)}};
    int most = is_slow(device) ? 2 : 3;
    for (int i = 0; i < most * rounds(); i++) {
        int s = i % most;
        generate(base, schedules[s], first + 10000 * (uint64_t)i, texts);
        int64_t aligned = divide_up(context_of(device), EXACT_ROWS) * EXACT_ROWS;
        int64_t stride = device_info(device)->kind == DEVICE_CPU ? SMALL_CONTEXT + 3 : aligned;
        train_texts(base, texts, s % 2 ? 3 : 1, s % 2 ? stride : context_of(device), &difference);
    }
    device_set_exact(device, false);
    return difference;
}

static void log_probabilities_have_the_bits_of_training(void **state) {
    (void)state;
    static const Precision precisions[] = {PRECISION_BF16, PRECISION_PURE_BF16, PRECISION_FP32};
    Device *device = check_device() ? check_device() : device_cpu();
    const int precisions_on = !check_device() ? 3 : device_info(device)->emulated ? 1 : 2;
    int64_t failed = 0;
    for (int i = 0; i < VARIETIES; i++) {
        if (varieties[i].large && is_slow(device)) continue;
        OptionStrings strings = {0};
        const Config config = configure(&varieties[i], device, &strings);
        for (int p = 0; p < precisions_on; p++) {
            Base base = base_create(&config, precisions[p], device);
            for (int exact = is_slow(device); exact < 2; exact++) {
                Difference d = compare(&base, exact, 1000 + (uint64_t)i * 100000);
                print_message("%s, %s, exact=%d: %lld of %lld tokens differ, by %.3g at most, %.3g on average\n", varieties[i].name,
                    precision_name(precisions[p]), exact, (long long)d.differing, (long long)d.count, d.most, d.sum / (double)d.count);
                assert_true(d.count > 100);
                failed += exact ? d.differing : 0;
            }
            base_free(&base);
        }
        options_free_strings(&strings);
    }
    assert_int_equal(failed, 0);
}

int main(void) {
    if (!check_device()) omp_set_num_threads(1); /* the models are small */
    const struct CMUnitTest tests[] = {cmocka_unit_test(log_probabilities_have_the_bits_of_training)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

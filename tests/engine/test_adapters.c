/* Several adapters in one engine: the rows of an adapter get the results of a model with this adapter alone, either merged into
 * the weights or as in training. The adapters of other rows do not matter. On the GPU of SMELT_TEST_DEVICE, or on the CPU. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/math.h"
#include "base/rng.h"
#include "base/strings.h"
#include "config/lora_targets.h"
#include "engine/engine.h"
#include "session/adapter_set.h"
#include "support/check.h"
#include "support/each_isa.h"
#include "support/generator_run.h"

enum { CONTEXT = 96, ADAPTERS = 3, TEXTS = 9, MOST_TOKENS = 8, RANK = 9 };

/* Ranks, modules and factors differ; no module has all of them. */
static const LoraConfig loras[ADAPTERS] = {
    {.rank = 2, .alpha = 8, .targets = "attention"},
    {.rank = RANK, .alpha = 4, .rslora = true, .targets = "mlp"},
    {.rank = 5, .alpha = 5, .targets = "attention,mlp"},
};

/* Returns element (row, column) of a half of an adapter, which every program that has it gets. */
static double adapter_value(int adapter, const char *name, int64_t index) {
    return 0.4 * rng_normal(100 + (uint64_t)adapter, hash_bytes(name, strlen(name)), (uint64_t)index);
}

static bool is_half(const char *name) { return ends_with(name, ".lora_A.weight") || ends_with(name, ".lora_B.weight"); }

static void put_halves(const Graph *graph, int adapter, void *master) {
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        for (int64_t j = 0; is_half(p->name) && j < p->count; j++)
            element_set((size_t)p->element_bytes, parameter_in(p, master), j, adapter_value(adapter, p->name, j));
    }
}

static Device *device_under_test(void) { return check_device() ? check_device() : device_cpu(); }

static void put_base(const Graph *graph, const ModelConfig *config, Device *device, void *master, void *weights) {
    SCOPED_FREE char *values = memory_allocate((size_t)graph->parameter_bytes);
    random_run_weights(graph, config, values);
    device_upload(device, master, values, graph->parameter_bytes);
    model_cast_weights(graph, device, master, weights);
    device_synchronize(device);
}

/* An engine with the adapters, which session/adapter_set.c puts into it. */
static Engine *create_engine(const Config *config, Precision precision, Device *device, EngineSizes sizes) {
    Error error = {0};
    const EnginePlace place = {NULL, precision, device};
    sizes.limit = BYTE_VOCABULARY;
    sizes.scores = true;
    sizes.adapters = (AdapterSet){ADAPTERS, loras};
    Engine *engine = engine_create(&config->model, place, sizes, &error);
    if (!engine) fail_msg("%s", error.message);
    put_base(engine_graph(engine), &config->model, device, engine_master(engine), engine_weights(engine));
    for (int i = 0; i < ADAPTERS; i++) {
        HostModel adapter = {0};
        const Precision type = precision == PRECISION_FP64 ? PRECISION_FP64 : PRECISION_FP32;
        assert_true(host_model_open(&adapter, &config->model, &loras[i], type, &error));
        put_halves(adapter.model.graph, i, adapter.master);
        if (!adapter_set_put(engine, place, &config->model, &(EngineAdapter){&loras[i], &adapter, i}, &error))
            fail_msg("%s", error.message);
        host_model_close(&adapter);
    }
    return engine;
}

/* -- Texts --------------------------------------------------------------------------------------------------------- */

/* A prompt and what is drawn after it, and the log-probabilities of all tokens but the first. */
typedef struct Text {
    int32_t tokens[CONTEXT];
    double log_probabilities[CONTEXT];
    int count, prompt, drawn, scored;
    int adapter; /* of EngineRequest */
} Text;

static bool take_token(void *context, int sample, const EngineToken *token) {
    Text *text = context;
    assert_int_equal(sample, 0);
    text->tokens[text->count] = token->token;
    text->log_probabilities[text->count++] = token->log_probability;
    return true;
}
static void take_score(void *context, const EngineToken *token) {
    Text *text = context;
    text->log_probabilities[text->scored++] = token->log_probability;
}
static void take_end(void *context, int sample, EngineEnd end) { (void)context, (void)sample, (void)end; }

static Text random_text(int number, int adapter) {
    Text text = {.adapter = adapter, .prompt = 1 + number * 7 % 60, .drawn = 1 + number % MOST_TOKENS, .scored = 1};
    text.count = text.prompt;
    for (int i = 0; i < text.prompt; i++) text.tokens[i] = (int32_t)(rng_uniform(5, (uint64_t)number, (uint64_t)i) * BYTE_VOCABULARY);
    return text;
}

static void submit(Engine *engine, Text *text, int number, int adapter) {
    Error error = {0};
    const EngineRequest request = {.prompt = text->tokens,
        .prompt_count = text->prompt,
        .tokens = text->drawn,
        .samples = 1,
        .adapter = adapter,
        .sampling = {.temperature = 1, .top_p = 1, .seed = 5},
        .number = (uint64_t)number << 8,
        .token = take_token,
        .scored = take_score,
        .end = take_end,
        .context = text};
    if (!engine_submit(engine, &request, &error)) fail_msg("%s", error.message);
}

static void step(Engine *engine) {
    Error error = {0};
    if (!engine_step(engine, &error)) fail_msg("%s", error.message);
}

/* -- Merged into the weights --------------------------------------------------------------------------------------- */

/* W += factor B A for each layer of the graph with an adapter. */
static void merge(const Config *config, int adapter, const Graph *graph, void *master) {
    const LoraConfig *lora = &loras[adapter];
    Model adapted = model_describe(&config->model, lora, PRECISION_FP64);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        SCOPED_FREE char *a = memory_format("%.*s.lora_A.weight", (int)(strlen(p->name) - strlen(".weight")), p->name),
                         *b = memory_format("%.*s.lora_B.weight", (int)(strlen(p->name) - strlen(".weight")), p->name);
        if (!ends_with(p->name, ".weight") || graph_find_parameter(adapted.graph, a) < 0) continue;
        for (int64_t j = 0; j < p->count; j++) {
            double sum = 0;
            for (int64_t k = 0; k < lora->rank; k++)
                sum += adapter_value(adapter, b, j / p->shape[1] * lora->rank + k) *
                       adapter_value(adapter, a, k * p->shape[1] + j % p->shape[1]);
            element_set(8, parameter_in(p, master), j, element_get(8, parameter_in(p, master), j) + lora_factor(lora) * sum);
        }
    }
    model_free(&adapted);
}

static double log_probability(const double *logits, int64_t count, int32_t token) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, logits[i]);
    for (int64_t i = 0; i < count; i++) sum += exp(logits[i] - largest);
    return logits[token] - largest - log(sum);
}

/* Returns the largest difference of a text's log-probabilities from those of a merged model in fp64. */
static double compare_merged(const Config *config, const Text *text) {
    Error error = {0};
    double most = 0;
    Generator *merged = create(NULL, config, PRECISION_FP64, true);
    if (text->adapter) merge(config, text->adapter - 1, generator_graph(merged), generator_master(merged));
    for (int i = 0; i + 1 < text->count; i++) {
        assert_true(generator_feed(merged, &text->tokens[i], 1, &error));
        const double *logits = generator_logits(merged, &error);
        assert_non_null(logits);
        double expected = log_probability(logits, config->model.vocabulary, text->tokens[i + 1]);
        most = fmax(most, fabs(expected - text->log_probabilities[i + 1]));
    }
    generator_free(merged);
    return most;
}

static void rows_get_what_their_merged_model_gives(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        OptionStrings strings = {0};
        Config config = configure(&families[f], CONTEXT, &strings);
        Engine *engine = create_engine(&config, PRECISION_FP64, device_cpu(), (EngineSizes){.slots = 4});
        Text texts[TEXTS];
        for (int i = 0; i < TEXTS; i++) {
            texts[i] = random_text(i, i * 3 % (ADAPTERS + 1));
            submit(engine, &texts[i], i, texts[i].adapter);
        }
        while (engine_busy(engine)) step(engine);
        for (int i = 0; i < TEXTS; i++) {
            double apart = compare_merged(&config, &texts[i]);
            if (apart > 1e-9) fail_msg("%s: text %d with adapter %d is %g apart", families[f].name, i, texts[i].adapter, apart);
        }
        texts[0].adapter = 1; /* the bound is far below an adapter's effect */
        if (texts[0].count > 2) assert_true(compare_merged(&config, &texts[0]) > 1e-4);
        engine_free(engine);
        options_free_strings(&strings);
    }
}

/* -- Neighbors ----------------------------------------------------------------------------------------------------- */

static void run_texts(const Config *config, Precision precision, int schedule, const int *adapters, Text *texts) {
    Engine *engine = create_engine(config, precision, device_under_test(), (EngineSizes){.slots = schedule ? 8 : 1});
    for (int i = 0; i < TEXTS; i++) {
        int at = schedule == 2 ? TEXTS - 1 - i : i;
        texts[at] = random_text(at, adapters[at]);
        submit(engine, &texts[at], at, adapters[at]);
        for (int steps = schedule ? i % 3 : 0; steps > 0; steps--) step(engine);
    }
    while (engine_busy(engine)) step(engine);
    engine_free(engine);
}

/* Texts 0, 3 and 6 keep their adapters; the other texts change theirs. */
static void neighbors_change_no_bit(Precision precision) {
    static const int adapters[][TEXTS] = {{1, 2, 3, 0, 1, 2, 3, 0, 1}, {1, 1, 1, 0, 1, 1, 3, 1, 1}, {1, 0, 0, 0, 3, 3, 3, 2, 2}};
    const int chosen[] = {2, 8, 0};
    bool exact = device_info(device_under_test())->kind != DEVICE_CPU; /* a GPU's kernels depend on the number of rows otherwise */
    device_set_exact(device_under_test(), exact);
    for (int f = 0; f < (check_device() ? 1 : 3); f++) {
        OptionStrings strings = {0};
        Config config = configure(&families[chosen[f]], CONTEXT, &strings);
        config.model.init_std = 0.5;
        static Text texts[3][TEXTS];
        for (int s = 0; s < 3; s++) run_texts(&config, precision, s, adapters[s], texts[s]);
        for (int s = 1; s < 3; s++)
            for (int i = 0; i < TEXTS; i += 3) {
                assert_int_equal(texts[s][i].count, texts[0][i].count);
                assert_memory_equal(texts[s][i].tokens, texts[0][i].tokens, sizeof texts[0][i].tokens);
                for (int t = 1; t < texts[s][i].count; t++)
                    if (texts[s][i].log_probabilities[t] != texts[0][i].log_probabilities[t])
                        fail_msg("%s, %s: token %d of text %d differs in schedule %d", families[chosen[f]].name, precision_name(precision),
                            t, i, s);
            }
        options_free_strings(&strings);
    }
    device_set_exact(device_under_test(), false);
}

static void bf16_rows_do_not_depend_on_their_neighbors(void **state) {
    (void)state;
    neighbors_change_no_bit(PRECISION_PURE_BF16);
}

static void fp32_rows_do_not_depend_on_their_neighbors(void **state) {
    (void)state;
    if (check_device()) skip();
    neighbors_change_no_bit(PRECISION_FP32);
}

/* -- In bf16 on the device ----------------------------------------------------------------------------------------- */

/* Weights and activations have 8 significant bits. Their rounding changes a log-probability by at most 0.2 here; a wrong adapter,
 * sign or factor changes one by more than 1. */
static void bf16_rows_are_near_their_merged_model(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    config.model.init_std = 0.1;
    Engine *engine = create_engine(&config, PRECISION_PURE_BF16, device_under_test(), (EngineSizes){.slots = 8});
    Text texts[TEXTS];
    for (int i = 0; i < TEXTS; i++) {
        texts[i] = random_text(i + 1, i % (ADAPTERS + 1));
        submit(engine, &texts[i], i, texts[i].adapter);
    }
    while (engine_busy(engine)) step(engine);
    for (int i = 0; i < TEXTS; i++) {
        double apart = compare_merged(&config, &texts[i]);
        Text other = texts[i];
        other.adapter = (other.adapter + 1) % (ADAPTERS + 1);
        double effect = compare_merged(&config, &other);
        print_message("text %d: %.3g from its own adapter, %.3g from another\n", i, apart, effect);
        if (apart > 0.3 || effect < 1) fail_msg("text %d is %g apart, and %g from another adapter", i, apart, effect);
    }
    engine_free(engine);
    options_free_strings(&strings);
}

/* -- As training has them ------------------------------------------------------------------------------------------ */

/* Weights of a model in training with one adapter. */
typedef struct Trained {
    Program program; /* never runs */
    Layout *layout;
} Trained;

static Trained trained_with(const Config *config, int adapter, Precision precision) {
    Model model = model_build_adapted(NULL, &config->model, &loras[adapter], precision, MODEL_TRAIN, 1, 32, RECOMPUTE_NONE);
    for (int i = 0; i < model.graph->parameter_count; i++) model.graph->parameters[i].frozen = false;
    Trained trained = {.layout = layout_create(model.graph, &config->optimizer, &config->layout, 1 << 20)};
    trained.program = check_program(model, device_cpu());
    Executor *executor = trained.program.executor;
    const Graph *graph = trained.program.model.graph;
    char *master = executor_arena(executor, ARENA_MASTER);
    random_run_weights(graph, &config->model, master);
    put_halves(graph, adapter, master);
    model_cast_weights(graph, device_cpu(), master, executor_arena(executor, ARENA_WEIGHT));
    return trained;
}

/* An engine beside a training program has the bits of training (test_exact.c). The factors of adapters 0 and 2 are powers of
 * two. */
static void rows_have_the_bits_of_training(void **state) {
    (void)state;
    static const Precision precisions[] = {PRECISION_PURE_BF16, PRECISION_FP32};
    const int chosen[] = {2, 8}, adapters[TEXTS] = {1, 3, 1, 3, 2, 0, 1, 3, 1};
    if (check_device()) skip();
    for (int f = 0; f < 2; f++)
        for (int p = 0; p < 2; p++) {
            OptionStrings strings = {0};
            Config config = configure(&families[chosen[f]], CONTEXT, &strings);
            config.model.init_std = 0.5;
            static Text texts[TEXTS], alone[TEXTS];
            run_texts(&config, precisions[p], 1, adapters, texts);
            for (int adapter = 0; adapter < ADAPTERS; adapter += 2) {
                Trained trained = trained_with(&config, adapter, precisions[p]);
                const EngineOwner owner = {&trained.program, trained.layout, &loras[adapter]};
                Error error = {0};
                const EngineSizes sizes = {.slots = 2, .limit = BYTE_VOCABULARY, .scores = true};
                Engine *engine = engine_create_beside(&config.model, precisions[p], &owner, device_cpu(), sizes, &error);
                if (!engine) fail_msg("%s", error.message);
                int64_t compared = 0;
                for (int i = 0; i < TEXTS; i++) {
                    if (adapters[i] != adapter + 1) continue;
                    alone[i] = random_text(i, 0);
                    submit(engine, &alone[i], i, 0);
                }
                while (engine_busy(engine)) step(engine);
                for (int i = 0; i < TEXTS; i++)
                    for (int t = 1; adapters[i] == adapter + 1 && t < alone[i].count; t++, compared++)
                        if (alone[i].log_probabilities[t] != texts[i].log_probabilities[t])
                            fail_msg("%s, %s, adapter %d: token %d of text %d has %.9g, in training %.9g", families[chosen[f]].name,
                                precision_name(precisions[p]), adapter, t, i, texts[i].log_probabilities[t], alone[i].log_probabilities[t]);
                assert_true(compared > 50);
                engine_free(engine);
                program_free(&trained.program);
                layout_free(trained.layout);
            }
            options_free_strings(&strings);
        }
}

/* One thread: the models are so small that threads only wait for each other. */
int main(void) {
    omp_set_num_threads(1);
    if (check_device()) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(bf16_rows_are_near_their_merged_model), cmocka_unit_test(bf16_rows_do_not_depend_on_their_neighbors)};
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_get_what_their_merged_model_gives),
        cmocka_unit_test(bf16_rows_are_near_their_merged_model),
        EACH_ISA(cmocka_unit_test(bf16_rows_do_not_depend_on_their_neighbors)),
        EACH_ISA(cmocka_unit_test(fp32_rows_do_not_depend_on_their_neighbors)),
        EACH_ISA(cmocka_unit_test(rows_have_the_bits_of_training)),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

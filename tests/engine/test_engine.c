/* Generation of many sequences at once: what each of them gets is what it gets alone. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/math.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/rows_internal.h"
#include "ops/draw/draw.h"
#include "support/check.h"
#include "support/each_isa.h"
#include "support/generator_run.h"
#include "support/mentions.h"

enum { CONTEXT = 96, MOST_TOKENS = 12, MOST_SAMPLES = 5, TOP = 4, MOST_APPENDED = 50 };

/* A prompt, and what its samples get. */
typedef struct Asked {
    EngineToken scores[CONTEXT];
    int64_t scored;
    int32_t prompt[CONTEXT];
    int64_t prompt_count, tokens;
    int samples;
    Sampling sampling;
    EnginePenalties penalties;
    int64_t top;
    struct {
        int32_t tokens[MOST_TOKENS + MOST_APPENDED];
        double log_probabilities[MOST_TOKENS + MOST_APPENDED]; /* NaN: appended */
        EngineScore top[MOST_TOKENS][TOP];
        int count, ends, most; /* most: tokens after which the test ends the sample; 0: never */
        bool waits;
        EngineEnd end;
    } got[MOST_SAMPLES];
} Asked;

static bool take_token(void *context, int sample, const EngineToken *token) {
    Asked *asked = context;
    int at = asked->got[sample].count++;
    assert_in_range(at, 0, MOST_TOKENS + MOST_APPENDED - 1);
    assert_true(!asked->got[sample].ends && !asked->got[sample].waits);
    asked->got[sample].tokens[at] = token->token;
    asked->got[sample].log_probabilities[at] = token->log_probability;
    assert_int_equal(token->top_count, asked->top);
    if (asked->top) memcpy(asked->got[sample].top[at], token->top, (size_t)asked->top * sizeof *token->top);
    return !asked->got[sample].most || asked->got[sample].count < asked->got[sample].most;
}

static void take_end(void *context, int sample, EngineEnd end) {
    Asked *asked = context;
    asked->got[sample].ends++;
    asked->got[sample].end = end;
}

static uint64_t random_below(uint64_t *at, uint64_t limit) { return (uint64_t)(rng_uniform(77, 3, (*at)++) * (double)limit); }

static Asked random_request(uint64_t *at, int samples, double temperature) {
    Asked asked = {
        .prompt_count = 1 + (int64_t)random_below(at, 70), .tokens = 1 + (int64_t)random_below(at, MOST_TOKENS), .samples = samples};
    asked.sampling = (Sampling){.temperature = temperature, .top_p = 1, .seed = random_below(at, 1000)};
    for (int64_t i = 0; i < asked.prompt_count; i++) asked.prompt[i] = (int32_t)random_below(at, BYTE_VOCABULARY);
    return asked;
}

static Engine *create_engine(const Config *config, Precision precision, EngineSizes sizes) {
    Error error = {0};
    sizes.limit = BYTE_VOCABULARY;
    Engine *engine = engine_create(&config->model, (EnginePlace){NULL, precision, device_cpu()}, sizes, &error);
    if (!engine) fail_msg("%s", error.message);
    random_run_weights(engine_graph(engine), &config->model, engine_master(engine));
    model_cast_weights(engine_graph(engine), device_cpu(), engine_master(engine), engine_weights(engine));
    return engine;
}

static EngineRequest request_of(Asked *asked, uint64_t number) {
    return (EngineRequest){.prompt = asked->prompt,
        .prompt_count = asked->prompt_count,
        .tokens = asked->tokens,
        .samples = asked->samples,
        .sampling = asked->sampling,
        .penalties = asked->penalties,
        .top = asked->top,
        .number = number,
        .token = take_token,
        .end = take_end,
        .context = asked};
}

static void submit(Engine *engine, Asked *asked, uint64_t number) {
    Error error = {0};
    const EngineRequest request = request_of(asked, number);
    if (!engine_submit(engine, &request, &error)) fail_msg("%s", error.message);
}

static void step(Engine *engine) {
    Error error = {0};
    if (!engine_step(engine, &error)) fail_msg("%s", error.message);
}

static void finish(Engine *engine) {
    for (int steps = 0; engine_busy(engine); steps++) {
        assert_in_range(steps, 0, 10000);
        step(engine);
    }
}

static double log_probability(const double *logits, int64_t count, int32_t token) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, logits[i]);
    for (int64_t i = 0; i < count; i++) sum += exp(logits[i] - largest);
    return logits[token] - largest - log(sum);
}

/* Compares with a generator, which has one sequence. */
static void expect_alone(const Config *config, const char *name, const Asked *asked) {
    Error error = {0};
    Generator *alone = create(NULL, config, PRECISION_FP64, true);
    assert_true(generator_feed(alone, asked->prompt, asked->prompt_count, &error));
    assert_int_equal(asked->got[0].count, asked->tokens);
    for (int64_t i = 0; i < asked->tokens; i++) {
        const double *logits = generator_logits(alone, &error);
        assert_non_null(logits);
        double expected = log_probability(logits, config->model.vocabulary, asked->got[0].tokens[i]);
        if (fabs(expected - asked->got[0].log_probabilities[i]) > 1e-9)
            fail_msg("%s: prompt of %d, token %d has log-probability %.15g, alone %.15g", name, (int)asked->prompt_count, (int)i,
                asked->got[0].log_probabilities[i], expected);
        int32_t token;
        assert_true(generator_next(alone, &asked->sampling, BYTE_VOCABULARY, &token, &error));
        if (token != asked->got[0].tokens[i])
            fail_msg("%s: prompt of %d, token %d is %d, alone %d", name, (int)asked->prompt_count, (int)i, asked->got[0].tokens[i], token);
    }
    generator_free(alone);
}

static void sequences_get_what_they_get_alone(void **state) {
    (void)state;
    enum { REQUESTS = 7 };
    uint64_t at = 0;
    for (int i = 0; i < FAMILIES; i++) {
        OptionStrings strings = {0};
        Config config = configure(&families[i], CONTEXT, &strings);
        Engine *engine = create_engine(&config, PRECISION_FP64, (EngineSizes){.slots = 3});
        Asked asked[REQUESTS];
        for (int r = 0; r < REQUESTS; r++) {
            asked[r] = random_request(&at, 1, r % 2 ? 0.8 : 0);
            submit(engine, &asked[r], 0);
        }
        finish(engine);
        for (int r = 0; r < REQUESTS; r++) {
            assert_int_equal(asked[r].got[0].ends, 1);
            assert_int_equal(asked[r].got[0].end, ENGINE_LENGTH);
            expect_alone(&config, families[i].name, &asked[r]);
        }
        engine_free(engine);
        options_free_strings(&strings);
    }
}

/* Returns a hash of all samples' tokens and of their log-probabilities, which rounding may change in the last bits. */
static void run_schedule(const Config *config, EngineSizes sizes, uint64_t order, int count, Asked *asked) {
    Engine *engine = create_engine(config, PRECISION_FP64, sizes);
    int places[32];
    assert_in_range(count, 1, 32);
    for (int i = 0; i < count; i++) places[i] = i;
    for (int i = count - 1; i > 0 && order; i--) {
        int other = (int)random_below(&order, (uint64_t)i + 1), kept = places[i];
        places[i] = places[other], places[other] = kept;
    }
    for (int i = 0; i < count; i++) {
        submit(engine, &asked[places[i]], (uint64_t)places[i] * MOST_SAMPLES);
        for (uint64_t steps = order ? random_below(&order, 4) : 0; steps > 0; steps--) step(engine);
    }
    finish(engine);
    engine_free(engine);
}

static void take_score(void *context, const EngineToken *token) {
    Asked *asked = context;
    assert_int_equal(token->top_count, asked->top);
    if (asked->top)
        assert_true(token->top[0].token == token->likeliest && token->top[0].log_probability == token->likeliest_log_probability);
    assert_in_range(asked->scored, 0, asked->prompt_count - 2);
    assert_int_equal(asked->got[0].count, 0);
    asked->scores[asked->scored++] = *token;
}

/* Compares the scores of a prompt with the logits of a generator that reads it token by token. */
static void expect_scores(const Config *config, const char *name, const Asked *asked) {
    Error error = {0};
    Generator *alone = create(NULL, config, PRECISION_FP64, true);
    assert_int_equal(asked->scored, asked->prompt_count - 1);
    for (int64_t i = 0; i + 1 < asked->prompt_count; i++) {
        assert_true(generator_feed(alone, &asked->prompt[i], 1, &error));
        const double *logits = generator_logits(alone, &error);
        int32_t likeliest = 0;
        for (int32_t token = 1; token < BYTE_VOCABULARY; token++) likeliest = logits[token] > logits[likeliest] ? token : likeliest;
        const EngineToken *score = &asked->scores[i];
        assert_int_equal(score->token, asked->prompt[i + 1]);
        assert_int_equal(score->likeliest, likeliest);
        double own = log_probability(logits, config->model.vocabulary, score->token),
               best = log_probability(logits, config->model.vocabulary, likeliest);
        if (fabs(own - score->log_probability) > 1e-9 || fabs(best - score->likeliest_log_probability) > 1e-9)
            fail_msg("%s: prompt of %d, token %d has %.15g, likeliest %.15g, alone %.15g and %.15g", name, (int)asked->prompt_count,
                (int)i + 1, score->log_probability, score->likeliest_log_probability, own, best);
    }
    generator_free(alone);
}

/* With and without tokens after it, beside requests without scores, and with more samples than slots. */
static void prompts_are_scored(void **state) {
    (void)state;
    enum { REQUESTS = 5 };
    uint64_t at = 50000;
    for (int i = 0; i < FAMILIES; i++) {
        OptionStrings strings = {0};
        Config config = configure(&families[i], CONTEXT, &strings);
        Engine *engine = create_engine(&config, PRECISION_FP64, (EngineSizes){.slots = 2, .scores = true, .top = TOP});
        Asked asked[REQUESTS];
        Error error = {0};
        for (int r = 0; r < REQUESTS; r++) {
            asked[r] = random_request(&at, r == 1 ? 3 : 1, 0);
            if (r % 2 == 0) asked[r].tokens = r ? 0 : 4;
            asked[r].top = r % 3;
            EngineRequest request = request_of(&asked[r], 0);
            request.scored = r == 3 ? NULL : take_score;
            if (!engine_submit(engine, &request, &error)) fail_msg("%s", error.message);
        }
        finish(engine);
        for (int r = 0; r < REQUESTS; r++) {
            assert_int_equal(asked[r].got[0].ends, 1);
            if (r == 3) assert_int_equal(asked[r].scored, 0);
            else expect_scores(&config, families[i].name, &asked[r]);
            if (asked[r].tokens) expect_alone(&config, families[i].name, &asked[r]);
            else assert_int_equal(asked[r].got[0].count, 0);
        }
        engine_free(engine);
        options_free_strings(&strings);
    }
}

static void neither_slots_nor_arrivals_change_a_sample(void **state) {
    (void)state;
    enum { REQUESTS = 8, SCHEDULES = 6 };
    static const int chosen[] = {0, 2, 6, 8, 17, 25};
    for (size_t f = 0; f < sizeof chosen / sizeof *chosen; f++) {
        OptionStrings strings = {0};
        Config config = configure(&families[chosen[f]], CONTEXT, &strings);
        static Asked first[REQUESTS], other[REQUESTS];
        for (int schedule = 0; schedule < SCHEDULES; schedule++) {
            uint64_t at = 4000;
            Asked *asked = schedule ? other : first;
            for (int r = 0; r < REQUESTS; r++) asked[r] = random_request(&at, 1 + r % MOST_SAMPLES, r % 3 ? 1 : 0.5);
            EngineSizes sizes = {.slots = 1 + schedule * 3 % 8, .cache_rows = schedule % 2 ? 150 : 0};
            run_schedule(&config, sizes, (uint64_t)schedule * 100000, REQUESTS, asked);
            for (int r = 0; r < REQUESTS; r++)
                for (int s = 0; s < asked[r].samples; s++) {
                    assert_int_equal(asked[r].got[s].count, asked[r].tokens);
                    if (memcmp(asked[r].got[s].tokens, first[r].got[s].tokens, sizeof first[r].got[s].tokens))
                        fail_msg("%s: request %d, sample %d differs in schedule %d", families[chosen[f]].name, r, s, schedule);
                    for (int i = 0; i < asked[r].got[s].count; i++)
                        assert_true(fabs(asked[r].got[s].log_probabilities[i] - first[r].got[s].log_probabilities[i]) < 1e-9);
                }
        }
        assert_memory_not_equal(first[4].got[0].tokens, first[4].got[1].tokens, 4 * first[4].tokens);
        options_free_strings(&strings);
    }
}

/* Compares with what a generator's logits, penalized by hand, draw; log-probabilities are those of its own logits. */
static void expect_penalized(const Config *config, const char *name, const Asked *asked, int sample, uint64_t number) {
    Error error = {0};
    Generator *alone = create(NULL, config, PRECISION_FP64, true);
    const EnginePenalties *p = &asked->penalties;
    double from[BYTE_VOCABULARY];
    bool in_text[BYTE_VOCABULARY] = {0};
    int drawn[BYTE_VOCABULARY] = {0};
    for (int64_t i = 0; i < asked->prompt_count; i++) in_text[asked->prompt[i]] = true;
    assert_true(generator_feed(alone, asked->prompt, asked->prompt_count, &error));
    for (int64_t i = 0; i < asked->tokens; i++) {
        const double *logits = generator_logits(alone, &error);
        assert_non_null(logits);
        memcpy(from, logits, sizeof from);
        for (int64_t b = 0; b < p->bias_count; b++) from[p->biases[b].token] += p->biases[b].bias;
        for (int32_t t = 0; t < BYTE_VOCABULARY; t++) {
            if (in_text[t] && p->repetition > 0)
                from[t] = from[t] > 0 ? from[t] / (double)(float)p->repetition : from[t] * (double)(float)p->repetition;
            from[t] -= (double)(float)p->frequency * drawn[t] + (drawn[t] ? (double)(float)p->presence : 0);
        }
        uint64_t place = (number + (uint64_t)sample) << 24 | (uint64_t)(asked->prompt_count + i);
        int32_t token = sample_token(from, BYTE_VOCABULARY, &asked->sampling, rng_uniform(asked->sampling.seed, RNG_STREAM_SAMPLE, place));
        double own = log_probability(logits, config->model.vocabulary, token);
        if (token != asked->got[sample].tokens[i] || fabs(own - asked->got[sample].log_probabilities[i]) > 1e-9)
            fail_msg("%s: sample %d, token %d is %d of log-probability %.12g, expected %d of %.12g", name, sample, (int)i,
                asked->got[sample].tokens[i], asked->got[sample].log_probabilities[i], token, own);
        for (int64_t k = 0; k < asked->top; k++) {
            const EngineScore *top = &asked->got[sample].top[i][k];
            int64_t above = 0;
            for (int32_t t = 0; t < BYTE_VOCABULARY; t++) above += logits[t] > logits[top->token];
            assert_int_equal(above, k);
            assert_true(fabs(top->log_probability - log_probability(logits, config->model.vocabulary, top->token)) < 1e-9);
        }
        assert_true(generator_feed(alone, &token, 1, &error));
        in_text[token] = true;
        drawn[token]++;
    }
    generator_free(alone);
}

/* Slots are used again, beside requests without penalties, with samples of one prompt. */
static void penalties_count_the_tokens_of_a_text(void **state) {
    (void)state;
    enum { REQUESTS = 6 };
    static const EngineBias biases[] = {{'a', 2}, {'b', -100}, {'a', 1.5}};
    static const EnginePenalties penalties[REQUESTS] = {{.repetition = 1.5}, {.presence = 1.5, .frequency = 0.75}, {0},
        {.biases = biases, .bias_count = 3}, {.frequency = -1.25},
        {.repetition = 0.75, .presence = -1, .frequency = 0.5, .biases = biases, .bias_count = 2}};
    static const int chosen[] = {0, 2};
    for (int f = 0; f < 2; f++) {
        OptionStrings strings = {0};
        Config config = configure(&families[chosen[f]], CONTEXT, &strings);
        Engine *engine = create_engine(&config, PRECISION_FP64, (EngineSizes){.slots = 3, .penalties = true, .top = TOP});
        static Asked asked[REQUESTS];
        uint64_t at = 33;
        for (int r = 0; r < REQUESTS; r++) {
            asked[r] = random_request(&at, 1 + r % 3, r % 2 ? 0 : 1.5);
            asked[r].tokens = MOST_TOKENS;
            asked[r].penalties = penalties[r];
            asked[r].top = r % (TOP + 1);
            submit(engine, &asked[r], (uint64_t)r * MOST_SAMPLES);
        }
        finish(engine);
        for (int r = 0; r < REQUESTS; r++)
            for (int s = 0; s < asked[r].samples; s++)
                expect_penalized(&config, families[chosen[f]].name, &asked[r], s, (uint64_t)r * MOST_SAMPLES);
        EngineRequest outside = request_of(&asked[0], 0);
        outside.penalties = (EnginePenalties){.biases = &(EngineBias){(int32_t)config.model.vocabulary, 1}, .bias_count = 1};
        Error error = {0};
        assert_false(engine_submit(engine, &outside, &error));
        assert_mentions(error.message, "model.vocabulary");
        engine_free(engine);
        options_free_strings(&strings);
    }
}

/* A program that computes all rows of a text at once, as training does, and draws the token after each row. */
typedef struct WholeText {
    Program program;
    TensorId choice, limit, drawn;
} WholeText;

static WholeText whole_text(const Config *config, Precision precision, int64_t count) {
    WholeText whole = {.program.model = model_build(&config->model, precision, MODEL_LOGITS, 1, count, RECOMPUTE_NONE)};
    Graph *graph = whole.program.model.graph;
    int64_t shape[] = {count, DRAW_CHOICE_VALUES}, one = 1;
    whole.choice = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, shape, "choice");
    whole.limit = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &one, "limit");
    whole.drawn = op_draw(graph, whole.program.model.logits, whole.program.model.logits, whole.choice, whole.limit, 0);
    graph->tensors[whole.drawn].keep = true;
    whole.program = check_program(whole.program.model, device_cpu());
    void *master = executor_arena(whole.program.executor, ARENA_MASTER);
    random_run_weights(graph, &config->model, master);
    model_cast_weights(graph, device_cpu(), master, executor_arena(whole.program.executor, ARENA_WEIGHT));
    return whole;
}

/* Demands the tokens and the bits of the log-probabilities that the whole text gives. */
static void expect_whole(const Config *config, Precision precision, const char *name, const Asked *asked, uint64_t number) {
    int64_t first = asked->prompt_count, count = first + asked->tokens;
    WholeText whole = whole_text(config, precision, count);
    Executor *executor = whole.program.executor;
    int32_t *tokens = executor_tensor(executor, whole.program.model.tokens),
            *positions = executor_tensor(executor, whole.program.model.positions);
    *(int32_t *)executor_tensor(executor, whole.limit) = BYTE_VOCABULARY;
    for (int64_t i = 0; i < count; i++) {
        const float choice[DRAW_CHOICE_VALUES] = {[DRAW_TEMPERATURE] = (float)asked->sampling.temperature,
            [DRAW_TOP_P] = 1,
            [DRAW_UNIFORM] = (float)rng_uniform(asked->sampling.seed, RNG_STREAM_SAMPLE, number << 24 | (uint64_t)(i + 1))};
        tokens[i] = i < first ? asked->prompt[i] : asked->got[0].tokens[i - first];
        positions[i] = (int32_t)i;
        executor_set_values(executor, whole.choice, i * DRAW_CHOICE_VALUES, choice, DRAW_CHOICE_VALUES);
    }
    device_set_exact(device_cpu(), family_of(&config->model)->keeps_states); /* else the delta rule has chunks of tokens */
    executor_run(executor);
    device_set_exact(device_cpu(), false);
    const float *drawn = executor_tensor(executor, whole.drawn);
    for (int64_t i = 0; i < asked->tokens; i++) {
        const float *row = drawn + (first - 1 + i) * DRAW_VALUES;
        if (isnan(asked->got[0].log_probabilities[i])) continue;
        if (row[DRAW_TOKEN] != (float)asked->got[0].tokens[i] || (double)row[DRAW_LOG_PROBABILITY] != asked->got[0].log_probabilities[i])
            fail_msg("%s, %s: prompt of %d, token %d is %d of log-probability %.9g, in the whole text %g of %.9g", name,
                precision_name(precision), (int)first, (int)i, asked->got[0].tokens[i], asked->got[0].log_probabilities[i],
                (double)row[DRAW_TOKEN], (double)row[DRAW_LOG_PROBABILITY]);
    }
    program_free(&whole.program);
}

/* On the CPU no sum depends on the number of rows, on the slots or on the block of a prompt that has the row. */
static void draws_have_the_bits_of_the_whole_text(void **state) {
    (void)state;
    enum { REQUESTS = 4 };
    static const Precision precisions[] = {PRECISION_FP32, PRECISION_BF16};
    uint64_t at = 30000;
    for (int i = 0; i < 2 * FAMILIES; i++) {
        OptionStrings strings = {0};
        Config config = configure(&families[i / 2], CONTEXT, &strings);
        config.model.init_std = 0.3; /* weights of attention and logits are spread, so every bit counts */
        Engine *engine = create_engine(&config, precisions[i % 2], (EngineSizes){.slots = REQUESTS - 1});
        static Asked asked[REQUESTS];
        for (int r = 0; r < REQUESTS; r++) {
            asked[r] = random_request(&at, 1, 1);
            submit(engine, &asked[r], (uint64_t)r);
        }
        finish(engine);
        engine_free(engine);
        for (int r = 0; r < REQUESTS; r++) expect_whole(&config, precisions[i % 2], families[i / 2].name, &asked[r], (uint64_t)r);
        options_free_strings(&strings);
    }
}

/* One run fills the caches of 14 sequences, and a token has the bits of the whole text. */
static void short_prompts_are_computed_together(void **state) {
    (void)state;
    enum { REQUESTS = 14 };
    static const Precision precisions[] = {PRECISION_FP32, PRECISION_BF16};
    uint64_t at = 50000;
    for (int i = 0; i < FAMILIES; i++) {
        OptionStrings strings = {0};
        Config config = configure(&families[i], CONTEXT, &strings);
        config.model.init_std = 0.3;
        Engine *engine = create_engine(&config, precisions[i % 2], (EngineSizes){.slots = REQUESTS});
        static Asked asked[REQUESTS];
        for (int r = 0; r < REQUESTS; r++) {
            asked[r] = random_request(&at, 1, 1);
            asked[r].prompt_count = 2 + 2 * r;
            submit(engine, &asked[r], (uint64_t)r);
        }
        finish(engine);
        assert_int_equal(engine_counts(engine).fills, 1);
        engine_free(engine);
        for (int r = 0; r < REQUESTS; r++) expect_whole(&config, precisions[i % 2], families[i].name, &asked[r], (uint64_t)r);
        options_free_strings(&strings);
    }
}

static bool wait_for_more(void *context, int sample) {
    Asked *asked = context;
    return asked->got[sample].waits = asked->got[sample].count < asked->tokens;
}

/* Appends random tokens to the samples that wait, or ends them. Returns how many waited. */
static int go_on(Engine *engine, Asked *asked, uint64_t *at) {
    int waited = 0;
    for (int s = 0; s < asked->samples; s++) {
        int *count = &asked->got[s].count, first = *count, left = (int)asked->tokens - first;
        if (!asked->got[s].waits) continue;
        waited++;
        asked->got[s].waits = false;
        int appended = left > 1 ? 1 + (int)random_below(at, (uint64_t)left - 1) : 0;
        for (int i = 0; i < appended; i++) {
            asked->got[s].tokens[*count] = (int32_t)random_below(at, BYTE_VOCABULARY);
            asked->got[s].log_probabilities[(*count)++] = NAN;
        }
        asked->got[s].most = *count + 2;
        engine_extend(engine, asked, s, asked->got[s].tokens + first, appended);
    }
    return waited;
}

/* Samples that wait keep their caches, whatever the others do meanwhile: their next tokens have the bits of the whole text.
 * Two samples of the last request have one prompt. */
static void samples_go_on_after_appended_tokens(void **state) {
    (void)state;
    enum { REQUESTS = 5 };
    static const Precision precisions[] = {PRECISION_FP32, PRECISION_BF16};
    uint64_t at = 60000;
    for (int i = 0; i < FAMILIES; i++) {
        OptionStrings strings = {0};
        Config config = configure(&families[i], CONTEXT, &strings);
        config.model.init_std = 0.3;
        Engine *engine = create_engine(&config, precisions[i % 2], (EngineSizes){.slots = REQUESTS - 1});
        static Asked asked[REQUESTS];
        Error error = {0};
        int waited = 0;
        for (int r = 0; r < REQUESTS; r++) {
            asked[r] = random_request(&at, r == REQUESTS - 1 ? 2 : 1, 1);
            asked[r].prompt_count = 1 + r * 7;
            asked[r].tokens = MOST_TOKENS + MOST_APPENDED;
            for (int s = 0; s < asked[r].samples; s++) asked[r].got[s].most = r == 1 ? 0 : 2 + r;
            EngineRequest request = request_of(&asked[r], (uint64_t)r);
            request.wait = wait_for_more;
            assert_true(engine_submit(engine, &request, &error));
        }
        for (int steps = 0; engine_busy(engine); steps++) {
            assert_in_range(steps, 0, 10000);
            step(engine);
            for (int r = 0; r < REQUESTS; r++)
                if (engine_waits(engine) || random_below(&at, 8) == 0) waited += go_on(engine, &asked[r], &at);
        }
        assert_in_range(waited, REQUESTS, 1000);
        engine_extend(engine, &asked[0], 0, NULL, 0); /* it has ended */
        engine_free(engine);
        for (int r = 0; r < REQUESTS; r++) {
            asked[r].tokens = asked[r].got[0].count;
            for (int s = 0; s < asked[r].samples; s++) assert_int_equal(asked[r].got[s].ends, 1);
            expect_whole(&config, precisions[i % 2], families[i].name, &asked[r], (uint64_t)r);
        }
        options_free_strings(&strings);
    }
}

static void samples_end_where_they_should(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    uint64_t at = 9000;
    Engine *engine = create_engine(&config, PRECISION_FP32, (EngineSizes){.slots = 4});
    Asked whole = random_request(&at, 1, 0), ended = {0}, stopped = {0};
    whole.tokens = MOST_TOKENS;
    ended = stopped = whole;
    submit(engine, &whole, 0);
    finish(engine);
    assert_int_equal(whole.got[0].end, ENGINE_LENGTH);
    int32_t token = whole.got[0].tokens[5];
    int before = 0;
    while (whole.got[0].tokens[before] != token) before++;
    EngineRequest request = {.prompt = ended.prompt,
        .prompt_count = ended.prompt_count,
        .tokens = MOST_TOKENS,
        .samples = 1,
        .ends = &token,
        .end_count = 1,
        .token = take_token,
        .end = take_end,
        .context = &ended,
        .sampling = {.top_p = 1}};
    Error error = {0};
    assert_true(engine_submit(engine, &request, &error));
    stopped.got[0].most = 3;
    submit(engine, &stopped, 0);
    finish(engine);
    assert_int_equal(ended.got[0].end, ENGINE_STOP);
    assert_int_equal(ended.got[0].count, before);
    assert_memory_equal(ended.got[0].tokens, whole.got[0].tokens, (size_t)before * sizeof token);
    assert_int_equal(stopped.got[0].end, ENGINE_STOP);
    assert_int_equal(stopped.got[0].count, 3);
    engine_free(engine);
    options_free_strings(&strings);
}

/* Cancelled requests end without a call, whether they run, wait for their prompt, or wait for a slot; the others get what
 * they get without them. */
static void canceled_requests_leave_the_others_as_they_are(void **state) {
    (void)state;
    enum { REQUESTS = 6 };
    OptionStrings strings = {0};
    Config config = configure(&families[0], CONTEXT, &strings);
    static Asked alone[REQUESTS], asked[REQUESTS];
    for (int steps = 0; steps < 6; steps++) {
        uint64_t at = 7000;
        for (int r = 0; r < REQUESTS; r++) {
            asked[r] = random_request(&at, 1 + r % 3, 1);
            asked[r].tokens = MOST_TOKENS;
            alone[r] = asked[r];
        }
        Engine *engine = create_engine(&config, PRECISION_FP64, (EngineSizes){.slots = 4}),
               *other = create_engine(&config, PRECISION_FP64, (EngineSizes){.slots = 4});
        for (int r = 0; r < REQUESTS; r++) submit(engine, &asked[r], (uint64_t)r * MOST_SAMPLES);
        for (int r = 1; r < REQUESTS; r += 2) submit(other, &alone[r], (uint64_t)r * MOST_SAMPLES);
        for (int i = 0; i < steps; i++) step(engine);
        for (int r = 0; r < REQUESTS; r += 2) {
            engine_cancel(engine, &asked[r]);
            alone[r] = asked[r];
        }
        engine_cancel(engine, &config);
        finish(engine);
        finish(other);
        for (int r = 0; r < REQUESTS; r++)
            for (int s = 0; s < asked[r].samples; s++) {
                assert_int_equal(asked[r].got[s].ends, alone[r].got[s].ends);
                assert_int_equal(asked[r].got[s].ends, r % 2);
                assert_int_equal(asked[r].got[s].count, alone[r].got[s].count);
                assert_memory_equal(asked[r].got[s].tokens, alone[r].got[s].tokens, sizeof asked[r].got[s].tokens);
            }
        engine_free(engine);
        engine_free(other);
    }
    options_free_strings(&strings);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    Engine *engine = create_engine(&config, PRECISION_FP32, (EngineSizes){.slots = 2, .cache_rows = 50});
    int32_t prompt[CONTEXT] = {0};
    EngineRequest request = {
        .prompt = prompt, .prompt_count = 40, .tokens = 11, .samples = 1, .token = take_token, .end = take_end, .sampling = {.top_p = 1}};
    Error error = {0};
    assert_false(engine_submit(engine, &request, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "40 11 50 10");
    request.tokens = 1, request.prompt_count = 0;
    assert_false(engine_submit(engine, &request, &error));
    request.prompt_count = 2, prompt[1] = (int32_t)config.model.vocabulary;
    assert_false(engine_submit(engine, &request, &error));
    assert_mentions(error.message, "model.vocabulary");
    assert_false(engine_busy(engine));
    engine_free(engine);
    options_free_strings(&strings);
}

/* Without EngineSizes.cache_rows, the caches have rows for one longest sequence in each slot. */
static void caches_have_rows_for_the_longest_sequences(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    static const int64_t longest[] = {0, 30, 2 * CONTEXT}, rows[] = {CONTEXT, 30, CONTEXT};
    for (int i = 0; i < 3; i++) {
        Engine *engine = create_engine(&config, PRECISION_FP32, (EngineSizes){.slots = 1, .longest = longest[i]});
        assert_int_equal(engine_positions(engine), rows[i]);
        engine_free(engine);
    }
    options_free_strings(&strings);
}

/* -- Rows ---------------------------------------------------------------------------------------------------------- */

/* Random reservations never overlap, and a gap that is long enough is found. */
static void reserved_rows_do_not_overlap(void **state) {
    (void)state;
    enum { ROWS = 200, MOST = 16 };
    RowRange ranges[MOST];
    RowPool pool = {.rows = ROWS, .ranges = ranges};
    bool used[ROWS] = {0};
    int64_t firsts[MOST], counts[MOST];
    int held = 0, refused = 0, extended = 0;
    uint64_t at = 20000;
    for (int round = 0; round < 20000; round++) {
        if (held && random_below(&at, 4) == 0) {
            int which = (int)random_below(&at, (uint64_t)held);
            int64_t end = firsts[which] + counts[which], more = 1 + (int64_t)random_below(&at, 20);
            bool fits = end + more <= ROWS;
            for (int64_t r = end; fits && r < end + more; r++) fits = !used[r];
            assert_int_equal(row_pool_extend(&pool, firsts[which], counts[which] + more), fits);
            for (int64_t r = end; fits && r < end + more; r++) used[r] = true;
            if (fits) counts[which] += more;
            extended += fits;
            continue;
        }
        if (held == MOST || (held && random_below(&at, 2))) {
            int which = (int)random_below(&at, (uint64_t)held);
            row_pool_give(&pool, firsts[which]);
            for (int64_t r = 0; r < counts[which]; r++) used[firsts[which] + r] = false;
            firsts[which] = firsts[--held], counts[which] = counts[held];
            continue;
        }
        int64_t count = 1 + (int64_t)random_below(&at, 60), longest = 0, gap = 0, first = row_pool_take(&pool, count);
        for (int64_t r = 0; r < ROWS; r++) longest = int_max(longest, gap = used[r] ? 0 : gap + 1);
        assert_int_equal(first >= 0, longest >= count);
        refused += first < 0;
        if (first < 0) continue;
        assert_in_range(first + count, 1, ROWS);
        for (int64_t r = first; r < first + count; r++) {
            assert_false(used[r]);
            used[r] = true;
        }
        firsts[held] = first, counts[held++] = count;
    }
    assert_true(refused > 100 && extended > 100);
}

/* One thread: the models are so small that threads only wait for each other. */
int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_get_what_they_get_alone),
        cmocka_unit_test(prompts_are_scored),
        cmocka_unit_test(penalties_count_the_tokens_of_a_text),
        cmocka_unit_test(neither_slots_nor_arrivals_change_a_sample),
        EACH_ISA(cmocka_unit_test(draws_have_the_bits_of_the_whole_text)),
        cmocka_unit_test(short_prompts_are_computed_together),
        cmocka_unit_test(samples_go_on_after_appended_tokens),
        cmocka_unit_test(samples_end_where_they_should),
        cmocka_unit_test(canceled_requests_leave_the_others_as_they_are),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(caches_have_rows_for_the_longest_sequences),
        cmocka_unit_test(reserved_rows_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

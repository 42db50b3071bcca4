/* The engine with fewer cache rows than its sequences may need. A sample gets the bits that it gets alone, whichever sequences are
 * moved or recomputed, and in whichever order requests arrive, wait and are canceled. */
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
#include "support/check.h"
#include "support/each_isa.h"
#include "support/generator_run.h"

enum { CONTEXT = 224, REQUESTS = 10, MOST_SAMPLES = 3, MOST_PROMPT = 60, MOST_TOKENS = 150, TURNS = 3, MOST_STEPS = 50000 };

typedef struct Sample {
    int32_t tokens[MOST_TOKENS];
    double log_probabilities[MOST_TOKENS]; /* 0: appended */
    int count, ends, turn;
    bool waits;
} Sample;

/* A request, and the results of its samples. */
typedef struct Asked {
    int number;
    int32_t prompt[MOST_PROMPT];
    int64_t prompt_count, tokens;
    int sample_count;
    bool is_scored, turns, penalized, canceled;
    double scores[MOST_PROMPT];
    int scored;
    Sample samples[MOST_SAMPLES];
} Asked;

static uint64_t below(uint64_t stream, uint64_t at, uint64_t limit) { return (uint64_t)(rng_uniform(91, stream, at) * (double)limit); }

/* Tokens after which a turn of a sample ends; 0: none. A function of the sample alone, as what is appended is. */
static int turn_end(const Asked *asked, int sample) {
    const Sample *s = &asked->samples[sample];
    return asked->turns ? (int)below(5, (uint64_t)((asked->number * MOST_SAMPLES + sample) * TURNS + s->turn), 20) + 30 * (s->turn + 1) : 0;
}

static bool take_token(void *context, int sample, const EngineToken *token) {
    Asked *asked = context;
    Sample *s = &asked->samples[sample];
    assert_true(!s->ends && !s->waits && !asked->canceled);
    assert_in_range(s->count, 0, MOST_TOKENS - 1);
    s->tokens[s->count] = token->token;
    s->log_probabilities[s->count++] = token->log_probability;
    return !asked->turns || s->count < turn_end(asked, sample);
}

static void take_score(void *context, const EngineToken *token) {
    Asked *asked = context;
    assert_in_range(asked->scored, 0, asked->prompt_count - 2);
    assert_int_equal(asked->samples[0].count, 0);
    assert_int_equal(token->token, asked->prompt[asked->scored + 1]);
    asked->scores[asked->scored++] = token->log_probability;
}

static void take_end(void *context, int sample, EngineEnd end) {
    Asked *asked = context;
    (void)end;
    asked->samples[sample].ends++;
}

static bool wait_for_more(void *context, int sample) {
    Asked *asked = context;
    return asked->samples[sample].waits = ++asked->samples[sample].turn < TURNS;
}

/* Appends to a sample that waits, or ends it. */
static void go_on(Engine *engine, Asked *asked, int sample) {
    Sample *s = &asked->samples[sample];
    int first = s->count, count = 1 + (int)below(6, (uint64_t)(asked->number * 100 + s->turn), 6);
    s->waits = false;
    if (s->turn == TURNS - 1 && sample == 1) count = 0;
    for (; s->count < first + count; s->count++)
        s->tokens[s->count] = (int32_t)below(7, (uint64_t)(asked->number * 1000 + s->count), BYTE_VOCABULARY);
    engine_extend(engine, asked, sample, s->tokens + first, count);
}

/* -- Schedules ----------------------------------------------------------------------------------------------------- */

static Asked make_request(int number) {
    uint64_t at = (uint64_t)number * 1000;
    Asked asked = {.number = number,
        .prompt_count = 1 + (int64_t)below(1, at, MOST_PROMPT),
        .tokens = 20 + (int64_t)below(1, at + 1, MOST_TOKENS - 20),
        .sample_count = 1 + number % MOST_SAMPLES,
        .is_scored = number % 4 == 1,
        .turns = number % 3 == 2,
        .penalized = number % 5 == 3};
    if (asked.turns) asked.tokens = MOST_TOKENS, asked.penalized = false;
    for (int64_t i = 0; i < asked.prompt_count; i++) asked.prompt[i] = (int32_t)below(2, at + (uint64_t)i, BYTE_VOCABULARY);
    return asked;
}

static void submit(Engine *engine, Asked *asked) {
    Error error = {0};
    EngineRequest request = {.prompt = asked->prompt,
        .prompt_count = asked->prompt_count,
        .tokens = asked->tokens,
        .samples = asked->sample_count,
        .sampling = {.temperature = 1, .top_p = 1, .seed = 3},
        .number = (uint64_t)(asked->number * MOST_SAMPLES),
        .token = take_token,
        .end = take_end,
        .context = asked};
    if (asked->is_scored) request.scored = take_score;
    if (asked->turns) request.wait = wait_for_more;
    if (asked->penalized) request.penalties = (EnginePenalties){.repetition = 1.3, .presence = 0.5, .frequency = 0.25};
    if (!engine_submit(engine, &request, &error)) fail_msg("%s", error.message);
}

/* `random` 0: one request after the other, and no pauses. */
typedef struct Schedule {
    uint64_t random;
    EngineSizes sizes;
    Precision precision;
} Schedule;

/* Lets samples that wait go on, after a pause that ends early if the engine has nothing else to do. */
static void go_on_with_some(Engine *engine, Asked *asked, uint64_t random, uint64_t *at) {
    for (int r = 0; r < REQUESTS; r++)
        for (int s = 0; s < asked[r].sample_count && !asked[r].canceled; s++)
            if (asked[r].samples[s].waits && (!random || engine_waits(engine) || below(random, (*at)++, 60) == 0))
                go_on(engine, &asked[r], s);
}

static void cancel_request(Engine *engine, Asked *asked) {
    engine_cancel(engine, asked);
    asked->canceled = true;
}

static EngineCounts run_schedule(const Config *config, const Schedule *schedule, Asked *asked) {
    Error error = {0};
    EngineSizes sizes = schedule->sizes;
    uint64_t random = schedule->random, at = 0;
    int places[REQUESTS], submitted = 0;
    sizes.limit = BYTE_VOCABULARY, sizes.scores = sizes.penalties = true;
    Engine *engine = engine_create(&config->model, (EnginePlace){NULL, schedule->precision, device_cpu()}, sizes, &error);
    if (!engine) fail_msg("%s", error.message);
    random_run_weights(engine_graph(engine), &config->model, engine_master(engine));
    model_cast_weights(engine_graph(engine), device_cpu(), engine_master(engine), engine_weights(engine));
    for (int r = 0; r < REQUESTS; r++) asked[r] = make_request(r), places[r] = r;
    for (int r = REQUESTS - 1; r > 0 && random; r--) {
        int other = (int)below(random, at++, (uint64_t)r + 1), kept = places[r];
        places[r] = places[other], places[other] = kept;
    }
    for (int steps = 0; submitted < REQUESTS || engine_busy(engine); steps++) {
        if (steps > MOST_STEPS) fail_msg("not all sequences have ended after %d steps", steps);
        bool next = random ? below(random, at++, 12) == 0 : !engine_busy(engine);
        if (submitted < REQUESTS && next) submit(engine, &asked[places[submitted++]]);
        if (!engine_step(engine, &error)) fail_msg("%s", error.message);
        go_on_with_some(engine, asked, random, &at);
        if (random && submitted == REQUESTS && below(random, at++, 40) == 0) cancel_request(engine, &asked[below(random, at++, 3)]);
    }
    EngineCounts counts = engine_counts(engine);
    engine_free(engine);
    return counts;
}

static void expect_bits(const char *name, uint64_t schedule, const Asked *alone, const Asked *asked) {
    if (asked->canceled) return;
    assert_int_equal(asked->scored, asked->is_scored ? asked->prompt_count - 1 : 0);
    assert_memory_equal(asked->scores, alone->scores, sizeof asked->scores);
    for (int s = 0; s < asked->sample_count; s++) {
        const Sample *expected = &alone->samples[s], *got = &asked->samples[s];
        assert_int_equal(got->ends, 1);
        assert_int_equal(got->count, expected->count);
        for (int i = 0; i < got->count; i++)
            if (got->tokens[i] != expected->tokens[i] || got->log_probabilities[i] != expected->log_probabilities[i])
                fail_msg("%s, schedule %d, request %d, sample %d: token %d is %d of %.17g, alone %d of %.17g", name, (int)schedule,
                    asked->number, s, i, got->tokens[i], got->log_probabilities[i], expected->tokens[i], expected->log_probabilities[i]);
    }
}

/* Rows for little more than one sequence up to rows for most of them. */
static void run_schedules(int family, Precision precision, int schedules, EngineCounts *counts) {
    OptionStrings strings = {0};
    Config config = configure(&families[family], CONTEXT, &strings);
    config.model.init_std = 0.3; /* weights of attention and logits are spread, so every bit counts */
    static Asked alone[REQUESTS], asked[REQUESTS];
    run_schedule(&config, &(Schedule){0, {.slots = 1}, precision}, alone);
    for (uint64_t i = 1; i <= (uint64_t)schedules; i++) {
        const EngineSizes sizes = {
            .slots = 2 + (int64_t)below(8, i, 7), .cache_rows = MOST_PROMPT + MOST_TOKENS + (int64_t)below(9, i, 400)};
        EngineCounts made = run_schedule(&config, &(Schedule){100 + i, sizes, precision}, asked);
        for (int r = 0; r < REQUESTS; r++) expect_bits(families[family].name, i, &alone[r], &asked[r]);
        counts->suspended += made.suspended;
        counts->moved += made.moved;
    }
    options_free_strings(&strings);
}

static void any_schedule_gives_the_bits_of_one_sequence(void **state) {
    (void)state;
    static const int chosen[] = {0, 2, 6, 8, 17};
    static const Precision precisions[] = {PRECISION_FP32, PRECISION_BF16};
    EngineCounts counts = {0};
    for (size_t i = 0; i < 2 * sizeof chosen / sizeof *chosen; i++) run_schedules(chosen[i / 2], precisions[i % 2], 8, &counts);
    assert_in_range(counts.suspended, 100, INT32_MAX);
    assert_in_range(counts.moved, 100, INT32_MAX);
}

static void sequences_of_all_families_can_be_computed_again(void **state) {
    (void)state;
    for (int family = 0; family < FAMILIES; family++) {
        EngineCounts counts = {0};
        run_schedules(family, PRECISION_FP32, 1, &counts);
    }
}

/* One thread: the models are so small that threads only wait for each other. */
int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
        EACH_ISA(cmocka_unit_test(any_schedule_gives_the_bits_of_one_sequence)),
        EACH_ISA(cmocka_unit_test(sequences_of_all_families_can_be_computed_again)),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

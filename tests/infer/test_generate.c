/* Generation: the cache against computing everything again, sampling, what ends a text, and UTF-8 that arrives byte
 * by byte. */
#include <math.h>
#include <omp.h>
#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/file.h"
#include "data/byte_tokenizer.h"
#include "infer/generate.h"
#include "infer/utf8.h"
#include "run/source.h"
#include "session/weights.h"
#include "support/generator_run.h"
#include "support/mentions.h"
#include "support/process.h"

enum { CONTEXT = 96 };

static int32_t next(Generator *generator, const Sampling *sampling) {
    Error error = {0};
    int32_t token;
    if (!generator_next(generator, sampling, BYTE_VOCABULARY, &token, &error)) fail_msg("%s", error.message);
    return token;
}

static void generate(const Config *config, const Sampling *sampling, int prompt, int count, bool cache, int32_t *tokens) {
    Generator *generator = create(NULL, config, PRECISION_FP32, cache);
    feed(generator, prompt);
    for (int i = 0; i < count; i++) tokens[i] = next(generator, sampling);
    generator_free(generator);
}

/* -- The cache ----------------------------------------------------------------------------------------------------- */

static const int prompts[] = {1, 2, 7, 8, 9, 63, 64, 65, 70};
enum { PROMPTS = sizeof prompts / sizeof *prompts, GENERATED = 8 };

static void greedy_tokens_with_the_cache_are_those_without(void **state) {
    (void)state;
    Sampling greedy = {.top_p = 1};
    for (int i = 0; i < FAMILIES * PROMPTS; i++) {
        const Variety *family = &families[i / PROMPTS];
        OptionStrings strings = {0};
        Config config = configure(family, CONTEXT, &strings);
        int32_t cached[GENERATED], whole[GENERATED];
        generate(&config, &greedy, prompts[i % PROMPTS], GENERATED, true, cached);
        generate(&config, &greedy, prompts[i % PROMPTS], GENERATED, false, whole);
        int changes = 0;
        for (int j = 1; j < GENERATED; j++) changes += cached[j] != cached[j - 1];
        assert_in_range(changes, 2, GENERATED);
        for (int j = 0; j < GENERATED; j++)
            if (cached[j] != whole[j])
                fail_msg("%s, prompt of %d: token %d is %d with the cache, %d without", family->name, prompts[i % PROMPTS], j, cached[j],
                    whole[j]);
        options_free_strings(&strings);
    }
}

/* In doubles only the order of sums differs: 1e-10 is far above their rounding and far below any mistake. */
static void logits_with_the_cache_are_those_without_to_rounding(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES * PROMPTS; i++) {
        const Variety *family = &families[i / PROMPTS];
        OptionStrings strings = {0};
        Error error = {0};
        Config config = configure(family, CONTEXT, &strings);
        Generator *cached = create(NULL, &config, PRECISION_FP64, true), *whole = create(NULL, &config, PRECISION_FP64, false);
        feed(cached, prompts[i % PROMPTS]);
        feed(whole, prompts[i % PROMPTS]);
        const double *a = generator_logits(cached, &error), *b = generator_logits(whole, &error);
        assert_non_null(a);
        assert_non_null(b);
        for (int64_t token = 0; token < config.model.vocabulary; token++)
            if (fabs(a[token] - b[token]) > 1e-10)
                fail_msg("%s, prompt of %d: logit %d is %.17g with the cache, %.17g without", family->name, prompts[i % PROMPTS],
                    (int)token, a[token], b[token]);
        generator_free(cached);
        generator_free(whole);
        options_free_strings(&strings);
    }
}

/* transformers rotates a prompt for its whole length, and each later token for the length that the text then has. */
static void a_prompt_longer_than_the_original_context_of_growing_rope_is_refused(void **state) {
    (void)state;
    static const Variety scaled[] = {{"dynamic", {"model.rope_scaling=dynamic", "model.rope_factor=4", "model.rope_original_context=24"}},
        {"longrope", {"model.rope_scaling=longrope", "model.rope_factor=4", "model.rope_original_context=24",
                         "model.rope_short_factors=1,1.25,2", "model.rope_long_factors=1,3,40"}}};
    for (int i = 0; i < 2; i++) {
        Variety family = families[7]; /* qwen2 without scaling */
        int count = 0;
        while (family.settings[count]) count++;
        for (int j = 0; j < SETTINGS && scaled[i].settings[j]; j++) family.settings[count++] = scaled[i].settings[j];
        OptionStrings strings = {0};
        Error error = {0};
        Config config = configure(&family, CONTEXT, &strings);
        Generator *generator = create(NULL, &config, PRECISION_FP64, true);
        int32_t tokens[25] = {0};
        assert_false(generator_feed(generator, tokens, 25, &error));
        assert_mentions(error.message, "25 model.rope_original_context=24 cache=false");
        assert_mentions(error.message, scaled[i].name);
        assert_true(generator_feed(generator, tokens, 24, &error));
        assert_non_null(generator_logits(generator, &error));
        assert_true(generator_feed(generator, tokens, 25, &error));
        assert_non_null(generator_logits(generator, &error));
        generator_free(generator);
        generator = create(NULL, &config, PRECISION_FP64, false);
        assert_true(generator_feed(generator, tokens, 25, &error));
        generator_free(generator);
        options_free_strings(&strings);
    }
}

/* transformers' Phi-3 drops its cache there, and rotates all tokens for the new length. */
static void a_cache_of_phi3_ends_at_the_original_context_of_longrope(void **state) {
    (void)state;
    static const Variety phi3 = {
        "phi3", {"model.family=phi3", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=20", "model.layers=2",
                    "model.rope_fraction=0.75", "model.rope_scaling=longrope", "model.rope_factor=4", "model.rope_original_context=24",
                    "model.rope_short_factors=1,1.25,2", "model.rope_long_factors=1,3,40"}};
    OptionStrings strings = {0};
    Error error = {0};
    Config config = configure(&phi3, CONTEXT, &strings);
    Generator *generator = create(NULL, &config, PRECISION_FP64, true);
    int32_t tokens[25] = {0};
    assert_true(generator_feed(generator, tokens, 24, &error));
    assert_non_null(generator_logits(generator, &error));
    assert_false(generator_feed(generator, tokens, 1, &error));
    assert_mentions(error.message, "model.rope_original_context=24 cache=false");
    generator_free(generator);
    options_free_strings(&strings);
}

static void generated_tokens_depend_on_the_prompt(void **state) {
    (void)state;
    Sampling greedy = {.top_p = 1};
    OptionStrings strings = {0};
    Config config = configure(&families[0], CONTEXT, &strings);
    int32_t a[GENERATED], b[GENERATED];
    generate(&config, &greedy, 33, GENERATED, true, a);
    generate(&config, &greedy, 32, GENERATED, true, b);
    assert_memory_not_equal(a, b, sizeof a);
    options_free_strings(&strings);
}

static void a_context_below_the_prompt_block_works(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    config.model.context = 5;
    Sampling greedy = {.top_p = 1};
    int32_t cached[3], whole[3];
    generate(&config, &greedy, 2, 3, true, cached);
    generate(&config, &greedy, 2, 3, false, whole);
    assert_memory_equal(cached, whole, sizeof cached);
    options_free_strings(&strings);
}

static void the_context_is_the_limit(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Error error = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    Sampling greedy = {.top_p = 1};
    Generator *generator = create(NULL, &config, PRECISION_FP32, true);
    feed(generator, CONTEXT - 1);
    assert_int_equal(generator_room(generator), 1);
    next(generator, &greedy);
    assert_int_equal(generator_room(generator), 0);
    assert_non_null(generator_logits(generator, &error));
    assert_false(generator_feed(generator, (int32_t[]){1}, 1, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "model.context=96");
    generator_free(generator);
    options_free_strings(&strings);
}

static void tokens_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    Generator *generator = create(NULL, &config, PRECISION_FP32, true);
    const int32_t wrong[] = {320, -1};
    for (int i = 0; i < 2; i++) {
        Error error = {0};
        assert_false(generator_feed(generator, &wrong[i], 1, &error));
        assert_int_equal(error.code, ERROR_USAGE);
        assert_int_equal(generator_room(generator), CONTEXT);
    }
    generator_free(generator);
    options_free_strings(&strings);
}

static void broken_weights_are_an_error_of_numerics(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Error error = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    Generator *generator = create(NULL, &config, PRECISION_FP32, true);
    ((float *)generator_master(generator))[generator_graph(generator)->parameter_bytes / (int64_t)sizeof(float) - 1] = NAN;
    feed(generator, 4);
    assert_null(generator_logits(generator, &error));
    assert_int_equal(error.code, ERROR_NUMERICS);
    generator_free(generator);
    options_free_strings(&strings);
}

/* -- Run folders --------------------------------------------------------------------------------------------------- */

static Generator *open_run(const char *folder, Config *config, OptionStrings *strings, Precision precision, Error *error) {
    return source_read_config(folder, config, strings, error)
               ? weights_open_generator(folder, NULL, config, precision, device_cpu(), true, error)
               : NULL;
}

static void a_run_folder_gives_its_weights_in_any_precision(void **state) {
    (void)state;
    const Precision saved[] = {PRECISION_BF16, PRECISION_FP32, PRECISION_FP64};
    for (int i = 0; i < 9; i++) {
        char folder[] = "/tmp/smelt-test-generate-XXXXXX";
        assert_non_null(mkdtemp(folder));
        OptionStrings strings = {0};
        Error error = {0};
        Config config = configure(&families[0], CONTEXT, &strings), read;
        config.precision = saved[i / 3];
        config.run = folder;
        assert_true(random_run_write(&config, &error));
        Generator *generator = open_run(folder, &read, &strings, saved[i % 3], &error), *direct = create(NULL, &config, saved[i % 3], true);
        if (!generator) fail_msg("%s", error.message);
        feed(generator, 40);
        feed(direct, 40);
        const double *a = generator_logits(generator, &error), *b = generator_logits(direct, &error);
        /* Weights that went through fp32 differ by its rounding; those of a bf16 model are the same. */
        double tolerance = i % 3 == 2 ? 1e-4 : 0;
        if (saved[i / 3] == PRECISION_FP64) tolerance = i % 3 == 2 ? 0 : 1e-4;
        for (int token = 0; token < BYTE_VOCABULARY; token++) assert_true(fabs(a[token] - b[token]) <= tolerance);
        generator_free(generator);
        generator_free(direct);
        options_free_strings(&strings);
        assert_true(file_remove(folder, &error));
    }
}

static void other_folders_are_refused_by_name(void **state) {
    (void)state;
    char folder[] = "/tmp/smelt-test-generate-XXXXXX";
    assert_non_null(mkdtemp(folder));
    OptionStrings strings = {0};
    Error error = {0};
    Config config;
    assert_null(open_run(folder, &config, &strings, PRECISION_FP32, &error));
    assert_int_equal(error.code, ERROR_CHECKPOINT);
    assert_mentions(error.message, "not run folder config.json");
    char *path = memory_format("%s/config.json", folder);
    assert_true(file_write(path, "{}", 2, &error));
    assert_null(open_run(folder, &config, &strings, PRECISION_FP32, &error));
    assert_mentions(error.message, "config.json: model_type is missing");
    free(path);
    options_free_strings(&strings);
    assert_true(file_remove(folder, &error));
}

/* -- Sampling ------------------------------------------------------------------------------------------------------ */

static void the_seed_decides_the_text(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[0], CONTEXT, &strings);
    int32_t first[40], again[40], other[40];
    generate(&config, &(Sampling){.temperature = 1, .top_p = 1, .seed = 3}, 5, 40, true, first);
    generate(&config, &(Sampling){.temperature = 1, .top_p = 1, .seed = 3}, 5, 40, true, again);
    generate(&config, &(Sampling){.temperature = 1, .top_p = 1, .seed = 4}, 5, 40, true, other);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    options_free_strings(&strings);
}

static void one_candidate_is_the_greedy_choice(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Config config = configure(&families[0], CONTEXT, &strings);
    int32_t greedy[20], top_k[20], top_p[20];
    generate(&config, &(Sampling){.top_p = 1, .seed = 3}, 5, 20, true, greedy);
    generate(&config, &(Sampling){.temperature = 1, .top_k = 1, .top_p = 1, .seed = 3}, 5, 20, true, top_k);
    generate(&config, &(Sampling){.temperature = 1, .top_p = 1e-9, .seed = 3}, 5, 20, true, top_p);
    assert_memory_equal(greedy, top_k, sizeof greedy);
    assert_memory_equal(greedy, top_p, sizeof greedy);
    options_free_strings(&strings);
}

/* -- Against a sort of all tokens ---------------------------------------------------------------------------------- */

typedef struct Ranked {
    double logit;
    int32_t token;
} Ranked;

static int by_logit(const void *a, const void *b) {
    const Ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Top-k, then top-p, then a draw in order of likelihood, step by step. */
static int32_t plain_draw(const double *values, int64_t count, const Sampling *sampling, double uniform) {
    Ranked ranked[700];
    double total = 0, sum = 0;
    int64_t kept = sampling->top_k && sampling->top_k < count ? sampling->top_k : count, left = 0, at = 0;
    for (int64_t i = 0; i < count; i++) ranked[i] = (Ranked){values[i], (int32_t)i};
    qsort(ranked, (size_t)count, sizeof *ranked, by_logit);
    for (int64_t i = 0; i < kept; i++) total += exp((ranked[i].logit - ranked[0].logit) / sampling->temperature);
    for (; left < kept && (left == 0 || sum < sampling->top_p * total); left++)
        sum += exp((ranked[left].logit - ranked[0].logit) / sampling->temperature);
    for (double reached = 0; at < left; at++)
        if ((reached += exp((ranked[at].logit - ranked[0].logit) / sampling->temperature)) > uniform * sum) break;
    return ranked[at < left ? at : left - 1].token;
}

/* Logits are whole, so that many are equal. */
static void a_cut_draws_what_a_sort_of_all_tokens_draws(void **state) {
    (void)state;
    static const Sampling cuts[] = {{1, 1, 1, 0}, {1, 7, 1, 0}, {0.7, 40, 0.9, 0}, {1, 0, 0.5, 0}, {2, 0, 0.99, 0}, {1, 0, 1e-9, 0},
        {0.3, 1000, 0.999, 0}, {1, 699, 0.3, 0}, {5, 0, 0, 0}};
    double values[700];
    for (int i = 0; i < 900; i++) {
        const Sampling *sampling = &cuts[i % 9];
        int64_t count = i % 5 == 4 ? 1 + i % 3 : 700;
        for (int64_t j = 0; j < count; j++) values[j] = i % 7 == 6 ? 1 : floor(8 * rng_normal(4, (uint64_t)i, (uint64_t)j)) / 4;
        double uniform = rng_uniform(5, 0, (uint64_t)i);
        assert_int_equal(sample_token(values, count, sampling, uniform), plain_draw(values, count, sampling, uniform));
    }
}

enum { DRAWS = 20000, CLASSES = 4 };
static const double logits[CLASSES] = {-1.2, 0.9, 0.3, -0.4};

static void count_draws(const Sampling *sampling, int counts[CLASSES]) {
    memset(counts, 0, CLASSES * sizeof *counts);
    for (int i = 0; i < DRAWS; i++) counts[sample_token(logits, CLASSES, sampling, rng_uniform(9, RNG_STREAM_SAMPLE, i))]++;
}

/* `allowed` has a bit per class. Five standard deviations of a binomial: one draw in a million of correct samplers
 * is outside. */
static void assert_distribution(const Sampling *sampling, unsigned allowed) {
    int counts[CLASSES];
    double weights[CLASSES], total = 0;
    count_draws(sampling, counts);
    for (int i = 0; i < CLASSES; i++) total += weights[i] = allowed >> i & 1 ? exp(logits[i] / sampling->temperature) : 0;
    for (int i = 0; i < CLASSES; i++) {
        double p = weights[i] / total;
        if (fabs(counts[i] - p * DRAWS) > 5 * sqrt(DRAWS * p * (1 - p)))
            fail_msg("class %d was drawn %d times of %d, expected %g", i, counts[i], DRAWS, p * DRAWS);
    }
}

static void draws_follow_the_softmax_at_any_temperature(void **state) {
    (void)state;
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 1}, 15);
    assert_distribution(&(Sampling){.temperature = 0.5, .top_p = 1}, 15);
    assert_distribution(&(Sampling){.temperature = 3, .top_p = 1}, 15);
}

static void top_k_draws_among_the_likeliest(void **state) {
    (void)state;
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 1, .top_k = 2}, 6);
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 1, .top_k = 3}, 14);
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 1, .top_k = 99}, 15);
}

/* Probabilities at temperature 1 are 0.06, 0.51, 0.28, 0.14: in order 0.51, 0.79, 0.94, 1. */
static void top_p_draws_among_the_fewest_that_reach_it(void **state) {
    (void)state;
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 0.4}, 2);
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 0.7}, 6);
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 0.85}, 14);
    assert_distribution(&(Sampling){.temperature = 1, .top_p = 0.6, .top_k = 2}, 2);
}

static void tokens_past_the_limit_are_never_drawn(void **state) {
    (void)state;
    OptionStrings strings = {0};
    Error error = {0};
    Config config = configure(&families[0], CONTEXT, &strings);
    Generator *generator = create(NULL, &config, PRECISION_FP32, true);
    feed(generator, 1);
    for (int i = 0; i < 60; i++) {
        int32_t token;
        assert_true(generator_next(generator, &(Sampling){.temperature = i % 2 ? 100 : 0, .top_p = 1, .seed = 1}, 3, &token, &error));
        assert_in_range(token, 0, 2);
    }
    generator_free(generator);
    options_free_strings(&strings);
}

/* -- UTF-8 --------------------------------------------------------------------------------------------------------- */

/* What comes out byte by byte, with a bar after each call that gave something. */
static void assert_stream(const char *bytes, const char *expected) {
    Utf8Stream stream = {0};
    char text[256] = "", piece[UTF8_OUTPUT];
    for (size_t i = 0; i <= strlen(bytes); i++) {
        int length = bytes[i] ? utf8_put(&stream, (uint8_t)bytes[i], piece) : utf8_finish(&stream, piece);
        assert_in_range(length, 0, UTF8_OUTPUT);
        strncat(text, piece, length);
        if (length) strcat(text, "|");
    }
    assert_string_equal(text, expected);
}

#define BROKEN "\xef\xbf\xbd"

static void characters_come_out_whole(void **state) {
    (void)state;
    assert_stream("aé", "a|é|");
    assert_stream("€x", "€|x|");
    assert_stream("\xf0\x9f\x98\x80!", "\xf0\x9f\x98\x80|!|");
    assert_stream("\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf|");
}

static void broken_bytes_become_replacement_characters(void **state) {
    (void)state;
    assert_stream("a\xff"
                  "b",
        "a|" BROKEN "|b|");
    assert_stream("\xc3"
                  "a",
        BROKEN "a|");
    assert_stream("\x80\x80", BROKEN "|" BROKEN "|");
    assert_stream("\xe2\x82", BROKEN "|");
    assert_stream("\xe2\x82\xff", BROKEN BROKEN "|");
    assert_stream("\xe2\x82\xe2\x82\xac", BROKEN "|€|");
    assert_stream("\xc0\xaf", BROKEN "|" BROKEN "|");
    assert_stream("\xe0\x9f\xbf", BROKEN BROKEN "|" BROKEN "|");
    assert_stream("\xed\xa0\x80", BROKEN BROKEN "|" BROKEN "|");
    assert_stream("\xf0\x8f\xbf\xbf", BROKEN BROKEN "|" BROKEN "|" BROKEN "|");
    assert_stream("\xf4\x90\x80\x80", BROKEN BROKEN "|" BROKEN "|" BROKEN "|");
    assert_stream("\xf5", BROKEN "|");
}

/* What `smelt generate` shows of a prompt: on a terminal, or else through a pipe. The caller frees. */
static char *shown(const char *run, const char *prompt, bool terminal) {
    int ends[2];
    char *smelt = process_smelt(), *text = memory_allocate(256);
    struct termios raw = {0}; /* changes no line ends */
    assert_int_equal(terminal ? openpty(&ends[0], &ends[1], NULL, &raw, NULL) : pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0 && dup2(ends[1], STDOUT_FILENO) >= 0)
        execl(smelt, smelt, "generate", run, prompt, "tokens=0", "device=cpu", "threads=1", NULL);
    if (child == 0) _exit(127);
    for (size_t used = 0; !strchr(text, '\n');) { /* the first and last line */
        ssize_t got = read(ends[0], text + used, 255 - used);
        assert_true(got > 0);
        used += (size_t)got;
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(ends[0]);
    close(ends[1]);
    free(smelt);
    return text;
}

static void a_terminal_gets_no_control_characters(void **state) {
    (void)state;
    const char *prompt = "a\x1b[1m\a\r\x7f\tb\xc2\x9b\xc2\xa0€";
    char folder[] = "/tmp/smelt-test-generate-XXXXXX";
    assert_non_null(mkdtemp(folder));
    OptionStrings strings = {0};
    Error error = {0};
    Config config = configure(&families[2], CONTEXT, &strings);
    config.run = folder;
    assert_true(random_run_write(&config, &error));
    char *piped = shown(folder, prompt, false), *terminal = shown(folder, prompt, true);
    assert_string_equal(piped, "a\x1b[1m\a\r\x7f\tb\xc2\x9b\xc2\xa0€\n");
    assert_string_equal(terminal, "a" BROKEN "[1m" BROKEN BROKEN BROKEN "\tb" BROKEN "\xc2\xa0€\n");
    assert_true(file_remove(folder, &error));
    options_free_strings(&strings);
    free(piped);
    free(terminal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_with_the_cache_are_those_without),
        cmocka_unit_test(logits_with_the_cache_are_those_without_to_rounding),
        cmocka_unit_test(a_prompt_longer_than_the_original_context_of_growing_rope_is_refused),
        cmocka_unit_test(a_cache_of_phi3_ends_at_the_original_context_of_longrope),
        cmocka_unit_test(generated_tokens_depend_on_the_prompt),
        cmocka_unit_test(a_context_below_the_prompt_block_works),
        cmocka_unit_test(the_context_is_the_limit),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
        cmocka_unit_test(broken_weights_are_an_error_of_numerics),
        cmocka_unit_test(a_run_folder_gives_its_weights_in_any_precision),
        cmocka_unit_test(other_folders_are_refused_by_name),
        cmocka_unit_test(the_seed_decides_the_text),
        cmocka_unit_test(one_candidate_is_the_greedy_choice),
        cmocka_unit_test(draws_follow_the_softmax_at_any_temperature),
        cmocka_unit_test(a_cut_draws_what_a_sort_of_all_tokens_draws),
        cmocka_unit_test(top_k_draws_among_the_likeliest),
        cmocka_unit_test(top_p_draws_among_the_fewest_that_reach_it),
        cmocka_unit_test(tokens_past_the_limit_are_never_drawn),
        cmocka_unit_test(characters_come_out_whole),
        cmocka_unit_test(broken_bytes_become_replacement_characters),
        cmocka_unit_test(a_terminal_gets_no_control_characters),
    };
    omp_set_num_threads(1); /* the models are so small that threads would only wait for one another */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

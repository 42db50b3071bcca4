/* Generation with real ranks that share the cache: logits and tokens are those of one process, whatever the model, the
 * prompt and the number of ranks; what a token sends does not depend on the context. And the commands: generate and eval
 * under smelt launch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "config/layout_rules.h"
#include "layout/layout.h"
#include "ops/attention/block_cyclic.h"
#include "session/weights.h"
#include "support/generator_run.h"
#include "support/mentions.h"
#include "support/own_ranks.h"
#include "support/train_run.h"

/* Prompts end before, at and behind the ends of blocks of positions, and tokens are drawn past one. Four ranks have
 * blocks to spare at first, and two rounds of them at the end. */
static const int prompts[] = {1, BLOCK_CYCLIC_ROWS - 4, BLOCK_CYCLIC_ROWS, 2 * BLOCK_CYCLIC_ROWS + 1, 5 * BLOCK_CYCLIC_ROWS - 3};
enum { PROMPTS = sizeof prompts / sizeof *prompts, GENERATED = 8, POSITIONS = 6 * BLOCK_CYCLIC_ROWS };

/* -- What ranks and one process do --------------------------------------------------------------------------------- */

/* The logits behind a prompt, and the tokens of greedy generation. */
typedef struct Outcome {
    double logits[BYTE_VOCABULARY];
    int32_t tokens[GENERATED];
} Outcome;

/* How ranks share a model out. */
typedef struct Sharing {
    const char *name; /* the role of its ranks */
    int cp, tp;
    Precision precision;
    double tolerance; /* of logits, relative to the largest */
} Sharing;

/* Only the order of sums differs: 6e-8 each in fp32, over a few hundred terms and three layers. In doubles the tolerance is
 * far above rounding and far below any mistake. */
static const Sharing sharings[] = {
    {"cp2", 2, 1, PRECISION_FP32, 1e-5},
    {"cp4", 4, 1, PRECISION_FP64, 1e-10},
    {"tp2", 1, 2, PRECISION_FP32, 1e-5},
    {"cp2 tp2", 2, 2, PRECISION_FP32, 1e-5},
};
enum { SHARINGS = sizeof sharings / sizeof *sharings };

static Config configure_for(const Sharing *sharing, int family, OptionStrings *strings) {
    Config config = configure(&families[family], POSITIONS, strings);
    config.layout.cp = sharing->cp;
    config.layout.tp = sharing->tp;
    return config;
}

/* Whether the family's heads can be shared out so. */
static bool is_possible(const Sharing *sharing, int family) {
    OptionStrings strings = {0};
    char reason[256];
    Config config = configure_for(sharing, family, &strings);
    bool broken = layout_breaks(&config, (int64_t)sharing->cp * sharing->tp, reason, sizeof reason);
    options_free_strings(&strings);
    return !broken;
}

/* The weights come through a run folder, of which each rank reads its part. */
static Generator *open_generator(const Mesh *mesh, Config *config, Precision precision) {
    Error error = {0};
    char run[] = "/tmp/smelt-test-ranks-XXXXXX";
    if (!mkdtemp(run)) fail_msg("no folder");
    config->run = run;
    config->precision = precision;
    Generator *generator =
        random_run_write(config, &error) ? weights_open_generator(run, mesh, config, precision, device_cpu(), true, &error) : NULL;
    if (!generator) fail_msg("%s", error.message);
    if (!file_remove(run, &error)) fail_msg("%s", error.message);
    return generator;
}

static Outcome generate(const Mesh *mesh, Config *config, int prompt, Precision precision) {
    Outcome outcome;
    Error error = {0};
    Generator *generator = open_generator(mesh, config, precision);
    feed(generator, prompt);
    const double *logits = generator_logits(generator, &error);
    if (!logits) fail_msg("%s", error.message);
    memcpy(outcome.logits, logits, sizeof outcome.logits);
    for (int i = 0; i < GENERATED; i++)
        if (!generator_next(generator, &(Sampling){.top_p = 1}, BYTE_VOCABULARY, &outcome.tokens[i], &error)) fail_msg("%s", error.message);
    generator_free(generator);
    return outcome;
}

/* -- Many sequences at once ---------------------------------------------------------------------------------------- */

static const Sharing engine_sharing = {"engine", 1, 2, PRECISION_FP64, 0};
enum { REQUESTS = 5, SAMPLES = 2, ENGINE_SLOTS = 4 };

/* The samples of all requests, by request and sample. */
typedef struct Drawn {
    int32_t tokens[REQUESTS * SAMPLES][GENERATED];
    int counts[REQUESTS * SAMPLES];
} Drawn;

typedef struct DrawnRequest {
    Drawn *drawn;
    int index;
} DrawnRequest;

static bool take_drawn(void *context, int sample, const EngineToken *token) {
    DrawnRequest *request = context;
    int at = request->index * SAMPLES + sample;
    request->drawn->tokens[at][request->drawn->counts[at]++] = token->token;
    return true;
}

static void end_drawn(void *context, int sample, EngineEnd end) {
    const DrawnRequest *request = context;
    assert_int_equal(end, ENGINE_LENGTH);
    assert_int_equal(request->drawn->counts[request->index * SAMPLES + sample], GENERATED);
}

static Drawn draw(const Mesh *mesh, Config *config) {
    Error error = {0};
    Drawn drawn = {0};
    DrawnRequest requests[REQUESTS];
    int32_t prompt[POSITIONS];
    char run[] = "/tmp/smelt-test-ranks-XXXXXX";
    const EngineSizes sizes = {.slots = ENGINE_SLOTS, .limit = BYTE_VOCABULARY};
    if (!mkdtemp(run)) fail_msg("no folder");
    config->run = run;
    config->precision = engine_sharing.precision;
    for (int i = 0; i < POSITIONS; i++) prompt[i] = i * 31 % BYTE_VOCABULARY;
    Engine *engine = random_run_write(config, &error)
                         ? weights_open_engine(run, config, (EnginePlace){mesh, engine_sharing.precision, device_cpu()}, sizes, &error)
                         : NULL;
    if (!engine) fail_msg("%s", error.message);
    for (int i = 0; i < REQUESTS; i++) {
        requests[i] = (DrawnRequest){&drawn, i};
        const EngineRequest request = {.prompt = prompt,
            .prompt_count = 1 + 17 * i,
            .tokens = GENERATED,
            .samples = SAMPLES,
            .sampling = {.temperature = 1, .top_p = 1, .seed = 7},
            .number = (uint64_t)(i * SAMPLES),
            .token = take_drawn,
            .end = end_drawn,
            .context = &requests[i]};
        if (!engine_submit(engine, &request, &error)) fail_msg("%s", error.message);
    }
    while (engine_busy(engine))
        if (!engine_step(engine, &error)) fail_msg("%s", error.message);
    engine_free(engine);
    if (!file_remove(run, &error)) fail_msg("%s", error.message);
    return drawn;
}

static void print_drawn(Comm *comm) {
    Error error = {0};
    for (int family = 0; family < FAMILIES; family++) {
        if (!is_possible(&engine_sharing, family)) continue;
        OptionStrings strings = {0};
        Config config = configure_for(&engine_sharing, family, &strings);
        Mesh mesh;
        if (!layout_open_mesh(&mesh, &config, comm, &error)) fail_msg("%s", error.message);
        Drawn drawn = draw(&mesh, &config);
        for (int i = 0; i < REQUESTS * SAMPLES * GENERATED; i++) printf("%d ", drawn.tokens[i / GENERATED][i % GENERATED]);
        mesh_close(&mesh);
        options_free_strings(&strings);
    }
}

/* -- What a token sends -------------------------------------------------------------------------------------------- */

/* Bytes that this rank sends for the token at a position. */
static int64_t token_bytes(const Mesh *mesh, Config *config, int position) {
    Error error = {0};
    int32_t token;
    Generator *generator = open_generator(mesh, config, PRECISION_FP32);
    feed(generator, position);
    assert_non_null(generator_logits(generator, &error));
    int64_t before = comm_totals(mesh->all).bytes;
    assert_true(generator_next(generator, &(Sampling){.top_p = 1}, BYTE_VOCABULARY, &token, &error));
    assert_non_null(generator_logits(generator, &error));
    int64_t bytes = comm_totals(mesh->all).bytes - before;
    generator_free(generator);
    return bytes;
}

static void print_outcomes(Comm *comm, const Sharing *sharing) {
    Error error = {0};
    for (int i = 0; i < FAMILIES * PROMPTS; i++) {
        if (!is_possible(sharing, i / PROMPTS)) continue;
        OptionStrings strings = {0};
        Config config = configure_for(sharing, i / PROMPTS, &strings);
        Mesh mesh;
        if (!layout_open_mesh(&mesh, &config, comm, &error)) fail_msg("%s", error.message);
        Outcome outcome = generate(&mesh, &config, prompts[i % PROMPTS], sharing->precision);
        for (int j = 0; j < BYTE_VOCABULARY; j++) printf("%a ", outcome.logits[j]);
        for (int j = 0; j < GENERATED; j++) printf("%d ", outcome.tokens[j]);
        mesh_close(&mesh);
        options_free_strings(&strings);
    }
}

static void print_bytes(Comm *comm) {
    OptionStrings strings = {0};
    Error error = {0};
    Mesh mesh;
    Config config = configure_for(&(Sharing){.cp = comm_size(comm), .tp = 1}, 0, &strings);
    if (!layout_open_mesh(&mesh, &config, comm, &error)) fail_msg("%s", error.message);
    printf("%lld %lld %lld\n", (long long)token_bytes(&mesh, &config, 3), (long long)token_bytes(&mesh, &config, 100),
        (long long)token_bytes(&mesh, &config, POSITIONS - 2));
    mesh_close(&mesh);
    options_free_strings(&strings);
}

static int run_rank(const char *role) {
    Error error = {0};
    Comm *comm = comm_open(NULL, &error);
    if (!comm) fail_msg("%s", error.message);
    for (int i = 0; i < SHARINGS; i++)
        if (!strcmp(role, sharings[i].name)) print_outcomes(comm, &sharings[i]);
    if (!strcmp(role, "bytes")) print_bytes(comm);
    if (!strcmp(role, engine_sharing.name)) print_drawn(comm);
    comm_close(comm);
    return 0;
}

/* -- Ranks against one process ------------------------------------------------------------------------------------- */

static Outcome read_outcome(char **text) {
    Outcome outcome;
    for (int i = 0; i < BYTE_VOCABULARY; i++) outcome.logits[i] = strtod(*text, text);
    for (int i = 0; i < GENERATED; i++) outcome.tokens[i] = (int32_t)strtol(*text, text, 10);
    return outcome;
}

static void compare(const Outcome *shared, const Outcome *alone, const Sharing *sharing, int family, int prompt) {
    double most = 0;
    for (int i = 0; i < BYTE_VOCABULARY; i++) most = fmax(most, fabs(alone->logits[i]));
    for (int i = 0; i < BYTE_VOCABULARY; i++)
        if (!(fabs(shared->logits[i] - alone->logits[i]) <= sharing->tolerance * most))
            fail_msg("%s, prompt of %d: logit %d is %.9g with %s, %.9g alone", families[family].name, prompt, i, shared->logits[i],
                sharing->name, alone->logits[i]);
    for (int i = 0; i < GENERATED; i++)
        if (shared->tokens[i] != alone->tokens[i])
            fail_msg("%s, prompt of %d: token %d is %d with %s, %d alone", families[family].name, prompt, i, shared->tokens[i],
                sharing->name, alone->tokens[i]);
}

static void expect_one_process(const Sharing *sharing, int most_impossible) {
    Ranks ranks;
    int impossible = 0;
    start_ranks(&ranks, sharing->cp * sharing->tp, sharing->name);
    finish_ranks(&ranks);
    for (int i = 0; i < ranks.size; i++) {
        if (ranks.results[i].code != 0) fail_msg("rank %d, %s: %s", i, sharing->name, ranks.results[i].errors);
        assert_string_equal(ranks.results[i].output, ranks.results[0].output); /* to the bit */
    }
    char *text = ranks.results[0].output;
    for (int family = 0; family < FAMILIES; family++) {
        bool possible = is_possible(sharing, family);
        impossible += !possible;
        for (int i = 0; i < PROMPTS && possible; i++) {
            OptionStrings strings = {0};
            Config config = configure(&families[family], POSITIONS, &strings);
            Outcome shared = read_outcome(&text), alone = generate(NULL, &config, prompts[i], sharing->precision);
            compare(&shared, &alone, sharing, family, prompts[i]);
            options_free_strings(&strings);
        }
    }
    assert_in_range(impossible, 0, most_impossible);
    free_ranks(&ranks);
}

/* Not divided: the two models of Qwen3.5 and Qwen3-Next, whose states go from token to token. */
static void ranks_that_share_the_cache_give_the_logits_and_tokens_of_one(void **state) {
    (void)state;
    expect_one_process(&sharings[0], 3);
    expect_one_process(&sharings[1], 3);
}

/* Not divided: one key head of CCA, three heads (three times), norms over all heads of MPT, OLMoE, OLMo 3 and MiniMax-M2. */
static void ranks_that_share_the_model_give_the_logits_and_tokens_of_one(void **state) {
    (void)state;
    expect_one_process(&sharings[2], 8);
    expect_one_process(&sharings[3], 11); /* and the models of Qwen3.5 and Qwen3-Next */
}

static void an_engine_on_ranks_draws_the_tokens_of_one(void **state) {
    (void)state;
    Ranks ranks;
    int families_drawn = 0;
    start_ranks(&ranks, engine_sharing.tp, engine_sharing.name);
    finish_ranks(&ranks);
    for (int i = 0; i < ranks.size; i++) {
        if (ranks.results[i].code != 0) fail_msg("rank %d: %s", i, ranks.results[i].errors);
        assert_string_equal(ranks.results[i].output, ranks.results[0].output);
    }
    char *text = ranks.results[0].output;
    for (int family = 0; family < FAMILIES; family++) {
        if (!is_possible(&engine_sharing, family)) continue;
        OptionStrings strings = {0};
        Config config = configure(&families[family], POSITIONS, &strings);
        Drawn alone = draw(NULL, &config);
        for (int i = 0; i < REQUESTS * SAMPLES * GENERATED; i++) {
            int32_t token = (int32_t)strtol(text, &text, 10);
            if (token != alone.tokens[i / GENERATED][i % GENERATED])
                fail_msg("%s, sample %d: token %d is %d, %d alone", families[family].name, i / GENERATED, i % GENERATED, token,
                    alone.tokens[i / GENERATED][i % GENERATED]);
        }
        families_drawn++;
        options_free_strings(&strings);
    }
    assert_true(families_drawn >= FAMILIES - 8);
    free_ranks(&ranks);
}

static void what_a_token_sends_does_not_depend_on_the_context(void **state) {
    (void)state;
    for (int size = 2; size <= 4; size += 2) {
        Ranks ranks;
        start_ranks(&ranks, size, "bytes");
        finish_ranks(&ranks);
        for (int i = 0; i < size; i++) {
            long long bytes[3];
            if (ranks.results[i].code != 0) fail_msg("rank %d: %s", i, ranks.results[i].errors);
            assert_int_equal(sscanf(ranks.results[i].output, "%lld %lld %lld", &bytes[0], &bytes[1], &bytes[2]), 3);
            /* zaya with 3 layers of 4 heads of 8: outputs and their log-sum-exp to each of the others, and the token */
            assert_in_range(bytes[0], 3 * 4 * (8 + 1) * 4 * (size - 1), 3 * 4 * (8 + 1) * 4 * (size - 1) + 1024 * (size - 1));
            assert_int_equal(bytes[1], bytes[0]);
            assert_int_equal(bytes[2], bytes[0]);
        }
        free_ranks(&ranks);
    }
}

/* -- The commands -------------------------------------------------------------------------------------------------- */

/* smelt launch -n RANKS -- WORDS, on the CPU. */
static ProcessResult launched(int ranks, const char *words) {
    SCOPED_FREE char *command = memory_format("launch -n %d self_test=false -- %s device=cpu", ranks, words);
    return smelt(command);
}

static void launched_says(int code, const char *fragment, int ranks, const char *words) {
    ProcessResult result = launched(ranks, words);
    expect_code(&result, code, words);
    if (!mentions(result.errors, fragment)) fail_msg("no '%s' in: %s", fragment, result.errors);
    process_free(&result);
}

static void the_command_writes_what_one_process_writes(void **state) {
    (void)state;
    train_good("run=run stop_at=2");
    ProcessResult alone = smelt("generate run the tokens=40 seed=3 device=cpu");
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        ProcessResult shared = launched(ranks, "generate run the tokens=40 seed=3");
        expect_code(&shared, 0, "generate");
        assert_string_equal(shared.output, alone.output);
        process_free(&shared);
    }
    process_free(&alone);
    assert_int_equal(system("test \"$(printf the | $SMELT launch -n 2 self_test=false -- generate run - tokens=0 device=cpu)\" = the"), 0);
    launched_says(ERROR_USAGE, "layout.cp=3 2 ranks: smelt launch -n 3 -- generate", 2, "generate run the layout.cp=3");
    smelt_says(ERROR_USAGE, "layout.cp=2 1 rank:", "generate run the layout.cp=2");
    smelt_says(ERROR_USAGE, "-n 2 -- generate ..., or remove layout.cp\n", "generate run the layout.cp=2");
    smelt_says(ERROR_USAGE, "model.kv_heads=1 layout.tp=1 layout.cp", "generate run the layout.tp=2 layout.cp=1");
    launched_says(ERROR_USAGE, "model.kv_heads=1: set layout.tp=1\n", 3, "generate run the layout.tp=2");
    launched_says(ERROR_USAGE, "model.heads=2 layout.tp=1", 3, "generate run the layout.tp=3");
    launched_says(ERROR_USAGE, "2 layout.cp = 4 length=31 length=28 32", 2, "eval run text layout.cp=2 length=31");
    ProcessResult wrong = launched(2, "generate run the text=false");
    expect_code(&wrong, ERROR_USAGE, "generate");
    assert_memory_equal(wrong.errors, "error: 'the' in the prompt is not a token id", 44);
    assert_null(strstr(wrong.errors, "closed its connection"));
    process_free(&wrong);
    launched_says(ERROR_USAGE, "cache=false", 2, "generate run the cache=false");
}

/* The record of an evaluation that was printed as JSON. */
static json_t *evaluation(const ProcessResult *result) {
    expect_code(result, 0, "eval");
    json_t *record = json_loads(result->output, 0, NULL);
    if (!record) fail_msg("not one record: %s", result->output);
    return record;
}

/* 37 sequences are 10 batches, of which three ranks take 4, 3 and 3. */
static void an_evaluation_by_ranks_is_that_of_one_process(void **state) {
    (void)state;
    static const struct {
        int ranks;
        const char *layout;
    } cases[] = {{2, ""}, {3, ""}, {2, "layout.tp=2"}, {2, "layout.cp=2"}, {4, "layout.cp=2"}, {4, "layout.tp=2 layout.cp=2"}};
    static const char words[] = "eval run text sequences=37 json=true";
    train_good("run=run stop_at=2 precision=fp32 model.kv_heads=2");
    ProcessResult alone = smelt(words);
    json_t *expected = evaluation(&alone);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED_FREE char *command = memory_format("%s %s", words, cases[i].layout);
        ProcessResult shared = launched(cases[i].ranks, command);
        json_t *record = evaluation(&shared);
        assert_int_equal(number(record, "tokens"), number(expected, "tokens"));
        /* Sums in another order are all that differs: 6e-8 each. */
        assert_true(fabs(number(record, "loss") - number(expected, "loss")) <= 1e-5 * number(expected, "loss"));
        assert_true(fabs(number(record, "bits_per_byte") - number(expected, "bits_per_byte")) <= 1e-5 * number(expected, "bits_per_byte"));
        json_decref(record);
        process_free(&shared);
    }
    json_decref(expected);
    process_free(&alone);
    launched_says(ERROR_USAGE, "layout.cp", 2, "eval run text length=31 layout.cp=2");
}

/* Generation goes on until the test ends it: the context takes minutes to fill, and the most probable token of this text
 * never ends a document, as one drawn at random does after a few hundred. */
#define ENDLESS "generate run the temperature=0 tokens=262144 device=cpu"
enum { LONG_CONTEXT = 262144 };

static void start_endless(Process ranks[2], const char *command) {
    int port = process_free_port();
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *words = memory_format(
            "RANK=%d LOCAL_RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s %s", i, i, port, getenv("SMELT"), command);
        ranks[i] = words_start("/usr/bin/env", words);
    }
}

static void lose_second(Process ranks[2]) {
    kill(ranks[1].id, SIGKILL);
    ProcessResult first = process_finish(&ranks[0]), second = process_finish(&ranks[1]);
    expect_code(&first, ERROR_COMMUNICATION, "rank 0");
    if (!strstr(first.errors, "rank 1")) fail_msg("%s", first.errors);
    assert_string_equal(second.output, "");
    process_free(&first);
    process_free(&second);
}

/* Layers whose outputs or inputs ranks divide, and with four ranks key heads that two of them hold. */
static void adapters_on_ranks_give_what_they_give_on_one(void **state) {
    (void)state;
#define SHORT \
    "data.train=text data.length=16 batch.sequences=2 batch.tokens=32 steps=8 schedule.warmup=0 eval.sample_tokens=0 " \
    "eval.every=0 optimizer.lr=0.1 tensorboard=false device=cpu threads=1 "
    smelt_good("train run=run model.family=llama model.width=32 model.ffn=64 model.heads=4 model.kv_heads=2 model.layers=2 "
               "model.context=100 model.tied=false " SHORT);
    smelt_good("train run=few lora.rank=3 lora.alpha=12 lora.targets=attention init=run " SHORT);
    smelt_good("train run=all lora.rank=9 lora.targets=all seed=2 init=run " SHORT);
    write_text("p.jsonl", "{\"prompt\": \"the\", \"adapter\": \"all\"}\n{\"prompt\": \"a\"}\n{\"prompt\": \"the\", \"adapter\": \"few\"}\n"
                          "{\"prompt\": \"the\"}\n");
#define ADAPTED "generate run p.jsonl adapters={\"few\":\"few\",\"all\":\"all\"} tokens=20 seed=3 precision=fp64 ids=true"
    ProcessResult alone = smelt(ADAPTED " device=cpu");
    expect_code(&alone, 0, ADAPTED);
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        SCOPED_FREE char *words = memory_format(ADAPTED " layout.tp=%d", ranks);
        ProcessResult shared = launched(ranks, words);
        expect_code(&shared, 0, words);
        assert_string_equal(shared.output, alone.output);
        process_free(&shared);
    }
    process_free(&alone);
}

static void a_lost_rank_ends_the_others(void **state) {
    (void)state;
    Process ranks[2];
    train_good("run=run stop_at=2 model.kv_heads=2 model.context=%d", LONG_CONTEXT);
    start_endless(ranks, ENDLESS);
    process_await_text(&ranks[0], "the", 1);
    lose_second(ranks);
    write_text("p.jsonl", "{\"prompt\": \"the\"}\n{\"prompt\": \"a\"}\n");
    start_endless(ranks, "generate run p.jsonl layout.tp=2 out=o.jsonl temperature=0 tokens=262144 device=cpu");
    WAIT_UNTIL(file_exists("o.jsonl") || process_has_ended(&ranks[0]), "generation did not begin");
    lose_second(ranks);
}

static void an_interrupt_ends_all_ranks(void **state) {
    (void)state;
    train_good("run=run stop_at=2 model.context=%d", LONG_CONTEXT);
    static const char words[] = "launch -n 2 self_test=false -- " ENDLESS;
    Process launcher = smelt_start(words);
    process_await_text(&launcher, "the", 1);
    kill(launcher.id, SIGINT);
    ProcessResult result = process_finish(&launcher);
    expect_code(&result, ERROR_PREEMPTED, words);
    process_free(&result);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "rank")) return run_rank(argv[2]);
    train_main();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_share_the_cache_give_the_logits_and_tokens_of_one),
        cmocka_unit_test(ranks_that_share_the_model_give_the_logits_and_tokens_of_one),
        cmocka_unit_test(an_engine_on_ranks_draws_the_tokens_of_one),
        cmocka_unit_test(what_a_token_sends_does_not_depend_on_the_context),
        EACH_ISA(TRAIN_TEST(the_command_writes_what_one_process_writes)),
        TRAIN_TEST(an_evaluation_by_ranks_is_that_of_one_process),
        TRAIN_TEST(adapters_on_ranks_give_what_they_give_on_one),
        TRAIN_TEST(a_lost_rank_ends_the_others),
        TRAIN_TEST(an_interrupt_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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

#include "comm/mesh.h"
#include "ops/attention/deal.h"
#include "support/generator_run.h"
#include "support/own_ranks.h"
#include "support/train_run.h"

/* Prompts end before, at and behind the ends of blocks of positions, and tokens are drawn past one. Four ranks have
 * blocks to spare at first, and two rounds of them at the end. */
static const int prompts[] = {1, DEAL_BLOCK - 4, DEAL_BLOCK, 2 * DEAL_BLOCK + 1, 5 * DEAL_BLOCK - 3};
enum { PROMPTS = sizeof prompts / sizeof *prompts, GENERATED = 8, POSITIONS = 6 * DEAL_BLOCK };

/* -- What ranks and one process do --------------------------------------------------------------------------------- */

/* The logits behind a prompt, and the tokens of greedy generation. */
typedef struct Outcome {
    double logits[BYTE_VOCABULARY];
    int32_t tokens[GENERATED];
} Outcome;

static Outcome generate(const Mesh *mesh, int family, int prompt, Precision precision) {
    Outcome outcome;
    OptionStrings strings = {0};
    Error error = {0};
    Config config = configure(&families[family], POSITIONS, &strings);
    Generator *generator = create(mesh, &config, precision, true);
    feed(generator, prompt);
    const double *logits = generator_logits(generator, &error);
    if (!logits) fail_msg("%s", error.message);
    memcpy(outcome.logits, logits, sizeof outcome.logits);
    for (int i = 0; i < GENERATED; i++)
        if (!generator_next(generator, &(Sampling){.top_p = 1}, BYTE_VOCABULARY, &outcome.tokens[i], &error)) fail_msg("%s", error.message);
    generator_free(generator);
    options_free_strings(&strings);
    return outcome;
}

static Mesh open_mesh(Comm *comm) {
    Error error = {0};
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_CP] = comm_size(comm);
    mesh.at[AXIS_CP] = comm_rank(comm);
    if (!mesh_open(&mesh, comm, (MeshAxes[]){MESH(AXIS_CP)}, 1, &error)) fail_msg("%s", error.message);
    return mesh;
}

/* Bytes that this rank sends for the token at a position. */
static int64_t token_bytes(const Mesh *mesh, int position) {
    OptionStrings strings = {0};
    Error error = {0};
    int32_t token;
    Config config = configure(&families[0], POSITIONS, &strings);
    Generator *generator = create(mesh, &config, PRECISION_FP32, true);
    feed(generator, position);
    assert_non_null(generator_logits(generator, &error));
    int64_t before = comm_totals(mesh->all).bytes;
    assert_true(generator_next(generator, &(Sampling){.top_p = 1}, BYTE_VOCABULARY, &token, &error));
    assert_non_null(generator_logits(generator, &error));
    int64_t bytes = comm_totals(mesh->all).bytes - before;
    generator_free(generator);
    options_free_strings(&strings);
    return bytes;
}

static int run_rank(const char *role) {
    Error error = {0};
    Comm *comm = comm_open(NULL, &error);
    if (!comm) fail_msg("%s", error.message);
    Mesh mesh = open_mesh(comm);
    if (!strcmp(role, "bytes"))
        printf("%lld %lld %lld\n", (long long)token_bytes(&mesh, 3), (long long)token_bytes(&mesh, 100),
            (long long)token_bytes(&mesh, POSITIONS - 2));
    for (int i = 0; i < FAMILIES * PROMPTS && strcmp(role, "bytes"); i++) {
        Outcome outcome = generate(&mesh, i / PROMPTS, prompts[i % PROMPTS], strcmp(role, "fp64") ? PRECISION_FP32 : PRECISION_FP64);
        for (int j = 0; j < BYTE_VOCABULARY; j++) printf("%a ", outcome.logits[j]);
        for (int j = 0; j < GENERATED; j++) printf("%d ", outcome.tokens[j]);
    }
    mesh_close(&mesh);
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

static void compare(const Outcome *shared, const Outcome *alone, double tolerance, int size, int family, int prompt) {
    double most = 0;
    for (int i = 0; i < BYTE_VOCABULARY; i++) most = fmax(most, fabs(alone->logits[i]));
    for (int i = 0; i < BYTE_VOCABULARY; i++)
        if (!(fabs(shared->logits[i] - alone->logits[i]) <= tolerance * most))
            fail_msg("%s, prompt of %d: logit %d is %.9g on %d ranks, %.9g on one", families[family].name, prompt, i, shared->logits[i],
                size, alone->logits[i]);
    for (int i = 0; i < GENERATED; i++)
        if (shared->tokens[i] != alone->tokens[i])
            fail_msg("%s, prompt of %d: token %d is %d on %d ranks, %d on one", families[family].name, prompt, i, shared->tokens[i], size,
                alone->tokens[i]);
}

static void expect_one_process(int size, const char *role, Precision precision, double tolerance) {
    Ranks ranks;
    start_ranks(&ranks, size, role);
    finish_ranks(&ranks);
    for (int i = 0; i < size; i++) {
        if (ranks.results[i].code != 0) fail_msg("rank %d of %d: %s", i, size, ranks.results[i].errors);
        assert_string_equal(ranks.results[i].output, ranks.results[0].output); /* to the bit */
    }
    char *text = ranks.results[0].output;
    for (int i = 0; i < FAMILIES * PROMPTS; i++) {
        Outcome shared = read_outcome(&text), alone = generate(NULL, i / PROMPTS, prompts[i % PROMPTS], precision);
        compare(&shared, &alone, tolerance, size, i / PROMPTS, prompts[i % PROMPTS]);
    }
    free_ranks(&ranks);
}

/* Only the order of sums differs: 6e-8 each in fp32, over a few hundred terms and three layers. */
static void two_ranks_give_the_logits_and_tokens_of_one(void **state) {
    (void)state;
    expect_one_process(2, "fp32", PRECISION_FP32, 1e-5);
}

/* In doubles that is far above rounding and far below any mistake. */
static void four_ranks_give_the_logits_and_tokens_of_one(void **state) {
    (void)state;
    expect_one_process(4, "fp64", PRECISION_FP64, 1e-10);
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
    if (!strstr(result.errors, fragment)) fail_msg("no '%s' in: %s", fragment, result.errors);
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
    launched_says(ERROR_USAGE, "layout.cp=3 and 2 ranks: start it as smelt launch -n 3 -- generate", 2, "generate run the layout.cp=3");
    smelt_says(ERROR_USAGE, "layout.cp=2 and 1 rank:", "generate run the layout.cp=2");
    launched_says(ERROR_USAGE, "cache=false is for one process", 2, "generate run the cache=false");
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
    static const char words[] = "eval run text sequences=37 json=true";
    train_good("run=run stop_at=2");
    ProcessResult alone = smelt(words);
    json_t *expected = evaluation(&alone);
    for (int ranks = 2; ranks <= 3; ranks++) {
        ProcessResult shared = launched(ranks, words);
        json_t *record = evaluation(&shared);
        assert_int_equal(number(record, "tokens"), number(expected, "tokens"));
        /* bf16 rows give the same bits in any batch; sums of batches are in double. */
        assert_true(fabs(number(record, "loss") - number(expected, "loss")) <= 1e-6 * number(expected, "loss"));
        assert_true(fabs(number(record, "bits_per_byte") - number(expected, "bits_per_byte")) <= 1e-6 * number(expected, "bits_per_byte"));
        json_decref(record);
        process_free(&shared);
    }
    json_decref(expected);
    process_free(&alone);
}

enum { LONG_CONTEXT = 1 << 18 /* generation goes on until it is ended */ };

static void a_lost_rank_ends_the_others(void **state) {
    (void)state;
    Process ranks[2];
    int port = process_free_port();
    train_good("run=run stop_at=2 model.context=%d", LONG_CONTEXT);
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *words = memory_format(
            "RANK=%d LOCAL_RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s generate run the tokens=%d device=cpu", i, i, port,
            getenv("SMELT"), LONG_CONTEXT);
        ranks[i] = words_start("/usr/bin/env", words);
    }
    process_await_text(&ranks[0], "the", 1);
    kill(ranks[1].id, SIGKILL);
    ProcessResult first = process_finish(&ranks[0]), second = process_finish(&ranks[1]);
    expect_code(&first, ERROR_COMMUNICATION, "rank 0");
    if (!strstr(first.errors, "rank 1")) fail_msg("%s", first.errors);
    assert_string_equal(second.output, "");
    process_free(&first);
    process_free(&second);
}

static void an_interrupt_ends_all_ranks(void **state) {
    (void)state;
    train_good("run=run stop_at=2 model.context=%d", LONG_CONTEXT);
    SCOPED_FREE char *words = memory_format("launch -n 2 self_test=false -- generate run the tokens=%d device=cpu", LONG_CONTEXT);
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
        cmocka_unit_test(two_ranks_give_the_logits_and_tokens_of_one),
        cmocka_unit_test(four_ranks_give_the_logits_and_tokens_of_one),
        cmocka_unit_test(what_a_token_sends_does_not_depend_on_the_context),
        TRAIN_TEST(the_command_writes_what_one_process_writes),
        TRAIN_TEST(an_evaluation_by_ranks_is_that_of_one_process),
        TRAIN_TEST(a_lost_rank_ends_the_others),
        TRAIN_TEST(an_interrupt_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

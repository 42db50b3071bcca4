/* Context parallelism: sequences of packed documents, shared out over real ranks under mpirun, against one process. */
#include "support/data_files.h"
#include "support/ranks_run.h"

#include "data/shard_writer_internal.h"

/* -- Documents ----------------------------------------------------------------------------------------------------- */

enum { LENGTH = 32, MOST_DOCUMENTS = 8, VOCABULARY = 64 };

/* Lengths of the documents of sequences, 0 at the end of each: chunks have 8 tokens with two ranks and 4 with four, and
 * documents begin at, one and two tokens before and after their edges, and go on over one, several and all. */
static const int documents[][MOST_DOCUMENTS] = {{8, 8, 8, 8}, {7, 9, 7, 9}, {6, 3, 15, 1, 7}, {9, 7, 10, 6}, {32}, {1, 31}, {2, 30},
    {31, 1}, {17, 15}, {15, 17}, {16, 16}, {4, 1, 3, 1, 14, 2, 7}, {3, 9, 11, 9}, {5, 5, 5, 5, 12}};
enum { SEQUENCES = sizeof documents / sizeof *documents };

/* A shard whose documents lie so in its samples. Tokens follow from the one before, so that there is something to learn. */
static bool write_documents(const char *path, int sequences) {
    Error error = {0};
    ShardWriter *writer = shard_writer_open(path, 2, &error);
    int32_t tokens[LENGTH], token = 1;
    bool done = writer != NULL;
    for (int i = 0; i < sequences; i++)
        for (int j = 0; done && j < MOST_DOCUMENTS && documents[i % SEQUENCES][j]; j++) {
            for (int t = 0; t < documents[i % SEQUENCES][j]; t++) {
                uint32_t drawn = rng_bits(5, (uint64_t)i, (uint64_t)(j * LENGTH + t)).word[0];
                tokens[t] = token = (int32_t)(drawn % 4 ? (uint32_t)token * 5 + 3 : drawn / 4) % VOCABULARY;
            }
            done = shard_writer_document(writer, tokens, documents[i % SEQUENCES][j], &error);
        }
    return done && shard_writer_finish(writer, &error);
}

static int setup(void **state) {
    return enter_folder(state) == 0 && write_documents("tokens", 100) && write_documents("valid", 2 * SEQUENCES) ? 0 : -1;
}

#define CONTEXT_TEST(test) cmocka_unit_test_setup_teardown(test, setup, leave_folder)

/* -- Against one process ------------------------------------------------------------------------------------------- */

#define DATA "data.train=tokens data.tokenizer=none model.vocabulary=64 data.length=32 batch.sequences=2 batch.tokens=128 data.valid=valid "
#define TEN_STEPS "checkpoint.every=10 checkpoint.keep=100 "

static void check_model(const char *model) {
    if (!has_mpi()) skip();
    train_ranks(0, DATA TEN_STEPS "%s run=one", model);
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        char run[16];
        snprintf(run, sizeof run, "cp%d", ranks);
        const char *exchange = ranks == 2 ? "gather" : "ring";
        train_ranks(ranks, DATA TEN_STEPS "layout.cp=%d layout.cp_exchange=%s %s run=%s", ranks, exchange, model, run);
        assert_same_losses(run, "one");
        assert_same_momentum(run, "one");
    }
}

static void llama_learns_the_same(void **state) {
    (void)state;
    check_model("model.family=llama model.experts=0 model.heads=4 model.kv_heads=2");
}

static void mpt_with_alibi_learns_the_same(void **state) {
    (void)state;
    check_model("model.family=mpt model.experts=0 model.heads=2 model.kv_heads=2");
}

/* The load-balancing loss multiplies loads of all ranks. */
static void mixtral_learns_the_same(void **state) {
    (void)state;
    check_model("model.family=llama model.experts=4 model.experts_per_token=2 model.auxiliary_loss=0.01");
}

static void zaya_learns_the_same(void **state) {
    (void)state;
    check_model("");
}

static void the_same_layout_gives_the_same_bits(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    for (int i = 0; i < 2; i++)
        train_ranks(2, DATA "layout.cp=2 precision=bf16 layout.zero=%d optimizer.name=muon run=%s", 3, i ? "two" : "one");
    assert_same_steps("one", "two");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CONTEXT_TEST(llama_learns_the_same),
        CONTEXT_TEST(mpt_with_alibi_learns_the_same),
        CONTEXT_TEST(mixtral_learns_the_same),
        CONTEXT_TEST(zaya_learns_the_same),
        CONTEXT_TEST(the_same_layout_gives_the_same_bits),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

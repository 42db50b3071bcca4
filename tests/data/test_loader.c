/* Tests of batches: their contents, their order, resuming and closing. Each test runs in a temporary folder of its own;
 * run by `make test`. */
#include "support/data_files.h"

#include "base/rng.h"

/* Tokens 0, 1, 2, ... in documents of the given lengths. */
static ShardSet counting_set(const int64_t *lengths, int64_t documents) {
    int64_t total = 0;
    for (int64_t i = 0; i < documents; i++) total += lengths[i];
    int32_t *tokens = memory_allocate((size_t)total * sizeof *tokens);
    for (int64_t i = 0; i < total; i++) tokens[i] = (int32_t)i;
    write_shard("c", 4, tokens, lengths, documents);
    free(tokens);
    return open_set("c");
}

static Loader *open_loader(const LoaderOptions *options, int64_t first) {
    Error error = {0};
    Loader *loader = loader_open(options, first, &error);
    if (!loader) fail_msg("%s", error.message);
    return loader;
}

static const Batch *next_batch(Loader *loader) {
    Error error = {0};
    const Batch *batch = loader_next(loader, &error);
    if (!batch) fail_msg("%s", error.message);
    return batch;
}

static void samples_follow_one_another_and_share_the_token_at_their_border(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){13}, 1);
    LoaderOptions options = {.set = &set, .sequences = 2, .length = 4, .vocabulary = 13, .separator = -1};
    Loader *loader = open_loader(&options, 0);
    assert_int_equal(loader_samples(loader), 3);
    const Batch *batch = next_batch(loader);
    assert_int_equal(batch->first_sample, 0);
    assert_memory_equal(batch->tokens, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}), 32);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}), 32);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 3, 0, 1, 2, 3}), 32);
    batch = next_batch(loader);
    assert_int_equal(batch->first_sample, 2);
    assert_memory_equal(batch->tokens, ((const int32_t[]){8, 9, 10, 11, 0, 1, 2, 3}), 32); /* the second epoch begins */
    assert_memory_equal(batch->targets, ((const int32_t[]){9, 10, 11, 12, 1, 2, 3, 4}), 32);
    loader_close(loader);
    shard_set_close(&set);
}

static void the_number_of_samples_counts_the_last_target(void **state) {
    (void)state;
    static const struct { int64_t tokens, samples; } cases[] = {{5, 1}, {8, 1}, {9, 2}, {12, 2}, {13, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ShardSet set = counting_set(&cases[i].tokens, 1);
        LoaderOptions options = {.set = &set, .sequences = 1, .length = 4, .vocabulary = 100, .separator = -1};
        Loader *loader = open_loader(&options, 0);
        assert_int_equal(loader_samples(loader), cases[i].samples);
        loader_close(loader);
        shard_set_close(&set);
    }
}

static void positions_restart_at_documents_and_their_last_token_has_no_target(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){3, 1, 1, 0, 2, 6}, 6);
    LoaderOptions options = {.set = &set, .sequences = 2, .length = 6, .vocabulary = 13, .separator = -1, .document_mask = true};
    Loader *loader = open_loader(&options, 0);
    const Batch *batch = next_batch(loader);
    assert_memory_equal(batch->tokens, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 48);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, -1, -1, -1, 6, -1, 8, 9, 10, 11, 12}), 48);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 0, 0, 0, 0, 0, 1, 2, 3, 4}), 48);
    loader_close(loader);
    shard_set_close(&set);
}

static void without_a_document_mask_boundaries_do_not_matter(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){1, 1, 3, 2}, 4);
    LoaderOptions options = {.set = &set, .sequences = 1, .length = 6, .vocabulary = 7, .separator = 3};
    Loader *loader = open_loader(&options, 0);
    const Batch *batch = next_batch(loader);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, 3, 4, 5, 6}), 24);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 3, 4, 5}), 24);
    loader_close(loader);
    shard_set_close(&set);
}

static void a_separator_inside_a_document_ends_it_too(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 9, 9, 2, 3, 9, 4};
    write_shard("c", 1, tokens, (const int64_t[]){7}, 1);
    ShardSet set = open_set("c");
    LoaderOptions options = {.set = &set, .sequences = 1, .length = 6, .vocabulary = 10, .separator = 9, .document_mask = true};
    Loader *loader = open_loader(&options, 0);
    const Batch *batch = next_batch(loader);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 0, 0, 1, 2}), 24);
    assert_memory_equal(batch->targets, ((const int32_t[]){9, -1, -1, 3, 9, -1}), 24);
    loader_close(loader);
    shard_set_close(&set);
}

/* Every value of a batch against the definition, token by token, over documents of 0 to 8 tokens. */
static void batches_agree_with_the_definition_for_random_documents(void **state) {
    (void)state;
    enum { DOCUMENTS = 200, SEQUENCES = 3 };
    int64_t lengths[DOCUMENTS], total = 0;
    int64_t ends_at[DOCUMENTS * 8 + 1]; /* whether a document ends behind a token */
    memset(ends_at, 0, sizeof ends_at);
    for (int i = 0; i < DOCUMENTS; i++) {
        lengths[i] = rng_bits(5, 99, (uint64_t)i).word[0] % 9;
        total += lengths[i];
        if (total > 0) ends_at[total - 1] = 1;
    }
    ShardSet set = counting_set(lengths, DOCUMENTS);
    for (int64_t length = 1; length <= 40; length += 3) {
        LoaderOptions options = {.set = &set,
            .sequences = SEQUENCES,
            .length = length,
            .vocabulary = (int32_t)total,
            .separator = -1,
            .document_mask = true,
            .shuffle = true,
            .seed = (uint64_t)length};
        Loader *loader = open_loader(&options, 0);
        for (int64_t step = 0; step < 8; step++) {
            const Batch *batch = next_batch(loader);
            for (int64_t i = 0; i < SEQUENCES * length; i++) {
                int64_t draw = step * SEQUENCES + i / length;
                int64_t start = loader_sample_index(options.seed, true, draw, loader_samples(loader)) * length;
                int64_t token = start + i % length, first = token;
                while (first > start && !ends_at[first - 1]) first--;
                assert_int_equal(batch->tokens[i], token);
                assert_int_equal(batch->targets[i], ends_at[token] ? -1 : token + 1);
                assert_int_equal(batch->positions[i], token - first);
            }
        }
        loader_close(loader);
    }
    shard_set_close(&set);
}

static void every_epoch_visits_every_sample_once_in_an_order_of_its_own(void **state) {
    (void)state;
    for (int64_t samples = 1; samples <= 200; samples += 7) {
        int64_t order[2][200];
        for (int64_t epoch = 0; epoch < 2; epoch++) {
            bool seen[200] = {false};
            for (int64_t i = 0; i < samples; i++) {
                int64_t sample = loader_sample_index(11, true, epoch * samples + i, samples);
                assert_in_range(sample, 0, samples - 1);
                assert_false(seen[sample]);
                seen[sample] = true;
                order[epoch][i] = sample;
            }
        }
        if (samples > 20) assert_memory_not_equal(order[0], order[1], (size_t)samples * sizeof(int64_t));
    }
}

static void the_order_depends_on_the_seed_and_without_a_shuffle_on_nothing(void **state) {
    (void)state;
    int differences = 0;
    for (int64_t draw = 0; draw < 100; draw++) {
        int64_t sample = loader_sample_index(1, true, draw, 100);
        assert_int_equal(sample, loader_sample_index(1, true, draw, 100));
        differences += sample != loader_sample_index(2, true, draw, 100);
        assert_int_equal(loader_sample_index(1, false, draw + 300, 100), draw);
    }
    assert_true(differences > 80); /* two random orders of 100 agree at about one place */
    assert_in_range(loader_sample_index(1, true, INT64_MAX, INT64_MAX / 3), 0, INT64_MAX / 3 - 1);
}

static void resuming_at_any_draw_gives_the_same_batches(void **state) {
    (void)state;
    enum { SEQUENCES = 3, LENGTH = 5, STEPS = 12, VALUES = SEQUENCES * LENGTH };
    ShardSet set = counting_set((const int64_t[]){17, 30, 14}, 3);
    LoaderOptions options = {.set = &set,
        .sequences = SEQUENCES,
        .length = LENGTH,
        .vocabulary = 61,
        .separator = -1,
        .document_mask = true,
        .shuffle = true,
        .seed = 3};
    int32_t tokens[STEPS][VALUES], targets[STEPS][VALUES], positions[STEPS][VALUES];
    Loader *loader = open_loader(&options, 0);
    for (int step = 0; step < STEPS; step++) {
        const Batch *batch = next_batch(loader);
        memcpy(tokens[step], batch->tokens, sizeof *tokens);
        memcpy(targets[step], batch->targets, sizeof *targets);
        memcpy(positions[step], batch->positions, sizeof *positions);
    }
    loader_close(loader);
    for (int64_t first = 0; first < STEPS * SEQUENCES; first++) { /* between batches too: the microbatch may have changed */
        LoaderOptions single = options;
        single.sequences = 1;
        loader = open_loader(&single, first);
        for (int64_t draw = first; draw < STEPS * SEQUENCES; draw++) {
            const Batch *batch = next_batch(loader);
            size_t row = (size_t)(draw % SEQUENCES) * LENGTH;
            assert_int_equal(batch->first_sample, draw);
            assert_memory_equal(batch->tokens, tokens[draw / SEQUENCES] + row, LENGTH * 4);
            assert_memory_equal(batch->targets, targets[draw / SEQUENCES] + row, LENGTH * 4);
            assert_memory_equal(batch->positions, positions[draw / SEQUENCES] + row, LENGTH * 4);
        }
        loader_close(loader);
    }
    shard_set_close(&set);
}

static void a_loader_closes_at_any_moment(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){5000}, 1);
    LoaderOptions options = {.set = &set, .sequences = 8, .length = 64, .vocabulary = 5000, .separator = -1, .shuffle = true};
    for (int round = 0; round < 200; round++) {
        Loader *loader = open_loader(&options, round);
        for (int step = 0; step < round % 11; step++) assert_non_null(next_batch(loader));
        if (round % 3 == 0) usleep((useconds_t)(round * 10));
        loader_close(loader);
    }
    loader_close(NULL);
    shard_set_close(&set);
}

static void a_batch_stays_as_it_is_while_it_is_held(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){4097}, 1);
    LoaderOptions options = {.set = &set, .sequences = 1, .length = 4, .vocabulary = 4097, .separator = -1};
    Loader *loader = open_loader(&options, 0);
    for (int step = 0; step < 6; step++) {
        const Batch *batch = next_batch(loader);
        usleep(5000); /* the thread runs into the end of the ring meanwhile */
        for (int i = 0; i < 4; i++) assert_int_equal(batch->tokens[i], step * 4 + i);
    }
    loader_close(loader);
    shard_set_close(&set);
}

static void assert_loader_fails(const LoaderOptions *options, int64_t first, ErrorCode code, const char *part) {
    Error error = {0};
    assert_null(loader_open(options, first, &error));
    assert_int_equal(error.code, code);
    if (!strstr(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

static void a_corpus_shorter_than_a_sequence_is_bad_data(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){8}, 1);
    LoaderOptions options = {.set = &set, .sequences = 1, .length = 8, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_DATA, "c has 8 tokens but one sequence of 8 needs 9");
    shard_set_close(&set);
}

static void a_token_outside_the_vocabulary_is_bad_data_with_its_value(void **state) {
    (void)state;
    write_shard("c", 2, (const int32_t[]){1, 2, 300, 4, 500}, (const int64_t[]){5}, 1);
    ShardSet set = open_set("c");
    LoaderOptions options = {.set = &set, .sequences = 1, .length = 2, .vocabulary = 300, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_DATA, "c has tokens up to 500 but the vocabulary has 300");
    options.vocabulary = 501;
    loader_close(open_loader(&options, 0));
    shard_set_close(&set);
}

static void senseless_batches_and_cursors_are_usage_errors(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){8}, 1);
    LoaderOptions options = {.set = &set, .sequences = 0, .length = 2, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_USAGE, "0 sequences");
    options.sequences = INT64_MAX;
    assert_loader_fails(&options, 0, ERROR_USAGE, "does not fit");
    options = (LoaderOptions){.set = &set, .sequences = 1, .length = 0, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_USAGE, "0 tokens");
    options.length = 2;
    assert_loader_fails(&options, -1, ERROR_USAGE, "-1");
    assert_loader_fails(&options, INT64_MAX, ERROR_USAGE, "cursor");
    shard_set_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(samples_follow_one_another_and_share_the_token_at_their_border),
        IN_FOLDER(the_number_of_samples_counts_the_last_target),
        IN_FOLDER(positions_restart_at_documents_and_their_last_token_has_no_target),
        IN_FOLDER(without_a_document_mask_boundaries_do_not_matter),
        IN_FOLDER(a_separator_inside_a_document_ends_it_too),
        IN_FOLDER(batches_agree_with_the_definition_for_random_documents),
        IN_FOLDER(every_epoch_visits_every_sample_once_in_an_order_of_its_own),
        IN_FOLDER(the_order_depends_on_the_seed_and_without_a_shuffle_on_nothing),
        IN_FOLDER(resuming_at_any_draw_gives_the_same_batches),
        IN_FOLDER(a_loader_closes_at_any_moment),
        IN_FOLDER(a_batch_stays_as_it_is_while_it_is_held),
        IN_FOLDER(a_corpus_shorter_than_a_sequence_is_bad_data),
        IN_FOLDER(a_token_outside_the_vocabulary_is_bad_data_with_its_value),
        IN_FOLDER(senseless_batches_and_cursors_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tests of batches: their contents, their order, resuming and closing. Each test runs in a temporary folder of its own;
 * run by `make test`. */
#include "support/data_files.h"

#include "base/rng.h"
#include "base/scope.h"
#include "data/loader.h"
#include "support/mentions.h"

/* Batches of one source in one phase. */
typedef struct Reading {
    const ShardSet *set;
    const BinPlan *bins;
    int64_t sequences, length;
    int32_t vocabulary, separator;
    bool document_mask, shuffle;
    uint64_t seed;
    Order *order;
    Loader *loader;
} Reading;

static void close_reading(Reading *reading) {
    loader_close(reading->loader);
    order_free(reading->order);
}

static bool try_reading(Reading *reading, int64_t first, Error *error) {
    LoaderSource source = {reading->set, reading->bins};
    int64_t inputs = reading->bins ? reading->bins->bins * reading->length : reading->set->token_count - 1;
    reading->order = order_of_one(reading->seed, reading->shuffle, reading->set->path, inputs, reading->length, error);
    LoaderOptions options = {.order = reading->order,
        .sources = &source,
        .sequences = reading->sequences,
        .vocabulary = reading->vocabulary,
        .separator = reading->separator,
        .document_mask = reading->document_mask};
    reading->loader = reading->order ? loader_open(&options, first, error) : NULL;
    return reading->loader;
}

static Loader *open_reading(Reading *reading, int64_t first) {
    Error error = {0};
    if (!try_reading(reading, first, &error)) fail_msg("%s", error.message);
    return reading->loader;
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
    Reading reading = {.set = &set, .sequences = 2, .length = 4, .vocabulary = 13, .separator = -1};
    Loader *loader = open_reading(&reading, 0);
    const Batch *batch = next_batch(loader);
    assert_int_equal(batch->first_sample, 0);
    assert_memory_equal(batch->tokens, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}), 32);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}), 32);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 3, 0, 1, 2, 3}), 32);
    batch = next_batch(loader);
    assert_int_equal(batch->first_sample, 2);
    assert_memory_equal(batch->tokens, ((const int32_t[]){8, 9, 10, 11, 0, 1, 2, 3}), 32); /* the second epoch begins */
    assert_memory_equal(batch->targets, ((const int32_t[]){9, 10, 11, 12, 1, 2, 3, 4}), 32);
    close_reading(&reading);
    shard_set_close(&set);
}

static void the_tail_of_a_corpus_is_padded(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){11}, 1);
    Reading reading = {.set = &set, .sequences = 3, .length = 4, .vocabulary = 11, .separator = -1, .document_mask = true};
    Loader *loader = open_reading(&reading, 0);
    assert_int_equal(order_sequences(set.token_count, 4), 3);
    const Batch *batch = next_batch(loader);
    assert_memory_equal(batch->tokens, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0}), 48);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1, -1}), 48);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 0}), 48);
    close_reading(&reading);
    shard_set_close(&set);
}

static void an_epoch_ends_with_the_last_target(void **state) {
    (void)state;
    static const struct { int64_t tokens, sequences; } cases[] = {{2, 1}, {5, 1}, {6, 2}, {9, 2}, {10, 3}, {13, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_int_equal(order_sequences(cases[i].tokens, 4), cases[i].sequences);
}

static void positions_restart_at_documents_and_their_last_token_has_no_target(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){3, 1, 1, 0, 2, 6}, 6);
    Reading reading = {.set = &set, .sequences = 2, .length = 6, .vocabulary = 13, .separator = -1, .document_mask = true};
    Loader *loader = open_reading(&reading, 0);
    const Batch *batch = next_batch(loader);
    assert_memory_equal(batch->tokens, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 48);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, -1, -1, -1, 6, -1, 8, 9, 10, 11, 12}), 48);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 0, 0, 0, 0, 0, 1, 2, 3, 4}), 48);
    close_reading(&reading);
    shard_set_close(&set);
}

static void without_a_document_mask_boundaries_do_not_matter(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){1, 1, 3, 2}, 4);
    Reading reading = {.set = &set, .sequences = 1, .length = 6, .vocabulary = 7, .separator = 3};
    Loader *loader = open_reading(&reading, 0);
    const Batch *batch = next_batch(loader);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, 3, 4, 5, 6}), 24);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 3, 4, 5}), 24);
    close_reading(&reading);
    shard_set_close(&set);
}

static void a_separator_inside_a_document_ends_it_too(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 9, 9, 2, 3, 9, 4};
    write_shard("c", 1, tokens, (const int64_t[]){7}, 1);
    ShardSet set = open_set("c");
    Reading reading = {.set = &set, .sequences = 1, .length = 6, .vocabulary = 10, .separator = 9, .document_mask = true};
    Loader *loader = open_reading(&reading, 0);
    const Batch *batch = next_batch(loader);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 0, 0, 1, 2}), 24);
    assert_memory_equal(batch->targets, ((const int32_t[]){9, -1, -1, 3, 9, -1}), 24);
    close_reading(&reading);
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
        Reading reading = {.set = &set,
            .sequences = SEQUENCES,
            .length = length,
            .vocabulary = (int32_t)total,
            .separator = -1,
            .document_mask = true,
            .shuffle = true,
            .seed = (uint64_t)length};
        Loader *loader = open_reading(&reading, 0);
        for (int64_t step = 0; step < 8; step++) {
            const Batch *batch = next_batch(loader);
            for (int64_t i = 0; i < SEQUENCES * length; i++) {
                Draw draw = order_draw(reading.order, step * SEQUENCES + i / length);
                int64_t start = draw.start, token = start + i % length, first = token;
                if (i % length >= draw.count) {
                    assert_true(batch->tokens[i] == 0 && batch->targets[i] == -1 && batch->positions[i] == 0);
                    continue;
                }
                while (first > start && !ends_at[first - 1]) first--;
                assert_int_equal(batch->tokens[i], token);
                assert_int_equal(batch->targets[i], ends_at[token] ? -1 : token + 1);
                assert_int_equal(batch->positions[i], token - first);
            }
        }
        close_reading(&reading);
    }
    shard_set_close(&set);
}

static void resuming_at_any_draw_gives_the_same_batches(void **state) {
    (void)state;
    enum { SEQUENCES = 3, LENGTH = 5, STEPS = 12, VALUES = SEQUENCES * LENGTH };
    ShardSet set = counting_set((const int64_t[]){17, 30, 14}, 3);
    Reading reading = {.set = &set,
        .sequences = SEQUENCES,
        .length = LENGTH,
        .vocabulary = 61,
        .separator = -1,
        .document_mask = true,
        .shuffle = true,
        .seed = 3};
    int32_t tokens[STEPS][VALUES], targets[STEPS][VALUES], positions[STEPS][VALUES];
    Loader *loader = open_reading(&reading, 0);
    for (int step = 0; step < STEPS; step++) {
        const Batch *batch = next_batch(loader);
        memcpy(tokens[step], batch->tokens, sizeof *tokens);
        memcpy(targets[step], batch->targets, sizeof *targets);
        memcpy(positions[step], batch->positions, sizeof *positions);
    }
    close_reading(&reading);
    for (int64_t first = 0; first < STEPS * SEQUENCES; first++) { /* between batches too: the microbatch may have changed */
        Reading single = reading;
        single.sequences = 1;
        loader = open_reading(&single, first);
        for (int64_t draw = first; draw < STEPS * SEQUENCES; draw++) {
            const Batch *batch = next_batch(loader);
            size_t row = (size_t)(draw % SEQUENCES) * LENGTH;
            assert_int_equal(batch->first_sample, draw);
            assert_memory_equal(batch->tokens, tokens[draw / SEQUENCES] + row, LENGTH * 4);
            assert_memory_equal(batch->targets, targets[draw / SEQUENCES] + row, LENGTH * 4);
            assert_memory_equal(batch->positions, positions[draw / SEQUENCES] + row, LENGTH * 4);
        }
        close_reading(&single);
    }
    shard_set_close(&set);
}

/* Two sources, whose tokens begin at 0 and at 1,000, in two phases of different lengths. */
typedef struct Mixed {
    ShardSet sets[2];
    LoaderSource sources[2];
    Order *order;
} Mixed;

static Mixed open_mixed(int64_t samples) {
    int32_t tokens[500];
    Mixed mixed;
    Error error = {0};
    for (int source = 0; source < 2; source++) {
        for (int i = 0; i < 500; i++) tokens[i] = source * 1000 + i;
        write_shard(source ? "b" : "a", source ? 4 : 2, tokens, (const int64_t[]){200, 300}, 2);
        mixed.sets[source] = open_set(source ? "b" : "a");
    }
    OrderPhase phases[] = {{"short", samples, 4, (const double[]){1, 3}}, {"long", samples, 8, (const double[]){1, 1}}};
    OrderOptions options = {.seed = 4,
        .shuffle = true,
        .source_count = 2,
        .phase_count = 2,
        .inputs = (const int64_t[]){499, 499},
        .names = (const char *const[]){"a", "b"},
        .phases = phases};
    mixed.order = order_create(&options, &error);
    assert_non_null(mixed.order);
    return mixed;
}

static Loader *open_phase(Mixed *mixed, int phase, int64_t sequences) {
    Error error = {0};
    for (int i = 0; i < 2; i++) mixed->sources[i] = (LoaderSource){.set = &mixed->sets[i]};
    LoaderOptions options = {
        .order = mixed->order, .phase = phase, .sources = mixed->sources, .sequences = sequences, .vocabulary = 2000, .separator = -1};
    Loader *loader = loader_open(&options, order_phase_start(mixed->order, phase), &error);
    assert_non_null(loader);
    return loader;
}

static void close_mixed(Mixed *mixed) {
    order_free(mixed->order);
    for (int i = 0; i < 2; i++) shard_set_close(&mixed->sets[i]);
}

static void sources_and_phases_come_as_the_order_says(void **state) {
    (void)state;
    enum { SAMPLES = 60, SEQUENCES = 5 };
    Mixed mixed = open_mixed(SAMPLES);
    for (int phase = 0; phase < 2; phase++) {
        Loader *loader = open_phase(&mixed, phase, SEQUENCES);
        int64_t length = phase ? 8 : 4, from[2] = {0};
        for (int64_t step = 0; step < SAMPLES / SEQUENCES; step++) {
            const Batch *batch = next_batch(loader);
            assert_int_equal(batch->first_sample, phase * SAMPLES + step * SEQUENCES);
            for (int64_t row = 0; row < SEQUENCES; row++) {
                Draw draw = order_draw(mixed.order, batch->first_sample + row);
                from[draw.source]++;
                for (int64_t i = 0; i < draw.count; i++) {
                    assert_int_equal(batch->tokens[row * length + i], draw.source * 1000 + draw.start + i);
                    assert_int_equal(batch->targets[row * length + i], draw.source * 1000 + draw.start + i + 1);
                }
            }
        }
        assert_int_equal(from[0], phase ? 30 : 15);
        loader_close(loader);
    }
    close_mixed(&mixed);
}

static void samples_behind_a_phase_are_padding(void **state) {
    (void)state;
    Mixed mixed = open_mixed(7);
    Loader *loader = open_phase(&mixed, 0, 5);
    next_batch(loader);
    const Batch *batch = next_batch(loader);
    for (int i = 0; i < 8; i++) assert_true(batch->targets[i] > 0);
    for (int i = 8; i < 20; i++) assert_int_equal(batch->targets[i], -1);
    loader_close(loader);
    close_mixed(&mixed);
}

/* A file that changes after it was opened. */
static void what_cannot_be_read_ends_the_batches_after_those_before(void **state) {
    (void)state;
    enum { LENGTH = 1024, COUNT = 16 * LENGTH, BLOCK = 4096 }; /* i32: a block of a checksum has 4096 tokens */
    ShardSet set = counting_set((const int64_t[]){COUNT}, 1);
    FILE *file = fopen("c.bin", "r+");
    assert_true(file && fseek(file, 4 * (2 * BLOCK + 30), SEEK_SET) == 0 && fputc(41, file) == 41 && fclose(file) == 0);
    Reading reading = {.set = &set, .sequences = 1, .length = LENGTH, .vocabulary = COUNT, .separator = -1};
    Loader *loader = open_reading(&reading, 0);
    Error error = {0};
    for (int i = 0; i < 7; i++) assert_non_null(loader_next(loader, &error));
    assert_null(loader_next(loader, &error));
    assert_int_equal(error.code, ERROR_DATA);
    assert_mentions(error.message, "c.bin 32768 36863");
    close_reading(&reading);
    shard_set_close(&set);
}

/* A shard of another program whose tokens, u16, are a hole in the file. */
static void write_hole(const char *prefix, int64_t tokens) {
    SCOPED_FREE char *path = memory_format("%s.bin", prefix);
    FILE *file = fopen(path, "w");
    assert_true(file && ftruncate(fileno(file), tokens * 2) == 0 && fclose(file) == 0);
    write_index(prefix, 8, tokens);
}

/* What the process has of its own, without pages of files. */
static int64_t own_bytes(void) {
    char text[4096];
    assert_true(file_read_start("/proc/self/status", text, sizeof text) > 0);
    const char *at = strstr(text, "RssAnon:");
    assert_non_null(at);
    return strtoll(at + strlen("RssAnon:"), NULL, 10) * 1024;
}

/* Opens a corpus, reads 2,000 samples anywhere in it, and returns how much more memory the process has meanwhile. */
static int64_t bytes_of_reading(const char *prefix) {
    int64_t before = own_bytes();
    ShardSet set;
    Error error = {0};
    assert_true(shard_set_open(&set, prefix, &error)); /* without verifying it, which would read all */
    Reading reading = {
        .set = &set, .sequences = 4, .length = 512, .vocabulary = 10, .separator = -1, .document_mask = true, .shuffle = true, .seed = 1};
    Loader *loader = open_reading(&reading, 0);
    for (int i = 0; i < 500; i++) assert_int_equal(next_batch(loader)->tokens[2047], 0);
    int64_t bytes = own_bytes() - before;
    close_reading(&reading);
    shard_set_close(&set);
    return bytes;
}

static void memory_does_not_grow_with_the_corpus(void **state) {
    (void)state;
    write_hole("small", 5000000);
    write_hole("large", 1ll << 39); /* 1 TiB */
    bytes_of_reading("small");      /* the first time, libraries and the allocator take theirs */
    int64_t small = bytes_of_reading("small"), large = bytes_of_reading("large");
    assert_in_range(large, 0, small + (1 << 20));
    assert_true(large < 4 << 20); /* the ring, and a thread */
}

static void a_loader_closes_at_any_moment(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){5000}, 1);
    Reading reading = {.set = &set, .sequences = 8, .length = 64, .vocabulary = 5000, .separator = -1, .shuffle = true};
    for (int round = 0; round < 200; round++) {
        Loader *loader = open_reading(&reading, round);
        for (int step = 0; step < round % 11; step++) assert_non_null(next_batch(loader));
        if (round % 3 == 0) usleep((useconds_t)(round * 10));
        close_reading(&reading);
    }
    loader_close(NULL);
    shard_set_close(&set);
}

static void a_batch_stays_as_it_is_while_it_is_held(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){4097}, 1);
    Reading reading = {.set = &set, .sequences = 1, .length = 4, .vocabulary = 4097, .separator = -1};
    Loader *loader = open_reading(&reading, 0);
    for (int step = 0; step < 6; step++) {
        const Batch *batch = next_batch(loader);
        usleep(5000); /* the thread runs into the end of the ring meanwhile */
        for (int i = 0; i < 4; i++) assert_int_equal(batch->tokens[i], step * 4 + i);
    }
    close_reading(&reading);
    shard_set_close(&set);
}

static void assert_loader_fails(Reading *reading, int64_t first, ErrorCode code, const char *part) {
    Error error = {0};
    assert_false(try_reading(reading, first, &error));
    order_free(reading->order);
    assert_int_equal(error.code, code);
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

static void a_corpus_shorter_than_a_sequence_is_bad_data(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){8}, 1);
    Reading reading = {.set = &set, .sequences = 1, .length = 8, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&reading, 0, ERROR_DATA, "8 tokens sequence 8 9");
    shard_set_close(&set);
}

static void a_token_outside_the_vocabulary_is_bad_data_with_its_value(void **state) {
    (void)state;
    write_shard("c", 2, (const int32_t[]){1, 2, 300, 4, 500}, (const int64_t[]){5}, 1);
    ShardSet set = open_set("c");
    Reading reading = {.set = &set, .sequences = 1, .length = 2, .vocabulary = 300, .separator = -1};
    assert_loader_fails(&reading, 0, ERROR_DATA, "token 500 vocabulary 300");
    reading.vocabulary = 501;
    open_reading(&reading, 0);
    close_reading(&reading);
    shard_set_close(&set);
}

static void senseless_batches_and_cursors_are_usage_errors(void **state) {
    (void)state;
    ShardSet set = counting_set((const int64_t[]){8}, 1);
    Reading reading = {.set = &set, .sequences = 0, .length = 2, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&reading, 0, ERROR_USAGE, "0 sequences");
    reading.sequences = INT64_MAX;
    assert_loader_fails(&reading, 0, ERROR_USAGE, "9223372036854775807 batch.sequences");
    reading.sequences = 1;
    assert_loader_fails(&reading, -1, ERROR_USAGE, "-1");
    assert_loader_fails(&reading, INT64_MAX, ERROR_USAGE, "cursor");
    shard_set_close(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(samples_follow_one_another_and_share_the_token_at_their_border),
        IN_FOLDER(the_tail_of_a_corpus_is_padded),
        IN_FOLDER(an_epoch_ends_with_the_last_target),
        IN_FOLDER(sources_and_phases_come_as_the_order_says),
        IN_FOLDER(samples_behind_a_phase_are_padding),
        IN_FOLDER(what_cannot_be_read_ends_the_batches_after_those_before),
        IN_FOLDER(positions_restart_at_documents_and_their_last_token_has_no_target),
        IN_FOLDER(without_a_document_mask_boundaries_do_not_matter),
        IN_FOLDER(a_separator_inside_a_document_ends_it_too),
        IN_FOLDER(batches_agree_with_the_definition_for_random_documents),
        IN_FOLDER(resuming_at_any_draw_gives_the_same_batches),
        IN_FOLDER(memory_does_not_grow_with_the_corpus),
        IN_FOLDER(a_loader_closes_at_any_moment),
        IN_FOLDER(a_batch_stays_as_it_is_while_it_is_held),
        IN_FOLDER(a_corpus_shorter_than_a_sequence_is_bad_data),
        IN_FOLDER(a_token_outside_the_vocabulary_is_bad_data_with_its_value),
        IN_FOLDER(senseless_batches_and_cursors_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tests of packings that leave out what other packings have. Each test runs in a temporary folder of its own. */
#include "support/data_files.h"

#include "base/rng.h"
#include "data/pack.h"
#include "support/mentions.h"

static const char *const a[] = {"a.jsonl", NULL}, *const b[] = {"b.jsonl", NULL}, *const both[] = {"a.jsonl", "b.jsonl", NULL};

/* Documents of two files; of some, the same words or nearly the same are in the other file or earlier in the same one. */
static void write_inputs(void) {
    for (int part = 0; part < 2; part++) {
        FILE *file = fopen(both[part], "w");
        assert_non_null(file);
        for (int i = 0; i < 400; i++) {
            uint64_t topic = rng_bits(9, 1, (uint64_t)(part * 400 + i)).word[0] % 500;
            fprintf(file, "{\"text\": \"");
            for (uint64_t j = 0; j < 60; j++) fprintf(file, "w%u ", rng_bits(9, 2, topic * 64 + j).word[0] % 4000);
            fprintf(file, i % 3 ? "\"}\n" : "tail %d\"}\n", i);
        }
        assert_int_equal(fclose(file), 0);
    }
}

static PackResult pack(PackOptions options) {
    PackResult result;
    Error error = {0};
    options.separator = "";
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void assert_refused(PackOptions options, ErrorCode code, const char *part) {
    PackResult result;
    Error error = {0};
    options.separator = "";
    assert_false(pack_text(&options, &result, &error));
    if (error.code != code || !mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

static void two_packings_keep_what_one_of_both_keeps(void **state) {
    (void)state;
    write_inputs();
    for (PackDedup dedup = PACK_DEDUP_EXACT; dedup <= PACK_DEDUP_NEAR; dedup++)
        for (int64_t shard_tokens = 0; shard_tokens <= 5000; shard_tokens += 5000) {
            PackOptions options = {.inputs = both, .output = "whole", .dedup = dedup, .shard_tokens = shard_tokens, .overwrite = true};
            PackResult whole = pack(options), first, second, third;
            options.inputs = a, options.output = "first";
            first = pack(options);
            options.inputs = b, options.output = "second", options.against = "first";
            second = pack(options);
            assert_true(first.left_out > 50 && second.left_out > 100 && second.documents > 50);
            assert_int_equal(first.documents + second.documents, whole.documents);
            assert_int_equal(first.train_tokens + second.train_tokens, whole.train_tokens);
            assert_int_equal(first.left_out + second.left_out, whole.left_out);
            options.inputs = both, options.output = "third", options.against = "first,second";
            assert_refused(options, ERROR_DATA, "left repeat"); /* both have everything */
            options.inputs = b, options.against = "first";
            third = pack(options);
            assert_int_equal(third.documents, second.documents);
            Error error = {0};
            for (const char *const *name = (const char *const[]){"whole", "first", "second", "third", NULL}; *name; name++) {
                static const char *const endings[] = {"", ".idx", ".bin", ".tokenizer", ".pack.json", ".dedup", ".dropped.jsonl.zst"};
                for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
                    SCOPED_FREE char *path = memory_format("%s%s", *name, endings[i]);
                    assert_true(file_remove(path, &error));
                }
            }
        }
}

static void what_another_packing_cannot_say_is_refused(void **state) {
    (void)state;
    write_inputs();
    pack((PackOptions){.inputs = a, .output = "plain"});
    pack((PackOptions){.inputs = a, .output = "exact", .dedup = PACK_DEDUP_EXACT});
    assert_refused((PackOptions){.inputs = b, .output = "out", .dedup = PACK_DEDUP_EXACT, .against = "plain"}, ERROR_USAGE, "plain dedup=");
    assert_refused(
        (PackOptions){.inputs = b, .output = "out", .dedup = PACK_DEDUP_NEAR, .against = "exact"}, ERROR_USAGE, "exact dedup=near");
    assert_refused((PackOptions){.inputs = b, .output = "out", .against = "exact"}, ERROR_USAGE, "dedup=exact");
    assert_refused((PackOptions){.inputs = a, .output = "exact", .dedup = PACK_DEDUP_EXACT, .against = "./exact", .overwrite = true},
        ERROR_USAGE, "./exact is OUTPUT");
    size_t size;
    unsigned char *bytes = read_bytes("exact.dedup", &size);
    for (size_t i = 0; i < 60; i++) { /* each change of a byte, and each cut, is found */
        size_t at = i < 44 ? size - 1 - i : i * 101 % size;
        bytes[at] ^= 1;
        write_bytes("exact.dedup", bytes, size);
        PackOptions options = {.inputs = b, .output = "out", .dedup = PACK_DEDUP_EXACT, .against = "exact"};
        assert_refused(options, ERROR_DATA, "exact.dedup");
        bytes[at] ^= 1;
        write_bytes("exact.dedup", bytes, i * size / 60);
        assert_refused(options, ERROR_DATA, "exact.dedup");
    }
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(two_packings_keep_what_one_of_both_keeps),
        IN_FOLDER(what_another_packing_cannot_say_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

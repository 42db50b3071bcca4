/* Tests of packings that leave out what other packings have. Each test runs in a temporary folder of its own. */
#include "support/data_files.h"

#include "base/array.h"
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

/* The texts of shards, sorted, each with its line end; the caller frees. */
static int compare_texts(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static char *sorted_texts(const char *const *prefixes) {
    char **texts = NULL, *all = memory_copy_string("");
    size_t count = 0;
    for (; *prefixes; prefixes++) {
        ShardSet set = open_set(*prefixes);
        int32_t *tokens = read_tokens(&set, NULL);
        for (int64_t start = 0, at = 0; at < set.token_count; at++) {
            if (tokens[at] != BYTE_SEPARATOR) continue;
            char *text = memory_allocate((size_t)(at - start) + 1);
            for (int64_t i = start; i < at; i++) text[i - start] = (char)tokens[i];
            array_append(texts, count, text);
            start = at + 1;
        }
        free(tokens);
        shard_set_close(&set);
    }
    qsort(texts, count, sizeof *texts, compare_texts);
    for (size_t i = 0; i < count; i++) {
        char *before = all;
        all = memory_format("%s%s\n", before, texts[i]);
        free(before);
        free(texts[i]);
    }
    free(texts);
    return all;
}

/* After `first` is withdrawn, `second` and what it dropped for `first` have what a packing without `first` has. */
static void a_source_is_withdrawn_without_packing_the_rest_again(void **state) {
    (void)state;
    write_inputs();
    for (int64_t shard_tokens = 0; shard_tokens <= 5000; shard_tokens += 5000) {
        PackOptions options = {.inputs = a, .output = "first", .dedup = PACK_DEDUP_EXACT, .shard_tokens = shard_tokens, .overwrite = true};
        pack(options);
        options.inputs = b, options.output = "second", options.against = "first";
        PackResult second = pack(options);
        options.output = "rest", options.against = "", options.restore = "second";
        PackResult rest = pack(options);
        options.output = "alone", options.restore = "";
        PackResult alone = pack(options);
        assert_int_equal(rest.records, second.left_out);
        assert_int_equal(second.documents + rest.documents, alone.documents);
        assert_int_equal(second.train_tokens + rest.train_tokens, alone.train_tokens);
        assert_true(rest.documents > 20);
        SCOPED_FREE char *two = sorted_texts((const char *const[]){"second", "rest", NULL});
        SCOPED_FREE char *one = sorted_texts((const char *const[]){"alone", NULL});
        assert_string_equal(two, one);
        options.output = "other", options.restore = "second", options.field = "body";
        assert_refused(options, ERROR_USAGE, "the setting field is not that of second");
        options.field = NULL, options.inputs = a;
        assert_refused(options, ERROR_USAGE, "the inputs are not those of second");
        options.inputs = b, options.dedup = PACK_DEDUP_NONE;
        assert_refused(options, ERROR_USAGE, "set dedup=exact or near too");
        options.dedup = PACK_DEDUP_EXACT, options.restore = "nothing";
        assert_refused(options, ERROR_USAGE, "nothing is not a complete packing");
        options.restore = "second", options.output = "other", options.against = "rest"; /* both have everything */
        assert_refused(options, ERROR_DATA, "left repeat");
        options.against = "";
        Error error = {0};
        for (const char *const *name = (const char *const[]){"first", "second", "rest", "alone", "other", NULL}; *name; name++) {
            static const char *const endings[] = {"", ".idx", ".bin", ".tokenizer", ".pack.json", ".dedup", ".dropped.jsonl.zst"};
            for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
                SCOPED_FREE char *path = memory_format("%s%s", *name, endings[i]);
                assert_true(file_remove(path, &error));
            }
        }
    }
    /* Near duplicates: nothing of `rest` is near a document of `second`. */
    PackOptions options = {.inputs = a, .output = "first", .dedup = PACK_DEDUP_NEAR, .overwrite = true};
    pack(options);
    options.inputs = b, options.output = "second", options.against = "first";
    pack(options);
    options.output = "rest", options.against = "", options.restore = "second";
    PackResult rest = pack(options);
    assert_true(rest.documents > 20 && rest.left_out > 20);
    options.output = "again", options.against = "rest";
    assert_refused(options, ERROR_DATA, "left repeat");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(two_packings_keep_what_one_of_both_keeps),
        IN_FOLDER(what_another_packing_cannot_say_is_refused),
        IN_FOLDER(a_source_is_withdrawn_without_packing_the_rest_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

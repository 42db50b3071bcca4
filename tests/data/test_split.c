/* Tests of splitting shards by documents: nothing is lost, equal documents are on one side, and neither the order nor the
 * number of the shards matters. Each test runs in a temporary folder of its own; run by `make test`. */
#include "support/data_files.h"
#include "support/mentions.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/rng.h"
#include "data/pack.h"
#include "data/split.h"

static char golden[PATH_MAX];

static bool try_split(const char *input, const char *output, double valid, SplitPart parts[2], Error *error) {
    SplitOptions options = {.input = input, .output = output, .tokenizer = "", .valid_fraction = valid};
    return split_shards(&options, &parts[0], &parts[1], error);
}

static void split(const char *input, const char *output, double valid, SplitPart parts[2]) {
    Error error = {0};
    if (!try_split(input, output, valid, parts, &error)) fail_msg("%s: %s", input, error.message);
}

static void assert_refused(const char *input, const char *output, double valid, const char *part) {
    SplitPart parts[2];
    Error error = {0};
    assert_false(try_split(input, output, valid, parts, &error));
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

/* -- Documents ------------------------------------------------------------------------------------------------------- */

/* The hashes of the documents of shards, with their marks, in ascending order; pairs are one document. */
typedef struct Documents {
    uint64_t *hashes;
    size_t count;
} Documents;

static int compare_hashes(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static Documents documents_of(const char *path) {
    ShardSet set = open_set(path);
    uint8_t *marks;
    int32_t *tokens = read_tokens(&set, &marks);
    Documents documents = {0};
    DocumentCursor cursor = {.set = &set};
    Error error = {0};
    for (int64_t start, end, begin = -1;;) {
        assert_true(document_cursor_next(&cursor, &start, &end, &error));
        if (end < 0) break;
        bool first = set.pairs && begin < 0;
        if (begin < 0) begin = start;
        if (first) continue;
        uint64_t parts[] = {
            hash_bytes(tokens + begin, (size_t)(end - begin) * sizeof *tokens), hash_bytes(marks + begin, (size_t)(end - begin))};
        array_append(documents.hashes, documents.count, hash_bytes(parts, sizeof parts));
        begin = -1;
    }
    if (documents.count > 0) qsort(documents.hashes, documents.count, sizeof *documents.hashes, compare_hashes);
    free(tokens);
    free(marks);
    shard_set_close(&set);
    return documents;
}

static bool has(const Documents *documents, uint64_t hash) {
    return documents->count > 0 && bsearch(&hash, documents->hashes, documents->count, sizeof hash, compare_hashes);
}

/* Checks that two parts have what the whole has, and nothing in common. */
static void assert_divides(const char *whole, const char *output, const SplitPart parts[2]) {
    SCOPED_FREE char *names[] = {memory_format("%s-train", output)}, *others[] = {memory_format("%s-valid", output)};
    Documents all = documents_of(whole), train = documents_of(names[0]), valid = documents_of(others[0]);
    assert_int_equal(train.count, parts[0].documents);
    assert_int_equal(valid.count, parts[1].documents);
    assert_int_equal(train.count + valid.count, all.count);
    for (size_t i = 0, t = 0, v = 0; i < all.count; i++) {
        bool left = t < train.count && train.hashes[t] == all.hashes[i], right = v < valid.count && valid.hashes[v] == all.hashes[i];
        assert_true(left != right);
        t += left;
        v += right;
    }
    free(all.hashes), free(train.hashes), free(valid.hashes);
}

static void write_words(const char *path, uint64_t seed, int count) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < count; i++) /* every fourth text has an equal one */
        fprintf(file, "{\"text\": \"document %u\"}\n", rng_bits(seed, 0, (uint64_t)i).word[0] % (uint32_t)(4 * count));
    assert_int_equal(fclose(file), 0);
}

static PackResult pack(const char *const *inputs, const char *output, PackOptions options) {
    PackResult result;
    Error error = {0};
    options.inputs = inputs;
    options.output = output;
    options.separator = "";
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void equal_documents_are_on_one_side(void **state) {
    (void)state;
    SplitPart parts[2], others[2];
    write_words("a.jsonl", 1, 3000);
    write_words("b.jsonl", 2, 2000);
    pack((const char *[]){"a.jsonl", "b.jsonl", NULL}, "whole", (PackOptions){0});
    pack((const char *[]){"b.jsonl", "a.jsonl", NULL}, "shards", (PackOptions){.shard_tokens = 20000});
    split("whole", "one", 0.1, parts);
    assert_divides("whole", "one", parts);
    assert_true(parts[1].documents > 400 && parts[1].documents < 600);
    split("shards", "two", 0.1, others);
    assert_memory_equal(parts, others, sizeof parts);
    Documents one = documents_of("one-valid"), two = documents_of("two-valid");
    assert_memory_equal(one.hashes, two.hashes, one.count * sizeof *one.hashes);
    split("whole", "more", 0.3, others);
    Documents more = documents_of("more-valid");
    for (size_t i = 0; i < one.count; i++) assert_true(has(&more, one.hashes[i]));
    free(one.hashes), free(two.hashes), free(more.hashes);
    SCOPED_FREE char *tokenizer = NULL;
    Error error = {0};
    assert_true(shard_set_tokenizer("one-valid", &tokenizer, &error));
    assert_string_equal(tokenizer, "");
}

static void masks_and_pairs_stay(void **state) {
    (void)state;
    SplitPart parts[2];
    SCOPED_FREE char *template = memory_format("%s/template.jinja", golden), *chats = memory_format("%s/chats.jsonl", golden);
    pack((const char *[]){chats, NULL}, "chats", (PackOptions){.format = PACK_CHAT, .template = template});
    split("chats", "answers", 0.3, parts);
    assert_divides("chats", "answers", parts);
    FILE *file = fopen("pairs.jsonl", "w");
    for (int i = 0; i < 100; i++) fprintf(file, "{\"prompt\": \"%d?\", \"chosen\": \"yes %d\", \"rejected\": \"no\"}\n", i, i % 7);
    assert_int_equal(fclose(file), 0);
    pack((const char *[]){"pairs.jsonl", NULL}, "pairs", (PackOptions){.format = PACK_PREFERENCE, .template = "chatml"});
    split("pairs", "kept", 0.2, parts);
    assert_int_equal(parts[0].documents + parts[1].documents, 100);
    assert_divides("pairs", "kept", parts);
    ShardSet set = open_set("kept-valid");
    assert_true(set.pairs && set.masked);
    shard_set_close(&set);
}

static void a_document_longer_than_the_buffer_is_copied(void **state) {
    (void)state;
    enum { LONG = 2500000 };
    SplitPart parts[2];
    const int64_t lengths[] = {10, LONG, 7, 1 << 20, (1 << 20) + 1, 3};
    ShardSet set = counting_set(lengths, 6);
    shard_set_close(&set);
    split("c", "out", 0.5, parts);
    assert_divides("c", "out", parts);
}

static void what_cannot_be_split_is_refused(void **state) {
    (void)state;
    write_words("a.jsonl", 1, 2);
    assert_refused("a.jsonl", "out", 0.1, "a.jsonl is not a token shard: pack text with smelt data pack valid=");
    pack((const char *[]){"a.jsonl", NULL}, "few", (PackOptions){0});
    assert_refused("few", "out", 1e-9, "no document of few is in the validation part");
    assert_refused("few", "out", 1, "valid=1 must be above 0 and below 1");
    assert_false(file_exists("out-train.bin") || file_exists("out-train.idx"));
    SplitPart parts[2];
    write_words("b.jsonl", 3, 500);
    pack((const char *[]){"b.jsonl", NULL}, "b", (PackOptions){0});
    split("b", "out", 0.5, parts);
    assert_refused("b", "out", 0.5, "out-train.idx exists");
    pack((const char *[]){"b.jsonl", NULL}, "own-valid", (PackOptions){0});
    SplitOptions options = {.input = "own-valid", .output = "own", .tokenizer = "", .valid_fraction = 0.5, .overwrite = true};
    Error error = {0};
    assert_false(split_shards(&options, &parts[0], &parts[1], &error));
    assert_true(mentions(error.message, "is both SHARDS and OUTPUT"));
    write_text("model-train.bin", "a model");
    options = (SplitOptions){.input = "b", .output = "model", .tokenizer = "", .valid_fraction = 0.5, .overwrite = true};
    assert_false(split_shards(&options, &parts[0], &parts[1], &error));
    assert_true(mentions(error.message, "model-train.bin is not part of a token shard"));
}

int main(void) {
    if (!realpath("tests/golden/parquet", golden)) return 1;
    const struct CMUnitTest tests[] = {
        IN_FOLDER(equal_documents_are_on_one_side),
        IN_FOLDER(masks_and_pairs_stay),
        IN_FOLDER(a_document_longer_than_the_buffer_is_copied),
        IN_FOLDER(what_cannot_be_split_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

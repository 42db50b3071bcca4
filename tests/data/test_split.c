/* Tests of splitting shards by documents: nothing is lost, equal documents are on one side, and neither the order nor the
 * number of the shards matters. Each test runs in a temporary folder of its own; run by `make test`. */
#include "support/data_files.h"
#include "support/mentions.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/rng.h"
#include "data/held_out.h"
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

static Documents documents_of_set(const ShardSet *set) {
    uint8_t *marks;
    int32_t *tokens = read_tokens(set, &marks);
    Documents documents = {0};
    DocumentCursor cursor = {.set = set};
    Error error = {0};
    for (int64_t start, end, begin = -1;;) {
        assert_true(document_cursor_next(&cursor, &start, &end, &error));
        if (end < 0) break;
        bool first = set->pairs && begin < 0;
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
    return documents;
}

static Documents documents_of(const char *path) {
    ShardSet set = open_set(path);
    Documents documents = documents_of_set(&set);
    shard_set_close(&set);
    return documents;
}

static void assert_same(const Documents *one, const Documents *other) {
    assert_int_equal(one->count, other->count);
    assert_memory_equal(one->hashes, other->hashes, one->count * sizeof *one->hashes);
}

static Documents join(const Documents *one, const Documents *other) {
    Documents both = {0};
    for (size_t i = 0; i < one->count + other->count; i++)
        array_append(both.hashes, both.count, i < one->count ? one->hashes[i] : other->hashes[i - one->count]);
    qsort(both.hashes, both.count, sizeof *both.hashes, compare_hashes);
    return both;
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

/* -- Held out of open sets ------------------------------------------------------------------------------------------- */

static bool try_to_hold_out(HeldOut *held_out, ShardSet *sets, int count, double valid, Error *error) {
    HeldOutOptions options = {.folder = "data", .valid_fraction = valid, .tokenizer = ""};
    return held_out_open(held_out, &options, sets, count, error);
}

/* Any part of the set is what the whole of it says. */
static void assert_reads_in_parts(const ShardSet *set) {
    enum { MOST = 5000 };
    static int32_t part[MOST];
    static uint8_t part_marks[MOST];
    uint8_t *marks;
    int32_t *tokens = read_tokens(set, &marks);
    Error error = {0};
    for (uint64_t i = 0; i < 300; i++) {
        RngBits bits = rng_bits(11, 0, i);
        int64_t count = 1 + bits.word[0] % (set->token_count < MOST ? set->token_count : MOST);
        int64_t first = bits.word[1] % (set->token_count - count + 1);
        shard_set_prefetch(set, first, count);
        assert_true(shard_set_read(set, first, count, ANY_TOKEN, part, part_marks, &error));
        assert_memory_equal(part, tokens + first, (size_t)count * sizeof *part);
        assert_memory_equal(part_marks, marks + first, (size_t)count);
    }
    free(tokens);
    free(marks);
}

/* Holds the same documents out of shards as the command writes from each of them. `names`: NULL at the end. */
static void assert_holds_out_what_split_writes(const char *const *names, double valid) {
    ShardSet sets[4];
    HeldOut held_out;
    Error error = {0};
    Documents rest = {0};
    int count = 0;
    for (; names[count]; count++) {
        sets[count] = open_set(names[count]);
        if (sets[count].document_count < 0) sets[count].end_token = BYTE_SEPARATOR;
    }
    if (!try_to_hold_out(&held_out, sets, count, valid, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < count; i++) {
        SplitPart parts[2];
        split(names[i], "part", valid, parts);
        Documents train = documents_of("part-train"), held = documents_of("part-valid"), now = documents_of_set(&sets[i]), before = rest;
        assert_same(&train, &now);
        assert_int_equal(sets[i].token_count, parts[0].tokens);
        assert_int_equal(sets[i].document_count, (1 + sets[i].pairs) * parts[0].documents);
        assert_reads_in_parts(&sets[i]);
        rest = join(&before, &held);
        free(train.hashes), free(held.hashes), free(now.hashes), free(before.hashes);
        assert_int_equal(system("rm -r part-*"), 0);
    }
    Documents valid_part = documents_of("data/split-valid");
    assert_same(&rest, &valid_part);
    free(rest.hashes), free(valid_part.hashes);
    for (int i = 0; i < count; i++) shard_set_close(&sets[i]);
    held_out_close(&held_out);
}

static void sets_hold_out_what_split_chooses(void **state) {
    (void)state;
    SCOPED_FREE char *template = memory_format("%s/template.jinja", golden), *chats = memory_format("%s/chats.jsonl", golden);
    write_words("a.jsonl", 1, 3000);
    write_words("b.jsonl", 2, 2000);
    pack((const char *[]){"a.jsonl", NULL}, "a", (PackOptions){0});
    pack((const char *[]){"b.jsonl", NULL}, "b", (PackOptions){.shard_tokens = 9000});
    pack((const char *[]){chats, NULL}, "chats", (PackOptions){.format = PACK_CHAT, .template = template});
    FILE *file = fopen("pairs.jsonl", "w");
    for (int i = 0; i < 100; i++) fprintf(file, "{\"prompt\": \"%d?\", \"chosen\": \"yes %d\", \"rejected\": \"no\"}\n", i, i % 7);
    assert_int_equal(fclose(file), 0);
    pack((const char *[]){"pairs.jsonl", NULL}, "pairs", (PackOptions){.format = PACK_PREFERENCE, .template = "chatml"});
    assert_holds_out_what_split_writes((const char *[]){"a", NULL}, 0.1);
    assert_holds_out_what_split_writes((const char *[]){"a", "b", NULL}, 0.3);
    assert_holds_out_what_split_writes((const char *[]){"pairs", NULL}, 0.2);
    ShardSet mixed[] = {open_set("chats"), open_set("a")};
    HeldOut held_out;
    Error error = {0};
    assert_true(try_to_hold_out(&held_out, mixed, 2, 0.5, &error));
    ShardSet valid = open_set("data/split-valid"); /* has a mask; whole texts are trained */
    uint8_t *marks;
    free(read_tokens(&valid, &marks));
    assert_true(valid.masked && memchr(marks, TOKEN_UNTRAINED, (size_t)valid.token_count));
    assert_null(memchr(marks + valid.token_count - 1000, TOKEN_UNTRAINED, 1000));
    free(marks);
    shard_set_close(&valid), shard_set_close(&mixed[0]), shard_set_close(&mixed[1]);
    held_out_close(&held_out);
}

/* Without an index, the end token ends documents. */
static void sets_without_an_index_hold_documents_out(void **state) {
    (void)state;
    SCOPED_FREE char *path = memory_format("%s/../shards/llmc_gpt2.bin", golden);
    HeldOut held_out;
    Error error = {0};
    for (int known = 0; known < 2; known++) {
        ShardSet set = open_set(path);
        int64_t all = set.token_count;
        set.end_token = known ? 50256 : -1;
        assert_int_equal(try_to_hold_out(&held_out, &set, 1, 0.5, &error), known);
        if (!known) {
            assert_true(mentions(error.message, "its end-of-text token is unknown: set data.tokenizer"));
            shard_set_close(&set);
            continue;
        }
        ShardSet valid = open_set("data/split-valid");
        assert_int_equal(set.token_count + valid.token_count, all);
        DocumentCursor cursor = {.set = &set};
        uint8_t *marks;
        free(read_tokens(&set, &marks));
        for (int64_t start, end, before = 0; document_cursor_next(&cursor, &start, &end, &error) && end >= 0; before = end)
            assert_true(start == before && (marks[end - 1] == TOKEN_ENDS || end == set.token_count));
        free(marks);
        shard_set_close(&set), shard_set_close(&valid);
        held_out_close(&held_out);
    }
}

static uint64_t sum_of(const char *path) {
    uint64_t sum;
    Error error = {0};
    assert_true(hash_file(path, &sum, &error));
    return sum;
}

/* The checksum of a set and the bytes of the files decide whether they are made again. */
static void what_is_held_out_stays_and_is_made_again(void **state) {
    (void)state;
    uint64_t content, whole;
    HeldOut held_out;
    Error error = {0};
    write_words("a.jsonl", 1, 3000);
    pack((const char *[]){"a.jsonl", NULL}, "a", (PackOptions){0});
    static const char *const damages[] = {"true", "rm data/split", "rm data/split-valid.idx",
        "printf x | dd of=data/split conv=notrunc 2>/dev/null", "truncate -s 100 data/split",
        "cp a.bin data/split-valid.bin; cp a.idx data/split-valid.idx"};
    uint64_t runs = 0, tokens = 0;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        ShardSet set = open_set("a");
        assert_true(shard_set_checksum(&set, &whole, &error));
        if (i) assert_int_equal(system(damages[i]), 0);
        if (!try_to_hold_out(&held_out, &set, 1, 0.1, &error)) fail_msg("%s: %s", damages[i], error.message);
        uint64_t before = content;
        assert_true(shard_set_checksum(&set, &content, &error));
        assert_true(content != whole && (!i || content == before));
        if (!i) runs = sum_of("data/split"), tokens = sum_of("data/split-valid.bin");
        assert_true(runs == sum_of("data/split") && tokens == sum_of("data/split-valid.bin"));
        shard_set_close(&set);
        held_out_close(&held_out);
    }
    ShardSet set = open_set("a"), other;
    assert_false(try_to_hold_out(&held_out, &set, 1, 1e-9, &error));
    assert_true(mentions(error.message, "no document is in the validation part"));
    other = counting_set(&(int64_t){1000}, 1); /* one document */
    assert_false(try_to_hold_out(&held_out, &other, 1, 1 - 1e-9, &error));
    assert_true(mentions(error.message, "no document of c is left for training"));
    shard_set_close(&set), shard_set_close(&other);
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
        IN_FOLDER(sets_hold_out_what_split_chooses),
        IN_FOLDER(sets_without_an_index_hold_documents_out),
        IN_FOLDER(what_is_held_out_stays_and_is_made_again),
        IN_FOLDER(a_document_longer_than_the_buffer_is_copied),
        IN_FOLDER(what_cannot_be_split_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

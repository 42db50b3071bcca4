/* Tests of packing from and to a bucket of a real S3 server (tests/support/s3_server.py): objects give the shards of a local
 * copy of them, whatever happens to connections, and what is wrong in the bucket is named. Each test runs in a temporary folder
 * of its own, with objects under its own prefix; run by `make test`. */
#include <zstd.h>

#include "support/data_files.h"
#include "support/mentions.h"
#include "support/s3_server.h"

#include "base/array.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/pack.h"
#include "store/object.h"

static char golden[PATH_MAX];

/* -- Objects --------------------------------------------------------------------------------------------------------- */

/* Writes LOCAL/NAME, and the object LOCAL/NAME. */
static void put(const char *local, const char *name, const void *bytes, size_t size) {
    Error error = {0};
    SCOPED_FREE char *path = memory_format("%s/%s", local, name);
    assert_true(file_make_parents(path, &error));
    write_bytes(path, bytes, size);
    server_put(path, bytes, size);
}

static void put_golden(const char *local, const char *name, const char *as) {
    size_t size;
    SCOPED_FREE char *path = memory_format("%s/%s", golden, name);
    SCOPED_FREE unsigned char *bytes = read_bytes(path, &size);
    put(local, as, bytes, size);
}

/* JSON lines with texts of random words, for the caller to free. */
static char *make_lines(uint64_t seed, int count, size_t *size) {
    char *lines = NULL;
    size_t capacity = 0;
    *size = 0;
    for (int i = 0; i < count; i++) {
        array_reserve(lines, capacity, *size + 4096);
        *size += (size_t)sprintf(lines + *size, "{\"text\": \"%d", i);
        for (uint32_t words = 20 + rng_bits(seed, 0, (uint64_t)i).word[0] % 200; words > 0; words--)
            *size += (size_t)sprintf(lines + *size, " %x", rng_bits(seed, words, (uint64_t)i).word[1] % 5000);
        *size += (size_t)sprintf(lines + *size, "\"}\n");
    }
    return lines;
}

static void put_lines(const char *local, const char *name, uint64_t seed, int count, bool packed) {
    size_t size;
    SCOPED_FREE char *lines = make_lines(seed, count, &size);
    SCOPED_FREE char *zstd = memory_allocate(ZSTD_compressBound(size));
    if (packed) size = ZSTD_compress(zstd, ZSTD_compressBound(size), lines, size, 3);
    put(local, name, packed ? zstd : lines, size);
}

/* -- Packing --------------------------------------------------------------------------------------------------------- */

static bool try_pack(const char *input, const char *output, PackOptions options, PackResult *result, Error *error) {
    options.inputs = (const char *[]){input, NULL};
    options.output = output;
    options.separator = "";
    return pack_text(&options, result, error);
}

static PackResult pack(const char *input, const char *output, PackOptions options) {
    PackResult result;
    Error error = {0};
    options.overwrite = true;
    if (!try_pack(input, output, options, &result, &error)) fail_msg("%s: %s", input, error.message);
    return result;
}

static void assert_refused(const char *input, PackOptions options, const char *part) {
    PackResult result;
    Error error = {0};
    assert_false(try_pack(input, "out", options, &result, &error));
    if (!mentions(error.message, part)) fail_msg("%s: \"%s\" does not contain \"%s\"", input, error.message, part);
}

static void assert_same_file(const char *a, const char *b) {
    size_t sizes[2];
    SCOPED_FREE unsigned char *left = read_bytes(a, &sizes[0]), *right = read_bytes(b, &sizes[1]);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(left, right, sizes[0]);
}

/* Packs the folder and the objects, and compares the shards. */
static void assert_packs_equal(const char *local, PackOptions options) {
    SCOPED_FREE char *remote = memory_format("s3://%s/%s", BUCKET, local);
    PackResult here = pack(local, "here", options), there = pack(remote, "there", options);
    assert_int_equal(here.documents, there.documents);
    assert_int_equal(here.files, there.files);
    assert_int_equal(here.bytes, there.bytes);
    const char *part = options.valid_fraction > 0 ? "-valid" : "";
    SCOPED_FREE char *tokens[] = {memory_format("here%s.bin", part)}, *others[] = {memory_format("there%s.bin", part)};
    assert_same_file(tokens[0], others[0]);
    assert_same_file(
        options.valid_fraction > 0 ? "here-train.idx" : "here.idx", options.valid_fraction > 0 ? "there-train.idx" : "there.idx");
}

static void objects_give_the_shards_of_a_local_copy(void **state) {
    (void)state;
    put("web", "a.txt", "one text\nof two lines\n", 22);
    put_lines("web", "b.jsonl", 1, 3000, false);
    put_lines("web", "deep/c.jsonl.zst", 2, 40000, true); /* several parts of requests */
    put_golden("web", "texts-dictionary-snappy.parquet", "deep/d.parquet");
    put_golden("web", "texts-plain-zstd-v2.parquet", "e.parquet");
    put("web", ".hidden", "not read", 8);
    assert_packs_equal("web", (PackOptions){0});
    assert_packs_equal("web/", (PackOptions){.dedup = PACK_DEDUP_NEAR});
    assert_packs_equal("web/b.jsonl", (PackOptions){.valid_fraction = 0.1});
    assert_packs_equal("web/e.parquet", (PackOptions){.valid_fraction = 0.2});
    assert_packs_equal("web/a.txt", (PackOptions){0});
    assert_false(file_exists("s3:"));
}

/* Each request takes a second: many objects are open at once. */
static void small_objects_are_requested_ahead(void **state) {
    (void)state;
    enum { FILES = 24 };
    Error error = {0};
    for (int i = 0; i < FILES; i++) {
        SCOPED_FREE char *name = memory_format("%02d.txt", i);
        put("small", name, name, strlen(name));
    }
    SCOPED_FREE char *rule = memory_format("%s/faults/small", server.folder);
    static const char text[] = "{\"kind\": \"GET\", \"key\": \"*\", \"answer\": \"slow\"}";
    assert_true(file_write(rule, text, sizeof text - 1, &error));
    double start = log_seconds();
    PackResult result = pack("s3://smelt-tests/small", "there", (PackOptions){0});
    assert_true(log_seconds() - start < FILES / 2);
    server_accept("small");
    assert_int_equal(result.documents, FILES);
    pack("small", "here", (PackOptions){0});
    assert_same_file("here.bin", "there.bin");
}

static void conversations_and_columns_of_rules_are_read(void **state) {
    (void)state;
    SCOPED_FREE char *template = memory_format("%s/template.jinja", golden);
    put_golden("chats", "chats-deltas.parquet", "a.parquet");
    put_golden("chats", "chats-polars.parquet", "b.parquet");
    assert_packs_equal("chats", (PackOptions){.template = template});
    put_golden("rows", "texts-duckdb.parquet", "a.parquet");
    FilterOptions rules = {"score > 0.5", "", "", "", ""};
    DocumentFilter *filter;
    Error error = {0};
    if (!filter_open(&rules, &filter, &error)) fail_msg("%s", error.message);
    assert_packs_equal("rows", (PackOptions){.filter = filter});
    filter_free(filter);
}

static void one_split_of_a_bucket_is_taken_and_token_shards_are_left_out(void **state) {
    (void)state;
    put_lines("splits", "data/train-00000.jsonl", 1, 10, false);
    put_lines("splits", "data/test-00000.jsonl", 2, 20, false);
    assert_int_equal(pack("s3://smelt-tests/splits", "out", (PackOptions){0}).documents, 10);
    assert_int_equal(pack("s3://smelt-tests/splits", "out", (PackOptions){.held_out = true}).documents, 20);
    put("mixed", "a.txt", "text", 4);
    put("mixed", "b.bin", "ab", 2);
    put("mixed", "b.idx", "cd", 2);
    assert_int_equal(pack("s3://smelt-tests/mixed", "out", (PackOptions){0}).files, 1);
}

/* -- Faults ---------------------------------------------------------------------------------------------------------- */

static void connections_that_break_cost_nothing(void **state) {
    (void)state;
    put_lines("cut", "a.jsonl", 3, 60000, false);
    SCOPED_FREE char *rule = memory_format("%s/faults/cut", server.folder);
    static const char text[] = "{\"kind\": \"GET\", \"key\": \"*\", \"answer\": \"cut\", \"times\": 3}";
    Error error = {0};
    assert_true(file_write(rule, text, sizeof text - 1, &error));
    assert_packs_equal("cut", (PackOptions){0});
    server_accept("cut");
}

static void what_is_wrong_in_a_bucket_is_named(void **state) {
    (void)state;
    assert_refused("s3://smelt-tests/nothing", (PackOptions){0}, "s3://smelt-tests/nothing contains no objects");
    assert_refused("s3://no-such-bucket/a", (PackOptions){0}, "s3://no-such-bucket/a");
    put("gone", "a.txt", "text", 4);
    server_refuse("gone", "a.txt", "403");
    assert_refused("s3://smelt-tests/gone", (PackOptions){0}, "s3://smelt-tests/gone/a.txt");
    server_accept("gone");
    put("one", "a.txt", "one text\nof two lines\n", 22);
    assert_refused("s3://smelt-tests/one/a.txt", (PackOptions){.valid_fraction = 0.1}, "copy it to a local file");
}

/* Ends at the first bad record, after some shards. */
static void a_packing_that_was_interrupted_continues_unless_an_object_changed(void **state) {
    (void)state;
    static const char remote[] = "s3://smelt-tests/resumed";
    PackOptions options = {.shard_tokens = 20000, .invalid = PACK_INVALID_STOP};
    PackResult result;
    Error error = {0};
    put_lines("resumed", "a.jsonl", 4, 500, false);
    put_lines("resumed", "b.jsonl.zst", 5, 500, true);
    put("resumed", "c.jsonl", "{\"text\": 1}\n{\"text\": \"good\"}\n", 29);
    assert_false(try_pack(remote, "out", options, &result, &error));
    options.invalid = PACK_INVALID_REPLACE;
    assert_false(try_pack(remote, "out", options, &result, &error));
    assert_non_null(strstr(error.message, "the setting invalid"));
    options.invalid = PACK_INVALID_STOP;
    put("resumed", "c.jsonl", "{\"text\": \"as\"}\n{\"text\": \"good\"}\n", 32);
    assert_false(try_pack(remote, "out", options, &result, &error));
    assert_non_null(strstr(error.message, "the input s3://smelt-tests/resumed"));
    put("resumed", "c.jsonl", "{\"text\": 1}\n{\"text\": \"good\"}\n", 29); /* the same ETag again */
    assert_false(try_pack(remote, "out", options, &result, &error));
    if (!mentions(error.message, "invalid=stop")) fail_msg("%s", error.message);
}

/* -- OUTPUT ------------------------------------------------------------------------------------------------------------ */

/* Checks that the bucket has the files of a local folder, except the record, and no others. */
static void assert_in_bucket(const char *folder, const char *prefix) {
    SCOPED(s3_listing_free) S3Listing listing = {0};
    SCOPED_FREE char *below = memory_format("%s/", prefix);
    Error error = {0};
    S3 *s3 = s3_open(BUCKET, &error);
    if (!s3_list(s3, below, true, prefix, &listing, &error)) fail_msg("%s", error.message);
    SCOPED_FREE char *count = memory_format("test $(find %s -type f | wc -l) = %zu", folder, listing.count);
    assert_int_equal(system(count), 0);
    for (size_t i = 0; i < listing.count; i++) {
        size_t size;
        S3Entry *entry = &listing.entries[i];
        SCOPED_FREE char *local = memory_format("%s/%s", folder, entry->name), *key = memory_format("%s/%s", prefix, entry->name);
        SCOPED_FREE unsigned char *expected = read_bytes(local, &size), *bytes = memory_allocate((size_t)entry->bytes + 1);
        if (!strcmp(entry->name, "pack.json")) continue;
        assert_int_equal(entry->bytes, size);
        S3Request request = {.method = "GET", .key = key, .target = bytes, .target_bytes = entry->bytes, .path = key};
        S3Reply reply = {0};
        if (!s3_send(s3, request, &reply, NULL, &error)) fail_msg("%s", error.message);
        s3_reply_free(&reply);
        assert_memory_equal(bytes, expected, size);
    }
    s3_close(s3);
}

static void fail_puts(const char *name, const char *rule) {
    Error error = {0};
    SCOPED_FREE char *path = memory_format("%s/faults/%s", server.folder, name);
    assert_true(file_write(path, rule, (int64_t)strlen(rule), &error));
}

static void shards_go_to_a_bucket(void **state) {
    (void)state;
    size_t size;
    PackResult result;
    Error error = {0};
    SCOPED_FREE char *lines = make_lines(7, 3000, &size);
    write_bytes("in.jsonl", lines, size);
    PackOptions options = {.shard_tokens = 300000, .valid_fraction = 0.1, .dedup = PACK_DEDUP_EXACT};
    pack("in.jsonl", "here", options);
    pack("in.jsonl", "s3://smelt-tests/there/", options);
    assert_in_bucket("here-train", "there-train");
    assert_in_bucket("here-valid", "there-valid");
    assert_false(file_exists("there.upload-train") || file_exists("there.upload-valid"));
    assert_false(try_pack("in.jsonl", "s3://smelt-tests/there", options, &result, &error));
    assert_true(mentions(error.message, "s3://smelt-tests/there-train has objects"));
    options.shard_tokens = 900000;
    pack("in.jsonl", "here", options);
    pack("in.jsonl", "s3://smelt-tests/there", options); /* fewer shards replace more */
    assert_in_bucket("here-train", "there-train");
    server_put("there-train/model.bin", "m", 1);
    options.overwrite = true;
    assert_false(try_pack("in.jsonl", "s3://smelt-tests/there", options, &result, &error));
    assert_true(mentions(error.message, "there-train contains model.bin, which smelt data pack did not write"));
    assert_false(try_pack("in.jsonl", "s3://smelt-tests/one", (PackOptions){0}, &result, &error));
    assert_true(mentions(error.message, "OUTPUT s3://smelt-tests/one is in a bucket set shard_tokens="));
    assert_false(try_pack("in.jsonl", "s3://smelt-tests", (PackOptions){.shard_tokens = 9}, &result, &error));
    assert_true(mentions(error.message, "names no folder in the bucket"));
    assert_false(try_pack("in.jsonl", "out", (PackOptions){.staging = "x"}, &result, &error));
    assert_true(mentions(error.message, "staging=x is for OUTPUT in a bucket"));
}

/* A shard of several parts; a failed part, a failed index and a failed record end the packing, and the same command goes on. */
static void an_interrupted_upload_continues(void **state) {
    (void)state;
    static const char *const faults[] = {"{\"kind\": \"UPLOAD\", \"key\": \"*\", \"answer\": \"403\", \"number\": 2}",
        "{\"kind\": \"PUT\", \"key\": \"shard-00001.idx\", \"answer\": \"403\"}",
        "{\"kind\": \"PUT\", \"key\": \"*tokenizer*\", \"answer\": \"403\"}",
        "{\"kind\": \"PUT\", \"key\": \"pack.json\", \"answer\": \"403\", \"number\": 2}"};
    size_t size;
    PackResult result;
    SCOPED_FREE char *lines = make_lines(8, 60000, &size);
    write_bytes("in.jsonl", lines, size);
    PackOptions options = {.shard_tokens = 14000000, .staging = "stage"};
    pack("in.jsonl", "here", (PackOptions){.shard_tokens = 14000000});
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        Error error = {0};
        fail_puts("up", faults[i]);
        assert_false(try_pack("in.jsonl", "s3://smelt-tests/up", options, &result, &error));
        if (!mentions(error.message, "s3://smelt-tests/up/")) fail_msg("%s", error.message);
        assert_true(file_exists("stage/pack.json"));
        server_accept("up");
    }
    Error error = {0};
    if (!try_pack("in.jsonl", "s3://smelt-tests/up", options, &result, &error)) fail_msg("%s", error.message);
    assert_true(result.resumed && result.shards > 1);
    assert_in_bucket("here", "up");
    assert_false(file_exists("stage"));
}

/* -- Reading at any place -------------------------------------------------------------------------------------------- */

enum { OBJECT_BYTES = 3 * OBJECT_PART_BYTES + 1000 };

static unsigned char *make_object(const char *key, S3 *s3, ObjectPlace *place) {
    unsigned char *bytes = memory_allocate(OBJECT_BYTES);
    Error error = {0};
    bool absent;
    S3Listing listing = {0};
    for (int i = 0; i < OBJECT_BYTES; i++) bytes[i] = (unsigned char)(rng_bits(9, 0, (uint64_t)i / 64).word[0] >> (i % 64 / 2));
    server_put(key, bytes, OBJECT_BYTES);
    assert_true(s3_find(s3, key, key, &listing, &absent, &error));
    *place = (ObjectPlace){
        .path = key, .s3 = s3, .key = key, .bytes = listing.entries[0].bytes, .etag = memory_copy_string(listing.entries[0].etag)};
    assert_int_equal(place->bytes, OBJECT_BYTES);
    s3_listing_free(&listing);
    return bytes;
}

static void ranges_are_read_in_any_order(void **state) {
    (void)state;
    Error error = {0};
    ObjectPlace place;
    S3 *s3 = s3_open(BUCKET, &error);
    SCOPED_FREE unsigned char *expected = make_object("object", s3, &place), *bytes = memory_allocate(OBJECT_BYTES);
    /* Two columns side by side, twice, and bytes that nothing expects. */
    const ObjectRange ranges[] = {{100, 50000}, {50000, 6000000}, {6000000, 6000000}, {7000000, OBJECT_BYTES}};
    Object *object = object_open(&place, &error);
    object_expect(object, ranges, 4, 2);
    for (uint64_t i = 0, at = 0; i < 400; i++) {
        RngBits draw = rng_bits(8, 1, i);
        int64_t offset = draw.word[0] % 4 ? (int64_t)at : (int64_t)(draw.word[1] % OBJECT_BYTES), size = (int64_t)(draw.word[2] % 60000);
        if (offset + size > OBJECT_BYTES) size = OBJECT_BYTES - offset;
        if (!object_read(object, bytes, size, offset, &error)) fail_msg("%s", error.message);
        assert_memory_equal(bytes, expected + offset, (size_t)size);
        if (offset == (int64_t)at) at = (uint64_t)(offset + size / 2);
    }
    assert_false(object_read(object, bytes, 2, OBJECT_BYTES - 1, &error));
    assert_true(mentions(error.message, "object has"));
    object_close(object);
    free((char *)place.etag);
    s3_close(s3);
}

static void an_object_that_is_replaced_or_removed_is_an_error(void **state) {
    (void)state;
    Error error = {0};
    ObjectPlace place;
    char byte;
    S3 *s3 = s3_open(BUCKET, &error);
    free(make_object("object", s3, &place));
    Object *object = object_open(&place, &error);
    server_put("object", "another", 7);
    assert_false(object_read(object, &byte, 1, 0, &error));
    if (!mentions(error.message, "object was replaced while it was read")) fail_msg("%s", error.message);
    S3Reply reply = {0};
    bool absent;
    assert_true(s3_send(s3, (S3Request){.method = "DELETE", .key = "object", .path = "object"}, &reply, &absent, &error));
    s3_reply_free(&reply);
    assert_false(object_read(object, &byte, 1, 0, &error));
    if (!mentions(error.message, "object was removed while it was read")) fail_msg("%s", error.message);
    object_close(object);
    free((char *)place.etag);
    s3_close(s3);
}

static int setup(void **state) {
    server_need();
    return enter_folder(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, leave_folder)

int main(void) {
    if (!realpath("tests/golden/parquet", golden)) return 1;
    const struct CMUnitTest tests[] = {
        TEST(objects_give_the_shards_of_a_local_copy),
        TEST(small_objects_are_requested_ahead),
        TEST(conversations_and_columns_of_rules_are_read),
        TEST(one_split_of_a_bucket_is_taken_and_token_shards_are_left_out),
        TEST(connections_that_break_cost_nothing),
        TEST(what_is_wrong_in_a_bucket_is_named),
        TEST(a_packing_that_was_interrupted_continues_unless_an_object_changed),
        TEST(shards_go_to_a_bucket),
        TEST(an_interrupted_upload_continues),
        TEST(ranges_are_read_in_any_order),
        TEST(an_object_that_is_replaced_or_removed_is_an_error),
    };
    return cmocka_run_group_tests(tests, server_setup, server_teardown);
}

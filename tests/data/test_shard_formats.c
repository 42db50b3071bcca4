/* Tests of the formats of token shards, with files that their programs wrote (tests/golden/shards, made by
 * tests/golden/shards.py, which also has Megatron read a shard of ours). Each test works in a folder of its own, on a
 * copy. */
#include <limits.h>

#include "support/data_files.h"
#include "support/mentions.h"

static char golden[PATH_MAX];

enum { DOCUMENTS = 6, TOKENS = 6 * 21 + 15, SEPARATOR = 50256 };

/* The documents of tests/golden/shards.py: 50256, then token 7 k + d. */
static int64_t expected_tokens(int32_t *tokens, int64_t ends[DOCUMENTS], int32_t more) {
    int64_t count = 0;
    for (int d = 0; d < DOCUMENTS; d++) {
        tokens[count++] = SEPARATOR + more;
        for (int k = 0; k < 20 + d; k++) tokens[count++] = 7 * k + d + more;
        ends[d] = count;
    }
    return count;
}

/* Copies a file of the golden folder to one of the same, or another, name here. */
static void take(const char *name, const char *as) {
    SCOPED_FREE char *path = memory_format("%s/%s", golden, name);
    size_t size;
    unsigned char *bytes = read_bytes(path, &size);
    write_bytes(as, bytes, size);
    free(bytes);
}

static void assert_refused(const char *path, const char *part) {
    ShardSet set;
    Error error = {0};
    if (open_verified(&set, path, &error)) fail_msg("%s was not refused", path);
    assert_int_equal(error.code, ERROR_DATA);
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

static void assert_format(const ShardSet *set, const char *format, const char *type) {
    SCOPED_FREE char *formats = shard_set_formats(set), *types = shard_set_types(set);
    assert_string_equal(formats, format);
    assert_string_equal(types, type);
}

static void shards_that_megatron_wrote_are_read_with_their_documents(void **state) {
    (void)state;
    static const char *const names[] = {"megatron_u16", "megatron_i64"}, *const types[] = {"u16", "i64"};
    int32_t tokens[TOKENS];
    int64_t ends[DOCUMENTS];
    expected_tokens(tokens, ends, 0);
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *path = memory_format("%s/%s", golden, names[i]);
        ShardSet set = open_set(path);
        assert_format(&set, "Megatron", types[i]);
        assert_tokens(&set, tokens, TOKENS);
        assert_documents(&set, ends, DOCUMENTS);
        shard_set_close(&set);
    }
}

/* A walk of a set without an index, whose documents end with `end_token`. */
static void assert_scanned(ShardSet *set, const int32_t *tokens, int32_t end_token) {
    int64_t ends[TOKENS], count = 0;
    set->end_token = end_token;
    for (int64_t i = 0, shard = 1; i < set->token_count; i++) {
        bool last = i + 1 == set->first_token[shard]; /* of a shard, which ends a document */
        if (tokens[i] == end_token || last) ends[count++] = i + 1;
        shard += last;
    }
    assert_int_equal(set->document_count, -1);
    DocumentCursor cursor = {.set = set};
    Error error = {0};
    int64_t start, end, before = 0;
    for (int64_t i = 0; i < count; i++, before = end) {
        assert_true(document_cursor_next(&cursor, &start, &end, &error));
        assert_int_equal(start, before);
        assert_int_equal(end, ends[i]);
    }
    assert_true(document_cursor_next(&cursor, &start, &end, &error));
    assert_int_equal(end, -1);
    SCOPED_FREE uint8_t *marks = NULL;
    SCOPED_FREE int32_t *read = read_tokens(set, &marks);
    for (int64_t i = 0, n = 0; i < set->token_count; i++) {
        assert_int_equal(marks[i], i + 1 == ends[n]);
        n += marks[i];
    }
}

static void files_that_llmc_and_llmq_wrote_are_read_and_their_documents_found(void **state) {
    (void)state;
    static const struct {
        const char *name, *format, *type;
        int32_t more;
    } files[] = {{"llmc_gpt2.bin", "llm.c", "u16", 0}, {"llmc_llama3.bin", "llm.c", "i32", 100000}, {"llmq.bin", "llmq", "i32", 0}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int32_t tokens[TOKENS];
        int64_t ends[DOCUMENTS];
        expected_tokens(tokens, ends, files[i].more);
        take(files[i].name, "tokens");
        assert_true(shard_set_exists("tokens"));
        ShardSet set = open_set("tokens");
        assert_format(&set, files[i].format, files[i].type);
        assert_tokens(&set, tokens, TOKENS);
        assert_scanned(&set, tokens, SEPARATOR + files[i].more);
        assert_int_equal(set.max_token, SEPARATOR + files[i].more);
        shard_set_close(&set);
    }
}

static void a_file_of_tokens_that_is_cut_off_or_masked_is_refused_by_name(void **state) {
    (void)state;
    static const char *const names[] = {"llmc_gpt2.bin", "llmc_llama3.bin", "llmq.bin"};
    for (int i = 0; i < 3; i++) {
        take(names[i], "tokens");
        assert_int_equal(truncate("tokens", 1200), 0);
        assert_refused("tokens", "tokens 1200 header");
    }
    take("llmq_masks.bin", "tokens");
    assert_refused("tokens", "tokens masks the loss");
    size_t size;
    take("llmc_gpt2.bin", "tokens");
    unsigned char *bytes = read_bytes("tokens", &size);
    bytes[4] = 2;
    write_bytes("tokens", bytes, size);
    free(bytes);
    assert_refused("tokens", "version 2 of llm.c's format");
    write_text("text", "some text");
    assert_false(shard_set_exists("text"));
    assert_refused("text", "text is not a token shard");
}

static void files_of_a_folder_are_named_by_a_pattern_where_parts_lie_beside_each_other(void **state) {
    (void)state;
    assert_int_equal(mkdir("all", 0777), 0);
    take("llmc_gpt2.bin", "all/x_train_000001.bin");
    take("llmc_gpt2.bin", "all/x_train_000002.bin");
    take("llmc_gpt2.bin", "all/x_val_000000.bin");
    assert_refused("all", "training validation part");
    assert_true(shard_set_exists("all/x_train_*.bin"));
    assert_false(shard_set_exists("all/y_*.bin"));
    ShardSet set = open_set("all/x_train_*.bin");
    assert_int_equal(set.count, 2);
    assert_int_equal(set.token_count, 2 * TOKENS);
    shard_set_close(&set);
}

static void samples_that_mosaics_writer_wrote_are_read_raw_and_compressed(void **state) {
    (void)state;
    int32_t tokens[TOKENS], rows[DOCUMENTS * 20];
    int64_t ends[DOCUMENTS];
    expected_tokens(tokens, ends, 0);
    SCOPED_FREE char *compressed = memory_format("%s/mds_bytes", golden), *raw = memory_format("%s/mds_array", golden);
    ShardSet set = open_set(compressed);
    assert_format(&set, "MDS", "i64");
    assert_int_equal(set.count, 2);
    assert_tokens(&set, tokens, TOKENS);
    assert_scanned(&set, tokens, SEPARATOR);
    shard_set_close(&set);
    for (int d = 0; d < DOCUMENTS; d++) memcpy(rows + 20 * d, tokens + (d ? ends[d - 1] : 0), 20 * sizeof *rows);
    set = open_set(raw);
    assert_format(&set, "MDS", "u16");
    assert_tokens(&set, rows, DOCUMENTS * 20);
    Error error = {0};
    for (int64_t first = 0; first < DOCUMENTS * 20; first++) {
        int32_t part[45];
        int64_t count = DOCUMENTS * 20 - first < 45 ? DOCUMENTS * 20 - first : 45;
        assert_true(shard_set_read(&set, first, count, SEPARATOR + 1, part, NULL, &error));
        assert_memory_equal(part, rows + first, (size_t)count * sizeof *part);
    }
    shard_set_close(&set);
}

static void mds_that_is_damaged_missing_or_without_tokens_is_refused_by_name(void **state) {
    (void)state;
    SCOPED_FREE char *text = memory_format("%s/mds_text", golden);
    assert_refused(text, "column");
    assert_int_equal(mkdir("raw", 0777) | mkdir("packed", 0777), 0);
    take("mds_array/index.json", "raw/index.json");
    assert_true(shard_set_exists("raw"));
    assert_refused("raw", "raw/shard.00000.mds");
    take("mds_array/shard.00000.mds", "raw/shard.00000.mds");
    size_t size;
    unsigned char *bytes = read_bytes("raw/shard.00000.mds", &size);
    write_bytes("raw/shard.00000.mds", bytes, size - 1);
    assert_refused("raw", "raw/shard.00000.mds 5 6");
    bytes[12]++; /* the offset of sample 2, where sample 1 ends */
    write_bytes("raw/shard.00000.mds", bytes, size);
    assert_refused("raw", "raw/shard.00000.mds 1 6");
    bytes[12]--;
    char *sizes = memmem(bytes, size, "\"column_sizes\": [", 17);
    assert_non_null(sizes);
    char *last = strchr(sizes, ']') - 1; /* a digit of the tokens' bytes, which the offsets contradict */
    *last = '8';
    write_bytes("raw/shard.00000.mds", bytes, size);
    assert_refused("raw", "raw/shard.00000.mds 0 6");
    free(bytes);
    take("mds_bytes/index.json", "packed/index.json");
    take("mds_bytes/shard.00000.mds.zstd", "packed/shard.00000.mds.zstd");
    take("mds_bytes/shard.00001.mds.zstd", "packed/shard.00001.mds.zstd");
    ShardSet set = open_set("packed");
    shard_set_close(&set);
    size_t index_size;
    unsigned char *index = read_bytes("packed/index.json", &index_size);
    char *raw = memmem(index, index_size, "\"bytes\": 931", 12);
    assert_non_null(raw);
    memcpy(raw, "\"bytes\": 930", 12);
    write_bytes("packed/index.json", index, index_size);
    free(index);
    assert_refused("packed", "shard.00000.mds.zstd 930");
    take("mds_bytes/index.json", "packed/index.json");
    assert_int_equal(truncate("packed/shard.00001.mds.zstd", 100), 0);
    assert_refused("packed", "shard.00001.mds.zstd");
}

int main(void) {
    if (!realpath("tests/golden/shards", golden)) return 1;
    const struct CMUnitTest tests[] = {
        IN_FOLDER(shards_that_megatron_wrote_are_read_with_their_documents),
        IN_FOLDER(files_that_llmc_and_llmq_wrote_are_read_and_their_documents_found),
        IN_FOLDER(a_file_of_tokens_that_is_cut_off_or_masked_is_refused_by_name),
        IN_FOLDER(files_of_a_folder_are_named_by_a_pattern_where_parts_lie_beside_each_other),
        IN_FOLDER(samples_that_mosaics_writer_wrote_are_read_raw_and_compressed),
        IN_FOLDER(mds_that_is_damaged_missing_or_without_tokens_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tests of token shards: reading, refusing what is damaged, writing. Each test gets a temporary folder of its own,
 * which is the working directory while it runs and is removed afterwards; run by `make test`. */
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <xxhash.h>

#include "support/data_files.h"

#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "support/mentions.h"
#include "support/sanitized.h"

/* -- Reading ----------------------------------------------------------------------------------------------------- */

/* Opening, or reading everything, must fail as bad data, with a message that contains `part`, and must leave nothing to
 * close. */
static void assert_refused(const char *prefix, const char *part) {
    ShardSet set;
    Error error = {0};
    assert_false(open_verified(&set, prefix, &error));
    assert_int_equal(error.code, ERROR_DATA);
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
    assert_null(set.shards);
}

static void a_shard_gives_back_what_was_written(void **state) {
    (void)state;
    static const int widths[] = {1, 2, 4};
    static const int32_t largest[] = {255, 65535, INT32_MAX};
    static const int64_t lengths[] = {3, 1, 0, 4};
    for (int i = 0; i < 3; i++) {
        int32_t tokens[] = {0, largest[i], 7, 42, 1, 2, 3, 4};
        write_shard("s", widths[i], tokens, lengths, 4);
        ShardSet set = open_set("s");
        assert_int_equal(shard_set_bytes(&set), 8 * widths[i]);
        assert_int_equal(set.max_token, largest[i]);
        assert_true(shard_set_checksummed(&set));
        assert_tokens(&set, tokens, 8);
        assert_documents(&set, (const int64_t[]){3, 4, 4, 8}, 4);
        shard_set_close(&set);
    }
}

static void a_shard_written_by_hand_as_megatron_defines_it_is_read(void **state) {
    (void)state;
    write_hand_shard();
    ShardSet set = open_set("m");
    assert_tokens(&set, (const int32_t[]){5, 256 + 6, 2 * 65536 + 7, 8, 9, 10}, 6);
    assert_documents(&set, (const int64_t[]){3, 6}, 2);
    assert_int_equal(set.max_token, 2 * 65536 + 7);
    assert_false(shard_set_checksummed(&set));
    shard_set_close(&set);
}

static void the_writer_leaves_megatrons_bytes_and_then_its_checksums(void **state) {
    (void)state;
    unsigned char expected[146] = "MMIDIDX\0\0"
                                  "\1\0\0\0\0\0\0\0" /* version */
                                  "\10"              /* uint16 */
                                  "\2\0\0\0\0\0\0\0"
                                  "\3\0\0\0\0\0\0\0"
                                  "\2\0\0\0\1\0\0\0" /* lengths */
                                  "\0\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0"
                                  "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0"
                                  "TOKENS--ARRAYS--" /* checksums of blocks, filled in below, as those of the trailer */
                                  "SMELTBLK"
                                  "\0\1\0\0\0\0\0\0" /* largest token */
                                  "TOKENS--ENDS----BLOCKS--SELF----";
    write_shard("s", 2, (const int32_t[]){1, 256, 3}, (const int64_t[]){2, 1}, 2);
    size_t size;
    unsigned char *index = read_bytes("s.idx", &size);
    const struct {
        int at;
        const void *bytes;
        size_t size;
    } sums[] = {{82, "\1\0\0\1\3\0", 6}, {90, expected, 82}, {114, "\1\0\0\1\3\0", 6}, {122, (const int64_t[]){2, 3}, 16},
        {130, expected + 82, 16}, {138, expected + 98, 40}};
    for (int i = 0; i < 6; i++) memcpy(expected + sums[i].at, &(uint64_t){XXH3_64bits(sums[i].bytes, sums[i].size)}, 8);
    assert_int_equal(size, sizeof expected);
    assert_memory_equal(index, expected, sizeof expected);
    free(index);
    unsigned char *tokens = read_bytes("s.bin", &size);
    assert_int_equal(size, 6);
    assert_memory_equal(tokens, ((const unsigned char[]){1, 0, 0, 1, 3, 0}), 6);
    free(tokens);
}

/* One field of the hand-written index takes a wrong value. */
typedef struct Mutation {
    size_t offset;
    int bytes;
    int64_t value;
    const char *message;
} Mutation;

static void a_wrong_value_in_any_field_is_refused_with_a_reason(void **state) {
    (void)state;
    static const Mutation mutations[] = {
        {0, 1, 'X', "not a Megatron index"},
        {7, 1, 1, "not a Megatron index"},
        {8, 1, 1, "not a Megatron index"},
        {9, 8, 0, "version 0"},
        {9, 8, 2, "version 2"},
        {9, 8, (int64_t)1 << 56, "version"},
        {17, 1, 0, "type 0"},
        {17, 1, 9, "type 9"},
        {17, 1, 255, "type 255"},
        {17, 1, 1, "describes 15"},
        {17, 1, 2, "(i8)"},
        {17, 1, 3, "(i16)"},
        {17, 1, 5, "describes 36"},
        {17, 1, 6, "(f64)"},
        {17, 1, 7, "(f32)"},
        {17, 1, 8, "describes 18"},
        {18, 8, 0, "claims 0 sequences"},
        {18, 8, 2, "first document"},
        {18, 8, 4, "claims 3 document entries"},
        {18, 8, 6, "claims 6 sequences"},
        {18, 8, 15, "claims 15 sequences"},
        {18, 8, -1, "claims 18446744073709551615 sequences"},
        {18, 8, INT64_MAX, "sequences"},
        {26, 8, 0, "claims 0 document entries"},
        {26, 8, 1, "claims 1 document entries"},
        {26, 8, 2, "last document"},
        {26, 8, 4, "claims 4 document entries"},
        {26, 8, -1, "document entries"},
        {26, 8, (int64_t)1 << 61, "document entries"},
        {34, 4, 1, "ends at byte 4"},
        {34, 4, 3, "ends at byte 12"},
        {34, 4, -1, "length of -1"},
        {34, 4, INT32_MAX, "length of 2147483647"},
        {42, 4, 2, "has 24 bytes but m.idx describes 20"},
        {42, 4, 4, "describes 28"},
        {42, 4, INT32_MIN, "describes -"},
        {46, 8, 4, "sequence 0 at byte 4"},
        {46, 8, -8, "sequence 0 at byte -8"},
        {54, 8, 0, "sequence 1 at byte 0"},
        {62, 8, INT64_MAX, "m.idx describes"},
        {70, 8, 1, "first document"},
        {70, 8, -1, "first document"},
        {78, 8, 4, "document 0"},
        {78, 8, -1, "document 0"},
        {78, 8, INT64_MIN, "document 0"},
        {86, 8, 1, "document 1"},
        {86, 8, 2, "last document"},
        {86, 8, 4, "document 1"},
    };
    write_hand_shard();
    for (size_t i = 0; i < sizeof mutations / sizeof *mutations; i++) {
        unsigned char index[sizeof hand_index];
        memcpy(index, hand_index, sizeof index);
        memcpy(index + mutations[i].offset, &mutations[i].value, (size_t)mutations[i].bytes);
        write_bytes("m.idx", index, sizeof index);
        assert_refused("m", mutations[i].message);
    }
}

static void an_index_of_any_other_length_is_refused(void **state) {
    (void)state;
    write_hand_shard();
    for (size_t size = 0; size < sizeof hand_index; size++) {
        write_bytes("m.idx", hand_index, size);
        assert_refused("m", "m.idx");
    }
    unsigned char longer[sizeof hand_index + 40] = {0};
    memcpy(longer, hand_index, sizeof hand_index);
    for (size_t size = sizeof hand_index + 1; size <= sizeof longer; size++) {
        write_bytes("m.idx", longer, size);
        assert_refused("m", "3 document entries");
    }
}

static void tokens_of_any_other_length_are_refused(void **state) {
    (void)state;
    write_hand_shard();
    unsigned char longer[sizeof hand_tokens + 8] = {0};
    memcpy(longer, hand_tokens, sizeof hand_tokens);
    for (size_t size = 0; size <= sizeof longer; size++) {
        if (size == sizeof hand_tokens) continue;
        write_bytes("m.bin", longer, size);
        assert_refused("m", size < sizeof hand_tokens ? "truncated" : "together");
    }
}

static void a_negative_token_is_refused_with_its_place(void **state) {
    (void)state;
    write_hand_shard();
    unsigned char tokens[sizeof hand_tokens];
    memcpy(tokens, hand_tokens, sizeof tokens);
    memset(tokens + 16, 255, 4);
    write_bytes("m.bin", tokens, sizeof tokens);
    assert_refused("m", "token -1 index 4");
}

static void every_flipped_bit_of_a_shard_that_smelt_wrote_is_noticed(void **state) {
    (void)state;
    static const int32_t tokens[] = {104, 105, 256, 97, 256};
    write_shard("s", 2, tokens, (const int64_t[]){3, 2}, 2);
    static const char *const names[] = {"s.idx", "s.bin"};
    for (int file = 0; file < 2; file++) {
        size_t size;
        unsigned char *bytes = read_bytes(names[file], &size);
        for (size_t bit = 0; bit < size * 8; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            write_bytes(names[file], bytes, size);
            assert_refused("s", names[file]);
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
        write_bytes(names[file], bytes, size);
        free(bytes);
    }
    ShardSet set = open_set("s");
    shard_set_close(&set);
}

static void a_shard_cut_short_anywhere_is_refused(void **state) {
    (void)state;
    write_shard("s", 1, (const int32_t[]){1, 2, 3}, (const int64_t[]){2, 1}, 2);
    size_t size;
    unsigned char *index = read_bytes("s.idx", &size);
    for (size_t cut = 0; cut < size; cut++) {
        if (cut == 82) continue; /* without smelt's trailer it is Megatron's own form */
        write_bytes("s.idx", index, cut);
        assert_refused("s", "s.idx");
    }
    free(index);
}

/* What every accepted shard promises to its readers: a walk over the documents and reading all tokens agree. */
static void assert_consistent(const ShardSet *set) {
    SCOPED_FREE uint8_t *ends = NULL;
    SCOPED_FREE int32_t *tokens = read_tokens(set, &ends);
    DocumentCursor cursor = {.set = set};
    Error error = {0};
    int64_t start = 0, end = 0, last = 0;
    for (; end >= 0; last = cursor.token) {
        assert_true(document_cursor_next(&cursor, &start, &end, &error));
        assert_int_equal(start, last);
        for (int64_t i = start; i < end; i++) assert_int_equal(ends[i], i == end - 1);
    }
    assert_int_equal(last, set->token_count);
    for (int64_t i = 0; i < set->token_count; i++) assert_in_range(tokens[i], 0, set->max_token);
}

/* Values that break careless arithmetic. */
static uint64_t hostile_value(uint32_t random) {
    static const uint64_t values[] = {0, 1, 2, 3, 4, 8, 255, 1u << 31, UINT32_MAX, (uint64_t)1 << 61, (uint64_t)1 << 62, (uint64_t)1 << 63,
        INT64_MAX, UINT64_MAX, UINT64_MAX / 12, UINT64_MAX - 33};
    return values[random % (sizeof values / sizeof *values)];
}

static void a_mutated_index_is_refused_or_stays_consistent(void **state) {
    (void)state;
    write_hand_shard();
    int accepted = 0, refused = 0;
    for (uint64_t round = 0; round < 6000; round++) {
        unsigned char index[sizeof hand_index + 32] = {0};
        memcpy(index, hand_index, sizeof hand_index);
        RngBits bits = rng_bits(1, 99, round);
        size_t size = sizeof hand_index;
        for (uint32_t change = 0; change <= bits.word[0] % 3; change++) {
            RngBits more = rng_bits(2 + change, 99, round);
            uint64_t value = hostile_value(more.word[1]);
            size_t place = more.word[0] % (sizeof hand_index - 8);
            if (more.word[2] % 4 == 0) memcpy(index + place, &more.word[3], 4);
            else memcpy(index + place, &value, more.word[2] % 2 ? 8 : 1);
        }
        if (bits.word[1] % 8 == 0) size = bits.word[2] % (sizeof index + 1);
        write_bytes("m.idx", index, size);
        ShardSet set;
        Error error = {0};
        if (open_verified(&set, "m", &error)) {
            assert_consistent(&set);
            shard_set_close(&set);
            accepted++;
        } else {
            assert_int_equal(error.code, ERROR_DATA);
            assert_true(strlen(error.message) > 20);
            refused++;
        }
    }
    assert_true(refused > 3000 && accepted > 10); /* both sides of the decision were exercised */
}

static void a_shard_that_is_not_there_is_refused_by_name(void **state) {
    (void)state;
    assert_refused("none", "none is not a token shard");
    write_bytes("m.bin", hand_tokens, sizeof hand_tokens);
    assert_refused("m", "m.idx");
}

static void a_pipe_or_folder_in_place_of_a_shard_is_refused_without_waiting(void **state) {
    (void)state;
    write_hand_shard();
    assert_int_equal(unlink("m.idx"), 0);
    assert_int_equal(mkfifo("m.idx", 0600), 0);
    assert_refused("m", "regular");
    assert_int_equal(unlink("m.bin"), 0);
    assert_int_equal(mkdir("m.bin", 0700), 0);
    assert_refused("m", "regular");
}

/* -- Reading without having read everything -------------------------------------------------------------------------- */

enum { BLOCK_TOKENS = 8192, LARGE_TOKENS = 5 * BLOCK_TOKENS / 2, LARGE_DOCUMENTS = 2000 };

/* Three blocks of tokens, and as many of index. */
static void write_large(const char *prefix) {
    int32_t *tokens = memory_allocate(LARGE_TOKENS * sizeof *tokens);
    int64_t lengths[LARGE_DOCUMENTS];
    for (int i = 0; i < LARGE_TOKENS; i++) tokens[i] = i % 1000;
    for (int i = 0; i < LARGE_DOCUMENTS; i++) lengths[i] = LARGE_TOKENS / LARGE_DOCUMENTS;
    lengths[LARGE_DOCUMENTS - 1] += LARGE_TOKENS % LARGE_DOCUMENTS;
    write_shard(prefix, 2, tokens, lengths, LARGE_DOCUMENTS);
    free(tokens);
}

static void a_changed_block_is_named_by_whoever_reads_it_and_by_nobody_else(void **state) {
    (void)state;
    write_large("s");
    size_t size;
    unsigned char *bytes = read_bytes("s.bin", &size);
    bytes[2 * BLOCK_TOKENS + 9] ^= 1;
    write_bytes("s.bin", bytes, size);
    free(bytes);
    ShardSet set;
    Error error = {0};
    int32_t tokens[2 * BLOCK_TOKENS];
    assert_true(shard_set_open(&set, "s", &error));
    assert_int_equal(set.max_token, 999);
    assert_true(shard_set_read(&set, 0, BLOCK_TOKENS, 1000, tokens, NULL, &error));
    assert_true(shard_set_read(&set, 2 * BLOCK_TOKENS, BLOCK_TOKENS / 2, 1000, tokens, NULL, &error));
    assert_false(shard_set_read(&set, BLOCK_TOKENS - 1, 2, 1000, tokens, NULL, &error));
    assert_int_equal(error.code, ERROR_DATA);
    assert_mentions(error.message, "s.bin 16384 20479");
    assert_false(shard_set_verify(&set, &error));
    assert_mentions(error.message, "s.bin 16384 20479");
    shard_set_close(&set);
}

static void a_file_cut_off_while_it_is_open_is_an_error_of_the_read(void **state) {
    (void)state;
    write_large("s");
    ShardSet set;
    Error error = {0};
    int32_t tokens[BLOCK_TOKENS];
    assert_true(shard_set_open(&set, "s", &error));
    assert_int_equal(truncate("s.bin", 20000), 0);
    assert_true(shard_set_read(&set, 0, BLOCK_TOKENS, 1000, tokens, NULL, &error));
    assert_false(shard_set_read(&set, BLOCK_TOKENS, 1, 1000, tokens, NULL, &error));
    assert_int_equal(error.code, ERROR_DATA);
    assert_mentions(error.message, "s.bin 20000");
    shard_set_close(&set);
}

/* Whatever byte of the index is wrong: what is read of tokens and documents is refused, or right. */
static void a_changed_index_never_gives_other_documents(void **state) {
    (void)state;
    write_large("s");
    ShardSet whole = open_set("s");
    SCOPED_FREE uint8_t *expected = NULL;
    SCOPED_FREE int32_t *tokens = read_tokens(&whole, &expected);
    shard_set_close(&whole);
    size_t size;
    unsigned char *bytes = read_bytes("s.idx", &size);
    SCOPED_FREE uint8_t *ends = memory_allocate(LARGE_TOKENS);
    int refused = 0, rounds = 0;
    for (size_t at = 0; at < size; at += 97, rounds++) {
        ShardSet set;
        Error error = {0};
        bytes[at] ^= 4;
        write_bytes("s.idx", bytes, size);
        bytes[at] ^= 4;
        bool good = shard_set_open(&set, "s", &error);
        if (good && shard_set_read(&set, 0, LARGE_TOKENS, 1000, tokens, ends, &error)) assert_memory_equal(ends, expected, LARGE_TOKENS);
        else assert_non_null(strstr(error.message, good && strstr(error.message, "s.bin") ? "s.bin" : "s.idx"));
        refused += error.code != ERROR_NONE;
        assert_true(!good || !shard_set_verify(&set, &error));
        if (good) shard_set_close(&set);
    }
    assert_true(refused > rounds / 2);
    free(bytes);
}

/* Writes Megatron's form of 1 TB of zeros in `sequences` documents, which takes no space for the tokens. */
static void write_terabyte(int64_t bytes, int64_t sequences) {
    size_t size = 34 + (size_t)sequences * 20 + 8;
    unsigned char *index = memory_allocate(size), *at = index + 34;
    const int32_t length = (int32_t)(bytes / 2 / sequences);
    memcpy(index, "MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18);
    memcpy(index + 18, &sequences, 8);
    memcpy(index + 26, &(int64_t){sequences + 1}, 8);
    for (int64_t i = 0; i < sequences; i++, at += 4) memcpy(at, &length, 4);
    for (int64_t i = 0; i < sequences; i++, at += 8) memcpy(at, &(int64_t){i * length * 2}, 8);
    for (int64_t i = 0; i <= sequences; i++, at += 8) memcpy(at, &i, 8);
    write_bytes("t.idx", index, size);
    write_text("t.bin", "");
    assert_int_equal(truncate("t.bin", sequences * length * 2), 0);
    free(index);
}

static void opening_and_reading_take_the_same_memory_for_ten_megabytes_and_for_a_terabyte(void **state) {
    (void)state;
    if (SANITIZED) skip(); /* mallinfo2 knows nothing of a sanitizer's allocator */
    static const struct { int64_t bytes, sequences; } sizes[] = {{10 << 20, 1 << 10}, {(int64_t)1 << 40, 1 << 20}};
    size_t used[2];
    double seconds[2];
    for (int i = 0; i < 2; i++) {
        write_terabyte(sizes[i].bytes, sizes[i].sequences);
        ShardSet set;
        Error error = {0};
        int32_t tokens[4096];
        uint8_t ends[4096];
        size_t before = mallinfo2().uordblks;
        double start = log_seconds();
        assert_true(shard_set_open(&set, "t", &error));
        seconds[i] = log_seconds() - start;
        for (uint64_t draw = 0; draw < 1000; draw++) {
            int64_t at = (int64_t)rng_permute(1, 2, draw, (uint64_t)set.token_count - 4096);
            assert_true(shard_set_read(&set, at, 4096, 1, tokens, ends, &error));
        }
        used[i] = mallinfo2().uordblks - before;
        print_message("%lld bytes: opened in %.6f s, %zu bytes of memory\n", (long long)shard_set_bytes(&set), seconds[i], used[i]);
        shard_set_close(&set);
    }
    for (int i = 0; i < 2; i++) assert_in_range(used[i], 1, 1000);
    assert_true(seconds[1] < 1); /* reading it would take minutes */
}

/* -- Other programs' and older shards -------------------------------------------------------------------------------- */

static void tokens_of_eight_bytes_are_read_and_those_beyond_int32_are_named(void **state) {
    (void)state;
    unsigned char index[sizeof hand_index];
    memcpy(index, hand_index, sizeof index);
    index[17] = 5; /* i64 */
    for (int i = 0; i < 3; i++) index[46 + 8 * i] *= 2;
    write_bytes("m.idx", index, sizeof index);
    int64_t tokens[] = {5, 6, INT32_MAX, 8, 9, 10};
    write_bytes("m.bin", tokens, sizeof tokens);
    ShardSet set = open_set("m");
    assert_tokens(&set, (const int32_t[]){5, 6, INT32_MAX, 8, 9, 10}, 6);
    assert_documents(&set, (const int64_t[]){3, 6}, 2);
    assert_int_equal(set.max_token, INT32_MAX);
    shard_set_close(&set);
    tokens[2]++;
    write_bytes("m.bin", tokens, sizeof tokens);
    assert_refused("m", "m.bin 2147483648 2");
    tokens[2] = INT64_MIN;
    write_bytes("m.bin", tokens, sizeof tokens);
    assert_refused("m", "m.bin -9223372036854775808 2");
}

static void a_shard_of_smelt_0_9_is_read_and_has_the_checksum_of_the_same_shard_written_now(void **state) {
    (void)state;
    unsigned char index[sizeof hand_index + 24];
    memcpy(index, hand_index, sizeof hand_index);
    memcpy(index + sizeof hand_index, "SMELTSUM", 8);
    memcpy(index + sizeof hand_index + 8, &(uint64_t){XXH3_64bits(hand_tokens, sizeof hand_tokens)}, 8);
    memcpy(index + sizeof hand_index + 16, &(uint64_t){XXH3_64bits(index, sizeof hand_index + 16)}, 8);
    write_hand_shard();
    write_bytes("m.idx", index, sizeof index);
    write_shard("now", 4, (const int32_t[]){5, 256 + 6, 2 * 65536 + 7, 8, 9, 10}, (const int64_t[]){3, 3}, 2);
    ShardSet old = open_set("m"), now = open_set("now");
    uint64_t before, after;
    Error error = {0};
    assert_true(shard_set_checksummed(&old));
    assert_true(shard_set_checksum(&old, &before, &error));
    assert_true(shard_set_checksum(&now, &after, &error));
    assert_int_equal(before, after);
    shard_set_close(&old);
    shard_set_close(&now);
    index[40] ^= 1;
    write_bytes("m.idx", index, sizeof index);
    assert_refused("m", "m.idx");
}

/* -- Folders of shards ----------------------------------------------------------------------------------------------- */

static void a_folder_of_shards_is_one_stream_in_byte_order_of_names(void **state) {
    (void)state;
    assert_int_equal(mkdir("all", 0777), 0);
    write_shard("all/b", 2, (const int32_t[]){5, 6, 7, 8}, (const int64_t[]){1, 3}, 2);
    write_shard("all/a10", 4, (const int32_t[]){70000}, (const int64_t[]){1}, 1);
    write_shard("all/a9", 1, (const int32_t[]){1, 2, 3}, (const int64_t[]){2, 0, 1}, 3);
    write_text("all/notes.txt", "");
    for (int slash = 0; slash < 2; slash++) {
        ShardSet set = open_set(slash ? "all/" : "all");
        SCOPED_FREE char *types = shard_set_types(&set);
        assert_int_equal(set.count, 3);
        assert_int_equal(set.max_token, 70000);
        assert_string_equal(types, "i32, u8, u16");
        assert_tokens(&set, (const int32_t[]){70000, 1, 2, 3, 5, 6, 7, 8}, 8);
        assert_documents(&set, (const int64_t[]){1, 3, 3, 4, 5, 8}, 6);
        assert_consistent(&set);
        shard_set_close(&set);
    }
}

/* Every stretch of a stream of many shards against the whole. */
static void any_part_of_a_stream_is_what_it_is_in_the_whole(void **state) {
    (void)state;
    enum { SHARDS = 7, MOST = SHARDS * 6 };
    assert_int_equal(mkdir("all", 0777), 0);
    int32_t next = 0;
    for (int i = 0; i < SHARDS; i++) {
        char name[16];
        int64_t lengths[] = {i % 3, 1, i % 2};
        int32_t tokens[6];
        for (int t = 0; t < 6; t++) tokens[t] = next + t;
        next += (int32_t)(lengths[0] + lengths[1] + lengths[2]);
        snprintf(name, sizeof name, "all/%d", i);
        write_shard(name, 1 << i % 3, tokens, lengths, 3);
    }
    ShardSet set = open_set("all");
    SCOPED_FREE uint8_t *ends = NULL;
    SCOPED_FREE int32_t *tokens = read_tokens(&set, &ends);
    Error error = {0};
    assert_int_equal(set.token_count, next);
    for (int64_t first = 0; first < next; first++)
        for (int64_t count = 1; count <= next - first; count++) {
            int32_t part[MOST];
            uint8_t part_ends[MOST];
            assert_true(shard_set_read(&set, first, count, next, part, part_ends, &error));
            assert_memory_equal(part, tokens + first, (size_t)count * sizeof *part);
            assert_memory_equal(part_ends, ends + first, (size_t)count);
            for (int64_t i = 0; i < count; i++) assert_int_equal(part[i], first + i);
        }
    shard_set_close(&set);
}

static void a_folder_with_parts_tokenizers_or_files_that_do_not_belong_together_is_refused(void **state) {
    (void)state;
    assert_int_equal(mkdir("all", 0777), 0);
    write_shard("all/text-train", 2, (const int32_t[]){5}, (const int64_t[]){1}, 1);
    write_shard("all/text-valid", 2, (const int32_t[]){5}, (const int64_t[]){1}, 1);
    assert_refused("all", "all/text-train or all/text-valid");
    assert_int_equal(rename("all/text-valid.bin", "all/u.bin") | rename("all/text-valid.idx", "all/u.idx"), 0);
    ShardSet set = open_set("all");
    shard_set_close(&set);
    assert_int_equal(mkdir("all/u.tokenizer", 0777), 0);
    json_auto_t *tokenizer = byte_tokenizer();
    assert_int_equal(json_dump_file(tokenizer, "all/u.tokenizer/tokenizer.json", 0), 0);
    assert_refused("all", "all/text-train all/u");
    assert_int_equal(rename("all/u.tokenizer", "all/other"), 0);
    assert_int_equal(unlink("all/u.bin"), 0);
    assert_refused("all", "all/u.bin");
}

static void a_folder_that_pack_wrote_has_one_tokenizer_and_is_refused_until_it_is_complete(void **state) {
    (void)state;
    assert_int_equal(mkdir("all", 0777) | mkdir("all/tokenizer", 0777), 0);
    write_shard("all/shard-00000", 2, (const int32_t[]){5}, (const int64_t[]){1}, 1);
    write_shard("all/shard-00001", 2, (const int32_t[]){6}, (const int64_t[]){1}, 1);
    json_auto_t *tokenizer = byte_tokenizer();
    assert_int_equal(json_dump_file(tokenizer, "all/tokenizer/tokenizer.json", 0), 0);
    SCOPED_FREE char *recorded = NULL;
    Error error = {0};
    assert_true(shard_set_tokenizer("all", &recorded, &error));
    assert_string_equal(recorded, "");
    write_text("all/pack.json", "{\"complete\": false}");
    assert_true(shard_set_exists("all"));
    assert_refused("all", "all incomplete");
    write_text("all/pack.json", "{\"complete\": true}");
    ShardSet set = open_set("all");
    assert_tokens(&set, (const int32_t[]){5, 6}, 2);
    shard_set_close(&set);
}

/* A link to itself is there, and no system call can read it. */
static void what_cannot_be_read_now_is_not_absent(void **state) {
    (void)state;
    bool bytes;
    char *recorded;
    Error error = {0};
    assert_int_equal(mkdir("all", 0777) | mkdir("all/tokenizer", 0777), 0);
    write_shard("all/shard-00000", 2, (const int32_t[]){5}, (const int64_t[]){1}, 1);
    static const char *const names[] = {"all/other.bin", "all/index.json", "all/pack.json", "all/tokenizer/tokenizer.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(symlink(strrchr(names[i], '/') + 1, names[i]), 0);
        assert_true(shard_set_exists("all"));
        if (i < 3) assert_refused("all", names[i]);
        else assert_true(!shard_set_tokenizer("all", &recorded, &error) && mentions(error.message, names[i]));
        if (i == 3) assert_true(!byte_tokenizer_is("all/tokenizer", &bytes, &error) && mentions(error.message, names[i]));
        assert_int_equal(remove(names[i]), 0);
    }
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_true(shard_set_exists("loop"));
    assert_refused("loop", "cannot read loop");
    ShardSet set = open_set("all");
    assert_tokens(&set, (const int32_t[]){5}, 1);
    shard_set_close(&set);
}

static void a_token_outside_the_vocabulary_is_named_where_it_is_read(void **state) {
    (void)state;
    write_shard("s", 2, (const int32_t[]){1, 2, 300, 4}, (const int64_t[]){4}, 1);
    ShardSet set = open_set("s");
    Error error = {0};
    int32_t tokens[4];
    assert_true(shard_set_read(&set, 0, 2, 300, tokens, NULL, &error));
    assert_true(shard_set_read(&set, 0, 4, 301, tokens, NULL, &error));
    assert_false(shard_set_read(&set, 1, 3, 300, tokens, NULL, &error));
    assert_int_equal(error.code, ERROR_DATA);
    assert_mentions(error.message, "s.bin 300 2 300");
    shard_set_close(&set);
}

/* -- Writing ----------------------------------------------------------------------------------------------------- */

static void a_token_that_does_not_fit_its_width_is_refused_with_its_value(void **state) {
    (void)state;
    static const struct {
        int width;
        int32_t token;
    } cases[] = {{1, 256}, {2, 65536}, {1, -1}, {2, -1}, {4, -1}, {4, INT32_MIN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error error = {0};
        ShardWriter *writer = shard_writer_open("s", cases[i].width, &error);
        int32_t tokens[] = {1, 2, cases[i].token, 3};
        char expected[64];
        snprintf(expected, sizeof expected, "token %" PRId32 " s.bin", cases[i].token);
        assert_false(shard_writer_document(writer, tokens, 4, &error));
        assert_int_equal(error.code, ERROR_DATA);
        assert_mentions(error.message, expected);
        shard_writer_cancel(writer);
        assert_int_equal(count_entries(), 0);
    }
}

static void nothing_has_the_final_name_before_the_writer_finishes(void **state) {
    (void)state;
    Error error = {0};
    ShardWriter *writer = shard_writer_open("s", 2, &error);
    assert_true(shard_writer_document(writer, (const int32_t[]){1}, 1, &error));
    assert_int_equal(access("s.bin", F_OK), -1);
    assert_int_equal(access("s.idx", F_OK), -1);
    assert_true(shard_writer_finish(writer, &error));
    assert_int_equal(count_entries(), 2);
}

static void a_writer_without_tokens_fails_and_leaves_nothing(void **state) {
    (void)state;
    Error error = {0};
    ShardWriter *writer = shard_writer_open("s", 2, &error);
    assert_true(shard_writer_document(writer, NULL, 0, &error));
    assert_false(shard_writer_finish(writer, &error));
    assert_int_equal(error.code, ERROR_DATA);
    assert_int_equal(count_entries(), 0);
}

static void a_writer_in_a_missing_folder_fails_by_name(void **state) {
    (void)state;
    Error error = {0};
    assert_null(shard_writer_open("missing/s", 2, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "missing/s.bin");
}

static void what_a_killed_writer_left_is_removed_and_nothing_else(void **state) {
    (void)state;
    static const char *const kept[] = {"run-1.bin", "notes.tmp-1", "run.bin.partial-draft"};
    for (int i = 0; i < 3; i++) write_text(kept[i], "");
    pid_t child = fork();
    Error error = {0};
    if (child == 0) {
        FolderDraft killed;
        _exit(shard_writer_open("s", 2, &error) && shard_writer_open("t", 2, &error) && file_folder_begin(&killed, "folder/", &error) ? 0
                                                                                                                                      : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    write_text("s.idx.partial-4711", "");
    assert_int_equal(count_entries(), 7);
    assert_false(file_remove_partials_of("./folder/"));
    assert_int_equal(count_entries(), 6);
    FolderDraft living;
    assert_true(file_folder_begin(&living, "folder", &error));
    assert_true(file_remove_partials(".", "", NULL));
    assert_int_equal(count_entries(), 4);
    file_folder_close(&living);
    assert_int_equal(count_entries(), 3);
    for (int i = 0; i < 3; i++) assert_int_equal(access(kept[i], F_OK), 0);
    file_remove_partials("missing", "", NULL);
}

/* The first is a process that is killed later, after which the name is free. */
static void of_two_processes_that_write_one_shard_the_second_is_refused(void **state) {
    (void)state;
    Error error = {0};
    int ready[2], status;
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        byte = shard_writer_open("s", 2, &error) != NULL;
        if (write(ready[1], &byte, 1) == 1) pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 1);
    assert_null(shard_writer_open("s", 4, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "s: OUTPUT");
    assert_int_equal(count_entries(), 1);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    write_shard("s", 2, (const int32_t[]){1, 2}, (const int64_t[]){2}, 1);
    assert_int_equal(count_entries(), 2);
    close(ready[0]), close(ready[1]);
}

static void a_file_that_cannot_grow_fails_and_leaves_the_old_shard_as_it_was(void **state) {
    (void)state;
    write_shard("s", 2, (const int32_t[]){1, 2}, (const int64_t[]){2}, 1);
    struct rlimit before, limited;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limited = before;
    limited.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    Error error = {0};
    ShardWriter *writer = shard_writer_open("s", 4, &error);
    int32_t *tokens = memory_allocate(5000 * sizeof *tokens);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
    bool good = shard_writer_document(writer, tokens, 5000, &error) && shard_writer_finish(writer, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    free(tokens);
    assert_false(good);
    assert_int_equal(error.code, ERROR_CHECKPOINT);
    assert_mentions(error.message, "s.bin");
    assert_int_equal(count_entries(), 2);
    ShardSet set = open_set("s");
    assert_int_equal(set.token_count, 2);
    shard_set_close(&set);
}

/* More documents than the writer keeps in memory, some of them empty. */
static void a_shard_of_many_documents_keeps_every_end(void **state) {
    (void)state;
    enum { DOCUMENTS = 50000 };
    Error error = {0};
    ShardWriter *writer = shard_writer_open("many", 4, &error);
    static const int32_t tokens[] = {7, 8, 9};
    for (int i = 0; i < DOCUMENTS; i++) assert_true(shard_writer_document(writer, tokens, i % 4, &error));
    assert_true(shard_writer_finish(writer, &error));
    ShardSet set = open_set("many");
    int64_t *ends = memory_allocate(DOCUMENTS * sizeof *ends);
    for (int i = 0; i < DOCUMENTS; i++) ends[i] = (i > 0 ? ends[i - 1] : 0) + i % 4;
    assert_documents(&set, ends, DOCUMENTS);
    assert_int_equal(set.token_count, ends[DOCUMENTS - 1]);
    free(ends);
    shard_set_close(&set);
}

static void a_document_written_piece_by_piece_is_the_same_shard(void **state) {
    (void)state;
    enum { COUNT = 300000 }; /* more than the writer's buffer */
    int32_t *tokens = memory_allocate(COUNT * sizeof *tokens);
    for (int i = 0; i < COUNT; i++) tokens[i] = i % 60000;
    write_shard("whole", 2, tokens, (const int64_t[]){COUNT}, 1);
    Error error = {0};
    ShardWriter *writer = shard_writer_open("pieces", 2, &error);
    for (int at = 0; at < COUNT; at += 7001)
        assert_true(shard_writer_append(writer, tokens + at, COUNT - at < 7001 ? COUNT - at : 7001, &error));
    assert_true(shard_writer_end_document(writer, &error));
    assert_true(shard_writer_finish(writer, &error));
    size_t size, other;
    unsigned char *whole = read_bytes("whole.idx", &size), *pieces = read_bytes("pieces.idx", &other);
    assert_int_equal(size, other);
    assert_memory_equal(whole, pieces, size); /* the index holds the checksum of the tokens */
    ShardSet set = open_set("pieces");
    assert_tokens(&set, tokens, COUNT);
    shard_set_close(&set);
    free(whole);
    free(pieces);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_shard_gives_back_what_was_written),
        IN_FOLDER(a_shard_written_by_hand_as_megatron_defines_it_is_read),
        IN_FOLDER(the_writer_leaves_megatrons_bytes_and_then_its_checksums),
        IN_FOLDER(a_wrong_value_in_any_field_is_refused_with_a_reason),
        IN_FOLDER(an_index_of_any_other_length_is_refused),
        IN_FOLDER(tokens_of_any_other_length_are_refused),
        IN_FOLDER(a_negative_token_is_refused_with_its_place),
        IN_FOLDER(every_flipped_bit_of_a_shard_that_smelt_wrote_is_noticed),
        IN_FOLDER(a_shard_cut_short_anywhere_is_refused),
        IN_FOLDER(a_mutated_index_is_refused_or_stays_consistent),
        IN_FOLDER(a_shard_that_is_not_there_is_refused_by_name),
        IN_FOLDER(a_pipe_or_folder_in_place_of_a_shard_is_refused_without_waiting),
        IN_FOLDER(a_changed_block_is_named_by_whoever_reads_it_and_by_nobody_else),
        IN_FOLDER(a_file_cut_off_while_it_is_open_is_an_error_of_the_read),
        IN_FOLDER(a_changed_index_never_gives_other_documents),
        IN_FOLDER(opening_and_reading_take_the_same_memory_for_ten_megabytes_and_for_a_terabyte),
        IN_FOLDER(tokens_of_eight_bytes_are_read_and_those_beyond_int32_are_named),
        IN_FOLDER(a_shard_of_smelt_0_9_is_read_and_has_the_checksum_of_the_same_shard_written_now),
        IN_FOLDER(a_folder_of_shards_is_one_stream_in_byte_order_of_names),
        IN_FOLDER(any_part_of_a_stream_is_what_it_is_in_the_whole),
        IN_FOLDER(a_folder_with_parts_tokenizers_or_files_that_do_not_belong_together_is_refused),
        IN_FOLDER(a_folder_that_pack_wrote_has_one_tokenizer_and_is_refused_until_it_is_complete),
        IN_FOLDER(what_cannot_be_read_now_is_not_absent),
        IN_FOLDER(a_token_outside_the_vocabulary_is_named_where_it_is_read),
        IN_FOLDER(a_token_that_does_not_fit_its_width_is_refused_with_its_value),
        IN_FOLDER(nothing_has_the_final_name_before_the_writer_finishes),
        IN_FOLDER(a_writer_without_tokens_fails_and_leaves_nothing),
        IN_FOLDER(a_writer_in_a_missing_folder_fails_by_name),
        IN_FOLDER(what_a_killed_writer_left_is_removed_and_nothing_else),
        IN_FOLDER(of_two_processes_that_write_one_shard_the_second_is_refused),
        IN_FOLDER(a_file_that_cannot_grow_fails_and_leaves_the_old_shard_as_it_was),
        IN_FOLDER(a_shard_of_many_documents_keeps_every_end),
        IN_FOLDER(a_document_written_piece_by_piece_is_the_same_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

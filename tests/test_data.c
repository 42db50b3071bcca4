/* Tests of token shards, packing, batches and `smelt data`. Each test gets a temporary folder of its own, which is the
 * working directory while it runs and is removed afterwards; run by `make test`. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "data/data.h"

int cmd_data(int argc, char **argv);

/* -- Files ---------------------------------------------------------------------------------------------------------- */

/* In memory where that exists: every finished shard is flushed to its disk, which is slow on a busy one. */
static int enter_folder(void **state) {
    char *name = memory_format("%s/smelt-test-data-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(name) || chdir(name) != 0) return -1;
    *state = name;
    return 0;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status, (void)type, (void)place;
    return remove(path);
}

static int leave_folder(void **state) {
    int failed = chdir("/") != 0 || nftw(*state, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0;
    free(*state);
    return failed ? -1 : 0;
}

static void write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *path, const char *text) { write_bytes(path, text, strlen(text)); }

/* The caller frees. */
static unsigned char *read_bytes(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = memory_allocate(*size + 1);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static int entries_counted;
static int count_entry(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)path, (void)status, (void)type;
    entries_counted += place->level > 0;
    return 0;
}

/* Everything below the test's folder. */
static int count_entries(void) {
    entries_counted = 0;
    assert_int_equal(nftw(".", count_entry, 16, FTW_PHYS), 0);
    return entries_counted;
}

/* -- Shards --------------------------------------------------------------------------------------------------------- */

static void write_shard(const char *prefix, int token_bytes, const int32_t *tokens, const int64_t *lengths, int64_t documents) {
    Error error = {0};
    ShardWriter *writer = shard_writer_open(prefix, token_bytes, &error);
    assert_non_null(writer);
    for (int64_t i = 0; i < documents; i++) {
        assert_true(shard_writer_document(writer, tokens, lengths[i], &error));
        tokens += lengths[i];
    }
    assert_true(shard_writer_finish(writer, &error));
}

static Shard open_shard(const char *prefix) {
    Shard shard;
    Error error = {0};
    if (!shard_open(&shard, prefix, &error)) fail_msg("%s", error.message);
    return shard;
}

/* Opening must fail as bad data, with a message that contains `part`, and must leave nothing to close. */
static void assert_refused(const char *prefix, const char *part) {
    Shard shard;
    Error error = {0};
    assert_false(shard_open(&shard, prefix, &error));
    assert_int_equal(error.code, ERROR_DATA);
    if (!strstr(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
    assert_null(shard.tokens);
    assert_null(shard.document_end);
}

static void a_shard_gives_back_what_was_written(void **state) {
    (void)state;
    static const int widths[] = {1, 2, 4};
    static const int32_t largest[] = {255, 65535, INT32_MAX};
    static const int64_t lengths[] = {3, 1, 0, 4};
    for (int i = 0; i < 3; i++) {
        int32_t tokens[] = {0, largest[i], 7, 42, 1, 2, 3, 4};
        write_shard("s", widths[i], tokens, lengths, 4);
        Shard shard = open_shard("s");
        assert_int_equal(shard.token_bytes, widths[i]);
        assert_int_equal(shard.token_count, 8);
        assert_int_equal(shard.document_count, 4);
        assert_int_equal(shard.max_token, largest[i]);
        assert_true(shard.checksummed);
        static const int64_t ends[] = {3, 4, 4, 8};
        assert_memory_equal(shard.document_end, ends, sizeof ends);
        for (int t = 0; t < 8; t++) assert_int_equal(shard_token(&shard, t), tokens[t]);
        shard_close(&shard);
    }
}

/* Written out from the format's definition: 3 sequences in 2 documents, the first document being sequences 0 and 1. */
static const unsigned char hand_index[] = {
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, /* magic */
    1, 0, 0, 0, 0, 0, 0, 0,                  /* version */
    4,                                       /* int32 */
    3, 0, 0, 0, 0, 0, 0, 0,                  /* sequences */
    3, 0, 0, 0, 0, 0, 0, 0,                  /* document entries: documents + 1 */
    2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0,      /* lengths */
    0, 0, 0, 0, 0, 0, 0, 0,                  /* byte offsets */
    8, 0, 0, 0, 0, 0, 0, 0,
    12, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0,                  /* document index */
    2, 0, 0, 0, 0, 0, 0, 0,
    3, 0, 0, 0, 0, 0, 0, 0,
};
static const unsigned char hand_tokens[] = {
    5, 0, 0, 0, 6, 1, 0, 0, 7, 0, 2, 0, 8, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0,
};

static void write_hand_shard(void) {
    write_bytes("m.idx", hand_index, sizeof hand_index);
    write_bytes("m.bin", hand_tokens, sizeof hand_tokens);
}

static void a_shard_written_by_hand_as_megatron_defines_it_is_read(void **state) {
    (void)state;
    write_hand_shard();
    Shard shard = open_shard("m");
    static const int32_t tokens[] = {5, 256 + 6, 2 * 65536 + 7, 8, 9, 10};
    static const int64_t ends[] = {3, 6};
    assert_int_equal(shard.token_count, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(shard_token(&shard, i), tokens[i]);
    assert_int_equal(shard.document_count, 2);
    assert_memory_equal(shard.document_end, ends, sizeof ends);
    assert_int_equal(shard.max_token, 2 * 65536 + 7);
    assert_false(shard.checksummed);
    shard_close(&shard);
}

static void the_writer_leaves_megatrons_bytes_and_then_its_checksums(void **state) {
    (void)state;
    static const unsigned char expected[] = {
        'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8,
        2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0,
        2, 0, 0, 0, 1, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0,
        'S', 'M', 'E', 'L', 'T', 'S', 'U', 'M',
    };
    write_shard("s", 2, (const int32_t[]){1, 256, 3}, (const int64_t[]){2, 1}, 2);
    size_t size;
    unsigned char *index = read_bytes("s.idx", &size);
    assert_int_equal(size, sizeof expected + 16);
    assert_memory_equal(index, expected, sizeof expected);
    free(index);
    unsigned char *tokens = read_bytes("s.bin", &size);
    assert_int_equal(size, 6);
    assert_memory_equal(tokens, ((const unsigned char[]){1, 0, 0, 1, 3, 0}), 6);
    free(tokens);
}

/* One field of the hand-written index takes a wrong value. */
typedef struct Mutation { size_t offset; int bytes; int64_t value; const char *message; } Mutation;

static void a_wrong_value_in_any_field_is_refused_with_a_reason(void **state) {
    (void)state;
    static const Mutation mutations[] = {
        {0, 1, 'X', "not a Megatron index"}, {7, 1, 1, "not a Megatron index"}, {8, 1, 1, "not a Megatron index"},
        {9, 8, 0, "version 0"}, {9, 8, 2, "version 2"}, {9, 8, (int64_t)1 << 56, "version"},
        {17, 1, 0, "type 0"}, {17, 1, 9, "type 9"}, {17, 1, 255, "type 255"},
        {17, 1, 1, "ends at byte"}, {17, 1, 2, "(i8)"}, {17, 1, 3, "(i16)"}, {17, 1, 5, "(i64)"}, {17, 1, 6, "(f64)"},
        {17, 1, 7, "(f32)"}, {17, 1, 8, "ends at byte"},
        {18, 8, 0, "claims 0 sequences"}, {18, 8, 2, "after its"}, {18, 8, 4, "claims 3 document entries"},
        {18, 8, -1, "claims 18446744073709551615 sequences"}, {18, 8, INT64_MAX, "sequences"},
        {26, 8, 0, "claims 0 document entries"}, {26, 8, 1, "claims 1 document entries"}, {26, 8, 2, "after its"},
        {26, 8, 4, "claims 4 document entries"}, {26, 8, -1, "document entries"}, {26, 8, (int64_t)1 << 61, "document entries"},
        {34, 4, 1, "ends at byte 4"}, {34, 4, 3, "ends at byte 12"}, {34, 4, -1, "length of -1"},
        {34, 4, INT32_MAX, "length of 2147483647"}, {42, 4, 2, "has 24 bytes but its index describes 20"},
        {42, 4, 4, "length of 4"}, {42, 4, INT32_MIN, "length of -2147483648"},
        {46, 8, 4, "sequence 0 at byte 4"}, {46, 8, -8, "sequence 0 at byte -8"}, {54, 8, 0, "sequence 1 at byte 0"},
        {62, 8, INT64_MAX, "sequence 2 at byte"},
        {70, 8, 1, "first document"}, {70, 8, -1, "first document"}, {78, 8, 4, "document 0"}, {78, 8, -1, "document 0"},
        {78, 8, INT64_MIN, "document 0"}, {86, 8, 1, "document 1"}, {86, 8, 2, "last document"}, {86, 8, 4, "document 1"},
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
        assert_refused("m", "after its 3 document entries");
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
        assert_refused("m", size < sizeof hand_tokens ? "cut off" : "do not belong together");
    }
}

static void a_negative_token_is_refused_with_its_place(void **state) {
    (void)state;
    write_hand_shard();
    unsigned char tokens[sizeof hand_tokens];
    memcpy(tokens, hand_tokens, sizeof tokens);
    memset(tokens + 16, 255, 4);
    write_bytes("m.bin", tokens, sizeof tokens);
    assert_refused("m", "token -1 at index 4");
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
    Shard shard = open_shard("s");
    shard_close(&shard);
}

static void a_shard_cut_short_anywhere_is_refused(void **state) {
    (void)state;
    write_shard("s", 1, (const int32_t[]){1, 2, 3}, (const int64_t[]){2, 1}, 2);
    size_t size;
    unsigned char *index = read_bytes("s.idx", &size);
    for (size_t cut = 0; cut < size; cut++) {
        if (cut == size - 24) continue; /* without the checksums it is Megatron's own form */
        write_bytes("s.idx", index, cut);
        assert_refused("s", "s.idx");
    }
    free(index);
}

/* What every accepted shard promises to its readers. */
static void assert_consistent(const Shard *shard) {
    assert_int_equal((uint64_t)shard->token_count * (uint64_t)shard->token_bytes, shard->mapped_bytes);
    int64_t before = 0;
    for (int64_t i = 0; i < shard->document_count; i++) {
        assert_true(shard->document_end[i] >= before);
        before = shard->document_end[i];
    }
    assert_int_equal(before, shard->token_count);
    for (int64_t i = 0; i < shard->token_count; i++) assert_in_range(shard_token(shard, i), 0, shard->max_token);
}

/* Values that break careless arithmetic. */
static uint64_t hostile_value(uint32_t random) {
    static const uint64_t values[] = {0, 1, 2, 3, 4, 8, 255, 1u << 31, UINT32_MAX, (uint64_t)1 << 61, (uint64_t)1 << 62,
                                      (uint64_t)1 << 63, INT64_MAX, UINT64_MAX, UINT64_MAX / 12, UINT64_MAX - 33};
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
            size_t width = more.word[2] % 2 ? 8 : 1, place = more.word[0] % (sizeof hand_index - 8);
            memcpy(index + place, more.word[2] % 4 < 2 ? &value : (const void *)&more.word[3], width > 4 && more.word[2] % 4 >= 2 ? 4 : width);
        }
        if (bits.word[1] % 8 == 0) size = bits.word[2] % (sizeof index + 1);
        write_bytes("m.idx", index, size);
        Shard shard;
        Error error = {0};
        if (shard_open(&shard, "m", &error)) {
            assert_consistent(&shard);
            shard_close(&shard);
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
    assert_refused("none", "none.bin");
    write_bytes("m.bin", hand_tokens, sizeof hand_tokens);
    assert_refused("m", "m.idx");
}

static void a_pipe_or_folder_in_place_of_a_shard_is_refused_without_waiting(void **state) {
    (void)state;
    write_hand_shard();
    assert_int_equal(unlink("m.idx"), 0);
    assert_int_equal(mkfifo("m.idx", 0600), 0);
    assert_refused("m", "not a regular file");
    assert_int_equal(unlink("m.bin"), 0);
    assert_int_equal(mkdir("m.bin", 0700), 0);
    assert_refused("m", "not a regular file");
}

static void mapping_reads_the_index_alone(void **state) {
    (void)state;
    write_shard("s", 2, (const int32_t[]){1, 2, 3}, (const int64_t[]){3}, 1);
    write_bytes("s.bin", (const unsigned char[]){1, 0, 9, 0, 3, 0}, 6);
    Shard shard;
    Error error = {0};
    assert_true(shard_map(&shard, "s", &error));
    assert_int_equal(shard.token_count, 3);
    assert_false(shard_verify(&shard, &error));
    assert_non_null(strstr(error.message, "s.bin has checksum"));
    shard_close(&shard);
}

/* -- The writer ----------------------------------------------------------------------------------------------------- */

static void a_token_that_does_not_fit_its_width_is_refused_with_its_value(void **state) {
    (void)state;
    static const struct { int width; int32_t token; } cases[] = {{1, 256}, {2, 65536}, {1, -1}, {2, -1}, {4, -1}, {4, INT32_MIN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error error = {0};
        ShardWriter *writer = shard_writer_open("s", cases[i].width, &error);
        int32_t tokens[] = {1, 2, cases[i].token, 3};
        char expected[64];
        snprintf(expected, sizeof expected, "token %" PRId32 " does not fit into s.bin", cases[i].token);
        assert_false(shard_writer_document(writer, tokens, 4, &error));
        assert_int_equal(error.code, ERROR_DATA);
        assert_non_null(strstr(error.message, expected));
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
    assert_non_null(strstr(error.message, "missing/s.bin"));
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
    assert_int_equal(error.code, ERROR_INTERNAL);
    assert_non_null(strstr(error.message, "s.bin"));
    assert_int_equal(count_entries(), 2);
    Shard shard = open_shard("s");
    assert_int_equal(shard.token_count, 2);
    shard_close(&shard);
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
    shard_writer_end_document(writer);
    assert_true(shard_writer_finish(writer, &error));
    size_t size, other;
    unsigned char *whole = read_bytes("whole.idx", &size), *pieces = read_bytes("pieces.idx", &other);
    assert_int_equal(size, other);
    assert_memory_equal(whole, pieces, size); /* the index holds the checksum of the tokens */
    Shard shard = open_shard("pieces");
    for (int i = 0; i < COUNT; i++) assert_int_equal(shard_token(&shard, i), tokens[i]);
    shard_close(&shard);
    free(whole);
    free(pieces);
    free(tokens);
}

/* -- Packing -------------------------------------------------------------------------------------------------------- */

static PackResult pack(const char *input, double valid, const char *separator) {
    PackOptions options = {input, "out", valid, separator};
    PackResult result;
    Error error = {0};
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void assert_pack_fails(const char *input, double valid, const char *separator, ErrorCode code, const char *part) {
    PackOptions options = {input, "out", valid, separator};
    PackResult result;
    Error error = {0};
    int entries = count_entries();
    assert_false(pack_text(&options, &result, &error));
    assert_int_equal(error.code, code);
    if (!strstr(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
    assert_int_equal(count_entries(), entries);
}

/* A shard of byte tokens as text, "|" for the separator token; the caller frees. */
static char *shard_text(const char *prefix) {
    Shard shard = open_shard(prefix);
    assert_int_equal(shard.token_bytes, 2);
    char *text = memory_allocate((size_t)shard.token_count + 1);
    int64_t document = 0;
    for (int64_t i = 0; i < shard.token_count; i++) {
        int32_t token = shard_token(&shard, i);
        text[i] = token == BYTE_SEPARATOR ? '|' : (char)token;
        if (token == BYTE_SEPARATOR) assert_int_equal(shard.document_end[document++], i + 1);
    }
    assert_int_equal(document, shard.document_count);
    shard_close(&shard);
    return text;
}

static void assert_shard_text(const char *prefix, const char *expected) {
    char *text = shard_text(prefix);
    assert_string_equal(text, expected);
    free(text);
}

static void a_file_becomes_its_bytes_and_one_separator(void **state) {
    (void)state;
    unsigned char bytes[256];
    for (int i = 0; i < 256; i++) bytes[i] = (unsigned char)i;
    write_bytes("in", bytes, sizeof bytes);
    PackResult result = pack("in", 0, "");
    assert_int_equal(result.documents, 1);
    assert_int_equal(result.train_tokens, 257);
    assert_int_equal(result.valid_tokens, 0);
    assert_int_equal(result.bytes, 256);
    Shard shard = open_shard("out");
    for (int i = 0; i < 257; i++) assert_int_equal(shard_token(&shard, i), i);
    shard_close(&shard);
}

static void a_file_larger_than_every_buffer_comes_through_whole(void **state) {
    (void)state;
    enum { SIZE = 1000003 };
    char *text = memory_allocate(SIZE + 1);
    for (int i = 0; i < SIZE; i++) text[i] = (char)('a' + i * 7 % 23);
    write_bytes("in", text, SIZE);
    pack("in", 0, "");
    char *packed = shard_text("out");
    assert_memory_equal(packed, text, SIZE);
    assert_string_equal(packed + SIZE, "|");
    free(packed);
    free(text);
}

static void a_folder_is_read_recursively_in_byte_order_of_paths(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    assert_int_equal(mkdir("in/a", 0700), 0);
    assert_int_equal(mkdir("in/a/deep", 0700), 0);
    assert_int_equal(mkdir("in/empty", 0700), 0);
    write_text("in/b", "5");
    write_text("in/B", "1");
    write_text("in/a.txt", "2"); /* '.' sorts before '/' */
    write_text("in/a/z", "4");
    write_text("in/a/deep/x", "3");
    write_text("in/c", "");
    PackResult result = pack("in", 0, "");
    assert_shard_text("out", "1|2|3|4|5|");
    assert_int_equal(result.documents, 5);
}

static void separator_lines_divide_documents(void **state) {
    (void)state;
    write_text("in", "one\ntwo\n%\nthree %\n%four\n%%\n%\r\nfive");
    PackResult result = pack("in", 0, "%");
    assert_shard_text("out", "one\ntwo\n|three %\n%four\n%%\n|five|");
    assert_int_equal(result.documents, 3);
    assert_int_equal(result.train_tokens, (int64_t)strlen("one\ntwo\n|three %\n%four\n%%\n|five|"));
}

static void empty_documents_between_separators_are_left_out(void **state) {
    (void)state;
    write_text("in", "%\n%\na\n%\n%\n\n%\n%");
    pack("in", 0, "%");
    assert_shard_text("out", "a\n|\n|");
}

static void a_long_separator_is_matched_as_a_whole_line(void **state) {
    (void)state;
    write_text("in", "a\n<|end|>\nb <|end|>\n <|end|>\n<|end|>");
    pack("in", 0, "<|end|>");
    assert_shard_text("out", "a\n|b <|end|>\n <|end|>\n|");
}

static void the_tail_of_every_file_goes_to_validation_at_a_line_end(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    write_text("in/1", "aaaa\nbbbb\ncccc\ndddd\n");
    write_text("in/2", "eeeeeeee\nffff\ngg\n");
    PackResult result = pack("in", 0.25, "");
    assert_shard_text("out-train", "aaaa\nbbbb\ncccc\n|eeeeeeee\nffff\n|");
    assert_shard_text("out-valid", "dddd\n|gg\n|");
    assert_int_equal(result.documents, 4);
    assert_int_equal(result.train_tokens + result.valid_tokens, result.bytes + 4);
    assert_int_equal(access("out.bin", F_OK), -1);
}

static void the_split_is_close_to_the_fraction_and_loses_nothing(void **state) {
    (void)state;
    enum { LINES = 20000 };
    char *text = memory_allocate(LINES * 12 + 1), *at = text;
    for (int i = 0; i < LINES; i++) at += sprintf(at, "%d\n", i * 37);
    write_text("in", text);
    PackResult result = pack("in", 0.05, "");
    assert_true(result.valid_tokens > result.bytes * 0.0499 && result.valid_tokens < result.bytes * 0.0501);
    char *train = shard_text("out-train"), *valid = shard_text("out-valid");
    size_t head = strlen(train) - 1, tail = strlen(valid) - 1;
    assert_int_equal(head + tail, strlen(text));
    assert_memory_equal(train, text, head);
    assert_memory_equal(valid, text + head, tail);
    assert_int_equal(text[head - 1], '\n');
    free(train);
    free(valid);
    free(text);
}

static void with_separators_the_cut_falls_between_documents(void **state) {
    (void)state;
    write_text("in", "a1\na2\n%\nb1\nb2\nb3\n%\nc1\nc2\nc3\nc4\n%\nd\n%\n");
    PackResult result = pack("in", 0.3, "%");
    assert_shard_text("out-train", "a1\na2\n|b1\nb2\nb3\n|c1\nc2\nc3\nc4\n|");
    assert_shard_text("out-valid", "d\n|");
    assert_int_equal(result.documents, 4);
}

static void a_long_last_line_is_cut_before_it_unless_it_is_most_of_the_file(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    write_text("in/1", "aa\nbb\ncc\ndddd\n");
    write_text("in/2", "e\nffffffffffffffffffff\n");
    pack("in", 0.1, "");
    assert_shard_text("out-train", "aa\nbb\ncc\n|e\nffffffffffffffffffff\n|");
    assert_shard_text("out-valid", "dddd\n|");
}

static void a_corpus_without_a_line_end_to_cut_at_gives_no_validation_part(void **state) {
    (void)state;
    write_text("in", "all on one line\n");
    assert_pack_fails("in", 0.1, "", ERROR_DATA, "set valid=0");
}

static void an_empty_corpus_is_bad_data(void **state) {
    (void)state;
    write_text("empty", "");
    write_text("separators", "%\n%\n%\n");
    assert_int_equal(mkdir("folder", 0700), 0);
    assert_pack_fails("empty", 0, "", ERROR_DATA, "holds no text");
    assert_pack_fails("separators", 0, "%", ERROR_DATA, "holds no text");
    assert_pack_fails("folder", 0.1, "", ERROR_DATA, "holds no text");
    assert_pack_fails("missing", 0, "", ERROR_DATA, "cannot read missing");
}

static void links_loops_and_pipes_in_a_folder_are_skipped(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    assert_int_equal(mkdir("in/sub", 0700), 0);
    write_text("in/sub/a", "text");
    assert_int_equal(symlink("..", "in/sub/up"), 0);
    assert_int_equal(symlink("self", "in/self"), 0);
    assert_int_equal(symlink("nowhere", "in/dangling"), 0);
    assert_int_equal(symlink("sub/a", "in/again"), 0);
    assert_int_equal(mkfifo("in/pipe", 0600), 0);
    pack("in", 0, "");
    assert_shard_text("out", "text|");
}

static void a_link_to_the_input_itself_is_followed(void **state) {
    (void)state;
    assert_int_equal(mkdir("real", 0700), 0);
    write_text("real/a", "text");
    assert_int_equal(symlink("real", "in"), 0);
    pack("in", 0, "");
    assert_shard_text("out", "text|");
}

static void files_in_a_folder_that_are_not_text_are_skipped(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    write_text("in/a", "text");
    write_bytes("in/a.dat", "\0\0\0\2", 4);
    PackResult result = pack("in", 0, "");
    assert_shard_text("out", "text|");
    assert_int_equal(result.bytes, 4);
}

static void a_pipe_as_the_input_is_refused_without_waiting(void **state) {
    (void)state;
    assert_int_equal(mkfifo("in", 0600), 0);
    assert_pack_fails("in", 0, "", ERROR_DATA, "not a regular file");
}

/* Root may read everything, so the test steps down for the moment of packing. */
static void a_file_or_folder_that_cannot_be_read_is_an_error(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0755), 0);
    write_text("in/a", "text");
    write_text("in/b", "secret");
    assert_int_equal(chmod("in/b", 0), 0);
    assert_int_equal(chmod(".", 0777), 0);
    uid_t user = geteuid();
    if (user == 0) assert_int_equal(seteuid(65534), 0);
    assert_pack_fails("in", 0, "", ERROR_DATA, "cannot open in/b: Permission denied");
    if (user == 0) assert_int_equal(seteuid(user), 0);
    assert_int_equal(chmod("in", 0), 0);
    if (user == 0) assert_int_equal(seteuid(65534), 0);
    PackOptions options = {"in", "out", 0, ""};
    PackResult result;
    Error error = {0};
    bool good = pack_text(&options, &result, &error);
    if (user == 0) assert_int_equal(seteuid(user), 0);
    assert_int_equal(chmod("in", 0755), 0);
    assert_false(good);
    assert_non_null(strstr(error.message, "cannot read folder in: Permission denied"));
}

static void an_output_that_would_replace_the_input_is_refused(void **state) {
    (void)state;
    write_text("out.bin", "precious text");
    assert_pack_fails("out.bin", 0, "", ERROR_USAGE, "both input and output");
    size_t size;
    unsigned char *text = read_bytes("out.bin", &size);
    assert_string_equal((char *)text, "precious text");
    free(text);
}

static void values_out_of_range_are_usage_errors(void **state) {
    (void)state;
    write_text("in", "text");
    assert_pack_fails("in", -0.1, "", ERROR_USAGE, "valid is -0.1");
    assert_pack_fails("in", 0.6, "", ERROR_USAGE, "valid is 0.6");
    assert_pack_fails("in", 0.0 / 0.0, "", ERROR_USAGE, "0 to 0.5");
    assert_pack_fails("in", 0, "a\nb", ERROR_USAGE, "line end");
    assert_pack_fails("", 0, "", ERROR_USAGE, "input is empty");
}

static void packing_twice_gives_the_same_bytes(void **state) {
    (void)state;
    write_text("in", "a\nb\nc\nd\n");
    pack("in", 0.3, "");
    size_t first_size, second_size;
    unsigned char *first = read_bytes("out-train.idx", &first_size);
    pack("in", 0.3, "");
    unsigned char *second = read_bytes("out-train.idx", &second_size);
    assert_int_equal(first_size, second_size);
    assert_memory_equal(first, second, first_size);
    free(first);
    free(second);
}

/* -- Batches -------------------------------------------------------------------------------------------------------- */

/* Tokens 0, 1, 2, ... in documents of the given lengths. */
static Shard counting_shard(const int64_t *lengths, int64_t documents) {
    int64_t total = 0;
    for (int64_t i = 0; i < documents; i++) total += lengths[i];
    int32_t *tokens = memory_allocate((size_t)total * sizeof *tokens);
    for (int64_t i = 0; i < total; i++) tokens[i] = (int32_t)i;
    write_shard("c", 4, tokens, lengths, documents);
    free(tokens);
    return open_shard("c");
}

static Loader *open_loader(const LoaderOptions *options, int64_t first) {
    Error error = {0};
    Loader *loader = loader_open(options, first, &error);
    if (!loader) fail_msg("%s", error.message);
    return loader;
}

static void samples_follow_one_another_and_share_the_token_at_their_border(void **state) {
    (void)state;
    Shard shard = counting_shard((const int64_t[]){13}, 1);
    LoaderOptions options = {.shard = &shard, .sequences = 2, .length = 4, .vocabulary = 13, .separator = -1};
    Loader *loader = open_loader(&options, 0);
    assert_int_equal(loader_samples(loader), 3);
    const Batch *batch = loader_next(loader);
    assert_int_equal(batch->first_sample, 0);
    assert_memory_equal(batch->tokens, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7}), 32);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}), 32);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 3, 0, 1, 2, 3}), 32);
    batch = loader_next(loader);
    assert_int_equal(batch->first_sample, 2);
    assert_memory_equal(batch->tokens, ((const int32_t[]){8, 9, 10, 11, 0, 1, 2, 3}), 32); /* the second epoch begins */
    assert_memory_equal(batch->targets, ((const int32_t[]){9, 10, 11, 12, 1, 2, 3, 4}), 32);
    loader_close(loader);
    shard_close(&shard);
}

static void the_number_of_samples_counts_the_last_target(void **state) {
    (void)state;
    static const struct { int64_t tokens, samples; } cases[] = {{5, 1}, {8, 1}, {9, 2}, {12, 2}, {13, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Shard shard = counting_shard(&cases[i].tokens, 1);
        LoaderOptions options = {.shard = &shard, .sequences = 1, .length = 4, .vocabulary = 100, .separator = -1};
        Loader *loader = open_loader(&options, 0);
        assert_int_equal(loader_samples(loader), cases[i].samples);
        loader_close(loader);
        shard_close(&shard);
    }
}

static void positions_restart_at_documents_and_their_last_token_has_no_target(void **state) {
    (void)state;
    Shard shard = counting_shard((const int64_t[]){3, 1, 1, 0, 2, 6}, 6);
    LoaderOptions options = {.shard = &shard, .sequences = 2, .length = 6, .vocabulary = 13, .separator = -1, .document_mask = true};
    Loader *loader = open_loader(&options, 0);
    const Batch *batch = loader_next(loader);
    assert_memory_equal(batch->tokens, ((const int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), 48);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, -1, -1, -1, 6, -1, 8, 9, 10, 11, 12}), 48);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 0, 0, 0, 0, 0, 1, 2, 3, 4}), 48);
    loader_close(loader);
    shard_close(&shard);
}

static void without_a_document_mask_boundaries_do_not_matter(void **state) {
    (void)state;
    Shard shard = counting_shard((const int64_t[]){1, 1, 3, 2}, 4);
    LoaderOptions options = {.shard = &shard, .sequences = 1, .length = 6, .vocabulary = 7, .separator = 3};
    Loader *loader = open_loader(&options, 0);
    const Batch *batch = loader_next(loader);
    assert_memory_equal(batch->targets, ((const int32_t[]){1, 2, 3, 4, 5, 6}), 24);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 2, 3, 4, 5}), 24);
    loader_close(loader);
    shard_close(&shard);
}

static void a_separator_inside_a_document_ends_it_too(void **state) {
    (void)state;
    static const int32_t tokens[] = {1, 9, 9, 2, 3, 9, 4};
    write_shard("c", 1, tokens, (const int64_t[]){7}, 1);
    Shard shard = open_shard("c");
    LoaderOptions options = {.shard = &shard, .sequences = 1, .length = 6, .vocabulary = 10, .separator = 9, .document_mask = true};
    Loader *loader = open_loader(&options, 0);
    const Batch *batch = loader_next(loader);
    assert_memory_equal(batch->positions, ((const int32_t[]){0, 1, 0, 0, 1, 2}), 24);
    assert_memory_equal(batch->targets, ((const int32_t[]){9, -1, -1, 3, 9, -1}), 24);
    loader_close(loader);
    shard_close(&shard);
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
    Shard shard = counting_shard(lengths, DOCUMENTS);
    for (int64_t length = 1; length <= 40; length += 3) {
        LoaderOptions options = {.shard = &shard, .sequences = SEQUENCES, .length = length, .vocabulary = (int32_t)total,
                                 .separator = -1, .document_mask = true, .shuffle = true, .seed = (uint64_t)length};
        Loader *loader = open_loader(&options, 0);
        for (int64_t step = 0; step < 8; step++) {
            const Batch *batch = loader_next(loader);
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
    shard_close(&shard);
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
    Shard shard = counting_shard((const int64_t[]){17, 30, 14}, 3);
    LoaderOptions options = {.shard = &shard, .sequences = SEQUENCES, .length = LENGTH, .vocabulary = 61, .separator = -1,
                             .document_mask = true, .shuffle = true, .seed = 3};
    int32_t tokens[STEPS][VALUES], targets[STEPS][VALUES], positions[STEPS][VALUES];
    Loader *loader = open_loader(&options, 0);
    for (int step = 0; step < STEPS; step++) {
        const Batch *batch = loader_next(loader);
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
            const Batch *batch = loader_next(loader);
            size_t row = (size_t)(draw % SEQUENCES) * LENGTH;
            assert_int_equal(batch->first_sample, draw);
            assert_memory_equal(batch->tokens, tokens[draw / SEQUENCES] + row, LENGTH * 4);
            assert_memory_equal(batch->targets, targets[draw / SEQUENCES] + row, LENGTH * 4);
            assert_memory_equal(batch->positions, positions[draw / SEQUENCES] + row, LENGTH * 4);
        }
        loader_close(loader);
    }
    shard_close(&shard);
}

static void a_loader_closes_at_any_moment(void **state) {
    (void)state;
    Shard shard = counting_shard((const int64_t[]){5000}, 1);
    LoaderOptions options = {.shard = &shard, .sequences = 8, .length = 64, .vocabulary = 5000, .separator = -1, .shuffle = true};
    for (int round = 0; round < 200; round++) {
        Loader *loader = open_loader(&options, round);
        for (int step = 0; step < round % 11; step++) assert_non_null(loader_next(loader));
        if (round % 3 == 0) usleep((useconds_t)(round * 10));
        loader_close(loader);
    }
    loader_close(NULL);
    shard_close(&shard);
}

static void a_batch_stays_as_it_is_while_it_is_held(void **state) {
    (void)state;
    Shard shard = counting_shard((const int64_t[]){4097}, 1);
    LoaderOptions options = {.shard = &shard, .sequences = 1, .length = 4, .vocabulary = 4097, .separator = -1};
    Loader *loader = open_loader(&options, 0);
    for (int step = 0; step < 6; step++) {
        const Batch *batch = loader_next(loader);
        usleep(5000); /* the thread runs into the end of the ring meanwhile */
        for (int i = 0; i < 4; i++) assert_int_equal(batch->tokens[i], step * 4 + i);
    }
    loader_close(loader);
    shard_close(&shard);
}

static void assert_loader_fails(const LoaderOptions *options, int64_t first, ErrorCode code, const char *part) {
    Error error = {0};
    assert_null(loader_open(options, first, &error));
    assert_int_equal(error.code, code);
    if (!strstr(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

static void a_corpus_shorter_than_a_sequence_is_bad_data(void **state) {
    (void)state;
    Shard shard = counting_shard((const int64_t[]){8}, 1);
    LoaderOptions options = {.shard = &shard, .sequences = 1, .length = 8, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_DATA, "c has 8 tokens but one sequence of 8 needs 9");
    shard_close(&shard);
}

static void a_token_outside_the_vocabulary_is_bad_data_with_its_value(void **state) {
    (void)state;
    write_shard("c", 2, (const int32_t[]){1, 2, 300, 4, 500}, (const int64_t[]){5}, 1);
    Shard shard = open_shard("c");
    LoaderOptions options = {.shard = &shard, .sequences = 1, .length = 2, .vocabulary = 300, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_DATA, "token 300 at index 2 (the largest is 500)");
    options.vocabulary = 501;
    loader_close(open_loader(&options, 0));
    shard_close(&shard);
}

static void senseless_batches_and_cursors_are_usage_errors(void **state) {
    (void)state;
    Shard shard = counting_shard((const int64_t[]){8}, 1);
    LoaderOptions options = {.shard = &shard, .sequences = 0, .length = 2, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_USAGE, "0 sequences");
    options.sequences = INT64_MAX;
    assert_loader_fails(&options, 0, ERROR_USAGE, "does not fit");
    options = (LoaderOptions){.shard = &shard, .sequences = 1, .length = 0, .vocabulary = 8, .separator = -1};
    assert_loader_fails(&options, 0, ERROR_USAGE, "0 tokens");
    options.length = 2;
    assert_loader_fails(&options, -1, ERROR_USAGE, "-1");
    assert_loader_fails(&options, INT64_MAX, ERROR_USAGE, "cursor");
    shard_close(&shard);
}

/* -- The command ---------------------------------------------------------------------------------------------------- */

/* Runs `smelt data` with up to six arguments; *output is what it printed and the caller frees it. stderr is kept away. */
static int run_data(const char *const arguments[], char **output) {
    char *argv[8] = {(char *)"data"};
    int argc = 1;
    while (argc < 7 && arguments[argc - 1]) {
        argv[argc] = (char *)arguments[argc - 1];
        argc++;
    }
    fflush(stdout);
    fflush(stderr);
    int saved_out = dup(STDOUT_FILENO), saved_error = dup(STDERR_FILENO);
    int target = open("stdout", O_RDWR | O_CREAT | O_TRUNC, 0600), quiet = open("/dev/null", O_WRONLY);
    dup2(target, STDOUT_FILENO);
    dup2(quiet, STDERR_FILENO);
    int status = cmd_data(argc, argv);
    fflush(stdout);
    dup2(saved_out, STDOUT_FILENO);
    dup2(saved_error, STDERR_FILENO);
    close(target), close(quiet), close(saved_out), close(saved_error);
    size_t size;
    *output = (char *)read_bytes("stdout", &size);
    return status;
}

static void assert_data(const char *const arguments[], int status, const char *part) {
    char *output;
    assert_int_equal(run_data(arguments, &output), status);
    if (!strstr(output, part)) fail_msg("\"%s\" does not contain \"%s\"", output, part);
    free(output);
}

static void the_command_packs_and_shows(void **state) {
    (void)state;
    write_text("in", "a\n%\nb\tc\n%\n\"d\"\n");
    assert_data((const char *[]){"pack", "in", "out", "valid=0.3", "--separator", "%", NULL}, 0, "out-valid: 5 tokens\n");
    assert_data((const char *[]){"show", "out-train", NULL}, 0, "first tokens:     \"a\\n<end>b\\tc\\n<end>\"\n");
    assert_data((const char *[]){"show", "out-train.idx", NULL}, 0, "documents:        2\n");
    assert_data((const char *[]){"show", "--check=true", "out-valid", NULL}, 0, "largest token:    256\n");
    assert_data((const char *[]){"show", "out-valid", "check=true", NULL}, 0, "check:            passed");
}

static void the_command_shows_tokens_of_other_vocabularies_as_numbers(void **state) {
    (void)state;
    write_hand_shard();
    assert_data((const char *[]){"show", "m", NULL}, 0, "first tokens:     5 262 131079 8 9 10\n");
}

static void the_command_returns_the_exit_code_of_the_error(void **state) {
    (void)state;
    write_text("in", "text");
    assert_data((const char *[]){NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"unpack", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"pack", "in", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"pack", "in", "out", "more", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"pack", "in", "out", "vallid=0.1", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"pack", "in", "out", "valid=0.9", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"pack", "in", "out", "--valid", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"show", "none", NULL}, ERROR_DATA, "");
    write_shard("s", 2, (const int32_t[]){1, 2}, (const int64_t[]){2}, 1);
    write_bytes("s.bin", (const unsigned char[]){1, 0, 3, 0}, 4);
    assert_data((const char *[]){"show", "s", NULL}, 0, "tokens:           2\n");
    assert_data((const char *[]){"show", "s", "check=true", NULL}, ERROR_DATA, "");
}

static void help_prints_usage_and_the_options(void **state) {
    (void)state;
    assert_data((const char *[]){"--help", NULL}, 0, "usage: smelt data show PREFIX");
    assert_data((const char *[]){"pack", "--help", NULL}, 0, "separator");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)

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
        IN_FOLDER(mapping_reads_the_index_alone),
        IN_FOLDER(a_token_that_does_not_fit_its_width_is_refused_with_its_value),
        IN_FOLDER(nothing_has_the_final_name_before_the_writer_finishes),
        IN_FOLDER(a_writer_without_tokens_fails_and_leaves_nothing),
        IN_FOLDER(a_writer_in_a_missing_folder_fails_by_name),
        IN_FOLDER(a_file_that_cannot_grow_fails_and_leaves_the_old_shard_as_it_was),
        IN_FOLDER(a_document_written_piece_by_piece_is_the_same_shard),
        IN_FOLDER(a_file_becomes_its_bytes_and_one_separator),
        IN_FOLDER(a_file_larger_than_every_buffer_comes_through_whole),
        IN_FOLDER(a_folder_is_read_recursively_in_byte_order_of_paths),
        IN_FOLDER(separator_lines_divide_documents),
        IN_FOLDER(empty_documents_between_separators_are_left_out),
        IN_FOLDER(a_long_separator_is_matched_as_a_whole_line),
        IN_FOLDER(the_tail_of_every_file_goes_to_validation_at_a_line_end),
        IN_FOLDER(the_split_is_close_to_the_fraction_and_loses_nothing),
        IN_FOLDER(with_separators_the_cut_falls_between_documents),
        IN_FOLDER(a_long_last_line_is_cut_before_it_unless_it_is_most_of_the_file),
        IN_FOLDER(a_corpus_without_a_line_end_to_cut_at_gives_no_validation_part),
        IN_FOLDER(an_empty_corpus_is_bad_data),
        IN_FOLDER(links_loops_and_pipes_in_a_folder_are_skipped),
        IN_FOLDER(a_link_to_the_input_itself_is_followed),
        IN_FOLDER(files_in_a_folder_that_are_not_text_are_skipped),
        IN_FOLDER(a_pipe_as_the_input_is_refused_without_waiting),
        IN_FOLDER(a_file_or_folder_that_cannot_be_read_is_an_error),
        IN_FOLDER(an_output_that_would_replace_the_input_is_refused),
        IN_FOLDER(values_out_of_range_are_usage_errors),
        IN_FOLDER(packing_twice_gives_the_same_bytes),
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
        IN_FOLDER(the_command_packs_and_shows),
        IN_FOLDER(the_command_shows_tokens_of_other_vocabularies_as_numbers),
        IN_FOLDER(the_command_returns_the_exit_code_of_the_error),
        IN_FOLDER(help_prints_usage_and_the_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

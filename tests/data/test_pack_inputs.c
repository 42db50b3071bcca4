/* Tests of what packing takes in: JSON lines, compressed files, long documents, bad records, special tokens. Each test
 * runs in a temporary folder of its own; run by `make test`. */
#include <lzma.h>
#include <omp.h>
#include <zlib.h>
#include <zstd.h>

#include "support/data_files.h"

#include "base/rng.h"
#include "base/scope.h"
#include "data/pack.h"
#include "support/mentions.h"
#include "support/unigram_model.h"

static const char *const only_in[] = {"in", NULL};

/* Packs `in` to `out`; the other options are the caller's. */
static PackResult pack_with(PackOptions options) {
    PackResult result;
    Error error = {0};
    if (!options.inputs) options.inputs = only_in;
    if (!options.output) options.output = "out";
    if (!options.separator) options.separator = "";
    options.overwrite = true;
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void assert_refused(PackOptions options, ErrorCode code, const char *part) {
    PackResult result;
    Error error = {0};
    if (!options.inputs) options.inputs = only_in;
    options.output = "out";
    if (!options.separator) options.separator = "";
    options.overwrite = true;
    assert_false(pack_text(&options, &result, &error));
    assert_int_equal(error.code, code);
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

/* -- JSON lines ---------------------------------------------------------------------------------------------------- */

static void the_text_of_json_lines_is_packed(void **state) {
    (void)state;
    write_text(
        "in", "{\"id\": 1, \"text\": \"one\\ntwo\"}\r\n\n{\"text\": \"caf\\u00e9\", \"n\": [1, {\"text\": \"no\"}]}\n{\"text\":\"last\"}");
    PackResult result = pack_with((PackOptions){0});
    assert_shard_text("out", "one\ntwo|caf\xc3\xa9|last|");
    assert_int_equal(result.documents, 3);
    write_text("in", "{\"body\": \"b\", \"text\": \"t\"}\n{\"body\": \"c\"}\n");
    pack_with((PackOptions){.field = "body"});
    assert_shard_text("out", "b|c|");
    pack_with((PackOptions){.format = PACK_TEXT});
    assert_shard_text("out", "{\"body\": \"b\", \"text\": \"t\"}\n{\"body\": \"c\"}\n|");
}

static void bad_lines_are_counted_by_kind_and_sampled(void **state) {
    (void)state;
    write_text("in.jsonl",
        "oh\n{\"text\": \"a\"}\n{\"text\": 5}\n{\"other\": \"x\"}\n{\"text\": \"\"}\n[1]\n{\"text\": \"b\"\n{\"text\": \"c\\ud800\"}\n"
        "{\"text\": \"d\xff\"}\n");
    PackResult result = pack_with((PackOptions){.inputs = (const char *[]){"in.jsonl", NULL}});
    assert_shard_text("out", "a|d\xef\xbf\xbd|");
    assert_int_equal(result.bad[PACK_BAD_JSON], 4);
    assert_int_equal(result.bad[PACK_BAD_FIELD], 2);
    assert_int_equal(result.bad[PACK_BAD_EMPTY], 1);
    assert_int_equal(result.bad[PACK_BAD_UTF8], 1);
    size_t size;
    char *record = (char *)read_bytes("out.pack.json", &size);
    assert_non_null(strstr(record, "\"kind\": \"missing field\",\n   \"file\": \"in.jsonl\",\n   \"line\": 3,"));
    assert_non_null(strstr(record, "\"kind\": \"invalid UTF-8\",\n   \"file\": \"in.jsonl\",\n   \"line\": 9,"));
    free(record);
    assert_refused((PackOptions){.inputs = (const char *[]){"in.jsonl", NULL}, .invalid = PACK_INVALID_STOP}, ERROR_DATA,
        "1 in.jsonl invalid=stop JSON");
}

static void a_line_above_the_limit_is_bad_and_the_next_is_read(void **state) {
    (void)state;
    enum { LONG = (1 << 26) + 100 };
    char *text = memory_allocate(LONG + 200);
    strcpy(text, "{\"text\": \"first\"}\n{\"text\": \"");
    size_t start = strlen(text);
    memset(text + start, 'x', LONG);
    strcpy(text + start + LONG, "\"}\n{\"text\": \"third\"}\n");
    write_text("in", text);
    free(text);
    PackResult result = pack_with((PackOptions){.format = PACK_JSON});
    assert_shard_text("out", "first|third|");
    assert_int_equal(result.bad[PACK_BAD_LONG], 1);
}

static void the_fields_that_there_are_are_named(void **state) {
    (void)state;
    write_text("in", "{\"id\": 1, \"body\": \"b\"}\n{\"id\": 2}\n");
    assert_refused((PackOptions){0}, ERROR_DATA, "field=NAME");
    write_text("in", "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}\n{\"messages\": []}\n");
    assert_refused((PackOptions){.format = PACK_JSON}, ERROR_DATA, "format=chat");
}

/* Captions of pictures are no corpus; a text or a folder beside them makes the folder one. */
static void a_folder_of_pictures_is_answered_with_what_encodes_it(void **state) {
    (void)state;
    static const char picture[] = "\x89PNG\r\n\x1a\n";
    static const char answer[] = "in is a folder of 2 pictures smelt train --example encode-images.py > encode-images.py; python3 "
                                 "encode-images.py flux FLUX.1-dev in in-encodings data.train=in-encodings";
    assert_int_equal(mkdir("in", 0777), 0);
    write_text("in/a.png", picture);
    write_text("in/B.JPG", picture);
    assert_refused((PackOptions){0}, ERROR_USAGE, answer);
    write_text("in/a.txt", "a cat");
    write_text("in/B.caption", "a dog");
    write_text("in/metadata.csv", "file_name,text\n");
    write_text("in/.hidden", "");
    assert_refused((PackOptions){0}, ERROR_USAGE, answer);
    write_text("in/c.txt", "a text without a picture");
    assert_int_equal(pack_with((PackOptions){0}).documents, 3);
    assert_int_equal(remove("in/c.txt") + mkdir("in/more", 0777), 0);
    assert_int_equal(pack_with((PackOptions){0}).documents, 2);
}

static void the_folder_of_the_output_is_made(void **state) {
    (void)state;
    write_text("in", "text\n");
    pack_with((PackOptions){.output = "new/folder/out"});
    assert_shard_text("new/folder/out", "text\n|");
}

static void a_tokenizer_is_no_text(void **state) {
    (void)state;
    static const char *const tokenizers[] = {"{\n  \"version\": \"1.0\",\n  \"added_tokens\": []\n}", "IQ== 0\nIg== 1\nIw== 2\n",
        "{\"config\": {\"default_num_special_tokens\": 1000}}"};
    static const char *const told[] = {
        "tokenizer.json", "in is a tokenizer (.tiktoken), not text", "in is a tokenizer (tekken.json), not text"};
    for (int i = 0; i < 3; i++) {
        write_text("in", tokenizers[i]);
        assert_refused((PackOptions){0}, ERROR_DATA, told[i]);
    }
    write_text("in", "{\"version\": 1, \"text\": \"\\\"added_tokens\\\"\"}\n"); /* JSON lines on tokenizers */
    pack_with((PackOptions){0});
    assert_shard_text("out", "\"added_tokens\"|");
}

/* -- Compressed files ------------------------------------------------------------------------------------------------ */

static void write_gzip(const char *path, const char *mode, const char *text) {
    gzFile file = gzopen(path, mode);
    assert_non_null(file);
    assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(file), Z_OK);
}

static void write_zstd(const char *path, const char *text) {
    size_t room = ZSTD_compressBound(strlen(text));
    char *packed = memory_allocate(room);
    write_bytes(path, packed, ZSTD_compress(packed, room, text, strlen(text), 3));
    free(packed);
}

static void write_xz(const char *path, const char *text) {
    size_t room = lzma_stream_buffer_bound(strlen(text)), size = 0;
    uint8_t *packed = memory_allocate(room);
    assert_int_equal(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, NULL, (const uint8_t *)text, strlen(text), packed, &size, room), LZMA_OK);
    write_bytes(path, packed, size);
    free(packed);
}

static void compressed_text_is_what_it_was(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    write_gzip("in/1", "wb", "one\n%\n");
    write_gzip("in/1", "ab", "two\n"); /* a second member */
    write_zstd("in/2.txt", "three\n");
    write_xz("in/3", "{\"text\": \"four\"}\n{\"text\": \"five\"}\n");
    write_text("in/4", "six");
    PackResult result = pack_with((PackOptions){.separator = "%"});
    assert_shard_text("out", "one\n|two\n|three\n|four|five|six|");
    assert_int_equal(result.documents, 6);
    assert_int_equal(result.files, 4);
}

static void a_compressed_file_that_is_cut_off_or_damaged_gives_what_comes_before(void **state) {
    (void)state;
    char *text = memory_allocate(400001);
    uint32_t random = 1;
    for (int i = 0; i < 400000; i++)
        random = random * 1664525 + 1013904223, text[i] = (char)(i % 50 == 49 ? '\n' : 'a' + (random >> 24) % 26);
    assert_int_equal(mkdir("in", 0700), 0);
    write_gzip("in/a.gz", "wb", text);
    write_text("in/b", "whole");
    size_t size;
    unsigned char *packed = read_bytes("in/a.gz", &size);
    write_bytes("in/a.gz", packed, size / 2);
    PackResult result = pack_with((PackOptions){0});
    assert_int_equal(result.bad[PACK_BAD_FILE], 1);
    assert_int_equal(result.documents, 2);
    assert_in_range(result.text_bytes, 100000, 300000);
    packed[size / 2] ^= 0xff;
    write_bytes("in/a.gz", packed, size);
    assert_int_equal(pack_with((PackOptions){0}).bad[PACK_BAD_FILE], 1);
    assert_refused((PackOptions){.invalid = PACK_INVALID_STOP}, ERROR_DATA, "in/a.gz");
    free(packed);
    free(text);
}

static void what_is_not_text_inside_a_compressed_file_is_named(void **state) {
    (void)state;
    char tar[600] = "file";
    memcpy(tar + 257, "ustar", 5);
    gzFile file = gzopen("in", "wb");
    gzwrite(file, tar, sizeof tar);
    gzclose(file);
    assert_refused((PackOptions){0}, ERROR_DATA, "in is a tar archive, not text");
}

static void documents_of_streams_are_divided_by_their_number(void **state) {
    (void)state;
    write_gzip("in", "wb", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n{\"text\": \"d\"}\n{\"text\": \"e\"}\n");
    pack_with((PackOptions){.valid_fraction = 0.4});
    assert_shard_text("out-train", "a|b|d|");
    assert_shard_text("out-valid", "c|e|");
    write_gzip("in", "wb", "one document\n");
    assert_refused((PackOptions){.valid_fraction = 0.4}, ERROR_DATA, "separator= data.valid=FILE");
    assert_true(unlink("in") == 0 && mkdir("in", 0700) == 0); /* a file of a folder is one document of many */
    for (int i = 0; i < 5; i++)
        write_gzip(((const char *[]){"in/a", "in/b", "in/c", "in/d", "in/e"})[i], "wb", ((const char *[]){"a", "b", "c", "d", "e"})[i]);
    pack_with((PackOptions){.valid_fraction = 0.4});
    assert_shard_text("out-train", "a|b|d|");
    assert_shard_text("out-valid", "c|e|");
}

/* -- Text ------------------------------------------------------------------------------------------------------------ */

/* The replacements are those of Python's bytes.decode(errors="replace"). */
static void invalid_text_becomes_what_is_asked(void **state) {
    (void)state;
    write_text("in", "good\n%\nl\xe9 f\xe9\n%\n\xf0\x9f\x98 \xed\xa0\x80 \xc0\xaf\n%\nend\n");
    PackResult result = pack_with((PackOptions){.separator = "%"});
#define BAD "\xef\xbf\xbd"
    assert_shard_text("out", "good\n|l" BAD " f" BAD "\n|" BAD " " BAD BAD BAD " " BAD BAD "\n|end\n|");
    assert_int_equal(result.bad[PACK_BAD_UTF8], 2);
    result = pack_with((PackOptions){.separator = "%", .invalid = PACK_INVALID_SKIP});
    assert_shard_text("out", "good\n|end\n|");
    assert_int_equal(result.bad[PACK_BAD_UTF8], 2);
    pack_with((PackOptions){.separator = "%", .invalid = PACK_INVALID_KEEP});
    assert_shard_text("out", "good\n|l\xe9 f\xe9\n|\xf0\x9f\x98 \xed\xa0\x80 \xc0\xaf\n|end\n|");
    assert_refused((PackOptions){.separator = "%", .invalid = PACK_INVALID_STOP}, ERROR_DATA, "line 3 in invalid=stop: UTF-8");
}

/* A document of many pieces, with a character of several bytes wherever they may be cut, and separators in its lines. */
static void a_long_document_is_the_same_as_a_short_one_and_on_any_number_of_threads(void **state) {
    (void)state;
    enum { SIZE = 3000000 };
    char *text = memory_allocate(SIZE + 64), *at = text;
    for (int i = 0; at - text < SIZE; i++) at += sprintf(at, "%d \xe2\x82\xac%% %d\n%s", i, i % 97 * i % 89, i % 7 ? "" : "x%\n");
    write_text("in", text);
    int threads = omp_get_max_threads();
    for (int i = 1; i <= 5; i += 2) {
        omp_set_num_threads(i);
        PackResult result =
            pack_with((PackOptions){.separator = "%", .invalid = PACK_INVALID_STOP, .dedup = i > 3 ? PACK_DEDUP_EXACT : PACK_DEDUP_NONE});
        assert_int_equal(result.documents, 1);
        char *packed = shard_text("out");
        assert_memory_equal(packed, text, strlen(text));
        free(packed);
    }
    omp_set_num_threads(threads);
    free(text);
}

/* The sum of scores goes on from piece to piece. */
static void a_long_document_of_a_unigram_model_has_the_tokens_of_the_whole(void **state) {
    (void)state;
    enum { SIZE = 1500000 };
    SCOPED_FREE char *text = random_words(SIZE);
    Error error = {0};
    TokenIds whole = {0};
    write_rivals_model("rivals.model");
    write_text("in", text);
    Tokenizer *tokenizer = tokenizer_open("rivals.model", &error);
    assert_non_null(tokenizer);
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    assert_true(tokenizer_encode(encoder, text, SIZE, 0, &whole, &error));
    token_ids_append(&whole, tokenizer_end_of_text(tokenizer));
    int threads = omp_get_max_threads();
    for (int i = 1; i <= 5; i += 2) {
        omp_set_num_threads(i);
        pack_with((PackOptions){.tokenizer = "rivals.model"});
        ShardSet set = open_set("out");
        assert_tokens(&set, whole.items, (int64_t)whole.count);
        shard_set_close(&set);
    }
    omp_set_num_threads(threads);
    token_ids_free(&whole);
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
}

/* The first block takes longer than all others together, which would go round the ring of blocks more than once. */
static void a_slow_block_holds_up_the_writer_alone(void **state) {
    (void)state;
    enum { SLOW = 3000000, QUICK = 300000, LINES = 40 };
    char *text = memory_allocate(SLOW * 6 + LINES * (QUICK + 20) + 40), *at = text;
    int threads = omp_get_max_threads();
    at += sprintf(at, "{\"text\": \"");
    for (int i = 0; i < SLOW; i++) at += sprintf(at, "\\u00%02x", 'a' + i % 26);
    at += sprintf(at, "\"}\n");
    for (int i = 0; i < LINES; i++) {
        at += sprintf(at, "{\"text\": \"");
        memset(at, 'A' + i % 26, QUICK);
        at += QUICK;
        at += sprintf(at, "\"}\n");
    }
    write_bytes("in", text, (size_t)(at - text));
    free(text);
    alarm(120); /* a block that is encoded twice may stop the ring */
    omp_set_num_threads(2);
    PackResult result = pack_with((PackOptions){.format = PACK_JSON});
    omp_set_num_threads(threads);
    alarm(0);
    assert_int_equal(result.documents, LINES + 1);
    char *packed = shard_text("out");
    for (int i = 0; i < SLOW; i++) assert_int_equal(packed[i], 'a' + i % 26);
    for (int i = 0; i < LINES; i++) assert_int_equal(packed[SLOW + 1 + (int64_t)i * (QUICK + 1)], 'A' + i % 26);
    free(packed);
}

/* A byte-level vocabulary with the one special token, as `smelt data train-tokenizer` makes it. */
static void special_tokens_in_text_are_text_unless_asked(void **state) {
    (void)state;
    write_text("in", "a<|endoftext|>b");
    TokenizerTraining training = {"gpt2", 300, 1};
    PackResult result;
    Error error = {0};
    int32_t learned;
    PackOptions teach = {.inputs = only_in, .output = "t.json", .separator = ""};
    assert_true(pack_train_tokenizer(&teach, &training, &result, &learned, &error));
    pack_with((PackOptions){.tokenizer = "t.json"});
    ShardSet set = open_set("out");
    int64_t plain = set.token_count;
    shard_set_close(&set);
    pack_with((PackOptions){.tokenizer = "t.json", .special = true});
    set = open_set("out");
    SCOPED_FREE uint8_t *ends = NULL;
    SCOPED_FREE int32_t *tokens = read_tokens(&set, &ends);
    assert_int_equal(set.token_count, 4);
    assert_int_equal(tokens[1], tokens[3]);
    assert_int_not_equal(plain, 4);
    shard_set_close(&set);
}

static void a_long_document_of_many_bad_pieces_is_one_bad_record(void **state) {
    (void)state;
    enum { SIZE = 2000000 };
    char *text = memory_allocate(SIZE);
    for (int i = 0; i < SIZE; i++) text[i] = (char)(i % 1000 == 999 ? '\xe9' : 'a');
    write_bytes("in", text, SIZE);
    free(text);
    assert_int_equal(pack_with((PackOptions){0}).bad[PACK_BAD_UTF8], 1);
    write_text("in2", "fine");
    static const char *const both[] = {"in", "in2", NULL};
    PackResult result = pack_with((PackOptions){.inputs = both, .invalid = PACK_INVALID_SKIP});
    assert_int_equal(result.bad[PACK_BAD_UTF8], 1);
    assert_shard_text("out", "fine|");
}

static void several_inputs_are_packed_in_their_order(void **state) {
    (void)state;
    write_text("b", "1");
    write_text("a", "2");
    assert_int_equal(mkdir("c", 0700), 0);
    write_text("c/x", "3");
    pack_with((PackOptions){.inputs = (const char *[]){"b", "c", "a", NULL}});
    assert_shard_text("out", "1|3|2|");
}

static void equal_documents_are_counted_and_left_out_where_asked(void **state) {
    (void)state;
    write_text("in", "a\n%\nb\n%\na\n%\na\n%\nc\n");
    PackResult result = pack_with((PackOptions){.separator = "%"});
    assert_int_equal(result.duplicates, 2);
    assert_int_equal(result.left_out, 0);
    assert_shard_text("out", "a\n|b\n|a\n|a\n|c\n|");
    result = pack_with((PackOptions){.separator = "%", .dedup = PACK_DEDUP_EXACT});
    assert_int_equal(result.duplicates, 2);
    assert_int_equal(result.left_out, 2);
    assert_shard_text("out", "a\n|b\n|c\n|");
}

/* More documents than the set of hashes has room for at first. */
static void many_equal_documents_are_found(void **state) {
    (void)state;
    enum { DOCUMENTS = 150000, DIFFERENT = 90001 };
    char *text = memory_allocate(DOCUMENTS * 10), *at = text;
    for (int i = 0; i < DOCUMENTS; i++) at += sprintf(at, "%d\n%%\n", i % DIFFERENT);
    write_text("in", text);
    free(text);
    PackResult result = pack_with((PackOptions){.separator = "%"});
    assert_int_equal(result.documents, DOCUMENTS);
    assert_int_equal(result.duplicates, DOCUMENTS - DIFFERENT);
    int64_t documents = 0;
    for (int i = 0; i < PACK_LENGTHS; i++) documents += result.lengths[i];
    assert_int_equal(documents, DOCUMENTS);
    assert_int_equal(result.lengths[1], 20); /* a digit, a line end and the end: 3 tokens */
}

/* A text of 400 words drawn by `seed`, of which every `every`-th is another one in a variant. */
static char *write_words(char *at, uint64_t seed, int every) {
    for (int i = 0; i < 400; i++) {
        uint32_t word = rng_bits(seed, 4, (uint64_t)i).word[every > 0 && i % every == every / 2];
        at += sprintf(at, "%s%x", i % 9 ? " " : ".\n", word % 3000);
    }
    return at + sprintf(at, "\n%%\n");
}

/* One word in 100 changes 5 of 100 runs, a Jaccard similarity of 0.9; one word in 5 changes them all. */
static void documents_that_share_most_of_their_text_are_found(void **state) {
    (void)state;
    enum { DOCUMENTS = 100 };
    char *text = memory_allocate(DOCUMENTS * 3 * 400 * 8), *at = text;
    for (int copy = 0; copy < 3; copy++)
        for (uint64_t i = 0; i < DOCUMENTS; i++) at = write_words(at, i, copy == 0 ? 0 : copy == 1 ? 100 : 5);
    write_text("in", text);
    free(text);
    PackResult result = pack_with((PackOptions){.separator = "%", .dedup = PACK_DEDUP_NEAR});
    assert_int_equal(result.duplicates, 0);
    assert_int_equal(result.near, DOCUMENTS);
    assert_int_equal(result.documents, 2 * DOCUMENTS);
    assert_int_equal(pack_with((PackOptions){.separator = "%", .dedup = PACK_DEDUP_EXACT}).documents, 3 * DOCUMENTS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(the_text_of_json_lines_is_packed),
        IN_FOLDER(bad_lines_are_counted_by_kind_and_sampled),
        IN_FOLDER(a_line_above_the_limit_is_bad_and_the_next_is_read),
        IN_FOLDER(the_fields_that_there_are_are_named),
        IN_FOLDER(a_folder_of_pictures_is_answered_with_what_encodes_it),
        IN_FOLDER(the_folder_of_the_output_is_made),
        IN_FOLDER(a_tokenizer_is_no_text),
        IN_FOLDER(compressed_text_is_what_it_was),
        IN_FOLDER(a_compressed_file_that_is_cut_off_or_damaged_gives_what_comes_before),
        IN_FOLDER(what_is_not_text_inside_a_compressed_file_is_named),
        IN_FOLDER(documents_of_streams_are_divided_by_their_number),
        IN_FOLDER(invalid_text_becomes_what_is_asked),
        IN_FOLDER(a_long_document_of_a_unigram_model_has_the_tokens_of_the_whole),
        IN_FOLDER(a_long_document_is_the_same_as_a_short_one_and_on_any_number_of_threads),
        IN_FOLDER(a_slow_block_holds_up_the_writer_alone),
        IN_FOLDER(special_tokens_in_text_are_text_unless_asked),
        IN_FOLDER(a_long_document_of_many_bad_pieces_is_one_bad_record),
        IN_FOLDER(several_inputs_are_packed_in_their_order),
        IN_FOLDER(equal_documents_are_counted_and_left_out_where_asked),
        IN_FOLDER(many_equal_documents_are_found),
        IN_FOLDER(documents_that_share_most_of_their_text_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

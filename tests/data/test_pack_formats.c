/* Tests of what a file is taken for: records of JSON in each of its shapes, tables, compressed data, splits of a folder,
 * and what is left out with which reason. Each test runs in a temporary folder of its own; run by `make test`. */
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include "support/data_files.h"

#include "base/rng.h"
#include "base/scope.h"
#include "data/pack.h"
#include "support/mentions.h"

static PackResult pack_file(const char *input, PackOptions options) {
    PackResult result;
    Error error = {0};
    options.inputs = (const char *[]){input, NULL};
    options.output = "out";
    if (!options.separator) options.separator = "";
    options.overwrite = true;
    if (!pack_text(&options, &result, &error)) fail_msg("%s: %s", input, error.message);
    return result;
}

static void assert_file_refused(const char *input, PackOptions options, const char *part) {
    PackResult result;
    Error error = {0};
    options.inputs = (const char *[]){input, NULL};
    options.output = "out";
    if (!options.separator) options.separator = "";
    options.overwrite = true;
    assert_false(pack_text(&options, &result, &error));
    assert_int_equal(error.code, ERROR_DATA);
    if (!mentions(error.message, part)) fail_msg("%s: \"%s\" does not contain \"%s\"", input, error.message, part);
}

/* -- JSON -------------------------------------------------------------------------------------------------------------- */

typedef struct Written { const char *name, *content, *text; } Written;

/* Packs each file and compares the documents. */
static void check_packed(const Written *files, size_t count) {
    for (size_t i = 0; i < count; i++) {
        write_text(files[i].name, files[i].content);
        pack_file(files[i].name, (PackOptions){0});
        assert_shard_text("out", files[i].text);
    }
}
#define CHECK_PACKED(files) check_packed(files, sizeof(files) / sizeof *(files))

/* As Python's json.dump writes them, with and without indent, and as people put them together. The expected texts are those
 * of `datasets`. */
static void records_of_json_are_read_in_each_shape(void **state) {
    (void)state;
    static const Written files[] = {
        {"a.json", "[{\"text\":\"one\"},{\"text\":\"two\"}]\n", "one|two|"},
        {"a.json", "[\n  {\n    \"text\": \"one\"\n  },\n  {\n    \"text\": \"two\"\n  }\n]", "one|two|"},
        {"plain", " [ {\"text\": \"one\"} ,\r\n{\"text\": \"two\"}\r\n]\r\n", "one|two|"},
        {"plain", "\xef\xbb\xbf[{\"text\": \"one\"}]", "one|"},
        {"a.jsonl", "[{\"text\": \"one\"}, {\"text\": \"two\"}]\n", "one|two|"},
        {"plain", "[{\"n\": [1, {\"text\": \"no\"}], \"s\": \"]}\\\"[{\", \"text\": \"a ], b }, \\\\\"}, {\"text\": \"\\\"c\"}]",
            "a ], b }, \\|\"c|"},
        {"a.json", "{\n  \"text\": \"one\",\n  \"id\": 1\n}\n", "one|"},
        {"plain", "{\n \"text\": \"one\"\n}\n{\n \"text\": \"two\"\n}\n", "one|two|"},
        {"plain", "{ \"id\": 7,\n \"text\": \"one\" }{\"text\": \"two\"}", "one|two|"},
        {"a.jsonl", "{\n \"text\": \"one\"\n}\n{\n \"text\": \"two\"\n}\n", "one|two|"},
        {"a.json", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n", "one|two|"},
        {"plain", "[1] is a footnote\n", "[1] is a footnote\n|"},
        {"plain", "[{x}] and so on\n", "[{x}] and so on\n|"},
        {"plain", "{\"a\": 1}\nand prose\n", "{\"a\": 1}\nand prose\n|"},
    };
    CHECK_PACKED(files);
}

static void what_is_wrong_with_an_array_is_named_and_what_came_before_stays(void **state) {
    (void)state;
    static const Written files[] = {
        {"a.json", "[{\"text\": \"one\"}, {\"text\": \"two\"", "broken JSON"},
        {"a.json", "[{\"text\": \"one\"} {\"text\": \"two\"}]", "byte 7b"},
        {"a.json", "[{\"text\": \"one\"},, {\"text\": \"two\"}]", "byte 2c"},
        {"a.json", "[{\"text\": \"one\"}] and more", "byte 61"},
        {"a.json", "[{\"text\": \"one\"}", "the array does not end"},
        {"a.json", "[{\"text\": \"one\"}, 5, \"six\", [7], null]", "broken JSON"},
        {"a.json", "{\n\"text\": \"one\"\n}\n{\n\"text\": 2\n}\n, {\"text\": \"two\"}", "byte 2c"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_text(files[i].name, files[i].content);
        PackResult result = pack_file(files[i].name, (PackOptions){0});
        assert_true(result.bad[PACK_BAD_JSON] >= 1);
        assert_shard_text("out", "one|");
        size_t size;
        SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size);
        if (!strstr(record, files[i].text)) fail_msg("%s is not in %s", files[i].text, record);
    }
    write_text("a.json", "[\"one\", \"two\"]");
    assert_file_refused("a.json", (PackOptions){0}, "JSON");
    write_text("a.json", "[]");
    assert_file_refused("a.json", (PackOptions){0}, "no text");
    pack_file("a.json", (PackOptions){.format = PACK_TEXT});
    assert_shard_text("out", "[]|");
}

/* Much longer than the window in which a file is read, and at each offset of a record against its end. */
static void long_arrays_are_read_in_parts(void **state) {
    (void)state;
    enum { RECORDS = 3000 };
    for (int shift = 0; shift < 3; shift++) {
        FILE *file = fopen("a.json", "w");
        assert_non_null(file);
        fprintf(file, "[%*s", shift, "");
        for (int i = 0; i < RECORDS; i++) fprintf(file, "%s{\"id\": %d, \"text\": \"%0*d\\\"\"}", i ? ",\n " : "", i, 97 + i % 211, i);
        fprintf(file, "]");
        assert_int_equal(fclose(file), 0);
        PackResult result = pack_file("a.json", (PackOptions){0});
        assert_int_equal(result.documents, RECORDS);
        int64_t bytes = 0;
        for (int i = 0; i < RECORDS; i++) bytes += 98 + i % 211;
        assert_int_equal(result.text_bytes, bytes);
    }
}

static void an_element_above_the_limit_is_bad_and_the_next_is_read(void **state) {
    (void)state;
    enum { LONG = (1 << 26) + 100 };
    FILE *file = fopen("a.json", "w");
    assert_non_null(file);
    fprintf(file, "[{\"text\": \"first\"}, {\"text\": \"");
    char *many = memory_allocate(LONG);
    memset(many, 'x', LONG);
    assert_int_equal(fwrite(many, 1, LONG, file), LONG);
    free(many);
    fprintf(file, "\"}, {\"text\": \"third\"}]");
    assert_int_equal(fclose(file), 0);
    PackResult result = pack_file("a.json", (PackOptions){0});
    assert_shard_text("out", "first|third|");
    assert_int_equal(result.bad[PACK_BAD_LONG], 1);
}

/* -- Tables ------------------------------------------------------------------------------------------------------------ */

/* Rows as Python's csv module reads them. */
static void the_text_of_tables_is_packed(void **state) {
    (void)state;
    static const Written files[] = {
        {"a.csv", "text\none\ntwo\n", "one|two|"},
        {"a.csv", "id,text,label\r\n1,one,x\r\n2,\"two, and\r\nmore \"\"quoted\"\"\",y\r\n", "one|two, and\r\nmore \"quoted\"|"},
        {"a.csv", "\xef\xbb\xbf\"text\",n\n\"\"\"a\"\"\",1\n\n5\" pipe,2\nlast,3", "\"a\"|5\" pipe|last|"},
        {"a.tsv", "id\ttext\n1\tone, two\n\ttab\n", "one, two|tab|"},
        {"a.csv", "n,text\n1,\n2,two\n", "two|"},
        {"plain", "id,text\n1,one\n", "id,text\n1,one\n|"},
    };
    CHECK_PACKED(files);
    write_text("a.csv", "id,text,body\n1,no,yes\n");
    pack_file("a.csv", (PackOptions){.field = "body"});
    assert_shard_text("out", "yes|");
    pack_file("a.csv", (PackOptions){.format = PACK_TEXT});
    assert_shard_text("out", "id,text,body\n1,no,yes\n|");
}

static void broken_rows_and_tables_without_the_column_are_named(void **state) {
    (void)state;
    write_text("a.csv", "id,text\n1,one\n2,Hello, world\n3\n4,four\n5,\"open");
    PackResult result = pack_file("a.csv", (PackOptions){0});
    assert_shard_text("out", "one|four|");
    assert_int_equal(result.bad[PACK_BAD_ROW], 3);
    write_text("a.csv", "id,body\n1,one\n");
    assert_file_refused("a.csv", (PackOptions){0}, "field=NAME");
    write_text("a.csv", "id,messages\n1,one\n");
    assert_file_refused("a.csv", (PackOptions){.format = PACK_CHAT}, "conversations");
}

/* -- Compressed data ----------------------------------------------------------------------------------------------------- */

static size_t text_of(char *text, size_t size) {
    for (size_t i = 0; i < size; i++) text[i] = (char)('a' + rng_bits(1, 2, i).word[0] % 26);
    return size;
}

static void frames_that_are_skipped_and_wide_windows_of_zstd_are_read(void **state) {
    (void)state;
    enum { SIZE = 100000 };
    char *text = memory_allocate(SIZE + 2), *packed = memory_allocate(2 * SIZE);
    text_of(text, SIZE);
    strcpy(text + SIZE, "|");
    ZSTD_CCtx *context = ZSTD_createCCtx();
    size_t half = SIZE / 2, used = 0;
    for (int i = 0; i < 2; i++) { /* as pzstd does: the size of each frame comes in a frame that is to be skipped */
        size_t frame = ZSTD_compressCCtx(context, packed + used + 12, SIZE, text + i * half, half, 1);
        assert_false(ZSTD_isError(frame));
        memcpy(packed + used, "\x50\x2a\x4d\x18\4\0\0\0", 8);
        memcpy(packed + used + 8, &(uint32_t){(uint32_t)frame}, 4);
        used += 12 + frame;
    }
    write_bytes("a.zst", packed, used);
    pack_file("a.zst", (PackOptions){0});
    assert_shard_text("out", text);
    /* As zstd --long=31 does with a stream, whose size the frame does not tell. */
    ZSTD_freeCCtx(context);
    context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_enableLongDistanceMatching, 1);
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 31);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    ZSTD_inBuffer in = {text, half, 0};
    ZSTD_outBuffer out = {packed, 2 * SIZE, 0};
    assert_false(ZSTD_isError(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush)));
    in.size = SIZE;
    assert_int_equal(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0);
    write_bytes("a.zst", packed, out.pos);
    pack_file("a.zst", (PackOptions){0});
    assert_shard_text("out", text);
    ZSTD_freeCCtx(context);
    free(text);
    free(packed);
}

static void zlib_and_lzma_are_read(void **state) {
    (void)state;
    enum { SIZE = 20000 };
    char text[SIZE + 2];
    unsigned char packed[2 * SIZE];
    text_of(text, SIZE);
    strcpy(text + SIZE, "|");
    for (int level = 0; level <= 9; level++) {
        uLongf size = sizeof packed;
        assert_int_equal(compress2(packed, &size, (unsigned char *)text, SIZE, level), Z_OK);
        write_bytes("in", packed, size);
        pack_file("in", (PackOptions){0});
        assert_shard_text("out", text);
        lzma_options_lzma options;
        lzma_stream stream = LZMA_STREAM_INIT;
        assert_false(lzma_lzma_preset(&options, (uint32_t)level));
        assert_int_equal(lzma_alone_encoder(&stream, &options), LZMA_OK);
        stream.next_in = (unsigned char *)text;
        stream.avail_in = SIZE;
        stream.next_out = packed;
        stream.avail_out = sizeof packed;
        assert_int_equal(lzma_code(&stream, LZMA_FINISH), LZMA_STREAM_END);
        write_bytes("in.lzma", packed, sizeof packed - stream.avail_out);
        lzma_end(&stream);
        pack_file("in.lzma", (PackOptions){0});
        assert_shard_text("out", text);
    }
    static const char *const texts[] = {"x^2", "x^2 + y^2 = z^2\n", "x\001", "x"}; /* begin as zlib does */
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        SCOPED_FREE char *whole = memory_format("%s|", texts[i]);
        write_text("in", texts[i]);
        pack_file("in", (PackOptions){0});
        assert_shard_text("out", whole);
    }
}

/* -- Folders ----------------------------------------------------------------------------------------------------------- */

/* Makes the files of "PATH PATH ..." in the folder `in`; each holds a record with its path as the text. */
static void write_files(const char *paths) {
    SCOPED_FREE char *list = memory_copy_string(paths);
    assert_int_equal(system("rm -rf in && mkdir in"), 0);
    char *rest = list;
    for (char *path; (path = strtok_r(rest, " ", &rest));) {
        SCOPED_FREE char *make = memory_format("mkdir -p $(dirname in/%s)", path), *name = memory_format("in/%s", path);
        SCOPED_FREE char *record = memory_format("{\"text\": \"%s\"}\n", path);
        assert_int_equal(system(make), 0);
        write_text(name, record);
    }
}

typedef struct Folder { const char *files, *train, *held_out; } Folder;

/* The splits are those that load_dataset of `datasets` makes of such folders. */
static void one_split_of_a_folder_is_taken_by_name(void **state) {
    (void)state;
    static const Folder folders[] = {
        {"train.jsonl test.jsonl README.md", "train.jsonl|", "test.jsonl|"},
        {"data/train-00000-of-00002.jsonl data/train-00001-of-00002.jsonl data/validation-00000-of-00001.jsonl "
         "data/test-00000-of-00001.jsonl README.md",
            "data/train-00000-of-00002.jsonl|data/train-00001-of-00002.jsonl|", "data/validation-00000-of-00001.jsonl|"},
        {"train/a.jsonl train/b.jsonl test/a.jsonl notes.jsonl", "train/a.jsonl|train/b.jsonl|", "test/a.jsonl|"},
        {"my_train_file_1.jsonl my_dev_file_1.jsonl", "my_train_file_1.jsonl|", "my_dev_file_1.jsonl|"},
        {"en/training.json en/val.json de/Train.json", "de/Train.json|en/training.json|", "en/val.json|"},
        {"train/test-1.jsonl train/x.jsonl", "train/x.jsonl|", "train/test-1.jsonl|"},
        /* No splits, or not two of them. */
        {"a.jsonl README.md", "a.jsonl|", "a.jsonl|"},
        {"train.jsonl more.jsonl", "more.jsonl|train.jsonl|", "more.jsonl|train.jsonl|"},
        {"test.jsonl valid.jsonl", "test.jsonl|valid.jsonl|", "test.jsonl|valid.jsonl|"},
        {"constraint.jsonl testament.jsonl trainer.jsonl", "constraint.jsonl|testament.jsonl|trainer.jsonl|", NULL},
        {"train.md test.md", "test.md|train.md|", NULL},
        {"train/a.c test/a.c README.md", "README.md|test/a.c|train/a.c|", NULL},
    };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        write_files(folders[i].files);
        pack_file("in", (PackOptions){.format = strstr(folders[i].files, ".json") ? PACK_AUTO : PACK_JSON});
        assert_shard_text("out", folders[i].train);
        if (!folders[i].held_out) continue;
        pack_file("in", (PackOptions){.held_out = true});
        assert_shard_text("out", folders[i].held_out);
    }
}

/* A name of the list in the record of the packing, with its reason or alone. */
static void assert_listed(const char *file, const char *why) {
    size_t size;
    SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size);
    SCOPED_FREE char *entry = why ? memory_format("\"file\": \"%s\",\n   \"why\": \"%s", file, why) : memory_format("\n  \"%s\"", file);
    if (!strstr(record, entry)) fail_msg("%s is not in %s", entry, record);
}

static void every_file_of_a_folder_is_listed_as_taken_or_left_out(void **state) {
    (void)state;
    write_files("a.jsonl .hidden b.json sub/c.jsonl README.md");
    write_text("in/empty", "");
    write_text("in/blank.jsonl", "\n\n");
    write_text("in/d.json", "\"text\"");
    write_text("in/e.csv", "a,b\n1,2\n");
    write_bytes("in/cat.png", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16);
    write_bytes("in/cat.bmp", "BM\x36\0\0\0", 6);
    write_bytes("in/data-00000-of-00001.arrow", "\xff\xff\xff\xff\x10\1\0\0\0\0", 10);
    write_text("in/state.json", "{\n  \"_data_files\": [\n {\"filename\": \"data-00000-of-00001.arrow\"}],\n  \"_fingerprint\": \"0\"\n}");
    write_text("in/dataset_info.json", "{\n  \"citation\": \"\",\n  \"description\": \"\",\n  \"features\": {}\n}");
    assert_int_equal(symlink("/etc/hostname", "in/link"), 0);
    assert_int_equal(mkfifo("in/pipe", 0600), 0);
    pack_file("in", (PackOptions){0});
    assert_shard_text("out", "a.jsonl|b.json|sub/c.jsonl|");
    static const char *const taken[] = {"in/a.jsonl", "in/b.json", "in/sub/c.jsonl"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) assert_listed(taken[i], NULL);
    static const char *const left_out[][2] = {{"in/.hidden", "a hidden"}, {"in/README.md", "a README"}, {"in/empty", "without a document"},
        {"in/blank.jsonl", "without a document"}, {"in/d.json", "JSON without records"}, {"in/e.csv", "a CSV"}, {"in/cat.png", "a picture"},
        {"in/cat.bmp", "a picture"}, {"in/data-00000-of-00001.arrow", "an Arrow stream"},
        {"in/state.json", "part of a folder of save_to_disk"}, {"in/dataset_info.json", "part of a folder of save_to_disk"},
        {"in/link", "a link"}, {"in/pipe", "a pipe"}};
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) assert_listed(left_out[i][0], left_out[i][1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(records_of_json_are_read_in_each_shape),
        IN_FOLDER(what_is_wrong_with_an_array_is_named_and_what_came_before_stays),
        IN_FOLDER(long_arrays_are_read_in_parts),
        IN_FOLDER(an_element_above_the_limit_is_bad_and_the_next_is_read),
        IN_FOLDER(the_text_of_tables_is_packed),
        IN_FOLDER(broken_rows_and_tables_without_the_column_are_named),
        IN_FOLDER(frames_that_are_skipped_and_wide_windows_of_zstd_are_read),
        IN_FOLDER(zlib_and_lzma_are_read),
        IN_FOLDER(one_split_of_a_folder_is_taken_by_name),
        IN_FOLDER(every_file_of_a_folder_is_listed_as_taken_or_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

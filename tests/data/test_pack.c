/* Tests of packing text and of `smelt data`. Each test runs in a temporary folder of its own; run by `make test`. */
#include <fcntl.h>

#include "support/data_files.h"

#include "app/command.h"
#include "data/pack.h"
#include "support/mentions.h"

/* -- Packing ----------------------------------------------------------------------------------------------------- */

static PackResult pack(const char *input, double valid, const char *separator) {
    PackOptions options = {
        .inputs = (const char *[]){input, NULL}, .output = "out", .valid_fraction = valid, .separator = separator, .overwrite = true};
    PackResult result;
    Error error = {0};
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void assert_pack_fails(const char *input, double valid, const char *separator, ErrorCode code, const char *part) {
    PackOptions options = {
        .inputs = (const char *[]){input, NULL}, .output = "out", .valid_fraction = valid, .separator = separator, .overwrite = true};
    PackResult result;
    Error error = {0};
    int entries = count_entries();
    assert_false(pack_text(&options, &result, &error));
    assert_int_equal(error.code, code);
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
    assert_int_equal(count_entries(), entries);
}

static void a_file_becomes_its_bytes_and_one_separator(void **state) {
    (void)state;
    unsigned char bytes[256];
    for (int i = 0; i < 256; i++) bytes[i] = (unsigned char)i;
    write_bytes("in", bytes + 1, sizeof bytes - 1); /* a zero byte is not of a text */
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "", .invalid = PACK_INVALID_KEEP};
    PackResult result;
    Error error = {0};
    assert_true(pack_text(&options, &result, &error));
    assert_int_equal(result.documents, 1);
    assert_int_equal(result.train_tokens, 256);
    assert_int_equal(result.valid_tokens, 0);
    assert_int_equal(result.bytes, 255);
    ShardSet set = open_set("out");
    SCOPED_FREE int32_t *tokens = read_tokens(&set, NULL);
    for (int i = 0; i < 256; i++) assert_int_equal(tokens[i], i + 1);
    shard_set_close(&set);
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
    assert_pack_fails("empty", 0, "", ERROR_DATA, "no text");
    assert_pack_fails("separators", 0, "%", ERROR_DATA, "no text");
    assert_pack_fails("folder", 0.1, "", ERROR_DATA, "no text");
    assert_pack_fails("missing", 0, "", ERROR_DATA, "cannot read missing");
}

static void links_in_a_folder_are_followed_inside_it_and_loops_end(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    assert_int_equal(mkdir("in/sub", 0700), 0);
    write_text("in/sub/a", "text");
    assert_int_equal(symlink("..", "in/sub/up"), 0);
    assert_int_equal(symlink("self", "in/self"), 0);
    assert_int_equal(symlink("nowhere", "in/dangling"), 0);
    assert_int_equal(symlink("sub/a", "in/again"), 0);
    assert_int_equal(symlink("sub", "in/other"), 0);
    assert_int_equal(mkdir("in/sub/deep", 0700), 0);
    assert_int_equal(symlink("..", "in/sub/deep/back"), 0);
    write_text("outside", "secret");
    assert_int_equal(symlink("../outside", "in/out"), 0);
    assert_int_equal(mkfifo("in/pipe", 0600), 0);
    pack("in", 0, "");
    assert_shard_text("out", "text|text|text|"); /* again, other/a, sub/a */
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
    assert_pack_fails("in", 0, "", ERROR_DATA, "regular");
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
    assert_pack_fails("in", 0, "", ERROR_DATA, "in/b");
    if (user == 0) assert_int_equal(seteuid(user), 0);
    assert_int_equal(chmod("in", 0), 0);
    if (user == 0) assert_int_equal(seteuid(65534), 0);
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = ""};
    PackResult result;
    Error error = {0};
    bool good = pack_text(&options, &result, &error);
    if (user == 0) assert_int_equal(seteuid(user), 0);
    assert_int_equal(chmod("in", 0755), 0);
    assert_false(good);
    assert_mentions(error.message, "cannot read folder in: Permission denied");
}

static void an_output_that_would_replace_the_input_is_refused(void **state) {
    (void)state;
    write_text("out.bin", "precious text");
    assert_pack_fails("out.bin", 0, "", ERROR_USAGE, "INPUT OUTPUT");
    size_t size;
    unsigned char *text = read_bytes("out.bin", &size);
    assert_string_equal((char *)text, "precious text");
    free(text);
}

static void a_file_of_a_shard_is_no_text_and_its_prefix_is_named(void **state) {
    (void)state;
    write_text("in", "text");
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .output = "s", .separator = ""};
    PackResult result;
    Error error = {0};
    assert_true(pack_text(&options, &result, &error));
    assert_pack_fails("s.bin", 0, "", ERROR_DATA, "s.bin data.train=s");
    assert_pack_fails("./s.idx", 0, "", ERROR_DATA, "data.train=./s");
    assert_pack_fails("s.pack.json", 0, "", ERROR_DATA, "s.pack.json");
    assert_pack_fails("s.tokenizer/tokenizer.json", 0, "", ERROR_DATA, "data.train=s");
    assert_int_equal(unlink("s.idx"), 0);
    write_text("s.bin", "text");
    pack("s.bin", 0, ""); /* there is no shard */
}

/* Into the folder of the text, twice: no record and no tokenizer becomes a document. */
static void shards_among_the_text_are_left_out_whole(void **state) {
    (void)state;
    static const char *const shards[] = {"in/one", "in/folder"};
    assert_int_equal(mkdir("in", 0777), 0);
    write_text("in/a", "text");
    write_text("in/pack.json", "{\"text\": \"of my own\"}");
    for (int i = 0; i < 2; i++) {
        PackOptions options = {.inputs = (const char *[]){"in", NULL}, .output = shards[i], .separator = "", .shard_tokens = i};
        PackResult result;
        Error error = {0};
        if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    }
    pack("in", 0, "");
    assert_shard_text("out", "text|of my own|");
}

/* Each begins a file whose rest are zeros, so that ASCII names are not taken for words. */
static void what_is_not_text_is_named_with_what_to_do(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        int length;
        const char *told;
    } kinds[] = {{"BZh91AY", 7, "in bzip2 bzcat FILE | smelt data pack - OUTPUT"}, {"PK\3\4", 4, "zip unzip FILE"},
        {"PAR1\x15", 5, "a damaged Parquet file (its end is missing)"}, {"\xa7\x0d\r\n\0\0\0\0", 8, "compiled Python"},
        {"\x89PNG\r\n\x1a\n", 8, "a picture, not text: leave it out"}, {"\xff\xd8\xff\xe0", 4, "a picture"},
        {"%PDF-1.7\n", 9, "a PDF document"}, {"\n\x0e\n\5<unk>\x15", 10, "SentencePiece"}, {"\xff\xfet\0e\0", 6, "iconv -f UTF-16 "},
        {"\xfe\xff\0t\0e", 6, "iconv -f UTF-16 "}, {"MMIDIDX\0\0", 9, "the index of a token shard"}, {"\177ELF", 4, "a compiled program"},
        {"some words", 10, "binary data"}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char bytes[300] = {0};
        memcpy(bytes, kinds[i].bytes, (size_t)kinds[i].length);
        write_bytes("in", bytes, sizeof bytes);
        assert_pack_fails("in", 0, "", ERROR_DATA, kinds[i].told);
    }
    write_bytes("in", "w\0o\0r\0d\0s\0", 10);
    assert_pack_fails("in", 0, "", ERROR_DATA, "UTF-16 text, not text: convert it first: iconv -f UTF-16LE");
}

/* Words that formats begin with, code and prose with braces, and bytes above ASCII. */
static void text_that_resembles_other_formats_is_packed(void **state) {
    (void)state;
    static const char *const texts[] = {"PAR1 is a golf term\n", "GIF89a\n", "BZh\n", "ID3 tags\n", "{x}\n{y}\n", "{\"a\": 1}\nand prose\n",
        "ab\r\ncd\r\n", "caf\u00e9\n", "\xef\xbb\xbfmarked\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_text("in", texts[i]);
        pack("in", 0, "");
        char *packed = shard_text("out");
        assert_memory_equal(packed, texts[i], strlen(texts[i]));
        free(packed);
    }
}

static void hidden_files_and_folders_are_left_out(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0700), 0);
    assert_int_equal(mkdir("in/.git", 0700), 0);
    write_text("in/.git/config", "secret");
    write_text("in/.notes", "secret");
    write_text("in/a", "text");
    pack("in", 0, "");
    assert_shard_text("out", "text|");
}

static void values_out_of_range_are_usage_errors(void **state) {
    (void)state;
    write_text("in", "text");
    assert_pack_fails("in", -0.1, "", ERROR_USAGE, "valid -0.1");
    assert_pack_fails("in", 0.6, "", ERROR_USAGE, "valid 0.6");
    assert_pack_fails("in", 0.0 / 0.0, "", ERROR_USAGE, "0 to 0.5");
    assert_pack_fails("in", 0, "a\nb", ERROR_USAGE, "line");
    assert_pack_fails("", 0, "", ERROR_USAGE, "INPUT");
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

/* -- The command ------------------------------------------------------------------------------------------------- */

/* Runs `smelt data` with up to six arguments; *output is what it printed and the caller frees it. stderr goes
 * to the file "stderr". */
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
    int target = open("stdout", O_RDWR | O_CREAT | O_TRUNC, 0600), quiet = open("stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(target, STDOUT_FILENO);
    dup2(quiet, STDERR_FILENO);
    int status = command_run(&command_data, argc, argv);
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

static void a_separator_that_divides_no_records_is_named_once(void **state) {
    (void)state;
    size_t size;
    write_text("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    write_text("b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    assert_data((const char *[]){"pack", "a.jsonl", "b.jsonl", "out", "separator=%", NULL}, 0, "out: 8 tokens\n");
    SCOPED_FREE char *text = (char *)read_bytes("stderr", &size);
    const char *first = strstr(text, "separator=%");
    assert_non_null(first);
    assert_null(strstr(first + 1, "separator=%"));
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
    assert_data((const char *[]){"pack", "in", "missing", "more", NULL}, ERROR_DATA, "");
    assert_data((const char *[]){"pack", "in", "out", "vallid=0.1", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"pack", "in", "out", "valid=0.9", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"pack", "in", "out", "--valid", NULL}, ERROR_USAGE, "");
    assert_data((const char *[]){"show", "none", NULL}, ERROR_DATA, "");
    write_shard("s", 2, (const int32_t[]){1, 2}, (const int64_t[]){2}, 1);
    write_bytes("s.bin", (const unsigned char[]){1, 0, 3, 0}, 4);
    assert_data((const char *[]){"show", "s", NULL}, ERROR_DATA, "tokens:           2\n");
    assert_data((const char *[]){"show", "s", "check=true", NULL}, ERROR_DATA, "");
}

static void any_sequence_is_shown_and_one_behind_the_last_token_is_refused(void **state) {
    (void)state;
    write_shard("s", 2, (const int32_t[]){10, 11, 12, 13, 14}, (const int64_t[]){2, 3}, 2);
    assert_data((const char *[]){"show", "s", "length=2", NULL}, 0, "first tokens:     10 11 ...\n");
    assert_data((const char *[]){"show", "s", "length=2", "sample=1", NULL}, 0, "tokens from 2: 12 13 ...\n");
    assert_data((const char *[]){"show", "s", "length=2", "sample=2", NULL}, 0, "tokens from 4: 14\n");
    assert_data((const char *[]){"show", "s", "length=2", "sample=3", NULL}, ERROR_USAGE, "format:           Megatron\n");
}

static void help_prints_usage_and_the_options(void **state) {
    (void)state;
    assert_data((const char *[]){"show", "--help", NULL}, 0, "Usage: smelt data show PATH");
    assert_data((const char *[]){"pack", "--help", NULL}, 0, "separator");
}

int main(void) {
    const struct CMUnitTest tests[] = {
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
        IN_FOLDER(links_in_a_folder_are_followed_inside_it_and_loops_end),
        IN_FOLDER(a_link_to_the_input_itself_is_followed),
        IN_FOLDER(files_in_a_folder_that_are_not_text_are_skipped),
        IN_FOLDER(a_pipe_as_the_input_is_refused_without_waiting),
        IN_FOLDER(a_file_or_folder_that_cannot_be_read_is_an_error),
        IN_FOLDER(an_output_that_would_replace_the_input_is_refused),
        IN_FOLDER(a_file_of_a_shard_is_no_text_and_its_prefix_is_named),
        IN_FOLDER(shards_among_the_text_are_left_out_whole),
        IN_FOLDER(what_is_not_text_is_named_with_what_to_do),
        IN_FOLDER(text_that_resembles_other_formats_is_packed),
        IN_FOLDER(hidden_files_and_folders_are_left_out),
        IN_FOLDER(values_out_of_range_are_usage_errors),
        IN_FOLDER(packing_twice_gives_the_same_bytes),
        IN_FOLDER(the_command_packs_and_shows),
        IN_FOLDER(a_separator_that_divides_no_records_is_named_once),
        IN_FOLDER(the_command_shows_tokens_of_other_vocabularies_as_numbers),
        IN_FOLDER(the_command_returns_the_exit_code_of_the_error),
        IN_FOLDER(any_sequence_is_shown_and_one_behind_the_last_token_is_refused),
        IN_FOLDER(help_prints_usage_and_the_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

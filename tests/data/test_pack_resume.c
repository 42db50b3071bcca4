/* Tests of folders of shards: their sizes, and that a packing which is killed and started again writes what an
 * undisturbed one does. Each test runs in a temporary folder of its own; run by `make test`. */
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "support/data_files.h"

#include "base/log.h"
#include "base/rng.h"
#include "base/scope.h"
#include "base/thread.h"
#include "data/byte_tokenizer.h"
#include "data/pack.h"
#include "filter/filter.h"
#include "token/tokenizer.h"
#include "support/mentions.h"

/* The process ends, as if it was killed, before this call of rename or fsync, counted from 1; 0: before none. The wrappers
 * stand in for libc's in the whole program. */
static int killed_at;

static void count_call(void) {
    if (killed_at > 0 && --killed_at == 0) _exit(128 + SIGKILL);
}

int rename(const char *from, const char *to) {
    count_call();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int fsync(int file) {
    count_call();
    return (int)syscall(SYS_fsync, file);
}

static const char *const inputs[] = {"a", "b.gz", "c.jsonl", "d.json", "e.csv", NULL};

/* Some documents are there several times, one is long, some JSON is broken. */
static void write_inputs(int documents) {
    FILE *plain = fopen("a", "w"), *json = fopen("c.jsonl", "w"), *array = fopen("d.json", "w"), *table = fopen("e.csv", "w");
    gzFile packed = gzopen("b.gz", "wb1");
    assert_true(plain && json && array && table && packed);
    fprintf(array, "[");
    fprintf(table, "n,text\n");
    for (int i = 0; i < documents; i++) {
        uint32_t random = rng_bits(7, 1, (uint64_t)i).word[0];
        fprintf(plain, "%u\nline %d\n%%\n", random % 5000, i / 3);
        if (i % 5) gzprintf(packed, "%u and\n%d\n%%\n", random, i);
        else gzprintf(packed, "%u\nline %d\n%%\n", random % 5000, i / 3); /* as in the first file, many shards ago */
        for (int j = 0; i == documents / 2 && j < 60000; j++) gzprintf(packed, "a long document %d\n", j);
        fprintf(json, i % 50 ? "{\"text\": \"%u\"}\n" : "{%u\n", random % 70000);
        fprintf(array, "%s{\"n\": [],\n \"text\": \"%u of an array\"}", i ? ",\n" : "", random);
        fprintf(table, "%d,\"%u\nof a \"\"table\"\"\"\n", i, random);
    }
    fprintf(array, "]\n");
    assert_true(fclose(array) == 0 && fclose(table) == 0 && fclose(plain) == 0 && fclose(json) == 0 && gzclose(packed) == Z_OK);
}

static DocumentFilter *filter; /* of the test that sets it */

static PackOptions options_of(const char *output) {
    return (PackOptions){.inputs = inputs,
        .output = output,
        .separator = "%",
        .valid_fraction = 0.1,
        .dedup = PACK_DEDUP_EXACT,
        .filter = filter,
        .shard_tokens = 20000};
}

static PackResult pack(PackOptions options) {
    PackResult result;
    Error error = {0};
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void assert_refused(PackOptions options, ErrorCode code, const char *part) {
    PackResult result;
    Error error = {0};
    assert_false(pack_text(&options, &result, &error));
    if (error.code != code || !mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

/* Every file of one folder has the same bytes in the other. Returns how many there are. */
static int assert_same_folder(const char *folder, const char *other) {
    SCOPED(file_list_free) FileList list = {0}, others = {0};
    Error error = {0};
    assert_true(file_list(folder, &list, &error) && file_list(other, &others, &error));
    assert_int_equal(list.count, others.count);
    for (size_t i = 0; i < list.count; i++) {
        assert_string_equal(list.entries[i].name, others.entries[i].name);
        if (list.entries[i].kind != FILE_REGULAR) continue;
        char *left = memory_format("%s/%s", folder, list.entries[i].name), *right = memory_format("%s/%s", other, list.entries[i].name);
        size_t size, other_size;
        unsigned char *bytes = read_bytes(left, &size), *other_bytes = read_bytes(right, &other_size);
        assert_int_equal(size, other_size);
        assert_memory_equal(bytes, other_bytes, size);
        free(bytes), free(other_bytes), free(left), free(right);
    }
    return (int)list.count;
}

static void a_shard_ends_with_the_document_that_fills_it(void **state) {
    (void)state;
    write_text("in", "one\n%\ntwo\n%\nthree\n%\nfour\n%\n");
    static const char *const input[] = {"in", NULL};
    PackOptions options = {.inputs = input, .output = "out", .separator = "%", .shard_tokens = 10};
    PackResult result = pack(options);
    assert_int_equal(result.shards, 2);
    assert_shard_text("out/shard-00000", "one\n|two\n|");
    assert_shard_text("out/shard-00001", "three\n|four\n|");
    assert_int_equal(access("out/tokenizer/tokenizer.json", F_OK), 0);
    assert_int_equal(access("out/hashes", F_OK), -1);
    assert_refused(options, ERROR_USAGE, "out exists: give another name, or overwrite=true");
    size_t size;
    char *record = (char *)read_bytes("out/pack.json", &size);
    assert_non_null(strstr(record, "\"invalid\": \"replace\",\n  \"dedup\": \"none\","));
    free(record);
    options.overwrite = true;
    assert_int_equal(pack(options).documents, 4); /* those of the result before are not counted again */
    assert_shard_text("out/shard-00000", "one\n|two\n|");
    options.shard_tokens = 1000;
    assert_int_equal(pack(options).shards, 1);
    assert_int_equal(access("out/shard-00001.idx", F_OK), -1);
    assert_int_equal(access("out.next", F_OK) & access("out.replaced", F_OK), -1);
    write_text("out/mine", "");
    assert_refused(options, ERROR_USAGE, "mine write");
}

static void a_shard_and_a_folder_of_shards_never_share_a_name(void **state) {
    (void)state;
    write_text("in", "one\n%\ntwo\n");
    static const char *const input[] = {"in", NULL};
    PackOptions folder = {.inputs = input, .output = "out", .separator = "%", .shard_tokens = 10, .overwrite = true}, shard = folder;
    shard.shard_tokens = 0;
    pack(folder);
    assert_refused(shard, ERROR_USAGE, "folder shards");
    folder.output = shard.output = "split";
    folder.valid_fraction = shard.valid_fraction = 0.5;
    pack(shard);
    assert_refused(folder, ERROR_USAGE, "split-train");
    assert_int_equal(access("split-train", F_OK), -1);
}

/* A kill can come between the last record and the end of the process. */
static bool is_complete(void) {
    size_t size = 0;
    char *record = access("hit-train/pack.json", F_OK) == 0 ? (char *)read_bytes("hit-train/pack.json", &size) : NULL;
    bool complete = record && strstr(record, "\"complete\": true");
    free(record);
    return complete;
}

/* Starts packing in a process of its own, and kills it after a while. Whether it was killed before it ended. */
static bool kill_packing(double seconds) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        PackOptions options = options_of("hit");
        PackResult result;
        Error error = {0};
        _exit(pack_text(&options, &result, &error) ? 0 : 1);
    }
    thread_sleep(seconds);
    kill(child, SIGKILL);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status) && !is_complete();
}

static void a_packing_killed_at_random_moments_writes_what_an_undisturbed_one_does(void **state) {
    (void)state;
    write_inputs(20000);
    Error fault = {0};
    if (!filter_open(&(FilterOptions){"text.bytes != 15 and text.words < 1000", "", "", "", ""}, &filter, &fault))
        fail_msg("%s", fault.message);
    double start = log_seconds();
    PackResult whole = pack(options_of("whole"));
    double seconds = log_seconds() - start;
    assert_true(whole.shards > 20 && whole.left_out > 1000 && whole.bad[PACK_BAD_JSON] > 100 && whole.filtered > 1000);
    assert_int_equal(whole.records, whole.documents + whole.left_out + whole.filtered + whole.bad[PACK_BAD_JSON]);
    int kills = 0, resumed = 0;
    for (uint64_t i = 0; kills < 20 && i < 200; i++) {
        Error error = {0};
        bool killed = kill_packing(seconds * 0.4 * rng_bits(3, 2, i).word[0] / 4294967296.0);
        if (!killed) assert_true(file_remove("hit-train", &error) && file_remove("hit-valid", &error));
        kills += killed;
        resumed += killed && access("hit-train/shard-00003.idx", F_OK) == 0;
    }
    assert_int_equal(kills, 20);
    assert_true(resumed > 5);
    PackResult result = pack(options_of("hit"));
    assert_int_equal(result.documents, whole.documents);
    assert_int_equal(result.duplicates, whole.duplicates);
    assert_true(assert_same_folder("whole-train", "hit-train") > 40);
    assert_true(assert_same_folder("whole-valid", "hit-valid") > 40);
    filter_free(filter);
    filter = NULL;
}

static void what_differs_from_the_packing_that_was_killed_is_named(void **state) {
    (void)state;
    write_inputs(20000);
    for (int tries = 0; access("hit-train/shard-00000.idx", F_OK) != 0; tries++) assert_true(kill_packing(0.01 * tries));
    PackOptions options = options_of("hit");
    options.dedup = PACK_DEDUP_NONE;
    assert_refused(options, ERROR_USAGE, "overwrite=true");
    Error fault = {0};
    options = options_of("hit");
    DocumentFilter *rules;
    assert_true(filter_open(&(FilterOptions){"text.bytes != 15", "", "", "", ""}, &rules, &fault));
    options.filter = rules;
    assert_refused(options, ERROR_USAGE, "filter overwrite=true");
    filter_free(rules);
    options.filter = NULL;
    write_text("a", "other text\n%\nand more\n%\n");
    assert_refused(options_of("hit"), ERROR_USAGE, "input");
    options.overwrite = true;
    assert_false(pack(options).resumed);
}

/* The record of a packing by a folder with the byte tokenizer is that of bytes. */
static void a_packing_by_the_byte_tokenizers_folder_continues(void **state) {
    (void)state;
    Error error = {0};
    write_inputs(20000);
    for (int tries = 0; access("hit-train/shard-00000.idx", F_OK) != 0; tries++) assert_true(kill_packing(0.01 * tries));
    if (!tokenizer_copy("hit-train/tokenizer", "bytes", &error)) fail_msg("%s", error.message);
    write_text("bytes/tokenizer_config.json", "{\"eos_token\": \"" BYTE_SEPARATOR_TEXT "\"}");
    PackOptions options = options_of("hit");
    options.tokenizer = "bytes";
    assert_true(pack(options).resumed);
}

static void a_list_that_a_killed_packing_lost_is_missed(void **state) {
    (void)state;
    static const char *const lists[] = {"hit-train/dropped.jsonl.zst", "hit-train/hashes"};
    write_inputs(20000);
    for (int tries = 0; access("hit-train/shard-00001.idx", F_OK) != 0; tries++) assert_true(kill_packing(0.01 * tries));
    for (int i = 0; i < 2; i++) {
        size_t size;
        unsigned char *bytes = read_bytes(lists[i], &size);
        write_bytes(lists[i], bytes, 1);
        assert_refused(options_of("hit"), ERROR_DATA, lists[i]);
        write_bytes(lists[i], bytes, size);
        free(bytes);
    }
    assert_true(pack(options_of("hit")).resumed);
}

/* The older smelt did not count records. Their count is the number of documents kept and dropped. */
static void a_packing_that_an_older_smelt_began_counts_its_records(void **state) {
    (void)state;
    write_inputs(20000);
    for (int tries = 0; access("hit-train/shard-00001.idx", F_OK) != 0; tries++) assert_true(kill_packing(0.01 * tries));
    size_t size;
    SCOPED_FREE char *record = (char *)read_bytes("hit-train/pack.json", &size);
    char *line = memmem(record, size, "\"records\":", 10), *end = line ? memchr(line, '\n', size - (size_t)(line - record)) : NULL;
    assert_non_null(end);
    memset(line, ' ', (size_t)(end - line));
    write_bytes("hit-train/pack.json", record, size);
    PackResult result = pack(options_of("hit")), whole = pack(options_of("whole"));
    assert_true(result.resumed);
    assert_int_equal(result.records, whole.records);
    assert_int_equal(result.documents, whole.documents);
}

/* INPUT is listed without what the packing makes in it, also after it was interrupted. */
static void an_output_inside_of_its_input_is_not_read(void **state) {
    (void)state;
    Error error = {0};
    assert_int_equal(mkdir("in", 0777), 0);
    FILE *file = fopen("in/a.jsonl", "w");
    for (int i = 0; i < 3000; i++) fprintf(file, "{\"text\": \"document %d\"}\n", i);
    assert_int_equal(fclose(file), 0);
    PackOptions options = {.inputs = (const char *[]){"in", NULL},
        .output = "in/out",
        .separator = "",
        .dedup = PACK_DEDUP_EXACT,
        .shard_tokens = 5000,
        .invalid = PACK_INVALID_STOP};
    write_text("in/z.jsonl", "{\"text\": 1}\n");
    for (int i = 0; i < 2; i++) assert_refused(options, ERROR_DATA, "invalid=stop");
    assert_true(file_exists("in/out/shard-00002.idx"));
    assert_true(file_remove("in/z.jsonl", &error) && file_remove("in/out", &error));
    PackResult first = pack(options);
    options.overwrite = true;
    for (int i = 0; i < 2; i++) { /* over itself, by another name of the folder */
        PackResult again = pack(options);
        assert_int_equal(again.train_tokens, first.train_tokens);
        assert_int_equal(again.files, 1);
        options.output = "./in/out";
    }
    options.shard_tokens = 0, options.output = "in/one", options.valid_fraction = 0.1;
    for (int i = 0; i < 2; i++) {
        PackResult one = pack(options);
        assert_int_equal(one.files, 1);
        assert_int_equal(one.documents, first.documents);
    }
}

/* Dropped documents are listed even if none stays, and a list is not written over another file. */
static void a_list_says_why_nothing_stays_and_replaces_no_other_file(void **state) {
    (void)state;
    DocumentFilter *rules;
    Error error = {0};
    size_t size;
    write_text("in", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    assert_true(filter_open(&(FilterOptions){"text.bytes > 5", "", "", "", ""}, &rules, &error));
    for (int folder = 0; folder < 2; folder++) {
        PackOptions options = {
            .inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "", .filter = rules, .shard_tokens = 100 * folder};
        const char *list = folder ? "out/dropped.jsonl.zst" : "out.dropped.jsonl.zst";
        for (int i = 0; i < 2; i++) {
            assert_refused(options, ERROR_DATA, "no document of in is left");
            assert_refused(options, ERROR_DATA, list);
        }
        free(read_bytes(list, &size));
        assert_true(size > 40);
    }
    static const char *const lists[] = {"other.dropped.jsonl.zst", "more.dedup"}, *const outputs[] = {"other", "more"};
    write_text("in", "{\"text\": \"another text\"}\n");
    for (int i = 0; i < 2; i++) {
        PackOptions options = {
            .inputs = (const char *[]){"in", NULL}, .output = outputs[i], .separator = "", .filter = rules, .dedup = PACK_DEDUP_EXACT};
        write_text(lists[i], "of somebody else");
        for (; !options.overwrite; options.overwrite = true) assert_refused(options, ERROR_USAGE, lists[i]);
        assert_refused(options, ERROR_USAGE, lists[i]);
        options.filter = NULL, options.dedup = PACK_DEDUP_NONE;
        pack(options);
        SCOPED_FREE char *kept = (char *)read_bytes(lists[i], &size);
        assert_memory_equal(kept, "of somebody else", size);
        assert_true(file_remove(lists[i], &error));
    }
    filter_free(rules);
}

static void one_shard_leaves_nothing_of_a_killed_packing(void **state) {
    (void)state;
    write_text("in", "text");
    write_text("out.bin.partial-999999", "of a process that was killed");
    write_text("out.idx.partial-999999", "");
    write_text("outer.bin.partial-999999", "of another shard");
    static const char *const input[] = {"in", NULL};
    pack((PackOptions){.inputs = input, .output = "out", .separator = ""});
    assert_int_equal(access("out.bin.partial-999999", F_OK), -1);
    assert_int_equal(access("out.idx.partial-999999", F_OK), -1);
    assert_int_equal(access("outer.bin.partial-999999", F_OK), 0);
}

/* Packs in a process of its own, which ends before a call. False: it has no such call. */
static bool pack_until(PackOptions options, int call) {
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        PackResult result;
        Error error = {0};
        killed_at = call;
        _exit(pack_text(&options, &result, &error) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 1);
    return WEXITSTATUS(status) != 0;
}

/* The text of a shard, for the caller to free; NULL: it is refused. */
static char *text_of(const char *prefix) {
    ShardSet set;
    Error error = {0};
    if (!shard_set_open(&set, prefix, &error)) return NULL;
    shard_set_close(&set);
    return shard_text(prefix);
}

static bool holds_text(const char *prefix, const char *text) {
    SCOPED_FREE char *found = text_of(prefix);
    return found && !strcmp(found, text);
}

/* A packing of "in" over what "older" gave, or over nothing. */
typedef struct Packing {
    PackOptions options;
    const char *older[2], *parts[2], *texts[2];
    const char *record;
    bool loses_input; /* after a kill that leaves nothing to do but names */
} Packing;

static bool is_packed(const Packing *packing) {
    bool both = true;
    for (int i = 0; i < 2 && packing->parts[i]; i++) both = both && holds_text(packing->parts[i], packing->texts[i]);
    return both && access(packing->record, F_OK) == 0;
}

/* Whether all that is new is on the disk, and only its name is missing: the record of a folder of shards is in it. */
static bool waits(const Packing *packing) {
    size_t size;
    SCOPED_FREE char *file = memory_format("%s.next", packing->record), *folder = memory_format("%s.next/pack.json", packing->parts[0]);
    SCOPED_FREE char *record = access(folder, F_OK) == 0 ? (char *)read_bytes(folder, &size) : NULL;
    return access(file, F_OK) == 0 || (record && strstr(record, "\"complete\": true"));
}

/* No part is anything but old or new, and nothing old is gone before all that is new waits on the disk. */
static void check_killed(const Packing *packing, int call) {
    for (int i = 0; i < 2 && packing->parts[i]; i++) {
        SCOPED_FREE char *text = text_of(packing->parts[i]);
        bool old = packing->older[i] ? text && !strcmp(text, packing->older[i]) : !text;
        if (!old && !waits(packing) && !is_packed(packing))
            fail_msg("killed at call %d: %s is %s", call, packing->parts[i], text ? text : "gone");
        if (text && !old) assert_string_equal(text, packing->texts[i]);
    }
}

/* Kills the packing before each of its calls, and starts it again. */
static void check_kills(const Packing *packing) {
    int call = 1;
    for (bool killed = true; killed; call++) {
        PackResult result;
        Error error = {0};
        assert_true(file_remove("place", &error) && file_make_folder("place", &error));
        assert_int_equal(chdir("place"), 0);
        write_text("in", "one\n%\ntwo\n%\nthree\n%\nfour\n");
        write_text("older", "old\n%\nolder\n");
        PackOptions before = packing->options;
        before.inputs = (const char *[]){"older", NULL};
        if (packing->older[0]) pack(before);
        killed = pack_until(packing->options, call);
        check_killed(packing, call);
        bool whole = is_packed(packing);
        if (packing->loses_input && waits(packing)) assert_int_equal(unlink("in"), 0);
        if (pack_text(&packing->options, &result, &error)) assert_int_equal(result.documents, 4);
        else if (!whole || error.code != ERROR_USAGE) fail_msg("killed at call %d, again: %s", call, error.message);
        if (!is_packed(packing)) fail_msg("killed at call %d: the same command did not make it", call);
        assert_int_equal(chdir(".."), 0);
    }
    assert_true(call > 10);
}

static void one_shard_killed_at_any_call_is_made_by_the_same_command(void **state) {
    (void)state;
    Packing packing = {.options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%"},
        .parts = {"out"},
        .texts = {"one\n|two\n|three\n|four\n|"},
        .record = "out.pack.json"};
    check_kills(&packing);
    packing.options.overwrite = true;
    packing.older[0] = "old\n|older\n|";
    check_kills(&packing);
}

static void both_parts_of_a_split_are_made_after_a_kill(void **state) {
    (void)state;
    check_kills(&(Packing){.options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%", .valid_fraction = 0.25},
        .parts = {"out-train", "out-valid"},
        .texts = {"one\n|two\n|three\n|", "four\n|"},
        .record = "out-train.pack.json"});
}

/* A folder holds more than one shard, and its text is that of all of them. */
static void a_folder_of_shards_killed_at_any_call_keeps_the_older_one_until_it_is_whole(void **state) {
    (void)state;
    Packing packing = {
        .options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%", .shard_tokens = 1000, .overwrite = true},
        .older = {"old\n|older\n|"},
        .parts = {"out"},
        .texts = {"one\n|two\n|three\n|four\n|"},
        .record = "out/pack.json"};
    check_kills(&packing);
    packing.options.valid_fraction = 0.25;
    packing.older[0] = "old\n|", packing.older[1] = "older\n|";
    packing.parts[0] = "out-train", packing.parts[1] = "out-valid";
    packing.texts[0] = "one\n|two\n|three\n|", packing.texts[1] = "four\n|";
    packing.record = "out-train/pack.json";
    check_kills(&packing);
}

static void a_complete_packing_gets_its_names_without_its_input(void **state) {
    (void)state;
    Packing packing = {.options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%", .overwrite = true},
        .older = {"old\n|older\n|"},
        .parts = {"out"},
        .texts = {"one\n|two\n|three\n|four\n|"},
        .record = "out.pack.json",
        .loses_input = true};
    check_kills(&packing);
    packing.options.shard_tokens = 1000;
    packing.record = "out/pack.json";
    check_kills(&packing);
    PackOptions other = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%"};
    write_text("in", "one\n");
    for (int call = 1; access("out.pack.json.next", F_OK) != 0; call++) assert_true(pack_until(other, call));
    assert_int_equal(unlink("in"), 0);
    other.inputs = (const char *[]){"another", NULL};
    assert_refused(other, ERROR_DATA, "another");
}

static void what_a_killed_packing_left_is_not_replaced_by_another_one(void **state) {
    (void)state;
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%"};
    write_text("in", "one\n%\ntwo\n");
    for (int call = 1; access("out.pack.json.next", F_OK) != 0; call++) assert_true(pack_until(options, call));
    write_text("in", "another text\n");
    assert_refused(options, ERROR_USAGE, "out.idx overwrite=true");
    assert_shard_text("out", "one\n|two\n|");
    options.overwrite = true;
    pack(options);
    assert_shard_text("out", "another text\n|");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_shard_ends_with_the_document_that_fills_it),
        IN_FOLDER(a_shard_and_a_folder_of_shards_never_share_a_name),
        IN_FOLDER(a_packing_killed_at_random_moments_writes_what_an_undisturbed_one_does),
        IN_FOLDER(what_differs_from_the_packing_that_was_killed_is_named),
        IN_FOLDER(a_packing_by_the_byte_tokenizers_folder_continues),
        IN_FOLDER(a_list_that_a_killed_packing_lost_is_missed),
        IN_FOLDER(a_packing_that_an_older_smelt_began_counts_its_records),
        IN_FOLDER(an_output_inside_of_its_input_is_not_read),
        IN_FOLDER(a_list_says_why_nothing_stays_and_replaces_no_other_file),
        IN_FOLDER(one_shard_leaves_nothing_of_a_killed_packing),
        IN_FOLDER(one_shard_killed_at_any_call_is_made_by_the_same_command),
        IN_FOLDER(both_parts_of_a_split_are_made_after_a_kill),
        IN_FOLDER(a_folder_of_shards_killed_at_any_call_keeps_the_older_one_until_it_is_whole),
        IN_FOLDER(a_complete_packing_gets_its_names_without_its_input),
        IN_FOLDER(what_a_killed_packing_left_is_not_replaced_by_another_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

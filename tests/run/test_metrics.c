/* Tests of what a run records: JSON lines, TensorBoard events. Each test works in a folder of its own. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "base/memory.h"
#include "run/metrics.h"
#include "run/tensorboard_internal.h"
#include "support/files.h"
#include "support/mentions.h"
#include "support/step_metrics.h"

static void append(const char *path, const char *text) {
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static Metrics *open_metrics(int64_t step, bool tensorboard) {
    Error error = {0};
    Metrics *metrics = metrics_open("run", step, false, tensorboard, &error);
    if (!metrics) fail_msg("%s", error.message);
    return metrics;
}

static void write_step(Metrics *metrics, const StepMetrics *step) {
    Error error = {0};
    if (!metrics_step(metrics, step, &error)) fail_msg("%s", error.message);
}

static void report_step(Metrics *metrics, int64_t number) {
    StepMetrics step = plain;
    step.step = number;
    write_step(metrics, &step);
}

/* Record number `index` of the file; the caller decrefs. */
static json_t *record(int index) {
    size_t length;
    char *text = (char *)read_bytes("run/metrics.jsonl", &length), *line = strtok(text, "\n");
    while (line && index-- > 0) line = strtok(NULL, "\n");
    assert_non_null(line);
    json_t *json = json_loads(line, 0, NULL);
    assert_true(json_is_object(json));
    free(text);
    return json;
}

static int count_lines(void) {
    size_t length;
    char *text = (char *)read_bytes("run/metrics.jsonl", &length);
    int lines = 0;
    for (size_t i = 0; i < length; i++) lines += text[i] == '\n';
    assert_true(length == 0 || text[length - 1] == '\n');
    free(text);
    return lines;
}

static double real(const json_t *json, const char *name) {
    assert_true(json_is_number(json_object_get(json, name)));
    return json_number_value(json_object_get(json, name));
}

static void assert_real(const json_t *json, const char *name, double expected) {
    double relative = 1e-12; /* numbers are written with 15 digits */
    assert_true(fabs(real(json, name) - expected) <= relative * fabs(expected));
}

/* -- JSON lines -------------------------------------------------------------------------------------------------- */

static void a_step_record_holds_measurements_and_rates(void **state) {
    (void)state;
    Metrics *metrics = open_metrics(0, false);
    report_step(metrics, 3);
    metrics_close(metrics);
    json_t *json = record(0);
    assert_string_equal(json_string_value(json_object_get(json, "kind")), "step");
    assert_int_equal(json_integer_value(json_object_get(json, "step")), 3);
    assert_real(json, "loss", 2.5);
    assert_real(json, "auxiliary", 0.01);
    assert_real(json, "grad_norm", 0.75);
    assert_real(json, "lr", 1e-3);
    assert_real(json, "milliseconds", 500);
    assert_real(json, "tokens", 1000);
    assert_real(json, "tokens_seen", 3000);
    assert_real(json, "tokens_per_second", 2000);
    assert_real(json, "tflops", 2);
    assert_real(json, "peak_percent", 25);
    assert_real(json, "best_percent", 50);
    assert_real(json, "memory_bytes", 3LL << 29);
    assert_true(json_is_false(json_object_get(json, "skipped")));
    assert_true(real(json, "time") > 1.6e9); /* seconds, after 2020 */
    assert_null(json_object_get(json, "finite"));
    json_decref(json);
}

static void numbers_that_are_not_finite_are_null_and_marked(void **state) {
    (void)state;
    Metrics *metrics = open_metrics(0, false);
    StepMetrics step = plain;
    step.gradient_norm = INFINITY;
    write_step(metrics, &step);
    metrics_close(metrics);
    json_t *json = record(0);
    assert_true(json_is_null(json_object_get(json, "grad_norm")));
    assert_true(json_is_false(json_object_get(json, "finite")));
    json_decref(json);
}

static void what_is_not_known_is_null_without_a_mark(void **state) {
    (void)state;
    Metrics *metrics = open_metrics(0, false);
    StepMetrics step = plain;
    step.peak_flops = 0;
    step.memory = -1;
    write_step(metrics, &step);
    metrics_close(metrics);
    json_t *json = record(0);
    assert_true(json_is_null(json_object_get(json, "peak_percent")));
    assert_true(json_is_null(json_object_get(json, "memory_bytes")));
    assert_null(json_object_get(json, "finite"));
    json_decref(json);
}

static void evaluations_checkpoints_and_loads_are_records(void **state) {
    (void)state;
    Error error = {0};
    const double load[] = {0.25, 0.75, 1.0 / 3, NAN};
    Metrics *metrics = open_metrics(0, false);
    assert_true(metrics_evaluation(metrics, &(EvaluationMetrics){1, 4096, 256, 2.25, 1.5, 0.25}, &error));
    assert_true(metrics_checkpoint(metrics, 2, 0.125, 1 << 20, &error));
    assert_true(metrics_load(metrics, 3, 2, 2, load, &error));
    metrics_close(metrics);
    json_t *json[] = {record(0), record(1), record(2)};
    assert_real(json[0], "bits_per_byte", 1.5);
    assert_real(json[0], "milliseconds", 250);
    assert_int_equal(json_integer_value(json_object_get(json[0], "length")), 256);
    assert_real(json[1], "bytes", 1 << 20);
    json_t *rows = json_object_get(json[2], "load");
    assert_int_equal(json_array_size(rows), 2);
    assert_true(json_real_value(json_array_get(json_array_get(rows, 0), 1)) == 0.75);
    assert_true(json_real_value(json_array_get(json_array_get(rows, 1), 0)) == 0.333333);
    assert_true(json_is_null(json_array_get(json_array_get(rows, 1), 1)));
    for (int i = 0; i < 3; i++) json_decref(json[i]);
}

static void a_start_carries_its_details_but_not_a_false_kind(void **state) {
    (void)state;
    Error error = {0};
    Metrics *metrics = open_metrics(0, false);
    json_auto_t *details = json_pack("{s:s, s:s}", "machine", "m", "kind", "step");
    assert_true(metrics_start(metrics, 7, details, &error));
    metrics_close(metrics);
    json_t *json = record(0);
    assert_string_equal(json_string_value(json_object_get(json, "kind")), "start");
    assert_string_equal(json_string_value(json_object_get(json, "machine")), "m");
    json_decref(json);
    assert_int_equal(count_lines(), 1);
}

/* -- Continuing a run -------------------------------------------------------------------------------------------- */

static void records_after_the_checkpoint_are_dropped_and_starts_stay(void **state) {
    (void)state;
    Error error = {0};
    Metrics *metrics = open_metrics(0, false);
    json_auto_t *details = json_object();
    assert_true(metrics_start(metrics, 0, details, &error));
    for (int step = 1; step <= 5; step++) report_step(metrics, step);
    assert_true(metrics_start(metrics, 5, details, &error));
    assert_true(metrics_evaluation(metrics, &(EvaluationMetrics){5, 1, 256, 2, 1, 1}, &error));
    metrics_close(metrics);
    metrics = open_metrics(3, false);
    report_step(metrics, 4);
    metrics_close(metrics);
    const struct {
        const char *kind;
        int step;
    } expected[] = {{"start", 0}, {"step", 1}, {"step", 2}, {"step", 3}, {"start", 5}, {"step", 4}};
    assert_int_equal(count_lines(), 6);
    for (int i = 0; i < 6; i++) {
        json_t *json = record(i);
        assert_string_equal(json_string_value(json_object_get(json, "kind")), expected[i].kind);
        assert_int_equal(json_integer_value(json_object_get(json, "step")), expected[i].step);
        json_decref(json);
    }
    char partial[64];
    snprintf(partial, sizeof partial, "run/metrics.jsonl.partial-%ld", (long)getpid());
    assert_int_equal(access(partial, F_OK), -1);
}

static void an_evaluation_that_is_made_again_is_dropped(void **state) {
    (void)state;
    Error error = {0};
    Metrics *metrics = open_metrics(0, false);
    for (int step = 1; step <= 4; step++) {
        report_step(metrics, step);
        assert_true(metrics_evaluation(metrics, &(EvaluationMetrics){step, 1, 256, 2, 1, 1}, &error));
    }
    metrics_close(metrics);
    metrics_close(open_metrics(4, false));
    assert_int_equal(count_lines(), 8);
    metrics = metrics_open("run", 4, true, false, &error);
    assert_non_null(metrics);
    metrics_close(metrics);
    assert_int_equal(count_lines(), 7);
    json_auto_t *last = record(6);
    assert_string_equal(json_string_value(json_object_get(last, "kind")), "step");
}

static void a_torn_last_line_is_dropped(void **state) {
    (void)state;
    Metrics *metrics = open_metrics(0, false);
    report_step(metrics, 1);
    metrics_close(metrics);
    append("run/metrics.jsonl", "{\"kind\": \"step\", \"step\": 1, \"lo");
    metrics = open_metrics(1, false);
    report_step(metrics, 2);
    metrics_close(metrics);
    assert_int_equal(count_lines(), 2);
    json_decref(record(0));
    json_decref(record(1));
}

/* The warnings of opening the records at step 5. */
static char *reopened(void) {
    fflush(stderr);
    int before = dup(STDERR_FILENO), file = open("errors", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    dup2(file, STDERR_FILENO);
    metrics_close(open_metrics(5, false));
    dup2(before, STDERR_FILENO);
    close(before);
    close(file);
    size_t length;
    return (char *)read_bytes("errors", &length);
}

static void records_that_are_missing_are_counted(void **state) {
    (void)state;
    Metrics *metrics = open_metrics(0, false);
    for (int step = 1; step <= 5; step++) report_step(metrics, step);
    metrics_close(metrics);
    char *none = reopened();
    assert_string_equal(none, "");
    size_t length;
    char *text = (char *)read_bytes("run/metrics.jsonl", &length);
    memset(strstr(text, "\"step\": 2,") - 5, '?', 10); /* garbled */
    strstr(text, "\"step\": 4,")[30] = '\n';           /* torn in the middle */
    write_bytes("run/metrics.jsonl", text, length);
    char *garbled = reopened();
    if (!strstr(garbled, "warning: run/metrics.jsonl has no records for 2 of the 5 steps so far, from step 2 on")) fail_msg("%s", garbled);
    assert_int_equal(unlink("run/metrics.jsonl"), 0);
    char *absent = reopened();
    if (!strstr(absent, "has no records for 5 of the 5 steps so far, from step 1 on")) fail_msg("%s", absent);
    free(none);
    free(garbled);
    free(absent);
    free(text);
}

static void records_go_on_in_a_new_file_when_theirs_is_removed(void **state) {
    (void)state;
    Metrics *metrics = open_metrics(0, false);
    report_step(metrics, 1);
    assert_int_equal(rename("run/metrics.jsonl", "run/moved"), 0); /* which keeps its records */
    report_step(metrics, 2);
    assert_int_equal(unlink("run/moved"), 0);
    report_step(metrics, 3);
    report_step(metrics, 4);
    metrics_close(metrics);
    assert_int_equal(count_lines(), 2);
}

static void a_file_with_nothing_to_drop_is_not_rewritten(void **state) {
    (void)state;
    struct stat before, after;
    Metrics *metrics = open_metrics(0, false);
    report_step(metrics, 1);
    metrics_close(metrics);
    append("run/metrics.jsonl", "a note of somebody\n");
    assert_int_equal(stat("run/metrics.jsonl", &before), 0);
    metrics_close(open_metrics(1, false));
    assert_int_equal(stat("run/metrics.jsonl", &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size);
}

static void a_record_that_does_not_fit_on_the_disk_leaves_no_part_behind(void **state) {
    (void)state;
    Error error = {0};
    struct stat status;
    struct rlimit old, tight;
    Metrics *metrics = open_metrics(0, false);
    assert_true(metrics_checkpoint(metrics, 1, 1, 1, &error));
    assert_int_equal(stat("run/metrics.jsonl", &status), 0);
    getrlimit(RLIMIT_FSIZE, &old);
    tight = (struct rlimit){(rlim_t)status.st_size + 10, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    bool written = metrics_checkpoint(metrics, 2, 1, 1, &error);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_false(written);
    assert_mentions(error.message, "run/metrics.jsonl");
    assert_true(metrics_checkpoint(metrics, 3, 1, 1, &error));
    metrics_close(metrics);
    assert_int_equal(count_lines(), 2);
    json_decref(record(1));
}

static void a_named_pipe_is_refused_instead_of_waited_for(void **state) {
    (void)state;
    Error error = {0};
    assert_int_equal(mkdir("run", 0777), 0);
    assert_int_equal(mkfifo("run/metrics.jsonl", 0666), 0);
    assert_null(metrics_open("run", 0, false, false, &error));
    assert_mentions(error.message, "run/metrics.jsonl");
}

/* A run folder of a stranger holds links: at its journals, and at the name under which a file is written before it gets its own. */
static void a_run_writes_through_no_link(void **state) {
    (void)state;
    static const char *const journals[] = {"run/metrics.jsonl", "run/log.txt"};
    Error error = {0};
    File file;
    assert_int_equal(mkdir("run", 0777), 0);
    write_text("victim", "mine");
    for (size_t i = 0; i < sizeof journals / sizeof *journals; i++) {
        assert_int_equal(symlink("../victim", journals[i]), 0);
        assert_false(file_open_journal(&file, journals[i], &error));
        assert_mentions(error.message, " is a symbolic link");
    }
    metrics_close(metrics_open("run", 0, false, false, &error)); /* what it drops, it drops from a new file */
    char temporary[64];
    snprintf(temporary, sizeof temporary, "run/run.json.partial-%ld", (long)getpid());
    assert_int_equal(symlink("../victim", temporary), 0);
    assert_false(file_write("run/run.json", "{}", 2, &error));
    size_t size;
    char *text = (char *)read_bytes("victim", &size);
    assert_string_equal(text, "mine");
    free(text);
}

/* -- TensorBoard ------------------------------------------------------------------------------------------------- */

static void crc32c_gives_the_published_values(void **state) {
    (void)state;
    const uint8_t zeros[32] = {0}; /* RFC 3720, appendix B.4 */
    assert_int_equal(tensorboard_crc32c("123456789", 9), 0xE3069283);
    assert_int_equal(tensorboard_crc32c(zeros, sizeof zeros), 0x8A9136AA);
    assert_int_equal(tensorboard_crc32c("", 0), 0);
}

/* Paths of the event files in run/tensorboard; the caller frees them. Returns how many. */
static int event_files(char *paths[8]) {
    DIR *folder = opendir("run/tensorboard");
    int count = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && count < 8) paths[count++] = memory_format("run/tensorboard/%s", entry->d_name);
    closedir(folder);
    return count;
}

typedef struct Records {
    char *file;
    const uint8_t *data[16];
    size_t length[16];
    int count;
} Records;

static uint64_t little_endian(const uint8_t *bytes, int count) {
    uint64_t value = 0;
    for (int i = count; i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

static uint32_t masked(const void *data, size_t bytes) {
    uint32_t crc = tensorboard_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Splits the only event file into records and checks their framing. */
static Records event_records(void) {
    char *paths[8];
    size_t length;
    assert_int_equal(event_files(paths), 1);
    Records records = {.file = (char *)read_bytes(paths[0], &length)};
    free(paths[0]);
    for (const uint8_t *at = (const uint8_t *)records.file, *end = at + length; at < end; records.count++) {
        assert_true(end - at >= 16 && records.count < 16);
        uint64_t size = little_endian(at, 8);
        assert_true(size <= (uint64_t)(end - at) - 16);
        assert_int_equal(little_endian(at + 8, 4), masked(at, 8));
        assert_int_equal(little_endian(at + 12 + size, 4), masked(at + 12, size));
        records.data[records.count] = at + 12;
        records.length[records.count] = size;
        at += 16 + size;
    }
    return records;
}

/* Whether the record has a Summary.Value of this tag and value. */
static bool has_scalar(const Records *records, int index, const char *tag, float value) {
    uint8_t expected[128];
    size_t length = strlen(tag);
    expected[0] = 0x0a; /* Value.tag */
    expected[1] = (uint8_t)length;
    memcpy(expected + 2, tag, length);
    expected[2 + length] = 0x15; /* Value.simple_value */
    memcpy(expected + 3 + length, &value, 4);
    return memmem(records->data[index], records->length[index], expected, length + 7) != NULL;
}

static void an_event_file_opens_with_its_version_and_a_session_start(void **state) {
    (void)state;
    metrics_close(open_metrics(41, true));
    Records records = event_records();
    assert_int_equal(records.count, 2);
    assert_int_equal(records.length[0], 9 + 15); /* wall_time, file_version */
    assert_memory_equal(records.data[0] + 9,
        "\x1a\x0d"
        "brain.Event:2",
        15);
    assert_memory_equal(records.data[1] + 9, "\x10\x2a\x3a\x02\x08\x01", 6); /* step 42, session_log {status: START} */
    free(records.file);
}

static void events_hold_the_scalars_of_steps_and_evaluations(void **state) {
    (void)state;
    Error error = {0};
    Metrics *metrics = open_metrics(0, true);
    StepMetrics step = plain;
    step.step = 300;
    write_step(metrics, &step);
    assert_true(metrics_evaluation(metrics, &(EvaluationMetrics){300, 1, 256, 2.25, 1.5, 1}, &error));
    assert_true(metrics_evaluation(metrics, &(EvaluationMetrics){301, 1, 256, 2.25, NAN, 1}, &error));
    metrics_close(metrics);
    Records records = event_records();
    assert_int_equal(records.count, 5);
    assert_memory_equal(records.data[2] + 9, "\x10\xac\x02\x2a", 4); /* step 300 as a varint, summary */
    assert_true(has_scalar(&records, 2, "loss/train", 2.5f));
    assert_true(has_scalar(&records, 2, "grad_norm", 0.75f));
    assert_true(has_scalar(&records, 2, "learning_rate", 1e-3f));
    assert_true(has_scalar(&records, 2, "tokens_per_second", 2000.0f));
    assert_true(has_scalar(&records, 3, "loss/validation", 2.25f));
    assert_true(has_scalar(&records, 3, "bits_per_byte/validation", 1.5f));
    assert_null(memmem(records.data[4], records.length[4], "bits", 4));
    free(records.file);
}

/* The bytes that protobuf's own encoder gives: Value {tag, tensor {dtype: string, string_val}, metadata {plugin_data
 * {plugin_name}}}. */
static void a_sample_is_a_record_and_a_text_of_tensorboard(void **state) {
    (void)state;
    static const char value[] = "\x0a\x25\x0a\x06sample\x42\x11\x08\x07\x42\x0d    a\"\n    \x01"
                                "b\x4a\x08\x0a\x06\x0a\x04text";
    Error error = {0};
    Metrics *metrics = open_metrics(0, true);
    assert_true(metrics_sample(metrics, 3, "a\"",
        "\n\x01"
        "b",
        2, 0.5, &error));
    metrics_close(metrics);
    Records records = event_records();
    assert_int_equal(records.count, 3);
    assert_non_null(memmem(records.data[2], records.length[2], value, sizeof value - 1));
    free(records.file);
    json_auto_t *line = record(0);
    assert_string_equal(json_string_value(json_object_get(line, "kind")), "sample");
    assert_string_equal(json_string_value(json_object_get(line, "prompt")), "a\"");
    assert_string_equal(json_string_value(json_object_get(line, "text")), "\n\x01"
                                                                          "b");
    assert_true(json_number_value(json_object_get(line, "milliseconds")) == 500);
    assert_int_equal(json_integer_value(json_object_get(line, "tokens")), 2);
}

static void expert_load_is_reported_as_imbalance_of_each_layer(void **state) {
    (void)state;
    Error error = {0};
    const double load[] = {0.5, 0.25, 0.125, 0.125, 0.25, 0.25, 0.25, 0.25, 0, 0, 0, 0};
    Metrics *metrics = open_metrics(0, true);
    assert_true(metrics_load(metrics, 1, 3, 4, load, &error));
    metrics_close(metrics);
    Records records = event_records();
    assert_true(has_scalar(&records, 2, "expert_load_max_over_mean/layer_00", 2.0f));
    assert_true(has_scalar(&records, 2, "expert_load_max_over_mean/layer_01", 1.0f));
    assert_null(memmem(records.data[2], records.length[2], "layer_02", 8)); /* no tokens, no imbalance */
    free(records.file);
}

static void processes_that_start_in_one_second_have_files_of_their_own(void **state) {
    (void)state;
    char *paths[8];
    for (int i = 0; i < 3; i++) metrics_close(open_metrics(0, true));
    int count = event_files(paths);
    assert_int_equal(count, 3);
    for (int i = 0; i < count; i++) {
        assert_non_null(strstr(paths[i], "/events.out.tfevents."));
        free(paths[i]);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_step_record_holds_measurements_and_rates),
        TEST(numbers_that_are_not_finite_are_null_and_marked),
        TEST(what_is_not_known_is_null_without_a_mark),
        TEST(evaluations_checkpoints_and_loads_are_records),
        TEST(a_start_carries_its_details_but_not_a_false_kind),
        TEST(records_after_the_checkpoint_are_dropped_and_starts_stay),
        TEST(an_evaluation_that_is_made_again_is_dropped),
        TEST(a_torn_last_line_is_dropped),
        TEST(records_that_are_missing_are_counted),
        TEST(records_go_on_in_a_new_file_when_theirs_is_removed),
        TEST(a_file_with_nothing_to_drop_is_not_rewritten),
        TEST(a_record_that_does_not_fit_on_the_disk_leaves_no_part_behind),
        TEST(a_named_pipe_is_refused_instead_of_waited_for),
        TEST(a_run_writes_through_no_link),
        TEST(crc32c_gives_the_published_values),
        TEST(an_event_file_opens_with_its_version_and_a_session_start),
        TEST(events_hold_the_scalars_of_steps_and_evaluations),
        TEST(a_sample_is_a_record_and_a_text_of_tensorboard),
        TEST(expert_load_is_reported_as_imbalance_of_each_layer),
        TEST(processes_that_start_in_one_second_have_files_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

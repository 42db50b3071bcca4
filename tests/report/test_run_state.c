/* The ways a run can be, and what is said about each: by the page, the terminal, /metrics, `smelt show` and the state
 * itself. Each row is a run folder as a training leaves it; real trainings are in tests/train/test_run_ends.c. */
#include <math.h>
#include <sys/wait.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/lease.h"
#include "report/report.h"
#include "report/terminal.h"
#include "run/export.h"
#include "run/run_state.h"
#include "support/train_run.h"

/* How the store's lease is found. */
typedef enum Found { NO_LEASE, HELD, ENDED, ELSEWHERE, ELSEWHERE_LONG_AGO } Found;

/* Records have times "@SECONDS@" before now. `log` ends log.txt. */
typedef struct Way {
    const char *name;
    Found lease;
    double taken_ago;
    const char *records;
    const char *log;
    RunStatus status;
    const char *told; /* part of what is said */
} Way;

#define START(step, ago) "{\"kind\": \"start\", \"step\": " #step ", \"time\": @" #ago "@}\n"
#define STEP(step, ago) "{\"kind\": \"step\", \"step\": " #step ", \"loss\": 2.5, \"milliseconds\": 500, \"time\": @" #ago "@}\n"
#define END(step, ago, state, code, message) \
    "{\"kind\": \"end\", \"step\": " #step ", \"state\": \"" state "\", \"code\": " #code ", \"message\": \"" message "\", \"time\": @" #ago "@}\n"

static const Way ways[] = {
    {"never started", NO_LEASE, 0, "", NULL, RUN_IS_PLANNED, "planned"},
    {"waiting for data", HELD, 5, "", NULL, RUN_IS_WAITING, "waiting: it prepares data, loads weights or waits for other ranks"},
    {"started again, and waiting", HELD, 5, START(0, 90) STEP(1, 80) END(1, 70, "paused", 8, "by SIGTERM"), NULL, RUN_IS_WAITING,
        "waiting after step 1 of 40"},
    {"training", HELD, 60, START(0, 59) STEP(1, 10) STEP(2, 8) STEP(3, 6), NULL, RUN_IS_TRAINING, "training, step 3 of 40, 1m14s left"},
    {"first step", HELD, 60, START(0, 59), NULL, RUN_IS_TRAINING, "training"},
    {"hanging", HELD, 2000, START(0, 1999) STEP(1, 1200), NULL, RUN_IS_SILENT, "silent after step 1 of 40: no sign for"},
    {"on another machine", ELSEWHERE, 2000, START(0, 1999) STEP(1, 20) STEP(2, 10), NULL, RUN_IS_TRAINING, "training, step 2 of 40"},
    {"lost with another machine", ELSEWHERE_LONG_AGO, 2000, START(0, 1999) STEP(1, 1200), NULL, RUN_IS_SILENT, "no sign for 20m0"},
    {"paused", NO_LEASE, 0, START(0, 99) STEP(7, 20) END(7, 19, "paused", 8, "paused by SIGTERM after step 7"), NULL, RUN_IS_PAUSED,
        "paused after step 7 of 40: paused by SIGTERM after step 7"},
    {"stopped by a setting", NO_LEASE, 0, START(0, 99) STEP(9, 20) END(9, 19, "stopped", 0, "stop_at=9"), NULL, RUN_IS_STOPPED,
        "stopped after step 9 of 40: stop_at=9"},
    {"disk full", NO_LEASE, 0, START(0, 99) STEP(9, 20) END(9, 19, "stopped", 7, "cannot write x: No space left on device"), NULL,
        RUN_IS_STOPPED, "No space left on device"},
    {"NaN", NO_LEASE, 0, START(0, 99) STEP(9, 20) END(9, 19, "failed", 5, "step 10: NaN or infinity in tensor t, on rank 3"), NULL,
        RUN_IS_FAILED, "failed after step 9 of 40: step 10: NaN or infinity in tensor t, on rank 3"},
    {"killed", ENDED, 100, START(0, 99) STEP(9, 20), NULL, RUN_IS_FAILED, "failed after step 9 of 40: its process was killed"},
    {"killed in its first step", ENDED, 100, START(0, 99), NULL, RUN_IS_FAILED, "failed: its process was killed"},
    {"killed while it started again", ENDED, 10, START(0, 99) STEP(9, 20) END(9, 19, "paused", 8, "by SIGTERM"), NULL, RUN_IS_FAILED,
        "failed after step 9 of 40: its process was killed"},
    {"ended by its watchdog", ENDED, 100, START(0, 99) STEP(9, 20), "error: rank 2 made no progress for 1800 s", RUN_IS_FAILED,
        "failed after step 9 of 40: rank 2 made no progress for 1800 s"},
    {"finished", NO_LEASE, 0, START(0, 99) STEP(40, 20) END(40, 19, "finished", 0, ""), NULL, RUN_IS_FINISHED,
        "finished after step 40 of 40"},
    {"finished early", NO_LEASE, 0, START(0, 99) STEP(30, 20) END(30, 19, "finished", 0, ""), NULL, RUN_IS_FINISHED,
        "finished after step 30 of 40"},
    {"finished by an old version", NO_LEASE, 0, START(0, 99) STEP(40, 20), NULL, RUN_IS_FINISHED, "finished after step 40 of 40"},
    {"failed in an old version", NO_LEASE, 0, START(0, 99) STEP(9, 20), "error: step 10: NaN", RUN_IS_FAILED,
        "failed after step 9 of 40: step 10: NaN"},
    {"paused by an old version", NO_LEASE, 0, START(0, 99) STEP(9, 20), "paused by SIGINT after step 9", RUN_IS_PAUSED,
        "paused after step 9 of 40"},
    {"without a reason", NO_LEASE, 0, START(0, 99) STEP(9, 20), "warning: w", RUN_IS_STOPPED, "without a record of the reason"},
    {"a lost rank under smelt launch", NO_LEASE, 0, START(0, 99) STEP(9, 20) END(9, 19, "waiting", 6, "rank 1 was lost"), NULL,
        RUN_IS_WAITING, "waiting after step 9 of 40: rank 1 was lost"},
    {"a launch that gave up", NO_LEASE, 0, START(0, 2000) STEP(9, 1300) END(9, 1200, "waiting", 6, "rank 1 was lost"), NULL, RUN_IS_SILENT,
        "s: rank 1 was lost"},
    {"damaged records", NO_LEASE, 0, "x\n{\"kind\": 3}\n[1]\n{\"kind\": \"end\", \"step\": 2}\n{\"kind\"", NULL, RUN_IS_STOPPED, "stopped"},
};

/* Replaces each @SECONDS@ by the time that long before `now`. */
static char *with_times(const char *records, double now) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    for (const char *at = records; *at;) {
        char *end;
        if (*at != '@') {
            fputc(*at++, out);
            continue;
        }
        fprintf(out, "%.3f", now - strtod(at + 1, &end));
        at = end + 1;
    }
    fclose(out);
    return text;
}

static void write_lease(const char *holder, double taken, double renewed) {
    char *real = realpath("run", NULL),
         *text = memory_format(
             "{\"run\": \"5f\", \"folder\": \"%s\", \"holder\": \"%s\", \"taken\": %.3f, \"renewed\": %.0f}", real, holder, taken, renewed);
    write_text("run/lease.json", text);
    free(text);
    free(real);
}

/* Takes the lease in a process that ends without releasing it. */
static void take_and_die(void) {
    pid_t child = fork();
    if (child == 0) {
        Error error = {0};
        _exit(lease_take("run", "5f", "run", &error) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Rewrites the time at which the lease was taken. */
static void date_lease(double taken) {
    json_error_t error;
    json_t *lease = json_load_file("run/lease.json", 0, &error);
    assert_non_null(lease);
    json_object_set_new(lease, "taken", json_real(taken));
    assert_int_equal(json_dump_file(lease, "run/lease.json", 0), 0);
    json_decref(lease);
}

static Lease *make_lease(const Way *way, double now) {
    Error error = {0};
    Lease *lease = NULL;
    double taken = now - way->taken_ago;
    if (way->lease == HELD) assert_non_null(lease = lease_take("run", "5f", "run", &error));
    if (way->lease == ENDED) take_and_die();
    if (way->lease == HELD || way->lease == ENDED) date_lease(taken);
    if (way->lease == ELSEWHERE) write_lease("elsewhere/pid:[1] 7 100", taken, now - 20);
    if (way->lease == ELSEWHERE_LONG_AGO) write_lease("elsewhere/pid:[1] 7 100", taken, now - 1200);
    return lease;
}

static void assert_told(const Way *way, const char *where, const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("%s: %s has no \"%s\": %s", way->name, where, part, text);
}

static void check_shown(const Way *way) {
    Error error = {0};
    Report *report = report_open((const char *[]){"run"}, 1, &error);
    assert_non_null(report);
    report_update(report);
    char *frame = terminal_frame(report, 200, 24, false);
    assert_told(way, "the terminal", frame, way->told);
    int count;
    const ReportPart *parts = report_parts(report, &count);
    assert_string_equal(parts[1].id, "state");
    assert_told(way, "the page", parts[1].html, way->told);
    char *style = memory_format("s-%s\"", run_status_name(way->status));
    assert_told(way, "the page", parts[1].html, style);
    ExportedRun exported;
    assert_true(report_run(report, 0, &exported));
    char *metrics = export_prometheus(&exported, 1), *line = memory_format("{run=\"run\",state=\"%s\"} 1\n", run_status_name(way->status));
    assert_told(way, "/metrics", metrics, line);
    ProcessResult shown = smelt("show run");
    assert_told(way, "smelt show", shown.output, way->told);
    process_free(&shown);
    free(line);
    free(metrics);
    free(style);
    free(frame);
    report_close(report);
}

static void each_way_a_run_can_be_is_told_everywhere(void **state) {
    (void)state;
    Config config = {.steps = 40, .checkpoint.store = ""};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const Way *way = &ways[i];
        char told[RUN_STATE_TEXT];
        assert_int_equal(mkdir("run", 0777), 0);
        double now = log_unix_seconds();
        char *records = with_times(way->records, now);
        write_text("run/config.yaml", "steps: 40\n");
        write_text("run/run.json", "{}");
        write_text("run/metrics.jsonl", records);
        if (way->log) {
            char *log = memory_format("2026-01-31T12:00:00Z step 1\n2026-01-31T12:00:01Z %s\n", way->log);
            write_text("run/log.txt", log);
            free(log);
        }
        Lease *lease = make_lease(way, now);
        RunState found = run_state_read("run", &config, now);
        run_state_describe(&found, now, told);
        if (found.status != way->status) fail_msg("%s: %s instead of %s", way->name, told, run_status_name(way->status));
        assert_told(way, "the state", told, way->told);
        if (found.status != RUN_IS_TRAINING) assert_true(isnan(found.seconds_left));
        run_state_free(&found);
        check_shown(way);
        lease_release(lease);
        free(records);
        Error error = {0};
        assert_true(file_remove("run", &error));
    }
}

/* A run that was moved has its lease with it; a store elsewhere keeps that of the old folder, which says nothing. */
static void a_lease_of_another_folder_is_none(void **state) {
    (void)state;
    Config config = {.steps = 40, .checkpoint.store = "store"};
    double now = log_unix_seconds();
    assert_true(mkdir("run", 0777) == 0 && mkdir("store", 0777) == 0);
    char *records = with_times(START(0, 99) STEP(9, 20) END(9, 19, "paused", 8, "by SIGTERM"), now);
    write_text("run/metrics.jsonl", records);
    Error error = {0};
    Lease *lease = lease_take("store", "5f", "run", &error);
    assert_non_null(lease);
    RunState found = run_state_read("run", &config, now);
    assert_int_equal(found.status, RUN_IS_WAITING);
    run_state_free(&found);
    assert_int_equal(rename("run", "moved"), 0);
    found = run_state_read("moved", &config, now);
    assert_int_equal(found.status, RUN_IS_PAUSED);
    run_state_free(&found);
    lease_release(lease);
    free(records);
}

/* Loads of many experts make records that are longer than the part of the file that is read first. */
static void large_records_hide_no_step(void **state) {
    (void)state;
    assert_int_equal(mkdir("run", 0777), 0);
    FILE *file = fopen("run/metrics.jsonl", "w");
    fputs("{\"kind\": \"step\", \"step\": 5, \"loss\": 1.5, \"time\": 100}\n{\"kind\": \"load\", \"step\": 5, \"load\": [", file);
    for (int i = 0; i < 100000; i++) fputs("0.125,", file);
    fputs("0]}\n", file);
    fclose(file);
    RunState found = run_state_read("run", NULL, 200);
    assert_int_equal(found.step, 5);
    assert_non_null(found.records[RUN_RECORD_STEP]);
    run_state_free(&found);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        IN_FOLDER(each_way_a_run_can_be_is_told_everywhere),
        IN_FOLDER(a_lease_of_another_folder_is_none),
        IN_FOLDER(large_records_hide_no_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

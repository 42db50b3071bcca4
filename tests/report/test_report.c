/* Tests of the report: reading a run's history in bounded memory, charts, and the page. Each test works in a folder
 * of its own. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "app/command.h"
#include "report/chart.h"
#include "report/history_internal.h"
#include "report/page_files_internal.h"
#include "report/report.h"
#include "report/step_record_internal.h"
#include "report/terminal.h"
#include "support/files.h"

static int setup(void **state) { return enter_folder(state) == 0 && mkdir("run", 0777) == 0 ? 0 : -1; }

static FILE *create_metrics(void) {
    FILE *file = fopen("run/metrics.jsonl", "wb");
    assert_non_null(file);
    return file;
}

static void put_step(FILE *file, int step, double loss) {
    fprintf(file,
        "{\"kind\": \"step\", \"step\": %d, \"loss\": %.9g, \"grad_norm\": 1.5, \"lr\": 0.001, \"milliseconds\": 500, \"tokens\": 100, "
        "\"tokens_seen\": %d, \"tokens_per_second\": %d, \"skipped\": false}\n",
        step, loss, 100 * step, 100 + step);
}

static History *read_history(void) {
    Error error = {0};
    bool changed = false;
    History *history = history_new("run/metrics.jsonl");
    if (!history_update(history, &changed, &error)) fail_msg("%s", error.message);
    return history;
}

static History *history_of(const char *text) {
    write_text("run/metrics.jsonl", text);
    return read_history();
}

/* The page of run/, of whatever metrics.jsonl holds; the caller frees. */
static char *page(void) {
    Error error = {0};
    ReportResult result;
    if (!report_write((const char *[]){"run"}, 1, "page.html", &result, &error)) fail_msg("%s", error.message);
    char *text = read_text("page.html");
    assert_int_equal(strlen(text), result.bytes);
    return text;
}

static char *page_of(const char *text) {
    write_text("run/metrics.jsonl", text);
    return page();
}

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" is missing", part);
}

static void assert_lacks(const char *text, const char *part) {
    const char *found = strstr(text, part);
    if (found) fail_msg("found \"%.80s\"", found);
}

/* The page's script is its last element, and the only one. */
static void assert_only_own_script(const char *text) {
    char *own = memory_format("<script>%s</script>\n</body>\n</html>\n", page_script);
    const char *found = strstr(text, "<script");
    assert_non_null(found);
    assert_string_equal(found, own);
    free(own);
}

/* The numbers for the script; release them by json_decref. */
static json_t *points_of(const char *text) {
    static const char *const entities[][2] = {{"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
    const char *start = strstr(text, "<template>"), *end = strstr(text, "</template>");
    assert_true(start && end);
    start += strlen("<template>");
    char *plain = memory_allocate((size_t)(end - start) + 1), *to = plain;
    for (size_t step; start < end; start += step) {
        step = 1;
        *to = *start;
        for (size_t i = 0; i < sizeof entities / sizeof *entities; i++)
            if (!strncmp(start, entities[i][0], strlen(entities[i][0]))) *to = *entities[i][1], step = strlen(entities[i][0]);
        to++;
    }
    json_error_t error;
    json_t *points = json_loads(plain, 0, &error);
    if (!points) fail_msg("%s: %s", error.text, plain);
    free(plain);
    return points;
}

/* -- History ----------------------------------------------------------------------------------------------------- */

static void long_curves_are_thinned_and_lose_no_step_and_no_extreme(void **state) {
    (void)state;
    enum { STEPS = 12345 };
    FILE *file = create_metrics();
    for (int step = 1; step <= STEPS; step++) put_step(file, step, step == 7777 ? 99 : step == 3333 ? 0.5 : 2);
    fclose(file);
    History *history = read_history();
    assert_in_range(history->thin.count, HISTORY_POINTS / 2, HISTORY_POINTS);
    int64_t next = 1, count = 0;
    double low = 2, high = 2;
    for (size_t i = 0; i < history->thin.count; i++) {
        const Point *point = &history->points[i];
        assert_int_equal(point->first, next);
        next = point->last + 1;
        count += point->series[SERIES_LOSS].count;
        low = fmin(low, point->series[SERIES_LOSS].low);
        high = fmax(high, point->series[SERIES_LOSS].high);
    }
    assert_int_equal(next, STEPS + 1);
    assert_int_equal(count, STEPS);
    assert_true(low == 0.5 && high == 99);
    history_free(history);
}

static void the_median_speed_of_short_runs_is_exact(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 4; step++) put_step(file, step, 2); /* 101, 102, 103, 104 tokens per second */
    fclose(file);
    History *history = read_history();
    assert_true(sample_median(&history->speed) == 102.5);
    assert_true(isnan(sample_median(&history->tflops)));
    assert_true(history->step_seconds == 2);
    history_free(history);
}

static void the_median_of_long_runs_is_of_an_even_sample(void **state) {
    (void)state;
    enum { STEPS = 40000 };
    FILE *file = create_metrics();
    for (int step = 1; step <= STEPS; step++) fprintf(file, "{\"kind\":\"step\",\"step\":%d,\"tokens_per_second\":%d}\n", step, step);
    fclose(file);
    History *history = read_history();
    /* One value in four is kept, so the median is off by less than four steps. */
    assert_true(fabs(sample_median(&history->speed) - STEPS / 2) < 4);
    history_free(history);
}

static void marks_are_spread_evenly_and_the_last_and_best_are_kept(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 2000; step++)
        fprintf(file, "{\"kind\":\"evaluation\",\"step\":%d,\"loss\":%g,\"bits_per_byte\":1}\n", step, step == 1234 ? 1.0 : 2.0);
    fclose(file);
    History *history = read_history();
    const Marks *marks = &history->evaluations;
    assert_in_range(marks->thin.count, HISTORY_MARKS / 2, HISTORY_MARKS);
    assert_int_equal(marks->thin.seen, 2000);
    for (size_t i = 1; i < marks->thin.count; i++) assert_int_equal(marks->items[i].step - marks->items[i - 1].step, marks->thin.stride);
    assert_int_equal(marks->last.step, 2000);
    assert_int_equal(history->best.step, 1234);
    history_free(history);
}

static void the_best_evaluation_is_one_over_the_newest_data(void **state) {
    (void)state;
    History *history = history_of("{\"kind\":\"evaluation\",\"step\":1,\"loss\":1,\"tokens\":10}\n"
                                  "{\"kind\":\"evaluation\",\"step\":2,\"loss\":3,\"tokens\":20}\n"
                                  "{\"kind\":\"evaluation\",\"step\":3,\"loss\":4,\"tokens\":20}\n");
    assert_int_equal(history->best.step, 2);
    history_free(history);
}

static void lines_that_are_no_records_are_counted_and_ignored(void **state) {
    (void)state;
    History *history = history_of("garbage\n[1]\n{\"kind\":\"step\"}\n{\"kind\":\"what\",\"step\":1}\n{\"kind\":\"step\",\"step\":1e300}\n"
                                  "{\"kind\":\"step\",\"step\":-1}\n{\"kind\":\"load\",\"step\":1,\"load\":[[1],[1,2]]}\n\n"
                                  "{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    assert_int_equal(history->ignored, 8);
    assert_int_equal(history->steps, 1);
    history_free(history);
}

static void steps_that_come_again_are_ignored(void **state) {
    (void)state;
    History *history = history_of("{\"kind\":\"step\",\"step\":2,\"loss\":2}\n{\"kind\":\"step\",\"step\":2,\"loss\":3}\n"
                                  "{\"kind\":\"step\",\"step\":1,\"loss\":3}\n");
    assert_int_equal(history->ignored, 2);
    assert_true(history->last_loss == 2);
    history_free(history);
}

static uint64_t random_bits(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* A line of a step with numbers of all sizes, then with some characters exchanged: jansson judges both. */
static void the_scanner_of_steps_reads_what_jansson_reads(void **state) {
    (void)state;
    static const char alphabet[] = "0123456789.eE+-\"\\{}[]:, \tntrufalse\x01\xc3";
    uint64_t seed = 1;
    int accepted = 0, refused = 0;
    for (int i = 0; i < 40000; i++) {
        char line[400];
        double a = (double)random_bits(&seed) * pow(10, (double)(random_bits(&seed) % 40) - 30),
               b = -(double)(random_bits(&seed) % 100000) / 1000;
        int length = snprintf(line, sizeof line,
            "{\"kind\": \"step\", \"step\": %d, \"loss\": %.*g, \"lr\":%.15g,\"skipped\": %s, \"time\": %.3f, \"x\": \"y\"}", i,
            (int)(random_bits(&seed) % 17) + 1, a, b, i % 2 ? "true" : "false", 1e9 + a * 1e-12);
        for (uint64_t changes = i % 4; changes > 0; changes--)
            line[random_bits(&seed) % (uint64_t)length] = alphabet[random_bits(&seed) % (sizeof alphabet - 1)];
        StepRecord scanned;
        if (!step_record_scan(line, (size_t)length, &scanned)) {
            refused++;
            continue;
        }
        accepted++;
        json_t *record = json_loadb(line, (size_t)length, 0, NULL);
        if (!json_is_object(record) || strcmp(json_string_value(json_object_get(record, "kind")), "step") != 0)
            fail_msg("accepted: %s", line);
        const StepRecord read = step_record_of(record);
        for (int field = 0; field < STEP_FIELDS; field++) {
            bool same = isnan(read.numbers[field]) ? isnan(scanned.numbers[field])
                                                   : memcmp(&read.numbers[field], &scanned.numbers[field], sizeof(double)) == 0;
            if (!same) fail_msg("%s: %s is %.17g instead of %.17g", line, step_fields[field], scanned.numbers[field], read.numbers[field]);
        }
        assert_int_equal(read.skipped, scanned.skipped);
        json_decref(record);
    }
    assert_true(accepted > 10000 && refused > 5000);
}

static void steps_of_a_range_are_read_again(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 5000; step++) {
        put_step(file, step, step);
        if (step % 100 == 0) fprintf(file, "{\"kind\":\"evaluation\",\"step\":%d,\"loss\":%d}\n", step, step);
    }
    fclose(file);
    History *history = read_history(), *part = history_range(history, 1495, 1505);
    assert_true(history->thin.stride > 1);
    assert_int_equal(part->thin.count, 11);
    for (int i = 0; i < 11; i++) {
        assert_int_equal(part->points[i].first, 1495 + i);
        assert_int_equal(part->points[i].last, 1495 + i);
        assert_true(span_mean(&part->points[i].series[SERIES_LOSS]) == 1495 + i);
    }
    assert_int_equal(part->evaluations.thin.count, 1);
    History *beyond = history_range(history, 6000, 7000), *all = history_range(history, -5, INT64_MAX);
    assert_int_equal(beyond->steps, 0);
    assert_int_equal(all->steps, 5000);
    assert_int_equal(remove("run/metrics.jsonl"), 0);
    assert_null(history_range(history, 1, 2));
    history_free(history), history_free(part), history_free(beyond), history_free(all);
}

static void a_torn_last_line_is_no_damage(void **state) {
    (void)state;
    History *history = history_of("{\"kind\":\"step\",\"step\":1,\"loss\":2}\n{\"kind\":\"st");
    assert_int_equal(history->ignored, 0);
    assert_int_equal(history->steps, 1);
    history_free(history);
}

static void a_line_above_the_limit_is_skipped(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int i = 0; i <= FILE_LINE_LIMIT; i++) putc('x', file);
    putc('\n', file);
    put_step(file, 1, 2);
    fclose(file);
    History *history = read_history();
    assert_int_equal(history->ignored, 1);
    assert_int_equal(history->steps, 1);
    history_free(history);
}

static void loads_are_merged_in_time_without_changing_their_sum(void **state) {
    (void)state;
    enum { RECORDS = 1000 };
    FILE *file = create_metrics();
    for (int step = 1; step <= RECORDS; step++) fprintf(file, "{\"kind\":\"load\",\"step\":%d,\"load\":[[0.25,0.75],[0.5,0.5]]}\n", step);
    fclose(file);
    History *history = read_history();
    const LoadMap *map = &history->load;
    assert_int_equal(map->layers * 10 + map->experts, 22);
    assert_in_range(map->thin.count, HISTORY_COLUMNS / 2, HISTORY_COLUMNS);
    double sum = 0;
    for (size_t column = 0; column < map->thin.count; column++) sum += load_column(map, column)->sums[1];
    assert_int_equal(map->thin.seen, RECORDS);
    assert_true(sum == 0.75 * RECORDS); /* exact in float */
    history_free(history);
}

static void a_missing_run_is_refused_by_name(void **state) {
    (void)state;
    Error error = {0};
    bool changed = false;
    History *history = history_new("elsewhere/metrics.jsonl");
    assert_false(history_update(history, &changed, &error));
    assert_false(changed);
    history_free(history);
    assert_int_equal(error.code, ERROR_CHECKPOINT);
    assert_has(error.message, "elsewhere/metrics.jsonl does not exist");
}

/* -- Following a run that is being written ------------------------------------------------------------------------ */

#define LINE(step, loss) "{\"kind\":\"step\",\"step\":" #step ",\"loss\":" #loss "}\n"

static void append_text(const char *path, const char *text) {
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Returns whether there was anything new. */
static bool read_on(History *history) {
    Error error = {0};
    bool changed = false;
    if (!history_update(history, &changed, &error)) fail_msg("%s", error.message);
    return changed;
}

static void reading_goes_on_where_it_ended(void **state) {
    (void)state;
    History *history = history_of("garbage\n" LINE(1, 3));
    assert_false(read_on(history));
    append_text("run/metrics.jsonl", "{\"kind\":\"step\",\"st");
    assert_false(read_on(history));
    append_text("run/metrics.jsonl", "ep\":2,\"loss\":2.5}\n");
    assert_true(read_on(history));
    assert_true(history->last_loss == 2.5);
    assert_int_equal(history->steps, 2);
    assert_int_equal(history->lines, 3);
    assert_int_equal(history->ignored, 1);
    history_free(history);
}

static void a_file_that_was_changed_before_its_end_is_read_anew(void **state) {
    (void)state;
    History *history = history_of(LINE(1, 3) LINE(2, 2.5) LINE(3, 2.25));
    write_text("other", LINE(1, 9) LINE(2, 2.5) LINE(3, 2.25) LINE(4, 2));
    assert_int_equal(rename("other", "run/metrics.jsonl"), 0);
    assert_true(read_on(history));
    assert_int_equal(history->steps, 4);
    assert_int_equal(history->lines, 4);
    assert_true(history->points[0].series[SERIES_LOSS].sum == 9);
    assert_int_equal(truncate("run/metrics.jsonl", 2 * (off_t)strlen(LINE(1, 3))), 0);
    assert_true(read_on(history));
    assert_int_equal(history->steps, 1);
    write_text("run/metrics.jsonl", LINE(7, 1) LINE(8, 1) LINE(9, 1));
    assert_true(read_on(history));
    assert_int_equal(history->first_step, 7);
    assert_int_equal(history->steps, 3);
    history_free(history);
}

static void only_parts_that_became_others_get_a_new_version(void **state) {
    (void)state;
    Error error = {0};
    write_text("run/metrics.jsonl", LINE(1, 3));
    write_text("run/config.yaml", "steps: 30\n");
    Report *report = report_open((const char *[]){"run"}, 1, &error);
    assert_non_null(report);
    assert_true(report_update(report));
    assert_false(report_update(report));
    const int64_t first = report_version(report);
    append_text("run/metrics.jsonl", LINE(4, 2));
    assert_true(report_update(report));
    int count;
    const ReportPart *parts = report_parts(report, &count);
    for (int i = 0; i < count; i++) {
        bool follows = !strcmp(parts[i].id, "numbers") || !strcmp(parts[i].id, "loss") || !strcmp(parts[i].id, "curves") ||
                       !strcmp(parts[i].id, "foot") || !strcmp(parts[i].id, "state") || !strcmp(parts[i].id, "points") ||
                       !strcmp(parts[i].id, "summary");
        assert_int_equal(parts[i].version > first, follows);
    }
    remove("run/metrics.jsonl");
    assert_true(report_update(report));
    assert_has(report_trouble(report)->message, "run/metrics.jsonl does not exist");
    assert_string_equal(report_parts(report, &count)[2].id, "warnings");
    assert_true(report_parts(report, &count)[2].version > first + 1);
    assert_has(report_parts(report, &count)[2].html, "run/metrics.jsonl does not exist");
    write_text("run/metrics.jsonl", LINE(1, 5));
    assert_true(report_update(report));
    assert_null(report_trouble(report));
    report_close(report);
}

/* -- Charts ------------------------------------------------------------------------------------------------------ */

static void assert_ticks(Axis axis, int count, const double *expected) {
    assert_int_equal(axis.count, count);
    for (int i = 0; i < count; i++) assert_true(fabs(axis.ticks[i] - expected[i]) <= 1e-12 * fabs(expected[i]));
}

static void linear_ticks_are_round_and_inside(void **state) {
    (void)state;
    assert_ticks(axis_make(0, 500, false, 8), 6, (const double[]){0, 100, 200, 300, 400, 500});
    assert_ticks(axis_make(1.93, 3.1, false, 6), 6, (const double[]){2, 2.2, 2.4, 2.6, 2.8, 3});
    assert_ticks(axis_make(-1e-4, 1.1e-4, false, 5), 5, (const double[]){-1e-4, -5e-5, 0, 5e-5, 1e-4});
}

static void logarithmic_ticks_are_round_and_inside(void **state) {
    (void)state;
    assert_ticks(axis_make(1.2, 6.5, true, 6), 4, (const double[]){1.5, 2, 3, 5});
    assert_ticks(axis_make(0.8, 25, true, 6), 5, (const double[]){1, 2, 5, 10, 20});
    assert_ticks(axis_make(0.5e-3, 2e3, true, 8), 7, (const double[]){1e-3, 1e-2, 0.1, 1, 10, 100, 1000});
}

static void degenerate_axes_can_be_drawn(void **state) {
    (void)state;
    const double limits[][2] = {{1, 1}, {0, 0}, {NAN, 1}, {INFINITY, -INFINITY}, {-1e308, 1e308}, {1e-320, 1e-320}, {-3, -3}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (int logarithmic = 0; logarithmic < 2; logarithmic++) {
            Axis axis = axis_padded(limits[i][0], limits[i][1], logarithmic, 6);
            assert_true(axis.low < axis.high);
            assert_in_range(axis.count, 1, AXIS_TICKS);
            double place = axis_place(&axis, axis.ticks[0]);
            assert_true(fabs(place - 0.5) <= 0.5 + 1e-6); /* ticks may lie a billionth of the axis outside */
        }
}

static void numbers_are_short(void **state) {
    (void)state;
    const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"}, {2.5, "2.5"}, {5e-5, "5e-5"}, {9999, "9999"}, {12500, "12.5k"}, {4.096e6, "4.096M"}, {NAN, "unknown"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        chart_number(cases[i].value, 4, text);
        assert_string_equal(text, cases[i].text);
    }
}

/* -- The page ---------------------------------------------------------------------------------------------------- */

/* As base64, by other programs. */
static char *hash_of_script(void) {
    static char hash[64];
    write_text("script", page_script);
    FILE *pipe = popen("sha256sum script | cut -c1-64 | tr a-f A-F | basenc -d --base16 | base64", "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%63s", hash), 1);
    assert_int_equal(pclose(pipe), 0);
    return hash;
}

static void the_page_loads_nothing_and_runs_its_script_alone(void **state) {
    (void)state;
    char *text = page_of("{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    const char *const forbidden[] = {"http:", "https:", "src=", "href=", "url(", "@import", "<link", "import(", "fetch("};
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++) assert_lacks(text, forbidden[i]);
    assert_only_own_script(text);
    char *policy = memory_format("content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-%s'\">", hash_of_script());
    assert_has(text, policy);
    free(policy);
    assert_has(text, "name=\"viewport\"");
    assert_has(text, "prefers-color-scheme:dark");
    free(text);
}

static void a_run_of_one_step_has_a_dot_and_its_numbers(void **state) {
    (void)state;
    FILE *file = create_metrics();
    put_step(file, 1, 2.25);
    fclose(file);
    char *text = page();
    assert_has(text, "<dt>Training loss</dt><dd class=\"value\">2.2500</dd>");
    assert_has(text, "<dt>Validation loss</dt><dd class=\"value none\">unknown</dd>");
    assert_has(text, "<dt>Speed</dt><dd class=\"value\">101 tok/s</dd>");
    assert_has(text, "<path class=\"dot train\" d=\"M500.0 ");
    assert_lacks(text, "Expert load");
    free(text);
}

/* Two samples: of the steps 1 to 3 none is known, 4 to 6 have the first one, the others the second. */
static void samples_of_the_machine_have_charts_energy_and_cost(void **state) {
    (void)state;
    write_text("run/config.yaml", "metrics: {price: 3}\n");
    write_text("run/run.json", "{\"history\": [{\"step\": 0, \"ranks\": 2}]}\n");
    FILE *file = create_metrics();
    for (int step = 1; step <= 9; step++) {
        put_step(file, step, 2);
        if (step % 3 == 0)
            fprintf(file,
                "{\"kind\": \"system\", \"step\": %d, \"cpu_percent\": %d, \"machine_memory_bytes\": 2147483648, "
                "\"disk_read_bytes_per_second\": null, \"disk_written_bytes_per_second\": 5, \"network_received_bytes_per_second\": "
                "1000000, "
                "\"network_sent_bytes_per_second\": 500000, \"gpu_percent\": [80, 90], \"gpu_watts\": [300, null], \"gpu_celsius\": [50, "
                "71.5], "
                "\"joules\": 150, \"time\": 5}\n",
                step, 10 * step);
    }
    fclose(file);
    char *text = page();
    json_t *points = points_of(text), *series = json_object_get(json_array_get(points, 0), "series");
    json_t *wanted = json_pack("{s:[[n, n, n, i, i, i, i, i, i]], s:[[n, n, n, i, i, i, i, i, i]], s:[[n, n, n, i, i, i, i, i, i]], "
                               "s:[[n, n, n, f, f, f, f, f, f]], s:[[n, n, n, i, i, i, i, i, i]], s:[[n, n, n, f, f, f, f, f, f]]}",
        "machine_cpu", 30, 30, 30, 60, 60, 60, "machine_memory", 2, 2, 2, 2, 2, 2, "machine_gpu", 85, 85, 85, 85, 85, 85, "machine_network",
        1.5, 1.5, 1.5, 1.5, 1.5, 1.5, "machine_power", 300, 300, 300, 300, 300, 300, "machine_temperature", 71.5, 71.5, 71.5, 71.5, 71.5,
        71.5);
    const char *name;
    json_t *one;
    json_object_foreach(wanted, name, one) if (!json_equal(one, json_object_get(series, name)))
        fail_msg("%s: %s", name, json_dumps(series, 0));
    assert_null(json_object_get(series, "machine_disk"));
    assert_has(text, "data-series=\"machine_power\"");
    assert_lacks(text, "data-series=\"machine_disk\"");
    assert_has(text,
        "<dt>Energy</dt><dd class=\"value\">450 J</dd><dd class=\"note\">of the 2 GPUs of the machine of rank 0, 0.5 J per token</dd>");
    assert_has(
        text, "<dt>Cost</dt><dd class=\"value\">$0.0075</dd><dd class=\"note\">of 0.0025 device hours in training steps, at $3</dd>");
    assert_has(text, "| Energy | 450 J |");
    assert_has(text, "| Cost | $0.0075 |");
    json_decref(points), json_decref(wanted);
    free(text);
}

static void a_run_without_steps_says_so(void **state) {
    (void)state;
    char *text = page_of("");
    assert_has(text, "No steps yet");
    free(text);
}

static void validation_checkpoints_and_restarts_are_marked(void **state) {
    (void)state;
    FILE *file = create_metrics();
    fprintf(file, "{\"kind\":\"start\",\"step\":0,\"machine\":\"a\"}\n");
    for (int step = 1; step <= 20; step++) {
        put_step(file, step, 3 - step * 0.05);
        if (step == 10)
            fputs("{\"kind\":\"checkpoint\",\"step\":10,\"bytes\":1048576,\"milliseconds\":500}\n{\"kind\":\"start\",\"step\":10,"
                  "\"parameters\":12500}\n",
                file);
        if (step % 10 == 0)
            fprintf(file, "{\"kind\":\"evaluation\",\"step\":%d,\"loss\":%g,\"bits_per_byte\":1.5}\n", step, step == 10 ? 2.5 : 2.75);
    }
    fclose(file);
    char *text = page();
    assert_has(text, "<title>step 10: validation loss 2.5000, bits per byte 1.5000, the best</title>");
    assert_has(text, "bits per byte 1.5000</title>"); /* that of step 20 */
    assert_has(text, "class=\"dot best\"");
    assert_has(text, "<title>step 10: checkpoint, 1.00 MiB in 0.5s</title>");
    assert_has(text, "<title>process 2 started after step 10</title>");
    assert_lacks(text, "device hours");
    assert_has(text, "best: 2.5000 at step 10");
    assert_has(text, "process 1, steps 1\xE2\x80\x93"
                     "10</p>");
    assert_has(text, "process 2, steps 11\xE2\x80\x93"
                     "20</p>");
    assert_has(text, "<dd class=\"value\">12.5k</dd>");
    free(text);
}

static void removed_checkpoints_and_hours_of_all_ranks_are_told(void **state) {
    (void)state;
    write_text("run/config.yaml", "steps: 30\n");
    write_text("run/run.json", "{\"history\": [{\"ranks\": 8, \"step\": 0}, {\"ranks\": 8, \"step\": 1}]}");
    char *text = page_of("{\"kind\":\"step\",\"step\":1,\"loss\":2,\"milliseconds\":4500000}\n"
                         "{\"kind\":\"checkpoint\",\"step\":1,\"bytes\":1048576,\"milliseconds\":500}\n");
    assert_has(text, "<title>step 1: checkpoint, 1.00 MiB in 0.5s, removed since</title>");
    assert_has(text, "in training steps of 8 ranks: 10 device hours");
    free(text);
}

static void curves_of_reinforcement_learning_are_shown_if_there_are_numbers(void **state) {
    (void)state;
    char *with = page_of("{\"kind\":\"step\",\"step\":1,\"loss\":2,\"reward\":0.5,\"entropy\":1.5}\n");
    assert_has(with, "<h2>Reward</h2>");
    assert_has(with, "data-series=\"entropy\"");
    assert_lacks(with, "data-series=\"mismatch_kl\"");
    char *without = page_of("{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    assert_lacks(without, "<h2>Reward</h2>");
    free(with);
    free(without);
}

static void losses_that_are_not_finite_are_marked_and_never_drawn(void **state) {
    (void)state;
    char *text = page_of("{\"kind\":\"step\",\"step\":1,\"loss\":2}\n{\"kind\":\"step\",\"step\":2,\"loss\":null,\"finite\":false}\n"
                         "{\"kind\":\"step\",\"step\":3,\"loss\":null,\"skipped\":true}\n{\"kind\":\"step\",\"step\":4,\"loss\":1}\n");
    assert_has(text, "The loss of 1 step was not finite.");
    assert_has(text, "1 update was skipped.");
    assert_has(text, "<title>step 2: the loss was not finite</title>");
    assert_has(text, "<title>step 3: the update was skipped</title>");
    for (const char *path = text; (path = strstr(path, " d=\"")); path++)
        assert_false(memchr(path + 4, 'n', strcspn(path + 4, "\"")) != NULL);
    free(text);
}

/* The d="..." of the first path of this class; the caller frees. */
static char *path_of(const char *text, const char *style) {
    char *opening = memory_format("<path class=\"%s\" d=\"", style);
    const char *found = strstr(text, opening);
    assert_non_null(found);
    found += strlen(opening);
    free(opening);
    return memory_format("%.*s", (int)strcspn(found, "\""), found);
}

static void a_straight_curve_stays_straight_when_smoothed(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 60; step++) put_step(file, step, 10 - step / 16.0);
    fclose(file);
    char *text = page(), *raw = path_of(text, "curve raw"), *smoothed = path_of(text, "curve train");
    assert_string_equal(raw, smoothed);
    free(text);
    free(raw);
    free(smoothed);
}

static void a_smoothed_curve_keeps_the_gap_of_a_broken_step(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 60; step++) {
        if (step == 30) fputs("{\"kind\":\"step\",\"step\":30,\"loss\":null}\n", file);
        else put_step(file, step, 3);
    }
    fclose(file);
    char *text = page(), *smoothed = path_of(text, "curve train");
    const char *second = strchr(smoothed + 1, 'M');
    assert_non_null(second);
    assert_null(strchr(second + 1, 'M'));
    free(text);
    free(smoothed);
}

static void samples_of_evaluations_are_shown_newest_first(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 100; step++)
        fprintf(file, "{\"kind\":\"sample\",\"step\":%d,\"prompt\":\"%s\",\"text\":\"a <b>\\nc %d\"}\n", step,
            step < 90 ? "old <p>" : "Once", step);
    fprintf(file, "{\"kind\":\"sample\",\"step\":101,\"prompt\":\"Once\"}\n");
    fclose(file);
    char *text = page();
    assert_has(text, "What the model wrote after: Once</p>");
    const char *last = strstr(text, "<th scope=\"row\">step 100</th><td class=\"text\">a &lt;b&gt;\nc 100</td>");
    const char *first = strstr(text, "<th scope=\"row\">step 1</th><td class=\"text\"><i>old &lt;p&gt;</i>a &lt;b&gt;\nc 1</td>");
    assert_true(last && first && last < first);
    assert_has(text, "1 of 101 lines of metrics.jsonl were invalid");
    free(text);
    History *history = read_history();
    assert_in_range(history->excerpts.thin.count, HISTORY_EXCERPTS / 2, HISTORY_EXCERPTS);
    history_free(history);
}

static void every_text_of_the_run_is_escaped(void **state) {
    (void)state;
    write_text("run/config.yaml", "a: \"</pre><script>alert(1)</script>\" # <b>\x01\n");
    char *text = page_of("{\"kind\":\"start\",\"step\":0,\"machine\":\"<script>alert(2)</script>\",\"<i>\":\"<img src=x>\"}\n"
                         "{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    assert_only_own_script(text);
    assert_lacks(text, "<img");
    assert_lacks(text, "<b>\x01");
    assert_has(text, "a: &quot;&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot; <i># &lt;b&gt;\xEF\xBF\xBD</i>");
    assert_has(text, "&lt;i&gt; &lt;img src=x&gt;");
    free(text);
}

/* Alarms, and the end of the log, may hold anything. */
static void numbers_for_the_script_hold_texts_unchanged_and_escaped(void **state) {
    (void)state;
    write_text("run/log.txt", "a line\n2026-01-31T12:00:00Z </pre><script>alert(1)</script>\n");
    FILE *file = create_metrics();
    for (int step = 1; step <= 3000; step++) put_step(file, step, step == 1500 ? 9 : 2);
    fputs("{\"kind\":\"event\",\"step\":1500,\"event\":\"loss_spike\",\"message\":\"</template><img src=x> \\\"\\\\ \\n\"}\n", file);
    fputs("{\"kind\":\"event\",\"step\":1600,\"event\":\"best\",\"message\":\"b\"}\n", file);
    fputs("{\"kind\":\"event\",\"step\":1700,\"event\":\"warning\",\"message\":\"a slow disk\"}\n", file);
    fputs("{\"kind\":\"checkpoint\",\"step\":2000,\"bytes\":1048576,\"milliseconds\":500}\n", file);
    fputs("{\"kind\":\"evaluation\",\"step\":3000,\"loss\":2.5}\n", file);
    fclose(file);
    char *text = page();
    assert_only_own_script(text);
    assert_lacks(text, "<img");
    assert_has(text, "2026-01-31T12:00:00Z &lt;/pre&gt;&lt;script&gt;");
    assert_has(text, "| Validation loss | 2.5000 | step 3000, the best so far |");
    json_t *points = points_of(text), *run = json_array_get(points, 0), *steps = json_object_get(run, "step"),
           *loss = json_object_get(json_object_get(run, "series"), "loss");
    const size_t count = json_array_size(steps);
    assert_in_range(count, HISTORY_POINTS / 2, HISTORY_POINTS);
    assert_int_equal(json_integer_value(json_array_get(steps, count - 1)), 3000);
    assert_int_equal(json_array_size(loss), 3);
    double highest = 0;
    for (size_t i = 0; i < count; i++) highest = fmax(highest, json_number_value(json_array_get(json_array_get(loss, 2), i)));
    assert_true(highest == 9);
    json_t *events = json_pack("[[i, s, i, f, s], [i, s, f, i, s], [i, s, f, i, s]]", 2000, "check", 0, 0.05,
        "step 2000: checkpoint, 1.00 MiB in 0.5s", 1500, "bad", 0.9, 1, "step 1500: loss_spike: </template><img src=x> \"\\ \n", 1700,
        "warn", 0.95, 1, "step 1700: warning: a slow disk");
    if (!json_equal(json_object_get(run, "events"), events)) fail_msg("%s", json_dumps(run, 0));
    json_t *evaluations = json_pack("[[i, f, n]]", 3000, 2.5);
    assert_true(json_equal(json_object_get(run, "evaluations"), evaluations));
    json_decref(points), json_decref(events), json_decref(evaluations);
    free(text);
}

static void what_is_not_utf8_becomes_a_replacement_character(void **state) {
    (void)state;
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    chart_escape(out, "a\xff<\xe2\x82\xac>\xe2\x82");
    fclose(out);
    assert_string_equal(text, "a\xEF\xBF\xBD&lt;\xE2\x82\xAC&gt;\xEF\xBF\xBD");
    free(text);
}

static void ignored_lines_are_one_warning(void **state) {
    (void)state;
    char *text = page_of("x\ny\n{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    assert_has(text, "2 of 3 lines of metrics.jsonl were invalid and are ignored.");
    free(text);
}

static void each_layer_has_a_heat_map_with_the_colors_of_its_loads(void **state) {
    (void)state;
    char *text = page_of("{\"kind\":\"load\",\"step\":1,\"load\":[[0.25,0.25,0.25,0.25],[1,0,0,0]]}\n");
    assert_has(text, "<h3>Layer 1</h3><p aria-live=\"polite\">largest at the end: 4.00\xC3\x97</p>");
    const char *first = strstr(text, "<h3>Layer 0</h3>"), *second = strstr(text, "<h3>Layer 1</h3>");
    assert_true(first && second > first);
    assert_has(first, "width=\"1\" height=\"4\""); /* a column, and a row for each expert */
    assert_has(first, "data-load=\"UUUU\"");       /* even: the middle level */
    assert_has(second, "data-load=\"y000\"");      /* four times an even share, and nothing */
    free(text);
}

/* The page joins columns in time so that it stays small; an expert's share is that of all its steps. */
static void maps_of_many_experts_have_fewer_columns(void **state) {
    (void)state;
    enum { LAYERS = 40, EXPERTS = 100, RECORDS = 100 };
    FILE *file = create_metrics();
    for (int step = 1; step <= RECORDS; step++) {
        fprintf(file, "{\"kind\":\"load\",\"step\":%d,\"load\":[", step);
        for (int cell = 0; cell < LAYERS * EXPERTS; cell++)
            fprintf(file, "%s%s%s",
                cell % EXPERTS ? ","
                : cell         ? ",["
                               : "[",
                cell % EXPERTS == 0 ? "0.02" : "0.0098989899", cell % EXPERTS == EXPERTS - 1 ? "]" : "");
        fputs("]}\n", file);
    }
    fclose(file);
    char *text = page();
    assert_in_range(strlen(text), 60000, 250000);
    assert_has(text, "width=\"15\" height=\"100\"");
    assert_has(text, "data-steps=\"1,8,15,");
    assert_has(text, "data-load=\"jjjjjjjjjjjjjjjUUU"); /* the first expert: twice an even share */
    free(text);
}

static void norms_of_layers_have_a_map_for_gradients_and_one_for_weights(void **state) {
    (void)state;
    char *text = page_of("{\"kind\":\"layers\",\"step\":1,\"gradient\":[3,3,3,3],\"weight\":[8,0.5,0.5,1],\"outside_gradient\":9}\n"
                         "{\"kind\":\"layers\",\"step\":2,\"gradient\":[1,2],\"weight\":[1]}\n");
    const char *first = strstr(text, "<h3>Gradients</h3>"), *second = strstr(text, "<h3>Weights</h3>");
    assert_true(first && second > first);
    assert_has(first, "data-load=\"UUUU\"");
    assert_has(second, "largest at the end: 3.20\xC3\x97");
    assert_has(second, "data-load=\"t00A\"");
    assert_has(text, "data-row=\"layer\"");
    assert_has(text, "1 of 2 lines of metrics.jsonl were invalid");
    free(text);
}

static void norms_of_tensors_have_histograms(void **state) {
    (void)state;
    char *text = page_of(
        "{\"kind\":\"layers\",\"step\":5,\"gradient\":[3],\"weight\":[8],\"outside_gradient\":9,\"outside_weight\":9,"
        "\"gradient_histogram\":{\"first\":-3,\"tensors\":[2,0,8]},\"weight_histogram\":{\"first\":0,\"tensors\":[10]}}\n"
        "{\"kind\":\"layers\",\"step\":6,\"gradient\":[3],\"weight\":[8],\"gradient_histogram\":{\"first\":99999,\"tensors\":[1]}}\n");
    assert_has(text, "how many tensors have which norm, step 5<");
    assert_has(text, "<h3>Gradients</h3><p>10 tensors</p>");
    assert_has(text, "<rect x=\"0\" y=\"75.0\" width=\"19\" height=\"25.0\"><title>2^-3 to 2^-2: 2</title></rect>");
    assert_has(text, "<rect x=\"40\" y=\"0.0\" width=\"19\" height=\"100.0\"><title>2^-1 to 2^0: 8</title></rect>");
    assert_has(text, "<span>2<sup>-3</sup></span><span>2<sup>0</sup></span>");
    free(text);
}

static void models_with_too_many_experts_get_a_note(void **state) {
    (void)state;
    FILE *file = create_metrics();
    fputs("{\"kind\":\"load\",\"step\":1,\"load\":[[0", file);
    for (int i = 0; i < HISTORY_CELLS; i++) fputs(",0", file);
    fputs("]]}\n", file);
    fclose(file);
    char *text = page();
    assert_has(text, "1 layers of 16385 experts are too many to draw.");
    free(text);
}

static void the_same_run_gives_the_same_bytes(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 100; step++) put_step(file, step, 3.0 / step);
    fclose(file);
    char *first = page(), *second = page();
    assert_string_equal(first, second);
    free(first);
    free(second);
}

static void the_loss_axis_fits_the_late_curve_and_names_what_it_cuts(void **state) {
    (void)state;
    FILE *file = create_metrics();
    for (int step = 1; step <= 100; step++) put_step(file, step, step <= 4 ? 10.5 : 3 - step * 0.01);
    fclose(file);
    char *text = page();
    assert_has(text, "begins at up to 10.5, above this axis");
    assert_lacks(text, "<span style=\"top:0.00%\">10</span>");
    const char *chart = strstr(text, "loss (nats per token)"), *labels = strstr(chart, "<svg");
    assert_null(memmem(chart, (size_t)(labels - chart), ">5<", 3));
    assert_non_null(memmem(chart, (size_t)(labels - chart), ">2.2<", 5));
    free(text);
    file = create_metrics();
    for (int step = 1; step <= 100; step++) put_step(file, step, 3 - step * 0.01);
    fclose(file);
    text = page();
    assert_lacks(text, "above this axis");
    free(text);
}

static void axes_have_titles_with_units(void **state) {
    (void)state;
    char *text = page_of("{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    assert_has(text, "<p class=\"ytitle\">loss (nats per token)</p>");
    assert_has(text, "<p class=\"ytitle\">tokens per second</p>");
    assert_has(text, "<p class=\"xtitle\">step</p>");
    free(text);
}

#define START(step) "{\"kind\":\"start\",\"step\":" #step ",\"machine\":\"a\"}\n"

static void starts_without_a_step_are_no_restarts(void **state) {
    (void)state;
    char *text = page_of(START(0) START(0) LINE(1, 3) LINE(2, 2) START(2) START(2) START(2));
    assert_lacks(text, "restart</span>");
    assert_lacks(text, "process 3 started");
    assert_has(text, "process 2, steps 1\xE2\x80\x93"
                     "2</p>");
    assert_has(text, "process 5, no step yet</p>");
    assert_has(text, "and 3 without a kept step");
    free(text);
    text = page_of(START(0) LINE(1, 3) LINE(2, 2) START(2) START(2) LINE(3, 2));
    assert_has(text, "</i>restart</span>");
    free(text);
}

static void settings_that_differ_from_defaults_come_first(void **state) {
    (void)state;
    write_text("run/config.yaml", "run: somewhere\nsteps: 30\nseed: 1\noptimizer: {lr: 0.5}\ndata: {train: \"<b>.txt\"}\n");
    write_text("run/run.json", "{\"identity\": {\"data.train.content\": \"7 <i>documents\", \"data.valid.content\": \"1 document\"}}");
    char *text = page_of(LINE(1, 3) "{\"kind\":\"evaluation\",\"step\":1,\"loss\":2,\"tokens\":4096}\n");
    assert_has(text, "<th scope=\"row\">optimizer.lr</th><td>0.5</td><td class=\"soft\">default: 0.001</td>");
    assert_has(text, "<th scope=\"row\">steps</th><td>30</td>");
    assert_lacks(text, "<th scope=\"row\">seed</th>");
    assert_lacks(text, "<th scope=\"row\">run</th>");
    assert_true(strstr(text, "optimizer.lr</th>") < strstr(text, "<summary>All settings: config.yaml</summary>"));
    assert_has(text, "<th scope=\"row\">training</th><td>&lt;b&gt;.txt</td><td class=\"soft\">7 &lt;i&gt;documents</td>");
    assert_has(text, "1 document; 4096 tokens in each evaluation");
    assert_lacks(text, "<b>.txt");
    free(text);
}

static void settings_of_another_version_are_shown_as_they_are(void **state) {
    (void)state;
    write_text("run/config.yaml", "stepz: 30\n");
    char *text = page_of(LINE(1, 3));
    assert_has(text, "unknown key &#39;stepz&#39; at config.yaml:1");
    assert_has(text, "<pre>stepz: 30\n</pre>");
    free(text);
}

/* -- Several runs -------------------------------------------------------------------------------------------------- */

static void put_run(const char *folder, const char *config, int steps, double loss, int tokens, int speed) {
    char *metrics = memory_format("%s/metrics.jsonl", folder), *yaml = memory_format("%s/config.yaml", folder);
    assert_int_equal(mkdir(folder, 0777), 0);
    write_text(yaml, config);
    FILE *file = fopen(metrics, "wb");
    assert_non_null(file);
    for (int step = 1; step <= steps; step++)
        fprintf(file, "{\"kind\":\"step\",\"step\":%d,\"loss\":%g,\"lr\":0.1,\"tokens_seen\":%d,\"tokens_per_second\":%d}\n", step, loss,
            step * tokens, speed);
    fprintf(file, "{\"kind\":\"evaluation\",\"step\":%d,\"loss\":%g}\n", steps, loss + 1);
    fclose(file);
    free(metrics);
    free(yaml);
}

static char *compared(const char *const *runs, int count) {
    Error error = {0};
    ReportResult result;
    if (!report_write(runs, count, "compare.html", &result, &error)) fail_msg("%s", error.message);
    return read_text("compare.html");
}

static void runs_are_compared_in_figures_settings_and_curves(void **state) {
    (void)state;
    put_run("a", "steps: 10\noptimizer: {lr: 0.1}\nseed: 7\n", 10, 2, 100, 1000);
    put_run("b", "steps: 10\noptimizer: {lr: 0.2}\nseed: 7\n", 10, 1.5, 100, 2500);
    char *text = compared((const char *[]){"a", "b"}, 2);
    assert_has(
        text, "<td><i class=\"key k-c0\"></i>1000 tok/s</td><td class=\"best\"><i class=\"key k-c1\"></i>2500 tok/s, 2.50\xC3\x97</td>");
    assert_has(text, "<i class=\"key k-c0\"></i>3.0000 at step 10</td><td class=\"best\"><i class=\"key k-c1\"></i>2.5000 at step 10</td>");
    assert_has(text, "<th scope=\"row\">optimizer.lr</th><td><i class=\"key k-c0\"></i>0.1</td><td><i class=\"key k-c1\"></i>0.2</td>");
    assert_lacks(text, "<th scope=\"row\">seed</th>");
    assert_has(text, "<path class=\"curve c0\" d=\"M");
    assert_has(text, "<path class=\"curve c1\" d=\"M");
    json_t *points = points_of(text), *one, *names = json_array(), *losses = json_array();
    size_t i;
    json_array_foreach(points, i, one) {
        json_array_append(names, json_object_get(one, "name"));
        json_array_append(losses, json_array_get(json_array_get(json_object_get(json_object_get(one, "series"), "loss"), 0), 9));
    }
    json_t *expected = json_pack("[s, s]", "a", "b"), *values = json_pack("[i, f]", 2, 1.5);
    assert_true(json_equal(names, expected) && json_equal(losses, values));
    json_decref(points), json_decref(names), json_decref(losses), json_decref(expected), json_decref(values);
    assert_has(text, "<p class=\"xtitle\">step</p>");
    free(text);
}

static void put_evaluation(const char *folder, double loss, int tokens, const char *content) {
    char *metrics = memory_format("%s/metrics.jsonl", folder), *record = memory_format("%s/run.json", folder);
    char *line = memory_format("{\"kind\":\"evaluation\",\"step\":10,\"loss\":%g,\"bits_per_byte\":2,\"tokens\":%d}\n", loss, tokens);
    char *identity = memory_format("{\"identity\": {\"data.valid.content\": \"%s\"}}", content);
    write_text(metrics, line);
    write_text(record, identity);
    free(metrics), free(record), free(line), free(identity);
}

static void losses_over_different_targets_have_no_best(void **state) {
    (void)state;
    static const struct {
        int tokens;
        const char *content;
        bool compare;
    } others[] = {{4096, "90 tokens, xxh3 1", true}, {4096, "90 tokens, xxh3 <2>", false}, {2048, "90 tokens, xxh3 1", false}};
    put_run("a", "steps: 10\n", 10, 2, 100, 1000);
    put_run("b", "steps: 10\n", 10, 2, 100, 1000);
    put_evaluation("a", 3, 4096, "90 tokens, xxh3 1");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        put_evaluation("b", 2.5, others[i].tokens, others[i].content);
        char *text = compared((const char *[]){"a", "b"}, 2);
        assert_has(text, "<th scope=\"row\">validation targets</th><td><i class=\"key k-c0\"></i>4096 of 90 tokens, xxh3 1</td>");
        (others[i].compare ? assert_has : assert_lacks)(text, "<td class=\"best\">");
        (others[i].compare ? assert_lacks : assert_has)(text, "Validation losses cover different targets");
        assert_lacks(text, "<2>");
        free(text);
    }
}

/* The change that a later start from the same checkpoint was without does not hold. */
static void a_page_tells_what_a_run_was_forked_from_and_what_was_changed(void **state) {
    (void)state;
    put_run("a", "steps: 10\n", 10, 2, 100, 1000);
    put_run("b", "steps: 10\n", 10, 2, 100, 1000);
    char *plain = compared((const char *[]){"a", "b"}, 2);
    assert_lacks(plain, "forked from");
    assert_lacks(plain, "changes of settings");
    write_text("b/run.json",
        "{\"identity\": {}, \"fork\": {\"run\": \"0\", \"folder\": \"/runs/<a>\", \"step\": 4}, \"history\": ["
        "{\"step\": 4, \"changes\": []}, {\"step\": 6, \"changes\": [\"clip: 1 -> 2\"]},"
        "{\"time\": \"2026-01-31\", \"step\": 6, \"changes\": [\"seed: 1 -> <2>\", \"lr: 3 -> 4\"]}, {\"step\": 8, \"changes\": [7]}]}");
    char *long_record = memory_format("{\"history\": [{\"step\": 6, \"changes\": [\"%0500d\"]}]}", 1);
    write_text("a/run.json", long_record);
    char *both = compared((const char *[]){"a", "b"}, 2), *one = compared((const char *[]){"b"}, 1);
    assert_has(both, "<th scope=\"row\">forked from</th><td><i class=\"key k-c0\"></i>none</td><td><i class=\"key k-c1\"></i>"
                     "/runs/&lt;a&gt; after step 4</td>");
    assert_has(both, "seed: 1 -&gt; &lt;2&gt; from step 7 on; lr: 3 -&gt; 4 from step 7 on");
    assert_has(one, "<p>forked from /runs/&lt;a&gt; after step 4</p>");
    assert_has(one, "from step 7 on</th><td>seed: 1 -&gt; &lt;2&gt;</td><td class=\"soft\">2026-01-31</td>");
    assert_lacks(both, "clip: 1");
    assert_lacks(both, "from step 9 on");
    assert_has(both, "000...</td>"); /* a cell that is full says so */
    free(long_record);
    assert_lacks(one, "clip: 1");
    free(plain);
    free(both);
    free(one);
}

static void runs_with_other_batches_are_compared_at_the_same_tokens(void **state) {
    (void)state;
    put_run("a", "steps: 10\n", 10, 2, 100, 1000);
    put_run("b", "steps: 10\n", 10, 2, 50, 1000);
    char *text = compared((const char *[]){"a", "b"}, 2);
    assert_has(text, "<p class=\"xtitle\">training tokens</p>");
    char *first = path_of(text, "curve c0"), *second = path_of(text, "curve c1");
    const char *first_end = strrchr(first, 'L'), *second_end = strrchr(second, 'L');
    assert_true(strtod(first_end + 1, NULL) == 1000 && strtod(second_end + 1, NULL) == 500);
    free(text);
    free(first);
    free(second);
}

static void names_and_settings_of_compared_runs_are_escaped(void **state) {
    (void)state;
    put_run("<img src=x onerror=alert(1)>", "data: {train: \"</td><script>alert(2)</script>\"}\n", 3, 2, 100, 1000);
    put_run("b&\"'", "data: {train: other}\n", 3, 2, 100, 1000);
    char *text = compared((const char *[]){"<img src=x onerror=alert(1)>", "b&\"'"}, 2);
    assert_lacks(text, "<img");
    assert_only_own_script(text);
    assert_has(text, "&lt;/td&gt;&lt;script&gt;");
    free(text);
}

static void runs_of_one_name_are_told_apart_by_their_folders(void **state) {
    (void)state;
    assert_int_equal(mkdir("x", 0777), 0);
    assert_int_equal(mkdir("y", 0777), 0);
    put_run("x/a", "steps: 10\n", 3, 2, 100, 1000);
    put_run("y/a", "steps: 10\n", 3, 2, 100, 1000);
    char *text = compared((const char *[]){"x/a", "y/a"}, 2);
    assert_has(text, "<i class=\"k-c0\"></i>x/a</label>");
    assert_has(text, "<i class=\"k-c1\"></i>y/a</label>");
    free(text);
}

/* -- The terminal -------------------------------------------------------------------------------------------------- */

/* The frame of these runs; the caller frees. */
static char *frame_of(const char *const *runs, int count, int columns, int rows, bool color) {
    Error error = {0};
    Report *report = report_open(runs, count, &error);
    if (!report) fail_msg("%s", error.message);
    report_update(report);
    char *text = terminal_frame(report, columns, rows, color);
    report_close(report);
    return text;
}

static int columns_of(const char *line, size_t length) {
    int columns = 0;
    for (size_t i = 0; i < length; i++) columns += ((unsigned char)line[i] & 0xC0) != 0x80;
    return columns;
}

static void a_frame_fits_any_terminal(void **state) {
    (void)state;
    put_run("a", "steps: 60\n", 50, 2, 100, 1000);
    put_run("b", "steps: 60\n", 50, 3, 100, 1000);
    for (int columns = 1; columns <= 200; columns += 13)
        for (int rows = 1; rows <= 60; rows += 7)
            for (int count = 1; count <= 2; count++) {
                char *text = frame_of((const char *[]){"a", "b"}, count, columns, rows, false);
                int lines = 1;
                for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
                    end = strchrnul(line, '\n');
                    lines += *end == '\n';
                    int wide = columns_of(line, (size_t)(end - line));
                    if (wide > columns) fail_msg("%d of %d columns: \"%.*s\"", wide, columns, (int)(end - line), line);
                }
                assert_int_equal(lines, rows);
                free(text);
            }
}

static void a_frame_has_the_curve_the_figures_and_the_events(void **state) {
    (void)state;
    put_run("a", "steps: 100\n", 50, 2, 100, 1000);
    append_text("a/metrics.jsonl", "{\"kind\":\"sample\",\"step\":50,\"prompt\":\"Once\",\"text\":\"upon\\na time\"}\n");
    char *text = frame_of((const char *[]){"a"}, 1, 80, 24, false);
    assert_has(text, " step 50      sample: upon\\na time");
    assert_has(text, "step 50 of 100");
    assert_has(text, "\xE2\xA0\x92\xE2\xA0\x92"); /* Braille */
    assert_has(text, "\xE2\x97\x8F");             /* the evaluation */
    assert_has(text, "2.0000, mean of 50 steps");
    assert_has(text, "1000 tok/s, median");
    assert_has(text, " step 50      validation loss 3.0000");
    assert_lacks(text, "\x1b");
    free(text);
    text = frame_of((const char *[]){"a"}, 1, 80, 24, true);
    assert_has(text, "\x1b[36m");
    free(text);
}

static void a_frame_holds_nothing_that_a_terminal_obeys(void **state) {
    (void)state;
    put_run("\x1b]0;x\x07\xc2\x9b"
            "31m\xe2\x80\xae\xff",
        "steps: 100\n", 50, 2, 100, 1000);
    char *text = frame_of((const char *[]){"\x1b]0;x\x07\xc2\x9b"
                                           "31m\xe2\x80\xae\xff"},
        1, 80, 24, false);
    assert_has(text, " ?]0;x??31m?\xEF\xBF\xBD\n");
    assert_lacks(text, "\x1b");
    free(text);
}

/* Bold is a difference that can be read, and of losses that mean the same. */
static void equal_numbers_and_other_losses_have_no_best(void **state) {
    (void)state;
    static const struct {
        const char *config;
        double loss;
        bool best, same;
    } others[] = {{"steps: 10\n", 1.5, true, true}, {"steps: 10\n", 2.00001, false, true},
        {"steps: 10\npreference: {loss: dpo}\n", 0.5, false, false}, {"steps: 10\nrl: {loss: grpo}\n", 0.5, false, false}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        put_run("a", "steps: 10\n", 10, 2, 100, 1000);
        put_run("b", others[i].config, 10, others[i].loss, 100, 1000);
        char *text = compared((const char *[]){"a", "b"}, 2), *row = strstr(text, ">training loss<"),
             *next = strstr(text, ">at the last common step<");
        assert_non_null(row);
        assert_non_null(next);
        char *end = strstr(next, "</tr>");
        *end = '\0';
        assert_int_equal(strstr(row, "class=\"best\"") != NULL, others[i].best);
        assert_int_equal(strstr(next, "class=\"best\"") != NULL, others[i].best);
        assert_int_equal(strstr(end + 1, "losses cannot be compared") == NULL, others[i].same);
        free(text);
        Error error = {0};
        assert_true(file_remove("a", &error) && file_remove("b", &error));
    }
}

/* -- The command ------------------------------------------------------------------------------------------------- */

/* Runs with stdout and stderr closed to the terminal; `output` gets both and is freed by the caller. */
static int run_command(char **output, int argc, char **argv) {
    fflush(stdout);
    fflush(stderr);
    int old[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    int file = open("output", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    close(file);
    int code = command_run(&command_report, argc, argv);
    fflush(stdout);
    fflush(stderr);
    dup2(old[0], STDOUT_FILENO);
    dup2(old[1], STDERR_FILENO);
    close(old[0]);
    close(old[1]);
    *output = read_text("output");
    return code;
}

static void the_command_writes_into_the_run_or_where_the_option_says(void **state) {
    (void)state;
    char *output;
    write_text("run/metrics.jsonl", "x\n{\"kind\":\"step\",\"step\":1,\"loss\":2}\n");
    assert_int_equal(run_command(&output, 2, (char *[]){"report", "run", NULL}), 0);
    assert_has(output, "wrote run/report.html (");
    assert_has(output, "warning: ignored 1 invalid line of run/metrics.jsonl");
    free(output);
    assert_int_equal(run_command(&output, 3, (char *[]){"report", "run", "out=other.html", NULL}), 0);
    free(output);
    char *first = read_text("run/report.html"), *second = read_text("other.html");
    assert_string_equal(first, second);
    free(first);
    free(second);
}

static void only_pages_and_empty_files_are_replaced(void **state) {
    (void)state;
    static const char *const kept[] = {"{\"kind\":\"step\",\"step\":1,\"loss\":2}\n", "<!doctype", "x<!doctype html>\n"};
    char *output;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        write_text("run/metrics.jsonl", kept[i]);
        assert_int_equal(run_command(&output, 3, (char *[]){"report", "run", "out=run/metrics.jsonl", NULL}), ERROR_USAGE);
        assert_has(output, "run/metrics.jsonl exists and is not a report page");
        free(output);
        output = read_text("run/metrics.jsonl");
        assert_string_equal(output, kept[i]);
        free(output);
    }
    static const char *const replaced[] = {"", "<!DOCTYPE HTML>\n<p>"};
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) {
        write_text("page.html", replaced[i]);
        free(page());
    }
}

static void wrong_arguments_are_usage_errors(void **state) {
    (void)state;
    char *output;
    const struct {
        int argc;
        char *argv[11];
        const char *message;
        ErrorCode code; /* ERROR_NONE: ERROR_USAGE */
    } cases[] = {
        {1, {"report"}, "Usage: smelt report RUN..."},
        {2, {"report", "elsewhere"}, "elsewhere/metrics.jsonl does not exist", ERROR_CHECKPOINT},
        {3, {"report", "run", "extra"}, "extra/metrics.jsonl does not exist", ERROR_CHECKPOINT},
        {10, {"report", "run", "run", "run", "run", "run", "run", "run", "run", "run"},
            "'run' is one argument too many: smelt report takes RUN..., 8 at most"},
        {3, {"report", "run", "color=1"}, "color"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(run_command(&output, cases[i].argc, (char **)cases[i].argv), cases[i].code ? cases[i].code : ERROR_USAGE);
        assert_has(output, cases[i].message);
        free(output);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(long_curves_are_thinned_and_lose_no_step_and_no_extreme),
        TEST(the_median_speed_of_short_runs_is_exact),
        TEST(the_median_of_long_runs_is_of_an_even_sample),
        TEST(marks_are_spread_evenly_and_the_last_and_best_are_kept),
        TEST(the_best_evaluation_is_one_over_the_newest_data),
        TEST(lines_that_are_no_records_are_counted_and_ignored),
        TEST(steps_that_come_again_are_ignored),
        TEST(the_scanner_of_steps_reads_what_jansson_reads),
        TEST(steps_of_a_range_are_read_again),
        TEST(a_torn_last_line_is_no_damage),
        TEST(a_line_above_the_limit_is_skipped),
        TEST(loads_are_merged_in_time_without_changing_their_sum),
        TEST(a_missing_run_is_refused_by_name),
        TEST(reading_goes_on_where_it_ended),
        TEST(a_file_that_was_changed_before_its_end_is_read_anew),
        TEST(only_parts_that_became_others_get_a_new_version),
        TEST(linear_ticks_are_round_and_inside),
        TEST(logarithmic_ticks_are_round_and_inside),
        TEST(degenerate_axes_can_be_drawn),
        TEST(numbers_are_short),
        TEST(the_page_loads_nothing_and_runs_its_script_alone),
        TEST(a_run_of_one_step_has_a_dot_and_its_numbers),
        TEST(samples_of_the_machine_have_charts_energy_and_cost),
        TEST(a_run_without_steps_says_so),
        TEST(validation_checkpoints_and_restarts_are_marked),
        TEST(removed_checkpoints_and_hours_of_all_ranks_are_told),
        TEST(curves_of_reinforcement_learning_are_shown_if_there_are_numbers),
        TEST(losses_that_are_not_finite_are_marked_and_never_drawn),
        TEST(a_straight_curve_stays_straight_when_smoothed),
        TEST(a_smoothed_curve_keeps_the_gap_of_a_broken_step),
        TEST(samples_of_evaluations_are_shown_newest_first),
        TEST(every_text_of_the_run_is_escaped),
        TEST(numbers_for_the_script_hold_texts_unchanged_and_escaped),
        TEST(what_is_not_utf8_becomes_a_replacement_character),
        TEST(ignored_lines_are_one_warning),
        TEST(each_layer_has_a_heat_map_with_the_colors_of_its_loads),
        TEST(maps_of_many_experts_have_fewer_columns),
        TEST(norms_of_layers_have_a_map_for_gradients_and_one_for_weights),
        TEST(norms_of_tensors_have_histograms),
        TEST(models_with_too_many_experts_get_a_note),
        TEST(the_same_run_gives_the_same_bytes),
        TEST(the_loss_axis_fits_the_late_curve_and_names_what_it_cuts),
        TEST(axes_have_titles_with_units),
        TEST(starts_without_a_step_are_no_restarts),
        TEST(settings_that_differ_from_defaults_come_first),
        TEST(settings_of_another_version_are_shown_as_they_are),
        TEST(runs_are_compared_in_figures_settings_and_curves),
        TEST(a_page_tells_what_a_run_was_forked_from_and_what_was_changed),
        TEST(losses_over_different_targets_have_no_best),
        TEST(equal_numbers_and_other_losses_have_no_best),
        TEST(runs_with_other_batches_are_compared_at_the_same_tokens),
        TEST(names_and_settings_of_compared_runs_are_escaped),
        TEST(runs_of_one_name_are_told_apart_by_their_folders),
        TEST(a_frame_fits_any_terminal),
        TEST(a_frame_has_the_curve_the_figures_and_the_events),
        TEST(a_frame_holds_nothing_that_a_terminal_obeys),
        TEST(the_command_writes_into_the_run_or_where_the_option_says),
        TEST(only_pages_and_empty_files_are_replaced),
        TEST(wrong_arguments_are_usage_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

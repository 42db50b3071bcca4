/* The page: its parts, and its file. A Report owns the views of its runs and the text of each part.
 * A part without content is empty. Called by `smelt report` and by watch.c. */
#include "report/report.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "report/page_files_internal.h"
#include "report/page_internal.h"

/* The Makefile gives it. */
#ifndef PAGE_SCRIPT_HASH
#define PAGE_SCRIPT_HASH ""
#endif

enum { MOST_PARTS = 24 };

struct Report {
    RunView views[REPORT_RUNS];
    int count, part_count;
    RunIndex index; /* of a folder; folder NULL: none */
    ReportPart parts[MOST_PARTS];
    int64_t version;
};

/* -- Parts --------------------------------------------------------------------------------------------------------- */

static void print_run_state(const Page *page) {
    const RunState *state = &page->views->state;
    char date[64];
    fprintf(page->out, "<p class=\"state s-%s\" role=\"status\"><b>", run_status_name(state->status));
    chart_escape(page->out, page->views->state_text);
    fputs("</b>", page->out);
    if (page_date(state->sign, date)) fprintf(page->out, " <span class=\"soft\">last sign %s</span>", date);
    fputs("</p>\n", page->out);
}

static void print_head(const Page *page) {
    fputs("<header>\n<h1>", page->out);
    if (page->count > 1) fprintf(page->out, "%d runs", page->count);
    else chart_escape(page->out, page->views->name);
    fputs("</h1>\n", page->out);
    if (page->count > 1) {
        page_run_names(page);
    } else {
        const RunStart *start = page_last_start(page->views->history);
        fputs("<p>", page->out);
        chart_escape(page->out, start ? start->machine : "unknown machine");
        fputs("</p>\n", page->out);
        SCOPED_FREE char *origin = view_origin(page->views);
        if (origin) fputs("<p>forked from ", page->out), chart_escape(page->out, origin), fputs("</p>\n", page->out);
    }
    fputs("</header>\n", page->out);
}

static void print_folder_head(const Page *page) {
    fputs("<header>\n<h1>Runs in ", page->out);
    SCOPED_FREE char *real = realpath(page->index->folder, NULL);
    chart_escape(page->out, real ? real : page->index->folder);
    fprintf(page->out,
        "</h1>\n<p>Choose up to %d runs to compare them. <button type=\"button\" id=\"compare\">Compare</button> <input type=\"search\" "
        "id=\"filter\" "
        "placeholder=\"filter\" aria-label=\"Show only runs that have this text\"></p>\n</header>\n",
        REPORT_RUNS);
}

static void print_foot(const Page *page) {
    int64_t records = 0;
    for (int i = 0; i < page->count; i++) records += page->views[i].history->lines - page->views[i].history->ignored;
    fprintf(page->out, "<footer>Written by smelt from %lld records.</footer>\n", (long long)records);
}

typedef struct PagePartKind {
    const char *id;
    void (*print)(const Page *page);
} PagePartKind;

static const PagePartKind of_one[] = {{"head", print_head}, {"state", print_run_state}, {"warnings", page_warnings},
    {"numbers", page_numbers}, {"points", page_points}, {"loss", page_loss_section}, {"curves", page_other_curves}, {"load", page_load},
    {"layers", page_layers}, {"samples", page_samples}, {"data", page_data}, {"settings", page_settings}, {"changes", page_changes},
    {"starts", page_starts}, {"log", page_log}, {"summary", page_summary}, {"foot", print_foot}};
static const PagePartKind of_folder[] = {{"head", print_folder_head}, {"runs", page_index}};
static const PagePartKind of_several[] = {{"head", print_head}, {"warnings", page_warnings}, {"numbers", page_figures},
    {"settings", page_differences}, {"points", page_points}, {"loss", page_loss_section}, {"curves", page_other_curves},
    {"foot", print_foot}};
static_assert(sizeof of_one / sizeof *of_one <= MOST_PARTS && sizeof of_several / sizeof *of_several <= MOST_PARTS, "room for parts");

Page report_page(const Report *report, FILE *out) {
    return (Page){.out = out, .views = report->views, .count = report->count, .index = report->index.folder ? &report->index : NULL};
}

/* The caller frees. */
static char *print_page_part(const Report *report, const PagePartKind *kind) {
    char *html = NULL;
    size_t length;
    FILE *out = open_memstream(&html, &length);
    if (!out) memory_refused(0);
    const Page page = report_page(report, out);
    kind->print(&page);
    fclose(out);
    return html;
}

static void print_parts(Report *report) {
    const PagePartKind *kinds = report->index.folder ? of_folder : report->count > 1 ? of_several : of_one;
    for (int i = 0; i < report->part_count; i++) {
        ReportPart *part = &report->parts[i];
        char *html = print_page_part(report, &kinds[i]);
        if (part->html && strcmp(part->html, html) == 0) {
            free(html);
            continue;
        }
        free(part->html);
        *part = (ReportPart){kinds[i].id, html, report->version};
    }
}

/* -- The report ---------------------------------------------------------------------------------------------------- */

static Report *report_new(void) {
    Report *report = memory_allocate(sizeof *report);
    report->version = (int64_t)time(NULL) << 20; /* room for a million updates per second */
    return report;
}

Report *report_open_folder(const char *folder) {
    Report *report = report_new();
    report->index.folder = memory_copy_string(folder);
    report->part_count = sizeof of_folder / sizeof *of_folder;
    return report;
}

const char *report_find_run(const Report *report, const char *name) {
    const IndexedRun *run = run_index_find(&report->index, name);
    return run ? run->folder : NULL;
}

/* Renames runs with equal names in different folders after their folders. */
static void tell_apart(Report *report) {
    bool same[REPORT_RUNS] = {false};
    for (int i = 0; i < report->count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(report->views[i].name, report->views[j].name) == 0) same[i] = same[j] = true;
    for (int i = 0; i < report->count; i++) {
        if (!same[i]) continue;
        free(report->views[i].name);
        report->views[i].name = memory_copy_string(report->views[i].folder);
    }
}

Report *report_open(const char *const *runs, int count, Error *error) {
    assert(count >= 1 && count <= REPORT_RUNS);
    Report *report = report_new();
    report->part_count = count > 1 ? sizeof of_several / sizeof *of_several : sizeof of_one / sizeof *of_one;
    for (int i = 0; i < count; i++)
        if (!view_open(&report->views[report->count++], runs[i], error)) {
            report_close(report);
            return NULL;
        }
    tell_apart(report);
    return report;
}

void report_close(Report *report) {
    if (!report) return;
    for (int i = 0; i < report->count; i++) view_free(&report->views[i]);
    for (int i = 0; i < report->part_count; i++) free(report->parts[i].html);
    run_index_free(&report->index);
    free(report);
}

bool report_update(Report *report) {
    bool changed = !report->parts[0].html;
    for (int i = 0; i < report->count; i++) changed = view_update(&report->views[i]) || changed;
    if (report->index.folder) run_index_update(&report->index);
    if (!changed && !report->index.folder) return false;
    report->version++;
    print_parts(report);
    return true;
}

const Error *report_trouble(const Report *report) {
    for (int i = 0; i < report->count; i++)
        if (report->views[i].trouble.code) return &report->views[i].trouble;
    return NULL;
}

bool report_run(const Report *report, int index, ExportedRun *run) {
    if (index < (int)report->index.count) {
        *run = (ExportedRun){report->index.runs[index].name, &report->index.runs[index].state};
        return true;
    }
    if (index >= report->count) return false;
    *run = (ExportedRun){report->views[index].name, &report->views[index].state};
    return true;
}

int64_t report_version(const Report *report) { return report->version; }

const ReportPart *report_parts(const Report *report, int *count) {
    *count = report->part_count;
    return report->parts;
}

void report_print_points(const Report *report, int64_t from, int64_t to, FILE *out) {
    SCOPED_FREE RunView *views = memory_allocate(REPORT_RUNS * sizeof *views);
    Page page = report_page(report, out);
    for (int i = 0; i < report->count; i++) {
        views[i] = report->views[i];
        History *part = history_range(views[i].history, from, to);
        if (part) views[i].history = part;
    }
    page.views = views;
    page_points(&page);
    for (int i = 0; i < report->count; i++)
        if (views[i].history != report->views[i].history) history_free(views[i].history);
}

void report_print(const Report *report, const char *head, const char *inner_script, FILE *out) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
        out);
    fprintf(out, "%s<title>", head);
    if (report->index.folder) chart_escape(out, report->index.folder);
    for (int i = 0; i < report->count; i++) {
        if (i > 0) fputs(", ", out);
        chart_escape(out, report->views[i].name);
    }
    fprintf(out, " - smelt</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", page_style);
    for (int i = 0; i < report->part_count; i++) fprintf(out, "<div id=\"%s\">\n%s</div>\n", report->parts[i].id, report->parts[i].html);
    fputs("</main>\n", out);
    if (*inner_script) fprintf(out, "<script>%s</script>\n", inner_script);
    fputs("</body>\n</html>\n", out);
}

/* -- The file ------------------------------------------------------------------------------------------------------ */

/* Returns whether writing the page would destroy nothing: the file is absent, empty or a page. */
static bool may_replace(const char *output) {
    char start[sizeof "<!doctype html>"];
    FileKind kind = file_kind(output, NULL);
    if (kind != FILE_REGULAR) return kind == FILE_ABSENT;
    int64_t length = file_read_start(output, start, sizeof start);
    return length == 0 || !strcasecmp(start, "<!doctype html>");
}

static bool write_page(const Report *report, const char *output, int64_t *bytes, Error *error) {
    SCOPED_FREE char *page = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&page, &length);
    if (!out) return file_fail(error, "build", output);
    report_print(report,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
        "'sha256-" PAGE_SCRIPT_HASH "'\">\n",
        page_script, out);
    bool whole = !ferror(out);
    if (fclose(out) != 0 || !whole) return file_fail(error, "build", output);
    *bytes = (int64_t)length;
    return file_write(output, page, *bytes, error);
}

bool report_write(const char *const *runs, int count, const char *output, ReportResult *result, Error *error) {
    if (!may_replace(output))
        return error_set(error, ERROR_USAGE, "%s exists and is not a report page: choose another file with out=", output);
    Report *report = report_open(runs, count, error);
    if (!report) return false;
    report_update(report);
    *result = (ReportResult){0};
    for (int i = 0; i < count; i++) result->ignored[i] = report->views[i].history->ignored;
    const Error *trouble = report_trouble(report);
    if (trouble) *error = *trouble;
    bool good = !trouble && write_page(report, output, &result->bytes, error);
    report_close(report);
    return good;
}

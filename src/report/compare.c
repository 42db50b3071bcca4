/* Tables of a page of several runs: their figures side by side, and the settings in which they
 * differ. Called by report.c. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/scope.h"
#include "base/strings.h"
#include "report/page_internal.h"

enum { CELL = PAGE_TEXT };

typedef enum Better { BETTER_NONE, BETTER_LOW, BETTER_HIGH } Better;

/* `print` writes a cell and returns the value that decides which run is best; NaN: unknown. `first`
 * is the first run. */
typedef struct Figure {
    const char *name;
    Better better;
    bool validation; /* compares only runs with the same targets */
    double (*print)(const RunView *view, const RunView *first, char text[CELL]);
} Figure;

/* -- Tables -------------------------------------------------------------------------------------------------------- */

/* Prints a row. On narrow screens the columns are stacked, so each cell has its run's color. */
static void print_cells(const Page *page, const char *name, char cells[][CELL], int best) {
    fputs("<tr><th scope=\"row\">", page->out);
    chart_escape(page->out, name);
    fputs("</th>", page->out);
    for (int i = 0; i < page->count; i++) {
        fprintf(page->out, "<td%s><i class=\"key k-c%d\"></i>", i == best ? " class=\"best\"" : "", i);
        chart_escape(page->out, cells[i]);
        fputs("</td>", page->out);
    }
    fputs("</tr>\n", page->out);
}

static void table_begin(const Page *page) {
    fputs("<table class=\"runs\">\n<thead><tr><td></td>", page->out);
    for (int i = 0; i < page->count; i++) {
        fprintf(page->out, "<th scope=\"col\"><i class=\"key k-c%d\"></i>", i);
        chart_escape(page->out, page->views[i].name);
        fputs("</th>", page->out);
    }
    fputs("</tr></thead>\n<tbody>\n", page->out);
}

static void table_end(const Page *page) { fputs("</tbody></table>\n", page->out); }

void page_run_names(const Page *page) {
    fputs("<div class=\"legend\">", page->out);
    for (int i = 0; i < page->count; i++) {
        fprintf(page->out, "<span><i class=\"k-c%d\"></i>", i);
        chart_escape(page->out, page->views[i].name);
        fputs("</span>", page->out);
    }
    fputs("</div>\n", page->out);
}

/* -- Figures ------------------------------------------------------------------------------------------------------- */

static double print_loss_mean(const RunView *view, const RunView *first, char text[CELL]) {
    int64_t steps;
    char loss[32];
    (void)first;
    double mean = history_recent_loss(view->history, &steps);
    page_loss(mean, loss);
    snprintf(text, CELL, isfinite(mean) ? "%s, mean of %lld step%s" : "unknown", loss, (long long)steps, plural(steps));
    return mean;
}

static double print_mark(const History *history, const Mark *mark, char text[CELL]) {
    char loss[32];
    bool known = history->evaluations.thin.seen > 0 && isfinite(mark->value);
    page_loss(mark->value, loss);
    snprintf(text, CELL, known ? "%s at step %lld" : "unknown", loss, (long long)mark->step);
    return known ? mark->value : NAN;
}

static double print_last_validation(const RunView *view, const RunView *first, char text[CELL]) {
    (void)first;
    return print_mark(view->history, &view->history->evaluations.last, text);
}

static double print_best_validation(const RunView *view, const RunView *first, char text[CELL]) {
    (void)first;
    return print_mark(view->history, &view->history->best, text);
}

static double print_bits(const RunView *view, const RunView *first, char text[CELL]) {
    const Marks *evaluations = &view->history->evaluations;
    char bits[32];
    (void)first;
    double value = evaluations->thin.seen > 0 ? evaluations->last.other : NAN;
    page_loss(value, bits);
    snprintf(text, CELL, "%s", isfinite(value) ? bits : "unknown");
    return value;
}

static const char *validation_data(const RunView *view) {
    return json_string_value(json_object_get(json_object_get(view->record, "identity"), "data.valid.content"));
}

/* Prints the number of targets of each evaluation, and their data. */
static double print_targets(const RunView *view, const RunView *first, char text[CELL]) {
    const char *data = validation_data(view);
    double targets = view->history->evaluated_tokens;
    (void)first;
    if (isfinite(targets)) snprintf(text, CELL, "%.0f%s%s", targets, data ? " of " : "", data ? data : "");
    else snprintf(text, CELL, "unknown");
    return NAN;
}

/* Returns whether the targets are equal, as far as both are known. */
static bool same_targets(const RunView *a, const RunView *b) {
    const char *data = validation_data(a), *other = validation_data(b);
    double difference = fabs(a->history->evaluated_tokens - b->history->evaluated_tokens);
    return !(difference > 0) && (!data || !other || strcmp(data, other) == 0);
}

static bool validations_compare(const Page *page) {
    for (int i = 0; i < page->count; i++)
        for (int j = 0; j < i; j++)
            if (!same_targets(&page->views[i], &page->views[j])) return false;
    return true;
}

static double print_steps(const RunView *view, const RunView *first, char text[CELL]) {
    (void)first;
    if (view_knows_settings(view))
        snprintf(text, CELL, "%lld of %lld", (long long)view->history->last_step, (long long)view->settings.steps);
    else snprintf(text, CELL, "%lld", (long long)view->history->last_step);
    return NAN;
}

static double print_state_of(const RunView *view, const RunView *first, char text[CELL]) {
    (void)first;
    snprintf(text, CELL, "%.*s", CELL - 1, view->told);
    return NAN;
}

static double print_run_tokens(const RunView *view, const RunView *first, char text[CELL]) {
    (void)first;
    chart_number(view->history->tokens > 0 ? view->history->tokens : NAN, 4, text);
    return NAN;
}

/* Prints the median speed, and its ratio to the first run's. */
static double print_speed(const RunView *view, const RunView *first, char text[CELL]) {
    char number[32];
    double speed = sample_median(&view->history->speed), ratio = speed / sample_median(&first->history->speed);
    chart_number(speed, 4, number);
    if (!isfinite(speed)) snprintf(text, CELL, "unknown");
    else if (view == first || !isfinite(ratio)) snprintf(text, CELL, "%s tok/s", number);
    else snprintf(text, CELL, "%s tok/s, %.2f\xC3\x97", number, ratio);
    return speed;
}

static double print_time(const RunView *view, const RunView *first, char text[CELL]) {
    (void)first;
    log_format_duration(view->history->step_seconds > 0 ? view->history->step_seconds : NAN, text);
    return NAN;
}

static double print_run_memory(const RunView *view, const RunView *first, char text[CELL]) {
    double bytes = view->history->memory_bytes;
    (void)first;
    log_format_bytes(bytes, text);
    if (!(bytes > 0)) snprintf(text, CELL, "unknown");
    return bytes > 0 ? bytes : NAN;
}

static double print_parameters(const RunView *view, const RunView *first, char text[CELL]) {
    const RunStart *start = page_last_start(view->history);
    (void)first;
    chart_number(start ? start->parameters : NAN, 4, text);
    return NAN;
}

static double print_machine(const RunView *view, const RunView *first, char text[CELL]) {
    const RunStart *start = page_last_start(view->history);
    (void)first;
    snprintf(text, CELL, "%s", start ? start->machine : "unknown");
    return NAN;
}

static double print_origin(const RunView *view, const RunView *first, char text[CELL]) {
    SCOPED_FREE char *origin = view_origin(view);
    (void)first;
    snprintf(text, CELL, "%s", origin ? origin : "");
    return NAN;
}

static double print_changes(const RunView *view, const RunView *first, char text[CELL]) {
    json_auto_t *changes = view_changes(view);
    size_t index, used = 0;
    json_t *one;
    (void)first;
    text[0] = '\0';
    json_array_foreach(changes, index, one) {
        const char *change = json_string_value(json_object_get(one, "change"));
        long long from = (long long)json_integer_value(json_object_get(one, "first"));
        if (used < CELL) used += (size_t)snprintf(text + used, CELL - used, "%s%s from step %lld on", used ? "; " : "", change, from);
    }
    if (used >= CELL) memcpy(text + CELL - 4, "...", 4);
    return NAN;
}

/* Returns whether a row has any text; its empty cells become "none". */
static bool fill_cells(const Page *page, char cells[][CELL]) {
    bool any = false;
    for (int i = 0; i < page->count; i++) any = any || *cells[i];
    for (int i = 0; i < page->count && any; i++)
        if (!*cells[i]) snprintf(cells[i], CELL, "none");
    return any;
}

static int best_of(const Page *page, const double *values, Better better) {
    int best = -1, known = 0;
    for (int i = 0; i < page->count; i++) {
        if (!isfinite(values[i])) continue;
        known++;
        if (best < 0 || (better == BETTER_LOW ? values[i] < values[best] : values[i] > values[best])) best = i;
    }
    return known > 1 && better != BETTER_NONE ? best : -1;
}

void page_figures(const Page *page) {
    static const Figure figures[] = {
        {"state", BETTER_NONE, false, print_state_of},
        {"training loss", BETTER_LOW, false, print_loss_mean},
        {"validation loss", BETTER_LOW, true, print_last_validation},
        {"best validation loss", BETTER_LOW, true, print_best_validation},
        {"bits per byte", BETTER_LOW, true, print_bits},
        {"validation targets", BETTER_NONE, false, print_targets},
        {"speed", BETTER_HIGH, false, print_speed},
        {"steps", BETTER_NONE, false, print_steps},
        {"tokens", BETTER_NONE, false, print_run_tokens},
        {"time in steps", BETTER_NONE, false, print_time},
        {"memory", BETTER_LOW, false, print_run_memory},
        {"parameters", BETTER_NONE, false, print_parameters},
        {"machine", BETTER_NONE, false, print_machine},
        {"forked from", BETTER_NONE, false, print_origin},
        {"changes of settings", BETTER_NONE, false, print_changes},
    };
    char cells[REPORT_RUNS][CELL];
    double values[REPORT_RUNS];
    const bool compare = validations_compare(page);
    fputs("<section>\n"
          "<div class=\"head\"><h2>Figures</h2><p class=\"soft\">speed relative to the first run; the best is bold</p></div>\n",
        page->out);
    table_begin(page);
    for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
        for (int i = 0; i < page->count; i++) values[i] = figures[f].print(&page->views[i], page->views, cells[i]);
        Better better = figures[f].validation && !compare ? BETTER_NONE : figures[f].better;
        if (fill_cells(page, cells)) print_cells(page, figures[f].name, cells, best_of(page, values, better));
    }
    table_end(page);
    if (!compare) fputs("<p class=\"soft\">Validation losses cover different targets, so they cannot be compared.</p>\n", page->out);
    fputs("</section>\n", page->out);
}

/* -- Settings ------------------------------------------------------------------------------------------------------ */

/* Returns whether the runs with known settings differ in this one. */
static bool setting_cells(const Page *page, const Option *option, char cells[][CELL]) {
    const char *first = NULL;
    bool differ = false;
    for (int i = 0; i < page->count; i++) {
        snprintf(cells[i], CELL, "unknown");
        if (!view_knows_settings(&page->views[i])) continue;
        options_format_value(option, &page->views[i].settings, cells[i], CELL);
        if (!first) first = cells[i];
        differ = differ || strcmp(first, cells[i]) != 0;
    }
    return differ;
}

void page_differences(const Page *page) {
    char cells[REPORT_RUNS][CELL];
    int64_t count = 0;
    fputs("<section>\n<div class=\"head\"><h2>Settings that differ</h2></div>\n", page->out);
    for (size_t row = 0; row < config_table.count; row++) {
        const Option *option = &config_table.rows[row];
        if (!page_tells_setting(option) || !setting_cells(page, option, cells)) continue;
        if (count++ == 0) table_begin(page);
        print_cells(page, option->name, cells, -1);
    }
    if (count > 0) table_end(page);
    else fputs("<p class=\"soft\">None does.</p>\n", page->out);
    for (int i = 0; i < page->count; i++) {
        const RunView *view = &page->views[i];
        if (view_knows_settings(view)) continue;
        fputs("<p class=\"soft\">", page->out);
        chart_escape(page->out, view->name);
        fputs(": ", page->out);
        chart_escape(page->out, view->config ? view->unreadable.message : "config.yaml is missing");
        fputs("</p>\n", page->out);
    }
    fputs("</section>\n", page->out);
}

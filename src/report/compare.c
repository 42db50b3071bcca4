/* Tables of a page of several runs: their figures side by side, and the settings in which they
 * differ. Called by report.c. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "model/model.h"
#include "base/scope.h"
#include "base/strings.h"
#include "report/page_internal.h"

enum { CELL = PAGE_TEXT };

typedef enum Better { BETTER_NONE, BETTER_LOW, BETTER_HIGH } Better;

/* What a figure is of: it is compared only among runs with one objective, and validation only over the same targets. */
typedef enum FigureOf { OF_RUN, OF_LOSS, OF_VALIDATION } FigureOf;

/* `print` writes a cell and returns the value that decides which run is best; NaN: unknown. `first`
 * is the first run. */
typedef struct Figure {
    const char *name;
    Better better;
    FigureOf of;
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
        fprintf(page->out, "<label data-shown=\"%d\"><i class=\"k-c%d\"></i>", i, i);
        chart_escape(page->out, page->views[i].name);
        fputs("</label>", page->out);
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

/* The newest step that all runs of the page have done; 0: none. */
static int64_t common_step(const Page *page) {
    int64_t step = INT64_MAX;
    for (int i = 0; i < page->count; i++)
        if (page->views[i].history->last_step < step) step = page->views[i].history->last_step;
    return step;
}

/* Prints the mean loss of the point of the curve that has this step. */
static double print_loss_at(const RunView *view, int64_t step, char text[CELL]) {
    const History *history = view->history;
    snprintf(text, CELL, "unknown");
    for (size_t i = 0; i < history->thin.count; i++) {
        const Point *point = &history->points[i];
        const double mean = span_mean(&point->series[SERIES_LOSS]);
        if (step < point->first || step > point->last || !isfinite(mean)) continue;
        char loss[32], steps[64];
        page_loss(mean, loss);
        page_steps(point->first, point->last, steps);
        snprintf(text, CELL, "%s, %s", loss, steps);
        return mean;
    }
    return NAN;
}

/* Returns whether the training losses of both runs are of one kind: of tokens, of pairs by one preference.loss, of samples by one rl.loss, of images. */
static bool same_objective(const RunView *a, const RunView *b) {
    const ModelConfig *one = &a->settings.model, *other = &b->settings.model;
    const PreferenceConfig *p = &one->preference, *q = &other->preference;
    if (!view_knows_settings(a) || !view_knows_settings(b)) return true;
    if (model_makes_images(one) != model_makes_images(other) || p->loss != q->loss || one->policy.loss != other->policy.loss) return false;
    return p->loss == PREFERENCE_NONE || !(fabs(p->beta - q->beta) > 0);
}

static bool losses_compare(const Page *page) {
    for (int i = 1; i < page->count; i++)
        if (!same_objective(page->views, &page->views[i])) return false;
    return true;
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
    snprintf(text, CELL, "%.*s", CELL - 1, view->state_text);
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

/* Returns whether the numbers that begin two cells read the same. */
static bool reads_same(const char *a, const char *b) {
    size_t length = strspn(a, "0123456789.eE+-");
    return length == strspn(b, "0123456789.eE+-") && !strncmp(a, b, length);
}

/* Returns the best run of a row; -1: none, also if another one reads the same after rounding. */
static int best_of(const Page *page, const double *values, char cells[][CELL], Better better) {
    int best = -1, known = 0;
    for (int i = 0; i < page->count; i++) {
        if (!isfinite(values[i])) continue;
        known++;
        if (best < 0 || (better == BETTER_LOW ? values[i] < values[best] : values[i] > values[best])) best = i;
    }
    for (int i = 0; i < page->count; i++)
        if (i != best && isfinite(values[i]) && reads_same(cells[i], cells[best])) return -1;
    return known > 1 && better != BETTER_NONE ? best : -1;
}

void page_figures(const Page *page) {
    static const Figure figures[] = {
        {"state", BETTER_NONE, OF_RUN, print_state_of},
        {"training loss", BETTER_LOW, OF_LOSS, print_loss_mean},
        {"validation loss", BETTER_LOW, OF_VALIDATION, print_last_validation},
        {"best validation loss", BETTER_LOW, OF_VALIDATION, print_best_validation},
        {"bits per byte", BETTER_LOW, OF_VALIDATION, print_bits},
        {"validation targets", BETTER_NONE, OF_RUN, print_targets},
        {"speed", BETTER_HIGH, OF_RUN, print_speed},
        {"steps", BETTER_NONE, OF_RUN, print_steps},
        {"tokens", BETTER_NONE, OF_RUN, print_run_tokens},
        {"time in steps", BETTER_NONE, OF_RUN, print_time},
        {"memory", BETTER_LOW, OF_RUN, print_run_memory},
        {"parameters", BETTER_NONE, OF_RUN, print_parameters},
        {"machine", BETTER_NONE, OF_RUN, print_machine},
        {"forked from", BETTER_NONE, OF_RUN, print_origin},
        {"changes of settings", BETTER_NONE, OF_RUN, print_changes},
    };
    char cells[REPORT_RUNS][CELL];
    double values[REPORT_RUNS];
    const bool same = losses_compare(page), compare = same && validations_compare(page);
    const int64_t step = common_step(page);
    fputs("<section>\n"
          "<div class=\"head\"><h2>Figures</h2><p class=\"soft\">speed relative to the first run; the best is bold</p></div>\n",
        page->out);
    table_begin(page);
    for (size_t f = 0; f < sizeof figures / sizeof *figures; f++) {
        for (int i = 0; i < page->count; i++) values[i] = figures[f].print(&page->views[i], page->views, cells[i]);
        bool comparable = figures[f].of == OF_VALIDATION ? compare : figures[f].of == OF_LOSS ? same : true;
        Better better = comparable ? figures[f].better : BETTER_NONE;
        if (fill_cells(page, cells)) print_cells(page, figures[f].name, cells, best_of(page, values, cells, better));
        if (figures[f].print == print_loss_mean && step > 0) {
            for (int i = 0; i < page->count; i++) values[i] = print_loss_at(&page->views[i], step, cells[i]);
            print_cells(page, "at the last common step", cells, best_of(page, values, cells, better));
        }
    }
    table_end(page);
    if (!same) fputs("<p class=\"soft\">The runs train different losses, so losses cannot be compared.</p>\n", page->out);
    else if (!compare) fputs("<p class=\"soft\">Validation losses cover different targets, so they cannot be compared.</p>\n", page->out);
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

/* -- A folder of runs ---------------------------------------------------------------------------------------------- */

static double number_of(const RunState *state, RunRecord record, const char *field) {
    const json_t *value = json_object_get(state->records[record], field);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void index_cell(const Page *page, const char *style, const char *text) {
    fprintf(page->out, "<td%s>", style);
    chart_escape(page->out, text);
    fputs("</td>", page->out);
}

/* A name in an address: all but letters, digits and a few signs are encoded. */
static void print_address_name(FILE *out, const char *name) {
    for (const unsigned char *c = (const unsigned char *)name; *c; c++) {
        bool plain = (*c >= '0' && *c <= '9') || ((*c | 32) >= 'a' && (*c | 32) <= 'z') || strchr("-_.~", *c);
        fprintf(out, plain ? "%c" : "%%%02X", *c);
    }
}

static void index_row(const Page *page, const IndexedRun *run) {
    char state_text[RUN_STATE_TEXT], text[64], date[64];
    run_state_describe(&run->state, log_unix_seconds(), state_text);
    fputs("<tr><th scope=\"row\"><label><input type=\"checkbox\" id=\"choose-", page->out);
    print_address_name(page->out, run->name);
    fputs("\" data-run=\"", page->out);
    print_address_name(page->out, run->name);
    fputs("\" aria-label=\"compare ", page->out);
    chart_escape(page->out, run->name);
    fputs("\"></label> <a href=\"?runs=", page->out);
    print_address_name(page->out, run->name);
    fputs("\">", page->out);
    chart_escape(page->out, run->name);
    fprintf(page->out, "</a></th><td class=\"state s-%s\"><b>", run_status_name(run->state.status));
    chart_escape(page->out, state_text);
    fputs("</b></td>", page->out);
    const struct {
        RunRecord record;
        const char *field;
        bool loss;
    } cells[] = {{RUN_RECORD_STEP, "loss", true}, {RUN_RECORD_EVALUATION, "loss", true}, {RUN_RECORD_STEP, "tokens_seen", false}};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        double value = number_of(&run->state, cells[i].record, cells[i].field);
        if (cells[i].loss) page_loss(value, text);
        else chart_number(value, 4, text);
        char style[64];
        snprintf(style, sizeof style, isfinite(value) ? " class=\"number\" data-value=\"%.17g\"" : " class=\"number\"", value);
        index_cell(page, style, isfinite(value) ? text : "");
    }
    index_cell(page, " class=\"soft\"", page_date(run->state.sign, date) ? date : "");
    fputs("</tr>\n", page->out);
}

void page_index(const Page *page) {
    static const char *const heads[] = {"run", "state", "loss", "validation", "tokens", "last sign"};
    const RunIndex *index = page->index;
    if (!index->count) {
        fputs("<section><p>There is no run in this folder yet.</p></section>\n", page->out);
        return;
    }
    fputs("<section>\n<table class=\"index\">\n<thead><tr>", page->out);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        fprintf(page->out, "<th scope=\"col\"><button type=\"button\" id=\"sort-%zu\" data-sort=\"%zu\">%s</button></th>", i, i, heads[i]);
    fputs("</tr></thead>\n<tbody>\n", page->out);
    for (size_t i = 0; i < index->count; i++) index_row(page, &index->runs[i]);
    fputs("</tbody></table>\n</section>\n", page->out);
}

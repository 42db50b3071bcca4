/* The numbers of the curves as JSON, from which page.js draws. They stand in a <template>, as escaped text: a browser neither shows nor runs it.
 * Called by report.c. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "report/page_internal.h"

static void print_point_number(FILE *out, double value, int digits) {
    if (isfinite(value)) fprintf(out, "%.*g", digits, value);
    else fputs("null", out);
}

/* Prints a JSON string. chart_escape replaces other control characters and invalid UTF-8. */
static void print_point_string(FILE *out, const char *text) {
    SCOPED_FREE char *string = memory_allocate(2 * strlen(text) + 1);
    char *to = string;
    for (; *text; text++) {
        if (strchr("\"\\\n\t", *text)) *to++ = '\\';
        *to++ = *text == '\n' ? 'n' : *text == '\t' ? 't' : *text;
    }
    *to = '\0';
    putc('"', out);
    chart_escape(out, string);
    putc('"', out);
}

typedef double PointValue(const Point *point, StepField series);

static double point_step(const Point *point, StepField series) { return (void)series, (double)point->last; }
static double point_tokens(const Point *point, StepField series) { return (void)series, point->tokens; }
static double point_time(const Point *point, StepField series) { return (void)series, round(point->time); }
static double point_mean(const Point *point, StepField series) { return span_mean(&point->series[series]); }
static double point_low(const Point *point, StepField series) { return point->series[series].count ? point->series[series].low : NAN; }
static double point_high(const Point *point, StepField series) { return point->series[series].count ? point->series[series].high : NAN; }

typedef struct RunPoints {
    FILE *out;
    size_t count;
    Point items[HISTORY_POINTS];
} RunPoints;

static void print_column(const RunPoints *points, PointValue *value, StepField series, int digits) {
    putc('[', points->out);
    for (size_t i = 0; i < points->count; i++) {
        if (i > 0) putc(',', points->out);
        print_point_number(points->out, value(&points->items[i], series), digits);
    }
    putc(']', points->out);
}

/* Prints "loss":[means, lows, highs]. Leaves out lows and highs if each point is a single step, for the learning rate (its range is
 * narrow), and for the machine. A page of several runs has no series of machines. */
static void print_series(const RunPoints *points, bool ranges, bool several) {
    const char *comma = "";
    for (StepField series = 0; series < (several ? SERIES_MACHINE : SERIES_COUNT); series++) {
        bool known = false;
        for (size_t i = 0; i < points->count; i++) known = known || points->items[i].series[series].count;
        if (!known) continue;
        fprintf(points->out, "%s\"%s\":[", comma, step_fields[series]);
        print_column(points, point_mean, series, series < SERIES_MACHINE ? 5 : 3);
        if (ranges && series != SERIES_LR && series < SERIES_MACHINE) {
            putc(',', points->out), print_column(points, point_low, series, 4);
            putc(',', points->out), print_column(points, point_high, series, 4);
        }
        putc(']', points->out);
        comma = ",";
    }
}

/* Prints every `stride`-th evaluation, and the last one. */
static void print_evaluations(FILE *out, const Marks *marks, size_t stride) {
    for (size_t i = 0; i < marks->thin.count + stride && marks->thin.seen > 0; i += stride) {
        const Mark *mark = i < marks->thin.count ? &marks->items[i] : &marks->last;
        if (i >= marks->thin.count && mark->step == marks->items[i - stride].step) continue;
        fprintf(out, "%s[%lld,", i > 0 ? "," : "", (long long)mark->step);
        print_point_number(out, mark->value, 6);
        putc(',', out);
        print_point_number(out, mark->other, 6);
        putc(']', out);
    }
}

static void print_events(FILE *out, const RunView *view) {
    SCOPED(page_events_free) PageEvents events = page_events(view);
    for (size_t i = 0; i < events.count; i++) {
        const PageEvent *event = &events.items[i];
        fprintf(out, "%s[%lld,\"%s\",%g,%g,", i > 0 ? "," : "", (long long)event->step, event->style, event->from, event->to);
        print_point_string(out, event->text);
        putc(']', out);
    }
}

/* Prints one run: its points, then what happened at single steps. */
static void print_run(const Page *page, const RunView *view, RunPoints *points) {
    enum { DIGITS = 15 };
    points->count = history_thinned(view->history, HISTORY_POINTS / (size_t)page->count, points->items);
    for (size_t i = 0; i < points->count; i++) points->items[i].time -= view->history->first_time; /* page.js needs hours alone */
    const bool merged = (int64_t)points->count < view->history->steps;
    fputs("{\"name\":", page->out);
    print_point_string(page->out, view->name);
    fprintf(page->out, ",\"first\":%lld,\"step\":", (long long)view->history->first_step);
    print_column(points, point_step, 0, DIGITS);
    fputs(",\"tokens\":", page->out);
    print_column(points, point_tokens, 0, DIGITS);
    fputs(",\"time\":", page->out);
    print_column(points, point_time, 0, DIGITS);
    fputs(",\"series\":{", page->out);
    print_series(points, merged && page->count == 1, page->count > 1);
    fputs("},\"evaluations\":[", page->out);
    print_evaluations(page->out, &view->history->evaluations, (size_t)page->count);
    fputs("],\"events\":[", page->out);
    print_events(page->out, view);
    fputs("]}", page->out);
}

void page_points(const Page *page) {
    SCOPED_FREE RunPoints *points = memory_allocate(sizeof *points);
    points->out = page->out;
    fputs("<template>[", page->out);
    for (int i = 0; i < page->count; i++) {
        if (i > 0) putc(',', page->out);
        print_run(page, &page->views[i], points);
    }
    fputs("]</template>\n", page->out);
}

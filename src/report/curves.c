/* Curves of one run with its events, or overlaid curves of several runs. Called by report.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "report/page_internal.h"

enum { TICKS_X = 8, TICKS_Y = 8, SMOOTHED_FROM = 30 /* points; fewer points need no smoothing */ };

const Curve curve_loss = {SERIES_LOSS, "Loss", "loss (nats per token)", 4, false, true, true};

/* -- Lines --------------------------------------------------------------------------------------------------------- */

/* Local linear regression with Gaussian weights (Fan and Gijbels, "Local Polynomial Modelling and
 * Its Applications", 1996). Unlike a moving mean it follows slopes up to both ends. Uses only
 * finite values; a point without a value gets none. */
static void smooth(const double *values, double *smoothed, size_t count, double width) {
    const int64_t reach = (int64_t)ceil(3 * width);
    for (int64_t i = 0; i < (int64_t)count; i++) {
        double moments[3] = {0}, sums[2] = {0}; /* of weight * distance^k, and of the same times the value */
        for (int64_t j = i > reach ? i - reach : 0; j <= i + reach && j < (int64_t)count; j++) {
            if (!isfinite(values[j])) continue;
            double distance = (double)(j - i), weight = exp(-0.5 * distance * distance / (width * width));
            moments[0] += weight;
            moments[1] += weight * distance;
            moments[2] += weight * distance * distance;
            sums[0] += weight * values[j];
            sums[1] += weight * distance * values[j];
        }
        double determinant = moments[0] * moments[2] - moments[1] * moments[1];
        bool line = determinant > 1e-9 * moments[0] * moments[0];
        double fit = line ? (moments[2] * sums[0] - moments[1] * sums[1]) / determinant : sums[0] / moments[0];
        smoothed[i] = isfinite(values[i]) ? fit : NAN;
    }
}

static double point_x(const Plot *plot, const Point *point) {
    return plot->tokens ? point->tokens : 0.5 * ((double)point->first + (double)point->last);
}

static void line_make(const Plot *plot, const History *history, Line *line) {
    enum { SMOOTHED_PARTS = 100 };
    Point points[LINE_POINTS];
    line->count = history_thinned(history, plot->page->count > 1 ? LINE_POINTS / 2 : LINE_POINTS, points);
    line->merged = (int64_t)line->count < history->steps;
    line->smoothed = plot->curve->smoothed && line->count >= SMOOTHED_FROM;
    for (size_t i = 0; i < line->count; i++) {
        const StepSpan *span = &points[i].series[plot->curve->series];
        double x = point_x(plot, &points[i]);
        line->first[i] = points[i].first;
        bool known = span->count > 0 && isfinite(x);
        line->x[i] = isfinite(x) ? x : 0;
        line->means[i] = known ? span_mean(span) : NAN;
        line->lows[i] = known ? span->low : NAN;
        line->highs[i] = known ? span->high : NAN;
    }
    if (line->smoothed) smooth(line->means, line->soft, line->count, fmax(1, (double)line->count / SMOOTHED_PARTS));
    else memcpy(line->soft, line->means, sizeof line->soft);
}

double plot_x(const Plot *plot, const History *history, int64_t step) {
    if (!plot->tokens) return (double)step;
    size_t i = 0;
    while (i + 1 < history->thin.count && history->points[i].last < step) i++;
    return history->points[i].tokens;
}

/* -- Axes ---------------------------------------------------------------------------------------------------------- */

typedef struct ValueRange { double low, high; } ValueRange;

static void range_grow(ValueRange *range, double value) {
    if (!isfinite(value)) return;
    range->low = fmin(range->low, value);
    range->high = fmax(range->high, value);
}

/* Extends the ranges for the y axis. A training loss first falls from far above. The axis covers
 * the whole curve only if that leaves most of the height for the rest. Smoothing removes late
 * single peaks. */
static void add_ranges(const Plot *plot, const History *history, const Line *line, ValueRange *whole, ValueRange *late) {
    const size_t early = plot->curve->fitted && line->smoothed ? line->count / 5 : 0;
    for (size_t i = 0; i < line->count; i++) {
        range_grow(whole, line->lows[i]);
        range_grow(whole, line->highs[i]);
        if (i >= early) range_grow(late, early > 0 ? line->soft[i] : line->highs[i]);
    }
    for (size_t i = 0; plot->curve->series == SERIES_LOSS && i < history->evaluations.thin.count; i++) {
        const Mark *mark = &history->evaluations.items[i];
        range_grow(whole, mark->value);
        if (early == 0 || mark->step >= line->first[early]) range_grow(late, mark->value);
    }
}

static Axis y_axis(Plot *plot) {
    const Curve *curve = plot->curve;
    const double most = 1.5; /* times the height of the late part */
    ValueRange whole = {INFINITY, -INFINITY}, late = whole;
    for (int i = 0; i < plot->page->count; i++) add_ranges(plot, plot->page->views[i].history, &plot->lines[i], &whole, &late);
    bool cut = whole.high - whole.low > most * (late.high - whole.low);
    double low = curve->from_zero && whole.low > 0 ? 0 : whole.low, high = cut ? late.high : whole.high;
    plot->cut = cut ? whole.high : NAN;
    return axis_padded(low, high, curve->log_above > 0 && low > 0 && high > curve->log_above * low, TICKS_Y);
}

/* Makes the x axis. Steps and tokens are integers. */
static Axis x_axis(const Plot *plot) {
    ValueRange range = {INFINITY, -INFINITY};
    bool from_zero = false;
    for (int i = 0; i < plot->page->count; i++) {
        const History *history = plot->page->views[i].history;
        if (history->steps == 0) continue;
        from_zero = from_zero || history->first_step == 1;
        int64_t last = history->last_step > history->evaluations.last.step ? history->last_step : history->evaluations.last.step;
        range_grow(&range, plot_x(plot, history, history->first_step));
        range_grow(&range, plot_x(plot, history, last));
    }
    double air = range.low == range.high ? 1 : 0;
    Axis axis = axis_make(from_zero ? 0 : range.low - air, range.high + air, false, TICKS_X);
    int whole = 0;
    for (int i = 0; i < axis.count; i++)
        if (axis.ticks[i] == round(axis.ticks[i])) axis.ticks[whole++] = axis.ticks[i];
    axis.count = whole;
    return axis;
}

static double tokens_per_step(const History *history) { return history->steps > 0 ? history->tokens / (double)history->last_step : NAN; }

/* Returns whether x counts tokens: runs with different tokens per step are compared at equal
 * tokens. */
static bool counts_tokens(const Page *page) {
    double first = tokens_per_step(page->views[0].history);
    bool differ = false;
    for (int i = 0; i < page->count; i++) {
        double tokens = tokens_per_step(page->views[i].history);
        if (!(tokens > 0)) return false;
        differ = differ || fabs(tokens / first - 1) > 1e-2;
    }
    return differ;
}

void plot_free(Plot *plot) { free(plot->lines); }

Plot plot_make(const Page *page, const Curve *curve) {
    Plot plot = {.page = page, .curve = curve, .tokens = counts_tokens(page)};
    plot.lines = memory_allocate((size_t)page->count * sizeof *plot.lines);
    for (int i = 0; i < page->count; i++) line_make(&plot, page->views[i].history, &plot.lines[i]);
    plot.chart = (Chart){
        page->out, x_axis(&plot), y_axis(&plot), plot.tokens ? "training tokens" : "step", curve->title, step_fields[curve->series]};
    return plot;
}

/* -- Marks --------------------------------------------------------------------------------------------------------- */

static void draw_events(const Plot *plot) {
    SCOPED(page_events_free) PageEvents events = page_events(plot->page->views);
    for (size_t i = 0; i < events.count; i++) {
        const PageEvent *event = &events.items[i];
        chart_stroke(
            &plot->chart, event->style, plot_x(plot, plot->page->views->history, event->step), event->from, event->to, event->text);
    }
}

/* `run` is "" or the run's name and a colon. The best evaluation is hollow. */
static void draw_evaluation(const Plot *plot, const History *history, const char *style, const char *run, const Mark *mark) {
    char title[PAGE_TEXT], loss[32], bits[32];
    const Chart *chart = &plot->chart;
    double x = plot_x(plot, history, mark->step);
    if (!isfinite(mark->value) || !isfinite(x) || mark->value > chart->y.high) return;
    page_loss(mark->value, loss);
    page_loss(mark->other, bits);
    bool best = mark->step == history->best.step && mark->value <= history->best.value;
    snprintf(title, sizeof title, "%sstep %lld: validation loss %s%s%s%s", run, (long long)mark->step, loss,
        isfinite(mark->other) ? ", bits per byte " : "", isfinite(mark->other) ? bits : "", best ? ", the best" : "");
    chart_dot(chart, "ring", x, mark->value, title);
    chart_dot(chart, style, x, mark->value, title);
    if (best) chart_dot(chart, "best", x, mark->value, title);
}

static void draw_evaluations(const Plot *plot, const History *history, const char *style, const char *run) {
    const Marks *marks = &history->evaluations;
    double x[HISTORY_MARKS] = {0}, y[HISTORY_MARKS] = {0};
    for (size_t i = 0; i < marks->thin.count; i++) {
        x[i] = plot_x(plot, history, marks->items[i].step);
        y[i] = isfinite(x[i]) ? marks->items[i].value : NAN;
    }
    chart_clip_begin(&plot->chart);
    chart_curve(&plot->chart, style, x, y, marks->thin.count);
    chart_clip_end(&plot->chart);
    enum { DOTS = 64 }; /* of all runs; more would hide the curves */
    size_t stride = marks->thin.count * (size_t)plot->page->count / DOTS + 1;
    for (size_t i = 0; i < marks->thin.count; i += stride) draw_evaluation(plot, history, style, run, &marks->items[i]);
    if (marks->thin.seen > 0) draw_evaluation(plot, history, style, run, &marks->last);
    draw_evaluation(plot, history, style, run, &history->best);
}

/* -- Curves -------------------------------------------------------------------------------------------------------- */

static void draw_one(const Plot *plot) {
    const Line *line = plot->lines;
    const Chart *chart = &plot->chart;
    chart_clip_begin(chart);
    if (line->merged) chart_band(chart, "band", line->x, line->lows, line->highs, line->count);
    chart_curve(chart, line->smoothed ? "raw" : "train", line->x, line->means, line->count);
    if (line->smoothed) chart_curve(chart, "train", line->x, line->soft, line->count);
    chart_clip_end(chart);
}

static void draw_several(const Plot *plot) {
    chart_clip_begin(&plot->chart);
    for (int i = 0; i < plot->page->count; i++) {
        char style[16];
        snprintf(style, sizeof style, "c%d", i);
        chart_curve(&plot->chart, style, plot->lines[i].x, plot->lines[i].soft, plot->lines[i].count);
    }
    chart_clip_end(&plot->chart);
}

/* -- Sections ------------------------------------------------------------------------------------------------------ */

static void legend_item(FILE *out, bool shown, const char *color, const char *shape, const char *name, int64_t count) {
    char number[32] = "";
    if (!shown) return;
    if (count > 1) snprintf(number, sizeof number, "%lld ", (long long)count);
    fprintf(out, "<span><i class=\"%s %s\"></i>%s%s%s</span>", color, shape, number, name, count > 1 ? "s" : "");
}

static void section_head(const Plot *plot, const char *name) {
    FILE *out = plot->page->out;
    fprintf(out, "<section>\n<div class=\"head\"><h2>%s%s</h2>", name, plot->chart.y.logarithmic ? " <small>log scale</small>" : "");
}

static void note_cut(const Plot *plot) {
    char value[32];
    chart_number(plot->cut, 4, value);
    if (isfinite(plot->cut)) fprintf(plot->page->out, "<p class=\"soft cut\">begins at up to %s, above this axis</p>", value);
}

static void loss_legend(const Plot *plot) {
    FILE *out = plot->page->out;
    const History *history = plot->page->views->history;
    const bool smoothed = plot->lines->smoothed;
    fputs("<div class=\"legend\">", out);
    legend_item(out, smoothed, "k-train", "", "training, smoothed", 0);
    legend_item(out, true, smoothed ? "k-raw" : "k-train", "", smoothed ? "each step" : "training", 0);
    legend_item(out, history->evaluations.thin.seen > 0, "k-valid", "round", "validation (the best is hollow)", 0);
    legend_item(out, history->checkpoints.thin.seen > 0, "k-check", "tall", "checkpoint", history->checkpoints.thin.seen);
    legend_item(out, history->skipped.thin.seen + history->broken.thin.seen > 0, "k-bad", "tall", "skipped or not finite", 0);
    legend_item(out, history->restarts > 0, "k-start", "dashed", "restart", history->restarts);
    legend_item(out, json_array_size(history->phases) > 1, "k-phase", "tall", "phase", (int64_t)json_array_size(history->phases));
    fputs("</div>", out);
}

static bool has_steps(const Page *page) {
    int64_t steps = 0;
    for (int i = 0; i < page->count; i++) steps += page->views[i].history->steps;
    return steps > 0;
}

static void loss_of_one(const Plot *plot) {
    const History *history = plot->page->views->history;
    section_head(plot, "Loss");
    note_cut(plot);
    loss_legend(plot);
    fputs("</div>\n", plot->page->out);
    chart_begin(&plot->chart, "Training and validation loss over steps", "tall");
    draw_one(plot);
    draw_events(plot);
    draw_evaluations(plot, history, "valid", "");
    chart_end(&plot->chart);
    fputs("</section>\n", plot->page->out);
}

static bool has_evaluations(const Page *page) {
    int64_t seen = 0;
    for (int i = 0; i < page->count; i++) seen += page->views[i].history->evaluations.thin.seen;
    return seen > 0;
}

static void losses_of_several(const Plot *plot) {
    const Page *page = plot->page;
    section_head(plot, "Training loss");
    note_cut(plot);
    fputs("</div>\n", page->out);
    chart_begin(&plot->chart, "Training loss of each run, smoothed", "tall");
    draw_several(plot);
    chart_end(&plot->chart);
    fputs("</section>\n", page->out);
    if (!has_evaluations(page)) return;
    section_head(plot, "Validation loss");
    fputs("</div>\n", page->out);
    Chart chart = plot->chart;
    chart.series = "evaluations";
    chart_begin(&chart, "Validation loss of each run", "tall");
    for (int i = 0; i < page->count; i++) {
        char style[16], name[64];
        snprintf(style, sizeof style, "c%d", i);
        snprintf(name, sizeof name, "%.40s: ", page->views[i].name);
        draw_evaluations(plot, page->views[i].history, style, name);
    }
    chart_end(&plot->chart);
    fputs("</section>\n", page->out);
}

void page_loss_section(const Page *page) {
    if (!has_steps(page)) {
        fputs("<section><h2>No steps yet</h2><p class=\"soft\">Curves appear after the first training step.</p></section>\n", page->out);
        return;
    }
    SCOPED(plot_free) Plot plot = plot_make(page, &curve_loss);
    if (page->count == 1) loss_of_one(&plot);
    else losses_of_several(&plot);
}

static void curve_section(const Page *page, const Curve *curve) {
    SCOPED(plot_free) Plot plot = plot_make(page, curve);
    section_head(&plot, curve->name);
    fputs("</div>\n", page->out);
    chart_begin(&plot.chart, curve->name, "low");
    if (page->count == 1) {
        draw_one(&plot);
    } else {
        draw_several(&plot);
    }
    chart_end(&plot.chart);
    fputs("</section>\n", page->out);
}

static bool has_series(const Page *page, StepField series) {
    bool any = false;
    for (int i = 0; i < page->count; i++) {
        const History *history = page->views[i].history;
        for (size_t p = 0; p < history->thin.count; p++) any = any || history->points[p].series[series].count > 0;
    }
    return any;
}

/* Each of these is shown if a run has its numbers: of preference pairs, and of reinforcement learning. */
static void reward_sections(const Page *page) {
    static const Curve curves[] = {
        {SERIES_MARGIN, "Margin of rewards", "reward of chosen less rejected answers", 0, false, false, true},
        {SERIES_ACCURACY, "Accuracy of rewards", "share of pairs with the higher reward for the chosen answer", 0, true, false, true},
        {SERIES_REWARD, "Reward", "mean reward of samples", 0, false, false, true},
        {SERIES_LENGTH, "Length of samples", "tokens per sample", 0, true, false, true},
        {SERIES_ENTROPY, "Entropy", "nats per drawn token", 0, true, false, true},
        {SERIES_MISMATCH, "Mismatch", "divergence of generation from training", 0, true, false, true},
    };
    fputs("<div class=\"pair\">\n", page->out);
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        if (has_series(page, curves[i].series)) curve_section(page, &curves[i]);
    fputs("</div>\n", page->out);
}

/* The page shows each of these charts if the run has samples of its machine. */
static void machine_sections(const Page *page) {
    static const Curve curves[] = {
        {SERIES_GPU, "GPUs", "percent of the time with kernels, mean of the GPUs", 0, true, false, false},
        {SERIES_WATTS, "Power", "watts of all GPUs", 0, true, false, false},
        {SERIES_CELSIUS, "Temperature",
            "\xC2\xB0"
            "C of the hottest GPU",
            0, false, false, false},
        {SERIES_CPU, "Processors", "percent of all processors", 0, true, false, false},
        {SERIES_MACHINE_MEMORY, "Memory of the machine", "GiB in use", 0, true, false, false},
        {SERIES_DISK, "Disks", "MB read and written per second", 0, true, false, false},
        {SERIES_NETWORK, "Networks", "MB received and sent per second", 0, true, false, false},
    };
    fputs("<div class=\"pair\">\n", page->out);
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        if (has_series(page, curves[i].series)) curve_section(page, &curves[i]);
    fputs("</div>\n", page->out);
}

void page_other_curves(const Page *page) {
    static const Curve rate = {SERIES_LR, "Learning rate", "learning rate", 0, true, false, false};
    static const Curve norm = {SERIES_NORM, "Gradient norm", "L2 norm before clipping", 20, false, false, true};
    static const Curve speed = {SERIES_SPEED, "Speed", "tokens per second", 0, true, false, true};
    if (!has_steps(page)) return;
    reward_sections(page);
    fputs("<div class=\"pair\">\n", page->out);
    curve_section(page, &rate);
    curve_section(page, &norm);
    fputs("</div>\n", page->out);
    curve_section(page, &speed);
    if (page->count == 1) machine_sections(page);
}

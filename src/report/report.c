/* The report page. report_write reads a run into a History (bounded memory), prints the page into a memory stream
 * and replaces the file at once. Every text that comes from the run is escaped, and the page forbids itself scripts
 * and network. Sections that have nothing to show are left out. Called by `smelt report`. */
#include "report/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "report/chart.h"
#include "report/history_internal.h"
#include "report/report_style_internal.h"

enum { TICKS_X = 8, TICKS_Y = 6, STRIPES = 160, TEXT = 400 };

typedef struct Page {
    FILE *out;
    const History *history;
    Axis steps;
    double x[HISTORY_POINTS]; /* the middle of each point's steps */
} Page;

static const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

static void format_loss(double value, char text[32]) {
    if (fabs(value) < 1e6) snprintf(text, 32, "%.4f", value);
    else if (isfinite(value)) snprintf(text, 32, "%.3e", value);
    else snprintf(text, 32, "not finite");
}

static void format_steps(int64_t first, int64_t last, char text[64]) {
    if (first == last) snprintf(text, 64, "step %lld", (long long)first);
    else snprintf(text, 64, "steps %lld\xE2\x80\x93%lld", (long long)first, (long long)last);
}

/* -- Headline numbers -------------------------------------------------------------------------------------------- */

/* An item without a value says what is missing in its note. */
static void number_item(const Page *page, const char *name, const char *value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void number_item(const Page *page, const char *name, const char *value, const char *format, ...) {
    char note[TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(note, sizeof note, format, arguments);
    va_end(arguments);
    fprintf(page->out, "<div><dt>%s</dt><dd class=\"value%s\">%s</dd><dd class=\"note\">%s</dd></div>\n", name, value ? "" : " none",
        value ? value : "unknown", note);
}

static void loss_items(const Page *page) {
    const History *history = page->history;
    const Marks *evaluations = &history->evaluations;
    const Mark *last = &evaluations->last;
    char value[32], other[32];
    int64_t steps;
    format_loss(history->last_loss, value);
    format_loss(history_recent_loss(history, &steps), other);
    if (history->losses > 1) number_item(page, "Training loss", value, "last %lld steps: %s", (long long)steps, other);
    else number_item(page, "Training loss", history->losses ? value : NULL, "%s", history->losses ? "one step" : "no finite loss");
    if (evaluations->thin.seen == 0) {
        number_item(page, "Validation loss", NULL, "not evaluated yet");
        number_item(page, "Bits per byte", NULL, "not evaluated yet");
        return;
    }
    format_loss(last->value, value);
    format_loss(history->best.value, other);
    if (last->value <= history->best.value)
        number_item(page, "Validation loss", value, "step %lld, the best so far", (long long)last->step);
    else number_item(page, "Validation loss", value, "best: %s at step %lld", other, (long long)history->best.step);
    format_loss(last->other, value);
    number_item(page, "Bits per byte", isfinite(last->other) ? value : NULL, "of validation text");
}

static void speed_item(const Page *page) {
    const History *history = page->history;
    const double median = sample_median(&history->speed), tflops = sample_median(&history->tflops);
    const double best = sample_median(&history->best_percent), peak = sample_median(&history->peak_percent);
    char number[32], value[64], flops[64] = "", of_best[64] = "", of_peak[64] = "";
    chart_number(tflops, 3, number);
    if (isfinite(tflops)) snprintf(flops, sizeof flops, ", %s TFLOP/s", number);
    if (isfinite(best)) snprintf(of_best, sizeof of_best, ", %.0f%% of the best measured", best);
    if (isfinite(peak)) snprintf(of_peak, sizeof of_peak, ", %.0f%% of peak", peak);
    chart_number(median, 4, number);
    snprintf(value, sizeof value, "%s tok/s", number);
    number_item(page, "Speed", isfinite(median) ? value : NULL, "median%s%s%s", flops, of_best, of_peak);
}

static void number_items(const Page *page) {
    const History *history = page->history;
    const Start *start = history->start_count ? &history->starts[(history->start_count - 1) % HISTORY_STARTS] : NULL;
    char value[32], other[32];
    fputs("<dl class=\"numbers\">\n", page->out);
    loss_items(page);
    chart_number(history->tokens, 4, value);
    number_item(page, "Tokens", history->tokens > 0 ? value : NULL, "in %lld step%s", (long long)history->steps, plural(history->steps));
    log_format_duration(history->step_seconds, value);
    number_item(page, "Time", history->step_seconds > 0 ? value : NULL, "in training steps");
    speed_item(page);
    chart_number(start ? start->parameters : NAN, 4, value);
    chart_number(start ? start->active_parameters : NAN, 4, other);
    bool known = start && isfinite(start->parameters), active = start && isfinite(start->active_parameters);
    number_item(page, "Parameters", known ? value : NULL, "%s%s", active ? other : "", active ? " active for a token" : "of the model");
    log_format_bytes(history->memory_bytes, value);
    number_item(page, "Memory", history->memory_bytes > 0 ? value : NULL, "most in use");
    fputs("</dl>\n", page->out);
}

static void warnings(const Page *page) {
    const History *history = page->history;
    const int64_t skipped = history->skipped.thin.seen, broken = history->broken.thin.seen, ignored = history->ignored;
    if (skipped == 0 && broken == 0 && ignored == 0) return;
    fputs("<div class=\"warning\" role=\"note\">\n", page->out);
    if (skipped > 0) fprintf(page->out, "<p>%lld update%s skipped.</p>\n", (long long)skipped, skipped == 1 ? " was" : "s were");
    if (broken > 0) fprintf(page->out, "<p>The loss of %lld step%s was not finite.</p>\n", (long long)broken, plural(broken));
    if (ignored > 0)
        fprintf(page->out, "<p>%lld of %lld lines of metrics.jsonl could not be used and were left out.</p>\n", (long long)ignored,
            (long long)history->lines);
    fputs("</div>\n", page->out);
}

/* -- Curves ------------------------------------------------------------------------------------------------------ */

typedef struct Curve {
    SeriesName series;
    const char *name, *id;
    double log_above; /* logarithmic when the highest is that many times the lowest; 0: never */
    bool from_zero;
} Curve;

static void grow_range(double *low, double *high, double value) {
    if (!isfinite(value)) return;
    *low = fmin(*low, value);
    *high = fmax(*high, value);
}

static Axis curve_axis(const Page *page, const Curve *curve) {
    double low = INFINITY, high = -INFINITY;
    for (size_t i = 0; i < page->history->thin.count; i++) {
        const Span *span = &page->history->points[i].series[curve->series];
        if (span->count == 0) continue;
        grow_range(&low, &high, span->low);
        grow_range(&low, &high, span->high);
    }
    const Marks *evaluations = &page->history->evaluations;
    for (size_t i = 0; curve->series == SERIES_LOSS && i < evaluations->thin.count; i++)
        grow_range(&low, &high, evaluations->items[i].value);
    if (curve->from_zero && low > 0) low = 0;
    return axis_padded(low, high, curve->log_above > 0 && low > 0 && high > curve->log_above * low, TICKS_Y);
}

/* Local linear regression with Gaussian weights (Fan and Gijbels, "Local Polynomial Modelling and Its Applications",
 * 1996): unlike a moving mean it follows slopes up to both ends. Over what is finite; a point that has no value
 * itself gets none. */
static void smooth(const double *values, double *smoothed, size_t count, double width) {
    const int64_t reach = (int64_t)ceil(3 * width);
    for (int64_t i = 0; i < (int64_t)count; i++) {
        double moments[3] = {0}, sums[2] = {0}; /* of weight * distance^k, and the same times the value */
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

static void curve_stripes(const Page *page, const Chart *chart, const Curve *curve) {
    const History *history = page->history;
    size_t each = (history->thin.count + STRIPES - 1) / STRIPES;
    for (size_t i = 0; i < history->thin.count; i += each) {
        Span span = {0};
        size_t end = i + each < history->thin.count ? i + each : history->thin.count;
        for (size_t j = i; j < end; j++) {
            const Span *more = &history->points[j].series[curve->series];
            span.sum += more->sum;
            span.count += more->count;
        }
        char steps[64], value[32], title[TEXT];
        format_steps(history->points[i].first, history->points[end - 1].last, steps);
        chart_number(span_mean(&span), 5, value);
        snprintf(title, sizeof title, "%s: %s %s", steps, curve->id, span.count ? value : "not finite");
        double from = i == 0 ? page->x[0] : (page->x[i - 1] + page->x[i]) / 2;
        double to = end == history->thin.count ? page->x[end - 1] : (page->x[end - 1] + page->x[end]) / 2;
        chart_stripe(chart, from, to, title);
    }
}

/* Returns whether the raw curve is drawn beside a smoothed one: a few points need no smoothing. */
static bool draws_smoothed(const History *history) { return history->thin.count >= 30; }

static void draw_curve(const Page *page, const Chart *chart, const Curve *curve, bool smoothed) {
    enum { SMOOTHED_PARTS = 100 };
    const size_t count = page->history->thin.count;
    double means[HISTORY_POINTS] = {0}, soft[HISTORY_POINTS] = {0}, lows[HISTORY_POINTS] = {0}, highs[HISTORY_POINTS] = {0};
    bool spread = page->history->thin.stride > 1;
    for (size_t i = 0; i < count; i++) {
        const Span *span = &page->history->points[i].series[curve->series];
        means[i] = span_mean(span);
        lows[i] = span->count ? span->low : NAN;
        highs[i] = span->count ? span->high : NAN;
    }
    if (spread) chart_band(chart, "band", page->x, lows, highs, count);
    curve_stripes(page, chart, curve);
    chart_curve(chart, smoothed ? "raw" : "train", page->x, means, count);
    if (!smoothed) return;
    smooth(means, soft, count, fmax(1, (double)count / SMOOTHED_PARTS));
    chart_curve(chart, "train", page->x, soft, count);
}

static void draw_starts(const Page *page, const Chart *chart) {
    const History *history = page->history;
    int64_t oldest = history->start_count > HISTORY_STARTS ? history->start_count - HISTORY_STARTS : 0;
    for (int64_t i = oldest; i < history->start_count; i++) {
        const Start *start = &history->starts[i % HISTORY_STARTS];
        char title[TEXT];
        if (start->step < history->first_step || start->step > history->last_step) continue;
        snprintf(title, sizeof title, "process %lld started after step %lld", (long long)i + 1, (long long)start->step);
        chart_stroke(chart, "start", (double)start->step, 0, 1, title);
    }
}

static void draw_bad_steps(const Chart *chart, const Marks *marks, const char *what) {
    for (size_t i = 0; i < marks->thin.count; i++) {
        char title[TEXT];
        snprintf(title, sizeof title, "step %lld: %s", (long long)marks->items[i].step, what);
        chart_stroke(chart, "bad", (double)marks->items[i].step, 0.95, 1, title);
    }
}

static void draw_checkpoints(const Chart *chart, const Marks *marks) {
    enum { STROKES = 100 }; /* more would touch */
    for (size_t i = 0; i < marks->thin.count; i += marks->thin.count / STROKES + 1) {
        const Mark *mark = &marks->items[i];
        char title[TEXT], size[32], duration[32];
        log_format_bytes(mark->value, size);
        log_format_duration(mark->other, duration);
        bool known = isfinite(mark->value); /* not of a checkpoint whose process was killed before it wrote the record */
        snprintf(title, sizeof title, known ? "step %lld: checkpoint, %s in %s" : "step %lld: checkpoint", (long long)mark->step, size,
            duration);
        chart_stroke(chart, "check", (double)mark->step, 0, 0.05, title);
    }
}

static void draw_evaluation(const Chart *chart, const Mark *mark) {
    char title[TEXT], loss[32], bits[32];
    if (!isfinite(mark->value)) return;
    format_loss(mark->value, loss);
    format_loss(mark->other, bits);
    snprintf(title, sizeof title, "step %lld: validation loss %s%s%s", (long long)mark->step, loss,
        isfinite(mark->other) ? ", bits per byte " : "", isfinite(mark->other) ? bits : "");
    chart_dot(chart, "ring", (double)mark->step, mark->value, title);
    chart_dot(chart, "valid", (double)mark->step, mark->value, title);
}

static void draw_evaluations(const Chart *chart, const Marks *marks) {
    double x[HISTORY_MARKS] = {0}, y[HISTORY_MARKS] = {0};
    for (size_t i = 0; i < marks->thin.count; i++) {
        x[i] = (double)marks->items[i].step;
        y[i] = marks->items[i].value;
    }
    chart_curve(chart, "valid", x, y, marks->thin.count);
    enum { DOTS = 60 }; /* more would hide the curve */
    size_t stride = marks->thin.count / DOTS + 1;
    for (size_t i = 0; i < marks->thin.count; i += stride) draw_evaluation(chart, &marks->items[i]);
    if (marks->thin.seen > 0) draw_evaluation(chart, &marks->last);
}

static void legend_item(const Page *page, bool shown, const char *color, const char *shape, const char *name, int64_t count) {
    char number[32] = "";
    if (!shown) return;
    if (count > 1) snprintf(number, sizeof number, "%lld ", (long long)count);
    fprintf(page->out, "<span><i class=\"%s %s\"></i>%s%s%s</span>", color, shape, number, name, count > 1 ? "s" : "");
}

static void section_head(const Chart *chart, const Curve *curve) {
    fprintf(
        chart->out, "<section>\n<div class=\"head\"><h2>%s%s</h2>", curve->name, chart->y.logarithmic ? " <small>log scale</small>" : "");
}

static void loss_section(const Page *page) {
    static const Curve curve = {SERIES_LOSS, "Loss", "loss", 4, false};
    const History *history = page->history;
    const bool smoothed = draws_smoothed(history);
    Chart chart = {page->out, page->steps, curve_axis(page, &curve)};
    section_head(&chart, &curve);
    fputs("<div class=\"legend\">", page->out);
    legend_item(page, smoothed, "k-train", "", "training, smoothed", 0);
    legend_item(page, true, smoothed ? "k-raw" : "k-train", "", smoothed ? "each step" : "training", 0);
    legend_item(page, history->evaluations.thin.seen > 0, "k-valid", "round", "validation", 0);
    legend_item(page, history->checkpoints.thin.seen > 0, "k-check", "tall", "checkpoint", history->checkpoints.thin.seen);
    legend_item(page, history->skipped.thin.seen + history->broken.thin.seen > 0, "k-bad", "tall", "skipped or not finite", 0);
    legend_item(page, history->start_count > 1, "k-start", "dashed", "restart", history->start_count - 1);
    fputs("</div></div>\n", page->out);
    chart_begin(&chart, "Training and validation loss over steps", "tall");
    draw_starts(page, &chart);
    draw_curve(page, &chart, &curve, smoothed);
    draw_checkpoints(&chart, &history->checkpoints);
    draw_bad_steps(&chart, &history->skipped, "the update was skipped");
    draw_bad_steps(&chart, &history->broken, "the loss was not finite");
    draw_evaluations(&chart, &history->evaluations);
    chart_end(&chart);
    fputs("</section>\n", page->out);
}

static void curve_section(const Page *page, const Curve *curve, bool smoothed) {
    Chart chart = {page->out, page->steps, curve_axis(page, curve)};
    section_head(&chart, curve);
    fputs("</div>\n", page->out);
    chart_begin(&chart, curve->name, "low");
    draw_starts(page, &chart);
    draw_curve(page, &chart, curve, smoothed && draws_smoothed(page->history));
    chart_end(&chart);
    fputs("</section>\n", page->out);
}

/* -- Expert load ------------------------------------------------------------------------------------------------- */

enum { LEVELS = 11, EVEN = LEVELS / 2 }; /* classes h0 to h10 of the style sheet */

/* Loads of a layer relative to an even share, [expert][HISTORY_COLUMNS], NaN where nothing was routed; the caller
 * frees. */
static double *load_ratios(const LoadMap *map, int64_t layer) {
    double *ratios = memory_allocate((size_t)map->experts * HISTORY_COLUMNS * sizeof *ratios);
    for (size_t column = 0; column < map->thin.count; column++) {
        const float *sums = load_column(map, column)->sums + layer * map->experts;
        double total = 0;
        for (int64_t expert = 0; expert < map->experts; expert++) total += sums[expert];
        for (int64_t expert = 0; expert < map->experts; expert++)
            ratios[expert * HISTORY_COLUMNS + column] = total > 0 ? sums[expert] * (double)map->experts / total : NAN;
    }
    return ratios;
}

static int load_level(double ratio) {
    const double extreme = 2; /* log2 of four times */
    if (isnan(ratio)) return EVEN;
    double level = EVEN + EVEN * log2(ratio) / extreme;
    return (int)lround(fmin(fmax(level, 0), LEVELS - 1));
}

/* One path for each colour, equal neighbours in time joined; the even colour is the ground. */
static void draw_cells(const Page *page, const LoadMap *map, const double *ratios, int columns) {
    for (int level = 0; level < LEVELS; level++) {
        if (level == EVEN) continue;
        fprintf(page->out, "<path class=\"h%d\" d=\"", level);
        for (int64_t expert = 0; expert < map->experts; expert++) {
            const double *row = ratios + expert * HISTORY_COLUMNS;
            for (int from = 0, to; from < columns; from = to + 1) {
                for (to = from; to < columns && load_level(row[to]) == level; to++) {}
                if (to > from) fprintf(page->out, "M%d %lldh%dv1h-%dz", from, (long long)expert, to - from, to - from);
            }
        }
        fputs("\"/>\n", page->out);
    }
}

static void expert_title(const Page *page, int64_t layer, int64_t expert, const double *row, int columns) {
    double low = INFINITY, high = -INFINITY;
    for (int column = 0; column < columns; column++) grow_range(&low, &high, row[column]);
    if (low > high) return;
    fprintf(page->out,
        "<rect class=\"stripe\" y=\"%lld\" width=\"%d\" height=\"1\"><title>layer %lld, expert %lld: from %.2f to %.2f "
        "of an even share, %.2f at the end</title></rect>\n",
        (long long)expert, columns, (long long)layer, (long long)expert, low, high, row[columns - 1]);
}

static void load_map(const Page *page, int64_t layer) {
    const LoadMap *map = &page->history->load;
    const int columns = (int)map->thin.count;
    const double height = fmin(fmax(14 * (double)map->experts, 64), 320), count = (double)map->experts;
    SCOPED_FREE double *ratios = load_ratios(map, layer);
    double most = 0;
    for (int64_t expert = 0; expert < map->experts; expert++) most = fmax(most, ratios[expert * HISTORY_COLUMNS + columns - 1]);
    fprintf(page->out, "<div class=\"map\"><div class=\"head\"><h3>Layer %lld</h3><p>busiest at the end: %.2f\xC3\x97</p></div>\n",
        (long long)layer, most);
    fprintf(
        page->out, "<div class=\"chart\" style=\"grid-template-rows:%.0fpx 24px\"><div class=\"ylabels\" aria-hidden=\"true\">", height);
    fprintf(page->out, "<span style=\"top:%.2f%%\">0</span>", 50 / count);
    if (map->experts > 1) fprintf(page->out, "<span style=\"top:%.2f%%\">%lld</span>", 100 - 50 / count, (long long)map->experts - 1);
    fprintf(page->out,
        "</div><svg viewBox=\"0 0 %d %lld\" preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\" role=\"img\" "
        "aria-label=\"Load of the experts of layer %lld over steps\">\n<rect class=\"h%d\" width=\"%d\" height=\"%lld\"/>\n",
        columns, (long long)map->experts, (long long)layer, EVEN, columns, (long long)map->experts);
    draw_cells(page, map, ratios, columns);
    for (int64_t expert = 0; expert < map->experts; expert++) expert_title(page, layer, expert, ratios + expert * HISTORY_COLUMNS, columns);
    fprintf(page->out,
        "</svg><div class=\"xlabels\" aria-hidden=\"true\"><span style=\"left:0\">step %lld</span><span style=\"left:100%%\">%lld</span>"
        "</div></div></div>\n",
        (long long)load_column(map, 0)->first, (long long)map->last_step);
}

static void load_section(const Page *page) {
    const LoadMap *map = &page->history->load;
    if (map->layers == 0) return;
    fputs("<section>\n<div class=\"head\"><h2>Expert load</h2>", page->out);
    if (map->too_large) {
        fprintf(page->out, "</div><p class=\"soft\">%lld layers of %lld experts are too many to draw.</p></section>\n",
            (long long)map->layers, (long long)map->experts);
        return;
    }
    fprintf(page->out, "<div class=\"scale\">\xC2\xBC\xC3\x97 <svg viewBox=\"0 0 %d 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
        LEVELS);
    for (int i = 0; i < LEVELS; i++) fprintf(page->out, "<rect class=\"h%d\" x=\"%d\" width=\"1.02\" height=\"1\"/>", i, i);
    fputs("</svg> 4\xC3\x97 an even share</div></div>\n<div class=\"maps\">\n", page->out);
    for (int64_t layer = 0; layer < map->layers; layer++) load_map(page, layer);
    fputs("</div></section>\n", page->out);
}

/* -- Configuration and process starts ---------------------------------------------------------------------------- */

/* Where the comment of a line begins: at a '#' that opens the line or follows a blank, outside quotes. */
static size_t comment_begin(const char *line) {
    char quote = 0;
    size_t i = 0;
    for (; line[i]; i++) {
        if (quote) {
            if (quote == '"' && line[i] == '\\' && line[i + 1]) i++;
            else if (line[i] == quote) quote = 0;
        } else if (line[i] == '"' || line[i] == '\'') {
            quote = line[i];
        } else if (line[i] == '#' && (i == 0 || line[i - 1] == ' ')) {
            break;
        }
    }
    return i;
}

static void config_line(const Page *page, char *line) {
    size_t comment = comment_begin(line);
    char first = line[comment];
    line[comment] = '\0';
    chart_escape(page->out, line);
    line[comment] = first;
    if (!first) return;
    fputs("<i>", page->out);
    chart_escape(page->out, line + comment);
    fputs("</i>", page->out);
}

static bool config_section(const Page *page, const char *run, Error *error) {
    enum { LINES = 5000 };
    SCOPED_FREE char *path = memory_format("%s/config.yaml", run);
    FileReader reader;
    if (!file_reader_open(&reader, path, error)) {
        bool missing = errno == ENOENT;
        if (missing) *error = (Error){0};
        return missing;
    }
    fputs("<section>\n<h2>Configuration</h2>\n<pre>", page->out);
    FileLine line = FILE_LINE_WHOLE;
    for (int i = 0; i < LINES && (line = file_reader_next(&reader)) != FILE_LINE_END; i++) {
        config_line(page, reader.line);
        putc('\n', page->out);
    }
    if (line != FILE_LINE_END) fprintf(page->out, "<i>(more than %d lines)</i>\n", LINES);
    fputs("</pre>\n</section>\n", page->out);
    return file_reader_close(&reader, error);
}

static void start_item(const Page *page, const Start *start, int64_t number) {
    char date[64] = "date unknown", steps[64] = "no step kept";
    struct tm parts;
    time_t seconds = fabs(start->time) < 1e11 ? (time_t)start->time : 0;
    if (seconds > 0 && gmtime_r(&seconds, &parts)) strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &parts);
    if (start->last_step > start->step) format_steps(start->step + 1, start->last_step, steps);
    fprintf(page->out, "<li><p><b>%s</b>, process %lld, %s</p><p>", date, (long long)number, steps);
    chart_escape(page->out, start->machine);
    fputs("</p><p class=\"soft\">", page->out);
    chart_escape(page->out, start->details);
    fputs("</p></li>\n", page->out);
}

static void starts_section(const Page *page) {
    const History *history = page->history;
    int64_t oldest = history->start_count > HISTORY_STARTS ? history->start_count - HISTORY_STARTS : 0;
    if (history->start_count == 0) return;
    fputs("<section>\n<h2>History</h2>\n<ol>\n", page->out);
    for (int64_t i = history->start_count; i-- > oldest;) start_item(page, &history->starts[i % HISTORY_STARTS], i + 1);
    if (oldest > 0) fprintf(page->out, "<li class=\"soft\">and %lld earlier</li>\n", (long long)oldest);
    fputs("</ol>\n</section>\n", page->out);
}

/* -- The page ---------------------------------------------------------------------------------------------------- */

/* The last part of the run's real path, so that `smelt report .` has a name too; the caller frees. */
static char *run_name(const char *run) {
    SCOPED_FREE char *real = realpath(run, NULL);
    const char *slash = real ? strrchr(real, '/') : NULL;
    return memory_copy_string(slash && slash[1] ? slash + 1 : run);
}

static void page_head(const Page *page, const char *name) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>",
        page->out);
    chart_escape(page->out, name);
    fprintf(page->out, " - smelt report</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n<header>\n<h1>", report_style);
    chart_escape(page->out, name);
    fputs("</h1>\n<p>", page->out);
    const History *history = page->history;
    if (history->start_count > 0) chart_escape(page->out, history->starts[(history->start_count - 1) % HISTORY_STARTS].machine);
    else fputs("unknown machine", page->out);
    fputs("</p>\n</header>\n", page->out);
}

static void set_steps(Page *page) {
    const History *history = page->history;
    for (size_t i = 0; i < history->thin.count; i++)
        page->x[i] = 0.5 * ((double)history->points[i].first + (double)history->points[i].last);
    double first = (double)history->first_step, last = fmax((double)history->last_step, (double)history->evaluations.last.step);
    double air = first == last ? 1 : 0;
    page->steps = axis_make(first == 1 ? 0 : first - air, last + air, false, TICKS_X);
    int whole = 0;
    for (int i = 0; i < page->steps.count; i++)
        if (page->steps.ticks[i] == round(page->steps.ticks[i])) page->steps.ticks[whole++] = page->steps.ticks[i];
    page->steps.count = whole;
}

static void curve_sections(const Page *page) {
    static const Curve rate = {SERIES_LR, "Learning rate", "learning rate", 0, true};
    static const Curve norm = {SERIES_NORM, "Gradient norm", "gradient norm", 20, false};
    static const Curve speed = {SERIES_SPEED, "Tokens per second", "tokens per second", 0, true};
    loss_section(page);
    fputs("<div class=\"pair\">\n", page->out);
    curve_section(page, &rate, false);
    curve_section(page, &norm, true);
    fputs("</div>\n", page->out);
    curve_section(page, &speed, true);
}

static bool print_page(FILE *out, const char *run, const History *history, Error *error) {
    Page page = {.out = out, .history = history};
    SCOPED_FREE char *name = run_name(run);
    set_steps(&page);
    page_head(&page, name);
    warnings(&page);
    number_items(&page);
    if (history->steps > 0) curve_sections(&page);
    else fputs("<section><h2>No steps yet</h2><p class=\"soft\">Curves appear after the first training step.</p></section>\n", out);
    load_section(&page);
    starts_section(&page);
    bool good = config_section(&page, run, error);
    fprintf(out, "<footer>Written by smelt report from %lld records.</footer>\n</main>\n</body>\n</html>\n",
        (long long)(history->lines - history->ignored));
    return good;
}

/* Whether writing the page would destroy nothing: there is no file, an empty one or a page. */
static bool may_replace(const char *output) {
    char start[sizeof "<!doctype html>"];
    FileKind kind = file_kind(output, NULL);
    if (kind != FILE_REGULAR) return kind == FILE_ABSENT;
    int64_t length = file_read_start(output, start, sizeof start);
    return length == 0 || !strcasecmp(start, "<!doctype html>");
}

bool report_write(const char *run, const char *output, ReportResult *result, Error *error) {
    if (!may_replace(output))
        return error_set(error, ERROR_USAGE, "%s exists and is no page of a report; name another file with out=", output);
    SCOPED_FREE char *path = memory_format("%s/metrics.jsonl", run), *page = NULL;
    size_t length = 0;
    History *history = history_read(path, error);
    if (!history) return false;
    *result = (ReportResult){.ignored = history->ignored};
    FILE *out = open_memstream(&page, &length);
    bool good = out ? print_page(out, run, history, error) : file_fail(error, "build", output);
    bool whole = out && !ferror(out);
    if (out && (fclose(out) != 0 || !whole) && good) good = file_fail(error, "build", output);
    good = good && file_write(output, page, (int64_t)length, error);
    result->bytes = (int64_t)length;
    history_free(history);
    return good;
}

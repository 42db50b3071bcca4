/* Charts: axes with round ticks, curves, marks. Everything is printed to the caller's stream
 * immediately. */
#include <math.h>
#include <string.h>

#include "infer/utf8.h"
#include "report/chart.h"

enum { WIDTH = 1000, HEIGHT = 300 }; /* of the drawing, in SVG units */

/* -- Axes -------------------------------------------------------------------------------------------------------- */

static void add_tick(Axis *axis, double value) {
    double slack = 1e-9 * (axis->high - axis->low);
    if (axis->count < AXIS_TICKS && value >= axis->low - slack && value <= axis->high + slack) axis->ticks[axis->count++] = value;
}

static void linear_ticks(Axis *axis, int wanted) {
    double least = (axis->high - axis->low) / wanted, power = pow(10, floor(log10(least)));
    static const double factors[] = {1, 2, 5, 10};
    double step = power * 10;
    for (int i = 3; i >= 0; i--)
        if (power * factors[i] >= least) step = power * factors[i];
    double first = ceil(axis->low / step - 1e-9);
    for (int i = 0; i <= wanted; i++) add_tick(axis, (first + i) * step);
}

/* Adds as many round factors per decade as fit; over many decades only every n-th power of ten. */
static void logarithmic_ticks(Axis *axis, int wanted) {
    static const double factors[] = {1, 1.5, 2, 3, 5, 7}, coarse_factors[] = {1, 2, 5};
    double decades = log10(axis->high / axis->low);
    bool fine = decades * 6 + 1 <= wanted, coarse = decades * 3 + 1 <= wanted;
    const double *chosen = fine ? factors : coarse_factors;
    int count = fine ? 6 : coarse ? 3 : 1;
    double first = floor(log10(axis->low)), stride = fmax(1, ceil((decades + 1) / wanted));
    for (double power = first; power <= first + decades + 1; power += stride)
        for (int i = 0; i < count; i++) add_tick(axis, chosen[i] * pow(10, power));
}

Axis axis_make(double low, double high, bool logarithmic, int wanted) {
    if (!isfinite(low) || !isfinite(high)) low = 0, high = 1;
    if (logarithmic && low <= 0) logarithmic = false;
    if (!(high - low > 1e-9 * fmax(fabs(low), fabs(high)))) {
        double width = low == 0 ? 1 : 0.1 * fabs(low);
        low -= width / 2;
        high += width / 2;
    }
    Axis axis = {.low = low, .high = high, .logarithmic = logarithmic};
    if (logarithmic) logarithmic_ticks(&axis, wanted);
    if (axis.count < 2) {
        axis.count = 0;
        linear_ticks(&axis, wanted);
    }
    return axis;
}

Axis axis_padded(double low, double high, bool logarithmic, int wanted) {
    const double air = 0.05, near_zero = 0.3;
    if (logarithmic && low > 0) {
        double factor = pow(high / low, air);
        return axis_make(low / factor, high * factor, true, wanted);
    }
    double space = air * (high - low);
    bool zero = low >= 0 && low < near_zero * high;
    return axis_make(zero ? 0 : low - space, high + space, false, wanted);
}

double axis_place(const Axis *axis, double value) {
    const double beyond = 8; /* browsers draw no coordinates like 1e300 */
    double place = axis->logarithmic ? (value > 0 ? log(value / axis->low) / log(axis->high / axis->low) : -beyond)
                                     : (0.5 * value - 0.5 * axis->low) / (0.5 * axis->high - 0.5 * axis->low);
    return fmin(fmax(place, -beyond), 1 + beyond);
}

/* -- Text -------------------------------------------------------------------------------------------------------- */

typedef struct Scale {
    double least, unit;
    const char *suffix;
} Scale;

static const Scale *scale_of(double value) {
    static const Scale scales[] = {{1e12, 1e12, "T"}, {1e9, 1e9, "B"}, {1e6, 1e6, "M"}, {1e4, 1e3, "k"}, {0, 1, ""}};
    const Scale *scale = scales;
    while (fabs(value) < scale->least * (1 - 1e-9)) scale++;
    return scale;
}

static void format_scaled(double value, const Scale *scale, int digits, char text[32]) {
    snprintf(text, 32, "%.*g%s", digits, value / scale->unit, value == 0 ? "" : scale->suffix);
    char *zero = strstr(text, "e-0"); /* 5e-05 becomes 5e-5 */
    if (zero) memmove(zero + 2, zero + 3, strlen(zero + 3) + 1);
}

void chart_number(double value, int digits, char text[32]) {
    if (isfinite(value)) format_scaled(value, scale_of(value), digits, text);
    else snprintf(text, 32, "unknown");
}

static void escape_byte(FILE *out, char byte) {
    switch (byte) {
    case '&': fputs("&amp;", out); break;
    case '<': fputs("&lt;", out); break;
    case '>': fputs("&gt;", out); break;
    case '"': fputs("&quot;", out); break;
    case '\'': fputs("&#39;", out); break;
    default:
        if (((unsigned char)byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) fputs("\xEF\xBF\xBD", out);
        else putc(byte, out);
    }
}

void chart_escape(FILE *out, const char *text) {
    Utf8Stream stream = {0};
    char whole[UTF8_OUTPUT];
    for (const char *at = text;; at++) {
        int bytes = *at ? utf8_put(&stream, (uint8_t)*at, whole) : utf8_finish(&stream, whole);
        for (int i = 0; i < bytes; i++) escape_byte(out, whole[i]);
        if (!*at) return;
    }
}

/* -- Drawing ----------------------------------------------------------------------------------------------------- */

static double chart_x(const Chart *chart, double x) { return WIDTH * axis_place(&chart->x, x); }
static double chart_y(const Chart *chart, double y) { return HEIGHT * (1 - axis_place(&chart->y, y)); }

static void print_labels(const Chart *chart, const Axis *axis, const char *side) {
    enum { DIGITS = 6 };
    bool vertical = side[0] == 't';
    double most = fmax(fabs(axis->ticks[0]), fabs(axis->ticks[axis->count - 1]));
    fprintf(chart->out, "<div class=\"%s\" aria-hidden=\"true\">", vertical ? "ylabels" : "xlabels");
    for (int i = 0; i < axis->count; i++) {
        char text[32];
        if (axis->logarithmic) chart_number(axis->ticks[i], DIGITS, text);
        else format_scaled(axis->ticks[i], scale_of(most), DIGITS, text);
        double place = 100 * axis_place(axis, axis->ticks[i]);
        fprintf(chart->out, "<span style=\"%s:%.2f%%\">%s</span>", side, vertical ? 100 - place : place, text);
    }
    fputs("</div>", chart->out);
}

void chart_begin(const Chart *chart, const char *label, const char *size) {
    FILE *out = chart->out;
    fprintf(out, "<div class=\"chart %s\" data-series=\"%s\" data-low=\"%g\" data-high=\"%g\" data-log=\"%d\"><p class=\"ytitle\">%s</p>",
        size, chart->series, chart->y.low, chart->y.high, chart->y.logarithmic, chart->y_title);
    print_labels(chart, &chart->y, "top");
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    chart_escape(out, label);
    fputs("\">\n<path class=\"grid\" d=\"", out);
    for (int i = 0; i < chart->y.count; i++) fprintf(out, "M0 %.1fH%d", chart_y(chart, chart->y.ticks[i]), WIDTH);
    fputs("\"/>\n", out);
}

void chart_end(const Chart *chart) {
    fputs("</svg>", chart->out);
    print_labels(chart, &chart->x, "left");
    fprintf(chart->out, "<p class=\"xtitle\">%s</p></div>\n", chart->x_title);
}

void chart_clip_begin(const Chart *chart) { fprintf(chart->out, "<svg width=\"%d\" height=\"%d\">\n", WIDTH, HEIGHT); }
void chart_clip_end(const Chart *chart) { fputs("</svg>\n", chart->out); }

/* Prints a zero-length stroke with round ends: a dot that stays round when the drawing is
 * stretched. */
static void print_dot(const Chart *chart, double x, double y) {
    fprintf(chart->out, "M%.1f %.1fh.01", chart_x(chart, x), chart_y(chart, y));
}

static bool is_alone(const double *y, size_t i, size_t count) {
    return isfinite(y[i]) && !(i > 0 && isfinite(y[i - 1])) && !(i + 1 < count && isfinite(y[i + 1]));
}

void chart_curve(const Chart *chart, const char *style, const double *x, const double *y, size_t count) {
    size_t alone = 0;
    fprintf(chart->out, "<path class=\"curve %s\" d=\"", style);
    for (size_t i = 0; i < count; i++) {
        alone += is_alone(y, i, count);
        if (!isfinite(y[i]) || is_alone(y, i, count)) continue;
        bool starts = i == 0 || !isfinite(y[i - 1]);
        fprintf(chart->out, "%c%.1f %.1f", starts ? 'M' : 'L', chart_x(chart, x[i]), chart_y(chart, y[i]));
    }
    fputs("\"/>\n", chart->out);
    if (alone == 0) return;
    fprintf(chart->out, "<path class=\"dot %s\" d=\"", style);
    for (size_t i = 0; i < count; i++)
        if (is_alone(y, i, count)) print_dot(chart, x[i], y[i]);
    fputs("\"/>\n", chart->out);
}

void chart_band(const Chart *chart, const char *style, const double *x, const double *low, const double *high, size_t count) {
    fprintf(chart->out, "<path class=\"%s\" d=\"", style);
    for (size_t from = 0, to; from < count; from = to + 1) {
        for (to = from; to < count && isfinite(low[to]); to++)
            fprintf(chart->out, "%c%.1f %.1f", to == from ? 'M' : 'L', chart_x(chart, x[to]), chart_y(chart, high[to]));
        for (size_t i = to; i-- > from;) fprintf(chart->out, "L%.1f %.1f", chart_x(chart, x[i]), chart_y(chart, low[i]));
        if (to > from) fputs("Z", chart->out);
    }
    fputs("\"/>\n", chart->out);
}

static void print_title(const Chart *chart, const char *title) {
    fputs("<title>", chart->out);
    chart_escape(chart->out, title);
    fputs("</title>", chart->out);
}

void chart_dot(const Chart *chart, const char *style, double x, double y, const char *title) {
    fprintf(chart->out, "<path class=\"dot %s\" d=\"", style);
    print_dot(chart, x, y);
    fputs("\">", chart->out);
    print_title(chart, title);
    fputs("</path>\n", chart->out);
}

void chart_stroke(const Chart *chart, const char *style, double x, double from, double to, const char *title) {
    fprintf(
        chart->out, "<path class=\"stroke %s\" d=\"M%.1f %.1fV%.1f\">", style, chart_x(chart, x), HEIGHT * (1 - from), HEIGHT * (1 - to));
    print_title(chart, title);
    fputs("</path>\n", chart->out);
}

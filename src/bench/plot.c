/* A picture of results: curves over axes, a legend, as an SVG file that needs nothing else. Axes are those of the report page (report/chart.h). Owns nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "bench/bench.h"
#include "report/chart.h"

enum { WIDTH = 960, HEIGHT = 540, LEFT = 76, RIGHT = 220, TOP = 64, BOTTOM = 60, TICKS = 8, MOST_CURVES = 16, LABEL = 96 };

static const char *const colours[] = {"#2a6f97", "#c2571a", "#3d8361", "#8a5a9e", "#b3261e", "#7a7a2a", "#4a7ab8", "#a35d3a"};
enum { COLOURS = sizeof colours / sizeof *colours };

typedef struct Curves {
    char labels[MOST_CURVES][LABEL];
    int count;
} Curves;

typedef struct Drawing {
    FILE *file;
    const BenchResults *results;
    int x_column, y_column, series[BENCH_PLOT_SERIES], series_count;
    Axis x, y;
} Drawing;

static double value(const Drawing *drawing, int row, int column) {
    return drawing->results->cells[row * drawing->results->column_count + column].number;
}

static double place_x(const Drawing *drawing, double x) { return LEFT + (WIDTH - LEFT - RIGHT) * axis_place(&drawing->x, x); }
static double place_y(const Drawing *drawing, double y) { return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * axis_place(&drawing->y, y); }

static bool is_drawn(const Drawing *drawing, int row) {
    return isfinite(value(drawing, row, drawing->x_column)) && isfinite(value(drawing, row, drawing->y_column));
}

/* -- Curves -------------------------------------------------------------------------------------------------------- */

/* "bf16 own 1024": the cells that tell a row's curve. */
static void label_of(const Drawing *drawing, int row, char label[LABEL]) {
    const BenchCell *cells = drawing->results->cells + row * drawing->results->column_count;
    size_t used = 0;
    label[0] = '\0';
    for (int i = 0; i < drawing->series_count; i++) {
        const BenchCell *cell = &cells[drawing->series[i]];
        const char *name = drawing->results->columns[drawing->series[i]].name, *space = i ? " " : "";
        if (cell->text) used += (size_t)snprintf(label + used, LABEL - used, "%s%s", space, cell->text);
        else used += (size_t)snprintf(label + used, LABEL - used, "%s%s %g", space, name, cell->number);
        if (used >= LABEL) return;
    }
}

static int curve_of(Curves *curves, const char *label) {
    for (int i = 0; i < curves->count; i++)
        if (!strcmp(curves->labels[i], label)) return i;
    if (curves->count == MOST_CURVES) return -1;
    memcpy(curves->labels[curves->count], label, LABEL);
    return curves->count++;
}

static Curves find_curves(const Drawing *drawing) {
    Curves curves = {0};
    for (int row = 0; row < drawing->results->row_count; row++) {
        char label[LABEL];
        label_of(drawing, row, label);
        if (is_drawn(drawing, row)) curve_of(&curves, label);
    }
    return curves;
}

typedef struct Point { double x, y; } Point;

static int left_first(const void *a, const void *b) {
    const Point *p = a, *q = b;
    return (p->x > q->x) - (p->x < q->x);
}

static void draw_curve(const Drawing *drawing, const char *wanted, const char *colour) {
    Point *points = memory_allocate((size_t)(drawing->results->row_count + 1) * sizeof *points);
    int count = 0;
    for (int row = 0; row < drawing->results->row_count; row++) {
        char label[LABEL];
        label_of(drawing, row, label);
        if (is_drawn(drawing, row) && !strcmp(label, wanted))
            points[count++] =
                (Point){place_x(drawing, value(drawing, row, drawing->x_column)), place_y(drawing, value(drawing, row, drawing->y_column))};
    }
    qsort(points, (size_t)count, sizeof *points, left_first);
    fprintf(drawing->file, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", colour);
    for (int i = 0; i < count; i++) fprintf(drawing->file, "%c%.1f %.1f", i ? 'L' : 'M', points[i].x, points[i].y);
    fputs("\"/>\n", drawing->file);
    for (int i = 0; i < count; i++)
        fprintf(drawing->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", points[i].x, points[i].y, colour);
    free(points);
}

static void draw_legend(const Drawing *drawing, const Curves *curves) {
    enum { LINE = 22 };
    for (int i = 0; i < curves->count; i++) {
        int x = WIDTH - RIGHT + 20, y = TOP + 10 + i * LINE;
        fprintf(drawing->file, "<path stroke=\"%s\" stroke-width=\"3\" d=\"M%d %dh18\"/><text x=\"%d\" y=\"%d\">", colours[i % COLOURS], x,
            y - 4, x + 26, y);
        chart_escape(drawing->file, curves->labels[i]);
        fputs("</text>\n", drawing->file);
    }
}

/* -- Axes ---------------------------------------------------------------------------------------------------------- */

/* A linear axis of values begins at 0. */
static Axis make_axis(const Drawing *drawing, int column, bool from_zero, bool logarithmic) {
    double low = INFINITY, high = -INFINITY;
    for (int row = 0; row < drawing->results->row_count; row++) {
        if (!is_drawn(drawing, row)) continue;
        low = fmin(low, value(drawing, row, column));
        high = fmax(high, value(drawing, row, column));
    }
    return axis_padded(from_zero && !logarithmic && low > 0 ? 0 : low, high, logarithmic, TICKS);
}

static void draw_axes(const Drawing *drawing) {
    FILE *file = drawing->file;
    char text[32];
    fputs("<g stroke=\"#e0ddd6\">", file);
    for (int i = 0; i < drawing->y.count; i++)
        fprintf(file, "<path d=\"M%d %.1fH%d\"/>", LEFT, place_y(drawing, drawing->y.ticks[i]), WIDTH - RIGHT);
    for (int i = 0; i < drawing->x.count; i++)
        fprintf(file, "<path d=\"M%.1f %dV%d\"/>", place_x(drawing, drawing->x.ticks[i]), TOP, HEIGHT - BOTTOM);
    fputs("</g>\n<g fill=\"#646a73\" text-anchor=\"end\">", file);
    for (int i = 0; i < drawing->y.count; i++) {
        chart_number(drawing->y.ticks[i], 6, text);
        fprintf(file, "<text x=\"%d\" y=\"%.1f\">%s</text>", LEFT - 8, place_y(drawing, drawing->y.ticks[i]) + 4, text);
    }
    fputs("</g>\n<g fill=\"#646a73\" text-anchor=\"middle\">", file);
    for (int i = 0; i < drawing->x.count; i++) {
        chart_number(drawing->x.ticks[i], 6, text);
        fprintf(file, "<text x=\"%.1f\" y=\"%d\">%s</text>", place_x(drawing, drawing->x.ticks[i]), HEIGHT - BOTTOM + 20, text);
    }
    fputs("</g>\n", file);
}

static void draw_text(FILE *file, const char *attributes, const char *text) {
    fprintf(file, "<text %s>", attributes);
    chart_escape(file, text);
    fputs("</text>\n", file);
}

static void draw_titles(const Drawing *drawing, const char *subtitle) {
    const BenchPlot *plot = &drawing->results->plot;
    char place[128];
    draw_text(drawing->file, "x=\"76\" y=\"26\" font-size=\"18\" font-weight=\"600\"", plot->title);
    draw_text(drawing->file, "x=\"76\" y=\"47\" fill=\"#646a73\"", subtitle);
    snprintf(place, sizeof place, "x=\"%d\" y=\"%d\" text-anchor=\"middle\"", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14);
    draw_text(drawing->file, place, plot->x_label);
    snprintf(place, sizeof place, "transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\"", (TOP + HEIGHT - BOTTOM) / 2);
    draw_text(drawing->file, place, plot->y_label);
}

void bench_draw(const BenchResults *results, const char *subtitle, FILE *file) {
    const BenchPlot *plot = &results->plot;
    Drawing drawing = {
        .file = file, .results = results, .x_column = bench_column(results, plot->x), .y_column = bench_column(results, plot->y)};
    while (drawing.series_count < BENCH_PLOT_SERIES && plot->series[drawing.series_count]) {
        drawing.series[drawing.series_count] = bench_column(results, plot->series[drawing.series_count]);
        drawing.series_count++;
    }
    drawing.x = make_axis(&drawing, drawing.x_column, false, plot->x_logarithmic);
    drawing.y = make_axis(&drawing, drawing.y_column, true, plot->y_logarithmic);
    fprintf(file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"system-ui,sans-serif\" font-size=\"13\" "
        "fill=\"#1f2328\">\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_titles(&drawing, subtitle);
    draw_axes(&drawing);
    Curves curves = find_curves(&drawing);
    for (int i = 0; i < curves.count; i++) draw_curve(&drawing, curves.labels[i], colours[i % COLOURS]);
    draw_legend(&drawing, &curves);
    fputs("</svg>\n", file);
}

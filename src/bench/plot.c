/* A picture of results: curves over axes, a legend, as an SVG file that needs nothing else. Axes are those of the
 * report page (report/chart.h). Owns the points while it draws; called when results are written. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "bench/bench.h"
#include "report/chart.h"

/* The picture, and the sides of the axes in it. */
enum { WIDTH = 960, HEIGHT = 540, LEFT = 76, RIGHT = WIDTH - 220, TOP = 64, BOTTOM = HEIGHT - 60 };
enum { TICKS = 8, MOST_CURVES = 16, LABEL = 96 };

static const char *const colours[] = {"#2a6f97", "#c2571a", "#3d8361", "#8a5a9e", "#b3261e", "#7a7a2a", "#4a7ab8", "#a35d3a"};
static const char *colour_of(int curve) { return colours[curve % (int)(sizeof colours / sizeof *colours)]; }

/* A row of the results. */
typedef struct Point {
    double x, y;
    int curve;
} Point;

typedef struct Drawing {
    FILE *file;
    char labels[MOST_CURVES][LABEL];
    int curve_count;
    Point *points; /* by curve, then by x */
    int point_count;
    Axis x, y;
} Drawing;

static double place_x(const Drawing *drawing, double x) { return LEFT + (RIGHT - LEFT) * axis_place(&drawing->x, x); }
static double place_y(const Drawing *drawing, double y) { return BOTTOM - (BOTTOM - TOP) * axis_place(&drawing->y, y); }

/* -- Curves -------------------------------------------------------------------------------------------------------- */

/* "bf16 own 1024": the cells that tell a row's curve, numbers after their column's name. */
static void format_label(const BenchResults *results, const BenchCell *row, char label[LABEL]) {
    size_t used = 0;
    label[0] = '\0';
    for (int i = 0; i < BENCH_PLOT_SERIES && results->plot.series[i] && used < LABEL; i++) {
        const BenchCell *cell = &row[bench_column(results, results->plot.series[i])];
        const char *space = i ? " " : "";
        if (cell->text) used += (size_t)snprintf(label + used, LABEL - used, "%s%s", space, cell->text);
        else used += (size_t)snprintf(label + used, LABEL - used, "%s%s %g", space, results->plot.series[i], cell->number);
    }
}

/* Adds the curve when it is new; -1 when there are too many. */
static int find_curve(Drawing *drawing, const char *label) {
    for (int i = 0; i < drawing->curve_count; i++)
        if (!strcmp(drawing->labels[i], label)) return i;
    if (drawing->curve_count == MOST_CURVES) return -1;
    memcpy(drawing->labels[drawing->curve_count], label, LABEL);
    return drawing->curve_count++;
}

static int compare_points(const void *a, const void *b) {
    const Point *p = a, *q = b;
    return p->curve != q->curve ? p->curve - q->curve : (p->x > q->x) - (p->x < q->x);
}

static void collect_points(Drawing *drawing, const BenchResults *results) {
    int x = bench_column(results, results->plot.x), y = bench_column(results, results->plot.y);
    drawing->points = memory_allocate((size_t)(results->row_count + 1) * sizeof *drawing->points);
    for (int i = 0; i < results->row_count; i++) {
        const BenchCell *row = results->cells + i * results->column_count;
        char label[LABEL];
        if (!isfinite(row[x].number) || !isfinite(row[y].number)) continue;
        format_label(results, row, label);
        Point point = {row[x].number, row[y].number, find_curve(drawing, label)};
        if (point.curve >= 0) drawing->points[drawing->point_count++] = point;
    }
    qsort(drawing->points, (size_t)drawing->point_count, sizeof *drawing->points, compare_points);
}

static void draw_curve(const Drawing *drawing, const Point *points, int count) {
    const char *colour = colour_of(points->curve);
    fprintf(drawing->file, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", colour);
    for (int i = 0; i < count; i++)
        fprintf(drawing->file, "%c%.1f %.1f", i ? 'L' : 'M', place_x(drawing, points[i].x), place_y(drawing, points[i].y));
    fputs("\"/>\n", drawing->file);
    for (int i = 0; i < count; i++)
        fprintf(drawing->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", place_x(drawing, points[i].x),
            place_y(drawing, points[i].y), colour);
}

static void draw_curves(const Drawing *drawing) {
    const Point *points = drawing->points;
    for (int from = 0, to = 0; from < drawing->point_count; from = to) {
        while (to < drawing->point_count && points[to].curve == points[from].curve) to++;
        draw_curve(drawing, points + from, to - from);
    }
}

/* -- Axes and text ------------------------------------------------------------------------------------------------- */

/* A linear axis of y begins at 0. */
static void set_axes(Drawing *drawing, const BenchPlot *plot) {
    double x[2] = {INFINITY, -INFINITY}, y[2] = {INFINITY, -INFINITY};
    for (int i = 0; i < drawing->point_count; i++) {
        const Point *point = &drawing->points[i];
        x[0] = fmin(x[0], point->x), x[1] = fmax(x[1], point->x);
        y[0] = fmin(y[0], point->y), y[1] = fmax(y[1], point->y);
    }
    drawing->x = axis_padded(x[0], x[1], plot->x_logarithmic, TICKS);
    drawing->y = axis_padded(plot->y_logarithmic ? y[0] : fmin(y[0], 0), y[1], plot->y_logarithmic, TICKS);
}

static void draw_axes(const Drawing *drawing) {
    FILE *file = drawing->file;
    char text[32];
    fputs("<g fill=\"#646a73\" text-anchor=\"end\">", file);
    for (int i = 0; i < drawing->y.count; i++) {
        double place = place_y(drawing, drawing->y.ticks[i]);
        chart_number(drawing->y.ticks[i], 6, text);
        fprintf(file, "<path stroke=\"#e0ddd6\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\">%s</text>", LEFT, place, RIGHT, LEFT - 8,
            place + 4, text);
    }
    fputs("</g>\n<g fill=\"#646a73\" text-anchor=\"middle\">", file);
    for (int i = 0; i < drawing->x.count; i++) {
        double place = place_x(drawing, drawing->x.ticks[i]);
        chart_number(drawing->x.ticks[i], 6, text);
        fprintf(file, "<path stroke=\"#e0ddd6\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\">%s</text>", place, TOP, BOTTOM, place,
            BOTTOM + 20, text);
    }
    fputs("</g>\n", file);
}

static void draw_text(FILE *file, const char *text, const char *attributes, ...) __attribute__((format(printf, 3, 4)));
static void draw_text(FILE *file, const char *text, const char *attributes, ...) {
    va_list arguments;
    va_start(arguments, attributes);
    fputs("<text ", file);
    vfprintf(file, attributes, arguments);
    va_end(arguments);
    putc('>', file);
    chart_escape(file, text);
    fputs("</text>\n", file);
}

static void draw_legend(const Drawing *drawing) {
    enum { LINE = 22 };
    for (int i = 0; i < drawing->curve_count; i++) {
        int x = RIGHT + 20, y = TOP + 10 + i * LINE;
        fprintf(drawing->file, "<path stroke=\"%s\" stroke-width=\"3\" d=\"M%d %dh18\"/>", colour_of(i), x, y - 4);
        draw_text(drawing->file, drawing->labels[i], "x=\"%d\" y=\"%d\"", x + 26, y);
    }
}

static void draw_titles(FILE *file, const BenchPlot *plot, const char *subtitle) {
    draw_text(file, plot->title, "x=\"%d\" y=\"26\" font-size=\"18\" font-weight=\"600\"", LEFT);
    draw_text(file, subtitle, "x=\"%d\" y=\"47\" fill=\"#646a73\"", LEFT);
    draw_text(file, plot->x_label, "x=\"%d\" y=\"%d\" text-anchor=\"middle\"", (LEFT + RIGHT) / 2, HEIGHT - 14);
    draw_text(file, plot->y_label, "transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\"", (TOP + BOTTOM) / 2);
}

void bench_draw(const BenchResults *results, const char *subtitle, FILE *file) {
    Drawing drawing = {.file = file};
    collect_points(&drawing, results);
    set_axes(&drawing, &results->plot);
    fprintf(file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"system-ui,sans-serif\" font-size=\"13\" "
        "fill=\"#1f2328\">\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_titles(file, &results->plot, subtitle);
    draw_axes(&drawing);
    draw_curves(&drawing);
    draw_legend(&drawing);
    fputs("</svg>\n", file);
    free(drawing.points);
}

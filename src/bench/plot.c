/* Plots results as a self-contained SVG file: curves over axes, and a legend. Ticks and labels are
 * as in the report page (report/chart.h). Owns the points while it draws; called when results are
 * written. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/sort.h"
#include "bench/bench.h"
#include "report/chart.h"

/* The picture, and the sides of its axes. */
enum { WIDTH = 960, HEIGHT = 540, LEFT = 76, RIGHT = WIDTH - 220, TOP = 64, BOTTOM = HEIGHT - 60 };
enum { TICKS = 8, MOST_CURVES = 16, LABEL = 96 };

static const char *const colors[] = {"#2a6f97", "#c2571a", "#3d8361", "#8a5a9e", "#b3261e", "#7a7a2a", "#4a7ab8", "#a35d3a"};
static const char *color_of(int curve) { return colors[curve % (int)(sizeof colors / sizeof *colors)]; }

typedef struct PlotPoint { double x, y; } PlotPoint; /* a row of the results */

typedef struct PlotCurve {
    char label[LABEL];
    PlotPoint *points; /* sorted by x */
    int count;
} PlotCurve;

typedef struct Drawing {
    FILE *file;
    PlotCurve curves[MOST_CURVES];
    int count;
    Axis x, y;
} Drawing;

static void free_drawing(Drawing *drawing) {
    for (int i = 0; i < drawing->count; i++) free(drawing->curves[i].points);
}

static double place_x(const Drawing *drawing, double x) { return LEFT + (RIGHT - LEFT) * axis_place(&drawing->x, x); }
static double place_y(const Drawing *drawing, double y) { return BOTTOM - (BOTTOM - TOP) * axis_place(&drawing->y, y); }

/* -- Curves -------------------------------------------------------------------------------------------------------- */

/* Writes "bf16 own 1024": the cells that identify a row's curve; numbers follow their column's
 * name. */
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

/* Returns the curve with this label, adding it if it is new; NULL if there are too many. */
static PlotCurve *find_curve(Drawing *drawing, const char *label) {
    int i = 0;
    while (i < drawing->count && strcmp(drawing->curves[i].label, label)) i++;
    if (i == MOST_CURVES) return NULL;
    if (i == drawing->count) memcpy(drawing->curves[drawing->count++].label, label, LABEL);
    return &drawing->curves[i];
}

static int compare_points(const void *a, const void *b) { return compare_doubles(&((const PlotPoint *)a)->x, &((const PlotPoint *)b)->x); }

/* Also sets the axes; a linear y axis begins at 0. */
static void collect_points(Drawing *drawing, const BenchResults *results) {
    const BenchPlot *plot = &results->plot;
    int x = bench_column(results, plot->x), y = bench_column(results, plot->y);
    PlotPoint low = {INFINITY, plot->y_logarithmic ? INFINITY : 0}, high = {-INFINITY, -INFINITY};
    for (int i = 0; i < results->row_count; i++) {
        const BenchCell *row = results->cells + i * results->column_count;
        PlotPoint point = {row[x].number, row[y].number};
        char label[LABEL];
        if (!isfinite(point.x) || !isfinite(point.y)) continue;
        format_label(results, row, label);
        PlotCurve *curve = find_curve(drawing, label);
        if (!curve) continue;
        array_append(curve->points, curve->count, point);
        low = (PlotPoint){fmin(low.x, point.x), fmin(low.y, point.y)};
        high = (PlotPoint){fmax(high.x, point.x), fmax(high.y, point.y)};
    }
    for (int i = 0; i < drawing->count; i++)
        qsort(drawing->curves[i].points, (size_t)drawing->curves[i].count, sizeof(PlotPoint), compare_points);
    drawing->x = axis_padded(low.x, high.x, plot->x_logarithmic, TICKS);
    drawing->y = axis_padded(low.y, high.y, plot->y_logarithmic, TICKS);
}

static void draw_curve(const Drawing *drawing, int index) {
    const PlotPoint *points = drawing->curves[index].points;
    fprintf(drawing->file, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\" d=\"", color_of(index));
    for (int i = 0; i < drawing->curves[index].count; i++)
        fprintf(drawing->file, "%c%.1f %.1f", i ? 'L' : 'M', place_x(drawing, points[i].x), place_y(drawing, points[i].y));
    fputs("\"/>\n", drawing->file);
    for (int i = 0; i < drawing->curves[index].count; i++)
        fprintf(drawing->file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", place_x(drawing, points[i].x),
            place_y(drawing, points[i].y), color_of(index));
}

/* -- Axes and text ------------------------------------------------------------------------------------------------- */

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
    for (int i = 0; i < drawing->count; i++) {
        int x = RIGHT + 20, y = TOP + 10 + i * LINE;
        fprintf(drawing->file, "<path stroke=\"%s\" stroke-width=\"3\" d=\"M%d %dh18\"/>", color_of(i), x, y - 4);
        draw_text(drawing->file, drawing->curves[i].label, "x=\"%d\" y=\"%d\"", x + 26, y);
    }
}

static void draw_titles(FILE *file, const BenchPlot *plot, const char *subtitle) {
    draw_text(file, plot->title, "x=\"%d\" y=\"26\" font-size=\"18\" font-weight=\"600\"", LEFT);
    draw_text(file, subtitle, "x=\"%d\" y=\"47\" fill=\"#646a73\"", LEFT);
    draw_text(file, plot->x_label, "x=\"%d\" y=\"%d\" text-anchor=\"middle\"", (LEFT + RIGHT) / 2, HEIGHT - 14);
    draw_text(file, plot->y_label, "transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\"", (TOP + BOTTOM) / 2);
}

void bench_draw(const BenchResults *results, const char *subtitle, FILE *file) {
    SCOPED(free_drawing) Drawing drawing = {.file = file};
    collect_points(&drawing, results);
    fprintf(file,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"system-ui,sans-serif\" font-size=\"13\" "
        "fill=\"#1f2328\">\n"
        "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_titles(file, &results->plot, subtitle);
    draw_axes(&drawing);
    for (int i = 0; i < drawing.count; i++) draw_curve(&drawing, i);
    draw_legend(&drawing);
    fputs("</svg>\n", file);
}

/* Charts as HTML with inline SVG. The drawing stretches to its box while lines keep their width.
 * Labels are HTML, so text has the same size on every screen. Colors are CSS classes of page.css.
 * Owns nothing; called by report.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { AXIS_TICKS = 16 };

typedef struct Axis {
    double low, high; /* low < high; both positive if logarithmic */
    bool logarithmic;
    double ticks[AXIS_TICKS];
    int count;
} Axis;

/* Makes an axis from `low` to `high` with at most `wanted` round ticks (2 to AXIS_TICKS). Limits
 * that are equal, not finite or (logarithmic) not positive are widened until they can be drawn. */
Axis axis_make(double low, double high, bool logarithmic, int wanted);
/* Makes an axis with some padding at both ends; values near zero start at zero. */
Axis axis_padded(double low, double high, bool logarithmic, int wanted);
double axis_place(const Axis *axis, double value); /* 0 at `low`, 1 at `high`; within [-8, 9] */

/* Writes the shortest form that keeps `digits` digits: "0.0005", "5e-5", "2.5", "12k". */
void chart_number(double value, int digits, char text[32]);
/* Escapes text for HTML elements and attributes. Control characters and invalid UTF-8 become
 * U+FFFD. */
void chart_escape(FILE *out, const char *text);

typedef struct Chart {
    FILE *out;
    Axis x, y;
    const char *x_title, *y_title; /* with the unit */
    const char *series;            /* of the numbers from which page.js draws it again */
} Chart;

/* `label` describes the drawing for readers who cannot see it; `size` is a CSS class. */
void chart_begin(const Chart *chart, const char *label, const char *size);
void chart_end(const Chart *chart);
/* Curves and bands go between these calls: everything beyond the axes is cut off. */
void chart_clip_begin(const Chart *chart);
void chart_clip_end(const Chart *chart);
/* The curve has gaps at y values that are not finite; a point without neighbors becomes a dot. */
void chart_curve(const Chart *chart, const char *style, const double *x, const double *y, size_t count);
void chart_band(const Chart *chart, const char *style, const double *x, const double *low, const double *high, size_t count);
void chart_dot(const Chart *chart, const char *style, double x, double y, const char *title);
/* Draws a vertical stroke; `from` and `to` are fractions of the height, from the bottom. */
void chart_stroke(const Chart *chart, const char *style, double x, double from, double to, const char *title);

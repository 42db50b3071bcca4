/* Charts as HTML with inline SVG. The drawing stretches to its box while lines keep their width; labels are HTML, so
 * text has the same size on every screen. Colours are CSS classes of the page (report_style_internal.h). Owns nothing;
 * called by report.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { AXIS_TICKS = 16 };

typedef struct Axis {
    double low, high; /* low < high; both above 0 when logarithmic */
    bool logarithmic;
    double ticks[AXIS_TICKS];
    int count;
} Axis;

/* From `low` to `high` with at most `wanted` round ticks (2 to AXIS_TICKS). Equal, not finite or (logarithmic) not
 * positive limits are widened to something that can be drawn. */
Axis axis_make(double low, double high, bool logarithmic, int wanted);
/* An axis with some air at both ends; values that come near to zero start at zero. */
Axis axis_padded(double low, double high, bool logarithmic, int wanted);
double axis_place(const Axis *axis, double value); /* 0 at `low`, 1 at `high`; within [-8, 9] */

/* "0.0005", "5e-5", "2.5", "12k": the shortest that keeps `digits` digits. */
void chart_number(double value, int digits, char text[32]);
/* Text in HTML, in elements and in attributes. Control characters and what is not UTF-8 become U+FFFD. */
void chart_escape(FILE *out, const char *text);

typedef struct Chart {
    FILE *out;
    Axis x, y;
    const char *x_title, *y_title; /* with the unit */
} Chart;

/* `label` says what is drawn to those who cannot see it; `size` is a CSS class. */
void chart_begin(const Chart *chart, const char *label, const char *size);
void chart_end(const Chart *chart);
/* Curves and bands stand between these two: what lies beyond the axes is cut off. */
void chart_clip_begin(const Chart *chart);
void chart_clip_end(const Chart *chart);
/* Gaps where y is not finite; a point without neighbours is a dot. */
void chart_curve(const Chart *chart, const char *style, const double *x, const double *y, size_t count);
void chart_band(const Chart *chart, const char *style, const double *x, const double *low, const double *high, size_t count);
void chart_dot(const Chart *chart, const char *style, double x, double y, const char *title);
/* A vertical stroke from `from` to `to`, parts of the height counted from the bottom. */
void chart_stroke(const Chart *chart, const char *style, double x, double from, double to, const char *title);
/* An invisible stripe that shows `title` under the pointer. */
void chart_stripe(const Chart *chart, double from, double to, const char *title);

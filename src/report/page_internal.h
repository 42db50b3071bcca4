/* Shared by the sections of a page. A section prints itself, or nothing if it has no content. */
#pragma once

#include "report/chart.h"
#include "report/report.h"
#include "report/run_index.h"
#include "report/view_internal.h"

enum { PAGE_TEXT = 400 /* of a title or a note, with its NUL */ };

typedef struct Page {
    FILE *out;
    const RunView *views; /* [count] */
    int count;
    const RunIndex *index; /* of a page of a folder, which has no views; else NULL */
    bool markdown;         /* figures are rows of a Markdown table */
} Page;

Page report_page(const Report *report, FILE *out);

/* -- Numbers as the pages write them ------------------------------------------------------------------------------- */

void page_loss(double value, char text[32]);
void page_steps(int64_t first, int64_t last, char text[64]); /* "step 4", "steps 1-4" with an en dash */
bool page_date(double time, char text[64]);                  /* "2026-01-31 12:00 UTC"; false: unknown */
const RunStart *page_last_start(const History *history);     /* NULL: unknown */
bool page_tells_setting(const Option *option);

/* -- Curves -------------------------------------------------------------------------------------------------------- */

typedef struct Curve {
    StepField series;
    const char *name, *title; /* title: of the y axis */
    double log_above;         /* logarithmic if highest / lowest is at least this; 0: never */
    bool from_zero;
    bool fitted;   /* the y axis fits the late part */
    bool smoothed; /* if there are enough points */
} Curve;

enum { LINE_POINTS = 200 /* of a line without the script, which has all points (points.c); of several runs half as many */ };

/* One curve of one run. */
typedef struct Line {
    size_t count;
    bool smoothed, merged; /* merged: a point is of several steps */
    int64_t first[LINE_POINTS];
    double x[LINE_POINTS], means[LINE_POINTS], lows[LINE_POINTS], highs[LINE_POINTS];
    double soft[LINE_POINTS]; /* smoothed, or the means */
} Line;

/* A chart with one line per run of the page. */
typedef struct Plot {
    const Page *page;
    const Curve *curve;
    bool tokens; /* x counts tokens, not steps */
    Chart chart;
    Line *lines; /* [page->count] */
    double cut;  /* the highest value if it lies above the axis, else NaN */
} Plot;

extern const Curve curve_loss;
Plot plot_make(const Page *page, const Curve *curve); /* release with plot_free */
void plot_free(Plot *plot);
/* Returns the x value of a step: the step itself, or the run's tokens at that step. */
double plot_x(const Plot *plot, const History *history, int64_t step);

/* -- Events -------------------------------------------------------------------------------------------------------- */

/* What happened to a run, on the axis of steps: a stroke over a part of the height. */
typedef struct PageEvent {
    int64_t step;
    const char *style; /* class of the stroke */
    double from, to;   /* fractions of the height, from the bottom */
    char text[PAGE_TEXT];
} PageEvent;

typedef struct PageEvents {
    PageEvent *items;
    size_t count;
} PageEvents;

/* Starts of processes, phases, changed settings, alarms, bad steps and checkpoints. */
PageEvents page_events(const RunView *view);
void page_events_free(PageEvents *events);

/* -- Sections ------------------------------------------------------------------------------------------------------ */

/* Sections of one run. */
void page_warnings(const Page *page); /* also for several runs */
void page_numbers(const Page *page);
void page_points(const Page *page);       /* the numbers of the curves, for page.js; also for several runs */
void page_loss_section(const Page *page); /* also for several runs: one curve each */
void page_other_curves(const Page *page); /* also for several runs */
void page_load(const Page *page);
void page_layers(const Page *page);
void page_histograms(const Page *page); /* of norms of tensors */
void page_samples(const Page *page);
void page_data(const Page *page);
void page_changes(const Page *page);
void page_starts(const Page *page);
void page_settings(const Page *page);
void page_log(const Page *page);
void page_summary(const Page *page); /* in Markdown, to copy */

/* The table of a folder's runs. */
void page_index(const Page *page);

/* Sections of several runs. */
void page_figures(const Page *page);
void page_differences(const Page *page);
void page_run_names(const Page *page); /* the legend */

/* What the sections of a page share. Each section prints itself, or nothing when it has nothing to tell. */
#pragma once

#include "report/chart.h"
#include "report/report.h"
#include "report/view_internal.h"

enum { PAGE_TEXT = 400 /* of a title or a note, with its NUL */ };

typedef struct Page {
    FILE *out;
    const RunView *views; /* [count] */
    int count;
} Page;

/* -- Numbers as the pages write them ------------------------------------------------------------------------------- */

void page_loss(double value, char text[32]);
void page_steps(int64_t first, int64_t last, char text[64]); /* "step 4", "steps 1-4" with an en dash */
/* Seconds that the remaining steps will take at the mean time of a step; NaN: unknown. */
double page_seconds_left(const RunView *view);
const Start *page_last_start(const History *history); /* NULL: none is known */
bool page_tells_setting(const Option *option);

/* -- Sections ------------------------------------------------------------------------------------------------------ */

/* Of one run. */
void page_warnings(const Page *page); /* also of several */
void page_numbers(const Page *page);
void page_loss_section(const Page *page); /* also of several: one curve for each */
void page_other_curves(const Page *page); /* likewise */
void page_load(const Page *page);
void page_data(const Page *page);
void page_starts(const Page *page);
void page_settings(const Page *page);

/* Of several. */
void page_figures(const Page *page);
void page_differences(const Page *page);
void page_run_names(const Page *page); /* the legend */

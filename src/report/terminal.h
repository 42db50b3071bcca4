/* The page of runs as text for a terminal: the loss as a curve of Braille dots, figures, and events. */
#pragma once

#include "report/report.h"

/* `rows` lines of at most `columns` columns, without a newline after the last; the caller frees. Colours are escape
 * sequences. What comes from a run has no control characters. */
char *terminal_frame(const Report *report, int columns, int rows, bool color);

/* The page of runs as text for a terminal: the loss as a curve of Braille dots, figures, and events. */
#pragma once

#include "report/report.h"

/* Returns `rows` lines of at most `columns` columns, without a newline after the last; the caller
 * frees them. Colors are escape sequences. Text from a run has no control characters. */
char *terminal_frame(const Report *report, int columns, int rows, bool color);

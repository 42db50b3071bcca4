/* Text for a terminal of 80 columns: help, explanations, the list of commands. */
#pragma once

#include <stdio.h>

enum { WRAP_WIDTH = 80 };

/* Prints the words of `text` and a newline. The cursor is at `column` (0 based); lines after the first begin at
 * `indent`, and none is wider than WRAP_WIDTH unless a word is; "a|b|c" may be broken behind a bar. Newlines in the text are spaces. */
void wrap_words(FILE *file, const char *text, int column, int indent);
/* Prints paragraphs. An empty line separates two; a line that begins with a space stays a line of its own, and what
 * does not fit continues below its second column, that after two or more spaces. */
void wrap_text(FILE *file, const char *text);

/* Line breaks at words, never inside a command, which people copy: texts of help, for 80 columns, and lines that a
 * program prints, for the width of its terminal. */
#pragma once

#include <stdio.h>

enum { WRAP_WIDTH = 80 };

/* Prints the words of `text` and a newline. The cursor is at `column` (0 based); lines after the first begin at
 * `indent`, and none is wider than WRAP_WIDTH unless a word is; "a|b|c" may be broken behind a bar. Newlines in the
 * text are spaces. */
void wrap_words(FILE *file, const char *text, int column, int indent);
/* Prints paragraphs. An empty line separates two; a line that begins with a space stays a line of its own, and what
 * does not fit continues below its second column, that after two or more spaces. */
void wrap_text(FILE *file, const char *text);

/* The columns of the terminal that stdout or stderr, given as its descriptor, is: COLUMNS where it is set, else what the
 * terminal says. A pipe to `smelt launch` has those of the launcher's terminal, in wrap_variable(). 0: no terminal. */
int wrap_columns(int descriptor);
/* The name of the environment variable that says how wide the terminal at the other end of the pipe is. */
const char *wrap_variable(int descriptor);
/* Prints `text`, without a newline of its own. Lines wider than `columns` are broken at blanks and go on below their
 * second column, that after two or more blanks; a word is never cut. columns == 0: nothing is broken. */
void wrap_lines(FILE *file, const char *text, int columns);

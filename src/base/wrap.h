/* Line breaks at words, never inside a command that users may copy: for help texts in 80 columns,
 * and for printed lines in the width of the terminal. */
#pragma once

#include <stdio.h>

enum { WRAP_WIDTH = 80 };

/* Prints the words of `text` and a newline. The cursor is at `column` (0 based); later lines begin
 * at `indent`. No line exceeds WRAP_WIDTH unless one word does; "a|b|c" may be broken after a bar.
 * Newlines in the text are spaces. */
void wrap_words(FILE *file, const char *text, int column, int indent);
/* Prints paragraphs. An empty line separates two paragraphs. A line that begins with a space is
 * printed separately. Its overflow continues below its second column, after two or more spaces. */
void wrap_text(FILE *file, const char *text);

/* Returns the columns of the terminal on stdout or stderr, given as its descriptor: COLUMNS if it
 * is set, else the terminal's width. A pipe to `smelt launch` has the columns of the launcher's
 * terminal, from wrap_variable(). 0: no terminal. */
int wrap_columns(int descriptor);
/* Returns the name of the environment variable with the width of the terminal at the other end of
 * the pipe. */
const char *wrap_variable(int descriptor);
/* Prints `text` without an added newline. Lines wider than `columns` are broken at blanks and
 * continue below their second column, which follows two or more blanks; words are never cut.
 * columns == 0: nothing is broken. */
void wrap_lines(FILE *file, const char *text, int columns);

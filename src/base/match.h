/* Scores of generated texts: whether a text gives the expected answer. Used by `smelt eval` and by
 * rewards of reinforcement learning. A text is bytes that a model made: it may be empty, contain
 * zeros, and not be UTF-8. An answer is a string.
 *
 * Numbers are decimal, with a sign, thousands separated by commas, a fraction, an exponent (1e-5),
 * or the quotient of two such numbers (3/4, \frac{3}{4}). They are compared exactly, as quotients of
 * integers: 0.5, .50, 1/2 and \frac{2}{4} are equal, 0.33 and 1/3 are not. A number of more than
 * MATCH_DIGITS digits is not a number. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { MATCH_DIGITS = 256 };

/* The text is the answer; white space at both ends of each does not count. */
bool match_exact(const char *text, size_t size, const char *answer);
/* The last number of the text equals the last number of the answer. A hyphen after a letter, a digit
 * or a bracket is not a sign (2024-05, (1)-3); currency signs and percent signs do not count. False
 * without a number in both. */
bool match_last_number(const char *text, size_t size, const char *answer);
/* The content of the last \boxed{...} or \boxed X of the text is the answer, or that of the answer's
 * own last \boxed. Both are numbers that are equal, or expressions that are the same after LaTeX's
 * spaces, \left, \right, \text, units after a number ("\text{ cm}"), degrees, dollar and percent
 * signs are removed, \frac12 becomes \frac{1}{2}, \sqrt3 becomes \sqrt{3}, and "x=" goes from the
 * start (Hendrycks et al., arXiv 2103.03874). False if the text has no \boxed, the last one has no
 * end, or an expression exceeds 10,000 bytes. */
bool match_boxed(const char *text, size_t size, const char *answer);

/* A regular expression in the syntax of PCRE2. */
typedef struct MatchRegex MatchRegex;
/* `numbers`: a number gives an answer that is an equal number. NULL with ERROR_USAGE if the pattern is
 * not valid. */
MatchRegex *match_regex_compile(const char *pattern, bool numbers, Error *error);
void match_regex_free(MatchRegex *regex); /* NULL is allowed */
/* Sets *matches: the pattern occurs in the text, and with an answer, the first occurrence gives it:
 * match_exact of its first group that is not empty, or of the whole occurrence if the pattern has no
 * groups. `answer` may be NULL. ERROR_DATA if the search takes more steps than PCRE2 allows. */
bool match_regex(const MatchRegex *regex, const char *text, size_t size, const char *answer, bool *matches, Error *error);

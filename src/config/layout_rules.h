/* The constraints on a layout: one table of rules (layout_rules.c). It is checked when settings are
 * read, when the number of ranks is known, and in every search for a layout. A layout that breaks a
 * rule is refused, and the message names the nearest valid layout. */
#pragma once

#include "config/config.h"

/* Returns the ranks of one copy of the model: layout.tp x pp x cp x ep. */
int64_t layout_copy_ranks(const LayoutConfig *layout);
/* Returns the chunks of layers per pipeline stage; 1 if the pipeline is not interleaved. */
int64_t layout_chunks(const LayoutConfig *layout);
/* Returns the number of ranks that the settings request: layout.dp copies, or one copy if layout.dp
 * is 0. */
int64_t layout_asked_ranks(const LayoutConfig *layout);

/* Returns whether the layout breaks a rule on `ranks` ranks (0: not known yet), and describes the
 * first such rule in a few words: "layout.tp=3 does not divide model.heads=8". The configuration
 * has passed all other checks. */
bool layout_breaks(const Config *config, int64_t ranks, char *text, size_t size);
/* ERROR_USAGE if the layout breaks a rule; the message gives the rule, its reason and the nearest
 * valid layout. */
bool layout_check(const Config *config, int64_t ranks, Error *error);
/* Checks the layout before ranks have met, with the rules that hold for any number of ranks.
 * Another rank's settings may differ; this is reported when the ranks meet. The nearest layout is
 * for the `started` ranks; 0: not known. */
bool layout_check_early(const Config *config, int64_t started, Error *error);

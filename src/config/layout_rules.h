/* What a layout must satisfy: one table of rules (layout_rules.c), asked when settings are checked, when ranks are known,
 * and by every search for a layout. A layout that breaks one is refused with the nearest that breaks none. */
#pragma once

#include "config/config.h"

/* Ranks of one copy of the model: layout.tp x pp x cp x ep. */
int64_t layout_copy_ranks(const LayoutConfig *layout);
/* Chunks of layers on each stage of a pipeline; 1 where it is not interleaved. */
int64_t layout_chunks(const LayoutConfig *layout);
/* The ranks that the settings ask for: those of layout.dp copies, or of one where layout.dp is 0. */
int64_t layout_asked_ranks(const LayoutConfig *layout);

/* The first rule that the layout breaks on so many ranks (0: not known yet) in a few words, as in "layout.tp=3 does not
 * divide model.heads=8"; false when it breaks none. The configuration has passed all other checks. */
bool layout_breaks(const Config *config, int64_t ranks, char *text, size_t size);
/* ERROR_USAGE where the layout breaks a rule: which one, why there is such a rule, and the nearest layout without. */
bool layout_check(const Config *config, int64_t ranks, Error *error);
/* Likewise before ranks have met, by the rules that hold for any number of them: another rank's settings may be other ones,
 * which is said once they meet. The nearest layout is for the ranks that were started; 0: not known. */
bool layout_check_early(const Config *config, int64_t started, Error *error);

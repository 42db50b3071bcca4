/* layout=auto: replaces the given layout by the fastest one that fits, by the forecast. */
#pragma once

#include "advise/cluster.h"
#include "config/config.h"

/* Sets dp, tp, pp with its schedule and chunks, cp, ep, zero and, without a mixture of phases,
 * batch.sequences and recompute, for the GPUs of the cluster. Axes that are not 1 are kept.
 * batch.sequences is kept if the objective depends on it (config_needs_microbatch). If the run's
 * folder has a layout for this number of ranks, that layout is kept, so that a restarted run
 * continues unchanged. Settings that the layout does not use get their defaults. Prints the choice
 * and its reasons. `config` has passed config_check. ERROR_MEMORY if no layout fits. */
bool auto_layout(Config *config, const Cluster *cluster, FILE *file, Error *error);

/* layout=auto: the layout that the forecast finds quickest among those that fit takes the place of what was given. */
#pragma once

#include "advise/cluster.h"
#include "config/config.h"

/* Sets dp, tp, pp with its schedule and chunks, cp, ep, zero and, without a mixture of phases, batch.sequences and
 * recompute, for the GPUs of the cluster; axes that are not 1 stay, and batch.sequences where the objective depends on it
 * (config_needs_microbatch). Where the run's folder has a layout for as many ranks, that stays, so that a run which is
 * started again goes on as it was. Settings that the layout has no use for get their defaults. Prints what was found and
 * why. `config` has passed config_check. ERROR_MEMORY when no layout fits. */
bool auto_layout(Config *config, const Cluster *cluster, FILE *file, Error *error);

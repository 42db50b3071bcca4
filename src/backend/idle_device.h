/* A device that computes nothing and has no memory, for rehearsals: programs run on it only to issue
 * their collectives. Its addresses must not be dereferenced, except those of small host blocks. */
#pragma once

#include "graph/graph.h"

/* Reports that `part` (0 to 1) of the work of a node is done. Nodes count from 1. */
typedef void (*IdleWork)(void *context, int node, double part);

/* Returns the back end that rehearses programs planned for `real`. The caller closes its device. */
Backend idle_device_open(const Backend *real, IdleWork work, void *context);

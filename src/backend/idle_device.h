/* A device that computes nothing and has no memory, for rehearsals: programs run on it only to issue
 * their collectives. Addresses that it allocates must not be used, except those of host memory. */
#pragma once

#include "graph/graph.h"

/* Called when `part` of the work of a program's node, counted from 1, is done. */
typedef void (*IdleWork)(void *context, int node, double part);

/* Returns the back end that rehearses programs planned for `real`. The caller closes its device. */
Backend idle_device_open(const Backend *real, IdleWork work, void *context);

/* A device that computes nothing and has no memory, for rehearsals: programs run on it only to issue
 * their collectives. Its addresses must not be dereferenced, except those of small host blocks. */
#pragma once

#include "graph/graph.h"

/* The reports of an idle device. Streams and events that it opened count from 0; stream -1 is its own. */
typedef struct IdleReports {
    void (*work)(void *context, int node, double part);                /* `part` (0 to 1) of the work of a node, from 1, is done */
    void (*copy)(void *context, int stream, int64_t bytes);            /* between device and host memory */
    void (*order)(void *context, bool records, int event, int stream); /* the stream records an event, or waits for it */
} IdleReports;

/* Returns the back end that rehearses programs planned for `real`. The caller closes its device. */
Backend idle_device_open(const Backend *real, const IdleReports *reports, void *context);

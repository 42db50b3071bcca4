/* The steps of differentiation. */
#pragma once

#include "graph/graph.h"

/* Reorders the nodes from `forward` on within each part, so that fewer nodes wait for collectives
 * (overlap.c). */
void graph_overlap_collectives(Graph *graph, int forward);

/* What differentiation is made of. */
#pragma once

#include "graph/graph.h"

/* Reorders the nodes from `forward` on, in each part, so that fewer wait for collectives (overlap.c). */
void graph_overlap_collectives(Graph *graph, int forward);

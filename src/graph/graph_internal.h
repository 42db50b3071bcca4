/* What differentiation is made of. */
#pragma once

#include "graph/graph.h"

/* Reorders the nodes from `forward` on, in each part, so that fewer wait for collectives (overlap.c). */
void graph_overlap_collectives(Graph *graph, int forward);

/* Cuts nodes before `forward`, and those that compute them again, into halves of rows (halves.c). */
void graph_cut_halves(Graph *graph, int forward);

/* Which linear layers of a program are computed in fp8, which are not, and why. */
#pragma once

#include <stdio.h>

#include "config/config.h"
#include "graph/graph.h"

/* A table by kind of layer, and the part of their arithmetic that is in fp8; nothing without fp8.recipe. `graph` is of the
 * configuration's model. */
void fp8_print(const Graph *graph, const Config *config, FILE *file);
/* ", 75.0% of linear layers in fp8", by their arithmetic; nothing without fp8.recipe. For phases, whose microbatches differ. */
void fp8_print_part(const Graph *graph, const Config *config, FILE *file);

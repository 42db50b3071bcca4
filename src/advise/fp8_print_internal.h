/* Lists the linear layers of a program that are computed in FP8, and the reasons for the others. */
#pragma once

#include <stdio.h>

#include "config/config.h"
#include "graph/graph.h"

/* Prints a table by kind of layer, and the FP8 fraction of their arithmetic; nothing without
 * fp8.recipe. `graph` is of the configuration's model. */
void fp8_print(const Graph *graph, const Config *config, FILE *file);
/* Prints ", 75.0% of linear layers in fp8", by their arithmetic; nothing without fp8.recipe. For
 * phases, whose microbatches differ. */
void fp8_print_part(const Graph *graph, const Config *config, FILE *file);

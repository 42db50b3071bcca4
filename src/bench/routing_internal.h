/* The routing that smelt bench train gives to a model's experts, so that its figures can be compared
 * with those of other programs. */
#pragma once

#include "bench/bench.h"
#include "model/model.h"
#include "train/routing_trace.h"

/* Fills Model.routing of a started program. With random and trace, ranks with different rows have
 * different choices; with balanced, all ranks have the same choices.
 *   balanced  the experts of a layer have the same number of choices if their number divides the rows;
 *             otherwise the numbers differ slightly
 *   random    each row chooses k different experts, all equally likely
 *   trace     consecutive rows of the trace, from the beginning again after its end */
void bench_fill_routing(const Model *model, const ModelConfig *config, Executor *executor, BenchRouting routing, const RoutingTrace *trace);
const char *bench_routing_name(BenchRouting routing, const ModelConfig *config);

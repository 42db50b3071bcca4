/* How unevenly routers spread rows over the ranks that share the experts, according to a trace of a trained model
 * (train/routing_trace.h). Every layer waits for the rank with the most rows. */
#pragma once

#include "train/routing_trace.h"

/* The choices of each expert in a trace, and then those of no expert: [layers, experts + 1]. Zero-initialize. Owns
 * `choices`. */
typedef struct RoutedExperts { int64_t layers, experts, *choices; } RoutedExperts;

/* Reads a trace, which must have every layer with experts. ERROR_USAGE, ERROR_CHECKPOINT. */
bool routed_read(RoutedExperts *routed, const char *path, const ModelConfig *model, Error *error);
void routed_free(RoutedExperts *routed);
/* Returns the rows that the busiest of `ranks` ranks has in a layer, divided by its share if all choices were spread evenly: at
 * most `ranks`, and below 1 if many rows choose no expert. 1 for a layer that the trace lacks, and if `routed` is NULL. */
double routed_load(const RoutedExperts *routed, int64_t layer, int ranks);

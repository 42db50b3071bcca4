/* How unevenly routers spread rows over the ranks that share the experts, according to a trace of a trained model
 * (train/routing_trace.h). Every layer waits for the rank with the most rows. */
#pragma once

#include "train/routing_trace.h"

/* The choices of each expert in a trace: [layers, experts]. Zero-initialize. Owns `choices`. */
typedef struct RoutedExperts { int64_t layers, experts, *choices; } RoutedExperts;

/* Reads a trace, which must have every layer with experts. ERROR_USAGE, ERROR_CHECKPOINT. */
bool routed_read(RoutedExperts *routed, const char *path, const ModelConfig *model, Error *error);
void routed_free(RoutedExperts *routed);
/* Returns the rows that the busiest of `ranks` ranks has in a layer, divided by an even share: 1 to `ranks`. Choices that skip
 * the experts do not count. 1 for a layer that the trace lacks, and if `routed` is NULL. */
double routed_load(const RoutedExperts *routed, int64_t layer, int ranks);

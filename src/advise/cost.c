/* The formulas of cost.h. Owns nothing. */
#include "advise/cost.h"

#include <math.h>

static const double hour = 3600, day = 86400;

/* Returns Daly's optimal seconds of work between two checkpoints. A checkpoint takes `checkpoint`
 * seconds; interruptions are `between` seconds apart. */
static double best_interval(double checkpoint, double between) {
    if (!(between < INFINITY)) return INFINITY;
    if (checkpoint >= 2 * between) return between;
    double half = checkpoint / (2 * between);
    return sqrt(2 * checkpoint * between) * (1 + sqrt(half) / 3 + half / 9) - checkpoint;
}

/* Returns the wall-clock seconds for `work` seconds of training in pieces of `interval`. If an
 * interruption is announced early enough for a checkpoint, it costs only that checkpoint and the
 * restart. */
static double with_interruptions(const Offer *offer, double work, double interval, double between) {
    double pieces = work / interval, checkpoints = offer->checkpoint > 0 ? pieces * offer->checkpoint : 0;
    if (!(between < INFINITY)) return work + (isfinite(interval) ? checkpoints : 0);
    if (offer->warning >= offer->checkpoint && offer->warning > 0) {
        double lost = (offer->checkpoint + offer->restart) / between;
        return lost < 1 ? (work + checkpoints) / (1 - lost) : INFINITY;
    }
    if (offer->checkpoint <= 0 && offer->interval <= 0) return work * exp(offer->restart / between); /* the limit for free checkpoints */
    return between * exp(offer->restart / between) * expm1((interval + offer->checkpoint) / between) * pieces;
}

CostEstimate cost_of(const Offer *offer, double tokens) {
    double seconds = tokens / (offer->rate * (double)offer->gpus), nodes = ceil((double)offer->gpus / (double)offer->per_node);
    CostEstimate cost = {.hours = seconds / hour, .between = offer->interruptions > 0 ? day / (offer->interruptions * nodes) : INFINITY};
    cost.dollars = cost.hours * offer->price * (double)offer->gpus;
    cost.young = sqrt(2 * offer->checkpoint * cost.between);
    cost.interval = offer->interval > 0 ? offer->interval : best_interval(offer->checkpoint, cost.between);
    double real = with_interruptions(offer, seconds, cost.interval, cost.between);
    cost.real_hours = real / hour;
    cost.real_dollars = cost.real_hours * offer->price * (double)offer->gpus;
    cost.interruptions = real / cost.between;
    return cost;
}

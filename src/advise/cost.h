/* The cost of a token budget: dollars and days from throughput and price, including interruptions
 * and checkpoints.
 *
 * dollars = tokens / (tokens/s * 3600) * dollars per hour, per GPU. Interruptions extend the time
 * by Daly's model of checkpoint and restart (J. T. Daly, "A higher order estimate of the optimum
 * checkpoint interval", 2006): eq. 20 for the time, eq. 37 for the interval. */
#pragma once

#include <stdint.h>

typedef struct Offer {
    double price; /* dollars per GPU and hour */
    double rate;  /* tokens/s of a GPU */
    int64_t gpus, per_node;
    double interruptions; /* per node and day: reclaimed spot instances, failures */
    double checkpoint;    /* seconds that a checkpoint delays training */
    double restart;       /* seconds from an interruption to the next step */
    double warning;       /* seconds between the announcement and the interruption; if this suffices for a checkpoint, no work is lost */
    double interval;      /* seconds between checkpoints; 0: optimal */
} Offer;

typedef struct CostEstimate {
    double hours, dollars;           /* without interruptions and checkpoints */
    double between;                  /* seconds between two interruptions of the job; INFINITY: there are none */
    double interval;                 /* seconds between checkpoints, given or optimal */
    double young;                    /* Young's sqrt(2 C M), for comparison */
    double real_hours, real_dollars; /* including all of these */
    double interruptions;            /* expected number */
} CostEstimate;

CostEstimate cost_of(const Offer *offer, double tokens);

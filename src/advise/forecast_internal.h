/* What whole forecasts and the bounds of a search have in common. */
#pragma once

#include "advise/forecast.h"

/* One run of a program: what it computes, what its collectives take, and how long computing waits for them. The
 * collectives run one after the other beside the computing, each from its node on until the node that waits for it. */
typedef struct ProgramTimes {
    WorkTimes work;
    double communication, waits;
} ProgramTimes;
ProgramTimes forecast_program(const Graph *graph, const Cluster *cluster);

/* Seconds of the collectives of gradients and weights in a step of `count` microbatches, in all and not hidden behind
 * computing, which takes `forward` and `backward` seconds of each. */
typedef struct ExchangeTimes { double communication, exposed; } ExchangeTimes;
ExchangeTimes forecast_exchange(
    const Layout *layout, Precision precision, const Cluster *cluster, double forward, double backward, double count);

/* Seconds in which one rank makes all of a parameter's update. */
double forecast_update(const Graph *graph, const Parameter *parameter, const OptimizerConfig *config, const Rates *rates);

/* The configuration of a rank: with the layout, as many copies of the model as there are GPUs for, and a step of whole
 * rounds of microbatches, of which each rank runs so many. */
Config forecast_rank(const Config *config, const Cluster *cluster, const ForecastLayout *layout, int64_t *microbatches);

/* -- Bounds (forecast_bound.c) ------------------------------------------------------------------------------------- */

/* Sums over the parameters that the same ranks share out, of a program. */
typedef struct ParameterGroup {
    MeshAxes axes; /* over which gradients are summed */
    bool vectors, frozen;
    double bytes;   /* in the MASTER arena */
    double moments; /* bytes of optimizer state */
    double update;  /* seconds in which one rank makes all updates */
    double largest; /* bytes of the largest parameter */
} ParameterGroup;

/* What one microbatch comes to on a rank. */
enum { PROGRAM_GROUPS = 16 };
typedef struct ProgramSums {
    double forward, backward, waits; /* seconds */
    double head;                     /* seconds between the last layer's forward and backward pass */
    double guess, head_guess;        /* of the program and of this part, as op_time guesses them */
    double activations;              /* the most bytes alive at once */
    ParameterGroup groups[PROGRAM_GROUPS];
    int group_count;
} ProgramSums;

/* Programs of models with few layers and one stage, from which those of any number follow: all layers are alike. */
typedef struct SmallPrograms {
    int64_t layers[2]; /* the same twice where the model has no more */
    ProgramSums sums[2];
} SmallPrograms;

/* Builds both for the ranks' tp, cp and ep, the sequences and the recomputation of a layout, whose other settings are of no
 * account. ERROR_USAGE. */
bool small_programs(
    SmallPrograms *small, const Config *config, Device *device, const Cluster *cluster, const ForecastLayout *layout, Error *error);

/* Less than what a whole forecast of the layout comes to: seconds of a step and bytes of the fullest rank. */
typedef struct ForecastBound { double seconds, memory; } ForecastBound;
ForecastBound forecast_bound(const SmallPrograms *small, const Config *config, const Cluster *cluster, const ForecastLayout *layout);

/* -- Candidates (forecast_search.c) -------------------------------------------------------------------------------- */

typedef struct ForecastCandidate {
    ForecastLayout layout;
    ForecastBound bound;
} ForecastCandidate;
/* Every layout that a search looks at, with its bound, for the caller to free; NULL with ERROR_USAGE. */
ForecastCandidate *forecast_candidates(
    const Config *config, const Cluster *cluster, const ForecastFreedom *freedom, int *count, Error *error);

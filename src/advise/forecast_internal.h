/* Shared by whole forecasts and the bounds of a search. */
#pragma once

#include "advise/forecast.h"

/* One run of a program: its compute, the time of its collectives, and the time that compute waits
 * for them. The collectives run one after the other, concurrently with compute, each from its node
 * until the node that waits for it. */
typedef struct ProgramTimes {
    WorkTimes work;
    double communication, waits;
} ProgramTimes;
ProgramTimes forecast_program(const Graph *graph, const Cluster *cluster);

/* Seconds of the collectives of gradients and weights in a step of `count` microbatches: in total,
 * and the part that compute does not hide. A microbatch computes for `forward` and `backward`
 * seconds. */
typedef struct ExchangeTimes { double communication, exposed; } ExchangeTimes;
ExchangeTimes forecast_exchange(
    const Layout *layout, Precision precision, const Cluster *cluster, double forward, double backward, double count);

/* Returns the seconds in which one rank makes all of a parameter's update. */
double forecast_update(const Graph *graph, const Parameter *parameter, const OptimizerConfig *config, const Rates *rates);

/* Returns the seconds of the part of a parameter's update that the session's rank makes. */
double forecast_rank_update(const Session *session, int parameter, const Rates *rates);
extern const double forecast_skew; /* fraction of compute time that ranks wait for the slowest rank */

/* Returns the configuration of a rank under the layout: as many copies of the model as the GPUs
 * allow, and a step of whole rounds of microbatches. *microbatches is the number that each rank
 * runs. */
Config forecast_rank(const Config *config, const Cluster *cluster, const ForecastLayout *layout, int64_t *microbatches);

/* -- Bounds (forecast_bound.c) ------------------------------------------------------------------------------------- */

/* Sums over the parameters of a program that the same ranks shard. */
typedef struct ParameterGroup {
    MeshAxes axes; /* over which gradients are summed */
    bool vectors, frozen;
    double bytes;   /* in the MASTER arena */
    double moments; /* bytes of optimizer state */
    double update;  /* seconds in which one rank makes all updates */
    double largest; /* bytes of the largest parameter */
} ParameterGroup;

/* The sums of one microbatch on a rank. */
enum { PROGRAM_GROUPS = 16 };
typedef struct ProgramSums {
    double forward, backward, waits; /* seconds */
    double head;                     /* seconds between the last layer's forward and backward pass */
    double guess, head_guess;        /* of the program and of the head, as op_time estimates them */
    double activations;              /* maximum of live bytes */
    ParameterGroup groups[PROGRAM_GROUPS];
    int group_count;
} ProgramSums;

/* Programs of one stage with few layers. If all layers are alike, two programs determine those
 * of any number of layers; otherwise both have all layers. */
typedef struct SmallPrograms {
    int64_t layers[2]; /* equal if the model has no more */
    ProgramSums sums[2];
} SmallPrograms;

/* Builds both programs. They depend only on tp, cp, ep, the sequences and the recomputation of
 * the layout. ERROR_USAGE. */
bool small_programs(
    SmallPrograms *small, const Config *config, Device *device, const Cluster *cluster, const ForecastLayout *layout, Error *error);

/* Lower bounds of a whole forecast of the layout: seconds of a step and bytes of the fullest
 * rank. */
typedef struct ForecastBound { double seconds, memory; } ForecastBound;
ForecastBound forecast_bound(const SmallPrograms *small, const Config *config, const Cluster *cluster, const ForecastLayout *layout);

/* -- Candidates (forecast_search.c) -------------------------------------------------------------------------------- */

typedef struct ForecastCandidate {
    ForecastLayout layout;
    ForecastBound bound;
} ForecastCandidate;
/* Returns every layout that a search considers, with its bound, for the caller to free; NULL with
 * ERROR_USAGE. */
ForecastCandidate *forecast_candidates(
    const Config *config, const Cluster *cluster, const ForecastFreedom *freedom, int *count, Error *error);

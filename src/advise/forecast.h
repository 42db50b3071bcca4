/* What a training step would need on hardware that is not here: memory per rank and time, modelled from the very
 * programs that training would run (their planned memory, operations, bytes and collectives). Nothing in it is a
 * measurement of the configuration, and it is printed so. */
#pragma once

#include "advise/cluster.h"
#include "advise/traffic.h"
#include "advise/work.h"
#include "train/session.h"

/* How a step is spread over the cluster: the settings that layout=auto and `smelt forecast` choose. ranks.dp is what the
 * GPUs come to. */
typedef struct ForecastLayout {
    LayoutConfig ranks;
    int recompute;
    int64_t sequences;
} ForecastLayout;

typedef struct Forecast {
    ForecastLayout layout;
    int64_t microbatches; /* of a rank and step */
    double tokens;        /* of a step */
    int64_t copies, idle; /* of the model; those that have no microbatch in a step's last round */
    Budget memory;        /* of the fullest stage's rank, with what it gathers; its total includes what driver and libraries take */
    int stage;            /* the fullest */
    bool fits;
    WorkTimes work;           /* of a microbatch, of the stage that computes longest */
    double optimizer;         /* seconds of a step */
    double bubble;            /* seconds of a step in which that stage waits for others of the pipeline */
    double waits;             /* seconds of a step that collectives inside of programs take beyond what computes beside them */
    double exposed;           /* the same of gradients and weights */
    double communication;     /* seconds of a step of all collectives, hidden or not */
    double step;              /* seconds */
    double tokens_per_second; /* of one GPU */
    double flops;             /* FLOP/s of one GPU by the programs' operations */
    TrafficTable traffic;     /* of that stage's rank */
    Mesh mesh;                /* of that rank, for names of groups */
} Forecast;

/* Of one layout. `config` must have passed config_check; its layout, batch.sequences and recompute are replaced.
 * ERROR_USAGE where the layout breaks a rule, or the precision is not for GPUs. */
bool forecast_layout(Forecast *forecast, const Config *config, const Cluster *cluster, const ForecastLayout *layout, Error *error);

/* Seconds of an all-gather or a reduce-scatter over all GPUs of the cluster, in which every GPU gets or gives `bytes` in
 * all. An all-reduce takes twice as long. */
double forecast_all_gather(const Cluster *cluster, double bytes);

/* -- Search -------------------------------------------------------------------------------------------------------- */

/* What a search may change; the rest stays as configured. Of the axes those stay that are not 1. */
typedef struct ForecastFreedom {
    bool axes, zero;
    bool memory; /* recomputation, and microbatches of powers of two where the objective is the same with any */
} ForecastFreedom;

enum { FORECAST_FOUND = 5, FORECAST_REFUSALS = 12 };
/* Why layouts were not tried: the rule that they break. */
typedef struct ForecastRefusal {
    char reason[160];
    int layouts;
} ForecastRefusal;
typedef struct ForecastSearch {
    Forecast found[FORECAST_FOUND]; /* the quickest that fit, quickest first; or the one that needs least memory */
    int count, tried, unfit, whole; /* of those tried: which do not fit, and which were forecast whole */
    ForecastRefusal refusals[FORECAST_REFUSALS];
    int refusal_count;
} ForecastSearch;

/* Where no layout fits, found[0] is the one that needs the least memory, with fits = false. ERROR_USAGE where the given
 * settings allow no layout. */
bool forecast_search(ForecastSearch *search, const Config *config, const Cluster *cluster, const ForecastFreedom *freedom, Error *error);

/* The configuration with a layout in place of its own. */
Config forecast_apply(const Config *config, const ForecastLayout *layout);

/* Tables of memory, traffic and time, and every assumption; and how the layout was found. */
void forecast_print(const Forecast *forecast, const Config *config, const Cluster *cluster, FILE *file);
void forecast_print_search(const ForecastSearch *search, const Config *config, FILE *file);

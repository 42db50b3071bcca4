/* The needs of a training step on other hardware: memory per rank and time, modeled from the
 * programs that training would run (their planned memory, operations, bytes and collectives).
 * Nothing in a forecast is measured for the configuration, and it is printed as a model. */
#pragma once

#include "advise/cluster.h"
#include "advise/traffic.h"
#include "advise/work.h"
#include "session/session.h"

/* How a step is spread over the cluster: the settings that layout=auto and `smelt forecast` choose.
 * ranks.dp follows from the number of GPUs. */
typedef struct ForecastLayout {
    LayoutConfig ranks;
    int recompute;
    int64_t sequences;
} ForecastLayout;

typedef struct Forecast {
    ForecastLayout layout;
    int64_t microbatches; /* per rank and step */
    double tokens;        /* per step */
    int64_t copies, idle; /* copies of the model; copies without a microbatch in the last round of a step */
    Budget memory;        /* of a rank of the fullest stage, with gathered data; its total includes driver and libraries */
    int stage;            /* the fullest stage */
    bool fits;
    WorkTimes work;           /* of a microbatch, of the stage with the longest compute */
    double optimizer;         /* seconds per step */
    double offload;           /* seconds per step of copies between device and host memory beyond the work that they overlap */
    double bubble;            /* seconds per step in which that stage waits for other stages */
    double waits;             /* seconds per step that collectives inside programs take beyond the concurrent compute */
    double exposed;           /* the same for gradients and weights */
    double communication;     /* seconds per step of all collectives, hidden or not */
    double step;              /* seconds */
    double tokens_per_second; /* per GPU */
    double flops;             /* FLOP/s per GPU, by the programs' operations */
    TrafficTable traffic;     /* of that stage's rank */
    Mesh mesh;                /* of that rank, for names of groups */
} Forecast;

/* Forecasts one layout. `config` must have passed config_check; its layout, batch.sequences and
 * recompute are replaced. ERROR_USAGE if the layout breaks a rule, or the precision is not
 * supported on GPUs. */
bool forecast_layout(Forecast *forecast, const Config *config, const Cluster *cluster, const ForecastLayout *layout, Error *error);

/* -- Search -------------------------------------------------------------------------------------------------------- */

/* The freedom of a search; all else stays as configured. Axes that are not 1 are kept. */
typedef struct ForecastFreedom {
    bool axes, zero;
    bool memory; /* recomputation, and microbatches of powers of two if the objective does not depend on their size */
} ForecastFreedom;

enum { FORECAST_FOUND = 5, FORECAST_REFUSALS = 12 };
/* A rule that layouts break, and the number of layouts that were not tried for it. */
typedef struct ForecastRefusal {
    char reason[160];
    int layouts;
} ForecastRefusal;
typedef struct ForecastSearch {
    Forecast found[FORECAST_FOUND]; /* the fastest that fit, fastest first; or the one that needs the least memory */
    int count, tried, unfit, whole; /* tried; of these, those that do not fit, and those that had a whole forecast */
    ForecastRefusal refusals[FORECAST_REFUSALS];
    int refusal_count;
} ForecastSearch;

/* If no layout fits, found[0] is the one that needs the least memory, with fits = false.
 * ERROR_USAGE if the given settings permit no layout. */
bool forecast_search(ForecastSearch *search, const Config *config, const Cluster *cluster, const ForecastFreedom *freedom, Error *error);

/* Returns the configuration with `layout` instead of its own layout. */
Config forecast_apply(const Config *config, const ForecastLayout *layout);

/* Print tables of memory, traffic and time, and every assumption; and how the layout was found. */
void forecast_print(const Forecast *forecast, const Config *config, const Cluster *cluster, FILE *file);
void forecast_print_search(const ForecastSearch *search, const Config *config, FILE *file);

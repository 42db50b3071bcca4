/* What a training step would need on hardware that is not here: memory per rank and time, modelled from the very
 * program that training would run (its planned memory, operations and bytes) and from volumes of collectives.
 * Nothing in it is a measurement of the configuration, and it is printed so. / */
#pragma once

#include "train/session.h"
#include "advise/work.h"

typedef struct Cluster {
    Hardware hardware;
    const Measured *measured; /* NULL: the table's rates */
    int64_t gpus, per_node;   /* in all; of a node, at most */
} Cluster;

/* How a step is spread over the cluster: data parallelism over all GPUs, with ZeRO's stage (arXiv 1910.02054): 1
 * shards master weights and optimizer state, 2 also gradients, 3 also weights. */
typedef struct ForecastLayout {
    int zero, recompute;
    int64_t sequences;
} ForecastLayout;

typedef struct Forecast {
    ForecastLayout layout;
    int64_t microbatches; /* of a rank and step */
    double tokens;        /* of a step: batch.tokens, or the next multiple of what all ranks take */
    Budget memory;        /* of rank 0, with what it gathers; its total includes what driver and libraries take */
    bool fits;
    WorkTimes work;                        /* of a microbatch */
    double optimizer;                      /* seconds of a step */
    double communication, exposed;         /* seconds of a step: collectives; of which not hidden behind computing */
    double step, tokens_per_second, flops; /* tokens/s of one GPU; FLOP/s of one GPU by the program's operations */
} Forecast;

/* Of one layout. `config` must have passed config_check; its batch.sequences and recompute are replaced by the
 * layout's. ERROR_USAGE where the precision is not for GPUs. */
bool forecast_layout(Forecast *forecast, const Config *config, const Cluster *cluster, const ForecastLayout *layout, Error *error);
/* The quickest that fits among ZeRO's stages (`zero` < 0; else that one) and, with `search`, recomputation and
 * microbatches of powers of two. Where none fits, the one that needs the least memory, with fits = false. */
bool forecast_best(Forecast *best, const Config *config, const Cluster *cluster, int zero, bool search, Error *error);

/* Bytes/s that a GPU passes on in a collective of all GPUs that a node has of the cluster. */
double forecast_node_bandwidth(const Cluster *cluster);
/* Seconds of an all-gather or a reduce-scatter over all GPUs of the cluster, in which every GPU gets or gives `bytes` in
 * all. An all-reduce takes twice as long. */
double forecast_all_gather(const Cluster *cluster, double bytes);

/* Tables of memory and time, and every assumption. */
void forecast_print(const Forecast *forecast, const Config *config, const Cluster *cluster, FILE *file);

/* What a rank sends in a step: the collectives of its programs and those of the exchange of gradients and weights, as
 * they are planned. */
#pragma once

#include "graph/op.h"
#include "train/session.h"

/* Of one bucket (layout/exchange.h): the sum of its gradients among the ranks that share it out, then of each shard among
 * replicas, and the gathering of its weights. Bytes are 0 where there is none. */
typedef struct BucketTraffic { Traffic reduce, replicas, gather; } BucketTraffic;
BucketTraffic traffic_of_bucket(const Layout *layout, const LayoutBucket *bucket, Precision precision);

/* How often gradients are summed in a step of so many microbatches: after each one where ranks hold only their shards of
 * gradients. */
double traffic_reductions(const Layout *layout, double microbatches);

/* Of an operation over the groups of some axes. */
typedef struct TrafficRow {
    const char *operation;
    MeshAxes axes;
    double count, bytes; /* in a step; sent by this rank */
} TrafficRow;
enum { TRAFFIC_ROWS = 32 };
typedef struct TrafficTable {
    TrafficRow rows[TRAFFIC_ROWS];
    int count;
} TrafficTable;
void traffic_count(TrafficTable *table, const Session *session);
/* "tp", "dp.cp": the axes of a group that have more than one rank, by the user's words. */
void traffic_name_axes(const Mesh *mesh, MeshAxes axes, char *text, size_t size);

/* Microbatches of a step of the rank that has most. */
int64_t traffic_microbatches(const Session *session);

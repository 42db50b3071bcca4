/* The bytes that a rank sends in a step: the planned collectives of its programs and of the
 * exchange of gradients and weights. */
#pragma once

#include "graph/op.h"
#include "session/session.h"

/* Traffic of one bucket (layout/exchange.h): the reduction of its gradients among the ranks that
 * shard it, the reduction of each shard among replicas, and the all-gather of its weights. 0
 * bytes: no such collective. */
typedef struct BucketTraffic { Traffic reduce, replicas, gather; } BucketTraffic;
BucketTraffic traffic_of_bucket(const Layout *layout, const LayoutBucket *bucket, Precision precision);

/* Returns how often gradients are summed in a step of `microbatches` microbatches: after each one
 * if ranks hold only their shards of gradients. */
double traffic_reductions(const Layout *layout, double microbatches);

/* An operation over the groups of some axes. */
typedef struct TrafficRow {
    const char *operation;
    MeshAxes axes;
    double count, bytes, messages; /* in a step; sent by this rank; messages of rings (ring_messages) */
} TrafficRow;
enum { TRAFFIC_ROWS = 32 };
typedef struct TrafficTable {
    TrafficRow rows[TRAFFIC_ROWS];
    int count;
} TrafficTable;
void traffic_count(TrafficTable *table, const Session *session);
/* Writes the axes of a group that have more than one rank, with the user's names: "tp", "dp.cp". */
void traffic_name_axes(const Mesh *mesh, MeshAxes axes, char *text, size_t size);

/* The communication schedule of a program: when it reads and writes each bucket of the layout, the
 * comm points at which communication starts or is waited for, and the slots. A slot is the memory
 * of a bucket that a rank holds only for a while. The program is static, so the schedule is known
 * before it runs.
 *
 * Arenas of a rank by ZeRO stage:
 *   WEIGHT    1, 2: the whole arena. 3: the rank's shards at local offsets; then slots, in which buckets are gathered
 *             while they are read. With layout->gathers_masters, MASTER has the shards of trained weights, and
 *             the program reads unsharded matrices from MASTER too
 *   QUANTIZED 1, 2: all frozen matrices. 3: the rank's shards of packed buckets; then their slots
 *   GRADIENT  1, and every stage of a pipeline, which reduces gradients once a step: the whole arena. 2, 3: sums of the
 *             rank's shards at local offsets; then slots, which hold buckets while the program adds to them and until
 *             they are reduced
 *
 * With layout->in_backward, one run of the program is a step, and all of the GRADIENT arena is
 * slots. A bucket's slot holds its gradients from the first node that adds to them until its
 * weights are updated; no later node reads these weights. Slots of vectors, which are small, stay
 * until the step ends.
 *
 * Made by program_plan for each program, between layout_place and executor_create. */
#pragma once

#include "layout/layout.h"

enum { PASS_FORWARD, PASS_BACKWARD, BUCKET_PASSES };

typedef struct BucketTimes {
    NodeSpan reads[BUCKET_PASSES]; /* of its weights */
    NodeSpan writes;               /* of its gradients, which are complete after the last write */
    int64_t weights, gradients;    /* its offsets in the WEIGHT (if packed: QUANTIZED) and GRADIENT arenas while the program runs */
    bool quantized;                /* the program reads the weights as FP8 quantized values */
    bool adds;                     /* adds to gradients that no node overwrites (Node.overwrites) and that start as zeros */
    int update;                    /* with in_backward, the node before which its weights are updated; -1: no gradients */
} BucketTimes;

/* In stage 3, a span of reads for which a bucket is gathered. */
typedef struct Gathering {
    int bucket;
    NodeSpan reads;
    bool prefetched; /* starts at the first read of the previous gathering; false: first of a part, starts at its own first read */
} Gathering;

typedef struct CommSchedule {
    BucketTimes *buckets; /* of the layout */
    Gathering
        *gatherings; /* by first reads. Each one, except a part's first, starts at the first read of the previous one, to be done in time */
    int gathering_count;
    int *points, point_count;             /* nodes for executor_set_comm_points, ascending: before first reads, around writes, at updates */
    int64_t weight_bytes, gradient_bytes; /* of the arenas */
    int64_t quantized_bytes;              /* of the arena of packed buckets; 0: there are none */
} CommSchedule;

/* Returns whether the gradients of a bucket are in a slot. */
bool comm_schedule_has_slot(const Layout *layout, int bucket);

/* Moves the graph's weights and gradients to the schedule's offsets; the offsets of its parameters
 * remain offsets in the whole arenas. */
CommSchedule *comm_schedule_create(const Layout *layout, Graph *graph);
/* Moves the quantized matrices of packed buckets to their slots. Call it after graph_plan, which places
 * them without a layout. */
void comm_schedule_place_packed(const CommSchedule *schedule, const Layout *layout, Graph *graph);
void comm_schedule_free(CommSchedule *schedule);

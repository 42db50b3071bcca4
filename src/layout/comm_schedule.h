/* The communication schedule of a program: when it reads and writes each bucket of the layout, which is known before it
 * runs since the program is static; the comm points at which communication starts or is waited for; and the memory of
 * buckets that a rank holds only for a while, called slots.
 *
 * Arenas of a rank by ZeRO stage:
 *   WEIGHT    1, 2: the whole one. 3: the rank's shards at local offsets; then slots, in which buckets are gathered for
 *             as long as they are read
 *   GRADIENT  1, and every stage of a pipeline, which reduces gradients once a step: the whole one. 2, 3: sums of the rank's
 *             shards at local offsets; then slots, in which buckets are while the program adds to them and until they are
 *             reduced
 * With layout->in_backward, one run of the program is a step, and all of the GRADIENT arena is slots: a bucket's gradients
 * are there from the first node that adds to them until its weights are updated, which no later node reads. Slots of vectors,
 * which are small, stay until the step ends.
 *
 * Made by session_plan for each program, between layout_place and executor_create. */
#pragma once

#include "layout/layout.h"

enum { PASS_FORWARD, PASS_BACKWARD, PASS_COUNT };

typedef struct BucketTimes {
    NodeSpan reads[PASS_COUNT]; /* of its weights */
    NodeSpan writes;            /* of its gradients, which are complete after the last */
    int64_t weights, gradients; /* its offsets in the WEIGHT and GRADIENT arenas while the program runs */
    bool codes;                 /* what it reads of the weights are codes of fp8 */
    bool adds;                  /* to gradients of it that no node overwrites (Node.overwrites), which begin with zeros */
    int update;                 /* with in_backward, the node before which its weights are updated; -1: it has no gradients */
} BucketTimes;

/* A span of reads for which a bucket is gathered, in stage 3. */
typedef struct Gathering {
    int bucket;
    NodeSpan reads;
    bool prefetched; /* begins at the first read of the gathering before; false: of the first of a part, at its own */
} Gathering;

typedef struct CommSchedule {
    BucketTimes *buckets; /* of the layout */
    Gathering *
        gatherings; /* by their first reads. Each but a part's first begins at the first read of the one before, to be done when it is needed */
    int gathering_count;
    int *points, point_count;             /* nodes for executor_set_comm_points, ascending: before first reads, around writes, at updates */
    int64_t weight_bytes, gradient_bytes; /* of the arenas */
} CommSchedule;

/* Whether the gradients of a bucket are in a slot. */
bool comm_schedule_has_slot(const Layout *layout, int bucket);

/* Moves the graph's weights and gradients to where the schedule has them; its parameters' offsets stay those of the
 * whole arenas. */
CommSchedule *comm_schedule_create(const Layout *layout, Graph *graph);
void comm_schedule_free(CommSchedule *schedule);

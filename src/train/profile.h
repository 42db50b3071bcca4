/* Time per operation over some steps, for `profile=N`. */
#pragma once

#include <stdio.h>

#include "graph/op.h"

typedef struct ProfileRow {
    int op;
    int64_t calls;
    double seconds, flops, bytes;
} ProfileRow;
typedef struct Profile {
    ProfileRow rows[OP_COUNT]; /* by OpId */
    double seconds, optimizer; /* of whole steps; of their updates */
    int64_t steps;
} Profile;

/* An ExecutorHook with a Profile as its context. */
bool profile_node(void *context, const Graph *graph, int node, double seconds);
/* measured_flops: FLOP/s of the machine's measured peak; 0: unknown. */
void profile_print(const Profile *profile, double measured_flops, FILE *file);

/* The kernels that a test program launches on its GPU, with the shapes of their launches and, if wanted, their time.
 *
 * With SMELT_LAUNCHES=FILE, check_device() counts from its opening on, and each program appends to FILE when it ends, one
 * line for each kernel, problem and grid: "gemm_nt 3f2a0c11d4e59b07 64x1x1 12". The problem is a hash of the shapes of
 * the latest graph that check.h has planned, or of the latest GEMM; 0 before the first. Tests that use neither do not
 * change it. tools/test-gpu reads the lines. */
#pragma once

#include "backend/gpu/kernel_launch.h"
#include "graph/graph.h"

typedef struct LaunchCount {
    const char *module, *kernel;
    LaunchShape shape;
    uint64_t problem;
    int64_t launches;
    double seconds; /* of all these launches, by the device's clock; 0 unless launches_time was called */
} LaunchCount;

/* Counts the launches of a GPU into SMELT_LAUNCHES. Does nothing if the variable is not set. */
void launches_count(Device *device);
/* Counts and times the launches of a GPU from now on, until launches_timed returns the counts. */
void launches_time(Device *device);
bool launches_are_timed(void);
/* Does the work once; while launches are timed, twice without counting, then LAUNCH_RUNS times. */
enum { LAUNCH_RUNS = 10 };
void launches_repeat(void (*work)(void *context), void *context);
/* Waits for the launches since launches_time, and sets *counts to one row per kernel and grid, in the order of their first
 * launches. The rows live until the next launches_time. */
int launches_timed(Device *device, const LaunchCount **counts);
/* Later launches belong to this graph, or to a GEMM of these sizes. */
void launches_begin_problem(const Graph *graph);
void launches_begin_gemm(int64_t m, int64_t n, int64_t k);

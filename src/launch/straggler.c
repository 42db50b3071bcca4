/* Measuring and comparing paces. Owns nothing. */
#include "launch/straggler.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"

enum { COMPARE_EVERY = 16, SLOW_LOOKS = 3 };
static const double slow_ratio = 1.5, smoothing = 0.1;

/* What a rank tells the others; doubles, as collectives know them. */
typedef struct Told { double busy, node, local_rank; } Told;
enum { TOLD = sizeof(Told) / sizeof(double) };

void pace_mark(Pace *pace) {
    pace->last = log_seconds();
    CommTotals totals = comm_totals(pace->comm);
    pace->waited = totals.waited + totals.stalled;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int pace_slowest(const double *busy, int ranks, double *ratio) {
    int slowest = 0, others = ranks - 1;
    *ratio = 0;
    if (others == 0) return -1;
    for (int rank = 1; rank < ranks; rank++)
        if (busy[rank] > busy[slowest]) slowest = rank;
    double *rest = memory_allocate((size_t)others * sizeof *rest);
    memcpy(rest, busy, (size_t)slowest * sizeof *rest);
    memcpy(rest + slowest, busy + slowest + 1, (size_t)(others - slowest) * sizeof *rest);
    qsort(rest, (size_t)others, sizeof *rest, compare);
    bool known = rest[0] > 0;
    if (known) *ratio = busy[slowest] / rest[others / 2];
    free(rest);
    return *ratio > slow_ratio ? slowest : -1;
}

static void look(Pace *pace, const Told *told) {
    int ranks = comm_size(pace->comm);
    double ratio, *busy = memory_allocate((size_t)ranks * sizeof *busy);
    for (int rank = 0; rank < ranks; rank++) busy[rank] = told[rank].busy;
    int slow = pace_slowest(busy, ranks, &ratio);
    free(busy);
    pace->looks = slow >= 0 && slow == pace->slow ? pace->looks + 1 : 0;
    pace->slow = slow;
    if (pace->looks == SLOW_LOOKS - 1 && comm_rank(pace->comm) == 0)
        log_warn("rank %d (node %.0f, local rank %.0f) is slow: it computes %.1f times as long as the median of the others, which wait for "
                 "it in every "
                 "step: %.1f ms",
            slow, told[slow].node, told[slow].local_rank, ratio, told[slow].busy * 1e3);
}

/* A failure shows at the next collective too. */
static void compare_paces(Pace *pace) {
    Error ignored = {0};
    int ranks = comm_size(pace->comm);
    Told *told = memory_allocate((size_t)ranks * sizeof *told);
    told[comm_rank(pace->comm)] = (Told){pace->busy, comm_node(pace->comm), comm_local_rank(pace->comm)};
    if (comm_host_all_gather(pace->comm, "pace", told, TOLD, COMM_F64, &ignored)) look(pace, told);
    free(told);
}

void pace_step(Pace *pace) {
    double last = pace->last, waited = pace->waited;
    if (comm_size(pace->comm) == 1) return;
    pace_mark(pace);
    double busy = pace->last - last - (pace->waited - waited);
    if (last > 0) pace->busy = pace->busy > 0 ? (1 - smoothing) * pace->busy + smoothing * busy : busy;
    if (++pace->steps % COMPARE_EVERY == 0) compare_paces(pace);
}

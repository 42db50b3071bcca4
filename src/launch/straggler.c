/* Measures and compares the busy times of ranks. Owns nothing. */
#include "launch/straggler_internal.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/sort.h"

enum { COMPARE_EVERY = 16, SLOW_REPEATS = 3 };
static const double slow_ratio = 1.5, smoothing = 0.1;

/* The data that ranks exchange. All are doubles, because a collective has one type. */
typedef struct RankTime { double busy, node, local_rank, stage; } RankTime;

void straggler_mark(StragglerDetector *straggler) {
    straggler->last = log_seconds();
    CommTotals totals = comm_totals(straggler->comm);
    straggler->waited = totals.waited + totals.stalled;
}

/* Returns the slowest of the `ranks` of one stage. */
static int find_slowest(const double *busy, int ranks, double *ratio) {
    int slowest = 0, others = ranks - 1;
    *ratio = 0;
    if (others == 0) return -1;
    for (int rank = 1; rank < ranks; rank++)
        if (busy[rank] > busy[slowest]) slowest = rank;
    SCOPED_FREE double *sorted = memory_allocate((size_t)ranks * sizeof *sorted); /* the slowest is its last */
    memcpy(sorted, busy, (size_t)ranks * sizeof *sorted);
    qsort(sorted, (size_t)ranks, sizeof *sorted, compare_doubles);
    if (sorted[0] > 0) *ratio = busy[slowest] / sorted[others / 2];
    return *ratio > slow_ratio ? slowest : -1;
}

int straggler_slowest(const double *busy, const int *stages, int ranks, double *ratio) {
    SCOPED_FREE double *of_stage = memory_allocate((size_t)ranks * sizeof *of_stage);
    SCOPED_FREE int *numbers = memory_allocate((size_t)ranks * sizeof *numbers);
    int slowest = -1, last = 0;
    *ratio = 0;
    for (int rank = 0; rank < ranks; rank++)
        if (stages[rank] > last) last = stages[rank];
    for (int stage = 0; stage <= last; stage++) {
        int count = 0;
        double its_ratio;
        for (int rank = 0; rank < ranks; rank++) {
            if (stages[rank] != stage) continue;
            numbers[count] = rank;
            of_stage[count++] = busy[rank];
        }
        int slow = count ? find_slowest(of_stage, count, &its_ratio) : -1;
        if (count && its_ratio > *ratio) *ratio = its_ratio, slowest = slow < 0 ? -1 : numbers[slow];
    }
    return slowest;
}

int straggler_confirmed(const StragglerDetector *straggler) { return straggler->repeats >= SLOW_REPEATS - 1 ? straggler->slow : -1; }

static void find_straggler(StragglerDetector *straggler, const RankTime *times) {
    int ranks = comm_size(straggler->comm);
    double ratio;
    SCOPED_FREE double *busy = memory_allocate((size_t)ranks * sizeof *busy);
    SCOPED_FREE int *stages = memory_allocate((size_t)ranks * sizeof *stages);
    for (int rank = 0; rank < ranks; rank++) {
        busy[rank] = times[rank].busy;
        stages[rank] = (int)times[rank].stage;
    }
    int slow = straggler_slowest(busy, stages, ranks, &ratio);
    straggler->repeats = slow >= 0 && slow == straggler->slow ? straggler->repeats + 1 : 0;
    straggler->slow = slow;
    if (straggler->repeats == SLOW_REPEATS - 1 && comm_rank(straggler->comm) == 0)
        log_warn("rank %d (node %.0f, local rank %.0f) is a straggler: it computes %.1f times as long as the median of the other ranks, "
                 "which wait %.1f ms for it in every step",
            slow, times[slow].node, times[slow].local_rank, ratio, times[slow].busy * 1e3);
}

/* Exchanges and compares the busy times. A failed collective is reported by the training loop's
 * next one. */
static void compare_step_times(StragglerDetector *straggler) {
    Error ignored = {0};
    int ranks = comm_size(straggler->comm);
    SCOPED_FREE RankTime *times = memory_allocate((size_t)ranks * sizeof *times);
    times[comm_rank(straggler->comm)] =
        (RankTime){straggler->busy, comm_node(straggler->comm), comm_local_rank(straggler->comm), straggler->stage};
    if (comm_host_all_gather(straggler->comm, "busy time", times, sizeof *times / sizeof(double), COMM_F64, &ignored))
        find_straggler(straggler, times);
}

void straggler_step(StragglerDetector *straggler) {
    double last = straggler->last, waited = straggler->waited;
    if (comm_size(straggler->comm) == 1) return;
    straggler_mark(straggler);
    double busy = straggler->last - last - (straggler->waited - waited);
    if (last > 0) straggler->busy = straggler->busy > 0 ? (1 - smoothing) * straggler->busy + smoothing * busy : busy;
    if (++straggler->steps % COMPARE_EVERY == 0) compare_step_times(straggler);
}

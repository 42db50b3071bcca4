/* Collectives over message sizes and numbers of ranks, in the columns and by the conventions of
 * nccl-tests. The size of a message is the size of the whole buffer; algorithm bandwidth is size
 * over time; bus bandwidth scales it to be comparable with a link's bandwidth for any number of
 * ranks. Every rank runs this program (mpirun, srun, smelt launch), and the first rank prints.
 * Times are means over the ranks and medians over repeats. Before it is timed, each operation runs
 * once on small integers, and its result is compared with the exact one. */
#include <stdlib.h>

#include "backend/backend.h"
#include "base/element.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/sort.h"
#include "bench/bench.h"
#include "comm/comm.h"

typedef struct CollectiveOptions {
    BenchOptions common;
    const char *bytes, *ranks;
    int operation, type;
} CollectiveOptions;

typedef enum BenchOperation { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, SEND_RECV, OPERATIONS } BenchOperation;
static const char *const names[OPERATIONS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_recv"};

#define FIELD(name) offsetof(CollectiveOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    CHOICE_OPTION(operation, "all", "all|all_reduce|reduce_scatter|all_gather|broadcast|all_to_all|send_recv", "operation to measure"),
    STRING_OPTION(bytes, "", "bytes", "message sizes: numbers or ranges; empty: 1Ki..64Mi, on GPUs 1Ki..1Gi"),
    STRING_OPTION(ranks, "", "ranks", "group sizes: numbers or ranges; a group of N is the first N ranks; empty: all ranks"),
    CHOICE_OPTION(type, "float", "float|bf16", "element type"),
};

static const BenchColumn columns[] = {{"operation", BENCH_TEXT, 14}, {"ranks", 0, 5}, {"size", 0, 12}, {"count", 0, 12},
    {"type", BENCH_TEXT, 5}, {"redop", BENCH_TEXT, 5}, {"root", 0, 4}, {"time", 2, 11}, {"algbw", 3, 9}, {"busbw", 3, 9}, {"wrong", 0, 6}};

/* One operation, with one size and one group. */
typedef struct Job {
    Comm *comm;
    Device *device;
    BenchOperation operation;
    CommType type;
    int64_t count;           /* elements of the whole message */
    int64_t *offsets;        /* of each rank's shard, and the end of the last */
    char *buffer, *received; /* device memory; the second if an operation is not in place */
} Job;

/* -- Operations ---------------------------------------------------------------------------------------------------- */

static int64_t unit_bytes(CommType type) { return type == COMM_BF16 ? 2 : 4; }
static bool is_in_place(BenchOperation operation) { return operation != ALL_TO_ALL && operation != SEND_RECV; }
/* Returns whether the message is divided into equal shards; its size is then rounded down to a
 * multiple of the ranks. */
static bool divides_data(BenchOperation operation) {
    return operation == REDUCE_SCATTER || operation == ALL_GATHER || operation == ALL_TO_ALL;
}
static bool is_sum(BenchOperation operation) { return operation == ALL_REDUCE || operation == REDUCE_SCATTER; }

static CommTicket issue_collective(const Job *job) {
    int rank = comm_rank(job->comm), size = comm_size(job->comm);
    switch (job->operation) {
    case ALL_REDUCE: return comm_all_reduce(job->comm, "bench", job->buffer, job->count, job->type, COMM_SUM);
    case REDUCE_SCATTER: return comm_reduce_scatter(job->comm, "bench", job->buffer, job->offsets, job->type, COMM_SUM);
    case ALL_GATHER: return comm_all_gather(job->comm, "bench", job->buffer, job->offsets, job->type);
    case BROADCAST: return comm_broadcast(job->comm, "bench", job->buffer, job->count, job->type, 0);
    case ALL_TO_ALL: return comm_all_to_all(job->comm, "bench", job->buffer, job->offsets, job->received, job->offsets, job->type);
    case SEND_RECV:
        return comm_exchange(
            job->comm, "bench", job->buffer, job->count, (rank + 1) % size, job->received, job->count, (rank + size - 1) % size, job->type);
    case OPERATIONS: break;
    }
    return 0;
}

/* Returns the ratio of bus bandwidth to algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md). */
static double bus_factor(BenchOperation operation, int ranks) {
    double others = (double)(ranks - 1) / (double)ranks;
    return operation == ALL_REDUCE ? 2 * others : operation == BROADCAST || operation == SEND_RECV ? 1 : others;
}

/* -- Checking ------------------------------------------------------------------------------------------------------ */

/* Returns rank `rank`'s input at an element: 0 to 7, so that sums are exact. */
static int brought(int rank, int64_t index) { return (int)((index * 3 + rank * 5) % 8); }

static void fill_data(const Job *job, void *data) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < job->count; i++) element_set((size_t)unit_bytes(job->type), data, i, brought(comm_rank(job->comm), i));
}

/* Returns the rank that owns the shard of element `index`. */
static int owner_of(const Job *job, int64_t index) { return (int)(index / job->offsets[1]); }

/* Returns the value that this rank must hold at an element afterwards. */
static double expected(const Job *job, int64_t index) {
    int rank = comm_rank(job->comm), size = comm_size(job->comm), from;
    double sum = 0;
    switch (job->operation) {
    case ALL_GATHER: return brought(owner_of(job, index), index);
    case BROADCAST: return brought(0, index);
    case ALL_TO_ALL: /* this rank's shard of the input of the rank that owns this position */
        from = owner_of(job, index);
        return brought(from, job->offsets[rank] + index - job->offsets[from]);
    case SEND_RECV: return brought((rank + size - 1) % size, index);
    default:
        for (int r = 0; r < size; r++) sum += brought(r, index);
        return job->type == COMM_BF16 ? bf16_to_float(bf16_from_float((float)sum)) : sum;
    }
}

/* Counts the wrong elements of `data` over all ranks. */
static int64_t count_wrong(const Job *job, const void *data) {
    int rank = comm_rank(job->comm);
    int64_t first = job->operation == REDUCE_SCATTER ? job->offsets[rank] : 0,
            last = job->operation == REDUCE_SCATTER ? job->offsets[rank + 1] : job->count, wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
    for (int64_t i = first; i < last; i++) wrong += element_get((size_t)unit_bytes(job->type), data, i) != expected(job, i);
    return wrong;
}

static bool check_received(const Job *job, int64_t *wrong, Error *error) {
    int64_t bytes = job->count * unit_bytes(job->type);
    void *host = memory_map((size_t)bytes, error);
    if (!host) return false;
    fill_data(job, host);
    device_upload(job->device, job->buffer, host, bytes);
    if (job->received) device_fill(job->device, job->received, 0xff, bytes);
    comm_wait(job->comm, issue_collective(job));
    device_download(job->device, host, is_in_place(job->operation) ? job->buffer : job->received, bytes);
    *wrong = count_wrong(job, host);
    memory_unmap(host, (size_t)bytes);
    return device_ok(job->device, error) && comm_host_all_reduce(job->comm, "bench.wrong", wrong, 1, COMM_I64, COMM_SUM, error);
}

/* -- Timing -------------------------------------------------------------------------------------------------------- */

/* Measures the seconds per call of `calls` calls on this rank. All ranks start together. */
static bool time_collective(const Job *job, int64_t calls, double *seconds, Error *error) {
    if (!comm_barrier(job->comm, "bench.start", error)) return false;
    double start = log_seconds();
    for (int64_t i = 0; i < calls; i++) comm_wait(job->comm, issue_collective(job));
    device_synchronize(job->device);
    *seconds = (log_seconds() - start) / (double)calls;
    return comm_ok(job->comm, error) && device_ok(job->device, error);
}

/* The slowest rank of a first measurement determines the number of calls for all ranks. */
static bool time_job(const Job *job, const BenchOptions *options, double *median, Error *error) {
    const int64_t warm = 5;
    double one = 0;
    for (int run = 0; run < 2; run++)
        if (!time_collective(job, warm, &one, error)) return false;
    if (!comm_host_all_reduce(job->comm, "bench.one", &one, 1, COMM_F64, COMM_MAX, error)) return false;
    int64_t calls = bench_calls(options, one);
    SCOPED_FREE double *samples = memory_allocate((size_t)options->repeats * sizeof *samples);
    for (int64_t i = 0; i < options->repeats; i++)
        if (!time_collective(job, calls, &samples[i], error)) return false;
    if (!comm_host_all_reduce(job->comm, "bench.times", samples, options->repeats, COMM_F64, COMM_SUM, error)) return false;
    *median = sort_median(samples, options->repeats) / comm_size(job->comm);
    return true;
}

/* -- Sweep --------------------------------------------------------------------------------------------------------- */

static bool measure_bytes(Bench *bench, Job *job, int64_t bytes, int64_t *wrong_sum, Error *error) {
    int size = comm_size(job->comm);
    double seconds;
    int64_t wrong;
    job->count = bytes / unit_bytes(job->type);
    if (divides_data(job->operation)) job->count -= job->count % size;
    for (int r = 0; r <= size; r++) job->offsets[r] = job->count / size * r;
    if (!check_received(job, &wrong, error) || !time_job(job, bench->options, &seconds, error))
        return error_context(error, "%s of %lld bytes", names[job->operation], (long long)bytes);
    double rate = (double)(job->count * unit_bytes(job->type)) / seconds / 1e9;
    bench_row(bench, (BenchCell[]){TEXT(names[job->operation]), NUMBER(size), NUMBER((double)(job->count * unit_bytes(job->type))),
                         NUMBER(job->count), TEXT(job->type == COMM_BF16 ? "bf16" : "float"), TEXT(is_sum(job->operation) ? "sum" : "none"),
                         NUMBER(job->operation == BROADCAST ? 0 : -1), NUMBER(1e6 * seconds), NUMBER(rate),
                         NUMBER(rate * bus_factor(job->operation, size)), NUMBER(wrong)});
    *wrong_sum += wrong;
    return true;
}

static bool measure_group(Bench *bench, Comm *comm, const BenchList *sizes, int64_t *wrong_sum, Error *error) {
    const CollectiveOptions *options = bench->options;
    int64_t most = 0;
    for (int i = 0; i < sizes->count; i++) most = int_max(most, sizes->numbers[i]);
    SCOPED_FREE int64_t *offsets = memory_allocate((size_t)(comm_size(comm) + 1) * sizeof *offsets);
    Job job = {.comm = comm, .device = bench->device, .type = options->type ? COMM_BF16 : COMM_F32, .offsets = offsets};
    char *buffer = device_allocate(bench->device, most, error), *received = buffer ? device_allocate(bench->device, most, error) : NULL;
    job.buffer = buffer;
    bool good = received != NULL;
    for (job.operation = 0; good && job.operation < OPERATIONS; job.operation++) {
        job.received = is_in_place(job.operation) ? NULL : received;
        bool wanted = options->operation == 0 || options->operation == (int)job.operation + 1;
        for (int i = 0; good && wanted && i < sizes->count; i++) good = measure_bytes(bench, &job, sizes->numbers[i], wrong_sum, error);
    }
    if (received) device_free(bench->device, received, most);
    if (buffer) device_free(bench->device, buffer, most);
    return good;
}

/* For each number in `ranks`, the first ranks measure and the others wait. */
static bool measure_groups(Bench *bench, Comm *all, const BenchList *ranks, const BenchList *sizes, int64_t *wrong_sum, Error *error) {
    bool good = true;
    for (int i = 0; good && i < ranks->count; i++) {
        int64_t size = ranks->numbers[i];
        if (size < 2 || size > comm_size(all))
            return error_set(error, ERROR_USAGE, "ranks=%lld: the group size must be from 2 to %d, the number of started ranks",
                (long long)size, comm_size(all));
        bool member = comm_rank(all) < size, whole = size == comm_size(all);
        Comm *group = whole ? all : comm_split(all, member ? 0 : -1, "bench", error);
        good = group && (!member || measure_group(bench, group, sizes, wrong_sum, error)) && comm_barrier(all, "bench.group", error);
        if (!whole) comm_close(group);
    }
    return good;
}

static bool run_on(Bench *bench, Comm *comm, Error *error) {
    const CollectiveOptions *options = bench->options;
    if (comm_size(comm) < 2)
        return error_set(error, ERROR_USAGE, "bench collective needs at least two ranks: start it with mpirun -n 2 or smelt launch -n 2");
    bench->silent = comm_rank(comm) > 0;
    bench->device = device_open((DeviceKind)options->common.device, comm_local_rank(comm), error);
    if (!bench->device || !comm_use_device(comm, bench->device, error)) return false;
    const int64_t most_bytes = (int64_t)1 << 36;
    const char *size_text = *options->bytes ? options->bytes : bench_sizes(bench->device)->collective_bytes;
    BenchList sizes, ranks = {{comm_size(comm)}, 1};
    int64_t wrong = 0;
    bool good = bench_list(&sizes, "bytes", size_text, most_bytes, error) &&
                (!*options->ranks || bench_list(&ranks, "ranks", options->ranks, 1 << 20, error)) &&
                measure_groups(bench, comm, &ranks, &sizes, &wrong, error);
    if (!good || !wrong) return good;
    return error_set(
        error, ERROR_COMMUNICATION, "%lld received elements are wrong (column wrong): do not train over this network", (long long)wrong);
}

static bool run_collective(Bench *bench, Error *error) {
    Comm *comm = comm_open(&(CommOptions){.recommend = bench->recommend}, error);
    if (!comm) return false;
    char text[256];
    comm_describe(comm, text, sizeof text);
    bool good = run_on(bench, comm, error);
    if (good && !bench->silent) log_info("%s", text);
    comm_close(comm);
    return good;
}

const Benchmark bench_collective = {
    .name = "collective",
    .summary = "all-reduce, reduce-scatter, all-gather, broadcast, all-to-all, send-receive",
    .explanation = "Run it on every rank: mpirun -n 8 smelt bench collective, srun, or smelt launch. Prints one row per operation, group "
                   "size and message size, in the columns and\n"
                   "conventions of nccl-tests: time in microseconds, algbw and busbw in GB/s. Column wrong counts the wrong elements of a "
                   "first run on integers.\n",
    .ranks = true,
    BENCH_PARTS(CollectiveOptions, run_collective),
    .plot = {"Collectives", "size", "busbw", {"operation", "ranks"}, "bytes per message", "bus bandwidth, GB/s", .x_logarithmic = true,
        .y_logarithmic = true},
};

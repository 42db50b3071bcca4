/* Communication: this program starts itself as the ranks of a run, over TCP and under mpirun, and each rank checks
 * what it got against plain computation. What a rank brings is a pure function of its number, so every rank knows
 * what all others have. */
#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "backend/backend.h"
#include "support/mentions.h"
#include "support/own_ranks.h"

#include "app/process.h"
#include "base/bf16.h"
#include "base/hash.h"
#include "comm/comm.h"
#include "comm/comm_internal.h"

static CommTicket comm_send(Comm *comm, const char *name, const void *send, int64_t count, CommType type, int to) {
    return comm_exchange(comm, name, send, count, to, NULL, 0, -1, type);
}

static CommTicket comm_receive(Comm *comm, const char *name, void *receive, int64_t count, CommType type, int from) {
    return comm_exchange(comm, name, NULL, 0, -1, receive, count, from, type);
}

static Device *device; /* whose memory is used: the CPU, or with SMELT_TEST_DEVICE=cuda or hip one GPU for each rank */

enum { LONG = 40001, LONGER_THAN_SCRATCH = 5000001 };

/* -- What ranks bring ---------------------------------------------------------------------------------------------- */

/* From -1.5 to 2.5. */
static double value_of(int rank, int64_t index) {
    uint64_t bits = ((uint64_t)index + 1) * 0x9e3779b97f4a7c15u ^ ((uint64_t)rank + 1) * 0xc2b2ae3d27d4eb4fu;
    bits = (bits ^ bits >> 29) * 0xbf58476d1ce4e5b9u;
    return (double)(bits >> 11) * 0x1p-51 - 1.5;
}

static void put(CommType type, void *buffer, int64_t at, double value) {
    switch (type) {
    case COMM_F32: ((float *)buffer)[at] = (float)value; break;
    case COMM_F64: ((double *)buffer)[at] = value; break;
    case COMM_BF16: ((uint16_t *)buffer)[at] = bf16_from_float((float)value); break;
    case COMM_I64: ((int64_t *)buffer)[at] = (int64_t)(value * 1e12); break;
    case COMM_U8: ((uint8_t *)buffer)[at] = (uint8_t)(int)(value * 100 + 151); break;
    }
}

static double as_double(CommType type, const void *buffer, int64_t at) {
    switch (type) {
    case COMM_F32: return ((const float *)buffer)[at];
    case COMM_F64: return ((const double *)buffer)[at];
    case COMM_BF16: return bf16_to_float(((const uint16_t *)buffer)[at]);
    case COMM_I64: return (double)((const int64_t *)buffer)[at];
    case COMM_U8: return ((const uint8_t *)buffer)[at];
    }
    return 0;
}

static void *brought(CommType type, int rank, int64_t count) {
    void *buffer = memory_allocate((size_t)(count * type_bytes(type)) + 1);
    for (int64_t i = 0; i < count; i++) put(type, buffer, i, value_of(rank, i));
    return buffer;
}

/* The sum of one element in rank order, in the precision that comm.h promises. */
static void add_in_order(CommType type, CommReduce reduce, int ranks, int64_t at, void *const *parts, void *result) {
    double wide = as_double(type, parts[0], at);
    float in_float = (float)wide;
    int64_t whole = type == COMM_I64 ? ((int64_t *)parts[0])[at] : (int64_t)wide;
    for (int rank = 1; rank < ranks; rank++) {
        double next = as_double(type, parts[rank], at);
        int64_t next_whole = type == COMM_I64 ? ((int64_t *)parts[rank])[at] : (int64_t)next;
        if (reduce == COMM_SUM) wide += next, in_float += (float)next, whole += next_whole;
        else if (reduce == COMM_MAX ? next > wide : next < wide) wide = next, in_float = (float)next, whole = next_whole;
    }
    if (type == COMM_I64) ((int64_t *)result)[at] = whole;
    else if (type == COMM_U8) ((uint8_t *)result)[at] = (uint8_t)whole;
    else put(type, result, at, type == COMM_BF16 ? (double)in_float : wide);
}

static void *reduced(CommType type, CommReduce reduce, int ranks, int64_t count) {
    void *parts[MOST_RANKS], *result = memory_allocate((size_t)(count * type_bytes(type)) + 1);
    for (int rank = 0; rank < ranks; rank++) parts[rank] = brought(type, rank, count);
    for (int64_t i = 0; i < count; i++) add_in_order(type, reduce, ranks, i, parts, result);
    for (int rank = 0; rank < ranks; rank++) free(parts[rank]);
    return result;
}

/* -- Checks that a rank makes -------------------------------------------------------------------------------------- */

static void require(bool right, const char *what, CommType type, int64_t count) {
    if (right) return;
    fprintf(stderr, "%s is wrong: type %d, %lld elements\n", what, type, (long long)count);
    exit(1);
}

static void give_up(const Error *error) {
    fprintf(stderr, "%s\n", error->message);
    exit(error->code);
}

static char *to_device(void *host, int64_t bytes) {
    Error error = {0};
    if (device_info(device)->host_memory) return host;
    void *memory = device_allocate(device, bytes, &error);
    if (!memory) give_up(&error);
    device_upload(device, memory, host, bytes);
    return memory;
}

static void from_device(void *host, void *memory, int64_t bytes) {
    Error error = {0};
    if (device_info(device)->host_memory) return;
    device_download(device, host, memory, bytes);
    device_free(device, memory, bytes);
    if (!device_ok(device, &error)) give_up(&error);
}

/* To the bit on the CPU. GPUs' libraries add in another order and round in between: each of at most MOST_RANKS sums
 * may lose half of the type's last bit. */
static bool same(CommType type, CommReduce reduce, const char *a, const char *b, int64_t start, int64_t end) {
    static const double ulp[] = {[COMM_F32] = 0x1p-23, [COMM_F64] = 0x1p-52, [COMM_BF16] = 0x1p-7};
    int64_t width = type_bytes(type);
    if (device_info(device)->host_memory || type == COMM_I64 || type == COMM_U8 || reduce != COMM_SUM)
        return start == end || !memcmp(a + start * width, b + start * width, (size_t)((end - start) * width));
    for (int64_t i = start; i < end; i++)
        if (!(fabs(as_double(type, a, i) - as_double(type, b, i)) <= ulp[type] * MOST_RANKS * 2.5)) return false;
    return true;
}

/* Even, as far as `count` allows, or uneven, with an empty one where there are three or more. */
static void cut(int64_t count, int ranks, bool even, int64_t *pieces) {
    for (int i = 0; i <= ranks; i++) pieces[i] = even ? count / ranks * i : count * i * i / ranks / ranks;
    if (!even && ranks > 2) pieces[1] = pieces[2];
}

static void check_reductions(Comm *comm, CommType type, CommReduce reduce, int64_t count, bool even) {
    int rank = comm_rank(comm), size = comm_size(comm);
    int64_t pieces[MOST_RANKS + 1], bytes = count * type_bytes(type);
    char *wanted = reduced(type, reduce, size, count), *whole = brought(type, rank, count), *piece = brought(type, rank, count);
    char *whole_there = to_device(whole, bytes), *piece_there = to_device(piece, bytes);
    cut(count, size, even, pieces);
    CommTicket first = comm_all_reduce(comm, "whole", whole_there, count, type, reduce);
    CommTicket second = comm_reduce_scatter(comm, "piece", piece_there, pieces, type, reduce);
    comm_wait(comm, second);
    comm_wait(comm, first);
    from_device(whole, whole_there, bytes);
    from_device(piece, piece_there, bytes);
    require(same(type, reduce, whole, wanted, 0, count), "all_reduce", type, count);
    require(same(type, reduce, piece, wanted, pieces[rank], pieces[rank + 1]), "reduce_scatter", type, count);
    free(wanted);
    free(whole);
    free(piece);
}

static void check_all_gather(Comm *comm, CommType type, int64_t count, bool even) {
    int rank = comm_rank(comm), size = comm_size(comm);
    int64_t pieces[MOST_RANKS + 1], width = type_bytes(type);
    cut(count, size, even, pieces);
    count = pieces[size];
    char *wanted = brought(type, 9, count), *buffer = memory_allocate((size_t)(count * width) + 1);
    memcpy(buffer + pieces[rank] * width, wanted + pieces[rank] * width, (size_t)((pieces[rank + 1] - pieces[rank]) * width));
    char *there = to_device(buffer, count * width);
    comm_wait(comm, comm_all_gather(comm, "gathered", there, pieces, type));
    from_device(buffer, there, count * width);
    require(!memcmp(buffer, wanted, (size_t)(count * width)), "all_gather", type, count);
    free(wanted);
    free(buffer);
}

static void check_broadcast(Comm *comm, CommType type, int64_t count) {
    int64_t bytes = count * type_bytes(type);
    for (int root = 0; root < comm_size(comm); root++) {
        char *wanted = brought(type, root, count), *buffer = brought(type, comm_rank(comm), count), *there = to_device(buffer, bytes);
        comm_wait(comm, comm_broadcast(comm, "root's", there, count, type, root));
        from_device(buffer, there, bytes);
        require(!memcmp(buffer, wanted, (size_t)bytes), "broadcast", type, count);
        free(wanted);
        free(buffer);
    }
}

/* Rank a sends b (a + 1) (b + 2) elements, the first of which are what rank a brings. */
static void check_all_to_all(Comm *comm, CommType type) {
    int rank = comm_rank(comm), size = comm_size(comm);
    int64_t out[MOST_RANKS + 1] = {0}, in[MOST_RANKS + 1] = {0}, width = type_bytes(type);
    for (int i = 0; i < size; i++) {
        out[i + 1] = out[i] + (rank + 1) * (i + 2);
        in[i + 1] = in[i] + (i + 1) * (rank + 2);
    }
    char *send = brought(type, rank, out[size]), *receive = memory_allocate((size_t)(in[size] * width));
    char *send_there = to_device(send, out[size] * width), *receive_there = to_device(receive, in[size] * width);
    comm_wait(comm, comm_all_to_all(comm, "crossed", send_there, out, receive_there, in, type));
    from_device(send, send_there, out[size] * width);
    from_device(receive, receive_there, in[size] * width);
    for (int i = 0; i < size; i++) {
        int64_t start = 0;
        for (int j = 0; j < rank; j++) start += (i + 1) * (j + 2);
        char *theirs = brought(type, i, start + in[i + 1] - in[i]);
        require(
            !memcmp(receive + in[i] * width, theirs + start * width, (size_t)((in[i + 1] - in[i]) * width)), "all_to_all", type, in[size]);
        free(theirs);
    }
    free(send);
    free(receive);
}

static void check_ring(Comm *comm, CommType type, int64_t count) {
    int rank = comm_rank(comm), size = comm_size(comm), before = (rank + size - 1) % size;
    int64_t bytes = count * type_bytes(type);
    char *send = brought(type, rank, count), *wanted = brought(type, before, count), *receive = memory_allocate((size_t)bytes + 1);
    char *send_there = to_device(send, bytes), *receive_there = to_device(receive, bytes);
    comm_wait(comm, comm_exchange(comm, "ring", send_there, count, (rank + 1) % size, receive_there, count, before, type));
    from_device(receive, receive_there, bytes);
    require(!memcmp(receive, wanted, (size_t)bytes), "exchange", type, count);
    from_device(send, send_there, bytes);
    free(send);
    free(wanted);
    free(receive);
}

/* From the first rank to the last. */
static void check_line(Comm *comm, CommType type, int64_t count) {
    int rank = comm_rank(comm), last = comm_size(comm) - 1;
    int64_t bytes = count * type_bytes(type);
    if (last == 0 || (rank != 0 && rank != last)) return;
    char *buffer = brought(type, rank, count), *wanted = brought(type, 0, count), *there = to_device(buffer, bytes);
    comm_wait(comm, rank == 0 ? comm_send(comm, "line", there, count, type, last) : comm_receive(comm, "line", there, count, type, 0));
    from_device(buffer, there, bytes);
    require(!memcmp(buffer, wanted, (size_t)bytes), "send", type, count);
    free(buffer);
    free(wanted);
}

static void check_all(Comm *comm) {
    static const int64_t counts[] = {0, 1, 5, 4099, LONG};
    Error error = {0};
    for (CommType type = COMM_F32; type <= COMM_U8; type++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            for (CommReduce reduce = COMM_SUM; reduce <= COMM_MIN; reduce++) check_reductions(comm, type, reduce, counts[i], i % 2);
            check_all_gather(comm, type, counts[i], false);
            check_all_gather(comm, type, counts[i], true);
            check_broadcast(comm, type, counts[i]);
            check_ring(comm, type, counts[i]);
            check_line(comm, type, counts[i]);
        }
        check_all_to_all(comm, type);
    }
    if (!comm_barrier(comm, "end", &error)) give_up(&error);
}

/* -- What a rank does, by the name in its argument ----------------------------------------------------------------- */

static void rank_collectives(Comm *comm) {
    Error error = {0};
    check_all(comm);
    Comm *odd = comm_split(comm, comm_rank(comm) % 2, "parity", &error),
         *some = odd ? comm_split(comm, comm_rank(comm) ? 0 : -1, "but one", &error) : NULL;
    if (!some) give_up(&error);
    int64_t sum = comm_rank(comm), wanted = 0;
    for (int i = comm_rank(comm) % 2; i < comm_size(comm); i += 2) wanted += i;
    check_reductions(odd, COMM_F32, COMM_SUM, LONG, false);
    if (!comm_host_all_reduce(odd, "sum", &sum, 1, COMM_I64, COMM_SUM, &error)) give_up(&error);
    require(sum == wanted, "all_reduce of a group", COMM_I64, 1);
    require(comm_size(some) == (comm_rank(comm) ? comm_size(comm) - 1 : 1), "the size of a group", COMM_I64, 1);
    check_all(some);
    comm_close(odd);
    comm_close(some);
}

/* Rank r brings small whole numbers, whose sums are exact. */
static void rank_long(Comm *comm) {
    float *values = memory_allocate(LONGER_THAN_SCRATCH * sizeof *values);
    for (int64_t i = 0; i < LONGER_THAN_SCRATCH; i++) values[i] = (float)(i % 1000 * (comm_rank(comm) + 1));
    comm_wait(comm, comm_all_reduce(comm, "long", values, LONGER_THAN_SCRATCH, COMM_F32, COMM_SUM));
    for (int64_t i = 0; i < LONGER_THAN_SCRATCH; i++)
        require(values[i] == (float)(i % 1000 * comm_size(comm) * (comm_size(comm) + 1) / 2), "a long all_reduce", COMM_F32, i);
    free(values);
}

static void rank_overlap(Comm *comm) {
    enum { TASKS = 200, COUNT = 3000 };
    static float values[TASKS][COUNT];
    CommTicket last = 0;
    for (int i = 0; i < TASKS; i++) {
        for (int j = 0; j < COUNT; j++) values[i][j] = (float)(i + j);
        last = comm_all_reduce(comm, "queued", values[i], COUNT, COMM_F32, COMM_SUM);
    }
    comm_wait(comm, last);
    for (int i = 0; i < TASKS; i++)
        for (int j = 0; j < COUNT; j++) require(values[i][j] == (float)((i + j) * comm_size(comm)), "a queued all_reduce", COMM_F32, i);
    CommRecord records[COMM_RECORDS];
    require(comm_recent(comm, records, COMM_RECORDS) == COMM_RECORDS && !strcmp(records[0].name, "queued") &&
                records[0].sequence == records[1].sequence + 1 && records[0].state == COMM_DONE && records[0].bytes == COUNT * 4 &&
                records[0].finished >= records[0].started,
        "the record", COMM_F32, 0);
    CommTotals totals = comm_totals(comm);
    require(totals.collectives >= TASKS && totals.bytes > 0 && totals.waited > 0, "the totals", COMM_F32, totals.collectives);
}

static void rank_place(Comm *comm) {
    char text[128];
    comm_describe(comm, text, sizeof text);
    printf("rank %d of %d, local %d of %d, node %d of %d: %s\n", comm_rank(comm), comm_size(comm), comm_local_rank(comm),
        comm_local_size(comm), comm_node(comm), comm_nodes(comm), text);
}

static void finish_with(Comm *comm) {
    Error error = {0};
    if (!comm_ok(comm, &error)) give_up(&error);
    exit(0);
}

static void rank_disagrees(Comm *comm) {
    float value = 1;
    comm_wait(comm, comm_all_reduce(comm, comm_rank(comm) ? "loss" : "norm", &value, 1, COMM_F32, COMM_SUM));
    finish_with(comm);
}

static void rank_is_one_ahead(Comm *comm) {
    float value = 1;
    if (comm_rank(comm) == 0) comm_broadcast(comm, "extra", &value, 1, COMM_F32, 0);
    comm_wait(comm, comm_all_reduce(comm, "loss", &value, 1, COMM_F32, COMM_SUM));
    finish_with(comm);
}

static void rank_is_killed(Comm *comm) {
    float value = 1;
    if (comm_rank(comm) == comm_size(comm) - 1) kill(getpid(), SIGKILL);
    comm_wait(comm, comm_all_reduce(comm, "loss", &value, 1, COMM_F32, COMM_SUM));
    finish_with(comm);
}

static void rank_is_idle(Comm *comm) {
    Error error = {0};
    while (comm_ok(comm, &error)) process_sleep(0.01);
    finish_with(comm);
}

/* No collective is under way when the last rank is killed: the others notice all the same. */
static void rank_is_killed_between(Comm *comm) {
    if (comm_rank(comm) == comm_size(comm) - 1) kill(getpid(), SIGKILL);
    rank_is_idle(comm);
}

/* The last rank is alive and does not come until the others have given up. */
static void rank_is_late(Comm *comm) {
    float value = 1;
    if (comm_rank(comm) == comm_size(comm) - 1) rank_is_idle(comm);
    comm_wait(comm, comm_all_reduce(comm, "loss", &value, 1, COMM_F32, COMM_SUM));
    finish_with(comm);
}

static void *abort_soon(void *comm) {
    process_sleep(0.3);
    comm_abort(comm, "the watchdog ended it");
    return NULL;
}

/* Rank 0 waits for the others, which never come. */
static void rank_aborts(Comm *comm) {
    pthread_t thread;
    float value = 1;
    if (comm_rank(comm)) rank_is_idle(comm);
    pthread_create(&thread, NULL, abort_soon, comm);
    comm_wait(comm, comm_all_reduce(comm, "loss", &value, 1, COMM_F32, COMM_SUM));
    pthread_join(thread, NULL);
    finish_with(comm);
}

/* On a GPU the survivors are stuck in the library's kernel until communication is ended for them. */
static void rank_is_killed_on_gpu(Comm *comm) {
    enum { COUNT = 1 << 20 };
    Error error = {0};
    float *values = device_allocate(device, COUNT * sizeof *values, &error);
    for (int i = 0; i < 10; i++) {
        if (i == 5 && comm_rank(comm) == comm_size(comm) - 1) kill(getpid(), SIGKILL);
        comm_wait(comm, comm_all_reduce(comm, "loss", values, COUNT, COMM_F32, COMM_SUM));
        device_synchronize(device);
    }
    process_sleep(1);
    finish_with(comm);
}

typedef struct Role {
    const char *name;
    void (*run)(Comm *comm);
    double timeout;
} Role;
static const Role roles[] = {{"collectives", rank_collectives, 0}, {"long", rank_long, 0}, {"overlap", rank_overlap, 0},
    {"place", rank_place, 0}, {"disagrees", rank_disagrees, 0}, {"ahead", rank_is_one_ahead, 0}, {"killed", rank_is_killed, 0},
    {"killed between", rank_is_killed_between, 0}, {"late", rank_is_late, 1}, {"aborts", rank_aborts, 0},
    {"killed on gpu", rank_is_killed_on_gpu, 0}};

static DeviceKind device_kind(void) {
    const char *name = getenv("SMELT_TEST_DEVICE");
    return !name ? DEVICE_CPU : !strcmp(name, "hip") ? DEVICE_HIP : DEVICE_CUDA;
}

static int run_rank(const char *name) {
    Error error = {0};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(roles[i].name, name)) continue;
        CommOptions options = {.appear = WAIT_LIMIT, .lost = 2 * WAIT_LIMIT, .timeout = roles[i].timeout};
        Comm *comm = comm_open(&options, &error);
        if (!comm) give_up(&error);
        device = device_open(device_kind(), comm_local_rank(comm), &error);
        if (!device || !comm_use_device(comm, device, &error)) give_up(&error);
        roles[i].run(comm);
        if (!comm_ok(comm, &error)) give_up(&error);
        comm_close(comm);
        device_close(device);
        return 0;
    }
    fprintf(stderr, "no role %s\n", name);
    return ERROR_USAGE;
}

/* -- Starting ranks ------------------------------------------------------------------------------------------------ */

/* The first `survivors` ranks end with ERROR_COMMUNICATION, and one of the first `witnesses` says `text`. */
static void expect_failure(int size, int survivors, int witnesses, const char *role, const char *text) {
    Ranks ranks;
    start_ranks(&ranks, size, role);
    finish_ranks(&ranks);
    for (int i = 0; i < survivors; i++)
        if (ranks.results[i].code != ERROR_COMMUNICATION)
            fail_msg("rank %d of %d ended with %d: %s", i, size, ranks.results[i].code, ranks.results[i].errors);
    int witness = 0;
    while (witness < witnesses && !mentions(ranks.results[witness].errors, text)) witness++;
    if (witness == witnesses) fail_msg("no '%s' in: %s", text, ranks.results[0].errors);
    free_ranks(&ranks);
}

static ProcessResult run_mpi(int size, const char *role) {
    char number[16], program[4096] = "";
    snprintf(number, sizeof number, "%d", size);
    assert_true(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    char *arguments[] = {
        "/usr/bin/env", "mpirun", "-n", number, "--oversubscribe", "--allow-run-as-root", program, "rank", (char *)role, NULL};
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI's own */
    Process process = process_start(arguments);
    unsetenv("ASAN_OPTIONS");
    return process_finish(&process);
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static void every_collective_of_every_type_is_right_over_tcp(void **state) {
    (void)state;
    for (int size = 2; size <= 4; size++) run_over_tcp(size, "collectives");
}

static void every_collective_of_every_type_is_right_over_mpi(void **state) {
    (void)state;
    for (int size = 1; size <= 4; size++) {
        ProcessResult result = run_mpi(size, "collectives");
        if (result.code != 0) fail_msg("%d ranks ended with %d: %s", size, result.code, result.errors);
        process_free(&result);
    }
}

static void a_reduction_longer_than_its_scratch_is_right(void **state) {
    (void)state;
    run_over_tcp(2, "long");
}

static void collectives_queue_up_and_leave_records(void **state) {
    (void)state;
    run_over_tcp(3, "overlap");
}

static void mpirun_and_tcp_tell_each_rank_its_place(void **state) {
    (void)state;
    ProcessResult result = run_mpi(2, "place");
    assert_non_null(strstr(result.output, "rank 1 of 2, local 1 of 2, node 0 of 1: 2 ranks on 1 node over MPI"));
    process_free(&result);
    Ranks ranks;
    start_ranks(&ranks, 2, "place");
    finish_ranks(&ranks);
    assert_string_equal(ranks.results[1].output, "rank 1 of 2, local 1 of 2, node 0 of 1: 2 ranks on 1 node over TCP\n");
    free_ranks(&ranks);
}

static void a_process_alone_communicates_with_itself(void **state) {
    (void)state;
    Error error = {0};
    Comm *comm = comm_open(NULL, &error);
    assert_non_null(comm);
    device = device_cpu();
    assert_int_equal(comm_size(comm), 1);
    check_all(comm);
    check_all(comm_alone());
    Comm *group = comm_split(comm_alone(), 3, "itself", &error);
    check_all(group);
    comm_close(group);
    comm_close(comm);
    comm_close(comm_alone());
}

static void ranks_that_disagree_get_an_error(void **state) {
    (void)state;
    expect_failure(2, 2, 1, "disagrees", "rank 1 all_reduce 'loss' 2");
    /* The first rank to notice ends. The others may see its connection close before they notice themselves. */
    expect_failure(3, 3, 3, "ahead", "all_reduce 'loss' 2");
}

/* By the end of its connection: the time after which a silent peer is lost (CommOptions.lost) is longer than the
 * test may take. */
static void a_killed_rank_is_noticed_at_once(void **state) {
    (void)state;
    expect_failure(4, 3, 1, "killed", "closed its connection");
    expect_failure(3, 2, 1, "killed between", "closed its connection");
}

static void a_rank_that_is_alive_but_late_runs_into_the_timeout(void **state) {
    (void)state;
    expect_failure(2, 1, 1, "late", "1 s rank 1");
}

static void an_abort_ends_waiting_and_tells_the_reason(void **state) {
    (void)state;
    expect_failure(2, 2, 1, "aborts", "the watchdog ended it");
}

static void a_rank_that_does_not_appear_is_named(void **state) {
    (void)state;
    Place place = {.transport = COMM_TCP, .size = 3, .address = "127.0.0.1", .port = process_free_port()};
    CommOptions options = {.appear = 0.3, .lost = 10, .timeout = 10};
    Error error = {0};
    assert_null(tcp_meet(&place, &options, &error));
    assert_int_equal(error.code, ERROR_COMMUNICATION);
    assert_mentions(error.message, "2 3 ranks reach 0 0 1");
    place.rank = 1;
    assert_null(tcp_meet(&place, &options, &error));
    assert_mentions(error.message, "rank 1 rank 0");
}

/* -- The environment ----------------------------------------------------------------------------------------------- */

static const char *const variables[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK",
    "TORCHELASTIC_USE_AGENT_STORE", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID", "SLURM_STEP_ID"};

static int clear_environment(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    return 0;
}

static Place find(CommTransport wanted) {
    Place place;
    Error error = {0};
    if (!place_find(wanted, &place, &error)) fail_msg("%s", error.message);
    return place;
}

static void expect_no_place(CommTransport wanted, const char *text) {
    Place place;
    Error error = {0};
    assert_false(place_find(wanted, &place, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    if (!mentions(error.message, text)) fail_msg("no '%s' in: %s", text, error.message);
}

static void a_process_finds_its_place_in_the_environment(void **state) {
    (void)state;
    assert_int_equal(find(COMM_AUTO).size, 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    assert_int_equal(find(COMM_AUTO).transport, COMM_MPI);
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "8", 1);
    setenv("LOCAL_RANK", "1", 1);
    setenv("MASTER_ADDR", "node7", 1);
    setenv("MASTER_PORT", "1234", 1);
    Place place = find(COMM_AUTO);
    assert_true(place.transport == COMM_TCP && place.rank == 3 && place.size == 8 && place.local_rank == 1 && place.port == 1234);
    assert_string_equal(place.address, "node7");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1); /* torchrun's agent has the port itself */
    assert_int_equal(find(COMM_AUTO).port, 1235);
}

static void slurms_steps_are_understood_and_its_batch_scripts_are_one_process(void **state) {
    (void)state;
    setenv("SLURM_PROCID", "5", 1);
    setenv("SLURM_JOB_ID", "77", 1);
    setenv("SLURM_STEP_NODELIST", "gpu[03-06]", 1);
    assert_int_equal(find(COMM_AUTO).size, 1);
    setenv("SLURM_STEP_NUM_TASKS", "8", 1);
    setenv("SLURM_LOCALID", "1", 1);
    Place place = find(COMM_AUTO);
    assert_true(place.transport == COMM_TCP && place.rank == 5 && place.size == 8 && place.local_rank == 1 && place.port >= 20000 &&
                place.port < 40000);
    assert_string_equal(place.address, "gpu03");
    setenv("SLURM_STEP_ID", "1", 1);
    assert_int_not_equal(find(COMM_AUTO).port, place.port);
}

static void an_environment_that_contradicts_itself_is_refused(void **state) {
    (void)state;
    expect_no_place(COMM_TCP, "TCP needs RANK, WORLD_SIZE");
    setenv("WORLD_SIZE", "4", 1);
    setenv("RANK", "4", 1);
    setenv("MASTER_ADDR", "a", 1);
    expect_no_place(COMM_AUTO, "RANK=4 0 3");
    setenv("RANK", "1x", 1);
    expect_no_place(COMM_AUTO, "RANK=1x");
    setenv("RANK", "1", 1);
    setenv("MASTER_PORT", "70000", 1);
    expect_no_place(COMM_AUTO, "MASTER_PORT=70000");
    unsetenv("MASTER_ADDR");
    expect_no_place(COMM_AUTO, "MASTER_ADDR");
}

static void touch(const char *folder, const char *name) {
    char *command = memory_format("mkdir -p %s%s && rmdir %s%s && touch %s%s", folder, name, folder, name, folder, name);
    assert_int_equal(system(command), 0);
    free(command);
}

static void rccls_settings_follow_the_hardware_and_the_user_wins(void **state) {
    (void)state;
    char folder[] = "/tmp/smelt-test-comm-XXXXXX", text[1024];
    assert_non_null(mkdtemp(folder));
    touch(folder, "/sys/class/infiniband/ionic_0");
    settings_recommend(folder, process_recommend);
    assert_null(getenv("NCCL_IB_GID_INDEX")); /* the card without an AMD GPU */
    touch(folder, "/dev/kfd");
    setenv("NCCL_IB_TC", "3", 1);
    settings_recommend(folder, process_recommend);
    settings_describe(text, sizeof text);
    assert_non_null(strstr(text, "HSA_NO_SCRATCH_RECLAIM=1 "));
    assert_non_null(strstr(text, "NCCL_IB_GID_INDEX=1 NCCL_IB_TC=3 NCCL_IB_FIFO_TC=192 "));
    char *command = memory_format("rm -r %s", folder);
    assert_int_equal(system(command), 0);
    free(command);
}

/* By hand, where there are GPUs: SMELT_TEST_DEVICE=cuda test_comm gpus 2 */
static int run_on_gpus(int size) {
    run_over_tcp(size, "collectives");
    run_over_tcp(size, "place");
    expect_failure(size, size - 1, 1, "killed on gpu", "closed its connection");
    printf("all collectives are right on %d GPUs; a killed rank was noticed\n", size);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "gpus")) return run_on_gpus(atoi(argv[2]));
    if (argc == 3 && !strcmp(argv[1], "rank")) return run_rank(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_alone_communicates_with_itself),
        cmocka_unit_test(every_collective_of_every_type_is_right_over_tcp),
        cmocka_unit_test(every_collective_of_every_type_is_right_over_mpi),
        cmocka_unit_test(a_reduction_longer_than_its_scratch_is_right),
        cmocka_unit_test(collectives_queue_up_and_leave_records),
        cmocka_unit_test(mpirun_and_tcp_tell_each_rank_its_place),
        cmocka_unit_test(ranks_that_disagree_get_an_error),
        cmocka_unit_test(a_killed_rank_is_noticed_at_once),
        cmocka_unit_test(a_rank_that_is_alive_but_late_runs_into_the_timeout),
        cmocka_unit_test(a_rank_that_does_not_appear_is_named),
        cmocka_unit_test(an_abort_ends_waiting_and_tells_the_reason),
        cmocka_unit_test_setup_teardown(a_process_finds_its_place_in_the_environment, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(
            slurms_steps_are_understood_and_its_batch_scripts_are_one_process, clear_environment, clear_environment),
        cmocka_unit_test_setup_teardown(an_environment_that_contradicts_itself_is_refused, clear_environment, clear_environment),
        cmocka_unit_test(rccls_settings_follow_the_hardware_and_the_user_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Steps of all ranks on a virtual clock: times of traces that were worked out by hand, planted faults in the lists of one rank,
 * and layouts beside their forecasts and beside what was measured. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "advise/settings.h"
#include "advise/simulate.h"
#include "base/memory.h"
#include "base/scope.h"
#include "session/rehearsal.h"

/* -- Traces by hand ------------------------------------------------------------------------------------------------ */

enum { HAND_RANKS = 4 };

/* Four ranks of dp 2, tp 2: groups "dp" (shared stream) and "inner.tp" (its own). */
typedef struct Hand {
    Mesh mesh;
    Trace traces[HAND_RANKS];
    const Trace *by_rank[HAND_RANKS];
} Hand;

enum { DP, TP };

static void open_hand(Hand *hand) {
    *hand = (Hand){.mesh = mesh_alone};
    hand->mesh.size[AXIS_DP] = hand->mesh.size[AXIS_TP] = 2;
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        static const char *const names[] = {"dp", "inner.tp"};
        Trace *trace = &hand->traces[rank];
        hand->by_rank[rank] = trace;
        trace->groups = calloc(2, sizeof *trace->groups);
        trace->group_count = 2;
        for (int g = 0; g < 2; g++) {
            TraceGroup *group = &trace->groups[g];
            snprintf(group->name, sizeof group->name, "%s", names[g]);
            group->size = 2;
            group->rank = g == DP ? rank / 2 : rank % 2;
            group->ranks = calloc(2, sizeof *group->ranks);
            for (int i = 0; i < 2; i++) group->ranks[i] = g == DP ? rank % 2 + 2 * i : rank / 2 * 2 + i;
            group->own_stream = g == TP;
        }
    }
}

static void close_hand(Hand *hand) {
    for (int rank = 0; rank < HAND_RANKS; rank++) trace_free(&hand->traces[rank]);
}

static void append_event(Trace *trace, TraceEvent event) {
    trace->events = realloc(trace->events, (size_t)(trace->event_count + 1) * sizeof event);
    trace->events[trace->event_count++] = event;
}

/* Issues a collective whose `count` is its milliseconds. */
static int issue(Trace *trace, TraceCall call) {
    trace->calls = realloc(trace->calls, (size_t)(trace->call_count + 1) * sizeof call);
    trace->calls[trace->call_count] = call;
    append_event(trace, (TraceEvent){.act = TRACE_CALL, .call = trace->call_count});
    return trace->call_count++;
}

static int reduce(Trace *trace, int group, int milliseconds) {
    return issue(trace, (TraceCall){.name = "sum", .operation = ALL_REDUCE, .group = group, .count = milliseconds, .to = -1, .from = -1});
}

static void wait_for(Trace *trace, int call) { append_event(trace, (TraceEvent){.act = TRACE_WAIT, .call = call}); }
static void compute(Trace *trace, int milliseconds) { trace_compute(trace, 1e-3 * milliseconds); }

static double count_milliseconds(void *context, const ReplayTransfer *transfer) {
    (void)context;
    return 1e-3 * (double)(transfer->to >= 0 && transfer->call->to >= 0 ? transfer->call->sent : transfer->call->count);
}

static ReplayResult replay_good(const Hand *hand, double interference) {
    const ReplayRun run = {.mesh = &hand->mesh,
        .traces = hand->by_rank,
        .transfer = count_milliseconds,
        .copy_rate = 1e3, /* a byte is a millisecond */
        .interference = interference};
    ReplayResult result;
    Error error = {0};
    if (!replay_run(&run, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void expect_milliseconds(double seconds, double milliseconds) {
    if (!(fabs(1e3 * seconds - milliseconds) < 1e-6)) fail_msg("%.6f ms instead of %.6f", 1e3 * seconds, milliseconds);
}

static const ReplayShare *share_of(const ReplayResult *result, int rank, const char *name, Operation operation) {
    for (int i = 0; i < result->names; i++)
        if (!strcmp(result->name[i], name)) return &result->ranks[rank].shares[i * REPLAY_OPERATIONS + operation];
    fail_msg("no group %s", name);
    return NULL;
}

/* Two copies of 7 ms on two streams run beside each other and beside 10 ms of work; the second one follows the first 4 ms
 * of work. A third one, of 9 ms, waits in its stream for the first. */
static void copies_run_beside_work_until_a_marker_is_awaited(void **state) {
    (void)state;
    Hand hand;
    open_hand(&hand);
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        Trace *trace = &hand.traces[rank];
        trace_mark(trace, TRACE_STEP);
        trace_copy(trace, 0, 7);
        compute(trace, 4);
        trace_order(trace, TRACE_RECORD, 0, TRACE_MAIN);
        trace_order(trace, TRACE_FOLLOW, 0, 1);
        trace_copy(trace, 1, 7); /* from 4 to 11 */
        trace_order(trace, TRACE_RECORD, 1, 1);
        trace_copy(trace, 0, 9); /* from 7 to 16 */
        trace_order(trace, TRACE_RECORD, 2, 0);
        compute(trace, 6);
        trace_order(trace, TRACE_FOLLOW, 1, TRACE_MAIN); /* waits 1 ms */
        compute(trace, 2);
        trace_order(trace, TRACE_FOLLOW, 2, TRACE_MAIN); /* waits 3 ms */
    }
    ReplayResult result = replay_good(&hand, 0);
    expect_milliseconds(result.step, 16);
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        expect_milliseconds(result.ranks[rank].work, 12);
        expect_milliseconds(result.ranks[rank].copies, 4);
    }
    free(result.ranks);
    close_hand(&hand);
}

static void a_rank_waits_for_the_slowest_and_then_for_the_transfer(void **state) {
    (void)state;
    Hand hand;
    open_hand(&hand);
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        compute(&hand.traces[rank], rank == 1 ? 30 : 10);
        wait_for(&hand.traces[rank], reduce(&hand.traces[rank], TP, 5));
    }
    ReplayResult result = replay_good(&hand, 0);
    expect_milliseconds(result.step, 35);
    expect_milliseconds(share_of(&result, 0, "inner.tp", ALL_REDUCE)->waiting, 20);
    expect_milliseconds(share_of(&result, 0, "inner.tp", ALL_REDUCE)->exposed, 5);
    expect_milliseconds(share_of(&result, 1, "inner.tp", ALL_REDUCE)->waiting, 0);
    expect_milliseconds(share_of(&result, 2, "inner.tp", ALL_REDUCE)->waiting, 0); /* of another group */
    free(result.ranks);
    close_hand(&hand);
}

/* 10 ms, then 20 ms beside a transfer of 12 ms, of which a quarter is lost. */
static void compute_hides_a_transfer_and_pays_for_it(void **state) {
    (void)state;
    for (int quarters = 0; quarters < 2; quarters++) {
        Hand hand;
        open_hand(&hand);
        for (int rank = 0; rank < HAND_RANKS; rank++) {
            compute(&hand.traces[rank], 10);
            int call = reduce(&hand.traces[rank], DP, 12);
            compute(&hand.traces[rank], 20);
            wait_for(&hand.traces[rank], call);
        }
        ReplayResult result = replay_good(&hand, 0.25 * quarters);
        expect_milliseconds(result.step, 30 + 3 * quarters);
        expect_milliseconds(result.ranks[0].interference, 3 * quarters);
        expect_milliseconds(share_of(&result, 0, "dp", ALL_REDUCE)->exposed, 0);
        free(result.ranks);
        close_hand(&hand);
    }
}

/* Two transfers of one stream follow one another; a group with its own stream does not wait for them. */
static void streams_are_in_order_and_apart(void **state) {
    (void)state;
    Hand hand;
    open_hand(&hand);
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        reduce(&hand.traces[rank], DP, 40);
        int second = reduce(&hand.traces[rank], DP, 40), apart = reduce(&hand.traces[rank], TP, 7);
        wait_for(&hand.traces[rank], apart);
        compute(&hand.traces[rank], 1);
        wait_for(&hand.traces[rank], second);
    }
    ReplayResult result = replay_good(&hand, 0);
    expect_milliseconds(share_of(&result, 0, "inner.tp", ALL_REDUCE)->exposed, 7);
    expect_milliseconds(result.step, 80);
    free(result.ranks);
    close_hand(&hand);
}

static int message(Trace *trace, int group, int to, int from, int milliseconds) {
    return issue(trace, (TraceCall){.name = "rows",
                            .operation = EXCHANGE,
                            .group = group,
                            .to = to,
                            .from = from,
                            .count = from >= 0 ? milliseconds : 0,
                            .sent = to >= 0 ? milliseconds : 0});
}

/* A rank issues a sum of the host while one of the device in the same group is open, as updates in the backward pass do. */
static void sums_of_host_and_device_in_one_group_do_not_meet(void **state) {
    (void)state;
    Hand hand;
    open_hand(&hand);
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        Trace *trace = &hand.traces[rank];
        compute(trace, rank < 2 ? 10 : 40);
        int open = reduce(trace, DP, 20);
        wait_for(trace,
            issue(trace, (TraceCall){.name = "bad", .operation = ALL_REDUCE, .group = DP, .count = 5, .host = true, .to = -1, .from = -1}));
        wait_for(trace, open);
    }
    ReplayResult result = replay_good(&hand, 0);
    expect_milliseconds(result.step, 60);
    expect_milliseconds(share_of(&result, 0, "dp", ALL_REDUCE)->waiting, 30);
    expect_milliseconds(share_of(&result, 0, "dp", ALL_REDUCE)->exposed, 20);
    assert_int_equal(share_of(&result, 0, "dp", ALL_REDUCE)->count, 2);
    free(result.ranks);
    close_hand(&hand);
}

static void a_message_needs_both_ends(void **state) {
    (void)state;
    Hand hand;
    open_hand(&hand);
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        compute(&hand.traces[rank], rank % 2 ? 25 : 5);
        wait_for(&hand.traces[rank], rank % 2 ? message(&hand.traces[rank], TP, -1, 0, 4) : message(&hand.traces[rank], TP, 1, -1, 4));
    }
    ReplayResult result = replay_good(&hand, 0);
    expect_milliseconds(result.step, 29);
    expect_milliseconds(share_of(&result, 0, "inner.tp", EXCHANGE)->waiting, 20);
    expect_milliseconds(share_of(&result, 1, "inner.tp", EXCHANGE)->exposed, 4);
    free(result.ranks);
    close_hand(&hand);
}

/* Each pair of ranks agrees in each group, but ranks 0 and 3 sum over dp first and ranks 1 and 2 over tp. */
static void orders_of_groups_that_deadlock_are_named(void **state) {
    (void)state;
    Hand hand;
    open_hand(&hand);
    for (int rank = 0; rank < HAND_RANKS; rank++) {
        bool first = rank == 0 || rank == 3;
        wait_for(&hand.traces[rank], reduce(&hand.traces[rank], first ? DP : TP, 1));
        wait_for(&hand.traces[rank], reduce(&hand.traces[rank], first ? TP : DP, 1));
    }
    const ReplayRun run = {.mesh = &hand.mesh, .traces = hand.by_rank};
    ReplayResult result;
    Error error = {0};
    assert_false(replay_run(&run, &result, &error));
    assert_non_null(strstr(error.message, "wait for each other: rank 0 waits in all_reduce 'sum'"));
    assert_non_null(strstr(error.message, "in group dp for rank 2; rank 2 waits in"));
    free(result.ranks);
    close_hand(&hand);
}

/* -- Programs of layouts ------------------------------------------------------------------------------------------- */

/* A configuration with settings on top; the strings live as long as the test program. */
static Config configuration(const char *path, const char *settings) {
    static OptionStrings strings;
    Config config;
    Error error = {0};
    if (!settings_read(&config, path, &(OptionStrings){0}, &strings, &error)) fail_msg("%s", error.message);
    SCOPED_FREE char *words = memory_copy_string(settings);
    for (char *next, *word = strtok_r(words, " ", &next); word; word = strtok_r(NULL, " ", &next))
        if (!options_set(&config_table, &config, &strings, word, &error)) fail_msg("%s", error.message);
    config.eval.sample_tokens = 0;
    return config;
}

static Cluster cluster_of(const char *gpu, int64_t gpus) {
    Cluster cluster = {.gpus = gpus};
    Error error = {0};
    if (!hardware_find(&cluster.hardware, gpu, &error)) fail_msg("%s", error.message);
    cluster.per_node = cluster.hardware.per_node;
    return cluster;
}

enum { PIPELINE_RANKS = 4 };
#define PIPELINE "layout.pp=2 layout.tp=2 layout.zero=1 batch.sequences=1 batch.tokens=1024 data.length=256 recompute=none"

/* The traces of the four ranks of a pipeline of two stages. */
static Mesh rehearse_pipeline(Trace *traces) {
    Config config = configuration("configs/llama-tiny.yaml", PIPELINE);
    Cluster cluster = cluster_of("mi300x", PIPELINE_RANKS);
    Device *device = hardware_device(&cluster.hardware);
    Mesh mesh = mesh_alone;
    for (int rank = 0; rank < PIPELINE_RANKS; rank++) {
        SCOPED(session_free) Session session = {0};
        Error error = {0};
        if (!session_plan_rank(&session, &config, device, rank, PIPELINE_RANKS, &error) ||
            !session_rehearse(&session, NULL, 1, &traces[rank], &error))
            fail_msg("%s", error.message);
        mesh = *session.mesh;
    }
    device_close(device);
    return mesh;
}

static int find_call(const Trace *trace, Operation operation, bool sends, int skip) {
    for (int i = 0; i < trace->call_count; i++)
        if (trace->calls[i].operation == operation && (operation != EXCHANGE || sends == (trace->calls[i].to >= 0)) && skip-- == 0)
            return i;
    fail_msg("no such collective");
    return -1;
}

static void swap_calls(Trace *trace, int a, int b) {
    TraceCall kept = trace->calls[a];
    trace->calls[a] = trace->calls[b];
    trace->calls[b] = kept;
}

static void plant_order(Trace *trace) {
    swap_calls(trace, find_call(trace, ALL_GATHER, false, 0), find_call(trace, REDUCE_SCATTER, false, 0));
}
static void plant_size(Trace *trace) { trace->calls[find_call(trace, REDUCE_SCATTER, false, 2)].count += 64; }
static void plant_message_size(Trace *trace) { trace->calls[find_call(trace, EXCHANGE, false, 0)].count++; }
/* The last stage sends its gradient before it receives the stream that the gradient is of. */
static void plant_deadlock(Trace *trace) { swap_calls(trace, find_call(trace, EXCHANGE, false, 0), find_call(trace, EXCHANGE, true, 0)); }

static void planted_faults_of_one_rank_are_found_and_named(void **state) {
    (void)state;
    static const struct {
        void (*plant)(Trace *trace);
        const char *words[3];
    } faults[] = {
        {NULL, {NULL}},
        {plant_order, {"do not issue the same collectives: as number 1 in group inner.tp", "rank 3 issues reduce_scatter 'scatter' of",
                          "rank 2 issues all_gather 'gather' of"}},
        {plant_size, {"do not issue the same collectives", "rank 3 issues reduce_scatter 'scatter' of",
                         "rank 2 issues reduce_scatter 'scatter' of"}},
        {plant_message_size,
            {"do not issue the same collectives", "rank 3 issues exchange 'stream.0'", "rank 1 issues exchange 'stream.0'"}},
        {plant_deadlock, {"wait for each other", "rank 3 waits in exchange 'd_stream", "for rank 1"}},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (int one_queue = 0; one_queue < 2; one_queue++) {
            Trace traces[PIPELINE_RANKS] = {0};
            const Trace *by_rank[PIPELINE_RANKS];
            Mesh mesh = rehearse_pipeline(traces);
            if (faults[i].plant) faults[i].plant(&traces[3]);
            for (int rank = 0; rank < PIPELINE_RANKS; rank++) by_rank[rank] = &traces[rank];
            const ReplayRun run = {.mesh = &mesh, .traces = by_rank, .one_queue = one_queue};
            ReplayResult result;
            Error error = {0};
            if (replay_run(&run, &result, &error) != !faults[i].plant) fail_msg("fault %zu: %s", i, error.message);
            for (int w = 0; w < 3 && faults[i].words[w]; w++)
                if (!strstr(error.message, faults[i].words[w])) fail_msg("%s lacks %s", error.message, faults[i].words[w]);
            free(result.ranks);
            for (int rank = 0; rank < PIPELINE_RANKS; rank++) trace_free(&traces[rank]);
        }
}

/* -- Steps beside forecasts ---------------------------------------------------------------------------------------- */

typedef struct Simulated {
    double step, forecast, slow;
    int64_t calls;
} Simulated;

static Simulated simulate(const Config *config, Cluster cluster, const char *topology_file) {
    ForecastLayout layout = {config->layout, config->recompute, config->batch.sequences};
    Topology topology;
    Forecast forecast;
    SCOPED(simulation_free) SimulatedRun run = {0};
    Error error = {0};
    if (!topology_read(&topology, topology_file, &cluster, &error) || !forecast_layout(&forecast, config, &cluster, &layout, &error) ||
        !simulate_layout(&run, config, &cluster, &topology, &layout, &error))
        fail_msg("%s", error.message);
    return (Simulated){run.step.step, forecast.step, run.slow.step, run.calls};
}

static void expect_within(double value, double expected, double part, const char *what) {
    if (!(fabs(value / expected - 1) <= part))
        fail_msg("%s: %.6g is %+.1f%% off %.6g", what, value, 100 * (value / expected - 1), expected);
}

/* The rows of docs/forecast.md whose shapes are configurations. All were measured on two H200; the two with most error of the
 * formula are left to bench/parallel.py. */
static void two_gpus_take_the_time_that_was_measured(void **state) {
    (void)state;
#define LLAMA "model.layers=8 precision=pure_bf16 recompute=none batch.ramp_steps=0 data.length=8192 model.tied=true"
    static const struct {
        const char *name, *settings;
        double tokens, measured; /* of a step; tokens/s */
    } rows[] = {
        {"tp-llama", LLAMA " layout.tp=2 batch.sequences=2 batch.tokens=16384", 16384, 70024},
        {"pp-llama", LLAMA " layout.pp=2 batch.sequences=1 batch.tokens=65536", 65536, 72178},
        {"fsdp-llama", LLAMA " layout.zero=3 batch.sequences=2 batch.tokens=65536", 65536, 73651},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Config config = configuration("configs/llama3.1-8b.yaml", rows[i].settings);
        Simulated simulated = simulate(&config, cluster_of("h200", 2), "");
        printf("%s: %.0f tokens/s, measured %.0f, forecast %.0f\n", rows[i].name, rows[i].tokens / simulated.step, rows[i].measured,
            rows[i].tokens / simulated.forecast);
        expect_within(rows[i].tokens / simulated.step, rows[i].measured, 0.1, rows[i].name);
    }
}

/* The rows of 8B in docs/finetune.md. With no time for copies, the first row would be 19% too fast. The copies of saved
 * activations hide behind each layer of 8,192 rows, and take no memory of the device. */
static void offload_takes_the_time_that_was_measured(void **state) {
    (void)state;
#define WHOLE_8B "batch.sequences=1 data.length=8192 batch.ramp_steps=0 recompute=block optimizer.clip=0 "
    static const struct {
        const char *settings;
        double seconds;
    } rows[] = {
        {WHOLE_8B "offload=optimizer precision=pure_bf16 batch.tokens=8192 optimizer.in_backward=true", 1.117},
        {WHOLE_8B "offload=optimizer precision=pure_bf16 batch.tokens=65536", 7.876},
        {WHOLE_8B "offload=optimizer precision=bf16 batch.tokens=8192 optimizer.in_backward=true", 2.588},
        {WHOLE_8B "offload=optimizer precision=bf16 batch.tokens=65536", 9.327},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Config config = configuration("configs/llama3.1-8b.yaml", rows[i].settings);
        Simulated simulated = simulate(&config, cluster_of("h200", 1), "");
        printf("%s: %.0f ms, measured %.0f, forecast %.0f\n", rows[i].settings + strlen(WHOLE_8B), 1e3 * simulated.step,
            1e3 * rows[i].seconds, 1e3 * simulated.forecast);
        expect_within(simulated.step, rows[i].seconds, 0.05, rows[i].settings);
    }
    Config plain = configuration("configs/llama3.1-8b.yaml", WHOLE_8B "precision=pure_bf16 batch.tokens=65536");
    Config saved = configuration("configs/llama3.1-8b.yaml", WHOLE_8B "precision=pure_bf16 batch.tokens=65536 offload=activations");
    double before = simulate(&plain, cluster_of("h200", 1), "").step, after = simulate(&saved, cluster_of("h200", 1), "").step;
    assert_true(after > before);
    expect_within(after, before, 0.02, "offload=activations");
}

/* A ring sends one message per step, over the link of two GPUs, beside the compute of the step: with a short sequence on eight
 * MI300X, whose GPUs in pairs have a seventh of the rate, transfers decide. The
 * formula knows no ranks that wait for each other, which is less than 8%; without the latencies and links it was 42% off. */
static void the_formula_counts_each_message_of_a_ring(void **state) {
    (void)state;
    static const struct {
        const char *gpu;
        int gpus;
        const char *settings;
    } rows[] = {{"mi300x", 8, "layout.cp=8 data.length=8192"}, {"h200", 8, "layout.cp=8 data.length=8192"},
        {"mi300x", 16, "layout.cp=16 data.length=32768"}, {"h200", 2, "layout.cp=2 data.length=65536"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SCOPED_FREE char *settings =
            memory_format("model.layers=4 layout.cp_exchange=ring precision=pure_bf16 recompute=none batch.sequences=1 "
                          "batch.ramp_steps=0 batch.tokens=65536 %s",
                rows[i].settings);
        Config config = configuration("configs/llama3.1-8b.yaml", settings);
        Simulated simulated = simulate(&config, cluster_of(rows[i].gpu, rows[i].gpus), "");
        printf("ring, %d %s: simulated %.1f ms, forecast %.1f ms\n", rows[i].gpus, rows[i].gpu, 1e3 * simulated.step,
            1e3 * simulated.forecast);
        expect_within(simulated.forecast, simulated.step, 0.08, settings);
    }
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* All copies wait for the slow node at the end of a step, so a node that computes 10% longer costs nearly 10%; and links that
 * are half as fast cost more than those of the table. */
static void a_slow_node_and_slow_links_make_all_ranks_wait(void **state) {
    (void)state;
    char path[] = "/tmp/smelt-topology-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    Config config = configuration("configs/llama3.1-8b.yaml",
        "model.layers=4 precision=pure_bf16 recompute=none batch.ramp_steps=0 data.length=4096 batch.sequences=1 batch.tokens=131072 "
        "layout.tp=2 layout.zero=1");
    write_text(path, "slow: {node: 1, factor: 1.1}\n");
    Simulated simulated = simulate(&config, cluster_of("mi300x", 32), path);
    assert_true(simulated.slow > 1.05 * simulated.step && simulated.slow < 1.1001 * simulated.step);
    expect_within(simulated.step, simulated.forecast, 0.1, "32 MI300X");
    write_text(path, "node: {rate: 150}\nnetwork: {card: 25}\n");
    Simulated slower = simulate(&config, cluster_of("mi300x", 32), path);
    assert_true(slower.step > 1.02 * simulated.step);
    assert_int_equal(slower.calls, simulated.calls);
    unlink(path);
}

/* With checkpoint.every=0, only the end of a run is saved, so a loss repeats half of the run on average. */
static void a_lost_rank_repeats_the_steps_since_a_checkpoint(void **state) {
    (void)state;
    Topology topology = {.lost = {.rank = 3, .step = -1}};
    assert_true(topology_repeated_steps(&topology, 200, 700) == 100);
    assert_true(topology_repeated_steps(&topology, 0, 700) == 350);
    assert_true(topology_repeated_steps(&topology, 200, 31) == 15.5);
    topology.lost.step = 7;
    assert_true(topology_repeated_steps(&topology, 0, 700) == 7);
}

static void wrong_topologies_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"slow: {node: 4}\n", "lost: {rank: 32}\n", "node: {links: ring}\n", "slow: {factor: 0.5}\n",
        "nodes: 3\n", "network: {card: 400}\n", "network: {card: 1e-6}\n", "node: {rate: 1e-3}\n", "node: {rate: 50000}\n",
        "node: {latency: 0.5}\n", "node: {latency: 1e-12}\n", "node: {gpus: 4}\nnetwork: {cards: 64}\n", "lost: {step: 5}\n"};
    static const char *const words[] = {"slow.node=4", "lost.rank=32", "mesh", "slow.factor", "nodes", "network.card=400",
        "network.card=1e-06", "node.rate=0.001", "node.rate=50000", "node.latency=0.5", "node.latency=1e-12", "network.cards=64",
        "lost.step=5"};
    char path[] = "/tmp/smelt-topology-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        Topology topology;
        Cluster cluster = cluster_of("mi300x", 32);
        Error error = {0};
        write_text(path, texts[i]);
        assert_false(topology_read(&topology, path, &cluster, &error));
        assert_int_equal(error.code, ERROR_USAGE);
        if (!strstr(error.message, words[i])) fail_msg("%s lacks %s", error.message, words[i]);
    }
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_run_beside_work_until_a_marker_is_awaited),
        cmocka_unit_test(a_rank_waits_for_the_slowest_and_then_for_the_transfer),
        cmocka_unit_test(compute_hides_a_transfer_and_pays_for_it),
        cmocka_unit_test(streams_are_in_order_and_apart),
        cmocka_unit_test(sums_of_host_and_device_in_one_group_do_not_meet),
        cmocka_unit_test(a_message_needs_both_ends),
        cmocka_unit_test(orders_of_groups_that_deadlock_are_named),
        cmocka_unit_test(planted_faults_of_one_rank_are_found_and_named),
        cmocka_unit_test(offload_takes_the_time_that_was_measured),
        cmocka_unit_test(the_formula_counts_each_message_of_a_ring),
        cmocka_unit_test(two_gpus_take_the_time_that_was_measured),
        cmocka_unit_test(a_slow_node_and_slow_links_make_all_ranks_wait),
        cmocka_unit_test(a_lost_rank_repeats_the_steps_since_a_checkpoint),
        cmocka_unit_test(wrong_topologies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

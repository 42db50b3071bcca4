/* Rehearsals: the list of collectives that each rank would issue is the list that it does issue, in every kind of layout; and
 * lists that differ among ranks are refused with the first difference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/own_ranks.h"
#include "advise/settings.h"
#include "backend/backend.h"
#include "base/memory.h"
#include "base/scope.h"
#include "comm/comm_internal.h"
#include "session/rehearsal.h"

/* -- Real steps ---------------------------------------------------------------------------------------------------- */

typedef struct Case {
    const char *name;
    int ranks;
    const char *path, *settings;
} Case;

#define ZAYA "configs/zaya1-tiny.yaml"
#define LLAMA "configs/llama-tiny.yaml"
static const Case cases[] = {
    {"zero", 2, ZAYA, "layout.zero=1 batch.sequences=1 batch.tokens=1024"},
    {"weights", 4, LLAMA, "layout.zero=3 batch.sequences=1 batch.tokens=2048"},
    {"muon", 4, LLAMA, "layout.zero=1 layout.tp=2 optimizer.name=muon batch.sequences=1 batch.tokens=1024"},
    {"bf16", 4, LLAMA, "layout.zero=2 precision=bf16 layout.reduce=bf16 layout.shard=2 batch.sequences=1 batch.tokens=1024"},
    {"within", 4, LLAMA, "layout.zero=1 optimizer.in_backward=true optimizer.clip=0 batch.sequences=1 batch.tokens=1024"},
    {"within_shards", 4, LLAMA, "layout.zero=3 optimizer.in_backward=true optimizer.clip=0 batch.sequences=1 batch.tokens=1024"},
    {"adapters", 4, LLAMA, "layout.zero=3 lora.rank=2 lora.base=nf4 precision=bf16 batch.sequences=1 batch.tokens=1024"},
    {"experts", 4, ZAYA, "layout.ep=2 layout.zero=1 batch.sequences=1 batch.tokens=1024"},
    {"ring", 4, LLAMA, "layout.cp=4 layout.cp_exchange=ring layout.zero=1 batch.sequences=1 batch.tokens=512"},
    {"stages", 4, LLAMA, "layout.pp=2 layout.tp=2 layout.pp_schedule=zero-bubble layout.zero=1 batch.sequences=1 batch.tokens=1024"},
    {"chunks", 2, LLAMA, "layout.pp=2 layout.pp_schedule=interleaved layout.pp_chunks=2 layout.zero=1 batch.sequences=1 batch.tokens=1024"},
    {"fp8", 4, LLAMA, "layout.zero=3 fp8.recipe=tensor precision=bf16 batch.sequences=1 batch.tokens=1024"},
    {"halo", 4, ZAYA, "layout.cp=2 layout.ep=2 layout.zero=1 batch.sequences=1 batch.tokens=1024"},
    {"all", 16, LLAMA, "layout.tp=2 layout.cp=2 layout.pp=2 layout.zero=1 batch.sequences=1 batch.tokens=1024"},
};
enum { CASES = sizeof cases / sizeof *cases, STEPS = 2 };

static void load_nothing(void *context, int64_t microbatch) { (void)context, (void)microbatch; }

static void demand(bool good, const Error *error) {
    if (!good) fail_msg("%s", error->message);
}

/* Reads the configuration of a case. Strings live as long as the process. */
static Config config_of(const Case *test) {
    static OptionStrings strings;
    Config config;
    Error error = {0};
    demand(settings_read(&config, test->path, &(OptionStrings){0}, &strings, &error), &error);
    SCOPED_FREE char *settings = memory_copy_string(test->settings);
    for (char *next, *word = strtok_r(settings, " ", &next); word; word = strtok_r(NULL, " ", &next))
        demand(options_set(&config_table, &config, &strings, word, &error), &error);
    config.data.length = 256;
    config.eval.sample_tokens = 0;
    config.recompute = RECOMPUTE_NONE;
    if (!strstr(test->settings, "precision")) config.precision = PRECISION_FP32;
    return config;
}

static void run_steps(Session *session) {
    Error error = {0};
    ProgramWork work = {.microbatches = session_step_microbatches(session), .load = load_nothing};
    for (int step = 1; step <= STEPS; step++) {
        session_begin_step(session, step, 0, 1);
        demand(session_run(session, &work, &error), &error);
        session_update(session, 1);
    }
    demand(comm_ok(session->comm, &error), &error);
}

static void compare_calls(const Trace *rehearsed, const Trace *real) {
    char wanted[TRACE_TEXT], found[TRACE_TEXT];
    for (int i = 0; i < rehearsed->call_count && i < real->call_count; i++) {
        const TraceCall *a = &rehearsed->calls[i], *b = &real->calls[i];
        trace_describe(rehearsed, a, wanted);
        trace_describe(real, b, found);
        const TraceGroup *groups[] = {&rehearsed->groups[a->group], &real->groups[b->group]};
        assert_string_equal(wanted, found);
        assert_string_equal(groups[0]->name, groups[1]->name);
        assert_int_equal(groups[0]->size, groups[1]->size);
        assert_memory_equal(groups[0]->ranks, groups[1]->ranks, (size_t)groups[0]->size * sizeof(int));
        if (a->operation == EXCHANGE) assert_true(a->sent == b->sent && a->count == b->count && a->to == b->to && a->from == b->from);
        else assert_true(trace_calls_agree(a, b));
    }
    assert_int_equal(rehearsed->call_count, real->call_count);
    assert_true(real->call_count > 0);
}

/* The program of a rank: rehearses, then runs. */
static int run_rank(const Case *test) {
    Error error = {0};
    SCOPED(trace_free) Trace rehearsed = {0}, real = {0};
    Session session;
    Config config = config_of(test);
    Comm *comm = comm_open(NULL, &error);
    demand(comm != NULL, &error);
    demand(session_plan_rank(&session, &config, device_cpu(), comm_rank(comm), comm_size(comm), &error), &error);
    demand(session_rehearse(&session, NULL, STEPS, &rehearsed, &error), &error);
    demand(session_start(&session, comm, &error), &error);
    comm->engine->trace = &real;
    run_steps(&session);
    comm->engine->trace = NULL;
    compare_calls(&rehearsed, &real);
    session_free(&session);
    comm_close(comm);
    return 0;
}

static void a_rehearsal_lists_the_collectives_of_a_real_step(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) run_over_tcp(cases[i].ranks, cases[i].name);
}

/* -- Differences --------------------------------------------------------------------------------------------------- */

static const Case differing = {"differing", 4, LLAMA, "layout.zero=1 layout.pp=2 layout.tp=2 batch.sequences=1 batch.tokens=1024"};

static int find_call(const Trace *trace, Operation operation, int skip) {
    for (int i = 0; i < trace->call_count; i++)
        if (trace->calls[i].operation == operation && skip-- == 0) return i;
    fail_msg("the list has no such collective");
    return -1;
}

static void swap_calls(Trace *trace, int a, int b) {
    TraceCall kept = trace->calls[a];
    trace->calls[a] = trace->calls[b];
    trace->calls[b] = kept;
}

static void swap_gather_and_scatter(Trace *trace) {
    swap_calls(trace, find_call(trace, ALL_GATHER, 0), find_call(trace, REDUCE_SCATTER, 0));
}
static void lengthen_scatter(Trace *trace) { trace->calls[find_call(trace, REDUCE_SCATTER, 2)].count += 64; }
static void lengthen_message(Trace *trace) {
    TraceCall *call = &trace->calls[find_call(trace, EXCHANGE, 1)];
    if (call->to >= 0) call->sent++;
    if (call->from >= 0) call->count++;
}
static void drop_last_call(Trace *trace) { trace->call_count--; } /* the only collective of a group of two */
static void drop_calls_from_a_gather(Trace *trace) { trace->call_count = find_call(trace, ALL_GATHER, 5); }

/* Changes of the list of rank 3, and words of the refusal on every rank. */
static const struct {
    const char *name;
    void (*change)(Trace *trace);
    const char *words[3];
} differences[] = {
    {"order", swap_gather_and_scatter, {"rank 3 issues reduce_scatter", "rank 2 issues all_gather"}},
    {"size", lengthen_scatter, {"rank 3 issues reduce_scatter", "rank 2 issues reduce_scatter"}},
    {"message", lengthen_message, {"exchange", "rank 3 issues", "rank 1 issues"}},
    {"last", drop_last_call, {"rank 1 issues all_reduce 'gradients of ends'", "only 1 of its 2 ranks"}},
    {"rest", drop_calls_from_a_gather, {"issues nothing more"}},
};
enum { DIFFERENCES = sizeof differences / sizeof *differences };

static int run_differing_rank(int difference) {
    Error error = {0};
    SCOPED(trace_free) Trace trace = {0};
    SCOPED(session_free) Session session;
    Config config = config_of(&differing);
    Comm *comm = comm_open(NULL, &error);
    demand(comm != NULL, &error);
    demand(session_plan_rank(&session, &config, device_cpu(), comm_rank(comm), comm_size(comm), &error), &error);
    demand(session_rehearse(&session, NULL, 1, &trace, &error), &error);
    demand(trace_agree(&trace, comm, &error), &error);
    if (comm_rank(comm) == 3) differences[difference].change(&trace);
    assert_false(trace_agree(&trace, comm, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    for (int i = 0; i < 3; i++) {
        const char *words = differences[difference].words[i];
        if (words && !strstr(error.message, words)) fail_msg("%s: %s lacks %s", differences[difference].name, error.message, words);
    }
    comm_close(comm);
    return 0;
}

static void lists_that_differ_are_refused_with_the_first_difference(void **state) {
    (void)state;
    for (int i = 0; i < DIFFERENCES; i++) run_over_tcp(differing.ranks, differences[i].name);
}

static int run_role(const char *role) {
    for (int i = 0; i < CASES; i++)
        if (!strcmp(role, cases[i].name)) return run_rank(&cases[i]);
    for (int i = 0; i < DIFFERENCES; i++)
        if (!strcmp(role, differences[i].name)) return run_differing_rank(i);
    return 1;
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rehearsal_lists_the_collectives_of_a_real_step),
        cmocka_unit_test(lists_that_differ_are_refused_with_the_first_difference)};
    if (count > 2 && !strcmp(arguments[1], "rank")) return run_role(arguments[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

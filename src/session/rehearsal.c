/* Rehearsals of steps, and their comparison among ranks. A rehearsal works on a copy of the session
 * that has its own executor, exchange, optimizer and groups; it borrows the plans. Owns nothing that
 * outlives a call. */
#include "session/rehearsal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/idle_device.h"
#include "base/array.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/scope.h"
#include "session/session_internal.h"

/* -- A step -------------------------------------------------------------------------------------------------------- */

typedef struct Rehearsal {
    Session session; /* a copy; it owns its executor, exchange, optimizer and groups */
    const RehearsalTimes *times;
    Trace *trace;
} Rehearsal;

static void note_work(void *context, int node, double part) {
    const Rehearsal *rehearsal = context;
    if (rehearsal->times) trace_compute(rehearsal->trace, part * rehearsal->times->nodes[node - 1]);
}

static void note_copy(void *context, int stream, int64_t bytes) {
    const Rehearsal *rehearsal = context;
    if (rehearsal->times) trace_copy(rehearsal->trace, stream, (double)bytes);
}

static void note_order(void *context, bool records, int event, int stream) {
    const Rehearsal *rehearsal = context;
    if (rehearsal->times) trace_order(rehearsal->trace, records ? TRACE_RECORD : TRACE_FOLLOW, event, stream);
}

/* An OptimizerHook. */
static void note_update(void *context, int bucket) {
    const Rehearsal *rehearsal = context;
    if (rehearsal->times) trace_compute(rehearsal->trace, rehearsal->times->updates[bucket]);
    exchange_send_weights(rehearsal->session.training.exchange, bucket);
}

static void load_nothing(void *context, int64_t microbatch) { (void)context, (void)microbatch; }

static bool rehearse_step(Rehearsal *rehearsal, int64_t step, Error *error) {
    Session *session = &rehearsal->session;
    ProgramWork work = {.microbatches = session_step_microbatches(session), .load = load_nothing};
    trace_mark(rehearsal->trace, TRACE_STEP);
    session_begin_step(session, step, 0, 1);
    if (!session_run(session, &work, error)) return false;
    trace_mark(rehearsal->trace, TRACE_MEET);
    session_update(session, 1);
    return true;
}

static void close_rehearsed(Rehearsal *rehearsal, Comm *comm) {
    Session *session = &rehearsal->session;
    program_stop(&session->training);
    optimizer_free(session->optimizer);
    mesh_close(session->mesh);
    *session->whole = mesh_without(session->mesh, AXIS_CP);
    comm_close(comm);
    device_close(session->device);
}

bool session_rehearse(const Session *planned, const RehearsalTimes *times, int steps, Trace *trace, Error *error) {
    Rehearsal rehearsal = {.session = *planned, .times = times, .trace = trace};
    Session *session = &rehearsal.session;
    Comm *comm = comm_rehearse(trace, mesh_rank(planned->mesh), mesh_size(planned->mesh, AXES_ALL));
    const IdleReports reports = {note_work, note_copy, note_order};
    session->training.backend = idle_device_open(&planned->training.backend, &reports, &rehearsal);
    session->device = session->training.backend.device;
    bool done = session_start_training(session, comm, error);
    if (done) optimizer_set_hook(session->optimizer, note_update, &rehearsal);
    trace_clear(trace);
    for (int step = 1; step <= steps && done; step++) done = rehearse_step(&rehearsal, step, error);
    int events = trace->event_count;
    close_rehearsed(&rehearsal, comm);
    trace->event_count = events; /* drops the waits of closing */
    return done;
}

/* -- Agreement ----------------------------------------------------------------------------------------------------- */

/* One collective or message as it enters a ledger. */
typedef struct LedgerItem {
    uint64_t key;    /* hash of the ranks that must agree: a group, or a sender and a receiver in it */
    uint64_t value;  /* hash of what they must agree on */
    int call, ranks; /* index in the trace; the number of ranks that must agree */
} LedgerItem;

typedef struct LedgerItems {
    LedgerItem *items;
    int count;
} LedgerItems;

/* The items of one key: what ranks exchange. `value` chains the items' values. */
typedef struct LedgerRow { uint64_t key, value, count, ranks; } LedgerRow; /* ranks: the number that must have the key */

typedef struct Ledger {
    LedgerRow *rows;
    int64_t count;
} Ledger;

static uint64_t group_key(const TraceGroup *group) {
    uint64_t parts[] = {hash_bytes(group->name, strlen(group->name)), hash_bytes(group->ranks, (size_t)group->size * sizeof(int))};
    return hash_bytes(parts, sizeof parts);
}

static uint64_t message_key(uint64_t group, int from, int to) {
    uint64_t parts[] = {group, (uint64_t)from, (uint64_t)to};
    return hash_bytes(parts, sizeof parts);
}

static uint64_t name_hash(const TraceCall *call) { return hash_bytes(call->name, strlen(call->name)); }

static uint64_t call_value(const TraceCall *call) {
    int64_t count = call->operation == ALL_TO_ALL ? 0 : call->count;
    uint64_t parts[] = {name_hash(call), (uint64_t)call->operation, (uint64_t)call->type, (uint64_t)call->reduce, (uint64_t)count,
        call->shards, (uint64_t)call->root, call->host};
    return hash_bytes(parts, sizeof parts);
}

static uint64_t message_value(const TraceCall *call, int64_t count) {
    uint64_t parts[] = {name_hash(call), (uint64_t)call->type, (uint64_t)count};
    return hash_bytes(parts, sizeof parts);
}

static void add_item(LedgerItems *list, uint64_t key, uint64_t value, int call, int ranks) {
    list->items[list->count++] = (LedgerItem){key, value, call, ranks};
}

/* Returns the items of a trace in order; the caller frees them. */
static LedgerItems list_items(const Trace *trace) {
    LedgerItems list = {.items = memory_allocate((size_t)(2 * trace->call_count + 1) * sizeof *list.items)};
    SCOPED_FREE uint64_t *keys = memory_allocate((size_t)(trace->group_count + 1) * sizeof *keys);
    for (int g = 0; g < trace->group_count; g++) keys[g] = group_key(&trace->groups[g]);
    for (int i = 0; i < trace->call_count; i++) {
        const TraceCall *call = &trace->calls[i];
        int rank = trace->groups[call->group].rank;
        uint64_t key = keys[call->group];
        if (call->operation != EXCHANGE) add_item(&list, key, call_value(call), i, trace->groups[call->group].size);
        if (call->to >= 0) add_item(&list, message_key(key, rank, call->to), message_value(call, call->sent), i, 2);
        if (call->from >= 0) add_item(&list, message_key(key, call->from, rank), message_value(call, call->count), i, 2);
    }
    return list;
}

static LedgerRow *find_row(const Ledger *ledger, uint64_t key) {
    int64_t i = 0;
    while (i < ledger->count && ledger->rows[i].key != key) i++;
    return i < ledger->count ? &ledger->rows[i] : NULL;
}

static uint64_t chain(uint64_t before, uint64_t value) {
    uint64_t parts[] = {before, value};
    return hash_bytes(parts, sizeof parts);
}

static Ledger sum_items(const LedgerItems *list) {
    Ledger ledger = {0};
    for (int i = 0; i < list->count; i++) {
        LedgerRow *row = find_row(&ledger, list->items[i].key);
        if (!row) {
            array_append(ledger.rows, ledger.count, (LedgerRow){.key = list->items[i].key, .ranks = (uint64_t)list->items[i].ranks});
            row = &ledger.rows[ledger.count - 1];
        }
        row->value = chain(row->value, list->items[i].value);
        row->count++;
    }
    return ledger;
}

/* Gathers the ledgers of all ranks, padded to `*each` rows per rank with rows of key 0. The caller
 * frees the rows. */
static bool gather_ledgers(const Ledger *own, Comm *comm, Ledger *all, int64_t *each, Error *error) {
    *each = own->count;
    if (!comm_host_all_reduce(comm, "schedule size", each, 1, COMM_I64, COMM_MAX, error)) return false;
    *all = (Ledger){.rows = memory_allocate((size_t)(*each * comm_size(comm) + 1) * sizeof *all->rows), .count = *each * comm_size(comm)};
    if (own->count) memcpy(all->rows + *each * comm_rank(comm), own->rows, (size_t)own->count * sizeof *own->rows);
    return comm_host_all_gather(comm, "schedules", all->rows, *each * (int64_t)(sizeof *all->rows / sizeof(int64_t)), COMM_I64, error);
}

static int compare_rows(const void *a, const void *b) {
    const LedgerRow *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->value > y->value) - (x->value < y->value);
}

/* Returns the end of the rows with one key. */
static int64_t end_of_key(const LedgerRow *sorted, int64_t first, int64_t count) {
    int64_t end = first;
    while (end < count && sorted[end].key == sorted[first].key) end++;
    return end;
}

/* Returns the key of the first row, by rank, that some rank lacks or on which ranks differ; 0: none. */
static uint64_t first_difference(const Ledger *all) {
    size_t bytes = (size_t)all->count * sizeof *all->rows;
    SCOPED_FREE LedgerRow *sorted = memory_allocate(bytes + 1);
    memcpy(sorted, all->rows, bytes);
    qsort(sorted, (size_t)all->count, sizeof *sorted, compare_rows);
    uint64_t differing = 0;
    int64_t first = all->count;
    for (int64_t i = 0, end; i < all->count; i = end) {
        end = end_of_key(sorted, i, all->count);
        bool agree = sorted[i].value == sorted[end - 1].value && (uint64_t)(end - i) == sorted[i].ranks;
        int64_t at = agree || !sorted[i].key ? all->count : find_row(all, sorted[i].key) - all->rows;
        if (at >= first) continue;
        first = at;
        differing = sorted[i].key;
    }
    return differing;
}

/* Returns the hash of the first `count` items of the key. */
static uint64_t prefix_value(const LedgerItems *list, uint64_t key, int64_t count) {
    uint64_t value = 0;
    for (int i = 0; i < list->count && count > 0; i++)
        if (list->items[i].key == key) {
            value = chain(value, list->items[i].value);
            count--;
        }
    return value;
}

/* The ranks that have a key. */
typedef struct Holders {
    int *ranks;
    int count, wanted; /* wanted: the number of ranks that must have it */
    int64_t most;      /* the largest number of items on a rank */
} Holders;

static Holders find_holders(const Ledger *all, int64_t each, uint64_t key, int ranks) {
    Holders holders = {.ranks = memory_allocate((size_t)ranks * sizeof *holders.ranks)};
    for (int rank = 0; rank < ranks; rank++) {
        const Ledger one = {all->rows + rank * each, each};
        const LedgerRow *row = find_row(&one, key);
        if (!row) continue;
        holders.ranks[holders.count++] = rank;
        holders.wanted = (int)row->ranks;
        if ((int64_t)row->count > holders.most) holders.most = (int64_t)row->count;
    }
    return holders;
}

/* Finds the number from 0 of the first item that differs among the holders, by bisection. */
static bool bisect_items(const LedgerItems *list, uint64_t key, const Holders *holders, Comm *comm, int64_t *number, Error *error) {
    SCOPED_FREE uint64_t *values = memory_allocate((size_t)comm_size(comm) * sizeof *values);
    int64_t same = 0, differs = holders->most;
    while (differs - same > 1) {
        int64_t middle = (same + differs) / 2;
        bool equal = true;
        values[comm_rank(comm)] = prefix_value(list, key, middle);
        if (!comm_host_all_gather(comm, "schedule prefix", values, 1, COMM_I64, error)) return false;
        for (int i = 1; i < holders->count; i++) equal = equal && values[holders->ranks[i]] == values[holders->ranks[0]];
        if (equal) same = middle;
        else differs = middle;
    }
    *number = same;
    return true;
}

/* Describes this rank's item `number` of the key. */
static void describe_item(const Trace *trace, const LedgerItems *list, uint64_t key, int64_t number, char text[TRACE_TEXT]) {
    snprintf(text, TRACE_TEXT, "nothing more");
    for (int i = 0; i < list->count; i++)
        if (list->items[i].key == key && number-- == 0) trace_describe(trace, &trace->calls[list->items[i].call], text);
}

/* Returns the holder that differs from most others; `other` receives one of the others. */
static int odd_holder(const Holders *holders, const char *texts, int *other) {
    const char *first = texts + (int64_t)holders->ranks[0] * TRACE_TEXT;
    int alike = 1, differing = -1;
    for (int i = 1; i < holders->count; i++) {
        if (!strcmp(texts + (int64_t)holders->ranks[i] * TRACE_TEXT, first)) alike++;
        else if (differing < 0) differing = holders->ranks[i];
    }
    bool first_is_odd = alike < holders->count - alike;
    *other = first_is_odd ? differing : holders->ranks[0];
    return first_is_odd || differing < 0 ? holders->ranks[0] : differing;
}

/* Sets the error of ranks that do not agree on a key. */
static bool refuse_schedules(const Trace *trace, const LedgerItems *list, uint64_t key, const Holders *holders, Comm *comm, Error *error) {
    int64_t number;
    int other;
    SCOPED_FREE char *texts = memory_allocate((size_t)comm_size(comm) * TRACE_TEXT);
    if (!bisect_items(list, key, holders, comm, &number, error)) return false;
    describe_item(trace, list, key, number, texts + (int64_t)comm_rank(comm) * TRACE_TEXT);
    if (!comm_host_all_gather(comm, "schedule texts", texts, TRACE_TEXT, COMM_U8, error)) return false;
    int odd = odd_holder(holders, texts, &other);
    if (holders->count < holders->wanted)
        return error_set(error, ERROR_USAGE,
            "the ranks would not issue the same collectives: rank %d issues %s, but only %d of its %d ranks do. All ranks need the same "
            "smelt, settings and kind of device",
            odd, texts + (int64_t)odd * TRACE_TEXT, holders->count, holders->wanted);
    return error_set(error, ERROR_USAGE,
        "the ranks would not issue the same collectives: as number %lld, rank %d issues %s, but rank %d issues %s. All ranks need the same "
        "smelt, settings and kind of device",
        (long long)number + 1, odd, texts + (int64_t)odd * TRACE_TEXT, other, texts + (int64_t)other * TRACE_TEXT);
}

bool trace_agree(const Trace *trace, Comm *comm, Error *error) {
    Ledger all;
    int64_t each;
    LedgerItems list = list_items(trace);
    SCOPED_FREE LedgerItem *items = list.items;
    Ledger own = sum_items(&list);
    SCOPED_FREE LedgerRow *own_rows = own.rows;
    if (!gather_ledgers(&own, comm, &all, &each, error)) return false;
    SCOPED_FREE LedgerRow *rows = all.rows;
    uint64_t key = first_difference(&all);
    if (!key) return true;
    Holders holders = find_holders(&all, each, key, comm_size(comm));
    SCOPED_FREE int *holding = holders.ranks;
    return refuse_schedules(trace, &list, key, &holders, comm, error);
}

bool rehearsal_agree(const Session *planned, Comm *comm, Error *error) {
    SCOPED(trace_free) Trace trace = {0};
    return session_rehearse(planned, NULL, 1, &trace, error) && trace_agree(&trace, comm, error);
}

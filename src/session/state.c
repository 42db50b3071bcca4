/* A session as a checkpoint: every parameter in its state dtype under its own name, optimizer state
 * under optimizer/KIND/NAME, the step, and the consumed samples, which are the position in the
 * data. The schedule is a function of step and configuration, so nothing else is needed to continue
 * bit for bit.
 *
 * Each rank writes what it alone holds, and its share of what several ranks hold. It reads
 * everything that it holds, whoever wrote it, so any number of ranks continues a run of any other
 * number. A save copies the rank's shard into host memory of the Saver, and a thread writes it;
 * training waits only for the copy. The system provides memory when it is touched. This takes
 * seconds for a large model, so a thread touches the memory during the steps after the first. The
 * Saver belongs to the session. With checkpoint.async=false there is neither copy nor thread. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/math.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"
#include "ckpt/ckpt.h"
#include "run/lineage.h"
#include "run/phases.h"
#include "run/run.h"
#include "session/session.h"

enum { COPY_BYTES = 16 << 20, COPY_ALIGNMENT = 64 };

/* -- What a rank holds --------------------------------------------------------------------------------------------- */

/* Intervals of tensors, and their data as the host sees them: views, or the copy of a save. */
typedef struct IntervalList {
    Interval *items;
    void **memory;
    bool *in_host; /* whether `memory` is host memory; else it is device memory */
    size_t count;
} IntervalList;

static int64_t element_bytes(const Interval *interval) { return (int64_t)stored_type_bytes(interval->type); }
static int64_t held_bytes(const Interval *interval) { return interval->slice.count * element_bytes(interval); }

StoredType session_stored_type(const Parameter *parameter) {
    int64_t bytes = parameter->element_bytes;
    return bytes == 8 ? STORED_F64 : bytes == 4 ? STORED_F32 : STORED_BF16;
}

/* The stored numbers of a parameter or of one of its states: their type, and the elements of the
 * parameter that each of them is for, consecutive ones of a row. */
typedef struct Numbers {
    StoredType type;
    int64_t each;
} Numbers;

static Slice slice_of_numbers(Slice s, int64_t each) {
    return (Slice){s.first / each, s.count / each, s.run / each, s.stride / each, s.skip / each};
}

static void append_item(IntervalList *list, Interval interval, void *memory, bool in_host) {
    size_t items = list->count, also = list->count;
    array_append(list->memory, also, memory);
    array_append(list->in_host, items, in_host);
    array_append(list->items, list->count, interval);
}

/* The place of an interval of a parameter, or of its optimizer state. */
typedef struct HeldMemory {
    char *data;
    bool in_host;
} HeldMemory;

/* Appends an interval at `memory`, as slices of the whole tensor. */
static void append_interval(
    IntervalList *list, const Graph *graph, const char *name, ParameterInterval elements, Numbers numbers, HeldMemory memory) {
    const Parameter *p = &graph->parameters[elements.parameter];
    Interval interval = {.type = numbers.type, .rank = p->rank};
    memcpy(interval.shape, p->whole, sizeof p->whole);
    interval.shape[p->rank - 1] /= numbers.each;
    while (elements.count > 0) {
        interval.name = memory_copy_string(name);
        interval.slice = slice_of_numbers(graph_take_slice(graph, &elements), numbers.each);
        append_item(list, interval, memory.data, memory.in_host);
        memory.data += held_bytes(&interval);
    }
}

/* Appends an interval of this rank: of a state, or of weights if they take the place of one. With
 * `writes`, appends only the part that this rank writes: an even share in stage 0, which has the
 * most data; otherwise all of it on holder 0. */
static void append_held(
    IntervalList *list, const Session *session, const char *name, const OptimizerState *state, Numbers numbers, bool writes) {
    ParameterInterval elements = state->elements;
    HeldMemory memory = {state->data, state->in_host};
    if (writes && !session->layout->stage) {
        CutShare share = cut_share(elements.count / numbers.each, state->holder, state->holders);
        elements.first += share.first * numbers.each;
        elements.count = share.count * numbers.each;
        memory.data += share.first * (int64_t)stored_type_bytes(numbers.type);
    }
    if (!writes || !session->layout->stage || state->holder == 0)
        append_interval(list, session->training.model.graph, name, elements, numbers, memory);
}

static Interval history_interval(const AmaxTensor *tensor, int64_t length) {
    return (Interval){.name = memory_copy_string(tensor->name),
        .type = STORED_F32,
        .rank = 2,
        .shape = {tensor->matrices, length},
        .slice = {.count = tensor->matrices * length}};
}

/* Appends the history, which all ranks of a stage share. */
static void append_history(IntervalList *list, const AmaxHistory *history) {
    for (int i = 0; i < amax_history_tensors(history); i++) {
        AmaxTensor tensor = amax_history_tensor(history, i);
        append_item(list, history_interval(&tensor, tensor.length), tensor.values, true);
    }
}

/* Returns this rank's weights and optimizer state, with FP8 histories; with `writes`, only the
 * parts that it writes. */
static IntervalList session_intervals(const Session *session, bool writes) {
    const Graph *graph = session->training.model.graph;
    const OptimizerShard *shard = &session->layout->shard;
    const Executor *executor = session->training.executor;
    IntervalList list = {0};
    for (int i = 0; i < shard->interval_count; i++) {
        const ShardInterval *held = &shard->intervals[i];
        const Parameter *p = &graph->parameters[held->elements.parameter];
        OptimizerState weights = {.elements = held->elements,
            .data = executor_master(executor, held->offset),
            .in_host = executor_hosts_master(executor, held->offset),
            .holders = held->holders,
            .holder = held->holder};
        append_held(&list, session, p->name, &weights, (Numbers){session_stored_type(p), 1}, writes);
    }
    size_t count = optimizer_states(session->optimizer, NULL, 0);
    SCOPED_FREE OptimizerState *states = memory_allocate((count + 1) * sizeof *states);
    optimizer_states(session->optimizer, states, count);
    for (size_t i = 0; i < count; i++) {
        const OptimizerState *state = &states[i];
        const Parameter *p = &graph->parameters[state->elements.parameter];
        StoredType type = state->form == STATE_QUANTIZED ? STORED_U8 : state->form == STATE_SCALES ? STORED_F32 : session_stored_type(p);
        SCOPED_FREE char *name = memory_format("optimizer/%s/%s", state->kind, p->name);
        append_held(&list, session, name, state, (Numbers){type, state->each}, writes);
    }
    if (writes && mesh_index(session->mesh, AXES_ALL & ~MESH(AXIS_PP)) == 0) append_history(&list, session->history);
    return list;
}

static void list_free(IntervalList *list) {
    for (size_t i = 0; i < list->count; i++) free((char *)list->items[i].name);
    free(list->items);
    free(list->memory);
    free(list->in_host);
    *list = (IntervalList){0};
}

static bool list_view(IntervalList *list, Device *device, ViewAccess access, Error *error) {
    for (size_t i = 0; i < list->count; i++) list->items[i].data = list->in_host[i] ? list->memory[i] : NULL;
    for (size_t i = 0; i < list->count; i++) {
        if (list->in_host[i]) continue;
        list->items[i].data = device_view(device, list->memory[i], held_bytes(&list->items[i]), access, error);
        if (!list->items[i].data) return error_context(error, "the host copy of %s", list->items[i].name);
    }
    return device_ok(device, error);
}

/* With VIEW_WRITE, closing a view uploads loaded data to the device. */
static void list_close_views(IntervalList *list, Device *device, ViewAccess access) {
    for (size_t i = 0; i < list->count; i++)
        if (!list->in_host[i]) device_view_close(device, list->items[i].data, list->memory[i], held_bytes(&list->items[i]), access);
}

/* -- Saving -------------------------------------------------------------------------------------------------------- */

struct Saver {
    IntervalList list; /* the intervals that this rank writes */
    Device *device;
    char *copy; /* copy of all intervals, for asynchronous saves; or NULL */
    int64_t copy_bytes;
    pthread_t thread; /* touches the copy's pages */
    bool touching;    /* there is a thread to join */
    atomic_bool enough;
    CheckpointJob *job;
    Error failure; /* of this rank in the newest save, after it has ended */
    bool reported; /* all ranks know that a shard of the newest save has failed */
    json_t *metadata;
    double stall;
    int64_t step; /* of the save in progress */
    bool sound;   /* no skipped updates preceded it */
    int64_t kept; /* Validation.kept after it is saved */
    json_t *note; /* metadata with the result of an evaluation, for the checkpoint of step `noted`; NULL: none */
    int64_t noted;
};

static int64_t copy_room(const Interval *interval) { return (held_bytes(interval) + COPY_ALIGNMENT - 1) / COPY_ALIGNMENT * COPY_ALIGNMENT; }

int64_t session_copy_bytes(const Config *config, const Layout *layout, int64_t master, int64_t optimizer, int64_t alone) {
    int64_t held = master + optimizer, holders = layout->stage ? 1 : mesh_size(layout->mesh, AXES_DATA);
    return config->checkpoint.async ? divide_up(held, holders) + alone : 0;
}

static void *touch_pages(void *context) {
    Saver *saver = context;
    const int64_t page = sysconf(_SC_PAGESIZE);
    for (int64_t at = 0; at < saver->copy_bytes && !atomic_load(&saver->enough); at += page) ((volatile char *)saver->copy)[at] = 0;
    return NULL;
}

void session_prepare_save(Session *session) {
    Saver *saver = session->saver;
    if (saver->copy && !saver->touching && !atomic_load(&saver->enough))
        saver->touching = pthread_create(&saver->thread, NULL, touch_pages, saver) == 0;
}

/* Stops the touching thread. Untouched pages are then touched when they are written. */
static void finish_touching(Saver *saver) {
    atomic_store(&saver->enough, true);
    if (saver->touching) pthread_join(saver->thread, NULL);
    saver->touching = false;
}

/* If device memory is host memory, the copy is part of the plan's memory, which was checked. */
static void map_copy(Saver *saver) {
    Error refused = {0};
    for (size_t i = 0; i < saver->list.count; i++) saver->copy_bytes += copy_room(&saver->list.items[i]);
    if (device_info(saver->device)->host_memory ||
        memory_check(saver->copy_bytes, "the host copy of a checkpoint", "set checkpoint.async=false", &refused))
        saver->copy = memory_map((size_t)saver->copy_bytes, &refused);
    if (!saver->copy) log_warn("training waits while checkpoints are written: %s", refused.message);
    int64_t at = 0;
    for (size_t i = 0; i < saver->list.count && saver->copy; at += copy_room(&saver->list.items[i++]))
        saver->list.items[i].data = saver->copy + at;
}

static void saver_open(Session *session) {
    Saver *saver = session->saver = memory_allocate(sizeof *session->saver);
    saver->list = session_intervals(session, true);
    saver->device = session->device;
    if (session->config->checkpoint.async) map_copy(saver);
}

int64_t session_save_bytes(const Session *session) {
    const IntervalList *list = &session->saver->list;
    int64_t bytes = 0;
    for (size_t i = 0; i < list->count; i++) bytes += held_bytes(&list->items[i]);
    return bytes;
}

void session_close_saver(Session *session) {
    Saver *saver = session->saver;
    if (!saver) return;
    Error ignored = {0};
    if (saver->job) checkpoint_finish(saver->job, NULL, &ignored);
    json_decref(saver->metadata);
    json_decref(saver->note);
    finish_touching(saver);
    memory_unmap(saver->copy, (size_t)saver->copy_bytes);
    list_free(&saver->list);
    free(saver);
    session->saver = NULL;
}

static void copy_blocks(char *to, const char *from, int64_t bytes) {
#pragma omp parallel for schedule(dynamic)
    for (int64_t at = 0; at < bytes; at += COPY_BYTES)
        memcpy(to + at, from + at, (size_t)(bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES));
}

/* Copies the rank's shard of the state; within host memory with all cores, block by block. */
static bool copy_state(Saver *saver, Error *error) {
    if (!device_info(saver->device)->host_memory) {
        for (size_t i = 0; i < saver->list.count; i++) {
            Interval *interval = &saver->list.items[i];
            void *from = saver->list.memory[i];
            if (saver->list.in_host[i]) copy_blocks(interval->data, from, held_bytes(interval));
            else device_download(saver->device, interval->data, from, held_bytes(interval));
        }
        return device_ok(saver->device, error);
    }
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < saver->list.count; i++) {
        const Interval *interval = &saver->list.items[i];
        for (int64_t at = 0, bytes = held_bytes(interval); at < bytes; at += COPY_BYTES)
#pragma omp task firstprivate(at) if (bytes > COPY_BYTES)
            memcpy((char *)interval->data + at, (char *)saver->list.memory[i] + at, bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES);
    }
    return true;
}

/* Draws a number that all ranks share and no other save has, even after a restart. */
static bool agree_on_attempt(Session *session, int64_t *attempt, Error *error) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *attempt = (int64_t)(((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) ^ (uint64_t)getpid() << 48 >> 1);
    return comm_host_broadcast(session->comm, "checkpoint attempt", attempt, 1, COMM_I64, 0, error);
}

static CheckpointPlan plan_save(const Session *session, int64_t attempt) {
    const Config *config = session->config;
    const Saver *saver = session->saver;
    return (CheckpointPlan){.where = run_checkpoints(config->run, config),
        .step = session->step,
        .intervals = saver->list.items,
        .count = saver->list.count,
        .metadata = saver->metadata,
        .keep = (int)config->checkpoint.keep,
        .protect = {session->skips.row ? session->skips.sound : 0, config->checkpoint.keep_best ? saver->kept : 0},
        .keep_every = config->checkpoint.keep_every,
        .lease = session->lease,
        .rank = comm_rank(session->comm),
        .ranks = comm_size(session->comm),
        .attempt = (uint64_t)attempt,
        .share = config->checkpoint.whole_every && session->step % config->checkpoint.whole_every,
        .timeout = config->checkpoint.timeout};
}

/* A checkpoint's metadata in jansson's pack and unpack format, without the end. */
#define STATE_FORMAT "{s:I, s:I, s:I, s:{s:I, s:I, s:I}"
/* Number of steps of its amax histories (amax_history.h), if any. */
static const char history_length[] = "amax_history_len";

/* `loss` is omitted if it is not finite, because JSON has no such numbers; the best is omitted if
 * there is none. */
static json_t *describe_validation(const Validation *validation, int64_t kept) {
    return json_pack("{s:I, s:I, s:I, s:o*, s:I, s:o*, s:I, s:I}", "step", (json_int_t)validation->step, "tokens",
        (json_int_t)validation->tokens, "length", (json_int_t)validation->length, "loss", json_real(validation->loss), "best_step",
        (json_int_t)validation->best_step, "best_loss", json_real(validation->best_loss), "waited", (json_int_t)validation->waited, "kept",
        (json_int_t)kept);
}

/* Reads what describe_validation wrote. If the data or the length of sequences is another now,
 * the results start from nothing. */
static void take_validation(Session *session, const json_t *metadata) {
    static const char content[] = "data.valid.content";
    Validation *validation = &session->validation;
    json_int_t step = 0, tokens = 0, length = session->config->data.length, best_step = 0, waited = 0, kept = 0;
    double loss = NAN, best_loss = NAN;
    const json_t *saved = json_object_get(json_object_get(metadata, "identity"), content),
                 *now = json_object_get(session->identity, content);
    json_unpack(json_object_get(metadata, "validation"), "{s:I, s:I, s?I, s?F, s:I, s?F, s:I, s:I}", "step", &step, "tokens", &tokens,
        "length", &length, "loss", &loss, "best_step", &best_step, "best_loss", &best_loss, "waited", &waited, "kept", &kept);
    session->evaluated = step;
    if (!saved || !json_equal(saved, now) || length != session->config->data.length) return;
    *validation = (Validation){step, best_step, loss, best_loss, tokens, length, waited, kept};
}

/* Describes a mixture's phase, with the settings that last trained the weights (lineage.h). */
static json_t *describe_phase(const Session *session) {
    return json_pack(
        "{s:i, s:I, s:o}", "begun", session->begun, "step", (json_int_t)session->phase_step, "settings", phases_settings(session->config));
}

static json_t *describe_state(const Session *session) {
    const Fp8Config *fp8 = &session->config->model.fp8;
    json_t *history = fp8->scaling == FP8_DELAYED ? json_integer(fp8->amax_history_len) : NULL;
    return json_pack(STATE_FORMAT ", s:o*, s:o*, s:O*, s:o*}", "step", (json_int_t)session->step, "parent", (json_int_t)session->parent,
        "samples", (json_int_t)session->samples, "skips", "row", (json_int_t)session->skips.row, "all", (json_int_t)session->skips.all,
        "sound", (json_int_t)session->skips.sound, "validation",
        session->validation.step ? describe_validation(&session->validation, session->saver->kept) : NULL, "phase",
        session->begun ? describe_phase(session) : NULL, "identity", session->identity, history_length, history);
}

/* The inverse of describe_state. */
static bool take_state(Session *session, const json_t *metadata, Error *error) {
    json_int_t step, parent, samples, row, all, sound;
    if (json_unpack((json_t *)metadata, STATE_FORMAT "}", "step", &step, "parent", &parent, "samples", &samples, "skips", "row", &row,
            "all", &all, "sound", &sound))
        return error_set(error, ERROR_CHECKPOINT,
            "the checkpoint of step %lld has no step, parent, samples or skipped updates: another program wrote it",
            (long long)session->step);
    Position at = lineage_position(metadata, session->config);
    session->parent = session->step;
    session->samples = at.samples;
    session->phase_step = at.phase_step;
    session->begun = (int)json_integer_value(json_object_get(json_object_get(metadata, "phase"), "begun"));
    session->skips = (Skips){row, all, row ? sound : session->step};
    take_validation(session, metadata);
    return true;
}

bool session_save_start(Session *session, Error *error) {
    double start = log_seconds();
    int64_t attempt;
    if (!agree_on_attempt(session, &attempt, error)) return false;
    Saver *saver = session->saver;
    finish_touching(saver);
    saver->step = session->step;
    saver->failure = (Error){0};
    saver->reported = false;
    saver->sound = session->skips.row == 0;
    saver->kept = session->validation.best_step == session->step ? session->step : session->validation.kept;
    json_decref(saver->metadata);
    saver->metadata = describe_state(session);
    CheckpointPlan plan = plan_save(session, attempt);
    optimizer_settle(session->optimizer);
    bool held = saver->copy ? copy_state(saver, error) : list_view(&saver->list, saver->device, VIEW_READ, error);
    if (held) saver->job = checkpoint_start(&plan);
    saver->stall = log_seconds() - start;
    return held;
}

const Error *session_failed_shard(const Session *session) {
    const Saver *saver = session->saver;
    if (!saver || saver->reported || comm_rank(session->comm) == 0) return NULL;
    return saver->job ? checkpoint_failure(saver->job) : saver->failure.code ? &saver->failure : NULL;
}

void session_give_up_shard(Session *session, const char *reason) {
    Saver *saver = session->saver;
    if (!saver) return;
    saver->reported = true;
    if (saver->job && comm_rank(session->comm) == 0) checkpoint_give_up(saver->job, reason);
}

bool session_is_saving(const Session *session) {
    const Saver *saver = session->saver;
    return saver && saver->job && !checkpoint_is_done(saver->job);
}

bool session_save_holds(const Session *session) { return session_is_saving(session) && !session->saver->copy; }

bool session_save_end(Session *session, SaveReport *report) {
    Saver *saver = session->saver;
    if (!saver || !saver->job || !checkpoint_is_done(saver->job)) return false;
    double start = log_seconds();
    *report = (SaveReport){.step = saver->step};
    report->saved = checkpoint_finish(saver->job, &report->files, &report->error);
    saver->job = NULL;
    saver->failure = report->error;
    if (report->saved) session->parent = saver->step;
    if (report->saved && saver->sound) session->skips.sound = saver->step;
    if (report->saved) session->validation.kept = saver->kept;
    if (!saver->copy) list_close_views(&saver->list, saver->device, VIEW_READ);
    report->stall = saver->stall + (log_seconds() - start);
    return true;
}

/* A save in progress is of this step, because the previous save has ended when one starts. */
void session_note_validation(Session *session) {
    Saver *saver = session->saver;
    int64_t step = session->step, *kept = saver->job && saver->step == step ? &saver->kept : &session->validation.kept;
    if (kept != &saver->kept && session->parent != step) return;
    if (session->validation.best_step == step) *kept = step;
    json_decref(saver->note);
    saver->note = json_pack("{s:o, s:O*}", "validation", describe_validation(&session->validation, *kept), "identity", session->identity);
    saver->noted = step;
}

bool session_write_note(Session *session, Error *error) {
    Saver *saver = session->saver;
    if (!saver || !saver->note || saver->job) return true;
    json_auto_t *note = saver->note;
    saver->note = NULL;
    if (session->parent != saver->noted || comm_rank(session->comm) > 0) return true;
    return (!session->lease || lease_check(session->lease, error)) &&
           checkpoint_annotate(run_checkpoints(session->config->run, session->config), saver->noted, note, error);
}

/* -- CheckpointLoading ------------------------------------------------------------------------------------------------------- */

enum { MOST_CANDIDATES = 1000 };

/* Lists the steps of complete checkpoints, newest first, as rank 0 sees them, or only the step
 * `only` (0: all); returns -1 after a failure on any rank. */
static int list_steps(const char *where, int64_t only, Comm *comm, int64_t steps[MOST_CANDIDATES], Error *error) {
    SCOPED_FREE int64_t *found = NULL;
    int64_t result = 0;
    size_t count = 0;
    if (comm_rank(comm) == 0) {
        result = checkpoint_list(where, &found, &count, error) ? (int64_t)(count < MOST_CANDIDATES ? count : MOST_CANDIDATES) : -1;
        for (int64_t i = 0; i < result; i++) steps[i] = found[i];
        if (only && result >= 0) {
            result = 1;
            steps[0] = only;
        }
    }
    Error lost = {0};
    if (!comm_host_broadcast(comm, "checkpoint count", &result, 1, COMM_I64, 0, &lost) ||
        (result > 0 && !comm_host_broadcast(comm, "checkpoint steps", steps, result, COMM_I64, 0, &lost))) {
        if (error->code == ERROR_NONE) *error = lost;
        return -1;
    }
    if (result < 0 && comm_rank(comm) > 0) error_set(error, ERROR_CHECKPOINT, "rank 0 cannot list the checkpoints of %s", where);
    return (int)result;
}

/* Returns the newest step up to `most` with a complete checkpoint; 0: none. */
static int64_t newest_step(const char *where, int64_t most) {
    SCOPED_FREE int64_t *steps = NULL;
    size_t count = 0, i = 0;
    Error ignored = {0};
    if (!checkpoint_list(where, &steps, &count, &ignored)) return 0;
    while (i < count && steps[i] > most) i++;
    return i < count ? steps[i] : 0;
}

/* Loads the histories of a checkpoint, with their number of steps there. An operand without a
 * history there starts anew. */
static bool load_history(const char *where, int64_t step, const json_t *metadata, AmaxHistory *history, Error *error) {
    enum { MOST_STEPS = 65536 }; /* as in the table of settings */
    json_int_t length = json_integer_value(json_object_get(metadata, history_length));
    SCOPED(list_free) IntervalList list = {0};
    if (!history || !length) return true;
    if (length < 1 || length > MOST_STEPS)
        return error_set(error, ERROR_CHECKPOINT, "the checkpoint of step %lld has %s=%lld: another program wrote it", (long long)step,
                   history_length, (long long)length) ||
               error_find(error, FINDING_DAMAGED);
    for (int i = 0; i < amax_history_tensors(history); i++) {
        AmaxTensor tensor = amax_history_tensor(history, i);
        Interval interval = history_interval(&tensor, length);
        interval.optional = true;
        interval.data = memory_allocate((size_t)held_bytes(&interval));
        append_item(&list, interval, interval.data, true);
    }
    bool loaded = checkpoint_load(where, step, list.items, list.count, NULL, error);
    for (size_t i = 0; i < list.count; i++) {
        if (loaded) amax_history_take(history, (int)i, list.memory[i], length, step);
        free(list.memory[i]);
    }
    return loaded;
}

/* A rank's result of loading a checkpoint; the largest over all ranks is the run's. */
typedef enum LoadResult { LOAD_GOOD, LOAD_ABSENT, LOAD_DAMAGED, LOAD_UNREADABLE } LoadResult;

/* The loading of a checkpoint of the run at `where` by all ranks. */
typedef struct CheckpointLoading {
    const char *where;
    Comm *comm;
    const IntervalList *list;
    AmaxHistory *history; /* NULL: it is not loaded */
    int64_t step;         /* of the loaded checkpoint; 0: none */
    json_t *metadata;     /* of the loaded checkpoint; the caller's */
    int64_t result;       /* the latest LoadResult of all ranks */
    Error reason;         /* why this rank could not load the latest one */
} CheckpointLoading;

static LoadResult load_one(CheckpointLoading *loading, int64_t step) {
    Error *reason = &loading->reason;
    json_decref(loading->metadata);
    loading->metadata = NULL;
    *reason = (Error){0};
    if (checkpoint_load(loading->where, step, loading->list->items, loading->list->count, &loading->metadata, reason) &&
        load_history(loading->where, step, loading->metadata, loading->history, reason))
        return LOAD_GOOD;
    return reason->finding == FINDING_ABSENT ? LOAD_ABSENT : reason->finding == FINDING_DAMAGED ? LOAD_DAMAGED : LOAD_UNREADABLE;
}

/* Loads a checkpoint on all ranks, and retries together while some rank cannot read it now. */
static bool load_together(CheckpointLoading *loading, int64_t step, Error *error) {
    int attempts = 0;
    do {
        loading->result = load_one(loading, step);
        if (loading->result == LOAD_DAMAGED)
            log_warn("the checkpoint of step %lld is skipped: %s", (long long)step, loading->reason.message);
        if (!comm_host_all_reduce(loading->comm, "checkpoint loaded", &loading->result, 1, COMM_I64, COMM_MAX, error)) return false;
    } while (loading->result == LOAD_UNREADABLE && thread_pause(&attempts));
    return true;
}

/* Loads the newest checkpoint whose data for all ranks is good, or only the one of step `only` (0:
 * all). Damaged checkpoints are reported and skipped; removed ones are skipped. An unreadable one
 * is not skipped, because the run would continue from an older one and replace it. Returns false if
 * there are some and none is good. */
static bool load_newest(CheckpointLoading *loading, int64_t only, Error *error) {
    SCOPED_FREE int64_t *steps = memory_allocate(MOST_CANDIDATES * sizeof *steps);
    const char *where = loading->where;
    int count = list_steps(where, only, loading->comm, steps, error), i = 0;
    loading->result = LOAD_ABSENT;
    loading->step = 0;
    for (; i < count; i++) {
        if (!load_together(loading, steps[i], error)) return false;
        if (loading->result == LOAD_GOOD || loading->result == LOAD_UNREADABLE) break;
    }
    const char *why = loading->reason.code ? loading->reason.message : "another rank cannot read it";
    if (count > 0 && loading->result == LOAD_GOOD) loading->step = steps[i];
    else if (count > 0 && only)
        error_set(error, ERROR_CHECKPOINT, "cannot load the checkpoint of step %lld in %s: %s. Choose another one with from=STEP",
            (long long)only, where, why);
    else if (count > 0 && loading->result == LOAD_UNREADABLE)
        error_set(error, ERROR_CHECKPOINT,
            "the checkpoint of step %lld in %s is not readable at the moment: %s. Nothing was changed: start again when it is readable, or "
            "move its folder away to continue from an older one",
            (long long)steps[i], where, why);
    else if (count > 0)
        error_set(error, ERROR_CHECKPOINT, "%s/checkpoints has %d checkpoint%s, but all are damaged; the oldest: %s", where, count,
            plural(count), why);
    return count == 0 || loading->step;
}

bool session_resume(Session *session, const char *where, int64_t only, Error *error) {
    Device *device = session->device;
    SCOPED(list_free) IntervalList list = session_intervals(session, false);
    optimizer_settle(session->optimizer);
    CheckpointLoading loading = {.where = where, .comm = session->comm, .list = &list, .history = session->history};
    /* This process holds the run, so half-written checkpoints are not saves in progress. */
    if (comm_rank(session->comm) == 0 && !only) checkpoint_report_leftovers(where);
    bool loaded = list_view(&list, device, VIEW_WRITE, error) && load_newest(&loading, only, error);
    json_auto_t *metadata = loading.metadata;
    int64_t step = session->step = loading.step;
    list_close_views(&list, device, loaded && step ? VIEW_WRITE : VIEW_READ);
    loaded = loaded && (!step || take_state(session, metadata, error));
    bool begins = session->config->model.fp8.scaling == FP8_DELAYED && !json_object_get(metadata, history_length);
    if (loaded && step && begins && comm_rank(session->comm) == 0)
        log_info("fp8.scaling=delayed: the checkpoint of step %lld has no amax history, so the history starts empty", (long long)step);
    if (loaded && only) session->parent = session->skips.sound = session->validation.kept = 0; /* of the other run */
    if (loaded && step) session_spread_weights(session);
    device_synchronize(device);
    loaded = loaded && device_ok(device, error) && comm_ok(session->comm, error);
    if (loaded && !session->config->profile) saver_open(session);
    return loaded;
}

/* Like load_newest, but during a training, which removes older checkpoints when it has a new one.
 * Between listing and reading, all listed ones may have been replaced by newer ones. */
static bool load_newest_of_living(CheckpointLoading *loading, Error *error) {
    int64_t before, newest = newest_step(loading->where, INT64_MAX);
    bool loaded;
    do {
        before = newest;
        loaded = load_newest(loading, 0, error);
        newest = newest_step(loading->where, INT64_MAX);
    } while (!(loaded && loading->step) && newest > before);
    return loaded;
}

/* Loads exactly the chosen checkpoint; during a training a better one may have replaced the
 * best. */
static bool load_chosen(CheckpointLoading *loading, const RunPoint *point, const Config *config, Error *error) {
    int64_t before = 0;
    bool loaded = false;
    for (bool found = true; found && !loaded; before = loading->step) {
        json_auto_t *chosen = lineage_at(point, config, &loading->step, error);
        found = chosen && loading->step != before;
        loaded =
            found && checkpoint_load(loading->where, loading->step, loading->list->items, loading->list->count, &loading->metadata, error);
    }
    return loaded;
}

bool session_load_weights(const Graph *graph, const Config *config, const char *name, void *master, int64_t *step, Error *error) {
    SCOPED(list_free) IntervalList list = {0};
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->frozen) continue;
        append_interval(&list, graph, p->name, (ParameterInterval){i, 0, p->count}, (Numbers){session_stored_type(p), 1},
            (HeldMemory){parameter_in(p, master), true});
    }
    for (size_t i = 0; i < list.count; i++) list.items[i].data = list.memory[i];
    SCOPED(run_point_free) RunPoint point = run_point(name);
    CheckpointLoading loading = {.where = run_checkpoints(point.run, config), .comm = comm_alone(), .list = &list};
    bool loaded = point.step == RUN_NEWEST ? load_newest_of_living(&loading, error) : load_chosen(&loading, &point, config, error);
    json_auto_t *metadata = loading.metadata;
    *step = loading.step;
    if (!loaded) return false;
    if (*step && !lineage_check_weights(point.run, metadata, config, error)) return false;
    if (!*step && !lineage_check_never_saved(point.run, config, error)) return false;
    return *step || error_set(error, ERROR_CHECKPOINT, "%s has no checkpoint: train it first, or use another folder", loading.where);
}

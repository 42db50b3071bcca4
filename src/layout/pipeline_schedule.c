/* Lists the runs of every stage in the order of the kind, simulates their times, and lists each
 * stage's actions: its runs, and its transfers in the global order. Owns the schedule's lists.
 * Called when a session is planned, and for each number of microbatches that occurs in a step. */
#include "layout/pipeline_schedule.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

const char *pipeline_kind_name(PipelineKind kind) {
    static const char *const names[] = {"1f1b", "interleaved", "zero-bubble", "forward"};
    return names[kind];
}

/* -- The order of a stage's runs ----------------------------------------------------------------------------------- */

typedef struct RunList {
    PipelineAction *items;
    int count;
} RunList;

int64_t pipeline_warmup(const PipelineShape *shape, int stage) {
    int behind = shape->stages - 1 - stage;
    return shape->kind == PIPELINE_INTERLEAVED ? 2 * behind + (shape->chunks - 1) * shape->stages : behind;
}

/* Appends pass number `index` of a stage. Passes come in groups of as many microbatches as stages,
 * chunk after chunk; backward passes begin with the last chunk. */
static void append_run(RunList *list, const PipelineShape *shape, PartKind part, int64_t index) {
    int64_t group = index / pipeline_pieces(shape), within = index % pipeline_pieces(shape);
    int chunk = (int)(within / shape->stages), microbatch = (int)(group * shape->stages + within % shape->stages);
    PipelineAction run = {.act = PIPELINE_RUN, .part = part, .chunk = part == PART_FORWARD ? chunk : shape->chunks - 1 - chunk};
    run.microbatch = microbatch;
    if (microbatch < shape->microbatches) array_append(list->items, list->count, run);
}

/* Stage s defers the weight gradients of s microbatches, to fill its waiting time at the end. */
static RunList list_runs(const PipelineShape *shape, int stage) {
    RunList list = {0};
    int64_t passes = round_up(shape->microbatches, shape->stages) * shape->chunks, ahead = int_min(pipeline_warmup(shape, stage), passes);
    if (shape->kind == PIPELINE_FORWARD) ahead = passes;
    for (int64_t i = 0; i < ahead; i++) append_run(&list, shape, PART_FORWARD, i);
    for (int64_t i = 0; i < passes && shape->kind != PIPELINE_FORWARD; i++) {
        if (i + ahead < passes) append_run(&list, shape, PART_FORWARD, i + ahead);
        append_run(&list, shape, PART_BACKWARD, i);
        if (shape->kind == PIPELINE_ZERO_BUBBLE && i >= stage) append_run(&list, shape, PART_WEIGHTS, i - stage);
    }
    for (int64_t i = int_max(passes - stage, 0); i < passes && shape->kind == PIPELINE_ZERO_BUBBLE; i++)
        append_run(&list, shape, PART_WEIGHTS, i);
    return list;
}

static void mark_last_runs(RunList *list, int chunks) {
    SCOPED_FREE bool *seen = memory_allocate((size_t)chunks * PART_KINDS);
    for (int i = list->count - 1; i >= 0; i--) {
        bool *later = &seen[list->items[i].chunk * PART_KINDS + list->items[i].part];
        list->items[i].last = !*later;
        *later = true;
    }
}

/* -- Simulation ---------------------------------------------------------------------------------------------------- */

/* Starts and ends of passes by [part][piece][microbatch]; the end of a pass that has not run is
 * infinity. */
typedef struct Simulation {
    const PipelineShape *shape;
    const PieceCost *costs;
    RunList *runs; /* by stage */
    double *start, *end;
} Simulation;

static int stage_piece(const PipelineShape *shape, int stage, int chunk) { return chunk * shape->stages + stage; }

static int64_t cell(const PipelineShape *shape, PartKind part, int piece, int microbatch) {
    return ((int64_t)part * pipeline_pieces(shape) + piece) * shape->microbatches + microbatch;
}

/* Returns the piece of the pass that a pass on `piece` waits for, or -1. */
static int source_of(const PipelineShape *shape, PartKind part, int piece) {
    int source = part == PART_FORWARD ? piece - 1 : part == PART_BACKWARD ? piece + 1 : -1;
    return source < pipeline_pieces(shape) ? source : -1;
}

/* Runs the stage's next parts until one waits for a part that has not run. Returns whether a part
 * ran. */
static bool advance_stage(Simulation *s, int stage, int *next, double *now) {
    int before = *next;
    for (; *next < s->runs[stage].count; ++*next) {
        PipelineAction *run = &s->runs[stage].items[*next];
        int piece = stage_piece(s->shape, stage, run->chunk), source = source_of(s->shape, run->part, piece);
        double ready = source >= 0 ? s->end[cell(s->shape, run->part, source, run->microbatch)] : 0;
        if (isinf(ready)) break;
        run->start = fmax(*now, ready);
        *now = run->end = run->start + s->costs[piece].part[run->part];
        s->start[cell(s->shape, run->part, piece, run->microbatch)] = run->start;
        s->end[cell(s->shape, run->part, piece, run->microbatch)] = run->end;
    }
    return *next > before;
}

static void simulate(Simulation *s) {
    int stages = s->shape->stages;
    SCOPED_FREE int *next = memory_allocate((size_t)stages * sizeof *next);
    SCOPED_FREE double *now = memory_allocate((size_t)stages * sizeof *now);
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < stages; stage++) moved |= advance_stage(s, stage, &next[stage], &now[stage]);
    }
    for (int stage = 0; stage < stages; stage++) assert(next[stage] == s->runs[stage].count);
}

/* -- Transfers ----------------------------------------------------------------------------------------------------- */

/* One end of a transfer, with its keys in the global order: the time when the receiver needs it,
 * then its number. */
typedef struct End {
    PipelineAction action;
    double needed;
    int64_t number;
} End;

static int sooner_first(const void *a, const void *b) {
    const End *x = a, *y = b;
    if (x->needed != y->needed) return x->needed < y->needed ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Adds the end of a transfer for a pass that sends or receives. */
static void list_end(const Simulation *s, int stage, const PipelineAction *run, PipelineAct act, End *ends, int *count) {
    const PipelineShape *shape = s->shape;
    int piece = stage_piece(shape, stage, run->chunk), step = run->part == PART_FORWARD ? 1 : -1;
    int to = act == PIPELINE_SEND ? piece + step : piece, from = to - step;
    if (run->part == PART_WEIGHTS || to < 0 || from < 0 || to >= pipeline_pieces(shape) || from >= pipeline_pieces(shape)) return;
    End end = {.action = *run, .number = cell(shape, run->part, to, run->microbatch)};
    end.needed = s->start[end.number];
    end.action.act = act;
    end.action.peer = (act == PIPELINE_SEND ? to : from) % shape->stages;
    ends[(*count)++] = end;
}

/* Returns the transfers of a stage in the global order, for the caller to free. */
static End *list_ends(const Simulation *s, int stage, int *count) {
    End *ends = memory_allocate((size_t)(2 * s->runs[stage].count + 1) * sizeof *ends);
    *count = 0;
    for (int i = 0; i < s->runs[stage].count; i++) {
        list_end(s, stage, &s->runs[stage].items[i], PIPELINE_SEND, ends, count);
        list_end(s, stage, &s->runs[stage].items[i], PIPELINE_RECEIVE, ends, count);
    }
    qsort(ends, (size_t)*count, sizeof *ends, sooner_first);
    return ends;
}

/* -- Actions of a stage -------------------------------------------------------------------------------------------- */

/* A slot while a stage's actions are listed. The next holder's input may arrive while the previous
 * holder's results still wait to be sent, but no part may run in the slot until then. */
typedef struct ScheduleSlot {
    int64_t holder; /* 1 + chunk * microbatches + microbatch; 0: none */
    int unsent;
} ScheduleSlot;

/* A stage's list of actions while it is built with a given number of slots. */
typedef struct ActionListing {
    const Simulation *s;
    int stage;
    PipelineStage *result;
    const End *ends;
    int end_count, next;
    ScheduleSlot *slots;
    int *ran_in;   /* by cell: 1 + the slot in which a pass ran; 0: it has not run */
    bool *arrived; /* by cell: a pass's input is received */
} ActionListing;

static int64_t cell_of(const ActionListing *list, const PipelineAction *action) {
    return cell(list->s->shape, action->part, stage_piece(list->s->shape, list->stage, action->chunk), action->microbatch);
}

static int find_slot(const ActionListing *list, int64_t holder) {
    for (int i = 0; i < list->result->slots; i++)
        if (list->slots[i].holder == holder) return i;
    return -1;
}

static int find_free_slot(const ActionListing *list) {
    for (int i = 0; i < list->result->slots; i++)
        if (!list->slots[i].holder && !list->slots[i].unsent) return i;
    return find_slot(list, 0);
}

/* Returns the slot of an action's microbatch, taking a free one at its first action; -1 if none is
 * free. */
static int take_slot(ActionListing *list, const PipelineAction *action) {
    int64_t holder = 1 + (int64_t)action->chunk * list->s->shape->microbatches + action->microbatch;
    int slot = find_slot(list, holder);
    if (slot < 0) slot = find_free_slot(list);
    if (slot >= 0) list->slots[slot].holder = holder;
    return slot;
}

static void append_action(ActionListing *list, PipelineAction action, int slot) {
    action.slot = slot;
    array_append(list->result->actions, list->result->count, action);
}

/* Issues transfers in the global order until one has no data yet or no free slot. */
static void issue_receives(ActionListing *list) {
    for (; list->next < list->end_count; list->next++) {
        const PipelineAction *action = &list->ends[list->next].action;
        bool send = action->act == PIPELINE_SEND;
        int slot = send ? list->ran_in[cell_of(list, action)] - 1 : take_slot(list, action);
        if (slot < 0) return;
        if (send) list->slots[slot].unsent--;
        else list->arrived[cell_of(list, action)] = true;
        append_action(list, *action, slot);
    }
}

/* Returns whether this part is its chunk's last, which frees the slot. */
static bool is_final(PipelineKind kind, PartKind part) {
    return part == (kind == PIPELINE_FORWARD ? PART_FORWARD : kind == PIPELINE_ZERO_BUBBLE ? PART_WEIGHTS : PART_BACKWARD);
}

/* Returns the number of transfers of this kind that a pass makes. */
static int count_ends(const ActionListing *list, const PipelineAction *run, PipelineAct act) {
    End unused[1];
    int count = 0;
    list_end(list->s, list->stage, run, act, unused, &count);
    return count;
}

/* Returns whether a pass has received its input, or needs none. */
static bool has_arrived(const ActionListing *list, const PipelineAction *run) {
    return list->arrived[cell_of(list, run)] || !count_ends(list, run, PIPELINE_RECEIVE);
}

/* Lists all actions with result->slots; returns false if these slots do not suffice. */
static bool list_actions(ActionListing *list) {
    const RunList *runs = &list->s->runs[list->stage];
    for (int i = 0; i < runs->count; i++) {
        const PipelineAction *run = &runs->items[i];
        issue_receives(list);
        int slot = has_arrived(list, run) ? take_slot(list, run) : -1;
        if (slot < 0 || (run->part == PART_FORWARD && list->slots[slot].unsent)) return false;
        append_action(list, *run, slot);
        list->ran_in[cell_of(list, run)] = slot + 1;
        list->slots[slot].unsent += count_ends(list, run, PIPELINE_SEND);
        if (is_final(list->s->shape->kind, run->part)) list->slots[slot].holder = 0;
    }
    issue_receives(list);
    assert(list->next == list->end_count);
    return true;
}

/* Lists the stage's actions with the fewest slots that suffice, but more than result->slots. */
static void list_stage(const Simulation *s, int stage, PipelineStage *result) {
    int count;
    int64_t cells = (int64_t)PART_KINDS * pipeline_pieces(s->shape) * s->shape->microbatches;
    SCOPED_FREE End *ends = list_ends(s, stage, &count);
    for (bool listed = false; !listed;) {
        SCOPED_FREE ScheduleSlot *slots = memory_allocate((size_t)++result->slots * sizeof *slots);
        SCOPED_FREE int *ran_in = memory_allocate((size_t)cells * sizeof *ran_in);
        SCOPED_FREE bool *arrived = memory_allocate((size_t)cells * sizeof *arrived);
        ActionListing list = {s, stage, result, ends, count, .slots = slots, .ran_in = ran_in, .arrived = arrived};
        result->count = 0;
        listed = list_actions(&list);
    }
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

/* PART_BACKWARD of the zero-bubble kind excludes the weight gradients: it is B - W. */
static double formula_of(const PipelineShape *shape, const PieceCost *costs) {
    double mean[PART_KINDS] = {0};
    for (int p = 0; p < pipeline_pieces(shape); p++)
        for (int part = 0; part < PART_KINDS; part++) mean[part] += costs[p].part[part] / shape->stages;
    double turn = mean[PART_FORWARD];
    if (shape->kind != PIPELINE_FORWARD) turn += mean[PART_BACKWARD];
    if (shape->kind == PIPELINE_ZERO_BUBBLE) turn -= mean[PART_WEIGHTS];
    return (shape->stages - 1) * turn / shape->chunks;
}

static double busy_of(const RunList *runs) {
    double busy = 0;
    for (int i = 0; i < runs->count; i++) busy += runs->items[i].end - runs->items[i].start;
    return busy;
}

/* Simulates all stages. The caller frees the runs of each stage, and the arrays. */
static Simulation simulation_of(const PipelineShape *shape, const PieceCost *costs) {
    size_t cells = (size_t)PART_KINDS * pipeline_pieces(shape) * shape->microbatches;
    Simulation s = {.shape = shape,
        .costs = costs,
        .runs = memory_allocate((size_t)shape->stages * sizeof *s.runs),
        .start = memory_allocate(cells * sizeof *s.start),
        .end = memory_allocate(cells * sizeof *s.end)};
    assert(shape->chunks == 1 || shape->kind == PIPELINE_INTERLEAVED || shape->kind == PIPELINE_FORWARD);
    for (size_t i = 0; i < cells; i++) s.end[i] = INFINITY;
    for (int stage = 0; stage < shape->stages; stage++) {
        s.runs[stage] = list_runs(shape, stage);
        mark_last_runs(&s.runs[stage], shape->chunks);
    }
    simulate(&s);
    return s;
}

static void free_simulation(Simulation *s) {
    for (int stage = 0; stage < s->shape->stages; stage++) free(s->runs[stage].items);
    free(s->runs);
    free(s->start);
    free(s->end);
}

PipelineSchedule *pipeline_schedule_create(const PipelineShape *shape, const PieceCost *costs, int only) {
    PipelineSchedule *schedule = memory_allocate(sizeof *schedule);
    *schedule = (PipelineSchedule){.shape = *shape, .stages = memory_allocate((size_t)shape->stages * sizeof(PipelineStage))};
    SCOPED(free_simulation) Simulation s = simulation_of(shape, costs);
    double busiest = 0;
    for (int stage = 0; stage < shape->stages; stage++) {
        const RunList *runs = &s.runs[stage];
        if (only == stage || only == PIPELINE_ALL_STAGES) list_stage(&s, stage, &schedule->stages[stage]);
        schedule->stages[stage].busy = busy_of(runs);
        busiest = fmax(busiest, schedule->stages[stage].busy);
        if (runs->count) schedule->length = fmax(schedule->length, runs->items[runs->count - 1].end);
    }
    schedule->bubble = schedule->length - busiest;
    schedule->formula = formula_of(shape, costs);
    return schedule;
}

int pipeline_slots(const PipelineShape *shape, const PieceCost *costs, int stage, int least) {
    PipelineStage listed = {.slots = least - 1};
    SCOPED(free_simulation) Simulation s = simulation_of(shape, costs);
    list_stage(&s, stage, &listed);
    free(listed.actions);
    return listed.slots;
}

void pipeline_schedule_free(PipelineSchedule *schedule) {
    if (!schedule) return;
    for (int stage = 0; stage < schedule->shape.stages; stage++) free(schedule->stages[stage].actions);
    free(schedule->stages);
    free(schedule);
}

/* -- Stages by cost ------------------------------------------------------------------------------------------------ */

/* Returns a piece's term in the sum to be minimized: the eighth power of its cost, so that the most
 * expensive piece dominates and the others are balanced too. */
static double weight_of(double cost) {
    double square = cost * cost, fourth = square * square;
    return fourth * fourth;
}

/* Minimizes the cost of the most expensive piece. */
static void cut_pieces(const LayerCosts *c, int pieces, int *begin) {
    int ends = c->count + 1;
    assert(pieces >= 1 && pieces <= c->count);
    SCOPED_FREE double *least = memory_allocate((size_t)(pieces + 1) * ends * sizeof *least); /* [pieces used][layers used] */
    SCOPED_FREE int *start = memory_allocate((size_t)(pieces + 1) * ends * sizeof *start);    /* of the last of these pieces */
    for (int i = 1; i < (pieces + 1) * ends; i++) least[i] = INFINITY;
    for (int p = 1; p <= pieces; p++)
        for (int end = p; end < ends; end++) {
            bool may_be_empty = p == pieces && p > 1;
            double cost = (p == 1 ? c->first : 0) + (p == pieces ? c->last : 0);
            for (int from = may_be_empty ? end : end - 1; from >= p - 1; from--) {
                if (from < end) cost += c->layers[from];
                double sum = least[(p - 1) * ends + from] + weight_of(cost);
                if (sum >= least[p * ends + end]) continue;
                least[p * ends + end] = sum;
                start[p * ends + end] = from;
            }
        }
    begin[pieces] = c->count;
    for (int p = pieces; p > 0; p--) begin[p - 1] = start[p * ends + begin[p]];
}

/* Returns the sum to be minimized for stages of several chunks. */
static double weight_of_stages(const LayerCosts *c, int stages, int pieces, const int *begin) {
    double weight = 0;
    for (int stage = 0; stage < stages; stage++) {
        double cost = (stage == 0 ? c->first : 0) + (stage == stages - 1 ? c->last : 0);
        for (int piece = stage; piece < pieces; piece += stages)
            for (int i = begin[piece]; i < begin[piece + 1]; i++) cost += c->layers[i];
        weight += weight_of(cost);
    }
    return weight;
}

/* Moves one layer across the border before piece p if the stages become more even. Only the last
 * piece may become empty. */
static bool move_border(const LayerCosts *c, int stages, int pieces, int p, int step, int *begin) {
    double before = weight_of_stages(c, stages, pieces, begin);
    int moved = begin[p] + step;
    if (moved <= begin[p - 1] || moved > begin[p + 1] || (moved == begin[p + 1] && p + 1 < pieces)) return false;
    begin[p] = moved;
    bool better = weight_of_stages(c, stages, pieces, begin) < before;
    if (!better) begin[p] -= step;
    return better;
}

void pipeline_cut_layers(const LayerCosts *c, int stages, int pieces, int *begin) {
    cut_pieces(c, pieces, begin);
    for (bool moved = pieces > stages; moved;) {
        moved = false;
        for (int p = 1; p < pieces; p++)
            moved |= move_border(c, stages, pieces, p, 1, begin) || move_border(c, stages, pieces, p, -1, begin);
    }
}

/* A discrete-event simulation. A rank plays its events until it must wait for a collective that is
 * not complete, and goes on when another rank completes it. Owns its state during a call; the caller
 * owns the result. Called by forecasts with simulate=true. */
#include "advise/replay.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"

enum { MOST_STREAMS = 32, SHARED_STREAM = 0, HOST_STREAM = 1, FIRST_OWN_STREAM = 2, MEETING = -2, NOTHING = -1 };

/* Tables of a trace, computed once even if ranks share it. */
typedef struct ReplayProgram {
    const Trace *trace;
    int streams;
    int *stream;             /* by group */
    int *next;               /* by call: the next call of its stream; -1: none */
    int first[MOST_STREAMS]; /* calls; -1: none */
    int window;              /* a power of two: a call is complete before the call `window` after it is issued */
} ReplayProgram;

/* The next collective of a group's stream. */
typedef struct ReplayNext {
    int arrived;    /* ranks that have reached it */
    int first_rank; /* the rank that reached it first, and its call */
    int first_call;
    double start; /* when the latest rank reached it */
} ReplayNext;

/* A group of ranks of the run. */
typedef struct ReplayGroup {
    int name;
    MeshAxes axes;
    int *ranks, size;
    ReplayNext next[2]; /* of the device's stream and of the host's */
    int64_t completed;  /* number of complete collectives */
} ReplayGroup;

typedef struct CallTime {
    double issued, start, end; /* end is infinite until the call is complete */
    double busy;               /* seconds of transfers of the stream up to and including this call */
} CallTime;

typedef struct PlayerStream {
    int head;                     /* the next call to complete; -1: none */
    bool arrived, sent, received; /* the head is issued; its messages are complete */
    double ready;                 /* when the rank reached the head */
    double start, end;            /* of the head's message that ends last */
    double free_at;               /* end of the call before the head */
    double busy, accounted;       /* seconds of its transfers; the part of them that waits have accounted for */
} PlayerStream;

/* Copies between device and host memory: when each stream is idle, and when each marker happens. The
 * host queues copies ahead of the device, but not before the step begins. */
typedef struct PlayerCopies { double idle_at[TRACE_COPY_STREAMS], happens_at[TRACE_MARKERS], queued_from; } PlayerCopies;

typedef struct Player {
    const ReplayProgram *program;
    PlayerCopies copies;
    int event, issued;
    int waits_for; /* a call, MEETING, or NOTHING */
    double now, began;
    ReplayRank *current; /* sums since the latest meeting, or step */
    int *groups;         /* by group of the trace: index of the replay's group */
    CallTime *times;     /* [window] by call */
    PlayerStream *streams;
    ReplayRank *result;
    bool queued;
} Player;

typedef struct Replay {
    const ReplayRun *run;
    ReplayResult *result;
    int size; /* ranks */
    Player *players;
    ReplayProgram *programs;
    int program_count;
    ReplayGroup *groups;
    int group_count;
    int *group_of; /* by name and first rank: 1 + index in `groups`; 0: none yet */
    int *runnable; /* a stack of ranks */
    int runnable_count, met, ended;
    double met_at, meetings[2]; /* the latest arrival at the next meeting; times of the last two meetings */
    int meeting_count;
    int64_t played, events;
    Error *error;
    bool failed;
} Replay;

/* -- Groups -------------------------------------------------------------------------------------------------------- */

static int find_replay_name(ReplayResult *result, const char *name) {
    int i = 0;
    while (i < result->names && strcmp(result->name[i], name)) i++;
    if (i < result->names) return i;
    assert(result->names < REPLAY_NAMES);
    snprintf(result->name[result->names], COMM_GROUP_NAME, "%s", name);
    return result->names++;
}

static bool is_ends(const char *name) { return !strcmp(name, "ends"); }

/* Returns whether `other` is in the group `name` of the mesh's rank. */
static bool is_member(const Mesh *mesh, const char *name, MeshAxes axes, int other) {
    Mesh at = *mesh;
    if (!mesh_has(mesh, axes, other)) return false;
    mesh_place(&at, other);
    int last = mesh->size[AXIS_PP] - 1;
    return !is_ends(name) || at.at[AXIS_PP] == 0 || at.at[AXIS_PP] == last;
}

static MeshAxes axes_of_name(const Mesh *mesh, const char *name) {
    return is_ends(name) ? MESH(AXIS_PP) : mesh_find_axes(mesh, name) & ~(MeshAxes)MESH_INNER;
}

/* Returns the first rank of the group of the mesh's rank. */
static int first_member(const Mesh *mesh, MeshAxes axes) {
    Mesh first = *mesh;
    for (MeshAxis axis = 0; axis < AXIS_COUNT; axis++)
        if (axes & MESH(axis)) first.at[axis] = 0;
    return mesh_rank(&first);
}

static ReplayGroup list_group(const Mesh *mesh, const char *name, int named) {
    ReplayGroup group = {.name = named, .axes = axes_of_name(mesh, name)};
    int most = mesh_size(mesh, group.axes), all = mesh_size(mesh, AXES_ALL);
    group.ranks = memory_allocate((size_t)most * sizeof *group.ranks);
    for (int rank = 0; rank < all && group.size < most; rank++)
        if (is_member(mesh, name, group.axes, rank)) group.ranks[group.size++] = rank;
    return group;
}

/* Returns the index of a rank's group, which its ranks share; the first of them opens it. */
static int find_replay_group(Replay *replay, const Mesh *mesh, const TraceGroup *traced) {
    int named = find_replay_name(replay->result, traced->name);
    int *index = &replay->group_of[named * replay->size + first_member(mesh, axes_of_name(mesh, traced->name))];
    if (*index) return *index - 1;
    ReplayGroup group = list_group(mesh, traced->name, named);
    array_append(replay->groups, replay->group_count, group);
    *index = replay->group_count;
    return *index - 1;
}

/* -- Programs ------------------------------------------------------------------------------------------------------ */

static int stream_of_call(const ReplayRun *run, const ReplayProgram *program, const TraceCall *call) {
    if (run->one_queue) return SHARED_STREAM;
    return call->host ? HOST_STREAM : program->stream[call->group];
}

/* Sets `window`. A call is known to be complete once the rank has waited for it or for a later call of
 * its stream. */
static void find_window(const ReplayRun *run, ReplayProgram *program) {
    const Trace *trace = program->trace;
    int open[MOST_STREAMS], most = 0; /* open: the first call of each stream that may be incomplete */
    memcpy(open, program->first, sizeof open);
    for (int i = 0; i < trace->event_count; i++) {
        const TraceEvent *event = &trace->events[i];
        if (event->act != TRACE_CALL && event->act != TRACE_WAIT) continue;
        int *own = &open[stream_of_call(run, program, &trace->calls[event->call])];
        if (event->act == TRACE_WAIT && *own >= 0 && event->call >= *own) *own = program->next[event->call];
        for (int s = 0; s < program->streams; s++)
            if (open[s] >= 0 && event->call - open[s] > most) most = event->call - open[s];
    }
    for (program->window = 1; program->window <= most;) program->window *= 2;
}

static ReplayProgram prepare_replay(const ReplayRun *run, const Trace *trace) {
    ReplayProgram program = {.trace = trace, .streams = FIRST_OWN_STREAM};
    program.stream = memory_allocate((size_t)(trace->group_count + 1) * sizeof *program.stream);
    program.next = memory_allocate((size_t)(trace->call_count + 1) * sizeof *program.next);
    for (int g = 0; g < trace->group_count; g++)
        if (trace->groups[g].own_stream) program.stream[g] = program.streams++;
    assert(program.streams <= MOST_STREAMS);
    for (int s = 0; s < MOST_STREAMS; s++) program.first[s] = -1;
    for (int call = trace->call_count; call-- > 0;) {
        int *first = &program.first[stream_of_call(run, &program, &trace->calls[call])];
        program.next[call] = *first;
        *first = call;
    }
    find_window(run, &program);
    return program;
}

static const ReplayProgram *find_program(Replay *replay, const Trace *trace) {
    int i = 0;
    while (i < replay->program_count && replay->programs[i].trace != trace) i++;
    if (i == replay->program_count) replay->programs[replay->program_count++] = prepare_replay(replay->run, trace);
    return &replay->programs[i];
}

/* -- Failures ------------------------------------------------------------------------------------------------------ */

static const TraceCall *call_at(const Player *player, int call) { return &player->program->trace->calls[call]; }
/* Returns whether two calls of a group meet: host and device have their own order, except in one queue. */
static bool same_order(const Replay *replay, const TraceCall *call, const TraceCall *other) {
    return replay->run->one_queue || call->host == other->host;
}
static int stream_of_played_call(const Replay *replay, const Player *player, int call) {
    return stream_of_call(replay->run, player->program, call_at(player, call));
}

static const char cure[] = "This is a fault of smelt: report it with the configuration, and use another layout";

/* Refuses two calls of ranks that should be one collective. */
static void refuse_calls(Replay *replay, const ReplayGroup *group, int rank, int call, int other, int other_call) {
    char text[TRACE_TEXT], other_text[TRACE_TEXT];
    trace_describe(replay->players[rank].program->trace, call_at(&replay->players[rank], call), text);
    trace_describe(replay->players[other].program->trace, call_at(&replay->players[other], other_call), other_text);
    replay->failed = true;
    error_set(replay->error, ERROR_USAGE,
        "the ranks do not issue the same collectives: as number %lld in group %s, rank %d issues %s, but rank %d issues %s. %s",
        (long long)group->completed + 1, replay->result->name[group->name], rank, text, other, other_text, cure);
}

/* Returns the call that a rank cannot complete; -1: the rank has ended or is at a meeting. */
static int blocking_call(const Replay *replay, int rank) {
    const Player *player = &replay->players[rank];
    return player->waits_for < 0 ? -1 : player->streams[stream_of_played_call(replay, player, player->waits_for)].head;
}

/* Returns a rank without which `rank` cannot complete the call. */
static int find_missing(const Replay *replay, int rank, int call) {
    const Player *player = &replay->players[rank];
    const TraceCall *wanted = call_at(player, call);
    int index = player->groups[wanted->group];
    const ReplayGroup *group = &replay->groups[index];
    const PlayerStream *stream = &player->streams[stream_of_played_call(replay, player, call)];
    assert(group && index < replay->group_count);
    if (wanted->operation == EXCHANGE) return group->ranks[wanted->to >= 0 && !stream->sent ? wanted->to : wanted->from];
    for (int i = 0; i < group->size; i++) {
        int other = group->ranks[i], at = blocking_call(replay, other);
        const TraceCall *reached = at < 0 ? NULL : call_at(&replay->players[other], at);
        bool arrived = reached && replay->players[other].groups[reached->group] == index && same_order(replay, wanted, reached);
        if (!arrived) return other;
    }
    return group->ranks[0];
}

/* Writes "rank 3 waits in all_gather ... for rank 5". */
static int describe_wait(const Replay *replay, int rank, char *text, size_t size) {
    const Player *player = &replay->players[rank];
    int call = blocking_call(replay, rank);
    char called[TRACE_TEXT];
    if (call < 0) {
        bool ended = player->event == player->program->trace->event_count;
        snprintf(text, size, "rank %d %s", rank, ended ? "has ended its steps" : "waits for all ranks to end the step");
        return -1;
    }
    int missing = find_missing(replay, rank, call);
    trace_describe(player->program->trace, call_at(player, call), called);
    snprintf(text, size, "rank %d waits in %s for rank %d", rank, called, missing);
    return missing;
}

/* Follows the ranks that wait for each other, from the first one. */
static bool refuse_deadlock(const Replay *replay) {
    enum { MOST_WAITS = 4 };
    char text[MOST_WAITS][TRACE_TEXT + 64] = {{0}};
    int rank = 0, count = 0, seen[MOST_WAITS];
    while (rank < replay->size && replay->players[rank].waits_for < 0) rank++;
    if (rank == replay->size) rank = 0;
    for (bool again = false; count < MOST_WAITS && rank >= 0 && !again;) {
        seen[count] = rank;
        rank = describe_wait(replay, rank, text[count++], sizeof text[0]);
        for (int i = 0; i < count; i++) again = again || seen[i] == rank;
    }
    return error_set(replay->error, ERROR_USAGE, "the ranks wait for each other: %s%s%s%s%s%s%s. %s", text[0], count > 1 ? "; " : "",
        text[1], count > 2 ? "; " : "", text[2], count > 3 ? "; " : "", text[3], cure);
}

/* -- Transfers ----------------------------------------------------------------------------------------------------- */

static CallTime *time_of(const Player *player, int call) { return &player->times[call & (player->program->window - 1)]; }

static double transfer_seconds(const Replay *replay, const ReplayTransfer *transfer) {
    return replay->run->transfer ? replay->run->transfer(replay->run->context, transfer) : 0;
}

static ReplayShare *share_of(const Replay *replay, const Player *player, const TraceCall *call) {
    return &player->current->shares[replay->groups[player->groups[call->group]].name * REPLAY_OPERATIONS + call->operation];
}

static void make_runnable(Replay *replay, int rank) {
    Player *player = &replay->players[rank];
    if (player->queued) return;
    player->queued = true;
    replay->runnable[replay->runnable_count++] = rank;
}

/* Completes the head of a rank's stream. The next call becomes the head, and arrives when the rank is
 * played. */
static void complete_head(Replay *replay, int rank, int stream_number, double start, double end) {
    Player *player = &replay->players[rank];
    PlayerStream *stream = &player->streams[stream_number];
    const TraceCall *call = call_at(player, stream->head);
    CallTime *time = time_of(player, stream->head);
    ReplayShare *share = share_of(replay, player, call);
    stream->busy += end - start;
    *time = (CallTime){time->issued, start, end, stream->busy};
    share->transfer += end - start;
    share->bytes += trace_sent_bytes(player->program->trace, call);
    share->count++;
    stream->head = player->program->next[stream->head];
    stream->free_at = end;
    stream->arrived = false;
    make_runnable(replay, rank);
}

/* Returns the stream on which a rank has arrived at the collective `call` of a group. */
static int find_arrived(const Replay *replay, int rank, const ReplayGroup *group, const TraceCall *call) {
    const Player *player = &replay->players[rank];
    for (int s = 0;; s++) {
        assert(s < player->program->streams);
        const PlayerStream *stream = &player->streams[s];
        const TraceCall *head = stream->arrived ? call_at(player, stream->head) : NULL;
        if (head && head->operation != EXCHANGE && same_order(replay, call, head) && &replay->groups[player->groups[head->group]] == group)
            return s;
    }
}

static void arrive_collective(Replay *replay, int rank, int stream_number) {
    Player *player = &replay->players[rank];
    const PlayerStream *stream = &player->streams[stream_number];
    const TraceCall *call = call_at(player, stream->head);
    ReplayGroup *group = &replay->groups[player->groups[call->group]];
    ReplayNext *next = &group->next[call->host && !replay->run->one_queue];
    if (next->arrived == 0) {
        *next = (ReplayNext){.first_rank = rank, .first_call = stream->head, .start = stream->ready};
    } else if (!trace_calls_agree(call_at(&replay->players[next->first_rank], next->first_call), call)) {
        refuse_calls(replay, group, rank, stream->head, next->first_rank, next->first_call);
        return;
    }
    next->start = fmax(next->start, stream->ready);
    if (++next->arrived < group->size) return;
    const ReplayTransfer transfer = {player->program->trace, call, group->axes, -1, -1};
    double start = next->start, end = start + transfer_seconds(replay, &transfer);
    next->arrived = 0;
    group->completed++;
    for (int i = 0; i < group->size; i++) {
        int number = group->ranks[i] == rank ? stream_number : find_arrived(replay, group->ranks[i], group, call);
        complete_head(replay, group->ranks[i], number, start, end);
    }
}

/* Returns the stream on which a rank has arrived at an exchange with `peer` (an index in the group);
 * -1: none. `sends`: the peer sends and the rank receives; else the other direction. */
static int find_other_end(const Replay *replay, int rank, int group, int peer, bool sends) {
    const Player *player = &replay->players[rank];
    for (int s = 0; s < player->program->streams; s++) {
        const PlayerStream *stream = &player->streams[s];
        if (!stream->arrived) continue;
        const TraceCall *call = call_at(player, stream->head);
        bool fits = sends ? call->from == peer && !stream->received : call->to == peer && !stream->sent;
        if (call->operation == EXCHANGE && player->groups[call->group] == group && fits) return s;
    }
    return -1;
}

/* Notes that one message of the head of a stream is complete. */
static void note_message(PlayerStream *stream, bool sent, double start, double end) {
    if (sent) stream->sent = true;
    else stream->received = true;
    if (end < stream->end) return;
    stream->start = start;
    stream->end = end;
}

static void complete_exchange(Replay *replay, int rank, int number) {
    const PlayerStream *stream = &replay->players[rank].streams[number];
    if (stream->sent && stream->received) complete_head(replay, rank, number, stream->start, stream->end);
}

/* Transfers one message of an exchange if its other end is there. */
static void try_message(Replay *replay, int rank, int number, bool send) {
    Player *player = &replay->players[rank];
    PlayerStream *stream = &player->streams[number];
    const TraceCall *call = call_at(player, stream->head);
    int index = player->groups[call->group], peer = send ? call->to : call->from;
    const ReplayGroup *group = &replay->groups[index];
    int other = group->ranks[peer], own = 0;
    while (group->ranks[own] != rank) own++;
    int there = find_other_end(replay, other, index, own, send);
    if (there < 0) return;
    PlayerStream *end = &replay->players[other].streams[there];
    const TraceCall *answer = call_at(&replay->players[other], end->head);
    if (!trace_ends_agree(send ? call : answer, send ? answer : call)) {
        refuse_calls(replay, group, rank, stream->head, other, end->head);
        return;
    }
    const ReplayTransfer transfer = {player->program->trace, call, group->axes, send ? rank : other, send ? other : rank};
    double from = fmax(stream->ready, end->ready), until = from + transfer_seconds(replay, &transfer);
    note_message(stream, send, from, until);
    note_message(end, !send, from, until);
    complete_exchange(replay, other, there);
}

static void arrive_exchange(Replay *replay, int rank, int number) {
    const PlayerStream *stream = &replay->players[rank].streams[number];
    if (!stream->sent) try_message(replay, rank, number, true);
    if (!stream->received && !replay->failed) try_message(replay, rank, number, false);
    complete_exchange(replay, rank, number);
}

/* Lets the issued head of each stream arrive at its collective or messages. */
static void arrive_heads(Replay *replay, int rank) {
    Player *player = &replay->players[rank];
    for (int s = 0; s < player->program->streams && !replay->failed; s++) {
        PlayerStream *stream = &player->streams[s];
        while (stream->head >= 0 && stream->head < player->issued && !stream->arrived && !replay->failed) {
            const TraceCall *call = call_at(player, stream->head);
            stream->arrived = true;
            stream->ready = stream->start = stream->end = fmax(time_of(player, stream->head)->issued, stream->free_at);
            stream->sent = call->to < 0, stream->received = call->from < 0;
            if (call->operation == EXCHANGE) arrive_exchange(replay, rank, s);
            else arrive_collective(replay, rank, s);
        }
    }
}

/* -- Events -------------------------------------------------------------------------------------------------------- */

/* Moves the rank's time past a complete call. */
static void pass_wait(const Replay *replay, Player *player, int call) {
    const TraceCall *waited = call_at(player, call);
    const CallTime *time = time_of(player, call);
    PlayerStream *stream = &player->streams[stream_of_played_call(replay, player, call)];
    ReplayShare *share = share_of(replay, player, waited);
    double before = player->now, exposed = fmax(0, time->end - fmax(before, time->start));
    double hidden = fmax(0, time->busy - stream->accounted - exposed);
    bool shared = stream == &player->streams[SHARED_STREAM];
    if (time->busy > stream->accounted) stream->accounted = time->busy;
    double slowed = shared ? before + replay->run->interference * hidden : before;
    player->now = fmax(slowed, time->end);
    player->current->interference += fmin(slowed, player->now) - before;
    double waited_for = player->now - slowed;
    exposed = fmin(exposed, waited_for);
    share->exposed += exposed;
    share->waiting += waited_for - exposed;
}

/* Ends a period and, if it was a whole step, takes its sums as the result. */
static void end_period(Player *player, bool whole) {
    if (whole) *player->result = *player->current;
    *player->current = (ReplayRank){0};
}

static void meet(Replay *replay, int rank) {
    replay->players[rank].waits_for = MEETING;
    replay->met_at = fmax(replay->met_at, replay->players[rank].now);
    if (++replay->met < replay->size) return;
    for (int i = 0; i < replay->size; i++) {
        Player *player = &replay->players[i];
        player->current->meeting += replay->met_at - player->now;
        player->now = replay->met_at;
        player->waits_for = NOTHING;
        end_period(player, replay->meeting_count > 0);
        make_runnable(replay, i);
    }
    replay->meetings[0] = replay->meetings[1];
    replay->meetings[1] = replay->met_at;
    replay->meeting_count++;
    replay->met = 0;
    replay->met_at = 0;
}

static void play_copy(const Replay *replay, Player *player, const TraceEvent *event) {
    PlayerCopies *copies = &player->copies;
    bool own = event->stream == TRACE_MAIN;
    assert(event->stream < TRACE_COPY_STREAMS && event->call < TRACE_MARKERS);
    double *idle_at = own ? &player->now : &copies->idle_at[event->stream], *happens_at = &copies->happens_at[event->call],
           before = *idle_at;
    switch (event->act) {
    case TRACE_COPY:
        if (replay->run->copy_rate > 0) *idle_at = fmax(*idle_at, copies->queued_from) + event->amount / replay->run->copy_rate;
        break;
    case TRACE_RECORD: *happens_at = *idle_at; break;
    default:
        *idle_at = fmax(*idle_at, *happens_at);
        if (own) player->current->copies += *idle_at - before;
    }
}

/* Plays one event; returns false if the rank must wait. */
static bool play_event(Replay *replay, int rank) {
    Player *player = &replay->players[rank];
    const TraceEvent *event = &player->program->trace->events[player->event];
    double seconds = 0;
    switch (event->act) {
    case TRACE_COMPUTE:
        seconds = replay->run->work ? replay->run->work(replay->run->context, rank, event->amount) : event->amount;
        player->now += seconds;
        player->current->work += seconds;
        break;
    case TRACE_CALL:
        *time_of(player, event->call) = (CallTime){.issued = player->now, .end = INFINITY};
        player->issued = event->call + 1;
        arrive_heads(replay, rank);
        break;
    case TRACE_WAIT:
        player->waits_for = event->call;
        if (isinf(time_of(player, event->call)->end)) return false;
        pass_wait(replay, player, event->call);
        player->waits_for = NOTHING;
        break;
    case TRACE_MEET:
        player->event++;
        meet(replay, rank);
        return false;
    case TRACE_STEP: player->began = player->copies.queued_from = player->now; break;
    case TRACE_COPY:
    case TRACE_RECORD:
    case TRACE_FOLLOW: play_copy(replay, player, event); break;
    }
    player->event++;
    return true;
}

static void play_rank(Replay *replay, int rank) {
    Player *player = &replay->players[rank];
    int before = player->event;
    arrive_heads(replay, rank);
    while (!replay->failed && player->waits_for != MEETING && player->event < player->program->trace->event_count)
        if (!play_event(replay, rank)) break;
    replay->ended += before < player->program->trace->event_count && player->event == player->program->trace->event_count;
    replay->played += player->event - before;
}

static void play_all(Replay *replay) {
    enum { BETWEEN_REPORTS = 1 << 16 };
    for (int rank = replay->size; rank-- > 0;) make_runnable(replay, rank);
    for (int64_t turns = 1; replay->runnable_count && !replay->failed; turns++) {
        int rank = replay->runnable[--replay->runnable_count];
        replay->players[rank].queued = false;
        play_rank(replay, rank);
        if (replay->run->progress && turns % BETWEEN_REPORTS == 0)
            replay->run->progress(replay->run->context, (double)replay->played / (double)replay->events);
    }
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

static void open_player(Replay *replay, int rank) {
    Player *player = &replay->players[rank];
    const ReplayProgram *program = player->program = find_program(replay, replay->run->traces[rank]);
    Mesh mesh = *replay->run->mesh;
    mesh_place(&mesh, rank);
    player->waits_for = NOTHING;
    player->result = &replay->result->ranks[rank];
    player->current = memory_allocate(sizeof *player->current);
    player->groups = memory_allocate((size_t)(program->trace->group_count + 1) * sizeof *player->groups);
    player->times = memory_allocate((size_t)program->window * sizeof *player->times);
    player->streams = memory_allocate((size_t)program->streams * sizeof *player->streams);
    for (int g = 0; g < program->trace->group_count; g++)
        if (program->trace->groups[g].size > 1) player->groups[g] = find_replay_group(replay, &mesh, &program->trace->groups[g]);
    for (int s = 0; s < program->streams; s++) player->streams[s].head = program->first[s];
    replay->events += program->trace->event_count;
}

static void close_replay(Replay *replay) {
    for (int i = 0; i < replay->size; i++) {
        free(replay->players[i].groups);
        free(replay->players[i].current);
        free(replay->players[i].times);
        free(replay->players[i].streams);
    }
    for (int i = 0; i < replay->program_count; i++) {
        free(replay->programs[i].stream);
        free(replay->programs[i].next);
    }
    for (int i = 0; i < replay->group_count; i++) free(replay->groups[i].ranks);
    free(replay->groups);
    free(replay->group_of);
    free(replay->players);
    free(replay->programs);
    free(replay->runnable);
}

static void finish_result(const Replay *replay) {
    double began = INFINITY, ended = 0;
    for (int i = 0; i < replay->size; i++) {
        Player *player = &replay->players[i];
        end_period(player, replay->meeting_count < 2);
        began = fmin(began, player->began);
        ended = fmax(ended, player->now);
    }
    replay->result->step = replay->meeting_count > 1 ? replay->meetings[1] - replay->meetings[0] : ended - began;
}

bool replay_run(const ReplayRun *run, ReplayResult *result, Error *error) {
    int size = mesh_size(run->mesh, AXES_ALL);
    *result = (ReplayResult){.ranks = memory_allocate((size_t)size * sizeof *result->ranks)};
    SCOPED(close_replay) Replay replay = {.run = run, .result = result, .size = size, .error = error};
    replay.players = memory_allocate((size_t)size * sizeof *replay.players);
    replay.programs = memory_allocate((size_t)size * sizeof *replay.programs);
    replay.group_of = memory_allocate((size_t)size * REPLAY_NAMES * sizeof *replay.group_of);
    replay.runnable = memory_allocate((size_t)size * sizeof *replay.runnable);
    for (int rank = 0; rank < size; rank++) open_player(&replay, rank);
    play_all(&replay);
    if (replay.failed) return false;
    if (replay.ended < size) return refuse_deadlock(&replay);
    finish_result(&replay);
    return true;
}

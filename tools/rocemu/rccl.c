/* A librccl.so.1 between the emulated cards of several processes of one machine, so that the code that calls AMD's library
 * of collectives runs where there is none: the functions that smelt calls, with their real signatures and numbers
 * (nccl_calls_internal.h, which tools/check-headers compares with rccl.h).
 *
 * The processes of a communicator share memory with a channel, a ring of bytes, for each ordered pair of ranks. Every
 * collective becomes messages between pairs; sums are taken from rank 0 up, so that they are the same on all ranks.
 * Streams of the emulated card run at once, so a call returns when its messages have passed; a channel is large, so that a
 * send seldom waits for its receive. A rank that has died, or an abort, ends a call with ncclRemoteError.
 *
 * Owns the shared memory, which has no name any more once all ranks have joined, and what a group of calls collects. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/bf16.h"
#include "comm/nccl_calls_internal.h"

#define EXPORT __attribute__((visibility("default")))
#define PROTOTYPE(name, symbol, arguments) EXPORT int symbol arguments;
NCCL_CALLS(PROTOTYPE)
EXPORT const char *ncclGetErrorString(int result);
int hipLaunchHostFunc(void *stream, void (*run)(void *), void *data);
int hipStreamIsCapturing(void *stream, int *status);
EXPORT const char *ncclGetLastError(void *group);

enum {
    UNHANDLED_CUDA_ERROR = 1,
    SYSTEM_ERROR = 2,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6,
    VERSION = 22203
}; /* ncclResult_t */
enum { MOST_RANKS = 16, CHANNEL_BYTES = 32 << 20, LOOKS = 4096 };
#define NUMBER(ours, number, name) name = number,
enum { NCCL_TYPES(NUMBER) };
enum { NCCL_REDUCTIONS(NUMBER) };

typedef struct Channel {
    _Atomic uint64_t written, read; /* bytes ever */
    char bytes[CHANNEL_BYTES];
} Channel;

typedef struct Shared {
    _Atomic int joined, left;
    _Atomic pid_t process[MOST_RANKS];
    Channel channel[]; /* from rank i to j: i size + j */
} Shared;

typedef struct Group {
    int rank, size;
    Shared *shared;
    atomic_bool aborted;
    _Atomic int error;
} Group;

/* Bytes to or from a rank. */
typedef struct Message {
    struct Message *next;
    Group *group;
    int peer;
    bool sends;
    char *data;
    size_t bytes, done;
} Message;

/* A sum, largest or smallest of what the ranks sent, taken when all messages have passed. */
typedef struct Reduction {
    struct Reduction *next;
    Group *group;
    char *parts, *result; /* [size][count]; the own part is there too */
    size_t count;
    int type, reduce;
} Reduction;

/* What a thread has collected between ncclGroupStart and ncclGroupEnd, in the order of its calls. */
static _Thread_local struct {
    int depth;
    Message *messages, **last;
    Reduction *reductions;
} pending;

/* -- Messages ------------------------------------------------------------------------------------------------------ */

static size_t width_of(int type) { return type == ncclUint8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat32 ? 4 : 8; }

static Channel *channel_of(const Message *message) {
    const Group *group = message->group;
    int from = message->sends ? group->rank : message->peer, to = message->sends ? message->peer : group->rank;
    return &group->shared->channel[from * group->size + to];
}

/* Moves what the channel has room for, or holds; false: nothing. */
static bool advance(Message *message) {
    Channel *channel = channel_of(message);
    uint64_t written = channel->written, read = channel->read, at = message->sends ? written : read;
    size_t most = message->sends ? CHANNEL_BYTES - (written - read) : written - read, left = message->bytes - message->done;
    size_t bytes = left < most ? left : most, place = at % CHANNEL_BYTES,
           first = bytes < CHANNEL_BYTES - place ? bytes : CHANNEL_BYTES - place;
    char *data = message->data + message->done;
    if (message->sends) {
        memcpy(channel->bytes + place, data, first);
        memcpy(channel->bytes, data + first, bytes - first);
        channel->written = written + bytes;
    } else {
        memcpy(data, channel->bytes + place, first);
        memcpy(data + first, channel->bytes, bytes - first);
        channel->read = read + bytes;
    }
    message->done += bytes;
    return bytes > 0;
}

/* Messages of one channel go in the order of their calls. */
static bool is_first(const Message *message) {
    for (const Message *before = pending.messages; before != message; before = before->next)
        if (before->done < before->bytes && channel_of(before) == channel_of(message)) return false;
    return true;
}

static int state_of(Group *group) {
    bool lost = group->aborted;
    for (int i = 0; i < group->size && !lost; i++) lost = kill(group->shared->process[i], 0) != 0 && errno == ESRCH;
    if (lost) group->error = REMOTE_ERROR;
    return group->error;
}

static int pass_messages(void) {
    for (int idle = 1, left = 1; left; idle++) {
        left = 0;
        for (Message *message = pending.messages; message; message = message->next) {
            if (message->done == message->bytes) continue;
            left++;
            if (is_first(message) && advance(message)) idle = 0;
            else if (idle % LOOKS == 0 && state_of(message->group)) return message->group->error;
        }
        if (idle > LOOKS) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        else if (left) sched_yield();
    }
    return 0;
}

static int add_message(Group *group, int peer, bool sends, const void *data, size_t bytes) {
    Message *message = malloc(sizeof *message);
    if (!message || peer < 0 || peer >= group->size) return free(message), INVALID_ARGUMENT;
    *message = (Message){NULL, group, peer, sends, (char *)data, bytes, 0};
    if (!pending.messages) pending.last = &pending.messages;
    *pending.last = message;
    pending.last = &message->next;
    return 0;
}

/* -- Reductions ---------------------------------------------------------------------------------------------------- */

#define FOLD(type, sum, load, store)                                                   \
    for (size_t i = 0; i < r->count; i++) {                                         \
        const type *parts = (const type *)r->parts + i;                             \
        sum all = load(*parts);                                                      \
        for (int rank = 1; rank < r->group->size; rank++) {                         \
            sum next = load(parts[(size_t)rank * r->count]);                         \
            all = r->reduce == ncclSum ? all + next : (r->reduce == ncclMax) == (next > all) ? next : all; \
        }                                                                           \
        ((type *)r->result)[i] = (type)store(all);                                       \
    }

static void reduce(const Reduction *r) {
    switch (r->type) {
    case ncclFloat32: FOLD(float, float, , ); break;
    case ncclFloat64: FOLD(double, double, , ); break;
    case ncclBfloat16: FOLD(uint16_t, float, bf16_to_float, bf16_from_float); break;
    case ncclInt64: FOLD(int64_t, int64_t, , ); break;
    default: FOLD(uint8_t, int, , );
    }
}

/* A part for each rank, into which their messages go; the own one is copied. */
static int add_reduction(Group *group, const char *mine, char *result, size_t count, int type, int reduction) {
    Reduction *r = malloc(sizeof *r);
    size_t bytes = count * width_of(type);
    char *parts = malloc(bytes * (size_t)group->size + 1);
    if (!r || !parts) return free(r), free(parts), SYSTEM_ERROR;
    *r = (Reduction){pending.reductions, group, parts, result, count, type, reduction};
    pending.reductions = r;
    int failed = 0;
    for (int rank = 0; rank < group->size && !failed; rank++) {
        char *part = parts + (size_t)rank * bytes;
        if (rank == group->rank) memcpy(part, mine, bytes);
        else failed = add_message(group, rank, false, part, bytes);
    }
    return failed;
}

/* -- Failures ------------------------------------------------------------------------------------------------------ */

/* The cause of the latest failure. */
static _Thread_local const char *last_cause = "";

/* Returns whether this call fails for want of device memory: with ROCEMU_RCCL_LACKS_MEMORY=N, from rank 0's N-th collective on,
 * as a real library fails whose buffers do not fit. */
static bool lacks_memory(const Group *group) {
    static _Atomic int calls;
    const char *first = getenv("ROCEMU_RCCL_LACKS_MEMORY");
    bool lacks = first && group->rank == 0 && ++calls >= atoi(first);
    if (lacks) last_cause = "Cuda failure 2 'out of memory'";
    return lacks;
}

const char *ncclGetLastError(void *group) {
    (void)group;
    return last_cause;
}

/* -- Groups of calls ----------------------------------------------------------------------------------------------- */

int ncclGroupStart(void) {
    pending.depth++;
    return 0;
}

int ncclGroupEnd(void) {
    if (pending.depth == 0) return INVALID_USAGE;
    if (--pending.depth) return 0;
    int failed = pass_messages();
    for (Reduction *r = pending.reductions, *next; r; r = next) {
        next = r->next;
        if (!failed) reduce(r);
        free(r->parts);
        free(r);
    }
    for (Message *message = pending.messages, *next; message; message = next) {
        next = message->next;
        free(message);
    }
    pending.messages = NULL;
    pending.reductions = NULL;
    return failed;
}

static int end_call(int failed) {
    int ended = ncclGroupEnd();
    return failed ? failed : ended;
}

/* -- Collectives --------------------------------------------------------------------------------------------------- */

static int send_to_others(Group *group, const char *data, size_t bytes, size_t stride) {
    int failed = 0;
    for (int rank = 0; rank < group->size && !failed; rank++)
        if (rank != group->rank) failed = add_message(group, rank, true, data + (size_t)rank * stride, bytes);
    return failed;
}

int ncclSend(const void *send, size_t count, int type, int peer, void *group, void *stream) {
    (void)stream;
    ncclGroupStart();
    return end_call(add_message(group, peer, true, send, count * width_of(type)));
}
int ncclRecv(void *receive, size_t count, int type, int peer, void *group, void *stream) {
    (void)stream;
    ncclGroupStart();
    return end_call(add_message(group, peer, false, receive, count * width_of(type)));
}

/* An all-reduce in a stream that captures runs at each replay. The graph has no end of life that a library sees, so the call lives as long as
 * the process. */
typedef struct CapturedReduce {
    const void *send;
    void *receive, *group;
    size_t count;
    int type, reduction;
} CapturedReduce;

static void run_captured(void *data) {
    const CapturedReduce *c = data;
    int failed = ncclAllReduce(c->send, c->receive, c->count, c->type, c->reduction, c->group, NULL);
    if (failed) fprintf(stderr, "rocemu: a captured ncclAllReduce failed with %d\n", failed);
}

static int capture_reduce(const CapturedReduce *call, void *stream) {
    CapturedReduce *kept = malloc(sizeof *kept);
    if (!kept) return SYSTEM_ERROR;
    *kept = *call;
    return hipLaunchHostFunc(stream, run_captured, kept) ? UNHANDLED_CUDA_ERROR : 0;
}

int ncclAllReduce(const void *send, void *receive, size_t count, int type, int reduction, void *group, void *stream) {
    int capturing = 0;
    if (stream) hipStreamIsCapturing(stream, &capturing);
    if (capturing) return capture_reduce(&(CapturedReduce){send, receive, group, count, type, reduction}, stream);
    if (lacks_memory(group)) return UNHANDLED_CUDA_ERROR;
    ncclGroupStart();
    int failed = send_to_others(group, send, count * width_of(type), 0);
    return end_call(failed ? failed : add_reduction(group, send, receive, count, type, reduction));
}

int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int reduction, void *group, void *stream) {
    (void)stream;
    size_t bytes = count * width_of(type);
    ncclGroupStart();
    int failed = send_to_others(group, send, bytes, bytes);
    return end_call(
        failed ? failed
               : add_reduction(group, (const char *)send + (size_t)((Group *)group)->rank * bytes, receive, count, type, reduction));
}

int ncclReduce(const void *send, void *receive, size_t count, int type, int reduction, int root, void *group, void *stream) {
    (void)stream;
    ncclGroupStart();
    bool mine = root == ((Group *)group)->rank;
    return end_call(
        mine ? add_reduction(group, send, receive, count, type, reduction) : add_message(group, root, true, send, count * width_of(type)));
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, void *group, void *stream) {
    (void)stream;
    const Group *g = group;
    size_t bytes = count * width_of(type);
    ncclGroupStart();
    int failed = send_to_others(group, send, bytes, 0);
    for (int rank = 0; rank < g->size && !failed; rank++) {
        char *place = (char *)receive + (size_t)rank * bytes;
        if (rank != g->rank) failed = add_message(group, rank, false, place, bytes);
        else if (place != send) memcpy(place, send, bytes);
    }
    return end_call(failed);
}

int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, void *group, void *stream) {
    (void)stream;
    size_t bytes = count * width_of(type);
    ncclGroupStart();
    if (root != ((Group *)group)->rank) return end_call(add_message(group, root, false, receive, bytes));
    if (receive != send) memcpy(receive, send, bytes);
    return end_call(send_to_others(group, send, bytes, 0));
}

/* -- Communicators ------------------------------------------------------------------------------------------------- */

int ncclGetVersion(int *version) {
    *version = VERSION;
    return 0;
}
const char *ncclGetErrorString(int result) {
    return result == 0                      ? "no error"
           : result == UNHANDLED_CUDA_ERROR ? "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
           : result == REMOTE_ERROR         ? "remote process exited or there was a network error"
                                            : "invalid argument or usage";
}

int ncclGetUniqueId(NcclId *id) {
    static _Atomic int count;
    snprintf(id->bytes, sizeof id->bytes, "/rocemu-rccl-%d-%d", (int)getpid(), count++);
    return 0;
}

int ncclCommInitRank(void **group, int size, NcclId id, int rank) {
    if (size < 1 || size > MOST_RANKS || rank < 0 || rank >= size || id.bytes[0] != '/') return INVALID_ARGUMENT;
    size_t bytes = sizeof(Shared) + (size_t)(size * size) * sizeof(Channel);
    int file = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    Group *g = calloc(1, sizeof *g);
    bool opened = g && file >= 0 && ftruncate(file, (off_t)bytes) == 0;
    void *memory = opened ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0) : MAP_FAILED;
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) return free(g), SYSTEM_ERROR;
    *g = (Group){.rank = rank, .size = size, .shared = memory};
    g->shared->process[rank] = getpid();
    g->shared->joined++;
    while (g->shared->joined < size) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    if (rank == 0) shm_unlink(id.bytes);
    *group = g;
    return 0;
}

int ncclCommDestroy(void *group) {
    Group *g = group;
    munmap(g->shared, sizeof(Shared) + (size_t)(g->size * g->size) * sizeof(Channel));
    free(g);
    return 0;
}

/* Another thread may be within a call of this communicator, so its memory stays. */
int ncclCommAbort(void *group) {
    ((Group *)group)->aborted = true;
    return 0;
}

int ncclCommGetAsyncError(void *group, int *result) {
    *result = ((Group *)group)->error;
    return 0;
}

/* Windows: memory of each GPU of a group that the other GPUs' kernels write. Ranks exchange their
 * windows' handles and open each other's; if one rank fails, no rank has windows. All groups of a
 * process share a word in pinned host memory. The worker sets it after a failure, because a kernel
 * that waits for a lost GPU would wait forever. Owns the word and the opened handles. A window
 * itself lives until the process ends, because no rank knows when the others have closed it. Called
 * by comm.c and, after a failure, by the worker through nccl.c. */
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "comm/comm_internal.h"

typedef struct WindowOffer {
    DeviceHandle handle;
    int32_t node, valid;
} WindowOffer;

/* Returns whether all ranks are on one node and each has a window. */
static bool can_open(const WindowOffer *offers, int size) {
    for (int i = 0; i < size; i++)
        if (!offers[i].valid || offers[i].node != offers[0].node) return false;
    return true;
}

static uint32_t *stop_word(CommEngine *engine, Error *error) {
    uint32_t *stop = engine->stop;
    if (!stop && (stop = device_allocate_host(engine->device, sizeof *stop, error))) {
        *stop = 0;
        engine->stop = stop;
    }
    return stop;
}

static void close_others(Comm *comm) {
    for (int i = 0; i < comm->size; i++)
        if (i != comm->rank) device_share_close(comm->engine->device, comm->windows->window[i]);
}

/* Opens the windows of the other ranks; false if the GPUs do not reach each other. */
static bool open_others(Comm *comm, const WindowOffer *offers) {
    bool opened = true;
    for (int i = 0; i < comm->size && opened; i++)
        if (i != comm->rank) opened = (comm->windows->window[i] = device_share_open(comm->engine->device, &offers[i].handle));
    return opened;
}

/* Sets *agreed to whether `own` is true on all ranks. */
static bool all_agree(Comm *comm, bool own, bool *agreed, Error *error) {
    int64_t least = own;
    if (!comm_host_all_reduce(comm, "windows", &least, 1, COMM_I64, COMM_MIN, error)) return false;
    *agreed = least;
    return true;
}

bool comm_open_windows(Comm *comm, int64_t bytes, Error *error) {
    CommEngine *engine = comm->engine;
    if (comm->size == 1 || comm->size > COMM_MOST_WINDOWS || !comm->nccl || comm->windows) return true;
    uint32_t *stop = stop_word(engine, error);
    if (!stop) return false;
    comm->windows = memory_allocate(sizeof *comm->windows);
    *comm->windows = (CommWindows){.size = comm->size, .rank = comm->rank, .stop = stop};
    SCOPED_FREE WindowOffer *offers = memory_allocate((size_t)comm->size * sizeof *offers);
    WindowOffer *own = &offers[comm->rank];
    own->node = engine->node;
    own->valid = (comm->windows->window[comm->rank] = device_share(engine->device, bytes, &own->handle)) != NULL;
    bool agreed = false, gathered = comm_host_all_gather(comm, "windows", offers, sizeof *offers, COMM_U8, error);
    bool done = gathered && all_agree(comm, can_open(offers, comm->size) && open_others(comm, offers), &agreed, error);
    if (agreed) return true;
    windows_close(comm);
    if (done && comm->rank == 0)
        log_info(
            "the GPUs of group %s cannot access each other's memory (no peer access): small collectives use the library, which is slower",
            comm->name);
    return done;
}

const CommWindows *comm_windows(const Comm *comm) { return comm->windows; }

void windows_stop(CommEngine *engine) {
    uint32_t *stop = engine->stop;
    if (stop) __atomic_store_n(stop, 1, __ATOMIC_RELAXED);
}

void windows_close(Comm *comm) {
    if (!comm->windows) return;
    device_synchronize(comm->engine->device);
    close_others(comm);
    free(comm->windows);
    comm->windows = NULL;
}

void windows_end(CommEngine *engine) {
    if (engine->stop) device_free_host(engine->device, engine->stop, sizeof(uint32_t));
    engine->stop = NULL;
}

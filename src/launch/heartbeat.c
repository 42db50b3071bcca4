/* The page of heartbeats: a memory file that parent and children map. */
#include "launch/heartbeat_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

static Heartbeat *map(int file, int ranks, Error *error) {
    void *page = memory_map_shared(file, (size_t)ranks * sizeof(Heartbeat), error);
    if (!page) error_context(error, "the shared page of heartbeats");
    return page;
}

Heartbeat *heartbeat_create(int ranks, int *file, Error *error) {
    *file = memfd_create("smelt-heartbeats", MFD_CLOEXEC);
    Heartbeat *heartbeats = NULL;
    if (*file < 0 || ftruncate(*file, (off_t)((size_t)ranks * sizeof *heartbeats)) != 0)
        error_set(error, ERROR_MEMORY, "cannot map the shared page of heartbeats: %s", strerror(errno));
    else heartbeats = map(*file, ranks, error);
    if (!heartbeats && *file >= 0) close(*file);
    return heartbeats;
}

/* Returns the file of SMELT_HEARTBEATS if it has room for this rank, else -1. */
static int inherited(int local_rank, int *ranks) {
    const char *text = getenv("SMELT_HEARTBEATS");
    char *end;
    long file = text && *text ? strtol(text, &end, 10) : -1;
    struct stat status;
    if (file < 0 || file > INT32_MAX || *end || local_rank < 0 || fstat((int)file, &status) != 0) return -1;
    int64_t count = status.st_size / (int64_t)sizeof(Heartbeat);
    if (count <= local_rank || count > INT32_MAX) return -1;
    *ranks = (int)count;
    return (int)file;
}

Heartbeat *heartbeat_join(int local_rank, int *own, int *ranks, Error *error) {
    *ranks = 1;
    int file = inherited(local_rank, ranks);
    *own = file < 0 ? 0 : local_rank;
    return map(file, *ranks, error);
}

void heartbeat_set_mesh(Heartbeat *heartbeat, const Mesh *mesh) {
    for (int axis = 0; axis < AXIS_COUNT; axis++) heartbeat->axes[axis] = mesh->size[axis];
}

bool heartbeat_get_mesh(const Heartbeat *heartbeat, Mesh *mesh) {
    *mesh = mesh_alone;
    for (int axis = 0; axis < AXIS_COUNT; axis++) {
        if (heartbeat->axes[axis] < 1) return false;
        mesh->size[axis] = heartbeat->axes[axis];
    }
    return true;
}

void heartbeat_close(Heartbeat *heartbeats, int ranks) { memory_unmap(heartbeats, (size_t)ranks * sizeof *heartbeats); }

/* Large copies between pageable host memory and a GPU. A driver copies such memory through a small
 * buffer with one core. It copies pinned memory at full speed, but pinning a checkpoint takes
 * seconds, during which the driver blocks every other call. Therefore a few slots are pinned once;
 * while the GPU copies some of them, all cores fill or empty another. Owns the slots and the list
 * of pinned memory; called by gpu_device.c. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "backend/gpu/driver.h"

enum { SLOTS = 4 };
static const int64_t SLOT_BYTES = 8 << 20, LEAST_BYTES = 1 << 20; /* smaller copies are not staged */

typedef struct Pinned {
    const char *memory;
    int64_t bytes;
} Pinned;

struct Staging {
    char *slots[SLOTS];
    void *events[SLOTS]; /* happen when the GPU has finished with the slot */
};

void *staging_pin(Gpu *gpu, int64_t bytes) {
    void *memory = NULL;
    if (gpu->call.allocate_host(&memory, bytes ? (size_t)bytes : 1, 0) != 0) return NULL;
    array_append(gpu->pinned, gpu->pinned_count, (Pinned){memory, bytes});
    return memory;
}

void staging_unpin(Gpu *gpu, void *memory) {
    for (int i = 0; i < gpu->pinned_count; i++)
        if (gpu->pinned[i].memory == memory) gpu->pinned[i--] = gpu->pinned[--gpu->pinned_count];
    GPU_CALL(gpu, release_host, memory);
}

int64_t staging_pinned_bytes(const Gpu *gpu) {
    int64_t bytes = 0;
    for (int i = 0; i < gpu->pinned_count; i++) bytes += gpu->pinned[i].bytes;
    return bytes;
}

static bool is_pinned(const Gpu *gpu, const char *memory) {
    for (int i = 0; i < gpu->pinned_count; i++)
        if (memory >= gpu->pinned[i].memory && memory < gpu->pinned[i].memory + gpu->pinned[i].bytes) return true;
    return false;
}

static void release_slots(Gpu *gpu) {
    Staging *staging = gpu->staging;
    for (int i = 0; i < SLOTS && staging; i++) {
        if (staging->events[i]) gpu->call.event_destroy(staging->events[i]);
        if (staging->slots[i]) gpu->call.release_host(staging->slots[i]);
    }
    free(staging);
    gpu->staging = NULL;
}

void staging_close(Gpu *gpu) {
    release_slots(gpu);
    free(gpu->pinned);
    gpu->pinned = NULL;
}

static bool staging_open(Gpu *gpu) {
    Staging *staging = gpu->staging = memory_allocate(sizeof *staging);
    for (int i = 0; i < SLOTS; i++)
        if (gpu->call.allocate_host((void **)&staging->slots[i], (size_t)SLOT_BYTES, 0) != 0 ||
            gpu->call.event_create(&staging->events[i], 0) != 0) {
            release_slots(gpu);
            return false;
        }
    return true;
}

/* Never stages while recording: a recording must not refer to slots. */
static bool should_stage(Gpu *gpu, const char *host, int64_t bytes) {
    return bytes >= LEAST_BYTES && !gpu->recording && !is_pinned(gpu, host) && (gpu->staging || staging_open(gpu));
}

static void copy_parallel(char *to, const char *from, int64_t bytes) {
    const int64_t block = 256 << 10;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < bytes; at += block) memcpy(to + at, from + at, (size_t)(bytes - at < block ? bytes - at : block));
}

static int64_t chunk_bytes(int64_t bytes, int64_t chunk) {
    int64_t left = bytes - chunk * SLOT_BYTES;
    return left < SLOT_BYTES ? left : SLOT_BYTES;
}

bool staging_upload(Gpu *gpu, char *to, const char *from, int64_t bytes) {
    if (!should_stage(gpu, from, bytes)) return false;
    bool done = true;
    for (int64_t i = 0; i * SLOT_BYTES < bytes && done; i++) {
        char *slot = gpu->staging->slots[i % SLOTS];
        void *event = gpu->staging->events[i % SLOTS];
        done = GPU_CALL(gpu, event_synchronize, event);
        copy_parallel(slot, from + i * SLOT_BYTES, chunk_bytes(bytes, i));
        done = done && GPU_CALL(gpu, upload, to + i * SLOT_BYTES, slot, (size_t)chunk_bytes(bytes, i), gpu->stream) &&
               GPU_CALL(gpu, event_record, event, gpu->stream);
    }
    return true;
}

bool staging_download(Gpu *gpu, char *to, const char *from, int64_t bytes) {
    if (!should_stage(gpu, to, bytes)) return false;
    const Staging *staging = gpu->staging;
    int64_t chunks = (bytes + SLOT_BYTES - 1) / SLOT_BYTES, lag = chunks < SLOTS ? chunks : SLOTS;
    bool done = true;
    for (int64_t i = 0; i < chunks + lag && done; i++) {
        int64_t full = i - lag; /* the chunk in the slot that is filled next */
        if (full >= 0) {
            done = GPU_CALL(gpu, event_synchronize, staging->events[full % SLOTS]);
            copy_parallel(to + full * SLOT_BYTES, staging->slots[full % SLOTS], chunk_bytes(bytes, full));
        }
        if (i < chunks && done)
            done = GPU_CALL(gpu, download, staging->slots[i % SLOTS], (char *)from + i * SLOT_BYTES, (size_t)chunk_bytes(bytes, i),
                       gpu->stream) &&
                   GPU_CALL(gpu, event_record, staging->events[i % SLOTS], gpu->stream);
    }
    return true;
}

/* Environment variables that AMD recommends for RCCL and its runtime, for MI300X nodes and for
 * Pollara network cards (sources: AMD's Primus launcher and ROCm's guides, as of ROCm 6.4 to 7.2).
 * They are recommended only if the hardware is present; the program sets them unless the user did.
 * Owns nothing. Called by comm_open and comm_use_device. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/comm_internal.h"

typedef struct Setting { const char *hardware, *name, *value; } Setting; /* hardware: glob pattern of files */

#define AMD_GPU "/dev/kfd"
#define POLLARA "/sys/class/infiniband/ionic*"
static const Setting settings[] = {
    {AMD_GPU, "HSA_NO_SCRATCH_RECLAIM", "1"},
    {AMD_GPU, "NCCL_CHECKS_DISABLE", "1"},
    {AMD_GPU, "NCCL_P2P_NET_CHUNKSIZE", "524288"},
    {AMD_GPU, "RCCL_MSCCL_ENABLE", "0"},
    {POLLARA, "NCCL_IB_GID_INDEX", "1"},
    {POLLARA, "NCCL_IB_TC", "104"},
    {POLLARA, "NCCL_IB_FIFO_TC", "192"},
    {POLLARA, "NCCL_IB_ROCE_VERSION_NUM", "2"},
    {POLLARA, "NCCL_IB_QPS_PER_CONNECTION", "1"},
    {POLLARA, "NCCL_MAX_P2P_CHANNELS", "56"},
    {POLLARA, "NCCL_IB_USE_INLINE", "1"},
    {POLLARA, "NCCL_GDR_FLUSH_DISABLE", "1"},
    {POLLARA, "NCCL_DMABUF_ENABLE", "0"},
    {POLLARA, "NCCL_IGNORE_CPU_AFFINITY", "1"},
    {POLLARA, "NCCL_PXN_DISABLE", "0"},
    {POLLARA, "NET_OPTIONAL_RECV_COMPLETION", "1"},
    {POLLARA, "RCCL_GDR_FLUSH_GPU_MEM_NO_RELAXED_ORDERING", "0"},
    {POLLARA, "RCCL_AINIC_ROCE", "1"},
    {POLLARA, "IONIC_LOCKFREE", "all"},
};
enum { SETTINGS = sizeof settings / sizeof *settings, GPUS_OF_A_NODE = 8 };

static bool matches_file(const char *root, const char *pattern) {
    glob_t found = {0};
    char *path = memory_format("%s%s", root, pattern);
    bool there = glob(path, 0, NULL, &found) == 0;
    globfree(&found);
    free(path);
    return there;
}

void settings_recommend(const char *root, void (*recommend)(const char *name, const char *value)) {
    for (int i = 0; recommend && i < SETTINGS; i++)
        if (matches_file(root, AMD_GPU) && matches_file(root, settings[i].hardware)) recommend(settings[i].name, settings[i].value);
}

/* Each pair of MI300X has one link. A collective of few GPUs uses few links, and more channels fill
 * them. */
void settings_recommend_ranks(const Device *device, int local_size, void (*recommend)(const char *name, const char *value)) {
    bool few = !strcmp(device_info(device)->target, "gfx942") && local_size < GPUS_OF_A_NODE;
    if (recommend && few) recommend("NCCL_MIN_NCHANNELS", "112");
}

void settings_describe(char *text, size_t size) {
    size_t length = 0;
    text[0] = 0;
    for (int i = 0; i <= SETTINGS && length < size; i++) {
        const char *name = i < SETTINGS ? settings[i].name : "NCCL_MIN_NCHANNELS", *value = getenv(name);
        if (value) length += (size_t)snprintf(text + length, size - length, "%s%s=%s", length ? " " : "", name, value);
    }
}

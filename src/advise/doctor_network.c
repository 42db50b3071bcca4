/* Checks of network cards, one of which should be near each GPU, and of the variables that control
 * collectives. Owns nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "advise/doctor.h"

enum { CARDS = 64 };

/* -- Cards --------------------------------------------------------------------------------------------------------- */

/* Returns the number of folders that two devices share from the root of the PCI bus: more is
 * nearer. 0 if one of them is unknown. */
static int shared_folders(const char *a, const char *b) {
    int shared = 0;
    if (!a || !b) return 0;
    for (; *a && *a == *b; a++, b++) shared += *a == '/';
    return shared;
}

static char *format_place(const Doctor *doctor, const char *format, const char *name) {
    SCOPED_FREE char *path = memory_format(format, doctor->root, name);
    return realpath(path, NULL);
}

static void check_port(Doctor *doctor, const char *card) {
    char state[64], rate[64] = "unknown rate", layer[64] = "";
    if (!doctor_read(doctor, state, sizeof state, "/sys/class/infiniband/%s/ports/1/state", card)) return;
    doctor_read(doctor, rate, sizeof rate, "/sys/class/infiniband/%s/ports/1/rate", card);
    doctor_read(doctor, layer, sizeof layer, "/sys/class/infiniband/%s/ports/1/link_layer", card);
    bool active = strstr(state, "ACTIVE") != NULL;
    doctor_warn_if(doctor, !active, "network.card",
        "check the cable, the switch and the subnet manager (ibstat), or exclude the card with NCCL_IB_HCA", "%s: %s, %s %s", card, state,
        rate, layer);
}

static void check_nearest(Doctor *doctor, char cards[][DOCTOR_NAME], int count) {
    int users[CARDS] = {0};
    char *places[CARDS];
    for (int i = 0; i < count; i++) places[i] = format_place(doctor, "%s/sys/class/infiniband/%s/device", cards[i]);
    for (int g = 0; g < doctor->gpu_count; g++) {
        SCOPED_FREE char *gpu = format_place(doctor, "%s/sys/bus/pci/devices/%s", doctor->gpus[g].address);
        int best = 0;
        for (int i = 1; i < count; i++) { /* among equally near cards, the one with the fewest GPUs */
            int difference = shared_folders(gpu, places[i]) - shared_folders(gpu, places[best]);
            if (difference > 0 || (difference == 0 && users[i] < users[best])) best = i;
        }
        users[best]++;
        doctor_ok(doctor, "network.affinity", "%s is nearest to %s", doctor->gpus[g].address, cards[best]);
    }
    for (int i = 0; i < count; i++) free(places[i]);
    if (doctor->gpu_count > 1 && count < doctor->gpu_count)
        doctor_warn(doctor, "network.affinity", "for several nodes, use machines with one card per GPU",
            "%d network card%s serve%s %d GPUs, which slows down collectives between nodes proportionally", count, count == 1 ? "" : "s",
            count == 1 ? "s" : "", doctor->gpu_count);
}

static void check_ethernet(Doctor *doctor) {
    char names[CARDS][DOCTOR_NAME], state[32];
    int count = doctor_list(doctor, names, CARDS, "/sys/class/net"), up = 0;
    int64_t best = 0;
    for (int i = 0; i < count; i++) {
        if (!strcmp(names[i], "lo") || !doctor_read(doctor, state, sizeof state, "/sys/class/net/%s/operstate", names[i]) ||
            !strcmp(state, "down"))
            continue;
        int64_t speed = doctor_read_number(doctor, -1, "/sys/class/net/%s/speed", names[i]);
        best = speed > best ? speed : best;
        up++;
    }
    if (best > 0)
        doctor_ok(doctor, "network.ethernet", "%d interface%s; the fastest has %lld Mb/s", up, up == 1 ? "" : "s", (long long)best);
    else doctor_ok(doctor, "network.ethernet", "%d interface%s besides the loopback, of unknown speed", up, up == 1 ? "" : "s");
}

void doctor_check_network(Doctor *doctor) {
    char cards[CARDS][DOCTOR_NAME];
    int count = doctor_list(doctor, cards, CARDS, "/sys/class/infiniband");
    for (int i = 0; i < count; i++) check_port(doctor, cards[i]);
    if (count == 0)
        doctor_ok(doctor, "network.card", "no RDMA card%s",
            doctor->gpu_count > 1 ? ": one node trains well; several nodes would communicate over TCP" : "");
    else if (doctor->gpu_count > 0) check_nearest(doctor, cards, count);
    check_ethernet(doctor);
}

/* -- Variables ----------------------------------------------------------------------------------------------------- */

/* Returns whether every name in a list such as "^mlx5_0:1,mlx5_1" is the start of a name in the
 * folder; "=" demands a whole name, "^" excludes names. */
static bool names_exist(const Doctor *doctor, const char *folder, const char *list) {
    char names[CARDS][DOCTOR_NAME];
    int count = doctor_list(doctor, names, CARDS, "%s", folder);
    list += strspn(list, "^=");
    for (size_t length; *list; list += length + strspn(list + length, ",")) {
        length = strcspn(list, ",");
        size_t letters = strcspn(list, ",:");
        bool found = false;
        for (int i = 0; i < count; i++) found |= !strncmp(names[i], list, letters);
        if (!found) return false;
    }
    return true;
}

typedef struct NetworkRule { const char *name, *value, *harm, *fix; } NetworkRule; /* value NULL: any */

static const NetworkRule rules[] = {
    {"NCCL_DEBUG", "TRACE", "logs every call and slows training down", "export NCCL_DEBUG=WARN"},
    {"NCCL_IB_DISABLE", "1", "sends everything between nodes over TCP", "unset NCCL_IB_DISABLE"},
    {"NCCL_P2P_DISABLE", "1", "sends everything between GPUs of a node through host memory", "unset NCCL_P2P_DISABLE"},
    {"NCCL_SHM_DISABLE", "1", "disables shared memory for GPUs without peer access", "unset NCCL_SHM_DISABLE"},
    {"NCCL_ALGO", NULL, "prevents the library from choosing by message size", "unset NCCL_ALGO, unless it was measured"},
    {"NCCL_PROTO", NULL, "prevents the library from choosing by message size", "unset NCCL_PROTO, unless it was measured"},
    {"CUDA_LAUNCH_BLOCKING", "1", "waits after every kernel", "unset CUDA_LAUNCH_BLOCKING"},
    {"HIP_LAUNCH_BLOCKING", "1", "waits after every kernel", "unset HIP_LAUNCH_BLOCKING"},
    {"AMD_SERIALIZE_KERNEL", NULL, "waits around every kernel", "unset AMD_SERIALIZE_KERNEL"},
    {"HSA_ENABLE_SDMA", "0", "copies with compute units in place of the copy engines", "unset HSA_ENABLE_SDMA"},
};

static void check_rules(Doctor *doctor) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *value = getenv(rules[i].name);
        if (value && (!rules[i].value || !strcmp(value, rules[i].value)))
            doctor_warn(doctor, "variable", rules[i].fix, "%s=%s %s", rules[i].name, value, rules[i].harm);
    }
}

static void check_host_names(Doctor *doctor) {
    const char *interface = getenv("NCCL_SOCKET_IFNAME"), *card = getenv("NCCL_IB_HCA");
    if (interface && *interface && !names_exist(doctor, "/sys/class/net", interface))
        doctor_error(doctor, "variable", "list them with: ls /sys/class/net", "NCCL_SOCKET_IFNAME=%s is not an interface of this machine",
            interface);
    if (card && *card && !names_exist(doctor, "/sys/class/infiniband", card))
        doctor_error(doctor, "variable", "list them with: ls /sys/class/infiniband", "NCCL_IB_HCA=%s is not a card of this machine", card);
}

typedef struct Pair { const char *cuda, *rocm, *purpose; } Pair;

/* Variables and tools with the same purpose. RCCL reads NCCL's variables under NCCL's names. */
static const Pair pairs[] = {
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "which GPUs a process sees (ROCR_VISIBLE_DEVICES hides them from all of ROCm)"},
    {"CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "wait after every kernel, for debugging"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "GPU_MAX_HW_QUEUES", "queues of one GPU"},
    {"CUDA_CACHE_PATH", "AMD_COMGR_CACHE_DIR", "where compiled kernels are kept"},
    {"NCCL_DEBUG", "NCCL_DEBUG", "what the library of collectives logs"},
    {"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "interface for starting up, and for TCP"},
    {"NCCL_IB_HCA", "NCCL_IB_HCA", "RDMA cards between nodes"},
    {"NCCL_IB_GID_INDEX", "NCCL_IB_GID_INDEX", "address on RoCE: 3 is usual, 1 on Pollara"},
    {"NCCL_MIN_NCHANNELS", "NCCL_MIN_NCHANNELS", "112 for fewer than 8 MI300X of a node"},
    {"NCCL_NVLS_ENABLE", "(none)", "sums in the NVLink switch; 0 if a virtual machine lacks it"},
    {"(none)", "RCCL_MSCCL_ENABLE", "algorithms of messages of some sizes"},
    {"nvidia-smi", "rocm-smi", "state of GPUs"},
    {"nsys, ncu", "rocprofv3", "profiles"},
};

void doctor_check_variables(Doctor *doctor) {
    check_rules(doctor);
    check_host_names(doctor);
}

void doctor_list_names(Doctor *doctor) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *cuda = getenv(pairs[i].cuda), *rocm = getenv(pairs[i].rocm), *value = rocm ? rocm : cuda;
        doctor_ok(doctor, "variable.names", "%-28s %-20s %s%s%s", pairs[i].cuda, pairs[i].rocm, pairs[i].purpose, value ? "; set to " : "",
            value ? value : "");
    }
}

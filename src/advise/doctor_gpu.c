/* Checks of GPUs that are the same for both vendors: devices on the PCI bus, the driver, the
 * libraries that smelt opens at run time, and the devices that smelt sees.
 *
 * A library is first loaded in a child process. A broken library, even one that crashes on loading,
 * is then reported without harm. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/child.h"
#include "base/log.h"
#include "base/memory.h"
#include "advise/doctor.h"
#include "advise/hardware.h"

static const char *const vendor_names[GPU_VENDORS] = {"AMD", "NVIDIA"};
static const DeviceKind kinds[GPU_VENDORS] = {DEVICE_HIP, DEVICE_CUDA};

/* -- The bus ------------------------------------------------------------------------------------------------------- */

static int vendor_of(int64_t number) { return number == 0x1002 ? GPU_AMD : number == 0x10de ? GPU_NVIDIA : -1; }

/* Finds display controllers (class 03) and processing accelerators (class 12), the class of data
 * center cards. */
void doctor_find_gpus(Doctor *doctor) {
    enum { DEVICES = 4096 };
    SCOPED_FREE char (*names)[DOCTOR_NAME] = memory_allocate(sizeof *names * DEVICES);
    int count = doctor_list(doctor, names, DEVICES, "/sys/bus/pci/devices");
    for (int i = 0; i < count && doctor->gpu_count < DOCTOR_GPUS; i++) {
        int vendor = vendor_of(doctor_read_number(doctor, 0, "/sys/bus/pci/devices/%s/vendor", names[i]));
        int64_t class = doctor_read_number(doctor, 0, "/sys/bus/pci/devices/%s/class", names[i]) >> 16;
        if (vendor < 0 || (class != 0x03 && class != 0x12)) continue;
        DoctorGpu *gpu = &doctor->gpus[doctor->gpu_count++];
        gpu->vendor = (GpuVendor)vendor;
        strcpy(gpu->address, names[i]);
        doctor->of_vendor[vendor]++;
    }
}

static void check_link(Doctor *doctor, const DoctorGpu *gpu) {
    char now[64], most[64];
    int64_t width = doctor_read_number(doctor, 0, "/sys/bus/pci/devices/%s/current_link_width", gpu->address);
    int64_t widest = doctor_read_number(doctor, 0, "/sys/bus/pci/devices/%s/max_link_width", gpu->address);
    bool known = doctor_read(doctor, now, sizeof now, "/sys/bus/pci/devices/%s/current_link_speed", gpu->address);
    known = doctor_read(doctor, most, sizeof most, "/sys/bus/pci/devices/%s/max_link_speed", gpu->address) && known;
    if (width > 0 && width < widest)
        doctor_warn(doctor, "gpu.pci", "reseat the card, or check the slot and the BIOS", "%s runs on %lld of %lld PCI lanes", gpu->address,
            (long long)width, (long long)widest);
    else if (known)
        doctor_ok(
            doctor, "gpu.pci", "%s: x%lld at %s (most %s; an idle card slows its link down)", gpu->address, (long long)width, now, most);
}

/* On a machine with several NUMA nodes, a card without a node was not described by the firmware.
 * Its process may then run on a remote node. */
static void check_node(Doctor *doctor, const DoctorGpu *gpu) {
    int64_t node = doctor_read_number(doctor, -1, "/sys/bus/pci/devices/%s/numa_node", gpu->address);
    if (node < 0 && doctor_exists(doctor, "/sys/devices/system/node/node1"))
        doctor_warn(doctor, "gpu.numa", "set NUMA nodes per socket in the BIOS; until then, bind processes with numactl",
            "%s is not assigned to a NUMA node, but there are several", gpu->address);
    else doctor_ok(doctor, "gpu.numa", "%s is at NUMA node %lld", gpu->address, (long long)(node < 0 ? 0 : node));
}

/* -- Libraries ----------------------------------------------------------------------------------------------------- */

typedef enum LibraryUse { USE_AMD, USE_NVIDIA, USE_ANY } LibraryUse;
typedef struct VendorLibrary {
    LibraryUse use;
    bool needed;
    const char *files[4], *purpose, *package;
} VendorLibrary;

static const VendorLibrary libraries[] = {
    {USE_AMD, true, {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"}, "HIP runtime",
        "sudo apt-get install hip-runtime-amd (ROCm's repository; Debian: libamdhip64-5)"},
    {USE_AMD, false, {"libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"}, "fast GEMMs; without it, smelt's own",
        "sudo apt-get install hipblaslt (ROCm's repository)"},
    {USE_AMD, false, {"librccl.so.1"}, "collectives between GPUs", "sudo apt-get install rccl (ROCm's repository; Debian: librccl1)"},
    {USE_AMD, false, {"librocm_smi64.so", "librocm_smi64.so.7", "librocm_smi64.so.6"}, "what rocm-smi shows",
        "sudo apt-get install rocm-smi-lib (Debian: librocm-smi64-1)"},
    {USE_NVIDIA, true, {"libcuda.so.1", "libcuda.so"}, "CUDA driver",
        "sudo apt-get install nvidia-driver (Debian non-free), or start the container with --gpus all"},
    {USE_NVIDIA, false, {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}, "fast GEMMs; without it, smelt's own",
        "sudo apt-get install libcublas-13-0 (NVIDIA's repository)"},
    {USE_NVIDIA, false, {"libnccl.so.2"}, "collectives between GPUs", "sudo apt-get install libnccl2 (NVIDIA's repository)"},
    {USE_NVIDIA, false, {"libnvJitLink.so.13", "libnvJitLink.so.12", "libnvJitLink.so"}, "fast start: compiles kernels on all cores",
        "sudo apt-get install libnvjitlink-13-0 (NVIDIA's repository)"},
    {USE_NVIDIA, false, {"libnvidia-ml.so.1", "libnvidia-ml.so"}, "what nvidia-smi shows",
        "sudo apt-get install libnvidia-ml1 (Debian non-free)"},
    {USE_ANY, false, {"libmpi.so.40"}, "starting with mpirun; without it, TCP", "sudo apt-get install libopenmpi3"},
    {USE_ANY, false, {"libcurl.so.4"}, "checkpoints in S3", "sudo apt-get install libcurl4"},
};

enum { LOAD_SECONDS = 20 }; /* a library that hangs on loading counts as one that crashes */

typedef struct LoadTrial {
    const char *file;
    int pipe; /* to the doctor: "+", or the reason why it does not load */
} LoadTrial;

static int load_in_child(void *context) {
    const LoadTrial *trial = context;
    const char *text = "+";
    if (!dlopen(trial->file, RTLD_NOW | RTLD_LOCAL)) {
        const char *why = dlerror();
        text = why ? why : "no reason reported";
    }
    return write(trial->pipe, text, strlen(text)) < 0;
}

/* Returns whether a file loads; if not, `why` has the reason, "" if the file is missing. */
static bool loads(const char *file, char *why, size_t size) {
    int ends[2];
    why[0] = '\0';
    if (pipe(ends)) return false;
    LoadTrial trial = {file, ends[1]};
    pid_t child = child_start(&(ChildOptions){.run = load_in_child, .context = &trial, .limit_seconds = LOAD_SECONDS});
    close(ends[1]);
    ssize_t length = child > 0 ? read(ends[0], why, size - 1) : 0;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    why[length > 0 ? length : 0] = '\0';
    if (length <= 0) snprintf(why, size, "it crashes or hangs when loaded");
    bool loaded = !strcmp(why, "+"), absent = strstr(why, "cannot open shared object file") && !strncmp(why, file, strlen(file));
    if (loaded || absent) why[0] = '\0';
    return loaded;
}

/* Uses the first of the library's files that loads, and reports the last earlier file that exists
 * but does not load. */
static void check_library(Doctor *doctor, const VendorLibrary *library) {
    const char *loaded = NULL, *broken = NULL;
    char why[512], reason[512] = "";
    for (int i = 0; library->files[i] && !loaded; i++) {
        if (loads(library->files[i], why, sizeof why)) loaded = library->files[i];
        else if (*why) {
            broken = library->files[i];
            memcpy(reason, why, sizeof reason);
        }
    }
    Severity bad = library->needed ? HEALTH_ERROR : HEALTH_WARNING;
    if (loaded && library->use != USE_ANY && library->needed) doctor->loadable[library->use] = true;
    if (broken)
        doctor_add(doctor, loaded ? HEALTH_WARNING : bad, "library", library->package, "%s exists but is not loadable: %s%s%s", broken,
            reason, loaded ? "; using instead: " : "", loaded ? loaded : "");
    else if (loaded) doctor_ok(doctor, "library", "%s: %s", loaded, library->purpose);
    else
        doctor_add(doctor, library->use == USE_ANY ? HEALTH_OK : bad, "library", library->package, "%s was not found (%s)",
            library->files[0], library->purpose);
}

static void check_library_path(Doctor *doctor) {
    const char *path = getenv("LD_LIBRARY_PATH");
    char folder[512];
    for (int length = 0; path && *path; path += length + (path[length] == ':')) {
        length = (int)strcspn(path, ":");
        snprintf(folder, sizeof folder, "%.*s", length, path);
        if (length == 0) continue;
        if (access(folder, R_OK | X_OK))
            doctor_warn(doctor, "library.path", "correct LD_LIBRARY_PATH, or unset it", "LD_LIBRARY_PATH contains %s, which %s", folder,
                access(folder, F_OK) ? "does not exist" : "this user cannot read");
    }
}

void doctor_check_libraries(Doctor *doctor) {
    check_library_path(doctor);
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        const VendorLibrary *library = &libraries[i];
        if (library->use == USE_ANY || doctor->of_vendor[library->use] > 0) check_library(doctor, library);
    }
}

/* -- What smelt sees ----------------------------------------------------------------------------------------------- */

static void describe_gpu(Doctor *doctor, const Device *device) {
    const DeviceInfo *info = device_info(device);
    Hardware hardware;
    char memory[32], available[32];
    int64_t left = device_available(device);
    log_format_bytes((double)info->memory, memory);
    log_format_bytes((double)left, available);
    bool known = hardware_of_device(&hardware, device), taken = left >= 0 && left < info->memory * 9 / 10;
    doctor_ok(doctor, "gpu.device", "%s (%s): %d processors, %d lanes, %s%s%s", info->name, info->target, info->processors, info->wave,
        memory, known ? ", in smelt's table: " : ", which is not in smelt's table of hardware", known ? hardware.name : "");
    doctor_warn_if(doctor, taken, "gpu.memory", "end the programs that use it: nvidia-smi or rocm-smi --showpids lists them",
        "%s of it can be allocated", available);
}

static void open_vendor(Doctor *doctor, GpuVendor vendor) {
    Error error = {0};
    Device *device = device_open(kinds[vendor], 0, &error);
    if (device) {
        describe_gpu(doctor, device);
        device_close(device);
        return;
    }
    doctor_error(doctor, "gpu.device",
        vendor == GPU_AMD ? "run rocminfo for details; sudo usermod -aG render,video $USER, then log in again"
                          : "run nvidia-smi for details; start containers with --gpus all",
        "smelt cannot use the GPU: %s", error.message);
}

/* Warns of an empty value, which hides all GPUs and is seldom intended. */
static void check_visible(Doctor *doctor) {
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"};
    for (int i = 0; i < 4; i++) {
        const char *value = getenv(names[i]);
        if (!value) continue;
        bool hides = !*value || !strcmp(value, "-1");
        doctor_warn_if(doctor, hides, "gpu.visible", "unset it", "%s=%s%s", names[i], value, hides ? " hides all GPUs" : "");
    }
}

void doctor_check_gpus(Doctor *doctor) {
    bool here = !*doctor->root; /* libraries query the real machine */
    if (doctor->gpu_count == 0) doctor_ok(doctor, "gpu", "no AMD or NVIDIA GPU on the PCI bus: smelt trains on the CPU");
    for (int vendor = 0; vendor < GPU_VENDORS; vendor++)
        if (doctor->of_vendor[vendor]) doctor_ok(doctor, "gpu", "%d of %s on the PCI bus", doctor->of_vendor[vendor], vendor_names[vendor]);
    check_visible(doctor);
    for (int i = 0; i < doctor->gpu_count; i++) {
        check_link(doctor, &doctor->gpus[i]);
        check_node(doctor, &doctor->gpus[i]);
    }
    if (doctor->of_vendor[GPU_AMD]) doctor_check_amd(doctor);
    if (doctor->of_vendor[GPU_NVIDIA]) doctor_check_nvidia(doctor);
    for (int vendor = 0; vendor < GPU_VENDORS && here; vendor++)
        if (doctor->of_vendor[vendor] && doctor->loadable[vendor]) open_vendor(doctor, (GpuVendor)vendor);
}

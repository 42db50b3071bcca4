/* Checks of AMD GPUs by the amdgpu driver's files below /sys: version, permissions, ECC counters,
 * clocks, power, temperature, xGMI. These are rocm-smi's numbers, read without its library. Owns
 * nothing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "advise/doctor.h"

static void check_amd_driver(Doctor *doctor) {
    char version[128];
    if (!doctor_exists(doctor, "/sys/module/amdgpu")) {
        doctor_error(doctor, "gpu.driver", "sudo apt-get install amdgpu-dkms (ROCm's repository) && sudo modprobe amdgpu",
            "the kernel module amdgpu is not loaded");
        return;
    }
    bool known = doctor_read(doctor, version, sizeof version, "/sys/module/amdgpu/version");
    doctor_ok(doctor, "gpu.driver", "amdgpu %s", known ? version : "of the kernel");
    SCOPED_FREE char *device = doctor_path(doctor, "/dev/kfd");
    if (access(device, F_OK))
        doctor_error(doctor, "gpu.access", "docker run --device=/dev/kfd --device=/dev/dri --group-add video",
            "/dev/kfd is missing, and AMD GPUs need it to compute");
    else if (access(device, R_OK | W_OK))
        doctor_error(doctor, "gpu.access", "sudo usermod -aG render,video $USER, then log in again", "this user cannot open /dev/kfd");
    else doctor_ok(doctor, "gpu.access", "/dev/kfd can be opened");
}

/* Without iommu=pt, DMA of every GPU goes through IOMMU tables, which costs bandwidth between GPUs
 * and may hang RCCL. */
static void check_iommu(Doctor *doctor) {
    char line[4096];
    if (!doctor_read(doctor, line, sizeof line, "/proc/cmdline")) return;
    bool well = strstr(line, "iommu=pt") || strstr(line, "iommu=off");
    doctor_warn_if(doctor, !well, "gpu.iommu", "add iommu=pt to GRUB_CMDLINE_LINUX, sudo update-grub, reboot",
        well ? "the IOMMU is off or in passthrough mode" : "the kernel was booted without iommu=pt, which AMD recommends");
}

/* -- One card ------------------------------------------------------------------------------------------------------ */

/* Sums the counts of files such as ras/umc_err_count: "ue: 0\nce: 12". Both sums are -1 if there
 * are no such files. */
static void count_errors(const Doctor *doctor, const char *card, int64_t *uncorrected, int64_t *corrected) {
    char names[64][DOCTOR_NAME], text[256];
    int count = doctor_list(doctor, names, 64, "/sys/bus/pci/devices/%s/ras", card);
    *uncorrected = *corrected = count ? 0 : -1;
    for (int i = 0; i < count; i++) {
        if (!strstr(names[i], "err_count") || !doctor_read(doctor, text, sizeof text, "/sys/bus/pci/devices/%s/ras/%s", card, names[i]))
            continue;
        const char *ue = strstr(text, "ue:"), *ce = strstr(text, "ce:");
        if (ue) *uncorrected += strtoll(ue + 3, NULL, 10);
        if (ce) *corrected += strtoll(ce + 3, NULL, 10);
    }
}

static void check_amd_errors(Doctor *doctor, const char *card) {
    int64_t uncorrected, corrected;
    count_errors(doctor, card, &uncorrected, &corrected);
    if (uncorrected < 0) doctor_ok(doctor, "gpu.ecc", "%s: ECC counters are not shown", card);
    else if (uncorrected > 0)
        doctor_error(doctor, "gpu.ecc", "take the node out of service; rocm-smi --showrasinfo all shows the block",
            "%s: %lld uncorrected and %lld corrected memory errors", card, (long long)uncorrected, (long long)corrected);
    else
        doctor_warn_if(doctor, corrected > 1000, "gpu.ecc", "check if the count grows: rocm-smi --showrasinfo all",
            "%s: no uncorrected, %lld corrected memory errors", card, (long long)corrected);
}

static void check_amd_clock(Doctor *doctor, const char *card) {
    char level[64];
    if (!doctor_read(doctor, level, sizeof level, "/sys/bus/pci/devices/%s/power_dpm_force_performance_level", card)) return;
    bool slow = strcmp(level, "auto") && strcmp(level, "high") && strcmp(level, "perf_determinism");
    doctor_warn_if(doctor, slow, "gpu.clock", "sudo rocm-smi --setperflevel auto", "%s: performance level %s", card, level);
}

/* hwmon's units are microwatts and thousandths of a degree. */
static void check_amd_power(Doctor *doctor, const char *card) {
    char names[4][DOCTOR_NAME];
    if (doctor_list(doctor, names, 4, "/sys/bus/pci/devices/%s/hwmon", card) == 0) return;
    int64_t values[4];
    static const char *const files[4] = {"power1_cap", "power1_cap_default", "power1_average", "temp2_input"};
    for (int i = 0; i < 4; i++) values[i] = doctor_read_number(doctor, -1, "/sys/bus/pci/devices/%s/hwmon/%s/%s", card, names[0], files[i]);
    bool capped = values[0] > 0 && values[1] > 0 && values[0] < values[1], hot = values[3] > 95000;
    if (values[0] > 0)
        doctor_warn_if(doctor, capped, "gpu.power", "sudo rocm-smi --resetpoweroverdrive", "%s: cap %lld W%s%s", card,
            (long long)(values[0] / 1000000), capped ? ", below the default" : "", values[2] > 0 ? "" : " (use is not shown)");
    if (values[3] > 0)
        doctor_warn_if(doctor, hot, "gpu.temperature", "check fans and airflow; a hot card lowers its clock", "%s: %lld C at the junction",
            card, (long long)(values[3] / 1000));
}

/* -- Links between GPUs -------------------------------------------------------------------------------------------- */

/* Returns the number after `key` in a file of properties, or -1 if there is none. */
static int64_t property(const char *text, const char *key) {
    const char *at = strstr(text, key);
    return at ? strtoll(at + strlen(key), NULL, 10) : -1;
}

/* Counts the xGMI links of a node: type 11 in the kernel's topology. */
static int count_xgmi_links(const Doctor *doctor, const char *node) {
    char links[64][DOCTOR_NAME], text[2048];
    int count = 0, listed = doctor_list(doctor, links, 64, "/sys/class/kfd/kfd/topology/nodes/%s/io_links", node);
    for (int i = 0; i < listed; i++)
        count += doctor_read(doctor, text, sizeof text, "/sys/class/kfd/kfd/topology/nodes/%s/io_links/%s/properties", node, links[i]) &&
                 property(text, "type ") == 11;
    return count;
}

/* Checks the nodes that are GPUs, the ones with SIMD units. */
static void check_topology(Doctor *doctor) {
    enum { NODES = 128 };
    char nodes[NODES][DOCTOR_NAME], text[2048];
    int listed = doctor_list(doctor, nodes, NODES, "/sys/class/kfd/kfd/topology/nodes"), gpus = 0, fewest = NODES, most = 0;
    for (int i = 0; i < listed; i++) {
        bool gpu = doctor_read(doctor, text, sizeof text, "/sys/class/kfd/kfd/topology/nodes/%s/properties", nodes[i]) &&
                   property(text, "simd_count ") > 0;
        if (!gpu) continue;
        int links = count_xgmi_links(doctor, nodes[i]);
        gpus++;
        fewest = links < fewest ? links : fewest;
        most = links > most ? links : most;
    }
    if (gpus < 2) return;
    bool whole = fewest >= gpus - 1;
    doctor_warn_if(doctor, !whole, "gpu.xgmi", "rocm-smi --showtopo shows which; reseat the boards, or reset the node",
        "%d GPUs with %d to %d xGMI links each%s", gpus, fewest, most,
        whole ? ": every pair is connected" : ": some pairs are not connected, and RCCL uses PCI for them");
    if (gpus == 8)
        doctor_ok(doctor, "gpu.xgmi",
            "the links share a GPU's bandwidth: collectives of all 8 GPUs are fastest; for fewer GPUs set NCCL_MIN_NCHANNELS=112");
}

void doctor_check_amd(Doctor *doctor) {
    check_amd_driver(doctor);
    check_iommu(doctor);
    for (int i = 0; i < doctor->gpu_count; i++) {
        if (doctor->gpus[i].vendor != GPU_AMD) continue;
        check_amd_errors(doctor, doctor->gpus[i].address);
        check_amd_clock(doctor, doctor->gpus[i].address);
        check_amd_power(doctor, doctor->gpus[i].address);
    }
    check_topology(doctor);
}

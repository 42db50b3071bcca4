/* Checks of NVIDIA GPUs: the driver's files, and nvidia-smi's values through NVML, which is opened
 * at run time. NVML's numbers are those of its header. Owns nothing. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "advise/doctor.h"
#include "base/library.h"

typedef void *NvmlDevice;
enum { CLOCK_SM = 1, UNCORRECTED = 1, CORRECTED = 0, SINCE_BOOT = 0, AGGREGATE = 1, MOST_LINKS = 18, SENSOR_GPU = 0 };
enum { SLOWED_BY_POWER_CAP = 0x4, SLOWED_BY_HARDWARE = 0x8, SLOWED_BY_HEAT = 0x20 | 0x40, SLOWED_BY_BRAKE = 0x80 };

#define NVML(CALL)                                                                                                                                   \
    CALL(initialize, nvmlInit_v2, (void))                                                                                                            \
    CALL(shutdown, nvmlShutdown, (void))                                                                                                             \
    CALL(driver, nvmlSystemGetDriverVersion, (char *text, unsigned size))                                                                            \
    CALL(count, nvmlDeviceGetCount_v2, (unsigned *count))                                                                                            \
    CALL(handle, nvmlDeviceGetHandleByIndex_v2, (unsigned index, NvmlDevice *device))                                                                \
    CALL(name, nvmlDeviceGetName, (NvmlDevice device, char *name, unsigned size))                                                                    \
    CALL(errors, nvmlDeviceGetTotalEccErrors, (NvmlDevice device, int type, int counter, unsigned long long *count))                                 \
    CALL(ecc_mode, nvmlDeviceGetEccMode, (NvmlDevice device, int *now, int *pending))                                                                \
    CALL(remapped, nvmlDeviceGetRemappedRows, (NvmlDevice device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed))  \
    CALL(clock, nvmlDeviceGetClockInfo, (NvmlDevice device, int type, unsigned *mhz))                                                                \
    CALL(most_clock, nvmlDeviceGetMaxClockInfo, (NvmlDevice device, int type, unsigned *mhz))                                                        \
    CALL(slowed, nvmlDeviceGetCurrentClocksThrottleReasons, (NvmlDevice device, unsigned long long *reasons))                                        \
    CALL(cap, nvmlDeviceGetPowerManagementLimit, (NvmlDevice device, unsigned *milliwatt))                                                           \
    CALL(usual_cap, nvmlDeviceGetPowerManagementDefaultLimit, (NvmlDevice device, unsigned *milliwatt))                                              \
    CALL(power, nvmlDeviceGetPowerUsage, (NvmlDevice device, unsigned *milliwatt))                                                                   \
    CALL(temperature, nvmlDeviceGetTemperature, (NvmlDevice device, int sensor, unsigned *degrees))                                                  \
    CALL(persistence, nvmlDeviceGetPersistenceMode, (NvmlDevice device, int *on))                                                                    \
    CALL(mig, nvmlDeviceGetMigMode, (NvmlDevice device, unsigned *now, unsigned *pending))                                                           \
    CALL(link, nvmlDeviceGetNvLinkState, (NvmlDevice device, unsigned link, int *active))

/* A function that an old library lacks is NULL. All return 0 on success. */
typedef struct DoctorNvml { NVML(LIBRARY_FIELD) } DoctorNvml;

#define TELLS(nvml, name, ...) has_answered((nvml)->name ? (nvml)->name(__VA_ARGS__) : -1)
static bool has_answered(int result) { return result == 0; }

static void *open_nvml(DoctorNvml *nvml) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
#define FIND(name, symbol, arguments) *(void **)&nvml->name = dlsym(library, #symbol);
    NVML(FIND)
#undef FIND
    if (TELLS(nvml, initialize) && nvml->count && nvml->handle) return library;
    dlclose(library);
    return NULL;
}

static void check_nvidia_driver(Doctor *doctor) {
    char text[512];
    bool loaded = doctor_read(doctor, text, sizeof text, "/proc/driver/nvidia/version");
    if (!loaded) {
        doctor_error(doctor, "gpu.driver", "sudo apt-get install nvidia-driver (Debian non-free) && sudo modprobe nvidia",
            "the kernel module nvidia is not loaded");
        return;
    }
    text[strcspn(text, "\n")] = '\0';
    doctor_ok(doctor, "gpu.driver", "%s", text);
    SCOPED_FREE char *device = doctor_path(doctor, "/dev/nvidiactl");
    if (access(device, R_OK | W_OK))
        doctor_error(doctor, "gpu.access", "in a container: docker run --gpus all; otherwise: sudo nvidia-modprobe -c 0 -u",
            "/dev/nvidiactl %s", access(device, F_OK) ? "is missing" : "cannot be opened by this user");
    else doctor_ok(doctor, "gpu.access", "/dev/nvidiactl can be opened");
}

/* -- One card ------------------------------------------------------------------------------------------------------ */

static void check_nvidia_errors(Doctor *doctor, const DoctorNvml *nvml, NvmlDevice device, unsigned index) {
    int now = 0, later = 0;
    unsigned long long bad = 0, ever = 0, good = 0;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    if (!TELLS(nvml, ecc_mode, device, &now, &later)) return;
    if (!now) {
        doctor_warn(doctor, "gpu.ecc", "sudo nvidia-smi -e 1, then reboot", "GPU %u: ECC is off", index);
        return;
    }
    if (!TELLS(nvml, errors, device, UNCORRECTED, SINCE_BOOT, &bad)) return;
    TELLS(nvml, errors, device, UNCORRECTED, AGGREGATE, &ever);
    TELLS(nvml, errors, device, CORRECTED, SINCE_BOOT, &good);
    bool remapped = TELLS(nvml, remapped, device, &corrected, &uncorrected, &pending, &failed);
    Severity health = bad || failed ? HEALTH_ERROR : pending || ever ? HEALTH_WARNING : HEALTH_OK;
    doctor_add(doctor, health, "gpu.ecc",
        bad || failed ? "take the GPU out of service; nvidia-smi -q -d ECC,ROW_REMAPPER shows details"
        : pending     ? "sudo nvidia-smi --gpu-reset, once it is idle"
                      : "",
        "GPU %u: memory errors since the start: %llu uncorrected (%llu ever), %llu corrected%s%s", index, bad, ever, good,
        remapped && pending ? "; a row remap is pending" : "", remapped && failed ? "; a row remap failed" : "");
}

static void check_nvidia_clock(Doctor *doctor, const DoctorNvml *nvml, NvmlDevice device, unsigned index) {
    unsigned now = 0, most = 0;
    unsigned long long reasons = 0;
    if (!TELLS(nvml, clock, device, CLOCK_SM, &now) || !TELLS(nvml, most_clock, device, CLOCK_SM, &most)) return;
    TELLS(nvml, slowed, device, &reasons);
    bool hot = reasons & SLOWED_BY_HEAT, brake = reasons & (SLOWED_BY_HARDWARE | SLOWED_BY_BRAKE);
    doctor_warn_if(doctor, hot || brake, "gpu.clock",
        hot ? "check fans and airflow" : "check the power supply: nvidia-smi -q -d PERFORMANCE", "GPU %u: %u of %u MHz%s%s", index, now,
        most,
        hot     ? ", throttled by heat"
        : brake ? ", throttled by the power supply"
                : "",
        reasons & SLOWED_BY_POWER_CAP ? " (at the power cap)" : "");
}

static void check_nvidia_power(Doctor *doctor, const DoctorNvml *nvml, NvmlDevice device, unsigned index) {
    unsigned cap = 0, usual = 0, power = 0, degrees = 0;
    if (TELLS(nvml, cap, device, &cap) && TELLS(nvml, usual_cap, device, &usual)) {
        TELLS(nvml, power, device, &power);
        doctor_warn_if(doctor, cap < usual, "gpu.power", "sudo nvidia-smi -pl with the default", "GPU %u: %u W, cap %u W (default %u W)",
            index, power / 1000, cap / 1000, usual / 1000);
    }
    if (TELLS(nvml, temperature, device, SENSOR_GPU, &degrees))
        doctor_warn_if(doctor, degrees > 85, "gpu.temperature", "check fans and airflow", "GPU %u: %u C", index, degrees);
}

static void check_modes(Doctor *doctor, const DoctorNvml *nvml, NvmlDevice device, unsigned index) {
    int on = 1;
    unsigned now = 0, later = 0;
    if (TELLS(nvml, persistence, device, &on) && !on)
        doctor_warn(doctor, "gpu.persistence", "sudo nvidia-smi -pm 1",
            "GPU %u: persistence mode is off, so every start waits for the driver", index);
    if (TELLS(nvml, mig, device, &now, &later) && now)
        doctor_warn(doctor, "gpu.mig", "sudo nvidia-smi -mig 0, to use the whole GPU",
            "GPU %u: MIG is on, so a process sees only a part of it", index);
}

static int count_nvlinks(const DoctorNvml *nvml, NvmlDevice device) {
    int links = 0;
    for (unsigned i = 0; i < MOST_LINKS; i++) {
        int active = 0;
        links += TELLS(nvml, link, device, i, &active) && active;
    }
    return links;
}

static void check_nvidia_device(Doctor *doctor, const DoctorNvml *nvml, unsigned index, unsigned count) {
    NvmlDevice device;
    char name[96] = "";
    if (nvml->handle(index, &device)) {
        doctor_error(doctor, "gpu", "run nvidia-smi for details; look for Xid in sudo dmesg", "GPU %u does not answer", index);
        return;
    }
    TELLS(nvml, name, device, name, sizeof name);
    int links = count_nvlinks(nvml, device);
    bool alone = count > 1 && links == 0;
    doctor_warn_if(doctor, alone, "gpu.nvlink",
        "check nvidia-smi nvlink --status and the fabric manager: sudo systemctl start nvidia-fabricmanager",
        "GPU %u, %s: %d NVLink%s active", index, name, links, links == 1 ? "" : "s");
    check_nvidia_errors(doctor, nvml, device, index);
    check_nvidia_clock(doctor, nvml, device, index);
    check_nvidia_power(doctor, nvml, device, index);
    check_modes(doctor, nvml, device, index);
}

void doctor_check_nvidia(Doctor *doctor) {
    DoctorNvml nvml = {0};
    unsigned count = 0;
    check_nvidia_driver(doctor);
    bool here = !*doctor->root && doctor->loadable[GPU_NVIDIA];
    void *library = here ? open_nvml(&nvml) : NULL;
    if (!library) {
        if (here)
            doctor_warn(
                doctor, "gpu.nvml", "see nvidia-smi for details", "NVML does not respond: clocks, power, ECC and NVLink are unknown");
        return;
    }
    nvml.count(&count);
    for (unsigned i = 0; i < count; i++) check_nvidia_device(doctor, &nvml, i, count);
    if (nvml.shutdown) nvml.shutdown();
    dlclose(library);
}

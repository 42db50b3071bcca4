/* The node self-test: checks that the machine computes correctly and that memory has the expected
 * speed; also checks the disk under a folder. Takes under a minute in total. Owns its buffers
 * during a check. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "advise/doctor.h"
#include "advise/gemm_check.h"
#include "advise/hardware.h"

/* -- Disk ---------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 4 << 20, BLOCKS = 64 };
static const double most_seconds = 2;

/* Returns the bytes/s of writing blocks through to the disk, until all are written or the time is
 * over; negative on failure. */
static double write_speed(const File *file, Error *error) {
    SCOPED_FREE char *block = memory_allocate(BLOCK);
    for (int64_t i = 0; i < BLOCK; i += 8) memcpy(block + i, &(uint64_t){(uint64_t)i * 0x9e3779b97f4a7c15u}, 8);
    double start = log_seconds(), bytes = 0;
    for (int64_t i = 0; i < BLOCKS && log_seconds() - start < most_seconds; i++) {
        if (!file_write_at(file, block, BLOCK, i * BLOCK, error) || !file_sync_data(file, error)) return -1;
        bytes += BLOCK;
    }
    return bytes / (log_seconds() - start);
}

static void check_room(Doctor *doctor, const char *folder) {
    char room[32];
    double bytes = file_free_bytes(folder);
    bool little = bytes < 10e9;
    if (bytes < 0) return;
    log_format_bytes(bytes, room);
    doctor_warn_if(doctor, little, "disk.room", "free disk space, or set another folder=", "%s free in %s", room, folder);
}

void doctor_check_disk(Doctor *doctor, const char *folder) {
    SCOPED(file_close) File file = {0};
    Error error;
    if (!file_open_unnamed(&file, folder, &error)) {
        doctor_warn(doctor, "disk.write", "set a folder that this user can write to: folder=DIR", "%s is not writable: %s", folder,
            strerror(errno));
    } else {
        double speed = write_speed(&file, &error);
        bool slow = speed < 100e6;
        if (speed < 0)
            doctor_error(
                doctor, "disk.write", "free disk space, or check the disk: dmesg", "writing to %s failed: %s", folder, strerror(errno));
        else
            doctor_warn_if(doctor, slow, "disk.write", "put run folders on a faster disk: a checkpoint of 10 GB takes minutes on this one",
                "%.0f MB/s when writing to %s (4 MiB at a time)", speed / 1e6, folder);
    }
    check_room(doctor, folder);
}

/* -- A GEMM -------------------------------------------------------------------------------------------------------- */

enum { SIZE = 512, SAMPLES = 4096 };

static uint16_t *random_matrix(uint64_t seed) {
    uint16_t *matrix = memory_allocate(SIZE * SIZE * sizeof *matrix);
    for (int64_t i = 0; i < SIZE * SIZE; i++) matrix[i] = bf16_from_float((float)rng_normal(seed, RNG_STREAM_BENCH, (uint64_t)i));
    return matrix;
}

/* Counts the wrong elements of C among samples spread over all tiles. A and B are in host
 * memory. */
static int count_wrong_elements(const Device *device, const Gemm *gemm, const float *c) {
    int wrong = 0;
    for (int64_t s = 0; s < SAMPLES; s++) {
        int64_t at = (int64_t)rng_permute(1, RNG_STREAM_SAMPLE, (uint64_t)s, SIZE * SIZE), row = at / SIZE;
        wrong += !gemm_element_is_right(gemm, device, row, at % SIZE, c + row * SIZE);
    }
    return wrong;
}

typedef struct Buffers {
    Device *device;
    void *a, *b, *c;
    int64_t input, output; /* bytes of a and of b; of c */
} Buffers;

static bool allocate_buffers(Device *device, Buffers *buffers, int64_t input, int64_t output, Error *error) {
    *buffers = (Buffers){.device = device, .a = device_allocate(device, input, error), .input = input, .output = output};
    buffers->b = buffers->a ? device_allocate(device, input, error) : NULL;
    buffers->c = buffers->b ? device_allocate(device, output, error) : NULL;
    return buffers->c != NULL;
}

static void release_buffers(Buffers *buffers) {
    if (buffers->a) device_free(buffers->device, buffers->a, buffers->input);
    if (buffers->b) device_free(buffers->device, buffers->b, buffers->input);
    if (buffers->c) device_free(buffers->device, buffers->c, buffers->output);
}

static void check_gemm_result(Doctor *doctor, Device *device, const char *name) {
    const int64_t input = SIZE * SIZE * sizeof(uint16_t), output = SIZE * SIZE * sizeof(float);
    SCOPED_FREE uint16_t *a = random_matrix(1), *b = random_matrix(2);
    SCOPED_FREE float *c = memory_allocate((size_t)output);
    Gemm gemm = {.transpose_b = true, .input = GEMM_BF16, .output = GEMM_F32, .lda = SIZE, .ldb = SIZE, .ldc = SIZE};
    gemm.m = gemm.n = gemm.k = SIZE;
    SCOPED(release_buffers) Buffers buffers;
    Error error = {0};
    bool done = allocate_buffers(device, &buffers, input, output, &error);
    if (done) {
        device_upload(device, buffers.a, a, input);
        device_upload(device, buffers.b, b, input);
        gemm.a = buffers.a, gemm.b = buffers.b, gemm.c = buffers.c;
        device_gemm(device, &gemm);
        device_download(device, c, buffers.c, output);
        done = device_ok(device, &error);
    }
    gemm.a = a, gemm.b = b;
    int wrong = done ? count_wrong_elements(device, &gemm, c) : 0;
    if (!done) doctor_error(doctor, "self_test.gemm", "check the driver's log: sudo dmesg", "%s: %s", name, error.message);
    else if (wrong)
        doctor_error(doctor, "self_test.gemm", "take it out of service: its results are wrong",
            "%s: %d of %d checked elements of a GEMM are wrong", name, wrong, SAMPLES);
    else doctor_ok(doctor, "self_test.gemm", "%s: a GEMM of 512 x 512 x 512 agrees with double precision in %d samples", name, SAMPLES);
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

typedef void (*Copy)(Device *device, void *to, const void *from, int64_t bytes); /* device_copy, _upload or _download */

/* Returns the bytes/s of the fastest of a few copies, each of which waits for the device. */
static double copy_rate(Device *device, Copy copy, void *to, const void *from, int64_t bytes) {
    double best = INFINITY;
    for (int i = 0; i < 8; i++) {
        double start = log_seconds();
        copy(device, to, from, bytes);
        device_synchronize(device);
        best = fmin(best, log_seconds() - start);
    }
    return (double)bytes / best;
}

static void check_device_copies(Doctor *doctor, Device *device, const char *name) {
    const int64_t bytes = device_info(device)->massively_parallel ? 1 << 30 : 64 << 20, part = bytes / 16;
    Hardware hardware;
    SCOPED(release_buffers) Buffers buffers;
    Error error = {0};
    SCOPED_FREE char *host = memory_allocate((size_t)part);
    memset(host, 1, (size_t)part);
    if (!allocate_buffers(device, &buffers, bytes, 1, &error)) {
        doctor_warn(doctor, "self_test.copy", "end other programs that use its memory", "%s: %s", name, error.message);
    } else {
        double rate = 2 * copy_rate(device, device_copy, buffers.b, buffers.a, bytes),
               expected = hardware_of_device(&hardware, device) ? hardware.bandwidth : 0;
        bool slow = expected > 0 && rate < 0.6 * expected;
        doctor_warn_if(doctor, slow, "self_test.copy", "check other users of the device, its clocks and ECC",
            "%s: copies %.1f GB/s (read plus write)%s", name, rate / 1e9, slow ? ", less than 60% of its memory bandwidth" : "");
        if (!device_info(device)->host_memory)
            doctor_ok(doctor, "self_test.host_copy", "%s: from the host %.1f GB/s, to the host %.1f GB/s (pageable memory)", name,
                copy_rate(device, device_upload, buffers.a, host, part) / 1e9,
                copy_rate(device, device_download, host, buffers.a, part) / 1e9);
        if (!device_ok(device, &error))
            doctor_error(doctor, "self_test.copy", "check the driver's log: sudo dmesg", "%s: %s", name, error.message);
    }
}

static void check_device_work(Doctor *doctor, Device *device, const char *name) {
    check_gemm_result(doctor, device, name);
    check_device_copies(doctor, device, name);
}

void doctor_check_work(Doctor *doctor) {
    static const DeviceKind kinds[GPU_VENDORS] = {DEVICE_HIP, DEVICE_CUDA};
    check_device_work(doctor, device_cpu(), "CPU");
    for (int vendor = 0; vendor < GPU_VENDORS; vendor++)
        for (int index = 0; doctor->loadable[vendor] && index < doctor->of_vendor[vendor]; index++) {
            Error error = {0};
            char name[32];
            Device *device = device_open(kinds[vendor], index, &error);
            if (!device) break; /* fewer are visible than on the bus; if none can be opened, that was reported before */
            snprintf(name, sizeof name, "GPU %d", index);
            check_device_work(doctor, device, name);
            device_close(device);
        }
}

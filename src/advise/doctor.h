/* The doctor checks what a machine offers for training, and what would harm it. Every check adds
 * lines to one list; a line is ok, a warning or an error, and names its fix. Checks only read and
 * never fail: unreadable values are reported as unknown. All files are read below `root`, so that
 * tests can supply a machine. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/scope.h"

typedef enum Severity { HEALTH_OK, HEALTH_WARNING, HEALTH_ERROR } Severity;

typedef struct DoctorLine {
    Severity health;
    const char *check; /* "memory.huge_pages": for scripts, never changes */
    char *text, *fix;  /* fix: a command or a setting; "" if there is nothing to do */
} DoctorLine;

typedef enum GpuVendor { GPU_AMD, GPU_NVIDIA, GPU_VENDORS } GpuVendor;

enum { DOCTOR_GPUS = 64, DOCTOR_NAME = 64 };
typedef struct DoctorGpu {
    char address[DOCTOR_NAME];
    GpuVendor vendor;
} DoctorGpu; /* address on the PCI bus: "0000:05:00.0" */

typedef struct Doctor {
    const char *root; /* "" for this machine */
    DoctorLine *lines;
    int count;
    DoctorGpu gpus[DOCTOR_GPUS];
    int gpu_count, of_vendor[GPU_VENDORS];
    bool loadable[GPU_VENDORS]; /* whether the vendor's runtime library loads */
} Doctor;

/* Runs all checks. They include the disk under `folder` unless it is "", and with `self_test` also
 * computing, copying and communicating. The caller frees with doctor_free. */
void doctor_examine(Doctor *doctor, const char *root, const char *folder, bool self_test);
/* Adds a line for each variable or tool of CUDA, with the ROCm equivalent. */
void doctor_list_names(Doctor *doctor);
void doctor_free(Doctor *doctor);
int doctor_worst(const Doctor *doctor, int *warnings, int *errors); /* returns a Severity */
void doctor_print(const Doctor *doctor, FILE *file);
void doctor_print_json(const Doctor *doctor, FILE *file);

/* -- The checks (doctor_*.c) --------------------------------------------------------------------------------------- */

void doctor_check_system(Doctor *doctor);
void doctor_check_memory(Doctor *doctor);
void doctor_find_gpus(Doctor *doctor); /* call it before all other checks of GPUs */
void doctor_check_libraries(Doctor *doctor);
void doctor_check_gpus(Doctor *doctor);
void doctor_check_nvidia(Doctor *doctor);
void doctor_check_amd(Doctor *doctor);
void doctor_check_network(Doctor *doctor);
void doctor_check_variables(Doctor *doctor);
void doctor_check_disk(Doctor *doctor, const char *folder);
void doctor_check_collective(Doctor *doctor); /* call it before any threads start, because it forks */
void doctor_check_work(Doctor *doctor);

/* -- For the checks (doctor.c) ------------------------------------------------------------------------------------- */

/* Adds a line; `fix` is "" if there is nothing to do. */
void doctor_add(Doctor *doctor, Severity health, const char *check, const char *fix, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
#define doctor_ok(doctor, check, ...) doctor_add(doctor, HEALTH_OK, check, "", __VA_ARGS__)
#define doctor_warn(doctor, check, fix, ...) doctor_add(doctor, HEALTH_WARNING, check, fix, __VA_ARGS__)
#define doctor_error(doctor, check, fix, ...) doctor_add(doctor, HEALTH_ERROR, check, fix, __VA_ARGS__)
#define doctor_warn_if(doctor, bad, check, fix, ...)                                                                                     \
    doctor_add(doctor, (bad) ? HEALTH_WARNING : HEALTH_OK, check, (bad) ? (fix) : "", __VA_ARGS__)

/* Returns the path below root; the caller frees it. */
char *doctor_path(const Doctor *doctor, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool doctor_exists(const Doctor *doctor, const char *path);
/* Reads the first bytes of the file below root whose path the format gives; strips trailing white
 * space and adds a NUL. Returns false, with `text` "", if the file cannot be read. */
bool doctor_read(const Doctor *doctor, char *text, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Returns the number at the start of the file, or `otherwise`. */
int64_t doctor_read_number(const Doctor *doctor, int64_t otherwise, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Lists the names in a folder in order, except those that begin with '.', at most `most`. Returns
 * their number. */
int doctor_list(const Doctor *doctor, char names[][DOCTOR_NAME], int most, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The doctor: what a machine has for training, and what would hurt. Every check adds lines to one list; a line is
 * well, a warning or an error, and says what fixes it. Checks only look, and never fail: what cannot be read is
 * reported as unknown. All files are read below `root`, so that tests can bring a machine of their own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/scope.h"

typedef enum Health { HEALTH_OK, HEALTH_WARNING, HEALTH_ERROR } Health;

typedef struct DoctorLine {
    Health health;
    const char *check; /* "memory.huge_pages": for scripts, never changes */
    char *text, *fix;  /* fix: a command or a setting; "" when there is nothing to do */
} DoctorLine;

typedef enum GpuVendor { GPU_AMD, GPU_NVIDIA, GPU_VENDORS } GpuVendor;

enum { DOCTOR_GPUS = 64, DOCTOR_NAME = 64 };
typedef struct DoctorGpu {
    char address[DOCTOR_NAME];
    GpuVendor vendor;
} DoctorGpu; /* on the PCI bus: "0000:05:00.0" */

typedef struct Doctor {
    const char *root; /* "" for this machine */
    DoctorLine *lines;
    int count;
    DoctorGpu gpus[DOCTOR_GPUS];
    int gpu_count, of_vendor[GPU_VENDORS];
    bool loadable[GPU_VENDORS]; /* the vendor's runtime library loads */
} Doctor;

/* All checks, of the disk under `folder` unless that is "", and with `self_test` also computing, copying and
 * communicating. The caller frees with doctor_free. */
void doctor_examine(Doctor *doctor, const char *root, const char *folder, bool self_test);
/* Adds a line for each variable or tool of CUDA, beside that of ROCm which serves the same purpose. */
void doctor_list_names(Doctor *doctor);
void doctor_free(Doctor *doctor);
int doctor_worst(const Doctor *doctor, int *warnings, int *errors); /* Health */
void doctor_print(const Doctor *doctor, FILE *file);
void doctor_print_json(const Doctor *doctor, FILE *file);

/* -- The checks (doctor_*.c) --------------------------------------------------------------------------------------- */

void doctor_check_system(Doctor *doctor);
void doctor_check_memory(Doctor *doctor);
void doctor_find_gpus(Doctor *doctor); /* before the others that look at GPUs */
void doctor_check_libraries(Doctor *doctor);
void doctor_check_gpus(Doctor *doctor);
void doctor_check_nvidia(Doctor *doctor);
void doctor_check_amd(Doctor *doctor);
void doctor_check_network(Doctor *doctor);
void doctor_check_variables(Doctor *doctor);
void doctor_check_disk(Doctor *doctor, const char *folder);
void doctor_check_collective(Doctor *doctor); /* before any threads are started: it forks */
void doctor_check_work(Doctor *doctor);

/* -- For the checks (doctor.c) ------------------------------------------------------------------------------------- */

/* Adds a line; `fix` is "" when there is nothing to do. */
void doctor_add(Doctor *doctor, Health health, const char *check, const char *fix, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
#define doctor_ok(doctor, check, ...) doctor_add(doctor, HEALTH_OK, check, "", __VA_ARGS__)
#define doctor_warn(doctor, check, fix, ...) doctor_add(doctor, HEALTH_WARNING, check, fix, __VA_ARGS__)
#define doctor_error(doctor, check, fix, ...) doctor_add(doctor, HEALTH_ERROR, check, fix, __VA_ARGS__)
#define doctor_warn_if(doctor, bad, check, fix, ...)                                                                                     \
    doctor_add(doctor, (bad) ? HEALTH_WARNING : HEALTH_OK, check, (bad) ? (fix) : "", __VA_ARGS__)

/* The path below root; the caller frees. */
char *doctor_path(const Doctor *doctor, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool doctor_exists(const Doctor *doctor, const char *path);
/* Of a file below root, whose path the format gives: its first bytes, with NUL behind them and white space off the
 * end; false when it cannot be read, and `text` is then "". */
bool doctor_read(const Doctor *doctor, char *text, size_t size, const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The number that it begins with, or `otherwise`. */
int64_t doctor_read_number(const Doctor *doctor, int64_t otherwise, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Names in a folder but those that begin with '.', in order, at most `most`. Returns how many. */
int doctor_list(const Doctor *doctor, char names[][DOCTOR_NAME], int most, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Training: the interface for a program that trains. */
#pragma once

#include "base/stop.h"
#include "comm/comm.h"
#include "config/config.h"
#include "device/device.h"
#include "launch/watchdog.h"
#include "run/console.h"

/* The process's services for training. */
typedef struct TrainHost {
    const Config *said; /* settings of this start (config/needs.h) */
    StopRequest *stop;  /* handled from the first step on */
    HangActions hang;
    Console *console;
    double peak_flops; /* FLOP/s, the vendor's value for the device in the precision of the run's GEMMs; NAN: unknown */
} TrainHost;

/* Checks that all ranks of `comm` have the same settings and program: ERROR_USAGE. Call it before
 * anything that depends on them. */
bool train_settings_agree(const Config *config, Comm *comm, Error *error);
/* Returns the device bytes for this rank's plan (< 0: unknown). The ranks of a node share host
 * memory, minus the memory of each process outside its plan. */
int64_t train_memory(const Comm *comm, const Device *device);
/* Trains on the device with all ranks of `comm`, which agree on the settings
 * (train_settings_agree); resumes the run folder if it has checkpoints. ERROR_PREEMPTED after a
 * request to stop, if a checkpoint was written. */
bool train(const Config *config, Device *device, Comm *comm, const TrainHost *host, Error *error);

/* Saving a checkpoint by a single rank, with nothing shared: what most tests of checkpoints need. */
#pragma once

#include <unistd.h>

#include "ckpt/ckpt.h"

static inline bool checkpoint_write(const CheckpointPlan *plan, CheckpointStats *stats, Error *error) {
    return checkpoint_finish(checkpoint_start(plan), stats, error);
}

static inline bool checkpoint_save(const char *where, int64_t step, const Interval *intervals, size_t count, json_t *metadata, int keep,
    CheckpointStats *stats, Error *error) {
    const uint64_t attempt = (uint64_t)getpid();
    return checkpoint_write(&(CheckpointPlan){where, step, intervals, count, metadata, keep, .ranks = 1, .attempt = attempt}, stats, error);
}

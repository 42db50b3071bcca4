/* TensorBoard event files: scalars and texts. One file per process in RUN/tensorboard/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct TensorboardScalar {
    const char *tag; /* "loss/train" */
    double value;    /* stored as float; NaN is fine */
} TensorboardScalar;

typedef struct Tensorboard Tensorboard;

/* Creates FOLDER, if needed, and a new file in it. TensorBoard then ignores later steps than `step`
 * in earlier files. `time` is in Unix seconds here and below. NULL on failure. */
Tensorboard *tensorboard_open(const char *folder, int64_t step, double time, Error *error);
/* Writes all scalars of a step in one record; `tensorboard` NULL: does nothing. */
bool tensorboard_write(Tensorboard *tensorboard, int64_t step, double time, const TensorboardScalar *scalars, size_t count, Error *error);
/* Writes a histogram: counts[i] values lie between first + i and first + i + 1. */
bool tensorboard_write_histogram(
    Tensorboard *tensorboard, int64_t step, double time, const char *tag, int first, const int64_t *counts, int count, Error *error);
/* Writes a text, which TensorBoard renders as Markdown. */
bool tensorboard_write_text(Tensorboard *tensorboard, int64_t step, double time, const char *tag, const char *text, Error *error);
void tensorboard_close(Tensorboard *tensorboard);

/* CRC-32C (RFC 3720, appendix B.4), which frames the records. */
uint32_t tensorboard_crc32c(const void *data, size_t bytes);

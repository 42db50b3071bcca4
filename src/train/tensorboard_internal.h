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

/* Creates FOLDER, if need be, and a new file in it. TensorBoard then forgets what earlier files tell of steps after
 * `step`. `time` is in Unix seconds here and below. NULL on failure. */
Tensorboard *tensorboard_open(const char *folder, int64_t step, double time, Error *error);
/* All scalars of a step in one record, written at once; `tensorboard` NULL: nowhere. */
bool tensorboard_write(Tensorboard *tensorboard, int64_t step, double time, const TensorboardScalar *scalars, size_t count, Error *error);
/* A text, of which TensorBoard renders Markdown. */
bool tensorboard_write_text(Tensorboard *tensorboard, int64_t step, double time, const char *tag, const char *text, Error *error);
void tensorboard_close(Tensorboard *tensorboard);

/* CRC-32C (RFC 3720, appendix B.4), which frames the records. */
uint32_t tensorboard_crc32c(const void *data, size_t bytes);

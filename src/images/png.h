/* Pictures as PNG files. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Pixels [channels, height, width], gray (1) or red, green, blue (3), from -1 (black) to 1. */
typedef struct Picture {
    int64_t channels, height, width;
    const float *pixels;
} Picture;
/* Writes pictures with equal channels as one PNG, `columns` side by side with a gray line in
 * between; each cell is as large as the largest picture. ERROR_CHECKPOINT. */
bool png_write(const char *path, const Picture *pictures, int64_t count, int64_t columns, Error *error);
bool png_is_file(const char *path);

/* GEMMs on a processor: tiles, waves, and the losses of a shape that does not fill them. */
#pragma once

#include "advise/hardware.h"
#include "advise/measured.h"

/* `count` GEMMs C [m, n] = A [m, k] B [k, n] in one launch. `rows`: the lengths in elements of the
 * matrices' rows in memory, or'd together. A bf16 row that is not a multiple of 8 elements is not a
 * multiple of 16 bytes. 0: do not check the alignment. */
typedef struct GemmShape { int64_t m, n, k, count, rows; } GemmShape;

typedef struct GemmFit {
    int tile_rows, tile_columns, splits; /* splits: of k */
    int64_t tiles, waves;
    double tile, wave; /* tile and wave quantization: used fraction of all tiles, filled fraction of all waves */
    double ramp;       /* fraction of the plateau's rate at this size */
    double alignment;  /* 1, or less if rows are not multiples of 16 bytes */
    double efficiency; /* product of all these, and of the loss from the tile's size */
} GemmFit;

double gemm_shape_flops(const GemmShape *shape);
/* Returns the best of the libraries' tiles. */
GemmFit gemm_fit(const GemmShape *shape, const Hardware *hardware);
/* Returns the seconds of a GEMM, at `rate` FLOP/s for one that fills the processor, or by
 * `measured` (may be NULL) for the nearest shape. */
double gemm_seconds(const GemmShape *shape, const Hardware *hardware, double rate, const Measured *measured);

/* GEMMs as a processor sees them: tiles, waves, and what one loses when its shape does not fill them. */
#pragma once

#include "advise/hardware.h"
#include "advise/measured.h"

/* `count` GEMMs C [m, n] = A [m, k] B [k, n] in one launch. `rows`: elements of a row in memory of the matrices,
 * or'd together: a row that is not a multiple of 8 elements in bf16 is no multiple of 16 bytes. 0 where that is of
 * no interest. */
typedef struct GemmShape { int64_t m, n, k, count, rows; } GemmShape;

typedef struct GemmFit {
    int tile_rows, tile_columns, splits; /* splits: of k */
    int64_t tiles, waves;
    double tile, wave; /* tile and wave quantisation: used part of all tiles, filled part of all waves */
    double ramp;       /* what is left of the plateau's rate at this size */
    double alignment;  /* 1, or less where rows are not multiples of 16 bytes */
    double efficiency; /* product of all, and of what the tile's size allows */
} GemmFit;

double gemm_shape_flops(const GemmShape *shape);
/* The best of the tiles that libraries have. */
GemmFit gemm_fit(const GemmShape *shape, const Hardware *hardware);
/* Seconds at `rate` FLOP/s for a GEMM that fills the processor, or as `measured` (may be NULL) has it for the
 * nearest shape. */
double gemm_seconds(const GemmShape *shape, const Hardware *hardware, double rate, const Measured *measured);

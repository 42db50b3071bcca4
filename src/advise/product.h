/* Matrix products as a processor sees them: tiles, waves, and what a product loses when its shape does not fill them. */
#pragma once

#include "advise/hardware.h"
#include "advise/measured.h"

/* `count` products C [m, n] = A [m, k] B [k, n] in one launch. `rows`: elements of a row in memory of the matrices, or'd together: a row that is not
 * a multiple of 8 elements in bf16 is no multiple of 16 bytes. 0 where that is of no interest. */
typedef struct Product { int64_t m, n, k, count, rows; } Product;

typedef struct ProductFit {
    int tile_rows, tile_columns, pieces; /* pieces: of k */
    int64_t tiles, waves;
    double tile, wave; /* parts of the work in whole tiles that is asked for, and of the waves that is filled: tile and wave quantisation */
    double ramp;       /* what is left of the plateau's rate at this size */
    double alignment;  /* 1, or less where rows are not multiples of 16 bytes */
    double efficiency; /* product of all, and of what the tile's size allows */
} ProductFit;

double product_flops(const Product *product);
/* The best of the tiles that libraries have. */
ProductFit product_fit(const Product *product, const Hardware *hardware);
/* Seconds at `rate` FLOP/s for a product that fills the processor, or as `measured` (may be NULL) has it for the nearest shape. */
double product_seconds(const Product *product, const Hardware *hardware, double rate, const Measured *measured);

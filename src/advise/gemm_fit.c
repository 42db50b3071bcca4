/* Tile and wave quantization. A GEMM is cut into tiles of C, one per processor at a time. The part
 * of a tile beyond the edge is wasted, and so is the time of processors without a tile in the last
 * wave. Like the libraries, gemm_fit chooses among tiles, by the least loss. Owns nothing.
 *
 * Smaller tiles read more for each multiplication: a tile of r x c does r c / (r + c)
 * multiplications per element read. The constants of this loss, and of the loss from rows that are
 * not multiples of 16 bytes, are assumptions in the spirit of NVIDIA's guide to matrix
 * multiplication; a measured table replaces them. */
#include "advise/gemm_fit.h"

#include "base/math.h"

static const double half_intensity = 16;  /* intensity of a tile that runs at half the rate of an infinite one */
static const double split_rate = 0.95;    /* of GEMMs split along k, whose partial sums must be added */
static const int64_t least_split = 256;   /* of k */
static const double below_plateau = 0.05; /* loss of a GEMM that just reaches the plateau */

double gemm_shape_flops(const GemmShape *shape) { return 2.0 * shape->m * shape->n * shape->k * shape->count; }

static double intensity_rate(int rows, int columns) {
    double intensity = (double)rows * columns / (rows + columns);
    return intensity / (intensity + half_intensity);
}

static double alignment_rate(const GemmShape *shape) {
    int64_t rows = shape->rows;
    return rows % 8 == 0 ? 1 : rows % 4 == 0 ? 0.9 : rows % 2 == 0 ? 0.75 : 0.5;
}

static GemmFit fit_tile(const GemmShape *shape, const Hardware *hardware, int rows, int columns, int splits) {
    int64_t down = divide_up(shape->m, rows), across = divide_up(shape->n, columns);
    int64_t processors = hardware->host_memory ? 1 : hardware->processors;
    GemmFit fit = {.tile_rows = rows, .tile_columns = columns, .splits = splits, .tiles = down * across * shape->count * splits};
    fit.waves = divide_up(fit.tiles, processors);
    fit.tile = (double)shape->m * shape->n / ((double)down * rows * across * columns);
    fit.wave = (double)fit.tiles / ((double)fit.waves * processors);
    double flops = gemm_shape_flops(shape), ramp = hardware->plateau * below_plateau / (1 - below_plateau);
    fit.ramp = flops / (flops + ramp);
    fit.alignment = alignment_rate(shape);
    double tile_rate = intensity_rate(rows, columns) / intensity_rate(hardware->tile_rows, hardware->tile_columns);
    fit.efficiency = fit.tile * fit.wave * fit.ramp * fit.alignment * tile_rate * (splits > 1 ? split_rate : 1);
    return fit;
}

GemmFit gemm_fit(const GemmShape *shape, const Hardware *hardware) {
    GemmFit best = {0};
    for (int rows = hardware->tile_rows; rows >= 32 && rows >= hardware->tile_rows / 4; rows /= 2)
        for (int columns = hardware->tile_columns; columns >= 32 && columns >= hardware->tile_columns / 4; columns /= 2)
            for (int transposed = 0; transposed < 2; transposed++) /* Splitting k distributes few tiles with long sums. */
                for (int splits = 1; splits == 1 || (splits <= 64 && shape->k / splits >= least_split); splits *= 2) {
                    GemmFit fit = fit_tile(shape, hardware, transposed ? columns : rows, transposed ? rows : columns, splits);
                    if (fit.efficiency > best.efficiency) best = fit;
                }
    return best;
}

double gemm_seconds(const GemmShape *shape, const Hardware *hardware, double rate, const Measured *measured) {
    double efficiency = gemm_fit(shape, hardware).efficiency;
    const MeasuredGemm *near = measured && shape->count == 1 ? measured_find(measured, shape->m, shape->n, shape->k) : NULL;
    if (near) {
        GemmShape known = {near->m, near->n, near->k, 1};
        rate = near->tflops * 1e12 / gemm_fit(&known, hardware).efficiency;
    }
    return gemm_shape_flops(shape) / (rate * efficiency);
}

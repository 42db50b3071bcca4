/* Tile and wave quantisation. A product is cut into tiles of C, one per processor at a time: tiles over the edge are computed in vain, and so is the
 * time of processors without a tile in the last wave. Libraries choose among tiles; so does product_fit, by the least loss. Owns nothing.
 *
 * Smaller tiles read more for each multiplication: a tile of r x c has r c / (r + c) of them per element read. The constants of that loss, and that
 * of rows which are not multiples of 16 bytes, are assumptions in the spirit of NVIDIA's guide to matrix products; a measured table replaces them. */
#include "advise/product.h"

static const double half_intensity = 16;  /* of a tile that runs at half of what an endless one would */
static const double pieces_rate = 0.95;   /* of products cut along k, whose partial sums are added */
static const int64_t least_piece = 256;   /* of k */
static const double below_plateau = 0.05; /* what a product that just reaches the plateau still loses */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

double product_flops(const Product *product) { return 2.0 * product->m * product->n * product->k * product->count; }

static double intensity_rate(int rows, int columns) {
    double intensity = (double)rows * columns / (rows + columns);
    return intensity / (intensity + half_intensity);
}

static double alignment_rate(const Product *product) {
    int64_t rows = product->rows;
    return rows % 8 == 0 ? 1 : rows % 4 == 0 ? 0.9 : rows % 2 == 0 ? 0.75 : 0.5;
}

static ProductFit fit_tile(const Product *product, const Hardware *hardware, int rows, int columns, int pieces) {
    int64_t down = divide_up(product->m, rows), across = divide_up(product->n, columns);
    int64_t processors = hardware->kind == DEVICE_CPU ? 1 : hardware->processors;
    ProductFit fit = {.tile_rows = rows, .tile_columns = columns, .pieces = pieces, .tiles = down * across * product->count * pieces};
    fit.waves = divide_up(fit.tiles, processors);
    fit.tile = (double)product->m * product->n / ((double)down * rows * across * columns);
    fit.wave = (double)fit.tiles / ((double)fit.waves * processors);
    double flops = product_flops(product), ramp = hardware->plateau * below_plateau / (1 - below_plateau);
    fit.ramp = flops / (flops + ramp);
    fit.alignment = alignment_rate(product);
    double tile_rate = intensity_rate(rows, columns) / intensity_rate(hardware->tile_rows, hardware->tile_columns);
    fit.efficiency = fit.tile * fit.wave * fit.ramp * fit.alignment * tile_rate * (pieces > 1 ? pieces_rate : 1);
    return fit;
}

/* Few tiles of long sums are shared out by cutting k. */
static ProductFit fit_pieces(const Product *product, const Hardware *hardware, int rows, int columns) {
    ProductFit best = fit_tile(product, hardware, rows, columns, 1);
    for (int pieces = 2; pieces <= 64 && product->k / pieces >= least_piece; pieces *= 2) {
        ProductFit fit = fit_tile(product, hardware, rows, columns, pieces);
        if (fit.efficiency > best.efficiency) best = fit;
    }
    return best;
}

ProductFit product_fit(const Product *product, const Hardware *hardware) {
    ProductFit best = {0};
    for (int rows = hardware->tile_rows; rows >= 32 && rows >= hardware->tile_rows / 4; rows /= 2)
        for (int columns = hardware->tile_columns; columns >= 32 && columns >= hardware->tile_columns / 4; columns /= 2) {
            ProductFit fit = fit_pieces(product, hardware, rows, columns), turned = fit_pieces(product, hardware, columns, rows);
            if (fit.efficiency > best.efficiency) best = fit;
            if (turned.efficiency > best.efficiency) best = turned;
        }
    return best;
}

double product_seconds(const Product *product, const Hardware *hardware, double rate, const Measured *measured) {
    double efficiency = product_fit(product, hardware).efficiency;
    const MeasuredProduct *near = measured && product->count == 1 ? measured_find(measured, product->m, product->n, product->k) : NULL;
    if (near) {
        Product known = {near->m, near->n, near->k, 1};
        rate = near->tflops * 1e12 / product_fit(&known, hardware).efficiency;
    }
    return product_flops(product) / (rate * efficiency);
}

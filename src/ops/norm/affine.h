/* The vectors of an affine residual add, in the order of operands and kernel arguments, on hosts
 * and GPUs. Owns no memory. */
#pragma once

typedef enum AffineVector { BLOCK_SCALE, BLOCK_BIAS, STREAM_SCALE, STREAM_BIAS, AFFINE_VECTORS } AffineVector;

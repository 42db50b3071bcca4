/* The vectors of an affine merge into the residual stream, in the order of operands and arguments of kernels, on hosts
 * and GPUs. Owns no memory. */
#pragma once

typedef enum AffineVector { BLOCK_SCALE, BLOCK_BIAS, STREAM_SCALE, STREAM_BIAS, AFFINE_VECTORS } AffineVector;

/* The four vectors of an affine merge into the residual stream, in the order in which operands and kernels hold them (op_residual_norm). */
#pragma once

enum { BLOCK_SCALE, BLOCK_BIAS, STREAM_SCALE, STREAM_BIAS };

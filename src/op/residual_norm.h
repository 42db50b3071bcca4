/* The tensors of residual_norm and residual_norm_grad in order, for their CPU and GPU forms. AFFINE: block_scale, block_bias, stream_scale, stream_bias, all
 * absent for a plain sum; then GRAD_BLOCK and GRAD_STREAM are absent too. */
#ifndef SMELT_OP_RESIDUAL_NORM_H
#define SMELT_OP_RESIDUAL_NORM_H

enum { IN_BLOCK, IN_STREAM, IN_GAIN, IN_BIAS, IN_AFFINE };
enum { OUT_STREAM, OUT_NORMED, OUT_STATISTICS };
enum { GRAD_D_STREAM, GRAD_D_NORMED, GRAD_BLOCK, GRAD_STREAM, GRAD_MERGED, GRAD_STATISTICS, GRAD_GAIN, GRAD_AFFINE };
enum { GRAD_OUT_BLOCK, GRAD_OUT_STREAM, GRAD_OUT_GAIN, GRAD_OUT_BIAS, GRAD_OUT_AFFINE };
enum { BLOCK_SCALE, BLOCK_BIAS, STREAM_SCALE, STREAM_BIAS };

#endif

/* Short causal convolutions of each channel over time, then SiLU: builder and operands. */
#pragma once

#include "graph/op.h"

enum { CONVOLUTION_MOST_TAPS = 8 };

/* y[t, c] = silu(sum over k < K of weight[c, K - 1 - k] x[t - k, c]) for x COMPUTE [R, C] and weight COMPUTE [C, 1, K];
 * rows before the document (positions INT32 [R]) or before the sequence count as zeros. R is `sequences` sequences
 * of equally many rows. In generation, `history` COMPUTE [sequences * (K - 1), C] has the rows before each sequence. A
 * history in the state arena is replaced by the last rows of (history, x); TENSOR_NONE: zeros. */
TensorId op_convolution(Graph *graph, TensorId x, TensorId weight, TensorId positions, TensorId history, int64_t sequences);

enum { CONVOLUTION_X, CONVOLUTION_WEIGHT, CONVOLUTION_POSITIONS, CONVOLUTION_HISTORY };
enum { CONVOLUTION_Y, CONVOLUTION_STATE };
/* d_y like y, the forward operands -> d_x like x; d_weight, which is added to */
enum { CONVOLUTION_GRAD_D_Y, CONVOLUTION_GRAD_X, CONVOLUTION_GRAD_WEIGHT, CONVOLUTION_GRAD_POSITIONS };
enum { CONVOLUTION_GRAD_D_X, CONVOLUTION_GRAD_D_WEIGHT };

typedef struct ConvolutionAttributes { int64_t rows, columns, length, taps; /* length: rows of a sequence */ } ConvolutionAttributes;

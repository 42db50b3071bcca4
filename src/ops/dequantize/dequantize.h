/* Converts frozen matrices from their quantized values (base/quantize.h) to the COMPUTE type, just
 * before a GEMM reads them: the builder, operands and attributes, for the rule and the kernels of
 * both back ends. */
#pragma once

#include "graph/op.h"

/* Returns `weight`, a parameter or a view of several, itself if it is not quantized; otherwise a
 * node's output of its shape. */
TensorId op_dequantize(Graph *graph, TensorId weight);

enum { DEQUANTIZE_PARTS = 4 };

typedef enum DequantizeOperand {
    DEQUANTIZE_QUANTIZED,                                        /* BYTE, for each part */
    DEQUANTIZE_SCALES = DEQUANTIZE_QUANTIZED + DEQUANTIZE_PARTS, /* BYTE, for each part */
    DEQUANTIZE_WEIGHT = 0,                                       /* COMPUTE [rows of all parts, in] or [E, out, in] */
} DequantizeOperand;

/* Elements of each part, one after another in the weight. */
typedef struct DequantizeAttributes {
    Quantization quantization;
    int parts;
    int64_t count[DEQUANTIZE_PARTS];
} DequantizeAttributes;

/* The precision of a run: the type of computation. graph/graph.h derives the types of tensors and
 * parameters. */
#pragma once

typedef enum Precision { PRECISION_BF16, PRECISION_FP32, PRECISION_FP64, PRECISION_PURE_BF16 } Precision;

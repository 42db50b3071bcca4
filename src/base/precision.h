/* The precision of a run: the type that is computed in. What follows from it for tensors and parameters: graph/graph.h. */
#pragma once

typedef enum Precision { PRECISION_BF16, PRECISION_FP32, PRECISION_FP64, PRECISION_PURE_BF16 } Precision;

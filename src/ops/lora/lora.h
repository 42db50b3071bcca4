/* lora: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* An adapter's way back up (op/lora.c): y + [u_1 b_1^T | u_2 b_2^T | ...]; y COMPUTE [R, out] in `parts` parts of so many columns, at most LORA_PARTS; u COMPUTE
 * [R, parts * rank], b [out, rank]. */
enum { LORA_PARTS = 4 };
TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const int64_t *columns, int parts);

typedef struct LoraAttributes {
    int parts;
    int64_t columns[LORA_PARTS];
} LoraAttributes; /* of y, part by part */

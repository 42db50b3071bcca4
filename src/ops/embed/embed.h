/* Token embedding: its builder and operands, for its rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* The entry of token `padding` (-1: none) gets no gradient, as padding_idx of torch.nn.Embedding has it; bias and scale
 * get theirs. The table has the entries of tokens `first` and on; other tokens give rows of zeros and no gradient. */
typedef struct EmbedSpec { int64_t padding, first; } EmbedSpec;
/* stream[r] = (table[tokens[r] - first] + bias) * scale. bias and scale are both given or both TENSOR_NONE. */
TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale, const EmbedSpec *spec);

typedef enum EmbedOperand {
    EMBED_TOKENS,     /* INT32 [R] */
    EMBED_TABLE,      /* COMPUTE [entries, D] */
    EMBED_BIAS,       /* WIDE [D], optional */
    EMBED_SCALE,      /* WIDE [D], optional */
    EMBED_STREAM = 0, /* WIDE [R, D] */
} EmbedOperand;

typedef enum EmbedGradOperand {
    EMBED_GRAD_D_STREAM, /* WIDE [R, D] */
    EMBED_GRAD_TOKENS,   /* these four like the inputs of embed */
    EMBED_GRAD_TABLE,
    EMBED_GRAD_BIAS,
    EMBED_GRAD_SCALE,
    EMBED_GRAD_D_TABLE = 0, /* gradients of the three parameters, added to; those of a frozen bias and scale are absent */
    EMBED_GRAD_D_BIAS,
    EMBED_GRAD_D_SCALE
} EmbedGradOperand;

/* Token embedding: its builder and operands, for its rule and the kernels of both back ends. */
#pragma once

#include "config/config.h"
#include "graph/op.h"

/* The entry of token `padding` (-1: none) gets no gradient, as padding_idx of torch.nn.Embedding has it; bias and scale
 * get theirs. The table has the entries of tokens `first` and on; other tokens give rows of zeros and no gradient. */
typedef struct EmbedSpec {
    int64_t padding, first;
    double factor;  /* of entries, if there are no bias and scale; 0: 1 */
    TokenRuns runs; /* runs of trained rows, counted from the table's first entry: they get the gradients of these entries */
} EmbedSpec;
static inline double embed_factor(const EmbedSpec *spec) { return spec->factor > 0 ? spec->factor : 1; }

/* stream[r] = (table[tokens[r] - first] + bias) * scale, or table[tokens[r] - first] * factor. bias and
 * scale are both given or both TENSOR_NONE. `rows` [N, D], or TENSOR_NONE, are the rows that op_put_rows writes into the table
 * at the spec's `runs`: they get the gradients of these entries. */
TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale, TensorId rows, const EmbedSpec *spec);
/* Writes trained rows [N, D] into a frozen table: entry run.first + i is row run.row + i. */
void op_put_rows(Graph *graph, TensorId rows, TensorId table, const TokenRuns *runs);

typedef enum PutRowsOperand {
    PUT_ROWS_ROWS,      /* COMPUTE [N, D] */
    PUT_ROWS_TABLE = 0, /* COMPUTE [entries, D]; only the entries of the runs are written */
} PutRowsOperand;

typedef enum EmbedOperand {
    EMBED_TOKENS,     /* INT32 [R] */
    EMBED_TABLE,      /* COMPUTE [entries, D] */
    EMBED_BIAS,       /* WIDE [D], optional */
    EMBED_SCALE,      /* WIDE [D], optional */
    EMBED_ROWS,       /* COMPUTE [N, D], optional; kernels read them from the table */
    EMBED_STREAM = 0, /* WIDE [R, D] */
} EmbedOperand;

typedef enum EmbedGradOperand {
    EMBED_GRAD_D_STREAM, /* WIDE [R, D] */
    EMBED_GRAD_TOKENS,   /* these four are like the inputs of embed */
    EMBED_GRAD_TABLE,
    EMBED_GRAD_BIAS,
    EMBED_GRAD_SCALE,
    EMBED_GRAD_D_TABLE = 0, /* gradients of the three parameters, added to; absent for a frozen bias and scale */
    EMBED_GRAD_D_BIAS,
    EMBED_GRAD_D_SCALE
} EmbedGradOperand;

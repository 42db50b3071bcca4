/* What the CPU and GPU forms of qk_norm and qk_norm_grad share: attributes, tensors in order, and where queries and keys lie in a row. */
#ifndef SMELT_OP_QK_NORM_H
#define SMELT_OP_QK_NORM_H

#include "op/norm.h"

typedef struct QkNormAttributes { NormAttributes norm[2]; Heads heads; } QkNormAttributes; /* of queries, then of keys */

enum { IN_QKV, IN_QUERY_GAIN, IN_QUERY_BIAS, IN_KEY_GAIN, IN_KEY_BIAS };
enum { OUT_QKV, OUT_QUERY_STATISTICS, OUT_KEY_STATISTICS };
enum { GRAD_D_QKV, GRAD_QKV, GRAD_QUERY_GAIN, GRAD_KEY_GAIN, GRAD_QUERY_STATISTICS, GRAD_KEY_STATISTICS };
enum { GRAD_OUT_QKV, GRAD_OUT_QUERY_GAIN, GRAD_OUT_QUERY_BIAS, GRAD_OUT_KEY_GAIN, GRAD_OUT_KEY_BIAS };

/* Columns of the queries (part 0) or keys (part 1) of a row, and the first of them. */
static inline int64_t part_columns(const Heads *heads, int part) { return (part ? heads->kv_heads : heads->heads) * heads->head_dim; }
static inline int64_t part_begin(const Heads *heads, int part) { return part * part_columns(heads, 0); }

#endif

/* Tensors put side by side and cut apart again: builders, operands and attributes of ops join and split, which are each
 * other's gradient. Text and image rows of a sample become one sequence by them, and a linear layer's columns several
 * tensors. */
#pragma once

#include "graph/op.h"

enum { JOIN_MOST_PARTS = 8 };

/* Parts [samples * rows of each, D] of one type to [samples * sum of rows, D], sample after sample. */
TensorId op_join_rows(Graph *graph, const TensorId *parts, int count, int64_t samples);
/* [R, count * D] to `count` parts [R, D]. */
void op_split_columns(Graph *graph, TensorId x, TensorId *parts, int count);
/* [samples * sum of rows, D] to parts [samples * rows[i], D]. */
void op_split_rows(Graph *graph, TensorId x, const int64_t *rows, TensorId *parts, int count, int64_t samples);

/* `groups` runs of elements after one another, each of which has the run of every part in order. Parts of join that are
 * absent are zeros. */
typedef struct JoinAttributes {
    bool wide;
    int count;
    int64_t groups, elements[JOIN_MOST_PARTS]; /* elements: of a part in a group */
    int64_t rows[JOIN_MOST_PARTS];             /* of the part */
} JoinAttributes;

enum { JOIN_PART };
enum { JOIN_WHOLE };
enum { SPLIT_WHOLE };
enum { SPLIT_PART };

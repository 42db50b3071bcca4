/* Joining tensors side by side and splitting them again: builders, operands and attributes of ops
 * join and split, which are each other's gradient. They join text and image rows of a sample into
 * one sequence, and split a linear layer's columns into several tensors. */
#pragma once

#include "graph/op.h"

enum { JOIN_MOST_PARTS = 8 };

/* Joins parts [samples * rows of each, D] of one type to [samples * sum of rows, D], sample after
 * sample. */
TensorId op_join_rows(Graph *graph, const TensorId *parts, int count, int64_t samples);
/* Joins parts [R, columns of each] of one type to [R, sum of columns]. */
TensorId op_join_columns(Graph *graph, const TensorId *parts, int count);
/* Splits [R, heads * sum of columns] into `count` parts [R, heads * columns[i]], which each head has in turn. */
void op_split_heads(Graph *graph, TensorId x, int64_t heads, const int64_t *columns, TensorId *parts, int count);
/* Splits [R, sum of columns] into `count` parts [R, columns[i]]. */
void op_split_columns(Graph *graph, TensorId x, const int64_t *columns, TensorId *parts, int count);
/* Splits [samples * sum of rows, D] into parts [samples * rows[i], D]. */
void op_split_rows(Graph *graph, TensorId x, const int64_t *rows, TensorId *parts, int count, int64_t samples);

/* `groups` consecutive runs of elements, each of which has the run of every part in order. Absent
 * parts of join are zeros. */
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

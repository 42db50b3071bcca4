/* The largest elements of rows, for drawing the likeliest token where the logits are: builder, operands and attributes, for the
 * rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* A row is looked at in so many parts, each of which gives its largest element and the column of that: whoever reads the result
 * goes through the parts of all ranks. */
enum { LARGEST_PARTS = 32 };
typedef enum LargestValue { LARGEST_ELEMENT, LARGEST_COLUMN, LARGEST_VALUES } LargestValue;

/* x WIDE [R, C], of which the ranks of `axes` have the columns that cut_share gives them of `columns`, to WIDE [R, ranks *
 * LARGEST_PARTS * LARGEST_VALUES] on all. Columns count over all ranks; those from limit[0] on (INT32 [1]) are left out. Of equal
 * elements the first counts. A part without columns has -infinity, and one with an element that is not finite NaN. No gradient. */
TensorId op_largest(Graph *graph, TensorId x, TensorId limit, int64_t columns, MeshAxes axes);

typedef enum LargestOperand {
    LARGEST_X,     /* WIDE [R, C] */
    LARGEST_LIMIT, /* INT32 [1] */
    LARGEST_Y = 0, /* WIDE [R, LARGEST_PARTS * LARGEST_VALUES] */
} LargestOperand;

typedef struct LargestAttributes { int64_t first; /* of x's columns, among all ranks' */ } LargestAttributes;

/* The largest elements of rows, for choosing the likeliest token on the device that has the logits:
 * builder, operands and attributes, for the rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* A row is searched in LARGEST_PARTS parts, each of which gives its largest element and that
 * element's column. The reader of the result compares the parts of all ranks. */
enum { LARGEST_PARTS = 32 };
typedef enum LargestValue { LARGEST_ELEMENT, LARGEST_COLUMN, LARGEST_VALUES } LargestValue;

/* Computes from x WIDE [R, C], the rank's cut_share of `columns` columns over `axes`, WIDE [R,
 * ranks * LARGEST_PARTS * LARGEST_VALUES] on all ranks. Columns count over all ranks. Columns from
 * limit[0] on (INT32 [1]) are ignored. If elements are equal, the first one counts. A part without
 * columns gives -infinity; a part with an element that is not finite gives NaN. No gradient. */
TensorId op_largest(Graph *graph, TensorId x, TensorId limit, int64_t columns, MeshAxes axes);

typedef enum LargestOperand {
    LARGEST_X,     /* WIDE [R, C] */
    LARGEST_LIMIT, /* INT32 [1] */
    LARGEST_Y = 0, /* WIDE [R, LARGEST_PARTS * LARGEST_VALUES] */
} LargestOperand;

typedef struct LargestAttributes { int64_t first; /* of x's columns, among all ranks' columns */ } LargestAttributes;

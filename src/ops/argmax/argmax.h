/* The largest elements of rows, for choosing the likeliest token on the device that has the logits:
 * builder, operands and attributes, for the rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* A row is searched in ARGMAX_PARTS parts, each of which gives its largest element and that
 * element's column. The reader of the result compares the parts of all ranks. */
enum { ARGMAX_PARTS = 32 };
typedef enum ArgmaxValue { ARGMAX_ELEMENT, ARGMAX_COLUMN, ARGMAX_VALUES } ArgmaxValue;

/* Computes from x WIDE [R, C], the rank's cut_share of `columns` columns over `axes`, WIDE [R,
 * ranks * ARGMAX_PARTS * ARGMAX_VALUES] on all ranks. Columns count over all ranks. Columns from
 * limit[0] on (INT32 [1]) are ignored. If elements are equal, the first one counts. A part without
 * columns gives -infinity; a part with an element that is not finite gives NaN. No gradient. */
TensorId op_argmax(Graph *graph, TensorId x, TensorId limit, int64_t columns, MeshAxes axes);

typedef enum ArgmaxOperand {
    ARGMAX_X,     /* WIDE [R, C] */
    ARGMAX_LIMIT, /* INT32 [1] */
    ARGMAX_Y = 0, /* WIDE [R, ARGMAX_PARTS * ARGMAX_VALUES] */
} ArgmaxOperand;

typedef struct ArgmaxAttributes { int64_t first; /* of x's columns, among all ranks' columns */ } ArgmaxAttributes;

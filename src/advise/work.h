/* The work of a program on a processor: which GEMM, attention or memory operation a node is, and how long it takes
 * at the processor's rates. */
#pragma once

#include "graph/graph.h"
#include "advise/gemm_fit.h"

typedef enum WorkClass {
    WORK_GEMM,
    WORK_HEAD,
    WORK_EXPERTS,
    WORK_EXPERT_WEIGHTS,
    WORK_ATTENTION,
    WORK_ATTENTION_GRADIENT,
    WORK_CONVOLUTION,
    WORK_MEMORY,
    WORK_CLASSES
} WorkClass;
const char *work_class_name(WorkClass class);

typedef struct Work {
    WorkClass class;
    double flops, bytes; /* as the operation's cost rule says */
    bool fp8;            /* of WORK_GEMM and WORK_EXPERTS: operands are of fp8 */
    GemmShape gemm;      /* of the GEMM classes; of the head the forward one of its three */
    int64_t length;      /* of a sequence, for attention */
    double padding;      /* of attention: columns of its tiles for each column of a head */
} Work;

/* Whether a node is a collective and nothing else: it takes no time of computing. */
bool work_is_collective(const Graph *graph, const Node *node);
Work work_of_node(const Graph *graph, const Node *node);
/* Seconds: of computing or of memory traffic, whichever is longer. `measured` may be NULL. */
double work_seconds(const Work *work, const Hardware *hardware, const Measured *measured);

/* Columns of the tiles that hold a head in smelt's attention kernels: the next of 32, 64, 128 and 256. */
int64_t work_head_width(int64_t head_dim);

/* Seconds of one run of a program, by class; nodes that run once are left out, and those that run once a step are in `once`
 * alone. */
typedef struct WorkTimes { double seconds[WORK_CLASSES], backward, total, once; } WorkTimes; /* backward: of `total` */
WorkTimes work_times(const Graph *graph, const Hardware *hardware, const Measured *measured);

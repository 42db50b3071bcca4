/* The work of a program on a processor: the GEMM, attention or memory operation of a node, and its
 * time at the processor's rates. */
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
    double flops, bytes; /* from the operation's cost rule */
    bool fp8;            /* for WORK_GEMM and WORK_EXPERTS: the operands are FP8 */
    GemmShape gemm;      /* for the GEMM classes; for the head, the forward one of its three GEMMs */
    int64_t length;      /* length of a sequence, for attention */
    double padding;      /* for attention: columns of its tiles per column of a head */
} Work;

/* Returns whether a node is only a collective, which takes no compute time. */
bool work_is_collective(const Graph *graph, const Node *node);
Work work_of_node(const Graph *graph, const Node *node);
/* Returns the seconds of compute or of memory traffic, whichever is longer. `measured` may be
 * NULL. */
double work_seconds(const Work *work, const Hardware *hardware, const Measured *measured);

/* Returns the width of the tiles that hold a head in smelt's attention kernels: the next of 32, 64,
 * 128 and 256. */
int64_t work_head_width(int64_t head_dim);

/* Seconds of one run of a program, by class. Nodes that run once are omitted; nodes that run once
 * per step are in `once` alone. */
typedef struct WorkTimes { double seconds[WORK_CLASSES], backward, total, once; } WorkTimes; /* backward: of `total` */
WorkTimes work_times(const Graph *graph, const Hardware *hardware, const Measured *measured);

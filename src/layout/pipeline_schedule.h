/* The schedule of a pipeline: when each stage runs each part of the program, and when data travels
 * between stages.
 *
 * A model of L layers is cut into stages x chunks pieces; piece p is chunk p / stages of stage p %
 * stages. A microbatch passes through the pieces forward and then backward. Each stage runs its
 * parts in a fixed order:
 *   1F1B     (arXiv 2006.15704) one forward pass per later stage, then one backward and one forward
 *                 pass in turn. One chunk.
 *   interleaved   (arXiv 2104.04473) the same with several chunks a stage, in groups of as many microbatches as stages: the
 *                 bubble is `chunks` times shorter, and there are more transfers. Microbatches
 *                 missing from the last group
 *                 are left out.
 *   zero-bubble   (arXiv 2401.10241, ZB-H1) 1F1B whose backward passes are split: gradients of activations, which the stage
 *                 before waits for, and gradients of weights, which fill the gaps. One chunk.
 *   forward       evaluation: forward passes only.
 * The bubble is the waiting time of the busiest stage. If all stages have equal costs F, B (the
 * whole backward pass) and W (its weight gradients), the bubble is (stages - 1) times (F + B), (F +
 * B) / chunks, F + B - 2W and F / chunks.
 *
 * All stages are simulated together from the costs of their parts. Transfers are ordered globally
 * by the simulated times at which their receivers need them. Every stage issues its transfers in
 * this order, whatever the real times are. So no two stages ever wait for each other: the first
 * unfinished transfer in the order waits for compute alone.
 *
 * A slot holds the data that a microbatch keeps between the parts of a chunk. The microbatch takes
 * it when its input arrives and leaves it after its last part. The functions here are pure. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

typedef struct PipelineShape {
    PipelineKind kind;
    int stages, chunks, microbatches; /* all at least 1; chunks: per stage */
} PipelineShape;

static inline int pipeline_pieces(const PipelineShape *shape) { return shape->stages * shape->chunks; }

/* The costs of a piece's parts, in any unit of time. A kind without separate parts for weight
 * gradients counts them in PART_BACKWARD. */
typedef struct PieceCost {
    double part[PART_KINDS];
    double flops; /* of all parts, for reports: schedules use the time */
} PieceCost;

typedef enum PipelineAct { PIPELINE_RUN, PIPELINE_SEND, PIPELINE_RECEIVE } PipelineAct;

/* The next action of a stage. For a transfer, PART_FORWARD is the residual stream on its way to the
 * next piece, and PART_BACKWARD its gradient on its way to the previous piece. */
typedef struct PipelineAction {
    PipelineAct act;
    PartKind part;
    int chunk, microbatch, slot; /* of this stage */
    int peer;                    /* stage at the other end of a transfer */
    bool last;                   /* of a part: its last run of the step */
    double start, end;           /* of a run, simulated */
} PipelineAction;

typedef struct PipelineStage {
    PipelineAction *actions; /* NULL: not listed */
    int count;
    int slots;   /* numbered from 0 */
    double busy; /* sum of its parts */
} PipelineStage;

typedef struct PipelineSchedule {
    PipelineShape shape;
    PipelineStage *stages;
    double length;  /* from the first start to the last end */
    double bubble;  /* length minus the busiest stage's work */
    double formula; /* the formula above, applied to the mean costs */
} PipelineSchedule;

/* Makes a schedule. costs: by piece. `only`: the stage whose actions and slots are listed; all
 * stages are simulated. The caller frees it with pipeline_schedule_free. */
enum { PIPELINE_ALL_STAGES = -1, PIPELINE_NO_STAGE = -2 };
PipelineSchedule *pipeline_schedule_create(const PipelineShape *shape, const PieceCost *costs, int only);
void pipeline_schedule_free(PipelineSchedule *schedule);
/* Returns the slots of one stage, at least `least`. */
int pipeline_slots(const PipelineShape *shape, const PieceCost *costs, int stage, int least);
/* Returns the number of forward passes that a stage runs before its first backward pass. */
int64_t pipeline_warmup(const PipelineShape *shape, int stage);
/* "1f1b", as in layout.pp_schedule. */
const char *pipeline_kind_name(PipelineKind kind);

/* The costs of layers, and the extra costs of the first and the last piece (embedding, head). */
typedef struct LayerCosts {
    const double *layers;
    int count;
    double first, last;
} LayerCosts;
/* Cuts layers into `pieces` consecutive pieces so that the most expensive piece costs the least;
 * stage s has pieces s, s + stages and so on. If a stage has several pieces, borders are then moved
 * so that the most expensive stage costs the least. Piece p gets layers [begin[p], begin[p + 1]),
 * at least one layer; only the last of several pieces may be empty. pieces <= count. */
void pipeline_cut_layers(const LayerCosts *costs, int stages, int pieces, int *begin);

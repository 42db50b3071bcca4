/* The schedule of a pipeline: which part of the program each stage runs when, and when what travels between stages.
 *
 * A model of L layers is cut in stages x chunks pieces; piece p is chunk p / stages of stage p % stages. A microbatch
 * goes through the pieces forward and back again. Each stage runs its parts in a fixed order:
 *   1F1B          (arXiv 2006.15704) as many forward passes as there are stages behind, then one backward and one forward
 *                 pass in turn. One chunk.
 *   interleaved   (arXiv 2104.04473) the same with several chunks a stage, in groups of as many microbatches as stages: the
 *                 bubble is `chunks` times shorter, and there are more transfers. Microbatches that the last group lacks
 *                 are left out.
 *   zero-bubble   (arXiv 2401.10241, ZB-H1) 1F1B whose backward passes are split: gradients of activations, which the stage
 *                 before waits for, and gradients of weights, which fill the gaps. One chunk.
 *   forward       evaluation: forward passes only.
 * The bubble is the time in which the busiest stage waits. With equal costs F, B (all of the backward pass) and W (its
 * gradients of weights) of a stage it is (stages - 1) times (F + B), (F + B) / chunks, F + B - 2W and F / chunks.
 *
 * All stages are simulated together from the costs of their parts. The simulated time at which a transfer's receiver
 * needs it gives one global order of transfers, and every stage issues its own in this order, whatever the real times
 * are. That is why no two stages ever wait for each other: the first transfer of the order that has not ended waits
 * for computing alone.
 *
 * What a microbatch keeps between the parts of a chunk lies in a slot, which it takes when its input arrives and leaves
 * after its last part. Pure functions of their arguments. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

typedef struct PipelineShape {
    PipelineKind kind;
    int stages, chunks, microbatches; /* all at least 1; chunks: of a stage */
} PipelineShape;

static inline int pipeline_pieces(const PipelineShape *shape) { return shape->stages * shape->chunks; }

/* What the parts of a piece cost, in any unit of time; a kind without parts of its own for gradients of weights has them in
 * PART_BACKWARD. */
typedef struct PieceCost {
    double part[PART_KINDS];
    double flops; /* of all parts, for who asks: schedules go by time */
} PieceCost;

typedef enum PipelineAct { PIPELINE_RUN, PIPELINE_SEND, PIPELINE_RECEIVE } PipelineAct;

/* What a stage does next. PART_FORWARD of a transfer is the residual stream, on its way to the next piece; PART_BACKWARD
 * its gradient, on its way to the piece before. */
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
    double formula; /* what the formula above says of the mean costs */
} PipelineSchedule;

/* costs: by piece. `only`: the stage whose actions and slots are listed; all stages are simulated. The caller frees it with
 * pipeline_schedule_free. */
enum { PIPELINE_ALL_STAGES = -1, PIPELINE_NO_STAGE = -2 };
PipelineSchedule *pipeline_schedule_create(const PipelineShape *shape, const PieceCost *costs, int only);
void pipeline_schedule_free(PipelineSchedule *schedule);
/* The slots of one stage, or `least` where fewer suffice. */
int pipeline_slots(const PipelineShape *shape, const PieceCost *costs, int stage, int least);
/* Passes of chunks that a stage has forward before the first one backward. */
int64_t pipeline_warmup(const PipelineShape *shape, int stage);
/* "1f1b", as in layout.pp_schedule. */
const char *pipeline_kind_name(PipelineKind kind);

/* What layers cost, and what the first and the last piece have beside theirs (embedding, head). */
typedef struct LayerCosts {
    const double *layers;
    int count;
    double first, last;
} LayerCosts;
/* Cuts layers into `pieces` consecutive ones, of which stage s has s, s + stages and so on, so that the dearest piece costs the
 * least; where a stage has several, border by border, so that the dearest stage does. Piece p gets layers
 * [begin[p], begin[p + 1]), at least one, but for the last of several, which may have none. pieces <= count. */
void pipeline_cut_layers(const LayerCosts *costs, int stages, int pieces, int *begin);

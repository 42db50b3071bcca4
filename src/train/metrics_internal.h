/* What a run records, in two forms at once: JSON lines in RUN/metrics.jsonl and TensorBoard events in RUN/tensorboard/.
 * Readers: `smelt report`, scripts. console.h has what people read. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "train/reference.h"

typedef struct StepMetrics {
    int64_t step, steps; /* from 1 */
    double loss;         /* cross-entropy per token, nats; of images the squared error of a velocity's value; or per pair of answers */
    double auxiliary;    /* load-balancing loss, 0 if none */
    double gradient_norm, lr;
    double seconds;        /* of the step */
    int64_t tokens;        /* in this step */
    int64_t images;        /* in this step; 0: it is of text */
    int64_t tokens_seen;   /* in all steps so far */
    double flops;          /* of the step, without recomputation */
    double peak_flops;     /* per second, the vendor's figure for the hardware; 0 or NAN: unknown */
    double measured_flops; /* per second, best GEMM measured on this machine; 0: unknown */
    int64_t memory;        /* bytes in use */
    double waiting;        /* seconds for which rank 0 waited for collectives; NaN: one rank */
    Rewards rewards;       /* of a loss over pairs of answers */
    bool skipped;          /* the update was skipped (NaN) */
    double seconds_left;   /* estimate for the rest of the run */
} StepMetrics;

/* What follows from a step; NaN: unknown. */
typedef struct StepRates { double tokens_per_second, images_per_second, tflops, peak_percent, best_percent; } StepRates;
StepRates metrics_rates(const StepMetrics *step);

typedef struct Metrics Metrics;

/* The newest step of a checkpoint that the records of a run know; 0: none. */
bool metrics_last_checkpoint(const char *run, int64_t *step, Error *error);
/* Before metrics_open of a fork: gives `run` the records of `base` until after `step`, in place of any that it has. */
bool metrics_fork(const char *base, const char *run, int64_t step, Error *error);
/* Opens RUN's files to continue after `step` (0: a new run). Records of later steps, left by a run that died after
 * its last checkpoint, are removed, so that each step is reported once; with `evaluates` also the evaluation and
 * the sample of `step`, which are about to be made again. */
Metrics *metrics_open(const char *run, int64_t step, bool evaluates, bool tensorboard, Error *error);
/* The step of the last checkpoint among the records that the file had when it was opened; -1: none. */
int64_t metrics_saved(const Metrics *metrics);
void metrics_close(Metrics *metrics);
/* Makes the records so far survive a power cut. */
bool metrics_sync(const Metrics *metrics, Error *error);
bool metrics_step(Metrics *metrics, const StepMetrics *step, Error *error);
/* Part of the tokens that each expert of each layer got in this step: load[layer * experts + expert]. */
bool metrics_load(Metrics *metrics, int64_t step, int64_t layers, int64_t experts, const double *load, Error *error);
typedef struct EvaluationMetrics {
    int64_t step, tokens, length; /* targets, and tokens of the sequences that they were in */
    double loss, bits_per_byte, seconds;
    Rewards rewards;
} EvaluationMetrics;
bool metrics_evaluation(Metrics *metrics, const EvaluationMetrics *evaluation, Error *error);
/* `prompt` and `text` are UTF-8. */
bool metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, int64_t tokens, double seconds, Error *error);
/* {"kind": "phase", "step", ...}: the phase of a mixture that begins after this step; the rest is that of `details`, of
 * phases_describe. */
bool metrics_phase(Metrics *metrics, int64_t step, json_t *details, Error *error);
/* {"kind": "mixture", "step", "phases": [...]}: what was read of each phase so far, of phases_read, which is taken. */
bool metrics_mixture(Metrics *metrics, int64_t step, json_t *phases, Error *error);
/* `seconds` NaN and `bytes` -1: unknown. */
bool metrics_checkpoint(Metrics *metrics, int64_t step, double seconds, int64_t bytes, Error *error);
/* {"kind": "start", "step", "parameters", "active_parameters", "machine", "precision", "threads", ...} once per
 * process: all from the third on are those of the object `details`. */
bool metrics_start(Metrics *metrics, int64_t step, json_t *details, Error *error);

/* The records of a run, in two forms: JSON lines in RUN/metrics.jsonl and TensorBoard events in
 * RUN/tensorboard/. Readers: `smelt report`, scripts. console.h has the output for people. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "launch/sensors.h"
#include "run/reference.h"

/* A step of reinforcement learning, and the rollout whose samples it trained. Shares are of 1. */
typedef struct PolicyMetrics {
    int64_t samples; /* of the rollout; 0: another kind of step */
    double reward, deviation, equal_groups, length, cut, failed;
    const json_t *rewards;   /* mean of each reward and of programs' metrics, by name; NULL: none; borrowed */
    double turns;            /* of a sample; NaN: no environment */
    double entropy;          /* nats per drawn token, estimated by them */
    double kl;               /* to the reference, per token (k3); NaN: none */
    double clipped;          /* share of the tokens whose gradient the bounds removed */
    double value, explained; /* mean value of a token; share of the returns' variance that values explain; NaN: none, like the next */
    double value_loss, value_clipped;    /* per token, before the coefficient; share of the tokens whose value loss is bounded */
    double mismatch, different;          /* k3 between drawing and training, and the share of tokens that differ at all */
    bool first;                          /* the step is the rollout's first: both are then of rounding, else also of training */
    int64_t drawn;                       /* tokens; 0 and no times if it is not the first */
    double generating, judging, scoring; /* seconds */
} PolicyMetrics;

typedef struct StepMetrics {
    int64_t step, steps; /* from 1 */
    double loss;         /* nats per token (cross-entropy) or per preference pair; for images the squared error per velocity value */
    double auxiliary;    /* load-balancing loss, 0 if none */
    double mtp_loss;     /* cross-entropy of multi-token prediction per token, before its weight; NaN: none */
    double gradient_norm, lr;
    double seconds;        /* of the step */
    int64_t tokens;        /* in this step */
    int64_t images;        /* in this step; 0: a text run */
    int64_t tokens_seen;   /* in all steps so far */
    double flops;          /* of the step, without recomputation */
    double peak_flops;     /* per second, the vendor's value for the hardware; 0 or NAN: unknown */
    double measured_flops; /* per second, of the best GEMM measured on this machine; 0: unknown */
    int64_t memory;        /* bytes in use */
    double waiting;        /* seconds that rank 0 waited for collectives; NaN: one rank */
    Rewards rewards;       /* of a pair loss */
    PolicyMetrics policy;  /* of reinforcement learning */
    bool skipped;          /* the update was skipped (NaN) */
    double seconds_left;   /* estimate for the rest of the run */
} StepMetrics;

/* Rates of a step; NaN: unknown. */
typedef struct StepRates { double tokens_per_second, images_per_second, tflops, peak_percent, best_percent; } StepRates;
StepRates metrics_rates(const StepMetrics *step);

typedef struct Metrics Metrics;

/* Finds the newest step with a checkpoint in the records of a run; 0: none. */
bool metrics_last_checkpoint(const char *run, int64_t *step, Error *error);
/* For a fork, before metrics_open: replaces the records of `run` by the records of `base` up to
 * `step`. */
bool metrics_fork(const char *base, const char *run, int64_t step, Error *error);
/* Opens RUN's files to continue after `step` (0: a new run). Later records, of a run that died
 * after its last checkpoint, are removed, so that each step is reported once. With `evaluates` the
 * evaluation and the sample of `step` are removed too, because they will be made again. */
Metrics *metrics_open(const char *run, int64_t step, bool evaluates, bool tensorboard, Error *error);
/* Returns the step of the latest checkpoint among the records that the file had when it was opened;
 * -1: none. */
int64_t metrics_saved(const Metrics *metrics);
void metrics_close(Metrics *metrics);
/* Syncs the records so far, so that they survive a power cut. */
bool metrics_sync(const Metrics *metrics, Error *error);
bool metrics_step(Metrics *metrics, const StepMetrics *step, Error *error);
/* Records the fraction of the tokens that each expert of each layer received in this step:
 * load[layer * experts + expert]. */
bool metrics_load(Metrics *metrics, int64_t step, int64_t layers, int64_t experts, const double *load, Error *error);
/* Bin i counts the tensors with norms from 2^(NORM_FIRST + i) up to 2^(NORM_FIRST + i + 1). The first and the last bin also count
 * smaller and larger norms. Norms that are 0 or not finite are not counted. */
enum { NORM_BINS = 48, NORM_FIRST = -28 };
typedef struct NormHistogram { int64_t tensors[NORM_BINS]; } NormHistogram;
void norm_histogram_add(NormHistogram *histogram, double norm);
/* Norms of gradients or weights: [layers + 1], of each layer and last of all other parameters; and a histogram of tensors. */
typedef struct LayerNorms {
    const double *norms;
    const NormHistogram *histogram; /* NULL: unknown */
} LayerNorms;
bool metrics_layers(Metrics *metrics, int64_t step, int64_t layers, LayerNorms gradients, LayerNorms weights, Error *error);
/* Records {"kind": "system", "step", "cpu_percent", ..., "gpu_watts": [...], "joules"}: the machine of rank 0. */
bool metrics_system(Metrics *metrics, int64_t step, const SensorReading *reading, Error *error);
typedef struct EvaluationMetrics {
    int64_t step, tokens, length; /* targets; tokens per sequence */
    double loss, bits_per_byte, seconds;
    Rewards rewards;
    double reward; /* mean reward of reinforcement learning, over `tokens` prompts; NaN: another kind of run */
} EvaluationMetrics;
bool metrics_evaluation(Metrics *metrics, const EvaluationMetrics *evaluation, Error *error);
/* `prompt` and `text` are UTF-8. */
bool metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, int64_t tokens, double seconds, Error *error);
/* Records {"kind": "phase", "step", ...}: the phase of a mixture that begins after this step; the
 * other members come from `details` (phases_describe). */
bool metrics_phase(Metrics *metrics, int64_t step, json_t *details, Error *error);
/* Records {"kind": "mixture", "step", "phases": [...]}: the amounts read in each phase so far, from
 * phases_read. Takes ownership of `phases`. */
bool metrics_mixture(Metrics *metrics, int64_t step, json_t *phases, Error *error);
/* `seconds` NaN and `bytes` -1: unknown. */
bool metrics_checkpoint(Metrics *metrics, int64_t step, double seconds, int64_t bytes, Error *error);
/* Records {"kind": "start", "step", "parameters", "active_parameters", "machine", "precision",
 * "threads", ...} once per process; all members from the third on come from the object
 * `details`. */
bool metrics_start(Metrics *metrics, int64_t step, json_t *details, Error *error);
/* Records {"kind": "event", "step", "event", "message"}: an event of events.h, or a "warning" of the log. */
bool metrics_event(Metrics *metrics, int64_t step, const char *event, const char *message, Error *error);
/* Records {"kind": "end", "step", "state", "code", "message"}: how a process ended. `state` is the name of a RunStatus,
 * `code` the exit code. */
bool metrics_end(Metrics *metrics, int64_t step, const char *state, int code, const char *message, Error *error);

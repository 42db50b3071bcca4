/* The contents of RUN/metrics.jsonl in bounded memory, whatever its size: curves are thinned while
 * they are read. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/math.h"
#include "base/scope.h"
#include "report/step_record_internal.h"

enum {
    HISTORY_POINTS = 1000,    /* of a curve, at most */
    HISTORY_MARKS = 400,      /* evaluations, checkpoints, ... to keep, evenly spread */
    HISTORY_STARTS = 100,     /* newest process starts */
    HISTORY_NOTICES = 100,    /* newest alarms */
    HISTORY_COLUMNS = 120,    /* of a heat-map over time */
    HISTORY_CELLS = 1 << 14,  /* layers x experts of heat-maps; larger models get none */
    HISTORY_SAMPLE = 1 << 14, /* steps for a median */
    HISTORY_EXCERPTS = 16,    /* texts of evaluations to keep, evenly spread */
    HISTORY_RECENT = 50,      /* steps of the final mean loss */
    HISTORY_PHASES = 64,      /* of a mixture */
    HISTORY_BINS = 64,        /* of a histogram */
    HISTORY_TAIL = 64,        /* bytes that identify a file */
};

typedef struct StepSpan {
    double sum, low, high;
    int64_t count; /* finite values; 0: none */
} StepSpan;

/* A number of consecutive steps. */
typedef struct Point {
    int64_t first, last;
    double tokens;  /* of the run up to `last`; NaN: unknown */
    double time;    /* Unix seconds at the end of `last`; NaN: unknown */
    int64_t offset; /* in the file, of the record of `first` */
    StepSpan series[SERIES_COUNT];
} Point;

/* An evaluation (loss, bits per byte), a checkpoint (bytes, seconds), a skipped or a broken step. NaN: unknown. */
typedef struct Mark {
    int64_t step;
    double value, other;
} Mark;

/* Maps any number of records to an array of a fixed size. Each of its `count` items represents
 * `stride` of the `seen` records. When it is full, neighbors are joined and `stride` doubles. */
typedef struct Thinning {
    size_t count;
    int64_t seen, stride;
} Thinning;

typedef struct Marks {
    Mark items[HISTORY_MARKS], last; /* an item is the first of its records; `last` is the newest record */
    Thinning thin;
} Marks;

typedef struct Sample {
    double items[HISTORY_SAMPLE]; /* each is the first record of its item */
    Thinning thin;
} Sample;

/* The model's output for a prompt at an evaluation; texts are cut at a character boundary. */
typedef struct Excerpt {
    int64_t step;
    char prompt[200], text[1000];
} Excerpt;

typedef struct Excerpts {
    Excerpt items[HISTORY_EXCERPTS], last; /* as in Marks */
    Thinning thin;
} Excerpts;

/* An alarm of on_event, such as a loss spike. */
typedef struct Notice {
    int64_t step;
    char text[240];
} Notice;

/* Norms of tensors at the newest step that has them (NormHistogram in run/metrics.h): bin i begins at 2^(first + i). */
typedef struct NormBins {
    int64_t step; /* 0: none */
    int first, count;
    int64_t tensors[HISTORY_BINS];
} NormBins;

typedef struct RunStart {
    int64_t step, last_step; /* the step after which it began; its last step */
    double time;             /* Unix seconds; NaN: unknown */
    double parameters, active_parameters;
    char machine[160];
    char details[400]; /* "precision bf16, threads 16" */
} RunStart;

/* Expert load of consecutive records: sums of the fractions of the tokens that each expert
 * received. */
typedef struct LoadColumn {
    int64_t first, cells; /* first: step of the first record. cells: layers x experts */
    float sums[];         /* [layers, experts] */
} LoadColumn;

typedef struct LoadMap {
    int64_t layers, experts; /* 0: no record */
    char *columns;           /* use load_column: HISTORY_COLUMNS columns, then the newest record */
    Thinning thin;           /* for the columns */
    int64_t last_step;
    bool too_large;
} LoadMap;

/* The position of the next read. A replaced, truncated or rewritten file has another number, fewer
 * bytes, or other bytes before the offset. */
typedef struct RecordPlace {
    dev_t device;
    ino_t number;
    int64_t offset;          /* after the last complete line that was read */
    char tail[HISTORY_TAIL]; /* the bytes before the offset */
} RecordPlace;

typedef struct History {
    char *path;
    RecordPlace place;
    int64_t lines, ignored; /* total lines; lines that are not records or are out of order */
    int64_t from;           /* earlier steps are left out */
    int64_t first_step, last_step, steps;
    double first_time; /* of the first step; NaN: unknown */
    Point points[HISTORY_POINTS];
    Thinning thin;                                   /* for the points */
    Marks evaluations, checkpoints, skipped, broken; /* broken: the loss was not finite */
    Mark best;                                       /* best evaluation */
    Excerpts excerpts;
    Sample speed, tflops, peak_percent, best_percent;
    double last_loss, recent[HISTORY_RECENT];
    int64_t losses;                    /* number of finite losses */
    double step_seconds, memory_bytes; /* the sum of step times; the maximum */
    double tokens;
    RunStart starts[HISTORY_STARTS];
    int64_t start_count; /* total; number i is starts[i % HISTORY_STARTS] */
    Notice notices[HISTORY_NOTICES];
    int64_t notice_count;                          /* as start_count */
    int64_t restarts;                              /* starts that made a step, minus one; -1: none */
    double evaluated_tokens;                       /* by the last evaluation; NaN: unknown */
    double machine[SERIES_COUNT - SERIES_MACHINE]; /* the newest sample; NaN: unknown */
    double joules;                                 /* of the GPUs, of all samples; NaN: unknown */
    int64_t sampled_gpus;                          /* of the newest sample */
    NormBins gradient_bins, weight_bins;
    LoadMap load, norms; /* norms: row 0 has gradients, row 1 weights; an "expert" is a layer */
    json_t *phases;      /* records of the phases of a mixture, in order; NULL: none */
    json_t *mixture;     /* read amounts by source, from the newest record; NULL: unknown */
} History;

/* Makes an empty history of a file, which may not exist. */
History *history_new(const char *path);
/* Reads the records since the last call, or everything if the file was replaced; sets `*changed` if
 * the history changed. ERROR_USAGE if the file does not exist; the history is then unchanged. */
bool history_update(History *history, bool *changed, Error *error);
void history_free(History *history);

static inline size_t load_column_bytes(const LoadMap *map) {
    return (size_t)round_up((int64_t)sizeof(LoadColumn) + map->layers * map->experts * (int64_t)sizeof(float), _Alignof(LoadColumn));
}
static inline LoadColumn *load_column(const LoadMap *map, size_t i) { return (LoadColumn *)(map->columns + i * load_column_bytes(map)); }

/* Reads the steps from `from` to `to` again, since a long run keeps only means of many steps. NULL: the file cannot be read. Release it by
 * history_free. */
History *history_range(const History *history, int64_t from, int64_t to);
/* Copies the points of the curves to `points`, merged so that there are at most `most`; returns their count. */
size_t history_thinned(const History *history, size_t most, Point *points);
double sample_median(const Sample *sample); /* NaN if empty */
double history_recent_loss(const History *history, int64_t *steps);
static inline double span_mean(const StepSpan *span) { return span->count ? span->sum / (double)span->count : __builtin_nan(""); }

/* The contents of RUN/metrics.jsonl, in bounded memory whatever its size: curves are thinned while they are read. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/math.h"
#include "base/scope.h"

enum {
    HISTORY_POINTS = 1000,    /* of a curve, at most */
    HISTORY_MARKS = 400,      /* evaluations, checkpoints, ... that are kept, evenly spread */
    HISTORY_STARTS = 100,     /* newest process starts */
    HISTORY_COLUMNS = 120,    /* of a heat-map in time */
    HISTORY_CELLS = 1 << 14,  /* layers x experts of heat-maps; larger models have none */
    HISTORY_SAMPLE = 1 << 14, /* steps that a median is taken of */
    HISTORY_EXCERPTS = 16,    /* texts of evaluations, likewise */
    HISTORY_RECENT = 50,      /* steps of the mean loss at the end */
    HISTORY_PHASES = 64,      /* of a mixture */
    HISTORY_TAIL = 64,        /* bytes by which a file is known again */
};

typedef enum SeriesName { SERIES_LOSS, SERIES_NORM, SERIES_LR, SERIES_SPEED, SERIES_MARGIN, SERIES_ACCURACY, SERIES_COUNT } SeriesName;

typedef struct Span {
    double sum, low, high;
    int64_t count; /* finite values; 0: none */
} Span;

/* Consecutive steps. */
typedef struct Point {
    int64_t first, last;
    double tokens; /* of the run up to `last`; NaN: unknown */
    Span series[SERIES_COUNT];
} Point;

/* An evaluation (loss, bits per byte), a checkpoint (bytes, seconds), a skipped or a broken step. NaN: unknown. */
typedef struct Mark {
    int64_t step;
    double value, other;
} Mark;

/* How an array of a fixed size stands for any number of records: each of its `count` items for `stride` of the `seen`
 * ones. When it is full, neighbours become one item, and `stride` doubles. */
typedef struct Thinning {
    size_t count;
    int64_t seen, stride;
} Thinning;

typedef struct Marks {
    Mark items[HISTORY_MARKS], last; /* an item is the first of its records; `last` is always kept */
    Thinning thin;
} Marks;

typedef struct Sample {
    double items[HISTORY_SAMPLE]; /* the first of each item's records */
    Thinning thin;
} Sample;

/* What the model wrote after a prompt at an evaluation; texts are cut at a whole character. */
typedef struct Excerpt {
    int64_t step;
    char prompt[200], text[1000];
} Excerpt;

typedef struct Excerpts {
    Excerpt items[HISTORY_EXCERPTS], last; /* as in Marks */
    Thinning thin;
} Excerpts;

typedef struct Start {
    int64_t step, last_step; /* after which it began; the last that it did */
    double time;             /* Unix seconds; NaN: unknown */
    double parameters, active_parameters;
    char machine[160];
    char details[400]; /* "precision bf16, threads 16" */
} Start;

/* Expert load of consecutive records: the sums of the parts of the tokens that went to each expert. */
typedef struct LoadColumn {
    int64_t first, cells; /* the first step; layers x experts */
    float sums[];         /* [layers, experts] */
} LoadColumn;

typedef struct LoadMap {
    int64_t layers, experts; /* 0: none was recorded */
    char *columns;           /* found by load_column: HISTORY_COLUMNS, then the newest record */
    Thinning thin;           /* of columns */
    int64_t last_step;
    bool too_large;
} LoadMap;

/* Where reading goes on. A file that was replaced, cut or written anew has another number, fewer bytes, or other bytes
 * before the offset. */
typedef struct Place {
    dev_t device;
    ino_t number;
    int64_t offset;          /* after the last whole line that was read */
    char tail[HISTORY_TAIL]; /* the bytes before it */
} Place;

typedef struct History {
    char *path;
    Place place;
    int64_t lines, ignored; /* lines in all; those that are no records, or out of order */
    int64_t first_step, last_step, steps;
    Point points[HISTORY_POINTS];
    Thinning thin;                                   /* of points */
    Marks evaluations, checkpoints, skipped, broken; /* broken: the loss was not finite */
    Mark best;                                       /* evaluation */
    Excerpts excerpts;
    Sample speed, tflops, peak_percent, best_percent;
    double last_loss, recent[HISTORY_RECENT];
    int64_t losses;                    /* finite ones */
    double step_seconds, memory_bytes; /* their sum; most */
    double tokens;
    Start starts[HISTORY_STARTS];
    int64_t start_count;     /* of all; number i is starts[i % HISTORY_STARTS] */
    int64_t restarts;        /* of the starts of which a step is kept, all but the first; -1: there is none */
    double evaluated_tokens; /* by the last evaluation; NaN: unknown */
    LoadMap load;
    json_t *phases;  /* the records of the phases of a mixture, in their order; NULL: there are none */
    json_t *mixture; /* what was read of each, by the newest record (train/metrics_internal.h); NULL: unknown */
} History;

/* An empty one, of a file that may be absent. */
History *history_new(const char *path);
/* Reads what was written since the last call, or everything when the file is another one now; `*changed` becomes true
 * when the history is another one then. ERROR_USAGE when there is no such file; the history stays as it was. */
bool history_update(History *history, bool *changed, Error *error);
void history_free(History *history);

static inline size_t load_column_bytes(const LoadMap *map) {
    return (size_t)round_up((int64_t)sizeof(LoadColumn) + map->layers * map->experts * (int64_t)sizeof(float), _Alignof(LoadColumn));
}
static inline LoadColumn *load_column(const LoadMap *map, size_t i) { return (LoadColumn *)(map->columns + i * load_column_bytes(map)); }

double sample_median(const Sample *sample); /* NaN when empty */
double history_recent_loss(const History *history, int64_t *steps);
static inline double span_mean(const Span *span) { return span->count ? span->sum / (double)span->count : __builtin_nan(""); }

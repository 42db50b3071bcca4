/* The numbers of a record of a step, from a line of metrics.jsonl. A run of a million steps has a million of these lines, so that a scanner reads
 * those that smelt writes without building objects. Called by history.c. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The series are those of which the history keeps curves. */
typedef enum StepField {
    SERIES_LOSS,
    SERIES_NORM,
    SERIES_LR,
    SERIES_SPEED,
    SERIES_MARGIN,
    SERIES_ACCURACY,
    SERIES_REWARD,
    SERIES_LENGTH,
    SERIES_ENTROPY,
    SERIES_MISMATCH,
    /* The load of rank 0's machine: from records of the kind "system", not "step". */
    SERIES_CPU,
    SERIES_MACHINE_MEMORY,
    SERIES_DISK,
    SERIES_NETWORK,
    SERIES_GPU,
    SERIES_WATTS,
    SERIES_CELSIUS,
    SERIES_COUNT,
    SERIES_MACHINE = SERIES_CPU, /* the first series of the machine */
    STEP_NUMBER = SERIES_COUNT,
    STEP_MILLISECONDS,
    STEP_TOKENS_SEEN,
    STEP_TFLOPS,
    STEP_PEAK_PERCENT,
    STEP_BEST_PERCENT,
    STEP_MEMORY,
    STEP_TIME,
    STEP_FIELDS
} StepField;

typedef struct StepRecord {
    double numbers[STEP_FIELDS]; /* NaN: the record has none */
    bool skipped;
} StepRecord;

extern const char *const step_fields[STEP_FIELDS]; /* names in records */

/* Reads any record. */
StepRecord step_record_of(const json_t *record);
/* Reads a line of `length` bytes and a NUL. Returns false unless it is a JSON object of kind "step" without nested values and escapes, whose numbers
 * have up to 15 digits or so: the caller then asks jansson. */
bool step_record_scan(const char *line, size_t length, StepRecord *record);

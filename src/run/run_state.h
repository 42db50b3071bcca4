/* What a run is doing, for everything that shows it: the page, the terminal, `smelt show`, the index of a folder and
 * the exports. It is found from the lease of its store, the end of RUN/log.txt and the end of RUN/metrics.jsonl, so it
 * costs the same for a run of any length. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

/* STATUS(NAME, "name"). */
#define RUN_STATUS_LIST(STATUS)                                                                \
    STATUS(PLANNED, "planned") /* the folder has settings and no record */                     \
    STATUS(WAITING, "waiting") /* a process prepares data, loads weights or waits for ranks */ \
    STATUS(TRAINING, "training")                                                               \
    STATUS(SILENT, "silent") /* it trained, and gives no sign any more */                      \
    STATUS(PAUSED, "paused") /* by a signal, with a checkpoint */                              \
    STATUS(STOPPED, "stopped") /* by a setting, or by an error that a person can remove */     \
    STATUS(FAILED, "failed") /* by NaN, a lost rank, a device, a kill */                       \
    STATUS(FINISHED, "finished")
#define RUN_STATUS_ENUM(NAME, name) RUN_IS_##NAME,
typedef enum RunStatus { RUN_STATUS_LIST(RUN_STATUS_ENUM) RUN_STATUS_COUNT } RunStatus;

enum { RUN_STATE_TEXT = 800 /* bytes of a state in words */ };

/* The kinds of records of which the newest is kept. */
typedef enum RunRecord { RUN_RECORD_STEP, RUN_RECORD_EVALUATION, RUN_RECORD_CHECKPOINT, RUN_RECORD_SYSTEM, RUN_RECORD_COUNT } RunRecord;

typedef struct RunState {
    RunStatus status;
    int64_t step, steps;               /* done, and of the run; 0: none, unknown */
    double sign;                       /* Unix seconds of the newest sign of life or record; NaN: none */
    double seconds_left;               /* NaN: unknown, or it does not train */
    double step_seconds;               /* mean of the latest steps, with the pauses between them; NaN: unknown */
    char message[600];                 /* why it ended, or what it waits for; "": nothing is known */
    json_t *records[RUN_RECORD_COUNT]; /* owned; NULL: none among the last records */
} RunState;

/* Reads the state of the run in a folder at `now` (Unix seconds). `config` is its configuration; NULL: unknown. */
RunState run_state_read(const char *run, const Config *config, double now);
void run_state_free(RunState *state);
/* Returns the seconds for which a healthy run may report nothing, from its longest step and its last evaluation. */
double run_patience(double longest_step, double evaluation);
const char *run_status_name(RunStatus status);
/* Returns the last whole lines of a file in at most `bytes` bytes; NULL: none. *whole: it is the whole file. The caller frees. */
char *run_read_tail(const char *path, int64_t bytes, bool *whole);
/* Returns the status of a process that ends with this code after `step` of `steps`. `supervised`: smelt launch starts it
 * again if that may help. */
RunStatus run_status_of_end(int code, int64_t step, int64_t steps, bool supervised);
/* Writes "training, step 30 of 60, 4m10s left", or "failed after step 30 of 60: MESSAGE". */
void run_state_describe(const RunState *state, double now, char text[RUN_STATE_TEXT]);

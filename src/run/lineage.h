/* RUN/run.json: the identity and the history of a run:
 *
 *     {"format": 1, "identity": {...}, "fork": {"run": "5f0c...", "folder": "/runs/a", "step": 150},
 *      "history": [{"time": "2026-01-31T12:00:00Z", "step": 0, "version": "0.9",
 *                                      "machine": "...", "changes": ["optimizer.lr: 0.001 -> 0.0005"]}]}
 *
 * `format` is RUN_FORMAT (run.h). `identity` is the identity of the last start
 * (identity.h). `history` has an entry for each start: the step that it continued from,
 * and the settings that have changed since that checkpoint. `fork` names the origin of a forked
 * run: its number, its folder at that time, and the step. */
#pragma once

#include <jansson.h>

#include "config/config.h"
#include "run/phases.h"
#include "run/run.h"

enum { RUN_NUMBER_DIGITS = 32 };

/* The checkpoint that a start continues from. */
typedef struct Origin {
    int64_t step;                       /* of the checkpoint; 0: none */
    Position at;                        /* its position in the data of this run */
    bool forked;                        /* it belongs to the run that config->fork names: this run has none yet */
    char base[RUN_NUMBER_DIGITS + 1];   /* number of that run */
    char number[RUN_NUMBER_DIGITS + 1]; /* of this run */
} Origin;
/* Affects the last bits of results besides the configuration. If it differs from the last start's,
 * a warning says that bits may differ from here on. */
typedef struct Computer {
    int ranks;
    const char *device; /* op_describe */
} Computer;
/* Called by the process that holds the run's lock. A run keeps the number of its folder; a new one,
 * also a fork, gets a random number. Settings that a run keeps must already agree with the
 * checkpoint here, before its data is searched: ERROR_USAGE. */
bool lineage_find(const Config *config, Origin *origin, Error *error);
/* Returns where the checkpoint of `origin` is (ckpt.h); the caller frees it. NULL on failure. */
char *lineage_store(const Config *config, const Origin *origin, Error *error);
/* Called by the same process with the identity of this start. Compares it with the checkpoint's
 * identity, and copies entries that only the first start could compute. Appends the allowed changes
 * to the array `changes`; other differences are ERROR_USAGE. */
bool lineage_compare(const Config *config, const Phases *phases, const Origin *origin, json_t *identity, json_t *changes, Error *error);
/* Reports the changes; writes RUN/run.json, and config.yaml if it differs. Called by the same
 * process after everything is loaded. A start that fails thus leaves the run unchanged. */
bool lineage_write(
    const Config *config, const Origin *origin, const Computer *computer, const json_t *identity, json_t *changes, Error *error);
/* Checks that the newest checkpoint of `run`, with this metadata, was saved by the run of this
 * folder, with the model in its config.yaml, `config`: ERROR_CHECKPOINT. */
bool lineage_check_weights(const char *run, const json_t *metadata, const Config *config, Error *error);
/* Checks that `base` has the weights on which the adapters of `run` were trained: ERROR_CHECKPOINT. `base`
 * is the run's init=, or a copy of it in another place. */
bool lineage_check_base(const char *run, const Config *config, const char *base, Error *error);
/* Returns the content of RUN/run.json; NULL on failure: FINDING_ABSENT, FINDING_DAMAGED, or
 * unreadable now. The caller owns the reference. */
json_t *lineage_read(const char *run, Error *error);
/* Like lineage_read, but returns {} if there is no record, and retries a failed read for 12
 * seconds. */
json_t *lineage_record(const char *run, Error *error);
/* Checks, by the records of a run without checkpoints in its store, that it never saved one. ERROR_CHECKPOINT names
 * the newest step that it saved, and the store. */
bool lineage_check_never_saved(const char *run, const Config *config, Error *error);
/* Returns the run's number in an identity, 32 hexadecimal digits; "" if there is none. */
const char *lineage_number(const json_t *identity);
/* Returns the metadata of the newest checkpoint at `where` with an intact manifest, and its step;
 * {} and 0 if there is no checkpoint. Damaged checkpoints are skipped; an unreadable one is an
 * error. The caller owns the reference. NULL on failure. */
json_t *lineage_newest(const char *where, int64_t *step, Error *error);
/* Gives `config`, from the config.yaml of a run, the saved settings of this checkpoint that decide
 * results. If a path has moved since, the last start's path is used. */
json_t *lineage_at(const RunPoint *point, const Config *config, int64_t *step, Error *error);
/* Gives `config`, from the config.yaml of a run, the saved settings of this checkpoint that decide
 * results. A moved path is the one of the last start. */
bool lineage_settings(const RunPoint *point, Config *config, OptionStrings *strings, Error *error);
/* Gives `config`, the settings of a run of a mixture, the settings of the phase in which this
 * checkpoint was last trained. */
bool lineage_phase(const RunPoint *point, Config *config, OptionStrings *strings, Error *error);
/* Returns the position of a checkpoint in the data of a run with these settings. If resume.accept
 * allows another sequence length, the place in the data is kept. */
Position lineage_position(const json_t *metadata, const Config *config);
/* Returns the validation loss of a checkpoint, measured at its own step, from its metadata; NAN:
 * none. */
double lineage_loss(const json_t *metadata);

/* RUN/run.json: which run this is, and how it came about:
 *
 *     {"format": 1, "identity": {...}, "fork": {"run": "5f0c...", "folder": "/runs/a", "step": 150},
 *      "history": [{"time": "2026-01-31T12:00:00Z", "step": 0, "version": "0.9",
 *                                      "machine": "...", "changes": ["optimizer.lr: 0.001 -> 0.0005"]}]}
 *
 * `format` is RUN_FORMAT (run.h). `identity` is that of the last start (identity_internal.h). `history` has an entry for each start: the step that it
 * continued from, and the settings that have changed since that checkpoint. `fork` says of a run that was forked from
 * which run, its folder then, and after which step. */
#pragma once

#include <jansson.h>

#include "config/config.h"
#include "train/phases.h"
#include "train/run.h"

enum { RUN_NUMBER_DIGITS = 32 };

/* What a start continues. */
typedef struct Origin {
    int64_t step;                       /* of the checkpoint; 0: there is none */
    Position at;                        /* where that is in the data of this run */
    bool forked;                        /* it is of the run that config->fork names: this run has none yet */
    char base[RUN_NUMBER_DIGITS + 1];   /* the number of that run */
    char number[RUN_NUMBER_DIGITS + 1]; /* of the run */
} Origin;
/* What decides the last bits of results beside the configuration. Where it is another one than at the start before, a
 * warning says that bits may differ from here on. */
typedef struct Computer {
    int ranks;
    const char *device; /* op_describe */
} Computer;
/* By the process that holds the run's lock. A run keeps the number of its folder; a new one, also a fork, gets a random
 * number. What a run keeps must be as in the checkpoint already here, before its data is looked for: ERROR_USAGE. */
bool lineage_find(const Config *config, Origin *origin, Error *error);
/* Where the checkpoint of `origin` is (ckpt.h); the caller frees. NULL on failure. */
char *lineage_store(const Config *config, const Origin *origin, Error *error);
/* By the same process, with the identity of this start: compares it with that of the checkpoint, and takes over from
 * there what only the first start could read. Appends what has changed and may to the array `changes`; other
 * differences are ERROR_USAGE. */
bool lineage_compare(const Config *config, const Phases *phases, const Origin *origin, json_t *identity, json_t *changes, Error *error);
/* Says what has changed, and writes RUN/run.json, and config.yaml where it says something else: by the same process, once
 * everything is loaded, so that a start that fails leaves the run as it was. */
bool lineage_write(
    const Config *config, const Origin *origin, const Computer *computer, const json_t *identity, json_t *changes, Error *error);
/* Whether the newest checkpoint of `run`, whose metadata this is, was saved by the run of this folder, with the model
 * that its config.yaml, `config`, gives: ERROR_CHECKPOINT. */
bool lineage_check_weights(const char *run, const json_t *metadata, const Config *config, Error *error);
/* Whether init= of a run with adapters still holds the weights beside which they trained: ERROR_CHECKPOINT. */
bool lineage_check_base(const char *run, const Config *config, Error *error);
/* The content of RUN/run.json; NULL on failure: FINDING_ABSENT, FINDING_DAMAGED, or it cannot be read now. The caller owns
 * the reference. */
json_t *lineage_read(const char *run, Error *error);
/* The same, but {} if there is none, and a read that fails is tried again for 12 seconds. */
json_t *lineage_record(const char *run, Error *error);
/* Checks, by the records of a run without checkpoints in its store, that it never saved one. ERROR_CHECKPOINT names
 * the newest step that it saved, and the store. */
bool lineage_check_never_saved(const char *run, const Config *config, Error *error);
/* The run's number in an identity, 32 hexadecimal digits; "" when it has none. */
const char *lineage_number(const json_t *identity);
/* The metadata of the newest checkpoint at `where` that has an intact manifest, and its step; {} and 0 when there is no
 * checkpoint. Damaged ones are passed over, and one that cannot be read now is not. The caller owns the reference. NULL
 * on failure. */
json_t *lineage_newest(const char *where, int64_t *step, Error *error);
/* The metadata of a checkpoint of a run configured so, and its step. Of RUN_NEWEST lineage_newest; RUN_BEST: of those
 * that were evaluated over the newest one's targets, that with the lowest loss, the oldest of equals. ERROR_CHECKPOINT
 * when there is none such, naming those that there are, or when one cannot be read now. */
json_t *lineage_at(const RunPoint *point, const Config *config, int64_t *step, Error *error);
/* Gives `config`, read from the config.yaml of a run, the settings that decide results as this checkpoint of it was saved
 * with them; what has moved since is where the last start found it. */
bool lineage_settings(const RunPoint *point, Config *config, OptionStrings *strings, Error *error);
/* Gives `config`, the settings of a run of a mixture, those of the phase in which this checkpoint was trained last. */
bool lineage_phase(const RunPoint *point, Config *config, OptionStrings *strings, Error *error);
/* The position of a checkpoint in the data of a run with these settings. If resume.accept allows another sequence
 * length, the place in the data is kept. */
Position lineage_position(const json_t *metadata, const Config *config);
/* The validation loss of a checkpoint, measured at its own step, by its metadata; NAN: none was. */
double lineage_loss(const json_t *metadata);

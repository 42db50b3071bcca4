/* The phases of a run: the settings, steps, samples and tokens of each. They come from the mixture
 * that data.train names (data/mixture.h); a run without one has a single phase with its own
 * settings.
 *
 * A phase other than the last has ceil(tokens / length) samples, whatever its batches are, so that
 * batches never affect the order of the data; its last step takes the rest. The last phase
 * continues until the run ends. The run's last step has batch.last tokens: a run with a length in
 * tokens or epochs reads no sequence beyond it. */
#pragma once

#include <jansson.h>

#include "config/config.h"
#include "data/mixture.h"

typedef struct Phase {
    Config config;        /* the run's, with the changes of the phase */
    const char *name;     /* in the mixture; NULL: no mixture */
    int64_t first_sample; /* index in the run */
    int64_t first_token;  /* tokens of the earlier phases */
    int64_t samples;      /* INT64_MAX: the last phase, without end */
} Phase;

typedef struct Phases {
    Mixture mixture; /* without a mixture: one source, data.train */
    Phase *items;    /* [count], at least 1 */
    int count;
    int64_t steps; /* steps of the run, once known */
    int64_t last;  /* tokens of its last step; 0: a full step */
} Phases;

/* A position in a run, between two steps. */
typedef struct Position {
    int64_t step, samples; /* completed steps, and the samples that they took: the position in the data */
    int64_t phase_step;    /* steps completed when the phase of the next sample began */
} Position;

/* Resolves the settings of a run that depend on its mixture; call it before config_check. If every
 * phase sets data.length, batch.sequences or batch.tokens, the setting takes the value of the first
 * phase, and another given value causes a warning. model.context, if 0, becomes the longest length.
 * If the length of the run is not given, tokens becomes the tokens of all phases. Does nothing
 * without a mixture. ERROR_USAGE. */
bool phases_resolve(Config *config, Error *error);
/* Makes the phases from settings that passed phases_resolve and config_check. ERROR_USAGE names the
 * phase with a fault. */
bool phases_open(Phases *phases, const Config *config, Error *error);
void phases_close(Phases *phases); /* a zeroed one is fine */
/* Counts the steps of a run of `tokens` tokens, in whole sequences, that has reached the position
 * `from`. *last: the tokens of its last step. ERROR_USAGE: the steps are too many to count, or the
 * tokens are fewer than the run has read. */
bool phases_count_steps(const Phases *phases, double tokens, Position from, int64_t *steps, int64_t *last, Error *error);
/* Returns the steps for the tokens of all phases; 0: the last phase has no end. */
int64_t phases_own_steps(const Phases *phases);
/* Gives every phase the length of the run, the steps and batch.last of `config`; then runs
 * config_check. ERROR_USAGE. */
bool phases_set_length(Phases *phases, const Config *config, Error *error);
/* Makes the order of the samples of a run of `steps` steps; `inputs` [sources]: the tokens of each
 * source that can be inputs. ERROR_USAGE if a source would be read more often than the mixture
 * allows. The caller frees it. */
Order *phases_order(const Phases *phases, const int64_t *inputs, int64_t steps, Error *error);

/* -- What a phase is, in words and numbers -------------------------------------------------------------------------- */

/* Returns the properties of a phase that affect the order of the data and the program: "pretrain,
 * 8000000 tokens, in sequences of 4096, RoPE base 10000: web 90, code 10". The caller frees it. */
char *phases_text(const Phases *phases, int phase);
/* Returns how the phase is computed: "16384 tokens, 4 sequences at once, from 4096 over 30 steps".
 * The caller frees it. */
char *phases_batch_text(const Phases *phases, int phase);
/* Describes the phase of the next sample, in a run of `steps` steps: "1 pretrain: steps 1 to 30,
 * 8.0k tokens in sequences of 32, 256 a step, RoPE base 10000: web 90%, code 10%". The caller frees
 * it. */
char *phases_line(const Phases *phases, const Position *position, int64_t steps);
/* Returns the shares that a begun phase has read in the first `samples` samples of the run: "web
 * 90.01% of 90%, code 9.99% of 10%". The caller frees it. */
char *phases_read_text(const Phases *phases, const Order *order, int phase, int64_t samples);
/* Returns the same for a record, for the first `begun` phases: [{"phase": "pretrain", "sources":
 * {"web": {"asked": 0.9, "read": 0.9001, "samples": 1234}}}, ...]. The caller owns the
 * reference. */
json_t *phases_read(const Phases *phases, const Order *order, int begun, int64_t samples);
/* Returns the tokens of the longest sequence in which any phase reads a source: its order consists
 * of such pieces (data/mixture.h). */
int64_t phases_piece(const Phases *phases, int source);
/* Describes a phase that begins, for its record (metrics.h). The caller owns the
 * reference. */
json_t *phases_describe(const Phases *phases, int phase);
/* Returns the settings that phases change, by name, with the values of `config`'s phase; the caller
 * owns the reference. */
json_t *phases_settings(const Config *config);

/* -- Places in a run ----------------------------------------------------------------------------------------------- */

/* Returns the phase of a sample of the run. */
int phases_find(const Phases *phases, int64_t sample);
/* Returns the tokens of the first `samples` samples. */
int64_t phases_tokens(const Phases *phases, int64_t samples);
/* Returns the sample after the last one of a phase; INT64_MAX: none. */
int64_t phase_end(const Phase *phase);
/* Returns the samples of the step after a position. */
int64_t phases_next(const Phases *phases, const Position *position);
/* Returns the position `steps` steps later. */
Position phases_advance(const Phases *phases, Position from, int64_t steps);
/* Returns the position at the end of the phase of the next sample, or of the run of `last`
 * steps. */
Position phases_advance_phase(const Phases *phases, Position from, int64_t last);

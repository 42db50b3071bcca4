/* The phases of a run: the settings of each, and the steps, samples and tokens that it takes. They come from the mixture
 * that data.train names (data/mixture.h); a run without one has a single phase, of its own settings.
 *
 * A phase that is not the last has ceil(tokens / length) samples, whatever its batches are, so that batches never decide
 * the order of the data; its last step takes what is left. The last phase goes on until the run ends, whose last step has
 * batch.last tokens: a run whose length is given in tokens or epochs reads no sequence beyond it. */
#pragma once

#include <jansson.h>

#include "config/config.h"
#include "data/mixture.h"

typedef struct Phase {
    Config config;        /* of the run, with what the phase changes */
    const char *name;     /* in the mixture; NULL: there is no mixture */
    int64_t first_sample; /* of the run */
    int64_t first_token;  /* of the run: the tokens of the phases before */
    int64_t samples;      /* INT64_MAX: the last phase, which has no end */
} Phase;

typedef struct Phases {
    Mixture mixture; /* without one: a source, data.train */
    Phase *items;    /* [count], at least 1 */
    int count;
    int64_t steps; /* of the run, once they are known */
    int64_t last;  /* tokens of its last step; 0: as many as in any other */
} Phases;

/* A place in a run, between two steps. */
typedef struct Position {
    int64_t step, samples; /* that are done, and that they took: the place in the data */
    int64_t phase_step;    /* steps that were done when the phase of the next sample began */
} Position;

/* Before config_check: what a mixture decides of the settings of its run. data.length, batch.sequences and batch.tokens
 * follow those of the first phase where every phase gives its own, and a given value that differs gets a warning;
 * model.context, when it is 0, the longest length; tokens, where the length of the run is not given, those of all
 * phases. Does nothing without a mixture. ERROR_USAGE. */
bool phases_resolve(Config *config, Error *error);
/* Of settings that phases_resolve and config_check have seen. ERROR_USAGE names the phase that has something wrong. */
bool phases_open(Phases *phases, const Config *config, Error *error);
void phases_close(Phases *phases); /* also of a zeroed one */
/* Counts the steps of a run of `tokens` tokens, in whole sequences, that has come to the position `from`. *last: the
 * tokens of its last step. ERROR_USAGE: the steps are more than a run can count, or the tokens are fewer than the run
 * has read. */
bool phases_count_steps(const Phases *phases, double tokens, Position from, int64_t *steps, int64_t *last, Error *error);
/* The steps that the tokens of all phases come to; 0: the last phase has none. */
int64_t phases_own_steps(const Phases *phases);
/* Gives every phase the length of the run, the steps and batch.last of `config`; then config_check. ERROR_USAGE. */
bool phases_set_length(Phases *phases, const Config *config, Error *error);
/* The order of the samples of a run of so many steps; `inputs` [sources]: the tokens of each that can be inputs.
 * ERROR_USAGE where a source would be read more often than the mixture allows. The caller frees. */
Order *phases_order(const Phases *phases, const int64_t *inputs, int64_t steps, Error *error);

/* -- What a phase is, in words and numbers -------------------------------------------------------------------------- */

/* "pretrain, 8000000 tokens in sequences of 4096, RoPE base 10000: web 90, code 10": what decides the order of the data
 * and the program. The caller frees. */
char *phases_text(const Phases *phases, int phase);
/* "16384 tokens, 4 sequences at once, from 4096 over 30 steps": how it is computed. The caller frees. */
char *phases_batch_text(const Phases *phases, int phase);
/* "1 pretrain: steps 1 to 30, 8.0k tokens in sequences of 32, 256 a step, RoPE base 10000: web 90%, code 10%", of the
 * phase of the next sample, in a run of so many steps. The caller frees. */
char *phases_line(const Phases *phases, const Position *position, int64_t steps);
/* "web 90.01% of 90%, code 9.99% of 10%": what a phase that has begun has read in the first so many samples of the run.
 * The caller frees. */
char *phases_read_text(const Phases *phases, const Order *order, int phase, int64_t samples);
/* The same for a record: [{"phase": "pretrain", "sources": {"web": {"asked": 0.9, "read": 0.9001, "samples": 1234}}},
 * ...] of the first `begun` phases. The caller owns the reference. */
json_t *phases_read(const Phases *phases, const Order *order, int begun, int64_t samples);
/* Tokens of the longest sequence in which any phase reads a source: its order is one of such pieces (data/mixture.h). */
int64_t phases_piece(const Phases *phases, int source);
/* For the record of a phase that begins (metrics_internal.h). The caller owns the reference. */
json_t *phases_describe(const Phases *phases, int phase);
/* The settings that phases change, by name, as the phase of `config` has them; the caller owns the reference. */
json_t *phases_settings(const Config *config);

/* -- Places in a run ----------------------------------------------------------------------------------------------- */

/* The phase of a sample of the run. */
int phases_find(const Phases *phases, int64_t sample);
/* Tokens of the first so many samples. */
int64_t phases_tokens(const Phases *phases, int64_t samples);
/* The sample after the last one of a phase; INT64_MAX: there is none. */
int64_t phase_end(const Phase *phase);
/* Samples of the step after a position. */
int64_t phases_next(const Phases *phases, const Position *position);
/* The position so many steps later. */
Position phases_advance(const Phases *phases, Position from, int64_t steps);
/* The position where the phase of the next sample ends, or the run of `last` steps does. */
Position phases_advance_phase(const Phases *phases, Position from, int64_t last);
/* The last step of the phase of the next sample, at most `last`. */
int64_t phases_last_step(const Phases *phases, const Position *position, int64_t last);

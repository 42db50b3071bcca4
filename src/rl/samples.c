/* Packs samples into microbatches. A document has the tokens of the prompt and of the sample. The row
 * of a token has the next one as its target, if the model drew that. Called for updates and for the
 * reference. */
#include "rl/samples.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/element.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

void rollout_sample_free(RolloutSample *sample) {
    token_ids_free(&sample->ids);
    free(sample->old);
    free(sample->reference);
    free(sample->values);
    json_decref(sample->report);
    free(sample->advantages);
    free(sample->returns);
    free(sample->estimates);
    *sample = (RolloutSample){0};
}

int64_t sample_drawn_tokens(const RolloutSample *sample) {
    int64_t drawn = 0;
    for (size_t t = 0; t < sample->ids.count; t++) drawn += sample_drew(sample, t);
    return drawn;
}

SampleTurn sample_turn(const RolloutSample *sample, size_t first) {
    SampleTurn turn = {first, first, first};
    while (turn.end < sample->ids.count && sample_drew(sample, turn.end)) turn.end++;
    turn.next = turn.end;
    while (turn.next < sample->ids.count && !sample_drew(sample, turn.next)) turn.next++;
    return turn;
}

SampleTurn sample_last_turn(const RolloutSample *sample) {
    SampleTurn turn = sample_turn(sample, 0);
    while (turn.next < sample->ids.count) turn = sample_turn(sample, turn.next);
    return turn;
}

static int64_t document_tokens(const PromptSet *prompts, const RolloutSample *sample) {
    return (int64_t)(prompts->items[sample->prompt].tokens.count + sample->ids.count);
}

/* Sets places[i] to the first row of the document of each sample; returns the number of sequences. */
static int64_t place_documents(
    const PromptSet *prompts, const RolloutSample *samples, int64_t count, int64_t length, int64_t multiple, int64_t *places) {
    SCOPED_FREE int64_t *used = NULL;
    size_t sequences = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t tokens = document_tokens(prompts, &samples[i]);
        size_t s = 0;
        assert(tokens <= length);
        while (s < sequences && used[s] + tokens > length) s++;
        if (s == sequences) array_append(used, sequences, 0);
        places[i] = (int64_t)s * length + used[s];
        used[s] = round_up(used[s] + tokens, multiple);
    }
    return (int64_t)sequences;
}

/* The divisors of a batch. */
typedef struct TermCounts { double samples, tokens; } TermCounts;

static double term_share(const SampleTerms *terms, const TermCounts *counts, const RolloutSample *sample) {
    double divisor = terms->mean == MEAN_OF_TOKENS  ? counts->tokens
                     : terms->mean == MEAN_OF_LIMIT ? counts->samples * (double)terms->limit
                                                    : counts->samples * (double)sample_drawn_tokens(sample);
    return 1 / fmax(divisor, 1);
}

/* Writes a document, and repeats it up to the end of the sequence. Repetitions are not trained. Routers
 * count them, and equal rows would look like an expert that is overloaded. */
static void fill_document(SampleBatch *batch, const TokenIds *prompt, const RolloutSample *sample, int64_t first) {
    int64_t before = (int64_t)prompt->count, all = before + (int64_t)sample->ids.count, end = round_up(first + 1, batch->model->length);
    for (int64_t row = first; row < end; row++) {
        int64_t i = (row - first) % all;
        batch->tokens[row] = i < before ? prompt->items[i] : sample->ids.items[i - before];
        batch->positions[row] = (int32_t)i;
    }
    for (size_t t = 0; t < sample->ids.count; t++)
        if (sample_drew(sample, t)) batch->targets[first + before - 1 + (int64_t)t] = sample->ids.items[t];
}

/* Fills the sequences without documents with the rows of the first sequences. */
static void fill_sequences(SampleBatch *batch, int64_t sequences) {
    for (int64_t row = sequences * batch->model->length; row < batch->microbatches * batch->rows; row++) {
        int64_t from = row % (sequences * batch->model->length);
        batch->tokens[row] = batch->tokens[from];
        batch->positions[row] = batch->positions[from];
    }
}

static void fill_terms(SampleBatch *batch, const RolloutSample *sample, int64_t place, double share) {
    for (int64_t t = 0; t < (int64_t)sample->ids.count; t++) {
        double *of = batch->terms + (place + t) * POLICY_TERMS;
        if (!sample_drew(sample, (size_t)t)) continue;
        of[POLICY_OLD] = sample->old[t];
        of[POLICY_REFERENCE] = sample->reference ? sample->reference[t] : 0;
        of[POLICY_ADVANTAGE] = sample->advantages ? sample->advantages[t] : sample->advantage;
        of[POLICY_SHARE] = share;
        of[POLICY_RETURN] = sample->returns ? sample->returns[t] : 0;
        of[POLICY_OLD_VALUE] = sample->estimates ? sample->estimates[t] : 0;
    }
}

static void allocate_batch(SampleBatch *batch, int64_t count) {
    size_t rows = (size_t)(batch->microbatches * batch->rows),
           bounds = (size_t)(batch->microbatches * policy_most_sequences(batch->rows)) * SEQUENCE_BOUNDS;
    batch->tokens = memory_allocate(rows * sizeof *batch->tokens);
    batch->targets = memory_allocate(rows * sizeof *batch->targets);
    batch->positions = memory_allocate(rows * sizeof *batch->positions);
    batch->terms = memory_allocate(rows * POLICY_TERMS * sizeof *batch->terms);
    batch->bounds = memory_allocate(bounds * sizeof *batch->bounds);
    batch->places = memory_allocate((size_t)int_max(count, 1) * sizeof *batch->places);
    memset(batch->tokens, 0, rows * sizeof *batch->tokens);
    memset(batch->targets, -1, rows * sizeof *batch->targets);
    memset(batch->positions, 0, rows * sizeof *batch->positions);
    memset(batch->terms, 0, rows * POLICY_TERMS * sizeof *batch->terms);
    memset(batch->bounds, 0, bounds * sizeof *batch->bounds);
}

void sample_batch_make(SampleBatch *batch, const Program *program, const PromptSet *prompts, const RolloutSample *samples, int64_t count,
    const SampleTerms *terms) {
    SCOPED_FREE int64_t *first = memory_allocate((size_t)int_max(count, 1) * sizeof *first), *used = NULL;
    TermCounts counts = {(double)count, 0};
    const Model *model = &program->model;
    int64_t multiple = device_info(program->backend.device)->exact ? EXACT_ROWS : 1;
    sample_batch_free(batch);
    *batch = (SampleBatch){.model = model, .rows = model->rows};
    int64_t sequences = place_documents(prompts, samples, count, model->length, multiple, first);
    batch->microbatches = int_max(1, divide_up(sequences, model->sequences));
    allocate_batch(batch, count);
    used = memory_allocate((size_t)batch->microbatches * sizeof *used);
    memset(used, 0, (size_t)batch->microbatches * sizeof *used);
    for (int64_t i = 0; i < count && terms; i++)
        if (sample_trains(&samples[i], terms->leave_out_cut)) counts.tokens += (double)sample_drawn_tokens(&samples[i]);
    for (int64_t i = 0; i < count; i++) {
        const TokenIds *prompt = &prompts->items[samples[i].prompt].tokens;
        int64_t tokens = (int64_t)samples[i].ids.count, m = first[i] / batch->rows, row = first[i] % batch->rows;
        int32_t *bounds = batch->bounds + (m * policy_most_sequences(batch->rows) + used[m]++) * SEQUENCE_BOUNDS;
        batch->places[i] = first[i] + (int64_t)prompt->count - 1;
        batch->all += (int64_t)prompt->count + tokens;
        fill_document(batch, prompt, &samples[i], first[i]);
        if (terms && sample_trains(&samples[i], terms->leave_out_cut)) {
            fill_terms(batch, &samples[i], batch->places[i], term_share(terms, &counts, &samples[i]));
            batch->trained += sample_drawn_tokens(&samples[i]);
        } else if (terms) {
            memset(batch->targets + batch->places[i], -1, (size_t)tokens * sizeof *batch->targets);
        }
        bounds[SEQUENCE_FIRST] = (int32_t)row;
        bounds[SEQUENCE_END] = (int32_t)(row + (int64_t)prompt->count + tokens);
    }
    if (sequences) fill_sequences(batch, sequences);
}

void sample_batch_load(const SampleBatch *batch, const Executor *executor, int64_t microbatch) {
    const Model *model = batch->model;
    int64_t rows = batch->rows, bounds = policy_most_sequences(rows) * SEQUENCE_BOUNDS, first = microbatch * rows;
    size_t bytes = precision_bytes(model->graph->precision, TYPE_WIDE), row_bytes = (size_t)rows * sizeof(int32_t);
    int32_t *sequences = executor_tensor(executor, model->policy.sequences), *targets = executor_tensor(executor, model->targets);
    void *terms = executor_tensor(executor, model->policy.terms);
    memcpy(executor_tensor(executor, model->tokens), batch->tokens + int_max(first, 0), row_bytes);
    memcpy(executor_tensor(executor, model->positions), batch->positions + int_max(first, 0), row_bytes);
    if (microbatch < 0) {
        memset(sequences, 0, (size_t)bounds * sizeof *sequences);
        memset(targets, -1, row_bytes);
        return;
    }
    memcpy(targets, batch->targets + first, row_bytes);
    memcpy(sequences, batch->bounds + microbatch * bounds, (size_t)bounds * sizeof *sequences);
    for (int64_t i = 0; i < rows * POLICY_TERMS; i++) element_set(bytes, terms, i, batch->terms[first * POLICY_TERMS + i]);
}

void sample_batch_free(SampleBatch *batch) {
    free(batch->tokens);
    free(batch->targets);
    free(batch->positions);
    free(batch->terms);
    free(batch->bounds);
    free(batch->places);
    *batch = (SampleBatch){0};
}

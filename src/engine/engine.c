/* The queue and the slots. A sequence in a slot is first filled: all tokens of its prompt but the
 * last go into the caches, in blocks, or from the caches of another sample of its request. Then it
 * gets one token a step, the first of which follows the last token of the prompt. Tokens that are
 * appended to a sequence are filled like a prompt. */
#include "engine/engine.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "engine/calls_internal.h"
#include "engine/programs_internal.h"
#include "engine/rows_internal.h"
#include "token/tokenizer.h"

/* Tokens of prompts after which no other block is begun in a step: enough to fill slots soon, few
 * enough not to hold up the sequences that have begun. */
enum { PROMPT_TOKENS_PER_STEP = 8192 };

typedef struct QueuedRequest {
    EngineRequest request;
    void *memory;     /* of a request that another rank sent; owned; NULL: the caller's */
    int begun, ended; /* samples */
    struct QueuedRequest *next;
} QueuedRequest;

/* A slot, and the sequence in it if `owner` is not NULL. */
typedef struct EngineSlot {
    QueuedRequest *owner;
    int sample;
    int64_t first_row;
    int64_t filled; /* tokens in the caches */
    int64_t drawn;  /* tokens after the prompt, with appended ones */
    bool waits;
    TokenIds tail; /* the newest drawn token, and the ones appended to it; nothing before the first one */
} EngineSlot;

struct Engine {
    const ModelConfig *config;
    EngineSizes sizes;
    EnginePrograms *programs;
    QueuedRequest *first, **end; /* the queue, by submission, with requests that have begun */
    EngineSlot *slots;
    int *order; /* of `running` slots, by beginning */
    int running;
    EngineRow *rows;
    RowPool pool;
    EngineCounts counts;
    bool waits;
    Comm *followers;   /* the ranks that repeat the calls; NULL: none */
    EngineCalls calls; /* since the last step */
};

static Engine *create_engine(EnginePrograms *programs, const ModelConfig *config, EngineSizes sizes) {
    if (!programs) return NULL;
    Engine *e = memory_allocate(sizeof *e);
    *e = (Engine){.config = config, .sizes = sizes, .programs = programs, .end = &e->first};
    e->slots = memory_allocate((size_t)sizes.slots * sizeof *e->slots);
    memset(e->slots, 0, (size_t)sizes.slots * sizeof *e->slots);
    e->order = memory_allocate((size_t)sizes.slots * sizeof *e->order);
    e->rows = memory_allocate((size_t)sizes.slots * sizeof *e->rows);
    e->pool = (RowPool){.rows = sizes.cache_rows, .ranges = memory_allocate((size_t)sizes.slots * sizeof *e->pool.ranges)};
    return e;
}

Engine *engine_create(const ModelConfig *config, EnginePlace place, EngineSizes sizes, Error *error) {
    EnginePrograms *programs = engine_programs_create(config, NULL, place, &sizes, error);
    return create_engine(programs, config, sizes);
}

Engine *engine_create_beside(
    const ModelConfig *config, Precision precision, const EngineOwner *owner, Device *device, EngineSizes sizes, Error *error) {
    const EnginePlace place = {owner->program->model.graph->mesh, precision, device};
    EnginePrograms *programs = engine_programs_create(config, owner, place, &sizes, error);
    return create_engine(programs, config, sizes);
}

bool engine_plan_beside(
    const ModelConfig *config, const EngineOwner *owner, EnginePlace place, EngineSizes sizes, EngineNeeds *needs, Error *error) {
    return engine_programs_plan(config, owner, place, sizes, needs, error);
}

static void free_request(QueuedRequest *queued) {
    free(queued->memory);
    free(queued);
}

void engine_free(Engine *e) {
    if (!e) return;
    for (QueuedRequest *next; e->first; e->first = next) {
        next = e->first->next;
        free_request(e->first);
    }
    engine_programs_free(e->programs);
    engine_calls_free(&e->calls);
    for (int i = 0; i < e->sizes.slots; i++) token_ids_free(&e->slots[i].tail);
    free(e->slots), free(e->order), free(e->rows), free(e->pool.ranges);
    free(e);
}

EngineCounts engine_counts(const Engine *e) { return e->counts; }
const Graph *engine_graph(const Engine *e) { return engine_programs_graph(e->programs); }
void *engine_master(Engine *e) { return engine_programs_arena(e->programs, ARENA_MASTER); }
void *engine_weights(Engine *e) { return engine_programs_arena(e->programs, ARENA_WEIGHT); }

/* -- Requests ------------------------------------------------------------------------------------------------------ */

int64_t engine_positions(const Engine *e) { return int_min(family_cached_positions(e->config), e->sizes.cache_rows); }

bool engine_bias(const char *name, const json_t *number, EngineBias *bias, Error *error) {
    enum { MOST_BIAS = 100 };
    char *end;
    errno = 0;
    long token = strtol(name, &end, 10);
    *bias = (EngineBias){.token = (int32_t)token, .bias = json_number_value(number)};
    bool good = isdigit((unsigned char)*name) && !*end && !errno && token <= INT32_MAX && json_is_number(number);
    return (good && fabs(bias->bias) <= MOST_BIAS) ||
           error_set(
               error, ERROR_USAGE, "'%.20s' in the logit bias is not a token id with a number from -%d to %d", name, MOST_BIAS, MOST_BIAS);
}

static bool penalizes(const EngineRequest *r) {
    const EnginePenalties *p = &r->penalties;
    return (p->repetition > 0 && p->repetition != 1) || p->presence != 0 || p->frequency != 0 || p->bias_count > 0;
}

static bool check_request(const Engine *e, const EngineRequest *r, Error *error) {
    const ModelConfig *c = e->config;
    int64_t most = engine_positions(e);
    assert(r->samples > 0 && (r->tokens > 0 || (r->scored && r->tokens == 0)) && (!r->scored || e->sizes.scores));
    assert(r->top <= e->sizes.top && (!penalizes(r) || (e->sizes.penalties && !r->wait)));
    if (r->prompt_count < 1) return error_set(error, ERROR_USAGE, "a prompt needs at least one token");
    if (r->prompt_count > most || r->tokens > most - r->prompt_count)
        return error_set(error, ERROR_USAGE,
            "a prompt of %" PRId64 " tokens and %" PRId64 " tokens after it do not fit into %" PRId64
            " positions: ask for at most %" PRId64,
            r->prompt_count, r->tokens, most, int_max(most - r->prompt_count, 0));
    if (model_rope_grows(c) && r->prompt_count > c->rope_original_context)
        return error_set(error, ERROR_USAGE,
            "a prompt of %" PRId64 " tokens is longer than model.rope_original_context=%" PRId64
            ", which RoPE that grows with the text does not allow for cached prompts: use a shorter one",
            r->prompt_count, c->rope_original_context);
    for (int64_t i = 0; i < r->penalties.bias_count; i++)
        if (r->penalties.biases[i].token < 0 || r->penalties.biases[i].token >= c->vocabulary)
            return error_set(error, ERROR_USAGE, "token %" PRId32 " of a logit bias is not below model.vocabulary=%" PRId64,
                r->penalties.biases[i].token, c->vocabulary);
    for (int64_t i = 0; i < r->prompt_count; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= c->vocabulary)
            return error_set(error, ERROR_USAGE, "token %" PRId32 " is not below model.vocabulary=%" PRId64, r->prompt[i], c->vocabulary);
    return true;
}

/* Adds a request to the queue, which then owns `memory`, whatever is returned. */
static bool queue_request(Engine *e, const EngineRequest *request, void *memory, Error *error) {
    QueuedRequest *queued = memory_allocate(sizeof *queued);
    *queued = (QueuedRequest){.request = *request, .memory = memory};
    if (!check_request(e, request, error)) {
        free_request(queued);
        return false;
    }
    *e->end = queued;
    e->end = &queued->next;
    return true;
}

bool engine_submit(Engine *e, const EngineRequest *request, Error *error) {
    if (!queue_request(e, request, NULL, error)) return false;
    assert(!e->followers || !request->wait);
    if (e->followers) engine_calls_submit(&e->calls, request);
    return true;
}

bool engine_busy(const Engine *e) { return e->first; }
bool engine_waits(const Engine *e) { return e->waits; }

/* Removes requests whose samples have all ended. They are among those that have begun, at the start
 * of the queue; `all`: others have been canceled. */
static void remove_ended(Engine *e, bool all) {
    QueuedRequest **at = &e->first;
    while (*at && (all || (*at)->begun > 0)) {
        QueuedRequest *queued = *at;
        if (queued->ended < queued->request.samples) {
            at = &queued->next;
            continue;
        }
        *at = queued->next;
        if (e->end == &queued->next) e->end = at;
        free_request(queued);
    }
}

static void free_slot(Engine *e, int index) {
    int at = 0;
    while (e->order[at] != index) at++;
    memmove(e->order + at, e->order + at + 1, (size_t)(--e->running - at) * sizeof *e->order);
    row_pool_give(&e->pool, e->slots[index].first_row);
    token_ids_free(&e->slots[index].tail);
    e->slots[index].owner = NULL;
}

static void end_slot(Engine *e, int index, EngineEnd why) {
    EngineSlot *slot = &e->slots[index];
    QueuedRequest *owner = slot->owner;
    free_slot(e, index);
    owner->ended++;
    owner->request.end(owner->request.context, slot->sample, why);
}

void engine_cancel(Engine *e, const void *context) {
    if (e->followers) engine_calls_cancel(&e->calls, context);
    for (int index = 0; index < e->sizes.slots; index++)
        if (e->slots[index].owner && (!context || e->slots[index].owner->request.context == context)) free_slot(e, index);
    for (QueuedRequest *queued = e->first; queued; queued = queued->next)
        if (!context || queued->request.context == context) queued->ended = queued->request.samples;
    remove_ended(e, true);
}

void engine_extend(Engine *e, const void *context, int sample, const int32_t *tokens, int64_t count) {
    int index = 0;
    while (index < e->sizes.slots) {
        const EngineSlot *slot = &e->slots[index];
        if (slot->owner && slot->waits && slot->owner->request.context == context && slot->sample == sample) break;
        index++;
    }
    assert(index < e->sizes.slots || !count);
    if (index == e->sizes.slots) return;
    EngineSlot *slot = &e->slots[index];
    if (!count) {
        end_slot(e, index, ENGINE_STOP);
        remove_ended(e, false);
        return;
    }
    slot->waits = e->waits = false;
    slot->drawn += count;
    assert(slot->drawn < slot->owner->request.tokens);
    for (int64_t i = 0; i < count; i++) token_ids_append(&slot->tail, tokens[i]);
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

/* Gives free slots to the next samples of the queue, in order, as long as there are rows for them. */
static void begin_samples(Engine *e) {
    int index = 0;
    for (QueuedRequest *queued = e->first; queued; queued = queued->next) {
        const EngineRequest *r = &queued->request;
        for (; queued->begun < r->samples; queued->begun++) {
            while (index < e->sizes.slots && e->slots[index].owner) index++;
            int64_t first_row = index < e->sizes.slots ? row_pool_take(&e->pool, r->prompt_count + r->tokens) : -1;
            if (first_row < 0) return;
            e->slots[index] = (EngineSlot){.owner = queued, .sample = queued->begun, .first_row = first_row};
            e->order[e->running++] = index;
            if (penalizes(r)) engine_programs_begin_penalties(e->programs, index, r);
        }
    }
}

static EngineRow row_of_slot(const Engine *e, int index) { return (EngineRow){.slot = index, .first_row = e->slots[index].first_row}; }

/* Returns how many tokens of a sequence are in the caches when its next one is drawn. */
static int64_t tokens_to_fill(const EngineSlot *slot) { return slot->owner->request.prompt_count - 1 + slot->drawn; }

/* Returns the token at a position of the prompt, or from the newest drawn one on; the next ones follow it. */
static const int32_t *tokens_from(const EngineSlot *slot, int64_t position) {
    if (!slot->drawn) return slot->owner->request.prompt + position;
    return slot->tail.items + slot->tail.count - 1 - (tokens_to_fill(slot) - position);
}

static bool fail_numerics(const EngineSlot *slot, int64_t tokens, Error *error) {
    return error_set(error, ERROR_NUMERICS,
        "a logit of sample %d after %" PRId64
        " tokens is not finite: the weights contain NaN or infinity, or activations overflow; use an older checkpoint",
        slot->sample, tokens);
}

/* Computes a block of a prompt and scores its tokens. */
static bool score_block(Engine *e, const EngineSlot *slot, const EngineRow *row, Error *error) {
    const EngineRequest *r = &slot->owner->request;
    EngineToken scores[ENGINE_SCORE_BLOCK];
    if (!engine_programs_score(e->programs, row, scores, error)) return false;
    for (int64_t i = 0; i < row->count; i++) {
        if (isnan(scores[i].log_probability)) return fail_numerics(slot, row->position + i + 1, error);
        r->scored(r->context, &scores[i]);
    }
    return true;
}

/* Computes the next block of a prompt or of appended tokens, or copies the whole prompt from another sample
 * that has it. *made: the number of tokens computed; 0 if another sample is computing it. */
static bool fill_slot(Engine *e, int index, int64_t *made, Error *error) {
    EngineSlot *slot = &e->slots[index];
    const EngineRequest *r = &slot->owner->request;
    int first = 0;
    while (slot->drawn ? e->order[first] != index : e->slots[e->order[first]].owner != slot->owner) first++;
    const EngineSlot *other = &e->slots[e->order[first]];
    EngineRow row = row_of_slot(e, index);
    *made = 0;
    if (other != slot) {
        if (other->filled < tokens_to_fill(slot)) return true;
        EngineRow from = row_of_slot(e, e->order[first]);
        engine_programs_copy_prompt(e->programs, &from, &row, tokens_to_fill(slot));
        e->counts.copied_tokens += tokens_to_fill(slot);
        slot->filled = tokens_to_fill(slot);
        return true;
    }
    int64_t rest = tokens_to_fill(slot) - slot->filled;
    bool scored = r->scored && slot->sample == 0 && !slot->drawn;
    row.tokens = tokens_from(slot, slot->filled);
    row.position = slot->filled;
    row.top = r->top;
    row.count = scored ? int_min(rest, ENGINE_SCORE_BLOCK) : engine_programs_block(e->programs, rest);
    if (scored && !score_block(e, slot, &row, error)) return false;
    if (!scored) engine_programs_fill(e->programs, &row);
    e->counts.prompt_tokens += *made = row.count;
    slot->filled += row.count;
    if (slot->filled == tokens_to_fill(slot) && r->samples > 1 && !slot->drawn) engine_programs_keep_prompt(e->programs, index);
    return true;
}

static bool fill_slots(Engine *e, Error *error) {
    int64_t most = PROMPT_TOKENS_PER_STEP, made = 0;
    for (int i = 0; i < e->running && most > 0; i++) {
        const EngineSlot *slot = &e->slots[e->order[i]];
        for (made = 1; made > 0 && most > 0 && slot->filled < tokens_to_fill(slot); most -= made)
            if (!fill_slot(e, e->order[i], &made, error)) return false;
    }
    for (int i = e->running - 1; i >= 0; i--) {
        const EngineSlot *slot = &e->slots[e->order[i]];
        if (slot->owner->request.tokens == 0 && slot->filled == tokens_to_fill(slot)) end_slot(e, e->order[i], ENGINE_LENGTH);
    }
    return true;
}

/* Sets `rows`, and the slots' indices, to the sequences that are filled; returns their number. */
static int64_t take_rows(Engine *e, int *indices) {
    int64_t count = 0;
    for (int i = 0; i < e->running; i++) {
        EngineSlot *slot = &e->slots[e->order[i]];
        const EngineRequest *r = &slot->owner->request;
        if (slot->waits || slot->filled < tokens_to_fill(slot)) continue;
        EngineRow row = row_of_slot(e, e->order[i]);
        row.position = slot->filled;
        row.count = 1;
        row.tokens = tokens_from(slot, slot->filled);
        row.sampling = &r->sampling;
        row.penalties = penalizes(r) ? &r->penalties : NULL;
        row.counted = slot->drawn > 0;
        row.top = r->top;
        row.uniform =
            rng_uniform(r->sampling.seed, RNG_STREAM_SAMPLE, (r->number + (uint64_t)slot->sample) << 24 | (uint64_t)(slot->filled + 1));
        indices[count] = e->order[i];
        e->rows[count++] = row;
    }
    return count;
}

static bool is_end_token(const EngineRequest *r, int32_t token) {
    for (int64_t i = 0; i < r->end_count; i++)
        if (r->ends[i] == token) return true;
    return false;
}

static void stop_slot(Engine *e, int index) {
    EngineSlot *slot = &e->slots[index];
    const EngineRequest *r = &slot->owner->request;
    slot->waits = r->wait && r->wait(r->context, slot->sample);
    if (!slot->waits) end_slot(e, index, ENGINE_STOP);
}

/* Takes a sequence's new token. */
static void accept_token(Engine *e, int index, const EngineRow *row) {
    EngineSlot *slot = &e->slots[index];
    const EngineRequest *r = &slot->owner->request;
    slot->tail.count = 0;
    token_ids_append(&slot->tail, row->drawn.token);
    slot->filled++;
    slot->drawn++;
    e->counts.tokens++;
    bool ends = is_end_token(r, row->drawn.token), stopped = !ends && !r->token(r->context, slot->sample, &row->drawn);
    if (stopped && e->followers) engine_calls_end(&e->calls, r->context, slot->sample);
    if (ends || stopped) stop_slot(e, index);
    else if (slot->drawn == r->tokens) end_slot(e, index, ENGINE_LENGTH);
}

static bool compute_step(Engine *e, Error *error) {
    begin_samples(e);
    int64_t before = e->counts.prompt_tokens;
    if (!fill_slots(e, error)) return false;
    remove_ended(e, false);
    int indices[ENGINE_MOST_SLOTS];
    int64_t count = take_rows(e, indices);
    e->waits = !count && e->running > 0 && e->counts.prompt_tokens == before;
    if (!count) return true;
    if (!engine_programs_next(e->programs, e->rows, count, error)) return false;
    e->counts.steps++;
    e->counts.sequences += count;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(e->rows[i].drawn.log_probability)) return fail_numerics(&e->slots[indices[i]], e->rows[i].position + 1, error);
    for (int64_t i = 0; i < count; i++) accept_token(e, indices[i], &e->rows[i]);
    remove_ended(e, false);
    return true;
}

bool engine_step(Engine *e, Error *error) {
    return (!e->followers || engine_calls_send(&e->calls, e->followers, false, error)) && compute_step(e, error);
}

/* -- Ranks that follow --------------------------------------------------------------------------------------------- */

void engine_lead(Engine *e, Comm *comm) {
    assert(comm_rank(comm) == 0 && !e->first);
    e->followers = comm_size(comm) > 1 ? comm : NULL;
}

bool engine_dismiss(Engine *e, Error *error) {
    Comm *followers = e->followers;
    e->followers = NULL;
    return !followers || engine_calls_send(&e->calls, followers, true, error);
}

/* Only rank 0 reads results. It says later which samples it has ended. */
static bool ignore_token(void *context, int sample, const EngineToken *token) {
    (void)context, (void)sample, (void)token;
    return true;
}

static void ignore_score(void *context, const EngineToken *token) { (void)context, (void)token; }
static void ignore_end(void *context, int sample, EngineEnd end) { (void)context, (void)sample, (void)end; }

static void end_sample(Engine *e, const void *context, int sample) {
    for (int i = 0; i < e->running; i++) {
        const EngineSlot *slot = &e->slots[e->order[i]];
        if (slot->owner->request.context != context || slot->sample != sample) continue;
        end_slot(e, e->order[i], ENGINE_STOP);
        return;
    }
}

static bool repeat_call(Engine *e, const EngineCall *call, void *memory, Error *error) {
    if (call->kind == ENGINE_CALL_CANCEL) engine_cancel(e, call->context);
    if (call->kind == ENGINE_CALL_END) end_sample(e, call->context, call->sample);
    if (call->kind != ENGINE_CALL_SUBMIT) return true;
    EngineRequest request = *call->submitted;
    request.token = ignore_token;
    request.scored = request.scored ? ignore_score : NULL;
    request.end = ignore_end;
    return queue_request(e, &request, memory, error);
}

bool engine_follow(Engine *e, Comm *comm, Error *error) {
    EngineCall call;
    void *memory;
    bool over;
    while (engine_calls_receive(&e->calls, comm, &over, error)) {
        if (over) return true;
        while (engine_calls_next(&e->calls, &call, &memory))
            if (!repeat_call(e, &call, memory, error)) return false;
        remove_ended(e, false);
        if (!compute_step(e, error) && error->code != ERROR_NUMERICS) return false;
    }
    return false;
}

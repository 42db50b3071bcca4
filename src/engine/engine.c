/* The queue and the steps. A sequence in a slot is first filled: all its tokens but the last go into
 * the caches, in blocks. The rows of its prompt may be copied from another sample of its request. Then
 * the sequence gets one token a step. Appended tokens are filled like a prompt, and so are all tokens
 * of a sequence that was suspended (admission.c). */
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
#include "engine/engine_internal.h"

/* Tokens of prompts after which no other block is begun in a step: enough to fill slots soon, few
 * enough not to hold up the sequences that have begun. */
enum { PROMPT_TOKENS_PER_STEP = 8192 };

static Engine *create_engine(EnginePrograms *programs, const ModelConfig *config, EngineSizes sizes) {
    if (!programs) return NULL;
    Engine *e = memory_allocate(sizeof *e);
    *e = (Engine){.config = config, .sizes = sizes, .programs = programs, .end = &e->first};
    e->slots = memory_allocate((size_t)sizes.slots * sizeof *e->slots);
    memset(e->slots, 0, (size_t)sizes.slots * sizeof *e->slots);
    e->order = memory_allocate((size_t)sizes.slots * sizeof *e->order);
    e->rows = memory_allocate((size_t)sizes.slots * sizeof *e->rows);
    e->pool = (RowPool){.rows = sizes.cache_rows,
        .ranges = memory_allocate((size_t)(sizes.slots + 1) * sizeof *e->pool.ranges)}; /* a sequence that moves has two */
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
    for (int i = 0; i < e->sizes.slots; i++) token_ids_free(&e->slots[i].tokens);
    engine_free_suspended(e, NULL);
    free(e->slots), free(e->order), free(e->suspended), free(e->rows), free(e->pool.ranges);
    free(e);
}

EngineCounts engine_counts(const Engine *e) { return e->counts; }
const Graph *engine_graph(const Engine *e) { return engine_programs_graph(e->programs); }
void *engine_master(Engine *e) { return engine_programs_arena(e->programs, ARENA_MASTER); }
void *engine_weights(Engine *e) { return engine_programs_arena(e->programs, ARENA_WEIGHT); }
const Model *engine_model(const Engine *e) { return engine_programs_model(e->programs); }
void *engine_table(Engine *e, TensorId table) { return engine_programs_table(e->programs, table); }

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

static bool check_request(const Engine *e, const EngineRequest *r, Error *error) {
    const ModelConfig *c = e->config;
    int64_t most = engine_positions(e);
    assert(r->samples > 0 && (r->tokens > 0 || (r->scored && r->tokens == 0)) && (!r->scored || e->sizes.scores));
    assert(r->adapter >= 0 && r->adapter <= e->sizes.adapters.count);
    assert(r->top <= e->sizes.top && (!request_penalizes(r) || (e->sizes.penalties && !r->wait)));
    if (r->prompt_count < 1) return error_set(error, ERROR_USAGE, "a prompt needs at least one token");
    if (model_rope_grows(c) && r->prompt_count > c->rope_original_context)
        return error_set(error, ERROR_USAGE,
            "a prompt of %" PRId64 " tokens is longer than model.rope_original_context=%" PRId64
            ", which RoPE that grows with the text does not allow for cached prompts: use a shorter one",
            r->prompt_count, c->rope_original_context);
    if (r->prompt_count > most || r->tokens > most - r->prompt_count)
        return error_set(error, ERROR_USAGE,
            "a prompt of %" PRId64 " tokens and %" PRId64 " tokens after it do not fit into %" PRId64
            " positions: ask for at most %" PRId64,
            r->prompt_count, r->tokens, most, int_max(most - r->prompt_count, 0));
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
    *queued = (QueuedRequest){.request = *request, .number = e->submitted++, .memory = memory};
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

static void end_sequence(Engine *e, EngineSequence *sequence, EngineEnd why) {
    QueuedRequest *owner = sequence->owner;
    int sample = sequence->sample;
    engine_drop_sequence(e, sequence);
    owner->ended++;
    owner->request.end(owner->request.context, sample, why);
}

void engine_cancel(Engine *e, const void *context) {
    if (e->followers) engine_calls_cancel(&e->calls, context);
    for (int slot = 0; slot < e->sizes.slots; slot++)
        if (e->slots[slot].owner && (!context || e->slots[slot].owner->request.context == context)) engine_free_slot(e, slot);
    engine_free_suspended(e, context);
    for (QueuedRequest *queued = e->first; queued; queued = queued->next)
        if (!context || queued->request.context == context) queued->ended = queued->request.samples;
    remove_ended(e, true);
}

void engine_extend(Engine *e, const void *context, int sample, const int32_t *tokens, int64_t count) {
    EngineSequence *sequence = engine_find_sequence(e, context, sample);
    bool waits = sequence && sequence->waits;
    assert(!e->followers && (waits || !count));
    if (!waits) return;
    if (!count) {
        end_sequence(e, sequence, ENGINE_STOP);
        remove_ended(e, false);
        return;
    }
    sequence->waits = e->waits = false;
    for (int64_t i = 0; i < count; i++) token_ids_append(&sequence->tokens, tokens[i]);
    assert((int64_t)sequence->tokens.count < sequence->owner->request.tokens);
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

static EngineRow row_of_slot(const Engine *e, int index) {
    const EngineSequence *s = &e->slots[index];
    return (EngineRow){.slot = index, .first_row = s->first_row, .adapter = s->owner->request.adapter};
}

static int32_t sequence_token(const EngineSequence *s, int64_t position) {
    const EngineRequest *r = &s->owner->request;
    return position < r->prompt_count ? r->prompt[position] : s->tokens.items[position - r->prompt_count];
}

static bool fail_numerics(const EngineSequence *s, int64_t tokens, Error *error) {
    return error_set(error, ERROR_NUMERICS,
        "a logit of sample %d after %" PRId64
        " tokens is not finite: the weights contain NaN or infinity, or activations overflow; use an older checkpoint",
        s->sample, tokens);
}

/* -- Filling ------------------------------------------------------------------------------------------------------- */

/* Returns whether all tokens of the prompt but the last are in the caches. */
static bool has_filled_prompt(const EngineSequence *s) { return s->filled >= s->owner->request.prompt_count - 1; }

/* Returns whether tokens of the prompt remain to be scored. */
static bool needs_scores(const EngineSequence *s) {
    const EngineRequest *r = &s->owner->request;
    return r->scored && s->sample == 0 && s->scored < r->prompt_count - 1;
}

/* Returns the slot of the sequence whose prompt a sequence gets: its own, if it computes the prompt;
 * else a sample of the same request, which has it or computes it now. */
static int find_prompt_source(const Engine *e, int slot) {
    const EngineSequence *s = &e->slots[slot];
    int first = -1;
    if (s->owner->request.samples == 1 || s->filled > 0 || has_filled_prompt(s) || needs_scores(s)) return slot;
    for (int i = 0; i < e->running; i++) {
        const EngineSequence *other = &e->slots[e->order[i]];
        if (other->owner != s->owner) continue;
        if (has_filled_prompt(other)) return e->order[i];
        if (first < 0) first = e->order[i];
    }
    return first;
}

/* Returns the next block of a sequence. A block ends where a prompt's state is kept, and where tokens
 * begin or cease to be scored. */
static EngineBlock next_block(const Engine *e, const EngineSequence *s) {
    const EngineRequest *r = &s->owner->request;
    int64_t end = tokens_to_fill(s);
    if (!has_filled_prompt(s) && (r->samples > 1 || needs_scores(s))) end = r->prompt_count - 1;
    if (!needs_scores(s)) return engine_programs_block(e->programs, false, end - s->filled);
    if (s->filled == s->scored) return engine_programs_block(e->programs, true, end - s->filled);
    return engine_programs_block(e->programs, false, s->scored - s->filled); /* they were scored before it was suspended */
}

/* Sequences whose next blocks are computed together. */
typedef struct FillGroup {
    EngineBlock block;
    int64_t count, tokens; /* sequences; tokens of their blocks */
    int slots[ENGINE_MOST_TOGETHER];
    EngineRow rows[ENGINE_MOST_TOGETHER];
    int32_t ids[ENGINE_LONGEST_BLOCK + ENGINE_MOST_TOGETHER]; /* of each row's tokens, and of the one after them */
} FillGroup;

static bool can_join(const FillGroup *group, const EngineBlock *block) {
    bool fits = group->count < ENGINE_MOST_TOGETHER && (group->count + 1) * block->length <= ENGINE_LONGEST_BLOCK;
    return fits && block->length == group->block.length && block->scored == group->block.scored;
}

static void join_group(const Engine *e, FillGroup *group, int slot, const EngineBlock *block) {
    const EngineSequence *s = &e->slots[slot];
    int32_t *ids = group->ids + group->tokens + group->count;
    assert(s->filled + block->count < s->rows && group->tokens + block->count <= ENGINE_LONGEST_BLOCK);
    for (int64_t i = 0; i <= block->count; i++) ids[i] = sequence_token(s, s->filled + i);
    EngineRow row = row_of_slot(e, slot);
    row.position = s->filled;
    row.count = block->count;
    row.tokens = ids;
    row.top = s->owner->request.top;
    group->slots[group->count] = slot;
    group->rows[group->count++] = row;
    group->tokens += block->count;
}

/* Passes the group's scores to the requests. */
static bool accept_scores(Engine *e, const FillGroup *group, const EngineToken *scores, Error *error) {
    for (int64_t at = 0; at < group->count; at++) {
        EngineSequence *s = &e->slots[group->slots[at]];
        const EngineRequest *r = &s->owner->request;
        for (int64_t i = 0; i < group->rows[at].count; i++, scores++) {
            if (isnan(scores->log_probability)) return fail_numerics(s, group->rows[at].position + i + 1, error);
            r->scored(r->context, scores);
        }
        s->scored += group->rows[at].count;
    }
    return true;
}

/* Computes the blocks of a group. */
static bool fill_group(Engine *e, const FillGroup *group, Error *error) {
    EngineToken scores[ENGINE_SCORE_BLOCK];
    if (!group->block.scored) engine_programs_fill(e->programs, &group->block, group->rows, group->count);
    else if (!engine_programs_score(e->programs, &group->block, group->rows, group->count, scores, error) ||
             !accept_scores(e, group, scores, error))
        return false;
    e->counts.fills++;
    e->counts.prompt_tokens += group->tokens;
    for (int64_t i = 0; i < group->count; i++) {
        EngineSequence *s = &e->slots[group->slots[i]];
        const EngineRequest *r = &s->owner->request;
        s->filled += group->rows[i].count;
        if (s->filled == r->prompt_count - 1 && r->samples > 1) engine_programs_keep_prompt(e->programs, group->slots[i]);
    }
    return true;
}

/* Copies the whole prompt from another sample's slot; returns false if that slot does not have it yet. */
static bool copy_prompt(Engine *e, int slot, int from) {
    EngineSequence *s = &e->slots[slot];
    if (!has_filled_prompt(&e->slots[from])) return false;
    EngineRow to = row_of_slot(e, slot), source = row_of_slot(e, from);
    s->filled = s->owner->request.prompt_count - 1;
    engine_programs_copy_prompt(e->programs, &source, &to, s->filled);
    e->counts.copied_tokens += s->filled;
    return true;
}

/* Fills the group with the next block of the oldest sequence whose prompt is incomplete, and with blocks
 * of younger sequences that can run with it. Copies a prompt if another sample has already computed it. */
static void choose_group(Engine *e, FillGroup *group) {
    group->count = group->tokens = 0;
    for (int i = 0; i < e->running; i++) {
        int slot = e->order[i], from = find_prompt_source(e, slot);
        EngineSequence *s = &e->slots[slot];
        if (from != slot && s->filled < tokens_to_fill(s) && !copy_prompt(e, slot, from)) continue;
        if (s->filled >= tokens_to_fill(s)) continue;
        EngineBlock block = next_block(e, s);
        if (!group->count) group->block = block;
        if (can_join(group, &block)) join_group(e, group, slot, &block);
    }
    int64_t together = group->count ? engine_programs_together(e->programs, &group->block, group->count) : 0;
    while (group->count > together) group->tokens -= group->rows[--group->count].count;
}

static bool fill_slots(Engine *e, Error *error) {
    FillGroup group;
    for (int64_t most = PROMPT_TOKENS_PER_STEP; most > 0; most -= group.tokens) {
        choose_group(e, &group);
        if (!group.count) break;
        if (!fill_group(e, &group, error)) return false;
    }
    for (int i = e->running - 1; i >= 0; i--) {
        EngineSequence *s = &e->slots[e->order[i]];
        if (s->owner->request.tokens == 0 && s->filled == tokens_to_fill(s)) end_sequence(e, s, ENGINE_LENGTH);
    }
    return true;
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

/* Sets `rows`, and the slots' indices, to the sequences that are filled; returns their number. */
static int64_t take_rows(Engine *e, int *indices) {
    int64_t count = 0;
    for (int i = 0; i < e->running; i++) {
        EngineSequence *s = &e->slots[e->order[i]];
        const EngineRequest *r = &s->owner->request;
        if (s->waits || s->filled < tokens_to_fill(s)) continue;
        assert(s->filled < s->rows);
        EngineRow row = row_of_slot(e, e->order[i]);
        row.position = s->filled;
        row.count = 1;
        row.tokens = s->tokens.count ? &s->tokens.items[s->tokens.count - 1] : &r->prompt[r->prompt_count - 1];
        row.sampling = &r->sampling;
        row.penalties = request_penalizes(r) ? &r->penalties : NULL;
        row.counted = s->tokens.count > 0;
        row.top = r->top;
        row.uniform = rng_uniform(r->sampling.seed, RNG_STREAM_SAMPLE, (r->number + (uint64_t)s->sample) << 24 | (uint64_t)(s->filled + 1));
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

static void stop_sequence(Engine *e, EngineSequence *s) {
    const EngineRequest *r = &s->owner->request;
    s->waits = r->wait && r->wait(r->context, s->sample);
    if (!s->waits) end_sequence(e, s, ENGINE_STOP);
}

/* Takes a sequence's new token. */
static void accept_token(Engine *e, EngineSequence *s, const EngineRow *row) {
    const EngineRequest *r = &s->owner->request;
    token_ids_append(&s->tokens, row->drawn.token);
    s->filled++;
    e->counts.tokens++;
    bool ends = is_end_token(r, row->drawn.token), stopped = !ends && !r->token(r->context, s->sample, &row->drawn);
    if (stopped && e->followers) engine_calls_end(&e->calls, r->context, s->sample);
    if (ends || stopped) stop_sequence(e, s);
    else if ((int64_t)s->tokens.count == r->tokens) end_sequence(e, s, ENGINE_LENGTH);
}

static bool has_waiting(const Engine *e) {
    for (int i = 0; i < e->running; i++)
        if (e->slots[e->order[i]].waits) return true;
    for (size_t i = 0; i < e->suspended_count; i++)
        if (e->suspended[i].waits) return true;
    return false;
}

static bool compute_step(Engine *e, Error *error) {
    engine_admit(e);
    int64_t before = e->counts.prompt_tokens + e->counts.copied_tokens;
    if (!fill_slots(e, error)) return false;
    remove_ended(e, false);
    int indices[ENGINE_MOST_SLOTS];
    int64_t count = take_rows(e, indices);
    e->waits = !count && e->counts.prompt_tokens + e->counts.copied_tokens == before && has_waiting(e);
    if (!count) return true;
    if (!engine_programs_next(e->programs, e->rows, count, error)) return false;
    e->counts.steps++;
    e->counts.sequences += count;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(e->rows[i].drawn.log_probability)) return fail_numerics(&e->slots[indices[i]], e->rows[i].position + 1, error);
    for (int64_t i = 0; i < count; i++) accept_token(e, &e->slots[indices[i]], &e->rows[i]);
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
static void ignore_sample_end(void *context, int sample, EngineEnd end) { (void)context, (void)sample, (void)end; }

static bool repeat_call(Engine *e, const EngineCall *call, void *memory, Error *error) {
    if (call->kind == ENGINE_CALL_CANCEL) engine_cancel(e, call->context);
    EngineSequence *ended = call->kind == ENGINE_CALL_END ? engine_find_sequence(e, call->context, call->sample) : NULL;
    if (ended) end_sequence(e, ended, ENGINE_STOP);
    if (call->kind != ENGINE_CALL_SUBMIT) return true;
    EngineRequest request = *call->submitted;
    request.token = ignore_token;
    request.scored = request.scored ? ignore_score : NULL;
    request.end = ignore_sample_end;
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

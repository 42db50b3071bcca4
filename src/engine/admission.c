/* Decides which sequences have slots and cache rows (engine_internal.h has the rules). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "engine/engine_internal.h"

/* A sequence begins with rows for 1 / LIMIT_SHARE of its limit, and grows by at least LEAST_GROWTH_ROWS,
 * but never beyond its limit. */
enum { LIMIT_SHARE = 8, LEAST_GROWTH_ROWS = 32 };

static bool is_older(const EngineSequence *a, const EngineSequence *b) {
    return a->owner->number < b->owner->number || (a->owner == b->owner && a->sample < b->sample);
}

static int64_t whole_rows(const EngineSequence *s) { return s->owner->request.prompt_count + s->owner->request.tokens; }

/* Returns the rows with which the next token can be computed. Padding of a block overwrites one row
 * after its tokens. */
static int64_t needed_rows(const EngineSequence *s) { return tokens_to_fill(s) + 1; }

/* Returns the rows with which a sequence begins: an equal share of all rows, or rows for its tokens and
 * a share of its limit, if that is more. A suspended sequence resumes with rows for at least twice its
 * drawn tokens, so that it is not soon suspended again. If RoPE grows with the text, the caches cannot
 * be recomputed from the tokens, so the sequence gets all its rows at once. */
static int64_t rows_at_begin(const Engine *e, const EngineSequence *s) {
    int64_t growth = int_max(divide_up(s->owner->request.tokens, LIMIT_SHARE), LEAST_GROWTH_ROWS);
    growth = int_max(growth, (int64_t)s->tokens.count);
    if (model_rope_grows(e->config)) return whole_rows(s);
    return int_min(int_max(needed_rows(s) + growth, e->sizes.cache_rows / e->sizes.slots), whole_rows(s));
}

/* -- Leaving ------------------------------------------------------------------------------------------------------- */

/* Takes a sequence out of its slot. */
static EngineSequence leave_slot(Engine *e, int slot) {
    EngineSequence sequence = e->slots[slot];
    int at = 0;
    while (e->order[at] != slot) at++;
    memmove(e->order + at, e->order + at + 1, (size_t)(--e->running - at) * sizeof *e->order);
    row_pool_give(&e->pool, sequence.first_row);
    e->slots[slot] = (EngineSequence){0};
    return sequence;
}

void engine_free_slot(Engine *e, int slot) {
    EngineSequence sequence = leave_slot(e, slot);
    token_ids_free(&sequence.tokens);
}

static EngineSequence take_suspended(Engine *e, size_t at) {
    EngineSequence sequence = e->suspended[at];
    memmove(e->suspended + at, e->suspended + at + 1, (--e->suspended_count - at) * sizeof *e->suspended);
    return sequence;
}

static void suspend_slot(Engine *e, int slot) {
    EngineSequence sequence = leave_slot(e, slot);
    sequence.filled = sequence.rows = 0;
    size_t at = e->suspended_count;
    array_append(e->suspended, e->suspended_count, sequence);
    for (; at > 0 && is_older(&sequence, &e->suspended[at - 1]); at--) e->suspended[at] = e->suspended[at - 1];
    e->suspended[at] = sequence;
    e->counts.suspended++;
}

void engine_free_suspended(Engine *e, const void *context) {
    for (size_t at = e->suspended_count; at-- > 0;) {
        if (context && e->suspended[at].owner->request.context != context) continue;
        EngineSequence sequence = take_suspended(e, at);
        token_ids_free(&sequence.tokens);
    }
}

EngineSequence *engine_find_sequence(Engine *e, const void *context, int sample) {
    for (int i = 0; i < e->running; i++) {
        EngineSequence *s = &e->slots[e->order[i]];
        if (s->owner->request.context == context && s->sample == sample) return s;
    }
    for (size_t i = 0; i < e->suspended_count; i++) {
        EngineSequence *s = &e->suspended[i];
        if (s->owner->request.context == context && s->sample == sample) return s;
    }
    return NULL;
}

void engine_drop_sequence(Engine *e, EngineSequence *sequence) {
    if (sequence >= e->slots && sequence < e->slots + e->sizes.slots) {
        engine_free_slot(e, (int)(sequence - e->slots));
        return;
    }
    EngineSequence taken = take_suspended(e, (size_t)(sequence - e->suspended));
    token_ids_free(&taken.tokens);
}

/* -- Growing ------------------------------------------------------------------------------------------------------- */

/* Makes a sequence's range `count` rows long, in place or by moving it. */
static bool extend_rows(Engine *e, EngineSequence *s, int64_t count) {
    if (!row_pool_extend(&e->pool, s->first_row, count)) {
        int64_t first = row_pool_take(&e->pool, count);
        if (first < 0) return false;
        engine_programs_move(e->programs, first, s->first_row, s->filled);
        row_pool_give(&e->pool, s->first_row);
        s->first_row = first;
        e->counts.moved++;
    }
    s->rows = count;
    return true;
}

/* Doubles the rows after the prompt; if no range is long enough, adds LEAST_GROWTH_ROWS. */
static bool grow_rows(Engine *e, EngineSequence *s) {
    int64_t prompt = s->owner->request.prompt_count, doubled = prompt + 2 * (s->rows - prompt), few = needed_rows(s) + LEAST_GROWTH_ROWS;
    return extend_rows(e, s, int_min(int_max(doubled, few), whole_rows(s))) || extend_rows(e, s, int_min(few, whole_rows(s)));
}

/* Gives a sequence the rows of its next token. If none are free, suspends the youngest sequences, which
 * may include this one. */
static void provide_rows(Engine *e, int slot) {
    EngineSequence *s = &e->slots[slot];
    while (s->owner && !s->waits && needed_rows(s) > s->rows && !grow_rows(e, s)) suspend_slot(e, e->order[e->running - 1]);
}

/* -- Beginning ----------------------------------------------------------------------------------------------------- */

static int find_empty_slot(const Engine *e) {
    int slot = 0;
    while (slot < e->sizes.slots && e->slots[slot].owner) slot++;
    return slot < e->sizes.slots ? slot : -1;
}

/* Puts a sequence into a slot; false if there is none, or if there are no rows for it. */
static bool enter_slot(Engine *e, const EngineSequence *sequence) {
    const EngineRequest *r = &sequence->owner->request;
    int slot = find_empty_slot(e), at = e->running;
    int64_t rows = rows_at_begin(e, sequence), first_row = slot < 0 ? -1 : row_pool_take(&e->pool, rows);
    if (first_row < 0) return false;
    e->slots[slot] = *sequence;
    e->slots[slot].first_row = first_row;
    e->slots[slot].rows = rows;
    for (; at > 0 && is_older(sequence, &e->slots[e->order[at - 1]]); at--) e->order[at] = e->order[at - 1];
    e->order[at] = slot;
    e->running++;
    int64_t counted = int_max((int64_t)sequence->tokens.count - 1, 0); /* the program counts the newest token */
    if (request_penalizes(r)) engine_programs_begin_penalties(e->programs, slot, r, sequence->tokens.items, counted);
    return true;
}

/* Returns false if a sequence that does not wait stays suspended. */
static bool begin_suspended(Engine *e) {
    for (size_t at = 0; at < e->suspended_count;) {
        if (e->suspended[at].waits) {
            at++;
            continue;
        }
        if (!enter_slot(e, &e->suspended[at])) return false;
        take_suspended(e, at);
    }
    return true;
}

static void begin_queued(Engine *e) {
    for (QueuedRequest *queued = e->first; queued; queued = queued->next)
        for (; queued->begun < queued->request.samples; queued->begun++)
            if (!enter_slot(e, &(EngineSequence){.owner = queued, .sample = queued->begun})) return;
}

/* Asserts what engine_internal.h promises. */
static void check_sequences(const Engine *e) {
    for (int i = 0; i < e->running; i++) {
        const EngineSequence *s = &e->slots[e->order[i]];
        assert(s->owner && needed_rows(s) <= whole_rows(s) && s->filled <= s->rows && s->rows <= whole_rows(s));
        assert(s->waits || needed_rows(s) <= s->rows);
        assert(i == 0 || is_older(&e->slots[e->order[i - 1]], s));
    }
    for (size_t i = 1; i < e->suspended_count; i++) assert(is_older(&e->suspended[i - 1], &e->suspended[i]));
}

void engine_admit(Engine *e) {
    int slots[ENGINE_MOST_SLOTS], count = e->running;
    memcpy(slots, e->order, (size_t)count * sizeof *slots);
    for (int i = 0; i < count; i++) provide_rows(e, slots[i]);
    if (begin_suspended(e)) begin_queued(e);
    check_sequences(e);
}

/* The sequences of an engine. A sequence is either active, with a slot, an entry in `order` and a range
 * of cache rows, or suspended, with none of these. admission.c decides which; engine.c computes the
 * active sequences.
 *
 * Rows. A sequence begins with rows for its tokens and a share of its limit. As it grows, its range is
 * extended, or its cache is copied to a longer free range. If neither is possible, the youngest
 * sequence is suspended; its tokens are recomputed when there are rows for it.
 *
 * Progress. A sequence is younger than another if its request was submitted later, or if it is a
 * later sample of the same request. A sequence gives its rows only to older sequences. A suspended
 * sequence that does not wait resumes before younger sequences begin, with rows for at least one token
 * more than it has. No request needs more rows than the caches have. The oldest sequence that does
 * not wait therefore gets its tokens, and every sequence ends. */
#pragma once

#include "engine/calls_internal.h"
#include "engine/engine.h"
#include "engine/programs_internal.h"
#include "engine/rows_internal.h"
#include "token/tokenizer.h"

typedef struct QueuedRequest {
    EngineRequest request;
    uint64_t number;  /* in order of submission */
    void *memory;     /* of a request that another rank sent, owned; NULL: the request is the caller's */
    int begun, ended; /* samples */
    struct QueuedRequest *next;
} QueuedRequest;

/* A sample that has begun and has not ended. */
typedef struct EngineSequence {
    QueuedRequest *owner; /* NULL: none */
    int sample;
    int64_t first_row, rows; /* the range in the caches */
    int64_t filled;          /* tokens in the caches, from the first token of the prompt on; at most rows */
    int64_t scored;          /* tokens of the prompt that EngineRequest.scored has received */
    bool waits;
    TokenIds tokens; /* after the prompt: drawn and appended */
} EngineSequence;

struct Engine {
    const ModelConfig *config;
    EngineSizes sizes;
    EnginePrograms *programs;
    QueuedRequest *first, **end; /* the queue, by submission, with requests that have begun */
    uint64_t submitted;
    EngineSequence *slots; /* [sizes.slots] */
    int *order;            /* of `running` slots, the oldest first */
    int running;
    EngineSequence *suspended; /* the oldest first */
    size_t suspended_count;
    EngineRow *rows; /* of a step */
    RowPool pool;
    EngineCounts counts;
    bool waits;
    Comm *followers;   /* the ranks that repeat the calls; NULL: none */
    EngineCalls calls; /* since the last step */
};

static inline bool request_penalizes(const EngineRequest *r) {
    const EnginePenalties *p = &r->penalties;
    return (p->repetition > 0 && p->repetition != 1) || p->presence != 0 || p->frequency != 0 || p->bias_count > 0;
}

/* Returns how many tokens of a sequence are in the caches when its next one is drawn. */
static inline int64_t tokens_to_fill(const EngineSequence *s) { return s->owner->request.prompt_count - 1 + (int64_t)s->tokens.count; }

/* Gives active sequences the rows of their next tokens, then free slots and rows to suspended sequences
 * and to the next samples of the queue, in this order. */
void engine_admit(Engine *e);
/* Frees the slot and the tokens of a sequence that has ended. */
void engine_free_slot(Engine *e, int slot);
/* Frees suspended sequences of the requests with this context, or all (NULL). */
void engine_free_suspended(Engine *e, const void *context);
/* Returns a sequence in a slot or a suspended one; NULL: none. */
EngineSequence *engine_find_sequence(Engine *e, const void *context, int sample);
/* Ends a sequence that engine_find_sequence returned, without a call. */
void engine_drop_sequence(Engine *e, EngineSequence *sequence);

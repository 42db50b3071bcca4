/* Batches, prefetched by one thread into a ring of LOADER_RING buffers. The loader owns the ring
 * (one mapping) and the thread; the trainer and the evaluator hold one batch at a time. Data that
 * cannot be read ends the thread after the earlier batches are delivered.
 *
 * The batches of this loader are numbered from 0; batch n is in slot n % LOADER_RING. `filled`
 * batches are complete; the consumer has released the batches below `released` and holds at most
 * one, batch `released`. Therefore released <= filled <= released + LOADER_RING (ring_check). The
 * pages of `requested` batches were requested from the system, at most `ahead` more than are
 * filled. */
#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "data/loader.h"

enum { LOADER_RING = 4, LOADER_ARRAYS = 3 };

/* The writable side of a Batch. */
typedef struct BatchSlot {
    int32_t *tokens, *targets, *positions;
    BatchPair *pairs; /* [pair_capacity] */
    size_t pair_count, pair_capacity;
    int64_t number; /* the number of its batch among all batches from the first sample on */
} BatchSlot;

struct Loader {
    LoaderOptions options;
    LoaderSource *sources; /* options.sources */
    int64_t length, first_sample;
    int64_t end; /* end of the samples that are read */
    int32_t *arena;
    size_t arena_bytes;
    BatchSlot slots[LOADER_RING];
    Batch batch; /* the batch that the consumer holds */
    bool holding;
    int64_t filled, released; /* under the mutex */
    int64_t requested, ahead; /* used only by the thread */
    int64_t *numbers;         /* [ahead]: number of batch n at n % ahead */
    Error error;              /* under the mutex: the reason why batch `filled` will not come */
    int32_t *read;            /* [length + 1]: tokens and their last target, used by the thread */
    uint8_t *marks;           /* [length + 1]: their TokenMarks */
    atomic_bool stop;         /* set under the mutex, read between sequences without it */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
};

/* -- Filling ----------------------------------------------------------------------------------------------------- */

/* Restarts positions after each end of a document; the last token of a document has no target. */
static void mask_documents(const Loader *loader, const BatchSlot *at, int64_t count) {
    int32_t position = 0;
    for (int64_t i = 0; i < count; i++) {
        at->positions[i] = position++;
        if (!(loader->marks[i] & TOKEN_ENDS) && at->tokens[i] != loader->options.separator) continue;
        at->targets[i] = -1;
        position = 0;
    }
}

/* Removes untrained tokens from the targets. `read` is the number of places, or one more. */
static void mask_targets(const Loader *loader, const BatchSlot *at, int64_t read) {
    for (int64_t i = 1; i < read; i++)
        if (loader->marks[i] & TOKEN_UNTRAINED) at->targets[i - 1] = -1;
}

/* Fills `count` places with tokens of the stream from `start` on. The token after them is the last
 * target, if it exists. */
static bool fill_tokens(Loader *loader, const ShardSet *set, int64_t start, int64_t count, const BatchSlot *at, Error *error) {
    const LoaderOptions *options = &loader->options;
    int64_t read = int_min(count + 1, set->token_count - start);
    uint8_t *marks = options->document_mask || set->masked ? loader->marks : NULL;
    if (!shard_set_read(set, start, read, options->vocabulary, loader->read, marks, error)) return false;
    memcpy(at->tokens, loader->read, (size_t)count * sizeof *at->tokens);
    memcpy(at->targets, loader->read + 1, (size_t)(read - 1) * sizeof *at->targets);
    if (read == count) at->targets[count - 1] = -1;
    if (set->masked) mask_targets(loader, at, read);
    if (options->document_mask) mask_documents(loader, at, count);
    for (int64_t i = 0; i < count && !options->document_mask; i++) at->positions[i] = (int32_t)i;
    return true;
}

static BatchSlot slot_at(const BatchSlot *slot, int64_t offset) {
    return (BatchSlot){.tokens = slot->tokens + offset, .targets = slot->targets + offset, .positions = slot->positions + offset};
}

static void fill_padding(const BatchSlot *at, int64_t count) {
    size_t bytes = (size_t)count * sizeof *at->tokens;
    memset(at->tokens, 0, bytes);
    memset(at->targets, -1, bytes);
    memset(at->positions, 0, bytes);
}

/* Returns the parts of the stream that make up a sample. A draw from bins names a whole bin. */
static const BinPart *sample_parts(const Loader *loader, const Draw *draw, BinPart *cut, int64_t *count) {
    const BinPlan *bins = loader->options.sources[draw->source].bins;
    *cut = (BinPart){draw->start, draw->count};
    *count = 1;
    if (!bins) return cut;
    const int64_t *first = &bins->first_part[draw->start / bins->length];
    *count = first[1] - first[0];
    return bins->parts + first[0];
}

/* Records the pair in the slot from `row` on: its first document ends at the start of the
 * second. */
static bool add_pair(const ShardSet *set, BatchSlot *slot, int64_t row, const BinPart *part, Error *error) {
    int64_t middle = row + 1, end = row + part->count;
    while (middle < end && slot->positions[middle] != 0) middle++;
    if (end - middle < 2 || middle - row < 2)
        return error_set(error, ERROR_DATA,
            "%s has no preference pair (two documents of at least two tokens) at token %" PRId64 ": pack it again", set->path, part->start);
    array_reserve(slot->pairs, slot->pair_capacity, slot->pair_count + 1);
    slot->pairs[slot->pair_count++] = (BatchPair){(int32_t)row, (int32_t)middle, (int32_t)end, part->start};
    return true;
}

/* Fills the places of the slot from `first` on with a sequence. */
static bool fill_sequence(Loader *loader, int64_t sample, BatchSlot *slot, int64_t first, Error *error) {
    int64_t filled = 0, count = 0;
    if (sample < loader->end) {
        BinPart cut;
        Draw draw = order_draw(loader->options.order, sample);
        const BinPart *parts = sample_parts(loader, &draw, &cut, &count);
        for (int64_t i = 0; i < count; filled += parts[i++].count) {
            const ShardSet *set = loader->options.sources[draw.source].set;
            BatchSlot at = slot_at(slot, first + filled);
            if (!fill_tokens(loader, set, parts[i].start, parts[i].count, &at, error)) return false;
            if (set->pairs && !add_pair(set, slot, first + filled, &parts[i], error)) return false;
        }
    }
    BatchSlot rest = slot_at(slot, first + filled);
    fill_padding(&rest, loader->length - filled);
    return true;
}

static int64_t first_of_batch(const Loader *loader, int64_t number) { return loader->first_sample + number * loader->options.sequences; }

static void request_sequence(const Loader *loader, int64_t sample) {
    BinPart cut;
    int64_t count;
    Draw draw = order_draw(loader->options.order, sample);
    const BinPart *parts = sample_parts(loader, &draw, &cut, &count);
    const ShardSet *set = loader->options.sources[draw.source].set;
    for (int64_t i = 0; i < count; i++)
        shard_set_prefetch(set, parts[i].start, int_min(parts[i].count + 1, set->token_count - parts[i].start));
}

/* Asks the system to read whole batches ahead. */
static void request_batches(Loader *loader, int64_t filled) {
    for (; loader->requested < filled + loader->ahead; loader->requested++) {
        int64_t number = loader->options.pick ? loader->options.pick(loader->options.pick_context) : loader->requested;
        int64_t first = first_of_batch(loader, number);
        loader->numbers[loader->requested % loader->ahead] = number;
        for (int64_t i = 0; i < loader->options.sequences && first + i < loader->end && !atomic_load(&loader->stop); i++)
            request_sequence(loader, first + i);
    }
}

static bool fill_batch(Loader *loader, int64_t batch, Error *error) {
    BatchSlot *slot = &loader->slots[batch % LOADER_RING];
    request_batches(loader, batch);
    slot->number = loader->numbers[batch % loader->ahead];
    slot->pair_count = 0;
    for (int64_t i = 0; i < loader->options.sequences && !atomic_load(&loader->stop); i++)
        if (!fill_sequence(loader, first_of_batch(loader, slot->number) + i, slot, i * loader->length, error)) return false;
    return true;
}

/* Checks the invariants; the caller holds the mutex. */
static void ring_check(const Loader *loader) {
    assert(loader->released <= loader->filled && loader->filled <= loader->released + LOADER_RING);
    assert(!loader->holding || loader->released < loader->filled);
}

/* Fills batches until one cannot be read. */
static void *loader_run(void *argument) {
    Loader *loader = argument;
    pthread_mutex_lock(&loader->mutex);
    while (loader->error.code == ERROR_NONE) {
        while (!loader->stop && loader->filled == loader->released + LOADER_RING) pthread_cond_wait(&loader->changed, &loader->mutex);
        if (loader->stop) break;
        int64_t batch = loader->filled;
        pthread_mutex_unlock(&loader->mutex);
        Error error = {0};
        bool filled = fill_batch(loader, batch, &error);
        pthread_mutex_lock(&loader->mutex);
        loader->error = error;
        loader->filled += filled;
        ring_check(loader);
        pthread_cond_broadcast(&loader->changed);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

/* -- Opening ----------------------------------------------------------------------------------------------------- */

static bool check_loader_options(const LoaderOptions *options, int64_t first_sample, Error *error) {
    int64_t values, length = order_phase_length(options->order, options->phase);
    if (options->sequences < 1 || length > INT32_MAX)
        return error_set(error, ERROR_USAGE,
            "a batch of %" PRId64 " sequences of %" PRId64 " tokens is not possible: use at least 1 sequence of 1 to %d tokens",
            options->sequences, length, INT32_MAX);
    if (__builtin_mul_overflow(options->sequences, length, &values) ||
        __builtin_mul_overflow(values, (int64_t)LOADER_RING * LOADER_ARRAYS * (int64_t)sizeof(int32_t), &values))
        return error_set(error, ERROR_USAGE,
            "a batch of %" PRId64 " sequences of %" PRId64 " tokens exceeds the address space: reduce batch.sequences or data.length",
            options->sequences, length);
    if (first_sample < 0 || first_sample > INT64_MAX / 2)
        return error_set(error, ERROR_USAGE,
            "the data cursor is %" PRId64 " but must be 0 to %" PRId64 ": resume from an intact checkpoint", first_sample, INT64_MAX / 2);
    return true;
}

static bool check_sources(const LoaderOptions *options, Error *error) {
    for (int i = 0; i < order_sources(options->order); i++) {
        const ShardSet *set = options->sources[i].set;
        assert(!options->sources[i].bins || options->document_mask);
        if (set->pairs && !options->sources[i].bins)
            return error_set(error, ERROR_DATA,
                "%s holds preference pairs, which only smelt train preference.loss=dpo reads: use other data", set->path);
        if (set->max_token >= options->vocabulary)
            return error_set(error, ERROR_DATA,
                "%s has token %" PRId64 ", but the vocabulary has %" PRId32
                " tokens: pack the corpus with the model's tokenizer, or increase the vocabulary",
                set->path, set->max_token, options->vocabulary);
    }
    return true;
}

/* Returns the number of batches to request ahead: the most that is useful for any source. */
static int64_t batches_ahead(const Loader *loader) {
    int64_t sequences = 1;
    for (int i = 0; i < order_sources(loader->options.order); i++)
        sequences = int_max(sequences, shard_set_ahead(loader->sources[i].set, loader->length));
    return divide_up(sequences, loader->options.sequences);
}

static bool allocate_ring(Loader *loader, Error *error) {
    size_t values = (size_t)loader->options.sequences * (size_t)loader->length;
    size_t bytes = values * LOADER_RING * LOADER_ARRAYS * sizeof(int32_t);
    loader->arena = memory_map(bytes, error);
    if (!loader->arena) return error_context(error, "batches of %s", loader->options.sources->set->path);
    loader->arena_bytes = bytes;
    for (int i = 0; i < LOADER_RING; i++) {
        int32_t *base = loader->arena + (size_t)i * LOADER_ARRAYS * values;
        loader->slots[i] = (BatchSlot){.tokens = base, .targets = base + values, .positions = base + 2 * values};
    }
    return true;
}

static bool start_thread(Loader *loader, Error *error) {
    int status = thread_start(&loader->thread, loader_run, loader);
    return status == 0 ||
           error_set(error, ERROR_INTERNAL, "cannot start the data thread: %s; raise the limit on processes (ulimit -u)", strerror(status));
}

static void loader_free(Loader *loader) {
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    if (loader->arena) memory_unmap(loader->arena, loader->arena_bytes);
    for (int i = 0; i < LOADER_RING; i++) free(loader->slots[i].pairs);
    free(loader->sources);
    free(loader->numbers);
    free(loader->read);
    free(loader->marks);
    free(loader);
}

Loader *loader_open(const LoaderOptions *options, int64_t first_sample, Error *error) {
    if (!check_loader_options(options, first_sample, error) || !check_sources(options, error)) return NULL;
    Loader *loader = memory_allocate(sizeof *loader);
    size_t sources = (size_t)order_sources(options->order) * sizeof(LoaderSource);
    loader->options = *options;
    loader->options.sources = loader->sources = memcpy(memory_allocate(sources), options->sources, sources);
    loader->length = order_phase_length(options->order, options->phase);
    loader->end = order_phase_start(options->order, options->phase + 1);
    if (options->end) loader->end = int_min(loader->end, options->end);
    loader->first_sample = first_sample;
    loader->ahead = batches_ahead(loader);
    loader->numbers = memory_allocate((size_t)loader->ahead * sizeof *loader->numbers);
    loader->read = memory_allocate((size_t)(loader->length + 1) * sizeof *loader->read);
    loader->marks = memory_allocate((size_t)(loader->length + 1) * sizeof *loader->marks);
    atomic_init(&loader->stop, false);
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);
    if (allocate_ring(loader, error) && start_thread(loader, error)) return loader;
    loader_free(loader);
    return NULL;
}

static bool is_stop_asked(const Loader *loader) { return loader->options.stop && loader->options.stop->signal; }

const Batch *loader_next(Loader *loader, Error *error) {
    const double STOP_SECONDS = 0.1; /* a signal wakes no thread, so the wait polls */
    pthread_mutex_lock(&loader->mutex);
    if (loader->holding) {
        loader->holding = false;
        loader->released++;
        pthread_cond_broadcast(&loader->changed);
    }
    while (loader->filled == loader->released && loader->error.code == ERROR_NONE && !is_stop_asked(loader))
        thread_wait_until(&loader->changed, &loader->mutex, log_seconds() + STOP_SECONDS);
    int64_t number = loader->released;
    loader->holding = loader->filled > number;
    if (!loader->holding) *error = loader->error;
    if (!loader->holding && error->code == ERROR_NONE) error_set(error, ERROR_DATA, "stopped while waiting for data");
    pthread_mutex_unlock(&loader->mutex);
    if (!loader->holding) return NULL;
    const BatchSlot *slot = &loader->slots[number % LOADER_RING];
    loader->batch =
        (Batch){slot->tokens, slot->targets, slot->positions, first_of_batch(loader, slot->number), slot->pairs, (int64_t)slot->pair_count};
    return &loader->batch;
}

void loader_close(Loader *loader) {
    if (!loader) return;
    pthread_mutex_lock(&loader->mutex);
    atomic_store(&loader->stop, true);
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    for (int i = 0; i < order_sources(loader->options.order); i++) shard_set_interrupt(loader->sources[i].set, true);
    pthread_join(loader->thread, NULL);
    for (int i = 0; i < order_sources(loader->options.order); i++) shard_set_interrupt(loader->sources[i].set, false);
    loader_free(loader);
}

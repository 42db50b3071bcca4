/* Batches, prefetched by one thread into a ring of LOADER_RING buffers. The loader owns the ring (one mapping) and
 * the thread; the trainer and the evaluator hold one batch at a time. Data that cannot be read ends the thread, and the
 * batches before it are given out first.
 *
 * The batches that this loader gives are numbered from 0; batch n lies in slot n % LOADER_RING. `filled` batches are
 * complete, the consumer has released those below `released` and holds at most one: batch `released`. So
 * released <= filled <= released + LOADER_RING (ring_check). */
#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/thread.h"
#include "data/data.h"

enum { LOADER_RING = 4, LOADER_ARRAYS = 3 };

/* The writable side of a Batch. */
typedef struct Slot {
    int32_t *tokens, *targets, *positions;
    int64_t number; /* of its batch among all batches from the first sample on */
} Slot;

struct Loader {
    LoaderOptions options;
    int64_t samples, first_sample;
    int32_t *arena;
    size_t arena_bytes;
    Slot slots[LOADER_RING];
    Batch batch; /* the one that the consumer holds */
    bool holding;
    int64_t filled, released; /* under the mutex */
    Error error;              /* under the mutex: why batch `filled` will not come */
    int32_t *read;            /* [length + 1]: a sequence and its last target, on the thread */
    uint8_t *ends;            /* [length + 1]: where documents end in it */
    atomic_bool stop;         /* set under the mutex, read between sequences without it */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
};

int64_t loader_sample_index(uint64_t seed, bool shuffle, int64_t draw, int64_t samples) {
    assert(draw >= 0 && samples >= 1);
    uint64_t epoch = (uint64_t)(draw / samples), index = (uint64_t)(draw % samples);
    if (!shuffle) return (int64_t)index;
    RngBits bits = rng_bits(seed, RNG_STREAM_SHUFFLE, epoch);
    uint64_t epoch_seed = (uint64_t)bits.word[0] << 32 | bits.word[1];
    return (int64_t)rng_permute(epoch_seed, RNG_STREAM_SHUFFLE, index, (uint64_t)samples);
}

/* -- Filling ----------------------------------------------------------------------------------------------------- */

/* Positions restart behind each end of a document, whose last token has no target. */
static void mask_documents(const LoaderOptions *options, const uint8_t *ends, const Slot *row) {
    int32_t position = 0;
    for (int64_t i = 0; i < options->length; i++) {
        row->positions[i] = position++;
        if (!ends[i] && row->tokens[i] != options->separator) continue;
        row->targets[i] = -1;
        position = 0;
    }
}

/* Reads one token more than the sequence has, the last target: `read` has room for it. */
static bool fill_sequence(Loader *loader, int64_t start, const Slot *row, Error *error) {
    const LoaderOptions *options = &loader->options;
    int64_t length = options->length;
    uint8_t *ends = options->document_mask ? loader->ends : NULL;
    if (!shard_set_read(options->set, start, length + 1, options->vocabulary, loader->read, ends, error)) return false;
    memcpy(row->tokens, loader->read, (size_t)length * sizeof *row->tokens);
    memcpy(row->targets, loader->read + 1, (size_t)length * sizeof *row->targets);
    if (ends) mask_documents(options, ends, row);
    for (int64_t i = 0; i < length && !ends; i++) row->positions[i] = (int32_t)i;
    return true;
}

static int64_t sequence_start(const Loader *loader, int64_t number, int64_t sequence) {
    const LoaderOptions *options = &loader->options;
    int64_t draw = loader->first_sample + number * options->sequences + sequence;
    return loader_sample_index(options->seed, options->shuffle, draw, loader->samples) * options->length;
}

/* Asks the system to read all sequences of a batch at once, so that a cold disk sees many requests at a time. */
static void request_pages(const Loader *loader, int64_t number) {
    for (int64_t i = 0; i < loader->options.sequences && !atomic_load(&loader->stop); i++)
        shard_set_prefetch(loader->options.set, sequence_start(loader, number, i), loader->options.length + 1);
}

static bool fill_batch(Loader *loader, int64_t batch, Error *error) {
    Slot *slot = &loader->slots[batch % LOADER_RING];
    slot->number = loader->options.pick ? loader->options.pick(loader->options.pick_context) : batch;
    request_pages(loader, slot->number);
    for (int64_t i = 0; i < loader->options.sequences && !atomic_load(&loader->stop); i++) {
        int64_t offset = i * loader->options.length;
        Slot row = {.tokens = slot->tokens + offset, .targets = slot->targets + offset, .positions = slot->positions + offset};
        if (!fill_sequence(loader, sequence_start(loader, slot->number, i), &row, error)) return false;
    }
    return true;
}

/* Call it with the mutex locked. */
static void ring_check(const Loader *loader) {
    assert(loader->released <= loader->filled && loader->filled <= loader->released + LOADER_RING);
    assert(!loader->holding || loader->released < loader->filled);
}

/* Ends with the first batch that cannot be read. */
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

static bool check_options(const LoaderOptions *options, int64_t first_sample, Error *error) {
    int64_t values;
    if (options->sequences < 1 || options->length < 1 || options->length > INT32_MAX)
        return error_set(error, ERROR_USAGE,
            "a batch of %" PRId64 " sequences of %" PRId64 " tokens was asked for; give at least 1 of each, and at most %d tokens",
            options->sequences, options->length, INT32_MAX);
    if (__builtin_mul_overflow(options->sequences, options->length, &values) ||
        __builtin_mul_overflow(values, (int64_t)LOADER_RING * LOADER_ARRAYS * (int64_t)sizeof(int32_t), &values))
        return error_set(error, ERROR_USAGE,
            "a batch of %" PRId64 " sequences of %" PRId64 " tokens does not fit into any memory; make it smaller", options->sequences,
            options->length);
    if (first_sample < 0 || first_sample > INT64_MAX / 2)
        return error_set(error, ERROR_USAGE,
            "the data cursor is %" PRId64 " but it must be 0 to %" PRId64 "; resume from an intact checkpoint", first_sample,
            INT64_MAX / 2);
    return true;
}

static bool check_corpus(const LoaderOptions *options, Error *error) {
    const ShardSet *set = options->set;
    if (set->token_count <= options->length)
        return error_set(error, ERROR_DATA,
            "%s has %" PRId64 " tokens but one sequence of %" PRId64 " needs %" PRId64
            " with its last target; pack more text or shorten the sequences",
            set->path, set->token_count, options->length, options->length + 1);
    return set->max_token < options->vocabulary ||
           error_set(error, ERROR_DATA,
               "%s has tokens up to %" PRId64 " but the vocabulary has %" PRId32
               " tokens; pack the corpus with the model's tokenizer or give the model a larger vocabulary",
               set->path, set->max_token, options->vocabulary);
}

static bool allocate_ring(Loader *loader, Error *error) {
    size_t values = (size_t)loader->options.sequences * (size_t)loader->options.length;
    size_t bytes = values * LOADER_RING * LOADER_ARRAYS * sizeof(int32_t);
    loader->arena = memory_map(bytes, error);
    if (!loader->arena) return error_context(error, "batches of %s", loader->options.set->path);
    loader->arena_bytes = bytes;
    for (int i = 0; i < LOADER_RING; i++) {
        int32_t *base = loader->arena + (size_t)i * LOADER_ARRAYS * values;
        loader->slots[i] = (Slot){.tokens = base, .targets = base + values, .positions = base + 2 * values};
    }
    return true;
}

static bool start_thread(Loader *loader, Error *error) {
    int status = thread_start(&loader->thread, loader_run, loader);
    return status == 0 ||
           error_set(error, ERROR_INTERNAL, "cannot start the data thread: %s; raise the limit on threads (ulimit -u)", strerror(status));
}

static void loader_free(Loader *loader) {
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    if (loader->arena) memory_unmap(loader->arena, loader->arena_bytes);
    free(loader->read);
    free(loader->ends);
    free(loader);
}

Loader *loader_open(const LoaderOptions *options, int64_t first_sample, Error *error) {
    if (!check_options(options, first_sample, error) || !check_corpus(options, error)) return NULL;
    Loader *loader = memory_allocate(sizeof *loader);
    loader->options = *options;
    loader->samples = (options->set->token_count - 1) / options->length;
    loader->first_sample = first_sample;
    loader->read = memory_allocate((size_t)(options->length + 1) * sizeof *loader->read);
    loader->ends = memory_allocate((size_t)(options->length + 1) * sizeof *loader->ends);
    atomic_init(&loader->stop, false);
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->changed, NULL);
    if (allocate_ring(loader, error) && start_thread(loader, error)) return loader;
    loader_free(loader);
    return NULL;
}

int64_t loader_samples(const Loader *loader) { return loader->samples; }

const Batch *loader_next(Loader *loader, Error *error) {
    pthread_mutex_lock(&loader->mutex);
    if (loader->holding) {
        loader->released++;
        pthread_cond_broadcast(&loader->changed);
    }
    while (loader->filled == loader->released && loader->error.code == ERROR_NONE) pthread_cond_wait(&loader->changed, &loader->mutex);
    int64_t number = loader->released;
    loader->holding = loader->filled > number;
    if (!loader->holding) *error = loader->error;
    pthread_mutex_unlock(&loader->mutex);
    if (!loader->holding) return NULL;
    const Slot *slot = &loader->slots[number % LOADER_RING];
    loader->batch = (Batch){slot->tokens, slot->targets, slot->positions, loader->first_sample + slot->number * loader->options.sequences};
    return &loader->batch;
}

void loader_close(Loader *loader) {
    if (!loader) return;
    pthread_mutex_lock(&loader->mutex);
    atomic_store(&loader->stop, true);
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->thread, NULL);
    loader_free(loader);
}

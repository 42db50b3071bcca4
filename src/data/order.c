/* The order of a run's samples, as docs/data.md derives it. Three permutations, none of them
 * stored: the samples of a block alternate among the sources; the units of a source (pieces of the
 * longest sequence length that any phase cuts it into) are shuffled in every epoch; and if a phase
 * has shorter sequences, the pieces of the units that it reads are shuffled among themselves. An
 * Order holds one record for each source in each phase and is immutable, so any thread may query
 * it. Called by the loader, and by training, which plans and prints mixtures.
 *
 * A source is a line of inputs that is read repeatedly. A Cursor is a place on it, in the order in
 * which units are read. Each phase continues each source where the previous phase stopped, so an
 * epoch that spans phases of different lengths has every token once. Sequences begin at multiples
 * of the phase's length in the epoch: the first sequence of a phase omits the inputs that an
 * earlier phase has read, and the last of an epoch ends with the source. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "data/mixture.h"

/* 0 <= offset < the source's inputs. */
typedef struct SourceCursor { int64_t epoch, offset; } SourceCursor;

/* A source in a phase. */
typedef struct SourceShare {
    int64_t whole, rest;     /* its samples in a block of ORDER_BLOCK, and in the phase's last block if it is shorter */
    SourceCursor start, end; /* of the phase; the end of an unlimited phase is never reached */
    int64_t first_piece;     /* counted from the run's first piece, as if all phases had this phase's length */
    int64_t skipped;         /* inputs of the first piece that earlier phases have read */
} SourceShare;

typedef struct OrderedPhase {
    int64_t first, samples, length;
    int sources; /* number of sources with samples in it */
    SourceShare *shares;
} OrderedPhase;

typedef struct OrderSource {
    char *name;
    int64_t inputs, unit;
    uint64_t seed;
} OrderSource;

struct Order {
    uint64_t seed;
    bool shuffle;
    int source_count, phase_count;
    OrderSource *sources;
    OrderedPhase *phases;
};

static uint64_t derive_seed(uint64_t seed, uint64_t stream, uint64_t index) {
    RngBits bits = rng_bits(seed, stream, index);
    return (uint64_t)bits.word[0] << 32 | bits.word[1];
}

/* -- Places ------------------------------------------------------------------------------------------------------ */

static int64_t pieces_of_epoch(const OrderSource *source, int64_t length) { return divide_up(source->inputs, length); }

/* Returns the cursor after `samples` pieces of a phase that begins at `start`. */
static SourceCursor advance_source(const OrderSource *source, int64_t length, SourceCursor start, int64_t samples) {
    if (samples == 0) return start;
    int64_t pieces = pieces_of_epoch(source, length), piece = start.epoch * pieces + start.offset / length + samples;
    return (SourceCursor){.epoch = piece / pieces, .offset = piece % pieces * length};
}

/* Counts the samples of a source among the first `samples` of a phase, which end at a whole block
 * or at the phase's end. */
static int64_t samples_of_blocks(const OrderedPhase *phase, const SourceShare *share, int64_t samples) {
    int64_t rest = samples % ORDER_BLOCK;
    assert(rest == 0 || samples == phase->samples);
    return samples / ORDER_BLOCK * share->whole + (rest ? share->rest : 0);
}

/* -- Drawing ----------------------------------------------------------------------------------------------------- */

/* The source of a sample of a phase, and how many samples of this source precede it in the
 * phase. */
typedef struct Turn {
    int source;
    int64_t index;
} Turn;

static Turn take_turn(const Order *order, int number, int64_t sample) {
    const OrderedPhase *phase = &order->phases[number];
    int64_t block = sample / ORDER_BLOCK, size = int_min(ORDER_BLOCK, phase->samples - block * ORDER_BLOCK);
    uint64_t place = (uint64_t)(sample % ORDER_BLOCK);
    if (phase->sources > 1) {
        uint64_t seed = derive_seed(derive_seed(order->seed, RNG_STREAM_MIXTURE, (uint64_t)number), RNG_STREAM_MIXTURE, (uint64_t)block);
        place = rng_permute(seed, RNG_STREAM_MIXTURE, place, (uint64_t)size);
    }
    int64_t left = (int64_t)place;
    for (int source = 0;; source++) {
        assert(source < order->source_count);
        const SourceShare *share = &phase->shares[source];
        int64_t count = size == ORDER_BLOCK ? share->whole : share->rest;
        if (left < count) return (Turn){source, block * share->whole + left};
        left -= count;
    }
}

/* Shuffles the pieces of an epoch that a phase reads among themselves. */
static int64_t shuffle_piece(
    const OrderSource *source, const OrderedPhase *phase, const SourceShare *share, uint64_t seed, int64_t epoch, int64_t piece) {
    int64_t low = epoch == share->start.epoch ? share->start.offset / phase->length : 0;
    int64_t high = epoch == share->end.epoch ? share->end.offset / phase->length : pieces_of_epoch(source, phase->length);
    return low + (int64_t)rng_permute(seed, RNG_STREAM_PIECES, (uint64_t)(piece - low), (uint64_t)(high - low));
}

/* Returns the place of the input that is read as number `offset`, after the units of the epoch are
 * shuffled. The rest after the last whole unit stays at the end. */
static int64_t shuffle_unit(const OrderSource *source, uint64_t seed, int64_t offset) {
    int64_t units = source->inputs / source->unit, unit = offset / source->unit;
    if (unit >= units) return offset;
    return (int64_t)rng_permute(seed, RNG_STREAM_SHUFFLE, (uint64_t)unit, (uint64_t)units) * source->unit + offset % source->unit;
}

Draw order_draw(const Order *order, int64_t n) {
    int number = order_phase(order, n);
    const OrderedPhase *phase = &order->phases[number];
    Turn turn = take_turn(order, number, n - phase->first);
    const OrderSource *source = &order->sources[turn.source];
    const SourceShare *share = &phase->shares[turn.source];
    int64_t pieces = pieces_of_epoch(source, phase->length), index = share->first_piece + turn.index;
    int64_t epoch = index / pieces, piece = index % pieces;
    uint64_t seed = derive_seed(source->seed, RNG_STREAM_SHUFFLE, (uint64_t)epoch);
    if (order->shuffle && phase->length < source->unit) piece = shuffle_piece(source, phase, share, seed, epoch, piece);
    int64_t skipped = epoch * pieces + piece == share->first_piece ? share->skipped : 0, offset = piece * phase->length + skipped;
    return (Draw){.phase = number,
        .source = turn.source,
        .epoch = epoch,
        .start = order->shuffle ? shuffle_unit(source, seed, offset) : offset,
        .count = int_min(phase->length - skipped, source->inputs - offset)};
}

int order_phase(const Order *order, int64_t n) {
    assert(n >= 0 && n < order_phase_start(order, order->phase_count));
    int phase = 0;
    while (n - order->phases[phase].first >= order->phases[phase].samples) phase++;
    return phase;
}

int64_t order_phase_start(const Order *order, int phase) {
    if (phase < order->phase_count) return order->phases[phase].first;
    const OrderedPhase *last = &order->phases[order->phase_count - 1];
    return last->samples == INT64_MAX ? INT64_MAX : last->first + last->samples;
}

int64_t order_phase_length(const Order *order, int phase) { return order->phases[phase].length; }

int order_sources(const Order *order) { return order->source_count; }

int64_t order_sequences(int64_t tokens, int64_t length) { return divide_up(tokens - 1, length); }

/* -- Counting ---------------------------------------------------------------------------------------------------- */

/* Counts the samples of a source among the first `samples` of a phase. Inside a block of several
 * sources they are counted one by one. */
static int64_t count_samples(const Order *order, int number, int source, int64_t samples) {
    const OrderedPhase *phase = &order->phases[number];
    const SourceShare *share = &phase->shares[source];
    if (samples == phase->samples) return samples_of_blocks(phase, share, samples);
    if (phase->sources == 1) return share->whole ? samples : 0;
    int64_t blocks = samples / ORDER_BLOCK * ORDER_BLOCK, count = samples_of_blocks(phase, share, blocks);
    for (int64_t sample = blocks; sample < samples; sample++) count += take_turn(order, number, sample).source == source;
    return count;
}

/* Returns the number of samples of a phase among the first n of the run. */
static int64_t samples_in_phase(const OrderedPhase *phase, int64_t n) { return int_max(0, int_min(n - phase->first, phase->samples)); }

int64_t order_samples(const Order *order, int source, int64_t n) {
    int64_t count = 0;
    for (int i = 0; i < order->phase_count && order->phases[i].first < n; i++)
        count += count_samples(order, i, source, samples_in_phase(&order->phases[i], n));
    return count;
}

double order_epochs(const Order *order, int source, int64_t n) {
    int number = n > 0 ? order_phase(order, n - 1) : 0;
    const OrderedPhase *phase = &order->phases[number];
    const OrderSource *of = &order->sources[source];
    int64_t samples = count_samples(order, number, source, n - phase->first);
    SourceCursor end = advance_source(of, phase->length, phase->shares[source].start, samples);
    return (double)end.epoch + (double)end.offset / (double)of->inputs;
}

int64_t order_tokens(const Order *order, int64_t n) {
    int64_t tokens = 0;
    for (int i = 0; i < order->phase_count && order->phases[i].first < n; i++)
        tokens += samples_in_phase(&order->phases[i], n) * order->phases[i].length;
    return tokens;
}

/* Returns the longest run that reads a source at most `allowed` times. */
static int64_t longest_run(const Order *order, int source, double allowed, int64_t too_long) {
    int64_t fits = 0;
    while (too_long - fits > 1) {
        int64_t middle = fits + (too_long - fits) / 2;
        *(order_epochs(order, source, middle) > allowed ? &too_long : &fits) = middle;
    }
    return fits;
}

bool order_check_epochs(const Order *order, const double *allowed, int64_t n, Error *error) {
    for (int i = 0; i < order->source_count; i++) {
        const OrderSource *source = &order->sources[i];
        double epochs = order_epochs(order, i, n);
        if (epochs <= allowed[i]) continue;
        return error_set(error, ERROR_USAGE,
            "the run reads source %s (%" PRId64
            " tokens) %.3g times, but epochs: %g allows %g: set epochs: %.0f, a smaller weight, more data, or a run of at most %" PRId64
            " tokens",
            source->name, source->inputs + 1, epochs, allowed[i], allowed[i], ceil(epochs),
            order_tokens(order, longest_run(order, i, allowed[i], n)));
    }
    return true;
}

/* -- Making ------------------------------------------------------------------------------------------------------ */

/* Divides `total` samples by weight: whole parts first, the rest by the largest remainders
 * (Hamilton's method). */
static void apportion(const double *weights, int count, int64_t total, int64_t *samples) {
    double sum = 0, remainders[MIXTURE_MOST_SOURCES];
    for (int i = 0; i < count; i++) sum += weights[i];
    int64_t left = total;
    for (int i = 0; i < count; i++) {
        double exact = weights[i] / sum * (double)total;
        samples[i] = (int64_t)exact;
        remainders[i] = weights[i] > 0 ? exact - (double)samples[i] : -1;
        left -= samples[i];
    }
    for (; left > 0; left--) {
        int largest = 0;
        for (int i = 1; i < count; i++)
            if (remainders[i] > remainders[largest]) largest = i;
        samples[largest]++;
        remainders[largest] = -1;
    }
}

/* Sets the unit of a source, the longest sequence length at which it is read; the source must fill
 * at least one unit. */
static bool set_unit(Order *order, const OrderOptions *options, int index, Error *error) {
    OrderSource *source = &order->sources[index];
    for (int i = 0; i < options->phase_count; i++)
        if (options->phases[i].weights[index] > 0) source->unit = int_max(source->unit, options->phases[i].length);
    for (int i = 0; i < options->phase_count; i++) {
        const OrderPhase *phase = &options->phases[i];
        if (phase->weights[index] > 0 && source->unit % phase->length)
            return error_set(error, ERROR_USAGE,
                "phase %s reads source %s in sequences of %" PRId64 " tokens, and %" PRId64
                ", the length of another phase, is not a multiple of it: choose lengths that divide each other",
                phase->name, source->name, phase->length, source->unit);
    }
    return source->inputs >= source->unit || error_set(error, ERROR_DATA,
                                                 "%s has %" PRId64 " tokens, but a sequence of %" PRId64 " needs %" PRId64
                                                 ", including its last target: pack more text, or reduce data.length",
                                                 source->name, source->inputs + 1, source->unit, source->unit + 1);
}

static bool add_source(Order *order, const OrderOptions *options, int index, Error *error) {
    order->sources[index] = (OrderSource){.name = memory_copy_string(options->names[index]),
        .inputs = options->inputs[index],
        .unit = 1,
        .seed = index ? derive_seed(options->seed, RNG_STREAM_MIXTURE, UINT64_MAX - (uint64_t)index) : options->seed};
    return set_unit(order, options, index, error);
}

/* Sets the places at which the phase starts and ends reading a source. */
static void place_share(const OrderSource *source, const OrderedPhase *phase, SourceShare *share, SourceCursor start) {
    share->start = start;
    share->end = phase->samples == INT64_MAX
                     ? (SourceCursor){INT64_MAX, 0}
                     : advance_source(source, phase->length, start, samples_of_blocks(phase, share, phase->samples));
    share->first_piece = start.epoch * pieces_of_epoch(source, phase->length) + start.offset / phase->length;
    share->skipped = start.offset % phase->length;
}

static void add_phase(Order *order, const OrderPhase *given, int index) {
    int count = order->source_count;
    int64_t whole[MIXTURE_MOST_SOURCES], rest[MIXTURE_MOST_SOURCES];
    OrderedPhase *phase = &order->phases[index];
    *phase = (OrderedPhase){.first = index ? order->phases[index - 1].first + order->phases[index - 1].samples : 0,
        .samples = given->samples ? given->samples : INT64_MAX,
        .length = given->length,
        .shares = memory_allocate((size_t)count * sizeof(SourceShare))};
    apportion(given->weights, count, ORDER_BLOCK, whole);
    apportion(given->weights, count, phase->samples % ORDER_BLOCK, rest);
    for (int i = 0; i < count; i++) {
        SourceShare *share = &phase->shares[i];
        *share = (SourceShare){.whole = whole[i], .rest = rest[i]};
        place_share(&order->sources[i], phase, share, index ? order->phases[index - 1].shares[i].end : (SourceCursor){0});
        phase->sources += whole[i] > 0;
    }
}

static void check_order_options(const OrderOptions *options) {
    assert(options->source_count >= 1 && options->source_count <= MIXTURE_MOST_SOURCES && options->phase_count >= 1);
    assert(options->shuffle || (options->source_count == 1 && options->phase_count == 1));
    for (int i = 0; i < options->phase_count; i++) {
        const OrderPhase *phase = &options->phases[i];
        assert(phase->length >= 1 && phase->samples >= (i < options->phase_count - 1));
    }
}

Order *order_create(const OrderOptions *options, Error *error) {
    check_order_options(options);
    Order *order = memory_allocate(sizeof *order);
    *order = (Order){.seed = options->seed,
        .shuffle = options->shuffle,
        .source_count = options->source_count,
        .sources = memory_allocate((size_t)options->source_count * sizeof(OrderSource)),
        .phases = memory_allocate((size_t)options->phase_count * sizeof(OrderedPhase))};
    for (int i = 0; i < options->source_count; i++) {
        if (add_source(order, options, i, error)) continue;
        order_free(order);
        return NULL;
    }
    for (int i = 0; i < options->phase_count; i++) {
        order->phase_count = i + 1;
        add_phase(order, &options->phases[i], i);
    }
    return order;
}

Order *order_of_one(uint64_t seed, bool shuffle, const char *name, int64_t inputs, int64_t length, Error *error) {
    static const double weight = 1;
    OrderPhase phase = {.name = name, .length = length, .weights = &weight};
    OrderOptions options = {
        .seed = seed, .shuffle = shuffle, .source_count = 1, .phase_count = 1, .inputs = &inputs, .names = &name, .phases = &phase};
    return order_create(&options, error);
}

void order_free(Order *order) {
    if (!order) return;
    for (int i = 0; i < order->source_count; i++) free(order->sources[i].name);
    for (int i = 0; i < order->phase_count; i++) free(order->phases[i].shares);
    free(order->sources);
    free(order->phases);
    free(order);
}

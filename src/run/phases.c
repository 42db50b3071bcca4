/* The phases of a run, as pure functions of settings and mixture. Owns the fields of Phases. Called
 * when a run is planned and started, and by the training loop. */
#include "run/phases.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/family.h"
#include "optim/optim.h"

/* -- Settings ------------------------------------------------------------------------------------------------------ */

static int64_t phase_length(const MixturePhase *phase, const Config *config) { return phase->length ? phase->length : config->data.length; }

/* Returns the tokens of all phases of a mixture, in whole samples; 0: the last phase has no end. */
static int64_t total_tokens(const Mixture *mixture, const Config *config) {
    int64_t total = 0;
    if (!mixture->phases[mixture->phase_count - 1].tokens) return 0;
    for (int i = 0; i < mixture->phase_count; i++) {
        int64_t length = phase_length(&mixture->phases[i], config);
        total += divide_up(mixture->phases[i].tokens, length) * length;
    }
    return total;
}

static bool take_length(Config *config, const Mixture *mixture, Error *error) {
    int64_t total = total_tokens(mixture, config);
    if (config->epochs > 0)
        return error_set(error, ERROR_USAGE, "epochs=%g: the phases of data.train=%s determine the number of tokens: remove epochs",
            config->epochs, config->data.train);
    if (!total)
        return error_set(error, ERROR_USAGE,
            "the last phase of data.train=%s has no number of tokens: set it there, or set steps or tokens of the run", config->data.train);
    config->tokens = total;
    return true;
}

/* Sets a setting to `target` if every phase overrides it, so that the run's settings are
 * consistent. */
static void follow_phases(const char *name, int64_t *setting, int64_t initial, int64_t target, const char *train) {
    if (*setting != initial && *setting != target)
        log_warn("%s=%lld has no effect, because every phase of data.train=%s sets its own value: change the phases", name,
            (long long)*setting, train);
    *setting = target;
}

/* batch.tokens must be a multiple of the run's microbatch, even if the first phase has another
 * microbatch. */
static void follow_mixture(Config *config, const Mixture *mixture) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    const MixturePhase *first = mixture->phases;
    const char *train = config->data.train;
    bool lengths = true, batches = true, sequences = true;
    Config initial;
    options_defaults(&config_table, &initial, &strings);
    for (int i = 0; i < mixture->phase_count; i++) {
        lengths = lengths && first[i].length;
        batches = batches && first[i].batch_tokens;
        sequences = sequences && first[i].sequences;
    }
    if (lengths) follow_phases("data.length", &config->data.length, initial.data.length, first->length, train);
    if (sequences) follow_phases("batch.sequences", &config->batch.sequences, initial.batch.sequences, first->sequences, train);
    int64_t microbatch = config->batch.sequences * config->data.length;
    if (batches)
        follow_phases("batch.tokens", &config->batch.tokens, initial.batch.tokens, round_up(first->batch_tokens, microbatch), train);
}

bool phases_resolve(Config *config, Error *error) {
    SCOPED(mixture_free) Mixture mixture = {0};
    int64_t longest = 0;
    if (!mixture_is(config->data.train)) return true;
    if (!mixture_read(&mixture, config->data.train, error)) return false;
    for (int i = 0; i < mixture.phase_count; i++) longest = int_max(longest, phase_length(&mixture.phases[i], config));
    follow_mixture(config, &mixture);
    if (!config->model.context) config->model.context = longest;
    bool given = config->steps > 0 || config->tokens > 0;
    return given || take_length(config, &mixture, error);
}

/* batch.ramp_tokens and batch.ramp_steps apply to the first phase; a later phase has only its own
 * ramp. */
static void take_settings(Config *config, const MixturePhase *phase, bool first) {
    const int64_t microbatch = config->batch.sequences * config->data.length;
    BatchConfig *batch = &config->batch;
    if (phase->length) config->data.length = phase->length;
    if (phase->rope_theta > 0) config->model.rope_theta = phase->rope_theta;
    if (phase->batch_tokens) batch->tokens = phase->batch_tokens;
    if (phase->ramp_tokens || !first) batch->ramp_tokens = phase->ramp_tokens;
    if (phase->ramp_tokens || !first) batch->ramp_steps = phase->ramp_steps;
    batch->sequences = phase->sequences ? phase->sequences : int_max(microbatch / config->data.length, 1);
}

static bool check_phase_config(Phase *phase, const MixturePhase *given, const char *path, Error *error) {
    bool rotates = family_has(family_of(&phase->config.model), "model.rope_theta");
    if (given->rope_theta > 0 && !rotates)
        error_set(error, ERROR_USAGE, "rope_theta=%g: this model.family has no rotary embedding: remove rope_theta", given->rope_theta);
    else if (config_check(&phase->config, error)) return true;
    return error_context(error, "phase %s of data.train=%s", given->name, path);
}

/* Makes a mixture of one source and one phase without end. */
static void make_single(Mixture *mixture, const Config *config) {
    *mixture = (Mixture){.source_count = 1, .phase_count = 1};
    mixture->sources = memory_allocate(sizeof *mixture->sources);
    mixture->phases = memory_allocate(sizeof *mixture->phases);
    mixture->sources[0] = (MixtureSource){.name = config->data.train, .path = config->data.train, .epochs = INFINITY};
    mixture->phases[0] = (MixturePhase){.weights = {1}};
}

/* All bins of a source must have one length. */
static bool check_bins(const Phases *phases, Error *error) {
    for (int i = 0; i < phases->mixture.source_count; i++)
        for (int j = 0; j < phases->count; j++) {
            int64_t length = phases->items[j].config.data.length, longest = phases_piece(phases, i);
            if (phases->mixture.phases[j].weights[i] > 0 && length != longest)
                return error_set(error, ERROR_USAGE,
                    "data.packing=best_fit: source %s is read in sequences of both %lld and %lld tokens, but its bins have one length: use "
                    "one source per length, or data.packing=cut",
                    phases->mixture.sources[i].name, (long long)length, (long long)longest);
        }
    return true;
}

static void take_end(Phases *phases, const Config *config) {
    phases->steps = config->steps;
    phases->last = config->batch.last;
}

bool phases_open(Phases *phases, const Config *config, Error *error) {
    Mixture *mixture = &phases->mixture;
    bool mixed = mixture_is(config->data.train);
    *phases = (Phases){0};
    if (mixed && !mixture_read(mixture, config->data.train, error)) return false;
    if (!mixed) make_single(mixture, config);
    phases->count = mixture->phase_count;
    phases->items = memory_allocate((size_t)phases->count * sizeof *phases->items);
    int64_t sample = 0, token = 0;
    for (int i = 0; i < phases->count; i++) {
        const MixturePhase *given = &mixture->phases[i];
        Phase *phase = &phases->items[i];
        *phase = (Phase){.config = *config, .name = given->name, .first_sample = sample, .first_token = token, .samples = INT64_MAX};
        take_settings(&phase->config, given, i == 0);
        if (mixed && !check_phase_config(phase, given, config->data.train, error)) return false;
        if (i + 1 == phases->count) continue;
        phase->samples = divide_up(given->tokens, phase->config.data.length);
        sample += phase->samples;
        token += phase->samples * phase->config.data.length;
    }
    take_end(phases, config);
    return config->data.packing == PACKING_CUT || check_bins(phases, error);
}

void phases_close(Phases *phases) {
    mixture_free(&phases->mixture);
    free(phases->items);
    *phases = (Phases){0};
}

bool phases_set_length(Phases *phases, const Config *settings, Error *error) {
    for (int i = 0; i < phases->count; i++) {
        Config *config = &phases->items[i].config;
        config->steps = settings->steps;
        config->batch.last = settings->batch.last;
        config->tokens = 0;
        config->epochs = 0;
        if (!config_check(config, error)) return false;
    }
    take_end(phases, settings);
    return true;
}

Order *phases_order(const Phases *phases, const int64_t *inputs, int64_t steps, Error *error) {
    const Mixture *mixture = &phases->mixture;
    const Config *config = &phases->items[0].config;
    double allowed[MIXTURE_MOST_SOURCES];
    const char *names[MIXTURE_MOST_SOURCES];
    OrderPhase items[MIXTURE_MOST_PHASES];
    for (int i = 0; i < mixture->source_count; i++) {
        allowed[i] = mixture->sources[i].epochs;
        names[i] = mixture->sources[i].name;
    }
    for (int i = 0; i < phases->count; i++) {
        const Phase *phase = &phases->items[i];
        items[i] = (OrderPhase){.name = phase->name,
            .samples = phase->samples == INT64_MAX ? 0 : phase->samples,
            .length = phase->config.data.length,
            .weights = mixture->phases[i].weights};
    }
    OrderOptions options = {.seed = (uint64_t)config->seed,
        .shuffle = true,
        .source_count = mixture->source_count,
        .phase_count = phases->count,
        .inputs = inputs,
        .names = names,
        .phases = items};
    int64_t samples = phases_advance(phases, (Position){0}, steps).samples;
    Order *order = order_create(&options, error);
    if (order && order_check_epochs(order, allowed, samples, error)) return order;
    order_free(order);
    error_context(error, "data.train=%s", config->data.train);
    return NULL;
}

/* -- Texts --------------------------------------------------------------------------------------------------------- */

char *phases_text(const Phases *phases, int phase) {
    const MixturePhase *given = &phases->mixture.phases[phase];
    const Config *config = &phases->items[phase].config;
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    assert(stream);
    fprintf(stream, "%s, ", given->name);
    if (phase + 1 < phases->count) fprintf(stream, "%lld tokens", (long long)given->tokens);
    else fprintf(stream, "until the run ends");
    fprintf(stream, ", in sequences of %lld, RoPE base %g", (long long)config->data.length, config->model.rope_theta);
    const char *between = ": ";
    for (int i = 0; i < phases->mixture.source_count; i++) {
        if (given->weights[i] <= 0) continue;
        fprintf(stream, "%s%s %g", between, phases->mixture.sources[i].name, given->weights[i]);
        between = ", ";
    }
    fclose(stream);
    return text;
}

char *phases_batch_text(const Phases *phases, int phase) {
    const BatchConfig *batch = &phases->items[phase].config.batch;
    char ramp[96] = "";
    if (batch->ramp_tokens && batch->ramp_steps)
        snprintf(ramp, sizeof ramp, ", from %lld over %lld steps", (long long)batch->ramp_tokens, (long long)batch->ramp_steps);
    return memory_format(
        "%lld tokens, %lld sequence%s at once%s", (long long)batch->tokens, (long long)batch->sequences, plural(batch->sequences), ramp);
}

/* Returns the fraction of a phase's tokens that a source should give. */
static double asked(const Phases *phases, int phase, int source) {
    const double *weights = phases->mixture.phases[phase].weights;
    double sum = 0;
    for (int i = 0; i < phases->mixture.source_count; i++) sum += weights[i];
    return weights[source] / sum;
}

/* Returns the samples of a source in a phase, among the first `samples` samples of the run. */
static int64_t read_of(const Phases *phases, const Order *order, int phase, int source, int64_t samples) {
    const Phase *item = &phases->items[phase];
    int64_t end = int_min(samples, phase_end(item));
    return order_samples(order, source, end) - order_samples(order, source, item->first_sample);
}

static double read_share(const Phases *phases, const Order *order, int phase, int source, int64_t samples) {
    const Phase *item = &phases->items[phase];
    int64_t all = int_min(samples, phase_end(item)) - item->first_sample;
    return all > 0 ? (double)read_of(phases, order, phase, source, samples) / (double)all : 0;
}

/* Without an order it lists only the requested shares. */
static char *list_shares(const Phases *phases, const Order *order, int phase, int64_t samples) {
    const char *between = "";
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    assert(stream);
    for (int i = 0; i < phases->mixture.source_count; i++) {
        double share = 100 * asked(phases, phase, i);
        if (share <= 0) continue;
        fprintf(stream, "%s%s ", between, phases->mixture.sources[i].name);
        if (order) fprintf(stream, "%.2f%% of ", 100 * read_share(phases, order, phase, i, samples));
        fprintf(stream, "%.4g%%", share);
        between = ", ";
    }
    fclose(stream);
    return text;
}

char *phases_read_text(const Phases *phases, const Order *order, int phase, int64_t samples) {
    return list_shares(phases, order, phase, samples);
}

json_t *phases_read(const Phases *phases, const Order *order, int begun, int64_t samples) {
    json_t *list = json_array();
    for (int i = 0; i < begun; i++) {
        json_t *sources = json_object();
        for (int j = 0; j < phases->mixture.source_count; j++)
            if (asked(phases, i, j) > 0)
                json_object_set_new(sources, phases->mixture.sources[j].name,
                    json_pack("{s:f, s:f, s:I}", "asked", asked(phases, i, j), "read", read_share(phases, order, i, j, samples), "samples",
                        (json_int_t)read_of(phases, order, i, j, samples)));
        json_array_append_new(list, json_pack("{s:s, s:o}", "phase", phases->items[i].name, "sources", sources));
    }
    return list;
}

int64_t phases_piece(const Phases *phases, int source) {
    int64_t longest = 0;
    for (int i = 0; i < phases->count; i++)
        if (phases->mixture.phases[i].weights[source] > 0) longest = int_max(longest, phases->items[i].config.data.length);
    return longest;
}

json_t *phases_describe(const Phases *phases, int phase) {
    const MixturePhase *given = &phases->mixture.phases[phase];
    const Config *config = &phases->items[phase].config;
    json_t *weights = json_object();
    for (int i = 0; i < phases->mixture.source_count; i++)
        if (given->weights[i] > 0) json_object_set_new(weights, phases->mixture.sources[i].name, json_real(given->weights[i]));
    return json_pack("{s:i, s:s, s:I, s:f, s:I, s:I, s:o}", "phase", phase + 1, "name", given->name, "length",
        (json_int_t)config->data.length, "rope_theta", config->model.rope_theta, "batch_tokens", (json_int_t)config->batch.tokens,
        "sequences", (json_int_t)config->batch.sequences, "weights", weights);
}

json_t *phases_settings(const Config *config) {
    static const char *const names[] = {
        "data.length", "model.rope_theta", "batch.tokens", "batch.sequences", "batch.ramp_tokens", "batch.ramp_steps"};
    json_t *settings = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char value[64];
        options_format_value(config_find(names[i]), config, value, sizeof value);
        json_object_set_new(settings, names[i], json_string(value));
    }
    return settings;
}

/* -- Places -------------------------------------------------------------------------------------------------------- */

int64_t phase_end(const Phase *phase) { return phase->samples == INT64_MAX ? INT64_MAX : phase->first_sample + phase->samples; }

int phases_find(const Phases *phases, int64_t sample) {
    int i = 0;
    while (sample >= phase_end(&phases->items[i])) i++;
    return i;
}

int64_t phases_tokens(const Phases *phases, int64_t samples) {
    const Phase *phase = &phases->items[phases_find(phases, samples)];
    return phase->first_token + (samples - phase->first_sample) * phase->config.data.length;
}

/* Returns the samples of the first `steps` steps of a phase, as if it had no end. */
static int64_t samples_of_steps(const Phase *phase, int64_t steps) {
    return schedule_samples_before(&phase->config.batch, phase->config.data.length, steps + 1);
}

/* Returns the fewest steps that take `samples` samples of a phase after `done` steps. */
static int64_t steps_for(const Phase *phase, int64_t done, int64_t samples) {
    int64_t below = 0, enough = 1, before = samples_of_steps(phase, done);
    while (samples_of_steps(phase, done + enough) - before < samples) enough *= 2;
    while (enough - below > 1) {
        int64_t middle = below + (enough - below) / 2;
        *(samples_of_steps(phase, done + middle) - before < samples ? &below : &enough) = middle;
    }
    return enough;
}

int64_t phases_next(const Phases *phases, const Position *position) {
    const Phase *phase = &phases->items[phases_find(phases, position->samples)];
    const Config *config = &phase->config;
    int64_t length = config->data.length, step = position->step - position->phase_step + 1;
    int64_t batch = schedule_batch_tokens(&config->batch, config->batch.sequences * length, step) / length;
    if (phases->last && position->step + 1 == phases->steps) batch = int_min(batch, divide_up(phases->last, length));
    return int_min(batch, phase_end(phase) - position->samples);
}

/* Returns the last step of the phase of the next sample, at most `last`. */
static int64_t last_step_of_phase(const Phases *phases, const Position *position, int64_t last) {
    const Phase *phase = &phases->items[phases_find(phases, position->samples)];
    if (phase->samples == INT64_MAX) return last;
    return int_min(last, position->step + steps_for(phase, position->step - position->phase_step, phase_end(phase) - position->samples));
}

/* Returns the position at step `step` of the phase that ends at `phase_end`, after `samples` more
 * samples. */
static Position move_position(Position from, int64_t step, int64_t samples, int64_t phase_end) {
    from.samples += samples;
    from.step = step;
    if (from.samples == phase_end) from.phase_step = step;
    return from;
}

Position phases_advance(const Phases *phases, Position from, int64_t steps) {
    int64_t last = from.step + steps, whole = phases->last ? int_min(last, phases->steps - 1) : last;
    while (from.step < last) {
        const Phase *phase = &phases->items[phases_find(phases, from.samples)];
        int64_t done = from.step - from.phase_step, step = last_step_of_phase(phases, &from, from.step < whole ? whole : from.step + 1);
        int64_t taken = samples_of_steps(phase, step - from.phase_step) - samples_of_steps(phase, done);
        if (step > whole) taken = phases_next(phases, &from);
        from = move_position(from, step, int_min(taken, phase_end(phase) - from.samples), phase_end(phase));
    }
    return from;
}

Position phases_advance_phase(const Phases *phases, Position from, int64_t last) {
    return phases_advance(phases, from, last_step_of_phase(phases, &from, last) - from.step);
}

char *phases_line(const Phases *phases, const Position *position, int64_t steps) {
    int index = phases_find(phases, position->samples);
    const Phase *phase = &phases->items[index];
    const Config *config = &phase->config;
    Position end = phases_advance_phase(phases, *position, steps);
    SCOPED_FREE char *shares = list_shares(phases, NULL, index, 0);
    int64_t samples = int_min(end.samples, phase_end(phase)) - phase->first_sample;
    char tokens[32], batch[32], number[16];
    log_format_count((double)(samples * config->data.length), tokens);
    log_format_count((double)config->batch.tokens, batch);
    snprintf(number, sizeof number, "%d", index + 1);
    bool named = strcmp(phase->name, number) != 0; /* otherwise the number is the name */
    return memory_format("%s%s%s: steps %lld to %lld, %s tokens in sequences of %lld, %s a step, RoPE base %g: %s", number,
        named ? " " : "", named ? phase->name : "", (long long)position->phase_step + 1, (long long)end.step, tokens,
        (long long)config->data.length, batch, config->model.rope_theta, shares);
}

int64_t phases_own_steps(const Phases *phases) {
    const Phase *last = &phases->items[phases->count - 1];
    int64_t tokens = phases->mixture.phases[phases->count - 1].tokens, steps = 0, left;
    Error ignored = {0};
    return tokens && phases_count_steps(phases, (double)(last->first_token + tokens), (Position){0}, &steps, &left, &ignored) ? steps : 0;
}

/* Returns the samples of a run of `tokens` tokens: all samples of earlier phases, and whole samples
 * of the last phase. */
static int64_t samples_of_tokens(const Phases *phases, int64_t tokens) {
    const Phase *phase = phases->items + phases->count - 1;
    while (phase > phases->items && tokens <= phase->first_token) phase--;
    return phase->first_sample + int_min(divide_up(tokens - phase->first_token, phase->config.data.length), phase->samples);
}

bool phases_count_steps(const Phases *phases, double tokens, Position from, int64_t *steps, int64_t *last, Error *error) {
    const double most = 1e15;
    if (tokens > most) return error_set(error, ERROR_USAGE, "%.3g tokens exceed the limit of a run (%.0e): use fewer", tokens, most);
    int64_t end = samples_of_tokens(phases, (int64_t)ceil(tokens));
    if (end < from.samples)
        return error_set(error, ERROR_USAGE,
            "%.15g tokens are %lld sequences, but the run has already read %lld: use more tokens, or another run folder", tokens,
            (long long)end, (long long)from.samples);
    *last = 0;
    while (from.samples < end) {
        const Phase *phase = &phases->items[phases_find(phases, from.samples)];
        int64_t left = int_min(end, phase_end(phase)) - from.samples, done = from.step - from.phase_step;
        int64_t more = steps_for(phase, done, left), rest = left + samples_of_steps(phase, done) - samples_of_steps(phase, done + more - 1);
        bool whole = rest == samples_of_steps(phase, done + more) - samples_of_steps(phase, done + more - 1);
        *last = whole ? 0 : rest * phase->config.data.length;
        from = move_position(from, from.step + more, left, phase_end(phase));
    }
    *steps = from.step;
    return true;
}

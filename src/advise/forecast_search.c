/* The search for a layout. Every layout that the rules allow is estimated from models of few layers, since all layers are
 * alike; the best of these are then forecast whole, and the quickest that fit are the result. Owns nothing that outlives
 * a call. */
#include "advise/forecast.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "graph/graph.h"

typedef struct Candidate {
    ForecastLayout layout;
    double seconds; /* of as many tokens as batch.tokens */
    double memory;
    bool fits;
} Candidate;

typedef struct Space {
    const Config *config;
    const Cluster *cluster;
    ForecastFreedom freedom;
    ForecastSearch *search;
    Candidate *candidates;
    int count;
} Space;

/* -- Estimates ----------------------------------------------------------------------------------------------------- */

/* More tokens than asked for are no gain. */
static double seconds_of(const Forecast *forecast, const Config *config) {
    return forecast->step * fmax(1, (double)config->batch.tokens / forecast->tokens);
}

static Candidate candidate_of(const Forecast *forecast, const Config *config) {
    return (Candidate){forecast->layout, seconds_of(forecast, config), (double)forecast->memory.total, forecast->fits};
}

/* From models of two and three layers in each chunk of each stage; of few layers from the whole. */
static bool estimate(const Space *space, const ForecastLayout *layout, Candidate *candidate, Error *error) {
    Forecast forecast[2];
    Config small = *space->config;
    int64_t layers = small.model.layers, stages = layout->ranks.pp * layout_chunks(&layout->ranks);
    if (layers <= 3 * stages) {
        if (!forecast_layout(forecast, &small, space->cluster, layout, error)) return false;
        *candidate = candidate_of(forecast, &small);
        return true;
    }
    for (int i = 0; i < 2; i++) {
        small.model.layers = (2 + i) * stages;
        if (!forecast_layout(&forecast[i], &small, space->cluster, layout, error)) return false;
    }
    double more = (double)(layers - 2 * stages) / (double)stages;
    Candidate two = candidate_of(&forecast[0], &small), three = candidate_of(&forecast[1], &small);
    *candidate = two;
    candidate->seconds += more * (three.seconds - two.seconds);
    candidate->memory += more * (three.memory - two.memory);
    candidate->fits = space->cluster->hardware.memory <= 0 || candidate->memory <= space->cluster->hardware.memory;
    return true;
}

/* -- Candidates ---------------------------------------------------------------------------------------------------- */

static bool add(Space *space, const ForecastLayout *layout, bool *fits, Error *error) {
    Candidate candidate;
    if (!estimate(space, layout, &candidate, error)) return false;
    array_append(space->candidates, space->count, candidate);
    space->search->tried++;
    space->search->unfit += !candidate.fits;
    *fits = candidate.fits;
    return true;
}

/* From what costs no time to what costs most, until it fits: recomputation. */
static bool add_recomputations(Space *space, ForecastLayout layout, bool *fits, bool *freely, Error *error) {
    bool search = space->freedom.memory;
    int last = search ? RECOMPUTE_BLOCK : layout.recompute;
    bool one = false;
    *freely = false;
    for (layout.recompute = search ? RECOMPUTE_NONE : layout.recompute; layout.recompute <= last && !one; layout.recompute++) {
        if (!add(space, &layout, &one, error)) return false;
        *freely = one && layout.recompute == RECOMPUTE_NONE;
    }
    *fits = *fits || one;
    return true;
}

/* A higher stage of ZeRO sends more, and is of use only where a lower one does not fit without recomputation. */
static bool add_stages(Space *space, ForecastLayout layout, bool *fits, Error *error) {
    bool search = space->freedom.zero && space->cluster->gpus > layout.ranks.pp, freely = false; /* stages share nothing out */
    int64_t last = search ? 3 : layout.ranks.zero;
    for (layout.ranks.zero = search ? 1 : layout.ranks.zero; layout.ranks.zero <= last && !freely; layout.ranks.zero++)
        if (!add_recomputations(space, layout, fits, &freely, error)) return false;
    return true;
}

/* Whether steps are whole microbatches of so many sequences. */
static bool is_whole(const Config *config, int64_t sequences) {
    int64_t microbatch = sequences * config->data.length;
    return sequences == 1 || (config->batch.tokens % microbatch == 0 && config->batch.ramp_tokens % microbatch == 0);
}

/* Microbatches of powers of two up to a rank's share of the batch: larger ones would make the step larger than asked for.
 * Only the one given where the objective depends on it. */
static bool add_microbatches(Space *space, ForecastLayout layout, Error *error) {
    const Config *config = space->config;
    int64_t copies = space->cluster->gpus / layout_copy_ranks(&layout.ranks),
            chosen = config->model.experts ? config->model.experts_per_token : 1;
    int64_t share = config->batch.tokens / config->data.length / (copies * layout.ranks.ep), most = 1;
    if (!space->freedom.memory || config_needs_microbatch(config)) return add_stages(space, layout, &(bool){false}, error);
    for (; 2 * most <= share && 2 * most * config->data.length < INT32_MAX / chosen;) most *= 2;
    bool fits = true; /* larger microbatches need more */
    for (layout.sequences = 1; layout.sequences <= most && fits; layout.sequences *= 2) {
        fits = false;
        Config trial = forecast_apply(config, &layout);
        char broken[160];
        if (!is_whole(config, layout.sequences)) continue;
        if (layout_breaks(&trial, space->cluster->gpus, broken, sizeof broken)) fits = true; /* rows that tp does not divide */
        else if (!add_stages(space, layout, &fits, error)) return false;
    }
    return true;
}

static void refuse(ForecastSearch *search, const char *reason) {
    int at = 0;
    while (at < search->refusal_count && strcmp(search->refusals[at].reason, reason)) at++;
    if (at == FORECAST_REFUSALS) return;
    if (at == search->refusal_count)
        snprintf(search->refusals[search->refusal_count++].reason, sizeof search->refusals->reason, "%s", reason);
    search->refusals[at].layouts++;
}

/* The largest sizes that are tried: what communicates in every layer stays in a node, and chunks of a sequence keep
 * attention busy. */
static int64_t most_in_node(const Space *space) { return int_min(space->cluster->per_node, space->cluster->gpus); }
static int64_t most_stages(const Space *space) { return int_min(int_min(space->config->model.layers, 8), space->cluster->gpus); }
static int64_t most_chunks(const Space *space) {
    enum { CHUNK = 512 };
    return int_min(space->config->data.length / (2 * (int64_t)CHUNK), space->cluster->gpus);
}

static const struct {
    size_t offset;
    int64_t (*most)(const Space *space);
} axes[] = {{offsetof(LayoutConfig, tp), most_in_node}, {offsetof(LayoutConfig, pp), most_stages},
    {offsetof(LayoutConfig, cp), most_chunks}, {offsetof(LayoutConfig, ep), most_in_node}};
enum { AXES = sizeof axes / sizeof *axes };

static bool add_axes(Space *space, ForecastLayout layout, int index, Error *error) {
    int64_t gpus = space->cluster->gpus, copy = layout_copy_ranks(&layout.ranks);
    if (index == AXES) {
        char broken[160];
        Config trial = forecast_apply(space->config, &layout);
        if (!layout_breaks(&trial, gpus, broken, sizeof broken)) return add_microbatches(space, layout, error);
        refuse(space->search, broken);
        return true;
    }
    int64_t *size = (int64_t *)((char *)&layout.ranks + axes[index].offset), given = *size;
    int64_t most = space->freedom.axes && given == 1 ? int_max(axes[index].most(space), 1) : given;
    for (*size = given; *size <= most; *size *= 2)
        if (gpus % (copy / given * *size) == 0 && !add_axes(space, layout, index + 1, error)) return false;
    return true;
}

/* -- The result ---------------------------------------------------------------------------------------------------- */

/* Those that fit first, by time; the others by memory. */
static int compare_candidates(const void *a, const void *b) {
    const Candidate *left = a, *right = b;
    if (left->fits != right->fits) return right->fits - left->fits;
    double difference = left->fits ? left->seconds - right->seconds : left->memory - right->memory;
    if (difference == 0) difference = (double)(layout_copy_ranks(&left->layout.ranks) - layout_copy_ranks(&right->layout.ranks));
    return (difference > 0) - (difference < 0);
}

static int compare_forecasts(const void *a, const void *b) {
    const Forecast *left = a, *right = b;
    double difference = right->tokens_per_second - left->tokens_per_second;
    return (difference > 0) - (difference < 0);
}

/* Forecasts whole what was estimated, the most promising first. */
static bool keep_best(Space *space, Error *error) {
    ForecastSearch *search = space->search;
    qsort(space->candidates, (size_t)space->count, sizeof *space->candidates, compare_candidates);
    for (int i = 0; i < space->count && search->count < FORECAST_FOUND; i++) {
        Forecast *forecast = &search->found[search->count];
        if (!space->candidates[i].fits && search->count) break;
        if (!forecast_layout(forecast, space->config, space->cluster, &space->candidates[i].layout, error)) return false;
        if (forecast->fits) search->count++;
        else if (!space->candidates[i].fits) break;
    }
    if (search->count) qsort(search->found, (size_t)search->count, sizeof *search->found, compare_forecasts);
    return true;
}

bool forecast_search(ForecastSearch *search, const Config *config, const Cluster *cluster, const ForecastFreedom *freedom, Error *error) {
    Space space = {.config = config, .cluster = cluster, .freedom = *freedom, .search = search};
    *search = (ForecastSearch){0};
    bool searched = add_axes(&space, (ForecastLayout){config->layout, config->recompute, config->batch.sequences}, 0, error);
    if (searched && !space.count) {
        Config all = *config;
        all.layout.dp = 0;
        searched =
            layout_check(&all, cluster->gpus, error) &&
            error_set(error, ERROR_USAGE, "no layout of %lld GPUs passes the rules: give other layout settings", (long long)cluster->gpus);
    }
    searched = searched && keep_best(&space, error);
    free(space.candidates);
    return searched;
}

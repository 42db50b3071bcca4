/* The search for a layout: an enumeration, a bound, an evaluation. Every layout that the rules
 * allow gets a lower bound of its time and memory (forecast_bound.c). Layouts that may fit get a
 * whole forecast in the order of their bounds, until no bound is below the best result. The result
 * equals that of forecasting all of them. Owns nothing that outlives a call. */
#include <stdlib.h>
#include <string.h>

#include "advise/forecast_internal.h"
#include "base/array.h"
#include "base/log.h"
#include "base/math.h"
#include "base/scope.h"
#include "config/in_backward.h"
#include "config/layout_rules.h"

typedef struct Space {
    const Config *config;
    const Cluster *cluster;
    ForecastFreedom freedom;
    ForecastSearch *search;
    Device *device;
    ForecastLayout *axes; /* sizes of tp, cp and ep, with all other settings as configured */
    int axes_count;
    ForecastCandidate *candidates;
    int count;
} Space;

static bool may_fit(const Space *space, const ForecastCandidate *candidate) {
    double memory = space->cluster->hardware.memory;
    return memory <= 0 || candidate->bound.memory <= memory;
}

/* -- Enumeration --------------------------------------------------------------------------------------------------- */

static void refuse_layout(ForecastSearch *search, const char *reason) {
    int at = 0;
    while (at < search->refusal_count && strcmp(search->refusals[at].reason, reason)) at++;
    if (at == FORECAST_REFUSALS) return;
    if (at == search->refusal_count)
        snprintf(search->refusals[search->refusal_count++].reason, sizeof search->refusals->reason, "%s", reason);
    search->refusals[at].layouts++;
}

/* Return the largest sizes to try: axes that communicate in every layer stay in a node, and chunks
 * of a sequence keep attention busy. */
static int64_t most_in_node(const Space *space) { return int_min(space->cluster->per_node, space->cluster->gpus); }
static int64_t most_chunks(const Space *space) {
    enum { CHUNK = 512 };
    return int_min(space->config->data.length / (2 * (int64_t)CHUNK), space->cluster->gpus);
}
static int64_t most_stages(const Space *space) { return int_min(int_min(space->config->model.layers, 8), space->cluster->gpus); }

static const struct {
    size_t offset;
    int64_t (*most)(const Space *space);
} axes[] = {
    {offsetof(LayoutConfig, tp), most_in_node}, {offsetof(LayoutConfig, cp), most_chunks}, {offsetof(LayoutConfig, ep), most_in_node}};
enum { AXES = sizeof axes / sizeof *axes };

/* Lists the sizes of the axes: given sizes are kept, others are powers of two. */
static void list_axes(Space *space, ForecastLayout layout, int index) {
    if (index == AXES) {
        array_append(space->axes, space->axes_count, layout);
        return;
    }
    int64_t *size = (int64_t *)((char *)&layout.ranks + axes[index].offset), given = *size;
    int64_t most = space->freedom.axes && given == 1 ? int_max(axes[index].most(space), 1) : given;
    for (; *size <= most; *size *= 2)
        if (space->cluster->gpus % layout_copy_ranks(&layout.ranks) == 0) list_axes(space, layout, index + 1);
}

/* Returns the upper limit of a rank's microbatch: the sequences that the rank processes in a
 * step, within the limits of INT32. */
static int64_t most_sequences(const Space *space, const LayoutConfig *ranks) {
    const Config *config = space->config;
    int64_t copies = space->cluster->gpus / layout_copy_ranks(ranks) * ranks->ep,
            chosen = config->model.experts ? config->model.experts_per_token : 1;
    return int_min(config->batch.tokens / config->data.length / copies, INT32_MAX / chosen / config->data.length);
}

/* Returns whether steps are whole microbatches of `sequences` sequences. */
static bool is_whole(const Config *config, int64_t sequences) {
    int64_t microbatch = sequences * config->data.length;
    return config->batch.tokens % microbatch == 0 && config->batch.ramp_tokens % microbatch == 0;
}

/* Returns whether microbatches may have another size: the objective must not depend on it, and a
 * step must be allowed several microbatches. */
static bool may_resize(const Space *space) {
    return space->freedom.memory && !config_needs_microbatch(space->config) && !space->config->optimizer.in_backward;
}

/* Pipelines with the sequences of `layout`. */
typedef struct Pipelines {
    ForecastLayout *items;
    int count;
} Pipelines;

static void list_pipeline(const Space *space, Pipelines *list, const ForecastLayout *layout) {
    Config trial = forecast_apply(space->config, layout);
    char broken[160];
    bool searched = may_resize(space) && layout->sequences > 1;
    if (searched && (layout->sequences > most_sequences(space, &layout->ranks) || !is_whole(space->config, layout->sequences))) return;
    if (!layout_breaks(&trial, space->cluster->gpus, broken, sizeof broken)) array_append(list->items, list->count, *layout);
    else if (!searched) refuse_layout(space->search, broken);
}

/* Lists each number of stages with each schedule, unless these were given. */
static Pipelines list_pipelines(const Space *space, ForecastLayout layout) {
    Pipelines list = {0};
    LayoutConfig *ranks = &layout.ranks;
    bool sizes = space->freedom.axes && ranks->pp == 1, kinds = sizes && ranks->pp_schedule == PIPELINE_1F1B;
    int64_t most = sizes ? int_max(most_stages(space), 1) : ranks->pp;
    for (; ranks->pp <= most; ranks->pp *= 2) {
        if (space->cluster->gpus % layout_copy_ranks(ranks)) continue;
        list_pipeline(space, &list, &layout);
        if (!kinds || ranks->pp == 1) continue;
        ForecastLayout other = layout;
        other.ranks.pp_schedule = PIPELINE_ZERO_BUBBLE;
        list_pipeline(space, &list, &other);
        other.ranks.pp_schedule = PIPELINE_INTERLEAVED;
        for (other.ranks.pp_chunks = 2; other.ranks.pp_chunks * ranks->pp <= space->config->model.layers; other.ranks.pp_chunks *= 2)
            list_pipeline(space, &list, &other);
    }
    return list;
}

/* Returns whether the layout permits optimizer.in_backward, if that is set. */
static bool may_update(const Space *space, const ForecastLayout *layout, Error *error) {
    int64_t microbatches;
    Config rank = forecast_rank(space->config, space->cluster, layout, &microbatches);
    return in_backward_check(&rank, rank.layout.dp * rank.layout.ep, error);
}

/* Adds the distinct ZeRO stages. All are equal if ranks shard nothing, and stages of a pipeline
 * keep whole gradients. */
static bool add_zero(Space *space, const SmallPrograms *small, ForecastLayout layout) {
    const LayoutConfig *ranks = &layout.ranks;
    bool search = space->freedom.zero, alone = ranks->tp * ranks->pp == space->cluster->gpus, fits = false;
    int64_t first = search ? 1 : ranks->zero, last = search ? (alone ? 1 : 3) : first;
    for (layout.ranks.zero = first; layout.ranks.zero <= last; layout.ranks.zero++) {
        Error conflict = {0};
        if (search && ranks->pp > 1 && ranks->zero == 2) continue;
        if (!may_update(space, &layout, &conflict)) continue;
        ForecastCandidate candidate = {layout, forecast_bound(small, space->config, space->cluster, &layout)};
        array_append(space->candidates, space->count, candidate);
        fits = fits || may_fit(space, &candidate);
    }
    return fits;
}

/* Adds every recomputation of these pipelines. Small programs are the same for all of them. */
static bool add_recomputations(Space *space, const Pipelines *list, bool *fits, Error *error) {
    bool free = space->freedom.memory || list->items->recompute == RECOMPUTE_AUTO;
    int first = free ? config_least_recompute(space->config) : list->items->recompute, last = free ? RECOMPUTE_BLOCK : first;
    for (int recompute = first; recompute <= last; recompute++) {
        SmallPrograms small;
        ForecastLayout layout = list->items[0];
        layout.recompute = recompute;
        if (!small_programs(&small, space->config, space->device, space->cluster, &layout, error)) return false;
        for (int i = 0; i < list->count; i++) {
            layout = list->items[i];
            layout.recompute = recompute;
            *fits = add_zero(space, &small, layout) || *fits;
        }
    }
    return true;
}

/* Adds microbatches of powers of two, as long as any may fit. */
static bool add_microbatches(Space *space, ForecastLayout layout, Error *error) {
    bool search = may_resize(space), fits = true;
    int64_t most = search ? int_max(space->config->batch.tokens / space->config->data.length, 1) : layout.sequences;
    for (layout.sequences = search ? 1 : layout.sequences; layout.sequences <= most && fits; layout.sequences *= 2) {
        Pipelines list = list_pipelines(space, layout);
        fits = list.count == 0; /* tp does not divide the rows, or ranks of few stages have fewer rows */
        bool added = !list.count || add_recomputations(space, &list, &fits, error);
        free(list.items);
        if (!added) return false;
    }
    return true;
}

static bool enumerate(Space *space, Error *error) {
    list_axes(space, (ForecastLayout){space->config->layout, space->config->recompute, space->config->batch.sequences}, 0);
    Progress progress = progress_start("layouts", "axes", space->axes_count);
    bool added = true;
    for (int i = 0; i < space->axes_count && added; i++) {
        added = add_microbatches(space, space->axes[i], error);
        progress_update(&progress, i + 1);
    }
    progress_finish(&progress);
    return added;
}

/* -- Evaluation ---------------------------------------------------------------------------------------------------- */

static int by_memory(const void *a, const void *b) {
    const ForecastCandidate *left = a, *right = b;
    return (left->bound.memory > right->bound.memory) - (left->bound.memory < right->bound.memory);
}

/* Sorts by time. Among equals, the layout with the least communication in its layers comes
 * first. */
static int by_time(const void *a, const void *b) {
    const ForecastCandidate *left = a, *right = b;
    double difference = left->bound.seconds - right->bound.seconds;
    if (difference == 0) difference = (double)(layout_copy_ranks(&left->layout.ranks) - layout_copy_ranks(&right->layout.ranks));
    return difference != 0 ? (difference > 0) - (difference < 0) : by_memory(a, b);
}

/* Returns whether `a` is faster, or equally fast with less memory. */
static bool is_better(const Forecast *a, const Forecast *b) {
    return a->step < b->step || (a->step == b->step && a->memory.total < b->memory.total);
}

/* Inserts a forecast if it is better than the worst of a full list, which it then replaces. */
static void insert(ForecastSearch *search, const Forecast *forecast) {
    bool full = search->count == FORECAST_FOUND;
    if (full && !is_better(forecast, &search->found[FORECAST_FOUND - 1])) return;
    int at = full ? FORECAST_FOUND - 1 : search->count++;
    for (; at > 0 && is_better(forecast, &search->found[at - 1]); at--) search->found[at] = search->found[at - 1];
    search->found[at] = *forecast;
}

/* Returns whether the candidate may be the fastest, by its bound. The first FORECAST_FOUND
 * candidates are always forecast, to be shown next to the fastest. */
static bool may_be_quickest(const Space *space, const ForecastCandidate *candidate) {
    const ForecastSearch *search = space->search;
    return search->count < FORECAST_FOUND || candidate->bound.seconds < search->found->step;
}

static bool find_quickest(Space *space, Error *error) {
    ForecastSearch *search = space->search;
    bool made = true;
    qsort(space->candidates, (size_t)space->count, sizeof *space->candidates, by_time);
    Progress progress = progress_start("forecasts", "layouts", space->count);
    for (int i = 0; i < space->count && may_be_quickest(space, &space->candidates[i]) && made; i++) {
        const ForecastCandidate *candidate = &space->candidates[i];
        Forecast forecast;
        if (!may_fit(space, candidate)) continue;
        made = forecast_layout(&forecast, space->config, space->cluster, &candidate->layout, error);
        search->whole++;
        if (made && forecast.fits) insert(search, &forecast);
        else search->unfit++;
        while (progress.total > i + 1 && !may_be_quickest(space, &space->candidates[progress.total - 1])) progress.total--;
        progress_update(&progress, i + 1);
    }
    progress_finish(&progress);
    return made;
}

/* Finds the layout with the least memory, if none fits. */
static bool find_smallest(Space *space, Error *error) {
    Forecast *least = space->search->found;
    bool made = true;
    qsort(space->candidates, (size_t)space->count, sizeof *space->candidates, by_memory);
    for (int i = 0; i < space->count && made; i++) {
        Forecast forecast;
        if (i > 0 && space->candidates[i].bound.memory >= (double)least->memory.total) break;
        made = forecast_layout(&forecast, space->config, space->cluster, &space->candidates[i].layout, error);
        if (made && (i == 0 || forecast.memory.total < least->memory.total)) *least = forecast;
    }
    return made;
}

static bool search_space(Space *space, Error *error) {
    ForecastSearch *search = space->search;
    if (!enumerate(space, error)) return false;
    if (!space->count) {
        const Config *config = space->config;
        const ForecastLayout given = {config->layout, config->recompute, config->batch.sequences};
        return may_update(space, &given, error) && layout_check(config, space->cluster->gpus, error) &&
               error_set(error, ERROR_USAGE, "no layout of %lld GPUs satisfies the rules: change the layout settings",
                   (long long)space->cluster->gpus);
    }
    search->tried = space->count;
    for (int i = 0; i < space->count; i++) search->unfit += !may_fit(space, &space->candidates[i]);
    return find_quickest(space, error) && (search->count || find_smallest(space, error));
}

static Space space_of(ForecastSearch *search, const Config *config, const Cluster *cluster, const ForecastFreedom *freedom) {
    *search = (ForecastSearch){0};
    return (Space){
        .config = config, .cluster = cluster, .freedom = *freedom, .search = search, .device = hardware_device(&cluster->hardware)};
}

static void close_space(Space *space) {
    device_close(space->device);
    free(space->axes);
    free(space->candidates);
}

bool forecast_search(ForecastSearch *search, const Config *config, const Cluster *cluster, const ForecastFreedom *freedom, Error *error) {
    Space space = space_of(search, config, cluster, freedom);
    bool searched = search_space(&space, error);
    close_space(&space);
    return searched;
}

ForecastCandidate *forecast_candidates(
    const Config *config, const Cluster *cluster, const ForecastFreedom *freedom, int *count, Error *error) {
    ForecastSearch search;
    Space space = space_of(&search, config, cluster, freedom);
    ForecastCandidate *candidates = enumerate(&space, error) ? space.candidates : NULL;
    *count = space.count;
    if (candidates) space.candidates = NULL;
    close_space(&space);
    return candidates;
}

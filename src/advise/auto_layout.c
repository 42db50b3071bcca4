/* Choosing a layout before anything is allocated. Owns nothing. Called by `smelt train` on one rank, whose choice the
 * others take. */
#include "advise/auto_layout.h"

#include "advise/forecast.h"
#include "base/log.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "train/phases.h"
#include "train/run.h"
#include "train/source.h"

/* The longest sequences need most. */
static const Config *largest_phase(const Phases *phases) {
    const Config *largest = &phases->items[0].config;
    for (int i = 1; i < phases->count; i++)
        if (phases->items[i].config.data.length > largest->data.length) largest = &phases->items[i].config;
    return largest;
}

/* Whether the run that is continued has a layout for these ranks. */
static bool take_from_run(Config *config, int64_t ranks, FILE *file) {
    Error ignored = {0};
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config remembered;
    if (!source_is_run(config->run) || !run_read_config(config->run, &remembered, &strings, &ignored)) return false;
    Config trial = forecast_apply(config, &(ForecastLayout){remembered.layout, remembered.recompute, remembered.batch.sequences});
    if (layout_asked_ranks(&trial.layout) != ranks || !layout_check(&trial, ranks, &ignored)) return false;
    *config = trial;
    fprintf(file, "layout=auto: %s goes on with its layout\n", config->run);
    return true;
}

bool auto_layout(Config *config, const Cluster *cluster, FILE *file, Error *error) {
    ForecastSearch search;
    SCOPED(phases_close) Phases phases = {0};
    if (take_from_run(config, cluster->gpus, file)) return true;
    if (!phases_open(&phases, config, error)) return false;
    Config largest = *largest_phase(&phases);
    bool mixed = phases.items[0].name;
    largest.layout.dp = 0;
    if (!forecast_search(&search, &largest, cluster, &(ForecastFreedom){.axes = true, .zero = true, .memory = !mixed}, error)) return false;
    fprintf(file, "layout=auto for %lld x %s (modelled, not measured; smelt forecast explains it)\n", (long long)cluster->gpus,
        cluster->hardware.title);
    forecast_print_search(&search, &largest, file);
    if (!search.found->fits)
        return error_set(error, ERROR_MEMORY,
            "layout=auto: no layout of %lld ranks fits into their memory: start more of them, or give recompute=block or "
            "precision=pure_bf16",
            (long long)cluster->gpus);
    ForecastLayout found = search.found->layout;
    if (mixed) found.sequences = config->batch.sequences;
    *config = forecast_apply(config, &found);
    config->layout.choice = LAYOUT_GIVEN;
    return true;
}

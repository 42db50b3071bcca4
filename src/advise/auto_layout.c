/* Chooses a layout before anything is allocated. Owns nothing. Called by `smelt train` on one rank;
 * the others take its choice. */
#include "advise/auto_layout.h"

#include "advise/forecast.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "config/needs.h"
#include "run/phases.h"
#include "run/run.h"
#include "run/source.h"

/* Returns the phase with the longest sequences, which needs the most memory. */
static const Config *largest_phase(const Phases *phases) {
    const Config *largest = &phases->items[0].config;
    for (int i = 1; i < phases->count; i++)
        if (phases->items[i].config.data.length > largest->data.length) largest = &phases->items[i].config;
    return largest;
}

/* Combines the layout of a run with the given settings. Keeps given axes that are not 1, and
 * everything that layout=auto does not choose. Returns false if the run has other axes. */
static bool apply_choice(Config *config, const Config *run) {
    LayoutConfig *now = &config->layout;
    const LayoutConfig *before = &run->layout;
    const struct {
        int64_t *given, chosen;
    } axes[] = {{&now->tp, before->tp}, {&now->pp, before->pp}, {&now->cp, before->cp}, {&now->ep, before->ep}};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (*axes[i].given != 1 && *axes[i].given != axes[i].chosen) return false;
        *axes[i].given = axes[i].chosen;
    }
    if (now->pp_schedule == PIPELINE_1F1B) {
        now->pp_schedule = before->pp_schedule;
        now->pp_chunks = before->pp_chunks;
    }
    now->dp = before->dp;
    now->zero = before->zero;
    config->recompute = run->recompute;
    if (!config_needs_microbatch(config)) config->batch.sequences = run->batch.sequences;
    return true;
}

/* Returns whether the continued run has a layout for these ranks; if so, takes it. */
static bool take_from_run(Config *config, int64_t ranks, FILE *file) {
    Error ignored = {0};
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config remembered, trial = *config;
    if (!source_is_run(config->run) || !run_read_config(config->run, &remembered, &strings, &ignored)) return false;
    if (!apply_choice(&trial, &remembered) || layout_asked_ranks(&trial.layout) != ranks || !layout_check(&trial, ranks, &ignored))
        return false;
    *config = trial;
    fprintf(file, "layout=auto: %s keeps its layout\n", config->run);
    return true;
}

static bool choose_candidate(Config *config, const Cluster *cluster, FILE *file, Error *error) {
    ForecastSearch search;
    SCOPED(phases_close) Phases phases = {0};
    if (!phases_open(&phases, config, error)) return false;
    Config largest = *largest_phase(&phases);
    bool mixed = phases.items[0].name;
    largest.layout.dp = 0;
    if (!forecast_search(&search, &largest, cluster, &(ForecastFreedom){.axes = true, .zero = true, .memory = !mixed}, error)) return false;
    fprintf(file, "layout=auto for %lld x %s (modeled, not measured; smelt forecast explains it)\n", (long long)cluster->gpus,
        cluster->hardware.title);
    forecast_print_search(&search, &largest, file);
    if (!search.found->fits)
        return error_set(error, ERROR_MEMORY,
            "layout=auto: no layout of %lld ranks fits in their memory: start more ranks, or set recompute=block or precision=pure_bf16",
            (long long)cluster->gpus);
    ForecastLayout found = search.found->layout;
    if (mixed) found.sequences = config->batch.sequences;
    *config = forecast_apply(config, &found);
    return true;
}

bool auto_layout(Config *config, const Cluster *cluster, FILE *file, Error *error) {
    config->layout.choice = LAYOUT_GIVEN;
    const Config given = *config;
    char changes[1024];
    if (!take_from_run(config, cluster->gpus, file) && !choose_candidate(config, cluster, file, error)) return false;
    needs_drop_layout(config);
    if (options_difference(&config_table, &given, config, changes, sizeof changes))
        fprintf(file, "layout=auto changes (given -> chosen)\n%s", changes);
    return true;
}

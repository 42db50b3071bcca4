/* `smelt forecast CONFIG [gpus=N] [gpu=X] [key=value ...]` */
#include <stddef.h>
#include <stdio.h>

#include "advise/forecast.h"
#include "advise/settings.h"
#include "advise/simulate.h"
#include "app/command.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "config/needs.h"
#include "run/phases.h"

typedef struct ForecastOptions {
    const char *gpu, *bench, *topology, *trace;
    int64_t gpus, per_node;
    int zero; /* 0: the best; otherwise stage + 1 */
    bool search, simulate;
    Config config; /* from CONFIG */
} ForecastOptions;

#define FIELD(name) offsetof(ForecastOptions, name)
static const Option rows[] = {
    STRING_OPTION(gpu, "", "", "mi250, mi300x, mi325x, mi355x, a100, h100, h200 or cpu; empty: this machine's device"),
    INT_OPTION(gpus, "0", 0, 1000000, "devices", "total devices; 0: one node of gpu=X, or of this machine's kind"),
    INT_OPTION(per_node, "0", 0, 1024, "devices", "devices per node; 0: the usual number"),
    CHOICE_OPTION(
        zero, "best", "best|0|1|2|3", "ZeRO stage: 1 shards master weights and optimizer state, 2 also gradients, 3 also weights"),
    BOOL_OPTION(search, "true",
        "also choose batch.sequences, recompute, and each of layout.tp, pp, cp and ep that is 1; false: use the configuration's"),
    BOOL_OPTION(simulate, "false", "also execute a step of all ranks on a virtual clock, and check the order of their collectives"),
    STRING_OPTION(topology, "", "",
        "YAML of the cluster's nodes, links and network; for simulate=true also a slow node and a lost rank (docs/forecast.md)"),
    {"bench.trace", OPTION_STRING, FIELD(trace), "", 0, 0, NULL, "",
        "a file that smelt train CONFIG.yaml routing_trace=FILE wrote: ranks that share experts take as long as the busiest; empty: "
        "experts get equal numbers of rows"},
    STRING_OPTION(bench, "", "", "JSON of smelt bench gemm on such a machine, to replace the rates of the built-in table"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

/* Simulates the forecast layout and prints the result. */
static bool print_simulation(
    const Forecast *forecast, const Config *config, const Cluster *cluster, const Topology *topology, FILE *file, Error *error) {
    SCOPED(simulation_free) SimulatedRun simulation;
    if (!simulate_layout(&simulation, config, cluster, topology, &forecast->layout, error)) return false;
    simulation_print(&simulation, forecast, config, cluster, topology, file);
    return true;
}

/* Prints one page per phase of a mixture, or a single page. */
static bool print_forecast_phases(
    const ForecastOptions *options, const Cluster *cluster, const Topology *topology, FILE *file, bool *fits, Error *error) {
    SCOPED(phases_close) Phases phases = {0};
    *fits = true;
    if (!phases_open(&phases, &options->config, error)) return false;
    Position at = {0}, end;
    for (int64_t steps = options->config.steps; at.step < steps; at = end) {
        int i = phases_find(&phases, at.samples);
        end = phases_advance_phase(&phases, at, steps);
        Config *config = &phases.items[i].config;
        config->steps = end.step - at.step; /* the phase's steps */
        ForecastFreedom freedom = {.axes = options->search, .zero = options->search && !options->zero, .memory = options->search};
        ForecastSearch search;
        if (options->zero) config->layout.zero = options->zero - 1;
        if (!options->search && (!needs_check_layout(config, config, error) || !layout_check(config, cluster->gpus, error))) return false;
        if (!forecast_search(&search, config, cluster, &freedom, error)) return false;
        if (phases.items[i].name) fprintf(file, "%sphase %d, %s\n\n", i ? "\n" : "", i + 1, phases.items[i].name);
        forecast_print(search.found, config, cluster, file);
        if (options->search) forecast_print_search(&search, config, file);
        if (options->simulate && !print_simulation(search.found, config, cluster, topology, file, error)) return false;
        *fits = *fits && search.found->fits;
    }
    return true;
}

/* Reads bench.trace for the model of the configuration. */
static bool read_routing(const ForecastOptions *options, RoutedExperts *routed, Cluster *cluster, Error *error) {
    if (!*options->trace) return true;
    if (!options->config.model.experts)
        return error_set(error, ERROR_USAGE, "bench.trace=%s: the model has no experts: remove it, or set model.experts", options->trace);
    if (options->simulate)
        return error_set(
            error, ERROR_USAGE, "bench.trace=%s with simulate=true: simulated ranks have even loads: remove one of them", options->trace);
    cluster->routed = routed;
    return routed_read(routed, options->trace, &options->config.model, error);
}

static bool run_forecast(Invocation *invocation, Error *error) {
    ForecastOptions *options = invocation->options;
    Config *config = &options->config;
    if (!settings_read(config, invocation->words[0], &invocation->settings, &invocation->strings, error)) return false;
    Cluster cluster = {.gpus = options->gpus};
    SCOPED(measured_free) Measured measured = {0};
    if (!settings_hardware(options->gpu, options->bench, &cluster.hardware, &measured, error)) return false;
    if (!hardware_check_fp8(&cluster.hardware, config, error)) return false;
    if (!*options->gpu && cluster.hardware.host_memory && options->gpus > 1)
        return error_set(error, ERROR_USAGE, "gpus=%lld, but this machine has no GPU: set gpu to one of %s, as in gpu=h100",
            (long long)options->gpus, hardware_names());
    cluster.per_node = options->per_node ? options->per_node : cluster.hardware.per_node;
    if (!cluster.gpus) cluster.gpus = *options->gpu ? cluster.hardware.per_node : 1;
    if (*options->bench) cluster.measured = &measured;
    SCOPED(routed_free) RoutedExperts routed = {0};
    if (!read_routing(options, &routed, &cluster, error)) return false;
    Topology topology;
    if (!topology_read(&topology, options->topology, &cluster, error)) return false;
    if (!options->simulate && (topology.slow.node >= 0 || topology.lost.rank >= 0))
        return error_set(error, ERROR_USAGE, "%s sets %s, which needs a simulation: set simulate=true, or remove it", options->topology,
            topology.slow.node >= 0 ? "slow.node" : "lost.rank");
    SCOPED(command_page_print) CommandPage page;
    command_page_open(&page);
    bool fits;
    if (!print_forecast_phases(options, &cluster, &topology, page.file, &fits, error)) return false;
    return fits || error_set(error, ERROR_MEMORY, "none of the tried layouts fits: set a larger gpus, or use GPUs with more memory%s",
                       options->search ? "" : ", or set search=true");
}

const Command command_forecast = {
    .name = "forecast",
    .summary = "model the memory and time of a configuration on other hardware",
    .words = "CONFIG",
    .usage = "CONFIG [gpus=N] [gpu=X] [key=value ...]",
    .explanation = "Models memory per rank and time per step of a configuration on GPUs that this machine need not have. CONFIG is a file, "
                   "a run folder or a model folder;\n"
                   "settings of the configuration may follow. Nothing is measured: the last lines list the assumptions. docs/forecast.md "
                   "compares forecasts with measurements.\n",
    .hint = "CONFIG is a configuration file, a run folder or a model folder",
    .table = &table,
    .options_size = sizeof(ForecastOptions),
    .takes_config = true,
    .run = run_forecast,
};

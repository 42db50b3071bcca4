/* The page of plan=true. Memory comes from the plan, speed from a forecast. Owns nothing. Called by
 * `smelt train`. */
#include "advise/plan_page.h"

#include <math.h>
#include <string.h>

#include "advise/forecast.h"
#include "advise/fp8_print_internal.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "graph/op.h"
#include "run/phases.h"
#include "session/fit.h"

static void print_length(const Config *config, const Phases *phases, FILE *file) {
    char tokens[32];
    Position end = phases_advance(phases, (Position){0}, config->steps);
    log_format_count((double)phases_tokens(phases, end.samples), tokens);
    if (config->epochs > 0) fprintf(file, "steps       as many as epochs=%g of data that smelt has not packed yet\n", config->epochs);
    else fprintf(file, "steps       %lld, in all %s tokens\n", (long long)config->steps, tokens);
}

/* Prints "layout      dp 4, pp 2, tp 2" and the place of one rank, if a copy of the model spans
 * several ranks. */
static void print_layout(const Session *session, FILE *file) {
    const Mesh *mesh = session->mesh;
    char place[96];
    if (mesh_copy_ranks(mesh) == 1) return;
    mesh_describe_rank(mesh, mesh_rank(mesh), place, sizeof place);
    const LayoutConfig *layout = &session->config->layout;
    fprintf(file, "layout      dp %d, pp %lld, cp %lld, ep %lld, tp %lld; below: %s%s\n",
        mesh_size(mesh, MESH(AXIS_REPLICA) | MESH(AXIS_DP)), (long long)layout->pp, (long long)layout->cp, (long long)layout->ep,
        (long long)layout->tp, place, layout->pp > 1 ? ", of the fullest stage" : "");
}

static void print_model(const Session *session, const Phases *phases, FILE *file) {
    const Config *config = session->config;
    ModelSize size = session_size(session);
    const DeviceInfo *device = device_info(session->device);
    int ranks = layout_all_ranks(session->layout);
    double tokens = (double)session->training.model.sequences * (double)session->training.model.length;
    int64_t microbatch = config->batch.sequences * config->data.length;
    char operations[32];
    log_format_count(size.flops / tokens, operations);
    fprintf(file, "model       %s, %lld layer%s of width %lld\n", family_of(&config->model)->name, (long long)config->model.layers,
        plural(config->model.layers), (long long)config->model.width);
    fprintf(file, "parameters  %lld, %lld active per token\n", (long long)size.parameters, (long long)size.active);
    if (config->lora.rank) fprintf(file, "trained     %lld\n", (long long)size.trained);
    fprintf(file, "device      %s, %s\n", device->host_memory ? "CPU" : device->name, precision_name(config->precision));
    fprintf(file, "step        %lld tokens: %lld microbatch%s of %lld x %lld, over %d rank%s\n", (long long)config->batch.tokens,
        (long long)(config->batch.tokens / microbatch), config->batch.tokens == microbatch ? "" : "es", (long long)config->batch.sequences,
        (long long)config->data.length, ranks, plural(ranks));
    print_layout(session, file);
    print_length(config, phases, file);
    if (session->pipeline) pipeline_plan_print(session->pipeline, file);
    fprintf(file, "program     %d operations, %s FLOP a token\n\n", session->training.model.graph->node_count, operations);
}

/* Prints the memory without the FP8 recipe. */
static bool print_without_fp8(const Session *session, FILE *file, Error *error) {
    SCOPED(session_free) Session plain = {0};
    Config config = *session->config;
    char all[32], activations[32];
    if (config.model.fp8.recipe == FP8_NONE) return true;
    config.model.fp8.recipe = FP8_NONE;
    if (!session_plan_rank(&plain, &config, session->device, mesh_rank(session->mesh), layout_all_ranks(session->layout), error))
        return false;
    Budget budget = session_budget(&plain);
    log_format_bytes((double)budget.total, all);
    log_format_bytes((double)budget.activations, activations);
    fprintf(file, "  without fp8.recipe: %s, activations %s of it\n", all, activations);
    return true;
}

static bool print_plan_memory(const Session *session, int64_t available, FILE *file, Error *error) {
    Budget budget = session_budget(session);
    int ranks = layout_all_ranks(session->layout);
    if (ranks > 1) fprintf(file, "of one of %d ranks, ", ranks);
    budget_print(&budget, available, file);
    Error refused = {0};
    if (!session_check_host_memory(session, 1, &refused)) fprintf(file, "%s\n", refused.message);
    if (!print_without_fp8(session, file, error)) return false;
    if (available >= 0 && budget.total > available) {
        Fit fits[MOST_FITS];
        fputc('\n', file);
        fit_print(fits, fit_search(session->config, session->device, mesh_rank(session->mesh), ranks, available, fits), file);
    }
    return true;
}

static void print_plan_traffic(const Session *session, FILE *file) {
    TrafficTable table;
    traffic_count(&table, session);
    if (table.count) fprintf(file, "\ncollectives of a rank and step\n");
    for (int i = 0; i < table.count; i++) {
        const TrafficRow *row = &table.rows[i];
        char name[64], axes[32], bytes[32], each[32];
        traffic_name_axes(session->mesh, row->axes, axes, sizeof axes);
        snprintf(name, sizeof name, "%s over %s", row->operation, axes);
        log_format_bytes(row->bytes, bytes);
        log_format_bytes(row->bytes / row->count, each);
        fprintf(file, "  %-28s %8.0f of %10s, %10s in all\n", name, row->count, each, bytes);
    }
}

/* Succeeds only for a processor in the table of hardware. */
static bool forecast_session(const Session *session, Forecast *forecast) {
    const Config *config = session->config;
    ForecastLayout layout = {config->layout, config->recompute, config->batch.sequences};
    Cluster cluster = {.gpus = layout_all_ranks(session->layout)};
    Error ignored = {0};
    if (!hardware_of_device(&cluster.hardware, session->device)) return false;
    cluster.per_node = cluster.hardware.per_node;
    return forecast_layout(forecast, config, &cluster, &layout, &ignored);
}

static void print_forecast(const Session *session, int64_t done, FILE *file) {
    const Config *config = session->config;
    int ranks = layout_all_ranks(session->layout);
    Forecast forecast;
    char rate[32], step[32], all[32], part[32] = "", bubble[64] = "", idle[96] = "";
    int64_t left = int_max(config->steps - done, 0);
    if (!forecast_session(session, &forecast)) return;
    log_format_count(forecast.tokens_per_second * ranks, rate);
    if (forecast.step < 60) snprintf(step, sizeof step, "%.3g s", forecast.step);
    else log_format_long_duration(forecast.step, step);
    log_format_long_duration(forecast.step * (double)left, all);
    if (forecast.bubble > 0) snprintf(bubble, sizeof bubble, ", %.1f%% of it the pipeline's bubble", 100 * forecast.bubble / forecast.step);
    if (forecast.idle)
        snprintf(idle, sizeof idle, ", %lld of %lld copies of the model idle in its last round", (long long)forecast.idle,
            (long long)forecast.copies);
    if (done) snprintf(part, sizeof part, "of %lld ", (long long)config->steps);
    fprintf(file, "\nspeed (modeled, not measured; smelt forecast explains it)\n  %s tok/s, %s a step%s%s", rate, step, bubble, idle);
    if (config->epochs <= 0) fprintf(file, ", %s for the %lld %ssteps%s", all, (long long)left, part, done ? " that are left" : "");
    fputc('\n', file);
}

/* Returns whether the checks of a configuration would derive this value if the setting were left
 * out: head_dim, context. */
static bool is_derived(const Config *config, const Option *option, const char *value, const char *usual) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED_FREE char *assignment = memory_format("%s=%s", option->name, usual);
    Config without = *config;
    Error ignored = {0};
    char derived[256];
    if (!options_set(&config_table, &without, &strings, assignment, &ignored) || !config_check(&without, &ignored)) return false;
    options_format_value(option, &without, derived, sizeof derived);
    return strcmp(derived, value) == 0;
}

static void print_settings(const Config *config, FILE *file) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config initial;
    int count = 0;
    options_defaults(&config_table, &initial, &strings);
    fprintf(file, "\nsettings other than the defaults\n");
    for (size_t i = 0; i < config_table.count; i++) {
        const Option *option = &config_table.rows[i];
        char value[256], usual[256];
        options_format_value(option, config, value, sizeof value);
        options_format_value(option, &initial, usual, sizeof usual);
        if (strcmp(value, usual) == 0 || strcmp(option->name, "plan") == 0 || is_derived(config, option, value, usual)) continue;
        fprintf(file, "  %-26s %s\n", option->name, value);
        count++;
    }
    if (!count) fprintf(file, "  none\n");
}

static const char *const policies[] = {"none", "norm", "attention", "block"};

/* Resolves recompute=auto: returns what the fullest stage of a pipeline must recompute. */
static int choose_recompute(const Config *config, int ranks, Device *device, int64_t available) {
    int64_t beside = config->layout.cp * config->layout.ep * config->layout.tp;
    int policy = RECOMPUTE_NONE;
    for (int64_t stage = 0; stage < config->layout.pp; stage++)
        policy = (int)int_max(policy, fit_recompute(config, device, (int)(stage * beside), ranks, available));
    return policy;
}

/* Plans one rank of each pipeline stage. *session, initially empty, becomes the one that needs the
 * most memory. The caller always frees it. */
static bool plan_fullest(Session *session, const Config *config, int ranks, Device *device, Error *error) {
    int64_t beside = config->layout.cp * config->layout.ep * config->layout.tp;
    bool planned = session_plan_rank(session, config, device, 0, ranks, error);
    for (int64_t stage = 1; planned && stage < config->layout.pp; stage++) {
        Session next;
        planned = session_plan_rank(&next, config, device, (int)(stage * beside), ranks, error);
        bool fuller = planned && session_budget(&next).total > session_budget(session).total;
        Session other = fuller ? *session : next;
        if (fuller) *session = next;
        session_free(&other);
    }
    return planned;
}

/* -- Phases -------------------------------------------------------------------------------------------------------- */

/* Prints "1 pretrain: steps 1 to 30, ..." and the phase's needs; adds its seconds to `*seconds`,
 * NaN if they are unknown. */
static void print_phase(const Session *session, const Phases *phases, const Position *start, double *seconds, FILE *file) {
    const Config *config = session->config;
    Forecast forecast;
    char memory[32], rate[32], time[32];
    Position end = phases_advance_phase(phases, *start, config->steps);
    SCOPED_FREE char *line = phases_line(phases, start, config->steps);
    int64_t length = config->data.length, samples = int_min(end.samples, phase_end(&phases->items[phases_find(phases, start->samples)]));
    log_format_bytes((double)session_budget(session).total, memory);
    fprintf(file, "  %s\n    memory %s", line, memory);
    fp8_print_part(session->training.model.graph, config, file);
    if (!forecast_session(session, &forecast)) *seconds = NAN;
    else {
        double all = (double)((samples - start->samples) * length) / (forecast.tokens_per_second * layout_all_ranks(session->layout));
        log_format_count(forecast.tokens_per_second * layout_all_ranks(session->layout), rate);
        log_format_long_duration(all, time);
        fprintf(file, ", %s tok/s, %s (modeled)", rate, time);
        *seconds += all;
    }
    fputc('\n', file);
}

/* Plans every phase that a run of the mixture reaches; `*largest` is the phase that needs the most
 * memory. */
static bool print_phases(const Config *config, const Phases *phases, int ranks, Device *device, int *largest, FILE *file, Error *error) {
    int64_t most = 0;
    double seconds = 0;
    char time[32];
    fprintf(file, "phases of %s\n", config->data.train);
    for (Position at = {0}; at.step < config->steps; at = phases_advance_phase(phases, at, config->steps)) {
        SCOPED(session_free) Session session = {0};
        int index = phases_find(phases, at.samples);
        if (!plan_fullest(&session, &phases->items[index].config, ranks, device, error))
            return error_context(error, "phase %s of data.train=%s", phases->items[index].name, config->data.train);
        print_phase(&session, phases, &at, &seconds, file);
        if (session_budget(&session).total <= most) continue;
        most = session_budget(&session).total;
        *largest = index;
    }
    log_format_long_duration(seconds, time);
    if (isfinite(seconds)) fprintf(file, "  all: %s (modeled)\n", time);
    fprintf(file, "\nphase %s, which needs the most memory\n", phases->items[*largest].name);
    return true;
}

bool plan_print(const Config *config, int ranks, int64_t done, Device *device, int64_t available, FILE *file, Error *error) {
    SCOPED(session_free) Session session = {0};
    SCOPED(phases_close) Phases phases = {0};
    int largest = 0;
    if (!phases_open(&phases, config, error)) return false;
    bool mixed = phases.items[0].name;
    for (int i = 0; i < phases.count; i++)
        phases.items[i].config.recompute = choose_recompute(&phases.items[i].config, ranks, device, available);
    if (mixed && !print_phases(config, &phases, ranks, device, &largest, file, error)) return false;
    if (!plan_fullest(&session, &phases.items[largest].config, ranks, device, error)) return false;
    print_model(&session, &phases, file);
    if (config->recompute == RECOMPUTE_AUTO)
        fprintf(file, "recompute   %s, chosen by auto\n", policies[phases.items[largest].config.recompute]);
    if (!print_plan_memory(&session, available, file, error)) return false;
    fp8_print(session.training.model.graph, session.config, file);
    print_plan_traffic(&session, file);
    if (!mixed) print_forecast(&session, done, file);
    print_settings(config, file);
    if (config->plan != PLAN_PROGRAM) return true;
    fprintf(file, "\nprogram of one microbatch (%lld sequences x %lld tokens)\n", (long long)session.training.model.sequences,
        (long long)session.training.model.length);
    graph_print(session.training.model.graph, file);
    return true;
}

/* `smelt bench NAME [CONFIG.yaml] [key=value ...]`: the table of benchmarks. Options that a benchmark does not have
 * are those of the configuration, where it takes one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "bench/bench.h"
#include "app/command.h"
#include "app/process.h"

static const Benchmark *const benchmarks[] = {
    &bench_gemm, &bench_memory, &bench_attention, &bench_optimizer, &bench_storage, &bench_train, &bench_suite, &bench_collective};
enum { BENCHMARKS = sizeof benchmarks / sizeof *benchmarks };

/* -- Arguments ----------------------------------------------------------------------------------------------------- */

/* Whether "key=value" sets the configuration and nothing of the benchmark. */
static bool sets_config(const Benchmark *benchmark, const char *argument) {
    size_t length = strcspn(argument, "=");
    return benchmark->config && argument[length] && !options_find(&benchmark->table, argument, length) &&
           options_find(&config_table, argument, length);
}

/* What was given: the benchmark's own arguments, settings of the configuration, and its file. */
typedef struct Given {
    char **own, **settings;
    int own_count, setting_count;
    const char *positional;
} Given;

static void sort_arguments(const Benchmark *benchmark, int argc, char **argv, Given *given) {
    *given = (Given){
        .own = memory_allocate((size_t)(argc + 1) * sizeof(char *)), .settings = memory_allocate((size_t)(argc + 1) * sizeof(char *))};
    for (int i = 0; i < argc; i++) {
        const char *key = argv[i] + (strncmp(argv[i], "--", 2) ? 0 : 2);
        if (sets_config(benchmark, key)) given->settings[given->setting_count++] = argv[i] + (key - argv[i]);
        else given->own[given->own_count++] = argv[i];
    }
}

static bool has_positional(const Given *given) {
    for (int i = 0; i < given->own_count; i++) {
        bool option = !strncmp(given->own[i], "--", 2);
        if (!option && !strchr(given->own[i], '=')) return true;
        if (option && !strchr(given->own[i], '=')) i++;
    }
    return false;
}

static bool read_config(Bench *bench, const Given *given, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, &bench->config, strings);
    bench->configured = bench->benchmark->config && given->positional;
    if (given->setting_count && !bench->configured)
        return error_set(error, ERROR_USAGE, "%s sets a configuration, and none was given: name CONFIG.yaml first", given->settings[0]);
    if (!bench->configured) return true;
    if (!options_read_yaml(&config_table, &bench->config, strings, given->positional, error)) return false;
    for (int i = 0; i < given->setting_count; i++)
        if (!options_set(&config_table, &bench->config, strings, given->settings[i], error)) return false;
    return config_check(&bench->config, error);
}

static bool read_arguments(Bench *bench, Given *given, Invocation *invocation, Error *error) {
    const Benchmark *benchmark = bench->benchmark;
    bool demanded = benchmark->positional || benchmark->config == BENCH_CONFIG_REQUIRED;
    bool word = demanded || (benchmark->config && has_positional(given));
    SCOPED_FREE char *name = memory_format("bench %s", benchmark->name);
    Command command = {.name = name, .table = &benchmark->table};
    command.words = !word ? "" : benchmark->positional ? benchmark->positional : "CONFIG.yaml";
    bool read = command_read(&command, given->own_count, given->own, invocation, error);
    given->positional = invocation->words[0];
    bench->positional = given->positional ? given->positional : "";
    return read && read_config(bench, given, &invocation->strings, error);
}

/* -- The command --------------------------------------------------------------------------------------------------- */

/* Before the measuring, which may take hours. Files that exist are left as they are, and none is made. */
static bool check_output(const char *option, const char *path, Error *error) {
    return !*path || file_can_output(path) || error_set(error, ERROR_USAGE, "%s=%s cannot be written: %s", option, path, strerror(errno));
}

static bool check_outputs(const BenchOptions *options, Error *error) {
    return check_output("csv", options->csv, error) && check_output("json", options->json, error) &&
           check_output("plot", options->plot, error);
}

/* Results that came before a failure are written too. */
static bool measure(Bench *bench, Error *error) {
    Error unwritten = {0};
    process_set_threads(((const BenchOptions *)bench->options)->threads, 1);
    bool done = bench->benchmark->run(bench, error), written = bench_write(bench, &unwritten);
    if (done && !written) *error = unwritten;
    return done && written;
}

static bool run(Invocation *invocation, Error *error) {
    const Benchmark *benchmark = benchmarks[0];
    for (int i = 1; strcmp(benchmark->name, invocation->argv[0]); i++) benchmark = benchmarks[i];
    Given given;
    SCOPED_FREE Bench *bench = memory_allocate(sizeof *bench);
    *bench = (Bench){.benchmark = benchmark,
        .options = invocation->options,
        .open_device = command_open_device,
        .recommend = process_recommend,
        .results = {.columns = benchmark->columns, .column_count = benchmark->column_count, .plot = benchmark->plot}};
    sort_arguments(benchmark, invocation->argc - 1, invocation->argv + 1, &given);
    bool done = read_arguments(bench, &given, invocation, error) && check_outputs(bench->options, error) && measure(bench, error);
    device_close(bench->device);
    bench_free_results(bench);
    free(given.own);
    free(given.settings);
    return done;
}

/* The command of a benchmark, valid until the next call. */
static const Command *bench_member(int index) {
    static const char *const config[] = {"", "[CONFIG.yaml] ", "CONFIG.yaml "};
    static char name[32], usage[64], explanation[2048];
    static Command command;
    if (index >= BENCHMARKS) return NULL;
    const Benchmark *benchmark = benchmarks[index];
    snprintf(name, sizeof name, "bench %s", benchmark->name);
    snprintf(usage, sizeof usage, "%s%s%s[key=value ...]", benchmark->positional ? benchmark->positional : "",
        benchmark->positional ? " " : "", config[benchmark->config]);
    snprintf(explanation, sizeof explanation, "%s%s", benchmark->explanation,
        benchmark->config ? "Settings of the configuration may be given as well: see smelt train --help.\n" : "");
    command = (Command){.name = name,
        .summary = benchmark->summary,
        .usage = usage,
        .explanation = explanation,
        .table = &benchmark->table,
        .options_size = benchmark->options_size,
        .alone = true,
        .run = run};
    return &command;
}

const Command command_bench = {
    .name = "bench",
    .summary = "measure this machine: gemm|memory|collective|attention|optimizer|storage|train|suite ...",
    .explanation = "Measures what this machine can do, with the code that trains on it.",
    .member = bench_member,
};

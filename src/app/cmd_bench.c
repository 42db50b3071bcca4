/* `smelt bench NAME [CONFIG.yaml] [key=value ...]`: the table of benchmarks. Options that a
 * benchmark lacks are settings of the configuration, if it takes one. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "bench/bench.h"
#include "advise/settings.h"
#include "app/command.h"
#include "app/process.h"

static const Benchmark *const benchmarks[] = {&bench_gemm, &bench_memory, &bench_attention, &bench_optimizer, &bench_storage, &bench_loader,
    &bench_train, &bench_suite, &bench_collective, &bench_decode, &bench_batch};
enum { BENCHMARKS = sizeof benchmarks / sizeof *benchmarks };

/* Reads CONFIG.yaml and the settings on top of it; defaults without CONFIG.yaml. */
static bool read_bench_config(Bench *bench, Invocation *invocation, Error *error) {
    const OptionStrings *settings = &invocation->settings;
    const char *word = invocation->words[0];
    bench->positional = word ? word : "";
    bench->configured = bench->benchmark->config && word;
    if (bench->configured) return settings_read(&bench->config, word, settings, &invocation->strings, error);
    options_defaults(&config_table, &bench->config, &invocation->strings);
    return !settings->count || error_set(error, ERROR_USAGE,
                                   "%s is a setting of a configuration, but there is none: give CONFIG.yaml first", settings->items[0]);
}

/* -- The command --------------------------------------------------------------------------------------------------- */

/* Checks an output before the measurement, which may take hours. Existing files are not changed,
 * and none is created. An older result is replaced later: `is_result` recognizes it, and messages
 * call it `kind`. */
static bool check_output(const char *option, const char *path, bool (*is_result)(const char *path), const char *kind, Error *error) {
    if (!*path) return true;
    FileKind found = file_kind(path, NULL);
    if ((found == FILE_REGULAR || found == FILE_UNREADABLE) && !file_check_overwrite(path, true, is_result, kind, error))
        return error_context(error, "%s", option);
    return file_can_output(path) || error_set(error, ERROR_USAGE, "cannot write %s=%s: %s", option, path, strerror(errno));
}

static bool check_outputs(const BenchOptions *options, Error *error) {
    return check_output("csv", options->csv, bench_is_csv, "a table of smelt bench", error) &&
           check_output("json", options->json, bench_is_json, "a result of smelt bench", error) &&
           check_output("plot", options->plot, bench_is_plot, "an SVG picture", error);
}

/* Runs the benchmark. Results that precede a failure are written too. */
static bool measure_parts(Bench *bench, Error *error) {
    Error unwritten = {0};
    process_set_threads(((const BenchOptions *)bench->options)->threads, 1);
    bool done = bench->benchmark->run(bench, error), written = bench_write(bench, &unwritten);
    if (done && !written) *error = unwritten;
    return done && written;
}

static bool run_bench(Invocation *invocation, Error *error) {
    const Benchmark *benchmark = benchmarks[0];
    for (int i = 1; strcmp(benchmark->name, invocation->argv[0]); i++) benchmark = benchmarks[i];
    SCOPED_FREE Bench *bench = memory_allocate(sizeof *bench);
    *bench = (Bench){.benchmark = benchmark,
        .options = invocation->options,
        .open_device = command_open_device,
        .open_local_device = command_open_local_device,
        .recommend = process_recommend,
        .results = {.columns = benchmark->columns, .column_count = benchmark->column_count, .plot = benchmark->plot}};
    bool done = read_bench_config(bench, invocation, error) && check_outputs(bench->options, error) && measure_parts(bench, error);
    device_close(bench->device);
    bench_free_results(bench);
    return done;
}

/* Returns the command of a benchmark, valid until the next call. */
static const Command *bench_member(int index) {
    static const char *const config[] = {"", "[CONFIG.yaml]", "CONFIG.yaml"};
    static char name[32], explanation[2048];
    static Command command;
    if (index >= BENCHMARKS) return NULL;
    const Benchmark *benchmark = benchmarks[index];
    snprintf(name, sizeof name, "bench %s", benchmark->name);
    snprintf(explanation, sizeof explanation, "%s%s", benchmark->explanation,
        benchmark->config ? "Settings of the configuration are accepted too: see smelt train --help.\n" : "");
    command = (Command){.name = name,
        .summary = benchmark->summary,
        .words = benchmark->positional ? benchmark->positional : config[benchmark->config],
        .explanation = explanation,
        .table = &benchmark->table,
        .options_size = benchmark->options_size,
        .takes_config = benchmark->config,
        .ranks = benchmark->ranks,
        .alone = true,
        .run = run_bench};
    return &command;
}

const Command command_bench = {
    .name = "bench",
    .summary = "measure this machine",
    .explanation = "Measures this machine with the code that trains on it.",
    .member = bench_member,
};

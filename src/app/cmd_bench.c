/* `smelt bench NAME [CONFIG.yaml] [key=value ...]`: the table of benchmarks. Options that a benchmark does not have are those of the configuration, where it
 * takes one. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "bench/bench.h"
#include "app/arguments.h"
#include "app/commands.h"
#include "app/process.h"

static const Benchmark *const benchmarks[] = {
    &bench_gemm, &bench_memory, &bench_attention, &bench_optimizer, &bench_storage, &bench_train, &bench_suite, &bench_collective};
enum { BENCHMARKS = sizeof benchmarks / sizeof *benchmarks };

static void print_help(FILE *file) {
    fprintf(file, "Usage: smelt bench NAME ... (smelt bench NAME --help explains one)\n\nMeasures what this machine can do, with the code "
                  "that trains on it.\n\n");
    for (int i = 0; i < BENCHMARKS; i++) fprintf(file, "  %-10s %s\n", benchmarks[i]->name, benchmarks[i]->summary);
}

static void print_help_of(const Benchmark *benchmark) {
    static const char *const config[] = {"", " [CONFIG.yaml]", " CONFIG.yaml"};
    printf("Usage: smelt bench %s%s%s%s [key=value ...]\n\n%s\n", benchmark->name, benchmark->positional ? " " : "",
        benchmark->positional ? benchmark->positional : "", config[benchmark->config], benchmark->explanation);
    if (benchmark->config) printf("Settings of the configuration may be given as well: see smelt train --help.\n\n");
    options_print_help(&benchmark->table, stdout);
}

/* -- Arguments ----------------------------------------------------------------------------------------------------- */

static bool has_option(const OptionTable *table, const char *name, size_t length) {
    for (size_t i = 0; i < table->count; i++)
        if (strlen(table->rows[i].name) == length && !strncmp(table->rows[i].name, name, length)) return true;
    return false;
}

/* Whether "key=value" sets the configuration and nothing of the benchmark. */
static bool sets_config(const Benchmark *benchmark, const char *argument) {
    size_t length = strcspn(argument, "=");
    return benchmark->config && argument[length] && !has_option(&benchmark->table, argument, length) &&
           has_option(&config_table, argument, length);
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

static bool read_arguments(Bench *bench, Given *given, void *options, OptionStrings *strings, Error *error) {
    const Benchmark *benchmark = bench->benchmark;
    bool demanded = benchmark->positional || benchmark->config == BENCH_CONFIG_REQUIRED;
    char command[64];
    snprintf(command, sizeof command, "smelt bench %s", benchmark->name);
    ArgumentSyntax syntax = {command,
        benchmark->positional ? benchmark->positional
        : benchmark->config   ? "CONFIG.yaml"
                              : "only key=value",
        demanded || (benchmark->config && has_positional(given)), &benchmark->table};
    if (!arguments_read(&syntax, given->own_count, given->own, options, strings, &given->positional, error)) return false;
    bench->positional = given->positional ? given->positional : "";
    return read_config(bench, given, strings, error);
}

/* -- The command --------------------------------------------------------------------------------------------------- */

/* Before the measuring, which may take hours. Files that exist are left as they are, and none is made. */
static bool check_output(const char *option, const char *path, Error *error) {
    struct stat status;
    bool absent = lstat(path, &status) != 0; /* a link to nothing is not ours to remove */
    bool special = stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
    if (!*path || special) return true; /* opening a pipe would be seen at its other end */
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return error_set(error, ERROR_USAGE, "%s=%s cannot be written: %s", option, path, strerror(errno));
    close(file);
    if (absent) unlink(path);
    return true;
}

static bool check_outputs(const BenchOptions *options, Error *error) {
    return check_output("csv", options->csv, error) && check_output("json", options->json, error) &&
           check_output("plot", options->plot, error);
}

/* Results that came before a failure are written too. */
static bool run(Bench *bench, Error *error) {
    Error unwritten = {0};
    process_set_threads(bench->options->threads, 1);
    bool done = bench->benchmark->run(bench, error), written = bench_write(bench, &unwritten);
    if (done && !written) *error = unwritten;
    return done && written;
}

static int run_benchmark(const Benchmark *benchmark, int argc, char **argv) {
    Given given;
    OptionStrings strings = {0};
    Error error = {0};
    void *options = memory_allocate(benchmark->options_size);
    Bench *bench = memory_allocate(sizeof *bench);
    *bench = (Bench){.benchmark = benchmark,
        .options = options,
        .open_device = cmd_open_device,
        .recommend = process_recommend,
        .results = {.columns = benchmark->columns, .column_count = benchmark->column_count, .plot = benchmark->plot}};
    sort_arguments(benchmark, argc, argv, &given);
    bool done = read_arguments(bench, &given, options, &strings, &error) && check_outputs(bench->options, &error) && run(bench, &error);
    device_close(bench->device);
    bench_free_results(bench);
    options_free_strings(&strings);
    free(given.own);
    free(given.settings);
    free(options);
    free(bench);
    return done ? 0 : cmd_fail(&error);
}

int cmd_bench(int argc, char **argv) {
    for (int i = 0; argc >= 2 && i < BENCHMARKS; i++) {
        if (strcmp(argv[1], benchmarks[i]->name)) continue;
        if (!arguments_want_help(argc - 1, argv + 1)) return run_benchmark(benchmarks[i], argc - 2, argv + 2);
        print_help_of(benchmarks[i]);
        return 0;
    }
    bool help = argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"));
    Error unknown = {0};
    print_help(help ? stdout : stderr);
    if (help || argc < 2) return help ? 0 : ERROR_USAGE;
    error_set(&unknown, ERROR_USAGE, "there is no benchmark '%s'", argv[1]);
    return cmd_fail(&unknown);
}

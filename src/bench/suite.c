/* The table of vendors' and trainers' documents: tokens/s and TFLOP/s per GPU of several models, by
 * training mode, data type and sequence length. Also writes a perf.csv in the columns of ROCm's MAD
 * harness (madengine), whose reports can then read it. A model that fails to run is a row too, and
 * the suite continues. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "config/needs.h"
#include "advise/hardware.h"
#include "bench/bench.h"
#include "model/model.h"

typedef struct SuiteOptions {
    TrainOptions train;
    Fp8Config fp8;
    const char *configs, *lengths, *perf;
    int mode, precision;
} SuiteOptions;

enum { PRECISION_OF_CONFIG, RECIPE_OF_CONFIG = 0 }; /* otherwise a Precision, or an Fp8Recipe */
enum { MODE_LORA = 2, USUAL_RANK = 16 };
static const char *const modes[] = {"pretrain", "finetune", "lora"};

#define FIELD(name) offsetof(SuiteOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    STRING_OPTION(configs, "configs/gpt2-124m.yaml,configs/mpt-1b.yaml,configs/mpt-3b.yaml,configs/mpt-7b.yaml,configs/llama3.1-8b.yaml",
        "", "comma-separated configuration files"),
    CHOICE_OPTION(mode, "pretrain", "pretrain|finetune|lora",
        "finetune: all weights, same speed as pretrain; lora: adapters of the configuration's rank, or of rank 16"),
    CHOICE_OPTION(precision, "same", "same|bf16|fp32|fp64|pure_bf16", "data type; same: the configuration's"),
    CHOICE_OPTION(fp8.recipe, "same", "same|none|tensor|row|row_gw_hp|block|mxfp8", "linear layers in fp8; same: the configuration's"),
    STRING_OPTION(lengths, "", "tokens", "sequence lengths: numbers or ranges; empty: the configuration's"),
    TRAIN_ROWS,
    STRING_OPTION(perf, "", "", "file in the format of ROCm MAD's perf.csv, to append to"),
};

static const BenchColumn columns[] = {{"model", BENCH_TEXT, 20}, {"mode", BENCH_TEXT, 9}, {"type", BENCH_TEXT, 5}, {"gpus", 0, 5},
    {"length", 0, 8}, {"microbatch", 0, 10}, {"accumulation", 0, 12}, {"tokens_s_per_gpu", 1, 16}, {"tflops_per_gpu", 2, 14},
    {"peak_percent", 1, 12}, {"best_percent", 1, 12}, {"memory_bytes", 0, 14}, {"status", BENCH_TEXT, 8}};

/* One line of the table. */
typedef struct SuiteEntry {
    char model[64];
    Config config;
    bool done;
    TrainSpeed speed;
    double seconds; /* that the measurement took */
} SuiteEntry;

/* -- perf.csv ------------------------------------------------------------------------------------------------------ */

static const char perf_header[] =
    "model,n_gpus,nnodes,gpus_per_node,training_precision,pipeline,args,tags,docker_file,base_docker,docker_sha,docker_image,git_commit,"
    "machine_name,deployment_type,launcher,gpu_architecture,performance,metric,relative_change,status,build_duration,test_duration,"
    "dataname,data_provider_type,data_size,data_download_duration,build_number,additional_docker_run_options\n";

static void print_perf(const Bench *bench, const SuiteEntry *entry, FILE *file) {
    const SuiteOptions *options = bench->options;
    const DeviceInfo *info = device_info(bench->device);
    const char *type = bench_type_name(&entry->config), *mode = modes[options->mode];
    struct utsname names;
    char performance[32] = "", recipe[16];
    bool fp8 = entry->config.model.fp8.recipe != FP8_NONE, images = model_makes_images(&entry->config.model);
    const char *unit = images ? "images" : "tokens";
    double rate = entry->speed.tokens_per_second / (double)(images ? entry->config.data.length : 1);
    config_recipe_name(&entry->config, recipe);
    if (entry->done) snprintf(performance, sizeof performance, "%.2f", rate);
    fprintf(file,
        "smelt_train_%s,1,1,1,%s,smelt,mode=%s length=%" PRId64 " microbatch=%" PRId64 " accumulation=%" PRId64
        "%s%s,\"smelt,%s,%s\",,,,,,%s,local,smelt,%s,%s,%s_per_second_per_gpu,,%s,,%.1f,random %s,,,,,\n",
        entry->model, type, mode, entry->config.data.length, entry->speed.microbatch, entry->speed.accumulation, fp8 ? " fp8.recipe=" : "",
        fp8 ? recipe : "", mode, type, uname(&names) == 0 ? names.nodename : "unknown", info->host_memory ? "cpu" : info->target,
        performance, unit, entry->done ? "SUCCESS" : "FAILURE", entry->seconds, unit);
}

static bool append_perf(const Bench *bench, const SuiteEntry *entry, Error *error) {
    const char *path = ((const SuiteOptions *)bench->options)->perf;
    SCOPED_FREE char *text = NULL;
    char first[sizeof perf_header];
    size_t length = 0;
    if (!*path) return true;
    bool empty = file_read_start(path, first, sizeof first) <= 0;
    if (!empty && strcmp(first, perf_header) != 0)
        return error_set(error, ERROR_USAGE, "perf=%s does not have the 29 columns of perf.csv: choose another file", path);
    FILE *stream = open_memstream(&text, &length);
    if (stream && empty) fputs(perf_header, stream);
    if (stream) print_perf(bench, entry, stream);
    bool written = stream && fclose(stream) == 0;
    SCOPED(file_close) File file = {0};
    written = written && file_open_append(&file, path, false, error) && file_append(&file, text, (int64_t)length, error);
    return written || error_set(error, ERROR_DATA, "cannot write perf=%s: %s", path, strerror(errno));
}

/* -- Models -------------------------------------------------------------------------------------------------------- */

/* Derives "mpt-1b" from "configs/mpt-1b.yaml". Commas and quotes would break the table. */
static void config_name(const char *path, char name[64]) {
    const char *slash = strrchr(path, '/');
    snprintf(name, 64, "%s", slash ? slash + 1 : path);
    char *end = strstr(name, ".yaml");
    if (end) *end = '\0';
    for (char *c = name; *c; c++)
        if (*c == ',' || *c == '"' || *c == '\n') *c = '_';
}

static bool read_suite_config(
    const char *path, const SuiteOptions *options, int64_t length, Config *config, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, config, strings);
    if (!options_read_yaml(&config_table, config, strings, path, error)) return false;
    const Config said = *config;
    if (options->precision != PRECISION_OF_CONFIG) config->precision = options->precision - 1;
    if (options->fp8.recipe != RECIPE_OF_CONFIG) config->model.fp8.recipe = options->fp8.recipe - 1;
    if (length) config->data.length = length;
    if (options->mode == MODE_LORA && !config->lora.rank) config->lora.rank = USUAL_RANK;
    config->batch.sequences = 1;
    config->batch.ramp_tokens = 0;
    if (config->batch.tokens < config->data.length) config->batch.tokens = config->data.length;
    config->batch.tokens -= config->batch.tokens % config->data.length;
    return needs_check(config, &said, error) && config_check(config, error);
}

static void add_suite_row(Bench *bench, const SuiteEntry *entry, double best) {
    const SuiteOptions *options = bench->options;
    const TrainSpeed *speed = &entry->speed;
    Precision precision = (Precision)entry->config.precision;
    double none = entry->done ? 1 : NAN;
    bool fp8 = entry->config.model.fp8.recipe != FP8_NONE;
    bench_row(
        bench, (BenchCell[]){TEXT(entry->model), TEXT(modes[options->mode]), TEXT(bench_type_name(&entry->config)), NUMBER(1),
                   NUMBER(entry->config.data.length), NUMBER(none * (double)speed->microbatch), NUMBER(none * (double)speed->accumulation),
                   NUMBER(none * speed->tokens_per_second), NUMBER(none * speed->flops / 1e12),
                   NUMBER(none * 100 * speed->flops / hardware_peak(bench->device, precision, fp8)),
                   NUMBER(best > 0 ? none * 100 * speed->flops / best : NAN), NUMBER(none * (double)speed->memory),
                   TEXT(entry->done ? "ok" : "failed")});
}

/* Measures one model. Returns false only if the suite cannot continue; `failed` counts models
 * that did not run. `best` has the best measured rates of bf16 and fp32 GEMMs. */
static bool measure_config(Bench *bench, const char *path, int64_t length, double best[2], int *failed, Error *error) {
    const SuiteOptions *options = bench->options;
    SuiteEntry entry = {0};
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Error reason = {0};
    double start = log_seconds();
    config_name(path, entry.model);
    entry.done = read_suite_config(path, options, length, &entry.config, &strings, &reason);
    Precision precision = (Precision)entry.config.precision;
    entry.done = entry.done && bench_train_measure(bench, &entry.config, &options->train.measure, &entry.speed, &reason);
    entry.seconds = log_seconds() - start;
    double *of_type = &best[!precision_is_bf16(precision)];
    if (entry.done && *of_type == 0) *of_type = bench_best_gemm(bench, precision);
    if (!entry.done) log_warn("%s: %s", path, reason.message);
    *failed += !entry.done;
    add_suite_row(bench, &entry, precision == PRECISION_FP64 ? 0 : *of_type);
    return append_perf(bench, &entry, error) && device_ok(bench->device, error);
}

static bool measure_lengths(Bench *bench, const BenchList *lengths, Error *error) {
    SCOPED_FREE char *paths = memory_copy_string(((const SuiteOptions *)bench->options)->configs);
    char *rest = paths;
    double best[2] = {0};
    int failed = 0;
    for (char *path; (path = strsep(&rest, ","));)
        for (int i = 0; *path && i < lengths->count; i++)
            if (!measure_config(bench, path, lengths->numbers[i], best, &failed, error)) return false;
    return !failed ||
           error_set(error, ERROR_INTERNAL, "%d of %d rows failed, for the reasons given above", failed, bench->results.row_count);
}

static bool run_suite(Bench *bench, Error *error) {
    const SuiteOptions *options = bench->options;
    const int64_t most_length = 1 << 24;
    BenchList lengths = {{0}, 1}; /* 0: the configured length */
    if (*options->lengths && !bench_list(&lengths, "lengths", options->lengths, most_length, error)) return false;
    Precision precision = options->precision == PRECISION_OF_CONFIG ? PRECISION_BF16 : (Precision)(options->precision - 1);
    return bench_open_device(bench, precision, error) && measure_lengths(bench, &lengths, error);
}

const Benchmark bench_suite = {
    .name = "suite",
    .summary = "tokens/s and TFLOP/s per GPU of several models, as a table and as perf.csv",
    .explanation = "Runs bench train for several configurations, in one training mode and data type, at one or more sequence lengths. "
                   "perf= appends each row to a perf.csv\n"
                   "with the 29 columns of ROCm's MAD harness; a failure is also a row.\n",
    BENCH_PARTS(SuiteOptions, run_suite),
    .plot = {"Training", "length", "tflops_per_gpu", {"model", "type"}, "tokens per sequence", "TFLOP/s per GPU", .x_logarithmic = true},
};

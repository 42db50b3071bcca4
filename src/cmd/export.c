/* `smelt export RUN OUT [key=value ...]`: the newest checkpoint of a run as a Hugging Face folder. */
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "cmd/arguments.h"
#include "cmd/cmd.h"
#include "data/data.h"
#include "infer/source.h"
#include "model/hf.h"

typedef enum ExportType { EXPORT_RUN, EXPORT_BF16, EXPORT_FP32 } ExportType;
typedef enum ExportTokenizer { TOKENIZER_BYTES, TOKENIZER_NONE } ExportTokenizer;
typedef struct ExportOptions { int dtype, tokenizer; bool overwrite; } ExportOptions;

static const Option rows[] = {
    {"dtype", OPTION_CHOICE, offsetof(ExportOptions, dtype), "run", 0, 0, "run|bf16|fp32", "", "type of the tensors; run: bf16 for bf16 runs, else fp32"},
    {"tokenizer", OPTION_CHOICE, offsetof(ExportOptions, tokenizer), "bytes", 0, 0, "bytes|none", "", "none: for runs on token shards of another tokenizer"},
    {"overwrite", OPTION_BOOL, offsetof(ExportOptions, overwrite), "false", 0, 0, NULL, "", "replace an earlier export"},
};
static const OptionTable table = {rows, sizeof rows / sizeof *rows};
static const ArgumentSyntax syntax = {"smelt export", "RUN OUT", 2, &table};

static void print_help(void) {
    printf("Usage: smelt export RUN OUT [key=value ...]\n\n"
           "Writes the newest checkpoint of a run as a Hugging Face folder, which transformers and what builds on it load.\n\n");
    options_print_help(&table, stdout);
}

static bool write_folder(const char *run, const char *out, const Config *config, const ExportOptions *options, Error *error) {
    bool half = options->dtype == EXPORT_BF16 || (options->dtype == EXPORT_RUN && config->precision == PRECISION_BF16);
    Precision precision = half ? PRECISION_BF16 : PRECISION_FP32;
    Model model = model_build(&config->model, precision, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    size_t bytes = model.graph->parameter_extent * sizeof(float);
    model_free(&model);
    float *master = memory_map(bytes, error);
    if (!master) return false;
    HfExport export = {.config = &config->model, .precision = precision, .master = master, .bytes = options->tokenizer == TOKENIZER_BYTES};
    int64_t step = 0;
    bool written = source_load_weights(run, config, precision, master, &step, error) && hf_write(&export, out, options->overwrite, error);
    memory_unmap(master, bytes);
    if (written) log_info("step %" PRId64 " of %s is in %s", step, run, out);
    return written;
}

static bool export(const char *run, const char *out, const ExportOptions *options, OptionStrings *strings, Error *error) {
    Config config;
    if (!source_read_config(run, &config, strings, error) || !hf_check(&config.model, error)) return false;
    if (options->tokenizer == TOKENIZER_BYTES && config.model.vocabulary < BYTE_VOCABULARY)
        return error_set(error, ERROR_USAGE, "model.vocabulary=%" PRId64 " is below the %d tokens of the byte tokenizer: give tokenizer=none",
                         config.model.vocabulary, BYTE_VOCABULARY);
    return write_folder(run, out, &config, options, error);
}

int cmd_export(int argc, char **argv) {
    if (argc < 2 || arguments_want_help(argc, argv)) {
        print_help();
        return argc < 2 ? ERROR_USAGE : 0;
    }
    ExportOptions options;
    OptionStrings strings = {0};
    Error error = {0};
    const char *given[2];
    bool done = arguments_read(&syntax, argc - 1, argv + 1, &options, &strings, given, &error) && export(given[0], given[1], &options, &strings, &error);
    options_free_strings(&strings);
    return done ? 0 : cmd_fail(&error);
}

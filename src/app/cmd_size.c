/* `smelt size CONFIG [gpu=X] [key=value ...]` */
#include <stddef.h>
#include <stdio.h>

#include "app/arguments.h"
#include "app/commands.h"
#include "advise/settings.h"
#include "advise/size.h"

typedef struct SizeOptions {
    const char *gpu, *bench;
    int64_t tensor;
} SizeOptions;

#define FIELD(name) offsetof(SizeOptions, name)
static const Option rows[] = {
    STRING_OPTION(gpu, "mi300x", "", "mi250, mi300x, mi325x, mi355x, a100, h100, h200 or cpu"),
    STRING_OPTION(bench, "", "", "JSON of smelt bench gemm from such a machine, whose rates replace the rules'"),
    INT_OPTION(tensor, "1", 1, 1024, "GPUs", "that are to share each matrix"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

static void print_help(FILE *file) {
    fprintf(file,
        "Usage: smelt size CONFIG [gpu=X] [key=value ...]\n\n"
        "Checks whether the dimensions of a model suit a processor: which of them breaks which rule, and what that costs; proposes better "
        "neighbours with\n"
        "as many parameters; for a mixture of experts weighs training against decoding. CONFIG is a file, a run folder or a model folder; "
        "keys of the\n"
        "configuration may be given too. Exits with 0 when there is no fault, 1 when there is one.\n\n");
    options_print_help(&table, file);
}

static bool judge(const SizeOptions *options, const Config *config, int *faults, Error *error) {
    SizeQuestion question = {.config = config, .tensor = options->tensor};
    Measured measured;
    Sizing sizing;
    if (!settings_hardware(options->gpu, options->bench, &question.hardware, &measured, error)) return false;
    if (*options->bench) question.measured = &measured;
    size_check(&sizing, &question);
    size_print(&sizing, &question, stdout);
    *faults = sizing.faults;
    measured_free(&measured);
    return true;
}

int cmd_size(int argc, char **argv) {
    SizeOptions options;
    Config config;
    OptionStrings strings = {0};
    Error error = {0};
    int faults = 0;
    if (argc < 2 || arguments_want_help(argc, argv)) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? ERROR_USAGE : 0;
    }
    bool good = settings_read(&table, &options, &config, &strings, argc, argv, &error) && judge(&options, &config, &faults, &error);
    options_free_strings(&strings);
    if (!good) return cmd_fail(&error);
    return faults ? ERROR_INTERNAL : 0;
}

/* `smelt size CONFIG [gpu=X] [key=value ...]` */
#include <stddef.h>

#include "base/scope.h"
#include "app/command.h"
#include "advise/settings.h"
#include "advise/size.h"

typedef struct SizeOptions {
    const char *gpu, *bench;
    int64_t tensor;
    Config config; /* from CONFIG */
} SizeOptions;

#define FIELD(name) offsetof(SizeOptions, name)
static const Option rows[] = {
    STRING_OPTION(gpu, "", "", "mi250, mi300x, mi325x, mi355x, a100, h100, h200 or cpu; empty: this machine's device"),
    STRING_OPTION(bench, "", "", "JSON of smelt bench gemm on such a machine, to replace the rates of the rules"),
    INT_OPTION(tensor, "1", 1, 1024, "GPUs", "GPUs over which each matrix is split (tensor parallelism)"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

static bool run_size(Invocation *invocation, Error *error) {
    SizeOptions *options = invocation->options;
    if (!settings_read(&options->config, invocation->words[0], &invocation->settings, &invocation->strings, error)) return false;
    SizeQuestion question = {.config = &options->config, .tensor = options->tensor};
    SCOPED(measured_free) Measured measured = {0};
    Sizing sizing;
    if (!settings_hardware(options->gpu, options->bench, &question.hardware, &measured, error)) return false;
    if (!hardware_check_fp8(&question.hardware, &options->config, error)) return false;
    if (*options->bench) question.measured = &measured;
    size_check(&sizing, &question);
    SCOPED(command_page_print) CommandPage page;
    command_page_open(&page);
    size_print(&sizing, &question, page.file);
    if (sizing.faults) invocation->code = ERROR_INTERNAL;
    return true;
}

const Command command_size = {
    .name = "size",
    .summary = "check a model's dimensions against a processor",
    .words = "CONFIG",
    .usage = "CONFIG [gpu=X] [key=value ...]",
    .explanation = "Checks whether the dimensions of a model suit a processor. Names each dimension that breaks a rule, and the cost. "
                   "Suggests better dimensions with\n"
                   "the same number of parameters. For a mixture of experts, compares training with decoding. CONFIG is a file, a run "
                   "folder or a model folder; settings of the\n"
                   "configuration may follow. Exits with 0 if there is no fault, else with 1.\n",
    .hint = "CONFIG is a configuration file, a run folder or a model folder",
    .table = &table,
    .options_size = sizeof(SizeOptions),
    .takes_config = true,
    .run = run_size,
};

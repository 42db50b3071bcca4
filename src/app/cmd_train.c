/* `smelt train CONFIG.yaml|RUN [key=value ...]` */
#include <math.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>

#include "backend/backend.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "advise/hardware.h"
#include "advise/plan_page.h"
#include "app/command.h"
#include "app/process.h"
#include "train/run.h"
#include "train/source.h"
#include "train/train.h"

/* The first argument: a configuration file, or a run folder, whose configuration is the base and which is continued. */
static bool read_base(const char *path, Config *config, OptionStrings *strings, Error *error) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    SCOPED_FREE char *setting = memory_format("run=%.*s", (int)length, path);
    if (source_is_run(path))
        return run_read_config(path, config, strings, error) && options_set(&config_table, config, strings, setting, error);
    if (file_kind(path, NULL) == FILE_FOLDER)
        return error_set(error, ERROR_USAGE, "%s is no run folder: it has no config.yaml; a configuration file or a run comes first", path);
    if (options_read_yaml(&config_table, config, strings, path, error)) return true;
    if (file_exists(path) && !ends_with(path, ".yaml") && !ends_with(path, ".yml"))
        error_set(error, error->code, "%s; text to train on is given as data.train=%s", error->message, path);
    return false;
}

static bool apply_arguments(int argc, char **argv, Config *config, OptionStrings *strings, Error *error) {
    bool file = argc > 1 && !strchr(argv[1], '=') && !starts_with(argv[1], "--");
    if (file && !read_base(argv[1], config, strings, error)) return false;
    for (int i = 1 + file; i < argc;) {
        if (!strchr(argv[i], '=') && !starts_with(argv[i], "--"))
            return error_set(error, ERROR_USAGE,
                file ? "'%s' is not key=value, and a configuration file was given already: see smelt train --help"
                     : "'%s': the configuration file comes first, then key=value",
                argv[i]);
        SCOPED_FREE char *assignment = command_assignment(&config_table, argc, argv, &i, error);
        if (!assignment || !options_set(&config_table, config, strings, assignment, error)) return false;
    }
    return true;
}

/* The tokenizer is that of init=FOLDER when no other is given: its model knows no other tokens. */
static bool take_tokenizer(const char *folder, const Config *origin, Config *config, OptionStrings *strings, Error *error) {
    SCOPED_FREE char *path = config->data.tokenizer[0] ? NULL : source_tokenizer(folder, origin);
    if (!path || !*path) return true;
    SCOPED_FREE char *setting = memory_format("data.tokenizer=%s", path);
    if (!options_set(&config_table, config, strings, setting, error)) return false;
    log_info("%s, as of init=%s", setting, folder);
    return true;
}

/* The model is that of init=FOLDER, and text is read with its tokenizer. Settings of the model that are given must
 * agree, but those that may change from one training to the next. */
static bool take_model(int argc, char **argv, Config *config, OptionStrings *strings, Error *error) {
    Config origin, wanted;
    char text[1024];
    const char *folder = config->init;
    if (!file_exists(folder) && !source_is_run(folder) && source_is_run(config->run)) folder = config->run; /* which remembers its model */
    if (!source_read_config(folder, &origin, strings, error)) return error_context(error, "init=%s", folder);
    options_defaults(&config_table, config, strings);
    config->model = origin.model;
    if (!apply_arguments(argc, argv, config, strings, error)) return false;
    wanted = *config;
    wanted.model = origin.model;
    bool fixed = origin.model.family == FAMILY_GPT2; /* its positions are weights */
    if (!fixed) wanted.model.context = config->model.context;
    wanted.model.init_std = config->model.init_std;
    wanted.model.auxiliary_loss = config->model.auxiliary_loss;
    wanted.model.auxiliary_scope = config->model.auxiliary_scope;
    wanted.model.padding = config->model.padding;
    if (!options_difference(&config_table, &wanted, config, text, sizeof text))
        return take_tokenizer(folder, &origin, config, strings, error);
    return error_set(error, ERROR_USAGE, "init=%s is another model (its settings -> given):\n%sleave these settings out", folder, text);
}

/* A run has remembered its model. */
static bool read_arguments(int argc, char **argv, Config *config, OptionStrings *strings, Error *error) {
    bool continues = argc > 1 && source_is_run(argv[1]);
    options_defaults(&config_table, config, strings);
    if (!apply_arguments(argc, argv, config, strings, error)) return false;
    if (continues && !file_same(config->run, argv[1]))
        return error_set(error, ERROR_USAGE, "run=%s, but %s is continued, which comes first: leave run= out", config->run, argv[1]);
    return (continues || !config->init[0] || take_model(argc, argv, config, strings, error)) && corpus_resolve(config, strings, error) &&
           config_check(config, error);
}

static Device *open_device(const Config *config, const Comm *comm, Error *error) {
    if (config->device == DEVICE_CPU || (config->device == DEVICE_AUTO && !precision_is_bf16(config->precision))) return device_cpu();
    return device_open_local(config->device, comm_local_rank(comm), error);
}

/* Trains as one of the ranks that were started. Training goes on without its terminal, since its results are in the
 * run folder: output that could not be printed is dropped. */
static bool train_together(const Config *config, Error *error) {
    static StopRequest stop; /* signals and lines of the log may come until the process ends */
    static Console *console;
    console = console_create(config->log.every);
    log_copy(console_take, console);
    Comm *comm = comm_open(&(CommOptions){.recommend = process_recommend}, error);
    Device *device = comm ? open_device(config, comm, error) : NULL;
    bool ready = device && comm_use_device(comm, device, error);
    if (ready) {
        process_catch_stop(&stop, true);
        process_set_threads(config->threads, comm_local_size(comm));
    }
    TrainHost host = {&stop, process_hang_actions, console, ready ? hardware_peak(device, config->precision) : NAN};
    bool done = ready && train(config, device, comm, &host, error);
    if (!done && comm && error->code != ERROR_PREEMPTED) comm_abort(comm, error->message);
    comm_close(comm);
    device_close(device);
    if (fflush(stdout) != 0) __fpurge(stdout);
    clearerr(stdout);
    return done;
}

static bool plan_alone(const Config *config, Error *error) {
    Device *device = command_open_device(config->device, config->precision, error);
    bool done = device && plan_print(config, device, device_available(device), stdout, error);
    device_close(device);
    return done;
}

static bool run(Invocation *invocation, Error *error) {
    Config *config = invocation->options;
    if (!strcmp(invocation->argv[1], "--example")) return example_print(invocation->argc > 2 ? invocation->argv[2] : "", error);
    return read_arguments(invocation->argc, invocation->argv, config, &invocation->strings, error) &&
           (config->plan ? plan_alone : train_together)(config, error);
}

const Command command_train = {
    .name = "train",
    .summary = "train a model, or continue a run",
    .usage = "CONFIG.yaml|RUN [key=value ...]",
    .explanation = "Trains a model as the configuration says. A run folder that exists is continued from its newest good checkpoint.\n"
                   "SIGTERM and SIGINT write a checkpoint first; the same command continues, and so does smelt train RUN.\n\n"
                   "A run that has started keeps its settings, but for those with a mark. (changes): another value holds from the\n"
                   "next step on, and is printed and recorded (smelt show RUN). (free): no result depends on it. (once): it is of\n"
                   "one start alone.\n\n"
                   "smelt train --example llama prints a configuration to start from; likewise zaya, mpt, gpt2 and finetune.\n"
                   "  smelt train --example llama > llama.yaml\n"
                   "  smelt train llama.yaml data.train=my-texts/ run=runs/first\n",
    .table = &config_table,
    .options_size = sizeof(Config),
    .run = run,
};

/* `smelt train CONFIG.yaml|RUN [key=value ...]` */
#include <math.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>

#include "advise/auto_layout.h"
#include "advise/hardware.h"
#include "advise/plan_page.h"
#include "app/command.h"
#include "app/process.h"
#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/layout_rules.h"
#include "config/needs.h"
#include "base/stop.h"
#include "data/shard_set.h"
#include "run/corpus.h"
#include "run/lineage.h"
#include "run/phases.h"
#include "run/run.h"
#include "run/source.h"
#include "train/train.h"

typedef struct TrainArguments {
    const char *base;       /* a configuration file, or a run or one of its checkpoints; "": none */
    OptionStrings settings; /* "key=value" */
} TrainArguments;

static void free_arguments(TrainArguments *arguments) { options_free_strings(&arguments->settings); }

static bool parse_arguments(int argc, char **argv, TrainArguments *arguments, Error *error) {
    bool base = argc > 1 && !strchr(argv[1], '=') && !starts_with(argv[1], "--");
    arguments->base = base ? argv[1] : "";
    for (int i = 1 + base; i < argc;) {
        if (!strchr(argv[i], '=') && !starts_with(argv[i], "--"))
            return error_set(error, ERROR_USAGE,
                base ? "'%s' is not key=value, and a configuration file is already given: see smelt train --help"
                     : "'%s' is not key=value: give the configuration file first, then key=value",
                argv[i]);
        char *assignment = command_assignment(&config_table, argc, argv, &i, error);
        if (!assignment) return false;
        array_append(arguments->settings.items, arguments->settings.count, assignment);
    }
    return true;
}

/* Reads a configuration file, or the configuration of a run. */
static bool read_base(const char *path, Config *config, OptionStrings *strings, Error *error) {
    if (source_is_run(path)) {
        SCOPED(run_point_free) RunPoint point = run_point(path);
        SCOPED_FREE char *setting = memory_format("run=%.*s", (int)path_length(point.run), point.run);
        bool read = run_read_config(point.run, config, strings, error) && options_set(&config_table, config, strings, setting, error);
        config->from = point.step;
        return read;
    }
    if (file_kind(path, NULL) == FILE_FOLDER)
        return error_set(
            error, ERROR_USAGE, "%s is not a run folder, because it has no config.yaml: give a configuration file or a run first", path);
    if (options_read_yaml(&config_table, config, strings, path, error)) return true;
    if (file_exists(path) && !ends_with(path, ".yaml") && !ends_with(path, ".yml"))
        error_set(error, error->code, "%s; to train on the text, set data.train=%s", error->message, path);
    return false;
}

static bool apply_settings(const TrainArguments *arguments, Config *config, OptionStrings *strings, Error *error) {
    const Config base = *config;
    config->steps = config->tokens = 0;
    config->epochs = 0;
    config->batch.last = 0;
    return options_set_all(&config_table, config, strings, &arguments->settings, error) && config_settle_length(config, &base, error);
}

static bool apply_arguments(const TrainArguments *arguments, Config *config, OptionStrings *strings, Error *error) {
    config->steps = 0; /* not given */
    return (!*arguments->base || read_base(arguments->base, config, strings, error)) && apply_settings(arguments, config, strings, error);
}

/* Takes the tokenizer of init=FOLDER when no other is given, because its model knows no other
 * tokens. Token shards may come from elsewhere. Text is never read as bytes for a model that is not
 * known to be trained on bytes. */
static bool take_origin_tokenizer(const char *folder, const Config *origin, Config *config, OptionStrings *strings, Error *error) {
    if (config->data.tokenizer[0] || model_makes_images(&config->model)) return true;
    SCOPED_FREE char *path = source_tokenizer(folder, origin);
    if (!path && corpus_has_text(config))
        return error_set(error, ERROR_USAGE,
            "init=%s has no tokenizer, so the text data.train=%s cannot be encoded for it: add its tokenizer.json, set "
            "data.tokenizer=FILE, or set data.tokenizer=bytes if its tokens are bytes",
            folder, config->data.train);
    if (!path || !*path) return true;
    SCOPED_FREE char *setting = memory_format("data.tokenizer=%s", path);
    if (!options_set(&config_table, config, strings, setting, error)) return false;
    log_info("%s, taken from init=%s", setting, folder);
    return true;
}

/* Copies the settings that may change from one training of a model to the next. */
static void take_free(ModelConfig *model, const ModelConfig *from) {
    if (!family_of(from)->learns_positions) model->context = from->context;
    if (!from->mtp) model->mtp = 0; /* a layer that is not asked for is left out */
    model->mtp_weight = from->mtp_weight;
    model->init_std = from->init_std;
    model->auxiliary_loss = from->auxiliary_loss;
    model->auxiliary_scope = from->auxiliary_scope;
    model->padding = from->padding;
    model->text_tokens = from->text_tokens; /* from the encodings */
    model->fp8 = from->fp8;
    model->preference = from->preference;
    model->policy = from->policy;
}

/* A new run with adapters whose init is a run with adapters trains these further: their base
 * becomes init, and the run becomes lora.start. */
static void continue_adapters(Config *config, const Config *origin) {
    if (!source_is_run(config->init) || !origin->lora.rank || !config->lora.rank || config->lora.start[0]) return;
    log_info("init=%s has adapters: training continues with them, as with init=%s lora.start=%s", config->init, origin->init, config->init);
    config->lora.start = config->init;
    config->init = origin->init;
}

/* Takes the model of init=FOLDER, and its tokenizer for text. Given settings of the model must
 * agree with it. Settings that may differ between trainings are exempt. */
static bool take_model(const TrainArguments *arguments, Config *config, OptionStrings *strings, Error *error) {
    Config origin, wanted;
    char text[1024];
    const char *folder = config->init;
    if (!file_exists(folder) && !source_is_run(folder) && !adapter_is_folder(folder) && source_is_run(config->run))
        folder = config->run; /* the run remembers its model */
    if (!source_read_config(folder, &origin, strings, error)) return error_context(error, "init=%s", folder);
    options_defaults(&config_table, config, strings);
    origin.model.fp8 = config->model.fp8; /* FP8 is not part of a model, and neither is the loss */
    origin.model.preference = config->model.preference;
    origin.model.policy = config->model.policy;
    config->model = origin.model;
    config->model.mtp = 0;
    if (model_makes_images(&config->model)) config->model.context = 0; /* from the images of this run */
    if (!apply_arguments(arguments, config, strings, error)) return false;
    if (!config->model.vocabulary) config->model.vocabulary = origin.model.vocabulary;
    wanted = *config;
    wanted.model = origin.model;
    take_free(&wanted.model, &config->model);
    if (!options_difference(&config_table, &wanted, config, text, sizeof text)) {
        if (!take_origin_tokenizer(folder, &origin, config, strings, error)) return false;
        if (origin.model.mtp && !config->model.mtp)
            log_warn(
                "init=%s has a layer for multi-token prediction, which this run neither trains nor exports: set model.mtp=1 to keep it",
                folder);
        continue_adapters(config, &origin);
        return true;
    }
    return error_set(error, ERROR_USAGE,
        "init=%s is another model (its settings -> given):\n"
        "%sremove these settings",
        folder, text);
}

static bool same_store(const char *a, const char *b) {
    size_t length = path_length(a);
    return (length == path_length(b) && !strncmp(a, b, length)) || file_same(a, b);
}

/* smelt train RUN fork=NEW: NEW is the run of this start, and RUN is its origin. The base is the
 * configuration of RUN's checkpoint, or NEW's own configuration once NEW is a run, so that the same
 * command continues it. */
static bool choose_fork(const TrainArguments *arguments, Config *config, OptionStrings *strings, Error *error) {
    Config base;
    const char *run = config->run, *fork = config->fork;
    int64_t from = config->from;
    if (file_same(run, fork)) return error_set(error, ERROR_USAGE, "fork=%s is the run itself: use a new folder", fork);
    if (!run_read_config(run, &base, strings, error)) return false;
    RunPoint point = {(char *)run, from};
    *config = base;
    bool based = source_is_run(fork) ? run_read_config(fork, config, strings, error) : lineage_settings(&point, config, strings, error);
    if (!based || !apply_settings(arguments, config, strings, error)) return false;
    if (same_store(run_checkpoints(run, &base), run_checkpoints(fork, config)))
        return error_set(error, ERROR_USAGE,
            "%s contains the checkpoints of %s: set checkpoint.store=ANOTHER for fork=%s, or checkpoint.store= for the run folder itself",
            run_checkpoints(run, &base), run, fork);
    config->run = fork;
    config->fork = run;
    config->from = from;
    return true;
}

/* Chooses the run: after a configuration file any run, after a run only that run or its fork. */
static bool choose_run(const TrainArguments *arguments, Config *config, OptionStrings *strings, Error *error) {
    SCOPED(run_point_free) RunPoint point = run_point(arguments->base);
    bool continues = source_is_run(point.run);
    if (continues && !file_same(config->run, point.run))
        return error_set(
            error, ERROR_USAGE, "run=%s, but %s is being continued: remove run, or set fork=%s", config->run, point.run, config->run);
    if (continues && point.step && config->from != point.step)
        return error_set(
            error, ERROR_USAGE, "%s and from=%lld name two checkpoints: remove one of them", arguments->base, (long long)config->from);
    if (continues && config->fork[0]) return choose_fork(arguments, config, strings, error);
    if (config->fork[0])
        return error_set(error, ERROR_USAGE, "fork=%s needs a run to continue from: give its folder first, as in smelt train RUN fork=%s",
            config->fork, config->fork);
    if (config->from)
        return error_set(error, ERROR_USAGE,
            "a run continues from its newest checkpoint; to continue from another one, set fork=NEW to a new run folder");
    return continues || !config->init[0] || take_model(arguments, config, strings, error); /* a run has remembered its model */
}

/* Reads the settings that this start gives (config/needs.h). Settings that the run remembers do not
 * count, nor do settings of the model that agree with init=FOLDER. */
static bool read_said(const TrainArguments *arguments, const Config *config, Config *said, OptionStrings *strings, Error *error) {
    bool file = *arguments->base && !source_is_run(arguments->base);
    options_defaults(&config_table, said, strings);
    said->steps = 0; /* not given */
    const ModelConfig initial = said->model;
    if (file && !options_read_yaml(&config_table, said, strings, arguments->base, error)) return false;
    if (!apply_settings(arguments, said, strings, error)) return false;
    const ModelConfig model = said->model;
    if (!config->init[0]) return true;
    said->model = initial;
    take_free(&said->model, &model);
    return true;
}

static bool check_needs(const Config *config, const Config *said, Error *error) {
    return needs_check(config, said, error) && (config->layout.choice == LAYOUT_AUTO || needs_check_layout(config, said, error));
}

/* Returns the number of ranks for checks of the layout. 0: any number, because the layout is chosen
 * automatically, or planned for other machines. */
static int64_t advised_ranks(const Config *config) {
    int started = comm_started_ranks();
    return config->layout.choice == LAYOUT_AUTO || (config->plan && started == 1) ? 0 : started;
}

static bool read_configuration(const TrainArguments *arguments, Config *config, Config *said, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, config, strings);
    return apply_arguments(arguments, config, strings, error) && choose_run(arguments, config, strings, error) &&
           read_said(arguments, config, said, strings, error) && check_needs(config, said, error) && phases_resolve(config, error) &&
           corpus_resolve(config, strings, error) && config_check_started(config, advised_ranks(config), error);
}

/* Describes the hardware for layout=auto; returns false if the table of hardware lacks the device.
 * `per_node` 0: the usual number. */
static bool describe_cluster(Cluster *cluster, int ranks, int per_node, const Device *device, int64_t available, Error *error) {
    *cluster = (Cluster){.gpus = ranks};
    if (!hardware_of_device(&cluster->hardware, device))
        return error_set(error, ERROR_USAGE,
            "layout=auto has no performance data for %s: set layout.tp, layout.pp, layout.cp, layout.ep and layout.zero",
            device_info(device)->name);
    cluster->per_node = per_node ? per_node : cluster->hardware.per_node;
    if (available >= 0) cluster->hardware.memory = (double)available;
    if (available >= 0) cluster->hardware.runtime = 0;
    return true;
}

/* Rank 0's choice, for all ranks. */
typedef struct ChosenLayout {
    LayoutConfig layout;
    int64_t sequences;
    int recompute;
    Error error;
} ChosenLayout;

/* Chooses the layout on rank 0 for the rank with the least memory. Collective. */
static bool choose_layout(Config *config, Comm *comm, Device *device, Error *error) {
    ChosenLayout chosen = {0};
    int64_t available = train_memory(comm, device);
    if (config->layout.choice != LAYOUT_AUTO) return true;
    if (!comm_host_all_reduce(comm, "memory", &available, 1, COMM_I64, COMM_MIN, error)) return false;
    if (comm_rank(comm) == 0) {
        Cluster cluster;
        bool found = describe_cluster(&cluster, comm_size(comm), comm_local_size(comm), device, available, &chosen.error) &&
                     auto_layout(config, &cluster, stdout, &chosen.error);
        if (found) chosen.error = (Error){0};
        chosen.layout = config->layout;
        chosen.sequences = config->batch.sequences;
        chosen.recompute = config->recompute;
    }
    if (!comm_host_broadcast(comm, "layout", &chosen, sizeof chosen, COMM_U8, 0, error)) return false;
    config->layout = chosen.layout;
    config->batch.sequences = chosen.sequences;
    config->recompute = chosen.recompute;
    if (chosen.error.code == ERROR_NONE) return true;
    *error = chosen.error;
    return false;
}

/* Trains as one of the started ranks. Training continues without its terminal, because its results
 * are in the run folder; output that cannot be printed is dropped. */
static bool train_together(const Config *given, const Config *said, Error *error) {
    Config settings = *given;
    const Config *config = &settings;
    static StopRequest stop; /* static: signals and log lines may come until the process ends */
    static Console *console;
    console = console_create(config->log.every);
    log_copy(console_take, console);
    Comm *comm = comm_open(&(CommOptions){.recommend = process_recommend}, error);
    Device *device = comm ? command_open_local_device(config->device, config->precision, comm, error) : NULL;
    if (device) device_set_exact(device, config->exact);
    bool ready = device && comm_use_device(comm, device, error);
    if (ready) {
        process_catch_stop(&stop, true);
        process_set_threads(config->threads, comm_local_size(comm));
    }
    TrainHost host = {said, &stop, process_hang_actions, console,
        ready ? hardware_peak(device, config->precision, config->model.fp8.recipe != FP8_NONE) : NAN};
    bool done = ready && train_settings_agree(config, comm, error) && choose_layout(&settings, comm, device, error) &&
                train(config, device, comm, &host, error);
    if (!done && comm && error->code != ERROR_PREEMPTED) comm_abort(comm, error->message);
    comm_close(comm);
    device_close(device);
    if (fflush(stdout) != 0) __fpurge(stdout);
    clearerr(stdout);
    return done;
}

static Device *open_planned(const Config *config, Error *error) {
    Device *device = command_open_device(config->device, config->precision, error);
    if (!device && (config->device == DEVICE_HIP || config->device == DEVICE_CUDA))
        error_set(error, error->code, "%s; smelt forecast CONFIG.yaml gpu=%s plans for other GPUs", error->message,
            config->device == DEVICE_HIP ? "mi300x" : "h100");
    return device;
}

/* Returns the position that the run has reached, if the run folder is a run. */
static Position done_position(const Config *config) {
    Error ignored = {0};
    int64_t step = 0;
    json_auto_t *metadata = source_is_run(config->run) ? lineage_newest(run_checkpoints(config->run, config), &step, &ignored) : NULL;
    return lineage_position(metadata, config);
}

/* Counts the steps of epochs. They are known for packed data; with best-fit packing or a validation
 * part by documents, once the run has started. */
static bool count_steps(Config *config, Error *error) {
    SCOPED(shard_set_close) ShardSet train = {0};
    Position done = done_position(config);
    bool packed = shard_set_exists(config->data.train) || done.step > 0;
    bool counted = false;
    packed = packed && config->data.packing == PACKING_CUT && config->data.valid_documents <= 0;
    if (config->epochs > 0 && packed && !corpus_map_train(&train, config, &counted, error)) return false;
    return corpus_resolve_steps(config, counted ? train.token_count - 1 : 0, done, error) && corpus_check_epochs(config, error);
}

/* Plans the layout. One process plans for the ranks that the layout requests, even if this machine
 * has fewer. Several processes plan for themselves. */
static bool plan_rank(Config *config, const Comm *comm, Device *device, FILE *file, Error *error) {
    int64_t available = train_memory(comm, device);
    int ranks = comm_size(comm) == 1 ? (int)layout_asked_ranks(&config->layout) : comm_size(comm);
    if (config->layout.choice == LAYOUT_AUTO) {
        Cluster cluster;
        int per_node = comm_size(comm) == 1 ? 0 : comm_local_size(comm);
        if (!describe_cluster(&cluster, ranks, per_node, device, available, error) || !auto_layout(config, &cluster, file, error))
            return false;
        fputc('\n', file);
    }
    return plan_print(config, ranks, done_position(config).step, device, available, file, error);
}

/* Plans on rank 0. All started ranks must have the same settings: a rank that trained would wait
 * for the others. */
static bool plan_together(const Config *given, const Config *said, Error *error) {
    Config settings = *given;
    Config *config = &settings;
    if (!count_steps(&settings, error)) return false;
    Comm *comm = comm_open(&(CommOptions){.recommend = process_recommend}, error);
    bool agreed = comm && train_settings_agree(config, comm, error), prints = agreed && comm_rank(comm) == 0;
    Device *device = prints ? open_planned(config, error) : NULL;
    if (device) needs_warn(config, said, NULL);
    SCOPED(command_page_print) CommandPage page;
    command_page_open(&page);
    bool done = prints ? device && plan_rank(config, comm, device, page.file, error) : agreed;
    comm_close(comm);
    device_close(device);
    return done;
}

/* Checks that the layout can shrink: ranks are removed copy by copy, so neither the number of
 * copies nor their ZeRO division may be fixed. */
static bool can_shrink(int argc, char **argv, Error *error) {
    static const char *const fixed[] = {"layout.dp", "layout.shard"};
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(free_arguments) TrainArguments arguments = {0};
    Config config = {0}; /* not every field is a setting */
    options_defaults(&config_table, &config, &strings);
    if (!parse_arguments(argc, argv, &arguments, error) || !apply_arguments(&arguments, &config, &strings, error)) return false;
    const int64_t given[] = {config.layout.dp, config.layout.shard};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed && config.layout.choice != LAYOUT_AUTO; i++)
        if (given[i])
            return error_set(error, ERROR_USAGE,
                "shrink=true reduces the number of ranks, but %s=%lld does not allow this: set %s=0 or layout=auto, or remove shrink",
                fixed[i], (long long)given[i], fixed[i]);
    return true;
}

static bool run_train(Invocation *invocation, Error *error) {
    Config *config = invocation->options, said;
    if (!strcmp(invocation->argv[1], "--example")) return example_print(invocation->argc > 2 ? invocation->argv[2] : "", error);
    SCOPED(free_arguments) TrainArguments arguments = {0};
    return parse_arguments(invocation->argc, invocation->argv, &arguments, error) &&
           read_configuration(&arguments, config, &said, &invocation->strings, error) &&
           (config->plan ? plan_together : train_together)(config, &said, error);
}

const Command command_train = {
    .name = "train",
    .summary = "train a model, or continue a run",
    .usage = "CONFIG.yaml|RUN [key=value ...]",
    .explanation = "Trains a model from a configuration. An existing run folder continues from its newest good checkpoint.\n"
                   "SIGTERM and SIGINT first write a checkpoint; the same command, or smelt train RUN, continues.\n"
                   "smelt train RUN fork=NEW continues from a checkpoint of RUN in a new run folder, and leaves RUN unchanged.\n"
                   "\n"
                   "A setting is explained with its unit, its range or choices, and what it needs: it has an effect only with that.\n"
                   "A started run keeps its settings, except those marked below with one of these words. changes: a new\n"
                   "value applies from the next step on, and is printed and recorded (smelt show RUN). free: it affects no result.\n"
                   "once: it applies to one start.\n"
                   "\n"
                   "Column %peak is TFLOP/s in percent of the vendor's peak, which is known only for GPUs; with fp8.recipe it is the fp8 "
                   "peak. Column %best is TFLOP/s in percent of\n"
                   "the fastest large GEMM measured here in the run's precision. A terminal shows the columns that fit; a pipe and "
                   "RUN/log.txt always get the same columns,\n"
                   "with \"unknown\" for unknown values.\n"
                   "\n"
                   "smelt train --example NAME prints a configuration to start from, or the script that encodes images. Names are"
#define EXAMPLE(symbol, name, file) " " name
#include "app/example_list.h"
#undef EXAMPLE
                   ".\n"
                   "  smelt train --example llama > llama.yaml\n"
                   "  smelt train llama.yaml data.train=my-texts/ run=runs/first\n",
    .table = &config_table,
    .options_size = sizeof(Config),
    .ranks = true,
    .resumes = true,
    .can_shrink = can_shrink,
    .run = run_train,
};

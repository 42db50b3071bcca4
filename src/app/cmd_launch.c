/* `smelt launch [-n N] [key=value ...] -- COMMAND ...` */
#include <string.h>

#include "app/command.h"
#include "app/process.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "launch/launch.h"

/* Returns the command to launch, or NULL. A wrong word is reported here once, instead of by every
 * rank. A command without ranks is refused: every process would do all of its work, with the same
 * files. */
static const Command *find_command(char *const *words, Error *error) {
    const Command *command = &command_smelt, *group = NULL;
    for (; command && command->member && *words; words++) {
        group = command;
        command = command_member(group, *words);
    }
    if (command && command->ranks) return command;
    if (command && command->member)
        error_set(error, ERROR_USAGE, "'%s' after \"--\" is a group of commands: smelt %s --help lists them", words[-1], command->name);
    else if (command)
        error_set(error, ERROR_USAGE, "%s runs in one process: run it without launch, as in smelt %s ...", command->name, command->name);
    else
        error_set(error, ERROR_USAGE, "'%s%s%s' after \"--\" is not a command of smelt: smelt --help lists the commands", group->name,
            *group->name ? " " : "", words[-1]);
    return NULL;
}

/* Checks shrink=true before anything starts, because the first loss of a rank may come days
 * later. */
static bool check_shrink(const Command *command, char **arguments, Error *error) {
    int count = 0;
    while (arguments[count]) count++;
    if (command->can_shrink) return command->can_shrink(count, arguments, error);
    return error_set(
        error, ERROR_USAGE, "shrink=true works only for training, but smelt %s ends with its first failure: remove shrink", command->name);
}

/* Returns the place of the command after "--", or NULL. */
static char **read_launch_arguments(int argc, char **argv, LaunchOptions *options, OptionStrings *strings, Error *error) {
    bool short_form = false, long_form = false; /* forms of the number of ranks */
    for (int i = 1; i < argc;) {
        SCOPED_FREE char *assignment = NULL;
        if (!strcmp(argv[i], "--")) {
            if (i + 1 == argc) break;
            return argv + i + 1;
        }
        if (!strcmp(argv[i], "-n") && i + 1 < argc) {
            assignment = memory_format("ranks=%s", argv[i + 1]);
            short_form = true;
            i += 2;
        } else if (strchr(argv[i], '=') || starts_with(argv[i], "--")) {
            assignment = command_assignment(&launch_table, argc, argv, &i, error);
            long_form = long_form || (assignment && starts_with(assignment, "ranks="));
        } else {
            error_set(error, ERROR_USAGE,
                "'%s' is not key=value: put \"--\" before the command, as in smelt launch -n 4 -- train CONFIG.yaml", argv[i]);
        }
        if (short_form && long_form) error_set(error, ERROR_USAGE, "-n N is short for ranks=N, but both are given: remove one of them");
        if (error->code || !options_set(&launch_table, options, strings, assignment, error)) return NULL;
    }
    error_set(error, ERROR_USAGE, "the command is missing: smelt launch -n 4 -- train CONFIG.yaml");
    return NULL;
}

static bool run_launch(Invocation *invocation, Error *error) {
    static StopRequest stop = {.heeded = 1}; /* static: signals may arrive until the process ends */
    LaunchOptions *options = invocation->options;
    options_defaults(&launch_table, options, &invocation->strings);
    char **command = read_launch_arguments(invocation->argc, invocation->argv, options, &invocation->strings, error);
    const Command *named = command ? find_command(command, error) : NULL;
    if (!named || (options->shrink && !check_shrink(named, command, error))) return false;
    if (!named->resumes) options->restarts = 0; /* a restart would repeat all work and output */
    process_catch_stop(&stop, false);
    return launch(options, &(LaunchCommand){command, named->resumes}, &stop, error);
}

const Command command_launch = {
    .name = "launch",
    .summary = "start the ranks of a run on this node and keep it alive",
    .usage = "[-n N] [key=value ...] -- COMMAND ...",
    .explanation = "Starts N ranks of a smelt command on this node (smelt launch -n 4 -- train CONFIG.yaml layout.zero=1) and watches "
                   "them. If one fails or hangs, launch starts all of them\n"
                   "again from the newest good checkpoint. For several nodes, run it on each node: with srun, one task per node; or with "
                   "NNODES, NODE_RANK, MASTER_ADDR,\n"
                   "MASTER_PORT and SMELT_SECRET=$(openssl rand -hex 32) in the environment. All variables except NODE_RANK are the same "
                   "on all nodes.\n"
                   "Variables of Kubeflow Trainer, JobSet and SkyPilot work too: docs/kubernetes.md.\n"
                   "See docs/cluster.md.\n",
    .table = &launch_table,
    .options_size = sizeof(LaunchOptions),
    .run = run_launch,
};

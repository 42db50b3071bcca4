/* `smelt launch [-n N] [key=value ...] -- COMMAND ...` */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "app/arguments.h"
#include "app/commands.h"
#include "app/process.h"
#include "launch/launch.h"

static void print_help(void) {
    printf("Usage: smelt launch [-n N] [key=value ...] -- COMMAND ...\n\n"
           "Starts N ranks of a smelt command on this node (smelt launch -n 4 -- train CONFIG.yaml layout.zero=1), watches them, and "
           "starts them\n"
           "again from the newest good checkpoint when one fails or hangs. On several nodes run it on each, with NNODES, NODE_RANK, "
           "MASTER_ADDR\n"
           "and MASTER_PORT in the environment, or with srun, one task for each node. docs/cluster.md tells more.\n\n");
    options_print_help(&launch_table, stdout);
}

/* Returns the place of the command after "--", or NULL. */
static char **read_arguments(int argc, char **argv, LaunchOptions *options, OptionStrings *strings, Error *error) {
    for (int i = 1; i < argc; i++) {
        char text[64];
        bool set = true;
        if (!strcmp(argv[i], "--")) {
            if (i + 1 < argc) return argv + i + 1;
            break;
        }
        if (!strcmp(argv[i], "-n") && i + 1 < argc) {
            snprintf(text, sizeof text, "ranks=%.50s", argv[++i]);
            set = options_set(&launch_table, options, strings, text, error);
        } else {
            set = options_set(&launch_table, options, strings, argv[i], error);
        }
        if (!set) return NULL;
    }
    error_set(error, ERROR_USAGE, "there is no command: smelt launch -n 4 -- train CONFIG.yaml");
    return NULL;
}

int cmd_launch(int argc, char **argv) {
    if (argc < 2 || arguments_want_help(argc, argv)) {
        print_help();
        return argc < 2 ? ERROR_USAGE : 0;
    }
    LaunchOptions options;
    OptionStrings strings = {0};
    Error error = {0};
    options_defaults(&launch_table, &options, &strings);
    char **command = read_arguments(argc, argv, &options, &strings, &error);
    static StopRequest stop = {.heeded = 1}; /* signals may come until the process ends */
    if (command) process_catch_stop(&stop, false);
    int code = command ? launch(&options, command, &stop, &error) : (int)error.code;
    options_free_strings(&strings);
    return code ? cmd_fail(&error) : 0;
}

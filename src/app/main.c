/* smelt: the command table, and what all commands have in common: help, and results that must arrive. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "app/commands.h"
#include "app/process.h"

typedef struct Command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} Command;

static const Command commands[] = {
    {"train", cmd_train, "train a model, or continue a run: CONFIG.yaml [key=value ...]"},
    {"launch", cmd_launch, "start the ranks of a run on this node and keep it alive: [-n N] -- train ..."},
    {"generate", cmd_generate, "continue a prompt: RUN \"prompt\" [key=value ...]"},
    {"eval", cmd_eval, "the loss of a model on text or a token shard, or multiple choice: MODEL DATA"},
    {"convert", cmd_convert, "write the model of a run or folder as a Hugging Face folder: IN OUT"},
    {"data", cmd_data, "pack text into token shards, show them, or learn a vocabulary: pack|show|train-tokenizer ..."},
    {"report", cmd_report, "write a run's report page: RUN"},
    {"bench", cmd_bench, "measure this machine: gemm|memory|collective|attention|optimizer|storage|train|suite ..."},
    {"size", cmd_size, "check a model's dimensions against a processor: CONFIG [gpu=X]"},
    {"cost", cmd_cost, "dollars and days of a token budget, offers side by side: tokens=1T NAME price=P rate=R ..."},
    {"forecast", cmd_forecast, "model memory and time of a configuration on other hardware: CONFIG [gpus=N] [gpu=X]"},
    {"doctor", cmd_doctor, "what this machine has for training, and what would hurt: [self_test=true]"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *file) {
    fprintf(file, "smelt trains large language models.\n\nUsage: smelt COMMAND ... (smelt COMMAND --help explains one)\n\n");
    for (int i = 0; i < COMMANDS; i++) fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].help);
}

/* "help train" becomes "train --help". */
static void arrange_help(int argc, char **argv) {
    static char option[] = "--help";
    if (argc <= 2 || strcmp(argv[1], "help")) return;
    memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
    argv[argc - 1] = option;
}

/* What a command prints is its result. */
static int check_output(void) {
    bool flushed = fflush(stdout) == 0;
    int code = errno;
    if (flushed && !ferror(stdout)) return 0;
    log_error("not all output could be written to stdout: %s", flushed ? "an earlier write failed" : strerror(code));
    return ERROR_INTERNAL;
}

int main(int argc, char **argv) {
    process_fill_descriptors();
    process_shorten_spinning(argv);
    arrange_help(argc, argv);
    const char *name = argc >= 2 ? argv[1] : "";
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name)) continue;
        int code = commands[i].run(argc - 1, argv + 1);
        return code ? code : check_output();
    }
    bool help = !strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help");
    if (argc >= 2 && !help) log_error("unknown command '%s'", name);
    print_help(help ? stdout : stderr);
    return help ? check_output() : ERROR_USAGE;
}

/* smelt: the command table, and what all commands have in common: help, and results that must arrive. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "app/command.h"
#include "app/process.h"

static const Command *member(int index) {
    static const Command *const commands[] = {&command_train, &command_launch, &command_generate, &command_eval, &command_convert,
        &command_data, &command_show, &command_report, &command_bench, &command_size, &command_cost, &command_forecast, &command_doctor,
        NULL};
    return commands[index];
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
    const Command smelt = {.name = "", .explanation = "smelt trains large language models.", .member = member};
    file_fill_standard_streams();
    process_catch_file_faults();
    memory_on_refusal(process_end_without_memory);
    process_shorten_spinning(argv);
    arrange_help(argc, argv);
    int code = command_run(&smelt, argc, argv);
    return code ? code : check_output();
}

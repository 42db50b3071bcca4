/* The main program: help and version, and checks that the output was written. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu_isa.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/version.h"
#include "app/command.h"
#include "app/process.h"

/* The Makefile recompiles this file when one of them changes. */
#ifndef SMELT_COMMIT
#define SMELT_COMMIT ""
#define SMELT_GPU_TARGETS ""
#endif

static bool asks_version(int argc, char **argv) {
    return argc >= 2 && (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V") || !strcmp(argv[1], "version"));
}

static int print_version(void) {
    printf("smelt %s%s%s\n", SMELT_VERSION, *SMELT_COMMIT ? ", commit " : "", SMELT_COMMIT);
    printf("GPU targets built in: %s\n", *SMELT_GPU_TARGETS ? SMELT_GPU_TARGETS : "none");
    printf("CPU instruction sets:");
    for (CpuIsa isa = 0; isa < CPU_ISA_COUNT; isa++)
        printf("%s %s%s", isa ? "," : "", cpu_isa_name(isa), isa == cpu_isa() ? " (used here)" : cpu_has(isa) ? "" : " (not on this CPU)");
    printf("\n");
    return 0;
}

/* Rewrites "help train" to "train --help". */
static void arrange_help(int argc, char **argv) {
    static char option[] = "--help";
    if (argc <= 2 || strcmp(argv[1], "help")) return;
    memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
    argv[argc - 1] = option;
}

/* Reports output that could not be written, because it is the result of a command. */
static int flush_output(void) {
    bool flushed = fflush(stdout) == 0;
    int code = errno;
    if (flushed && !ferror(stdout)) return 0;
    log_error("not all output could be written to stdout: %s", flushed ? "an earlier write failed" : strerror(code));
    return ERROR_INTERNAL;
}

int main(int argc, char **argv) {
    file_fill_standard_streams();
    process_catch_file_faults();
    process_open_many_files();
    memory_on_refusal(process_end_without_memory);
    process_shorten_spinning(argv);
    process_explain_end();
    arrange_help(argc, argv);
    Error error;
    if (!cpu_isa_use_environment(&error)) {
        log_error("%s", error.message);
        return process_end_explained((int)error.code);
    }
    int code = asks_version(argc, argv) ? print_version() : command_run(&command_smelt, argc, argv);
    return process_end_explained(code ? code : flush_output());
}

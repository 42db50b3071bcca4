/* `smelt doctor [self_test=true] [folder=DIR] [--json]` */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "app/arguments.h"
#include "app/commands.h"
#include "advise/doctor.h"

typedef struct DoctorOptions {
    const char *folder;
    bool self_test, json, strict;
} DoctorOptions;

#define FIELD(name) offsetof(DoctorOptions, name)
static const Option rows[] = {
    STRING_OPTION(folder, ".", "", "whose disk is tried; empty: none"),
    BOOL_OPTION(self_test, "false", "compute, copy and communicate too, in under a minute"),
    BOOL_OPTION(json, "false", "print JSON in place of text; --json is the same"),
    BOOL_OPTION(strict, "false", "warnings make the exit code 1 too"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

static void print_help(void) {
    printf("Usage: smelt doctor [key=value ...]\n\n"
           "Says what this machine has for training and what would hurt, line by line: ok, warning or error, with what mends it. Needs no "
           "rights and "
           "changes nothing;\n"
           "the disk is tried with a file that is removed again. Exits with 0 when there is no error, 1 when there is one. docs/doctor.md "
           "shows "
           "examples.\n\n");
    options_print_help(&table, stdout);
}

/* A bare --name is name=true. */
static bool read_options(int argc, char **argv, DoctorOptions *options, OptionStrings *strings, Error *error) {
    options_defaults(&table, options, strings);
    for (int i = 1; i < argc; i++) {
        char flag[64];
        const char *text = !strncmp(argv[i], "--", 2) ? argv[i] + 2 : argv[i];
        snprintf(flag, sizeof flag, "%.32s=true", text);
        bool bare = !strchr(text, '=') && text != argv[i];
        if (!bare && !strchr(text, '=')) return error_set(error, ERROR_USAGE, "'%s' is not key=value: see smelt doctor --help", argv[i]);
        if (!options_set(&table, options, strings, bare ? flag : text, error)) return false;
    }
    return true;
}

int cmd_doctor(int argc, char **argv) {
    DoctorOptions options;
    OptionStrings strings = {0};
    Error error = {0};
    Doctor doctor;
    int warnings, errors;
    if (arguments_want_help(argc, argv)) {
        print_help();
        return 0;
    }
    if (!read_options(argc, argv, &options, &strings, &error)) {
        options_free_strings(&strings);
        return cmd_fail(&error);
    }
    doctor_examine(&doctor, "", &(DoctorWish){options.folder, options.self_test});
    (options.json ? doctor_print_json : doctor_print)(&doctor, stdout);
    int worst = doctor_worst(&doctor, &warnings, &errors);
    doctor_free(&doctor);
    options_free_strings(&strings);
    return worst == HEALTH_ERROR || (options.strict && worst == HEALTH_WARNING) ? ERROR_INTERNAL : 0;
}

/* The arguments of a command: positional ones mixed with options of a table, as key=value, --key=value or --key value. After "--" everything
 * is positional. */
#pragma once

#include "base/options.h"

typedef struct ArgumentSyntax {
    const char *command; /* "smelt data pack" */
    const char *names;   /* of the positional arguments: "INPUT OUTPUT" */
    int positionals;     /* how many there must be */
    const OptionTable *table;
} ArgumentSyntax;

/* Whether --help or -h is among argv[1] and those after it. */
bool arguments_want_help(int argc, char **argv);
/* argv[0] is the first argument to read. Sets every row of the table, to its default where it is not given, and fills `positionals` with pointers
 * into argv. ERROR_USAGE otherwise. */
bool arguments_read(
    const ArgumentSyntax *syntax, int argc, char **argv, void *values, OptionStrings *strings, const char **positionals, Error *error);

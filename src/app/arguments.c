/* Reading a command's arguments against its table. Owns nothing: strings go to the caller's pool. */
#include "app/arguments.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

bool arguments_want_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return true;
    return false;
}

/* "key=value" with a key made of letters; a path that looks like one is written "./a=b". */
static bool is_assignment(const char *text) {
    size_t letters = strspn(text, "abcdefghijklmnopqrstuvwxyz_.");
    return letters > 0 && text[letters] == '=';
}

/* Applies argv[*at], which is "--key=value", "--key value" or "key=value", and steps over what it used. */
static bool apply_option(const OptionTable *table, int argc, char **argv, int *at, void *values, OptionStrings *strings, Error *error) {
    const char *text = argv[(*at)++];
    if (strncmp(text, "--", 2)) return options_set(table, values, strings, text, error);
    text += 2;
    if (strchr(text, '=')) return options_set(table, values, strings, text, error);
    if (*at >= argc) return error_set(error, ERROR_USAGE, "--%s has no value; write --%s VALUE or %s=VALUE", text, text, text);
    char *assignment = memory_format("%s=%s", text, argv[(*at)++]);
    bool good = options_set(table, values, strings, assignment, error);
    free(assignment);
    return good;
}

bool arguments_read(
    const ArgumentSyntax *syntax, int argc, char **argv, void *values, OptionStrings *strings, const char **positionals, Error *error) {
    options_defaults(syntax->table, values, strings);
    int count = 0;
    bool options = true;
    for (int at = 0; at < argc;) {
        if (options && !strcmp(argv[at], "--")) {
            options = false;
            at++;
        } else if (options && (!strncmp(argv[at], "--", 2) || is_assignment(argv[at]))) {
            if (!apply_option(syntax->table, argc, argv, &at, values, strings, error)) return false;
        } else if (count == syntax->positionals) {
            return error_set(error, ERROR_USAGE, "'%s' is one argument too many: %s takes %s", argv[at], syntax->command, syntax->names);
        } else {
            positionals[count++] = argv[at++];
        }
    }
    if (count < syntax->positionals)
        return error_set(
            error, ERROR_USAGE, "%d of %d arguments were given: %s takes %s", count, syntax->positionals, syntax->command, syntax->names);
    return true;
}

/* Runs a command: help, arguments, errors, exit codes. Owns the contents of an invocation. Called
 * by main. */
#include "app/command.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "config/config.h"
#include "base/scope.h"
#include "base/wrap.h"
#include "base/strings.h"

/* -- Arguments ----------------------------------------------------------------------------------------------------- */

/* Returns whether an argument is "key=value" with a key of lower-case letters, digits, '_' and '.';
 * a path of this form is written "./a=b". */
static bool is_assignment(const char *text) {
    size_t letters = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_.");
    return letters > 0 && text[letters] == '=';
}

/* Returns whether "--key" is used without a value: the option can be true (a bool, or
 * false|true|...), and none of its values follows. */
static bool is_flag(const OptionTable *table, const char *key, const char *next) {
    const Option *option = options_find(table, key, strlen(key));
    const char *choices = option && option->type == OPTION_BOOL ? "false|true" : option && option->choices ? option->choices : "";
    for (const char *choice = choices; next && *choice; choice += strspn(choice, "|")) {
        size_t length = strcspn(choice, "|");
        if (strlen(next) == length && !memcmp(next, choice, length)) return false;
        choice += length;
    }
    return starts_with(choices, "false|true");
}

/* Returns whether "key=value" or "key" belongs to the configuration. The command's own options have
 * precedence and no dots. */
static bool is_setting(const Command *command, const char *text) {
    size_t length = strcspn(text, "=");
    return command->takes_config && !options_find(command->table, text, length) &&
           (options_find(&config_table, text, length) || memchr(text, '.', length));
}

char *command_assignment(const OptionTable *table, int argc, char **argv, int *at, Error *error) {
    const char *text = argv[(*at)++], *next = *at < argc ? argv[*at] : NULL;
    if (starts_with(text, "--")) text += 2;
    if (strchr(text, '=')) return memory_copy_string(text);
    bool flag = is_flag(table, text, next);
    if (!flag && !next) {
        error_set(error, ERROR_USAGE, "--%s has no value: write --%s VALUE or %s=VALUE", text, text, text);
        return NULL;
    }
    *at += !flag;
    return memory_format("%s=%s", text, flag ? "true" : next);
}

bool command_refuse_idle(const OptionTable *table, const void *options, const char *const *names, const char *reason, Error *error) {
    for (; *names; names++) {
        char given[64];
        const Option *option = options_find(table, *names, strlen(*names));
        if (options_is_initial(option, options)) continue;
        options_format_value(option, options, given, sizeof given);
        return error_set(error, ERROR_USAGE, "%s=%s: %s: remove it", *names, given, reason);
    }
    return true;
}

/* Applies or keeps the assignment at argv[*at], and advances *at past it. */
static bool apply_option(const Command *command, int argc, char **argv, int *at, Invocation *invocation, Error *error) {
    bool setting = is_setting(command, argv[*at] + (starts_with(argv[*at], "--") ? 2 : 0));
    char *assignment = command_assignment(setting ? &config_table : command->table, argc, argv, at, error);
    if (assignment && setting) return array_append(invocation->settings.items, invocation->settings.count, assignment);
    bool done = assignment && options_set(command->table, invocation->options, &invocation->strings, assignment, error);
    free(assignment);
    return done;
}

static int count_words(const char *words) {
    int count = *words != 0;
    for (; *words; words++) count += *words == ' ';
    return count;
}

static int count_optional(const char *words) {
    int count = 0;
    for (; *words; words++) count += *words == '[';
    return count;
}

/* Checks the words, which name files and folders, except a prompt. */
static bool check_places(const Command *command, const Invocation *invocation, Error *error) {
    int places = strchr(command->words, '"') ? 1 : invocation->word_count;
    for (int i = 0; i < places && i < invocation->word_count; i++)
        if (!file_check_place(invocation->words[i], true, error)) return false;
    return true;
}

bool command_read(const Command *command, int argc, char **argv, Invocation *invocation, Error *error) {
    const char *takes = *command->words ? command->words : "only key=value";
    int count = 0, named = count_words(command->words), least = named - count_optional(command->words);
    int most = !ends_with(command->words, "...") ? named : command->most_words ? command->most_words : argc;
    bool options = true;
    Error wrong = {0}; /* of all options */
    assert(named <= COMMAND_NAMED);
    invocation->words = memory_allocate((size_t)(argc + COMMAND_NAMED + 1) * sizeof *invocation->words);
    options_defaults(command->table, invocation->options, &invocation->strings);
    for (int at = 0; at < argc;) {
        if (options && !strcmp(argv[at], "--")) {
            options = false;
            at++;
        } else if (options && (!strncmp(argv[at], "--", 2) || is_assignment(argv[at]))) {
            if (!apply_option(command, argc, argv, &at, invocation, error)) error_also(&wrong, error);
        } else if (count == most) {
            char limit[32] = "";
            if (most > named) snprintf(limit, sizeof limit, ", %d at most", most);
            return error_set(
                error, ERROR_USAGE, "'%s' is one argument too many: smelt %s takes %s%s", argv[at], command->name, takes, limit);
        } else {
            invocation->words[count++] = argv[at++];
        }
    }
    invocation->word_count = count;
    if (wrong.code) *error = wrong;
    if (wrong.code) return false;
    if (count < least)
        return error_set(error, ERROR_USAGE, "smelt %s takes %s, but only %d of %d are given", command->name, takes, count, least);
    return check_places(command, invocation, error);
}

/* -- Help ---------------------------------------------------------------------------------------------------------- */

static bool is_help(const char *argument) { return !strcmp(argument, "--help") || !strcmp(argument, "-h"); }

static bool wants_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (is_help(argv[i])) return true;
    return false;
}

static void print_help(const Command *command, FILE *file) {
    SCOPED_FREE char *words =
        memory_format("%s%s[key=value ...]", command->words ? command->words : "", command->words && *command->words ? " " : "");
    int column = fprintf(file, "Usage: smelt %s ", command->name);
    wrap_words(file, command->usage ? command->usage : words, column, column);
    fprintf(file, "\n");
    wrap_text(file, command->explanation);
    if (command->table->count) fprintf(file, "\nSettings, with their defaults:\n\n");
    options_print_help(command->table, file);
}

/* Returns "pack" for "data pack". */
static const char *last_word(const char *name) { return strrchr(name, ' ') ? strrchr(name, ' ') + 1 : name; }

static void print_members(const Command *group, FILE *file) {
    const char *name = group->name, *space = *name ? " " : "";
    wrap_text(file, group->explanation);
    fprintf(file, "\nUsage: smelt%s%s COMMAND ... (smelt%s%s COMMAND --help explains one)\n\n", space, name, space, name);
    for (int i = 0; group->member(i); i++) {
        enum { SUMMARY_COLUMN = 19 };
        fprintf(file, "  %-*s", SUMMARY_COLUMN - 2, last_word(group->member(i)->name));
        wrap_words(file, group->member(i)->summary, SUMMARY_COLUMN, SUMMARY_COLUMN);
    }
}

/* -- Running ------------------------------------------------------------------------------------------------------- */

/* Reports an unknown command with the nearest known one, or else with all commands. The names
 * are copied, because each call of group->member may overwrite the previous result. */
static void report_unknown(const Command *group, const char *name) {
    char names[COMMAND_MEMBERS][32];
    Option rows[COMMAND_MEMBERS] = {0};
    OptionTable table = {.rows = rows};
    for (const Command *member; (member = group->member((int)table.count)); table.count++) {
        assert(table.count < COMMAND_MEMBERS);
        snprintf(names[table.count], sizeof *names, "%s", last_word(member->name));
        rows[table.count].name = names[table.count];
    }
    const char *space = *group->name ? " " : "", *nearest = options_nearest(&table, name, strlen(name));
    for (const CommandName *other = group->other_names; other && other->theirs; other++)
        if (!strcmp(other->theirs, name)) nearest = other->ours;
    if (nearest) {
        log_error("unknown command '%s%s%s'; did you mean 'smelt %s%s%s'?", group->name, space, name, group->name, space, nearest);
        return;
    }
    log_error("unknown command '%s%s%s'", group->name, space, name);
    print_members(group, stderr);
}

const Command *command_member(const Command *group, const char *word) {
    int i = 0;
    while (group->member(i) && strcmp(word, last_word(group->member(i)->name))) i++;
    return group->member(i);
}

static int run_member(const Command *group, int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    bool help = is_help(name) || !strcmp(name, "help");
    const Command *member = command_member(group, name);
    if (member) return command_run(member, argc - 1, argv + 1);
    if (argc > 1 && !help) report_unknown(group, name);
    else print_members(group, help ? stdout : stderr);
    return help ? 0 : ERROR_USAGE;
}

int command_run(const Command *command, int argc, char **argv) {
    if (command->member) return run_member(command, argc, argv);
    bool help = wants_help(argc, argv);
    if (help || (argc < 2 && !command->alone)) {
        print_help(command, help ? stdout : stderr);
        return help ? 0 : ERROR_USAGE;
    }
    Invocation invocation = {.argc = argc, .argv = argv, .options = memory_allocate(command->options_size)};
    Error error = {0};
    bool done = !command->words || command_read(command, argc - 1, argv + 1, &invocation, &error);
    if (!done && command->hint) error_set(&error, error.code, "%s; %s", error.message, command->hint);
    done = done && command->run(&invocation, &error);
    if (!done && error.code == ERROR_NONE)
        error_set(&error, ERROR_INTERNAL, "smelt %s failed without a message, which is a bug in smelt: please report it", argv[0]);
    if (!done) (error.code == ERROR_PREEMPTED ? log_info : log_error)("%s", error.message); /* a pause is not an error */
    options_free_strings(&invocation.strings);
    options_free_strings(&invocation.settings);
    free(invocation.options);
    free(invocation.words);
    return done ? invocation.code : (int)error.code;
}

void command_page_open(CommandPage *page) {
    *page = (CommandPage){0};
    page->file = open_memstream(&page->text, &page->length);
    if (!page->file) page->file = stdout;
}

void command_page_print(CommandPage *page) {
    if (page->file == stdout) return;
    fclose(page->file);
    wrap_lines(stdout, page->text, wrap_columns(STDOUT_FILENO));
    free(page->text);
}

Precision command_precision(int choice, Precision own) { return choice ? (Precision)(choice - 1) : own; }

Device *command_open_device(int choice, Precision precision, Error *error) {
    bool cpu = choice == DEVICE_AUTO && !precision_is_bf16(precision);
    return cpu ? device_cpu() : device_open(choice, 0, error);
}

Device *command_open_local_device(int choice, Precision precision, const Comm *comm, Error *error) {
    bool cpu = choice == DEVICE_AUTO && !precision_is_bf16(precision);
    return cpu ? device_cpu() : device_open_local(choice, comm_local_rank(comm), error);
}

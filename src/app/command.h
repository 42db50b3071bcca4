/* Commands. A command is a struct: its name, what its help says, its options, and the function that does it.
 * command_run does what all have in common: it prints help, reads arguments, prints the error, and returns the exit
 * code. */
#pragma once

#include <stdio.h>

#include "base/options.h"
#include "graph/graph.h"

enum { COMMAND_NAMED = 8 /* words of Command.words, at most */, COMMAND_MEMBERS = 32 /* of a group, at most */ };

/* One run of a command; command_run owns it. */
typedef struct Invocation {
    int argc;
    char **argv;            /* argv[0] is the command's name */
    void *options;          /* the command's own struct, of Command.options_size bytes */
    const char **words;     /* in the order of Command.words, NULL behind the last; command_read allocates them */
    int word_count;         /* how many were given */
    OptionStrings settings; /* "key=value" for the configuration, of a command that takes_config */
    OptionStrings strings;  /* owns texts of options and of configurations */
    int code;               /* the exit code of a run that returned true; 0 unless it says otherwise */
} Invocation;

/* A command has `run`, a group of commands has `member`. */
typedef struct Command {
    const char *name;        /* as it is typed: "data pack" */
    const char *summary;     /* its line in the list of commands */
    const char *words;       /* demanded arguments besides key=value: "MODEL [DATA]", "", "[FILE]", "RUN..." (one or more);
                                NULL: `run` reads argv */
    const char *usage;       /* the arguments in the help's first line; NULL: WORDS [key=value ...] */
    const char *explanation; /* the help between the first line and the table */
    const char *hint;        /* at the end of messages about wrong arguments; NULL: none */
    const OptionTable *table;
    size_t options_size;
    int most_words;    /* where WORDS ends in "..."; 0: any number */
    bool takes_config; /* keys that `table` lacks may be the configuration's */
    bool ranks;        /* runs as the ranks of smelt launch; else as one process alone */
    bool resumes;      /* goes on where it was when it is started again */
    /* Whether these arguments, argv[0] the command's name, allow it to go on with fewer ranks; ERROR_USAGE. NULL: it never does. */
    bool (*can_shrink)(int argc, char **argv, Error *error);
    bool alone; /* runs without arguments too; else they print the help */
    bool (*run)(Invocation *invocation, Error *error);
    const struct Command *(*member)(int index); /* NULL after the last */
} Command;

extern const Command command_train, command_launch, command_generate, command_chat, command_eval, command_convert, command_data,
    command_report, command_bench, command_size, command_cost, command_forecast, command_doctor, command_show, command_watch,
    command_manual;
extern const Command command_smelt; /* the program: the group of all commands */

/* The member that is typed so, valid until the next call; NULL: there is none. */
const Command *command_member(const Command *group, const char *word);
/* argv[0] is the name's last word. Returns the exit code of the process. */
int command_run(const Command *command, int argc, char **argv);
/* Reads arguments, from argv[0] on: key=value, --key=value or --key value for a row of the table, --key for a row of
 * type bool, and words; after "--" all are words. Sets every row in `options`, to its default where it is not given.
 * ERROR_USAGE. */
bool command_read(const Command *command, int argc, char **argv, Invocation *invocation, Error *error);

/* The argument at argv[*at], which is "--key=value", "--key value", "--key" (a row of type bool) or "key=value", as
 * "key=value" for the caller to free; steps over what it used. NULL: ERROR_USAGE. */
char *command_assignment(const OptionTable *table, int argc, char **argv, int *at, Error *error);

/* ERROR_USAGE names the first of these options, up to NULL, that has another value than its default: it has no effect, for
 * the reason given, as in "it is for models of images". */
bool command_refuse_idle(const OptionTable *table, const void *options, const char *const *names, const char *reason, Error *error);

/* Text for stdout, which is printed when it is complete: on a terminal no line is wider, unless a word is. */
typedef struct CommandPage {
    FILE *file; /* where the text is written */
    char *text;
    size_t length;
} CommandPage;
void command_page_open(CommandPage *page);
void command_page_print(CommandPage *page); /* and closes it */

/* Prints a configuration to start from: llama, zaya, mpt, gpt2, flux or finetune. ERROR_USAGE for another name. */
bool example_print(const char *name, Error *error);

/* The precision that a row "same|bf16|fp32|fp64" names for a model that was trained in `own`. */
Precision command_precision(int choice, Precision own);
/* The device that `device=` names (DeviceKind); with auto the CPU where the precision is one that GPUs do not have.
 * ERROR_USAGE. */
Device *command_open_device(int choice, Precision precision, Error *error);
/* That of this rank. */
Device *command_open_local_device(int choice, Precision precision, const Comm *comm, Error *error);

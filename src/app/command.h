/* Commands. A command is a struct: its name, its help, its options, and its function. command_run
 * does the common work: it prints help, reads arguments, prints the error, and returns the exit
 * code. */
#pragma once

#include <stdio.h>

#include "base/options.h"
#include "graph/graph.h"

enum { COMMAND_NAMED = 8 /* limit for the words of Command.words */, COMMAND_MEMBERS = 32 /* limit for a group */ };

/* One run of a command; command_run owns it. */
typedef struct Invocation {
    int argc;
    char **argv;            /* argv[0] is the command's name */
    void *options;          /* the command's own struct, of Command.options_size bytes */
    const char **words;     /* in the order of Command.words, NULL after the last; command_read allocates them */
    int word_count;         /* number of given words */
    OptionStrings settings; /* "key=value" for the configuration, if takes_config is set */
    OptionStrings strings;  /* owns the strings of options and configurations */
    int code;               /* the exit code of a run that returns true; 0 by default */
} Invocation;

/* What other programs call a command, and ours, with the settings that it needs. */
typedef struct CommandName { const char *theirs, *ours; } CommandName;

/* A command has `run`, a group of commands has `member`. */
typedef struct Command {
    const char *name;        /* as typed: "data pack" */
    const char *summary;     /* the line in the list of commands */
    const char *words;       /* required arguments besides key=value: "MODEL [DATA]", "", "[FILE]",
                              * "RUN..." (one or more); NULL: `run` reads argv */
    const char *usage;       /* the arguments in the help's first line; NULL: WORDS [key=value ...] */
    const char *explanation; /* the help between the first line and the table */
    const char *hint;        /* at the end of messages about wrong arguments; NULL: none */
    const OptionTable *table;
    size_t options_size;
    int most_words;    /* if WORDS ends in "..."; 0: any number */
    bool takes_config; /* keys that `table` lacks may be settings of the configuration */
    bool ranks;        /* can run as the ranks of smelt launch; otherwise only as one process */
    bool resumes;      /* a restart continues the work */
    /* Returns whether it can continue with fewer ranks with these arguments, argv[0] being its
     * name; ERROR_USAGE. NULL: never. */
    bool (*can_shrink)(int argc, char **argv, Error *error);
    bool alone; /* may run without arguments; otherwise they print the help */
    bool (*run)(Invocation *invocation, Error *error);
    const struct Command *(*member)(int index); /* NULL after the last */
    const CommandName *other_names;             /* of other programs; ends in {0} */
} Command;

extern const Command command_train, command_launch, command_generate, command_chat, command_serve, command_eval, command_convert,
    command_data, command_report, command_bench, command_size, command_cost, command_forecast, command_doctor, command_show, command_watch,
    command_manual, command_reward;
extern const Command command_smelt; /* the program: the group of all commands */

/* Returns the member with this name, valid until the next call; NULL: none. */
const Command *command_member(const Command *group, const char *word);
/* Runs a command; argv[0] is the name's last word. Returns the exit code of the process. */
int command_run(const Command *command, int argc, char **argv);
/* Reads arguments, from argv[0] on: key=value, --key=value or --key value for an option of the
 * table, --key for one that can be true, and words; after "--" all are words. Sets every option in
 * `options`, to its default if it is not given. ERROR_USAGE. */
bool command_read(const Command *command, int argc, char **argv, Invocation *invocation, Error *error);

/* Returns the argument at argv[*at] as "key=value", for the caller to free, and advances *at past
 * it. Forms: "--key=value", "--key value", "--key" (an option that can be true), "key=value". NULL:
 * ERROR_USAGE. */
char *command_assignment(const OptionTable *table, int argc, char **argv, int *at, Error *error);

/* Refuses options without effect. ERROR_USAGE names the first of `names` (NULL-terminated) that
 * does not have its default value, and gives the reason, as in "it is for models of images". */
bool command_refuse_idle(const OptionTable *table, const void *options, const char *const *names, const char *reason, Error *error);

/* Text for stdout, which is printed when it is complete. On a terminal, lines are wrapped to its
 * width. */
typedef struct CommandPage {
    FILE *file; /* the text is written here */
    char *text;
    size_t length;
} CommandPage;
void command_page_open(CommandPage *page);
void command_page_print(CommandPage *page); /* also closes it */

/* Prints the example configuration `name` (example.c). ERROR_USAGE lists the names if there is
 * none. */
bool example_print(const char *name, Error *error);

/* Returns the precision for a choice of "same|bf16|fp32|fp64"; the model was trained in `own`. */
Precision command_precision(int choice, Precision own);
/* Opens the device that `device=` names (DeviceKind). auto is the CPU if GPUs lack the precision.
 * ERROR_USAGE. */
Device *command_open_device(int choice, Precision precision, Error *error);
/* Opens the device of this rank. */
Device *command_open_local_device(int choice, Precision precision, const Comm *comm, Error *error);

/* Child processes: this program with other arguments, or a function of it. The one place that forks. After the fork
 * only the child changes its signals, environment and descriptors, and it ends by exec or _exit; this process stays
 * as it is. The caller waits for the child (waitpid). */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { CHILD_VARIABLES = 16 };

/* What the child's environment has beside, or in place of, its parent's. Zero-initialise. */
typedef struct ChildVariables {
    int count;
    char *items[CHILD_VARIABLES]; /* "NAME=value" */
} ChildVariables;

void child_set_variable(ChildVariables *variables, char *item); /* takes over `item` */
void child_free_variables(ChildVariables *variables);

/* Exactly one of `arguments` and `run` is set. Descriptors: 0 stands for none. */
typedef struct ChildOptions {
    char *const *arguments;    /* starts this program with them: its name first, NULL last */
    int (*run)(void *context); /* is called in the child; what it returns is the exit code */
    void *context;
    const ChildVariables *variables; /* NULL: none */
    int output, errors;              /* become the child's stdout and stderr */
    int kept;                        /* stays open in the program that is started */
    int limit_seconds;               /* SIGALRM ends the child after so long; 0: never */
    bool outlives;                   /* the child goes on when its parent ends */
} ChildOptions;

/* Starts a child that dies when the calling thread does (unless it outlives it), in a process group of its own, out of reach of the terminal's
 * signals. Returns its process id, or -1 with errno. Exit code 127: it could not be started. */
pid_t child_start(const ChildOptions *options);

/* Child processes: this program with other arguments, another program, or a function of this one.
 * This is the only module that forks. After the fork only the child changes its signals, environment and descriptors, and
 * it ends by exec or _exit; the parent is unchanged. The caller waits for the child (waitpid). */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { CHILD_VARIABLES = 16 };

/* Variables that the child's environment has in addition to its parent's, or with other values.
 * Zero-initialize. */
typedef struct ChildVariables {
    int count;
    char *items[CHILD_VARIABLES]; /* "NAME=value" */
} ChildVariables;

void child_set_variable(ChildVariables *variables, char *item); /* takes ownership of `item` */
void child_free_variables(ChildVariables *variables);

/* Exactly one of `arguments` and `run` is set. Descriptors: 0 means none. */
typedef struct ChildOptions {
    char *const *arguments;    /* starts this program with these arguments: its name first, NULL last */
    const char *program;       /* starts this one instead, which is searched in PATH; of open files it gets only those below */
    int (*run)(void *context); /* called in the child; its result is the exit code */
    void *context;
    const ChildVariables *variables; /* NULL: none */
    bool no_environment;             /* the child has `variables` alone */
    int input, output, errors;       /* become the child's stdin, stdout and stderr */
    int kept;                        /* stays open in the started program */
    /* Called in the child before it starts the program, to limit what it may do. Returns NULL, or why it failed. */
    const char *(*limit)(void *context);
    int failures;      /* gets the reason if the program cannot be started, in place of stderr; close-on-exec */
    int limit_seconds; /* SIGALRM ends the child after this time; 0: never */
    bool outlives;     /* the child continues when its parent ends */
} ChildOptions;

/* Starts a child in its own process group, which the terminal's signals do not reach. The child
 * dies with the calling thread unless `outlives` is set. Returns its process id, or -1 with errno.
 * Exit code 127: it could not be started. */
pid_t child_start(const ChildOptions *options);
/* Waits for a child and sets *status as waitpid does. At `until` in log_seconds() it kills the child's process group, with
 * every process that the child started in the group, and returns false. */
bool child_wait(pid_t id, double until, int *status);
/* Opens a descriptor that poll finds readable once the child has ended. -1 before Linux 5.3. */
int child_open_end(pid_t id);

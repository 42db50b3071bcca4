/* Errors. A function that can fail because of its input or its environment takes an `Error *` as
 * its last argument and returns false (or NULL). The innermost function says what happened, with
 * the value, the limit and what to do. Callers may add context; only the command table in main.c
 * prints. Our own invariants use assert. */
#pragma once

#include <stdbool.h>

/* The process exit codes, documented in docs/exit-codes.md. */
typedef enum ErrorCode {
    ERROR_NONE = 0,
    ERROR_INTERNAL = 1,      /* a failure that no other code describes */
    ERROR_USAGE = 2,         /* a wrong option, value or configuration */
    ERROR_DATA = 3,          /* missing, empty, truncated or corrupt training data */
    ERROR_MEMORY = 4,        /* the plan does not fit, or the system refused memory */
    ERROR_NUMERICS = 5,      /* NaN or infinity in loss, gradients or weights */
    ERROR_COMMUNICATION = 6, /* a lost rank or a failed collective */
    ERROR_CHECKPOINT = 7,    /* a corrupt or missing checkpoint or model, or an unwritable file of a run */
    ERROR_PREEMPTED = 8,     /* SIGTERM, SIGINT or SIGHUP: a checkpoint was written, start again to continue */
    ERROR_DEVICE = 9,        /* a GPU, its driver or its library failed */
} ErrorCode;
enum { ERROR_CODES = ERROR_DEVICE + 1 };

/* A failure's statement about the object that was to be read. Success means that it is present. The
 * default is FINDING_UNREADABLE; only code with more knowledge sets another value. An unforeseen
 * error is therefore never treated as absence or damage, and nothing is removed, replaced or
 * restarted because of it. */
typedef enum ErrorFinding {
    FINDING_UNREADABLE = 0, /* its state is unknown: a disk, a network, a server or permissions fail; it may be whole */
    FINDING_ABSENT,         /* the file system or the server says that it does not exist */
    FINDING_DAMAGED,        /* it was read completely and is not what was written */
    FINDING_FOREIGN,        /* it was read completely and belongs to another holder */
} ErrorFinding;

typedef struct Error {
    ErrorCode code;
    char message[2044];
    ErrorFinding finding;
} Error;

/* Records the failure and returns false, for `return error_set(...)`. A later call overwrites it,
 * including the finding. Arguments may point into error->message. A message that does not fit ends
 * in "...". */
bool error_set(Error *error, ErrorCode code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Adds an error that is independent of those before; returns false. Without one before, it becomes the error. */
bool error_also(Error *all, const Error *more);

/* Changes the exit code of an error that is already set; returns false. */
bool error_recode(Error *error, ErrorCode code);

/* Sets the finding of an error that is already set; returns false. */
bool error_find(Error *error, ErrorFinding finding);

/* Puts "context: " before the message of an error that is already set; returns false. */
bool error_context(Error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

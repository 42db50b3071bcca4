/* A request to stop, set by the program's signal handler (src/app/process.c) and read by long
 * loops. */
#pragma once

#include <signal.h>

typedef struct StopRequest {
    volatile sig_atomic_t signal; /* the newest signal; 0: none */
    volatile sig_atomic_t count;  /* number of such signals so far */
    volatile sig_atomic_t heeded; /* set by a loop that reads this struct; until then the handler ends the process */
} StopRequest;

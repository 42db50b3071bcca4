/* A request to stop, which the program's signal handler makes (src/app/process.c) and long loops of libraries read. */
#pragma once

#include <signal.h>

typedef struct StopRequest {
    volatile sig_atomic_t signal; /* the newest signal that asked; 0: none has */
    volatile sig_atomic_t count;  /* how many have: the second one asks for haste */
    volatile sig_atomic_t heeded; /* set by the loop that reads it; until then the handler ends the process */
} StopRequest;

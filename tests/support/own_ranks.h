/* A test program that starts itself as ranks, which meet over TCP; each gets the arguments "rank" and a role. Everything is
 * static inline, so a test program uses what it needs. */
#pragma once

#include "check.h"
#include "process.h"

enum { MOST_RANKS = 16 };

typedef struct Ranks {
    Process processes[MOST_RANKS];
    ProcessResult results[MOST_RANKS];
    int size;
} Ranks;

static inline void start_ranks(Ranks *ranks, int size, const char *role) {
    char *arguments[] = {"/proc/self/exe", "rank", (char *)role, NULL};
    *ranks = (Ranks){.size = size};
    process_set_number("WORLD_SIZE", size);
    process_set_number("MASTER_PORT", process_free_port());
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    for (int i = 0; i < size; i++) {
        process_set_number("RANK", i);
        ranks->processes[i] = process_start(arguments);
    }
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static inline void finish_ranks(Ranks *ranks) {
    for (int i = 0; i < ranks->size; i++) ranks->results[i] = process_finish(&ranks->processes[i]);
}

static inline void free_ranks(Ranks *ranks) {
    for (int i = 0; i < ranks->size; i++) process_free(&ranks->results[i]);
}

/* The GPU of SMELT_TEST_DEVICE where it is the emulator's, whose memory is the host's and so within TCP's reach; else NULL:
 * the ranks of a test are not given cards. */
static inline Device *ranks_gpu(void) { return getenv("ROCEMU_LIBRARY") ? check_device() : NULL; }

/* Fails the test where a rank does not end with 0. */
static inline void run_over_tcp(int size, const char *role) {
    Ranks ranks;
    start_ranks(&ranks, size, role);
    finish_ranks(&ranks);
    for (int i = 0; i < size; i++)
        if (ranks.results[i].code != 0)
            fail_msg("rank %d of %d ended with %d: %s", i, size, ranks.results[i].code, ranks.results[i].errors);
    free_ranks(&ranks);
}

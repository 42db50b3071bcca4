/* What would make a plan fit into memory: each change is planned, so that its bytes are those that training would take. */
#pragma once

#include <stdio.h>

#include "train/session.h"

typedef struct Fit {
    char change[200];  /* settings, as on the command line, and more ranks */
    const char *price; /* what it costs */
    int64_t bytes;     /* of a rank with it */
    bool fits;
} Fit;

/* What recompute=auto comes to on rank `rank` of `ranks`: the first policy, from the quickest on, with which a plan leaves a little
 * of the available bytes (below 0: unknown), else the strongest. Another setting stays. */
int fit_recompute(const Config *config, Device *device, int rank, int ranks, int64_t available);

enum { MOST_FITS = 10 };
/* The least change of each kind that brings rank `rank` of `ranks` below `available` bytes, or the largest where none
 * does, from the cheapest kind to the dearest. Kinds that save nothing are left out. Returns how many. */
int fit_search(const Config *config, Device *device, int rank, int ranks, int64_t available, Fit fits[MOST_FITS]);
void fit_print(const Fit *fits, int count, FILE *file);

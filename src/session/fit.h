/* Finds changes that make a plan fit into memory. Each change is planned, so its bytes are exact. */
#pragma once

#include <stdio.h>

#include "session/session.h"

typedef struct Fit {
    char change[200];  /* settings, in command-line form, and more ranks */
    const char *price; /* its cost */
    int64_t bytes;     /* per rank, with the change */
    bool fits;
} Fit;

/* Resolves recompute=auto on rank `rank` of `ranks`: returns the fastest policy with which the plan
 * leaves a little of the available bytes (negative: unknown), else the strongest. Other settings
 * are unchanged. */
int fit_recompute(const Config *config, Device *device, int rank, int ranks, int64_t available);

enum { MOST_FITS = 12 };
/* Finds the smallest change of each kind that brings rank `rank` of `ranks` below `available`
 * bytes, or the largest change if none does, from the cheapest kind to the most expensive. Kinds
 * that save nothing are omitted. Returns their number. */
int fit_search(const Config *config, Device *device, int rank, int ranks, int64_t available, Fit fits[MOST_FITS]);
void fit_print(const Fit *fits, int count, FILE *file);

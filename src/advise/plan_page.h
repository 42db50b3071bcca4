/* The page of plan=true: what a configuration trains, whether it fits into the memory of this
 * machine's device, what would make it fit, its expected speed, and the settings that were chosen.
 * Nothing is allocated. */
#pragma once

#include <stdio.h>

#include "config/config.h"

/* Prints the page for a run that has done `done` steps, for the first of `ranks` ranks (they need
 * not exist), on a device with `available` bytes for this rank (< 0: unknown). With plan=program it
 * prints every operation too. ERROR_USAGE. */
bool plan_print(const Config *config, int ranks, int64_t done, Device *device, int64_t available, FILE *file, Error *error);

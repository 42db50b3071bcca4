/* The page of plan=true: what a configuration trains, whether it fits into the memory of this machine's device, what
 * would make it fit, how fast it should be, and which settings were chosen. Nothing is allocated. */
#pragma once

#include <stdio.h>

#include "config/config.h"

/* For the first of `ranks`, whether or not there are so many, of a run that has done `done` of the steps, on a device
 * with `available` bytes for this rank (< 0: unknown); with plan=program every operation too. ERROR_USAGE. */
bool plan_print(const Config *config, int ranks, int64_t done, Device *device, int64_t available, FILE *file, Error *error);

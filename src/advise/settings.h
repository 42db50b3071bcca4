/* What the commands that judge or measure a configuration read: CONFIG [key=value ...], and a processor. */
#pragma once

#include "config/config.h"
#include "advise/hardware.h"
#include "advise/measured.h"

/* *config from a configuration file, a run folder or a model folder, then "key=value" of `settings`; checked. What a
 * model folder leaves open is assumed, and printed. `strings` owns the texts. ERROR_USAGE, and what reading the
 * configuration gives. */
bool settings_read(Config *config, const char *path, const OptionStrings *settings, OptionStrings *strings, Error *error);

/* The processor `gpu` of the table, "" for this machine's device, its rates calibrated by what `bench`, a file, has
 * measured; "": *measured is empty. The caller frees *measured after success. ERROR_USAGE, and what reading the file
 * gives. */
bool settings_hardware(const char *gpu, const char *bench, Hardware *hardware, Measured *measured, Error *error);

/* What the commands that judge a configuration read: CONFIG [key=value ...], where a key is the command's own or one
 * of the configuration. */
#pragma once

#include "config/config.h"
#include "advise/hardware.h"
#include "advise/measured.h"

/* argv[1] is a configuration file, a run folder or a model folder; the rest is key=value. Sets `values` by `table`,
 * defaults first, and *config, which is checked. Keys of `table` come first. ERROR_USAGE, and what reading the
 * configuration gives. */
bool settings_read(const OptionTable *table, void *values, Config *config, OptionStrings *strings, int argc, char **argv, Error *error);

/* The processor `gpu` of the table, its rates calibrated by what `bench`, a file, has measured; "": *measured is
 * empty. The caller frees *measured after success. ERROR_USAGE, and what reading the file gives. */
bool settings_hardware(const char *gpu, const char *bench, Hardware *hardware, Measured *measured, Error *error);

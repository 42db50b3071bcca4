/* Input of the commands that judge or measure a configuration: CONFIG [key=value ...], and a
 * processor. */
#pragma once

#include "config/config.h"
#include "advise/hardware.h"
#include "advise/measured.h"

/* Reads *config from a configuration file, a run folder or a model folder, applies the "key=value"
 * of `settings`, and checks it. Settings that a model folder lacks are assumed and printed.
 * `strings` owns the texts. ERROR_USAGE, and the errors of reading the configuration. */
bool settings_read(Config *config, const char *path, const OptionStrings *settings, OptionStrings *strings, Error *error);

/* Finds the processor `gpu` in the table ("": this machine's device) and calibrates its rates by
 * the measurements in the file `bench` ("": none, *measured is empty). The caller frees *measured
 * after success. ERROR_USAGE, and the errors of reading the file. */
bool settings_hardware(const char *gpu, const char *bench, Hardware *hardware, Measured *measured, Error *error);

/* What the commands that judge a configuration read: CONFIG [key=value ...], where a key is the command's own or one of the configuration. */
#ifndef SMELT_TUNE_SETTINGS_H
#define SMELT_TUNE_SETTINGS_H

#include "config.h"

/* argv[1] is a configuration file, a run folder or a model folder; the rest is key=value. Sets `values` by `table`, defaults first, and *config,
 * which is checked. Keys of `table` come first. ERROR_USAGE, and what reading the configuration gives. */
bool settings_read(const OptionTable *table, void *values, Config *config, OptionStrings *strings, int argc, char **argv, Error *error);

#endif

/* Settings that conflict with updates within the backward pass (optimizer.in_backward). */
#pragma once

#include "config/config.h"

/* `groups` is the number of groups of ranks with different data. ERROR_USAGE names the setting, the
 * reason and the value to use. */
bool in_backward_check(const Config *config, int64_t groups, Error *error);

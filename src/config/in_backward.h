/* What updates within the backward pass (optimizer.in_backward) cannot be had with. */
#pragma once

#include "config/config.h"

/* `groups` of ranks have data of their own. ERROR_USAGE names the setting, the reason and what to give. */
bool in_backward_check(const Config *config, int64_t groups, Error *error);

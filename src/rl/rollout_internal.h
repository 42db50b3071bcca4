/* What the files of rollouts share. */
#pragma once

#include "rl/rollout.h"

const RolloutOptions *rollout_maker_options(const RolloutMaker *maker);

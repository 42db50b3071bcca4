/* The environment of a run (rl.environment): a program that is asked at the end of each turn of a sample,
 * and appends to it or ends it with a reward. */
#pragma once

#include "rl/reward.h"
#include "rl/rollout.h"

typedef struct Environment Environment;
/* *environment is NULL if the settings have none. ERROR_USAGE, ERROR_DATA. */
bool environment_open(const RolloutOptions *options, Environment **environment, Error *error);
void environment_close(Environment *environment); /* NULL is fine */
/* Returns the program: a turn is submitted, and its result appends or is the reward. */
RewardSet *environment_program(Environment *environment);
/* Encodes what the environment appends to a sample of a prompt, whose newest token is `last`. In a
 * conversation, messages end with the header of the next answer; a text is a message of the user.
 * ERROR_DATA. */
bool environment_encode(Environment *environment, const json_t *record, const json_t *append, int32_t last, TokenIds *ids, Error *error);

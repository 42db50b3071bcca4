/* The settings of rewards, which runs of reinforcement learning and `smelt reward` share. `decides` and
 * `free` are the classes of the options; the struct of the table has an RlConfig `rl`. */
#pragma once

#include "base/options.h"

#define REWARD_OPTIONS(decides, free) \
    STRING_OPTION(rl.reward, "", "", \
        "rewards and their weights, as in \"boxed, 0.2*format:<think>.*</think>\"; docs/rewards.md lists them", decides), \
    INT_OPTION(rl.reward_copies, "4", 1, 4096, "processes", "copies of a reward program, or requests to a server, at once", free), \
    INT_OPTION(rl.reward_in_flight, "1", 1, 1e6, "requests", \
        "requests that one copy has at once; it may answer them in any order", free), \
    REAL_OPTION(rl.reward_seconds, "120", 0.001, 1e6, "seconds", "time for the answer of a reward program or a server", free), \
    INT_OPTION(rl.reward_attempts, "3", 1, 1000, "attempts", "attempts at a sample whose reward program fails", free), \
    CHOICE_OPTION(rl.reward_errors, "stop", "stop|skip", "what to do when a sample has no reward: stop, or warn and exclude it", decides), \
    REAL_OPTION(rl.code_seconds, "5", 1, 1e5, "seconds", "CPU time of the tests of one sample of generated code", decides), \
    INT_OPTION(rl.code_memory, "2Gi", 1 << 26, 1e15, "bytes", "memory of generated code", decides),

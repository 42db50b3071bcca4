/* Sets of rewards and samples for tests. Everything is static inline, so a test program uses what it needs. */
#pragma once

#include "support/files.h"
#include "support/process.h"

#include "base/json_reader.h"
#include "base/scope.h"
#include "rl/reward.h"

static const RewardLimits reward_limits_of_tests = {
    .copies = 2, .in_flight = 1, .attempts = 2, .seconds = WAIT_LIMIT, .code_seconds = 5, .code_bytes = 2ll << 30};

static inline RewardSet *open_set(const char *text, RewardLimits limits) {
    Error error;
    RewardSet *rewards = rewards_create(text, limits, &error);
    if (!rewards) fail_msg("%s", error.message);
    return rewards;
}

/* The completion has one token for each byte. */
static inline void submit(RewardSet *rewards, int64_t id, const char *completion, const char *record) {
    static const int32_t ids[1 << 14];
    Error error;
    json_auto_t *object = json_parse(record, strlen(record), 0, &error);
    assert_non_null(object);
    assert_true(strlen(completion) <= sizeof ids / sizeof *ids);
    rewards_submit(rewards, id,
        &(RewardSample){.prompt = "p",
            .prompt_size = 1,
            .completion = completion,
            .completion_size = strlen(completion),
            .completion_ids = ids,
            .completion_count = strlen(completion),
            .finish = "stop",
            .record = object});
}

static inline RewardResult take(RewardSet *rewards, int64_t id) {
    Error error;
    RewardResult result;
    if (!rewards_take(rewards, &result, &error)) fail_msg("%s", error.message);
    assert_int_equal(result.id, id);
    return result;
}

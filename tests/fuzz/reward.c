/* What reward programs answer, texts of rewards, and samples. The first byte selects. An answer has a finite value or a
 * failure of one line, and so has a sample. Texts that name programs are not used: they would start them. */
#include <math.h>

#include "fuzz.h"

#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "rl/reward_internal.h"

static void read_answer(const char *text, size_t size) {
    Error error = {0};
    RewardAnswer answer;
    if (!reward_answer_read(text, size, size % 2, &answer, &error)) {
        require_line(&error);
        return;
    }
    const char *name;
    json_t *value;
    require(isfinite(answer.value) && (!answer.failure || (*answer.failure && !strchr(answer.failure, '\n'))));
    require(!answer.note || !strchr(answer.note, '\n'));
    json_object_foreach(answer.metrics, name, value) require(isfinite(json_real_value(value)));
    reward_answer_free(&answer);
}

/* A text of rewards up to a newline; then a completion up to another; then a record. */
static void score(const char *text, const char *completion, const char *record) {
    static const RewardLimits limits = {.copies = 1, .in_flight = 1, .attempts = 1, .seconds = 1, .skip = true};
    static const char *const started[] = {"program", "python", "http", "code"};
    Error error = {0};
    for (size_t i = 0; i < sizeof started / sizeof *started; i++)
        if (strstr(text, started[i])) return;
    RewardSet *rewards = rewards_create(text, limits, &error);
    if (!rewards) {
        require_line(&error);
        return;
    }
    json_auto_t *object = json_parse(record, strlen(record), 0, &error);
    if (!object) object = json_object();
    RewardResult result;
    rewards_submit(rewards, 5, &(RewardSample){.completion = completion, .completion_size = strlen(completion), .record = object});
    require(rewards_take(rewards, &result, &error) && result.id == 5 && isfinite(result.total));
    require(!result.failure || (result.total == 0 && !strchr(result.failure, '\n')));
    reward_result_free(&result);
    rewards_free(rewards);
}

static void read_request(const char *text, size_t size) {
    Error error = {0};
    RewardSample sample;
    SCOPED_FREE int32_t *ids = NULL;
    json_auto_t *object = json_parse(text, size, 0, &error);
    if (!object) return;
    if (!reward_sample_read(object, &sample, &ids, &error)) {
        require_line(&error);
        return;
    }
    SCOPED_FREE char *line = reward_request_write(&sample);
    require(line && !strchr(line, '\n') && *line == '{' && line[1] != '}');
}

FUZZ(reward) {
    if (!size) return;
    const char *text = (const char *)data + 1;
    size--;
    if (*data % 3 == 0) read_answer(text, size);
    if (*data % 3 == 1) read_request(text, size);
    if (*data % 3 != 2) return;
    SCOPED_FREE char *copy = memory_format("%.*s", (int)size, text);
    char *completion = strchr(copy, '\n'), *record = completion ? strchr(completion + 1, '\n') : NULL;
    if (!record) return;
    *completion++ = *record++ = '\0';
    score(copy, completion, record);
}

/* The file of a rollout: a JSON line for each sample, for people and other programs. `smelt
 * reward` scores it anew. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "rl/rollout.h"
#include "rl/rollout_internal.h"

static json_t *real_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *ids_text(const RolloutSampler *rollouts, const TokenIds *ids, size_t first, size_t end, bool ends) {
    GeneratedText text = rollout_text(rollouts, ids, first, end, ends);
    json_t *string = json_stringn(text.bytes ? text.bytes : "", text.size);
    generated_text_free(&text);
    return string ? string : json_null();
}

static json_t *sample_text(const RolloutSampler *rollouts, const RolloutSample *sample, size_t first, size_t end) {
    return ids_text(rollouts, &sample->ids, first, end, false);
}

json_t *rollout_turns(const RolloutSampler *rollouts, const RolloutSample *sample) {
    json_t *turns = json_array();
    size_t first = 0;
    do {
        SampleTurn turn = sample_turn(sample, first);
        json_t *told = json_object();
        json_object_set_new(told, "completion", sample_text(rollouts, sample, turn.first, turn.end));
        if (turn.next > turn.end) json_object_set_new(told, "append", sample_text(rollouts, sample, turn.end, turn.next));
        json_array_append_new(turns, told);
        first = turn.next;
    } while (first < sample->ids.count);
    return turns;
}

/* A number for each token; null for an appended token. */
static json_t *token_numbers(const RolloutSample *sample, const double *numbers) {
    json_t *list = json_array();
    for (size_t t = 0; t < sample->ids.count; t++)
        json_array_append_new(list, sample_drew(sample, t) ? real_or_null(numbers[t]) : json_null());
    return list;
}

static json_t *sample_line(const RolloutSampler *rollouts, const RolloutSample *sample, int64_t number, int64_t step) {
    json_t *ids = json_array(), *rewards = json_object();
    const Prompt *prompt = &rollout_sampler_options(rollouts)->corpus->prompts.items[sample->prompt];
    const char *name;
    for (int i = 0; (name = rollout_reward_name(rollouts, i)); i++) json_object_set_new(rewards, name, real_or_null(sample->values[i]));
    for (size_t i = 0; i < sample->ids.count; i++) json_array_append_new(ids, json_integer(sample->ids.items[i]));
    json_t *line = json_object();
    json_object_set_new(line, "step", json_integer(step));
    json_object_set_new(line, "prompt", json_integer(prompt->line));
    json_object_set_new(line, "sample", json_integer(number));
    json_object_set_new(line, "prompt_text", ids_text(rollouts, &prompt->tokens, 0, prompt->tokens.count, true));
    json_object_set_new(line, "completion", sample_text(rollouts, sample, 0, sample->ids.count));
    if (sample->turns) json_object_set_new(line, "turns", rollout_turns(rollouts, sample));
    json_object_set_new(line, "finish", json_string(sample->cut ? "length" : "stop"));
    json_object_set_new(line, "reward", real_or_null(sample->reward));
    json_object_set_new(line, "rewards", rewards);
    if (sample->report) json_object_update(line, sample->report);
    if (sample->advantages) json_object_set_new(line, "advantages", token_numbers(sample, sample->advantages));
    else json_object_set_new(line, "advantage", real_or_null(sample->advantage));
    if (sample->estimates) json_object_set_new(line, "values", token_numbers(sample, sample->estimates));
    json_object_set_new(line, "ids", ids);
    json_object_set_new(line, "completion_ids", rollout_completion(rollouts, sample));
    json_object_set_new(line, "logprobs", token_numbers(sample, sample->old));
    if (sample->reference) json_object_set_new(line, "reference_logprobs", token_numbers(sample, sample->reference));
    json_object_set(line, "record", prompt->record);
    return line;
}

bool rollout_record(const RolloutSampler *rollouts, const Rollout *rollout, int64_t step, Error *error) {
    const Config *config = rollout_sampler_options(rollouts)->config;
    SCOPED_FREE char *folder = memory_format("%s/rollouts", config->run), *path = memory_format("%s/%" PRId64 ".jsonl", folder, step),
                     *all = NULL;
    size_t size;
    FILE *out = open_memstream(&all, &size);
    if (!out) memory_refused(0);
    for (int64_t i = 0; i < rollout->count; i++) {
        json_auto_t *line = sample_line(rollouts, &rollout->samples[i], i % config->rl.samples, step);
        SCOPED_FREE char *text = json_format_line(line);
        if (!text || fprintf(out, "%s\n", text) < 0) memory_refused(0);
    }
    fclose(out);
    return file_make_folder(folder, error) && file_write(path, all, (int64_t)size, error);
}

/* `smelt reward [FILE] [key=value ...]`: the rewards of completions in JSON lines, to try a reward
 * before a run, or to score rollouts anew. With serve=true it is itself a reward program, which reads
 * requests and writes answers: the reward `code` is computed so. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/scope.h"
#include "config/config.h"
#include "config/reward_options.h"
#include "rl/reward.h"

typedef struct RewardOptions {
    RlConfig rl;
    bool serve;
} RewardOptions;

#define FIELD(name) offsetof(RewardOptions, name)
static const Option rows[] = {
    REWARD_OPTIONS(.class = OPTION_FIXED, .class = OPTION_FIXED)
        BOOL_OPTION(serve, "false", "read requests from standard input and write answers, as a reward program does"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

typedef struct RewardRun {
    RewardSet *rewards;
    RewardOptions *options;
    int64_t submitted, taken, excluded;
    double sum, squares;
} RewardRun;

static bool open_rewards(RewardRun *run, Error *error) {
    const RewardOptions *o = run->options;
    RewardLimits limits = rewards_limits(&o->rl);
    limits.here = o->serve;
    if (!*o->rl.reward) return error_set(error, ERROR_USAGE, "rl.reward is not given: name a reward, as in rl.reward=exact");
    return (run->rewards = rewards_create(o->rl.reward, limits, error)) != NULL;
}

/* -- Files --------------------------------------------------------------------------------------------------------- */

/* Takes the oldest sample and prints it as a line of JSON. */
static bool print_result(RewardRun *run, Error *error) {
    RewardResult result;
    if (!rewards_take(run->rewards, &result, error)) return false;
    json_auto_t *line = json_object(), *values = json_object();
    for (int i = 0; i < rewards_count(run->rewards); i++)
        json_object_set_new(values, rewards_name(run->rewards, i), json_real(result.values[i]));
    json_object_set_new(line, "line", json_integer(result.id));
    if (!result.failure) json_object_set_new(line, "reward", json_real(result.total));
    if (!result.failure) json_object_set(line, "values", values);
    if (result.failure) json_object_set_new(line, "error", json_string(result.failure));
    if (result.metrics) json_object_set(line, "metrics", result.metrics);
    if (result.note) json_object_set_new(line, "note", json_string(result.note));
    SCOPED_FREE char *text = json_format_line(line);
    puts(text);
    run->taken++;
    run->excluded += result.failure != NULL;
    run->sum += result.total;
    run->squares += result.total * result.total;
    reward_result_free(&result);
    return true;
}

static bool take_completion(void *context, JsonLine line, Error *error) {
    enum { MOST_WAITING = 4096 };
    RewardRun *run = context;
    SCOPED_FREE int32_t *ids = NULL;
    RewardSample sample;
    json_auto_t *record = line.value;
    if (!reward_sample_read(record, &sample, &ids, error) || !rewards_check_record(run->rewards, sample.record, error)) return false;
    rewards_submit(run->rewards, line.number, &sample);
    run->submitted++;
    bool full = run->submitted - run->taken == MOST_WAITING, good = true;
    while (good && (full || rewards_wait(run->rewards, 0))) good = print_result(run, error), full = false;
    return good;
}

static bool score_file(RewardRun *run, const char *path, Error *error) {
    enum { LIMIT = 1 << 30 };
    if (!json_read_lines(path, LIMIT, JSON_REJECT_DUPLICATES, take_completion, run, error)) return false;
    while (run->taken < run->submitted)
        if (!print_result(run, error)) return false;
    int64_t count = run->taken - run->excluded;
    double mean = count ? run->sum / (double)count : 0, variance = count ? run->squares / (double)count - mean * mean : 0;
    log_info("%" PRId64 " completions, reward %.4f on average, standard deviation %.4f, %" PRId64 " excluded", run->taken, mean,
        variance > 0 ? sqrt(variance) : 0, run->excluded);
    return true;
}

/* -- Serving ------------------------------------------------------------------------------------------------------- */

static void print_answer(int64_t id, const RewardResult *result, const char *failure) {
    json_auto_t *answer = json_object();
    if (id >= 0) json_object_set_new(answer, "id", json_integer(id));
    if (failure) json_object_set_new(answer, "error", json_string(failure));
    else json_object_set_new(answer, "reward", json_real(result->total));
    if (!failure && result->metrics) json_object_set(answer, "metrics", result->metrics);
    if (!failure && result->note) json_object_set_new(answer, "note", json_string(result->note));
    SCOPED_FREE char *text = json_format_line(answer);
    puts(text);
    fflush(stdout);
}

/* Answers one request; samples that cannot be scored are named to the asker. */
static void serve_request(RewardRun *run, const char *line, size_t size) {
    Error error;
    RewardSample sample;
    RewardResult result = {0};
    SCOPED_FREE int32_t *ids = NULL;
    json_auto_t *request = json_parse(line, size, 0, &error);
    const json_t *number = json_object_get(request, "id");
    int64_t id = json_is_integer(number) ? json_integer_value(number) : -1;
    if (request && json_is_object(request) && reward_sample_read(request, &sample, &ids, &error)) {
        rewards_submit(run->rewards, id, &sample);
        if (rewards_take(run->rewards, &result, &error)) *error.message = '\0';
    } else if (request && !json_is_object(request)) {
        error_set(&error, ERROR_DATA, "the request is not an object");
    }
    print_answer(id, &result, *error.message ? error.message : result.failure);
    reward_result_free(&result);
}

static bool serve_requests(RewardRun *run, Error *error) {
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t size; (size = getline(&line, &capacity, stdin)) > 0;) serve_request(run, line, (size_t)size);
    free(line);
    return !ferror(stdin) || error_set(error, ERROR_DATA, "cannot read standard input: %s", strerror(errno));
}

static bool run_reward_command(Invocation *invocation, Error *error) {
    RewardRun run = {.options = invocation->options};
    const char *file = invocation->word_count ? invocation->words[0] : NULL;
    if (run.options->serve == (file != NULL))
        return error_set(error, ERROR_USAGE, "%s",
            file ? "serve=true reads requests from standard input: leave out the file"
                 : "there is no file: give JSON lines with \"completion\", or serve=true");
    bool good = open_rewards(&run, error);
    if (!good && run.options->serve) print_answer(-1, &(RewardResult){0}, error->message);
    good = good && (file ? score_file(&run, file, error) : serve_requests(&run, error));
    rewards_free(run.rewards);
    return good;
}

const Command command_reward = {
    .name = "reward",
    .summary = "the rewards of completions in JSON lines",
    .words = "[FILE]",
    .explanation =
        "Computes the rewards of the completions in a file of JSON lines, each with \"completion\", \"answer\" and whatever else a reward\n"
        "reads. Use it to try a reward before a run, or to score the rollouts of a run anew. With serve=true it is a reward program\n"
        "itself, which reads requests from standard input.\n",
    .table = &table,
    .options_size = sizeof(RewardOptions),
    .run = run_reward_command,
};

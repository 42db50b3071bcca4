/* Generates, judges and shares the samples of a rollout. Sample s of the prompt with number n in the
 * run draws with the number n * samples + s. Owned by the training loop. */
#include "rl/rollout.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "engine/engine.h"
#include "rl/advantage_internal.h"
#include "rl/rollout_advantages_internal.h"
#include "rl/environment_internal.h"
#include "rl/rollout_reference_internal.h"
#include "rl/reward.h"
#include "rl/rollout_internal.h"
#include "run/generation_settings.h"

struct RolloutSampler {
    RolloutOptions options;
    ModelConfig model; /* with the temperature */
    LoraConfig lora;
    EngineOwner owner;
    Engine *engine;
    RewardSet *rewards;       /* NULL: none */
    Environment *environment; /* NULL: none */
    RolloutReference *reference;
    TokenIds ends;
    int64_t limit; /* tokens from this one on are not drawn */
};

/* -- Opening and closing ------------------------------------------------------------------------------------------- */

static bool open_rewards(RolloutSampler *rollouts, Error *error) {
    const RlConfig *rl = &rollouts->options.config->rl;
    const PromptSet *const sets[] = {&rollouts->options.corpus->prompts, &rollouts->options.corpus->valid_prompts};
    if (!rl->reward[0]) return true;
    rollouts->rewards = rewards_create(rl->reward, rewards_limits(rl), error);
    if (!rollouts->rewards) return error_context(error, "rl.reward");
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < sets[s]->count; i++)
            if (!rewards_check_record(rollouts->rewards, sets[s]->items[i].record, error))
                return error_context(error, "%s, line %" PRId64,
                    s ? rollouts->options.config->data.valid : rollouts->options.config->data.train, sets[s]->items[i].line);
    return true;
}

static bool open_ends(RolloutSampler *rollouts, Error *error) {
    const Config *config = rollouts->options.config;
    const Corpus *corpus = rollouts->options.corpus;
    int32_t answer = corpus->prompts.answer_end;
    if (corpus->bytes) token_ids_append(&rollouts->ends, BYTE_SEPARATOR);
    else if (!generation_end_tokens(config->run, config, corpus->tokenizer, &rollouts->ends, error)) return false;
    if (answer >= 0) token_ids_append(&rollouts->ends, answer);
    rollouts->limit = int_min(corpus->bytes ? BYTE_VOCABULARY : tokenizer_vocabulary(corpus->tokenizer), config->model.vocabulary);
    return rollouts->ends.count > 0 ||
           error_set(error, ERROR_USAGE,
               "no token is known to end an answer, so every sample would have rl.tokens=%lld tokens: add generation_config.json with "
               "eos_token_id to init=%s",
               (long long)config->rl.tokens, config->init);
}

static bool open_engine(RolloutSampler *rollouts, Error *error) {
    const Config *config = rollouts->options.config;
    Session *session = rollouts->options.session;
    int64_t slots = session_rollout_slots(session, (int64_t)rollouts->options.corpus->valid_prompts.count);
    rollouts->model = config->model;
    rollouts->model.logit_divisor *= config->rl.temperature;
    rollouts->lora = config->lora;
    rollouts->owner = (EngineOwner){&session->training, session->layout, &rollouts->lora};
    const EngineSizes sizes = {.slots = slots, .cache_rows = slots * config->data.length, .limit = rollouts->limit};
    rollouts->engine =
        engine_create_beside(&rollouts->model, (Precision)config->precision, &rollouts->owner, session->device, sizes, error);
    return rollouts->engine || error_context(error, "generation for rl.loss");
}

RolloutSampler *rollout_sampler_open(const RolloutOptions *options, Error *error) {
    RolloutSampler *rollouts = memory_allocate(sizeof *rollouts);
    *rollouts = (RolloutSampler){.options = *options};
    bool opened = open_rewards(rollouts, error) && environment_open(&rollouts->options, &rollouts->environment, error);
    if (opened) return rollouts;
    rollout_sampler_close(rollouts);
    return NULL;
}

bool rollout_sampler_start(RolloutSampler *rollouts, Error *error) {
    return open_ends(rollouts, error) && open_engine(rollouts, error) &&
           rollout_reference_open(&rollouts->options, &rollouts->reference, error);
}

void rollout_sampler_close(RolloutSampler *rollouts) {
    if (!rollouts) return;
    engine_free(rollouts->engine);
    rewards_free(rollouts->rewards);
    environment_close(rollouts->environment);
    rollout_reference_close(rollouts->reference);
    token_ids_free(&rollouts->ends);
    free(rollouts);
}

const RolloutOptions *rollout_sampler_options(const RolloutSampler *rollouts) { return &rollouts->options; }

static int reward_parts(const RolloutSampler *rollouts) { return rollouts->rewards ? rewards_count(rollouts->rewards) : 0; }

/* The values of a sample: those of the rewards, then what the environment gave. */
static int value_count(const RolloutSampler *rollouts) { return reward_parts(rollouts) + (rollouts->environment != NULL); }

const char *rollout_reward_name(const RolloutSampler *rollouts, int index) {
    if (index < reward_parts(rollouts)) return rewards_name(rollouts->rewards, index);
    return index < value_count(rollouts) ? rewards_name(environment_program(rollouts->environment), 0) : NULL;
}

void rollout_free(Rollout *rollout) {
    for (int64_t i = 0; i < rollout->count; i++) rollout_sample_free(&rollout->samples[i]);
    free(rollout->samples);
    json_decref(rollout->facts.rewards);
    *rollout = (Rollout){0};
}

/* -- Generation ---------------------------------------------------------------------------------------------------- */

/* Prompts to sample, on one rank. */
typedef struct Generating {
    RolloutSampler *rollouts;
    const PromptSet *prompts;
    RolloutSample *samples;     /* [prompts of this call * each], on this rank the ones of its prompts */
    struct PromptGroup *groups; /* [prompts of this call] */
    int64_t each;               /* samples of a prompt */
    double waited;              /* seconds for rewards and the environment */
    int64_t submitted, asked;   /* samples without a result of the rewards; of the environment */
} Generating;

/* A message between ranks, as numbers that doubles hold exactly. */
typedef struct Message {
    double *items;
    size_t count;
} Message;

static void message_put(Message *message, double number) { array_append(message->items, message->count, number); }

/* The samples of one prompt. */
typedef struct PromptGroup {
    Generating *generating;
    RolloutSample *samples;
} PromptGroup;

static bool is_end(const RolloutSampler *rollouts, int32_t token) {
    for (size_t i = 0; i < rollouts->ends.count; i++)
        if (rollouts->ends.items[i] == token) return true;
    return false;
}

static bool take_drawn(void *context, int index, const EngineToken *token) {
    const PromptGroup *group = context;
    RolloutSample *sample = &group->samples[index];
    size_t count = sample->ids.count;
    array_append(sample->old, count, token->log_probability);
    token_ids_append(&sample->ids, token->token);
    return !is_end(group->generating->rollouts, token->token);
}

GeneratedText rollout_text(const RolloutSampler *rollouts, const TokenIds *ids, size_t first, size_t end, bool ends) {
    GeneratedText text = generated_text(rollouts->options.corpus->tokenizer);
    for (size_t i = first; i < end; i++)
        if (ends || !is_end(rollouts, ids->items[i])) generated_text_add(&text, &(StopTexts){0}, ids->items[i]);
    generated_text_finish(&text);
    return text;
}

json_t *rollout_completion(const RolloutSampler *rollouts, const RolloutSample *sample) {
    json_t *ids = json_array();
    for (size_t i = 0; i < sample->ids.count; i++)
        if (!is_end(rollouts, sample->ids.items[i])) json_array_append_new(ids, json_integer(sample->ids.items[i]));
    return ids;
}

/* Hands the last turn of a sample to a program; the environment is told of all turns. */
static void submit_turn(const Generating *generating, RewardSet *program, const RolloutSample *sample, const json_t *turns) {
    const RolloutSampler *rollouts = generating->rollouts;
    const Prompt *prompt = &generating->prompts->items[sample->prompt];
    SampleTurn turn = sample_last_turn(sample);
    GeneratedText text = rollout_text(rollouts, &sample->ids, turn.first, turn.end, false),
                  asked = rollout_text(rollouts, &prompt->tokens, 0, prompt->tokens.count, true);
    bool ended = turn.end > turn.first && is_end(rollouts, sample->ids.items[turn.end - 1]);
    const RewardSample judged = {.prompt = asked.bytes,
        .completion = text.bytes,
        .prompt_size = asked.size,
        .completion_size = text.size,
        .prompt_ids = prompt->tokens.items,
        .completion_ids = sample->ids.items + turn.first,
        .prompt_count = prompt->tokens.count,
        .completion_count = turn.end - turn.first - ended,
        .finish = sample->cut ? "length" : "stop",
        .record = prompt->record,
        .turns = turns,
        .last = sample->last};
    rewards_submit(program, sample - generating->samples, &judged);
    generated_text_free(&text);
    generated_text_free(&asked);
}

/* All ranks that divide the model have the same samples. One of them calls the programs. */
static bool is_judge(const RolloutSampler *rollouts) { return mesh_index(rollouts->options.session->mesh, AXES_TENSOR) == 0; }

static void judge_sample(Generating *generating, const RolloutSample *sample) {
    if (!generating->rollouts->rewards || !is_judge(generating->rollouts)) return;
    submit_turn(generating, generating->rollouts->rewards, sample, NULL);
    generating->submitted++;
}

static void ask_environment(Generating *generating, const RolloutSample *sample) {
    generating->asked++;
    if (!is_judge(generating->rollouts)) return;
    json_auto_t *turns = rollout_turns(generating->rollouts, sample);
    submit_turn(generating, environment_program(generating->rollouts->environment), sample, turns);
}

/* Returns whether a sample that has `more` tokens after its present ones could draw another one. */
static bool sample_has_room(const Generating *generating, const RolloutSample *sample, size_t more) {
    return (int64_t)(sample->ids.count + more) < generating->rollouts->options.config->rl.tokens;
}

/* At the end token of a turn. The sample waits, unless this is its last turn. */
static bool end_turn(void *context, int index) {
    const PromptGroup *group = context;
    RolloutSample *sample = &group->samples[index];
    sample->turns++;
    sample->last = sample->turns >= group->generating->rollouts->options.config->rl.turns || !sample_has_room(group->generating, sample, 1);
    ask_environment(group->generating, sample);
    return !sample->last;
}

static void end_drawn(void *context, int index, EngineEnd end) {
    const PromptGroup *group = context;
    RolloutSample *sample = &group->samples[index];
    sample->cut = sample->cut || end == ENGINE_LENGTH;
    if (!group->generating->rollouts->environment) {
        judge_sample(group->generating, sample);
    } else if (end == ENGINE_LENGTH) {
        sample->turns++;
        sample->last = true;
        ask_environment(group->generating, sample);
    }
}

/* -- Environment --------------------------------------------------------------------------------------------------- */

/* Keeps the metrics and the note that programs reported for a sample. */
static void take_report(RolloutSample *sample, const RewardResult *result) {
    if (!result->metrics && !result->note) return;
    if (!sample->report) sample->report = json_pack("{s:{}}", "metrics");
    if (result->metrics) json_object_update(json_object_get(sample->report, "metrics"), result->metrics);
    if (result->note) json_object_set_new(sample->report, "note", json_string(result->note));
}

/* The environment's answer for a sample, as numbers: the sample, whether it has no reward, the reward, the
 * count of appended tokens (-1: the sample ends), and the tokens. */
enum { ANSWER_SAMPLE, ANSWER_FAILED, ANSWER_REWARD, ANSWER_COUNT, ANSWER_TOKENS };

static void put_answer(Message *message, int64_t id, bool failed, double reward, const TokenIds *ids) {
    message_put(message, (double)id);
    message_put(message, failed);
    message_put(message, reward);
    message_put(message, ids ? (double)ids->count : -1);
    for (size_t i = 0; ids && i < ids->count; i++) message_put(message, ids->items[i]);
}

/* Adds an answer of the environment to the message. */
static bool take_environment_answer(const Generating *generating, Message *message, Error *error) {
    RolloutSampler *rollouts = generating->rollouts;
    SCOPED(reward_result_free) RewardResult result = {0};
    SCOPED(token_ids_free) TokenIds ids = {0};
    Error reason = {0};
    if (!rewards_take(environment_program(rollouts->environment), &result, error)) return false;
    RolloutSample *sample = &generating->samples[result.id];
    take_report(sample, &result);
    bool encoded = !result.append ? true
                   : sample->last ? error_set(&reason, ERROR_DATA, "environment: it appended to a \"last\" turn: answer with a \"reward\"")
                                  : environment_encode(rollouts->environment, generating->prompts->items[sample->prompt].record,
                                        result.append, sample->ids.items[sample->ids.count - 1], &ids, &reason);
    put_answer(message, result.id, result.failure || !encoded, result.total, result.append && encoded ? &ids : NULL);
    return encoded || rewards_exclude(environment_program(rollouts->environment), result.id, reason.message, error);
}

/* Appends an answer to a sample and continues it, or ends the sample. Without room for the turn, asks the environment again, for
 * a reward. Returns the next answer. */
static const double *apply_answer(Generating *generating, const double *answer) {
    RolloutSampler *rollouts = generating->rollouts;
    int64_t id = (int64_t)answer[ANSWER_SAMPLE], count = (int64_t)answer[ANSWER_COUNT];
    RolloutSample *sample = &generating->samples[id];
    PromptGroup *group = &generating->groups[id / generating->each];
    double *given = &sample->values[reward_parts(rollouts)];
    bool fits = count > 0 && sample_has_room(generating, sample, (size_t)count);
    size_t before = sample->ids.count;
    generating->asked--;
    for (int64_t i = 0; fits && i < count; i++) {
        size_t at = sample->ids.count;
        array_append(sample->old, at, NAN);
        token_ids_append(&sample->ids, (int32_t)answer[ANSWER_TOKENS + i]);
    }
    engine_extend(rollouts->engine, group, (int)(id % generating->each), sample->ids.items + before, fits ? count : 0);
    if (fits || count < 0) *given += answer[ANSWER_REWARD];
    if (count < 0) {
        bool failed = answer[ANSWER_FAILED] > 0;
        sample->reward = failed ? NAN : *given;
        if (!failed) judge_sample(generating, sample);
    } else if (!fits) {
        sample->last = sample->cut = true;
        ask_environment(generating, sample);
    }
    return answer + ANSWER_TOKENS + (count > 0 ? count : 0);
}

/* Sends the judge's message to all ranks that divide the model. If `good` is false, the judge has failed. */
static bool share_answers(const RolloutSampler *rollouts, Message *message, bool good, Error *error) {
    Comm *group = mesh_group(rollouts->options.session->mesh, AXES_TENSOR);
    int64_t notice[] = {(int64_t)message->count, !good};
    if (comm_size(group) == 1) return good;
    Error ignored = {0};
    if (!comm_host_broadcast(group, "answers", notice, 2, COMM_I64, 0, good ? error : &ignored)) return false;
    if (notice[1])
        return is_judge(rollouts) ? false : error_set(error, ERROR_DATA, "the environment failed: another rank's message has the reason");
    while ((int64_t)message->count < notice[0]) message_put(message, 0);
    return comm_host_broadcast(group, "answers", message->items, notice[0], COMM_F64, 0, error);
}

/* Takes the answers that are there; waits for one if nothing else is to be done. */
static bool take_answers(Generating *generating, Error *error) {
    const RolloutSampler *rollouts = generating->rollouts;
    Message message = {0};
    if (!generating->asked) return true;
    bool idle = engine_waits(rollouts->engine) || !engine_busy(rollouts->engine), good = true;
    double start = log_seconds();
    if (is_judge(rollouts)) {
        RewardSet *program = environment_program(rollouts->environment);
        if (idle) rewards_wait(program, 1);
        for (int64_t left = generating->asked; good && left && rewards_wait(program, 0); left--)
            good = take_environment_answer(generating, &message, error);
    }
    good = share_answers(rollouts, &message, good, error);
    if (idle) generating->waited += log_seconds() - start;
    const double *at = message.items, *end = at + message.count;
    while (good && at < end) at = apply_answer(generating, at);
    free(message.items);
    return good;
}

/* Waits for the rewards of the submitted samples, unless a stop is requested. */
static bool take_rewards(Generating *generating, Watchdog *watchdog, bool *stopped, Error *error) {
    RolloutSampler *rollouts = generating->rollouts;
    double start = log_seconds();
    bool taken = true;
    for (int64_t i = 0; taken && i < generating->submitted && !*stopped;) {
        RewardResult result = {0};
        *stopped = rollouts->options.stop->signal;
        watchdog_alive(watchdog, rollouts->options.session->step);
        if (*stopped || !rewards_wait(rollouts->rewards, 0.2)) continue;
        taken = rewards_take(rollouts->rewards, &result, error);
        if (!taken) break;
        i++;
        RolloutSample *sample = &generating->samples[result.id];
        sample->reward = result.failure ? NAN : sample->reward + result.total;
        memcpy(sample->values, result.values, (size_t)rewards_count(rollouts->rewards) * sizeof *sample->values);
        take_report(sample, &result);
        reward_result_free(&result);
    }
    generating->waited += log_seconds() - start;
    return taken;
}

/* A list of prompts, and the number that the first has in the run. */
typedef struct PromptList {
    const int64_t *items;
    int64_t count;
    uint64_t number;
} PromptList;

/* Returns whether another step follows. Ranks that divide the model take their steps together: none if one
 * of them has failed, or was asked to stop. */
static bool generation_goes_on(const RolloutSampler *rollouts, bool *good, bool *stopped, Error *error) {
    Comm *group = mesh_group(rollouts->options.session->mesh, AXES_TENSOR);
    int64_t halts[] = {rollouts->options.stop->signal, !*good};
    if (comm_size(group) > 1 && !comm_host_all_reduce(group, "steps of a rollout", halts, 2, COMM_I64, COMM_MAX, error)) *good = false;
    *stopped = halts[0];
    return *good && !halts[0] && !halts[1];
}

/* Generates and judges the samples of this rank's prompts, which are every `size`th of the list.
 * *stopped: a stop was requested. */
static bool generate_own(
    Generating *generating, const PromptList *list, const Sampling *sampling, Watchdog *watchdog, bool *stopped, Error *error) {
    RolloutSampler *rollouts = generating->rollouts;
    const Session *session = rollouts->options.session;
    int64_t rank = mesh_index(session->mesh, AXES_DATA), size = mesh_size(session->mesh, AXES_DATA), each = generating->each;
    SCOPED_FREE PromptGroup *groups = memory_allocate((size_t)list->count * sizeof *groups);
    bool good = true;
    generating->submitted = generating->asked = 0;
    generating->groups = groups;
    for (int64_t i = 0; i < list->count; i++) {
        groups[i] = (PromptGroup){generating, generating->samples + i * each};
        for (int64_t s = 0; s < each; s++) groups[i].samples[s].prompt = list->items[i];
    }
    for (int64_t i = rank; i < list->count && good; i += size) {
        for (int64_t s = 0; s < each; s++)
            groups[i].samples[s].values = memory_allocate((size_t)int_max(value_count(rollouts), 1) * sizeof(double));
        const TokenIds *prompt = &generating->prompts->items[list->items[i]].tokens;
        const EngineRequest request = {.prompt = prompt->items,
            .prompt_count = (int64_t)prompt->count,
            .tokens = rollouts->options.config->rl.tokens,
            .samples = (int)each,
            .sampling = *sampling,
            .number = (list->number + (uint64_t)i) * (uint64_t)each,
            .token = take_drawn,
            .end = end_drawn,
            .wait = rollouts->environment ? end_turn : NULL,
            .context = &groups[i]};
        good = engine_submit(rollouts->engine, &request, error);
    }
    while ((engine_busy(rollouts->engine) || generating->asked) && generation_goes_on(rollouts, &good, stopped, error)) {
        good = take_answers(generating, error) && engine_step(rollouts->engine, error);
        watchdog_alive(watchdog, session->step);
    }
    engine_cancel(rollouts->engine, NULL);
    return good && (*stopped || take_rewards(generating, watchdog, stopped, error));
}

/* -- Sharing ------------------------------------------------------------------------------------------------------- */

/* Adds a text to the message, one number per byte. */
static void put_report(Message *message, const json_t *report) {
    SCOPED_FREE char *text = report ? json_dumps(report, JSON_COMPACT) : NULL;
    size_t size = text ? strlen(text) : 0;
    message_put(message, (double)size);
    for (size_t i = 0; i < size; i++) message_put(message, (unsigned char)text[i]);
}

static void put_sample(Message *message, const RolloutSample *sample, int values) {
    message_put(message, (double)sample->ids.count);
    message_put(message, (double)sample->turns);
    message_put(message, sample->cut);
    message_put(message, sample->reward);
    for (int i = 0; i < values; i++) message_put(message, sample->values[i]);
    for (size_t i = 0; i < sample->ids.count; i++) message_put(message, sample->ids.items[i]);
    for (size_t i = 0; i < sample->ids.count; i++) message_put(message, sample->old[i]);
    put_report(message, sample->report);
}

static const double *take_report_text(const double *at, json_t **report) {
    size_t size = (size_t)*at++;
    SCOPED_FREE char *text = memory_allocate(size + 1);
    for (size_t i = 0; i < size; i++) text[i] = (char)*at++;
    *report = size ? json_loadb(text, size, 0, NULL) : NULL;
    return at;
}

/* Leaves the prompt. */
static void forget_tokens(RolloutSample *sample) {
    int64_t prompt = sample->prompt;
    rollout_sample_free(sample);
    sample->prompt = prompt;
}

static const double *take_sample(const double *at, RolloutSample *sample, int values) {
    size_t count = (size_t)*at++;
    forget_tokens(sample);
    sample->turns = (int64_t)*at++;
    sample->cut = *at++ > 0;
    sample->reward = *at++;
    sample->values = memory_allocate((size_t)int_max(values, 1) * sizeof *sample->values);
    for (int i = 0; i < values; i++) sample->values[i] = *at++;
    for (size_t i = 0; i < count; i++) token_ids_append(&sample->ids, (int32_t)*at++);
    sample->old = memory_allocate(count * sizeof *sample->old);
    memcpy(sample->old, at, count * sizeof *sample->old);
    return take_report_text(at + count, &sample->report);
}

/* A rank's notice before it sends its samples: its first prompt (-1: another rank sends the same samples),
 * the numbers in its message, and the error code if it failed. */
typedef struct ShareNotice { int64_t first, numbers, code, stopped; } ShareNotice;

/* Sets the same outcome on all ranks: a failure of any, or a stop. */
static bool agree_on_shares(const ShareNotice *notices, int size, int rank, bool *stopped, Error *error) {
    *stopped = false;
    for (int r = 0; r < size; r++) {
        *stopped = *stopped || notices[r].stopped;
        if (!notices[r].code) continue;
        if (r != rank && !notices[rank].code)
            error_set(error, (ErrorCode)notices[r].code, "rank %d could not generate its samples, for the reason in its message", r);
        return false;
    }
    return true;
}

/* Gives all ranks the samples of all ranks. `good` false: this rank has failed, with its error set. */
static bool share_samples(Generating *generating, int64_t prompts, bool good, bool *stopped, Error *error) {
    RolloutSampler *rollouts = generating->rollouts;
    Comm *comm = rollouts->options.session->comm;
    int rank = comm_rank(comm), size = comm_size(comm), values = value_count(rollouts);
    const Mesh *mesh = rollouts->options.session->mesh;
    int64_t each = generating->each, first = is_judge(rollouts) ? mesh_index(mesh, AXES_DATA) : -1, step = mesh_size(mesh, AXES_DATA);
    SCOPED_FREE ShareNotice *notices = memory_allocate((size_t)size * sizeof *notices);
    Message mine = {0};
    for (int64_t i = first; i >= 0 && i < prompts && good && !*stopped; i += step)
        for (int64_t s = 0; s < each; s++) put_sample(&mine, &generating->samples[i * each + s], values);
    notices[rank] = (ShareNotice){first, (int64_t)mine.count, good ? 0 : error->code, *stopped};
    SCOPED_FREE double *owned = mine.items;
    Error ignored = {0};
    if (!comm_host_all_gather(comm, "samples of ranks", notices, sizeof *notices / sizeof(int64_t), COMM_I64, good ? error : &ignored))
        return false;
    if (!agree_on_shares(notices, size, rank, stopped, error)) return false;
    for (int r = 0; r < size && !*stopped; r++) {
        SCOPED_FREE double *theirs = r == rank ? NULL : memory_allocate((size_t)int_max(notices[r].numbers, 1) * sizeof *theirs);
        double *numbers = r == rank ? mine.items : theirs;
        if (!comm_host_broadcast(comm, "samples", numbers, notices[r].numbers, COMM_F64, r, error)) return false;
        const double *at = numbers;
        for (int64_t i = notices[r].first; i >= 0 && i < prompts && r != rank; i += step)
            for (int64_t s = 0; s < each; s++) at = take_sample(at, &generating->samples[i * each + s], values);
    }
    return true;
}

/* Generates the samples of a list of prompts on all ranks: samples[list->count * each]. */
static bool generate_all(
    Generating *generating, const PromptList *list, const Sampling *sampling, Watchdog *watchdog, bool *stopped, Error *error) {
    bool good = generate_own(generating, list, sampling, watchdog, stopped, error);
    return share_samples(generating, list->count, good, stopped, error);
}

/* -- A rollout ----------------------------------------------------------------------------------------------------- */

/* Returns prompt `n` of the run, in an order that changes with every pass over the prompts. */
static int64_t choose_prompt(const RolloutSampler *rollouts, uint64_t stream, uint64_t n) {
    uint64_t count = rollouts->options.corpus->prompts.count;
    return (int64_t)rng_permute((uint64_t)rollouts->options.config->seed + n / count, stream, n % count, count);
}

/* Adds a number to the sum and the count of its name. */
static void add_to_mean(json_t *sums, const char *name, double value) {
    const json_t *before = json_object_get(sums, name);
    double sum = json_number_value(json_array_get(before, 0)) + value, count = json_number_value(json_array_get(before, 1)) + 1;
    json_object_set_new(sums, name, json_pack("[f, f]", sum, count));
}

/* Adds each reward of a sample, and the metrics that programs reported. */
static void add_rewards(const RolloutSampler *rollouts, json_t *sums, const RolloutSample *sample) {
    const char *name;
    json_t *value;
    for (int i = 0; (name = rollout_reward_name(rollouts, i)); i++) add_to_mean(sums, name, sample->values[i]);
    json_object_foreach(json_object_get(sample->report, "metrics"), name, value) add_to_mean(sums, name, json_number_value(value));
}

static void add_facts(const RolloutSampler *rollouts, RolloutFacts *facts, const RolloutSample *samples, int64_t groups) {
    const RlConfig *rl = &rollouts->options.config->rl;
    int64_t each = rl->samples;
    if (!facts->rewards) facts->rewards = json_object();
    for (int64_t g = 0; g < groups; g++) {
        SCOPED_FREE double *rewards = memory_allocate((size_t)each * sizeof *rewards);
        for (int64_t s = 0; s < each; s++) {
            const RolloutSample *sample = &samples[g * each + s];
            rewards[s] = rollout_judged(rl, sample);
            facts->tokens += sample_drawn_tokens(sample);
            facts->turns += sample->turns ? (double)sample->turns : NAN;
            facts->cut += sample->cut;
            for (size_t t = 0; t < sample->ids.count; t++) facts->surprise -= sample_drew(sample, t) ? sample->old[t] : 0;
            facts->failed += isnan(sample->reward);
            if (isnan(sample->reward)) continue;
            add_rewards(rollouts, facts->rewards, sample);
            facts->reward += sample->reward;
            facts->deviation += sample->reward * sample->reward;
        }
        facts->equal_groups += !policy_group_varies(rewards, each);
    }
    facts->groups += groups;
    facts->samples += groups * each;
}

/* Turns sums into means. */
static void finish_facts(RolloutFacts *facts) {
    double samples = (double)int_max(facts->samples, 1), judged = fmax(samples - facts->failed, 1);
    const char *name;
    json_t *sum;
    json_object_foreach(facts->rewards, name, sum) json_object_set_new(
        facts->rewards, name, json_real(json_number_value(json_array_get(sum, 0)) / json_number_value(json_array_get(sum, 1))));
    facts->reward /= judged;
    facts->deviation = sqrt(fmax(0, facts->deviation / judged - facts->reward * facts->reward));
    facts->equal_groups /= (double)int_max(facts->groups, 1);
    facts->length = (double)facts->tokens / samples;
    facts->surprise /= (double)int_max(facts->tokens, 1);
    facts->cut /= samples;
    facts->turns /= samples;
    facts->failed /= samples;
}

/* Moves the groups that are trained to the rollout: those whose rewards vary, if others can take the
 * place of the rest. */
static void keep_groups(const RlConfig *rl, Rollout *rollout, RolloutSample *samples, int64_t groups, bool all) {
    int64_t each = rl->samples;
    SCOPED_FREE double *rewards = memory_allocate((size_t)each * sizeof *rewards);
    for (int64_t g = 0; g < groups; g++) {
        for (int64_t s = 0; s < each; s++) rewards[s] = rollout_judged(rl, &samples[g * each + s]);
        bool kept = all || policy_group_varies(rewards, each);
        for (int64_t s = 0; s < each; s++)
            if (kept) array_append(rollout->samples, rollout->count, samples[g * each + s]);
            else rollout_sample_free(&samples[g * each + s]);
        rollout->groups += kept;
    }
}

/* Generates one round of a rollout. */
static bool make_round(RolloutSampler *rollouts, int64_t index, int64_t round, Watchdog *watchdog, Rollout *rollout, Error *error) {
    const RlConfig *rl = &rollouts->options.config->rl;
    int64_t wanted = rl->prompts - rollout->groups, each = rl->samples;
    uint64_t first = (uint64_t)(index * rl->prompts), refills = (uint64_t)((index * rl->refill + round - 1) * rl->prompts);
    SCOPED_FREE int64_t *items = memory_allocate((size_t)wanted * sizeof *items);
    for (int64_t i = 0; i < wanted; i++)
        items[i] = round ? choose_prompt(rollouts, RNG_STREAM_REFILL, refills + (uint64_t)i)
                         : choose_prompt(rollouts, RNG_STREAM_SHUFFLE, first + (uint64_t)i);
    const PromptList list = {items, wanted, (uint64_t)((index * (rl->refill + 1) + round) * rl->prompts)};
    const Sampling sampling = {.temperature = 1, .top_p = 1, .seed = (uint64_t)rollouts->options.config->seed};
    Generating generating = {.rollouts = rollouts, .prompts = &rollouts->options.corpus->prompts, .each = each};
    SCOPED_FREE RolloutSample *samples = memory_allocate((size_t)(wanted * each) * sizeof *samples);
    memset(samples, 0, (size_t)(wanted * each) * sizeof *samples);
    generating.samples = samples;
    double start = log_seconds();
    bool good = generate_all(&generating, &list, &sampling, watchdog, &rollout->stopped, error);
    rollout->facts.generating += log_seconds() - start - generating.waited;
    rollout->facts.judging += generating.waited;
    if (!good || rollout->stopped) {
        for (int64_t i = 0; i < wanted * each; i++) rollout_sample_free(&samples[i]);
        return good;
    }
    add_facts(rollouts, &rollout->facts, samples, wanted);
    bool last = round == rl->refill;
    keep_groups(rl, rollout, samples, wanted, !rl->refill || (last && !rollout->groups));
    return true;
}

bool rollout_make(RolloutSampler *rollouts, int64_t index, Watchdog *watchdog, Rollout *rollout, Error *error) {
    const RlConfig *rl = &rollouts->options.config->rl;
    *rollout = (Rollout){.facts = {.kl = NAN, .value = NAN, .explained = NAN}};
    EngineCounts before = engine_counts(rollouts->engine);
    exchange_finish_weights(rollouts->options.session->training.exchange);
    for (int64_t round = 0; round <= rl->refill && rollout->groups < rl->prompts && !rollout->stopped; round++)
        if (!make_round(rollouts, index, round, watchdog, rollout, error)) return false;
    if (rollout->stopped) return true;
    finish_facts(&rollout->facts);
    rollout->facts.prompt_tokens = engine_counts(rollouts->engine).prompt_tokens - before.prompt_tokens;
    double start = log_seconds();
    if (!rollout_reference_score(rollouts->reference, &rollouts->options.corpus->prompts, rollout->samples, rollout->count, error) ||
        !rollout_estimate_values(&rollouts->options, rollout, error))
        return false;
    rollout->facts.scoring = log_seconds() - start;
    return rollout_set_advantages(&rollouts->options, rollout, error);
}

bool rollout_evaluate(RolloutSampler *rollouts, Watchdog *watchdog, RolloutJudgment *judgment, bool *stopped, Error *error) {
    const PromptSet *prompts = &rollouts->options.corpus->valid_prompts;
    const EvalConfig *eval = &rollouts->options.config->eval;
    int64_t all = (int64_t)prompts->count, wanted = eval->sequences ? int_min(eval->sequences, all) : all;
    SCOPED_FREE int64_t *items = memory_allocate((size_t)wanted * sizeof *items);
    SCOPED_FREE RolloutSample *samples = memory_allocate((size_t)wanted * sizeof *samples);
    memset(samples, 0, (size_t)wanted * sizeof *samples);
    for (int64_t i = 0; i < wanted; i++) items[i] = i;
    Generating generating = {.rollouts = rollouts, .prompts = prompts, .samples = samples, .each = 1};
    exchange_finish_weights(rollouts->options.session->training.exchange);
    bool good = generate_all(&generating, &(PromptList){items, wanted, 0}, &(Sampling){.top_p = 1}, watchdog, stopped, error);
    *judgment = (RolloutJudgment){.prompts = wanted};
    for (int64_t i = 0; i < wanted; i++) {
        bool judged = good && !*stopped && !isnan(samples[i].reward);
        judgment->reward += judged ? samples[i].reward : 0;
        judgment->judged += judged;
        rollout_sample_free(&samples[i]);
    }
    judgment->reward /= (double)judgment->judged; /* NaN without any */
    return good;
}

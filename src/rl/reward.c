/* Reads texts of rewards, keeps submitted samples and adds up their values. Owns the parts, their
 * workers, and the samples until they are taken. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"
#include "data/pack.h"
#include "rl/reward_internal.h"

struct RewardSet {
    RewardLimits limits;
    RewardPart *parts;
    size_t part_count;
    bool asks; /* a part has a program */
    pthread_mutex_t lock;
    pthread_cond_t answered;
    RewardEntry *first, **end;
};

/* -- Texts --------------------------------------------------------------------------------------------------------- */

/* Takes the argument at *at, up to a comma or to the end of its quotes. */
static bool take_argument(const char **at, char **argument, Error *error) {
    const char *from = *at;
    size_t length = 0;
    if (*from != '"') {
        length = strcspn(from, ",");
        *at = from + length;
        while (length > 0 && from[length - 1] == ' ') length--;
        *argument = memory_format("%.*s", (int)length, from);
        return true;
    }
    char *to = *argument = memory_allocate(strlen(from));
    for (from++; *from && *from != '"'; from++) {
        from += from[0] == '\\' && from[1] == '"';
        *to++ = *from;
    }
    if (!*from) return error_set(error, ERROR_USAGE, "the quotes of %s have no end", *at);
    *at = from + 1 + strspn(from + 1, " ");
    return !**at || **at == ',' || error_set(error, ERROR_USAGE, "\"%s\" follows quotes: write a comma between rewards", *at);
}

static bool take_weight(const char **at, double *weight, Error *error) {
    char *end;
    *weight = 1;
    if (!**at || !strchr("+-.0123456789", **at)) return true;
    *weight = strtod(*at, &end);
    end += strspn(end, " ");
    if (*end != '*' || !(*weight - *weight == 0))
        return error_set(error, ERROR_USAGE, "\"%s\" does not begin with a weight: write a finite number and *, as in 0.2*exact", *at);
    *at = end + 1 + strspn(end + 1, " ");
    return true;
}

static bool take_kind(const char **at, RewardPart *part, Error *error) {
    size_t length = strcspn(*at, ",: ");
    SCOPED_FREE char *names = reward_kind_names(), *name = memory_format("%.*s", (int)length, *at);
    part->kind = reward_kind(name);
    if (!part->kind) return error_set(error, ERROR_USAGE, "\"%s\" is not a reward; there are %s", name, names);
    bool address = starts_with(name, "http"), given = (*at)[length] == ':';
    if (!given && part->kind->needs_argument) return error_set(error, ERROR_USAGE, "%s needs an argument: write %s:...", name, name);
    if (given && !part->kind->takes_argument) return error_set(error, ERROR_USAGE, "%s takes no argument: write %s alone", name, name);
    *at += address ? 0 : given ? length + 1 : length;
    const char *next = *at + strspn(*at, " ");
    return given || !*next || *next == ',' || error_set(error, ERROR_USAGE, "\"%s\" follows %s: write a comma between rewards", next, name);
}

/* The names of parts are those of kinds, with a number from the second one on. */
static void name_part(const RewardSet *rewards, RewardPart *part) {
    int before = 0;
    for (size_t i = 0; i < rewards->part_count; i++) before += rewards->parts[i].kind == part->kind;
    if (rewards->limits.environment) part->name = memory_copy_string("environment");
    else part->name = before ? memory_format("%s%d", part->kind->name, before + 1) : memory_copy_string(part->kind->name);
}

static bool read_part(RewardSet *rewards, const char **at, Error *error) {
    RewardPart part = {.rewards = rewards, .arrived = -1, .stop = -1};
    bool good = take_weight(at, &part.weight, error) && take_kind(at, &part, error);
    if (!good) return false;
    name_part(rewards, &part);
    array_append(rewards->parts, rewards->part_count, part);
    RewardPart *kept = &rewards->parts[rewards->part_count - 1];
    return take_argument(at, &kept->argument, error) && (!kept->kind->parse || kept->kind->parse(kept, error));
}

static bool check_environment(const RewardSet *rewards, Error *error) {
    const RewardKind *kind = rewards->parts[0].kind;
    return !rewards->limits.environment || (rewards->part_count == 1 && kind->work && !kind->compute) ||
           error_set(error, ERROR_USAGE, "an environment is one program: write program:COMMAND, python:FILE.py or http://HOST/PATH");
}

static bool read_parts(RewardSet *rewards, const char *text, Error *error) {
    const char *at = text + strspn(text, " ");
    for (;;) {
        if (!read_part(rewards, &at, error)) return error_context(error, "reward=%s", text);
        at += strspn(at, " ");
        if (!*at) return check_environment(rewards, error);
        at += 1 + strspn(at + 1, " "); /* a comma */
    }
}

/* -- Opening and closing ------------------------------------------------------------------------------------------- */

static bool start_workers(RewardPart *part, Error *error) {
    int64_t copies = part->rewards->limits.copies;
    part->queue_end = &part->queue;
    part->arrived = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    part->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (part->arrived < 0 || part->stop < 0) return error_set(error, ERROR_INTERNAL, "eventfd: %s: raise ulimit -n", strerror(errno));
    part->workers = memory_allocate((size_t)copies * sizeof *part->workers);
    for (int64_t i = 0; i < copies; i++) {
        RewardWorker *worker = &part->workers[i];
        worker->part = part;
        int code = thread_start(&worker->thread, part->kind->work, worker);
        if (code) return error_set(error, ERROR_INTERNAL, "cannot start a thread for %s: %s", part->name, strerror(code));
        worker->started = true;
    }
    return true;
}

bool reward_part_computes(const RewardPart *part) { return !part->kind->work || (part->kind->compute && part->rewards->limits.here); }

RewardLimits rewards_limits(const RlConfig *rl) {
    return (RewardLimits){.copies = rl->reward_copies,
        .in_flight = rl->reward_in_flight,
        .attempts = rl->reward_attempts,
        .seconds = rl->reward_seconds,
        .code_seconds = rl->code_seconds,
        .code_bytes = rl->code_memory,
        .skip = rl->reward_errors == RL_ERRORS_SKIP};
}

RewardSet *rewards_create(const char *text, RewardLimits limits, Error *error) {
    assert(limits.copies > 0 && limits.in_flight > 0 && limits.attempts > 0);
    RewardSet *rewards = memory_allocate(sizeof *rewards);
    *rewards = (RewardSet){.limits = limits, .end = &rewards->first};
    pthread_mutex_init(&rewards->lock, NULL);
    pthread_cond_init(&rewards->answered, NULL);
    bool good = read_parts(rewards, text, error);
    for (size_t i = 0; good && i < rewards->part_count; i++) {
        bool asks = !reward_part_computes(&rewards->parts[i]);
        rewards->asks |= asks;
        good = !asks || start_workers(&rewards->parts[i], error);
    }
    if (good) return rewards;
    rewards_free(rewards);
    return NULL;
}

static void free_entry(RewardEntry *entry, int parts) {
    for (int i = 0; i < parts; i++) reward_answer_free(&entry->answers[i]);
    reward_result_free(&entry->result);
    free(entry->answers);
    free(entry->request);
    free(entry);
}

static void free_part(RewardPart *part) {
    if (part->stop >= 0) eventfd_write(part->stop, 1);
    for (int64_t i = 0; part->workers && i < part->rewards->limits.copies; i++)
        if (part->workers[i].started) pthread_join(part->workers[i].thread, NULL);
    for (RewardJob *job = part->queue, *next; job; job = next) next = job->next, free(job);
    if (part->arrived >= 0) close(part->arrived);
    if (part->stop >= 0) close(part->stop);
    match_regex_free(part->pattern);
    free(part->workers);
    free(part->name);
    free(part->argument);
    free(part->given_up);
    free(part->curl);
}

void rewards_free(RewardSet *rewards) {
    if (!rewards) return;
    for (size_t i = 0; i < rewards->part_count; i++) free_part(&rewards->parts[i]);
    for (RewardEntry *entry = rewards->first, *next; entry; entry = next) next = entry->next, free_entry(entry, (int)rewards->part_count);
    pthread_cond_destroy(&rewards->answered);
    pthread_mutex_destroy(&rewards->lock);
    free(rewards->parts);
    free(rewards);
}

void reward_result_free(RewardResult *result) {
    json_decref(result->metrics);
    json_decref(result->append);
    free(result->values);
    free(result->note);
    free(result->failure);
    *result = (RewardResult){0};
}

int rewards_count(const RewardSet *rewards) { return (int)rewards->part_count; }
const char *rewards_name(const RewardSet *rewards, int index) { return rewards->parts[index].name; }
const RewardLimits *reward_limits(const RewardPart *part) { return &part->rewards->limits; }

/* -- Jobs ---------------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static void queue_job(RewardPart *part, RewardJob *job) {
    job->number = part->next_number++;
    job->next = NULL;
    *part->queue_end = job;
    part->queue_end = &job->next;
    eventfd_write(part->arrived, 1);
}

static RewardAnswer fail_with(const char *failure) { return (RewardAnswer){.failure = memory_copy_string(failure)}; }

/* Under the lock. NULL: the queue is empty. */
static RewardJob *pop_job(RewardPart *part) {
    RewardJob *job = part->queue;
    if (!job) return NULL;
    part->queue = job->next;
    if (!part->queue) part->queue_end = &part->queue;
    job->next = NULL;
    return job;
}

RewardJob *reward_job_take(RewardPart *part) {
    eventfd_t one;
    if (eventfd_read(part->arrived, &one) != 0) return NULL;
    pthread_mutex_lock(&part->rewards->lock);
    RewardJob *job = pop_job(part);
    pthread_mutex_unlock(&part->rewards->lock);
    return job;
}

/* Under the lock. */
static void finish_job(RewardPart *part, RewardJob *job, RewardAnswer answer) {
    job->entry->answers[part - part->rewards->parts] = answer;
    if (--job->entry->left == 0) pthread_cond_broadcast(&part->rewards->answered);
    free(job);
}

void reward_job_finish(RewardPart *part, RewardJob *job, RewardAnswer answer) {
    pthread_mutex_lock(&part->rewards->lock);
    part->faults = 0;
    finish_job(part, job, answer);
    pthread_mutex_unlock(&part->rewards->lock);
}

static const char *answerer(const RewardPart *part) { return starts_with(part->kind->name, "http") ? "server" : "program"; }

/* Under the lock. */
static void give_up(RewardPart *part, const char *fault) {
    eventfd_t one;
    part->given_up = memory_format("the %s %s", answerer(part), fault);
    for (RewardJob *job; (job = pop_job(part));) finish_job(part, job, fail_with(part->given_up));
    while (eventfd_read(part->arrived, &one) == 0) continue;
}

void reward_jobs_fail(RewardPart *part, RewardJob *jobs, const char *fault, bool final) {
    enum { ROUNDS = 3 };
    const RewardLimits *limits = reward_limits(part);
    int64_t most = ROUNDS * limits->attempts * limits->copies;
    pthread_mutex_lock(&part->rewards->lock);
    if (!part->given_up)
        log_warn(
            "%s: the %s %s (fault %d in a row; it is given up at %" PRId64 ")", part->name, answerer(part), fault, ++part->faults, most);
    if (!part->given_up && (final || part->faults >= most)) give_up(part, fault);
    for (RewardJob *job = jobs, *next; job; job = next) {
        next = job->next;
        job->attempts += !job->unread;
        job->unread = false;
        if (part->given_up) finish_job(part, job, fail_with(part->given_up));
        else if (job->attempts < limits->attempts) queue_job(part, job);
        else
            finish_job(part, job,
                (RewardAnswer){.failure = memory_format(
                                   "in each of %d attempts the %s failed; in the last one, it %s", job->attempts, answerer(part), fault)});
    }
    pthread_mutex_unlock(&part->rewards->lock);
}

/* -- Samples ------------------------------------------------------------------------------------------------------- */

/* Returns the answer of a record as a text; NULL: it has none. */
static char *answer_text(const json_t *record) {
    const json_t *answer = json_object_get(record, "answer");
    if (json_is_string(answer)) return memory_copy_string(json_string_value(answer));
    return json_is_number(answer) ? json_dumps(answer, JSON_ENCODE_ANY) : NULL;
}

static bool check_answer(const RewardPart *part, const json_t *record, Error *error) {
    SCOPED_FREE char *answer = part->kind->compares ? answer_text(record) : NULL;
    const char *wide = json_wide_number(json_object_get(record, "answer"));
    if (part->kind->compares && wide)
        return error_set(error, ERROR_DATA, "the number %.100s of \"answer\" is too large or not finite: write it as a text", wide);
    if (part->kind->compares && !answer)
        return error_set(error, ERROR_DATA, "the record has no \"answer\" that is a text or a number: add it");
    return true;
}

bool rewards_check_record(const RewardSet *rewards, const json_t *record, Error *error) {
    for (size_t i = 0; i < rewards->part_count; i++) {
        const RewardPart *part = &rewards->parts[i];
        bool good = check_answer(part, record, error) && (!part->kind->check || part->kind->check(part, record, error));
        if (!good) return error_context(error, "%s", part->name);
    }
    return true;
}

static RewardAnswer compute(const RewardPart *part, const RewardSample *sample) {
    Error error = {0};
    RewardAnswer answer = {0};
    SCOPED_FREE char *expected = part->kind->compares ? answer_text(sample->record) : NULL;
    bool good = check_answer(part, sample->record, &error) && part->kind->compute(part, sample, expected, &answer, &error);
    if (!good) reward_answer_free(&answer), answer = fail_with(error.message);
    return answer;
}

void rewards_submit(RewardSet *rewards, int64_t id, const RewardSample *sample) {
    RewardEntry *entry = memory_allocate(sizeof *entry);
    entry->result = (RewardResult){.id = id};
    entry->left = (int)rewards->part_count;
    entry->answers = memory_allocate(rewards->part_count * sizeof *entry->answers);
    if (rewards->asks) entry->request = reward_request_write(sample);
    for (size_t i = 0; i < rewards->part_count; i++)
        if (reward_part_computes(&rewards->parts[i])) entry->answers[i] = compute(&rewards->parts[i], sample), entry->left--;
    pthread_mutex_lock(&rewards->lock);
    *rewards->end = entry;
    rewards->end = &entry->next;
    for (size_t i = 0; i < rewards->part_count; i++) {
        RewardPart *part = &rewards->parts[i];
        if (reward_part_computes(part)) continue;
        RewardJob *job = memory_allocate(sizeof *job);
        job->entry = entry;
        if (part->given_up) finish_job(part, job, fail_with(part->given_up));
        else queue_job(part, job);
    }
    pthread_mutex_unlock(&rewards->lock);
}

/* Under the lock. Returns the place of the entry to be taken; NULL: it is not ready. */
static RewardEntry **find_ready(RewardSet *rewards) {
    RewardEntry **at = &rewards->first;
    while (*at && (*at)->left > 0 && rewards->limits.environment) at = &(*at)->next;
    return *at && (*at)->left == 0 ? at : NULL;
}

bool rewards_wait(RewardSet *rewards, double seconds) {
    double until = log_seconds() + seconds;
    pthread_mutex_lock(&rewards->lock);
    while (rewards->first && !find_ready(rewards) && thread_wait_until(&rewards->answered, &rewards->lock, until)) continue;
    bool ready = find_ready(rewards);
    pthread_mutex_unlock(&rewards->lock);
    return ready;
}

static RewardEntry *take_entry(RewardSet *rewards) {
    RewardEntry **at;
    pthread_mutex_lock(&rewards->lock);
    assert(rewards->first); /* a sample was submitted */
    while (!(at = find_ready(rewards))) pthread_cond_wait(&rewards->answered, &rewards->lock);
    RewardEntry *entry = *at;
    *at = entry->next;
    if (!*at) rewards->end = at;
    pthread_mutex_unlock(&rewards->lock);
    return entry;
}

/* Metrics get the name of their part, unless a program that is smelt has given it already. */
static void add_metrics(const char *part, json_t *metrics, json_t **sum) {
    const char *name;
    json_t *value;
    if (metrics && !*sum) *sum = json_object();
    json_object_foreach(metrics, name, value) {
        size_t length = strlen(part);
        bool named = starts_with(name, part) && name[length] == '.';
        SCOPED_FREE char *full = named ? memory_copy_string(name) : memory_format("%s.%s", part, name);
        json_object_set(*sum, full, value);
    }
}

/* The failure may quote a program, in any bytes. */
static char *describe_failure(const RewardPart *part, const char *failure) {
    SCOPED_FREE char *text = memory_format("%s: %s", part->name, failure);
    size_t size;
    return utf8_replace(text, strlen(text), &size);
}

/* Adds the parts in the order of the text, so that the sum has the same bits in each run. */
static void add_parts(const RewardSet *rewards, RewardEntry *entry) {
    RewardResult *result = &entry->result;
    result->values = memory_allocate(rewards->part_count * sizeof *result->values);
    for (size_t i = 0; i < rewards->part_count && !result->failure; i++) {
        RewardAnswer *answer = &entry->answers[i];
        result->values[i] = answer->value;
        result->total += rewards->parts[i].weight * answer->value;
        add_metrics(rewards->parts[i].name, answer->metrics, &result->metrics);
        result->append = json_incref(answer->append);
        if (!result->note && answer->note) result->note = answer->note, answer->note = NULL;
        if (answer->failure) result->failure = describe_failure(&rewards->parts[i], answer->failure);
    }
    if (result->total - result->total != 0 && !result->failure)
        result->failure = memory_copy_string("the sum of the rewards is not finite: lower their weights");
    if (result->failure) result->total = 0;
}

bool rewards_exclude(const RewardSet *rewards, int64_t id, const char *failure, Error *error) {
    if (!rewards->limits.skip)
        return error_set(error, ERROR_DATA,
            "sample %" PRId64 " has no reward: %s: fix the reward, or exclude such samples with rl.reward_errors=skip", id, failure);
    log_warn("sample %" PRId64 " is excluded, because it has no reward: %s", id, failure);
    return true;
}

bool rewards_take(RewardSet *rewards, RewardResult *result, Error *error) {
    RewardEntry *entry = take_entry(rewards);
    bool good = true;
    add_parts(rewards, entry);
    for (size_t i = 0; i < rewards->part_count && good; i++) {
        const RewardPart *part = &rewards->parts[i];
        pthread_mutex_lock(&rewards->lock);
        if (part->given_up)
            good = error_set(error, ERROR_DATA, "%s: %s; it is given up: fix it and start again", part->name, part->given_up);
        pthread_mutex_unlock(&rewards->lock);
    }
    const char *failure = entry->result.failure;
    if (good && failure) good = rewards_exclude(rewards, entry->result.id, failure, error);
    if (good) *result = entry->result, entry->result = (RewardResult){0};
    free_entry(entry, (int)rewards->part_count);
    return good;
}

/* A worker whose rewards a server computes: it posts the JSON of a sample and reads the answer from the
 * body of the reply. Owns its connection. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/array.h"
#include "base/curl.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "rl/reward_internal.h"

enum { REPLY_BYTES = 1 << 20 };

typedef struct RewardReply {
    RewardPart *part;
    char *text;
    size_t size, capacity;
} RewardReply;

bool reward_http_open(RewardPart *part, Error *error) {
    part->curl = memory_allocate(sizeof *part->curl);
    return curl_open(part->curl, "a reward of http", error);
}

static size_t take_reply(char *data, size_t size, size_t items, void *context) {
    RewardReply *reply = context;
    size_t bytes = size * items;
    if (reply->size + bytes > REPLY_BYTES) return 0;
    array_reserve(reply->text, reply->capacity, reply->size + bytes);
    memcpy(reply->text + reply->size, data, bytes);
    reply->size += bytes;
    return bytes;
}

static bool is_stopped(const RewardPart *part, int milliseconds) {
    struct pollfd file = {part->stop, POLLIN, 0};
    return poll(&file, 1, milliseconds) > 0;
}

/* libcurl calls this several times a second; a value other than 0 ends the request. */
static int watch_request(void *context, curl_off_t down, curl_off_t downloaded, curl_off_t up, curl_off_t uploaded) {
    (void)down, (void)downloaded, (void)up, (void)uploaded;
    return is_stopped(((RewardReply *)context)->part, 0);
}

static CURLcode post_request(CURL *handle, struct curl_slist *headers, const char *body, RewardReply *reply, long *status) {
    const CurlApi *curl = reply->part->curl;
    CURLcode (*set)(CURL *, CURLoption, ...) = curl->easy_setopt;
    curl->easy_reset(handle);
    set(handle, CURLOPT_URL, reply->part->argument);
    set(handle, CURLOPT_NOSIGNAL, 1L);
    set(handle, CURLOPT_TIMEOUT_MS, (long)(reward_limits(reply->part)->seconds * 1e3));
    set(handle, CURLOPT_USERAGENT, "smelt");
    set(handle, CURLOPT_HTTPHEADER, headers);
    set(handle, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
    set(handle, CURLOPT_POSTFIELDS, body);
    set(handle, CURLOPT_WRITEFUNCTION, take_reply);
    set(handle, CURLOPT_WRITEDATA, reply);
    set(handle, CURLOPT_NOPROGRESS, 0L);
    set(handle, CURLOPT_XFERINFOFUNCTION, watch_request);
    set(handle, CURLOPT_XFERINFODATA, reply);
    CURLcode code = curl->easy_perform(handle);
    curl->easy_getinfo(handle, CURLINFO_RESPONSE_CODE, status);
    return code;
}

/* Returns whether the server answered; otherwise the error says why not, for a sentence that begins with
 * the server. */
static bool ask_server(
    RewardPart *part, CURL *handle, struct curl_slist *headers, const RewardJob *job, RewardAnswer *answer, Error *error) {
    RewardReply reply = {.part = part};
    long status = 0;
    SCOPED_FREE char *body = memory_format("{\"id\": %lld, %s", (long long)job->number, job->entry->request + 1);
    CURLcode code = post_request(handle, headers, body, &reply, &status);
    SCOPED_FREE char *text = reply.text;
    if (code != CURLE_OK) return error_set(error, ERROR_DATA, "gave no answer: %s", part->curl->easy_strerror(code));
    if (status / 100 != 2) return error_set(error, ERROR_DATA, "answered with status %ld: the answer to a sample has status 200", status);
    if (!reward_answer_read(text ? text : "", reply.size, reward_limits(part)->environment, answer, error)) return false;
    if (answer->id < 0 || answer->id == job->number) return true;
    error_set(error, ERROR_DATA, "answered id %lld to the request %lld", (long long)answer->id, (long long)job->number);
    reward_answer_free(answer);
    return false;
}

void *reward_http_work(void *context) {
    RewardPart *part = ((RewardWorker *)context)->part;
    CURL *handle = part->curl->easy_init();
    struct curl_slist *headers = part->curl->slist_append(NULL, "Content-Type: application/json");
    if (!handle || !headers) memory_refused(0);
    int pause = 0;
    for (bool stop = false; !stop;) {
        struct pollfd files[] = {{part->stop, POLLIN, 0}, {part->arrived, POLLIN, 0}};
        poll(files, 2, -1);
        RewardJob *job = files[0].revents ? NULL : reward_job_take(part);
        RewardAnswer answer;
        Error error;
        stop = files[0].revents;
        if (!job) continue;
        if (ask_server(part, handle, headers, job, &answer, &error)) {
            reward_job_finish(part, job, answer);
            pause = 0;
            continue;
        }
        stop = is_stopped(part, 0);
        if (stop) {
            free(job);
            continue;
        }
        pause = pause ? pause * 2 : 250; /* milliseconds, before this worker asks again */
        reward_jobs_fail(part, job, error.message, false);
        stop = is_stopped(part, pause < 8000 ? pause : 8000);
    }
    part->curl->slist_free_all(headers);
    part->curl->easy_cleanup(handle);
    return NULL;
}

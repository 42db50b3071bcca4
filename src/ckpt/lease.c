/* Leases of stores. A Lease owns its store and the thread that renews it. Called when a run starts and ends, and by each
 * save of rank 0. */
#include "ckpt/lease.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "ckpt/store_internal.h"

enum { RENEW_SECONDS = 30, EXPIRED_SECONDS = 90, SETTLE_SECONDS = 1, LEASE_LIMIT = 16 << 10, HOST_BYTES = 256 };
static const char object[] = "lease.json";

struct Lease {
    Store *store;
    char *number, *folder;
    char holder[LEASE_HOLDER_BYTES];
    FileId place;           /* of the store's folder, which may be moved away; zero of a bucket */
    _Atomic time_t written; /* when the lease was last this process's for sure */
    pthread_mutex_t lock;   /* of `ended` and of the object */
    pthread_cond_t changed;
    pthread_t thread;
    bool renewed, ended;
};

/* -- Who holds a lease --------------------------------------------------------------------------------------------- */

/* When a process started, in ticks since the machine did: field 22 of /proc/PID/stat, whose second field may have
 * blanks; -1 when there is no such process. */
static long long process_start(int pid) {
    char path[64], text[1024];
    long long start = -1;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (file_read_start(path, text, sizeof text) <= 0) return -1;
    const char *end = strrchr(text, ')');
    if (end) sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld", &start);
    return start;
}

/* The machine and the namespace of its process numbers: containers share a machine's name, not its numbers. */
static void name_host(char host[HOST_BYTES]) {
    char name[HOST_BYTES / 2] = "", space[HOST_BYTES / 4] = "";
    gethostname(name, sizeof name - 1);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = '\0';
    snprintf(host, HOST_BYTES, "%s/%s", name, space);
}

static void name_holder(char holder[LEASE_HOLDER_BYTES]) {
    char host[HOST_BYTES];
    name_host(host);
    snprintf(holder, LEASE_HOLDER_BYTES, "%s %d %lld", host, (int)getpid(), process_start(getpid()));
}

/* False only for a process of this machine that has ended. */
static bool may_live(const char *holder) {
    char host[HOST_BYTES], theirs[HOST_BYTES];
    int pid;
    long long start;
    name_host(host);
    if (sscanf(holder, "%255s %d %lld", theirs, &pid, &start) != 3 || strcmp(host, theirs)) return true;
    return process_start(pid) == start;
}

/* -- The object ---------------------------------------------------------------------------------------------------- */

/* NULL when there is none, or the store does not answer; without fields when it is damaged. The caller owns the
 * reference. */
static json_t *read_lease(Store *store) {
    Error absent = {0};
    int64_t length;
    SCOPED_FREE char *text = store_get(store, object, LEASE_LIMIT, &length, &absent);
    json_t *lease = text ? json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, NULL) : NULL;
    return lease || !text ? lease : json_object();
}

static const char *field(const json_t *lease, const char *name) {
    const char *text = json_string_value(json_object_get(lease, name));
    return text ? text : "";
}

static char *lease_text(const Lease *lease, Error *error) {
    json_auto_t *content = json_pack(
        "{s:s, s:s, s:s, s:I}", "run", lease->number, "folder", lease->folder, "holder", lease->holder, "renewed", (json_int_t)time(NULL));
    char *text = content ? json_dumps(content, JSON_INDENT(1)) : NULL;
    if (!text) error_set(error, ERROR_USAGE, "the path %s is not UTF-8, which a lease demands: give another run folder", lease->folder);
    return text;
}

static bool write_lease(Lease *lease, Error *error) {
    time_t now = time(NULL);
    SCOPED_FREE char *text = lease_text(lease, error);
    bool good = text && store_put(lease->store, object, &(StoreSpan){.data = text, .bytes = (int64_t)strlen(text)}, 1, error);
    if (good) lease->written = now;
    return good;
}

/* True also when another process has created it: then it is not ours. */
static bool create_lease(Lease *lease, Error *error) {
    time_t now = time(NULL);
    bool exists = false;
    SCOPED_FREE char *text = lease_text(lease, error);
    bool good = text && store_create(lease->store, object, &(StoreSpan){.data = text, .bytes = (int64_t)strlen(text)}, &exists, error);
    if (good) lease->written = now;
    return good || exists;
}

static FileId place_of(const Lease *lease) { return file_id(store_path(lease->store, "").text); }

/* Whether the lease that was found is this process's. */
static bool is_ours(const Lease *lease, const json_t *found, Error *error) {
    return !strcmp(field(found, "holder"), lease->holder) ||
           error_set(error, ERROR_USAGE,
               "%s is of run %s in %s (host, process and its start: %s) now: two runs must not save there; give another checkpoint.store",
               store_path(lease->store, object).text, field(found, "run"), field(found, "folder"), field(found, "holder"));
}

/* Of a lease that is not there, although its folder is. Nobody else may have had the store since it was written unless
 * that was too long ago. */
static bool restore_lease(Lease *lease, Error *error) {
    StorePath path = store_path(lease->store, object);
    if (!lease->written) /* it could not be created, since something has its name */
        return error_set(
            error, ERROR_CHECKPOINT, "%s is there and cannot be read as a file: remove it, or give another checkpoint.store", path.text);
    if (time(NULL) - lease->written > EXPIRED_SECONDS)
        return error_set(error, ERROR_USAGE, "%s is gone and was not renewed for %lld s: another run may have had the store meanwhile",
            path.text, (long long)(time(NULL) - lease->written));
    if (!create_lease(lease, error)) return false;
    json_auto_t *found = read_lease(lease->store);
    return is_ours(lease, found, error);
}

bool lease_check(Lease *lease, Error *error) {
    json_auto_t *found = read_lease(lease->store);
    if (found) return is_ours(lease, found, error);
    if (file_id_same(place_of(lease), lease->place)) return restore_lease(lease, error);
    return error_set(error, ERROR_CHECKPOINT,
        "%s, which this run wrote, is gone: its folder was moved, removed or cannot be read, so nothing is saved there",
        store_path(lease->store, object).text);
}

static void *renew(void *context) {
    Lease *lease = context;
    pthread_mutex_lock(&lease->lock);
    while (!lease->ended) {
        Error ignored = {0}; /* the next save finds out what is wrong */
        if (!thread_wait_until(&lease->changed, &lease->lock, log_seconds() + RENEW_SECONDS) && lease_check(lease, &ignored))
            write_lease(lease, &ignored);
    }
    pthread_mutex_unlock(&lease->lock);
    return NULL;
}

/* -- Taking and giving back ---------------------------------------------------------------------------------------- */

static bool is_free(const Lease *lease, const json_t *found, Error *error) {
    const char *holder = field(found, "holder");
    double age = (double)time(NULL) - (double)json_integer_value(json_object_get(found, "renewed"));
    if (!found || fabs(age) > EXPIRED_SECONDS || !may_live(holder)) return true;
    return error_set(error, ERROR_USAGE,
        "%s is used by run %s in %s (host, process and its start: %s), which was alive %.0f s ago: wait for it, stop it, or give another "
        "checkpoint.store",
        store_path(lease->store, "").text, field(found, "run"), field(found, "folder"), holder, age > 0 ? age : 0);
}

static bool is_own_run(const Lease *lease, const json_t *found) {
    return !strcmp(field(found, "run"), lease->number) && !strcmp(field(found, "folder"), lease->folder);
}

/* In place of a lease that has ended. In a folder, who holds the lock of its file removes it, after another look: it
 * may be a new one by then. In a bucket the one whose lease is there a moment later has it. */
static bool replace_lease(Lease *lease, const json_t *ended, Error *error) {
    int lock = -1;
    bool folder = store_renames(lease->store), alone = !ended || !folder || file_lock(store_path(lease->store, object).text, &lock);
    json_auto_t *found = ended ? read_lease(lease->store) : NULL;
    bool good = alone ? is_free(lease, found, error)
                      : error_set(error, ERROR_USAGE, "%s is being taken over by another run: give another checkpoint.store",
                            store_path(lease->store, object).text);
    good = good && (!found || store_remove(lease->store, object, error)) && create_lease(lease, error);
    if (lock >= 0) close(lock);
    if (good && !folder) thread_sleep(SETTLE_SECONDS);
    return good;
}

static bool take(Lease *lease, Error *error) {
    if (!store_make(lease->store, error)) return false;
    json_auto_t *found = read_lease(lease->store);
    if (is_own_run(lease, found) ? !write_lease(lease, error) : !is_free(lease, found, error) || !replace_lease(lease, found, error))
        return false;
    lease->place = place_of(lease);
    return lease_check(lease, error);
}

Lease *lease_take(const char *where, const char *number, const char *folder, Error *error) {
    Store *store = store_open(where, error);
    if (!store) return NULL;
    char *real = realpath(folder, NULL);
    Lease *lease = memory_allocate(sizeof *lease);
    *lease = (Lease){.store = store, .number = memory_copy_string(number), .folder = real ? real : memory_copy_string(folder)};
    name_holder(lease->holder);
    pthread_mutex_init(&lease->lock, NULL);
    pthread_cond_init(&lease->changed, NULL);
    if (take(lease, error)) {
        lease->renewed = thread_start(&lease->thread, renew, lease) == 0;
        if (lease->renewed) return lease;
        error_set(
            error, ERROR_INTERNAL, "the system refused a thread for the lease: look at the limits of this user's processes (ulimit -u)");
    }
    lease_release(lease);
    return NULL;
}

const char *lease_holder(const Lease *lease) { return lease->holder; }

void lease_release(Lease *lease) {
    Error ignored = {0};
    if (!lease) return;
    pthread_mutex_lock(&lease->lock);
    lease->ended = true;
    pthread_cond_signal(&lease->changed);
    pthread_mutex_unlock(&lease->lock);
    if (lease->renewed) pthread_join(lease->thread, NULL);
    if (lease_check(lease, &ignored)) store_remove(lease->store, object, &ignored);
    pthread_cond_destroy(&lease->changed);
    pthread_mutex_destroy(&lease->lock);
    store_close(lease->store);
    free(lease->number);
    free(lease->folder);
    free(lease);
}

bool lease_await(const char *where, const char *holder, double seconds, Error *error) {
    SCOPED(store_release) Store *store = store_open(where, error);
    double until = log_seconds() + seconds;
    if (!store) return false;
    for (;; thread_sleep(0.1)) {
        json_auto_t *found = read_lease(store);
        if (!strcmp(field(found, "holder"), holder)) return true;
        if (log_seconds() > until) break;
    }
    return error_set(error, ERROR_USAGE,
        "%s, which rank 0 (host, process and its start: %s) has written, is not seen here after %.0f s: the run folder or checkpoint.store "
        "must be one place for all ranks, such as a folder on a shared file system or a bucket",
        store_path(store, object).text, holder, seconds);
}

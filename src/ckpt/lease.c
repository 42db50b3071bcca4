/* Leases of stores. A Lease owns its store and the thread that renews it. Called when a run starts and ends, and by each
 * save of rank 0. */
#include "ckpt/lease.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
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
#include "ckpt/ckpt_internal.h"

enum { RENEW_SECONDS = 30, MISSED_BEATS = 3, SETTLE_SECONDS = 1, LEASE_LIMIT = 16 << 10, HOST_BYTES = 256 };
static const char object[] = "lease.json";

struct Lease {
    Store *store;
    char *number, *folder;
    char holder[LEASE_HOLDER_BYTES];
    double taken;           /* Unix seconds */
    FileId place;           /* of the store's folder, which may be moved away; zero for a bucket */
    _Atomic double written; /* the latest log_seconds() at which the lease was certainly this process's; negative: never */
    _Atomic int64_t saved;  /* the newest step in the store, as far as this process knows; -1: none */
    _Atomic int64_t beats;
    pthread_mutex_t lock; /* protects `ended` and the object */
    pthread_cond_t changed;
    pthread_t thread;
    bool renewed, ended;
};

/* -- Who holds a lease --------------------------------------------------------------------------------------------- */

/* Returns when a process started, in ticks since boot: field 22 of /proc/PID/stat, whose second
 * field may contain blanks; -1 if there is no such process. *ended (may be NULL): the process has
 * exited, and its parent has not yet waited for it (state Z; X while it vanishes). While other
 * threads are alive, it keeps files open and has not ended. */
static long long process_start(int pid, bool *ended) {
    char path[64], text[1024], state = '?';
    long long start = -1, threads = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (file_read_start(path, text, sizeof text) <= 0) return -1;
    const char *end = strrchr(text, ')');
    if (end) sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %lld %*d %lld", &state, &threads, &start);
    if (ended) *ended = (state == 'Z' || state == 'X') && threads <= 1;
    return start;
}

/* Writes the machine's name and its PID namespace: containers share a machine's name but not its
 * process numbers. */
static void name_host(char host[HOST_BYTES]) {
    char name[HOST_BYTES / 2] = "", space[HOST_BYTES / 4] = "";
    gethostname(name, sizeof name - 1);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = '\0';
    snprintf(host, HOST_BYTES, "%s/%s", name, space);
}

static void name_holder(char holder[LEASE_HOLDER_BYTES]) {
    char host[HOST_BYTES];
    name_host(host);
    snprintf(holder, LEASE_HOLDER_BYTES, "%s %d %lld", host, (int)getpid(), process_start(getpid(), NULL));
}

/* Only the state of processes on this machine is known. */
static LeaseLife life_of(const char *holder) {
    char host[HOST_BYTES], theirs[HOST_BYTES];
    int pid;
    long long start;
    name_host(host);
    if (sscanf(holder, "%255s %d %lld", theirs, &pid, &start) != 3 || strcmp(host, theirs) || pid <= 0) return LEASE_UNKNOWN;
    if (kill(pid, 0) != 0 && errno == ESRCH) return LEASE_ENDED;
    bool ended = false;
    long long now = process_start(pid, &ended);
    if (now < 0 || start < 0) return LEASE_UNKNOWN;
    return now == start && !ended ? LEASE_HELD : LEASE_ENDED;
}

/* -- The object ---------------------------------------------------------------------------------------------------- */

/* Returns the lease, a reference that the caller owns. NULL on failure; the finding says whether
 * the lease is absent, damaged, or in an unknown state. */
static json_t *read_lease(Store *store, Error *error) {
    int64_t length;
    SCOPED_FREE char *text = store_get(store, object, LEASE_LIMIT, &length, error);
    if (!text) return NULL;
    json_t *lease = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(lease)) return lease;
    json_decref(lease);
    error_set(error, ERROR_CHECKPOINT, "%s is damaged: it is not a JSON object", store_path(store, object).text);
    error_find(error, FINDING_DAMAGED);
    return NULL;
}

/* Retries read_lease while the failure may pass. */
static json_t *read_lease_patiently(Store *store, Error *error) {
    json_t *lease;
    for (int attempts = 0; !(lease = read_lease(store, error)) && thread_try_again(error, &attempts);) {}
    return lease;
}

static const char *field(const json_t *lease, const char *name) {
    const char *text = json_string_value(json_object_get(lease, name));
    return text ? text : "";
}

static char *lease_text(Lease *lease, Error *error) {
    json_auto_t *content =
        json_pack("{s:s, s:s, s:s, s:f, s:I, s:i, s:I}", "run", lease->number, "folder", lease->folder, "holder", lease->holder, "taken",
            lease->taken, "renewed", (json_int_t)time(NULL), "every", RENEW_SECONDS, "beat", (json_int_t)lease->beats++);
    char *text = content ? json_dumps(content, JSON_INDENT(1)) : NULL;
    if (!text) error_set(error, ERROR_USAGE, "the path %s is not UTF-8, and a lease needs UTF-8: choose another run folder", lease->folder);
    return text;
}

static bool write_lease(Lease *lease, Error *error) {
    double now = log_seconds();
    SCOPED_FREE char *text = lease_text(lease, error);
    bool good = text && store_put(lease->store, object, &(StoreSpan){.data = text, .bytes = (int64_t)strlen(text)}, 1, error);
    if (good) lease->written = now;
    return good;
}

/* *exists: another process has created the lease. */
static bool create_lease(Lease *lease, bool *exists, Error *error) {
    double now = log_seconds();
    SCOPED_FREE char *text = lease_text(lease, error);
    *exists = false;
    bool good = text && store_create(lease->store, object, &(StoreSpan){.data = text, .bytes = (int64_t)strlen(text)}, exists, error);
    if (good) lease->written = now;
    return good;
}

static FileId lease_place(const Lease *lease) { return file_id(store_path(lease->store, "").text); }

/* Returns whether the lease that was found is this process's. */
static bool lease_is_ours(const Lease *lease, const json_t *found, Error *error) {
    return !strcmp(field(found, "holder"), lease->holder) ||
           error_set(error, ERROR_USAGE,
               "%s now belongs to run %s in %s (host, process, start: %s). Two runs cannot save in one store: set another checkpoint.store",
               store_path(lease->store, object).text, field(found, "run"), field(found, "folder"), field(found, "holder")) ||
           error_find(error, FINDING_FOREIGN);
}

static int64_t newest_listed_step(const FolderListing *listing) { return listing->count ? listing->steps[0] : -1; }

/* Checks that no other run saved into the store while the lease was gone for `seconds`. */
static bool is_untouched(const Lease *lease, double seconds, Error *error) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    if (seconds <= MISSED_BEATS * RENEW_SECONDS) return true;
    if (!folder_list(lease->store, &listing, error)) return false;
    return newest_listed_step(&listing) <= lease->saved ||
           error_set(error, ERROR_USAGE,
               "%s was missing for %.0f s, and the store now holds step %lld, which this process did not save: another run used the store. "
               "Set another checkpoint.store",
               store_path(lease->store, object).text, seconds, (long long)newest_listed_step(&listing)) ||
           error_find(error, FINDING_FOREIGN);
}

/* Writes the lease again after it was missing from an existing folder. Only the process that
 * creates it knows that no other process has it. */
static bool restore_lease(Lease *lease, Error *error) {
    double gone = log_seconds() - lease->written;
    bool exists, created = create_lease(lease, &exists, error);
    if (!created && !exists) return false;
    json_auto_t *found = read_lease(lease->store, error);
    if (found) return lease_is_ours(lease, found, error) && (!created || is_untouched(lease, gone, error));
    StorePath path = store_path(lease->store, object);
    error_set(error, ERROR_CHECKPOINT, "%s exists but is not readable as a file: repair or remove it, or set another checkpoint.store",
        path.text);
    return error_find(error, FINDING_UNREADABLE);
}

bool lease_check(Lease *lease, Error *error) {
    json_auto_t *found = read_lease(lease->store, error);
    if (found) return lease_is_ours(lease, found, error);
    if (error->finding == FINDING_DAMAGED) return write_lease(lease, error);
    if (error->finding != FINDING_ABSENT) return error_context(error, "nothing is saved without the lease of the store");
    if (file_id_same(lease_place(lease), lease->place)) return restore_lease(lease, error);
    if (file_kind(store_path(lease->store, "").text, NULL) == FILE_UNREADABLE)
        return file_fail(error, "look for", store_path(lease->store, "").text);
    return error_set(error, ERROR_CHECKPOINT,
               "%s, written by this run, is gone: its folder was moved or removed, so nothing is saved there. Move the folder back",
               store_path(lease->store, object).text) ||
           error_find(error, FINDING_ABSENT);
}

void lease_note_saved(Lease *lease, int64_t step) {
    if (step > lease->saved) lease->saved = step;
}

/* Renews the lease until the holder ends. A failed renewal is retried soon, so that no other
 * process considers the lease ended. */
static void *renew_lease(void *context) {
    Lease *lease = context;
    double pause = RENEW_SECONDS, failing = 1;
    pthread_mutex_lock(&lease->lock);
    while (!lease->ended) {
        Error ignored = {0}; /* the next save reports the reason */
        if (thread_wait_until(&lease->changed, &lease->lock, log_seconds() + pause)) continue;
        bool renewed = lease_check(lease, &ignored) && write_lease(lease, &ignored);
        failing = renewed ? 1 : fmin(2 * failing, RENEW_SECONDS);
        pause = renewed ? RENEW_SECONDS : failing;
    }
    pthread_mutex_unlock(&lease->lock);
    return NULL;
}

/* -- Taking and giving back ---------------------------------------------------------------------------------------- */

static bool names_own_run(const Lease *lease, const json_t *found) {
    return !strcmp(field(found, "run"), lease->number) && !strcmp(field(found, "folder"), lease->folder);
}

static bool refuse_living(const Lease *lease, const json_t *found, const char *sign, Error *error) {
    bool same = names_own_run(lease, found);
    return error_set(error, ERROR_USAGE, "%s is in use by %s %s in %s (host, process, start: %s), which %s: wait for it%s",
               store_path(lease->store, "").text, same ? "another process of the same run" : "run", field(found, "run"),
               field(found, "folder"), field(found, "holder"), sign,
               same ? " or stop it, then start the run again" : ", stop it, or set another checkpoint.store") ||
           error_find(error, FINDING_FOREIGN);
}

/* Returns the renewal interval that the holder states. */
static double interval_of(const json_t *found) {
    const json_t *every = json_object_get(found, "every");
    double seconds = json_is_number(every) ? json_number_value(every) : RENEW_SECONDS;
    return seconds > 0 && seconds < RENEW_SECONDS ? seconds : RENEW_SECONDS;
}

/* Returns true if an unknown holder has missed three beats: its lease did not change in this time
 * by this process's clock. Clocks of other machines are never used. */
static bool has_fallen_silent(const Lease *lease, const json_t *found, Error *error) {
    const double every = interval_of(found), until = log_seconds() + MISSED_BEATS * every;
    Error failure = {0};
    bool seen = true;
    if (MISSED_BEATS * every >= 1)
        log_info("%s belongs to run %s in %s (host, process, start: %s): waiting up to %.0f s for that run to renew it",
            store_path(lease->store, object).text, field(found, "run"), field(found, "folder"), field(found, "holder"),
            MISSED_BEATS * every);
    while (log_seconds() < until) {
        thread_sleep(every / 20);
        json_auto_t *now = read_lease(lease->store, &failure);
        seen = now || failure.finding != FINDING_UNREADABLE;
        if (!now && seen) return true; /* the lease was released */
        if (now && !json_equal(now, found)) return refuse_living(lease, now, "just renewed its lease", error);
    }
    if (!seen) *error = failure;
    return seen;
}

static bool is_free(const Lease *lease, const json_t *found, Error *error) {
    LeaseLife life = found ? life_of(field(found, "holder")) : LEASE_ENDED;
    if (life == LEASE_HELD) return refuse_living(lease, found, "lives", error);
    return life == LEASE_ENDED || has_fallen_silent(lease, found, error);
}

/* Returns whether the lease is the run's own, from the folder whose lock the caller holds. */
static bool is_own_run(const Lease *lease, const json_t *found) {
    return names_own_run(lease, found) && life_of(field(found, "holder")) != LEASE_HELD;
}

/* Checks that the lease is still the judged one, or gone. */
static bool is_unchanged(const Lease *lease, const json_t *judged, bool *there, Error *error) {
    json_auto_t *now = read_lease_patiently(lease->store, error);
    *there = now || error->finding == FINDING_DAMAGED;
    if (!now && error->finding == FINDING_UNREADABLE) return false;
    return !now || json_equal(now, judged) || refuse_living(lease, now, "just took it over", error);
}

/* Creates this process's lease to replace a lease that has ended; NULL: there is none. In a folder,
 * the process that holds the file's lock removes the old lease after checking again that it is not
 * a new one. In a bucket, the process whose lease is there a moment later wins. */
static bool replace_lease(Lease *lease, const json_t *ended, Error *error) {
    int lock = -1;
    bool folder = store_renames(lease->store), there, exists = false;
    if (folder && !file_lock(store_path(lease->store, object).text, &lock))
        return error_set(error, ERROR_USAGE, "%s is being taken over by another run: set another checkpoint.store",
            store_path(lease->store, object).text);
    bool good = is_unchanged(lease, ended, &there, error) && (!there || store_remove(lease->store, object, error)) &&
                (create_lease(lease, &exists, error) || exists); /* the read that follows decides the owner */
    if (lock >= 0) close(lock);
    if (good && !folder) thread_sleep(SETTLE_SECONDS);
    return good;
}

static bool take_lease(Lease *lease, Error *error) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    if (!store_make(lease->store, error)) return false;
    json_auto_t *found = read_lease_patiently(lease->store, error);
    if (!found && error->finding == FINDING_UNREADABLE)
        return error_context(error, "the lease of the store is not readable; repair the named file, or set another checkpoint.store");
    if (is_own_run(lease, found) ? !write_lease(lease, error) : !is_free(lease, found, error) || !replace_lease(lease, found, error))
        return false;
    lease->place = lease_place(lease);
    for (int attempts = 0; !lease_check(lease, error);)
        if (!thread_try_again(error, &attempts)) return false;
    for (int attempts = 0; !folder_list(lease->store, &listing, error);)
        if (!thread_try_again(error, &attempts)) return false;
    lease->saved = newest_listed_step(&listing);
    return true;
}

Lease *lease_take(const char *where, const char *number, const char *folder, Error *error) {
    Store *store = store_open(where, error);
    if (!store) return NULL;
    char *real = realpath(folder, NULL);
    Lease *lease = memory_allocate(sizeof *lease);
    *lease = (Lease){.store = store,
        .number = memory_copy_string(number),
        .folder = real ? real : memory_copy_string(folder),
        .taken = log_unix_seconds(),
        .written = -1,
        .saved = -1};
    name_holder(lease->holder);
    pthread_mutex_init(&lease->lock, NULL);
    pthread_cond_init(&lease->changed, NULL);
    if (take_lease(lease, error)) {
        lease->renewed = thread_start(&lease->thread, renew_lease, lease) == 0;
        if (lease->renewed) return lease;
        error_set(error, ERROR_INTERNAL, "cannot start a thread for the lease: raise the limit on processes (ulimit -u)");
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
    Error failure = {0};
    if (!store) return false;
    for (;; thread_sleep(0.1)) {
        json_auto_t *found = read_lease(store, &failure);
        if (found) failure = (Error){0};
        if (!strcmp(field(found, "holder"), holder)) return true;
        if (log_seconds() > until) break;
    }
    if (failure.code && failure.finding == FINDING_UNREADABLE) {
        *error = failure;
        return error_context(error, "this rank cannot read the lease of rank 0");
    }
    return error_set(error, ERROR_USAGE,
        "%s, written by rank 0 (host, process, start: %s), is not visible to this rank after %.0f s. All ranks must share the run folder "
        "or checkpoint.store: use a folder on a shared file system, or a bucket",
        store_path(store, object).text, holder, seconds);
}

static double number_in(const json_t *lease, const char *name) {
    const json_t *value = json_object_get(lease, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

LeaseSign lease_look(const char *where, const char *folder) {
    Error failure = {0};
    if (file_scheme(where)) return (LeaseSign){LEASE_UNKNOWN, NAN, NAN};
    SCOPED(store_release) Store *store = store_open(where, &failure);
    json_auto_t *found = store ? read_lease(store, &failure) : NULL;
    if (!found) return (LeaseSign){failure.finding == FINDING_ABSENT ? LEASE_ABSENT : LEASE_UNKNOWN, NAN, NAN};
    SCOPED_FREE char *real = realpath(folder, NULL);
    bool other = !file_same(where, folder) && real && strcmp(field(found, "folder"), real) != 0;
    if (other) return (LeaseSign){LEASE_ABSENT, NAN, NAN};
    return (LeaseSign){life_of(field(found, "holder")), number_in(found, "taken"), number_in(found, "renewed")};
}

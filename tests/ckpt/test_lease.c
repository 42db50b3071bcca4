/* Leases of stores: who gets one, and what becomes of it while it is held. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "base/file.h"
#include "ckpt/lease.h"
#include "support/files.h"
#include "support/mentions.h"
#include "support/process.h"

/* A lease of another machine's process, whose clock is decades behind, without its interval and its end. */
#define ELSEWHERE "{\"run\": \"other\", \"folder\": \"there\", \"holder\": \"elsewhere 1 1\", \"renewed\": 1"

/* -- Several processes ----------------------------------------------------------------------------------------------- */

enum { CONTENDERS = 4 };

/* A process that waits for the end of `start`, takes the lease of the folder "store" as a run of its own, writes whether
 * it has got it, and holds it until `start` is written to. */
static pid_t contend(int number, const int start[2], const int done[2], const int result[2]) {
    pid_t id = fork();
    assert_true(id >= 0);
    if (id > 0) return id;
    char run[2] = {(char)('a' + number), 0}, byte;
    Error error = {0};
    close(start[1]);
    close(done[1]);
    if (read(start[0], &byte, 1) != 0) _exit(1);
    Lease *lease = lease_take("store", run, run, &error);
    byte = lease ? 1 : error.code == ERROR_USAGE ? 0 : 2;
    if (write(result[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 0) _exit(1);
    lease_release(lease);
    _exit(0);
}

/* How many of the processes that take the lease at once get it; for the others a living run has it. */
static int winners(void) {
    int start[2], done[2], result[2], count = 0;
    pid_t ids[CONTENDERS];
    assert_true(pipe(start) == 0 && pipe(done) == 0 && pipe(result) == 0);
    for (int i = 0; i < CONTENDERS; i++) ids[i] = contend(i, start, done, result);
    close(start[0]);
    close(start[1]);
    for (int i = 0; i < CONTENDERS; i++) {
        char won;
        assert_int_equal(read(result[0], &won, 1), 1);
        assert_in_range(won, 0, 1);
        count += won;
    }
    close(done[0]);
    close(done[1]);
    close(result[0]);
    close(result[1]);
    for (int i = 0; i < CONTENDERS; i++) assert_int_equal(waitpid(ids[i], NULL, 0), ids[i]);
    return count;
}

static void one_of_the_runs_that_start_at_once_gets_the_lease(void **state) {
    (void)state;
    enum { ROUNDS = 100 };
    for (int i = 0; i < ROUNDS; i++) {
        assert_int_equal(winners(), 1);
        assert_true(access("store/lease.json", F_OK) != 0);
    }
}

static void one_of_them_takes_over_a_lease_that_has_ended(void **state) {
    (void)state;
    enum { ROUNDS = 50 };
    assert_int_equal(mkdir("store", 0777), 0);
    for (int i = 0; i < ROUNDS; i++) {
        write_text("store/lease.json", ELSEWHERE ", \"every\": 0.02}");
        assert_int_equal(winners(), 1);
    }
}

/* A process that has the lease of "store" for the run "run" in this folder, and waits to be killed. */
static pid_t hold(void) {
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t id = fork();
    assert_true(id >= 0);
    if (id == 0) {
        Error error = {0};
        close(ready[0]);
        if (!lease_take("store", "run", ".", &error) || write(ready[1], "y", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return id;
}

/* The process was killed, and its parent has not waited for it. */
static void a_process_that_nobody_has_waited_for_holds_no_lease(void **state) {
    (void)state;
    static const char *const runs[] = {"run", "other"};
    for (int i = 0; i < 2; i++) {
        Error error = {0};
        siginfo_t info;
        pid_t id = hold();
        assert_null(lease_take("store", runs[i], ".", &error));
        assert_mentions(error.message, i ? "run run" : "same run");
        assert_int_equal(kill(id, SIGKILL), 0);
        assert_int_equal(waitid(P_PID, (id_t)id, &info, WEXITED | WNOWAIT), 0);
        Lease *lease = lease_take("store", runs[i], ".", &error);
        if (!lease) fail_msg("%s", error.message);
        lease_release(lease);
        assert_int_equal(waitpid(id, NULL, 0), id);
    }
}

/* -- One process ----------------------------------------------------------------------------------------------------- */

static Lease *taken(void) {
    Error error = {0};
    Lease *lease = lease_take("store", "run", ".", &error);
    if (!lease) fail_msg("%s", error.message);
    return lease;
}

static void a_lease_that_was_removed_by_hand_is_written_again(void **state) {
    (void)state;
    Error error = {0};
    Lease *lease = taken();
    assert_int_equal(unlink("store/lease.json"), 0);
    assert_true(lease_check(lease, &error));
    char *text = read_text("store/lease.json");
    assert_non_null(strstr(text, lease_holder(lease)));
    free(text);
    lease_release(lease);
    assert_true(access("store/lease.json", F_OK) != 0);
}

static void a_damaged_lease_is_replaced(void **state) {
    (void)state;
    assert_int_equal(mkdir("store", 0777), 0);
    write_text("store/lease.json", "{\"run\": ");
    lease_release(taken());
}

static void a_lease_that_another_run_has_taken_is_lost_and_stays_as_it_is(void **state) {
    (void)state;
    static const char other[] = "{\"run\": \"other\", \"folder\": \"there\", \"holder\": \"elsewhere 1 1\", \"renewed\": 1}";
    Error error = {0};
    Lease *lease = taken();
    write_text("store/lease.json", other);
    assert_false(lease_check(lease, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "store/lease.json other there elsewhere 1 1");
    lease_release(lease);
    char *text = read_text("store/lease.json");
    assert_string_equal(text, other);
    free(text);
}

static void *beat(void *context) {
    const atomic_bool *ended = context;
    for (int i = 0; !atomic_load(ended); i++) {
        char text[256];
        Error error = {0};
        snprintf(text, sizeof text, ELSEWHERE ", \"every\": 20, \"beat\": %d}", i);
        assert_true(file_write("store/lease.json", text, (int64_t)strlen(text), &error));
        process_sleep(0.005);
    }
    return NULL;
}

/* Another's clock may be 200 s ahead: only what is seen to change counts. */
static void a_holder_that_beats_keeps_its_lease_whatever_its_clock_says(void **state) {
    (void)state;
    pthread_t thread;
    atomic_bool ended = false;
    Error error = {0};
    assert_int_equal(mkdir("store", 0777), 0);
    assert_int_equal(pthread_create(&thread, NULL, beat, &ended), 0);
    WAIT_UNTIL(access("store/lease.json", F_OK) == 0, "no beat came");
    assert_null(lease_take("store", "run", ".", &error));
    atomic_store(&ended, true);
    pthread_join(thread, NULL);
    assert_int_equal(error.code, ERROR_USAGE);
    assert_int_equal(error.finding, FINDING_FOREIGN);
    assert_mentions(error.message, "elsewhere 1 1), renewed");
    write_text("store/lease.json", ELSEWHERE ", \"every\": 0.02}"); /* and does not change again */
    lease_release(taken());
}

/* A link to itself: there, and not to be read. */
static void a_lease_that_cannot_be_read_is_neither_absent_nor_anothers(void **state) {
    (void)state;
    Error error = {0};
    Lease *lease = taken();
    assert_int_equal(rename("store/lease.json", "kept"), 0);
    assert_int_equal(symlink("lease.json", "store/lease.json"), 0);
    for (int i = 0; i < 3; i++) {
        assert_false(lease_check(lease, &error));
        assert_int_equal(error.code, ERROR_CHECKPOINT);
        assert_int_equal(error.finding, FINDING_UNREADABLE);
    }
    assert_int_equal(rename("kept", "store/lease.json"), 0);
    assert_true(lease_check(lease, &error));
    lease_release(lease);
}

static void a_lease_that_is_damaged_while_it_is_held_is_written_again(void **state) {
    (void)state;
    static const char *const damages[] = {"", "{", "[1]", "\"text\"", "{\"run\": 1, \"run\": 2}"};
    Error error = {0};
    Lease *lease = taken();
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        write_text("store/lease.json", damages[i]);
        assert_true(lease_check(lease, &error));
        assert_true(lease_check(lease, &error));
    }
    lease_release(lease);
}

static void a_store_that_was_moved_away_is_not_made_anew(void **state) {
    (void)state;
    Error error = {0};
    Lease *lease = taken();
    assert_int_equal(rename("store", "moved"), 0);
    assert_false(lease_check(lease, &error));
    assert_int_equal(error.code, ERROR_CHECKPOINT);
    assert_true(access("store", F_OK) != 0);
    lease_release(lease);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(one_of_the_runs_that_start_at_once_gets_the_lease),
        IN_FOLDER(one_of_them_takes_over_a_lease_that_has_ended),
        IN_FOLDER(a_process_that_nobody_has_waited_for_holds_no_lease),
        IN_FOLDER(a_lease_that_was_removed_by_hand_is_written_again),
        IN_FOLDER(a_damaged_lease_is_replaced),
        IN_FOLDER(a_lease_that_another_run_has_taken_is_lost_and_stays_as_it_is),
        IN_FOLDER(a_holder_that_beats_keeps_its_lease_whatever_its_clock_says),
        IN_FOLDER(a_lease_that_cannot_be_read_is_neither_absent_nor_anothers),
        IN_FOLDER(a_lease_that_is_damaged_while_it_is_held_is_written_again),
        IN_FOLDER(a_store_that_was_moved_away_is_not_made_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

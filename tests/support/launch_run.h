/* What the tests of the supervisor share: a small stand-in for training. The test program starts itself as
 * supervisors, as ranks and as the doctor of the self-test. The stand-in adds over all ranks in every step, keeps a
 * checkpoint, and meets misfortunes that its arguments name. Everything is static inline, so a test program uses
 * what it needs. */
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include "process.h"

#include "app/process.h"
#include "comm/comm.h"
#include "launch/launch.h"
#include "launch/watchdog.h"
#include "mentions.h"

enum { STEPS = 40, HANG_SECONDS = 5 };

/* -- The stand-in for training ------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped;
static inline void on_stop(int number) { stopped = number; }

static inline void give_up(const Error *error) {
    fprintf(stderr, "%s\n", error->message);
    exit(error->code);
}

/* Once in a run: whether this is the first time. */
static inline bool first_time(const char *folder, const char *what) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, what);
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file >= 0) close(file);
    return file >= 0;
}

typedef struct State {
    int64_t step;
    double sum;
} State;

static inline State load(const char *folder) {
    char path[512];
    State state = {0};
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    FILE *file = fopen(path, "rb");
    if (file) {
        if (fread(&state, sizeof state, 1, file) != 1) state = (State){-1, 0};
        fclose(file);
    }
    return state;
}

static inline void save(const char *folder, State state) {
    char path[512], next[512];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    snprintf(next, sizeof next, "%s/checkpoint.next", folder);
    FILE *file = fopen(next, "wb");
    if (!file || fwrite(&state, sizeof state, 1, file) != 1 || fclose(file) != 0 || rename(next, path) != 0) exit(ERROR_CHECKPOINT);
}

static inline void note_process(const char *folder, int rank) {
    char path[512];
    snprintf(path, sizeof path, "%s/process.%d", folder, rank);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%d", getpid()) < 0 || fclose(file) != 0) exit(1);
}

static inline void meet(const char *misfortune, const char *folder, int rank, int ranks, int64_t step) {
    if (step != 7 || rank != 1) return;
    if (!strcmp(misfortune, "pairs crash") && ranks == 4) abort();
    if (!strcmp(misfortune, "pairs hang") && first_time(folder, "hung"))
        for (;;) process_sleep(10);
    if (!strcmp(misfortune, "hang") && first_time(folder, "hung"))
        for (;;) process_sleep(10);
    if ((!strcmp(misfortune, "stop") || !strcmp(misfortune, "quiet stop")) && first_time(folder, "stopped")) kill(getpid(), SIGSTOP);
    while (!strcmp(misfortune, "stubborn")) process_sleep(10);
    if (!strcmp(misfortune, "crash")) abort();
    if (!strcmp(misfortune, "usage")) exit(ERROR_USAGE);
    if (!strcmp(misfortune, "memory")) exit(ERROR_MEMORY);
    if (!strcmp(misfortune, "nan")) exit(ERROR_NUMERICS);
    if (!strcmp(misfortune, "abort") && first_time(folder, "broke")) abort();
    if (!strcmp(misfortune, "line") && first_time(folder, "said")) fprintf(stderr, "NCCL WARN something timed out\n");
}

static inline bool is_there(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* "hold" and "stop at the end" wait before this step, "hold at the end" before the last one, for the file "go" or a
 * signal. */
static inline int64_t held_step(const char *misfortune) {
    return !strcmp(misfortune, "hold") || !strcmp(misfortune, "stop at the end") ? 7
           : !strcmp(misfortune, "hold at the end")                              ? STEPS - 1
                                                                                 : -1;
}

static inline void hold(Comm *comm, const char *folder) {
    Error error = {0};
    while (!is_there(folder, "go") && !stopped && comm_ok(comm, &error)) process_sleep(0.01);
}

static inline void make_file(const char *folder, const char *name) { first_time(folder, name); }

static inline void remove_file(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

/* "pairs ...": two ranks hold a copy of the model together. */
static inline Mesh mesh_of(const Comm *comm, const char *misfortune) {
    Mesh mesh = mesh_alone;
    int ranks = comm ? comm_size(comm) : 1;
    mesh.size[AXIS_TP] = !strncmp(misfortune, "pairs", 5) && ranks % 2 == 0 ? 2 : 1;
    mesh.size[AXIS_DP] = ranks / mesh.size[AXIS_TP];
    mesh_place(&mesh, comm ? comm_rank(comm) : 0);
    return mesh;
}

/* FOLDER MISFORTUNE [on_nan=skip]. "quiet ..." gives no heartbeat, like commands other than train. */
static inline int train(int argc, char **argv) {
    Error error = {0};
    const char *folder = argv[1], *misfortune = argc > 3 && !strcmp(argv[3], "on_nan=skip") ? "" : argv[2];
    signal(SIGTERM, !strcmp(misfortune, "stubborn") ? SIG_IGN : on_stop);
    if (!strcmp(misfortune, "early") && !strcmp(getenv("RANK"), "1") && first_time(folder, "lost")) raise(SIGKILL);
    Comm *comm = comm_open(NULL, &error);
    Mesh mesh = mesh_of(comm, misfortune);
    bool quiet = !strncmp(misfortune, "quiet", 5);
    Watchdog *watchdog = comm && !quiet
                             ? watchdog_start(&mesh, comm, 0, strstr(misfortune, "hang") ? HANG_SECONDS : 0, &process_hang_actions, &error)
                             : NULL;
    if (!comm || (!watchdog && !quiet)) give_up(&error);
    int rank = comm_rank(comm);
    State state = load(folder);
    note_process(folder, rank);
    fprintf(stderr, "rank %d starts at step %lld\n", rank, (long long)state.step);
    while (state.step < STEPS) {
        meet(misfortune, folder, rank, comm_size(comm), state.step);
        if (state.step == held_step(misfortune)) hold(comm, folder);
        double values[2] = {1.0 / (state.step + rank + 1), stopped};
        if (!comm_host_all_reduce(comm, "sum", values, 2, COMM_F64, COMM_SUM, &error)) give_up(&error);
        state = (State){state.step + 1, state.sum + values[0]};
        if (rank == 0) save(folder, state);
        if (watchdog) watchdog_alive(watchdog, state.step);
        if (values[1] > 0 && rank == 1 && !strcmp(misfortune, "stop at the end")) kill(getpid(), SIGSTOP);
        if (values[1] > 0) return ERROR_PREEMPTED;
        process_sleep(0.01);
    }
    watchdog_stop(watchdog);
    comm_close(comm);
    return 0;
}

/* [key=value ...] -- train|eval ...: of which eval is a command that does not resume, for the supervisor. */
static inline int supervise(int argc, char **argv) {
    LaunchOptions options;
    OptionStrings strings = {0};
    Error error = {0};
    options_defaults(&launch_table, &options, &strings);
    int at = 2;
    for (; at < argc && strcmp(argv[at], "--"); at++)
        if (!options_set(&launch_table, &options, &strings, argv[at], &error)) give_up(&error);
    static StopRequest stop = {.heeded = 1};
    process_catch_stop(&stop, false);
    bool done = launch(&options, &(LaunchCommand){argv + at + 1, !strcmp(argv[at + 1], "train")}, &stop, &error);
    if (!done) fprintf(stderr, "%s\n", error.message);
    options_free_strings(&strings);
    return done ? 0 : (int)error.code;
}

/* The node's self-test fails while there is a file "sick.NODE" in the tests' folder, and lasts as long as there is
 * "slow.NODE". */
static inline int examine(void) {
    char name[64];
    const char *folder = getenv("SMELT_TEST_FOLDER"), *node = getenv("NODE_RANK");
    snprintf(name, sizeof name, "slow.%s", node ? node : "0");
    while (folder && is_there(folder, name)) process_sleep(0.01);
    snprintf(name, sizeof name, "sick.%s", node ? node : "0");
    bool sick = folder && is_there(folder, name);
    printf("ok       cpu                    2 x processor\n%s", sick ? "error    self_test.gemm        GPU 3: 7 elements are wrong\n" : "");
    return sick;
}

/* What this program is when it was started as something else than the tests; -1: the tests. */
static inline int launch_stand_in(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "supervise")) return supervise(argc, argv);
    if (argc > 3 && (!strcmp(argv[1], "train") || !strcmp(argv[1], "eval"))) return train(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "doctor")) return examine();
    return -1;
}

/* -- The tests' folder --------------------------------------------------------------------------------------------- */

static char folder[64];

static inline int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/smelt-test-launch-XXXXXX");
    return mkdtemp(folder) ? setenv("SMELT_TEST_FOLDER", folder, 1) : -1;
}

static inline int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* -1 where the rank is not there. */
static inline pid_t process_of(int rank) {
    char path[128];
    int id = -1;
    snprintf(path, sizeof path, "%s/process.%d", folder, rank);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%d", &id) != 1) id = -1;
    fclose(file);
    return id;
}

static inline void expect(const ProcessResult *result, int code, const char *text) {
    if (result->code != code) fail_msg("exit code %d in place of %d: %s", result->code, code, result->errors);
    if (!mentions(result->errors, text)) fail_msg("no '%s' in: %s", text, result->errors);
}

static inline void await_step(int64_t step) { WAIT_UNTIL(load(folder).step >= step, "step %lld has not come", (long long)step); }

/* The process of a rank, once it has started. */
static inline pid_t await_rank(int rank) {
    pid_t id;
    WAIT_UNTIL((id = process_of(rank)) > 0 && kill(id, 0) == 0, "rank %d has not started", rank);
    return id;
}

/* Kills a rank once it has started. The files of all ranks go first: their successors write new ones. */
static inline void kill_rank(int rank) {
    enum { MOST_RANKS = 6 };
    pid_t id = await_rank(rank);
    for (int other = 0; other < MOST_RANKS; other++) {
        char name[32];
        snprintf(name, sizeof name, "process.%d", other);
        remove_file(folder, name);
    }
    kill(id, SIGKILL);
}

/* The power fails before every single change that a run makes to the disk, and all that was not synced by then is lost,
 * or parts of it (support/disk_log.h). The checkpoint of the last "checkpoint of step" line is there all the same, with
 * all that training needs to go on from it to equal bits. Checkpoints that were not reported yet may be there whole, or
 * not at all; none is ever silently another. Run with `--save`, the program is one that saves and does nothing else. */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

#include "support/ckpt_fixture.h"
#include "support/power_cut.h"

/* -- Checkpoints --------------------------------------------------------------------------------------------------- */

/* The checkpoint that smelt reported last in a text, or `before`. */
static int64_t reported_step(const char *text, int64_t before) {
    static const char words[] = "checkpoint of step ";
    char colon;
    for (const char *at = text; (at = strstr(at, words)); at += sizeof words - 1) {
        long long step;
        if (sscanf(at + sizeof words - 1, "%lld%c", &step, &colon) == 2 && colon == ':') before = step;
    }
    return before;
}

/* The newest good checkpoint in "cut", -1 without one, which is for no reason that there are damaged ones. */
static int64_t latest_in_cut(const Case *c) {
    Error error = {0};
    bool failed;
    int screen = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDERR_FILENO); /* it warns of what is half-written */
    int64_t step = checkpoint_latest("cut/run", &failed, &error);
    dup2(screen, STDERR_FILENO);
    close(nowhere);
    close(screen);
    if (failed) case_fail(c, "%s", error.message);
    return step;
}

/* Whether a text reports the checkpoint of the folder "step-N". */
static bool reports(const char *text, const char *folder) {
    SCOPED_FREE char *words = memory_format("checkpoint of step %lld:", strtoll(folder + strlen("step-"), NULL, 10));
    return strstr(text, words) != NULL;
}

/* A recorded run in the folder disk/run, so in cut/run after a power cut. What its checkpoints must hold is in truth/,
 * and in old/run/checkpoints/ what was there before. An evaluation may be added to a manifest after the report: noted/
 * has what each checkpoint held in the end. */
typedef struct Run {
    int64_t before;      /* the last step that was reported before */
    const char *resumed; /* words that train on in "cut"; NULL: nothing does */
} Run;

/* Takes each checkpoint that was reported from the disk as it was when it got its name, and as it was in the end. The
 * report itself may come late: the launcher passes it on while its ranks go on. */
static void collect_truth(const DiskLog *log) {
    const DiskChance everything = {.names = 1, .contents = 1, .sizes = 1};
    int64_t known = -1;
    assert_int_equal(mkdir("truth", 0777), 0);
    for (size_t cut = 0; cut <= disk_log_count(log); cut++) {
        SCOPED_FREE char *output = disk_log_output(log, cut);
        int64_t step = reported_step(output, -1);
        if (step == known) continue;
        known = step;
        SCOPED_FREE char *name = memory_format("step-%08lld", (long long)step);
        SCOPED_FREE char *from = memory_format("cut/run/checkpoints/%s", name), *to = memory_format("truth/%s", name);
        disk_log_cut(log, disk_log_named(log, cut, name), &everything, "cut");
        assert_int_equal(rename(from, to), 0);
    }
    disk_log_cut(log, disk_log_count(log), &everything, "cut");
    assert_int_equal(rename("cut/run/checkpoints", "noted"), 0);
}

/* Each folder with the final name of a checkpoint holds what was written there. */
static void check_folders(const Case *c, const char *output) {
    SCOPED(file_list_free) FileList list = {0};
    Error error = {0};
    if (!file_list("cut/run/checkpoints", &list, &error)) return;
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.entries[i].name;
        if (strncmp(name, "step-", 5) != 0 || strchr(name, '.')) continue;
        SCOPED_FREE char *path = memory_format("cut/run/checkpoints/%s", name), *truth = memory_format("truth/%s", name);
        SCOPED_FREE char *old = memory_format("old/run/checkpoints/%s", name), *noted = memory_format("noted/%s", name);
        bool was_there = !is_absent(old) && !reports(output, name);
        if (is_absent(truth) ? !was_there : !holds(path, truth) && !holds(path, noted) && !(was_there && holds(path, old)))
            case_fail(c, "%s is not what was written", path);
    }
}

/* A checkpoint cannot do without these. A run that goes on may have added to them. */
static void check_companions(const Case *c) {
    static const char *const names[] = {"config.yaml", "run.json", "data", "tokenizer"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SCOPED_FREE char *path = memory_format("cut/run/%s", names[i]), *truth = memory_format("disk/run/%s", names[i]);
        SCOPED_FREE char *old = memory_format("old/run/%s", names[i]);
        if (!holds(path, truth) && (is_absent(old) || !holds(path, old)))
            case_fail(c, "there is a checkpoint, but %s is not what was written", path);
    }
}

enum { STEPS = 9 };

/* The run goes on to the same end, and its records leave no step out. */
static void train_on(const Case *c, const Run *run) {
    Process process = smelt_start(run->resumed);
    ProcessResult result = process_finish(&process);
    if (result.code != 0) case_fail(c, "the run does not go on: %s", result.errors);
    process_free(&result);
    SCOPED(file_list_free) FileList list = {0};
    Error error = {0};
    SCOPED_FREE char *truth = memory_format("disk/run/checkpoints/step-%08d", STEPS);
    assert_true(file_list(truth, &list, &error));
    for (size_t i = 0; i < list.count; i++) {
        SCOPED_FREE char *path = checkpoint_file("cut/run", STEPS, list.entries[i].name);
        SCOPED_FREE char *right = memory_format("%s/%s", truth, list.entries[i].name);
        bool shard = strncmp(list.entries[i].name, "shard-", 6) == 0;
        if (shard && !same_bytes(path, right)) case_fail(c, "the run went on to another end: %s", path);
    }
    assert_same_steps("cut/run", "disk/run");
}

/* One case in so many is trained on in. A prime, so that all chances have their turn. */
enum { RESUME_EVERY = 251 };

static void check_run(const Case *c, void *context) {
    const Run *run = context;
    SCOPED_FREE char *output = disk_log_output(c->log, c->cut);
    int64_t reported = reported_step(output, run->before), latest = latest_in_cut(c);
    if (latest < reported) case_fail(c, "step %lld was reported, and the newest is %lld", (long long)reported, (long long)latest);
    check_folders(c, output);
    if (!run->resumed) return;
    if (latest >= 0) check_companions(c);
    if (c->chance->seed % RESUME_EVERY == 0) train_on(c, run);
}

/* Records a program that saves into the folder disk/run and checks all power cuts. The caller frees the log. */
static DiskLog *check_saves(const char *name, const char *program, const char *words, const Run *run) {
    make_absent("truth");
    make_absent("old");
    make_absent("noted");
    mkdir("disk", 0777);
    copy_tree("disk", "old");
    DiskLog *log = record("disk", program, words);
    collect_truth(log);
    check_cuts(name, log, 2, check_run, (void *)run);
    return log;
}

/* -- Training ------------------------------------------------------------------------------------------------------ */

static DiskLog *check_training(const char *name, const char *launcher, const char *settings, int64_t before) {
    SCOPED_FREE char *words = memory_format("%strain " MODEL " %s run=disk/run", launcher, settings);
    SCOPED_FREE char *resumed = memory_format("%strain " MODEL " %s run=cut/run", launcher, settings);
    return check_saves(name, getenv("SMELT"), words, &(Run){.before = before, .resumed = resumed});
}

static void checkpoints_written_beside_training_survive(void **state) {
    (void)state;
    disk_log_free(check_training("asynchronous saves", "", "", -1));
}

static void checkpoints_that_training_waits_for_survive(void **state) {
    (void)state;
    disk_log_free(check_training("synchronous saves, one kept", "", "checkpoint.async=false checkpoint.keep=1", -1));
}

static void checkpoints_of_two_ranks_survive(void **state) {
    (void)state;
    disk_log_free(check_training("ranks", "launch -n 2 -- ", "layout.zero=1", -1));
}

/* The tokenizer and the shards of text that the run keeps for itself are as safe as the checkpoint that needs them. */
static void what_a_run_keeps_beside_its_checkpoints_survives(void **state) {
    (void)state;
    make("data train-tokenizer text tokenizer.json vocabulary=300");
    disk_log_free(
        check_training("a run with a tokenizer", "", "data.tokenizer=tokenizer.json model.vocabulary=300 data.valid_fraction=0.1", -1));
}

/* The checkpoint of step 6 is damaged, so the second run goes on from step 3, and replaces it. */
static void a_damaged_checkpoint_is_replaced(void **state) {
    (void)state;
    make("train " MODEL " stop_at=6 run=disk/run");
    damage_checkpoint("disk/run", 6);
    disk_log_free(check_training("a damaged checkpoint is replaced", "", "", 3));
}

/* What a power cut left is the start of a run whose power is cut in turn. */
static void recovery_from_a_power_cut_survives_another(void **state) {
    (void)state;
    DiskLog *log = check_training("before the first power cut", "", "checkpoint.keep=1", -1);
    const size_t count = disk_log_count(log), step = count / 4;
    for (size_t cut = step; cut < count; cut += step) {
        const DiskChance half = {.name = "half is left", .names = 0.5, .contents = 0.5, .sizes = 0.5, .seed = cut};
        SCOPED_FREE char *output = disk_log_output(log, cut);
        make_absent("disk");
        disk_log_cut(log, cut, &half, "disk");
        disk_log_free(check_training("a second power cut", "", "checkpoint.keep=1", reported_step(output, -1)));
    }
    disk_log_free(log);
}

/* -- Saving alone -------------------------------------------------------------------------------------------------- */

/* As a program that is recorded, this test saves checkpoints of two tensors: one that keeps its values, and one that
 * has the value of the step. */
typedef struct Saver {
    const char *run;
    int64_t first, last; /* steps */
    int64_t elements;    /* of what does not change, in fp32 */
    int64_t value;
    bool exchanges; /* names of folders */
} Saver;

static bool cannot_exchange;

/* In front of the C library's: for the program that saves, file systems without an exchange of names. */
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    errno = EINVAL;
    return cannot_exchange ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

static int save(int argc, char **argv) {
    assert_int_equal(argc, 8);
    Saver saver = {argv[2], atoll(argv[3]), atoll(argv[4]), atoll(argv[5]), atoll(argv[6]), !strcmp(argv[7], "exchange")};
    float *still = memory_allocate((size_t)saver.elements * sizeof *still), moving[3];
    for (int64_t i = 0; i < saver.elements; i++) still[i] = (float)(saver.value + i);
    Interval intervals[] = {{.name = "still", .rank = 1, .shape = {saver.elements}, .slice = {.count = saver.elements}, .data = still},
        {.name = "moving", .rank = 1, .shape = {3}, .slice = {.count = 3}, .data = moving}};
    Error unmade = {0};
    cannot_exchange = !saver.exchanges;
    if (!file_make_folder(saver.run, &unmade)) return unmade.code;
    for (int64_t step = saver.first; step <= saver.last; step++) {
        Error error = {0};
        CheckpointPlan plan = {
            saver.run, step, intervals, 2, .keep = 1, .ranks = 1, .attempt = (uint64_t)(step * 1000 + saver.value), .share = true};
        for (int i = 0; i < 3; i++) moving[i] = (float)(saver.value + step);
        if (!checkpoint_write(&plan, NULL, &error)) {
            log_error("%s", error.message);
            return error.code;
        }
        log_info("checkpoint of step %lld: saved", (long long)step);
    }
    free(still);
    return 0;
}

static void checkpoints_that_share_files_survive(void **state) {
    (void)state;
    disk_log_free(check_saves("shared files", "/proc/self/exe", "--save disk/run 1 5 10000 0 exchange", &(Run){.before = -1}));
    assert_false(is_absent("truth/step-00000005/step-00000001-shard-00000-of-00001.safetensors"));
}

/* Above 4 MiB a file is written by several threads, past the page cache. */
static void large_checkpoints_survive(void **state) {
    (void)state;
    disk_log_free(check_saves("large files", "/proc/self/exe", "--save disk/run 1 1 1300000 0 exchange", &(Run){.before = -1}));
}

static void check_replacement(const char *name, const char *how) {
    SCOPED_FREE char *first = memory_format("--save disk/run 4 5 1000 0 %s", how);
    SCOPED_FREE char *second = memory_format("--save disk/run 5 5 1000 7 %s", how);
    assert_int_equal(mkdir("disk", 0777), 0);
    disk_log_free(record("disk", "/proc/self/exe", first));
    disk_log_free(check_saves(name, "/proc/self/exe", second, &(Run){.before = 5}));
}

static void a_step_that_is_saved_again_survives(void **state) {
    (void)state;
    check_replacement("a step that is saved again", "exchange");
}

static void a_step_that_is_saved_again_survives_where_names_cannot_be_exchanged(void **state) {
    (void)state;
    check_replacement("a step that is saved again, in turns", "turns");
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--save") == 0) return save(argc, argv);
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(checkpoints_written_beside_training_survive),
        TRAIN_TEST(checkpoints_that_training_waits_for_survive),
        TRAIN_TEST(checkpoints_of_two_ranks_survive),
        TRAIN_TEST(what_a_run_keeps_beside_its_checkpoints_survives),
        TRAIN_TEST(a_damaged_checkpoint_is_replaced),
        TRAIN_TEST(recovery_from_a_power_cut_survives_another),
        TRAIN_TEST(checkpoints_that_share_files_survive),
        TRAIN_TEST(large_checkpoints_survive),
        TRAIN_TEST(a_step_that_is_saved_again_survives),
        TRAIN_TEST(a_step_that_is_saved_again_survives_where_names_cannot_be_exchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* End to end: what `smelt train` says and does when settings, data, checkpoints or the disk are bad. One clear line,
 * the documented exit code, and nothing that was good is lost. Some tests mount a small disk in a mount namespace of
 * their own and are skipped where that is not permitted. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/scope.h"
#include "support/mentions.h"
#include "support/sanitized.h"
#include "support/train_run.h"

static char *plan_config; /* configs/zaya1-8b.yaml as an absolute path */

/* The description of 8.8 billion parameters takes about 5 MB, the parameters alone would take 35 GB. */
enum { MOST_PLAN_BYTES = SANITIZED ? 1500000000 : 100000000 }; /* a sanitizer has a shadow, and keeps what was freed */

/* -- Settings ------------------------------------------------------------------------------------------------------ */

typedef struct BadSetting { const char *settings, *fragment; } BadSetting;

static void a_setting_that_cannot_be_is_refused_by_name_before_anything_is_written(void **state) {
    (void)state;
    static const BadSetting settings[] = {
        {"model.widht=64", "unknown key 'model.widht'"},
        {"model.width=4", "model.width"},
        {"model.width=33", "model.width=33 model.heads=2"},
        {"model.heads=3 model.head_dim=8 model.kv_heads=2", "model.heads=3 model.kv_heads=2"},
        {"model.experts=0", "model.family=zaya model.experts"},
        {"model.experts=1000", "model.experts=1000"},
        {"model.experts=512", "family zaya 511"},
        {"model.layers=10000 model.width=1Mi model.ffn=16Mi model.experts=511", "1e+14"},
        {"data.length=16Mi batch.sequences=16Mi batch.tokens=256Ti", "batch.tokens"},
        {"data.length=16Mi batch.sequences=100 batch.tokens=1600Mi model.width=1Mi", "activations"},
        {"model.experts_per_token=5", "model.experts_per_token=5 model.experts=4"},
        {"steps=0", "steps"},
        {"steps=ten", "'ten'"},
        {"steps=3", "steps=3 schedule.warmup=0"},
        {"steps=30 schedule.kind=wsd schedule.decay=30", "steps=30 schedule.warmup=3 schedule.decay=6"},
        {"optimizer.lr=1e30", "optimizer.lr"},
        {"optimizer.lr=nan", "optimizer.lr"},
        {"optimizer.name=sgd", "adamw|muon"},
        {"batch.tokens=100", "batch.tokens=100 batch.sequences=4 data.length=32 = 128 batch.tokens=128"},
        {"batch.tokens=32", "= 128 batch.tokens=128 batch.sequences"},
        {"model.context=16", "data.length=32 model.context=16 data.length=16"},
        {"data.train=", "data.train"},
        {"device=tpu", "auto|cpu|hip|cuda"},
        {"more.yaml", "'more.yaml'"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        train_says(ERROR_USAGE, settings[i].fragment, "run=bad %s", settings[i].settings);
        if (access("bad/checkpoints", F_OK) == 0 || access("bad/metrics.jsonl", F_OK) == 0)
            fail_msg("%s left a run behind", settings[i].settings);
    }
    train_says(ERROR_USAGE, "run", "run= steps=10");
}

static void a_run_inside_its_data_is_refused_as_its_log_would_be_read(void **state) {
    (void)state;
    assert_int_equal(mkdir("texts", 0777), 0);
    assert_int_equal(symlink("texts", "link"), 0);
    write_corpus("texts/a", 3000);
    const BadSetting places[] = {
        {"run=texts data.train=texts", "run=texts is inside data folder texts, "},
        {"run=texts/deep/run data.train=texts/", "run=texts/deep/run texts/"},
        {"run=link/run data.train=texts", "run=link/run is inside data folder texts, "},
        {"run=runs/first data.train=.", "run=runs/first"},
        {"run=texts/run data.valid=texts", "run=texts/run is inside data folder texts, "},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) train_says(ERROR_USAGE, places[i].fragment, "%s", places[i].settings);
    assert_true(access("texts/run", F_OK) != 0 && access("texts/config.yaml", F_OK) != 0);
    train_good("run=texts-run data.train=texts stop_at=1");
}

static void a_configuration_that_cannot_be_read_is_refused_with_its_name_and_line(void **state) {
    (void)state;
    const struct {
        const char *text, *fragment;
    } files[] = {
        {NULL, "bad.yaml"},
        {"steps: 10\nmodel:\n  widht: 64\n", "bad.yaml:3"},
        {"steps: [\n", "bad.yaml"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (files[i].text) write_text("bad.yaml", files[i].text);
        ProcessResult result = smelt("train bad.yaml run=bad");
        expect_code(&result, ERROR_USAGE, "bad.yaml");
        if (!mentions(result.errors, files[i].fragment)) fail_msg("\"%s\" is not in: %s", files[i].fragment, result.errors);
        assert_int_equal(process_lines(result.errors, ""), 1);
        assert_true(access("bad", F_OK) != 0);
        process_free(&result);
    }
}

static void other_settings_are_named_once_a_checkpoint_binds_the_run(void **state) {
    (void)state;
    train_good("run=bound stop_at=4");
    rename("bound/config.yaml", "config");
    assert_int_equal(link("config", "bound/config.yaml"), 0);
    ProcessResult result;
    Process process = train_start("run=bound optimizer.lr=1e-4 seed=9 threads=1");
    result = process_finish(&process);
    expect_code(&result, ERROR_USAGE, "bound");
    assert_mentions(result.errors, "seed: 1 -> 9\n");
    assert_null(strstr(result.errors, "optimizer.lr")); /* it may change from a step on */
    assert_null(strstr(result.errors, "threads"));
    process_free(&result);
    assert_true(same_bytes("config", "bound/config.yaml"));
    train_good("run=bound");
}

static void settings_may_change_until_the_first_checkpoint(void **state) {
    (void)state;
    write_text("other", "0123456789\n9876543210\n0123456789\n9876543210\n0123456789\n9876543210\n0123456789\n9876543210\n");
    train_says(ERROR_DATA, "/nowhere", "run=new data.train=/nowhere");
    train_says(ERROR_DATA, "tokens sequence 32", "run=new data.train=other");
    train_good("run=new seed=5");
    train_good("run=fresh seed=5");
    assert_same_steps("new", "fresh");
    assert_true(same_checkpoint("new", "fresh", 40));
}

static void a_file_of_the_user_in_the_way_is_not_replaced(void **state) {
    (void)state;
    assert_int_equal(mkdir("mine", 0777), 0);
    write_text("mine/config.yaml", "steps: 7 # by hand\nmodel: {experts: 4}\n");
    train_says(ERROR_USAGE, "model.width: 256 -> 32", "run=mine");
    write_text("copy", "steps: 7 # by hand\nmodel: {experts: 4}\n");
    assert_true(same_bytes("mine/config.yaml", "copy"));
    unlink("mine/config.yaml");
    write_text("file", "");
    train_says(ERROR_CHECKPOINT, "file", "run=file");
}

static void a_model_that_convert_refuses_is_named_before_the_first_step(void **state) {
    (void)state;
    static const BadSetting models[] = {
        {"model.family=mpt model.experts=0 model.kv_heads=2", "model.ffn=32 MptForCausalLM"},
        {"model.family=llama optimizer.balance_lr=0", "model.renormalise=false MixtralForCausalLM"},
        {"model.family=llama model.renormalise=true", "optimizer.balance_lr=0.001 load-balancing"},
        {"model.family=mpt model.experts=0 model.ffn=128 model.kv_heads=2", NULL},
        {"model.family=llama model.renormalise=true optimizer.balance_lr=0", NULL},
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char *settings = memory_format("run=run%zu steps=1 schedule.warmup=0 %s", i, models[i].settings);
        Process process = train_start(settings);
        ProcessResult result = process_finish(&process);
        expect_code(&result, ERROR_NONE, settings);
        const char *fragment = models[i].fragment ? models[i].fragment : "smelt convert";
        assert_int_equal(mentions(result.errors, fragment), models[i].fragment != NULL);
        process_free(&result);
        free(settings);
    }
}

/* -- Data ---------------------------------------------------------------------------------------------------------- */

/* But for a folder that was there before. */
static void a_refused_first_start_leaves_no_run_folder(void **state) {
    (void)state;
    train_says(ERROR_DATA, "data.train=missing", "run=runs/new data.train=missing");
    train_says(ERROR_DATA, "text,other mixture folder", "run=runs/new data.train=text,other");
    assert_true(access("runs/new", F_OK) != 0);
    assert_int_equal(mkdir("mine", 0777), 0);
    write_text("mine/notes", "mine");
    train_says(ERROR_DATA, "data.train=missing", "run=mine data.train=missing");
    assert_int_equal(access("mine/notes", F_OK), 0);
}

static void pack_shard(const char *prefix) {
    char *words = memory_format("data pack text %s overwrite=true", prefix);
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    process_free(&result);
    free(words);
}

static void text_that_cannot_be_trained_on_is_refused(void **state) {
    (void)state;
    write_text("empty", "");
    write_text("short", "too short\nfor that\n");
    pack_shard("s");
    const struct {
        const char *settings, *fragment;
    } inputs[] = {
        {"data.train=missing", "data.train=missing: cannot read missing: No such file or directory"},
        {"data.train=empty", "data.train=empty"},
        {"data.train=short data.valid_fraction=0", "20 tokens sequence 32 33"},
        {"data.valid=missing", "data.valid=missing"},
        {"data.tokenizer=absent", "data.tokenizer=absent: cannot open absent: No such file or directory"},
        {"data.valid=short", "data.valid=short: "},
        {"data.valid_fraction=0.0001", "data.valid_fraction=0.0001"},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        train_says(ERROR_DATA, inputs[i].fragment, "run=run %s", inputs[i].settings);
        if (access("run/metrics.jsonl", F_OK) == 0) fail_msg("%s: found only after the start", inputs[i].settings);
    }
    train_says(ERROR_USAGE, "data.train=text data.tokenizer=none", "run=run data.tokenizer=none");
    train_says(ERROR_USAGE, "model.vocabulary=100 257", "run=run model.vocabulary=100");
    train_says(ERROR_DATA, "tokens", "run=run model.vocabulary=100 data.train=s data.valid=s data.tokenizer=none");
    train_good("run=run");
}

static void a_split_shard_is_named_by_its_parts_and_settings_without_effect_are_named(void **state) {
    (void)state;
    smelt_says(ERROR_NONE, "1 file, 2 documents (a divided one counts twice)\n", "data pack text s valid=0.1");
    smelt_says(ERROR_NONE, "data.train=s-train data.valid=s-valid\n", "data pack text s valid=0.1 overwrite=true");
    train_says(ERROR_DATA, "s was packed in two parts: data.train=s-train data.valid=s-valid", "run=run data.train=s");
    train_says(ERROR_NONE, "eval.every=1 has no effect without validation data", "run=run data.train=s-train eval.every=1 stop_at=1");
    train_says(ERROR_NONE, "data.valid=s-valid", "run=again data.train=s-train eval.every=1 stop_at=1");
    train_says(ERROR_NONE, "schedule.decay=0", "run=wsd schedule.kind=wsd stop_at=1");
}

/* What was decided when shards were packed, and what waits for a choice that was made otherwise. */
static void settings_that_shards_or_other_choices_leave_idle_are_named_by_the_start_that_gives_them(void **state) {
    (void)state;
    static const char *const idle[] = {"data.separator=x", "data.special=true", "data.valid_fraction=0.1", "data.cache_mib=100",
        "optimizer.momentum=0.5", "optimizer.newton_schulz_steps=3", "schedule.decay=2", "batch.ramp_steps=5", "eval.prompt=x",
        "checkpoint.timeout=9", "resume.accept=version"};
    SCOPED_FREE char *settings = memory_copy_string("run=run data.train=s data.valid=s eval.sample_tokens=0 stop_at=1");
    smelt_says(ERROR_NONE, "", "data pack text s");
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        SCOPED_FREE char *before = settings;
        settings = memory_format("%s %s", before, idle[i]);
    }
    Process started = train_start(settings);
    ProcessResult first = process_finish(&started), next = smelt("train run stop_at=2");
    assert_true(first.code == 0 && next.code == 0);
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        SCOPED_FREE char *named = memory_format("%s has no effect without ", idle[i]);
        if (!mentions(first.errors, named)) fail_msg("%s is not in: %s", named, first.errors);
    }
    assert_null(strstr(next.errors, "no effect"));
    process_free(&first);
    process_free(&next);
}

static void a_lease_that_is_no_file_is_refused_by_name(void **state) {
    (void)state;
    assert_true(mkdir("run", 0777) == 0 && mkdir("run/lease.json", 0777) == 0);
    train_says(ERROR_CHECKPOINT, "checkpoint.store run/lease.json", "run=run");
    assert_true(rmdir("run/lease.json") == 0 && mkfifo("run/lease.json", 0666) == 0);
    train_says(ERROR_CHECKPOINT, "checkpoint.store run/lease.json", "run=run");
}

static void a_damaged_shard_is_refused(void **state) {
    (void)state;
    pack_shard("whole");
    train_good("run=whole data.train=whole");
    pack_shard("flipped");
    flip_bit("flipped.bin");
    train_says(ERROR_DATA, "flipped.bin", "run=flipped data.train=flipped");
    pack_shard("index");
    flip_bit("index.idx");
    train_says(ERROR_DATA, "index.idx", "run=index data.train=index");
    const char *const parts[] = {"cut.bin", "cut.idx"};
    for (int i = 0; i < 2; i++) {
        pack_shard("cut");
        size_t length;
        free(read_bytes(parts[i], &length));
        for (size_t keep = 0; keep < length; keep += length / 3) {
            assert_int_equal(truncate(parts[i], (off_t)keep), 0);
            train_says(ERROR_DATA, "data.train=cut: cut.", "run=cut data.train=cut");
            pack_shard("cut");
        }
    }
    assert_int_equal(unlink("cut.bin"), 0);
    train_says(ERROR_DATA, "cut.bin", "run=cut data.train=cut");
}

static void a_file_of_a_shard_in_place_of_its_prefix_is_refused(void **state) {
    (void)state;
    pack_shard("p1");
    train_says(ERROR_DATA, "data.train=p1.bin p1.bin data.train=p1", "run=run data.train=p1.bin");
    train_says(ERROR_DATA, "data.valid=p1.idx p1.idx", "run=run data.valid=p1.idx");
    train_good("run=run data.train=p1 stop_at=1");
}

static void what_a_killed_pack_left_in_the_run_is_removed(void **state) {
    (void)state;
    static const char *const left[] = {
        "run/data/text-train.bin.partial-4711", "run/data/text-valid.bin.partial-4711", "run/data/text-valid.idx.partial-4711"};
    assert_true(mkdir("run", 0777) == 0 && mkdir("run/data", 0777) == 0);
    for (int i = 0; i < 3; i++) write_text(left[i], "half");
    train_good("run=run stop_at=1");
    for (int i = 0; i < 3; i++) assert_true(access(left[i], F_OK) != 0);
    assert_true(access("run/data/text-train.idx", F_OK) == 0);
}

/* -- Checkpoints --------------------------------------------------------------------------------------------------- */

static void a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(void **state) {
    (void)state;
    train_good("run=whole");
    train_good("run=run checkpoint.every=10 stop_at=20");
    damage_checkpoint("run", 20);
    train_says(ERROR_NONE, "warning checkpoint 20", "run=run");
    assert_same_steps("whole", "run");
    assert_true(same_checkpoint("whole", "run", 40));
}

static void when_every_checkpoint_is_damaged_nothing_is_started_or_removed(void **state) {
    (void)state;
    train_good("run=run checkpoint.every=10 stop_at=20");
    damage_checkpoint("run", 10);
    damage_checkpoint("run", 20);
    assert_int_equal(rename("run/metrics.jsonl", "metrics"), 0);
    train_says(ERROR_CHECKPOINT, "has 2 checkpoints, but all damaged", "run=run");
    assert_true(has_checkpoint("run", 10) && has_checkpoint("run", 20));
    assert_true(access("run/metrics.jsonl", F_OK) != 0);
    damage_checkpoint("run", 20); /* the same bit: whole again */
    assert_int_equal(rename("metrics", "run/metrics.jsonl"), 0);
    train_good("run=run");
    char *steps = steps_text("run");
    assert_int_equal(process_lines(steps, "step"), 40);
    free(steps);
}

static void a_half_written_checkpoint_is_reported_and_removed(void **state) {
    (void)state;
    train_good("run=whole");
    train_good("run=run stop_at=20");
    const char *half = "run/checkpoints/step-00000030.partial-12345";
    assert_int_equal(mkdir(half, 0777), 0);
    write_text("run/checkpoints/step-00000030.partial-12345/shard-00000-of-00001.safetensors", "half");
    train_says(ERROR_NONE, "step-00000030.partial-12345", "run=run");
    assert_true(access(half, F_OK) != 0);
    assert_true(same_checkpoint("whole", "run", 40));
}

/* -- The disk ------------------------------------------------------------------------------------------------------ */

static void mount_or_skip(const char *folder, const char *size) {
    assert_int_equal(mkdir(folder, 0777), 0);
    if (mount("smelt-test", folder, "tmpfs", 0, size) == 0) return;
    print_message("a small disk cannot be mounted here: skipped; run as root to include it\n");
    skip();
}

static int unmount_and_leave(void **state) {
    umount2("disk", MNT_DETACH); /* fails where nothing is mounted, and that is fine */
    return leave_folder(state);
}

static void a_disk_that_fills_up_costs_only_the_new_checkpoint(void **state) {
    (void)state;
    mount_or_skip("disk", "size=1100k"); /* a checkpoint takes 630 KB: one fits, two do not */
    train_good("run=whole");
    train_says(ERROR_CHECKPOINT, "No space left on device", "run=disk/run checkpoint.every=5");
    assert_true(has_checkpoint("disk/run", 5));
    assert_false(has_checkpoint("disk/run", 10));
    assert_int_equal(mount(NULL, "disk", NULL, MS_REMOUNT, "size=4m"), 0);
    train_says(ERROR_NONE, "disk/run 5", "run=disk/run checkpoint.every=5");
    assert_same_steps("whole", "disk/run");
    assert_true(same_checkpoint("whole", "disk/run", 40));
}

static void a_disk_without_room_for_the_packed_text_is_named_and_left_clean(void **state) {
    (void)state;
    mount_or_skip("disk", "size=64k"); /* the tokens take about 100 KB */
    train_says(ERROR_CHECKPOINT, "No space left on device", "run=disk/run data.valid_fraction=0");
    assert_true(access("disk/run", F_OK) != 0);
    assert_int_equal(mount(NULL, "disk", NULL, MS_REMOUNT, "size=4m"), 0);
    train_good("run=disk/run stop_at=1");
}

/* Writes until the disk has no more room than `pages` pages. */
static void fill_disk(int pages) {
    static const char page[4096];
    int file = open("disk/filler", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    while (write(file, page, sizeof page) == (ssize_t)sizeof page) continue;
    assert_int_equal(ftruncate(file, lseek(file, 0, SEEK_END) / 4096 * 4096 - pages * 4096), 0);
    close(file);
}

static void a_disk_without_room_for_a_checkpoint_is_named_before_the_first_step(void **state) {
    (void)state;
    mount_or_skip("disk", "size=1100k");
    train_good("run=whole");
    train_good("run=disk/run stop_at=5");
    fill_disk(0);
    train_says(ERROR_CHECKPOINT, "No space left on device", "run=disk/run");
    assert_true(has_checkpoint("disk/run", 5));
    assert_int_equal(unlink("disk/filler"), 0);
    assert_int_equal(mount(NULL, "disk", NULL, MS_REMOUNT, "size=4m"), 0);
    train_good("run=disk/run");
    assert_same_steps("whole", "disk/run");
    assert_true(same_checkpoint("whole", "disk/run", 40));
}

/* 300 steps were once lost so: the disk was too small from the start. */
static void a_disk_too_small_for_a_checkpoint_is_refused_at_the_start(void **state) {
    (void)state;
    mount_or_skip("disk", "size=600k"); /* a checkpoint takes 630 KB */
    train_says(ERROR_CHECKPOINT, "the disk of disk/run free, and a checkpoint needs", "run=disk/run");
    assert_true(access("disk/run", F_OK) != 0);
    assert_int_equal(mount(NULL, "disk", NULL, MS_REMOUNT, "size=1500k"), 0);
    train_says(ERROR_NONE, "checkpoint.keep=2 needs", "run=disk/run");
}

/* The disk has room for a new run.json, in place of the old one. These pages then hold the records of some steps, not of all. */
static void a_disk_without_room_for_records_costs_only_these(void **state) {
    (void)state;
    mount_or_skip("disk", "size=2m");
    train_good("run=whole");
    train_good("run=disk/run checkpoint.store=store tensorboard=false stop_at=2");
    struct stat record;
    assert_int_equal(stat("disk/run/run.json", &record), 0);
    fill_disk((int)(record.st_size + 256) / 4096 + 1);
    train_says(ERROR_NONE, "training", "run=disk/run checkpoint.store=store tensorboard=false");
    assert_true(same_checkpoint("whole", "store", 40));
}

static void a_read_only_disk_is_named(void **state) {
    (void)state;
    mount_or_skip("disk", "size=4m");
    train_good("run=disk/run stop_at=5");
    assert_int_equal(mount(NULL, "disk", NULL, MS_REMOUNT | MS_RDONLY, "size=4m"), 0);
    train_says(ERROR_CHECKPOINT, "disk/new: Read-only file system", "run=disk/new");
    train_says(ERROR_CHECKPOINT, "Read-only file system", "run=disk/run");
    assert_true(has_checkpoint("disk/run", 5));
    assert_int_equal(mount(NULL, "disk", NULL, MS_REMOUNT, "size=4m"), 0);
    train_good("run=disk/run");
}

/* -- Plans --------------------------------------------------------------------------------------------------------- */

static void a_plan_of_eight_billion_parameters_takes_little_memory_and_writes_nothing(void **state) {
    (void)state;
    int entries = count_entries();
    char *words = memory_format("train %s plan=true run=planned data.train=text", plan_config);
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    assert_non_null(strstr(result.output, "8840488784"));
    assert_in_range(result.peak_bytes, 1, MOST_PLAN_BYTES);
    assert_int_equal(count_entries(), entries);
    process_free(&result);
    free(words);
}

/* A launched plan is that of the launch's ranks, and a step of them all needs a rank's memory once for each. */
static void a_plan_is_for_the_ranks_that_are_started_and_the_steps_that_epochs_come_to(void **state) {
    (void)state;
    smelt_says(ERROR_NONE, "over 2 ranks\n", "launch -n 2 -- train %s device=cpu plan=true", TINY);
    smelt_says(ERROR_NONE, "2 ranks", "launch -n 2 -- train %s device=cpu plan=true", TINY);
    smelt_says(
        ERROR_USAGE, "layout.dp=4 is not the ranks of the run = 2", "launch -n 2 -- train %s device=cpu plan=true layout.dp=4", TINY);
    SCOPED_FREE char *tiny = memory_copy_string(TINY);
    memset(strstr(tiny, "steps=40"), ' ', strlen("steps=40"));
    smelt_says(ERROR_NONE, "steps       as many as epochs=2 of data that smelt has not packed yet\n", "train %s plan=true epochs=2", tiny);
    smelt_says(ERROR_NONE, "steps       391, in all 100k tokens\n", "train %s plan=true tokens=100k", tiny);
    smelt_good("data pack text s");
    ProcessResult shard = smelt("data show s");
    double samples = ceil((strtod(strstr(shard.output, "tokens:") + strlen("tokens:"), NULL) - 1) / 32);
    SCOPED_FREE char *all = memory_format("steps       %d, in all ", (int)ceil(2 * samples / 8));
    smelt_says(ERROR_NONE, all, "train %s plan=true epochs=2 data.train=s", tiny);
    process_free(&shard);
}

static void a_plan_that_does_not_fit_is_refused_before_memory_or_disk_are_touched(void **state) {
    (void)state;
    char *words = memory_format(
        "train %s run=large data.train=text data.length=1Mi batch.sequences=16 model.context=1Mi batch.ramp_tokens=0", plan_config);
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_MEMORY, words);
    assert_mentions(result.errors, "needs");
    assert_in_range(result.peak_bytes, 1, MOST_PLAN_BYTES);
    assert_true(access("large/data", F_OK) != 0);
    process_free(&result);
    free(words);
}

#define DISK_TEST(test) cmocka_unit_test_setup_teardown(test, train_setup, unmount_and_leave)

static void a_text_that_is_read_many_times_gets_a_remark(void **state) {
    (void)state;
    static const char remark[] = "memorize";
    write_corpus("few", 100);
    ProcessResult result = smelt("train " TINY " run=r data.train=few data.valid_fraction=0 stop_at=1");
    expect_code(&result, 0, "train");
    if (!mentions(result.errors, remark)) fail_msg("no remark in: %s", result.errors);
    process_free(&result);
    result = smelt("train " TINY " run=s data.train=few data.valid_fraction=0 steps=20 stop_at=1");
    expect_code(&result, 0, "train");
    assert_false(mentions(result.errors, remark));
    process_free(&result);
}

int main(void) {
    train_main();
    plan_config = realpath("configs/zaya1-8b.yaml", NULL);
    if (!plan_config) return fprintf(stderr, "run this from the repository's root: configs/zaya1-8b.yaml is not here\n"), 1;
    /* What is mounted below stays invisible outside and vanishes with this process. Without the right to do so,
     * mount fails too, and its tests are skipped. */
    if (unshare(CLONE_NEWNS) == 0) mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_setting_that_cannot_be_is_refused_by_name_before_anything_is_written),
        TRAIN_TEST(a_run_inside_its_data_is_refused_as_its_log_would_be_read),
        TRAIN_TEST(a_configuration_that_cannot_be_read_is_refused_with_its_name_and_line),
        TRAIN_TEST(other_settings_are_named_once_a_checkpoint_binds_the_run),
        TRAIN_TEST(settings_may_change_until_the_first_checkpoint),
        TRAIN_TEST(a_file_of_the_user_in_the_way_is_not_replaced),
        TRAIN_TEST(a_model_that_convert_refuses_is_named_before_the_first_step),
        TRAIN_TEST(text_that_cannot_be_trained_on_is_refused),
        TRAIN_TEST(a_refused_first_start_leaves_no_run_folder),
        TRAIN_TEST(a_split_shard_is_named_by_its_parts_and_settings_without_effect_are_named),
        TRAIN_TEST(settings_that_shards_or_other_choices_leave_idle_are_named_by_the_start_that_gives_them),
        TRAIN_TEST(a_lease_that_is_no_file_is_refused_by_name),
        TRAIN_TEST(a_damaged_shard_is_refused),
        TRAIN_TEST(a_file_of_a_shard_in_place_of_its_prefix_is_refused),
        TRAIN_TEST(what_a_killed_pack_left_in_the_run_is_removed),
        TRAIN_TEST(a_damaged_checkpoint_costs_only_the_steps_since_the_one_before),
        TRAIN_TEST(when_every_checkpoint_is_damaged_nothing_is_started_or_removed),
        TRAIN_TEST(a_half_written_checkpoint_is_reported_and_removed),
        DISK_TEST(a_disk_that_fills_up_costs_only_the_new_checkpoint),
        DISK_TEST(a_disk_without_room_for_the_packed_text_is_named_and_left_clean),
        DISK_TEST(a_disk_without_room_for_a_checkpoint_is_named_before_the_first_step),
        DISK_TEST(a_disk_too_small_for_a_checkpoint_is_refused_at_the_start),
        DISK_TEST(a_disk_without_room_for_records_costs_only_these),
        DISK_TEST(a_read_only_disk_is_named),
        TRAIN_TEST(a_text_that_is_read_many_times_gets_a_remark),
        TRAIN_TEST(a_plan_of_eight_billion_parameters_takes_little_memory_and_writes_nothing),
        TRAIN_TEST(a_plan_is_for_the_ranks_that_are_started_and_the_steps_that_epochs_come_to),
        TRAIN_TEST(a_plan_that_does_not_fit_is_refused_before_memory_or_disk_are_touched),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(plan_config);
    return failed;
}

/* End to end: the real program trains tiny models. What is shown here is what people rely on: stopping, killing,
 * other threads or less memory change no bit of a run, signals and broken numbers lose nothing, evaluation only
 * looks, and the reports are there. */
#include "base/scope.h"
#include "support/mentions.h"
#include "support/poison.h"
#include "support/train_run.h"

static char *bpe; /* tests/golden/tokenizers/gpt2.json as an absolute path: 700 tokens, the first of which ends documents */

/* -- Bit for bit --------------------------------------------------------------------------------------------------- */

typedef struct Variety { const char *name, *settings; } Variety;

static const Variety varieties[] = {
    {"zaya-adamw", "model.family=zaya optimizer.name=adamw"},
    {"zaya-muon", "model.family=zaya optimizer.name=muon"},
    {"llama-adamw", "model.family=llama model.experts=0 optimizer.name=adamw"},
    {"llama-moe-muon", "model.family=llama model.experts_per_token=2 model.auxiliary_loss=0.01 optimizer.name=muon"},
};
#define SCHEDULED "batch.ramp_tokens=128 batch.ramp_steps=30 schedule.kind=wsd schedule.decay=10"

static void a_run_that_stops_and_goes_on_equals_an_unbroken_one_bit_for_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof varieties / sizeof *varieties; i++) {
        const char *name = varieties[i].name, *settings = varieties[i].settings;
        char *whole = memory_format("%s-whole", name), *parts = memory_format("%s-parts", name);
        train_good("run=%s %s %s", whole, SCHEDULED, settings);
        train_good("run=%s %s %s stop_at=20", parts, SCHEDULED, settings);
        assert_true(has_checkpoint(parts, 20));
        assert_int_equal(count_records(parts, "step"), 20);
        /* These may change from start to start: they change no result. */
        train_good("run=%s %s %s threads=1 recompute=block eval.every=7 checkpoint.every=9", parts, SCHEDULED, settings);
        assert_same_steps(whole, parts);
        assert_true(same_checkpoint(whole, parts, 40));
        assert_true(recorded(whole, "evaluation", -1, "loss") == recorded(parts, "evaluation", -1, "loss"));
        free(whole);
        free(parts);
    }
}

static void every_recomputation_and_any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    train_good("run=two threads=2");
    train_good("run=again threads=2");
    train_good("run=one threads=1");
    train_good("run=norm recompute=norm");
    train_good("run=attention recompute=attention");
    static const char *const others[] = {"again", "one", "norm", "attention"};
    for (int i = 0; i < 4; i++) {
        assert_same_steps("two", others[i]);
        assert_true(same_checkpoint("two", others[i], 40));
    }
}

static void another_seed_gives_another_run(void **state) {
    (void)state;
    train_good("run=first seed=1 steps=5");
    train_good("run=second seed=2 steps=5");
    assert_false(same_checkpoint("first", "second", 5));
    assert_true(recorded("first", "step", 0, "loss") != recorded("second", "step", 0, "loss"));
}

/* -- Learning ------------------------------------------------------------------------------------------------------ */

static void the_loss_starts_at_that_of_a_guess_and_falls(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof varieties / sizeof *varieties; i++) {
        const char *run = varieties[i].name;
        train_good("run=%s steps=100 eval.every=20 %s", run, varieties[i].settings);
        double first = recorded(run, "step", 0, "loss"), last = recorded(run, "step", -1, "loss");
        double early = recorded(run, "evaluation", 0, "loss"), late = recorded(run, "evaluation", -1, "loss");
        /* 320 equally likely tokens; initial logits are far below 1, so their loss differs by little. */
        assert_float_equal(first, log(320), 0.1);
        /* The text has some 25 letters: knowing that alone gives 3.2. */
        if (!(last < 3.2) || !(late < 3.2) || !(late < early - 0.1))
            fail_msg("%s: loss %g to %g, validation %g to %g", run, first, last, early, late);
    }
}

/* -- kill -9 ------------------------------------------------------------------------------------------------------- */

static void a_run_killed_at_random_moments_ends_like_an_unbroken_one(void **state) {
    (void)state;
    enum { KILLS = 20, MOST_STEPS = 5, STEPS = 400, EVALUATIONS = 16 };
    const char *settings = "run=killed steps=400 checkpoint.every=3 eval.every=25";
    train_good("%s run=whole", settings);
    double step_seconds = recorded("whole", "step", -1, "milliseconds") * 1e-3;
    int killed = 0;
    for (int i = 0; i < KILLS; i++) {
        RngBits bits = rng_bits(7, 1, (uint64_t)i);
        Process process = train_start(settings);
        /* One in four dies while it starts, the others after some steps, half of these once a checkpoint is there: so the
         * run comes forward between two deaths, also where a disk is slow. */
        if (bits.word[0] % 4) process_await_steps(&process, 1 + (int)(bits.word[1] % MOST_STEPS));
        if (bits.word[0] % 4 > 1) process_await_text(&process, "checkpoint", 1);
        process_sleep(rng_uniform(7, 2, (uint64_t)i) * (bits.word[0] % 4 ? 3 * step_seconds : 0.03));
        kill(process.id, SIGKILL);
        ProcessResult result = process_finish(&process);
        if (result.signal != SIGKILL) expect_code(&result, ERROR_NONE, settings);
        killed += result.signal == SIGKILL;
        process_free(&result);
    }
    train_good("%s", settings);
    json_t *starts = records("killed", "start"), *start;
    size_t index;
    int resumed = 0;
    json_array_foreach(starts, index, start) resumed += number(start, "step") > 0;
    json_decref(starts);
    if (killed <= KILLS / 2 || resumed <= KILLS / 4)
        fail_msg("only %d of %d were killed, %d resumed: not much was tested", killed, KILLS, resumed);
    assert_same_steps("whole", "killed");
    assert_true(same_checkpoint("whole", "killed", STEPS));
    assert_int_equal(count_records("killed", "evaluation"), EVALUATIONS);
    for (int i = 0; i < EVALUATIONS; i++)
        assert_true(recorded("whole", "evaluation", i, "loss") == recorded("killed", "evaluation", i, "loss"));
}

/* -- Signals ------------------------------------------------------------------------------------------------------- */

static void a_signal_writes_a_checkpoint_and_the_same_command_goes_on(void **state) {
    (void)state;
    const struct {
        int number;
        const char *name, *run;
    } signals[] = {{SIGTERM, "SIGTERM", "term"}, {SIGINT, "SIGINT", "int"}, {SIGHUP, "SIGHUP", "hang-up"}};
    for (int i = 0; i < 3; i++) {
        const char *run = signals[i].run;
        char *settings = memory_format("run=%s steps=100000", run);
        Process process = train_start(settings);
        process_await_steps(&process, 5);
        kill(process.id, signals[i].number);
        ProcessResult result = process_finish(&process);
        expect_code(&result, ERROR_PREEMPTED, settings);
        int64_t step = process_steps(result.output);
        char *message = memory_format("paused by %s after step %lld: a checkpoint was written; continue with: smelt train %s\n",
            signals[i].name, (long long)step, run);
        if (!mentions(result.errors, message)) fail_msg("\"%s\" is not in:\n%s", message, result.errors);
        assert_int_equal(process_lines(result.errors, "error: "), 0);
        assert_true(has_checkpoint(run, step));
        assert_int_equal(count_records(run, "step"), step);
        train_good("%s stop_at=%lld", settings, (long long)step + 3);
        train_good("run=%s-whole steps=100000 stop_at=%lld", run, (long long)step + 3);
        char *whole = memory_format("%s-whole", run);
        assert_same_steps(run, whole);
        assert_true(same_checkpoint(run, whole, step + 3));
        free(whole);
        free(message);
        process_free(&result);
        free(settings);
    }
}

/* The evaluation reads all of the text 200 times, which takes seconds; the run goes on with it. */
static void a_signal_does_not_wait_for_an_evaluation_which_is_made_up_for(void **state) {
    (void)state;
    write_corpus("long", 2000000);
    const char *settings = "run=run steps=8 eval.every=4 data.valid=long";
    Process process = train_start(settings);
    process_await_steps(&process, 4);
    process_sleep(0.2);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_PREEMPTED, settings);
    assert_mentions(result.errors, "SIGTERM 4");
    assert_int_equal(count_records("run", "evaluation"), 0);
    train_good("%s eval.sequences=12", settings);
    assert_int_equal(count_records("run", "evaluation"), 2);
    process_free(&result);
}

/* The step is saved before it is evaluated, and its checkpoint learns of the evaluation, also of one that is made after
 * the kill. */
static void a_kill_during_an_evaluation_loses_no_step(void **state) {
    (void)state;
    write_corpus("long", 2000000);
    const char *settings = "run=run steps=8 eval.every=4 checkpoint.every=4 data.valid=long";
    Process process = train_start(settings);
    process_await_steps(&process, 4);
    WAIT_UNTIL(has_checkpoint("run", 4), "%s", "step 4 has no checkpoint while it is evaluated");
    kill(process.id, SIGKILL);
    ProcessResult result = process_finish(&process);
    process_free(&result);
    assert_int_equal(count_records("run", "evaluation"), 0);
    train_good("%s eval.sequences=12", settings);
    train_good("run=whole steps=8 eval.every=4 checkpoint.every=4 data.valid=long eval.sequences=12");
    assert_int_equal((int)recorded("run", "start", 1, "step"), 4);
    assert_int_equal(count_records("run", "evaluation"), 2);
    for (int i = 0; i < 2; i++) assert_true(recorded("run", "evaluation", i, "loss") == recorded("whole", "evaluation", i, "loss"));
    assert_true(same_checkpoint("run", "whole", 8));
    result = smelt("show run json=true");
    json_auto_t *shown = json_loads(result.output, 0, NULL);
    json_t *checkpoints = json_object_get(shown, "checkpoints");
    assert_int_equal(json_array_size(checkpoints), 2);
    for (int i = 0; i < 2; i++) assert_true(number(json_array_get(checkpoints, i), "loss") > 0);
    process_free(&result);
}

static void a_process_that_was_stopped_for_a_while_is_not_taken_for_one_that_hangs(void **state) {
    (void)state;
    Process process = train_start("run=run steps=100000 hang=3");
    process_await_steps(&process, 2);
    kill(process.id, SIGSTOP);
    process_sleep(3.5); /* longer than hang */
    kill(process.id, SIGCONT);
    process_await_steps(&process, 9);
    process_sleep(0.7); /* the watchdog looks every tenth of hang */
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_PREEMPTED, "after SIGCONT");
    assert_null(strstr(result.errors, "made no progress"));
    process_free(&result);
}

static void another_store_does_not_start_a_run_over(void **state) {
    (void)state;
    train_good("run=run stop_at=5");
    train_says(ERROR_USAGE, "run has checkpoints in run, but store has none", "run=run checkpoint.store=store");
    assert_int_equal(count_records("run", "step"), 5);
    assert_int_equal(mkdir("store", 0777), 0);
    assert_int_equal(rename("run/checkpoints", "store/checkpoints"), 0);
    train_good("run=run checkpoint.store=store");
    train_good("run=whole");
    assert_true(same_checkpoint("whole", "store", 40));
}

static void a_finished_run_is_left_as_it_is(void **state) {
    (void)state;
    train_good("run=done steps=6");
    train_good("run=copy steps=6");
    train_good("run=done steps=6");
    assert_same_steps("done", "copy");
    assert_true(same_checkpoint("done", "copy", 6));
}

static void profiling_leaves_records_and_checkpoints_as_they_are(void **state) {
    (void)state;
    train_good("run=whole");
    train_good("run=run stop_at=20");
    Process process = train_start("run=run profile=3");
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_NONE, "profile");
    assert_non_null(strstr(result.output, "optimizer"));
    process_free(&result);
    assert_int_equal(count_records("run", "step"), 20);
    assert_false(has_checkpoint("run", 24));
    train_good("run=run");
    assert_same_steps("whole", "run");
    assert_true(same_checkpoint("whole", "run", 40));
}

static void what_a_killed_run_left_half_written_is_removed_and_lost_records_are_named(void **state) {
    (void)state;
    static const char *const leftovers[] = {
        "run/config.yaml.partial-99", "run/run.json.partial-99", "run/metrics.jsonl.partial-99", "run/lease.json.partial-99"};
    train_good("run=run stop_at=10");
    for (int i = 0; i < 4; i++) write_text(leftovers[i], "half");
    write_text("run/report.html.partial-99", "half"); /* of a report that is being written */
    assert_int_equal(unlink("run/metrics.jsonl"), 0);
    train_says(ERROR_NONE, "run/metrics.jsonl 10 10", "run=run stop_at=12");
    for (int i = 0; i < 4; i++) assert_int_not_equal(access(leftovers[i], F_OK), 0);
    assert_int_equal(access("run/report.html.partial-99", F_OK), 0);
}

static void only_one_process_trains_in_a_folder(void **state) {
    (void)state;
    Process first = train_start("run=shared steps=100000");
    process_await_steps(&first, 2);
    train_says(ERROR_USAGE, "another process is training in shared", "run=shared steps=100000");
    kill(first.id, SIGTERM);
    ProcessResult result = process_finish(&first);
    expect_code(&result, ERROR_PREEMPTED, "first");
    process_free(&result);
    char *steps = steps_text("shared");
    free(steps);
}

/* -- Numbers that break -------------------------------------------------------------------------------------------- */

/* Each update multiplies the weights by 1 - lr * weight_decay, some -10^4: infinity is a few steps away. */
#define EXPLODING "schedule.kind=constant schedule.warmup=0 optimizer.lr=100 optimizer.weight_decay=100"

static void broken_numbers_stop_the_run_name_step_and_tensor_and_leave_the_checkpoint(void **state) {
    (void)state;
    train_good("run=nan %s stop_at=2", EXPLODING);
    char *path = shard_path("nan", 2);
    assert_true(rename(path, "before") == 0);
    size_t length;
    unsigned char *bytes = read_bytes("before", &length);
    write_bytes(path, bytes, length);
    free(bytes);
    train_says(ERROR_NUMERICS, ": NaN or infinity in tensor ", "run=nan %s", EXPLODING);
    char *message = memory_format("error: step %lld: NaN", (long long)recorded("nan", "step", -1, "step") + 1);
    train_says(ERROR_NUMERICS, message, "run=nan %s", EXPLODING);
    assert_true(same_bytes("before", path));
    assert_false(has_checkpoint("nan", 3));
    free(message);
    free(path);
}

static void skipping_broken_updates_gives_up_after_twenty_in_a_row(void **state) {
    (void)state;
    train_says(ERROR_NUMERICS, "21 updates infinity", "run=skip on_nan=skip %s", EXPLODING);
    json_t *list = records("skip", "step"), *record;
    size_t index;
    int skipped = 0;
    json_array_foreach(list, index, record) skipped += json_is_true(json_object_get(record, "skipped"));
    json_decref(list);
    assert_int_equal(skipped, 20);
    assert_false(has_checkpoint("skip", 40));
}

static void a_parameter_that_is_broken_is_named(void **state) {
    (void)state;
    train_good("run=bad stop_at=4");
    poison("bad", 4, "model.norm.weight", 3, NAN);
    train_says(ERROR_NUMERICS, "5 model.norm.weight", "run=bad");
}

static void weights_that_are_broken_are_never_saved_though_no_loss_shows_it(void **state) {
    (void)state;
    train_good("run=bad model.tied=false stop_at=4");
    poison("bad", 4, "model.embed_tokens.weight", 300 * 32, INFINITY); /* token 300 does not occur */
    train_says(ERROR_NUMERICS, "6 model.embed_tokens.weight", "run=bad model.tied=false checkpoint.every=6");
    assert_false(has_checkpoint("bad", 6));
    assert_true(has_checkpoint("bad", 4));
}

static void no_run_starts_from_weights_that_are_broken(void **state) {
    (void)state;
    static const char two[] = " contains 1 NaN or infinite value, like 1 more tensor:";
    static const char llama[] = "model.family=llama model.experts=0";
    train_good("run=bad stop_at=4 %s", llama);
    poison("bad", 4, "model.norm.weight", 3, NAN);
    train_says(ERROR_NUMERICS, "init=bad: tensor model.norm.weight contains 1 NaN or infinite value", "run=one init=bad %s", llama);
    poison("bad", 4, "model.embed_tokens.weight", 300 * 32, -INFINITY);
    train_says(ERROR_NUMERICS, two, "run=one init=bad %s", llama);
    train_says(ERROR_NUMERICS, two, "run=one init=bad lora.rank=2 %s", llama);
    assert_true(access("one", F_OK) != 0);
    for (int zero = 1; zero <= 3; zero++)
        smelt_says(ERROR_NUMERICS, "init=bad model.norm.weight 1", "launch -n 2 -- train %s %s run=two init=bad layout.zero=%d", TINY,
            llama, zero);
}

/* -- Evaluation ---------------------------------------------------------------------------------------------------- */

static void evaluation_does_not_change_training(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *never = memory_format("never-%zu", i), *often = memory_format("often-%zu", i);
        train_good("run=%s eval.every=0 %s", never, varieties[i].settings);
        train_good("run=%s eval.every=5 %s", often, varieties[i].settings);
        assert_same_steps(never, often);
        assert_true(same_checkpoint(never, often, 40));
        assert_int_equal(count_records(never, "evaluation"), 1);
        assert_int_equal(count_records(often, "evaluation"), 8);
        assert_true(recorded(never, "evaluation", 0, "loss") == recorded(often, "evaluation", 7, "loss"));
        free(never);
        free(often);
    }
}

/* Without updates, one training step over all samples and an evaluation of the same shard are two ways to the same
 * number. */
static void validation_loss_is_the_mean_over_every_target(void **state) {
    (void)state;
    enum { SAMPLES = 62, LENGTH = 32 }; /* not a multiple of 4: the last microbatch of the evaluation is filled up */
    size_t length;
    unsigned char *text = read_bytes("text", &length);
    write_bytes("small", text, (SAMPLES + 2) * LENGTH);
    write_bytes("smaller", text, SAMPLES * LENGTH);
    free(text);
    for (size_t i = 0; i < sizeof varieties / sizeof *varieties; i++) {
        const char *run = varieties[i].name;
        train_good("run=%s data.train=small data.valid=small precision=fp32 batch.tokens=2048 steps=1 schedule.warmup=0 optimizer.lr=0 "
                   "optimizer.balance_lr=0 %s",
            run, varieties[i].settings);
        double trained = recorded(run, "step", 0, "loss"), evaluated = recorded(run, "evaluation", 0, "loss");
        assert_float_equal(trained, evaluated, 1e-5); /* fp32 sums of 2,048 terms near 6 */
        assert_int_equal((int)recorded(run, "evaluation", 0, "tokens"), 2048);
        assert_float_equal(
            recorded(run, "evaluation", 0, "bits_per_byte"), evaluated / log(2) * 2048 / 2047, 1e-9); /* the last target is the separator */
    }
    train_good("run=rest data.train=small data.valid=smaller steps=4");
    assert_int_equal((int)recorded("rest", "evaluation", -1, "tokens"), SAMPLES * LENGTH);
}

/* The sequences are the first ones of the data, whatever computes how many of them at once. */
static void the_same_sequences_are_evaluated_by_any_microbatch_and_ranks(void **state) {
    (void)state;
    enum { SEQUENCES = 11, LENGTH = 32 };
    const char *const settings =
        "steps=1 schedule.warmup=0 optimizer.lr=0 optimizer.balance_lr=0 precision=fp32 data.valid=text eval.sequences=11";
    const int sequences[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++)
        train_good("run=microbatch%d %s batch.sequences=%d", sequences[i], settings, sequences[i]);
    int port = process_free_port();
    char *ranked = memory_format("run=ranks %s", settings);
    Process ranks[2] = {rank_start(0, port, ranked), rank_start(1, port, ranked)};
    for (int r = 0; r < 2; r++) {
        ProcessResult result = process_finish(&ranks[r]);
        expect_code(&result, ERROR_NONE, "a rank");
        process_free(&result);
    }
    const char *const runs[] = {"microbatch1", "microbatch2", "microbatch4", "microbatch8", "ranks"};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        assert_int_equal((int)recorded(runs[i], "evaluation", 0, "tokens"), SEQUENCES * LENGTH);
        assert_float_equal(recorded(runs[i], "evaluation", 0, "loss"), recorded("microbatch1", "evaluation", 0, "loss"), 1e-6);
    }
    free(ranked);
}

/* -- Reports ------------------------------------------------------------------------------------------------------- */

static void the_step_line_has_eleven_columns(void **state) {
    (void)state;
    static const char *const names[] = {"step/steps", "loss", "grad_norm", "lr", "ms", "tok/s", "TFLOP/s", "%peak", "%best", "GiB", "left"};
    enum { COLUMNS = 11, STEPS = 12 };
    Process process = train_start("run=lines steps=12");
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_NONE, "lines");
    assert_int_equal(process_steps(result.output), STEPS);
    char *rest = strstr(result.output, "     step/steps ");
    assert_non_null(rest);
    size_t width = strcspn(rest, "\n");
    for (int row = 0; row <= STEPS; row++) {
        char *line = strsep(&rest, "\n");
        assert_int_equal(strlen(line), width);
        for (int column = 0; column < COLUMNS; column++) {
            char *word = strtok_r(line, " ", &line), *end;
            assert_non_null(word);
            if (row == 0) assert_string_equal(word, names[column]);
            else if (column == 0) assert_int_equal(strtol(word, &end, 10), row);
            else if (strcmp(word, "unknown") != 0 && column < COLUMNS - 1) assert_true(isfinite(strtod(word, &end)) && *end == '\0');
        }
        assert_null(strtok_r(line, " ", &line));
    }
    process_free(&result);
}

static ProcessResult expect_lines(const char *settings, const char *const *lines) {
    Process process = train_start(settings);
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_NONE, settings);
    const char *at = result.output;
    for (; *lines; lines++)
        if (!(at = strstr(at, *lines))) fail_msg("\"%s\" is not in its place in:\n%s", *lines, result.output);
    return result;
}

static void expect_lines_alone(const char *settings, const char *const *lines) {
    ProcessResult result = expect_lines(settings, lines);
    assert_string_equal(result.errors, ""); /* warnings and errors alone */
    process_free(&result);
}

static void a_run_says_what_it_is_at_its_start_and_what_comes_next_at_its_end(void **state) {
    (void)state;
    expect_lines_alone("run=r eval.every=10 stop_at=10",
        (const char *[]){"run      r, new\n", "model    ", "2 layers of width 32: ", " active per token, all trained\n", "device   ",
            "2 threads, bf16\n", "data     ", " tokens in 1 document: ", " sequences of 32; validation ", "tokenizer bytes\n",
            "steps    40 of 256 tokens: 10.2k tokens, ", "memory   ", " of ", ": weights ", "     step/steps ", "          10/40 ",
            "validation at step 10: ", "checkpoint of step 10: ", "done     10 steps, 2.56k tokens in ", "loss     ", "valid    ",
            " at step 10\n", "smelt report r ", "smelt generate r \"", "smelt eval r ", "smelt convert r ",
            "smelt train r    (continues training)\n", NULL});
    expect_lines_alone("run=r", (const char *[]){"run      continuing r after step 10\n", "done     30 steps, 7.68k tokens",
                                    "smelt train r steps=80    (continues training)\n", NULL});
}

static void what_comes_next_fits_conversations_and_adapters(void **state) {
    (void)state;
    smelt_good("data train-tokenizer text tok/tokenizer.json vocabulary=270");
    write_text("tok/chat_template.jinja",
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}{% generation %}{{ m.content + '.' }}{% endgeneration %}"
        "{% endif %}{% endfor %}");
    write_text("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"what is it?\"}, "
                              "{\"role\": \"assistant\", \"content\": \"nothing, and nothing, and once more nothing, as you see\"}]}\n");
    smelt_good("data pack chats.jsonl chats format=chat tokenizer=tok");
    train_good("run=base steps=1 schedule.warmup=0 data.tokenizer=tok model.vocabulary=320 eval.every=0");
    ProcessResult result =
        expect_lines("run=r init=base lora.rank=2 steps=1 schedule.warmup=0 data.train=chats data.valid= data.tokenizer=tok data.length=16 "
                     "model.vocabulary=320 eval.every=0",
            (const char *[]){
                "smelt report r ", "smelt chat r\n", "smelt convert r my-adapter adapter=true ", "smelt convert r my-model ", NULL});
    process_free(&result);
    /* PEFT has no adapters of MLPs beside experts: the command would fail, and a warning says so before the first step. */
    train_good("run=mixed steps=1 schedule.warmup=0 eval.every=0 model.family=llama model.qk_norm=true model.experts_first=1 "
               "model.experts_period=2 model.dense_ffn=32");
    result = expect_lines("run=m init=mixed lora.rank=2 steps=1 schedule.warmup=0 eval.every=0 model.family=llama model.qk_norm=true "
                          "model.experts_first=1 model.experts_period=2 model.dense_ffn=32",
        (const char *[]){"smelt eval m ", "smelt convert m my-model ", NULL});
    assert_null(strstr(result.output, "my-adapter"));
    assert_true(mentions(result.errors, "warning: adapter=true lora.targets=attention,experts"));
    process_free(&result);
}

static void assert_fields(const json_t *record, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (!json_is_number(json_object_get(record, names[i]))) fail_msg("no number %s", names[i]);
}

static void every_json_line_carries_its_fields(void **state) {
    (void)state;
    train_good("run=json steps=4 eval.every=2 checkpoint.every=2 model.family=llama");
    static const struct {
        const char *kind;
        int count;
        const char *fields[16];
    } kinds[] = {
        {"start", 1, {"step", "time", "parameters", "active_parameters", "threads"}},
        {"step", 4,
            {"step", "time", "loss", "auxiliary", "grad_norm", "lr", "milliseconds", "tokens", "tokens_seen", "tokens_per_second", "tflops",
                "best_percent", "memory_bytes"}},
        {"load", 4, {"step", "time"}},
        {"evaluation", 2, {"step", "time", "loss", "bits_per_byte", "tokens", "milliseconds"}},
        {"checkpoint", 2, {"step", "time", "bytes", "milliseconds"}},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        json_t *list = records("json", kinds[i].kind), *record;
        size_t index;
        assert_int_equal(json_array_size(list), kinds[i].count);
        json_array_foreach(list, index, record) assert_fields(record, kinds[i].fields);
        if (!strcmp(kinds[i].kind, "step"))
            json_array_foreach(list, index, record) assert_true(number(record, "best_percent") <= 100 + 1e-9);
        json_decref(list);
    }
    json_t *list = records("json", "load"), *rows = json_object_get(json_array_get(list, 0), "load");
    assert_int_equal(json_array_size(rows), 2);
    double sum = 0;
    for (size_t e = 0; e < 4; e++) sum += json_number_value(json_array_get(json_array_get(rows, 0), e));
    assert_float_equal(sum, 1, 1e-4); /* four parts, rounded to a millionth each */
    json_decref(list);
}

/* -- Tokenizers ---------------------------------------------------------------------------------------------------- */

static char *generated(const char *model, const char *prompt, const char *tokens) {
    char *arguments[] = {
        getenv("SMELT"), "generate", (char *)model, (char *)prompt, (char *)tokens, "temperature=0", "threads=1", "device=cpu", NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_NONE, model);
    char *text = memory_copy_string(result.output);
    process_free(&result);
    return text;
}

static void a_run_with_a_tokenizer_reads_and_writes_text_and_hands_it_on(void **state) {
    (void)state;
    size_t length;
    unsigned char *bytes = read_bytes(bpe, &length);
    write_bytes("bpe.json", bytes, length);
    free(bytes);
    const char *settings = "run=run data.tokenizer=bpe.json steps=3 schedule.warmup=0";
    train_says(ERROR_USAGE, "model.vocabulary=320 700 data.tokenizer=bpe.json model.vocabulary=0", "%s model.vocabulary=320", settings);
    train_good("%s model.vocabulary=704", settings);
    assert_true(same_bytes("bpe.json", "run/tokenizer/tokenizer.json"));
    unlink("bpe.json");
    train_good("%s model.vocabulary=704", settings);

    char *echo = generated("run", "A model, naïvely 写", "tokens=0"), *more = generated("run", "The step", "tokens=20");
    assert_string_equal(echo, "A model, naïvely 写\n");
    assert_int_equal(strncmp(more, "The step", 8), 0);
    assert_true(strlen(more) > 20);

    ProcessResult result = smelt("convert run folder");
    expect_code(&result, ERROR_NONE, "convert");
    process_free(&result);
    json_auto_t *generation = json_load_file("folder/generation_config.json", 0, NULL);
    assert_non_null(json_object_get(generation, "eos_token_id"));
    assert_int_equal(json_integer_value(json_object_get(generation, "eos_token_id")), 0);
    json_auto_t *described = json_load_file("folder/tokenizer_config.json", 0, NULL);
    assert_string_equal(json_string_value(json_object_get(described, "eos_token")), "<|endoftext|>");
    assert_string_equal(json_string_value(json_object_get(described, "tokenizer_class")), "PreTrainedTokenizerFast");
    char *again = generated("folder", "The step", "tokens=20");
    assert_string_equal(again, more);
    json_t *config = json_load_file("folder/config.json", 0, NULL);
    assert_true(json_is_integer(json_object_get(config, "eos_token_id")));
    assert_int_equal(json_integer_value(json_object_get(config, "eos_token_id")), 0);
    json_decref(config);
    free(echo);
    free(more);
    free(again);
}

/* TINY's settings, of which those of the model are the folder's. */
static void training_from_a_model_folder_uses_its_tokenizer(void **state) {
    (void)state;
    train_good("run=first data.tokenizer=%s steps=2 schedule.warmup=0 model.vocabulary=704", bpe);
    ProcessResult result = smelt("convert first folder");
    expect_code(&result, ERROR_NONE, "convert");
    process_free(&result);
    const char *const origins[][2] = {{"folder", "data.tokenizer=folder/tokenizer.json, taken from init=folder"},
        {"first", "data.tokenizer=first/tokenizer/tokenizer.json, taken from init=first"}};
    for (int i = 0; i < 2; i++) {
        char *words = memory_format(
            "train init=%s run=from-%s data.train=text data.length=32 batch.sequences=4 batch.tokens=256 steps=2 tensorboard=false",
            origins[i][0], origins[i][0]);
        result = smelt(words);
        expect_code(&result, ERROR_NONE, words);
        assert_non_null(strstr(result.errors, origins[i][1]));
        process_free(&result);
        result = smelt(words); /* the run goes on, or rather is at its end, with the same command */
        expect_code(&result, ERROR_NONE, words);
        process_free(&result);
        free(words);
    }
    assert_true(same_bytes("folder/tokenizer.json", "from-folder/tokenizer/tokenizer.json"));
    assert_true(same_bytes("folder/tokenizer_config.json", "from-folder/tokenizer/tokenizer_config.json"));
    result = smelt("convert from-folder again");
    expect_code(&result, ERROR_NONE, "convert");
    process_free(&result);
    assert_true(same_bytes("folder/tokenizer_config.json", "again/tokenizer_config.json"));
    assert_true(same_bytes("folder/generation_config.json", "again/generation_config.json"));
    assert_true(same_bytes("first/data/text-train.bin", "from-first/data/text-train.bin"));
}

static void text_is_evaluated_in_the_folder_that_TMPDIR_names(void **state) {
    (void)state;
    train_good("run=run steps=1 schedule.warmup=0");
    assert_int_equal(mkdir("scratch", 0700), 0);
    setenv("TMPDIR", "scratch", 1);
    ProcessResult result = smelt("eval run text");
    expect_code(&result, ERROR_NONE, "TMPDIR=scratch");
    process_free(&result);
    assert_int_equal(rmdir("scratch"), 0); /* nothing is left in it */
    result = smelt("eval run text");
    unsetenv("TMPDIR");
    expect_code(&result, ERROR_DATA, "TMPDIR that is gone");
    assert_mentions(result.errors, "TMPDIR");
    process_free(&result);
}

/* The first token is the first newline alone: it is no target, the other bytes are all in targets. */
static void bits_per_byte_count_the_bytes_of_text_behind_the_tokens(void **state) {
    (void)state;
    const char *text = "\nthe license of the work is in the work.\n";
    write_text("other", text);
    train_good("run=run data.tokenizer=%s steps=3 schedule.warmup=0 model.vocabulary=704", bpe);
    assert_true(recorded("run", "evaluation", 0, "bits_per_byte") < 0.9 * recorded("run", "evaluation", 0, "loss") / log(2));
    ProcessResult result = smelt("eval run other");
    expect_code(&result, ERROR_NONE, "eval");
    int tokens;
    double loss, bits;
    assert_int_equal(sscanf(result.output, "tokens %d loss %lf nats per token perplexity %*f bits per byte %lf", &tokens, &loss, &bits), 3);
    assert_in_range(tokens, 2, strlen(text) / 2);
    assert_float_equal(loss * tokens / log(2) / bits, strlen(text) - 1, 0.01); /* six decimals are printed */
    process_free(&result);
}

int main(void) {
    train_main();
    bpe = golden_tokenizer("gpt2");
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_run_that_stops_and_goes_on_equals_an_unbroken_one_bit_for_bit),
        EACH_ISA(TRAIN_TEST(every_recomputation_and_any_number_of_threads_gives_the_same_bits)),
        TRAIN_TEST(another_seed_gives_another_run),
        TRAIN_TEST(the_loss_starts_at_that_of_a_guess_and_falls),
        TRAIN_TEST(a_run_killed_at_random_moments_ends_like_an_unbroken_one),
        TRAIN_TEST(a_signal_writes_a_checkpoint_and_the_same_command_goes_on),
        TRAIN_TEST(a_kill_during_an_evaluation_loses_no_step),
        TRAIN_TEST(a_signal_does_not_wait_for_an_evaluation_which_is_made_up_for),
        TRAIN_TEST(a_process_that_was_stopped_for_a_while_is_not_taken_for_one_that_hangs),
        TRAIN_TEST(another_store_does_not_start_a_run_over),
        TRAIN_TEST(a_finished_run_is_left_as_it_is),
        EACH_ISA(TRAIN_TEST(profiling_leaves_records_and_checkpoints_as_they_are)),
        TRAIN_TEST(what_a_killed_run_left_half_written_is_removed_and_lost_records_are_named),
        TRAIN_TEST(only_one_process_trains_in_a_folder),
        TRAIN_TEST(broken_numbers_stop_the_run_name_step_and_tensor_and_leave_the_checkpoint),
        TRAIN_TEST(skipping_broken_updates_gives_up_after_twenty_in_a_row),
        TRAIN_TEST(a_parameter_that_is_broken_is_named),
        TRAIN_TEST(weights_that_are_broken_are_never_saved_though_no_loss_shows_it),
        TRAIN_TEST(no_run_starts_from_weights_that_are_broken),
        EACH_ISA(TRAIN_TEST(evaluation_does_not_change_training)),
        TRAIN_TEST(validation_loss_is_the_mean_over_every_target),
        TRAIN_TEST(the_same_sequences_are_evaluated_by_any_microbatch_and_ranks),
        TRAIN_TEST(the_step_line_has_eleven_columns),
        TRAIN_TEST(a_run_says_what_it_is_at_its_start_and_what_comes_next_at_its_end),
        TRAIN_TEST(what_comes_next_fits_conversations_and_adapters),
        TRAIN_TEST(every_json_line_carries_its_fields),
        TRAIN_TEST(a_run_with_a_tokenizer_reads_and_writes_text_and_hands_it_on),
        TRAIN_TEST(training_from_a_model_folder_uses_its_tokenizer),
        TRAIN_TEST(text_is_evaluated_in_the_folder_that_TMPDIR_names),
        TRAIN_TEST(bits_per_byte_count_the_bytes_of_text_behind_the_tokens),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(bpe);
    return failed;
}

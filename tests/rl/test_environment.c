/* Runs of reinforcement learning with an environment: a model that learns to use what it is told, the same bits however answers
 * come, limits, faults, and conversations. tests/rl/test_policy_golden.c compares the training of such samples with PyTorch, and
 * tests/engine/test_engine.c the bits of tokens after appended ones with those of the whole text. */
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "support/ranks_run.h"

static char tokenizer[4096];

/* A number of 1 to 3 is guessed twice. Without the hint two guesses find it in 2 of 3 cases at most; the pretrained model has seen
 * an answer to a hint that is right more often than by chance. */
static const char game[] = "def environment(completion, turn, last, answer, **fields):\n"
                           "    if completion == answer: return 1.0\n"
                           "    if last: return 0.0\n"
                           "    return '>' if completion < answer else '<'\n";

/* The same game, as a program that collects requests and answers the newest first. It dies once at a request if a file says so. */
static const char late[] = "#!/usr/bin/env -S python3 -S\n"
                           "import json, os, select, signal\n"
                           "exec(open('game.py').read())\n"
                           "text, held = b'', []\n"
                           "while True:\n"
                           "    if select.select([0], [], [], 0.003 if held else None)[0]:\n"
                           "        data = os.read(0, 65536)\n"
                           "        if not data: break\n"
                           "        *lines, text = (text + data).split(b'\\n')\n"
                           "        held += map(json.loads, lines)\n"
                           "        continue\n"
                           "    for request in reversed(held):\n"
                           "        if os.path.exists('fatal-now') and request['turn'] == 2:\n"
                           "            os.remove('fatal-now')\n"
                           "            os.kill(os.getpid(), signal.SIGKILL)\n"
                           "        result = environment(**request)\n"
                           "        kind = 'append' if isinstance(result, str) else 'reward'\n"
                           "        os.write(1, (json.dumps({'id': request['id'], kind: result}) + '\\n').encode())\n"
                           "    held = []\n";

#define SIZES                                                                                                                              \
    "model.layers=2 model.width=64 model.heads=4 model.kv_heads=4 model.ffn=192 data.length=64 batch.sequences=16 precision=bf16 threads=2 " \
    "tensorboard=false eval.sample_tokens=0 "
#define PLAY                                                                                                                               \
    "train init=base data.train=tasks.jsonl data.valid=tasks.jsonl rl.loss=rloo rl.turns=2 rl.tokens=8 rl.prompts=6 rl.samples=16 "          \
    "optimizer.lr=1e-3 optimizer.weight_decay=0 schedule.warmup=0 schedule.kind=constant data.length=64 batch.sequences=16 precision=bf16 "  \
    "threads=2 tensorboard=false "

static int setup(void **state) {
    if (enter_folder(state) != 0 || symlink(tokenizer, "tokenizer.json") != 0) return -1;
    FILE *file = fopen("guesses.jsonl", "w");
    assert_non_null(file);
    for (int i = 0; i < 4000; i++) {
        RngBits bits = rng_bits(1, 1, (uint64_t)i);
        uint64_t guess = bits.word[0] % 3, number = bits.word[1] % 3;
        char hint[] = {(char)('1' + guess), number < guess ? '<' : '>', 0};
        bool told = guess != number && bits.word[2] % 2, knows = told && bits.word[2] / 2 % 2;
        fprintf(file, "{\"prompt\": \"?%s\", \"completion\": \"%d\"}\n", told ? hint : "", 1 + (int)(knows ? number : bits.word[3] % 3));
    }
    assert_int_equal(fclose(file), 0);
    write_text("tasks.jsonl",
        "{\"prompt\": \"?\", \"answer\": \"1\"}\n{\"prompt\": \"?\", \"answer\": \"2\"}\n{\"prompt\": \"?\", \"answer\": \"3\"}\n");
    write_text("game.py", game);
    write_text("late-game", late);
    assert_int_equal(chmod("late-game", 0755), 0);
    smelt_good("train run=base data.train=guesses.jsonl data.packing=best_fit batch.tokens=1024 steps=300 optimizer.lr=3e-3 "
               "schedule.warmup=20 checkpoint.every=300 " SIZES);
    return 0;
}

static void assert_no_mismatch(const char *run) {
    json_auto_t *steps = records(run, "step");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        assert_true(number(json_array_get(steps, i), "mismatch_kl") == 0);
        assert_true(number(json_array_get(steps, i), "mismatch_share") == 0);
    }
}

/* Returns the samples of a rollout. */
static json_t *samples_of(const char *run, int step) {
    size_t size;
    SCOPED_FREE char *path = memory_format("%s/rollouts/%d.jsonl", run, step), *text = (char *)read_bytes(path, &size);
    json_t *samples = json_array();
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) json_array_append_new(samples, json_loads(line, 0, NULL));
    return samples;
}

static const char *text_of(const json_t *object, const char *name) { return json_string_value(json_object_get(object, name)); }

/* -- Learning ------------------------------------------------------------------------------------------------------ */

static void a_model_learns_from_hints(void **state) {
    (void)state;
    enum { LAST = 20 };
    smelt_good(PLAY "run=hints rl.environment=python:game.py steps=80");
    double reward = 0;
    for (int i = 1; i <= LAST; i++) reward += recorded("hints", "step", -i, "reward") / LAST;
    assert_true(recorded("hints", "step", 0, "reward") < 0.8);
    if (!(reward > 0.9)) fail_msg("the mean reward of the last %d steps is %g", LAST, reward);
    assert_no_mismatch("hints");
}

/* -- The same bits ------------------------------------------------------------------------------------------------- */

#define BRIEF PLAY "rl.kl_coef=0.05 rl.refill=1 rl.updates=2 steps=8 checkpoint.every=2 "

static void answers_in_any_order_give_the_same_bits(void **state) {
    (void)state;
    smelt_good(BRIEF "run=prompt rl.environment=python:game.py");
    smelt_good(BRIEF "run=late rl.environment=program:./late-game rl.reward_copies=1 rl.reward_in_flight=16 rl.slots=11");
    assert_true(same_checkpoint("late", "prompt", 8));
    assert_true(same_bytes("late/rollouts/7.jsonl", "prompt/rollouts/7.jsonl"));
    assert_true(recorded("late", "step", 0, "mismatch_kl") == 0 && recorded("late", "step", 0, "mismatch_share") == 0);
}

static void a_killed_environment_is_named_and_nothing_is_lost(void **state) {
    (void)state;
    write_text("fatal-now", "");
    smelt_says(0, "environment: the program was killed by signal 9",
        BRIEF "run=fatal rl.environment=program:./late-game rl.reward_copies=2 rl.reward_in_flight=4");
    assert_false(file_exists("fatal-now"));
    assert_true(same_checkpoint("fatal", "prompt", 8));
}

static void a_killed_run_continues_with_the_same_bits(void **state) {
    (void)state;
    static const char *const marks[] = {"killed/rollouts/3.jsonl", "killed/checkpoints/step-00000004/manifest.json"};
    for (int kill_at = 0; kill_at < 2; kill_at++)
        smelt_kill_at(BRIEF "run=killed rl.environment=program:./late-game rl.reward_in_flight=4", marks[kill_at]);
    smelt_good(BRIEF "run=killed rl.environment=program:./late-game rl.reward_in_flight=4");
    assert_true(same_checkpoint("killed", "prompt", 8));
}

/* Ranks that divide the model get the answers together, whenever they come. */
static void ranks_play_what_one_process_plays(void **state) {
    (void)state;
    static const struct {
        int ranks;
        const char *settings;
    } layouts[] = {{2, ""}, {2, "layout.tp=2"}, {2, "layout.tp=2 rl.environment=program:./late-game rl.reward_in_flight=4"},
        {4, "layout.tp=2 layout.zero=1"}};
    smelt_good(BRIEF "run=one rl.environment=python:game.py precision=fp64 rl.slots=5");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char words[1024], run[16];
        snprintf(run, sizeof run, "ranks-%zu", i);
        snprintf(words, sizeof words, "launch -n %d -- " BRIEF "run=%s rl.environment=python:game.py precision=fp64 %s", layouts[i].ranks,
            run, layouts[i].settings);
        smelt_good(words);
        compare_records_within(run, "one", "step", "grad_norm", 1e-8);
        compare_records_within(run, "one", "step", "reward", 0);
        compare_records_within(run, "one", "step", "turns", 0);
    }
    write_text("broken.py", "def environment(**fields): return 1 / 0\n");
    smelt_says(
        ERROR_DATA, "ZeroDivisionError", "launch -n 2 restarts=0 -- " BRIEF "run=broken rl.environment=python:broken.py layout.tp=2");
    write_text("some.py", "def environment(completion, **fields): return '' if completion == '2' else 1\n");
    smelt_good("launch -n 2 -- " BRIEF "run=some-tp rl.environment=python:some.py rl.reward_errors=skip layout.tp=2 precision=fp64");
    smelt_good(BRIEF "run=some-one rl.environment=python:some.py rl.reward_errors=skip precision=fp64");
    assert_true(recorded("some-tp", "step", 0, "failed_share") == recorded("some-one", "step", 0, "failed_share"));
}

/* -- Samples ------------------------------------------------------------------------------------------------------- */

/* Appended tokens have no log-probability, and turns are the sample in parts. Rewards of rl.reward judge the last turn, and those
 * of all answers add up. */
static void samples_are_written_with_their_turns(void **state) {
    (void)state;
    write_text("both.py", "def environment(turn, last, turns, completion, **fields):\n"
                          "    assert len(turns) == turn and turns[-1] == {'completion': completion}\n"
                          "    return 0.25 if last or turn == 3 else {'append': '<', 'reward': 0.5}\n");
    smelt_good(PLAY "run=written rl.environment=python:both.py rl.reward=format:[13] rl.turns=4 rl.tokens=12 steps=1");
    json_auto_t *samples = samples_of("written", 1);
    double drawn = 0;
    assert_int_equal(json_array_size(samples), 6 * 16);
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *sample = json_array_get(samples, i), *ids = json_object_get(sample, "ids"),
                     *logprobs = json_object_get(sample, "logprobs"), *turns = json_object_get(sample, "turns"),
                     *rewards = json_object_get(sample, "rewards");
        size_t given = 0, count = json_array_size(turns);
        assert_int_equal(json_array_size(ids), json_array_size(logprobs));
        for (size_t t = 0; t < json_array_size(ids); t++) {
            bool appended = json_is_null(json_array_get(logprobs, t));
            given += appended;
            drawn += !appended;
            if (appended) assert_int_equal(json_integer_value(json_array_get(ids, t)), '<');
        }
        assert_int_equal(given, count - 1);
        const char *last = text_of(json_array_get(turns, count - 1), "completion");
        if (count > 1) assert_string_equal(text_of(json_array_get(turns, 0), "append"), "<");
        double by_environment = number(rewards, "environment"), by_pattern = !strcmp(last, "1") || !strcmp(last, "3");
        bool cut = strcmp(text_of(sample, "finish"), "length") == 0;
        if (!cut) assert_int_equal(count, 3);
        assert_true(by_environment == 0.25 + 0.5 * (double)(count - 1) && number(rewards, "format") == by_pattern);
        assert_true(number(sample, "reward") == by_environment + by_pattern);
    }
    assert_true(drawn == recorded("written", "step", 0, "drawn_tokens"));
    assert_true(fabs(recorded("written", "step", 0, "sample_length") - drawn / 96) < 1e-9);
}

/* A text that does not fit is not appended: the environment is asked again, for a reward. */
static void limits_end_a_sample(void **state) {
    (void)state;
    write_text("long.py", "def environment(last, finish, **fields):\n"
                          "    return {'reward': finish == 'length', 'note': 'x'} if last else '<' * 20\n");
    smelt_good(PLAY "run=long rl.environment=python:long.py rl.turns=4 steps=1");
    assert_true(recorded("long", "step", 0, "cut_share") == 1);
    assert_true(recorded("long", "step", 0, "reward") == 1);
    write_text("turns.py", "def environment(last, finish, turn, **fields): return turn if last and finish == 'stop' else '<'\n");
    smelt_good(PLAY "run=turns rl.environment=python:turns.py rl.turns=3 rl.tokens=40 steps=1 optimizer.lr=0");
    assert_true(recorded("turns", "step", 0, "turns") > 2.9);
}

/* -- Faults -------------------------------------------------------------------------------------------------------- */

static void what_cannot_work_is_refused(void **state) {
    (void)state;
    smelt_says(ERROR_USAGE, "an environment is one program", PLAY "run=x steps=1 rl.environment=exact");
    smelt_says(ERROR_USAGE, "an environment is one program", PLAY "run=x steps=1 rl.environment=program:a,program:b");
    smelt_says(ERROR_USAGE, "rl.environment", PLAY "run=x steps=1 rl.reward=exact");
    smelt_says(ERROR_USAGE, "set rl.reward", PLAY "run=x steps=1 rl.turns=8");
}

static void answers_that_cannot_be_are_named(void **state) {
    (void)state;
    static const struct {
        const char *answer, *message;
    } wrong[] = {{"'<'", "it appended to a \"last\" turn: answer with a \"reward\""},
        {"[{'role': 'tool', 'content': 'a'}]", "is not a conversation"}, {"''", "neither a text nor a list of messages"},
        {"{'append': 5}", "neither a text nor a list of messages"}, {"1 / 0", "ZeroDivisionError"}, {"None", "TypeError"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        SCOPED_FREE char *text = memory_format("def environment(**fields): return %s\n", wrong[i].answer);
        write_text("wrong.py", text);
        smelt_says(ERROR_DATA, wrong[i].message, PLAY "run=wrong-%d steps=1 rl.environment=python:wrong.py", (int)i);
    }
    write_text("some.py", "def environment(completion, **fields): return '' if completion == '2' else 1\n");
    smelt_says(0, "is excluded", PLAY "run=some steps=1 rl.environment=python:some.py rl.reward_errors=skip");
    double failed = recorded("some", "step", 0, "failed_share");
    assert_true(failed > 0 && failed < 1 && recorded("some", "step", 0, "reward") == 1);
}

/* -- Conversations ------------------------------------------------------------------------------------------------- */

/* The tool's answer, and a text as a message of the user, stand between the template's tokens. */
static void tools_answer_in_the_template(void **state) {
    (void)state;
    FILE *file = fopen("chats.jsonl", "w");
    assert_non_null(file);
    for (int i = 0; i < 200; i++)
        fputs("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n", file);
    assert_int_equal(fclose(file), 0);
    write_text("asks.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    write_text("tool.py", "def environment(turn, last, **fields):\n"
                          "    if last: return 0\n"
                          "    return [{'role': 'tool', 'content': 'x y'}] if turn == 1 else 'z' if turn == 2 else 1\n");
    smelt_good("train run=chats data.train=chats.jsonl data.tokenizer=tokenizer.json data.template=chatml data.valid_fraction=0 "
               "data.packing=best_fit batch.tokens=768 steps=60 optimizer.lr=3e-3 "
               "schedule.warmup=5 checkpoint.every=60 " SIZES "data.length=192 batch.sequences=4");
    smelt_good(
        "train init=chats data.train=asks.jsonl data.template=chatml rl.loss=rloo rl.tokens=120 rl.temperature=0.5 rl.prompts=1 "
        "rl.samples=4 "
        "data.length=192 batch.sequences=1 steps=1 run=tools rl.environment=python:tool.py tensorboard=false threads=2 precision=bf16");
    json_auto_t *samples = samples_of("tools", 1);
    size_t most = 0;
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *turns = json_object_get(json_array_get(samples, i), "turns");
        size_t count = json_array_size(turns);
        if (count > 1) assert_string_equal(text_of(json_array_get(turns, 0), "append"), "\ntool\nx y\nassistant\n");
        if (count > 2) assert_string_equal(text_of(json_array_get(turns, 1), "append"), "\nuser\nz\nassistant\n");
        most = count > most ? count : most;
    }
    assert_in_range(most, 2, 3);
    assert_no_mismatch("tools");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_learns_from_hints),
        cmocka_unit_test(answers_in_any_order_give_the_same_bits),
        cmocka_unit_test(a_killed_environment_is_named_and_nothing_is_lost),
        cmocka_unit_test(a_killed_run_continues_with_the_same_bits),
        cmocka_unit_test(ranks_play_what_one_process_plays),
        cmocka_unit_test(samples_are_written_with_their_turns),
        cmocka_unit_test(limits_end_a_sample),
        cmocka_unit_test(what_cannot_work_is_refused),
        cmocka_unit_test(answers_that_cannot_be_are_named),
        cmocka_unit_test(tools_answer_in_the_template),
    };
    if (!realpath("tests/golden/chat/tokenizer.json", tokenizer)) return 1;
    train_main();
    return cmocka_run_group_tests(tests, setup, leave_folder);
}

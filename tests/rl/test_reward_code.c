/* The reward `code`, by `smelt reward`, since code runs in a process of the program; and that command. */
#include "rl_rewards.h"

static char *smelt;

static ProcessResult run_reward(const char *reward, const char *more) {
    SCOPED_FREE char *setting = memory_format("rl.reward=%s", reward);
    Process process = process_start((char *[]){smelt, "reward", "rewards.jsonl", setting, (char *)more, NULL});
    return process_finish(&process);
}

typedef struct CodeCase {
    const char *code, *tests;
    const char *note; /* NULL: it passes */
} CodeCase;

static void generated_code_is_run_and_limited(void **state) {
    (void)state;
    static const CodeCase cases[] = {
        {"def f(x):\n    return 2 * x", "[\"assert f(2) == 4\", \"assert f(0) == 0\"]", NULL},
        {"def f(x):\n    return x + 2", "[\"assert f(2) == 4\", \"assert f(0) == 0\"]", "test 2 of 2: AssertionError"},
        {"print(int(input()) + 1)", "[{\"input\": \"41\\n\", \"output\": \"42\"}]", NULL},
        {"print(int(input()) + 2)", "[{\"input\": \"41\\n\", \"output\": \"42\"}]", "another output"},
        {"import sys\nprint(42)\nsys.exit(0)", "[{\"input\": \"\", \"output\": \"42\"}]", NULL},
        {"import threading, json, random\nt = threading.Thread(target=print); t.start(); t.join()", "\"import collections\"", NULL},
        {"import os\nos._exit(0)", "\"assert f(2) == 4\"", "before the end of the tests"},
        {"import sys\nsys.exit(0)", "\"pass\"", "before the end of the tests"},
        {"while True: pass", "\"pass\"", "too much CPU time"},
        {"x = 'a' * 10**11", "\"pass\"", "MemoryError"},
        {"while True: print('x' * 10000)", "\"pass\"", "File too large"},
        {"import socket\nsocket.create_connection(('127.0.0.1', 1))", "\"pass\"", "Operation not permitted"},
        {"import os\nos.fork()", "\"pass\"", "Operation not permitted"},
        {"import subprocess\nsubprocess.run(['true'])", "\"pass\"", "Operation not permitted"},
        {"open('file', 'w')", "\"pass\"", "Operation not permitted"},
        {"import os\nos.remove('rewards.jsonl')", "\"pass\"", "Operation not permitted"},
        {"import os, signal\nos.kill(os.getppid(), 9)", "\"pass\"", "Operation not permitted"},
        {"import resource\nresource.setrlimit(resource.RLIMIT_CPU, (100, 100))", "\"pass\"", "not allowed"},
        {"import os\nassert 'SMELT_SECRET' not in os.environ", "\"pass\"", NULL},
        {"import ctypes\nctypes.string_at(0)", "\"pass\"", "signal 11"},
        {"def f(:", "\"pass\"", "SyntaxError"},
    };
    enum { COUNT = sizeof cases / sizeof *cases };
    FILE *file = fopen("rewards.jsonl", "w");
    assert_non_null(file);
    for (int i = 0; i < COUNT; i++) {
        SCOPED_FREE char *completion = memory_format("A guess:\n```\nraise\n```\nThe answer:\n```python\n%s\n```\nDone.", cases[i].code);
        json_auto_t *record = json_pack("{s:s, s:o}", "completion", completion, "tests", json_loads(cases[i].tests, JSON_DECODE_ANY, NULL));
        json_dumpf(record, file, 0);
        fputc('\n', file);
    }
    fclose(file);
    ProcessResult result = run_reward("code", "rl.code_seconds=2");
    if (result.code != 0) fail_msg("%s", result.errors);
    char *line = strtok(result.output, "\n");
    for (int i = 0; i < COUNT; i++, line = strtok(NULL, "\n")) {
        json_auto_t *answer = line ? json_loads(line, 0, NULL) : NULL;
        const char *note = json_string_value(json_object_get(answer, "note"));
        double reward = json_number_value(json_object_get(answer, "reward"));
        if (!answer || reward != (cases[i].note ? 0 : 1)) fail_msg("%s: %s", cases[i].code, line ? line : result.errors);
        if (cases[i].note) assert_holds(note ? note : "no note", cases[i].note);
    }
    assert_int_equal(count_entries(), 1);
    process_free(&result);
}

/* An interpreter that is missing is an error, not a reward of 0. */
static void code_without_an_interpreter_is_an_error(void **state) {
    (void)state;
    write_text("rewards.jsonl", "{\"completion\": \"x = 1\", \"tests\": \"pass\"}\n");
    ProcessResult result = run_reward("code:./no-python", NULL);
    assert_int_equal(result.code, ERROR_DATA);
    assert_holds(result.errors, "./no-python cannot be run: install Python 3");
    assert_string_equal(result.output, "");
    process_free(&result);
}

static void completions_of_a_file_are_scored(void **state) {
    (void)state;
    write_text("rewards.jsonl", "{\"completion\": \"4\", \"answer\": 5}\n"
                                "\n"
                                "{\"completion\": \"so 5\", \"answer\": 5, \"completion_ids\": [1, 2]}\n");
    ProcessResult result = run_reward("last_number, 0.5*length:2", "rl.reward_errors=skip");
    assert_int_equal(result.code, 0);
    assert_holds(result.output, "{\"line\": 1, \"error\": \"length: the number of tokens of the completion is unknown");
    assert_holds(result.output, "{\"line\": 3, \"reward\": 1.5, \"values\": {\"last_number\": 1.0, \"length\": 1.0}}");
    assert_holds(result.errors, "2 completions, reward 1.5000 on average, standard deviation 0.0000, 1 excluded");
    process_free(&result);
    result = run_reward("last_number, 0.5*length:2", NULL);
    assert_int_equal(result.code, ERROR_DATA);
    assert_holds(result.errors, "sample 1 has no reward: length");
    process_free(&result);
}

/* The command is itself a reward program, of which a set may have copies. */
static void the_command_serves_requests(void **state) {
    (void)state;
    SCOPED_FREE char *text = memory_format("program:%s reward rl.reward=similarity serve=true", smelt);
    RewardLimits limits = reward_limits_of_tests;
    limits.skip = true;
    RewardSet *rewards = open_set(text, limits);
    submit(rewards, 0, "abcd", "{\"answer\": \"abcx\"}");
    submit(rewards, 1, "abcd", "{}");
    RewardResult result = take(rewards, 0);
    assert_true(result.total == 0.75);
    reward_result_free(&result);
    result = take(rewards, 1);
    assert_holds(result.failure ? result.failure : "none", "no \"answer\"");
    reward_result_free(&result);
    rewards_free(rewards);
}

static bool is_running(int id) {
    SCOPED_FREE char *status = memory_format("/proc/%d/stat", id);
    FILE *file = fopen(status, "r");
    char state = 'X';
    if (file && fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    if (file) fclose(file);
    return state != 'X' && state != 'Z';
}

/* Finds the descendants of the process ids[0]. Returns their number, with the process itself. */
static int find_descendants(int ids[8]) {
    int count = 1;
    for (int i = 0; i < count; i++) {
        SCOPED_FREE char *command = memory_format("cat /proc/%d/task/*/children 2>/dev/null", ids[i]);
        FILE *children = popen(command, "r");
        assert_non_null(children);
        while (count < 8 && fscanf(children, "%d", &ids[count]) == 1) count++;
        pclose(children);
    }
    return count;
}

/* A program that never looks at its input, the process that runs generated code, and the code. */
static void a_kill_leaves_no_process(void **state) {
    (void)state;
    int ids[8];
    write_text("rewards.jsonl", "{\"completion\": \"import time\\ntime.sleep(1e6)\", \"tests\": \"pass\"}\n");
    Process process = process_start((char *[]){smelt, "reward", "rewards.jsonl", "rl.reward=code:/usr/bin/python3,program:sleep 100000",
        "rl.reward_copies=1", "rl.code_seconds=1000", NULL});
    ids[0] = process.id;
    WAIT_UNTIL(find_descendants(ids) == 4, "the processes do not start");
    kill(process.id, SIGKILL);
    ProcessResult result = process_finish(&process);
    assert_int_equal(result.signal, SIGKILL);
    process_free(&result);
    for (int i = 1; i < 4; i++) WAIT_UNTIL(!is_running(ids[i]), "a process is left");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(generated_code_is_run_and_limited),
        IN_FOLDER(code_without_an_interpreter_is_an_error),
        IN_FOLDER(completions_of_a_file_are_scored),
        IN_FOLDER(the_command_serves_requests),
        IN_FOLDER(a_kill_leaves_no_process),
    };
    smelt = process_smelt();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(smelt);
    return failed;
}

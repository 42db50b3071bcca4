/* Programs and servers that compute rewards, and fail in every way. They are short scripts in the test's folder. */
#include "rl_rewards.h"

/* A program that rewards a completion with the number in it. At "fault N" it runs the statement of fault N, and at "once
 * N" too, but only the first time. */
static void write_program(const char *const *statements, int count) {
    FILE *file = fopen("program.py", "w");
    assert_non_null(file);
    fputs("import json, os, sys, time\n"
          "def answer(**fields): print(json.dumps(fields), flush=True)\n"
          "faults = [\n",
        file);
    for (int i = 0; i < count; i++) fprintf(file, "    lambda number: %s,\n", statements[i]);
    fputs("]\n"
          "for line in sys.stdin:\n"
          "    request = json.loads(line)\n"
          "    words = request['completion'].split()\n"
          "    done = f'done-{words[-1]}'\n"
          "    fails = words[0] == 'fault' or words[0] == 'once' and not os.path.exists(done)\n"
          "    if words[0] == 'once': open(done, 'w').close()\n"
          "    if fails: faults[int(words[-1])](request['id'])\n"
          "    else: answer(id=request['id'], reward=int(words[-1]))\n",
        file);
    fclose(file);
}

static const struct {
    const char *name, *statement; /* of the program, in place of an answer */
    const char *message;          /* part of the failure */
    bool of_sample;               /* of the answer to one sample, after which the program continues */
} faults[] = {
    {"dies", "os._exit(3)", "ended with exit code 3", false},
    {"is killed", "os.kill(os.getpid(), 9)", "was killed by signal 9", false},
    {"ends without an error", "sys.exit(0)", "ended with exit code 0", false},
    {"closes its output", "(os.close(1), time.sleep(1e6))", "closed its output", false},
    {"prints rubbish", "print('Loading model...', flush=True)", "wrote 'Loading model...', which is not an answer", false},
    {"prints a list", "print([1, 2], flush=True)", "wrote '[1, 2]', which is not an answer", false},
    {"prints bytes", "os.write(1, b'\\0\\xff\\n')", "wrote '\\x00\\xff', which is not an answer", false},
    {"prints without end", "[os.write(1, b'x' * 65536) for _ in range(40)]", "wrote a line of more than 1048576 bytes", false},
    {"answers another request", "answer(id=number + 1000, reward=1)", "which it has not", false},
    {"answers without id", "answer(reward=1)", "answered without \"id\"", false},
    {"answers with a wrong id", "answer(id=str(number), reward=1)", "\"id\" that is not an integer", false},
    {"answers NaN", "answer(id=number, reward=float('nan'))", "its reward is NaN", true},
    {"answers an infinity", "answer(id=number, reward=-float('inf'))", "its reward is -Infinity", true},
    {"answers a huge number", "print('{\"id\": %d, \"reward\": 1e999}' % number, flush=True)", "its reward is Infinity", true},
    {"answers nothing", "answer(id=number)", "no number \"reward\"", true},
    {"answers a text", "answer(id=number, reward='1')", "no number \"reward\"", true},
    {"answers null", "answer(id=number, reward=None)", "no number \"reward\"", true},
    {"has a wrong metric", "answer(id=number, reward=1, metrics={'a': 'b'})", "its metric \"a\"", true},
    {"has a list of metrics", "answer(id=number, reward=1, metrics=[1])", "\"metrics\" are not an object", true},
    {"reports an error", "answer(id=number, error='no such unit')", "no such unit", true},
};
enum { FAULT_COUNT = sizeof faults / sizeof *faults };

/* A sample at which the program fails each time has a failure that names the fault. A sample at which it fails once has
 * its reward, and so have all others. A fault of an answer is not tried again. */
static void faults_are_named_and_nothing_else_is_lost(void **state) {
    (void)state;
    static const char *const kinds[] = {"fault", "once", "good"};
    const char *statements[FAULT_COUNT];
    RewardLimits limits = reward_limits_of_tests;
    limits.skip = true;
    for (int i = 0; i < FAULT_COUNT; i++) statements[i] = faults[i].statement;
    write_program(statements, FAULT_COUNT);
    RewardSet *rewards = open_set("program:python3 -S program.py", limits);
    for (int id = 0; id < 3 * FAULT_COUNT; id++) {
        SCOPED_FREE char *completion = memory_format("%s %d", kinds[id % 3], id / 3);
        submit(rewards, id, completion, "{}");
    }
    for (int id = 0; id < 3 * FAULT_COUNT; id++) {
        int fault = id / 3;
        RewardResult result = take(rewards, id);
        bool fails = id % 3 == 0 || (id % 3 == 1 && faults[fault].of_sample);
        if (fails != (result.failure != NULL))
            fail_msg("a program that %s: %s: %s", faults[fault].name, kinds[id % 3], result.failure ? result.failure : "no failure");
        if (fails) assert_holds(result.failure, faults[fault].message);
        assert_true(result.total == (fails ? 0 : fault));
        reward_result_free(&result);
    }
    rewards_free(rewards);
}

/* The limit is long for a busy machine that starts Python, so that only the first attempt at the second sample is late. */
static void a_hang_ends_and_nothing_is_lost(void **state) {
    (void)state;
    RewardLimits limits = reward_limits_of_tests;
    limits.seconds = 2;
    limits.attempts = 50;
    write_program((const char *[]){"time.sleep(1e6)"}, 1);
    RewardSet *rewards = open_set("program:python3 -S program.py", limits);
    static const char *const completions[] = {"5", "once 0", "5"};
    for (int id = 0; id < 3; id++) submit(rewards, id, completions[id], "{}");
    for (int id = 0; id < 3; id++) {
        RewardResult result = take(rewards, id);
        assert_true(result.total == (id == 1 ? 0 : 5));
        reward_result_free(&result);
    }
    assert_int_equal(access("done-0", F_OK), 0);
    rewards_free(rewards);
}

static void a_hang_is_named(void **state) {
    (void)state;
    RewardLimits limits = reward_limits_of_tests;
    Error error;
    RewardResult result;
    limits.seconds = 0.3;
    RewardSet *rewards = open_set("program:sleep 1000", limits);
    submit(rewards, 3, "5", "{}");
    assert_false(rewards_take(rewards, &result, &error));
    assert_int_equal(error.code, ERROR_DATA);
    assert_holds(error.message, "sample 3 has no reward: program: in each of 2 attempts the program failed");
    assert_holds(error.message, "gave no answer in 0.3 seconds: raise rl.reward_seconds");
    rewards_free(rewards);
}

/* Samples before the one that failed keep their results. */
static void a_failed_sample_stops_in_its_turn(void **state) {
    (void)state;
    Error error;
    RewardResult result;
    write_program((const char *[]){"answer(id=number, reward=float('nan'))"}, 1);
    RewardSet *rewards = open_set("program:python3 -S program.py", reward_limits_of_tests);
    submit(rewards, 1, "5", "{}");
    submit(rewards, 2, "fault 0", "{}");
    result = take(rewards, 1);
    assert_true(result.total == 5);
    reward_result_free(&result);
    assert_false(rewards_take(rewards, &result, &error));
    assert_holds(error.message, "sample 2 has no reward: program: its reward is NaN");
    rewards_free(rewards);
}

/* With skip too, since no sample will have a reward. */
static void a_program_that_cannot_work_is_given_up(void **state) {
    (void)state;
    static const struct {
        const char *program, *part;
    } cases[] = {{"./no-such-program", "was not found (exit code 127)"},
        {"echo '{\\\"error\\\": \\\"no weights\\\"}'; sleep 1000", "cannot work: no weights"},
        {"false", "ended with exit code 1 before it read its next request"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RewardLimits limits = reward_limits_of_tests;
        Error error;
        RewardResult result = {0};
        bool good = true;
        limits.skip = true;
        limits.copies = 1;
        SCOPED_FREE char *text = memory_format("program:\"%s\"", cases[i].program);
        RewardSet *rewards = open_set(text, limits);
        for (int id = 0; id < 20; id++) submit(rewards, id, "5", "{}");
        for (int id = 0; id < 20 && good; id++) {
            good = rewards_take(rewards, &result, &error);
            if (good) reward_result_free(&result);
        }
        assert_false(good);
        assert_holds(error.message, cases[i].part);
        assert_holds(error.message, "given up");
        rewards_free(rewards);
    }
}

/* One child has all requests, and answers the last one first. */
static void answers_may_come_in_any_order(void **state) {
    (void)state;
    enum { COUNT = 64 };
    RewardLimits limits = reward_limits_of_tests;
    limits.copies = 1;
    limits.in_flight = COUNT;
    write_text("program.py", "import json, sys\n"
                             "requests = [json.loads(sys.stdin.readline()) for _ in range(64)]\n"
                             "for r in reversed(requests):\n"
                             "    answer = {'id': r['id'], 'reward': float(r['completion']) / 3, 'metrics': {'half': True}}\n"
                             "    print(json.dumps(answer), flush=True)\n"
                             "sys.stdin.read()\n");
    RewardSet *rewards = open_set("program:python3 -S program.py", limits);
    assert_false(rewards_wait(rewards, 0));
    for (int id = 0; id < COUNT; id++) {
        char text[16];
        snprintf(text, sizeof text, "%d", id);
        submit(rewards, id, text, "{}");
    }
    WAIT_UNTIL(rewards_wait(rewards, 0.1), "no reward");
    for (int id = 0; id < COUNT; id++) {
        RewardResult result = take(rewards, id);
        assert_true(result.total == (double)id / 3);
        assert_true(json_number_value(json_object_get(result.metrics, "program.half")) == 1);
        reward_result_free(&result);
    }
    assert_false(rewards_wait(rewards, 0));
    rewards_free(rewards);
}

/* A second answer to a request is a fault and does not count. */
static void a_second_answer_is_a_fault(void **state) {
    (void)state;
    RewardLimits limits = reward_limits_of_tests;
    limits.copies = 1;
    limits.attempts = 50;
    write_text("program.py",
        "import json, sys\n"
        "last = None\n"
        "for line in sys.stdin:\n"
        "    r = json.loads(line)\n"
        "    answer = {'id': r['id'], 'reward': int(r['completion'])} if last is None else {'id': last, 'reward': 99}\n"
        "    print(json.dumps(answer), flush=True)\n"
        "    last = r['id']\n");
    RewardSet *rewards = open_set("program:python3 -S program.py", limits);
    for (int id = 0; id < 5; id++) {
        char text[16];
        snprintf(text, sizeof text, "%d", id);
        submit(rewards, id, text, "{}");
    }
    for (int id = 0; id < 5; id++) {
        RewardResult result = take(rewards, id);
        assert_true(result.total == id);
        reward_result_free(&result);
    }
    rewards_free(rewards);
}

/* The record is longer than a pipe holds. */
static void programs_see_the_whole_sample(void **state) {
    (void)state;
    write_text("program.py",
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    r = json.loads(line)\n"
        "    good = r['prompt'] == 'p' and r['completion'] == 'a\\ufffdb' and r['answer'] == {'x': [1]} and r['finish'] == 'stop'\n"
        "    good = good and r['completion_ids'] == [0] * 3 and r['record']['level'] == 1e-5 and len(r['record']['long']) == 300000\n"
        "    print(json.dumps({'id': r['id'], 'reward': good, 'note': 'first\\nsecond'}), flush=True)\n");
    RewardSet *rewards = open_set("program:python3 -S program.py", reward_limits_of_tests);
    SCOPED_FREE char *text = memory_allocate(300001);
    memset(text, 'y', 300000);
    SCOPED_FREE char *record = memory_format("{\"answer\": {\"x\": [1]}, \"level\": 1e-5, \"long\": \"%s\"}", text);
    submit(rewards, 0, "a\xff\x62", record);
    RewardResult result = take(rewards, 0);
    assert_true(result.total == 1);
    assert_string_equal(result.note, "first second");
    reward_result_free(&result);
    rewards_free(rewards);
}

/* A set that is freed while its programs work leaves no process. */
static void programs_end_with_their_set(void **state) {
    (void)state;
    RewardSet *rewards = open_set("program:\"echo $$ > new-$$; mv new-$$ pid-$$; sleep 1000\"", reward_limits_of_tests);
    submit(rewards, 0, "5", "{}");
    submit(rewards, 1, "5", "{}");
    WAIT_UNTIL(system("test $(ls pid-* 2>/dev/null | wc -l) = 2") == 0, "the programs do not start");
    rewards_free(rewards);
    assert_int_equal(system("for f in pid-*; do kill -0 $(cat $f) 2>/dev/null && exit 1; done; exit 0"), 0);
}

static void a_python_function_is_a_reward(void **state) {
    (void)state;
    write_text("helper.py", "scale = 2\n");
    write_text("judge.py", "import helper\n"
                           "print('loading')\n"
                           "def reward(prompt, completion, answer, **fields):\n"
                           "    print('judging', completion)\n"
                           "    if completion == 'raise': raise ValueError('bad unit')\n"
                           "    if completion == 'none': return None\n"
                           "    if completion == 'text': return '1'\n"
                           "    if completion == 'bool': return True\n"
                           "    return helper.scale * (completion == answer) + fields['bonus']\n"
                           "def with_metrics(completion, **fields):\n"
                           "    return {'reward': len(completion), 'metrics': {'words': len(completion.split())}, 'note': 'seen'}\n");
    RewardLimits limits = reward_limits_of_tests;
    limits.skip = true;
    RewardSet *rewards = open_set("python:judge.py, 0.5*python:judge.py:with_metrics", limits);
    submit(rewards, 0, "a b", "{\"answer\": \"a b\", \"bonus\": 0.25}");
    submit(rewards, 1, "raise", "{\"bonus\": 0.25}");
    submit(rewards, 2, "none", "{\"bonus\": 0.25}");
    submit(rewards, 3, "text", "{\"bonus\": 0.25}");
    submit(rewards, 4, "bool", "{\"bonus\": 0.25}");
    RewardResult result = take(rewards, 0);
    assert_true(result.total == 2.25 + 0.5 * 3);
    assert_true(json_number_value(json_object_get(result.metrics, "python2.words")) == 2);
    assert_string_equal(result.note, "seen");
    reward_result_free(&result);
    result = take(rewards, 1);
    assert_holds(result.failure ? result.failure : "none", "reward in judge.py raised ValueError: bad unit");
    reward_result_free(&result);
    result = take(rewards, 2);
    assert_holds(result.failure ? result.failure : "none", "TypeError");
    reward_result_free(&result);
    result = take(rewards, 3);
    assert_holds(result.failure ? result.failure : "none", "the reward is a text: return a number");
    reward_result_free(&result);
    result = take(rewards, 4);
    assert_true(result.total == 1 + 0.5 * 4);
    reward_result_free(&result);
    rewards_free(rewards);
}

/* The first copy says why, and no sample is blamed. */
static void a_wrong_python_file_stops_at_once(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } wrong[] = {{"def reward(:\n", "judge.py cannot be loaded: SyntaxError"}, {"import no_such_module\n", "ModuleNotFoundError"},
        {"def other(**_): return 1\n", "AttributeError: it has no function reward"},
        {"reward = 1\n", "AttributeError: it has no function reward"}, {"exit(1)\n", "SystemExit: 1"}};
    Error error;
    RewardResult result;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text("judge.py", wrong[i].text);
        RewardSet *rewards = open_set("python:judge.py", reward_limits_of_tests);
        submit(rewards, 0, "5", "{}");
        assert_false(rewards_take(rewards, &result, &error));
        assert_holds(error.message, wrong[i].message);
        assert_holds(error.message, "given up");
        rewards_free(rewards);
    }
    assert_null(rewards_create("python:absent.py:reward", reward_limits_of_tests, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_holds(error.message, "cannot read absent.py: No such file");
}

/* What such a program does not read is no attempt. */
static void a_program_may_end_after_each_answer(void **state) {
    (void)state;
    RewardLimits limits = reward_limits_of_tests;
    limits.attempts = 1;
    write_text("program.py", "import json, sys, time\n"
                             "r = json.loads(sys.stdin.readline())\n"
                             "print(json.dumps({'id': r['id'], 'reward': int(r['completion'])}), flush=True)\n"
                             "time.sleep(0.05)\n");
    RewardSet *rewards = open_set("program:python3 -S program.py", limits);
    enum { COUNT = 12 };
    for (int id = 0; id < COUNT; id++) {
        char text[16];
        snprintf(text, sizeof text, "%d", id);
        submit(rewards, id, text, "{}");
    }
    for (int id = 0; id < COUNT; id++) {
        RewardResult result = take(rewards, id);
        assert_true(result.total == id);
        reward_result_free(&result);
    }
    rewards_free(rewards);
}

static void a_server_is_a_reward(void **state) {
    (void)state;
    write_text("server.py", "import http.server, json, os\n"
                            "class Handler(http.server.BaseHTTPRequestHandler):\n"
                            "    seen = set()\n"
                            "    def do_POST(self):\n"
                            "        r = json.loads(self.rfile.read(int(self.headers['Content-Length'])))\n"
                            "        text = r['completion']\n"
                            "        first = text not in self.seen\n"
                            "        self.seen.add(text)\n"
                            "        if text == 'cut' and first:\n"
                            "            self.wfile.write(b'HTTP/1.1 200 OK\\r\\nContent-Length: 100\\r\\n\\r\\nabc')\n"
                            "            return\n"
                            "        answer = {'id': r['id'] + (text == 'other'), 'reward': float('nan') if text == 'nan' else len(text)}\n"
                            "        self.send_response(503 if text == 'busy' and first or text == 'down' else 200)\n"
                            "        self.end_headers()\n"
                            "        self.wfile.write(b'rubbish' if text == 'rubbish' else json.dumps(answer).encode())\n"
                            "    def log_message(self, *_): pass\n"
                            "server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)\n"
                            "with open('port.new', 'w') as file: file.write(str(server.server_port))\n"
                            "os.rename('port.new', 'port')\n"
                            "server.serve_forever()\n");
    static const struct {
        const char *completion, *failure;
        double total;
    } cases[] = {{"abc", NULL, 3}, {"busy", NULL, 4}, {"cut", NULL, 3}, {"nan", "its reward is NaN", 0},
        {"down", "the server failed; in the last one, it answered with status 503", 0}, {"rubbish", "'rubbish', which is not an answer", 0},
        {"other", "to the request", 0}};
    enum { COUNT = sizeof cases / sizeof *cases };
    Process server = process_start((char *[]){"/bin/sh", "-c", "exec python3 server.py", NULL});
    WAIT_UNTIL(access("port", R_OK) == 0, "the server does not start");
    RewardLimits limits = reward_limits_of_tests;
    limits.skip = true;
    SCOPED_FREE char *port = read_text("port"), *text = memory_format("http://127.0.0.1:%s/score", port);
    RewardSet *rewards = open_set(text, limits);
    for (int id = 0; id < COUNT; id++) submit(rewards, id, cases[id].completion, "{}");
    for (int id = 0; id < COUNT; id++) {
        RewardResult result = take(rewards, id);
        if (cases[id].failure) assert_holds(result.failure ? result.failure : "none", cases[id].failure);
        else if (result.failure || result.total != cases[id].total) fail_msg("%s: %s", cases[id].completion, result.failure);
        reward_result_free(&result);
    }
    rewards_free(rewards);
    kill(server.id, SIGKILL);
    ProcessResult ended = process_finish(&server);
    process_free(&ended);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(faults_are_named_and_nothing_else_is_lost),
        IN_FOLDER(a_hang_ends_and_nothing_is_lost),
        IN_FOLDER(a_hang_is_named),
        IN_FOLDER(a_failed_sample_stops_in_its_turn),
        IN_FOLDER(a_program_that_cannot_work_is_given_up),
        IN_FOLDER(answers_may_come_in_any_order),
        IN_FOLDER(a_second_answer_is_a_fault),
        IN_FOLDER(programs_see_the_whole_sample),
        IN_FOLDER(programs_end_with_their_set),
        IN_FOLDER(a_python_function_is_a_reward),
        IN_FOLDER(a_wrong_python_file_stops_at_once),
        IN_FOLDER(a_program_may_end_after_each_answer),
        IN_FOLDER(a_server_is_a_reward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

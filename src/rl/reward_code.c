/* The reward `code`: runs the Python code of a completion with the tests of its record, each in a
 * process of its own that can read files but reach nothing else (reward_sandbox.c). Its process is
 * `smelt reward serve=true`, because a fork of a large process takes long. Owns the files of a test,
 * which are in memory. */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "rl/reward_internal.h"
#include "rl/reward_sandbox_internal.h"

enum { OUTPUT_LIMIT = 1 << 20, TOKEN_BYTES = 32 };

/* The text of reward_driver.py, which runs a test. */
__asm__(".section .rodata\nreward_driver:\n.incbin \"src/rl/reward_driver.py\"\n.byte 0\n.text\n");
extern const char reward_driver[];

/* -- Tests --------------------------------------------------------------------------------------------------------- */

/* One test: statements that run after the code, or an input and the output that it must give. */
typedef struct CodeTest { const char *statements, *input, *output; } CodeTest;

/* Returns the number of tests of a record: "tests" is a text, or a list of texts and of objects. */
static size_t count_tests(const json_t *tests) { return json_is_string(tests) ? 1 : json_array_size(tests); }

static bool read_test(const json_t *tests, size_t index, CodeTest *test) {
    const json_t *one = json_is_string(tests) ? tests : json_array_get(tests, index);
    *test = (CodeTest){.statements = json_string_value(one),
        .input = json_string_value(json_object_get(one, "input")),
        .output = json_string_value(json_object_get(one, "output"))};
    return test->statements || (test->input && test->output);
}

bool reward_code_check(const RewardPart *part, const json_t *record, Error *error) {
    const json_t *tests = json_object_get(record, "tests");
    CodeTest test;
    (void)part;
    for (size_t i = 0; i < count_tests(tests); i++)
        if (!read_test(tests, i, &test))
            return error_set(
                error, ERROR_DATA, "test %zu of the record is neither Python source nor {\"input\": text, \"output\": text}", i + 1);
    return count_tests(tests) > 0 ||
           error_set(error, ERROR_DATA, "the record has no \"tests\": add Python statements, such as [\"assert f(2) == 4\"]");
}

/* Returns the code of a completion: the last block between lines that begin with ```, or all of it. The
 * caller frees it. */
static char *find_code(const char *completion) {
    const char *block = NULL, *start = NULL, *end = NULL;
    for (const char *line = completion; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (!starts_with(line, "```")) continue;
        const char *next = strchr(line, '\n');
        if (block) start = block, end = line, block = NULL;
        else block = next ? next + 1 : NULL;
    }
    return start ? memory_format("%.*s", (int)(end - start), start) : memory_copy_string(completion);
}

/* -- Running ------------------------------------------------------------------------------------------------------- */

/* A run of a test. Files are in memory; 0: not open. */
typedef struct CodeRun {
    int given, input, output, errors, failures;
    char token[TOKEN_BYTES + 1];
    double cpu_seconds; /* used */
    bool ended;         /* by itself, before the last moment */
    int status;
} CodeRun;

static void close_code_run(CodeRun *run) {
    const int files[] = {run->given, run->input, run->output, run->errors, run->failures};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i]) close(files[i]);
}

static int memory_file(const char *text) {
    int file = memfd_create("smelt-code", MFD_CLOEXEC);
    size_t size = text ? strlen(text) : 0;
    if (file < 0) return 0;
    if (size && write(file, text, size) != (ssize_t)size) return close(file), 0;
    lseek(file, 0, SEEK_SET);
    return file;
}

/* Returns the start of a file, for the caller to free. */
static char *file_start(int file, size_t limit) {
    char *text = memory_allocate(limit + 1);
    if (pread(file, text, limit, 0) < 0) text[0] = '\0';
    return text;
}

static bool open_code_run(CodeRun *run, const char *code, const CodeTest *test, Error *error) {
    unsigned char bytes[TOKEN_BYTES / 2];
    bool random = getrandom(bytes, sizeof bytes, 0) == (ssize_t)sizeof bytes;
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(run->token + 2 * i, 3, "%02x", bytes[i]);
    json_auto_t *given = json_pack("{s:s, s:s, s:s}", "code", code, "tests", test->statements ? test->statements : "", "token", run->token);
    SCOPED_FREE char *text = json_dumps(given, JSON_ENSURE_ASCII);
    run->given = text ? memory_file(text) : 0;
    run->input = memory_file(test->input);
    run->output = memory_file(NULL);
    run->errors = memory_file(NULL);
    run->failures = memory_file(NULL);
    if (random && run->given && run->input && run->output && run->errors && run->failures) return true;
    return error_set(error, ERROR_INTERNAL, "cannot create files in memory for a test: %s", strerror(errno));
}

/* Runs the driver in a limited process, until it ends or has used its time. */
static bool run_driver(CodeRun *run, const char *python, double cpu_seconds, int64_t memory, Error *error) {
    char number[16];
    snprintf(number, sizeof number, "%d", run->given);
    SandboxLimits limits = {(int64_t)ceil(cpu_seconds), memory, OUTPUT_LIMIT};
    ChildVariables variables = {0};
    child_set_variable(&variables, memory_format("PATH=%s", getenv("PATH") ? getenv("PATH") : "/usr/bin:/bin"));
    child_set_variable(&variables, memory_copy_string("LANG=C.UTF-8"));
    child_set_variable(&variables, memory_copy_string("PYTHONHASHSEED=0"));
    child_set_variable(&variables, memory_copy_string("PYTHONDONTWRITEBYTECODE=1"));
    child_set_variable(&variables, memory_copy_string("OMP_NUM_THREADS=1"));
    pid_t id = child_start(&(ChildOptions){.arguments = (char *[]){(char *)python, "-c", (char *)reward_driver, number, NULL},
        .program = python,
        .no_environment = true,
        .variables = &variables,
        .input = run->input,
        .output = run->output,
        .errors = run->errors,
        .failures = run->failures,
        .kept = run->given,
        .limit = sandbox_enter,
        .context = &limits});
    child_free_variables(&variables);
    if (id < 0) return error_set(error, ERROR_INTERNAL, "cannot start a process for a test: %s", strerror(errno));
    struct rusage usage = {0};
    struct pollfd file = {child_open_end(id), POLLIN, 0};
    run->ended = file.fd >= 0 && poll(&file, 1, (int)(cpu_seconds * CODE_PATIENCE * 1e3)) > 0;
    kill(id, SIGKILL);
    while (wait4(id, &run->status, 0, &usage) < 0 && errno == EINTR) continue;
    run->cpu_seconds =
        (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + 1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    SCOPED_FREE char *failure = file_start(run->failures, 256);
    if (*failure) return error_set(error, ERROR_INTERNAL, "%s: %s", python, one_line(failure));
    if (file.fd < 0) return error_set(error, ERROR_INTERNAL, "cannot watch a test: Linux is older than 5.3");
    close(file.fd);
    bool killed = run->ended && WIFSIGNALED(run->status) && WTERMSIG(run->status) == SIGKILL;
    return !killed || run->cpu_seconds > cpu_seconds / 2 ||
           error_set(error, ERROR_INTERNAL, "a test was killed, perhaps because the machine has no memory left: free some memory");
}

/* Compares outputs without white space at the ends of lines and of the text. */
static bool outputs_agree(const char *a, const char *b) {
    while (*a || *b) {
        size_t i = strcspn(a, "\n"), j = strcspn(b, "\n"), a_end = i, b_end = j;
        while (a_end > 0 && strchr(" \t\r", a[a_end - 1])) a_end--;
        while (b_end > 0 && strchr(" \t\r", b[b_end - 1])) b_end--;
        if (a_end != b_end || memcmp(a, b, a_end) != 0) return false;
        a += i + (a[i] == '\n');
        b += j + (b[j] == '\n');
    }
    return true;
}

/* Returns the last line of a text, which holds the exception of a traceback. */
static const char *last_line(char *text) {
    size_t size = strlen(text);
    while (size > 0 && text[size - 1] == '\n') text[--size] = '\0';
    char *line = strrchr(text, '\n');
    return one_line(line ? line + 1 : text);
}

/* Returns why the test did not pass, for the caller to free; NULL: it passed. */
static char *judge(const CodeRun *run, const CodeTest *test) {
    SCOPED_FREE char *token = file_start(run->given, TOKEN_BYTES), *output = file_start(run->output, OUTPUT_LIMIT);
    SCOPED_FREE char *errors = file_start(run->errors, OUTPUT_LIMIT);
    int signal = WIFSIGNALED(run->status) ? WTERMSIG(run->status) : 0;
    bool whole = !strcmp(token, run->token);
    if (test->output ? run->status == 0 && outputs_agree(output, test->output) : whole) return NULL;
    if (!run->ended) return memory_copy_string("it waited too long");
    if (signal == SIGKILL || signal == SIGXCPU) return memory_copy_string("it took too much CPU time");
    if (signal) return memory_format("signal %d (%s)", signal, strsignal(signal));
    if (*errors) return memory_format("%.300s", last_line(errors));
    if (test->output && run->status == 0) return memory_copy_string("another output");
    return memory_format("it left with exit code %d before the end of the tests", WEXITSTATUS(run->status));
}

/* Runs a test; `*used` counts the seconds of CPU time of all tests of the sample. `*reason` says why it
 * did not pass, for the caller to free; NULL: it passed. */
static bool run_test(const RewardPart *part, const char *code, const CodeTest *test, double *used, char **reason, Error *error) {
    const RewardLimits *limits = reward_limits(part);
    double left = limits->code_seconds - *used;
    *reason = NULL;
    if (left <= 0) return *reason = memory_copy_string("the tests before it took all the CPU time"), true;
    CodeRun run = {0};
    bool good = open_code_run(&run, code, test, error) && run_driver(&run, part->argument, left, limits->code_bytes, error);
    if (good) *reason = judge(&run, test), *used += run.ended ? run.cpu_seconds : left;
    close_code_run(&run);
    return good;
}

/* Runs a program that must pass, and one that tries to reach the network and must not: so that a
 * missing interpreter, or limits without effect, are errors and no rewards. */
static bool check_sandbox(const RewardPart *part, Error *error) {
    static const CodeTest tests[] = {{.statements = "x = sum(range(10))\nassert x == 45"},
        {.statements = "import os, socket\n"
                       "for f in (os.fork, socket.socket, lambda: os.open('/dev/null', os.O_WRONLY), lambda: os.kill(os.getppid(), 0)):\n"
                       "    try: f()\n"
                       "    except PermissionError: continue\n"
                       "    raise RuntimeError('the limits have no effect')"}};
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        SCOPED_FREE char *reason = NULL;
        double used = 0;
        if (!run_test(part, "", &tests[i], &used, &reason, error)) return false;
        if (reason) return error_set(error, ERROR_INTERNAL, "cannot limit generated code: the trial of the limits failed: %s", reason);
    }
    return true;
}

/* Replaces the name of the interpreter by the file that it is: the limits forbid scripts that look for
 * it, such as those of pyenv. */
static bool find_python(RewardPart *part, Error *error) {
    int output = memory_file(NULL), status = -1;
    char *python = *part->argument ? part->argument : "python3";
    pid_t id = child_start(&(ChildOptions){
        .arguments = (char *[]){python, "-c", "import sys; print(sys.executable, end='')", NULL}, .program = python, .output = output});
    while (id > 0 && waitpid(id, &status, 0) < 0 && errno == EINTR) continue;
    char *path = file_start(output, PATH_MAX);
    close(output);
    if (id < 0 || status != 0 || !*path) {
        free(path);
        return error_set(
            error, ERROR_USAGE, "%s cannot be run: install Python 3, or name another interpreter, as in code:/usr/bin/python3", python);
    }
    free(part->argument);
    part->argument = path;
    return true;
}

bool reward_code_open(RewardPart *part, Error *error) {
    return !reward_limits(part)->here || (find_python(part, error) && check_sandbox(part, error));
}

bool reward_code_compute(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error) {
    const json_t *tests = json_object_get(sample->record, "tests");
    size_t count = count_tests(tests), passed = 0;
    double used = 0;
    (void)answer;
    if (!reward_code_check(part, sample->record, error)) return false;
    SCOPED_FREE char *completion = memory_format("%.*s", (int)sample->completion_size, sample->completion), *code = find_code(completion);
    for (size_t i = 0; i < count; i++) {
        CodeTest test;
        SCOPED_FREE char *reason = NULL;
        read_test(tests, i, &test);
        if (!run_test(part, code, &test, &used, &reason, error)) return false;
        passed += !reason;
        if (reason && !result->note) result->note = memory_format("test %zu of %zu: %s", i + 1, count, reason);
    }
    result->value = passed == count;
    result->metrics = json_pack("{s:f}", "passed", (double)passed / (double)count);
    return true;
}

/* Tests of what a training shows: lines that fit the terminal, the status line, and RUN/log.txt. A pseudoterminal
 * stands for the terminal. Each test works in a folder of its own. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "run/console.h"
#include "run/metrics.h"
#include "support/files.h"
#include "support/step_metrics.h"
#include "train/pace_internal.h"

/* -- The screen ---------------------------------------------------------------------------------------------------- */

#define END "\n(end)\n"

/* stdout goes to the screen from screen_open to screen_text. A thread reads a terminal, which holds little. */
typedef struct Screen {
    int before, master;
    pthread_t reader;
} Screen;

static void *read_terminal(void *argument) {
    const Screen *screen = argument;
    const size_t most = 1 << 16;
    char *text = memory_allocate(most);
    size_t length = 0;
    for (ssize_t got; !strstr(text, "(end)\r\n") && (got = read(screen->master, text + length, most - 1 - length)) > 0;)
        length += (size_t)got;
    return text;
}

/* A terminal of `width` columns; 0: a file. */
static void screen_open(Screen *screen, int width) {
    int slave;
    struct winsize size = {.ws_row = 40, .ws_col = (unsigned short)width};
    fflush(stdout);
    screen->before = dup(STDOUT_FILENO);
    if (width) {
        assert_int_equal(openpty(&screen->master, &slave, NULL, NULL, &size), 0);
        assert_int_equal(pthread_create(&screen->reader, NULL, read_terminal, screen), 0);
    } else {
        screen->master = -1;
        assert_true((slave = open("screen", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) >= 0);
    }
    dup2(slave, STDOUT_FILENO);
    close(slave);
}

/* What was written, without the carriage returns that a terminal puts before newlines. The caller frees. */
static char *screen_text(Screen *screen) {
    size_t length = 0;
    void *text = NULL;
    printf("%s", END);
    fflush(stdout);
    if (screen->master >= 0) assert_int_equal(pthread_join(screen->reader, &text), 0);
    else text = read_bytes("screen", &length);
    dup2(screen->before, STDOUT_FILENO);
    close(screen->before);
    if (screen->master >= 0) close(screen->master);
    char *to = text;
    for (const char *from = text; *from; from++)
        if (from[0] != '\r' || from[1] != '\n') *to++ = *from;
    *to = '\0';
    *strstr(text, END) = '\0';
    return text;
}

/* The longest of what stands on one line of a terminal, where LOG_CLEAR_LINE begins a line anew. */
static size_t widest(const char *text) {
    size_t most = 0, length = 0;
    for (; *text; text++) {
        if (!strncmp(text, LOG_CLEAR_LINE, strlen(LOG_CLEAR_LINE))) {
            length = 0;
            text += strlen(LOG_CLEAR_LINE) - 1;
        } else if (*text == '\n') {
            length = 0;
        } else if (++length > most) {
            most = length;
        }
    }
    return most;
}

/* What the steps first to last print, as `step` but for the number. */
static char *show(int width, int64_t every, StepMetrics step, int64_t first, int64_t last) {
    Screen screen;
    screen_open(&screen, width);
    Console *console = console_create(every);
    for (step.step = first; step.step <= last; step.step++) console_step(console, &step);
    console_close(console);
    return screen_text(&screen);
}

static int count(const char *text, const char *words) {
    int found = 0;
    for (const char *at = text; (at = strstr(at, words)); at++) found++;
    return found;
}

/* -- Lines --------------------------------------------------------------------------------------------------------- */

static void a_file_gets_fixed_columns(void **state) {
    (void)state;
    StepMetrics unknown = plain;
    unknown.peak_flops = unknown.measured_flops = 0;
    unknown.memory = -1;
    unknown.seconds_left = NAN;
    setenv("COLUMNS", "80", 1); /* which is of no interest to a file */
    SCOPED_FREE char *text = show(0, 0, plain, 3, 3), *without = show(0, 0, unknown, 3, 3);
    unsetenv("COLUMNS");
    assert_string_equal(text,
        "     step/steps      loss grad_norm        lr        ms     tok/s   TFLOP/s   %peak   %best     GiB    left\n"
        "           3/10   2.50000    0.7500 1.000e-03     500.0      2000     2.000    25.0    50.0    1.50   1m30s\n");
    assert_string_equal(strchr(without, '\n') + 1,
        "           3/10   2.50000    0.7500 1.000e-03     500.0      2000     2.000 unknown unknown unknown unknown\n");
}

static void a_skipped_step_says_so_at_its_end(void **state) {
    (void)state;
    StepMetrics step = plain;
    step.skipped = true;
    step.loss = -NAN;
    SCOPED_FREE char *text = show(0, 0, step, 3, 3);
    assert_non_null(strstr(text, "       nan "));
    assert_non_null(strstr(text, " skipped\n"));
}

static void a_file_has_every_step_and_one_header(void **state) {
    (void)state;
    StepMetrics step = plain;
    step.steps = 60;
    SCOPED_FREE char *text = show(0, 0, step, 1, 60), *some = show(0, 25, step, 1, 60);
    assert_int_equal(count(text, "/60 "), 60);
    assert_int_equal(count(text, "loss"), 1);
    assert_int_equal(count(some, "/60 "), 4); /* 1, 25, 50, 60 */
}

static void no_line_is_wider_than_the_terminal(void **state) {
    (void)state;
    const int widths[] = {20, 60, 80, 120, 139, 140, 300};
    StepMetrics large = plain;
    large.steps = 123456789012;
    large.loss = 1234567.891;
    large.gradient_norm = 1e30;
    large.seconds = 1e7;
    large.tokens = 123456789012;
    large.memory = INT64_MAX;
    large.flops = 1e30;
    large.skipped = true;
    large.seconds_left = 1e9;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        SCOPED_FREE char *text = show(widths[i], 1, plain, 1, 9), *wide = show(widths[i], 1, large, 123456789000, 123456789009);
        if (widest(text) > (size_t)widths[i]) fail_msg("%zu of %d columns:\n%s", widest(text), widths[i], text);
        if (widest(wide) > (size_t)widths[i]) fail_msg("%zu of %d columns:\n%s", widest(wide), widths[i], wide);
    }
}

static void wider_terminals_get_more_columns(void **state) {
    (void)state;
    SCOPED_FREE char *narrow = show(80, 1, plain, 3, 3), *usual = show(120, 1, plain, 3, 3), *wide = show(160, 1, plain, 3, 3);
    assert_non_null(strstr(narrow, "     step/steps      loss grad_norm        lr     tok/s     GiB    left\n"));
    assert_non_null(
        strstr(usual, "     step/steps      loss grad_norm        lr        ms     tok/s   TFLOP/s   %peak   %best     GiB    left\n"));
    assert_non_null(strstr(wide, " loss    smooth grad_norm "));
}

static void a_terminal_has_no_column_for_a_peak_that_is_not_known(void **state) {
    (void)state;
    StepMetrics step = plain;
    step.peak_flops = NAN;
    SCOPED_FREE char *text = show(120, 1, step, 3, 3);
    assert_null(strstr(text, "%peak"));
    assert_null(strstr(text, "unknown"));
    assert_non_null(strstr(text, "%best"));
}

static void a_terminal_gets_few_lines_and_a_header_now_and_then(void **state) {
    (void)state;
    StepMetrics step = plain;
    step.steps = 60;
    SCOPED_FREE char *quick = show(80, 0, step, 1, 59), *all = show(80, 1, step, 1, 59);
    int seconds = count(quick, "/60 "); /* one, and one more for each second that a slow machine takes */
    assert_true(seconds >= 1 && seconds < 30);
    assert_int_equal(count(all, "/60 "), 59);
    assert_int_equal(count(all, "grad_norm"), 3);
}

static void the_status_line_shows_how_far_the_run_is(void **state) {
    (void)state;
    SCOPED_FREE char *text = show(80, 0, plain, 5, 5);
    const char *status = strrchr(text, '[');
    assert_non_null(status);
    status = strstr(text, LOG_CLEAR_LINE "[");
    assert_non_null(status);
    assert_non_null(strstr(status, "#.") && strstr(status, "]  50%  loss 2.5000  2.00k tok/s  1m30s left"));
    assert_true(!strcmp(text + strlen(text) - strlen(LOG_CLEAR_LINE), LOG_CLEAR_LINE)); /* it goes at the end */
    setenv("TERM", "dumb", 1);
    SCOPED_FREE char *dumb = show(80, 0, plain, 5, 5);
    unsetenv("TERM");
    assert_null(strchr(dumb, '\033'));
}

static void a_long_line_is_broken_at_blanks_where_the_terminal_ends(void **state) {
    (void)state;
    const char *line = "checkpoint of step 8: 18.77 MiB in 0.05 s, 383.83 MiB/s; training paused for 1203.1 ms";
    for (int width = 0; width <= 80; width += 40) {
        Screen screen;
        screen_open(&screen, width);
        Console *console = console_create(0);
        console_print(console, "%s", line);
        console_close(console);
        SCOPED_FREE char *text = screen_text(&screen);
        if (width) assert_true(widest(text) <= (size_t)width && widest(text) > (size_t)width / 2);
        assert_int_equal(count(text, "\n"), width ? 1 + 80 / width : 1);
        assert_non_null(strstr(text, "3.1 ms\n"));
    }
}

static void a_pipe_to_a_launcher_on_a_terminal_gets_lines_that_fit_it(void **state) {
    (void)state;
    StepMetrics step = plain;
    step.steps = 60;
    step.peak_flops = NAN;
    setenv("SMELT_STDOUT_COLUMNS", "80", 1);
    SCOPED_FREE char *all = show(0, 1, step, 1, 59), *quick = show(0, 0, step, 1, 59);
    unsetenv("SMELT_STDOUT_COLUMNS");
    assert_true(widest(all) <= 80);
    assert_int_equal(count(all, "/60 "), 59);
    assert_true(count(quick, "/60 ") < 30);
    assert_null(strchr(all, '\033'));
    assert_null(strstr(all, "unknown"));
}

/* What `print` writes on stderr, for the caller to free. */
static char *errors_of(void (*print)(void)) {
    size_t length;
    int before = dup(STDERR_FILENO);
    assert_non_null(freopen("errors", "w", stderr));
    setvbuf(stderr, NULL, _IONBF, 0);
    print();
    dup2(before, STDERR_FILENO);
    close(before);
    return (char *)read_bytes("errors", &length);
}

static void print_long_warning(void) {
    log_warn("the folder /a/very/long/path/of/some/45/characters/and/more was moved; go on with: smelt train it  and  more words");
}

static void a_warning_is_broken_at_blanks_and_no_word_is_cut(void **state) {
    (void)state;
    SCOPED_FREE char *whole = errors_of(print_long_warning);
    setenv("SMELT_STDERR_COLUMNS", "40", 1);
    SCOPED_FREE char *broken = errors_of(print_long_warning);
    unsetenv("SMELT_STDERR_COLUMNS");
    assert_int_equal(count(whole, "\n"), 1);
    assert_string_equal(broken, "warning: the folder\n"
                                "    /a/very/long/path/of/some/45/characters/and/more\n"
                                "    was moved; go on with:\n"
                                "    smelt train it  and  more words\n"); /* a command stays whole */
}

static void a_name_does_not_become_a_control_sequence(void **state) {
    (void)state;
    Screen screen;
    screen_open(&screen, 0);
    Console *console = console_create(0);
    console_print(console, "run %s", "a\033[2Jb\nc");
    console_close(console);
    SCOPED_FREE char *text = screen_text(&screen);
    assert_string_equal(text, "run a?[2Jb?c\n");
}

/* -- The time left ------------------------------------------------------------------------------------------------- */

static void the_time_left_is_right_from_the_second_step_though_the_first_is_slow(void **state) {
    (void)state;
    Pace pace = {0};
    pace_step(&pace, 100, 60);
    assert_true(pace_left(&pace, 1000, 5) == 600);
    for (int i = 0; i < 3; i++) {
        pace_step(&pace, 100, 2);
        assert_float_equal(pace_left(&pace, 1000, 5), 20, 1e-9);
    }
    pace_step(&pace, 200, 4); /* a batch that has grown */
    pace.evaluation_seconds = 3;
    assert_float_equal(pace_left(&pace, 1000, 5), 35, 1e-9);
}

/* -- RUN/log.txt --------------------------------------------------------------------------------------------------- */

static char *log_text(void) {
    size_t length;
    return (char *)read_bytes("run/log.txt", &length);
}

static void the_log_has_every_step_and_every_line_over_restarts(void **state) {
    (void)state;
    assert_int_equal(mkdir("run", 0777), 0);
    for (int start = 0; start < 2; start++) {
        Screen screen;
        screen_open(&screen, 80);
        Console *console = console_create(0);
        log_copy(console_take, console);
        log_warn("early %d", start);
        console_open_log(console, "run");
        StepMetrics step = plain;
        for (step.step = 1; step.step <= 5; step.step++) console_step(console, &step);
        console_print(console, "validation %d", start);
        log_error("late %d", start);
        log_copy(NULL, NULL);
        console_close(console);
        free(screen_text(&screen));
    }
    SCOPED_FREE char *text = log_text();
    static const char *const lines[] = {
        "early 0", "%peak", " 1/10 ", " 5/10 ", "validation 0", "late 0", "early 1", "%peak", " 1/10 ", " 5/10 ", "validation 1", "late 1"};
    const char *at = text;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!(at = strstr(at, lines[i]))) fail_msg("no '%s' in its place in:\n%s", lines[i], text);
    assert_int_equal(count(text, "\n"), 2 * 9);
    assert_int_equal(count(text, "Z warning: early "), 2);
    assert_null(strchr(text, '\033'));
}

static void a_log_that_was_removed_goes_on_in_a_new_file(void **state) {
    (void)state;
    assert_int_equal(mkdir("run", 0777), 0);
    Screen screen;
    screen_open(&screen, 0);
    Console *console = console_create(0);
    log_copy(console_take, console);
    console_open_log(console, "run");
    console_step(console, &plain);
    assert_int_equal(unlink("run/log.txt"), 0);
    console_print(console, "after");
    console_step(console, &plain);
    log_copy(NULL, NULL);
    console_close(console);
    free(screen_text(&screen));
    SCOPED_FREE char *text = log_text();
    static const char *const lines[] = {"Z after\n", "run/log.txt was removed", "%peak", " 3/10 "};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) assert_int_equal(count(text, lines[i]), 1);
}

static void a_log_on_a_full_disk_is_one_warning(void **state) {
    (void)state;
    struct rlimit old, tight;
    assert_int_equal(mkdir("run", 0777), 0);
    Screen screen;
    screen_open(&screen, 0);
    Console *console = console_create(0);
    log_copy(console_take, console);
    console_open_log(console, "run");
    console_print(console, "before");
    int errors = dup(STDERR_FILENO);
    assert_non_null(freopen("errors", "w", stderr));
    setvbuf(stderr, NULL, _IONBF, 0);
    getrlimit(RLIMIT_FSIZE, &old);
    tight = (struct rlimit){200, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    char first[400];
    memset(first, 'x', sizeof first);
    first[sizeof first - 1] = '\0';
    for (int i = 0; i < 3; i++) console_take(console, first);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    console_print(console, "after");
    dup2(errors, STDERR_FILENO);
    close(errors);
    log_copy(NULL, NULL);
    console_close(console);
    free(screen_text(&screen));
    size_t length;
    SCOPED_FREE char *printed = (char *)read_bytes("errors", &length), *text = log_text();
    assert_int_equal(count(printed, "warning: "), 1);
    assert_non_null(strstr(printed, "cannot write run/log.txt"));
    assert_true(strstr(text, "Z before\n") && strstr(text, "Z after\n"));
    assert_null(strstr(text, "xxx"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)

static void a_long_text_is_shortened_to_one_safe_line(void **state) {
    (void)state;
    char shown[4 * 8 + 4];
    static const struct {
        const char *text, *shown;
    } cases[] = {{"", ""}, {"12345678", "12345678"}, {"123456789", "12345678..."}, {"a\nb\tc\r", "a\\nb\\tc\\r"},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80zzzzzz", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80zzzzz..."},
        {"a\xe2\x80\xae"
         "b\xe2\x81\xa6"
         "c\xe2\x80\x94",
            "a?b?c\xe2\x80\x94"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        console_shorten(cases[i].text, 8, shown);
        assert_string_equal(shown, cases[i].shown);
    }
}

int main(void) {
    unsetenv("COLUMNS");
    unsetenv("TERM");
    const struct CMUnitTest tests[] = {
        TEST(a_file_gets_fixed_columns),
        TEST(a_skipped_step_says_so_at_its_end),
        TEST(a_file_has_every_step_and_one_header),
        TEST(no_line_is_wider_than_the_terminal),
        TEST(wider_terminals_get_more_columns),
        TEST(a_terminal_has_no_column_for_a_peak_that_is_not_known),
        TEST(a_terminal_gets_few_lines_and_a_header_now_and_then),
        TEST(the_status_line_shows_how_far_the_run_is),
        TEST(a_long_line_is_broken_at_blanks_where_the_terminal_ends),
        TEST(a_pipe_to_a_launcher_on_a_terminal_gets_lines_that_fit_it),
        TEST(a_warning_is_broken_at_blanks_and_no_word_is_cut),
        TEST(a_name_does_not_become_a_control_sequence),
        TEST(the_time_left_is_right_from_the_second_step_though_the_first_is_slow),
        TEST(the_log_has_every_step_and_every_line_over_restarts),
        TEST(a_long_text_is_shortened_to_one_safe_line),
        TEST(a_log_that_was_removed_goes_on_in_a_new_file),
        TEST(a_log_on_a_full_disk_is_one_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

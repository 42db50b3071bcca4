/* Events of a run: what the command of on_event= gets, how often, and that its failures harm nothing. Each test works in
 * a folder of its own. */
#include <fcntl.h>
#include <math.h>
#include <poll.h>

#include <jansson.h>

#include "base/child.h"
#include "base/log.h"
#include "base/thread.h"
#include "run/events.h"
#include "support/files.h"
#include "support/process.h"

static EventQueue *open_events(const Config *config) {
    Error error = {0};
    EventQueue *events = events_open(config, &error);
    if (!events) fail_msg("%s", error.message);
    return events;
}

/* Event number `index` of the file that the command `cat >>events` writes; the caller decrefs. */
static json_t *event(int index) {
    char *text = read_text("events"), *line = strtok(text, "\n");
    while (line && index-- > 0) line = strtok(NULL, "\n");
    assert_non_null(line);
    json_t *json = json_loads(line, 0, NULL);
    assert_true(json_is_object(json));
    free(text);
    return json;
}

static const char *text_of(const json_t *json, const char *name) {
    const char *text = json_string_value(json_object_get(json, name));
    assert_non_null(text);
    return text;
}

static void an_event_is_one_json_line(void **state) {
    Config config = {.run = ".", .steps = 40, .on_event = "cat >>events"};
    EventQueue *events = open_events(&config);
    assert_true(events_send(events, RUN_EVENT_LOSS_SPIKE, NULL, 7, "a \"loss\"\nof 9 \xc3\xa9"));
    assert_true(events_send(events, RUN_EVENT_END, "finished", 40, ""));
    events_close(events);
    json_t *first = event(0), *last = event(1);
    assert_string_equal(text_of(first, "event"), "loss_spike");
    assert_string_equal(text_of(first, "message"), "a \"loss\"\nof 9 \xc3\xa9");
    assert_int_equal(json_integer_value(json_object_get(first, "step")), 7);
    assert_int_equal(json_integer_value(json_object_get(first, "steps")), 40);
    assert_true(fabs(json_real_value(json_object_get(first, "time")) - log_unix_seconds()) < 60);
    assert_non_null(strstr(text_of(first, "text"), ", step 7: loss_spike: a "));
    char *real = realpath(*state, NULL);
    assert_string_equal(text_of(first, "run"), real);
    assert_string_equal(text_of(last, "event"), "finished");
    free(real);
    json_decref(first);
    json_decref(last);
}

/* But the end is always sent. */
static void events_of_a_kind_are_a_minute_apart(void **state) {
    (void)state;
    Config config = {.run = ".", .on_event = "cat >>events"};
    EventQueue *events = open_events(&config);
    assert_true(events_send(events, RUN_EVENT_NAN, NULL, 1, "m"));
    for (int i = 0; i < 100; i++) assert_false(events_send(events, RUN_EVENT_NAN, NULL, 2, "m"));
    assert_true(events_send(events, RUN_EVENT_BEST, NULL, 3, "m"));
    assert_true(events_send(events, RUN_EVENT_END, "paused", 3, "m"));
    assert_true(events_send(events, RUN_EVENT_END, "paused", 3, "m"));
    events_close(events);
    char *text = read_text("events");
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++) lines++;
    assert_int_equal(lines, 4);
    free(text);
}

static void a_run_without_steps_is_stuck_once(void **state) {
    (void)state;
    Config config = {.run = ".", .on_event = "cat >>events"};
    EventQueue *events = open_events(&config);
    events_alive(events, 5, 0.1);
    WAIT_UNTIL(access("events", F_OK) == 0, "no event came");
    thread_sleep(1.5);
    events_close(events);
    json_t *first = event(0);
    assert_string_equal(text_of(first, "event"), "stuck");
    assert_int_equal(json_integer_value(json_object_get(first, "step")), 5);
    char *text = read_text("events");
    assert_ptr_equal(strchr(text, '\n'), strrchr(text, '\n'));
    free(text);
    json_decref(first);
}

/* A command that fails, that does not exist, that does not read, and none. */
static void commands_that_fail_harm_nothing(void **state) {
    (void)state;
    static const char *const commands[] = {"exit 3", "no-such-command", "exec <&-; sleep 0.1", "kill -9 $$", "http://127.0.0.1:1/", ""};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        Config config = {.run = ".", .on_event = commands[i]};
        EventQueue *events = open_events(&config);
        for (int kind = 0; kind < RUN_EVENT_END; kind++) assert_true(events_send(events, kind, NULL, 1, "m"));
        events_close(events);
    }
    events_alive(NULL, 1, 1);
    assert_false(events_send(NULL, RUN_EVENT_NAN, NULL, 1, "m"));
    events_close(NULL);
}

/* All of them hold the pipe's end, so that it closes when the last one is dead. */
static void a_command_past_its_limit_dies_with_all_that_it_started(void **state) {
    (void)state;
    int ends[2], status = 0;
    char text[8];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    char *arguments[] = {"sh", "-c", "sleep 333 & (sleep 333; true) & echo up; sleep 333; true", NULL};
    pid_t child = child_start(&(ChildOptions){.program = "sh", .arguments = arguments, .output = ends[1]});
    close(ends[1]);
    assert_int_equal(read(ends[0], text, sizeof text), 3);
    assert_false(child_wait(child, log_seconds(), &status));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(poll(&(struct pollfd){.fd = ends[0], .events = POLLIN}, 1, 60000), 1);
    assert_int_equal(read(ends[0], text, sizeof text), 0);
    close(ends[0]);
}

static void a_command_that_ends_in_time_keeps_its_exit_code(void **state) {
    (void)state;
    int status = 0;
    char *arguments[] = {"sh", "-c", "sleep 0.1; exit 3", NULL};
    pid_t child = child_start(&(ChildOptions){.program = "sh", .arguments = arguments});
    assert_true(child_wait(child, log_seconds() + 300, &status));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3);
}

/* Once without a server: see above. */
static void an_address_gets_the_line_as_a_post(void **state) {
    (void)state;
    write_text("server.py", "import http.server\n"
                            "class Handler(http.server.BaseHTTPRequestHandler):\n"
                            "    def do_POST(self):\n"
                            "        body = self.rfile.read(int(self.headers['Content-Length']))\n"
                            "        open('events', 'wb').write(body)\n"
                            "        self.send_response(200)\n"
                            "        self.end_headers()\n"
                            "server = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
                            "print(server.server_port, flush=True)\n"
                            "server.handle_request()\n");
    Process server = process_start((char *[]){"/usr/bin/env", "python3", "server.py", NULL});
    char *port = NULL;
    WAIT_UNTIL((free(port), port = process_text(server.output), strchr(port, '\n')), "the server did not start");
    char *address = memory_format("http://127.0.0.1:%d/hook", atoi(port));
    Config config = {.run = ".", .on_event = address};
    EventQueue *events = open_events(&config);
    assert_true(events_send(events, RUN_EVENT_BEST, NULL, 9, "m"));
    events_close(events);
    json_t *posted = event(0);
    assert_string_equal(text_of(posted, "event"), "best");
    json_decref(posted);
    ProcessResult result = process_finish(&server);
    assert_int_equal(result.code, 0);
    process_free(&result);
    free(port);
    free(address);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(an_event_is_one_json_line),
        TEST(events_of_a_kind_are_a_minute_apart),
        TEST(a_run_without_steps_is_stuck_once),
        TEST(commands_that_fail_harm_nothing),
        TEST(a_command_past_its_limit_dies_with_all_that_it_started),
        TEST(a_command_that_ends_in_time_keeps_its_exit_code),
        TEST(an_address_gets_the_line_as_a_post),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* `smelt watch` as a process of its own, asked over HTTP, while its run is written. Each test works in a folder of its
 * own. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <jansson.h>
#include <netinet/in.h>
#include <pty.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <utmp.h>

#include "base/error.h"
#include "support/files.h"
#include "support/mentions.h"
#include "support/process.h"

#define LINE(step, loss) "{\"kind\":\"step\",\"step\":" #step ",\"loss\":" #loss "}\n"

typedef struct Served {
    Process process;
    int port;
} Served;

static char *smelt;

static void append_text(const char *path, const char *text) {
    FILE *file = fopen(path, "ab");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **state) {
    if (enter_folder(state) != 0 || mkdir("run", 0777) != 0) return -1;
    write_text("run/metrics.jsonl", LINE(1, 3));
    write_text("run/config.yaml", "steps: 40\n");
    return 0;
}

static Served serve(const char *run, const char *host) {
    Served served = {.process = process_start((char *[]){smelt, "watch", (char *)run, "port=0", (char *)host, NULL})};
    char *text = process_text(served.process.output);
    WAIT_UNTIL(
        (free(text), text = process_text(served.process.output), *text) || process_has_ended(&served.process), "nothing was printed");
    const char *port = strstr(text, "http://127.0.0.1:");
    if (!port) fail_msg("no address in '%s'", text);
    served.port = atoi(port + strlen("http://127.0.0.1:"));
    free(text);
    return served;
}

/* Ends it by a signal, which is no failure. */
static void end(Served *served, int signal) {
    kill(served->process.id, signal);
    ProcessResult result = process_finish(&served->process);
    assert_int_equal(result.code, 0);
    assert_string_equal(result.errors, "");
    process_free(&result);
}

static int connect_to(const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    assert_int_equal(inet_pton(AF_INET, address, &to.sin_addr), 1);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(connection, (struct sockaddr *)&to, sizeof to) == 0) return connection;
    close(connection);
    return -1;
}

/* The whole answer to `request`, of which each "$" is a line end; the caller frees. */
static char *ask(const Served *served, const char *request) {
    int connection = connect_to("127.0.0.1", served->port);
    assert_true(connection >= 0);
    for (const char *c = request; *c; c++) assert_true(*c == '$' ? send(connection, "\r\n", 2, 0) == 2 : send(connection, c, 1, 0) == 1);
    size_t length = 0;
    char *text = memory_allocate(1);
    for (ssize_t got = 1; got > 0; length += (size_t)got) {
        text = memory_resize(text, length + (1 << 16) + 1);
        got = recv(connection, text + length, 1 << 16, 0);
        assert_true(got >= 0);
    }
    text[length] = '\0';
    close(connection);
    return text;
}

static char *get(const Served *served, const char *path) {
    char *request = memory_format("GET %s HTTP/1.1$Host: 127.0.0.1:%d$Connection: close$$", path, served->port),
         *text = ask(served, request);
    free(request);
    return text;
}

static void assert_answer(const Served *served, const char *request, int status) {
    char *text = ask(served, request), *start = memory_format("HTTP/1.1 %d ", status);
    if (strncmp(text, start, strlen(start)) != 0) fail_msg("'%s' was answered with '%.40s'", request, text);
    free(text);
    free(start);
}

/* The parsed answer of /changes; the caller decrements it. */
static json_t *changes(const Served *served, json_int_t from) {
    char path[64];
    snprintf(path, sizeof path, "/changes?from=%lld", (long long)from);
    char *text = get(served, path);
    const char *body = strstr(text, "\r\n\r\n");
    assert_non_null(body);
    json_t *object = json_loads(body, 0, NULL);
    if (!object) fail_msg("no JSON: %s", text);
    free(text);
    return object;
}

static json_int_t version_of(const json_t *answer) { return json_integer_value(json_object_get(answer, "version")); }
static const char *part_of(const json_t *answer, const char *id) {
    return json_string_value(json_object_get(json_object_get(answer, "parts"), id));
}

/* Waits until a part has the text; the caller decrements what then came after version `from`. */
static json_t *await(const Served *served, json_int_t from, const char *id, const char *text) {
    json_t *answer = NULL;
    const char *part = NULL;
    WAIT_UNTIL((json_decref(answer), answer = changes(served, from), part = part_of(answer, id), part && strstr(part, text)),
        "part %s never had '%s'", id, text);
    return answer;
}

/* -- What is served ------------------------------------------------------------------------------------------------ */

static void the_page_comes_with_its_script_and_a_policy_that_allows_no_other(void **state) {
    (void)state;
    Served served = serve("run", NULL);
    char *page = get(&served, "/"), *script = get(&served, "/watch.js");
    assert_non_null(strstr(page, "Content-Security-Policy: default-src 'none'; script-src 'self';"));
    assert_non_null(strstr(page, "X-Content-Type-Options: nosniff"));
    assert_non_null(strstr(page, "<script src=\"/watch.js\" defer></script>"));
    assert_non_null(strstr(page, "<dd class=\"value\">3.0000</dd>"));
    assert_null(strstr(page, "http-equiv"));
    assert_non_null(strstr(script, "Content-Type: text/javascript"));
    assert_non_null(strstr(script, "fetch('/changes?from='"));
    free(page);
    free(script);
    end(&served, SIGINT);
}

static void only_the_parts_that_changed_are_sent(void **state) {
    (void)state;
    Served served = serve("run", NULL);
    json_t *first = changes(&served, 0);
    assert_non_null(part_of(first, "settings"));
    json_t *none = changes(&served, version_of(first));
    assert_int_equal(json_object_size(json_object_get(none, "parts")), 0);
    append_text("run/metrics.jsonl", LINE(2, 2.125));
    json_t *next = await(&served, version_of(first), "numbers", "2.1250");
    assert_non_null(part_of(next, "loss"));
    assert_null(part_of(next, "settings"));
    json_decref(first);
    json_decref(none);
    json_decref(next);
    end(&served, SIGTERM);
}

static void the_page_follows_a_run_that_begins_later_is_restarted_or_vanishes(void **state) {
    (void)state;
    assert_int_equal(remove("run/metrics.jsonl"), 0);
    Served served = serve("run", NULL);
    json_decref(await(&served, 0, "warnings", "run/metrics.jsonl does not exist"));
    append_text("run/metrics.jsonl", LINE(1, 3) LINE(2, 2.5) "{\"kind\":\"st");
    json_decref(await(&served, 0, "numbers", "in 2 steps"));
    append_text("run/metrics.jsonl", "ep\",\"step\":3,\"loss\":2.25}\n");
    json_decref(await(&served, 0, "numbers", "2.2500"));
    write_text("other", LINE(1, 3) LINE(2, 1.75));
    assert_int_equal(rename("other", "run/metrics.jsonl"), 0);
    json_decref(await(&served, 0, "numbers", "1.7500"));
    assert_int_equal(truncate("run/metrics.jsonl", 0), 0);
    json_decref(await(&served, 0, "loss", "No steps yet"));
    append_text("run/metrics.jsonl", LINE(1, 1.5));
    json_decref(await(&served, 0, "numbers", "1.5000"));
    assert_int_equal(rename("run", "gone"), 0);
    json_decref(await(&served, 0, "warnings", "run/metrics.jsonl does not exist"));
    json_decref(await(&served, 0, "numbers", "1.5000"));
    end(&served, SIGINT);
}

static void hostile_texts_never_become_markup(void **state) {
    (void)state;
    const char *name = "<img src=x onerror=alert(1)>\xff";
    assert_int_equal(rename("run", name), 0);
    char *metrics = memory_format("%s/metrics.jsonl", name), *config = memory_format("%s/config.yaml", name);
    append_text(metrics, "{\"kind\":\"start\",\"step\":1,\"machine\":\"<img src=y>\",\"<img>\":\"'\\\"><img src=z>\"}\n");
    write_text(config, "data:\n  train: \"<img src=q>\xe2\x82\"\nx</pre><img>: 1\n");
    Served served = serve(name, NULL);
    json_t *answer = changes(&served, 0), *part;
    const char *id;
    json_object_foreach(json_object_get(answer, "parts"), id, part) {
        assert_true(json_is_string(part));
        assert_null(strstr(json_string_value(part), "<img"));
    }
    assert_non_null(strstr(part_of(answer, "head"), "&lt;img src=x onerror=alert(1)&gt;\xEF\xBF\xBD"));
    assert_non_null(strstr(part_of(answer, "settings"), "x&lt;/pre&gt;&lt;img&gt;: 1"));
    assert_non_null(strstr(part_of(answer, "starts"), "&lt;img src=z&gt;"));
    char *page = get(&served, "/");
    assert_null(strstr(page, "<img"));
    free(page);
    json_decref(answer);
    free(metrics);
    free(config);
    end(&served, SIGINT);
}

/* -- Who is answered ----------------------------------------------------------------------------------------------- */

/* 0.0.0.0 is no address that a browser can open. */
static void all_addresses_are_served_under_one_that_can_be_opened(void **state) {
    (void)state;
    Served served = {.process = process_start((char *[]){smelt, "watch", "run", "port=0", "host=0.0.0.0", NULL})};
    process_await_text(&served.process, "host=0.0.0.0", 1);
    char *text = process_text(served.process.output), address[64];
    WAIT_UNTIL((free(text), text = process_text(served.process.output), strchr(text, '\n')), "no address was printed");
    assert_int_equal(sscanf(text, "open http://%63[0-9.]:%d/", address, &served.port), 2);
    assert_string_not_equal(address, "0.0.0.0");
    int connection = connect_to(address, served.port);
    assert_true(connection >= 0);
    close(connection);
    assert_answer(&served, "GET / HTTP/1.1$Host: localhost$Connection: close$$", 200);
    kill(served.process.id, SIGINT);
    ProcessResult result = process_finish(&served.process);
    assert_int_equal(result.code, 0);
    process_free(&result);
    free(text);
}

static void only_hosts_that_can_be_this_server_are_answered(void **state) {
    (void)state;
    static const struct {
        const char *host;
        int status;
    } cases[] = {{"127.0.0.1", 200}, {"localhost:99", 200}, {"LocalHost", 200}, {"[::1]:6160", 200}, {"192.0.2.7:80", 200},
        {"attacker.example", 403}, {"127.0.0.1.attacker.example:80", 403}, {"localhost.attacker.example", 403}, {"", 403}, {"[", 403},
        {"2130706433", 403}, {"[::1]", 200}, {"[::1]evil.com", 403}, {"[::1]:80evil.com", 403}, {"[::1]:80:80", 403}, {"[::1", 403},
        {"localhost:80.evil.com", 403}, {"localhost:evil.com", 403}, {"127.0.0.1:80@evil.com", 403}};
    Served served = serve("run", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *request = memory_format("GET /changes?from=0 HTTP/1.1$Host: %s$Connection: close$$", cases[i].host);
        assert_answer(&served, request, cases[i].status);
        free(request);
    }
    assert_answer(&served, "GET / HTTP/1.0$$", 403);
    end(&served, SIGINT);
}

static void other_paths_and_methods_are_refused(void **state) {
    (void)state;
    Served served = serve("run", NULL);
    char *points = get(&served, "/points?from=1&to=1");
    assert_non_null(strstr(points, "<template>[{\"name\":\"run\",\"first\":1,\"step\":[1],"));
    free(points);
    static const char *const paths[] = {"/metrics.jsonl", "/../run/metrics.jsonl", "/%2e%2e/etc/passwd", "//", "/changes/", "/watch.js/"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        char *request = memory_format("GET %s HTTP/1.1$Host: localhost$Connection: close$$", paths[i]), *text = ask(&served, request);
        if (strncmp(text, "HTTP/1.1 4", strlen("HTTP/1.1 4")) != 0) fail_msg("%s: %.80s", paths[i], text);
        free(request);
        free(text);
    }
    assert_answer(&served, "POST / HTTP/1.1$Host: localhost$Content-Length: 0$Connection: close$$", 405);
    assert_answer(&served, "DELETE /changes HTTP/1.1$Host: localhost$Connection: close$$", 405);
    assert_answer(&served, "HEAD / HTTP/1.1$Host: localhost$Connection: close$$", 200);
    assert_answer(&served, "GET /changes?from=-99999999999999999999x HTTP/1.1$Host: localhost$Connection: close$$", 200);
    end(&served, SIGINT);
}

/* A socket on all interfaces would answer at every address of the loopback. */
static void it_listens_at_its_address_alone(void **state) {
    (void)state;
    Served served = serve("run", NULL);
    assert_int_equal(connect_to("127.0.0.2", served.port), -1);
    int connection = connect_to("127.0.0.1", served.port);
    assert_true(connection >= 0);
    close(connection);
    end(&served, SIGINT);
}

static void an_idle_caller_holds_up_nobody(void **state) {
    (void)state;
    Served served = serve("run", NULL);
    int idle = connect_to("127.0.0.1", served.port);
    assert_int_equal(send(idle, "GET / HT", 8, 0), 8);
    json_decref(changes(&served, 0));
    end(&served, SIGINT);
    close(idle);
}

/* More than the server keeps: those that asked for nothing for the longest time are closed. */
static void many_idle_callers_hold_up_nobody(void **state) {
    (void)state;
    enum { CALLERS = 300, MOST_SECONDS = 10 };
    int idle[CALLERS];
    Served served = serve("run", NULL);
    for (int i = 0; i < CALLERS; i++) {
        idle[i] = connect_to("127.0.0.1", served.port);
        assert_int_equal(send(idle[i], "GET / HT", 8, MSG_NOSIGNAL), 8);
    }
    time_t asked = time(NULL);
    json_decref(changes(&served, 0));
    assert_true(time(NULL) - asked < MOST_SECONDS);
    end(&served, SIGINT);
    for (int i = 0; i < CALLERS; i++) close(idle[i]);
}

static void what_cannot_be_served_is_a_usage_error(void **state) {
    (void)state;
    Served served = serve("run", NULL);
    char *taken = memory_format("port=%d", served.port);
    const struct {
        char *words[3];
        const char *message;
        ErrorCode code; /* ERROR_NONE: ERROR_USAGE */
    } cases[] = {
        {{"elsewhere", "port=0", NULL}, "elsewhere/metrics.jsonl", ERROR_CHECKPOINT},
        {{"run", taken, NULL}, "port port=0"},
        {{"run", "port=0", "host=192.0.2.1"}, "Cannot assign requested address; set host to an address of this machine"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *const *words = cases[i].words;
        Process process = process_start((char *[]){smelt, "watch", words[0], words[1], words[2], NULL});
        ProcessResult result = process_finish(&process);
        assert_int_equal(result.code, cases[i].code ? cases[i].code : ERROR_USAGE);
        if (!mentions(result.errors, cases[i].message)) fail_msg("'%s' lacks '%s'", result.errors, cases[i].message);
        process_free(&result);
    }
    free(taken);
    end(&served, SIGINT);
}

/* -- A folder of runs ---------------------------------------------------------------------------------------------- */

static void a_folder_of_runs_is_listed_and_its_runs_are_chosen(void **state) {
    (void)state;
    assert_true(
        mkdir("runs", 0777) == 0 && rename("run", "runs/a b") == 0 && mkdir("runs/c", 0777) == 0 && mkdir("runs/no-run", 0777) == 0);
    write_text("runs/c/metrics.jsonl", LINE(1, 2));
    write_text("runs/c/config.yaml", "steps: 30\n");
    Served served = serve("runs", NULL);
    json_t *list = changes(&served, 0);
    assert_non_null(strstr(part_of(list, "runs"), "<a href=\"?runs=a%20b\">a b</a>"));
    assert_non_null(strstr(part_of(list, "runs"), "stopped after step 1 of 30"));
    assert_null(strstr(part_of(list, "runs"), "no-run"));
    char *both = get(&served, "/?runs=a%20b/c"), *one = get(&served, "/?runs=c"), *numbers = get(&served, "/metrics");
    assert_non_null(strstr(both, "<h1>2 runs</h1>"));
    assert_non_null(strstr(both, "Settings that differ"));
    assert_non_null(strstr(one, "<h1>c</h1>"));
    assert_non_null(strstr(numbers, "smelt_run_loss{run=\"a b\"} 3\nsmelt_run_loss{run=\"c\"} 2\n"));
    static const char *const wrong[] = {"no-run", "../run", "c/", "c//c", "%2e%2e", "c/c/c/c/c/c/c/c/c"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *request = memory_format("GET /?runs=%s HTTP/1.1$Host: localhost$Connection: close$$", wrong[i]);
        assert_answer(&served, request, 404);
        free(request);
    }
    assert_true(mkdir("runs/new", 0777) == 0);
    write_text("runs/new/metrics.jsonl", LINE(1, 1.5));
    json_decref(await(&served, version_of(list), "runs", "1.5000"));
    append_text("runs/c/metrics.jsonl", LINE(2, 1.25)); /* a run that had ended goes on, and one before it is new */
    assert_true(mkdir("runs/b", 0777) == 0);
    write_text("runs/b/metrics.jsonl", LINE(1, 1.125));
    json_decref(await(&served, version_of(list), "runs", "1.2500"));
    json_decref(await(&served, version_of(list), "runs", "1.1250"));
    json_t *last = await(&served, version_of(list), "runs", "stopped after step 2 of 30");
    assert_non_null(strstr(part_of(last, "runs"), "1.5000"));
    json_decref(last);
    for (int i = 0; i < 40; i++) { /* more pages than are kept */
        char *path = memory_format("/?runs=%s%s%s", i & 1 ? "c/" : "", i & 2 ? "new/" : "", i & 4 ? "a%20b/c" : "c"),
             *page = get(&served, path);
        assert_non_null(strstr(page, "HTTP/1.1 200"));
        free(page);
        free(path);
    }
    json_decref(list);
    free(both);
    free(one);
    free(numbers);
    end(&served, SIGINT);
}

static void health_follows_the_states(void **state) {
    (void)state;
    Served served = serve("run", NULL);
    assert_answer(&served, "GET /healthz HTTP/1.1$Host: localhost$Connection: close$$", 503); /* it stopped without a reason */
    append_text("run/metrics.jsonl", "{\"kind\":\"end\",\"step\":1,\"state\":\"paused\",\"code\":8,\"message\":\"by hand\"}\n");
    json_decref(await(&served, 0, "state", "paused after step 1 of 40: by hand"));
    assert_answer(&served, "GET /healthz HTTP/1.1$Host: localhost$Connection: close$$", 200);
    assert_answer(&served, "GET /metrics HTTP/1.1$Host: attacker.example$Connection: close$$", 403);
    end(&served, SIGINT);
}

/* -- In a terminal ------------------------------------------------------------------------------------------------- */

/* A child on a terminal of its own, of which this is the other end. */
typedef struct Terminal {
    pid_t child;
    int screen, child_end;
    struct termios before;
    char *text; /* all that it printed */
    size_t length;
} Terminal;

static Terminal open_terminal(const char *run, int columns, int rows) {
    Terminal terminal = {.text = memory_copy_string("")};
    struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = (unsigned short)rows};
    assert_int_equal(openpty(&terminal.screen, &terminal.child_end, NULL, NULL, &size), 0);
    fcntl(terminal.screen, F_SETFD, FD_CLOEXEC); /* a child that held this end would never be hung up */
    tcgetattr(terminal.child_end, &terminal.before);
    terminal.child = fork();
    assert_true(terminal.child >= 0);
    if (terminal.child == 0) {
        process_heed_signals();
        setenv("TERM", "xterm", 1);
        if (login_tty(terminal.child_end) == 0) execl(smelt, smelt, "watch", run, "terminal=true", (char *)NULL);
        _exit(127);
    }
    fcntl(terminal.screen, F_SETFL, O_NONBLOCK);
    return terminal;
}

static bool has_printed(Terminal *terminal, const char *text) {
    terminal->text = memory_resize(terminal->text, terminal->length + (1 << 16) + 1);
    ssize_t got = read(terminal->screen, terminal->text + terminal->length, 1 << 16);
    terminal->length += got > 0 ? (size_t)got : 0;
    terminal->text[terminal->length] = '\0';
    return strstr(terminal->text, text) != NULL;
}

static void await_print(Terminal *terminal, const char *text) {
    WAIT_UNTIL(has_printed(terminal, text), "the terminal never had '%s': %s", text, terminal->text);
}

/* The child ends, and the terminal is what it was before. */
static void close_terminal(Terminal *terminal) {
    int status;
    struct termios after;
    await_print(terminal, "\x1b[?25h\x1b[?1049l");
    WAIT_UNTIL(waitpid(terminal->child, &status, WNOHANG) == terminal->child, "smelt watch did not end");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    tcgetattr(terminal->child_end, &after);
    assert_int_equal(after.c_lflag, terminal->before.c_lflag);
    assert_memory_equal(after.c_cc, terminal->before.c_cc, sizeof after.c_cc);
    close(terminal->screen);
    close(terminal->child_end);
    free(terminal->text);
}

static void the_terminal_shows_the_run_and_is_left_as_it_was(void **state) {
    (void)state;
    Terminal terminal = open_terminal("run", 80, 24);
    await_print(&terminal, "\x1b[?1049h");
    await_print(&terminal, "step 1 of 40");
    append_text("run/metrics.jsonl", LINE(2, 2.5));
    await_print(&terminal, "step 2 of 40");
    assert_null(strstr(terminal.text, "\x1b[?1049l"));
    assert_int_equal(write(terminal.screen, "q", 1), 1);
    close_terminal(&terminal);
}

static void signals_leave_the_terminal_as_it_was(void **state) {
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        Terminal terminal = open_terminal("run", 80, 24);
        await_print(&terminal, "step 1 of 40");
        kill(terminal.child, signals[i]);
        close_terminal(&terminal);
    }
}

static void another_size_of_the_terminal_is_another_frame(void **state) {
    (void)state;
    Terminal terminal = open_terminal("run", 80, 24);
    await_print(&terminal, " q ends");
    const struct winsize size = {.ws_col = 31, .ws_row = 50};
    assert_int_equal(ioctl(terminal.screen, TIOCSWINSZ, &size), 0);
    await_print(&terminal, " stopped after step 1 of 40: it\x1b[0m");
    assert_int_equal(write(terminal.screen, "q", 1), 1);
    close_terminal(&terminal);
}

static void without_a_terminal_it_says_so(void **state) {
    (void)state;
    Process process = process_start((char *[]){smelt, "watch", "run", "terminal=true", NULL});
    ProcessResult result = process_finish(&process);
    assert_int_equal(result.code, ERROR_USAGE);
    assert_mentions(result.errors, "terminal=true");
    assert_string_equal(result.output, "");
    process_free(&result);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, leave_folder)

int main(void) {
    smelt = process_smelt();
    const struct CMUnitTest tests[] = {
        TEST(the_page_comes_with_its_script_and_a_policy_that_allows_no_other),
        TEST(only_the_parts_that_changed_are_sent),
        TEST(the_page_follows_a_run_that_begins_later_is_restarted_or_vanishes),
        TEST(hostile_texts_never_become_markup),
        TEST(all_addresses_are_served_under_one_that_can_be_opened),
        TEST(only_hosts_that_can_be_this_server_are_answered),
        TEST(other_paths_and_methods_are_refused),
        TEST(it_listens_at_its_address_alone),
        TEST(an_idle_caller_holds_up_nobody),
        TEST(many_idle_callers_hold_up_nobody),
        TEST(what_cannot_be_served_is_a_usage_error),
        TEST(a_folder_of_runs_is_listed_and_its_runs_are_chosen),
        TEST(health_follows_the_states),
        TEST(the_terminal_shows_the_run_and_is_left_as_it_was),
        TEST(signals_leave_the_terminal_as_it_was),
        TEST(another_size_of_the_terminal_is_another_frame),
        TEST(without_a_terminal_it_says_so),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(smelt);
    return failed;
}

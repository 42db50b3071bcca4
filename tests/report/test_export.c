/* Numbers of runs for other systems: Prometheus' format, OTLP, the files of packaging/monitoring, and a training that
 * serves, writes and posts them. */
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "run/export.h"
#include "support/train_run.h"

static char *monitoring; /* tests/packaging/monitoring.sh, as an absolute path */

static RunState state_of(const char *step) {
    RunState state = {.status = RUN_IS_TRAINING, .step = 3, .steps = 40, .sign = 1000.5, .seconds_left = NAN, .step_seconds = NAN};
    state.records[RUN_RECORD_STEP] = json_loads(step, 0, NULL);
    assert_non_null(state.records[RUN_RECORD_STEP]);
    return state;
}

static void numbers_have_base_units_and_unknown_ones_are_left_out(void **state) {
    (void)state;
    RunState run = state_of("{\"loss\": 2.5, \"milliseconds\": 12.5, \"tflops\": null, \"tokens_seen\": 3e9, \"peak_percent\": 40}");
    char *text = export_prometheus(&(ExportedRun){"a", &run}, 1);
    assert_holds(
        text, "\n# HELP smelt_run_loss Training loss of the newest step.\n# TYPE smelt_run_loss gauge\nsmelt_run_loss{run=\"a\"} 2.5\n");
    assert_holds(text, "\nsmelt_run_step_duration_seconds{run=\"a\"} 0.0125\n");
    assert_holds(text, "\n# TYPE smelt_run_tokens_total counter\nsmelt_run_tokens_total{run=\"a\"} 3000000000\n");
    assert_holds(text, "\nsmelt_run_peak_flops_ratio{run=\"a\"} 0.4\n");
    assert_holds(text, "\nsmelt_run_state{run=\"a\",state=\"training\"} 1\nsmelt_run_state{run=\"a\",state=\"silent\"} 0\n");
    assert_null(strstr(text, "flops_per_second"));
    assert_null(strstr(text, "remaining"));
    assert_null(strstr(text, "nan"));
    free(text);
    run_state_free(&run);
}

/* Each name is described once, before its numbers of all runs. */
static void several_runs_share_descriptions_and_hostile_names_stay_labels(void **state) {
    (void)state;
    RunState one = state_of("{\"loss\": 2}"), two = state_of("{\"loss\": 3}");
    char *text = export_prometheus((const ExportedRun[]){{"a\"} 1\nb \\", &one}, {"\xff"
                                                                                  "b",
                                                                                     &two}},
        2);
    const char *first = strstr(text, "# TYPE smelt_run_loss");
    assert_non_null(first);
    assert_null(strstr(first + 1, "# TYPE smelt_run_loss"));
    assert_holds(text, "\nsmelt_run_loss{run=\"a\\\"} 1\\nb \\\\\"} 2\nsmelt_run_loss{run=\"?b\"} 3\n");
    free(text);
    run_state_free(&one);
    run_state_free(&two);
}

/* As https://opentelemetry.io/docs/specs/otlp/ has it: 64-bit integers are strings, a sum is cumulative (2). */
static void otlp_has_the_same_numbers(void **state) {
    (void)state;
    RunState run = state_of("{\"loss\": 2.5, \"tokens_seen\": 300, \"memory_bytes\": 1024}");
    char *text = export_otlp(&(ExportedRun){"\xff", &run}, 1000.25);
    json_t *body = json_loads(text, 0, NULL), *metric;
    json_t *resource = json_array_get(json_object_get(body, "resourceMetrics"), 0);
    json_t *metrics = json_object_get(json_array_get(json_object_get(resource, "scopeMetrics"), 0), "metrics");
    size_t index, found = 0;
    json_array_foreach(metrics, index, metric) {
        const char *name = json_string_value(json_object_get(metric, "name"));
        bool counter = !strcmp(name, "smelt_run_tokens_total");
        json_t *data = json_object_get(metric, counter ? "sum" : "gauge"), *point = json_array_get(json_object_get(data, "dataPoints"), 0);
        assert_string_equal(json_string_value(json_object_get(point, "timeUnixNano")), "1000250000000");
        double value = json_real_value(json_object_get(point, "asDouble"));
        if (!strcmp(name, "smelt_run_loss")) found += value == 2.5;
        if (!strcmp(name, "smelt_run_memory_bytes")) found += json_object_get(point, "attributes") != NULL;
        if (counter) found += value == 300 && json_integer_value(json_object_get(data, "aggregationTemporality")) == 2;
    }
    assert_int_equal(found, 3);
    json_decref(body);
    free(text);
    run_state_free(&run);
}

static void the_status_of_a_trainjob_has_progress_and_texts(void **state) {
    (void)state;
    RunState run = state_of("{\"loss\": 2.5, \"lr\": null, \"time\": 1796000000}");
    run.seconds_left = 90.7;
    char *text = export_kubeflow(&(ExportedRun){"a", &run}, 1796000000.9);
    assert_holds(
        text, "{\"trainerStatus\":{\"metrics\":[{\"name\":\"step\",\"value\":\"3\"},{\"name\":\"planned_steps\",\"value\":\"40\"}");
    assert_holds(text, "{\"name\":\"loss\",\"value\":\"2.5\"}");
    assert_holds(text, "\"lastUpdatedTime\":\"2026-11-30T00:53:20Z\",\"progressPercentage\":7,\"estimatedRemainingSeconds\":90}}");
    assert_null(strstr(text, "learning_rate"));
    free(text);
    run.steps = 0;
    run.seconds_left = NAN;
    text = export_kubeflow(&(ExportedRun){"a", &run}, 1796000000.9);
    assert_null(strstr(text, "rogress"));
    assert_null(strstr(text, "Remaining"));
    free(text);
    run_state_free(&run);
}

static void integers_and_timestamps_are_exact(void **state) {
    (void)state;
    RunState run = state_of("{\"loss\": 0.1, \"tokens_seen\": 9007199254740991, \"milliseconds\": 33.3, \"time\": 1796000000.123}");
    run.step = 12345678901;
    char *text = export_kubeflow(&(ExportedRun){"a", &run}, 1000), *scraped = export_prometheus(&(ExportedRun){"a", &run}, 1);
    assert_holds(text, "{\"name\":\"step\",\"value\":\"12345678901\"}");
    assert_holds(text, "{\"name\":\"tokens_total\",\"value\":\"9007199254740991\"}");
    assert_holds(text, "{\"name\":\"last_step_timestamp_seconds\",\"value\":\"1796000000.123\"}");
    assert_holds(text, "{\"name\":\"step_duration_seconds\",\"value\":\"0.0333\"}");
    assert_holds(scraped, "\nsmelt_run_tokens_total{run=\"a\"} 9007199254740991\n");
    assert_holds(scraped, "\nsmelt_run_last_step_timestamp_seconds{run=\"a\"} 1796000000.123\n");
    free(text);
    free(scraped);
    run_state_free(&run);
}

static void numbers_of_gpus_have_a_label(void **state) {
    (void)state;
    RunState run = state_of("{\"loss\": 2.5}");
    run.records[RUN_RECORD_SYSTEM] = json_loads("{\"cpu_percent\": 50, \"gpu_watts\": [600, null, 500], \"gpu_percent\": []}", 0, NULL);
    char *text = export_prometheus(&(ExportedRun){"a", &run}, 1);
    assert_holds(text, "\nsmelt_run_cpu_ratio{run=\"a\",rank=\"0\"} 0.5\n");
    assert_holds(text, "# TYPE smelt_run_gpu_power_watts gauge\nsmelt_run_gpu_power_watts{run=\"a\",rank=\"0\",gpu=\"0\"} 600\n"
                       "smelt_run_gpu_power_watts{run=\"a\",rank=\"0\",gpu=\"2\"} 500\n");
    assert_null(strstr(text, "gpu_ratio"));
    free(text);
    text = export_otlp(&(ExportedRun){"a", &run}, 1000);
    assert_holds(text, "{\"key\":\"gpu\",\"value\":{\"stringValue\":\"2\"}}");
    free(text);
    text = export_kubeflow(&(ExportedRun){"a", &run}, 1000);
    assert_holds(text, "{\"name\":\"gpu_power_watts_2\",\"value\":\"500\"}");
    free(text);
    run_state_free(&run);
}

/* A server of Kubeflow's form: TLS by its own authority, and a bearer token. It keeps the bodies that it accepts. */
static Process start_status_server(char *address, size_t size) {
    static const char server[] = "import http.server, ssl, sys\n"
                                 "class Handler(http.server.BaseHTTPRequestHandler):\n"
                                 "    def do_POST(self):\n"
                                 "        body = self.rfile.read(int(self.headers['Content-Length']))\n"
                                 "        good = self.headers['Authorization'] == 'Bearer the.token' and self.path == '/status'\n"
                                 "        if good: open('posts', 'ab').write(body + b'\\n')\n"
                                 "        self.send_response(200 if good else 403)\n"
                                 "        self.end_headers()\n"
                                 "server = http.server.HTTPServer(('127.0.0.1', 0), Handler)\n"
                                 "context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)\n"
                                 "context.load_cert_chain('ca.crt', 'key')\n"
                                 "server.socket = context.wrap_socket(server.socket, server_side=True)\n"
                                 "print(server.server_port, flush=True)\n"
                                 "server.serve_forever()\n";
    Process made = process_start((char *[]){"/bin/sh", "-c",
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out ca.crt -days 2 -subj /CN=status -addext subjectAltName=IP:127.0.0.1",
        NULL});
    ProcessResult result = process_finish(&made);
    if (result.code) fail_msg("openssl: %s", result.errors);
    process_free(&result);
    write_text("server.py", server);
    write_text("token", "the.token\n");
    Process process = process_start((char *[]){"/usr/bin/env", "python3", "server.py", NULL});
    char *port = NULL;
    WAIT_UNTIL((free(port), port = process_text(process.output), strchr(port, '\n')), "the server did not start");
    snprintf(address, size, "https://127.0.0.1:%d/status", atoi(port));
    free(port);
    return process;
}

static void a_trainjob_gets_the_progress_of_a_training(void **state) {
    (void)state;
    char address[64];
    Process server = start_status_server(address, sizeof address);
    setenv("KUBEFLOW_TRAINER_SERVER_URL", address, 1);
    setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", "ca.crt", 1);
    setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", "token", 1);
    train_says(0, "", "run=run steps=12");
    char *posts = read_text("posts"), *last = strrchr((posts[strlen(posts) - 1] = 0, posts), '\n');
    last = last ? last + 1 : posts;
    assert_holds(last, "\"progressPercentage\":100");
    assert_holds(last, "{\"name\":\"loss\",\"value\":\"");
    free(posts);
    /* A file that cannot be read is a warning, and nothing is posted. */
    struct stat before, after;
    assert_int_equal(stat("posts", &before), 0);
    setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", "/nonexistent", 1);
    train_says(0, "KUBEFLOW_TRAINER_SERVER_TOKEN: cannot read a token from /nonexistent", "run=tokenless steps=5");
    setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", "token", 1);
    setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", "/nonexistent", 1);
    train_says(0, "KUBEFLOW_TRAINER_SERVER_CA_CERT: cannot read /nonexistent", "run=distrustful steps=5");
    setenv("KUBEFLOW_TRAINER_SERVER_CA_CERT", "ca.crt", 1);
    write_text("token", "\n");
    train_says(0, "it begins with an empty line", "run=empty steps=5");
    assert_int_equal(stat("posts", &after), 0);
    assert_int_equal(before.st_size, after.st_size);
    /* A server that refuses the token, and none at all, are one warning each. */
    write_text("token", "another\n");
    train_says(0, "KUBEFLOW_TRAINER_SERVER_URL: training continues", "run=refused steps=5");
    kill(server.id, SIGKILL);
    ProcessResult result = process_finish(&server);
    process_free(&result);
    train_says(0, "KUBEFLOW_TRAINER_SERVER_URL: training continues", "run=alone steps=5");
    unsetenv("KUBEFLOW_TRAINER_SERVER_URL");
    unsetenv("KUBEFLOW_TRAINER_SERVER_CA_CERT");
    unsetenv("KUBEFLOW_TRAINER_SERVER_TOKEN");
}

static void the_monitoring_files_fit_what_is_exported(void **state) {
    (void)state;
    char *arguments[] = {"/bin/sh", monitoring, getenv("SMELT"), NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    if (result.code) fail_msg("%s%s", result.output, result.errors);
    print_message("%s", result.output);
    process_free(&result);
}

/* Listens at a free port of 127.0.0.1, which *port gets; the caller closes the socket. */
static int listen_anywhere(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int used = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(used, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(used, 1), 0);
    assert_int_equal(getsockname(used, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return used;
}

static void a_training_serves_and_writes_its_numbers(void **state) {
    (void)state;
    Process process = train_start("run=run steps=1000000 metrics.listen=127.0.0.1:0 metrics.file=smelt.prom metrics.every=1");
    process_await_text(&process, "metrics at http://127.0.0.1:", 1);
    char *text = NULL;
    WAIT_UNTIL(access("smelt.prom", F_OK) == 0 && (free(text), text = read_text("smelt.prom"), strstr(text, "smelt_run_loss{run=\"run\"}")),
        "no file was written");
    free(text);
    text = process_text(process.errors);
    char *command = memory_format("curl -sf %.*s && curl -sf %.*shealthz", (int)strcspn(strstr(text, "http"), "\n"), strstr(text, "http"),
        (int)(strstr(strstr(text, "http"), "metrics\n") - strstr(text, "http")), strstr(text, "http"));
    Process asked = process_start((char *[]){"/bin/sh", "-c", command, NULL});
    ProcessResult answer = process_finish(&asked);
    assert_int_equal(answer.code, 0);
    assert_holds(answer.output, "\nsmelt_run_state{run=\"run\",state=\"training\"} 1\n");
    assert_holds(answer.output, "\nrun: training, step ");
    process_free(&answer);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    assert_int_equal(result.code, ERROR_PREEMPTED);
    process_free(&result);
    free(text);
    free(command);
    text = read_text("smelt.prom");
    assert_holds(text, "\nsmelt_run_state{run=\"run\",state=\"paused\"} 1\n");
    free(text);
    int port, used = listen_anywhere(&port);
    train_says(ERROR_USAGE, "or metrics.listen=127.0.0.1:0 for any free port", "run=other metrics.listen=127.0.0.1:%d", port);
    train_says(ERROR_USAGE, "set metrics.listen to an address of this machine", "run=other metrics.listen=192.0.2.1:%d", port);
    close(used);
    train_says(ERROR_USAGE, "metrics.listen=9400 is not ADDRESS:PORT", "run=other metrics.listen=9400");
}

int main(void) {
    monitoring = realpath("tests/packaging/monitoring.sh", NULL);
    train_main();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_base_units_and_unknown_ones_are_left_out),
        cmocka_unit_test(several_runs_share_descriptions_and_hostile_names_stay_labels),
        cmocka_unit_test(otlp_has_the_same_numbers),
        cmocka_unit_test(the_status_of_a_trainjob_has_progress_and_texts),
        cmocka_unit_test(integers_and_timestamps_are_exact),
        cmocka_unit_test(numbers_of_gpus_have_a_label),
        cmocka_unit_test(the_monitoring_files_fit_what_is_exported),
        TRAIN_TEST(a_training_serves_and_writes_its_numbers),
        TRAIN_TEST(a_trainjob_gets_the_progress_of_a_training),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(monitoring);
    return failed;
}

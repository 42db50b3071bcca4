/* A real S3 server (tests/support/s3_server.py) that a group of tests starts, and may kill and start again: server_setup,
 * server_teardown. Where its packages are missing server_need skips a test. Everything is static inline, so a test
 * program uses what it needs. */
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "files.h"
#include "store/s3.h"

static struct {
    char folder[64];
    char script[PATH_MAX];
    pid_t process;
    int port; /* 0: it could not be started */
} server;

static const char BUCKET[] = "smelt-tests";

static inline void server_start(void) {
    int ends[2];
    char port[16], line[64] = "";
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    snprintf(port, sizeof port, "%d", server.port);
    server.process = fork();
    assert_true(server.process >= 0);
    if (server.process == 0) {
        dup2(ends[1], STDOUT_FILENO);
        int log = open("/dev/null", O_WRONLY);
        dup2(log, STDERR_FILENO);
        execl("/usr/bin/python3", "python3", server.script, server.folder, BUCKET, port, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    FILE *output = fdopen(ends[0], "r");
    if (!fgets(line, sizeof line, output) || sscanf(line, "ready %d", &server.port) != 1) server.port = 0;
    fclose(output);
}

static inline void server_stop(void) {
    kill(server.process, SIGKILL);
    waitpid(server.process, NULL, 0);
}

static inline int server_setup(void **state) {
    (void)state;
    snprintf(server.folder, sizeof server.folder, "/tmp/smelt-test-s3-XXXXXX");
    assert_non_null(mkdtemp(server.folder));
    assert_non_null(realpath("tests/support/s3_server.py", server.script)); /* tests change their folder */
    server_start();
    if (server.port == 0) return 0;
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", server.port);
    setenv("AWS_ENDPOINT_URL", endpoint, 1);
    setenv("AWS_ACCESS_KEY_ID", "test:tester", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "testing", 1);
    setenv("AWS_REGION", "us-east-1", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_ENDPOINT_URL_S3");
    return 0;
}

/* Answers requests that read an object with a status (s3_server.py); `key` is a pattern of its key behind NAME/. */
static inline void server_refuse(const char *name, const char *key, const char *status) {
    Error error = {0};
    SCOPED_FREE char *path = memory_format("%s/faults/%s", server.folder, name);
    SCOPED_FREE char *rule = memory_format("{\"kind\": \"GET,HEAD\", \"key\": \"%s\", \"answer\": \"%s\"}", key, status);
    assert_true(file_write(path, rule, (int64_t)strlen(rule), &error));
}

static inline void server_accept(const char *name) {
    Error error = {0};
    SCOPED_FREE char *path = memory_format("%s/faults/%s", server.folder, name);
    assert_true(file_remove(path, &error));
}

static inline int server_teardown(void **state) {
    (void)state;
    Error error = {0};
    server_stop();
    return file_remove(server.folder, &error) ? 0 : -1;
}

static inline void server_need(void) {
    if (server.port) return;
    print_message("no S3 server here: skipped; install swift-proxy, swift-account, swift-container and swift-object to include it\n");
    skip();
}

/* -- Objects ------------------------------------------------------------------------------------------------------- */

static inline void server_put(const char *key, const void *data, size_t bytes) {
    Error error = {0};
    S3 *s3 = s3_open(BUCKET, &error);
    StoreSpan span = {.data = data, .bytes = (int64_t)bytes};
    S3Reply reply = {0};
    S3Request put = {.method = "PUT", .key = key, .path = key, .body = {.spans = &span, .count = 1, .bytes = (int64_t)bytes}};
    if (!s3 || !s3_send(s3, put, &reply, NULL, &error)) fail_msg("%s", error.message);
    s3_reply_free(&reply);
    s3_close(s3);
}

static inline void server_put_file(const char *path, const char *key) {
    size_t bytes;
    unsigned char *data = read_bytes(path, &bytes);
    server_put(key, data, bytes);
    free(data);
}

/* What an S3 server may answer in malice or by mistake: listings that do not end, control characters, and the request
 * itself with its access key id. The server is a child that gives every request one answer. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "ckpt/store_internal.h"
#include "support/ckpt_fixture.h"
#include "support/mentions.h"

static const char KEY[] = "AKIAEXAMPLEKEY";

/* Reads a request to its end, which GET requests have at the first empty line, and answers it. NUMBER in the body becomes one that grows. */
static void serve(int connection, int status, const char *body) {
    static int number;
    char request[1 << 14];
    size_t length = 0;
    for (ssize_t got = 1; got > 0 && length < sizeof request - 1;) {
        got = recv(connection, request + length, sizeof request - 1 - length, 0);
        if (got > 0) length += (size_t)got;
        request[length] = '\0';
        if (strstr(request, "\r\n\r\n")) break;
    }
    static char answer[1 << 18];
    snprintf(answer, sizeof answer, "%s", body);
    for (char *at = answer; (at = strstr(at, "NUMBER")); number++)
        for (int digit = 5, rest = number; digit >= 0; digit--, rest /= 10) at[digit] = (char)('0' + rest % 10);
    dprintf(connection, "HTTP/1.1 %d Answer\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s", status, strlen(answer), answer);
    close(connection);
}

static pid_t server_start(int status, const char *body) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    char endpoint[64];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 16), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", ntohs(address.sin_port));
    setenv("AWS_ENDPOINT_URL", endpoint, 1);
    pid_t server = fork();
    assert_true(server >= 0);
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) serve(accept(listener, NULL, NULL), status, body);
    }
    close(listener);
    return server;
}

/* The error of a listing that the server answers with `status` and `body`. */
static Error listing_error(int status, const char *body) {
    Error error = {0};
    FileList list = {0};
    pid_t server = server_start(status, body);
    Store *store = store_open("s3://smelt-tests/run", &error);
    assert_false(store_list(store, "checkpoints", &list, &error)); /* checkpoint_list would ask again for 12.7 s */
    file_list_free(&list);
    store_close(store);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return error;
}

static void a_listing_that_repeats_its_token_is_refused(void **state) {
    (void)state;
    Error error = listing_error(200, "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again &amp; "
                                     "again</NextContinuationToken></ListBucketResult>");
    assert_int_equal(error.code, ERROR_CHECKPOINT);
    assert_mentions(error.message, "s3://smelt-tests/run/checkpoints");
}

/* The tokens differ, and pages are empty or the same: 100 of them are read, and not 10,000. */
static void a_listing_without_progress_is_refused(void **state) {
    (void)state;
    static const char *const pages[] = {"", "<Contents><Key>run/checkpoints/a</Key><Size>1</Size></Contents>",
        "<CommonPrefixes><Prefix>run/checkpoints/a/</Prefix></CommonPrefixes>"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        char body[512];
        snprintf(body, sizeof body,
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>NUMBER</NextContinuationToken>%s</ListBucketResult>",
            pages[i]);
        Error error = listing_error(200, body);
        assert_int_equal(error.code, ERROR_CHECKPOINT);
        if (!strstr(error.message, "checkpoints does not end") || !strstr(error.message, i ? "after page 101 " : "after page 100 "))
            fail_msg("%s", error.message);
    }
}

/* Each name is new, be it one a page or as many as an honest server puts into one. */
static void a_server_that_invents_names_is_refused(void **state) {
    (void)state;
    static const char head[] = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>NUMBER</NextContinuationToken>",
                      name[] = "<Contents><Key>run/checkpoints/NUMBER</Key></Contents>";
    static const struct {
        int names;
        const char *told;
    } pages[] = {{1, "after 101 101 names"}, {4000, "after 251 1004000 names"}};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        static char body[1 << 18];
        char *end = stpcpy(body, head);
        for (int j = 0; j < pages[i].names; j++) end = stpcpy(end, name);
        strcpy(end, "</ListBucketResult>");
        Error error = listing_error(200, body);
        assert_int_equal(error.code, ERROR_CHECKPOINT);
        if (!mentions(error.message, pages[i].told)) fail_msg("%s", error.message);
    }
}

static void control_characters_of_a_server_do_not_reach_messages(void **state) {
    (void)state;
    Error error = listing_error(400, "<Error><Code>Bad\nerror: no</Code><Message>\x1b]0;title\x07 \xc2\x9b"
                                     "31m red\r\nend</Message></Error>");
    for (const unsigned char *at = (const unsigned char *)error.message; *at; at++)
        if (*at < 0x20 || *at == 0x7f || *at == 0x9b) fail_msg("byte %02x is in: %s", *at, error.message);
    assert_mentions(error.message, "server answered 400");
}

static void an_echoed_access_key_is_not_printed(void **state) {
    (void)state;
    Error error = listing_error(
        400, "<Error><Code>InvalidRequest</Code><Message>GET with Credential=AKIAEXAMPLEKEY/x, AKIAEXAMPLEKEY</Message></Error>");
    assert_null(strstr(error.message, KEY));
    assert_mentions(error.message, "Credential=**************/x");
}

/* Amazon's answers to If-None-Match where the object exists, or another request creates it; 501 is a server's that does
 * not know it, which is then asked without. */
static void an_object_that_exists_is_not_created(void **state) {
    (void)state;
    static const struct {
        int status;
        bool created, exists;
    } answers[] = {{200, true, false}, {412, false, true}, {409, false, true}, {403, false, false}, {501, false, false}};
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        Error error = {0};
        bool exists;
        pid_t server = server_start(answers[i].status, "");
        Store *store = store_open("s3://smelt-tests/run", &error);
        bool created = store_create(store, "lease.json", &(StoreSpan){.data = "{}", .bytes = 2}, &exists, &error);
        store_close(store);
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        if (created != answers[i].created || exists != answers[i].exists) fail_msg("%d: %s", answers[i].status, error.message);
    }
}

static int group_setup(void **state) {
    (void)state;
    setenv("AWS_ACCESS_KEY_ID", KEY, 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("AWS_REGION", "us-east-1", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_ENDPOINT_URL_S3");
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listing_that_repeats_its_token_is_refused),
        cmocka_unit_test(a_listing_without_progress_is_refused),
        cmocka_unit_test(a_server_that_invents_names_is_refused),
        cmocka_unit_test(control_characters_of_a_server_do_not_reach_messages),
        cmocka_unit_test(an_echoed_access_key_is_not_printed),
        cmocka_unit_test(an_object_that_exists_is_not_created),
    };
    return cmocka_run_group_tests(tests, group_setup, NULL);
}

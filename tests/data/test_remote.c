/* Shards in a bucket of a real S3 server (tests/support/s3_server.py): what is read is what a local copy holds, whatever
 * happens to the connection, the server and the cache; and what is wrong in the bucket is named. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "support/data_files.h"
#include "support/mentions.h"
#include "support/s3_server.h"

#include "base/rng.h"
#include "data/remote.h"

enum { TOKENS = 100000, SHARDS = 2, DOCUMENT = 1000, CACHE_BYTES = 4 << 20 };

static const char SOURCE[] = "s3://smelt-tests/corpus";

/* -- The bucket ---------------------------------------------------------------------------------------------------- */

static void delete_key(const char *key) {
    Error error = {0};
    S3 *s3 = s3_open(BUCKET, &error);
    S3Reply reply = {0};
    bool absent;
    if (!s3 || !s3_send(s3, (S3Request){.method = "DELETE", .key = key, .path = key}, &reply, &absent, &error))
        fail_msg("%s", error.message);
    s3_reply_free(&reply);
    s3_close(s3);
}

/* Makes the folder `local` of shards, and uploads it. */
static void upload_corpus(void) {
    static const char *const endings[] = {"bin", "idx"};
    int64_t lengths[TOKENS / DOCUMENT];
    int32_t *tokens = memory_allocate(TOKENS * sizeof *tokens);
    mkdir("local", 0700);
    for (int64_t i = 0; i < TOKENS / DOCUMENT; i++) lengths[i] = DOCUMENT;
    for (int shard = 0; shard < SHARDS; shard++) {
        SCOPED_FREE char *prefix = memory_format("local/%c", 'a' + shard);
        for (int64_t i = 0; i < TOKENS; i++) tokens[i] = (int32_t)(rng_bits(5, (uint64_t)shard, (uint64_t)i).word[0] % 60000);
        write_shard(prefix, 2, tokens, lengths, TOKENS / DOCUMENT);
        for (int i = 0; i < 2; i++) {
            SCOPED_FREE char *path = memory_format("%s.%s", prefix, endings[i]);
            SCOPED_FREE char *key = memory_format("corpus/%c.%s", 'a' + shard, endings[i]);
            server_put_file(path, key);
        }
    }
    free(tokens);
}

static bool try_remote(ShardSet *set, int64_t bytes, double patience, Error *error) {
    RemoteOptions options = {.cache = "cache", .bytes = bytes, .patience = patience};
    SCOPED_FREE char *folder = remote_folder("cache", SOURCE);
    *set = (ShardSet){0};
    return remote_mirror(&options, SOURCE, error) && shard_set_open(set, folder, error);
}

static ShardSet open_remote(int64_t bytes) {
    ShardSet set;
    Error error = {0};
    if (!try_remote(&set, bytes, 60, &error)) fail_msg("%s", error.message);
    return set;
}

/* Reads sequences in a random order, each asked for before, and compares them with the local copy. */
static bool reads_equal(const ShardSet *remote, Error *error) {
    enum { LENGTH = 2000, COUNT = SHARDS * TOKENS / LENGTH, AHEAD = 16 };
    ShardSet local = open_set("local");
    int32_t here[LENGTH], there[LENGTH];
    uint8_t ends[LENGTH], ends_there[LENGTH];
    bool good = true;
    assert_int_equal(remote->token_count, local.token_count);
    for (int64_t i = 0; i < COUNT && good; i++) {
        if (i == 0)
            for (uint64_t j = 0; j < AHEAD; j++) shard_set_prefetch(remote, (int64_t)rng_permute(1, 1, j, COUNT) * LENGTH, LENGTH);
        if (i + AHEAD < COUNT) shard_set_prefetch(remote, (int64_t)rng_permute(1, 1, (uint64_t)(i + AHEAD), COUNT) * LENGTH, LENGTH);
        int64_t first = (int64_t)rng_permute(1, 1, (uint64_t)i, COUNT) * LENGTH;
        good = shard_set_read(remote, first, LENGTH, ANY_TOKEN, there, ends_there, error);
        assert_true(shard_set_read(&local, first, LENGTH, ANY_TOKEN, here, ends, error) || !good);
        if (!good) break;
        assert_memory_equal(here, there, sizeof here);
        assert_memory_equal(ends, ends_there, sizeof ends);
    }
    shard_set_close(&local);
    return good;
}

static void assert_equal(const ShardSet *remote) {
    Error error = {0};
    if (!reads_equal(remote, &error)) fail_msg("%s", error.message);
}

static void assert_refused(const Error *error, const char *fragment) {
    assert_int_equal(error->code, ERROR_DATA);
    if (!mentions(error->message, fragment)) fail_msg("\"%s\" is not in: %s", fragment, error->message);
}

/* -- A proxy that breaks connections ------------------------------------------------------------------------------- */

/* Between the tests and the server. With `cut` each second connection is closed after CUT bytes of answers. */
enum { CUT = 9000 };

typedef struct Proxy {
    pid_t process;
    int port; /* 0: any */
} Proxy;

static void *forward(void *argument) {
    int *ends = argument, from = ends[0], to = ends[1], left = ends[2];
    char buffer[1 << 14];
    for (ssize_t got; left > 0 && (got = recv(from, buffer, sizeof buffer, 0)) > 0; left -= (int)got)
        if (send(to, buffer, (size_t)got, MSG_NOSIGNAL) != got) break;
    shutdown(to, SHUT_RDWR);
    shutdown(from, SHUT_RDWR);
    return NULL;
}

static void *carry(void *argument) {
    int client = *(int *)argument, cut = ((int *)argument)[1];
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)server.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int upstream = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    free(argument);
    if (connect(upstream, (struct sockaddr *)&address, sizeof address) == 0) {
        pthread_t thread;
        int up[3] = {client, upstream, INT32_MAX}, down[3] = {upstream, client, cut ? CUT : INT32_MAX};
        pthread_create(&thread, NULL, forward, up);
        forward(down);
        pthread_join(thread, NULL);
    }
    close(upstream);
    close(client);
    return NULL;
}

/* A test that fails leaves its proxy, which ends with the program. */
static void *end_with_parent(void *unused) {
    (void)unused;
    while (getppid() != 1) sleep(1);
    _exit(0);
}

static void use_port(int port) {
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", port);
    setenv("AWS_ENDPOINT_URL", endpoint, 1);
}

/* Sources that are opened from now on go through it. */
static void proxy_start(Proxy *proxy, bool cut) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)proxy->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 64), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    proxy->port = ntohs(address.sin_port);
    use_port(proxy->port);
    proxy->process = fork();
    if (proxy->process == 0) {
        pthread_t watcher;
        pthread_create(&watcher, NULL, end_with_parent, NULL);
        for (int i = 0;; i++) {
            int *argument = malloc(2 * sizeof *argument);
            pthread_t thread;
            argument[0] = accept(listener, NULL, NULL);
            argument[1] = cut && i % 2;
            pthread_create(&thread, NULL, carry, argument);
            pthread_detach(thread);
        }
    }
    close(listener);
}

/* Breaks all connections through it, and refuses others. */
static void proxy_stop(const Proxy *proxy) {
    kill(proxy->process, SIGKILL);
    waitpid(proxy->process, NULL, 0);
    use_port(server.port);
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static void a_bucket_gives_what_the_local_copy_holds_and_its_cache_serves_without_it(void **state) {
    (void)state;
    Proxy proxy = {0};
    proxy_start(&proxy, false);
    ShardSet set = open_remote(CACHE_BYTES);
    assert_equal(&set);
    shard_set_close(&set);
    proxy_stop(&proxy);
    use_port(proxy.port);
    setenv("AWS_MAX_ATTEMPTS", "1", 1);
    set = open_remote(CACHE_BYTES); /* with a warning */
    unsetenv("AWS_MAX_ATTEMPTS");
    assert_equal(&set);
    shard_set_close(&set);
    use_port(server.port);
}

static void a_cache_smaller_than_the_source_keeps_its_size(void **state) {
    (void)state;
    enum { SMALL = 300 << 10 };
    int64_t bytes;
    ShardSet set = open_remote(SMALL);
    assert_equal(&set);
    assert_equal(&set);
    shard_set_close(&set);
    assert_int_equal(file_kind("cache/blocks", &bytes), FILE_REGULAR);
    assert_true(bytes > SMALL / 2 && bytes <= SMALL);
}

static void connections_that_break_cost_nothing(void **state) {
    (void)state;
    Proxy proxy = {0};
    proxy_start(&proxy, true);
    ShardSet set = open_remote(CACHE_BYTES);
    assert_equal(&set);
    shard_set_close(&set);
    proxy_stop(&proxy);
}

static void *come_back(void *proxy) {
    sleep(2);
    proxy_start(proxy, false);
    return NULL;
}

static void a_server_that_comes_back_is_waited_for(void **state) {
    (void)state;
    pthread_t thread;
    Proxy proxy = {0};
    proxy_start(&proxy, false);
    ShardSet set = open_remote(CACHE_BYTES);
    proxy_stop(&proxy);
    pthread_create(&thread, NULL, come_back, &proxy);
    assert_equal(&set);
    pthread_join(thread, NULL);
    shard_set_close(&set);
    proxy_stop(&proxy);
}

static void a_server_that_stays_away_is_an_error_after_the_patience(void **state) {
    (void)state;
    ShardSet set;
    Error error = {0};
    Proxy proxy = {0};
    proxy_start(&proxy, false);
    if (!try_remote(&set, CACHE_BYTES, 1, &error)) fail_msg("%s", error.message);
    proxy_stop(&proxy);
    assert_false(reads_equal(&set, &error));
    assert_refused(&error, "s3://smelt-tests/corpus");
    shard_set_close(&set);
}

static void a_thread_that_is_to_end_does_not_wait(void **state) {
    (void)state;
    Error error = {0};
    ShardSet set = open_remote(CACHE_BYTES);
    shard_set_interrupt(&set, true);
    assert_false(reads_equal(&set, &error));
    assert_refused(&error, "stopped");
    shard_set_interrupt(&set, false);
    assert_equal(&set);
    shard_set_close(&set);
}

static void a_flipped_bit_in_the_bucket_is_named_with_its_place(void **state) {
    (void)state;
    size_t bytes;
    Error error = {0};
    unsigned char *data = read_bytes("local/a.bin", &bytes);
    data[100000] ^= 1;
    server_put("corpus/a.bin", data, bytes);
    free(data);
    ShardSet set = open_remote(CACHE_BYTES);
    assert_false(reads_equal(&set, &error));
    assert_refused(&error, "bytes 98304 to 102399");
    shard_set_close(&set);
}

static void a_truncated_object_and_a_vanished_index_are_refused_at_opening(void **state) {
    (void)state;
    size_t bytes;
    ShardSet set;
    Error error = {0};
    unsigned char *data = read_bytes("local/a.bin", &bytes);
    server_put("corpus/a.bin", data, bytes - 2);
    free(data);
    assert_false(try_remote(&set, CACHE_BYTES, 60, &error));
    assert_refused(&error, "199998 bytes");
    delete_key("corpus/a.idx");
    assert_false(try_remote(&set, CACHE_BYTES, 60, &error));
    assert_refused(&error, "a.bin a.idx");
}

static void an_object_that_is_replaced_meanwhile_is_refused(void **state) {
    (void)state;
    Error error = {0};
    ShardSet set = open_remote(CACHE_BYTES);
    server_put_file("local/b.bin", "corpus/a.bin");
    assert_false(reads_equal(&set, &error));
    assert_refused(&error, "corpus/a.bin");
    shard_set_close(&set);
}

static void blocks_that_rot_in_the_cache_are_fetched_again(void **state) {
    (void)state;
    size_t bytes;
    ShardSet set = open_remote(CACHE_BYTES);
    assert_equal(&set);
    shard_set_close(&set);
    unsigned char *data = read_bytes("cache/blocks", &bytes);
    for (size_t i = 0; i < bytes; i += 1000) data[i] ^= 1;
    write_bytes("cache/blocks", data, bytes);
    free(data);
    set = open_remote(CACHE_BYTES);
    assert_equal(&set);
    shard_set_close(&set);
}

static void a_folder_without_shards_is_refused(void **state) {
    (void)state;
    RemoteOptions options = {.cache = "cache", .bytes = CACHE_BYTES, .patience = 60};
    Error error = {0};
    assert_false(remote_mirror(&options, "s3://smelt-tests/nothing", &error));
    assert_refused(&error, "s3://smelt-tests/nothing");
}

static int setup(void **state) {
    server_need();
    if (enter_folder(state) != 0) return -1;
    upload_corpus();
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_bucket_gives_what_the_local_copy_holds_and_its_cache_serves_without_it),
        TEST(a_cache_smaller_than_the_source_keeps_its_size),
        TEST(connections_that_break_cost_nothing),
        TEST(a_server_that_comes_back_is_waited_for),
        TEST(a_server_that_stays_away_is_an_error_after_the_patience),
        TEST(a_thread_that_is_to_end_does_not_wait),
        TEST(a_flipped_bit_in_the_bucket_is_named_with_its_place),
        TEST(a_truncated_object_and_a_vanished_index_are_refused_at_opening),
        TEST(an_object_that_is_replaced_meanwhile_is_refused),
        TEST(blocks_that_rot_in_the_cache_are_fetched_again),
        TEST(a_folder_without_shards_is_refused),
    };
    return cmocka_run_group_tests(tests, server_setup, server_teardown);
}

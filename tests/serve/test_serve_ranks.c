/* `smelt serve` on two ranks that divide the model gives the answers of one process. If one rank ends, both end. */
#include "base/scope.h"
#include "support/served.h"

/* In doubles, the order of sums changes no token. */
#define DOUBLES "precision=fp64"
#define LONG "{\"prompt\":\"the\",\"temperature\":0,\"max_tokens\":15000"

static void make_run_for_two(void) { train_good("run=r steps=6 model.kv_heads=2 model.context=16000 checkpoint.every=0 eval.every=0"); }

static Server serve_on_two(const char *settings) {
    SCOPED_FREE char *words = memory_format(
        "launch -n 2 self_test=false -- serve r port=0 device=cpu threads=1 template=chatml layout.tp=2 " DOUBLES " %s", settings);
    return await_server(smelt_start(words));
}

/* Expects that a signal to the launcher has ended all ranks well. */
static void expect_good_end(Server *server) {
    ProcessResult result = process_finish(&server->process);
    expect_code(&result, 0, "launch");
    assert_null(strstr(result.errors, "error"));
    process_free(&result);
}

static void end_both(Server *server) {
    kill(server->process.id, SIGINT);
    expect_good_end(server);
}

/* -- Answers ------------------------------------------------------------------------------------------------------- */

/* Compares two answers, whose log-probabilities differ by rounding. */
static bool same_answer(const json_t *a, const json_t *b) {
    const char *name;
    json_t *value;
    if (json_is_real(a) && json_is_real(b)) return fabs(json_real_value(a) - json_real_value(b)) < 1e-6;
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b)) return false;
        json_object_foreach((json_t *)a, name, value) {
            const json_t *other = json_object_get(b, name);
            if (!other || !same_answer(value, other)) return false;
        }
        return true;
    }
    if (!json_is_array(a)) return json_equal(a, b);
    bool same = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; same && i < json_array_size(a); i++) same = same_answer(json_array_get(a, i), json_array_get(b, i));
    return same;
}

static void expect_same(const Server *one, const Server *two, const char *path, const char *body) {
    json_auto_t *expected = answer_to(one, path, body), *got = answer_to(two, path, body);
    const json_t *choices = json_object_get(expected, "choices"), *others = json_object_get(got, "choices");
    SCOPED_FREE char *a = json_dumps(choices, 0), *b = json_dumps(others, 0);
    if (!same_answer(choices, others)) fail_msg("%s: %s on two ranks, %s on one", body, b, a);
}

/* Requests of all kinds, many at once. Stop texts end some, and only rank 0 sees these. */
static void two_ranks_answer_as_one_process(void **state) {
    (void)state;
    enum { CONNECTIONS = 24 };
    static const char completions[] = "/v1/completions", chats[] = "/v1/chat/completions";
    static const struct {
        const char *path, *body;
    } cases[] = {
        {completions, "{\"prompt\":[\"the\",\"a model holds every weight\"],\"n\":3,\"seed\":5,\"max_tokens\":20,\"logprobs\":3}"},
        {completions, "{\"prompt\":\"the sea\",\"seed\":2,\"echo\":true,\"logprobs\":2,\"max_tokens\":9}"},
        {completions, "{\"prompt\":\"the\",\"temperature\":0,\"repetition_penalty\":1.3,\"presence_penalty\":0.5,\"logit_bias\":"
                      "{\"101\":4,\"32\":-100},\"max_tokens\":30}"},
        {completions, "{\"prompt\":\"the\",\"n\":4,\"seed\":3,\"stop\":[\"e\",\"s\"],\"max_tokens\":200}"},
        {completions, "{\"prompt\":[116,104,101],\"seed\":9,\"top_k\":40,\"top_p\":0.9,\"min_p\":0.001,\"max_tokens\":30}"},
        {chats, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"seed\":4,\"max_tokens\":20,\"logprobs\":true}"},
    };
    make_run_for_two();
    Server one = serve(DOUBLES " slots=5"), two = serve_on_two("slots=5");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_same(&one, &two, cases[i].path, cases[i].body);
    char *bodies[CONNECTIONS];
    int connections[2][CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        bodies[i] = memory_format("{\"prompt\":\"the %d\",\"n\":%d,\"seed\":%d,\"stop\":\"%c\",\"max_tokens\":%d}", i, 1 + i % 2, i,
            'a' + i % 20, 5 + i * 7 % 60);
        for (int s = 0; s < 2; s++) send_post(connections[s][i] = open_connection(s ? &two : &one), completions, bodies[i]);
    }
    int stopped = 0;
    for (int i = 0; i < CONNECTIONS; i++) {
        Reply replies[] = {receive(connections[0][i]), receive(connections[1][i])};
        json_auto_t *expected = json_loads(replies[0].body, JSON_ALLOW_NUL, NULL), *got = json_loads(replies[1].body, JSON_ALLOW_NUL, NULL);
        if (replies[0].status != 200 || replies[1].status != 200) fail_msg("%s: %s", bodies[i], replies[1].text);
        if (!same_answer(json_object_get(expected, "choices"), json_object_get(got, "choices")))
            fail_msg("%s: %s on two ranks, %s on one", bodies[i], replies[1].body, replies[0].body);
        stopped += !strcmp(json_string_value(json_object_get(choice(got, 0), "finish_reason")), "stop");
        free(replies[0].text), free(replies[1].text), free(bodies[i]);
    }
    assert_in_range(stopped, 2, CONNECTIONS);
    end_both(&two);
    end(&one);
    smelt_says(ERROR_USAGE, "layout.tp=2 1 rank smelt launch -n 2", "serve r port=0 device=cpu template=chatml layout.tp=2");
}

static void both_ranks_use_the_adapter_of_a_request(void **state) {
    (void)state;
    static const char body[] = "{\"prompt\":\"the\",\"model\":\"%s\",\"max_tokens\":20,\"temperature\":0,\"logprobs\":0}";
    make_run_for_two();
    train_good("run=one init=r model.kv_heads=2 lora.rank=2 lora.targets=attention lora.alpha=8 optimizer.lr=0.1 data.length=16 "
               "batch.sequences=2 batch.tokens=32 steps=8 schedule.warmup=0 eval.sample_tokens=0 eval.every=0");
    Server one = serve(DOUBLES " adapters={\"a\":\"one\"}"), two = serve_on_two("adapters={\"a\":\"one\"}");
    SCOPED_FREE char *base = memory_format(body, "r"), *adapted = memory_format(body, "a");
    expect_same(&one, &two, "/v1/completions", base);
    expect_same(&one, &two, "/v1/completions", adapted);
    json_auto_t *without = answer_to(&two, "/v1/completions", base), *with = answer_to(&two, "/v1/completions", adapted);
    assert_false(same_answer(json_object_get(without, "choices"), json_object_get(with, "choices")));
    end_both(&two);
    end(&one);
}

/* If a client disconnects, the other rank also ends its samples, so later answers are the same as without this client. */
static void samples_end_on_both_ranks(void **state) {
    (void)state;
    make_run_for_two();
    Server one = serve(DOUBLES " slots=2"), two = serve_on_two("slots=2 queue=4");
    for (int round = 0; round < 3; round++) {
        int first = open_connection(&two), second = open_connection(&two);
        send_post(first, "/v1/completions", LONG ",\"n\":3}");
        WAIT_UNTIL(metric(&two, "smelt_sequences_running") == 2, "the request does not run");
        send_post(second, "/v1/completions", LONG ",\"stream\":true}");
        WAIT_UNTIL(metric(&two, "smelt_samples_held") == 4, "the second request was not queued");
        Reply reply = post(&two, "/v1/completions", "{\"prompt\":\"the\"}");
        assert_int_equal(reply.status, 429);
        free(reply.text);
        close(first);
        if (round == 1) close(second);
        WAIT_UNTIL(metric(&two, "smelt_samples_held") == (round == 1 ? 0 : 1), "the samples go on");
        expect_same(&one, &two, "/v1/completions", "{\"prompt\":\"a model\",\"seed\":3,\"max_tokens\":20}");
        if (round != 1) close(second);
        WAIT_UNTIL(metric(&two, "smelt_samples_held") == 0, "the samples go on");
    }
    end_both(&two);
    end(&one);
}

/* -- Ends ---------------------------------------------------------------------------------------------------------- */

/* Both ranks, without a launcher. */
static Server start_two(Process ranks[2]) {
    int port = process_free_port();
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *words =
            memory_format("RANK=%d LOCAL_RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s serve r port=0 device=cpu threads=1 "
                          "template=chatml layout.tp=2",
                i, i, port, getenv("SMELT"));
        ranks[i] = words_start("/usr/bin/env", words);
    }
    return await_server(ranks[0]);
}

/* Kills a rank and expects that the other one ends, and says why. */
static void lose_rank(Process ranks[2], int lost) {
    SCOPED_FREE char *name = memory_format("rank %d", lost);
    kill(ranks[lost].id, SIGKILL);
    ProcessResult other = process_finish(&ranks[!lost]), killed = process_finish(&ranks[lost]);
    expect_code(&other, ERROR_COMMUNICATION, "the other rank");
    if (!strstr(other.errors, name)) fail_msg("no %s in: %s", name, other.errors);
    assert_int_equal(process_lines(other.errors, "error: "), 1);
    process_free(&other);
    process_free(&killed);
}

static void a_lost_rank_ends_the_server(void **state) {
    (void)state;
    Process ranks[2];
    make_run_for_two();
    Server server = start_two(ranks);
    int running = open_connection(&server);
    send_post(running, "/v1/completions", LONG "}");
    WAIT_UNTIL(metric(&server, "smelt_sequences_running") == 1, "the request does not run");
    lose_rank(ranks, 1);
    Reply reply = receive(running);
    assert_int_equal(reply.status, 500);
    free(reply.text);
    for (int lost = 0; lost < 2; lost++) { /* without a request */
        start_two(ranks);
        lose_rank(ranks, lost);
    }
}

static bool has_seen_signal(const Process *launcher) {
    SCOPED_FREE char *errors = process_text(launcher->errors);
    return process_lines(errors, "request to stop") > 0;
}

/* The first signal lets requests end, the second one ends them; a signal to the rank that follows has no effect. */
static void an_interrupt_ends_both_ranks(void **state) {
    (void)state;
    make_run_for_two();
    for (int signals = 1; signals <= 2; signals++) {
        Server server = serve_on_two("");
        int running = open_connection(&server);
        SCOPED_FREE char *body = memory_format("{\"prompt\":\"the\",\"temperature\":0,\"max_tokens\":%d}", signals == 1 ? 200 : 15000);
        send_post(running, "/v1/completions", body);
        WAIT_UNTIL(metric(&server, "smelt_samples_held") == 1, "the request was not queued");
        kill(server.process.id, SIGINT);
        if (signals == 2) {
            WAIT_UNTIL(has_seen_signal(&server.process), "the launcher has not seen the signal");
            kill(server.process.id, SIGTERM);
        }
        expect_good_end(&server);
        Reply reply = receive(running);
        assert_int_equal(reply.status, signals == 1 ? 200 : 503);
        free(reply.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(two_ranks_answer_as_one_process),
        TRAIN_TEST(both_ranks_use_the_adapter_of_a_request),
        TRAIN_TEST(samples_end_on_both_ranks),
        TRAIN_TEST(a_lost_rank_ends_the_server),
        TRAIN_TEST(an_interrupt_ends_both_ranks),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

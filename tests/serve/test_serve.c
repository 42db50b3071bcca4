/* `smelt serve` as a process of its own, asked over HTTP: its answers are those of `smelt generate`, whole and as events;
 * and nothing that a client sends or leaves out harms it. */
#include "base/scope.h"
#include "support/served.h"

enum { CONTEXT = 16000 };

static void make_run(void) { train_good("run=r steps=6 model.context=%d checkpoint.every=0 eval.every=0", CONTEXT); }

/* -- Answers ------------------------------------------------------------------------------------------------------- */

/* Compares a choice with a line that `smelt generate` wrote. */
static void expect_line(const json_t *line, const json_t *got) {
    const json_t *logs = json_object_get(line, "logprobs"), *scores = json_object_get(json_object_get(got, "logprobs"), "token_logprobs");
    assert_true(json_equal(json_object_get(line, "completion"), json_object_get(got, "text"))); /* zero bytes included */
    assert_true(json_equal(json_object_get(line, "ids"), json_object_get(got, "token_ids")));
    assert_true(json_equal(json_object_get(line, "finish"), json_object_get(got, "finish_reason")));
    assert_int_equal(json_array_size(logs), json_array_size(scores));
    for (size_t i = 0; i < json_array_size(logs); i++)
        assert_float_equal(json_real_value(json_array_get(logs, i)), json_real_value(json_array_get(scores, i)), 1e-5);
}

static const json_t *list_of(const json_t *answer, const char *name) {
    return json_object_get(json_object_get(choice(answer, 0), "logprobs"), name);
}

/* What a model draws and then reads as a prompt has the same scores. */
static void prompts_are_scored_as_what_is_drawn(void **state) {
    (void)state;
    make_run();
    Server server = serve("");
    json_auto_t *drawn =
        answer_to(&server, "/v1/completions", "{\"prompt\":\"the sea\",\"temperature\":0,\"logprobs\":1,\"max_tokens\":9}");
    json_auto_t *other = answer_to(&server, "/v1/completions", "{\"prompt\":\"the sea\",\"seed\":3,\"logprobs\":1,\"max_tokens\":40}");
    SCOPED_FREE char *text = json_dumps(json_object_get(choice(drawn, 0), "text"), JSON_ENCODE_ANY);
    SCOPED_FREE char *body = memory_format("{\"prompt\":\"the sea%s,\"echo\":true,\"logprobs\":1,\"max_tokens\":1}", text + 1);
    json_auto_t *read = answer_to(&server, "/v1/completions", body);
    size_t made = json_array_size(list_of(drawn, "tokens")), prompt = strlen("the sea");
    assert_int_equal(json_array_size(list_of(read, "tokens")), prompt + made + 1);
    assert_true(json_is_null(json_array_get(list_of(read, "token_logprobs"), 0)));
    assert_true(json_is_null(json_array_get(list_of(read, "top_logprobs"), 0)));
    for (size_t i = 0; i < made; i++) {
        double own = json_real_value(json_array_get(list_of(drawn, "token_logprobs"), i));
        assert_float_equal(json_real_value(json_array_get(list_of(read, "token_logprobs"), prompt + i)), own, 1e-5);
        assert_int_equal(json_integer_value(json_array_get(list_of(read, "text_offset"), prompt + i)), prompt + i);
        const json_t *top = json_array_get(list_of(read, "top_logprobs"), prompt + i);
        assert_int_equal(json_object_size(top), 1); /* the likeliest is the token itself */
        assert_float_equal(json_real_value(json_object_iter_value(json_object_iter((json_t *)top))), own, 1e-5);
    }
    size_t less_likely = 0;
    for (size_t i = 0; i < json_array_size(list_of(other, "tokens")); i++) {
        const json_t *top = json_array_get(list_of(other, "top_logprobs"), i);
        double own = json_real_value(json_array_get(list_of(other, "token_logprobs"), i)), best = -1e9;
        const char *name;
        json_t *value;
        json_object_foreach((json_t *)top, name, value) if (json_real_value(value) > best) best = json_real_value(value);
        assert_true(best >= own);
        less_likely += json_object_size(top) == 2;
    }
    assert_true(less_likely > 0);
    end(&server);
}

static void completions_are_those_of_generate(void **state) {
    (void)state;
    static const char *const sampling[][2] = {{"temperature=0", "\"temperature\":0"},
        {"temperature=1 seed=5", "\"temperature\":1,\"seed\":5"},
        {"temperature=0 repetition_penalty=1.3 logit_bias={\"101\":4,\"32\":-100} stop=x",
            "\"temperature\":0,\"repetition_penalty\":1.3,\"logit_bias\":{\"101\":4,\"32\":-100},\"stop\":\"x\""},
        {"temperature=1 seed=5 presence_penalty=1.5 frequency_penalty=-0.5 min_p=0.001",
            "\"temperature\":1,\"seed\":5,\"presence_penalty\":1.5,\"frequency_penalty\":-0.5,\"min_p\":0.001"}};
    make_run();
    write_text("p.jsonl", "{\"prompt\": \"the\"}\n{\"prompt\": \"a model holds every weight\"}\n");
    Server server = serve("slots=4");
    for (size_t i = 0; i < sizeof sampling / sizeof *sampling; i++) {
        smelt_says(0, "", "generate r p.jsonl out=o.jsonl ids=true overwrite=true samples=2 tokens=20 threads=1 %s", sampling[i][0]);
        SCOPED_FREE char *body =
            memory_format("{\"model\":\"r\",\"prompt\":[\"the\",\"a model holds every weight\"],\"n\":2,\"max_tokens\":20,"
                          "\"logprobs\":0,\"return_token_ids\":true,%s}",
                sampling[i][1]);
        json_auto_t *answer = answer_to(&server, "/v1/completions", body);
        FILE *file = fopen("o.jsonl", "r");
        for (size_t line = 0; line < 4; line++) {
            json_auto_t *expected = json_loadf(file, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
            assert_non_null(expected);
            expect_line(expected, choice(answer, line));
        }
        fclose(file);
    }
    json_auto_t *text = answer_to(&server, "/v1/completions", "{\"prompt\":\"the\",\"temperature\":0,\"echo\":true}");
    json_auto_t *ids =
        answer_to(&server, "/v1/completions", "{\"prompt\":[116,104,101],\"temperature\":0,\"echo\":true,\"max_tokens\":16}");
    assert_true(json_equal(json_object_get(text, "choices"), json_object_get(ids, "choices")));
    const char *echoed = json_string_value(json_object_get(choice(text, 0), "text"));
    assert_memory_equal(echoed, "the", 3);
    end(&server);
}

/* A bias changes what is drawn, but not the log-probabilities that are reported. */
static void likeliest_tokens_are_the_models_own(void **state) {
    (void)state;
    make_run();
    Server server = serve("");
    const char *fields = "\"temperature\":0,\"max_tokens\":5,\"return_token_ids\":true";
    SCOPED_FREE char *plain_body = memory_format("{\"prompt\":\"the sea\",\"logprobs\":20,%s}", fields),
                     *biased_body = memory_format("{\"prompt\":\"the sea\",\"logprobs\":20,\"logit_bias\":{\"113\":100},%s}", fields),
                     *ids_body = memory_format(
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_logprobs\":7,%s}", fields);
    json_auto_t *plain = answer_to(&server, "/v1/completions", plain_body), *biased = answer_to(&server, "/v1/completions", biased_body),
                *chat = answer_to(&server, "/v1/chat/completions", ids_body);
    assert_string_equal(json_string_value(json_object_get(choice(biased, 0), "text")), "qqqqq");
    const json_t *own = json_array_get(list_of(plain, "top_logprobs"), 0), *top = json_array_get(list_of(biased, "top_logprobs"), 0),
                 *value;
    const char *name;
    assert_int_equal(json_object_size(own), 20);
    assert_in_range(json_object_size(top), 20, 21);
    json_object_foreach((json_t *)own, name, *(json_t **)&value)
        assert_float_equal(json_real_value(value), json_real_value(json_object_get(top, name)), 1e-6);
    assert_float_equal(
        json_real_value(json_array_get(list_of(biased, "token_logprobs"), 0)), json_real_value(json_object_get(top, "q")), 0);
    const json_t *content = json_object_get(json_object_get(choice(chat, 0), "logprobs"), "content");
    assert_int_equal(json_array_size(content), 5);
    for (size_t i = 0; i < 5; i++) {
        const json_t *token = json_array_get(content, i), *list = json_object_get(token, "top_logprobs");
        assert_int_equal(json_array_size(list), 7);
        assert_true(json_equal(json_object_get(token, "logprob"), json_object_get(json_array_get(list, 0), "logprob")));
        for (size_t k = 1; k < 7; k++)
            assert_true(json_real_value(json_object_get(json_array_get(list, k), "logprob")) <=
                        json_real_value(json_object_get(json_array_get(list, k - 1), "logprob")));
    }
    end(&server);
}

/* Joins the texts of a stream by the index of their choice, with its last reason; checks that it ends as it should. */
static json_t *joined(const Server *server, const char *path, const char *body) {
    Reply reply = post(server, path, body);
    json_t *texts = json_object();
    bool done = false;
    if (reply.status != 200 || !strstr(reply.text, "text/event-stream")) fail_msg("%s: %s", body, reply.text);
    for (char *rest = (char *)reply.body, *event; (event = strsep(&rest, "\n"));) {
        if (!*event) continue;
        assert_memory_equal(event, "data: ", 6);
        assert_false(done);
        if ((done = !strcmp(event + 6, "[DONE]"))) continue;
        json_auto_t *json = json_loads(event + 6, JSON_ALLOW_NUL, NULL);
        if (!json) fail_msg("not JSON: %s", event);
        const json_t *part = choice(json, 0), *reason = json_object_get(part, "finish_reason"), *delta = json_object_get(part, "delta");
        if (!part) {
            json_object_set(texts, "usage", json_object_get(json, "usage"));
            continue;
        }
        char index[8];
        snprintf(index, sizeof index, "%d", (int)json_integer_value(json_object_get(part, "index")));
        const json_t *before = json_object_get(texts, index), *text = json_object_get(delta ? delta : part, delta ? "content" : "text");
        size_t held = json_string_length(before), size = held + json_string_length(text);
        SCOPED_FREE char *both = memory_allocate(size + 1);
        if (before) memcpy(both, json_string_value(before), held);
        memcpy(both + held, json_string_value(text), json_string_length(text));
        json_object_set_new(texts, index, json_stringn(both, size));
        SCOPED_FREE char *name = memory_format("end %s", index);
        assert_null(json_object_get(texts, name));
        if (!json_is_null(reason)) json_object_set(texts, name, (json_t *)reason);
    }
    assert_true(done);
    free(reply.text);
    return texts;
}

static void expect_stream(const Server *server, const char *path, const char *fields, size_t choices) {
    SCOPED_FREE char *whole = memory_format("{%s}", fields),
                     *stream = memory_format("{%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", fields);
    json_auto_t *answer = answer_to(server, path, whole), *events = joined(server, path, stream);
    assert_int_equal(json_array_size(json_object_get(answer, "choices")), choices);
    assert_true(json_equal(json_object_get(answer, "usage"), json_object_get(events, "usage")));
    for (size_t i = 0; i < choices; i++) {
        char index[8], name[16];
        snprintf(index, sizeof index, "%zu", i);
        snprintf(name, sizeof name, "end %zu", i);
        const json_t *one = choice(answer, i), *message = json_object_get(one, "message");
        const json_t *text = json_object_get(message ? message : one, message ? "content" : "text");
        if (!json_equal(text, json_object_get(events, index)))
            fail_msg("choice %zu of %s is '%s' whole and '%s' as events", i, fields, json_string_value(text),
                json_string_value(json_object_get(events, index)));
        assert_true(json_equal(json_object_get(one, "finish_reason"), json_object_get(events, name)));
    }
}

/* An untrained model draws bytes that are no text: characters are complete in every event all the same. */
static void streams_joined_are_the_whole(void **state) {
    (void)state;
    make_run();
    Server server = serve("slots=4");
    expect_stream(&server, "/v1/completions", "\"prompt\":[\"the\",\"a\"],\"n\":2,\"seed\":3,\"max_tokens\":60,\"echo\":true", 4);
    expect_stream(&server, "/v1/chat/completions",
        "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hi\"}]}],\"n\":2,\"seed\":4,\"max_tokens\":60", 2);
    expect_stream(&server, "/v1/chat/completions",
        "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"seed\":4,\"max_tokens\":9,\"logprobs\":true,\"return_token_ids\":true", 1);
    end(&server);
}

static void stop_strings_end_a_text_before_them(void **state) {
    (void)state;
    static const char fields[] = "\"prompt\":\"the\",\"seed\":3,\"max_tokens\":60";
    make_run();
    Server server = serve("");
    json_auto_t *answer = answer_to(&server, "/v1/completions", "{\"prompt\":\"the\",\"seed\":3,\"max_tokens\":60}");
    const char *text = json_string_value(json_object_get(choice(answer, 0), "text"));
    for (size_t at = 8; at + 4 < strlen(text); at += 9) {
        size_t start = at, size = 3;
        while (((unsigned char)text[start] & 0xc0) == 0x80) start++;
        while (((unsigned char)text[start + size] & 0xc0) == 0x80) size++;
        json_auto_t *stop = json_stringn(text + start, size);
        SCOPED_FREE char *written = json_dumps(stop, JSON_ENCODE_ANY),
                         *more = memory_format("%s,\"stop\":[%s,\"never in the text\"]", fields, written),
                         *body = memory_format("{%s}", more);
        json_auto_t *stopped = answer_to(&server, "/v1/completions", body);
        SCOPED_FREE char *expected = memory_format("%.*s", (int)(strstr(text, json_string_value(stop)) - text), text);
        assert_string_equal(json_string_value(json_object_get(choice(stopped, 0), "text")), expected);
        assert_string_equal(json_string_value(json_object_get(choice(stopped, 0), "finish_reason")), "stop");
        expect_stream(&server, "/v1/completions", more, 1);
    }
    end(&server);
}

/* -- What is refused ----------------------------------------------------------------------------------------------- */

static void bodies_are_refused_by_the_name_of_their_field(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *field, *body;
        bool chat;
    } cases[] = {
        {400, NULL, ""},
        {400, NULL, "{\"prompt\":\"a\""},
        {400, NULL, "[\"prompt\"]"},
        {400, NULL, "{\"prompt\":\"a\",\"prompt\":\"b\"}"},
        {400, NULL, "{\"prompt\":\"\xff\"}"},
        {400, "prompt", "{}"},
        {400, "prompt", "{\"prompt\":\"\"}"},
        {400, "prompt", "{\"prompt\":[]}"},
        {400, "prompt", "{\"prompt\":[\"a\",1]}"},
        {400, "prompt", "{\"prompt\":[1,\"a\"]}"},
        {400, "prompt", "{\"prompt\":[[1],[-1]]}"},
        {400, "prompt", "{\"prompt\":[1e30]}"},
        {400, "prompt", "{\"prompt\":{\"a\":1}}"},
        {400, NULL, "{\"prompt\":[320]}"},
        {400, "prompt", "{\"prompt\":\"a\",\"max_tokens\":16000}"},
        {400, "max_tokens", "{\"prompt\":\"a\",\"max_tokens\":0}"},
        {400, "max_tokens", "{\"prompt\":\"a\",\"max_tokens\":\"9\"}"},
        {400, "max_tokens", "{\"prompt\":\"a\",\"max_tokens\":99999999999999999999}"},
        {400, "temperature", "{\"prompt\":\"a\",\"temperature\":-1}"},
        {400, "temperature", "{\"prompt\":\"a\",\"temperature\":NaN}"},
        {400, "top_p", "{\"prompt\":\"a\",\"top_p\":1.5}"},
        {400, "n", "{\"prompt\":\"a\",\"n\":0}"},
        {400, "n", "{\"prompt\":\"a\",\"n\":257}"},
        {400, "n", "{\"prompt\":[\"a\",\"b\"],\"n\":200}"},
        {400, "stop", "{\"prompt\":\"a\",\"stop\":\"\"}"},
        {400, "stop", "{\"prompt\":\"a\",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}"},
        {400, "stream", "{\"prompt\":\"a\",\"stream\":1}"},
        {400, "stream_options", "{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":true}}"},
        {400, "logprobs", "{\"prompt\":\"a\",\"logprobs\":21}"},
        {400, "frequency_penalty", "{\"prompt\":\"a\",\"frequency_penalty\":2.5}"},
        {400, "presence_penalty", "{\"prompt\":\"a\",\"presence_penalty\":\"1\"}"},
        {400, "repetition_penalty", "{\"prompt\":\"a\",\"repetition_penalty\":0}"},
        {400, "logit_bias", "{\"prompt\":\"a\",\"logit_bias\":[1]}"},
        {400, "logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"5\":101}}"},
        {400, "logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"5\":1,\"5a\":1}}"},
        {400, "logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"\":1}}"},
        {400, "logit_bias", "{\"prompt\":\"a\",\"logit_bias\":{\"5\":\"1\"}}"},
        {400, NULL, "{\"prompt\":\"a\",\"logit_bias\":{\"320\":1}}"},
        {400, "guided_regex", "{\"prompt\":\"a\",\"guided_regex\":\"a\"}"},
        {400, "messages", "{\"prompt\":\"a\",\"messages\":[]}"},
        {404, "model", "{\"prompt\":\"a\",\"model\":\"other\"}"},
        {400, "messages", "{}", true},
        {400, "messages", "{\"messages\":[]}", true},
        {400, "messages", "{\"messages\":[{\"content\":\"a\"}]}", true},
        {400, "messages", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", true},
        {400, "messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":3}", true},
        {400, "response_format", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json_object\"}}",
            true},
        {400, "top_logprobs", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":1}", true},
        {400, "top_logprobs", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_logprobs\":21}", true},
        {400, "echo", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"echo\":true}", true},
    };
    make_run();
    Server server = serve("");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Reply reply = post(&server, cases[i].chat ? "/v1/chat/completions" : "/v1/completions", cases[i].body);
        json_auto_t *json = json_loads(reply.body, 0, NULL);
        const json_t *error = json_object_get(json, "error");
        const char *field = json_string_value(json_object_get(error, "param"));
        bool fits = cases[i].field ? field && !strcmp(field, cases[i].field) : !field;
        if (reply.status != cases[i].status || !fits || !json_string_length(json_object_get(error, "message")))
            fail_msg("%s: %s", cases[i].body, reply.text);
        free(reply.text);
    }
    json_auto_t *neutral = answer_to(&server, "/v1/completions",
        "{\"prompt\":\"a\",\"frequency_penalty\":0.0,\"repetition_penalty\":1,\"logit_bias\":{},\"stop\":null,\"user\":\"me\",\"best_of\":"
        "1,\"top_k\":-1,\"min_p\":"
        "0.1}");
    assert_non_null(choice(neutral, 0));
    end(&server);
}

static void expect_status(const Server *server, int status, const char *request) {
    Reply reply = ask(server, request);
    if (reply.status != status) fail_msg("'%s' was answered with '%.200s'", request, reply.text);
    free(reply.text);
}

static void paths_hosts_and_keys_are_checked(void **state) {
    (void)state;
    make_run();
    Server server = serve("name=org/model");
    expect_status(&server, 200, "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
    expect_status(&server, 404, "GET /v1 HTTP/1.0\r\nHost: localhost\r\n\r\n");
    expect_status(&server, 405, "POST /health HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    expect_status(&server, 405, "GET /v1/completions HTTP/1.0\r\nHost: localhost\r\n\r\n");
    expect_status(&server, 403, "GET /v1/models HTTP/1.0\r\nHost: evil.com\r\n\r\n");
    expect_status(&server, 403, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\nOrigin: http://evil.com\r\n\r\n");
    expect_status(&server, 403, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\nOrigin: http://localhost:81\r\n\r\n");
    expect_status(&server, 403, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\nOrigin: null\r\n\r\n");
    expect_status(&server, 200, "GET /v1/models HTTP/1.0\r\nHost: localhost:81\r\nOrigin: http://localhost:81\r\n\r\n");
    Reply page = ask(&server, "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert_non_null(strstr(page.text, "Content-Type: text/html"));
    assert_non_null(strstr(page.text, "Content-Security-Policy: default-src 'none'; "));
    assert_in_range(strlen(page.body), 1000, 30000);
    assert_null(strstr(page.body, "://")); /* nothing from elsewhere */
    assert_null(strstr(page.body, "innerHTML"));
    free(page.text);
    Reply models = ask(&server, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert_mentions(models.body, "\"id\":\"org/model\"");
    free(models.text);
    end(&server);
    smelt_says(ERROR_USAGE, "SMELT_API_KEY", "serve r host=0.0.0.0 port=0 device=cpu template=chatml");
    setenv("SMELT_API_KEY", "a long key", 1);
    server = serve("");
    unsetenv("SMELT_API_KEY");
    expect_status(&server, 200, "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n");
    expect_status(&server, 200, "GET / HTTP/1.0\r\nHost: evil.com\r\n\r\n");
    expect_status(&server, 401, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n");
    expect_status(&server, 401, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer a long ke\r\n\r\n");
    expect_status(&server, 401, "GET /metrics HTTP/1.0\r\nHost: localhost\r\nAuthorization: Basic a long key\r\n\r\n");
    expect_status(&server, 200, "GET /v1/models HTTP/1.0\r\nHost: evil.com\r\nAuthorization: Bearer a long key\r\n\r\n");
    end(&server);
}

/* -- Limits -------------------------------------------------------------------------------------------------------- */

#define LONG "{\"prompt\":\"the\",\"temperature\":0,\"max_tokens\":15000"

static void bodies_and_the_queue_have_limits(void **state) {
    (void)state;
    enum { LARGE = 3 << 20 };
    make_run();
    Server server = serve("body=1 queue=2 slots=1");
    char *body = memory_allocate(LARGE + 1);
    memset(body, 'a', LARGE);
    Reply reply = post(&server, "/v1/completions", body);
    if (reply.status) assert_int_equal(reply.status, 413); /* else the connection was reset while the body was sent */
    free(reply.text);
    expect_status(&server, 413, "POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n");
    int chunked = open_connection(&server);
    static const char head[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n300000\r\n";
    send_text(chunked, head, strlen(head));
    send_text(chunked, body, LARGE);
    send_text(chunked, "\r\n0\r\n\r\n", 7);
    reply = receive(chunked);
    assert_int_equal(reply.status, 413);
    free(reply.text), free(body);
    int first = open_connection(&server), second = open_connection(&server);
    send_post(first, "/v1/completions", LONG "}");
    send_post(second, "/v1/completions", LONG ",\"stream\":true}");
    WAIT_UNTIL(metric(&server, "smelt_samples_held") == 2, "two requests were not queued");
    reply = post(&server, "/v1/completions", "{\"prompt\":\"the\"}");
    assert_int_equal(reply.status, 429);
    assert_non_null(strstr(reply.text, "Retry-After:"));
    free(reply.text);
    close(first), close(second);
    WAIT_UNTIL(metric(&server, "smelt_samples_held") == 0, "the clients that went away still have samples");
    json_auto_t *answer = answer_to(&server, "/v1/completions", "{\"prompt\":\"the\"}");
    assert_non_null(choice(answer, 0));
    end(&server);
}

static void fifty_connections_are_answered_at_once(void **state) {
    (void)state;
    enum { CONNECTIONS = 50 };
    make_run();
    Server server = serve("slots=8");
    int connections[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        SCOPED_FREE char *body = memory_format("{\"prompt\":\"the\",\"seed\":%d,\"max_tokens\":%d}", i % 5, 20 + i % 5);
        connections[i] = open_connection(&server);
        send_post(connections[i], "/v1/completions", body);
    }
    char *texts[CONNECTIONS] = {0};
    for (int i = CONNECTIONS - 1; i >= 0; i--) {
        Reply reply = receive(connections[i]);
        json_auto_t *json = json_loads(reply.body, JSON_ALLOW_NUL, NULL);
        if (reply.status != 200 || !json) fail_msg("%s", reply.text);
        texts[i] = json_dumps(json_object_get(json, "choices"), 0);
        if (i + 5 < CONNECTIONS) assert_string_equal(texts[i], texts[i + 5]);
        free(reply.text);
    }
    for (int i = 0; i < CONNECTIONS; i++) free(texts[i]);
    assert_int_equal(metric(&server, "smelt_samples_held"), 0);
    end(&server);
}

static void samples_end_when_their_client_goes_away(void **state) {
    (void)state;
    static const char *const ends[] = {"}", ",\"stream\":true}", ",\"n\":3}"};
    make_run();
    Server server = serve("slots=2");
    for (int i = 0; i < 3; i++) {
        SCOPED_FREE char *body = memory_format(LONG "%s", ends[i]);
        int connection = open_connection(&server);
        send_post(connection, "/v1/completions", body);
        WAIT_UNTIL(metric(&server, "smelt_sequences_running") > 0, "the request does not run");
        close(connection);
        WAIT_UNTIL(metric(&server, "smelt_samples_held") == 0, "the samples go on");
        assert_int_equal(metric(&server, "smelt_requests_cancelled_total"), i + 1);
        assert_int_equal(metric(&server, "smelt_sequences_running"), 0);
    }
    end(&server);
}

/* The first signal lets running requests end; the second ends them. */
static void a_stop_finishes_or_cancels(void **state) {
    (void)state;
    make_run();
    Server server = serve("");
    int running = open_connection(&server);
    send_post(running, "/v1/completions", "{\"prompt\":\"not in the log\",\"temperature\":0,\"max_tokens\":300}");
    WAIT_UNTIL(metric(&server, "smelt_samples_held") == 1, "the request was not queued");
    end(&server);
    Reply reply = receive(running);
    assert_int_equal(reply.status, 200);
    free(reply.text);
    server = serve("");
    running = open_connection(&server);
    send_post(running, "/v1/completions", LONG "}");
    WAIT_UNTIL(metric(&server, "smelt_samples_held") == 1, "the request was not queued");
    kill(server.process.id, SIGINT);
    process_sleep(0.3);
    end(&server);
    reply = receive(running);
    assert_int_equal(reply.status, 503);
    free(reply.text);
}

/* Requests for the model and for its adapter run at once; each gets what a file of prompts gets. */
static void adapters_are_models_of_their_own(void **state) {
    (void)state;
    make_run();
    train_good("run=one init=r lora.rank=2 lora.targets=attention lora.alpha=8 optimizer.lr=0.1 data.length=16 batch.sequences=2 "
               "batch.tokens=32 steps=8 "
               "schedule.warmup=0 eval.sample_tokens=0 eval.every=0");
    write_text("p.jsonl", "{\"prompt\": \"the\"}\n{\"prompt\": \"the\", \"adapter\": \"my adapter\"}\n");
    smelt_good(
        "generate r p.jsonl adapters={\"my\\u0020adapter\":\"one\"} out=o.jsonl ids=true tokens=12 temperature=0 threads=1 device=cpu");
    Server server = serve("adapters={\"my\\u0020adapter\":\"one\"}");
    size_t length;
    SCOPED_FREE char *text = (char *)read_bytes("o.jsonl", &length);
    json_auto_t *base = json_loadb(text, length, JSON_DISABLE_EOF_CHECK, NULL),
                *adapted = json_loads(strchr(text, '\n') + 1, JSON_DISABLE_EOF_CHECK, NULL);
    json_auto_t *first = answer_to(&server, "/v1/completions",
        "{\"prompt\":\"the\",\"model\":\"r\",\"max_tokens\":12,\"temperature\":0,\"logprobs\":0,\"return_token_ids\":true}");
    json_auto_t *second = answer_to(&server, "/v1/completions",
        "{\"prompt\":\"the\",\"model\":\"my adapter\",\"max_tokens\":12,\"temperature\":0,\"logprobs\":0,\"return_token_ids\":true}");
    expect_line(base, choice(first, 0));
    expect_line(adapted, choice(second, 0));
    assert_false(json_equal(json_object_get(base, "logprobs"), json_object_get(adapted, "logprobs")));
    assert_string_equal(json_string_value(json_object_get(first, "model")), "r");
    assert_string_equal(json_string_value(json_object_get(second, "model")), "my adapter");
    Reply models = ask(&server, "GET /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert_mentions(models.body, "\"id\":\"r\" \"id\":\"my adapter\" \"parent\":\"r\"");
    free(models.text);
    Reply other = post(&server, "/v1/completions", "{\"prompt\":\"the\",\"model\":\"two\"}");
    assert_int_equal(other.status, 404);
    assert_mentions(other.body, "model_not_found");
    free(other.text);
    end(&server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(completions_are_those_of_generate),
        TRAIN_TEST(prompts_are_scored_as_what_is_drawn),
        TRAIN_TEST(likeliest_tokens_are_the_models_own),
        TRAIN_TEST(streams_joined_are_the_whole),
        TRAIN_TEST(stop_strings_end_a_text_before_them),
        TRAIN_TEST(bodies_are_refused_by_the_name_of_their_field),
        TRAIN_TEST(paths_hosts_and_keys_are_checked),
        TRAIN_TEST(bodies_and_the_queue_have_limits),
        TRAIN_TEST(fifty_connections_are_answered_at_once),
        TRAIN_TEST(samples_end_when_their_client_goes_away),
        TRAIN_TEST(a_stop_finishes_or_cancels),
        TRAIN_TEST(adapters_are_models_of_their_own),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Tests of conversations: 280 of many shapes through 7 templates give the text, the tokens and the mask that jinja2 and
 * transformers give (tests/golden/chat, written by chat.py); and the rules of masks and of records. */
#include "support/files.h"

#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "chat/chat.h"
#include "support/mentions.h"

/* `make test` runs it in the root of the repository. */
static char *golden(const char *name) { return memory_format("tests/golden/chat/%s", name); }

static char *read_golden(const char *name) {
    Error error = {0};
    SCOPED_FREE char *path = golden(name);
    char *text = file_read(path, 1 << 24, NULL, &error);
    if (!text) fail_msg("%s", error.message);
    return text;
}

/* -- Against transformers ---------------------------------------------------------------------------------------------- */

/* What one template makes of one conversation, as expected.txt says it. */
static char *describe(const ChatDocument *document) {
    return memory_format("%016llx %016llx %016llx", (unsigned long long)XXH3_64bits(document->text.bytes, document->text.size),
        (unsigned long long)XXH3_64bits(document->ids.items, document->ids.count * sizeof(int32_t)),
        (unsigned long long)XXH3_64bits(document->trained, document->ids.count));
}

typedef struct Fixture {
    Tokenizer *tokenizer;
    Chat *chat;
    ChatEncoder *encoder;
    ChatDocument document;
} Fixture;

static void open_chat(Fixture *fixture, const char *template, ChatTurns turns, bool special) {
    Error error = {0};
    SCOPED_FREE char *folder = golden("tokenizer.json");
    *fixture = (Fixture){.tokenizer = tokenizer_open(folder, &error)};
    if (!fixture->tokenizer) fail_msg("%s", error.message);
    ChatOptions options = {.source = folder, .template = template, .turns = turns, .special = special, .end_token = 0};
    fixture->chat = chat_open(&options, fixture->tokenizer, &error);
    if (!fixture->chat) fail_msg("%s", error.message);
    fixture->encoder = chat_encoder_open(fixture->chat);
}

static void close_chat(Fixture *fixture) {
    chat_document_free(&fixture->document);
    chat_encoder_free(fixture->encoder);
    chat_free(fixture->chat);
    tokenizer_free(fixture->tokenizer);
}

/* Compares all conversations with the lines of expected.txt that begin with the template's name. */
static int check_template(const char *name, ChatTurns turns) {
    SCOPED_FREE char *records = read_golden("conversations.jsonl"), *expected = read_golden("expected.txt");
    SCOPED_FREE char *file = memory_format("templates/%s.jinja", name), *path = golden(file);
    SCOPED(close_chat) Fixture fixture;
    open_chat(&fixture, path, turns, false);
    int number = 0, kept = 0;
    for (char *line = strtok(records, "\n"); line; line = strtok(NULL, "\n"), number++) {
        Error error = {0};
        json_auto_t *record = json_loads(line, 0, NULL);
        bool good = chat_encode(fixture.encoder, record, &fixture.document, &error);
        SCOPED_FREE char *what = good ? describe(&fixture.document) : memory_copy_string("refused");
        SCOPED_FREE char *wanted = memory_format("%s %d %s\n", name, number, what);
        if (!strstr(expected, wanted)) fail_msg("%s, conversation %d: %s (%s)", name, number, what, error.message);
        if (!good && error.code != ERROR_DATA) fail_msg("%s", error.message);
        kept += good;
    }
    assert_int_equal(number, 320);
    return kept;
}

static void conversations_are_rendered_and_masked_as_transformers_does(void **state) {
    (void)state;
    assert_int_equal(check_template("system", CHAT_TURNS_ALL), 270);
    assert_int_equal(check_template("headers", CHAT_TURNS_ALL), 264);
    assert_int_equal(check_template("turns", CHAT_TURNS_ALL), 187);
    assert_int_equal(check_template("macros", CHAT_TURNS_ALL), 268);
    assert_int_equal(check_template("marked", CHAT_TURNS_ALL), 295);
    assert_int_equal(check_template("brackets", CHAT_TURNS_LAST), 258);
    assert_int_equal(check_template("channels", CHAT_TURNS_LAST), 257);
    assert_int_equal(check_template("thinking", CHAT_TURNS_LAST), 305);
}

static const char two_turns[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"},"
                                "{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\"}]}";

static bool encode(Fixture *fixture, const char *text, Error *error) {
    json_auto_t *record = json_loads(text, JSON_ALLOW_NUL, NULL);
    assert_non_null(record);
    *error = (Error){0};
    return chat_encode(fixture->encoder, record, &fixture->document, error);
}

static void another_mask_is_told_apart(void **state) {
    (void)state;
    Error error;
    SCOPED_FREE char *path = golden("templates/system.jinja");
    SCOPED(close_chat) Fixture fixture;
    open_chat(&fixture, path, CHAT_TURNS_ALL, false);
    assert_true(encode(&fixture, two_turns, &error));
    SCOPED_FREE char *right = describe(&fixture.document);
    for (size_t i = 0; i < fixture.document.ids.count; i++) {
        fixture.document.trained[i] ^= 1;
        SCOPED_FREE char *wrong = describe(&fixture.document);
        assert_string_not_equal(right, wrong);
        fixture.document.trained[i] ^= 1;
    }
}

/* -- What is trained --------------------------------------------------------------------------------------------------- */

/* The text of the trained tokens, with | between those that do not follow one another; the caller frees. */
static char *trained_text(const Fixture *fixture) {
    const ChatDocument *document = &fixture->document;
    TokenizerDecoder decoder = tokenizer_decoder(fixture->tokenizer, false);
    char *text = memory_copy_string("");
    bool before = false;
    for (size_t i = 0; i < document->ids.count; i++) {
        size_t length;
        const char *piece = tokenizer_decode(&decoder, document->ids.items[i], &length);
        SCOPED_FREE char *old = text;
        bool gap = document->trained[i] && !before && *old;
        text = memory_format("%s%s%.*s", old, gap ? "|" : "", document->trained[i] ? (int)length : 0, piece);
        before = document->trained[i];
    }
    return text;
}

static void assert_trained(Fixture *fixture, const char *record, const char *expected) {
    Error error;
    if (!encode(fixture, record, &error)) fail_msg("%s", error.message);
    SCOPED_FREE char *text = trained_text(fixture);
    assert_string_equal(text, expected);
}

static void answers_are_trained_with_their_stop_token(void **state) {
    (void)state;
    SCOPED_FREE char *path = golden("templates/system.jinja");
    Fixture fixture;
    open_chat(&fixture, path, CHAT_TURNS_ALL, false);
    assert_trained(&fixture, two_turns, "b<|im_end|>\n|d<|im_end|>\n");
    assert_trained(&fixture, "{\"instruction\": \"Add\", \"input\": \"1 1\", \"output\": \"2\"}", "2<|im_end|>\n");
    assert_true(strstr(fixture.document.text.bytes, "user\nAdd\n\n1 1<|im_end|>"));
    assert_trained(&fixture,
        "{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"no\"}, {\"role\": \"user\", "
        "\"content\": \"r\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"yes\"}]}",
        "yes<|im_end|>\n");
    close_chat(&fixture);
    open_chat(&fixture, path, CHAT_TURNS_LAST, false);
    assert_trained(&fixture, two_turns, "d<|im_end|>\n");
    close_chat(&fixture);
    open_chat(&fixture, "chatml", CHAT_TURNS_LAST, false);
    assert_trained(&fixture, two_turns, "d<|im_end|>\n");
    close_chat(&fixture);
}

/* The last answer need not be the last message. */
static void turns_last_trains_the_last_answer_whatever_follows_it(void **state) {
    (void)state;
    static const char *const tails[] = {"{\"role\": \"user\", \"content\": \"e\"}",
        "{\"role\": \"user\", \"content\": \"e\"}, {\"role\": \"user\", \"content\": \"f\"}", "{\"role\": \"system\", \"content\": \"e\"}"};
    static const char *const templates[][2] = {
        {"system", "d<|im_end|>\n"}, {"thinking", "<think>\n\n</think>\n\nd<|im_end|>\n"}, {"marked", "d<|im_end|>"}};
    Fixture fixture;
    for (size_t t = 0; t < sizeof templates / sizeof *templates; t++) {
        SCOPED_FREE char *name = memory_format("templates/%s.jinja", templates[t][0]), *path = golden(name), *alone = NULL;
        open_chat(&fixture, path, CHAT_TURNS_LAST, false);
        assert_trained(&fixture, two_turns, templates[t][1]);
        alone = memory_copy_string(fixture.document.text.bytes);
        for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
            SCOPED_FREE char *record = memory_format("%.*s, %s]}", (int)strlen(two_turns) - 2, two_turns, tails[i]);
            assert_trained(&fixture, record, templates[t][1]);
            assert_string_equal(fixture.document.text.bytes, alone);
        }
        close_chat(&fixture);
    }
}

static void texts_need_no_template_and_end(void **state) {
    (void)state;
    Fixture fixture;
    Error error;
    open_chat(&fixture, "", CHAT_TURNS_ALL, false);
    assert_false(chat_has_template(fixture.chat));
    assert_trained(&fixture, "{\"prompt\": \"one two\", \"completion\": \" three\"}", " three<|endoftext|>");
    assert_false(encode(&fixture, two_turns, &error));
    assert_mentions(error.message, "template=FILE");
    close_chat(&fixture);
}

static void assert_refused(Fixture *fixture, const char *record, ErrorCode code, const char *part) {
    Error error;
    assert_false(encode(fixture, record, &error));
    if (!mentions(error.message, part) || error.code != code)
        fail_msg("\"%s\" (%d) does not contain \"%s\"", error.message, error.code, part);
}

static void what_is_no_conversation_is_refused(void **state) {
    (void)state;
    SCOPED_FREE char *path = golden("templates/turns.jinja"), *thinking = golden("templates/thinking.jinja");
    Fixture fixture;
    open_chat(&fixture, path, CHAT_TURNS_ALL, false);
    assert_refused(&fixture, "{\"text\": \"a\"}", ERROR_DATA, "messages");
    assert_refused(&fixture, "{\"text\": \"a\", \"id\": 5}", ERROR_DATA, "but text, id");
    assert_refused(&fixture, "{\"messages\": null, \"id\": 5}", ERROR_DATA, "but only messages (null), id");
    assert_refused(&fixture, "{\"messages\": []}", ERROR_DATA, "empty");
    assert_refused(&fixture, "{\"messages\": [{\"content\": \"a\"}]}", ERROR_DATA, "messages[0]");
    assert_refused(&fixture, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", ERROR_DATA, "messages[0]");
    assert_refused(&fixture, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", ERROR_DATA, "answer");
    assert_refused(&fixture, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}", ERROR_DATA, "19 template rejects");
    assert_refused(&fixture, "{\"prompt\": \"a\", \"completion\": []}", ERROR_DATA, "strings");
    assert_refused(&fixture, "{\"instruction\": \"a\"}", ERROR_DATA, "output");
    assert_refused(&fixture, "{\"instruction\": \"a\", \"input\": 5, \"output\": \"b\"}", ERROR_DATA, "strings");
    assert_refused(&fixture, "{\"instruction\": \"\", \"output\": \"b\"}", ERROR_DATA, "instruction");
    assert_refused(&fixture, "{\"system\": \"s\", \"prompt\": \"a\", \"completion\": \"b\"}", ERROR_DATA, "system");
    assert_refused(&fixture,
        "{\"system\": \"s\", \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
        ERROR_DATA, "system, which is read only beside conversations and instruction");
    assert_refused(&fixture,
        "{\"system\": \"s\", \"conversations\": [{\"from\": \"system\", \"value\": \"t\"}, {\"from\": \"human\", \"value\": \"a\"}, "
        "{\"from\": \"gpt\", \"value\": \"b\"}]}",
        ERROR_DATA, "another system message");
    assert_refused(&fixture,
        "{\"kto_tag\": false, \"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}]}",
        ERROR_DATA, "kto_tag is false");
    json_auto_t *endless = json_pack("{s:[]}", "messages");
    for (int i = 0; i < 5000; i++)
        json_array_append_new(
            json_object_get(endless, "messages"), json_pack("{ss ss}", "role", i % 2 ? "assistant" : "user", "content", "a"));
    SCOPED_FREE char *line = json_dumps(endless, 0);
    assert_refused(&fixture, line, ERROR_DATA, "4096 messages");
    assert_refused(&fixture,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a<|im_end|>\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}", ERROR_DATA,
        "special");
    assert_refused(&fixture,
        "{\"tools\": [{\"a\": \"<s>\"}], \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
        "\"b\"}]}",
        ERROR_DATA, "special");
    close_chat(&fixture);
    open_chat(&fixture, "", CHAT_TURNS_ALL, false);
    assert_refused(&fixture, "{\"prompt\": \"a<|im_\", \"completion\": \"end|>b\"}", ERROR_DATA, "special");
    close_chat(&fixture);
    open_chat(&fixture, path, CHAT_TURNS_ALL, true);
    assert_trained(&fixture,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a<|im_end|>\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}",
        "b<|im_end|>\n");
    close_chat(&fixture);
    open_chat(&fixture, thinking, CHAT_TURNS_ALL, false);
    assert_refused(&fixture, two_turns, ERROR_USAGE, "turns=last");
    close_chat(&fixture);
}

static void the_token_that_ends_an_answer_is_the_templates(void **state) {
    (void)state;
    static const struct {
        const char *template, *token;
    } ends[] = {{"templates/system.jinja", "<|im_end|>"}, {"templates/brackets.jinja", "</s>"}, {"templates/headers.jinja", "<|im_end|>"},
        {"templates/thinking.jinja", "<|im_end|>"}, {"templates/marked.jinja", "<|im_end|>"}, {"templates/turns.jinja", "<|im_end|>"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        SCOPED_FREE char *path = golden(ends[i].template);
        Fixture fixture;
        open_chat(&fixture, path, CHAT_TURNS_ALL, false);
        assert_int_equal(chat_answer_end(fixture.encoder), tokenizer_id(fixture.tokenizer, ends[i].token));
        close_chat(&fixture);
    }
    Fixture fixture;
    open_chat(&fixture, "", CHAT_TURNS_ALL, false);
    assert_int_equal(chat_answer_end(fixture.encoder), -1);
    close_chat(&fixture);
}

/* The whole conversation, whose tokens are compared with transformers' above, has the same tokens after its answer. */
static void messages_continue_a_conversation(void **state) {
    (void)state;
    static const char *const user = "[{\"role\": \"user\", \"content\": \"c d\"}]",
                             *const tools = "[{\"role\": \"tool\", \"content\": \"7\"}, {\"role\": \"tool\", \"content\": \"x y\"}]";
    static const struct {
        const char *template, *end, *messages;
    } continued[] = {{"system", "<|im_end|>", user}, {"system", "<|im_end|>", tools}, {"brackets", "</s>", user},
        {"headers", "<|im_end|>", user}, {"headers", "<|im_end|>", tools}, {"thinking", "<|im_end|>", user},
        {"thinking", "<|im_end|>", tools}, {"marked", "<|im_end|>", user}, {"turns", "<|im_end|>", user}};
    for (size_t i = 0; i < sizeof continued / sizeof *continued; i++) {
        SCOPED_FREE char *file = memory_format("templates/%s.jinja", continued[i].template), *path = golden(file);
        Fixture fixture;
        Error error = {0};
        open_chat(&fixture, path, CHAT_TURNS_LAST, false);
        json_auto_t *messages = json_loads(continued[i].messages, 0, NULL),
                    *asked = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", 0, NULL),
                    *whole = json_deep_copy(asked), *answer = json_pack("{ss ss}", "role", "assistant", "content", "b");
        json_array_append(json_object_get(whole, "messages"), answer);
        json_array_extend(json_object_get(whole, "messages"), messages);
        if (!chat_prompt(fixture.encoder, whole, &fixture.document, &error)) fail_msg("%s: %s", file, error.message);
        const TokenIds *all = &fixture.document.ids;
        int32_t end = tokenizer_id(fixture.tokenizer, continued[i].end);
        for (int ended = 0; ended < 2; ended++) {
            SCOPED(token_ids_free) TokenIds ids = {0};
            if (!chat_continue(fixture.encoder, asked, messages, ended ? end : -1, &ids, &error)) fail_msg("%s: %s", file, error.message);
            assert_in_range(ids.count, 2, all->count - 2);
            const int32_t *tail = all->items + (all->count - ids.count);
            assert_memory_equal(ids.items, tail, ids.count * sizeof *ids.items);
            assert_int_equal(tail[ended ? -1 : 0], end);
        }
        SCOPED(token_ids_free) TokenIds ids = {0};
        json_array_append_new(messages, json_pack("{ss ss}", "role", "user", "content", continued[i].end));
        assert_false(chat_continue(fixture.encoder, asked, messages, end, &ids, &error));
        assert_int_equal(error.code, ERROR_DATA);
        close_chat(&fixture);
    }
}

/* -- Records as programs store them ------------------------------------------------------------------------------------- */

/* Opens a template that is given as text. */
static void open_template(Fixture *fixture, const char *source, ChatTurns turns) {
    char path[] = "/tmp/smelt-template-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    write_text(path, source);
    open_chat(fixture, path, turns, true);
    assert_int_equal(remove(path), 0);
}

/* The side files that the tokenizer's folder lacks are no error, and hide none. */
static void templates_that_are_not_supported_are_refused_by_their_line(void **state) {
    (void)state;
    char path[] = "/tmp/smelt-template-XXXXXX";
    Error error = {0};
    SCOPED_FREE char *folder = golden("tokenizer.json");
    Tokenizer *tokenizer = tokenizer_open(folder, &error);
    int file = mkstemp(path);
    assert_true(tokenizer && file >= 0);
    close(file);
    write_text(path, "{{ messages }}\n{% include 'x' %}");
    assert_null(chat_open(&(ChatOptions){.source = folder, .template = path}, tokenizer, &error));
    assert_mentions(error.message, "line 2 include");
    assert_int_equal(remove(path), 0);
    tokenizer_free(tokenizer);
}

#define MESSAGE(role, members) "{\"role\": \"" role "\", " members "}"
#define CALL(arguments) "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " arguments "}}"
#define ASKED(...) "{\"messages\": [" MESSAGE("user", "\"content\": \"a\"") ", " __VA_ARGS__ "]}"
static const char calls_template[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static void assert_rendered(Fixture *fixture, const char *record, const char *expected) {
    Error error;
    if (!encode(fixture, record, &error)) fail_msg("%s", error.message);
    assert_string_equal(fixture->document.text.bytes, expected);
}

/* transformers 5.24 drops members of a message that are null, and not those inside of other members. */
static void members_that_are_null_are_not_there(void **state) {
    (void)state;
    Fixture fixture;
    open_template(&fixture, calls_template, CHAT_TURNS_ALL);
    assert_trained(&fixture, ASKED(MESSAGE("assistant", "\"content\": null, \"tool_calls\": [" CALL("{\"x\": null}") "]")),
        "<call>f{\"x\": null}</call><|im_end|>\n");
    assert_trained(&fixture,
        "{\"prompt\": null, \"completion\": null, \"tools\": null, \"chat_template_kwargs\": null, \"messages\": [" MESSAGE(
            "user", "\"content\": \"a\"") ", " MESSAGE("assistant", "\"content\": \"b\"") "]}",
        "b<|im_end|>\n");
    assert_trained(&fixture, "{\"messages\": null, \"prompt\": \"one two\", \"completion\": \" three\"}", " three<|endoftext|>");
    close_chat(&fixture);
    open_template(&fixture,
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if 'tool_calls' in m %}{{ m.tool_calls | length }} calls{% else %}"
        "{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        CHAT_TURNS_ALL);
    assert_rendered(&fixture,
        "{\"messages\": [" MESSAGE("user", "\"content\": \"a\", \"tool_calls\": null") ", " MESSAGE(
            "assistant", "\"content\": \"b\", \"tool_calls\": null") "]}",
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
    close_chat(&fixture);
}

static void arguments_that_are_json_text_are_decoded(void **state) {
    (void)state;
    static const struct {
        const char *text, *written;
        size_t decoded, kept;
    } rows[] = {{"\"{\\\"x\\\": 1}\"", "{\"x\": 1}", 1, 0}, {"\" {\\n}\"", "{}", 1, 0}, {"{\"x\": 1}", "{\"x\": 1}", 0, 0},
        {"\"[1]\"", "\"[1]\"", 0, 1}, {"\"\"", "\"\"", 0, 1}, {"\"x\"", "\"x\"", 0, 1},
        {"\"{\\\"b\\\": 2.0, \\\"a\\\": \\\"\\u00e9\\\"}\"", "{\"b\": 2.0, \"a\": \"\u00e9\"}", 1, 0}};
    Fixture fixture;
    open_template(&fixture, calls_template, CHAT_TURNS_ALL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        SCOPED_FREE char *record =
            memory_format("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": null, "
                          "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": %s}}]}]}",
                rows[i].text);
        SCOPED_FREE char *expected = memory_format("<call>f%s</call><|im_end|>\n", rows[i].written);
        assert_trained(&fixture, record, expected);
        assert_int_equal(fixture.document.counts.decoded_arguments, rows[i].decoded);
        assert_int_equal(fixture.document.counts.text_arguments, rows[i].kept);
    }
    close_chat(&fixture);
}

/* DeepSeek's templates join arguments to a text; others write what they are given, an object as Python does. */
static void templates_that_take_text_get_text(void **state) {
    (void)state;
    static const char *const writes[] = {"'<call>' + c.function.arguments", "'<call>' ~ c.function.arguments"};
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *source = memory_format(
            "{%% for m in messages %%}<|im_start|>{{ m.role }}\n{{ m.content }}{%% for c in m.tool_calls or [] %%}{{ %s }}{%% endfor %%}"
            "<|im_end|>\n{%% endfor %%}{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}",
            writes[i]);
        Fixture fixture;
        open_template(&fixture, source, CHAT_TURNS_ALL);
        assert_trained(&fixture, ASKED(MESSAGE("assistant", "\"content\": \"\", \"tool_calls\": [" CALL("\"{\\\"x\\\":1}\"") "]")),
            "<call>{\"x\":1}<|im_end|>\n");
        assert_int_equal(fixture.document.counts.decoded_arguments + fixture.document.counts.text_arguments, 0);
        close_chat(&fixture);
    }
}

/* As FastChat, axolotl and LLaMA-Factory write them: the text is that of the same conversation as messages. */
static void conversations_of_other_programs_are_those_of_messages(void **state) {
    (void)state;
    static const struct {
        const char *record, *same;
    } records[] = {
        {"{\"id\": \"x_0\", \"conversations\": [{\"from\": \"human\", \"value\": \"a\", \"weight\": 0}, {\"from\": \"gpt\", \"value\": "
         "\"b\", \"weight\": 1}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}"},
        {"{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"user\", \"value\": \"a\"}, {\"from\": "
         "\"assistant\", \"value\": \"b\"}], \"system\": null, \"tools\": \"\"}",
            "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
            "\"assistant\", \"content\": \"b\"}]}"},
        {"{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], \"system\": "
         "\"s\"}",
            "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
            "\"assistant\", \"content\": \"b\"}]}"},
        {"{\"messages\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"chatgpt\", \"value\": \"b\"}]}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}"},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"function_call\", \"value\": \"{\\\"name\\\": "
         "\\\"f\\\", \\\"arguments\\\": {\\\"x\\\": 1}}\"}, {\"from\": \"observation\", \"value\": \"2\"}, {\"from\": \"gpt\", \"value\": "
         "\"b\"}], \"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\"}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": "
            "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}, {\"role\": \"tool\", \"content\": "
            "\"2\"}, {\"role\": \"assistant\", \"content\": \"b\"}], \"tools\": [{\"name\": \"f\"}]}"},
    };
    Fixture fixture;
    Error error;
    open_template(&fixture, calls_template, CHAT_TURNS_ALL);
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        if (!encode(&fixture, records[i].same, &error)) fail_msg("%s", error.message);
        SCOPED_FREE char *text = memory_copy_string(fixture.document.text.bytes), *trained = trained_text(&fixture);
        assert_trained(&fixture, records[i].record, trained);
        assert_string_equal(fixture.document.text.bytes, text);
    }
    assert_refused(&fixture, "{\"conversations\": [{\"from\": \"human\", \"value\": null}]}", ERROR_DATA, "messages[0]");
    assert_refused(&fixture, "{\"conversations\": \"a\", \"id\": 1}", ERROR_DATA, "but conversations, id");
    close_chat(&fixture);
}

/* Each was rendered with its name as the role, which trains no answer and which templates may ignore. */
static void names_that_are_no_role_are_refused(void **state) {
    (void)state;
#define SHARE_ANSWER(from, value) \
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"" from "\", \"value\": " value \
    "}, {\"from\": \"gpt\", \"value\": \"b\"}]}"
    Fixture fixture;
    open_template(&fixture, calls_template, CHAT_TURNS_ALL);
    assert_refused(&fixture, SHARE_ANSWER("bard", "\"c\""), ERROR_DATA, "messages[1] is from \"bard\"");
    static const char *const calls[] = {
        "\"not JSON\"", "\"{}\"", "\"[]\"", "\"[{\\\"name\\\": \\\"f\\\"}, 1]\"", "null", "{\"name\": \"f\"}"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        SCOPED_FREE char *record = memory_format(SHARE_ANSWER("function_call", "%s"), calls[i]);
        assert_refused(&fixture, record, ERROR_DATA, "messages[1] is a function_call, but");
    }
    close_chat(&fixture);
}

/* C strings end at the character, and the rest of the text was lost. */
static void texts_with_the_null_character_stay_whole(void **state) {
    (void)state;
    Fixture fixture;
    Error error;
    open_template(&fixture, calls_template, CHAT_TURNS_ALL);
    static const char message[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"s\\u0000t\"}, {\"role\": \"user\", "
                                  "\"content\": \"a\\u0000b\\n\\nc\\u0000d\"}, {\"role\": \"assistant\", \"content\": \"e\"}]}",
                      alpaca[] = "{\"system\": \"s\\u0000t\", \"instruction\": \"a\\u0000b\", \"input\": \"c\\u0000d\", "
                                 "\"output\": \"e\"}";
    if (!encode(&fixture, message, &error)) fail_msg("%s", error.message);
    size_t size = fixture.document.text.size;
    SCOPED_FREE char *text = memory_allocate(size);
    memcpy(text, fixture.document.text.bytes, size);
    if (!encode(&fixture, alpaca, &error)) fail_msg("%s", error.message);
    assert_int_equal(fixture.document.text.size, size);
    assert_memory_equal(fixture.document.text.bytes, text, size);
    close_chat(&fixture);
}

/* A template that looks at the first message renders no text without one. */
static void an_answer_may_open_a_conversation(void **state) {
    (void)state;
    static const char greeting[] = "{\"messages\": [" MESSAGE("assistant", "\"content\": \"b\"") ", " MESSAGE(
        "user", "\"content\": \"c\"") ", " MESSAGE("assistant", "\"content\": \"d\"") "]}";
    static const char *const heads[] = {"", "{% if messages[0].role == 'system' %}S{% endif %}",
        "{% if messages[0].role != 'system' %}<|im_start|>system\nS<|im_end|>\n{% endif %}"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        SCOPED_FREE char *source = memory_format("%s%s", heads[i], calls_template);
        Fixture fixture;
        open_template(&fixture, source, CHAT_TURNS_ALL);
        assert_trained(&fixture, greeting, "b<|im_end|>\n|d<|im_end|>\n");
        close_chat(&fixture);
        open_template(&fixture, source, CHAT_TURNS_LAST);
        assert_trained(&fixture, greeting, "d<|im_end|>\n");
        close_chat(&fixture);
    }
    Fixture fixture;
    open_template(&fixture,
        "{% if messages[0].role == 'system' %}S{% endif %}{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}"
        "{{ m.content }}</s>{% endif %}{% endfor %}",
        CHAT_TURNS_ALL);
    assert_trained(&fixture, greeting, "b</s>|d</s>");
    close_chat(&fixture);
}

/* Each of these was trained, and not as the record says. */
static void members_that_would_be_lost_are_refused(void **state) {
    (void)state;
    Fixture fixture;
    open_chat(&fixture, "chatml", CHAT_TURNS_ALL, false);
#define AND_ANSWER(user) "[" user ", {\"role\": \"assistant\", \"content\": \"b\"}]"
#define USER "{\"role\": \"user\", \"content\": \"a\"}"
    assert_refused(&fixture, "{\"messages\": " AND_ANSWER("{\"role\": \"user\", \"text\": \"a\"}") "}", ERROR_DATA, "messages[0]");
    assert_refused(&fixture, "{\"messages\": " AND_ANSWER("{\"role\": \"user\", \"content\": null}") "}", ERROR_DATA, "messages[0]");
    static const char *const members[] = {"\"weight\": 0", "\"weight\": 0.5", "\"train\": false", "\"training\": false"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        SCOPED_FREE char *record =
            memory_format("{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"b\", %s}]}", members[i]);
        assert_refused(&fixture, record, ERROR_DATA, "messages[1] has ");
    }
    assert_trained(&fixture, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"b\", \"weight\": 1}]}", "b<|im_end|>\n");
    assert_refused(&fixture, "{\"tools\": \"f\", \"messages\": " AND_ANSWER(USER) "}", ERROR_DATA, "tools");
    assert_refused(&fixture, "{\"tools\": [{}, 5], \"messages\": " AND_ANSWER(USER) "}", ERROR_DATA, "tools[1]");
    assert_refused(&fixture, "{\"chat_template_kwargs\": {\"messages\": " AND_ANSWER(USER) "}, \"messages\": " AND_ANSWER(USER) "}",
        ERROR_DATA, "chat_template_kwargs has messages");
    assert_refused(&fixture, "{\"chat_template_kwargs\": {\"add_generation_prompt\": true}, \"messages\": " AND_ANSWER(USER) "}",
        ERROR_DATA, "has add_generation_prompt");
    assert_refused(&fixture, "{\"tools\": [{\"name\": \"add\"}], \"messages\": " AND_ANSWER(USER) "}", ERROR_DATA, "place");
    assert_refused(&fixture,
        "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"b\", \"tool_calls\": [{\"function\": {}}]}]}", ERROR_DATA,
        "tool_calls");
    assert_refused(&fixture, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"b\", \"thinking\": \"c\"}]}", ERROR_DATA,
        "tool_calls");
    close_chat(&fixture);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversations_are_rendered_and_masked_as_transformers_does),
        cmocka_unit_test(another_mask_is_told_apart),
        cmocka_unit_test(answers_are_trained_with_their_stop_token),
        cmocka_unit_test(turns_last_trains_the_last_answer_whatever_follows_it),
        cmocka_unit_test(texts_need_no_template_and_end),
        cmocka_unit_test(what_is_no_conversation_is_refused),
        cmocka_unit_test(the_token_that_ends_an_answer_is_the_templates),
        cmocka_unit_test(messages_continue_a_conversation),
        cmocka_unit_test(templates_that_are_not_supported_are_refused_by_their_line),
        cmocka_unit_test(members_that_are_null_are_not_there),
        cmocka_unit_test(arguments_that_are_json_text_are_decoded),
        cmocka_unit_test(templates_that_take_text_get_text),
        cmocka_unit_test(conversations_of_other_programs_are_those_of_messages),
        cmocka_unit_test(names_that_are_no_role_are_refused),
        cmocka_unit_test(texts_with_the_null_character_stay_whole),
        cmocka_unit_test(an_answer_may_open_a_conversation),
        cmocka_unit_test(members_that_would_be_lost_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

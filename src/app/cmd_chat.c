/* `smelt chat MODEL [key=value ...]`: a conversation with a model, in its own chat template. On a
 * terminal the user types a line and reads the answer while it is generated; Ctrl-C ends the
 * answer, Ctrl-D the conversation. If standard input is not a terminal, each of its lines is a
 * message, and stdout gets only the answers, each with a newline.
 *
 * The model reads the text of all messages so far before each answer. Text that it has read stays
 * in the caches as long as the new text begins with it. A template that renders earlier messages
 * differently later costs reading them again. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/command.h"
#include "app/generation.h"
#include "app/process.h"
#include "base/array.h"
#include "base/log.h"
#include "base/scope.h"
#include "chat/chat.h"
#include "base/stop.h"
#include "data/byte_tokenizer.h"
#include "token/tokenizer.h"
#include "data/pack.h"
#include "run/source.h"

#define FIELD(name) offsetof(GenerationOptions, name)
static const Option rows[] = {
    STRING_OPTION(system, "", "", "system message at the start of the conversation"),
    STRING_OPTION(template, "", "", "file with the chat template, or chatml; empty: the model's own", .path = true),
    BOOL_OPTION(special, "false", "parse special tokens spelled out in a message; false: reject such a message"),
    INT_OPTION(tokens, "0", 0, 1e9, "tokens", "maximum tokens of an answer; 0: as many as fit in the context"),
    GENERATION_SAMPLING("0.7"),
    INT_OPTION(context, "0", 0, 1 << 24, "tokens",
        "maximum positions of the conversation, which determines the memory of the KV cache; 0: the model's"),
    GENERATION_MACHINE,
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

typedef struct Talk {
    const GenerationOptions *options;
    Generator *generator;
    ModelText text;
    ModelChat chat;
    ChatDocument document;
    json_t *messages;
    TokenIds read; /* the tokens that the generator has read */
    char *answer;
    size_t answer_size, answer_capacity;
    StopRequest stop;
    bool terminal; /* standard input is a terminal */
} Talk;

static void talk_close(Talk *talk) {
    chat_document_free(&talk->document);
    model_chat_close(&talk->chat);
    model_text_close(&talk->text);
    token_ids_free(&talk->read);
    json_decref(talk->messages);
    free(talk->answer);
}

static bool open_chat(Talk *talk, const char *folder, const Config *config, Error *error) {
    const ChatOptions options = {.template = talk->options->template, .special = talk->options->special};
    if (!model_text_open(&talk->text, folder, config, error)) return false;
    if (!model_chat_open(&talk->chat, &talk->text, folder, config, &options, error)) return false;
    return chat_has_template(talk->chat.chat) ||
           error_set(error, ERROR_USAGE,
               "%s has no chat template: set template=FILE, or template=chatml if the model was trained "
               "with it; or continue text with smelt generate",
               folder);
}

/* -- Messages ---------------------------------------------------------------------------------------------------------- */

static void add_message(Talk *talk, const char *role, const char *text, size_t size) {
    size_t good;
    SCOPED_FREE char *content = utf8_replace(text, size, &good);
    json_array_append_new(talk->messages, json_pack("{ss so}", "role", role, "content", json_stringn(content, good)));
}

static void begin(Talk *talk) {
    json_array_clear(talk->messages);
    if (*talk->options->system) add_message(talk, "system", talk->options->system, strlen(talk->options->system));
}

/* Reads the next line of standard input without its end; returns false if there is none. On a
 * terminal Ctrl-C restarts the line. */
static bool read_prompt_line(Talk *talk, char **line, size_t *capacity, size_t *size) {
    for (;;) {
        if (talk->terminal) fputs("> ", stdout), fflush(stdout);
        errno = 0;
        ssize_t length = getline(line, capacity, stdin);
        if (length < 0 && errno == EINTR && talk->terminal) {
            clearerr(stdin);
            fputs("\n(Ctrl-D ends the conversation)\n", stdout);
            continue;
        }
        if (length < 0) return false;
        *size = (size_t)length - (length > 0 && (*line)[length - 1] == '\n');
        (*line)[*size] = '\0';
        if (*size > 0) return true;
    }
}

/* -- Answers ----------------------------------------------------------------------------------------------------------- */

/* Feeds the generator the document's tokens that it has not read yet. */
static bool feed(Talk *talk, Error *error) {
    const TokenIds *ids = &talk->document.ids;
    size_t known = talk->read.count;
    bool follows = ids->count > known && (!known || !memcmp(ids->items, talk->read.items, known * sizeof *ids->items));
    if (!follows) {
        generator_restart(talk->generator);
        talk->read.count = known = 0;
    }
    if (!generator_feed(talk->generator, ids->items + known, (int64_t)(ids->count - known), error)) return false;
    while (talk->read.count < ids->count) token_ids_append(&talk->read, ids->items[talk->read.count]);
    return true;
}

static void keep_token(Talk *talk, int32_t token) {
    char byte;
    size_t length;
    TokenizerDecoder decoder = talk->text.decoder; /* restored, because printing the token advances it */
    const char *bytes = model_text_bytes(&talk->text, token, &byte, &length);
    talk->text.decoder = decoder;
    array_reserve(talk->answer, talk->answer_capacity, talk->answer_size + length + 1);
    if (length) memcpy(talk->answer + talk->answer_size, bytes, length);
    talk->answer_size += length;
}

/* Generates and prints an answer, until a token ends it, there is no room, or Ctrl-C. */
static bool draw_answer(Talk *talk, Error *error) {
    Sampling sampling = generation_sampling(talk->options);
    int64_t most = talk->options->tokens ? talk->options->tokens : INT64_MAX;
    talk->answer_size = 0;
    if (talk->text.tokenizer) talk->text.decoder = tokenizer_decoder(talk->text.tokenizer, true);
    for (int64_t i = 0; i < most && generator_room(talk->generator) > 0 && !talk->stop.signal; i++) {
        int32_t token;
        if (!generator_next(talk->generator, &sampling, model_text_limit(&talk->text), &token, error)) return false;
        token_ids_append(&talk->read, token);
        if (model_text_stops(&talk->text, token)) break;
        keep_token(talk, token);
        model_text_put(&talk->text, token, i == 0);
        if (!model_text_flush(&talk->text, error)) return false;
    }
    model_text_end(&talk->text);
    return model_text_flush(&talk->text, error);
}

static bool answer_line(Talk *talk, const char *line, size_t size, Error *error) {
    add_message(talk, "user", line, size);
    talk->stop.signal = 0;
    json_auto_t *conversation = json_pack("{sO}", "messages", talk->messages);
    if (!chat_prompt(talk->chat.encoder, conversation, &talk->document, error) || !feed(talk, error) || !draw_answer(talk, error))
        return false;
    add_message(talk, "assistant", talk->answer ? talk->answer : "", talk->answer_size);
    return true;
}

/* On a terminal, drops a message that the template or the context refuses, and continues the
 * conversation. */
static bool refuse_message(Talk *talk, Error *error) {
    if (!talk->terminal || (error->code != ERROR_DATA && error->code != ERROR_USAGE)) return false;
    json_array_remove(talk->messages, json_array_size(talk->messages) - 1);
    log_error("%s (/new starts a new conversation)", error->message);
    *error = (Error){0};
    return true;
}

static bool converse(Talk *talk, Error *error) {
    char *line = NULL;
    size_t capacity = 0, size;
    bool good = true;
    begin(talk);
    while (good && read_prompt_line(talk, &line, &capacity, &size)) {
        if (!strcmp(line, "/new")) begin(talk);
        else good = answer_line(talk, line, size, error) || refuse_message(talk, error);
    }
    if (good && ferror(stdin)) good = error_set(error, ERROR_DATA, "cannot read standard input: %s", strerror(errno));
    if (talk->terminal) putchar('\n');
    free(line);
    return good;
}

static bool run_alone(Inference *inference, Invocation *invocation, Error *error) {
    const char *folder = invocation->words[0];
    GenerationOptions *options = invocation->options;
    Config config;
    SCOPED(talk_close)
    Talk talk = {.options = options,
        .messages = json_array(),
        .text = {.printed = true, .terminal = isatty(STDOUT_FILENO)},
        .terminal = isatty(STDIN_FILENO)};
    options->layout = (LayoutConfig){.tp = 1, .cp = 1};
    options->cache = true;
    if (comm_size(inference->comm) > 1)
        return error_set(error, ERROR_USAGE, "smelt chat runs in one process: start it without smelt launch");
    if (!source_read_config(folder, &config, &invocation->strings, error) || !inference_check_text(&config, error)) return false;
    if (!inference_choose_arithmetic(&config, &options->fp8, options->exact, error) || !open_chat(&talk, folder, &config, error))
        return false;
    talk.generator = generation_open(inference, folder, &config, options, error);
    if (talk.generator) process_catch_interrupt(&talk.stop);
    bool good = talk.generator && converse(&talk, error);
    generator_free(talk.generator);
    return good;
}

static bool run_chat(Invocation *invocation, Error *error) {
    Inference inference = {0};
    bool done = inference_join(&inference, error) && run_alone(&inference, invocation, error);
    inference_close(&inference, done ? NULL : error);
    return done;
}

const Command command_chat = {
    .name = "chat",
    .summary = "talk to a model in its chat template",
    .words = "MODEL",
    .explanation =
        "Holds a conversation with a run's checkpoint, a Hugging Face folder, a GGUF file or PEFT adapters, in the model's own chat "
        "template. Ctrl-C ends an answer, Ctrl-D the conversation; the line /new starts a new one. If standard input is not a terminal, "
        "each line is a message, and stdout gets only the answers.\n  echo \"What is a rank?\" | smelt chat MODEL temperature=0\n",
    .table = &table,
    .options_size = sizeof(GenerationOptions),
    .run = run_chat,
};

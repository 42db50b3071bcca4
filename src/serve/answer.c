/* The shapes of completions and chats differ in the names around the text and in the form of
 * log-probabilities; the rest is common. */
#include "serve/answer_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/pack.h"

void serve_answer_free(ServeAnswer *answer) {
    for (size_t i = 0; i < answer->sample_count; i++) serve_sample_free(&answer->samples[i]);
    free(answer->samples);
    serve_request_free(&answer->request);
}

static const ServePrompt *prompt_of(const ServeAnswer *answer, size_t index) {
    return &answer->request.prompts[index / (size_t)answer->request.samples];
}

static char *dump(const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!text) memory_refused(0);
    return text;
}

/* -- Faults -------------------------------------------------------------------------------------------------------- */

static json_t *valid_string(const char *text) {
    size_t size;
    SCOPED_FREE char *valid = utf8_replace(text, strlen(text), &size);
    return json_stringn(valid, size);
}

static json_t *fault_json(const ServeFault *fault) {
    const char *type = fault->status >= 500 ? "server_error" : fault->status == 429 ? "rate_limit_error" : "invalid_request_error";
    return json_pack("{s{so ss so? ss?}}", "error", "message", valid_string(fault->message), "type", type, "param",
        *fault->field ? valid_string(fault->field) : NULL, "code", fault->code);
}

char *serve_fault_text(const ServeFault *fault) {
    json_auto_t *json = fault_json(fault);
    return dump(json);
}

/* -- Log-probabilities --------------------------------------------------------------------------------------------- */

static bool is_valid(const char *bytes, size_t length) {
    json_auto_t *text = json_stringn(bytes, length);
    return text;
}

/* Returns the text of a token; bytes that are a part of a character become "bytes:\xe2\x82", as at
 * OpenAI. */
static json_t *token_text(const ServeModel *model, int32_t id) {
    char byte;
    size_t length, used = 0;
    const char *bytes = token_bytes(model->tokenizer, id, &byte, &length);
    if (is_valid(bytes, length)) return json_stringn(bytes, length);
    SCOPED_FREE char *text = memory_allocate(8 + 4 * length);
    used += (size_t)sprintf(text, "bytes:");
    for (size_t i = 0; i < length; i++) used += (size_t)sprintf(text + used, "\\x%02x", (uint8_t)bytes[i]);
    return json_stringn(text, used);
}

static json_t *byte_list(const ServeModel *model, int32_t id) {
    char byte;
    size_t length;
    json_t *list = json_array();
    const char *bytes = token_bytes(model->tokenizer, id, &byte, &length);
    for (size_t i = 0; i < length; i++) json_array_append_new(list, json_integer((uint8_t)bytes[i]));
    return list;
}

/* The lists of a completion's scores. */
typedef struct ScoreLists { json_t *tokens, *scores, *top, *offsets; } ScoreLists;

static ScoreLists open_lists(const ServeAnswer *answer) {
    return (ScoreLists){json_array(), json_array(), answer->request.top > 0 ? json_array() : NULL, json_array()};
}

static json_t *close_lists(ScoreLists *lists) {
    return json_pack("{so so so? so}", "tokens", lists->tokens, "token_logprobs", lists->scores, "top_logprobs", lists->top, "text_offset",
        lists->offsets);
}

/* Returns the likeliest tokens in the place of token `index`, [request.top], the first of them last: of
 * tokens with one text the likeliest counts. */
static json_t *top_object(const ServeAnswer *answer, const ServeScores *scores, size_t index) {
    json_t *object = json_object();
    for (int64_t i = answer->request.top; i-- > 0;) {
        const EngineScore *score = &scores->top[(int64_t)index * answer->request.top + i];
        if (score->token < 0) continue;
        json_t *text = token_text(answer->model, score->token);
        json_object_set_new(object, json_string_value(text), json_real(score->log_probability));
        json_decref(text);
    }
    return object;
}

static void list_token(ScoreLists *lists, const ServeModel *model, int32_t id, size_t offset) {
    json_array_append_new(lists->tokens, token_text(model, id));
    json_array_append_new(lists->offsets, json_integer((json_int_t)offset));
}

/* Adds token `index` of the scores. */
static void list_score(ScoreLists *lists, const ServeAnswer *answer, const ServeScores *scores, size_t index, size_t offset) {
    const EngineToken *token = &scores->tokens[index];
    list_token(lists, answer->model, token->token, offset);
    json_array_append_new(lists->scores, json_real(token->log_probability));
    if (!lists->top) return;
    json_t *top = top_object(answer, scores, index), *text = token_text(answer->model, token->token);
    json_object_set_new(top, json_string_value(text), json_real(token->log_probability));
    json_array_append_new(lists->top, top);
    json_decref(text);
}

static void list_prompt(ScoreLists *lists, const ServeAnswer *answer, const ServePrompt *prompt) {
    SCOPED_FREE size_t *offsets = memory_allocate(prompt->ids.count * sizeof *offsets);
    serve_offsets(answer->model, &prompt->ids, offsets);
    assert(prompt->scores.count + 1 == prompt->ids.count);
    list_token(lists, answer->model, prompt->ids.items[0], offsets[0]); /* without a score */
    json_array_append_new(lists->scores, json_null());
    if (lists->top) json_array_append_new(lists->top, json_null());
    for (size_t i = 0; i < prompt->scores.count; i++) list_score(lists, answer, &prompt->scores, i, offsets[i + 1]);
}

/* Returns the scores of a completion's tokens from `first` on, after those of its prompt if `whole`. */
static json_t *completion_scores(const ServeAnswer *answer, size_t index, size_t first, bool whole) {
    const ServeSample *sample = &answer->samples[index];
    const ServePrompt *prompt = prompt_of(answer, index);
    ScoreLists lists = open_lists(answer);
    if (whole && serve_request_scores_prompts(&answer->request)) list_prompt(&lists, answer, prompt);
    for (size_t i = first; i < sample->count; i++)
        list_score(&lists, answer, &sample->scores, i, sample->offsets[i] + text_characters(prompt->text, prompt->size));
    return close_lists(&lists);
}

static json_t *prompt_scores(const ServeAnswer *answer, const ServePrompt *prompt) {
    ScoreLists lists = open_lists(answer);
    list_prompt(&lists, answer, prompt);
    return close_lists(&lists);
}

/* A token in the form of chats, without alternatives. */
static json_t *chat_token(const ServeModel *model, int32_t id, double log_probability) {
    return json_pack("{so sf so}", "token", token_text(model, id), "logprob", log_probability, "bytes", byte_list(model, id));
}

static json_t *chat_scores(const ServeAnswer *answer, size_t index, size_t first) {
    const ServeSample *sample = &answer->samples[index];
    json_t *content = json_array();
    for (size_t i = first; i < sample->count; i++) {
        const EngineToken *token = &sample->scores.tokens[i];
        json_t *score = chat_token(answer->model, token->token, token->log_probability), *top = json_array();
        for (int64_t k = 0; k < answer->request.top; k++) {
            const EngineScore *other = &sample->scores.top[(int64_t)i * answer->request.top + k];
            if (other->token >= 0) json_array_append_new(top, chat_token(answer->model, other->token, other->log_probability));
        }
        json_object_set_new(score, "top_logprobs", top);
        json_array_append_new(content, score);
    }
    return json_pack("{so sn}", "content", content, "refusal");
}

/* -- Choices ------------------------------------------------------------------------------------------------------- */

/* Returns a choice with its tokens from `first` on, without its text; `whole`: scores of its prompt too. */
static json_t *choice_json(const ServeAnswer *answer, size_t index, size_t first, bool whole) {
    const ServeRequest *request = &answer->request;
    const ServeSample *sample = &answer->samples[index];
    json_t *scores = request->top < 0              ? json_null()
                     : request->kind == SERVE_CHAT ? chat_scores(answer, index, first)
                                                   : completion_scores(answer, index, first, whole);
    json_t *choice = json_pack("{sI so ss?}", "index", (json_int_t)index, "logprobs", scores, "finish_reason",
        !sample->ended                 ? NULL
        : sample->end == ENGINE_LENGTH ? "length"
                                       : "stop");
    if (!request->ids) return choice;
    json_t *ids = json_array();
    for (size_t i = first; i < sample->count; i++) json_array_append_new(ids, json_integer(sample->scores.tokens[i].token));
    json_object_set_new(choice, "token_ids", ids);
    return choice;
}

static json_t *usage_json(const ServeAnswer *answer) {
    size_t read = 0, made = 0;
    for (size_t i = 0; i < answer->request.prompt_count; i++) read += answer->request.prompts[i].ids.count;
    for (size_t i = 0; i < answer->sample_count; i++) made += answer->samples[i].count;
    return json_pack(
        "{sI sI sI}", "prompt_tokens", (json_int_t)read, "completion_tokens", (json_int_t)made, "total_tokens", (json_int_t)(read + made));
}

static json_t *frame_json(const ServeAnswer *answer, json_t *choices) {
    const char *object = answer->request.kind == SERVE_COMPLETION ? "text_completion"
                         : answer->request.stream                 ? "chat.completion.chunk"
                                                                  : "chat.completion";
    return json_pack("{ss ss sI ss so}", "id", answer->id, "object", object, "created", answer->created, "model",
        serve_model_name(answer->model, answer->request.adapter), "choices", choices);
}

char *serve_answer_whole(const ServeAnswer *answer) {
    json_t *choices = json_array();
    for (size_t i = 0; i < answer->sample_count; i++) {
        const ServeSample *sample = &answer->samples[i];
        const ServePrompt *prompt = prompt_of(answer, i);
        json_t *choice = choice_json(answer, i, 0, true);
        SCOPED_FREE char *text = memory_allocate(prompt->size + sample->text.size + 1);
        if (prompt->size) memcpy(text, prompt->text, prompt->size);
        if (sample->text.size) memcpy(text + prompt->size, sample->text.bytes, sample->text.size);
        json_t *string = json_stringn(text, prompt->size + sample->text.size);
        if (answer->request.kind == SERVE_COMPLETION) json_object_set_new(choice, "text", string);
        else json_object_set_new(choice, "message", json_pack("{ss so sn}", "role", "assistant", "content", string, "refusal"));
        json_array_append_new(choices, choice);
    }
    json_auto_t *json = frame_json(answer, choices);
    json_object_set_new(json, "usage", usage_json(answer));
    return dump(json);
}

/* -- Events -------------------------------------------------------------------------------------------------------- */

static void append_bytes(ServeOutput *output, const char *bytes, size_t size) {
    array_reserve(output->bytes, output->capacity, output->size + size);
    memcpy(output->bytes + output->size, bytes, size);
    output->size += size;
}

void serve_output_event(ServeOutput *output, const json_t *data) {
    SCOPED_FREE char *text = data ? dump(data) : memory_copy_string("[DONE]");
    append_bytes(output, "data: ", 6);
    append_bytes(output, text, strlen(text));
    append_bytes(output, "\n\n", 2);
}

static void choice_event(const ServeAnswer *answer, json_t *choice, ServeOutput *output) {
    json_auto_t *json = frame_json(answer, json_pack("[o]", choice));
    if (answer->request.usage) json_object_set_new(json, "usage", json_null());
    serve_output_event(output, json);
}

/* Sends what comes before the first token: the role, or the prompt. */
static void open_choice(const ServeAnswer *answer, size_t index, ServeOutput *output) {
    const ServePrompt *prompt = prompt_of(answer, index);
    bool chat = answer->request.kind == SERVE_CHAT;
    if (!chat && !prompt->size) return;
    json_t *choice = json_pack("{sI sn sn}", "index", (json_int_t)index, "logprobs", "finish_reason");
    if (chat) json_object_set_new(choice, "delta", json_pack("{ss ss}", "role", "assistant", "content", ""));
    else json_object_set_new(choice, "text", json_stringn(prompt->text, prompt->size));
    if (serve_request_scores_prompts(&answer->request)) json_object_set_new(choice, "logprobs", prompt_scores(answer, prompt));
    choice_event(answer, choice, output);
}

static void continue_choice(const ServeAnswer *answer, size_t index, ServeOutput *output) {
    ServeSample *sample = &answer->samples[index];
    json_t *choice = choice_json(answer, index, sample->sent_tokens, false);
    json_t *text = json_stringn(sample->text.shown ? sample->text.bytes + sample->sent_bytes : "", sample->text.shown - sample->sent_bytes);
    if (answer->request.kind == SERVE_COMPLETION) json_object_set_new(choice, "text", text);
    else json_object_set_new(choice, "delta", json_pack("{so}", "content", text));
    choice_event(answer, choice, output);
    sample->sent_bytes = sample->text.shown;
    sample->sent_tokens = sample->count;
    sample->closed = sample->ended;
}

void serve_answer_events(ServeAnswer *answer, ServeOutput *output) {
    for (size_t i = 0; i < answer->sample_count; i++) {
        ServeSample *sample = &answer->samples[i];
        bool news = sample->text.shown > sample->sent_bytes || (sample->ended && !sample->closed);
        if (news && !sample->opened) open_choice(answer, i, output);
        sample->opened |= news;
        if (news) continue_choice(answer, i, output);
    }
}

void serve_answer_finish(ServeAnswer *answer, ServeOutput *output) {
    if (answer->request.usage) {
        json_auto_t *json = frame_json(answer, json_array());
        json_object_set_new(json, "usage", usage_json(answer));
        serve_output_event(output, json);
    }
    serve_output_event(output, NULL);
}

void serve_fault_event(const ServeFault *fault, ServeOutput *output) {
    json_auto_t *json = fault_json(fault);
    serve_output_event(output, json);
}

/* Reads a body by one table of fields. Prompts are read last, because they are the costly part. */
#include "serve/request_internal.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/math.h"
#include "base/scope.h"
#include "base/strings.h"
#include "serve/serve_sample_internal.h"

bool serve_refuse(ServeFault *fault, int status, const char *code, const char *field, const char *format, ...) {
    va_list values;
    *fault = (ServeFault){.status = status, .code = code};
    snprintf(fault->field, sizeof fault->field, "%s", field ? field : "");
    va_start(values, format);
    vsnprintf(fault->message, sizeof fault->message, format, values);
    va_end(values);
    one_line(fault->message);
    return false;
}

/* -- Fields -------------------------------------------------------------------------------------------------------- */

typedef enum FieldType {
    FIELD_INT,
    FIELD_REAL,
    FIELD_BOOL,
    FIELD_READ,    /* by code below */
    FIELD_IGNORED, /* it does not change the answer */
    FIELD_ONLY,    /* has one supported value */
} FieldType;

typedef struct ServeField {
    const char *name;
    unsigned kinds; /* bits by ServeKind */
    FieldType type;
    size_t offset;
    double minimum, maximum;
    const char *only; /* as JSON */
} ServeField;

enum { IN_COMPLETION = 1 << SERVE_COMPLETION, IN_CHAT = 1 << SERVE_CHAT, IN_BOTH = IN_COMPLETION | IN_CHAT };
#define AT(member) offsetof(ServeRequest, member)

static const ServeField serve_fields[] = {
    {"model", IN_BOTH, FIELD_READ},
    {"prompt", IN_COMPLETION, FIELD_READ},
    {"messages", IN_CHAT, FIELD_READ},
    {"tools", IN_CHAT, FIELD_READ},
    {"chat_template_kwargs", IN_CHAT, FIELD_READ},
    {"stop", IN_BOTH, FIELD_READ},
    {"stream_options", IN_BOTH, FIELD_READ},
    {"max_tokens", IN_BOTH, FIELD_INT, AT(tokens), 1, INT32_MAX, NULL},
    {"max_completion_tokens", IN_CHAT, FIELD_INT, AT(tokens), 1, INT32_MAX, NULL},
    {"n", IN_BOTH, FIELD_INT, AT(samples), 1, 65536, NULL},
    {"temperature", IN_BOTH, FIELD_REAL, AT(sampling.temperature), 0, 100, NULL},
    {"top_p", IN_BOTH, FIELD_REAL, AT(sampling.top_p), 0, 1, NULL},
    {"min_p", IN_BOTH, FIELD_REAL, AT(sampling.min_p), 0, 1, NULL},
    {"top_k", IN_BOTH, FIELD_INT, AT(sampling.top_k), -1, 1e9, NULL},
    {"seed", IN_BOTH, FIELD_INT, AT(seed), 0, 0x1p62, NULL},
    {"stream", IN_BOTH, FIELD_BOOL, AT(stream), 0, 0, NULL},
    {"echo", IN_COMPLETION, FIELD_BOOL, AT(echo), 0, 0, NULL},
    {"return_token_ids", IN_BOTH, FIELD_BOOL, AT(ids), 0, 0, NULL},
    {"logprobs", IN_COMPLETION, FIELD_INT, AT(top), 0, ENGINE_MOST_TOP, NULL},
    {"logprobs", IN_CHAT, FIELD_BOOL, AT(scores), 0, 0, NULL},
    {"top_logprobs", IN_CHAT, FIELD_INT, AT(top), 0, ENGINE_MOST_TOP, NULL},
    {"best_of", IN_COMPLETION, FIELD_ONLY, .only = "1"},
    {"suffix", IN_COMPLETION, FIELD_ONLY, .only = "\"\""},
    {"frequency_penalty", IN_BOTH, FIELD_REAL, AT(penalties.frequency), -2, 2, NULL},
    {"presence_penalty", IN_BOTH, FIELD_REAL, AT(penalties.presence), -2, 2, NULL},
    {"repetition_penalty", IN_BOTH, FIELD_REAL, AT(penalties.repetition), 0.01, 100, NULL},
    {"logit_bias", IN_BOTH, FIELD_READ},
    {"response_format", IN_BOTH, FIELD_ONLY, .only = "{\"type\":\"text\"}"},
    {"tool_choice", IN_CHAT, FIELD_ONLY, .only = "\"auto\""},
    {"parallel_tool_calls", IN_CHAT, FIELD_ONLY, .only = "true"},
    {"user", IN_BOTH, FIELD_IGNORED},
    {"metadata", IN_BOTH, FIELD_IGNORED},
    {"store", IN_BOTH, FIELD_IGNORED},
    {"service_tier", IN_BOTH, FIELD_IGNORED},
    {"safety_identifier", IN_BOTH, FIELD_IGNORED},
    {"prompt_cache_key", IN_BOTH, FIELD_IGNORED},
};

/* Returns a member; NULL if it is absent or null. */
static const json_t *given(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static const ServeField *find_field(const char *name, ServeKind kind) {
    for (size_t i = 0; i < sizeof serve_fields / sizeof *serve_fields; i++)
        if (serve_fields[i].kinds >> kind & 1 && !strcmp(serve_fields[i].name, name)) return &serve_fields[i];
    return NULL;
}

static bool refuse_value(const char *name, const char *allowed, ServeFault *fault) {
    return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, name, "%s must be %s", name, allowed);
}

static bool take_number(ServeRequest *request, const ServeField *field, const json_t *value, ServeFault *fault) {
    bool whole = field->type == FIELD_INT;
    void *at = (char *)request + field->offset;
    double number = json_number_value(value);
    char allowed[64];
    snprintf(allowed, sizeof allowed, "%s from %.10g to %.10g", whole ? "an integer" : "a number", field->minimum, field->maximum);
    if (!(whole ? json_is_integer(value) : json_is_number(value)) || !(number >= field->minimum && number <= field->maximum))
        return refuse_value(field->name, allowed, fault);
    if (whole) *(int64_t *)at = json_integer_value(value);
    else *(double *)at = number;
    return true;
}

static bool is_only_value(const json_t *value, const char *text) {
    json_auto_t *only = json_loads(text, JSON_DECODE_ANY, NULL);
    return json_is_number(only) ? json_is_number(value) && json_number_value(value) == json_number_value(only) : json_equal(value, only);
}

static bool take_field(ServeRequest *request, const ServeField *field, const json_t *value, ServeFault *fault) {
    switch (field->type) {
    case FIELD_INT:
    case FIELD_REAL: return take_number(request, field, value, fault);
    case FIELD_BOOL:
        if (!json_is_boolean(value)) return refuse_value(field->name, "true or false", fault);
        *(bool *)((char *)request + field->offset) = json_is_true(value);
        return true;
    case FIELD_ONLY:
        return is_only_value(value, field->only) || serve_refuse(fault, MHD_HTTP_BAD_REQUEST, "unsupported_value", field->name,
                                                        "smelt supports only %s=%s: remove it", field->name, field->only);
    case FIELD_READ:
    case FIELD_IGNORED: break;
    }
    return true;
}

static bool take_fields(ServeRequest *request, const json_t *body, ServeFault *fault) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value) {
        const ServeField *field = find_field(name, request->kind);
        if (!field)
            return serve_refuse(
                fault, MHD_HTTP_BAD_REQUEST, "unknown_parameter", name, "smelt does not know the field %.60s: remove it", name);
        if (!json_is_null(value) && !take_field(request, field, value, fault)) return false;
    }
    return true;
}

const char *serve_model_name(const ServeModel *model, int adapter) { return adapter ? model->adapters[adapter - 1] : model->name; }

static bool take_model_name(ServeRequest *request, const json_t *value, const ServeModel *model, ServeFault *fault) {
    const char *name = json_string_value(value);
    if (!value) return true;
    for (request->adapter = 0; request->adapter <= model->adapter_count; request->adapter++)
        if (name && !strcmp(name, serve_model_name(model, request->adapter))) return true;
    return serve_refuse(fault, MHD_HTTP_NOT_FOUND, "model_not_found", "model", "this server has only the model %.80s%s", model->name,
        model->adapter_count ? " and its adapters, which GET /v1/models lists" : "");
}

static bool take_stop(ServeRequest *request, const json_t *value, ServeFault *fault) {
    return (json_is_string(value) && stop_texts_add(&request->stops, json_string_value(value), json_string_length(value))) ||
           refuse_value("stop", "a text or a list of at most 4 texts, none of them empty", fault);
}

static bool take_stops(ServeRequest *request, const json_t *value, ServeFault *fault) {
    if (!value) return true;
    if (!json_is_array(value)) return take_stop(request, value, fault);
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!take_stop(request, json_array_get(value, i), fault)) return false;
    return true;
}

static bool take_biases(ServeRequest *request, const json_t *value, ServeFault *fault) {
    const char *name;
    json_t *number;
    Error error;
    if (value && !json_is_object(value)) return refuse_value("logit_bias", "an object of token ids with numbers", fault);
    json_object_foreach((json_t *)value, name, number) {
        EngineBias bias;
        if (!engine_bias(name, number, &bias, &error))
            return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, "logit_bias", "%s", error.message);
        EngineBias *biases = (EngineBias *)request->penalties.biases;
        array_append(biases, request->penalties.bias_count, bias);
        request->penalties.biases = biases;
    }
    return true;
}

static bool take_stream_options(ServeRequest *request, const json_t *value, ServeFault *fault) {
    const json_t *usage = json_object_get(value, "include_usage");
    if (!value) return true;
    if (!request->stream || !json_is_boolean(usage) || json_object_size(value) != 1)
        return refuse_value("stream_options", "{\"include_usage\": true or false}, with stream=true", fault);
    request->usage = json_is_true(usage);
    return true;
}

static bool check_scores(ServeRequest *request, ServeFault *fault) {
    if (request->kind == SERVE_CHAT && !request->scores && request->top >= 0)
        return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, "top_logprobs", "top_logprobs needs logprobs=true");
    if (request->scores && request->top < 0) request->top = 0;
    return true;
}

bool serve_request_scores_prompts(const ServeRequest *request) { return request->echo && request->top >= 0; }

/* -- Prompts ------------------------------------------------------------------------------------------------------- */

static ServePrompt *add_prompt(ServeRequest *request) {
    array_append(request->prompts, request->prompt_count, (ServePrompt){0});
    return &request->prompts[request->prompt_count - 1];
}

static bool take_text(ServeRequest *request, const ServeModel *model, const json_t *value, ServeFault *fault) {
    Error error;
    const char *text = json_string_value(value);
    size_t size = json_string_length(value);
    ServePrompt *prompt = add_prompt(request);
    if (!model->tokenizer)
        for (size_t i = 0; i < size; i++) token_ids_append(&prompt->ids, (uint8_t)text[i]);
    else if (!tokenizer_encode(model->encoder, text, size, TOKENIZER_ADD_SPECIAL, &prompt->ids, &error))
        return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, "prompt", "%s", error.message);
    if (!prompt->ids.count) return refuse_value("prompt", "at least one character or token", fault);
    if (request->echo) prompt->text = memory_format("%.*s", (int)size, text), prompt->size = strlen(prompt->text);
    return true;
}

static bool take_ids(ServeRequest *request, const ServeModel *model, const json_t *list, ServeFault *fault) {
    ServePrompt *prompt = add_prompt(request);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > INT32_MAX)
            return refuse_value("prompt", "a text, a list of texts, a list of token ids, or a list of lists of token ids", fault);
        token_ids_append(&prompt->ids, (int32_t)json_integer_value(value));
    }
    if (!prompt->ids.count) return refuse_value("prompt", "at least one character or token", fault);
    if (request->echo) prompt->text = serve_decode(model, &prompt->ids, &prompt->size);
    return true;
}

static bool check_count(const ServeRequest *request, size_t prompts, const ServeModel *model, ServeFault *fault) {
    return (int64_t)prompts <= model->samples / request->samples ||
           serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, "n",
               "%zu prompts with n=%lld are more than %lld samples, the queue of this server", prompts, (long long)request->samples,
               (long long)model->samples);
}

static bool take_prompts(ServeRequest *request, const ServeModel *model, const json_t *value, ServeFault *fault) {
    const json_t *first = json_array_get(value, 0);
    if (json_is_string(value)) return check_count(request, 1, model, fault) && take_text(request, model, value, fault);
    if (!json_is_string(first) && !json_is_array(first))
        return check_count(request, 1, model, fault) && take_ids(request, model, value, fault);
    if (!check_count(request, json_array_size(value), model, fault)) return false;
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *item = json_array_get(value, i);
        if (!(json_is_string(first) && json_is_string(item) ? take_text : take_ids)(request, model, item, fault)) return false;
    }
    return true;
}

static bool take_messages(ServeRequest *request, const ServeModel *model, const json_t *body, ServeFault *fault) {
    static const char *const names[] = {"messages", "tools", "chat_template_kwargs"};
    Error error = {0};
    json_auto_t *conversation = json_object();
    SCOPED(chat_document_free) ChatDocument document = {0};
    if (!model->chat)
        return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, "messages", "the model has no chat template: use /v1/completions");
    if (!check_count(request, 1, model, fault)) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (given(body, names[i])) json_object_set(conversation, names[i], json_object_get(body, names[i]));
    if (!json_is_array(json_object_get(body, "messages"))) return refuse_value("messages", "a list of messages", fault);
    if (!chat_prompt(model->chat, conversation, &document, &error))
        return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, "messages", "%s", error.message);
    add_prompt(request)->ids = document.ids;
    document.ids = (TokenIds){0};
    return request->prompts[0].ids.count > 0 || refuse_value("messages", "rendered to at least one token", fault);
}

int64_t serve_request_tokens(const ServeRequest *request, const ServeModel *model, const ServePrompt *prompt) {
    return request->tokens ? request->tokens : model->positions - (int64_t)prompt->ids.count;
}

static bool check_lengths(const ServeRequest *request, const ServeModel *model, ServeFault *fault) {
    for (size_t i = 0; i < request->prompt_count; i++) {
        int64_t count = (int64_t)request->prompts[i].ids.count, tokens = int_max(request->tokens, 1);
        if (count + tokens > model->positions)
            return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, "context_length_exceeded", request->kind == SERVE_CHAT ? "messages" : "prompt",
                "%lld tokens of the prompt and %lld of the answer are more than %lld positions: shorten the prompt or max_tokens",
                (long long)count, (long long)tokens, (long long)model->positions);
    }
    return true;
}

bool serve_request_read(ServeRequest *r, ServeKind kind, const ServeModel *model, const char *body, size_t size, ServeFault *fault) {
    Error error;
    json_auto_t *object = json_parse(body, size, JSON_REJECT_DUPLICATES, &error);
    *r = (ServeRequest){.kind = kind,
        .samples = 1,
        .seed = -1,
        .top = -1,
        .tokens = kind == SERVE_CHAT ? 0 : 16,
        .sampling = {.temperature = 1, .top_p = 1}};
    if (!object) return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, NULL, "the body is not JSON: %s", error.message);
    if (!json_is_object(object)) return serve_refuse(fault, MHD_HTTP_BAD_REQUEST, NULL, NULL, "the body is not an object");
    if (!take_fields(r, object, fault) || !take_model_name(r, given(object, "model"), model, fault) ||
        !take_stops(r, given(object, "stop"), fault) || !take_biases(r, given(object, "logit_bias"), fault) ||
        !take_stream_options(r, given(object, "stream_options"), fault) || !check_scores(r, fault))
        return false;
    r->sampling.top_k = int_max(r->sampling.top_k, 0);
    return (kind == SERVE_CHAT ? take_messages(r, model, object, fault)
                               : take_prompts(r, model, json_object_get(object, "prompt"), fault)) &&
           check_lengths(r, model, fault);
}

static void free_prompt(ServePrompt *prompt) {
    token_ids_free(&prompt->ids);
    free(prompt->text);
    serve_scores_free(&prompt->scores);
}

void serve_request_free(ServeRequest *request) {
    for (size_t i = 0; i < request->prompt_count; i++) free_prompt(&request->prompts[i]);
    stop_texts_free(&request->stops);
    free((EngineBias *)request->penalties.biases);
    free(request->prompts);
}

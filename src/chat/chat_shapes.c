/* Gives records of other programs the one shape that the rest of this folder reads: ShareGPT's
 * conversations (also as LLaMA-Factory extends them), answers that are one message, Alpaca's pairs,
 * and tools as JSON text. A record in that shape already is returned as it is. */
#include <string.h>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "chat/chat_internal.h"

/* Returns the value of JSON text, for the caller to release; NULL: it is none. */
static json_t *parse_text(const json_t *text) {
    Error ignored;
    return json_is_string(text) ? json_parse(json_string_value(text), json_string_length(text), 0, &ignored) : NULL;
}

/* -- Messages -------------------------------------------------------------------------------------------------------- */

/* Returns the role that a ShareGPT name stands for; NULL: the name is unknown. A template may ignore an
 * unknown role, and its answers would not be trained. */
static const char *share_role(const char *name) {
    static const char *const roles[][2] = {{"human", "user"}, {"gpt", "assistant"}, {"chatgpt", "assistant"}, {"observation", "tool"},
        {"user", "user"}, {"assistant", "assistant"}, {"system", "system"}, {"developer", "developer"}, {"tool", "tool"}};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(name, roles[i][0])) return roles[i][1];
    return NULL;
}

/* Makes an answer that calls tools of {"from": "function_call", "value": JSON text of one call or of
 * several}. NULL: not a call. */
static json_t *call_message(const json_t *value) {
    json_auto_t *parsed = parse_text(value);
    json_auto_t *calls = json_is_array(parsed) ? json_incref(parsed) : json_pack("[O]", parsed);
    json_t *made = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        if (json_is_string(json_object_get(call, "name")))
            json_array_append_new(made, json_pack("{ss sO}", "type", "function", "function", call));
    }
    if (json_array_size(made) > 0 && json_array_size(made) == json_array_size(calls))
        return json_pack("{ss ss so}", "role", "assistant", "content", "", "tool_calls", made);
    json_decref(made);
    return NULL;
}

static bool is_share_message(const json_t *item) { return json_is_string(json_object_get(item, "from")) && !json_object_get(item, "role"); }

/* Returns an item of a list with role and content; the caller releases it. An item with an unknown
 * name or without a valid call stays as it is, and check_message refuses it. */
static json_t *shape_message(json_t *item) {
    if (!is_share_message(item)) return json_incref(item);
    const char *from = json_string_value(json_object_get(item, "from")), *role = share_role(from);
    json_t *value = json_object_get(item, "value"), *call = strcmp(from, "function_call") ? NULL : call_message(value);
    if (call) return call;
    if (!role) return json_incref(item);
    json_t *message = json_copy(item);
    json_object_del(message, "from");
    json_object_del(message, "value");
    json_object_set_new(message, "role", json_string(role));
    if (value) json_object_set(message, "content", value);
    return message;
}

/* Converts the member `name` to messages, if it is a list with a message in ShareGPT's form, or
 * an answer that is a single message. */
static void shape_list(json_t *record, const char *name) {
    json_t *list = json_object_get(record, name), *made;
    bool single = json_is_object(list), share = single;
    for (size_t i = 0; i < json_array_size(list); i++) share = share || is_share_message(json_array_get(list, i));
    if (!share) return;
    made = json_array();
    if (single) json_array_append_new(made, shape_message(list));
    for (size_t i = 0; i < json_array_size(list); i++) json_array_append_new(made, shape_message(json_array_get(list, i)));
    json_object_set_new(record, name, made);
}

/* -- Records --------------------------------------------------------------------------------------------------------- */

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

json_t *chat_question(const json_t *record) {
    const json_t *instruction = json_object_get(record, "instruction"), *input = json_object_get(record, "input");
    size_t asked = json_string_length(instruction), given = json_string_length(input), gap = given ? 2 : 0;
    SCOPED_FREE char *text = memory_allocate(asked + gap + given + 1);
    if (asked) memcpy(text, json_string_value(instruction), asked);
    memcpy(text + asked, "\n\n", gap);
    if (given) memcpy(text + asked + gap, json_string_value(input), given);
    return json_pack("{ss so}", "role", "user", "content", json_stringn(text, asked + gap + given));
}

/* Replaces two answers that are texts by lists of one message. */
static void shape_answers(json_t *record) {
    static const char *const names[] = {"chosen", "rejected"};
    for (int i = 0; i < 2; i++) {
        json_t *text = json_object_get(record, names[i]);
        if (json_is_string(text)) json_object_set_new(record, names[i], json_pack("[{ss sO}]", "role", "assistant", "content", text));
    }
}

/* Moves a system message beside a list of messages to its start. */
static void move_system(json_t *record, const char *name) {
    json_t *list = json_object_get(record, name);
    json_t *system = json_object_get(record, "system");
    if (!json_string_length(system) || !strcmp(role_of(json_array_get(list, 0)), "system")) return;
    json_t *whole = json_pack("[{ss sO}]", "role", "system", "content", system);
    json_array_extend(whole, list);
    json_object_set_new(record, name, whole);
    json_object_del(record, "system");
}

/* Replaces Alpaca's instruction and input beside two answers by a prompt. */
static void shape_alpaca_pair(json_t *record) {
    json_object_set_new(record, "prompt", json_pack("[o]", chat_question(record)));
    json_object_del(record, "instruction");
    json_object_del(record, "input");
    shape_answers(record);
    move_system(record, "prompt");
}

/* Replaces `conversations` by `messages`, or beside two answers by `prompt`. */
static void shape_conversations(json_t *record, bool pair) {
    const char *name = pair ? "prompt" : "messages";
    json_object_set(record, name, json_object_get(record, "conversations"));
    json_object_del(record, "conversations");
    shape_list(record, name);
    if (pair) shape_answers(record);
    move_system(record, name);
}

json_t *chat_shape(const json_t *record) {
    static const char *const lists[] = {"messages", "prompt", "completion", "chosen", "rejected"};
    json_t *shaped = json_copy((json_t *)record);
    bool pair = chat_member(record, "chosen") && chat_member(record, "rejected"), prompted = chat_member(record, "prompt");
    const json_t *share = chat_member(record, "conversations");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) shape_list(shaped, lists[i]);
    if (json_is_array(share) && !chat_member(record, "messages") && !prompted) shape_conversations(shaped, pair);
    else if (pair && !prompted && json_string_length(json_object_get(record, "instruction"))) shape_alpaca_pair(shaped);
    json_t *tools = json_object_get(shaped, "tools"), *parsed = parse_text(tools);
    if (parsed) json_object_set_new(shaped, "tools", parsed);
    else if (json_is_string(tools) && !json_string_length(tools)) json_object_del(shaped, "tools");
    return shaped;
}

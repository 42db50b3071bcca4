/* Converts a record to tokens and their mask. The whole text is rendered and encoded once; spans of
 * its bytes decide which tokens are trained. If the template marks answers, the marks are the
 * spans. Otherwise an answer is the text that message i adds: the text of messages[:i + 1] after
 * the text of messages[:i] with the answer header. Both must be prefixes of the whole text, or the
 * model would be trained on a text that it never sees when it answers; a template that breaks this
 * rule is refused.
 *
 * A ChatEncoder belongs to one thread and owns the texts that it renders. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "chat/chat_internal.h"
#include "chat/encode_internal.h"

struct ChatEncoder {
    const Chat *chat;
    TokenizerEncoder *encoder; /* NULL: bytes */
    ChatText before, behind;   /* the text up to an answer, and including it */
    TokenIds scratch;
    ChatSpan *spans;
    size_t span_count, span_capacity;
    size_t rendered; /* bytes rendered for the answers of the conversation */
    char *decoded;
    size_t decoded_size, decoded_capacity;
    bool takes_objects; /* the template expects the arguments of tool calls as objects */
};

void chat_encoder_free(ChatEncoder *encoder) {
    if (!encoder) return;
    tokenizer_encoder_free(encoder->encoder);
    chat_text_free(&encoder->before);
    chat_text_free(&encoder->behind);
    token_ids_free(&encoder->scratch);
    free(encoder->spans);
    free(encoder->decoded);
    free(encoder);
}

void chat_document_free(ChatDocument *document) {
    chat_text_free(&document->text);
    token_ids_free(&document->ids);
    free(document->trained);
    *document = (ChatDocument){0};
}

/* -- Rendering --------------------------------------------------------------------------------------------------------- */

static const ChatTemplate *template_for(const Chat *chat, const json_t *tools) {
    return chat->tools && json_array_size(tools) > 0 ? chat->tools : chat->plain;
}

static bool refuse_without_template(Error *error) {
    return error_set(error, ERROR_USAGE,
        "the model has no chat template: set template=FILE, or template=chatml for the built-in one, in smelt data pack or smelt chat; "
        "data.template=chatml in training");
}

/* Renders the first `count` messages of a record; with `answer`, adds the answer header. */
static bool render(const Chat *chat, const ChatRecord *record, size_t count, bool answer, ChatText *text, Error *error) {
    const ChatTemplate *template = template_for(chat, record->tools);
    json_auto_t *messages = json_array();
    for (size_t i = 0; i < count; i++) json_array_append(messages, json_array_get(record->messages, i));
    json_auto_t *variables = json_copy(chat->tokens);
    json_object_set(variables, "messages", messages);
    json_object_set_new(variables, "tools", record->tools ? json_incref((json_t *)record->tools) : json_null());
    json_object_set_new(variables, "documents", json_is_array(record->documents) ? json_incref((json_t *)record->documents) : json_null());
    json_object_set_new(variables, "add_generation_prompt", json_boolean(answer));
    if (json_is_object(record->settings)) json_object_update(variables, (json_t *)record->settings);
    return template ? chat_template_render(template, variables, chat->now, text, error) : refuse_without_template(error);
}

/* Returns whether the template expects the arguments of tool calls as objects, as most templates
 * do. A template such as DeepSeek's concatenates them with texts: it fails with an object, or
 * writes the object as Python does. */
static bool takes_objects(ChatEncoder *encoder) {
    ChatText *text = &encoder->behind;
    Error ignored = {0};
    json_auto_t *messages = json_pack("[{ss ss} {ss ss s[{ss ss s{ss s{ss}}}]}]", "role", "user", "content", "a", "role", "assistant",
        "content", "", "tool_calls", "id", "abcdefghi", "type", "function", "function", "name", "f", "arguments", "key", "value");
    json_t *function = json_object_get(json_array_get(json_object_get(json_array_get(messages, 1), "tool_calls"), 0), "function");
    ChatRecord record = {.messages = messages};
    bool objects = render(encoder->chat, &record, 2, false, text, &ignored), python = objects && strstr(text->bytes, "{'key': 'value'}");
    json_object_set_new(function, "arguments", json_string("{\"key\": \"value\"}"));
    return (objects && !python) || !render(encoder->chat, &record, 2, false, text, &ignored);
}

ChatEncoder *chat_encoder_open(const Chat *chat) {
    ChatEncoder *encoder = memory_allocate(sizeof *encoder);
    encoder->chat = chat;
    encoder->encoder = chat->tokenizer ? tokenizer_encoder_open(chat->tokenizer) : NULL;
    encoder->takes_objects = takes_objects(encoder);
    return encoder;
}

/* -- Trained bytes ----------------------------------------------------------------------------------------------------- */

static void add_span(ChatEncoder *encoder, size_t start, size_t end) {
    array_reserve(encoder->spans, encoder->span_capacity, encoder->span_count + 1);
    encoder->spans[encoder->span_count++] = (ChatSpan){start, end};
}

static bool begins_with(const ChatText *text, const ChatText *start) {
    return text->size >= start->size && !memcmp(text->bytes, start->bytes, start->size);
}

static bool is_answer(const ChatRecord *record, size_t at) {
    return !strcmp(json_string_value(json_object_get(json_array_get(record->messages, at), "role")), "assistant");
}

/* With turns=last no other setting helps, so the error is about the conversation. */
static bool refuse_prefix(const ChatEncoder *encoder, size_t at, Error *error) {
    if (encoder->chat->turns == CHAT_TURNS_LAST)
        return error_set(error, ERROR_DATA, "the template changes the text before the last answer once the answer is given");
    return error_set(error, ERROR_USAGE,
        "the template changes the text up to answer %zu when more messages follow (it may drop earlier thoughts), so it cannot train "
        "several answers of a conversation together: set turns=last, or use a template with {%% generation %%} around answers",
        at);
}

/* Returns the text that the template writes before an answer, such as "<|im_start|>assistant\n".
 * The caller frees. "": the template writes none. */
static char *answer_header(ChatEncoder *encoder, const ChatRecord *record) {
    ChatText *text = &encoder->before;
    Error ignored = {0};
    ChatRecord question = *record;
    json_auto_t *messages = json_pack("[{ss ss}]", "role", "user", "content", "a");
    question.messages = messages;
    if (!render(encoder->chat, &question, 1, false, text, &ignored)) return memory_copy_string("");
    SCOPED_FREE char *before = memory_copy_string(text->bytes);
    bool good = render(encoder->chat, &question, 1, true, text, &ignored) && starts_with(text->bytes, before);
    return memory_copy_string(good ? text->bytes + strlen(before) : "");
}

/* Sets encoder->before to the text before an answer that opens the conversation; `behind` ends with
 * that answer. Some templates read the first message and fail without one. For such a template the
 * answer begins after the first answer header, or with its own content. */
static bool find_opening(ChatEncoder *encoder, const ChatRecord *record, const ChatText *behind, Error *error) {
    ChatText *before = &encoder->before;
    Error ignored = {0};
    if (render(encoder->chat, record, 0, true, before, &ignored) && begins_with(behind, before)) return true;
    SCOPED_FREE char *header = answer_header(encoder, record);
    const json_t *content = json_object_get(json_array_get(record->messages, 0), "content");
    const char *mark = *header || !json_string_length(content) ? header : json_string_value(content);
    const char *found = *mark ? strstr(behind->bytes, mark) : NULL;
    if (!found) return error_set(error, ERROR_DATA, "the first message is an answer, and the template does not mark where it begins");
    before->size = (size_t)(found - behind->bytes) + strlen(header);
    array_reserve(before->bytes, before->capacity, before->size + 1);
    memcpy(before->bytes, behind->bytes, before->size);
    before->bytes[before->size] = '\0';
    return true;
}

static bool add_answer(ChatEncoder *encoder, const ChatRecord *record, size_t at, const ChatText *whole, Error *error) {
    bool last = at + 1 == json_array_size(record->messages);
    const ChatText *behind = last ? whole : &encoder->behind;
    if (!last && !render(encoder->chat, record, at + 1, false, &encoder->behind, error)) return false;
    if (at == 0 && !find_opening(encoder, record, behind, error)) return false;
    if (at > 0 && !render(encoder->chat, record, at, true, &encoder->before, error)) return false;
    if (!begins_with(behind, &encoder->before) || !begins_with(whole, behind)) return refuse_prefix(encoder, at, error);
    encoder->rendered += encoder->before.size + behind->size;
    if (encoder->rendered > CHAT_RENDERED_BYTES)
        return error_set(error, ERROR_DATA,
            "the conversation has too many answers for its length: rendering would produce more than %zu GiB of text",
            CHAT_RENDERED_BYTES >> 30);
    add_span(encoder, encoder->before.size, behind->size);
    return true;
}

/* Returns the first message that is trained on if it is an answer. */
static size_t first_trained(const ChatEncoder *encoder, const ChatRecord *record) {
    size_t count = json_array_size(record->messages);
    return encoder->chat->turns == CHAT_TURNS_LAST && count > record->first ? count - 1 : record->first;
}

static bool find_answers(ChatEncoder *encoder, const ChatRecord *record, const ChatText *whole, Error *error) {
    for (size_t i = first_trained(encoder, record); i < json_array_size(record->messages); i++)
        if (is_answer(record, i) && !add_answer(encoder, record, i, whole, error)) return false;
    return true;
}

/* Adds the spans that the template marks; with turns=last only the last one. Spans inside a prompt
 * are not trained on. */
static bool take_marks(ChatEncoder *encoder, const ChatRecord *record, const ChatText *whole, Error *error) {
    size_t from = encoder->chat->turns == CHAT_TURNS_LAST && whole->marked_count ? whole->marked_count - 1 : 0, start = 0;
    if (record->first > 0) {
        if (!render(encoder->chat, record, record->first, false, &encoder->before, error)) return false;
        if (!begins_with(whole, &encoder->before)) return refuse_prefix(encoder, record->first, error);
        start = encoder->before.size;
    }
    for (size_t i = from; i < whole->marked_count; i++)
        if (whole->marked[i].start >= start) add_span(encoder, whole->marked[i].start, whole->marked[i].end);
    return true;
}

/* -- Tokens ------------------------------------------------------------------------------------------------------------ */

static bool encode_span(ChatEncoder *encoder, const char *text, size_t size, unsigned flags, TokenIds *ids, Error *error) {
    ids->count = 0;
    if (encoder->encoder) return tokenizer_encode(encoder->encoder, text, size, flags, ids, error);
    for (size_t i = 0; i < size; i++) token_ids_append(ids, (unsigned char)text[i]);
    return true;
}

/* Decodes tokens to text, in encoder->decoded. */
static void decode_ids(ChatEncoder *encoder, const TokenIds *ids) {
    TokenizerDecoder decoder = {0};
    if (encoder->encoder) decoder = tokenizer_decoder(encoder->chat->tokenizer, false);
    encoder->decoded_size = 0;
    for (size_t i = 0; i < ids->count; i++) {
        char byte = (char)ids->items[i];
        size_t length = 1;
        const char *piece = encoder->encoder ? tokenizer_decode(&decoder, ids->items[i], &length) : &byte;
        array_reserve(encoder->decoded, encoder->decoded_capacity, encoder->decoded_size + length + 1);
        if (length) memcpy(encoder->decoded + encoder->decoded_size, piece, length);
        encoder->decoded_size += length;
    }
}

/* Moves a place in the text to its place in the decoded tokens, for a tokenizer that changes texts,
 * for example by a normal form. */
static bool move_place(ChatEncoder *encoder, const ChatText *text, size_t *place, Error *error) {
    ChatText start = *text;
    SCOPED_FREE char *whole = memory_allocate(encoder->decoded_size + 1);
    size_t size = encoder->decoded_size;
    if (size) memcpy(whole, encoder->decoded, size);
    start.size = *place;
    if (!encode_span(encoder, start.bytes, start.size, 0, &encoder->scratch, error)) return false;
    decode_ids(encoder, &encoder->scratch);
    *place = encoder->decoded_size;
    bool fits = *place <= size && (!*place || !memcmp(whole, encoder->decoded, *place));
    array_reserve(encoder->decoded, encoder->decoded_capacity, size + 1);
    if (size) memcpy(encoder->decoded, whole, size);
    encoder->decoded_size = size;
    return fits || error_set(error, ERROR_DATA, "the tokenizer changes the text at the boundary of an answer");
}

/* Converts the spans to bytes of the decoded tokens. */
static bool place_spans(ChatEncoder *encoder, const ChatText *text, const TokenIds *ids, Error *error) {
    decode_ids(encoder, ids);
    if (encoder->decoded_size == text->size && (!text->size || !memcmp(encoder->decoded, text->bytes, text->size))) return true;
    for (size_t i = 0; i < encoder->span_count; i++)
        if (!move_place(encoder, text, &encoder->spans[i].start, error) || !move_place(encoder, text, &encoder->spans[i].end, error))
            return false;
    return true;
}

/* Marks a token as trained if one of its bytes is in a span. Spans are in order. */
static void mark_tokens(ChatEncoder *encoder, ChatDocument *document) {
    TokenizerDecoder decoder = {0};
    size_t at = 0, span = 0;
    if (encoder->encoder) decoder = tokenizer_decoder(encoder->chat->tokenizer, false);
    array_reserve(document->trained, document->trained_capacity, document->ids.count + 1);
    document->trained_count = 0;
    for (size_t i = 0; i < document->ids.count; i++) {
        size_t length = 1;
        if (encoder->encoder) tokenizer_decode(&decoder, document->ids.items[i], &length);
        while (span < encoder->span_count && encoder->spans[span].end <= at) span++;
        bool trained = length > 0 && span < encoder->span_count && encoder->spans[span].start < at + length;
        document->trained[i] = trained;
        document->trained_count += trained;
        at += length;
    }
}

/* Sets *spells if a text of the conversation contains special tokens. */
static bool spells_special(ChatEncoder *encoder, const json_t *value, bool *spells, Error *error) {
    const char *name;
    json_t *member;
    if (json_is_string(value) && encoder->encoder) {
        TokenIds *ids = &encoder->scratch;
        const char *text = json_string_value(value);
        size_t size = json_string_length(value);
        if (!encode_span(encoder, text, size, TOKENIZER_PLAIN_SPECIAL, ids, error)) return false;
        SCOPED(token_ids_free) TokenIds matched = {0};
        if (!encode_span(encoder, text, size, 0, &matched, error)) return false;
        *spells = *spells || matched.count != ids->count ||
                  (ids->count && memcmp(matched.items, ids->items, ids->count * sizeof *ids->items) != 0);
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!spells_special(encoder, json_array_get(value, i), spells, error)) return false;
    json_object_foreach((json_t *)value, name, member) if (!spells_special(encoder, member, spells, error)) return false;
    return true;
}

static bool check_special(ChatEncoder *encoder, const json_t *value, Error *error) {
    bool spells = false;
    if (encoder->chat->special) return true;
    if (!spells_special(encoder, value, &spells, error)) return false;
    return !spells || error_set(error, ERROR_DATA, "a message contains a special token; special=true allows this");
}

/* -- Lost parts --------------------------------------------------------------------------------------------------------- */

const char *chat_part_name(ChatPart part) {
    static const char *const names[] = {"tool_calls", "tools", "thoughts (reasoning_content)", "history", "documents", "functions",
        "function_call", "name", "conversations", "prompt"};
    return names[part];
}

/* Returns the members of a message that hold the part, NULL-terminated. */
static const char *const *members_of(ChatPart part) {
    static const char *const members[CHAT_PARTS][4] = {[CHAT_TOOL_CALLS] = {"tool_calls"},
        [CHAT_THOUGHTS] = {"reasoning_content", "thinking", "reasoning"},
        [CHAT_FUNCTION_CALL] = {"function_call"},
        [CHAT_NAMES] = {"name"}};
    return members[part];
}

static bool is_filled(const json_t *value) {
    return json_array_size(value) > 0 || json_object_size(value) > 0 || json_string_length(value) > 0;
}

/* Returns the messages without the part, for the caller to release; NULL: no message has it. */
static json_t *messages_without(const json_t *messages, ChatPart part) {
    json_t *others = json_array();
    bool any = false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_copy(json_array_get(messages, i));
        for (const char *const *name = members_of(part); *name; name++) {
            any = any || is_filled(json_object_get(message, *name));
            json_object_del(message, *name);
        }
        json_array_append_new(others, message);
    }
    if (any) return others;
    json_decref(others);
    return NULL;
}

/* Returns whether the text is the same without the part. A template that refuses the remaining
 * messages has read the part. */
static bool is_same_without(ChatEncoder *encoder, const ChatRecord *without, const ChatText *text) {
    Error refused = {0};
    const ChatText *other = &encoder->before;
    return render(encoder->chat, without, json_array_size(without->messages), false, &encoder->before, &refused) &&
           other->size == text->size && !memcmp(other->bytes, text->bytes, text->size);
}

/* Finds lost parts: parts of a record that smelt does not read, or that no template writes. */
static void find_lost_beside(const ChatRecord *record, ChatDocument *document) {
    memcpy(document->lost, record->unread, sizeof document->lost);
    document->lost[CHAT_TOOLS] = is_filled(record->tools);
    document->lost[CHAT_DOCUMENTS] = is_filled(record->documents);
}

static void find_lost(ChatEncoder *encoder, const ChatRecord *record, ChatDocument *document) {
    const ChatPart parts[] = {CHAT_TOOL_CALLS, CHAT_THOUGHTS, CHAT_FUNCTION_CALL, CHAT_NAMES};
    find_lost_beside(record, document);
    ChatRecord without = *record;
    without.tools = NULL;
    if (document->lost[CHAT_TOOLS]) document->lost[CHAT_TOOLS] = is_same_without(encoder, &without, &document->text);
    without = *record;
    without.documents = NULL;
    if (document->lost[CHAT_DOCUMENTS]) document->lost[CHAT_DOCUMENTS] = is_same_without(encoder, &without, &document->text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        json_auto_t *messages = messages_without(record->messages, parts[i]);
        without = *record;
        without.messages = messages;
        if (messages) document->lost[parts[i]] = is_same_without(encoder, &without, &document->text);
    }
}

/* -- Records ----------------------------------------------------------------------------------------------------------- */

static bool encode_messages(ChatEncoder *encoder, const ChatRecord *record, ChatDocument *document, Error *error) {
    const Chat *chat = encoder->chat;
    ChatText *text = &document->text;
    if (!template_for(chat, record->tools)) return refuse_without_template(error); /* also if every message would be left out */
    if (!check_special(encoder, record->messages, error) || !check_special(encoder, record->tools, error) ||
        !check_special(encoder, record->documents, error) || !check_special(encoder, record->settings, error) ||
        !render(chat, record, json_array_size(record->messages), false, text, error))
        return false;
    find_lost(encoder, record, document);
    bool marks = chat_template_marks(template_for(chat, record->tools));
    if (!(marks ? take_marks : find_answers)(encoder, record, text, error)) return false;
    return encode_span(encoder, text->bytes, text->size, 0, &document->ids, error) && place_spans(encoder, text, &document->ids, error);
}

/* Encodes two texts in sequence; frame_texts adds the end token. */
static bool encode_texts(ChatEncoder *encoder, const ChatRecord *record, ChatDocument *document, Error *error) {
    ChatText *text = &document->text;
    find_lost_beside(record, document);
    size_t prompt = json_string_length(record->prompt), completion = json_string_length(record->completion);
    array_reserve(text->bytes, text->capacity, prompt + completion + 1);
    memcpy(text->bytes, json_string_value(record->prompt), prompt);
    memcpy(text->bytes + prompt, json_string_value(record->completion), completion);
    text->size = prompt + completion;
    text->bytes[text->size] = '\0';
    json_auto_t *whole = json_stringn(text->bytes, text->size); /* both texts together may spell a special token */
    if (!check_special(encoder, whole, error)) return false;
    add_span(encoder, prompt, text->size);
    return encode_span(encoder, text->bytes, text->size, 0, &document->ids, error) && place_spans(encoder, text, &document->ids, error);
}

/* Puts the tokens that the tokenizer adds at the start of any text before the document, and the end
 * token after it. */
static bool frame_texts(ChatEncoder *encoder, ChatDocument *document, Error *error) {
    TokenIds *ids = &document->ids, *framed = &encoder->scratch;
    const ChatText *text = &document->text;
    if (!encode_span(encoder, text->bytes, text->size, TOKENIZER_ADD_SPECIAL, framed, error)) return false;
    size_t before = 0, count = ids->count;
    while (before + count < framed->count && (!count || memcmp(framed->items + before, ids->items, count * sizeof *ids->items) != 0))
        before++;
    for (size_t i = 0; i <= before; i++) token_ids_append(ids, encoder->chat->end_token);
    memmove(ids->items + before, ids->items, count * sizeof *ids->items);
    memcpy(ids->items, framed->items, before * sizeof *ids->items);
    array_reserve(document->trained, document->trained_capacity, ids->count);
    memmove(document->trained + before, document->trained, count);
    memset(document->trained, 0, before);
    document->trained[ids->count - 1] = 1;
    document->trained_count++;
    return true;
}

/* With turns=last, drops the messages after the last answer: the model sees none of them when it
 * answers. */
static void end_with_answer(const ChatEncoder *encoder, ChatRecord *record) {
    size_t count = json_array_size(record->messages);
    while (count > record->first && !is_answer(record, count - 1)) count--;
    if (encoder->chat->turns != CHAT_TURNS_LAST || count == record->first || count == json_array_size(record->messages)) return;
    json_t *shorter = json_copy(record->messages);
    while (json_array_size(shorter) > count) json_array_remove(shorter, json_array_size(shorter) - 1);
    json_decref(record->messages);
    record->messages = shorter;
}

static bool says_nothing(const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    return json_is_string(content) && !json_string_length(content) && !json_array_size(json_object_get(message, "tool_calls")) &&
           !json_string_length(json_object_get(message, "reasoning_content"));
}

/* Counts empty answers that are trained on. */
static size_t count_empty(const ChatEncoder *encoder, const ChatRecord *record) {
    size_t empty = 0;
    if (!record->messages) return json_string_length(record->completion) == 0;
    for (size_t i = first_trained(encoder, record); i < json_array_size(record->messages); i++)
        empty += is_answer(record, i) && says_nothing(json_array_get(record->messages, i));
    return empty;
}

bool chat_encode(ChatEncoder *encoder, const json_t *json, ChatDocument *document, Error *error) {
    SCOPED(chat_record_free) ChatRecord record = {0};
    encoder->span_count = encoder->rendered = 0;
    if (!chat_record_read(&record, json, encoder->takes_objects, error)) return false;
    end_with_answer(encoder, &record);
    document->counts = (ChatCounts){count_empty(encoder, &record), record.decoded_arguments, record.text_arguments};
    if (!(record.messages ? encode_messages : encode_texts)(encoder, &record, document, error)) return false;
    mark_tokens(encoder, document);
    if (!record.messages && !frame_texts(encoder, document, error)) return false;
    return document->trained_count > 0 || error_set(error, ERROR_DATA, "the record trains no token: it has no answer");
}

bool chat_prompt(ChatEncoder *encoder, const json_t *conversation, ChatDocument *document, Error *error) {
    SCOPED(chat_record_free) ChatRecord record = {0};
    ChatText *text = &document->text;
    if (!chat_record_read(&record, conversation, encoder->takes_objects, error)) return false;
    return check_special(encoder, record.messages, error) && check_special(encoder, record.tools, error) &&
           check_special(encoder, record.settings, error) &&
           render(encoder->chat, &record, json_array_size(record.messages), true, text, error) &&
           encode_span(encoder, text->bytes, text->size, 0, &document->ids, error);
}

/* The content of an answer whose place in a rendered text is looked for. */
static const char answer_mark[] = "smelt-answers-so", spaces[] = " \t\r\n";

/* Returns what a text has after the mark; NULL: the mark is not in it, or more than once. */
static const char *after_mark(const ChatText *text) {
    const char *found = text->size ? strstr(text->bytes, answer_mark) : NULL;
    if (!found || strstr(found + 1, answer_mark)) return NULL;
    return found + strlen(answer_mark);
}

/* The answer is the mark. Templates that write an answer differently if messages follow it, for example
 * without its thoughts, write the same after it. */
bool chat_continue(ChatEncoder *encoder, const json_t *conversation, const json_t *messages, int32_t last, TokenIds *ids, Error *error) {
    SCOPED(chat_document_free) ChatDocument document = {0};
    json_auto_t *longer = json_copy((json_t *)conversation), *all = json_copy(json_object_get(conversation, "messages"));
    json_array_append_new(all, json_pack("{ss ss}", "role", "assistant", "content", answer_mark));
    json_array_extend(all, (json_t *)messages);
    json_object_set(longer, "messages", all);
    if (!chat_prompt(encoder, longer, &document, error)) return false;
    const char *rest = after_mark(&document.text);
    if (!rest) return error_set(error, ERROR_DATA, "the template does not write an answer that messages follow: use another data.template");
    size_t size = document.text.size - (size_t)(rest - document.text.bytes), space = strspn(rest, spaces);
    if (!encode_span(encoder, rest + space, size - space, 0, ids, error)) return false;
    if (!ids->count || ids->items[0] != last) return encode_span(encoder, rest, size, 0, ids, error);
    memmove(ids->items, ids->items + 1, --ids->count * sizeof *ids->items);
    return true;
}

/* Returns whether a token is special: decoding can skip it. */
static bool is_special(const Tokenizer *tokenizer, int32_t id) {
    TokenizerDecoder all = tokenizer_decoder(tokenizer, false), texts = tokenizer_decoder(tokenizer, true);
    size_t length, text_length;
    tokenizer_decode(&all, id, &length);
    tokenizer_decode(&texts, id, &text_length);
    return length > 0 && text_length == 0;
}

int32_t chat_answer_end(ChatEncoder *encoder) {
    const Chat *chat = encoder->chat;
    ChatText *text = &encoder->behind;
    TokenIds *ids = &encoder->scratch;
    Error ignored;
    json_auto_t *messages =
        json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "a", "role", "assistant", "content", answer_mark);
    ChatRecord record = {.messages = messages};
    if (!encoder->encoder || !chat->plain || !render(chat, &record, 2, false, text, &ignored)) return -1;
    const char *end = after_mark(text);
    if (!end) return -1;
    end += strspn(end, spaces);
    if (!encode_span(encoder, end, text->size - (size_t)(end - text->bytes), 0, ids, &ignored) || !ids->count) return -1;
    return is_special(chat->tokenizer, ids->items[0]) ? ids->items[0] : -1;
}

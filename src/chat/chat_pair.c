/* Preferences: converts a record of a prompt and two answers, one chosen over the other, to two
 * records of a prompt and its completion for chat_encode. Data sets store the prompt in one of
 * these forms:
 *
 * Three texts, or three lists of messages; both answers may begin with the prompt.
 *
 * No prompt: it is the common prefix of chosen and rejected, two texts or two lists, as in TRL.
 *
 * A text beside two lists, which begin with it as a question, or with the answer only.
 *
 * Called when records are encoded; the caller owns the result. */
#include <string.h>

#include "base/error.h"
#include "chat/chat_internal.h"

/* common_messages and common_bytes return the length of the common prefix of two lists or two
 * texts. A text is cut before a space, which tokenizers attach to the next word, and not inside a
 * character. */
static size_t common_messages(const json_t *a, const json_t *b) {
    size_t count = 0;
    while (count < json_array_size(a) && json_equal(json_array_get(a, count), json_array_get(b, count))) count++;
    return count;
}

static size_t common_bytes(const json_t *a, const json_t *b) {
    const char *first = json_string_value(a), *second = json_string_value(b);
    size_t count = 0, size = json_string_length(a) < json_string_length(b) ? json_string_length(a) : json_string_length(b);
    while (count < size && first[count] == second[count]) count++;
    while (count > 0 && ((first[count] & 0xc0) == 0x80 || (second[count] & 0xc0) == 0x80)) count--;
    if (count > 0 && first[count - 1] == ' ') count--;
    return count;
}

static bool is_of_word(char byte) { return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z'); }

static json_t *messages_from(const json_t *list, size_t first, size_t end) {
    json_t *part = json_array();
    for (size_t i = first; i < end; i++) json_array_append(part, json_array_get(list, i));
    return part;
}

/* Builds the record of a prompt and one answer; takes over both. */
static json_t *answer_record(const json_t *record, json_t *prompt, json_t *completion) {
    static const char *const kept[] = {"tools", "documents", "functions", "chat_template_kwargs"};
    json_t *answer = json_pack("{so so}", "prompt", prompt, "completion", completion);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (json_object_get(record, kept[i])) json_object_set(answer, kept[i], json_object_get(record, kept[i]));
    return answer;
}

/* Returns the part of an answer after its first `common` messages or bytes. */
static json_t *rest_of(const json_t *answer, size_t common) {
    if (json_is_array(answer)) return messages_from(answer, common, json_array_size(answer));
    return json_stringn(json_string_value(answer) + common, json_string_length(answer) - common);
}

static json_t *start_of(const json_t *answer, size_t common) {
    return json_is_array(answer) ? messages_from(answer, 0, common) : json_stringn(json_string_value(answer), common);
}

/* Returns whether a value is given: an empty text or list counts as absent, like null. */
static bool is_given(const json_t *value) { return json_string_length(value) > 0 || json_array_size(value) > 0; }

/* Refuses a record with a part of its prompt in a member that smelt does not read for pairs,
 * because training without this part would train another pair. If the answers are lists, they
 * are whole conversations, so only a system message can be missing. */
static bool check_prompt_is_whole(const json_t *record, const json_t *messages, Error *error) {
    static const char *const parts[] = {"system", "history", "question", "instruction", "input"};
    bool texts = json_is_string(json_object_get(record, "chosen"));
    size_t count = !texts ? 1 : chat_member(record, "prompt") ? 2 : sizeof parts / sizeof *parts;
    if (chat_begins_with_system(json_array_get(messages, 0), json_object_get(record, "system"))) return true;
    for (size_t i = 0; i < count; i++)
        if (is_given(json_object_get(record, parts[i])))
            return error_set(
                error, ERROR_DATA, "the record has %s, but preference pairs cannot use it: move it into prompt, or remove it", parts[i]);
    return true;
}

/* Returns whether a text begins with the prompt, and the prompt does not end inside a word. A
 * prompt that ends inside a word matches only by coincidence. */
static bool repeats(const json_t *text, const json_t *prompt) {
    size_t size = json_string_length(prompt);
    const char *bytes = json_string_value(text);
    if (!size || json_string_length(text) <= size || memcmp(bytes, json_string_value(prompt), size) != 0) return false;
    return !is_of_word(bytes[size - 1]) || !is_of_word(bytes[size]);
}

/* Finds the prompt, for the caller to release, and the number of messages or bytes of the answers
 * that belong to it. NULL: ERROR_DATA. */
static json_t *find_prompt(const json_t *prompt, const json_t *chosen, const json_t *rejected, size_t *common, Error *error) {
    bool lists = json_is_array(chosen);
    size_t given = json_array_size(prompt);
    *common = 0;
    if (!lists && repeats(chosen, prompt) && repeats(rejected, prompt)) *common = json_string_length(prompt);
    if (lists && common_messages(prompt, chosen) == given && common_messages(prompt, rejected) == given) *common = given;
    if (prompt && (json_is_array(prompt) ? lists : !lists)) return json_incref((json_t *)prompt);
    if (prompt && !json_is_string(prompt))
        return error_set(error, ERROR_DATA, "prompt, chosen and rejected must be three strings or three lists of messages"), NULL;
    *common = lists ? common_messages(chosen, rejected) : common_bytes(chosen, rejected);
    if (prompt && *common == 0) return json_pack("[{ss sO}]", "role", "user", "content", prompt);
    const json_t *last = lists && *common ? json_array_get(chosen, *common - 1) : NULL;
    if (prompt && !json_equal(json_object_get(last, "content"), prompt))
        return error_set(error, ERROR_DATA, "chosen and rejected share their first messages, but prompt is not the last of them"), NULL;
    if (*common == 0) return error_set(error, ERROR_DATA, "the record has no prompt, and chosen and rejected share no beginning"), NULL;
    return start_of(chosen, *common);
}

bool chat_split_pair(const json_t *given, json_t **chosen, json_t **rejected, Error *error) {
    json_auto_t *record = chat_shape(given);
    const json_t *first = chat_member(record, "chosen"), *second = chat_member(record, "rejected");
    bool texts = json_is_string(first) && json_is_string(second), lists = json_is_array(first) && json_is_array(second);
    size_t common;
    *chosen = *rejected = NULL;
    if (!first || !second) return chat_refuse_shape(record, "chosen and rejected answers", error);
    if (!texts && !lists) return error_set(error, ERROR_DATA, "chosen and rejected must be two strings or two lists of messages");
    if (json_equal(first, second)) return error_set(error, ERROR_DATA, "chosen and rejected are the same answer");
    const json_t *asked = chat_member(record, "prompt");
    if (!chat_check_members(record, error) || !chat_check_messages(asked, "prompt", error) ||
        !chat_check_messages(first, "chosen", error) || !chat_check_messages(second, "rejected", error))
        return false;
    json_auto_t *prompt = find_prompt(asked, first, second, &common, error);
    if (!prompt || !check_prompt_is_whole(record, prompt, error)) return false;
    *chosen = answer_record(record, json_incref(prompt), rest_of(first, common));
    *rejected = answer_record(record, json_incref(prompt), rest_of(second, common));
    return true;
}

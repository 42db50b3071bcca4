/* Reads Mistral's tekken.json: a list of base64 tokens by rank, like a .tiktoken file, with the
 * regular expression and the special tokens. Special tokens have the first ids, and ranks begin
 * after them. Only as many tokens of the list are used as the vocabulary has room for. Owns nothing
 * after it returns. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/memory.h"
#include "token/token_internal.h"

enum { TOKEN_LIMIT = 1024 };

/* The special tokens of files that do not list them, which have a version below 11. */
static const char *const usual_special[] = {"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"};
enum { USUAL = sizeof usual_special / sizeof *usual_special };

static bool read_count(const json_t *config, const char *name, int32_t *count, Error *error) {
    const json_t *value = json_object_get(config, name);
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    *count = (int32_t)number;
    return (number >= 0 && number <= MAXIMUM_ID) ||
           error_set(error, ERROR_DATA, "%s of its config is missing or not 0 to %d", name, MAXIMUM_ID);
}

/* Returns the text of special token `id`: from the list, from the usual ones, or made from its
 * number. The caller frees. */
static char *special_text(const json_t *list, int32_t id) {
    const char *text = json_string_value(json_object_get(json_array_get(list, (size_t)id), "token_str"));
    if (!list && id < USUAL) text = usual_special[id];
    return text ? memory_copy_string(text) : memory_format("<SPECIAL_%" PRId32 ">", id);
}

static bool add_tekken_specials(Tokenizer *tokenizer, const json_t *list, int32_t count, Error *error) {
    for (int32_t id = 0; id < count; id++) {
        SCOPED_FREE char *text = special_text(list, id);
        const json_t *rank = json_object_get(json_array_get(list, (size_t)id), "rank");
        if (rank && json_integer_value(rank) != id)
            return error_set(error, ERROR_DATA, "special token %" PRId32 " has a rank that differs from its position in the list", id);
        if (!*text || tokenizer_id(tokenizer, text) != TOKEN_NONE)
            return error_set(error, ERROR_DATA, "special token %" PRId32 " is empty or a duplicate", id);
        ranks_add_special(tokenizer, text, id);
    }
    return true;
}

static bool add_token(Tokenizer *tokenizer, const json_t *item, int32_t rank, int32_t specials, Error *error) {
    const json_t *text = json_object_get(item, "token_bytes"), *own = json_object_get(item, "rank");
    size_t length = json_string_length(text), size;
    char bytes[TOKEN_LIMIT + 2];
    if (!json_is_integer(own) || json_integer_value(own) != rank)
        return error_set(error, ERROR_DATA, "token %" PRId32 " has a rank that differs from its position in the list", rank);
    if (!text || length * 3 / 4 > TOKEN_LIMIT || !text_from_base64(json_string_value(text), length, bytes, &size) || size == 0)
        return error_set(error, ERROR_DATA, "token %" PRId32 " is not base64 of 1 to %d bytes", rank, TOKEN_LIMIT);
    return ranks_add(tokenizer, bytes, size, rank + specials, error) || error_context(error, "token %" PRId32, rank);
}

bool read_tekken(Tokenizer *tokenizer, const json_t *root, Error *error) {
    const json_t *config = json_object_get(root, "config"), *list = json_object_get(root, "vocab"),
                 *special = json_object_get(root, "special_tokens"), *pattern = json_object_get(config, "pattern");
    int32_t all, specials;
    if (!json_is_string(pattern) || !json_is_array(list))
        return error_set(error, ERROR_DATA, "it has no pattern in its config, or no vocab list");
    if (!read_count(config, "default_vocab_size", &all, error) || !read_count(config, "default_num_special_tokens", &specials, error))
        return false;
    if (all < specials || (size_t)(all - specials) > json_array_size(list) || json_array_size(special) > (size_t)specials)
        return error_set(
            error, ERROR_DATA, "it does not have the %" PRId32 " tokens, %" PRId32 " of them special, of its config", all, specials);
    if (!add_tekken_specials(tokenizer, json_is_array(special) ? special : NULL, specials, error)) return false;
    for (int32_t rank = 0; rank < all - specials; rank++)
        if (!add_token(tokenizer, json_array_get(list, (size_t)rank), rank, specials, error)) return false;
    token_ids_append(&tokenizer->before, tokenizer_id(tokenizer, "<s>"));
    if (tokenizer->before.items[0] == TOKEN_NONE) token_ids_free(&tokenizer->before);
    return ranks_finish(tokenizer, (Span){json_string_value(pattern), json_string_length(pattern)}, error);
}

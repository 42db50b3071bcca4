/* New special tokens: the texts of a comma-separated list take the ids after the tokenizer's last
 * id. Called when a model folder is written with a larger vocabulary. Owns nothing beyond a
 * call. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "token/token_internal.h"

/* Returns the next text of a list, for free(); NULL after the last. */
static char *next_text(const char **rest) {
    if (!*rest) return NULL;
    const char *text = *rest, *comma = strchr(text, ',');
    *rest = comma ? comma + 1 : NULL;
    return memory_format("%.*s", (int)(comma ? comma - text : (ptrdiff_t)strlen(text)), text);
}

static bool check_token_text(const Tokenizer *tokenizer, const char *list, const char *text, int32_t before, Error *error) {
    const char *rest = list;
    if (!*text || text_well_formed(text, strlen(text)) != strlen(text))
        return error_set(error, ERROR_USAGE, "token %d of '%s' is %s: write nonempty UTF-8 tokens separated by commas", before + 1, list,
            *text ? "not UTF-8" : "empty");
    if (tokenizer_id(tokenizer, text) != TOKEN_NONE)
        return error_set(error, ERROR_USAGE, "%s is already token %d: remove it from the list", text, tokenizer_id(tokenizer, text));
    for (int32_t i = 0; i < before; i++) {
        SCOPED_FREE char *other = next_text(&rest);
        if (!strcmp(other, text)) return error_set(error, ERROR_USAGE, "%s is listed twice: remove one", text);
    }
    return true;
}

bool tokenizer_check_new(const Tokenizer *tokenizer, const char *list, int32_t *count, Error *error) {
    const char *rest = list;
    *count = 0;
    if (!ends_with(tokenizer->path, "tokenizer.json") && !gguf_is_file(tokenizer->path))
        return error_set(error, ERROR_USAGE,
            "the tokenizer %s cannot take new tokens: use a folder with a tokenizer.json (written by save_pretrained of transformers' "
            "AutoTokenizer)",
            tokenizer->path);
    for (;; ++*count) {
        SCOPED_FREE char *text = next_text(&rest);
        if (!text) return true;
        if (!check_token_text(tokenizer, list, text, *count, error)) return false;
    }
}

/* Describes an added token as `tokenizers` writes it. `id` becomes a member unless it is negative. */
static json_t *describe_token(const char *text, int32_t id) {
    json_t *token = json_object();
    if (id >= 0) json_object_set_new(token, "id", json_integer(id));
    json_object_set_new(token, "content", json_string(text));
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) json_object_set_new(token, flags[i], json_false());
    json_object_set_new(token, "special", json_true());
    return token;
}

/* Adds each text to the list of a tokenizer.json, or to the object keyed by id in the
 * tokenizer_config.json of older folders. */
static void put_added_tokens(json_t *into, const char *list, int32_t first) {
    const char *rest = list;
    for (int32_t id = first;; id++) {
        SCOPED_FREE char *text = next_text(&rest);
        if (!text) return;
        SCOPED_FREE char *key = memory_format("%d", id);
        if (json_is_array(into)) json_array_append_new(into, describe_token(text, id));
        else json_object_set_new(into, key, describe_token(text, -1));
    }
}

/* Adds the tokens to a member of a file; a file without the member is not changed. */
static bool add_to_file(const char *folder, const char *name, const char *member, const char *list, int32_t first, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    if (!file_exists(path)) return true;
    json_auto_t *content = json_read(path, ERROR_DATA, error);
    if (!content) return false;
    json_t *into = json_object_get(content, member);
    if (!json_is_array(into) && !json_is_object(into)) return true;
    put_added_tokens(into, list, first);
    SCOPED_FREE char *text = json_format(content);
    if (!text) memory_refused(1 << 20);
    return file_write(path, text, (int64_t)strlen(text), error);
}

bool tokenizer_add_new(const char *folder, const char *list, int32_t first, Error *error) {
    return add_to_file(folder, "tokenizer.json", "added_tokens", list, first, error) &&
           add_to_file(folder, "tokenizer_config.json", "added_tokens_decoder", list, first, error);
}

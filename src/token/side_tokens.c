/* The tokens that side files add to those of a tokenizer.json, with transformers' ids
 * (PreTrainedTokenizerBase and TokenizersBackend of transformers 5): first added_tokens_decoder in
 * the order of its ids, whose flags win, then the named tokens (bos_token), then the unnamed ones
 * (extra_special_tokens). Works on the JSON of both files; owns nothing beyond a call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/strings.h"
#include "token/json_keys_internal.h"
#include "token/token_internal.h"

/* The names that every transformers tokenizer knows, in its order. */
static const char *const named[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
static const char *const unnamed[] = {"additional_special_tokens", "extra_special_tokens"};
static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized", "special"};
enum { NAMED = sizeof named / sizeof *named, UNNAMED = sizeof unnamed / sizeof *unnamed, FLAGS = sizeof flags / sizeof *flags };

/* -- Tokens of a configuration ------------------------------------------------------------------------------------- */

/* Returns the text of a token, which is a string or an object with the text; NULL: neither. */
static const json_t *token_text(const json_t *token) {
    const json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
    return json_is_string(text) ? text : NULL;
}

static bool token_is_text(const json_t *token, const json_t *text) { return json_equal(token_text(token), text); }

/* Returns whether a member of the configuration names a token. image_token and other custom names
 * count too. */
static bool is_token_name(const char *name, const json_t *value) {
    for (int i = 0; i < NAMED; i++)
        if (!strcmp(name, named[i])) return true;
    return ends_with(name, "_token") && token_text(value);
}

static bool is_special_token(const json_t *config, const json_t *text) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)config, name, value) if (is_token_name(name, value) && token_is_text(value, text)) return true;
    for (int i = 0; i < UNNAMED; i++) {
        const json_t *list = json_object_get(config, unnamed[i]);
        for (size_t j = 0; j < json_array_size(list); j++)
            if (token_is_text(json_array_get(list, j), text)) return true;
    }
    return false;
}

bool side_tokens_from_old(json_t *config, const json_t *added, Error *error) {
    const char *content;
    json_t *id, *decoder = json_object();
    json_object_foreach((json_t *)added, content, id) {
        char key[24];
        json_auto_t *text = json_string(content);
        int special = is_special_token(config, text);
        json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        snprintf(key, sizeof key, "%lld", (long long)number);
        if (number < 0 || number >= MAXIMUM_ID || json_object_get(decoder, key)) {
            json_decref(decoder);
            return error_set(error, ERROR_DATA,
                "added_tokens.json: the id of '%.80s' is not an integer from 0 to %d, or belongs to another token", content,
                MAXIMUM_ID - 1);
        }
        json_object_set_new(decoder, key, json_pack("{s:O, s:b, s:b}", "content", text, "normalized", !special, "special", special));
    }
    json_object_set_new(config, "added_tokens_decoder", decoder);
    return true;
}

bool side_token_id(const Tokenizer *tokenizer, const json_t *config, const char *name, int32_t *id, Error *error) {
    const json_t *token = json_object_get(config, name), *text = token_text(token);
    *id = text ? token_map_get(&tokenizer->contents, json_string_value(text), json_string_length(text)) : TOKEN_NONE;
    if (*id != TOKEN_NONE || !token || json_is_null(token)) return true;
    return text ? error_set(error, ERROR_DATA, "%s in its side files is '%.80s', which is not a token", name, json_string_value(text))
                : error_set(error, ERROR_DATA, "%s in its side files is neither a string nor an object with content", name);
}

static int by_id(const void *left, const void *right) {
    const NumberedToken *a = left, *b = right;
    return (a->id > b->id) - (a->id < b->id);
}

NumberedToken *side_tokens_numbered(const json_t *config, size_t *count, Error *error) {
    json_t *decoder = json_object_get(config, "added_tokens_decoder"), *token;
    NumberedToken *tokens = memory_allocate((json_object_size(decoder) + 1) * sizeof *tokens);
    const char *key, *bad = NULL;
    *count = 0;
    json_object_foreach(decoder, key, token) {
        char *end;
        long long id = strtoll(key, &end, 10);
        const json_t *text = json_is_object(token) ? token_text(token) : NULL;
        if (*end || end == key || id < 0 || id >= MAXIMUM_ID || !json_string_length(text)) bad = key;
        else tokens[(*count)++] = (NumberedToken){(int32_t)id, token, json_string_value(text)};
    }
    qsort(tokens, *count, sizeof *tokens, by_id);
    if (!bad && (!decoder || json_is_null(decoder) || json_is_object(decoder))) return tokens; /* a wide number has a bad key */
    free(tokens);
    *count = 0;
    if (bad)
        error_set(
            error, ERROR_DATA, "added_tokens_decoder of its tokenizer_config.json has a token '%.80s' without an id or a string", bad);
    else error_set(error, ERROR_DATA, "added_tokens_decoder of its tokenizer_config.json is not an object of ids and tokens");
    return NULL;
}

/* Refuses settings that change the ids of a text and that smelt does not implement. */
bool side_settings_check(const json_t *tokenizer, const json_t *config, Error *error) {
    const json_t *split = json_object_get(config, "split_special_tokens"), *prefix = json_object_get(config, "add_prefix_space"),
                 *class = json_object_get(config, "tokenizer_class"), *step = json_object_get(tokenizer, "pre_tokenizer");
    if (split && !json_is_false(split) && !json_is_null(split))
        return error_set(error, ERROR_DATA,
            "split_special_tokens of its tokenizer_config.json is set, which is not supported: remove it; smelt matches special tokens if "
            "special=true");
    if (!json_is_string(class) || !starts_with(json_string_value(class), "GPT2Tokenizer") || !json_is_boolean(prefix)) return true;
    const json_t *own = json_object_get(step, "add_prefix_space");
    return !json_is_boolean(own) || json_equal(own, prefix) ||
           error_set(error, ERROR_DATA,
               "add_prefix_space is %s in its tokenizer_config.json and %s in the pre_tokenizer of the tokenizer.json: save the tokenizer "
               "again with transformers, or make them equal",
               json_is_true(prefix) ? "true" : "false", json_is_true(own) ? "true" : "false");
}

/* -- Adding --------------------------------------------------------------------------------------------------------- */

/* The tokens of a tokenizer.json by text. */
typedef struct Adding {
    const json_t *config;
    json_t *list;       /* borrowed: "added_tokens" of the tokenizer.json */
    json_t *vocabulary; /* the model's: text to id */
    json_t *places;     /* text to index in the list */
    json_int_t most;    /* the largest id of the list; TOKEN_NONE: the list is empty */
} Adding;

static json_t *index_list(const json_t *list, bool added) {
    json_t *found = json_object();
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *text = added ? token_text(item) : json_array_get(item, 0);
        if (json_is_string(text))
            json_object_setn_new(found, json_string_value(text), json_string_length(text), json_integer((json_int_t)i));
    }
    return found;
}

static json_int_t next_id(const Adding *adding, const json_t *text) {
    const json_t *own = json_object_getn(adding->vocabulary, json_string_value(text), json_string_length(text));
    return added_token_id(own ? json_integer_value(own) : TOKEN_NONE, (int64_t)json_object_size(adding->vocabulary), adding->most);
}

/* Adds a token; with `replace`, replaces the flags of an existing one. `wanted` is its id, or
 * -1. */
static bool add_side_token(Adding *adding, const json_t *token, bool replace, json_int_t wanted, Error *error) {
    const json_t *text = token_text(token);
    if (!text || json_string_length(text) == 0)
        return error_set(error, ERROR_DATA, "its side files have a special or added token without content");
    const json_t *place = json_object_getn(adding->places, json_string_value(text), json_string_length(text));
    json_t *entry = json_array_get(adding->list, (size_t)json_integer_value(place));
    if (place && !replace) return true;
    json_int_t id = place ? json_integer_value(json_object_get(entry, "id")) : next_id(adding, text);
    if (wanted >= 0 && id != wanted)
        return error_set(error, ERROR_DATA,
            "token '%.80s' has id %lld in tokenizer_config.json or added_tokens.json, but transformers assigns %lld, because it numbers "
            "added tokens after the vocabulary without gaps: save the tokenizer again with transformers",
            json_string_value(text), (long long)wanted, (long long)id);
    bool special = !json_is_object(token) || json_is_true(json_object_get(token, "special")) || is_special_token(adding->config, text);
    json_t *made = json_pack("{s:I, s:O}", "id", id, "content", text);
    for (int i = 0; i < FLAGS; i++) {
        const json_t *given = json_is_object(token) ? json_object_get(token, flags[i]) : NULL;
        bool usual = !strcmp(flags[i], "normalized") && !special;
        json_object_set_new(made, flags[i], json_boolean(!strcmp(flags[i], "special") ? special : given ? json_is_true(given) : usual));
    }
    if (place) return json_array_set_new(adding->list, (size_t)json_integer_value(place), made) == 0;
    json_object_setn_new(
        adding->places, json_string_value(text), json_string_length(text), json_integer((json_int_t)json_array_size(adding->list)));
    if (id > adding->most) adding->most = id;
    return json_array_append_new(adding->list, made) == 0;
}

static bool add_numbered(Adding *adding, Error *error) {
    size_t count;
    SCOPED_FREE NumberedToken *tokens = side_tokens_numbered(adding->config, &count, error);
    bool good = tokens;
    for (size_t i = 0; i < count && good; i++) good = add_side_token(adding, tokens[i].token, true, tokens[i].id, error);
    return good;
}

static bool add_named(Adding *adding, Error *error) {
    const char *name;
    json_t *value;
    for (int i = 0; i < NAMED; i++) {
        const json_t *token = json_object_get(adding->config, named[i]);
        if (token && !json_is_null(token) && !add_side_token(adding, token, false, -1, error)) return error_context(error, "%s", named[i]);
    }
    json_object_foreach((json_t *)adding->config, name, value) {
        if (is_token_name(name, value) && !json_is_null(value) && !add_side_token(adding, value, false, -1, error)) return false;
    }
    return true;
}

/* Adds the tokens without a name: a list, or an object of names and tokens. */
static bool add_unnamed(Adding *adding, Error *error) {
    const char *name;
    size_t index;
    json_t *value;
    for (int i = 0; i < UNNAMED; i++) {
        json_t *tokens = json_object_get(adding->config, unnamed[i]);
        if (tokens && !json_is_null(tokens) && !json_is_array(tokens) && (!json_is_object(tokens) || json_wide_number(tokens)))
            return error_set(error, ERROR_DATA, "%s in its side files is not a list of tokens", unnamed[i]);
        json_array_foreach(tokens, index, value) if (!add_side_token(adding, value, false, -1, error)) return error_context(
            error, "%s", unnamed[i]);
        json_object_foreach(tokens, name, value) if (!add_side_token(adding, value, false, -1, error)) return error_context(
            error, "%s", unnamed[i]);
    }
    return true;
}

bool tokenizer_add_side_tokens(json_t *tokenizer, const json_t *config, Error *error) {
    json_t *vocabulary = json_object_get(json_object_get(tokenizer, "model"), "vocab"), *list = json_object_get(tokenizer, "added_tokens");
    if (!vocabulary || json_object_size(config) == 0) return true;
    if (!list || json_is_null(list)) json_object_set_new(tokenizer, "added_tokens", list = json_array());
    if (!json_is_array(list)) return true; /* the reader of tokenizer.json refuses it */
    Adding adding = {.config = config, .list = list, .most = TOKEN_NONE};
    adding.vocabulary = json_is_object(vocabulary) ? json_incref(vocabulary) : index_list(vocabulary, false);
    adding.places = index_list(list, true);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t id = json_integer_value(json_object_get(json_array_get(list, i), "id"));
        if (id > adding.most) adding.most = id;
    }
    bool good = add_numbered(&adding, error) && add_named(&adding, error) && add_unnamed(&adding, error);
    json_decref(adding.vocabulary);
    json_decref(adding.places);
    return good;
}

/* Reads a tokenizer.json into a Tokenizer. Each part of the file (normalizer, pre_tokenizer, model,
 * post_processor, decoder, added tokens) becomes steps of the Tokenizer. A part of an unknown kind
 * is an error, because ignoring it would give other ids. jansson parses the JSON and bounds its
 * nesting; duplicate keys are refused. Owns nothing after it returns. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/json_reader.h"
#include "base/memory.h"
#include "base/strings.h"
#include "token/json_keys_internal.h"
#include "token/token_internal.h"

enum { TEMPLATE_LIMIT = 64 };

/* -- JSON values --------------------------------------------------------------------------------------------------- */

static bool refuse_part(Error *error, const char *part, const char *what) {
    return error_set(error, ERROR_DATA, "its %s %s, which is not supported", part, what);
}

static Span string_value(const json_t *value) {
    return json_is_string(value) ? (Span){json_string_value(value), json_string_length(value)} : (Span){NULL, 0};
}

static bool is_text(const json_t *value, const char *text) {
    Span span = string_value(value);
    return span.bytes && span.size == strlen(text) && memcmp(span.bytes, text, span.size) == 0;
}

static bool is_kind(const json_t *object, const char *kind) { return is_text(json_object_get(object, "type"), kind); }

/* Returns a flag; `usual` if it is missing or null. */
static bool flag_of(const json_t *object, const char *name, bool usual) {
    const json_t *value = json_object_get(object, name);
    return json_is_boolean(value) ? json_is_true(value) : usual;
}

static bool refuse_kind(Error *error, const char *part, const json_t *object) {
    Span kind = string_value(json_object_get(object, "type"));
    char what[120];
    snprintf(
        what, sizeof what, "is of type '%.*s'", kind.bytes ? (int)(kind.size < 80 ? kind.size : 80) : 4, kind.bytes ? kind.bytes : "none");
    return refuse_part(error, part, what);
}

static bool copy_member(Buffer *buffer, const json_t *value, const char *part, Error *error) {
    Span span = string_value(value);
    if (!span.bytes) return refuse_part(error, part, "lacks a required string");
    buffer_append(buffer, span.bytes, span.size);
    return true;
}

static bool read_id(const json_t *value, int32_t *id, Error *error) {
    json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    if (number < 0 || number >= MAXIMUM_ID)
        return error_set(error, ERROR_DATA, "the id %" JSON_INTEGER_FORMAT " is not an integer from 0 to %d", number, MAXIMUM_ID - 1);
    *id = (int32_t)number;
    return true;
}

/* Reads {"String": "..."} or {"Regex": "..."}. A fixed text is never empty. */
static bool read_pattern(Pattern *pattern, const json_t *value, const char *part, Error *error) {
    Span expression = string_value(json_object_get(value, "Regex"));
    if (expression.bytes) return (pattern->regex = regex_open(expression.bytes, expression.size, REGEX_ONIGURUMA, error)) != NULL;
    if (!copy_member(&pattern->text, json_is_string(value) ? value : json_object_get(value, "String"), part, error)) return false;
    return pattern->text.size > 0 || refuse_part(error, part, "replaces or splits at an empty string");
}

/* Calls `read` for the object, or for each member of a Sequence, in order. */
typedef bool (*ReadStep)(Tokenizer *tokenizer, const json_t *object, Error *error);
static bool read_steps(Tokenizer *tokenizer, const json_t *object, const char *members, ReadStep read, Error *error) {
    if (!object || json_is_null(object)) return true;
    if (!is_kind(object, "Sequence")) return read(tokenizer, object, error);
    size_t index;
    json_t *member;
    json_array_foreach(json_object_get(object, members), index, member) {
        if (is_kind(member, "Sequence")) return refuse_part(error, members, "nest a Sequence in a Sequence");
        if (!read(tokenizer, member, error)) return false;
    }
    return true;
}

/* -- Normalizer ---------------------------------------------------------------------------------------------------- */

static int normalizer_form(const json_t *object) {
    int composed = UTF8PROC_STABLE | UTF8PROC_COMPOSE, decomposed = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (is_kind(object, "NFC")) return composed;
    if (is_kind(object, "NFD")) return decomposed;
    if (is_kind(object, "NFKC")) return composed | UTF8PROC_COMPAT;
    return is_kind(object, "NFKD") ? decomposed | UTF8PROC_COMPAT : 0;
}

static bool read_charsmap(Charsmap *map, const json_t *value, Error *error) {
    Span text = string_value(value);
    SCOPED_FREE char *bytes = memory_allocate(text.size + 2);
    size_t size = 0;
    if (text.bytes && !text_from_base64(text.bytes, text.size, bytes, &size))
        return refuse_part(error, "normalizer", "has a precompiled_charsmap that is not base64");
    return charsmap_read(map, (Span){bytes, size}, error);
}

static bool read_normal(Tokenizer *tokenizer, const json_t *object, Error *error) {
    if (tokenizer->normal_count == STEPS) return refuse_part(error, "normalizer", "has more than 16 steps");
    NormalStep *step = &tokenizer->normals[tokenizer->normal_count++];
    step->form = normalizer_form(object);
    if (step->form != 0) {
        step->kind = NORMAL_FORM;
    } else if (is_kind(object, "Precompiled")) {
        step->kind = NORMAL_PRECOMPILED;
        return read_charsmap(&step->charsmap, json_object_get(object, "precompiled_charsmap"), error);
    } else if (is_kind(object, "Prepend")) {
        step->kind = NORMAL_PREPEND;
        return copy_member(&step->with, json_object_get(object, "prepend"), "normalizer", error);
    } else if (is_kind(object, "Replace")) {
        step->kind = NORMAL_REPLACE;
        return read_pattern(&step->pattern, json_object_get(object, "pattern"), "normalizer", error) &&
               copy_member(&step->with, json_object_get(object, "content"), "normalizer", error);
    } else if (is_kind(object, "Strip")) {
        step->kind = NORMAL_STRIP;
        step->left = flag_of(object, "strip_left", true);
        step->right = flag_of(object, "strip_right", true);
    } else {
        return refuse_kind(error, "normalizer", object);
    }
    return true;
}

/* -- Pre-tokenizer ------------------------------------------------------------------------------------------------- */

static bool read_behavior(SplitBehavior *behavior, const json_t *value, Error *error) {
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *behavior = (SplitBehavior)i;
        if (is_text(value, names[i])) return true;
    }
    return refuse_part(error, "pre_tokenizer", "has an unknown behavior");
}

static bool set_pattern(SplitStep *step, const char *pattern, SplitBehavior behavior, Error *error) {
    step->kind = SPLIT_PATTERN;
    step->behavior = behavior;
    step->pattern.regex = regex_open(pattern, strlen(pattern), REGEX_ONIGURUMA, error);
    return step->pattern.regex != NULL;
}

static bool read_metaspace(SplitStep *step, const json_t *object, Error *error) {
    const json_t *scheme = json_object_get(object, "prepend_scheme");
    step->kind = SPLIT_METASPACE;
    step->behavior = SPLIT_WITH_NEXT;
    step->whole = !flag_of(object, "split", true);
    if (is_text(scheme, "never")) step->prepend = PREPEND_NEVER;
    else if (is_text(scheme, "first")) step->prepend = PREPEND_FIRST;
    else if (!scheme && !flag_of(object, "add_prefix_space", true)) step->prepend = PREPEND_NEVER;
    return copy_member(&step->pattern.text, json_object_get(object, "replacement"), "pre_tokenizer", error) &&
           (step->pattern.text.size > 0 || refuse_part(error, "pre_tokenizer", "replaces spaces with an empty string"));
}

static SplitStep *new_split(Tokenizer *tokenizer, Error *error) {
    if (tokenizer->split_count < STEPS) return &tokenizer->splits[tokenizer->split_count++];
    refuse_part(error, "pre_tokenizer", "has more than 16 steps");
    return NULL;
}

/* ByteLevel converts words to bytes, so no step may divide them afterwards. */
static bool read_byte_level(Tokenizer *tokenizer, const json_t *object, Error *error) {
    SplitStep *step;
    tokenizer->byte_level = true;
    if (flag_of(object, "add_prefix_space", true)) {
        if (!(step = new_split(tokenizer, error))) return false;
        *step = (SplitStep){.kind = SPLIT_PREFIX_SPACE, .whole = true};
    }
    if (!flag_of(object, "use_regex", true)) return true;
    return (step = new_split(tokenizer, error)) && set_pattern(step, known_pattern("gpt2")->json, SPLIT_ISOLATED, error);
}

static bool read_split(Tokenizer *tokenizer, const json_t *object, Error *error) {
    if (tokenizer->byte_level) return refuse_part(error, "pre_tokenizer", "has a step after ByteLevel");
    if (is_kind(object, "ByteLevel")) return read_byte_level(tokenizer, object, error);
    SplitStep *step = new_split(tokenizer, error);
    if (!step) return false;
    if (is_kind(object, "Metaspace")) return read_metaspace(step, object, error);
    if (is_kind(object, "Digits"))
        return set_pattern(step, "\\p{N}", flag_of(object, "individual_digits", false) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, error);
    if (is_kind(object, "WhitespaceSplit")) return set_pattern(step, "\\s", SPLIT_REMOVED, error);
    if (is_kind(object, "Punctuation")) {
        const json_t *behavior = json_object_get(object, "behavior");
        return set_pattern(step, "[\\p{P}$+<=>\\^`|~]", SPLIT_ISOLATED, error) &&
               (!behavior || read_behavior(&step->behavior, behavior, error));
    }
    if (!is_kind(object, "Split")) return refuse_kind(error, "pre_tokenizer", object);
    step->kind = SPLIT_PATTERN;
    step->invert = flag_of(object, "invert", false);
    return read_behavior(&step->behavior, json_object_get(object, "behavior"), error) &&
           read_pattern(&step->pattern, json_object_get(object, "pattern"), "pre_tokenizer", error);
}

/* -- Model --------------------------------------------------------------------------------------------------------- */

static bool is_empty(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

static bool read_vocabulary(Tokenizer *tokenizer, json_t *vocabulary, Error *error) {
    const char *key;
    size_t length;
    json_t *value;
    SCOPED(buffer_free) Buffer zeroed = {0};
    if (!json_is_object(vocabulary)) return refuse_part(error, "model", "has no vocab object");
    json_object_keylen_foreach(vocabulary, key, length, value) {
        int32_t id = 0;
        Span token = {key, length};
        if (*tokenizer->zero_key) {
            zeroed.size = 0;
            text_replace(&zeroed, token, (Span){tokenizer->zero_key, 3}, (Span){"", 1});
            token = buffer_span(&zeroed);
        }
        if (!read_id(value, &id, error) || !tokenizer_add_word(tokenizer, token.bytes, token.size, id, error))
            return error_context(error, "token '%.*s'", length < 80 ? (int)length : 80, key);
    }
    return true;
}

/* Reads a merge: "left right" or ["left", "right"]. */
static bool read_merge(const json_t *merge, Span *left, Span *right) {
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        *left = string_value(json_array_get(merge, 0));
        *right = string_value(json_array_get(merge, 1));
        return left->bytes && right->bytes;
    }
    *left = string_value(merge);
    const char *space = left->bytes ? memchr(left->bytes, ' ', left->size) : NULL;
    if (!space) return false;
    size_t size = (size_t)(space - left->bytes);
    *right = (Span){space + 1, left->size - size - 1};
    left->size = size;
    return !memchr(right->bytes, ' ', right->size);
}

static bool add_merge(Tokenizer *tokenizer, Span left, Span right, uint64_t rank, Buffer *joined, Error *error) {
    joined->size = 0;
    buffer_append(joined, left.bytes, left.size);
    buffer_append(joined, right.bytes, right.size);
    int32_t ids[] = {token_map_get(&tokenizer->contents, left.bytes, left.size),
        token_map_get(&tokenizer->contents, right.bytes, right.size), token_map_get(&tokenizer->contents, joined->bytes, joined->size)};
    for (int i = 0; i < 3; i++)
        if (ids[i] == TOKEN_NONE) return error_set(error, ERROR_DATA, "a token of the merge is not in the vocabulary");
    tokenizer_add_merge(tokenizer, left, right, ids, rank);
    return true;
}

static bool read_merges(Tokenizer *tokenizer, json_t *merges, Error *error) {
    size_t index;
    json_t *merge;
    SCOPED(buffer_free) Buffer joined = {0};
    if (!json_is_array(merges)) return refuse_part(error, "model", "has no merges");
    json_array_foreach(merges, index, merge) {
        Span left = {0}, right = {0};
        if (!(read_merge(merge, &left, &right) || error_set(error, ERROR_DATA, "not a pair of tokens")) ||
            !add_merge(tokenizer, left, right, index, &joined, error))
            return error_context(error, "merge %zu", index);
    }
    return true;
}

/* Returns a number as `tokenizers` reads it. serde_json rounds the digits, and then their quotient
 * by a power of ten, so one in six scores is off by one unit in the last place. This decides
 * between ways of equal sums. */
static double score_of(const json_t *value) {
    double number = json_number_value(value), tens = 1;
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, number);
        if (strtod(text, NULL) == number) break;
    }
    char *exponent = strchr(text, 'e'), *point = strchr(text, '.');
    if (!exponent || !point) return number;
    long scale = (exponent - point - 1) - strtol(exponent + 1, NULL, 10);
    if (scale <= 0 || scale > 22) return number; /* powers of ten up to 10^22 are exact, and no score has more digits */
    *exponent = '\0';
    memmove(point, point + 1, strlen(point));
    for (long i = 0; i < scale; i++) tens *= 10;
    return (double)strtoll(text, NULL, 10) / tens;
}

/* Reads ["token", score]. */
static bool add_scored(Tokenizer *tokenizer, const json_t *pair, int32_t id, TrieKey *key, Error *error) {
    const json_t *score = json_array_get(pair, 1);
    *key = (TrieKey){string_value(json_array_get(pair, 0)), id};
    if (!key->text.bytes || !json_is_number(score) || json_array_size(pair) != 2)
        return error_set(error, ERROR_DATA, "not a string and a score");
    tokenizer->scores[id] = score_of(score);
    return tokenizer_add_word(tokenizer, key->text.bytes, key->text.size, id, error);
}

/* Reads a unigram model, which encodes every pre-token separately and as a whole. */
static bool read_unigram(Tokenizer *tokenizer, const json_t *model, Error *error) {
    const json_t *list = json_object_get(model, "vocab"), *pair;
    size_t count = json_array_size(list), index;
    if (count == 0 || count > MAXIMUM_ID) return refuse_part(error, "model", "has no vocab list, or one that is too long");
    if (!is_empty(json_object_get(model, "alpha")) || !is_empty(json_object_get(model, "nbest_size")))
        return refuse_part(error, "model", "samples tokens randomly (alpha or nbest_size)");
    if (tokenizer->byte_level) return refuse_part(error, "model", "is Unigram after ByteLevel");
    SCOPED_FREE TrieKey *keys = memory_allocate(count * sizeof *keys);
    tokenizer->scores = memory_allocate(count * sizeof *tokenizer->scores);
    tokenizer->unknown_score = INFINITY;
    json_array_foreach(list, index, pair) {
        if (!add_scored(tokenizer, pair, (int32_t)index, &keys[index], error)) return error_context(error, "token %zu", index);
        tokenizer->unknown_score = fmin(tokenizer->unknown_score, tokenizer->scores[index]);
    }
    tokenizer->unknown_score -= 10;
    if (!read_id(json_object_get(model, "unk_id"), &tokenizer->unknown, error) || (size_t)tokenizer->unknown >= count)
        return refuse_part(error, "model", "has no unk_id in its vocab");
    bool good = unigram_build(tokenizer, keys, count, error);
    tokenizer->space_begins_words = false;
    return good;
}

static bool read_model(Tokenizer *tokenizer, const json_t *model, Error *error) {
    tokenizer->byte_fallback = flag_of(model, "byte_fallback", false);
    if (is_kind(model, "Unigram")) return read_unigram(tokenizer, model, error);
    const json_t *merges = json_object_get(model, "merges"), *unknown = json_object_get(model, "unk_token");
    if (!is_kind(model, "BPE") && !(merges && !json_object_get(model, "type"))) return refuse_kind(error, "model", model);
    if (!is_empty(json_object_get(model, "dropout"))) return refuse_part(error, "model", "has a dropout");
    if (!is_empty(json_object_get(model, "continuing_subword_prefix")))
        return refuse_part(error, "model", "has a continuing_subword_prefix");
    if (!is_empty(json_object_get(model, "end_of_word_suffix"))) return refuse_part(error, "model", "has an end_of_word_suffix");
    tokenizer->fuse_unknown = flag_of(model, "fuse_unk", false);
    tokenizer->whole_words = flag_of(model, "ignore_merges", false);
    tokenizer->space_begins_words = !tokenizer->byte_level && !tokenizer->whole_words;
    if (tokenizer->byte_level && tokenizer->byte_fallback) return refuse_part(error, "model", "has byte_fallback together with ByteLevel");
    if (!read_vocabulary(tokenizer, json_object_get(model, "vocab"), error)) return false;
    if (json_is_string(unknown)) {
        tokenizer->unknown = token_map_get(&tokenizer->contents, json_string_value(unknown), json_string_length(unknown));
        if (tokenizer->unknown == TOKEN_NONE) return refuse_part(error, "model", "has an unk_token that is not in the vocabulary");
    }
    if (token_map_get(&tokenizer->contents, "\xE2\x96\x81", 3) == TOKEN_NONE) tokenizer->space_begins_words = false;
    return read_merges(tokenizer, json_object_get(model, "merges"), error);
}

/* -- Added tokens -------------------------------------------------------------------------------------------------- */

/* If `tokenizers` gives a token another id than the file does, the id that the model was trained
 * with is unknown. */
static bool check_added_id(const Tokenizer *tokenizer, const AddedToken *token, int32_t words, int32_t most, Error *error) {
    int32_t own = token_map_get(&tokenizer->contents, token->content.bytes, token->content.size);
    int32_t given = (int32_t)added_token_id(own, words, most);
    return token->id == given ||
           error_set(error, ERROR_DATA,
               "'%.*s' has id %d, but `tokenizers` assigns %d, because it numbers added tokens after the %d tokens of the vocabulary "
               "without gaps: save the tokenizer again with transformers",
               token->content.size < 80 ? (int)token->content.size : 80, token->content.bytes, token->id, given, words);
}

static bool read_added(Tokenizer *tokenizer, const json_t *list, Error *error) {
    size_t index;
    json_t *object;
    int32_t words = (int32_t)tokenizer->contents.count, most = TOKEN_NONE;
    if (list && !json_is_null(list) && !json_is_array(list)) return refuse_part(error, "added_tokens", "are not a list");
    json_array_foreach(list, index, object) {
        AddedToken token = {.special = flag_of(object, "special", false),
            .single_word = flag_of(object, "single_word", false),
            .left_strip = flag_of(object, "lstrip", false),
            .right_strip = flag_of(object, "rstrip", false)};
        token.match = flag_of(object, "normalized", !token.special) ? MATCH_NORMALIZED : MATCH_RAW;
        if (!read_id(json_object_get(object, "id"), &token.id, error) ||
            !copy_member(&token.content, json_object_get(object, "content"), "added token", error) ||
            !check_added_id(tokenizer, &token, words, most, error)) {
            buffer_free(&token.content);
            return error_context(error, "added token %zu", index);
        }
        if (token.id > most) most = token.id;
        tokenizer_add_added(tokenizer, &token);
    }
    return true;
}

/* -- Post-processor ------------------------------------------------------------------------------------------------ */

static bool read_template_token(TokenIds *out, const json_t *tokens, const json_t *item, Error *error) {
    Span name = string_value(json_object_get(item, "id"));
    const json_t *token = name.bytes ? json_object_getn(tokens, name.bytes, name.size) : NULL, *value;
    size_t index;
    if (!json_is_array(json_object_get(token, "ids")))
        return refuse_part(error, "post_processor", "names a special token that it does not define");
    json_array_foreach(json_object_get(token, "ids"), index, value) {
        int32_t id = 0;
        if (!read_id(value, &id, error)) return false;
        if (out->count == TEMPLATE_LIMIT) return refuse_part(error, "post_processor", "adds more than 64 tokens");
        token_ids_append(out, id);
    }
    return true;
}

static bool read_post_processor(Tokenizer *tokenizer, const json_t *object, Error *error) {
    size_t index;
    json_t *item;
    bool seen = false;
    const json_t *tokens = json_object_get(object, "special_tokens");
    json_array_foreach(json_object_get(object, "single"), index, item) {
        const json_t *special = json_object_get(item, "SpecialToken");
        if (special && !read_template_token(seen ? &tokenizer->after : &tokenizer->before, tokens, special, error)) return false;
        if (!special && (seen || !json_object_get(item, "Sequence")))
            return refuse_part(error, "post_processor", "has a template with more than one text");
        seen = seen || !special;
    }
    return seen || refuse_part(error, "post_processor", "has a template without a text (Sequence A)");
}

/* Reads ["[CLS]", 101]. */
static bool read_named_id(TokenIds *out, const json_t *pair, Error *error) {
    int32_t id = 0;
    if (!read_id(json_array_get(pair, 1), &id, error)) return false;
    token_ids_append(out, id);
    return true;
}

static bool read_post(Tokenizer *tokenizer, const json_t *object, Error *error) {
    if (is_kind(object, "ByteLevel")) return true;
    if (tokenizer->before.count + tokenizer->after.count > 0) return refuse_part(error, "post_processor", "adds tokens more than once");
    if (is_kind(object, "TemplateProcessing")) return read_post_processor(tokenizer, object, error);
    if (is_kind(object, "RobertaProcessing") || is_kind(object, "BertProcessing"))
        return read_named_id(&tokenizer->before, json_object_get(object, "cls"), error) &&
               read_named_id(&tokenizer->after, json_object_get(object, "sep"), error);
    return refuse_kind(error, "post_processor", object);
}

/* -- Decoder ------------------------------------------------------------------------------------------------------- */

static bool read_strip(Decoding *decoding, const json_t *object, Error *error) {
    json_int_t start = json_integer_value(json_object_get(object, "start"));
    if (!decoding->fused || !is_text(json_object_get(object, "content"), " ") || start < 0 || start > INT32_MAX ||
        json_integer_value(json_object_get(object, "stop")) != 0)
        return refuse_part(error, "decoder", "strips more than spaces at the start of the text");
    decoding->strip = (int)start;
    return true;
}

static bool read_decoder(Tokenizer *tokenizer, const json_t *object, Error *error) {
    Decoding *decoding = &tokenizer->decoding;
    if (is_kind(object, "Fuse")) return decoding->fused = true;
    if (is_kind(object, "Strip")) return read_strip(decoding, object, error);
    if (decoding->fused) return refuse_part(error, "decoder", "has a step after Fuse that is not Strip");
    if (is_kind(object, "ByteLevel")) return decoding->byte_level = true;
    if (is_kind(object, "ByteFallback")) return decoding->byte_fallback = true;
    if (is_kind(object, "Metaspace")) {
        decoding->metaspace_first =
            !is_text(json_object_get(object, "prepend_scheme"), "never") && flag_of(object, "add_prefix_space", true);
        return copy_member(&decoding->metaspace, json_object_get(object, "replacement"), "decoder", error);
    }
    if (!is_kind(object, "Replace")) return refuse_kind(error, "decoder", object);
    const json_t *text = json_object_get(json_object_get(object, "pattern"), "String");
    if (decoding->replaces == STEPS || decoding->byte_fallback || !json_string_length(text))
        return refuse_part(
            error, "decoder", "replaces with a regular expression, an empty string, after ByteFallback or more than 16 times");
    int index = decoding->replaces++;
    return copy_member(&decoding->from[index], text, "decoder", error) &&
           copy_member(&decoding->to[index], json_object_get(object, "content"), "decoder", error);
}

/* -- The file ------------------------------------------------------------------------------------------------------ */

/* Returns the end of a JSON string after its opening quote: the closing quote, or the end of the
 * text. */
static size_t json_string_end(const char *bytes, size_t size, size_t at) {
    while (at < size && bytes[at] != '"') at += bytes[at] == '\\' ? 2 : 1;
    return at < size ? at : size;
}

/* jansson accepts U+0000 in texts but not in keys, and vocabularies have such keys. Replaces U+0000
 * in keys by a noncharacter that the file does not contain. NULL: the file needs no change;
 * otherwise the caller frees. */
static char *without_zero_keys(const char *bytes, size_t size, char stand_in[4]) {
    static const char zero[] = "\\u0000";
    char escape[] = "\\ufdd0", upper[] = "\\uFDD0";
    if (!memmem(bytes, size, zero, 6)) return NULL;
    for (int digit = 0; digit < 10; digit++) {
        snprintf(stand_in, 4, "\xEF\xB7%c", 0x90 + digit);
        escape[5] = upper[5] = (char)('0' + digit);
        if (!memmem(bytes, size, stand_in, 3) && !memmem(bytes, size, escape, 6) && !memmem(bytes, size, upper, 6)) break;
    }
    char *copy = memory_allocate(size + 1);
    memcpy(copy, bytes, size);
    for (size_t at = 0, end, next; at < size; at = end + 1) {
        end = at;
        if (copy[at] != '"') continue;
        next = end = json_string_end(copy, size, at + 1);
        do next++;
        while (next < size && memchr(" \t\r\n", copy[next], 4));
        for (size_t i = at + 1; next < size && copy[next] == ':' && i + 6 <= end; i += copy[i] == '\\' ? 2 : 1)
            if (memcmp(copy + i, zero, 6) == 0) memcpy(copy + i, escape, 6);
    }
    return copy;
}

bool read_json(Tokenizer *tokenizer, const char *bytes, size_t size, const json_t *config, Error *error) {
    SCOPED_FREE char *changed = without_zero_keys(bytes, size, tokenizer->zero_key);
    json_auto_t *root = json_parse(changed ? changed : bytes, size, JSON_REJECT_DUPLICATES, error);
    if (!root) return error_context(error, "not valid JSON at");
    if (!json_object_get(root, "model") && json_object_get(root, "config")) return read_tekken(tokenizer, root, error);
    if (!tokenizer_add_side_tokens(root, config, error) || !side_settings_check(root, config, error)) return false;
    const json_t *decoder = json_object_get(root, "decoder");
    tokenizer->decoding.spaced = !decoder || json_is_null(decoder);
    bool good = read_steps(tokenizer, json_object_get(root, "normalizer"), "normalizers", read_normal, error) &&
                read_steps(tokenizer, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_split, error) &&
                read_model(tokenizer, json_object_get(root, "model"), error) &&
                read_added(tokenizer, json_object_get(root, "added_tokens"), error) &&
                read_steps(tokenizer, json_object_get(root, "post_processor"), "processors", read_post, error) &&
                read_steps(tokenizer, decoder, "decoders", read_decoder, error);
    if (good) decoding_build(tokenizer);
    return good;
}

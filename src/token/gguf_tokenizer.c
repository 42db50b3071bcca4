/* The tokenizer of a GGUF file, in both directions: its keys (tokenizer.ggml.*) to an equivalent
 * tokenizer.json, which read_json.c then checks like any other, and a tokenizer.json to keys. smelt
 * supports two of llama.cpp's kinds. "gpt2" is byte-level BPE with a list of merges and the name of
 * a pre-tokenizer, whose regular expressions are in llama.cpp itself and in a table here. "llama"
 * is SentencePiece's BPE, which has a score per token instead of merges: any two tokens whose text
 * together is a token merge, the best score first. A tokenizer that the other format cannot express
 * is refused. Owns nothing after it returns. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "token/json_keys_internal.h"
#include "token/token_internal.h"

/* llama.cpp's token types. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };
enum { TOKEN_LIMIT = 512, /* bytes of a token of kind "llama", for which all divisions are tried */ SPLITS = 2 };
#define META_SPACE "\xE2\x96\x81"
#define KEY "tokenizer.ggml."
#define TEMPLATE "tokenizer.chat_template"
#define TEMPLATES "tokenizer.chat_templates" /* names of additional templates, each at TEMPLATE.NAME */

/* -- Pre-tokenizers ------------------------------------------------------------------------------------------------ */

/* The pre-tokenizer that llama.cpp has under a name (llm_tokenizer_bpe in llama-vocab.cpp): divides
 * text by each pattern in turn. */
typedef struct PreTokenizer {
    const char *name;
    const char *patterns[SPLITS]; /* names for known_pattern, or "digit" */
    bool whole_words;             /* a word that is a token needs no merges */
    bool composed;                /* its tokenizers compose characters first (NFC); llama.cpp does not */
    bool begins;                  /* the default of add_bos_token */
} PreTokenizer;

/* When a file is written, the first match is used. */
static const PreTokenizer pre_tokenizers[] = {
    {"gpt-2", {"gpt2"}, false, false, false},
    {"mpt", {"gpt2"}, false, true, false},
    {"olmo", {"gpt2"}, false, true, false},
    {"phi-2", {"gpt2"}, false, false, false},
    {"smollm", {"digit", "gpt2"}, false, false, false},
    {"starcoder", {"digit", "gpt2"}, false, false, false},
    {"refact", {"digit", "gpt2"}, false, false, false},
    {"codeshell", {"digit", "gpt2"}, false, false, false},
    {"command-r", {"digit", "gpt2"}, false, true, false},
    {"llama-bpe", {"llama3"}, true, false, true},
    {"llama3", {"llama3"}, true, false, true},
    {"llama-v3", {"llama3"}, true, false, true},
    {"smaug-bpe", {"llama3"}, false, false, false},
    {"dbrx", {"llama3"}, false, false, false},
    {"qwen2", {"qwen"}, false, true, false},
    {"deepseek-r1-qwen", {"qwen"}, false, false, false},
};
enum { PRE_TOKENIZERS = sizeof pre_tokenizers / sizeof *pre_tokenizers };

static const char *pattern_of(const char *name) { return strcmp(name, "digit") ? known_pattern(name)->json : "\\p{N}"; }

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

static void put_member(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value)) memory_refused(strlen(key));
}

static const char *string_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is_true(const json_t *object, const char *key, bool usual) {
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : usual;
}

static bool is_type(const json_t *object, const char *type) { return !strcmp(string_of(object, "type"), type); }

/* Returns the step at `index` of a part of a tokenizer.json: a member of a Sequence, or else the
 * part itself. NULL after the last step. */
static const json_t *step_of(const json_t *part, const char *members, size_t index) {
    if (is_type(part, "Sequence")) return json_array_get(json_object_get(part, members), index);
    return index == 0 && !json_is_null(part) ? part : NULL;
}

/* -- Merges of scores ---------------------------------------------------------------------------------------------- */

typedef struct GgufToken {
    const char *bytes;
    size_t size;
    int type;
    double score;
} GgufToken;

typedef struct GgufTokens {
    GgufToken *items; /* by id */
    size_t count;
    TokenMap ids; /* only of tokens that merge */
} GgufTokens;

static void tokens_free(GgufTokens *tokens) {
    free(tokens->items);
    token_map_free(&tokens->ids);
}

/* Two tokens that form one. */
typedef struct GgufMerge {
    double score;
    const char *bytes;
    size_t left, size; /* bytes of the left token, and of both */
    int32_t id;
} GgufMerge;

/* Compares in transformers' order (SentencePieceExtractor): the better score first, then the longer
 * left token. */
static int merge_compare(const void *left, const void *right) {
    const GgufMerge *a = left, *b = right;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    if (a->left != b->left) return a->left < b->left ? 1 : -1;
    return a->size != b->size ? (a->size < b->size ? 1 : -1) : (a->id > b->id) - (a->id < b->id);
}

/* Lists every division of a token into two tokens. */
static bool list_merges(const GgufTokens *tokens, GgufMerge **merges, size_t *count, Error *error) {
    *merges = NULL;
    *count = 0;
    for (size_t id = 0; id < tokens->count; id++) {
        const GgufToken *token = &tokens->items[id];
        if (token->type != TYPE_NORMAL) continue;
        if (token->size > TOKEN_LIMIT)
            return error_set(error, ERROR_DATA, "token %zu has %zu bytes; the limit is %d", id, token->size, TOKEN_LIMIT);
        for (size_t left = 1; left < token->size; left++)
            if (token_map_get(&tokens->ids, token->bytes, left) != TOKEN_NONE &&
                token_map_get(&tokens->ids, token->bytes + left, token->size - left) != TOKEN_NONE)
                array_append(*merges, *count, (GgufMerge){token->score, token->bytes, left, token->size, (int32_t)id});
    }
    if (*count) qsort(*merges, *count, sizeof **merges, merge_compare);
    return true;
}

/* -- From keys to a tokenizer.json --------------------------------------------------------------------------------- */

typedef struct GgufSource {
    const Gguf *file;
    GgufTokens tokens;
    Error *error;
} GgufSource;

static const GgufValue *gguf_value(const Gguf *file, const char *key) {
    char full[80];
    snprintf(full, sizeof full, KEY "%s", key);
    return gguf_find(file, full);
}

static bool boolean_of(const Gguf *file, const char *key, bool usual) {
    bool given = usual;
    gguf_boolean(gguf_value(file, key), &given);
    return given;
}

static bool text_is(const GgufValue *value, const char *wanted) {
    GgufText text;
    return gguf_text(value, &text) && text.size == strlen(wanted) && !memcmp(text.bytes, wanted, text.size);
}

static bool read_gguf_tokens(GgufSource *source) {
    const GgufValue *list = gguf_value(source->file, "tokens"), *types = gguf_value(source->file, "token_type"),
                    *scores = gguf_value(source->file, "scores");
    GgufTokens *tokens = &source->tokens;
    GgufText text;
    size_t at = 0;
    if (!list || !list->array || list->kind != GGUF_TEXT || list->count == 0 || list->count > MAXIMUM_ID)
        return error_set(source->error, ERROR_DATA, KEY "tokens is not a list of 1 to %d strings", MAXIMUM_ID);
    while (gguf_next_text(list, &at, &text)) {
        double type = TYPE_NORMAL, score = 0;
        if (types && !gguf_item(types, tokens->count, &type))
            return error_set(source->error, ERROR_DATA, KEY "token_type has no number for token %zu", tokens->count);
        if (scores && !gguf_item(scores, tokens->count, &score))
            return error_set(source->error, ERROR_DATA, KEY "scores has no number for token %zu", tokens->count);
        if (!(type >= TYPE_NORMAL && type <= TYPE_BYTE))
            return error_set(source->error, ERROR_DATA, "token %zu has type %g, which llama.cpp does not define", tokens->count, type);
        array_append(tokens->items, tokens->count, (GgufToken){text.bytes, text.size, (int)type, isfinite(score) ? score : 0});
    }
    return true;
}

/* Returns the token whose id a key gives; NULL: the key gives none. */
static const GgufToken *token_of(const GgufSource *source, const char *key, int64_t *id) {
    bool given = gguf_integer(gguf_value(source->file, key), id) && *id >= 0 && (uint64_t)*id < source->tokens.count;
    return given ? &source->tokens.items[*id] : NULL;
}

static json_t *text_json(const GgufSource *source, size_t id) {
    json_t *text = json_stringn(source->tokens.items[id].bytes, source->tokens.items[id].size);
    if (!text) error_set(source->error, ERROR_DATA, "token %zu is not UTF-8", id);
    return text;
}

/* Special tokens after all ordinary tokens become added tokens only, as `tokenizers` writes them.
 * Unused tokens after all other tokens are padding. An unused token before the end becomes a word
 * without merges, because `tokenizers` numbers added tokens after the words without gaps. */
static bool put_vocabulary(const GgufSource *source, json_t *vocabulary, json_t *added) {
    const GgufTokens *tokens = &source->tokens;
    size_t ordinary = 0, unused = 0;
    for (size_t id = 0; id < tokens->count; id++) {
        if (tokens->items[id].type == TYPE_UNUSED) unused = id + 1;
        else if (unused == id && id > 0) ordinary = id;
        if (tokens->items[id].type == TYPE_NORMAL || tokens->items[id].type == TYPE_BYTE) ordinary = id + 1;
    }
    for (size_t id = 0; id < tokens->count; id++) {
        const GgufToken *token = &tokens->items[id];
        bool extra = token->type == TYPE_CONTROL || token->type == TYPE_USER || token->type == TYPE_UNKNOWN;
        if (token->type == TYPE_UNUSED && id >= ordinary) continue;
        json_t *text = text_json(source, id);
        if (!text) return false;
        if (id < ordinary || !extra) {
            bool twice = json_object_getn(vocabulary, token->bytes, token->size) != NULL;
            json_object_setn_new(vocabulary, token->bytes, token->size, json_integer((json_int_t)id));
            if (twice) json_decref(text);
            if (twice) return error_set(source->error, ERROR_DATA, "token %zu is a duplicate", id);
        }
        if (extra)
            json_array_append_new(
                added, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content", text, "single_word", 0, "lstrip",
                           0, "rstrip", 0, "normalized", 0, "special", token->type != TYPE_USER));
        json_decref(text);
    }
    return true;
}

static json_t *byte_level_json(void) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0);
}

static const PreTokenizer *find_pre_tokenizer(const GgufSource *source) {
    const GgufValue *name = gguf_value(source->file, "pre");
    GgufText text = {"", 0};
    for (int i = 0; i < PRE_TOKENIZERS; i++)
        if (text_is(name, pre_tokenizers[i].name)) return &pre_tokenizers[i];
    gguf_text(name, &text);
    error_set(source->error, ERROR_DATA, "its pre-tokenizer '%.*s' is not supported", (int)(text.size < 64 ? text.size : 64), text.bytes);
    return NULL;
}

/* Without merges every byte is a token, so no pattern is needed. */
static json_t *gguf_pre_tokenizer_json(const PreTokenizer *pre, bool merges) {
    json_t *steps = json_array();
    if (!merges) {
        json_decref(steps);
        return byte_level_json();
    }
    for (int i = 0; i < SPLITS && pre->patterns[i]; i++)
        json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                         pattern_of(pre->patterns[i]), "behavior", "Isolated", "invert", 0));
    json_array_append_new(steps, byte_level_json());
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
}

static bool put_listed_merges(const GgufSource *source, json_t *merges) {
    const GgufValue *list = gguf_value(source->file, "merges");
    GgufText text;
    size_t at = 0;
    if (!list || !list->array || list->kind != GGUF_TEXT)
        return error_set(source->error, ERROR_DATA, KEY "merges is not a list of strings");
    while (gguf_next_text(list, &at, &text))
        if (json_array_append_new(merges, json_stringn(text.bytes, text.size)))
            return error_set(source->error, ERROR_DATA, "merge %zu is not UTF-8", json_array_size(merges));
    return true;
}

/* Fills the ids of the tokens that merges make. */
static void map_normal_tokens(GgufTokens *tokens) {
    for (size_t id = 0; id < tokens->count; id++)
        if (tokens->items[id].type == TYPE_NORMAL)
            token_map_put(&tokens->ids, tokens->items[id].bytes, tokens->items[id].size, (int32_t)id);
}

static bool put_scored_merges(GgufSource *source, json_t *merges) {
    GgufTokens *tokens = &source->tokens;
    SCOPED_FREE GgufMerge *list = NULL;
    size_t count;
    map_normal_tokens(tokens);
    if (!list_merges(tokens, &list, &count, source->error)) return false;
    for (size_t i = 0; i < count; i++)
        json_array_append_new(merges,
            json_pack("[s#, s#]", list[i].bytes, (int)list[i].left, list[i].bytes + list[i].left, (int)(list[i].size - list[i].left)));
    return true;
}

/* Returns {"type": "TemplateProcessing"} with the tokens around a text; null if there are none. */
static json_t *template_json(const GgufSource *source, bool begins) {
    static const char *const ids[] = {"bos_token_id", "eos_token_id"};
    bool put[] = {boolean_of(source->file, "add_bos_token", begins), boolean_of(source->file, "add_eos_token", false)}, any = false;
    json_t *single = json_pack("[{s:{s:s, s:i}}]", "Sequence", "id", "A", "type_id", 0), *special = json_object();
    for (int i = 0; i < 2; i++) {
        int64_t id;
        const GgufToken *token = put[i] ? token_of(source, ids[i], &id) : NULL;
        json_t *text = token ? json_stringn(token->bytes, token->size) : NULL;
        if (!text) continue;
        json_t *item = json_pack("{s:{s:O, s:i}}", "SpecialToken", "id", text, "type_id", 0);
        if (i == 0) json_array_insert_new(single, 0, item);
        else json_array_append_new(single, item);
        json_object_setn_new(
            special, token->bytes, token->size, json_pack("{s:O, s:[I], s:[O]}", "id", text, "ids", (json_int_t)id, "tokens", text));
        json_decref(text);
        any = true;
    }
    json_t *post =
        any ? json_pack("{s:s, s:O, s:[], s:O}", "type", "TemplateProcessing", "single", single, "pair", "special_tokens", special)
            : json_null();
    json_decref(single);
    json_decref(special);
    return post;
}

/* Returns the fields of a tokenizer.json in their usual order; takes over the values. */
static json_t *assemble(json_t *added, json_t *normalizer, json_t *pre, json_t *post, json_t *decoder, json_t *model) {
    return json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding", "added_tokens", added,
        "normalizer", normalizer, "pre_tokenizer", pre, "post_processor", post, "decoder", decoder, "model", model);
}

static json_t *model_json(json_t *unknown, bool scored, bool whole_words, json_t *vocabulary, json_t *merges) {
    return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type", "BPE", "dropout", "unk_token", unknown,
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", scored, "byte_fallback", scored, "ignore_merges", whole_words,
        "vocab", vocabulary, "merges", merges);
}

static json_t *byte_level_tokenizer(GgufSource *source, json_t *added, json_t *vocabulary, json_t *merges) {
    const PreTokenizer *pre = find_pre_tokenizer(source);
    if (!pre || !put_listed_merges(source, merges)) return NULL;
    bool merge = json_array_size(merges) > 0;
    return assemble(json_incref(added), merge && pre->composed ? json_pack("{s:s}", "type", "NFC") : json_null(),
        gguf_pre_tokenizer_json(pre, merge), template_json(source, pre->begins), byte_level_json(),
        model_json(json_null(), false, merge && pre->whole_words, vocabulary, merges));
}

static json_t *gguf_replace_json(const char *from, const char *to) {
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content", to);
}

static json_t *scored_tokenizer(GgufSource *source, json_t *added, json_t *vocabulary, json_t *merges) {
    bool prefix = boolean_of(source->file, "add_space_prefix", true);
    int64_t id;
    const GgufToken *unknown = token_of(source, "unknown_token_id", &id);
    if (boolean_of(source->file, "remove_extra_whitespaces", false) || gguf_value(source->file, "precompiled_charsmap")) {
        error_set(source->error, ERROR_DATA, "it normalizes text before splitting it, which is not supported");
        return NULL;
    }
    if (!put_scored_merges(source, merges)) return NULL;
    json_t *normals = json_pack("[o]", gguf_replace_json(" ", META_SPACE));
    if (prefix) json_array_insert_new(normals, 0, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", META_SPACE));
    json_t *decoders = json_pack("[o, {s:s}, {s:s}]", gguf_replace_json(META_SPACE, " "), "type", "ByteFallback", "type", "Fuse");
    if (prefix) json_array_append_new(decoders, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return assemble(json_incref(added), json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", normals), json_null(),
        template_json(source, true), json_pack("{s:s, s:o}", "type", "Sequence", "decoders", decoders),
        model_json(unknown ? json_stringn(unknown->bytes, unknown->size) : json_null(), true, false, vocabulary, merges));
}

static json_t *tokenizer_json(GgufSource *source) {
    const GgufValue *model = gguf_value(source->file, "model");
    bool listed = text_is(model, "gpt2");
    json_auto_t *added = json_array(), *vocabulary = json_object(), *merges = json_array();
    if (!listed && !text_is(model, "llama")) {
        GgufText text = {"", 0};
        gguf_text(model, &text);
        error_set(source->error, ERROR_DATA, "its tokenizer model '%.*s' is not supported; smelt reads gpt2 and llama",
            (int)(text.size < 64 ? text.size : 64), text.bytes);
        return NULL;
    }
    if (!read_gguf_tokens(source) || !put_vocabulary(source, vocabulary, added)) return NULL;
    return (listed ? byte_level_tokenizer : scored_tokenizer)(source, added, vocabulary, merges);
}

static void put_template(const Gguf *file, const char *key, const char *name, json_t *list) {
    GgufText text;
    json_t *template = gguf_text(gguf_find(file, key), &text) ? json_stringn(text.bytes, text.size) : NULL;
    if (template) json_array_append_new(list, json_pack("{s:s, s:o}", "name", name, "template", template));
}

/* Adds the chat templates: the default one, and others by name. */
static void put_templates(const Gguf *file, json_t *config) {
    const GgufValue *names = gguf_find(file, TEMPLATES);
    json_auto_t *list = json_array();
    GgufText name;
    size_t at = 0;
    put_template(file, TEMPLATE, "default", list);
    while (names && names->array && names->kind == GGUF_TEXT && gguf_next_text(names, &at, &name)) {
        SCOPED_FREE char *called = memory_format("%.*s", (int)name.size, name.bytes), *key = memory_format(TEMPLATE ".%s", called);
        put_template(file, key, called, list);
    }
    if (json_array_size(list) > 1) json_object_set(config, "chat_template", list);
    else if (json_array_size(list)) json_object_set(config, "chat_template", json_object_get(json_array_get(list, 0), "template"));
}

/* Returns the tokenizer_config.json: the special tokens and the chat templates. */
static json_t *config_json(GgufSource *source) {
    static const char *const tokens[][2] = {{"bos_token", "bos_token_id"}, {"eos_token", "eos_token_id"}, {"unk_token", "unknown_token_id"},
        {"pad_token", "padding_token_id"}, {"sep_token", "seperator_token_id"}, {"cls_token", "cls_token_id"},
        {"mask_token", "mask_token_id"}};
    int64_t id;
    if (!read_gguf_tokens(source)) return NULL;
    json_t *config = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const GgufToken *token = token_of(source, tokens[i][1], &id);
        json_t *text = token ? json_stringn(token->bytes, token->size) : NULL;
        if (text) put_member(config, tokens[i][0], text);
    }
    put_templates(source->file, config);
    return config;
}

bool gguf_has_tokenizer(const char *path) {
    SCOPED(gguf_close) Gguf file = {0};
    Error ignored;
    return gguf_is_file(path) && gguf_open(&file, path, &ignored) && gguf_value(&file, "tokens");
}

json_t *gguf_tokenizer(const char *path, bool config, Error *error) {
    SCOPED(gguf_close) Gguf file = {0};
    if (!gguf_open(&file, path, error)) return error_recode(error, ERROR_DATA), NULL;
    GgufSource source = {.file = &file, .error = error};
    json_t *content = (config ? config_json : tokenizer_json)(&source);
    tokens_free(&source.tokens);
    return content;
}

/* -- From a tokenizer.json to keys --------------------------------------------------------------------------------- */

typedef struct GgufTarget {
    GgufWriter *writer;
    const json_t *tokenizer, *config, *origin;
    GgufTokens tokens;
    char *padding; /* texts of tokens that only pad the rows of the table */
    Error *error;
} GgufTarget;

static bool refuse_target(const GgufTarget *target, const char *what) {
    return error_set(target->error, ERROR_USAGE, "the tokenizer %s, which llama.cpp does not support: set tokenizer=none to omit it", what);
}

static bool set_token(const GgufTarget *target, const json_t *id, const char *bytes, size_t size, int type) {
    json_int_t at = json_is_integer(id) ? json_integer_value(id) : -1;
    if (at < 0 || (size_t)at >= target->tokens.count)
        return error_set(target->error, ERROR_USAGE,
            "the token '%.40s' has no row in the model's vocabulary of %zu: use the tokenizer of the model", bytes, target->tokens.count);
    target->tokens.items[at] = (GgufToken){bytes, size, type, 0};
    return true;
}

static int type_of_word(const GgufTarget *target, const char *text, size_t size, bool scored) {
    unsigned byte;
    int used = 0;
    if (scored && size == 6 && sscanf(text, "<0x%2X>%n", &byte, &used) == 1 && used == 6) return TYPE_BYTE;
    return scored && !strcmp(text, string_of(json_object_get(target->tokenizer, "model"), "unk_token")) ? TYPE_UNKNOWN : TYPE_NORMAL;
}

/* Collects the tokens by id; rows without a token are padded as in llama.cpp's converter. */
static bool collect_tokens(GgufTarget *target, int64_t rows, bool scored) {
    enum { PADDING_SIZE = 20 };
    const char *text;
    size_t size, index;
    json_t *value;
    target->tokens.count = (size_t)rows;
    target->tokens.items = memory_allocate((size_t)rows * sizeof *target->tokens.items);
    target->padding = memory_allocate((size_t)rows * PADDING_SIZE);
    for (int64_t i = 0; i < rows; i++) {
        char *name = target->padding + i * PADDING_SIZE;
        int length = snprintf(name, PADDING_SIZE, "[PAD%lld]", (long long)i);
        target->tokens.items[i] = (GgufToken){name, (size_t)length, TYPE_UNUSED, 0};
    }
    json_object_keylen_foreach(json_object_get(json_object_get(target->tokenizer, "model"), "vocab"), text, size, value) {
        if (!set_token(target, value, text, size, type_of_word(target, text, size, scored))) return false;
    }
    json_array_foreach(json_object_get(target->tokenizer, "added_tokens"), index, value) {
        const json_t *content = json_object_get(value, "content");
        bool unknown = scored && !strcmp(string_of(value, "content"), string_of(json_object_get(target->tokenizer, "model"), "unk_token"));
        int type = unknown ? TYPE_UNKNOWN : is_true(value, "special", false) ? TYPE_CONTROL : TYPE_USER;
        if (!set_token(target, json_object_get(value, "id"), string_of(value, "content"), json_string_length(content), type)) return false;
    }
    return true;
}

/* Appends a pattern of a pre-tokenizer; returns false if there are too many. */
static bool add_pattern(const char **found, int *count, const char *pattern) {
    if (*count == SPLITS) return false;
    found[(*count)++] = pattern;
    return true;
}

/* Finds the patterns by which a pre-tokenizer divides text; returns false if it does anything
 * else. */
static bool find_patterns(const json_t *part, const char **found, int *count) {
    const json_t *step;
    bool level = false;
    for (size_t i = 0; (step = step_of(part, "pretokenizers", i)) != NULL; i++) {
        const char *regex = string_of(json_object_get(step, "pattern"), "Regex");
        bool good;
        if (is_type(step, "ByteLevel"))
            good = (level = true, !is_true(step, "add_prefix_space", true)) &&
                   (!is_true(step, "use_regex", true) || add_pattern(found, count, pattern_of("gpt2")));
        else if (is_type(step, "Digits"))
            good = is_true(step, "individual_digits", false) && add_pattern(found, count, pattern_of("digit"));
        else
            good = is_type(step, "Split") && *regex && !strcmp(string_of(step, "behavior"), "Isolated") &&
                   !is_true(step, "invert", false) && add_pattern(found, count, regex);
        if (!good) return false;
    }
    return level;
}

static bool patterns_are(const PreTokenizer *pre, const char *const *found, int count) {
    for (int i = 0; i < SPLITS; i++) {
        const char *pattern = pre->patterns[i] ? pattern_of(pre->patterns[i]) : NULL;
        if ((i < count) != (pattern != NULL) || (pattern && strcmp(pattern, found[i]))) return false;
    }
    return true;
}

/* Chooses the pre-tokenizer's name. llama.cpp never composes characters, so `composed` only selects
 * between names with equal patterns. */
static const PreTokenizer *choose_pre_tokenizer(const GgufTarget *target, bool composed) {
    const json_t *model = json_object_get(target->tokenizer, "model");
    const char *found[SPLITS];
    int count = 0;
    bool merges = json_array_size(json_object_get(model, "merges")) > 0, whole = is_true(model, "ignore_merges", false);
    const PreTokenizer *chosen = merges ? NULL : pre_tokenizers; /* without merges the division does not matter */
    bool known = find_patterns(json_object_get(target->tokenizer, "pre_tokenizer"), found, &count);
    for (int i = 0; i < PRE_TOKENIZERS && known && !chosen; i++) {
        const PreTokenizer *pre = &pre_tokenizers[i];
        if (patterns_are(pre, found, count) && pre->whole_words == whole && pre->composed == composed) chosen = pre;
    }
    if (!chosen) refuse_target(target, "divides text in a way of its own");
    return chosen;
}

static bool put_byte_level(GgufTarget *target) {
    const json_t *normalizer = json_object_get(target->tokenizer, "normalizer"), *merge;
    json_t *merges = json_object_get(json_object_get(target->tokenizer, "model"), "merges");
    bool composed = is_type(normalizer, "NFC");
    size_t index;
    if (normalizer && !json_is_null(normalizer) && !composed) return refuse_target(target, "changes text before it is divided");
    const PreTokenizer *pre = choose_pre_tokenizer(target, composed);
    if (!pre) return false;
    gguf_put_text(target->writer, KEY "model", "gpt2", strlen("gpt2"));
    gguf_put_text(target->writer, KEY "pre", pre->name, strlen(pre->name));
    gguf_put_array(target->writer, KEY "merges", GGUF_TEXT, json_array_size(merges));
    json_array_foreach(merges, index, merge) {
        const char *left = json_string_value(json_array_get(merge, 0)), *right = json_string_value(json_array_get(merge, 1));
        SCOPED_FREE char *pair = left && right ? memory_format("%s %s", left, right) : NULL;
        const char *text = pair ? pair : json_string_value(merge);
        if (!text || strchr(text, ' ') != strrchr(text, ' ')) return refuse_target(target, "merges tokens that contain a space");
        gguf_append_text(target->writer, text, strlen(text));
    }
    return true;
}

/* Returns whether the only change to text is that spaces become U+2581; *prefix: one U+2581 is put
 * before the text. */
static bool marks_spaces(const json_t *tokenizer, bool *prefix) {
    const json_t *normalizer = json_object_get(tokenizer, "normalizer"), *pre = json_object_get(tokenizer, "pre_tokenizer"), *step;
    bool replaces = false;
    *prefix = false;
    for (size_t i = 0; (step = step_of(normalizer, "normalizers", i)) != NULL; i++) {
        if (is_type(step, "Prepend") && i == 0 && !strcmp(string_of(step, "prepend"), META_SPACE)) *prefix = true;
        else if (is_type(step, "Replace") && !strcmp(string_of(json_object_get(step, "pattern"), "String"), " ") &&
                 !strcmp(string_of(step, "content"), META_SPACE))
            replaces = true;
        else return false;
    }
    if (replaces) /* then no space is left for the pre-tokenizer to divide at */
        return !pre || json_is_null(pre) || (is_type(pre, "Split") && !strcmp(string_of(json_object_get(pre, "pattern"), "String"), " "));
    *prefix = *prefix || strcmp(string_of(pre, "prepend_scheme"), "never") != 0;
    return is_type(pre, "Metaspace") && !strcmp(string_of(pre, "replacement"), META_SPACE) && !is_true(pre, "split", true);
}

/* Writes the text that a merge forms to `space`; returns its bytes. */
static size_t merged_text(const json_t *merge, char space[2 * TOKEN_LIMIT + 2]) {
    const char *left = json_string_value(json_array_get(merge, 0)), *right = json_string_value(json_array_get(merge, 1));
    const char *both = json_string_value(merge), *blank = both ? strchr(both, ' ') : NULL;
    size_t size = blank ? (size_t)(blank - both) : left ? strlen(left) : 0;
    if (blank) left = both, right = blank + 1;
    if (!left || !right || size > TOKEN_LIMIT || strlen(right) > TOKEN_LIMIT) return 0;
    return (size_t)snprintf(space, 2 * TOKEN_LIMIT + 2, "%.*s%s", (int)size, left, right);
}

/* Gives each token a score by the place of its first merge in the list: -1, -2, and so on. The
 * merges that these scores imply must be the merges of the list, except for the order among merges
 * that form the same token. */
static bool score_tokens(GgufTarget *target) {
    GgufTokens *tokens = &target->tokens;
    json_t *list = json_object_get(json_object_get(target->tokenizer, "model"), "merges"), *merge;
    SCOPED_FREE GgufMerge *merges = NULL;
    size_t index, count;
    double score = 0;
    char text[2 * TOKEN_LIMIT + 2];
    map_normal_tokens(tokens);
    json_array_foreach(list, index, merge) {
        int32_t id = token_map_get(&tokens->ids, text, merged_text(merge, text));
        if (id != TOKEN_NONE && tokens->items[id].score == 0) tokens->items[id].score = --score;
    }
    if (!list_merges(tokens, &merges, &count, target->error)) return false;
    bool same = count == json_array_size(list);
    for (size_t i = 0; i < count && same; i++)
        same = merged_text(json_array_get(list, i), text) == merges[i].size && !memcmp(text, merges[i].bytes, merges[i].size);
    return same || refuse_target(target, "has merges that do not correspond to token scores");
}

static bool put_scored(GgufTarget *target) {
    const json_t *model = json_object_get(target->tokenizer, "model");
    bool prefix;
    if (!marks_spaces(target->tokenizer, &prefix)) return refuse_target(target, "normalizes or splits text in an unsupported way");
    if (!is_true(model, "byte_fallback", false) || is_true(model, "ignore_merges", false))
        return refuse_target(target, "has no byte tokens, or sets ignore_merges");
    if (!score_tokens(target)) return false;
    gguf_put_text(target->writer, KEY "model", "llama", strlen("llama"));
    gguf_put_text(target->writer, KEY "pre", "default", strlen("default"));
    gguf_put_boolean(target->writer, KEY "add_space_prefix", prefix);
    gguf_put_array(target->writer, KEY "scores", GGUF_F32, target->tokens.count);
    for (size_t i = 0; i < target->tokens.count; i++) gguf_append_real(target->writer, target->tokens.items[i].score);
    return true;
}

/* Returns the id of a special token: by its text in tokenizer_config.json, or else by its id in
 * config.json; -1: none. */
static int64_t special_id(const GgufTarget *target, const char *text_name, const char *id_name) {
    const json_t *token = json_object_get(target->config, text_name), *id = json_object_get(target->origin, id_name);
    const char *text = json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    for (size_t i = 0; text && i < target->tokens.count; i++)
        if (target->tokens.items[i].size == strlen(text) && !memcmp(target->tokens.items[i].bytes, text, strlen(text))) return (int64_t)i;
    if (json_is_array(id)) id = json_array_get(id, 0);
    return json_is_integer(id) && (size_t)json_integer_value(id) < target->tokens.count ? json_integer_value(id) : -1;
}

/* Reads the tokens that a template puts before and after a text; llama.cpp supports one each. -1:
 * none. */
static bool read_gguf_template(const GgufTarget *target, int64_t around[2]) {
    const json_t *step, *item;
    size_t index;
    around[0] = around[1] = -1;
    for (size_t i = 0; (step = step_of(json_object_get(target->tokenizer, "post_processor"), "processors", i)) != NULL; i++) {
        bool seen = false;
        if (is_type(step, "ByteLevel")) continue;
        if (!is_type(step, "TemplateProcessing")) return refuse_target(target, "has a post_processor that is not a template");
        json_array_foreach(json_object_get(step, "single"), index, item) {
            const char *name = string_of(json_object_get(item, "SpecialToken"), "id");
            const json_t *ids = json_object_get(json_object_get(json_object_get(step, "special_tokens"), name), "ids");
            seen = seen || json_object_get(item, "Sequence");
            if (json_object_get(item, "Sequence")) continue;
            if (around[seen] >= 0 || json_array_size(ids) != 1) return refuse_target(target, "adds several tokens before or after a text");
            around[seen] = json_integer_value(json_array_get(ids, 0));
        }
    }
    return true;
}

/* Writes additional tokens that end a text: a GGUF file has room for two beside the first. */
static void put_further_ends(const GgufTarget *target, int64_t written) {
    static const char *const keys[] = {KEY "eot_token_id", KEY "eom_token_id"};
    const json_t *ends = json_object_get(target->origin, "eos_token_id");
    size_t used = 0, left = 0, count = json_is_array(ends) ? json_array_size(ends) : json_is_integer(ends);
    for (size_t i = 0; i < count; i++) {
        int64_t id = json_integer_value(json_is_array(ends) ? json_array_get(ends, i) : ends);
        if (id == written || id < 0 || (size_t)id >= target->tokens.count) continue;
        if (used < 2) gguf_put_integer(target->writer, keys[used++], GGUF_U32, id);
        else left++;
    }
    if (left) log_warn("omitting %zu end-of-text tokens, because a GGUF file can hold only three", left);
}

/* The keys are those of gguf-py's constants.py, except cls_token_id, which only its older versions
 * have. */
static bool put_special(const GgufTarget *target) {
    enum { ENDS = 1, PUT = 2, NAMES = 7 }; /* PUT: the first two may be put around a text */
    static const struct {
        const char *text, *id, *key;
    } names[NAMES] = {{"bos_token", "bos_token_id", KEY "bos_token_id"}, {"eos_token", "eos_token_id", KEY "eos_token_id"},
        {"unk_token", "unk_token_id", KEY "unknown_token_id"}, {"pad_token", "pad_token_id", KEY "padding_token_id"},
        {"sep_token", "sep_token_id", KEY "seperator_token_id"}, {"cls_token", "cls_token_id", KEY "cls_token_id"},
        {"mask_token", "mask_token_id", KEY "mask_token_id"}};
    static const char *const adds[] = {KEY "add_bos_token", KEY "add_eos_token"};
    int64_t around[2];
    if (!read_gguf_template(target, around)) return false;
    for (int i = 0; i < NAMES; i++) {
        int64_t id = special_id(target, names[i].text, names[i].id);
        if (i < PUT && id < 0) id = around[i];
        if (i < PUT && around[i] >= 0 && around[i] != id)
            return refuse_target(target, "adds a token around a text that is neither its bos_token nor its eos_token");
        if (i == ENDS && id < 0) return refuse_target(target, "has no end-of-text token, so llama.cpp would use token 11");
        if (id >= 0) gguf_put_integer(target->writer, names[i].key, GGUF_U32, id);
        if (i < PUT) gguf_put_boolean(target->writer, adds[i], around[i] >= 0);
        if (i == ENDS) put_further_ends(target, id);
    }
    return true;
}

static void put_gguf_tokens(const GgufTarget *target) {
    const GgufTokens *tokens = &target->tokens;
    gguf_put_array(target->writer, KEY "tokens", GGUF_TEXT, tokens->count);
    for (size_t i = 0; i < tokens->count; i++) gguf_append_text(target->writer, tokens->items[i].bytes, tokens->items[i].size);
    gguf_put_array(target->writer, KEY "token_type", GGUF_I32, tokens->count);
    for (size_t i = 0; i < tokens->count; i++) gguf_append_integer(target->writer, GGUF_I32, tokens->items[i].type);
}

/* Writes the chat template: one text, or several by name, the usual one being "default". */
static void put_chat_templates(const GgufTarget *target) {
    json_t *given = json_object_get(target->config, "chat_template"), *item;
    json_auto_t *names = json_array();
    size_t index;
    if (json_is_string(given)) gguf_put_text(target->writer, TEMPLATE, json_string_value(given), json_string_length(given));
    json_array_foreach(given, index, item) {
        const json_t *text = json_object_get(item, "template"), *name = json_object_get(item, "name");
        if (!json_is_string(text) || !json_is_string(name)) continue;
        bool usual = !strcmp(json_string_value(name), "default");
        SCOPED_FREE char *key = usual ? memory_copy_string(TEMPLATE) : memory_format(TEMPLATE ".%s", json_string_value(name));
        gguf_put_text(target->writer, key, json_string_value(text), json_string_length(text));
        if (!usual) json_array_append(names, (json_t *)name);
    }
    if (!json_array_size(names)) return;
    gguf_put_array(target->writer, TEMPLATES, GGUF_TEXT, json_array_size(names));
    json_array_foreach(names, index, item) gguf_append_text(target->writer, json_string_value(item), json_string_length(item));
}

/* llama.cpp matches added tokens literally: it keeps the spaces beside them, and finds them within
 * words. */
static void warn_of_flags(const GgufTarget *target) {
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    const json_t *list = json_object_get(target->tokenizer, "added_tokens"), *token, *first = NULL;
    size_t index, count = 0;
    json_array_foreach(list, index, token) {
        bool flagged = false;
        for (int i = 0; i < 3; i++) flagged = flagged || is_true(token, flags[i], false);
        if (flagged && !count++) first = token;
    }
    if (count)
        log_warn("%zu added token%s ha%s lstrip, rstrip or single_word, which a GGUF file cannot hold; the first is '%.40s'. llama.cpp may "
                 "split text next to them differently",
            count, plural((int64_t)count), count == 1 ? "s" : "ve", string_of(first, "content"));
}

bool gguf_put_tokenizer(
    GgufWriter *writer, const json_t *tokenizer, const json_t *config, const json_t *origin, int64_t rows, Error *error) {
    GgufTarget target = {.writer = writer, .tokenizer = tokenizer, .config = config, .origin = origin, .error = error};
    bool level = false;
    const json_t *pre = json_object_get(tokenizer, "pre_tokenizer"), *step;
    if (!json_is_object(json_object_get(json_object_get(tokenizer, "model"), "vocab"))) return refuse_target(&target, "is not BPE");
    for (size_t i = 0; (step = step_of(pre, "pretokenizers", i)) != NULL; i++) level = level || is_type(step, "ByteLevel");
    bool good = collect_tokens(&target, rows, !level) && (level ? put_byte_level : put_scored)(&target) && put_special(&target);
    if (good) put_gguf_tokens(&target);
    if (good) put_chat_templates(&target);
    if (good) warn_of_flags(&target);
    tokens_free(&target.tokens);
    free(target.padding);
    return good;
}

/* Builds the tokenizer.json that transformers makes of a SentencePiece model with side files. Owns
 * nothing after it returns but the result. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/strings.h"
#include "token/json_keys_internal.h"
#include "token/sentencepiece_internal.h"

#define META_SPACE "\xE2\x96\x81"
#define SAVE_AGAIN ": load the folder with transformers and save the tokenizer, which writes a tokenizer.json"

/* A model that becomes a tokenizer.json. `llama`: by the class LlamaTokenizer, which uses only the
 * pieces of the model; otherwise by TokenizersBackend, which also uses its settings. */
typedef struct Making {
    const SentencePieceModel *model;
    json_t *config; /* receives the names of tokens that the class adds */
    bool llama, legacy, prefix;
    TokenMap ids;
} Making;

/* Chooses the class as AutoTokenizer.from_pretrained of transformers 5.24 does. */
static bool choose_class(Making *making, const char *model_type, Error *error) {
    static const char *const backend[] = {"mistral", "mixtral", "phi3", "phimoe"};
    const json_t *given = json_object_get(making->config, "tokenizer_class");
    const char *class = json_is_string(given) ? json_string_value(given) : "TokenizersBackend";
    bool llama = starts_with(class, "LlamaTokenizer"), known = !*model_type || !strcmp(model_type, "llama");
    making->llama = llama && known;
    for (size_t i = 0; i < sizeof backend / sizeof *backend; i++) known = known || !strcmp(model_type, backend[i]);
    if (!llama && strcmp(class, "PreTrainedTokenizerFast") != 0 && strcmp(class, "TokenizersBackend") != 0)
        return error_set(error, ERROR_DATA, "its tokenizer_class '%.80s' is not supported for a SentencePiece model" SAVE_AGAIN, class);
    return known || error_set(error, ERROR_DATA, "the tokenizer class that transformers uses for model_type '%.80s' is unknown" SAVE_AGAIN,
                        model_type);
}

static bool check_sentencepiece(const Making *making, Error *error) {
    const SentencePieceModel *model = making->model;
    const char *has = NULL;
    if (model->type != MODEL_BPE) has = "is not a BPE model";
    else if (!model->byte_fallback) has = "has no byte tokens";
    else if (!model->whitespace.escape || model->whitespace.suffix || model->denormalizes) has = "has an unsupported normalizer";
    else if (!making->llama && model->charsmap.size) has = "has a precompiled_charsmap";
    else if (!making->llama && model->whitespace.squeeze) has = "removes extra white space";
    for (size_t i = 0; i < model->count && !has && !making->llama; i++)
        if (model->pieces[i].type == PIECE_USER_DEFINED) has = "has user-defined tokens";
    return !has || error_set(error, ERROR_DATA, "it %s, which is not supported together with side files" SAVE_AGAIN, has);
}

/* TokenizersBackend matches added tokens in the raw text, so each part between them gets its own
 * U+2581. */
static void match_raw(Making *making) {
    const char *key;
    json_t *token, *decoder = json_deep_copy(json_object_get(making->config, "added_tokens_decoder"));
    json_object_foreach(decoder, key, token) json_object_set_new(token, "normalized", json_false());
    if (decoder) json_object_set_new(making->config, "added_tokens_decoder", decoder);
}

/* Gives a name without a value in the configuration the class's value. */
static void name_token(Making *making, const char *name, Span text) {
    if (!json_object_get(making->config, name)) json_object_set_new(making->config, name, json_stringn(text.bytes, text.size));
}

static void name_tokens(Making *making) {
    const SentencePieceModel *model = making->model;
    const Span begin = {"<s>", 3}, end = {"</s>", 4}, unknown = {"<unk>", 5};
    if (making->llama || model->begins) name_token(making, "bos_token", !making->llama && model->begin.bytes ? model->begin : begin);
    if (making->llama || model->ends) name_token(making, "eos_token", !making->llama && model->end.bytes ? model->end : end);
    for (size_t i = 0; i < model->count && !making->llama; i++)
        if (model->pieces[i].type == PIECE_UNKNOWN) name_token(making, "unk_token", model->pieces[i].text);
    if (making->llama) name_token(making, "unk_token", unknown);
}

static json_t *vocabulary_json(Making *making, Error *error) {
    json_t *vocabulary = json_object();
    for (size_t i = 0; i < making->model->count; i++) {
        Span text = making->model->pieces[i].text;
        bool good = text_well_formed(text.bytes, text.size) == text.size &&
                    token_map_put(&making->ids, text.bytes, text.size, (int32_t)i) &&
                    json_object_setn_new(vocabulary, text.bytes, text.size, json_integer((json_int_t)i)) == 0;
        if (good) continue;
        json_decref(vocabulary);
        return error_set(error, ERROR_DATA, "token %zu is not UTF-8 or a duplicate", i), NULL;
    }
    return vocabulary;
}

/* Pieces in the order of their merges: by id, or the best score first. */
typedef struct Ranked {
    float score;
    int32_t id;
} Ranked;

static int compare_ranked(const void *left, const void *right) {
    const Ranked *a = left, *b = right;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    return (a->id > b->id) - (a->id < b->id);
}

static bool may_merge(const Making *making, int32_t id) {
    return id != TOKEN_NONE && (making->llama || making->model->pieces[id].type == PIECE_NORMAL);
}

/* Lists every division of a piece into two, the shortest left part first. */
static json_t *merges_json(const Making *making) {
    size_t count = making->model->count, size;
    SCOPED_FREE Ranked *ranked = memory_allocate(count * sizeof *ranked);
    json_t *merges = json_array();
    for (size_t i = 0; i < count; i++) ranked[i] = (Ranked){making->llama ? 0 : making->model->pieces[i].score, (int32_t)i};
    qsort(ranked, count, sizeof *ranked, compare_ranked);
    for (size_t i = 0; i < count; i++) {
        Span text = making->model->pieces[ranked[i].id].text;
        if (!may_merge(making, ranked[i].id)) continue;
        for (size_t cut = text_character_size(text.bytes, text.size); cut < text.size; cut += size) {
            size = text_character_size(text.bytes + cut, text.size - cut);
            if (may_merge(making, token_map_get(&making->ids, text.bytes, cut)) &&
                may_merge(making, token_map_get(&making->ids, text.bytes + cut, text.size - cut)))
                json_array_append_new(
                    merges, json_pack("[o, o]", json_stringn(text.bytes, cut), json_stringn(text.bytes + cut, text.size - cut)));
        }
    }
    return merges;
}

/* Control tokens and user-defined tokens become added tokens, unless the side files list some. */
static json_t *added_json(const Making *making) {
    json_t *added = json_array();
    bool listed = json_array_size(json_object_get(making->config, "additional_special_tokens")) ||
                  json_array_size(json_object_get(making->config, "extra_special_tokens"));
    for (size_t i = 0; i < making->model->count && !listed; i++) {
        const Piece *piece = &making->model->pieces[i];
        if (piece->type != PIECE_CONTROL && piece->type != PIECE_USER_DEFINED) continue;
        json_array_append_new(added, json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content",
                                         json_stringn(piece->text.bytes, piece->text.size), "single_word", 0, "lstrip", 0, "rstrip", 0,
                                         "normalized", 0, "special", piece->type == PIECE_CONTROL));
    }
    return added;
}

static json_t *replace_json(const char *kind, const char *from, const char *to) {
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind, from, "content", to);
}

/* LlamaTokenizer has no normalizer; otherwise spaces become U+2581. */
static json_t *normalizer_json(const Making *making) {
    if (making->llama) return json_null();
    json_t *steps = json_pack("[o]", replace_json("String", " ", META_SPACE));
    if (making->prefix && making->legacy) json_array_append_new(steps, replace_json("Regex", "\\A" META_SPACE, META_SPACE META_SPACE));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *pre_tokenizer_json(const Making *making) {
    const char *scheme = !making->prefix ? "never" : making->legacy ? "always" : "first";
    if (!making->llama && !making->prefix) return json_null();
    return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", META_SPACE, "prepend_scheme", scheme, "split", 0);
}

static json_t *decoder_json(const Making *making) {
    json_t *steps = json_pack("[o, {s:s}, {s:s}]", replace_json("String", META_SPACE, " "), "type", "ByteFallback", "type", "Fuse");
    if (making->prefix)
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

/* Returns the item of a template for a special token, whose id is added to `special`; NULL: the
 * configuration does not ask for it. */
static json_t *template_token(const Making *making, const json_t *tokenizer, const char *flag, const char *name, json_t *special) {
    const json_t *token = json_object_get(making->config, name), *list = json_object_get(tokenizer, "added_tokens");
    json_t *text = json_is_object(token) ? json_object_get(token, "content") : (json_t *)token;
    if (!json_is_true(json_object_get(making->config, flag)) || !json_is_string(text)) return NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        if (!json_equal(json_object_get(one, "content"), text)) continue;
        json_object_setn_new(special, json_string_value(text), json_string_length(text),
            json_pack("{s:O, s:[O], s:[O]}", "id", text, "ids", json_object_get(one, "id"), "tokens", text));
        return json_pack("{s:{s:O, s:i}}", "SpecialToken", "id", text, "type_id", 0);
    }
    return NULL;
}

static json_t *post_processor_json(const Making *making, const json_t *tokenizer) {
    json_t *special = json_object(), *single = json_array(),
           *begin = template_token(making, tokenizer, "add_bos_token", "bos_token", special),
           *end = template_token(making, tokenizer, "add_eos_token", "eos_token", special);
    if (begin) json_array_append_new(single, begin);
    json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
    if (end) json_array_append_new(single, end);
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "TemplateProcessing", "single", single, "pair", "special_tokens", special);
}

static json_t *make_tokenizer(Making *making, Error *error) {
    json_t *vocabulary = vocabulary_json(making, error), *unknown = json_object_get(making->config, "unk_token");
    if (!vocabulary) return NULL;
    if (json_is_object(unknown)) unknown = json_object_get(unknown, "content");
    json_t *model = json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
        making->llama || !json_is_string(unknown) ? json_null() : json_incref(unknown), "continuing_subword_prefix", "end_of_word_suffix",
        "fuse_unk", 1, "byte_fallback", 1, "ignore_merges", 0, "vocab", vocabulary, "merges", merges_json(making));
    json_t *tokenizer = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding",
        "added_tokens", added_json(making), "normalizer", normalizer_json(making), "pre_tokenizer", pre_tokenizer_json(making),
        "post_processor", "decoder", decoder_json(making), "model", model);
    if (!tokenizer_add_side_tokens(tokenizer, making->config, error)) return json_decref(tokenizer), NULL;
    json_object_set_new(tokenizer, "post_processor", post_processor_json(making, tokenizer));
    return tokenizer;
}

json_t *sentencepiece_json(const char *bytes, size_t size, json_t *config, const char *model_type, Error *error) {
    SentencePieceModel model = {0};
    Making making = {.model = &model, .config = config};
    json_t *tokenizer = NULL;
    if (choose_class(&making, model_type, error) && sentencepiece_parse(&model, (Span){bytes, size}, error) &&
        check_sentencepiece(&making, error)) {
        const json_t *legacy = json_object_get(config, "legacy");
        making.legacy = json_is_true(legacy) || (!legacy && !making.llama);
        making.prefix = making.llama ? !json_is_false(json_object_get(config, "add_prefix_space")) : model.whitespace.prefix;
        name_tokens(&making);
        if (!making.llama && making.prefix) match_raw(&making);
        tokenizer = make_tokenizer(&making, error);
        json_object_del(config, "added_tokens_decoder");
    }
    token_map_free(&making.ids);
    free(model.pieces);
    return tokenizer;
}

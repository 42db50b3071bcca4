/* Reads a SentencePiece model (tokenizer.model, a protobuf message ModelProto) into a Tokenizer. Of the message the few
 * fields are read that decide ids and texts; others are passed over, as protobuf has it. BPE pieces become merges: two
 * symbols merge when their texts together are a piece, by the rank of its score. Every length is checked against the
 * message that holds it. Owns nothing after it returns. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/strings.h"
#include "token/json_keys_internal.h"
#include "token/token_internal.h"

/* -- Protobuf ------------------------------------------------------------------------------------------------------ */

typedef struct Field {
    uint64_t number, value; /* value: of a number */
    Span bytes;             /* of a text, or of a message */
} Field;

static bool read_varint(Span *message, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && message->size > 0; shift += 7) {
        unsigned char byte = (unsigned char)*message->bytes++;
        message->size--;
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static bool take_bytes(Span *message, uint64_t size, Span *bytes) {
    if (size > message->size) return false;
    *bytes = (Span){message->bytes, (size_t)size};
    message->bytes += size;
    message->size -= (size_t)size;
    return true;
}

/* Takes the next field off a message that is not empty. */
static bool read_field(Span *message, Field *field, Error *error) {
    enum { VARINT, FIXED64, BYTES, FIXED32 = 5 };
    uint64_t tag, size;
    *field = (Field){0};
    bool good = read_varint(message, &tag);
    field->number = tag >> 3;
    switch (good ? tag & 7 : 7) {
    case VARINT: good = read_varint(message, &field->value); break;
    case FIXED64: good = take_bytes(message, 8, &field->bytes); break;
    case FIXED32: good = take_bytes(message, 4, &field->bytes); break;
    case BYTES: good = read_varint(message, &size) && take_bytes(message, size, &field->bytes); break;
    default: good = false;
    }
    return good || error_set(error, ERROR_DATA, "it is binary, but not a whole SentencePiece model");
}

/* -- Messages ------------------------------------------------------------------------------------------------------ */

typedef enum PieceType { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE } PieceType;
typedef struct Piece {
    Span text;
    float score;
    PieceType type;
} Piece;

typedef enum ModelType { MODEL_UNIGRAM = 1, MODEL_BPE, MODEL_WORD, MODEL_CHAR } ModelType;
typedef struct Model {
    Piece *pieces;
    size_t count;
    ModelType type;
    bool byte_fallback, denormalizes;
    bool begins, ends; /* it has a token that begins a text, and one that ends it */
    Span begin, end, unknown_surface, charsmap;
    Whitespace whitespace;
} Model;

static bool read_piece(Model *model, Span message, Error *error) {
    Piece piece = {.type = PIECE_NORMAL};
    for (Field field; message.size > 0;) {
        if (!read_field(&message, &field, error)) return false;
        if (field.number == 1) piece.text = field.bytes;
        if (field.number == 2 && field.bytes.size == 4) memcpy(&piece.score, field.bytes.bytes, 4);
        if (field.number == 3) piece.type = (PieceType)field.value;
    }
    if (model->count == MAXIMUM_ID) return error_set(error, ERROR_DATA, "it has more than %d tokens", MAXIMUM_ID);
    if (piece.text.size == 0) return error_set(error, ERROR_DATA, "token %zu is empty", model->count);
    if (piece.text.size > WORD_LIMIT)
        return error_set(error, ERROR_DATA, "token %zu has %zu bytes but at most %d are read", model->count, piece.text.size, WORD_LIMIT);
    if (!isfinite(piece.score)) return error_set(error, ERROR_DATA, "the score of token %zu is no number", model->count);
    if (piece.type < PIECE_NORMAL || piece.type > PIECE_BYTE)
        return error_set(error, ERROR_DATA, "token %zu is of type %d; smelt does not read that", model->count, (int)piece.type);
    array_append(model->pieces, model->count, piece);
    return true;
}

static bool read_trainer(Model *model, Span message, Error *error) {
    for (Field field; message.size > 0;) {
        if (!read_field(&message, &field, error)) return false;
        switch (field.number) {
        case 3: model->type = (ModelType)field.value; break;
        case 24: model->whitespace.suffix = field.value != 0; break;
        case 35: model->byte_fallback = field.value != 0; break;
        case 41: model->begins = (int32_t)field.value >= 0; break;
        case 42: model->ends = (int32_t)field.value >= 0; break;
        case 44: model->unknown_surface = field.bytes; break;
        case 46: model->begin = field.bytes; break;
        case 47: model->end = field.bytes; break;
        default: break;
        }
    }
    return true;
}

static bool read_normalizer(Model *model, Span message, Error *error) {
    for (Field field; message.size > 0;) {
        if (!read_field(&message, &field, error)) return false;
        switch (field.number) {
        case 2: model->charsmap = field.bytes; break;
        case 3: model->whitespace.prefix = field.value != 0; break;
        case 4: model->whitespace.squeeze = field.value != 0; break;
        case 5: model->whitespace.escape = field.value != 0; break;
        default: break;
        }
    }
    return true;
}

static bool read_denormalizer(Model *model, Span message, Error *error) {
    for (Field field; message.size > 0;) {
        if (!read_field(&message, &field, error)) return false;
        model->denormalizes = model->denormalizes || (field.number == 2 && field.bytes.size > 0);
    }
    return true;
}

static bool read_message(Model *model, Span message, Error *error) {
    for (Field field; message.size > 0;) {
        bool good = read_field(&message, &field, error);
        if (good && field.number == 1) good = read_piece(model, field.bytes, error);
        if (good && field.number == 2) good = read_trainer(model, field.bytes, error);
        if (good && field.number == 3) good = read_normalizer(model, field.bytes, error);
        if (good && field.number == 5) good = read_denormalizer(model, field.bytes, error);
        if (!good) return false;
    }
    return true;
}

/* -- Tokens -------------------------------------------------------------------------------------------------------- */

static bool add_byte(Tokenizer *tokenizer, const Model *model, const Piece *piece, int32_t id, Error *error) {
    int byte = token_byte(piece->text);
    if (!model->byte_fallback || byte < 0) return error_set(error, ERROR_DATA, "token %d is a byte, but has no place or no value", id);
    tokenizer->byte_id[byte] = id;
    return true;
}

/* Tokens that the user defined are matched in text as they are, before the model sees it; a unigram model takes them for
 * tokens of a score that nothing beats. */
static void add_symbol(Tokenizer *tokenizer, const Model *model, Span text, int32_t id) {
    trie_add(&tokenizer->symbols, text.bytes, text.size, id);
    if (model->type != MODEL_BPE) return;
    AddedToken token = {.id = id, .match = MATCH_NORMAL_FORM};
    buffer_append(&token.content, text.bytes, text.size);
    tokenizer_add_added(tokenizer, &token);
}

static bool add_piece(Tokenizer *tokenizer, const Model *model, int32_t id, Error *error) {
    const Piece *piece = &model->pieces[id];
    if (!token_map_put(&tokenizer->contents, piece->text.bytes, piece->text.size, id))
        return error_set(error, ERROR_DATA, "token %d is there twice", id);
    size_t size = text_character_size(piece->text.bytes, piece->text.size);
    if (size == piece->text.size && (piece->type == PIECE_NORMAL || piece->type == PIECE_USER_DEFINED))
        *pair_map_put(&tokenizer->characters, text_character(piece->text.bytes, &size)) = (uint64_t)id;
    switch (piece->type) {
    case PIECE_UNKNOWN:
        if (tokenizer->unknown != TOKEN_NONE) return error_set(error, ERROR_DATA, "it has more than one unknown token");
        tokenizer->unknown = id;
        return true;
    case PIECE_BYTE: return add_byte(tokenizer, model, piece, id, error);
    case PIECE_USER_DEFINED: add_symbol(tokenizer, model, piece->text, id); return true;
    default: return true;
    }
}

static bool add_pieces(Tokenizer *tokenizer, const Model *model, Error *error) {
    tokenizer->vocabulary = (int32_t)model->count;
    for (int32_t id = 0; id < tokenizer->vocabulary; id++)
        if (!add_piece(tokenizer, model, id, error)) return false;
    if (tokenizer->unknown == TOKEN_NONE) return error_set(error, ERROR_DATA, "it has no unknown token");
    for (int byte = 0; byte < BYTES && model->byte_fallback; byte++)
        if (tokenizer->byte_id[byte] == TOKEN_NONE)
            return error_set(error, ERROR_DATA, "it lacks the token of byte 0x%02X", (unsigned)byte);
    tokenizer->end_of_text =
        model->end.bytes ? token_map_get(&tokenizer->contents, model->end.bytes, model->end.size) : tokenizer_id(tokenizer, "</s>");
    return true;
}

/* -- Models -------------------------------------------------------------------------------------------------------- */

static int compare_scores(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a < b) - (a > b);
}

/* A score's place among all, the greatest first; equal scores have the same. */
static uint64_t rank_of(const float *scores, size_t count, float score) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (scores[middle] > score) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* The part of a piece that a symbol may stand for: a character, or a piece that merges give. */
static int32_t part_id(const Tokenizer *tokenizer, const Model *model, Span text) {
    int32_t id = token_map_get(&tokenizer->contents, text.bytes, text.size);
    if (id == TOKEN_NONE || text_character_size(text.bytes, text.size) == text.size) return id;
    return model->pieces[id].type == PIECE_NORMAL ? id : TOKEN_NONE;
}

static bool add_merges(Tokenizer *tokenizer, const Model *model, int32_t id, uint64_t rank, Error *error) {
    Span text = model->pieces[id].text;
    for (size_t cut = 0, size; cut < text.size; cut += size) {
        Span left = {text.bytes, cut}, right = {text.bytes + cut, text.size - cut};
        size = text_character_size(right.bytes, right.size);
        if (size == 0) return error_set(error, ERROR_DATA, "token %d is not UTF-8", id);
        if (size < text.size && pair_map_get(&tokenizer->characters, text_character(right.bytes, &size)) == PAIR_NONE)
            return error_set(error, ERROR_DATA, "token %d holds a character that is no token; smelt does not read that", id);
        if (cut == 0) continue;
        int32_t ids[] = {part_id(tokenizer, model, left), part_id(tokenizer, model, right), id};
        if (ids[0] != TOKEN_NONE && ids[1] != TOKEN_NONE) tokenizer_add_merge(tokenizer, left, right, ids, rank);
    }
    return true;
}

static bool build_bpe(Tokenizer *tokenizer, const Model *model, Error *error) {
    SCOPED_FREE float *scores = memory_allocate(model->count * sizeof *scores);
    tokenizer->fuse_unknown = true;
    tokenizer->space_begins_words = tokenizer_id(tokenizer, "\xE2\x96\x81") != TOKEN_NONE;
    for (size_t i = 0; i < model->count; i++) scores[i] = model->pieces[i].score;
    qsort(scores, model->count, sizeof *scores, compare_scores);
    for (int32_t id = 0; id < tokenizer->vocabulary; id++) {
        if (model->pieces[id].type == PIECE_UNUSED && tokenizer->byte_fallback && model->pieces[id].text.bytes[0] == 0) continue;
        if (model->pieces[id].type == PIECE_UNUSED)
            return error_set(error, ERROR_DATA, "token %d is marked as unused in a BPE model; smelt does not read that", id);
        if (model->pieces[id].type == PIECE_NORMAL &&
            !add_merges(tokenizer, model, id, rank_of(scores, model->count, model->pieces[id].score), error))
            return false;
    }
    return true;
}

static bool build_unigram(Tokenizer *tokenizer, const Model *model, Error *error) {
    float least = INFINITY;
    SCOPED_FREE TrieKey *keys = memory_allocate(model->count * sizeof *keys);
    size_t count = 0;
    for (size_t i = 0; i < model->count; i++)
        if (model->pieces[i].type == PIECE_NORMAL) least = fminf(least, model->pieces[i].score);
    tokenizer->scores = memory_allocate(model->count * sizeof *tokenizer->scores);
    tokenizer->unknown_score = least - 10.0f;
    for (size_t i = 0; i < model->count; i++) {
        const Piece *piece = &model->pieces[i];
        bool defined = piece->type == PIECE_USER_DEFINED;
        tokenizer->scores[i] = defined ? (float)(0.1 * (double)(piece->text.size - 1)) : piece->score;
        if (defined || piece->type == PIECE_NORMAL) keys[count++] = (TrieKey){piece->text, (int32_t)i};
    }
    return unigram_build(tokenizer, keys, count, error);
}

/* -- Texts --------------------------------------------------------------------------------------------------------- */

/* A text's first token loses the U+2581 that was put in front; tokens that add nothing are still followed by a first. */
static void build_decoding(Tokenizer *tokenizer, const Model *model) {
    static const char metaspace[] = "\xE2\x96\x81", usual_surface[] = " \xE2\x81\x87 ";
    const Span mark = {metaspace, sizeof metaspace - 1}, space = {" ", 1};
    const Span surface = model->unknown_surface.bytes ? model->unknown_surface : (Span){usual_surface, sizeof usual_surface - 1};
    const Whitespace *rules = &model->whitespace;
    tokenizer->rest = memory_allocate(model->count * sizeof *tokenizer->rest);
    tokenizer->first = memory_allocate(model->count * sizeof *tokenizer->first);
    for (size_t i = 0; i < model->count; i++) {
        const Piece *piece = &model->pieces[i];
        Span text = piece->text;
        size_t at = tokenizer->decoded.size;
        const char byte = (char)token_byte(text);
        if (piece->type == PIECE_CONTROL) text = (Span){"", 0};
        if (piece->type == PIECE_UNKNOWN) text = surface;
        if (piece->type == PIECE_BYTE) text = (Span){&byte, 1};
        if (piece->type == PIECE_BYTE || piece->type == PIECE_UNKNOWN) buffer_append(&tokenizer->decoded, text.bytes, text.size);
        else text_replace(&tokenizer->decoded, text, mark, space);
        Decoded whole = {at, tokenizer->decoded.size - at, false}, first = whole;
        bool marked = (rules->prefix || rules->squeeze) && piece->type != PIECE_CONTROL && text.size >= mark.size &&
                      memcmp(text.bytes, mark.bytes, mark.size) == 0;
        if (marked) first.at++, first.size--;
        first.waits = first.size == 0 && (!marked || rules->squeeze);
        tokenizer->rest[i] = whole;
        tokenizer->first[i] = first;
    }
}

static bool build(Tokenizer *tokenizer, const Model *model, Error *error) {
    if (model->count == 0) return error_set(error, ERROR_DATA, "it is binary, but not a SentencePiece model: it has no tokens");
    if (model->type != MODEL_UNIGRAM && model->type != MODEL_BPE)
        return error_set(error, ERROR_DATA, "its model is of %s; smelt reads BPE and unigram models",
            model->type == MODEL_WORD   ? "words"
            : model->type == MODEL_CHAR ? "characters"
                                        : "an unknown type");
    if (model->denormalizes) return error_set(error, ERROR_DATA, "it rewrites decoded text (denormalizer_spec); smelt does not read that");
    tokenizer->byte_fallback = model->byte_fallback;
    NormalStep *step = &tokenizer->normals[tokenizer->normal_count++];
    *step = (NormalStep){.kind = NORMAL_SENTENCEPIECE, .whitespace = model->whitespace};
    if (!charsmap_read(&step->charsmap, model->charsmap, error) || !add_pieces(tokenizer, model, error)) return false;
    build_decoding(tokenizer, model);
    return model->type == MODEL_BPE ? build_bpe(tokenizer, model, error) : build_unigram(tokenizer, model, error);
}

static const Model usual_model = {
    .type = MODEL_UNIGRAM, .begins = true, .ends = true, .whitespace = {.prefix = true, .squeeze = true, .escape = true}};

bool read_sentencepiece(Tokenizer *tokenizer, const char *bytes, size_t size, Error *error) {
    Model model = usual_model;
    tokenizer->sentencepiece = true;
    bool good = read_message(&model, (Span){bytes, size}, error) && build(tokenizer, &model, error);
    free(model.pieces);
    return good;
}

/* -- What transformers makes of a model with side files -------------------------------------------------------------- */

#define META_SPACE "\xE2\x96\x81"
#define SAVE_AGAIN ": load the folder with transformers and save the tokenizer, which writes a tokenizer.json"

/* A model that becomes a tokenizer.json. `llama`: by the class LlamaTokenizer, which takes pieces alone from the model; else
 * by TokenizersBackend, which goes by its settings too. */
typedef struct Making {
    const Model *model;
    json_t *config; /* with the names of tokens that the class adds */
    bool llama, legacy, prefix;
    TokenMap ids;
} Making;

/* AutoTokenizer.from_pretrained of transformers 5.24. */
static bool choose_class(Making *making, const char *model_type, Error *error) {
    static const char *const backend[] = {"mistral", "mixtral", "phi3", "phimoe"};
    const json_t *given = json_object_get(making->config, "tokenizer_class");
    const char *class = json_is_string(given) ? json_string_value(given) : "TokenizersBackend";
    bool llama = starts_with(class, "LlamaTokenizer"), known = !*model_type || !strcmp(model_type, "llama");
    making->llama = llama && known;
    for (size_t i = 0; i < sizeof backend / sizeof *backend; i++) known = known || !strcmp(model_type, backend[i]);
    if (!llama && strcmp(class, "PreTrainedTokenizerFast") != 0 && strcmp(class, "TokenizersBackend") != 0)
        return error_set(
            error, ERROR_DATA, "its tokenizer_class is '%.80s', which smelt does not make of a SentencePiece model" SAVE_AGAIN, class);
    return known || error_set(error, ERROR_DATA,
                        "smelt does not know which class transformers gives it beside model_type '%.80s'" SAVE_AGAIN, model_type);
}

static bool check_model(const Making *making, Error *error) {
    const Model *model = making->model;
    const char *has = NULL;
    if (model->type != MODEL_BPE) has = "is not a BPE model";
    else if (!model->byte_fallback) has = "has no tokens for bytes";
    else if (!model->whitespace.escape || model->whitespace.suffix || model->denormalizes) has = "changes text in a way of its own";
    else if (!making->llama && model->charsmap.size) has = "has a map of characters";
    else if (!making->llama && model->whitespace.squeeze) has = "leaves out extra white space";
    for (size_t i = 0; i < model->count && !has && !making->llama; i++)
        if (model->pieces[i].type == PIECE_USER_DEFINED) has = "has tokens that its user defined";
    return !has || error_set(error, ERROR_DATA, "it %s, which smelt does not read beside side files" SAVE_AGAIN, has);
}

/* TokenizersBackend finds added tokens in the text as it is, so that each part between them gets a mark of its own. */
static void match_raw(Making *making) {
    const char *key;
    json_t *token, *decoder = json_deep_copy(json_object_get(making->config, "added_tokens_decoder"));
    json_object_foreach(decoder, key, token) json_object_set_new(token, "normalized", json_false());
    if (decoder) json_object_set_new(making->config, "added_tokens_decoder", decoder);
}

/* A name without a value in the configuration gets the class's. */
static void name_token(Making *making, const char *name, Span text) {
    if (!json_object_get(making->config, name)) json_object_set_new(making->config, name, json_stringn(text.bytes, text.size));
}

static void name_tokens(Making *making) {
    const Model *model = making->model;
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
        return error_set(error, ERROR_DATA, "token %zu is not UTF-8, or there twice", i), NULL;
    }
    return vocabulary;
}

/* Pieces in the order in which their merges count: by id, or the best score first. */
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

/* Every division of a piece into two, the shortest left one first. */
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

/* Control tokens and those of the user are added tokens, unless the side files list some. */
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

/* LlamaTokenizer leaves text as it is, up to the mark of a space. */
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

/* The item of a template for a special token, whose id goes to `special`; NULL: nothing asks for it. */
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
    Model model = usual_model;
    Making making = {.model = &model, .config = config};
    json_t *tokenizer = NULL;
    if (choose_class(&making, model_type, error) && read_message(&model, (Span){bytes, size}, error) && check_model(&making, error)) {
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

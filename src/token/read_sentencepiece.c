/* Reads a SentencePiece model (tokenizer.model, a protobuf message ModelProto) into a Tokenizer. Of the message the few
 * fields are read that decide ids and texts; others are passed over, as protobuf has it. BPE pieces become merges: two
 * symbols merge when their texts together are a piece, by the rank of its score. Every length is checked against the
 * message that holds it. Owns nothing after it returns. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
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
    Span end, unknown_surface, charsmap;
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
        case 44: model->unknown_surface = field.bytes; break;
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

bool read_sentencepiece(Tokenizer *tokenizer, const char *bytes, size_t size, Error *error) {
    Model model = {.type = MODEL_UNIGRAM, .whitespace = {.prefix = true, .squeeze = true, .escape = true}};
    tokenizer->sentencepiece = true;
    bool good = read_message(&model, (Span){bytes, size}, error) && build(tokenizer, &model, error);
    free(model.pieces);
    return good;
}

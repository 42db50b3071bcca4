/* Parses a SentencePiece model (tokenizer.model, a protobuf message ModelProto). Owns nothing after
 * it returns except the list of pieces, which the caller owns. */
#include <math.h>

#include "base/array.h"
#include "token/sentencepiece_internal.h"

/* -- Protobuf ------------------------------------------------------------------------------------------------------ */

typedef struct Field {
    uint64_t number, value; /* value: a number */
    Span bytes;             /* a text, or a message */
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

/* Reads the next field of a message that is not empty. */
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
    return good || error_set(error, ERROR_DATA, "it is binary, but not a complete SentencePiece model");
}

/* -- Messages ------------------------------------------------------------------------------------------------------ */

static bool read_piece(SentencePieceModel *model, Span message, Error *error) {
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
        return error_set(error, ERROR_DATA, "token %zu has %zu bytes; the limit is %d", model->count, piece.text.size, WORD_LIMIT);
    if (!isfinite(piece.score)) return error_set(error, ERROR_DATA, "the score of token %zu is not a number", model->count);
    if (piece.type < PIECE_NORMAL || piece.type > PIECE_BYTE)
        return error_set(error, ERROR_DATA, "token %zu has type %d, which is not supported", model->count, (int)piece.type);
    array_append(model->pieces, model->count, piece);
    return true;
}

static bool read_trainer(SentencePieceModel *model, Span message, Error *error) {
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

static bool read_normalizer(SentencePieceModel *model, Span message, Error *error) {
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

static bool read_denormalizer(SentencePieceModel *model, Span message, Error *error) {
    for (Field field; message.size > 0;) {
        if (!read_field(&message, &field, error)) return false;
        model->denormalizes = model->denormalizes || (field.number == 2 && field.bytes.size > 0);
    }
    return true;
}

static bool read_message(SentencePieceModel *model, Span message, Error *error) {
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

bool sentencepiece_parse(SentencePieceModel *model, Span file, Error *error) {
    *model = (SentencePieceModel){
        .type = MODEL_UNIGRAM, .begins = true, .ends = true, .whitespace = {.prefix = true, .squeeze = true, .escape = true}};
    return read_message(model, file, error);
}

/* A SentencePiece model as its file has it: a protobuf message ModelProto, parsed by
 * sentencepiece_model.c, for read_sentencepiece.c (a Tokenizer) and sentencepiece_json.c (a
 * tokenizer.json). */
#pragma once

#include "token/token_internal.h"

typedef enum PieceType { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE } PieceType;
typedef struct Piece {
    Span text;
    float score;
    PieceType type;
} Piece;

typedef enum ModelType { MODEL_UNIGRAM = 1, MODEL_BPE, MODEL_WORD, MODEL_CHAR } ModelType;
/* Texts point into the bytes of the file. */
typedef struct SentencePieceModel {
    Piece *pieces; /* `count` of them, by id; owned */
    size_t count;
    ModelType type;
    bool byte_fallback, denormalizes;
    bool begins, ends; /* the model has a token that begins a text, and one that ends it */
    Span begin, end, unknown_surface, charsmap;
    Whitespace whitespace;
} SentencePieceModel;

/* Reads the fields that decide ids and texts and skips the others, as protobuf requires. Every
 * length is checked against its enclosing message. The caller frees `pieces`, also after a failure.
 * ERROR_DATA. */
bool sentencepiece_parse(SentencePieceModel *model, Span file, Error *error);

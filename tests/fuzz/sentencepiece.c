/* A libFuzzer entry for SentencePiece models and text: two bytes say how long the model is, the text follows it. A model
 * is refused with a line, or gives a tokenizer whose ids of the text are tokens; where the text may be cut, its parts
 * give the ids of the whole. Owns nothing beyond one call. */
#include "fuzz.h"
#include "token/token_internal.h"

static bool encode(TokenizerEncoder *encoder, const char *text, size_t length, unsigned flags, TokenIds *ids) {
    Error error = {0};
    bool good = tokenizer_encode(encoder, text, length, flags, ids, &error);
    if (!good) require_line(&error);
    return good;
}

/* Encodes both parts, the second one first. */
static bool encode_parts(
    TokenizerEncoder *encoder, const Tokenizer *tokenizer, const char *text, size_t length, size_t cut, TokenIds *out) {
    TokenIds ids[2] = {{0}};
    PartWords words[2] = {{0}};
    TokenizerJoiner *joiner = tokenizer_joiner_open(tokenizer, 0);
    Error error = {0};
    bool good = tokenizer_encode_part(encoder, text + cut, length - cut, cut > 0 ? TOKENIZER_CONTINUED : 0, &ids[1], &words[1], &error) &&
                tokenizer_encode_part(encoder, text, cut, 0, &ids[0], &words[0], &error);
    if (!good) require_line(&error);
    for (int i = 0; i < 2 && good; i++)
        tokenizer_join(joiner, &(TextPart){.first = !i, .id_count = ids[i].count, .word_count = words[i].count}, &ids[i], &words[i], out);
    for (int i = 0; i < 2; i++) token_ids_free(&ids[i]), part_words_free(&words[i]);
    tokenizer_joiner_free(joiner);
    return good;
}

static void check_text(const Tokenizer *tokenizer, const char *text, size_t length) {
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    TokenizerDecoder decoder = tokenizer_decoder(tokenizer, false);
    TokenIds whole = {0}, parts = {0};
    size_t cut = length > 0 ? tokenizer_part_cut(tokenizer, text, length, length / 2 + 1) : 0, size;
    require(cut <= length / 2 + 1);
    bool good = encode(encoder, text, length, 0, &whole) && encode_parts(encoder, tokenizer, text, length, cut, &parts);
    require(!good ||
            (whole.count == parts.count && (whole.count == 0 || !memcmp(whole.items, parts.items, whole.count * sizeof *whole.items))));
    for (size_t i = 0; i < whole.count; i++) {
        require(whole.items[i] >= 0 && whole.items[i] < tokenizer_vocabulary(tokenizer));
        tokenizer_decode(&decoder, whole.items[i], &size);
    }
    token_ids_free(&whole);
    token_ids_free(&parts);
    tokenizer_encoder_free(encoder);
}

FUZZ(sentencepiece) {
    size_t length = size >= 2 ? data[0] | (size_t)data[1] << 8 : 0;
    if (size < 2 || length > size - 2) return;
    Error error = {0};
    Tokenizer *tokenizer = tokenizer_open(fuzz_file("tokenizer.model", data + 2, length), &error);
    if (!tokenizer) require_line(&error);
    if (tokenizer) check_text(tokenizer, (const char *)data + 2 + length, size - 2 - length);
    tokenizer_free(tokenizer);
}

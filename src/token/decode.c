/* Ids to bytes. What a token adds to a text is worked out once, when the tokenizer is read, for its place at the
 * start of a text and for any other; decoding then only looks it up, and strips the blanks that some tokenizers put
 * before a text. */
#include <stdlib.h>

#include "base/memory.h"
#include "token/token_internal.h"

static void replace_all(Buffer *text, Span from, Span to) {
    Buffer out = {0};
    for (size_t at = 0; at < text->size;) {
        const char *found = memmem(text->bytes + at, text->size - at, from.bytes, from.size);
        size_t end = found ? (size_t)(found - text->bytes) : text->size;
        buffer_append(&out, text->bytes + at, end - at);
        if (found) buffer_append(&out, to.bytes, to.size);
        at = found ? end + from.size : end;
    }
    free(text->bytes);
    *text = out;
}

/* "<0xE2>" */
static int fallback_byte(Span text) {
    static const char digits[] = "0123456789ABCDEF0123456789abcdef";
    if (text.size != 6 || memcmp(text.bytes, "<0x", 3) != 0 || text.bytes[5] != '>') return -1;
    const char *high = memchr(digits, text.bytes[3], 32), *low = memchr(digits, text.bytes[4], 32);
    return high && low ? (int)((high - digits) % 16 * 16 + (low - digits) % 16) : -1;
}

static void decode_token(const Decoding *decoding, Span token, bool first, Buffer *out) {
    out->size = 0;
    buffer_append(out, token.bytes, token.size);
    size_t size;
    if (decoding->byte_level) {
        char *bytes = memory_allocate(token.size);
        if (text_from_alphabet(token.bytes, token.size, bytes, &size)) {
            out->size = 0;
            buffer_append(out, bytes, size);
        }
        free(bytes);
    }
    if (decoding->metaspace.size > 0)
        replace_all(out, buffer_span(&decoding->metaspace), (Span){" ", first && decoding->metaspace_first ? 0 : 1});
    for (int i = 0; i < decoding->replaces; i++) replace_all(out, buffer_span(&decoding->from[i]), buffer_span(&decoding->to[i]));
    int byte = decoding->byte_fallback && out->size > 0 ? fallback_byte(buffer_span(out)) : -1;
    if (byte >= 0) {
        out->size = 0;
        buffer_append(out, &(char){(char)byte}, 1);
    }
}

static void decode_into(Tokenizer *tokenizer, const Decoding *decoding, bool first, Span token, int32_t id, size_t *at) {
    Buffer text = {0};
    decode_token(decoding, token, first, &text);
    at[id] = tokenizer->decoded.size;
    if (decoding->spaced && !first) buffer_append(&tokenizer->decoded, " ", 1);
    buffer_append(&tokenizer->decoded, text.bytes, text.size);
    (first ? tokenizer->first : tokenizer->rest)[id].size = tokenizer->decoded.size - at[id];
    free(text.bytes);
}

/* The bytes of all tokens, end to end; spans point to them only when all lie there, because the buffer moves while
 * it grows. An added token comes before a word with the same id. */
static void decode_all(Tokenizer *tokenizer, const Decoding *decoding, bool first, size_t *at) {
    const TokenMap *map = &tokenizer->contents;
    for (size_t i = 0; map->slots && i <= map->mask; i++) {
        const TokenSlot *slot = &map->slots[i];
        if (slot->id == TOKEN_NONE) continue;
        decode_into(tokenizer, decoding, first, (Span){map->pool.bytes + slot->at, slot->length}, slot->id, at);
    }
    for (int32_t i = 0; i < tokenizer->added_count; i++)
        decode_into(tokenizer, decoding, first, buffer_span(&tokenizer->added[i].content), tokenizer->added[i].id, at);
}

void decoding_build(Tokenizer *tokenizer, const Decoding *decoding) {
    size_t count = (size_t)tokenizer->vocabulary;
    size_t *rest = memory_allocate(count * sizeof *rest), *first = memory_allocate(count * sizeof *first);
    bool differ = decoding->spaced || decoding->metaspace_first;
    tokenizer->rest = memory_allocate(count * sizeof *tokenizer->rest);
    tokenizer->first = differ ? memory_allocate(count * sizeof *tokenizer->first) : tokenizer->rest;
    tokenizer->strip = decoding->strip;
    decode_all(tokenizer, decoding, false, rest);
    if (differ) decode_all(tokenizer, decoding, true, first);
    for (size_t i = 0; i < count; i++) {
        tokenizer->rest[i].bytes = tokenizer->decoded.bytes + rest[i];
        if (differ) tokenizer->first[i].bytes = tokenizer->decoded.bytes + first[i];
    }
    free(rest);
    free(first);
}

TokenizerDecoder tokenizer_decoder(const Tokenizer *tokenizer, bool skip_special) {
    return (TokenizerDecoder){tokenizer, skip_special, false, tokenizer->strip};
}

const char *tokenizer_decode(TokenizerDecoder *decoder, int32_t id, size_t *length) {
    const Tokenizer *tokenizer = decoder->tokenizer;
    *length = 0;
    if (id < 0 || id >= tokenizer->vocabulary || (decoder->skip_special && tokenizer->special[id])) return "";
    Span span = (decoder->started ? tokenizer->rest : tokenizer->first)[id];
    decoder->started = true;
    while (decoder->strip > 0 && span.size > 0) {
        if (*span.bytes != ' ') {
            decoder->strip = 0;
            break;
        }
        span = (Span){span.bytes + 1, span.size - 1};
        decoder->strip--;
    }
    *length = span.size;
    return span.bytes;
}

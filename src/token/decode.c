/* Converts ids to bytes. The bytes of each token, at the start of a text and elsewhere, are
 * computed once, when the tokenizer is read. Decoding only looks them up, and strips the blanks
 * that some tokenizers put before a text. */
#include <stdlib.h>

#include "base/memory.h"
#include "token/token_internal.h"

static void replace_all(Buffer *text, Span from, Span to) {
    Buffer out = {0};
    text_replace(&out, buffer_span(text), from, to);
    free(text->bytes);
    *text = out;
}

/* Parses "<0xE2>". */
int token_byte(Span text) {
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
        SCOPED_FREE char *bytes = memory_allocate(token.size);
        if (text_from_alphabet(token.bytes, token.size, bytes, &size)) {
            out->size = 0;
            buffer_append(out, bytes, size);
        }
    }
    if (decoding->metaspace.size > 0)
        replace_all(out, buffer_span(&decoding->metaspace), (Span){" ", first && decoding->metaspace_first ? 0 : 1});
    for (int i = 0; i < decoding->replaces; i++) replace_all(out, buffer_span(&decoding->from[i]), buffer_span(&decoding->to[i]));
    int byte = decoding->byte_fallback && out->size > 0 ? token_byte(buffer_span(out)) : -1;
    if (byte >= 0) {
        out->size = 0;
        buffer_append(out, &(char){(char)byte}, 1);
    }
}

static Decoded decode_into(Buffer *decoded, const Decoding *decoding, bool first, Span token) {
    SCOPED(buffer_free) Buffer text = {0};
    size_t at = decoded->size;
    decode_token(decoding, token, first, &text);
    if (decoding->spaced && !first) buffer_append(decoded, " ", 1);
    buffer_append(decoded, text.bytes, text.size);
    return (Decoded){at, decoded->size - at, false};
}

/* Decodes every token, for the start of a text (`first`) or elsewhere. An added token replaces a
 * word with the same id. */
static Decoded *decode_all(Tokenizer *tokenizer, bool first) {
    const TokenMap *map = &tokenizer->contents;
    Decoded *all = memory_allocate((size_t)tokenizer->vocabulary * sizeof *all);
    for (size_t i = 0; map->slots && i <= map->mask; i++) {
        const TokenSlot *slot = &map->slots[i];
        if (slot->id == TOKEN_NONE) continue;
        all[slot->id] = decode_into(&tokenizer->decoded, &tokenizer->decoding, first, (Span){map->pool.bytes + slot->at, slot->length});
    }
    for (int32_t i = 0; i < tokenizer->added_count; i++) {
        const AddedToken *token = &tokenizer->added[i];
        all[token->id] = decode_into(&tokenizer->decoded, &tokenizer->decoding, first, buffer_span(&token->content));
    }
    return all;
}

void decoding_build(Tokenizer *tokenizer) {
    bool differ = tokenizer->decoding.spaced || tokenizer->decoding.metaspace_first;
    tokenizer->rest = decode_all(tokenizer, false);
    tokenizer->first = differ ? decode_all(tokenizer, true) : tokenizer->rest;
}

TokenizerDecoder tokenizer_decoder(const Tokenizer *tokenizer, bool skip_special) {
    return (TokenizerDecoder){tokenizer, skip_special, false, tokenizer->decoding.strip};
}

const char *tokenizer_decode(TokenizerDecoder *decoder, int32_t id, size_t *length) {
    const Tokenizer *tokenizer = decoder->tokenizer;
    *length = 0;
    if (id < 0 || id >= tokenizer->vocabulary || (decoder->skip_special && tokenizer->special[id])) return "";
    Decoded found = (decoder->started ? tokenizer->rest : tokenizer->first)[id];
    const char *bytes = tokenizer->decoded.bytes + found.at;
    decoder->started = decoder->started || !found.waits;
    *length = found.size;
    for (; decoder->strip > 0 && *length > 0; bytes++, --*length, decoder->strip--)
        if (*bytes != ' ') {
            decoder->strip = 0;
            break;
        }
    return bytes;
}

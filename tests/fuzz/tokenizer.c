/* A libFuzzer entry for tokenizer files and text: the input is a tokenizer.json or a .tiktoken file, a zero byte,
 * and a text. A file is refused with a message or gives a tokenizer that encodes the text; a byte-level one that has
 * all bytes gives it back. Owns nothing beyond one call. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "fuzz.h"
#include "token/token_internal.h"

static bool gives_all_bytes(const Tokenizer *tokenizer) {
    for (int byte = 0; byte < BYTES; byte++)
        if (tokenizer->byte_id[byte] == TOKEN_NONE) return false;
    return tokenizer->byte_level && tokenizer->normal_count == 0 && tokenizer->split_count == 0 && tokenizer->added_count == 0;
}

static void encode_and_decode(const Tokenizer *tokenizer, const char *text, size_t length) {
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    TokenIds ids = {0};
    Error error = {0};
    size_t at = 0, size;
    bool good = tokenizer_encode(encoder, text, length, TOKENIZER_ADD_SPECIAL, &ids, &error);
    if (!good) require_line(&error);
    TokenizerDecoder decoder = tokenizer_decoder(tokenizer, false);
    for (size_t i = 0; i < ids.count; i++) {
        require(ids.items[i] >= 0 && ids.items[i] < tokenizer_vocabulary(tokenizer));
        tokenizer_decode(&decoder, ids.items[i], &size);
        at += size;
    }
    require(!good || !gives_all_bytes(tokenizer) || tokenizer->before.count + tokenizer->after.count > 0 || at >= length);
    token_ids_free(&ids);
    tokenizer_encoder_free(encoder);
}

FUZZ(tokenizer) {
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    size_t length = zero ? (size_t)(zero - data) : size;
    int file = memfd_create("tokenizer", 0);
    char path[64];
    require(file >= 0 && write(file, data, length) == (ssize_t)length);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    Error error = {0};
    Tokenizer *tokenizer = tokenizer_open(path, &error);
    if (!tokenizer) require_line(&error);
    if (tokenizer) encode_and_decode(tokenizer, (const char *)data + length, size - length);
    tokenizer_free(tokenizer);
    close(file);
}

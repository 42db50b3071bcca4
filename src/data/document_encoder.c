/* Documents on their way from text to shards through a tokenizer: they are gathered, encoded on all threads at once,
 * and handed to their writers in the order in which they came, so the shards do not depend on the number of threads. A
 * DocumentEncoder owns the gathered text, the tokenizer and one encoder per thread; pack.c drives it. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "data/data.h"
#include "data/data_internal.h"
#include "token/tokenizer.h"

enum { GATHERED_BYTES = 1 << 24, GATHERED_DOCUMENTS = 1 << 12 };

typedef struct Document {
    ShardWriter *writer;
    int64_t *tokens; /* the writer's total */
    size_t start, size;
    TokenIds ids;
    Error error;
} Document;

struct DocumentEncoder {
    Tokenizer *tokenizer;
    TokenizerEncoder **encoders;
    int threads;
    unsigned flags;
    char *text;
    size_t text_size, text_capacity;
    Document documents[GATHERED_DOCUMENTS];
    int count;
};

DocumentEncoder *document_encoder_open(const char *path, bool plain_special, Error *error) {
    DocumentEncoder *encoder = memory_allocate(sizeof *encoder);
    encoder->flags = plain_special ? TOKENIZER_PLAIN_SPECIAL : 0;
    encoder->tokenizer = tokenizer_open(path, "", error);
    bool usable = encoder->tokenizer &&
                  (tokenizer_end_of_text(encoder->tokenizer) >= 0 ||
                      error_set(error, ERROR_DATA,
                          "%s has no token that ends a document; name it as eos_token in a tokenizer_config.json beside it", path));
    if (!usable) {
        document_encoder_free(encoder);
        return NULL;
    }
    encoder->threads = omp_get_max_threads();
    encoder->encoders = memory_allocate((size_t)encoder->threads * sizeof(TokenizerEncoder *));
    for (int i = 0; i < encoder->threads; i++) encoder->encoders[i] = tokenizer_encoder_open(encoder->tokenizer);
    return encoder;
}

void document_encoder_free(DocumentEncoder *encoder) {
    if (!encoder) return;
    for (int i = 0; i < GATHERED_DOCUMENTS; i++) token_ids_free(&encoder->documents[i].ids);
    for (int i = 0; i < encoder->threads; i++) tokenizer_encoder_free(encoder->encoders[i]);
    free(encoder->encoders);
    free(encoder->text);
    tokenizer_free(encoder->tokenizer);
    free(encoder);
}

int document_encoder_token_bytes(const DocumentEncoder *encoder) { return tokenizer_vocabulary(encoder->tokenizer) <= 1 << 16 ? 2 : 4; }

static void encode_document(const DocumentEncoder *encoder, TokenizerEncoder *tokenizer_encoder, Document *document) {
    document->ids.count = 0;
    if (tokenizer_encode(
            tokenizer_encoder, encoder->text + document->start, document->size, encoder->flags, &document->ids, &document->error))
        token_ids_append(&document->ids, tokenizer_end_of_text(encoder->tokenizer));
}

bool document_encoder_flush(DocumentEncoder *encoder, Error *error) {
#pragma omp parallel for schedule(dynamic) num_threads(encoder->threads) if (encoder->count > 1)
    for (int i = 0; i < encoder->count; i++) encode_document(encoder, encoder->encoders[omp_get_thread_num()], &encoder->documents[i]);
    for (int i = 0; i < encoder->count; i++) {
        Document *document = &encoder->documents[i];
        if (document->error.code != ERROR_NONE) {
            *error = document->error;
            return false;
        }
        if (!shard_writer_document(document->writer, document->ids.items, (int64_t)document->ids.count, error)) return false;
        *document->tokens += (int64_t)document->ids.count;
    }
    encoder->count = 0;
    encoder->text_size = 0;
    return true;
}

bool document_encoder_add(DocumentEncoder *encoder, ShardWriter *writer, int64_t *tokens, const char *text, size_t size, Error *error) {
    bool full = encoder->count == GATHERED_DOCUMENTS || (encoder->count > 0 && encoder->text_size + size > GATHERED_BYTES);
    if (full && !document_encoder_flush(encoder, error)) return false;
    size_t needed = encoder->text_size + size;
    array_reserve(encoder->text, encoder->text_capacity, needed > GATHERED_BYTES ? needed : GATHERED_BYTES);
    memcpy(encoder->text + encoder->text_size, text, size);
    Document *document = &encoder->documents[encoder->count++];
    *document = (Document){.writer = writer, .tokens = tokens, .start = encoder->text_size, .size = size, .ids = document->ids};
    encoder->text_size = needed;
    return true;
}

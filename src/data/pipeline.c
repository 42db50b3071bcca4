/* Reads, encodes and writes concurrently. One thread fills blocks with records, one thread per core
 * encodes them, and the calling thread takes them in the order in which they were read, so the
 * output does not depend on the number of threads. A failure of any thread ends all of them; the
 * failure of the earliest block is reported.
 *
 * Blocks are in a ring, which a Pipeline owns while it runs. A block with a long document takes one
 * thread many times as long as other blocks. The other threads go on meanwhile if the ring has room
 * for their blocks, so it has many slots, and AHEAD_BYTES for each thread bound its memory. */
#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "data/byte_tokenizer.h"
#include "token/tokenizer.h"
#include "data/pack_internal.h"

/* Per thread: slots of the ring; bytes of blocks in flight at which the reader waits; and the number of
 * blocks that may be in flight whatever their bytes. */
enum { AHEAD_SLOTS = 32, AHEAD_BYTES = 12 << 20, AHEAD_LEAST = 2 };

typedef enum SlotState { SLOT_FREE, SLOT_FILLED, SLOT_TAKEN, SLOT_ENCODED } SlotState;
typedef struct BlockSlot {
    SlotState state;
    bool last;     /* the reader has ended: with this block, or by its error */
    int64_t bytes; /* of the block as it was filled */
    Block block;
} BlockSlot;

/* Block n is in slot n % count. Every field below the lock is accessed under it, except blocks: a
 * FREE one belongs to the reader, a TAKEN one to an encoder, an ENCODED one to the writer. */
typedef struct Pipeline {
    const PipelineOptions *options;
    RecordReader *reader;
    pthread_mutex_t lock;
    pthread_cond_t freed, filled, encoded, returned;
    BlockSlot *slots;
    int64_t count;
    int64_t taken;                  /* the next block for an encoder */
    int64_t held, held_bytes;       /* slots in flight, from FILLED until they are FREE again; the memory of their blocks */
    int64_t held_least, held_limit; /* the reader waits while both are reached */
    bool stopped;
} Pipeline;

/* -- Encoding ------------------------------------------------------------------------------------------------------ */

size_t pipeline_cut(const void *context, const char *text, size_t size) {
    const PipelineOptions *options = context;
    size_t at = size - 1;
    if (options->filter || options->restore) return 0;
    if (options->tokenizer) return tokenizer_part_cut(options->tokenizer, text, size, size);
    if (!options->text_only) { /* cut before the last character */
        while (at > 0 && size - at < 4 && (text[at] & 0xc0) == 0x80) at--;
        return at;
    }
    /* For training a tokenizer: no word extends from a newline to a visible character after it. */
    while (at > 0 && !(text[at - 1] == '\n' && text[at] > ' ')) at--;
    return at;
}

static void append_bytes(TokenIds *ids, const char *text, size_t size) {
    array_reserve(ids->items, ids->capacity, ids->count + size + 1);
    int32_t *items = ids->items + ids->count;
#pragma omp simd
    for (size_t i = 0; i < size; i++) items[i] = (unsigned char)text[i];
    ids->count += size;
}

static unsigned special_flags(const PipelineOptions *options) { return options->special ? 0 : TOKENIZER_PLAIN_SPECIAL; }

static bool encode_record(const PipelineOptions *options, TokenizerEncoder *encoder, Block *block, Record *record) {
    unsigned flags = special_flags(options) | (record->first ? TOKENIZER_ADD_BOS : TOKENIZER_CONTINUED);
    size_t words = block->words.count;
    bool good = true;
    record->ids = block->ids.count;
    if (!encoder) append_bytes(&block->ids, record->text, record->text_size);
    else if (record->first && record->last)
        good = tokenizer_encode(encoder, record->text, record->text_size, flags, &block->ids, &block->error);
    else good = tokenizer_encode_part(encoder, record->text, record->text_size, flags, &block->ids, &block->words, &block->error);
    if (!good) return false;
    record->word_count = block->words.count - words;
    if (record->last) token_ids_append(&block->ids, encoder ? tokenizer_end_of_text(options->tokenizer) : BYTE_SEPARATOR);
    record->id_count = block->ids.count - record->ids;
    return true;
}

/* Appends the lengths of untrained and trained spans, alternating, of a conversation's tokens. */
static void take_spans(Record *record, const ChatDocument *document) {
    size_t count = document->ids.count, capacity = record->span_count;
    uint8_t trained = 0;
    for (size_t i = 0, from = 0; i <= count; i++) {
        if (i < count && document->trained[i] == trained) continue;
        array_reserve(record->spans, capacity, record->span_count + 1);
        record->spans[record->span_count++] = (int32_t)(i - from);
        from = i;
        trained = !trained;
    }
}

/* Adds the tokens of a conversation to the record. */
static bool encode_conversation(
    ChatEncoder *encoder, const json_t *json, ChatDocument *document, Block *block, Record *record, Error *error) {
    if (!chat_encode(encoder, json, document, error)) return false;
    array_reserve(block->ids.items, block->ids.capacity, block->ids.count + document->ids.count);
    memcpy(block->ids.items + block->ids.count, document->ids.items, document->ids.count * sizeof *document->ids.items);
    block->ids.count += document->ids.count;
    record->id_count += document->ids.count;
    record->text_size += document->text.size;
    record->counts.empty_answers += document->counts.empty_answers;
    record->counts.decoded_arguments += document->counts.decoded_arguments;
    record->counts.text_arguments += document->counts.text_arguments;
    for (int i = 0; i < CHAT_PARTS; i++) record->lost[i] = record->lost[i] || document->lost[i];
    take_spans(record, document);
    return true;
}

/* Checks that a prompt precedes the answer. Each token of an answer must be a target, and the first
 * token of a document is not. */
static bool has_prompt(const ChatDocument *document, Error *error) {
    return !document->trained[0] || error_set(error, ERROR_DATA, "the prompt is empty: an answer needs at least one token before it");
}

static bool encode_answer(
    ChatEncoder *encoder, const json_t *json, const char *name, ChatDocument *document, Block *block, Record *record, Error *error) {
    bool good = encode_conversation(encoder, json, document, block, record, error) && has_prompt(document, error);
    return good || error_context(error, "%s", name);
}

/* Encodes the chosen answer, then the rejected one. */
static bool encode_pair(ChatEncoder *encoder, const json_t *json, ChatDocument *document, Block *block, Record *record, Error *error) {
    json_t *chosen, *rejected;
    if (!chat_split_pair(json, &chosen, &rejected, error)) return false;
    bool good = encode_answer(encoder, chosen, "chosen", document, block, record, error);
    record->chosen_spans = record->span_count;
    good = good && encode_answer(encoder, rejected, "rejected", document, block, record, error);
    json_decref(chosen);
    json_decref(rejected);
    return good;
}

/* Removes what was added for a bad record. */
static void drop_tokens(Block *block, Record *record) {
    block->ids.count = record->ids;
    free(record->spans);
    record->spans = NULL;
    record->id_count = record->text_size = record->span_count = record->chosen_spans = 0;
    record->counts = (ChatCounts){0};
    memset(record->lost, 0, sizeof record->lost);
}

/* The encoders of a thread. */
typedef struct Encoders {
    FilterJudge *judge;     /* NULL: nothing is dropped */
    TokenizerEncoder *text; /* NULL: bytes */
    ChatEncoder *chat;      /* if set, records are conversations */
    ChatDocument document;
    ParquetValues values;
} Encoders;

/* Judges a document by the rules. Returns whether it stays. */
static bool judge_record(const PipelineOptions *options, FilterJudge *judge, Record *record, const json_t *object) {
    if (!object && filter_field_count(options->filter) > 0) {
        SCOPED_FREE char *what =
            memory_format("a rule reads the field %s, but the file has text without fields", filter_field(options->filter, 0));
        record->fatal = true;
        return record_mark(record, PACK_BAD_FIELD, what);
    }
    record->broken_rule = 1 + filter_judge(judge, object, record->text, record->text_size, record->value);
    return !record->broken_rule;
}

/* Encodes a JSON line that is a conversation or a pair of answers; a bad one has no tokens. */
static void encode_chat(const PipelineOptions *options, Encoders *encoders, Block *block, Record *record) {
    Error error = {0};
    json_auto_t *json = json_parse(record->text, record->text_size, 0, &error);
    bool object = json_is_object(json);
    if (!object) record_mark_json(record, json ? "not an object" : error.message);
    record->text_size = 0;
    record->ids = block->ids.count;
    if (!object || (encoders->judge && !judge_record(options, encoders->judge, record, json))) return;
    if (!(options->pairs ? encode_pair : encode_conversation)(encoders->chat, json, &encoders->document, block, record, &error)) {
        drop_tokens(block, record);
        record_mark(record, options->pairs ? PACK_BAD_PAIR : PACK_BAD_CHAT, error.message);
        record->fatal = error.code == ERROR_USAGE;
    }
}

/* Appends the tokens of a list. Returns false if an element is none of the vocabulary's. */
static bool append_list(const PipelineOptions *options, const json_t *list, Block *block, Record *record) {
    size_t at;
    const json_t *each;
    int64_t vocabulary = tokenizer_vocabulary(options->tokenizer);
    array_reserve(block->ids.items, block->ids.capacity, block->ids.count + json_array_size(list) + 1);
    json_array_foreach(list, at, each) {
        int64_t id = json_is_integer(each) ? json_integer_value(each) : -1;
        if (id < 0 || id >= vocabulary) {
            SCOPED_FREE char *what =
                memory_format("element %zu of %s is no token of the tokenizer, which has %" PRId64, at, options->tokens, vocabulary);
            return record_mark(record, PACK_BAD_FIELD, what);
        }
        block->ids.items[block->ids.count++] = (int32_t)id;
    }
    return true;
}

/* Takes the tokens of a record as they are; the end token follows unless it is there. */
static void encode_list(const PipelineOptions *options, Encoders *encoders, Block *block, Record *record) {
    Error error = {0};
    int32_t end = tokenizer_end_of_text(options->tokenizer);
    json_auto_t *json = record->json ? json_parse(record->text, record->text_size, 0, &error) : NULL;
    const json_t *list = json_object_get(json, options->tokens);
    record->text_size = 0;
    record->ids = block->ids.count;
    if (!record->json) record->fatal = !record_mark(record, PACK_BAD_FIELD, "tokens= reads JSON lines and Parquet, but the file has text");
    else if (!json_is_object(json)) record_mark_json(record, json ? "not an object" : error.message);
    else if (!json_is_array(list)) record_mark_missing(record, json, options->tokens);
    else if (json_array_size(list) == 0) record_mark(record, PACK_BAD_EMPTY, options->tokens);
    else if (encoders->judge && !judge_record(options, encoders->judge, record, json)) return;
    else if (append_list(options, list, block, record)) {
        if (block->ids.items[block->ids.count - 1] != end) token_ids_append(&block->ids, end);
        record->id_count = block->ids.count - record->ids;
        record->text_size = record->id_count;
        record->hash = XXH3_64bits(block->ids.items + record->ids, record->id_count * sizeof *block->ids.items);
    } else block->ids.count = record->ids;
}

/* Computes the hash and keys that identify a document's text. */
static void mark_record(const PipelineOptions *options, Record *record) {
    if (!record->first || !record->last) return;
    record->hash = XXH3_64bits(record->text, record->text_size);
    if (!options->near || record->text_size == 0 || record->size >= NEAR_BYTES) return;
    record->keys = memory_allocate(MINHASH_KEYS * sizeof *record->keys);
    minhash(record->text, record->text_size, record->keys);
}

static void encode_block(const PipelineOptions *options, Encoders *encoders, Block *block) {
    bool good = true;
    block_read_page(block, &encoders->values, options->field);
    for (size_t i = 0; i < block->count && good; i++) {
        Record *record = &block->records[i];
        json_auto_t *object = NULL;
        record->passed = options->restore && !record->left_out.what && !restore_wants(options->restore, record->file, record->line);
        if (record->passed) continue;
        record_text(record, block->text, options->chat || options->tokens ? NULL : options->field, options->invalid,
            encoders->judge ? &object : NULL);
        if (record->text_size > 0 && options->filter && filter_edits(options->filter)) record_edit(record, block->text, options->filter);
        bool lost = record->text_size == 0 && !(record->last && !record->first);
        if (!lost && encoders->judge && !options->chat && !options->tokens) lost = !judge_record(options, encoders->judge, record, object);
        if (!lost && !options->tokens) mark_record(options, record);
        if (lost) record->text_size = 0;
        else if (options->chat) encode_chat(options, encoders, block, record);
        else if (options->tokens) encode_list(options, encoders, block, record);
        else if (!options->text_only) good = encode_record(options, encoders->text, block, record);
    }
}

/* Gives the pieces of documents the ids that they have in the whole document. `ids` is scratch
 * space. */
static void join_pieces(TokenizerJoiner *joiner, Block *block, TokenIds *ids) {
    size_t words = 0;
    ids->count = 0;
    for (Record *record = block->records; record < block->records + block->count; record++) {
        TextPart part = {record->first, record->ids, record->id_count, words, record->word_count};
        record->ids = ids->count;
        tokenizer_join(joiner, &part, &block->ids, &block->words, ids);
        record->id_count = ids->count - record->ids;
        words += record->word_count;
    }
    TokenIds before = block->ids;
    block->ids = *ids;
    *ids = before;
}

/* -- Threads --------------------------------------------------------------------------------------------------------- */

/* Waits for a state of a slot; returns false if the pipeline has stopped. The lock is held. */
static bool await_condition(Pipeline *pipeline, pthread_cond_t *condition, const BlockSlot *slot, SlotState state) {
    while (!pipeline->stopped && slot->state != state) pthread_cond_wait(condition, &pipeline->lock);
    return !pipeline->stopped;
}

/* Waits until a slot is free and blocks in flight leave memory for it; returns false if the pipeline has stopped. The lock is
 * held. */
static bool await_room(Pipeline *pipeline, const BlockSlot *slot) {
    while (!pipeline->stopped &&
           (slot->state != SLOT_FREE || (pipeline->held >= pipeline->held_least && pipeline->held_bytes >= pipeline->held_limit)))
        pthread_cond_wait(&pipeline->freed, &pipeline->lock);
    return !pipeline->stopped;
}

static void *run_reader(void *context) {
    Pipeline *pipeline = context;
    pthread_mutex_lock(&pipeline->lock);
    for (int64_t number = 0;; number++) {
        BlockSlot *slot = &pipeline->slots[number % pipeline->count];
        if (!await_room(pipeline, slot)) break;
        pthread_mutex_unlock(&pipeline->lock);
        bool good = record_reader_fill(pipeline->reader, &slot->block, &slot->block.error),
             last = !good || (slot->block.count == 0 && !slot->block.page.stored);
        pthread_mutex_lock(&pipeline->lock);
        slot->last = last;
        slot->bytes = block_bytes(&slot->block);
        pipeline->held++;
        pipeline->held_bytes += slot->bytes;
        slot->state = SLOT_FILLED;
        pthread_cond_signal(&pipeline->filled);
        if (last) break;
    }
    pthread_mutex_unlock(&pipeline->lock);
    return NULL;
}

/* Encodes a block and hands it to the writer. A long block has several parts; each is encoded after the writer has taken the
 * previous one. The lock is held, except while a part is encoded. */
static void encode_slot(Pipeline *pipeline, Encoders *encoders, BlockSlot *slot) {
    bool more;
    do {
        pthread_mutex_unlock(&pipeline->lock);
        if (!slot->block.error.code) encode_block(pipeline->options, encoders, &slot->block);
        pthread_mutex_lock(&pipeline->lock);
        more = slot->block.page.stored;
        slot->state = SLOT_ENCODED;
        pthread_cond_signal(&pipeline->encoded);
    } while (more && await_condition(pipeline, &pipeline->returned, slot, SLOT_TAKEN));
}

static void *run_encoder(void *context) {
    Pipeline *pipeline = context;
    const Tokenizer *tokenizer = pipeline->options->tokenizer;
    const Chat *chat = pipeline->options->chat;
    const DocumentFilter *filter = pipeline->options->filter;
    Encoders encoders = {.judge = filter ? filter_judge_open(filter) : NULL,
        .text = tokenizer ? tokenizer_encoder_open(tokenizer) : NULL,
        .chat = chat ? chat_encoder_open(chat) : NULL};
    pthread_mutex_lock(&pipeline->lock);
    for (;;) {
        BlockSlot *slot;
        while (slot = &pipeline->slots[pipeline->taken % pipeline->count], !pipeline->stopped && slot->state != SLOT_FILLED)
            pthread_cond_wait(&pipeline->filled, &pipeline->lock);
        if (pipeline->stopped) break;
        pipeline->taken++;
        slot->state = SLOT_TAKEN;
        pthread_cond_signal(&pipeline->filled); /* the next block may be ready already */
        encode_slot(pipeline, &encoders, slot);
    }
    pthread_mutex_unlock(&pipeline->lock);
    filter_judge_free(encoders.judge);
    tokenizer_encoder_free(encoders.text);
    chat_encoder_free(encoders.chat);
    chat_document_free(&encoders.document);
    parquet_values_free(&encoders.values);
    return NULL;
}

/* Returns a block with more parts to its encoder, and the slot of any other block to the reader. */
static void return_slot(Pipeline *pipeline, BlockSlot *slot) {
    bool more = slot->block.page.stored;
    if (more) block_clear(&slot->block);
    else block_free(&slot->block);
    pthread_mutex_lock(&pipeline->lock);
    slot->state = more ? SLOT_TAKEN : SLOT_FREE;
    pipeline->held -= !more;
    pipeline->held_bytes -= more ? 0 : slot->bytes;
    if (more) pthread_cond_broadcast(&pipeline->returned);
    else pthread_cond_signal(&pipeline->freed);
    pthread_mutex_unlock(&pipeline->lock);
}

static bool take_blocks(Pipeline *pipeline, TakeBlock *take, void *context, Error *error) {
    SCOPED(token_ids_free) TokenIds joined = {0};
    const PipelineOptions *options = pipeline->options;
    TokenizerJoiner *joiner = options->tokenizer ? tokenizer_joiner_open(options->tokenizer, special_flags(options)) : NULL;
    bool good = true;
    for (int64_t number = 0; good;) {
        BlockSlot *slot = &pipeline->slots[number % pipeline->count];
        pthread_mutex_lock(&pipeline->lock);
        await_condition(pipeline, &pipeline->encoded, slot, SLOT_ENCODED);
        pthread_mutex_unlock(&pipeline->lock);
        if (slot->block.error.code) *error = slot->block.error;
        else if (slot->block.words.count > 0) join_pieces(joiner, &slot->block, &joined);
        good = !slot->block.error.code && take(context, &slot->block, error);
        if (slot->last) break;
        number += !slot->block.page.stored;
        return_slot(pipeline, slot);
    }
    tokenizer_joiner_free(joiner);
    return good;
}

static void stop(Pipeline *pipeline) {
    pthread_mutex_lock(&pipeline->lock);
    pipeline->stopped = true;
    pthread_cond_broadcast(&pipeline->freed);
    pthread_cond_broadcast(&pipeline->filled);
    pthread_cond_broadcast(&pipeline->encoded);
    pthread_cond_broadcast(&pipeline->returned);
    pthread_mutex_unlock(&pipeline->lock);
}

bool pipeline_run(const PipelineOptions *options, RecordReader *reader, TakeBlock *take, void *context, Error *error) {
    int threads = omp_get_max_threads(), started = 0;
    Pipeline pipeline = {.options = options,
        .reader = reader,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .freed = PTHREAD_COND_INITIALIZER,
        .filled = PTHREAD_COND_INITIALIZER,
        .encoded = PTHREAD_COND_INITIALIZER,
        .returned = PTHREAD_COND_INITIALIZER,
        .count = AHEAD_SLOTS * threads,
        .held_least = AHEAD_LEAST * threads + 2,
        .held_limit = (int64_t)AHEAD_BYTES * threads};
    pthread_t *handles = memory_allocate((size_t)(threads + 1) * sizeof *handles);
    pipeline.slots = memory_allocate((size_t)pipeline.count * sizeof *pipeline.slots);
    while (started <= threads && thread_start(&handles[started], started ? run_encoder : run_reader, &pipeline) == 0) started++;
    bool good = started > 1
                    ? take_blocks(&pipeline, take, context, error)
                    : error_set(error, ERROR_MEMORY, "cannot start two threads that encode text: raise the limit on processes (ulimit -u)");
    stop(&pipeline);
    while (started > 0) pthread_join(handles[--started], NULL);
    for (int64_t i = 0; i < pipeline.count; i++) block_free(&pipeline.slots[i].block);
    free(pipeline.slots);
    free(handles);
    return good;
}

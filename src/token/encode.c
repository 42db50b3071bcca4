/* Converts text to ids, in the order of the `tokenizers` library. Added tokens are cut out of the
 * raw text; the rest is normalized; added tokens that match normalized text are cut out; the rest
 * is divided into words, and words are merged. Ordinary words repeat, so each encoder caches the
 * ids of recent words. An encoder owns all state that changes while encoding; the tokenizer is
 * shared. */
#include <stdlib.h>
#include <utf8proc.h>

#include "base/array.h"
#include "base/hash.h"
#include "token/token_internal.h"

enum { CACHE_WORD = 128, CACHE_SLOTS = 1 << 17, CACHE_BYTES = 1 << 23, TEXT_LIMIT = 1 << 30 };

/* A word's bytes follow its ids in the arena; ids 0: free. Words without ids are not cached. */
typedef struct CacheSlot {
    uint64_t hash;
    uint32_t at;
    uint16_t ids, bytes;
} CacheSlot;

struct TokenizerEncoder {
    const Tokenizer *tokenizer;
    RegexScratch *scratch;
    Merger merger;
    Lattice lattice;
    Buffer normal[2], steps[STEPS]; /* steps: text rewritten by a step of the pre-tokenizer */
    CacheSlot *cache;
    char *arena;
    size_t arena_used, cache_count;
    unsigned flags;
    TokenIds *out;
    PartWords *words; /* of the part that is encoded; NULL: it is a whole text, or its words do not matter */
};

TokenizerEncoder *tokenizer_encoder_open(const Tokenizer *tokenizer) {
    TokenizerEncoder *encoder = memory_allocate(sizeof *encoder);
    encoder->tokenizer = tokenizer;
    encoder->scratch = regex_scratch_open();
    encoder->cache = memory_allocate(CACHE_SLOTS * sizeof *encoder->cache);
    encoder->arena = memory_allocate(CACHE_BYTES);
    return encoder;
}

void tokenizer_encoder_free(TokenizerEncoder *encoder) {
    if (!encoder) return;
    regex_scratch_free(encoder->scratch);
    merger_free(&encoder->merger);
    lattice_free(&encoder->lattice);
    for (int i = 0; i < 2; i++) free(encoder->normal[i].bytes);
    for (int i = 0; i < STEPS; i++) free(encoder->steps[i].bytes);
    free(encoder->cache);
    free(encoder->arena);
    free(encoder);
}

void token_ids_append(TokenIds *ids, int32_t id) {
    array_reserve(ids->items, ids->capacity, ids->count + 1);
    ids->items[ids->count++] = id;
}

void token_ids_free(TokenIds *ids) {
    free(ids->items);
    *ids = (TokenIds){0};
}

/* -- Words --------------------------------------------------------------------------------------------------------- */

static CacheSlot *remember_word(TokenizerEncoder *encoder, CacheSlot *slot, uint64_t hash, Span word, const int32_t *ids, size_t count) {
    size_t size = count * sizeof *ids + ((word.size + 3) & ~(size_t)3);
    if (encoder->arena_used + size > CACHE_BYTES || encoder->cache_count > CACHE_SLOTS / 2) { /* full: start over */
        memset(encoder->cache, 0, CACHE_SLOTS * sizeof *encoder->cache);
        encoder->arena_used = encoder->cache_count = 0;
        slot = &encoder->cache[hash & (CACHE_SLOTS - 1)];
    }
    *slot = (CacheSlot){hash, (uint32_t)encoder->arena_used, (uint16_t)count, (uint16_t)word.size};
    memcpy(encoder->arena + slot->at, ids, count * sizeof *ids);
    memcpy(encoder->arena + slot->at + count * sizeof *ids, word.bytes, word.size);
    encoder->arena_used += size;
    encoder->cache_count++;
    return slot;
}

/* Returns the slot of a word; if the word is not cached, the free slot for it. */
static CacheSlot *find_cache_slot(const TokenizerEncoder *encoder, uint64_t hash, Span word) {
    for (size_t place = hash & (CACHE_SLOTS - 1);; place = (place + 1) & (CACHE_SLOTS - 1)) {
        CacheSlot *slot = &encoder->cache[place];
        bool same = slot->hash == hash && slot->bytes == word.size;
        if (slot->ids == 0) return slot;
        if (same && memcmp(encoder->arena + slot->at + slot->ids * sizeof(int32_t), word.bytes, word.size) == 0) return slot;
    }
}

static int32_t cached_id(const TokenizerEncoder *encoder, const CacheSlot *slot, int index) {
    int32_t id;
    memcpy(&id, encoder->arena + slot->at + (size_t)index * sizeof id, sizeof id);
    return id;
}

/* Returns the bound that unigram_encode_word returned for a word: the last cached entry. */
static float cached_bound(const TokenizerEncoder *encoder, const CacheSlot *slot) {
    int32_t last = cached_id(encoder, slot, slot->ids - 1);
    float holds;
    memcpy(&holds, &last, sizeof holds);
    return holds;
}

/* Appends the cached ids of a word if they are also correct after the text so far; otherwise
 * returns false. */
static bool use_cached_unigram(TokenizerEncoder *encoder, const CacheSlot *slot) {
    const Tokenizer *tokenizer = encoder->tokenizer;
    double score = unigram_start(encoder->lattice.score);
    float holds = cached_bound(encoder, slot);
    if (score > holds || -score > holds) return false;
    for (int i = 0; i < slot->ids - 1; i++) {
        int32_t id = cached_id(encoder, slot, i);
        if (tokenizer->sentencepiece) score = (float)(tokenizer->scores[id] + score);
        token_ids_append(encoder->out, id);
    }
    encoder->lattice.score = score;
    return true;
}

/* With TOKENIZER_PLAIN_SPECIAL, the same bytes may have different tokens, so the flag is part of
 * the hash. */
static uint64_t hash_word(const TokenizerEncoder *encoder, Span word) {
    return hash_bytes(word.bytes, word.size) ^ (encoder->flags & TOKENIZER_PLAIN_SPECIAL);
}

/* Returns the slot of a word with its ids and their bound. */
static const CacheSlot *find_unigram_slot(TokenizerEncoder *encoder, Span word) {
    uint64_t hash = hash_word(encoder, word);
    CacheSlot *slot = find_cache_slot(encoder, hash, word);
    if (slot->ids > 0) return slot;
    SCOPED(token_ids_free) TokenIds ids = {0};
    float holds = unigram_encode_word(encoder->tokenizer, &encoder->lattice, word, &ids);
    int32_t last;
    memcpy(&last, &holds, sizeof last);
    token_ids_append(&ids, last);
    return remember_word(encoder, slot, hash, word, ids.items, ids.count);
}

static void encode_unigram_word(TokenizerEncoder *encoder, Span word) {
    if (word.size <= CACHE_WORD && use_cached_unigram(encoder, find_unigram_slot(encoder, word))) return;
    unigram_encode(encoder->tokenizer, &encoder->lattice, word, encoder->out);
}

/* Encodes a word for a joiner. A long word is left to it. */
static void encode_part_word(TokenizerEncoder *encoder, Span word) {
    PartWords *words = encoder->words;
    PartWord part = {.ids = encoder->out->count, .text = words->text_size, .size = (uint32_t)word.size, .holds = -1};
    if (word.size <= CACHE_WORD) {
        const CacheSlot *slot = find_unigram_slot(encoder, word);
        part.count = slot->ids - 1u;
        part.holds = cached_bound(encoder, slot);
        for (int i = 0; i < slot->ids - 1; i++) token_ids_append(encoder->out, cached_id(encoder, slot, i));
    }
    array_reserve(words->text, words->text_capacity, words->text_size + word.size);
    memcpy(words->text + words->text_size, word.bytes, word.size);
    words->text_size += word.size;
    array_reserve(words->items, words->capacity, words->count + 1);
    words->items[words->count++] = part;
}

static void encode_word(TokenizerEncoder *encoder, Span word) {
    TokenIds *out = encoder->out;
    if (encoder->tokenizer->scores) {
        (encoder->words ? encode_part_word : encode_unigram_word)(encoder, word);
        return;
    }
    if (word.size > CACHE_WORD) {
        merge_word(encoder->tokenizer, &encoder->merger, word.bytes, word.size, out);
        return;
    }
    uint64_t hash = hash_word(encoder, word);
    CacheSlot *slot = find_cache_slot(encoder, hash, word);
    for (int i = 0; i < slot->ids; i++) token_ids_append(out, cached_id(encoder, slot, i));
    if (slot->ids > 0) return;
    size_t before = out->count;
    merge_word(encoder->tokenizer, &encoder->merger, word.bytes, word.size, out);
    if (out->count > before && !encoder->merger.lost) remember_word(encoder, slot, hash, word, out->items + before, out->count - before);
}

static const char metaspace[] = "\xE2\x96\x81";
enum { METASPACE = sizeof metaspace - 1 };

/* If no merge crosses the start of a run of U+2581, cuts a long text there; the ids are the
 * same. */
static void encode_pre_token(TokenizerEncoder *encoder, Span text) {
    size_t start = 0, at = 0;
    while (encoder->tokenizer->space_begins_words && at < text.size) {
        const char *found = memmem(text.bytes + at, text.size - at, metaspace, METASPACE);
        if (!found) break;
        size_t place = (size_t)(found - text.bytes);
        if (place > at && place > start) {
            encode_word(encoder, (Span){text.bytes + start, place - start});
            start = place;
        }
        at = place + METASPACE;
    }
    if (start < text.size) encode_word(encoder, (Span){text.bytes + start, text.size - start});
}

/* -- Division into words ------------------------------------------------------------------------------------------- */

static bool divide(TokenizerEncoder *encoder, int step, Span text, bool at_start, Error *error);

/* The output of one step on a text. Matches and the text between them arrive in order; `behavior`
 * says how to join them. */
typedef struct Division {
    TokenizerEncoder *encoder;
    int next;
    Span text;
    bool at_start;
    SplitBehavior behavior;
    bool waiting, waiting_matched;
    size_t start, end; /* bounds of the waiting part */
} Division;

static bool pass_text_on(Division *division, size_t start, size_t end, Error *error) {
    return divide(
        division->encoder, division->next, (Span){division->text.bytes + start, end - start}, division->at_start && start == 0, error);
}

static bool pass_waiting(Division *division, Error *error) {
    bool waiting = division->waiting;
    division->waiting = false;
    return !waiting || pass_text_on(division, division->start, division->end, error);
}

static bool joins(const Division *division, bool matched) {
    switch (division->behavior) {
    case SPLIT_CONTIGUOUS: return matched == division->waiting_matched;
    case SPLIT_WITH_PREVIOUS: return matched && !division->waiting_matched;
    case SPLIT_WITH_NEXT: return !matched && division->waiting_matched;
    default: return false;
    }
}

static bool take_match(Division *division, bool matched, size_t start, size_t end, Error *error) {
    if (division->behavior == SPLIT_ISOLATED) return pass_text_on(division, start, end, error);
    if (division->behavior == SPLIT_REMOVED) return matched || pass_text_on(division, start, end, error);
    if (division->waiting && joins(division, matched)) {
        division->end = end;
    } else {
        if (!pass_waiting(division, error)) return false;
        division->start = start;
        division->end = end;
        division->waiting = true;
    }
    division->waiting_matched = matched;
    return true;
}

/* An empty match divides the text at its place. */
static bool divide_by_pattern(Division *division, const SplitStep *step, Error *error) {
    Span text = division->text;
    RegexSearch search = {.scratch = division->encoder->scratch, .text = text};
    size_t taken = 0, from = 0, start, end, size;
    while (taken < text.size && from <= text.size) {
        int found = pattern_find(&step->pattern, &search, from, &start, &end, error);
        if (found < 0) return false;
        if (found == 0) break;
        if (start > taken && !take_match(division, step->invert, taken, start, error)) return false;
        if (!take_match(division, !step->invert, start, end, error)) return false;
        taken = from = end;
        if (start == end) from += end < text.size ? (text_character(text.bytes + end, &size), size) : 1;
    }
    if (taken < text.size && !take_match(division, step->invert, taken, text.size, error)) return false;
    return pass_waiting(division, error);
}

/* Returns a copy of the text with a space in front, or the text itself if it begins with a
 * space. */
static Span with_space(Buffer *buffer, Span text) {
    if (text.bytes[0] == ' ') return text;
    buffer->size = 0;
    buffer_append(buffer, " ", 1);
    buffer_append(buffer, text.bytes, text.size);
    return buffer_span(buffer);
}

/* Replaces spaces by the step's character, and may put one in front of the text. */
static Span with_metaspaces(Buffer *buffer, const SplitStep *step, Span text, bool at_start) {
    Span mark = buffer_span(&step->pattern.text);
    bool marked = text.bytes[0] == ' ' || (text.size >= mark.size && memcmp(text.bytes, mark.bytes, mark.size) == 0);
    buffer->size = 0;
    if (!marked && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && at_start)))
        buffer_append(buffer, mark.bytes, mark.size);
    text_replace(buffer, text, (Span){" ", 1}, mark);
    return buffer_span(buffer);
}

static bool divide(TokenizerEncoder *encoder, int step_index, Span text, bool at_start, Error *error) {
    if (text.size == 0) return true;
    if (step_index == encoder->tokenizer->split_count) return encode_pre_token(encoder, text), true;
    const SplitStep *step = &encoder->tokenizer->splits[step_index];
    Buffer *buffer = &encoder->steps[step_index];
    if (step->kind == SPLIT_PREFIX_SPACE) text = with_space(buffer, text);
    if (step->kind == SPLIT_METASPACE) text = with_metaspaces(buffer, step, text, at_start);
    if (step->whole) return divide(encoder, step_index + 1, text, at_start, error);
    Division division = {.encoder = encoder, .next = step_index + 1, .text = text, .at_start = at_start, .behavior = step->behavior};
    return divide_by_pattern(&division, step, error);
}

/* -- Added tokens -------------------------------------------------------------------------------------------------- */

static bool is_word_character(const char *text, size_t length, bool last) {
    if (length == 0) return false;
    size_t start = last ? length - 1 : 0, size;
    while (last && start > 0 && length - start < 4 && (text[start] & 0xC0) == 0x80) start--;
    if (text_well_formed(text + start, length - start < 4 ? length - start : 4) == 0) return false;
    uint32_t character = text_character(text + start, &size);
    const char *category = utf8proc_category_string((utf8proc_int32_t)character);
    return strchr("LM", category[0]) || !strcmp(category, "Nd") || !strcmp(category, "Nl") || !strcmp(category, "Pc") ||
           character == 0x200C || character == 0x200D || (character >= 0x24B6 && character <= 0x24E9);
}

static bool encode_raw(TokenizerEncoder *encoder, Span text, bool at_start, Error *error);

static bool encode_between(TokenizerEncoder *encoder, bool raw, Span text, bool at_start, Error *error) {
    if (text.size == 0) return true;
    return raw ? encode_raw(encoder, text, at_start, error) : divide(encoder, 0, text, at_start, error);
}

/* Returns whether a match counts, and extends its bounds over the white space that the token
 * strips. `taken` is the start of the text before the match. */
static bool accept(const TokenizerEncoder *encoder, const AddedToken *token, Span text, size_t taken, size_t *start, size_t *end) {
    if (token->special && (encoder->flags & TOKENIZER_PLAIN_SPECIAL)) return false;
    if (token->single_word &&
        (is_word_character(text.bytes, *start, true) || is_word_character(text.bytes + *end, text.size - *end, false)))
        return false;
    if (token->left_strip) {
        *start -= text_trailing_spaces(text.bytes, *start);
        if (*start < taken) *start = taken;
    }
    if (token->right_strip) *end += text_spaces(text.bytes + *end, text.size - *end);
    return true;
}

/* Cuts out the added tokens of one trie and encodes the text between them. */
static bool encode_around_added(TokenizerEncoder *encoder, bool raw, Span text, bool at_start, Error *error) {
    const Trie *trie = raw ? &encoder->tokenizer->raw : &encoder->tokenizer->normal;
    size_t taken = 0, matched = 0;
    for (size_t at = 0; trie->nodes > 0 && at < text.size;) {
        int32_t index =
            trie->first[(unsigned char)text.bytes[at]] ? trie_match(trie, text.bytes + at, text.size - at, &matched) : TOKEN_NONE;
        if (index == TOKEN_NONE) {
            at++;
            continue;
        }
        const AddedToken *token = &encoder->tokenizer->added[index];
        size_t start = at, end = at + matched;
        at = end;
        if (!accept(encoder, token, text, taken, &start, &end)) continue;
        if (start > taken && !encode_between(encoder, raw, (Span){text.bytes + taken, start - taken}, at_start && taken == 0, error))
            return false;
        token_ids_append(encoder->out, token->id);
        taken = end;
    }
    return encode_between(encoder, raw, (Span){text.bytes + taken, text.size - taken}, at_start && taken == 0, error);
}

static bool encode_well_formed(TokenizerEncoder *encoder, Span text, bool at_start, Error *error) {
    Span normal;
    bool continued = at_start && (encoder->flags & TOKENIZER_CONTINUED);
    if (!normalize(encoder->tokenizer, encoder->scratch, text, continued, &encoder->normal[0], &encoder->normal[1], &normal, error))
        return false;
    return encode_around_added(encoder, false, normal, at_start, error);
}

/* Encodes text without raw added tokens: well-formed stretches, and each ill-formed stretch as one
 * word. */
static bool encode_raw(TokenizerEncoder *encoder, Span text, bool at_start, Error *error) {
    if (encoder->tokenizer->sentencepiece) return encode_well_formed(encoder, text, at_start, error);
    for (size_t at = 0; at < text.size;) {
        size_t size = text_well_formed(text.bytes + at, text.size - at);
        if (size > 0 && !encode_well_formed(encoder, (Span){text.bytes + at, size}, at_start && at == 0, error)) return false;
        at += size;
        size = text_ill_formed(text.bytes + at, text.size - at);
        if (size > 0) encode_word(encoder, (Span){text.bytes + at, size});
        at += size;
    }
    return true;
}

bool tokenizer_encode(TokenizerEncoder *encoder, const char *text, size_t length, unsigned flags, TokenIds *out, Error *error) {
    if (length > TEXT_LIMIT)
        return error_set(error, ERROR_DATA, "a text has %zu bytes; the limit is %d: divide it into documents", length, TEXT_LIMIT);
    const TokenIds *before = &encoder->tokenizer->before, *after = &encoder->tokenizer->after;
    bool special = flags & TOKENIZER_ADD_SPECIAL, begins = flags & (TOKENIZER_ADD_SPECIAL | TOKENIZER_ADD_BOS);
    encoder->out = out;
    encoder->flags = flags;
    encoder->lattice.score = 0;
    encoder->lattice.plain = encoder->merger.plain = flags & TOKENIZER_PLAIN_SPECIAL;
    encoder->merger.lost = false;
    for (size_t i = 0; begins && encoder->tokenizer->bos != BOS_FALSE && i < before->count; i++) token_ids_append(out, before->items[i]);
    if (length > 0 && !encode_around_added(encoder, true, (Span){text, length}, true, error)) return false;
    for (size_t i = 0; special && i < after->count; i++) token_ids_append(out, after->items[i]);
    return !encoder->merger.lost ||
           error_set(error, ERROR_DATA,
               "the text contains a character that the tokenizer encodes only with a special token: set special=true to allow that");
}

bool tokenizer_encode_part(
    TokenizerEncoder *encoder, const char *text, size_t length, unsigned flags, TokenIds *out, PartWords *words, Error *error) {
    encoder->words = unigram_sums(encoder->tokenizer) ? words : NULL;
    bool good = tokenizer_encode(encoder, text, length, flags, out, error);
    encoder->words = NULL;
    return good;
}

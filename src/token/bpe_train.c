/* Learns a byte-level BPE vocabulary. A pre-tokenizer divides documents into words, which are
 * counted in a table. Then the most frequent pair of adjacent symbols becomes a token, again and
 * again. Pair counts are updated incrementally: a merge touches only the words with its pair. A
 * heap gives the next pair; an entry with an outdated count is pushed again with the right one.
 * Ties go to the lower ids, as in the `tokenizers` library, so the same text gives the same file. A
 * trainer owns everything until tokenizer_trainer_free. */
#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <omp.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/array.h"
#include "token/json_keys_internal.h"
#include "token/token_internal.h"

enum { END_OF_TEXT = 0, FIRST_BYTE = 1, CHUNK = 1 << 22, WORDS_LIMIT = INT32_MAX };

/* A pair that may be merged, its count when it became a candidate, and the words that may contain
 * it. */
typedef struct PairCandidate {
    int64_t count;
    uint64_t pair;
    uint32_t *words, word_count;
} PairCandidate;

/* Words by their bytes; the map's id is the index of the count. */
typedef struct WordCounts {
    TokenMap words;
    int64_t *counts;
} WordCounts;

struct TokenizerTrainer {
    TokenizerTraining options;
    const KnownPattern *pattern;
    Regex *regex;
    WordCounts total;

    /* While learning: the symbols of all words, concatenated. */
    int32_t *symbols;
    size_t *start;
    uint32_t *length;
    PairMap pairs; /* counts by pair, never negative */
    PairCandidate *heap;
    size_t heap_count, heap_capacity;

    TokenMap spelled; /* ids by the tokens' bytes */
    Span *token;      /* the tokens' bytes; owned, except those of <|endoftext|> */
    int32_t token_count;
    uint64_t *merges; /* left << 32 | right */
    size_t merge_count;
};

/* -- Counting words ------------------------------------------------------------------------------------------------ */

static void count_word(WordCounts *counts, const char *bytes, size_t size, int64_t times) {
    int32_t index = token_map_get(&counts->words, bytes, size);
    if (index == TOKEN_NONE) {
        size_t count = counts->words.count;
        index = (int32_t)count;
        array_append(counts->counts, count, 0);
        token_map_put(&counts->words, bytes, size, index);
    }
    assert(counts->counts);
    counts->counts[index] += times;
}

static void free_counts(WordCounts *counts) {
    token_map_free(&counts->words);
    free(counts->counts);
}

static bool count_well_formed(const Regex *regex, RegexScratch *scratch, Span text, WordCounts *counts, Error *error) {
    RegexSearch search = {.scratch = scratch, .text = text};
    size_t at = 0, start, end;
    while (at < text.size) {
        int found = regex_find(regex, &search, at, &start, &end, error);
        if (found < 0) return false;
        if (found == 0 || end == start) start = end = text.size;
        if (start > at) count_word(counts, text.bytes + at, start - at, 1);
        if (end > start) count_word(counts, text.bytes + start, end - start, 1);
        at = end;
    }
    return true;
}

static bool count_chunk(const Regex *regex, Span text, WordCounts *counts, Error *error) {
    RegexScratch *scratch = regex_scratch_open();
    bool good = true;
    for (size_t at = 0; good && at < text.size;) {
        size_t size = text_well_formed(text.bytes + at, text.size - at);
        good = count_well_formed(regex, scratch, (Span){text.bytes + at, size}, counts, error);
        at += size;
        size = text_ill_formed(text.bytes + at, text.size - at);
        if (size > 0) count_word(counts, text.bytes + at, size, 1);
        at += size;
    }
    regex_scratch_free(scratch);
    return good;
}

static bool is_plain(char byte) { return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '.' || byte == ','; }

/* Returns where a long text may be cut without changing a word: after a newline between two
 * characters of is_plain. */
static size_t chunk_end(Span text, size_t from) {
    size_t at = from + CHUNK;
    while (at < text.size) {
        const char *newline = memchr(text.bytes + at, '\n', text.size - at);
        if (!newline || newline + 1 == text.bytes + text.size) break;
        if (is_plain(newline[-1]) && is_plain(newline[1])) return (size_t)(newline - text.bytes) + 1;
        at = (size_t)(newline - text.bytes) + 1;
    }
    return text.size;
}

static void add_counts(WordCounts *total, const WordCounts *part) {
    for (size_t i = 0; part->words.slots && i <= part->words.mask; i++) {
        const TokenSlot *slot = &part->words.slots[i];
        if (slot->id != TOKEN_NONE) count_word(total, part->words.pool.bytes + slot->at, slot->length, part->counts[slot->id]);
    }
}

bool tokenizer_trainer_add(TokenizerTrainer *trainer, const char *text, size_t length, Error *error) {
    bool good = true;
    for (size_t at = 0; good && at < length;) {
        enum { TOGETHER = 64 };
        Span chunks[TOGETHER];
        int count = 0;
        for (; count < TOGETHER && at < length; count++) {
            size_t end = chunk_end((Span){text, length}, at);
            chunks[count] = (Span){text + at, end - at};
            at = end;
        }
        WordCounts parts[TOGETHER] = {0};
        Error errors[TOGETHER] = {0};
#pragma omp parallel for schedule(dynamic) if (count > 1)
        for (int i = 0; i < count; i++) count_chunk(trainer->regex, chunks[i], &parts[i], &errors[i]);
        for (int i = 0; i < count; i++) {
            if (good && errors[i].code != ERROR_NONE) {
                *error = errors[i];
                good = false;
            }
            if (good) add_counts(&trainer->total, &parts[i]);
            free_counts(&parts[i]);
        }
        if (good && trainer->total.words.count > WORDS_LIMIT / 2)
            good = error_set(error, ERROR_DATA, "the text has more than %d distinct words: train on a part of it", WORDS_LIMIT / 2);
    }
    return good;
}

/* -- The heap of candidates ---------------------------------------------------------------------------------------- */

static bool comes_before(const PairCandidate *left, const PairCandidate *right) {
    return left->count != right->count ? left->count > right->count : left->pair < right->pair;
}

static void queue_push(TokenizerTrainer *trainer, PairCandidate candidate) {
    array_reserve(trainer->heap, trainer->heap_capacity, trainer->heap_count + 1);
    size_t at = trainer->heap_count++;
    for (; at > 0 && comes_before(&candidate, &trainer->heap[(at - 1) / 2]); at = (at - 1) / 2)
        trainer->heap[at] = trainer->heap[(at - 1) / 2];
    trainer->heap[at] = candidate;
}

static PairCandidate queue_pop(TokenizerTrainer *trainer) {
    PairCandidate *heap = trainer->heap, top = heap[0], last = heap[--trainer->heap_count];
    size_t at = 0;
    for (size_t child; (child = at * 2 + 1) < trainer->heap_count; at = child) {
        if (child + 1 < trainer->heap_count && comes_before(&heap[child + 1], &heap[child])) child++;
        if (!comes_before(&heap[child], &last)) break;
        heap[at] = heap[child];
    }
    if (trainer->heap_count > 0) heap[at] = last;
    return top;
}

/* -- Learning ------------------------------------------------------------------------------------------------------ */

static int64_t *count_of(TokenizerTrainer *trainer, uint64_t pair) {
    uint64_t *count = pair_map_put(&trainer->pairs, pair);
    if (*count == PAIR_NONE) *count = 0;
    return (int64_t *)count;
}

/* Pairs that one step found, with the words that contain them; not counted yet. */
typedef struct PairFound {
    PairMap index;
    PairCandidate *items;
    size_t count;
} PairFound;

static void note_found(PairFound *found, uint64_t pair, uint32_t word) {
    uint64_t *index = pair_map_put(&found->index, pair);
    if (*index == PAIR_NONE) {
        *index = found->count;
        array_append(found->items, found->count, (PairCandidate){.pair = pair});
    }
    PairCandidate *item = &found->items[*index];
    if (item->word_count == 0 || item->words[item->word_count - 1] != word) array_append(item->words, item->word_count, word);
}

/* Turns the found pairs into candidates, which take over their words. */
static void push_found(TokenizerTrainer *trainer, PairFound *found) {
    for (size_t i = 0; i < found->count; i++) {
        PairCandidate item = found->items[i];
        item.count = *count_of(trainer, item.pair);
        if (item.count > 0) queue_push(trainer, item);
        else free(item.words);
    }
    pair_map_free(&found->index);
    free(found->items);
    *found = (PairFound){0};
}

static void add_trained_token(TokenizerTrainer *trainer, const char *bytes, size_t size) {
    char *copy = memory_allocate(size);
    memcpy(copy, bytes, size);
    token_map_put(&trainer->spelled, bytes, size, trainer->token_count);
    trainer->token[trainer->token_count++] = (Span){copy, size};
}

/* Assigns ids to bytes in the order of the characters that represent them. */
static void add_bytes(TokenizerTrainer *trainer, int32_t byte_id[BYTES]) {
    for (uint32_t character = 0; trainer->token_count < FIRST_BYTE + BYTES; character++)
        for (int byte = 0; byte < BYTES; byte++) {
            if (text_byte_character(byte) != character) continue;
            byte_id[byte] = trainer->token_count;
            add_trained_token(trainer, &(char){(char)byte}, 1);
        }
}

/* Converts words to symbols and counts all their pairs. */
static void lay_out_words(TokenizerTrainer *trainer) {
    const TokenMap *words = &trainer->total.words;
    int32_t byte_id[BYTES];
    PairFound found = {0};
    size_t at = 0;
    trainer->token = memory_allocate((size_t)trainer->options.vocabulary * sizeof *trainer->token);
    trainer->token[trainer->token_count++] = (Span){"<|endoftext|>", 13};
    token_map_put(&trainer->spelled, "<|endoftext|>", 13, END_OF_TEXT);
    add_bytes(trainer, byte_id);
    trainer->symbols = memory_allocate(words->pool.size * sizeof *trainer->symbols);
    trainer->start = memory_allocate(words->count * sizeof *trainer->start);
    trainer->length = memory_allocate(words->count * sizeof *trainer->length);
    for (size_t i = 0; words->slots && i <= words->mask; i++) {
        const TokenSlot *slot = &words->slots[i];
        if (slot->id == TOKEN_NONE) continue;
        int32_t *symbols = trainer->symbols + at;
        trainer->start[slot->id] = at;
        trainer->length[slot->id] = slot->length;
        for (uint32_t j = 0; j < slot->length; j++) symbols[j] = byte_id[(unsigned char)words->pool.bytes[slot->at + j]];
        for (uint32_t j = 0; j + 1 < slot->length; j++) {
            uint64_t pair = pair_key((uint32_t)symbols[j], (uint32_t)symbols[j + 1]);
            *count_of(trainer, pair) += trainer->total.counts[slot->id];
            note_found(&found, pair, (uint32_t)slot->id);
        }
        at += slot->length;
    }
    push_found(trainer, &found);
}

static void change(TokenizerTrainer *trainer, PairFound *found, int32_t left, int32_t right, int64_t times, uint32_t word) {
    uint64_t pair = pair_key((uint32_t)left, (uint32_t)right);
    *count_of(trainer, pair) += times;
    if (times > 0) note_found(found, pair, word);
}

/* Replaces the pair in one word, from left to right. */
static void merge_in_word(TokenizerTrainer *trainer, uint32_t word, int32_t left, int32_t right, int32_t joined, PairFound *found) {
    int32_t *symbols = trainer->symbols + trainer->start[word];
    uint32_t length = trainer->length[word], kept = 0;
    int64_t times = trainer->total.counts[word];
    for (uint32_t i = 0; i < length; kept++) {
        if (i + 1 >= length || symbols[i] != left || symbols[i + 1] != right) {
            symbols[kept] = symbols[i++];
            continue;
        }
        if (kept > 0) {
            change(trainer, found, symbols[kept - 1], left, -times, word);
            change(trainer, found, symbols[kept - 1], joined, times, word);
        }
        if (i + 2 < length) {
            change(trainer, found, right, symbols[i + 2], -times, word);
            change(trainer, found, joined, symbols[i + 2], times, word);
        }
        symbols[kept] = joined;
        i += 2;
    }
    trainer->length[word] = kept;
}

/* Returns the token that two tokens form; other parts may have formed it already. */
static int32_t join_pair(TokenizerTrainer *trainer, int32_t left, int32_t right) {
    SCOPED(buffer_free) Buffer bytes = {0};
    buffer_append(&bytes, trainer->token[left].bytes, trainer->token[left].size);
    buffer_append(&bytes, trainer->token[right].bytes, trainer->token[right].size);
    int32_t id = token_map_get(&trainer->spelled, bytes.bytes, bytes.size);
    if (id == TOKEN_NONE) {
        id = trainer->token_count;
        add_trained_token(trainer, bytes.bytes, bytes.size);
    }
    return id;
}

static void learn(TokenizerTrainer *trainer) {
    while (trainer->token_count < trainer->options.vocabulary && trainer->heap_count > 0) {
        PairCandidate top = queue_pop(trainer);
        int64_t count = *count_of(trainer, top.pair);
        if (count != top.count) {
            top.count = count;
            queue_push(trainer, top);
            continue;
        }
        if (count < trainer->options.minimum_count) {
            free(top.words);
            break;
        }
        PairFound found = {0};
        int32_t left = (int32_t)(top.pair >> 32), right = (int32_t)(uint32_t)top.pair, joined = join_pair(trainer, left, right);
        array_append(trainer->merges, trainer->merge_count, top.pair);
        for (uint32_t i = 0; i < top.word_count; i++) merge_in_word(trainer, top.words[i], left, right, joined, &found);
        push_found(trainer, &found);
        free(top.words);
    }
}

/* -- The file ------------------------------------------------------------------------------------------------------ */

/* Appends a token in GPT-2's alphabet. */
static void spell(Buffer *text, Span token) {
    for (size_t i = 0; i < token.size; i++) {
        char character[5];
        buffer_append(text, character, tokenizer_spell_byte((unsigned char)token.bytes[i], character));
    }
}

static json_t *spelled_vocabulary(const TokenizerTrainer *trainer) {
    json_t *vocabulary = json_object();
    json_object_set_new(vocabulary, trainer->token[END_OF_TEXT].bytes, json_integer(END_OF_TEXT));
    for (int32_t i = FIRST_BYTE; i < trainer->token_count; i++) {
        SCOPED(buffer_free) Buffer text = {0};
        spell(&text, trainer->token[i]);
        json_object_setn_new(vocabulary, text.bytes, text.size, json_integer(i));
    }
    return vocabulary;
}

/* Spells each merge as "left right", the form that all versions of the library read. */
static json_t *spelled_merges(const TokenizerTrainer *trainer) {
    json_t *merges = json_array();
    for (size_t i = 0; i < trainer->merge_count; i++) {
        SCOPED(buffer_free) Buffer text = {0};
        spell(&text, trainer->token[trainer->merges[i] >> 32]);
        buffer_append(&text, " ", 1);
        spell(&text, trainer->token[(uint32_t)trainer->merges[i]]);
        json_array_append_new(merges, json_stringn(text.bytes, text.size));
    }
    return merges;
}

static json_t *byte_level(bool use_regex) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", use_regex);
}

static json_t *pre_tokenizer(const TokenizerTrainer *trainer) {
    if (strcmp(trainer->pattern->name, "gpt2") == 0) return byte_level(true);
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex",
        trainer->pattern->json, "behavior", "Isolated", "invert", 0, byte_level(false));
}

static json_t *trained_json(const TokenizerTrainer *trainer) {
    json_t *added = json_pack("[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}]", "id", END_OF_TEXT, "content", trainer->token[END_OF_TEXT].bytes,
        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "vocab", spelled_vocabulary(trainer),
        "merges", spelled_merges(trainer));
    return json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding", "added_tokens", added,
        "normalizer", "pre_tokenizer", pre_tokenizer(trainer), "post_processor", "decoder", byte_level(true), "model", model);
}

static bool write_tokenizer_file(const char *path, const json_t *root, Error *error) {
    SCOPED_FREE char *json = json_dumps(root, JSON_INDENT(1));
    SCOPED_FREE char *text = json ? memory_format("%s\n", json) : NULL;
    if (!text) return error_set(error, ERROR_DATA, "out of memory for %s: free some", path);
    return file_write(path, text, (int64_t)strlen(text), error) || error_recode(error, ERROR_DATA);
}

/* -- Opening and closing ------------------------------------------------------------------------------------------- */

TokenizerTrainer *tokenizer_trainer_open(const TokenizerTraining *training, Error *error) {
    const KnownPattern *pattern = known_pattern(training->pattern);
    if (!pattern || !pattern->json) {
        error_set(error, ERROR_USAGE, "pattern='%s' is not a pattern for training: use gpt2, llama3 or qwen", training->pattern);
        return NULL;
    }
    if (training->vocabulary < FIRST_BYTE + BYTES || training->vocabulary > MAXIMUM_ID || training->minimum_count < 1) {
        error_set(error, ERROR_USAGE,
            "vocabulary=%d with minimum_count=%" PRId64 " is out of range: use a vocabulary of %d to %d and a count of at least 1",
            training->vocabulary, training->minimum_count, FIRST_BYTE + BYTES, MAXIMUM_ID);
        return NULL;
    }
    TokenizerTrainer *trainer = memory_allocate(sizeof *trainer);
    trainer->options = *training;
    trainer->pattern = pattern;
    trainer->regex = regex_open(pattern->json, strlen(pattern->json), REGEX_ONIGURUMA, error);
    if (trainer->regex) return trainer;
    tokenizer_trainer_free(trainer);
    return NULL;
}

bool tokenizer_trainer_finish(TokenizerTrainer *trainer, const char *path, int32_t *learned, Error *error) {
    if (trainer->total.words.count == 0) return error_set(error, ERROR_DATA, "the input contains no text: give a file with text");
    lay_out_words(trainer);
    learn(trainer);
    *learned = trainer->token_count;
    json_auto_t *root = trained_json(trainer);
    return root ? write_tokenizer_file(path, root, error) : error_set(error, ERROR_INTERNAL, "the vocabulary cannot be written as JSON");
}

void tokenizer_trainer_free(TokenizerTrainer *trainer) {
    if (!trainer) return;
    regex_free(trainer->regex);
    free_counts(&trainer->total);
    for (size_t i = 0; i < trainer->heap_count; i++) free(trainer->heap[i].words);
    for (int32_t i = FIRST_BYTE; i < trainer->token_count; i++) free((char *)trainer->token[i].bytes);
    free(trainer->symbols);
    free(trainer->start);
    free(trainer->length);
    pair_map_free(&trainer->pairs);
    free(trainer->heap);
    token_map_free(&trainer->spelled);
    free(trainer->token);
    free(trainer->merges);
    free(trainer);
}

/* Unigram models: find the division of a text into tokens with the greatest sum of scores, by
 * Viterbi's algorithm over the bytes of the text. SentencePiece adds scores in single precision
 * from the start of a text, so rounding decides between sums that are nearly equal. To give the ids
 * of its version 0.2.3, the same sums are computed here, also across words from the encoder's
 * cache. A sum beyond 100,000 restarts at zero. `tokenizers` adds in double precision and starts
 * again at every word. A Lattice is the scratch space of one encoder. */
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "token/token_internal.h"

/* A long text is output at places where all ways meet, so that memory does not grow with it. */
enum { SEGMENT = 1 << 16, CLEARED = 1 << 10 };
static const double score_limit = 100000;

bool unigram_build(Tokenizer *tokenizer, TrieKey *keys, size_t count, Error *error) {
    static const char metaspace[] = "\xE2\x96\x81";
    size_t kept = 0;
    tokenizer->longest_piece = 4; /* a character */
    tokenizer->space_begins_words = false;
    for (size_t i = 0; i < count; i++) {
        Span text = keys[i].text;
        if (text.size > tokenizer->longest_piece) tokenizer->longest_piece = text.size;
        if (text.size == 3 && memcmp(text.bytes, metaspace, 3) == 0) tokenizer->space_begins_words = true;
        if (text.size > 0 && !memchr(text.bytes, 0, text.size)) keys[kept++] = keys[i]; /* no text contains the other keys */
    }
    for (size_t i = 0; i < kept; i++)
        for (const char *at = keys[i].text.bytes + 1, *end = keys[i].text.bytes + keys[i].text.size; end - at >= 3; at++)
            if (memcmp(at, metaspace, 3) == 0 && (at - keys[i].text.bytes < 3 || memcmp(at - 3, metaspace, 3) != 0))
                tokenizer->space_begins_words = false;
    return double_array_build(&tokenizer->pieces, keys, kept) ||
           error_set(error, ERROR_DATA, "it has too many tokens, or tokens that are too long");
}

void lattice_free(Lattice *lattice) {
    free(lattice->nodes);
    *lattice = (Lattice){.plain = lattice->plain};
}

/* Among equal ways the first offered wins. */
static void offer_node(LatticeNode *node, double candidate, int32_t id, size_t length) {
    if (candidate > node->best) {
        *node = (LatticeNode){candidate, node->best, (uint32_t)length, id};
    } else if (candidate > node->second) {
        node->second = candidate;
    }
}

static void offer_unknown(const Tokenizer *tokenizer, const Lattice *lattice, size_t at, size_t size, bool single) {
    double candidate = tokenizer->unknown_score + lattice->nodes[at].best;
    offer_node(&lattice->nodes[at + size], single ? (float)candidate : candidate, tokenizer->unknown, size);
}

/* Offers all tokens that begin with the character at text[at]; returns the end of the longest. */
static size_t offer_tokens(const Tokenizer *tokenizer, const Lattice *lattice, Span text, size_t at, size_t character, bool single) {
    size_t base = double_array_base(&tokenizer->pieces, 0), reach = at;
    double best = lattice->nodes[at].best;
    bool whole = false;
    int32_t id;
    for (size_t i = at; i < text.size && double_array_step(&tokenizer->pieces, &base, (unsigned char)text.bytes[i], &id); i++) {
        if (id == TOKEN_NONE || token_is_barred(tokenizer, lattice->plain, id)) continue;
        reach = i + 1;
        double candidate = tokenizer->scores[id] + best;
        offer_node(&lattice->nodes[reach], single ? (float)candidate : candidate, id, reach - at);
        whole = whole || reach - at == character;
    }
    if (!whole) offer_unknown(tokenizer, lattice, at, character, single);
    return whole || reach > at + character ? reach : at + character;
}

/* Subtracts the sum of the best way to nodes[at] from all sums from there on. */
static void restart_sums(LatticeNode *nodes, size_t at, size_t reach) {
    double offset = nodes[at].best;
    for (size_t i = at; i <= reach; i++) nodes[i].best = (float)(nodes[i].best - offset);
}

/* Finds the best way through `text`, or through a prefix up to a place where all ways meet; returns
 * its bytes. */
static size_t find_ways(const Tokenizer *tokenizer, Lattice *lattice, Span text, double start, bool single) {
    size_t at = 0, reach = 0, ready = 0, size;
    for (; at < text.size; at += size) {
        if (at == reach && at >= SEGMENT) break;
        size = text_character_size(text.bytes + at, text.size - at);
        if (size == 0) size = 1;
        if (at + tokenizer->longest_piece >= ready && ready <= text.size) {
            size_t end = at + tokenizer->longest_piece + CLEARED < text.size ? at + tokenizer->longest_piece + CLEARED : text.size;
            array_reserve(lattice->nodes, lattice->capacity, end + 1);
            for (; ready <= end; ready++) lattice->nodes[ready] = (LatticeNode){.best = -INFINITY, .second = -INFINITY};
        }
        if (at == 0) lattice->nodes[0].best = start;
        if (single && fabs(lattice->nodes[at].best) > score_limit) restart_sums(lattice->nodes, at, reach);
        size_t end = offer_tokens(tokenizer, lattice, text, at, size, single);
        if (end > reach) reach = end;
    }
    return at;
}

/* Appends adjacent unknown characters as one token, or as byte tokens. */
static void give_unknown(const Tokenizer *tokenizer, bool plain, Span run, TokenIds *out) {
    int32_t id = tokenizer->sentencepiece ? TOKEN_NONE : token_map_get(&tokenizer->contents, run.bytes, run.size);
    if (token_is_barred(tokenizer, plain, id)) id = TOKEN_NONE;
    bool bytes = tokenizer->byte_fallback && id == TOKEN_NONE;
    for (size_t i = 0; i < run.size && bytes; i++) bytes = tokenizer->byte_id[(unsigned char)run.bytes[i]] != TOKEN_NONE;
    for (size_t i = 0; i < run.size && bytes; i++) token_ids_append(out, tokenizer->byte_id[(unsigned char)run.bytes[i]]);
    if (!bytes) token_ids_append(out, id != TOKEN_NONE ? id : tokenizer->unknown);
}

/* Links the nodes of the best way forward: `length` becomes the length of the token that begins
 * there. */
static void turn_around(LatticeNode *nodes, size_t end) {
    uint32_t length = nodes[end].length;
    int32_t id = nodes[end].id;
    for (size_t at = end; at > 0;) {
        at -= length;
        LatticeNode *node = &nodes[at];
        uint32_t next_length = node->length;
        int32_t next_id = node->id;
        node->length = length;
        node->id = id;
        length = next_length;
        id = next_id;
    }
}

/* Appends the ids of the way through text[from..from+size]; *run is the start of a run of unknown
 * characters, SIZE_MAX: none. */
static void give_way(const Tokenizer *tokenizer, const Lattice *lattice, Span text, size_t from, size_t size, size_t *run, TokenIds *out) {
    for (size_t at = 0; at < size; at += lattice->nodes[at].length) {
        int32_t id = lattice->nodes[at].id;
        if (id == tokenizer->unknown) {
            if (*run == SIZE_MAX) *run = from + at;
            continue;
        }
        if (*run != SIZE_MAX) give_unknown(tokenizer, lattice->plain, (Span){text.bytes + *run, from + at - *run}, out);
        *run = SIZE_MAX;
        token_ids_append(out, id);
    }
}

void unigram_encode(const Tokenizer *tokenizer, Lattice *lattice, Span text, TokenIds *out) {
    const bool single = tokenizer->sentencepiece;
    size_t run = SIZE_MAX;
    double score = single ? lattice->score : 0;
    for (size_t at = 0, size; at < text.size; at += size) {
        size = find_ways(tokenizer, lattice, (Span){text.bytes + at, text.size - at}, score, single);
        score = lattice->nodes[size].best;
        turn_around(lattice->nodes, size);
        give_way(tokenizer, lattice, text, at, size, &run, out);
    }
    if (run != SIZE_MAX) give_unknown(tokenizer, lattice->plain, (Span){text.bytes + run, text.size - run}, out);
    if (lattice->capacity > SEGMENT * 4) lattice_free(lattice);
    lattice->score = score;
}

/* Every sum is rounded at most once per byte, by at most half a unit in the last place of the
 * greatest sum. The best way stays the best while this error is less than half of the smallest lead
 * of its nodes over the second way there. */
float unigram_encode_word(const Tokenizer *tokenizer, Lattice *lattice, Span word, TokenIds *out) {
    const double half_unit = 0x1p-24;
    size_t size = find_ways(tokenizer, lattice, word, 0, false), run = SIZE_MAX;
    double ahead = INFINITY, greatest = 0;
    bool unknown = false;
    for (size_t at = 1; at <= size; at++)
        if (lattice->nodes[at].length > 0) greatest = fmax(greatest, fabs(lattice->nodes[at].best));
    for (size_t at = size; at > 0; at -= lattice->nodes[at].length) {
        ahead = fmin(ahead, lattice->nodes[at].best - lattice->nodes[at].second);
        unknown = unknown || lattice->nodes[at].id == tokenizer->unknown;
    }
    turn_around(lattice->nodes, size);
    give_way(tokenizer, lattice, word, 0, size, &run, out);
    if (run != SIZE_MAX) give_unknown(tokenizer, lattice->plain, (Span){word.bytes + run, word.size - run}, out);
    if (!tokenizer->sentencepiece) return INFINITY;
    return unknown ? -1 : (float)(fmin(ahead / (4 * half_unit * (double)(size + 1)), score_limit - 10) - greatest);
}

double unigram_start(double score) { return fabs(score) > score_limit ? 0 : score; }

/* SentencePiece's normalization: a map of character sequences to texts (a double array, and texts
 * that each end with a zero byte) and rules for white space. SentencePiece replaces the longest
 * sequence at each place. The "Precompiled" normalizer of `tokenizers` has the same map, but looks
 * up each short grapheme cluster as a whole and takes the shortest sequence. A Charsmap owns copies
 * of the map's parts. */
#include <stdlib.h>
#include <utf8proc.h>

#include "base/array.h"
#include "token/token_internal.h"

enum { SHORT_CLUSTER = 6 };
static const char metaspace[] = "\xE2\x96\x81", replacement[] = "\xEF\xBF\xBD";

/* -- The map ------------------------------------------------------------------------------------------------------- */

void charsmap_free(Charsmap *map) {
    double_array_free(&map->trie);
    free(map->texts);
    *map = (Charsmap){0};
}

static bool is_ascii_letter(size_t byte) { return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z'); }

/* Visits every node once. Returns whether all values lie inside the texts; also sets
 * `joins_spaces`. */
static bool check_nodes(Charsmap *map) {
    const DoubleArray *trie = &map->trie;
    SCOPED_FREE bool *seen = memory_allocate(trie->count);
    SCOPED_FREE size_t *nodes = NULL;
    size_t count = 0;
    array_append(nodes, count, 0);
    seen[0] = true;
    while (count > 0) {
        size_t node = nodes[--count], base = double_array_base(trie, node);
        bool letter = node > 0 && is_ascii_letter(trie->units[node] & 0xFF);
        for (unsigned byte = 1; byte < BYTES; byte++) {
            size_t child = base ^ byte, unused = base;
            int32_t value;
            if (!double_array_step(trie, &unused, (unsigned char)byte, &value)) continue;
            if (value != TOKEN_NONE && (size_t)value >= map->size) return false;
            size_t length = value != TOKEN_NONE ? strlen(map->texts + value) : 0;
            bool spaced = length > 0 && map->texts[(size_t)value + length - 1] == ' ';
            if ((letter && byte == ' ') || (spaced && is_ascii_letter(byte))) map->joins_spaces = true;
            if (!seen[child]) array_append(nodes, count, child);
            seen[child] = true;
        }
    }
    return true;
}

bool charsmap_read(Charsmap *map, Span blob, Error *error) {
    uint32_t size = 0;
    if (blob.size == 0) return true;
    if (blob.size > sizeof size) memcpy(&size, blob.bytes, sizeof size);
    if (blob.size <= sizeof size || size >= blob.size - sizeof size || !double_array_copy(&map->trie, blob.bytes + sizeof size, size))
        return error_set(error, ERROR_DATA, "its precompiled_charsmap is truncated");
    map->size = blob.size - sizeof size - size;
    map->texts = memory_allocate(map->size + 1);
    memcpy(map->texts, blob.bytes + sizeof size + size, map->size);
    return check_nodes(map) || error_set(error, ERROR_DATA, "its precompiled_charsmap is damaged");
}

/* Finds the longest, or shortest, sequence that `text` begins with, and its replacement. Returns
 * the sequence's bytes; 0: none. */
static size_t find_replacement(const Charsmap *map, Span text, bool shortest, Span *to) {
    if (!map->texts) return 0;
    size_t base = double_array_base(&map->trie, 0), found = 0;
    int32_t value, last = 0;
    for (size_t i = 0; i < text.size && double_array_step(&map->trie, &base, (unsigned char)text.bytes[i], &value); i++) {
        if (value == TOKEN_NONE) continue;
        found = i + 1;
        last = value;
        if (shortest) break;
    }
    if (found > 0) *to = (Span){map->texts + last, strlen(map->texts + last)};
    return found;
}

/* -- SentencePiece ------------------------------------------------------------------------------------------------- */

/* Finds the replacement of the next character or sequence of a text; a byte that is not UTF-8
 * becomes U+FFFD. Returns the bytes that are replaced. */
static size_t next_piece(const Tokenizer *tokenizer, const Charsmap *map, Span text, Span *to) {
    size_t size = 0, character;
    if (tokenizer->symbols.first[(unsigned char)text.bytes[0]] &&
        trie_match(&tokenizer->symbols, text.bytes, text.size, &size) != TOKEN_NONE) {
        *to = (Span){text.bytes, size};
        return size;
    }
    if ((size = find_replacement(map, text, false, to)) > 0) return size;
    *to = (Span){replacement, sizeof replacement - 1};
    character = text_character_size(text.bytes, text.size);
    if (character > 0) *to = (Span){text.bytes, character};
    return character > 0 ? character : 1;
}

static bool span_ends_with(Span text, Span end) {
    return text.size >= end.size && memcmp(text.bytes + text.size - end.size, end.bytes, end.size) == 0;
}

/* Appends the replacement of a piece. With `spaced`, the previous piece ended with a space, and
 * leading spaces are skipped. */
static bool append_piece(const Whitespace *rules, Span space, bool spaced, Span piece, Buffer *out) {
    while (spaced && piece.size > 0 && piece.bytes[0] == ' ') piece.bytes++, piece.size--;
    if (rules->escape && memchr(piece.bytes, ' ', piece.size)) text_replace(out, piece, (Span){" ", 1}, space);
    else buffer_append(out, piece.bytes, piece.size);
    return rules->squeeze && (piece.size > 0 ? piece.bytes[piece.size - 1] == ' ' : spaced);
}

void charsmap_normalize(const Tokenizer *tokenizer, const NormalStep *step, Span text, bool continued, Buffer *out) {
    const Whitespace *rules = &step->whitespace;
    const Span space = rules->escape ? (Span){metaspace, sizeof metaspace - 1} : (Span){" ", 1};
    Span piece;
    size_t at = 0, size;
    while (rules->squeeze && !continued && at < text.size) {
        size = next_piece(tokenizer, &step->charsmap, (Span){text.bytes + at, text.size - at}, &piece);
        if (piece.size != 1 || piece.bytes[0] != ' ') break;
        at += size;
    }
    if (at == text.size) return;
    if (rules->prefix && !rules->suffix && !continued) buffer_append(out, space.bytes, space.size);
    bool spaced = rules->squeeze && !continued;
    for (; at < text.size; at += size) {
        size = next_piece(tokenizer, &step->charsmap, (Span){text.bytes + at, text.size - at}, &piece);
        spaced = append_piece(rules, space, spaced, piece, out);
    }
    while (rules->squeeze && span_ends_with(buffer_span(out), space)) out->size -= space.size;
    if (rules->prefix && rules->suffix) buffer_append(out, space.bytes, space.size);
}

/* -- `tokenizers` -------------------------------------------------------------------------------------------------- */

static size_t cluster_size(const char *text, size_t length) {
    utf8proc_int32_t state = 0;
    size_t size, end = 0;
    for (uint32_t last = 0; end < length; end += size) {
        uint32_t character = text_character(text + end, &size);
        if (end > 0 && utf8proc_grapheme_break_stateful((utf8proc_int32_t)last, (utf8proc_int32_t)character, &state)) break;
        last = character;
    }
    return end;
}

void charsmap_normalize_clusters(const Charsmap *map, Span text, Buffer *out) {
    Span to;
    for (size_t at = 0, size; at < text.size; at += size) {
        size = cluster_size(text.bytes + at, text.size - at);
        if (size < SHORT_CLUSTER && find_replacement(map, (Span){text.bytes + at, size}, true, &to) > 0) {
            buffer_append(out, to.bytes, to.size);
            continue;
        }
        for (size_t i = 0, bytes; i < size; i += bytes) {
            text_character(text.bytes + at + i, &bytes);
            Span character = {text.bytes + at + i, bytes};
            if (find_replacement(map, character, true, &to) == 0) to = character;
            buffer_append(out, to.bytes, to.size);
        }
    }
}

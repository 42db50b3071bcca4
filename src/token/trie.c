/* Tries of added tokens: find the longest pattern that a text begins with. All edges are in one
 * hash table. Built when a tokenizer is read, then read-only. */
#include "base/array.h"
#include "token/token_internal.h"

static size_t new_node(Trie *trie) {
    array_append(trie->pattern, trie->nodes, TOKEN_NONE);
    return trie->nodes - 1;
}

void trie_add(Trie *trie, const char *bytes, size_t length, int32_t pattern) {
    if (length == 0) return;
    if (trie->nodes == 0) new_node(trie);
    uint64_t node = 0;
    for (size_t i = 0; i < length; i++) {
        uint64_t *edge = pair_map_put(&trie->edges, pair_key((uint32_t)node, (unsigned char)bytes[i]));
        if (*edge == PAIR_NONE) *edge = new_node(trie);
        node = *edge;
    }
    if (trie->pattern[node] == TOKEN_NONE) trie->pattern[node] = pattern;
    trie->first[(unsigned char)bytes[0]] = true;
}

int32_t trie_match(const Trie *trie, const char *text, size_t length, size_t *matched) {
    int32_t found = TOKEN_NONE;
    uint64_t node = 0;
    for (size_t i = 0; i < length; i++) {
        node = pair_map_get(&trie->edges, pair_key((uint32_t)node, (unsigned char)text[i]));
        if (node == PAIR_NONE) break;
        if (trie->pattern[node] == TOKEN_NONE) continue;
        found = trie->pattern[node];
        *matched = i + 1;
    }
    return found;
}

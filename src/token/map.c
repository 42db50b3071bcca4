/* The two hash tables of the tokenizer: byte strings to ids, and pairs of numbers to numbers. Linear probing, at
 * most half full. A table owns its slots and copies of its strings. */
#include <stdlib.h>

#include "base/hash.h"
#include "base/memory.h"
#include "token/token_internal.h"

static TokenSlot *token_slot(const TokenMap *map, uint64_t hash, const char *bytes, size_t length) {
    for (size_t i = hash & map->mask;; i = (i + 1) & map->mask) {
        TokenSlot *slot = &map->slots[i];
        if (slot->id == TOKEN_NONE) return slot;
        if (slot->hash == hash && slot->length == length && memcmp(map->pool.bytes + slot->at, bytes, length) == 0) return slot;
    }
}

static void token_map_grow(TokenMap *map) {
    TokenMap old = *map;
    size_t size = old.slots ? (old.mask + 1) * 2 : 1024;
    map->slots = memory_allocate(size * sizeof *map->slots);
    map->mask = size - 1;
    for (size_t i = 0; i < size; i++) map->slots[i].id = TOKEN_NONE;
    for (size_t i = 0; old.slots && i <= old.mask; i++)
        if (old.slots[i].id != TOKEN_NONE)
            *token_slot(map, old.slots[i].hash, map->pool.bytes + old.slots[i].at, old.slots[i].length) = old.slots[i];
    free(old.slots);
}

bool token_map_put(TokenMap *map, const char *bytes, size_t length, int32_t id) {
    if (!map->slots || map->count * 2 >= map->mask) token_map_grow(map);
    uint64_t hash = hash_bytes(bytes, length);
    TokenSlot *slot = token_slot(map, hash, bytes, length);
    if (slot->id != TOKEN_NONE) return false;
    *slot = (TokenSlot){hash, map->pool.size, (uint32_t)length, id};
    buffer_append(&map->pool, bytes, length);
    map->count++;
    return true;
}

int32_t token_map_get(const TokenMap *map, const char *bytes, size_t length) {
    return map->slots ? token_slot(map, hash_bytes(bytes, length), bytes, length)->id : TOKEN_NONE;
}

void token_map_free(TokenMap *map) {
    free(map->slots);
    free(map->pool.bytes);
    *map = (TokenMap){0};
}

static void pair_map_grow(PairMap *map) {
    PairMap old = *map;
    size_t size = old.slots ? (old.mask + 1) * 2 : 256;
    map->slots = memory_allocate(size * sizeof *map->slots);
    map->mask = size - 1;
    map->shift = (unsigned)(64 - __builtin_ctzll(size));
    map->count = 0;
    for (size_t i = 0; i < size; i++) map->slots[i] = (PairSlot){PAIR_NONE, PAIR_NONE};
    for (size_t i = 0; old.slots && i <= old.mask; i++)
        if (old.slots[i].key != PAIR_NONE) *pair_map_put(map, old.slots[i].key) = old.slots[i].value;
    free(old.slots);
}

uint64_t *pair_map_put(PairMap *map, uint64_t key) {
    if (!map->slots || map->count * 2 >= map->mask) pair_map_grow(map);
    size_t i = pair_place(map, key);
    while (map->slots[i].key != key && map->slots[i].key != PAIR_NONE) i = (i + 1) & map->mask;
    if (map->slots[i].key == PAIR_NONE) {
        map->slots[i].key = key;
        map->count++;
    }
    return &map->slots[i].value;
}

void pair_map_free(PairMap *map) {
    free(map->slots);
    *map = (PairMap){0};
}

/* A set of 64-bit hashes by open addressing, at most half full. 0 marks an empty slot, so the hash
 * 0 is stored as 1, which adds one collision to those that 64-bit hashes have anyway (among n
 * different texts one is expected at n = 6e9). A slot is a hash and, if the set keeps places, the
 * place after it. A HashSet owns its table and the file of a large table. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/pack_internal.h"

enum { FIRST_SLOTS = 1 << 16, MEMORY_BYTES = 1 << 25 /* above this size the table is a file */ };

typedef struct Table {
    uint64_t *slots;
    size_t count, width; /* slots, and numbers of each */
    File file;
} Table;

struct HashSet {
    char *folder;
    Table table;
    size_t used;
};

static bool table_open(Table *table, const char *folder, size_t count, size_t width, Error *error) {
    int64_t bytes = (int64_t)(count * width * sizeof(uint64_t));
    *table = (Table){.count = count, .width = width};
    bool file = bytes > MEMORY_BYTES;
    if (file && !(file_open_unnamed(&table->file, folder, error) && file_truncate(&table->file, bytes, error))) return false;
    table->slots = file ? memory_map_shared(table->file.descriptor, (size_t)bytes, error) : memory_map((size_t)bytes, error);
    return table->slots;
}

static void table_close(Table *table) {
    if (table->slots) memory_unmap(table->slots, table->count * table->width * sizeof(uint64_t));
    file_close(&table->file);
}

/* Returns the slot of a hash: its own, or the empty slot for it. */
static uint64_t *table_find(const Table *table, uint64_t hash) {
    size_t at = hash & (table->count - 1), width = table->width;
    while (table->slots[at * width] && table->slots[at * width] != hash) at = (at + 1) & (table->count - 1);
    return &table->slots[at * width];
}

HashSet *hash_set_open(const char *folder, bool places) {
    HashSet *set = memory_allocate(sizeof *set);
    set->folder = memory_copy_string(folder);
    set->table.width = places ? 2 : 1;
    return set;
}

static bool hash_set_grow(HashSet *set, Error *error) {
    Table larger;
    size_t width = set->table.width;
    bool good = table_open(&larger, set->folder, set->table.count ? 2 * set->table.count : FIRST_SLOTS, width, error);
    if (!good) table_close(&larger);
    if (!good) return false;
    for (size_t i = 0; i < set->table.count; i++)
        if (set->table.slots[i * width])
            memcpy(table_find(&larger, set->table.slots[i * width]), &set->table.slots[i * width], width * sizeof(uint64_t));
    table_close(&set->table);
    set->table = larger;
    return true;
}

bool hash_set_add(HashSet *set, uint64_t hash, uint64_t place, bool *seen, uint64_t *first, Error *error) {
    if (hash == 0) hash = 1;
    if (2 * set->used >= set->table.count && !hash_set_grow(set, error)) return false;
    uint64_t *slot = table_find(&set->table, hash);
    *seen = *slot == hash;
    set->used += !*seen;
    *slot = hash;
    if (set->table.width > 1 && !*seen) slot[1] = place;
    if (first) *first = set->table.width > 1 ? slot[1] : 0;
    return true;
}

bool hash_set_has(const HashSet *set, uint64_t hash, uint64_t *first) {
    if (hash == 0) hash = 1;
    const uint64_t *slot = set->table.count > 0 ? table_find(&set->table, hash) : NULL;
    if (!slot || *slot != hash) return false;
    *first = set->table.width > 1 ? slot[1] : 0;
    return true;
}

bool hash_set_each(const HashSet *set, TakeHash *take, void *context, Error *error) {
    size_t width = set->table.width;
    bool good = true;
    for (size_t i = 0; i < set->table.count && good; i++) {
        const uint64_t *slot = &set->table.slots[i * width];
        good = !*slot || take(context, *slot, width > 1 ? slot[1] : 0, error);
    }
    return good;
}

void hash_set_free(HashSet *set) {
    if (!set) return;
    table_close(&set->table);
    free(set->folder);
    free(set);
}

/* Which cache serves which line. The traced workgroups of one die run side by side, one access of each wavefront at a
 * time: a line is looked up in the L1 of its compute unit, then in the die's L2, both with the replacement of the least
 * recently used. What the L2 misses, the Infinity Cache has or memory has: by the share of first touches in the misses
 * of all dies, since every die fetches what it needs once and the card's cache is shared. */
#include <stdlib.h>
#include <string.h>

#include "timing.h"

typedef struct Cache {
    uint64_t *tag;
    uint32_t *used;
    uint32_t sets, ways, clock;
} Cache;
enum { L1_WAYS = 4, L2_WAYS = 16, ALLOCATIONS = 64 };

static bool cache_create(Cache *cache, uint32_t bytes, uint32_t ways) {
    *cache = (Cache){.ways = ways, .sets = bytes / LINE_BYTES / ways};
    cache->tag = calloc((size_t)cache->sets * ways, sizeof *cache->tag);
    cache->used = calloc((size_t)cache->sets * ways, sizeof *cache->used);
    return cache->tag && cache->used;
}
static void cache_destroy(Cache *cache) {
    free(cache->tag);
    free(cache->used);
}

/* Sets are chosen by a hash of the line, since hardware spreads strides over channels. True: the line was there. */
static bool cache_touch(Cache *cache, uint64_t line, bool allocate) {
    uint32_t set = (uint32_t)((line ^ line >> 11 ^ line >> 22) % cache->sets), oldest = 0, clock = ++cache->clock;
    uint64_t *tag = cache->tag + (size_t)set * cache->ways;
    uint32_t *used = cache->used + (size_t)set * cache->ways;
    for (uint32_t way = 0; way < cache->ways; way++) {
        if (tag[way] == line) {
            used[way] = clock;
            return true;
        }
        if (used[way] < used[oldest]) oldest = way;
    }
    if (allocate) tag[oldest] = line, used[oldest] = clock;
    return false;
}

/* -- First touches ------------------------------------------------------------------------------------------------- */

/* The lines that were touched at all, in a hash table, and how many of each allocation. */
typedef struct Footprint {
    uint64_t *line;
    size_t count, capacity; /* a power of two */
    struct {
        Allocation allocation;
        uint64_t lines, first, last; /* the first and last line touched */
    } of[ALLOCATIONS];
    int allocations;
    uint64_t elsewhere;
} Footprint;

static size_t footprint_slot(const Footprint *footprint, uint64_t line) {
    size_t i = (size_t)(line * 0x9e3779b97f4a7c15ull >> 20) & (footprint->capacity - 1);
    while (footprint->line[i] && footprint->line[i] != line) i = (i + 1) & (footprint->capacity - 1);
    return i;
}

static bool footprint_grow(Footprint *footprint) {
    Footprint larger = *footprint;
    larger.capacity = footprint->capacity ? 4 * footprint->capacity : 4096;
    larger.line = calloc(larger.capacity, sizeof *larger.line);
    if (!larger.line) return false;
    for (size_t i = 0; i < footprint->capacity; i++)
        if (footprint->line[i]) larger.line[footprint_slot(&larger, footprint->line[i])] = footprint->line[i];
    free(footprint->line);
    *footprint = larger;
    return true;
}

static void count_allocation(Footprint *footprint, uint64_t line) {
    uint64_t address = line * LINE_BYTES;
    for (int i = 0; i < footprint->allocations; i++)
        if (address - footprint->of[i].allocation.base < footprint->of[i].allocation.bytes) {
            footprint->of[i].lines++;
            if (line < footprint->of[i].first) footprint->of[i].first = line;
            if (line > footprint->of[i].last) footprint->of[i].last = line;
            return;
        }
    Allocation found = {0};
    if (footprint->allocations < ALLOCATIONS && arena_find(address, &found) && address - found.base < found.bytes) {
        footprint->of[footprint->allocations].allocation = found;
        footprint->of[footprint->allocations].first = footprint->of[footprint->allocations].last = line;
        footprint->of[footprint->allocations++].lines = 1;
    } else {
        footprint->elsewhere++;
    }
}

static bool footprint_add(Footprint *footprint, uint64_t line) {
    if (2 * footprint->count >= footprint->capacity && !footprint_grow(footprint)) return false;
    size_t slot = footprint_slot(footprint, line);
    if (footprint->line[slot]) return true;
    footprint->line[slot] = line;
    footprint->count++;
    count_allocation(footprint, line);
    return true;
}

/* Bytes that all workgroups touch: as many more as there are workgroups, up to what lies between the first and the last
 * touch in each allocation, and as much around it where only two rounds of many were traced. */
static double footprint_bytes(const Footprint *footprint, double scale, bool all_rounds) {
    double bytes = (double)footprint->elsewhere * LINE_BYTES;
    for (int i = 0; i < footprint->allocations; i++) {
        double all = (double)footprint->of[i].lines * LINE_BYTES * scale, allocation = (double)footprint->of[i].allocation.bytes,
               limit = (double)(footprint->of[i].last - footprint->of[i].first + 1) * LINE_BYTES * (all_rounds ? 1 : 2);
        if (limit > allocation) limit = allocation;
        bytes += all < limit ? all : limit;
    }
    return bytes;
}

/* -- A die --------------------------------------------------------------------------------------------------------- */

typedef struct Simulation {
    Cache l2, *l1;
    Footprint footprint;
    uint64_t l2_misses;
} Simulation;

/* Stores go through to the L2. Whatever the L2 misses is left as from memory; share_misses comes later. */
static bool access_lines(Simulation *simulation, Cache *l1, const WaveTrace *trace, Access *access) {
    for (uint32_t i = 0; i < access->lines; i++) {
        uint64_t line = trace->line[access->first_line + i];
        bool load = access->kind == LOCAL_READ;
        if (load && cache_touch(l1, line, true)) {
            access->level[LEVEL_L1]++;
        } else if (cache_touch(&simulation->l2, line, true)) {
            access->level[LEVEL_L2]++;
        } else {
            access->level[LEVEL_MEMORY]++;
            simulation->l2_misses++;
            if (!footprint_add(&simulation->footprint, line)) return false;
        }
    }
    return true;
}

static size_t most_accesses(const DieTrace *die, int round) {
    size_t most = 0;
    for (int b = round * die->slots * die->units; b < (round + 1) * die->slots * die->units; b++)
        for (int w = 0; w < die->block[b].waves; w++)
            if (die->block[b].wave[w].accesses > most) most = die->block[b].wave[w].accesses;
    return most;
}

/* One access of each wavefront after the other; which compute unit is first changes, so that none always pays. */
static bool run_round(Simulation *simulation, DieTrace *die, int round) {
    size_t most = most_accesses(die, round);
    for (size_t n = 0; n < most; n++)
        for (int u = 0; u < die->units; u++) {
            int unit = (int)((n * 7 + (size_t)u) % (size_t)die->units);
            for (int slot = 0; slot < die->slots; slot++) {
                BlockTrace *block = &die->block[(round * die->slots + slot) * die->units + unit];
                for (int w = 0; w < block->waves; w++)
                    if (n < block->wave[w].accesses &&
                        !access_lines(simulation, &simulation->l1[unit], &block->wave[w], &block->wave[w].access[n]))
                        return false;
            }
        }
    return true;
}

/* Of what the L2 missed, all but the fraction `from_memory` comes from the Infinity Cache; spread evenly. */
static void share_misses(DieTrace *die, double from_memory, Traffic *traffic) {
    double due = 0.5;
    for (int b = 0; b < die->rounds * die->slots * die->units; b++)
        for (int w = 0; w < die->block[b].waves; w++)
            for (size_t n = 0; n < die->block[b].wave[w].accesses; n++) {
                Access *access = &die->block[b].wave[w].access[n];
                unsigned missed = access->level[LEVEL_MEMORY], memory = 0;
                for (unsigned i = 0; i < missed; i++) {
                    due += from_memory;
                    if (due >= 1) due -= 1, memory++;
                }
                access->level[LEVEL_MEMORY] = (uint16_t)memory;
                access->level[LEVEL_SHARED_CACHE] = (uint16_t)(missed - memory);
                for (int level = 0; level < LEVELS; level++) traffic->lines[level] += access->level[level];
            }
}

bool cache_simulate(const Machine *machine, DieTrace *die, double scale, Traffic *traffic) {
    Simulation simulation = {.l1 = calloc((size_t)die->units, sizeof *simulation.l1)};
    bool good = simulation.l1 && cache_create(&simulation.l2, machine->l2_bytes, L2_WAYS);
    for (int i = 0; good && i < die->units; i++) good = cache_create(&simulation.l1[i], machine->l1_bytes, L1_WAYS);
    for (int round = 0; good && round < die->rounds; round++) good = run_round(&simulation, die, round);
    if (good) {
        double missed = (double)simulation.l2_misses * LINE_BYTES * scale,
               touched = footprint_bytes(&simulation.footprint, scale, die->all_rounds), cache = (double)machine->shared_cache_bytes,
               from_memory = missed;
        if (cache > 0 && touched < missed) from_memory = touched + (missed - touched) * (touched > cache ? 1 - cache / touched : 0);
        traffic->memory_bytes = from_memory;
        share_misses(die, missed > 0 ? from_memory / missed : 0, traffic);
    }
    for (int i = 0; simulation.l1 && i < die->units; i++) cache_destroy(&simulation.l1[i]);
    free(simulation.l1);
    cache_destroy(&simulation.l2);
    free(simulation.footprint.line);
    return good;
}

/* Device memory: host memory from one reserved range of addresses, with gaps between allocations that nothing may
 * touch. Addresses are never given out twice, so a use after free is known for what it is. The table of allocations
 * lives as long as the process; it is sorted because addresses grow. Memory that processes share is a file without a
 * name, which its owner keeps open. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "emulator.h"

enum { PAGE = 4096, GAP = 4 * PAGE };
#define RESERVED_BYTES (1ull << 42)
/* The same addresses in every process, where they are free: what depends on them (caches, timing.c) comes out alike. */
#define USUAL_BASE 0x100000000000ull

static struct {
    pthread_rwlock_t lock;
    uint64_t base, next, used, capacity_bytes;
    Allocation *allocation;
    size_t count, capacity;
} arena = {.lock = PTHREAD_RWLOCK_INITIALIZER};

/* ROCEMU_MEMORY: MiB that the card has, where an MI300X's own are not meant. */
static void read_capacity(void) {
    const char *given = getenv("ROCEMU_MEMORY");
    uint64_t bytes = given ? strtoull(given, NULL, 10) << 20 : 0;
    arena.capacity_bytes = bytes && bytes < ARENA_CAPACITY ? bytes : ARENA_CAPACITY;
}
uint64_t arena_capacity(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_capacity);
    return arena.capacity_bytes;
}

static bool reserve(void) {
    if (arena.base) return true;
    enum { FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
    void *range = mmap((void *)USUAL_BASE, RESERVED_BYTES, PROT_NONE, FLAGS | MAP_FIXED_NOREPLACE, -1, 0);
    if (range == MAP_FAILED) range = mmap(NULL, RESERVED_BYTES, PROT_NONE, FLAGS, -1, 0);
    if (range == MAP_FAILED) return false;
    arena.base = (uint64_t)range;
    arena.next = arena.base + GAP;
    return true;
}

static bool grow_table(void) {
    if (arena.count < arena.capacity) return true;
    size_t capacity = arena.capacity ? 2 * arena.capacity : 256;
    Allocation *larger = realloc(arena.allocation, capacity * sizeof *larger);
    if (!larger) return false;
    arena.allocation = larger;
    arena.capacity = capacity;
    return true;
}

static uint64_t pages(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* Makes the pages at an address usable: those of the file, or where it is -1 fresh ones. */
static bool map_pages(uint64_t base, uint64_t bytes, int file) {
    if (file < 0) return !mprotect((void *)base, pages(bytes), PROT_READ | PROT_WRITE);
    return mmap((void *)base, pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
}

static uint64_t allocate(uint64_t bytes, bool host, int file) {
    uint64_t base = 0, capacity = arena_capacity();
    pthread_rwlock_wrlock(&arena.lock);
    if (bytes && bytes <= capacity - arena.used && reserve() && grow_table() &&
        arena.next + pages(bytes) + GAP <= arena.base + RESERVED_BYTES && map_pages(arena.next, bytes, file)) {
        base = arena.next;
        arena.allocation[arena.count++] = (Allocation){base, bytes, true, host, file >= 0};
        arena.next += pages(bytes) + GAP;
        arena.used += bytes;
    }
    pthread_rwlock_unlock(&arena.lock);
    return base;
}

uint64_t arena_allocate(uint64_t bytes, bool host) { return allocate(bytes, host, -1); }

/* What a handle holds; zeros fill the rest. */
typedef struct Shared {
    uint64_t base, bytes;
    int32_t process, file;
} Shared;
static Shared shared[64]; /* of this process */
static int shared_count;

uint64_t arena_allocate_shared(uint64_t bytes) {
    int file = shared_count < (int)(sizeof shared / sizeof *shared) ? memfd_create("rocemu", MFD_CLOEXEC) : -1;
    if (file < 0) return 0;
    uint64_t base = ftruncate(file, (off_t)pages(bytes)) == 0 ? allocate(bytes, false, file) : 0;
    if (base) shared[shared_count++] = (Shared){base, bytes, getpid(), file};
    else close(file);
    return base;
}

bool arena_handle(uint64_t base, void *handle) {
    for (int i = 0; i < shared_count; i++)
        if (shared[i].base == base) return memcpy(handle, &shared[i], sizeof shared[i]) != NULL;
    return false;
}

uint64_t arena_open(const void *handle) {
    Shared other;
    char path[64];
    struct stat status;
    memcpy(&other, handle, sizeof other);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", other.process, other.file);
    int file = other.process == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return 0;
    bool whole = fstat(file, &status) == 0 && (uint64_t)status.st_size == pages(other.bytes);
    uint64_t base = whole ? allocate(other.bytes, false, file) : 0;
    close(file);
    return base;
}

/* Index of the greatest base at or below address, or -1. */
static long search(uint64_t address) {
    long low = 0, high = (long)arena.count;
    while (low < high) {
        long middle = (low + high) / 2;
        if (arena.allocation[middle].base <= address) low = middle + 1;
        else high = middle;
    }
    return low - 1;
}

bool arena_free(uint64_t base, bool host) {
    pthread_rwlock_wrlock(&arena.lock);
    long i = search(base);
    Allocation *allocation = i < 0 ? NULL : &arena.allocation[i];
    bool found = allocation && allocation->base == base && allocation->live && allocation->host == host;
    if (found) {
        /* A fresh mapping gives the pages back and makes host accesses fault too. */
        mmap((void *)base, pages(allocation->bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        allocation->live = false;
        arena.used -= allocation->bytes;
    }
    pthread_rwlock_unlock(&arena.lock);
    return found;
}

bool arena_find(uint64_t address, Allocation *found) {
    pthread_rwlock_rdlock(&arena.lock);
    long i = search(address);
    if (i >= 0) *found = arena.allocation[i];
    pthread_rwlock_unlock(&arena.lock);
    return i >= 0;
}

uint64_t arena_used(void) {
    pthread_rwlock_rdlock(&arena.lock);
    uint64_t used = arena.used;
    pthread_rwlock_unlock(&arena.lock);
    return used;
}

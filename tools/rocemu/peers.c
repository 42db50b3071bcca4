/* What a kernel reads of memory that devices share, where another device may write at any time. Two faults are reported:
 *
 *     a spin without an end     an instruction finds the same word unchanged for ROCEMU_SPIN seconds (300 by default), because
 *                               no other device signals
 *     a read before the signal  a word that the workgroup read has another value when the workgroup ends: it did not wait for
 *                               the other device, or it read before it waited
 *
 * A word is read again until it has arrived, and nobody writes it again while the kernel runs (src/backend/gpu/words.h), so
 * the last value that a correct wave read is the value at the end. Each workgroup owns a hash table of the words that its waves
 * read, by address and wave. A word that the workgroup itself writes has an entry without a wave, and is not followed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emulator.h"
#include "hip.h"

enum { WORD = 4, LEAST_LOOKS = 1024 };
typedef struct Look {
    uint64_t address; /* 0: free */
    double since;     /* when this value was first seen */
    const Instruction *instruction;
    Wave *wave; /* NULL: the workgroup writes the word */
    uint32_t value;
    int lane;
} Look;
/* Invariant: capacity is 0 or a power of two, and at most half of it is in use. */
struct Peers {
    Look *look;
    size_t count, capacity;
};

static double peers_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double spin_limit(void) {
    const char *seconds = getenv("ROCEMU_SPIN");
    return seconds ? atof(seconds) : 300;
}

static Look *slot_of_word(const Peers *peers, uint64_t address, const Wave *wave) {
    size_t i = (address / WORD * 0x9e3779b97f4a7c15ull >> 20) & (peers->capacity - 1);
    while (peers->look[i].address && (peers->look[i].address != address || peers->look[i].wave != wave))
        i = (i + 1) & (peers->capacity - 1);
    return &peers->look[i];
}

static bool grow_looks(Peers *peers) {
    if (2 * (peers->count + 1) <= peers->capacity) return true;
    Peers larger = {.count = peers->count, .capacity = peers->capacity ? 2 * peers->capacity : LEAST_LOOKS};
    if (!(larger.look = calloc(larger.capacity, sizeof *larger.look))) return false;
    for (size_t i = 0; i < peers->capacity; i++)
        if (peers->look[i].address) *slot_of_word(&larger, peers->look[i].address, peers->look[i].wave) = peers->look[i];
    free(peers->look);
    *peers = larger;
    return true;
}

/* Returns the entry of a word and a reader, and adds it if there is none. The reader is NULL for a word that the workgroup writes.
 * NULL after a report. */
static Look *look_at(Wave *wave, const Instruction *in, uint64_t address, Wave *reader) {
    Peers *peers = wave->group->peers;
    if (!peers) peers = wave->group->peers = calloc(1, sizeof *peers);
    if (!peers || !grow_looks(peers)) {
        check_report(wave, in, -1, HIP_ERROR_OUT_OF_MEMORY, "no memory for the words that the kernel reads of other devices");
        return NULL;
    }
    Look *look = slot_of_word(peers, address, reader);
    if (!look->address) peers->count++;
    look->address = address, look->wave = reader;
    return look;
}

static bool follows(const Wave *wave, uint64_t address) {
    const Allocation *recent = &wave->recent;
    return recent->shared && wave->group->launch->check == CHECK_ALL && address >= recent->base && address - recent->base < recent->bytes;
}

static bool read_word(Wave *wave, const Instruction *in, int lane, uint64_t address, uint32_t value) {
    Look *look = look_at(wave, in, address, wave);
    if (!look) return false;
    double now = peers_clock();
    if (look->instruction != in || look->value != value) {
        *look = (Look){.address = address, .since = now, .instruction = in, .wave = wave, .value = value, .lane = lane};
        return true;
    }
    look->lane = lane;
    if (now - look->since <= spin_limit()) return true;
    check_report(wave, in, lane, HIP_ERROR_LAUNCH_FAILURE,
        "a spin without an end: the word at 0x%llx of memory that devices share has been 0x%x for %.0f s (ROCEMU_SPIN)",
        (unsigned long long)address, value, spin_limit());
    return false;
}

bool peers_read(Wave *wave, const Instruction *in, int lane, uint64_t address, int to, unsigned bytes) {
    if (!follows(wave, address)) return true;
    for (unsigned i = 0; i < bytes / WORD; i++)
        if (!read_word(wave, in, lane, address + WORD * i, wave->vector[to + (int)i][lane])) return false;
    return true;
}

void peers_wrote(Wave *wave, const Instruction *in, uint64_t address, unsigned bytes) {
    if (!follows(wave, address)) return;
    for (unsigned i = 0; i < (bytes + WORD - 1) / WORD; i++)
        if (!look_at(wave, in, address / WORD * WORD + WORD * i, NULL)) return;
}

void peers_end(Workgroup *group) {
    Peers *peers = group->peers;
    for (size_t i = 0; peers && i < peers->capacity; i++) {
        const Look *look = &peers->look[i];
        if (!look->wave || slot_of_word(peers, look->address, NULL)->address) continue;
        uint32_t now = __atomic_load_n((const uint32_t *)look->address, __ATOMIC_RELAXED);
        if (now != look->value)
            check_report(look->wave, look->instruction, look->lane, HIP_ERROR_LAUNCH_FAILURE,
                "a read before the signal: the word at 0x%llx of memory that devices share was read as 0x%x, then another device wrote "
                "0x%x",
                (unsigned long long)look->address, look->value, now);
    }
    if (!peers) return;
    free(peers->look);
    free(peers);
    group->peers = NULL;
}

/* What a kernel may do wrong and hardware would not say: each check reports once per launch with kernel,
 * instruction, address, workgroup and lane, and stops the launch. The shadow of LDS holds, for every byte, which
 * wavefront last wrote and read it, and in which epoch: the stretch between two barriers; and of what was written the
 * bits that are undefined (undefined.c). */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hip.h"
#include "lanes.h"

CheckLevel check_level(void) {
    const char *level = getenv("ROCEMU_CHECK");
    if (!level && timing_samples()) return CHECK_OFF; /* what other workgroups would have written is not there */
    if (!level || !strcmp(level, "all")) return CHECK_ALL;
    return strcmp(level, "off") ? CHECK_MEMORY : CHECK_OFF;
}

void check_report(Wave *wave, const Instruction *in, int lane, int error, const char *format, ...) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    Launch *launch = wave->group->launch;
    wave->state = WAVE_FAILED;
    pthread_mutex_lock(&lock);
    if (!launch->failure) {
        char what[512];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(what, sizeof what, format, arguments);
        va_end(arguments);
        fprintf(stderr, "rocemu: kernel %s: %s\n    at 0x%x `%s`, workgroup (%u, %u, %u), wavefront %d", launch->kernel->name, what,
            in->address, in->text, wave->group->id[0], wave->group->id[1], wave->group->id[2], wave->index);
        if (lane >= 0) fprintf(stderr, ", lane %d", lane);
        fputc('\n', stderr);
        __atomic_store_n(&launch->failure, error, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
}

/* -- Device memory ------------------------------------------------------------------------------------------------- */

static void report_global(
    Wave *wave, const Instruction *in, int lane, uint64_t address, unsigned bytes, const char *access, const Allocation *near) {
    char where[160];
    uint64_t end = near->base + near->bytes;
    if (!near->base) snprintf(where, sizeof where, "no allocation is below it");
    else if (!near->live)
        snprintf(where, sizeof where, "in memory of %llu bytes at 0x%llx that was freed", (unsigned long long)near->bytes,
            (unsigned long long)near->base);
    else
        snprintf(where, sizeof where, "%lld bytes after the end of the %llu bytes at 0x%llx", (long long)(address + bytes - end),
            (unsigned long long)near->bytes, (unsigned long long)near->base);
    check_report(wave, in, lane, HIP_ERROR_ILLEGAL_ADDRESS, "an out-of-bounds %s of %u bytes at 0x%llx: %s", access, bytes,
        (unsigned long long)address, where);
}

bool check_global(Wave *wave, const Instruction *in, int lane, uint64_t address, unsigned bytes, bool write) {
    unsigned alignment = bytes < 4 ? bytes : 4;
    if (address & (alignment - 1)) {
        check_report(wave, in, lane, HIP_ERROR_ILLEGAL_ADDRESS, "a misaligned %s of %u bytes at 0x%llx", write ? "write" : "read", bytes,
            (unsigned long long)address);
        return false;
    }
    if (address - wave->recent.base + bytes <= wave->recent.bytes && address >= wave->recent.base) return true;
    const Launch *launch = wave->group->launch;
    uint64_t kernarg = (uint64_t)launch->kernarg, packet = (uint64_t)launch->packet;
    if (!write && ((address >= kernarg && address + bytes <= kernarg + launch->kernel->kernarg_bytes) ||
                      (address >= packet && address + bytes <= packet + sizeof launch->packet)))
        return true;
    Allocation found = {0};
    if (arena_find(address, &found) && found.live && bytes <= found.bytes && address - found.base <= found.bytes - bytes) {
        wave->recent = found;
        return true;
    }
    report_global(wave, in, lane, address, bytes, write ? "write" : "read", &found);
    return false;
}

uint8_t *check_scratch(Wave *wave, const Instruction *in, int lane, uint32_t offset, unsigned bytes) {
    if (offset <= wave->scratch_bytes && bytes <= wave->scratch_bytes - offset)
        return wave->scratch + (size_t)lane * wave->scratch_bytes + offset;
    check_report(wave, in, lane, HIP_ERROR_ILLEGAL_ADDRESS, "an out-of-bounds scratch access of %u bytes at %u; a lane has %u", bytes,
        offset, wave->scratch_bytes);
    return NULL;
}

/* -- LDS ----------------------------------------------------------------------------------------------------------- */

/* A tag is an epoch and a wavefront; 0 is never. Reads by several wavefronts of one epoch, and atomics, have names
 * of their own. */
enum { WAVE_BITS = 5, SEVERAL = 31, ATOMIC = 30, LAST_EPOCH = (1 << (16 - WAVE_BITS)) - 1 };
struct Shadow {
    uint16_t epoch;
    bool holds_undefined; /* else `undefined` counts as zero */
    _Alignas(64) uint16_t writer[LDS_BYTES], reader[LDS_BYTES];
    uint8_t undefined[LDS_BYTES];
};

Shadow *shadow_create(void) {
    Shadow *shadow = aligned_alloc(64, (sizeof(Shadow) + 63) / 64 * 64);
    if (shadow) shadow->holds_undefined = false;
    return shadow;
}
void shadow_destroy(Shadow *shadow) { free(shadow); }
void shadow_begin(Shadow *shadow, uint32_t lds_bytes) {
    shadow->epoch = 2;
    shadow->holds_undefined = false;
    memset(shadow->writer, 0, lds_bytes * sizeof *shadow->writer);
    memset(shadow->reader, 0, lds_bytes * sizeof *shadow->reader);
}
uint8_t *shadow_undefined(Shadow *shadow, uint32_t address, bool create) {
    if (create && !shadow->holds_undefined) memset(shadow->undefined, 0, sizeof shadow->undefined);
    shadow->holds_undefined |= create;
    return shadow->holds_undefined ? &shadow->undefined[address] : NULL;
}
/* Before epochs run out, all that is past becomes epoch 1. */
void shadow_barrier(Shadow *shadow, uint32_t lds_bytes) {
    if (shadow->epoch++ < LAST_EPOCH - 1) return;
    for (uint32_t i = 0; i < lds_bytes; i++) shadow->writer[i] = shadow->writer[i] ? 1 << WAVE_BITS : 0;
    memset(shadow->reader, 0, lds_bytes * sizeof *shadow->reader);
    shadow->epoch = 2;
}

static int tag_wave(uint16_t tag) { return tag & ((1 << WAVE_BITS) - 1); }
static int tag_epoch(uint16_t tag) { return tag >> WAVE_BITS; }

static bool report_race(
    Wave *wave, const Instruction *in, int lane, uint32_t address, const char *this_access, const char *other_access, int other) {
    char who[32];
    snprintf(who, sizeof who, "wavefront %d", other);
    check_report(wave, in, lane, HIP_ERROR_LAUNCH_FAILURE, "a race in LDS: %s byte %u that %s %s since the last barrier", this_access,
        address,
        other == SEVERAL  ? "other wavefronts"
        : other == ATOMIC ? "an atomic operation"
                          : who,
        other_access);
    return false;
}

static bool check_local_byte(Wave *wave, const Instruction *in, int lane, uint32_t address, LocalAccess access) {
    Shadow *shadow = wave->group->shadow;
    uint16_t mine = (uint16_t)(shadow->epoch << WAVE_BITS | wave->index), *writer = &shadow->writer[address],
             *reader = &shadow->reader[address];
    bool written_now = tag_epoch(*writer) == shadow->epoch, read_now = tag_epoch(*reader) == shadow->epoch;
    int own = access == LOCAL_ATOMIC ? ATOMIC : wave->index;
    if (written_now && tag_wave(*writer) != own && !(tag_wave(*writer) == wave->index && access == LOCAL_ATOMIC))
        return report_race(wave, in, lane, address, access == LOCAL_READ ? "reads" : "writes", "wrote", tag_wave(*writer));
    if (access != LOCAL_READ && read_now && tag_wave(*reader) != wave->index && !(access == LOCAL_ATOMIC && tag_wave(*reader) == ATOMIC))
        return report_race(wave, in, lane, address, "writes", "read", tag_wave(*reader));
    if (access != LOCAL_WRITE) {
        if (!*writer) {
            check_report(wave, in, lane, HIP_ERROR_LAUNCH_FAILURE, "a read of LDS byte %u, which nothing wrote", address);
            return false;
        }
        if (access == LOCAL_ATOMIC && shadow->holds_undefined && shadow->undefined[address]) {
            check_report(
                wave, in, lane, HIP_ERROR_LAUNCH_FAILURE, "an atomic operation on LDS byte %u, which has bits that nothing wrote", address);
            return false;
        }
        *reader = access == LOCAL_ATOMIC        ? (uint16_t)(shadow->epoch << WAVE_BITS | ATOMIC)
                  : read_now && *reader != mine ? (uint16_t)(shadow->epoch << WAVE_BITS | SEVERAL)
                                                : mine;
    }
    if (access != LOCAL_READ) *writer = (uint16_t)(shadow->epoch << WAVE_BITS | own);
    return true;
}

bool check_local(Wave *wave, const Instruction *in, int lane, uint32_t address, unsigned bytes, LocalAccess access) {
    const Launch *launch = wave->group->launch;
    const char *name = access == LOCAL_READ ? "read" : access == LOCAL_WRITE ? "write" : "atomic operation";
    if (address > launch->lds_bytes || bytes > launch->lds_bytes - address) {
        check_report(wave, in, lane, HIP_ERROR_ILLEGAL_ADDRESS, "an out-of-bounds LDS %s of %u bytes at %u; the workgroup has %u", name,
            bytes, address, launch->lds_bytes);
        return false;
    }
    if (address & ((bytes == 12 ? 16 : bytes) - 1)) {
        check_report(wave, in, lane, HIP_ERROR_ILLEGAL_ADDRESS, "a misaligned LDS %s of %u bytes at %u", name, bytes, address);
        return false;
    }
    if (launch->check == CHECK_OFF) return true;
    for (unsigned i = 0; i < bytes; i++)
        if (!check_local_byte(wave, in, lane, address + i, access)) return false;
    return true;
}

/* One access by all lanes of a list. */
typedef struct LanesCheck {
    Shadow *shadow;
    const uint32_t *address;
    int count, wave;
    uint64_t wrong[4]; /* not zero where a byte may not be accessed so */
} LanesCheck;

/* Functions check_read_N and check_write_N: what check_local_byte decides, for the tags of N bytes at once; and where nothing is wrong,
 * they tag all bytes. Vectors of tags are spelt out, since compilers take the loop over lanes for the inner one. */
#define CHECK_LANES(name, bytes, writes)                                                                  \
    CORE check_##name(LanesCheck *c) {                                                                    \
        typedef uint16_t Tags __attribute__((vector_size(2 * (bytes))));                                  \
        uint16_t *const writers = c->shadow->writer, *const readers = c->shadow->reader;                  \
        const Tags none = {0}, now = none + (uint16_t)(c->shadow->epoch << WAVE_BITS), mine = now + (uint16_t)c->wave;   \
        Tags wrong = none, writer, reader;                                                                \
        for (int i = 0; i < c->count; i++) {                                                              \
            memcpy(&writer, writers + c->address[i], sizeof writer);                                      \
            memcpy(&reader, readers + c->address[i], sizeof reader);                                      \
            Tags written = (Tags)((writer ^ now) <= SEVERAL) & (Tags)(writer != mine),                    \
                 read = (Tags)((reader ^ now) <= SEVERAL) & (Tags)(reader != mine);                       \
            wrong |= written | ((writes) ? read : (Tags)(writer == none));                                \
        }                                                                                                 \
        memcpy(c->wrong, &wrong, sizeof wrong);                                                           \
        if (c->wrong[0] | c->wrong[1] | c->wrong[2] | c->wrong[3]) return;                                \
        for (int i = 0; i < c->count; i++) {                                                              \
            uint16_t *tag = ((writes) ? writers : readers) + c->address[i];                               \
            memcpy(&reader, tag, sizeof reader);                                                          \
            Tags others = (Tags)((reader ^ now) <= SEVERAL) & (Tags)(reader != mine);                     \
            reader = (writes) ? mine : (others & (now | SEVERAL)) | (~others & mine);                     \
            memcpy(tag, &reader, sizeof reader);                                                          \
        }                                                                                                 \
    }
CHECK_LANES(read_4, 4, false)
CHECK_LANES(read_8, 8, false)
CHECK_LANES(read_16, 16, false)
CHECK_LANES(write_4, 4, true)
CHECK_LANES(write_8, 8, true)
CHECK_LANES(write_16, 16, true)

bool check_local_lanes(Wave *wave, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access) {
    const Launch *launch = wave->group->launch;
    uint32_t last = 0, low_bits = 0, active[LANES];
    LanesCheck check = {.shadow = wave->group->shadow, .wave = wave->index, .address = address, .count = LANES};
    if (exec != ~0ull) {
        check.address = active, check.count = 0;
        for (uint64_t left = exec; left; left &= left - 1) active[check.count++] = address[__builtin_ctzll(left)];
    }
    for (int i = 0; i < check.count; i++) last = umax(last, check.address[i]), low_bits |= check.address[i];
    if ((bytes != 4 && bytes != 8 && bytes != 16) || low_bits & (bytes - 1) || bytes > launch->lds_bytes ||
        last > launch->lds_bytes - bytes)
        return false;
    if (launch->check == CHECK_OFF) return true;
    bool writes = access == LOCAL_WRITE;
    (bytes == 4      ? (writes ? check_write_4 : check_read_4)
        : bytes == 8 ? (writes ? check_write_8 : check_read_8)
        : writes     ? check_write_16
                     : check_read_16)(&check);
    return !(check.wrong[0] | check.wrong[1] | check.wrong[2] | check.wrong[3]);
}

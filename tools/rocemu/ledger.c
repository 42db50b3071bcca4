/* ROCEMU_LEDGER=FILE: when the process ends, a line for every kernel that ran is appended to FILE, so that whoever
 * runs many programs can sum up what was executed and what never was (tools/rocemu/test.sh):
 *
 *     checksum of the code object, as cksum prints it; kernel; launches; instructions; seconds of the processors;
 *     launches whose accesses arrived late
 *
 * The entries live as long as the process. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

typedef struct Entry {
    struct Entry *next;
    char name[KERNEL_NAME];
    uint32_t checksum;
    uint64_t launches, late, instructions;
    double seconds;
} Entry;

static struct {
    pthread_mutex_t lock;
    Entry *first;
} ledger = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t crc_byte(uint32_t crc, uint8_t byte) {
    crc ^= (uint32_t)byte << 24;
    for (int bit = 0; bit < 8; bit++) crc = crc << 1 ^ (crc >> 31 ? 0x04c11db7 : 0);
    return crc;
}

uint32_t ledger_checksum(const void *bytes, size_t count) {
    uint32_t crc = 0;
    for (size_t i = 0; i < count; i++) crc = crc_byte(crc, ((const uint8_t *)bytes)[i]);
    for (size_t left = count; left; left >>= 8) crc = crc_byte(crc, (uint8_t)left);
    return ~crc;
}

/* One write per line, so that programs that end at once do not mix theirs. */
static void write_ledger(void) {
    FILE *file = fopen(getenv("ROCEMU_LEDGER"), "a");
    if (!file) {
        perror("rocemu: ROCEMU_LEDGER");
        return;
    }
    setvbuf(file, NULL, _IOLBF, BUFSIZ);
    for (const Entry *entry = ledger.first; entry; entry = entry->next)
        fprintf(file, "%u %s %llu %llu %.6f %llu\n", entry->checksum, entry->name, (unsigned long long)entry->launches,
            (unsigned long long)entry->instructions, entry->seconds, (unsigned long long)entry->late);
    fclose(file);
}

static Entry *find_entry(const Kernel *kernel) {
    for (Entry *entry = ledger.first; entry; entry = entry->next)
        if (entry->checksum == kernel->program->checksum && !strcmp(entry->name, kernel->name)) return entry;
    Entry *entry = calloc(1, sizeof *entry);
    if (!entry) return NULL;
    if (!ledger.first && getenv("ROCEMU_LEDGER")) atexit(write_ledger);
    memcpy(entry->name, kernel->name, sizeof entry->name);
    entry->checksum = kernel->program->checksum;
    entry->next = ledger.first;
    return ledger.first = entry;
}

void ledger_add(const Launch *launch, double seconds) {
    pthread_mutex_lock(&ledger.lock);
    Entry *entry = find_entry(launch->kernel);
    if (entry) {
        entry->launches++;
        entry->late += launch->late;
        entry->instructions += launch->executed;
        entry->seconds += seconds;
    }
    pthread_mutex_unlock(&ledger.lock);
}

uint64_t ledger_launches(const Kernel *kernel) {
    pthread_mutex_lock(&ledger.lock);
    const Entry *entry = find_entry(kernel);
    uint64_t launches = entry ? entry->launches : 0;
    pthread_mutex_unlock(&ledger.lock);
    return launches;
}

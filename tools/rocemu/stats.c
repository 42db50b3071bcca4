/* Counts for ROCEMU_STATS=1: per kernel, what was executed and moved, and the time that an MI300X would need at
 * least by its published rates. The totals of a process are kept by kernel and code object (which is named by its
 * cksum) and printed to stderr when it ends. "Modeled" means just that: no latency, no occupancy, no caches. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

enum { LINE = 128, LDS_BANKS = 32, LDS_CYCLE_BYTES = 128, TOP = 10, MAX_MNEMONICS = 2048 };
/* MI300X as published: 304 compute units at 2.1 GHz, a vector instruction of 64 lanes per compute unit and cycle,
 * 128 bytes of LDS per compute unit and cycle. */
static const double compute_units = 304, clock_rate = 2.1e9, memory_rate = 5.3e12;

typedef enum Class { CLASS_SCALAR, CLASS_VECTOR, CLASS_MATRIX, CLASS_LDS, CLASS_MEMORY, CLASSES } Class;
typedef struct Mnemonic {
    const Operation *operation;
    uint64_t count;
} Mnemonic;
typedef struct Totals {
    struct Totals *next;
    char name[KERNEL_NAME];
    uint32_t checksum;
    Statistics sum;
    uint64_t classes[CLASSES], launches;
    double seconds;
    Mnemonic mnemonic[MAX_MNEMONICS];
    int mnemonics;
} Totals;

static struct {
    pthread_mutex_t lock;
    Totals *first;
} totals = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool statistics_enabled(void) {
    const char *value = getenv("ROCEMU_STATS");
    return value && strcmp(value, "0");
}

Statistics *statistics_create(const Program *program) {
    Statistics *statistics = calloc(1, sizeof *statistics);
    if (!statistics) return NULL;
    statistics->slots = program->text_bytes / 4 + 1;
    statistics->executions = calloc(statistics->slots, sizeof *statistics->executions);
    if (statistics->executions) return statistics;
    free(statistics);
    return NULL;
}

void statistics_destroy(Statistics *statistics) {
    if (!statistics) return;
    free(statistics->executions);
    free(statistics);
}

void statistics_add(Statistics *to, const Statistics *from) {
    for (uint64_t i = 0; to->executions && i < from->slots; i++) to->executions[i] += from->executions[i];
#define SUM(member) to->member += from->member
    SUM(read_bytes), SUM(written_bytes), SUM(global_accesses), SUM(uncoalesced), SUM(lines), SUM(ideal_lines), SUM(local_bytes),
        SUM(local_accesses), SUM(local_cycles);
    SUM(local_conflicts), SUM(matrix_operations), SUM(matrix_seconds), SUM(waves), SUM(workgroups);
#undef SUM
}

/* -- Accesses ------------------------------------------------------------------------------------------------------ */

void statistics_global(Statistics *statistics, const uint64_t address[LANES], uint64_t exec, unsigned bytes, bool write) {
    uint64_t line[2 * LANES], active = (uint64_t)__builtin_popcountll(exec);
    int lines = 0;
    if (!active) return;
    for (uint64_t left = exec; left; left &= left - 1) {
        uint64_t from = address[__builtin_ctzll(left)];
        for (uint64_t at = from / LINE; at <= (from + bytes - 1) / LINE; at++) {
            int i = lines - 1;
            while (i >= 0 && line[i] != at) i--;
            if (i < 0 && lines < 2 * LANES) line[lines++] = at;
        }
    }
    uint64_t ideal = (active * bytes + LINE - 1) / LINE;
    *(write ? &statistics->written_bytes : &statistics->read_bytes) += active * bytes;
    statistics->global_accesses++;
    statistics->lines += (uint64_t)lines;
    statistics->ideal_lines += ideal < (uint64_t)lines ? ideal : (uint64_t)lines;
    statistics->uncoalesced += (uint64_t)lines > 2 * ideal;
}

/* Lanes go in groups that ask for 128 bytes; a group needs a cycle for each different dword that it wants of one
 * bank. */
void statistics_local(Statistics *statistics, const uint32_t address[LANES], uint64_t exec, unsigned bytes) {
    unsigned dwords = bytes < 4 ? 1 : bytes / 4, group_lanes = LDS_BANKS / (dwords == 3 ? 4 : dwords);
    for (unsigned first = 0; first < LANES; first += group_lanes) {
        uint32_t wanted[LDS_BANKS][LANES];
        uint8_t count[LDS_BANKS] = {0};
        unsigned cycles = 0;
        for (unsigned lane = first; lane < first + group_lanes; lane++) {
            if (!(exec >> lane & 1)) continue;
            for (unsigned d = 0; d < dwords; d++) {
                uint32_t word = address[lane] / 4 + d, bank = word % LDS_BANKS, i = 0;
                while (i < count[bank] && wanted[bank][i] != word) i++;
                if (i == count[bank]) wanted[bank][count[bank]++] = word;
                if (count[bank] > cycles) cycles = count[bank];
            }
        }
        statistics->local_cycles += cycles;
        statistics->local_conflicts += cycles > 1 ? cycles - 1 : 0;
    }
    statistics->local_accesses++;
    statistics->local_bytes += (uint64_t)__builtin_popcountll(exec) * bytes;
}

void statistics_matrix(Statistics *statistics, uint64_t operations, double tera_rate) {
    statistics->matrix_operations += operations;
    statistics->matrix_seconds += (double)operations / (tera_rate * 1e12);
}

/* -- Totals -------------------------------------------------------------------------------------------------------- */

static Class operation_class(const Operation *operation) {
    if (operation->flags & OPERATION_MATRIX) return CLASS_MATRIX;
    if (operation->name[0] == 's' && operation->name[1] == '_') return CLASS_SCALAR;
    if (operation->name[0] == 'v') return CLASS_VECTOR;
    return operation->name[0] == 'd' ? CLASS_LDS : CLASS_MEMORY;
}

static int compare_mnemonics(const void *a, const void *b) {
    const Mnemonic *x = a, *y = b;
    return x->count < y->count ? 1 : x->count > y->count ? -1 : strcmp(x->operation->name, y->operation->name);
}

static void print_totals(void) {
    for (Totals *kernel = totals.first; kernel; kernel = kernel->next) {
        const Statistics *sum = &kernel->sum;
        uint64_t executed = 0;
        for (int i = 0; i < CLASSES; i++) executed += kernel->classes[i];
        fprintf(stderr,
            "rocemu: %s: %llu launches, %llu workgroups, %llu wavefronts, %llu instructions in %.3f s of cores, %.1f million/s, code "
            "object %u\n",
            kernel->name, (unsigned long long)kernel->launches, (unsigned long long)sum->workgroups, (unsigned long long)sum->waves,
            (unsigned long long)executed, kernel->seconds, kernel->seconds > 0 ? 1e-6 * (double)executed / kernel->seconds : 0,
            kernel->checksum);
        fprintf(stderr, "    mix: %llu scalar, %llu vector, %llu matrix (%.4g GFLOP), %llu LDS, %llu memory; most:",
            (unsigned long long)kernel->classes[CLASS_SCALAR], (unsigned long long)kernel->classes[CLASS_VECTOR],
            (unsigned long long)kernel->classes[CLASS_MATRIX], 1e-9 * (double)sum->matrix_operations,
            (unsigned long long)kernel->classes[CLASS_LDS], (unsigned long long)kernel->classes[CLASS_MEMORY]);
        qsort(kernel->mnemonic, (size_t)kernel->mnemonics, sizeof *kernel->mnemonic, compare_mnemonics);
        for (int i = 0; i < kernel->mnemonics && i < TOP; i++)
            fprintf(stderr, " %s %llu", kernel->mnemonic[i].operation->name, (unsigned long long)kernel->mnemonic[i].count);
        fprintf(stderr,
            "\n    memory: %llu bytes read, %llu written, %llu of %llu accesses uncoalesced (%llu lines of %d bytes, %llu at best)\n",
            (unsigned long long)sum->read_bytes, (unsigned long long)sum->written_bytes, (unsigned long long)sum->uncoalesced,
            (unsigned long long)sum->global_accesses, (unsigned long long)sum->lines, LINE, (unsigned long long)sum->ideal_lines);
        fprintf(stderr, "    LDS: %llu bytes in %llu accesses, %llu cycles, %llu of them bank conflicts\n",
            (unsigned long long)sum->local_bytes, (unsigned long long)sum->local_accesses, (unsigned long long)sum->local_cycles,
            (unsigned long long)sum->local_conflicts);
        double vector = (double)kernel->classes[CLASS_VECTOR] / (compute_units * clock_rate),
               memory = (double)(sum->read_bytes + sum->written_bytes) / memory_rate,
               local = (double)sum->local_cycles / (compute_units * clock_rate);
        const char *bound = sum->matrix_seconds >= vector && sum->matrix_seconds >= memory && sum->matrix_seconds >= local ? "matrix"
                            : vector >= memory && vector >= local                                                          ? "vector"
                            : memory >= local                                                                              ? "memory"
                                                                                                                           : "LDS";
        fprintf(stderr,
            "    modeled for a full MI300X, not measured: matrix %.3g us, vector %.3g us, memory %.3g us (nothing cached), LDS %.3g us: "
            "bound by %s\n",
            1e6 * sum->matrix_seconds, 1e6 * vector, 1e6 * memory, 1e6 * local, bound);
    }
}

static Totals *find_totals(const Kernel *launched) {
    for (Totals *kernel = totals.first; kernel; kernel = kernel->next)
        if (kernel->checksum == launched->program->checksum && !strcmp(kernel->name, launched->name)) return kernel;
    Totals *kernel = calloc(1, sizeof *kernel);
    if (!kernel) return NULL;
    memcpy(kernel->name, launched->name, sizeof kernel->name);
    kernel->checksum = launched->program->checksum;
    if (!totals.first) atexit(print_totals);
    kernel->next = totals.first;
    totals.first = kernel;
    return kernel;
}

static void add_mnemonic(Totals *kernel, const Operation *operation, uint64_t count) {
    int i = 0;
    while (i < kernel->mnemonics && kernel->mnemonic[i].operation != operation) i++;
    if (i == MAX_MNEMONICS) return;
    if (i == kernel->mnemonics) kernel->mnemonic[kernel->mnemonics++] = (Mnemonic){operation, 0};
    kernel->mnemonic[i].count += count;
    kernel->classes[operation_class(operation)] += count;
}

void statistics_finish(const Launch *launch, double seconds) {
    pthread_mutex_lock(&totals.lock);
    Totals *kernel = find_totals(launch->kernel);
    if (kernel) {
        const Statistics *statistics = launch->statistics;
        const Instruction *program = launch->kernel->program->instruction;
        for (uint64_t i = 0; i < statistics->slots; i++)
            if (statistics->executions[i] && program[i].operation) add_mnemonic(kernel, program[i].operation, statistics->executions[i]);
        statistics_add(&kernel->sum, statistics);
        kernel->launches++;
        kernel->seconds += seconds;
    }
    pthread_mutex_unlock(&totals.lock);
}

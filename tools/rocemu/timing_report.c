/* What ROCEMU_TIME prints when the process ends: for each launch, of those alike only once, the modeled cycles, how
 * busy the units are, where wavefronts wait, and the instructions at which they wait longest. ROCEMU_TIME_CSV=FILE
 * gets a row for each instead: target, ROCEMU_TIME_LABEL, kernel, grid, cycles, with ROCEMU_TIME_RANGE their range, shares of the matrix units' and of
 * memory's rate, launches, registers, workgroups per compute unit, the longest wait. Nothing here was measured. */
#include <stdio.h>
#include <stdlib.h>

#include "timing.h"

static void print_shares(const TimingResult *result) {
    fprintf(stderr, "    wavefronts:");
    for (int i = 0; i < REASONS; i++)
        if (result->share[i] >= 0.005) fprintf(stderr, " %s %.0f%%,", reason_names[i], 100 * result->share[i]);
    fprintf(stderr, " (%d workgroups replayed)\n", result->traced);
}

/* Of what copies reach. */
static double memory_share(const TimingResult *result) {
    return result->seconds > 0 ? result->memory_bytes / result->seconds / result->machine->memory_rate : 0;
}

static void print_result(const TimingResult *result) {
    double rate = result->seconds > 0 ? result->operations / result->seconds : 0;
    fprintf(stderr, "rocemu: %s, grid %u x %u x %u of %u threads, %llu launches: modeled %.0f cycles, %.4g us at %.1f GHz of %s\n",
        result->kernel, result->grid[0], result->grid[1], result->grid[2], result->threads, (unsigned long long)result->launches,
        result->cycles, 1e6 * result->seconds, 1e-9 * result->machine->clock, result->machine->name);
    fprintf(stderr,
        "    %u registers, %u bytes of LDS, %d workgroups per compute unit; busy: matrix %.1f%% (%.1f TFLOP/s), vector %.1f%%, "
        "LDS %.1f%%, memory %.1f%%\n",
        result->vector_registers, result->lds_bytes, result->occupancy, 100 * result->matrix_share, 1e-12 * rate,
        100 * result->vector_share, 100 * result->local_share, 100 * memory_share(result));
    fprintf(stderr, "    lines from L1 %.0f%%, L2 %.0f%%, Infinity Cache %.0f%%, memory %.0f%% (%.4g MB)\n", 100 * result->lines[LEVEL_L1],
        100 * result->lines[LEVEL_L2], 100 * result->lines[LEVEL_SHARED_CACHE], 100 * result->lines[LEVEL_MEMORY],
        1e-6 * result->memory_bytes);
    if (result->high > 0) fprintf(stderr, "    %.0f to %.0f cycles, by what is unknown\n", result->low, result->high);
    print_shares(result);
    for (int i = 0; i < WORST && result->worst[i].share > 0; i++)
        fprintf(stderr, "    %4.1f%% %s at 0x%x `%s`\n", 100 * result->worst[i].share, reason_names[result->worst[i].reason],
            result->worst[i].address, result->worst[i].text);
}

/* What wavefronts did most of the time beside issuing. */
static Reason longest_wait(const TimingResult *result) {
    int longest = REASON_ISSUED + 1;
    for (int i = longest; i < REASONS; i++)
        if (result->share[i] > result->share[longest]) longest = i;
    return (Reason)longest;
}

static void write_rows(const TimingResult *first, const char *path) {
    const char *label = getenv("ROCEMU_TIME_LABEL");
    FILE *file = fopen(path, "a");
    if (!file) {
        perror("rocemu: ROCEMU_TIME_CSV");
        return;
    }
    for (const TimingResult *r = first; r; r = r->next) {
        Reason wait = longest_wait(r);
        char range[64] = "";
        if (r->high > 0) snprintf(range, sizeof range, "%.0f-%.0f,", r->low, r->high);
        fprintf(file, "%s,%s,%s,%ux%ux%u,%.0f,%s%.3f,%.3f,%llu,%u,%d,%s %.0f%%\n", r->machine->target, label ? label : "", r->kernel,
            r->grid[0], r->grid[1], r->grid[2], r->cycles, range, r->matrix_share, memory_share(r), (unsigned long long)r->launches,
            r->vector_registers, r->occupancy, reason_names[wait], 100 * r->share[wait]);
    }
    fclose(file);
}

void report_print(const TimingResult *first) {
    const char *path = getenv("ROCEMU_TIME_CSV");
    if (path) write_rows(first, path);
    else
        for (const TimingResult *result = first; result; result = result->next) print_result(result);
}

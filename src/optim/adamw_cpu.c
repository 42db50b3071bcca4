/* AdamW's update on the CPU (optim/adamw.c has the formula). */
#include "optim/pass_cpu_internal.h"

PreciseSum KERNEL(update_adamw)(const PassRates *rates, const PassMemory *memory);

PreciseSum KERNEL(update_adamw)(const PassRates *rates, const PassMemory *memory) {
    W *p = memory->master, *m = memory->momentum, *v = memory->variance;
    const W *g = memory->gradient;
    for (int64_t first = 0; first < memory->count; first += UPDATE_BLOCK) {
        int64_t block = int_min(UPDATE_BLOCK, memory->count - first);
        update_adamw(rates->elements, block, p + first, g + first, m + first, v + first);
        cast_weights(block, p + first, (T *)memory->weights + first);
    }
    return (PreciseSum){0};
}

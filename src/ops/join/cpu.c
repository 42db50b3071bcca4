/* join and split on a CPU: copies of runs, which threads divide. No scratch. */
#include "backend/cpu/kernel.h"
#include "ops/join/join.h"

/* Copies between the parts and the whole; an absent part of join gives zeros. */
static void copy_runs(const JoinAttributes *a, char *whole, void *const *parts, bool to_parts) {
    int64_t width = a->wide ? sizeof(W) : sizeof(T), begin[JOIN_MOST_PARTS + 1] = {0};
    for (int i = 0; i < a->count; i++) begin[i + 1] = begin[i] + a->elements[i] * width;
#pragma omp parallel for schedule(static)
    for (int64_t run = 0; run < a->groups * a->count; run++) {
        int64_t group = run / a->count, i = run % a->count, bytes = begin[i + 1] - begin[i];
        char *at = whole + group * begin[a->count] + begin[i], *part = parts[i] ? (char *)parts[i] + group * bytes : NULL;
        if (to_parts && part) memcpy(part, at, bytes);
        else if (part) memcpy(at, part, bytes);
        else if (!to_parts) memset(at, 0, bytes);
    }
}

CPU_OP(join) { copy_runs(call->attributes, call->out[JOIN_WHOLE], call->in + JOIN_PART, false); }
CPU_OP(split) { copy_runs(call->attributes, call->in[SPLIT_WHOLE], call->out + SPLIT_PART, true); }

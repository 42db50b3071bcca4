/* Sampling: tokens in order of their logits, cut by top-k and then by top-p, and one draw from what is left. */
#include "infer/generate.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/scope.h"

typedef struct Candidate {
    double logit;
    int32_t token;
} Candidate;

static int likelier_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

static int32_t most_likely(const double *logits, int64_t count) {
    int32_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

/* The index at which the running sum of weights passes `target`. */
static int64_t find_sum(const double *weights, int64_t count, double target) {
    int64_t at = 0;
    for (double sum = weights[0]; sum <= target && at + 1 < count; sum += weights[at]) at++;
    return at;
}

int32_t sample_token(const double *logits, int64_t count, const Sampling *sampling, double uniform) {
    if (sampling->temperature == 0) return most_likely(logits, count);
    SCOPED_FREE Candidate *candidates = memory_allocate(count * sizeof *candidates);
    SCOPED_FREE double *weights = memory_allocate(count * sizeof *weights);
    for (int64_t i = 0; i < count; i++) candidates[i] = (Candidate){logits[i], (int32_t)i};
    qsort(candidates, count, sizeof *candidates, likelier_first);
    int64_t kept = sampling->top_k > 0 && sampling->top_k < count ? sampling->top_k : count;
    double total = 0;
    for (int64_t i = 0; i < kept; i++) total += weights[i] = exp((candidates[i].logit - candidates[0].logit) / sampling->temperature);
    if (sampling->top_p < 1) {
        double enough = sampling->top_p * total;
        int64_t most = kept;
        total = weights[0];
        for (kept = 1; total < enough && kept < most; kept++) total += weights[kept];
    }
    return candidates[find_sum(weights, kept, uniform * total)].token;
}

/* Sampling: the most likely token, or one draw among all tokens, or among the tokens that top-k and
 * then top-p keep. A vocabulary may have 262,144 tokens, so only candidates are sorted: sorting all
 * tokens would take longer than computing the logits. */
#include "infer/generate.h"

#include <math.h>
#include <stdlib.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

typedef struct SampleCandidate {
    double logit;
    int32_t token;
} SampleCandidate;

static int likelier_first(const void *a, const void *b) {
    const SampleCandidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Returns the first of the largest logits. It finds each block's largest with several independent
 * comparisons. */
static int32_t most_likely(const double *logits, int64_t count) {
    enum { BLOCK = 512, LANES = 4 };
    double largest = logits[0];
    int64_t best = 0;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t end = int_min(first + BLOCK, count), at = first;
        double lane[LANES] = {largest, largest, largest, largest};
        for (; at + LANES <= end; at += LANES)
            for (int l = 0; l < LANES; l++) lane[l] = logits[at + l] > lane[l] ? logits[at + l] : lane[l];
        for (; at < end; at++) lane[0] = logits[at] > lane[0] ? logits[at] : lane[0];
        for (int l = 1; l < LANES; l++) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
        if (!(lane[0] > largest)) continue;
        for (best = first; logits[best] != lane[0];) best++;
        largest = lane[0];
    }
    return (int32_t)best;
}

/* Returns the index at which the running sum of weights exceeds `target`. */
static int64_t find_sum(const double *weights, int64_t count, double target) {
    int64_t at = 0;
    for (double sum = weights[0]; sum <= target && at + 1 < count; sum += weights[at]) at++;
    return at;
}

/* Moves a candidate down to its position in a heap whose root is the least likely. */
static void sink(SampleCandidate *heap, int64_t count, int64_t at) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && likelier_first(&heap[child], &heap[child + 1]) < 0;
        if (likelier_first(&heap[at], &heap[child]) > 0) return;
        SampleCandidate lower = heap[at];
        heap[at] = heap[child];
        heap[child] = lower;
    }
}

/* Collects the `kept` most likely of `count` tokens, in any order. */
static void take_likeliest(const double *logits, int64_t count, SampleCandidate *candidates, int64_t kept) {
    for (int64_t i = 0; i < kept; i++) candidates[i] = (SampleCandidate){logits[i], (int32_t)i};
    for (int64_t i = kept / 2; i-- > 0;) sink(candidates, kept, i);
    for (int64_t i = kept; i < count; i++) {
        SampleCandidate next = {logits[i], (int32_t)i};
        if (likelier_first(&next, candidates) > 0) continue;
        candidates[0] = next;
        sink(candidates, kept, 0);
    }
}

/* Collects the tokens of at least this weight, in any order; returns their number. */
static int64_t take_heaviest(const double *logits, const double *weights, int64_t count, double least, SampleCandidate *candidates) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (weights[i] >= least) candidates[kept++] = (SampleCandidate){logits[i], (int32_t)i};
    return kept;
}

/* Draws among the most likely tokens. Top-p may drop tokens with a total weight of 1 - top_p.
 * Tokens below (1 - top_p) / count of the total weigh less than this together, so they are dropped
 * without sorting. The most likely token, of weight 1, stays. */
static int32_t draw_likely(
    const double *logits, const double *weights, double total, int64_t count, const Sampling *sampling, double uniform) {
    bool cut = sampling->top_k > 0 && sampling->top_k < count;
    int64_t kept = cut ? sampling->top_k : count, at = 0;
    SCOPED_FREE SampleCandidate *candidates = memory_allocate((size_t)count * sizeof *candidates);
    if (cut) take_likeliest(logits, count, candidates, kept);
    else kept = take_heaviest(logits, weights, count, fmin((1 - sampling->top_p) * total / (double)count, 1), candidates);
    qsort(candidates, (size_t)kept, sizeof *candidates, likelier_first);
    SCOPED_FREE double *heavy = memory_allocate((size_t)kept * sizeof *heavy);
    double sum = 0;
    for (int64_t i = 0; i < kept; i++) sum += heavy[i] = weights[candidates[i].token];
    double enough = sampling->top_p * (cut ? sum : total);
    if (sampling->top_p < 1)
        for (sum = heavy[0]; sum < enough && at + 1 < kept; sum += heavy[at]) at++;
    return candidates[find_sum(heavy, sampling->top_p < 1 ? at + 1 : kept, uniform * sum)].token;
}

int32_t sample_token(const double *logits, int64_t count, const Sampling *sampling, double uniform) {
    int32_t best = most_likely(logits, count);
    if (sampling->temperature == 0) return best;
    SCOPED_FREE double *weights = memory_allocate((size_t)count * sizeof *weights);
    double total = 0;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) weights[i] = exp((logits[i] - logits[best]) / sampling->temperature);
    for (int64_t i = 0; i < count; i++) total += weights[i];
    if (sampling->top_p < 1 || sampling->top_k > 0) return draw_likely(logits, weights, total, count, sampling, uniform);
    return (int32_t)find_sum(weights, count, uniform * total);
}

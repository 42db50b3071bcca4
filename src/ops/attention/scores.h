/* How attention converts products of queries and keys to weights: the one declaration of it, for
 * every kernel on CPUs and GPUs. For query head h, and keys k of row r that the mask leaves:
 *     s = scale * (q . k)
 *     s = cap * tanh(s / cap)                     if cap > 0 (soft-cap of Gemma 2, arXiv 2408.00118)
 *     s = s - slope[h] * distance from r to k     if alibi > 0 (ALiBi, arXiv 2108.12409)
 *     weight = exp(s) / (exp(sink[h]) + sum over keys of exp(s)); exp(sink[h]) is 0 without sinks (gpt-oss)
 *
 * A sink changes only the end of a row's softmax: kernels compute the row without it, then call
 * score_sink. The log-sum-exp that is kept includes the sink, so the gradients of queries, keys and
 * values do not know of it. Its own is d_sink[h] = -sum over rows of exp(sink[h] - log_sum) * delta,
 * with delta = dO . O of the row.
 *
 * Kernels hold scores in units of their own: products q . k as they are on a GPU, logarithms to base
 * 2 on a CPU. Owns no memory. */
#pragma once

#include <stdint.h>

#ifndef GPU_DEVICE

#include <math.h>

#include "graph/graph.h"

typedef struct AttentionScores {
    int64_t window; /* a row sees its last `window` keys; 0: no limit */
    double scale;   /* 0: 1 / sqrt(qk_dim) */
    double cap;     /* 0: none */
    double alibi;   /* the smallest slope is 2^-alibi; 0: no bias */
    TensorId sinks; /* parameter, WIDE [heads]; the builder makes it an operand. TENSOR_NONE: none */
} AttentionScores;

/* Returns `unit` times the scale. */
static inline double score_scale(const AttentionScores *scores, int64_t qk_dim, double unit) {
    return scores->scale > 0 ? unit * scores->scale : unit / sqrt((double)qk_dim);
}

/* Return the constants of the soft-cap for scores in units of `unit`, natural logarithms being 1:
 * the bound of |y|, and the factor in SCORE_CAPPED's power. Both are 0 without a cap. */
static inline double score_limit(const AttentionScores *scores, double unit) { return scores->cap / unit; }
static inline double score_steepness(const AttentionScores *scores, double unit) {
    return scores->cap > 0 ? 2 * M_LOG2E * unit / scores->cap : 0;
}

typedef double ScoreNumber;
static inline double score_exp2(double x) { return exp2(x); }
static inline double score_log2(double x) { return log2(x); }
static inline double score_inverse(double x) { return 1 / x; }

#else

typedef float ScoreNumber;
static inline float score_exp2(float x) { return fast_exp2(x); }
static inline float score_log2(float x) { return fast_log2(x); }
static inline float score_inverse(float x) { return fast_reciprocal(x); }

#endif

/* ALiBi's slopes are 2^(-alibi * i / n), i = 1 .. n, with n = `heads` rounded up to a power of two.
 * Returns i of a head: if n != heads, heads take the even i first, then the odd ones (as MPT does). */
static inline int score_slope_index(int head, int heads, int rounded) {
    return rounded == heads ? head + 1 : head < rounded / 2 ? 2 * head + 2 : 2 * head + 1 - rounded;
}

/* The soft-cap y of a score x, with inverse = 1 / (1 + 2^(steepness * x)), and dy/dx, with part =
 * y / limit; for numbers, and for vectors of them. tanh(z) = 1 - 2 / (1 + e^2z). */
#define SCORE_CAPPED(limit, inverse) ((limit) - 2 * (limit) * (inverse))
#define SCORE_CAP_SLOPE(part) (1 - (part) * (part))

/* What a sink makes of a row's softmax, all to base 2: the factor of its weights, and so of its
 * result, and its log-sum-exp. A row without keys has log_sum -inf. */
typedef struct ScoreSink { ScoreNumber share, log_sum; } ScoreSink;
static inline ScoreSink score_sink(ScoreNumber log_sum, ScoreNumber sink) {
    ScoreNumber above = sink - log_sum;
    return (ScoreSink){
        score_inverse(1 + score_exp2(above)), (above > 0 ? sink : log_sum) + score_log2(1 + score_exp2(above > 0 ? -above : above))};
}

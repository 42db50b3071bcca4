/* The sum of exponentials of a row of logits on a CPU. The loss and draws share it, so that both give a
 * token the same bits. Loops are over copies of one length and one alignment, so the order of a sum does
 * not depend on the place of the row. */
#pragma once

#include "backend/cpu/kernel.h"

enum { EXPONENTIALS_PART = 512 };

/* Copies the part of x [count] from `first` on, followed by -infinity after the row's end. Returns its
 * length. */
static inline int64_t exponentials_load(const W *x, int64_t count, int64_t first, W part[EXPONENTIALS_PART]) {
    int64_t length = int_min(EXPONENTIALS_PART, count - first);
    memcpy(part, x + first, (size_t)length * sizeof(W));
    for (int64_t j = length; j < EXPONENTIALS_PART; j++) part[j] = -INFINITY;
    return length;
}

/* Returns the sum of e^(x - most) over x [count], and stores the terms in `keep` [count], which
 * may be x, or NULL. */
static inline W exponentials_sum(const W *x, int64_t count, W most, W *keep) {
    W part[EXPONENTIALS_PART];
    double all = 0;
    for (int64_t first = 0; first < count; first += EXPONENTIALS_PART) {
        int64_t length = exponentials_load(x, count, first, part);
        W sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < EXPONENTIALS_PART; j++) {
            W e = wide_exp(part[j] - most);
            part[j] = e;
            sum += e;
        }
        if (keep) memcpy(keep + first, part, (size_t)length * sizeof(W));
        all += (double)sum;
    }
    return (W)all;
}

/* Returns log softmax(x)[picked] for the largest logit and the sum of exponentials. */
static inline W exponentials_log_share(W picked, W most, W sum) { return (picked - most) - (W)log(sum); }

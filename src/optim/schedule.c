/* Learning rate and batch size as pure functions of the step, so that resuming needs nothing but the configuration. No
 * memory. Called by the training loop and by `smelt size`. */
#include "optim/optim.h"

#include <assert.h>
#include <math.h>

/* ---- Learning rate ---- */

/* Falls from 1 at progress 0 to `minimum` at progress 1. */
static double cosine(double minimum, double progress) { return minimum + (1 - minimum) * 0.5 * (1 + cos(M_PI * progress)); }
static double decay_linear(double minimum, double progress) { return 1 - (1 - minimum) * progress; }

/* Returns the position of `step` between `first` (0) and `last` (1). */
static double progress_between(int64_t first, int64_t last, int64_t step) {
    if (step <= first) return 0;
    return step >= last ? 1 : (double)(step - first) / (double)(last - first);
}

double schedule_lr(const ScheduleConfig *schedule, double peak, int64_t step, int64_t steps) {
    if (step <= schedule->warmup) return peak * (double)step / (double)schedule->warmup;
    double progress = progress_between(schedule->warmup, steps, step);
    switch ((ScheduleKind)schedule->kind) {
    case SCHEDULE_COSINE: return peak * cosine(schedule->minimum, progress);
    case SCHEDULE_LINEAR: return peak * decay_linear(schedule->minimum, progress);
    case SCHEDULE_WSD:
        return schedule->decay ? peak * decay_linear(schedule->minimum, progress_between(steps - schedule->decay, steps, step)) : peak;
    case SCHEDULE_CONSTANT: break;
    }
    return peak;
}

/* ---- Batch size ---- */

/* The ramp in microbatches: step s of the first `steps` steps draws first + floor(growth * (s - 1)
 * / steps); every later step draws first + growth. */
typedef struct Ramp { int64_t first, growth, steps; } Ramp;

static Ramp ramp_of(const BatchConfig *batch, int64_t microbatch) {
    int64_t last = batch->tokens / microbatch, first = batch->ramp_tokens / microbatch;
    last = last > 1 ? last : 1;
    first = first > 1 ? first : 1;
    if (batch->ramp_tokens == 0 || batch->ramp_steps == 0 || first >= last) return (Ramp){last, 0, 0};
    return (Ramp){first, last - first, batch->ramp_steps};
}

int64_t schedule_batch_tokens(const BatchConfig *batch, int64_t microbatch, int64_t step) {
    assert(step >= 1); /* so a ramp of 0 steps returns below, before the division */
    Ramp ramp = ramp_of(batch, microbatch);
    if (step > ramp.steps) return (ramp.first + ramp.growth) * microbatch;
    return (ramp.first + (int64_t)((__int128)ramp.growth * (step - 1) / ramp.steps)) * microbatch;
}

/* Returns the sum over i in [0, n) of floor((a i + b) / m), with a, b >= 0 and m > 0. It counts
 * lattice points under a line: it removes whole slopes, then swaps rows and columns as in Euclid's
 * algorithm, so the time is logarithmic. */
static __int128 sum_of_floors(__int128 n, __int128 m, __int128 a, __int128 b) {
    __int128 sum = 0;
    while (n > 0) {
        sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
        a %= m;
        b %= m;
        __int128 top = a * n + b;
        n = top / m;
        b = top % m;
        __int128 slope = m;
        m = a;
        a = slope;
    }
    return sum;
}

int64_t schedule_samples_before(const BatchConfig *batch, int64_t length, int64_t step) {
    Ramp ramp = ramp_of(batch, batch->sequences * length);
    int64_t before = step - 1, ramped = before < ramp.steps ? before : ramp.steps;
    __int128 microbatches = (__int128)before * ramp.first + (__int128)(before - ramped) * ramp.growth;
    if (ramped > 0) microbatches += sum_of_floors(ramped, ramp.steps, ramp.growth, 0);
    return (int64_t)(microbatches * batch->sequences);
}

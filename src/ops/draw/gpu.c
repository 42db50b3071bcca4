/* draw on a GPU (rule.c has the method): one block per row. Each wave sums a section of the row, and
 * the block adds the sums of its waves in order. To find the token, the block divides the section
 * that has it among its waves again, until the section is one token. Each of the likeliest tokens
 * is found by two passes over the row. No scratch. With device_set_exact tokens are drawn from logits in
 * bf16, which the loss in training reads, and a kernel of the loss computes the log-probabilities.
 *
 * penalize: 4 columns or 1 per thread. */
#include "backend/gpu/vector.h"

enum { THREADS = 1024 };

/* A row of the operation's input `choice`, and of its output. */
typedef struct DrawWish { float temperature, top_k, top_p, min_p, uniform, given, penalized, top; } DrawWish;
typedef struct DrawResult { float token, log_probability, likeliest, likeliest_log_probability; } DrawResult;

typedef struct DrawArguments {
    const float GLOBAL *logits, *penalized;
    const DrawWish GLOBAL *choice;
    const int32_t GLOBAL *limit;
    float GLOBAL *y;
    int64_t columns, values, most_top; /* values: columns of y */
    int32_t rounded;                   /* a boolean: read the logits in bf16 */
} DrawArguments;

/* A row of penalize's input `choice`. */
typedef struct PenaltyWish { float used, counted, repetition, presence, frequency; } PenaltyWish;

typedef struct PenalizeArguments {
    const float GLOBAL *logits;
    const int32_t GLOBAL *tokens, *slots;
    const PenaltyWish GLOBAL *choice;
    float GLOBAL *y, *state;
    Tiling tiling;
} PenalizeArguments;

#ifdef GPU_DEVICE

enum { WAVES = THREADS / WAVE };
#define INFINITY __builtin_inff()

/* A row of logits. */
typedef struct DrawLogits {
    const float GLOBAL *x;
    int32_t rounded;
} DrawLogits;

INLINE float logit_at(DrawLogits row, int32_t j) { return row.rounded ? to_float(to_bf16(row.x[j])) : row.x[j]; }

/* The tokens of a row and their weights: e^((x - most) scale), but 0 if x < least or if the weight
 * is less than least_weight. NaN stays NaN. */
typedef struct GpuDrawTokens {
    DrawLogits x;
    int32_t count;
    float most, scale, least, least_weight;
} GpuDrawTokens;

/* The sum of a measure over the logits from a threshold on, the smallest of these logits, and the
 * largest one below the threshold. */
typedef struct GpuDrawSplit { float sum, above, below; } GpuDrawSplit;

/* The results of the waves, which the block joins. */
typedef struct DrawShared { float sum[WAVES], above[WAVES], below[WAVES]; } DrawShared;

/* Tokens first .. end - 1. */
typedef struct DrawSection { int32_t first, end; } DrawSection;

/* Returns part `index` of WAVES parts; it may be empty, with first > end. */
INLINE DrawSection section_part(DrawSection whole, int index) {
    int32_t count = (whole.end - whole.first + WAVES - 1) / WAVES, first = whole.first + index * count, end = first + count;
    return (DrawSection){first, end < whole.end ? end : whole.end};
}

/* A loop over the lane's logits x[j] of a section, with several loads in flight. */
#define FOR_EACH_LOGIT(j, section) \
    _Pragma("clang loop unroll_count(4)") for (int32_t j = (section).first + lane_id(); j < (section).end; j += WAVE)

INLINE float weight_of(const GpuDrawTokens *t, float x) {
    float weight = fast_exp((x - t->most) * t->scale);
    return x < t->least || weight < t->least_weight ? 0 : weight;
}

/* Tokens after a place in the order by logit, largest first, and by token. */
typedef struct DrawAfter {
    float logit;
    int32_t token;
} DrawAfter;
#define AFTER_NONE ((DrawAfter){INFINITY, -1})

INLINE bool is_after(DrawAfter place, float x, int32_t token) { return x < place.logit || (x == place.logit && token > place.token); }

/* Returns the largest logit after a place. */
INLINE float find_most(DrawLogits row, int32_t count, DrawAfter after, LOCAL DrawShared *shared) {
    DrawSection own = section_part((DrawSection){0, count}, wave_id());
    float most = -INFINITY;
    FOR_EACH_LOGIT(j, own) {
        float x = logit_at(row, j);
        most = __builtin_fmaxf(most, is_after(after, x, j) ? x : -INFINITY);
    }
    most = wave_max(most);
    barrier();
    if (lane_id() == 0) shared->above[wave_id()] = most;
    barrier();
    for (int i = 0; i < WAVES; i++) most = __builtin_fmaxf(most, shared->above[i]);
    return most;
}

/* Sets shared->sum[i] to the sum of weights of part i. */
INLINE void sum_parts(const GpuDrawTokens *t, DrawSection whole, LOCAL DrawShared *shared) {
    DrawSection own = section_part(whole, wave_id());
    float sum = 0;
    FOR_EACH_LOGIT(j, own) sum += weight_of(t, logit_at(t->x, j));
    sum = wave_sum(sum);
    barrier();
    if (lane_id() == 0) shared->sum[wave_id()] = sum;
    barrier();
}

INLINE float sum_weights(const GpuDrawTokens *t, LOCAL DrawShared *shared) {
    float sum = 0;
    sum_parts(t, (DrawSection){0, t->count}, shared);
    for (int i = 0; i < WAVES; i++) sum += shared->sum[i];
    return sum;
}

/* The measure of a logit is its weight, or 1 if `counts`. */
INLINE GpuDrawSplit split_tokens(const GpuDrawTokens *t, float at, bool counts, LOCAL DrawShared *shared) {
    DrawSection own = section_part((DrawSection){0, t->count}, wave_id());
    float sum = 0, above = INFINITY, below = -INFINITY;
    FOR_EACH_LOGIT(j, own) {
        float x = logit_at(t->x, j), measure = counts ? 1 : weight_of(t, x);
        sum += x >= at ? measure : 0;
        above = __builtin_fminf(above, x >= at ? x : INFINITY);
        below = __builtin_fmaxf(below, x < at ? x : -INFINITY);
    }
    sum = wave_sum(sum);
    above = -wave_max(-above);
    below = wave_max(below);
    barrier();
    if (lane_id() == 0) {
        shared->sum[wave_id()] = sum;
        shared->above[wave_id()] = above;
        shared->below[wave_id()] = below;
    }
    barrier();
    GpuDrawSplit split = {0, above, below};
    for (int i = 0; i < WAVES; i++) {
        split.sum += shared->sum[i];
        split.above = __builtin_fminf(split.above, shared->above[i]);
        split.below = __builtin_fmaxf(split.below, shared->below[i]);
    }
    return split;
}

/* Integers that are ordered like the numbers; -0 is just below 0. */
INLINE int32_t flip(int32_t bits) { return bits < 0 ? bits ^ INT32_MAX : bits; }
INLINE int32_t key_of(float x) { return flip(__builtin_bit_cast(int32_t, x)); }
INLINE float value_of(int32_t key) { return __builtin_bit_cast(float, flip(key)); }

/* Returns the largest logit, from t->least on, for which the sum of its own measure and those of
 * larger logits reaches `target`; the sum from `least` on does. */
INLINE float find_least(const GpuDrawTokens *t, bool counts, float target, LOCAL DrawShared *shared) {
    int32_t low = key_of(t->least), high = key_of(t->most);
    while (low < high) {
        int32_t middle = (low | high) - ((low ^ high) >> 1); /* the mean, rounded up */
        GpuDrawSplit split = split_tokens(t, value_of(middle), counts, shared);
        int32_t above = key_of(split.above), below = key_of(split.below);
        if (split.sum >= target) low = above > middle ? above : middle;
        else high = below < middle ? below : middle - 1;
        if (split.sum == target) break;
    }
    return value_of(low);
}

/* Returns the first token at which the running sum of weights exceeds uniform times their sum. If
 * rounding hides it, that is the last token with a weight; without weights it is token 0. */
INLINE int32_t draw_token(const GpuDrawTokens *t, float uniform, LOCAL DrawShared *shared) {
    DrawSection section = {0, t->count};
    float target = uniform * sum_weights(t, shared), before = 0;
    while (section.end - section.first > 1) {
        sum_parts(t, section, shared);
        int part = 0;
        float sum = before;
        for (int i = 0; i < WAVES && sum <= target; i++) {
            if (!(shared->sum[i] > 0)) continue;
            part = i;
            before = sum;
            sum += shared->sum[i];
        }
        section = section_part(section, part);
    }
    return section.first;
}

/* Returns the first token after a place with the logit; -1 if there is none. */
INLINE int32_t find_token(DrawLogits row, int32_t count, DrawAfter after, float logit, LOCAL DrawShared *shared) {
    DrawSection own = section_part((DrawSection){0, count}, wave_id());
    float first = (float)count; /* integers of this size are exact */
    FOR_EACH_LOGIT(j, own) {
        float x = logit_at(row, j);
        first = __builtin_fminf(first, x == logit && is_after(after, x, j) ? (float)j : first);
    }
    first = -wave_max(-first);
    barrier();
    if (lane_id() == 0) shared->above[wave_id()] = first;
    barrier();
    for (int i = 0; i < WAVES; i++) first = __builtin_fminf(first, shared->above[i]);
    return first < (float)count ? (int32_t)first : -1;
}

INLINE int32_t draw_row(DrawLogits row, int32_t count, float most, const DrawWish *wish, LOCAL DrawShared *shared) {
    if (wish->given > 0) return (int32_t)wish->given - 1;
    bool likeliest = wish->temperature == 0;
    GpuDrawTokens tokens = {.x = row, .count = count, .most = most, .scale = 1, .least = -INFINITY};
    if (likeliest) tokens.least = most;
    else tokens.scale = __builtin_fminf(1 / wish->temperature, __FLT_MAX__); /* 0 times infinity is NaN */
    if (!likeliest && wish->top_k > 0 && wish->top_k < (float)count) tokens.least = find_least(&tokens, true, wish->top_k, shared);
    if (!likeliest && wish->top_p < 1) tokens.least = find_least(&tokens, false, wish->top_p * sum_weights(&tokens, shared), shared);
    if (!likeliest) tokens.least_weight = wish->min_p;
    return draw_token(&tokens, likeliest ? 0 : wish->uniform, shared);
}

/* Lists the `top` likeliest tokens of a row. `log_sum` is relative to the largest of all logits, `most`. */
INLINE void list_top(const DrawArguments *a, const GpuDrawTokens *t, int32_t top, float log_sum, LOCAL DrawShared *shared) {
    float GLOBAL *pairs = a->y + block_x() * a->values + sizeof(DrawResult) / sizeof(float);
    DrawAfter place = AFTER_NONE;
    int32_t i = 0;
    for (bool found = true; i < top && found; i += found) {
        float logit = find_most(t->x, t->count, place, shared);
        int32_t token = find_token(t->x, t->count, place, logit, shared);
        found = token >= 0;
        place = (DrawAfter){logit, token};
        if (!found || thread_id() > 0) continue;
        pairs[2 * i] = (float)token;
        pairs[2 * i + 1] = logit - t->most - log_sum;
    }
    for (; i < a->most_top && thread_id() == 0; i++) pairs[2 * i] = -1, pairs[2 * i + 1] = 0;
}

KERNEL(draw, DrawArguments) {
    WAVE_BOUNDS(THREADS, 4);
    BLOCK_BOUNDS(THREADS, 1);
    static SHARED DrawShared shared;
    DrawWish wish = a.choice[block_x()];
    DrawLogits row = {a.logits + block_x() * a.columns, a.rounded}, from = row;
    if (wish.penalized > 0) from = (DrawLogits){a.penalized + block_x() * a.columns, false};
    int32_t limit = *a.limit < a.columns ? *a.limit : (int32_t)a.columns;
    GpuDrawTokens all = {.x = row, .count = (int32_t)a.columns, .scale = 1, .least = -INFINITY};
    all.most = find_most(row, all.count, AFTER_NONE, &shared);
    float log_sum = fast_log2(sum_weights(&all, &shared)) * LN_2;
    limit = limit > 1 ? limit : 1;
    float most = limit < all.count ? find_most(row, limit, AFTER_NONE, &shared) : all.most;
    float most_from = wish.penalized > 0 ? find_most(from, limit, AFTER_NONE, &shared) : most;
    int32_t token = draw_row(from, limit, most_from, &wish, &shared), likeliest = find_token(row, limit, AFTER_NONE, most, &shared);
    if (likeliest < 0) likeliest = 0;
    DrawResult result = {
        (float)token, logit_at(row, token) - all.most - log_sum, (float)likeliest, logit_at(row, likeliest) - all.most - log_sum};
    if (thread_id() == 0) *(DrawResult GLOBAL *)(a.y + block_x() * a.values) = result;
    all.count = limit;
    list_top(&a, &all, (int32_t)wish.top, log_sum, &shared);
}

INLINE float penalize_logit(float x, float count, PenaltyWish wish) {
    float drawn = (float)(int32_t)count; /* without the prompt's 0.5 */
    if (count > 0) x = x > 0 ? x / wish.repetition : x * wish.repetition;
    return x - wish.frequency * drawn - (drawn > 0 ? wish.presence : 0);
}

INLINE void penalize_unit(const PenalizeArguments *a, int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    PenaltyWish wish = a->choice[place.row];
    if (!(wish.used > 0)) return;
    int64_t columns = a->tiling.columns, at = place.row * columns + place.column;
    float GLOBAL *bias = a->state + 2 * a->slots[place.row] * columns + place.column, *counts = bias + columns;
    f32x4 x = load4_wide(a->logits + at, unit) + load4_wide(bias, unit), count = load4_wide(counts, unit), y = 0;
    int32_t token = a->tokens[place.row] - place.column;
    UNROLL for (int i = 0; i < unit; i++) {
        count[i] += i == token ? wish.counted : 0;
        y[i] = penalize_logit(x[i], count[i], wish);
    }
    if (token >= 0 && token < unit) store4_wide(counts, count, unit);
    store4_wide(a->y + at, y, unit);
}

UNIT_KERNELS(penalize, PenalizeArguments, penalize_unit, 4)

#else

#include <stddef.h>

#include "ops/draw/draw.h"
#include "ops/loss/loss.h"

static_assert(offsetof(DrawWish, temperature) == DRAW_TEMPERATURE * sizeof(float) &&
                  offsetof(DrawWish, top_k) == DRAW_TOP_K * sizeof(float) && offsetof(DrawWish, top_p) == DRAW_TOP_P * sizeof(float) &&
                  offsetof(DrawWish, min_p) == DRAW_MIN_P * sizeof(float) && offsetof(DrawWish, uniform) == DRAW_UNIFORM * sizeof(float) &&
                  offsetof(DrawWish, given) == DRAW_GIVEN * sizeof(float) &&
                  offsetof(DrawWish, penalized) == DRAW_PENALIZED * sizeof(float) && offsetof(DrawWish, top) == DRAW_TOP * sizeof(float) &&
                  sizeof(DrawWish) == DRAW_CHOICE_VALUES * sizeof(float),
    "what a block reads");
static_assert(offsetof(DrawResult, token) == DRAW_TOKEN * sizeof(float) &&
                  offsetof(DrawResult, log_probability) == DRAW_LOG_PROBABILITY * sizeof(float) &&
                  offsetof(DrawResult, likeliest) == DRAW_LIKELIEST * sizeof(float) &&
                  offsetof(DrawResult, likeliest_log_probability) == DRAW_LIKELIEST_LOG_PROBABILITY * sizeof(float) &&
                  sizeof(DrawResult) == DRAW_VALUES * sizeof(float),
    "what it writes");
static_assert(
    offsetof(PenaltyWish, used) == PENALTY_USED * sizeof(float) && offsetof(PenaltyWish, counted) == PENALTY_COUNTED * sizeof(float) &&
        offsetof(PenaltyWish, repetition) == PENALTY_REPETITION * sizeof(float) &&
        offsetof(PenaltyWish, presence) == PENALTY_PRESENCE * sizeof(float) &&
        offsetof(PenaltyWish, frequency) == PENALTY_FREQUENCY * sizeof(float) &&
        sizeof(PenaltyWish) == PENALTY_CHOICE_VALUES * sizeof(float) && PENALTY_BIAS == 0 && PENALTY_COUNT == 1 && PENALTY_STATE_ROWS == 2,
    "what penalize reads");

LAUNCHER(draw, DrawArguments)

GPU_OP(draw) {
    DrawArguments arguments = {.logits = call->in[DRAW_LOGITS],
        .penalized = call->in[DRAW_FROM],
        .choice = call->in[DRAW_CHOICE],
        .limit = call->in[DRAW_LIMIT],
        .y = call->out[DRAW_Y],
        .columns = call->in_shape[DRAW_LOGITS][1],
        .values = call->out_shape[DRAW_Y][1],
        .most_top = (call->out_shape[DRAW_Y][1] - DRAW_VALUES) / 2,
        .rounded = device_info(call->device)->exact};
    int64_t rows = call->in_shape[DRAW_LOGITS][0];
    launch_draw(call->device, (LaunchShape){.x = rows, .threads = THREADS}, &arguments);
    if (arguments.rounded)
        loss_of_draws(call->device, &(LossOfDraws){.logits = arguments.logits,
                                        .drawn = arguments.y,
                                        .rows = rows,
                                        .vocabulary = arguments.columns,
                                        .values = arguments.values});
}

TILED_LAUNCHER(penalize, PenalizeArguments, 4)

GPU_OP(penalize) {
    PenalizeArguments arguments = {.logits = call->in[PENALIZE_LOGITS],
        .tokens = call->in[PENALIZE_TOKENS],
        .slots = call->in[PENALIZE_SLOTS],
        .choice = call->in[PENALIZE_CHOICE],
        .y = call->out[PENALIZE_Y],
        .state = call->out[PENALIZE_STATE],
        .tiling = tile_matrix(call->in_shape[PENALIZE_LOGITS][0], call->in_shape[PENALIZE_LOGITS][1], 4)};
    launch_penalize(call->device, &arguments);
}

#endif

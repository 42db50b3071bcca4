/* draw on a GPU (rule.c has the method). In the first kernel, one wave per section of a row finds the
 * section's largest logit and sums its weights: a single processor would take 13 microseconds for a
 * pass over a vocabulary. In the second kernel, one block per row joins the sections in order. To find
 * the token, the block divides the section that contains it among its waves, and so on, until the
 * section is one token. Each threshold, and each of the likeliest tokens, takes further passes over the
 * row. Scratch: the results of the sections. With device_set_exact, tokens are drawn from logits in
 * bf16, which the loss in training reads, and a kernel of the loss computes the log-probabilities.
 *
 * draw and penalize: 4 columns or 1 per load. */
#include "backend/gpu/vector.h"

enum { THREADS = 1024, PART_THREADS = 128 };

/* A row of the operation's input `choice`, and of its output. */
typedef struct DrawChoiceRow { float temperature, top_k, top_p, min_p, uniform, given, penalized, top; } DrawChoiceRow;
typedef struct DrawResult { float token, log_probability, likeliest, likeliest_log_probability; } DrawResult;

typedef struct DrawArguments {
    const float GLOBAL *logits, *penalized;
    const DrawChoiceRow GLOBAL *choice;
    const int32_t GLOBAL *limit;
    float GLOBAL *y;
    int64_t columns, values, most_top; /* values: columns of y */
    int32_t rounded;                   /* a boolean: read the logits in bf16 */
    struct DrawPart GLOBAL *parts;     /* [rows, THREADS / WAVE] */
} DrawArguments;

/* The largest logit of a section, the first token that has it (-1: none), and the sum of
 * e^((x - largest) scale). */
typedef struct DrawMost {
    float logit;
    int32_t token;
    float sum;
} DrawMost;

/* all: over all tokens, at scale 1. drawn: over the tokens to draw from, which are below the limit, at the
 * row's temperature. */
typedef struct DrawPart { DrawMost all, drawn; } DrawPart;

/* A row of penalize's input `choice`. */
typedef struct PenaltyChoiceRow { float used, counted, repetition, presence, frequency; } PenaltyChoiceRow;

typedef struct PenalizeArguments {
    const float GLOBAL *logits;
    const int32_t GLOBAL *tokens, *slots;
    const PenaltyChoiceRow GLOBAL *choice;
    float GLOBAL *y, *state;
    Tiling tiling;
} PenalizeArguments;

#ifdef GPU_DEVICE

enum { WAVES = THREADS / WAVE };
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define NO_TOKEN 0x1p24f /* more than any: MOST_COLUMNS */

/* A row of logits. Passes over the whole row load `unit` logits at once, a constant. */
typedef struct DrawLogits {
    const float GLOBAL *x;
    int32_t rounded;
    int unit;
} DrawLogits;

INLINE float round_logit(DrawLogits row, float x) { return row.rounded ? to_float(to_bf16(x)) : x; }
INLINE float logit_at(DrawLogits row, int32_t j) { return round_logit(row, row.x[j]); }

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

/* Returns part `index` of WAVES parts; it may be empty, with first > end. Parts begin at multiples of
 * `unit` after the whole's beginning. */
INLINE DrawSection section_part(DrawSection whole, int index, int unit) {
    int32_t count = (whole.end - whole.first + WAVES * unit - 1) / (WAVES * unit) * unit, first = whole.first + index * count,
            end = first + count;
    return (DrawSection){first, end < whole.end ? end : whole.end};
}

/* A loop over the lane's units of the wave's section of a row, in order, with several loads in
 * flight; the lane's logits of a unit are load_logits(row, at), of tokens at + i < section.end. */
#define FOR_EACH_UNIT(at, row, section) \
    _Pragma("clang loop unroll_count(4)") for (int32_t at = (section).first + lane_id() * (row).unit; at < (section).end; at += WAVE * (row).unit)

INLINE f32x4 load_logits(DrawLogits row, int32_t at) {
    f32x4 x = load4_wide(row.x + at, row.unit);
    UNROLL for (int i = 0; i < row.unit; i++) x[i] = round_logit(row, x[i]);
    return x;
}

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

/* Returns the first token of the largest logit of the wave's section, after a place; token -1 if there
 * is none. */
INLINE DrawAfter wave_most(DrawLogits row, DrawSection own, DrawAfter after) {
    float most = -INFINITY, first = NO_TOKEN;
    FOR_EACH_UNIT(at, row, own) {
        f32x4 x = load_logits(row, at);
        UNROLL for (int i = 0; i < row.unit; i++) {
            bool larger = at + i < own.end && is_after(after, x[i], at + i) && (x[i] > most || first == NO_TOKEN);
            most = larger ? x[i] : most;
            first = larger ? (float)(at + i) : first;
        }
    }
    float of_wave = wave_max(most);
    first = -wave_max(most == of_wave ? -first : -NO_TOKEN);
    return (DrawAfter){of_wave, first == NO_TOKEN ? -1 : (int32_t)first};
}

/* Returns the larger of two results of sections in order, the first of equals. */
INLINE DrawAfter larger_most(DrawAfter a, DrawAfter b) { return b.token >= 0 && (a.token < 0 || b.logit > a.logit) ? b : a; }

/* wave_most of the whole row, by the block. */
INLINE DrawAfter find_most(DrawLogits row, int32_t count, DrawAfter after, LOCAL DrawShared *shared) {
    DrawAfter found = {-INFINITY, -1}, own = wave_most(row, section_part((DrawSection){0, count}, wave_id(), row.unit), after);
    barrier();
    if (lane_id() == 0) shared->above[wave_id()] = own.logit, shared->below[wave_id()] = (float)own.token;
    barrier();
    for (int i = 0; i < WAVES; i++) found = larger_most(found, (DrawAfter){shared->above[i], (int32_t)shared->below[i]});
    return found;
}

/* Returns the sum of weights of the wave's section. */
INLINE float wave_weights(const GpuDrawTokens *t, DrawSection own) {
    float sum = 0;
    FOR_EACH_UNIT(at, t->x, own) {
        f32x4 x = load_logits(t->x, at);
        UNROLL for (int i = 0; i < t->x.unit; i++) sum += at + i < own.end ? weight_of(t, x[i]) : 0;
    }
    return wave_sum(sum);
}

/* Sets shared->sum[i] to the sum of weights of part i. */
INLINE void sum_parts(const GpuDrawTokens *t, DrawSection whole, LOCAL DrawShared *shared) {
    float sum = wave_weights(t, section_part(whole, wave_id(), t->x.unit));
    barrier();
    if (lane_id() == 0) shared->sum[wave_id()] = sum;
    barrier();
}

/* Returns the sum of shared->sum. */
INLINE float add_parts(LOCAL const DrawShared *shared) {
    float sum = 0;
    for (int i = 0; i < WAVES; i++) sum += shared->sum[i];
    return sum;
}

INLINE float sum_weights(const GpuDrawTokens *t, DrawSection whole, LOCAL DrawShared *shared) {
    sum_parts(t, whole, shared);
    return add_parts(shared);
}

/* The measure of a logit is its weight, or 1 if `counts`. */
INLINE GpuDrawSplit split_tokens(const GpuDrawTokens *t, float at, bool counts, LOCAL DrawShared *shared) {
    DrawSection own = section_part((DrawSection){0, t->count}, wave_id(), t->x.unit);
    float sum = 0, above = INFINITY, below = -INFINITY;
    FOR_EACH_UNIT(j, t->x, own) {
        f32x4 unit = load_logits(t->x, j);
        UNROLL for (int i = 0; i < t->x.unit; i++) {
            float x = j + i < own.end ? unit[i] : NAN, measure = counts ? 1 : weight_of(t, x);
            sum += x >= at ? measure : 0;
            above = __builtin_fminf(above, x >= at ? x : INFINITY);
            below = __builtin_fmaxf(below, x < at ? x : -INFINITY);
        }
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

/* Returns the first token at which the running sum of weights exceeds uniform times their sum.
 * shared->sum has the sums of the row's parts. If rounding leaves no such token, returns the last token
 * with a weight; if all weights are 0, token 0. */
INLINE int32_t draw_token(const GpuDrawTokens *t, float uniform, LOCAL DrawShared *shared) {
    DrawSection section = {0, t->count};
    GpuDrawTokens single = *t;
    float target = uniform * add_parts(shared), before = 0;
    single.x.unit = 1;
    for (bool whole = true; section.end - section.first > 1; whole = false) {
        if (!whole) sum_parts(&single, section, shared);
        int part = 0;
        float sum = before;
        for (int i = 0; i < WAVES && sum <= target; i++) {
            if (!(shared->sum[i] > 0)) continue;
            part = i;
            before = sum;
            sum += shared->sum[i];
        }
        section = section_part(section, part, whole ? t->x.unit : 1);
    }
    return section.first;
}

INLINE float draw_scale(const DrawChoiceRow *choice) {
    return __builtin_fminf(1 / choice->temperature, __FLT_MAX__); /* 0 times infinity is NaN */
}

/* Returns the part's sum relative to `most`, the largest logit of all parts. */
INLINE float sum_of_part(DrawMost part, float most, float scale) { return part.sum * fast_exp((part.logit - most) * scale); }

/* Returns the token of a row. `most`: its largest logit and the first token that has it. */
INLINE int32_t draw_row(
    DrawLogits row, int32_t count, DrawAfter most, const DrawChoiceRow *choice, const DrawPart GLOBAL *parts, LOCAL DrawShared *shared) {
    if (choice->given > 0) return (int32_t)choice->given - 1;
    if (choice->temperature == 0) return most.token < 0 ? 0 : most.token;
    const DrawSection whole = {0, count};
    GpuDrawTokens tokens = {.x = row, .count = count, .most = most.logit, .scale = draw_scale(choice), .least = -INFINITY};
    bool cut_k = choice->top_k > 0 && choice->top_k < (float)count, cut_p = choice->top_p < 1;
    if (cut_k) tokens.least = find_least(&tokens, true, choice->top_k, shared);
    if (cut_p) tokens.least = find_least(&tokens, false, choice->top_p * sum_weights(&tokens, whole, shared), shared);
    tokens.least_weight = choice->min_p;
    if (cut_k || cut_p || choice->min_p > 0) {
        sum_parts(&tokens, whole, shared);
    } else {
        barrier();
        if (thread_id() < WAVES) shared->sum[thread_id()] = sum_of_part(parts[thread_id()].drawn, most.logit, tokens.scale);
        barrier();
    }
    return draw_token(&tokens, choice->uniform, shared);
}

/* Lists the `top` likeliest tokens of a row. `log_sum` is relative to the largest of all logits, `most`. */
INLINE void list_top(const DrawArguments *a, const GpuDrawTokens *t, int32_t top, float log_sum, LOCAL DrawShared *shared) {
    float GLOBAL *pairs = a->y + block_x() * a->values + sizeof(DrawResult) / sizeof(float);
    DrawAfter place = AFTER_NONE;
    int32_t i = 0;
    for (bool found = true; i < top && found; i += found) {
        place = find_most(t->x, t->count, place, shared);
        found = place.token >= 0;
        if (!found || thread_id() > 0) continue;
        pairs[2 * i] = (float)place.token;
        pairs[2 * i + 1] = place.logit - t->most - log_sum;
    }
    for (; i < a->most_top && thread_id() == 0; i++) pairs[2 * i] = -1, pairs[2 * i + 1] = 0;
}

/* The logits of the block's row: all, and those to draw from. */
typedef struct DrawRows {
    DrawChoiceRow choice;
    DrawLogits all, drawn;
    int32_t count, limit;
} DrawRows;

INLINE DrawRows rows_of_block(const DrawArguments *a, const int unit) {
    int64_t at = block_x() * a->columns;
    int32_t limit = *a->limit < a->columns ? *a->limit : (int32_t)a->columns;
    DrawRows rows = {.choice = a->choice[block_x()],
        .all = {a->logits + at, a->rounded, unit},
        .count = (int32_t)a->columns,
        .limit = limit > 1 ? limit : 1};
    rows.drawn = rows.choice.penalized > 0 ? (DrawLogits){a->penalized + at, false, unit} : rows.all;
    return rows;
}

/* Returns the wave's result for its part of a row of `count` tokens; its sum is 0 if the scale is 0. */
INLINE DrawMost measure_part(DrawLogits row, int32_t count, int part, float scale) {
    DrawSection own = section_part((DrawSection){0, count}, part, row.unit);
    DrawAfter most = wave_most(row, own, AFTER_NONE);
    GpuDrawTokens tokens = {.x = row, .most = most.logit == -INFINITY ? 0 : most.logit, .scale = scale, .least = -INFINITY};
    return (DrawMost){most.logit, most.token, scale == 0 ? 0 : wave_weights(&tokens, own)};
}

/* Measures some parts of a row, one per wave. */
INLINE void measure_row(const DrawArguments *a, const int unit) {
    DrawRows rows = rows_of_block(a, unit);
    int index = of_wave(block_y() * (PART_THREADS / WAVE) + wave_id());
    float scale = rows.choice.temperature == 0 ? 0 : draw_scale(&rows.choice);
    DrawPart part = {.all = measure_part(rows.all, rows.count, index, 1)};
    bool same = rows.choice.penalized == 0 && scale == 1 && rows.limit == rows.count;
    part.drawn = same ? part.all : measure_part(rows.drawn, rows.limit, index, scale);
    if (lane_id() == 0) a->parts[block_x() * WAVES + index] = part;
}

/* Returns the first token of the largest logit of all parts. */
INLINE DrawAfter join_most(const DrawPart GLOBAL *parts, bool drawn) {
    DrawAfter found = {-INFINITY, -1};
    for (int i = 0; i < WAVES; i++) {
        DrawMost part = drawn ? parts[i].drawn : parts[i].all;
        found = larger_most(found, (DrawAfter){part.logit, part.token});
    }
    return found;
}

INLINE void draw(const DrawArguments *a, const int unit) {
    static SHARED DrawShared shared;
    const DrawPart GLOBAL *parts = a->parts + block_x() * WAVES;
    DrawRows rows = rows_of_block(a, unit);
    DrawAfter most = join_most(parts, false), most_drawn = join_most(parts, true), likeliest = most_drawn;
    float sum = 0;
    for (int i = 0; i < WAVES; i++) sum += sum_of_part(parts[i].all, most.logit, 1);
    float log_sum = fast_log2(sum) * LN_2;
    if (rows.choice.penalized > 0) likeliest = rows.limit < rows.count ? find_most(rows.all, rows.limit, AFTER_NONE, &shared) : most;
    if (likeliest.token < 0) likeliest.token = 0;
    int32_t token = draw_row(rows.drawn, rows.limit, most_drawn, &rows.choice, parts, &shared);
    DrawResult result = {(float)token, logit_at(rows.all, token) - most.logit - log_sum, (float)likeliest.token,
        logit_at(rows.all, likeliest.token) - most.logit - log_sum};
    if (thread_id() == 0) *(DrawResult GLOBAL *)(a->y + block_x() * a->values) = result;
    GpuDrawTokens tokens = {.x = rows.all, .count = rows.limit, .most = most.logit};
    list_top(a, &tokens, (int32_t)rows.choice.top, log_sum, &shared);
}

#define DRAW(unit) \
    KERNEL(draw_parts_##unit, DrawArguments) { measure_row(&a, unit); } \
    KERNEL(draw_##unit, DrawArguments) { \
        WAVE_BOUNDS(THREADS, 4); \
        BLOCK_BOUNDS(THREADS, 1); \
        draw(&a, unit); \
    }
DRAW(1)
DRAW(4)

INLINE float penalize_logit(float x, float count, PenaltyChoiceRow choice) {
    float drawn = (float)(int32_t)count; /* without the prompt's 0.5 */
    if (count > 0) x = x > 0 ? x / choice.repetition : x * choice.repetition;
    return x - choice.frequency * drawn - (drawn > 0 ? choice.presence : 0);
}

INLINE void penalize_unit(const PenalizeArguments *a, int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    PenaltyChoiceRow choice = a->choice[place.row];
    if (!(choice.used > 0)) return;
    int64_t columns = a->tiling.columns, at = place.row * columns + place.column;
    float GLOBAL *bias = a->state + 2 * a->slots[place.row] * columns + place.column, *counts = bias + columns;
    f32x4 x = load4_wide(a->logits + at, unit) + load4_wide(bias, unit), count = load4_wide(counts, unit), y = 0;
    int32_t token = a->tokens[place.row] - place.column;
    UNROLL for (int i = 0; i < unit; i++) {
        count[i] += i == token ? choice.counted : 0;
        y[i] = penalize_logit(x[i], count[i], choice);
    }
    if (token >= 0 && token < unit) store4_wide(counts, count, unit);
    store4_wide(a->y + at, y, unit);
}

UNIT_KERNELS(penalize, PenalizeArguments, penalize_unit, 4)

#else

#include <stddef.h>

#include "ops/draw/draw.h"
#include "ops/loss/loss.h"

static_assert(
    offsetof(DrawChoiceRow, temperature) == DRAW_TEMPERATURE * sizeof(float) &&
        offsetof(DrawChoiceRow, top_k) == DRAW_TOP_K * sizeof(float) && offsetof(DrawChoiceRow, top_p) == DRAW_TOP_P * sizeof(float) &&
        offsetof(DrawChoiceRow, min_p) == DRAW_MIN_P * sizeof(float) && offsetof(DrawChoiceRow, uniform) == DRAW_UNIFORM * sizeof(float) &&
        offsetof(DrawChoiceRow, given) == DRAW_GIVEN * sizeof(float) &&
        offsetof(DrawChoiceRow, penalized) == DRAW_PENALIZED * sizeof(float) && offsetof(DrawChoiceRow, top) == DRAW_TOP * sizeof(float) &&
        sizeof(DrawChoiceRow) == DRAW_CHOICE_VALUES * sizeof(float),
    "what a block reads");
static_assert(offsetof(DrawResult, token) == DRAW_TOKEN * sizeof(float) &&
                  offsetof(DrawResult, log_probability) == DRAW_LOG_PROBABILITY * sizeof(float) &&
                  offsetof(DrawResult, likeliest) == DRAW_LIKELIEST * sizeof(float) &&
                  offsetof(DrawResult, likeliest_log_probability) == DRAW_LIKELIEST_LOG_PROBABILITY * sizeof(float) &&
                  sizeof(DrawResult) == DRAW_VALUES * sizeof(float),
    "what it writes");
static_assert(offsetof(PenaltyChoiceRow, used) == PENALTY_USED * sizeof(float) &&
                  offsetof(PenaltyChoiceRow, counted) == PENALTY_COUNTED * sizeof(float) &&
                  offsetof(PenaltyChoiceRow, repetition) == PENALTY_REPETITION * sizeof(float) &&
                  offsetof(PenaltyChoiceRow, presence) == PENALTY_PRESENCE * sizeof(float) &&
                  offsetof(PenaltyChoiceRow, frequency) == PENALTY_FREQUENCY * sizeof(float) &&
                  sizeof(PenaltyChoiceRow) == PENALTY_CHOICE_VALUES * sizeof(float) && PENALTY_BIAS == 0 && PENALTY_COUNT == 1 &&
                  PENALTY_STATE_ROWS == 2,
    "what penalize reads");

LAUNCHERS(draw_parts, DrawArguments, draw_parts_1, draw_parts_4)
LAUNCHERS(draw, DrawArguments, draw_1, draw_4)

/* A row has one part per wave of a block; the smallest waves have 32 threads. */
static int64_t draw_workspace(const Graph *graph, const Node *node) {
    return graph_rows(graph, node->in[DRAW_LOGITS]) * (THREADS / 32) * (int64_t)sizeof(DrawPart);
}

GPU_OP(draw, draw_workspace) {
    DrawArguments arguments = {.logits = call->in[DRAW_LOGITS],
        .penalized = call->in[DRAW_FROM],
        .choice = call->in[DRAW_CHOICE],
        .limit = call->in[DRAW_LIMIT],
        .y = call->out[DRAW_Y],
        .columns = call->in_shape[DRAW_LOGITS][1],
        .values = call->out_shape[DRAW_Y][1],
        .most_top = (call->out_shape[DRAW_Y][1] - DRAW_VALUES) / 2,
        .rounded = device_info(call->device)->exact,
        .parts = call->workspace};
    int64_t rows = call->in_shape[DRAW_LOGITS][0], blocks = THREADS / PART_THREADS;
    bool fours = arguments.columns % 4 == 0;
    launch_draw_parts(call->device, fours, (LaunchShape){.x = rows, .y = blocks, .threads = PART_THREADS}, &arguments);
    launch_draw(call->device, fours, (LaunchShape){.x = rows, .threads = THREADS}, &arguments);
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

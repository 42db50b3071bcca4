/* draw and penalize on a CPU (rule.c has the method of draw): threads divide rows. Each pass over a row reads it in parts
 * and computes weights again, which is as fast as reading them. No scratch. */
#include <float.h>

#include "backend/cpu/kernel.h"
#include "ops/draw/draw.h"
#include "ops/exponentials.h"

enum { PART = EXPONENTIALS_PART };

/* The tokens of a row and their weights: e^((x - most) scale), but 0 if x < least or if the weight
 * is less than least_weight. NaN stays NaN. */
typedef struct DrawTokens {
    const W *x;
    int64_t count;
    W most, scale, least, least_weight;
} DrawTokens;

/* The sum of a measure over the logits from a threshold on, the smallest of these logits, and the
 * largest one below the threshold. */
typedef struct DrawSplit {
    double sum;
    W above, below;
} DrawSplit;

static W find_most(const W *x, int64_t count) {
    W most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < count; j++) most = x[j] > most ? x[j] : most;
    return most;
}

/* Sets weights [PART] and returns their sum. gcc 12 does not vectorize the loop if a statement of its
 * own stores the weight. */
static double weigh_part(const DrawTokens *tokens, int64_t first, W weights[PART]) {
    const DrawTokens t = *tokens;
    W sum = 0;
    exponentials_load(tokens->x, tokens->count, first, weights);
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < PART; j++) {
        W weight = wide_exp((weights[j] - t.most) * t.scale);
        sum += weights[j] = ((weights[j] < t.least) | (weight < t.least_weight)) ? 0 : weight;
    }
    return (double)sum;
}

static double sum_weights(const DrawTokens *tokens) {
    W weights[PART];
    double sum = 0;
    for (int64_t first = 0; first < tokens->count; first += PART) sum += weigh_part(tokens, first, weights);
    return sum;
}

/* Adds a part. The measure of a logit is its weight, or 1 if `counts`. */
static void split_part(const DrawTokens *tokens, const W part[PART], W at, bool counts, DrawSplit *split) {
    const W most = tokens->most, scale = tokens->scale;
    W sum = 0, above = split->above, below = split->below;
#pragma omp simd reduction(+ : sum) reduction(min : above) reduction(max : below)
    for (int64_t j = 0; j < PART; j++) {
        W measure = counts ? 1 : wide_exp((part[j] - most) * scale);
        W from = part[j] >= at ? part[j] : (W)INFINITY, until = part[j] < at ? part[j] : (W)-INFINITY;
        sum += part[j] >= at ? measure : 0;
        above = from < above ? from : above;
        below = until > below ? until : below;
    }
    *split = (DrawSplit){split->sum + (double)sum, above, below};
}

static DrawSplit split_tokens(const DrawTokens *tokens, W at, bool counts) {
    DrawSplit split = {0, INFINITY, -INFINITY};
    W part[PART];
    for (int64_t first = 0; first < tokens->count; first += PART) {
        exponentials_load(tokens->x, tokens->count, first, part);
        if (counts) split_part(tokens, part, at, true, &split);
        else split_part(tokens, part, at, false, &split);
    }
    return split;
}

/* Integers that are ordered like the numbers; -0 is just below 0. */
typedef __typeof__(__builtin_choose_expr(sizeof(W) == sizeof(int64_t), (int64_t)0, (int32_t)0)) DrawKey;
typedef union DrawBits {
    W value;
    DrawKey bits;
} DrawBits;
static DrawKey flip(DrawKey bits) { return bits < 0 ? bits ^ (DrawKey)(sizeof(W) == sizeof(int64_t) ? INT64_MAX : INT32_MAX) : bits; }
static DrawKey key_of(W value) { return flip((DrawBits){.value = value}.bits); }
static W value_of(DrawKey key) { return (DrawBits){.bits = flip(key)}.value; }

/* Returns the largest logit, from tokens->least on, for which the sum of its own measure and those
 * of larger logits reaches `target`; the sum from `least` on does. */
static W find_least(const DrawTokens *tokens, bool counts, double target) {
    DrawKey low = key_of(tokens->least), high = key_of(tokens->most);
    while (low < high) {
        DrawKey middle = (low | high) - ((low ^ high) >> 1); /* the mean, rounded up */
        DrawSplit split = split_tokens(tokens, value_of(middle), counts);
        DrawKey above = key_of(split.above), below = key_of(split.below);
        if (split.sum >= target) low = above > middle ? above : middle;
        else high = below < middle ? below : middle - 1;
        if (split.sum == target) break;
    }
    return value_of(low);
}

/* Returns the first token at which the running sum of weights exceeds uniform times their sum. If
 * rounding hides it, that is the last token with a weight; without weights it is token 0. */
static int64_t draw_token(const DrawTokens *tokens, double uniform) {
    W weights[PART];
    double target = uniform * sum_weights(tokens), before = 0, sum = 0;
    int64_t part = 0;
    for (int64_t first = 0; first < tokens->count && sum <= target; first += PART) {
        double more = weigh_part(tokens, first, weights);
        if (!(more > 0)) continue;
        part = first;
        before = sum;
        sum += more;
    }
    weigh_part(tokens, part, weights);
    int64_t token = part;
    for (int64_t j = 0; j < PART && before <= target; j++) {
        if (!(weights[j] > 0)) continue;
        token = part + j;
        before += (double)weights[j];
    }
    return token;
}

/* Returns the first token with the largest logit; 0 if there is none. */
static int64_t find_likeliest(const W *x, int64_t count, W most) {
    int64_t at = 0;
    while (at < count && x[at] != most) at++;
    return at < count ? at : 0;
}

/* Lists the `top` first tokens by logit, equal ones by token, with their logits: pairs of values,
 * filled up with the token -1. */
static void list_top(const W *x, int64_t count, int64_t top, int64_t most_top, W *pairs) {
    int64_t listed = 0;
    for (int64_t j = 0; j < count && top > 0; j++) {
        if (listed == top && !(x[j] > pairs[2 * top - 1])) continue;
        int64_t at = listed < top ? listed++ : top - 1;
        for (; at > 0 && x[j] > pairs[2 * at - 1]; at--) memcpy(pairs + 2 * at, pairs + 2 * at - 2, 2 * sizeof *pairs);
        pairs[2 * at] = (W)j;
        pairs[2 * at + 1] = x[j];
    }
    for (; listed < most_top; listed++) pairs[2 * listed] = -1, pairs[2 * listed + 1] = 0;
}

static int64_t draw_row(const W *x, int64_t count, const W *choice) {
    if (choice[DRAW_GIVEN] > 0) return (int64_t)choice[DRAW_GIVEN] - 1;
    W temperature = choice[DRAW_TEMPERATURE], most = find_most(x, count), largest = sizeof(W) == sizeof(double) ? DBL_MAX : FLT_MAX;
    DrawTokens tokens = {.x = x, .count = count, .most = most, .scale = 1 / temperature, .least = -INFINITY};
    if (temperature == 0) {
        tokens.least = most;
        tokens.scale = 1;
        return draw_token(&tokens, 0);
    }
    if (tokens.scale > largest) tokens.scale = largest; /* a subnormal temperature; 0 times infinity is NaN */
    if (choice[DRAW_TOP_K] > 0 && choice[DRAW_TOP_K] < (W)count) tokens.least = find_least(&tokens, true, (double)choice[DRAW_TOP_K]);
    if (choice[DRAW_TOP_P] < 1) tokens.least = find_least(&tokens, false, (double)choice[DRAW_TOP_P] * sum_weights(&tokens));
    tokens.least_weight = choice[DRAW_MIN_P];
    return draw_token(&tokens, (double)choice[DRAW_UNIFORM]);
}

CPU_OP(draw) {
    const W *logits = call->in[DRAW_LOGITS], *penalized = call->in[DRAW_FROM], *choices = call->in[DRAW_CHOICE];
    const int32_t *limit = call->in[DRAW_LIMIT];
    W *y = call->out[DRAW_Y];
    int64_t rows = call->in_shape[DRAW_LOGITS][0], columns = call->in_shape[DRAW_LOGITS][1];
    int64_t values = call->out_shape[DRAW_Y][1], most_top = (values - DRAW_VALUES) / 2;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const W *x = logits + r * columns, *choice = choices + r * DRAW_CHOICE_VALUES;
        const W *from = choice[DRAW_PENALIZED] > 0 ? penalized + r * columns : x;
        W most = find_most(x, columns), sum = exponentials_sum(x, columns, most, NULL);
        int64_t count = int_max(1, int_min(columns, *limit)), token = draw_row(from, count, choice);
        int64_t likeliest = find_likeliest(x, count, find_most(x, count));
        W *row = y + r * values, *pairs = row + DRAW_VALUES;
        row[DRAW_TOKEN] = (W)token;
        row[DRAW_LOG_PROBABILITY] = exponentials_log_share(x[token], most, sum);
        row[DRAW_LIKELIEST] = (W)likeliest;
        row[DRAW_LIKELIEST_LOG_PROBABILITY] = exponentials_log_share(x[likeliest], most, sum);
        list_top(x, count, int_min((int64_t)choice[DRAW_TOP], most_top), most_top, pairs);
        for (int64_t i = 0; i < most_top && pairs[2 * i] >= 0; i++) pairs[2 * i + 1] = exponentials_log_share(pairs[2 * i + 1], most, sum);
    }
}

static W penalize_logit(W x, W count, const W *choice) {
    W drawn = (W)(int32_t)count; /* without the prompt's 0.5 */
    if (count > 0) x = x > 0 ? x / choice[PENALTY_REPETITION] : x * choice[PENALTY_REPETITION];
    return x - choice[PENALTY_FREQUENCY] * drawn - (drawn > 0 ? choice[PENALTY_PRESENCE] : 0);
}

CPU_OP(penalize) {
    const W *logits = call->in[PENALIZE_LOGITS], *choices = call->in[PENALIZE_CHOICE];
    const int32_t *tokens = call->in[PENALIZE_TOKENS], *slots = call->in[PENALIZE_SLOTS];
    W *y = call->out[PENALIZE_Y], *state = call->out[PENALIZE_STATE];
    int64_t rows = call->in_shape[PENALIZE_LOGITS][0], columns = call->in_shape[PENALIZE_LOGITS][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const W *choice = choices + r * PENALTY_CHOICE_VALUES;
        if (!(choice[PENALTY_USED] > 0)) continue;
        const W *x = logits + r * columns, *bias = state + (slots[r] * PENALTY_STATE_ROWS + PENALTY_BIAS) * columns;
        W *counts = state + (slots[r] * PENALTY_STATE_ROWS + PENALTY_COUNT) * columns;
        counts[tokens[r]] += choice[PENALTY_COUNTED];
        for (int64_t j = 0; j < columns; j++) y[r * columns + j] = penalize_logit(x[j] + bias[j], counts[j], choice);
    }
}

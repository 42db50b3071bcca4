/* Elementwise functions on a CPU. Threads take whole rows, never parts of one: otherwise an
 * element could move between the vector and the scalar part of a loop, which give different
 * bits. Loops are marked as free of dependencies between elements, because the output may share
 * an input's memory. */
#include "backend/cpu/kernel.h"
#include "ops/activation/activation.h"

/* Computes a row of y from x, or of d_x from x and d_y (equal to x in the forward pass). */
typedef void Row(T *out, const T *x, const T *d_y, int64_t count, W parameter);

/* Applies `row` to all rows of a call whose x is input `x_input`. */
static void each_row(const OpCall *call, int x_input, Row *row) {
    const ActivationAttributes *attributes = call->attributes;
    const T *x = call->in[x_input], *d_y = call->in[ACTIVATION_GRAD_D_Y];
    T *out = call->out[ACTIVATION_Y];
    W parameter = (W)attributes->parameter;
    int64_t rows = call->in_shape[x_input][0], columns = call->in_shape[x_input][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) row(out + r * columns, x + r * columns, d_y + r * columns, columns, parameter);
}

/* Defines row NAME: out[i] = formula, of x = x[i]. */
#define ROW(name, formula) \
    static void name(T *out, const T *xs, const T *d_y, int64_t count, W parameter) { \
        (void)d_y, (void)parameter; \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++) { \
            W x = to_wide(xs[i]); \
            out[i] = formula; \
        } \
    }

/* -- The functions of formulas (backend/gpu/formulas.h) ------------------------------------------------------------ */

#define NUMBER(x) ((W)(x))

static inline W over_sigmoid(W x, W u) { return x / (1 + wide_exp(-u)); }
static inline W sigmoid(W u) { return over_sigmoid(1, u); }
static inline W over_sigmoid_slope(W x, W s, W slope) { return s + x * s * (1 - s) * slope; }
static inline W normal_cumulative(W x) { return (W)0.5 * (1 + wide_erf(x * (W)0.70710678118654752440)); }
static inline W normal_slope(W x) { return normal_cumulative(x) + x * ((W)0.39894228040143267794 * wide_exp((W)-0.5 * x * x)); }

/* -- Activation functions ------------------------------------------------------------------------------------------ */

/* Computes a row of y from the halves of x. */
typedef void GatedRow(T *restrict y, const T *restrict gates, const T *restrict ups, int64_t count, const ActivationTerms *terms);
/* Computes a row of both halves of d_x, which may share memory with the halves of x. */
typedef void GatedGradRow(T *d_gates, T *d_ups, const T *gates, const T *ups, const T *d_y, int64_t count, const ActivationTerms *terms);

#define ACTIVATION(name, hf, value, slope) \
    ROW(name, to_compute(value)) \
    ROW(name##_grad, to_compute(to_wide(d_y[i]) * (slope)))
#define GATED(name, hf, value, d_gate, d_up) \
    static void name(T *restrict y, const T *restrict gates, const T *restrict ups, int64_t count, const ActivationTerms *terms) { \
        const W alpha = (W)terms->alpha, limit = (W)terms->limit; \
        (void)alpha, (void)limit; \
        for (int64_t i = 0; i < count; i++) { \
            W gate = to_wide(gates[i]), up = to_wide(ups[i]); \
            y[i] = to_compute(value); \
        } \
    } \
    static void name##_grad( \
        T *d_gates, T *d_ups, const T *gates, const T *ups, const T *d_y, int64_t count, const ActivationTerms *terms) { \
        const W alpha = (W)terms->alpha, limit = (W)terms->limit; \
        (void)alpha, (void)limit; \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++) { \
            W gate = to_wide(gates[i]), up = to_wide(ups[i]), d = to_wide(d_y[i]); \
            d_gates[i] = to_compute(d_gate); \
            d_ups[i] = to_compute(d_up); \
        } \
    }
#include "config/activation_list.h"
#undef ACTIVATION
#undef GATED

static const struct Functions {
    Row *plain, *plain_grad;
    GatedRow *gated;
    GatedGradRow *gated_grad;
} functions[ACTIVATION_COUNT] = {
#define ACTIVATION(name, ...) [ACTIVATION_##name] = {.plain = name, .plain_grad = name##_grad},
#define GATED(name, ...) [ACTIVATION_##name] = {.gated = name, .gated_grad = name##_grad},
#include "config/activation_list.h"
};

static const struct Functions *functions_of(const OpCall *call) {
    return &functions[((const ActivationAttributes *)call->attributes)->function];
}
static const ActivationTerms *terms_of(const OpCall *call) { return &((const ActivationAttributes *)call->attributes)->terms; }

CPU_OP(activation) {
    each_row(call, ACTIVATION_X, functions_of(call)->plain);
    kernel_put_amax(call, ACTIVATION_Y, ACTIVATION_AMAX);
}
CPU_OP(activation_grad) {
    each_row(call, ACTIVATION_GRAD_X, functions_of(call)->plain_grad);
    kernel_put_amax(call, ACTIVATION_GRAD_D_X, ACTIVATION_GRAD_AMAX);
}

CPU_OP(gated_activation) {
    const T *x = call->in[ACTIVATION_X];
    T *y = call->out[ACTIVATION_Y];
    int64_t rows = call->out_shape[ACTIVATION_Y][0], width = call->out_shape[ACTIVATION_Y][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *gates = x + 2 * r * width;
        kernel_prefetch(gates + 2 * width, 2 * width);
        functions_of(call)->gated(y + r * width, gates, gates + width, width, terms_of(call));
    }
    kernel_put_amax(call, ACTIVATION_Y, ACTIVATION_AMAX);
}

CPU_OP(gated_activation_grad) {
    const T *d_y = call->in[ACTIVATION_GRAD_D_Y], *x = call->in[ACTIVATION_GRAD_X];
    T *d_x = call->out[ACTIVATION_GRAD_D_X];
    int64_t rows = call->in_shape[ACTIVATION_GRAD_D_Y][0], width = call->in_shape[ACTIVATION_GRAD_D_Y][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *gates = x + 2 * r * width, *d_out = d_y + r * width;
        T *d_gates = d_x + 2 * r * width;
        kernel_prefetch(gates + 2 * width, 2 * width);
        kernel_prefetch(d_out + width, width);
        functions_of(call)->gated_grad(d_gates, d_gates + width, gates, gates + width, d_out, width, terms_of(call));
    }
    kernel_put_amax(call, ACTIVATION_GRAD_D_X, ACTIVATION_GRAD_AMAX);
}

/* -- Others -------------------------------------------------------------------------------------------------------- */

static inline W at_least(W x, W least) { return x < least ? least : x; }

ROW(clamped, to_compute(at_least(x > parameter ? parameter : x, -parameter)))
ROW(clamped_grad, x > parameter || x < -parameter ? 0 : d_y[i])
ROW(scaled, to_compute(parameter *x))

CPU_OP(clamp) { each_row(call, ACTIVATION_X, clamped); }
CPU_OP(clamp_grad) { each_row(call, ACTIVATION_GRAD_X, clamped_grad); }
CPU_OP(scale) { each_row(call, ACTIVATION_X, scaled); }

CPU_OP(join_gelu) {
    const T *a = call->in[JOIN_GELU_A], *x = call->in[JOIN_GELU_X];
    T *whole = call->out[JOIN_GELU_WHOLE];
    int64_t rows = call->in_shape[JOIN_GELU_X][0], width = call->in_shape[JOIN_GELU_A][1], columns = call->in_shape[JOIN_GELU_X][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        T *to = whole + r * (width + columns);
        memcpy(to, a + r * width, width * sizeof(T));
        gelu_tanh(to + width, x + r * columns, x + r * columns, columns, 0);
    }
}

CPU_OP(join_gelu_grad) {
    const T *d_whole = call->in[JOIN_GELU_GRAD_D_WHOLE], *x = call->in[JOIN_GELU_GRAD_X];
    T *d_a = call->out[JOIN_GELU_GRAD_D_A], *d_x = call->out[JOIN_GELU_GRAD_D_X];
    int64_t rows = call->in_shape[JOIN_GELU_GRAD_X][0], columns = call->in_shape[JOIN_GELU_GRAD_X][1],
            width = call->in_shape[JOIN_GELU_GRAD_D_WHOLE][1] - columns;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *from = d_whole + r * (width + columns);
        if (d_a) memcpy(d_a + r * width, from, width * sizeof(T));
        if (d_x) gelu_tanh_grad(d_x + r * columns, x + r * columns, from + width, columns, 0);
    }
}

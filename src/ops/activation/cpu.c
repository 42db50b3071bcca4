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

/* Defines row NAME: out[i] = formula, with v = x[i]. */
#define ROW(name, formula)                                                                    \
    static void name(T *out, const T *x, const T *d_y, int64_t count, W parameter) {          \
        (void)d_y, (void)parameter;                                                           \
        _Pragma("omp simd") for (int64_t i = 0; i < count; i++) {                             \
            W v = to_wide(x[i]);                                                              \
            out[i] = formula;                                                                 \
        }                                                                                     \
    }

/* Return the normal distribution's Phi(v), and its density. */
static inline W cumulative(W v) { return (W)0.5 * (1 + wide_erf(v * (W)0.70710678118654752440)); }
static inline W density(W v) { return (W)0.39894228040143267794 * wide_exp((W)-0.5 * v * v); }

/* 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u)): the tanh form is v times a sigmoid of 2u = v (a + b v^2). */
static const W tanh_a = (W)1.59576912160573071176, tanh_b = (W)(1.59576912160573071176 * 0.044715);
static inline W tanh_sigmoid(W v) { return 1 / (1 + wide_exp(-v * (tanh_a + tanh_b * v * v))); }
static inline W tanh_slope(W v, W s) { return s + v * s * (1 - s) * (tanh_a + 3 * tanh_b * v * v); }

static inline W silu_slope(W v, W s) { return s + v * s * (1 - s); }

static inline W at_least(W v, W least) { return v < least ? least : v; }

ROW(gelu_exact, to_compute((W)0.5 * v * (1 + wide_erf(v * (W)0.70710678118654752440))))
ROW(gelu_exact_grad, to_compute(to_wide(d_y[i]) * (cumulative(v) + v * density(v))))
ROW(gelu_tanh, to_compute(v / (1 + wide_exp(-v * (tanh_a + tanh_b * v * v)))))
ROW(gelu_tanh_grad, to_compute(to_wide(d_y[i]) * tanh_slope(v, tanh_sigmoid(v))))
ROW(silu, to_compute(v / (1 + wide_exp(-v))))
ROW(silu_grad, to_compute(to_wide(d_y[i]) * silu_slope(v, 1 / (1 + wide_exp(-v)))))
ROW(clamped, to_compute(at_least(v > parameter ? parameter : v, -parameter)))
ROW(clamped_grad, v > parameter || v < -parameter ? 0 : d_y[i])
ROW(scaled, to_compute(parameter *v))

static bool is_tanh(const OpCall *call) { return ((const ActivationAttributes *)call->attributes)->kind == GELU_TANH; }

CPU_OP(gelu) {
    each_row(call, ACTIVATION_X, is_tanh(call) ? gelu_tanh : gelu_exact);
    kernel_put_amax(call, ACTIVATION_Y, ACTIVATION_AMAX);
}
CPU_OP(gelu_grad) {
    each_row(call, ACTIVATION_GRAD_X, is_tanh(call) ? gelu_tanh_grad : gelu_exact_grad);
    kernel_put_amax(call, ACTIVATION_GRAD_D_X, ACTIVATION_GRAD_AMAX);
}
CPU_OP(silu) { each_row(call, ACTIVATION_X, silu); }
CPU_OP(silu_grad) { each_row(call, ACTIVATION_GRAD_X, silu_grad); }
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

CPU_OP(swiglu) {
    const T *x = call->in[ACTIVATION_X];
    T *y = call->out[ACTIVATION_Y];
    int64_t rows = call->out_shape[ACTIVATION_Y][0], width = call->out_shape[ACTIVATION_Y][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *restrict gate = x + 2 * r * width, *restrict up = gate + width;
        T *restrict out = y + r * width;
        kernel_prefetch(gate + 2 * width, 2 * width);
        for (int64_t j = 0; j < width; j++) {
            W g = to_wide(gate[j]);
            out[j] = to_compute(g / (1 + wide_exp(-g)) * to_wide(up[j]));
        }
    }
    kernel_put_amax(call, ACTIVATION_Y, ACTIVATION_AMAX);
}

/* With s = sigmoid(gate): d_gate = d_y * up * s * (1 + gate * (1 - s)), d_up = d_y * gate * s. */
CPU_OP(swiglu_grad) {
    const T *d_y = call->in[ACTIVATION_GRAD_D_Y], *x = call->in[ACTIVATION_GRAD_X];
    T *d_x = call->out[ACTIVATION_GRAD_D_X];
    int64_t rows = call->in_shape[ACTIVATION_GRAD_D_Y][0], width = call->in_shape[ACTIVATION_GRAD_D_Y][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *gate = x + 2 * r * width, *up = gate + width, *d_out = d_y + r * width;
        T *d_gate = d_x + 2 * r * width, *d_up = d_gate + width;
        kernel_prefetch(gate + 2 * width, 2 * width);
        kernel_prefetch(d_out + width, width);
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            W g = to_wide(gate[j]), d = to_wide(d_out[j]), s = 1 / (1 + wide_exp(-g));
            d_gate[j] = to_compute(d * to_wide(up[j]) * s * (1 + g * (1 - s)));
            d_up[j] = to_compute(d * g * s);
        }
    }
    kernel_put_amax(call, ACTIVATION_GRAD_D_X, ACTIVATION_GRAD_AMAX);
}

/* Elementwise functions on a CPU. Threads share out whole rows, never parts of one: elsewhere an element could move
 * between the vector and the scalar form of a loop, whose bits differ. Loops are marked free of dependencies between
 * elements, since the output may lie in an input's memory. */
#include "backend/cpu/kernel.h"
#include "ops/activation/activation.h"

static const W inverse_sqrt_2 = (W)0.70710678118654752440, inverse_sqrt_2_pi = (W)0.39894228040143267794;

/* 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u)): the tanh form is x times a sigmoid of 2u = x (a + b x^2). */
static const W tanh_a = (W)1.59576912160573071176, tanh_b = (W)(1.59576912160573071176 * 0.044715);

static void gelu_tanh(T *y, const T *x, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        W v = to_wide(x[i]);
        y[i] = to_compute(v / (1 + wide_exp(-v * (tanh_a + tanh_b * v * v))));
    }
}

static void gelu_tanh_grad(T *d_x, const T *d_y, const T *x, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        W v = to_wide(x[i]), s = 1 / (1 + wide_exp(-v * (tanh_a + tanh_b * v * v)));
        d_x[i] = to_compute(to_wide(d_y[i]) * (s + v * s * (1 - s) * (tanh_a + 3 * tanh_b * v * v)));
    }
}

CPU_OP(gelu) {
    const GeluAttributes *attributes = call->attributes;
    const T *x = call->in[ACTIVATION_X];
    T *y = call->out[ACTIVATION_Y];
    int64_t rows = call->in_shape[ACTIVATION_X][0], columns = call->in_shape[ACTIVATION_X][1];
    if (attributes->kind == GELU_TANH) {
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; r++) gelu_tanh(y + r * columns, x + r * columns, columns);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
            W v = to_wide(x[i]);
            y[i] = to_compute((W)0.5 * v * (1 + wide_erf(v * inverse_sqrt_2)));
        }
}

CPU_OP(gelu_grad) {
    const GeluAttributes *attributes = call->attributes;
    const T *d_y = call->in[ACTIVATION_GRAD_D_Y], *x = call->in[ACTIVATION_GRAD_X];
    T *d_x = call->out[ACTIVATION_GRAD_D_X];
    int64_t rows = call->in_shape[ACTIVATION_GRAD_D_Y][0], columns = call->in_shape[ACTIVATION_GRAD_D_Y][1];
    if (attributes->kind == GELU_TANH) {
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; r++) gelu_tanh_grad(d_x + r * columns, d_y + r * columns, x + r * columns, columns);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
            W v = to_wide(x[i]);
            W cumulative = (W)0.5 * (1 + wide_erf(v * inverse_sqrt_2)), density = inverse_sqrt_2_pi * wide_exp((W)-0.5 * v * v);
            d_x[i] = to_compute(to_wide(d_y[i]) * (cumulative + v * density));
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
}

CPU_OP(clamp) {
    const ClampAttributes *attributes = call->attributes;
    const T *x = call->in[ACTIVATION_X];
    T *y = call->out[ACTIVATION_Y];
    int64_t elements = call->in_shape[ACTIVATION_X][0] * call->in_shape[ACTIVATION_X][1];
    W limit = (W)attributes->limit;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) {
        W v = to_wide(x[i]);
        v = v > limit ? limit : v;
        y[i] = to_compute(v < -limit ? -limit : v);
    }
}

CPU_OP(clamp_grad) {
    const ClampAttributes *attributes = call->attributes;
    const T *d_y = call->in[ACTIVATION_GRAD_D_Y], *x = call->in[ACTIVATION_GRAD_X];
    T *d_x = call->out[ACTIVATION_GRAD_D_X];
    int64_t elements = call->in_shape[ACTIVATION_GRAD_D_Y][0] * call->in_shape[ACTIVATION_GRAD_D_Y][1];
    W limit = (W)attributes->limit;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) {
        W v = to_wide(x[i]);
        d_x[i] = v > limit || v < -limit ? 0 : d_y[i];
    }
}

CPU_OP(scale) {
    const ScaleAttributes *attributes = call->attributes;
    const T *x = call->in[ACTIVATION_X];
    T *y = call->out[ACTIVATION_Y];
    int64_t elements = call->in_shape[ACTIVATION_X][0] * call->in_shape[ACTIVATION_X][1];
    W factor = (W)attributes->factor;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) y[i] = to_compute(factor * to_wide(x[i]));
}

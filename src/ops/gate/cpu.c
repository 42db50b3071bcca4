/* Gates on a CPU: threads divide the gates. No scratch. */
#include "backend/cpu/kernel.h"
#include "ops/gate/gate.h"

static inline W gate_value(W gate, GateFunction function) {
    W s = 1 / (1 + wide_exp(-gate));
    return function == GATE_SILU ? gate * s : s;
}
static inline W gate_slope(W gate, GateFunction function) {
    W s = 1 / (1 + wide_exp(-gate));
    return function == GATE_SILU ? s + gate * s * (1 - s) : s * (1 - s);
}

CPU_OP(gate) {
    const GateAttributes *a = call->attributes;
    const T *gates = call->in[GATE_GATE], *x = call->in[GATE_X];
    T *y = call->out[GATE_Y];
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < a->gates; g++) {
        W value = gate_value(to_wide(gates[g]), a->function);
        for (int64_t i = g * a->width; i < (g + 1) * a->width; i++) y[i] = to_compute(value * to_wide(x[i]));
    }
}

CPU_OP(gate_grad) {
    const GateAttributes *a = call->attributes;
    const T *d_y = call->in[GATE_GRAD_D_Y], *gates = call->in[GATE_GRAD_GATE], *x = call->in[GATE_GRAD_X];
    T *d_gates = call->out[GATE_GRAD_D_GATE], *d_x = call->out[GATE_GRAD_D_X];
#pragma omp parallel for schedule(static)
    for (int64_t g = 0; g < a->gates; g++) {
        W gate = to_wide(gates[g]), value = gate_value(gate, a->function), sum = 0;
        for (int64_t i = g * a->width; i < (g + 1) * a->width; i++) {
            W d = to_wide(d_y[i]);
            sum += to_wide(x[i]) * d;
            d_x[i] = to_compute(value * d);
        }
        d_gates[g] = to_compute(gate_slope(gate, a->function) * sum);
    }
}

/* Gates on a GPU. A gate of one element: each thread takes 8 adjacent elements. A gate of a row: a block
 * takes the row. No scratch. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/vector.h"

typedef struct GateArguments {
    const bf16 GLOBAL *gates, *x, *d_y; /* d_y: only in the gradient */
    bf16 GLOBAL *y, *d_gates;           /* the gradient: y is d_x */
    int64_t count;                      /* of gates */
    int32_t width, is_silu;
} GateArguments;

#ifdef GPU_DEVICE

INLINE float gate_factor(const GateArguments *a, float gate) { return a->is_silu ? gate * sigmoid(gate) : sigmoid(gate); }
INLINE float gate_factor_slope(const GateArguments *a, float gate) {
    float s = sigmoid(gate), slope = s * (1 - s);
    return a->is_silu ? s + gate * slope : slope;
}

INLINE void gate_at(const GateArguments *a, int64_t at, const int unit) {
    f32x8 gates = load8_bf16(a->gates + at, unit), x = load8_bf16(a->x + at, unit);
    UNROLL for (int i = 0; i < unit; i++) x[i] *= gate_factor(a, gates[i]);
    store8_bf16(a->y + at, x, unit);
}
INLINE void gate_grad_at(const GateArguments *a, int64_t at, const int unit) {
    f32x8 gates = load8_bf16(a->gates + at, unit), x = load8_bf16(a->x + at, unit), d = load8_bf16(a->d_y + at, unit);
    UNROLL for (int i = 0; i < unit; i++) {
        x[i] *= d[i] * gate_factor_slope(a, gates[i]);
        d[i] *= gate_factor(a, gates[i]);
    }
    store8_bf16(a->d_gates + at, x, unit);
    store8_bf16(a->y + at, d, unit);
}
FLAT_KERNEL(gate, GateArguments, gate_at)
FLAT_KERNEL(gate_grad, GateArguments, gate_grad_at)

KERNEL(gate_row, GateArguments) {
    int64_t first = (int64_t)block_x() * a.width;
    float value = gate_factor(&a, to_float(a.gates[block_x()]));
    for (int i = thread_id(); i < a.width; i += TILE_THREADS) a.y[first + i] = to_bf16(value * to_float(a.x[first + i]));
}

KERNEL(gate_row_grad, GateArguments) {
    static SHARED float sums[TILE_THREADS / WAVE];
    int64_t first = (int64_t)block_x() * a.width;
    float gate = to_float(a.gates[block_x()]), value = gate_factor(&a, gate), sum = 0;
    for (int i = thread_id(); i < a.width; i += TILE_THREADS) {
        float d = to_float(a.d_y[first + i]);
        sum += d * to_float(a.x[first + i]);
        a.y[first + i] = to_bf16(value * d);
    }
    sum = block_sum(sum, sums, TILE_THREADS);
    if (thread_id() == 0) a.d_gates[block_x()] = to_bf16(gate_factor_slope(&a, gate) * sum);
}

#else

#include "ops/gate/gate.h"

LAUNCHERS(gate, GateArguments, gate, gate_row)
LAUNCHERS(gate_grad, GateArguments, gate_grad, gate_row_grad)

static GateArguments gate_arguments(const GateAttributes *a) {
    return (GateArguments){.count = a->gates, .width = (int32_t)a->width, .is_silu = a->function == GATE_SILU};
}

static LaunchShape gate_shape(const GateAttributes *a) {
    return a->width == 1 ? flat_shape(a->gates) : (LaunchShape){.x = a->gates, .threads = TILE_THREADS};
}

GPU_OP(gate) {
    const GateAttributes *a = call->attributes;
    GateArguments arguments = gate_arguments(a);
    arguments.gates = call->in[GATE_GATE], arguments.x = call->in[GATE_X], arguments.y = call->out[GATE_Y];
    launch_gate(call->device, a->width > 1, gate_shape(a), &arguments);
}

GPU_OP(gate_grad) {
    const GateAttributes *a = call->attributes;
    GateArguments arguments = gate_arguments(a);
    arguments.gates = call->in[GATE_GRAD_GATE], arguments.x = call->in[GATE_GRAD_X], arguments.d_y = call->in[GATE_GRAD_D_Y];
    arguments.d_gates = call->out[GATE_GRAD_D_GATE], arguments.y = call->out[GATE_GRAD_D_X];
    launch_gate_grad(call->device, a->width > 1, gate_shape(a), &arguments);
}

#endif

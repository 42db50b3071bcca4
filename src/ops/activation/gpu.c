/* Elementwise functions and their gradients on a GPU: each thread takes 8 neighbouring elements, or columns of
 * SwiGLU; one by one where widths are no multiple of 8. No scratch. */
#include "backend/gpu/fp8_codes.h"
#include "backend/gpu/vector.h"
#include "ops/activation/activation_row.h"

typedef struct FlatArguments {
    const bf16 GLOBAL *d_y, *x;
    bf16 GLOBAL *y; /* or d_x, in gradients; so in SwigluArguments */
    int64_t count;
    float limit, factor;
    uint32_t GLOBAL *amax; /* of y, where it is wanted; so in SwigluArguments */
} FlatArguments;
typedef struct SwigluArguments {
    const bf16 GLOBAL *d_y, *x;
    bf16 GLOBAL *y;
    Tiling tiling;
    uint32_t GLOBAL *amax;
} SwigluArguments;

/* The same with codes in the place of y. */
typedef struct FlatCodesArguments {
    FlatArguments of;
    Fp8Codes to;
} FlatCodesArguments;
typedef struct SwigluCodesArguments {
    SwigluArguments of;
    Fp8Codes to;
} SwigluCodesArguments;

/* Of join_gelu and of its gradient: columns of the whole, of which the first `width` are a's. */
typedef struct JoinGeluArguments {
    const bf16 GLOBAL *x, *d_whole; /* d_whole: of the gradient */
    bf16 GLOBAL *a, *whole, *d_x;   /* a, or its gradient; it and d_x may be NULL in the gradient: not wanted */
    int64_t width;
    Tiling tiling;
} JoinGeluArguments;

#ifdef GPU_DEVICE

#define FOR_UNIT(i, unit) UNROLL for (int i = 0; i < (unit); i++)

INLINE float silu_slope(float x) {
    float s = sigmoid(x);
    return s + x * s * (1 - s);
}

INLINE float gelu_exact_slope(float x) {
    float gauss = fast_exp(-0.5f * x * x);
    return normal_cumulative(x, gauss) + x * 0.39894228040143267794f * gauss;
}

INLINE float gelu_tanh_slope(float x) {
    float s = sigmoid(x * (TANH_A + TANH_B * x * x));
    return s + x * s * (1 - s) * (TANH_A + 3 * TANH_B * x * x);
}

/* Kernel NAME, of a function or of a gradient: a->y[i] = formula. NAME_made returns the largest of these (backend/gpu/amax.h), and
 * with `to` writes codes, of gradients e5m2. */
#define FORMULA(name, is_gradient, formula) \
    INLINE uint32_t name##_made(const FlatArguments *a, int64_t at, int unit, const Fp8Codes *to) { \
        f32x8 x = load8_bf16(a->x + at, unit), d_y = is_gradient ? load8_bf16(a->d_y + at, unit) : (f32x8)0, y = 0; \
        uint32_t most = 0; \
        (void)d_y; \
        FOR_UNIT(i, unit) y[i] = formula; \
        store8_made(a->y, at, y, unit, to, is_gradient); \
        FOR_UNIT(i, unit) most = larger_of(most, y[i]); \
        return most; \
    } \
    INLINE void name##_at(const FlatArguments *a, int64_t at, int unit) { name##_made(a, at, unit, AS_BF16); } \
    FLAT_KERNEL(name, FlatArguments, name##_at)

FORMULA(exact, false, gelu_exact(x[i]))
FORMULA(tanh, false, gelu_tanh(x[i]))
FORMULA(silu, false, x[i] * sigmoid(x[i]))
FORMULA(clamp, false, x[i] > a->limit ? a->limit : x[i] < -a->limit ? -a->limit : x[i])
FORMULA(scale, false, a->factor *x[i])
FORMULA(exact_grad, true, d_y[i] * gelu_exact_slope(x[i]))
FORMULA(tanh_grad, true, d_y[i] * gelu_tanh_slope(x[i]))
FORMULA(silu_grad, true, d_y[i] * silu_slope(x[i]))
FORMULA(clamp_grad, true, x[i] > a->limit || x[i] < -a->limit ? 0 : d_y[i])

/* Kernels NAME_amax, which records it, and NAME_codes; a.count is a multiple of 8, as what is cast to fp8. */
#define FP8_FORMULA(name) \
    KERNEL(name##_amax, FlatArguments) { \
        int64_t at = ((int64_t)block_x() * TILE_THREADS + thread_id()) * 8; \
        record_rounded(a.amax, at < a.count ? name##_made(&a, at, 8, AS_BF16) : 0); \
    } \
    KERNEL(name##_codes, FlatCodesArguments) { \
        int64_t at = ((int64_t)block_x() * TILE_THREADS + thread_id()) * 8; \
        record_codes(&a.to, at < a.of.count ? name##_made(&a.of, at, 8, &a.to) : 0); \
    }

FP8_FORMULA(exact)
FP8_FORMULA(tanh)
FP8_FORMULA(exact_grad)
FP8_FORMULA(tanh_grad)

/* It and its gradient return the largest of what they store, with `to` as codes. */
INLINE uint32_t swiglu_made(const SwigluArguments *a, int unit, const Fp8Codes *to) {
    Place place = place_in(a->tiling, unit);
    uint32_t most = 0;
    if (!place.inside) return 0;
    int64_t width = a->tiling.columns, at = 2 * place.row * width + place.column;
    f32x8 gate = load8_bf16(a->x + at, unit), up = load8_bf16(a->x + at + width, unit), y = 0;
    FOR_UNIT(i, unit) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
    store8_made(a->y, place.row * width + place.column, y, unit, to, false);
    FOR_UNIT(i, unit) most = larger_of(most, y[i]);
    return most;
}

INLINE uint32_t swiglu_grad_made(const SwigluArguments *a, int unit, const Fp8Codes *to) {
    Place place = place_in(a->tiling, unit);
    uint32_t most = 0;
    if (!place.inside) return 0;
    int64_t width = a->tiling.columns, at = 2 * place.row * width + place.column;
    f32x8 gate = load8_bf16(a->x + at, unit), up = load8_bf16(a->x + at + width, unit), d_gate = 0, d_up = 0;
    f32x8 d_y = load8_bf16(a->d_y + place.row * width + place.column, unit);
    FOR_UNIT(i, unit) {
        float s = sigmoid(gate[i]);
        d_gate[i] = d_y[i] * up[i] * s * (1 + gate[i] * (1 - s));
        d_up[i] = d_y[i] * gate[i] * s;
    }
    store8_made(a->y, at, d_gate, unit, to, true);
    store8_made(a->y, at + width, d_up, unit, to, true);
    FOR_UNIT(i, unit) most = larger_of(larger_of(most, d_gate[i]), d_up[i]);
    return most;
}

INLINE void swiglu_unit(const SwigluArguments *a, int unit) { swiglu_made(a, unit, AS_BF16); }
INLINE void swiglu_grad_unit(const SwigluArguments *a, int unit) { swiglu_grad_made(a, unit, AS_BF16); }
INLINE void swiglu_amax_unit(const SwigluArguments *a, int unit) { record_rounded(a->amax, swiglu_made(a, unit, AS_BF16)); }
INLINE void swiglu_grad_amax_unit(const SwigluArguments *a, int unit) { record_rounded(a->amax, swiglu_grad_made(a, unit, AS_BF16)); }

/* A unit of the whole, and its place in a or x. */
typedef struct JoinedUnit {
    int64_t whole, part;
    bool in_x, inside;
} JoinedUnit;
INLINE JoinedUnit joined_unit(const JoinGeluArguments *a, int unit) {
    Place place = place_in(a->tiling, unit);
    bool in_x = place.column >= a->width;
    int64_t columns = in_x ? a->tiling.columns - a->width : a->width;
    return (JoinedUnit){.whole = place.row * a->tiling.columns + place.column,
        .part = place.row * columns + place.column - (in_x ? a->width : 0),
        .in_x = in_x,
        .inside = place.inside};
}

INLINE void join_gelu_unit(const JoinGeluArguments *a, int unit) {
    JoinedUnit u = joined_unit(a, unit);
    if (!u.inside) return;
    const bf16 GLOBAL *from = a->a;
    if (u.in_x) from = a->x;
    f32x8 y = load8_bf16(from + u.part, unit);
    if (u.in_x) FOR_UNIT(i, unit) y[i] = gelu_tanh(y[i]);
    store8_bf16(a->whole + u.whole, y, unit);
}

INLINE void join_gelu_grad_unit(const JoinGeluArguments *a, int unit) {
    JoinedUnit u = joined_unit(a, unit);
    bf16 GLOBAL *to = u.in_x ? a->d_x : a->a;
    if (!u.inside || !to) return;
    f32x8 d = load8_bf16(a->d_whole + u.whole, unit);
    if (u.in_x) {
        f32x8 x = load8_bf16(a->x + u.part, unit);
        FOR_UNIT(i, unit) d[i] *= gelu_tanh_slope(x[i]);
    }
    store8_bf16(to + u.part, d, unit);
}

UNIT_KERNELS(join_gelu, JoinGeluArguments, join_gelu_unit, 8)
UNIT_KERNELS(join_gelu_grad, JoinGeluArguments, join_gelu_grad_unit, 8)
UNIT_KERNELS(swiglu, SwigluArguments, swiglu_unit, 8)
UNIT_KERNELS(swiglu_grad, SwigluArguments, swiglu_grad_unit, 8)
UNIT_KERNELS(swiglu_amax, SwigluArguments, swiglu_amax_unit, 8)
UNIT_KERNELS(swiglu_grad_amax, SwigluArguments, swiglu_grad_amax_unit, 8)
KERNEL(swiglu_codes, SwigluCodesArguments) { record_codes(&a.to, swiglu_made(&a.of, 8, &a.to)); }
KERNEL(swiglu_grad_codes, SwigluCodesArguments) { record_codes(&a.to, swiglu_grad_made(&a.of, 8, &a.to)); }

#else

#include "ops/activation/activation.h"

LAUNCHERS(gelu, FlatArguments, exact, tanh, exact_amax, tanh_amax) /* by form_of */
LAUNCHERS(gelu_grad, FlatArguments, exact_grad, tanh_grad, exact_grad_amax, tanh_grad_amax)
LAUNCHERS(gelu_codes, FlatCodesArguments, exact_codes, tanh_codes, exact_grad_codes, tanh_grad_codes)
LAUNCHERS(swiglu_codes, SwigluCodesArguments, swiglu_codes, swiglu_grad_codes)
LAUNCHER(silu, FlatArguments)
LAUNCHER(silu_grad, FlatArguments)
LAUNCHER(clamp, FlatArguments)
LAUNCHER(clamp_grad, FlatArguments)
LAUNCHER(scale, FlatArguments)
TILED_LAUNCHER(join_gelu, JoinGeluArguments, 8)
TILED_LAUNCHER(join_gelu_grad, JoinGeluArguments, 8)
TILED_LAUNCHER(swiglu, SwigluArguments, 8)
TILED_LAUNCHER(swiglu_grad, SwigluArguments, 8)
TILED_LAUNCHER(swiglu_amax, SwigluArguments, 8)
TILED_LAUNCHER(swiglu_grad_amax, SwigluArguments, 8)

/* The arguments of a call whose x is input `x_input`; in the forward pass d_y is x, and not read. */
static FlatArguments flat(const OpCall *call, int x_input) {
    const ActivationAttributes *attributes = call->attributes;
    const int64_t *shape = call->in_shape[x_input];
    return (FlatArguments){.d_y = call->in[ACTIVATION_GRAD_D_Y],
        .x = call->in[x_input],
        .y = call->out[ACTIVATION_Y],
        .count = shape[0] * shape[1],
        .limit = (float)attributes->parameter,
        .factor = (float)attributes->parameter};
}

/* Of gelu's kernels, of which one records the largest magnitude. */
static int form_of(const OpCall *call, const FlatArguments *arguments) {
    return (int)((const ActivationAttributes *)call->attributes)->kind + (arguments->amax ? GELU_KINDS : 0);
}

GPU_OP(gelu, .absorbs = activation_absorbs_row) {
    if (call->absorbs) {
        activation_launch_row(call);
        return;
    }
    FlatArguments arguments = flat(call, ACTIVATION_X);
    arguments.amax = amax_to_record(call, ACTIVATION_AMAX);
    launch_gelu(call->device, form_of(call, &arguments), flat_shape(arguments.count), &arguments);
}

GPU_OP(gelu_grad) {
    FlatArguments arguments = flat(call, ACTIVATION_GRAD_X);
    arguments.amax = amax_to_record(call, ACTIVATION_GRAD_AMAX);
    launch_gelu_grad(call->device, form_of(call, &arguments), flat_shape(arguments.count), &arguments);
}

static Tiling joined_tiling(int64_t rows, int64_t width, int64_t columns) {
    return tile_units(rows, width + columns, (width | columns) % 8 ? 1 : 8);
}

GPU_OP(join_gelu) {
    const int64_t *a_shape = call->in_shape[JOIN_GELU_A], *x_shape = call->in_shape[JOIN_GELU_X];
    JoinGeluArguments arguments = {.x = call->in[JOIN_GELU_X],
        .a = call->in[JOIN_GELU_A],
        .whole = call->out[JOIN_GELU_WHOLE],
        .width = a_shape[1],
        .tiling = joined_tiling(a_shape[0], a_shape[1], x_shape[1])};
    launch_join_gelu(call->device, &arguments);
}

GPU_OP(join_gelu_grad) {
    const int64_t *whole_shape = call->in_shape[JOIN_GELU_GRAD_D_WHOLE], *x_shape = call->in_shape[JOIN_GELU_GRAD_X];
    JoinGeluArguments arguments = {.x = call->in[JOIN_GELU_GRAD_X],
        .d_whole = call->in[JOIN_GELU_GRAD_D_WHOLE],
        .a = call->out[JOIN_GELU_GRAD_D_A],
        .d_x = call->out[JOIN_GELU_GRAD_D_X],
        .width = whole_shape[1] - x_shape[1],
        .tiling = joined_tiling(x_shape[0], whole_shape[1] - x_shape[1], x_shape[1])};
    launch_join_gelu_grad(call->device, &arguments);
}

GPU_OP(silu) {
    FlatArguments arguments = flat(call, ACTIVATION_X);
    launch_silu(call->device, flat_shape(arguments.count), &arguments);
}

GPU_OP(silu_grad) {
    FlatArguments arguments = flat(call, ACTIVATION_GRAD_X);
    launch_silu_grad(call->device, flat_shape(arguments.count), &arguments);
}

GPU_OP(clamp) {
    FlatArguments arguments = flat(call, ACTIVATION_X);
    launch_clamp(call->device, flat_shape(arguments.count), &arguments);
}

GPU_OP(clamp_grad) {
    FlatArguments arguments = flat(call, ACTIVATION_GRAD_X);
    launch_clamp_grad(call->device, flat_shape(arguments.count), &arguments);
}

GPU_OP(scale) {
    FlatArguments arguments = flat(call, ACTIVATION_X);
    launch_scale(call->device, flat_shape(arguments.count), &arguments);
}

static SwigluArguments swiglu_arguments(const OpCall *call) {
    const int64_t *shape = call->out_shape[ACTIVATION_Y];
    return (SwigluArguments){.x = call->in[ACTIVATION_X], .y = call->out[ACTIVATION_Y], .tiling = tile_matrix(shape[0], shape[1], 8)};
}

static SwigluArguments swiglu_grad_arguments(const OpCall *call) {
    const int64_t *shape = call->in_shape[ACTIVATION_GRAD_D_Y];
    return (SwigluArguments){.d_y = call->in[ACTIVATION_GRAD_D_Y],
        .x = call->in[ACTIVATION_GRAD_X],
        .y = call->out[ACTIVATION_GRAD_D_X],
        .tiling = tile_matrix(shape[0], shape[1], 8)};
}

GPU_OP(swiglu, .absorbs = activation_absorbs_row) {
    if (call->absorbs) {
        activation_launch_row(call);
        return;
    }
    SwigluArguments arguments = swiglu_arguments(call);
    arguments.amax = amax_to_record(call, ACTIVATION_AMAX);
    (arguments.amax ? launch_swiglu_amax : launch_swiglu)(call->device, &arguments);
}

GPU_OP(swiglu_grad) {
    SwigluArguments arguments = swiglu_grad_arguments(call);
    arguments.amax = amax_to_record(call, ACTIVATION_GRAD_AMAX);
    (arguments.amax ? launch_swiglu_grad_amax : launch_swiglu_grad)(call->device, &arguments);
}

/* -- Codes --------------------------------------------------------------------------------------------------------- */

bool activation_makes_codes(const Node *node, TensorId x, Fp8Kind kind) {
    bool forward = node->op == OP_swiglu || node->op == OP_gelu, backward = node->op == OP_swiglu_grad || node->op == OP_gelu_grad;
    return (kind == FP8_E5M2 ? backward : forward) && node->out[ACTIVATION_Y] == x && !op_amax(node);
}

void activation_launch_codes(const OpCall *call, const Fp8Codes *to) {
    bool backward = call->in[ACTIVATION_GRAD_X] != NULL;
    const int64_t *x_shape = call->in_shape[backward ? ACTIVATION_GRAD_X : ACTIVATION_X],
                  *narrow = backward ? call->in_shape[ACTIVATION_GRAD_D_Y] : call->out_shape[ACTIVATION_Y];
    if (narrow[1] < x_shape[1]) {
        SwigluCodesArguments arguments = {backward ? swiglu_grad_arguments(call) : swiglu_arguments(call), *to};
        launch_swiglu_codes(call->device, backward, tiling_shape(arguments.of.tiling), &arguments);
    } else {
        FlatCodesArguments arguments = {flat(call, backward ? ACTIVATION_GRAD_X : ACTIVATION_X), *to};
        int form = form_of(call, &arguments.of) + (backward ? GELU_KINDS : 0);
        launch_gelu_codes(call->device, form, flat_shape(arguments.of.count), &arguments);
    }
}

#endif

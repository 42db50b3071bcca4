/* Elementwise functions and their gradients on a GPU: each thread takes 8 adjacent elements, or
 * columns for SwiGLU; one by one if widths are not a multiple of 8. No scratch. */
#include "backend/gpu/fp8_codes.h"
#include "backend/gpu/vector.h"
#include "ops/activation/activation_row.h"

typedef struct FlatArguments {
    const bf16 GLOBAL *d_y, *x;
    bf16 GLOBAL *y; /* d_x in gradients; so in SwigluArguments */
    int64_t count;
    float limit, factor;
    Fp8Codes to; /* for y; so in SwigluArguments */
} FlatArguments;
typedef struct SwigluArguments {
    const bf16 GLOBAL *d_y, *x;
    bf16 GLOBAL *y;
    Tiling tiling;
    Fp8Codes to;
} SwigluArguments;

/* Arguments of join_gelu and its gradient: columns of the whole row; the first `width` are a's. */
typedef struct JoinGeluArguments {
    const bf16 GLOBAL *x, *d_whole; /* d_whole: only in the gradient */
    bf16 GLOBAL *a, *whole, *d_x;   /* a, or its gradient. In the gradient, a and d_x may be NULL: not wanted */
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

/* Defines kernel NAME of a function or a gradient: a->y[i] = formula. NAME_made is for the variant
 * that also writes fp8 values, which are e5m2 for gradients. */
#define FORMULA(name, is_gradient, formula) \
    INLINE void name##_made(const FlatArguments *a, int64_t at, int unit, Maker *maker) { \
        f32x8 x = load8_bf16(a->x + at, unit), d_y = is_gradient ? load8_bf16(a->d_y + at, unit) : (f32x8)0, y = 0; \
        (void)d_y; \
        FOR_UNIT(i, unit) y[i] = formula; \
        store8_made(maker, a->y, at, y, unit, is_gradient); \
    } \
    INLINE void name##_at(const FlatArguments *a, int64_t at, int unit) { \
        Maker maker = make_maker(AS_BF16); \
        name##_made(a, at, unit, &maker); \
    } \
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

/* Defines kernel NAME_fp8; a.count is a multiple of 8, as for all quantized tensors. */
#define FP8_FORMULA(name) \
    KERNEL(name##_fp8, FlatArguments) { \
        int64_t at = ((int64_t)block_x() * TILE_THREADS + thread_id()) * 8; \
        Maker maker = make_maker(&a.to); \
        if (at < a.count) name##_made(&a, at, 8, &maker); \
        end_making(&maker); \
    }

FP8_FORMULA(exact)
FP8_FORMULA(tanh)
FP8_FORMULA(exact_grad)
FP8_FORMULA(tanh_grad)

INLINE void swiglu_made(const SwigluArguments *a, int unit, Maker *maker) {
    Place place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int64_t width = a->tiling.columns, at = 2 * place.row * width + place.column;
    f32x8 gate = load8_bf16(a->x + at, unit), up = load8_bf16(a->x + at + width, unit), y = 0;
    FOR_UNIT(i, unit) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
    store8_made(maker, a->y, place.row * width + place.column, y, unit, false);
}

INLINE void swiglu_grad_made(const SwigluArguments *a, int unit, Maker *maker) {
    Place place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int64_t width = a->tiling.columns, at = 2 * place.row * width + place.column;
    f32x8 gate = load8_bf16(a->x + at, unit), up = load8_bf16(a->x + at + width, unit), d_gate = 0, d_up = 0;
    f32x8 d_y = load8_bf16(a->d_y + place.row * width + place.column, unit);
    FOR_UNIT(i, unit) {
        float s = sigmoid(gate[i]);
        d_gate[i] = d_y[i] * up[i] * s * (1 + gate[i] * (1 - s));
        d_up[i] = d_y[i] * gate[i] * s;
    }
    store8_made(maker, a->y, at, d_gate, unit, true);
    store8_made(maker, a->y, at + width, d_up, unit, true);
}

/* Defines the units of NAME and of NAME_fp8. */
#define SWIGLU_UNITS(name) \
    INLINE void name##_unit(const SwigluArguments *a, int unit) { \
        Maker maker = make_maker(AS_BF16); \
        name##_made(a, unit, &maker); \
    } \
    INLINE void name##_fp8_unit(const SwigluArguments *a, int unit) { \
        Maker maker = make_maker(&a->to); \
        name##_made(a, unit, &maker); \
        end_making(&maker); \
    }
SWIGLU_UNITS(swiglu)
SWIGLU_UNITS(swiglu_grad)

/* A unit of the whole row, and its place in a or x. */
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
UNIT_KERNELS(swiglu_fp8, SwigluArguments, swiglu_fp8_unit, 8)
UNIT_KERNELS(swiglu_grad_fp8, SwigluArguments, swiglu_grad_fp8_unit, 8)

#else

#include "ops/activation/activation.h"

LAUNCHERS(gelu, FlatArguments, exact, tanh, exact_fp8, tanh_fp8) /* indexed by form_of */
LAUNCHERS(gelu_grad, FlatArguments, exact_grad, tanh_grad, exact_grad_fp8, tanh_grad_fp8)
LAUNCHER(silu, FlatArguments)
LAUNCHER(silu_grad, FlatArguments)
LAUNCHER(clamp, FlatArguments)
LAUNCHER(clamp_grad, FlatArguments)
LAUNCHER(scale, FlatArguments)
TILED_LAUNCHER(join_gelu, JoinGeluArguments, 8)
TILED_LAUNCHER(join_gelu_grad, JoinGeluArguments, 8)
TILED_LAUNCHER(swiglu, SwigluArguments, 8)
TILED_LAUNCHER(swiglu_grad, SwigluArguments, 8)
TILED_LAUNCHER(swiglu_fp8, SwigluArguments, 8)
TILED_LAUNCHER(swiglu_grad_fp8, SwigluArguments, 8)

/* Returns the arguments of a call whose x is input `x_input`. In the forward pass d_y is x and is
 * not read. */
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

/* Returns the index of gelu's kernel. */
static int form_of(const OpCall *call, const FlatArguments *arguments) {
    return (int)((const ActivationAttributes *)call->attributes)->kind + (fp8_is_wanted(&arguments->to) ? GELU_KINDS : 0);
}

GPU_OP(gelu, .absorbs = activation_absorbs_row, .codes = FP8_KIND(FP8_E4M3)) {
    if (call->absorbs) {
        activation_launch_row(call);
        return;
    }
    FlatArguments arguments = flat(call, ACTIVATION_X);
    arguments.to = fp8_codes_of(call, ACTIVATION_AMAX);
    launch_gelu(call->device, form_of(call, &arguments), flat_shape(arguments.count), &arguments);
}

GPU_OP(gelu_grad, .codes = FP8_KIND(FP8_E5M2)) {
    FlatArguments arguments = flat(call, ACTIVATION_GRAD_X);
    arguments.to = fp8_codes_of(call, ACTIVATION_GRAD_AMAX);
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

GPU_OP(swiglu, .absorbs = activation_absorbs_row, .codes = FP8_KIND(FP8_E4M3)) {
    const int64_t *shape = call->out_shape[ACTIVATION_Y];
    if (call->absorbs) {
        activation_launch_row(call);
        return;
    }
    SwigluArguments arguments = {.x = call->in[ACTIVATION_X],
        .y = call->out[ACTIVATION_Y],
        .tiling = tile_matrix(shape[0], shape[1], 8),
        .to = fp8_codes_of(call, ACTIVATION_AMAX)};
    (fp8_is_wanted(&arguments.to) ? launch_swiglu_fp8 : launch_swiglu)(call->device, &arguments);
}

GPU_OP(swiglu_grad, .codes = FP8_KIND(FP8_E5M2)) {
    const int64_t *shape = call->in_shape[ACTIVATION_GRAD_D_Y];
    SwigluArguments arguments = {.d_y = call->in[ACTIVATION_GRAD_D_Y],
        .x = call->in[ACTIVATION_GRAD_X],
        .y = call->out[ACTIVATION_GRAD_D_X],
        .tiling = tile_matrix(shape[0], shape[1], 8),
        .to = fp8_codes_of(call, ACTIVATION_GRAD_AMAX)};
    (fp8_is_wanted(&arguments.to) ? launch_swiglu_grad_fp8 : launch_swiglu_grad)(call->device, &arguments);
}

#endif

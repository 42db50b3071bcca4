/* Elementwise functions and their gradients on a GPU: each thread takes 8 adjacent elements, or
 * columns of a gated function; one by one if widths are not a multiple of 8. No scratch. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/fp8_output.h"
#include "backend/gpu/vector.h"

typedef struct FlatArguments {
    const bf16 GLOBAL *d_y, *x;
    bf16 GLOBAL *y; /* d_x in gradients; so in GatedArguments */
    int64_t count;
    float limit, factor;
    Fp8Output to; /* for y; so in GatedArguments */
} FlatArguments;
typedef struct GatedArguments {
    const bf16 GLOBAL *d_y, *x;
    bf16 GLOBAL *y;
    Tiling tiling;
    Fp8Output to;
    float alpha, limit; /* ActivationTerms */
} GatedArguments;

/* Arguments of join_gelu and its gradient: columns of the whole row; the first `width` are a's. */
typedef struct JoinGeluArguments {
    const bf16 GLOBAL *x, *d_whole; /* d_whole: only in the gradient */
    bf16 GLOBAL *a, *whole, *d_x;   /* a, or its gradient. In the gradient, a and d_x may be NULL: not needed */
    int64_t width;
    Tiling tiling;
} JoinGeluArguments;

#ifdef GPU_DEVICE

#define FOR_UNIT(i, unit) UNROLL for (int i = 0; i < (unit); i++)

/* Defines kernel NAME of a function or a gradient: a->y[i] = formula, of x and d = d_y. NAME_write is
 * for the variant that also writes fp8 values, which are e5m2 for gradients. */
#define FORMULA(name, is_gradient, formula) \
    INLINE void name##_write(const FlatArguments *a, int64_t at, int unit, Fp8Writer *writer) { \
        f32x8 xs = load8_bf16(a->x + at, unit), ds = is_gradient ? load8_bf16(a->d_y + at, unit) : (f32x8)0, y = 0; \
        FOR_UNIT(i, unit) { \
            float x = xs[i], d = ds[i]; \
            (void)d; \
            y[i] = formula; \
        } \
        fp8_store8(writer, a->y, at, y, unit, is_gradient); \
    } \
    INLINE void name##_at(const FlatArguments *a, int64_t at, int unit) { \
        Fp8Writer writer = fp8_writer(AS_BF16); \
        name##_write(a, at, unit, &writer); \
    } \
    FLAT_KERNEL(name, FlatArguments, name##_at)

FORMULA(clamp, false, x > a->limit ? a->limit : x < -a->limit ? -a->limit : x)
FORMULA(scale, false, a->factor *x)
FORMULA(clamp_grad, true, x > a->limit || x < -a->limit ? 0 : d)

/* Defines kernel NAME_fp8; a.count is a multiple of 8, as for all quantized tensors. */
#define FP8_FORMULA(name) \
    KERNEL(name##_fp8, FlatArguments) { \
        int64_t at = ((int64_t)block_x() * TILE_THREADS + thread_id()) * 8; \
        Fp8Writer writer = fp8_writer(&a.to); \
        if (at < a.count) name##_write(&a, at, 8, &writer); \
        fp8_writer_end(&writer); \
    }

/* Defines kernels NAME_8, NAME_1, NAME_fp8_8 and NAME_fp8_1 of NAME_write. */
#define GATED_KERNELS(name) \
    INLINE void name##_unit(const GatedArguments *a, int unit) { \
        Fp8Writer writer = fp8_writer(AS_BF16); \
        name##_write(a, unit, &writer); \
    } \
    INLINE void name##_fp8_unit(const GatedArguments *a, int unit) { \
        Fp8Writer writer = fp8_writer(&a->to); \
        name##_write(a, unit, &writer); \
        fp8_writer_end(&writer); \
    } \
    UNIT_KERNELS(name, GatedArguments, name##_unit, 8) \
    UNIT_KERNELS(name##_fp8, GatedArguments, name##_fp8_unit, 8)

#define ACTIVATION(name, hf, value, slope) \
    FORMULA(name, false, value) \
    FORMULA(name##_grad, true, d *(slope)) \
    FP8_FORMULA(name) \
    FP8_FORMULA(name##_grad)
#define GATED(name, hf, value, d_gate, d_up) \
    INLINE void name##_write(const GatedArguments *a, int unit, Fp8Writer *writer) { \
        UnitPlace place = place_in(a->tiling, unit); \
        if (!place.inside) return; \
        int64_t width = a->tiling.columns, at = 2 * place.row * width + place.column; \
        const float alpha = a->alpha, limit = a->limit; \
        (void)alpha, (void)limit; \
        f32x8 gates = load8_bf16(a->x + at, unit), ups = load8_bf16(a->x + at + width, unit), y = 0; \
        FOR_UNIT(i, unit) { \
            float gate = gates[i], up = ups[i]; \
            y[i] = value; \
        } \
        fp8_store8(writer, a->y, place.row * width + place.column, y, unit, false); \
    } \
    INLINE void name##_grad_write(const GatedArguments *a, int unit, Fp8Writer *writer) { \
        UnitPlace place = place_in(a->tiling, unit); \
        if (!place.inside) return; \
        int64_t width = a->tiling.columns, at = 2 * place.row * width + place.column; \
        const float alpha = a->alpha, limit = a->limit; \
        (void)alpha, (void)limit; \
        f32x8 gates = load8_bf16(a->x + at, unit), ups = load8_bf16(a->x + at + width, unit), d_gates = 0, d_ups = 0; \
        f32x8 ds = load8_bf16(a->d_y + place.row * width + place.column, unit); \
        FOR_UNIT(i, unit) { \
            float gate = gates[i], up = ups[i], d = ds[i]; \
            d_gates[i] = d_gate; \
            d_ups[i] = d_up; \
        } \
        fp8_store8(writer, a->y, at, d_gates, unit, true); \
        fp8_store8(writer, a->y, at + width, d_ups, unit, true); \
    } \
    GATED_KERNELS(name) \
    GATED_KERNELS(name##_grad)
#include "config/activation_list.h"

/* A unit of the whole row, and its place in a or x. */
typedef struct JoinedUnit {
    int64_t whole, part;
    bool in_x, inside;
} JoinedUnit;
INLINE JoinedUnit joined_unit(const JoinGeluArguments *a, int unit) {
    UnitPlace place = place_in(a->tiling, unit);
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
    if (u.in_x) FOR_UNIT(i, unit) y[i] = GELU_TANH(y[i]);
    store8_bf16(a->whole + u.whole, y, unit);
}

INLINE void join_gelu_grad_unit(const JoinGeluArguments *a, int unit) {
    JoinedUnit u = joined_unit(a, unit);
    bf16 GLOBAL *to = u.in_x ? a->d_x : a->a;
    if (!u.inside || !to) return;
    f32x8 d = load8_bf16(a->d_whole + u.whole, unit);
    if (u.in_x) {
        f32x8 x = load8_bf16(a->x + u.part, unit);
        FOR_UNIT(i, unit) d[i] *= GELU_TANH_SLOPE(x[i]);
    }
    store8_bf16(to + u.part, d, unit);
}

UNIT_KERNELS(join_gelu, JoinGeluArguments, join_gelu_unit, 8)
UNIT_KERNELS(join_gelu_grad, JoinGeluArguments, join_gelu_grad_unit, 8)

#else

#include "ops/activation/activation.h"
#include "ops/activation/activation_row.h"

/* The kernels of a function that computes bf16, and those that write fp8 values too; `tiled` ones
 * by units of 8 columns and of one. */
typedef struct Kernels { GpuKernel flat[2], tiled[2][2]; } Kernels;
#define FLAT(name) {.flat = {{GPU_MODULE, #name}, {GPU_MODULE, #name "_fp8"}}}
#define TILED(name) {.tiled = {{{GPU_MODULE, #name "_8"}, {GPU_MODULE, #name "_1"}}, {{GPU_MODULE, #name "_fp8_8"}, {GPU_MODULE, #name "_fp8_1"}}}}

static const struct FunctionKernels {
    Kernels value, grad;
} functions[ACTIVATION_COUNT] = {
#define ACTIVATION(name, ...) [ACTIVATION_##name] = {FLAT(name), FLAT(name##_grad)},
#define GATED(name, ...) [ACTIVATION_##name] = {TILED(name), TILED(name##_grad)},
#include "config/activation_list.h"
};

static const struct FunctionKernels *kernels_of(const OpCall *call) {
    return &functions[((const ActivationAttributes *)call->attributes)->function];
}

LAUNCHER(clamp, FlatArguments)
LAUNCHER(clamp_grad, FlatArguments)
LAUNCHER(scale, FlatArguments)
TILED_LAUNCHER(join_gelu, JoinGeluArguments, 8)
TILED_LAUNCHER(join_gelu_grad, JoinGeluArguments, 8)

/* Returns the arguments of a call whose x is input `x_input`. In the forward pass d_y is x and is
 * not read. */
static FlatArguments flat_arguments(const OpCall *call, int x_input) {
    const ActivationAttributes *attributes = call->attributes;
    const int64_t *shape = call->in_shape[x_input];
    return (FlatArguments){.d_y = call->in[ACTIVATION_GRAD_D_Y],
        .x = call->in[x_input],
        .y = call->out[ACTIVATION_Y],
        .count = shape[0] * shape[1],
        .limit = (float)attributes->parameter,
        .factor = (float)attributes->parameter};
}

static void launch_flat(const OpCall *call, const Kernels *kernels, int x_input, int amax) {
    FlatArguments arguments = flat_arguments(call, x_input);
    arguments.to = fp8_output_of(call, amax);
    gpu_launch(call->device, &kernels->flat[fp8_is_wanted(&arguments.to)], flat_shape(arguments.count), &arguments);
}

GPU_OP(activation, .absorbs = activation_absorbs_row, .quantizes = FP8_KIND(FP8_E4M3)) {
    if (call->absorbs) activation_launch_row(call);
    else launch_flat(call, &kernels_of(call)->value, ACTIVATION_X, ACTIVATION_AMAX);
}

GPU_OP(activation_grad, .quantizes = FP8_KIND(FP8_E5M2)) {
    launch_flat(call, &kernels_of(call)->grad, ACTIVATION_GRAD_X, ACTIVATION_GRAD_AMAX);
}

/* `y_shape`: that of y or of its gradient. */
static void launch_tiled(const OpCall *call, const Kernels *kernels, const int64_t *y_shape, GatedArguments arguments) {
    const ActivationTerms *terms = &((const ActivationAttributes *)call->attributes)->terms;
    arguments.tiling = tile_matrix(y_shape[0], y_shape[1], 8);
    arguments.alpha = (float)terms->alpha, arguments.limit = (float)terms->limit;
    gpu_launch(call->device, &kernels->tiled[fp8_is_wanted(&arguments.to)][arguments.tiling.unit == 1], tiling_shape(arguments.tiling),
        &arguments);
}

GPU_OP(gated_activation, .absorbs = activation_absorbs_row, .quantizes = FP8_KIND(FP8_E4M3)) {
    GatedArguments arguments = {.x = call->in[ACTIVATION_X], .y = call->out[ACTIVATION_Y], .to = fp8_output_of(call, ACTIVATION_AMAX)};
    if (call->absorbs) activation_launch_row(call);
    else launch_tiled(call, &kernels_of(call)->value, call->out_shape[ACTIVATION_Y], arguments);
}

GPU_OP(gated_activation_grad, .quantizes = FP8_KIND(FP8_E5M2)) {
    GatedArguments arguments = {.d_y = call->in[ACTIVATION_GRAD_D_Y],
        .x = call->in[ACTIVATION_GRAD_X],
        .y = call->out[ACTIVATION_GRAD_D_X],
        .to = fp8_output_of(call, ACTIVATION_GRAD_AMAX)};
    launch_tiled(call, &kernels_of(call)->grad, call->in_shape[ACTIVATION_GRAD_D_Y], arguments);
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

GPU_OP(clamp) {
    FlatArguments arguments = flat_arguments(call, ACTIVATION_X);
    launch_clamp(call->device, flat_shape(arguments.count), &arguments);
}

GPU_OP(clamp_grad) {
    FlatArguments arguments = flat_arguments(call, ACTIVATION_GRAD_X);
    launch_clamp_grad(call->device, flat_shape(arguments.count), &arguments);
}

GPU_OP(scale) {
    FlatArguments arguments = flat_arguments(call, ACTIVATION_X);
    launch_scale(call->device, flat_shape(arguments.count), &arguments);
}

#endif

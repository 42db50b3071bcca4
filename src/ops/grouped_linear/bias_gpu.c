/* grouped_bias on a GPU. In the forward pass a block has one expert and some columns, keeps their
 * biases in registers, and takes every a.strides-th group of rows. In the gradient a block sums its
 * columns over all rows of its expert: line l of threads adds rows l, l + LINES, ...; then the
 * lines' sums are added in order. No scratch. */
#include "backend/gpu/vector.h"

enum {
    THREADS = 256,
    LANES = 32,              /* threads along a row */
    LINES = THREADS / LANES, /* rows at once */
    UNIT = 8,                /* columns of a thread if 8 divides them, else one */
    AHEAD = 4,               /* rows that a thread of the forward pass has in flight */
};

typedef struct GroupedBiasArguments {
    const bf16 GLOBAL *x;
    const float GLOBAL *bias; /* NULL: x is copied */
    const int32_t GLOBAL *offset;
    bf16 GLOBAL *y;
    int64_t slots;
    int32_t experts, columns, strides;
} GroupedBiasArguments;
typedef struct GroupedBiasGradArguments {
    const bf16 GLOBAL *d_y;
    const int32_t GLOBAL *offset;
    float GLOBAL *d_bias;
    int32_t columns;
} GroupedBiasGradArguments;

#ifdef GPU_DEVICE

/* Block y: the expert; a.experts: the slots without one. Block z: the first group of rows. */
INLINE void add_bias(const GroupedBiasArguments *a, const int unit) {
    int lane = thread_id() % LANES, line = thread_id() / LANES, column = (block_x() * LANES + lane) * unit;
    bool used = block_y() < a->experts;
    int64_t end = used ? a->offset[block_y() + 1] : a->slots;
    if (column >= a->columns) return;
    f32x8 bias = 0;
    if (used && a->bias) bias = load8_wide(a->bias + (int64_t)block_y() * a->columns + column, unit);
    for (int64_t first = a->offset[block_y()] + (block_z() * AHEAD * LINES + line); first < end; first += a->strides * AHEAD * LINES) {
        f32x8 rows[AHEAD];
        UNROLL for (int i = 0; i < AHEAD; i++) {
            int64_t row = first + i * LINES;
            if (row < end) rows[i] = load8_bf16(a->x + row * a->columns + column, unit);
        }
        UNROLL for (int i = 0; i < AHEAD; i++) {
            int64_t row = first + i * LINES;
            if (row < end) store8_bf16(a->y + row * a->columns + column, rows[i] + bias, unit);
        }
    }
}

KERNEL(grouped_bias_8, GroupedBiasArguments) { add_bias(&a, UNIT); }
KERNEL(grouped_bias_1, GroupedBiasArguments) { add_bias(&a, 1); }

INLINE void sum_slots(const GroupedBiasGradArguments *a, const int unit) {
    static SHARED float sums[LINES][LANES * UNIT];
    int lane = thread_id() % LANES, line = thread_id() / LANES, column = (block_x() * LANES + lane) * unit;
    f32x8 sum = 0;
    if (column < a->columns) {
        const bf16 GLOBAL *at = a->d_y + column;
        int32_t end = a->offset[block_y() + 1];
        _Pragma("clang loop unroll_count(8)") for (int64_t row = a->offset[block_y()] + line; row < end; row += LINES) sum +=
            load8_bf16(at + row * a->columns, unit);
    }
    UNROLL for (int i = 0; i < unit; i++) sums[line][lane * unit + i] = sum[i];
    barrier();
    column = block_x() * LANES * unit + thread_id();
    if (thread_id() >= LANES * unit || column >= a->columns) return;
    float total = 0;
    UNROLL for (int i = 0; i < LINES; i++) total += sums[i][thread_id()];
    a->d_bias[(int64_t)block_y() * a->columns + column] += total;
}

KERNEL(grouped_bias_grad_8, GroupedBiasGradArguments) { sum_slots(&a, UNIT); }
KERNEL(grouped_bias_grad_1, GroupedBiasGradArguments) { sum_slots(&a, 1); }

#else

#include "ops/grouped_linear/grouped_linear.h"

LAUNCHERS(grouped_bias, GroupedBiasArguments, grouped_bias_1, grouped_bias_8)
LAUNCHERS(grouped_bias_grad, GroupedBiasGradArguments, grouped_bias_grad_1, grouped_bias_grad_8)

static_assert(LANES * UNIT == THREADS, "each thread of grouped_bias_grad_8 ends with one column");

GPU_OP(grouped_bias) {
    enum { MOST_STRIDES = 64 };
    const int64_t *shape = call->in_shape[GROUPED_BIAS_X];
    int64_t experts = call->in_shape[GROUPED_BIAS_BIAS][0], columns = shape[1], groups = divide_up(shape[0], experts * AHEAD * LINES);
    GroupedBiasArguments arguments = {.x = call->in[GROUPED_BIAS_X],
        .bias = grouped_bias_is_added(call) ? call->in[GROUPED_BIAS_BIAS] : NULL,
        .offset = call->in[GROUPED_BIAS_OFFSET],
        .y = call->out[GROUPED_BIAS_Y],
        .slots = shape[0],
        .experts = (int32_t)experts,
        .columns = (int32_t)columns,
        .strides = (int32_t)int_min(groups, MOST_STRIDES)};
    bool wide = columns % UNIT == 0;
    LaunchShape launch = {.x = divide_up(columns, LANES * (wide ? UNIT : 1)), .y = experts + 1, .z = arguments.strides, .threads = THREADS};
    launch_grouped_bias(call->device, wide, launch, &arguments);
}

GPU_OP(grouped_bias_grad) {
    const int64_t *shape = call->out_shape[GROUPED_BIAS_GRAD_D_BIAS];
    GroupedBiasGradArguments arguments = {.d_y = call->in[GROUPED_BIAS_GRAD_D_Y],
        .offset = call->in[GROUPED_BIAS_GRAD_OFFSET],
        .d_bias = call->out[GROUPED_BIAS_GRAD_D_BIAS],
        .columns = (int32_t)shape[1]};
    bool wide = shape[1] % UNIT == 0;
    LaunchShape launch = {.x = divide_up(shape[1], LANES * (wide ? UNIT : 1)), .y = shape[0], .threads = THREADS};
    launch_grouped_bias_grad(call->device, wide, launch, &arguments);
}

#endif

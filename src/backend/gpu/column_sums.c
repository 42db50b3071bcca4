/* Column sums of partial sums, the last step of gradients of several operations, and zeroing of
 * unused dispatch slots. Called by the launchers of other kernel files (kernel_launch.h); owns no
 * memory. */
#include "backend/gpu/gpu.h"

enum {
    REDUCE_SUMS = 6, /* most targets of one launch */
    THREADS = 256,
    SUM_COLUMNS = 32,                  /* per block: 128 bytes of each partial sum */
    SUM_PARTS = THREADS / SUM_COLUMNS, /* threads that share a column */
    SUM_LOADS = 8,                     /* loads in flight per thread */
};

typedef struct AddPartialsArguments {
    float GLOBAL *target[REDUCE_SUMS]; /* by block_y; NULL: not wanted */
    bf16 GLOBAL *bf16_target;          /* the only target, instead of `target`; or NULL */
    const float GLOBAL *partials;
    int64_t blocks, columns, stride; /* stride: floats between the partial sums of consecutive blocks */
} AddPartialsArguments;
typedef struct ZeroUnusedArguments {
    bf16 GLOBAL *slots;
    const int32_t GLOBAL *used;
    int64_t count, columns, stride;
} ZeroUnusedArguments;

#ifdef GPU_DEVICE

/* Returns the target of this block, by block_y. */
INLINE float GLOBAL *block_target(const AddPartialsArguments *a) {
    float GLOBAL *target = a->target[0];
    UNROLL for (int i = 1; i < REDUCE_SUMS; i++) target = block_y() == i ? a->target[i] : target;
    return target;
}

INLINE int64_t sum_column(void) { return (int64_t)block_x() * SUM_COLUMNS + thread_id() % SUM_COLUMNS; }

/* Adds this thread's partials of a column, starting at `block`: sixteen loads in flight, then four
 * (loads after the end repeat an earlier one and do not count), then a single one. */
INLINE float add_partial_rows(const AddPartialsArguments *a, const float GLOBAL *partials, int64_t block) {
    enum { MANY = 2 * SUM_LOADS, FEW = SUM_LOADS / 2 };
    float sum = 0;
    for (; block + (MANY - 1) * SUM_PARTS < a->blocks; block += MANY * SUM_PARTS) {
        float values[MANY];
        UNROLL for (int i = 0; i < MANY; i++) values[i] = partials[(block + i * SUM_PARTS) * a->stride];
        UNROLL for (int i = 0; i < MANY; i++) sum += values[i];
    }
    for (; block + SUM_PARTS < a->blocks; block += FEW * SUM_PARTS) {
        float values[FEW];
        UNROLL for (int i = 0; i < FEW; i++) {
            int64_t own = block + i * SUM_PARTS;
            values[i] = partials[(own < a->blocks ? own : block) * a->stride];
        }
        UNROLL for (int i = 0; i < FEW; i++) sum += block + i * SUM_PARTS < a->blocks ? values[i] : 0;
    }
    if (block < a->blocks) sum += partials[block * a->stride];
    return sum;
}

/* Returns the sum of this thread's column over all blocks, in part 0. Part p adds partials p, p +
 * SUM_PARTS, ...; then the parts are added in order. All threads of the block call it; `partials`
 * points to the first block's. */
INLINE float add_column(const AddPartialsArguments *a, const float GLOBAL *partials) {
    static SHARED float sums[SUM_PARTS][SUM_COLUMNS];
    int part = thread_id() / SUM_COLUMNS, lane = thread_id() % SUM_COLUMNS;
    int64_t column = sum_column();
    float sum = 0;
    partials += block_y() * a->columns + column;
    if (column < a->columns) sum = add_partial_rows(a, partials, part);
    sums[part][lane] = sum;
    barrier();
    if (part == 0)
        for (int i = 1; i < SUM_PARTS; i++) sum += sums[i][lane];
    return sum;
}

INLINE bool adds_column(const AddPartialsArguments *a) { return thread_id() < SUM_COLUMNS && sum_column() < a->columns; }

KERNEL(add_partials, AddPartialsArguments) {
    float GLOBAL *target = block_target(&a);
    if (!target && !a.bf16_target) return;
    float sum = add_column(&a, a.partials);
    int64_t column = sum_column();
    if (!adds_column(&a)) return;
    if (a.bf16_target) a.bf16_target[column] = to_bf16(to_float(a.bf16_target[column]) + sum);
    else target[column] += sum;
}

/* Overwrites the targets [samples, columns] with the sums of each sample's blocks, by block_z. */
KERNEL(put_partials, AddPartialsArguments) {
    float GLOBAL *target = block_target(&a);
    if (!target) return;
    float sum = add_column(&a, a.partials + block_z() * a.blocks * a.stride);
    if (adds_column(&a)) target[block_z() * a.columns + sum_column()] = sum;
}

/* `stride` is the number of threads in the grid. */
KERNEL(zero_unused, ZeroUnusedArguments) {
    int64_t first = (int64_t)block_x() * THREADS + thread_id();
    for (int64_t i = *a.used * a.columns + first; i < a.count * a.columns; i += a.stride) a.slots[i] = 0;
}

/* zero_unused in units of 8 columns. */
KERNEL(zero_unused_8, ZeroUnusedArguments) {
    u32x4 GLOBAL *slots = (u32x4 GLOBAL *)a.slots;
    int64_t units = a.columns / 8, first = (int64_t)block_x() * THREADS + thread_id();
    for (int64_t i = *a.used * units + first; i < a.count * units; i += a.stride) slots[i] = (u32x4)0;
}

#else

#include "backend/gpu/kernel_launch.h"

LAUNCHER(add_partials, AddPartialsArguments)
LAUNCHER(put_partials, AddPartialsArguments)
LAUNCHER(zero_unused, ZeroUnusedArguments)
LAUNCHER(zero_unused_8, ZeroUnusedArguments)

static AddPartialsArguments partial_sums(float *const *targets, int count, const float *partials, int64_t blocks, int64_t columns) {
    AddPartialsArguments arguments = {.partials = partials, .blocks = blocks, .columns = columns, .stride = count * columns};
    assert(count <= REDUCE_SUMS);
    for (int i = 0; i < count; i++) arguments.target[i] = targets[i];
    return arguments;
}

void gpu_add_partial_sums(Device *device, float *const *targets, int count, const float *partials, int64_t blocks, int64_t columns) {
    AddPartialsArguments arguments = partial_sums(targets, count, partials, blocks, columns);
    launch_add_partials(device, (LaunchShape){.x = divide_up(columns, SUM_COLUMNS), .y = count, .threads = THREADS}, &arguments);
}

void gpu_put_partial_sums(
    Device *device, float *const *targets, int count, const float *partials, int64_t samples, int64_t blocks, int64_t columns) {
    AddPartialsArguments arguments = partial_sums(targets, count, partials, blocks, columns);
    LaunchShape shape = {.x = divide_up(columns, SUM_COLUMNS), .y = count, .z = samples, .threads = THREADS};
    launch_put_partials(device, shape, &arguments);
}

void gpu_add_partials_to_gradient(const OpCall *call, void *target, const float *partials, int64_t blocks, int64_t columns) {
    AddPartialsArguments arguments = {.partials = partials, .blocks = blocks, .columns = columns, .stride = columns};
    if (call->compute_gradients) arguments.bf16_target = target;
    else arguments.target[0] = target;
    launch_add_partials(call->device, (LaunchShape){.x = divide_up(columns, SUM_COLUMNS), .y = 1, .threads = THREADS}, &arguments);
}

void gpu_add_partials(Device *device, float *target, const float *partials, int64_t blocks, int64_t columns) {
    gpu_add_partial_sums(device, &target, 1, partials, blocks, columns);
}

void gpu_zero_unused(Device *device, bf16 *slots, const int32_t *offset, int64_t experts, int64_t count, int64_t columns) {
    int64_t unit = columns % 8 == 0 ? 8 : 1, blocks = divide_up(count * columns, unit * THREADS), most = 4 * device->info.processors;
    LaunchShape shape = {.x = blocks < most ? blocks : most, .threads = THREADS};
    ZeroUnusedArguments arguments = {
        .slots = slots, .used = offset + experts, .count = count, .columns = columns, .stride = shape.x * THREADS};
    if (unit == 8) launch_zero_unused_8(device, shape, &arguments);
    else launch_zero_unused(device, shape, &arguments);
}

#endif

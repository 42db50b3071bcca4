/* lora, lora_groups and adapted_linear on a GPU, with GEMMs: one per adapter, or one batch if they have the same
 * shape, and the frozen layer's GEMM; or both in one if a kernel supports it (gpu_gemm_two). With few rows,
 * lora_groups uses the kernels of groups_gpu.c. No kernels here, no scratch. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"
#include "ops/lora/groups_gpu.h"
#include "ops/lora/lora.h"

/* Adapters first .. first + count - 1, whose GEMMs have the same shape: each has `columns` columns,
 * consecutive from `column` on. `row` is the first of their rows of b. */
typedef struct AdapterRun { int64_t first, count, column, columns, row; } AdapterRun;

/* Advances to the next run, from {0} to the first one; returns false after the last. */
static bool next_run(const LoraAttributes *attributes, AdapterRun *run) {
    const LoraColumns *columns = &attributes->columns[run->first + run->count];
    run->row += run->count * run->columns;
    run->first += run->count;
    if (run->first == attributes->adapters) return false;
    run->column = columns->first, run->columns = columns->count, run->count = 1;
    while (run->first + run->count < attributes->adapters && columns[run->count].count == run->columns &&
           columns[run->count].first == run->column + run->count * run->columns)
        run->count++;
    return true;
}

/* Runs `count` GEMMs of the same shape; A, B and C are stride_a, stride_b and stride_c elements
 * apart. */
static void run_alike(Device *device, const Gemm *gemm, int64_t count, int64_t stride_a, int64_t stride_b, int64_t stride_c) {
    if (count == 1) {
        device_gemm(device, gemm);
        return;
    }
    GemmBatch batch = {.first = *gemm,
        .count = count,
        .stride_a = stride_a,
        .stride_b = stride_b,
        .stride_c = stride_c,
        .alpha = 1,
        .beta = gemm->accumulate,
        .d = gemm->accumulate ? gemm->c : NULL};
    batch.first.accumulate = false;
    gpu_gemm_batch(device, &batch);
}

/* y [rows, out] += u_i b_i^T, with u [rows, adapters * rank]. */
static void add_adapters(
    Device *device, const LoraAttributes *attributes, bf16 *y, const bf16 *u, const bf16 *b, int64_t rows, int64_t out, int64_t rank) {
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm gemm = linear_gemm(shape, GEMM_BF16, u + i * rank, b + row * rank, y + column);
        gemm.lda = attributes->adapters * rank;
        gemm.ldc = out;
        gemm.accumulate = true;
        device_gemm(device, &gemm);
    }
}

GPU_OP(lora) {
    const bf16 *y = call->in[LORA_Y];
    bf16 *adapted = call->out[LORA_ADAPTED];
    int64_t rows = call->in_shape[LORA_Y][0], out = call->in_shape[LORA_Y][1];
    if (adapted != y) device_copy(call->device, adapted, y, rows * out * (int64_t)sizeof(bf16));
    add_adapters(call->device, call->attributes, adapted, call->in[LORA_U], call->in[LORA_B], rows, out, call->in_shape[LORA_B][1]);
}

/* One launch per adapter computes the GEMMs of all groups, and reads their offsets on the device. */
static void add_groups(const OpCall *call) {
    const LoraAttributes *attributes = call->attributes;
    const bf16 *y = call->in[LORA_GROUPS_Y], *u = call->in[LORA_GROUPS_U], *b = call->in[LORA_GROUPS_B];
    int64_t rows = call->in_shape[LORA_GROUPS_Y][0], out = call->in_shape[LORA_GROUPS_Y][1];
    int64_t width = call->in_shape[LORA_GROUPS_U][1], rank = call->in_shape[LORA_GROUPS_B][1];
    int64_t groups = call->in_shape[LORA_GROUPS_OFFSET][0] - 1;
    bf16 *adapted = call->out[LORA_GROUPS_ADAPTED];
    if (adapted != y) device_copy(call->device, adapted, y, rows * out * (int64_t)sizeof(bf16));
    for (int64_t i = 0; i < attributes->adapters; b += groups * attributes->columns[i++].count * rank) {
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        GemmGrouped grouped = {
            .first = linear_gemm(shape, GEMM_BF16, u + i * rank, b, adapted + attributes->columns[i].first),
            .offset = call->in[LORA_GROUPS_OFFSET],
            .experts = groups,
        };
        grouped.first.lda = width;
        grouped.first.ldc = out;
        grouped.first.accumulate = true;
        gpu_gemm_grouped(call->device, &grouped);
    }
}

GPU_OP(lora_groups, .absorbs = lora_groups_absorb_down) { (call->absorbs ? lora_groups_launch_rows : add_groups)(call); }

GPU_OP(lora_grad_input) {
    const LoraAttributes *attributes = call->attributes;
    const bf16 *d_adapted = call->in[LORA_GRAD_INPUT_D_ADAPTED], *b = call->in[LORA_GRAD_INPUT_B];
    bf16 *d_u = call->out[LORA_GRAD_INPUT_D_U];
    int64_t rows = call->in_shape[LORA_GRAD_INPUT_D_ADAPTED][0], out = call->in_shape[LORA_GRAD_INPUT_D_ADAPTED][1];
    int64_t rank = call->in_shape[LORA_GRAD_INPUT_B][1], width = call->out_shape[LORA_GRAD_INPUT_D_U][1];
    for (AdapterRun run = {0}; next_run(attributes, &run);) {
        LinearShape shape = {.rows = rows, .in = rank, .out = run.columns};
        Gemm gemm = linear_grad_input_gemm(shape, GEMM_BF16, d_adapted + run.column, b + run.row * rank, d_u + run.first * rank);
        gemm.lda = out;
        gemm.ldc = width;
        run_alike(call->device, &gemm, run.count, run.columns, run.columns * rank, rank);
    }
}

GPU_OP(lora_grad_weight) {
    const LoraAttributes *attributes = call->attributes;
    const bf16 *d_adapted = call->in[LORA_GRAD_WEIGHT_D_ADAPTED], *u = call->in[LORA_GRAD_WEIGHT_U];
    char *d_b = call->out[LORA_GRAD_WEIGHT_D_B];
    int64_t rows = call->in_shape[LORA_GRAD_WEIGHT_D_ADAPTED][0], out = call->in_shape[LORA_GRAD_WEIGHT_D_ADAPTED][1];
    int64_t width = call->in_shape[LORA_GRAD_WEIGHT_U][1], rank = call->out_shape[LORA_GRAD_WEIGHT_D_B][1];
    int64_t row_bytes = rank * (int64_t)(call->compute_gradients ? sizeof(bf16) : sizeof(float));
    for (AdapterRun run = {0}; next_run(attributes, &run);) {
        LinearShape shape = {.rows = rows, .in = rank, .out = run.columns};
        Gemm gemm = linear_grad_weight_gemm(
            shape, GEMM_BF16, d_adapted + run.column, u + run.first * rank, d_b + run.row * row_bytes, call->overwrite);
        gemm.output = gpu_gradient_type(call);
        gemm.lda = out;
        gemm.ldb = width;
        run_alike(call->device, &gemm, run.count, run.columns, rank, run.columns * rank);
    }
}

_Static_assert((int)LORA_MAX_ADAPTERS <= GEMM_MOST_PARTS, "an adapter is a part");

GPU_OP(adapted_linear) {
    const AdaptedLinearAttributes *attributes = call->attributes;
    const LoraAttributes *lora = &attributes->lora;
    const int64_t *x_shape = call->in_shape[ADAPTED_LINEAR_X];
    const bf16 *u = call->in[ADAPTED_LINEAR_U], *b = call->in[ADAPTED_LINEAR_B];
    LinearShape shape = {.rows = x_shape[0], .in = x_shape[1], .out = call->in_shape[ADAPTED_LINEAR_W][0]};
    int64_t rank = call->in_shape[ADAPTED_LINEAR_B][1];
    Gemm gemm = linear_gemm(shape, GEMM_BF16, call->in[ADAPTED_LINEAR_X], call->in[ADAPTED_LINEAR_W], call->out[ADAPTED_LINEAR_Y]);
    gemm.b_lasts = attributes->lasts;
    gemm.bias = adapted_linear_has_bias(call) ? call->in[ADAPTED_LINEAR_BIAS] : NULL;
    GemmSecond second = {.a = u, .b = b, .lda = lora->adapters * rank, .ldb = rank, .k = rank, .count = lora->adapters};
    for (int i = 0; i < lora->adapters; i++) second.parts[i] = (GemmPart){lora->columns[i].first, lora->columns[i].count};
    if (gpu_gemm_two(call->device, &gemm, &second)) return;
    device_gemm(call->device, &gemm);
    add_adapters(call->device, lora, call->out[ADAPTED_LINEAR_Y], u, b, shape.rows, shape.out, rank);
}

GPU_OP(adapted_linear_grad_input) {
    const int64_t *w_shape = call->in_shape[ADAPTED_LINEAR_GRAD_INPUT_W], *u_shape = call->in_shape[ADAPTED_LINEAR_GRAD_INPUT_D_U];
    const bf16 *d_u = call->in[ADAPTED_LINEAR_GRAD_INPUT_D_U], *a = call->in[ADAPTED_LINEAR_GRAD_INPUT_A];
    LinearShape whole = {.rows = u_shape[0], .in = w_shape[1], .out = w_shape[0]}, narrow = {u_shape[0], w_shape[1], u_shape[1]};
    bf16 *d_x = call->out[ADAPTED_LINEAR_GRAD_INPUT_D_X];
    Gemm gemm =
        linear_grad_input_gemm(whole, GEMM_BF16, call->in[ADAPTED_LINEAR_GRAD_INPUT_D_Y], call->in[ADAPTED_LINEAR_GRAD_INPUT_W], d_x);
    GemmSecond second = {.a = d_u, .b = a, .lda = narrow.out, .ldb = narrow.in, .k = narrow.out, .count = 1, .parts = {{0, narrow.in}}};
    if (gpu_gemm_two(call->device, &gemm, &second)) return;
    Gemm first = linear_grad_input_gemm(narrow, GEMM_BF16, d_u, a, d_x);
    device_gemm(call->device, &first);
    gemm.accumulate = true;
    device_gemm(call->device, &gemm);
}

#endif

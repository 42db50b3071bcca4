/* residual_norm of one row whose block output is a sum over ranks, as in generation. One block
 * exchanges the ranks' terms (backend/gpu/words.h), adds them in rank order, and computes residual
 * add and norm. This saves two kernels per layer, each of which takes some microseconds for a few
 * KiB. The bits equal those of the separate kernels. Called by residual_gpu.c; no scratch. */
#include "backend/gpu/words.h"
#include "ops/norm/gpu_rows_kernels.h"

/* norm.block is this rank's term. */
typedef struct SumNormArguments {
    NormArguments norm;
    Windows windows;
} SumNormArguments;

#ifdef GPU_DEVICE

/* Returns the first of the two words of the thread's unit i; if the unit is outside the row, that
 * of the row's last unit. */
INLINE int word_of(Team t, int i) { return (inside(t, i) ? unit_begin(t, i) : t.columns - 4) / 2; }

/* Receives the thread's words of another rank, polling all of them at once; zeros after the group
 * has failed. */
INLINE void receive_row(const Windows *windows, GLOBAL uint64_t *own, int rank, Team t, const uint32_t number[NORM_UNITS], Bf16Row to) {
    for (int looks = 1;; looks++) {
        uint64_t labeled[2 * NORM_UNITS];
        bool all = true;
        UNROLL for (int i = 0; i < 2 * t.units; i++) labeled[i] = look(windows, own, rank, word_of(t, i / 2) + i % 2, number[i / 2]);
        UNROLL for (int i = 0; i < 2 * t.units; i++) all = all && labeled[i] >> 32 == number[i / 2];
        UNROLL for (int i = 0; i < t.units; i++) to[i] = (u32x2){(uint32_t)labeled[2 * i], (uint32_t)labeled[2 * i + 1]};
        if (all) return;
        if (!have_failed(windows, looks)) continue;
        UNROLL for (int i = 0; i < t.units; i++) to[i] = (u32x2)0;
        return;
    }
}

/* Loads this rank's term and the numbers of its words' groups, and sends the term first of all. */
INLINE void send_row(const SumNormArguments *a, Team t, GLOBAL uint64_t *own, Bf16Row term, uint32_t number[NORM_UNITS]) {
    const Windows *windows = &a->windows;
    UNROLL for (int i = 0; i < t.units; i++) term[i] = *(const u32x2 GLOBAL *)(a->norm.block + 2 * word_of(t, i));
    UNROLL for (int i = 0; i < t.units; i++) number[i] = number_of_group(own, word_of(t, i) / WORDS);
    FOR_OTHERS(windows, r)
    UNROLL for (int i = 0; i < 2 * t.units; i++)
        send_to(windows, windows->window[r], word_of(t, i / 2) + i % 2, term[i / 2][i % 2], number[i / 2]);
}

/* block = the sum over ranks of their terms, added in rank order. */
INLINE void add_peer_rows(
    const Windows *windows, Team t, GLOBAL uint64_t *own, const Bf16Row term, const uint32_t number[NORM_UNITS], Bf16Row block) {
    Row sum;
    clear_row(t, sum);
    for (int r = 0; r < windows->size; r++) {
        Bf16Row other;
        if (r != windows->rank) receive_row(windows, own, r, t, number, other);
        UNROLL for (int i = 0; i < t.units; i++) sum[i] += to_float4(r == windows->rank ? term[i] : other[i]);
    }
    UNROLL for (int i = 0; i < t.units; i++) block[i] = (u32x2){to_bf16_pair(sum[i].x, sum[i].y), to_bf16_pair(sum[i].z, sum[i].w)};
    barrier(); /* all threads have the groups' numbers */
    for (int group = t.lane; group * WORDS * 2 < t.columns; group += t.threads) count_group(own, group, number_of_group(own, group));
}

/* Processes the row in a block of one team. Parameters are read before the preceding kernel has
 * made this rank's term. */
INLINE void sum_norm_row(const SumNormArguments *arguments, bool layer, ResidualAdd add, int threads, int units) {
    const NormArguments *a = &arguments->norm;
    Team t = make_team(threads, units, a->columns);
    GLOBAL uint64_t *own = own_window(&arguments->windows);
    uint32_t number[NORM_UNITS];
    Row gain, bias, affine[AFFINE_VECTORS], x;
    Bf16Row term, block;
    clear_row(t, bias);
    load_row_wide(t, gain, a->gain);
    if (layer && a->bias) load_row_wide(t, bias, a->bias);
    if (add == RESIDUAL_AFFINE) UNROLL for (int p = 0; p < AFFINE_VECTORS; p++) load_row_wide(t, affine[p], a->affine[p]);
    await_kernel_ahead();
    send_row(arguments, t, own, term, number);
    load_row_wide(t, x, a->stream);
    add_peer_rows(&arguments->windows, t, own, term, number, block);
    FOR_UNITS(t) {
        f32x4 at_column[AFFINE_VECTORS];
        if (add == RESIDUAL_AFFINE) UNROLL for (int p = 0; p < AFFINE_VECTORS; p++) at_column[p] = affine[p][i];
        x[i] = add_residual(add, to_float4(block[i]), x[i], at_column);
        store_wide_unit(t, i, a->residual, x[i]);
    }
    Statistics s = row_statistics(t, x, layer, a->epsilon);
    if (t.lane == 0) store_statistics(a->statistics, 0, s, layer);
    FOR_UNITS(t) store_bf16_unit(t, i, a->normed, normalize(x[i], s, gain[i], bias[i]));
}

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(rms_##width, SumNormArguments) { sum_norm_row(&a, false, RESIDUAL_SUM, threads, units); }                                          \
    KERNEL(layer_##width, SumNormArguments) { sum_norm_row(&a, true, RESIDUAL_SUM, threads, units); }                                         \
    KERNEL(affine_##width, SumNormArguments) { sum_norm_row(&a, false, RESIDUAL_AFFINE, threads, units); }
NORM_WIDTHS(KERNELS)

#else

#include "ops/collective/collective.h"
#include "ops/norm/norm.h"

LAUNCHERS(rms, SumNormArguments, rms_512, rms_1024, rms_2048, rms_4096, rms_8192)
LAUNCHERS(layer, SumNormArguments, layer_512, layer_1024, layer_2048, layer_4096, layer_8192)
LAUNCHERS(affine, SumNormArguments, affine_512, affine_1024, affine_2048, affine_4096, affine_8192)

int norm_absorbs_sum(const Backend *backend, const Graph *graph, int index) {
    (void)backend;
    const Node *node = &graph->nodes[index], *sum = node - 1;
    const NormAttributes *attributes = node->attributes;
    TensorId stream = node->in[RESIDUAL_NORM_STREAM];
    if (index == 0 || sum->op != OP_all_reduce || sum->out[COLLECTIVE_Y] != node->in[RESIDUAL_NORM_BLOCK]) return 0;
    bool has_kernel = norm_width(graph_columns(graph, stream)) != NORM_ANY,
         is_odd = attributes->kind == NORM_LAYER && node->in[RESIDUAL_NORM_AFFINE];
    return has_kernel && !is_odd && graph_rows(graph, stream) == 1 && op_is_direct(graph, sum);
}

void norm_launch_sum(const OpCall *call, int width, const NormArguments *norm) {
    const OpCall *sum = call - 1;
    const CollectiveAttributes *attributes = sum->attributes;
    SumNormArguments arguments = {.norm = *norm, .windows = windows_of(comm_windows(mesh_group(sum->mesh, attributes->axes)))};
    LaunchShape shape = {.x = 1, .threads = width == 0 ? device_info(call->device)->wave : NORM_THREADS};
    arguments.norm.block = sum->in[COLLECTIVE_X];
    (norm->add == RESIDUAL_AFFINE ? launch_affine : norm->layer ? launch_layer : launch_rms)(call->device, width, shape, &arguments);
}

#endif

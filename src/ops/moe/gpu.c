/* moe_sort, moe_permute and moe_combine on a GPU. The stable counting sort takes two kernels. First
 * each block counts its items (a row's choices) per expert. Then each block computes from all
 * counts where its items begin and ranks them, a wavefront's items in order, by comparing lanes;
 * slots do not depend on the order of wavefronts. The copies are bound by memory bandwidth: a
 * wavefront takes a row, 16 bytes per lane with several loads in flight, and a row's sum runs over
 * its k slots in order. */
#include "backend/gpu/amax.h"
#include "backend/gpu/vector.h"

enum {
    THREADS = 256,
    SORT_ROUNDS = 8,                    /* items per thread */
    SORT_ITEMS = THREADS * SORT_ROUNDS, /* items per block */
    SORT_EXPERTS = 512,                 /* most experts */
    SORT_AHEAD = 8,                     /* loads in flight of a thread that sums counts */
    UNIT = 8,                           /* columns of a 16-byte access */
    UNITS = 4,                          /* accesses in flight per lane */
};

/* counts [blocks, experts]: items of each block of SORT_ITEMS. */
typedef struct MoeSortArguments {
    const int32_t GLOBAL *index;
    int32_t GLOBAL *slot, *offset, *counts;
    int32_t items, blocks, experts;
} MoeSortArguments;

typedef struct MoePermuteArguments {
    const bf16 GLOBAL *rows;
    const int32_t GLOBAL *slot;
    bf16 GLOBAL *slots;
    uint32_t GLOBAL *amax; /* of slots; NULL: not wanted. So for d_y_slots below, if columns % UNIT == 0 */
    int32_t count, k;
    int64_t columns;
} MoePermuteArguments;
/* gate NULL: all ones. */
typedef struct MoeCombineArguments {
    const bf16 GLOBAL *slots;
    const float GLOBAL *gate;
    const int32_t GLOBAL *slot;
    bf16 GLOBAL *rows;
    int32_t count, k;
    int64_t columns;
} MoeCombineArguments;
typedef struct MoeCombineGradArguments {
    const bf16 GLOBAL *d_y, *y_slots;
    const float GLOBAL *gate;
    const int32_t GLOBAL *slot;
    bf16 GLOBAL *d_y_slots;
    float GLOBAL *d_gate;
    uint32_t GLOBAL *amax;
    int32_t count, k;
    int64_t columns;
} MoeCombineGradArguments;

#ifdef GPU_DEVICE

enum { WAVES = THREADS / WAVE };

/* -- Sort ---------------------------------------------------------------------------------------------------------- */

INLINE int32_t add_shared(LOCAL int32_t *count, int32_t value) { return __atomic_fetch_add(count, value, __ATOMIC_RELAXED); }

/* Returns a mask with bit i set if `yes` is true in lane i. */
INLINE uint64_t ballot(bool yes) {
#if defined __AMDGCN__
    return __builtin_amdgcn_ballot_w64(yes);
#else
    return __nvvm_vote_ballot_sync(~0u, yes);
#endif
}

/* Returns the lanes that hold the same number of `bits` bits. */
INLINE uint64_t peers_of(int32_t number, int bits) {
    uint64_t peers = ballot(true);
    for (int bit = 0; bit < bits; bit++) {
        bool set = number >> bit & 1;
        uint64_t with = ballot(set);
        peers &= set ? with : ~with;
    }
    return peers;
}

KERNEL(moe_count, MoeSortArguments) {
    static SHARED int32_t count[SORT_EXPERTS];
    for (int e = thread_id(); e < a.experts; e += THREADS) count[e] = 0;
    barrier();
    int32_t chosen[SORT_ROUNDS];
    UNROLL for (int round = 0; round < SORT_ROUNDS; round++) {
        int32_t item = block_x() * SORT_ITEMS + round * THREADS + thread_id();
        chosen[round] = item < a.items ? a.index[item] : a.experts;
    }
    UNROLL for (int round = 0; round < SORT_ROUNDS; round++) if (chosen[round] < a.experts) add_shared(&count[chosen[round]], 1);
    barrier();
    for (int e = thread_id(); e < a.experts; e += THREADS) a.counts[(int64_t)block_x() * a.experts + e] = count[e];
}

/* Items of an expert in all blocks, and in the blocks before this one. */
typedef struct Load { int32_t all, before; } Load;

INLINE Load sum_blocks(const int32_t GLOBAL *counts, int32_t blocks, int32_t experts) {
    Load load = {0, 0};
    for (int32_t first = 0; first < blocks; first += SORT_AHEAD) {
        int32_t values[SORT_AHEAD];
        UNROLL for (int i = 0; i < SORT_AHEAD; i++) values[i] = first + i < blocks ? counts[(int64_t)(first + i) * experts] : 0;
        UNROLL for (int i = 0; i < SORT_AHEAD; i++) {
            load.all += values[i];
            load.before += first + i < block_x() ? values[i] : 0;
        }
    }
    return load;
}

/* Replaces sums[e] by the sum of sums[0 .. e]; all threads call it after writing their own
 * entries. */
INLINE void inclusive_scan(LOCAL int32_t *sums, int experts) {
    enum { OWN = SORT_EXPERTS / THREADS };
    int32_t add[OWN];
    for (int step = 1; step < experts; step *= 2) {
        barrier();
        UNROLL for (int i = 0; i < OWN; i++) {
            int e = thread_id() + i * THREADS;
            add[i] = e >= step && e < experts ? sums[e - step] : 0;
        }
        barrier();
        UNROLL for (int i = 0; i < OWN; i++) if (thread_id() + i * THREADS < experts) sums[thread_id() + i * THREADS] += add[i];
    }
    barrier();
}

/* Ranks the wavefront's items of each round; next[e] is the slot of its next item of expert e. */
INLINE void place_wave(LOCAL int32_t *next, const int32_t *chosen, int32_t GLOBAL *slot, int32_t left, int32_t experts) {
    int bits = 32 - __builtin_clz(experts);
    uint64_t below = ((uint64_t)1 << lane_id()) - 1;
    UNROLL for (int round = 0; round < SORT_ROUNDS; round++) {
        uint64_t peers = peers_of(chosen[round], bits);
        int leader = __builtin_ctzll(peers);
        int32_t begin = 0, item = round * WAVE + lane_id();
        if (lane_id() == leader && chosen[round] < experts) begin = add_shared(&next[chosen[round]], __builtin_popcountll(peers));
        begin = (int32_t)shuffle(begin, leader);
        if (item < left) slot[item] = chosen[round] < experts ? begin + __builtin_popcountll(peers & below) : -1;
    }
}

KERNEL(moe_place, MoeSortArguments) {
    static SHARED int32_t sums[SORT_EXPERTS], before[SORT_EXPERTS], next[WAVES][SORT_EXPERTS];
    int32_t first = block_x() * SORT_ITEMS + wave_id() * WAVE * SORT_ROUNDS, chosen[SORT_ROUNDS];
    UNROLL for (int round = 0; round < SORT_ROUNDS; round++) {
        int32_t item = first + round * WAVE + lane_id();
        chosen[round] = item < a.items ? a.index[item] : a.experts;
    }
    for (int e = thread_id(); e < a.experts; e += THREADS) {
        Load load = sum_blocks(a.counts + e, a.blocks, a.experts);
        sums[e] = load.all;
        before[e] = load.before;
        UNROLL for (int wave = 0; wave < WAVES; wave++) next[wave][e] = 0;
    }
    inclusive_scan(sums, a.experts);
    UNROLL for (int round = 0; round < SORT_ROUNDS; round++) if (chosen[round] < a.experts) add_shared(&next[wave_id()][chosen[round]], 1);
    barrier();
    for (int e = thread_id(); e < a.experts; e += THREADS) {
        int32_t begin = e ? sums[e - 1] : 0, at = begin + before[e];
        UNROLL for (int wave = 0; wave < WAVES; wave++) {
            int32_t count = next[wave][e];
            next[wave][e] = at;
            at += count;
        }
        if (block_x() > 0) continue;
        a.offset[e] = begin;
        if (e == a.experts - 1) a.offset[a.experts] = sums[e];
    }
    barrier();
    place_wave(next[wave_id()], chosen, a.slot + first, a.items - first, a.experts);
}

/* -- Copies -------------------------------------------------------------------------------------------------------- */

/* Returns the row of this wavefront; the last block has wavefronts after the last row. */
INLINE int64_t own_row(void) { return (int64_t)block_x() * WAVES + wave_id(); }

/* Loops over the UNITS accesses of a lane: `at` is the first column of each, starting at `base`,
 * UNIT * WAVE apart. */
#define FOR_UNITS(at, base) UNROLL for (int64_t unit = 0, at = base; unit < UNITS; unit++, at += UNIT * WAVE)

INLINE f32x8 unpack_float8(u32x4 x) { return join(to_float4(x.lo), to_float4(x.hi)); }

/* columns % UNIT == 0. A wavefront reads its row once and writes it to all its slots; `measures` is
 * a constant of the kernel. */
INLINE void permute_row(const MoePermuteArguments *a, const bool measures) {
    int64_t r = own_row();
    if (r >= a->count) return;
    const bf16 GLOBAL *row = a->rows + r * a->columns;
    uint32_t most = 0;
    for (int64_t base = lane_id() * UNIT; base < a->columns; base += UNITS * UNIT * WAVE) {
        u32x4 values[UNITS];
        FOR_UNITS(at, base) if (at < a->columns) values[unit] = *(const u32x4 GLOBAL *)(row + at);
        if (measures)
            FOR_UNITS(at, base) UNROLL for (int i = 0; i < 4; i++) most = at < a->columns ? larger_of_pair(most, values[unit][i]) : most;
        for (int32_t j = 0; j < a->k; j++) {
            int32_t slot = a->slot[r * a->k + j];
            if (slot < 0) continue;
            bf16 GLOBAL *to = a->slots + slot * a->columns;
            FOR_UNITS(at, base) if (at < a->columns) * (u32x4 GLOBAL *)(to + at) = values[unit];
        }
    }
    if (!measures) return;
    bool chosen = false; /* by an expert; the same in all lanes, also in those that have no column */
    for (int32_t j = 0; j < a->k; j++) chosen |= a->slot[r * a->k + j] >= 0;
    if (chosen) record_amax_of_wave(a->amax, most);
}

KERNEL(moe_permute, MoePermuteArguments) { permute_row(&a, false); }
KERNEL(moe_permute_amax, MoePermuteArguments) { permute_row(&a, true); }

KERNEL(moe_permute_1, MoePermuteArguments) {
    int64_t r = own_row();
    if (r >= a.count) return;
    for (int32_t j = 0; j < a.k; j++) {
        int32_t slot = a.slot[r * a.k + j];
        for (int64_t i = lane_id(); slot >= 0 && i < a.columns; i += WAVE) a.slots[slot * a.columns + i] = a.rows[r * a.columns + i];
    }
}

KERNEL(moe_combine, MoeCombineArguments) {
    int64_t r = own_row();
    if (r >= a.count) return;
    for (int64_t base = lane_id() * UNIT; base < a.columns; base += UNITS * UNIT * WAVE) {
        f32x8 sum[UNITS];
        UNROLL for (int unit = 0; unit < UNITS; unit++) sum[unit] = (f32x8)0;
        for (int32_t j = 0; j < a.k; j++) {
            int32_t slot = a.slot[r * a.k + j];
            if (slot < 0) continue;
            const bf16 GLOBAL *from = a.slots + slot * a.columns;
            float gate = a.gate ? a.gate[r * a.k + j] : 1;
            u32x4 values[UNITS];
            FOR_UNITS(at, base) values[unit] = at < a.columns ? *(const u32x4 GLOBAL *)(from + at) : (u32x4)0;
            UNROLL for (int unit = 0; unit < UNITS; unit++) sum[unit] += gate * unpack_float8(values[unit]);
        }
        FOR_UNITS(at, base) if (at < a.columns) store8_bf16(a.rows + r * a.columns + at, sum[unit], UNIT);
    }
}

KERNEL(moe_combine_1, MoeCombineArguments) {
    int64_t r = own_row();
    if (r >= a.count) return;
    for (int64_t i = lane_id(); i < a.columns; i += WAVE) {
        float sum = 0;
        for (int32_t j = 0; j < a.k; j++) {
            int32_t slot = a.slot[r * a.k + j];
            if (slot >= 0) sum += (a.gate ? a.gate[r * a.k + j] : 1) * to_float(a.slots[slot * a.columns + i]);
        }
        a.rows[r * a.columns + i] = to_bf16(sum);
    }
}

/* d_y_slot = gate * d_y for this lane's columns; updates the amax *most unless it is NULL. Returns
 * the lane's part of <d_y, y_slot>, the gradient of the gate. */
INLINE float combine_slot_grad(
    bf16 GLOBAL *d_y_slot, const bf16 GLOBAL *d_y, const bf16 GLOBAL *y_slot, float gate, int64_t columns, uint32_t *most) {
    float dot = 0;
    for (int64_t base = lane_id() * UNIT; base < columns; base += UNITS * UNIT * WAVE) {
        u32x4 d[UNITS], y[UNITS];
        FOR_UNITS(at, base) d[unit] = at < columns ? *(const u32x4 GLOBAL *)(d_y + at) : (u32x4)0;
        FOR_UNITS(at, base) y[unit] = at < columns ? *(const u32x4 GLOBAL *)(y_slot + at) : (u32x4)0;
        FOR_UNITS(at, base) {
            f32x8 wide = unpack_float8(d[unit]), product = wide * unpack_float8(y[unit]);
            UNROLL for (int i = 0; i < UNIT; i++) dot += product[i];
            if (at < columns) store8_bf16(d_y_slot + at, gate * wide, UNIT);
            if (most) UNROLL for (int i = 0; i < UNIT; i++) *most = larger_of(*most, gate * wide[i]); /* 0 after the last column */
        }
    }
    return dot;
}

INLINE float combine_slot_grad_1(
    bf16 GLOBAL *d_y_slot, const bf16 GLOBAL *d_y, const bf16 GLOBAL *y_slot, float gate, int64_t columns, uint32_t *most) {
    float dot = 0;
    (void)most;
    for (int64_t i = lane_id(); i < columns; i += WAVE) {
        float value = to_float(d_y[i]);
        dot += value * to_float(y_slot[i]);
        d_y_slot[i] = to_bf16(gate * value);
    }
    return dot;
}

#define MOE_COMBINE_GRAD(name, slot_grad, measures) \
    KERNEL(name, MoeCombineGradArguments) { \
        int64_t r = own_row(); \
        uint32_t most = 0; \
        if (r >= a.count) return; \
        for (int64_t i = r * a.k; i < (r + 1) * a.k; i++) { \
            int64_t at = a.slot[i] * a.columns; \
            float dot = 0; \
            if (at >= 0) \
                dot = slot_grad( \
                    a.d_y_slots + at, a.d_y + r * a.columns, a.y_slots + at, a.gate[i], a.columns, (measures) ? &most : (uint32_t *)0); \
            dot = wave_sum(dot); \
            if (lane_id() == 0) a.d_gate[i] = dot; \
        } \
        if (measures) record_rounded_of_wave(a.amax, most); \
    }
MOE_COMBINE_GRAD(moe_combine_grad, combine_slot_grad, false)
MOE_COMBINE_GRAD(moe_combine_grad_amax, combine_slot_grad, true)
MOE_COMBINE_GRAD(moe_combine_grad_1, combine_slot_grad_1, false)

#else

#include "ops/moe/moe.h"

LAUNCHER(moe_count, MoeSortArguments)
LAUNCHER(moe_place, MoeSortArguments)
LAUNCHERS(moe_permute, MoePermuteArguments, moe_permute, moe_permute_1, moe_permute_amax) /* indexed by form_of */
LAUNCHERS(moe_combine, MoeCombineArguments, moe_combine, moe_combine_1)
LAUNCHERS(moe_combine_grad, MoeCombineGradArguments, moe_combine_grad, moe_combine_grad_1, moe_combine_grad_amax)

static int64_t sort_workspace(const Graph *graph, const Node *node) {
    int64_t blocks = divide_up(graph_elements(graph, node->in[MOE_SORT_INDEX]), SORT_ITEMS);
    return blocks * graph_elements(graph, node->out[MOE_SORT_OFFSET]) * (int64_t)sizeof(int32_t);
}

GPU_OP(moe_sort, sort_workspace) {
    int64_t items = call->in_shape[MOE_SORT_INDEX][0] * call->in_shape[MOE_SORT_INDEX][1], blocks = divide_up(items, SORT_ITEMS);
    int64_t experts = call->out_shape[MOE_SORT_OFFSET][0] - 1;
    assert(experts <= SORT_EXPERTS);
    MoeSortArguments arguments = {.index = call->in[MOE_SORT_INDEX],
        .slot = call->out[MOE_SORT_SLOT],
        .offset = call->out[MOE_SORT_OFFSET],
        .counts = call->workspace,
        .items = (int32_t)items,
        .blocks = (int32_t)blocks,
        .experts = (int32_t)experts};
    LaunchShape shape = {.x = blocks, .threads = THREADS};
    launch_moe_count(call->device, shape, &arguments);
    launch_moe_place(call->device, shape, &arguments);
}

/* Uses one wavefront per row. */
static LaunchShape row_shape(const OpCall *call, int64_t rows) {
    return (LaunchShape){.x = divide_up(rows, THREADS / device_info(call->device)->wave), .threads = THREADS};
}

static int permute_form(int64_t columns, const uint32_t *amax) { return columns % UNIT ? 1 : amax ? 2 : 0; }

GPU_OP(moe_permute) {
    int64_t rows = call->in_shape[MOE_PERMUTE_X][0], columns = call->in_shape[MOE_PERMUTE_X][1];
    int64_t k = call->in_shape[MOE_PERMUTE_SLOT][1], experts = call->in_shape[MOE_PERMUTE_OFFSET][0] - 1;
    bf16 *x_slots = call->out[MOE_PERMUTE_X_SLOTS];
    MoePermuteArguments arguments = {.rows = call->in[MOE_PERMUTE_X],
        .slot = call->in[MOE_PERMUTE_SLOT],
        .slots = x_slots,
        .amax = amax_to_record(call, MOE_PERMUTE_AMAX),
        .count = (int32_t)rows,
        .k = (int32_t)k,
        .columns = columns};
    launch_moe_permute(call->device, permute_form(columns, arguments.amax), row_shape(call, rows), &arguments);
    gpu_zero_unused(call->device, x_slots, call->in[MOE_PERMUTE_OFFSET], experts, rows * k, columns);
}

/* rows = sums over the slots [R, k] of input `slot`; `gate` NULL: all ones. */
static void combine_rows(const OpCall *call, const bf16 *slots, const float *gate, int slot, bf16 *rows) {
    const int64_t *slot_shape = call->in_shape[slot];
    MoeCombineArguments arguments = {.slots = slots,
        .gate = gate,
        .slot = call->in[slot],
        .rows = rows,
        .count = (int32_t)slot_shape[0],
        .k = (int32_t)slot_shape[1],
        .columns = call->in_shape[MOE_COMBINE_Y_SLOTS][1]};
    launch_moe_combine(call->device, arguments.columns % UNIT != 0, row_shape(call, arguments.count), &arguments);
}

GPU_OP(moe_unpermute) {
    static_assert((int)MOE_UNPERMUTE_X_SLOTS == (int)MOE_COMBINE_Y_SLOTS, "combine reads its columns");
    combine_rows(call, call->in[MOE_UNPERMUTE_X_SLOTS], NULL, MOE_UNPERMUTE_SLOT, call->out[MOE_UNPERMUTE_X]);
}

GPU_OP(moe_combine, .absorbs = moe_absorbs_row) {
    if (call->absorbs) {
        moe_launch_row(call);
        return;
    }
    combine_rows(call, call->in[MOE_COMBINE_Y_SLOTS], call->in[MOE_COMBINE_GATE], MOE_COMBINE_SLOT, call->out[MOE_COMBINE_Y]);
}

GPU_OP(moe_combine_grad) {
    int64_t rows = call->in_shape[MOE_COMBINE_GRAD_D_Y][0], columns = call->in_shape[MOE_COMBINE_GRAD_D_Y][1];
    int64_t k = call->in_shape[MOE_COMBINE_GRAD_SLOT][1], experts = call->in_shape[MOE_COMBINE_GRAD_OFFSET][0] - 1;
    bf16 *d_y_slots = call->out[MOE_COMBINE_GRAD_D_Y_SLOTS];
    MoeCombineGradArguments arguments = {.d_y = call->in[MOE_COMBINE_GRAD_D_Y],
        .y_slots = call->in[MOE_COMBINE_GRAD_Y_SLOTS],
        .gate = call->in[MOE_COMBINE_GRAD_GATE],
        .slot = call->in[MOE_COMBINE_GRAD_SLOT],
        .d_y_slots = d_y_slots,
        .d_gate = call->out[MOE_COMBINE_GRAD_D_GATE],
        .amax = amax_to_record(call, MOE_COMBINE_GRAD_AMAX),
        .count = (int32_t)rows,
        .k = (int32_t)k,
        .columns = columns};
    launch_moe_combine_grad(call->device, permute_form(columns, arguments.amax), row_shape(call, rows), &arguments);
    gpu_zero_unused(call->device, d_y_slots, call->in[MOE_COMBINE_GRAD_OFFSET], experts, rows * k, columns);
}

#endif

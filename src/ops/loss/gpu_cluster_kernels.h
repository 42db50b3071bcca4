/* The loss of a row and its gradient on Hopper. A cluster of blocks holds the whole row in shared
 * memory: each logit is read once and each gradient is written once. Bulk copies request a block's
 * whole slice at the start. Blocks exchange two numbers through distributed shared memory. There is
 * one cluster per row. Three blocks, mostly of different rows, share a multiprocessor, so that one
 * row is read while others are computed and written.
 *
 * Threads sum every CLUSTER_THREADS-th vector of their slice, then warps and blocks add in order:
 * bits depend only on the vocabulary. A row that one block holds needs no cluster. */
#pragma once

#include "ops/loss/gpu_rows_kernels.h"

enum {
    CLUSTER_THREADS = 512,
    CLUSTER_BLOCKS = 3,     /* blocks that share a multiprocessor */
    SLICE_VECTORS = 4752,   /* most vectors of a block, of 8 logits each: 3 x (75 KB and the blocks' other memory) fill 228 KB */
    SEGMENT_VECTORS = 1024, /* per copy: its logits are processed while later ones arrive */
    SEGMENTS = SLICE_VECTORS / SEGMENT_VECTORS + 1,
    MOST_BLOCKS = 8, /* of a cluster, on every Hopper */
};

/* Returns the vectors of a block's slice: in whole lines of 128 bytes, except for the last
 * block. */
static inline int64_t slice_vectors(int64_t vocabulary, int size) { return (vocabulary + 64 * size - 1) / (64 * size) * 8; }

#if defined GPU_DEVICE && defined __CUDA_ARCH_FEAT_SM90_ALL

#include "backend/gpu/hopper.h"

extern LOCAL u32x4 slice_vectors_shared[] __attribute__((aligned(128)));

/* For the logits read so far: their maximum, and the sum of e^(x - most). */
typedef struct SliceSum { float most, sum; } SliceSum;

/* A block's part of its row: `count` vectors from `first` on; the vocabulary may end within the
 * last one. */
typedef struct ClusterSlice {
    u32x4 GLOBAL *vectors;
    int32_t first, count, vocabulary;
} ClusterSlice;

INLINE ClusterSlice slice_of(const RowLossArguments *a, int64_t row, int rank, const int size) {
    int32_t share = (int32_t)slice_vectors(a->vocabulary, size), all = (a->vocabulary + 7) / 8, first = rank * share;
    int32_t count = all - first < share ? all - first : share;
    return (ClusterSlice){.vectors = (u32x4 GLOBAL *)(a->logits + row * a->stride) + first,
        .first = first,
        .count = count < 0 ? 0 : count,
        .vocabulary = a->vocabulary};
}

/* One thread requests the slice, with one copy per segment. */
INLINE void slice_request(const ClusterSlice *slice, SharedBarrier arrived) {
    for (int i = 0; i * SEGMENT_VECTORS < slice->count; i++) {
        int left = slice->count - i * SEGMENT_VECTORS, bytes = (left < SEGMENT_VECTORS ? left : SEGMENT_VECTORS) * (int)sizeof(u32x4);
        shared_barrier_expect(&arrived[i], bytes);
        copy_bytes(slice_vectors_shared + i * SEGMENT_VECTORS, slice->vectors + i * SEGMENT_VECTORS, bytes, &arrived[i]);
    }
}

/* Returns vector v of the slice; elements after the vocabulary's end add nothing. */
INLINE u32x4 slice_vector(const ClusterSlice *slice, int v) {
    u32x4 x = slice_vectors_shared[v];
    int left = slice->vocabulary - (slice->first + v) * 8;
    if (left >= 8) return x;
    UNROLL for (int i = 0; i < 4; i++) {
        if (2 * i + 1 >= left) x[i] = (x[i] & 0xffff) | (NO_LOGITS & 0xffff0000u);
        if (2 * i >= left) x[i] = NO_LOGITS;
    }
    return x;
}

INLINE float cluster_power(float x, float log2_most) { return exp2_or_zero(x * LOG2_E - log2_most); }

/* Returns this thread's maximum, computed as segments arrive. */
INLINE float thread_most(const ClusterSlice *slice, SharedBarrier arrived) {
    uint32_t most = FAR_BELOW_PAIR;
    for (int i = 0; i * SEGMENT_VECTORS < slice->count; i++) {
        shared_barrier_wait(&arrived[i], 0);
        UNROLL for (int k = 0; k < SEGMENT_VECTORS / CLUSTER_THREADS; k++) {
            int v = i * SEGMENT_VECTORS + k * CLUSTER_THREADS + thread_id();
            if (v >= slice->count) continue;
            u32x4 x = slice_vector(slice, v);
            most = max_of_pairs(most, max_of_pairs(max_of_pairs(x[0], x[1]), max_of_pairs(x[2], x[3])));
        }
    }
    return __builtin_fmaxf(to_float_low(most), to_float_high(most));
}

INLINE SliceSum thread_sum(const ClusterSlice *slice, SharedBarrier arrived) {
    float most = thread_most(slice, arrived), low = 0, high = 0;
    for (int v = thread_id(); v < slice->count; v += CLUSTER_THREADS) {
        u32x4 x = slice_vector(slice, v);
        UNROLL for (int i = 0; i < 4; i++) {
            low += cluster_power(to_float_low(x[i]), most * LOG2_E);
            high += cluster_power(to_float_high(x[i]), most * LOG2_E);
        }
    }
    return (SliceSum){most, low + high};
}

/* Returns the sum of `count` parts, in order. */
INLINE SliceSum join_sums(LOCAL const SliceSum *parts, const int count) {
    SliceSum all = {FAR_BELOW, 0};
    UNROLL for (int i = 0; i < count; i++) all.most = __builtin_fmaxf(all.most, parts[i].most);
    UNROLL for (int i = 0; i < count; i++) all.sum += parts[i].sum * power(parts[i].most, all.most);
    return all;
}

/* Returns the block's sum in every thread. */
INLINE SliceSum block_join(SliceSum own) {
    static SHARED SliceSum warps[CLUSTER_THREADS / WAVE];
    float most = wave_max(own.most), sum = wave_sum(own.sum * power(own.most, most));
    if (lane_id() == 0) warps[wave_id()] = (SliceSum){most, sum};
    barrier();
    return join_sums(warps, CLUSTER_THREADS / WAVE);
}

/* Returns the cluster's sum in every thread. All blocks must have started. */
INLINE SliceSum cluster_join(SliceSum block, int rank, const int size) {
    static SHARED SliceSum blocks[MOST_BLOCKS];
    if (thread_id() < size) {
        shared_store_at(&blocks[rank].most, block.most, thread_id());
        shared_store_at(&blocks[rank].sum, block.sum, thread_id());
    }
    cluster_barrier();
    return join_sums(blocks, size);
}

/* Writes (softmax - one hot of target) * scale; `target` is an index in the slice. */
INLINE void slice_gradient(
    const ClusterSlice *slice, const RowGradients *to, float log2_sum, float scale, int32_t target, float x_target, const bool coded) {
    for (int v = thread_id(); v < slice->count; v += CLUSTER_THREADS) {
        u32x4 x = slice_vector(slice, v), out;
        UNROLL for (int i = 0; i < 4; i++) out[i] =
            to_bf16_pair(cluster_power(to_float_low(x[i]), log2_sum) * scale, cluster_power(to_float_high(x[i]), log2_sum) * scale);
        put_gradients(to, v, out, coded);
    }
    if (target < 0 || target >= slice->count * 8 || thread_id() != target / 8 % CLUSTER_THREADS) return;
    /* by the thread that wrote there before, so the order is certain */
    put_gradient(to, target, (cluster_power(x_target, log2_sum) - 1) * scale, coded);
}

INLINE void slice_zeros(const ClusterSlice *slice, const RowGradients *to, const bool coded) {
    for (int v = thread_id(); v < slice->count; v += CLUSTER_THREADS) put_gradients(to, v, (u32x4)0, coded);
}

/* Processes a row in a cluster of `size` blocks; the block with the target stores the loss. */
INLINE void cluster_row_loss(const RowLossArguments *a, const int size, const bool coded) {
    static SHARED uint64_t arrived[SEGMENTS];
    int rank = block_x() % size;
    int64_t row = block_x() / size;
    ClusterSlice slice = slice_of(a, row, rank, size);
    RowGradients to = row_gradients(a, row, slice.first, coded);
    int32_t target = a->targets[row];
    if (target < 0) {
        if (a->gradient) slice_zeros(&slice, &to, coded);
        if (rank == 0 && thread_id() == 0) a->losses[row] = 0;
        return;
    }
    if (thread_id() == 0) {
        for (int i = 0; i < SEGMENTS; i++) shared_barrier_init(&arrived[i], 1);
        fence_barriers_to_cluster();
        fence_shared_to_async();
        slice_request(&slice, arrived);
    }
    if (size > 1) cluster_barrier();
    else barrier();
    SliceSum sum = block_join(thread_sum(&slice, arrived));
    if (size > 1) sum = cluster_join(sum, rank, size);
    float log2_sum = sum.most * LOG2_E + fast_log2(sum.sum), x_target = 0;
    target -= slice.first * 8;
    if (target >= 0 && target < slice.count * 8) {
        x_target = to_float(((LOCAL const bf16 *)slice_vectors_shared)[target]);
        if (thread_id() == 0) a->losses[row] = loss_of(log2_sum, x_target);
    }
    if (a->gradient) slice_gradient(&slice, &to, log2_sum, a->scale[row * a->scale_step], target, x_target, coded);
}

#define ROW_LOSS_CLUSTER(size) \
    KERNEL(row_loss_cluster_##size, RowLossArguments) { \
        CLUSTER_BOUNDS(CLUSTER_THREADS, CLUSTER_BLOCKS, size); \
        cluster_row_loss(&a, size, false); \
    } \
    KERNEL(row_fp8_cluster_##size, RowLossArguments) { \
        CLUSTER_BOUNDS(CLUSTER_THREADS, CLUSTER_BLOCKS, size); \
        cluster_row_loss(&a, size, true); \
    }

#endif

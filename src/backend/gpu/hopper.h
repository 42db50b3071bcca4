/* The kernel language for NVIDIA's Hopper (sm_90a) beyond gpu.h: matmuls of a warpgroup (wgmma),
 * copies of tensor boxes to shared memory by the tensor memory accelerator (TMA), and the mbarriers
 * that count their bytes. Used by the kernels of attention and GEMM. Owns no memory.
 *
 * A warpgroup is four warps, 128 threads. Operands are stored in shared memory in panels: rows of
 * 64 bf16 (128 bytes) with the 128-byte swizzle of 16-byte chunks within eight rows, as TMA writes
 * them; a panel is aligned to 1,024 bytes. A row of a panel holds either 64 steps along k of one
 * row of an operand, or one step along k of 64 rows ("transposed").
 *
 * Kernels with wgmma contain no division of floats or of 64 bits: in relocatable code it is a
 * function call, and ptxas then waits for every wgmma, which cost 20% to 30% of attention's speed.
 * The build refuses such a kernel (tools/embed-objects.sh).
 *
 * Sums of 64 rows x n columns are an array of n / 2 floats per thread: with warp w of the group and
 * lane = 4 g + t, x[4 j + 2 r + e] is row 16 w + 8 r + g, column 8 j + 2 t + e. Such an array, cast
 * to bf16 in pairs, is the left operand of the next matmul (PTX ISA, "Register Fragments for
 * wgmma.mma_async"). */
#pragma once

#include "backend/gpu/mma.h"

#if defined GPU_DEVICE && defined __CUDA_ARCH_FEAT_SM90_ALL

/* BLOCK_BOUNDS with clusters of `size` blocks; the launch need not set the cluster size. */
#define CLUSTER_BOUNDS(threads, blocks, size) __asm__ volatile("// bounds %0 %1 %2" : : "n"(threads), "n"(blocks), "n"(size))

enum { WARPGROUP = 128, PANEL_COLUMNS = 64, GROUP_ROWS = 64 };

/* Set the registers of each thread of a warpgroup, a multiple of 8. Raising waits until other
 * groups have lowered theirs. All warps of the group call them. */
#define registers_raise(count) __asm__ volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(count))
#define registers_lower(count) __asm__ volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(count))

/* -- Barriers ------------------------------------------------------------------------------------------------------ */

typedef LOCAL uint64_t *SharedBarrier;

INLINE uint32_t address_of(LOCAL const void *pointer) { return (uint32_t)(uintptr_t)pointer; }
INLINE void warp_barrier(void) { __nvvm_bar_warp_sync(~0u); }

INLINE void shared_barrier_init(SharedBarrier b, int arrivals) {
    __asm__ volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(address_of(b)), "r"(arrivals) : "memory");
}
/* Makes earlier writes to shared memory visible to wgmma and TMA. */
INLINE void fence_shared_to_async(void) { __asm__ volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
INLINE void shared_barrier_arrive(SharedBarrier b) {
    __asm__ volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(address_of(b)) : "memory");
}
/* Arrives, and adds `bytes` bytes of expected copies to the phase. */
INLINE void shared_barrier_expect(SharedBarrier b, int bytes) {
    __asm__ volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(address_of(b)), "r"(bytes) : "memory");
}
/* Arrives at barrier `b` of block `rank` of the cluster. */
INLINE void shared_barrier_arrive_at(SharedBarrier b, int rank) {
    __asm__ volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there]; }"
        :
        : "r"(address_of(b)), "r"(rank)
        : "memory");
}
/* Stores x at `to` in the shared memory of block `rank` of the cluster, which must have started;
 * visible there after cluster_barrier. */
INLINE void shared_store_at(LOCAL float *to, float x, int rank) {
    __asm__ volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %2; st.shared::cluster.f32 [there], %1; }"
        :
        : "r"(address_of(to)), "f"(x), "r"(rank)
        : "memory");
}
/* Waits until phase `phase` (0, 1, 2 ...) is complete. */
INLINE void shared_barrier_wait(SharedBarrier b, int phase) {
    int done;
    do
        __asm__ volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done; }"
            : "=r"(done)
            : "r"(address_of(b)), "r"(phase & 1)
            : "memory");
    while (!done);
}

/* Position in a ring of stages: the current stage, and the number of wraps, which is the phase of
 * its barriers. */
typedef struct Ring { int stage, phase; } Ring;
INLINE void ring_advance(Ring *r, const int stages) {
    if (++r->stage < stages) return;
    r->stage = 0;
    r->phase++;
}

/* Makes initialized barriers visible to the other blocks of the cluster, after cluster_barrier. */
INLINE void fence_barriers_to_cluster(void) { __asm__ volatile("fence.mbarrier_init.release.cluster;" : : : "memory"); }
/* Barrier of all threads of the cluster. */
INLINE void cluster_barrier(void) {
    warp_barrier();
    __asm__ volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" : : : "memory");
}

/* Hardware barrier `id` (1 .. 15) of `threads` threads: some wait, the others only arrive. */
INLINE void named_barrier_wait(int id, int threads) { __asm__ volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory"); }
INLINE void named_barrier_arrive(int id, int threads) { __asm__ volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory"); }

/* 2^x; results below the normal numbers are zero, which saves three instructions. */
INLINE float exp2_or_zero(float x) { return __nvvm_ex2_approx_ftz_f(x); }

/* The maxima of the lower and of the upper bf16; for a NaN and a number, the number. */
INLINE uint32_t max_of_pairs(uint32_t a, uint32_t b) {
    uint32_t most;
    __asm__("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
}

/* -- Tensor memory accelerator (TMA) ------------------------------------------------------------------------------- */

/* Address of the argument struct of KERNEL `name`, for the tensor maps in it. */
#define ARGUMENTS_ADDRESS(name)                                                             \
    ({                                                                                      \
        uint64_t address;                                                                   \
        __asm__("mov.b64 %0, " #name "_param_0; cvta.param.u64 %0, %0;" : "=l"(address));   \
        address;                                                                            \
    })

/* Copies the box at (column, row, sheet) of the tensor of map `map` to shared memory; elements
 * outside its edges are zero. Barrier `b` counts the bytes. */
INLINE void copy_box(LOCAL bf16 *to, uint64_t map, int column, int row, int sheet, SharedBarrier b) {
    __asm__ volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
        :
        : "r"(address_of(to)), "l"(map), "r"(column), "r"(row), "r"(sheet), "r"(address_of(b))
        : "memory");
}

/* copy_box into each block of the cluster whose bit of `ranks` is set, at the same address; its
 * barrier counts the bytes. */
INLINE void copy_box_to_cluster(LOCAL bf16 *to, uint64_t map, int column, int row, int sheet, SharedBarrier b, int ranks) {
    __asm__ volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
                     "%3, %4}], [%5], %6;"
        :
        : "r"(address_of(to)), "l"(map), "r"(column), "r"(row), "r"(sheet), "r"(address_of(b)), "h"((int16_t)ranks)
        : "memory");
}

/* Copies `bytes` contiguous bytes to shared memory; both addresses and the size are multiples of 16. */
INLINE void copy_bytes(LOCAL void *to, GLOBAL const void *from, int bytes, SharedBarrier b) {
    __asm__ volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"(address_of(to)), "l"(from), "r"(bytes), "r"(address_of(b))
        : "memory");
}

/* Copies a box from shared memory to (column, row, sheet) of a tensor; elements outside its edges
 * are not written. After copy_out_commit, copies_read waits until the thread's boxes were read,
 * copies_done until they were written. */
INLINE void copy_box_out(uint64_t map, int column, int row, int sheet, LOCAL const bf16 *from) {
    __asm__ volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
        :
        : "l"(map), "r"(column), "r"(row), "r"(sheet), "r"(address_of(from))
        : "memory");
}
INLINE void copy_out_commit(void) { __asm__ volatile("cp.async.bulk.commit_group;" : : : "memory"); }
INLINE void copies_read(void) { __asm__ volatile("cp.async.bulk.wait_group.read 0;" : : : "memory"); }
INLINE void copies_done(void) { __asm__ volatile("cp.async.bulk.wait_group 0;" : : : "memory"); }
/* Write floats from shared to global memory; bulk_add adds to memory. Wait for them as for
 * copy_box_out. */
INLINE void bulk_store(GLOBAL float *to, LOCAL const float *from, int bytes) {
    __asm__ volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        :
        : "l"(to), "r"(address_of(from)), "r"(bytes)
        : "memory");
}
INLINE void bulk_add(GLOBAL float *to, LOCAL const float *from, int bytes) {
    __asm__ volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
        :
        : "l"(to), "r"(address_of(from)), "r"(bytes)
        : "memory");
}

/* Stores four 8 x 8 blocks of bf16, in the register layout of wgmma sums cast to bf16. Lanes 8 i ..
 * 8 i + 7 supply the addresses of the rows of block i. */
INLINE void store_matrices(LOCAL const void *row, const uint32_t *x) {
    __asm__ volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        :
        : "r"(address_of(row)), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
        : "memory");
}

/* Transposes an 8 x 8 block of bf16, of which every lane holds a pair as in wgmma sums. */
INLINE uint32_t transpose_matrix(uint32_t x) {
    uint32_t y;
    __asm__ volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
/* Stores two words if `there`, with a predicate: with a branch, lane exchanges would not
 * overlap. */
INLINE void store_two_if(GLOBAL void *to, uint32_t x, uint32_t y, bool there) {
    __asm__ volatile("{ .reg .pred there; setp.ne.b32 there, %3, 0; @there st.global.v2.b32 [%0], {%1, %2}; }"
        :
        : "l"(to), "r"(x), "r"(y), "r"((int)there)
        : "memory");
}

/* -- Between blocks ------------------------------------------------------------------------------------------------ */

/* Release and acquire between blocks: all writes of a thread before release_value, also by TMA, are
 * visible to a thread after await_value has seen the value. */
INLINE void release_value(GLOBAL int32_t *to, int32_t value) {
    __asm__ volatile("fence.proxy.async; st.release.gpu.global.s32 [%0], %1;" : : "l"(to), "r"(value) : "memory");
}
INLINE void await_value(GLOBAL const int32_t *from, int32_t value) {
    int32_t seen;
    do __asm__ volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(from) : "memory");
    while (seen != value);
}
/* Orders earlier reads of global memory before later TMA operations. */
INLINE void fence_global_to_async(void) { __asm__ volatile("fence.proxy.async.global;" : : : "memory"); }
/* Takes the next number 0, 1, 2 ... of a counter that starts at 0. */
INLINE int32_t take_ticket(GLOBAL int32_t *next) {
    int32_t ticket;
    __asm__ volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;" : "=r"(ticket) : "l"(next) : "memory");
    return ticket;
}

/* -- Matmuls (wgmma) ----------------------------------------------------------------------------------------------- */

/* Lower word of a matrix descriptor (PTX ISA, "Matrix Descriptor Format"): the address and, for
 * transposed operands, the distance `panel` between panels in bytes, in units of 16 bytes. The
 * upper word is constant: 128-byte swizzle, 1,024 bytes from eight rows to the next eight. */
typedef uint32_t Descriptor;
#define DESCRIPTOR_UPPER "0x40000040"
INLINE Descriptor descriptor_of(LOCAL const bf16 *tile, int panel) {
    uint32_t address = address_of(tile);
    __asm__ volatile("" : "+r"(address)); /* otherwise a loop would hold a register for every step of every operand */
    return (uint32_t)(panel / 16) << 16 | (address & 0x3ffff) >> 4;
}
/* Moves a descriptor by `bytes`, a multiple of 16. */
INLINE Descriptor descriptor_advance(Descriptor operand, int bytes) { return operand + (uint32_t)(bytes / 16); }
/* Return the byte offset of step `step` (16 elements along k) in a tile. In a tile of `rows`
 * rows, a step is 32 bytes of each row, and every fourth step begins the next panel. In a
 * transposed tile, a step is 16 rows. */
INLINE int depth_bytes(int rows, int step) { return step / 4 * rows * 128 + step % 4 * 32; }
INLINE int depth_bytes_transposed(int step) { return step * 16 * 128; }

#define TIED_8(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), "+f"(x[i + 7])
#define TIED_32(x, i) TIED_8(x, i), TIED_8(x, i + 8), TIED_8(x, i + 16), TIED_8(x, i + 24)
#define NAMED_32                                                                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "   \
    "%28, %29, %30, %31"
#define NAMED_64                                                                                                                           \
    NAMED_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "  \
             "%56, %57, %58, %59, %60, %61, %62, %63"

#define TIED_64_COLUMNS(x) TIED_32(x, 0)
#define TIED_128_COLUMNS(x) TIED_32(x, 0), TIED_32(x, 32)

/* Start x += a b (x = a b unless `add`) for 16 steps along k; a comes from shared memory, as rows
 * or (a_transposed "1") transposed, or from registers; b from shared memory. Between wgmma_begin
 * and the matching wgmma_wait, code must not touch x and the registers of a. */
#define WGMMA_SHARED(name, shape, tied, named, a_name, b_name, a_transposed, add_name, transposed_name)                                    \
    INLINE void name(float *x, Descriptor a, Descriptor b, bool add, const int b_transposed) {                                             \
        __asm__ volatile("{ .reg .pred add; .reg .b64 a, b; setp.ne.b32 add, " add_name ", 0;\n"                                           \
                         "mov.b64 a, {" a_name ", " DESCRIPTOR_UPPER "}; mov.b64 b, {" b_name ", " DESCRIPTOR_UPPER "};\n"                       \
                         "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" named "}, a, b, add, 1, 1, " a_transposed ", "           \
                         transposed_name "; }"                                                                                             \
                         : tied(x) : "r"(a), "r"(b), "r"((int)add), "n"(b_transposed) : "memory");                                         \
    }
#define WGMMA_REGISTERS(name, shape, tied, named, a_names, b_name, add_name, transposed_name)                                              \
    INLINE void name(float *x, const uint32_t *a, Descriptor b, bool add, const int b_transposed) {                                        \
        __asm__ volatile("{ .reg .pred add; .reg .b64 b; setp.ne.b32 add, " add_name ", 0; mov.b64 b, {" b_name ", " DESCRIPTOR_UPPER "};\n"  \
                         "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" named "}, {" a_names "}, b, add, 1, 1, "                 \
                         transposed_name "; }"                                                                                             \
                         : tied(x) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add), "n"(b_transposed) : "memory");     \
    }
WGMMA_SHARED(wgmma_shared_64, "m64n64k16", TIED_64_COLUMNS, NAMED_32, "%32", "%33", "0", "%34", "%35")
WGMMA_SHARED(wgmma_transposed_64, "m64n64k16", TIED_64_COLUMNS, NAMED_32, "%32", "%33", "1", "%34", "%35")
WGMMA_SHARED(wgmma_shared_128, "m64n128k16", TIED_128_COLUMNS, NAMED_64, "%64", "%65", "0", "%66", "%67")
WGMMA_REGISTERS(wgmma_registers_64, "m64n64k16", TIED_64_COLUMNS, NAMED_32, "%32, %33, %34, %35", "%36", "%37", "%38")
WGMMA_REGISTERS(wgmma_registers_128, "m64n128k16", TIED_128_COLUMNS, NAMED_64, "%64, %65, %66, %67", "%68", "%69", "%70")

/* Moves the descriptor of a transposed operand by `columns` columns, a multiple of 64. */
INLINE Descriptor descriptor_next_columns(Descriptor operand, const int columns) {
    return operand + (uint32_t)(columns / PANEL_COLUMNS) * (operand >> 16);
}
/* `columns` of x is a constant: 64 or 128, and with a transposed b up to 256. */
INLINE void wgmma_shared(float *x, const int columns, Descriptor a, Descriptor b, bool add, const int b_transposed) {
    UNROLL for (int i = 0; i < columns; i += 128) {
        if (columns - i == 64) wgmma_shared_64(x + i / 2, a, descriptor_next_columns(b, i), add, b_transposed);
        else wgmma_shared_128(x + i / 2, a, descriptor_next_columns(b, i), add, b_transposed);
    }
}
INLINE void wgmma_registers(float *x, const int columns, const uint32_t *a, Descriptor b, bool add, const int b_transposed) {
    UNROLL for (int i = 0; i < columns; i += 128) {
        if (columns - i == 64) wgmma_registers_64(x + i / 2, a, descriptor_next_columns(b, i), add, b_transposed);
        else wgmma_registers_128(x + i / 2, a, descriptor_next_columns(b, i), add, b_transposed);
    }
}
/* Orders earlier writes to the registers of x before wgmma. */
INLINE void wgmma_begin(float *x, const int columns) {
    UNROLL for (int i = 0; i < columns; i += 128) {
        if (columns - i == 64) __asm__ volatile("wgmma.fence.sync.aligned;" : TIED_64_COLUMNS((x + i / 2)) : : "memory");
        else __asm__ volatile("wgmma.fence.sync.aligned;" : TIED_128_COLUMNS((x + i / 2)) : : "memory");
    }
}
INLINE void wgmma_commit(void) { __asm__ volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
/* Waits until all committed groups except the last `pending` are done; x belongs to one that is
 * done. */
INLINE void wgmma_wait(float *x, const int columns, const int pending) {
    UNROLL for (int i = 0; i < columns; i += 128) {
        if (columns - i == 64)
            __asm__ volatile("wgmma.wait_group.sync.aligned %32;" : TIED_64_COLUMNS((x + i / 2)) : "n"(pending) : "memory");
        else __asm__ volatile("wgmma.wait_group.sync.aligned %64;" : TIED_128_COLUMNS((x + i / 2)) : "n"(pending) : "memory");
    }
}

/* Keeps clang from moving the computation of x past this point. */
INLINE void materialize_sums(float *x, const int columns) {
    UNROLL for (int i = 0; i < columns; i += 128) {
        if (columns - i == 64) __asm__ volatile("" : TIED_64_COLUMNS((x + i / 2)));
        else __asm__ volatile("" : TIED_128_COLUMNS((x + i / 2)));
    }
}
/* Keeps ptxas from moving a wgmma_wait above the computation of x >= 0: it contains a store to
 * `place` for x < 0, which never happens. */
INLINE void fence_on_value(float x, LOCAL void *place) {
    __asm__ volatile("{ .reg .pred never; setp.lt.f32 never, %0, 0f00000000; @never st.shared.f32 [%1], %0; }"
        :
        : "f"(x), "r"(address_of(place))
        : "memory");
}

/* Stores a group's left operand to 64 rows of `tile`, in panels of 64 columns, `panel` elements
 * apart. */
INLINE void operand_to_rows(LOCAL bf16 *tile, const int panel, const uint32_t *a, const int width) {
    int lane = opaque(lane_id()), row = opaque(wave_id()) % 4 * 16 + lane % 16;
    UNROLL for (int k = 0; k < width / 16; k++)
        store_matrices(tile + k / 4 * panel + tile_at(PANEL_COLUMNS, row, k % 4 * 16 + lane / 16 * 8), a + 4 * k);
}

/* Casts sums to bf16 as the left operand of a matmul along the `columns` of x: 4 registers per 16
 * columns. */
INLINE void sums_to_operand(uint32_t *a, const float *x, const int columns) {
    UNROLL for (int i = 0; i < columns / 4; i++) a[i] = to_bf16_pair(x[2 * i], x[2 * i + 1]);
}

#endif

/* What kernels for NVIDIA's Hopper (sm_90a) are written in beyond gpu.h: products of a warpgroup (wgmma), the engine that copies boxes of a tensor to shared
 * memory, and the barriers in shared memory that count its bytes. For the attention kernels; products (gemm.h) take what they share.
 *
 * A warpgroup is four warps, 128 threads. Operands lie in shared memory in panels: rows of 64 bf16, 128 bytes, in groups of eight rows whose 16-byte chunks
 * are permuted by the 128-byte swizzle, as the copy engine leaves them; a panel begins at a multiple of 1,024 bytes. Seen along the sums, a row is either
 * one line of an operand, 64 steps of the depth, or one step of the depth for 64 lines ("transposed").
 *
 * Sums of 64 rows x n columns are an array of n / 2 floats per thread: with warp w of the group and lane = 4 g + t, x[4 j + 2 r + e] is row
 * 16 w + 8 r + g, column 8 j + 2 t + e. Such an array, rounded in pairs, is the left operand of the next product (PTX ISA, "Register Fragments for
 * wgmma.mma_async"). */
#ifndef SMELT_KERNEL_HOPPER_H
#define SMELT_KERNEL_HOPPER_H

#include "kernel/mma.h"

#if defined GPU_DEVICE && defined __CUDA_ARCH_FEAT_SM90_ALL

/* First in a kernel: its blocks have exactly so many threads, and so many of them are to share a processor. Clang knows no such attribute in C:
 * tools/embed-objects.sh makes directives of it. */
#define BLOCK_BOUNDS(threads, blocks) __asm__ volatile("// bounds %0 %1" : : "n"(threads), "n"(blocks))

enum { WARPGROUP = 128, PANEL_COLUMNS = 64, GROUP_ROWS = 64 };

/* -- Barriers ------------------------------------------------------------------------------------------------------ */

typedef LOCAL uint64_t *SharedBarrier;

INLINE uint32_t address_of(LOCAL const void *pointer) { return (uint32_t)(uintptr_t)pointer; }
INLINE void warp_barrier(void) { __nvvm_bar_warp_sync(~0u); }

INLINE void shared_barrier_init(SharedBarrier b, int arrivals) {
    __asm__ volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(address_of(b)), "r"(arrivals) : "memory");
}
/* What was written to shared memory before is there for wgmma and the copy engine. */
INLINE void shared_to_async(void) { __asm__ volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
INLINE void shared_barrier_arrive(SharedBarrier b) { __asm__ volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(address_of(b)) : "memory"); }
/* Arrives, and announces bytes that copies will bring. */
INLINE void shared_barrier_expect(SharedBarrier b, int bytes) {
    __asm__ volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(address_of(b)), "r"(bytes) : "memory");
}
/* Until phase `turn` (0, 1, 2 ...) is over. */
INLINE void shared_barrier_wait(SharedBarrier b, int turn) {
    int done;
    do __asm__ volatile("{ .reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done; }"
                        : "=r"(done) : "r"(address_of(b)), "r"(turn & 1) : "memory");
    while (!done);
}

/* Hardware barrier `id` (1 .. 15) of `threads`: some wait, the others only arrive. */
INLINE void named_barrier_wait(int id, int threads) { __asm__ volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory"); }
INLINE void named_barrier_arrive(int id, int threads) { __asm__ volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory"); }

/* 2^x; results below the normal numbers are zero, which saves three instructions. */
INLINE float exp2_or_zero(float x) { return __nvvm_ex2_approx_ftz_f(x); }

/* -- The copy engine ----------------------------------------------------------------------------------------------- */

/* The address of the argument struct of KERNEL `name`, for tensor maps in it. */
#define ARGUMENTS_ADDRESS(name)                                                             \
    ({                                                                                      \
        uint64_t address;                                                                   \
        __asm__("mov.b64 %0, " #name "_param_0; cvta.param.u64 %0, %0;" : "=l"(address));   \
        address;                                                                            \
    })

/* The box at (column, row, sheet) of the tensor that the map at `map` describes; elements beyond its edges are zero. */
INLINE void copy_box(LOCAL bf16 *to, uint64_t map, int column, int row, int sheet, SharedBarrier b) {
    __asm__ volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];"
                     : : "r"(address_of(to)), "l"(map), "r"(column), "r"(row), "r"(sheet), "r"(address_of(b)) : "memory");
}

/* `bytes` bytes as they lie; both addresses and the size are multiples of 16. */
INLINE void copy_bytes(LOCAL void *to, GLOBAL const void *from, int bytes, SharedBarrier b) {
    __asm__ volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     : : "r"(address_of(to)), "l"(from), "r"(bytes), "r"(address_of(b)) : "memory");
}

/* -- Products ------------------------------------------------------------------------------------------------------ */

/* The lower word of a matrix descriptor (PTX ISA, "Matrix Descriptor Format"): address, and `panel` bytes from panel to panel where lines are neighbours in a
 * row, in units of 16 bytes. The upper one says 128-byte swizzle, 1,024 bytes from eight rows to the next eight. */
typedef uint32_t Descriptor;
#define DESCRIPTOR_UPPER "0x40000040"
INLINE Descriptor operand_at(LOCAL const bf16 *tile, int panel) {
    uint32_t address = address_of(tile);
    __asm__ volatile("" : "+r"(address)); /* else a loop keeps a register for every step of every operand */
    return (uint32_t)(panel / 16) << 16 | (address & 0x3ffff) >> 4;
}
/* Further on by whole 16 bytes. */
INLINE Descriptor operand_further(Descriptor operand, int bytes) { return operand + (uint32_t)(bytes / 16); }
/* 16 steps of the depth number `step` of a tile of `rows` rows: 32 bytes of each row and, each fourth time, the next panel; transposed, 16 rows. */
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

/* Starts x += a b (x = a b unless `add`) for 16 steps of the depth: both from shared memory, or the left one from registers. From wgmma_begin until a wait
 * for it, x and the registers of `a` are the hardware's. */
#define WGMMA_SHARED(name, shape, tied, named, a_name, b_name, add_name, transposed_name)                                                  \
    INLINE void name(float *x, Descriptor a, Descriptor b, bool add, const int b_transposed) {                                             \
        __asm__ volatile("{ .reg .pred add; .reg .b64 a, b; setp.ne.b32 add, " add_name ", 0;\n"                                           \
                         "mov.b64 a, {" a_name ", " DESCRIPTOR_UPPER "}; mov.b64 b, {" b_name ", " DESCRIPTOR_UPPER "};\n"                       \
                         "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" named "}, a, b, add, 1, 1, 0, " transposed_name "; }"    \
                         : tied(x) : "r"(a), "r"(b), "r"((int)add), "n"(b_transposed) : "memory");                                         \
    }
#define WGMMA_REGISTERS(name, shape, tied, named, a_names, b_name, add_name, transposed_name)                                              \
    INLINE void name(float *x, const uint32_t *a, Descriptor b, bool add, const int b_transposed) {                                        \
        __asm__ volatile("{ .reg .pred add; .reg .b64 b; setp.ne.b32 add, " add_name ", 0; mov.b64 b, {" b_name ", " DESCRIPTOR_UPPER "};\n"  \
                         "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" named "}, {" a_names "}, b, add, 1, 1, "                 \
                         transposed_name "; }"                                                                                             \
                         : tied(x) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)add), "n"(b_transposed) : "memory");     \
    }
WGMMA_SHARED(wgmma_shared_64, "m64n64k16", TIED_64_COLUMNS, NAMED_32, "%32", "%33", "%34", "%35")
WGMMA_SHARED(wgmma_shared_128, "m64n128k16", TIED_128_COLUMNS, NAMED_64, "%64", "%65", "%66", "%67")
WGMMA_REGISTERS(wgmma_registers_64, "m64n64k16", TIED_64_COLUMNS, NAMED_32, "%32, %33, %34, %35", "%36", "%37", "%38")
WGMMA_REGISTERS(wgmma_registers_128, "m64n128k16", TIED_128_COLUMNS, NAMED_64, "%64, %65, %66, %67", "%68", "%69", "%70")

/* x has 64 or 128 columns, as a constant. */
INLINE void wgmma_shared(float *x, const int columns, Descriptor a, Descriptor b, bool add, const int b_transposed) {
    if (columns == 64) wgmma_shared_64(x, a, b, add, b_transposed);
    else wgmma_shared_128(x, a, b, add, b_transposed);
}
INLINE void wgmma_registers(float *x, const int columns, const uint32_t *a, Descriptor b, bool add, const int b_transposed) {
    if (columns == 64) wgmma_registers_64(x, a, b, add, b_transposed);
    else wgmma_registers_128(x, a, b, add, b_transposed);
}
/* What was written to the registers of x before is there for wgmma. */
INLINE void wgmma_begin(float *x, const int columns) {
    if (columns == 64) __asm__ volatile("wgmma.fence.sync.aligned;" : TIED_64_COLUMNS(x) : : "memory");
    else __asm__ volatile("wgmma.fence.sync.aligned;" : TIED_128_COLUMNS(x) : : "memory");
}
INLINE void wgmma_commit(void) { __asm__ volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
/* All committed products but the last `pending` are done, of which x is one. */
INLINE void wgmma_wait(float *x, const int columns, const int pending) {
    if (columns == 64) __asm__ volatile("wgmma.wait_group.sync.aligned %32;" : TIED_64_COLUMNS(x) : "n"(pending) : "memory");
    else __asm__ volatile("wgmma.wait_group.sync.aligned %64;" : TIED_128_COLUMNS(x) : "n"(pending) : "memory");
}

/* Clang does not put off until later what makes x. */
INLINE void sums_here(float *x, const int columns) {
    if (columns == 64) __asm__ volatile("" : TIED_64_COLUMNS(x));
    else __asm__ volatile("" : TIED_128_COLUMNS(x));
}
/* Nor does ptxas, which moves waits for products up as far as it can: a store to `place` that is never done, as x is never negative, stops them. */
INLINE void hold_until(float x, LOCAL void *place) {
    __asm__ volatile("{ .reg .pred never; setp.lt.f32 never, %0, 0f00000000; @never st.shared.f32 [%1], %0; }" : : "f"(x), "r"(address_of(place)) : "memory");
}

/* A group's 64 rows of `width` columns, in panels, as left operands: 4 registers for each 16 columns. */
INLINE void rows_to_operand(uint32_t *a, LOCAL const bf16 *tile, const int width) {
    int lane = lane_id(), row = wave_id() % 4 * 16 + lane % 16;
    UNROLL for (int k = 0; k < width / 16; k++)
        load_matrices(a + 4 * k, address_of(tile + k / 4 * GROUP_ROWS * PANEL_COLUMNS + tile_at(PANEL_COLUMNS, row, k % 4 * 16 + lane / 16 * 8)), 0);
}

/* The left operand of a product whose depth is the `columns` of x: 4 registers for each 16. */
INLINE void sums_to_operand(uint32_t *a, const float *x, const int columns) {
    UNROLL for (int i = 0; i < columns / 4; i++) a[i] = narrow_pair(x[2 * i], x[2 * i + 1]);
}

#endif
#endif

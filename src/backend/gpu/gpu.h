/* The language of GPU kernels: C17 for amdgcn and nvptx64 through one set of names. It hides lane
 * width, ids, barriers, shuffles, shared memory and the conversions of bf16.
 *
 * A kernel file has two halves. Under `#ifdef GPU_DEVICE` are the kernels, compiled once per GPU
 * architecture by clang into a code object named after the file; in the other half, compiled with
 * the host, are the functions that launch them (kernel_launch.h). The argument structs that both
 * halves share come first: pointers marked GLOBAL, sizes as int32_t or int64_t.
 *
 * A kernel takes one struct by value, called `a`: KERNEL(norm, NormArguments) { ... a.rows ... }
 *
 * Rules: 16-byte accesses if rows allow them; sums in fp32 in an order that depends only on shapes;
 * no float atomics; no local arrays with indices known only at run time; at most 64 KB of shared
 * memory on AMD; 256 threads unless WAVE_BOUNDS sets another number. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef uint16_t bf16; /* bits */

/* A tensor map for Hopper's TMA: opaque, made by the driver (gpu_tensor_map), passed in a kernel's
 * arguments. */
typedef struct TensorMap { _Alignas(64) uint64_t words[16]; } TensorMap;

#ifndef GPU_DEVICE
#define GLOBAL
#else

#define GLOBAL __attribute__((address_space(1)))
/* Static shared memory of a kernel. Inside a function: static SHARED float sums[8]; */
#define SHARED __attribute__((address_space(3), loader_uninitialized))
/* A pointer to shared memory. */
#define LOCAL __attribute__((address_space(3)))
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")

typedef float f32x2 __attribute__((ext_vector_type(2)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x8 __attribute__((ext_vector_type(8)));
typedef uint32_t u32x2 __attribute__((ext_vector_type(2)));
typedef uint32_t u32x4 __attribute__((ext_vector_type(4)));

/* -- Places -------------------------------------------------------------------------------------------------------- */

#if defined __AMDGCN__
enum { WAVE = 64 };
#define KERNEL(name, Arguments) __attribute__((amdgpu_kernel, visibility("protected"))) void name(const Arguments a)
#define BLOCK_BOUNDS(threads, blocks) (void)0 /* for NVIDIA, below */
/* First statement of a kernel: its blocks have at most `threads` threads, and `waves` waves share a
 * SIMD, each with 512 / waves registers. Without it: 256 threads, and the compiler chooses
 * registers. Clang has no such attribute in C: tools/bound-kernels.awk converts the assembly
 * comment to LLVM attributes. */
#define WAVE_BOUNDS(threads, waves) __asm__ volatile("; bounds %0 %1" : : "n"(threads), "n"(waves))
INLINE int thread_id(void) { return __builtin_amdgcn_workitem_id_x(); }
INLINE int block_x(void) { return __builtin_amdgcn_workgroup_id_x(); }
INLINE int block_y(void) { return __builtin_amdgcn_workgroup_id_y(); }
INLINE int block_z(void) { return __builtin_amdgcn_workgroup_id_z(); }
INLINE int lane_id(void) { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
/* Barrier of the block: all earlier writes to shared and global memory are visible to all threads
 * afterwards. The release fence alone is not enough: at back edges of loops clang 19 and 22 leave
 * out its wait for the wave's own LDS writes. They never remove the explicit wait, s_waitcnt
 * lgkmcnt(0). tools/check-waits proves this for every barrier. */
INLINE void barrier(void) {
    enum { NO_LIMIT_BUT_LDS = 0xc07f }; /* vmcnt 63, expcnt 7, lgkmcnt 0 in the encoding of gfx9 */
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_waitcnt(NO_LIMIT_BUT_LDS);
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
/* Barrier of the wave: earlier writes of its lanes to shared memory are visible to its lanes
 * afterwards. */
INLINE void wave_barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
/* Returns x of lane `from`. All lanes of the wave must call it. */
INLINE uint32_t shuffle(uint32_t x, int from) { return __builtin_amdgcn_ds_bpermute(from * 4, (int)x); }
#elif defined __NVPTX__
enum { WAVE = 32 };
#define WAVE_BOUNDS(threads, waves) (void)0 /* for AMD, above */
#define KERNEL(name, Arguments) __attribute__((nvptx_kernel)) void name(const Arguments a)
/* First statement of a kernel: its blocks have exactly `threads` threads, and `blocks` of them
 * share a multiprocessor. Clang has no such attribute in C: tools/embed-objects.sh converts the
 * assembly comment to PTX directives. */
#define BLOCK_BOUNDS(threads, blocks) __asm__ volatile("// bounds %0 %1" : : "n"(threads), "n"(blocks))
INLINE int thread_id(void) { return __nvvm_read_ptx_sreg_tid_x(); }
INLINE int block_x(void) { return __nvvm_read_ptx_sreg_ctaid_x(); }
INLINE int block_y(void) { return __nvvm_read_ptx_sreg_ctaid_y(); }
INLINE int block_z(void) { return __nvvm_read_ptx_sreg_ctaid_z(); }
INLINE int lane_id(void) { return thread_id() % WAVE; }
INLINE void barrier(void) { __syncthreads(); }
INLINE void wave_barrier(void) { __nvvm_bar_warp_sync(~0u); }
INLINE uint32_t shuffle(uint32_t x, int from) { return __nvvm_shfl_sync_idx_i32(~0u, (int)x, from, WAVE - 1); }
#endif

/* With programmatic dependent launch, waits for the preceding kernel in the stream; call it before
 * reading that kernel's output. Kernels before the preceding one have ended when this one begins. A
 * kernel without this call waits at its start. */
INLINE void await_kernel_ahead(void) {
#if defined __NVPTX__ && GPU_SM == 90
    __asm__ volatile("griddepcontrol.wait;" ::: "memory");
    __asm__ volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Blocks are one-dimensional. */
INLINE int wave_id(void) { return thread_id() / WAVE; }
INLINE float shuffle_float(float x, int from) { return __builtin_bit_cast(float, shuffle(__builtin_bit_cast(uint32_t, x), from)); }
INLINE float shuffle_xor(float x, int mask) { return shuffle_float(x, lane_id() ^ mask); }

/* Hides the origin of x from the compiler: values that a loop computes from it stay in the loop and
 * take no registers outside. */
INLINE int opaque(int x) {
#if defined __AMDGCN__
    __asm__ volatile("" : "+v"(x));
#else
    __asm__ volatile("" : "+r"(x));
#endif
    return x;
}

/* Returns x, which is the same in all lanes of a wave. AMD's compiler then keeps it once per wave
 * and branches on it without a mask. */
INLINE int of_wave(int x) {
#if defined __AMDGCN__
    return __builtin_amdgcn_readfirstlane(x);
#else
    return x;
#endif
}
/* opaque(x) for an x that is the same in all lanes. */
INLINE int opaque_of_wave(int x) {
#if defined __AMDGCN__
    x = of_wave(x);
    __asm__ volatile("" : "+s"(x));
    return x;
#else
    return opaque(x);
#endif
}
#if defined __AMDGCN__
/* Returns whether x is true in any lane of the wave. */
INLINE bool any_of_wave(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }
#endif
/* Returns the kernel's arguments, which are at `a`, for rarely executed code: on AMD they are read
 * from memory again, so no registers keep them until then. */
INLINE const void *arguments_again(const void *a) {
#if defined __AMDGCN__
    (void)a;
    __attribute__((address_space(4))) const void *arguments = __builtin_amdgcn_kernarg_segment_ptr();
    __asm__ volatile("" : "+s"(arguments));
    return (const void *)arguments;
#else
    return a;
#endif
}

/* -- Numbers ------------------------------------------------------------------------------------------------------- */

INLINE float to_float(bf16 x) { return __builtin_bit_cast(float, (uint32_t)x << 16); }
INLINE float to_float_low(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
INLINE float to_float_high(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); }

#if defined __AMDGCN__
/* The upper halves of two words (two floats truncated to bf16), and the lower halves; `low` comes
 * first in memory. */
INLINE uint32_t upper_halves(uint32_t low, uint32_t high) { return __builtin_amdgcn_perm(high, low, 0x07060302); }
INLINE uint32_t lower_halves(uint32_t low, uint32_t high) { return __builtin_amdgcn_perm(high, low, 0x05040100); }
#endif

/* Round to nearest even; NaN stays NaN. `low` is in the lower half of a pair, which comes first in
 * memory. */
#if defined __gfx950__
typedef __bf16 Bf16x2 __attribute__((ext_vector_type(2)));
INLINE uint32_t to_bf16_pair(float low, float high) {
    return __builtin_bit_cast(uint32_t, __builtin_convertvector(((f32x2){low, high}), Bf16x2));
}
INLINE uint32_t numbers_to_bf16_pair(float low, float high) { return to_bf16_pair(low, high); }
INLINE bf16 to_bf16(float x) { return (bf16)to_bf16_pair(x, 0); }
#elif defined __AMDGCN__
/* Rounds x in the upper half; the lower half is the remainder. */
INLINE uint32_t round_number_upper(float x) {
    uint32_t bits = __builtin_bit_cast(uint32_t, x);
    return bits + 0x7fff + (bits >> 16 & 1);
}
INLINE uint32_t round_upper(float x) { return x != x ? 0x7fc00000 : round_number_upper(x); }
/* to_bf16_pair for numbers that are not NaN. */
INLINE uint32_t numbers_to_bf16_pair(float low, float high) { return upper_halves(round_number_upper(low), round_number_upper(high)); }
INLINE bf16 to_bf16(float x) { return (bf16)(round_upper(x) >> 16); }
INLINE uint32_t to_bf16_pair(float low, float high) { return upper_halves(round_upper(low), round_upper(high)); }
#endif
#if defined __AMDGCN__
INLINE float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
INLINE float fast_log2(float x) { return __builtin_amdgcn_logf(x); }
INLINE float fast_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
INLINE float fast_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
INLINE float fast_sqrt(float x) { return __builtin_amdgcn_sqrtf(x); }
#elif defined __NVPTX__
INLINE uint32_t to_bf16_pair(float low, float high) {
    uint32_t pair;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
INLINE bf16 to_bf16(float x) { return (bf16)to_bf16_pair(x, 0); }
INLINE float fast_exp2(float x) { return __nvvm_ex2_approx_f(x); }
INLINE float fast_log2(float x) { return __nvvm_lg2_approx_f(x); }
INLINE float fast_reciprocal(float x) {
    float y;
    __asm__("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
INLINE float fast_rsqrt(float x) { return __nvvm_rsqrt_approx_f(x); }
INLINE float fast_sqrt(float x) { return __nvvm_sqrt_approx_f(x); }
#endif

#define LOG2_E 1.44269504088896341f
#define LN_2 0.69314718055994531f
INLINE float fast_exp(float x) { return fast_exp2(x * LOG2_E); }

/* -- Sums over lanes ----------------------------------------------------------------------------------------------- */

/* Returns the sum over the wave in every lane; a fixed tree, so always the same bits. */
INLINE float wave_sum(float x) {
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}
INLINE float wave_max(float x) {
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) x = __builtin_fmaxf(x, shuffle_xor(x, mask));
    return x;
}
/* Returns the sum over a block of `threads` threads in every thread; all threads call it.
 * `scratch`: shared memory, one float per wave. */
INLINE float block_sum(float x, LOCAL float *scratch, int threads) {
    x = wave_sum(x);
    barrier();
    if (lane_id() == 0) scratch[wave_id()] = x;
    barrier();
    float sum = 0;
    for (int i = 0; i < threads / WAVE; i++) sum += scratch[i];
    return sum;
}

#endif

/* Kernels that compute with bits that nothing wrote. Of each pair one lets them decide, which the emulator must report,
 * and its like (named "..._away") has them masked away, overwritten or switched off, which is right. All take one buffer
 * of 256 zeros, and run as one workgroup of 128. */
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef short i16x4 __attribute__((ext_vector_type(4)));
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3), loader_uninitialized))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

static inline u32 thread_id(void) { return __builtin_amdgcn_workitem_id_x(); }

/* What no instruction of the kernel has written. */
static inline u32 garbage(void) {
    u32 x;
    __asm__ volatile("v_mov_b32 %0, v77" : "=v"(x));
    return x;
}
static inline u32 scalar_garbage(void) {
    u32 x;
    __asm__ volatile("s_mov_b32 %0, s77" : "=s"(x));
    return x;
}
/* Values that the compiler does not know. */
static inline u32 hidden(u32 x) {
    __asm__ volatile("" : "+v"(x));
    return x;
}
static inline u32 hidden_scalar(u32 x) {
    __asm__ volatile("" : "+s"(x));
    return x;
}

/* -- Lanes --------------------------------------------------------------------------------------------------------- */

KERNEL compared_lanes(GLOBAL u32 *buffer) {
    if (garbage() > 5) buffer[thread_id()] = 1;
}
KERNEL compared_lanes_away(GLOBAL u32 *buffer) {
    if ((garbage() > 5) & (hidden(thread_id()) > 1000)) buffer[thread_id()] = 1;
}
KERNEL compared_floats(GLOBAL u32 *buffer) {
    if (__builtin_bit_cast(float, garbage()) > 5.0f) buffer[thread_id()] = 1;
}
KERNEL compared_floats_away(GLOBAL u32 *buffer) {
    if (__builtin_bit_cast(float, garbage() & hidden(0)) > 5.0f) buffer[thread_id()] = 1;
}
KERNEL compared_halves(GLOBAL u32 *buffer) {
    u32 x = garbage() << 16 | thread_id();
    if (hidden(x) > 0x10000) buffer[thread_id()] = 1;
}
KERNEL compared_halves_away(GLOBAL u32 *buffer) {
    u32 x = garbage() << 16 | thread_id();
    if ((hidden(x) & 0xffff) > 64) buffer[thread_id()] = 1;
}
/* A bit that is known to differ settles whether two values are equal. */
KERNEL equal(GLOBAL u32 *buffer) {
    if ((garbage() | hidden(1)) == hidden(3)) buffer[thread_id()] = 1;
}
KERNEL equal_away(GLOBAL u32 *buffer) {
    if ((garbage() | hidden(1)) == hidden(2)) buffer[thread_id()] = 1;
}
/* A value of 24 bits is below 2^24, whatever they are, and a negative one below 0. */
KERNEL ordered(GLOBAL u32 *buffer) {
    if (garbage() >> hidden(8) < hidden(1 << 23)) buffer[thread_id()] = 1;
}
KERNEL ordered_away(GLOBAL u32 *buffer) {
    if (garbage() >> hidden(8) < hidden(1 << 24)) buffer[thread_id()] = 1;
    if ((int)(garbage() | hidden(1u << 31)) > (int)hidden(0)) buffer[thread_id()] = 1;
}
KERNEL compared_in_exec(GLOBAL u32 *buffer) {
    __asm__ volatile("v_cmpx_lt_u32 vcc, 5, v77\n s_mov_b64 exec, -1" : : : "vcc");
    buffer[thread_id()] = 1;
}
KERNEL compared_in_exec_away(GLOBAL u32 *buffer) {
    __asm__ volatile("v_cmp_gt_u32 vcc, 64, %0\n s_and_saveexec_b64 s[20:21], vcc\n v_mov_b32 v77, %0\n s_mov_b64 exec, s[20:21]\n"
                     "v_cmp_lt_u32 s[22:23], 5, v77\n s_and_b64 s[22:23], s[22:23], vcc\n s_mov_b64 exec, s[22:23]\n s_nop 0\n"
                     "s_mov_b64 exec, s[20:21]"
        :
        : "v"(thread_id())
        : "vcc", "s20", "s21", "s22", "s23", "v77");
    buffer[thread_id()] = 1;
}
KERNEL branch_on_vcc(GLOBAL u32 *buffer) {
    __asm__ volatile("v_cmp_lt_u32 vcc, 5, v77\n s_cbranch_vccnz 1f\n s_nop 0\n 1:" : : : "vcc");
    buffer[thread_id()] = 1;
}
/* One lane that is known to be in VCC settles that it is not 0. */
KERNEL branch_on_vcc_away(GLOBAL u32 *buffer) {
    __asm__ volatile("v_cmp_lt_u32 vcc, 5, v77\n s_or_b64 vcc, vcc, 1\n s_cbranch_vccnz 1f\n s_nop 0\n 1:\n"
                     "v_cmp_lt_u32 vcc, 5, v77\n s_and_b64 vcc, vcc, 0\n s_cbranch_vccnz 2f\n s_nop 0\n 2:"
        :
        :
        : "vcc", "scc");
    buffer[thread_id()] = 1;
}

/* -- Choices and arithmetic ---------------------------------------------------------------------------------------- */

KERNEL chosen(GLOBAL u32 *buffer) {
    u32 a = hidden(1), b = hidden(2);
    buffer[thread_id()] = garbage() > 5 ? a : b;
}
KERNEL chosen_away(GLOBAL u32 *buffer) {
    u32 a = hidden(2), b = hidden(2);
    buffer[thread_id()] = garbage() > 5 ? a : b;
}
KERNEL least(GLOBAL u32 *buffer) {
    u32 x = garbage(), seven = hidden(7);
    buffer[thread_id()] = x < seven ? x : seven;
}
KERNEL least_away(GLOBAL u32 *buffer) {
    u32 x = garbage(), none = hidden(0);
    buffer[thread_id()] = x < none ? x : none;
}
KERNEL half_stored(GLOBAL u32 *buffer) { buffer[thread_id()] = hidden(garbage() << 16) + thread_id(); }
KERNEL half_stored_away(GLOBAL u32 *buffer) {
    *(GLOBAL unsigned short *)(buffer + thread_id()) = (unsigned short)(hidden(garbage() << 16) + thread_id());
}
/* The pair v[20:21] with an upper half that nothing wrote: only the lower half of the sum is whole. */
#define PAIR_SUM "v_mov_b32 v20, %1\n v_mov_b32 v21, v77\n v_mad_u64_u32 v[22:23], vcc, %1, 3, v[20:21]\n v_mov_b32 %0, "
KERNEL pair_upper(GLOBAL u32 *buffer) {
    u32 x;
    __asm__ volatile(PAIR_SUM "v23" : "=v"(x) : "v"(thread_id()) : "v20", "v21", "v22", "v23", "vcc");
    buffer[thread_id()] = x;
}
KERNEL pair_upper_away(GLOBAL u32 *buffer) {
    u32 x;
    __asm__ volatile(PAIR_SUM "v22" : "=v"(x) : "v"(thread_id()) : "v20", "v21", "v22", "v23", "vcc");
    buffer[thread_id()] = x;
}
/* Bytes of two registers by a selector, one of them of a register that nothing wrote. */
KERNEL permuted_bytes(GLOBAL u32 *buffer) { buffer[thread_id()] = __builtin_amdgcn_perm(garbage(), thread_id(), hidden(0x04020100)); }
KERNEL permuted_bytes_away(GLOBAL u32 *buffer) { buffer[thread_id()] = __builtin_amdgcn_perm(garbage(), thread_id(), hidden(0x0c020100)); }
/* The upper of two packed halves. */
#define PACKED_SUM "v_lshl_or_b32 v20, v77, 16, 1\n v_pk_add_f16 v20, v20, v20\n"
KERNEL packed_halves(GLOBAL u32 *buffer) {
    __asm__ volatile(PACKED_SUM "global_store_short_d16_hi %1, v20, %0" : : "s"(buffer), "v"(thread_id() * 4) : "v20", "memory");
}
KERNEL packed_halves_away(GLOBAL u32 *buffer) {
    __asm__ volatile(PACKED_SUM "global_store_short %1, v20, %0" : : "s"(buffer), "v"(thread_id() * 4) : "v20", "memory");
}

/* Row 0 of A, in every 16th lane, makes row 0 of the product: the first register of the first 16 lanes. */
static inline f32x4 product(void) {
    u32 a = thread_id() % 16 ? 0x3f803f80 : garbage();
    i16x4 b = {0x3f80, 0x3f80, 0x3f80, 0x3f80};
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(i16x4, (u64)a << 32 | a), b, (f32x4){0}, 0, 0, 0);
}
KERNEL matrix(GLOBAL float *buffer) { buffer[thread_id()] = product()[0]; }
KERNEL matrix_away(GLOBAL float *buffer) { buffer[thread_id()] = product()[1]; }
KERNEL swapped(GLOBAL u32 *buffer) {
    u32 x = thread_id();
    __asm__ volatile("v_swap_b32 %0, v77" : "+v"(x) : : "v77");
    buffer[thread_id()] = x;
}
KERNEL swapped_away(GLOBAL u32 *buffer) {
    u32 x = thread_id();
    __asm__ volatile("v_swap_b32 %0, v77\n v_mov_b32 %0, v77" : "+v"(x) : : "v77");
    buffer[thread_id()] = x;
}

/* -- Scalars ------------------------------------------------------------------------------------------------------- */

KERNEL compared_scalars(GLOBAL u32 *buffer) {
    if (scalar_garbage() > 5) buffer[thread_id()] = 1;
}
KERNEL compared_scalars_away(GLOBAL u32 *buffer) {
    if ((scalar_garbage() & hidden_scalar(7)) > hidden_scalar(7)) buffer[thread_id()] = 1;
    if ((scalar_garbage() | hidden_scalar(2)) == hidden_scalar(1)) buffer[thread_id()] = 1;
}
KERNEL first_lane(GLOBAL u32 *buffer) {
    if (__builtin_amdgcn_readfirstlane(garbage()) > 5) buffer[thread_id()] = 1;
}
/* Lane 3 alone is written, and read. */
KERNEL first_lane_away(GLOBAL u32 *buffer) {
    u32 x;
    __asm__ volatile("v_writelane_b32 v77, 9, 3\n s_nop 4\n v_readlane_b32 %0, v77, 3" : "=s"(x) : : "v77");
    if (x > 5) buffer[thread_id()] = 1;
}
KERNEL scalar_logic(GLOBAL u32 *buffer) {
    __asm__ volatile("s_and_b32 s20, s77, 1\n s_cbranch_scc1 1f\n s_nop 0\n 1:" : : : "s20", "scc");
    buffer[thread_id()] = 1;
}
KERNEL scalar_logic_away(GLOBAL u32 *buffer) {
    __asm__ volatile("s_or_b32 s20, s77, 1\n s_cbranch_scc1 1f\n s_nop 0\n 1:" : : : "s20", "scc");
    buffer[thread_id()] = 1;
}
KERNEL scalar_chosen(GLOBAL u32 *buffer) {
    u32 a = hidden_scalar(1), b = hidden_scalar(2);
    buffer[thread_id()] = scalar_garbage() > 5 ? a : b;
}
KERNEL scalar_chosen_away(GLOBAL u32 *buffer) {
    u32 a = hidden_scalar(2), b = hidden_scalar(2);
    buffer[thread_id()] = scalar_garbage() > 5 ? a : b;
}
/* SCC as the wavefront begins. */
KERNEL first_scc(GLOBAL u32 *buffer) {
    __asm__ volatile("s_cbranch_scc1 1f\n s_nop 0\n 1:");
    buffer[thread_id()] = 1;
}
KERNEL first_vcc(GLOBAL u32 *buffer) {
    __asm__ volatile("s_cbranch_vccz 1f\n s_nop 0\n 1:");
    buffer[thread_id()] = 1;
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Through LDS, then with half of it written anew. */
#define THROUGH_LDS "v_lshlrev_b32 v20, 2, %1\n ds_write_b32 v20, v77\n s_waitcnt lgkmcnt(0)\n"
#define FROM_LDS "ds_read_b32 %0, v20\n s_waitcnt lgkmcnt(0)"
KERNEL through_lds(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    u32 x;
    __asm__ volatile(THROUGH_LDS FROM_LDS : "=v"(x) : "v"(thread_id()), "v"(&local[0]) : "v20", "memory");
    if (x > 5) buffer[thread_id()] = 1;
}
KERNEL through_lds_away(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    u32 x;
    __asm__ volatile(THROUGH_LDS "ds_write_b16 v20, %1\n s_waitcnt lgkmcnt(0)\n" FROM_LDS
        : "=v"(x)
        : "v"(thread_id()), "v"(&local[0])
        : "v20", "memory");
    if ((x & 0xffff) > 5) buffer[thread_id()] = 1;
}
KERNEL through_scratch(GLOBAL u32 *buffer) {
    volatile u32 own[8];
    own[thread_id() % 8] = 1;
    if (own[(thread_id() + 1) % 8] > 5) buffer[thread_id()] = 1;
}
KERNEL through_scratch_away(GLOBAL u32 *buffer) {
    volatile u32 own[8];
    own[thread_id() % 8] = garbage();
    own[thread_id() % 8] = thread_id();
    if (own[thread_id() % 8] > 5) buffer[thread_id()] = 1;
}
KERNEL added_to_lds(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    __asm__ volatile(THROUGH_LDS "ds_add_u32 v20, %1\n s_waitcnt lgkmcnt(0)"
        :
        : "v"(0), "v"(thread_id()), "v"(&local[0])
        : "v20", "memory");
    buffer[thread_id()] = 1;
}
KERNEL added(GLOBAL u32 *buffer) { __atomic_fetch_add(buffer, garbage(), __ATOMIC_RELAXED); }
KERNEL lane_number(GLOBAL u32 *buffer) { buffer[thread_id()] = (u32)__builtin_amdgcn_ds_bpermute((int)garbage(), (int)thread_id()); }
/* Of the address of a permutation eight bits count. */
KERNEL lane_number_away(GLOBAL u32 *buffer) {
    buffer[thread_id()] = (u32)__builtin_amdgcn_ds_bpermute((int)(garbage() << hidden(8) | thread_id() % 64 * 4), (int)thread_id());
}
/* Of four lanes, lanes 0 and 2 are whole. */
#define EVEN_LANES "v_mov_b32 v20, v77\n s_mov_b64 s[20:21], exec\n s_mov_b32 exec_lo, 0x55555555\n s_mov_b32 exec_hi, exec_lo\n" \
    "v_mov_b32 v20, %1\n s_mov_b64 exec, s[20:21]\n s_nop 4\n v_mov_b32_dpp %0, v20 "
KERNEL permuted_lanes(GLOBAL u32 *buffer) {
    u32 x;
    __asm__ volatile(EVEN_LANES "quad_perm:[0,0,2,3]" : "=v"(x) : "v"(thread_id()) : "v20", "s20", "s21");
    buffer[thread_id()] = x;
}
KERNEL permuted_lanes_away(GLOBAL u32 *buffer) {
    u32 x;
    __asm__ volatile(EVEN_LANES "quad_perm:[0,0,2,2]" : "=v"(x) : "v"(thread_id()) : "v20", "s20", "s21");
    buffer[thread_id()] = x;
}
KERNEL jump(GLOBAL u32 *buffer) {
    buffer[thread_id()] = 1;
    __asm__ volatile("s_setpc_b64 s[76:77]");
}
KERNEL mode(GLOBAL u32 *buffer) {
    __asm__ volatile("s_setreg_b32 hwreg(HW_REG_MODE, 0, 8), s77");
    buffer[thread_id()] = 1;
}

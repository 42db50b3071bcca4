/* Instructions that move data, by wavefronts of one workgroup: lane l takes the four dwords in[4 l ...], and writes
 * four to out[4 l ...]. In the assembly v[24:27] holds what came in and v[20:23] what goes out; v28 is the address
 * of 16 bytes of LDS of the lane's own, v29 that of a dword; LDS is zero at first. */
typedef unsigned int u32;
typedef unsigned short u16;
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3), loader_uninitialized, aligned(16)))
#define LOCAL __attribute__((address_space(3)))
#define PRIVATE __attribute__((address_space(5)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

#define MOVES(name, assembly)                                                                                                                             \
    KERNEL name(GLOBAL u32x4 *out, const GLOBAL u32x4 *in) {                                                                                              \
        static SHARED u32x4 local[128];                                                                                                                   \
        u32 lane = __builtin_amdgcn_workitem_id_x();                                                                                                      \
        u32x4 x = in[lane], y;                                                                                                                            \
        local[lane] = local[lane + 64] = (u32x4)0;                                                                                                        \
        __asm__ volatile("v_mov_b32 v20, 0\n v_mov_b32 v21, 0\n v_mov_b32 v22, 0\n v_mov_b32 v23, 0\n" assembly "\n s_waitcnt vmcnt(0) lgkmcnt(0)"         \
                         : "=&{v[20:23]}"(y)                                                                                                              \
                         : "{v[24:27]}"(x), "{v28}"((u32)(LOCAL char *)&local[lane]), "{v29}"((u32)((LOCAL char *)local + 4 * lane)), "{v30}"(16 * lane), \
                           "{s[14:15]}"(in)                                                                                                               \
                         : "memory", "vcc", "scc", "a1", "a2", "a3", "s8", "s9", "s10", "s11", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23",    \
                           "s24", "s25", "s26", "s27", "s28", "s29", "s30", "s31");                                                                       \
        out[lane] = y;                                                                                                                                    \
    }
MOVES(lds_read_pairs, "ds_write_b128 v28, v[24:27]\n ds_read2_b32 v[20:21], v28 offset0:3 offset1:1\n ds_read2_b32 v[22:23], v28 offset1:2")
MOVES(lds_write_pairs, "ds_write2_b32 v28, v24, v25 offset0:1 offset1:3\n ds_write_b16 v28, v26 offset:8\n ds_read_b128 v[20:23], v28")
MOVES(lds_write_strides, "ds_write2st64_b32 v29, v24, v25 offset1:1\n ds_read2st64_b32 v[20:21], v29 offset0:1\n"
                         "ds_write_b64 v28, v[26:27] offset:1024\n ds_read_b64 v[22:23], v28 offset:1024")
MOVES(
    lds_write_two, "ds_write2_b64 v28, v[26:27], v[24:25] offset1:128\n ds_read_b64 v[20:21], v28\n ds_read_b64 v[22:23], v28 offset:1024")
MOVES(lds_write_two_strides,
    "ds_write2st64_b64 v28, v[24:25], v[26:27] offset1:2\n ds_read_b64 v[20:21], v28 offset:1024\n ds_read_b64 v[22:23], v28")
MOVES(lds_read_two, "ds_write_b128 v28, v[24:27]\n ds_read2_b64 v[20:23], v28 offset0:1")
MOVES(lds_read_half, "ds_write_b128 v28, v[24:27]\n ds_read_u16 v20, v28 offset:6\n ds_read_u16 v21, v28")
MOVES(lds_add, "ds_add_rtn_u32 v20, v28, v24\n ds_add_rtn_u32 v21, v28, v25\n ds_add_rtn_u32 v22, v28, v23")
MOVES(accumulators, "v_accvgpr_write_b32 a1, v24\n v_accvgpr_mov_b32 a2, a1\n v_accvgpr_write_b32 a3, 7\n v_accvgpr_read_b32 v20, a2\n "
                    "v_accvgpr_read_b32 v21, a3")
MOVES(write_lane, "s_mov_b32 s20, 5\n v_mov_b32 v20, v24\n v_writelane_b32 v20, s20, 9")
/* A descriptor of 512 bytes: what is beyond reads as zero. */
MOVES(buffer_read,
    "s_mov_b64 s[8:9], s[14:15]\n s_movk_i32 s10, 512\n s_mov_b32 s11, 0x27000\n buffer_load_dwordx4 v[20:23], v30, s[8:11], 0 offen")
/* What is stored may be overwritten at once, without a wait; beyond the descriptor nothing is stored. */
MOVES(buffer_write,
    "s_mov_b64 s[8:9], s[14:15]\n s_movk_i32 s10, 512\n s_mov_b32 s11, 0x27000\n v_not_b32 v24, v24\n"
    "buffer_store_dwordx4 v[24:27], v30, s[8:11], 0 offen\n v_not_b32 v24, v24\n s_waitcnt vmcnt(0)\n"
    "buffer_load_dwordx4 v[20:23], v30, s[8:11], 0 offen\n s_waitcnt vmcnt(0)\n buffer_store_dwordx4 v[24:27], v30, s[8:11], 0 offen")
/* Three dwords are stored, and the lane's fourth stays. */
MOVES(store_three, "v_not_b32 v24, v24\n global_store_dwordx3 v30, v[24:26], s[14:15]\n s_waitcnt vmcnt(0)\n"
                   "global_load_dwordx4 v[20:23], v30, s[14:15]\n s_waitcnt vmcnt(0)\n v_not_b32 v24, v24\n"
                   "global_store_dwordx3 v30, v[24:26], s[14:15]")
MOVES(scalar_read, "s_load_dwordx16 s[16:31], s[14:15], 0x10\n s_waitcnt lgkmcnt(0)\n v_mov_b32 v20, s16\n v_mov_b32 v21, s31\n v_mov_b32 "
                   "v22, s23\n v_mov_b32 v23, s24")
MOVES(branch_on_vcc, "v_cmp_lt_u32 vcc, v24, v24\n s_cbranch_vccz first%=\n v_mov_b32 v20, 1\n first%=:\n"
                     "v_cmp_eq_u32 vcc, v24, v24\n s_cbranch_vccz second%=\n v_mov_b32 v21, 2\n second%=:")

#if defined __gfx950__
MOVES(lds_read_transposed, "ds_write_b128 v28, v[24:27]\n ds_read_b64_tr_b16 v[20:21], v28\n ds_read_b64_tr_b16 v[22:23], v28 offset:8")
/* 16 bytes of each lane go to LDS at M0 + 16 lane, those of the other half of the wavefront first. */
MOVES(buffer_to_lds,
    "s_mov_b64 s[8:9], s[14:15]\n s_movk_i32 s10, 1024\n s_mov_b32 s11, 0x27000\n v_xor_b32 v30, 0x200, v30\n s_mov_b32 m0, 0\n"
    "buffer_load_dwordx4 v30, s[8:11], 0 offen lds\n s_waitcnt vmcnt(0)\n ds_read_b128 v[20:23], v28")
MOVES(global_to_lds, "v_xor_b32 v30, 0x200, v30\n s_movk_i32 m0, 1024\n global_load_lds_dwordx4 v30, s[14:15]\n"
                     "s_waitcnt vmcnt(0)\n ds_read_b128 v[20:23], v28 offset:1024")

/* Every lane's dword at the end of all LDS that gfx950 has. */
KERNEL lds_of_160_kib(GLOBAL u32 *out, const GLOBAL u32 *in) {
    static SHARED volatile u32 local[40960];
    u32 lane = __builtin_amdgcn_workitem_id_x();
    local[40959 - lane] = in[lane];
    out[lane] = local[40959 - lane];
}
#endif

/* A signed byte, whose last byte becomes another one, and an unsigned byte, then a dword and a pair that pass through the lane's
 * scratch, as four dwords do that make no difference, at a place known at run time. */
KERNEL bytes(GLOBAL u32x4 *out, const volatile GLOBAL signed char *in) {
    u32 lane = __builtin_amdgcn_workitem_id_x(), dwords[512]; /* too large for LDS */
    unsigned long pairs[512];
    u32x4 quads[512];
    volatile PRIVATE u32 *dword = (PRIVATE u32 *)dwords + lane % 8;
    volatile PRIVATE unsigned long *pair = (PRIVATE unsigned long *)pairs + lane % 8;
    volatile PRIVATE u32x4 *quad = (PRIVATE u32x4 *)quads + lane % 8;
    *quad = (u32x4){lane, 2 * lane, 3 * lane, 4 * lane};
    *dword = lane * 3;
    *pair = (unsigned long)lane << 40 | 7;
    unsigned long x = *pair;
    u32x4 y = *quad;
    u32 dword_again = *dword + (y.x + y.w - y.y - y.z);
    out[lane] =
        (u32x4){(u32)in[16 * lane], ((const volatile GLOBAL unsigned char *)in)[16 * lane + 1], dword_again, (u32)(x >> 32) + (u32)x};
    ((volatile GLOBAL signed char *)(out + lane))[3] = in[16 * lane + 2];
}

KERNEL halves(GLOBAL u16 *out, const GLOBAL u16 *in) {
    u32 lane = __builtin_amdgcn_workitem_id_x();
    for (u32 i = 0; i < 8; i++) out[8 * lane + i] = in[8 * lane + (i ^ 1)];
}

/* Every lane in a line of memory, and in one bank of LDS, of its own making. */
KERNEL strided(GLOBAL u32 *out, const GLOBAL u32 *in) {
    static SHARED volatile u32 local[64 * 32];
    u32 lane = __builtin_amdgcn_workitem_id_x();
    local[32 * lane] = in[64 * lane];
    out[lane] = local[32 * lane];
}

/* Kernels whose time is known, for the tests of the emulator's model of time: chains of one instruction, whose cycles
 * follow from its latency or rate, a copy, and a GEMM of the structure that the fastest public ones on MI300X have. */
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef short i16x4 __attribute__((ext_vector_type(4)));
typedef short i16x8 __attribute__((ext_vector_type(8)));
typedef unsigned int u32;
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3), loader_uninitialized, aligned(16)))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

/* 512 threads, two wavefronts on a SIMD (tools/bound-kernels.awk). */
#define BOUNDS __asm__ volatile("; bounds %0 %1" : : "n"(512), "n"(2))

/* n times 256 of the instructions. v40 holds an address in LDS, v41 zero; s[40:41] is memory of zeros. */
#define CHAIN_AT(name, offset, instructions)                                                                                          \
    KERNEL name(const GLOBAL u32 *zeros, int n) {                                                                                  \
        static SHARED u32x4 local[512];                                                                                            \
        BOUNDS;                                                                                                                    \
        u32 lane = __builtin_amdgcn_workitem_id_x();                                                                               \
        local[lane % 512] = (u32x4)0;                                                                                              \
        u32 address = (u32)(LOCAL char *)local + (offset), zero = 0;                                                            \
        for (int i = 0; i < n; i++)                                                                                                \
            __asm__ volatile(".rept 256\n" instructions "\n.endr\n s_waitcnt vmcnt(0) lgkmcnt(0)"                                  \
                             : "+{v40}"(address), "+{v41}"(zero)                                                                   \
                             : "{s[40:41]}"(zeros)                                                                                 \
                             : "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13",   \
                               "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27");  \
    }
#define CHAIN(name, stride, instructions) CHAIN_AT(name, lane % 64 * (stride), instructions)
CHAIN(chain_vector, 0, "v_add_f32 v8, v8, v8")
CHAIN(chain_packed, 0, "v_pk_fma_f32 v[8:9], v[8:9], v[8:9], v[8:9]")
CHAIN(chain_exp, 0, "v_exp_f32 v8, v8")
CHAIN(chain_scalar, 0, "s_mov_b32 s20, s20")
CHAIN(chain_nop, 0, "s_nop 3")
CHAIN(chain_matrix_16, 0, "v_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], v[4:7]")
CHAIN(chain_matrix_32, 0, "v_mfma_f32_32x32x8_bf16 v[12:27], v[0:1], v[2:3], v[12:27]")
CHAIN(chain_matrix_4, 0, "v_mfma_f32_4x4x4_16b_bf16 v[4:7], v[0:1], v[2:3], v[4:7]")
CHAIN(chain_matrix_f32, 0, "v_mfma_f32_16x16x4_f32 v[4:7], v0, v2, v[4:7]")
CHAIN(read_matrix_16, 0, "v_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], 0\n v_add_f32 v8, v4, v4")
CHAIN(read_matrix_32, 0, "v_mfma_f32_32x32x8_bf16 v[12:27], v[0:1], v[2:3], 0\n v_add_f32 v8, v12, v12")
CHAIN(matrix_beside_3_vectors, 0, "v_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], v[4:7]\n.rept 3\n v_add_f32 v8, v9, v10\n.endr")
CHAIN(matrix_beside_7_vectors, 0, "v_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], v[4:7]\n.rept 7\n v_add_f32 v8, v9, v10\n.endr")
CHAIN(lds_read_16, 16, "ds_read_b128 v[4:7], v40")
CHAIN(lds_read_8, 8, "ds_read_b64 v[4:5], v40")
CHAIN(lds_read_4, 4, "ds_read_b32 v4, v40")
/* Rows of 128 bytes of which lanes of 16 read one half: without conflicts only as the cards pair quads of lanes. */
CHAIN_AT(lds_read_paired, lane / 4 % 16 * 128 + lane / 16 % 2 * 64 + lane % 4 * 16, "ds_read_b128 v[4:7], v40")
CHAIN(lds_write_16, 16, "ds_write_b128 v40, v[4:7]")
CHAIN(lds_write_8, 8, "ds_write_b64 v40, v[4:5]")
CHAIN(lds_write_4, 4, "ds_write_b32 v40, v4")
CHAIN(lds_conflict, 128, "ds_read_b32 v4, v40")
CHAIN(lds_chase, 0, "ds_read_b32 v41, v41\n s_waitcnt lgkmcnt(0)")
CHAIN(global_chase, 0, "global_load_dword v41, v41, s[40:41]\n s_waitcnt vmcnt(0)")
CHAIN(barriers, 0, "s_barrier")

/* The first workgroup multiplies, the others do as many vector instructions. */
KERNEL uneven(const GLOBAL u32 *zeros, int n) {
    for (int i = 0; i < n; i++)
        if (__builtin_amdgcn_workgroup_id_x()) __asm__ volatile(".rept 256\n v_add_f32 v8, v8, v8\n.endr" : : "s"(zeros) : "v8");
        else
            __asm__ volatile(".rept 256\n v_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], v[4:7]\n.endr"
                :
                : "s"(zeros)
                : "v4", "v5", "v6", "v7");
}

KERNEL copy(GLOBAL u32x4 *to, const GLOBAL u32x4 *from, int n) {
    int threads = 304 * 8 * 256;
    for (int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x(); i < n; i += threads) to[i] = from[i];
}

/* Lanes read arguments by a vector load. */
typedef struct Table { u32 value[16]; } Table;
KERNEL read_arguments(GLOBAL u32 *to, Table table) {
    u32 lane = __builtin_amdgcn_workitem_id_x();
    to[lane] = table.value[lane % 16];
}

/* C [m, n] = A [m, k] B [n, k]^T in bf16, fp32 sums, as HipKittens multiplies on MI300X (arXiv 2511.08083): tiles of 256 x
 * 256 x 64 in LDS, one of each operand; the next one comes into registers meanwhile; 8 wavefronts of 128 x 64 in two
 * groups, of which one multiplies while the other reads, by a barrier that the second group has more at the start. A row
 * of a tile is 8 pieces of 16 bytes, shuffled by the row. Workgroups of a die have neighboring tiles. */
enum { TILE = 256, DEPTH = 64, PIECES = DEPTH / 8, THREADS = 512 };

static inline void meet(void) {
    __asm__ volatile("s_waitcnt lgkmcnt(0)\n s_barrier" ::: "memory");
    __builtin_amdgcn_sched_barrier(0);
}

KERNEL ping_pong(GLOBAL float *c, const GLOBAL u32x4 *a, const GLOBAL u32x4 *b, int k, int n, long tiles) {
    BOUNDS;
    static SHARED u32x4 local_a[TILE * PIECES], local_b[TILE * PIECES];
    int thread = __builtin_amdgcn_workitem_id_x(), lane = thread % 64, wave = __builtin_amdgcn_readfirstlane(thread / 64);
    int group = wave / 4, side = wave % 4, number = __builtin_amdgcn_workgroup_id_x(), of_die = (int)tiles / 8;
    if (of_die) number = number % 8 * of_die + number / 8;
    int across = n / TILE, row = number / across * TILE, column = number % across * TILE, pitch = k / 8;
    int piece = thread % PIECES, first = thread / PIECES, place = first * PIECES + (piece ^ first % 8);
    const GLOBAL u32x4 *from_a = a + (long)(row + first) * pitch + piece, *from_b = b + (long)(column + first) * pitch + piece;
    u32x4 next[8];
    f32x16 sum[4][2] = {};
    int half = lane / 32, line = lane % 32;

    for (int i = 0; i < 4; i++) next[i] = from_a[(long)64 * i * pitch], next[4 + i] = from_b[(long)64 * i * pitch];
    for (int i = 0; i < 4; i++) local_a[place + 64 * PIECES * i] = next[i], local_b[place + 64 * PIECES * i] = next[4 + i];
    meet();
    if (group) meet();
    for (int step = 0; step < k; step += DEPTH) {
        if (step + DEPTH < k) from_a += PIECES, from_b += PIECES;
#pragma unroll
        for (int i = 0; i < 4; i++) next[i] = from_a[(long)64 * i * pitch], next[4 + i] = from_b[(long)64 * i * pitch];
#pragma unroll
        for (int slice = 0; slice < 4; slice++) {
            i16x8 in_a[4], in_b[2];
            int shuffled = (2 * slice + half) ^ line % 8;
#pragma unroll
            for (int i = 0; i < 4; i++) in_a[i] = __builtin_bit_cast(i16x8, local_a[(group * 128 + 32 * i + line) * PIECES + shuffled]);
#pragma unroll
            for (int j = 0; j < 2; j++) in_b[j] = __builtin_bit_cast(i16x8, local_b[(side * 64 + 32 * j + line) * PIECES + shuffled]);
            meet();
            __builtin_amdgcn_s_setprio(1);
#pragma unroll
            for (int part = 0; part < 2; part++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        i16x4 x = part ? in_a[i].hi : in_a[i].lo, y = part ? in_b[j].hi : in_b[j].lo;
                        sum[i][j] = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x, y, sum[i][j], 0, 0, 0);
                    }
            __builtin_amdgcn_s_setprio(0);
            meet();
        }
#pragma unroll
        for (int i = 0; i < 4; i++) local_a[place + 64 * PIECES * i] = next[i], local_b[place + 64 * PIECES * i] = next[4 + i];
        meet();
        meet();
    }
    if (!group) meet();
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++)
            for (int r = 0; r < 16; r++)
                c[(long)(row + group * 128 + 32 * i + 8 * (r / 4) + 4 * half + r % 4) * n + column + side * 64 + 32 * j + line] =
                    sum[i][j][r];
}

/* Kernels of everyday shape for the emulator's tests: a sum of vectors, a reduction through LDS and lane
 * permutations, products by matrix instructions, work-item ids in three dimensions, atomics, scratch memory. */
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef short i16x4 __attribute__((ext_vector_type(4)));
typedef unsigned int u32;
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3), loader_uninitialized))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

static inline void barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

KERNEL vector_add(GLOBAL float *c, const GLOBAL float *a, const GLOBAL float *b, int n) {
    int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (i < n) c[i] = a[i] + b[i] / 3.0f;
}

static inline float shuffle(float x, int lane) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(4 * lane, __builtin_bit_cast(int, x)));
}

KERNEL row_sum(GLOBAL float *sum, const GLOBAL float *rows, int columns) {
    static SHARED float partial[4];
    int thread = __builtin_amdgcn_workitem_id_x(), lane = thread % 64;
    const GLOBAL float *row = rows + (long)__builtin_amdgcn_workgroup_id_x() * columns;
    float x = 0;
    for (int i = thread; i < columns; i += 256) x += row[i];
    for (int step = 32; step; step /= 2) x += shuffle(x, lane ^ step);
    if (lane == 0) partial[thread / 64] = x;
    barrier();
    if (thread == 0) sum[__builtin_amdgcn_workgroup_id_x()] = partial[0] + partial[1] + partial[2] + partial[3];
}

/* C[m, n] = A[m, k] B[n, k]^T in bf16, fp32 sums; one wavefront per tile of 32 x 32. */
KERNEL product_32(GLOBAL float *c, const GLOBAL i16x4 *a, const GLOBAL i16x4 *b, int k, int n) {
    int lane = __builtin_amdgcn_workitem_id_x(), row = __builtin_amdgcn_workgroup_id_y() * 32,
        column = __builtin_amdgcn_workgroup_id_x() * 32;
    f32x16 sum = 0;
    for (int i = 0; i < k; i += 8)
        sum = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(
            a[((row + lane % 32) * k + i) / 4 + lane / 32], b[((column + lane % 32) * k + i) / 4 + lane / 32], sum, 0, 0, 0);
    for (int r = 0; r < 16; r++) c[(row + 8 * (r / 4) + 4 * (lane / 32) + r % 4) * n + column + lane % 32] = sum[r];
}

KERNEL product_16(GLOBAL float *c, const GLOBAL i16x4 *a, const GLOBAL i16x4 *b, int k, int n) {
    int lane = __builtin_amdgcn_workitem_id_x(), row = __builtin_amdgcn_workgroup_id_y() * 16,
        column = __builtin_amdgcn_workgroup_id_x() * 16;
    f32x4 sum = 0;
    for (int i = 0; i < k; i += 16)
        sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
            a[((row + lane % 16) * k + i) / 4 + lane / 16], b[((column + lane % 16) * k + i) / 4 + lane / 16], sum, 0, 0, 0);
    for (int r = 0; r < 4; r++) c[(row + 4 * (lane / 16) + r) * n + column + lane % 16] = sum[r];
}

/* Every work-item writes its ids, packed, at its place in the grid. */
KERNEL ids(GLOBAL u32 *out) {
    u32 x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y(), z = __builtin_amdgcn_workitem_id_z();
    u32 width = __builtin_amdgcn_workgroup_size_x(), height = __builtin_amdgcn_workgroup_size_y(),
        depth = __builtin_amdgcn_workgroup_size_z();
    u32 group = __builtin_amdgcn_workgroup_id_x() + 3 * (__builtin_amdgcn_workgroup_id_y() + 2 * __builtin_amdgcn_workgroup_id_z());
    out[group * width * height * depth + x + width * (y + height * z)] = x | y << 8 | z << 16 | group << 24;
}

/* Counts values by their last four bits, and leaves the largest in bins[16]. */
KERNEL histogram(GLOBAL u32 *bins, const GLOBAL u32 *values) {
    static SHARED u32 local[16];
    int thread = __builtin_amdgcn_workitem_id_x();
    if (thread < 16) local[thread] = 0;
    barrier();
    u32 value = values[__builtin_amdgcn_workgroup_id_x() * 256 + thread];
    __atomic_fetch_add((LOCAL u32 *)&local[value % 16], 1, __ATOMIC_RELAXED);
    __scoped_atomic_fetch_max(&bins[16], value, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    barrier();
    if (thread < 16) __atomic_fetch_add(&bins[thread], local[thread], __ATOMIC_RELAXED);
}

/* Dynamic LDS: reverses a block of 256. */
KERNEL reverse(GLOBAL float *out, const GLOBAL float *in) {
    extern LOCAL float block[];
    int thread = __builtin_amdgcn_workitem_id_x();
    block[thread] = in[thread];
    barrier();
    out[thread] = block[255 - thread];
}

/* An array with an index that only the running program knows lives in scratch. */
KERNEL scratch(GLOBAL u32 *out, const GLOBAL u32 *index) {
    u32 lane = __builtin_amdgcn_workitem_id_x();
    volatile u32 local[32];
    for (u32 i = 0; i < 32; i++) local[i] = i * 1000 + lane;
    out[lane] = local[index[lane] % 32];
}

/* An array that would fit into no registers, addressed by lanes and by the loop. */
KERNEL scratch_array(GLOBAL u32 *out, const GLOBAL u32 *index) {
    u32 lane = __builtin_amdgcn_workitem_id_x(), local[64];
    for (u32 i = 0; i < 64; i++) local[i] = 0;
    for (u32 i = 0; i < 64; i++) local[(index[lane] + i) % 64] += i * 1000 + lane;
    out[lane] = local[index[lane] % 64] + local[(index[lane] + 5) % 64];
}

/* A pointer to the caller's scratch. */
static __attribute__((noinline)) u32 pick(const u32 *from, u32 i) { return from[i % 16] + from[(i + 1) % 16]; }
KERNEL scratch_pointer(GLOBAL u32 *out, const GLOBAL u32 *index) {
    u32 lane = __builtin_amdgcn_workitem_id_x(), local[16];
    for (u32 i = 0; i < 16; i++) local[i] = index[lane] + i * i;
    out[lane] = pick(local, index[lane]);
}

/* Values that live on while one instruction takes all registers that 1024 threads have. */
#define TEN(r) r "0", r "1", r "2", r "3", r "4", r "5", r "6", r "7", r "8", r "9"
#define ALL(r) TEN(r), TEN(r "1"), TEN(r "2"), TEN(r "3"), TEN(r "4"), TEN(r "5"), r "60", r "61", r "62", r "63"
KERNEL spills(GLOBAL u32 *out, const GLOBAL u32 *index) {
    u32 lane = __builtin_amdgcn_workitem_id_x(), x[8], sum = 0;
    for (u32 i = 0; i < 8; i++) x[i] = index[(lane + i) % 64];
    __asm__ volatile("s_nop 0" : : : ALL("v"), ALL("a"));
    for (u32 i = 0; i < 8; i++) sum = sum * 3 + x[i];
    out[lane] = sum;
}

static __attribute__((noinline)) float horner(float x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum = sum * x + (float)i;
    return sum;
}
KERNEL calls(GLOBAL float *out, int n) {
    int lane = __builtin_amdgcn_workitem_id_x();
    out[lane] = horner((float)lane / 64, n) + horner(0.5f, n);
}

/* Kernels that are each wrong in one way, which the emulator must report. All take one buffer of 256 dwords, and run
 * as one workgroup of 128. */
typedef unsigned int u32;
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3), loader_uninitialized))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void

static inline u32 thread_id(void) { return __builtin_amdgcn_workitem_id_x(); }
static inline void barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

KERNEL read_past_the_end(GLOBAL u32 *buffer) { buffer[thread_id()] = buffer[thread_id() + 129]; }
KERNEL write_past_the_end(GLOBAL u32 *buffer) { buffer[2 * thread_id() + 3] = 0; }
KERNEL misaligned_write(GLOBAL u32 *buffer) { *(GLOBAL u32 *)((GLOBAL char *)buffer + 4 * thread_id() + 2) = 1; }
KERNEL atomic_past_the_end(GLOBAL u32 *buffer) { __atomic_fetch_add(&buffer[256 + thread_id()], 1, __ATOMIC_RELAXED); }

KERNEL misaligned_atomic(GLOBAL u32 *buffer) { __asm__ volatile("global_atomic_add v0, v0, %0 offset:1" : : "s"(buffer) : "memory"); }
KERNEL scalar_past_the_end(GLOBAL u32 *buffer) {
    __asm__ volatile("s_load_dword s20, %0, 0x400\n s_waitcnt lgkmcnt(0)" : : "s"(buffer) : "s20");
}
KERNEL scratch_past_the_end(GLOBAL u32 *buffer) {
    volatile u32 own[4];
    own[thread_id() % 4] = 1;
    buffer[thread_id()] = own[buffer[thread_id()] + 0x100000];
}

KERNEL lds_past_the_end(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    ((volatile LOCAL u32 *)local)[thread_id() + buffer[0] + 1] = 1;
}
KERNEL misaligned_lds(GLOBAL u32 *buffer) {
    static SHARED u32 local[132];
    *(volatile LOCAL u32 *)((LOCAL char *)local + 4 * thread_id() + 2) = buffer[0];
}
KERNEL unwritten_lds(GLOBAL u32 *buffer) {
    static SHARED u32 local[256];
    local[2 * thread_id()] = 1;
    barrier();
    buffer[thread_id()] = local[thread_id()];
}
KERNEL unwritten_register(GLOBAL u32 *buffer) {
    u32 x;
    __asm__ volatile("v_add_u32 %0, v77, 1" : "=v"(x));
    buffer[thread_id()] = x;
}
KERNEL unwritten_address(GLOBAL u32 *buffer) { __asm__ volatile("global_store_dword v77, v0, %0" : : "s"(buffer)); }
KERNEL unwritten_scalar_address(GLOBAL u32 *buffer) { __asm__ volatile("global_store_dword v0, v0, s[40:41]"); }
KERNEL undefined_through_lds(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    u32 x;
    __asm__ volatile("v_mov_b32 %0, v77" : "=v"(x));
    local[thread_id()] = x;
    barrier();
    buffer[thread_id()] = local[thread_id()];
}
KERNEL missing_wait_memory(GLOBAL u32 *buffer) {
    __asm__ volatile("global_load_dword v20, %1, %0\n v_add_u32 v20, v20, v20\n s_waitcnt vmcnt(0)" : : "s"(buffer), "v"(0) : "v20");
}
KERNEL weak_wait_memory(GLOBAL u32 *buffer) {
    __asm__ volatile("global_load_dword v20, %1, %0\n global_load_dword v21, %1, %0\n s_waitcnt vmcnt(1)\n v_mov_b32 v20, v20\n"
                     "v_mov_b32 v21, v21\n s_waitcnt vmcnt(0)"
        :
        : "s"(buffer), "v"(0)
        : "v20", "v21");
}
KERNEL missing_wait_lds(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    local[thread_id()] = buffer[0];
    __asm__ volatile("ds_read_b32 v20, %0\n s_waitcnt vmcnt(0)\n v_mov_b32 v21, v20\n s_waitcnt lgkmcnt(0)"
        :
        : "v"((u32)(LOCAL char *)&local[thread_id()])
        : "v20", "v21");
}
/* As clang leaves the wait out: the first pass of the loop is right, and its back edge reaches the barrier with a write outstanding. */
KERNEL missing_wait_barrier(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    __asm__ volatile("s_mov_b32 s20, 2\n"
                     "0: s_barrier\n ds_write_b32 %0, %0\n s_sub_u32 s20, s20, 1\n s_cmp_lg_u32 s20, 0\n s_cbranch_scc1 0b\n"
                     "s_waitcnt lgkmcnt(0)"
        :
        : "v"((u32)(LOCAL char *)&local[thread_id()])
        : "s20", "scc", "memory");
    buffer[thread_id()] = 1;
}
/* Another wave may write before this one has read. */
KERNEL missing_wait_lds_read(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    u32 own = (u32)(LOCAL char *)&local[thread_id()];
    __asm__ volatile("ds_write_b32 %0, %0\n s_waitcnt lgkmcnt(0)\n ds_read_b32 v20, %0\n s_barrier\n s_waitcnt lgkmcnt(0)"
        :
        : "v"(own)
        : "v20", "memory");
    buffer[thread_id()] = 1;
}
KERNEL missing_wait_scalar(GLOBAL u32 *buffer) {
    __asm__ volatile(
        "s_load_dword s20, %0, 0x0\n s_load_dword s21, %0, 0x4\n s_waitcnt lgkmcnt(1)\n s_add_u32 s22, s20, 1\n s_waitcnt lgkmcnt(0)"
        :
        : "s"(buffer)
        : "s20", "s21", "s22");
}
KERNEL race_read_after_write(GLOBAL u32 *buffer) {
    static SHARED volatile u32 local[64];
    if (thread_id() < 64) local[thread_id()] = thread_id();
    buffer[thread_id()] = local[thread_id() % 64];
}
KERNEL race_write_after_read(GLOBAL u32 *buffer) {
    static SHARED volatile u32 local[128];
    local[thread_id()] = thread_id();
    barrier();
    u32 x = local[127 - thread_id()];
    if (thread_id() >= 64) local[thread_id()] = x + buffer[0];
}
KERNEL race_of_writes(GLOBAL u32 *buffer) {
    static SHARED volatile u32 local[1];
    local[0] = buffer[thread_id()];
}
KERNEL divergent_barrier(GLOBAL u32 *buffer) {
    if (thread_id() % 2) barrier();
    buffer[thread_id()] = 1;
}
KERNEL barriers_apart(GLOBAL u32 *buffer) {
    if (__builtin_amdgcn_readfirstlane(thread_id()) < 64) __asm__ volatile("s_barrier");
    else __asm__ volatile("s_nop 1\n s_barrier");
    buffer[thread_id()] = 1;
}
/* Not a fault: the second wavefront is a phase behind the first, which the hardware, counting arrivals, allows. */
KERNEL barriers_in_turns(GLOBAL u32 *buffer) {
    static SHARED volatile u32 local[64];
    __asm__ volatile("s_setprio 0");
    if (__builtin_amdgcn_readfirstlane(thread_id()) >= 64) __asm__ volatile("s_barrier");
    else {
        local[thread_id()] = thread_id() + 1;
        __asm__ volatile("s_waitcnt lgkmcnt(0)" : : : "memory");
    }
    __asm__ volatile("s_barrier" : : : "memory");
    if (__builtin_amdgcn_readfirstlane(thread_id()) < 64) __asm__ volatile("s_barrier");
    else buffer[thread_id()] = local[thread_id() - 64];
}
KERNEL ended_wavefront(GLOBAL u32 *buffer) {
    if (__builtin_amdgcn_readfirstlane(thread_id()) >= 64) return;
    barrier();
    buffer[thread_id()] = 1;
}
KERNEL exchange_with_half_of_the_lanes(GLOBAL u32 *buffer) {
    u32 x = thread_id();
    if (thread_id() % 2 == 0) x = (u32)__builtin_amdgcn_ds_bpermute((int)(4 * (thread_id() ^ 1)), (int)x);
    buffer[thread_id()] = x;
}
KERNEL unknown_instruction(GLOBAL u32 *buffer) {
    __asm__ volatile("v_mqsad_pk_u16_u8 v[20:21], v[22:23], v24, v[26:27]" : : : "v20", "v21");
    buffer[0] = 1;
}
KERNEL trap(GLOBAL u32 *buffer) {
    buffer[thread_id()] = 1;
    __builtin_trap();
}

/* Kernels that wait for another device, in memory that devices share: dword 128 is for it to read, 1 after this kernel has begun;
 * it then writes dwords 0 to 63, and last dword 64. */
static inline u32 look(GLOBAL u32 *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void await(GLOBAL u32 *signal) {
    while (!look(signal)) {}
}
static inline void begin(GLOBAL u32 *buffer) {
    if (thread_id() == 0) __atomic_store_n(&buffer[128], 1, __ATOMIC_RELAXED);
}
KERNEL reads_after_the_signal(GLOBAL u32 *buffer) {
    begin(buffer);
    await(&buffer[64]);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    buffer[192 + thread_id() % 64] = look(&buffer[thread_id() % 64]);
}
KERNEL reads_before_the_signal(GLOBAL u32 *buffer) {
    u32 x = look(&buffer[thread_id() % 64]);
    begin(buffer);
    await(&buffer[64]);
    buffer[192 + thread_id() % 64] = x;
}

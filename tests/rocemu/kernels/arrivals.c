/* Kernels whose results depend on when an access arrives, since a wait is missing, and beside each the same with the wait.
 * All take one buffer of 256 dwords, and run as one workgroup of 128: thread i leaves 1000 + i in dword i if all accesses
 * arrive early. */
typedef unsigned int u32;
#define GLOBAL __attribute__((address_space(1)))
#define SHARED __attribute__((address_space(3), loader_uninitialized))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define WAIT "s_waitcnt vmcnt(0) lgkmcnt(0)\n"
#define NO_WAIT "\n"

static inline u32 thread_id(void) { return __builtin_amdgcn_workitem_id_x(); }

/* The name as it is, and NAME_waits. */
#define BOTH(name, body)                              \
    KERNEL name(GLOBAL u32 *buffer) { body(NO_WAIT) } \
    KERNEL name##_waits(GLOBAL u32 *buffer) { body(WAIT) }

/* Other waves read LDS after the barrier. */
#define LDS_WRITE(wait)                                                                                                          \
    static SHARED u32 local[128];                                                                                                \
    u32 own = (u32)(LOCAL char *)&local[thread_id()], other = (u32)(LOCAL char *)&local[127 - thread_id()], x;                   \
    __asm__ volatile("ds_write_b32 %1, %3\n" WAIT "s_barrier\n ds_write_b32 %1, %4\n" wait "s_barrier\n ds_read_b32 %0, %2\n" WAIT \
        : "=&v"(x)                                                                                                               \
        : "v"(own), "v"(other), "v"(7), "v"(1127 - thread_id())                                                                  \
        : "memory");                                                                                                             \
    buffer[thread_id()] = x;
BOTH(lds_write, LDS_WRITE)

/* Other waves overwrite LDS after the barrier. */
#define LDS_READ(wait)                                                                                                           \
    static SHARED u32 local[128];                                                                                                \
    u32 own = (u32)(LOCAL char *)&local[thread_id()], other = (u32)(LOCAL char *)&local[127 - thread_id()], x;                   \
    __asm__ volatile("ds_write_b32 %1, %3\n" WAIT "s_barrier\n ds_read_b32 %0, %2\n" wait "s_barrier\n ds_write_b32 %1, %4\n" WAIT \
        : "=&v"(x)                                                                                                               \
        : "v"(own), "v"(other), "v"(1127 - thread_id()), "v"(7)                                                                  \
        : "memory");                                                                                                             \
    buffer[thread_id()] = x;
BOTH(lds_read, LDS_READ)

/* Other waves read device memory after the barrier. */
#define STORE(wait)                                                                                                             \
    u32 own = 4 * (128 + thread_id()), other = 4 * (255 - thread_id()), x;                                                      \
    __asm__ volatile("global_store_dword %1, %3, %4\n" wait "s_barrier\n global_load_dword %0, %2, %4\n" WAIT                   \
        : "=&v"(x)                                                                                                              \
        : "v"(own), "v"(other), "v"(1127 - thread_id()), "s"(buffer)                                                            \
        : "memory");                                                                                                            \
    buffer[thread_id()] = x;
BOTH(store, STORE)

/* Other waves overwrite device memory after the barrier. */
#define LOAD(wait)                                                                                                              \
    u32 own = 4 * (128 + thread_id()), other = 4 * (255 - thread_id()), x;                                                      \
    __asm__ volatile("global_store_dword %1, %3, %4\n" WAIT "s_barrier\n global_load_dword %0, %2, %4\n" wait "s_barrier\n"     \
                     "global_store_dword %1, %5, %4\n" WAIT                                                                     \
        : "=&v"(x)                                                                                                              \
        : "v"(own), "v"(other), "v"(1127 - thread_id()), "s"(buffer), "v"(7)                                                    \
        : "memory");                                                                                                            \
    buffer[thread_id()] = x;
BOTH(load, LOAD)

/* The wave itself uses a register before the load has brought it. */
#define USE(wait)                                                                                                               \
    u32 own = 4 * thread_id(), x;                                                                                               \
    __asm__ volatile("v_mov_b32 v20, 0\n global_store_dword %1, %2, %3\n" WAIT "global_load_dword v20, %1, %3\n" wait          \
                     "v_mov_b32 %0, v20\n" WAIT                                                                                 \
        : "=&v"(x)                                                                                                              \
        : "v"(own), "v"(1000 + thread_id()), "s"(buffer)                                                                        \
        : "memory", "v20");                                                                                                     \
    buffer[thread_id()] = x;
BOTH(use, USE)

/* A wave that ends with accesses outstanding, which is no fault: s_endpgm waits. A late one takes the registers of its own instruction, and
 * so it is if one of them is also its result. */
KERNEL ends(GLOBAL u32 *buffer) {
    u32 own = 4 * thread_id();
    __asm__ volatile("v_mov_b32 v20, %1\n global_store_dword %0, v20, %2\n v_mov_b32 v20, 7\n"
        :
        : "v"(own), "v"(1000 + thread_id()), "s"(buffer)
        : "memory", "v20");
}
KERNEL overlaps(GLOBAL u32 *buffer) {
    static SHARED u32 local[128];
    u32 x = (u32)(LOCAL char *)&local[thread_id()];
    __asm__ volatile("ds_write_b32 %0, %1\n ds_read_b32 %0, %0\n" WAIT : "+v"(x) : "v"(1000 + thread_id()) : "memory");
    buffer[thread_id()] = x;
}

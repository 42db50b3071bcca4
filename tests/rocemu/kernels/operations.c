/* A kernel for every row of operations.h: work-item i takes a[i], b[i], c[i] and writes d[i]; of the scalar rows,
 * workgroup i does. */
#include "../operations.h"

typedef unsigned int u32;
typedef unsigned long u64;
#define GLOBAL __attribute__((address_space(1)))
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define SCRATCHED "vcc", "scc", "s8", "s9", "v20", "v21", "v22", "v23", "v24"

/* Fixed registers, so that the rows can name halves of pairs. */
#define VECTOR_u32(n) "{v" #n "}"
#define VECTOR_u64(n) "{v[" #n ":" VECTOR_END_##n "]}"
#define VECTOR_END_2 "3"
#define VECTOR_END_4 "5"
#define VECTOR_END_6 "7"
#define VECTOR_END_8 "9"
#define SCALAR_u32(n) "{s" #n "}"
#define SCALAR_u64(n) "{s[" #n ":" SCALAR_END_##n "]}"
#define SCALAR_END_12 "13"
#define SCALAR_END_14 "15"
#define SCALAR_END_16 "17"

#define X(name, kind, D, A, B, C, assembly, ulps, expression)                                                                                          \
    KERNEL vector_##name(GLOBAL u64 *out, const GLOBAL u64 *a, const GLOBAL u64 *b, const GLOBAL u64 *c) {                                             \
        u32 i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();                                                            \
        D d;                                                                                                                                           \
        __asm__ volatile(assembly : "=&" VECTOR_##D(2)(d) : VECTOR_##A(4)((A)a[i]), VECTOR_##B(6)((B)b[i]), VECTOR_##C(8)((C)c[i]) : SCRATCHED);       \
        out[i] = d;                                                                                                                                    \
    }
VECTOR_INTEGER(X)
VECTOR_PACKED_INTEGER(X)
VECTOR_FLOAT(X)
VECTOR_HALF(X)
VECTOR_COMPARE(X)
#if defined __gfx950__
VECTOR_GFX950(X)
#endif
#undef X

#define X(name, D, A, B, assembly, expression)                                                                                                         \
    KERNEL scalar_##name(GLOBAL u64 *out, const GLOBAL u64 *a, const GLOBAL u64 *b) {                                                                  \
        u32 i = __builtin_amdgcn_workgroup_id_x();                                                                                                     \
        D d;                                                                                                                                           \
        __asm__ volatile(assembly : "=&" SCALAR_##D(12)(d) : SCALAR_##A(14)((A)a[i]), SCALAR_##B(16)((B)b[i]) : SCRATCHED);                            \
        out[i] = d;                                                                                                                                    \
    }
SCALAR_OPERATIONS(X)

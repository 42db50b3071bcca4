/* Sums, maxima and minima over the inputs of several ranks, in rank order. f32 is added in double
 * and bf16 in fp32, and the result is rounded once. Owns no memory. Called by host.c on the worker
 * thread. */

#include "base/bf16.h"
#include "comm/comm_internal.h"

enum { BLOCK = 1024 }; /* elements summed at a time, so that their sums stay in the L1 cache */

int64_t type_bytes(CommType type) {
    static const int64_t bytes[] = {[COMM_F32] = 4, [COMM_F64] = 8, [COMM_BF16] = 2, [COMM_I64] = 8, [COMM_U8] = 1};
    return bytes[type];
}

#define SAME(x) (x)
#define NOT_A_NUMBER(x) ((x) != (x))
#define NEVER(x) 0

/* STORED is the elements' type, SUM the type for additions (unsigned if sums wrap), VALUE the type
 * for comparisons. */
#define DEFINE_REDUCE(name, STORED, SUM, VALUE, load, store, is_nan)                                                                    \
    static void reduce_##name(CommReduce reduce, int64_t count, int inputs, const void *const *input, int64_t at, STORED *result) {     \
        SUM sum[BLOCK];                                                                                                                 \
        const STORED *first = (const STORED *)input[0] + at;                                                                            \
        for (int64_t i = 0; i < count; i++) sum[i] = (SUM)load(first[i]);                                                               \
        for (int p = 1; p < inputs; p++) {                                                                                              \
            const STORED *next = (const STORED *)input[p] + at;                                                                         \
            if (reduce == COMM_SUM) {                                                                                                   \
                for (int64_t i = 0; i < count; i++) sum[i] += (SUM)load(next[i]);                                                       \
                continue;                                                                                                               \
            }                                                                                                                           \
            for (int64_t i = 0; i < count; i++) {                                                                                       \
                VALUE a = (VALUE)sum[i], b = (VALUE)load(next[i]);                                                                      \
                if (is_nan(b) || (reduce == COMM_MAX ? b > a : b < a)) sum[i] = (SUM)b;                                                 \
            }                                                                                                                           \
        }                                                                                                                               \
        for (int64_t i = 0; i < count; i++) result[at + i] = (STORED)store(sum[i]);                                                     \
    }

DEFINE_REDUCE(f32, float, double, double, SAME, SAME, NOT_A_NUMBER)
DEFINE_REDUCE(f64, double, double, double, SAME, SAME, NOT_A_NUMBER)
DEFINE_REDUCE(bf16, uint16_t, float, float, bf16_to_float, bf16_from_float, NOT_A_NUMBER)
DEFINE_REDUCE(i64, int64_t, uint64_t, int64_t, SAME, SAME, NEVER)
DEFINE_REDUCE(u8, uint8_t, uint8_t, uint8_t, SAME, SAME, NEVER)

void reduce_inputs(CommType type, CommReduce reduce, int64_t count, int inputs, const void *const *input, void *result) {
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t block = count - at < BLOCK ? count - at : BLOCK;
        switch (type) {
        case COMM_F32: reduce_f32(reduce, block, inputs, input, at, result); break;
        case COMM_F64: reduce_f64(reduce, block, inputs, input, at, result); break;
        case COMM_BF16: reduce_bf16(reduce, block, inputs, input, at, result); break;
        case COMM_I64: reduce_i64(reduce, block, inputs, input, at, result); break;
        case COMM_U8: reduce_u8(reduce, block, inputs, input, at, result); break;
        }
    }
}

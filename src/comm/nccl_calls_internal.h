/* The parts of NCCL and RCCL that nccl.c uses; both have the same interface. tools/check-headers
 * compiles these tables against the libraries' own headers. */
#pragma once

#include <stddef.h>

enum { ID_BYTES = 128 };
typedef struct NcclId { char bytes[ID_BYTES]; } NcclId;

/* (our name, symbol, arguments). Each returns 0 or an error number. */
#define NCCL_CALLS(CALL)                                                                                                                                \
    CALL(version, ncclGetVersion, (int *version))                                                                                                       \
    CALL(make_id, ncclGetUniqueId, (NcclId *id))                                                                                                        \
    CALL(join, ncclCommInitRank, (void **group, int size, NcclId id, int rank))                                                                         \
    CALL(leave, ncclCommDestroy, (void *group))                                                                                                         \
    CALL(abort, ncclCommAbort, (void *group))                                                                                                           \
    CALL(error_of, ncclCommGetAsyncError, (void *group, int *result))                                                                                   \
    CALL(all_reduce, ncclAllReduce, (const void *send, void *receive, size_t count, int type, int reduce, void *group, void *stream))                   \
    CALL(reduce_scatter, ncclReduceScatter, (const void *send, void *receive, size_t count, int type, int reduce, void *group, void *stream))           \
    CALL(reduce, ncclReduce, (const void *send, void *receive, size_t count, int type, int reduce, int root, void *group, void *stream))                \
    CALL(all_gather, ncclAllGather, (const void *send, void *receive, size_t count, int type, void *group, void *stream))                               \
    CALL(broadcast, ncclBroadcast, (const void *send, void *receive, size_t count, int type, int root, void *group, void *stream))                      \
    CALL(send, ncclSend, (const void *send, size_t count, int type, int peer, void *group, void *stream))                                               \
    CALL(receive, ncclRecv, (void *receive, size_t count, int type, int peer, void *group, void *stream))                                               \
    CALL(begin, ncclGroupStart, (void))                                                                                                                 \
    CALL(end, ncclGroupEnd, (void))

/* Results of failures that a lack of memory can cause (ncclResult_t). */
enum { NCCL_UNHANDLED_CUDA_ERROR = 1, NCCL_SYSTEM_ERROR = 2, NCCL_INTERNAL_ERROR = 3 };

/* (our number in comm/comm.h, the library's number, its name) */
#define NCCL_TYPES(NUMBER)          \
    NUMBER(COMM_F32, 7, ncclFloat32) \
    NUMBER(COMM_F64, 8, ncclFloat64) \
    NUMBER(COMM_BF16, 9, ncclBfloat16) \
    NUMBER(COMM_I64, 4, ncclInt64) \
    NUMBER(COMM_U8, 1, ncclUint8)
#define NCCL_REDUCTIONS(NUMBER) \
    NUMBER(COMM_SUM, 0, ncclSum) \
    NUMBER(COMM_MAX, 2, ncclMax) \
    NUMBER(COMM_MIN, 3, ncclMin)

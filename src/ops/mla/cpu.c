/* mla_pack and its gradient on a CPU: one thread per row. No scratch. */
#include "backend/cpu/kernel.h"
#include "ops/mla/mla.h"

CPU_OP(mla_pack) {
    const MlaPackAttributes *a = call->attributes;
    const T *queries = call->in[MLA_PACK_QUERIES], *keys_values = call->in[MLA_PACK_KEYS_VALUES], *shared = call->in[MLA_PACK_SHARED_KEY];
    T *qkv = call->out[MLA_PACK_QKV];
    int64_t rows = call->in_shape[MLA_PACK_QUERIES][0], dim = a->heads.qk_dim, rotated = a->rotated, plain = dim - rotated;
    int64_t query_columns = heads_query_columns(&a->heads), value = a->heads.v_dim;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        T *query = qkv + r * heads_columns(&a->heads), *key = query + query_columns, *values = key + query_columns;
        for (int64_t h = 0; h < a->heads.heads; h++, query += dim, key += dim, values += value) {
            const T *q = queries + (r * a->heads.heads + h) * dim, *kv = keys_values + (r * a->heads.heads + h) * (plain + value);
            memcpy(query, q + plain, rotated * sizeof(T));
            memcpy(query + rotated, q, plain * sizeof(T));
            memcpy(key, shared + r * rotated, rotated * sizeof(T));
            memcpy(key + rotated, kv, plain * sizeof(T));
            memcpy(values, kv + plain, value * sizeof(T));
        }
    }
}

CPU_OP(mla_pack_grad) {
    const MlaPackAttributes *a = call->attributes;
    const T *d_qkv = call->in[MLA_PACK_GRAD_D_QKV];
    T *d_queries = call->out[MLA_PACK_GRAD_D_QUERIES], *d_keys_values = call->out[MLA_PACK_GRAD_D_KEYS_VALUES];
    T *d_shared = call->out[MLA_PACK_GRAD_D_SHARED_KEY];
    int64_t rows = call->in_shape[MLA_PACK_GRAD_D_QKV][0], dim = a->heads.qk_dim, rotated = a->rotated, plain = dim - rotated;
    int64_t query_columns = heads_query_columns(&a->heads), value = a->heads.v_dim;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *query = d_qkv + r * heads_columns(&a->heads), *key = query + query_columns, *values = key + query_columns;
        for (int64_t i = 0; i < rotated; i++) {
            W sum = 0;
            for (int64_t h = 0; h < a->heads.heads; h++) sum += to_wide(key[h * dim + i]);
            d_shared[r * rotated + i] = to_compute(sum);
        }
        for (int64_t h = 0; h < a->heads.heads; h++, query += dim, key += dim, values += value) {
            T *q = d_queries + (r * a->heads.heads + h) * dim, *kv = d_keys_values + (r * a->heads.heads + h) * (plain + value);
            memcpy(q, query + rotated, plain * sizeof(T));
            memcpy(q + plain, query, rotated * sizeof(T));
            memcpy(kv, key + rotated, plain * sizeof(T));
            memcpy(kv + plain, values, value * sizeof(T));
        }
    }
}

/* mla_pack and its gradient on a GPU. A thread takes 8 neighboring channels of a row of the result,
 * or one if 8 does not divide the widths. The gradient's results are the columns of one tiling: those of
 * the queries, of keys and values, and of the shared key, whose threads sum over the heads in order.
 * No scratch. */
#include "backend/gpu/vector.h"

typedef struct MlaPackArguments {
    bf16 GLOBAL *queries, *keys_values, *shared, *qkv; /* the gradients of these in mla_pack_grad */
    int32_t heads, plain, rotated, value;              /* channels of a head */
    Tiling tiling;                                     /* of the results' columns */
} MlaPackArguments;

#ifdef GPU_DEVICE

/* Returns where the columns of qkv from `column` on come from. */
INLINE const bf16 GLOBAL *mla_source(const MlaPackArguments *a, int64_t row, int column) {
    int dim = a->plain + a->rotated, queries = a->heads * dim, width = a->plain + a->value;
    bf16 GLOBAL *keys_values = a->keys_values + row * a->heads * width;
    if (column >= 2 * queries) {
        int head = (column - 2 * queries) / a->value, within = column - 2 * queries - head * a->value;
        return keys_values + head * width + a->plain + within;
    }
    bool key = column >= queries;
    int head = (key ? column - queries : column) / dim, within = (key ? column - queries : column) - head * dim;
    if (key) return within < a->rotated ? a->shared + row * a->rotated + within : keys_values + head * width + within - a->rotated;
    return a->queries + row * queries + head * dim + (within < a->rotated ? within + a->plain : within - a->rotated);
}

INLINE void mla_pack_unit(const MlaPackArguments *a, const int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    bf16 GLOBAL *to = a->qkv + place.row * a->tiling.columns + place.column;
    store8_bf16(to, load8_bf16(mla_source(a, place.row, place.column), unit), unit);
}

INLINE void mla_pack_grad_unit(const MlaPackArguments *a, const int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int dim = a->plain + a->rotated, width = a->plain + a->value, queries = a->heads * dim, column = place.column;
    const bf16 GLOBAL *d_qkv = a->qkv + place.row * (2 * queries + a->heads * a->value), *d_keys = d_qkv + queries;
    if (column < queries) {
        int head = column / dim, within = column - head * dim;
        int from = head * dim + (within < a->plain ? within + a->rotated : within - a->plain);
        store8_bf16(a->queries + place.row * queries + column, load8_bf16(d_qkv + from, unit), unit);
    } else if (column < queries + a->heads * width) {
        column -= queries;
        int head = column / width, within = column - head * width;
        int from = within < a->plain ? head * dim + a->rotated + within : queries + head * a->value + within - a->plain;
        store8_bf16(a->keys_values + place.row * a->heads * width + column, load8_bf16(d_keys + from, unit), unit);
    } else {
        column -= queries + a->heads * width;
        f32x8 sum = 0;
        for (int head = 0; head < a->heads; head++) sum += load8_bf16(d_keys + head * dim + column, unit);
        store8_bf16(a->shared + place.row * a->rotated + column, sum, unit);
    }
}

UNIT_KERNELS(mla_pack, MlaPackArguments, mla_pack_unit, 8)
UNIT_KERNELS(mla_pack_grad, MlaPackArguments, mla_pack_grad_unit, 8)

#else

#include "ops/mla/mla.h"

TILED_LAUNCHER(mla_pack, MlaPackArguments, 8)
TILED_LAUNCHER(mla_pack_grad, MlaPackArguments, 8)

static MlaPackArguments mla_arguments(const MlaPackAttributes *a, int64_t rows, int64_t columns) {
    int64_t plain = a->heads.qk_dim - a->rotated;
    bool wide = plain % 8 == 0 && a->rotated % 8 == 0 && a->heads.v_dim % 8 == 0;
    return (MlaPackArguments){.heads = (int32_t)a->heads.heads,
        .plain = (int32_t)plain,
        .rotated = (int32_t)a->rotated,
        .value = (int32_t)a->heads.v_dim,
        .tiling = tile_units(rows, columns, wide ? 8 : 1)};
}

GPU_OP(mla_pack) {
    const int64_t *shape = call->out_shape[MLA_PACK_QKV];
    MlaPackArguments arguments = mla_arguments(call->attributes, shape[0], shape[1]);
    arguments.queries = call->in[MLA_PACK_QUERIES];
    arguments.keys_values = call->in[MLA_PACK_KEYS_VALUES];
    arguments.shared = call->in[MLA_PACK_SHARED_KEY];
    arguments.qkv = call->out[MLA_PACK_QKV];
    launch_mla_pack(call->device, &arguments);
}

GPU_OP(mla_pack_grad) {
    int64_t rows = call->in_shape[MLA_PACK_GRAD_D_QKV][0], columns = 0;
    for (int i = MLA_PACK_GRAD_D_QUERIES; i <= MLA_PACK_GRAD_D_SHARED_KEY; i++) columns += call->out_shape[i][1];
    MlaPackArguments arguments = mla_arguments(call->attributes, rows, columns);
    arguments.queries = call->out[MLA_PACK_GRAD_D_QUERIES];
    arguments.keys_values = call->out[MLA_PACK_GRAD_D_KEYS_VALUES];
    arguments.shared = call->out[MLA_PACK_GRAD_D_SHARED_KEY];
    arguments.qkv = call->in[MLA_PACK_GRAD_D_QKV];
    launch_mla_pack_grad(call->device, &arguments);
}

#endif

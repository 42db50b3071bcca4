/* Attention over a key-value cache on a CPU. A tile (cpu_tile.h) holds pairs of a row and a query head that share a
 * key-value head, row by row, so that one new row still fills vectors with the heads of its group. A thread takes a
 * tile. Scratch: per tile, its queries and sums, and one block of keys and values. */
#include "backend/cpu/kernel.h"
#include "ops/attention/cpu_tile.h"
#include "ops/attention/attention.h"

static inline int64_t cached_tiles(const Heads *heads, int64_t rows) {
    return attention_padded_rows(rows * (heads->heads / heads->kv_heads)) / ATTENTION_TILE;
}
/* Elements of scratch of a tile: its queries and sums, and one block of keys and values. */
static inline int64_t cached_elements(const Heads *heads) {
    return attention_tile_elements(heads->head_dim) + 2 * ATTENTION_TILE * attention_width(heads->head_dim);
}

static int64_t workspace(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    int64_t tiles = cached_tiles(&spec->heads, graph_rows(graph, node->in[ATTENTION_QKV])) * spec->heads.kv_heads;
    return tiles * cached_elements(&spec->heads) * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

typedef struct Cached {
    const AttentionSpec *spec;
    const T *qkv, *cache;
    const int32_t *positions;
    T *out;
    int64_t rows, columns, group;
} Cached;

static void append(const Cached *c, T *cache) {
    int64_t queries = c->spec->heads.heads * c->spec->heads.head_dim, columns = c->columns - queries;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < c->rows; r++) memcpy(cache + c->positions[r] * columns, c->qkv + r * c->columns + queries, columns * sizeof(T));
}

/* Loads queries first .. first + count - 1 of a key-value head; query i is query head i % group of the key-value head,
 * of row i / group. */
static void load_queries(const Cached *c, AttentionTile *tile, int64_t kv_head, int64_t first, int64_t count) {
    W scale = attention_scale(c->spec);
    tile->mask.sloped = c->spec->alibi > 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / c->group, head = kv_head * c->group + (first + i) % c->group;
        int64_t position = c->positions[row], window = c->spec->window;
        tile->mask.low[i] = (W)(window > 0 ? int_max(position - window + 1, 0) : 0);
        tile->mask.high[i] = (W)position;
        if (tile->mask.sloped) tile->mask.slope[i] = attention_slope(c->spec, head);
        attention_load_row(tile->out + i * tile->width, c->qkv + row * c->columns + head * tile->head_dim, tile->head_dim, scale);
    }
    attention_mask_finish(&tile->mask, count);
    memset(tile->out + count * tile->width, 0, (tile->mask.queries - count) * tile->width * sizeof(W));
    attention_transpose(tile->queries, tile->out, tile->mask.queries, tile->width);
}

static void cached_tile(const Cached *c, int64_t kv_head, int64_t first, W *scratch) {
    const Heads *heads = &c->spec->heads;
    int64_t count = int_min(ATTENTION_TILE, c->rows * c->group - first), stride = 2 * heads->kv_heads * heads->head_dim;
    AttentionTile tile;
    attention_tile_place(&tile, scratch, heads->head_dim);
    W *keys = scratch + attention_tile_elements(heads->head_dim), *values = keys + ATTENTION_TILE * tile.width;
    load_queries(c, &tile, kv_head, first, count);
    attention_tile_begin(&tile);
    for (int64_t key = tile.mask.first_key; key <= tile.mask.last_key; key += ATTENTION_TILE) {
        int64_t rows = int_min(ATTENTION_TILE, tile.mask.last_key + 1 - key), padded = attention_width(rows);
        const T *from = c->cache + key * stride + kv_head * heads->head_dim;
        attention_load(keys, from, stride, rows, padded, heads->head_dim, 1);
        attention_load(values, from + heads->kv_heads * heads->head_dim, stride, rows, padded, heads->head_dim, 1);
        attention_tile_add_block(&tile, keys, values, key, rows);
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / c->group, head = kv_head * c->group + (first + i) % c->group;
        attention_tile_store(&tile, i, c->out + (row * heads->heads + head) * heads->head_dim);
    }
}

CPU_OP(attention_cached, workspace) {
    const AttentionSpec *spec = call->attributes;
    const Heads *heads = &spec->heads;
    Cached c = {.spec = spec,
        .qkv = call->in[ATTENTION_QKV],
        .cache = call->out[ATTENTION_CACHED_CACHE],
        .positions = call->in[ATTENTION_POSITIONS],
        .out = call->out[ATTENTION_CACHED_OUT],
        .rows = call->in_shape[ATTENTION_QKV][0],
        .columns = call->in_shape[ATTENTION_QKV][1],
        .group = heads->heads / heads->kv_heads};
    int64_t tiles = cached_tiles(heads, c.rows), elements = cached_elements(heads);
    for (int64_t r = 0; r < c.rows; r++) assert(c.positions[r] >= 0 && c.positions[r] < call->out_shape[ATTENTION_CACHED_CACHE][0]);
    append(&c, call->out[ATTENTION_CACHED_CACHE]);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < tiles * heads->kv_heads; i++)
        cached_tile(&c, i % heads->kv_heads, i / heads->kv_heads * ATTENTION_TILE, (W *)call->workspace + i * elements);
}

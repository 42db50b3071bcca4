/* Attention over a key-value cache, or a rank's part of one, on a CPU. A tile (cpu_tile_kernels.h) holds
 * pairs of a row and a query head that share a key-value head, row by row, so that even one new row
 * fills vectors with the heads of its group. Keys are numbered by position: a block of keys is one
 * of the block-cyclic blocks of the ranks. A thread takes a tile. Scratch per tile: its queries and
 * sums, and one block of keys and values. */
#include "backend/cpu/kernel.h"
#include "ops/attention/cpu_tile_kernels.h"
#include "ops/attention/attention.h"

static_assert((int)ATTENTION_TILE == BLOCK_CYCLIC_ROWS, "positions of a block of keys are consecutive");

/* Returns the tiles of a key-value head of a sequence. */
static inline int64_t cached_tiles(const AttentionSpec *spec) {
    return attention_padded_rows(spec->length * (spec->heads.heads / spec->heads.kv_heads)) / ATTENTION_TILE;
}
/* Returns the scratch elements of a tile: its queries and sums, and one block of keys and
 * values. */
static inline int64_t cached_elements(const Heads *heads) {
    return attention_tile_elements(heads) + ATTENTION_TILE * (attention_width(heads->qk_dim) + attention_width(heads->v_dim));
}

static int64_t cached_cpu_workspace(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    int64_t sequences = graph_rows(graph, node->in[ATTENTION_QKV]) / spec->length, tiles = cached_tiles(spec) * spec->heads.kv_heads;
    return sequences * tiles * cached_elements(&spec->heads) * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

typedef struct Cached {
    const AttentionSpec *spec;
    const T *qkv, *cache;
    const int32_t *positions;
    const int32_t *first_rows; /* in the cache, of each sequence; NULL: there is one, from row 0 on */
    const W *sinks;            /* of the heads; NULL: none, or another rank counts them */
    T *out;                    /* if the cache is whole, else NULL */
    W *part;                   /* of this rank, else NULL */
    BlockCyclic cyclic;
    int64_t rows, columns, group;
} Cached;

/* Returns the cache row of position 0 of the sequence that has row r. */
static int64_t first_row(const Cached *c, int64_t r) { return c->first_rows ? c->first_rows[r / c->spec->length] : 0; }

static void append_rows(const Cached *c, T *cache) {
    int64_t queries = heads_query_columns(&c->spec->heads), columns = c->columns - queries;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < c->rows; r++)
        if (block_cyclic_has(c->cyclic, c->positions[r]))
            memcpy(cache + (first_row(c, r) + block_cyclic_rows(c->cyclic, c->positions[r])) * columns, c->qkv + r * c->columns + queries,
                columns * sizeof(T));
}

static inline int64_t attention_quads(int64_t queries) { return divide_up(queries, ATTENTION_QUAD); }

/* Loads queries first .. first + count - 1 of a key-value head; query i is query head i % group of
 * row i / group of all sequences. */
static void load_cached_queries(const Cached *c, AttentionTile *tile, int64_t kv_head, int64_t first, int64_t count) {
    W scale = attention_scale(c->spec);
    tile->mask.sloped = c->spec->scores.alibi > 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / c->group, head = kv_head * c->group + (first + i) % c->group;
        int64_t position = c->positions[row], window = c->spec->scores.window;
        tile->mask.low[i] = (W)(window > 0 ? int_max(position - window + 1, 0) : 0);
        tile->mask.high[i] = tile->mask.token[i] = (W)position;
        tile->mask.head[i] = (int32_t)head;
        if (tile->mask.sloped) tile->mask.slope[i] = attention_slope(c->spec, head);
        attention_load_row(tile->out + i * tile->qk_width, c->qkv + row * c->columns + head * tile->qk_dim, tile->qk_dim, scale);
    }
    attention_mask_finish(&tile->mask, count);
    for (int64_t i = attention_quads(count); i < attention_quads(tile->mask.queries); i++)
        tile->mask.quads[i].high = tile->mask.quads[i].low - 1; /* padding needs no output */
    memset(tile->out + count * tile->qk_width, 0, (tile->mask.queries - count) * tile->qk_width * sizeof(W));
    tile_transpose(tile->queries, ATTENTION_TILE, tile->out, tile->qk_width, tile->mask.queries, tile->qk_width);
}

/* Writes a query's result to this rank's part. */
static void store_part(const Cached *c, const AttentionTile *tile, int64_t query, int64_t row, int64_t head) {
    const Heads *h = &c->spec->heads;
    W *part = c->part + row * attention_part_columns(h);
    for (int64_t j = 0; j < h->v_dim; j++) part[head * h->v_dim + j] = tile->rescale[query] * tile->out[query * tile->v_width + j];
    part[heads_out_columns(h) + head] = tile->maximum[query];
}

/* The keys and values of a head in the cache of a sequence, which ends before row `end`. */
typedef struct CachedRows {
    const T *keys, *values;
    int64_t stride, end;
} CachedRows;

/* Returns what to prefetch of the block of rows from `at` on: the hardware does not follow such short
 * rows. */
static AttentionPrefetch prefetch_cached_rows(const CachedRows *from, const Heads *heads, int64_t at) {
    int64_t rows = int_max(int_min(ATTENTION_TILE, from->end - at), 0);
    return (AttentionPrefetch){.streams = {{from->keys + at * from->stride, heads->qk_dim, from->stride, rows, false},
                                   {from->values + at * from->stride, heads->v_dim, from->stride, rows, false}},
        .far = true};
}

/* Computes tile `index` of a sequence. */
static void cached_tile(const Cached *c, int64_t kv_head, int64_t sequence, int64_t index, W *scratch) {
    const Heads *heads = &c->spec->heads;
    int64_t queries = c->spec->length * c->group, begin = index * ATTENTION_TILE, first = sequence * queries + begin;
    int64_t count = int_min(ATTENTION_TILE, queries - begin), stride = heads_kv_columns(heads);
    const T *cache = c->cache + first_row(c, first / c->group) * stride;
    AttentionTile tile;
    attention_tile_place(&tile, scratch, c->spec);
    W *keys = scratch + attention_tile_elements(heads), *values = keys + ATTENTION_TILE * tile.qk_width;
    load_cached_queries(c, &tile, kv_head, first, count);
    attention_tile_begin(&tile);
    CachedRows from = {.keys = cache + kv_head * heads->qk_dim,
        .values = cache + heads_key_columns(heads) + kv_head * heads->v_dim,
        .stride = stride,
        .end = block_cyclic_rows(c->cyclic, (int32_t)tile.mask.last_key + 1)};
    int32_t begin_row = block_cyclic_rows(c->cyclic, (int32_t)tile.mask.first_key) / ATTENTION_TILE * ATTENTION_TILE;
    tile.prefetch = prefetch_cached_rows(&from, heads, begin_row);
    while (tile.prefetch.streams[0].rows > 0) attention_prefetch_rows(&tile.prefetch);
    for (int32_t at = begin_row; at < from.end; at += ATTENTION_TILE) {
        int64_t rows = int_min(ATTENTION_TILE, from.end - at), padded = attention_width(rows);
        tile.prefetch = prefetch_cached_rows(&from, heads, at + ATTENTION_TILE);
        attention_load(keys, from.keys + at * stride, stride, rows, padded, heads->qk_dim, 1);
        attention_load(values, from.values + at * stride, stride, rows, padded, heads->v_dim, 1);
        attention_tile_add_block(&tile, keys, values, block_cyclic_position(c->cyclic, at), rows);
    }
    attention_tile_finish(&tile, c->sinks);
    for (int64_t i = 0; i < count; i++) {
        int64_t row = (first + i) / c->group, head = kv_head * c->group + (first + i) % c->group;
        if (c->part) store_part(c, &tile, i, row, head);
        else attention_tile_store(&tile, i, c->out + (row * heads->heads + head) * heads->v_dim);
    }
}

CPU_OP(attention_cached, cached_cpu_workspace) {
    const AttentionSpec *spec = call->attributes;
    const Heads *heads = &spec->heads;
    BlockCyclic cyclic = attention_block_cyclic(call->mesh);
    Cached c = {.spec = spec,
        .qkv = call->in[ATTENTION_QKV],
        .cache = call->out[ATTENTION_CACHED_CACHE],
        .positions = call->in[ATTENTION_POSITIONS],
        .first_rows = call->in[ATTENTION_CACHED_FIRST_ROWS],
        .sinks = cyclic.rank == 0 ? call->in[ATTENTION_SINKS] : NULL,
        .out = cyclic.ranks == 1 ? call->out[ATTENTION_CACHED_OUT] : NULL,
        .part = cyclic.ranks > 1 ? call->out[ATTENTION_CACHED_OUT] : NULL,
        .cyclic = cyclic,
        .rows = call->in_shape[ATTENTION_QKV][0],
        .columns = call->in_shape[ATTENTION_QKV][1],
        .group = heads->heads / heads->kv_heads};
    int64_t tiles = cached_tiles(spec), all = tiles * heads->kv_heads, elements = cached_elements(heads);
    for (int64_t r = 0; r < c.rows; r++)
        assert(c.positions[r] >= 0 && first_row(&c, r) >= 0 &&
               first_row(&c, r) + block_cyclic_rows(cyclic, c.positions[r] + 1) <= call->out_shape[ATTENTION_CACHED_CACHE][0]);
    append_rows(&c, call->out[ATTENTION_CACHED_CACHE]);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < c.rows / spec->length * all; i++)
        cached_tile(&c, i % heads->kv_heads, i / all, i % all / heads->kv_heads, (W *)call->workspace + i * elements);
}

CPU_OP(attention_combine) {
    const Heads *h = &((const AttentionSpec *)call->attributes)->heads;
    const W *parts = call->in[ATTENTION_COMBINE_PARTS];
    T *out = call->out[ATTENTION_COMBINE_OUT];
    int64_t rows = call->out_shape[ATTENTION_COMBINE_OUT][0], columns = attention_part_columns(h), dim = h->v_dim;
    int ranks = attention_block_cyclic(call->mesh).ranks;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * h->heads; i++) {
        const W *row = parts + i / h->heads * columns, *outs = row + i % h->heads * dim, *sums = row + h->heads * dim + i % h->heads;
        int64_t step = rows * columns; /* between ranks */
        W largest = -(W)INFINITY, total = 0;
        for (int rank = 0; rank < ranks; rank++) largest = sums[rank * step] > largest ? sums[rank * step] : largest;
        for (int rank = 0; rank < ranks; rank++) total += (W)exp2(sums[rank * step] - largest);
        for (int64_t j = 0; j < dim; j++) {
            W sum = 0;
            for (int rank = 0; rank < ranks; rank++) sum += (W)exp2(sums[rank * step] - largest) * outs[rank * step + j];
            out[i * dim + j] = to_compute(sum / total);
        }
    }
}

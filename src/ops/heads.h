/* The widths of attention heads and their order in packed rows. Shared by the operations on packed
 * qkv: attention, rope, cca, norm. Owns no memory. */
#pragma once

#include <stdint.h>

/* Queries and keys of a head have qk_dim columns; values, and so a head's result, have v_dim.
 * Grouped-query attention: heads is a multiple of kv_heads, and query head h reads key-value head h
 * / (heads / kv_heads).
 *
 * A row of packed qkv, COMPUTE [R, heads_columns], holds the queries of all heads, then all keys,
 * then all values. A row of a key-value cache, [heads_kv_columns], holds all keys, then all
 * values. */
typedef struct Heads { int64_t heads, kv_heads, qk_dim, v_dim; } Heads;

/* Return the columns of all heads' queries, keys, values, and results. */
static inline int64_t heads_query_columns(const Heads *h) { return h->heads * h->qk_dim; }
static inline int64_t heads_key_columns(const Heads *h) { return h->kv_heads * h->qk_dim; }
static inline int64_t heads_value_columns(const Heads *h) { return h->kv_heads * h->v_dim; }
static inline int64_t heads_out_columns(const Heads *h) { return h->heads * h->v_dim; }

static inline int64_t heads_kv_columns(const Heads *h) { return heads_key_columns(h) + heads_value_columns(h); }
static inline int64_t heads_columns(const Heads *h) { return heads_query_columns(h) + heads_kv_columns(h); }

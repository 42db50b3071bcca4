/* The layout of attention heads in a packed row. Shared by the operations on packed qkv: attention,
 * rope, cca, norm. */
#pragma once

#include <stdint.h>

/* A row of packed qkv, COMPUTE [R, (heads + 2 kv_heads) * head_dim], holds the queries of all heads, then all keys,
 * then all values. Grouped-query attention: heads is a multiple of kv_heads, and query head h reads key-value head h /
 * (heads / kv_heads). */
typedef struct Heads { int64_t heads, kv_heads, head_dim; } Heads;

static inline int64_t heads_columns(const Heads *h) { return (h->heads + 2 * h->kv_heads) * h->head_dim; }

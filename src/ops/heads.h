/* How attention heads lie in a packed row. */
#pragma once

#include <stdint.h>

/* Rows of one packed COMPUTE tensor [R, (heads + 2 kv_heads) * head_dim]: queries, keys, values. */
typedef struct Heads { int64_t heads, kv_heads, head_dim; } Heads;

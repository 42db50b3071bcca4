/* Attention over a key-value cache on a GPU. A first kernel writes the new rows' keys and values to the cache; then
 * the forward pass of gpu.c runs with the cache as its keys, all heads of a group packed into a tile, so that one new
 * row still reads each key once. To fill the GPU with few rows, the cache is cut into chunks by shapes alone (flash
 * decoding); chunks past the row's position end at once, and a last kernel joins the results in order. Scratch: the
 * output and log-sum-exp of each chunk. */
#include "ops/attention/gpu_tile.h"

typedef struct AttentionAppend {
    GLOBAL const bf16 *from; /* keys and values of the new rows */
    GLOBAL bf16 *cache;
    GLOBAL const int32_t *positions;
    int64_t stride, columns;
} AttentionAppend;

typedef struct AttentionJoin {
    GLOBAL const float *partial_out, *partial_sum;
    GLOBAL bf16 *out;
    int64_t pairs; /* rows * heads */
    int32_t head_dim, chunks;
} AttentionJoin;

enum { THREADS = 128 };

#ifdef GPU_DEVICE

/* Copies keys and values of the new rows to their rows of the cache; a block for each row. */
KERNEL(attention_append, AttentionAppend) {
    GLOBAL const bf16 *from = a.from + block_x() * a.stride;
    GLOBAL bf16 *to = a.cache + a.positions[block_x()] * a.columns;
    if ((a.stride | a.columns) % 8 == 0) {
        for (int i = thread_id(); i < a.columns / 8; i += THREADS) ((GLOBAL u32x4 *)to)[i] = ((GLOBAL const u32x4 *)from)[i];
    } else {
        for (int i = thread_id(); i < a.columns; i += THREADS) to[i] = from[i];
    }
}

/* out = sum over chunks of their output, weighted by their share of the sum of exponentials; a block for each row and
 * head. */
KERNEL(attention_join, AttentionJoin) {
    GLOBAL const float *sums = a.partial_sum + block_x();
    float largest = -__builtin_inff(), total = 0;
    for (int chunk = 0; chunk < a.chunks; chunk++) largest = __builtin_fmaxf(largest, sums[chunk * a.pairs]);
    for (int chunk = 0; chunk < a.chunks; chunk++) total += fast_exp2(sums[chunk * a.pairs] - largest);
    for (int j = thread_id(); j < a.head_dim; j += THREADS) {
        float sum = 0;
        for (int chunk = 0; chunk < a.chunks; chunk++)
            sum += fast_exp2(sums[chunk * a.pairs] - largest) * a.partial_out[(chunk * a.pairs + block_x()) * a.head_dim + j];
        a.out[(int64_t)block_x() * a.head_dim + j] = to_bf16(sum / total);
    }
}

#else

#include "ops/attention/attention.h"

enum {
    BLOCKS = 512,    /* blocks that fill a large GPU */
    MIN_CHUNK = 256, /* keys; fewer are not worth a block */
};

LAUNCHER(attention_append, AttentionAppend)
LAUNCHER(attention_join, AttentionJoin)

/* Number of chunks into which `context` keys are cut for `rows` new rows. */
static int64_t chunks_of(const Heads *heads, int64_t rows, int64_t context) {
    int64_t blocks = divide_up(rows * (heads->heads / heads->kv_heads), 4 * ATTENTION_ROWS) * heads->kv_heads;
    int64_t wanted = divide_up(BLOCKS, blocks), most = divide_up(context, MIN_CHUNK);
    return rows * heads->heads > BLOCKS ? 1 : wanted < most ? wanted : most;
}

static int64_t workspace(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    int64_t rows = graph_rows(graph, node->in[ATTENTION_QKV]),
            chunks = chunks_of(&spec->heads, rows, graph_rows(graph, node->out[ATTENTION_CACHED_CACHE]));
    return chunks == 1 ? 0 : chunks * rows * spec->heads.heads * (spec->heads.head_dim + 1) * (int64_t)sizeof(float);
}

GPU_OP(attention_cached, workspace) {
    const AttentionSpec *spec = call->attributes;
    const Heads *h = &spec->heads;
    int64_t rows = call->in_shape[ATTENTION_QKV][0], context = call->out_shape[ATTENTION_CACHED_CACHE][0],
            columns = 2 * h->kv_heads * h->head_dim;
    AttentionForward forward = {.attention = attention_of(call), .out = call->out[ATTENTION_CACHED_OUT]};
    Attention *a = &forward.attention;
    AttentionAppend append = {.from = a->keys,
        .cache = call->out[ATTENTION_CACHED_CACHE],
        .positions = a->positions,
        .stride = a->key_stride,
        .columns = columns};
    launch_attention_append(call->device, (LaunchShape){.x = rows, .threads = THREADS}, &append);

    a->keys = append.cache;
    a->values = a->keys + h->kv_heads * h->head_dim;
    a->key_stride = columns;
    a->length = (int32_t)rows;
    a->cached = 1;
    a->packed = (int32_t)(h->heads / h->kv_heads);
    forward.chunks = (int32_t)chunks_of(h, rows, context);
    forward.chunk = (int32_t)(divide_up(divide_up(context, forward.chunks), ATTENTION_KEYS) * ATTENTION_KEYS);
    forward.partial_out = call->workspace;
    forward.partial_sum = forward.partial_out + forward.chunks * rows * h->heads * h->head_dim;
    attention_launch(call->device, &forward, 1);
    if (forward.chunks == 1) return;
    AttentionJoin join = {.partial_out = forward.partial_out,
        .partial_sum = forward.partial_sum,
        .out = forward.out,
        .pairs = rows * h->heads,
        .head_dim = (int32_t)h->head_dim,
        .chunks = forward.chunks};
    launch_attention_join(call->device, (LaunchShape){.x = rows * h->heads, .threads = THREADS}, &join);
}

#endif

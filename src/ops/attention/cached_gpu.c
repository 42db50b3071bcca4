/* Attention over a key-value cache, or a rank's part of one, on a GPU. A first kernel writes the new rows' keys and
 * values to the cache; then the forward pass of gpu.c runs with the cache as its keys, all heads of a group packed into
 * a tile, so that one new row still reads each key once. To fill the GPU with few rows, the cache is cut into chunks by
 * shapes alone (flash decoding); chunks past the row's position end at once, and a last kernel joins the results in
 * order, as it joins those of ranks. Scratch: the output and log-sum-exp of each chunk. */
#include "ops/attention/gpu_tile.h"

typedef struct AttentionAppend {
    GLOBAL const bf16 *from; /* keys and values of the new rows */
    GLOBAL bf16 *cache;
    GLOBAL const int32_t *positions;
    int64_t stride, columns;
    Deal deal;
} AttentionAppend;

/* Results over parts of the keys, of chunks or of ranks: outputs [parts][rows][heads][head_dim] and their
 * log2-sum-exp2 [parts][rows][heads], in elements from part to part and from row to row. They become `out`, or `part`
 * (op_attention_part) where that is not NULL. */
typedef struct AttentionJoin {
    GLOBAL const float *outs, *sums;
    int64_t part_of_outs, row_of_outs, part_of_sums, row_of_sums;
    GLOBAL bf16 *out;
    GLOBAL float *part;
    int32_t heads, head_dim, parts;
} AttentionJoin;

enum { THREADS = 128 };

#ifdef GPU_DEVICE

_Static_assert((int)ATTENTION_KEYS == DEAL_BLOCK, "positions of a tile of keys are consecutive");

/* Copies keys and values of the new rows to their rows of the cache; a block for each row. */
KERNEL(attention_append, AttentionAppend) {
    int position = a.positions[block_x()];
    if (!deal_has(a.deal, position)) return;
    GLOBAL const bf16 *from = a.from + block_x() * a.stride;
    GLOBAL bf16 *to = a.cache + deal_rows(a.deal, position) * a.columns;
    if ((a.stride | a.columns) % 8 == 0) {
        for (int i = thread_id(); i < a.columns / 8; i += THREADS) ((GLOBAL u32x4 *)to)[i] = ((GLOBAL const u32x4 *)from)[i];
    } else {
        for (int i = thread_id(); i < a.columns; i += THREADS) to[i] = from[i];
    }
}

/* out = sum over parts of their output, weighted by their share of the sum of exponentials, which is 0 without a key; a
 * block for each row and head. */
KERNEL(attention_join, AttentionJoin) {
    int64_t row = block_x() / a.heads, head = block_x() % a.heads;
    GLOBAL const float *sums = a.sums + row * a.row_of_sums + head, *outs = a.outs + row * a.row_of_outs + head * a.head_dim;
    float largest = -__builtin_inff(), total = 0;
    for (int i = 0; i < a.parts; i++) largest = __builtin_fmaxf(largest, sums[i * a.part_of_sums]);
    float base = largest == -__builtin_inff() ? 0 : largest;
    for (int i = 0; i < a.parts; i++) total += fast_exp2(sums[i * a.part_of_sums] - base);
    float inverse = total == 0 ? 0 : 1 / total;
    GLOBAL float *part = a.part + row * a.heads * (a.head_dim + 1);
    for (int j = thread_id(); j < a.head_dim; j += THREADS) {
        float sum = 0;
        for (int i = 0; i < a.parts; i++) sum += fast_exp2(sums[i * a.part_of_sums] - base) * outs[i * a.part_of_outs + j];
        if (a.part) part[head * a.head_dim + j] = sum * inverse;
        else a.out[(int64_t)block_x() * a.head_dim + j] = to_bf16(sum * inverse);
    }
    if (a.part && thread_id() == 0) part[(int64_t)a.heads * a.head_dim + head] = base + fast_log2(total);
}

#else

#include "ops/attention/attention.h"

enum {
    BLOCKS = 512,    /* blocks that fill a large GPU */
    MIN_CHUNK = 256, /* keys; fewer are not worth a block */
};

LAUNCHER(attention_append, AttentionAppend)
LAUNCHER(attention_join, AttentionJoin)

/* Number of chunks into which `context` keys are cut for `rows` new rows. A part has at least two: only the join writes
 * one. */
static int64_t chunks_of(const Heads *heads, int64_t rows, int64_t context, Deal deal) {
    int64_t blocks = divide_up(rows * (heads->heads / heads->kv_heads), 4 * ATTENTION_ROWS) * heads->kv_heads;
    int64_t wanted = divide_up(BLOCKS, blocks), most = divide_up(context, MIN_CHUNK);
    int64_t chunks = rows * heads->heads > BLOCKS ? 1 : wanted < most ? wanted : most;
    return deal.ranks > 1 && chunks == 1 ? 2 : chunks;
}

static int64_t workspace(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    int64_t rows = graph_rows(graph, node->in[ATTENTION_QKV]),
            chunks = chunks_of(&spec->heads, rows, graph_rows(graph, node->out[ATTENTION_CACHED_CACHE]), attention_deal(graph->mesh));
    return chunks == 1 ? 0 : chunks * rows * spec->heads.heads * (spec->heads.head_dim + 1) * (int64_t)sizeof(float);
}

GPU_OP(attention_cached, workspace) {
    const AttentionSpec *spec = call->attributes;
    const Heads *h = &spec->heads;
    int64_t rows = call->in_shape[ATTENTION_QKV][0], context = call->out_shape[ATTENTION_CACHED_CACHE][0],
            columns = 2 * h->kv_heads * h->head_dim;
    const Deal deal = attention_deal(call->mesh);
    AttentionForward forward = {.attention = attention_of(call), .out = deal.ranks > 1 ? NULL : call->out[ATTENTION_CACHED_OUT]};
    Attention *a = &forward.attention;
    AttentionAppend append = {.from = a->keys,
        .cache = call->out[ATTENTION_CACHED_CACHE],
        .positions = a->positions,
        .stride = a->key_stride,
        .columns = columns,
        .deal = deal};
    launch_attention_append(call->device, (LaunchShape){.x = rows, .threads = THREADS}, &append);

    a->keys = append.cache;
    a->values = a->keys + h->kv_heads * h->head_dim;
    a->key_stride = columns;
    a->query_rows = token_rows(rows, 1, 0);
    a->key_rows = token_rows(INT32_MAX, 1, 0);
    a->cached = 1;
    if (deal.ranks > 1) a->deal = deal;
    a->packed = (int32_t)(h->heads / h->kv_heads);
    forward.chunks = (int32_t)chunks_of(h, rows, context, deal);
    forward.chunk = (int32_t)(divide_up(divide_up(context, forward.chunks), ATTENTION_KEYS) * ATTENTION_KEYS);
    forward.partial_out = call->workspace;
    forward.partial_sum = forward.partial_out + forward.chunks * rows * h->heads * h->head_dim;
    attention_launch(call->device, &forward, 1);
    if (forward.chunks == 1) return;
    AttentionJoin join = {.outs = forward.partial_out,
        .sums = forward.partial_sum,
        .part_of_outs = rows * h->heads * h->head_dim,
        .row_of_outs = h->heads * h->head_dim,
        .part_of_sums = rows * h->heads,
        .row_of_sums = h->heads,
        .out = forward.out,
        .part = deal.ranks > 1 ? call->out[ATTENTION_CACHED_OUT] : NULL,
        .heads = (int32_t)h->heads,
        .head_dim = (int32_t)h->head_dim,
        .parts = forward.chunks};
    launch_attention_join(call->device, (LaunchShape){.x = rows * h->heads, .threads = THREADS}, &join);
}

GPU_OP(attention_merge) {
    const Heads *h = &((const AttentionSpec *)call->attributes)->heads;
    int64_t rows = call->out_shape[ATTENTION_MERGE_OUT][0], columns = attention_part_columns(h);
    const float *parts = call->in[ATTENTION_MERGE_PARTS];
    AttentionJoin join = {.outs = parts,
        .sums = parts + h->heads * h->head_dim,
        .part_of_outs = rows * columns,
        .row_of_outs = columns,
        .part_of_sums = rows * columns,
        .row_of_sums = columns,
        .out = call->out[ATTENTION_MERGE_OUT],
        .heads = (int32_t)h->heads,
        .head_dim = (int32_t)h->head_dim,
        .parts = attention_deal(call->mesh).ranks};
    launch_attention_join(call->device, (LaunchShape){.x = rows * h->heads, .threads = THREADS}, &join);
}

#endif

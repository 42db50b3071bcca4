/* Attention and its gradient on a CPU (formulas in rule.c, inner loops in cpu_tile_kernels.h). Work
 * is cut by shapes only, so that bits do not depend on threads. A pair is a sequence and a
 * key-value head. The query blocks of a pair are cut into the fewest parts of about equal cost that
 * give ATTENTION_TASKS tasks.
 *
 * Scratch: keys and values of each pair cast to WIDE, one tile per task, and in the backward pass
 * dK and dV of each part. If a pair is one part, its keys and values are cast block by block, each
 * with the first queries that see it; otherwise all of them are cast first, because parts share
 * them. In the backward pass, every part adds to its dK and dV in the order of its tiles, and the
 * parts are then added in order. If a pair is one part, a thread keeps its scratch, so that it
 * stays in caches. */
#include <omp.h>

#include "backend/cpu/kernel.h"
#include "ops/attention/cpu_tile_kernels.h"
#include "ops/attention/attention.h"

enum { ATTENTION_TASKS = 64 };

/* How a call is cut, derived from its shapes. Sizes of scratch are in elements of W, multiples of
 * 64. Invariants: begin[] is not decreasing, begin[0] = 0 and begin[parts] = blocks, so that the
 * parts of a pair cover all its query blocks. */
typedef struct AttentionPlan {
    const AttentionSpec *spec;
    Heads heads;
    int64_t group, qk_width, v_width, window;
    int64_t columns, key_columns;       /* strides between rows of queries, and of keys and values; set by attention_begin */
    TokenRows queries, keys;            /* of a sequence */
    int64_t blocks, key_blocks, padded; /* of a sequence: query blocks, key blocks, rows of keys in scratch */
    int64_t sequences, pairs, parts;
    int64_t begin[ATTENTION_TASKS + 1];   /* first query block of each part */
    int64_t pair_elements;                /* WIDE keys and values of a pair; in the backward pass, also dK and dV of a part */
    int64_t tile_elements, part_elements; /* scratch of a tile, and all scratch of a part */
} AttentionPlan;

/* Returns the query rows of a block. */
static int64_t key_block_rows(const AttentionPlan *plan, int64_t block) {
    return int_min(ATTENTION_TILE, plan->queries.rows - block * ATTENTION_TILE);
}

/* Returns one past the last key that a query at `token` sees. It does not decrease with the
 * token. */
static int32_t keys_end(const AttentionPlan *plan, int32_t token) {
    return plan->spec->bidirectional ? plan->keys.rows : row_from_token(&plan->keys, token + 1);
}

/* first_block .. end_block - 1 are the key blocks that query block `block` reaches under causality
 * and window. Neither decreases with the block. */
static int64_t first_block(const AttentionPlan *plan, int64_t block) {
    int32_t token = token_of_row(&plan->queries, (int32_t)(block * ATTENTION_TILE));
    return plan->window > 0 ? row_from_token(&plan->keys, token - (int32_t)plan->window + 1) / ATTENTION_TILE : 0;
}
static int64_t end_block(const AttentionPlan *plan, int64_t block) {
    int32_t token = token_of_row(&plan->queries, (int32_t)(block * ATTENTION_TILE + key_block_rows(plan, block) - 1));
    return divide_up(keys_end(plan, token), ATTENTION_TILE);
}
/* Returns the number of these key blocks, but at least one, so that every query block has a
 * cost. */
static int64_t reach(const AttentionPlan *plan, int64_t block) { return int_max(end_block(plan, block) - first_block(plan, block), 1); }

/* Cuts the query blocks into parts that reach about equally many key blocks. */
static void cut_parts(AttentionPlan *plan) {
    int64_t total = 0, sum = 0, block = 0;
    for (int64_t b = 0; b < plan->blocks; b++) total += reach(plan, b);
    for (int64_t part = 0; part <= plan->parts; part++) {
        while (sum * plan->parts < part * total) sum += reach(plan, block++);
        plan->begin[part] = block;
    }
    assert(plan->begin[0] == 0 && plan->begin[plan->parts] == plan->blocks);
}

static AttentionPlan attention_plan(const AttentionSpec *spec, int64_t rows, bool backward) {
    const Heads *h = &spec->heads;
    AttentionPlan plan = {.spec = spec,
        .heads = *h,
        .group = h->heads / h->kv_heads,
        .qk_width = attention_width(h->qk_dim),
        .v_width = attention_width(h->v_dim),
        .window = spec->scores.window,
        .queries = token_rows(spec->length, spec->queries.ranks, spec->queries.rank),
        .keys = token_rows(spec->length, spec->keys.ranks, spec->keys.rank)};
    plan.padded = attention_padded_rows(plan.keys.rows);
    plan.key_blocks = plan.padded / ATTENTION_TILE;
    plan.blocks = attention_padded_rows(plan.queries.rows) / ATTENTION_TILE;
    plan.sequences = rows / plan.queries.rows;
    plan.pairs = plan.sequences * h->kv_heads;
    plan.parts = int_max(1, int_min(plan.blocks, (ATTENTION_TASKS + plan.pairs - 1) / int_max(plan.pairs, 1)));
    cut_parts(&plan);
    plan.pair_elements = plan.padded * (plan.qk_width + plan.v_width);
    plan.tile_elements =
        backward ? ATTENTION_TILE * (3 * plan.qk_width + 2 * plan.v_width + ATTENTION_GROUP + ATTENTION_TILE) : attention_tile_elements(h);
    plan.part_elements = plan.tile_elements + (backward ? plan.pair_elements : 0);
    return plan;
}

static int64_t plan_bytes(const Graph *graph, const Node *node, bool backward) {
    AttentionPlan plan = attention_plan(node->attributes, graph_rows(graph, node->in[ATTENTION_QKV]), backward);
    int64_t elements = plan.pairs * (plan.pair_elements + plan.parts * plan.part_elements);
    return elements * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

static int64_t attention_cpu_workspace(const Graph *graph, const Node *node) { return plan_bytes(graph, node, false); }
static int64_t attention_grad_cpu_workspace(const Graph *graph, const Node *node) { return plan_bytes(graph, node, true); }

/* A call, in either pass. */
typedef struct CpuAttention {
    AttentionPlan plan;
    const T *queries, *keys, *values; /* of head 0 of the first row */
    const int32_t *positions;
    const W *sinks;               /* of the heads, or NULL */
    W *pairs, *tiles, *gradients; /* scratch: keys and values of each pair, tiles, dK and dV of each part */
} CpuAttention;

/* Returns the threads of a call: each has the scratch of one task. */
static int thread_count(const AttentionPlan *plan) { return (int)int_max(1, int_min(plan->pairs * plan->parts, omp_get_max_threads())); }

/* One part of one pair: a task. */
typedef struct KeyPart {
    const CpuAttention *attention;
    int64_t pair, index;
    int64_t row, kv_head; /* first query row of the sequence */
    int64_t begin, end;   /* query blocks */
    W *keys, *values;     /* [padded][qk_width] and [padded][v_width] */
    W *d_keys, *d_values; /* as keys and values; backward pass only */
    W *scratch;
} KeyPart;

/* Tasks are numbered from the last part on: if parts cannot be equal, later ones are longer, and
 * long tasks go first. */
static KeyPart part_of_task(const CpuAttention *a, int64_t task) {
    const AttentionPlan *plan = &a->plan;
    int64_t pair = task % plan->pairs, index = plan->parts - 1 - task / plan->pairs, thread = omp_get_thread_num();
    KeyPart part = {.attention = a,
        .pair = pair,
        .index = index,
        .row = pair % plan->sequences * plan->queries.rows,
        .kv_head = pair / plan->sequences,
        .begin = plan->begin[index],
        .end = plan->begin[index + 1]};
    part.keys = a->pairs + (plan->parts == 1 ? thread : pair) * plan->pair_elements;
    part.d_keys = a->gradients + (plan->parts == 1 ? thread : pair * plan->parts + index) * plan->pair_elements;
    part.values = part.keys + plan->padded * plan->qk_width;
    part.d_values = part.d_keys + plan->padded * plan->qk_width;
    part.scratch = a->tiles + thread * plan->tile_elements;
    return part;
}

/* Returns the elements from the first key, or value, to that of a block of a pair; `dim` is qk_dim
 * or v_dim. */
static int64_t block_offset(const AttentionPlan *plan, int64_t pair, int64_t block, int64_t dim) {
    int64_t row = pair % plan->sequences * plan->keys.rows + block * ATTENTION_TILE;
    return row * plan->key_columns + pair / plan->sequences * dim;
}

/* Casts keys and values of a block of a pair; `to` is the start of the pair's scratch. */
static void load_block(const CpuAttention *a, int64_t pair, int64_t block, W *to) {
    const AttentionPlan *plan = &a->plan;
    int64_t first = block * ATTENTION_TILE, rows = int_min(ATTENTION_TILE, plan->keys.rows - first), qk_dim = plan->heads.qk_dim,
            v_dim = plan->heads.v_dim;
    W *keys = to + first * plan->qk_width, *values = to + plan->padded * plan->qk_width + first * plan->v_width;
    attention_load(keys, a->keys + block_offset(plan, pair, block, qk_dim), plan->key_columns, rows, ATTENTION_TILE, qk_dim, 1);
    attention_load(values, a->values + block_offset(plan, pair, block, v_dim), plan->key_columns, rows, ATTENTION_TILE, v_dim, 1);
}

/* Casts the key blocks that a query block reaches; `loaded` is the end of the blocks that earlier
 * calls cast. Returns the new end. */
static int64_t load_blocks(const KeyPart *part, int64_t block, int64_t loaded) {
    const CpuAttention *a = part->attention;
    int64_t end = end_block(&a->plan, block);
    for (int64_t key = int_max(loaded, first_block(&a->plan, block)); key < end; key++) load_block(a, part->pair, key, part->keys);
    return int_max(loaded, end);
}

/* Begins a call. If pairs have several parts, casts all their keys and values. */
static CpuAttention attention_begin(const OpCall *call, bool backward) {
    CpuAttention a = {.plan = attention_plan(call->attributes, call->in_shape[ATTENTION_QKV][0], backward),
        .queries = call->in[ATTENTION_QKV],
        .positions = call->in[ATTENTION_POSITIONS],
        .sinks = call->in[ATTENTION_SINKS],
        .pairs = call->workspace};
    AttentionPlan *plan = &a.plan;
    bool packed = !call->in[ATTENTION_KV];
    plan->columns = call->in_shape[ATTENTION_QKV][1];
    plan->key_columns = call->in_shape[packed ? ATTENTION_QKV : ATTENTION_KV][1];
    a.keys = packed ? a.queries + heads_query_columns(&plan->heads) : call->in[ATTENTION_KV];
    a.values = a.keys + heads_key_columns(&plan->heads);
    a.tiles = a.pairs + plan->pairs * plan->pair_elements;
    a.gradients = a.tiles + plan->pairs * plan->parts * plan->tile_elements;
    if (plan->parts == 1) return a;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < plan->pairs * plan->key_blocks; i++)
        load_block(&a, i / plan->key_blocks, i % plan->key_blocks, a.pairs + i / plan->key_blocks * plan->pair_elements);
    return a;
}

/* Sets the keys that each row of a query block sees, numbered within the sequence. Returns the
 * number of rows. */
static int64_t mask_of_block(const KeyPart *part, int64_t block, AttentionMask *mask) {
    const AttentionPlan *plan = &part->attention->plan;
    int64_t first = block * ATTENTION_TILE, rows = key_block_rows(plan, block);
    mask->key_tokens = plan->keys;
    for (int64_t i = 0; i < rows; i++) {
        int64_t token = token_of_row(&plan->queries, (int32_t)(first + i)),
                back = int_max(part->attention->positions[part->row + first + i], 0);
        if (plan->window > 0) back = int_min(back, plan->window - 1);
        mask->low[i] = (W)row_from_token(&plan->keys, (int32_t)int_max(token - back, 0));
        mask->high[i] = (W)(keys_end(plan, (int32_t)token) - 1);
        mask->token[i] = (W)token;
    }
    mask->sloped = false; /* set_head sets it for each head */
    attention_mask_finish(mask, rows);
    return rows;
}

static void set_head(AttentionMask *mask, const AttentionSpec *spec, int64_t head) {
    mask->sloped = spec->scores.alibi > 0;
    W slope = mask->sloped ? attention_slope(spec, head) : 0;
    for (int i = 0; i < ATTENTION_TILE; i++) mask->slope[i] = slope, mask->head[i] = (int32_t)head;
}

/* Returns the first key that any query of the tile sees, rounded down to a block. */
static int64_t first_block_key(const AttentionMask *mask) { return mask->first_key / ATTENTION_TILE * ATTENTION_TILE; }

/* Finds the tile after (block, head) in a part: the next head of the block, or the first head of
 * the next block. Returns its rows, 0 after the last tile. */
static int64_t next_tile(const KeyPart *part, int64_t block, int64_t head, int64_t *next_row, int64_t *next_head) {
    const AttentionPlan *plan = &part->attention->plan;
    bool last = (head + 1) % plan->group == 0;
    int64_t next = last ? block + 1 : block;
    *next_head = last ? head + 1 - plan->group : head + 1;
    *next_row = part->row + next * ATTENTION_TILE;
    return next < part->end ? key_block_rows(plan, next) : 0;
}

/* -- Forward ------------------------------------------------------------------------------------------------------- */

static void forward_tile(const KeyPart *part, AttentionTile *tile, int64_t block, int64_t head, int64_t rows, T *out, W *sums) {
    const AttentionPlan *plan = &part->attention->plan;
    const int64_t qk_dim = plan->heads.qk_dim, v_dim = plan->heads.v_dim, out_columns = heads_out_columns(&plan->heads);
    int64_t row = part->row + block * ATTENTION_TILE, end = tile->mask.last_key + 1;
    attention_load_transposed(tile->queries, part->attention->queries + row * plan->columns + head * qk_dim, plan->columns, rows,
        tile->mask.queries, qk_dim, attention_scale(plan->spec), tile->out);
    set_head(&tile->mask, plan->spec, head);
    attention_tile_begin(tile);
    int64_t next_row, next_head, next_rows = next_tile(part, block, head, &next_row, &next_head);
    tile->prefetch = (AttentionPrefetch){{
        {out + row * out_columns + head * v_dim, v_dim, out_columns, rows, true},
        {part->attention->queries + next_row * plan->columns + next_head * qk_dim, qk_dim, plan->columns, next_rows, false},
    }};
    for (int64_t key = first_block_key(&tile->mask); key < end; key += ATTENTION_TILE)
        attention_tile_add_block(
            tile, part->keys + key * plan->qk_width, part->values + key * plan->v_width, key, int_min(ATTENTION_TILE, end - key));
    attention_tile_finish(tile, part->attention->sinks);
    for (int64_t i = 0; i < rows; i++) {
        T *to = out + (row + i) * out_columns + head * v_dim;
        if (attention_sees_none(&tile->mask, i)) memset(to, 0, v_dim * sizeof *to);
        else attention_tile_store(tile, i, to);
    }
    for (int64_t i = 0; sums && i < rows; i++) sums[(row + i) * plan->heads.heads + head] = tile->maximum[i] * (W)M_LN2;
}

static void forward_part(const KeyPart *part, T *out, W *sums) {
    const AttentionPlan *plan = &part->attention->plan;
    AttentionTile tile;
    attention_tile_place(&tile, part->scratch, plan->spec);
    for (int64_t block = part->begin, loaded = 0; block < part->end; block++) {
        if (plan->parts == 1) loaded = load_blocks(part, block, loaded);
        int64_t rows = mask_of_block(part, block, &tile.mask);
        for (int64_t h = 0; h < plan->group; h++) forward_tile(part, &tile, block, part->kv_head * plan->group + h, rows, out, sums);
    }
}

CPU_OP(attention, attention_cpu_workspace) {
    CpuAttention a = attention_begin(call, false);
#pragma omp parallel for schedule(dynamic) num_threads(thread_count(&a.plan))
    for (int64_t task = 0; task < a.plan.pairs * a.plan.parts; task++) {
        KeyPart part = part_of_task(&a, task);
        forward_part(&part, call->out[ATTENTION_OUT], call->out[ATTENTION_LOG_SUM]);
    }
    kernel_put_amax(call, ATTENTION_OUT, ATTENTION_AMAX);
}

/* -- Backward ------------------------------------------------------------------------------------------------------ */

/* A tile of queries, as rows and transposed, and the sums over its keys. */
typedef struct GradTile {
    AttentionMask mask;
    AttentionPrefetch prefetch;
    W *rows, *queries;                                             /* scaled Q: [64][qk_width] and [qk_width][64] */
    W *d_rows, *d_outs;                                            /* dO: [64][v_width] and [v_width][64] */
    W *d_queries;                                                  /* dQ: [64][qk_width] */
    W *weights, *d_scores;                                         /* [16 keys][64] and [64 keys][64] */
    _Alignas(64) W cap_slopes[ATTENTION_GROUP * ATTENTION_TILE];   /* as weights, if scores are capped */
    _Alignas(64) W log_sum[ATTENTION_TILE], delta[ATTENTION_TILE]; /* negative: the initial values of matmuls */
} GradTile;

static void grad_tile_place(GradTile *tile, W *scratch, const AttentionPlan *plan) {
    int64_t qk_size = ATTENTION_TILE * plan->qk_width, v_size = ATTENTION_TILE * plan->v_width;
    tile->rows = scratch;
    tile->queries = tile->rows + qk_size;
    tile->d_rows = tile->queries + qk_size;
    tile->d_outs = tile->d_rows + v_size;
    tile->d_queries = tile->d_outs + v_size;
    tile->weights = tile->d_queries + qk_size;
    tile->d_scores = tile->weights + ATTENTION_GROUP * ATTENTION_TILE;
}

/* tile->delta[row] = -(d_rows[row] . out[row]). The lanes of a vector hold partial sums of each
 * row; transposing a square of them adds them. */
static void grad_tile_delta(GradTile *tile, const T *out, int64_t stride, int64_t rows, int64_t v_dim) {
    int64_t width = attention_width(v_dim);
    W *block = tile->d_scores, *transposed = tile->weights;
    for (int64_t i = 0; i < tile->mask.queries; i += TILE_LANES) {
        TileVector parts[TILE_LANES];
        attention_load(block, out + i * stride, stride, int_max(int_min(rows - i, TILE_LANES), 0), TILE_LANES, v_dim, 1);
        for (int lane = 0; lane < TILE_LANES; lane++) {
            const TileVector *a = (const TileVector *)(tile->d_rows + (i + lane) * width);
            const TileVector *b = (const TileVector *)(block + lane * width);
            parts[lane] = *a * *b;
            for (int64_t j = 1; j < width / TILE_LANES; j++) parts[lane] += a[j] * b[j];
        }
        tile_transpose_square(transposed, ATTENTION_TILE, parts);
        TileVector delta = -*(const TileVector *)transposed;
        for (int lane = 1; lane < TILE_LANES; lane++) delta -= *(const TileVector *)(transposed + lane * ATTENTION_TILE);
        *(TileVector *)(tile->delta + i) = delta;
    }
}

static void grad_tile_load(GradTile *tile, const KeyPart *part, const OpCall *call, int64_t row, int64_t head, int64_t rows) {
    const AttentionPlan *plan = &part->attention->plan;
    const int64_t heads = plan->heads.heads, qk_dim = plan->heads.qk_dim, v_dim = plan->heads.v_dim;
    int64_t at = (row * heads + head) * v_dim, stride = heads * v_dim, queries = tile->mask.queries;
    const T *d_out = (const T *)call->in[ATTENTION_GRAD_D_OUT] + at, *out = (const T *)call->in[ATTENTION_GRAD_OUT] + at;
    const W *sums = (const W *)call->in[ATTENTION_GRAD_LOG_SUM] + row * heads + head;
    attention_load(tile->rows, part->attention->queries + row * plan->columns + head * qk_dim, plan->columns, rows, queries, qk_dim,
        attention_scale(plan->spec));
    attention_load(tile->d_rows, d_out, stride, rows, queries, v_dim, 1);
    tile_transpose(tile->queries, ATTENTION_TILE, tile->rows, plan->qk_width, queries, plan->qk_width);
    tile_transpose(tile->d_outs, ATTENTION_TILE, tile->d_rows, plan->v_width, queries, plan->v_width);
    grad_tile_delta(tile, out, stride, rows, v_dim);
    memset(tile->d_queries, 0, queries * plan->qk_width * sizeof(W));
    for (int64_t i = 0; i < queries; i++) tile->log_sum[i] = i < rows ? -sums[i * heads] * (W)M_LOG2E : 0;
}

/* Converts weights from scores to P, and d_scores from dP to dS = P * dP. Under ALiBi, distant keys
 * have tiny weights, whose products with small gradients would be subnormal numbers, which are many
 * times slower. Weights below 2^SLOPED_MIN_EXPONENT therefore count as zero. */
enum { SLOPED_MIN_EXPONENT = -64 };
static void grad_panel(const GradTile *tile, int64_t panel, W *weights, W *d_scores) {
    const int least = tile->mask.sloped ? SLOPED_MIN_EXPONENT : ATTENTION_MIN_EXPONENT;
    const TileVector shift = attention_magic - (TileVector){0};
    for (int k = 0; k < ATTENTION_GROUP; k++)
        for (int i = tile->mask.first[panel]; i < tile->mask.end[panel]; i += TILE_LANES) {
            TileVector *weight = (TileVector *)(weights + k * ATTENTION_TILE + i);
            TileVector *d_score = (TileVector *)(d_scores + k * ATTENTION_TILE + i);
            *weight = attention_exp2(*weight, shift, least);
            *d_score *= *weight;
        }
}

/* Multiplies dS of a panel by the derivative of the soft-cap. */
static void grad_panel_cap(const GradTile *tile, int64_t panel, W *d_scores) {
    for (int k = 0; k < ATTENTION_GROUP; k++)
        for (int i = tile->mask.first[panel]; i < tile->mask.end[panel]; i++)
            d_scores[k * ATTENTION_TILE + i] *= tile->cap_slopes[k * ATTENTION_TILE + i];
}

/* d_rows[key] += sum over queries in `ranges` of weights[key][query] * rows[query] for a group of
 * keys. */
static void sum_over_queries(W *d_rows, const W *weights, const W *rows, const TileRange *ranges, int64_t width) {
    attention_matmul(d_rows, width, NULL, NULL, (TileRows){weights, ATTENTION_TILE, 1}, rows, width, ranges, width);
}

static void grad_tile_block(GradTile *tile, const KeyPart *part, int64_t key, int64_t keys) {
    const AttentionPlan *plan = &part->attention->plan;
    const int64_t qk_width = plan->qk_width, v_width = plan->v_width;
    const W *block_keys = part->keys + key * qk_width, *block_values = part->values + key * v_width;
    AttentionMask *mask = &tile->mask;
    attention_mask_block(mask, key, keys);
    for (int64_t panel = 0; panel < mask->panels; panel++) {
        int first = mask->first[panel], end = mask->end[panel], at = (int)panel * ATTENTION_GROUP;
        if (first >= end) continue;
        W *weights = tile->weights, *d_scores = tile->d_scores + at * ATTENTION_TILE;
        attention_panel_scores(
            mask, panel, weights, tile->cap_slopes, tile->log_sum, block_keys + at * qk_width, tile->queries, plan->heads.qk_dim);
        attention_scores(
            d_scores + first, tile->delta + first, block_values + at * v_width, tile->d_outs + first, plan->heads.v_dim, end - first);
        attention_prefetch_rows(&tile->prefetch);
        grad_panel(tile, panel, weights, d_scores);
        if (mask->limit > 0) grad_panel_cap(tile, panel, d_scores);
        TileRange ranges[ATTENTION_GROUP_QUADS]; /* earlier queries come before the keys of the quad */
        for (int q = 0; q < ATTENTION_GROUP_QUADS; q++) {
            while (first < end && mask->high[first] < (W)(key + at + q * ATTENTION_QUAD)) first++;
            ranges[q] = (TileRange){first, end};
        }
        sum_over_queries(part->d_values + (key + at) * v_width, weights, tile->d_rows, ranges, v_width);
        sum_over_queries(part->d_keys + (key + at) * qk_width, d_scores, tile->rows, ranges, qk_width);
    }
    for (int64_t query = 0; query < mask->queries; query += ATTENTION_GROUP)
        attention_sum_over_keys(
            tile->d_queries + query * qk_width, NULL, tile->d_scores + query, block_keys, mask->keys + query / ATTENTION_QUAD, qk_width);
}

static void grad_tile(GradTile *tile, const KeyPart *part, const OpCall *call, int64_t block, int64_t head, int64_t rows) {
    const AttentionPlan *plan = &part->attention->plan;
    const int64_t qk_dim = plan->heads.qk_dim, v_dim = plan->heads.v_dim, out_columns = heads_out_columns(&plan->heads);
    int64_t row = part->row + block * ATTENTION_TILE, end = tile->mask.last_key + 1;
    set_head(&tile->mask, plan->spec, head);
    grad_tile_load(tile, part, call, row, head, rows);
    int64_t next_row, next_head, next_rows = next_tile(part, block, head, &next_row, &next_head);
    int64_t at = next_row * out_columns + next_head * v_dim;
    T *to = (T *)call->out[ATTENTION_GRAD_D_QKV] + row * plan->columns + head * qk_dim;
    tile->prefetch = (AttentionPrefetch){{
        {to, qk_dim, plan->columns, rows, true},
        {part->attention->queries + next_row * plan->columns + next_head * qk_dim, qk_dim, plan->columns, next_rows, false},
        {(const T *)call->in[ATTENTION_GRAD_D_OUT] + at, v_dim, out_columns, next_rows, false},
        {(const T *)call->in[ATTENTION_GRAD_OUT] + at, v_dim, out_columns, next_rows, false},
    }};
    for (int64_t key = first_block_key(&tile->mask); key < end; key += ATTENTION_TILE)
        grad_tile_block(tile, part, key, int_min(ATTENTION_TILE, end - key));
    W scale = plan->spec->scores.scale > 0 ? (W)plan->spec->scores.scale : 1 / wide_sqrt((W)qk_dim);
    for (int64_t i = 0; i < rows; i++) attention_store_row(to + i * plan->columns, tile->d_queries + i * plan->qk_width, qk_dim, scale);
}

/* to = scale * (sum over the parts of a pair, in order, of their dK or dV of one block, of `dim`
 * columns), cast to COMPUTE. `d_rows` belongs to the first part. */
static void store_sum(const AttentionPlan *plan, W *d_rows, int64_t block, int64_t dim, W scale, T *to) {
    int64_t width = attention_width(dim), rows = int_min(ATTENTION_TILE, plan->keys.rows - block * ATTENTION_TILE);
    W *sum = NULL;
    for (int64_t part = 0; part < plan->parts; part++) {
        int64_t begin = plan->begin[part], end = plan->begin[part + 1];
        if (begin == end || block < first_block(plan, begin) || block >= end_block(plan, end - 1)) continue;
        W *more = d_rows + part * plan->pair_elements + block * ATTENTION_TILE * width;
        for (int64_t i = 0; sum && i < rows * width; i++) sum[i] += more[i];
        if (!sum) sum = more;
    }
    for (int64_t i = 0; i < rows; i++)
        if (sum) attention_store_row(to + i * plan->key_columns, sum + i * width, dim, scale);
        else memset(to + i * plan->key_columns, 0, dim * sizeof *to); /* no query comes after these keys */
}

/* Stores dK and dV of a block of a pair; `d_keys` belongs to its first part. */
static void store_block_grad(const AttentionPlan *plan, int64_t pair, int64_t block, W *d_keys, const OpCall *call) {
    const Heads *h = &plan->heads;
    T *packed = call->out[ATTENTION_GRAD_D_QKV],
      *to = call->out[ATTENTION_GRAD_D_KV] ? call->out[ATTENTION_GRAD_D_KV] : packed + heads_query_columns(h);
    store_sum(plan, d_keys, block, h->qk_dim, (W)M_LN2, to + block_offset(plan, pair, block, h->qk_dim)); /* queries times log2(e) */
    store_sum(plan, d_keys + plan->padded * plan->qk_width, block, h->v_dim, 1,
        to + heads_key_columns(h) + block_offset(plan, pair, block, h->v_dim));
}

static void grad_part(const KeyPart *part, const OpCall *call) {
    const AttentionPlan *plan = &part->attention->plan;
    if (part->begin == part->end) return;
    GradTile tile;
    attention_mask_begin(&tile.mask, plan->spec);
    grad_tile_place(&tile, part->scratch, plan);
    int64_t first = first_block(plan, part->begin) * ATTENTION_TILE;
    int64_t rows = int_max(end_block(plan, part->end - 1) * ATTENTION_TILE - first, 0);
    memset(part->d_keys + first * plan->qk_width, 0, rows * plan->qk_width * sizeof(W));
    memset(part->d_values + first * plan->v_width, 0, rows * plan->v_width * sizeof(W));
    for (int64_t block = part->begin, loaded = 0; block < part->end; block++) {
        if (plan->parts == 1) loaded = load_blocks(part, block, loaded);
        int64_t rows_of_block = mask_of_block(part, block, &tile.mask);
        for (int64_t h = 0; h < plan->group; h++) grad_tile(&tile, part, call, block, part->kv_head * plan->group + h, rows_of_block);
    }
    for (int64_t block = 0; plan->parts == 1 && block < plan->key_blocks; block++)
        store_block_grad(plan, part->pair, block, part->d_keys, call);
}

/* Adds the gradients of the sinks (scores.h); a head's rows are added in order. */
static void add_sink_gradients(const OpCall *call, const Heads *h) {
    const T *d_out = call->in[ATTENTION_GRAD_D_OUT], *out = call->in[ATTENTION_GRAD_OUT];
    const W *log_sum = call->in[ATTENTION_GRAD_LOG_SUM], *sinks = call->in[ATTENTION_SINKS];
    W *d_sinks = call->out[ATTENTION_GRAD_D_SINKS];
    int64_t rows = call->in_shape[ATTENTION_QKV][0];
#pragma omp parallel for schedule(static)
    for (int64_t head = 0; head < h->heads; head++) {
        double sum = 0;
        for (int64_t i = head; i < rows * h->heads; i += h->heads) {
            W delta = 0;
            for (int64_t j = i * h->v_dim; j < (i + 1) * h->v_dim; j++) delta += to_wide(d_out[j]) * to_wide(out[j]);
            sum += exp((double)sinks[head] - (double)log_sum[i]) * (double)delta;
        }
        d_sinks[head] -= (W)sum;
    }
}

CPU_OP(attention_grad, attention_grad_cpu_workspace) {
    CpuAttention a = attention_begin(call, true);
    const AttentionPlan *plan = &a.plan;
    if (a.sinks && call->out[ATTENTION_GRAD_D_SINKS]) add_sink_gradients(call, &plan->heads);
#pragma omp parallel for schedule(dynamic) num_threads(thread_count(plan))
    for (int64_t task = 0; task < plan->pairs * plan->parts; task++) {
        KeyPart part = part_of_task(&a, task);
        grad_part(&part, call);
    }
    if (plan->parts == 1) return;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < plan->pairs * plan->key_blocks; i++)
        store_block_grad(
            plan, i / plan->key_blocks, i % plan->key_blocks, a.gradients + i / plan->key_blocks * plan->parts * plan->pair_elements, call);
}

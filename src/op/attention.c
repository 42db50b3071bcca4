/* Causal attention with grouped queries over packed rows, and its gradient (FlashAttention-2, arXiv 2307.08691): scores exist one block at a
 * time, and what the backward pass keeps is the output and one log-sum-exp per row and head.
 *     P = softmax(Q K^T / sqrt(head_dim) + bias),  O = P V,  D = rowsum(dO * O)
 *     dV = P^T dO,  dS = P * (dO V^T - D),  dQ = dS K / sqrt(head_dim),  dK = dS^T Q / sqrt(head_dim)
 *
 * Work is cut by shape alone. A pair is a sequence and a key-value head; the query blocks of a pair are cut into parts of about equal cost,
 * as few as give ATTENTION_ITEMS pieces of work. Keys and values of all pairs are first widened into scratch, shared by all
 * parts. In the backward pass every part adds to its own dK and dV, in the order of its tiles, and the parts are then added in order. */
#include "op/attention.h"

enum { ATTENTION_ITEMS = 64 };

/* How a call is cut, from its shapes. Sizes of scratch are in elements of W and multiples of 64 of them. */
typedef struct AttentionPlan {
    const AttentionSpec *spec;
    int64_t heads, kv_heads, group, head_dim, width, window;
    int64_t columns, length, blocks, padded;   /* columns of qkv; rows of a sequence, its blocks, its rows in scratch */
    int64_t pairs, parts;
    int64_t begin[ATTENTION_ITEMS + 1];        /* first query block of each part */
    int64_t pair_elements, part_elements;      /* widened keys and values of a pair; scratch of a part */
} AttentionPlan;

/* Key blocks that query block `block` reaches, itself included, by causality and window. */
static int64_t reach(const AttentionPlan *plan, int64_t block) {
    int64_t blocks = plan->window > 0 ? (plan->window + ATTENTION_TILE - 2) / ATTENTION_TILE + 1 : block + 1;
    return kernel_min(blocks, block + 1);
}

/* Cuts the query blocks so that parts reach about equally many key blocks in all. */
static void cut_parts(AttentionPlan *plan) {
    int64_t total = 0, sum = 0, block = 0;
    for (int64_t b = 0; b < plan->blocks; b++) total += reach(plan, b);
    for (int64_t part = 0; part <= plan->parts; part++) {
        while (sum * plan->parts < part * total) sum += reach(plan, block++);
        plan->begin[part] = block;
    }
}

static AttentionPlan attention_plan(const AttentionSpec *spec, int64_t rows, bool backward) {
    const Heads *h = &spec->heads;
    AttentionPlan plan = {.spec = spec, .heads = h->heads, .kv_heads = h->kv_heads, .group = h->heads / h->kv_heads, .head_dim = h->head_dim,
                          .width = attention_width(h->head_dim), .window = spec->window, .length = spec->length};
    plan.columns = (plan.heads + 2 * plan.kv_heads) * plan.head_dim;
    plan.padded = attention_round(plan.length);
    plan.blocks = plan.padded / ATTENTION_TILE;
    plan.pairs = rows / plan.length * plan.kv_heads;
    plan.parts = kernel_max(1, kernel_min(plan.blocks, (ATTENTION_ITEMS + plan.pairs - 1) / kernel_max(plan.pairs, 1)));
    cut_parts(&plan);
    plan.pair_elements = 2 * plan.padded * plan.width;
    int64_t rows_of_tile = ATTENTION_TILE * plan.width;
    plan.part_elements = attention_tile_elements(plan.head_dim);
    if (backward) plan.part_elements = 5 * rows_of_tile + 2 * ATTENTION_TILE * ATTENTION_TILE + plan.pair_elements;
    return plan;
}

#ifdef KERNEL_VARIANT

/* What both passes know of a call. */
typedef struct Attention {
    AttentionPlan plan;
    const T *qkv;
    const int32_t *positions;
    W *pairs, *parts; /* scratch */
} Attention;

/* One part of one pair. */
typedef struct Part {
    const Attention *attention;
    int64_t row, kv_head;           /* first row of the sequence */
    int64_t begin, end;             /* query blocks */
    const W *keys, *values;         /* [padded][width] */
    W *scratch;
} Part;

/* Later parts first: where parts cannot be equal they are the longer ones. */
static Part part_of_item(const Attention *a, int64_t item) {
    const AttentionPlan *plan = &a->plan;
    int64_t pair = item % plan->pairs, index = plan->parts - 1 - item / plan->pairs;
    W *keys = a->pairs + pair * plan->pair_elements;
    return (Part){.attention = a, .row = pair / plan->kv_heads * plan->length, .kv_head = pair % plan->kv_heads,
                  .begin = plan->begin[index], .end = plan->begin[index + 1], .keys = keys,
                  .values = keys + plan->padded * plan->width, .scratch = a->parts + (pair * plan->parts + index) * plan->part_elements};
}

static void widen_keys_and_values(const Attention *a) {
    const AttentionPlan *plan = &a->plan;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < plan->pairs * plan->blocks; i++) {
        int64_t pair = i / plan->blocks, first = i % plan->blocks * ATTENTION_TILE, rows = kernel_min(ATTENTION_TILE, plan->length - first);
        const T *from = a->qkv + (pair / plan->kv_heads * plan->length + first) * plan->columns +
                        (plan->heads + pair % plan->kv_heads) * plan->head_dim;
        W *to = a->pairs + pair * plan->pair_elements + first * plan->width;
        attention_load(to, from, plan->columns, rows, ATTENTION_TILE, plan->head_dim, 1);
        attention_load(to + plan->padded * plan->width, from + plan->kv_heads * plan->head_dim, plan->columns, rows, ATTENTION_TILE,
                       plan->head_dim, 1);
    }
}

/* The keys that each row of a query block sees, numbered within the sequence; the number of rows. */
static int64_t view_of_block(const Part *part, int64_t block, AttentionView *view) {
    const AttentionPlan *plan = &part->attention->plan;
    int64_t first = block * ATTENTION_TILE, rows = kernel_min(ATTENTION_TILE, plan->length - first);
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = first + i, back = kernel_max(part->attention->positions[part->row + at], 0);
        if (plan->window > 0) back = kernel_min(back, plan->window - 1);
        view->low[i] = (W)kernel_max(at - back, 0);
        view->high[i] = (W)at;
    }
    view->sloped = false; /* until a head is chosen */
    attention_view_close(view, rows);
    return rows;
}

static void slope_view(AttentionView *view, const AttentionSpec *spec, int64_t head) {
    view->sloped = spec->alibi > 0;
    W slope = view->sloped ? attention_slope(spec, head) : 0;
    for (int i = 0; i < ATTENTION_TILE; i++) view->slope[i] = slope;
}

/* First key that any query of the view sees, rounded down to a block. */
static int64_t first_key(const AttentionView *view) {
    W low, high;
    attention_interval(view, 0, view->queries, &low, &high);
    return (int64_t)low / ATTENTION_TILE * ATTENTION_TILE;
}

/* -- Forward ------------------------------------------------------------------------------------------------------- */

static void forward_tile(const Part *part, AttentionTile *tile, int64_t block, int64_t head, int64_t rows, T *out, W *sums) {
    const AttentionPlan *plan = &part->attention->plan;
    int64_t row = part->row + block * ATTENTION_TILE, end = kernel_min(plan->length, (block + 1) * ATTENTION_TILE);
    attention_load(tile->out, part->attention->qkv + row * plan->columns + head * plan->head_dim, plan->columns, rows, tile->view.queries,
                   plan->head_dim, attention_scale(plan->spec));
    slope_view(&tile->view, plan->spec, head);
    attention_tile_begin(tile);
    for (int64_t key = first_key(&tile->view); key < end; key += ATTENTION_TILE)
        attention_tile_absorb(tile, part->keys + key * plan->width, part->values + key * plan->width, key, kernel_min(ATTENTION_TILE, end - key));
    for (int64_t i = 0; i < rows; i++) {
        attention_tile_store(tile, i, out + ((row + i) * plan->heads + head) * plan->head_dim);
        if (sums) sums[(row + i) * plan->heads + head] = attention_tile_log_sum(tile, i);
    }
}

void KERNEL(attention)(const OpCall *call) {
    Attention a = {.plan = attention_plan(call->attributes, call->in_shape[0][0], false), .qkv = call->in[0], .positions = call->in[1],
                   .pairs = call->workspace};
    a.parts = a.pairs + a.plan.pairs * a.plan.pair_elements;
    widen_keys_and_values(&a);
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < a.plan.pairs * a.plan.parts; item++) {
        Part part = part_of_item(&a, item);
        AttentionTile tile;
        attention_tile_place(&tile, part.scratch, a.plan.head_dim);
        for (int64_t block = part.begin; block < part.end; block++) {
            int64_t rows = view_of_block(&part, block, &tile.view);
            for (int64_t h = 0; h < a.plan.group; h++)
                forward_tile(&part, &tile, block, part.kv_head * a.plan.group + h, rows, call->out[0], call->out[1]);
        }
    }
}

/* -- Backward ------------------------------------------------------------------------------------------------------ */

/* A tile of queries, as rows and transposed, and what it gathers. */
typedef struct GradTile {
    AttentionView view;
    W *rows, *queries;         /* [64][width] and [width][64], times attention_scale */
    W *d_rows, *d_outs;        /* gradient of the output likewise */
    W *d_queries;              /* [64][width] */
    W *weights, *d_scores;     /* [64 keys][64] */
    W *d_keys, *d_values;      /* [padded][width], of the part */
    _Alignas(64) W log_sum[ATTENTION_TILE] /* to base 2 */, delta[ATTENTION_TILE];
} GradTile;

static void grad_tile_place(GradTile *tile, W *scratch, const AttentionPlan *plan) {
    int64_t size = ATTENTION_TILE * plan->width;
    tile->rows = scratch;
    tile->queries = tile->rows + size;
    tile->d_rows = tile->queries + size;
    tile->d_outs = tile->d_rows + size;
    tile->d_queries = tile->d_outs + size;
    tile->weights = tile->d_queries + size;
    tile->d_scores = tile->weights + ATTENTION_TILE * ATTENTION_TILE;
    tile->d_keys = tile->d_scores + ATTENTION_TILE * ATTENTION_TILE;
    tile->d_values = tile->d_keys + plan->padded * plan->width;
}

static void grad_tile_load(GradTile *tile, const Part *part, const OpCall *call, int64_t row, int64_t head, int64_t rows) {
    const AttentionPlan *plan = &part->attention->plan;
    int64_t at = (row * plan->heads + head) * plan->head_dim, stride = plan->heads * plan->head_dim;
    const T *d_out = (const T *)call->in[0] + at, *out = (const T *)call->in[3] + at;
    const W *sums = call->in[4];
    attention_load(tile->rows, part->attention->qkv + row * plan->columns + head * plan->head_dim, plan->columns, rows, tile->view.queries,
                   plan->head_dim, attention_scale(plan->spec));
    attention_load(tile->d_rows, d_out, stride, rows, tile->view.queries, plan->head_dim, 1);
    attention_transpose(tile->queries, tile->rows, tile->view.queries, plan->width);
    attention_transpose(tile->d_outs, tile->d_rows, tile->view.queries, plan->width);
    memset(tile->d_queries, 0, tile->view.queries * plan->width * sizeof(W));
    for (int64_t i = 0; i < tile->view.queries; i++) {
        W delta = 0;
        if (i < rows) {
#pragma omp simd reduction(+ : delta)
            for (int64_t j = 0; j < plan->head_dim; j++) delta += tile->d_rows[i * plan->width + j] * widen(out[i * stride + j]);
        }
        tile->delta[i] = delta;
        tile->log_sum[i] = i < rows ? sums[(row + i) * plan->heads + head] * (W)M_LOG2E : 0;
    }
}

/* Scores become weights; gradients of weights become gradients of scores. Far keys have tiny weights under ALiBi, whose products with small
 * gradients would be subnormal numbers, on which processors are many times slower. */
static void grad_panel(const GradTile *tile, int64_t panel) {
    const W *restrict log_sum = tile->log_sum, *restrict delta = tile->delta;
    const W least = tile->view.sloped ? (W)0x1p-64 : 0;
    for (int64_t k = panel * ATTENTION_PANEL; k < (panel + 1) * ATTENTION_PANEL; k++) {
        W *restrict weight = tile->weights + k * ATTENTION_TILE, *restrict d_score = tile->d_scores + k * ATTENTION_TILE;
        for (int i = tile->view.first[panel]; i < tile->view.end[panel]; i++) {
            W e = attention_exp2(weight[i] - log_sum[i]);
            weight[i] = e < least ? 0 : e;
            d_score[i] = weight[i] * (d_score[i] - delta[i]);
        }
    }
}

static void grad_tile_block(GradTile *tile, const Part *part, int64_t key, int64_t keys) {
    const AttentionPlan *plan = &part->attention->plan;
    const W *block_keys = part->keys + key * plan->width, *block_values = part->values + key * plan->width;
    AttentionView *view = &tile->view;
    int64_t width = plan->width;
    attention_view_block(view, key, keys);
    for (int64_t panel = 0; panel < view->panels; panel++) {
        int64_t first = view->first[panel], queries = view->end[panel] - first, at = panel * ATTENTION_PANEL;
        if (queries <= 0) continue;
        attention_panel_product(view, panel, tile->weights, block_keys, tile->queries, plan->head_dim, width);
        attention_panel_product(view, panel, tile->d_scores, block_values, tile->d_outs, plan->head_dim, width);
        if (view->sloped) attention_panel_slope(view, panel, tile->weights, key);
        if (!view->whole) attention_panel_mask(view, panel, tile->weights, key);
        grad_panel(tile, panel);
        attention_multiply(tile->d_values + (key + at) * width, width, attention_ones, tile->weights + at * ATTENTION_TILE + first,
                           ATTENTION_TILE, 1, tile->d_rows + first * width, width, queries, width);
        attention_multiply(tile->d_keys + (key + at) * width, width, attention_ones, tile->d_scores + at * ATTENTION_TILE + first,
                           ATTENTION_TILE, 1, tile->rows + first * width, width, queries, width);
    }
    for (int64_t query = 0; query < view->queries; query += ATTENTION_PANEL) {
        int64_t first, end;
        if (!attention_view_keys(view, query, key, keys, &first, &end)) continue;
        attention_multiply(tile->d_queries + query * width, width, attention_ones, tile->d_scores + first * ATTENTION_TILE + query, 1,
                           ATTENTION_TILE, block_keys + first * width, width, end - first, width);
    }
}

static void grad_tile(GradTile *tile, const Part *part, const OpCall *call, int64_t block, int64_t head, int64_t rows) {
    const AttentionPlan *plan = &part->attention->plan;
    int64_t row = part->row + block * ATTENTION_TILE, end = kernel_min(plan->length, (block + 1) * ATTENTION_TILE);
    slope_view(&tile->view, plan->spec, head);
    grad_tile_load(tile, part, call, row, head, rows);
    for (int64_t key = first_key(&tile->view); key < end; key += ATTENTION_TILE)
        grad_tile_block(tile, part, key, kernel_min(ATTENTION_TILE, end - key));
    W scale = plan->spec->scale > 0 ? (W)plan->spec->scale : 1 / wide_sqrt((W)plan->head_dim);
    for (int64_t i = 0; i < rows; i++) {
        T *restrict to = (T *)call->out[0] + (row + i) * plan->columns + head * plan->head_dim;
        const W *restrict from = tile->d_queries + i * plan->width;
        for (int64_t j = 0; j < plan->head_dim; j++) to[j] = narrow(scale * from[j]);
    }
}

/* First key block that a part of query blocks from `begin` on may add to. */
static int64_t first_block(const AttentionPlan *plan, int64_t begin) { return begin + 1 - reach(plan, begin); }

static void grad_part(const Part *part, const OpCall *call) {
    const AttentionPlan *plan = &part->attention->plan;
    if (part->begin == part->end) return;
    GradTile tile;
    grad_tile_place(&tile, part->scratch, plan);
    int64_t first = first_block(plan, part->begin), rows = (part->end - first) * ATTENTION_TILE;
    memset(tile.d_keys + first * ATTENTION_TILE * plan->width, 0, rows * plan->width * sizeof(W));
    memset(tile.d_values + first * ATTENTION_TILE * plan->width, 0, rows * plan->width * sizeof(W));
    for (int64_t block = part->begin; block < part->end; block++) {
        int64_t rows_of_block = view_of_block(part, block, &tile.view);
        for (int64_t h = 0; h < plan->group; h++) grad_tile(&tile, part, call, block, part->kv_head * plan->group + h, rows_of_block);
    }
}

/* Sums over parts, in order, of `d_rows` of one block: the d_keys or d_values of the first part of a pair. Rounds them to `to`, times
 * `scale`. */
static void store_block(const AttentionPlan *plan, W *d_rows, int64_t block, W scale, T *to) {
    int64_t rows = kernel_min(ATTENTION_TILE, plan->length - block * ATTENTION_TILE);
    W *sum = NULL;
    for (int64_t part = 0; part < plan->parts; part++) {
        int64_t begin = plan->begin[part], end = plan->begin[part + 1];
        if (begin == end || block >= end || block < first_block(plan, begin)) continue;
        W *more = d_rows + part * plan->part_elements + block * ATTENTION_TILE * plan->width;
        for (int64_t i = 0; sum && i < rows * plan->width; i++) sum[i] += more[i];
        if (!sum) sum = more;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < plan->head_dim; j++) to[i * plan->columns + j] = narrow(scale * sum[i * plan->width + j]);
}

void KERNEL(attention_grad)(const OpCall *call) {
    Attention a = {.plan = attention_plan(call->attributes, call->in_shape[0][0], true), .qkv = call->in[1], .positions = call->in[2],
                   .pairs = call->workspace};
    const AttentionPlan *plan = &a.plan;
    a.parts = a.pairs + plan->pairs * plan->pair_elements;
    widen_keys_and_values(&a);
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < plan->pairs * plan->parts; item++) {
        Part part = part_of_item(&a, item);
        grad_part(&part, call);
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < plan->pairs * plan->blocks; i++) {
        int64_t pair = i / plan->blocks, block = i % plan->blocks;
        T *to = (T *)call->out[0] + (pair / plan->kv_heads * plan->length + block * ATTENTION_TILE) * plan->columns +
                (plan->heads + pair % plan->kv_heads) * plan->head_dim;
        GradTile tile;
        grad_tile_place(&tile, a.parts + pair * plan->parts * plan->part_elements, plan);
        store_block(plan, tile.d_keys, block, (W)M_LN2, to); /* queries hold log2(e) */
        store_block(plan, tile.d_values, block, 1, to + plan->kv_heads * plan->head_dim);
    }
}

#else

TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    int64_t rows = graph_rows(graph, qkv);
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_columns(graph, qkv) == (h->heads + 2 * h->kv_heads) * h->head_dim);
    assert(h->kv_heads > 0 && h->heads % h->kv_heads == 0 && spec->window >= 0);
    assert(spec->length > 0 && rows % spec->length == 0 && graph_elements(graph, positions) == rows);
    TensorId out[2] = {graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){rows, h->heads * h->head_dim}, "attended")};
    if (graph->training) out[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, h->heads}, "log_sum_exp");
    graph_node(graph, OP_attention, (TensorId[]){qkv, positions}, 2, out, 2, spec, sizeof *spec);
    return out[0];
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, node->in[0])->shape, "d_qkv");
    graph_node(graph, OP_attention_grad, (TensorId[]){d_out[0], node->in[0], node->in[1], node->out[0], node->out[1]}, 5, d_in, 1,
               node->attributes, sizeof(AttentionSpec));
}

/* Of `products` block products with every seen pair of query and key; documents are not known here. */
static Cost product_cost(const Graph *graph, const Node *node, int products) {
    const AttentionSpec *spec = node->attributes;
    int64_t rows = graph_rows(graph, node->in[0]), seen = spec->window > 0 ? kernel_min(spec->window, spec->length) : spec->length;
    double pairs = seen * (seen + 1) / 2.0 + (double)(spec->length - seen) * seen;
    return (Cost){.flops = 2.0 * products * pairs * (rows / spec->length) * spec->heads.heads * spec->heads.head_dim,
                  .bytes = op_tensor_bytes(graph, node)};
}

static Cost cost(const Graph *graph, const Node *node) { return product_cost(graph, node, 2); }
static Cost grad_cost(const Graph *graph, const Node *node) { return product_cost(graph, node, 5); }

static int64_t plan_bytes(const Graph *graph, const Node *node, bool backward) {
    AttentionPlan plan = attention_plan(node->attributes, graph_rows(graph, node->in[0]), backward);
    int64_t elements = plan.pairs * (plan.pair_elements + plan.parts * plan.part_elements);
    return elements * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

static int64_t workspace(const Graph *graph, const Node *node) { return plan_bytes(graph, node, false); }
static int64_t grad_workspace(const Graph *graph, const Node *node) { return plan_bytes(graph, node, true); }

const Op op_rule_attention = {.name = "attention", .class = OP_CLASS_ATTENTION, .gradient = gradient, .cost = cost, .workspace = workspace};
const Op op_rule_attention_grad = {.name = "attention_grad", .cost = grad_cost, .workspace = grad_workspace};

#endif

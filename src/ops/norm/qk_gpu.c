/* Norms of queries and keys inside packed qkv rows on a GPU, with the teams and formulas of gpu_rows.h. Queries and
 * keys are a launch each, since groups, gains and kinds may differ. A team takes one group of columns of one row at a
 * time; backward, a block takes QK_GRAD_ROWS rows. Values are copied. Scratch: the sums of each block for the
 * gradients of gain and bias, used for queries, then for keys. */
#include "ops/norm/gpu_rows.h"

enum { QK_GRAD_ROWS = 16 };

/* Groups of up to 128 columns, usually a head, have teams of 32 threads. */
#define QK_WIDTHS(X) X(128, 32, 1) NORM_WIDTHS(X)

/* Queries or keys of all rows. Pair p is group p % groups of row p / groups. */
typedef struct QkArguments {
    const bf16 GLOBAL *d_y, *x; /* of the part's first column */
    const float GLOBAL *gain, *bias;
    bf16 GLOBAL *y; /* backward: d_x */
    float GLOBAL *statistics, *partials;
    int64_t pairs, teams;
    int32_t stride, groups, group; /* columns of a row, groups of a row, columns of a group */
    int32_t layer;                 /* for the kernels for any width */
    float epsilon;
} QkArguments;

/* Of columns that stay as they are. */
typedef struct CopyArguments {
    bf16 GLOBAL *to;
    const bf16 GLOBAL *from;
    int64_t stride;
    Tiling tiling;
} CopyArguments;

#ifdef GPU_DEVICE

INLINE int64_t pair_begin(const QkArguments *a, int64_t pair) {
    uint32_t row = (uint32_t)pair / a->groups, group = (uint32_t)pair - row * a->groups;
    return (int64_t)row * a->stride + (int64_t)group * a->group;
}

INLINE void load_row_as_float(Team t, Row row, const bf16 GLOBAL *from) { FOR_UNITS(t) row[i] = load4_bf16(from + column_of(t, i), 4); }

INLINE void qk_norm_pairs(const QkArguments *a, bool layer, int threads, int units) {
    Team t = make_team(threads, units, a->group);
    Row gain, bias, x;
    clear_row(t, bias);
    load_row_wide(t, gain, a->gain);
    if (layer && a->bias) load_row_wide(t, bias, a->bias);
    for (int64_t pair = team_index(t); pair < a->pairs; pair += a->teams) {
        int64_t at = pair_begin(a, pair);
        load_row_as_float(t, x, a->x + at);
        Statistics s = row_statistics(t, x, layer, a->epsilon);
        if (t.lane == 0) store_statistics(a->statistics, pair, s, layer);
        FOR_UNITS(t) store_bf16_unit(t, i, a->y + at, normalise(x[i], s, gain[i], bias[i]));
    }
}

/* The pairs of a block in the backward pass. */
typedef struct Span { int64_t begin, end; } Span;
INLINE Span block_pairs(const QkArguments *a, int64_t block) {
    int64_t count = (int64_t)QK_GRAD_ROWS * a->groups, begin = block * count;
    return (Span){begin, begin + count < a->pairs ? begin + count : a->pairs};
}

INLINE void qk_norm_grad_pairs(const QkArguments *a, bool layer, int threads, int units) {
    Team t = make_team(threads, units, a->group);
    Row gain, gain_sum, bias_sum, x, dy;
    clear_row(t, gain_sum);
    clear_row(t, bias_sum);
    load_row_wide(t, gain, a->gain);
    Span span = block_pairs(a, block_x());
    for (int64_t pair = span.begin + thread_id() / threads; pair < span.end; pair += NORM_THREADS / threads) {
        int64_t at = pair_begin(a, pair);
        load_row_as_float(t, x, a->x + at);
        load_row_as_float(t, dy, a->d_y + at);
        Statistics s = load_statistics(a->statistics, pair, layer);
        f32x4 sum = 0, dot = 0;
        FOR_UNITS(t) {
            sum += counted(t, i, dy[i] * gain[i]);
            dot += counted(t, i, dy[i] * gain[i] * (x[i] - s.mean));
        }
        Means m = row_means(t, sum4(sum), sum4(dot), s, layer);
        FOR_UNITS(t) {
            store_bf16_unit(t, i, a->y + at, normalise_grad(dy[i], x[i], gain[i], s, m));
            gain_sum[i] += dy[i] * (x[i] - s.mean) * s.rstd;
            if (layer) bias_sum[i] += dy[i];
        }
    }
    float GLOBAL *to = a->partials + (int64_t)block_x() * (1 + layer) * a->group;
    store_block_sums(t, to, gain_sum);
    if (layer) store_block_sums(t, to + a->group, bias_sum);
}

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(rms_##width, QkArguments) { qk_norm_pairs(&a, false, threads, units); }                                                         \
    KERNEL(layer_##width, QkArguments) { qk_norm_pairs(&a, true, threads, units); }                                                        \
    KERNEL(rms_grad_##width, QkArguments) { qk_norm_grad_pairs(&a, false, threads, units); }                                               \
    KERNEL(layer_grad_##width, QkArguments) { qk_norm_grad_pairs(&a, true, threads, units); }
QK_WIDTHS(KERNELS)

/* A block per pair, whatever the width and the place of the group. */
KERNEL(any, QkArguments) {
    Team t = make_team(NORM_THREADS, 1, a.group);
    int64_t pair = block_x(), at = pair_begin(&a, pair);
    Statistics s = {0};
    float sum = 0, squares = 0;
    for (int j = t.lane; j < a.group; j += NORM_THREADS) sum += to_float(a.x[at + j]);
    if (a.layer) s.mean = team_sum(t, sum) * t.share;
    for (int j = t.lane; j < a.group; j += NORM_THREADS) squares += (to_float(a.x[at + j]) - s.mean) * (to_float(a.x[at + j]) - s.mean);
    s.rstd = fast_rsqrt(team_sum(t, squares) * t.share + a.epsilon);
    if (t.lane == 0) store_statistics(a.statistics, pair, s, a.layer);
    for (int j = t.lane; j < a.group; j += NORM_THREADS)
        store4_bf16(a.y + at + j, normalise(load4_bf16(a.x + at + j, 1), s, load_parameter(a.gain, j), load_parameter(a.bias, j)), 1);
}

/* d_x; a block per pair. */
KERNEL(any_grad_rows, QkArguments) {
    Team t = make_team(NORM_THREADS, 1, a.group);
    int64_t pair = block_x(), at = pair_begin(&a, pair);
    Statistics s = load_statistics(a.statistics, pair, a.layer);
    float sum = 0, dot = 0;
    for (int j = t.lane; j < a.group; j += NORM_THREADS) {
        float g = to_float(a.d_y[at + j]) * a.gain[j];
        sum += g;
        dot += g * (to_float(a.x[at + j]) - s.mean);
    }
    Means m = row_means(t, sum, dot, s, a.layer);
    for (int j = t.lane; j < a.group; j += NORM_THREADS)
        store4_bf16(
            a.y + at + j, normalise_grad(load4_bf16(a.d_y + at + j, 1), load4_bf16(a.x + at + j, 1), load_parameter(a.gain, j), s, m), 1);
}

/* The column sums; a thread per column of a group. */
KERNEL(any_grad_columns, QkArguments) {
    int tiles = (a.group + NORM_THREADS - 1) / NORM_THREADS, block = block_x() / tiles,
        j = (block_x() - block * tiles) * NORM_THREADS + thread_id();
    if (j >= a.group) return;
    float gain_sum = 0, bias_sum = 0;
    Span span = block_pairs(&a, block);
    for (int64_t pair = span.begin; pair < span.end; pair++) {
        int64_t at = pair_begin(&a, pair) + j;
        Statistics s = load_statistics(a.statistics, pair, a.layer);
        gain_sum += to_float(a.d_y[at]) * (to_float(a.x[at]) - s.mean) * s.rstd;
        bias_sum += to_float(a.d_y[at]);
    }
    float GLOBAL *to = a.partials + (int64_t)block * (1 + a.layer) * a.group + j;
    to[0] = gain_sum;
    if (a.layer) to[a.group] = bias_sum;
}

INLINE void copy_unit(const CopyArguments *a, int unit) {
    Place place = place_in(a->tiling, unit);
    int64_t at = place.row * a->stride + place.column;
    if (place.inside) store8_bf16(a->to + at, load8_bf16(a->from + at, unit), unit);
}

UNIT_KERNELS(copy, CopyArguments, copy_unit, 8)

#else

#include "ops/norm/norm.h"

LAUNCHERS(rms, QkArguments, rms_128, rms_512, rms_1024, rms_2048, rms_4096, rms_8192, any)
LAUNCHERS(layer, QkArguments, layer_128, layer_512, layer_1024, layer_2048, layer_4096, layer_8192, any)
LAUNCHERS(rms_grad, QkArguments, rms_grad_128, rms_grad_512, rms_grad_1024, rms_grad_2048, rms_grad_4096, rms_grad_8192)
LAUNCHERS(layer_grad, QkArguments, layer_grad_128, layer_grad_512, layer_grad_1024, layer_grad_2048, layer_grad_4096, layer_grad_8192)
TILED_LAUNCHER(copy, CopyArguments, 8)
LAUNCHER(any_grad_rows, QkArguments)
LAUNCHER(any_grad_columns, QkArguments)

/* Index of a kernel: width 128, then those of NORM_WIDTHS, then any width. */
enum { QK_ANY = NORM_ANY + 1 };

/* Every group must begin at a multiple of 4 columns. */
static int qk_width(const Heads *heads, int part, int64_t group, int64_t stride) {
    if (qk_begin(heads, part) % 4 || stride % 4 || group % 4) return QK_ANY;
    return group <= 128 ? 0 : norm_width(group) + 1;
}

static int64_t teams_of_block(Device *device, int width) {
    return width == 0 ? NORM_THREADS / 32 : width == 1 ? NORM_THREADS / device_info(device)->wave : 1;
}

static QkArguments part_arguments(const OpCall *call, const int64_t *qkv_shape, int part, int64_t group) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t groups = qk_columns(&attributes->heads, part) / group;
    return (QkArguments){.pairs = qkv_shape[0] * groups,
        .stride = qkv_shape[1],
        .groups = groups,
        .group = group,
        .layer = attributes->norm[part].kind == NORM_LAYER,
        .epsilon = attributes->norm[part].epsilon};
}

static void launch_part(const OpCall *call, int part) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t group = call->in_shape[QK_NORM_GAIN + part][0], begin = qk_begin(&attributes->heads, part);
    QkArguments arguments = part_arguments(call, call->in_shape[QK_NORM_QKV], part, group);
    arguments.x = (const bf16 *)call->in[QK_NORM_QKV] + begin;
    arguments.y = (bf16 *)call->out[QK_NORM_OUT] + begin;
    arguments.gain = call->in[QK_NORM_GAIN + part];
    arguments.bias = call->in[QK_NORM_BIAS + part];
    arguments.statistics = call->out[QK_NORM_STATISTICS + part];
    int width = qk_width(&attributes->heads, part, group, arguments.stride);
    int64_t teams = teams_of_block(call->device, width), blocks = divide_up(arguments.pairs, teams),
            most = 8 * device_info(call->device)->processors;
    if (width != QK_ANY && blocks > most) blocks = most;
    arguments.teams = blocks * teams;
    (arguments.layer ? launch_layer : launch_rms)(call->device, width, (LaunchShape){.x = blocks, .threads = NORM_THREADS}, &arguments);
}

static void copy_values(const OpCall *call, const int64_t *qkv_shape, bf16 *to, const bf16 *from) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t begin = qk_begin(&attributes->heads, QK_PARTS), stride = qkv_shape[1];
    CopyArguments arguments = {
        .to = to + begin, .from = from + begin, .stride = stride, .tiling = tile_matrix(qkv_shape[0], stride - begin, begin % 8 ? 1 : 8)};
    launch_copy(call->device, &arguments);
}

GPU_OP(qk_norm) {
    for (int part = 0; part < QK_PARTS; part++) launch_part(call, part);
    copy_values(call, call->in_shape[QK_NORM_QKV], call->out[QK_NORM_OUT], call->in[QK_NORM_QKV]);
}

/* Queries, then keys use the scratch. */
static int64_t grad_workspace(const Graph *graph, const Node *node) {
    const QkNormAttributes *attributes = node->attributes;
    int64_t most = 0;
    for (int part = 0; part < QK_PARTS; part++) {
        int64_t columns = norm_statistics(attributes->norm[part].kind) * graph_elements(graph, node->in[QK_NORM_GRAD_GAIN + part]);
        if (columns > most) most = columns;
    }
    return divide_up(graph_rows(graph, node->in[QK_NORM_GRAD_QKV]), QK_GRAD_ROWS) * most * (int64_t)sizeof(float);
}

static void launch_part_grad(const OpCall *call, int part) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t group = call->in_shape[QK_NORM_GRAD_GAIN + part][0], begin = qk_begin(&attributes->heads, part);
    int64_t blocks = divide_up(call->in_shape[QK_NORM_GRAD_QKV][0], QK_GRAD_ROWS);
    QkArguments arguments = part_arguments(call, call->in_shape[QK_NORM_GRAD_QKV], part, group);
    arguments.d_y = (const bf16 *)call->in[QK_NORM_GRAD_D_OUT] + begin;
    arguments.x = (const bf16 *)call->in[QK_NORM_GRAD_QKV] + begin;
    arguments.y = (bf16 *)call->out[QK_NORM_GRAD_D_QKV] + begin;
    arguments.gain = call->in[QK_NORM_GRAD_GAIN + part];
    arguments.statistics = call->in[QK_NORM_GRAD_STATISTICS + part];
    arguments.partials = call->workspace;
    int width = qk_width(&attributes->heads, part, group, arguments.stride);
    if (width == QK_ANY) {
        launch_any_grad_rows(call->device, (LaunchShape){.x = arguments.pairs, .threads = NORM_THREADS}, &arguments);
        launch_any_grad_columns(
            call->device, (LaunchShape){.x = blocks * divide_up(group, NORM_THREADS), .threads = NORM_THREADS}, &arguments);
    } else
        (arguments.layer ? launch_layer_grad : launch_rms_grad)(
            call->device, width, (LaunchShape){.x = blocks, .threads = NORM_THREADS}, &arguments);
    float *targets[] = {call->out[QK_NORM_GRAD_D_GAIN + part], call->out[QK_NORM_GRAD_D_BIAS + part]};
    gpu_add_partial_sums(call->device, targets, arguments.layer ? 2 : 1, call->workspace, blocks, group);
}

GPU_OP(qk_norm_grad, grad_workspace) {
    for (int part = 0; part < QK_PARTS; part++) launch_part_grad(call, part);
    copy_values(call, call->in_shape[QK_NORM_GRAD_QKV], call->out[QK_NORM_GRAD_D_QKV], call->in[QK_NORM_GRAD_D_OUT]);
}

#endif

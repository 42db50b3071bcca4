/* Norms of queries and keys inside packed qkv rows on a GPU, with the teams and formulas of
 * gpu_rows_kernels.h. Queries and keys have one launch each, because groups, gains and kinds may differ. A
 * team takes one group of columns of one row at a time. In the backward pass a block takes a few
 * adjacent rows, so that there are about GRAD_BLOCKS blocks, and a team loads its next group before
 * it processes the current one. Values are copied. Scratch: the sums of each block for the
 * gradients of gain and bias, used for queries, then for keys. */
#include "ops/norm/gpu_rows_kernels.h"

enum { HEAD_THREADS = 16, GRAD_BLOCKS = 512, GRAD_LEAST_ROWS = 2 };

/* Groups of up to 128 columns, usually a head, have teams of 16 threads with 8 columns each: larger
 * teams spend more instructions on exchanges and addresses than on columns. */
#define QK_WIDTHS(X) X(128, HEAD_THREADS, 2) NORM_WIDTHS(X)

/* Arguments for the queries or keys of all rows. Pair p is group p % groups of row p / groups. */
typedef struct QkArguments {
    const bf16 GLOBAL *d_y, *x; /* at the part's first column */
    const float GLOBAL *gain, *bias;
    bf16 GLOBAL *y; /* backward: d_x */
    float GLOBAL *statistics, *partials;
    int32_t pairs, teams, block_pairs; /* block_pairs: backward */
    int32_t stride, groups, group;     /* columns per row, groups per row, columns per group */
    int32_t layer;                     /* for the kernels for any width */
    float epsilon;
    uint32_t GLOBAL *amax; /* backward: receives the amax of y too, if wanted; so in CopyArguments */
} QkArguments;

/* Arguments for columns that are only copied. */
typedef struct CopyArguments {
    bf16 GLOBAL *to;
    const bf16 GLOBAL *from;
    int64_t stride;
    Tiling tiling;
    uint32_t GLOBAL *amax;
} CopyArguments;

#ifdef GPU_DEVICE

INLINE int64_t qk_pair_begin(const QkArguments *a, int pair) {
    uint32_t row = (uint32_t)pair / a->groups, group = (uint32_t)pair - row * a->groups;
    return (int64_t)row * a->stride + (int64_t)group * a->group;
}

INLINE void load_row_as_float(Team t, Row row, const bf16 GLOBAL *from) { FOR_UNITS(t) row[i] = load4_bf16(from + column_of(t, i), 4); }

/* Teams of a wave continue together, because all lanes take part in sums. A team after the last
 * pair repeats it. */
INLINE bool wave_goes_on(Team t, int pair, int end) { return pair - (t.threads < WAVE ? lane_id() / t.threads : 0) < end; }
INLINE int pair_or_last(int pair, int end) { return pair < end ? pair : end - 1; }

INLINE void qk_norm_pairs(const QkArguments *a, bool layer, int threads, int units) {
    Team t = make_team(threads, units, a->group);
    Row gain, bias, x;
    clear_row(t, bias);
    load_row_wide(t, gain, a->gain);
    if (layer && a->bias) load_row_wide(t, bias, a->bias);
    for (int next = team_index(t); wave_goes_on(t, next, a->pairs); next += a->teams) {
        int pair = pair_or_last(next, a->pairs);
        int64_t at = qk_pair_begin(a, pair);
        load_row_as_float(t, x, a->x + at);
        Statistics s = row_statistics(t, x, layer, a->epsilon);
        if (t.lane == 0) store_statistics(a->statistics, pair, s, layer);
        FOR_UNITS(t) store_bf16_unit(t, i, a->y + at, normalize(x[i], s, gain[i], bias[i]));
    }
}

/* Returns the pairs of a block in the backward pass. */
typedef struct PairSpan { int begin, end; } PairSpan;
INLINE PairSpan block_pairs(const QkArguments *a, int block) {
    int begin = block * a->block_pairs;
    return (PairSpan){begin, begin + a->block_pairs < a->pairs ? begin + a->block_pairs : a->pairs};
}

/* The inputs of the gradient of a pair. */
typedef struct GradPair {
    int64_t at;
    Statistics statistics;
    Bf16Row x, dy;
} GradPair;

INLINE GradPair load_grad_pair(const QkArguments *a, Team t, bool layer, int pair) {
    GradPair p = {.at = qk_pair_begin(a, pair), .statistics = load_statistics(a->statistics, pair, layer)};
    load_row_bf16(t, p.x, a->x + p.at);
    load_row_bf16(t, p.dy, a->d_y + p.at);
    return p;
}

INLINE void grad_pair(
    const QkArguments *a, Team t, bool layer, const GradPair *p, bool counts, const Row gain, Row gain_sum, Row bias_sum, uint32_t *most) {
    Statistics s = p->statistics;
    f32x4 sum = 0, dot = 0;
    FOR_UNITS(t) {
        f32x4 g = to_float4(p->dy[i]) * gain[i];
        sum += counted(t, i, g);
        dot += counted(t, i, g * (to_float4(p->x[i]) - s.mean));
    }
    Means m = row_means(t, sum4(sum), sum4(dot), s, layer);
    if (!counts) return;
    FOR_UNITS(t) {
        f32x4 dy = to_float4(p->dy[i]), x = to_float4(p->x[i]);
        f32x4 dx = normalize_grad(dy, x, gain[i], s, m);
        u32x2 pairs = {to_bf16_pair(dx.x, dx.y), to_bf16_pair(dx.z, dx.w)};
        if (inside(t, i)) *(u32x2 GLOBAL *)(a->y + p->at + column_of(t, i)) = pairs;
        *most = larger_of_pair(larger_of_pair(*most, pairs.x), pairs.y); /* units outside the row repeat units inside it */
        gain_sum[i] += dy * (x - s.mean) * s.rstd;
        if (layer) bias_sum[i] += dy;
    }
}

INLINE void qk_norm_grad_pairs(const QkArguments *a, bool layer, int threads, int units) {
    Team t = make_team(threads, units, a->group);
    Row gain, gain_sum, bias_sum;
    uint32_t most = 0;
    clear_row(t, gain_sum);
    clear_row(t, bias_sum);
    load_row_wide(t, gain, a->gain);
    PairSpan span = block_pairs(a, block_x());
    int pair = span.begin + thread_id() / threads;
    GradPair next = load_grad_pair(a, t, layer, pair_or_last(pair, span.end));
    for (; wave_goes_on(t, pair, span.end); pair += NORM_THREADS / threads) {
        GradPair now = next;
        next = load_grad_pair(a, t, layer, pair_or_last(pair + NORM_THREADS / threads, span.end));
        grad_pair(a, t, layer, &now, pair < span.end, gain, gain_sum, bias_sum, &most);
    }
    if (a->amax) record_amax_of_wave(a->amax, most);
    float GLOBAL *to = a->partials + (int64_t)block_x() * (1 + layer) * a->group;
    store_block_sums(t, to, gain_sum);
    if (layer) store_block_sums(t, to + a->group, bias_sum);
}

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(rms_##width, QkArguments) { qk_norm_pairs(&a, false, threads, units); }                                                         \
    KERNEL(layer_##width, QkArguments) { qk_norm_pairs(&a, true, threads, units); }                                                        \
    KERNEL(rms_grad_##width, QkArguments) {                                                                                                \
        BLOCK_BOUNDS(NORM_THREADS, threads == HEAD_THREADS ? 4 : 1); /* so that GRAD_BLOCKS run at once on 132 multiprocessors */               \
        qk_norm_grad_pairs(&a, false, threads, units);                                                                                     \
    }                                                                                                                                      \
    KERNEL(layer_grad_##width, QkArguments) { qk_norm_grad_pairs(&a, true, threads, units); }
QK_WIDTHS(KERNELS)

/* One block per pair, for any width and any place of the group. */
KERNEL(any, QkArguments) {
    Team t = make_team(NORM_THREADS, 1, a.group);
    int pair = block_x();
    int64_t at = qk_pair_begin(&a, pair);
    Statistics s = {0};
    float sum = 0, squares = 0;
    for (int j = t.lane; j < a.group; j += NORM_THREADS) sum += to_float(a.x[at + j]);
    if (a.layer) s.mean = team_sum(t, sum) * t.share;
    for (int j = t.lane; j < a.group; j += NORM_THREADS) squares += (to_float(a.x[at + j]) - s.mean) * (to_float(a.x[at + j]) - s.mean);
    s.rstd = fast_rsqrt(team_sum(t, squares) * t.share + a.epsilon);
    if (t.lane == 0) store_statistics(a.statistics, pair, s, a.layer);
    for (int j = t.lane; j < a.group; j += NORM_THREADS)
        store4_bf16(a.y + at + j, normalize(load4_bf16(a.x + at + j, 1), s, load_parameter(a.gain, j), load_parameter(a.bias, j)), 1);
}

/* Computes d_x; one block per pair. */
KERNEL(any_grad_rows, QkArguments) {
    Team t = make_team(NORM_THREADS, 1, a.group);
    int pair = block_x();
    int64_t at = qk_pair_begin(&a, pair);
    Statistics s = load_statistics(a.statistics, pair, a.layer);
    float sum = 0, dot = 0;
    for (int j = t.lane; j < a.group; j += NORM_THREADS) {
        float g = to_float(a.d_y[at + j]) * a.gain[j];
        sum += g;
        dot += g * (to_float(a.x[at + j]) - s.mean);
    }
    Means m = row_means(t, sum, dot, s, a.layer);
    uint32_t most = 0;
    for (int j = t.lane; j < a.group; j += NORM_THREADS) {
        bf16 dx = to_bf16(normalize_grad(load4_bf16(a.d_y + at + j, 1), load4_bf16(a.x + at + j, 1), load_parameter(a.gain, j), s, m).x);
        a.y[at + j] = dx;
        most = larger_of_pair(most, dx);
    }
    if (a.amax) record_amax_of_wave(a.amax, most);
}

/* Computes the column sums; one thread per column of a group. */
KERNEL(any_grad_columns, QkArguments) {
    int tiles = (a.group + NORM_THREADS - 1) / NORM_THREADS, block = block_x() / tiles,
        j = (block_x() - block * tiles) * NORM_THREADS + thread_id();
    if (j >= a.group) return;
    float gain_sum = 0, bias_sum = 0;
    PairSpan span = block_pairs(&a, block);
    for (int pair = span.begin; pair < span.end; pair++) {
        int64_t at = qk_pair_begin(&a, pair) + j;
        Statistics s = load_statistics(a.statistics, pair, a.layer);
        gain_sum += to_float(a.d_y[at]) * (to_float(a.x[at]) - s.mean) * s.rstd;
        bias_sum += to_float(a.d_y[at]);
    }
    float GLOBAL *to = a.partials + (int64_t)block * (1 + a.layer) * a.group + j;
    to[0] = gain_sum;
    if (a.layer) to[a.group] = bias_sum;
}

INLINE void copy_qk_unit(const CopyArguments *a, int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    int64_t at = place.row * a->stride + place.column;
    f32x8 x = 0;
    uint32_t most = 0;
    if (place.inside) x = load8_bf16(a->from + at, unit);
    if (place.inside) store8_bf16(a->to + at, x, unit);
    UNROLL for (int i = 0; i < unit; i++) most = larger_of(most, x[i]);
    if (a->amax) record_rounded_of_wave(a->amax, most);
}

UNIT_KERNELS(copy, CopyArguments, copy_qk_unit, 8)

#else

#include "ops/norm/norm.h"

LAUNCHERS(rms, QkArguments, rms_128, rms_512, rms_1024, rms_2048, rms_4096, rms_8192, any)
LAUNCHERS(layer, QkArguments, layer_128, layer_512, layer_1024, layer_2048, layer_4096, layer_8192, any)
LAUNCHERS(rms_grad, QkArguments, rms_grad_128, rms_grad_512, rms_grad_1024, rms_grad_2048, rms_grad_4096, rms_grad_8192)
LAUNCHERS(layer_grad, QkArguments, layer_grad_128, layer_grad_512, layer_grad_1024, layer_grad_2048, layer_grad_4096, layer_grad_8192)
TILED_LAUNCHER(copy, CopyArguments, 8)
LAUNCHER(any_grad_rows, QkArguments)
LAUNCHER(any_grad_columns, QkArguments)

/* Index of a kernel: first width 128, then NORM_WIDTHS, then any width. */
enum { QK_ANY = NORM_ANY + 1 };

/* Every group must begin at a multiple of 4 columns. */
static int qk_width(const Heads *heads, int part, int64_t group, int64_t stride) {
    if (qk_begin(heads, part) % 4 || stride % 4 || group % 4) return QK_ANY;
    return group <= 128 ? 0 : norm_width(group) + 1;
}

static int64_t teams_of_block(Device *device, int width) {
    return width == 0 ? NORM_THREADS / HEAD_THREADS : width == 1 ? NORM_THREADS / device_info(device)->wave : 1;
}

static QkArguments part_arguments(const OpCall *call, const int64_t *qkv_shape, int part, int64_t group) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t groups = qk_columns(&attributes->heads, part) / group;
    assert(qkv_shape[0] * groups <= INT32_MAX / 2); /* so that steps of teams do not overflow */
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

static void copy_values(const OpCall *call, const int64_t *qkv_shape, bf16 *to, const bf16 *from, uint32_t *amax) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t begin = qk_begin(&attributes->heads, QK_PARTS), stride = qkv_shape[1];
    CopyArguments arguments = {.to = to + begin,
        .from = from + begin,
        .stride = stride,
        .tiling = tile_matrix(qkv_shape[0], stride - begin, begin % 8 ? 1 : 8),
        .amax = amax};
    launch_copy(call->device, &arguments);
}

GPU_OP(qk_norm) {
    for (int part = 0; part < QK_PARTS; part++) launch_part(call, part);
    copy_values(call, call->in_shape[QK_NORM_QKV], call->out[QK_NORM_OUT], call->in[QK_NORM_QKV], NULL);
}

/* Returns the rows of a block in the backward pass. */
static int64_t qk_block_rows(int64_t rows) { return int_max(divide_up(rows, GRAD_BLOCKS), GRAD_LEAST_ROWS); }
static int64_t grad_blocks(int64_t rows) { return divide_up(rows, qk_block_rows(rows)); }

/* Queries, then keys use the scratch. */
static int64_t qk_grad_gpu_workspace(const Graph *graph, const Node *node) {
    const QkNormAttributes *attributes = node->attributes;
    int64_t most = 0;
    for (int part = 0; part < QK_PARTS; part++) {
        int64_t columns = norm_statistics(attributes->norm[part].kind) * graph_elements(graph, node->in[QK_NORM_GRAD_GAIN + part]);
        if (columns > most) most = columns;
    }
    return grad_blocks(graph_rows(graph, node->in[QK_NORM_GRAD_QKV])) * most * (int64_t)sizeof(float);
}

static void launch_part_grad(const OpCall *call, int part, uint32_t *amax) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t group = call->in_shape[QK_NORM_GRAD_GAIN + part][0], begin = qk_begin(&attributes->heads, part);
    int64_t rows = call->in_shape[QK_NORM_GRAD_QKV][0], blocks = grad_blocks(rows);
    QkArguments arguments = part_arguments(call, call->in_shape[QK_NORM_GRAD_QKV], part, group);
    arguments.block_pairs = qk_block_rows(rows) * arguments.groups;
    arguments.d_y = (const bf16 *)call->in[QK_NORM_GRAD_D_OUT] + begin;
    arguments.x = (const bf16 *)call->in[QK_NORM_GRAD_QKV] + begin;
    arguments.y = (bf16 *)call->out[QK_NORM_GRAD_D_QKV] + begin;
    arguments.gain = call->in[QK_NORM_GRAD_GAIN + part];
    arguments.statistics = call->in[QK_NORM_GRAD_STATISTICS + part];
    arguments.partials = call->workspace;
    arguments.amax = amax;
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

GPU_OP(qk_norm_grad, qk_grad_gpu_workspace) {
    uint32_t *amax = amax_to_record(call, QK_NORM_GRAD_AMAX);
    for (int part = 0; part < QK_PARTS; part++) launch_part_grad(call, part, amax);
    copy_values(call, call->in_shape[QK_NORM_GRAD_QKV], call->out[QK_NORM_GRAD_D_QKV], call->in[QK_NORM_GRAD_D_OUT], amax);
}

#endif

/* Adapters of groups of rows, for the few rows of generation: u = x a[g]^T, then y += u b[g]^T for
 * the rows of each group g. Two launches do this for all adapters of a layer. Tiles of a GEMM would
 * be few and mostly empty, and each would read all of k alone. Here the bytes of A and B are divided
 * among as many blocks as possible, and each is read once for up to GROUP_ROWS rows of a group. Both
 * kernels begin to load A and B before the preceding kernel has made x and y.
 *
 * A run is up to GROUP_ROWS consecutive rows of one group. The groups' bounds are on the device, so
 * the grid has enough runs for any bounds, and each block finds its run. The sums of a row have the
 * same order in every run. Called by gpu.c; u is an activation, so there is no scratch. */
#include "backend/gpu/gemv.h"

enum {
    GROUP_ROWS = 8,
    GROUP_LINES = 4,     /* of A per block */
    GROUP_HELD = 16,     /* loads of A in flight per thread, at most */
    GROUP_PARTS = 4,     /* LORA_MAX_ADAPTERS */
    GROUP_COLUMNS = 256, /* of y per block */
    GROUP_FIRST = 2,     /* chunks of a line of B that are loaded early */
};

/* The rows of a call and their groups. */
typedef struct RowGroups {
    GLOBAL const int32_t *offset; /* [groups + 1] */
    int32_t groups;
} RowGroups;

/* u [R, width] = x [R, k] a^T; a [groups, width, k]. */
typedef struct GroupsDownArguments {
    RowGroups rows;
    GLOBAL const bf16 *x, *a;
    GLOBAL bf16 *u;
    int32_t k, width;
} GroupsDownArguments;

/* Columns of y with one adapter: adapter i has rows line to line + groups * count - 1 of b. */
typedef struct GroupsPart { int32_t first, count, line; } GroupsPart;

typedef struct GroupsUpArguments {
    RowGroups rows;
    GLOBAL const bf16 *u, *b;
    GLOBAL bf16 *y;
    int64_t out;
    int32_t rank, width, columns;  /* columns of all parts */
    GroupsPart parts[GROUP_PARTS]; /* a part that is absent has no columns */
} GroupsUpArguments;

#ifdef GPU_DEVICE

/* `count` rows of a group from `first` on; count 0: the block has none. */
typedef struct GroupRun { int32_t group, first, count; } GroupRun;

/* Returns run block_y(). Groups are counted without branches, so the loads do not wait for each
 * other. */
INLINE GroupRun find_run(const RowGroups *rows) {
    GroupRun run = {0, 0, 0};
    int32_t begin = rows->offset[0], before = 0;
    for (int32_t g = 0; g < rows->groups; g++) {
        int32_t end = rows->offset[g + 1], runs = (end - begin + GROUP_ROWS - 1) / GROUP_ROWS, index = block_y() - before;
        bool mine = index >= 0 && index < runs;
        int32_t first = begin + index * GROUP_ROWS;
        run.group = mine ? g : run.group;
        run.first = mine ? first : run.first;
        run.count = mine ? (end - first < GROUP_ROWS ? end - first : GROUP_ROWS) : run.count;
        begin = end, before += runs;
    }
    return (GroupRun){of_wave(run.group), of_wave(run.first), of_wave(run.count)};
}

/* Calls body(a, &run, rows). `rows` is a constant: the smallest power of two that holds the run. Rows
 * after the run's last row repeat it. A block without rows also waits; if none waited, the next kernel
 * would begin too early. */
#define FOR_RUN_ROWS(body, a, run) \
    if (run.count > 4) body(a, &run, 8); \
    else if (run.count > 2) body(a, &run, 4); \
    else if (run.count > 1) body(a, &run, 2); \
    else if (run.count == 1) body(a, &run, 1); \
    else await_kernel_ahead()

INLINE int32_t row_of_run(const GroupRun *run, int32_t row) { return run->first + (row < run->count ? row : run->count - 1); }

/* -- Down ---------------------------------------------------------------------------------------------------------- */

typedef float DownSums[GROUP_ROWS * GROUP_LINES];

/* Adds the waves' sums in order and writes u. */
INLINE void write_down(const GroupsDownArguments *a, const GroupRun *run, const float *sums, const int rows) {
    static SHARED DownSums parts[GEMV_THREADS / WAVE];
    UNROLL for (int i = 0; i < rows * GROUP_LINES; i++) {
        float sum = wave_sum(sums[i]);
        if (lane_id() == 0) parts[wave_id()][i] = sum;
    }
    barrier();
    int32_t row = thread_id() / GROUP_LINES, line = block_x() * GROUP_LINES + thread_id() % GROUP_LINES;
    if (row >= run->count || line >= a->width) return;
    float sum = 0;
    for (int w = 0; w < GEMV_THREADS / WAVE; w++) sum += parts[w][thread_id()];
    a->u[(int64_t)(run->first + row) * a->width + line] = to_bf16(sum);
}

/* Multiplies GROUP_LINES lines of A by the rows of a run. A thread has chunks that are GEMV_STEP
 * apart, several in flight if there are few rows. */
INLINE void multiply_run(const GroupsDownArguments *a, const GroupRun *run, const int rows) {
    const int depth = rows == 1 ? GROUP_HELD / GROUP_LINES : rows == 2 ? 2 : 1;
    GLOBAL const bf16 *from[GROUP_LINES];
    u32x4 next[GROUP_HELD];
    DownSums sums;
    int32_t at = thread_id() * GEMV_CHUNK;
    UNROLL for (int l = 0; l < GROUP_LINES; l++) {
        int32_t line = block_x() * GROUP_LINES + l;
        from[l] = a->a + ((int64_t)run->group * a->width + (line < a->width ? line : a->width - 1)) * a->k;
    }
    UNROLL for (int i = 0; i < rows * GROUP_LINES; i++) sums[i] = 0;
    UNROLL for (int d = 0; d < depth; d++) UNROLL for (int l = 0; l < GROUP_LINES; l++) next[d * GROUP_LINES + l] =
        load_chunk(from[l], at + d * GEMV_STEP, a->k);
    await_kernel_ahead();
    for (; at < a->k; at += depth * GEMV_STEP) {
        u32x4 lines[GROUP_HELD], x[GROUP_ROWS * 4];
        UNROLL for (int i = 0; i < depth * GROUP_LINES; i++) lines[i] = next[i];
        UNROLL for (int d = 0; d < depth; d++) UNROLL for (int r = 0; r < rows; r++) x[d * rows + r] =
            load_chunk(a->x + (int64_t)row_of_run(run, r) * a->k, at + d * GEMV_STEP, a->k);
        UNROLL for (int d = 0; d < depth; d++) UNROLL for (int l = 0; l < GROUP_LINES; l++) next[d * GROUP_LINES + l] =
            load_chunk(from[l], at + (depth + d) * GEMV_STEP, a->k);
        UNROLL for (int d = 0; d < depth; d++) UNROLL for (int r = 0; r < rows; r++) UNROLL for (int l = 0; l < GROUP_LINES; l++)
            sums[r * GROUP_LINES + l] = dot_chunk(x[d * rows + r], lines[d * GROUP_LINES + l], sums[r * GROUP_LINES + l]);
    }
    write_down(a, run, sums, rows);
}

KERNEL(lora_groups_down, GroupsDownArguments) {
    GroupRun run = find_run(&a.rows);
    FOR_RUN_ROWS(multiply_run, &a, run);
}

/* -- Up ------------------------------------------------------------------------------------------------------------ */

/* A column of y, its line of B and the first column of its adapter in u. */
typedef struct UpColumn {
    int64_t column, line;
    int32_t u;
    bool inside;
} UpColumn;

INLINE UpColumn find_column(const GroupsUpArguments *a, int32_t group) {
    UpColumn c = {0, 0, 0, false};
    int32_t index = block_x() * GROUP_COLUMNS + thread_id();
    c.inside = index < a->columns;
    UNROLL for (int i = 0; i < GROUP_PARTS; i++) {
        bool mine = index >= 0 && index < a->parts[i].count;
        c.column = mine ? a->parts[i].first + index : c.column;
        c.line = mine ? a->parts[i].line + (int64_t)group * a->parts[i].count + index : c.line;
        c.u = mine ? i * a->rank : c.u;
        index -= a->parts[i].count;
    }
    return c;
}

INLINE void add_run(const GroupsUpArguments *a, const GroupRun *run, const int rows) {
    UpColumn c = find_column(a, run->group);
    GLOBAL const bf16 *line = a->b + c.line * a->rank;
    u32x4 first[GROUP_FIRST];
    float sums[GROUP_ROWS], y[GROUP_ROWS];
    UNROLL for (int i = 0; i < GROUP_FIRST; i++) first[i] = load_chunk(line, i * GEMV_CHUNK, a->rank);
    await_kernel_ahead();
    UNROLL for (int r = 0; r < rows; r++) sums[r] = 0, y[r] = to_float(a->y[row_of_run(run, r) * a->out + c.column]);
    UNROLL for (int i = 0; i < GROUP_FIRST; i++) UNROLL for (int r = 0; r < rows; r++) sums[r] =
        dot_chunk(load_chunk(a->u + (int64_t)row_of_run(run, r) * a->width + c.u, i * GEMV_CHUNK, a->rank), first[i], sums[r]);
    for (int32_t at = GROUP_FIRST * GEMV_CHUNK; at < a->rank; at += GEMV_CHUNK) {
        u32x4 chunk = load_chunk(line, at, a->rank);
        UNROLL for (int r = 0; r < rows; r++) sums[r] =
            dot_chunk(load_chunk(a->u + (int64_t)row_of_run(run, r) * a->width + c.u, at, a->rank), chunk, sums[r]);
    }
    UNROLL for (int r = 0; r < rows; r++) if (r < run->count && c.inside) a->y[(run->first + r) * a->out + c.column] =
        to_bf16(y[r] + sums[r]);
}

KERNEL(lora_groups_up, GroupsUpArguments) {
    GroupRun run = find_run(&a.rows);
    FOR_RUN_ROWS(add_run, &a, run);
}

#else

#include "ops/grouped_linear/grouped_linear.h"
#include "ops/lora/groups_gpu.h"
#include "ops/lora/lora.h"

_Static_assert((int)GROUP_PARTS == (int)LORA_MAX_ADAPTERS, "a part for each adapter");

LAUNCHER(lora_groups_down, GroupsDownArguments)
LAUNCHER(lora_groups_up, GroupsUpArguments)

enum { MOST_GROUP_ROWS = 256 }; /* GEMMs are faster from here on */

/* Returns whether a tensor is complete before the program begins, so that kernels may load it early. */
static bool is_given(const Graph *graph, TensorId tensor) { return graph_get(graph, tensor)->producer < 0; }

int lora_groups_absorb_down(const Backend *backend, const Graph *graph, int index) {
    const Node *node = &graph->nodes[index], *down = node - 1;
    if (device_info(backend->device)->exact || index == 0 || down->op != OP_grouped_linear) return 0;
    TensorId x = down->in[GROUPED_LINEAR_X], a = down->in[GROUPED_LINEAR_W], b = node->in[LORA_GROUPS_B];
    bool pair = down->out[GROUPED_LINEAR_Y] == node->in[LORA_GROUPS_U] && !down->in[GROUPED_LINEAR_SUM] &&
                down->in[GROUPED_LINEAR_OFFSET] == node->in[LORA_GROUPS_OFFSET];
    bool given = is_given(graph, a) && is_given(graph, b) && is_given(graph, node->in[LORA_GROUPS_OFFSET]);
    return pair && given && graph_rows(graph, x) <= MOST_GROUP_ROWS && gemv_reads(graph_columns(graph, x), 0) &&
           gemv_reads(graph_columns(graph, b), 0);
}

void lora_groups_launch_rows(const OpCall *call) {
    const OpCall *down = call - 1;
    const LoraAttributes *attributes = call->attributes;
    const int64_t *a_shape = down->in_shape[GROUPED_LINEAR_W];
    int64_t rows = call->in_shape[LORA_GROUPS_Y][0], out = call->in_shape[LORA_GROUPS_Y][1], groups = a_shape[0], columns = 0;
    void *adapted = call->out[LORA_GROUPS_ADAPTED];
    /* Each group may have one run that is not full. */
    int64_t runs = (rows + (GROUP_ROWS - 1) * int_min(rows, groups)) / GROUP_ROWS;
    if (adapted != call->in[LORA_GROUPS_Y]) device_copy(call->device, adapted, call->in[LORA_GROUPS_Y], rows * out * (int64_t)sizeof(bf16));
    GroupsDownArguments first = {.rows = {call->in[LORA_GROUPS_OFFSET], (int32_t)groups},
        .x = down->in[GROUPED_LINEAR_X],
        .a = down->in[GROUPED_LINEAR_W],
        .u = down->out[GROUPED_LINEAR_Y],
        .k = (int32_t)a_shape[2],
        .width = (int32_t)a_shape[1]};
    GroupsUpArguments second = {.rows = first.rows,
        .u = first.u,
        .b = call->in[LORA_GROUPS_B],
        .y = adapted,
        .out = out,
        .rank = (int32_t)call->in_shape[LORA_GROUPS_B][1],
        .width = first.width};
    for (int i = 0; i < attributes->adapters; i++) {
        const LoraColumns *part = &attributes->columns[i];
        second.parts[i] = (GroupsPart){(int32_t)part->first, (int32_t)part->count, (int32_t)(groups * columns)};
        columns += part->count;
    }
    second.columns = (int32_t)columns;
    launch_lora_groups_down(
        call->device, (LaunchShape){.x = divide_up(first.width, GROUP_LINES), .y = runs, .threads = GEMV_THREADS}, &first);
    launch_lora_groups_up(
        call->device, (LaunchShape){.x = divide_up(columns, GROUP_COLUMNS), .y = runs, .threads = GROUP_COLUMNS}, &second);
}

#endif

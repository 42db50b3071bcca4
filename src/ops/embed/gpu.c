/* embed on a GPU. For the gradient, rows are first sorted by token (a stable radix sort, 8 bits per
 * pass), so that no atomics are needed and sums have a fixed order. Then every block takes CHUNK
 * sorted rows, sums each run of equal tokens, and adds it to the table's gradient. A run that
 * crosses chunks leaves a partial sum in each, and a second kernel adds them in order. Blocks have
 * equal work for any tokens, even a single repeated one.
 *
 * With bias and scale, row = (entry + bias) * scale, else entry * factor. A run's sum S of d_stream gives scale * S to
 * the entry, S * (entry + bias) to d_scale and S to d_bias / scale: the table is read once per run.
 * Scratch: two lists of sorted rows, counts, partial sums of runs [chunks, 2, columns], and of
 * d_bias and d_scale. */
#include "backend/gpu/vector.h"

enum {
    THREADS = 256,
    ROWS_AHEAD = 4, /* rows in flight per thread */
    CHUNK = 32,     /* sorted rows per block */
    DIGIT_BITS = 8,
    DIGITS = 256,   /* one per thread */
    RUNS_AHEAD = 8, /* partial sums of runs in flight per thread */
};

/* Tokens count from `first`, the token of the table's first entry; the table has `entries`
 * entries. */
typedef struct EmbedArguments {
    const int32_t GLOBAL *tokens;
    int32_t first, entries;
    const bf16 GLOBAL *table;
    const float GLOBAL *bias, *scale; /* NULL: `factor` */
    float factor;
    float GLOBAL *stream;
    Tiling tiling;
} EmbedArguments;

/* A row of the batch in token order. Tokens count from the table's first entry; `entries` marks a
 * token that the table lacks. */
typedef struct SortedRow { int32_t token, row; } __attribute__((aligned(8))) SortedRow;

typedef struct SortArguments {
    const int32_t GLOBAL *tokens; /* read in the first pass instead of `from` */
    const SortedRow GLOBAL *from;
    SortedRow GLOBAL *to;
    int32_t GLOBAL *counts; /* [tiles, DIGITS] */
    int32_t rows, tiles, shift;
    int32_t first, entries; /* as in EmbedArguments */
} SortArguments;

typedef struct EmbedGradArguments {
    const float GLOBAL *d_stream;
    const SortedRow GLOBAL *sorted;
    const bf16 GLOBAL *table;
    const float GLOBAL *bias, *scale; /* NULL: `factor` */
    float factor;
    void GLOBAL *d_table; /* fp32, or bf16 if `bf16_gradient` */
    /* [chunks, 2, columns]: sums of the run that continues from the previous chunk, and of the run
     * that continues in the next one */
    float GLOBAL *runs;
    float GLOBAL *partials; /* [chunks, 2, columns]: d_bias, d_scale */
    int64_t rows;
    int32_t columns, tiles; /* tiles: blocks along the columns */
    int32_t padding;        /* entry that gets no gradient, if there is one */
    int32_t entries;
    bool bf16_gradient;
} EmbedGradArguments;

#ifdef GPU_DEVICE

/* -- Forward ------------------------------------------------------------------------------------------------------- */

INLINE void embed_unit(const EmbedArguments *a, int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int64_t columns = a->tiling.columns;
    int32_t token = a->tokens[place.row] - a->first;
    bool here = token >= 0 && token < a->entries;
    f32x8 entry = here ? load8_bf16(a->table + token * columns + place.column, unit) : (f32x8)0;
    if (a->scale && here) entry = (entry + load8_wide(a->bias + place.column, unit)) * load8_wide(a->scale + place.column, unit);
    else entry *= a->factor;
    store8_wide(a->stream + place.row * columns + place.column, entry, unit);
}

UNIT_KERNELS(embed, EmbedArguments, embed_unit, 8)

/* -- Sorting rows by token ----------------------------------------------------------------------------------------- */

INLINE SortedRow load_unsorted(const SortArguments *a, int at) {
    if (a->from) return a->from[at];
    int32_t token = a->tokens[at] - a->first;
    return (SortedRow){token >= 0 && token < a->entries ? token : a->entries, at};
}

/* Writes the digits of the block's tile to shared memory, DIGITS after the end of the rows; returns
 * this thread's digit. */
INLINE int share_digits(const SortArguments *a, LOCAL int *digits) {
    int at = block_x() * THREADS + thread_id();
    int digit = at < a->rows ? load_unsorted(a, at).token >> a->shift & (DIGITS - 1) : DIGITS;
    digits[thread_id()] = digit;
    barrier();
    return digit;
}

/* Counts how often each digit occurs in each tile. */
KERNEL(sort_count, SortArguments) {
    static SHARED int digits[THREADS];
    int count = 0;
    share_digits(&a, digits);
    for (int i = 0; i < THREADS; i++) count += digits[i] == thread_id();
    a.counts[block_x() * DIGITS + thread_id()] = count;
}

/* Returns the sum of x over the threads before this one. */
INLINE int sum_before(int x, LOCAL int *scratch) {
    int sum = x;
    scratch[thread_id()] = sum;
    barrier();
    for (int distance = 1; distance < THREADS; distance *= 2) {
        int left = thread_id() >= distance ? scratch[thread_id() - distance] : 0;
        barrier();
        scratch[thread_id()] = sum += left;
        barrier();
    }
    return sum - x;
}

/* Moves each row after all rows with smaller digits, rows with its digit in earlier tiles, and
 * earlier rows with its digit in its tile. */
KERNEL(sort_move, SortArguments) {
    static SHARED int digits[THREADS], scratch[THREADS], places[DIGITS];
    int digit = share_digits(&a, digits), total = 0, earlier = 0, rank = 0;
    _Pragma("clang loop unroll_count(16)") for (int tile = 0; tile < a.tiles; tile++) { /* 16 loads in flight */
        if (tile == block_x()) earlier = total;
        total += a.counts[tile * DIGITS + thread_id()];
    }
    places[thread_id()] = sum_before(total, scratch) + earlier;
    barrier();
    int at = block_x() * THREADS + thread_id();
    if (at >= a.rows) return;
    for (int i = 0; i < THREADS; i++) rank += digits[i] == digit && i < thread_id();
    a.to[places[digit] + rank] = load_unsorted(&a, at);
}

/* -- Sums of runs -------------------------------------------------------------------------------------------------- */

/* State of a thread: its chunk and first column, the rows of the chunk, and the sums of the current run. */
typedef struct ChunkState {
    int64_t chunk, column, begin, end;
    int32_t before, after;          /* tokens of the rows before and after the chunk, -1: none */
    f32x4 run, bias_sum, scale_sum; /* bias_sum: of runs; scale_sum: of run * (entry + bias) */
} ChunkState;

/* Loaded ahead of the last row of a run: the entry and its gradient. */
typedef struct RunEnd {
    bool ends;
    f32x4 d_entry, entry;
} RunEnd;

INLINE int32_t sorted_token(const EmbedGradArguments *a, int64_t at) { return at >= 0 && at < a->rows ? a->sorted[at].token : -1; }

INLINE f32x4 load_entry(const EmbedGradArguments *a, int64_t at, int unit) {
    return a->bf16_gradient ? load4_bf16((const bf16 GLOBAL *)a->d_table + at, unit)
                            : load4_wide((const float GLOBAL *)a->d_table + at, unit);
}

INLINE void store_entry(const EmbedGradArguments *a, int64_t at, f32x4 x, int unit) {
    if (a->bf16_gradient) store4_bf16((bf16 GLOBAL *)a->d_table + at, x, unit);
    else store4_wide((float GLOBAL *)a->d_table + at, x, unit);
}

INLINE RunEnd load_run_end(const EmbedGradArguments *a, const ChunkState *state, int64_t at, int32_t token, int unit) {
    RunEnd end = {.ends = at + 1 == state->end || a->sorted[at + 1].token != token};
    if (!end.ends || token == a->entries) return end;
    int64_t entry = (int64_t)token * a->columns + state->column;
    end.d_entry = load_entry(a, entry, unit);
    if (a->scale) end.entry = load4_bf16(a->table + entry, unit);
    return end;
}

/* Returns whether the token's entry gets a gradient. */
INLINE bool is_trained(const EmbedGradArguments *a, int32_t token) { return token != a->padding && token != a->entries; }

/* Adds the run to the table's gradient, or stores its partial sum if it crosses chunks. */
INLINE void finish_run(
    const EmbedGradArguments *a, ChunkState *state, const RunEnd *end, int64_t at, int32_t token, f32x4 bias, f32x4 scale, int unit) {
    bool comes = state->before == token, goes = at + 1 == state->end && state->after == token;
    if (comes || goes) store4_wide(a->runs + (2 * state->chunk + !comes) * a->columns + state->column, state->run, unit);
    else if (is_trained(a, token)) store_entry(a, (int64_t)token * a->columns + state->column, end->d_entry + state->run * scale, unit);
    if (token != a->entries) {
        state->bias_sum += state->run;
        state->scale_sum += state->run * (end->entry + bias);
    }
    state->run = 0;
}

INLINE void sum_runs(const EmbedGradArguments *a, int unit) {
    int64_t chunk = block_x() / a->tiles, begin = chunk * CHUNK, end = begin + CHUNK < a->rows ? begin + CHUNK : a->rows;
    ChunkState state = {.chunk = chunk,
        .column = (int64_t)(block_x() % a->tiles * THREADS + thread_id()) * unit,
        .begin = begin,
        .end = end,
        .before = sorted_token(a, begin - 1),
        .after = sorted_token(a, end)};
    f32x4 bias = 0, scale = a->factor;
    if (state.column >= a->columns) return;
    if (a->scale) {
        bias = load4_wide(a->bias + state.column, unit);
        scale = load4_wide(a->scale + state.column, unit);
    }
    for (int64_t first = begin; first < end; first += ROWS_AHEAD) {
        SortedRow rows[ROWS_AHEAD];
        f32x4 values[ROWS_AHEAD];
        RunEnd ends[ROWS_AHEAD];
        UNROLL for (int i = 0; i < ROWS_AHEAD; i++) if (first + i < end) {
            rows[i] = a->sorted[first + i];
            values[i] = load4_wide(a->d_stream + (int64_t)rows[i].row * a->columns + state.column, unit);
            ends[i] = load_run_end(a, &state, first + i, rows[i].token, unit);
        }
        UNROLL for (int i = 0; i < ROWS_AHEAD; i++) if (first + i < end) {
            state.run += values[i];
            if (ends[i].ends) finish_run(a, &state, &ends[i], first + i, rows[i].token, bias, scale, unit);
        }
    }
    if (!a->scale) return;
    float GLOBAL *partials = a->partials + 2 * chunk * a->columns + state.column;
    store4_wide(partials, state.bias_sum * scale, unit);
    store4_wide(partials + a->columns, state.scale_sum, unit);
}

UNIT_KERNELS(grad_chunks, EmbedGradArguments, sum_runs, 4)

/* Returns how many of the chunks after `chunk` begin with the token, that is, continue its run. All
 * threads call it. */
INLINE int64_t count_chunks(const EmbedGradArguments *a, int64_t chunk, int32_t token) {
    static SHARED float scratch[THREADS / WAVE];
    int64_t count = 0, found = THREADS;
    while (found == THREADS) {
        bool continues = sorted_token(a, (chunk + 1 + count + thread_id()) * CHUNK) == token;
        found = (int64_t)block_sum(continues, scratch, THREADS);
        count += found;
    }
    return count;
}

/* Adds the partial sums of the run that begins in this chunk and continues in later ones, and adds
 * the total to the table's gradient. */
INLINE void join_runs(const EmbedGradArguments *a, int unit) {
    int64_t chunk = block_x() / a->tiles, end = (chunk + 1) * CHUNK,
            column = (int64_t)(block_x() % a->tiles * THREADS + thread_id()) * unit;
    int32_t token = sorted_token(a, end);
    if (token < 0 || !is_trained(a, token) || sorted_token(a, end - 1) != token || sorted_token(a, chunk * CHUNK - 1) == token) return;
    int64_t later = count_chunks(a, chunk, token), stride = 2 * (int64_t)a->columns, distance = 1;
    if (column >= a->columns) return;
    const float GLOBAL *runs = a->runs + chunk * stride + column;
    f32x4 sum = load4_wide(runs + a->columns, unit);
    for (; distance + RUNS_AHEAD <= later + 1; distance += RUNS_AHEAD) {
        f32x4 values[RUNS_AHEAD];
        UNROLL for (int i = 0; i < RUNS_AHEAD; i++) values[i] = load4_wide(runs + (distance + i) * stride, unit);
        UNROLL for (int i = 0; i < RUNS_AHEAD; i++) sum += values[i];
    }
    for (; distance <= later; distance++) sum += load4_wide(runs + distance * stride, unit);
    sum *= a->scale ? load4_wide(a->scale + column, unit) : (f32x4)a->factor;
    int64_t entry = (int64_t)token * a->columns + column;
    store_entry(a, entry, load_entry(a, entry, unit) + sum, unit);
}

UNIT_KERNELS(grad_joins, EmbedGradArguments, join_runs, 4)

#else

#include "ops/embed/embed.h"

TILED_LAUNCHER(embed, EmbedArguments, 8)
LAUNCHER(sort_count, SortArguments)
LAUNCHER(sort_move, SortArguments)
LAUNCHERS(grad_chunks, EmbedGradArguments, grad_chunks_1, grad_chunks_4)
LAUNCHERS(grad_joins, EmbedGradArguments, grad_joins_1, grad_joins_4)

GPU_OP(embed) {
    const int64_t *shape = call->out_shape[EMBED_STREAM];
    EmbedArguments arguments = {.tokens = call->in[EMBED_TOKENS],
        .first = (int32_t)((const EmbedSpec *)call->attributes)->first,
        .entries = (int32_t)call->in_shape[EMBED_TABLE][0],
        .table = call->in[EMBED_TABLE],
        .bias = call->in[EMBED_BIAS],
        .scale = call->in[EMBED_SCALE],
        .factor = (float)embed_factor(call->attributes),
        .stream = call->out[EMBED_STREAM],
        .tiling = tile_matrix(shape[0], shape[1], 8)};
    launch_embed(call->device, &arguments);
}

GPU_OP(put_rows) {
    const TokenRuns *runs = call->attributes;
    const bf16 *rows = call->in[PUT_ROWS_ROWS];
    bf16 *table = call->out[PUT_ROWS_TABLE];
    int64_t columns = call->out_shape[PUT_ROWS_TABLE][1];
    for (const TokenRun *run = runs->items; run < runs->items + runs->count; run++)
        device_copy(call->device, table + run->first * columns, rows + run->row * columns, run->count * columns * (int64_t)sizeof *rows);
}

/* The workspace of embed_grad in bytes; multiples of 16 if columns are multiples of 4. `list`
 * exists twice. */
typedef struct GradWorkspace { int64_t list, counts, runs, partials; } GradWorkspace;

static GradWorkspace workspace_of(int64_t rows, int64_t columns, bool affine) {
    int64_t tiles = divide_up(rows, THREADS), runs = divide_up(rows, CHUNK) * 2 * columns * (int64_t)sizeof(float);
    return (GradWorkspace){.list = tiles * THREADS * (int64_t)sizeof(SortedRow),
        .counts = tiles * DIGITS * (int64_t)sizeof(int32_t),
        .runs = runs,
        .partials = affine ? runs : 0};
}

static int64_t embed_grad_gpu_workspace(const Graph *graph, const Node *node) {
    TensorId d_stream = node->in[EMBED_GRAD_D_STREAM];
    bool affine = node->in[EMBED_GRAD_SCALE] != TENSOR_NONE;
    GradWorkspace bytes = workspace_of(graph_rows(graph, d_stream), graph_columns(graph, d_stream), affine);
    return 2 * bytes.list + bytes.counts + bytes.runs + bytes.partials;
}

/* Sorts the rows by token; returns the list, of the two, that holds them. */
static const SortedRow *sort_rows(const OpCall *call, SortedRow *list, SortedRow *other, int32_t *counts) {
    int64_t rows = call->in_shape[EMBED_GRAD_D_STREAM][0], entries = call->in_shape[EMBED_GRAD_TABLE][0];
    SortArguments arguments = {.tokens = call->in[EMBED_GRAD_TOKENS],
        .counts = counts,
        .rows = rows,
        .tiles = divide_up(rows, THREADS),
        .first = (int32_t)((const EmbedSpec *)call->attributes)->first,
        .entries = (int32_t)entries};
    LaunchShape shape = {.x = arguments.tiles, .threads = THREADS};
    do {
        arguments.to = arguments.from == list ? other : list;
        launch_sort_count(call->device, shape, &arguments);
        launch_sort_move(call->device, shape, &arguments);
        arguments.from = arguments.to;
        arguments.shift += DIGIT_BITS;
    } while (entries >> arguments.shift > 0);
    return arguments.from;
}

GPU_OP(embed_grad, embed_grad_gpu_workspace) {
    int64_t rows = call->in_shape[EMBED_GRAD_D_STREAM][0], columns = call->in_shape[EMBED_GRAD_D_STREAM][1];
    int64_t unit = columns % 4 == 0 ? 4 : 1, chunks = divide_up(rows, CHUNK);
    bool affine = call->in[EMBED_GRAD_SCALE] != NULL;
    const EmbedSpec *spec = call->attributes;
    GradWorkspace bytes = workspace_of(rows, columns, affine);
    char *lists = call->workspace, *counts = lists + 2 * bytes.list, *runs = counts + bytes.counts, *partials = runs + bytes.runs;
    EmbedGradArguments arguments = {
        .d_stream = call->in[EMBED_GRAD_D_STREAM],
        .table = call->in[EMBED_GRAD_TABLE],
        .bias = call->in[EMBED_GRAD_BIAS],
        .scale = call->in[EMBED_GRAD_SCALE],
        .factor = (float)embed_factor(spec),
        .d_table = call->out[EMBED_GRAD_D_TABLE],
        .sorted = sort_rows(call, (SortedRow *)lists, (SortedRow *)(lists + bytes.list), (int32_t *)counts),
        .runs = (float *)runs,
        .partials = (float *)partials,
        .rows = rows,
        .columns = columns,
        .tiles = divide_up(columns, unit * THREADS),
        .padding = (int32_t)(spec->padding - spec->first),
        .entries = (int32_t)call->in_shape[EMBED_GRAD_TABLE][0],
        .bf16_gradient = call->compute_gradients,
    };
    LaunchShape shape = {.x = chunks * arguments.tiles, .threads = THREADS};
    launch_grad_chunks(call->device, unit == 4, shape, &arguments);
    launch_grad_joins(call->device, unit == 4, shape, &arguments);
    if (!affine || !call->out[EMBED_GRAD_D_BIAS]) return; /* both are frozen */
    float *targets[] = {call->out[EMBED_GRAD_D_BIAS], call->out[EMBED_GRAD_D_SCALE]};
    gpu_add_partial_sums(call->device, targets, 2, arguments.partials, chunks, columns);
}

#endif

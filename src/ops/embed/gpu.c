/* Token embedding and its gradient, in which many rows add to one entry of the table. So that no atomics are needed and sums have a fixed order, rows are
 * sorted by token first (a stable radix sort, 8 bits a pass: its result depends on the tokens alone). Then every block takes CHUNK sorted rows, sums each run
 * of equal tokens, and adds it to the table's gradient; a run that crosses chunks leaves a piece in each, which a second kernel adds in order. Work is
 * shared out evenly whatever the tokens are, be it the same one everywhere.
 *
 * With bias and scale, row = (entry + bias) * scale, a run's sum S of d_stream gives scale * S to the entry, S * (entry + bias) to d_scale and S to
 * d_bias / scale: the table is read once per run. Scratch: two lists of sorted rows, counts, pieces [chunks, 2, columns] and partial sums of d_bias and d_scale. */
#include "backend/gpu/vector.h"

enum {
    THREADS = 256,
    ROWS_AHEAD = 4, /* rows of a thread in flight */
    CHUNK = 32,     /* sorted rows of a block */
    DIGIT_BITS = 8,
    DIGITS = 256, /* one for each thread */
    PIECE_AHEAD = 8,
};

typedef struct EmbedArguments {
    const int32_t GLOBAL *tokens;
    const bf16 GLOBAL *table;
    const float GLOBAL *bias, *scale;
    float GLOBAL *stream;
    Tiling tiling;
} EmbedArguments;

/* A row of the batch in the order of tokens. */
typedef struct SortedRow { int32_t token, row; } __attribute__((aligned(8))) SortedRow;

typedef struct SortArguments {
    const int32_t GLOBAL *tokens; /* read in the first pass instead of `from` */
    const SortedRow GLOBAL *from;
    SortedRow GLOBAL *to;
    int32_t GLOBAL *counts; /* [tiles, DIGITS] */
    int32_t rows, tiles, shift;
} SortArguments;

typedef struct EmbedGradArguments {
    const float GLOBAL *d_stream;
    const SortedRow GLOBAL *sorted;
    const bf16 GLOBAL *table;
    const float GLOBAL *bias, *scale;
    void GLOBAL *d_table;   /* fp32, bf16 where `narrow` */
    float GLOBAL *pieces;   /* of each chunk, of the run that came from the chunk before, and of the one that begins here and goes on */
    float GLOBAL *partials; /* [chunks, 2, columns]: d_bias, d_scale */
    int64_t rows;
    int32_t columns, tiles; /* tiles: blocks along the columns */
    bool narrow;
} EmbedGradArguments;

#ifdef GPU_DEVICE

/* -- Forward ------------------------------------------------------------------------------------------------------- */

INLINE void embed_unit(const EmbedArguments *a, int unit) {
    Place place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int64_t columns = a->tiling.columns;
    f32x8 entry = load8_bf16(a->table + a->tokens[place.row] * columns + place.column, unit);
    if (a->scale) entry = (entry + load8_wide(a->bias + place.column, unit)) * load8_wide(a->scale + place.column, unit);
    store8_wide(a->stream + place.row * columns + place.column, entry, unit);
}

KERNEL(embed, EmbedArguments) { embed_unit(&a, 8); }
KERNEL(embed_any, EmbedArguments) { embed_unit(&a, 1); }

/* -- Sorting rows by token ----------------------------------------------------------------------------------------- */

INLINE SortedRow load_unsorted(const SortArguments *a, int at) { return a->from ? a->from[at] : (SortedRow){a->tokens[at], at}; }

/* Leaves the digits of the block's tile in shared memory, a number that is no digit past the end. Returns the thread's own. */
INLINE int share_digits(const SortArguments *a, LOCAL int *digits) {
    int at = block_x() * THREADS + thread_id();
    int digit = at < a->rows ? load_unsorted(a, at).token >> a->shift & (DIGITS - 1) : DIGITS;
    digits[thread_id()] = digit;
    barrier();
    return digit;
}

/* How often each digit occurs in each tile. */
KERNEL(sort_count, SortArguments) {
    static SHARED int digits[THREADS];
    int count = 0;
    share_digits(&a, digits);
    for (int i = 0; i < THREADS; i++) count += digits[i] == thread_id();
    a.counts[block_x() * DIGITS + thread_id()] = count;
}

/* Sum of x over the threads before this one. */
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

/* A row goes behind all rows of lesser digits, those of its digit in earlier tiles, and those of its digit before it in its own. */
KERNEL(sort_move, SortArguments) {
    static SHARED int digits[THREADS], scratch[THREADS], places[DIGITS];
    int digit = share_digits(&a, digits), total = 0, earlier = 0, rank = 0;
    _Pragma("clang loop unroll_count(16)") for (int tile = 0; tile < a.tiles; tile++) { /* so many loads in flight */
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

/* What a thread of a chunk knows: its columns, the rows of the chunk, and the sums of the run that it is in. */
typedef struct ChunkState {
    int64_t chunk, column, begin, end;
    int32_t before, after;          /* tokens of the rows around the chunk, -1: none */
    f32x4 run, bias_sum, scale_sum; /* bias_sum: of runs; scale_sum: of run * (entry + bias) */
} ChunkState;

/* What is needed at the end of a run. */
typedef struct RunEnd {
    bool ends;
    f32x4 d_entry, entry;
} RunEnd;

INLINE int32_t sorted_token(const EmbedGradArguments *a, int64_t at) { return at >= 0 && at < a->rows ? a->sorted[at].token : -1; }

INLINE f32x4 load_entry(const EmbedGradArguments *a, int64_t at, int unit) {
    return a->narrow ? load4_bf16((const bf16 GLOBAL *)a->d_table + at, unit) : load4_wide((const float GLOBAL *)a->d_table + at, unit);
}

INLINE void store_entry(const EmbedGradArguments *a, int64_t at, f32x4 x, int unit) {
    if (a->narrow) store4_bf16((bf16 GLOBAL *)a->d_table + at, x, unit);
    else store4_wide((float GLOBAL *)a->d_table + at, x, unit);
}

INLINE RunEnd load_run_end(const EmbedGradArguments *a, const ChunkState *state, int64_t at, int32_t token, int unit) {
    RunEnd end = {.ends = at + 1 == state->end || a->sorted[at + 1].token != token};
    if (!end.ends) return end;
    int64_t entry = (int64_t)token * a->columns + state->column;
    end.d_entry = load_entry(a, entry, unit);
    if (a->scale) end.entry = load4_bf16(a->table + entry, unit);
    return end;
}

/* Adds the run to the table, or leaves it as a piece where it crosses chunks. */
INLINE void finish_run(
    const EmbedGradArguments *a, ChunkState *state, const RunEnd *end, int64_t at, int32_t token, f32x4 bias, f32x4 scale, int unit) {
    bool comes = state->before == token, goes = at + 1 == state->end && state->after == token;
    if (comes || goes) store4_wide(a->pieces + (2 * state->chunk + !comes) * a->columns + state->column, state->run, unit);
    else store_entry(a, (int64_t)token * a->columns + state->column, end->d_entry + state->run * scale, unit);
    state->bias_sum += state->run;
    state->scale_sum += state->run * (end->entry + bias);
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
    f32x4 bias = 0, scale = 1;
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

KERNEL(grad_chunks, EmbedGradArguments) { sum_runs(&a, 4); }
KERNEL(grad_chunks_any, EmbedGradArguments) { sum_runs(&a, 1); }

/* How many of the chunks after `chunk` begin with the token, that is, continue its run. All threads call it. */
INLINE int64_t count_pieces(const EmbedGradArguments *a, int64_t chunk, int32_t token) {
    static SHARED float scratch[THREADS / WAVE];
    int64_t count = 0, found = THREADS;
    while (found == THREADS) {
        bool continues = sorted_token(a, (chunk + 1 + count + thread_id()) * CHUNK) == token;
        found = (int64_t)block_sum(continues, scratch, THREADS);
        count += found;
    }
    return count;
}

/* Adds up the run that begins in this chunk and goes on in later ones. */
INLINE void join_pieces(const EmbedGradArguments *a, int unit) {
    int64_t chunk = block_x() / a->tiles, end = (chunk + 1) * CHUNK,
            column = (int64_t)(block_x() % a->tiles * THREADS + thread_id()) * unit;
    int32_t token = sorted_token(a, end);
    if (token < 0 || sorted_token(a, end - 1) != token || sorted_token(a, chunk * CHUNK - 1) == token) return;
    int64_t later = count_pieces(a, chunk, token), stride = 2 * (int64_t)a->columns, piece = 1;
    if (column >= a->columns) return;
    const float GLOBAL *pieces = a->pieces + chunk * stride + column;
    f32x4 sum = load4_wide(pieces + a->columns, unit);
    for (; piece + PIECE_AHEAD <= later + 1; piece += PIECE_AHEAD) {
        f32x4 values[PIECE_AHEAD];
        UNROLL for (int i = 0; i < PIECE_AHEAD; i++) values[i] = load4_wide(pieces + (piece + i) * stride, unit);
        UNROLL for (int i = 0; i < PIECE_AHEAD; i++) sum += values[i];
    }
    for (; piece <= later; piece++) sum += load4_wide(pieces + piece * stride, unit);
    if (a->scale) sum *= load4_wide(a->scale + column, unit);
    int64_t entry = (int64_t)token * a->columns + column;
    store_entry(a, entry, load_entry(a, entry, unit) + sum, unit);
}

KERNEL(grad_joins, EmbedGradArguments) { join_pieces(&a, 4); }
KERNEL(grad_joins_any, EmbedGradArguments) { join_pieces(&a, 1); }

#else

#include "backend/gpu/kernel_launch.h"

LAUNCHER(embed, EmbedArguments)
LAUNCHER(embed_any, EmbedArguments)
LAUNCHER(sort_count, SortArguments)
LAUNCHER(sort_move, SortArguments)
LAUNCHER(grad_chunks, EmbedGradArguments)
LAUNCHER(grad_chunks_any, EmbedGradArguments)
LAUNCHER(grad_joins, EmbedGradArguments)
LAUNCHER(grad_joins_any, EmbedGradArguments)

GPU_OP(embed) {
    int64_t rows = call->out_shape[0][0], columns = call->out_shape[0][1], unit = columns % 8 == 0 ? 8 : 1;
    EmbedArguments arguments = {.tokens = call->in[0],
        .table = call->in[1],
        .bias = call->in[2],
        .scale = call->in[3],
        .stream = call->out[0],
        .tiling = tile_matrix(rows, columns, unit)};
    (unit == 8 ? launch_embed : launch_embed_any)(call->device, tiling_shape(arguments.tiling), &arguments);
}

/* The scratch of embed_grad: bytes of its parts, multiples of 16 when columns are multiples of 4. */
typedef struct Scratch { int64_t list, counts, pieces, partials; } Scratch;

static Scratch scratch_sizes(int64_t rows, int64_t columns, bool affine) {
    int64_t tiles = divide_up(rows, THREADS), pieces = divide_up(rows, CHUNK) * 2 * columns * (int64_t)sizeof(float);
    return (Scratch){.list = tiles * THREADS * (int64_t)sizeof(SortedRow),
        .counts = tiles * DIGITS * (int64_t)sizeof(int32_t),
        .pieces = pieces,
        .partials = affine ? pieces : 0};
}

static int64_t gpu_scratch_embed_grad(const Graph *graph, const Node *node) {
    Scratch sizes = scratch_sizes(graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0]), node->in[4] != TENSOR_NONE);
    return 2 * sizes.list + sizes.counts + sizes.pieces + sizes.partials;
}

/* Returns the rows in order of tokens, which are below `vocabulary`, in one of two lists. */
static const SortedRow *sort_rows(const OpCall *call, SortedRow *list, SortedRow *other, int32_t *counts) {
    int64_t rows = call->in_shape[0][0], vocabulary = call->in_shape[2][0];
    SortArguments arguments = {.tokens = call->in[1], .counts = counts, .rows = rows, .tiles = divide_up(rows, THREADS)};
    LaunchShape shape = {.x = arguments.tiles, .threads = THREADS};
    do {
        arguments.to = arguments.from == list ? other : list;
        launch_sort_count(call->device, shape, &arguments);
        launch_sort_move(call->device, shape, &arguments);
        arguments.from = arguments.to;
        arguments.shift += DIGIT_BITS;
    } while ((vocabulary - 1) >> arguments.shift > 0);
    return arguments.from;
}

GPU_OP(embed_grad, gpu_scratch_embed_grad) {
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], unit = columns % 4 == 0 ? 4 : 1;
    bool affine = call->in[4] != NULL;
    Scratch sizes = scratch_sizes(rows, columns, affine);
    char *lists = call->workspace, *counts = lists + 2 * sizes.list, *pieces = counts + sizes.counts, *partials = pieces + sizes.pieces;
    EmbedGradArguments arguments = {
        .d_stream = call->in[0],
        .table = call->in[2],
        .bias = call->in[3],
        .scale = call->in[4],
        .d_table = call->out[0],
        .sorted = sort_rows(call, (SortedRow *)lists, (SortedRow *)(lists + sizes.list), (int32_t *)counts),
        .pieces = (float *)pieces,
        .partials = (float *)partials,
        .rows = rows,
        .columns = columns,
        .tiles = divide_up(columns, unit * THREADS),
        .narrow = call->compute_gradients,
    };
    int64_t chunks = divide_up(rows, CHUNK);
    LaunchShape shape = {.x = chunks * arguments.tiles, .threads = THREADS};
    (unit == 4 ? launch_grad_chunks : launch_grad_chunks_any)(call->device, shape, &arguments);
    (unit == 4 ? launch_grad_joins : launch_grad_joins_any)(call->device, shape, &arguments);
    if (affine) gpu_add_partial_sums(call->device, (float *[]){call->out[1], call->out[2]}, 2, arguments.partials, chunks, columns);
}

#endif

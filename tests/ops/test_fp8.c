/* fp8_amax and fp8_cast: quantized values and scales, bit for bit, against plain loops over the elements, which look for the code
 * whose number is nearest. On the GPU of SMELT_TEST_DEVICE, else on the CPU in the formats of all GPUs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/float8.h"
#include "base/memory.h"
#include "base/rng.h"
#include "ops/fp8/fp8.h"
#include "support/check.h"

enum { GROUP = GEMM_SCALE_GROUP_SIZE, RUNS = 3 /* on a GPU the second is recorded, the third replayed */ };

/* MAGNITUDES: of very different rows and columns, some of them zero, some subnormal; many lie halfway between two quantized values. */
typedef enum Content { MAGNITUDES, ZEROS, TINY, HUGE_NUMBERS, WITH_INFINITY, WITH_NAN } Content;

/* `count` matrices; 0: one, of rank 2. `given`: the amax of all matrices, as delayed scaling gives it; 0: their own. `offset`: rows are
 * slots of so many experts, and those beyond the last one's are zero; NULL: they are not. */
typedef struct Case {
    int64_t count, rows, columns;
    Fp8CastAttributes cast;
    Content content;
    float given;
    const int32_t *offset;
    int64_t experts;
} Case;

static int64_t used_rows(const Case *c) { return c->offset ? c->offset[c->experts] : c->rows; }
/* Elements along k of quantized values by columns. */
static int64_t depth_of(const Case *c) { return c->offset ? fp8_most_tiles(c->rows, c->experts) * GROUP : c->rows; }

static float number(Content content, int64_t matrix, int64_t row, int64_t column, int64_t index) {
    float x = (float)rng_normal(3, 1, index);
    switch (content) {
    case ZEROS: return 0;
    case TINY: return x * 1e-14f;
    case HUGE_NUMBERS: return x * 8e37f;
    case WITH_INFINITY: return row % 16 == 5 && column % 32 == 7 ? -INFINITY : x;
    case WITH_NAN: return matrix == 0 && row % 16 == 3 && column % 32 == 9 ? NAN : x;
    default: break;
    }
    if (row % 13 == 2 || column % 17 == 3) return row % 2 ? 0.0f : -0.0f;
    if (row % 11 == 4) return x * 1e-40f;
    return ldexpf(x, (int)(row * 7 % 23 - 11 + column * 5 % 17 - 8));
}

/* Rounded to bf16, so that every precision has the same. */
static float *make_matrices(const Case *c) {
    int64_t size = c->rows * c->columns, count = c->count ? c->count : 1;
    float *x = memory_allocate(count * size * sizeof *x);
    for (int64_t i = 0; i < count * size; i++)
        x[i] = i / c->columns < (count - 1) * c->rows + used_rows(c)
                   ? bf16_to_float(bf16_from_float(number(c->content, i / size, i % size / c->columns, i % c->columns, i)))
                   : 0;
    return x;
}

/* The slots of each expert, then zeros to the next multiple of 128, and 128 zeros where it has none. Sets *end. */
static float *make_tiles(const Case *c, const float *x, int64_t *end) {
    float *tiles = memory_allocate(depth_of(c) * c->columns * sizeof *tiles);
    *end = 0;
    memset(tiles, 0, depth_of(c) * c->columns * sizeof *tiles);
    for (int64_t e = 0; e < c->experts; e++) {
        int64_t slots = c->offset[e + 1] - c->offset[e];
        memcpy(tiles + *end * c->columns, x + c->offset[e] * c->columns, slots * c->columns * sizeof *tiles);
        *end += slots ? (slots + GROUP - 1) / GROUP * GROUP : GROUP;
    }
    return tiles;
}

/* -- Plain loops --------------------------------------------------------------------------------------------------- */

/* To nearest, halfway to the even code; too large ones to the largest. numbers [128]: of the quantized values, which grow with these. */
static uint8_t nearest_code(float x, const float numbers[], Fp8Format format) {
    int low = 0, high = format.largest;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (numbers[middle] <= fabsf(x)) low = middle;
        else high = middle;
    }
    double above = (double)numbers[high] - fabs((double)x), below = fabs((double)x) - (double)numbers[low];
    int best = above < below || (above == below && low % 2) ? high : low;
    if (isnan(x)) return format.nan;
    return (uint8_t)(best | (signbit(x) && (best || !format.fnuz) ? 0x80 : 0));
}

static int64_t scale_of(GemmScaling scaling, int64_t line, int64_t k_at, int64_t k) {
    int64_t size = gemm_scale_size(scaling), groups = (k + size - 1) / size;
    switch (scaling) {
    case GEMM_SCALE_LINE: return line;
    case GEMM_SCALE_GROUP:
    case GEMM_SCALE_MX: return line * groups + k_at / size;
    case GEMM_SCALE_BLOCK: return line / GROUP * groups + k_at / GROUP;
    default: return 0;
    }
}

/* Element (line, k) of an operand is x[line * line_stride + k * k_stride]; of a line of k elements those before `end` are there. */
typedef struct Operand {
    const float *x;
    int64_t lines, k, end, line_stride, k_stride;
    GemmScaling scaling;
    Fp8Kind kind;
    bool fnuz;
    float given; /* as in Case */
} Operand;

static float element(const Operand *o, int64_t line, int64_t k) { return o->x[line * o->line_stride + k * o->k_stride]; }

/* amax[i]: of what scale i is for. A NaN counts only for the scale of a whole matrix. */
static void find_amax(const Operand *o, float *amax) {
    for (int64_t line = 0; line < o->lines; line++)
        for (int64_t k = 0; k < o->end; k++) {
            float size = fabsf(element(o, line, k)), *most = &amax[scale_of(o->scaling, line, k, o->k)];
            if (size > *most || (isnan(size) && o->scaling == GEMM_SCALE_TENSOR)) *most = size;
        }
}

static void check_operand(const Operand *o, const uint8_t *quantized, const float *scales) {
    int64_t count = gemm_scale_count(o->scaling, o->lines, o->k);
    float *m = memory_allocate(count * sizeof *m), numbers[128];
    Fp8Format format = fp8_format(o->kind, o->fnuz);
    for (int code = 0; code < 128; code++) numbers[code] = fp8_to_float((uint8_t)code, format);
    memset(m, 0, count * sizeof *m);
    if (o->given > 0) m[0] = o->given;
    else find_amax(o, m);
    for (int64_t i = 0; i < count; i++) {
        int exponent;
        m[i] = fp8_largest(o->kind, o->fnuz) / (m[i] < 1e-12f ? 1e-12f : m[i]);
        if (o->scaling != GEMM_SCALE_TENSOR && m[i] != 0) m[i] = frexpf(m[i], &exponent) > 0 ? ldexpf(1, exponent - 1) : m[i];
        bool there = gemm_scale_size(o->scaling) * (i % ((o->k + gemm_scale_size(o->scaling) - 1) / gemm_scale_size(o->scaling))) < o->end;
        if ((o->scaling < GEMM_SCALE_GROUP || there) && !(scales[i] == 1 / m[i] || (isnan(scales[i]) && isnan(m[i]))))
            fail_msg("scale %ld is %a, should be %a", (long)i, scales[i], 1 / m[i]);
    }
    for (int64_t line = 0; line < o->lines; line++)
        for (int64_t k = 0; k < o->end; k++) {
            float product = element(o, line, k) * m[scale_of(o->scaling, line, k, o->k)];
            uint8_t code = quantized[line * o->k + k], expected = nearest_code(product, numbers, format);
            if (isnan(product) ? !isnan(fp8_to_float(code, format)) : code != expected)
                fail_msg("line %ld, k %ld: %a became 0x%02x, should be 0x%02x", (long)line, (long)k, product, code, expected);
        }
    free(m);
}

/* -- Runs ---------------------------------------------------------------------------------------------------------- */

typedef struct Run {
    Graph *graph;
    Program program;
    TensorId x, offset, tiles, amax, given, seen, seen_by_quantized;
    Outputs out;
} Run;

static void add_output(Run *run, int quantized, const Case *c, GemmScaling scaling, int64_t lines, int64_t k) {
    int64_t count = c->count ? c->count : 1, scales = count * gemm_scale_count(scaling, lines, k), shape[] = {count, lines, k};
    if (scaling == GEMM_SCALE_ONE) return;
    run->out[quantized] = graph_tensor(run->graph, ARENA_ACTIVATION, TYPE_FP8, c->count ? 3 : 2, c->count ? shape : shape + 1, "quantized");
    run->out[quantized + 1] = graph_tensor(run->graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &scales, "scales");
    run->graph->tensors[run->out[quantized]].keep = run->graph->tensors[run->out[quantized + 1]].keep = true;
}

/* Casts the quantized values by rows again, as quantized values: the outputs of the second cast take the place of those by columns. */
static void append_codes(Run *run, const Case *c) {
    Fp8CastAttributes cast = {.kind = c->cast.kind, .rows = GEMM_SCALE_TENSOR, .columns = GEMM_SCALE_TENSOR, .coded = true};
    Inputs in = {
        [FP8_CAST_X] = run->out[FP8_CAST_ROWS], [FP8_CAST_AMAX] = run->given, [FP8_CAST_TILES] = run->tiles, [FP8_CAST_FOUND] = run->amax};
    if (!(c->given > 0) || c->cast.rows != GEMM_SCALE_TENSOR || c->cast.columns != GEMM_SCALE_TENSOR) return;
    memset(run->out, 0, sizeof run->out);
    run->out[FP8_CAST_SEEN] = run->seen_by_quantized;
    add_output(run, FP8_CAST_ROWS, c, cast.rows, c->rows, c->columns);
    add_output(run, FP8_CAST_COLUMNS, c, cast.columns, c->columns, depth_of(c));
    graph_node(run->graph, OP_fp8_cast, in, run->out, &cast, sizeof cast);
}

static void run_create(Run *run, const Case *c, Device *device, Precision precision) {
    int64_t count = c->count ? c->count : 1, shape[] = {count, c->rows, c->columns};
    *run = (Run){.graph = graph_create(precision, true)};
    run->x = graph_tensor(run->graph, ARENA_INPUT, TYPE_COMPUTE, c->count ? 3 : 2, c->count ? shape : shape + 1, "x");
    if (c->offset) {
        run->offset = graph_tensor(run->graph, ARENA_INPUT, TYPE_INT32, 1, (int64_t[]){c->experts + 1}, "offset");
        run->tiles = fp8_tiles(run->graph, &(Dispatch){.offset = run->offset}, c->rows);
        assert_int_equal(fp8_tiles(run->graph, &(Dispatch){.offset = run->offset}, c->rows), run->tiles);
    }
    run->amax = graph_tensor(run->graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &count, "amax");
    run->graph->tensors[run->amax].keep = true;
    graph_node(run->graph, OP_fp8_amax, (Inputs){[FP8_AMAX_X] = run->x}, (Outputs){[FP8_AMAX_Y] = run->amax}, NULL, 0);
    add_output(run, FP8_CAST_ROWS, c, c->cast.rows, c->rows, c->columns);
    add_output(run, FP8_CAST_COLUMNS, c, c->cast.columns, c->columns, depth_of(c));
    run->given = graph_tensor(run->graph, ARENA_INPUT, TYPE_WIDE, 1, &count, "given");
    run->seen = graph_tensor(run->graph, ARENA_METRIC, TYPE_WIDE, 1, &count, "seen");
    run->seen_by_quantized = graph_tensor(run->graph, ARENA_METRIC, TYPE_WIDE, 1, &count, "seen_by_quantized");
    TensorId amax = c->given > 0 ? run->given : run->amax;
    if (c->given > 0) run->out[FP8_CAST_SEEN] = run->seen;
    Inputs in = {[FP8_CAST_X] = run->x, [FP8_CAST_AMAX] = amax, [FP8_CAST_TILES] = run->tiles};
    graph_node(run->graph, OP_fp8_cast, in, run->out, &c->cast, sizeof c->cast);
    append_codes(run, c);
    run->program = check_program((Model){.graph = run->graph}, device);
}

/* What nothing writes is NaN, and as a code 0xff. */
static void run_once(Run *run) {
    Error error = {0};
    Device *device = executor_backend(run->program.executor)->device;
    device_fill(device, executor_arena(run->program.executor, ARENA_ACTIVATION), 0xff, run->program.plan.bytes[ARENA_ACTIVATION]);
    executor_zero(run->program.executor);
    executor_run(run->program.executor);
    if (!executor_finish(run->program.executor, &error)) fail_msg("%s", error.message);
}

static void *read_output(const Run *run, TensorId tensor) {
    void *values = memory_allocate(graph_elements(run->graph, tensor) * sizeof(float));
    executor_read(run->program.executor, tensor, values);
    return values;
}

static void check_output_of(const Run *run, const Case *c, const float *x, int quantized, bool fnuz) {
    bool rows = quantized == FP8_CAST_ROWS;
    if (!run->out[quantized]) return;
    Operand o = {.lines = rows ? used_rows(c) : c->columns,
        .k = rows ? c->columns : depth_of(c),
        .end = rows ? c->columns : depth_of(c),
        .line_stride = rows ? c->columns : 1,
        .k_stride = rows ? 1 : c->columns,
        .scaling = rows ? c->cast.rows : c->cast.columns,
        .kind = c->cast.kind,
        .fnuz = fnuz,
        .given = c->given};
    uint8_t *values = read_output(run, run->out[quantized]);
    float *scales = read_output(run, run->out[quantized + 1]);
    float *tiles = c->offset && !rows ? make_tiles(c, x, &o.end) : NULL;
    for (int64_t i = 0; i < (c->count ? c->count : 1); i++) {
        o.x = tiles ? tiles : x + i * o.lines * o.k;
        check_operand(&o, values + i * o.lines * o.k, scales + i * gemm_scale_count(o.scaling, o.lines, o.k));
    }
    free(values);
    free(scales);
    free(tiles);
}

static void check_amax(const Run *run, const Case *c, const float *x) {
    float *amax = read_output(run, run->amax);
    for (int64_t i = 0; i < (c->count ? c->count : 1); i++) {
        Operand all = {
            .x = x + i * c->rows * c->columns, .lines = 1, .end = c->rows * c->columns, .k_stride = 1, .scaling = GEMM_SCALE_TENSOR};
        float expected = 0;
        find_amax(&all, &expected);
        assert_true(amax[i] == expected || (isnan(amax[i]) && isnan(expected)));
    }
    free(amax);
}

/* What the cast has seen of each matrix in this run alone: the caller has zeroed it. */
static void check_seen(const Run *run, const Case *c) {
    float *amax = read_output(run, run->amax);
    const float *seen = executor_tensor(run->program.executor, run->seen),
                *by_codes = executor_tensor(run->program.executor, run->seen_by_quantized);
    bool coded = run->out[FP8_CAST_SEEN] == run->seen_by_quantized;
    for (int64_t i = 0; i < (c->count ? c->count : 1) && c->given > 0; i++) {
        assert_true(seen[i] == amax[i] || (isnan(seen[i]) && isnan(amax[i])));
        assert_true(!coded || by_codes[i] == amax[i] || (isnan(by_codes[i]) && isnan(amax[i])));
    }
    free(amax);
}

static void check_on(const Case *c, Device *device, Precision precision) {
    Run run;
    float *x = make_matrices(c);
    run_create(&run, c, device, precision);
    int64_t count = graph_elements(run.graph, run.x);
    if (precision == PRECISION_BF16) bf16_from_floats(executor_tensor(run.program.executor, run.x), x, count);
    else memcpy(executor_tensor(run.program.executor, run.x), x, count * sizeof *x);
    for (int64_t i = 0; i < (c->count ? c->count : 1); i++) ((float *)executor_tensor(run.program.executor, run.given))[i] = c->given;
    if (c->offset) memcpy(executor_tensor(run.program.executor, run.offset), c->offset, (c->experts + 1) * sizeof *c->offset);
    for (int i = 0; i < (check_device() ? RUNS : 1); i++) {
        run_once(&run);
        check_amax(&run, c, x);
        check_seen(&run, c);
        check_output_of(&run, c, x, FP8_CAST_ROWS, device_info(device)->fp8_fnuz);
        check_output_of(&run, c, x, FP8_CAST_COLUMNS, device_info(device)->fp8_fnuz);
    }
    program_free(&run.program);
    free(x);
}

static void check_case(const Case *c) {
    if (check_device()) {
        bool mx = c->cast.rows == GEMM_SCALE_MX || c->cast.columns == GEMM_SCALE_MX;
        if (!mx || device_info(check_device())->fp8_mx) check_on(c, check_device(), PRECISION_BF16);
        return;
    }
    Device *cpu = device_cpu();
    FOR_EACH_ISA (isa) check_on(c, cpu, PRECISION_BF16);
    cpu->info.fp8_fnuz = true;
    check_on(c, cpu, PRECISION_BF16);
    check_on(c, cpu, PRECISION_FP32);
    cpu->info.fp8_fnuz = false;
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

#define CAST(kind, rows, columns) {kind, GEMM_SCALE_##rows, GEMM_SCALE_##columns}
/* Those of the recipes (ops/fp8/rule.c), and others that an operand may have. */
static const Fp8CastAttributes casts[] = {CAST(FP8_E4M3, TENSOR, TENSOR), CAST(FP8_E5M2, TENSOR, TENSOR), CAST(FP8_E4M3, TENSOR, ONE),
    CAST(FP8_E4M3, ONE, TENSOR), CAST(FP8_E4M3, LINE, LINE), CAST(FP8_E4M3, LINE, ONE), CAST(FP8_E4M3, ONE, LINE),
    CAST(FP8_E4M3, GROUP, GROUP), CAST(FP8_E4M3, GROUP, ONE), CAST(FP8_E4M3, BLOCK, ONE), CAST(FP8_E4M3, ONE, BLOCK),
    CAST(FP8_E5M2, GROUP, LINE), CAST(FP8_E4M3, LINE, TENSOR), CAST(FP8_E4M3, MX, MX), CAST(FP8_E4M3, MX, ONE), CAST(FP8_E4M3, ONE, MX)};
enum { CASTS = sizeof casts / sizeof *casts };

static void matrices_of_all_shapes_become_operands(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{0, 16, 16}, {0, 48, 80}, {0, 128, 128}, {0, 144, 272}, {3, 32, 144}, {2, 160, 48}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int j = 0; j < CASTS; j++) check_case(&(Case){shapes[i][0], shapes[i][1], shapes[i][2], casts[j], MAGNITUDES});
}

/* Of tokens there are as many as there are, where no sum runs over them. */
static void rows_are_any_number_where_they_are_not_transposed(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 7, 131};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int j = 0; j < CASTS; j++)
            if (casts[j].columns == GEMM_SCALE_ONE) check_case(&(Case){0, rows[i], 144, casts[j], MAGNITUDES});
}

/* Zero; below the least magnitude that a scale is made for; near the largest of fp32; infinite; NaN. */
static void numbers_of_all_kinds_are_cast(void **state) {
    (void)state;
    for (Content content = ZEROS; content <= WITH_NAN; content++)
        for (int j = 0; j < CASTS; j++) check_case(&(Case){2, 48, 144, casts[j], content});
}

/* Delayed scaling: what exceeds the given amax saturates, and is seen. By rows and columns, both from the quantized values by rows. */
static void a_given_amax_scales_and_the_cast_sees_the_next(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{0, 16, 16}, {0, 144, 272}, {3, 32, 144}, {2, 160, 48}};
    static const Fp8CastAttributes given[] = {
        CAST(FP8_E4M3, TENSOR, TENSOR), CAST(FP8_E5M2, TENSOR, TENSOR), CAST(FP8_E4M3, TENSOR, ONE), CAST(FP8_E4M3, ONE, TENSOR)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t j = 0; j < sizeof given / sizeof *given; j++)
            for (Content content = MAGNITUDES; content <= WITH_NAN; content++)
                check_case(&(Case){shapes[i][0], shapes[i][1], shapes[i][2], given[j], content, content == MAGNITUDES ? 96.3f : 0.75f});
    check_case(&(Case){0, 131, 144, given[2], WITH_INFINITY, 1e-20f});
}

/* Of experts that have none, one, and about a tile; of one that has all; of none that has any. Slots of no expert follow. */
static void slots_of_experts_are_cast_in_tiles(void **state) {
    (void)state;
    static const int32_t around[] = {0, 0, 1, 128, 256, 385, 385, 424}, all[] = {0, 0, 131}, none[] = {0, 0, 0, 0};
    static const struct {
        const int32_t *offset;
        int64_t experts, rows;
    } loads[] = {{around, 7, 430}, {all, 2, 131}, {none, 3, 5}};
    for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
        for (int j = 0; j < CASTS; j++) {
            Case c = {0, loads[i].rows, 144, casts[j], MAGNITUDES, 0, loads[i].offset, loads[i].experts};
            if (c.cast.columns == GEMM_SCALE_ONE || c.cast.columns == GEMM_SCALE_BLOCK) continue;
            check_case(&c);
            c.given = c.cast.columns == GEMM_SCALE_TENSOR && c.cast.rows != GEMM_SCALE_LINE ? 96.3f : 0;
            if (c.given > 0) check_case(&c);
        }
}

/* Shards end anywhere, at multiples of 64 elements. */
static void pieces_of_a_matrix_are_cast_as_all_of_it(void **state) {
    (void)state;
    enum { COUNT = 6144, PIECES = 4 };
    static const int64_t ends[PIECES + 1] = {0, 64, 1024, 4160, COUNT};
    Device *device = check_device() ? check_device() : device_cpu();
    Error error = {0};
    Backend backend;
    Case c = {0, 48, 128, {FP8_E4M3, GEMM_SCALE_TENSOR, GEMM_SCALE_ONE, false}, MAGNITUDES, 96.3f};
    Operand o = {
        .x = make_matrices(&c), .lines = 1, .k = COUNT, .end = COUNT, .k_stride = 1, .scaling = GEMM_SCALE_TENSOR, .given = c.given};
    o.fnuz = device_info(device)->fp8_fnuz;
    uint16_t bits[COUNT];
    uint8_t quantized[COUNT];
    float found[PIECES], scale, expected = 0, most = 0;
    assert_true(op_backend(&backend, device, PRECISION_BF16, &error));
    char *x = device_allocate(device, sizeof bits, &error), *to = device_allocate(device, sizeof quantized, &error);
    float *magnitudes = device_allocate(device, sizeof found, &error), *amax = device_allocate(device, 2 * sizeof *amax, &error);
    bf16_from_floats(bits, o.x, COUNT);
    device_upload(device, x, bits, sizeof bits);
    device_upload(device, amax, &c.given, sizeof *amax);
    for (int i = 0; i < PIECES; i++) {
        int64_t count = ends[i + 1] - ends[i];
        fp8_amax_run(&backend, x + ends[i] * (int64_t)sizeof *bits, count, magnitudes + i);
        fp8_cast_run(&backend, x + ends[i] * (int64_t)sizeof *bits, count, amax, to + ends[i], amax + 1);
    }
    device_download(device, quantized, to, sizeof quantized);
    device_download(device, found, magnitudes, sizeof found);
    device_download(device, &scale, amax + 1, sizeof scale);
    assert_true(device_ok(device, &error));
    check_operand(&o, quantized, &scale);
    for (int i = 0; i < PIECES; i++) most = fmaxf(most, found[i]);
    o.given = 0;
    find_amax(&o, &expected);
    assert_true(most == expected);
    device_free(device, x, sizeof bits), device_free(device, to, sizeof quantized);
    device_free(device, magnitudes, sizeof found), device_free(device, amax, 2 * sizeof *amax);
    free((void *)o.x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_of_all_shapes_become_operands),
        cmocka_unit_test(rows_are_any_number_where_they_are_not_transposed),
        cmocka_unit_test(numbers_of_all_kinds_are_cast),
        cmocka_unit_test(a_given_amax_scales_and_the_cast_sees_the_next),
        cmocka_unit_test(slots_of_experts_are_cast_in_tiles),
        cmocka_unit_test(pieces_of_a_matrix_are_cast_as_all_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* fp8 GEMM on the CPU: the reference for the GPUs' tests. Quantized values are converted to floats,
 * and fp32 GEMM multiplies them, so every product is exact and only sums are rounded. Scales of
 * GROUP and BLOCK are powers of two and are multiplied into the floats. Scales of a tensor or a
 * line are multiplied into the sums, as in the epilogues of matrix units.
 *
 * C is computed in blocks of BLOCK x BLOCK; memory for their operands and sums lives for one call.
 * Called by cpu_device.c. */
#include <assert.h>
#include <stdlib.h>

#include "backend/cpu/cpu_gemm_fp8_internal.h"
#include "base/element.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

enum { BLOCK = 1024 };

/* One operand: the number of each quantized value, the values, and their scales. */
typedef struct DecodedOperand {
    float numbers[256];
    const uint8_t *quantized;
    int64_t ld, k;
    GemmScaling scaling;
    const float *scales;
} DecodedOperand;

static void operand_open(
    DecodedOperand *o, GemmType type, bool fnuz, const void *quantized, int64_t ld, int64_t k, GemmScaling scaling, const float *scales) {
    Fp8Format format = gemm_fp8_format(type, fnuz);
    *o = (DecodedOperand){.quantized = quantized, .ld = ld, .k = k, .scaling = scaling, .scales = scales};
    for (int code = 0; code < 256; code++) o->numbers[code] = fp8_to_float((uint8_t)code, format);
}

/* Returns the factor of the numbers of one line from element `at` on, up to the next multiple of
 * the group size. */
static float group_scale(const DecodedOperand *o, int64_t line, int64_t at) {
    const int64_t size = gemm_scale_size(o->scaling), groups = (o->k + size - 1) / size;
    if (o->scaling == GEMM_SCALE_GROUP || o->scaling == GEMM_SCALE_MX) return o->scales[line * groups + at / size];
    if (o->scaling == GEMM_SCALE_BLOCK) return o->scales[line / size * groups + at / size];
    return 1;
}

/* Returns the factor of the sums of a line. */
static float line_scale(const DecodedOperand *o, int64_t line) {
    if (o->scaling == GEMM_SCALE_TENSOR) return o->scales[0];
    return o->scaling == GEMM_SCALE_LINE ? o->scales[line] : 1;
}

static void decode_operand(const DecodedOperand *o, int64_t first, int64_t count, float *to) {
    const int64_t size = gemm_scale_size(o->scaling);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++)
        for (int64_t at = 0; at < o->k; at += size) {
            const uint8_t *quantized = o->quantized + (first + i) * o->ld;
            float scale = group_scale(o, first + i, at);
            for (int64_t j = at; j < int_min(o->k, at + size); j++) to[i * o->k + j] = scale * o->numbers[quantized[j]];
        }
}

static void finish_tile(const Gemm *g, const DecodedOperand *a, const DecodedOperand *b, int64_t row, int64_t rows, int64_t column,
    int64_t columns, const float *sums) {
    const float *bias = g->bias;
    size_t bytes = g->output == GEMM_BF16 ? sizeof(uint16_t) : sizeof(float);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            int64_t at = (row + i) * g->ldc + column + j;
            float x = sums[i * columns + j] * (line_scale(a, row + i) * line_scale(b, column + j));
            if (bias) x += bias[column + j];
            if (g->accumulate) x += (float)element_get(bytes, g->c, at);
            element_set(bytes, g->c, at, x);
        }
}

void cpu_gemm_fp8(const Gemm *g, bool fnuz) {
    DecodedOperand a, b;
    assert(gemm_is_fp8(g->input) && g->transpose_b && !g->transpose_a && (g->output == GEMM_F32 || g->output == GEMM_BF16));
    SCOPED_FREE float *a_kept = memory_allocate((size_t)(int_min(BLOCK, g->m) * g->k + 1) * sizeof(float)),
                      *b_kept = memory_allocate((size_t)(int_min(BLOCK, g->n) * g->k + 1) * sizeof(float)),
                      *sums = memory_allocate((size_t)(int_min(BLOCK, g->m) * int_min(BLOCK, g->n) + 1) * sizeof(float));
    operand_open(&a, g->input, fnuz, g->a, g->lda, g->k, g->scaling_a, g->scale_a);
    operand_open(&b, GEMM_E4M3, fnuz, g->b, g->ldb, g->k, g->scaling_b, g->scale_b);
    for (int64_t row = 0; row < g->m; row += BLOCK) {
        int64_t rows = int_min(BLOCK, g->m - row);
        decode_operand(&a, row, rows, a_kept);
        for (int64_t column = 0; column < g->n; column += BLOCK) {
            int64_t columns = int_min(BLOCK, g->n - column);
            decode_operand(&b, column, columns, b_kept);
            gemm(&(Gemm){.transpose_b = true,
                .input = GEMM_F32,
                .output = GEMM_F32,
                .m = rows,
                .n = columns,
                .k = g->k,
                .a = a_kept,
                .lda = g->k,
                .b = b_kept,
                .ldb = g->k,
                .c = sums,
                .ldc = columns});
            finish_tile(g, &a, &b, row, rows, column, columns, sums);
        }
    }
}

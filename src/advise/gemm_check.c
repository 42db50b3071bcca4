/* One element of a GEMM in double, and the error bound for a device. Owns nothing. */
#include "advise/gemm_check.h"

#include <math.h>

#include "base/element.h"

static double gemm_element(const void *data, GemmType type, bool fnuz, int64_t index) {
    if (gemm_is_fp8(type)) return fp8_to_float(((const uint8_t *)data)[index], gemm_fp8_format(type, fnuz));
    return element_get(type == GEMM_BF16 ? 2 : 4, data, index);
}

/* An element in double: its sum, the largest partial sum, and the mean square of the terms. */
typedef struct Exact { double sum, peak, squares; } Exact;

static Exact exact_element(const Gemm *g, bool fnuz, int64_t row, int64_t column) {
    Exact e = {0};
    for (int64_t p = 0; p < g->k; p++) {
        double a = gemm_element(g->a, g->input, fnuz, g->transpose_a ? p * g->lda + row : row * g->lda + p);
        double b = gemm_element(
            g->b, gemm_is_fp8(g->input) ? GEMM_E4M3 : g->input, fnuz, g->transpose_b ? column * g->ldb + p : p * g->ldb + column);
        e.sum += a * b;
        e.squares += a * b * a * b / (double)g->k;
        e.peak = fmax(e.peak, fabs(e.sum));
    }
    return e;
}

/* A sum of k terms of size `rms`, rounded to fp32 after each term, has an error of about k 2^-25
 * rms in any order. 32 times k 2^-24 rms leaves room and is far below one missing term. GPUs
 * truncate after each 16 or 8 terms, and these errors do not cancel: half a unit in the last place
 * of the largest sum on average, one at most. Hopper keeps FP8 sums to about 14 bits for some steps
 * (DeepSeek-V3, arXiv 2412.19437, 3.3.2): k 2^-13 rms is still far below the error of a wrong
 * element, sqrt(k) rms. Operands rounded by up to `rounding` of their rms, with nearly random
 * errors, give 0.8 sqrt(k) of that; the factor 8 leaves room. A bf16 C adds half a unit in its last
 * place. */
static double bound_of(const Gemm *g, const Exact *e, double rounding) {
    double k = (double)g->k, sums = gemm_is_fp8(g->input) ? 0x1p-13 : 32 * 0x1p-24, last = g->output == GEMM_BF16 ? 0x1p-8 : 0x1p-23;
    return (k * sums + 8 * sqrt(k) * rounding) * sqrt(e->squares) + k / 8 * 0x1p-23 * e->peak + last * fabs(e->sum);
}

bool gemm_element_is_right(const Gemm *gemm, const Device *device, int64_t row, int64_t column, const void *c) {
    bool fnuz = device_info(device)->fp8_fnuz;
    Exact exact = exact_element(gemm, fnuz, row, column);
    double value = gemm_element(c, gemm->output, fnuz, column);
    return fabs(value - exact.sum) <= bound_of(gemm, &exact, device_gemm_rounding(device, gemm->input));
}

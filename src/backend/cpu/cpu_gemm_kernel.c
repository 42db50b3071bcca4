/* The packed kernels of our GEMM, over vectors of LANES sums; compiled once per instruction set and
 * type (Makefile: GEMM_VARIANTS). cpu_gemm.c packs operands with `pack` and multiplies packed
 * panels with `multiply_panel`; it also has the table of variants. Owns no memory.
 *
 * The register tile is ROWS x 2 vectors: every step of depth broadcasts ROWS values of A against
 * two vectors of B, so the two FMA ports are kept busy while the load ports have room. A sum over
 * one block of depth is a chain of fused multiply-adds in order of k, in any tile, so bits do not
 * depend on how C is tiled. Scaled integers form such chains too, of whole sums over SCALED depths.
 *
 * There are three ways to multiply bf16. Casting to fp32 while packing and running the fp32 kernel
 * gives exactly the fp32 rate. vdpbf16ps multiplies pairs, at twice the fp32 rate on AMD (Zen 4 and
 * later), but at half of it on Intel: measured on an Emerald Rapids core, 85 GFLOP/s against 172
 * for fp32 FMA. vpdpwssd multiplies pairs of 16-bit integers, exactly, at twice the fp32 rate on
 * Intel too; gemm.h says how bf16 becomes integers. Only the cast keeps subnormals. */
#include "backend/cpu/cpu_gemm_internal.h"
#include "backend/cpu/kernel.h"

#include <string.h>

#if defined __AVX2__
#include <immintrin.h>
#endif

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define INLINE static inline __attribute__((always_inline))

/* The parameters of a variant: Sum, the type of sums and packed elements; LANES; ROWS of the
 * register tile, and STRIDE, ROWS rounded up to vectors; PAIRS: packed elements are two bf16;
 * SCALED, if not 0: packed elements are two integers, and SCALED depths share a scale; FROM_BF16:
 * bf16 is a possible input and output type; MASKS: 512-bit byte masks exist; MULTIPLY_ADD(sum,
 * scalar, vector); ZIP_LOW and ZIP_HIGH interleave the halves of two vectors. */

#if defined KERNEL_FP64
typedef double Sum;
#define FROM_BF16 0
#else
typedef float Sum;
#define FROM_BF16 1
#endif

#if defined KERNEL_BF16
#define PAIRS 1
#else
#define PAIRS 0
#endif

/* Number of depths, each a pair, that share a scale: a larger number costs bits, a smaller one
 * costs time. */
#if defined KERNEL_BF16 && !defined __AVX512BF16__
#define SCALED 64
#else
#define SCALED 0
#endif

#define FOR_ROWS_4(X) X(1) X(2) X(3) X(4)
#define FOR_ROWS_6(X) FOR_ROWS_4(X) X(5) X(6)
#define FOR_ROWS_14(X) FOR_ROWS_6(X) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define FOR_ROWS_16(X) FOR_ROWS_14(X) X(15) X(16)

#if defined __AVX512F__
enum { ROWS = 14, STRIDE = 16 };
#define MASKS 1
#define FOR_ROWS FOR_ROWS_14
#elif defined __AVX2__
enum { ROWS = 6, STRIDE = 8 };
#define MASKS 0
#define FOR_ROWS FOR_ROWS_6
#else
enum { ROWS = 4, STRIDE = 4 };
#define MASKS 0
#define FOR_ROWS FOR_ROWS_4
#endif

#if defined __AVX512F__ && !defined KERNEL_FP64
#define LANES 16
#define ZIP_LOW(a, b) VECTOR_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b) VECTOR_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif (defined __AVX512F__ && defined KERNEL_FP64) || (defined __AVX2__ && !defined KERNEL_FP64)
#define LANES 8
#define ZIP_LOW(a, b) VECTOR_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) VECTOR_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif defined __AVX2__ || !defined KERNEL_FP64
#define LANES 4
#define ZIP_LOW(a, b) VECTOR_SHUFFLE(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) VECTOR_SHUFFLE(a, b, 2, 6, 3, 7)
#else
#define LANES 2
#define ZIP_LOW(a, b) VECTOR_SHUFFLE(a, b, 0, 2)
#define ZIP_HIGH(a, b) VECTOR_SHUFFLE(a, b, 1, 3)
#endif

#if defined KERNEL_BF16 && defined __AVX512BF16__
#define MULTIPLY_ADD(sum, scalar, vector) (Vector)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)_mm512_set1_ps(scalar), (__m512bh)(vector))
#elif defined KERNEL_BF16
#define MULTIPLY_ADD(sum, scalar, vector) \
    (VectorSums)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)_mm512_set1_ps(scalar), (__m512i)(vector))
#elif defined __AVX512F__ && defined KERNEL_FP64
#define MULTIPLY_ADD(sum, scalar, vector) (Vector)_mm512_fmadd_pd(_mm512_set1_pd(scalar), (__m512d)(vector), (__m512d)(sum))
#elif defined __AVX512F__
#define MULTIPLY_ADD(sum, scalar, vector) (Vector)_mm512_fmadd_ps(_mm512_set1_ps(scalar), (__m512)(vector), (__m512)(sum))
#elif defined __AVX2__ && defined KERNEL_FP64
#define MULTIPLY_ADD(sum, scalar, vector) (Vector)_mm256_fmadd_pd(_mm256_set1_pd(scalar), (__m256d)(vector), (__m256d)(sum))
#elif defined __AVX2__
#define MULTIPLY_ADD(sum, scalar, vector) (Vector)_mm256_fmadd_ps(_mm256_set1_ps(scalar), (__m256)(vector), (__m256)(sum))
#else
#define MULTIPLY_ADD(sum, scalar, vector) ((sum) + (scalar) * (vector))
#endif

#define CASTS_IN_PAIRS (FROM_BF16 && MASKS)

typedef Sum Vector __attribute__((vector_size(LANES * sizeof(Sum))));
typedef Vector Unaligned __attribute__((aligned(2), may_alias));

INLINE Vector load_vector(const void *from) { return *(const Unaligned *)from; }
INLINE void store(void *to, Vector v) { *(Unaligned *)to = v; }

/* Loads the first `bytes` bytes of a vector, fewer than it has; the rest is zero. */
INLINE Vector load_bytes(const void *from, size_t bytes) {
#if MASKS
    return (Vector)_mm512_maskz_loadu_epi8((1ull << bytes) - 1, from);
#else
    Vector v = {0};
    memcpy(&v, from, bytes);
    return v;
#endif
}

INLINE void store_bytes(void *to, Vector v, size_t bytes) {
#if MASKS
    _mm512_mask_storeu_epi8(to, (1ull << bytes) - 1, (__m512i)v);
#else
    memcpy(to, &v, bytes);
#endif
}

/* ---- Packing ---- */

/* Transposes by interleaving the first and second half of the vectors, once per doubling of
 * lanes. */
INLINE void transpose(Vector *rows) {
    for (int stage = 1; stage < LANES; stage *= 2) {
        Vector next[LANES];
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = ZIP_LOW(rows[i], rows[i + LANES / 2]);
            next[2 * i + 1] = ZIP_HIGH(rows[i], rows[i + LANES / 2]);
        }
        UNROLL for (int i = 0; i < LANES; i++) rows[i] = next[i];
    }
}

enum { LOAD_AHEAD = 256 };

/* Loads one vector (`bytes` bytes at the end of the depth) of each of LANES lines; the last of
 * `lines` lines replaces missing ones. Prefetches `ahead` bytes further: the hardware prefetcher
 * does not follow so many streams. */
INLINE void load_square(Vector *square, const char *from, int64_t stride, int64_t lines, size_t bytes, int64_t ahead) {
    if (bytes >= sizeof(Vector)) {
        UNROLL for (int i = 0; i < LANES; i++) {
            const char *line = from + (i < lines ? i : lines - 1) * stride;
            square[i] = load_vector(line);
            __builtin_prefetch(line + ahead, 0, 2);
        }
    } else {
        UNROLL for (int i = 0; i < LANES; i++) square[i] = load_bytes(from + (i < lines ? i : lines - 1) * stride, bytes);
    }
}

/* Packs one vector of lines whose depth is contiguous in the source. Elements are as wide as the
 * sums; bf16 pairs are copied unchanged. */
static void pack_transposed(Sum *to, int width, const char *from, int64_t stride, int64_t lines, int64_t bytes) {
    int64_t depth = (bytes + (int64_t)sizeof(Sum) - 1) / (int64_t)sizeof(Sum);
    for (int64_t p = 0; p < depth; p += LANES) {
        Vector square[LANES];
        load_square(square, from + p * (int64_t)sizeof(Sum), stride, lines, (size_t)(bytes - p * (int64_t)sizeof(Sum)), LOAD_AHEAD);
        transpose(square);
        if (p + LANES <= depth) {
            UNROLL for (int j = 0; j < LANES; j++) store(to + (p + j) * width, square[j]);
        } else {
            UNROLL for (int j = 0; j < LANES; j++) if (p + j < depth) store(to + (p + j) * width, square[j]);
        }
    }
}

#if FROM_BF16
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));

/* Loads the next LANES bf16, or `lines` if fewer, into the low halves of lanes. */
INLINE Bits load_halves(const void *from, int64_t lines) {
#if MASKS
    __mmask16 mask = (__mmask16)((1u << (lines < LANES ? lines : LANES)) - 1);
    return (Bits)_mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(mask, from)); /* gcc 12 needs five instructions for __builtin_convertvector */
#else
    Halves halves = {0};
    memcpy(&halves, from, lines >= LANES ? sizeof halves : (size_t)lines * 2);
    return __builtin_convertvector(halves, Bits);
#endif
}

#if SCALED
/* Adds the squares of a vector of bf16 pairs, with separate sums for each half. The low bits of a
 * pair change the high half's value slightly. */
INLINE void fold_squares(__m512 sums[2], Vector pairs) {
    __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32((__m512i)pairs, 16)), high = (__m512)pairs;
    sums[0] = _mm512_fmadd_ps(low, low, sums[0]), sums[1] = _mm512_fmadd_ps(high, high, sums[1]);
}

/* Returns an exponent x for each of `lines` lines, such that the squares of its `depths` bf16 pairs,
 * which `sums` has in four parts, add up to less than 2^(x - 254). If fp32 may not hold the sum, the
 * amax bounds it: the sum is below 128 times 4 times the square of the amax's power of two. Sets
 * *infinite for lines with an infinity or a NaN. */
INLINE __m512i bound_squares(const __m512 sums[4], const Sum *pairs, int width, int64_t lines, int64_t depths, __mmask16 *infinite) {
    enum { MAGNITUDE = 0x7fff, BIAS = 127, SPECIAL = 255, LEAST = 30, MOST = 250, BITS_OF_512 = 9 };
    __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    /* a thousandth covers the rounding of the sums and of the integers */
    __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(sum, _mm512_set1_ps(1.001f))), 23);
    __m512i bound = _mm512_add_epi32(exponent, _mm512_set1_epi32(1 + BIAS));
    __mmask16 there = lines < LANES ? (__mmask16)((1u << lines) - 1) : 0xffff;
    __mmask16 lost =
        _mm512_mask_cmpge_epu32_mask(there, _mm512_sub_epi32(exponent, _mm512_set1_epi32(LEAST)), _mm512_set1_epi32(MOST - LEAST));
    *infinite = 0;
    if (!lost) return bound;
    __m512i most = _mm512_setzero_si512();
    for (int64_t p = 0; p < depths; p++)
        most = _mm512_max_epu16(most, _mm512_and_si512((__m512i)load_vector(pairs + p * width), _mm512_set1_epi16(MAGNITUDE)));
    exponent = _mm512_srli_epi32(_mm512_max_epu32(_mm512_slli_epi32(most, 16), most), 23);
    *infinite = _mm512_mask_cmpeq_epi32_mask(lost, exponent, _mm512_set1_epi32(SPECIAL));
    return _mm512_mask_add_epi32(bound, lost, _mm512_add_epi32(exponent, exponent), _mm512_set1_epi32(BITS_OF_512));
}

/* The scales of a vector of lines, and their reciprocals. */
typedef struct LineScale {
    Vector scale;
    __m512 factor;
} LineScale;

/* A line's scale is the smallest power of two with which the squares of its integers add up to less
 * than 2^30; it is NaN for a line with an infinity or a NaN. Scales and their reciprocals stay
 * normal numbers. */
INLINE LineScale scale_of(const __m512 squares[4], const Sum *pairs, int width, int64_t lines, int64_t depths) {
    enum { BIAS = 127, INTEGER_BITS = 15, QUIET_NAN = 0x7fc00000 };
    __mmask16 infinite;
    __m512i bound = bound_squares(squares, pairs, width, lines, depths, &infinite);
    __m512i exponent =
        _mm512_sub_epi32(_mm512_srli_epi32(_mm512_add_epi32(bound, _mm512_set1_epi32(1)), 1), _mm512_set1_epi32(INTEGER_BITS));
    __m512i scale = _mm512_slli_epi32(_mm512_max_epi32(exponent, _mm512_set1_epi32(1)), 23);
    __m512 factor = _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(2 * BIAS << 23), scale));
    return (LineScale){(Vector)_mm512_mask_mov_epi32(scale, infinite, _mm512_set1_epi32(QUIET_NAN)), factor};
}

/* Converts a vector of bf16 pairs into pairs of integers. Adding 1.5 * 2^23 rounds a product to an
 * integer in its low 16 bits. */
INLINE Vector scale_pairs(const Sum *from, __m512 factor) {
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    __m512i pair = (__m512i)load_vector(from), upper = _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000));
    __m512i low = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), factor, magic));
    __m512i high = _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(upper), factor, magic));
    return (Vector)_mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
}

/* Converts a vector of lines, bf16 pairs that follow `to`, into pairs of integers, and writes their
 * scales to `to`. */
static void scale_lines(Sum *to, int width, int64_t lines, int64_t depths) {
    Sum *pairs = to + width;
    __m512 squares[4] = {0};
    int64_t p = 0;
    for (; p + 1 < depths; p += 2) {
        fold_squares(squares, load_vector(pairs + p * width));
        fold_squares(squares + 2, load_vector(pairs + (p + 1) * width));
    }
    if (p < depths) fold_squares(squares, load_vector(pairs + p * width));
    LineScale scale = scale_of(squares, pairs, width, lines, depths);
    store(to, scale.scale);
    for (p = 0; p < depths; p++) store(pairs + p * width, scale_pairs(pairs + p * width, scale.factor));
}
#endif

#if PAIRS
static void pack_straight_bf16(Sum *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p += 2) {
        Bits pair = load_halves(from + p * stride, lines);
        if (p + 1 < depth) pair |= load_halves(from + (p + 1) * stride, lines) << 16;
        store(to + p / 2 * width, (Vector)pair);
    }
}

static void pack_transposed_bf16(Sum *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    pack_transposed(to, width, from, stride, lines, depth * 2);
}
#else
static void pack_straight_bf16(Sum *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p++) store(to + p * width, (Vector)(load_halves(from + p * stride, lines) << 16));
}

/* Transposes bf16 pairs as 32-bit lanes, then casts: half the shuffles of casting first. */
static void pack_transposed_bf16(Sum *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p += 2 * LANES) {
        Vector square[LANES];
        load_square(square, from + p * 2, stride, lines, (size_t)(depth - p) * 2, LOAD_AHEAD);
        transpose(square);
        bool whole = p + 2 * LANES <= depth;
        UNROLL for (int j = 0; j < LANES; j++) {
            Sum *row = to + (p + 2 * j) * width;
            if (whole || p + 2 * j < depth) store(row, (Vector)((Bits)square[j] << 16));
            if (whole || p + 2 * j + 1 < depth) store(row + width, (Vector)((Bits)square[j] & 0xffff0000u));
        }
    }
}
#endif
#endif

#if !PAIRS
static void pack_straight(Sum *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    size_t bytes = (size_t)lines * sizeof(Sum);
    if (lines >= LANES)
        for (int64_t p = 0; p < depth; p++) store(to + p * width, load_vector(from + p * stride));
    else
        for (int64_t p = 0; p < depth; p++) store(to + p * width, load_bytes(from + p * stride, bytes));
}

/* Packs a whole panel of B whose lines are adjacent in memory: two vectors per depth. */
static void pack_wide(Sum *to, const char *from, int64_t stride, int64_t depth, bool bf16) {
    if (bf16) {
#if FROM_BF16
        for (int64_t p = 0; p < depth; p++, from += stride, to += 2 * LANES) {
            store(to, (Vector)(load_halves(from, LANES) << 16));
            store(to + LANES, (Vector)(load_halves(from + 2 * LANES, LANES) << 16));
        }
#endif
        return;
    }
    for (int64_t p = 0; p < depth; p++, from += stride, to += 2 * LANES) {
        store(to, load_vector(from));
        store(to + LANES, load_vector(from + sizeof(Vector)));
    }
}
#endif

static void pack(void *panel, int width, const GemmSource *source, int64_t lines, int64_t depth) {
    int64_t element = source->bf16 ? 2 : (int64_t)sizeof(Sum), stride = source->ld * element;
#if !PAIRS
    if (!source->depth_contiguous && lines == 2 * LANES && width == lines) {
        pack_wide(panel, source->data, stride, depth, source->bf16);
        return;
    }
#endif
    for (int first = 0; first < width; first += LANES) {
        Sum *to = (Sum *)panel + first;
        int64_t left = lines - first;
        if (left <= 0) break;
        const char *from = (const char *)source->data + first * (source->depth_contiguous ? stride : element);
#if SCALED
        for (int64_t p = 0; p < depth; p += 2 * SCALED, to += (SCALED + 1) * width) {
            int64_t here = depth - p < 2 * SCALED ? depth - p : 2 * SCALED;
            if (source->depth_contiguous) pack_transposed_bf16(to + width, width, from + p * element, stride, left, here);
            else pack_straight_bf16(to + width, width, from + p * stride, stride, left, here);
            scale_lines(to, width, left, (here + 1) / 2);
        }
#elif FROM_BF16
        if (source->bf16) {
            if (source->depth_contiguous) pack_transposed_bf16(to, width, from, stride, left, depth);
            else pack_straight_bf16(to, width, from, stride, left, depth);
            continue;
        }
#endif
#if !PAIRS
        if (source->depth_contiguous) pack_transposed(to, width, from, stride, left, depth * (int64_t)sizeof(Sum));
        else pack_straight(to, width, from, stride, left, depth);
#endif
    }
}

/* ---- Multiplying ---- */

#if CASTS_IN_PAIRS
/* The upper halves of two vectors' elements, in order. */
static const uint16_t upper_halves[32] = {
    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

/* Returns bits whose upper half is the sum in bf16, rounded to nearest even. A NaN is unchanged: no
 * NaN that arithmetic produces rounds to an infinity. */
INLINE __m512i round_bits(Vector sum) {
    Bits bits = (Bits)sum;
    return _mm512_mask_add_epi32(
        (__m512i)bits, _mm512_cmp_ps_mask((__m512)sum, (__m512)sum, _CMP_ORD_Q), (__m512i)bits, (__m512i)(0x7fff + ((bits >> 16) & 1)));
}
#endif

#if SCALED
typedef int32_t VectorSums __attribute__((vector_size(LANES * 4)));
#else
typedef Vector VectorSums;
#endif

/* Position in the multiplication of a register tile. */
typedef struct PanelCursor {
    const Sum *a, *b;
    GemmPrefetch next;
    int64_t share;
} PanelCursor;

/* Adds the products of `depth` depths to sums. `rows` and `vectors` are constants in every caller,
 * so sums stay in registers. Every fourth step of depth also prefetches a cache line of the next
 * operands. Prefetching more often would leave no line-fill buffers for the loop's own loads from
 * the L2 cache. */
INLINE void add_products(VectorSums sums[ROWS][2], PanelCursor *at, int64_t step, int64_t depth, int rows, int vectors) {
    const Sum *a = at->a, *b = at->b;
    for (int64_t p = 0; p < depth; p++) {
        if (p % 4 == 0 && at->share > 0) {
            GemmPrefetch *next = &at->next;
            __builtin_prefetch(next->at, 0, 2);
            next->at += 64;
            if (next->at == next->row_end) next->at += next->stride - next->width, next->row_end += next->stride;
            at->share--, next->left--;
        }
        Vector b0 = load_vector(b), b1 = b0;
        if (vectors == 2) b1 = load_vector(b + LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            sums[i][0] = MULTIPLY_ADD(sums[i][0], a[i], b0);
            if (vectors == 2) sums[i][1] = MULTIPLY_ADD(sums[i][1], a[i], b1);
        }
        a += step;
        b += vectors * LANES;
    }
    at->a = a, at->b = b;
}

#if SCALED
/* Adds the sums of integer products, times their lines' scales, for each group of depths that share
 * scales. It multiplies by one scale after the other: if lines are zero or tiny, the product of two
 * scales is a subnormal number, which takes a hundred cycles. */
INLINE void add_scaled(Vector sums[ROWS][2], PanelCursor *at, int64_t step, int64_t depth, int rows, int vectors) {
    for (int64_t here; depth > 0; depth -= 1 + here) {
        const Sum *a_scales = at->a, *b_scales = at->b;
        VectorSums integers[ROWS][2];
        UNROLL for (int i = 0; i < rows; i++) integers[i][0] = integers[i][1] = (VectorSums){0};
        here = depth <= SCALED ? depth - 1 : SCALED;
        at->a += step, at->b += vectors * LANES;
        add_products(integers, at, step, here, rows, vectors);
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < vectors; v++) sums[i][v] +=
            __builtin_convertvector(integers[i][v], Vector) * load_vector(b_scales + v * LANES) * a_scales[i];
    }
}
#endif

/* Computes one register tile. */
INLINE void multiply_panel(const GemmTile *t, int rows, int vectors) {
    Vector sums[ROWS][2];
    PanelCursor at = {t->a, t->b, *t->prefetch, t->share < t->prefetch->left ? t->share : t->prefetch->left};
    int64_t ld = t->ld;
    UNROLL for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = (Vector){0};
#if SCALED
    add_scaled(sums, &at, t->step, t->depth, rows, vectors);
#else
    add_products(sums, &at, t->step, t->depth, rows, vectors);
#endif
    *t->prefetch = at.next;
#if CASTS_IN_PAIRS
    if (vectors == 2 && t->store == GEMM_ROUND) {
        const __m512i halves = _mm512_loadu_si512(upper_halves);
        uint16_t *to = t->to;
        UNROLL for (int i = 0; i < rows; i++, to += ld)
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(round_bits(sums[i][0]), halves, round_bits(sums[i][1])));
        return;
    }
#endif
    Sum *to = t->to;
    if (t->store == GEMM_ADD) {
        UNROLL for (int i = 0; i < rows; i++) {
            sums[i][0] += load_vector(to + i * ld);
            if (vectors == 2) sums[i][1] += load_vector(to + i * ld + LANES);
        }
    }
    UNROLL for (int i = 0; i < rows; i++, to += ld) {
        store(to, sums[i][0]);
        if (vectors == 2) store(to + LANES, sums[i][1]);
    }
}

typedef void Multiply(const GemmTile *t);

#define DEFINE(rows) \
    static void multiply_##rows##_1(const GemmTile *t) { multiply_panel(t, rows, 1); } \
    static void multiply_##rows##_2(const GemmTile *t) { multiply_panel(t, rows, 2); }
#define ENTRY(rows) {multiply_##rows##_1, multiply_##rows##_2},
FOR_ROWS(DEFINE) static Multiply *const multiplies[ROWS][2] = {FOR_ROWS(ENTRY)};
#undef DEFINE
#undef ENTRY

#if FROM_BF16
/* Rounds to nearest even; a NaN keeps its sign and stays a NaN. */
INLINE void store_bf16(uint16_t *to, Vector v, int64_t columns) {
    Bits bits = (Bits)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, nan = (Bits)(v != v);
    Halves halves = __builtin_convertvector((nan & ((bits >> 16) | 0x40)) | (~nan & rounded), Halves);
    if (columns >= LANES) memcpy(to, &halves, sizeof halves);
#if MASKS
    else _mm256_mask_storeu_epi16(to, (__mmask16)((1u << columns) - 1), (__m256i)halves);
#else
    else memcpy(to, &halves, (size_t)columns * 2);
#endif
}

INLINE Vector load_bf16(const uint16_t *from, int64_t columns) {
    Halves halves = {0};
    memcpy(&halves, from, columns >= LANES ? sizeof halves : (size_t)columns * 2);
    return (Vector)(__builtin_convertvector(halves, Bits) << 16);
}
#endif

/* Returns sums + addend + bias for one vector of a row. */
INLINE Vector add_operands(Vector v, const GemmUpdate *u, int64_t row, int64_t column, int64_t columns) {
    bool whole = columns >= LANES;
    size_t bytes = whole ? sizeof v : (size_t)columns * sizeof(Sum);
#if FROM_BF16
    if (u->addend && u->addend_bf16) v += load_bf16((const uint16_t *)u->addend + row * u->ld_addend + column, columns);
    else
#endif
        if (u->addend) {
        const Sum *from = (const Sum *)u->addend + row * u->ld_addend + column;
        v += whole ? load_vector(from) : load_bytes(from, bytes);
    }
    if (u->bias) {
        const Sum *from = (const Sum *)u->bias + column;
        v += whole ? load_vector(from) : load_bytes(from, bytes);
    }
    return v;
}

/* Stores one vector of a row. */
INLINE void store_row(Vector v, const GemmUpdate *u, int64_t row, int64_t column, int64_t columns) {
#if FROM_BF16
    if (u->out_bf16) {
        store_bf16((uint16_t *)u->out + row * u->ld_out + column, v, columns);
        return;
    }
#endif
    Sum *to = (Sum *)u->out + row * u->ld_out + column;
    if (columns >= LANES) store(to, v);
    else store_bytes(to, v, (size_t)columns * sizeof(Sum));
}

INLINE void finish_vector(Vector v, const GemmUpdate *u, int64_t row, int64_t column, int64_t columns) {
    store_row(add_operands(v, u, row, column, columns), u, row, column, columns);
}

static void update_tile(const Sum *tile, const GemmUpdate *u, int rows, int64_t column, int64_t columns) {
    for (int i = 0; i < rows; i++, tile += 2 * LANES) {
        finish_vector(load_vector(tile), u, i, column, columns);
        if (columns > LANES) finish_vector(load_vector(tile + LANES), u, i, column + LANES, columns - LANES);
    }
}

/* Prefetches the tile's part of C during the multiplication, because the hardware prefetcher sees
 * no pattern in its distant rows. */
INLINE void prefetch_c(const GemmUpdate *u, int rows, int64_t column) {
    bool bf16 = u->addend ? u->addend_bf16 : u->out_bf16;
    int64_t size = bf16 ? 2 : (int64_t)sizeof(Sum), bytes = 2 * LANES * size, stride = (u->addend ? u->ld_addend : u->ld_out) * size;
    const char *from = (const char *)(u->addend ? u->addend : u->out) + column * size;
    for (int i = 0; i < rows; i++, from += stride) {
        __builtin_prefetch(from, 1);
        __builtin_prefetch(from + bytes - 1, 1);
        if (bytes > 64) __builtin_prefetch(from + 64, 1);
    }
}

static void multiply_panels(const void *a, int64_t step, const void *b, int rows, int64_t columns, int64_t depth, const GemmUpdate *u,
    GemmPrefetch prefetch[2], int64_t share) {
    Sum scratch[ROWS * 2 * LANES] __attribute__((aligned(64)));
    bool add = u->addend == u->out, plain = !u->bias && !u->out_bf16 && (add || !u->addend);
    bool round = CASTS_IN_PAIRS && u->out_bf16 && !u->bias && !u->addend;
    for (int64_t j = 0; j < columns; j += 2 * LANES) {
        GemmTile tile = {
            .a = a, .step = step, .b = (const Sum *)b + j * depth, .depth = depth, .to = scratch, .ld = 2 * LANES, .share = share};
        tile.prefetch = prefetch[0].left > 0 ? &prefetch[0] : &prefetch[1];
        bool whole = columns - j >= 2 * LANES, in_place = round ? whole : plain && (whole || columns - j == LANES);
        if (in_place) {
            tile.to = u->out_bf16 ? (void *)((uint16_t *)u->out + j) : (Sum *)u->out + j;
            tile.ld = u->ld_out;
            tile.store = round ? GEMM_ROUND : add ? GEMM_ADD : GEMM_STORE;
        }
        prefetch_c(u, rows, j);
        multiplies[rows - 1][columns - j > LANES](&tile);
        if (!in_place) update_tile(scratch, u, rows, j, columns - j);
    }
}

#include "backend/cpu/cpu_gemm_narrow_kernels.h"
#include "backend/cpu/cpu_gemm_rows_kernels.h"

static void multiply_few_rows(const GemmNarrow *t) {
#if BROADCASTS_B
    if (t->rows > SINGLE_ROWS) {
        multiply_by_broadcast(t);
        return;
    }
#endif
    multiply_lines_of(t);
}

extern const GemmKernel KERNEL(gemm);
const GemmKernel KERNEL(gemm) = {
    .panel_rows = ROWS,
    .stride_rows = STRIDE,
    .panel_columns = 2 * LANES,
    .unit = 1 + PAIRS,
    .scaled = SCALED,
    .element = sizeof(Sum),
    .pack = pack,
    .multiply = multiply_panels,
    .narrow_rows = MOST_ROWS,
    .laid_elements = laid_elements,
    .lay_rows = lay_rows,
    .multiply_narrow = multiply_few_rows,
};

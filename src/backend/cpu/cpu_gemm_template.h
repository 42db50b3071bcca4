/* The packed kernels, written once over vectors of GEMM_LANES sums and included by gemm_kernel.c once per instruction set and type.
 *
 * The register tile is GEMM_ROWS x 2 vectors: every step of depth broadcasts GEMM_ROWS values of A against two vectors of B, so the
 * two FMA ports are kept busy while the load ports have room. A sum of one block of depth is a chain of fused multiply-adds in order
 * of k, whatever the tile it falls in, which is why bits do not depend on how C was cut. Scaled integers are such chains too, of whole
 * sums of GEMM_SCALED depths.
 *
 * Parameters: GEMM_NAME(x) gives names, GEMM_TARGET the function attribute, GEMM_SUM the type of sums and packed elements, GEMM_LANES,
 * GEMM_ROWS, GEMM_STRIDE (rows rounded up to vectors), GEMM_PAIRS (packed elements are two bf16), GEMM_SCALED (or, where it is not 0, two
 * integers of bf16, whose scale so many depths share), GEMM_FMA(sum, scalar, vector), GEMM_MASKS (512-bit byte masks exist),
 * GEMM_FROM_BF16 (bf16 may come in and go out). */

#define INLINE GEMM_TARGET static inline __attribute__((always_inline))
#define VECTOR GEMM_NAME(Vector)
#define BITS GEMM_NAME(Bits)
#define HALVES GEMM_NAME(Halves)
#define UNALIGNED GEMM_NAME(Unaligned)
#define ACCUMULATOR GEMM_NAME(Accumulator)
#define CURSOR GEMM_NAME(Cursor)
#define GEMM_NARROWS (GEMM_FROM_BF16 && GEMM_MASKS)

typedef GEMM_SUM VECTOR __attribute__((vector_size(GEMM_LANES * sizeof(GEMM_SUM))));
typedef VECTOR UNALIGNED __attribute__((aligned(2), may_alias));

INLINE VECTOR GEMM_NAME(load)(const void *from) { return *(const UNALIGNED *)from; }
INLINE void GEMM_NAME(store)(void *to, VECTOR v) { *(UNALIGNED *)to = v; }

/* The first `bytes` of a vector, fewer than it has; the others are zero. */
INLINE VECTOR GEMM_NAME(load_bytes)(const void *from, size_t bytes) {
#if GEMM_MASKS
    return (VECTOR)_mm512_maskz_loadu_epi8((1ull << bytes) - 1, from);
#else
    VECTOR v = {0};
    memcpy(&v, from, bytes);
    return v;
#endif
}

INLINE void GEMM_NAME(store_bytes)(void *to, VECTOR v, size_t bytes) {
#if GEMM_MASKS
    _mm512_mask_storeu_epi8(to, (1ull << bytes) - 1, (__m512i)v);
#else
    memcpy(to, &v, bytes);
#endif
}

/* ---- Packing ---- */

/* Transposes by interleaving the first and second half of the vectors, once per doubling of lanes. */
INLINE void GEMM_NAME(transpose)(VECTOR *rows) {
    for (int stage = 1; stage < GEMM_LANES; stage *= 2) {
        VECTOR next[GEMM_LANES];
        UNROLL for (int i = 0; i < GEMM_LANES / 2; i++) {
            next[2 * i] = GEMM_CONCAT(ZIP_LOW_, GEMM_LANES)(rows[i], rows[i + GEMM_LANES / 2]);
            next[2 * i + 1] = GEMM_CONCAT(ZIP_HIGH_, GEMM_LANES)(rows[i], rows[i + GEMM_LANES / 2]);
        }
        UNROLL for (int i = 0; i < GEMM_LANES; i++) rows[i] = next[i];
    }
}

/* Loads a vector's worth of bytes (`bytes` of it where the depth ends) of each of GEMM_LANES lines; the last of `lines` stands in for
 * those that are not there. Asks for what lies AHEAD in each line: so many streams are more than the hardware follows. */
INLINE void GEMM_NAME(load_square)(VECTOR *square, const char *from, int64_t stride, int64_t lines, size_t bytes) {
    enum { AHEAD = 256 };
    if (bytes >= sizeof(VECTOR)) {
        UNROLL for (int i = 0; i < GEMM_LANES; i++) {
            const char *line = from + (i < lines ? i : lines - 1) * stride;
            square[i] = GEMM_NAME(load)(line);
            __builtin_prefetch(line + AHEAD);
        }
    } else {
        UNROLL for (int i = 0; i < GEMM_LANES; i++) square[i] = GEMM_NAME(load_bytes)(from + (i < lines ? i : lines - 1) * stride, bytes);
    }
}

/* One vector of lines (depth contiguous in the source), elements as wide as the sums; also bf16 pairs, whose bits are only moved. */
GEMM_TARGET static void GEMM_NAME(pack_transposed)(
    GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t bytes) {
    int64_t depth = (bytes + (int64_t)sizeof(GEMM_SUM) - 1) / (int64_t)sizeof(GEMM_SUM);
    for (int64_t p = 0; p < depth; p += GEMM_LANES) {
        VECTOR square[GEMM_LANES];
        GEMM_NAME(load_square)(
            square, from + p * (int64_t)sizeof(GEMM_SUM), stride, lines, (size_t)(bytes - p * (int64_t)sizeof(GEMM_SUM)));
        GEMM_NAME(transpose)(square);
        if (p + GEMM_LANES <= depth) {
            UNROLL for (int j = 0; j < GEMM_LANES; j++) GEMM_NAME(store)(to + (p + j) * width, square[j]);
        } else {
            UNROLL for (int j = 0; j < GEMM_LANES; j++) if (p + j < depth) GEMM_NAME(store)(to + (p + j) * width, square[j]);
        }
    }
}

#if GEMM_FROM_BF16
typedef uint32_t BITS __attribute__((vector_size(GEMM_LANES * 4)));
typedef uint16_t HALVES __attribute__((vector_size(GEMM_LANES * 2)));

/* The next GEMM_LANES bf16, fewer where `lines` are fewer, as the low halves of lanes. */
INLINE BITS GEMM_NAME(load_halves)(const void *from, int64_t lines) {
#if GEMM_MASKS
    __mmask16 mask = (__mmask16)((1u << (lines < GEMM_LANES ? lines : GEMM_LANES)) - 1);
    return (BITS)_mm512_cvtepu16_epi32(
        _mm256_maskz_loadu_epi16(mask, from)); /* gcc 12 takes five instructions for __builtin_convertvector */
#else
    HALVES halves = {0};
    memcpy(&halves, from, lines >= GEMM_LANES ? sizeof halves : (size_t)lines * 2);
    return __builtin_convertvector(halves, BITS);
#endif
}

#if GEMM_SCALED
/* Adds the squares of a vector of pairs of bf16, each half's to its own sums. The low half's bits only add to the high one. */
INLINE void GEMM_NAME(add_squares)(__m512 sums[2], const GEMM_SUM *from) {
    __m512i pair = (__m512i)GEMM_NAME(load)(from);
    __m512 low = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), high = _mm512_castsi512_ps(pair);
    sums[0] = _mm512_fmadd_ps(low, low, sums[0]), sums[1] = _mm512_fmadd_ps(high, high, sums[1]);
}

/* An x for each of `lines` lines, such that the squares of its `depths` pairs of bf16 add up to less than 2^(x - 254). Sums that fp32 may
 * not hold are bounded by the largest element: they are below 128 times 4 times the square of its power of two. Lines with an infinity or
 * a NaN are marked. */
INLINE __m512i GEMM_NAME(bound_squares)(const GEMM_SUM *pairs, int width, int64_t lines, int64_t depths, __mmask16 *infinite) {
    enum { MAGNITUDE = 0x7fff, BIAS = 127, SPECIAL = 255, LEAST = 30, MOST = 250, BITS_OF_512 = 9 };
    __m512 sums[4] = {0};
    int64_t p = 0;
    for (; p + 1 < depths; p += 2) {
        GEMM_NAME(add_squares)(sums, pairs + p * width);
        GEMM_NAME(add_squares)(sums + 2, pairs + (p + 1) * width);
    }
    if (p < depths) GEMM_NAME(add_squares)(sums, pairs + p * width);
    __m512 sum = _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3]));
    /* a thousandth for what sums are rounded by, and the integers made of them */
    __m512i exponent = _mm512_srli_epi32(_mm512_castps_si512(_mm512_mul_ps(sum, _mm512_set1_ps(1.001f))), 23);
    __m512i bound = _mm512_add_epi32(exponent, _mm512_set1_epi32(1 + BIAS));
    __mmask16 there = lines < GEMM_LANES ? (__mmask16)((1u << lines) - 1) : 0xffff;
    __mmask16 lost =
        _mm512_mask_cmpge_epu32_mask(there, _mm512_sub_epi32(exponent, _mm512_set1_epi32(LEAST)), _mm512_set1_epi32(MOST - LEAST));
    *infinite = 0;
    if (!lost) return bound;
    __m512i most = _mm512_setzero_si512();
    for (p = 0; p < depths; p++)
        most = _mm512_max_epu16(most, _mm512_and_si512((__m512i)GEMM_NAME(load)(pairs + p * width), _mm512_set1_epi16(MAGNITUDE)));
    exponent = _mm512_srli_epi32(_mm512_max_epu32(_mm512_slli_epi32(most, 16), most), 23);
    *infinite = _mm512_mask_cmpeq_epi32_mask(lost, exponent, _mm512_set1_epi32(SPECIAL));
    return _mm512_mask_add_epi32(bound, lost, _mm512_add_epi32(exponent, exponent), _mm512_set1_epi32(BITS_OF_512));
}

/* Turns a vector of lines, pairs of bf16 behind `to`, into pairs of integers, and writes their scales to `to`: for each line the least power
 * of two with which its integers' squares add up to less than 2^30. NaN is the scale of a line with an infinity or a NaN. Scales and their
 * reciprocals stay normal numbers. */
GEMM_TARGET static void GEMM_NAME(scale)(GEMM_SUM *to, int width, int64_t lines, int64_t depths) {
    enum { BIAS = 127, BITS = 15, QUIET_NAN = 0x7fc00000 };
    GEMM_SUM *pairs = to + width;
    __mmask16 infinite;
    __m512i bound = GEMM_NAME(bound_squares)(pairs, width, lines, depths, &infinite);
    __m512i exponent = _mm512_sub_epi32(_mm512_srli_epi32(_mm512_add_epi32(bound, _mm512_set1_epi32(1)), 1), _mm512_set1_epi32(BITS));
    __m512i scale = _mm512_slli_epi32(_mm512_max_epi32(exponent, _mm512_set1_epi32(1)), 23);
    __m512 factor = _mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(2 * BIAS << 23), scale));
    GEMM_NAME(store)(to, (VECTOR)_mm512_mask_mov_epi32(scale, infinite, _mm512_set1_epi32(QUIET_NAN)));
    for (int64_t p = 0; p < depths; p++) {
        __m512i pair = (__m512i)GEMM_NAME(load)(pairs + p * width), upper = _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000));
        __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), factor));
        __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(upper), factor));
        GEMM_NAME(store)(pairs + p * width, (VECTOR)_mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16)));
    }
}
#endif

#if GEMM_PAIRS
GEMM_TARGET static void GEMM_NAME(pack_straight_bf16)(
    GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p += 2) {
        BITS pair = GEMM_NAME(load_halves)(from + p * stride, lines);
        if (p + 1 < depth) pair |= GEMM_NAME(load_halves)(from + (p + 1) * stride, lines) << 16;
        GEMM_NAME(store)(to + p / 2 * width, (VECTOR)pair);
    }
}

GEMM_TARGET static void GEMM_NAME(pack_transposed_bf16)(
    GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    GEMM_NAME(pack_transposed)(to, width, from, stride, lines, depth * 2);
}
#else
GEMM_TARGET static void GEMM_NAME(pack_straight_bf16)(
    GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p++) GEMM_NAME(store)(to + p * width, (VECTOR)(GEMM_NAME(load_halves)(from + p * stride, lines) << 16));
}

/* Pairs of bf16 are transposed as one 32-bit lane, then widened: half the shuffles of widening first. */
GEMM_TARGET static void GEMM_NAME(pack_transposed_bf16)(
    GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p += 2 * GEMM_LANES) {
        VECTOR square[GEMM_LANES];
        GEMM_NAME(load_square)(square, from + p * 2, stride, lines, (size_t)(depth - p) * 2);
        GEMM_NAME(transpose)(square);
        bool whole = p + 2 * GEMM_LANES <= depth;
        UNROLL for (int j = 0; j < GEMM_LANES; j++) {
            GEMM_SUM *row = to + (p + 2 * j) * width;
            if (whole || p + 2 * j < depth) GEMM_NAME(store)(row, (VECTOR)((BITS)square[j] << 16));
            if (whole || p + 2 * j + 1 < depth) GEMM_NAME(store)(row + width, (VECTOR)((BITS)square[j] & 0xffff0000u));
        }
    }
}
#endif
#endif

#if !GEMM_PAIRS
GEMM_TARGET static void GEMM_NAME(pack_straight)(GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    size_t bytes = (size_t)lines * sizeof(GEMM_SUM);
    if (lines >= GEMM_LANES)
        for (int64_t p = 0; p < depth; p++) GEMM_NAME(store)(to + p * width, GEMM_NAME(load)(from + p * stride));
    else
        for (int64_t p = 0; p < depth; p++) GEMM_NAME(store)(to + p * width, GEMM_NAME(load_bytes)(from + p * stride, bytes));
}
#endif

#if !GEMM_PAIRS
/* A whole panel of B whose lines lie side by side: two vectors of each depth. */
GEMM_TARGET static void GEMM_NAME(pack_wide)(GEMM_SUM *to, const char *from, int64_t stride, int64_t depth, bool bf16) {
    if (bf16) {
#if GEMM_FROM_BF16
        for (int64_t p = 0; p < depth; p++, from += stride, to += 2 * GEMM_LANES) {
            GEMM_NAME(store)(to, (VECTOR)(GEMM_NAME(load_halves)(from, GEMM_LANES) << 16));
            GEMM_NAME(store)(to + GEMM_LANES, (VECTOR)(GEMM_NAME(load_halves)(from + 2 * GEMM_LANES, GEMM_LANES) << 16));
        }
#endif
        return;
    }
    for (int64_t p = 0; p < depth; p++, from += stride, to += 2 * GEMM_LANES) {
        GEMM_NAME(store)(to, GEMM_NAME(load)(from));
        GEMM_NAME(store)(to + GEMM_LANES, GEMM_NAME(load)(from + sizeof(VECTOR)));
    }
}
#endif

GEMM_TARGET static void GEMM_NAME(pack)(void *panel, int width, const GemmSource *source, int64_t lines, int64_t depth) {
    int64_t element = source->bf16 ? 2 : (int64_t)sizeof(GEMM_SUM), stride = source->ld * element;
#if !GEMM_PAIRS
    if (!source->depth_contiguous && lines == 2 * GEMM_LANES && width == lines) {
        GEMM_NAME(pack_wide)(panel, source->data, stride, depth, source->bf16);
        return;
    }
#endif
    for (int first = 0; first < width; first += GEMM_LANES) {
        GEMM_SUM *to = (GEMM_SUM *)panel + first;
        int64_t left = lines - first;
        if (left <= 0) break;
        const char *from = (const char *)source->data + first * (source->depth_contiguous ? stride : element);
#if GEMM_SCALED
        for (int64_t p = 0; p < depth; p += 2 * GEMM_SCALED, to += (GEMM_SCALED + 1) * width) {
            int64_t here = depth - p < 2 * GEMM_SCALED ? depth - p : 2 * GEMM_SCALED;
            if (source->depth_contiguous) GEMM_NAME(pack_transposed_bf16)(to + width, width, from + p * element, stride, left, here);
            else GEMM_NAME(pack_straight_bf16)(to + width, width, from + p * stride, stride, left, here);
            GEMM_NAME(scale)(to, width, left, (here + 1) / 2);
        }
#elif GEMM_FROM_BF16
        if (source->bf16) {
            if (source->depth_contiguous) GEMM_NAME(pack_transposed_bf16)(to, width, from, stride, left, depth);
            else GEMM_NAME(pack_straight_bf16)(to, width, from, stride, left, depth);
            continue;
        }
#endif
#if !GEMM_PAIRS
        if (source->depth_contiguous) GEMM_NAME(pack_transposed)(to, width, from, stride, left, depth * (int64_t)sizeof(GEMM_SUM));
        else GEMM_NAME(pack_straight)(to, width, from, stride, left, depth);
#endif
    }
}

/* ---- Multiplying ---- */

#if GEMM_NARROWS
/* The upper halves of two vectors' elements, in order. */
static const uint16_t GEMM_NAME(upper_halves)[32] = {
    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

/* Bits whose upper half is the sum in bf16, to nearest even. A NaN stays as it is: arithmetic leaves none that would become an infinity. */
INLINE __m512i GEMM_NAME(round)(VECTOR sum) {
    BITS bits = (BITS)sum;
    return _mm512_mask_add_epi32(
        (__m512i)bits, _mm512_cmp_ps_mask((__m512)sum, (__m512)sum, _CMP_ORD_Q), (__m512i)bits, (__m512i)(0x7fff + ((bits >> 16) & 1)));
}
#endif

#if GEMM_SCALED
typedef int32_t ACCUMULATOR __attribute__((vector_size(GEMM_LANES * 4)));
#else
typedef VECTOR ACCUMULATOR;
#endif

/* Where a register tile's multiplication has come to. */
typedef struct CURSOR {
    const GEMM_SUM *a, *b;
    GemmAhead next;
    int64_t share;
} CURSOR;

/* Adds the products of `depth` depths to sums. `rows` and `vectors` are constants in every caller, so sums stay in registers.
 * Every fourth step of depth also asks for a cache line of what is packed next: more often, and those on their way would leave no buffers
 * for what the loop itself loads from the second level. */
INLINE void GEMM_NAME(add_products)(ACCUMULATOR sums[GEMM_ROWS][2], CURSOR *at, int64_t step, int64_t depth, int rows, int vectors) {
    const GEMM_SUM *a = at->a, *b = at->b;
    for (int64_t p = 0; p < depth; p++) {
        if (p % 4 == 0 && at->share > 0) {
            GemmAhead *next = &at->next;
            __builtin_prefetch(next->at, 0, 2);
            next->at += 64;
            if (next->at == next->row_end) next->at += next->stride - next->width, next->row_end += next->stride;
            at->share--, next->left--;
        }
        VECTOR b0 = GEMM_NAME(load)(b), b1 = b0;
        if (vectors == 2) b1 = GEMM_NAME(load)(b + GEMM_LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            sums[i][0] = GEMM_FMA(sums[i][0], a[i], b0);
            if (vectors == 2) sums[i][1] = GEMM_FMA(sums[i][1], a[i], b1);
        }
        a += step;
        b += vectors * GEMM_LANES;
    }
    at->a = a, at->b = b;
}

#if GEMM_SCALED
/* Adds the sums of integer products, times their lines' scales: of the depths that share scales, then of the next ones that do. One scale
 * after the other: the product of two, where lines are zero or tiny, is a subnormal number, which takes a hundred cycles. */
INLINE void GEMM_NAME(add_scaled)(VECTOR sums[GEMM_ROWS][2], CURSOR *at, int64_t step, int64_t depth, int rows, int vectors) {
    for (int64_t here; depth > 0; depth -= 1 + here) {
        const GEMM_SUM *a_scales = at->a, *b_scales = at->b;
        ACCUMULATOR integers[GEMM_ROWS][2];
        UNROLL for (int i = 0; i < rows; i++) integers[i][0] = integers[i][1] = (ACCUMULATOR){0};
        here = depth <= GEMM_SCALED ? depth - 1 : GEMM_SCALED;
        at->a += step, at->b += vectors * GEMM_LANES;
        GEMM_NAME(add_products)(integers, at, step, here, rows, vectors);
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int v = 0; v < vectors; v++) sums[i][v] +=
            __builtin_convertvector(integers[i][v], VECTOR) * GEMM_NAME(load)(b_scales + v * GEMM_LANES) * a_scales[i];
    }
}
#endif

/* The sums of one register tile. */
INLINE void GEMM_NAME(multiply)(const GemmTile *t, int rows, int vectors) {
    VECTOR sums[GEMM_ROWS][2];
    CURSOR at = {t->a, t->b, *t->ahead, t->share < t->ahead->left ? t->share : t->ahead->left};
    int64_t ld = t->ld;
    UNROLL for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = (VECTOR){0};
#if GEMM_SCALED
    GEMM_NAME(add_scaled)(sums, &at, t->step, t->depth, rows, vectors);
#else
    GEMM_NAME(add_products)(sums, &at, t->step, t->depth, rows, vectors);
#endif
    *t->ahead = at.next;
#if GEMM_NARROWS
    if (vectors == 2 && t->store == GEMM_ROUND) {
        const __m512i halves = _mm512_loadu_si512(GEMM_NAME(upper_halves));
        uint16_t *to = t->to;
        UNROLL for (int i = 0; i < rows; i++, to += ld)
            _mm512_storeu_si512(to, _mm512_permutex2var_epi16(GEMM_NAME(round)(sums[i][0]), halves, GEMM_NAME(round)(sums[i][1])));
        return;
    }
#endif
    GEMM_SUM *to = t->to;
    if (t->store == GEMM_ADD) {
        UNROLL for (int i = 0; i < rows; i++) {
            sums[i][0] += GEMM_NAME(load)(to + i * ld);
            if (vectors == 2) sums[i][1] += GEMM_NAME(load)(to + i * ld + GEMM_LANES);
        }
    }
    UNROLL for (int i = 0; i < rows; i++, to += ld) {
        GEMM_NAME(store)(to, sums[i][0]);
        if (vectors == 2) GEMM_NAME(store)(to + GEMM_LANES, sums[i][1]);
    }
}

typedef void GEMM_NAME(Multiply)(const GemmTile *t);

#define DEFINE(rows) \
    GEMM_TARGET static void GEMM_NAME(multiply_##rows##_1)(const GemmTile *t) { GEMM_NAME(multiply)(t, rows, 1); } \
    GEMM_TARGET static void GEMM_NAME(multiply_##rows##_2)(const GemmTile *t) { GEMM_NAME(multiply)(t, rows, 2); }
#define ENTRY(rows) {GEMM_NAME(multiply_##rows##_1), GEMM_NAME(multiply_##rows##_2)},
GEMM_CONCAT(FOR_ROWS_, GEMM_ROWS)(DEFINE) static GEMM_NAME(Multiply) *const
    GEMM_NAME(multiplies)[GEMM_ROWS][2] = {GEMM_CONCAT(FOR_ROWS_, GEMM_ROWS)(ENTRY)};
#undef DEFINE
#undef ENTRY

#if GEMM_FROM_BF16
/* Round to nearest even; a NaN keeps its sign and stays a NaN. */
INLINE void GEMM_NAME(store_bf16)(uint16_t *to, VECTOR v, int64_t columns) {
    BITS bits = (BITS)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16, nan = (BITS)(v != v);
    HALVES halves = __builtin_convertvector((nan & ((bits >> 16) | 0x40)) | (~nan & rounded), HALVES);
    if (columns >= GEMM_LANES) memcpy(to, &halves, sizeof halves);
#if GEMM_MASKS
    else _mm256_mask_storeu_epi16(to, (__mmask16)((1u << columns) - 1), (__m256i)halves);
#else
    else memcpy(to, &halves, (size_t)columns * 2);
#endif
}
#endif

#if GEMM_FROM_BF16
INLINE VECTOR GEMM_NAME(load_bf16)(const uint16_t *from, int64_t columns) {
    HALVES halves = {0};
    memcpy(&halves, from, columns >= GEMM_LANES ? sizeof halves : (size_t)columns * 2);
    return (VECTOR)(__builtin_convertvector(halves, BITS) << 16);
}
#endif

/* One vector of a row: sums + addend + bias to its place. */
INLINE void GEMM_NAME(finish)(VECTOR v, const GemmUpdate *u, int64_t row, int64_t column, int64_t columns) {
    bool whole = columns >= GEMM_LANES;
    size_t bytes = whole ? sizeof v : (size_t)columns * sizeof(GEMM_SUM);
#if GEMM_FROM_BF16
    if (u->addend && u->addend_bf16) v += GEMM_NAME(load_bf16)((const uint16_t *)u->addend + row * u->ld_addend + column, columns);
    else
#endif
        if (u->addend) {
        const GEMM_SUM *from = (const GEMM_SUM *)u->addend + row * u->ld_addend + column;
        v += whole ? GEMM_NAME(load)(from) : GEMM_NAME(load_bytes)(from, bytes);
    }
    if (u->bias) {
        const GEMM_SUM *from = (const GEMM_SUM *)u->bias + column;
        v += whole ? GEMM_NAME(load)(from) : GEMM_NAME(load_bytes)(from, bytes);
    }
#if GEMM_FROM_BF16
    if (u->out_bf16) {
        GEMM_NAME(store_bf16)((uint16_t *)u->out + row * u->ld_out + column, v, columns);
        return;
    }
#endif
    GEMM_SUM *to = (GEMM_SUM *)u->out + row * u->ld_out + column;
    if (whole) GEMM_NAME(store)(to, v);
    else GEMM_NAME(store_bytes)(to, v, bytes);
}

GEMM_TARGET static void GEMM_NAME(update)(const GEMM_SUM *tile, const GemmUpdate *u, int rows, int64_t column, int64_t columns) {
    for (int i = 0; i < rows; i++, tile += 2 * GEMM_LANES) {
        GEMM_NAME(finish)(GEMM_NAME(load)(tile), u, i, column, columns);
        if (columns > GEMM_LANES) GEMM_NAME(finish)(GEMM_NAME(load)(tile + GEMM_LANES), u, i, column + GEMM_LANES, columns - GEMM_LANES);
    }
}

/* Asks for the tile's part of C while it is multiplied: it comes from far away, and in no pattern that the hardware would see. */
INLINE void GEMM_NAME(prefetch)(const GemmUpdate *u, int rows, int64_t column) {
    bool bf16 = u->addend ? u->addend_bf16 : u->out_bf16;
    int64_t size = bf16 ? 2 : (int64_t)sizeof(GEMM_SUM), bytes = 2 * GEMM_LANES * size,
            stride = (u->addend ? u->ld_addend : u->ld_out) * size;
    const char *from = (const char *)(u->addend ? u->addend : u->out) + column * size;
    for (int i = 0; i < rows; i++, from += stride) {
        __builtin_prefetch(from, 1);
        __builtin_prefetch(from + bytes - 1, 1);
        if (bytes > 64) __builtin_prefetch(from + 64, 1);
    }
}

GEMM_TARGET static void GEMM_NAME(multiply_panels)(const void *a, int64_t step, const void *b, int rows, int64_t columns, int64_t depth,
    const GemmUpdate *u, GemmAhead ahead[2], int64_t share) {
    GEMM_SUM scratch[GEMM_ROWS * 2 * GEMM_LANES] __attribute__((aligned(64)));
    bool add = u->addend == u->out, plain = !u->bias && !u->out_bf16 && (add || !u->addend);
    bool round = GEMM_NARROWS && u->out_bf16 && !u->bias && !u->addend;
    for (int64_t j = 0; j < columns; j += 2 * GEMM_LANES) {
        GemmTile tile = {.a = a,
            .step = step,
            .b = (const GEMM_SUM *)b + j * depth,
            .depth = depth,
            .to = scratch,
            .ld = 2 * GEMM_LANES,
            .share = share};
        tile.ahead = ahead[0].left > 0 ? &ahead[0] : &ahead[1];
        bool whole = columns - j >= 2 * GEMM_LANES, in_place = round ? whole : plain && (whole || columns - j == GEMM_LANES);
        if (in_place) {
            tile.to = u->out_bf16 ? (void *)((uint16_t *)u->out + j) : (GEMM_SUM *)u->out + j;
            tile.ld = u->ld_out;
            tile.store = round ? GEMM_ROUND : add ? GEMM_ADD : GEMM_STORE;
        }
        GEMM_NAME(prefetch)(u, rows, j);
        GEMM_NAME(multiplies)[rows - 1][columns - j > GEMM_LANES](&tile);
        if (!in_place) GEMM_NAME(update)(scratch, u, rows, j, columns - j);
    }
}

#undef INLINE
#undef VECTOR
#undef BITS
#undef HALVES
#undef UNALIGNED
#undef ACCUMULATOR
#undef CURSOR
#undef GEMM_NARROWS
#undef GEMM_NAME
#undef GEMM_TARGET
#undef GEMM_SUM
#undef GEMM_LANES
#undef GEMM_ROWS
#undef GEMM_STRIDE
#undef GEMM_PAIRS
#undef GEMM_SCALED
#undef GEMM_FROM_BF16
#undef GEMM_FMA
#undef GEMM_MASKS

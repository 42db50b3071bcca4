/* The packed kernels, written once over vectors of GEMM_LANES sums and included by gemm_kernel.c once per instruction set and type.
 *
 * The register tile is GEMM_ROWS x 2 vectors: every step of depth broadcasts GEMM_ROWS values of A against two vectors of B, so the
 * two FMA ports are kept busy while the load ports have room. A sum of one block of depth is a chain of fused multiply-adds in order
 * of k, whatever the tile it falls in, which is why bits do not depend on how C was cut.
 *
 * Parameters: GEMM_NAME(x) gives names, GEMM_TARGET the function attribute, GEMM_SUM the type of sums and packed elements, GEMM_LANES,
 * GEMM_ROWS, GEMM_STRIDE (rows rounded up to vectors), GEMM_PAIRS (packed elements are two bf16), GEMM_FMA(sum, scalar, vector),
 * GEMM_MASKS (512-bit byte masks exist), GEMM_FROM_BF16 (bf16 may come in and go out). */

#define INLINE GEMM_TARGET static inline __attribute__((always_inline))
#define VECTOR GEMM_NAME(Vector)
#define BITS GEMM_NAME(Bits)
#define HALVES GEMM_NAME(Halves)
#define UNALIGNED GEMM_NAME(Unaligned)

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
 * those that are not there. */
INLINE void GEMM_NAME(load_square)(VECTOR *square, const char *from, int64_t stride, int64_t lines, size_t bytes) {
    if (bytes >= sizeof(VECTOR)) {
        UNROLL for (int i = 0; i < GEMM_LANES; i++) square[i] = GEMM_NAME(load)(from + (i < lines ? i : lines - 1) * stride);
    } else {
        UNROLL for (int i = 0; i < GEMM_LANES; i++) square[i] = GEMM_NAME(load_bytes)(from + (i < lines ? i : lines - 1) * stride, bytes);
    }
}

/* One vector of lines (depth contiguous in the source), elements as wide as the sums; also bf16 pairs, whose bits are only moved. */
GEMM_TARGET static void GEMM_NAME(pack_transposed)(GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t bytes) {
    int64_t depth = (bytes + (int64_t)sizeof(GEMM_SUM) - 1) / (int64_t)sizeof(GEMM_SUM);
    for (int64_t p = 0; p < depth; p += GEMM_LANES) {
        VECTOR square[GEMM_LANES];
        GEMM_NAME(load_square)(square, from + p * (int64_t)sizeof(GEMM_SUM), stride, lines, (size_t)(bytes - p * (int64_t)sizeof(GEMM_SUM)));
        GEMM_NAME(transpose)(square);
        if (p + GEMM_LANES <= depth) {
            UNROLL for (int j = 0; j < GEMM_LANES; j++) GEMM_NAME(store)(to + (p + j) * width, square[j]);
        } else {
            UNROLL for (int j = 0; j < GEMM_LANES; j++)
                if (p + j < depth) GEMM_NAME(store)(to + (p + j) * width, square[j]);
        }
    }
}

#if GEMM_FROM_BF16
typedef uint32_t BITS __attribute__((vector_size(GEMM_LANES * 4)));
typedef uint16_t HALVES __attribute__((vector_size(GEMM_LANES * 2)));

INLINE BITS GEMM_NAME(load_halves)(const void *from, int64_t lines) {
    HALVES halves = {0};
    if (lines >= GEMM_LANES) memcpy(&halves, from, sizeof halves);
#if GEMM_MASKS
    else halves = (HALVES)_mm256_maskz_loadu_epi16((__mmask16)((1u << lines) - 1), from);
#else
    else memcpy(&halves, from, (size_t)lines * 2);
#endif
    return __builtin_convertvector(halves, BITS);
}

#if GEMM_PAIRS
GEMM_TARGET static void GEMM_NAME(pack_straight_bf16)(GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p += 2) {
        BITS pair = GEMM_NAME(load_halves)(from + p * stride, lines);
        if (p + 1 < depth) pair |= GEMM_NAME(load_halves)(from + (p + 1) * stride, lines) << 16;
        GEMM_NAME(store)(to + p / 2 * width, (VECTOR)pair);
    }
}

GEMM_TARGET static void GEMM_NAME(pack_transposed_bf16)(GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    GEMM_NAME(pack_transposed)(to, width, from, stride, lines, depth * 2);
}
#else
GEMM_TARGET static void GEMM_NAME(pack_straight_bf16)(GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
    for (int64_t p = 0; p < depth; p++) GEMM_NAME(store)(to + p * width, (VECTOR)(GEMM_NAME(load_halves)(from + p * stride, lines) << 16));
}

/* Pairs of bf16 are transposed as one 32-bit lane, then widened: half the shuffles of widening first. */
GEMM_TARGET static void GEMM_NAME(pack_transposed_bf16)(GEMM_SUM *to, int width, const char *from, int64_t stride, int64_t lines, int64_t depth) {
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
#if GEMM_FROM_BF16
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

/* to[rows][vectors] (+)= the sums of one register tile. `rows` and `vectors` are constants in every caller, so sums stay in registers.
 * Each step of depth also asks for one of `lines` cache lines, `stride` bytes apart, of what is packed next. */
INLINE void GEMM_NAME(multiply)(const GEMM_SUM *a, const GEMM_SUM *b, int64_t depth, GEMM_SUM *to, int64_t ld, bool add, const GemmAhead *ahead, int rows,
                                int vectors) {
    const char *line = ahead->at;
    int64_t lines = ahead->lines, stride = ahead->stride;
    VECTOR sums[GEMM_ROWS][2];
    UNROLL for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = (VECTOR){0};
    for (int64_t p = 0; p < depth; p++) {
        if (p < lines) {
            __builtin_prefetch(line, 0, 2);
            line += stride;
        }
        VECTOR b0 = GEMM_NAME(load)(b), b1 = b0;
        if (vectors == 2) b1 = GEMM_NAME(load)(b + GEMM_LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            sums[i][0] = GEMM_FMA(sums[i][0], a[i], b0);
            if (vectors == 2) sums[i][1] = GEMM_FMA(sums[i][1], a[i], b1);
        }
        a += GEMM_STRIDE;
        b += vectors * GEMM_LANES;
    }
    if (add) {
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

typedef void GEMM_NAME(Multiply)(const GEMM_SUM *a, const GEMM_SUM *b, int64_t depth, GEMM_SUM *to, int64_t ld, bool add, const GemmAhead *ahead);

#define DEFINE(rows) \
    GEMM_TARGET static void GEMM_NAME(multiply_##rows##_1)(const GEMM_SUM *a, const GEMM_SUM *b, int64_t depth, GEMM_SUM *to, int64_t ld, bool add, \
                                                           const GemmAhead *ahead) { \
        GEMM_NAME(multiply)(a, b, depth, to, ld, add, ahead, rows, 1); \
    } \
    GEMM_TARGET static void GEMM_NAME(multiply_##rows##_2)(const GEMM_SUM *a, const GEMM_SUM *b, int64_t depth, GEMM_SUM *to, int64_t ld, bool add, \
                                                           const GemmAhead *ahead) { \
        GEMM_NAME(multiply)(a, b, depth, to, ld, add, ahead, rows, 2); \
    }
#define ENTRY(rows) {GEMM_NAME(multiply_##rows##_1), GEMM_NAME(multiply_##rows##_2)},
GEMM_CONCAT(FOR_ROWS_, GEMM_ROWS)(DEFINE)
static GEMM_NAME(Multiply) *const GEMM_NAME(multiplies)[GEMM_ROWS][2] = {GEMM_CONCAT(FOR_ROWS_, GEMM_ROWS)(ENTRY)};
#undef DEFINE
#undef ENTRY

#if GEMM_FROM_BF16
#if GEMM_MASKS
/* The upper halves of two vectors' elements, in order. */
static const uint16_t GEMM_NAME(upper_halves)[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                     33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

/* Two whole vectors at once, where no element is a NaN; else false, and nothing is stored. Half the instructions of two store_bf16. */
INLINE bool GEMM_NAME(store_bf16_pair)(uint16_t *to, VECTOR low, VECTOR high) {
    if (_mm512_cmp_ps_mask((__m512)low, (__m512)high, _CMP_UNORD_Q)) return false;
    BITS a = (BITS)low, b = (BITS)high;
    a += 0x7fff + ((a >> 16) & 1);
    b += 0x7fff + ((b >> 16) & 1);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16((__m512i)a, _mm512_loadu_si512(GEMM_NAME(upper_halves)), (__m512i)b));
    return true;
}
#endif

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

GEMM_TARGET static void GEMM_NAME(update)(const GEMM_SUM *tile, const GemmUpdate *u, int64_t row, int rows, int64_t column, int64_t columns) {
    for (int i = 0; i < rows; i++, tile += 2 * GEMM_LANES) {
#if GEMM_FROM_BF16 && GEMM_MASKS
        if (u->out_bf16 && !u->addend && !u->bias && columns >= 2 * GEMM_LANES) {
            uint16_t *to = (uint16_t *)u->out + (row + i) * u->ld_out + column;
            if (GEMM_NAME(store_bf16_pair)(to, GEMM_NAME(load)(tile), GEMM_NAME(load)(tile + GEMM_LANES))) continue;
        }
#endif
        GEMM_NAME(finish)(GEMM_NAME(load)(tile), u, row + i, column, columns);
        if (columns > GEMM_LANES) GEMM_NAME(finish)(GEMM_NAME(load)(tile + GEMM_LANES), u, row + i, column + GEMM_LANES, columns - GEMM_LANES);
    }
}

/* Asks for the tile's part of C while it is multiplied: it comes from far away, and in no pattern that the hardware would see. */
INLINE void GEMM_NAME(prefetch)(const GemmUpdate *u, int64_t row, int rows, int64_t column) {
    const char *from = (const char *)((const GEMM_SUM *)(u->addend ? u->addend : u->out) + row * (u->addend ? u->ld_addend : u->ld_out) + column);
    for (int i = 0; i < rows; i++, from += (u->addend ? u->ld_addend : u->ld_out) * (int64_t)sizeof(GEMM_SUM)) {
        __builtin_prefetch(from, 1);
        __builtin_prefetch(from + 2 * sizeof(VECTOR) - 1, 1);
        if (sizeof(VECTOR) > 32) __builtin_prefetch(from + sizeof(VECTOR), 1);
    }
}

/* The next column of cache lines to ask for: those of the first region, then those of the second, then none. */
INLINE void GEMM_NAME(look_ahead)(GemmAhead *now, GemmAhead *regions) {
    GemmAhead *region = regions[0].columns > 0 ? &regions[0] : &regions[1];
    *now = *region;
    if (region->columns <= 0) now->lines = 0;
    region->at += 64;
    region->columns--;
}

GEMM_TARGET static void GEMM_NAME(block)(const void *a, const void *b, int64_t rows, int64_t columns, int64_t depth, int panel_height, const GemmUpdate *u,
                                         const GemmAhead *next) {
    GemmAhead regions[] = {next[0], next[1]}, ahead;
    GEMM_SUM tile[GEMM_ROWS * 2 * GEMM_LANES] __attribute__((aligned(64)));
    bool add = u->addend == u->out, plain = !u->bias && !u->out_bf16 && (add || !u->addend);
    for (int64_t j = 0; j < columns; j += 2 * GEMM_LANES) {
        const GEMM_SUM *panel_a = a, *panel_b = (const GEMM_SUM *)b + j * depth;
        int two = columns - j > GEMM_LANES;
        bool whole = columns - j >= 2 * GEMM_LANES || columns - j == GEMM_LANES;
        for (int64_t i = 0; i < rows; i += panel_height, panel_a += GEMM_STRIDE * depth) {
            int height = rows - i < panel_height ? (int)(rows - i) : panel_height;
            GEMM_NAME(Multiply) *multiply = GEMM_NAME(multiplies)[height - 1][two];
            if (!u->out_bf16 || u->addend) GEMM_NAME(prefetch)(u, i, height, j);
            GEMM_NAME(look_ahead)(&ahead, regions);
            if (plain && whole) {
                multiply(panel_a, panel_b, depth, (GEMM_SUM *)u->out + i * u->ld_out + j, u->ld_out, add, &ahead);
            } else {
                multiply(panel_a, panel_b, depth, tile, 2 * GEMM_LANES, false, &ahead);
                GEMM_NAME(update)(tile, u, i, height, j, columns - j);
            }
        }
    }
}

#undef INLINE
#undef VECTOR
#undef BITS
#undef HALVES
#undef UNALIGNED
#undef GEMM_NAME
#undef GEMM_TARGET
#undef GEMM_SUM
#undef GEMM_LANES
#undef GEMM_ROWS
#undef GEMM_STRIDE
#undef GEMM_PAIRS
#undef GEMM_FROM_BF16
#undef GEMM_FMA
#undef GEMM_MASKS

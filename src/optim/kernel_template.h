/* The optimizer's passes over memory for one precision and instruction set; kernels.c includes this once for each, with these defined:
 * OPTIM_NAME(x), OPTIM_TARGET (a function attribute), T, W, widen, pure_bf16, LANES (of a vector of W), ROOT(vector). They are undefined at
 * the end.
 *
 * AdamW is written with vector types because sqrt, which may set errno, keeps compilers from vectorising a plain loop. */

typedef W OPTIM_NAME(Lanes) __attribute__((vector_size(LANES * sizeof(W))));
#define VECTOR OPTIM_NAME(Lanes)
#define INLINE static inline __attribute__((always_inline)) OPTIM_TARGET

INLINE void OPTIM_NAME(update)(const AdamwRates *r, W *p_at, const W *g_at, W *m_at, W *v_at, int64_t count) {
    VECTOR p = {0}, g = {0}, m = {0}, v = {0};
    size_t bytes = (size_t)count * sizeof(W);
    memcpy(&p, p_at, bytes);
    memcpy(&g, g_at, bytes);
    memcpy(&m, m_at, bytes);
    memcpy(&v, v_at, bytes);
    g *= (W)r->scale;
    m += (g - m) * (W)(1 - r->beta1);
    v = v * (W)r->beta2 + g * g * (W)(1 - r->beta2);
    p = p * (W)r->keep - (W)r->step_size * m / (ROOT(v) * (W)r->inverse_root_bias2 + (W)r->epsilon);
    memcpy(p_at, &p, bytes);
    memcpy(m_at, &m, bytes);
    memcpy(v_at, &v, bytes);
}

/* The weights of what has just been updated, while it is in the first-level cache. */
INLINE void OPTIM_NAME(round_weights)(int64_t count, const W *restrict p, T *restrict w) {
    if ((const void *)p == (const void *)w) return;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) w[i] = pure_bf16(p[i]);
}

OPTIM_TARGET static void OPTIM_NAME(adamw)(
    const AdamwRates *rates, int64_t count, void *master, void *weights, const void *gradient, void *momentum, void *variance) {
    enum { BLOCK = 1024 };
    const AdamwRates r = *rates;
    W *p = master, *m = momentum, *v = variance;
    const W *g = gradient;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t end = first + BLOCK < count ? first + BLOCK : count, i = first;
        for (; i + LANES <= end; i += LANES) OPTIM_NAME(update)(&r, p + i, g + i, m + i, v + i, LANES);
        if (i < end) OPTIM_NAME(update)(&r, p + i, g + i, m + i, v + i, end - i);
        OPTIM_NAME(round_weights)(end - first, p + first, (T *)weights + first);
    }
}

OPTIM_TARGET static double OPTIM_NAME(sum_squares)(int64_t count, const void *gradient) {
    const W *g = gradient;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += (double)g[i] * (double)g[i];
    return sum;
}

OPTIM_TARGET static double OPTIM_NAME(momentum)(double decay, double scale, int64_t count, void *momentum, const void *gradient) {
    const W *restrict g = gradient;
    W *restrict m = momentum, d = (W)decay, s = (W)scale;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        W scaled = s * g[i];
        m[i] = d * m[i] + scaled;
        double u = (double)(scaled + d * m[i]);
        sum += u * u;
    }
    return sum;
}

OPTIM_TARGET static void OPTIM_NAME(direction)(
    double decay, double scale, double factor, int64_t count, void *x, const void *momentum, const void *gradient) {
    const W *restrict g = gradient, *restrict m = momentum;
    T *restrict out = x;
    W d = (W)decay, s = (W)scale, f = (W)factor;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) out[i] = pure_bf16((s * g[i] + d * m[i]) * f);
}

OPTIM_TARGET static void OPTIM_NAME(polynomial)(void *gram, const void *square, int64_t order, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
        T *restrict row = (T *)gram + i * order;
        const W *restrict square_row = (const W *)square + i * order;
        W diagonal = (W)NEWTON_SCHULZ_A + (W)NEWTON_SCHULZ_B * widen(row[i]) + (W)NEWTON_SCHULZ_C * square_row[i];
#pragma omp simd
        for (int64_t j = 0; j < i; j++) row[j] = pure_bf16((W)NEWTON_SCHULZ_B * widen(row[j]) + (W)NEWTON_SCHULZ_C * square_row[j]);
        row[i] = pure_bf16(diagonal);
    }
}

OPTIM_TARGET static void OPTIM_NAME(mirror)(void *gram, int64_t order, int64_t first, int64_t end) {
    enum { SIDE = 16 };
    T *matrix = gram;
    for (int64_t row = first; row < end; row += SIDE) {
        int64_t rows = end - row < SIDE ? end - row : SIDE;
        for (int64_t column = 0; column < row + rows; column += SIDE)
            for (int64_t i = row; i < row + rows; i++) {
                int64_t columns = i - column < SIDE ? i - column : SIDE;
                for (int64_t j = column; j < column + columns; j++) matrix[j * order + i] = matrix[i * order + j];
            }
    }
}

OPTIM_TARGET static void OPTIM_NAME(apply)(double keep, double rate, int64_t count, void *master, void *weights, const void *x) {
    W *restrict p = master, k = (W)keep, r = (W)rate;
    const T *restrict direction = x;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) p[i] = k * p[i] - r * widen(direction[i]);
    OPTIM_NAME(round_weights)(count, p, weights);
}

#undef VECTOR
#undef INLINE
#undef OPTIM_NAME
#undef OPTIM_TARGET
#undef T
#undef W
#undef widen
#undef pure_bf16
#undef LANES
#undef ROOT

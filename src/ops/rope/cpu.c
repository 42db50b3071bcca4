/* Rotary position embedding on a CPU: one thread per channel pair of the table, one per row of qkv.
 * No scratch. In place (y is x) values and unrotated channels are not touched. */
#include "backend/cpu/kernel.h"
#include "ops/rope/rope.h"

CPU_OP(rope_table) {
    const RopeSpec *spec = call->attributes;
    W *table = call->out[ROPE_TABLE_OUT];
    int64_t half = spec->dimensions / 2;
    double factor = rope_attention_factor(spec);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < half; i++) {
        double frequency = rope_frequency(spec, i, spec->length);
        for (int64_t position = 0; position < spec->positions; position++) {
            double angle = rope_angle(spec, i, position, frequency);
            table[position * 2 * half + i] = (W)(factor * cos(angle));
            table[position * 2 * half + half + i] = (W)(factor * sin(angle));
        }
    }
}

static void rope_head(T *y, const T *x, const W *restrict cosine, const W *restrict sine, W sign, int64_t half, int64_t dim) {
#pragma omp simd /* the halves of one head do not overlap; y may be x */
    for (int64_t i = 0; i < half; i++) {
        W a = to_wide(x[i]), b = to_wide(x[half + i]), s = sign * sine[i];
        y[i] = to_compute(a * cosine[i] - b * s);
        y[half + i] = to_compute(b * cosine[i] + a * s);
    }
    if (y != x) memcpy(y + 2 * half, x + 2 * half, (dim - 2 * half) * sizeof(T));
}

static void rope_neighbors(T *y, const T *x, const W *restrict cosine, const W *restrict sine, W sign, int64_t half, int64_t dim) {
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        W a = to_wide(x[2 * i]), b = to_wide(x[2 * i + 1]), s = sign * sine[i];
        y[2 * i] = to_compute(a * cosine[i] - b * s);
        y[2 * i + 1] = to_compute(b * cosine[i] + a * s);
    }
    if (y != x) memcpy(y + 2 * half, x + 2 * half, (dim - 2 * half) * sizeof(T));
}

CPU_OP(rope) {
    const RopeAttributes *attributes = call->attributes;
    const Heads *heads = &attributes->heads;
    const T *x = call->in[ROPE_X];
    const int32_t *positions = call->in[ROPE_POSITIONS];
    const W *table = call->in[ROPE_TABLE];
    T *y = call->out[ROPE_Y];
    int64_t rows = call->in_shape[ROPE_X][0], columns = call->in_shape[ROPE_X][1], half = call->in_shape[ROPE_TABLE][1] / 2;
    int64_t rotated = heads->heads + heads->kv_heads, dim = heads->qk_dim;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        assert(positions[r] >= 0 && positions[r] < call->in_shape[ROPE_TABLE][0]);
        const W *cosine = table + positions[r] * 2 * half;
        const T *from = x + r * columns;
        T *to = y + r * columns;
        for (int64_t head = 0; head < rotated; head++)
            (attributes->pairs == ROPE_NEIGHBORS ? rope_neighbors : rope_head)(
                to + head * dim, from + head * dim, cosine, cosine + half, (W)attributes->sign, half, dim);
        if (to != from) memcpy(to + rotated * dim, from + rotated * dim, (columns - rotated * dim) * sizeof(T));
    }
    kernel_put_amax(call, ROPE_Y, ROPE_AMAX);
}

CPU_OP(query_scale) {
    const QueryScaleAttributes *attributes = call->attributes;
    const T *x = call->in[QUERY_SCALE_X];
    const int32_t *positions = call->in[QUERY_SCALE_POSITIONS];
    T *y = call->out[QUERY_SCALE_Y];
    int64_t rows = call->in_shape[QUERY_SCALE_X][0], columns = call->in_shape[QUERY_SCALE_X][1], scaled = attributes->columns;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        W scale = (W)(1 + attributes->scale.beta * log(1 + (double)(positions[r] / attributes->scale.period)));
        const T *from = x + r * columns;
        T *to = y + r * columns;
        for (int64_t i = 0; i < scaled; i++) to[i] = to_compute(to_wide(from[i]) * scale);
        if (to != from) memcpy(to + scaled, from + scaled, (columns - scaled) * sizeof(T));
    }
}

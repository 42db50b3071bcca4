/* The types of GGUF's tensors: a table of their blocks and of the functions that decode and encode
 * them. The block layouts are ggml's (ggml-common.h). The operations have the order of ggml's
 * reference code, so that values are equal bit for bit. Owns nothing. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/bf16.h"
#include "gguf/gguf.h"

static float half_at(const unsigned char *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return fp16_to_float(half);
}

/* Rounds to nearest even; values beyond 65504 become infinity. Below 2^-14 a number is a multiple
 * of 2^-24. */
static uint16_t fp16_from_float(float x) {
    uint32_t bits = float_to_bits(x), magnitude = bits & 0x7fffffff, rounded;
    if (magnitude >= 0x47800000) rounded = 0x7c00;
    else if (magnitude < 0x38800000) rounded = float_to_bits(float_from_bits(magnitude) * 0x1p24F + 0x1p23F) - 0x4b000000;
    else rounded = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return (uint16_t)((bits >> 16 & 0x8000) | rounded);
}

/* -- Elements ------------------------------------------------------------------------------------------------------ */

static void decode_f32(const unsigned char *blocks, float *values, int64_t count) {
    memcpy(values, blocks, (size_t)count * sizeof *values);
}
static void encode_f32(const float *values, unsigned char *blocks, int64_t count) {
    memcpy(blocks, values, (size_t)count * sizeof *values);
}

static void decode_f16(const unsigned char *blocks, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) values[i] = half_at(blocks + 2 * i);
}

static void encode_f16(const float *values, unsigned char *blocks, int64_t count) {
    for (int64_t i = 0; i < count; i++) memcpy(blocks + 2 * i, &(uint16_t){fp16_from_float(values[i])}, 2);
}

static void decode_bf16(const unsigned char *blocks, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, blocks + 2 * i, sizeof half);
        values[i] = bf16_to_float(half);
    }
}

static void encode_bf16(const float *values, unsigned char *blocks, int64_t count) {
    for (int64_t i = 0; i < count; i++) memcpy(blocks + 2 * i, &(uint16_t){bf16_from_float(values[i])}, 2);
}

/* -- Blocks of 32 -------------------------------------------------------------------------------------------------- */

enum { SMALL = 32, Q8_0_BYTES = 2 + SMALL, Q4_0_BYTES = 2 + SMALL / 2, Q4_1_BYTES = 4 + SMALL / 2 };

/* A scale and 32 signed bytes. */
static void decode_q8_0(const unsigned char *block, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i += SMALL, block += Q8_0_BYTES) {
        float scale = half_at(block);
        for (int j = 0; j < SMALL; j++) values[i + j] = scale * (float)(int8_t)block[2 + j];
    }
}

static void encode_q8_0(const float *values, unsigned char *block, int64_t count) {
    for (int64_t i = 0; i < count; i += SMALL, block += Q8_0_BYTES) {
        float most = 0;
        for (int j = 0; j < SMALL; j++) most = fmaxf(most, fabsf(values[i + j]));
        float scale = most / 127, inverse = scale != 0 ? 1 / scale : 0;
        memcpy(block, &(uint16_t){fp16_from_float(scale)}, 2);
        for (int j = 0; j < SMALL; j++) block[2 + j] = (unsigned char)(int8_t)roundf(values[i + j] * inverse);
    }
}

/* Decodes nibbles: the lower nibbles are the first 16 values of the block, the upper nibbles the
 * rest. */
static void decode_nibbles(const unsigned char *bytes, float *values, float scale, float least, int zero) {
    for (int j = 0; j < SMALL / 2; j++) {
        values[j] = scale * (float)((bytes[j] & 15) - zero) + least;
        values[j + SMALL / 2] = scale * (float)((bytes[j] >> 4) - zero) + least;
    }
}

static void decode_q4_0(const unsigned char *block, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i += SMALL, block += Q4_0_BYTES) decode_nibbles(block + 2, values + i, half_at(block), 0, 8);
}

static void decode_q4_1(const unsigned char *block, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i += SMALL, block += Q4_1_BYTES)
        decode_nibbles(block + 4, values + i, half_at(block), half_at(block + 2), 0);
}

/* -- Blocks of 256 ------------------------------------------------------------------------------------------------- */

enum { LARGE = 256, Q4_K_BYTES = 2 + 2 + 12 + LARGE / 2, Q6_K_BYTES = LARGE / 2 + LARGE / 4 + LARGE / 16 + 2 };

/* Unpacks eight scales and eight minima of six bits from twelve bytes. The first four of each are
 * the lower six bits of bytes 0 to 7. The others have their lower four bits in bytes 8 to 11, and
 * their upper two bits above the first four. */
static void unpack_scales(const unsigned char *packed, int index, int *scale, int *least) {
    if (index < 4) {
        *scale = packed[index] & 63;
        *least = packed[index + 4] & 63;
    } else {
        *scale = (packed[index + 4] & 15) | (packed[index - 4] >> 6) << 4;
        *least = (packed[index + 4] >> 4) | (packed[index] >> 6) << 4;
    }
}

/* Scale and minimum of the block, scales and minima of its eight parts, and nibbles: 32 bytes hold
 * part 2 i in their lower nibbles and part 2 i + 1 in the upper ones. */
static void decode_q4_k(const unsigned char *block, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i += LARGE, block += Q4_K_BYTES)
        for (int part = 0; part < LARGE / SMALL; part++) {
            const unsigned char *bytes = block + 16 + part / 2 * SMALL;
            int scale, least, shift = part % 2 * 4;
            unpack_scales(block + 4, part, &scale, &least);
            float by = half_at(block) * (float)scale, minus = half_at(block + 2) * (float)least;
            for (int j = 0; j < SMALL; j++) values[i + part * SMALL + j] = by * (float)(bytes[j] >> shift & 15) - minus;
        }
}

/* Lower four bits of all values, upper two bits, a signed scale for each 16 values, and the block's
 * scale. Values come in quarters of half a block. Quarter q of half h takes its lower bits from
 * byte 32 (q % 2) on of the half's 64 bytes, and its upper bits from bit 2 q on of the half's 32
 * bytes of upper bits. */
static void decode_q6_k(const unsigned char *block, float *values, int64_t count) {
    for (int64_t i = 0; i < count; i += LARGE, block += Q6_K_BYTES) {
        const unsigned char *scales = block + LARGE / 2 + LARGE / 4;
        float scale = half_at(scales + LARGE / 16);
        for (int part = 0; part < LARGE / SMALL; part++) {
            int half = part / 4, quarter = part % 4;
            const unsigned char *low = block + 64 * half + SMALL * (quarter % 2), *high = block + LARGE / 2 + SMALL * half;
            for (int j = 0; j < SMALL; j++) {
                int bits = (low[j] >> quarter / 2 * 4 & 15) | (high[j] >> 2 * quarter & 3) << 4;
                float by = scale * (float)(int8_t)scales[2 * part + j / 16];
                values[i + part * SMALL + j] = by * (float)(bits - 32);
            }
        }
    }
}

/* -- The table ----------------------------------------------------------------------------------------------------- */

#define HALF_MAX 65504.0F
static const GgufType types[] = {
    {"F32", 0, 0, 1, 4, FLT_MAX, decode_f32, encode_f32},
    {"F16", 1, 1, 1, 2, HALF_MAX, decode_f16, encode_f16},
    {"BF16", 30, 32, 1, 2, 0x1.FEp127F, decode_bf16, encode_bf16},
    {"Q8_0", 8, 7, SMALL, Q8_0_BYTES, 127 * HALF_MAX, decode_q8_0, encode_q8_0},
    {"Q4_0", 2, -1, SMALL, Q4_0_BYTES, 0, decode_q4_0, NULL},
    {"Q4_1", 3, -1, SMALL, Q4_1_BYTES, 0, decode_q4_1, NULL},
    {"Q4_K", 12, -1, LARGE, Q4_K_BYTES, 0, decode_q4_k, NULL},
    {"Q6_K", 14, -1, LARGE, Q6_K_BYTES, 0, decode_q6_k, NULL},
};
enum { TYPES = sizeof types / sizeof *types };

const GgufType *gguf_type(uint32_t code) {
    for (int i = 0; i < TYPES; i++)
        if (types[i].code == code) return &types[i];
    return NULL;
}

const GgufType *gguf_type_named(const char *name) {
    for (int i = 0; i < TYPES; i++)
        if (!strcmp(types[i].name, name)) return &types[i];
    return NULL;
}

/* Experts in MXFP4 (OCP Microscaling Formats 1.0), as in OpenAI's folders of gpt-oss: a stack of
 * matrices NAME [experts, rows, columns] is stored as NAME_blocks [experts, rows, columns / 32, 16],
 * two e2m1 values a byte, the first one in the low bits, and NAME_scales [experts, rows, columns /
 * 32], an e8m0 exponent for 32 values. bf16 holds the products of values and
 * scales exactly. Owns nothing. */
#include <math.h>
#include <string.h>

#include "base/bf16.h"
#include "base/element.h"
#include "base/memory.h"
#include "formats/hf_internal.h"

enum { BLOCK = 32, BIAS = 127, NO_NUMBER = 255, MOST_EXPONENT = 2 }; /* e2m1's largest power of two is 2^2 */

bool hf_check_mxfp4(const ModelConfig *c, Error *error) {
    const HfClass *class = hf_class(c);
    if (!class->reads_mxfp4)
        return error_set(error, ERROR_USAGE,
            "dtype=mxfp4: transformers does not read experts of %s in MXFP4, only those of gpt_oss: set dtype=same", class->architecture);
    if (c->width % BLOCK || c->ffn % BLOCK)
        return error_set(error, ERROR_USAGE, "dtype=mxfp4: model.width=%lld and model.ffn=%lld must be multiples of %d: set dtype=same",
            (long long)c->width, (long long)c->ffn, BLOCK);
    return true;
}

json_t *hf_mxfp4_config(void) {
    json_t *config = json_pack("{s:s, s:[s, s, s, s]}", "quant_method", "mxfp4", "modules_to_not_convert", "model.layers.*.self_attn",
        "model.layers.*.mlp.router", "model.embed_tokens", "lm_head");
    if (!config) memory_refused(1);
    return config;
}

void hf_list_mxfp4(HfTensorList *list, const HfParameter *parameter) {
    const Parameter *p = parameter->p;
    if (p->rank != 3) hf_list_stacked(list, parameter);
    for (int scales = 0; scales < 2 && p->rank == 3; scales++) {
        HfTensor *tensor = hf_append(list, memory_format("%s_%s", p->name, scales ? "scales" : "blocks"), parameter);
        tensor->form = scales ? HF_FP4_SCALES : HF_FP4;
        tensor->transposed = false;
        memcpy(tensor->shape, p->shape, sizeof p->shape);
        tensor->shape[2] = p->shape[2] / BLOCK;
        if (scales) tensor->count = p->count / BLOCK;
        else tensor->shape[tensor->rank++] = BLOCK / 2;
    }
}

/* Dequantizes a row. */
static void read_row(size_t to, void *target, int64_t first, const uint8_t *blocks, const uint8_t *scales, int64_t columns) {
    static const float numbers[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int64_t b = 0; b < columns / BLOCK; b++) {
        const float scale = scales[b] == NO_NUMBER ? NAN : ldexpf(1, scales[b] - BIAS);
        for (int64_t c = b * BLOCK; c < (b + 1) * BLOCK; c++) {
            int byte = blocks[c / 2];
            element_set(to, target, first + c, scale * numbers[c % 2 ? byte >> 4 : byte & 15]);
        }
    }
}

void hf_read_mxfp4(size_t to, void *target, const HfTensor *item, const uint8_t *blocks, const uint8_t *scales) {
    const int64_t columns = item->shape[item->rank - 2] * BLOCK;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < item->count / columns; r++) {
        int64_t stored = hf_stored_row(item, r);
        read_row(to, target, r * columns, blocks + stored * columns / 2, scales + stored * columns / BLOCK, columns);
    }
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

/* Returns the scale of a block: the largest power of two in it, divided by that of e2m1. */
static int scale_of(const float *block) {
    float amax = 0;
    int exponent;
    for (int i = 0; i < BLOCK; i++) amax = fmaxf(amax, fabsf(block[i]));
    frexpf(amax, &exponent);
    int scale = exponent - 1 - MOST_EXPONENT + BIAS;
    return scale < 0 ? 0 : scale;
}

/* Returns the nearest e2m1 number, ties to even; numbers above 6 become 6. */
static int nearest(float x) {
    float size = fabsf(x);
    int number = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) + (size >= 3.5f) + (size > 5);
    return number | (signbit(x) ? 8 : 0);
}

static void write_block(const float *values, bool half, bool scales, uint8_t *made) {
    float block[BLOCK];
    for (int i = 0; i < BLOCK; i++) block[i] = half ? bf16_to_float(bf16_from_float(values[i])) : values[i];
    int scale = scale_of(block);
    if (scales) *made = (uint8_t)scale;
    for (int i = 0; i < BLOCK && !scales; i += 2)
        made[i / 2] = (uint8_t)(nearest(ldexpf(block[i], BIAS - scale)) | nearest(ldexpf(block[i + 1], BIAS - scale)) << 4);
}

void hf_write_mxfp4(const HfTensor *tensor, const float *values, int64_t columns, bool half, uint8_t *made) {
    const bool scales = tensor->form == HF_FP4_SCALES;
    const int64_t rows = tensor->count * (scales ? BLOCK : 1) / columns, unit = scales ? 1 : BLOCK / 2;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < columns / BLOCK; b++)
            write_block(values + r * columns + b * BLOCK, half, scales, made + (hf_stored_row(tensor, r) * (columns / BLOCK) + b) * unit);
}

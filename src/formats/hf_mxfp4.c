/* Experts in MXFP4 (OCP Microscaling Formats 1.0), as in OpenAI's folders of gpt-oss: a stack of
 * matrices NAME [experts, rows, columns] is stored as NAME_blocks [experts, rows, columns / 32, 16],
 * two e2m1 values a byte, the first one in the low bits, and NAME_scales [experts, rows, columns /
 * 32], an e8m0 exponent for 32 values. bf16 holds their products exactly. Owns nothing. */
#include <math.h>
#include <string.h>

#include "base/element.h"
#include "base/memory.h"
#include "formats/hf_internal.h"

enum { BLOCK = 32, BIAS = 127, NO_NUMBER = 255 };

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
    for (int64_t c = 0; c < columns; c++) {
        int scale = scales[c / BLOCK], byte = blocks[c / 2];
        float number = numbers[c % 2 ? byte >> 4 : byte & 15];
        element_set(to, target, first + c, scale == NO_NUMBER ? NAN : ldexpf(number, scale - BIAS));
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

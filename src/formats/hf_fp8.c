/* Hugging Face folders in FP8. smelt writes the layout that vLLM and transformers both read:
 * compressed-tensors' "float-quantized". The matrix NAME.weight [out, in] of a linear layer is
 * stored as OCP e4m3 values, with NAME.weight_scale [out, 1] in fp32. An element is its
 * quantized value times the scale of its row. Scales are powers of two, so they are exact in
 * bf16 too. The quantized values equal those of recipe `row` (ops/fp8/rule.c) for the same
 * weights.
 *
 * smelt reads DeepSeek-V3's layout (arXiv 2412.19437, section 3.3.2): a matrix NAME [rows, columns] in
 * e4m3, and NAME_scale_inv [rows / 128, columns / 128], rounded up, by which the elements of a block
 * are multiplied. Owns nothing. */
#include <math.h>
#include <string.h>

#include "base/bf16.h"
#include "base/element.h"
#include "base/float8.h"
#include "base/memory.h"
#include "formats/hf_internal.h"

enum { BLOCK_SIDE = 128 };
enum { UNIT = 16 }; /* sizes of matrices must be a multiple of this, as fp8 matrix units need */

bool hf_check_fp8(const ModelConfig *c, Error *error) {
    const HfClass *class = hf_class(c);
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"model.width", c->width}, {"model.ffn", c->ffn}, {"model.heads times model.head_dim", c->heads * c->head_dim},
        {"model.kv_heads times model.head_dim", c->kv_heads * c->head_dim}};
    if (!class->runs_fp8)
        return error_set(error, ERROR_USAGE,
            "dtype=fp8: vLLM and transformers do not both read %s in FP8; they read models of the family llama without experts: set "
            "dtype=same",
            class->architecture);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value % UNIT)
            return error_set(error, ERROR_USAGE, "dtype=fp8: %s is %lld, which is not a multiple of %d: set dtype=same", sizes[i].name,
                (long long)sizes[i].value, UNIT);
    return true;
}

/* Activations are cast dynamically, by rows. */
json_t *hf_fp8_config(void) {
    json_t *config = json_pack("{s:s, s:s, s:s, s:[s], s:{s:{s:[s], s:{s:i, s:s, s:s, s:b, s:b}, s:{s:i, s:s, s:s, s:b, s:b}}}}",
        "quant_method", "compressed-tensors", "format", "float-quantized", "quantization_status", "compressed", "ignore", "lm_head",
        "config_groups", "group_0", "targets", "Linear", "weights", "num_bits", 8, "type", "float", "strategy", "channel", "symmetric", 1,
        "dynamic", 0, "input_activations", "num_bits", 8, "type", "float", "strategy", "token", "symmetric", 1, "dynamic", 1);
    if (!config) memory_refused(1);
    return config;
}

HfTensorList hf_fp8_tensors(const HfTensorList *from, const Graph *graph) {
    HfTensorList list = {.items = memory_allocate((2 * from->count + 1) * sizeof *list.items)};
    for (size_t i = 0; i < from->count; i++) {
        HfTensor tensor = from->items[i];
        bool matrix = graph->parameters[tensor.parameter].kind == PARAMETER_MATRIX;
        tensor.name = memory_copy_string(tensor.name);
        tensor.form = matrix ? HF_QUANTIZED : HF_NUMBERS;
        list.items[list.count++] = tensor;
        if (!matrix) continue;
        tensor.name = memory_format("%s_scale", tensor.name);
        tensor.form = HF_SCALES;
        tensor.shape[1] = 1;
        tensor.count = tensor.shape[0];
        list.items[list.count++] = tensor;
    }
    return list;
}

void hf_fp8_cast(const float *values, int64_t rows, int64_t columns, bool half, uint8_t *quantized, float *scales) {
    const Fp8Format format = fp8_format(FP8_E4M3, false);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = values + r * columns;
        float amax = 0;
        for (int64_t i = 0; i < columns; i++) amax = fmaxf(amax, fabsf(row[i]));
        if (half) amax = bf16_to_float(bf16_from_float(amax));
        float m = fp8_multiplier(amax, fp8_largest(FP8_E4M3, false), true);
        if (scales) scales[r] = 1 / m;
        for (int64_t i = 0; quantized && i < columns; i++) {
            float x = half ? bf16_to_float(bf16_from_float(row[i])) : row[i];
            quantized[r * columns + i] = fp8_from_float(x * m, format);
        }
    }
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

int64_t hf_fp8_blocks(int64_t size) { return (size + BLOCK_SIDE - 1) / BLOCK_SIDE; }

bool hf_fp8_reads(const json_t *quantization) {
    const char *method = json_string_value(json_object_get(quantization, "quant_method"));
    const char *format = json_string_value(json_object_get(quantization, "fmt"));
    json_auto_t *block = json_pack("[i, i]", BLOCK_SIDE, BLOCK_SIDE);
    return method && !strcmp(method, "fp8") && (!format || !strcmp(format, "e4m3")) &&
           json_equal(json_object_get(quantization, "weight_block_size"), block);
}

void hf_fp8_read(size_t to, void *target, const HfTensor *item, const uint8_t *values, const float *scales) {
    const Fp8Format format = fp8_format(FP8_E4M3, false);
    const int64_t rows = hf_rows(item), columns = hf_columns(item), wide = hf_fp8_blocks(columns), high = hf_fp8_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < item->count / columns; r++) {
        const float *scale = scales + (r / rows * high + r % rows / BLOCK_SIDE) * wide;
        for (int64_t c = 0; c < columns; c++)
            element_set(to, target, r * columns + c, fp8_to_float(values[r * columns + c], format) * scale[c / BLOCK_SIDE]);
    }
}

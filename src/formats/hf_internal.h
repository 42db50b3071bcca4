/* Shared by the files that read and write Hugging Face folders and GGUF files, in addition to the
 * classes (formats/hf_class.h). */
#pragma once

#include "ckpt/ckpt.h"
#include "gguf/gguf.h"
#include "formats/hf.h"
#include "formats/hf_class.h"

/* -- config.json (hf_config.c) ------------------------------------------------------------------------------------- */

/* Reads the content of config.json; the resulting model has passed config_check. Messages do not
 * name the file. *warnings is one allocated line for the user about fields without effect, or NULL,
 * even after an error. ERROR_CHECKPOINT. */
bool hf_parse_config(const json_t *object, ModelConfig *model, Precision *precision, char **warnings, Error *error);
/* Returns the tables for an object of a class. */
const HfTables *hf_tables(const HfClass *class, const json_t *object);
/* Returns the deciding row; NULL if no table has the field. */
const HfField *hf_find_field(const HfTables *tables, const char *name);
/* Returns the row that sets the member of ModelConfig at `offset`, or NULL. */
const HfField *hf_find_member(const HfTables *tables, size_t offset);
/* Returns the name under which an object has a field: a synonym if it uses one. */
const char *hf_used_name(const HfTables *tables, const json_t *object, const char *name);
/* Returns the stem of weight files: "model", or "diffusion_pytorch_model" in folders of
 * diffusers. */
const char *hf_stem(const ModelConfig *config);

/* -- Tensors (hf_tensors.c) ---------------------------------------------------------------------------------------- */

/* Tensors that a layer for multi-token prediction shares with the model, and their copies in the layer. */
#define HF_TABLE "model.embed_tokens.weight"
#define HF_HEAD "lm_head.weight"
#define HF_PREDICTION_TABLE "embed_tokens.weight"
#define HF_PREDICTION_HEAD "shared_head.head.weight"

/* Returns the stored row that holds row `row` of the parameter. */
static inline int64_t hf_stored_row(const HfTensor *tensor, int64_t row) {
    int64_t half = tensor->paired / 2;
    return half ? row - row % tensor->paired + row % half * 2 + row % tensor->paired / half : row;
}
/* Returns the elements of a row of the parameter, and the rows of each of its matrices. */
static inline int64_t hf_columns(const HfTensor *tensor) {
    return tensor->vectors ? 1 : tensor->shape[tensor->rank - (tensor->transposed ? 2 : 1)];
}
static inline int64_t hf_rows(const HfTensor *tensor) {
    return tensor->shape[tensor->rank - (tensor->transposed || tensor->vectors ? 1 : 2)];
}
/* Returns whether the elements of the parameter are stored in another order. */
static inline bool hf_is_rearranged(const HfTensor *tensor) { return tensor->transposed || tensor->paired; }
/* Returns the stored column that holds column `column` of a GGUF tensor with `columns` columns. */
static inline int64_t hf_stored_column(const HfTensor *tensor, int64_t column, int64_t columns) {
    int64_t unit = tensor->tile_columns;
    if (!unit) return column;
    int64_t block = column / unit, blocks = columns / unit / tensor->tile_groups;
    return (block % blocks * tensor->tile_groups + block / blocks) * unit + column % unit;
}
/* Returns whether the elements of a GGUF tensor's rows are stored in another order or form. */
static inline bool hf_changes_rows(const HfTensor *tensor) { return tensor->tile_columns || tensor->decays; }
/* Returns the stored element that holds element `column` of row `row` of a parameter's matrix. */
static inline int64_t hf_stored_element(const HfTensor *tensor, int64_t row, int64_t column) {
    int64_t stored = hf_stored_row(tensor, row);
    return tensor->transposed ? column * hf_rows(tensor) + stored : stored * hf_columns(tensor) + column;
}
HfTensor hf_tensor(const Parameter *parameter);
/* Returns the elements of the stored tensor: values in MXFP4 are two to a byte. */
static inline int64_t hf_elements(const HfTensor *tensor) { return tensor->form == HF_FP4 ? tensor->count / 2 : tensor->count; }
/* Returns the tensors of all parameters, in parameter order, as `list` names them; NULL: as
 * transformers writes the class today. */
HfTensorList hf_tensors(const ModelConfig *config, const Graph *graph, HfLister *list);
/* Lists tensors under llama.cpp's names in GGUF files. */
HfLister hf_list_gguf;
void hf_tensors_free(HfTensorList *list);

/* Returns the tensor of the reader's folder that equals `wanted` (an item of the class's own list)
 * in content and order, or NULL. `data` points into the mapped file. */
const StoredTensor *hf_reader_stored(const HfReader *reader, const HfTensor *wanted);
/* Returns the type of (the first part of) a parameter in the folder; F32 if it is not there. */
StoredType hf_reader_type(const HfReader *reader, int parameter);
/* Marks a tensor as used: its pages need not stay in memory. */
void hf_reader_done(const HfReader *reader, const HfTensor *wanted);

/* Converts elements of a file (F32, F16 or BF16, possibly unaligned) to elements of `to` bytes
 * (base/element.h). In hf_read.c. */
void hf_convert(size_t to, void *target, StoredType from, const char *source, int64_t count);

/* Returns "quantization_config" of config.json; the caller owns the reference. */
json_t *hf_mxfp4_config(void);
/* Makes a tensor in MXFP4, values or scales, of a parameter's values, rounded to bf16 first if
 * `half`. */
void hf_write_mxfp4(const HfTensor *tensor, const float *values, int64_t columns, bool half, uint8_t *made);
/* Dequantizes the values of an item in MXFP4 (hf_mxfp4.c) to elements of `to` bytes. */
void hf_read_mxfp4(size_t to, void *target, const HfTensor *item, const uint8_t *blocks, const uint8_t *scales);

/* -- Writing models (hf.c) ----------------------------------------------------------------------------------------- */

/* The source of parameter values: the master's memory, or `values`, which holds parameter `loaded`
 * of a reader or of the initial weights; -1: none yet. */
typedef struct HfWriter {
    const HfExport *export;
    const Graph *graph;
    float *values;
    int64_t capacity;
    int loaded;
} HfWriter;
/* `graph` is a graph of the export's model. ERROR_MEMORY. */
bool hf_writer_start(HfWriter *writer, const HfExport *export, const Graph *graph, Error *error);
/* Returns the elements of a parameter, valid until the next call. */
const float *hf_writer_values(HfWriter *writer, int parameter);
void hf_writer_end(HfWriter *writer); /* also accepts a zeroed writer */
/* Refuses load-balancing biases that differ between experts if the class cannot store them, as
 * Mixtral's cannot. */
bool hf_check_biases(const HfExport *export, const Graph *graph, Error *error);

/* -- FP8 (hf_fp8.c) ------------------------------------------------------------------------------------------------ */

/* Returns "quantization_config" of config.json; the caller owns the reference. */
json_t *hf_fp8_config(void);
/* Returns the tensors of an FP8 folder for the tensors of its class's own list: matrices as
 * quantized values, each followed by its scales. */
HfTensorList hf_fp8_tensors(const HfTensorList *list, const Graph *graph);
/* Casts values [rows, columns], rounded to bf16 first if `half`, to e4m3 with one scale per row:
 * `quantized` [rows, columns] and `scales` [rows]; either may be NULL. Rows with infinity or NaN become
 * NaN. */
void hf_fp8_cast(const float *values, int64_t rows, int64_t columns, bool half, uint8_t *quantized, float *scales);

/* Returns whether smelt reads folders with this quantization_config. */
bool hf_fp8_reads(const json_t *quantization);
/* Returns the number of blocks in `size` rows or columns. */
int64_t hf_fp8_blocks(int64_t size);
/* Dequantizes an item, a matrix or a stack of matrices, to elements of `to` bytes. */
void hf_fp8_read(size_t to, void *target, const HfTensor *item, const uint8_t *values, const float *scales);

/* -- GGUF files (gguf_config.c) ------------------------------------------------------------------------------------- */

/* hf_read for a GGUF file: `content` is a config.json with only the tokens and the type that its
 * keys give. */
bool gguf_read_model(const char *path, HfModel *model, Error *error);
/* Writes the architecture and its keys. */
void gguf_put_model(GgufWriter *writer, const ModelConfig *config);
/* Returns whether a file of the model has a tensor of RoPE frequency divisors, [head_dim / 2] in
 * F32, and writes it to `divisors` (may be NULL). */
bool gguf_rope_factors(const ModelConfig *config, float *divisors);
#define GGUF_ROPE_FACTORS "rope_freqs.weight" /* its name */

/* -- Tokenizers (hf_tokenizer.c) ------------------------------------------------------------------------------------ */

/* Returns tokenizer_config.json for any tokenizer.json. `end` is the spelling of the end-of-text
 * token, which is also the padding token; NULL: none. */
json_t *hf_tokenizer_config(const ModelConfig *config, const char *end);

/* What the files that read and write Hugging Face folders and GGUF files share beside the classes (model/hf_class.h). */
#pragma once

#include "ckpt/ckpt.h"
#include "gguf/gguf.h"
#include "model/hf.h"
#include "model/hf_class.h"

/* -- config.json (hf_config.c) ------------------------------------------------------------------------------------- */

/* Reads the content of config.json; what it says of the model has passed config_check. Messages do not name the
 * file. *warnings is one allocated line for the user about fields without effect, or NULL, in any case.
 * ERROR_CHECKPOINT. */
bool hf_parse_config(const json_t *object, ModelConfig *model, Precision *precision, char **warnings, Error *error);
/* The tables for an object of a class. */
const HfTables *hf_tables(const HfClass *class, const json_t *object);
/* The row that decides; NULL when no table has the field. */
const HfField *hf_find_field(const HfTables *tables, const char *name);
/* The row that sets the member of ModelConfig at `offset`; NULL when none does. */
const HfField *hf_find_member(const HfTables *tables, size_t offset);
/* The name by which an object gives a field: that of a synonym where it has one. */
const char *hf_used_name(const HfTables *tables, const json_t *object, const char *name);
/* What files of weights are called: "model", or "diffusion_pytorch_model" in folders of diffusers. */
const char *hf_stem(const ModelConfig *config);

/* -- Tensors (hf_tensors.c) ---------------------------------------------------------------------------------------- */

/* The stored row that is row `row` of the parameter. */
static inline int64_t hf_stored_row(const HfTensor *tensor, int64_t row) {
    int64_t half = tensor->paired / 2;
    return half ? row - row % tensor->paired + row % half * 2 + row % tensor->paired / half : row;
}
/* The tensors of all parameters, in their order, as `list` names them; NULL: as transformers writes the class today. */
HfTensorList hf_tensors(const ModelConfig *config, const Graph *graph, HfLister *list);
/* As llama.cpp calls them in GGUF files. */
HfLister hf_list_gguf;
void hf_tensors_free(HfTensorList *list);

/* The tensor of the reader's folder that holds just what `wanted`, an item of the class's own list, does, in the same
 * order; NULL when none does. `data` is in the mapped file. */
const StoredTensor *hf_reader_stored(const HfReader *reader, const HfTensor *wanted);
/* The type of (the first part of) a parameter in the folder; F32 where it is not there. */
StoredType hf_reader_type(const HfReader *reader, int parameter);
/* It was used: its pages need not stay in memory. */
void hf_reader_done(const HfReader *reader, const HfTensor *wanted);

/* Converts elements of a file, F32, F16 or BF16 and perhaps unaligned, to elements of `to` bytes (base/element.h).
 * In hf_read.c. */
void hf_convert(size_t to, void *target, StoredType from, const char *source, int64_t count);

/* -- Writing models (hf.c) ----------------------------------------------------------------------------------------- */

/* Where the values of parameters come from: the master's memory, or `values`, which holds parameter `loaded` of a
 * reader; -1: none yet. */
typedef struct HfWriter {
    const HfExport *export;
    const Graph *graph;
    float *values;
    int64_t capacity;
    int loaded;
} HfWriter;
/* `graph` is one of the export's model. ERROR_MEMORY. */
bool hf_writer_start(HfWriter *writer, const HfExport *export, const Graph *graph, Error *error);
/* The elements of a parameter, valid until the next call. */
const float *hf_writer_values(HfWriter *writer, int parameter);
void hf_writer_end(HfWriter *writer); /* also of a zeroed one */
/* Balancing biases that differ between experts, which Mixtral's class has not, are refused. */
bool hf_check_biases(const HfExport *export, const Graph *graph, Error *error);

/* -- FP8 (hf_fp8.c) ------------------------------------------------------------------------------------------------ */

/* "quantization_config" of config.json; the caller owns the reference. */
json_t *hf_fp8_config(void);
/* The tensors of a folder in FP8, of those in its class's own list: matrices as codes, each with its scales behind it. */
HfTensorList hf_fp8_tensors(const HfTensorList *list, const Graph *graph);
/* Casts values [rows, columns], first rounded to bf16 if `half`, to e4m3 with one scale a row: codes [rows, columns] and
 * scales [rows], either NULL if it is not wanted. Rows with infinity or NaN give codes of NaN. */
void hf_fp8_cast(const float *values, int64_t rows, int64_t columns, bool half, uint8_t *codes, float *scales);

/* -- GGUF files (gguf_config.c) ------------------------------------------------------------------------------------- */

/* hf_read of a GGUF file: `content` is a config.json of what its keys say of tokens and type alone. */
bool gguf_read_model(const char *path, HfModel *model, Error *error);
/* Puts the architecture and its keys. */
void gguf_put_model(GgufWriter *writer, const ModelConfig *config);
/* Whether a file of the model has a tensor of divisors of rotary frequencies, [head_dim / 2] in F32, which `divisors`
 * (may be NULL) receives. */
bool gguf_rope_factors(const ModelConfig *config, float *divisors);
#define GGUF_ROPE_FACTORS "rope_freqs.weight" /* its name */

/* -- Tokenizers (hf_tokenizer.c) ------------------------------------------------------------------------------------ */

/* tokenizer_config.json beside any tokenizer.json. `end`, the spelling of the token that ends a text, also pads; NULL:
 * there is none. */
json_t *hf_tokenizer_config(const ModelConfig *config, const char *end);

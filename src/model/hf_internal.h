/* What the files that read and write Hugging Face folders and GGUF files share: the classes of transformers and diffusers that we know,
 * and under which names and in which parts a class stores our parameters. */
#pragma once

#include "ckpt/ckpt.h"
#include "gguf/gguf.h"
#include "model/hf.h"

typedef enum HfClass { HF_ZAYA, HF_LLAMA, HF_MISTRAL, HF_MIXTRAL, HF_QWEN2, HF_QWEN3, HF_MPT, HF_GPT2, HF_FLUX, HF_CLASS_COUNT } HfClass;

/* -- config.json (hf_config.c) ------------------------------------------------------------------------------------- */

/* Reads the content of config.json; what it says of the model has passed config_check. Messages do not name the
 * file. *warnings is one allocated line for the user about fields without effect, or NULL, in any case.
 * ERROR_CHECKPOINT. */
bool hf_parse_config(const json_t *object, ModelConfig *model, Precision *precision, char **warnings, Error *error);
/* What the logits of an mpt are multiplied with (logit_scale): 1 when it is absent, NaN when it makes no sense. */
double hf_logit_scale(const json_t *object, const ModelConfig *config);
const char *hf_architecture(HfClass class); /* "ZayaForCausalLM" */
const char *hf_model_type(HfClass class);   /* "zaya"; of a class of diffusers NULL */
/* The class that a configuration is written as. */
HfClass hf_class(const ModelConfig *config);
/* What files of weights are called: "model", or "diffusion_pytorch_model" in folders of diffusers. */
const char *hf_stem(const ModelConfig *config);
/* Whether positions are scaled, and queries and keys with them. */
static inline bool hf_is_scaled(const ModelConfig *c) { return c->rope_factor > 1 || c->rope_attention_factor != 1; }
/* Adds the fields of scaled positions (hf_rope.c). */
void hf_put_scaling(json_t *rope, const ModelConfig *config);
/* Sets `key` and takes over the reference. */
void hf_put(json_t *object, const char *key, json_t *value);
static inline void hf_put_integer(json_t *object, const char *key, int64_t value) { hf_put(object, key, json_integer(value)); }

/* -- Tensors (hf_tensors.c) ---------------------------------------------------------------------------------------- */

/* How tensors are called: as transformers writes them today; as Zyphra's first ZAYA1 folders call them, with
 * attention and experts as layers of their own; without the leading "transformer.", as in OpenAI's GPT-2 folders; or as
 * llama.cpp calls them in GGUF files. */
typedef enum HfLayout { LAYOUT_NATIVE, LAYOUT_LEGACY_ZAYA, LAYOUT_BARE, LAYOUT_GGUF } HfLayout;
/* Tensors that only folders in the second or third layout have. */
#define HF_LEGACY_MARK "model.final_norm.weight"
#define HF_BARE_MARK "wte.weight"

/* What a stored tensor has of its parameter: its numbers, or, of a matrix in FP8 (hf_fp8.c), codes or the scales of rows. */
typedef enum HfForm { HF_NUMBERS, HF_CODES, HF_SCALES } HfForm;

/* A stored tensor, or a part of one: `count` elements of a parameter from `first` on. */
typedef struct HfTensor {
    char *name;
    int parameter; /* index in the graph */
    int64_t first, count;
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; /* as stored */
    bool transposed;                /* stored as [columns, rows] of the parameter */
    int64_t offset;                 /* elements of the stored tensor before these */
    HfForm form;                    /* of what is written; what is read are numbers */
    int64_t paired;                 /* rows of a head of which row i and row i + paired / 2 are stored side by side; 0: none are */
} HfTensor;
/* The stored row that is row `row` of the parameter. */
static inline int64_t hf_stored_row(const HfTensor *tensor, int64_t row) {
    int64_t half = tensor->paired / 2;
    return half ? row - row % tensor->paired + row % half * 2 + row % tensor->paired / half : row;
}
typedef struct HfTensorList {
    HfTensor *items;
    size_t count;
} HfTensorList;

/* Every tensor of the model's folder, in the order of the parameters. Parameters that the class does not have are
 * left out. */
HfTensorList hf_tensors(const ModelConfig *config, const Graph *graph, HfLayout layout);
void hf_tensors_free(HfTensorList *list);

/* The tensor of the reader's folder that holds just what `wanted`, an item of LAYOUT_NATIVE, does, in the same
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
/* The tensors of a folder in FP8, of those in LAYOUT_NATIVE: matrices as codes, each with its scales behind it. */
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

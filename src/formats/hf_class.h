/* Classes of models in transformers and diffusers: one HfClass each, in the file of its family
 * (src/families/). An HfClass defines the fields of config.json, the names of tensors, and the keys
 * of GGUF files. The readers and writers of folders, PEFT adapters and GGUF files use it; none of
 * them names a class. Owns nothing. */
#pragma once

#include <jansson.h>
#include <stdarg.h>

#include "config/family.h"
#include "gguf/gguf.h"
#include "graph/graph.h"

typedef struct HfClass HfClass;

/* -- Fields of config.json (hf_fields.c) --------------------------------------------------------------------------- */

/* The state of reading one object. Reading keeps the first error and continues, so readers are
 * plain lists of fields. */
typedef struct HfFieldReader {
    const json_t *object;
    const char *path; /* prefix of field names in messages: "" or "attn_config." */
    const HfClass *class;
    ModelConfig *model;
    char **warnings; /* one allocated line for the user; NULL: none */
    Error *error;
    bool good;
} HfFieldReader;

typedef enum HfFieldUse {
    FIELD_INTEGER,   /* at least 1, to an int64_t of ModelConfig */
    FIELD_REAL,      /* to a double of ModelConfig */
    FIELD_BOOLEAN,   /* to a bool of ModelConfig */
    FIELD_FIXED,     /* refused unless its value is one of `values` */
    FIELD_READ,      /* by a function */
    FIELD_SYNONYM,   /* another name of the field that `values` names; it takes precedence */
    FIELD_NO_EFFECT, /* no effect on logits, loss and gradients, or read together with another field */
} HfFieldUse;

/* `values` is a list of words. INTEGER and REAL: the default, and "null" if null is allowed; null
 * reads as 0. BOOLEAN: the default. FIXED: all accepted values, the default first. */
typedef struct HfField {
    const char *name;
    HfFieldUse use;
    const char *values;
    size_t offset;                                                         /* in ModelConfig */
    void (*read)(HfFieldReader *r, const char *name, const json_t *value); /* `value` NULL: absent */
} HfField;

/* Rows of a table; END closes it. */
#define INTEGER(name, member, values) {name, FIELD_INTEGER, values, offsetof(ModelConfig, member), NULL}
#define REAL(name, member, values) {name, FIELD_REAL, values, offsetof(ModelConfig, member), NULL}
#define BOOLEAN(name, member, values) {name, FIELD_BOOLEAN, values, offsetof(ModelConfig, member), NULL}
#define FIXED(name, values) {name, FIELD_FIXED, values, 0, NULL}
#define READ(name, function) {name, FIELD_READ, "", 0, function}
#define NO_EFFECT(name) {name, FIELD_NO_EFFECT, "", 0, NULL}
#define SYNONYM(name, of) {name, FIELD_SYNONYM, of, 0, NULL}
#define END {NULL, FIELD_NO_EFFECT, "", 0, NULL}

/* The first table that has a field decides. */
enum { HF_TABLES = 6 };
typedef struct HfTables { const HfField *rows[HF_TABLES]; } HfTables;

/* Shared tables: fields of every class of transformers; metadata that any of its objects may carry;
 * fields of Llama-like decoders. */
extern const HfField hf_shared_fields[], hf_metadata_fields[], hf_decoder_fields[];

/* Reads the reader's object into its model. */
void hf_read_fields(HfFieldReader *r, const HfTables *tables);
/* Fails with "PATH.NAME REASON". */
void hf_refuse(HfFieldReader *r, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
void hf_warn(HfFieldReader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fields of classes with the gated delta rule, and further fields of such classes with experts
 * (hf_delta.c). The latter need the number of layers and the experts per token. hf_put_delta
 * writes both. */
extern const HfField hf_delta_fields[], hf_delta_expert_fields[];
void hf_put_delta(json_t *object, const ModelConfig *config);

/* -- What functions that read fields have in common (hf_config.c, hf_rope.c) --------------------------------------- */

static inline const json_t *hf_field(const HfFieldReader *r, const char *name) { return json_object_get(r->object, name); }
/* Return the value of a field, or `fallback` if it is absent; an integer is at least `least`. */
int64_t hf_integer_or(HfFieldReader *r, const char *name, int64_t least, int64_t fallback);
bool hf_boolean_or(HfFieldReader *r, const char *name, bool fallback);
/* Reads the activation function of the MLP. */
void hf_read_activation(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_padding(HfFieldReader *r, const char *name, const json_t *value);
/* The same for a class whose default is token `fallback`. */
void hf_read_padding_or(HfFieldReader *r, const char *name, const json_t *value, int64_t fallback);
/* Checks that layer_types has an entry per layer; it has no effect. */
void hf_read_unused_layers(HfFieldReader *r, const char *name, const json_t *value);
/* Reads layer_types if all layers have the window, or none has: removes the window or requires
 * it. */
void hf_read_layer_types(HfFieldReader *r, const char *name, const json_t *types);
/* The names in layer_types of layers with full attention and with the window. */
typedef struct HfLayerNames { const char *full, *sliding; } HfLayerNames;
/* Reads layer_types if layers differ: window_period and window_first, or 1 and 0 if all layers are
 * alike. Layers with the window must be at even distances, or with `skips` those without it
 * (window_skips). `period` is the least one, if there is no second such layer. Returns the number of
 * layers with the window; -1 after a refusal. */
int64_t hf_read_windows(HfFieldReader *r, const char *name, const json_t *types, const HfLayerNames *names, int64_t period, bool skips);
/* Reads layer_types, and sliding_window, whose default is `window`. If layer_types is absent or null,
 * every `period`th layer has full attention. */
void hf_read_usual_windows(HfFieldReader *r, const char *name, const json_t *types, int64_t period, int64_t window);
/* "full_attention" and "sliding_attention", the names of most classes. */
extern const HfLayerNames hf_sliding_names;
/* Default RoPE bases by type of layer, and the field outside rope_parameters that holds the base of
 * sliding layers; NULL: none. */
typedef struct HfLayerThetas {
    double full, sliding;
    const char *field;
} HfLayerThetas;
/* Reads rope_parameters, which hold settings for each type of layer; rope_scaling and rope_theta
 * beside them apply to full layers. The window must have been read. */
void hf_read_layer_ropes(HfFieldReader *r, const HfLayerThetas *thetas);
/* Reads the coefficient of the router's loss over all layers, with its default, and
 * output_router_logits: without it the loss does not count. Needs the experts per token. */
void hf_read_router_loss(HfFieldReader *r, const char *name, const json_t *value, double fallback);
/* Reads the number of layers before the first one with experts. */
void hf_read_dense_layers(HfFieldReader *r, const char *name, int64_t fallback);
/* Reads which layers have experts, from mlp_only_layers and decoder_sparse_step. The first two
 * such layers give the period. If only one layer has experts, the period is decoder_sparse_step,
 * or ends beyond the last layer. */
void hf_read_sparse_layers(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_rope(HfFieldReader *r, const char *name, const json_t *value);
/* The same for a class that rotates a part of each head, `fraction` by default. */
void hf_read_rope_part(HfFieldReader *r, const char *name, const json_t *value, double fraction);
/* Reads one object of RoPE settings at `path` (`rope` NULL: it is absent). `theta` and `fraction`
 * are the defaults of rope_theta and partial_rotary_factor; `theta` NAN: the object must have one.
 * Needs the model's sizes. */
void hf_read_rope_object(HfFieldReader *r, const char *path, const json_t *rope, double theta, double fraction);

/* -- Writing config.json ------------------------------------------------------------------------------------------- */

/* Sets `key` and takes ownership of the reference. */
void hf_put(json_t *object, const char *key, json_t *value);
static inline void hf_put_integer(json_t *object, const char *key, int64_t value) { hf_put(object, key, json_integer(value)); }
static inline void hf_put_text(json_t *object, const char *key, const char *value) { hf_put(object, key, json_string(value)); }
/* Writes the INTEGER, REAL and BOOLEAN rows of a table; an integer of 0 as null, if null is allowed. */
void hf_put_rows(json_t *object, const ModelConfig *config, const HfField *rows);
/* Writes the activation function of the MLP. */
void hf_put_activation(json_t *object, const char *key, const ModelConfig *config);
/* Writes the sizes of a Llama-like decoder. */
void hf_put_decoder(json_t *object, const ModelConfig *config);
/* Writes the fields of hf_read_router_loss and num_experts_per_tok. */
void hf_put_router(json_t *object, const ModelConfig *config);
/* Writes intermediate_size and the fields of hf_read_sparse_layers. */
void hf_put_sparse_layers(json_t *object, const ModelConfig *config);
/* Writes rope_theta and rope_scaling as separate fields. */
void hf_put_rope(json_t *object, const ModelConfig *config);
/* Returns whether RoPE positions, or queries and keys with them, are scaled. */
static inline bool hf_is_scaled(const ModelConfig *c) { return c->rope_factor > 1 || c->rope_attention_factor != 1; }
/* Adds the fields of scaled RoPE positions (hf_rope.c). */
void hf_put_scaling(json_t *rope, const ModelConfig *config);
/* Returns the RoPE settings of layers with the window, or of the others. */
json_t *hf_rope_object(const ModelConfig *config, bool window, bool scaled);
/* Writes sliding_window, layer_types and rope_parameters as hf_read_usual_windows and
 * hf_read_layer_ropes read them. */
void hf_put_sliding_layers(json_t *object, const ModelConfig *config);
/* Writes layer_types. */
void hf_put_layer_types(json_t *object, const ModelConfig *config, const HfLayerNames *names);

/* -- Tensors (hf_tensors.c) ---------------------------------------------------------------------------------------- */

/* The content of a stored tensor: the parameter's numbers; the quantized values or row scales of a
 * matrix in FP8 (hf_fp8.c), only written; or the values of a matrix in MXFP4 and, right after them in
 * the list, their scales (hf_mxfp4.c). */
typedef enum HfForm { HF_NUMBERS, HF_QUANTIZED, HF_SCALES, HF_FP4, HF_FP4_SCALES } HfForm;

/* A stored tensor, or a part of one: `count` elements of a parameter, starting at `first`. */
typedef struct HfTensor {
    char *name;
    int parameter; /* index in the graph */
    int64_t first, count;
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; /* as stored */
    bool transposed;                /* each matrix is stored as [columns, rows] of the parameter */
    bool vectors;                   /* a stack of vectors, whose rows have one element; false: a matrix or a stack of matrices */
    int64_t offset;                 /* elements of the stored tensor before this part */
    HfForm form;
    int64_t paired; /* rows of a head: of each `paired` rows, rows i and i + paired / 2 are stored next to each other; 0: not paired */
    /* GGUF files only. The columns of a row form tile_groups groups of blocks of tile_columns columns. A
     * stored row has the first block of each group, then the second block of each group, and so on. 0: the
     * same order. */
    int64_t tile_columns, tile_groups;
    bool decays; /* GGUF files only: the stored number is -exp(x) */
} HfTensor;
typedef struct HfTensorList {
    HfTensor *items;
    size_t count;
} HfTensorList;

/* A parameter to list under the names of a layout: its index in the graph, and the layers of its
 * model. */
typedef struct HfParameter {
    int index;
    const Parameter *p;
    const ModelConfig *config;
} HfParameter;

/* Appends the tensors of a parameter; none if the layout does not store it. */
typedef void HfLister(HfTensorList *list, const HfParameter *parameter);
/* Lists one tensor of the parameter's name. */
HfLister hf_list_native;
/* The same without load-balancing biases, if the class lacks them. */
HfLister hf_list_stacked;
/* Lists one tensor without a leading "transformer.", as in OpenAI's GPT-2 folders. */
HfLister hf_list_bare;
/* Appends one tensor called `name`; the list takes ownership of the name. */
HfTensor *hf_append(HfTensorList *list, char *name, const HfParameter *parameter);
/* Appends part `index` of `parts` equal parts of a stack of matrices; a part has 1 / parts of the
 * stack's rows. */
HfTensor *hf_append_part(HfTensorList *list, char *name, const HfParameter *parameter, int64_t index, int64_t parts);
/* Lists experts in MXFP4 (hf_mxfp4.c), other parameters as hf_list_stacked does. */
HfLister hf_list_mxfp4;
/* Lists the experts of a layer one by one, LAYERS.N.BLOCK.experts.E.NAME.weight, with `names` of the
 * gate, up and down projections, and the router as BLOCK.gate.weight; routers have no biases. Lists
 * other parameters as hf_list_native does. */
void hf_list_split_experts(HfTensorList *list, const HfParameter *parameter, const char *block, const char *const names[3]);
/* The same for mlp.experts.E.gate_proj, up_proj and down_proj. */
HfLister hf_list_experts;
/* Returns the layer of "LAYERS.N.REST" of a family and sets *rest to REST; -1 and the whole name
 * for other names. */
int hf_split_layer(const HfParameter *parameter, const char **rest);

/* A layout of folders other than those that the class's lister writes. */
typedef struct HfLayout {
    const char *mark; /* a tensor that only these folders have; with a leading dot: the end of its name */
    HfLister *list;
} HfLayout;
/* Experts stacked as ours, as transformers saves them with save_original_format=False. */
#define HF_STACKED {".mlp.experts.gate_up_proj", hf_list_stacked}

/* -- GGUF (gguf_config.c, hf_tensors.c) ---------------------------------------------------------------------------- */

typedef enum GgufRowUse {
    ROW_INTEGER,
    ROW_REAL,
    ROW_BOOLEAN, /* false if the file does not have it */
    ROW_READ,    /* by a function */
} GgufRowUse;

/* A key, without its architecture, and its setting; a row without a key ends a table. */
typedef struct GgufRow {
    const char *key;
    GgufRowUse use;
    size_t offset;     /* in ModelConfig */
    bool required;     /* a file without it is refused */
    const char *field; /* of config.json; NULL: a function sets it */
} GgufRow;
#define GGUF_AT(member) offsetof(ModelConfig, member)

/* Prefixes of a parameter's name, within a layer or outside layers, and of the tensor's name
 * (gguf-py: constants.py, tensor_mapping.py). A row without names ends a table. */
typedef struct GgufName { const char *ours, *gguf; } GgufName;

/* The state of reading the keys of a file. */
typedef struct GgufKeys {
    const Gguf *file;
    const HfClass *class;
    json_t *object; /* the config.json that the reader builds */
    Error *error;
} GgufKeys;

/* How llama.cpp names a class, and the keys that it reads for the class. */
typedef struct GgufClass {
    const char *architecture; /* "llama" */
    bool experts;             /* the class of this architecture that has experts */
    bool rotary;              /* has the keys of heads with RoPE */
    bool latent;              /* keys have latents (MLA): the class reads heads itself */
    bool rounds_bounds;       /* llama.cpp rounds yarn's bounds to whole channels, and the model does not */
    int scores;               /* the class of files with this expert_gating_func; 0: any */
    bool pairs;               /* RoPE rotates neighboring channels: rows of queries and keys are stored in another order */
    int64_t window_period;    /* every layer has the window except the last of each period; 0: llama.cpp has no window */
    const GgufRow *rows;      /* replace rows of all architectures, and of all with RoPE, that have the same key; NULL: none */
    const GgufName *names;    /* tensor names that differ from Llama's (hf_tensors.c); NULL: none */
    bool tiles_heads;         /* value head n of each key head is stored next to value head n of the next key head (hf_list_delta_gguf) */
    /* Appends the tensors of a parameter, REST of its name (hf_split_layer), that llama.cpp stores in
     * another form. Returns false if the parameter has the usual form. NULL: all parameters have it. */
    bool (*list)(HfTensorList *list, const HfParameter *parameter, const char *rest);
    /* Sets the fields that no row sets. NULL: none. */
    bool (*read)(const GgufKeys *keys);
    /* Writes the keys that no row writes. NULL: none. */
    void (*put)(GgufWriter *writer, const ModelConfig *model);
    /* ERROR_USAGE names the setting that llama.cpp cannot compute. NULL: llama.cpp computes all
     * that the class does. */
    bool (*check)(const ModelConfig *model, Error *error);
} GgufClass;

/* Returns the value of a key of the architecture; NULL if it is absent. */
const GgufValue *gguf_key_value(const GgufKeys *keys, const char *key);
/* Reads the number of a key that may be absent; *number is unchanged then. ERROR_CHECKPOINT. */
bool gguf_key_real(const GgufKeys *keys, const char *key, double *number);
bool gguf_key_integer(const GgufKeys *keys, const char *key, int64_t *number);
/* The same for a number that may be 0. */
bool gguf_key_count(const GgufKeys *keys, const char *key, int64_t *number);
/* llama.cpp's numbers of the functions of a router's scores. */
enum { GGUF_SOFTMAX = 1, GGUF_SIGMOID };
/* Refuses a file whose router does not have the scores of `sigmoid`. A file without the key has softmax scores. */
bool gguf_check_scores(const GgufKeys *keys, bool sigmoid);
/* Sets pad_token_id to the file's or to null, for classes whose default is not null. */
bool gguf_read_padding(const GgufKeys *keys);
/* Write an integer that no row writes, and the key that gguf_check_scores reads. */
void gguf_put_number(GgufWriter *writer, const ModelConfig *model, const char *key, int64_t number);
void gguf_put_scores(GgufWriter *writer, const ModelConfig *model);
/* Reads and writes the width and the number of leading layers without experts. */
bool gguf_read_dense(const GgufKeys *keys);
void gguf_put_dense(GgufWriter *writer, const ModelConfig *model);
/* Subtracts the layers for multi-token prediction (nextn_predict_layers) from num_hidden_layers, because
 * the file's block_count includes them. */
bool gguf_read_prediction(const GgufKeys *keys);
/* Returns the name of the tensor of a parameter. */
char *gguf_tensor_name(const HfParameter *parameter);
/* GGUF files of classes with the gated delta rule (hf_delta.c): rows of keys and names, and the
 * functions of GgufClass. hf_read_delta_gguf sets the fields that no row sets. */
#define GGUF_DELTA_ROWS \
    {"ssm.conv_kernel", ROW_INTEGER, GGUF_AT(delta_taps), true, "linear_conv_kernel_dim"}, \
    {"ssm.state_size", ROW_INTEGER, GGUF_AT(delta_key_dim), true, "linear_key_head_dim"}, \
    {"ssm.group_count", ROW_INTEGER, GGUF_AT(delta_key_heads), true, "linear_num_key_heads"}, \
    {"ssm.time_step_rank", ROW_INTEGER, GGUF_AT(delta_heads), true, "linear_num_value_heads"}, \
    {"ssm.inner_size", ROW_READ, 0, true, NULL}, \
    {"full_attention_interval", ROW_READ, 0, false, NULL}, \
    {"nextn_predict_layers", ROW_READ, 0, false, NULL}
#define GGUF_DELTA_EXPERT_ROWS \
    {"feed_forward_length", ROW_READ, 0, false, NULL}, /* of layers without experts */ \
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "num_experts"}, \
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"}, \
    {"expert_feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, "moe_intermediate_size"}, \
    {"expert_shared_feed_forward_length", ROW_READ, 0, false, NULL}, \
    {"expert_gating_func", ROW_READ, 0, false, NULL}
#define GGUF_DELTA_NAMES \
    {"post_attention_layernorm.", "post_attention_norm."}, \
    {"linear_attn.in_proj_qkv.", "attn_qkv."}, \
    {"linear_attn.in_proj_z.", "attn_gate."}, \
    {"linear_attn.in_proj_b.", "ssm_beta."}, \
    {"linear_attn.in_proj_a.", "ssm_alpha."}, \
    {"linear_attn.in_proj_ba.", "ssm_ba."}, \
    {"linear_attn.A_log", "ssm_a"}, \
    {"linear_attn.dt_bias", "ssm_dt.bias"}, \
    {"linear_attn.conv1d.", "ssm_conv1d."}, \
    {"linear_attn.norm.", "ssm_norm."}, \
    {"linear_attn.out_proj.", "ssm_out."}, \
    {"mlp.shared_expert.gate_proj.", "ffn_gate_shexp."}, \
    {"mlp.shared_expert.up_proj.", "ffn_up_shexp."}, \
    {"mlp.shared_expert.down_proj.", "ffn_down_shexp."}, \
    {"mlp.shared_expert_gate.", "ffn_gate_inp_shexp."}
bool hf_read_delta_gguf(const GgufKeys *keys);
void hf_put_delta_gguf(GgufWriter *writer, const ModelConfig *model);
bool hf_check_delta_gguf(const ModelConfig *model, Error *error);
bool hf_list_delta_gguf(HfTensorList *list, const HfParameter *parameter, const char *rest);
/* Rows of classes with shared experts beside the chosen ones. */
#define GGUF_SHARED_EXPERT_ROWS \
    {"expert_feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, "moe_intermediate_size"}, \
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "n_routed_experts"}, \
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"}, \
    {"expert_shared_count", ROW_INTEGER, GGUF_AT(shared_experts), true, "n_shared_experts"}, \
    {"expert_weights_scale", ROW_REAL, GGUF_AT(gate_scale), false, "routed_scaling_factor"}, \
    {"expert_weights_norm", ROW_BOOLEAN, GGUF_AT(renormalise), false, "norm_topk_prob"}, \
    {"expert_gating_func", ROW_READ, 0, false, NULL}
#define GGUF_SHARED_EXPERT_NAMES \
    {"mlp.shared_experts.gate_proj.", "ffn_gate_shexp."}, \
    {"mlp.shared_experts.up_proj.", "ffn_up_shexp."}, \
    {"mlp.shared_experts.down_proj.", "ffn_down_shexp."}
/* Refuses Llama 3's RoPE scaling, which llama.cpp does not read for this class. ERROR_USAGE. */
bool gguf_check_scaling(const ModelConfig *model, Error *error);
bool gguf_key_refuse(const GgufKeys *keys, const char *key, const char *reason);
static inline int64_t gguf_field(const GgufKeys *keys, const char *field) {
    return json_integer_value(json_object_get(keys->object, field));
}
/* Returns the number with the fewest digits that rounds to `value` in fp32. */
double gguf_shortest(double value);

/* -- The class ----------------------------------------------------------------------------------------------------- */

struct HfClass {
    const char *model_type;   /* "llama", in config.json; NULL: a class of diffusers, whose config.json names the architecture */
    const char *architecture; /* "LlamaForCausalLM" */
    HfTables tables;
    /* Returns the tables of an object in another layout of the class. NULL, or a result of NULL:
     * use `tables`. */
    const HfTables *(*tables_of)(const json_t *object);
    double rope_theta;            /* default if config.json has none; 0: 1e4 */
    bool rotates_part;            /* partial_rotary_factor has an effect, also with a scaling of positions */
    bool rotates_whole;           /* transformers does not run a partial_rotary_factor other than 1, even without scaling */
    bool has_only_longrope;       /* longrope is the only scaling; "su" and "yarn" are its old names */
    int64_t original_context;     /* default of original_max_position_embeddings, which is beside rope_parameters; 0: the context */
    bool rounds_rope_bounds;      /* yarn's bounds are whole channels, whatever `truncate` says */
    bool scales_no_attention;     /* yarn with an attention_factor other than 1 is refused */
    bool scales_scores;           /* mscale_all_dim scales attention scores (model.rope_mscale) */
    bool scales_queries;          /* llama_4_scaling_beta (model.rope_query_scale), which needs a scaling from an original context */
    bool demands_scaled_head_dim; /* transformers does not run yarn or dynamic scaling without head_dim */
    bool lacks_router_biases;     /* models with load-balancing biases that differ cannot be written */
    bool router_is_parameter;     /* PEFT lists a router's matrix in target_parameters */
    double gain_offset;           /* norms multiply by this plus the stored gain: 1 if folders store gains minus 1 */
    bool runs_fp8;                /* vLLM and transformers read it in FP8 (hf_fp8.c) */
    bool reads_mxfp4;             /* transformers reads folders of it with experts in MXFP4 */
    bool skips_prediction;        /* layers for multi-token prediction in a folder are skipped */
    bool is_llmc;                 /* llm.c can train it */
    /* Sets values that the class implies without a field. NULL: none. */
    void (*start)(ModelConfig *model);
    /* A model of the family is written as the first class that fits. NULL: fits any. */
    bool (*fits)(const ModelConfig *model);
    /* ERROR_USAGE names the setting that the class cannot express. NULL: it expresses every model of
     * the family. */
    bool (*check)(const ModelConfig *model, const char *architecture, Error *error);
    /* Writes the class's own fields of config.json; for diffusers, all fields. */
    void (*put)(json_t *object, const ModelConfig *model);
    HfLister *list;             /* NULL: hf_list_native */
    HfLayout layouts[2];        /* other layouts that are read; one without a mark ends them */
    const char *const *buffers; /* name suffixes of tensors without effect in older folders; NULL: none */
    /* Returns the factor of the logits (NAN if it is invalid). `scaled` names the parameter that
     * absorbs the factor: the gain of the norm before the head, which has no bias. Programs that do
     * not know the factor then compute the same function. */
    double (*logit_scale)(const json_t *object, const ModelConfig *model);
    const char *scaled;
    const GgufClass *gguf; /* NULL: llama.cpp has no such model */
};

/* The fields of a class whose folders list experts one by one, or stacked if transformers has saved them. */
#define HF_SPLIT_EXPERTS .router_is_parameter = true, .list = hf_list_experts, .layouts = {HF_STACKED}

/* HfClass.check of classes whose heads divide the width. */
bool hf_check_divided_width(const ModelConfig *config, const char *architecture, Error *error);
/* Returns the class that a configuration is written as. */
const HfClass *hf_class(const ModelConfig *config);
/* Returns what must be added to a stored norm gain; 0 for other parameters. */
static inline double hf_gain_offset(const ModelConfig *config, const Parameter *parameter) {
    return parameter->kind == PARAMETER_NORM ? hf_class(config)->gain_offset : 0;
}

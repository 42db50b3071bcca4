/* Classes of models in transformers and diffusers: one HfClass each, in the file of its family (src/families/). It says what the
 * fields of config.json mean, how tensors are called, and what GGUF files say of the model. The readers and writers of folders,
 * of PEFT's adapters and of GGUF files ask it; none of them names a class. Owns nothing. */
#pragma once

#include <jansson.h>
#include <stdarg.h>

#include "config/family.h"
#include "gguf/gguf.h"
#include "graph/graph.h"

typedef struct HfClass HfClass;

/* -- Fields of config.json (hf_fields.c) --------------------------------------------------------------------------- */

/* The state of reading one object. Reading keeps the first error and goes on, so that readers are lists of fields. */
typedef struct HfFieldReader {
    const json_t *object;
    const char *path; /* of the object, in front of names in messages: "" or "attn_config." */
    const HfClass *class;
    ModelConfig *model;
    char **warnings; /* one line for the user, allocated; NULL: none */
    Error *error;
    bool good;
} HfFieldReader;

typedef enum HfFieldUse {
    FIELD_INTEGER,   /* at least 1, to an int64_t of ModelConfig */
    FIELD_REAL,      /* to a double of ModelConfig */
    FIELD_BOOLEAN,   /* to a bool of ModelConfig */
    FIELD_FIXED,     /* refused unless it has one of the values */
    FIELD_READ,      /* by a function */
    FIELD_SYNONYM,   /* another name of the field that `values` names, which it replaces */
    FIELD_NO_EFFECT, /* on logits, loss and gradients, or read together with another field */
} HfFieldUse;

/* `values` are words. INTEGER and REAL: the default, and "null" where null is allowed, which reads as 0. BOOLEAN: the
 * default. FIXED: all that are taken, the default first. */
typedef struct HfField {
    const char *name;
    HfFieldUse use;
    const char *values;
    size_t offset;                                                         /* in ModelConfig */
    void (*read)(HfFieldReader *r, const char *name, const json_t *value); /* `value` NULL: absent */
} HfField;

/* Rows of a table, which END closes. */
#define INTEGER(name, member, values) {name, FIELD_INTEGER, values, offsetof(ModelConfig, member), NULL}
#define REAL(name, member, values) {name, FIELD_REAL, values, offsetof(ModelConfig, member), NULL}
#define BOOLEAN(name, member, values) {name, FIELD_BOOLEAN, values, offsetof(ModelConfig, member), NULL}
#define FIXED(name, values) {name, FIELD_FIXED, values, 0, NULL}
#define READ(name, function) {name, FIELD_READ, "", 0, function}
#define NO_EFFECT(name) {name, FIELD_NO_EFFECT, "", 0, NULL}
#define SYNONYM(name, of) {name, FIELD_SYNONYM, of, 0, NULL}
#define END {NULL, FIELD_NO_EFFECT, "", 0, NULL}

/* The first table that has a field decides. */
enum { HF_TABLES = 5 };
typedef struct HfTables { const HfField *rows[HF_TABLES]; } HfTables;

/* Tables that classes share: of every class of transformers; of what any of its objects may carry; of decoders like Llama's. */
extern const HfField hf_shared_fields[], hf_metadata_fields[], hf_decoder_fields[];

/* Reads the reader's object into its model. */
void hf_read_fields(HfFieldReader *r, const HfTables *tables);
/* Fails with "PATH.NAME REASON". */
void hf_refuse(HfFieldReader *r, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
void hf_warn(HfFieldReader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* -- What functions that read fields have in common (hf_config.c, hf_rope.c) --------------------------------------- */

static inline const json_t *hf_field(const HfFieldReader *r, const char *name) { return json_object_get(r->object, name); }
/* A field that may be absent; an integer is at least `least`. */
int64_t hf_integer_or(HfFieldReader *r, const char *name, int64_t least, int64_t fallback);
bool hf_boolean_or(HfFieldReader *r, const char *name, bool fallback);
void hf_read_padding(HfFieldReader *r, const char *name, const json_t *value);
/* layer_types has an entry for each layer, and no effect. */
void hf_read_unused_layers(HfFieldReader *r, const char *name, const json_t *value);
/* layer_types of layers that all have the window, or none: takes it away, or demands it. */
void hf_read_layer_types(HfFieldReader *r, const char *name, const json_t *types);
void hf_read_rope(HfFieldReader *r, const char *name, const json_t *value);
/* The rotary positions of one object of them, at `path` (NULL: it is absent); `theta` and `fraction` hold where it has
 * no rope_theta and no partial_rotary_factor, NAN: then it must. Needs the model's sizes. */
void hf_read_rope_object(HfFieldReader *r, const char *path, const json_t *rope, double theta, double fraction);

/* -- Writing config.json ------------------------------------------------------------------------------------------- */

/* Sets `key` and takes over the reference. */
void hf_put(json_t *object, const char *key, json_t *value);
static inline void hf_put_integer(json_t *object, const char *key, int64_t value) { hf_put(object, key, json_integer(value)); }
static inline void hf_put_text(json_t *object, const char *key, const char *value) { hf_put(object, key, json_string(value)); }
/* The sizes of a decoder like Llama's. */
void hf_put_decoder(json_t *object, const ModelConfig *config);
/* rope_theta and rope_scaling beside each other. */
void hf_put_rope(json_t *object, const ModelConfig *config);
/* Whether positions are scaled, and queries and keys with them. */
static inline bool hf_is_scaled(const ModelConfig *c) { return c->rope_factor > 1 || c->rope_attention_factor != 1; }
/* Adds the fields of scaled positions (hf_rope.c). */
void hf_put_scaling(json_t *rope, const ModelConfig *config);

/* -- Tensors (hf_tensors.c) ---------------------------------------------------------------------------------------- */

/* What a stored tensor has of its parameter: its numbers, or, of a matrix in FP8 (hf_fp8.c), its quantized values or the
 * scales of its rows. */
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
typedef struct HfTensorList {
    HfTensor *items;
    size_t count;
} HfTensorList;

/* A parameter to be listed under the names of a layout: its place in the graph, and the layers of its model. */
typedef struct HfParameter {
    int index;
    const Parameter *p;
    const ModelConfig *config;
} HfParameter;

/* Appends the tensors of a parameter; none where the layout does not store it. */
typedef void HfLister(HfTensorList *list, const HfParameter *parameter);
/* One tensor of the parameter's name. */
HfLister hf_list_native;
/* The same without a leading "transformer.", as in OpenAI's GPT-2 folders. */
HfLister hf_list_bare;
/* One tensor called `name`, which the list takes over. */
HfTensor *hf_append(HfTensorList *list, char *name, const HfParameter *parameter);
/* Part `index` of `parts` equal ones of a stack of matrices, each with 1 / parts of the stack's rows. */
HfTensor *hf_append_part(HfTensorList *list, char *name, const HfParameter *parameter, int64_t index, int64_t parts);
/* The layer of "LAYERS.N.REST" of a family and its REST; -1 and the name for other names. */
int hf_split_layer(const HfParameter *parameter, const char **rest);

/* Another layout than transformers writes today, in older folders. */
typedef struct HfLayout {
    const char *mark; /* a tensor that only these folders have */
    HfLister *list;
} HfLayout;

/* -- GGUF (gguf_config.c, hf_tensors.c) ---------------------------------------------------------------------------- */

typedef enum GgufRowUse {
    ROW_INTEGER,
    ROW_REAL,
    ROW_READ, /* by a function */
} GgufRowUse;

/* A key, without its architecture, and the setting that it is; a row without a key closes a table. */
typedef struct GgufRow {
    const char *key;
    GgufRowUse use;
    size_t offset;     /* in ModelConfig */
    bool required;     /* without it a file is refused */
    const char *field; /* of config.json; NULL: a function puts it there */
} GgufRow;
#define GGUF_AT(member) offsetof(ModelConfig, member)

/* Beginnings of a parameter's name, in a layer or outside of all, and of the tensor's name (gguf-py: constants.py,
 * tensor_mapping.py); a row without names closes a table. */
typedef struct GgufName { const char *ours, *gguf; } GgufName;

/* The state of reading the keys of a file. */
typedef struct GgufKeys {
    const Gguf *file;
    const HfClass *class;
    json_t *object; /* the config.json that is made */
    Error *error;
} GgufKeys;

/* What llama.cpp calls a class, and reads of it. */
typedef struct GgufClass {
    const char *architecture; /* "llama" */
    bool experts;             /* of the classes of one architecture, that of files with experts */
    bool rotary;              /* has the keys of heads with rotary positions */
    bool pairs;               /* neighbouring channels are rotated: rows of queries and keys are in another order */
    const GgufRow *rows;      /* beside those of all architectures, and of all rotary ones */
    const GgufName *names;
    /* Puts what no row does. NULL: nothing. */
    bool (*read)(const GgufKeys *keys);
    /* ERROR_USAGE naming the setting that llama.cpp cannot compute. NULL: it computes what the class does. */
    bool (*check)(const ModelConfig *model, Error *error);
} GgufClass;

/* A number of a key that may be absent: *number stays then. ERROR_CHECKPOINT. */
bool gguf_key_real(const GgufKeys *keys, const char *key, double *number);
bool gguf_key_integer(const GgufKeys *keys, const char *key, int64_t *number);
bool gguf_key_refuse(const GgufKeys *keys, const char *key, const char *reason);
static inline int64_t gguf_field(const GgufKeys *keys, const char *field) {
    return json_integer_value(json_object_get(keys->object, field));
}
/* The number with the fewest digits that becomes `value` in fp32. */
double gguf_shortest(double value);

/* -- The class ----------------------------------------------------------------------------------------------------- */

struct HfClass {
    const char *model_type;   /* "llama", in config.json; NULL: of diffusers, whose config.json names the architecture */
    const char *architecture; /* "LlamaForCausalLM" */
    HfTables tables;
    /* The tables of an object of the class in another layout; NULL, or gives NULL: `tables`. */
    const HfTables *(*tables_of)(const json_t *object);
    double rope_theta;            /* where config.json has none; 0: 1e4 */
    bool rotates_part;            /* partial_rotary_factor counts, also beside a scaling of positions */
    bool rounds_rope_bounds;      /* yarn's bounds are whole channels whatever `truncate` says */
    bool scales_no_attention;     /* an attention_factor of yarn other than 1 is refused */
    bool demands_scaled_head_dim; /* with yarn or dynamic scaling transformers does not run without head_dim */
    bool lacks_router_biases;     /* models with load-balancing biases that differ cannot be written */
    bool router_is_parameter;     /* PEFT finds a router's matrix under target_parameters */
    bool runs_fp8;                /* vLLM and transformers read it in FP8 (hf_fp8.c) */
    bool is_llmc;                 /* llm.c trains it */
    /* Sets what the class implies and no field says. NULL: nothing. */
    void (*start)(ModelConfig *model);
    /* A model of the family is written as the first of its classes that fits. NULL: any fits. */
    bool (*fits)(const ModelConfig *model);
    /* ERROR_USAGE naming the setting that the class cannot express. */
    bool (*check)(const ModelConfig *model, const char *architecture, Error *error);
    /* Puts the fields of config.json that are of the class; of diffusers all. */
    void (*put)(json_t *object, const ModelConfig *model);
    HfLister *list;             /* NULL: hf_list_native */
    HfLayout layouts[2];        /* others that are read; one without a mark ends them */
    const char *const *buffers; /* ends of names of tensors without effect in older folders; NULL: none */
    /* Models whose logits are multiplied: by what (NAN: by something senseless), and the parameter that takes the factor, the
     * gain of the norm before the head, which has no bias: the same function in programs without the field. */
    double (*logit_scale)(const json_t *object, const ModelConfig *model);
    const char *scaled;
    const GgufClass *gguf; /* NULL: llama.cpp has no such model */
};

/* The class that a configuration is written as. */
const HfClass *hf_class(const ModelConfig *config);

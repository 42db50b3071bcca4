/* The tables of config.json's fields (hf_fields.c), and the functions that read what is no row of a table
 * (hf_config.c). Private to the folder. */
#pragma once

#include <stdarg.h>

#include "model/hf_internal.h"

/* The state of reading one object. Reading keeps the first error and goes on, so that readers are lists of fields. */
typedef struct HfFieldReader {
    const json_t *object;
    const char *path; /* of the object, in front of names in messages: "" or "attn_config." */
    HfClass class;
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

/* Tables of a class, each closed by a row without a name; the first that has a field decides. */
enum { HF_TABLES = 5 };
typedef struct HfTables { const HfField *rows[HF_TABLES]; } HfTables;

/* The tables for an object of a class. */
const HfTables *hf_tables(HfClass class, const json_t *object);
const HfTables *hf_mpt_attention_tables(void);
/* One of Zyphra's first folders, with attention and experts as layers of their own. */
bool hf_is_first_zaya(const json_t *object);
/* The row that decides; NULL when no table has the field. */
const HfField *hf_find_field(const HfTables *tables, const char *name);
/* The row that sets the member of ModelConfig at `offset`; NULL when none does. */
const HfField *hf_find_member(const HfTables *tables, size_t offset);
/* The name by which an object gives a field: that of a synonym where it has one. */
const char *hf_used_name(const HfTables *tables, const json_t *object, const char *name);
/* Reads the reader's object into its model. */
void hf_read_fields(HfFieldReader *r, const HfTables *tables);
/* Fails with "PATH.NAME REASON". */
void hf_refuse(HfFieldReader *r, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
void hf_warn(HfFieldReader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* -- Fields that are read by functions (hf_config.c, hf_rope.c) ---------------------------------------------------- */

void hf_read_padding(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_zaya_padding(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_rope(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_unused_layers(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_ministral_layers(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_qwen_layers(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_router_loss(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_zaya_layers(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_first_zaya(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_mpt_expansion(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_mpt_logit_scale(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_mpt_attention(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_mpt_scale(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_mpt_alibi(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_flux_axes(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_flux_sizes(HfFieldReader *r, const char *name, const json_t *value);
void hf_read_mpt_key_heads(HfFieldReader *r, const char *name, const json_t *value);

/* The rotary positions of one object of them, at `path` (NULL: it is absent); `theta` and `fraction` hold where it has
 * no rope_theta and no partial_rotary_factor, NAN: then it must. Needs the model's sizes. */
void hf_read_rope_object(HfFieldReader *r, const char *path, const json_t *rope, double theta, double fraction);

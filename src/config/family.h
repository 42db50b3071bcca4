/* What differs between families of models: one FamilyRule each, in src/families/NAME.c. Settings, checks, layouts, plans and
 * readers of files ask the rule of a model; none of them names a family.
 * To add a family: write that file, and add its line to config/family_list.h. */
#pragma once

#include "config/config.h"

struct Builder;
struct Trunk;
struct HfClass;

typedef struct FamilyRule {
    const char *name; /* "llama", of model.family */
    /* The settings of model.* that the family has and that not every family has, without "model."; NULL ends the list. A setting
     * that no family lists is of all (config/needs.c). */
    const char *const *settings;
    bool makes_images;     /* trains on encodings of images, not on tokens */
    bool learns_positions; /* model.context counts rows of a weight, so it cannot change */
    bool skips_experts;    /* a router has a class more than model.experts, the last: no expert */
    bool chains_routers;   /* a router reads the state of the layer before, [R, router_width] */
    /* Queries, keys and values have a matrix each, and heads of queries read no neighbouring key head's channels, so several
     * ranks of tensor parallelism may have the same key head. */
    bool repeats_key_heads;
    bool norms_all_heads; /* model.qk_norm is over all heads together, which tensor parallelism would divide */
    bool looks_back;      /* layers read tokens before their own other than by attention */
    /* ERROR_USAGE for a model whose settings the family cannot have together. What holds for all families was checked before,
     * but for the rotation of heads. NULL: any. */
    bool (*check)(const ModelConfig *model, Error *error);
    const char *layers; /* "model.layers": parameters of layer N are called LAYERS.N.NAME */
    /* Of transformers or diffusers (model/hf_class.h), with NULL at the end: at least one, and the last fits any model. */
    const struct HfClass *const *classes;
    /* Declares the parameters and appends one forward pass (model/builder.h). */
    struct Trunk (*build)(struct Builder *builder);
} FamilyRule;

enum {
#define FAMILY(name) FAMILY_##name,
#include "config/family_list.h"
#undef FAMILY
    FAMILY_COUNT
};

/* By model.family. */
extern const FamilyRule *const family_rules[FAMILY_COUNT];
static inline const FamilyRule *family_of(const ModelConfig *model) { return family_rules[model->family]; }
/* Whether the family has the setting "model.NAME"; one that no family lists is of none. */
bool family_has(const FamilyRule *family, const char *setting);

/* Checks that families share. The heads come to the width: heads x head_dim = width. */
bool family_check_width(const ModelConfig *model, Error *error);
/* As many key heads as query heads. */
bool family_check_key_heads(const ModelConfig *model, Error *error);

/* The differences between model families: one FamilyRule each, in src/families/NAME.c. Settings,
 * checks, layouts, plans and file readers ask the rule of a model; none of them names a family. To
 * add a family, write that file and add its line to config/family_list.h. */
#pragma once

#include "config/activation_rule.h"
#include "config/config.h"

struct Builder;
struct Trunk;
struct HfClass;

typedef struct FamilyRule {
    const char *name; /* "llama", the value of model.family */
    /* The settings of model.* that this family has and that not all families have, without
     * "model."; NULL ends the list. A setting that no family lists belongs to all of them
     * (config/needs.c). */
    const char *const *settings;
    bool makes_images;     /* trains on encodings of images, not on tokens */
    bool learns_positions; /* model.context counts rows of a weight, so it cannot change */
    bool skips_experts;    /* a router has one class more than model.experts; the last class is "no expert" */
    bool chains_routers;   /* a router reads the router state of the previous layer, [R, router_width] */
    /* Queries, keys and values each have their own matrix, and query heads do not read channels
     * of a neighboring key head. Therefore several tensor-parallel ranks may hold the same key
     * head. */
    bool repeats_key_heads;
    /* Norms of queries and keys act on all heads together, which tensor parallelism would divide. A
     * family that does not list model.qk_norm always has these norms. */
    bool norms_all_heads;
    bool restarts_longrope; /* past model.rope_original_context, longrope rotates all tokens anew, so no cache can go on */
    bool looks_back;        /* layers read earlier tokens by means other than attention */
    bool keeps_states;      /* some layers pass a state from token to token */
    /* ERROR_USAGE for a model whose settings the family cannot combine. Checks of all families,
     * except those of RoPE, have run before. NULL: any combination is valid. */
    bool (*check)(const ModelConfig *model, Error *error);
    Activation activation; /* of the MLP if model.activation=auto */
    const char *layers;    /* "model.layers": parameters of layer N are called LAYERS.N.NAME */
    /* Classes of transformers or diffusers (formats/hf_class.h), ended by NULL. One of them fits any
     * model; models are written as that class or one before it, and the classes after it are only read. */
    const struct HfClass *const *classes;
    /* Declares the parameters and appends one forward pass (model/builder.h). */
    struct Trunk (*build)(struct Builder *builder);
} FamilyRule;

/* The fields of a decoder with SwiGLU and Llama's names of layers; `classes` and `build` are those of its file. */
#define FAMILY_SWIGLU_DECODER .activation = ACTIVATION_swiglu, .layers = "model.layers", .classes = classes, .build = build

/* Values of model.family. */
enum {
#define FAMILY(name) FAMILY_##name,
#include "config/family_list.h"
#undef FAMILY
};

/* Indexed by model.family. */
extern const FamilyRule *const family_rules[];
extern const int family_count;
static inline const FamilyRule *family_of(const ModelConfig *model) { return family_rules[model->family]; }
/* Returns the function that model.activation selects. */
static inline Activation model_activation(const ModelConfig *model) {
    return model->activation == ACTIVATION_AUTO ? family_of(model)->activation : (Activation)model->activation;
}
static inline ActivationTerms model_activation_terms(const ModelConfig *model) {
    return (ActivationTerms){.alpha = model->swiglu_alpha, .limit = model->swiglu_limit};
}
/* Returns whether all layers have the same parameters. */
static inline bool model_has_equal_layers(const ModelConfig *model) {
    return model->single_layers == 0 && !model_mixes_layers(model) && !(family_of(model)->keeps_states && model->attention_period > 1);
}
/* Returns whether the family lists the setting "model.NAME". */
bool family_has(const FamilyRule *family, const char *setting);
bool family_norms_all_heads(const ModelConfig *model);
/* Returns the positions that a key-value cache can hold: model.context, or less (restarts_longrope). */
int64_t family_cached_positions(const ModelConfig *model);
/* Returns whether the frequencies of RoPE depend on the length of the text. */
static inline bool model_rope_grows(const ModelConfig *model) {
    return model->rope_factor > 1 && (model->rope_scaling == ROPE_DYNAMIC || model->rope_scaling == ROPE_LONGROPE);
}

/* Checks that families share. This one checks that heads x head_dim = width. */
bool family_check_width(const ModelConfig *model, Error *error);
/* Checks that the gates of a token sum to 1, as they do in `name`, a family or class. */
bool family_check_gates(const ModelConfig *model, const char *name, Error *error);
/* Checks the sizes of layers with the gated delta rule, and that model.window is 0. */
bool family_check_delta(const ModelConfig *model, Error *error);
/* Checks that there are as many key heads as query heads. */
bool family_check_key_heads(const ModelConfig *model, Error *error);
/* Checks that model.width is one of those of op_post_norm and op_adaptive_norm (ops/norm/norm.h). */
bool family_check_fused_norms(const ModelConfig *model, Error *error);

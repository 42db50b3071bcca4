/* PEFT's adapter folders (adapter_config.json, adapter_model.safetensors): runs can start from them
 * or write them, and commands can read a model with them. Parameters of adapters have smelt's names
 * (model/lora.c) in graphs, and PEFT's names in the folder (peft.c). */
#pragma once

#include <jansson.h>

#include "ckpt/ckpt.h"
#include "model/model.h"

/* An open folder. Zero-initialize. */
typedef struct PeftFolder {
    char *path;
    char *base;       /* base_model_name_or_path: a folder, or a name on Hugging Face; "": none */
    double dropout;   /* lora_dropout; affects only training */
    LoraConfig lora;  /* its targets are the names of all modules that have adapters */
    char *targets;    /* of `lora` */
    bool replaces;    /* it also holds parameters of the base, for peft_replace */
    json_t *content;  /* parsed adapter_config.json */
    Safetensors file; /* maps adapter_model.safetensors */
} PeftFolder;

/* Returns whether `folder` has an adapter_config.json. */
bool peft_is_folder(const char *folder);
/* Reads the configuration and maps the tensors. Refuses fields and tensors with an effect on the
 * model that smelt does not support. ERROR_CHECKPOINT names them. */
bool peft_open(PeftFolder *peft, const char *folder, Error *error);
void peft_close(PeftFolder *peft);
/* Fills the trained parameters of `graph`, which was built with the adapters of `lora`, in its
 * MASTER arena `master`, in any precision. The folder must hold all of them with their shapes, and
 * nothing else except parts of the base. It must hold every adapter that its target_modules name.
 * ERROR_CHECKPOINT. */
bool peft_load(const PeftFolder *peft, const LoraConfig *lora, const Graph *graph, void *master, Error *error);
/* Freezes tables and rows that the folder lacks. A run that begins with the folder takes them from
 * its base. */
void peft_freeze_absent(const PeftFolder *peft, Graph *graph);
/* ERROR_USAGE if the folder holds parts of the base that `graph` does not train. */
bool peft_check_trained(const PeftFolder *peft, const Graph *graph, Error *error);

/* Copies parameters of the base from the folder into `master`, the MASTER arena of a graph of the
 * whole model: modules that were trained whole (modules_to_save) or saved for their new rows, and
 * rows of tokens (trainable_token_indices). ERROR_CHECKPOINT names a tensor that has another shape,
 * or no place. */
bool peft_replace(const PeftFolder *peft, const Graph *graph, void *master, Error *error);

/* ERROR_USAGE if `graph` trains adapters that PEFT cannot read. Beside experts, PEFT takes modules
 * called gate_proj, up_proj and down_proj for parts of the experts
 * (peft/utils/transformers_weight_conversion.py of 0.21). */
bool peft_check_modules(const ModelConfig *model, const Graph *graph, Error *error);
/* The file that diffusers' load_lora_weights and ComfyUI read: names of modules after "transformer.",
 * and the factor of the adapters in B, because the file stores no alpha. */
#define PEFT_IMAGE_FILE "pytorch_lora_weights.safetensors"
/* Writes the trained parameters of `graph`, adapters and tables (modules_to_save), whose MASTER
 * arena is `master`, in fp32 into an existing folder. `base` is the name of the base. An adapter
 * that experts share is written for each expert. Of a model of images, writes PEFT_IMAGE_FILE too.
 * ERROR_NUMERICS if a value is not finite. */
bool peft_write(const char *folder, const char *base, const LoraConfig *lora, const ModelConfig *model, const Graph *graph,
    const void *master, Error *error);

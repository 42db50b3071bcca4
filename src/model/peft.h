/* Folders of adapters as PEFT writes them (adapter_config.json, adapter_model.safetensors), for runs that begin with such
 * adapters or are written as such, and for commands that read a model with them. Adapters' parameters have smelt's names
 * (model/lora.c) in graphs, and PEFT's in the folder (peft.c). */
#pragma once

#include <jansson.h>

#include "ckpt/ckpt.h"
#include "model/model.h"

/* An open folder. Zero-initialise. */
typedef struct PeftFolder {
    char *path;
    char *base;       /* base_model_name_or_path: a folder, or a name on Hugging Face; "" where there is none */
    double dropout;   /* lora_dropout, which only training uses */
    LoraConfig lora;  /* its targets are the names of all modules that have adapters */
    char *targets;    /* of `lora` */
    bool replaces;    /* it holds parameters of the base too, for peft_replace */
    json_t *content;  /* of adapter_config.json */
    Safetensors file; /* maps adapter_model.safetensors */
} PeftFolder;

/* Whether `folder` has an adapter_config.json. */
bool peft_is_folder(const char *folder);
/* Reads the configuration and maps the tensors. What changes the model and smelt does not compute is refused by field or
 * tensor. ERROR_CHECKPOINT. */
bool peft_open(PeftFolder *peft, const char *folder, Error *error);
void peft_close(PeftFolder *peft);
/* Fills what is trained of `graph`, which was built with the adapters of `lora`, in `master`, its MASTER arena in any precision. All of it
 * must be in the folder in its shapes, and nothing else but parts of the base, nor may it lack an adapter that its target_modules
 * name. ERROR_CHECKPOINT. */
bool peft_load(const PeftFolder *peft, const LoraConfig *lora, const Graph *graph, void *master, Error *error);
/* Freezes tables and rows that the folder lacks: a run that begins with it has them from its base. */
void peft_freeze_absent(const PeftFolder *peft, Graph *graph);
/* ERROR_USAGE where the folder holds parts of the base that `graph` does not train. */
bool peft_check_trained(const PeftFolder *peft, const Graph *graph, Error *error);

/* Puts what the folder holds of the base in its place in `master`, the MASTER arena of a graph of the whole model: modules that were trained
 * whole (modules_to_save) or saved for their new rows, and rows of tokens (trainable_token_indices). ERROR_CHECKPOINT names what has
 * another shape, or no place. */
bool peft_replace(const PeftFolder *peft, const Graph *graph, void *master, Error *error);

/* Writes what is trained of `graph`, adapters and tables (modules_to_save), whose MASTER arena is `master`, in fp32 into an existing folder; `base` is the name of the
 * base. An adapter that experts share is written for each of them. ERROR_NUMERICS when a value is not finite. */
bool peft_write(const char *folder, const char *base, const LoraConfig *lora, const ModelConfig *model, const Graph *graph,
    const void *master, Error *error);

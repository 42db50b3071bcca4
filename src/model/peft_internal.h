/* Which modules an adapter_config.json gives adapters (peft_modules.c), as check_target_module_exists of
 * peft/tuners/tuners_utils.py decides: what the tensors beside it must agree with. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

/* The configuration with its patterns compiled. Zero-initialise; `content` and `path`, the folder of it, stay the caller's. */
typedef struct PeftModules {
    const json_t *content;
    const char *path;
    struct pcre2_real_code_8 *targets, *excluded; /* NULL where these are lists, or left out */
} PeftModules;

/* null, false, "", [] and {}: the field is not used. */
bool peft_is_empty(const json_t *value);
/* ERROR_CHECKPOINT where target_modules or exclude_modules is a pattern that is none. */
bool peft_modules_open(PeftModules *modules, const json_t *content, const char *path, Error *error);
void peft_modules_close(PeftModules *modules);
/* Sets `has` to whether the module gets an adapter; `linear`: it is what "all-linear" means. Without target_modules, which PEFT
 * chooses by the model then, none does. ERROR_CHECKPOINT where a pattern takes too long. */
bool peft_modules_has(const PeftModules *modules, const char *module, bool linear, bool *has, Error *error);
/* Likewise whether the file may have the adapter of a module, called `stem` in its tensors and `module` in ours; without
 * target_modules and target_parameters it may have any that is not excluded. */
bool peft_modules_has_tensor(const PeftModules *modules, const char *stem, const char *module, bool *has, Error *error);
/* Whether target_modules name the module and layers_to_transform lacks its layer. */
bool peft_leaves_out_layer(const json_t *content, const char *module);

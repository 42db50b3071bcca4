/* Selects the modules to which adapter_config.json gives adapters (peft_modules.c), as
 * check_target_module_exists of peft/tuners/tuners_utils.py does. The tensors beside the file must
 * agree. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

/* The configuration with its patterns compiled. Zero-initialize; the caller keeps `content` and
 * `path`, the folder. */
typedef struct PeftModules {
    const json_t *content;
    const char *path;
    struct pcre2_real_code_8 *targets, *excluded; /* NULL if the field is a list or absent */
} PeftModules;

/* null, false, "", [] and {}: the field is not used. */
bool peft_is_empty(const json_t *value);
/* ERROR_CHECKPOINT if target_modules or exclude_modules is an invalid pattern. */
bool peft_modules_open(PeftModules *modules, const json_t *content, const char *path, Error *error);
void peft_modules_close(PeftModules *modules);
/* Sets *has to whether the module gets an adapter. `linear`: "all-linear" selects it. Without
 * target_modules, PEFT chooses modules by the model; this function then selects none.
 * ERROR_CHECKPOINT if a pattern takes too long. */
bool peft_modules_has(const PeftModules *modules, const char *module, bool linear, bool *has, Error *error);
/* Sets *has to whether the file may have the adapter of a module, called `stem` in its tensors and
 * `module` in smelt. Without target_modules and target_parameters, any module that is not excluded
 * may have one. */
bool peft_modules_has_tensor(const PeftModules *modules, const char *stem, const char *module, bool *has, Error *error);
/* Returns whether target_modules name the module and layers_to_transform lacks its layer. */
bool peft_leaves_out_layer(const json_t *content, const char *module);

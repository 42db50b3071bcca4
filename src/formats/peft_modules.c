/* Decides which modules have adapters according to adapter_config.json. The name of such a module
 * ends in a name of target_modules, or matches its pattern in full, and exclude_modules does not
 * select it in the same way. PCRE2 replaces Python's re. Called by peft.c. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "formats/peft_internal.h"

#include "base/memory.h"
#include "base/scope.h"

/* null, false, "", [] and {}: the field is not used. */
bool peft_is_empty(const json_t *value) {
    return json_is_null(value) || json_is_false(value) || (json_is_string(value) && !json_string_length(value)) ||
           (json_is_array(value) && !json_array_size(value)) || (json_is_object(value) && !json_object_size(value));
}

/* -- Patterns ------------------------------------------------------------------------------------------------------- */

static bool is_all_linear(const json_t *targets) {
    return json_is_string(targets) && !strcasecmp(json_string_value(targets), "all-linear");
}

/* Compiles the field as a pattern; none if it is a list or absent. */
static bool compile_target(struct pcre2_real_code_8 **code, const json_t *content, const char *field, const char *path, Error *error) {
    const json_t *value = json_object_get(content, field);
    int reason;
    size_t offset;
    PCRE2_UCHAR message[200];
    if (!json_is_string(value) || is_all_linear(value)) return true;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_parens_nest_limit(context, 100);
    *code = pcre2_compile((PCRE2_SPTR)json_string_value(value), json_string_length(value),
        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &reason, &offset, context);
    pcre2_compile_context_free(context);
    if (*code) return true;
    pcre2_get_error_message(reason, message, sizeof message);
    return error_set(
        error, ERROR_CHECKPOINT, "%s: %s in its adapter_config.json is not a valid pattern: %s", path, field, (const char *)message);
}

/* Sets *found if the pattern matches the whole name, as re.fullmatch does. Names are short; a step
 * limit stops endless backtracking. */
static bool module_matches(const PeftModules *modules, const pcre2_code *code, const char *module, bool *found, Error *error) {
    enum { MOST_STEPS = 100000 };
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_set_match_limit(context, MOST_STEPS);
    int count = pcre2_match(code, (PCRE2_SPTR)module, strlen(module), 0, 0, data, context);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    *found = count >= 0;
    if (count >= 0 || count == PCRE2_ERROR_NOMATCH) return true;
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(count, message, sizeof message);
    return error_set(error, ERROR_CHECKPOINT, "%s: matching a pattern in its adapter_config.json with %s failed: %s", modules->path, module,
        (const char *)message);
}

bool peft_modules_open(PeftModules *modules, const json_t *content, const char *path, Error *error) {
    *modules = (PeftModules){.content = content, .path = path};
    return compile_target(&modules->targets, content, "target_modules", path, error) &&
           compile_target(&modules->excluded, content, "exclude_modules", path, error);
}

void peft_modules_close(PeftModules *modules) {
    pcre2_code_free(modules->targets);
    pcre2_code_free(modules->excluded);
    *modules = (PeftModules){0};
}

/* -- Names and layers ------------------------------------------------------------------------------------------------ */

/* Returns whether a list has the module's name or a suffix of it after a dot. `whole`: only the
 * full name. */
static bool lists_module(const json_t *list, const char *module, bool whole) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        size_t length = name ? strlen(name) : 0, size = strlen(module);
        if (!name || length > size || strcmp(module + size - length, name) != 0) continue;
        if (length == size || (!whole && length && module[size - length - 1] == '.')) return true;
    }
    return false;
}

/* Returns a module's layer, the first numeric part of its name; -1: none. */
static int64_t module_layer(const char *module) {
    enum { MOST_DIGITS = 9 };
    for (const char *part = module; *part; part += strcspn(part, "."), part += *part == '.') {
        size_t length = strcspn(part, "."), digits = strspn(part, "0123456789");
        if (digits && digits == length && digits <= MOST_DIGITS) return strtoll(part, NULL, 10);
    }
    return -1;
}

/* layers_to_transform is one number or a list of numbers; absent: all layers. */
static bool has_layer(const json_t *layers, int64_t layer) {
    bool listed = false;
    if (!layers || peft_is_empty(layers)) return true;
    if (json_is_integer(layers)) return json_integer_value(layers) == layer;
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *each = json_array_get(layers, i);
        listed = listed || (json_is_integer(each) && json_integer_value(each) == layer);
    }
    return listed;
}

/* Returns whether layers_to_transform leaves out the layer of a module. A module that is named in
 * full has its adapter in any layer (check_target_module_exists of peft/tuners/tuners_utils.py). */
bool peft_leaves_out_layer(const json_t *content, const char *module) {
    const json_t *targets = json_object_get(content, "target_modules");
    return lists_module(targets, module, false) && !lists_module(targets, module, true) &&
           !has_layer(json_object_get(content, "layers_to_transform"), module_layer(module));
}

/* -- Both together --------------------------------------------------------------------------------------------------- */

/* Sets *excluded if exclude_modules selects the module; an empty field excludes none. */
static bool excludes(const PeftModules *modules, const char *module, bool *excluded, Error *error) {
    const json_t *field = json_object_get(modules->content, "exclude_modules");
    *excluded = lists_module(field, module, false);
    return !modules->excluded || peft_is_empty(field) || module_matches(modules, modules->excluded, module, excluded, error);
}

bool peft_modules_has(const PeftModules *modules, const char *module, bool linear, bool *has, Error *error) {
    const json_t *targets = json_object_get(modules->content, "target_modules");
    bool excluded = false;
    *has = is_all_linear(targets) ? linear : lists_module(targets, module, false) && !peft_leaves_out_layer(modules->content, module);
    if (modules->targets && !module_matches(modules, modules->targets, module, has, error)) return false;
    if (*has && !excludes(modules, module, &excluded, error)) return false;
    *has = *has && !excluded;
    return true;
}

bool peft_modules_has_tensor(const PeftModules *modules, const char *stem, const char *module, bool *has, Error *error) {
    const json_t *targets = json_object_get(modules->content, "target_modules"),
                 *parameters = json_object_get(modules->content, "target_parameters");
    SCOPED_FREE char *weight = memory_format("%s.weight", stem);
    bool known = json_is_string(targets) || json_is_array(targets) || (parameters && !peft_is_empty(parameters)), excluded = false;
    *has = lists_module(parameters, weight, false) || lists_module(parameters, module, false);
    if (known) return *has || peft_modules_has(modules, stem, true, has, error);
    if (!excludes(modules, stem, &excluded, error)) return false;
    *has = !excluded;
    return true;
}

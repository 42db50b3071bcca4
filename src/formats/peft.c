/* Reads and writes PEFT's folders of adapters (peft/utils/save_and_load.py,
 * peft/tuners/lora/layer.py of 0.21).
 *
 * A linear layer's adapter has our names after "base_model.model.": NAME.lora_A.weight [rank, in]
 * and NAME.lora_B.weight [out, rank]. The adapters of experts belong to parameters, not to modules
 * (target_parameters). PEFT nests the adapters of a module: gate_up_proj's is inside down_proj's
 * and is called experts.base_layer.lora_A.weight; down_proj's, or a single one, is called
 * experts.lora_A.weight. Our A [E, rank, in] is PEFT's [E * rank, in]. Our B [E, out, rank] is
 * PEFT's [out, rank * E], with the expert as the fastest index. */
#include "formats/peft.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/element.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/lora_targets.h"
#include "formats/hf_internal.h"
#include "model/builder.h"
#include "formats/peft_internal.h"

#define PREFIX "base_model.model."
#define DOWN ".lora_A.weight"
#define UP ".lora_B.weight"
#define GATE_UP ".experts.gate_up_proj"
#define DOWN_PROJ ".experts.down_proj"
#define HEAD "lm_head.weight"
#define ROWS_BASE ".token_adapter.base_layer.weight" /* the table that LORA_ROWS changes, saved if it was resized */

/* -- Names --------------------------------------------------------------------------------------------------------- */

/* Returns the module of an adapter's parameter, for the caller to free; NULL if the name is not an
 * adapter's. */
static char *module_of(const char *name) {
    if (!ends_with(name, DOWN) && !ends_with(name, UP)) return NULL;
    return memory_format("%.*s", (int)(strlen(name) - strlen(DOWN)), name);
}

/* Returns whether a name is that of a router, whose matrix is a parameter of a module that is not a
 * linear layer. */
static bool is_router_matrix(const char *module) { return ends_with(module, ".mlp.gate") || ends_with(module, ".mlp.router"); }

/* Returns PEFT's name of a trained parameter, for the caller to free. */
static char *stored_name(const Graph *graph, const Parameter *p) {
    SCOPED_FREE char *module = module_of(p->name);
    const char *half = p->name + (module ? strlen(module) : 0);
    if (!module) return memory_format(PREFIX "%s", p->name); /* a table that is trained in full */
    bool inner = ends_with(module, GATE_UP), outer = ends_with(module, DOWN_PROJ);
    if (!inner && !outer) return memory_format(PREFIX "%s", p->name);
    int stem = (int)(strlen(module) - strlen(inner ? GATE_UP : DOWN_PROJ));
    SCOPED_FREE char *other = memory_format("%.*s" DOWN_PROJ DOWN, stem, module);
    return memory_format(
        PREFIX "%.*s.experts%s%s", stem, module, inner && graph_find_parameter(graph, other) >= 0 ? ".base_layer" : "", half);
}

/* -- The configuration ---------------------------------------------------------------------------------------------- */

/* Fields of adapter_config.json that other code reads, or that do not affect the computation, with
 * their types besides null. */
typedef enum PeftFieldKind { PEFT_BOOLEAN = 1, PEFT_TEXT = 2, PEFT_NUMBER = 4, PEFT_LIST = 8, PEFT_OBJECT = 16 } PeftFieldKind;
static const struct {
    const char *name;
    unsigned kinds;
} known[] = {
    {"auto_mapping", PEFT_OBJECT},
    {"base_model_name_or_path", PEFT_TEXT},
    {"bias", PEFT_TEXT},
    {"corda_config", PEFT_OBJECT},
    {"ensure_weight_tying", PEFT_BOOLEAN},
    {"eva_config", PEFT_OBJECT},
    {"exclude_modules", PEFT_TEXT | PEFT_LIST},
    {"fan_in_fan_out", PEFT_BOOLEAN},
    {"inference_mode", PEFT_BOOLEAN},
    {"init_lora_weights", PEFT_BOOLEAN | PEFT_TEXT},
    {"layers_pattern", PEFT_TEXT | PEFT_LIST},
    {"layers_to_transform", PEFT_NUMBER | PEFT_LIST},
    {"loftq_config", PEFT_OBJECT},
    {"lora_alpha", PEFT_NUMBER},
    {"lora_dropout", PEFT_NUMBER},
    {"lora_ga_config", PEFT_OBJECT},
    {"megatron_core", PEFT_TEXT},
    {"modules_to_save", PEFT_LIST},
    {"peft_type", PEFT_TEXT},
    {"peft_version", PEFT_TEXT},
    {"qalora_group_size", PEFT_NUMBER},
    {"r", PEFT_NUMBER},
    {"revision", PEFT_TEXT},
    {"target_modules", PEFT_TEXT | PEFT_LIST},
    {"target_parameters", PEFT_LIST},
    {"task_type", PEFT_TEXT},
    {"trainable_token_indices", PEFT_LIST | PEFT_OBJECT},
    {"use_rslora", PEFT_BOOLEAN},
    {"velora_config", PEFT_OBJECT},
};

static PeftFieldKind kind_of_value(const json_t *value) {
    if (json_is_number(value) || json_wide_number(value)) return PEFT_NUMBER;
    return json_is_boolean(value) ? PEFT_BOOLEAN : json_is_string(value) ? PEFT_TEXT : json_is_array(value) ? PEFT_LIST : PEFT_OBJECT;
}

/* Names and numbers alone are members of lists. */
static bool is_plain_value(const json_t *value) {
    bool plain = true;
    for (size_t i = 0; i < json_array_size(value); i++)
        plain = plain && (json_is_string(json_array_get(value, i)) || json_is_integer(json_array_get(value, i)));
    return plain;
}

/* An unknown field is allowed only if its value switches the feature off. */
static bool check_field(const char *field, const json_t *value, const char *path, Error *error) {
    if (json_is_null(value)) return true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, field) != 0) continue;
        return ((known[i].kinds & kind_of_value(value)) && is_plain_value(value)) ||
               error_set(error, ERROR_CHECKPOINT, "%s: %s does not have the type that PEFT writes (%s)", path, field,
                   known[i].kinds & PEFT_BOOLEAN  ? "true or false"
                   : known[i].kinds & PEFT_NUMBER ? "a number"
                   : known[i].kinds & PEFT_LIST   ? "a list"
                   : known[i].kinds & PEFT_OBJECT ? "a string"
                                                  : "a text");
    }
    return peft_is_empty(value) ||
           error_set(error, ERROR_CHECKPOINT,
               "%s: smelt does not support %s: merge the adapters into their base with PEFT (merge_and_unload), and use the result", path,
               field);
}

/* Some initializations change the base: PiSSA, OLoRA, LoftQ, CorDA and LoRA-GA subtract from its
 * weights. */
static bool changes_base(const json_t *content) {
    const char *start = json_string_value(json_object_get(content, "init_lora_weights"));
    return start && strcmp(start, "gaussian") != 0 && strcmp(start, "eva") != 0 && strcmp(start, "orthogonal") != 0;
}

/* Checks that texts that appear in messages have no control characters. */
static bool check_texts(const json_t *content, const char *path, Error *error) {
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)content, field, value) {
        const char *text = json_string_value(value);
        if (!name_is_plain(field) || (text && !name_is_plain(text)))
            return error_set(error, ERROR_CHECKPOINT, "%s: a field or its value contains a control character", path);
    }
    return true;
}

static bool check_peft_fields(const json_t *content, const char *path, Error *error) {
    const char *field;
    json_t *value;
    json_object_foreach((json_t *)content, field, value) if (!check_field(field, value, path, error)) return false;
    const char *type = json_string_value(json_object_get(content, "peft_type")),
               *bias = json_string_value(json_object_get(content, "bias"));
    if (!type || strcmp(type, "LORA") != 0)
        return error_set(error, ERROR_CHECKPOINT, "%s: peft_type is \"%s\", but smelt supports only LORA", path, type ? type : "");
    if (bias && strcmp(bias, "none") != 0)
        return error_set(error, ERROR_CHECKPOINT, "%s: bias is \"%s\", but smelt supports only none", path, bias);
    if (changes_base(content))
        return error_set(error, ERROR_CHECKPOINT,
            "%s: init_lora_weights is \"%s\", which changes the base's weights: save the adapter with PEFT's "
            "path_initial_model_for_weight_conversion",
            path, json_string_value(json_object_get(content, "init_lora_weights")));
    return true;
}

static bool read_peft_number(
    const json_t *content, const char *field, const char *path, double least, double most, double *number, Error *error) {
    const json_t *value = json_object_get(content, field);
    *number = json_finite_value(value);
    return (json_is_finite(value) && *number >= least && *number <= most) ||
           error_set(error, ERROR_CHECKPOINT, "%s: %s is not a number from %g to %g", path, field, least, most);
}

static bool is_set(const json_t *content, const char *field) {
    const json_t *value = json_object_get(content, field);
    return value && !json_is_null(value);
}

static bool take_config(PeftFolder *peft, const json_t *content, const char *path, Error *error) {
    enum { MOST_RANK = 4096 };
    double rank = 0;
    if (!check_texts(content, path, error) || !check_peft_fields(content, path, error) ||
        !read_peft_number(content, "r", path, 1, MOST_RANK, &rank, error) ||
        !read_peft_number(content, "lora_alpha", path, 1e-6, 1e6, &peft->lora.alpha, error) ||
        (is_set(content, "lora_dropout") && !read_peft_number(content, "lora_dropout", path, 0, 1, &peft->dropout, error)))
        return false;
    const char *base = json_string_value(json_object_get(content, "base_model_name_or_path"));
    peft->lora.rank = (int64_t)rank;
    if (rank != (double)peft->lora.rank) return error_set(error, ERROR_CHECKPOINT, "%s: r is not an integer", path);
    peft->lora.rslora = json_is_true(json_object_get(content, "use_rslora"));
    peft->base = memory_copy_string(base ? base : "");
    return true;
}

/* -- The tensors ---------------------------------------------------------------------------------------------------- */

static bool names_down_proj(const json_t *content) {
    const json_t *parameters = json_object_get(content, "target_parameters");
    for (size_t i = 0; i < json_array_size(parameters); i++) {
        const char *name = json_string_value(json_array_get(parameters, i));
        if (name && ends_with(name, "down_proj")) return true;
    }
    return false;
}

/* Returns our name of the module to which a tensor called PREFIX STEM DOWN belongs, for the caller
 * to free. */
static char *named_module(const PeftFolder *peft, const json_t *content, const char *stem) {
    static const char inner[] = ".experts.base_layer";
    if (ends_with(stem, inner)) return memory_format("%.*s" GATE_UP, (int)(strlen(stem) - strlen(inner)), stem);
    if (!ends_with(stem, ".experts")) return memory_copy_string(stem);
    SCOPED_FREE char *other = memory_format(PREFIX "%s.base_layer" DOWN, stem);
    bool outer = safetensors_find(&peft->file, other) || names_down_proj(content);
    return memory_format("%.*s%s", (int)(strlen(stem) - strlen(".experts")), stem, outer ? DOWN_PROJ : GATE_UP);
}

/* An adapter consists of two tensors. */
static bool check_pair(const PeftFolder *peft, const char *name, const char *stem, Error *error) {
    SCOPED_FREE char *other = memory_format(PREFIX "%s%s", stem, ends_with(name, DOWN) ? UP : DOWN);
    return safetensors_find(&peft->file, other) ||
           error_set(error, ERROR_CHECKPOINT, "%s has %s but not %s: an adapter needs both", peft->path, name, other);
}

/* PEFT ignores an adapter that its configuration does not name. */
static bool check_named(const PeftFolder *peft, const PeftModules *modules, const char *name, const char *stem, Error *error) {
    SCOPED_FREE char *module = named_module(peft, peft->content, stem);
    bool named = false;
    if (peft_leaves_out_layer(peft->content, stem))
        return error_set(
            error, ERROR_CHECKPOINT, "%s has %s, but layers_to_transform in its adapter_config.json excludes the layer", peft->path, name);
    if (!peft_modules_has_tensor(modules, stem, module, &named, error)) return false;
    return named ||
           error_set(error, ERROR_CHECKPOINT,
               "%s has %s, but its adapter_config.json gives the layer no adapter (target_modules, exclude_modules, target_parameters)",
               peft->path, name);
}

/* Returns true if a tensor is a parameter of the base, or rows of one, and not part of an adapter. */
static bool is_of_base(const char *name) {
    SCOPED_FREE char *half = module_of(name);
    return !half && starts_with(name, PREFIX) && (ends_with(name, ".weight") || ends_with(name, ".bias") || ends_with(name, LORA_ROWS));
}

/* Sets the targets to all modules that have an A. */
static bool list_targets(PeftFolder *peft, const json_t *content, Error *error) {
    SCOPED(peft_modules_close) PeftModules modules = {0};
    if (!peft_modules_open(&modules, content, peft->path, error)) return false;
    peft->targets = memory_copy_string("");
    for (size_t i = 0; i < peft->file.count; i++) {
        const char *name = peft->file.tensors[i].name;
        peft->replaces = peft->replaces || is_of_base(name);
        if (is_of_base(name)) continue;
        SCOPED_FREE char *stem = starts_with(name, PREFIX) ? module_of(name + strlen(PREFIX)) : NULL;
        if (!stem || strchr(stem, ','))
            return error_set(
                error, ERROR_CHECKPOINT, "%s: %s is not an adapter of a linear layer (" PREFIX "MODULE" DOWN ")", peft->path, name);
        if (!check_pair(peft, name, stem, error) || !check_named(peft, &modules, name, stem, error)) return false;
        if (!ends_with(name, DOWN)) continue;
        SCOPED_FREE char *module = named_module(peft, content, stem), *before = peft->targets;
        peft->targets = memory_format("%s%s%s", before, *before ? "," : "", module);
    }
    peft->lora.targets = peft->targets;
    return *peft->targets || error_set(error, ERROR_CHECKPOINT, "%s has no adapters", peft->path);
}

/* Checks that the folder has a tensor with the suffix `end`, named by a field of the configuration. */
static bool check_end(const PeftFolder *peft, const char *end, const char *field, Error *error) {
    for (size_t i = 0; i < peft->file.count; i++)
        if (ends_with(peft->file.tensors[i].name, end)) return true;
    return error_set(
        error, ERROR_CHECKPOINT, "%s has no tensor %s, although %s in its adapter_config.json names it", peft->path, end, field);
}

/* PEFT would silently use the base's weights if a module of modules_to_save has no tensor. */
static bool check_saved_modules(const PeftFolder *peft, Error *error) {
    const json_t *modules = json_object_get(peft->content, "modules_to_save"),
                 *rows = json_object_get(peft->content, "trainable_token_indices"), *list;
    const char *module;
    for (size_t i = 0; i < json_array_size(modules); i++) {
        const char *name = json_string_value(json_array_get(modules, i));
        SCOPED_FREE char *end = memory_format("%s.weight", name ? name : "");
        if (!check_end(peft, end, "modules_to_save", error)) return false;
    }
    json_object_foreach((json_t *)rows, module, list) {
        SCOPED_FREE char *end = memory_format("%s" LORA_ROWS, module);
        if (!check_end(peft, end, "trainable_token_indices", error)) return false;
    }
    return !json_array_size(rows) || check_end(peft, LORA_ROWS, "trainable_token_indices", error);
}

bool peft_is_folder(const char *folder) {
    SCOPED_FREE char *path = memory_format("%s/adapter_config.json", folder);
    return file_exists(path);
}

bool peft_open(PeftFolder *peft, const char *folder, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/adapter_config.json", folder),
                     *tensors = memory_format("%s/adapter_model.safetensors", folder);
    json_auto_t *content = json_read(path, ERROR_CHECKPOINT, error);
    if (!content) return false;
    *peft = (PeftFolder){.path = memory_copy_string(folder), .content = json_incref(content)};
    if (take_config(peft, content, path, error) && safetensors_open(&peft->file, tensors, error) && list_targets(peft, content, error) &&
        check_saved_modules(peft, error) && lora_check_list(&peft->lora, error))
        return true;
    peft_close(peft);
    return false;
}

void peft_close(PeftFolder *peft) {
    safetensors_close(&peft->file);
    free(peft->path);
    free(peft->base);
    free(peft->targets);
    json_decref(peft->content);
    *peft = (PeftFolder){0};
}

/* Experts, rows and columns of A (`down`) or B of an adapter. */
typedef struct Half {
    int64_t experts, rows, columns;
    bool down, alternates; /* of the layer (Parameter.alternates): B has its rows in the same order */
} Half;

static Half half_of(const Graph *graph, const Parameter *p) {
    SCOPED_FREE char *module = module_of(p->name);
    int layer = graph_find_parameter(graph, module);
    return (Half){.experts = p->rank == 3 ? p->shape[0] : 1,
        .rows = p->shape[p->rank - 2],
        .columns = p->shape[p->rank - 1],
        .down = ends_with(p->name, DOWN) != 0,
        .alternates = layer >= 0 && graph->parameters[layer].alternates};
}

/* Returns PEFT's index of element (row, column) of an expert's half. */
static int64_t stored_at(const Half *h, int64_t expert, int64_t row, int64_t column) {
    if (h->down) return (expert * h->rows + row) * h->columns + column;
    if (h->alternates) row = hf_stored_row(&(HfTensor){.paired = h->rows}, row);
    return (row * h->columns + column) * h->experts + expert;
}

/* Loops over the elements; `ours` and `theirs` are the indices of an element. */
#define EACH_ELEMENT(h, ours, theirs)                                                                       \
    for (int64_t e = 0, ours = 0; e < (h).experts; e++)                                                     \
        for (int64_t r = 0; r < (h).rows; r++)                                                              \
            for (int64_t c = 0, theirs = stored_at(&(h), e, r, 0); c < (h).columns; c++, ours++, theirs = stored_at(&(h), e, r, c))

/* Refuses NaN and infinity here. Otherwise the first generated token would be the first sign of them. */
static bool check_values(const PeftFolder *peft, const StoredTensor *tensor, Error *error) {
    if (stored_check_finite(tensor, error)) return true;
    error_recode(error, ERROR_CHECKPOINT);
    return error_context(error, "%s is damaged, or its training diverged: use an earlier checkpoint of it", peft->path);
}

static bool load_half(const PeftFolder *peft, const Graph *graph, const Parameter *p, void *master, Error *error) {
    SCOPED_FREE char *name = stored_name(graph, p);
    const StoredTensor *stored = safetensors_find(&peft->file, name);
    Half h = half_of(graph, p);
    int64_t rows = h.down ? h.experts * h.rows : h.rows, columns = h.down ? h.columns : h.columns * h.experts;
    if (!stored) return error_set(error, ERROR_CHECKPOINT, "%s has no tensor %s", peft->path, name);
    if (stored->rank != 2 || stored->shape[0] != rows || stored->shape[1] != columns || stored->type > STORED_F16)
        return error_set(error, ERROR_CHECKPOINT, "%s: %s is not [%lld, %lld] in F32, BF16 or F16", peft->path, name, (long long)rows,
            (long long)columns);
    if (!check_values(peft, stored, error)) return false;
    SCOPED_FREE float *values = memory_allocate((size_t)p->count * sizeof *values);
    hf_convert(sizeof *values, values, stored->type, stored->data, p->count);
    EACH_ELEMENT(h, ours, theirs) element_set((size_t)p->element_bytes, parameter_in(p, master), ours, values[theirs]);
    return true;
}

/* Checks that each selected matrix has an adapter. PEFT would initialize a missing one. */
static bool check_missing(const PeftFolder *peft, const Graph *graph, Error *error) {
    static const char end[] = ".weight";
    SCOPED(peft_modules_close) PeftModules modules = {0};
    if (!peft_modules_open(&modules, peft->content, peft->path, error)) return false;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (!p->frozen || p->rank != 2 || !ends_with(p->name, end)) continue;
        SCOPED_FREE char *module = memory_format("%.*s", (int)(strlen(p->name) - strlen(end)), p->name),
                         *down = memory_format(PREFIX "%s" DOWN, module);
        bool linear = p->kind == PARAMETER_MATRIX && !is_router_matrix(module), named = false;
        if (!peft_modules_has(&modules, module, linear, &named, error)) return false;
        if (named && !safetensors_find(&peft->file, down))
            return error_set(error, ERROR_CHECKPOINT,
                "%s has no tensor %s, although target_modules in its adapter_config.json selects the layer", peft->path, down);
    }
    return true;
}

/* -- Parts of the base ------------------------------------------------------------------------------------------------ */

/* Returns the ids of a module's table whose rows the folder holds. The field is a list of ids, or
 * an object of lists by suffixes of module names. */
static const json_t *find_module_rows(const PeftFolder *peft, const char *module) {
    const json_t *indices = json_object_get(peft->content, "trainable_token_indices"), *list;
    const char *name;
    json_object_foreach((json_t *)indices, name, list) {
        size_t length = strlen(name), size = strlen(module);
        if (length <= size && !strcmp(module + size - length, name) && (length == size || module[size - length - 1] == '.')) return list;
    }
    return json_is_array(indices) ? indices : NULL;
}

/* Returns true for the copies of a resized module that PEFT saves besides the tensor that it reads. */
static bool is_copy(const char *name) { return ends_with(name, ".modules_to_save.weight") || ends_with(name, ".original_module.weight"); }

static bool refuse_adapter_tensor(const PeftFolder *peft, const StoredTensor *tensor, const char *why, Error *error) {
    return error_set(error, ERROR_CHECKPOINT, "%s: %s %s", peft->path, tensor->name, why);
}

/* Returns the row of an id among the rows of the runs or, without runs, of a table; -1: there is
 * none. */
static int64_t trained_row(const Parameter *p, const TokenRuns *runs, int64_t id) {
    if (!runs->count) return id < p->shape[0] ? id : -1;
    for (const TokenRun *run = runs->items; run < runs->items + runs->count; run++)
        if (id >= run->first && id < run->first + run->count) return run->row + id - run->first;
    return -1;
}

/* Writes values [count, width] over rows of a table, or over the rows of lora.tokens. */
static bool put_trained_rows(const PeftFolder *peft, const StoredTensor *tensor, const char *module, const Parameter *p,
    const TokenRuns *runs, const float *values, void *master, Error *error) {
    const json_t *rows = find_module_rows(peft, module);
    size_t count = json_array_size(rows);
    if (p->rank != 2 || tensor->rank != 2 || tensor->shape[1] != p->shape[1] || count != (size_t)tensor->shape[0])
        return refuse_adapter_tensor(peft, tensor, "does not have one row per id of trainable_token_indices", error);
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_array_get(rows, i);
        int64_t row = json_is_integer(id) && json_integer_value(id) >= 0 ? trained_row(p, runs, json_integer_value(id)) : -1;
        if (row < 0 || (runs->count && count != (size_t)p->shape[0]))
            return refuse_adapter_tensor(
                peft, tensor, runs->count ? "has ids other than those of lora.tokens" : "has ids for which the base has no rows", error);
        for (int64_t c = 0; c < p->shape[1]; c++)
            element_set((size_t)p->element_bytes, parameter_in(p, master), row * p->shape[1] + c, values[(int64_t)i * p->shape[1] + c]);
    }
    return true;
}

static bool put_whole(
    const PeftFolder *peft, const StoredTensor *tensor, const Parameter *p, const float *values, void *master, Error *error) {
    bool fits = tensor->rank == p->rank && !hf_reorders(p);
    for (int i = 0; i < p->rank && fits; i++) fits = tensor->shape[i] == p->shape[i];
    if (!fits)
        return refuse_adapter_tensor(peft, tensor,
            "does not have the base's shape; for new tokens, write a base with their rows (smelt convert BASE FOLDER tokens.add=A,B) and "
            "give ADAPTER@FOLDER",
            error);
    for (int64_t i = 0; i < p->count; i++) element_set((size_t)p->element_bytes, parameter_in(p, master), i, values[i]);
    return true;
}

/* Returns the first token table of a tied model, or -1. */
static int find_table(const Graph *graph) {
    for (int i = 0; i < graph->parameter_count; i++)
        if (graph->parameters[i].kind == PARAMETER_EMBEDDING) return i;
    return -1;
}

/* Returns the module that a tensor of the base is the weight of, or has rows of, for the caller to
 * free. */
static char *replaced_module(const char *tensor) {
    const char *name = tensor + strlen(PREFIX);
    const char *end = ends_with(name, LORA_ROWS) ? LORA_ROWS : ends_with(name, ROWS_BASE) ? ROWS_BASE : ".weight";
    return memory_format("%.*s", (int)(strlen(name) - (ends_with(name, end) ? strlen(end) : 0)), name);
}

/* Returns the parameter that a tensor of the base is, or has rows of; -1: the model has none. */
static int find_replaced(const Graph *graph, const char *tensor) {
    SCOPED_FREE char *module = replaced_module(tensor), *weight = memory_format("%s.weight", module);
    int index = graph_find_parameter(graph, ends_with(tensor, ".bias") ? tensor + strlen(PREFIX) : weight);
    return index < 0 && !strcmp(weight, HEAD) ? find_table(graph) : index;
}

/* Checks that the folder has the same values for a tied model's table and its head. PEFT saves both
 * with ensure_weight_tying, and otherwise trains them separately. In GPT-2 and MPT it trains them
 * separately even with ensure_weight_tying, unless modules_to_save names both. */
static bool check_tied(const PeftFolder *peft, const StoredTensor *tensor, const Parameter *table, Error *error) {
    SCOPED_FREE char *module = replaced_module(tensor->name);
    const char *part = tensor->name + strlen(PREFIX) + strlen(module);
    SCOPED_FREE char *name = memory_format(PREFIX "%.*s%s", (int)(strlen(table->name) - strlen(".weight")), table->name, part),
                     *head = memory_format(PREFIX "lm_head%s", part);
    const StoredTensor *a = safetensors_find(&peft->file, name), *b = safetensors_find(&peft->file, head);
    bool alike = a && b && a->type == b->type && a->rank == 2 && b->rank == 2 && a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1];
    if (!b && strcmp(part, ".weight") != 0) return true; /* rows of a tied table are saved once, unless it was resized */
    return (alike && !memcmp(a->data, b->data, (size_t)(a->shape[0] * a->shape[1]) * stored_type_bytes(a->type))) ||
           refuse_adapter_tensor(peft, tensor,
               "was trained separately from the tied head or embedding, but this base has one table for both: train it with "
               "ensure_weight_tying and both names in modules_to_save",
               error);
}

/* Writes a tensor over parameter `index`: a table or, with `runs`, the rows that these name. */
static bool replace_one(
    const PeftFolder *peft, const StoredTensor *tensor, const Graph *graph, int index, const TokenRuns *runs, void *master, Error *error) {
    bool rows = ends_with(tensor->name, LORA_ROWS), tied = graph_find_parameter(graph, HEAD) < 0;
    SCOPED_FREE char *module = replaced_module(tensor->name);
    if (index < 0) return refuse_adapter_tensor(peft, tensor, "does not belong to a layer of the model", error);
    const Parameter *p = &graph->parameters[index];
    if (tied && index == find_table(graph) && !check_tied(peft, tensor, p, error)) return false;
    if (tied && rows && !strcmp(module, "lm_head")) return true; /* the same rows as the embedding's */
    if (tensor->type > STORED_F16) return refuse_adapter_tensor(peft, tensor, "is not F32, BF16 or F16", error);
    if (!check_values(peft, tensor, error)) return false;
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    SCOPED_FREE float *values = memory_allocate((size_t)(count + 1) * sizeof *values);
    hf_convert(sizeof *values, values, tensor->type, tensor->data, count);
    return rows ? put_trained_rows(peft, tensor, module, p, runs, values, master, error)
                : put_whole(peft, tensor, p, values, master, error);
}

bool peft_replace(const PeftFolder *peft, const Graph *graph, void *master, Error *error) {
    for (int rows = 0; rows < 2; rows++) /* whole tables before their rows */
        for (size_t i = 0; i < peft->file.count; i++) {
            const StoredTensor *tensor = &peft->file.tensors[i];
            bool due = is_of_base(tensor->name) && !is_copy(tensor->name) && ends_with(tensor->name, LORA_ROWS) == rows;
            if (due && !replace_one(peft, tensor, graph, find_replaced(graph, tensor->name), &(TokenRuns){0}, master, error)) return false;
        }
    return true;
}

/* -- Reading what a run trains ---------------------------------------------------------------------------------------- */

/* Returns the trained parameter that a tensor of the base is for; -1: the graph has none. */
static int find_trained(const Graph *graph, const char *tensor) {
    if (ends_with(tensor, ROWS_BASE)) return -1; /* the table of another base */
    int index = ends_with(tensor, LORA_ROWS) ? graph_find_parameter(graph, tensor + strlen(PREFIX)) : find_replaced(graph, tensor);
    return index >= 0 && !graph->parameters[index].frozen ? index : -1;
}

bool peft_check_trained(const PeftFolder *peft, const Graph *graph, Error *error) {
    for (size_t i = 0; i < peft->file.count; i++) {
        const char *name = peft->file.tensors[i].name;
        if (is_of_base(name) && !is_copy(name) && find_trained(graph, name) < 0)
            return error_set(error, ERROR_USAGE,
                "%s also contains weights of the base, but this run does not train %s: name fully trained tables in lora.modules_to_save "
                "and ids of rows in lora.tokens, or merge them into a base with smelt convert %s merged",
                peft->path, name, peft->path);
    }
    return true;
}

void peft_freeze_absent(const PeftFolder *peft, Graph *graph) {
    for (int i = 0; i < graph->parameter_count; i++) {
        Parameter *p = &graph->parameters[i];
        SCOPED_FREE char *half = module_of(p->name), *name = half ? NULL : stored_name(graph, p);
        if (!half) p->frozen = p->frozen || !safetensors_find(&peft->file, name);
    }
}

/* Fills the tables and rows that the graph trains. */
static bool load_saved(const PeftFolder *peft, const LoraConfig *lora, const Graph *graph, void *master, Error *error) {
    const TokenRuns runs = lora_token_runs(lora);
    for (size_t i = 0; i < peft->file.count; i++) {
        const StoredTensor *tensor = &peft->file.tensors[i];
        int index = is_of_base(tensor->name) && !is_copy(tensor->name) ? find_trained(graph, tensor->name) : -1;
        if (index >= 0 && !replace_one(peft, tensor, graph, index, &runs, master, error)) return false;
    }
    return true;
}

bool peft_load(const PeftFolder *peft, const LoraConfig *lora, const Graph *graph, void *master, Error *error) {
    size_t count = 0;
    if (!check_missing(peft, graph, error) || !load_saved(peft, lora, graph, master, error)) return false;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        SCOPED_FREE char *half = p->frozen ? NULL : module_of(p->name);
        if (!half) continue;
        if (!load_half(peft, graph, p, master, error)) return false;
        count++;
    }
    if (count == peft->file.count) return true;
    for (size_t i = 0; i < peft->file.count; i++) {
        bool used = is_of_base(peft->file.tensors[i].name); /* peft_replace reads it */
        for (int j = 0; j < graph->parameter_count && !used; j++) {
            SCOPED_FREE char *name = graph->parameters[j].frozen ? NULL : stored_name(graph, &graph->parameters[j]);
            used = name && !strcmp(name, peft->file.tensors[i].name);
        }
        if (!used)
            return error_set(
                error, ERROR_CHECKPOINT, "%s: %s does not belong to a layer with an adapter", peft->path, peft->file.tensors[i].name);
    }
    return true;
}

/* -- Writing -------------------------------------------------------------------------------------------------------- */

/* Returns "self_attn.q_proj" for "model.layers.3.self_attn.q_proj": the text after the layer's
 * number. PEFT compares suffixes of names. */
static const char *module_end(const char *module) {
    const char *begin = module + strcspn(module, "0123456789");
    return begin + strspn(begin, "0123456789.");
}

static bool array_holds(const json_t *array, const char *text) {
    for (size_t i = 0; i < json_array_size(array); i++)
        if (!strcmp(json_string_value(json_array_get(array, i)), text)) return true;
    return false;
}

/* Returns "embed_tokens" for "model.embed_tokens". */
static const char *last_part(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

/* How many modules with this end have adapters. */
static int64_t count_name_ends(const Graph *graph, const char *end) {
    int64_t count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        SCOPED_FREE char *module = p->frozen || !ends_with(p->name, DOWN) ? NULL : module_of(p->name);
        count += module && !strcmp(module_end(module), end);
    }
    return count;
}

/* Returns whether smelt's matrix is a parameter of a module in transformers: stacks of experts, and
 * routers of some classes. */
static bool is_parameter(const char *module, const HfClass *class) {
    return ends_with(module, GATE_UP) || ends_with(module, DOWN_PROJ) || (class->router_is_parameter && is_router_matrix(module));
}

/* Returns the ids of lora.tokens, by the names of the modules whose rows the graph trains; NULL: it
 * trains none. */
static json_t *trained_token_list(const LoraConfig *lora, const Graph *graph) {
    json_t *modules = json_object();
    const TokenRuns runs = lora_token_runs(lora);
    for (int i = 0; i < graph->parameter_count; i++) {
        const char *name = graph->parameters[i].name;
        if (!ends_with(name, LORA_ROWS)) continue;
        SCOPED_FREE char *module = memory_format("%.*s", (int)(strlen(name) - strlen(LORA_ROWS)), name);
        json_t *ids = json_array();
        for (const TokenRun *run = runs.items; run < runs.items + runs.count; run++)
            for (int64_t id = run->first; id < run->first + run->count; id++) json_array_append_new(ids, json_integer(id));
        json_object_set_new(modules, last_part(module), ids);
    }
    if (json_object_size(modules)) return modules;
    json_decref(modules);
    return NULL;
}

static json_t *adapter_config_json(const char *base, const LoraConfig *lora, const ModelConfig *model, const Graph *graph) {
    json_t *modules = json_array(), *parameters = json_array(), *saved = json_array();
    bool transposed = false;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        transposed |= p->transposed && p->rank == 2; /* of gpt2's linear layers */
        SCOPED_FREE char *module = p->frozen ? NULL : module_of(p->name), *table = parameter_module(p->name);
        if (!p->frozen && !module && !ends_with(table, LORA_ROWS)) json_array_append_new(saved, json_string(last_part(table)));
        if (!module || !ends_with(p->name, DOWN)) continue;
        const char *name = count_name_ends(graph, module_end(module)) == model->layers ? module_end(module) : module;
        bool parameter = is_parameter(module, hf_class(model));
        SCOPED_FREE char *target = memory_format("%s%s", name, parameter && is_router_matrix(module) ? ".weight" : "");
        json_t *list = parameter ? parameters : modules;
        if (!array_holds(list, target)) json_array_append_new(list, json_string(target));
    }
    const char *task = model_makes_images(model) ? NULL : "CAUSAL_LM";
    json_t *content = json_pack("{s:s, s:s?, s:s, s:I, s:f, s:b, s:f, s:s, s:b, s:b, s:o}", "peft_type", "LORA", "task_type", task,
        "base_model_name_or_path", base, "r", (json_int_t)lora->rank, "lora_alpha", lora->alpha, "use_rslora", lora->rslora, "lora_dropout",
        0.0, "bias", "none", "inference_mode", 1, "fan_in_fan_out", transposed, "target_modules", modules);
    if (content && json_array_size(parameters)) json_object_set(content, "target_parameters", parameters);
    if (content && json_array_size(saved)) json_object_set(content, "modules_to_save", saved);
    if (content && json_array_size(saved) && model->tied) {
        json_array_append_new(saved, json_string("lm_head"));
        json_object_set_new(content, "ensure_weight_tying", json_true());
    }
    json_t *tokens = trained_token_list(lora, graph);
    if (content && tokens) json_object_set(content, "trainable_token_indices", tokens);
    json_decref(parameters);
    json_decref(saved);
    json_decref(tokens);
    return content;
}

static bool write_adapter_config(
    const char *folder, const char *base, const LoraConfig *lora, const ModelConfig *model, const Graph *graph, Error *error) {
    json_auto_t *content = adapter_config_json(base, lora, model, graph);
    SCOPED_FREE char *text = content ? json_dumps(content, JSON_INDENT(2)) : NULL;
    SCOPED_FREE char *path = memory_format("%s/adapter_config.json", folder);
    if (!text) return error_set(error, ERROR_USAGE, "%s: the name of the base, %s, is not valid UTF-8: rename it", path, base);
    return file_write(path, text, (int64_t)strlen(text), error);
}

/* Converts a table to fp32. */
static StoredTensor store_table(const Graph *graph, const Parameter *p, const void *master) {
    float *values = memory_allocate((size_t)p->count * sizeof *values);
    for (int64_t i = 0; i < p->count; i++) values[i] = (float)element_get((size_t)p->element_bytes, parameter_in(p, master), i);
    return (StoredTensor){
        .name = stored_name(graph, p), .type = STORED_F32, .rank = 2, .shape = {p->shape[0], p->shape[1]}, .data = values};
}

/* A file of tensors. Its B are multiplied by `factor`. */
typedef struct AdapterFile {
    const char *name, *prefix; /* in place of PREFIX */
    double factor;
} AdapterFile;

/* Converts one half of an adapter, A or B, to fp32 in PEFT's layout. `experts`: the number of
 * experts that share the half, each of which gets a copy; otherwise 1. */
static StoredTensor store_half(const AdapterFile *file, const Graph *graph, const Parameter *p, const void *master, int64_t experts) {
    SCOPED_FREE char *name = stored_name(graph, p);
    Half own = half_of(graph, p), h = own;
    const double factor = h.down ? 1 : file->factor;
    h.experts *= experts;
    float *values = memory_allocate((size_t)(p->count * experts) * sizeof *values);
    const void *from = parameter_in(p, master);
    EACH_ELEMENT(h, ours, theirs) values[theirs] = (float)(factor * element_get((size_t)p->element_bytes, from, ours % p->count));
    return (StoredTensor){.name = memory_format("%s%s", file->prefix, name + strlen(PREFIX)),
        .type = STORED_F32,
        .rank = 2,
        .shape = {h.down ? h.experts * h.rows : h.rows, h.down ? h.columns : h.columns * h.experts},
        .data = values};
}

static bool write_peft_tensors(
    const AdapterFile *file, const char *folder, int64_t experts, const Graph *graph, const void *master, Error *error) {
    SCOPED_FREE StoredTensor *tensors = memory_allocate((size_t)(graph->parameter_count + 2) * sizeof *tensors);
    bool tied = graph_find_parameter(graph, HEAD) < 0;
    size_t count = 0;
    bool finite = true;
    for (int i = 0; i < graph->parameter_count && finite; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->frozen) continue;
        bool shared = p->rank == 2 && (strstr(p->name, GATE_UP ".") || strstr(p->name, DOWN_PROJ "."));
        SCOPED_FREE char *half = module_of(p->name);
        tensors[count] = half ? store_half(file, graph, p, master, shared ? experts : 1) : store_table(graph, p, master);
        finite = stored_check_finite(&tensors[count++], error);
        if (half || !tied || ends_with(p->name, LORA_ROWS)) continue;
        tensors[count] = store_table(graph, p, master); /* PEFT wants the head beside the table that it is tied to */
        free((char *)tensors[count].name);
        tensors[count++].name = memory_copy_string(PREFIX HEAD);
    }
    SCOPED_FREE char *path = memory_format("%s/%s", folder, file->name);
    json_auto_t *metadata = json_pack("{s:s}", "format", "pt");
    bool written = finite && safetensors_write(path, tensors, count, metadata, error);
    for (size_t i = 0; i < count; i++) {
        free((char *)tensors[i].name);
        free((void *)tensors[i].data);
    }
    return written;
}

bool peft_check_modules(const ModelConfig *model, const Graph *graph, Error *error) {
    for (int i = 0; i < graph->parameter_count && model->experts; i++) {
        const char *name = graph->parameters[i].name;
        if (ends_with(name, DOWN) && strstr(name, ".mlp.") && !strstr(name, ".mlp.experts.") && !lora_is_router(name))
            return error_set(error, ERROR_USAGE,
                "%s: PEFT has no adapters of MLPs in a model with experts: leave out adapter=true, which writes the whole model, or train "
                "with lora.targets=attention,experts",
                name);
    }
    return true;
}

bool peft_write(const char *folder, const char *base, const LoraConfig *lora, const ModelConfig *model, const Graph *graph,
    const void *master, Error *error) {
    static const AdapterFile own = {"adapter_model.safetensors", PREFIX, 1};
    const AdapterFile images = {PEFT_IMAGE_FILE, "transformer.", lora_factor(lora)};
    return peft_check_modules(model, graph, error) && write_peft_tensors(&own, folder, model->experts, graph, master, error) &&
           (!model_makes_images(model) || write_peft_tensors(&images, folder, 0, graph, master, error)) &&
           write_adapter_config(folder, base, lora, model, graph, error);
}

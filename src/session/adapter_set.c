/* Reads adapters by name, and puts them into the tables of an engine. A table has the largest rank of all
 * adapters; smaller adapters are padded with zeros, and layers that an adapter lacks are zero. B is
 * multiplied by the factor alpha / rank before it is rounded, so the engine does not need the factor. */
#include "session/adapter_set.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_device.h"
#include "base/array.h"
#include "base/element.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/lora_targets.h"
#include "data/byte_tokenizer.h"
#include "formats/peft.h"
#include "run/generation_settings.h"
#include "run/lineage.h"
#include "run/source.h"
#include "session/adapter.h"
#include "token/tokenizer.h"

/* -- Reading the option -------------------------------------------------------------------------------------------- */

/* Opens a PEFT folder. Its base is the model, whatever base the folder names, as in FOLDER@MODEL. */
static bool open_peft_adapter(NamedAdapter *a, const char *value, const char *folder, const Config *config, Error *error) {
    SCOPED(peft_close) PeftFolder peft = {0};
    SCOPED_FREE char *path = adapter_folder(value);
    if (strcmp(path, value) != 0)
        return error_set(error, ERROR_USAGE, "%s names a base: leave it out, because the base is the model, %s", value, folder);
    if (!peft_open(&peft, value, error)) return false;
    if (peft.replaces)
        return error_set(error, ERROR_USAGE,
            "%s also holds parameters of the base (modules_to_save, or rows of tokens), but several adapters share one base: use it alone "
            "as "
            "MODEL, or merge it with smelt convert",
            value);
    if (*peft.base && !adapter_same_name(peft.base, folder))
        log_warn("%s was trained with %s, but the model is %s: adapters of another model give useless text", value, peft.base, folder);
    a->source = memory_format("%s@%s", value, folder);
    a->targets = memory_copy_string(peft.targets);
    a->config = *config;
    a->config.init = folder;
    a->config.model.mtp = 0;
    a->config.lora = peft.lora;
    a->config.lora.targets = a->targets;
    return lora_check_named(&config->model, &a->config.lora, error);
}

static bool open_run_adapter(NamedAdapter *a, const char *value, const char *folder, Error *error) {
    a->source = memory_copy_string(value);
    if (!source_read_config(value, &a->config, &a->strings, error)) return false;
    if (!a->config.lora.rank)
        return error_set(
            error, ERROR_USAGE, "%s has no adapters (lora.rank is 0): name a run that trains adapters, or a PEFT folder", value);
    return lineage_check_base(value, &a->config, folder, error);
}

/* Warns if an adapter has another chat template than the base. The template is in the PEFT folder, which
 * may lack a tokenizer, or beside the tokenizer of a run, `own`. */
static bool name_other_template(const NamedAdapter *a, const char *own, const char *folder, const char *base, Error *error) {
    SCOPED_FREE char *peft = adapter_is_folder(a->source) ? adapter_folder(a->source) : NULL;
    const char *place = peft ? peft : own;
    bool other = false;
    if (!*place || !strcmp(place, base)) return true;
    if (!tokenizer_has_other_template(place, *base ? base : folder, &other, error)) return false;
    if (other) log_warn("adapter %s has another chat template than %s, whose template renders messages", a->name, folder);
    return true;
}

/* Token ids must mean the same for all rows of a batch. */
static bool check_shared_tokenizer(const NamedAdapter *a, const char *folder, const Config *config, Error *error) {
    SCOPED_FREE char *own = source_tokenizer(a->source, &a->config), *base = source_tokenizer(folder, config);
    bool differs = false;
    if (!own || !base) return true;
    if (strcmp(own, base) != 0 && !byte_tokenizer_differs(own, base, &differs, error)) return false;
    if (differs)
        return error_set(
            error, ERROR_USAGE, "%s has another tokenizer than %s, but all adapters share one: use it alone as MODEL", a->source, folder);
    return name_other_template(a, own, folder, base, error);
}

/* All prompts begin as those of the model. */
static void name_other_beginning(const NamedAdapter *a, const AdapterBase *base) {
    if (!source_begins_otherwise(&a->config, base->tokenizer)) return;
    log_warn("adapter %s was trained with data.bos=%s, but its prompts begin as those of %s: use it alone as MODEL", a->name,
        a->config.data.bos == BOS_TRUE ? "true" : "false", base->folder);
}

static bool open_named_adapter(NamedAdapter *a, const json_t *value, const AdapterBase *base, Error *error) {
    const char *source = json_string_value(value), *folder = base->folder;
    const Config *config = base->config;
    if (!*a->name || !name_is_plain(a->name))
        return error_set(error, ERROR_USAGE, "the name is empty or has control characters: use printable ones");
    if (!source || !*source) return error_set(error, ERROR_USAGE, "the value is not a text: give a run or a PEFT folder");
    bool peft = adapter_is_folder(source);
    if (!peft && !source_is_run(source))
        return error_set(error, ERROR_CHECKPOINT,
            "%s is not a run with adapters (RUN, RUN@STEP, RUN@best) or a PEFT folder (with adapter_config.json)", source);
    if (!(peft ? open_peft_adapter(a, source, folder, config, error) : open_run_adapter(a, source, folder, error))) return false;
    const LoraConfig lora = lora_unquantized(a->config.lora);
    name_other_beginning(a, base);
    return lora_check_unmerged(&a->config.model, &lora, error) && check_shared_tokenizer(a, folder, config, error);
}

static bool take_adapters(NamedAdapters *adapters, const json_t *object, const AdapterBase *base, Error *error) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        array_append(adapters->items, adapters->count, (NamedAdapter){.name = memory_copy_string(name)});
        if (!open_named_adapter(&adapters->items[adapters->count - 1], value, base, error))
            return error_context(error, "adapters=: %s", name);
    }
    return true;
}

static void append_missing(TokenIds *ids, const TokenIds *more) {
    for (size_t i = 0; i < more->count; i++) {
        bool has = false;
        for (size_t j = 0; j < ids->count; j++) has |= ids->items[j] == more->items[i];
        if (!has) token_ids_append(ids, more->items[i]);
    }
}

static bool read_ends(NamedAdapters *adapters, const TokenIds *base, Error *error) {
    adapters->ends = memory_allocate((size_t)(adapters->count + 1) * sizeof *adapters->ends);
    append_missing(&adapters->ends[0], base);
    for (int i = 0; i < adapters->count; i++) {
        const NamedAdapter *a = &adapters->items[i];
        SCOPED(token_ids_free) TokenIds own = {0};
        if (!generation_end_tokens(a->source, &a->config, NULL, &own, error)) return error_context(error, "adapters=: %s", a->name);
        append_missing(&adapters->ends[i + 1], base);
        append_missing(&adapters->ends[i + 1], &own);
    }
    return true;
}

bool adapter_set_open(NamedAdapters *adapters, const char *option, const AdapterBase *base, Error *error) {
    const char *folder = base->folder;
    const Config *config = base->config;
    if (!*option) return read_ends(adapters, base->ends, error);
    json_auto_t *object = json_parse(option, strlen(option), JSON_REJECT_DUPLICATES, error);
    if (!object) return error_recode(error, ERROR_USAGE), error_context(error, "adapters=%s", option);
    if (!json_is_object(object) || !json_object_size(object) || json_object_size(object) > ENGINE_MOST_ADAPTERS)
        return error_set(error, ERROR_USAGE,
            "adapters=%.200s is not a JSON object of 1 to %d names with runs or PEFT folders, such as '{\"chat\": \"runs/chat\"}'", option,
            (int)ENGINE_MOST_ADAPTERS);
    if (config->lora.rank)
        return error_set(
            error, ERROR_USAGE, "%s has adapters itself, but adapters= needs their base as the model: give %s", folder, config->init);
    if (!take_adapters(adapters, object, base, error)) return false;
    adapters->loras = memory_allocate((size_t)adapters->count * sizeof *adapters->loras);
    for (int i = 0; i < adapters->count; i++) adapters->loras[i] = lora_unquantized(adapters->items[i].config.lora);
    return read_ends(adapters, base->ends, error);
}

void adapter_set_close(NamedAdapters *adapters) {
    for (int i = 0; i < adapters->count; i++) {
        NamedAdapter *a = &adapters->items[i];
        free(a->name), free(a->source), free(a->targets);
        options_free_strings(&a->strings);
    }
    for (int i = 0; adapters->ends && i <= adapters->count; i++) token_ids_free(&adapters->ends[i]);
    free(adapters->ends);
    free(adapters->items);
    free(adapters->loras);
    *adapters = (NamedAdapters){0};
}

AdapterSet adapter_set(const NamedAdapters *adapters) { return (AdapterSet){adapters->count, adapters->loras}; }

int adapter_set_find(const NamedAdapters *adapters, const char *name) {
    for (int i = 0; i < adapters->count; i++)
        if (!strcmp(adapters->items[i].name, name)) return i + 1;
    return 0;
}

/* Training rounds A x, and then its product with the factor. Only a power of two adds no second rounding. */
bool adapter_set_check_exact(const NamedAdapters *adapters, const Device *device, Error *error) {
    int exponent;
    if (adapters->count && !device_info(device)->exact_groups)
        return error_set(error, ERROR_USAGE,
            "exact=true with adapters=: on a GPU, training multiplies a layer and its adapters in one kernel, which rounds otherwise than "
            "several adapters at once. Set exact=false, or device=cpu");
    for (int i = 0; i < adapters->count; i++)
        if (frexp(lora_factor(&adapters->loras[i]), &exponent) != 0.5)
            return error_set(error, ERROR_USAGE,
                "exact=true with adapters=: the factor alpha / rank of %s, %g, is not a power of two, so it is not rounded as in training. "
                "Set exact=false",
                adapters->items[i].name, lora_factor(&adapters->loras[i]));
    return true;
}

/* -- Filling tables ------------------------------------------------------------------------------------------------ */

/* The tables of an engine, and one adapter in two layouts: whole, and as ranks divide it in training. */
typedef struct TableFill {
    Engine *engine;
    Device *device;
    const Graph *graph; /* of the engine */
    int64_t rank;       /* of the tables */
    int index;
    double factor;
    const HostModel *whole;
    const Graph *own; /* this rank's parameters */
} TableFill;

/* Returns this rank's values of MODULE.lora_A.weight or MODULE.lora_B.weight, in the parameter's type, for the
 * caller to free; NULL: the adapter lacks the layer. */
static char *take_half(const TableFill *fill, const char *module, const char *half, const Parameter **parameter) {
    SCOPED_FREE char *name = memory_format("%s.%s.weight", module, half);
    int index = graph_find_parameter(fill->own, name);
    if (index < 0) return NULL;
    const Parameter *p = *parameter = &fill->own->parameters[index];
    char *values = memory_allocate((size_t)(p->count * p->element_bytes));
    const WeightSource source = {.graph = fill->whole->model.graph, .master = fill->whole->master};
    weights_take(&source, fill->own, (ParameterInterval){index, 0, p->count}, false, device_cpu(), values);
    return values;
}

/* Uploads `rows` rows of a table of `columns` columns, which begin at row `first`. */
static void upload_rows(const TableFill *fill, TensorId table, int64_t first, int64_t rows, int64_t columns, const void *values) {
    int64_t bytes = columns * (int64_t)precision_bytes(fill->graph->precision, TYPE_COMPUTE);
    device_upload(fill->device, (char *)engine_table(fill->engine, table) + first * bytes, values, rows * bytes);
}

static void fill_down(const TableFill *fill, const AdapterPlace *place) {
    size_t bytes = precision_bytes(fill->graph->precision, TYPE_COMPUTE);
    const Parameter *p = NULL;
    int64_t columns = graph_columns(fill->graph, place->a);
    SCOPED_FREE char *values = take_half(fill, place->module, "lora_A", &p);
    SCOPED_FREE char *rows = memory_allocate((size_t)(fill->rank * columns) * bytes);
    memset(rows, 0, (size_t)(fill->rank * columns) * bytes);
    assert(!values || (p->shape[1] == columns && p->shape[0] <= fill->rank));
    for (int64_t i = 0; values && i < p->count; i++) element_set(bytes, rows, i, element_get((size_t)p->element_bytes, values, i));
    upload_rows(fill, place->a, place->a_first + fill->index * place->a_stride, fill->rank, columns, rows);
}

static void fill_up(const TableFill *fill, const AdapterPlace *place) {
    size_t bytes = precision_bytes(fill->graph->precision, TYPE_COMPUTE);
    const Parameter *p = NULL;
    SCOPED_FREE char *values = take_half(fill, place->module, "lora_B", &p);
    SCOPED_FREE char *rows = memory_allocate((size_t)(fill->rank * place->columns) * bytes);
    memset(rows, 0, (size_t)(fill->rank * place->columns) * bytes);
    assert(!values || (p->shape[0] >= place->skipped + place->columns && p->shape[1] <= fill->rank));
    for (int64_t i = 0; values && i < place->columns; i++)
        for (int64_t k = 0; k < p->shape[1]; k++) {
            double value = element_get((size_t)p->element_bytes, values, (place->skipped + i) * p->shape[1] + k);
            element_set(bytes, rows, i * fill->rank + k, fill->factor * value);
        }
    upload_rows(fill, place->b, place->b_first + fill->index * place->columns, place->columns, fill->rank, rows);
}

/* Checks the shapes, because a run's adapters may belong to a model of another size. */
static bool check_same_halves(const Graph *own, const Graph *whole, Error *error) {
    int trained = 0;
    for (int i = 0; i < own->parameter_count; i++) {
        const Parameter *p = &own->parameters[i];
        if (p->frozen) continue;
        int index = graph_find_parameter(whole, p->name);
        const Parameter *q = index < 0 ? NULL : &whole->parameters[index];
        if (!q || q->shape[0] != p->whole[0] || q->shape[1] != p->whole[1])
            return error_set(error, ERROR_CHECKPOINT, "it has no %s [%lld, %lld], which it would have if the model were its base", p->name,
                (long long)p->whole[0], (long long)p->whole[1]);
        trained++;
    }
    for (int i = 0; i < whole->parameter_count; i++) trained -= !whole->parameters[i].frozen;
    return trained == 0 || error_set(error, ERROR_CHECKPOINT, "it has adapters of layers that the model lacks");
}

bool adapter_set_put(Engine *engine, EnginePlace place, const ModelConfig *config, const EngineAdapter *adapter, Error *error) {
    const Model *model = engine_model(engine);
    const Graph *whole = adapter->whole->model.graph;
    SCOPED(model_free)
    Model own = model_build_adapted(place.mesh, config, adapter->lora, whole->precision, MODEL_GENERATE, 1, 1, RECOMPUTE_NONE);
    if (!check_same_halves(own.graph, whole, error)) return false;
    TableFill fill = {.engine = engine,
        .device = place.device,
        .graph = model->graph,
        .index = adapter->index,
        .factor = lora_factor(adapter->lora),
        .whole = adapter->whole,
        .own = own.graph};
    for (int i = 0; i < model->place_count; i++) {
        fill.rank = graph_columns(model->graph, model->places[i].b);
        fill_down(&fill, &model->places[i]);
        fill_up(&fill, &model->places[i]);
    }
    return device_ok(place.device, error);
}

bool adapter_set_load(const NamedAdapters *adapters, Engine *engine, EnginePlace place, const ModelConfig *config, Error *error) {
    const Precision precision = place.precision == PRECISION_FP64 ? PRECISION_FP64 : PRECISION_FP32;
    for (int i = 0; i < adapters->count; i++) {
        const NamedAdapter *a = &adapters->items[i];
        SCOPED(host_model_close) HostModel whole = {0};
        int64_t step;
        if (!adapter_load_alone(&whole, a->source, &a->config, precision, &step, error) ||
            !adapter_set_put(engine, place, config, &(EngineAdapter){&adapters->loras[i], &whole, i}, error))
            return error_context(error, "adapters=: %s", a->name);
    }
    return true;
}

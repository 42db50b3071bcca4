/* Adapters and their base. Checkpoints of such a run hold the adapters alone; the base comes from the folder that
 * the run's configuration names as init, when training starts or goes on, and when the run's model is wanted: then
 * both are merged. PEFT's folder (peft/utils/save_and_load.py) holds the adapters under their own names with
 * "base_model.model." before them. */
#include "train/adapter.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/ckpt.h"
#include "train/lineage.h"
#include "train/source.h"

/* -- The base ------------------------------------------------------------------------------------------------------ */

static bool check_base(const char *folder, const Config *origin, Error *error) {
    return !origin->lora.rank ||
           error_set(error, ERROR_USAGE,
               "%s trains adapters itself: `smelt convert` makes it a model folder, which can be the base of others", folder);
}

/* Fills the parameters of the session that the source has; matrices go into the arena of weights, cast to its type. */
static void take_all(Session *session, const WeightSource *source) {
    const Graph *graph = session->model.graph;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (graph_find_parameter(source->graph, p->name) < 0) continue; /* an adapter */
        bool base = graph_is_base(graph, p),
             as_bf16 = precision_is_bf16(graph->precision) && (base || graph_state_type(graph, p) == TYPE_COMPUTE);
        void *to = base ? executor_tensor(session->executor, p->tensor) : parameter_in(p, executor_arena(session->executor, ARENA_MASTER));
        source_take(source, graph, (ParameterInterval){i, 0, p->count}, as_bf16, session->backend.device, to);
    }
}

/* Fills the frozen parameters from a model folder, one after another. */
static bool take_folder(Session *session, const char *folder, const Config *origin, Error *error) {
    const Config *config = session->config;
    SCOPED(model_free) Model base = model_build(&config->model, config->precision, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    HfReader *reader = hf_reader_open(folder, &origin->model, base.graph, error);
    if (!reader) return false;
    take_all(session, &(WeightSource){.reader = reader, .graph = base.graph});
    hf_reader_close(reader);
    return true;
}

static bool take_source(Session *session, const char *folder, const Config *origin, Error *error) {
    SCOPED(host_model_close) HostModel base = {0};
    if (!host_model_open(&base, &session->config->model, NULL, session->config->precision, error) ||
        !source_load_weights(folder, origin, base.model.graph, base.master, NULL, error))
        return false;
    take_all(session, &(WeightSource){.graph = base.model.graph, .master = base.master});
    return true;
}

bool adapter_load_base(Session *session, const char *folder, const Config *origin, Error *error) {
    return check_base(folder, origin, error) &&
           (source_is_model_folder(folder) ? take_folder : take_source)(session, folder, origin, error) &&
           device_ok(session->backend.device, error);
}

/* -- The adapters -------------------------------------------------------------------------------------------------- */

/* The newest adapters of a run. Their graph has the base's parameters too, whose pages are never touched. */
static bool open_adapters(HostModel *adapters, const char *run, const Config *config, int64_t *step, Error *error) {
    return host_model_open(adapters, &config->model, &config->lora, config->precision, error) &&
           session_load_weights(adapters->model.graph, config, run, adapters->master, step, error);
}

/* A parameter's values in fp32, for the caller to free. */
static float *copy_to_fp32(const HostModel *adapters, const Parameter *p) {
    const void *values = parameter_in(p, adapters->master);
    float *wide = memory_allocate((size_t)p->count * sizeof *wide);
    for (int64_t i = 0; i < p->count; i++) wide[i] = (float)element_get((size_t)p->element_bytes, values, i);
    return wide;
}

/* -- Merging ------------------------------------------------------------------------------------------------------- */

/* The adapter's half that belongs to NAME.weight, or -1. */
static int find_half(const Graph *graph, const char *weight, const char *which) {
    if (!ends_with(weight, ".weight")) return -1;
    SCOPED_FREE char *name = memory_format("%.*s.%s.weight", (int)(strlen(weight) - strlen(".weight")), weight, which);
    return graph_find_parameter(graph, name);
}

/* W [out, in] += factor B [out, rank] A [rank, in], in double, a row at a time. */
static void add_lora_update(
    void *weights, bool wide, const float *b, const float *a, int64_t out, int64_t in, int64_t rank, double factor) {
#pragma omp parallel
    {
        double *sums = memory_allocate((size_t)in * sizeof *sums);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < out; r++) {
            memset(sums, 0, (size_t)in * sizeof *sums);
            for (int64_t k = 0; k < rank; k++)
                for (int64_t c = 0; c < in; c++) sums[c] += (double)b[r * rank + k] * a[k * in + c];
            for (int64_t c = 0; c < in; c++)
                if (wide) ((double *)weights)[r * in + c] += factor * sums[c];
                else ((float *)weights)[r * in + c] += (float)(factor * sums[c]);
        }
        free(sums);
    }
}

static void merge(const HostModel *adapters, const LoraConfig *lora, const Graph *graph, char *master) {
    const Graph *own = adapters->model.graph;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        int down = find_half(own, p->name, "lora_A"), up = find_half(own, p->name, "lora_B");
        if (down < 0 || up < 0) continue;
        SCOPED_FREE float *a = copy_to_fp32(adapters, &own->parameters[down]), *b = copy_to_fp32(adapters, &own->parameters[up]);
        add_lora_update(parameter_in(p, master), graph->precision == PRECISION_FP64, b, a, p->shape[0], p->shape[1], lora->rank,
            lora->alpha / (double)lora->rank);
    }
}

bool adapter_load_merged(const char *run, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error) {
    Config origin;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(host_model_close) HostModel adapters = {0};
    if (!source_read_config(config->init, &origin, &strings, error) || !check_base(config->init, &origin, error) ||
        !source_load_weights(config->init, &origin, graph, master, NULL, error))
        return error_context(error, "%s has adapters of init=%s (if it has moved, smelt train %s init=FOLDER)", run, config->init, run);
    if (!lineage_check_base(run, config, error)) return false;
    if (!open_adapters(&adapters, run, config, step, error)) return false;
    merge(&adapters, &config->lora, graph, master);
    return true;
}

/* -- PEFT's folder ------------------------------------------------------------------------------------------------- */

/* "self_attn.q_proj" of "model.layers.3.self_attn.q_proj.lora_A.weight": what follows the layer's number, for which
 * PEFT looks at the ends of names. */
static char *module_of(const char *name) {
    const char *end = strstr(name, ".lora_A.weight"), *begin = name + strcspn(name, "0123456789");
    begin += strspn(begin, "0123456789.");
    return memory_format("%.*s", (int)(end - begin), begin);
}

static bool holds(const json_t *array, const char *text) {
    for (size_t i = 0; i < json_array_size(array); i++)
        if (!strcmp(json_string_value(json_array_get(array, i)), text)) return true;
    return false;
}

static json_t *peft_config(const Config *config, const Graph *graph) {
    json_t *modules = json_array();
    bool transposed = false;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        transposed |= p->transposed;
        if (p->frozen || !strstr(p->name, ".lora_A.weight")) continue;
        SCOPED_FREE char *module = module_of(p->name);
        if (!holds(modules, module)) json_array_append_new(modules, json_string(module));
    }
    return json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:s, s:b, s:b, s:o}", "peft_type", "LORA", "task_type", "CAUSAL_LM",
        "base_model_name_or_path", config->init, "r", (json_int_t)config->lora.rank, "lora_alpha", config->lora.alpha, "lora_dropout", 0.0,
        "bias", "none", "inference_mode", 1, "fan_in_fan_out", transposed, "target_modules", modules);
}

static bool write_config(const Config *config, const Graph *graph, const char *folder, Error *error) {
    json_auto_t *content = peft_config(config, graph);
    SCOPED_FREE char *text = content ? json_dumps(content, JSON_INDENT(2)) : NULL;
    SCOPED_FREE char *path = memory_format("%s/adapter_config.json", folder);
    if (!text) return error_set(error, ERROR_USAGE, "%s: init=%s is not UTF-8", path, config->init);
    return file_write(path, text, (int64_t)strlen(text), error);
}

static bool write_tensors(const HostModel *adapters, const char *folder, Error *error) {
    const Graph *graph = adapters->model.graph;
    SCOPED_FREE StoredTensor *tensors = memory_allocate((size_t)(graph->parameter_count + 1) * sizeof *tensors);
    size_t count = 0;
    bool finite = true;
    for (int i = 0; i < graph->parameter_count && finite; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->frozen) continue;
        char *name = memory_format("base_model.model.%s", p->name);
        tensors[count] = (StoredTensor){.name = name, .type = STORED_F32, .rank = p->rank, .data = copy_to_fp32(adapters, p)};
        memcpy(tensors[count].shape, p->shape, sizeof p->shape);
        finite = stored_check_finite(&tensors[count++], error);
    }
    SCOPED_FREE char *path = memory_format("%s/adapter_model.safetensors", folder);
    json_auto_t *metadata = json_pack("{s:s}", "format", "pt");
    bool written = finite && safetensors_write(path, tensors, count, metadata, error);
    for (size_t i = 0; i < count; i++) {
        free((char *)tensors[i].name);
        free((void *)tensors[i].data);
    }
    return written;
}

/* Whether there is nothing in `folder` that would be overwritten. */
static bool check_empty(const char *folder, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    Error ignored;
    if (!file_list(folder, &list, &ignored)) return true;
    for (size_t i = 0; i < list.count; i++)
        if (list.entries[i].name[0] != '.') return error_set(error, ERROR_USAGE, "%s is not empty: give another folder", folder);
    return true;
}

bool adapter_write(const char *run, const Config *config, const char *folder, int64_t *step, Error *error) {
    SCOPED(host_model_close) HostModel adapters = {0};
    if (!config->lora.rank) return error_set(error, ERROR_USAGE, "%s trains no adapters (lora.rank is 0): leave adapter=true out", run);
    return check_empty(folder, error) && open_adapters(&adapters, run, config, step, error) && file_make_folder(folder, error) &&
           write_tensors(&adapters, folder, error) && write_config(config, adapters.model.graph, folder, error);
}

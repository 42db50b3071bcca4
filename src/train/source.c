/* Weights and tokenizers of run folders and model folders. Weights are converted to the requested
 * type: checkpoints of fp64 runs hold doubles, all others floats. */
#include "train/source.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/element.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/data.h"
#include "formats/llmc.h"
#include "train/adapter.h"
#include "train/lineage.h"
#include "train/run.h"
#include "train/session.h"

static bool exists(const char *folder, const char *name) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    return file_exists(path);
}

bool source_is_run(const char *folder) {
    SCOPED(run_point_free) RunPoint point = run_point(folder);
    return *point.run && exists(point.run, "config.yaml"); /* an empty folder name does not mean / */
}

bool source_is_model_folder(const char *folder) { return hf_is_model(folder) && !source_is_run(folder) && !adapter_is_folder(folder); }

static bool is_weights(const char *name) {
    return ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json") || starts_with(name, "pytorch_model");
}

static bool is_model_file(const char *name) {
    return !strcmp(name, "config.json") || !strcmp(name, "adapter_config.json") || ends_with(name, ".gguf") || is_weights(name);
}

bool source_check_run(const char *run, const char *init, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    SCOPED(run_point_free) RunPoint point = run_point(init);
    SCOPED_FREE char *adapter = adapter_folder(init);
    if (*init && (file_same(run, point.run) || file_same(run, adapter)))
        return error_set(error, ERROR_USAGE, "run=%s is the model of init=%s, which stays as it is: give another run folder", run, init);
    if (source_is_run(run) || file_kind(run, NULL) != FILE_FOLDER) return true; /* locking reports the reason */
    if (!file_list(run, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (is_model_file(list.entries[i].name))
            return error_set(error, ERROR_USAGE,
                "run=%s holds a model (%s), whose name would mean the run from then on: give another run folder", run,
                list.entries[i].name);
    return true;
}

bool source_check_run_alone(const char *run, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (!exists(run, "config.json") && !exists(run, "adapter_config.json")) return true;
    if (!file_list(run, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (is_weights(list.entries[i].name))
            return error_set(error, ERROR_CHECKPOINT,
                "%s holds a run (config.yaml) and a model (%s), so that its name means both: move the files of the run (config.yaml, "
                "run.json, metrics.jsonl, log.txt, checkpoints, data) or those of the model into a folder of their own",
                run, list.entries[i].name);
    return true;
}

/* The data settings are those that any model passes config_check with. */
static bool take_model(const ModelConfig *model, Precision precision, Config *config, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, config, strings);
    config->model = *model;
    config->precision = precision;
    config->data.length = config->batch.tokens = model_least_length(model);
    config->batch.sequences = 1;
    return config_check(config, error);
}

/* Returns whether the name is "OWNER/MODEL", as on Hugging Face. If OWNER is a local folder, a run
 * in it is meant. */
static bool is_hub_name(const char *name) {
    const char *slash = strchr(name, '/');
    bool one = slash && slash > name && slash[1] && !strpbrk(slash + 1, "/@");
    SCOPED_FREE char *owner = memory_format("%.*s", one ? (int)(slash - name) : 0, name);
    return one && *name != '.' && *name != '~' && !ends_with(name, ".bin") && !file_exists(name) && !file_exists(owner);
}

bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error) {
    SCOPED(hf_release) HfModel model = {0};
    SCOPED(run_point_free) RunPoint point = run_point(folder);
    if (source_is_run(point.run) && !source_check_run_alone(point.run, error)) return false;
    if (adapter_is_folder(folder)) return adapter_read_config(folder, config, strings, error);
    if (source_is_run(point.run)) {
        bool read = run_read_config(point.run, config, strings, error) &&
                    (!mixture_is(config->data.train) || lineage_phase(&point, config, strings, error));
        config->model.preference.loss = PREFERENCE_NONE; /* not a part of the model */
        return read;
    }
    if (hf_is_model(folder)) {
        bool read = hf_read(folder, &model, error);
        if (model.warnings) log_warn("%s%s: %s", folder, gguf_is_file(folder) ? "" : "/config.json", model.warnings);
        return read && take_model(&model.config, model.precision, config, strings, error);
    }
    if (llmc_is_model(folder))
        return llmc_read(folder, &model.config, &model.precision, error) &&
               take_model(&model.config, model.precision, config, strings, error);
    if (is_hub_name(folder))
        return error_set(error, ERROR_CHECKPOINT,
            "there is no folder %s, and smelt downloads no models: hf download %s --local-dir my-model (pip install huggingface_hub) gets "
            "it from Hugging Face, then give my-model",
            folder, folder);
    return error_set(error, ERROR_CHECKPOINT,
        "%s is neither a run folder (with config.yaml) or a checkpoint of one (RUN@STEP, RUN@best), nor a model folder (with config.json), "
        "nor a GGUF file, nor adapters of PEFT (with adapter_config.json), nor a model of llm.c%s",
        folder, file_exists(point.run) ? "" : ": there is nothing of that name");
}

/* -- Text ---------------------------------------------------------------------------------------------------------- */

static char *run_tokenizer(const char *name, const Config *config) {
    if (!config->data.tokenizer[0]) return memory_copy_string("");
    SCOPED(run_point_free) RunPoint point = run_point(name);
    SCOPED_FREE char *folder = memory_format("%s/tokenizer", point.run);
    return tokenizer_find(folder);
}

char *source_tokenizer(const char *folder, const Config *config) {
    HfModel model;
    Error ignored = {0};
    if (adapter_is_folder(folder)) {
        SCOPED_FREE char *adapter = adapter_folder(folder);
        char *own = tokenizer_find(adapter);
        if (own) return own;
        folder = config->init;
    }
    if (source_is_run(folder)) return run_tokenizer(folder, config);
    if (!hf_is_model(folder) || !hf_read(folder, &model, &ignored)) return NULL;
    hf_release(&model);
    if (model.bytes) return memory_copy_string("");
    return gguf_has_tokenizer(folder) ? memory_copy_string(folder) : tokenizer_find(folder);
}

bool source_check_rows(int64_t rows, const Tokenizer *tokenizer, const char *name, const char *cure, Error *error) {
    enum { MOST_ROWS = 2 /* rows per token: a power of two above the tokens is less than this */ };
    long long tokens = tokenizer ? tokenizer_vocabulary(tokenizer) : BYTE_VOCABULARY;
    if (rows >= tokens && rows <= MOST_ROWS * tokens) return true;
    return error_set(error, ERROR_USAGE, "model.vocabulary=%lld is %s the %lld tokens of %s: %s%s", (long long)rows,
        rows < tokens ? "below" : "more than twice", tokens, name, cure,
        rows < tokens ? "; smelt convert MODEL FOLDER tokens.add=A,B makes rows for tokens that are new" : "");
}

bool source_begins_with(const ShardSet *set, const TokenIds *ids, bool *begins, Error *error) {
    SCOPED_FREE int32_t *tokens = memory_allocate((ids->count + 1) * sizeof *tokens);
    int64_t count = (int64_t)ids->count;
    *begins = false;
    if (set->token_count < count) return true;
    if (!shard_set_read(set, 0, count, (int64_t)INT32_MAX + 1, tokens, NULL, error)) return false;
    *begins = !memcmp(tokens, ids->items, ids->count * sizeof *tokens);
    return true;
}

bool source_check_bos(const ShardSet *set, const char *name, const Tokenizer *tokenizer, TokenizerBos bos, bool refuse, Error *error) {
    Error warning = {0};
    bool begins, wanted = bos != BOS_FALSE;
    if (set->masked || !tokenizer || !tokenizer_bos(tokenizer)->count) return true;
    if (!source_begins_with(set, tokenizer_bos(tokenizer), &begins, error)) return false;
    if (begins == wanted) return true;
    error_set(refuse ? error : &warning, ERROR_USAGE,
        "the texts of %s %s with token %d, and with data.bos=%s %s: leave data.bos out to follow the first data, or pack these with "
        "smelt data pack bos=%s",
        name, begins ? "begin" : "do not begin", tokenizer_bos(tokenizer)->items[0], wanted ? "true" : "false",
        wanted ? "every text does" : "no text does", wanted ? "true" : "false");
    if (!refuse) log_warn("%s", warning.message);
    return !refuse;
}

/* -- Weights ------------------------------------------------------------------------------------------------------- */

void source_convert(const Graph *to, void *target, const Graph *from, const void *source) {
    for (int i = 0; i < to->parameter_count; i++) {
        const Parameter *p = &to->parameters[i], *q = &from->parameters[graph_find_parameter(from, p->name)];
        if (p->frozen) continue;
        size_t bytes = p->element_bytes, given = q->element_bytes;
        const void *read = parameter_in(q, source);
        for (ParameterInterval rest = {i, 0, p->count}; rest.count > 0;) {
            char *values = (char *)parameter_in(p, target) + rest.first * p->element_bytes;
            Slice slice = graph_take_slice(to, &rest);
#pragma omp parallel for schedule(static)
            for (int64_t j = 0; j < slice.count; j++) element_set(bytes, values, j, element_get(given, read, slice_at(&slice, j)));
        }
    }
}

static bool load_state(const char *folder, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error) {
    if (config->lora.rank) return adapter_load_merged(folder, config, graph, master, step, error);
    if (source_is_run(folder)) return session_load_weights(graph, config, folder, master, step, error);
    return llmc_is_model(folder) ? llmc_load_weights(folder, graph, master, error)
                                 : hf_load_weights(folder, &config->model, graph, master, error);
}

bool host_model_open(HostModel *host, const ModelConfig *config, const LoraConfig *lora, Precision precision, Error *error) {
    host->model = model_describe(config, lora, precision);
    host->master = memory_map((size_t)host->model.graph->parameter_bytes, error);
    return host->master != NULL;
}

void host_model_close(HostModel *host) {
    if (host->master) memory_unmap(host->master, (size_t)host->model.graph->parameter_bytes);
    model_free(&host->model);
}

bool source_load_weights(const char *folder, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error) {
    int64_t unasked;
    if (!step) step = &unasked;
    *step = 0;
    bool as_kept = source_is_run(folder) && !config->lora.rank; /* the merged weights of a run with adapters are read like a folder's */
    Precision given = as_kept ? config->precision : graph->precision == PRECISION_FP64 ? PRECISION_FP64 : PRECISION_FP32;
    bool same_layout = precision_state_bytes(given, TYPE_COMPUTE) == precision_state_bytes(graph->precision, TYPE_COMPUTE);
    if (same_layout && (as_kept || graph_is_whole(graph))) return load_state(folder, config, graph, master, step, error);
    SCOPED(host_model_close) HostModel kept = {0};
    if (!host_model_open(&kept, &config->model, NULL, given, error) ||
        !load_state(folder, config, kept.model.graph, kept.master, step, error))
        return false;
    source_convert(graph, master, kept.model.graph, kept.master);
    return true;
}

/* -- Programs ------------------------------------------------------------------------------------------------------ */

static void read_parameter(const HfReader *reader, int index, bool as_bf16, void *to) {
    if (as_bf16) hf_reader_load_bf16(reader, index, to);
    else hf_reader_load(reader, index, to);
}

/* Returns all values of parameter `index`. *copy is set, to be freed, if they are not available
 * unconverted in the source's arena. */
static const char *whole_values(const WeightSource *source, int index, bool as_bf16, void **copy) {
    const Parameter *p = &source->graph->parameters[index];
    const void *kept = source->reader ? NULL : parameter_in(p, source->master);
    if (kept && (!as_bf16 || p->element_bytes == sizeof(uint16_t))) return kept;
    *copy = memory_allocate((size_t)p->count * (as_bf16 ? sizeof(uint16_t) : (size_t)p->element_bytes));
    if (kept) bf16_from_floats(*copy, kept, p->count);
    else read_parameter(source->reader, index, as_bf16, *copy);
    return *copy;
}

/* Fills device memory with a slice of host memory of `count` elements. */
static void upload_slice(Device *device, void *to, const Slice *slice, const char *values, int64_t count, int64_t width) {
    SCOPED_FREE char *packed = slice->run ? memory_allocate((size_t)(slice->count * width)) : NULL;
    if (packed) slice_copy(slice, packed, &(Slice){.count = count}, values, (size_t)width);
    device_upload(device, to, packed ? packed : values + slice->first * width, slice->count * width);
}

void source_take(const WeightSource *source, const Graph *graph, ParameterInterval elements, bool as_bf16, Device *device, void *to) {
    const Parameter *p = &graph->parameters[elements.parameter];
    int index = graph_find_parameter(source->graph, p->name);
    assert(index >= 0);
    int64_t count = source->graph->parameters[index].count, width = as_bf16 ? (int64_t)sizeof(uint16_t) : p->element_bytes;
    if (source->reader && elements.count == count && device_info(device)->host_memory) {
        read_parameter(source->reader, index, as_bf16, to);
        return;
    }
    SCOPED_FREE void *copy = NULL;
    const char *values = whole_values(source, index, as_bf16, &copy);
    for (int64_t first = elements.first; elements.count > 0;) {
        char *at = (char *)to + (elements.first - first) * width;
        Slice slice = graph_take_slice(graph, &elements);
        upload_slice(device, at, &slice, values, count, width);
    }
}

void source_take_shards(Session *session, const WeightSource *source) {
    const Graph *graph = session->model.graph;
    char *master = executor_arena(session->executor, ARENA_MASTER);
    for (int i = 0; i < session->layout->shard.interval_count; i++) {
        const ShardInterval *held = &session->layout->shard.intervals[i];
        const Parameter *p = &graph->parameters[held->elements.parameter];
        int index = graph_find_parameter(source->graph, p->name);
        if (index < 0 || source->graph->parameters[index].frozen) continue;
        source_take(
            source, graph, held->elements, graph_state_type(graph, p) == TYPE_COMPUTE, session->backend.device, master + held->offset);
    }
}

static bool load_folder(
    const char *folder, const Config *config, const Graph *graph, Device *device, void *master, void *weights, Error *error) {
    SCOPED(model_free) Model whole = {0};
    if (!graph_is_whole(graph)) whole = model_describe(&config->model, NULL, graph->precision);
    const Graph *all = whole.graph ? whole.graph : graph;
    HfReader *reader = hf_reader_open(folder, &config->model, all, error);
    for (int i = 0; i < graph->parameter_count && reader; i++) {
        const Parameter *p = &graph->parameters[i];
        source_take(&(WeightSource){.reader = reader, .graph = all}, graph, (ParameterInterval){i, 0, p->count},
            graph_state_type(graph, p) == TYPE_COMPUTE, device, parameter_in(p, master));
    }
    bool loaded = reader && device_ok(device, error);
    hf_reader_close(reader);
    if (loaded) model_cast_weights(graph, device, master, weights);
    return loaded;
}

bool source_load_arenas(
    const char *folder, const Config *config, const Graph *graph, Device *device, void *master, void *weights, Error *error) {
    if (source_is_model_folder(folder)) return load_folder(folder, config, graph, device, master, weights, error);
    int64_t bytes = graph->parameter_bytes;
    void *view = device_view(device, master, bytes, VIEW_WRITE, error);
    bool loaded = view && source_load_weights(folder, config, graph, view, NULL, error);
    device_view_close(device, view, master, bytes, VIEW_WRITE);
    if (loaded) model_cast_weights(graph, device, master, weights);
    return loaded;
}

Generator *source_open_generator(
    const char *folder, const Mesh *mesh, const Config *config, Precision precision, Device *device, bool cache, Error *error) {
    Generator *g = generator_create(mesh, &config->model, precision, device, cache, error);
    if (g && source_load_arenas(folder, config, generator_graph(g), device, generator_master(g), generator_weights(g), error)) return g;
    generator_free(g);
    return NULL;
}

bool source_load_program(const char *folder, const Config *config, Executor *executor, Error *error) {
    return source_load_arenas(folder, config, executor_graph(executor), executor_backend(executor)->device,
        executor_arena(executor, ARENA_MASTER), executor_arena(executor, ARENA_WEIGHT), error);
}

/* Weights and tokenizers of run folders and model folders. Weights come in the type that is asked for: checkpoints of fp64 runs hold doubles, all
 * others floats. */
#include "train/source.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "data/data.h"
#include "model/hf.h"
#include "model/llmc.h"
#include "train/run.h"
#include "train/session.h"

static bool exists(const char *folder, const char *name) {
    char *path = memory_format("%s/%s", folder, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

bool source_is_run(const char *folder) { return exists(folder, "config.yaml"); }

/* The data settings are those that any model passes config_check with. */
static bool take_model(const ModelConfig *model, Precision precision, Config *config, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, config, strings);
    config->model = *model;
    config->precision = precision;
    config->data.length = config->batch.sequences = config->batch.tokens = 1;
    return config_check(config, error);
}

static bool read_model_folder(const char *folder, Config *config, OptionStrings *strings, Error *error) {
    HfModel model;
    if (!hf_read(folder, &model, error)) return false;
    hf_release(&model);
    return take_model(&model.config, model.precision, config, strings, error);
}

static bool read_model_file(const char *path, Config *config, OptionStrings *strings, Error *error) {
    ModelConfig model;
    Precision precision;
    return llmc_read(path, &model, &precision, error) && take_model(&model, precision, config, strings, error);
}

bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error) {
    if (source_is_run(folder)) return run_read_config(folder, config, strings, error);
    if (hf_is_folder(folder)) return read_model_folder(folder, config, strings, error);
    if (llmc_is_model(folder)) return read_model_file(folder, config, strings, error);
    return error_set(error, ERROR_CHECKPOINT, "%s is neither a run folder (with config.yaml), nor a model folder (with config.json), nor a model of llm.c",
                     folder);
}

/* -- Text ----------------------------------------------------------------------------------------------------------- */

char *source_tokenizer_file(const char *folder) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    for (int i = 0; i < 2; i++)
        if (exists(folder, names[i])) return memory_format("%s/%s", folder, names[i]);
    return NULL;
}

static char *run_tokenizer(const char *run, const Config *config) {
    if (!config->data.tokenizer[0]) return config->model.vocabulary < BYTE_VOCABULARY ? NULL : memory_copy_string("");
    char *folder = memory_format("%s/tokenizer", run), *file = source_tokenizer_file(folder);
    free(folder);
    return file;
}

char *source_tokenizer(const char *folder, const Config *config) {
    HfModel model;
    Error ignored = {0};
    if (source_is_run(folder)) return run_tokenizer(folder, config);
    if (!hf_is_folder(folder) || !hf_read(folder, &model, &ignored)) return NULL;
    hf_release(&model);
    return model.bytes ? memory_copy_string("") : source_tokenizer_file(folder);
}

static void append_token(const json_t *value, TokenIds *ends) {
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id >= 0 && id <= INT32_MAX) token_ids_append(ends, (int32_t)id);
}

void source_end_tokens(const char *folder, const Tokenizer *tokenizer, TokenIds *ends) {
    static const char *const names[] = {"generation_config.json", "config.json"};
    for (int i = 0; i < 2 && !ends->count; i++) {
        char *path = memory_format("%s/%s", folder, names[i]);
        json_t *content = json_load_file(path, 0, NULL), *value = json_object_get(content, "eos_token_id");
        append_token(value, ends);
        for (size_t j = 0; j < json_array_size(value); j++) append_token(json_array_get(value, j), ends);
        json_decref(content);
        free(path);
    }
    if (!ends->count && tokenizer_end_of_text(tokenizer) >= 0) token_ids_append(ends, tokenizer_end_of_text(tokenizer));
}

/* -- Weights -------------------------------------------------------------------------------------------------------- */

static void convert(Precision to, void *target, Precision from, const void *source, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double value = from == PRECISION_FP64 ? ((const double *)source)[i] : ((const float *)source)[i];
        if (to == PRECISION_FP64) ((double *)target)[i] = value;
        else ((float *)target)[i] = (float)value;
    }
}

static bool load_model(const char *folder, const Config *config, Precision precision, void *master, Error *error) {
    Model model = model_build(&config->model, precision, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    bool loaded = llmc_is_model(folder) ? llmc_load_weights(folder, model.graph, master, error)
                                        : hf_load_weights(folder, &config->model, model.graph, master, error);
    model_free(&model);
    return loaded;
}

bool source_load_weights(const char *folder, const Config *config, Precision precision, void *master, int64_t *step, Error *error) {
    *step = 0;
    if (!source_is_run(folder)) return load_model(folder, config, precision, master, error);
    Precision saved = config->precision;
    Model model = model_build(&config->model, saved, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    size_t bytes = model.graph->parameter_extent * precision_bytes(saved, TYPE_WIDE);
    bool same = precision_bytes(saved, TYPE_WIDE) == precision_bytes(precision, TYPE_WIDE);
    void *weights = same ? master : memory_map(bytes, error);
    bool loaded = weights && session_load_weights(model.graph, config, folder, weights, step, error);
    if (loaded && !same) convert(precision, master, saved, weights, model.graph->parameter_extent);
    if (!same) memory_unmap(weights, bytes);
    model_free(&model);
    return loaded;
}

/* -- Programs ------------------------------------------------------------------------------------------------------- */

static bool is_model_folder(const char *folder) { return hf_is_folder(folder) && !source_is_run(folder); }

/* A program without gradients reads matrices from the arena of weights alone. */
static bool is_matrix(const Graph *graph, int parameter) { return graph_get(graph, graph->parameters[parameter].tensor)->arena == ARENA_WEIGHT; }
static bool skips_matrices(const Graph *graph) { return !graph->training && graph->precision == PRECISION_BF16; }

/* On a GPU a parameter passes through host memory. */
static void load_rounded(const HfReader *reader, int parameter, Device *device, uint16_t *target, int64_t count) {
    uint16_t *host = device_is_gpu(device) ? memory_allocate(count * sizeof *host) : target;
    hf_reader_load_bf16(reader, parameter, host);
    if (host == target) return;
    device_upload(device, target, host, count * (int64_t)sizeof *host);
    free(host);
}

static void load_wide(const HfReader *reader, int parameter, Device *device, char *target, int64_t bytes) {
    char *host = device_is_gpu(device) ? memory_allocate(bytes) : target;
    hf_reader_load(reader, parameter, host);
    if (host == target) return;
    device_upload(device, target, host, bytes);
    free(host);
}

static bool load_folder(const char *folder, const Config *config, const Graph *graph, Device *device, void *master, void *weights, Error *error) {
    HfReader *reader = hf_reader_open(folder, &config->model, graph, error);
    size_t unit = precision_bytes(graph->precision, TYPE_WIDE);
    for (int i = 0; i < graph->parameter_count && reader; i++) {
        const Parameter *p = &graph->parameters[i];
        if (skips_matrices(graph) && is_matrix(graph, i)) load_rounded(reader, i, device, (uint16_t *)weights + p->offset, p->count);
        else load_wide(reader, i, device, (char *)master + p->offset * unit, p->count * (int64_t)unit);
    }
    bool loaded = reader && device_ok(device, error);
    hf_reader_close(reader);
    if (loaded && !skips_matrices(graph)) model_cast_weights(graph, device, master, weights);
    return loaded;
}

bool source_load_arenas(const char *folder, const Config *config, const Graph *graph, Device *device, void *master, void *weights, int64_t *step, Error *error) {
    *step = 0;
    if (is_model_folder(folder)) return load_folder(folder, config, graph, device, master, weights, error);
    int64_t bytes = graph->parameter_extent * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
    void *view = device_view(device, master, bytes, VIEW_WRITE, error);
    bool loaded = view && source_load_weights(folder, config, graph->precision, view, step, error);
    device_view_close(device, view, master, bytes, VIEW_WRITE);
    if (loaded) model_cast_weights(graph, device, master, weights);
    return loaded;
}

bool source_load_program(const char *folder, const Config *config, Executor *executor, int64_t *step, Error *error) {
    return source_load_arenas(folder, config, executor_graph(executor), executor_backend(executor)->device, executor_arena(executor, ARENA_MASTER),
                              executor_arena(executor, ARENA_WEIGHT), step, error);
}

/* The huge pages in which vectors lie; the kernel gives no memory for the others. */
static int64_t vector_bytes(const Graph *graph) {
    const int64_t page = 2 << 20, unit = (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
    int64_t bytes = 0, seen = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        int64_t begin = p->offset * unit / page * page, end = ((p->offset + p->count) * unit + page - 1) / page * page;
        if (is_matrix(graph, i) || end <= seen) continue;
        bytes += end - (begin > seen ? begin : seen);
        seen = end;
    }
    return bytes;
}

int64_t source_weight_bytes(const char *folder, const Graph *graph, const Plan *plan, const Device *device) {
    bool sparse = is_model_folder(folder) && skips_matrices(graph) && !device_is_gpu(device);
    return plan->bytes[ARENA_WEIGHT] + (sparse ? vector_bytes(graph) : plan->bytes[ARENA_MASTER]);
}

/* One walk over the parameters in llm.c's order serves reading and writing, for models and for
 * gradients in states. Files are mapped and converted directly into the arena. Called by `smelt
 * convert` and by the check against llm.c's states. */
#include "base/bf16.h"
#include "formats/llmc.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "formats/hf_internal.h"

enum { MAGIC = 20240326, VERSION_FP32 = 3, VERSION_BF16 = 5, STATE_MAGIC = 20240327, STATE_VERSION = 2 };
enum { HEADER_INTEGERS = 256, HEADER_BYTES = 4 * HEADER_INTEGERS, PADDING = 128 };
enum { AT_MAGIC, AT_VERSION, AT_CONTEXT, AT_VOCABULARY, AT_LAYERS, AT_HEADS, AT_WIDTH, AT_PADDED };
enum { AT_SEQUENCES = 2, AT_LENGTH }; /* of a state */

/* Names of one layer, in file order. */
static const char *const layer_names[] = {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
    "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"};
enum { LAYER_NAMES = sizeof layer_names / sizeof *layer_names };

static int64_t padded_rows(int64_t vocabulary) { return round_up(vocabulary, PADDING); }

static const Parameter *find_parameter(const Graph *graph, const char *name) {
    int found = graph_find_parameter(graph, name);
    assert(found >= 0); /* every GPT-2 has them */
    return &graph->parameters[found];
}

/* Returns every parameter in file order; the caller frees the array. */
static const Parameter **in_file_order(const Graph *graph, int64_t layers) {
    const Parameter **order = memory_allocate(graph->parameter_count * sizeof *order);
    int count = 0;
    order[count++] = find_parameter(graph, "transformer.wte.weight");
    order[count++] = find_parameter(graph, "transformer.wpe.weight");
    for (int i = 0; i < LAYER_NAMES; i++)
        for (int64_t layer = 0; layer < layers; layer++) {
            char name[96];
            snprintf(name, sizeof name, "transformer.h.%lld.%s", (long long)layer, layer_names[i]);
            order[count++] = find_parameter(graph, name);
        }
    order[count++] = find_parameter(graph, "transformer.ln_f.weight");
    order[count++] = find_parameter(graph, "transformer.ln_f.bias");
    return order;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* Returns false unless the file has a header with this magic number. Sets *bytes to the file
 * size. */
static bool read_header(const char *path, int32_t magic, int32_t header[HEADER_INTEGERS], int64_t *bytes) {
    File file;
    Error ignored;
    if (!file_open(&file, path, &ignored)) return false;
    bool good = file_read_at(&file, header, HEADER_BYTES, 0, &ignored);
    *bytes = file.bytes;
    file_close(&file);
    return good && header[AT_MAGIC] == magic;
}

/* The file must still have the size against which its header was checked. */
static bool map_file(FileMap *map, const char *path, int64_t bytes, Error *error) {
    if (!file_map(map, path, error)) return false;
    if (map->size == (size_t)bytes) return true;
    file_unmap(map);
    return error_set(error, ERROR_CHECKPOINT, "%s changed while it was being read: start again", path);
}

bool llmc_is_model(const char *path) {
    int32_t header[HEADER_INTEGERS];
    int64_t bytes;
    return read_header(path, MAGIC, header, &bytes);
}

/* Returns the elements of all parameters as a double, because a corrupt header must not
 * overflow. */
static double elements(double padded, double context, double layers, double width) {
    return width * (padded + context + layers * (12 * width + 13) + 2);
}

bool llmc_read(const char *path, ModelConfig *model, Precision *precision, Error *error) {
    int32_t header[HEADER_INTEGERS];
    int64_t bytes;
    if (!read_header(path, MAGIC, header, &bytes)) return error_set(error, ERROR_CHECKPOINT, "%s is not a model file of llm.c", path);
    int version = header[AT_VERSION];
    if (version != VERSION_FP32 && version != VERSION_BF16)
        return error_set(
            error, ERROR_CHECKPOINT, "%s has llm.c model version %d, but smelt reads only 3 (fp32) and 5 (bf16)", path, version);
    for (int i = AT_CONTEXT; i <= AT_PADDED; i++)
        if (header[i] < 1) return error_set(error, ERROR_CHECKPOINT, "%s: header field %d is %d, but must be positive", path, i, header[i]);
    double count = elements(header[AT_PADDED], header[AT_CONTEXT], header[AT_LAYERS], header[AT_WIDTH]);
    if (header[AT_PADDED] < header[AT_VOCABULARY] || count * (version == VERSION_FP32 ? 4 : 2) + HEADER_BYTES != (double)bytes)
        return error_set(error, ERROR_CHECKPOINT, "%s has %lld bytes, which does not match its header: it is truncated or damaged", path,
            (long long)bytes);
    json_t *config = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "model_type", "gpt2", "vocab_size", header[AT_VOCABULARY], "n_positions",
        header[AT_CONTEXT], "n_layer", header[AT_LAYERS], "n_head", header[AT_HEADS], "n_embd", header[AT_WIDTH]);
    Precision ignored;
    char *warnings = NULL;
    bool good = hf_parse_config(config, model, &ignored, &warnings, error) || error_context(error, "%s", path);
    json_decref(config);
    free(warnings);
    *precision = version == VERSION_BF16 ? PRECISION_BF16 : PRECISION_FP32;
    return good;
}

static void load_model(
    const Graph *graph, const ModelConfig *model, Precision precision, const char *source, int64_t padded, char *master) {
    StoredType type = precision == PRECISION_BF16 ? STORED_BF16 : STORED_F32;
    const Parameter **order = in_file_order(graph, model->layers);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = order[i];
        hf_convert(precision_bytes(graph->precision, TYPE_WIDE), parameter_in(p, master), type, source, p->count);
        source += (i == 0 ? padded * model->width : p->count) * (int64_t)stored_type_bytes(type);
    }
    free(order);
}

bool llmc_load_weights(const char *path, const Graph *graph, void *master, Error *error) {
    ModelConfig model;
    Precision precision;
    int32_t header[HEADER_INTEGERS];
    int64_t bytes;
    if (!llmc_read(path, &model, &precision, error)) return false;
    FileMap map;
    bool there = read_header(path, MAGIC, header, &bytes) ||
                 error_set(error, ERROR_CHECKPOINT, "%s changed while it was being read: start again", path);
    if (!there || !map_file(&map, path, bytes, error)) return false;
    load_model(graph, &model, precision, (const char *)map.bytes + HEADER_BYTES, header[AT_PADDED], master);
    file_unmap(&map);
    return true;
}

/* -- States -------------------------------------------------------------------------------------------------------- */

bool llmc_is_state(const char *path) {
    int32_t header[HEADER_INTEGERS];
    int64_t bytes;
    return read_header(path, STATE_MAGIC, header, &bytes);
}

static double state_bytes(const ModelConfig *c, double rows) {
    return HEADER_BYTES + 4 * (2 * rows + rows * c->vocabulary + 1 + elements(padded_rows(c->vocabulary), c->context, c->layers, c->width));
}

static bool check_state_tokens(const LlmcState *state, int64_t vocabulary, const char *path, Error *error) {
    for (int64_t i = 0; i < state->sequences * state->length; i++)
        if (state->tokens[i] < 0 || state->tokens[i] >= vocabulary || state->targets[i] < -1 || state->targets[i] >= vocabulary)
            return error_set(error, ERROR_CHECKPOINT,
                "%s: row %lld has token %d and target %d, but the model's vocabulary is %lld: use the state of this model", path,
                (long long)i, state->tokens[i], state->targets[i], (long long)vocabulary);
    return true;
}

bool llmc_state_open(LlmcState *state, const char *path, const ModelConfig *model, Error *error) {
    int32_t header[HEADER_INTEGERS];
    int64_t bytes;
    *state = (LlmcState){0};
    if (!read_header(path, STATE_MAGIC, header, &bytes) || header[AT_VERSION] != STATE_VERSION)
        return error_set(error, ERROR_CHECKPOINT, "%s is not a debug state of llm.c in version %d", path, STATE_VERSION);
    state->sequences = header[AT_SEQUENCES];
    state->length = header[AT_LENGTH];
    if (state->sequences < 1 || state->length < 1 || state->length > model->context)
        return error_set(error, ERROR_CHECKPOINT,
            "%s has %d sequences of %d tokens, but needs at least 1 of at most %lld, the model's context", path, header[AT_SEQUENCES],
            header[AT_LENGTH], (long long)model->context);
    int64_t rows = state->sequences * state->length;
    if (!hf_class(model)->is_llmc || !model->tied || model->ffn != 4 * model->width)
        return error_set(error, ERROR_CHECKPOINT,
            "%s is a debug state of a GPT-2 with a tied head and an MLP of four times its width, but this model differs", path);
    if (state_bytes(model, (double)rows) != (double)bytes)
        return error_set(error, ERROR_CHECKPOINT,
            "%s has %lld bytes, which does not match %lld x %lld tokens of this model: it belongs to another model or is damaged", path,
            (long long)bytes, (long long)state->sequences, (long long)state->length);
    if (!map_file(&state->map, path, bytes, error)) return false;
    state->tokens = (const int32_t *)(state->map.bytes + HEADER_BYTES);
    state->targets = state->tokens + rows;
    state->logits = (const float *)(state->targets + rows);
    state->loss = state->logits[rows * model->vocabulary];
    return check_state_tokens(state, model->vocabulary, path, error);
}

void llmc_state_gradients(const LlmcState *state, const Graph *graph, const ModelConfig *model, void *gradients) {
    const float *first = state->logits + state->sequences * state->length * model->vocabulary + 1;
    load_model(graph, model, PRECISION_FP32, (const char *)first, padded_rows(model->vocabulary), gradients);
}

void llmc_state_close(LlmcState *state) {
    file_unmap(&state->map);
    *state = (LlmcState){0};
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

static bool check_export(const ModelConfig *c, const char *path, bool overwrite, Error *error) {
    if (!hf_class(c)->is_llmc || c->window || !c->tied || c->ffn != 4 * c->width || c->norm_epsilon != 1e-5 ||
        model_activation(c) != family_of(c)->activation)
        return error_set(error, ERROR_USAGE,
            "llm.c files support only family gpt2 with model.tied=true, model.ffn=4 x model.width, model.norm_epsilon=1e-5 and "
            "model.activation=auto: export a folder instead");
    return file_check_overwrite(path, overwrite, llmc_is_model, "a model of llm.c", error);
}

static bool check_values(const Parameter *p, const float *values, Error *error) {
    StoredTensor tensor = {.name = p->name, .type = STORED_F32, .rank = 1, .shape = {p->count}, .data = values};
    return stored_check_finite(&tensor, error);
}

static bool write_values(File *file, const float *values, int64_t count, Precision precision, Error *error) {
    if (precision == PRECISION_FP32) return file_append(file, values, count * (int64_t)sizeof *values, error);
    uint16_t *rounded = memory_allocate(count * sizeof *rounded);
    bf16_from_floats(rounded, values, count);
    bool written = file_append(file, rounded, count * (int64_t)sizeof *rounded, error);
    free(rounded);
    return written;
}

static bool put_all(File *file, const ModelConfig *c, Precision precision, const float *master, Error *error) {
    int64_t padded = padded_rows(c->vocabulary), padding = (padded - c->vocabulary) * c->width;
    int32_t header[HEADER_INTEGERS] = {MAGIC, precision == PRECISION_BF16 ? VERSION_BF16 : VERSION_FP32, (int32_t)c->context,
        (int32_t)c->vocabulary, (int32_t)c->layers, (int32_t)c->heads, (int32_t)c->width, (int32_t)padded};
    Model model = model_describe(c, NULL, precision);
    const Parameter **order = in_file_order(model.graph, c->layers);
    float *zeros = memory_allocate((padding + 1) * sizeof *zeros);
    bool good = file_append(file, header, HEADER_BYTES, error);
    for (int i = 0; i < model.graph->parameter_count && good; i++)
        good = check_values(order[i], parameter_in(order[i], master), error) &&
               write_values(file, parameter_in(order[i], master), order[i]->count, precision, error) &&
               (i > 0 || write_values(file, zeros, padding, precision, error));
    free(zeros);
    free(order);
    model_free(&model);
    return good;
}

bool llmc_write(const char *path, const ModelConfig *model, Precision precision, const float *master, bool overwrite, Error *error) {
    File file;
    if (!check_export(model, path, overwrite, error) || !file_replace_begin(&file, path, error)) return false;
    bool written = put_all(&file, model, precision, master, error) && file_replace_commit(&file, error);
    file_close(&file);
    return written;
}

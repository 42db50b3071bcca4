/* A libFuzzer entry for GGUF files: a file is refused, or its tensors decode, and its model, which need not be that of
 * its tensors, and its tokenizer are read or refused, each with one line. Owns a file in the entries' folder. */
#include "fuzz.h"
#include "gguf/gguf.h"
#include "formats/hf.h"
#include "token/tokenizer.h"

enum { SMALL = 1 << 16 /* parameters of a model that is built */ };

static void decode_all(const Gguf *file) {
    for (size_t i = 0; i < file->tensor_count; i++) {
        const GgufTensor *tensor = &file->tensors[i];
        int64_t count = tensor->bytes / tensor->type->bytes * tensor->type->elements;
        float *values = malloc((size_t)count * sizeof *values);
        require(values && gguf_tensor(file, tensor->name) == tensor && tensor->data + tensor->bytes <= file->map.bytes + file->map.size);
        tensor->type->decode(tensor->data, values, count);
        free(values);
    }
}

static void load_all(const char *path, const HfModel *model) {
    const ModelConfig *c = &model->config;
    Error error = {0};
    double layer = (double)c->width * ((double)c->ffn * (double)(c->experts ? c->experts : 1) + (double)c->heads * (double)c->head_dim);
    if ((double)c->layers * layer + (double)c->width * (double)c->vocabulary > SMALL || c->context > SMALL) return;
    Model built = model_build(c, PRECISION_FP32, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    float *master = malloc((size_t)built.graph->parameter_bytes);
    require(master != NULL);
    if (!hf_load_weights(path, c, built.graph, master, &error)) require_line(&error);
    free(master);
    model_free(&built);
}

FUZZ(gguf) {
    Error error = {0};
    Gguf file;
    HfModel model = {0};
    const char *path = fuzz_file("file.gguf", data, size);
    bool whole = gguf_open(&file, path, &error);
    if (!whole) require_line(&error);
    if (whole) decode_all(&file);
    if (whole) gguf_close(&file);
    error = (Error){0};
    if (hf_read(path, &model, &error)) load_all(path, &model);
    else require_line(&error);
    hf_release(&model);
    error = (Error){0};
    Tokenizer *tokenizer = tokenizer_open(path, &error);
    if (!tokenizer) require_line(&error);
    tokenizer_free(tokenizer);
}

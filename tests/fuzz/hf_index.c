/* A libFuzzer entry for model.safetensors.index.json, beside two files of tensors: it is refused, or gives a reader that
 * finds every tensor of the model. Owns its files in the entries' folder, and a model, for as long as the program runs. */
#include "ckpt/ckpt.h"
#include "fuzz.h"
#include "formats/hf_internal.h"
#include "model/model.h"

static const ModelConfig config = FUZZ_MODEL();

/* Writes the model's tensors from `first` to before `end`, all zero. */
static void write_shard(const HfTensorList *list, size_t first, size_t end, const char *name) {
    static const float zeros[64];
    StoredTensor tensors[16];
    char path[64];
    Error error = {0};
    require(end - first <= 16);
    for (size_t i = first; i < end; i++) {
        const HfTensor *from = &list->items[i];
        require(from->count <= 64);
        tensors[i - first] = (StoredTensor){.name = from->name, .type = STORED_F32, .rank = from->rank, .data = zeros};
        memcpy(tensors[i - first].shape, from->shape, sizeof from->shape);
    }
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    require(safetensors_write(path, tensors, end - first, NULL, &error));
}

static const Graph *the_model(void) {
    static Model model;
    if (model.graph) return model.graph;
    model = model_describe(&config, NULL, PRECISION_FP32);
    HfTensorList list = hf_tensors(&config, model.graph, NULL);
    write_shard(&list, 0, 3, "a.safetensors");
    write_shard(&list, 3, list.count, "b.safetensors");
    hf_tensors_free(&list);
    return model.graph;
}

FUZZ(hf_index) {
    const Graph *graph = the_model();
    Error error = {0};
    fuzz_file("model.safetensors.index.json", data, size);
    HfReader *reader = hf_reader_open(fuzz_folder(), &config, graph, &error);
    if (!reader) require_line(&error);
    float values[64];
    for (int i = 0; reader && i < graph->parameter_count; i++) hf_reader_load(reader, i, values);
    hf_reader_close(reader);
}

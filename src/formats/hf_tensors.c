/* Lists the tensors of a folder or a GGUF file with their names. Our parameters have the names of
 * the folders that transformers writes today. Classes with another layout, and older folders, have
 * a lister of their own in the file of their family. Called by the readers and the writers of
 * folders and GGUF files. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/strings.h"
#include "formats/hf_internal.h"

HfTensor *hf_append(HfTensorList *list, char *name, const HfParameter *parameter) {
    const Parameter *p = parameter->p;
    array_append(list->items, list->count, hf_tensor(p));
    HfTensor *tensor = &list->items[list->count - 1];
    tensor->name = name;
    tensor->parameter = parameter->index;
    return tensor;
}

/* Returns the tensor of a whole parameter without its name and index. */
HfTensor hf_tensor(const Parameter *p) {
    HfTensor tensor = {
        .count = p->count, .rank = p->rank, .transposed = p->transposed, .vectors = p->rank == 1 || p->kind == PARAMETER_BIAS};
    memcpy(tensor.shape, p->shape, sizeof p->shape);
    if (p->transposed) {
        tensor.shape[p->rank - 2] = p->shape[p->rank - 1];
        tensor.shape[p->rank - 1] = p->shape[p->rank - 2];
    }
    if (p->alternates) tensor.paired = hf_rows(&tensor);
    return tensor;
}

HfTensor *hf_append_part(HfTensorList *list, char *name, const HfParameter *parameter, int64_t index, int64_t parts) {
    const Parameter *p = parameter->p;
    HfTensor *tensor = hf_append(list, name, parameter);
    tensor->rank = 2;
    tensor->shape[0] = p->shape[0] * p->shape[1] / parts;
    tensor->shape[1] = p->shape[2];
    tensor->count = p->count / parts;
    tensor->first = index * tensor->count;
    return tensor;
}

int hf_split_layer(const HfParameter *parameter, const char **rest) {
    const char *name = parameter->p->name, *layers = family_of(parameter->config)->layers;
    size_t length = strlen(layers);
    char *end;
    *rest = name;
    if (!starts_with(name, layers) || name[length] != '.') return -1;
    long layer = strtol(name + length + 1, &end, 10);
    if (end == name + length + 1 || *end != '.') return -1;
    *rest = end + 1;
    return (int)layer;
}

void hf_list_native(HfTensorList *list, const HfParameter *parameter) {
    hf_append(list, memory_copy_string(parameter->p->name), parameter);
}

void hf_list_stacked(HfTensorList *list, const HfParameter *parameter) {
    bool lacks = hf_class(parameter->config)->lacks_router_biases;
    if (!lacks || parameter->p->kind != PARAMETER_BALANCE_BIAS) hf_list_native(list, parameter);
}

void hf_list_split_experts(HfTensorList *list, const HfParameter *parameter, const char *block, const char *const names[3]) {
    const char *rest, *layers = family_of(parameter->config)->layers;
    const Parameter *p = parameter->p;
    int layer = hf_split_layer(parameter, &rest);
    if (p->kind == PARAMETER_BALANCE_BIAS) {
        hf_list_stacked(list, parameter);
        return;
    }
    if (!strcmp(rest, "mlp.gate.weight")) {
        hf_append(list, memory_format("%s.%d.%s.gate.weight", layers, layer, block), parameter);
        return;
    }
    if (p->kind != PARAMETER_MATRIX || p->rank != 3) {
        hf_list_native(list, parameter);
        return;
    }
    bool down = ends_with(p->name, "down_proj");
    int64_t parts = p->shape[0] * (down ? 1 : 2);
    for (int64_t i = 0; i < parts; i++)
        hf_append_part(list,
            memory_format("%s.%d.%s.experts.%lld.%s.weight", layers, layer, block, (long long)(down ? i : i / 2), names[down ? 2 : i % 2]),
            parameter, i, parts);
}

void hf_list_experts(HfTensorList *list, const HfParameter *parameter) {
    hf_list_split_experts(list, parameter, "mlp", (const char *const[]){"gate_proj", "up_proj", "down_proj"});
}

void hf_list_bare(HfTensorList *list, const HfParameter *parameter) {
    static const char trunk[] = "transformer.";
    const char *name = parameter->p->name;
    hf_append(list, memory_copy_string(starts_with(name, trunk) ? name + strlen(trunk) : name), parameter);
}

/* -- GGUF ---------------------------------------------------------------------------------------------------------- */

/* The names of Llama-like decoders. */
static const GgufName decoder_names[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."},
    {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "ffn_norm."},
    {"self_attn.q_proj.", "attn_q."},
    {"self_attn.k_proj.", "attn_k."},
    {"self_attn.v_proj.", "attn_v."},
    {"self_attn.o_proj.", "attn_output."},
    {"self_attn.q_norm.", "attn_q_norm."},
    {"self_attn.k_norm.", "attn_k_norm."},
    {"mlp.gate_proj.", "ffn_gate."},
    {"mlp.up_proj.", "ffn_up."},
    {"mlp.down_proj.", "ffn_down."},
    {"mlp.gate.", "ffn_gate_inp."},
    {NULL, NULL},
};

/* Returns the row whose prefix `name` begins with; NULL: none. */
static const GgufName *find_name(const GgufName *row, const char *name) {
    while (row && row->ours && !starts_with(name, row->ours)) row++;
    return row && row->ours ? row : NULL;
}

char *gguf_tensor_name(const HfParameter *parameter) {
    const char *rest;
    int layer = hf_split_layer(parameter, &rest);
    const GgufName *row = find_name(hf_class(parameter->config)->gguf->names, rest);
    if (!row) row = find_name(decoder_names, rest);
    if (!row) return memory_copy_string(parameter->p->name);
    rest += strlen(row->ours);
    return layer < 0 ? memory_format("%s%s", row->gguf, rest) : memory_format("blk.%d.%s%s", layer, row->gguf, rest);
}

/* Appends the tensors of stacked experts. GGUF files stack experts as smelt does, but gate, up
 * and down projections are separate tensors: a tensor has every `step`th of step * experts equal
 * parts of the parameter, starting at part `from`. */
static void append_experts(HfTensorList *list, const char *name, int layer, const HfParameter *parameter, int64_t from, int64_t step) {
    int64_t experts = parameter->p->shape[0];
    for (int64_t i = 0; i < experts; i++) {
        HfTensor *tensor = hf_append_part(list, memory_format("blk.%d.%s", layer, name), parameter, from + step * i, step * experts);
        memmove(tensor->shape + 1, tensor->shape, 2 * sizeof *tensor->shape);
        tensor->shape[0] = experts;
        tensor->rank = 3;
        tensor->transposed = false;
        tensor->paired = 0;
        tensor->offset = i * tensor->count;
    }
}

/* The same for biases [experts, step * rows]. */
static void append_expert_biases(
    HfTensorList *list, const char *name, int layer, const HfParameter *parameter, int64_t from, int64_t step) {
    int64_t experts = parameter->p->shape[0], rows = parameter->p->shape[1] / step;
    for (int64_t i = 0; i < experts; i++) {
        HfTensor *tensor = hf_append(list, memory_format("blk.%d.%s", layer, name), parameter);
        tensor->shape[1] = rows;
        tensor->first = (from + step * i) * rows;
        tensor->count = rows;
        tensor->offset = i * rows;
        tensor->paired = 0;
        tensor->vectors = false;
    }
}

/* llama.cpp's matrices are all [out, in]. */
void hf_list_gguf(HfTensorList *list, const HfParameter *parameter) {
    const Parameter *p = parameter->p;
    const char *rest;
    int layer = hf_split_layer(parameter, &rest);
    const HfClass *class = hf_class(parameter->config);
    if (layer >= parameter->config->layers) return; /* for multi-token prediction */
    if (p->kind == PARAMETER_BALANCE_BIAS && (class->lacks_router_biases || !find_name(class->gguf->names, rest))) return;
    if (class->gguf->list && class->gguf->list(list, parameter, rest)) return;
    if (ends_with(rest, ".experts.gate_up_proj")) {
        append_experts(list, "ffn_gate_exps.weight", layer, parameter, 0, 2);
        append_experts(list, "ffn_up_exps.weight", layer, parameter, 1, 2);
    } else if (ends_with(rest, ".experts.down_proj")) {
        append_experts(list, "ffn_down_exps.weight", layer, parameter, 0, 1);
    } else if (ends_with(rest, ".experts.gate_up_proj_bias")) {
        append_expert_biases(list, "ffn_gate_exps.bias", layer, parameter, 0, 2);
        append_expert_biases(list, "ffn_up_exps.bias", layer, parameter, 1, 2);
    } else if (ends_with(rest, ".experts.down_proj_bias")) {
        append_expert_biases(list, "ffn_down_exps.bias", layer, parameter, 0, 1);
    } else {
        HfTensor *tensor = hf_append(list, gguf_tensor_name(parameter), parameter);
        tensor->transposed = false;
        tensor->paired = 0;
        memcpy(tensor->shape, p->shape, sizeof p->shape);
        bool rotated = starts_with(rest, "self_attn.q_proj.") || starts_with(rest, "self_attn.k_proj.");
        if (rotated && class->gguf->pairs) tensor->paired = parameter->config->head_dim;
    }
}

/* -- All parameters ------------------------------------------------------------------------------------------------ */

HfTensorList hf_tensors(const ModelConfig *config, const Graph *graph, HfLister *list) {
    HfTensorList tensors = {0};
    if (!list) list = hf_class(config)->list ? hf_class(config)->list : hf_list_native;
    for (int i = 0; i < graph->parameter_count; i++)
        list(&tensors, &(HfParameter){.index = i, .p = &graph->parameters[i], .config = config});
    return tensors;
}

void hf_tensors_free(HfTensorList *list) {
    for (size_t i = 0; i < list->count; i++) free(list->items[i].name);
    free(list->items);
    *list = (HfTensorList){0};
}

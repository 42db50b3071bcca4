/* Which tensors a folder holds. Our parameters have the names of the folder already, with two exceptions: Mixtral's
 * experts are stored one by one, which is a matter of names, since the parts of our stacked matrices are contiguous;
 * and ZAYA1's first folders count attention and experts as layers of their own and have other names for most of
 * their parts. GPT-2 stores matrices the other way round. GGUF files have other names throughout. Called by the readers
 * and the writers of folders and GGUF files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/strings.h"
#include "model/hf_internal.h"

/* Takes over `name`. */
static HfTensor *append(HfTensorList *list, char *name, int parameter, const Parameter *p) {
    array_append(list->items, list->count, (HfTensor){.name = name, .parameter = parameter, .count = p->count, .rank = p->rank});
    HfTensor *tensor = &list->items[list->count - 1];
    memcpy(tensor->shape, p->shape, sizeof p->shape);
    if (p->transposed) {
        tensor->transposed = true;
        tensor->shape[0] = p->shape[1];
        tensor->shape[1] = p->shape[0];
    }
    return tensor;
}

/* Part `index` of `parts` equal ones of a stack of matrices, each with 1 / parts of the stack's rows. */
static void append_part(HfTensorList *list, char *name, int parameter, const Parameter *p, int64_t index, int64_t parts) {
    HfTensor *tensor = append(list, name, parameter, p);
    tensor->rank = 2;
    tensor->shape[0] = p->shape[0] * p->shape[1] / parts;
    tensor->shape[1] = p->shape[2];
    tensor->count = p->count / parts;
    tensor->first = index * tensor->count;
}

/* The layer of "model.layers.N.REST" and its REST; -1 for other names. */
static int split_layer(const char *name, const char **rest) {
    int layer = -1, used = 0;
    if (sscanf(name, "model.layers.%d.%n", &layer, &used) != 1 || used == 0) return -1;
    *rest = name + used;
    return layer;
}

/* -- Mixtral ------------------------------------------------------------------------------------------------------- */

/* Mixtral chooses by probability alone: its routers have no biases. w1 is the gate, w3 the upward and w2 the
 * downward projection. */
static void append_mixtral(HfTensorList *list, int parameter, const Parameter *p) {
    const char *rest = "";
    int layer = split_layer(p->name, &rest);
    if (p->kind == PARAMETER_BALANCE_BIAS) return;
    if (!strcmp(rest, "mlp.gate.weight")) {
        append(list, memory_format("model.layers.%d.block_sparse_moe.gate.weight", layer), parameter, p);
    } else if (p->rank == 3) {
        bool down = ends_with(p->name, "down_proj");
        int64_t parts = p->shape[0] * (down ? 1 : 2);
        for (int64_t i = 0; i < parts; i++)
            append_part(list,
                memory_format("model.layers.%d.block_sparse_moe.experts.%lld.%s.weight", layer, (long long)(down ? i : i / 2),
                    down    ? "w2"
                    : i % 2 ? "w3"
                            : "w1"),
                parameter, p, i, parts);
    } else {
        append(list, memory_copy_string(p->name), parameter, p);
    }
}

/* -- ZAYA1's first folders ----------------------------------------------------------------------------------------- */

/* Beginnings of names in layer N and in layer 2 N + step of a legacy folder; the first that fits holds. A merge
 * belongs to the step after the block that it merges. */
static const struct {
    const char *native, *legacy;
    int step;
} legacy_names[] = {
    {"input_layernorm.", "input_norm.", 0},
    {"self_attn.qkv_proj.q_proj.", "self_attn.qkv.linear_q.", 0},
    {"self_attn.qkv_proj.k_proj.", "self_attn.qkv.linear_k.", 0},
    {"self_attn.qkv_proj.v_proj_current.", "self_attn.qkv.val_proj1.", 0},
    {"self_attn.qkv_proj.v_proj_delayed.", "self_attn.qkv.val_proj2.", 0},
    {"self_attn.qkv_proj.conv_qk_depthwise.", "self_attn.qkv.conv_qk.0.", 0},
    {"self_attn.qkv_proj.conv_qk_grouped.", "self_attn.qkv.conv_qk.1.", 0},
    {"self_attn.qk_norm.", "self_attn.qkv.", 0},
    {"self_attn.o_proj.", "self_attn.o_proj.", 0},
    {"post_attention_residual_scale.", "res_scale.", 1},
    {"post_attention_layernorm.", "input_norm.", 1},
    {"mlp.gate.router_mlp.norm.", "zaya_block.router.rmsnorm_eda.", 1},
    {"mlp.gate.router_mlp.fc1.", "zaya_block.router.router_mlp.0.", 1},
    {"mlp.gate.router_mlp.fc2.", "zaya_block.router.router_mlp.2.", 1},
    {"mlp.gate.router_mlp.out_proj.", "zaya_block.router.router_mlp.4.", 1},
    {"mlp.gate.", "zaya_block.router.", 1},
    {"post_mlp_residual_scale.", "res_scale.", 2},
};

static char *legacy_name(const char *name, int64_t layers) {
    static const char entry[] = "model.input_hidden_states_";
    const char *rest = "";
    int layer = split_layer(name, &rest);
    if (starts_with(name, entry)) return memory_format("model.layers.0.res_scale.hidden_states_%s", name + strlen(entry));
    if (!strcmp(name, "model.norm.weight")) return memory_copy_string(HF_LEGACY_MARK);
    for (size_t i = 0; layer >= 0 && i < sizeof legacy_names / sizeof *legacy_names; i++) {
        size_t length = strlen(legacy_names[i].native);
        int64_t step = 2 * (int64_t)layer + legacy_names[i].step;
        if (strncmp(rest, legacy_names[i].native, length)) continue;
        if (step == 2 * layers) return memory_format("model.%s%s", legacy_names[i].legacy, rest + length);
        return memory_format("model.layers.%lld.%s%s", (long long)step, legacy_names[i].legacy, rest + length);
    }
    return memory_copy_string(name);
}

static void append_legacy(HfTensorList *list, int parameter, const Parameter *p, int64_t layers) {
    const char *rest = "";
    int layer = split_layer(p->name, &rest);
    if (!starts_with(rest, "mlp.experts.")) {
        append(list, legacy_name(p->name, layers), parameter, p);
        return;
    }
    for (int64_t i = 0; i < p->shape[0]; i++)
        append_part(list,
            memory_format("model.layers.%d.zaya_block.experts.local_experts.%lld.linear_fc%d.weight", 2 * layer + 1, (long long)i,
                ends_with(rest, "down_proj") ? 2 : 1),
            parameter, p, i, p->shape[0]);
}

/* -- GGUF ---------------------------------------------------------------------------------------------------------- */

/* Beginnings of names, in a layer and outside of all, as in llama.cpp's gguf-py (constants.py, tensor_mapping.py). */
static const struct {
    const char *ours, *gguf;
} gguf_names[] = {
    {"model.embed_tokens.", "token_embd."},
    {"model.norm.", "output_norm."},
    {"lm_head.", "output."},
    {"transformer.wte.", "token_embd."},
    {"transformer.wpe.", "position_embd."},
    {"transformer.ln_f.", "output_norm."},
    {"transformer.norm_f.", "output_norm."},
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
    {"ln_1.", "attn_norm."},
    {"ln_2.", "ffn_norm."},
    {"attn.c_attn.", "attn_qkv."},
    {"attn.c_proj.", "attn_output."},
    {"mlp.c_fc.", "ffn_up."},
    {"mlp.c_proj.", "ffn_down."},
    {"norm_1.", "attn_norm."},
    {"norm_2.", "ffn_norm."},
    {"attn.Wqkv.", "attn_qkv."},
    {"attn.q_ln.", "attn_q_norm."},
    {"attn.k_ln.", "attn_k_norm."},
    {"attn.out_proj.", "attn_output."},
    {"ffn.up_proj.", "ffn_up."},
    {"ffn.down_proj.", "ffn_down."},
};

/* The layer of a parameter and the rest of its name; -1: it is of no layer. */
static int gguf_layer(const char *name, const char **rest) {
    static const char *const starts[] = {"model.layers.", "transformer.blocks.", "transformer.h."};
    *rest = name;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        char *end;
        if (!starts_with(name, starts[i])) continue;
        long layer = strtol(name + strlen(starts[i]), &end, 10);
        *rest = end + 1;
        return (int)layer;
    }
    return -1;
}

static char *gguf_name(const char *name) {
    const char *rest;
    int layer = gguf_layer(name, &rest);
    for (size_t i = 0; i < sizeof gguf_names / sizeof *gguf_names; i++) {
        size_t length = strlen(gguf_names[i].ours);
        if (strncmp(rest, gguf_names[i].ours, length)) continue;
        if (layer < 0) return memory_format("%s%s", gguf_names[i].gguf, rest + length);
        return memory_format("blk.%d.%s%s", layer, gguf_names[i].gguf, rest + length);
    }
    return memory_copy_string(name);
}

/* Experts are stacked as ours are, but gates, upward and downward projections each on their own: every `step`th of
 * `parts` equal parts of the parameter, from part `from` on, is one tensor. */
static void append_experts(HfTensorList *list, const char *name, int layer, int parameter, const Parameter *p, int64_t from, int64_t step) {
    int64_t experts = p->shape[0];
    for (int64_t i = 0; i < experts; i++) {
        append_part(list, memory_format("blk.%d.%s.weight", layer, name), parameter, p, from + step * i, step * experts);
        HfTensor *tensor = &list->items[list->count - 1];
        memmove(tensor->shape + 1, tensor->shape, 2 * sizeof *tensor->shape);
        tensor->shape[0] = experts;
        tensor->rank = 3;
        tensor->offset = i * tensor->count;
    }
}

/* llama.cpp rotates neighbouring channels in models of the architecture "llama", so the rows of queries and keys are in
 * another order there. Its matrices are all [out, in]. */
static void append_gguf(HfTensorList *list, int parameter, const Parameter *p, const ModelConfig *config, HfClass class) {
    const char *rest;
    int layer = gguf_layer(p->name, &rest);
    bool pairs = class == HF_LLAMA || class == HF_MISTRAL || class == HF_MIXTRAL;
    if (p->kind == PARAMETER_BALANCE_BIAS) return;
    if (!strcmp(rest, "mlp.experts.gate_up_proj")) {
        append_experts(list, "ffn_gate_exps", layer, parameter, p, 0, 2);
        append_experts(list, "ffn_up_exps", layer, parameter, p, 1, 2);
    } else if (!strcmp(rest, "mlp.experts.down_proj")) {
        append_experts(list, "ffn_down_exps", layer, parameter, p, 0, 1);
    } else {
        HfTensor *tensor = append(list, gguf_name(p->name), parameter, p);
        tensor->transposed = false;
        memcpy(tensor->shape, p->shape, sizeof p->shape);
        if (pairs && (starts_with(rest, "self_attn.q_proj.") || starts_with(rest, "self_attn.k_proj."))) tensor->paired = config->head_dim;
    }
}

/* -- All classes --------------------------------------------------------------------------------------------------- */

HfTensorList hf_tensors(const ModelConfig *config, const Graph *graph, HfLayout layout) {
    static const char trunk[] = "transformer.";
    HfTensorList list = {0};
    HfClass class = hf_class(config);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (layout == LAYOUT_GGUF) append_gguf(&list, i, p, config, class);
        else if (layout == LAYOUT_LEGACY_ZAYA) append_legacy(&list, i, p, config->layers);
        else if (class == HF_MIXTRAL) append_mixtral(&list, i, p);
        else
            append(
                &list, memory_copy_string(layout == LAYOUT_BARE && starts_with(p->name, trunk) ? p->name + strlen(trunk) : p->name), i, p);
    }
    return list;
}

void hf_tensors_free(HfTensorList *list) {
    for (size_t i = 0; i < list->count; i++) free(list->items[i].name);
    free(list->items);
    *list = (HfTensorList){0};
}

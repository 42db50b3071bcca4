/* Shared by the classes with the gated delta rule, Qwen3-Next and Qwen3.5: fields of config.json, keys and tensors of GGUF
 * files. Called by their families and the reader; owns nothing. */
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "formats/hf_class.h"

static void read_quarter_rope(HfFieldReader *r, const char *name, const json_t *value) { hf_read_rope_part(r, name, value, 0.25); }

static void read_balance_loss(HfFieldReader *r, const char *name, const json_t *value) { hf_read_router_loss(r, name, value, 0.001); }

static const char attention_name[] = "full_attention", delta_name[] = "linear_attention";

/* Without layer_types, every full_attention_interval-th layer has attention. */
static void read_delta_layers(HfFieldReader *r, const char *name, const json_t *types) {
    ModelConfig *c = r->model;
    int64_t first = 0, entries = (int64_t)json_array_size(types);
    c->attention_period = 4;
    if (!types || json_is_null(types)) c->attention_period = hf_integer_or(r, "full_attention_interval", 1, 4);
    else if (entries != c->layers) hf_refuse(r, name, "does not have one name per layer (num_hidden_layers)");
    if (!r->good || !entries) return;
    for (int64_t i = entries - 1; i >= 0; i--) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool attends = type && !strcmp(type, attention_name);
        if (!attends && (!type || strcmp(type, delta_name) != 0))
            hf_refuse(r, name, "holds a name other than \"%s\" and \"%s\"", attention_name, delta_name);
        if (attends) first = i + 1;
    }
    c->attention_period = first ? first : c->layers + 1;
    for (int64_t i = 0; i < entries; i++)
        if (model_has_attention(c, i) != !strcmp(json_string_value(json_array_get(types, (size_t)i)), attention_name) && r->good)
            hf_refuse(r, name, "has \"%s\" in layers other than every Nth, which is not supported", attention_name);
}

/* The width of the shared expert is a multiple of a routed expert's width. */
static void read_shared_width(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    (void)value;
    int64_t width = hf_integer_or(r, name, 1, 512);
    if (!r->good || c->ffn < 1) return;
    if (width % c->ffn) hf_refuse(r, name, "is not a multiple of moe_intermediate_size, which is not supported");
    c->shared_experts = width / c->ffn;
}

const HfField hf_delta_fields[] = {
    INTEGER("num_attention_heads", heads, "16"),
    INTEGER("head_dim", head_dim, "256"),
    INTEGER("max_position_embeddings", context, "32768"),
    READ("rope_parameters", read_quarter_rope),
    FIXED("attention_bias", "false"),
    FIXED("hidden_act", "silu swish"), /* the convolutions have it too */
    INTEGER("linear_num_value_heads", delta_heads, "32"),
    INTEGER("linear_num_key_heads", delta_key_heads, "16"),
    INTEGER("linear_key_head_dim", delta_key_dim, "128"),
    INTEGER("linear_value_head_dim", delta_value_dim, "128"),
    INTEGER("linear_conv_kernel_dim", delta_taps, "4"),
    READ("layer_types", read_delta_layers), /* reads the next field too */
    NO_EFFECT("full_attention_interval"),
    NO_EFFECT("attn_output_gate"), /* other programs read this field; published folders contain it and the next fields */
    NO_EFFECT("mamba_ssm_dtype"),
    NO_EFFECT("mtp_num_hidden_layers"),
    NO_EFFECT("mtp_use_dedicated_embeddings"),
    END,
};
const HfField hf_delta_expert_fields[] = {
    INTEGER("hidden_size", width, "2048"),
    INTEGER("num_key_value_heads", kv_heads, "2"),
    INTEGER("moe_intermediate_size", ffn, "512"),
    READ("shared_expert_intermediate_size", read_shared_width),
    READ("router_aux_loss_coef", read_balance_loss),
    NO_EFFECT("output_router_logits"),
    END,
};

void hf_put_delta(json_t *object, const ModelConfig *c) {
    json_t *types = json_array();
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put_rows(object, c, hf_delta_fields);
    hf_put(object, "partial_rotary_factor", json_real(c->rope_fraction));
    hf_put(object, "layer_types", types);
    for (int64_t i = 0; i < c->layers; i++)
        json_array_append_new(types, json_string(model_has_attention(c, i) ? attention_name : delta_name));
    if (!c->experts) return;
    hf_put_rows(object, c, hf_delta_expert_fields);
    hf_put_integer(object, "shared_expert_intermediate_size", c->shared_experts * c->ffn);
    hf_put_router(object, c);
}

/* -- GGUF ---------------------------------------------------------------------------------------------------------- */

static bool read_gguf_experts(const GgufKeys *keys) {
    static const char key[] = "expert_shared_feed_forward_length";
    int64_t width = 0;
    if (!gguf_key_integer(keys, key, &width)) return false;
    if (!width) return gguf_key_refuse(keys, key, "is missing");
    hf_put_integer(keys->object, "shared_expert_intermediate_size", width);
    return gguf_check_scores(keys, false);
}

/* In llama.cpp, keys and values have the same number of columns per head. */
bool hf_read_delta_gguf(const GgufKeys *keys) {
    static const char values_key[] = "ssm.inner_size", period_key[] = "full_attention_interval";
    int64_t columns = gguf_field(keys, "linear_key_head_dim"), heads = gguf_field(keys, "linear_num_value_heads"), values = 0, period = 4;
    if (!gguf_key_integer(keys, values_key, &values) || !gguf_key_integer(keys, period_key, &period) || !gguf_read_prediction(keys))
        return false;
    if (values % heads || values / heads != columns) return gguf_key_refuse(keys, values_key, "is not ssm.state_size x ssm.time_step_rank");
    hf_put_integer(keys->object, "linear_value_head_dim", columns);
    hf_put_integer(keys->object, period_key, period);
    return !keys->class->gguf->experts || read_gguf_experts(keys);
}

void hf_put_delta_gguf(GgufWriter *writer, const ModelConfig *c) {
    gguf_put_number(writer, c, "ssm.inner_size", c->delta_heads * c->delta_value_dim);
    gguf_put_number(writer, c, "full_attention_interval", c->attention_period);
    if (c->experts) gguf_put_number(writer, c, "expert_shared_feed_forward_length", c->shared_experts * c->ffn);
}

bool hf_check_delta_gguf(const ModelConfig *c, Error *error) {
    if (c->delta_key_dim != c->delta_value_dim)
        return error_set(error, ERROR_USAGE,
            "model.delta_key_dim=%lld, model.delta_value_dim=%lld: llama.cpp requires that they are equal: export a folder instead",
            (long long)c->delta_key_dim, (long long)c->delta_value_dim);
    if (c->attention_period > c->layers)
        return error_set(error, ERROR_USAGE,
            "model.attention_period=%lld is above model.layers=%lld: llama.cpp has no such model without attention: export a folder "
            "instead",
            (long long)c->attention_period, (long long)c->layers);
    return gguf_check_scaling(c, error);
}

/* A stored matrix, assembled from ranges of rows of a parameter. */
typedef struct RowRanges {
    HfTensorList *list;
    const HfParameter *parameter;
    const char *name;
    int64_t rows; /* of the stored matrix */
    int64_t at;   /* elements before the next range */
} RowRanges;

static void append_range(RowRanges *r, int64_t from, int64_t rows) {
    const Parameter *p = r->parameter->p;
    int64_t columns = p->shape[p->rank - 1];
    HfTensor *tensor = hf_append(r->list, memory_copy_string(r->name), r->parameter);
    tensor->rank = 2;
    tensor->shape[0] = r->rows;
    tensor->shape[1] = columns;
    tensor->first = from * columns;
    tensor->count = rows * columns;
    tensor->offset = r->at;
    r->at += tensor->count;
}

/* Appends a matrix with `lead` rows before `size` rows per value head. */
static void append_value_heads(HfTensorList *list, const HfParameter *parameter, int64_t lead, int64_t size) {
    const ModelConfig *c = parameter->config;
    int64_t heads = c->delta_heads, groups = c->delta_key_heads, group = heads / groups;
    SCOPED_FREE char *name = gguf_tensor_name(parameter);
    RowRanges ranges = {.list = list, .parameter = parameter, .name = name, .rows = lead + heads * size};
    if (!hf_class(c)->gguf->tiles_heads || group == 1) {
        append_range(&ranges, 0, ranges.rows);
        return;
    }
    if (lead) append_range(&ranges, 0, lead);
    for (int64_t i = 0; i < heads; i++) append_range(&ranges, lead + (i % groups * group + i / groups) * size, size);
}

/* Appends in_proj_qkvz, whose rows are grouped by key head, as the rows of all queries, keys and values, and those of all
 * output gates. */
static void append_projections(HfTensorList *list, const HfParameter *parameter, int layer) {
    const ModelConfig *c = parameter->config;
    int64_t heads = c->delta_key_heads, keys = c->delta_key_dim, values = c->delta_heads / heads * c->delta_value_dim;
    int64_t head = 2 * keys + 2 * values;
    const int64_t begins[] = {0, keys, 2 * keys, 2 * keys + values}, sizes[] = {keys, keys, values, values};
    SCOPED_FREE char *mixed = memory_format("blk.%d.attn_qkv.weight", layer), *gates = memory_format("blk.%d.attn_gate.weight", layer);
    RowRanges ranges = {.list = list, .parameter = parameter, .name = mixed, .rows = heads * (2 * keys + values)};
    for (int part = 0; part < 4; part++) {
        if (part == 3) ranges = (RowRanges){.list = list, .parameter = parameter, .name = gates, .rows = heads * values};
        for (int64_t i = 0; i < heads; i++) append_range(&ranges, i * head + begins[part], sizes[part]);
    }
}

/* Appends a tensor whose columns are `size` per value head. */
static HfTensor *append_value_columns(HfTensorList *list, const HfParameter *parameter, int64_t size) {
    const ModelConfig *c = parameter->config;
    HfTensor *tensor = hf_append(list, gguf_tensor_name(parameter), parameter);
    if (!hf_class(c)->gguf->tiles_heads) return tensor;
    tensor->tile_columns = size;
    tensor->tile_groups = c->delta_key_heads;
    return tensor;
}

bool hf_list_delta_gguf(HfTensorList *list, const HfParameter *parameter, const char *rest) {
    const ModelConfig *c = parameter->config;
    const int64_t keys = 2 * c->delta_key_heads * c->delta_key_dim, values = c->delta_value_dim;
    const struct {
        const char *name;
        int64_t lead, size;
    } matrices[] = {{"linear_attn.in_proj_qkv.weight", keys, values}, {"linear_attn.conv1d.weight", keys, values},
        {"linear_attn.in_proj_z.weight", 0, values}, {"linear_attn.in_proj_b.weight", 0, 1}, {"linear_attn.in_proj_a.weight", 0, 1}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        if (!strcmp(rest, matrices[i].name)) return append_value_heads(list, parameter, matrices[i].lead, matrices[i].size), true;
    if (!strcmp(rest, "linear_attn.in_proj_qkvz.weight"))
        return append_projections(list, parameter, hf_split_layer(parameter, &rest)), true;
    if (!strcmp(rest, "linear_attn.out_proj.weight")) return append_value_columns(list, parameter, values);
    if (!strcmp(rest, "linear_attn.dt_bias")) return append_value_columns(list, parameter, 1);
    if (!strcmp(rest, "linear_attn.A_log")) return append_value_columns(list, parameter, 1)->decays = true;
    if (strcmp(rest, "mlp.shared_expert_gate.weight") != 0) return false;
    HfTensor *gate = hf_append(list, gguf_tensor_name(parameter), parameter);
    gate->rank = 1;
    gate->shape[0] = gate->count;
    return true;
}

/* Fields of config.json that the classes with the gated delta rule share: Qwen3-Next and Qwen3.5. Called by their families
 * and the reader; owns nothing. */
#include <string.h>

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

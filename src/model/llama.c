/* Llama (arXiv 2302.13971, 2407.21783): pre-norm attention with rotary embedding and grouped queries, SwiGLU MLP, plain residual sums. With
 * model.experts > 0 the MLP is a top-k mixture of experts with softmax routing (Mixtral, arXiv 2401.04088). */
#include "model/internal.h"

static TensorId attention(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
    TensorId projections[] = {
        builder_matrix(b, "self_attn.q_proj.weight", queries, c->width, false),
        builder_matrix(b, "self_attn.k_proj.weight", keys, c->width, true),
        builder_matrix(b, "self_attn.v_proj.weight", keys, c->width, true),
    };
    TensorId output = builder_matrix(b, "self_attn.o_proj.weight", c->width, queries, false);
    TensorId qkv = op_linear(b->graph, x, graph_fuse(b->graph, projections, 3), TENSOR_NONE, false);
    Heads heads = {c->heads, c->kv_heads, c->head_dim};
    return op_linear(b->graph, builder_attention(b, op_rope(b->graph, qkv, b->positions, b->rope_table, &heads)), output, TENSOR_NONE, false);
}

static TensorId mlp(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    TensorId gate_up[] = {
        builder_matrix(b, "mlp.gate_proj.weight", c->ffn, c->width, false),
        builder_matrix(b, "mlp.up_proj.weight", c->ffn, c->width, true),
    };
    TensorId down = builder_matrix(b, "mlp.down_proj.weight", c->width, c->ffn, false);
    TensorId hidden = op_swiglu(b->graph, op_linear(b->graph, x, graph_fuse(b->graph, gate_up, 2), TENSOR_NONE, false));
    return op_linear(b->graph, hidden, down, TENSOR_NONE, false);
}

static TensorId experts(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    TensorId logits = op_linear(b->graph, x, builder_matrix(b, "mlp.gate.weight", c->experts, c->width, false), TENSOR_NONE, true);
    TensorId biases = builder_vector(b, "mlp.gate.balancing_biases", PARAMETER_CONTROLLER, c->experts, 0);
    RouterSpec spec = {.experts = c->experts, .k = c->experts_per_token, .renormalise = c->renormalise, .auxiliary = c->auxiliary_loss};
    return builder_experts(b, "mlp.experts", x, op_router(b->graph, logits, biases, b->share, b->loss, &spec));
}

Trunk llama_build(Builder *b) {
    const ModelConfig *c = b->config;
    int64_t table_shape[] = {c->vocabulary, c->width};
    TensorId table = builder_parameter(b, "model.embed_tokens.weight", PARAMETER_EMBEDDING, 2, table_shape, 0, c->init_std, false);
    TensorId stream = op_embed(b->graph, b->tokens, table, TENSOR_NONE, TENSOR_NONE), normed = TENSOR_NONE;
    for (int layer = 0; layer < c->layers; layer++) {
        builder_layer(b, layer);
        if (layer == 0) normed = op_rmsnorm(b->graph, stream, builder_vector(b, "input_layernorm.weight", PARAMETER_NORM, c->width, 1), c->norm_epsilon);
        TensorId block = attention(b, normed);
        TensorId gain = builder_vector(b, "post_attention_layernorm.weight", PARAMETER_NORM, c->width, 1);
        ResidualNorm middle = op_residual_norm(b->graph, block, stream, NULL, gain, c->norm_epsilon);
        block = c->experts ? experts(b, middle.normed) : mlp(b, middle.normed);
        builder_layer(b, layer + 1 < c->layers ? layer + 1 : -1);
        gain = builder_vector(b, layer + 1 < c->layers ? "input_layernorm.weight" : "model.norm.weight", PARAMETER_NORM, c->width, 1);
        builder_layer(b, layer);
        ResidualNorm end = op_residual_norm(b->graph, block, middle.stream, NULL, gain, c->norm_epsilon);
        stream = end.stream;
        normed = end.normed;
    }
    builder_layer(b, -1);
    TensorId head = c->tied ? table : builder_parameter(b, "lm_head.weight", PARAMETER_EMBEDDING, 2, table_shape, 0, c->init_std, false);
    return (Trunk){.normed = normed, .head = head};
}

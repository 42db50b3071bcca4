/* Appends decoders from their families' descriptions (layer_spec.h): embedding, layers around a
 * residual stream, last norm and head. Owns nothing beyond a call. */
#include <math.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "base/scope.h"
#include "model/layer_spec.h"
#include "ops/activation/activation.h"
#include "ops/gate/gate.h"
#include "ops/join/join.h"
#include "ops/narrow/narrow.h"
#include "ops/rope/rope.h"

/* -- Linear layers ------------------------------------------------------------------------------------------------- */

/* Marks the matrix that was declared last, before its bias if it has one. */
static void mark_transposed(Builder *b, const Decoder *d, bool biased) {
    if (d->transposed) b->graph->parameters[b->graph->parameter_count - 1 - biased].transposed = true;
}

static Linear declare_input(Builder *b, const Decoder *d, const char *name, const int64_t *blocks, int count, bool biased) {
    Linear linear = builder_split_output(b, name, blocks, count, b->config->width, b->config->init_std, biased);
    mark_transposed(b, d, biased);
    return linear;
}

static Linear declare_output(Builder *b, const Decoder *d, const char *name, int64_t in, bool biased) {
    double std = d->scales_outputs ? builder_residual_std(b) : b->config->init_std;
    Linear linear = builder_split_input(b, name, b->config->width, in, std, biased);
    mark_transposed(b, d, biased);
    return linear;
}

/* -- Attention ----------------------------------------------------------------------------------------------------- */

static Linear declare_qkv(Builder *b, const Decoder *d, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
    if (!layer->keys) return declare_input(b, d, layer->queries, (int64_t[]){queries, keys, keys}, 3, layer->biased);
    const Stacked projections[] = {
        {layer->queries, queries, AXES_TENSOR}, {layer->keys, keys, AXES_KEYS}, {layer->values, keys, AXES_KEYS}};
    return builder_stacked(b, projections, 3, c->width, layer->biased);
}

/* Declares a logit per head. */
static TensorId declare_sinks(Builder *b, const char *name) {
    int64_t heads = b->config->heads;
    return builder_parameter(b, name, PARAMETER_BIAS, 1, &heads, &(Cut){.axes = AXES_TENSOR, .blocks = 1, .rows = {heads}});
}

static TensorId attention(Builder *b, const Decoder *d, const AttentionLayer *layer, TensorId x) {
    const ModelConfig *c = b->config;
    Heads heads = builder_heads(b);
    AttentionScores scores = layer->scores;
    if (layer->build) return layer->build(b, x, layer);
    Linear input = declare_qkv(b, d, layer), output = declare_output(b, d, layer->output, c->heads * c->head_dim, layer->output_biased);
    if (layer->sinks) scores.sinks = declare_sinks(b, layer->sinks);
    TensorId qkv = builder_linear(b, x, &input, LORA_ATTENTION); /* [R, queries + 2 keys] */
    if (layer->clip > 0) qkv = op_clamp(b->graph, qkv, layer->clip);
    if (layer->query_norm) {
        Norm query = builder_norm(b, layer->query_norm, d->norm, false, (d->norms_heads ? 1 : c->heads) * c->head_dim);
        Norm key = builder_norm(b, layer->key_norm, d->norm, false, (d->norms_heads ? 1 : c->kv_heads) * c->head_dim);
        qkv = op_qk_norm(b->graph, qkv, &query, &key, &heads);
    }
    if (layer->clip_normed > 0) qkv = op_clamp(b->graph, qkv, layer->clip_normed);
    if (layer->rope_table) qkv = op_rope(b->graph, qkv, b->positions, layer->rope_table, &heads, ROPE_HALVES);
    qkv = builder_scale_queries(b, qkv);
    return builder_linear(b, builder_attention(b, qkv, &scores), &output, LORA_ATTENTION);
}

/* -- MLP ----------------------------------------------------------------------------------------------------------- */

/* The router is one linear layer, with biases that balance the experts' loads. Returns the sum of
 * the chosen experts. */
static TensorId experts(Builder *b, const MlpLayer *layer, TensorId x) {
    int64_t count = b->config->experts;
    TensorId logits = builder_router_linear(b, x, layer->router, count, layer->biased, true); /* [R, E] */
    SCOPED_FREE char *name = memory_format("%s.balancing_biases", layer->router);
    TensorId biases = builder_vector(b, layer->balancing ? layer->balancing : name, PARAMETER_BALANCE_BIAS, count, 0, NULL);
    ExpertsSpec spec = {.prefix = layer->experts, .biased = layer->biased, .interleaved = layer->interleaved};
    return builder_experts(b, &spec, x, builder_router(b, logits, biases, false));
}

static TensorId mlp(Builder *b, const Decoder *d, const MlpLayer *layer, TensorId x) {
    const ModelConfig *c = b->config;
    if (layer->build) return layer->build(b, x);
    TensorId routed = layer->experts ? experts(b, layer, x) : TENSOR_NONE;
    if (routed && !(layer->up && c->shared_experts)) return routed;
    int64_t ffn = routed ? c->shared_experts * c->ffn : c->experts ? c->dense_ffn : c->ffn, halves[] = {ffn, ffn};
    bool gated = activation_rules[model_activation(c)].gated;
    const Stacked projections[] = {{layer->gate, ffn, AXES_TENSOR}, {layer->up, ffn, AXES_TENSOR}};
    Linear up = layer->gate ? builder_stacked(b, projections, 2, c->width, layer->biased) /* [2F, D] */
                            : declare_input(b, d, layer->up, halves, gated ? 2 : 1, layer->biased);
    Linear down = declare_output(b, d, layer->down, ffn, layer->biased);
    TensorId hidden = builder_linear(b, x, &up, LORA_MLP);
    hidden = op_activation(b->graph, hidden, model_activation(b->config));
    TensorId y = builder_linear(b, hidden, &down, LORA_MLP);
    if (routed && layer->shared_gate) {
        TensorId gate = builder_router_linear(b, x, layer->shared_gate, 1, false, false);
        y = op_gate(b->graph, gate, y, GATE_SIGMOID);
    }
    return routed ? op_add(b->graph, routed, y) : y;
}

/* -- Layers -------------------------------------------------------------------------------------------------------- */

/* Returns a norm without a gain if `name` is NULL. */
static Norm declare_norm(Builder *b, const Decoder *d, const char *name) {
    return name ? builder_norm(b, name, d->norm, d->norm_biased, b->config->width) : (Norm){0};
}

/* Declares the first norm of `layer`, or the last norm of the model after the last layer. */
static Norm declare_first_norm(Builder *b, const Decoder *d, const LayerSpec *layers, int layer) {
    bool exists = layer < b->config->layers;
    builder_layer(b, exists ? layer : -1);
    return declare_norm(b, d, exists ? layers[layer].before_attention : d->last_norm);
}

/* Returns the input of the next block: the stream, normalized if the norm has a gain. */
static TensorId read_stream(Builder *b, TensorId stream, const Norm *norm) {
    return norm->gain ? op_norm(b->graph, stream, norm) : op_narrow(b->graph, stream);
}

/* The norms around a residual add: of the block's output, and of the stream before the next block. */
typedef struct Norms { Norm after, next; } Norms;

/* Adds a block's output to the stream. Returns the stream, and what the next block reads. */
static ResidualNorm add_block(Builder *b, const Decoder *d, TensorId block, TensorId stream, bool after_mlp, const Norms *norms) {
    AffineResidual affine = {0};
    double scale = b->config->residual_scale;
    if (scale != 1) block = op_scale(b->graph, block, scale);
    if (d->residual_add) affine = d->residual_add(b, after_mlp);
    if (!norms->after.gain) return op_residual_norm(b->graph, block, stream, d->residual_add ? &affine : NULL, &norms->next);
    ResidualNorm h = op_post_norm(b->graph, block, stream, &norms->after);
    if (norms->next.gain) h.normed = op_norm(b->graph, h.stream, &norms->next);
    return h;
}

/* Appends attention with its residual add, and the MLP. Returns the MLP's result; the caller appends its
 * residual add. */
static TensorId append_blocks(Builder *b, const Decoder *d, const LayerSpec *layer, ResidualNorm *h) {
    TensorId block = attention(b, d, &layer->attention, h->normed);
    Norms norms = {.after = declare_norm(b, d, layer->after_attention), .next = declare_norm(b, d, layer->before_mlp)};
    *h = add_block(b, d, block, h->stream, false, &norms);
    return mlp(b, d, &layer->mlp, h->normed);
}

/* Appends layers [first, end), possibly none. The first norm has no preceding residual add to be
 * fused with. The last residual add of a chunk has no following norm, unless the chunk is the
 * model's last. It recomputes the previous norm, whose output is unused. Returns the last norm. */
static TensorId append_layers(Builder *b, const Decoder *d, const LayerSpec *layers, TensorId *stream, LayerRange range, bool last) {
    Norms norms = {.next = declare_first_norm(b, d, layers, range.first)};
    ResidualNorm h = {.stream = *stream, .normed = read_stream(b, *stream, &norms.next)};
    for (int i = range.first; i < range.end; i++) {
        const LayerSpec *layer = &layers[i];
        bool cut = i + 1 == range.end && !last;
        TensorId block = append_blocks(b, d, layer, &h);
        norms.after = declare_norm(b, d, layer->after_mlp);
        if (!cut)
            norms.next = declare_first_norm(b, d, layers, i + 1); /* fused with this layer's residual add, but named after the next layer */
        builder_layer(b, i);
        h = add_block(b, d, block, h.stream, true, &norms);
        builder_layer(b, i + 1 < b->config->layers ? i + 1 : -1);
    }
    *stream = h.stream;
    return h.normed;
}

/* Returns sqrt(width), rounded to the type of the embeddings, as transformers rounds it. */
static double embedding_factor(const Builder *b) {
    double factor = sqrt((double)b->config->width);
    return precision_bytes(b->graph->precision, TYPE_COMPUTE) == sizeof(uint16_t) ? bf16_to_float(bf16_from_float((float)factor)) : factor;
}

/* Returns the embeddings of tokens, WIDE, of the rank's rows. */
static TensorId embed_tokens(Builder *b, const Decoder *d, TensorId tokens, TensorId embedding) {
    Lookup lookup = {.ids = tokens, .table = embedding, .entries = b->config->vocabulary, .padding = b->config->padding};
    lookup.factor = d->scales_embeddings ? embedding_factor(b) : b->config->embedding_scale;
    return builder_scatter(b, builder_embed(b, &lookup));
}

/* Appends the layer for multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2). In folders,
 * its index follows those of the model's layers. h is the last layer's result after the last norm, and e
 * is the embedding of the next token. The layer's input is eh_proj [enorm(e); hnorm(h)]. Its result
 * passes shared_head.norm, and then the model's head. */
static TensorId append_prediction(Builder *b, const Decoder *d, TensorId normed, TensorId embedding) {
    const int64_t width = b->config->width;
    LayerSpec layer = d->layer(b, (int)b->config->layers);
    builder_layer(b, (int)b->config->layers);
    Norm of_embedding = declare_norm(b, d, "enorm"), of_stream = declare_norm(b, d, "hnorm");
    Linear projection = builder_stacked(b, &(Stacked){"eh_proj", width, 0}, 1, 2 * width, false);
    const TensorId parts[] = {op_norm(b->graph, embed_tokens(b, d, b->next_tokens, embedding), &of_embedding),
        op_norm(b->graph, op_widen(b->graph, normed), &of_stream)};
    TensorId stream = op_widen(b->graph, builder_linear(b, op_join_columns(b->graph, parts, 2), &projection, LORA_MLP));
    Norms norms = {.next = declare_norm(b, d, layer.before_attention)};
    ResidualNorm h = {.stream = stream, .normed = read_stream(b, stream, &norms.next)};
    TensorId block = append_blocks(b, d, &layer, &h);
    norms = (Norms){.after = declare_norm(b, d, layer.after_mlp), .next = declare_norm(b, d, "shared_head.norm")};
    h = add_block(b, d, block, h.stream, true, &norms);
    builder_layer(b, -1);
    return h.normed;
}

Trunk builder_decoder(Builder *b, const Decoder *d) {
    int count = (int)b->config->layers;
    SCOPED_FREE LayerSpec *layers = memory_allocate((size_t)count * sizeof *layers);
    for (int i = 0; i < count; i++) layers[i] = d->layer(b, i); /* before any operation of a layer: it may append a table of RoPE */
    TensorId embedding = builder_embedding(b, d->embedding), stream = TENSOR_NONE, normed = TENSOR_NONE;
    if (embedding && d->embed) stream = builder_scatter(b, d->embed(b, embedding));
    else if (embedding) stream = embed_tokens(b, d, b->tokens, embedding);
    for (int chunk = 0; chunk < builder_chunks(b); chunk++) {
        LayerRange range = builder_begin_chunk(b, chunk, &stream);
        normed = append_layers(b, d, layers, &stream, range, builder_is_last_piece(b, chunk));
        builder_end_chunk(b, chunk, stream);
    }
    if (!builder_is_last_stage(b)) normed = TENSOR_NONE;
    Trunk trunk = {.normed = normed, .head = builder_head(b, d->embedding, embedding)};
    if (b->next_tokens) trunk.mtp_normed = append_prediction(b, d, normed, embedding); /* its parameters are the last ones */
    return trunk;
}

/* -- Names that classes share -------------------------------------------------------------------------------------- */

const LayerSpec llama_names = {.before_attention = "input_layernorm",
    .before_mlp = "post_attention_layernorm",
    .attention = {.queries = "self_attn.q_proj", .keys = "self_attn.k_proj", .values = "self_attn.v_proj", .output = "self_attn.o_proj"},
    .mlp = {.gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"}};

const MlpLayer deepseek_experts = {.gate = "mlp.shared_experts.gate_proj",
    .up = "mlp.shared_experts.up_proj",
    .down = "mlp.shared_experts.down_proj",
    .router = "mlp.gate",
    .experts = "mlp.experts",
    .balancing = "mlp.gate.e_score_correction_bias"};

const MlpLayer qwen_experts = {.gate = "mlp.shared_expert.gate_proj",
    .up = "mlp.shared_expert.up_proj",
    .down = "mlp.shared_expert.down_proj",
    .router = "mlp.gate",
    .experts = "mlp.experts",
    .shared_gate = "mlp.shared_expert_gate"};

LayerSpec builder_llama_layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    LayerSpec spec = llama_names;
    spec.attention.biased = c->qkv_bias;
    spec.attention.rope_table = model_has_rope(c, index) ? builder_rope_table(b, c->rope_theta, true) : TENSOR_NONE;
    spec.attention.scores.window = model_has_window(c, index) ? c->window : 0;
    if (c->qk_norm) spec.attention.query_norm = "self_attn.q_norm", spec.attention.key_norm = "self_attn.k_norm";
    return spec;
}

Trunk builder_llama_decoder(Builder *b, LayerSpec (*layer)(Builder *, int)) {
    const Decoder decoder = {
        .embedding = "model.embed_tokens.weight", .last_norm = "model.norm", .norm = NORM_RMS, .norms_heads = true, .layer = layer};
    return builder_decoder(b, &decoder);
}

/* Multi-head latent attention (MLA, arXiv 2405.04434, section 2.1). Keys and values of all heads are
 * projections of one latent of kv_lora_rank channels per token, and queries, if q_lora_rank > 0, of
 * another one; each latent is normalized first. RoPE rotates rope_dim channels of each query, and
 * rope_dim channels that the keys of all heads share. Every rank has the whole matrices that compute
 * latents; the matrices that project latents are divided by heads. Called by families; owns nothing. */
#include <math.h>

#include "model/layer_spec.h"
#include "ops/join/join.h"
#include "ops/mla/mla.h"
#include "ops/narrow/narrow.h"
#include "ops/rope/rope.h"

/* transformers' classes give the norms of latents this epsilon, independent of other norms. */
static const double latent_epsilon = 1e-6;

typedef struct Latents { TensorId queries, keys_values, shared_key; } Latents;

static TensorId normalize(Builder *b, TensorId latent, const char *name) {
    Norm norm = builder_norm(b, name, NORM_RMS, false, graph_columns(b->graph, latent));
    norm.epsilon = latent_epsilon;
    return op_norm(b->graph, op_widen(b->graph, latent), &norm);
}

/* Computes the latents of the rank's rows; `queries` is x if queries have none. */
static Latents append_latents(Builder *b, TensorId x, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    const Stacked projections[] = {{layer->query_latents, c->q_lora_rank, 0}, {layer->keys, c->kv_lora_rank + c->rope_dim, 0}};
    int without = c->q_lora_rank == 0;
    Linear down = builder_stacked(b, projections + without, 2 - without, c->width, false);
    TensorId packed = builder_linear(b, x, &down, LORA_ATTENTION), parts[3] = {x}; /* [R, q_lora_rank + kv_lora_rank + rope_dim] */
    const int64_t columns[] = {c->q_lora_rank, c->kv_lora_rank, c->rope_dim};
    op_split_columns(b->graph, packed, columns + without, parts + without, 3 - without);
    return (Latents){.queries = without ? x : normalize(b, parts[0], layer->query_norm),
        .keys_values = normalize(b, parts[1], layer->key_norm),
        .shared_key = parts[2]};
}

/* Projects a latent to `columns` columns of every head. */
static TensorId project(Builder *b, TensorId latent, const char *name, int64_t columns) {
    const ModelConfig *c = b->config;
    int64_t out = c->heads * columns;
    Linear up = builder_split_output(b, name, &out, 1, graph_columns(b->graph, latent), c->init_std, false);
    return builder_linear(b, latent, &up, LORA_ATTENTION);
}

/* The softmax has the temperature of YaRN (arXiv 2309.00071, equation 22) if rope_mscale > 0. */
static double score_scale_of(const ModelConfig *c) {
    double mscale = c->rope_factor > 1 ? 0.1 * c->rope_mscale * log(c->rope_factor) + 1 : 1;
    return mscale * mscale / sqrt((double)c->head_dim);
}

TensorId builder_latent_attention(Builder *b, TensorId x, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    Heads heads = builder_heads(b);
    Latents latents = append_latents(b, x, layer);
    MlaProjections projections = {.queries = project(b, latents.queries, layer->queries, heads.qk_dim),
        .keys_values = project(b, latents.keys_values, layer->values, heads.qk_dim - c->rope_dim + heads.v_dim),
        .shared_key = builder_gather(b, latents.shared_key)};
    TensorId qkv = op_mla_pack(b->graph, &projections, &heads);
    qkv = op_rope(b->graph, qkv, b->positions, layer->rope_table, &heads, c->rope_interleave ? ROPE_NEIGHBORS : ROPE_HALVES);
    TensorId out = builder_attention(b, qkv, &(AttentionScores){.scale = score_scale_of(c)});
    Linear output = builder_split_input(b, layer->output, c->width, c->heads * heads.v_dim, c->init_std, false);
    return builder_linear(b, out, &output, LORA_ATTENTION);
}

/* A decoder as its family describes it: a LayerSpec per layer, and a Decoder around the layers.
 * builder_decoder (decoder.c) appends the forward pass of any such description:
 *
 *     h = embed(tokens)
 *     per layer:  h = h + after_attention(attention(before_attention(h)))
 *                 h = h + after_mlp(mlp(before_mlp(h)))
 *     the result is last_norm(h)
 *
 * A NULL name means that the norm is absent; each block has a norm before it, after it, or both. Strings
 * are names of parameters without ".weight". Names in a LayerSpec are relative to the layer. */
#pragma once

#include "model/builder.h"

typedef struct AttentionLayer {
    const char *queries, *keys, *values; /* keys NULL: `queries` is one matrix of queries, keys and values */
    const char *output;
    bool biased, output_biased;
    double clip;                       /* bound of queries, keys and values before the next norms; 0: none */
    const char *query_norm, *key_norm; /* before RoPE; NULL: none */
    double clip_normed;                /* the same bound after these norms */
    TensorId rope_table;               /* TENSOR_NONE: no RoPE */
    const char *sinks;                 /* parameter of AttentionScores.sinks, a full name; NULL: none */
    AttentionScores scores;
    /* Latent attention: `queries` and `values` project the latents of queries (the layer's input, if
     * there are none) and of keys and values, to which query_norm and key_norm belong. `keys` gives
     * the latents of keys and values, and the rotated channels of keys. */
    const char *query_latents;
    /* Appends another kind of attention, [R, D] to [R, D], which reads the fields that it needs.
     * NULL: attention by the fields above. */
    TensorId (*build)(Builder *builder, TensorId x, const struct AttentionLayer *layer);
} AttentionLayer;

typedef struct MlpLayer {
    const char *gate, *up, *down; /* gate NULL: `up` is one matrix of gate and up projection, if the activation function is gated */
    bool biased;                  /* with experts: their layers and their router */
    bool interleaved;             /* with experts: as ExpertsSpec has it */
    /* A mixture of experts in place of gate, up and down, or beside them: then they are the shared
     * experts, as one MLP. NULL: none. */
    const char *router, *experts;
    const char *shared_gate; /* a layer of one output whose sigmoid multiplies the shared experts; NULL: none */
    const char *balancing;   /* the routers' load-balancing biases; NULL: ROUTER.balancing_biases */
    /* Appends another kind of MLP, [R, D] to [R, D]. NULL: an MLP by the fields above. */
    TensorId (*build)(Builder *builder, TensorId x);
} MlpLayer;

typedef struct LayerSpec {
    const char *before_attention, *after_attention, *before_mlp, *after_mlp; /* norms */
    AttentionLayer attention;
    MlpLayer mlp;
} LayerSpec;

typedef struct Decoder {
    const char *embedding; /* with ".weight" */
    const char *last_norm;
    NormKind norm; /* of all norms */
    bool norm_biased;
    bool norms_heads;       /* norms of queries and keys act on each head; false: on all heads together */
    bool transposed;        /* matrices are stored as [in, out] */
    bool scales_embeddings; /* rows of the embedding are multiplied by sqrt(width) */
    bool scales_outputs;    /* matrices whose output is added to the stream start with builder_residual_std */
    /* Declares the vectors of an affine residual add. NULL: plain adds. */
    AffineResidual (*residual_add)(Builder *builder, bool after_mlp);
    /* Appends the first rows of the stream, WIDE [R, D], with zeros for entries that another
     * rank has. NULL: the embeddings of the tokens. */
    TensorId (*embed)(Builder *builder, TensorId embedding);
    LayerSpec (*layer)(Builder *builder, int index);
} Decoder;

/* Appends the part of the decoder that this stage has. */
Trunk builder_decoder(Builder *builder, const Decoder *decoder);

/* Names that many classes of transformers share: of Llama's layers, and of DeepSeek's routed and shared
 * experts. */
extern const LayerSpec llama_names;
extern const MlpLayer deepseek_experts;
/* Routed experts and a gated shared expert, as in Qwen3-Next and Qwen3.5. */
extern const MlpLayer qwen_experts;
/* Returns layer `index` with Llama's names, RoPE, window, biases of queries, keys and values, and
 * norms of query and key heads, as the settings have them. */
LayerSpec builder_llama_layer(Builder *builder, int index);
/* Returns layer `index` of Qwen3.5 (gated_layers.c), with Llama's MLP: gated attention in every
 * model.attention_period-th layer, else the gated delta rule. `queries` names the linear layer that
 * computes queries, keys and values of the rule; other linear layers compute its gates. If a family
 * sets `keys`, two matrices grouped by key head compute them, as in Qwen3-Next: `queries` computes
 * queries, keys, values and output gates, and `keys` the gates of the rule. */
LayerSpec builder_delta_layer(Builder *builder, int index);
/* Appends a decoder with Llama's names outside layers. */
Trunk builder_llama_decoder(Builder *builder, LayerSpec (*layer)(Builder *builder, int index));

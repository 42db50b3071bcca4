/* FLUX.1 (Black Forest Labs, 2024; the architecture is that of diffusers' FluxTransformer2DModel):
 * a rectified-flow transformer with bidirectional attention over the tokens of an image (2 x 2
 * latents each) and of its text. The first layers - single_layers blocks have separate weights for
 * image and text tokens and attend jointly. The last `single_layers` blocks process both in one
 * stream, with attention and MLP in parallel. Time, guidance and pooled text modulate every norm
 * (op_adaptive_norm). The head predicts the velocity noise - image of each latent.
 *
 * In shapes there are S samples of I image tokens and T text tokens, image first: a sample is a
 * sequence of I + T rows. Called by model.c; owns nothing. */
#include <math.h>
#include <stdio.h>

#include "model/builder.h"
#include "formats/hf_class.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/join/join.h"
#include "ops/linear/linear.h"
#include "ops/rope/rope.h"

/* The two kinds of rows. */
enum { IMAGE, TEXT, KINDS };

/* The first parts of a sample's modulation, in the order of the linear layer's output. */
enum { SHIFT, SCALE, GATE, MLP_SHIFT, MLP_SCALE, MLP_GATE, DOUBLE_PARTS, SINGLE_PARTS = MLP_SHIFT, OUT_PARTS = 2 };

typedef struct Flux {
    Builder *b;
    int64_t samples, rows[KINDS]; /* rows per sample */
    TensorId conditions;          /* silu of the sum of embeddings, COMPUTE [S, D] */
    TensorId rope_table;
} Flux;

static TensorId flux_linear(Builder *b, TensorId x, const char *name, int64_t out, bool wide) {
    TensorId w = builder_matrix(b, name, out, graph_columns(b->graph, x), b->config->init_std, NULL);
    return op_linear(b->graph, x, w, builder_bias(b, name, out, NULL), wide);
}

void image_time_features(double time, float features[IMAGE_TIME_WIDTH]) {
    enum { HALF = IMAGE_TIME_WIDTH / 2 };
    for (int i = 0; i < HALF; i++) {
        float angle = (float)time * 1000 * expf((float)-log(10000) * (float)i / HALF);
        features[i] = (float)cos(angle);
        features[HALF + i] = (float)sin(angle);
    }
}

/* -- Conditions ---------------------------------------------------------------------------------------------------- */

/* NAME.linear_2(silu(NAME.linear_1(x))), [S, columns] to [S, D] */
static TensorId embed(Builder *b, TensorId x, const char *name) {
    char first[96], second[96];
    snprintf(first, sizeof first, "time_text_embed.%s.linear_1", name);
    snprintf(second, sizeof second, "time_text_embed.%s.linear_2", name);
    return flux_linear(
        b, op_activation(b->graph, flux_linear(b, x, first, b->config->width, false), ACTIVATION_silu), second, b->config->width, false);
}

static TensorId conditions(Builder *b) {
    TensorId sum = embed(b, b->image.time, "timestep_embedder");
    if (b->config->guidance) sum = op_add(b->graph, sum, embed(b, b->image.guidance, "guidance_embedder"));
    return op_activation(b->graph, op_add(b->graph, sum, embed(b, b->image.pooled, "text_embedder")), ACTIVATION_silu);
}

/* Splits the output of the layer NAME.linear into `count` WIDE vectors [S, D]. */
static void modulate(const Flux *f, const char *name, TensorId *parts, int count) {
    char full[96];
    int64_t columns[JOIN_MOST_PARTS];
    for (int i = 0; i < count; i++) columns[i] = f->b->config->width;
    snprintf(full, sizeof full, "%s.linear", name);
    op_split_columns(f->b->graph, flux_linear(f->b, f->conditions, full, count * f->b->config->width, true), columns, parts, count);
}

/* -- Attention ----------------------------------------------------------------------------------------------------- */

/* Layer names for one kind of rows. */
typedef struct Names { const char *q, *k, *v, *norm_q, *norm_k, *out, *up, *down, *modulation; } Names;
static const Names names[] = {
    [IMAGE] = {"attn.to_q", "attn.to_k", "attn.to_v", "attn.norm_q", "attn.norm_k", "attn.to_out.0", "ff.net.0.proj", "ff.net.2", "norm1"},
    [TEXT] = {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.norm_added_q", "attn.norm_added_k", "attn.to_add_out",
        "ff_context.net.0.proj", "ff_context.net.2", "norm1_context"},
};

/* Returns the packed qkv of rows, with normalized queries and keys. */
static TensorId project_branch(const Flux *f, TensorId x, const Names *n) {
    Builder *b = f->b;
    const ModelConfig *c = b->config;
    Heads heads = builder_heads(b);
    int64_t columns = c->heads * c->head_dim;
    const Stacked projections[] = {{n->q, columns, AXES_TENSOR}, {n->k, columns, AXES_TENSOR}, {n->v, columns, AXES_TENSOR}};
    Linear input = builder_stacked(b, projections, 3, c->width, true);
    TensorId qkv = builder_linear(b, x, &input, LORA_ATTENTION);
    Norm query = builder_norm(b, n->norm_q, NORM_RMS, false, c->head_dim), key = builder_norm(b, n->norm_k, NORM_RMS, false, c->head_dim);
    return op_qk_norm(b->graph, qkv, &query, &key, &heads);
}

/* Attends over all rows of each sample. */
static TensorId attend_flux(const Flux *f, TensorId qkv) {
    Builder *b = f->b;
    AttentionSpec spec = {.heads = builder_heads(b), .length = f->rows[IMAGE] + f->rows[TEXT], .bidirectional = true};
    return op_attention(b->graph, op_rope(b->graph, qkv, b->image.places, f->rope_table, &spec.heads, ROPE_NEIGHBORS), b->positions, &spec);
}

static TensorId output(Builder *b, TensorId x, const char *name, int64_t in, LoraGroup group) {
    Linear layer = builder_split_input(b, name, b->config->width, in, builder_residual_std(b), true);
    return builder_linear(b, x, &layer, group);
}

/* Applies the up projection, before GELU. */
static TensorId widen(Builder *b, TensorId x, const char *name) {
    Linear layer = builder_split_output(b, name, &b->config->ffn, 1, b->config->width, b->config->init_std, true);
    return builder_linear(b, x, &layer, LORA_MLP);
}

/* -- Blocks -------------------------------------------------------------------------------------------------------- */

static void begin_block(Builder *b, const char *layers, int number, int layer) {
    char prefix[32];
    b->layer_names = layers;
    b->layer = number;
    snprintf(prefix, sizeof prefix, "layers.%d.", layer);
    graph_scope(b->graph, layer, prefix);
}

/* One kind of rows between two blocks: the residual stream, and the block output that is not added
 * to it yet. */
typedef struct Branch { TensorId stream, block, gate; } Branch;

static TensorId residual_add_flux(const Flux *f, Branch *x, TensorId shift, TensorId scale) {
    ResidualNorm h = op_adaptive_norm(f->b->graph, x->block, x->gate, x->stream, (Modulation){shift, scale}, f->b->config->norm_epsilon);
    *x = (Branch){.stream = h.stream};
    return h.normed;
}

static void double_block(const Flux *f, Branch x[KINDS]) {
    Builder *b = f->b;
    const ModelConfig *c = b->config;
    TensorId parts[KINDS][DOUBLE_PARTS], qkv[KINDS], attended[KINDS];
    for (int i = 0; i < KINDS; i++) {
        modulate(f, names[i].modulation, parts[i], DOUBLE_PARTS);
        qkv[i] = project_branch(f, residual_add_flux(f, &x[i], parts[i][SHIFT], parts[i][SCALE]), &names[i]);
    }
    op_split_rows(b->graph, attend_flux(f, op_join_rows(b->graph, qkv, KINDS, f->samples)), f->rows, attended, KINDS, f->samples);
    for (int i = 0; i < KINDS; i++) {
        x[i].block = output(b, attended[i], names[i].out, c->heads * c->head_dim, LORA_ATTENTION);
        x[i].gate = parts[i][GATE];
        TensorId normed = residual_add_flux(f, &x[i], parts[i][MLP_SHIFT], parts[i][MLP_SCALE]);
        x[i].block =
            output(b, op_activation(b->graph, widen(b, normed, names[i].up), model_activation(c)), names[i].down, c->ffn, LORA_MLP);
        x[i].gate = parts[i][MLP_GATE];
    }
}

static void single_block(const Flux *f, Branch *x) {
    Builder *b = f->b;
    TensorId parts[SINGLE_PARTS];
    modulate(f, "norm", parts, SINGLE_PARTS);
    TensorId normed = residual_add_flux(f, x, parts[SHIFT], parts[SCALE]);
    TensorId both = op_join_gelu(b->graph, attend_flux(f, project_branch(f, normed, &names[IMAGE])), widen(b, normed, "proj_mlp"));
    x->block = output(b, both, "proj_out", graph_columns(b->graph, both), LORA_MLP);
    x->gate = parts[GATE];
}

/* Adds the last block's output to the streams and returns them as one stream. */
static TensorId join_branches(const Flux *f, Branch x[KINDS]) {
    TensorId streams[KINDS];
    for (int i = 0; i < KINDS; i++) {
        residual_add_flux(f, &x[i], TENSOR_NONE, TENSOR_NONE);
        streams[i] = x[i].stream;
    }
    return op_join_rows(f->b->graph, streams, KINDS, f->samples);
}

static Trunk build_flux(Builder *b) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    int64_t samples = graph_rows(graph, b->image.time);
    Flux f = {
        .b = b, .samples = samples, .rows = {graph_rows(graph, b->image.latents) / samples, graph_rows(graph, b->image.text) / samples}};
    int64_t other = (c->head_dim - c->rope_first) / 2;
    f.rope_table = op_rope_table(graph, &(RopeSpec){.theta = c->rope_theta,
                                            .dimensions = c->head_dim,
                                            .positions = IMAGE_GRID * IMAGE_GRID,
                                            .axes = {c->rope_first, other, other},
                                            .grid = IMAGE_GRID});
    Branch x[KINDS] = {{.stream = flux_linear(b, b->image.latents, "x_embedder", c->width, true)},
        {.stream = flux_linear(b, b->image.text, "context_embedder", c->width, true)}};
    f.conditions = conditions(b);
    int doubles = (int)(c->layers - c->single_layers);
    for (int i = 0; i < doubles; i++) {
        begin_block(b, "transformer_blocks", i, i);
        double_block(&f, x);
    }
    Branch all = {.stream = join_branches(&f, x)};
    for (int i = 0; i < c->single_layers; i++) {
        begin_block(b, "single_transformer_blocks", i, doubles + i);
        single_block(&f, &all);
    }
    if (c->single_layers) residual_add_flux(&f, &all, TENSOR_NONE, TENSOR_NONE);
    builder_layer(b, -1);
    TensorId rows[KINDS], out[OUT_PARTS];
    op_split_rows(graph, all.stream, f.rows, rows, KINDS, samples);
    modulate(&f, "norm_out", out, OUT_PARTS); /* here the scale comes first */
    Branch last = {.stream = rows[IMAGE]};
    return (Trunk){.velocity = flux_linear(b, residual_add_flux(&f, &last, out[1], out[0]), "proj_out", c->channels, true)};
}

/* -- Class of diffusers -------------------------------------------------------------------------------------------- */

/* Reads the channels of a head that RoPE rotates by each of three coordinates; smelt's model gives
 * the last two equal shares of the rest. */
static void read_axes(HfFieldReader *r, const char *name, const json_t *value) {
    static const int64_t initial[] = {16, 56, 56};
    int64_t axes[3];
    if (value && (!json_is_array(value) || json_array_size(value) != 3)) hf_refuse(r, name, "is not a list of three numbers");
    for (size_t i = 0; i < 3; i++) axes[i] = value ? json_integer_value(json_array_get(value, i)) : initial[i];
    int64_t dim = r->model->head_dim;
    if (axes[0] < 2 || axes[0] >= dim || axes[1] != axes[2] || axes[1] < 2 || axes[1] >= dim || axes[0] + 2 * axes[1] != dim)
        hf_refuse(r, name, "must be a first number and two equal ones, with the sum attention_head_dim");
    r->model->rope_first = axes[0];
}

/* num_layers counts only the blocks with two streams; the width is heads x head_dim. */
static void read_sizes(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    (void)value;
    c->single_layers = hf_integer_or(r, name, 0, 38);
    if (__builtin_mul_overflow(c->heads, c->head_dim, &c->width)) hf_refuse(r, "num_attention_heads", "is too large");
    if (__builtin_add_overflow(c->layers, c->single_layers, &c->layers)) hf_refuse(r, name, "is too large");
    c->norm_epsilon = 1e-6;
    c->rope_theta = 10000;
}

/* Fields of diffusers' FluxTransformer2DModel. Its MLP widths, epsilon and theta are constants. */
static const HfField fields[] = {
    INTEGER("in_channels", channels, "64"),
    INTEGER("num_layers", layers, "19"),
    INTEGER("attention_head_dim", head_dim, "128"),
    INTEGER("num_attention_heads", heads, "24"),
    INTEGER("joint_attention_dim", text_width, "4096"),
    INTEGER("pooled_projection_dim", pooled_width, "768"),
    BOOLEAN("guidance_embeds", guidance, "false"),
    READ("num_single_layers", read_sizes),
    READ("axes_dims_rope", read_axes),
    FIXED("patch_size", "1"),
    FIXED("out_channels", "null"),
    FIXED("quantization_config", "null"),
    NO_EFFECT("_class_name"),
    NO_EFFECT("_diffusers_version"),
    END,
};

static bool check_flux_class(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->ffn != 4 * c->width)
        return error_set(error, ERROR_USAGE, "model.ffn=%lld must be 4 x model.width for %s", (long long)c->ffn, architecture);
    return (c->norm_epsilon == 1e-6 && c->rope_theta == 10000) ||
           error_set(error, ERROR_USAGE, "model.norm_epsilon=%g and model.rope_theta=%g must be 1e-6 and 10000 for %s", c->norm_epsilon,
               c->rope_theta, architecture);
}

/* Writes the fields as diffusers does; it takes the dtype from the tensors. */
static void put_flux(json_t *object, const ModelConfig *c) {
    int64_t other = (c->head_dim - c->rope_first) / 2;
    hf_put(object, "axes_dims_rope", json_pack("[I, I, I]", (json_int_t)c->rope_first, (json_int_t)other, (json_int_t)other));
    hf_put_integer(object, "patch_size", 1);
    hf_put_integer(object, "in_channels", c->channels);
    hf_put(object, "out_channels", json_null());
    hf_put_integer(object, "num_layers", c->layers - c->single_layers);
    hf_put_integer(object, "num_single_layers", c->single_layers);
    hf_put_integer(object, "attention_head_dim", c->head_dim);
    hf_put_integer(object, "num_attention_heads", c->heads);
    hf_put_integer(object, "joint_attention_dim", c->text_width);
    hf_put_integer(object, "pooled_projection_dim", c->pooled_width);
    hf_put(object, "guidance_embeds", json_boolean(c->guidance));
}

static const HfClass class = {
    .architecture = "FluxTransformer2DModel", .tables = {{fields, hf_metadata_fields}}, .check = check_flux_class, .put = put_flux};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {
    "channels", "guidance", "pooled_width", "rope_first", "rope_theta", "single_layers", "text_tokens", "text_width", NULL};

/* RoPE rotates pairs of channels. */
static bool check_flux(const ModelConfig *c, Error *error) {
    int64_t rest = c->head_dim - c->rope_first;
    if (c->single_layers >= c->layers)
        return error_set(error, ERROR_USAGE,
            "model.single_layers=%lld must be less than model.layers=%lld, because the first layer has two streams",
            (long long)c->single_layers, (long long)c->layers);
    if (!family_check_fused_norms(c, error)) return false;
    if (c->rope_first % 2 || rest < 4 || rest % 4)
        return error_set(error, ERROR_USAGE,
            "model.rope_first=%lld of model.head_dim=%lld must be even, and half of the remaining channels an even number of at least 2",
            (long long)c->rope_first, (long long)c->head_dim);
    return family_check_width(c, error) && family_check_key_heads(c, error);
}

const FamilyRule family_flux = {.name = "flux",
    .settings = settings,
    .makes_images = true,
    .check = check_flux,
    .activation = ACTIVATION_gelu_tanh,
    .layers = "transformer_blocks",
    .classes = classes,
    .build = build_flux};

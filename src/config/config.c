/* The table of settings, and the checks that span several settings. Owns nothing. Called by
 * commands. */
#include "config/config.h"

#include "base/math.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/family.h"
#include "config/layout_rules.h"
#include "config/lora_targets.h"
#include "config/needs.h"
#include "config/policy_rule.h"
#include "config/reward_options.h"

#define FIELD(path) offsetof(Config, path)
#define MANY 1e15 /* "no limit" for counts: exact in a double */
#define CHANGES .class = OPTION_CHANGES
#define FREE .class = OPTION_FREE
#define ONCE .class = OPTION_ONCE
#define PATH .path = true
#define STATE .state = true

/* "zaya|llama|..." */
#define FAMILY(name) "|" #name
static const char family_choices[] =
#include "config/family_list.h"
    ;
#undef FAMILY
#define FAMILY_CHOICES (family_choices + 1)

/* "adamw|muon|..." */
#define OPTIMIZER(name, kind) "|" #name
static const char optimizer_choices[] =
#include "config/optimizer_list.h"
    ;
#undef OPTIMIZER
#define OPTIMIZER_CHOICES (optimizer_choices + 1)

/* "auto|gelu|..." */
#define ACTIVATION(name, ...) "|" #name
#define GATED ACTIVATION
static const char activation_choices[] = "auto"
#include "config/activation_list.h"
    ;
#undef ACTIVATION
#undef GATED

static const Option rows[] = {
    STRING_OPTION(run, "runs/first", "", "run folder with checkpoints, metrics and report; an existing run is continued", FREE),
    STRING_OPTION(
        init, "", "", "run, checkpoint (RUN@STEP, RUN@best) or model folder from which a new run takes its model and weights", PATH, STATE),
    INT_OPTION(seed, "1", 0, MANY, "", "seed of the initial weights and the data order"),
    INT_OPTION(steps, "1000", 1, MANY, "steps", "number of optimizer steps of the run", CHANGES),
    INT_OPTION(tokens, "0", 0, MANY, "tokens", "alternative to steps: number of training tokens; the last step takes the remainder", ONCE),
    REAL_OPTION(
        epochs, "0", 0, 1e9, "", "alternative to steps: number of passes over the training data; the last step takes the remainder", ONCE),
    INT_OPTION(stop_at, "0", 0, MANY, "steps", "write a checkpoint and stop after this step of the schedule; 0: run to the end", ONCE),
    STRING_OPTION(fork, "", "", "folder of a new run that continues from a checkpoint of RUN: smelt train RUN fork=NEW", ONCE),
    INT_OPTION(from, "0", 0, MANY, "step", "with fork: step of the checkpoint; 0: the newest", ONCE),
    CHOICE_OPTION(device, "auto", "auto|cpu|hip|cuda", "device to train on", CHANGES),
    INT_OPTION(threads, "0", 0, 4096, "threads", "CPU threads; 0: all; does not change results", FREE),
    CHOICE_OPTION(precision, "bf16", "bf16|fp32|fp64|pure_bf16",
        "compute type; bf16 and fp32 keep fp32 master weights. pure_bf16 updates bf16 weights with stochastic rounding, in 8 instead of 18 "
        "bytes per parameter",
        CHANGES, STATE),
    {"fp8.recipe", OPTION_CHOICE, FIELD(model.fp8.recipe), "none", 0, 0, "none|tensor|row|row_gw_hp|block|mxfp8", "",
        "FP8 GEMMs for linear layers and experts, with one scale per tensor, per row, per row with bf16 weight gradients (row_gw_hp), per "
        "block of 128, or per 32 elements of a row (mxfp8: CPU, gfx950); embedding, router, norms, attention and, without fp8.head, the "
        "head keep the compute type",
        CHANGES},
    {"fp8.scaling", OPTION_CHOICE, FIELD(model.fp8.scaling), "dynamic", 0, 0, "dynamic|delayed", "",
        "fp8.recipe=tensor: dynamic computes the scale from the current amax in a separate pass; delayed computes it from the amax history "
        "of previous steps",
        CHANGES},
    {"fp8.amax_history_len", OPTION_INT, FIELD(model.fp8.amax_history_len), "1024", 1, 65536, NULL, "steps",
        "fp8.scaling=delayed: length of the amax history", CHANGES},
    {"fp8.head", OPTION_BOOL, FIELD(model.fp8.head), "false", 0, 0, NULL, "",
        "FP8 for the LM head and its loss too, in training and evaluation; faster if the vocabulary is large for the model. Scales are per "
        "tensor with every recipe",
        CHANGES},
    {"fp8.keep_weights", OPTION_BOOL, FIELD(model.fp8.keep_weights), "false", 0, 0, NULL, "",
        "quantize weights once per step instead of in each microbatch, and keep the quantized values (2 bytes per parameter)", FREE},
    {"fp8.min_size", OPTION_REAL, FIELD(model.fp8.min_size), "400", 0, 1e9, NULL, "",
        "keep a layer in bf16 if 1 / (1 / in + 1 / out) is below this (experts: 1 / (1 / in + 1 / out + 1 / rows per expert)), because the "
        "cast costs more than the GEMM saves",
        CHANGES},
    BOOL_OPTION(exact, "false",
        "run forward passes in one order of sums, so that generation gives each token the log-probability of training, bit for bit; costs "
        "speed on a GPU",
        CHANGES),
    BOOL_OPTION(exact_gemm, "false",
        "compute CPU bf16 GEMMs with exact products, as GPUs do, even if scaled 16-bit integers are twice as fast; to compare runs",
        CHANGES),
    CHOICE_OPTION(recompute, "auto", "none|norm|attention|block|auto",
        "activations to recompute in the backward pass, which saves memory, costs time and keeps the bits; auto: the least that fits in "
        "memory",
        FREE),
    CHOICE_OPTION(offload, "none", "none|optimizer|activations|both",
        "data to keep in pinned host memory, which saves device memory, costs time and keeps the bits; optimizer: optimizer state and the "
        "master weights of matrices, copied through two device buffers by each update; activations: the inputs of recomputed layers "
        "(recompute=block), until the backward pass; both",
        FREE),
    CHOICE_OPTION(on_nan, "stop", "stop|skip", "after NaN or infinity: report the tensor and stop, or skip the update", CHANGES),
    CHOICE_OPTION(plan, "false", "false|true|program",
        "print memory, speed and settings (program: also every operation), and exit before allocating", ONCE),
    {"layout", OPTION_CHOICE, FIELD(layout.choice), "given", 0, 0, "given|auto", "",
        "auto: choose layout.dp, tp, pp and its schedule, cp, ep, zero, batch.sequences and recompute with smelt forecast's model, and "
        "print why. It keeps axes that are not 1, and batch.sequences if model.auxiliary_loss depends on it",
        ONCE},
    REAL_OPTION(hang, "1800", 0, 1e9, "seconds",
        "if no step or evaluation batch finishes in this time, a rank prints where it is stuck and exits; 0: never", FREE),
    STRING_OPTION(on_event, "", "",
        "shell command that gets a JSON line on stdin, or http:// or https:// address to which it is posted, at each event: loss_spike, "
        "nan, stuck, slow_rank, checkpoint_failed, disk, best, and "
        "the end (finished, paused, stopped, failed), except errors before training begins; empty: none",
        ONCE),
    INT_OPTION(profile, "0", 0, 1e6, "steps",
        "profile this many steps, print the time of each operation (longest first), and exit; 0: train", ONCE),
    STRING_OPTION(dump, "", "", "folder to write inputs, logits, loss, weights and gradients of the first step to; empty: none", ONCE),
    STRING_OPTION(routing_trace, "", "",
        "file to write the experts that routers choose in rank 0's first microbatch to, for smelt bench train bench.routing=trace; empty: "
        "none",
        ONCE),
    BOOL_OPTION(tensorboard, "true", "write TensorBoard event files to the run folder", FREE),

    STRING_OPTION(data.train, "", "",
        "training data: token shards (prefix or folder), a text file or folder, a folder or text file in a bucket (s3://BUCKET/PREFIX), or "
        "a mixture of sources (MIXTURE.yaml)",
        PATH),
    STRING_OPTION(data.valid, "", "", "validation data, like data.train; empty: split off from the training text", CHANGES, PATH),
    STRING_OPTION(
        data.cache, "", "", "cache folder for data from s3://; runs can share it; empty: data/cache in the run folder", FREE, PATH),
    INT_OPTION(data.cache_mib, "4096", 64, 1 << 30, "MiB", "size limit of the token cache; each rank prefetches 1/32 of it", FREE),
    REAL_OPTION(data.patience, "300", 1, 1e6, "seconds", "time to wait for an s3:// server that does not answer", FREE),
    REAL_OPTION(data.valid_fraction, "0.05", 0, 0.5, "", "fraction of each text used for validation if data.valid is empty"),
    REAL_OPTION(data.valid_documents, "0", 0, 0.5, "",
        "fraction of the documents of data.train, text, shards or a mixture, used for validation and not for training; a hash of its "
        "tokens "
        "decides for each document; 0: none"),
    STRING_OPTION(data.separator, "", "", "line that separates documents in a text file; empty: one document per file"),
    STRING_OPTION(data.tokenizer, "", "",
        "a tokenizer.json, tokenizer.model, tekken.json or .tiktoken file, or a folder with one; empty: the tokenizer of the token shards "
        "or of init, else bytes; none: unknown",
        PATH),
    STRING_OPTION(data.template, "", "",
        "chat template of conversations and pairs that the run packs: a file, or chatml; empty: the one of data.tokenizer or of the model",
        PATH),
    BOOL_OPTION(data.special, "false",
        "parse special tokens spelled out in text; false: treat them as ordinary text, so that text cannot end a document"),
    CHOICE_OPTION(data.bos, "auto", "auto|true|false",
        "prepend bos_token to each text in training, evaluation and generation; auto: as the data or the tokenizer's template does", FREE),
    INT_OPTION(data.length, "256", 1, 1 << 24, "tokens", "sequence length in training"),
    CHOICE_OPTION(data.packing, "cut", "cut|best_fit",
        "how documents fill sequences: cut concatenates them and cuts the stream; best_fit cuts only documents longer than a sequence, and "
        "pads the rest"),
    BOOL_OPTION(data.document_mask, "true", "restart attention, convolutions and positions at every document"),

    CHOICE_OPTION(model.family, "llama", FAMILY_CHOICES,
        "architecture; llama includes Mistral, Mixtral, Qwen2, Qwen3 and Qwen3-MoE; olmo is OLMo 2, OLMo 3 and OLMoE; deepseek is "
        "DeepSeek-V2 and V3; gemma is Gemma 3; flux generates "
        "images",
        STATE),
    INT_OPTION(model.layers, "4", 1, 10000, "layers", "number of blocks, each of attention and an MLP or experts", STATE),
    INT_OPTION(model.width, "256", 8, 1 << 20, "channels", "width of the residual stream", STATE),
    INT_OPTION(model.heads, "4", 1, 65536, "heads", "query heads", STATE),
    INT_OPTION(model.kv_heads, "2", 1, 65536, "heads", "key and value heads", STATE),
    INT_OPTION(model.head_dim, "0", 0, 1024, "channels", "head dimension; 0: model.width / model.heads", STATE),
    INT_OPTION(model.ffn, "512", 1, 1 << 24, "channels", "hidden width of the MLP or of each expert", STATE),
    INT_OPTION(model.vocabulary, "0", 0, 1 << 24, "tokens",
        "rows of the embedding; 0: the tokenizer's tokens, rounded up to a multiple of 64 for speed", STATE),
    INT_OPTION(model.context, "0", 0, 1 << 24, "tokens", "maximum number of positions; 0: data.length"),
    INT_OPTION(model.window, "0", 0, 1 << 24, "tokens", "sliding attention window, including the token itself; 0: none"),
    INT_OPTION(
        model.window_period, "1", 1, 4096, "layers", "every Nth layer has the window, the other layers have full attention; 1: all layers"),
    INT_OPTION(model.window_first, "0", 0, 4095, "layer", "first layer with the window; less than model.window_period"),
    BOOL_OPTION(model.window_skips, "false",
        "swap the two: the layers that model.window_period selects have full attention, and the others have the window"),
    REAL_OPTION(model.window_rope_theta, "0", 0, 1e12, "", "model.rope_theta of the layers with the window; 0: the same"),
    INT_OPTION(model.experts, "0", 0, 512, "experts", "experts per layer; 0: one dense MLP", STATE),
    INT_OPTION(model.experts_per_token, "1", 1, 64, "experts", "experts chosen for each token"),
    INT_OPTION(model.experts_first, "0", 0, 9999, "layer", "first layer with experts; earlier layers have one MLP", STATE),
    INT_OPTION(model.experts_period, "1", 1, 10000, "layers",
        "from model.experts_first on, every Nth layer has experts, the other layers have one MLP; 1: all have experts", STATE),
    INT_OPTION(model.dense_ffn, "0", 0, 1 << 24, "channels", "hidden width of the MLP in layers without experts; 0: model.ffn", STATE),
    INT_OPTION(model.router_width, "64", 1, 65536, "channels", "hidden width of the routers", STATE),
    BOOL_OPTION(model.renormalise, "false", "normalize the gates of a token's experts to sum to 1"),
    CHOICE_OPTION(model.router_scores, "softmax", "softmax|sigmoid", "scores of experts: a softmax over all experts, or a sigmoid of each"),
    INT_OPTION(model.expert_groups, "1", 1, 32, "groups", "number of groups of experts; a token first chooses model.groups_chosen of them"),
    INT_OPTION(model.groups_chosen, "1", 1, 32, "groups",
        "number of groups in which a token chooses its experts: groups with the highest score, or sum of two scores (sigmoid)"),
    REAL_OPTION(model.gate_scale, "1", 1e-6, 1e6, "", "factor of the gates (routed_scaling_factor)"),
    INT_OPTION(model.shared_experts, "0", 0, 512, "experts",
        "experts that process every token, as one MLP whose width is this many times model.ffn", STATE),
    REAL_OPTION(model.auxiliary_loss, "0", 0, 100, "", "weight of the load-balancing loss"),
    CHOICE_OPTION(model.auxiliary_scope, "layer", "layer|model",
        "load-balancing loss: one per layer, or one over the tokens of all layers (transformers); averaged over microbatches"),
    INT_OPTION(model.mtp, "0", 0, 1, "layers",
        "layers after the model's own that predict the token after the next one, for a second loss (multi-token prediction)", STATE),
    REAL_OPTION(model.mtp_weight, "0.3", 1e-6, 100, "", "weight of this loss", CHANGES),
    REAL_OPTION(model.rope_theta, "10000", 1, 1e12, "", "base of RoPE"),
    REAL_OPTION(model.rope_fraction, "1", 0, 1, "", "fraction of each head's channels that RoPE rotates"),
    INT_OPTION(model.nope_period, "0", 0, 10000, "layers", "every Nth layer has no RoPE (no_rope_layer_interval); 0: all layers have it"),
    CHOICE_OPTION(
        model.rope_scaling, "llama3", "llama3|linear|dynamic|yarn|longrope", "how model.rope_factor scales positions (rope_type)"),
    REAL_OPTION(model.rope_factor, "1", 1, 1e6, "", "factor by which the context is extended; 1: none"),
    REAL_OPTION(model.rope_low_frequency, "1", 1e-6, 1e6, "",
        "Llama 3: wavelengths that fit into the original context fewer times than this are stretched (low_freq_factor)"),
    REAL_OPTION(model.rope_high_frequency, "4", 1e-6, 1e6, "",
        "Llama 3: wavelengths that fit into the original context more times than this are kept (high_freq_factor)"),
    INT_OPTION(model.rope_original_context, "8192", 1, 1 << 24, "tokens", "context before scaling (original_max_position_embeddings)"),
    REAL_OPTION(model.rope_attention_factor, "1", 1e-6, 1e6, "", "YaRN and LongRoPE: scale of queries and keys (attention_factor)"),
    REAL_OPTION(model.rope_beta_fast, "32", 1e-6, 1e6, "turns",
        "YaRN: frequencies with more turns than this in the original context are kept (beta_fast)"),
    REAL_OPTION(model.rope_beta_slow, "1", 1e-6, 1e6, "turns",
        "YaRN: frequencies with fewer turns than this are divided by model.rope_factor (beta_slow)"),
    BOOL_OPTION(model.rope_truncate, "true",
        "YaRN: round the channels where model.rope_beta_fast and model.rope_beta_slow apply to whole numbers (truncate)"),
    REALS_OPTION(model.rope_short_factors, 1e-6, 1e6, "",
        "divisor of each RoPE frequency in sequences up to model.rope_original_context (short_factor)"),
    REALS_OPTION(model.rope_long_factors, 1e-6, 1e6, "", "divisor of each RoPE frequency in longer sequences (long_factor)"),
    INT_OPTION(model.q_lora_rank, "0", 0, 65536, "channels", "channels of the latents of queries (q_lora_rank); 0: none", STATE),
    INT_OPTION(model.kv_lora_rank, "512", 1, 65536, "channels", "channels of the latents of keys and values (kv_lora_rank)", STATE),
    INT_OPTION(model.rope_dim, "0", 0, 1024, "channels",
        "channels of a head that RoPE rotates, the last ones (qk_rope_head_dim); 0: half of model.head_dim", STATE),
    INT_OPTION(model.value_dim, "0", 0, 1024, "channels", "channels of a value head (v_head_dim); 0: model.head_dim", STATE),
    BOOL_OPTION(model.rope_interleave, "true", "RoPE rotates neighboring channels, not those half of model.rope_dim apart"),
    REAL_OPTION(model.rope_query_scale, "0", 0, 1e6, "",
        "queries are multiplied by 1 + N ln(1 + floor(position / model.rope_original_context)) (llama_4_scaling_beta); 0: they are not"),
    INT_OPTION(model.delta_heads, "4", 1, 4096, "heads", "value heads of layers with the gated delta rule (linear_num_value_heads)", STATE),
    INT_OPTION(model.delta_key_heads, "2", 1, 4096, "heads",
        "query and key heads of these layers (linear_num_key_heads), which divide model.delta_heads", STATE),
    INT_OPTION(model.delta_key_dim, "64", 1, 128, "channels", "channels of their queries and keys (linear_key_head_dim)", STATE),
    INT_OPTION(model.delta_value_dim, "64", 1, 128, "channels", "channels of their values (linear_value_head_dim)", STATE),
    INT_OPTION(model.delta_taps, "4", 2, 8, "tokens", "tokens that their convolutions read (linear_conv_kernel_dim)", STATE),
    INT_OPTION(model.attention_period, "4", 1, 10000, "layers",
        "every Nth layer has attention, the other layers have the gated delta rule (full_attention_interval)", STATE),
    REAL_OPTION(model.rope_mscale, "0", 0, 1e6, "",
        "multiply attention scores by (0.1 N ln(model.rope_factor) + 1)^2 for this N (mscale_all_dim); 0: no factor"),
    BOOL_OPTION(model.qkv_bias, "false", "biases of queries, keys and values (Qwen2); gpt_oss: also of the output", STATE),
    CHOICE_OPTION(model.activation, "auto", activation_choices,
        "activation function of the MLP or of each expert; auto: the family's, such as SwiGLU (llama) or GELU by tanh (gpt2). A gated "
        "family needs a gated function, others one without gate"),
    REAL_OPTION(model.swiglu_alpha, "1.702", 0, 1000, "", "swiglu_clamped: factor of the gate within the sigmoid"),
    REAL_OPTION(model.swiglu_limit, "7", 1e-6, 1e6, "", "swiglu_clamped: bound of gate and up projection"),
    BOOL_OPTION(model.qk_norm, "false", "RMSNorm of each query and key head (Qwen3); mpt: qk_ln", STATE),
    REAL_OPTION(model.clip_qkv, "0", 0, 1e6, "", "clamp queries, keys and values to this absolute value; 0: none"),
    REAL_OPTION(model.alibi_max, "8", 1e-3, 1000, "", "ALiBi: the smallest slope is 2^-N for this N (alibi_bias_max)"),
    REAL_OPTION(model.softmax_scale, "0", 0, 1e6, "", "scale of attention scores; 0: 1 / sqrt(head_dim)"),
    REAL_OPTION(model.embedding_scale, "1", 1e-6, 1e6, "", "factor of embeddings (embedding_multiplier)"),
    REAL_OPTION(model.residual_scale, "1", 1e-6, 1e6, "", "factor of the outputs of attention and MLP (residual_multiplier)"),
    REAL_OPTION(model.logit_divisor, "1", 1e-6, 1e6, "", "divisor of the logits (logits_scaling)"),
    REAL_OPTION(model.score_cap, "0", 0, 1e6, "", "soft-cap of attention scores (attn_logit_softcapping); 0: none"),
    REAL_OPTION(model.logit_cap, "0", 0, 1e6, "", "soft-cap of the head's logits (final_logit_softcapping); 0: none"),
    REAL_OPTION(model.norm_epsilon, "1e-5", 1e-12, 1, "", "epsilon of the norms"),
    REAL_OPTION(model.init_std, "0.02", 0, 10, "", "standard deviation of initial weights"),
    BOOL_OPTION(model.tied, "true", "share the weights of the embedding and the head", STATE),
    INT_OPTION(model.single_layers, "0", 0, 10000, "layers", "number of single-stream layers, the last of model.layers", STATE),
    INT_OPTION(model.channels, "64", 1, 65536, "channels", "width of an image token, 2 x 2 latents (in_channels)", STATE),
    INT_OPTION(model.text_width, "4096", 1, 1 << 20, "channels", "width of an encoded text token (joint_attention_dim)", STATE),
    INT_OPTION(model.pooled_width, "768", 1, 1 << 20, "channels", "width of the pooled text (pooled_projection_dim)", STATE),
    INT_OPTION(model.text_tokens, "512", 1, 1 << 24, "tokens", "text tokens per sample; data.length counts text and image tokens"),
    INT_OPTION(model.rope_first, "16", 2, 1024, "channels",
        "RoPE channels per head of the first of three coordinates; row and column share the rest (axes_dims_rope)"),
    BOOL_OPTION(model.guidance, "false", "embed the guidance scale, as FLUX.1-dev does (guidance_embeds)", STATE),
    INT_OPTION(model.padding, "-1", -1, 1 << 24, "token", "token whose embedding row gets no gradient (pad_token_id); -1: none"),

    INT_OPTION(batch.tokens, "8192", 1, MANY, "tokens", "tokens per optimizer step over all ranks", CHANGES),
    INT_OPTION(batch.sequences, "16", 1, 1 << 24, "sequences",
        "sequences per microbatch; a step accumulates the gradients of batch.tokens. Fewer need less memory and change rounding, and with "
        "model.auxiliary_loss, computed per microbatch, also the loss",
        CHANGES),
    INT_OPTION(batch.ramp_tokens, "0", 0, MANY, "tokens", "batch size ramp: tokens of the first step; 0: no ramp", CHANGES),
    INT_OPTION(batch.ramp_steps, "0", 0, MANY, "steps", "batch size ramp: steps in which it grows linearly to batch.tokens", CHANGES),
    INT_OPTION(batch.last, "0", 0, MANY, "tokens",
        "tokens of the last step; 0: as in every other step. tokens= and epochs= set it to the remainder", CHANGES),

    REAL_OPTION(flow.mean, "0", -20, 20, "",
        "mean of the normal variable x of the logit-normal training time t = 1 / (1 + exp(-x)), from image (0) to noise (1)", CHANGES),
    REAL_OPTION(flow.deviation, "1", 0, 20, "", "standard deviation of x", CHANGES),
    REAL_OPTION(flow.shift, "3", 1e-3, 1e3, "", "shifts times toward noise: t becomes shift t / (1 + (shift - 1) t); 1: no shift", CHANGES),
    REAL_OPTION(flow.guidance, "1", 0, 1e3, "", "guidance scale that the model gets as input in training", CHANGES),
    REAL_OPTION(flow.caption_dropout, "0", 0, 1, "", "fraction of the training samples that get the empty caption", CHANGES),

    CHOICE_OPTION(optimizer.name, "adamw", OPTIMIZER_CHOICES,
        "adamw_8bit: AdamW with the moments of matrices in 8 bits (docs/finetune.md); muon: momentum, orthogonalized by Newton-Schulz, for "
        "each hidden projection, and AdamW for all other parameters; lion: sign of the momentum, for a third to a tenth of AdamW's "
        "learning rate",
        STATE),
    REAL_OPTION(optimizer.lr, "1e-3", 0, 100, "", "peak learning rate", CHANGES),
    REAL_OPTION(optimizer.beta1, "0.9", 0, 0.999999, "",
        "AdamW: decay of the first moment; Lion: interpolation of the momentum in the update", CHANGES),
    REAL_OPTION(
        optimizer.beta2, "0.95", 0, 0.9999999, "", "AdamW: decay of the second moment; Lion: decay of the stored momentum", CHANGES),
    REAL_OPTION(optimizer.epsilon, "1e-8", 1e-30, 1, "", "AdamW: epsilon, added to the root of the second moment", CHANGES),
    REAL_OPTION(optimizer.weight_decay, "0.1", 0, 100, "", "decoupled weight decay of matrices, embeddings and convolutions", CHANGES),
    BOOL_OPTION(optimizer.decay_vectors, "false", "apply weight decay to norms and biases too", CHANGES),
    REAL_OPTION(optimizer.clip, "1", 0, 1e9, "", "maximum global gradient norm; 0: no clipping", CHANGES),
    REAL_OPTION(optimizer.momentum, "0.95", 0, 0.999999, "", "Muon: momentum of hidden matrices", CHANGES),
    INT_OPTION(optimizer.newton_schulz_steps, "5", 1, 20, "", "Muon: Newton-Schulz iterations per update", CHANGES),
    REAL_OPTION(optimizer.balance_lr, "1e-3", 0, 10, "", "AdamW learning rate of the routers' load-balancing biases; 0: frozen", CHANGES),
    BOOL_OPTION(optimizer.in_backward, "false",
        "update weights during the backward pass, so that a full set of gradients never exists; needs optimizer.clip=0 and one microbatch "
        "per step; does not change results",
        FREE),

    CHOICE_OPTION(
        schedule.kind, "cosine", "cosine|wsd|linear|constant", "learning rate after warmup; wsd: constant, then linear decay", CHANGES),
    INT_OPTION(schedule.warmup, "0", 0, MANY, "steps", "linear warmup", CHANGES),
    INT_OPTION(schedule.decay, "0", 0, MANY, "steps", "length of the linear decay at the end", CHANGES),
    REAL_OPTION(schedule.minimum, "0.1", 0, 1, "", "final learning rate as a fraction of the peak", CHANGES),

    INT_OPTION(log.every, "0", 0, MANY, "steps",
        "steps between printed lines; 0: every step, on a terminal at most one line per second; files always have all steps", FREE),
    STRING_OPTION(metrics.listen, "", "",
        "ADDRESS:PORT on which rank 0 serves /metrics (Prometheus) and /healthz, such as 127.0.0.1:9400; empty: none", ONCE),
    STRING_OPTION(metrics.file, "", "",
        "file of the same numbers, replaced by rename, for the textfile collector of node_exporter (NAME.prom); empty: none", ONCE),
    STRING_OPTION(metrics.otlp, "", "",
        "address of an OpenTelemetry collector, such as http://127.0.0.1:4318, that gets the numbers by OTLP/HTTP in JSON; empty: none",
        ONCE),
    REAL_OPTION(metrics.every, "15", 1, 86400, "seconds",
        "time between two writes of metrics.file, and between two posts to metrics.otlp and to a TrainJob's server", ONCE),
    REAL_OPTION(metrics.system, "15", 0, 86400, "seconds",
        "time between two samples of the machine of rank 0: processors, memory, disks, networks, GPUs; 0: none", FREE),
    REAL_OPTION(metrics.price, "0", 0, 1e6, "$/h", "price of a device, for the cost on the page of the run; 0: unknown", FREE),
    INT_OPTION(
        metrics.layers, "0", 0, MANY, "steps", "steps between records of the norms of each layer's gradients and weights; 0: none", FREE),
    INT_OPTION(eval.every, "0", 0, MANY, "steps", "steps between evaluations; 0: only at the end", FREE),
    INT_OPTION(eval.sequences, "0", 0, MANY, "sequences", "sequences per evaluation, from the start of the validation data; 0: all", FREE),
    INT_OPTION(eval.patience, "0", 0, MANY, "evaluations",
        "early stopping: stop after this many consecutive evaluations without a lower validation loss; 0: never", FREE),
    INT_OPTION(
        eval.sample_tokens, "64", 0, 4096, "tokens", "length of the text sample at each evaluation (temperature 0.8); 0: none", FREE),
    STRING_OPTION(
        eval.prompt, "", "", "prompt of the text sample; empty: the first 32 tokens of the validation data that are not blank", FREE),
    INT_OPTION(eval.pictures, "0", 0, 64, "pictures",
        "pictures made at each evaluation, for the first captions of data.valid, as RUN/pictures/step-STEP.png (28 steps, guidance 3.5)",
        FREE),
    STRING_OPTION(eval.vae, "", "", "folder of diffusers' AutoencoderKL that decodes these pictures, on the CPU; empty: latents are pixels",
        FREE, PATH),
    INT_OPTION(checkpoint.every, "0", 0, MANY, "steps", "steps between checkpoints; 0: only at the end", FREE),
    INT_OPTION(checkpoint.keep, "2", 1, 1000000, "checkpoints", "number of newest checkpoints to keep", FREE),
    INT_OPTION(checkpoint.keep_every, "0", 0, MANY, "steps", "keep checkpoints of steps that are multiples of this forever; 0: none", FREE),
    BOOL_OPTION(checkpoint.keep_best, "false",
        "save after each evaluation with the lowest validation loss so far, and keep that checkpoint: RUN@best", FREE),
    STRING_OPTION(checkpoint.store, "", "", "parent of checkpoints/: s3://BUCKET/PREFIX or a folder; empty: the run folder", FREE, PATH),
    BOOL_OPTION(checkpoint.async, "true", "continue training while a copy in host memory is written; false: wait, without a copy", FREE),
    INT_OPTION(checkpoint.whole_every, "0", 0, MANY, "steps",
        "steps between full checkpoints; the others share unchanged files; 0: all are full", FREE),
    REAL_OPTION(checkpoint.timeout, "1800", 1, 1e6, "seconds", "time that rank 0 waits for the checkpoint shards of other ranks", FREE),

    INT_OPTION(lora.rank, "0", 0, 4096, "", "rank of LoRA adapters on the frozen weights of init=FOLDER; 0: train all weights", STATE),
    REAL_OPTION(lora.alpha, "16", 1e-6, 1e6, "", "numerator of the adapters' scale lora.alpha / lora.rank"),
    BOOL_OPTION(lora.rslora, "false", "scale adapters by lora.alpha / sqrt(lora.rank) instead (rsLoRA)"),
    STRING_OPTION(lora.targets, "all", "",
        "comma-separated modules that get adapters: groups (attention, mlp, experts, router), names or suffixes (q_proj, "
        "layers.3.mlp.down_proj); all: all except routers",
        STATE),
    STRING_OPTION(
        lora.modules_to_save, "", "", "comma-separated token tables to train in full, by PEFT's names (embed_tokens, wte, lm_head)", STATE),
    STRING_OPTION(lora.tokens, "", "",
        "token ids whose embedding and head rows are trained (PEFT's trainable_token_indices), in ascending order: 64000-64002,64010",
        STATE),
    CHOICE_OPTION(lora.base, "same", "same|nf4|fp8",
        "storage of frozen linear layers; nf4: 4.13 bits (QLoRA), fp8: 8 bits; each matrix is dequantized right before its GEMM"),
    STRING_OPTION(lora.start, "", "", "PEFT folder (adapter_config.json), or run, with the initial adapters of a new run", PATH),
    CHOICE_OPTION(
        lora.experts, "each", "each|shared", "adapters of experts: one per expert, or one shared by all experts of a layer", STATE),

    {"preference.loss", OPTION_CHOICE, FIELD(model.preference.loss), "none", 0, 0, "none|dpo|ipo", "",
        "loss over preference pairs (smelt data pack format=preference), relative to the log-probabilities of the initial weights"},
    {"preference.beta", OPTION_REAL, FIELD(model.preference.beta), "0.1", 1e-6, 1e6, NULL, "",
        "strength of the pull toward the initial weights: a reward is beta times the gain in log-probability"},
    {"preference.label_smoothing", OPTION_REAL, FIELD(model.preference.label_smoothing), "0", 0, 0.5, NULL, "",
        "preference.loss=dpo: assumed fraction of wrong preferences (cDPO)"},

    {"rl.loss", OPTION_CHOICE, FIELD(model.policy.loss), "none", 0, 0,
        "none|grpo|dr_grpo|dapo|gspo|cispo|rloo|reinforce_pp|maxrl|dppo|distill|ppo", "",
        "reinforcement learning of init=MODEL on the prompts of data.train, with this loss; distill: towards rl.reference"},
    REWARD_OPTIONS(CHANGES, FREE) STRING_OPTION(rl.environment, "", "",
        "program:COMMAND, python:FILE.py or http://HOST/PATH that answers each turn of a sample, or ends it with a reward (docs/rl.md)",
        CHANGES),
    INT_OPTION(rl.turns, "8", 1, 1 << 20, "turns", "most turns of a sample", CHANGES),
    BOOL_OPTION(rl.record, "true", "write the samples of each rollout to RUN/rollouts", FREE),
    INT_OPTION(rl.prompts, "8", 1, 1 << 20, "prompts", "prompts of a rollout", CHANGES),
    INT_OPTION(rl.samples, "8", 1, 65536, "samples", "samples of each prompt, which form a group", CHANGES),
    INT_OPTION(rl.updates, "1", 1, 1024, "updates", "optimizer steps that share the samples of a rollout; divides rl.prompts", CHANGES),
    INT_OPTION(rl.epochs, "1", 1, 1024, "epochs", "times that a rollout is trained; each epoch takes rl.updates steps", CHANGES),
    INT_OPTION(rl.tokens, "256", 1, 1 << 24, "tokens", "most tokens of a sample, with what rl.environment appends", CHANGES),
    INT_OPTION(rl.slots, "64", 1, 1024, "sequences", "sequences that a rank generates at once", FREE),
    REAL_OPTION(rl.temperature, "1", 1e-3, 100, "", "divisor of the logits, when samples are drawn and when they are trained", CHANGES),
    INT_OPTION(rl.refill, "0", 0, 1024, "rounds",
        "leave out groups whose samples have equal rewards, and generate other prompts in their place in up to this many rounds", CHANGES),
    INT_OPTION(rl.overlong, "0", 0, 1 << 24, "tokens",
        "soft penalty of length: over the last N of rl.tokens tokens the reward falls linearly by 1 (DAPO); 0: none", CHANGES),
    BOOL_OPTION(rl.mask_truncated, "false", "do not train samples that rl.tokens cut off", CHANGES),
    {"rl.clip_low", OPTION_REAL, FIELD(model.policy.low), "-1", -1, 1, NULL, "",
        "the ratio of probabilities is clipped at 1 minus this (epsilon); dppo: bound of a falling probability; -1: the loss's default",
        CHANGES},
    {"rl.clip_high", OPTION_REAL, FIELD(model.policy.high), "-1", -1, 1e6, NULL, "",
        "and at 1 plus this (epsilon_high); cispo: the largest ratio; dppo: bound of a rising probability; -1: the loss's default",
        CHANGES},
    {"rl.clip_dual", OPTION_REAL, FIELD(model.policy.dual), "0", 0, 1e6, NULL, "",
        "largest ratio of tokens with a negative advantage (delta); 0: none", CHANGES},
    {"rl.kl_coef", OPTION_REAL, FIELD(model.policy.kl), "0", 0, 1e6, NULL, "",
        "weight of the KL divergence to the reference (beta); 0: no reference", CHANGES},
    CHOICE_OPTION(
        rl.kl, "loss", "loss|reward", "add the KL divergence to the loss of each token (k3), or subtract it from rewards (k1)", CHANGES),
    STRING_OPTION(rl.reference, "", "",
        "run or model folder with the same tokens: the reference of rl.kl_coef, or the teacher of rl.loss=distill; empty: init", CHANGES,
        PATH),
    {"rl.entropy", OPTION_REAL, FIELD(model.policy.entropy), "0", 0, 1e6, NULL, "",
        "weight of the entropy, estimated by the drawn tokens, that the loss adds to the objective", CHANGES},
    {"rl.penalty", OPTION_REAL, FIELD(model.policy.penalty), "1e-3", 0, 1e6, NULL, "",
        "rl.loss=dppo: weight of the squared logarithm of the ratio", CHANGES},
    {"rl.vf_coef", OPTION_REAL, FIELD(model.policy.value_coefficient), "0.1", 0, 1e6, NULL, "", "rl.loss=ppo: weight of the value loss",
        CHANGES},
    {"rl.cliprange_value", OPTION_REAL, FIELD(model.policy.value_clip), "0.2", 0, 1e6, NULL, "",
        "rl.loss=ppo: how far a value may move in a rollout's updates; 0: no bound", CHANGES},
    {"rl.gamma", OPTION_REAL, FIELD(rl.gamma), "1", 0, 1, NULL, "", "rl.loss=ppo: discount of rewards per token", CHANGES},
    {"rl.lam", OPTION_REAL, FIELD(rl.lambda), "0.95", 0, 1, NULL, "",
        "rl.loss=ppo: lambda of GAE; 1: returns minus values, 0: one-step errors", CHANGES},
    BOOL_OPTION(rl.whiten, "true", "rl.loss=ppo: scale the advantages of a rollout's tokens to mean 0 and standard deviation 1", CHANGES),
    {"rl.value_lr", OPTION_REAL, FIELD(optimizer.value_lr), "0", 0, 10, NULL, "",
        "rl.loss=ppo: peak learning rate of the value head; 0: optimizer.lr", CHANGES},

    INT_OPTION(layout.dp, "0", 0, 1 << 20, "ranks",
        "data parallelism: groups of ranks that split the batch; 0: derived from the number of ranks", CHANGES),
    INT_OPTION(
        layout.tp, "1", 1, 1 << 20, "ranks", "tensor parallelism: ranks that split every layer (heads, columns, vocabulary)", CHANGES),
    INT_OPTION(layout.pp, "1", 1, 1 << 20, "ranks", "pipeline parallelism: ranks that split the layers into stages", CHANGES),
    CHOICE_OPTION(layout.pp_schedule, "1f1b", "1f1b|interleaved|zero-bubble",
        "pipeline schedule; interleaved: several chunks of layers per rank; zero-bubble: weight gradients fill the bubbles", CHANGES),
    INT_OPTION(layout.pp_chunks, "0", 0, 1 << 10, "chunks",
        "layer chunks per rank of an interleaved pipeline; N chunks divide its bubble by N; 0: 2 if interleaved", CHANGES),
    INT_OPTION(layout.cp, "1", 1, 1 << 20, "ranks", "context parallelism: ranks that split every sequence", CHANGES),
    CHOICE_OPTION(layout.cp_exchange, "gather", "gather|ring",
        "how the ranks of layout.cp exchange keys and values: gather holds the whole sequence; ring holds one rank's part at a time",
        CHANGES),
    INT_OPTION(layout.ep, "1", 1, 1 << 20, "ranks", "expert parallelism: ranks that split the experts; they split the batch too", CHANGES),
    INT_OPTION(layout.zero, "1", 0, 3, "",
        "ZeRO stage: 1 shards optimizer state, 2 also gradients, 3 also weights, frozen ones too (FSDP); 0: nothing", CHANGES),
    INT_OPTION(layout.shard, "0", 0, 1 << 20, "ranks", "ranks per sharded copy, such as the 8 of a node (HSDP); 0: all ranks", CHANGES),
    REAL_OPTION(layout.bucket_mb, "0", 0, 1 << 20, "MiB",
        "size of a gradient bucket; one collective reduces a bucket; 0: 256 on AMD GPUs, else 64", CHANGES),
    CHOICE_OPTION(layout.reduce, "auto", "auto|fp32|bf16",
        "dtype of gradient reductions over ranks, for matrices; bf16 halves the traffic; auto: fp32, but bf16 with precision=pure_bf16, "
        "and fp64 with fp64",
        CHANGES),

    STRING_OPTION(resume.accept, "", "",
        "comma-separated list of differences from the newest checkpoint to accept: settings, groups of settings, run, version, checkpoints",
        ONCE),
};

const OptionTable config_table = OPTION_TABLE(rows, .explain = needs_explain, .zeroed = sizeof(Config));

/* Models of images read encodings; the text of a sample is part of its data.length tokens. */
static bool check_images(const Config *config, Error *error) {
    if (!family_of(&config->model)->makes_images || config->data.length > config->model.text_tokens) return true;
    return error_set(error, ERROR_USAGE,
        "data.length=%lld leaves no image tokens after model.text_tokens=%lld: set data.length to model.text_tokens + H / 16 x W / 16",
        (long long)config->data.length, (long long)config->model.text_tokens);
}

static bool check_rotation(const ModelConfig *model, Error *error) {
    double rotated = model_rotated(model);
    if (model->rope_dim && (model->rope_dim % 2 || model->head_dim % 2 || model->rope_dim >= model->head_dim))
        return error_set(error, ERROR_USAGE, "model.rope_dim=%lld and model.head_dim=%lld must be even, and the first less than the second",
            (long long)model->rope_dim, (long long)model->head_dim);
    if (rotated < 2 || rotated != (int64_t)rotated || (int64_t)rotated % 2)
        return error_set(error, ERROR_USAGE,
            "model.rope_fraction=%g x model.head_dim=%lld is %g channels; it must be an even number of at least 2", model->rope_fraction,
            (long long)model->head_dim, rotated);
    bool scaled = model->rope_factor > 1;
    if (scaled && model->rope_scaling == ROPE_LLAMA3 && model->rope_high_frequency <= model->rope_low_frequency)
        return error_set(error, ERROR_USAGE, "model.rope_high_frequency=%g must be above model.rope_low_frequency=%g",
            model->rope_high_frequency, model->rope_low_frequency);
    if (scaled && model->rope_scaling == ROPE_DYNAMIC && rotated == 2)
        return error_set(error, ERROR_USAGE, "model.rope_scaling=dynamic needs more than 2 RoPE channels per head");
    if (model->rope_scaling != ROPE_YARN && model->rope_scaling != ROPE_LONGROPE && model->rope_attention_factor != 1)
        return error_set(
            error, ERROR_USAGE, "model.rope_attention_factor=%g needs model.rope_scaling=yarn or longrope", model->rope_attention_factor);
    bool longrope = scaled && model->rope_scaling == ROPE_LONGROPE;
    int64_t pairs = (int64_t)rotated / 2, shorts = model->rope_short_factors.count, longs = model->rope_long_factors.count;
    if (longrope && (shorts != pairs || longs != pairs))
        return error_set(error, ERROR_USAGE,
            "model.rope_short_factors and model.rope_long_factors have %lld and %lld numbers: model.rope_scaling=longrope needs %lld, one "
            "per pair of RoPE channels of a head (model.head_dim=%lld)",
            (long long)shorts, (long long)longs, (long long)pairs, (long long)model->head_dim);
    return true;
}

/* Checks the groups of experts, and that the scores allow a load-balancing loss. */
static bool check_router(const ModelConfig *model, Error *error) {
    int64_t groups = model->expert_groups, size = model->experts / groups;
    bool sigmoid = model->router_scores == SCORES_SIGMOID;
    if (model->experts % groups || model->groups_chosen > groups)
        return error_set(error, ERROR_USAGE,
            "model.expert_groups=%lld must divide model.experts=%lld and be at least model.groups_chosen=%lld", (long long)groups,
            (long long)model->experts, (long long)model->groups_chosen);
    if (sigmoid && groups > 1 && size < 2)
        return error_set(error, ERROR_USAGE,
            "model.expert_groups=%lld leaves one expert per group, but model.router_scores=sigmoid adds the two best: set "
            "model.expert_groups=%lld",
            (long long)groups, (long long)(groups / 2));
    if (groups > 1 && model->experts_per_token > model->groups_chosen * size)
        return error_set(error, ERROR_USAGE,
            "model.experts_per_token=%lld is more than the %lld experts of model.groups_chosen=%lld of model.expert_groups=%lld groups: "
            "increase model.groups_chosen",
            (long long)model->experts_per_token, (long long)(model->groups_chosen * size), (long long)model->groups_chosen,
            (long long)groups);
    return !sigmoid || model->auxiliary_loss == 0 ||
           error_set(error, ERROR_USAGE,
               "model.auxiliary_loss=%g averages probabilities, which model.router_scores=sigmoid does not compute: set "
               "model.auxiliary_loss=0; optimizer.balance_lr balances the experts",
               model->auxiliary_loss);
}

/* The second loss is a cross-entropy like the first. */
static bool check_prediction(const Config *config, Error *error) {
    bool paired = config->model.preference.loss != PREFERENCE_NONE, drawn = config->model.policy.loss;
    if (!config->model.mtp || !(config->lora.rank || paired || drawn)) return true;
    return error_set(error, ERROR_USAGE, "model.mtp=%lld does not work with %s: set model.mtp=0", (long long)config->model.mtp,
        config->lora.rank ? "lora.rank"
        : paired          ? "a loss over pairs"
                          : "reinforcement learning");
}

static bool check_model(ModelConfig *model, Error *error) {
    if (model->vocabulary == 0) model->vocabulary = CONFIG_BYTE_ROWS;
    if (model->head_dim == 0) {
        if (model->width % model->heads)
            return error_set(error, ERROR_USAGE,
                "model.width=%lld is not a multiple of model.heads=%lld: change one, or set model.head_dim", (long long)model->width,
                (long long)model->heads);
        model->head_dim = model->width / model->heads;
    }
    bool latent = family_has(family_of(model), "model.kv_lora_rank");
    if (latent && !model->rope_dim) model->rope_dim = model->head_dim / 2;
    if (latent && !model->value_dim) model->value_dim = model->head_dim;
    if (model->heads % model->kv_heads)
        return error_set(error, ERROR_USAGE, "model.heads=%lld is not a multiple of model.kv_heads=%lld", (long long)model->heads,
            (long long)model->kv_heads);
    if (model->window_period == 0) model->window_period = 1; /* as in a folder */
    if (model->window_first >= model->window_period)
        return error_set(error, ERROR_USAGE, "model.window_first=%lld must be less than model.window_period=%lld",
            (long long)model->window_first, (long long)model->window_period);
    if (model->padding >= model->vocabulary)
        return error_set(error, ERROR_USAGE, "model.padding=%lld must be less than model.vocabulary=%lld", (long long)model->padding,
            (long long)model->vocabulary);
    if (model->experts && model->experts_per_token > model->experts)
        return error_set(error, ERROR_USAGE, "model.experts_per_token=%lld must be at most model.experts=%lld",
            (long long)model->experts_per_token, (long long)model->experts);
    if (model->experts && model->experts_first >= model->layers)
        return error_set(error, ERROR_USAGE, "model.experts_first=%lld must be less than model.layers=%lld",
            (long long)model->experts_first, (long long)model->layers);
    if (model->experts && !check_router(model, error)) return false;
    if (model_mixes_layers(model) && !model->dense_ffn) model->dense_ffn = model->ffn;
    const FamilyRule *family = family_of(model);
    if (activation_rules[model_activation(model)].gated != activation_rules[family->activation].gated)
        return error_set(error, ERROR_USAGE, "model.activation=%s: the MLP of family %s %s, as %s does: give another function",
            activation_rules[model->activation].name, family->name,
            activation_rules[family->activation].gated ? "multiplies a gate by an up projection" : "has one matrix before the function",
            activation_rules[family->activation].name);
    if (!activation_rules[model_activation(model)].hf[0] && model_activation(model) != family->activation)
        return error_set(error, ERROR_USAGE, "model.activation=%s: family %s does not have this function: give another one",
            activation_rules[model->activation].name, family->name);
    return (!family->check || family->check(model, error)) && (!family_has(family, "model.rope_factor") || check_rotation(model, error));
}

/* Returns the multiple of `part` that is nearest to a number of tokens, at most `most`. */
static int64_t nearest_multiple(int64_t tokens, int64_t part, int64_t most) {
    int64_t nearest = (tokens + part / 2) / part * part;
    return int_max(int_min(nearest, most), part);
}

static bool check_batch(const Config *config, Error *error) {
    int64_t microbatch = config->batch.sequences * config->data.length;
    const struct {
        const char *name;
        int64_t tokens, most;
    } sizes[] = {{"batch.tokens", config->batch.tokens, (int64_t)MANY / microbatch * microbatch},
        {"batch.ramp_tokens", config->batch.ramp_tokens, config->batch.tokens}};
    for (int i = 0; i < 2; i++)
        if (sizes[i].tokens % microbatch)
            return error_set(error, ERROR_USAGE,
                "%s=%lld is not a multiple of the microbatch, batch.sequences=%lld x data.length=%lld = %lld tokens: set %s=%lld%s",
                sizes[i].name, (long long)sizes[i].tokens, (long long)config->batch.sequences, (long long)config->data.length,
                (long long)microbatch, sizes[i].name, (long long)nearest_multiple(sizes[i].tokens, microbatch, sizes[i].most),
                sizes[i].tokens % config->data.length ? "" : ", or reduce batch.sequences");
    if (config->batch.ramp_tokens > config->batch.tokens)
        return error_set(error, ERROR_USAGE, "batch.ramp_tokens=%lld must be at most batch.tokens=%lld",
            (long long)config->batch.ramp_tokens, (long long)config->batch.tokens);
    return true;
}

/* Sizes and offsets are computed in 64 bits. These limits, far above any machine, keep them in
 * range. */
static bool check_size(const Config *config, Error *error) {
    const double most_parameters = 1e14, most_elements = 1e14;
    const ModelConfig *model = &config->model;
    int64_t microbatch = config->batch.sequences * config->data.length;
    double heads = (double)(model->heads + 2 * model->kv_heads) * int_max(model->head_dim, model->value_dim),
           experts = model->experts ? model->experts + model->shared_experts : 1;
    double chosen = model->experts ? model->experts_per_token : 1;
    double latents = family_has(family_of(model), "model.kv_lora_rank") ? (double)(model->q_lora_rank + model->kv_lora_rank) : 0;
    double parameters =
        model->width * (model->layers * (2 * heads + 3 * experts * model->ffn + 3.0 * model->dense_ffn) + 2.0 * model->vocabulary) +
        model->layers * latents * (model->width + heads);
    double elements = microbatch * model->layers * (model->width + heads + chosen * model->ffn + model->dense_ffn);
    if (microbatch * chosen > INT32_MAX)
        return error_set(error, ERROR_USAGE,
            "the microbatch batch.sequences=%lld x data.length=%lld tokens x %.0f experts per token exceeds %d: reduce batch.sequences; "
            "batch.tokens can stay",
            (long long)config->batch.sequences, (long long)config->data.length, chosen, INT32_MAX);
    if (parameters > most_parameters)
        return error_set(error, ERROR_USAGE,
            "the model has about %.1e parameters; the limit is %.0e: reduce model.layers, width, ffn, heads or experts", parameters,
            most_parameters);
    if (elements > most_elements)
        return error_set(error, ERROR_USAGE,
            "the microbatch batch.sequences=%lld x data.length=%lld has about %.1e activations in this model; the limit is %.0e: reduce "
            "one of them",
            (long long)config->batch.sequences, (long long)config->data.length, elements, most_elements);
    return true;
}

static bool check_saves(const Config *config, Error *error) {
    const CheckpointConfig *checkpoint = &config->checkpoint;
    if (checkpoint->keep_every && (!checkpoint->every || checkpoint->keep_every % checkpoint->every))
        return error_set(error, ERROR_USAGE, "checkpoint.keep_every=%lld must be a multiple of checkpoint.every=%lld",
            (long long)checkpoint->keep_every, (long long)checkpoint->every);
    return true;
}

static int lengths_given(const Config *config) { return (config->steps > 0) + (config->tokens > 0) + (config->epochs > 0); }

bool config_settle_length(Config *config, const Config *base, Error *error) {
    if (!lengths_given(config)) {
        config->steps = base->steps;
        config->tokens = base->tokens;
        config->epochs = base->epochs;
        if (!config->batch.last) config->batch.last = base->batch.last;
    }
    if (lengths_given(config) > 1)
        return error_set(error, ERROR_USAGE, "more than one of steps, tokens and epochs is set: set exactly one, the length of the run");
    return true;
}

static void settle_steps(Config *config) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config initial;
    if (config->steps) return;
    options_defaults(&config_table, &initial, &strings);
    config->steps = initial.steps;
}

/* The message suggests a warmup of at most a tenth of the steps and a decay of at most a fifth. */
static bool check_schedule(const Config *config, Error *error) {
    long long steps = config->steps, warmup = config->schedule.warmup;
    long long decay = config->schedule.kind == SCHEDULE_WSD ? config->schedule.decay : 0;
    bool known = config->tokens == 0 && config->epochs <= 0;
    char cure[64] = "";
    if (!known || warmup + decay <= steps) return true;
    if (decay) snprintf(cure, sizeof cure, " schedule.decay=%lld", decay < steps / 5 ? decay : steps / 5);
    return error_set(error, ERROR_USAGE, "schedule.warmup=%lld + schedule.decay=%lld exceed steps=%lld: set schedule.warmup=%lld%s", warmup,
        decay, steps, warmup < steps / 10 ? warmup : steps / 10, cure);
}

bool config_needs_microbatch(const Config *config) { return config->model.experts > 0 && config->model.auxiliary_loss > 0; }

const Option *config_find(const char *name) { return options_find(&config_table, name, strlen(name)); }

bool config_has_uneven_rows(const Config *config) {
    enum { UNIT = 16 };
    return config->batch.sequences * config->data.length / int_max(config->layout.cp, 1) % UNIT;
}

void config_recipe_name(const Config *config, char name[16]) { options_format_value(config_find("fp8.recipe"), config, name, 16); }

static bool check_fp8(const Config *config, Error *error) {
    const Fp8Config *fp8 = &config->model.fp8;
    if (fp8->scaling == FP8_DELAYED && fp8->recipe != FP8_TENSOR && fp8->recipe != FP8_NONE)
        return error_set(error, ERROR_USAGE, "fp8.scaling=delayed needs per-tensor scales: set fp8.recipe=tensor, or fp8.scaling=dynamic");
    if (fp8->recipe == FP8_NONE || config->precision != PRECISION_FP64) return true;
    return error_set(error, ERROR_USAGE,
        "fp8.recipe does not work with precision=fp64, because FP8 GEMMs accumulate in fp32: set precision=bf16, pure_bf16 or fp32");
}

static bool check_lora(const Config *config, Error *error) {
    const LoraConfig *lora = &config->lora;
    if (!lora->rank) return true;
    if (lora->start[0] && lora->experts == LORA_SHARED)
        return error_set(
            error, ERROR_USAGE, "lora.start=%s needs lora.experts=each, because PEFT's adapters belong to single experts", lora->start);
    if (lora->base != LORA_BASE_SAME && (config->model.fp8.recipe != FP8_NONE || config->precision == PRECISION_FP64))
        return error_set(error, ERROR_USAGE, "lora.base=%s does not work with %s: remove one", lora->base == LORA_BASE_NF4 ? "nf4" : "fp8",
            config->precision == PRECISION_FP64 ? "precision=fp64" : "fp8.recipe");
    if (lora->tokens[0] && lora->modules_to_save[0])
        return error_set(error, ERROR_USAGE,
            "lora.tokens=%s (train single rows) does not work with lora.modules_to_save=%s (train whole tables): remove one", lora->tokens,
            lora->modules_to_save);
    if (lora->tokens[0] && config->model.fp8.recipe != FP8_NONE && config->model.fp8.head)
        return error_set(error, ERROR_USAGE,
            "lora.tokens=%s does not work with fp8.head=true, because it trains rows of the head: remove fp8.head", lora->tokens);
    return lora_check_list(lora, error);
}

/* Checks the settings that training on pairs of answers needs. */
static bool check_preference(const Config *config, Error *error) {
    int loss = config->model.preference.loss;
    if (loss == PREFERENCE_NONE) return true;
    if (config->data.packing != PACKING_BEST_FIT)
        return error_set(error, ERROR_USAGE, "preference.loss needs both answers of a pair in one sequence: set data.packing=best_fit");
    if (config->layout.cp > 1)
        return error_set(error, ERROR_USAGE, "preference.loss needs whole answers on one rank: set layout.cp=1 instead of %lld",
            (long long)config->layout.cp);
    return config->model.fp8.recipe == FP8_NONE ||
           error_set(error, ERROR_USAGE,
               "preference.loss does not work with fp8.recipe, because FP8 is too coarse for log-probability differences: remove one");
}

/* Each rank generates its own samples at its own pace, with the weights that are being trained. */
static bool check_policy_layout(const LayoutConfig *layout, Error *error) {
    const struct {
        const char *setting;
        int64_t value, most;
        const char *why;
    } limits[] = {
        {"layout.pp", layout->pp, 1, "each token would pass through all stages in turn, while the other stages wait"},
        {"layout.cp", layout->cp, 1, "a rank needs the caches of whole samples to generate"},
        {"layout.ep", layout->ep, 1, "ranks that share experts would have to draw each token together"},
        {"layout.zero", layout->zero, 2, "a rank would have to gather all weights for each token"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].value > limits[i].most)
            return error_set(error, ERROR_USAGE,
                "rl.loss does not work with %s=%lld, because %s: set it to %lld; layout.tp can divide the model", limits[i].setting,
                (long long)limits[i].value, limits[i].why, (long long)limits[i].most);
    return true;
}

/* Checks the settings of reinforcement learning. A step's tokens depend on its samples, so the tokens
 * of a step are those of one microbatch. */
static bool check_policy(const Config *config, Error *error) {
    const RlConfig *rl = &config->rl;
    if (!config->model.policy.loss) return true;
    const PolicyRule *rule = policy_rule(&config->model.policy);
    if (!config->init[0]) return error_set(error, ERROR_USAGE, "rl.loss=%s trains an existing model: set init=MODEL", rule->name);
    if (config->model.preference.loss != PREFERENCE_NONE)
        return error_set(error, ERROR_USAGE, "rl.loss and preference.loss are two ways to train: remove one");
    if (rule->objective == POLICY_CLIP && config->model.policy.dual > 0 &&
        config->model.policy.dual <= 1 + policy_high(&config->model.policy))
        return error_set(error, ERROR_USAGE,
            "rl.clip_dual=%g is not above 1 + rl.clip_high = %g, so it would bound positive advantages too: use a larger one, or 0 for "
            "none",
            config->model.policy.dual, 1 + policy_high(&config->model.policy));
    if (rl->prompts % rl->updates)
        return error_set(
            error, ERROR_USAGE, "rl.updates=%lld does not divide rl.prompts=%lld", (long long)rl->updates, (long long)rl->prompts);
    if (rule->advantage != ADVANTAGE_TEACHER && !rl->reward[0] && !rl->environment[0])
        return error_set(error, ERROR_USAGE, "rl.loss=%s needs rewards: set rl.reward (docs/rewards.md) or rl.environment", rule->name);
    if (rule->advantage == ADVANTAGE_TEACHER && !rl->reference[0])
        return error_set(error, ERROR_USAGE, "rl.loss=distill needs a teacher: set rl.reference=MODEL");
    int64_t compared = rule->advantage == ADVANTAGE_OF_BATCH ? rl->prompts * rl->samples : rl->samples;
    if (policy_compares(&config->model.policy) && compared < 2)
        return error_set(error, ERROR_USAGE, "rl.loss=%s compares the samples of a prompt: set rl.samples to at least 2", rule->name);
    int64_t steps = rl_rollout_steps(rl);
    if (config->steps % steps || config->stop_at % steps || config->checkpoint.every % steps || config->eval.every % steps)
        return error_set(error, ERROR_USAGE,
            "steps=%lld, stop_at=%lld, checkpoint.every=%lld and eval.every=%lld must be multiples of rl.updates x rl.epochs = %lld, "
            "because a rollout is not interrupted",
            (long long)config->steps, (long long)config->stop_at, (long long)config->checkpoint.every, (long long)config->eval.every,
            (long long)steps);
    if (config->tokens || config->epochs > 0)
        return error_set(error, ERROR_USAGE, "the tokens of rl.loss are not known in advance: set steps instead of tokens or epochs");
    if (config->lora.rank && !rl->reference[0] && config->model.policy.kl > 0 &&
        (config->lora.modules_to_save[0] || config->lora.tokens[0]))
        return error_set(error, ERROR_USAGE,
            "the adapters' base is the reference of rl.kl_coef, but lora.modules_to_save and lora.tokens change it: set rl.reference=%s",
            config->init);
    if (rule->advantage == ADVANTAGE_TEACHER && rl->kl == RL_KL_REWARD && config->model.policy.kl > 0)
        return error_set(
            error, ERROR_USAGE, "rl.kl=reward has no effect with rl.loss=distill, whose advantages are not of rewards: remove it");
    if (rl->overlong > rl->tokens)
        return error_set(error, ERROR_USAGE, "rl.overlong=%lld exceeds rl.tokens=%lld: set it to at most that", (long long)rl->overlong,
            (long long)rl->tokens);
    if (rl->tokens >= config->data.length)
        return error_set(error, ERROR_USAGE, "rl.tokens=%lld leaves no room for a prompt in data.length=%lld: increase data.length",
            (long long)rl->tokens, (long long)config->data.length);
    if (!config->data.document_mask)
        return error_set(error, ERROR_USAGE, "rl.loss packs samples into sequences: set data.document_mask=true");
    if (config->model.fp8.recipe != FP8_NONE)
        return error_set(error, ERROR_USAGE, "rl.loss does not work with fp8.recipe: samples and updates would round differently");
    return check_policy_layout(&config->layout, error);
}

/* Other policies keep more than a host link can copy in time. */
static bool check_offload(Config *config, Error *error) {
    static const char *const choices[] = {"none", "optimizer", "activations", "both"}, *const policies[] = {"none", "norm", "attention"};
    if (!config_offloads_saved(config)) return true;
    if (config->recompute == RECOMPUTE_AUTO) config->recompute = MOST_RECOMPUTATION;
    return config->recompute == MOST_RECOMPUTATION ||
           error_set(error, ERROR_USAGE,
               "offload=%s copies the inputs of recomputed layers, but recompute=%s keeps other activations too: set recompute=block, or "
               "offload=%s",
               choices[config->offload], policies[config->recompute], config_offloads_state(config) ? "optimizer" : "none");
}

bool config_check_started(Config *config, int64_t started, Error *error) {
    settle_steps(config);
    if (config->model.policy.loss) config->batch.tokens = config->batch.sequences * config->data.length;
    config->model.policy.values = policy_has_values(&config->model.policy);
    if (!check_saves(config, error)) return false;
    if (!check_model(&config->model, error) || !check_prediction(config, error) || !check_batch(config, error) ||
        !check_size(config, error))
        return false;
    if (config->model.context == 0) config->model.context = config->data.length;
    if (config->model.context < config->data.length)
        return error_set(error, ERROR_USAGE, "data.length=%lld exceeds model.context=%lld: set data.length=%lld, or increase model.context",
            (long long)config->data.length, (long long)config->model.context, (long long)config->model.context);
    if (config->data.packing == PACKING_BEST_FIT && !config->data.document_mask)
        return error_set(
            error, ERROR_USAGE, "data.packing=best_fit packs unrelated documents into one sequence: set data.document_mask=true");
    return check_offload(config, error) && check_images(config, error) && check_lora(config, error) && check_fp8(config, error) &&
           check_preference(config, error) && check_policy(config, error) && layout_check_early(config, started, error) &&
           check_schedule(config, error);
}

bool config_check(Config *config, Error *error) { return config_check_started(config, 0, error); }

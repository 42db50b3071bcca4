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
    STRING_OPTION(run, "runs/first", "", "run folder: checkpoints, metrics, report; a run that exists there is continued", FREE),
    STRING_OPTION(
        init, "", "", "run, checkpoint (RUN@STEP, RUN@best) or model folder whose model and weights a new run starts from", PATH, STATE),
    INT_OPTION(seed, "1", 0, MANY, "", "decides initial weights and data order, and nothing else"),
    INT_OPTION(steps, "1000", 1, MANY, "steps", "optimizer steps of the whole run", CHANGES),
    INT_OPTION(tokens, "0", 0, MANY, "tokens", "in place of steps: train on so many tokens; the last step takes what is left", ONCE),
    REAL_OPTION(epochs, "0", 0, 1e9, "", "in place of steps: read the training data so many times; the last step takes what is left", ONCE),
    INT_OPTION(stop_at, "0", 0, MANY, "steps", "write a checkpoint and stop after this step of the schedule; 0: run to the end", ONCE),
    STRING_OPTION(
        fork, "", "", "new run folder that goes on from a checkpoint of the run that is given first: smelt train RUN fork=NEW", ONCE),
    INT_OPTION(from, "0", 0, MANY, "step", "fork: the step of that checkpoint; 0: the newest", ONCE),
    CHOICE_OPTION(device, "auto", "auto|cpu|hip|cuda", "where to train", CHANGES),
    INT_OPTION(threads, "0", 0, 4096, "threads", "CPU threads; 0: all; results do not depend on it", FREE),
    CHOICE_OPTION(precision, "bf16", "bf16|fp32|fp64|pure_bf16",
        "type that is computed in; bf16 and fp32 update weights in fp32. pure_bf16 updates bf16 weights, rounding at random so that "
        "small updates are not lost: 8 bytes a parameter in place of 18",
        CHANGES, STATE),
    {"fp8.recipe", OPTION_CHOICE, FIELD(model.fp8.recipe), "none", 0, 0, "none|tensor|row|row_gw_hp|block|mxfp8", "",
        "GEMMs of linear layers and experts in 8-bit floats, scaled by the largest magnitude: of a tensor, of each row, of each row with "
        "weight gradients in bf16, of blocks of 128, or of 32 elements in a row (CPU, gfx950); embedding, router, norms, "
        "attention and, without fp8.head, the head stay as they are",
        CHANGES},
    {"fp8.scaling", OPTION_CHOICE, FIELD(model.fp8.scaling), "dynamic", 0, 0, "dynamic|delayed", "",
        "fp8.recipe=tensor: scales of the current numbers, for which a pass over each tensor comes before its cast, or of the largest "
        "magnitude of the steps before, which the cast finds for the next ones",
        CHANGES},
    {"fp8.amax_history_len", OPTION_INT, FIELD(model.fp8.amax_history_len), "1024", 1, 65536, NULL, "steps",
        "fp8.scaling=delayed: how many steps before", CHANGES},
    {"fp8.head", OPTION_BOOL, FIELD(model.fp8.head), "false", 0, 0, NULL, "",
        "the LM head with its loss too, in training and its evaluations: with a large vocabulary much of a small model's time. One scale "
        "a matrix, whatever the recipe",
        CHANGES},
    {"fp8.keep_weights", OPTION_BOOL, FIELD(model.fp8.keep_weights), "false", 0, 0, NULL, "",
        "cast weights once a step, not in each microbatch, and keep their codes, 2 bytes a parameter, where a step has several "
        "microbatches and weights are whole on each rank",
        FREE},
    {"fp8.min_size", OPTION_REAL, FIELD(model.fp8.min_size), "400", 0, 1e9, NULL, "",
        "layers whose 1 / (1 / in + 1 / out) is less, of experts 1 / (1 / in + 1 / out + 1 / rows of one), stay in bf16, since casting "
        "costs them more than the GEMM gains",
        CHANGES},
    BOOL_OPTION(exact_gemm, "false",
        "bf16 GEMM on the CPU with exact products, as on GPUs, even where scaled 16-bit integers are twice as fast: to compare runs",
        CHANGES),
    CHOICE_OPTION(recompute, "auto", "none|norm|attention|block|auto",
        "activations that the backward pass computes again to save memory: same bits, more time; auto: the least that fits into memory",
        FREE),
    CHOICE_OPTION(on_nan, "stop", "stop|skip", "after NaN or infinity: name the tensor and stop, or skip the update", CHANGES),
    CHOICE_OPTION(plan, "false", "false|true|program",
        "print a page on memory, speed and settings, with program also each operation, and exit before allocating", ONCE),
    {"layout", OPTION_CHOICE, FIELD(layout.choice), "given", 0, 0, "given|auto", "",
        "auto: choose layout.dp, tp, pp with its schedule, cp, ep and zero, batch.sequences and recompute by smelt forecast's model, and "
        "print why; axes that are not 1 stay, and batch.sequences with model.auxiliary_loss, which depends on it",
        ONCE},
    REAL_OPTION(hang, "1800", 0, 1e9, "seconds",
        "time without a finished step or evaluation batch after which a rank prints where it is stuck and exits; 0: never", FREE),
    INT_OPTION(profile, "0", 0, 1e6, "steps",
        "measure this many steps, print the time of each operation, longest first, and exit; 0: train", ONCE),
    STRING_OPTION(dump, "", "", "folder for inputs, logits, loss, weights and gradients of the first step; empty: none", ONCE),
    BOOL_OPTION(tensorboard, "true", "write TensorBoard event files into the run folder", FREE),

    STRING_OPTION(data.train, "", "",
        "training data: token shards (a prefix or a folder, also s3://BUCKET/PREFIX), a text file or folder, or MIXTURE.yaml, which mixes "
        "several in phases",
        PATH),
    STRING_OPTION(data.valid, "", "", "validation data, as data.train; empty: split off the training text", CHANGES, PATH),
    STRING_OPTION(
        data.cache, "", "", "folder in which data of s3:// is cached; runs may share it; empty: data/cache of the run", FREE, PATH),
    INT_OPTION(data.cache_mib, "4096", 64, 1 << 30, "MiB", "tokens in the cache at most, of which each rank fetches a 32nd ahead", FREE),
    REAL_OPTION(data.patience, "300", 1, 1e6, "seconds", "how long training waits for a store of s3:// that does not answer", FREE),
    REAL_OPTION(data.valid_fraction, "0.05", 0, 0.5, "", "fraction of each text that is split off when data.valid is empty"),
    STRING_OPTION(data.separator, "", "", "line that separates documents in text; empty: one document per file"),
    STRING_OPTION(data.tokenizer, "", "",
        "a tokenizer.json, tokenizer.model, tekken.json or .tiktoken file, or a folder with one; empty: that of the token shards or of "
        "init, else bytes; none: not known",
        PATH),
    BOOL_OPTION(
        data.special, "false", "special tokens spelled in text are matched; else they are ordinary text, so that no text ends a document"),
    CHOICE_OPTION(data.bos, "auto", "auto|true|false",
        "whether the tokenizer's bos_token begins each text, in training, evaluation and generation; auto: as the data begins, or as the "
        "tokenizer's own template says",
        FREE),
    INT_OPTION(data.length, "256", 1, 1 << 24, "tokens", "length of a training sequence"),
    CHOICE_OPTION(data.packing, "cut", "cut|best_fit",
        "how documents fill sequences: cut from one stream, or best fit, which cuts only those that are longer and pads the rest"),
    BOOL_OPTION(data.document_mask, "true", "attention, convolutions and positions start anew at every document"),

    CHOICE_OPTION(
        model.family, "llama", FAMILY_CHOICES, "architecture; llama includes Mistral, Mixtral, Qwen2 and Qwen3; flux makes images", STATE),
    INT_OPTION(model.layers, "4", 1, 10000, "layers", "blocks, each of attention and an MLP or experts", STATE),
    INT_OPTION(model.width, "256", 8, 1 << 20, "channels", "width of the residual stream", STATE),
    INT_OPTION(model.heads, "4", 1, 65536, "heads", "query heads", STATE),
    INT_OPTION(model.kv_heads, "2", 1, 65536, "heads", "key and value heads", STATE),
    INT_OPTION(model.head_dim, "0", 0, 1024, "channels", "width of a head; 0: model.width / model.heads", STATE),
    INT_OPTION(model.ffn, "512", 1, 1 << 24, "channels", "hidden width of the MLP or of each expert", STATE),
    INT_OPTION(model.vocabulary, "0", 0, 1 << 24, "tokens",
        "rows of the embedding; 0: the tokenizer's tokens, rounded up to a multiple of 64, which is fastest", STATE),
    INT_OPTION(model.context, "0", 0, 1 << 24, "tokens", "largest number of positions; 0: data.length"),
    INT_OPTION(model.window, "0", 0, 1 << 24, "tokens", "sliding attention window, the token itself included; 0: none"),
    INT_OPTION(model.window_period, "1", 1, 4096, "layers", "one layer of so many has the window, the others see all; 1: each has it"),
    INT_OPTION(model.window_first, "0", 0, 4095, "layer", "the first layer that has the window, below model.window_period"),
    REAL_OPTION(model.window_rope_theta, "0", 0, 1e12, "", "model.rope_theta of layers with the window; 0: the same"),
    INT_OPTION(model.experts, "0", 0, 512, "experts", "experts per layer; 0: one dense MLP", STATE),
    INT_OPTION(model.experts_per_token, "1", 1, 64, "experts", "experts chosen for each token"),
    INT_OPTION(model.router_width, "64", 1, 65536, "channels", "width of the routers", STATE),
    BOOL_OPTION(model.renormalise, "false", "scale the gates of a token's experts to sum to 1"),
    REAL_OPTION(model.auxiliary_loss, "0", 0, 100, "", "weight of the load-balancing loss"),
    CHOICE_OPTION(model.auxiliary_scope, "layer", "layer|model",
        "load-balancing loss: one for each layer, or one over the tokens of all layers (transformers); each microbatch has its own, and "
        "their mean counts"),
    REAL_OPTION(model.rope_theta, "10000", 1, 1e12, "", "base of the rotary embedding"),
    REAL_OPTION(model.rope_fraction, "1", 0, 1, "", "fraction of each head that is rotated"),
    CHOICE_OPTION(model.rope_scaling, "llama3", "llama3|linear|dynamic|yarn", "how model.rope_factor stretches positions (rope_type)"),
    REAL_OPTION(model.rope_factor, "1", 1, 1e6, "", "by how much positions are stretched; 1: not at all"),
    REAL_OPTION(model.rope_low_frequency, "1", 1e-6, 1e6, "", "low_freq_factor"),
    REAL_OPTION(model.rope_high_frequency, "4", 1e-6, 1e6, "", "high_freq_factor"),
    INT_OPTION(model.rope_original_context, "8192", 1, 1 << 24, "tokens", "context before scaling (original_max_position_embeddings)"),
    REAL_OPTION(model.rope_attention_factor, "1", 1e-6, 1e6, "", "YaRN: queries and keys are scaled by it (attention_factor)"),
    REAL_OPTION(model.rope_beta_fast, "32", 1e-6, 1e6, "turns", "frequencies of more turns in the first context stay (beta_fast)"),
    REAL_OPTION(model.rope_beta_slow, "1", 1e-6, 1e6, "turns", "frequencies of fewer turns are divided by the factor (beta_slow)"),
    BOOL_OPTION(model.rope_truncate, "true", "the bounds between the two are whole channels"),
    BOOL_OPTION(model.qkv_bias, "false", "biases of queries, keys and values (Qwen2)", STATE),
    CHOICE_OPTION(model.activation, "auto", activation_choices,
        "activation function of the MLP or of each expert, gated or not as the family's own, which auto is: SwiGLU (llama), GELU by tanh "
        "(gpt2)"),
    BOOL_OPTION(model.qk_norm, "false", "RMSNorm of each query and key head (Qwen3); mpt: qk_ln", STATE),
    REAL_OPTION(model.clip_qkv, "0", 0, 1e6, "", "bound to which queries, keys and values are clamped; 0: none"),
    REAL_OPTION(model.alibi_max, "8", 1e-3, 1000, "", "the smallest ALiBi slope is 2^-this (alibi_bias_max)"),
    REAL_OPTION(model.softmax_scale, "0", 0, 1e6, "", "scale of attention scores; 0: 1 / sqrt(head_dim)"),
    REAL_OPTION(model.norm_epsilon, "1e-5", 1e-12, 1, "", "added to the mean square or variance in norms"),
    REAL_OPTION(model.init_std, "0.02", 0, 10, "", "standard deviation of initial weights"),
    BOOL_OPTION(model.tied, "true", "the head uses the embedding's weights", STATE),
    INT_OPTION(model.single_layers, "0", 0, 10000, "layers", "how many of model.layers, the last ones, have one stream", STATE),
    INT_OPTION(model.channels, "64", 1, 65536, "channels", "of an image token, 2 x 2 latents (in_channels)", STATE),
    INT_OPTION(model.text_width, "4096", 1, 1 << 20, "channels", "of an encoded text token (joint_attention_dim)", STATE),
    INT_OPTION(model.pooled_width, "768", 1, 1 << 20, "channels", "of the pooled text (pooled_projection_dim)", STATE),
    INT_OPTION(model.text_tokens, "512", 1, 1 << 24, "tokens", "text tokens of a sample; data.length counts these and the image's"),
    INT_OPTION(model.rope_first, "16", 2, 1024, "channels",
        "channels of a head that the first of three coordinates turns; row and column share the rest (axes_dims_rope)"),
    BOOL_OPTION(model.guidance, "false", "embeds the guidance scale, as FLUX.1-dev does (guidance_embeds)", STATE),
    INT_OPTION(model.padding, "-1", -1, 1 << 24, "token", "token whose row of the embedding gets no gradient (pad_token_id); -1: none"),

    INT_OPTION(batch.tokens, "8192", 1, MANY, "tokens", "tokens per optimizer step, on all ranks together", CHANGES),
    INT_OPTION(batch.sequences, "16", 1, 1 << 24, "sequences",
        "sequences computed at once (a microbatch); a step adds up the gradients of several; fewer need less memory and round otherwise; "
        "with model.auxiliary_loss, which each microbatch has of its own, fewer are another loss too",
        CHANGES),
    INT_OPTION(batch.ramp_tokens, "0", 0, MANY, "tokens", "batch size ramp: tokens of the first step; 0: no ramp", CHANGES),
    INT_OPTION(batch.ramp_steps, "0", 0, MANY, "steps", "batch size ramp: steps in which it grows linearly to batch.tokens", CHANGES),
    INT_OPTION(batch.last, "0", 0, MANY, "tokens",
        "tokens of the last step; 0: as many as in any other. tokens= and epochs= set it to what is left for that step", CHANGES),

    REAL_OPTION(flow.mean, "0", -20, 20, "", "mean of the normal x of which a time of training, from image to noise, is 1 / (1 + exp(-x))",
        CHANGES),
    REAL_OPTION(flow.deviation, "1", 0, 20, "", "standard deviation of that normal", CHANGES),
    REAL_OPTION(
        flow.shift, "3", 1e-3, 1e3, "", "shifts times towards noise: t becomes shift t / (1 + (shift - 1) t); 1: not at all", CHANGES),
    REAL_OPTION(flow.guidance, "1", 0, 1e3, "", "the guidance scale that training tells the model", CHANGES),

    CHOICE_OPTION(optimizer.name, "adamw", OPTIMIZER_CHOICES,
        "adamw: steps of the first moment over the root of the second; muon: Newton-Schulz on each hidden projection by itself, AdamW on "
        "all other parameters; lion: steps of the sign of the momentum, at a third to a tenth of AdamW's rate; adamw_8bit: "
        "AdamW with moments of matrices in 8 bits (docs/finetune.md)",
        STATE),
    REAL_OPTION(optimizer.lr, "1e-3", 0, 100, "", "peak learning rate", CHANGES),
    REAL_OPTION(
        optimizer.beta1, "0.9", 0, 0.999999, "", "AdamW: decay of the first moment; Lion: of the momentum that gives the sign", CHANGES),
    REAL_OPTION(
        optimizer.beta2, "0.95", 0, 0.9999999, "", "AdamW: decay of the second moment; Lion: of the momentum that is kept", CHANGES),
    REAL_OPTION(optimizer.epsilon, "1e-8", 1e-30, 1, "", "AdamW: added to the root of the second moment", CHANGES),
    REAL_OPTION(optimizer.weight_decay, "0.1", 0, 100, "", "decoupled weight decay of matrices, embeddings and convolutions", CHANGES),
    BOOL_OPTION(optimizer.decay_vectors, "false", "weight decay of norms and biases too", CHANGES),
    REAL_OPTION(optimizer.clip, "1", 0, 1e9, "", "largest global gradient norm; 0: no clipping", CHANGES),
    REAL_OPTION(optimizer.momentum, "0.95", 0, 0.999999, "", "momentum of hidden matrices", CHANGES),
    INT_OPTION(optimizer.newton_schulz_steps, "5", 1, 20, "", "Newton-Schulz iterations of their updates", CHANGES),
    REAL_OPTION(optimizer.balance_lr, "1e-3", 0, 10, "",
        "learning rate of AdamW for the routers' load-balancing biases; 0: they stay as they are", CHANGES),
    BOOL_OPTION(optimizer.in_backward, "false",
        "update weights within the backward pass, so that no whole set of gradients takes memory: needs optimizer.clip=0 and one "
        "microbatch a step; same results as without",
        FREE),

    CHOICE_OPTION(
        schedule.kind, "cosine", "cosine|wsd|linear|constant", "learning rate after warmup; wsd: constant, then linear decay", CHANGES),
    INT_OPTION(schedule.warmup, "0", 0, MANY, "steps", "linear warmup", CHANGES),
    INT_OPTION(schedule.decay, "0", 0, MANY, "steps", "linear decay at the end", CHANGES),
    REAL_OPTION(schedule.minimum, "0.1", 0, 1, "", "last learning rate as a fraction of the peak", CHANGES),

    INT_OPTION(log.every, "0", 0, MANY, "steps",
        "steps between printed lines; 0: on a terminal at most one line a second, else each step; files have all steps", FREE),
    INT_OPTION(eval.every, "0", 0, MANY, "steps", "steps between evaluations; 0: only at the end", FREE),
    INT_OPTION(eval.sequences, "0", 0, MANY, "sequences", "sequences of an evaluation, the first of the validation data; 0: all", FREE),
    INT_OPTION(eval.patience, "0", 0, MANY, "evaluations",
        "stop after this many evaluations in a row without a lower validation loss; 0: never", FREE),
    INT_OPTION(eval.sample_tokens, "64", 0, 4096, "tokens",
        "length of the text that the model writes at each evaluation, at temperature 0.8; 0: none", FREE),
    STRING_OPTION(eval.prompt, "", "", "what that text goes on from; empty: the first 32 tokens of the validation data", FREE),
    INT_OPTION(checkpoint.every, "0", 0, MANY, "steps", "steps between checkpoints; 0: only at the end", FREE),
    INT_OPTION(checkpoint.keep, "2", 1, 1000000, "checkpoints", "newest checkpoints that are kept", FREE),
    INT_OPTION(checkpoint.keep_every, "0", 0, MANY, "steps", "checkpoints of multiples of it are kept for ever; 0: none", FREE),
    BOOL_OPTION(checkpoint.keep_best, "false",
        "save after each evaluation with the lowest validation loss so far, and keep that checkpoint: RUN@best", FREE),
    STRING_OPTION(checkpoint.store, "", "", "where checkpoints/ is: s3://BUCKET/PREFIX or a folder; empty: the run folder", FREE, PATH),
    BOOL_OPTION(checkpoint.async, "true", "train on while a copy in host memory is written; false: wait, without a copy", FREE),
    INT_OPTION(checkpoint.whole_every, "0", 0, MANY, "steps",
        "steps between full checkpoints; the others share files that did not change; 0: all are full", FREE),
    REAL_OPTION(checkpoint.timeout, "1800", 1, 1e6, "seconds", "time that rank 0 waits for the other ranks' shards of a checkpoint", FREE),

    INT_OPTION(lora.rank, "0", 0, 4096, "", "rank of LoRA adapters beside the frozen weights of init=FOLDER; 0: train all weights", STATE),
    REAL_OPTION(lora.alpha, "16", 1e-6, 1e6, "", "adapters are scaled by lora.alpha / lora.rank"),
    BOOL_OPTION(lora.rslora, "false", "scale them by lora.alpha / sqrt(lora.rank) instead (rsLoRA)"),
    STRING_OPTION(lora.targets, "all", "",
        "modules that get adapters, between commas: groups (attention, mlp, experts, router), names or ends of names (q_proj, "
        "layers.3.mlp.down_proj); all: all but routers",
        STATE),
    STRING_OPTION(lora.modules_to_save, "", "",
        "tables of tokens that are trained whole beside adapters, by PEFT's names between commas (embed_tokens, wte, lm_head)", STATE),
    STRING_OPTION(lora.tokens, "", "",
        "ids whose rows of the embedding and the head alone are trained beside adapters (PEFT's trainable_token_indices), in ascending "
        "order: 64000-64002,64010",
        STATE),
    CHOICE_OPTION(lora.base, "same", "same|nf4|fp8",
        "how frozen matrices of linear layers are held; nf4: in 4.13 bits (QLoRA), fp8: in 8, from which each GEMM's are made just before "
        "it"),
    STRING_OPTION(lora.start, "", "", "folder of PEFT's (adapter_config.json) with the adapters that a new run begins with", PATH),
    CHOICE_OPTION(
        lora.experts, "each", "each|shared", "adapters of experts: one for each of them, or one that all of a layer share", STATE),

    {"preference.loss", OPTION_CHOICE, FIELD(model.preference.loss), "none", 0, 0, "none|dpo|ipo", "",
        "loss over pairs of answers, one preferred to the other (smelt data pack format=preference), beside log-probabilities of the "
        "weights that the run begins with"},
    {"preference.beta", OPTION_REAL, FIELD(model.preference.beta), "0.1", 1e-6, 1e6, NULL, "",
        "how much a preference weighs against staying with these weights: rewards are beta times the gain in log-probability"},
    {"preference.label_smoothing", OPTION_REAL, FIELD(model.preference.label_smoothing), "0", 0, 0.5, NULL, "",
        "preference.loss=dpo: part of the preferences that are taken to be wrong (cDPO)"},

    INT_OPTION(layout.dp, "0", 0, 1 << 20, "ranks",
        "groups of ranks (processes with a GPU each) that divide a batch; 0: as many as the run's ranks come to", CHANGES),
    INT_OPTION(
        layout.tp, "1", 1, 1 << 20, "ranks", "ranks that divide every layer: heads, columns, vocabulary (tensor parallelism)", CHANGES),
    INT_OPTION(layout.pp, "1", 1, 1 << 20, "ranks", "ranks that divide the layers among them (pipeline parallelism)", CHANGES),
    CHOICE_OPTION(layout.pp_schedule, "1f1b", "1f1b|interleaved|zero-bubble",
        "order of a pipeline's work: interleaved has several chunks of layers on each rank, zero-bubble computes gradients of weights "
        "while it would wait",
        CHANGES),
    INT_OPTION(layout.pp_chunks, "0", 0, 1 << 10, "chunks",
        "chunks of layers on each rank of an interleaved pipeline, which divide its bubble; 0: 2 where it is interleaved", CHANGES),
    INT_OPTION(layout.cp, "1", 1, 1 << 20, "ranks", "ranks that divide every sequence (context parallelism)", CHANGES),
    CHOICE_OPTION(layout.cp_exchange, "gather", "gather|ring",
        "how keys and values of whole sequences come to the ranks of layout.cp: gathered, or round the ranks, one rank's at a time, which "
        "takes no more memory the longer a sequence is",
        CHANGES),
    INT_OPTION(layout.ep, "1", 1, 1 << 20, "ranks", "ranks that divide the experts, and a batch too (expert parallelism)", CHANGES),
    INT_OPTION(layout.zero, "1", 0, 3, "",
        "what ranks divide among them in place of whole copies: 1: optimizer state, 2: gradients too, 3: weights too (FSDP); 0: nothing",
        CHANGES),
    INT_OPTION(layout.shard, "0", 0, 1 << 20, "ranks",
        "ranks that share one copy of what ZeRO divides, such as a node's 8 (HSDP); 0: all ranks share one", CHANGES),
    REAL_OPTION(
        layout.bucket_mb, "0", 0, 1 << 20, "MiB", "size of a gradient bucket, reduced as one; 0: 256 on AMD GPUs, else 64", CHANGES),
    CHOICE_OPTION(layout.reduce, "auto", "auto|fp32|bf16",
        "type in which the gradients of matrices are reduced over ranks; auto: fp32, but with precision=pure_bf16 always bf16, and with "
        "fp64 always fp64; bf16 halves the traffic of fp32",
        CHANGES),

    STRING_OPTION(resume.accept, "", "",
        "differences to the newest checkpoint that are wanted: names of settings or groups, run, version, checkpoints", ONCE),
};

const OptionTable config_table = OPTION_TABLE(rows, .explain = needs_explain);

/* Models of images read encodings; the text of a sample is part of its data.length tokens. */
static bool check_images(const Config *config, Error *error) {
    if (!family_of(&config->model)->makes_images || config->data.length > config->model.text_tokens) return true;
    return error_set(error, ERROR_USAGE,
        "data.length=%lld: of these tokens model.text_tokens=%lld are text, and no image is left, which has H / 16 x W / 16",
        (long long)config->data.length, (long long)config->model.text_tokens);
}

static bool check_rotation(const ModelConfig *model, Error *error) {
    double rotated = model->rope_fraction * model->head_dim;
    if (rotated < 2 || rotated != (int64_t)rotated || (int64_t)rotated % 2)
        return error_set(error, ERROR_USAGE,
            "model.rope_fraction=%g of model.head_dim=%lld is %g channels, which must be an even number, at least 2", model->rope_fraction,
            (long long)model->head_dim, rotated);
    bool scaled = model->rope_factor > 1;
    if (scaled && model->rope_scaling == ROPE_LLAMA3 && model->rope_high_frequency <= model->rope_low_frequency)
        return error_set(error, ERROR_USAGE, "model.rope_high_frequency=%g must be above model.rope_low_frequency=%g",
            model->rope_high_frequency, model->rope_low_frequency);
    if (scaled && model->rope_scaling == ROPE_DYNAMIC && rotated == 2)
        return error_set(error, ERROR_USAGE, "model.rope_scaling=dynamic needs more than 2 rotated channels of a head");
    if (model->rope_scaling != ROPE_YARN && model->rope_attention_factor != 1)
        return error_set(error, ERROR_USAGE, "model.rope_attention_factor=%g is for model.rope_scaling=yarn", model->rope_attention_factor);
    return true;
}

static bool check_model(ModelConfig *model, Error *error) {
    if (model->vocabulary == 0) model->vocabulary = CONFIG_BYTE_ROWS;
    if (model->head_dim == 0) {
        if (model->width % model->heads)
            return error_set(error, ERROR_USAGE,
                "model.width=%lld is not divisible by model.heads=%lld: change one, or give model.head_dim", (long long)model->width,
                (long long)model->heads);
        model->head_dim = model->width / model->heads;
    }
    if (model->heads % model->kv_heads)
        return error_set(error, ERROR_USAGE, "model.heads=%lld is not a multiple of model.kv_heads=%lld", (long long)model->heads,
            (long long)model->kv_heads);
    if (model->window_period == 0) model->window_period = 1; /* as in a folder */
    if (model->window_first >= model->window_period)
        return error_set(error, ERROR_USAGE, "model.window_first=%lld and model.window_period=%lld: the first is below the second",
            (long long)model->window_first, (long long)model->window_period);
    if (model->padding >= model->vocabulary)
        return error_set(error, ERROR_USAGE, "model.padding=%lld is no token of model.vocabulary=%lld", (long long)model->padding,
            (long long)model->vocabulary);
    if (model->experts && model->experts_per_token > model->experts)
        return error_set(error, ERROR_USAGE, "model.experts_per_token=%lld is more than model.experts=%lld",
            (long long)model->experts_per_token, (long long)model->experts);
    const FamilyRule *family = family_of(model);
    if (activation_rules[model_activation(model)].gated != activation_rules[family->activation].gated)
        return error_set(error, ERROR_USAGE, "model.activation=%s: the MLP of family %s %s, as %s does: give another function",
            activation_rules[model->activation].name, family->name,
            activation_rules[family->activation].gated ? "multiplies a gate by an up projection" : "has one matrix before the function",
            activation_rules[family->activation].name);
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
                "%s=%lld is not a multiple of the microbatch of batch.sequences=%lld x data.length=%lld = %lld tokens: give %s=%lld%s",
                sizes[i].name, (long long)sizes[i].tokens, (long long)config->batch.sequences, (long long)config->data.length,
                (long long)microbatch, sizes[i].name, (long long)nearest_multiple(sizes[i].tokens, microbatch, sizes[i].most),
                sizes[i].tokens % config->data.length ? "" : ", or fewer batch.sequences");
    if (config->batch.ramp_tokens > config->batch.tokens)
        return error_set(error, ERROR_USAGE, "batch.ramp_tokens=%lld is above batch.tokens=%lld: a ramp grows",
            (long long)config->batch.ramp_tokens, (long long)config->batch.tokens);
    return true;
}

/* Sizes and offsets are computed in 64 bits. These limits, far above any machine, keep them in
 * range. */
static bool check_size(const Config *config, Error *error) {
    const double most_parameters = 1e14, most_elements = 1e14;
    const ModelConfig *model = &config->model;
    int64_t microbatch = config->batch.sequences * config->data.length;
    double heads = (double)(model->heads + 2 * model->kv_heads) * model->head_dim, experts = model->experts ? model->experts : 1;
    double chosen = model->experts ? model->experts_per_token : 1;
    double parameters = model->width * (model->layers * (2 * heads + 3 * experts * model->ffn) + 2.0 * model->vocabulary);
    double elements = microbatch * model->layers * (model->width + heads + chosen * model->ffn);
    if (microbatch * chosen > INT32_MAX)
        return error_set(error, ERROR_USAGE,
            "a microbatch of batch.sequences=%lld x data.length=%lld tokens x %.0f experts per token is more than %d: make "
            "it smaller, batch.tokens may stay",
            (long long)config->batch.sequences, (long long)config->data.length, chosen, INT32_MAX);
    if (parameters > most_parameters)
        return error_set(error, ERROR_USAGE,
            "the model has about %.1e parameters, at most %.0e are possible: make layers, width, ffn, heads or experts smaller", parameters,
            most_parameters);
    if (elements > most_elements)
        return error_set(error, ERROR_USAGE,
            "a microbatch of batch.sequences=%lld x data.length=%lld tokens has about %.1e activations in this model, at most "
            "%.0e are possible: make one of them smaller",
            (long long)config->batch.sequences, (long long)config->data.length, elements, most_elements);
    return true;
}

static bool check_saves(const Config *config, Error *error) {
    const CheckpointConfig *checkpoint = &config->checkpoint;
    if (checkpoint->keep_every && (!checkpoint->every || checkpoint->keep_every % checkpoint->every))
        return error_set(error, ERROR_USAGE,
            "checkpoint.keep_every=%lld is no multiple of checkpoint.every=%lld: no checkpoint, or not each of these, would be kept",
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
        return error_set(error, ERROR_USAGE, "more than one of steps, tokens and epochs is given: one decides the length of a run");
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
    return error_set(error, ERROR_USAGE, "schedule.warmup=%lld + schedule.decay=%lld are more than steps=%lld: give schedule.warmup=%lld%s",
        warmup, decay, steps, warmup < steps / 10 ? warmup : steps / 10, cure);
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
        return error_set(error, ERROR_USAGE,
            "fp8.scaling=delayed is for scales of whole tensors: give fp8.recipe=tensor with it, or fp8.scaling=dynamic");
    if (fp8->recipe == FP8_NONE || config->precision != PRECISION_FP64) return true;
    return error_set(error, ERROR_USAGE,
        "fp8.recipe: GEMMs of fp8 add up in fp32, which precision=fp64 cannot use: give precision=bf16, pure_bf16 or fp32");
}

static bool check_lora(const Config *config, Error *error) {
    const LoraConfig *lora = &config->lora;
    if (!lora->rank) return true;
    if (lora->start[0] && lora->experts == LORA_SHARED)
        return error_set(error, ERROR_USAGE, "lora.start=%s is for lora.experts=each, as PEFT has them", lora->start);
    if (lora->base != LORA_BASE_SAME && (config->model.fp8.recipe != FP8_NONE || config->precision == PRECISION_FP64))
        return error_set(error, ERROR_USAGE, "lora.base=%s is not for %s: leave one out", lora->base == LORA_BASE_NF4 ? "nf4" : "fp8",
            config->precision == PRECISION_FP64 ? "precision=fp64" : "fp8.recipe");
    if (lora->tokens[0] && lora->modules_to_save[0])
        return error_set(error, ERROR_USAGE,
            "lora.tokens=%s trains rows of the tables, and lora.modules_to_save=%s trains tables whole: leave one out", lora->tokens,
            lora->modules_to_save);
    if (lora->tokens[0] && config->model.fp8.recipe != FP8_NONE && config->model.fp8.head)
        return error_set(
            error, ERROR_USAGE, "lora.tokens=%s trains rows of the head, which fp8.head rounds: leave out fp8.head", lora->tokens);
    return lora_check_list(lora, error);
}

/* Checks the settings that training on pairs of answers needs. */
static bool check_preference(const Config *config, Error *error) {
    int loss = config->model.preference.loss;
    if (loss == PREFERENCE_NONE) return true;
    if (config->data.packing != PACKING_BEST_FIT)
        return error_set(error, ERROR_USAGE, "preference.loss keeps the answers of a pair in one sequence: give data.packing=best_fit");
    if (config->layout.cp > 1)
        return error_set(error, ERROR_USAGE, "preference.loss adds up whole answers on one rank: give layout.cp=1, not %lld",
            (long long)config->layout.cp);
    return config->model.fp8.recipe == FP8_NONE ||
           error_set(error, ERROR_USAGE,
               "preference.loss compares log-probabilities, which fp8 rounds too much: leave out fp8.recipe or preference.loss");
}

bool config_check_started(Config *config, int64_t started, Error *error) {
    settle_steps(config);
    if (!check_saves(config, error)) return false;
    if (!check_model(&config->model, error) || !check_batch(config, error) || !check_size(config, error)) return false;
    if (config->model.context == 0) config->model.context = config->data.length;
    if (config->model.context < config->data.length)
        return error_set(error, ERROR_USAGE,
            "data.length=%lld is above model.context=%lld: give data.length=%lld, or a longer model.context",
            (long long)config->data.length, (long long)config->model.context, (long long)config->model.context);
    if (config->data.packing == PACKING_BEST_FIT && !config->data.document_mask)
        return error_set(error, ERROR_USAGE,
            "data.packing=best_fit puts documents side by side that have nothing to do with each other: give data.document_mask=true");
    return check_images(config, error) && check_lora(config, error) && check_fp8(config, error) && check_preference(config, error) &&
           layout_check_early(config, started, error) && check_schedule(config, error);
}

bool config_check(Config *config, Error *error) { return config_check_started(config, 0, error); }

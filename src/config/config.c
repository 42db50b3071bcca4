/* The table of settings, and the checks that span several of them. */
#include "config/config.h"

#define FIELD(path) offsetof(Config, path)
#define MANY 1e15 /* "no limit" for counts: exact in a double */

static const Option rows[] = {
    {"run", OPTION_STRING, FIELD(run), "", 0, 0, NULL, "", "the run folder: log, checkpoints, report; an existing one is continued"},
    {"init", OPTION_STRING, FIELD(init), "", 0, 0, NULL, "", "a run or model folder: its model with its weights is where a new run starts"},
    {"seed", OPTION_INT, FIELD(seed), "1", 0, MANY, NULL, "", "decides initial weights and data order, and nothing else does"},
    {"steps", OPTION_INT, FIELD(steps), "1000", 1, MANY, NULL, "steps", "optimizer steps in all"},
    {"stop_at", OPTION_INT, FIELD(stop_at), "0", 0, MANY, NULL, "steps",
        "write a checkpoint and stop after this step of the schedule; 0: run to the end"},
    {"device", OPTION_CHOICE, FIELD(device), "auto", 0, 0, "auto|cpu|hip|cuda", "", "where to train"},
    {"threads", OPTION_INT, FIELD(threads), "0", 0, 4096, NULL, "threads", "CPU threads; 0 takes all; does not change the results"},
    {"precision", OPTION_CHOICE, FIELD(precision), "bf16", 0, 0, "bf16|fp32|fp64|pure_bf16", "",
        "type of matrices and activations; sums, and what is kept from step to step, are fp32 (fp64); pure_bf16 keeps that in bf16 too, "
        "without masters"},
    {"exact_gemm", OPTION_BOOL, FIELD(exact_gemm), "false", 0, 0, NULL, "",
        "multiply bf16 on the CPU exactly, as GPUs do, also where scaled 16-bit integers are twice as quick: to compare runs"},
    {"recompute", OPTION_CHOICE, FIELD(recompute), "none", 0, 0, "none|norm|attention|block", "",
        "activations computed again instead of kept: less memory, same bits"},
    {"on_nan", OPTION_CHOICE, FIELD(on_nan), "stop", 0, 0, "stop|skip", "",
        "on NaN or infinity: name the tensor and stop, or skip the update"},
    {"plan", OPTION_BOOL, FIELD(plan), "false", 0, 0, NULL, "", "print parameters, program and memory table, and stop before allocating"},
    {"hang", OPTION_REAL, FIELD(hang), "1800", 0, 1e9, NULL, "seconds",
        "without a finished step or batch of evaluation, after which a rank says where it is stuck and ends; 0: never"},
    {"profile", OPTION_INT, FIELD(profile), "0", 0, 1e6, NULL, "steps",
        "after this many steps print the time per operation, worst first, and stop"},
    {"dump", OPTION_STRING, FIELD(dump), "", 0, 0, NULL, "", "a folder for inputs, logits, loss, weights and gradients of the first step"},
    {"tensorboard", OPTION_BOOL, FIELD(tensorboard), "true", 0, 0, NULL, "", "write TensorBoard event files into the run folder"},

    {"model.family", OPTION_CHOICE, FIELD(model.family), "zaya", 0, 0, "zaya|llama|mpt|gpt2", "",
        "the architecture; llama is also Mistral, Mixtral, Qwen2 and Qwen3"},
    {"model.layers", OPTION_INT, FIELD(model.layers), "4", 1, 10000, NULL, "layers", "blocks of attention and MLP or experts"},
    {"model.width", OPTION_INT, FIELD(model.width), "256", 8, 1 << 20, NULL, "channels", "of the residual stream"},
    {"model.heads", OPTION_INT, FIELD(model.heads), "4", 1, 65536, NULL, "heads", "query heads"},
    {"model.kv_heads", OPTION_INT, FIELD(model.kv_heads), "2", 1, 65536, NULL, "heads", "key and value heads"},
    {"model.head_dim", OPTION_INT, FIELD(model.head_dim), "0", 0, 1024, NULL, "channels", "of one head; 0: width / heads"},
    {"model.ffn", OPTION_INT, FIELD(model.ffn), "512", 1, 1 << 24, NULL, "channels", "hidden width of the MLP or of each expert"},
    {"model.vocabulary", OPTION_INT, FIELD(model.vocabulary), "320", 2, 1 << 24, NULL, "tokens",
        "rows of the embedding; a multiple of 64 is fast"},
    {"model.context", OPTION_INT, FIELD(model.context), "0", 0, 1 << 24, NULL, "tokens", "most positions; 0: data.length"},
    {"model.window", OPTION_INT, FIELD(model.window), "0", 0, 1 << 24, NULL, "tokens",
        "sliding attention window, the token itself included; 0: none"},
    {"model.experts", OPTION_INT, FIELD(model.experts), "0", 0, 512, NULL, "experts", "per layer; 0: one dense MLP (llama only)"},
    {"model.experts_per_token", OPTION_INT, FIELD(model.experts_per_token), "1", 1, 64, NULL, "experts", "chosen for each token"},
    {"model.router_width", OPTION_INT, FIELD(model.router_width), "64", 1, 65536, NULL, "channels", "of zaya's router states"},
    {"model.renormalise", OPTION_BOOL, FIELD(model.renormalise), "false", 0, 0, NULL, "", "make the gates of a token's experts sum to 1"},
    {"model.auxiliary_loss", OPTION_REAL, FIELD(model.auxiliary_loss), "0", 0, 100, NULL, "", "weight of the load-balancing loss"},
    {"model.rope_theta", OPTION_REAL, FIELD(model.rope_theta), "10000", 1, 1e12, NULL, "", "base of the rotary embedding"},
    {"model.rope_fraction", OPTION_REAL, FIELD(model.rope_fraction), "1", 0, 1, NULL, "", "part of each head that is rotated"},
    {"model.rope_factor", OPTION_REAL, FIELD(model.rope_factor), "1", 1, 1e6, NULL, "", "Llama-3 scaling of low frequencies; 1: none"},
    {"model.rope_low_frequency", OPTION_REAL, FIELD(model.rope_low_frequency), "1", 1e-6, 1e6, NULL, "",
        "Llama-3 scaling: low_freq_factor"},
    {"model.rope_high_frequency", OPTION_REAL, FIELD(model.rope_high_frequency), "4", 1e-6, 1e6, NULL, "",
        "Llama-3 scaling: high_freq_factor"},
    {"model.rope_original_context", OPTION_INT, FIELD(model.rope_original_context), "8192", 1, 1 << 24, NULL, "tokens",
        "Llama-3 scaling: context before it"},
    {"model.qkv_bias", OPTION_BOOL, FIELD(model.qkv_bias), "false", 0, 0, NULL, "", "llama: biases of queries, keys and values (Qwen2)"},
    {"model.qk_norm", OPTION_BOOL, FIELD(model.qk_norm), "false", 0, 0, NULL, "",
        "llama: RMSNorm of each query and key head (Qwen3); mpt: qk_ln"},
    {"model.clip_qkv", OPTION_REAL, FIELD(model.clip_qkv), "0", 0, 1e6, NULL, "",
        "mpt: queries, keys and values are cut to this; 0: they are not"},
    {"model.alibi_max", OPTION_REAL, FIELD(model.alibi_max), "8", 1e-3, 1000, NULL, "",
        "mpt: ALiBi slopes go down to 2^-this (alibi_bias_max)"},
    {"model.softmax_scale", OPTION_REAL, FIELD(model.softmax_scale), "0", 0, 1e6, NULL, "",
        "mpt: of attention scores; 0: 1 / sqrt(head_dim)"},
    {"model.norm_epsilon", OPTION_REAL, FIELD(model.norm_epsilon), "1e-5", 1e-12, 1, NULL, "",
        "added to the mean square or variance in norms"},
    {"model.init_std", OPTION_REAL, FIELD(model.init_std), "0.02", 0, 10, NULL, "", "standard deviation of initial weights"},
    {"model.tied", OPTION_BOOL, FIELD(model.tied), "true", 0, 0, NULL, "", "the head shares the embedding's weights"},

    {"lora.rank", OPTION_INT, FIELD(lora.rank), "0", 0, 4096, NULL, "",
        "train adapters of this rank beside the frozen weights of init=FOLDER (LoRA); 0: train all weights"},
    {"lora.alpha", OPTION_REAL, FIELD(lora.alpha), "16", 1e-6, 1e6, NULL, "", "adapters are scaled by alpha / rank"},
    {"lora.targets", OPTION_CHOICE, FIELD(lora.targets), "all", 0, 0, "attention|mlp|all", "",
        "linear layers with adapters; experts and routers have none"},

    {"data.train", OPTION_STRING, FIELD(data.train), "", 0, 0, NULL, "", "a token shard's prefix, or a text file or folder"},
    {"data.valid", OPTION_STRING, FIELD(data.valid), "", 0, 0, NULL, "", "likewise for evaluation; empty: split off the training text"},
    {"data.valid_fraction", OPTION_REAL, FIELD(data.valid_fraction), "0.05", 0, 0.5, NULL, "",
        "of each text that is held out when data.valid is empty"},
    {"data.separator", OPTION_STRING, FIELD(data.separator), "", 0, 0, NULL, "",
        "a line that separates documents in text; empty: one document per file"},
    {"data.tokenizer", OPTION_STRING, FIELD(data.tokenizer), "", 0, 0, NULL, "",
        "of text: a tokenizer.json, a folder with one, or a .tiktoken file; empty: bytes"},
    {"data.length", OPTION_INT, FIELD(data.length), "256", 1, 1 << 24, NULL, "tokens", "of a training sequence"},
    {"data.document_mask", OPTION_BOOL, FIELD(data.document_mask), "true", 0, 0, NULL, "",
        "attention, convolution and positions stop at document starts"},

    {"batch.tokens", OPTION_INT, FIELD(batch.tokens), "8192", 1, MANY, NULL, "tokens", "per optimizer step"},
    {"batch.sequences", OPTION_INT, FIELD(batch.sequences), "16", 1, 1 << 24, NULL, "sequences", "of a microbatch, the unit of memory"},
    {"batch.ramp_tokens", OPTION_INT, FIELD(batch.ramp_tokens), "0", 0, MANY, NULL, "tokens",
        "per step at the start of a batch size ramp; 0: no ramp"},
    {"batch.ramp_steps", OPTION_INT, FIELD(batch.ramp_steps), "0", 0, MANY, NULL, "steps", "until batch.tokens is reached, linearly"},

    {"optimizer.name", OPTION_CHOICE, FIELD(optimizer.name), "adamw", 0, 0, "adamw|muon", "",
        "muon: Newton-Schulz on hidden matrices, AdamW on the rest"},
    {"optimizer.lr", OPTION_REAL, FIELD(optimizer.lr), "1e-3", 0, 100, NULL, "", "peak learning rate"},
    {"optimizer.beta1", OPTION_REAL, FIELD(optimizer.beta1), "0.9", 0, 0.999999, NULL, "", "AdamW"},
    {"optimizer.beta2", OPTION_REAL, FIELD(optimizer.beta2), "0.95", 0, 0.9999999, NULL, "", "AdamW"},
    {"optimizer.epsilon", OPTION_REAL, FIELD(optimizer.epsilon), "1e-8", 1e-30, 1, NULL, "", "AdamW"},
    {"optimizer.weight_decay", OPTION_REAL, FIELD(optimizer.weight_decay), "0.1", 0, 100, NULL, "",
        "decoupled, on matrices, embeddings and convolutions"},
    {"optimizer.decay_vectors", OPTION_BOOL, FIELD(optimizer.decay_vectors), "false", 0, 0, NULL, "", "decay norms and biases too"},
    {"optimizer.clip", OPTION_REAL, FIELD(optimizer.clip), "1", 0, 1e9, NULL, "", "largest global gradient norm; 0: no clipping"},
    {"optimizer.momentum", OPTION_REAL, FIELD(optimizer.momentum), "0.95", 0, 0.999999, NULL, "", "Muon"},
    {"optimizer.newton_schulz_steps", OPTION_INT, FIELD(optimizer.newton_schulz_steps), "5", 1, 20, NULL, "", "Muon"},
    {"optimizer.balance_lr", OPTION_REAL, FIELD(optimizer.balance_lr), "1e-3", 0, 10, NULL, "",
        "AdamW of the routers' balancing biases; 0: they stay"},

    {"schedule.kind", OPTION_CHOICE, FIELD(schedule.kind), "cosine", 0, 0, "cosine|wsd|linear|constant", "",
        "learning rate after the warmup"},
    {"schedule.warmup", OPTION_INT, FIELD(schedule.warmup), "0", 0, MANY, NULL, "steps", "of linear warmup"},
    {"schedule.decay", OPTION_INT, FIELD(schedule.decay), "0", 0, MANY, NULL, "steps", "wsd: of linear decay at the end"},
    {"schedule.minimum", OPTION_REAL, FIELD(schedule.minimum), "0.1", 0, 1, NULL, "", "last learning rate as a part of the peak"},

    {"layout.dp", OPTION_INT, FIELD(layout.dp), "0", 0, 1 << 20, NULL, "ranks", "that share each batch; 0: all that were started"},
    {"layout.zero", OPTION_INT, FIELD(layout.zero), "1", 0, 3, NULL, "",
        "ranks share out 1: optimizer state, 2: gradients too, 3: weights too; 0: nothing"},
    {"layout.shard", OPTION_INT, FIELD(layout.shard), "0", 0, 1 << 20, NULL, "ranks",
        "that share these out, such as those of a node; other groups hold copies; 0: all"},
    {"layout.bucket_mb", OPTION_REAL, FIELD(layout.bucket_mb), "0", 0, 1 << 20, NULL, "MiB",
        "of gradients that travel at once; 0: 256 on AMD GPUs, else 64"},
    {"layout.reduce", OPTION_CHOICE, FIELD(layout.reduce), "fp32", 0, 0, "fp32|bf16", "",
        "in which matrices' gradients travel and are summed over ranks; bf16 halves the traffic; pure_bf16 knows no other, fp64 keeps its "
        "own"},

    {"eval.every", OPTION_INT, FIELD(eval_every), "0", 0, MANY, NULL, "steps", "between evaluations; 0: only at the end"},
    {"eval.batches", OPTION_INT, FIELD(eval_batches), "0", 0, MANY, NULL, "microbatches", "of an evaluation; 0: the whole validation part"},
    {"checkpoint.every", OPTION_INT, FIELD(checkpoint_every), "0", 0, MANY, NULL, "steps", "between checkpoints; 0: only at the end"},
    {"checkpoint.keep", OPTION_INT, FIELD(checkpoint_keep), "2", 1, 1000000, NULL, "checkpoints", "newest ones that stay"},
    {"checkpoint.store", OPTION_STRING, FIELD(checkpoint_store), "", 0, 0, NULL, "",
        "where checkpoints/ lies: s3://BUCKET/PREFIX or a folder; the run folder unless given"},
    {"checkpoint.async", OPTION_BOOL, FIELD(checkpoint_async), "true", 0, 0, NULL, "",
        "train on while a copy in host memory is written; false: wait, without a copy"},
    {"checkpoint.whole_every", OPTION_INT, FIELD(checkpoint_whole_every), "0", 0, MANY, NULL, "steps",
        "between whole ones; others share files that did not change; 0: all are whole"},
    {"checkpoint.timeout", OPTION_REAL, FIELD(checkpoint_timeout), "1800", 1, 1e6, NULL, "seconds",
        "that rank 0 waits for the other ranks' parts of a checkpoint"},
};

const OptionTable config_table = {rows, sizeof rows / sizeof *rows};

/* Settings that only some families have. */
static bool check_family(const ModelConfig *model, Error *error) {
    static const char *const names[] = {"zaya", "llama", "mpt", "gpt2"};
    enum { ZAYA = 1 << FAMILY_ZAYA, LLAMA = 1 << FAMILY_LLAMA, MPT = 1 << FAMILY_MPT, GPT2 = 1 << FAMILY_GPT2 };
    const struct {
        const char *setting;
        bool used;
        int families;
    } settings[] = {
        {"model.experts", model->experts > 0, ZAYA | LLAMA},
        {"model.qkv_bias", model->qkv_bias, LLAMA},
        {"model.qk_norm", model->qk_norm, LLAMA | MPT},
        {"model.clip_qkv", model->clip_qkv > 0, MPT},
        {"model.softmax_scale", model->softmax_scale > 0, MPT},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (settings[i].used && !(settings[i].families >> model->family & 1))
            return error_set(error, ERROR_USAGE, "family %s has no %s: leave it out, or choose another model.family", names[model->family],
                settings[i].setting);
    if ((1 << model->family & (MPT | GPT2)) && model->heads * model->head_dim != model->width)
        return error_set(error, ERROR_USAGE,
            "model.heads=%lld x model.head_dim=%lld is not model.width=%lld, as family %s has it: leave model.head_dim out",
            (long long)model->heads, (long long)model->head_dim, (long long)model->width, names[model->family]);
    if (model->family == FAMILY_GPT2 && model->kv_heads != model->heads)
        return error_set(error, ERROR_USAGE,
            "model.kv_heads=%lld: family gpt2 has as many key heads as query heads, give model.kv_heads=%lld", (long long)model->kv_heads,
            (long long)model->heads);
    return true;
}

static bool check_rotation(const ModelConfig *model, Error *error) {
    double rotated = model->rope_fraction * model->head_dim;
    if (rotated < 2 || rotated != (int64_t)rotated || (int64_t)rotated % 2)
        return error_set(error, ERROR_USAGE,
            "model.rope_fraction=%g of model.head_dim=%lld is %g channels, which must be an even number, at least 2", model->rope_fraction,
            (long long)model->head_dim, rotated);
    if (model->rope_factor > 1 && model->rope_high_frequency <= model->rope_low_frequency)
        return error_set(error, ERROR_USAGE, "model.rope_high_frequency=%g must be above model.rope_low_frequency=%g",
            model->rope_high_frequency, model->rope_low_frequency);
    return true;
}

static bool check_model(ModelConfig *model, Error *error) {
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
    if (model->family == FAMILY_ZAYA && model->experts == 0)
        return error_set(error, ERROR_USAGE, "model.experts=0: family zaya is a mixture of experts, give at least 1");
    if (model->family == FAMILY_ZAYA && model->experts == 512)
        return error_set(error, ERROR_USAGE, "model.experts=512: family zaya has at most 511, one class of its routers is to skip them");
    if (model->family == FAMILY_ZAYA && model->kv_heads * model->head_dim % 2)
        return error_set(error, ERROR_USAGE,
            "model.kv_heads * model.head_dim = %lld must be even: half of the values are of the token before",
            (long long)(model->kv_heads * model->head_dim));
    if (model->experts && model->experts_per_token > model->experts)
        return error_set(error, ERROR_USAGE, "model.experts_per_token=%lld is more than model.experts=%lld",
            (long long)model->experts_per_token, (long long)model->experts);
    bool rotates = model->family == FAMILY_ZAYA || model->family == FAMILY_LLAMA;
    return check_family(model, error) && (!rotates || check_rotation(model, error));
}

static bool check_batch(const Config *config, Error *error) {
    int64_t microbatch = config->batch.sequences * config->data.length;
    const struct {
        const char *name;
        int64_t tokens;
    } sizes[] = {{"batch.tokens", config->batch.tokens}, {"batch.ramp_tokens", config->batch.ramp_tokens}};
    for (int i = 0; i < 2; i++)
        if (sizes[i].tokens % microbatch)
            return error_set(error, ERROR_USAGE,
                "%s=%lld is not a multiple of the microbatch of batch.sequences=%lld x data.length=%lld = %lld tokens", sizes[i].name,
                (long long)sizes[i].tokens, (long long)config->batch.sequences, (long long)config->data.length, (long long)microbatch);
    if (config->batch.ramp_tokens > config->batch.tokens)
        return error_set(error, ERROR_USAGE, "batch.ramp_tokens=%lld is above batch.tokens=%lld: a ramp grows",
            (long long)config->batch.ramp_tokens, (long long)config->batch.tokens);
    return true;
}

/* Sizes and offsets are computed in 64 bits. These limits, far above any machine, keep all of them in range. */
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

bool config_check(Config *config, Error *error) {
    if (!check_model(&config->model, error) || !check_batch(config, error) || !check_size(config, error)) return false;
    if (config->model.context == 0) config->model.context = config->data.length;
    if (config->model.context < config->data.length)
        return error_set(error, ERROR_USAGE, "data.length=%lld is above model.context=%lld", (long long)config->data.length,
            (long long)config->model.context);
    if (config->lora.rank && config->lora.targets == LORA_MLP && config->model.experts)
        return error_set(
            error, ERROR_USAGE, "lora.targets=mlp has no layer to adapt in a model with experts, which get no adapters: give attention");
    if (config->schedule.warmup + config->schedule.decay > config->steps)
        return error_set(error, ERROR_USAGE, "schedule.warmup=%lld + schedule.decay=%lld are more than steps=%lld",
            (long long)config->schedule.warmup, (long long)config->schedule.decay, (long long)config->steps);
    return true;
}

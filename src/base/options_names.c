/* The names of settings: which row a name means, and which one was probably meant if there is none.
 * Called with names from users, with any bytes. */
#include <assert.h>
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/math.h"
#include "base/options.h"
#include "base/options_internal.h"

/* -- Names of other programs --------------------------------------------------------------------------------------- */

/* If a name means two settings, the row that the table has is suggested. */
const OtherName options_other_names[] = {{"output_dir", "run"}, {"out_dir", "run"}, {"run_name", "run"}, {"model_name_or_path", "init"},
    {"base_model", "init"}, {"model", "init"}, {"pretrained_model_name_or_path", "init"}, {"resume_from_checkpoint", "run"},
    {"max_steps", "steps"}, {"max_iters", "steps"}, {"train_iters", "steps"}, {"num_steps", "steps"}, {"num_train_epochs", "epochs"},
    {"num_epochs", "epochs"}, {"max_epochs", "epochs"}, {"max_duration", "steps"}, {"resume", "run"}, {"resume_from", "run"},
    {"autoresume", "run"}, {"save_folder", "run"}, {"load_path", "init"}, {"init_from", "init"}, {"random_seed", "seed"},
    {"dtype", "precision"}, {"torch_dtype", "precision"}, {"bf16", "precision"}, {"fp16", "precision"}, {"fp8", "fp8.recipe"},
    {"fp8_recipe", "fp8.recipe"}, {"fp8_format", "fp8.recipe"}, {"fp8_hybrid", "fp8.recipe"}, {"enable_fp8", "fp8.recipe"},
    {"float8", "fp8.recipe"}, {"float8_recipe", "fp8.recipe"}, {"fp8_amax_history_len", "fp8.amax_history_len"},
    {"amax_history_len", "fp8.amax_history_len"}, {"amax_history_length", "fp8.amax_history_len"}, {"mixed_precision", "precision"},
    {"gradient_checkpointing", "recompute"}, {"activation_checkpointing", "recompute"}, {"activation_checkpoint", "recompute"},
    {"num_threads", "threads"}, {"dry_run", "plan"},

    {"dataset", "data.train"}, {"datasets", "data.train"}, {"train_loader", "data.train"}, {"eval_loader", "data.valid"},
    {"test_datasets", "data.valid"}, {"val_set_size", "data.valid_fraction"}, {"dataset_path", "data.train"}, {"data_path", "data.train"},
    {"train_file", "data.train"}, {"train_data", "data.train"}, {"data", "data.train"}, {"eval_dataset", "data.valid"},
    {"validation_file", "data.valid"}, {"valid_data", "data.valid"}, {"tokenizer_path", "data.tokenizer"},
    {"tokenizer_name", "data.tokenizer"}, {"tokenizer_model", "data.tokenizer"}, {"block_size", "data.length"}, {"seq_len", "data.length"},
    {"seq_length", "data.length"}, {"sequence_len", "data.length"}, {"sequence_length", "data.length"}, {"max_seq_length", "data.length"},
    {"max_seq_len", "data.length"}, {"max_length", "data.length"}, {"context_length", "data.length"}, {"cutoff_len", "data.length"},

    {"logit_mean", "flow.mean"}, {"logit_std", "flow.deviation"}, {"discrete_flow_shift", "flow.shift"}, {"flow_shift", "flow.shift"},
    {"guidance_scale", "flow.guidance"}, {"caption_dropout_rate", "flow.caption_dropout"},

    {"model_type", "model.family"}, {"architecture", "model.family"}, {"n_layer", "model.layers"}, {"n_layers", "model.layers"},
    {"num_layers", "model.layers"}, {"num_hidden_layers", "model.layers"}, {"depth", "model.layers"}, {"hidden_size", "model.width"},
    {"hidden_dim", "model.width"}, {"n_embd", "model.width"}, {"d_model", "model.width"}, {"embed_dim", "model.width"},
    {"dim", "model.width"}, {"n_head", "model.heads"}, {"n_heads", "model.heads"}, {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"}, {"n_kv_heads", "model.kv_heads"}, {"num_kv_heads", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"}, {"num_query_groups", "model.kv_heads"}, {"d_head", "model.head_dim"},
    {"kv_channels", "model.head_dim"}, {"intermediate_size", "model.ffn"}, {"ffn_hidden_size", "model.ffn"},
    {"decoder_sparse_step", "model.experts_period"}, {"moe_layer_freq", "model.experts_period"},
    {"first_k_dense_replace", "model.experts_first"}, {"moe_intermediate_size", "model.ffn"}, {"ffn_dim", "model.ffn"},
    {"d_ff", "model.ffn"}, {"n_inner", "model.ffn"}, {"vocab_size", "model.vocabulary"}, {"n_vocab", "model.vocabulary"},
    {"n_ctx", "model.context"}, {"n_positions", "model.context"}, {"max_position_embeddings", "model.context"},
    {"sliding_window", "model.window"}, {"n_experts", "model.experts"}, {"num_experts", "model.experts"},
    {"num_local_experts", "model.experts"}, {"n_routed_experts", "model.experts"}, {"num_experts_per_tok", "model.experts_per_token"},
    {"moe_router_topk", "model.experts_per_token"}, {"norm_topk_prob", "model.renormalise"},
    {"router_aux_loss_coef", "model.auxiliary_loss"}, {"moe_aux_loss_coeff", "model.auxiliary_loss"}, {"rotary_base", "model.rope_theta"},
    {"partial_rotary_factor", "model.rope_fraction"}, {"rotary_percent", "model.rope_fraction"}, {"attention_bias", "model.qkv_bias"},
    {"rms_norm_eps", "model.norm_epsilon"}, {"layer_norm_eps", "model.norm_epsilon"}, {"layer_norm_epsilon", "model.norm_epsilon"},
    {"norm_eps", "model.norm_epsilon"}, {"initializer_range", "model.init_std"}, {"init_method_std", "model.init_std"},
    {"tie_word_embeddings", "model.tied"}, {"pad_token_id", "model.padding"},

    {"batch_size", "batch.tokens"}, {"global_batch_size", "batch.tokens"}, {"train_batch_size", "batch.tokens"},
    {"total_batch_size", "batch.tokens"}, {"gradient_accumulation_steps", "batch.tokens"}, {"grad_accum", "batch.tokens"},
    {"gradient_accumulation", "batch.tokens"}, {"global_train_batch_size", "batch.tokens"},
    {"device_train_microbatch_size", "batch.sequences"}, {"per_device_eval_batch_size", "batch.sequences"},
    {"micro_batch_size", "batch.sequences"}, {"local_batch_size", "batch.sequences"}, {"device_batch_size", "batch.sequences"},
    {"per_device_train_batch_size", "batch.sequences"},

    {"optim", "optimizer.name"}, {"optimizer", "optimizer.name"}, {"schedule", "schedule.kind"}, {"scheduler", "schedule.kind"},
    {"learning_rate", "optimizer.lr"}, {"max_lr", "optimizer.lr"}, {"base_lr", "optimizer.lr"}, {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"}, {"adam_epsilon", "optimizer.epsilon"}, {"adam_eps", "optimizer.epsilon"},
    {"eps", "optimizer.epsilon"}, {"wd", "optimizer.weight_decay"}, {"max_grad_norm", "optimizer.clip"}, {"grad_clip", "optimizer.clip"},
    {"clip_grad", "optimizer.clip"}, {"max_norm", "optimizer.clip"}, {"gradient_clipping", "optimizer.clip"},
    {"gradient_clip_val", "optimizer.clip"}, {"optimizer_in_bwd", "optimizer.in_backward"}, {"cpu_offload", "offload"},
    {"offload_optimizer", "offload"}, {"optimizer_cpu_offload", "offload"}, {"lr_scheduler", "schedule.kind"},
    {"lr_scheduler_type", "schedule.kind"}, {"lr_decay_style", "schedule.kind"}, {"warmup_steps", "schedule.warmup"},
    {"warmup_iters", "schedule.warmup"}, {"lr_warmup_steps", "schedule.warmup"}, {"warmup_ratio", "schedule.warmup"},
    {"decay_steps", "schedule.decay"}, {"lr_decay_iters", "schedule.decay"}, {"min_lr", "schedule.minimum"},
    {"min_lr_ratio", "schedule.minimum"}, {"decay_lr", "schedule.kind"},

    {"lora_r", "lora.rank"}, {"lora_rank", "lora.rank"}, {"lora_alpha", "lora.alpha"}, {"target_modules", "lora.targets"},
    {"lora_target_modules", "lora.targets"}, {"modules_to_save", "lora.modules_to_save"}, {"lora_modules_to_save", "lora.modules_to_save"},
    {"trainable_token_indices", "lora.tokens"}, {"adapter", "lora.rank"}, {"lora", "lora.rank"}, {"zero_stage", "layout.zero"},
    {"fsdp", "layout.zero"}, {"fsdp_config", "layout.zero"}, {"deepspeed", "layout.zero"}, {"data_parallel_shard_degree", "layout.shard"},
    {"data_parallel_replicate_degree", "layout.shard"}, {"data_parallel_degree", "layout.dp"}, {"data_parallel_size", "layout.dp"},
    {"dp_size", "layout.dp"}, {"tp", "layout.tp"}, {"tensor_parallel_size", "layout.tp"}, {"tensor_parallel_degree", "layout.tp"},
    {"tensor_model_parallel_size", "layout.tp"}, {"pp", "layout.pp"}, {"pipeline_parallel_size", "layout.pp"},
    {"pipeline_parallel_degree", "layout.pp"}, {"pipeline_model_parallel_size", "layout.pp"}, {"context_parallel_degree", "layout.cp"},
    {"context_parallel_size", "layout.cp"}, {"ep", "layout.ep"}, {"expert_parallel_size", "layout.ep"},
    {"expert_parallel_degree", "layout.ep"}, {"expert_model_parallel_size", "layout.ep"}, {"eval_steps", "eval.every"},
    {"eval_interval", "eval.every"}, {"eval_freq", "eval.every"}, {"early_stopping_patience", "eval.patience"},
    {"early_stopping", "eval.patience"}, {"eval_strategy", "eval.every"}, {"evaluation_strategy", "eval.every"},
    {"logging_steps", "log.every"}, {"log_interval", "log.every"}, {"log_freq", "log.every"}, {"batches", "eval.sequences"},
    {"batches", "sequences"}, {"eval_iters", "eval.sequences"}, {"limit_val_batches", "eval.sequences"}, {"eval_samples", "eval.sequences"},
    {"max_eval_samples", "eval.sequences"}, {"save_steps", "checkpoint.every"}, {"save_interval", "checkpoint.every"},
    {"save_freq", "checkpoint.every"}, {"save_total_limit", "checkpoint.keep"}, {"save_strategy", "checkpoint.every"},
    {"load_best_model_at_end", "checkpoint.keep_best"}, {"nproc_per_node", "ranks"}, {"nproc", "ranks"}, {"world_size", "ranks"},
    {"max_restarts", "restarts"},

    {"temp", "temperature"}, {"max_new_tokens", "tokens"}, {"max_tokens", "tokens"}, {"n_predict", "tokens"}, {"vocab_size", "vocabulary"},
    {"min_frequency", "minimum_count"}, {NULL}};

/* Settings of other programs that smelt does not have, and why. */
#define RECORDS "every run writes metrics.jsonl and TensorBoard event files; no setting is needed"
#define ATTENTION "attention is always computed in tiles (FlashAttention); no setting is needed"
#define QUANTISED "smelt quantizes only the frozen base of adapters: set lora.rank and lora.base=nf4 or fp8, or train all weights with precision=pure_bf16 (8 instead of 18 bytes per parameter)"
static const struct {
    const char *other, *reason;
} absent_names[] = {{"dropout", "dropout is not supported"}, {"report_to", RECORDS}, {"wandb_project", RECORDS}, {"wandb", RECORDS},
    {"use_wandb", RECORDS}, {"flash_attention", ATTENTION}, {"flash_attn", ATTENTION}, {"use_flash_attention_2", ATTENTION},
    {"attn_implementation", ATTENTION}, {"load_in_8bit", QUANTISED}, {"load_in_4bit", QUANTISED},
    {"compile", "smelt's kernels are compiled with it: leave this out"},
    {"torch_compile", "smelt's kernels are compiled with it: leave this out"},
    {"sample_packing", "documents are always packed into sequences; data.packing chooses how, and data.document_mask=true separates them"}};

/* Values that belong to this setting in other programs and to another setting in smelt. */
static const struct {
    const char *name, *value, *reason;
} other_values[] = {{"precision", "fp8",
    "fp8 is a recipe on top of precision; set fp8.recipe=tensor, row, row_gw_hp, block or mxfp8 to compute linear layers in fp8"}};

const char *options_reason_of_value(const char *name, const char *value) {
    for (size_t i = 0; i < sizeof other_values / sizeof *other_values; i++)
        if (!strcmp(name, other_values[i].name) && !strcasecmp(value, other_values[i].value)) return other_values[i].reason;
    return NULL;
}

/* Returns whether `name` is `other` except for case and hyphens instead of underscores. */
static bool spells(const char *name, size_t length, const char *other) {
    if (strlen(other) != length) return false;
    for (size_t i = 0; i < length; i++)
        if ((name[i] == '-' ? '_' : tolower((unsigned char)name[i])) != other[i]) return false;
    return true;
}

/* Returns where the name begins after its groups. */
static size_t last_part_start(const char *name, size_t length) {
    while (length > 0 && name[length - 1] != '.') length--;
    return length;
}

/* Returns NULL if it is not such a name. */
static const char *reason_of_absence(const char *name, size_t length) {
    size_t start = last_part_start(name, length);
    for (size_t i = 0; i < sizeof absent_names / sizeof *absent_names; i++)
        if (spells(name + start, length - start, absent_names[i].other)) return absent_names[i].reason;
    return NULL;
}

/* Returns the row that a name of another program means; NULL: none. */
static const Option *row_of_other(const OptionTable *table, const char *name, size_t length) {
    size_t start = last_part_start(name, length);
    for (const OtherName *row = options_other_names; row->other; row++) {
        if (!spells(name + start, length - start, row->other)) continue;
        const Option *option = options_find(table, row->ours, strlen(row->ours));
        if (option) return option;
    }
    return NULL;
}

/* -- Spelling ------------------------------------------------------------------------------------------------------ */

const Option *options_find(const OptionTable *table, const char *name, size_t length) {
    for (size_t i = 0; i < table->count; i++)
        if (strncmp(table->rows[i].name, name, length) == 0 && !table->rows[i].name[length]) return &table->rows[i];
    return NULL;
}

/* Edit distance with insertion, deletion, substitution and swap of neighbors (optimal string alignment). */
static int64_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length) {
    int64_t rows[3][OPTIONS_NAME_LIMIT + 1];
    assert(a_length <= OPTIONS_NAME_LIMIT && b_length <= OPTIONS_NAME_LIMIT);
    for (size_t j = 0; j <= b_length; j++) rows[0][j] = (int64_t)j;
    for (size_t i = 1; i <= a_length; i++) {
        int64_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = (int64_t)i;
        for (size_t j = 1; j <= b_length; j++) {
            row[j] = int_min(int_min(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = int_min(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[a_length % 3][b_length];
}

const char *options_nearest(const OptionTable *table, const char *name, size_t length) {
    if (length > OPTIONS_NAME_LIMIT) return NULL;
    const char *nearest = NULL;
    int64_t least = 2 + (int64_t)length / 4; /* one wrong letter, and one more per four letters */
    for (size_t i = 0; i < table->count; i++) {
        int64_t distance = edit_distance(name, length, table->rows[i].name, strlen(table->rows[i].name));
        if (distance < least) {
            least = distance;
            nearest = table->rows[i].name;
        }
    }
    size_t start = last_part_start(name, length);
    for (size_t i = 0; i < table->count && !nearest; i++) {
        const char *row = table->rows[i].name, *part = row + last_part_start(row, strlen(row));
        if (strlen(part) == length - start && memcmp(part, name + start, length - start) == 0) nearest = table->rows[i].name;
    }
    return nearest;
}

bool options_unknown(const OptionTable *table, const char *name, size_t length, const char *where, Error *error) {
    char quoted[OPTIONS_QUOTED];
    const Option *other = row_of_other(table, name, length);
    const char *nearest = options_nearest(table, name, length);
    const char *reason = reason_of_absence(name, length);
    options_quote(quoted, name, length);
    if (reason) return error_set(error, ERROR_USAGE, "unknown key %s %s: %s", quoted, where, reason);
    if (other) return error_set(error, ERROR_USAGE, "unknown key %s %s; did you mean '%s' (%s)?", quoted, where, other->name, other->help);
    if (nearest) return error_set(error, ERROR_USAGE, "unknown key %s %s; did you mean '%s'?", quoted, where, nearest);
    return error_set(error, ERROR_USAGE, "unknown key %s %s; --help lists all keys", quoted, where);
}

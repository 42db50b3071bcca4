/* Which modules of a model get adapters (lora.targets), for builders, layouts and messages. */
#pragma once

#include "config/config.h"

/* What a module is part of. Names of groups choose all their modules: attention, mlp, experts and router; `all` chooses the
 * first three. */
typedef enum LoraGroup { LORA_ATTENTION, LORA_MLP, LORA_EXPERTS, LORA_ROUTER } LoraGroup;

/* NAME LORA_ROWS is the parameter of the rows of NAME.weight that lora.tokens trains, as PEFT calls it. */
#define LORA_ROWS ".token_adapter.trainable_tokens_delta"

/* Whether adapters are trained and `module`, a parameter's name without ".weight", gets one: the list has its group, its name,
 * or an end of that behind a dot, as in PEFT's target_modules. */
bool lora_selects(const LoraConfig *lora, const char *module, LoraGroup group);
/* Whether one word of the list, `length` bytes of `target`, chooses the module. */
bool lora_target_is(const char *target, size_t length, const char *module, LoraGroup group);
/* Whether lora.modules_to_save names `module`, a table of tokens, likewise. lm_head stands for the table of a tied model too. */
bool lora_saves(const LoraConfig *lora, const char *module, bool tied);
/* What B A x is multiplied by: alpha / rank, or alpha / sqrt(rank) (rsLoRA, arXiv 2312.03732). */
double lora_factor(const LoraConfig *lora);
/* The runs of consecutive ids that lora.tokens names, which lora_check_list has checked; none where it is empty. */
TokenRuns lora_token_runs(const LoraConfig *lora);
/* The number of ids in all runs. */
static inline int64_t token_runs_rows(const TokenRuns *runs) {
    return runs->count ? runs->items[runs->count - 1].row + runs->items[runs->count - 1].count : 0;
}
/* ERROR_USAGE when lora.targets or lora.modules_to_save is not a list, or lora.tokens not one of at most TOKEN_MOST_RUNS runs of
 * ascending ids. */
bool lora_check_list(const LoraConfig *lora, Error *error);

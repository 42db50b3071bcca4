/* Selects the modules of a model that get adapters (lora.targets), for builders, layouts and
 * messages. */
#pragma once

#include "config/config.h"

/* The part of the model that a module belongs to. The name of a group selects all its modules:
 * attention, mlp, experts and router; `all` selects the first three. */
typedef enum LoraGroup { LORA_ATTENTION, LORA_MLP, LORA_EXPERTS, LORA_ROUTER } LoraGroup;

/* NAME LORA_ROWS is the parameter with the rows of NAME.weight that lora.tokens trains, as in
 * PEFT. */
#define LORA_ROWS ".token_adapter.trainable_tokens_delta"

/* Returns whether adapters are trained and `module`, a parameter's name without ".weight", gets
 * one. The list must contain its group, its name, or a suffix of its name after a dot, as in PEFT's
 * target_modules. */
bool lora_selects(const LoraConfig *lora, const char *module, LoraGroup group);
/* Returns whether one word of the list, `length` bytes of `target`, selects the module. */
bool lora_target_is(const char *target, size_t length, const char *module, LoraGroup group);
/* Returns whether a name is that of a router, or of a layer or parameter in one. */
bool lora_is_router(const char *name);
/* Returns whether lora.modules_to_save names `module`, a token table, by its name or a suffix after
 * a dot. lm_head also means the table of a tied model. */
bool lora_saves(const LoraConfig *lora, const char *module, bool tied);
/* Returns the factor of B A x: alpha / rank, or alpha / sqrt(rank) (rsLoRA, arXiv 2312.03732). */
double lora_factor(const LoraConfig *lora);
/* Returns the runs of consecutive ids of lora.tokens, which lora_check_list has checked; none if it
 * is empty. */
TokenRuns lora_token_runs(const LoraConfig *lora);
/* Returns the number of ids in all runs. */
static inline int64_t token_runs_rows(const TokenRuns *runs) {
    return runs->count ? runs->items[runs->count - 1].row + runs->items[runs->count - 1].count : 0;
}
/* ERROR_USAGE if lora.targets or lora.modules_to_save is not a list, or lora.tokens is not a list
 * of ascending ids in at most TOKEN_MOST_RUNS runs. */
bool lora_check_list(const LoraConfig *lora, Error *error);

/* Parses the list of lora.targets: "all", or comma-separated names of groups and modules. Owns
 * nothing; called by config_check, the layout's rules and the builders of models. */
#include "config/lora_targets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const groups[] = {
    [LORA_ATTENTION] = "attention", [LORA_MLP] = "mlp", [LORA_EXPERTS] = "experts", [LORA_ROUTER] = "router"};

static bool is_target_word(const char *target, size_t length, const char *word) {
    return strlen(word) == length && !memcmp(target, word, length);
}

/* Returns true if `target` is the module's name or a suffix of it after a dot. */
static bool is_end(const char *target, size_t length, const char *module) {
    size_t all = strlen(module);
    return length <= all && !memcmp(module + all - length, target, length) && (length == all || module[all - length - 1] == '.');
}

bool lora_target_is(const char *target, size_t length, const char *module, LoraGroup group) {
    if (is_target_word(target, length, groups[group]) || (group != LORA_ROUTER && is_target_word(target, length, "all"))) return true;
    return is_end(target, length, module);
}

bool lora_selects(const LoraConfig *lora, const char *module, LoraGroup group) {
    if (!lora || !lora->rank) return false;
    for (const char *at = lora->targets;; at++) {
        size_t length = strcspn(at, ",");
        if (lora_target_is(at, length, module, group)) return true;
        at += length;
        if (!*at) return false;
    }
}

bool lora_is_router(const char *name) {
    static const char *const routers[] = {"mlp.gate", "mlp.router"};
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(name, routers[i]), *after = at ? at + strlen(routers[i]) : "_";
        if (*after == '.' || !*after) return true;
    }
    return false;
}

bool lora_saves(const LoraConfig *lora, const char *module, bool tied) {
    if (!lora || !lora->rank || !lora->modules_to_save) return false;
    for (const char *at = lora->modules_to_save; *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        if (is_end(at, length, module) || (tied && is_target_word(at, length, "lm_head"))) return true;
        at += length;
    }
    return false;
}

double lora_factor(const LoraConfig *lora) { return lora->alpha / (lora->rslora ? sqrt((double)lora->rank) : (double)lora->rank); }

static bool is_list(const char *list) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    for (const char *at = list;; at++) {
        size_t length = strspn(at, letters);
        if (!length || (at[length] && at[length] != ',')) return false;
        at += length;
        if (!*at) return true;
    }
}

/* Reads "ID" or "ID-ID" at *at and moves *at past it. */
static bool read_range(const char **at, int64_t *first, int64_t *last) {
    enum { MOST_DIGITS = 9 };
    int64_t ids[2];
    for (int i = 0; i < 2; i++) {
        size_t digits = strspn(*at, "0123456789");
        if (!digits || digits > MOST_DIGITS) return false;
        ids[i] = strtoll(*at, NULL, 10);
        *at += digits;
        if (i == 0 && **at != '-') ids[++i] = ids[0];
        else if (i == 0) ++*at;
    }
    *first = ids[0], *last = ids[1];
    return *first <= *last;
}

/* ERROR_USAGE if lora.tokens is not a list of ascending ids and ranges, or has more than
 * TOKEN_MOST_RUNS runs. */
static bool read_token_runs(const LoraConfig *lora, TokenRuns *runs, Error *error) {
    *runs = (TokenRuns){0};
    for (const char *at = lora && lora->rank && lora->tokens ? lora->tokens : ""; *at; at += *at == ',') {
        int64_t first, last, rows = token_runs_rows(runs);
        TokenRun *before = runs->count ? &runs->items[runs->count - 1] : NULL;
        if (!read_range(&at, &first, &last) || (*at && (*at != ',' || !at[1])) || (before && first < before->first + before->count))
            return error_set(error, ERROR_USAGE,
                "lora.tokens=%s is not a list of ids and id ranges in ascending order: write it as 64000-64002,64010", lora->tokens);
        if (before && first == before->first + before->count) {
            before->count += last - first + 1;
            continue;
        }
        if (runs->count == TOKEN_MOST_RUNS)
            return error_set(error, ERROR_USAGE,
                "lora.tokens=%s has more than %d runs of consecutive ids: use fewer, or lora.modules_to_save to train whole tables",
                lora->tokens, (int)TOKEN_MOST_RUNS);
        runs->items[runs->count++] = (TokenRun){first, last - first + 1, rows};
    }
    return true;
}

TokenRuns lora_token_runs(const LoraConfig *lora) {
    TokenRuns runs;
    Error error;
    return read_token_runs(lora, &runs, &error) ? runs : (TokenRuns){0};
}

bool lora_check_list(const LoraConfig *lora, Error *error) {
    if (!is_list(lora->targets))
        return error_set(error, ERROR_USAGE,
            "lora.targets=%s is not a list: write all, or comma-separated groups (attention, mlp, experts, router) and modules "
            "(q_proj,v_proj)",
            lora->targets);
    TokenRuns runs;
    if (!read_token_runs(lora, &runs, error)) return false;
    return !lora->modules_to_save || !*lora->modules_to_save || is_list(lora->modules_to_save) ||
           error_set(error, ERROR_USAGE, "lora.modules_to_save=%s is not a list: write comma-separated tables (embed_tokens,lm_head)",
               lora->modules_to_save);
}

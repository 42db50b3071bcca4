/* Names of sources: resolves them to a run, a model or adapters, reads the configuration of the
 * model, and finds its tokenizer. Owns nothing beyond a call. Called by commands and when a run
 * starts. */
#include "run/source.h"

#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/needs.h"
#include "data/byte_tokenizer.h"
#include "data/mixture.h"
#include "data/shard_set.h"
#include "token/tokenizer.h"
#include "formats/hf.h"
#include "formats/llmc.h"
#include "run/corpus.h"
#include "run/lineage.h"
#include "run/run.h"

static bool is_in_folder(const char *folder, const char *name) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    return file_exists(path);
}

bool source_is_run(const char *folder) {
    SCOPED(run_point_free) RunPoint point = run_point(folder);
    return *point.run && is_in_folder(point.run, "config.yaml"); /* an empty folder name does not mean / */
}

bool source_is_model_folder(const char *folder) { return hf_is_model(folder) && !source_is_run(folder) && !adapter_is_folder(folder); }

static bool is_weights_file(const char *name) {
    return ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json") || starts_with(name, "pytorch_model");
}

static bool is_model_file(const char *name) {
    return !strcmp(name, "config.json") || !strcmp(name, "adapter_config.json") || ends_with(name, ".gguf") || is_weights_file(name);
}

bool source_check_run(const char *run, const char *init, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    SCOPED(run_point_free) RunPoint point = run_point(init);
    SCOPED_FREE char *adapter = adapter_folder(init);
    if (*init && (file_same(run, point.run) || file_same(run, adapter)))
        return error_set(error, ERROR_USAGE, "run=%s is the model of init=%s, which must not change: use another run folder", run, init);
    if (source_is_run(run) || file_kind(run, NULL) != FILE_FOLDER) return true; /* locking reports the reason */
    if (!file_list(run, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (is_model_file(list.entries[i].name))
            return error_set(error, ERROR_USAGE, "run=%s contains a model (%s), so its name would be ambiguous: use another run folder",
                run, list.entries[i].name);
    return true;
}

bool source_check_run_alone(const char *run, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (!is_in_folder(run, "config.json") && !is_in_folder(run, "adapter_config.json")) return true;
    if (!file_list(run, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (is_weights_file(list.entries[i].name))
            return error_set(error, ERROR_CHECKPOINT,
                "%s contains a run (config.yaml) and a model (%s), so its name is ambiguous: move the files of the run (config.yaml, "
                "run.json, metrics.jsonl, log.txt, checkpoints, data) or the files of the model into another folder",
                run, list.entries[i].name);
    return true;
}

/* The data settings are set so that any model passes config_check. */
static bool set_model(const ModelConfig *model, Precision precision, Config *config, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, config, strings);
    config->model = *model;
    config->precision = precision;
    config->data.length = config->batch.tokens = model_least_length(model);
    config->batch.sequences = 1;
    return config_check(config, error);
}

/* Returns whether the name is "OWNER/MODEL", as on Hugging Face. If OWNER is a local folder, a run
 * in it is meant. */
static bool is_hub_name(const char *name) {
    const char *slash = strchr(name, '/');
    bool one = slash && slash > name && slash[1] && !strpbrk(slash + 1, "/@");
    SCOPED_FREE char *owner = memory_format("%.*s", one ? (int)(slash - name) : 0, name);
    return one && *name != '.' && *name != '~' && !ends_with(name, ".bin") && !file_exists(name) && !file_exists(owner);
}

bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error) {
    SCOPED(hf_release) HfModel model = {0};
    SCOPED(run_point_free) RunPoint point = run_point(folder);
    if (source_is_run(point.run) && !source_check_run_alone(point.run, error)) return false;
    if (adapter_is_folder(folder)) return adapter_read_config(folder, config, strings, error);
    if (source_is_run(point.run)) {
        bool read = run_read_config(point.run, config, strings, error) &&
                    (!mixture_is(config->data.train) || lineage_phase(&point, config, strings, error));
        config->model.preference.loss = PREFERENCE_NONE; /* not a part of the model, like the next */
        config->model.policy.loss = 0;
        config->model.policy.values = false;
        return read;
    }
    if (hf_is_model(folder)) {
        bool read = hf_read(folder, &model, error);
        if (model.warnings) log_warn("%s%s: %s", folder, gguf_is_file(folder) ? "" : "/config.json", model.warnings);
        if (model.unread) log_warn("%s: %s", folder, model.unread);
        return read && set_model(&model.config, model.precision, config, strings, error);
    }
    if (llmc_is_model(folder))
        return llmc_read(folder, &model.config, &model.precision, error) &&
               set_model(&model.config, model.precision, config, strings, error);
    if (is_hub_name(folder))
        return error_set(error, ERROR_CHECKPOINT,
            "folder %s does not exist, and smelt does not download models: run hf download %s --local-dir my-model (pip install "
            "huggingface_hub), then use my-model",
            folder, folder);
    return error_set(error, ERROR_CHECKPOINT,
        "%s is not a run folder (with config.yaml), a checkpoint of a run (RUN@STEP, RUN@best), a model folder (with config.json), a GGUF "
        "file, a folder of PEFT adapters (with adapter_config.json) or a model file of llm.c%s",
        folder, file_exists(point.run) ? "" : ": nothing has this name");
}

/* -- Models without weights ---------------------------------------------------------------------------------------- */

bool source_is_configuration(const char *path) {
    return (ends_with(path, ".yaml") || ends_with(path, ".yml")) && file_kind(path, NULL) == FILE_REGULAR && !source_is_run(path);
}

/* Sets a vocabulary that is not given, as training does (corpus_resolve). */
static bool take_rows(Config *config, Error *error) {
    enum { MULTIPLE = 64 };
    const char *name = config->data.tokenizer;
    if (config->model.vocabulary || model_makes_images(&config->model)) return true;
    if (!*name) config->data.tokenizer = BYTE_TOKENIZER;
    if (!*name || !strcmp(name, BYTE_TOKENIZER)) return true; /* config_check sets it */
    Tokenizer *tokenizer = tokenizer_open(name, error);
    if (!tokenizer) return error_context(error, "taking model.vocabulary from data.tokenizer=%s", name);
    config->model.vocabulary = round_up(tokenizer_vocabulary(tokenizer), MULTIPLE);
    tokenizer_free(tokenizer);
    return true;
}

/* Reads the settings of a file, then `settings`. A length among these (steps, tokens or epochs) replaces the file's. */
static bool read_settings_of(const char *path, const OptionStrings *settings, Config *config, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, config, strings);
    config->steps = 0; /* not given */
    if (!options_read_yaml(&config_table, config, strings, path, error)) return false;
    const Config file = *config;
    config->steps = config->tokens = 0;
    config->epochs = 0;
    return options_set_all(&config_table, config, strings, settings, error) && config_settle_length(config, &file, error);
}

/* Makes the checks of a training that do not depend on its data. */
static bool check_as_training(const Config *said, Error *error) {
    Config training = *said;
    return needs_check(&training, said, error) && (training.layout.choice == LAYOUT_AUTO || needs_check_layout(&training, said, error)) &&
           config_check(&training, error);
}

bool source_read_untrained(const char *path, const OptionStrings *settings, Config *config, OptionStrings *strings, Error *error) {
    Config read;
    if (!read_settings_of(path, settings, &read, strings, error)) return false;
    if (read.init[0])
        return error_set(error, ERROR_USAGE,
            "%s takes its weights from init=%s, so it has no random ones: use %s as the input, or set init= (empty)", path, read.init,
            read.init);
    if (read.lora.rank)
        return error_set(error, ERROR_USAGE, "%s sets lora.rank=%lld, but random weights have no adapters: set lora.rank=0", path,
            (long long)read.lora.rank);
    if (!take_rows(&read, error) || !check_as_training(&read, error)) return false;
    if (!read.model.context) read.model.context = read.data.length; /* as in a training */
    if (!set_model(&read.model, (Precision)read.precision, config, strings, error)) return false;
    config->seed = read.seed;
    config->data.tokenizer = read.data.tokenizer;
    return true;
}

/* -- Text ---------------------------------------------------------------------------------------------------------- */

static char *run_tokenizer(const char *name, const Config *config) {
    if (!config->data.tokenizer[0]) return memory_copy_string("");
    SCOPED(run_point_free) RunPoint point = run_point(name);
    SCOPED_FREE char *folder = memory_format("%s/tokenizer", point.run);
    return tokenizer_find(folder);
}

char *source_tokenizer(const char *folder, const Config *config) {
    HfModel model;
    Error ignored = {0};
    if (adapter_is_folder(folder)) {
        SCOPED_FREE char *adapter = adapter_folder(folder);
        char *own = tokenizer_find(adapter);
        bool bytes = false;
        if (own && byte_tokenizer_is(own, &bytes, &ignored) && bytes) return free(own), memory_copy_string("");
        if (own) return own;
        folder = config->init;
    }
    if (source_is_run(folder)) return run_tokenizer(folder, config);
    if (!hf_is_model(folder) || !hf_read(folder, &model, &ignored)) return NULL;
    hf_release(&model);
    if (model.bytes) return memory_copy_string("");
    return gguf_has_tokenizer(folder) ? memory_copy_string(folder) : tokenizer_find(folder);
}

bool source_check_rows(int64_t rows, const Tokenizer *tokenizer, const char *name, const char *cure, Error *error) {
    enum { MOST_ROWS = 2 /* rows per token: a power of two above the tokens is less than this */ };
    long long tokens = tokenizer ? tokenizer_vocabulary(tokenizer) : BYTE_VOCABULARY;
    if (rows >= tokens && rows <= MOST_ROWS * tokens) return true;
    return error_set(error, ERROR_USAGE, "model.vocabulary=%lld is %s the %lld tokens of %s: %s%s", (long long)rows,
        rows < tokens ? "below" : "more than twice", tokens, name, cure,
        rows < tokens ? "; smelt convert MODEL FOLDER tokens.add=A,B adds rows for new tokens" : "");
}

bool source_begins_otherwise(const Config *config, const Tokenizer *tokenizer) {
    return tokenizer && config->data.bos != BOS_AUTO && (config->data.bos == BOS_TRUE) != (tokenizer_bos(tokenizer)->count > 0);
}

bool source_begins_with(const ShardSet *set, const TokenIds *ids, bool *begins, Error *error) {
    SCOPED_FREE int32_t *tokens = memory_allocate((ids->count + 1) * sizeof *tokens);
    int64_t count = (int64_t)ids->count;
    *begins = false;
    if (set->token_count < count) return true;
    if (!shard_set_read(set, 0, count, (int64_t)INT32_MAX + 1, tokens, NULL, error)) return false;
    *begins = !memcmp(tokens, ids->items, ids->count * sizeof *tokens);
    return true;
}

bool source_check_bos(const ShardSet *set, const char *name, const Tokenizer *tokenizer, TokenizerBos bos, bool refuse, Error *error) {
    Error warning = {0};
    bool begins, wanted = bos != BOS_FALSE;
    if (set->masked || !tokenizer || !tokenizer_bos(tokenizer)->count) return true;
    if (!source_begins_with(set, tokenizer_bos(tokenizer), &begins, error)) return false;
    if (begins == wanted) return true;
    error_set(refuse ? error : &warning, ERROR_USAGE,
        "the texts of %s %s with token %d, but with data.bos=%s %s: remove data.bos to follow the first data, or pack these texts with "
        "smelt data pack bos=%s",
        name, begins ? "begin" : "do not begin", tokenizer_bos(tokenizer)->items[0], wanted ? "true" : "false",
        wanted ? "every text must" : "no text may", wanted ? "true" : "false");
    if (!refuse) log_warn("%s", warning.message);
    return !refuse;
}

/* -- Folders of adapters ------------------------------------------------------------------------------------------ */

/* Returns the length of the part of a name that is a folder of adapters: the whole name, or the
 * part before @BASE; 0: none. */
static size_t folder_length(const char *name) {
    if (peft_is_folder(name)) return strlen(name);
    for (const char *at = strchr(name, '@'); at; at = strchr(at + 1, '@')) {
        SCOPED_FREE char *folder = memory_format("%.*s", (int)(at - name), name);
        if (*folder && at[1] && peft_is_folder(folder)) return (size_t)(at - name);
    }
    return 0;
}

bool adapter_is_folder(const char *name) { return folder_length(name) > 0; }

char *adapter_folder(const char *name) { return memory_format("%.*s", (int)folder_length(name), name); }

char *adapter_open(PeftFolder *peft, const char *name, Error *error) {
    size_t length = folder_length(name);
    SCOPED_FREE char *folder = adapter_folder(name);
    if (!peft_open(peft, folder, error)) return NULL;
    const char *base = name[length] == '@' ? name + length + 1 : peft->base;
    if (*base && (file_exists(base) || source_is_run(base))) return memory_copy_string(base);
    error_set(error, ERROR_CHECKPOINT, "the base of the adapters in %s, %s, is not a folder here: use %s@FOLDER", folder,
        *base ? base : "which they do not name", folder);
    peft_close(peft);
    return NULL;
}

bool adapter_read_config(const char *name, Config *config, OptionStrings *strings, Error *error) {
    SCOPED(peft_close) PeftFolder peft = {0};
    SCOPED_FREE char *base = adapter_open(&peft, name, error);
    if (!base || !source_read_config(base, config, strings, error)) return false;
    if (config->lora.rank || adapter_is_folder(base))
        return error_set(
            error, ERROR_USAGE, "the base of %s, %s, has adapters itself: convert it to a model folder with smelt convert", name, base);
    SCOPED_FREE char *init = memory_format("init=%s", base), *targets = memory_format("lora.targets=%s", peft.targets);
    if (!options_set(&config_table, config, strings, init, error) || !options_set(&config_table, config, strings, targets, error))
        return false;
    config->lora.rank = peft.lora.rank;
    config->lora.alpha = peft.lora.alpha;
    config->lora.rslora = peft.lora.rslora;
    config->lora.experts = LORA_EACH;
    config->model.mtp = 0; /* adapters have no layer for multi-token prediction */
    return lora_check_named(&config->model, &config->lora, error) || error_context(error, "%s", name);
}

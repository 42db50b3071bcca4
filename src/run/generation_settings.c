/* Generation settings: finds them in each kind of model, and adds the settings of the run. Owns
 * nothing beyond a call. Called at the start of a run, by commands that generate, and by convert. */
#include "run/generation_settings.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "chat/chat.h"
#include "data/byte_tokenizer.h"
#include "token/tokenizer.h"
#include "formats/hf.h"
#include "run/run.h"
#include "run/source.h"

#define FILE_NAME "generation_config.json"
#define ENDS "eos_token_id"

/* -- Models ---------------------------------------------------------------------------------------------------------- */

/* transformers makes a generation_config.json from these if there is none
 * (GenerationConfig.from_model_config). */
static json_t *from_model(const json_t *content) {
    static const char *const names[] = {"bos_token_id", ENDS, "pad_token_id"};
    json_t *settings = json_object();
    for (int i = 0; i < 3; i++) {
        json_t *value = json_object_get(content, names[i]);
        if (value && !json_is_null(value)) json_object_set(settings, names[i], value);
    }
    return settings;
}

static json_t *of_model(const char *folder, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/" FILE_NAME, folder), *config = memory_format("%s/config.json", folder);
    SCOPED(hf_release) HfModel model = {0};
    json_t *found = NULL;
    if (gguf_is_file(folder)) return hf_read(folder, &model, error) ? from_model(model.content) : NULL;
    if (!json_read_optional(path, &found, ERROR_DATA, error)) return NULL;
    if (found) return found;
    json_auto_t *content = NULL;
    return json_read_optional(config, &content, ERROR_CHECKPOINT, error) ? from_model(content) : NULL;
}

/* Returns the settings of the run's initial model; empty if that model is missing. */
static json_t *of_init(const Config *config, Error *error) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config origin;
    if (!config->init[0] || !(source_is_run(config->init) || adapter_is_folder(config->init) || hf_is_model(config->init)))
        return json_object();
    return source_read_config(config->init, &origin, &strings, error) ? generation_settings(config->init, &origin, NULL, error) : NULL;
}

/* -- Runs -------------------------------------------------------------------------------------------------------------- */

static bool has(const json_t *ends, int32_t id) {
    bool found = json_is_integer(ends) && json_integer_value(ends) == id;
    for (size_t i = 0; i < json_array_size(ends); i++) {
        const json_t *one = json_array_get(ends, i);
        found = found || (json_is_integer(one) && json_integer_value(one) == id);
    }
    return found;
}

/* Puts a token before the existing end tokens, as Trainer does with the tokenizer's. */
static void add_end(json_t *settings, int32_t id) {
    json_t *ends = json_object_get(settings, ENDS);
    if (id < 0 || has(ends, id)) return;
    if (!ends || json_is_null(ends)) {
        json_object_set_new(settings, ENDS, json_integer(id));
        return;
    }
    json_t *list = json_pack("[i]", (int)id);
    if (json_is_array(ends)) json_array_extend(list, ends);
    else json_array_append(list, ends);
    json_object_set_new(settings, ENDS, list);
}

/* Finds the token that ends an answer in the chat template; -1: none. */
static bool answer_end(const char *file, const Tokenizer *tokenizer, int32_t *end, Error *error) {
    ChatOptions options = {.source = file, .template = "", .end_token = -1};
    Chat *chat = chat_open(&options, tokenizer, error);
    ChatEncoder *encoder = chat ? chat_encoder_open(chat) : NULL;
    *end = encoder ? chat_answer_end(encoder) : -1;
    chat_encoder_free(encoder);
    chat_free(chat);
    return chat != NULL;
}

static bool add_own_ends(json_t *settings, const char *run, const Config *config, const Tokenizer *tokenizer, Error *error) {
    SCOPED_FREE char *file = source_tokenizer(run, config);
    int32_t answer = -1;
    if (!file) return true;
    if (!*file) return add_end(settings, BYTE_SEPARATOR), true;
    Tokenizer *own = tokenizer ? NULL : tokenizer_open(file, error);
    if (!tokenizer) tokenizer = own;
    int32_t end = tokenizer ? tokenizer_end_of_text(tokenizer) : -1;
    bool good = tokenizer && answer_end(file, tokenizer, &answer, error);
    tokenizer_free(own);
    if (good) add_end(settings, answer), add_end(settings, end); /* the end of documents comes first */
    return good;
}

static json_t *of_run(const char *folder, const Config *config, const Tokenizer *tokenizer, Error *error) {
    SCOPED(run_point_free) RunPoint point = run_point(folder);
    SCOPED_FREE char *path = memory_format("%s/" FILE_NAME, point.run);
    json_t *settings = NULL;
    if (!json_read_optional(path, &settings, ERROR_DATA, error)) return NULL;
    if (!settings) settings = of_init(config, error); /* a run of an older version kept no settings */
    if (settings && add_own_ends(settings, folder, config, tokenizer, error)) return settings;
    json_decref(settings);
    return NULL;
}

/* The settings beside adapters, which smelt convert writes there, replace those of their base. */
static json_t *of_adapters(const char *folder, const Config *config, Error *error) {
    SCOPED_FREE char *adapters = adapter_folder(folder), *path = memory_format("%s/" FILE_NAME, adapters);
    json_t *settings = NULL;
    if (!json_read_optional(path, &settings, ERROR_DATA, error)) return NULL;
    return settings ? settings : of_init(config, error);
}

json_t *generation_settings(const char *folder, const Config *config, const Tokenizer *tokenizer, Error *error) {
    if (adapter_is_folder(folder)) return of_adapters(folder, config, error);
    if (source_is_run(folder)) return of_run(folder, config, tokenizer, error);
    return hf_is_model(folder) ? of_model(folder, error) : json_object();
}

bool generation_end_tokens(const char *folder, const Config *config, const Tokenizer *tokenizer, TokenIds *ends, Error *error) {
    json_auto_t *settings = generation_settings(folder, config, tokenizer, error);
    const json_t *found = json_object_get(settings, ENDS);
    if (!settings) return false;
    for (size_t i = 0; i < (json_is_array(found) ? json_array_size(found) : 1); i++) {
        const json_t *one = json_is_array(found) ? json_array_get(found, i) : found;
        json_int_t id = json_is_integer(one) ? json_integer_value(one) : -1;
        if (id >= 0 && id <= INT32_MAX) token_ids_append(ends, (int32_t)id);
        else if (one && (one != found || !json_is_null(one)))
            return error_set(
                error, ERROR_DATA, "%s: " ENDS "  contains values other than token ids: use an integer, or a list of integers", folder);
    }
    int32_t own = tokenizer ? tokenizer_end_of_text(tokenizer) : -1;
    if (!ends->count && own >= 0) token_ids_append(ends, own);
    return true;
}

bool generation_keep(const Config *config, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/" FILE_NAME, config->run);
    json_auto_t *settings = of_init(config, error);
    if (!settings) return error_context(error, "init=%s", config->init);
    if (!json_object_size(settings)) return file_remove(path, error);
    SCOPED_FREE char *text = json_format(settings);
    return text && file_write(path, text, (int64_t)strlen(text), error);
}

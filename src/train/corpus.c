/* From the configuration's data settings to open shards. Text is packed into RUN/data before a run's first
 * checkpoint, and found there again on resume, so that neither a later start nor an edited text changes what the
 * steps so far were made of. The tokenizer's files are copied to RUN/tokenizer for the same reason. */
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "train/identity_internal.h"
#include "train/run.h"
#include "train/source.h"
#include "train/train.h"

enum { TOKENIZER_LIMIT = 256 << 20 }; /* bytes of a file */

/* -- The tokenizer ------------------------------------------------------------------------------------------------- */

/* Under `name`, or, when it is NULL, under the one that fits what the file holds. */
static bool copy_file(const char *from, const char *folder, const char *name, Error *error) {
    int64_t length;
    SCOPED_FREE char *content = file_read(from, TOKENIZER_LIMIT, &length, error);
    if (!content) return error_recode(error, ERROR_DATA);
    if (!name) name = content[strspn(content, " \t\r\n")] == '{' ? "tokenizer.json" : "tokenizer.model";
    SCOPED_FREE char *to = memory_format("%s/%s", folder, name);
    return file_write(to, content, length, error);
}

/* With the tokenizer_config.json beside it, which names the token that ends a document. */
static bool copy_tokenizer(const char *given, const char *folder, Error *error) {
    static const char *const config = "tokenizer_config.json";
    SCOPED_FREE char *found = source_tokenizer_file(given);
    const char *file = found ? found : given, *slash = strrchr(file, '/');
    SCOPED_FREE char *beside = memory_format("%.*s%s", slash ? (int)(slash + 1 - file) : 0, file, config);
    return file_make_folder(folder, error) && copy_file(file, folder, NULL, error) &&
           (!file_exists(beside) || copy_file(beside, folder, config, error));
}

/* RUN/tokenizer follows the settings. */
static bool keep_tokenizer(const Config *config, const char *folder, Error *error) {
    const char *given = config->data.tokenizer;
    SCOPED_FREE char *copy = memory_format("%s.partial", folder); /* data.tokenizer may name the folder itself */
    if (!file_remove(copy, error)) return false;
    return given[0] ? copy_tokenizer(given, copy, error) && file_replace_folder(copy, folder, error) : file_remove(folder, error);
}

/* `*path` receives that of the copy, for the caller to free; "" without data.tokenizer. */
static bool open_tokenizer(Corpus *corpus, const Config *config, bool made, char **path, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/tokenizer", config->run);
    bool kept = made || keep_tokenizer(config, folder, error), given = config->data.tokenizer[0];
    char *file = given ? source_tokenizer_file(folder) : NULL;
    *path = file ? file : memory_copy_string(given ? folder : "");
    corpus->tokenizer = kept && given ? tokenizer_open(*path, "", error) : NULL;
    if (!given) return kept;
    if (!corpus->tokenizer) return error_context(error, "data.tokenizer=%s", config->data.tokenizer);
    int32_t tokens = tokenizer_vocabulary(corpus->tokenizer);
    return tokens <= config->model.vocabulary ||
           error_set(error, ERROR_USAGE, "model.vocabulary=%lld is below the %d tokens of data.tokenizer=%s: give at least as many",
               (long long)config->model.vocabulary, tokens, config->data.tokenizer);
}

/* -- Shards -------------------------------------------------------------------------------------------------------- */

/* Packs `input` to RUN/data/NAME (with valid_fraction: NAME-train and NAME-valid) unless that is `made`. */
static bool pack_once(const Config *config, bool made, const char *input, const char *name, double valid_fraction, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/data", config->run), *output = memory_format("%s/%s", folder, name);
    SCOPED_FREE char *last = memory_format(valid_fraction > 0 ? "%s-valid" : "%s", output);
    PackResult result;
    PackOptions options = {.input = input,
        .output = output,
        .valid_fraction = valid_fraction,
        .separator = config->data.separator,
        .tokenizer = config->data.tokenizer};
    return (made && shard_exists(last)) || (file_make_folder(folder, error) && pack_text(&options, &result, error));
}

static bool open_in_run(Shard *shard, const Config *config, const char *name, Error *error) {
    SCOPED_FREE char *prefix = memory_format("%s/data/%s", config->run, name);
    return shard_open(shard, prefix, error);
}

/* Opens a token shard, or text that is packed to RUN/data/NAME. */
static bool open_input(Shard *shard, const Config *config, bool made, const char *input, const char *name, Error *error) {
    if (shard_exists(input)) return shard_open(shard, input, error);
    return pack_once(config, made, input, name, 0, error) && open_in_run(shard, config, name, error);
}

/* Without data.valid, a fraction of text is the validation part. */
static bool open_shards(Corpus *corpus, const Config *config, bool made, Error *error) {
    const DataConfig *data = &config->data;
    bool split = !data->valid[0] && data->valid_fraction > 0 && !shard_exists(data->train);
    bool opened = split ? pack_once(config, made, data->train, "text", data->valid_fraction, error) &&
                              open_in_run(&corpus->train, config, "text-train", error)
                        : open_input(&corpus->train, config, made, data->train, "text", error);
    if (!opened) return error_context(error, "data.train=%s", data->train);
    corpus->bytes = !corpus->tokenizer && corpus->train.max_token < BYTE_VOCABULARY;
    if (!split && !data->valid[0]) return true;
    corpus->has_valid = split ? open_in_run(&corpus->valid, config, "text-valid", error)
                              : open_input(&corpus->valid, config, made, data->valid, "valid", error);
    return corpus->has_valid || error_context(error, "data.valid=%s", data->valid);
}

/* By the process that holds the run's lock, so that no other packs there. */
static void remove_leftovers(const Config *config) {
    SCOPED_FREE char *folder = memory_format("%s/data", config->run);
    file_remove_partials(folder, "");
}

bool corpus_open(Corpus *corpus, const Config *config, bool made, Error *error) {
    SCOPED_FREE char *tokenizer = NULL;
    bool others = made;
    *corpus = (Corpus){0};
    if (!made) remove_leftovers(config);
    if (!made && !run_started(config, &made, error)) return false;
    made = made && (others || !identity_accepts(config->resume.accept, "data")); /* other data are packed anew */
    if (config->data.train[0] == '\0')
        return error_set(error, ERROR_USAGE, "data.train is not set: give a text file, a folder of text, or the prefix of a token shard");
    bool opened = open_tokenizer(corpus, config, made, &tokenizer, error);
    Config kept = *config;
    kept.data.tokenizer = tokenizer;
    opened = opened && open_shards(corpus, &kept, made, error);
    if (!opened) corpus_close(corpus);
    return opened;
}

void corpus_close(Corpus *corpus) {
    shard_close(&corpus->train);
    shard_close(&corpus->valid);
    tokenizer_free(corpus->tokenizer);
    *corpus = (Corpus){0};
}

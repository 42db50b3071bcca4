/* From the configuration's data settings to open shards. Text is packed into RUN/data before a run's first checkpoint, and found
 * there again on resume, so that neither a later start nor an edited text changes what the steps so far were made of. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "train/run.h"
#include "train/train.h"

static bool is_shard(const char *prefix) {
    char *index = memory_format("%s.idx", prefix);
    bool there = access(index, F_OK) == 0;
    free(index);
    return there;
}

static bool pack(const char *input, const char *output, const DataConfig *data, double valid_fraction, Error *error) {
    PackResult result;
    PackOptions options = {.input = input, .output = output, .valid_fraction = valid_fraction, .separator = data->separator};
    return pack_text(&options, &result, error);
}

/* Packs `input` to RUN/data/NAME (with valid_fraction: NAME-train and NAME-valid) unless steps were already made of it. */
static bool pack_once(const Config *config, const char *input, const char *name, double valid_fraction, Error *error) {
    char *folder = memory_format("%s/data", config->run), *output = memory_format("%s/%s", folder, name);
    char *last = memory_format(valid_fraction > 0 ? "%s-valid" : "%s", output);
    bool started, done = run_started(config->run, &started, error);
    if (done && !(started && is_shard(last)))
        done = files_make_folder(folder, error) && pack(input, output, &config->data, valid_fraction, error);
    free(last);
    free(output);
    free(folder);
    return done;
}

static bool open_in_run(Shard *shard, const Config *config, const char *name, Error *error) {
    char *prefix = memory_format("%s/data/%s", config->run, name);
    bool opened = shard_open(shard, prefix, error);
    free(prefix);
    return opened;
}

static bool open_train(Corpus *corpus, const Config *config, bool *split, Error *error) {
    const DataConfig *data = &config->data;
    if (is_shard(data->train)) return shard_open(&corpus->train, data->train, error);
    *split = data->valid[0] == '\0' && data->valid_fraction > 0;
    if (!pack_once(config, data->train, "text", *split ? data->valid_fraction : 0, error)) return false;
    return open_in_run(&corpus->train, config, *split ? "text-train" : "text", error);
}

static bool open_valid(Corpus *corpus, const Config *config, bool split, Error *error) {
    const DataConfig *data = &config->data;
    if (split) return corpus->has_valid = open_in_run(&corpus->valid, config, "text-valid", error);
    if (data->valid[0] == '\0') return true;
    if (is_shard(data->valid)) return corpus->has_valid = shard_open(&corpus->valid, data->valid, error);
    return pack_once(config, data->valid, "valid", 0, error) && (corpus->has_valid = open_in_run(&corpus->valid, config, "valid", error));
}

bool corpus_open(Corpus *corpus, const Config *config, Error *error) {
    bool split = false;
    *corpus = (Corpus){0};
    if (config->data.train[0] == '\0')
        return error_set(error, ERROR_USAGE, "data.train is not set: give a text file, a folder of text, or the prefix of a token shard");
    if (!open_train(corpus, config, &split, error)) return error_context(error, "data.train=%s", config->data.train);
    corpus->bytes = corpus->train.max_token < BYTE_VOCABULARY;
    if (open_valid(corpus, config, split, error)) return true;
    error_context(error, "data.valid=%s", config->data.valid);
    corpus_close(corpus);
    return false;
}

void corpus_close(Corpus *corpus) {
    shard_close(&corpus->train);
    if (corpus->has_valid) shard_close(&corpus->valid);
    *corpus = (Corpus){0};
}

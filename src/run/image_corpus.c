/* The data of a run that trains on images: encodings, which are read in place. Called when the data of
 * a run are opened. */
#include "base/strings.h"
#include "data/mixture.h"
#include "data/picture_folder.h"
#include "data/remote.h"
#include "run/corpus_internal.h"

static bool open_set(EncodingSet *set, const Config *config, const char *path, Error *error) {
    int64_t room = config->data.length - config->model.text_tokens;
    if (!mixture_refuse(path, error)) return false;
    if (remote_is(path)) return error_set(error, ERROR_USAGE, "encodings of images must be on a local disk: copy them there");
    if (!picture_folder_refuse(path, error) || !encodings_open(set, path, &config->model, ENCODINGS_TRAIN, error)) return false;
    return set->most_tokens <= room ||
           error_set(error, ERROR_USAGE,
               "the largest image has %lld tokens, but data.length=%lld minus model.text_tokens=%lld leaves only %lld: set "
               "data.length=%lld",
               (long long)set->most_tokens, (long long)config->data.length, (long long)config->model.text_tokens, (long long)room,
               (long long)(set->most_tokens + config->model.text_tokens));
}

bool image_corpus_open(Corpus *corpus, const Config *config, Error *error) {
    const DataConfig *data = &config->data;
    corpus->image_length = data->length;
    if (!data->train[0])
        return error_set(
            error, ERROR_USAGE, "data.train is not set: set it to a .safetensors file of encodings, or a folder of them (docs/flux.md)");
    bool opened = open_set(&corpus->images, config, data->train, error) || error_context(error, "data.train=%s", data->train);
    if (opened && config->flow.caption_dropout > 0) opened = encodings_need_empty_text(&corpus->images, error);
    corpus->has_valid = data->valid[0];
    if (opened && corpus->has_valid)
        opened = open_set(&corpus->valid_images, config, data->valid, error) || error_context(error, "data.valid=%s", data->valid);
    if (!opened) corpus_close(corpus);
    return opened;
}

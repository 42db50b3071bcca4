/* From the configuration's data settings to open shards. Text is packed into RUN/data before a
 * run's first checkpoint, and read from there on resume, so that neither a later start nor an
 * edited text changes the data of past steps. The tokenizer's files are copied to RUN/tokenizer for
 * the same reason. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "chat/chat.h"
#include "data/pack.h"
#include "data/byte_tokenizer.h"
#include "data/remote.h"
#include "run/corpus_internal.h"
#include "run/generation_settings.h"
#include "run/identity.h"
#include "run/lineage.h"
#include "run/phases.h"
#include "run/source.h"

/* -- The tokenizer ------------------------------------------------------------------------------------------------- */

static bool is_known(const Config *config) { return strcmp(config->data.tokenizer, NO_TOKENIZER) != 0; }

static bool names_tokenizer(const Config *config) { return config->data.tokenizer[0] && is_known(config); }

/* A run that has started keeps its number of rows. */
static bool check_rows(const Corpus *corpus, const Config *config, Error *error) {
    bool given = config->data.tokenizer[0];
    SCOPED_FREE char *name = given ? memory_format("data.tokenizer=%s", config->data.tokenizer) : memory_copy_string("the byte tokenizer");
    const char *cure = !config->init[0] ? "set model.vocabulary=0, which takes the tokenizer's size"
                       : given          ? "remove data.tokenizer, because the model of init uses another tokenizer"
                                        : "set data.tokenizer=FILE to the tokenizer of the model of init";
    return !is_known(config) || source_check_rows(config->model.vocabulary, corpus->tokenizer, name, cure, error);
}

/* -- Sources in object stores -------------------------------------------------------------------------------------- */

static char *cache_folder(const Config *config) {
    return config->data.cache[0] ? memory_copy_string(config->data.cache) : memory_format("%s/data/cache", config->run);
}

/* Returns where data is read: the local folder of a source in a bucket, or the path itself. The
 * caller frees it. */
static char *packed_place(const Config *config, const char *path) {
    SCOPED_FREE char *cache = cache_folder(config);
    return remote_is(path) ? remote_folder(cache, path) : memory_copy_string(path);
}

static bool fetch_source(const Config *config, const char *path, Error *error) {
    SCOPED_FREE char *cache = cache_folder(config);
    RemoteOptions options = {.cache = cache, .bytes = config->data.cache_mib << 20, .patience = config->data.patience};
    return !remote_is(path) || remote_mirror(&options, path, error);
}

/* Copies the whole files of sources in a bucket. */
static bool fetch_sources(const Config *config, Error *error) {
    SCOPED(mixture_free) Mixture mixture = {0};
    const DataConfig *data = &config->data;
    bool mixed = mixture_is(data->train), good = !mixed || mixture_read(&mixture, data->train, error);
    for (int i = 0; i < mixture.source_count && good; i++) good = fetch_source(config, mixture.sources[i].path, error);
    if (!good || (!mixed && !fetch_source(config, data->train, error))) return error_context(error, "data.train=%s", data->train);
    return fetch_source(config, data->valid, error) || error_context(error, "data.valid=%s", data->valid);
}

/* -- RUN/tokenizer ------------------------------------------------------------------------------------------------- */

/* Replaces the tokenizer's chat template by the template of a source's packed conversations, if it
 * has any: the model learns that template. `*taken` holds the first one of a run's sources, for the
 * caller to free. */
static bool take_template(const Config *config, const char *path, const char *folder, char **taken, Error *error) {
    enum { TEMPLATE_LIMIT = 1 << 24 };
    SCOPED(shard_set_close) ShardSet set = {0};
    SCOPED_FREE char *place = packed_place(config, path), *record = NULL;
    if (shard_set_exists(place) && !shard_set_tokenizer(place, &record, error)) return false;
    SCOPED_FREE char *file = record && *record ? tokenizer_chat_template(record) : NULL;
    if (!file) return true;
    if (!shard_set_open(&set, place, error)) return false;
    SCOPED_FREE char *template = set.masked ? file_read(file, TEMPLATE_LIMIT, NULL, error) : NULL;
    if (!template) return !set.masked || error_recode(error, ERROR_DATA);
    if (*taken && strcmp(*taken, template) != 0)
        log_warn("%s was packed with another chat template than the earlier data: smelt chat uses the template of the earlier data", path);
    if (*taken) return true;
    SCOPED_FREE char *own_file = tokenizer_chat_template(folder), *own = own_file ? file_read(own_file, TEMPLATE_LIMIT, NULL, error) : NULL;
    if (own && strcmp(own, template) != 0)
        log_info("the chat template comes from data.train=%s, which was packed with it, and not from data.tokenizer", path);
    *taken = memory_copy_string(template);
    return tokenizer_copy_templates(record, folder, error);
}

/* Makes data.template, with which the run renders conversations, the chat template of the tokenizer. */
static bool put_template(const Config *config, const char *folder, Error *error) {
    const ChatOptions options = {.source = folder, .template = config->data.template, .end_token = -1};
    Tokenizer *tokenizer = tokenizer_open(folder, error);
    Chat *chat = tokenizer ? chat_open(&options, tokenizer, error) : NULL;
    bool put = chat && tokenizer_put_template(folder, chat_template_source(chat), error);
    chat_free(chat);
    tokenizer_free(tokenizer);
    return put || error_context(error, "data.template=%s", config->data.template);
}

static bool copy_templates(const Config *config, const char *folder, Error *error) {
    if (config->data.template[0]) return put_template(config, folder, error);
    SCOPED(mixture_free) Mixture mixture = {0};
    SCOPED_FREE char *taken = NULL;
    const char *train = config->data.train;
    if (!mixture_is(train)) return take_template(config, train, folder, &taken, error);
    bool good = mixture_read(&mixture, train, error);
    for (int i = 0; good && i < mixture.source_count; i++) good = take_template(config, mixture.sources[i].path, folder, &taken, error);
    return good;
}

/* Updates RUN/tokenizer from the settings. */
static bool copy_tokenizer(const Config *config, const char *folder, Error *error) {
    SCOPED_FREE char *copy = memory_format("%s.partial", folder); /* data.tokenizer may name this folder itself */
    if (!file_remove(copy, error)) return false;
    if (!names_tokenizer(config)) return file_remove(folder, error);
    return tokenizer_copy(config->data.tokenizer, copy, error) && copy_templates(config, copy, error) &&
           file_replace_folder(copy, folder, error);
}

/* `*path` receives the path of the copy, for the caller to free; "" if there is none. */
static bool open_tokenizer(Corpus *corpus, const Config *config, bool made, char **path, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/tokenizer", config->run);
    bool kept = made || (copy_tokenizer(config, folder, error) && generation_keep(config, error)), given = names_tokenizer(config);
    *path = memory_copy_string(given ? folder : "");
    corpus->tokenizer = kept && given ? tokenizer_open(*path, error) : NULL;
    if (!kept || (given && !corpus->tokenizer)) return kept && error_context(error, "data.tokenizer=%s", config->data.tokenizer);
    return !is_known(config) || tokenizer_set_bos(corpus->tokenizer, (TokenizerBos)config->data.bos, error) || error_context(error, "data");
}

/* -- Shards -------------------------------------------------------------------------------------------------------- */

/* Names the parts of a shard if only the part of the name before -train and -valid was given. */
static bool refuse_whole_of_split(const char *input, Error *error) {
    SCOPED_FREE char *train = memory_format("%s-train", input);
    return file_exists(input) || !shard_set_exists(train) ||
           error_set(error, ERROR_DATA, "%s was packed in two parts: set data.train=%s data.valid=%s-valid", input, train, input);
}

/* Packs `input` to RUN/data/NAME (with valid_fraction: NAME-train and NAME-valid) unless it exists
 * and is `made`. */
static bool pack_once(const Config *config, bool made, const char *input, const char *name, double valid_fraction, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/data", config->run), *output = memory_format("%s/%s", folder, name);
    SCOPED_FREE char *last = memory_format(valid_fraction > 0 ? "%s-valid" : "%s", output);
    PackResult result;
    PackOptions options = {.inputs = (const char *[]){input, NULL},
        .output = output,
        .held_out = starts_with(name, "valid"),
        .valid_fraction = valid_fraction,
        .separator = config->data.separator,
        .tokenizer = config->data.tokenizer,
        .template = config->data.template,
        .special = config->data.special,
        .overwrite = true,
        .bos = (TokenizerBos)config->data.bos};
    if (made && shard_set_exists(last)) return true;
    if (made && !remote_is(input) && !file_exists(input))
        return error_set(error, ERROR_DATA,
            "neither a token shard nor a text is at this path, and %s/data has no packed copy: if the data has moved, give the new path, "
            "as in smelt train %s data.%s=NEW",
            config->run, config->run, starts_with(name, "valid") ? "valid" : "train");
    if (!is_known(config))
        return error_set(error, ERROR_USAGE,
            "it is text, but data.tokenizer=none reads only token shards: remove data.tokenizer, set it to a tokenizer.json, or give the "
            "prefix of a token shard");
    if (strchr(input, ',') && !remote_is(input) && !file_exists(input))
        return error_set(error, ERROR_DATA,
            "no file or folder has this name: to combine sources, use a mixture, data.train=MIXTURE.yaml (docs/data.md), or one folder");
    return refuse_whole_of_split(input, error) && file_make_folder(folder, error) && pack_text(&options, &result, error);
}

static bool open_in_run(ShardSet *set, const Config *config, const char *name, Error *error) {
    SCOPED_FREE char *prefix = memory_format("%s/data/%s", config->run, name);
    return shard_set_open(set, prefix, error);
}

/* Opens a token shard, or text that is packed to RUN/data/NAME. */
static bool open_text_input(ShardSet *set, const Config *config, bool made, const char *input, const char *name, Error *error) {
    SCOPED_FREE char *place = packed_place(config, input);
    if (shard_set_exists(place)) return shard_set_open(set, place, error);
    return pack_once(config, made, input, name, 0, error) && open_in_run(set, config, name, error);
}

static bool is_in_run(const char *run, const char *name) {
    SCOPED_FREE char *prefix = memory_format("%s/data/%s", run, name);
    return shard_set_exists(prefix);
}

/* Validation text is packed under a name from its path, so texts of earlier starts stay. */
static char *name_of_path(const char *path) { return memory_format("valid-%016llx", (unsigned long long)hash_bytes(path, strlen(path))); }

/* Returns the name of the validation text. If the text of a started run is missing and was not
 * packed under its path, it is the name that the last start packed. NULL: unreadable now. */
static char *name_of_valid(const Config *config, bool made, Error *error) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config remembered = *config;
    options_remember(&config_table, &remembered, &strings);
    char *name = name_of_path(remembered.data.valid);
    bool gone = made && !file_exists(config->data.valid) && !is_in_run(config->run, name);
    json_auto_t *record = gone ? lineage_record(config->run, error) : NULL;
    if (gone && !record && error->finding == FINDING_UNREADABLE) return free(name), NULL;
    const char *last = json_string_value(json_object_get(json_object_get(record, "identity"), "data.valid"));
    if (!last) return name;
    free(name);
    return name_of_path(last);
}

/* Returns whether the validation part is split off the training text; a `made` split is kept. */
static bool is_split(const Config *config, bool made) {
    const DataConfig *data = &config->data;
    bool wanted = !data->valid[0] && data->valid_fraction > 0 && data->valid_documents <= 0;
    SCOPED_FREE char *place = packed_place(config, data->train);
    if (shard_set_exists(place)) return false;
    return (made && is_in_run(config->run, "text-train")) || (wanted && !(made && is_in_run(config->run, "text")));
}

/* Returns the name of the validation part of data.train. */
static char *name_of_part(const Config *config) {
    return memory_copy_string(config->data.valid_documents > 0 ? HELD_OUT_VALID : "text-valid");
}

bool corpus_keeps(const char *run, const char *valid) {
    SCOPED_FREE char *name = valid ? name_of_path(valid) : NULL;
    if (valid) return is_in_run(run, name);
    return is_in_run(run, "text") || (is_in_run(run, "text-train") && is_in_run(run, "text-valid"));
}

char *corpus_valid(const Config *config, Error *error) {
    const char *given = config->data.valid;
    SCOPED_FREE char *name = given[0] ? name_of_valid(config, true, error) : name_of_part(config);
    if (!name) return NULL;
    SCOPED_FREE char *place = packed_place(config, given);
    if (given[0] && shard_set_exists(place)) return memory_copy_string(place);
    if (is_in_run(config->run, name)) return memory_format("%s/data/%s", config->run, name);
    error_set(error, ERROR_USAGE, "%s has no validation data", config->run);
    return error_find(error, FINDING_ABSENT), NULL;
}

bool corpus_map_train(ShardSet *train, const Config *config, bool *found, Error *error) {
    SCOPED_FREE char *split = memory_format("%s/data/text-train", config->run), *whole = memory_format("%s/data/text", config->run);
    SCOPED_FREE char *place = packed_place(config, config->data.train);
    const char *const prefixes[] = {place, split, whole};
    *found = false;
    for (int i = 0; i < 3 && !*found; i++)
        if ((*found = shard_set_exists(prefixes[i])) && !shard_set_open(train, prefixes[i], error)) return false;
    return true;
}

/* Removes the split of a start before the first checkpoint. */
static bool remove_split(const Config *config, Error *error) {
    SCOPED_FREE char *index = memory_format("%s/data/text-train.idx", config->run);
    return file_remove(index, error);
}

/* Text of a mixture is packed under the names of its source and its path, because another path is
 * different text. */
static char *name_of_source(const MixtureSource *source) {
    return memory_format("source-%s-%016llx", source->name, (unsigned long long)hash_bytes(source->path, strlen(source->path)));
}

static bool open_source(ShardSet *set, const Config *config, bool made, const MixtureSource *source, Error *error) {
    SCOPED_FREE char *name = name_of_source(source);
    SCOPED_FREE char *text = memory_format("data.train.source.%s.text", source->name);
    bool again = identity_accepts(config->resume.accept, text);
    bool opened = open_text_input(set, config, made && !again, source->path, name, error);
    if (opened && set->pairs)
        opened = error_set(error, ERROR_USAGE,
            "%s contains pairs of answers, which a mixture cannot hold: train on it alone, with preference.loss=dpo", source->path);
    return opened || error_context(error, "source %s of data.train=%s", source->name, config->data.train);
}

static bool open_bins(Corpus *corpus, const Config *config, const Phases *phases, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/data", config->run);
    if (config->data.packing != PACKING_BEST_FIT) return true;
    corpus->bins = memory_allocate((size_t)corpus->train_count * sizeof *corpus->bins);
    for (int i = 0; i < corpus->train_count; i++) {
        const MixtureSource *source = &phases->mixture.sources[i];
        SCOPED_FREE char *name = memory_format("bins-%016llx", (unsigned long long)hash_bytes(source->path, strlen(source->path)));
        int64_t length = phases_piece(phases, i);
        if (!length) continue; /* no phase reads it */
        if (!file_make_folder(folder, error) || !bin_plan_open(&corpus->bins[i], folder, name, &corpus->train[i], length, error))
            return false;
    }
    return true;
}

/* Preference pairs require a pair loss, and a pair loss requires preference pairs. */
static bool check_preference_pairs(const Config *config, const char *setting, const char *path, const ShardSet *set, Error *error) {
    bool wanted = config->model.preference.loss != PREFERENCE_NONE;
    if (set->pairs == wanted) return true;
    return error_set(error, ERROR_USAGE,
        wanted ? "preference.loss needs pairs of answers, but %s=%s has none: pack pairs with smelt data pack format=preference"
               : "%s=%s contains pairs of answers: set preference.loss=dpo, or train on conversations",
        setting, path);
}

static bool check_all_pairs(const Corpus *corpus, const Config *config, Error *error) {
    const DataConfig *data = &config->data;
    if (config->model.preference.loss != PREFERENCE_NONE && mixture_is(data->train))
        return error_set(error, ERROR_USAGE,
            "preference.loss supports only one source of pairs: set data.train to a shard or a folder of shards instead of the mixture %s",
            data->train);
    for (int i = 0; i < corpus->train_count; i++)
        if (!check_preference_pairs(config, "data.train", data->train, &corpus->train[i], error)) return false;
    return !corpus->has_valid || check_preference_pairs(config, "data.valid", data->valid, &corpus->valid, error);
}

/* Warns of pairs that are longer than a sequence. */
static void warn_of_long_pairs(const ShardSet *set, const BinPlan *bins) {
    int64_t pairs = set->document_count / 2, left_out = pairs - bins->part_count;
    if (left_out > 0)
        log_warn("leaving out %lld of %lld pairs of %s, which have more than data.length=%lld tokens", (long long)left_out,
            (long long)pairs, set->path, (long long)bins->length);
}

/* Warns of conversations that are cut: their answers lose the questions. */
static bool warn_of_cut_conversations(const ShardSet *set, const Config *config, Error *error) {
    const int64_t length = config->data.length;
    DocumentCursor cursor = {.set = set};
    int64_t start, end, cut = 0, longest = 0;
    if (!set->masked || set->pairs) return true;
    if (config->data.packing != PACKING_BEST_FIT) {
        log_warn("data.packing=cut splits conversations of %s at the end of a sequence, so some answers lose their question: set "
                 "data.packing=best_fit",
            set->path);
        return true;
    }
    do {
        if (!document_cursor_next(&cursor, &start, &end, error)) return false;
        cut += end - start > length;
        longest = int_max(longest, end - start);
    } while (end >= 0);
    if (cut)
        log_warn("%" PRId64 " of %" PRId64 " conversations of %s have more than data.length=%" PRId64
                 " tokens and are split, so some answers lose their question: data.length=%" PRId64 " fits all of them",
            cut, set->document_count, set->path, length, longest);
    return true;
}

static bool warn_of_all_cut(const Corpus *corpus, const Config *config, Error *error) {
    for (int i = 0; i < corpus->train_count; i++)
        if (!warn_of_cut_conversations(&corpus->train[i], config, error)) return false;
    return true;
}

/* Opens the bins of a validation part of pairs, and the computed references. */
static bool open_pairs(Corpus *corpus, const Config *config, bool made, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/data", config->run);
    if (!check_all_pairs(corpus, config, error)) return false;
    if (config->model.preference.loss == PREFERENCE_NONE) return true;
    if (corpus->has_valid && !bin_plan_open(&corpus->valid_bins, folder, "bins-valid", &corpus->valid, config->data.length, error))
        return false;
    if (!made) warn_of_long_pairs(corpus->train, corpus->bins);
    if (!made && corpus->has_valid) warn_of_long_pairs(&corpus->valid, &corpus->valid_bins);
    return corpus_open_references(corpus, config, error);
}

char *corpus_reference_path(const Config *config, bool valid) {
    return memory_format("%s/data/reference-%s", config->run, valid ? "valid" : "train");
}

bool corpus_open_references(Corpus *corpus, const Config *config, Error *error) {
    for (int valid = 0; valid <= corpus->has_valid; valid++) {
        const BinPlan *bins = valid ? &corpus->valid_bins : corpus->bins;
        Reference *reference = valid ? &corpus->valid_reference : &corpus->reference;
        SCOPED_FREE char *path = corpus_reference_path(config, valid);
        ReferenceKey key = {.length = config->data.length};
        reference_close(reference);
        if (!shard_set_checksum(valid ? &corpus->valid : corpus->train, &key.content, error)) return false;
        if (!reference_open(reference, path, &key, error)) return false;
        bool there = reference_is_open(reference);
        for (int64_t i = 0; there && i < bins->part_count; i++) there = reference_find(reference, bins->parts[i].start);
        if (!there) reference_close(reference);
    }
    return true;
}

int64_t corpus_inputs(const Corpus *corpus, int source) {
    if (corpus->prompts.count) return (int64_t)corpus->prompts.count * corpus->prompt_length;
    if (corpus->image_length) return corpus->images.samples * corpus->image_length;
    const BinPlan *bins = corpus->bins ? &corpus->bins[source] : NULL;
    return bins && bins->bins ? bins->bins * bins->length : corpus->train[source].token_count - 1;
}

/* Returns the token that ends documents; -1: unknown. */
static int32_t end_token(const Corpus *corpus) {
    return corpus->bytes ? BYTE_SEPARATOR : corpus->tokenizer ? tokenizer_end_of_text(corpus->tokenizer) : -1;
}

static bool open_train(Corpus *corpus, const Config *config, const Mixture *mixture, bool split, bool made, Error *error) {
    const DataConfig *data = &config->data;
    corpus->train = memory_allocate((size_t)mixture->source_count * sizeof *corpus->train);
    corpus->train_count = mixture->source_count;
    bool opened = true, mixed = mixture_is(data->train);
    for (int i = 0; i < mixture->source_count && mixed && opened; i++)
        opened = open_source(&corpus->train[i], config, made, &mixture->sources[i], error);
    if (mixed) return opened;
    opened = split ? pack_once(config, made, data->train, "text", data->valid_fraction, error) &&
                         open_in_run(corpus->train, config, "text-train", error)
                   : open_text_input(corpus->train, config, made, data->train, "text", error);
    return opened || error_context(error, "data.train=%s", data->train);
}

/* Takes the validation documents out of the training data. The end token ends documents of shards
 * without an index. */
static bool hold_out_documents(Corpus *corpus, const Config *config, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/data", config->run);
    HeldOutOptions options = {
        .folder = folder, .valid_fraction = config->data.valid_documents, .tokenizer = is_known(config) ? config->data.tokenizer : NULL};
    if (config->data.valid_documents <= 0) return true;
    return held_out_open(&corpus->held_out, &options, corpus->train, corpus->train_count, error) ||
           error_context(error, "data.valid_documents=%g", config->data.valid_documents);
}

static bool open_prompts(PromptSet *set, const Corpus *corpus, const Config *config, const char *setting, const char *path, Error *error) {
    const PromptOptions options = {.tokenizer = corpus->tokenizer,
        .source = corpus->tokenizer ? config->data.tokenizer : "",
        .template = config->data.template,
        .vocabulary = config->model.vocabulary,
        .most = config->data.length - config->rl.tokens};
    return prompt_set_read(set, path, &options, error) || error_context(error, "%s=%s", setting, path);
}

/* Opens the prompts of reinforcement learning, which are read at every start. */
static bool open_run_prompts(Corpus *corpus, const Config *config, Error *error) {
    const DataConfig *data = &config->data;
    corpus->bytes = !data->tokenizer[0];
    corpus->has_valid = data->valid[0];
    corpus->prompt_length = data->length;
    if (!corpus->bytes && !corpus->tokenizer)
        return error_set(error, ERROR_USAGE, "the tokenizer of init=%s is not known: set data.tokenizer", config->init);
    return open_prompts(&corpus->prompts, corpus, config, "data.train", data->train, error) &&
           (!corpus->has_valid || open_prompts(&corpus->valid_prompts, corpus, config, "data.valid", data->valid, error));
}

/* Without data.valid, documents of the training data become the validation part, or a fraction of
 * text, except in a mixture. A run with such a part keeps the training part when it gets other
 * validation data. */
static bool open_run_shards(Corpus *corpus, const Config *config, const Phases *phases, bool made, Error *error) {
    const DataConfig *data = &config->data;
    bool split = !mixture_is(data->train) && is_split(config, made);
    if (!made && !split && !remove_split(config, error)) return false;
    corpus->bytes = !data->tokenizer[0];
    if (!open_train(corpus, config, &phases->mixture, split, made, error)) return false;
    for (int i = 0; i < corpus->train_count; i++) corpus->train[i].end_token = end_token(corpus);
    if (!hold_out_documents(corpus, config, error) || !open_bins(corpus, config, phases, error)) return false;
    if (!split && data->valid_documents <= 0 && !data->valid[0]) return true;
    SCOPED_FREE char *name = data->valid[0] ? name_of_valid(config, made, error) : name_of_part(config);
    corpus->has_valid = !name            ? false
                        : data->valid[0] ? open_text_input(&corpus->valid, config, made, data->valid, name, error)
                                         : open_in_run(&corpus->valid, config, name, error);
    corpus->valid.end_token = end_token(corpus);
    return corpus->has_valid || error_context(error, "data.valid=%s", data->valid);
}

/* -- What settings leave to the data ------------------------------------------------------------------------------- */

/* Refuses a mixture instead of data, and a shard that records a tokenizer other than the run's. */
static bool check_record(const Config *config, const char *setting, const char *prefix, Error *error) {
    const DataConfig *data = &config->data;
    if (!mixture_refuse(prefix, error)) return error_context(error, "%s", setting);
    SCOPED_FREE char *place = packed_place(config, prefix), *record = NULL;
    bool differs = false;
    if (prefix[0] && shard_set_exists(place) && !shard_set_tokenizer(place, &record, error)) return error_context(error, "%s", setting);
    if (!record || !strcmp(data->tokenizer, NO_TOKENIZER)) return true;
    if (!byte_tokenizer_differs(record, data->tokenizer, &differs, error)) return false;
    return !differs ||
           error_set(error, ERROR_USAGE,
               "%s=%s was packed with %s, but the run's tokenizer is %s: pack the data again, or set data.tokenizer to the one that packed "
               "it",
               setting, prefix, *record ? record : "the byte tokenizer", data->tokenizer[0] ? data->tokenizer : "the byte tokenizer");
}

static bool take_shard_tokenizer(Config *config, OptionStrings *strings, const char *path, Error *error) {
    const DataConfig *data = &config->data;
    SCOPED_FREE char *place = packed_place(config, path);
    if (data->tokenizer[0] || !shard_set_exists(place)) return true;
    SCOPED_FREE char *record = NULL;
    if (!shard_set_tokenizer(place, &record, error)) return false;
    SCOPED_FREE char *setting = memory_format("data.tokenizer=%s", record ? record : NO_TOKENIZER);
    return options_set(&config_table, config, strings, setting, error);
}

/* Determines the tokenizer, which all training data must share. */
static bool take_tokenizers(Config *config, OptionStrings *strings, Error *error) {
    SCOPED(mixture_free) Mixture mixture = {0};
    const char *train = config->data.train;
    if (!mixture_is(train)) return take_shard_tokenizer(config, strings, train, error) && check_record(config, "data.train", train, error);
    bool good = mixture_read(&mixture, train, error);
    for (int i = 0; good && i < mixture.source_count; i++) good = take_shard_tokenizer(config, strings, mixture.sources[i].path, error);
    for (int i = 0; good && i < mixture.source_count; i++) {
        SCOPED_FREE char *name = memory_format("%s: path of source %s", train, mixture.sources[i].name);
        good = check_record(config, name, mixture.sources[i].path, error);
    }
    return good;
}

bool corpus_is_text(const Config *config, const char *path) {
    SCOPED_FREE char *place = packed_place(config, path);
    return !shard_set_exists(place);
}

json_t *corpus_identify_text(const Config *config, const char *path, bool held_out, Error *error) {
    SCOPED_FREE char *place = packed_place(config, path);
    return remote_is(path) ? remote_identity_of_texts(place, error) : identity_of_text(path, held_out, error);
}

bool corpus_has_text(const Config *config) {
    SCOPED(mixture_free) Mixture mixture = {0};
    Error ignored = {0};
    if (!mixture_is(config->data.train) || !mixture_read(&mixture, config->data.train, &ignored))
        return corpus_is_text(config, config->data.train);
    for (int i = 0; i < mixture.source_count; i++)
        if (corpus_is_text(config, mixture.sources[i].path)) return true;
    return false;
}

/* With data.bos=auto, determines how texts begin: as in the run's packed texts or shards, else as
 * in the tokenizer's template. A tokenizer without a BOS needs no look at the data. */
static bool take_bos(Config *config, const Tokenizer *tokenizer, Error *error) {
    SCOPED(shard_set_close) ShardSet train = {0};
    Config origin = *config;
    origin.run = config->fork;
    bool begins = tokenizer_bos(tokenizer)->count > 0;
    bool packed = false;
    if (begins && (!remote_is(config->data.train) || corpus_is_text(config, config->data.train)) && !mixture_is(config->data.train) &&
        !(corpus_map_train(&train, config, &packed, error) &&
            (packed || !config->fork[0] || corpus_map_train(&train, &origin, &packed, error))))
        return false;
    if (packed && !train.masked && !source_begins_with(&train, tokenizer_bos(tokenizer), &begins, error)) return false;
    config->data.bos = begins ? BOS_TRUE : BOS_FALSE;
    return true;
}

/* Takes the vocabulary size and data.bos from the tokenizer, if they are not set. If the tokenizer of a
 * started run is missing, the run's copy is used. */
static bool take_from_tokenizer(Config *config, Error *error) {
    enum { MULTIPLE = 64 };
    if (!names_tokenizer(config) || (config->model.vocabulary && config->data.bos != BOS_AUTO)) return true;
    SCOPED_FREE char *copy = memory_format("%s/tokenizer", config->run);
    bool gone = !file_exists(config->data.tokenizer) && file_exists(copy);
    Tokenizer *tokenizer = tokenizer_open(gone ? copy : config->data.tokenizer, error);
    if (!tokenizer) return error_context(error, "taking model.vocabulary from data.tokenizer=%s", config->data.tokenizer);
    if (!config->model.vocabulary) config->model.vocabulary = round_up(tokenizer_vocabulary(tokenizer), MULTIPLE);
    bool good = config->data.bos != BOS_AUTO || take_bos(config, tokenizer, error);
    tokenizer_free(tokenizer);
    return good;
}

bool corpus_resolve(Config *config, OptionStrings *strings, Error *error) {
    if (model_makes_images(&config->model)) return true;
    if (!strcmp(config->data.tokenizer, BYTE_TOKENIZER)) config->data.tokenizer = "";
    config->data.bos_given = config->data.bos != BOS_AUTO;
    return fetch_sources(config, error) && take_tokenizers(config, strings, error) &&
           check_record(config, "data.valid", config->data.valid, error) && take_from_tokenizer(config, error);
}

/* -- Length -------------------------------------------------------------------------------------------------------- */

bool corpus_resolve_steps(Config *config, int64_t inputs, Position from, Error *error) {
    SCOPED(phases_close) Phases phases = {0};
    double tokens = (double)config->tokens;
    if (config->epochs > 0 && inputs)
        tokens = ceil(config->epochs * (double)order_sequences(inputs + 1, config->data.length)) * (double)config->data.length;
    if (tokens <= 0) return true;
    if (!phases_open(&phases, config, error) || !phases_count_steps(&phases, tokens, from, &config->steps, &config->batch.last, error))
        return false;
    config->tokens = 0;
    config->epochs = 0;
    return config_check(config, error);
}

/* Counts a source that is already packed; other sources count as unlimited. */
static bool count_source(const Config *config, const MixtureSource *source, int64_t *inputs, Error *error) {
    const int64_t unknown = (int64_t)1e15;
    SCOPED(shard_set_close) ShardSet set = {0};
    SCOPED_FREE char *place = packed_place(config, source->path), *name = name_of_source(source);
    bool shards = shard_set_exists(place), packed = shards || is_in_run(config->run, name);
    bool known = packed && config->data.packing == PACKING_CUT && config->data.valid_documents <= 0;
    if (!known) log_info("source %s is not packed or split yet, so its number of epochs is checked when the run starts", source->name);
    if (known && !(shards ? shard_set_open(&set, place, error) : open_in_run(&set, config, name, error))) return false;
    *inputs = known ? set.token_count - 1 : unknown;
    return true;
}

bool corpus_check_epochs(const Config *config, Error *error) {
    SCOPED(phases_close) Phases phases = {0};
    int64_t inputs[MIXTURE_MOST_SOURCES];
    if (!mixture_is(config->data.train)) return true;
    bool good = phases_open(&phases, config, error);
    for (int i = 0; good && i < phases.mixture.source_count; i++)
        good = count_source(config, &phases.mixture.sources[i], &inputs[i], error);
    Order *order = good ? phases_order(&phases, inputs, config->steps, error) : NULL;
    order_free(order);
    return order != NULL;
}

/* Warns if texts do not begin as data.bos says, or if the tokenizer's template differs from
 * data.bos. Refuses a new run if its given data.bos differs from the data. */
static bool name_bos(const Corpus *corpus, const Config *config, bool new, Error *error) {
    const TokenizerBos bos = (TokenizerBos)config->data.bos;
    const bool refuse = new && config->data.bos_given;
    bool good = true;
    if (bos == BOS_FALSE && corpus->tokenizer && tokenizer_bos(corpus->tokenizer)->count)
        log_info(
            "data.bos=false: texts begin without token %d, although the tokenizer's template puts it before each text in other programs",
            tokenizer_bos(corpus->tokenizer)->items[0]);
    for (int i = 0; good && i < corpus->train_count; i++)
        good = source_check_bos(&corpus->train[i], corpus->train[i].path, corpus->tokenizer, bos, refuse, error);
    return good && (!corpus->has_valid || source_check_bos(&corpus->valid, corpus->valid.path, corpus->tokenizer, bos, refuse, error));
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

/* Called by the process that holds the run's lock, so that no other process packs there. */
static void remove_data_leftovers(const Config *config) {
    SCOPED_FREE char *folder = memory_format("%s/data", config->run);
    file_remove_partials(folder, "", NULL);
}

static bool give_file(const char *from, const char *to, Error *error) {
    SCOPED(file_unmap) FileMap map = {0};
    Error other_disk = {0};
    return file_link(from, to, &other_disk) || (file_map(&map, from, error) && file_write(to, map.bytes, (int64_t)map.size, error));
}

static bool give_folder(const char *from, const char *to, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (file_kind(from, NULL) != FILE_FOLDER) return true;
    bool given = file_list(from, &list, error) && file_make_folder(to, error);
    for (size_t i = 0; i < list.count && given; i++) {
        SCOPED_FREE char *source = memory_format("%s/%s", from, list.entries[i].name);
        SCOPED_FREE char *target = memory_format("%s/%s", to, list.entries[i].name);
        given = list.entries[i].kind != FILE_REGULAR || give_file(source, target, error);
    }
    return given;
}

bool corpus_fork(const Config *config, Error *error) {
    static const char *const folders[] = {"data", "tokenizer"};
    bool given = true;
    for (int i = 0; i < 2 && given; i++) {
        SCOPED_FREE char *from = memory_format("%s/%s", config->fork, folders[i]), *to = memory_format("%s/%s", config->run, folders[i]);
        given = give_folder(from, to, error);
    }
    return given;
}

bool corpus_open(Corpus *corpus, const Config *config, const Phases *phases, CorpusState state, Error *error) {
    SCOPED_FREE char *tokenizer = NULL;
    *corpus = (Corpus){0};
    if (state != CORPUS_MADE) remove_data_leftovers(config);
    bool made = state == CORPUS_MADE || (state == CORPUS_PACKED && !identity_accepts_packing(config->resume.accept));
    if (model_makes_images(&config->model)) return image_corpus_open(corpus, config, error);
    if (config->data.train[0] == '\0')
        return error_set(
            error, ERROR_USAGE, "data.train is not set: set it to a text file, a folder of text, or the prefix of a token shard");
    bool opened = open_tokenizer(corpus, config, made, &tokenizer, error) && (made || check_rows(corpus, config, error));
    Config kept = *config; /* the run has its own copy of the tokenizer; NO_TOKENIZER is kept */
    if (names_tokenizer(config)) kept.data.tokenizer = tokenizer;
    if (state != CORPUS_PACKED) kept.resume.accept = ""; /* one process repacks */
    if (opened && config->model.policy.loss) {
        opened = open_run_prompts(corpus, &kept, error);
        if (!opened) corpus_close(corpus);
        return opened;
    }
    opened = opened && open_run_shards(corpus, &kept, phases, made, error) && open_pairs(corpus, &kept, state == CORPUS_MADE, error) &&
             (state == CORPUS_MADE || (warn_of_all_cut(corpus, &kept, error) && name_bos(corpus, &kept, state == CORPUS_NEW, error)));
    if (!opened) corpus_close(corpus);
    return opened;
}

bool corpus_refuse_unread(const Error *unread, int64_t failed, const Comm *comm, Error *error) {
    if (unread->code) return error_set(error, unread->code, "%s", unread->message);
    return error_set(error, ERROR_DATA, "%lld of %d ranks cannot read their data, for the reasons in their messages; this rank stops too",
        (long long)failed, comm_size(comm));
}

void corpus_close(Corpus *corpus) {
    for (int i = 0; i < corpus->train_count; i++) {
        if (corpus->bins) bin_plan_close(&corpus->bins[i]);
        shard_set_close(&corpus->train[i]);
    }
    bin_plan_close(&corpus->valid_bins);
    reference_close(&corpus->reference);
    reference_close(&corpus->valid_reference);
    free(corpus->bins);
    free(corpus->train);
    shard_set_close(&corpus->valid);
    held_out_close(&corpus->held_out);
    prompt_set_free(&corpus->prompts);
    prompt_set_free(&corpus->valid_prompts);
    encodings_close(&corpus->images);
    encodings_close(&corpus->valid_images);
    tokenizer_free(corpus->tokenizer);
    *corpus = (Corpus){0};
}

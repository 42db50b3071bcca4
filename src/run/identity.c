/* Makes and compares identities. Checksums are XXH3, which detects accidents, not attacks. The
 * caller owns the results. Called when a run starts. */
#include "run/identity.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/version.h"
#include "config/optimizer_rule.h"
#include "data/pack.h"
#include "run/lineage.h"
#include "run/run.h"
#include "run/source.h"

/* Prefixes of a mixture's texts, before the name of the source and the number of the phase. */
#define SOURCE "data.train.source."
#define PHASE "data.train.phase."

/* -- Settings ------------------------------------------------------------------------------------------------------ */

json_t *identity_settings(const Config *config, bool all) {
    enum { VALUE_BYTES = 8192 };
    SCOPED_FREE char *value = memory_allocate(VALUE_BYTES);
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config remembered = *config;
    options_remember(&config_table, &remembered, &strings);
    json_t *settings = json_object();
    for (size_t i = 0; i < config_table.count; i++) {
        const Option *option = &config_table.rows[i];
        if (!all && !option_decides(option)) continue;
        options_format_value(option, all ? config : &remembered, value, VALUE_BYTES);
        json_object_set_new(settings, option->name, json_string(value));
    }
    return settings;
}

json_t *identity_saved_settings(const json_t *saved) {
    Config config;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    options_defaults(&config_table, &config, &strings);
    json_t *settings = identity_settings(&config, false);
    json_object_update_existing(settings, (json_t *)saved);
    return settings;
}

/* -- Checksums ----------------------------------------------------------------------------------------------------- */

/* Adds the content of a set to the identity. */
static bool describe_set(json_t *identity, const char *name, const ShardSet *set, Error *error) {
    uint64_t checksum;
    if (!shard_set_checksum(set, &checksum, error)) return false;
    json_t *content = set->document_count < 0 ? json_sprintf("%" PRId64 " tokens, xxh3 %016" PRIx64, set->token_count, checksum)
                                              : json_sprintf("%" PRId64 " document%s, %" PRId64 " tokens, xxh3 %016" PRIx64,
                                                    set->document_count, plural(set->document_count), set->token_count, checksum);
    return json_object_set_new(identity, name, content) == 0;
}

static bool identify_images(json_t *identity, const char *name, const EncodingSet *set, Error *error) {
    uint64_t checksum;
    return encodings_checksum(set, &checksum, error) &&
           json_object_set_new(
               identity, name, json_sprintf("%" PRId64 " image%s, xxh3 %016" PRIx64, set->samples, plural(set->samples), checksum)) == 0;
}

/* Returns true if a file of a folder affects the results of a model or a tokenizer. */
static bool decides(const char *name) { return ends_with(name, ".safetensors") || ends_with(name, ".json") || ends_with(name, ".model"); }

/* Adds the files sorted by name. */
static bool sample_folder(const char *folder, XXH3_state_t *hash, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (!file_list(folder, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.entries[i].name;
        if (!decides(name)) continue;
        SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
        XXH3_64bits_update(hash, name, strlen(name) + 1);
        if (!hash_file_samples(path, hash, error)) return false;
    }
    return true;
}

static XXH3_state_t *open_hash(const char *path, Error *error) {
    XXH3_state_t *hash = XXH3_createState();
    if (hash) XXH3_64bits_reset(hash);
    else error_set(error, ERROR_MEMORY, "no memory for the checksum of %s: free some memory", path);
    return hash;
}

/* Returns a checksum for a path; `add` hashes the content. */
static json_t *sample_path(const char *path, bool (*add)(const char *path, XXH3_state_t *hash, Error *error), Error *error) {
    XXH3_state_t *hash = open_hash(path, error);
    if (!hash) return NULL;
    bool read = add(path, hash, error);
    uint64_t sum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return read ? json_sprintf("xxh3 %016" PRIx64, sum) : NULL;
}

static json_t *hash_folder(const char *path, Error *error) {
    return sample_path(path, file_kind(path, NULL) == FILE_FOLDER ? sample_folder : hash_file_samples, error);
}

static bool sample_listed(const char *path, bool held_out, XXH3_state_t *hash, Error *error) {
    enum { READ = 64 }; /* files, spread evenly; for the others only name and size count */
    SCOPED(file_list_free) FileList files = {0};
    SCOPED_FREE char *root = options_absolute_path(path); /* without a final slash, which the names do not have */
    if (!pack_list(root, held_out, &files, error)) return false;
    size_t stride = files.count / READ + 1;
    bool good = true;
    for (size_t i = 0; i < files.count && good; i++) {
        const char *file = files.entries[i].name, *name = file + strlen(root);
        int64_t bytes;
        good = file_kind(file, &bytes) == FILE_REGULAR || file_fail(error, "inspect", file);
        XXH3_64bits_update(hash, name, strlen(name) + 1);
        XXH3_64bits_update(hash, &bytes, sizeof bytes);
        good = good && (i % stride || hash_file_samples(file, hash, error));
    }
    return good;
}

static bool sample_text(const char *path, XXH3_state_t *hash, Error *error) { return sample_listed(path, false, hash, error); }
static bool sample_held_out(const char *path, XXH3_state_t *hash, Error *error) { return sample_listed(path, true, hash, error); }

json_t *identity_of_text(const char *path, bool held_out, Error *error) {
    return sample_path(path, held_out ? sample_held_out : sample_text, error);
}

/* -- Making one ---------------------------------------------------------------------------------------------------- */

static json_t *describe_run(const char *name, Error *error) {
    Config config;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(run_point_free) RunPoint point = run_point(name);
    int64_t step;
    if (!run_read_config(point.run, &config, &strings, error)) return NULL;
    json_auto_t *saved = lineage_at(&point, &config, &step, error);
    if (!saved) return NULL;
    return json_sprintf("run %s after step %" PRId64, lineage_number(json_object_get(saved, "identity")), step);
}

json_t *identity_of_adapters(const char *name, Error *error) {
    if (source_is_run(name)) return describe_run(name, error);
    SCOPED_FREE char *folder = adapter_folder(name);
    return hash_folder(folder, error);
}

static json_t *describe_adapters(const char *name, Error *error) {
    Config config;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    if (!adapter_read_config(name, &config, &strings, error)) return NULL;
    json_auto_t *adapters = identity_of_adapters(name, error), *base = adapters ? identity_of_source(config.init, error) : NULL;
    return base ? json_sprintf("%s beside %s", json_string_value(adapters), json_string_value(base)) : NULL;
}

json_t *identity_of_source(const char *path, Error *error) {
    if (adapter_is_folder(path)) return describe_adapters(path, error);
    return source_is_run(path) ? describe_run(path, error) : hash_folder(path, error);
}

/* -- The whole base of adapters ------------------------------------------------------------------------------------ */

enum { WHOLE_FORMAT = 1, WHOLE_LIMIT = 16 << 20 };
/* Comes before the checksum of whole files, which follows the checksum of samples. Older
 * checkpoints have only the checksum of samples. */
static const char whole_mark[] = ", whole ";

static char *checksum_text(const json_t *files) {
    SCOPED_FREE char *text = json_dumps(files, JSON_COMPACT | JSON_SORT_KEYS);
    return memory_format("%016" PRIx64, hash_bytes(text, strlen(text)));
}

/* Reads {"format": 1, "files": {PATH: {"bytes": ..., "modified": ..., "device": ..., "inode": ...,
 * "xxh3": ...}}, "xxh3": of files}; a file of another form is ignored. */
static json_t *read_checksums(const char *file) {
    Error absent;
    SCOPED_FREE char *text = file_read(file, WHOLE_LIMIT, NULL, &absent);
    json_auto_t *saved = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    json_t *files = json_object_get(saved, "files");
    SCOPED_FREE char *sum = json_is_object(files) ? checksum_text(files) : memory_copy_string("");
    const char *written = json_string_value(json_object_get(saved, "xxh3"));
    bool known = json_integer_value(json_object_get(saved, "format")) == WHOLE_FORMAT && written && !strcmp(written, sum);
    return known ? json_incref(files) : json_object();
}

static void write_checksums(const char *file, const json_t *files) {
    Error failure = {0};
    SCOPED_FREE char *sum = checksum_text(files);
    json_auto_t *content = json_pack("{s:i, s:O, s:s}", "format", WHOLE_FORMAT, "files", files, "xxh3", sum);
    SCOPED_FREE char *text = json_dumps(content, JSON_INDENT(1));
    if (!file_write(file, text, (int64_t)strlen(text), &failure))
        log_warn("cannot write the base's checksums, so the next start reads the whole base again: %s", failure.message);
}

/* Returns the properties of a file that change when it is written. */
static json_t *stamp_of(const char *path) {
    int64_t bytes;
    FileId id = file_id(path);
    file_kind(path, &bytes);
    return json_pack("{s:I, s:I, s:I, s:I}", "bytes", (json_int_t)bytes, "modified", (json_int_t)file_modified(path), "device",
        (json_int_t)id.device, "inode", (json_int_t)id.number);
}

/* Adds a file to `hash` by its name and checksum; *files receives new checksums. */
static bool add_whole(const char *path, const char *name, json_t *files, bool *news, XXH3_state_t *hash, Error *error) {
    uint64_t sum;
    json_auto_t *now = stamp_of(path), *known = json_deep_copy(json_object_get(files, path));
    const char *kept = json_string_value(json_object_get(known, "xxh3"));
    SCOPED_FREE char *text = memory_copy_string(kept ? kept : "");
    json_object_del(known, "xxh3");
    if (strlen(text) != 16 || !json_equal(known, now)) {
        if (!hash_file(path, &sum, error)) return false;
        free(text);
        text = memory_format("%016" PRIx64, sum);
        json_object_set_new(now, "xxh3", json_string(text));
        json_object_set(files, path, now);
        *news = true;
    }
    XXH3_64bits_update(hash, name, strlen(name) + 1);
    XXH3_64bits_update(hash, text, strlen(text));
    return true;
}

static bool add_whole_files(const char *path, json_t *files, bool *news, XXH3_state_t *hash, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (file_kind(path, NULL) != FILE_FOLDER) return add_whole(path, "", files, news, hash, error);
    if (!file_list(path, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++) {
        SCOPED_FREE char *file = memory_format("%s/%s", path, list.entries[i].name);
        if (decides(list.entries[i].name) && !add_whole(file, list.entries[i].name, files, news, hash, error)) return false;
    }
    return true;
}

json_t *identity_of_base(const char *path, const char *run, bool keeps, Error *error) {
    json_auto_t *sampled = identity_of_source(path, error);
    if (!sampled || source_is_run(path) || adapter_is_folder(path)) return json_incref(sampled);
    SCOPED_FREE char *file = memory_format("%s/base.json", run), *absolute = options_absolute_path(path);
    json_auto_t *files = read_checksums(file);
    XXH3_state_t *hash = open_hash(path, error);
    if (!hash) return NULL;
    bool news = false, read = add_whole_files(absolute, files, &news, hash, error);
    uint64_t sum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (read && news && keeps && file_kind(run, NULL) == FILE_FOLDER) write_checksums(file, files);
    return read ? json_sprintf("%s%s%016" PRIx64, json_string_value(sampled), whole_mark, sum) : NULL;
}

/* Returns the content of a run's copy of its tokenizer. NULL on failure. */
static json_t *content_of_tokenizer(const char *run, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s/tokenizer", run);
    return hash_folder(folder, error);
}

static void put_identity_text(json_t *object, char *name, json_t *text) {
    json_object_set_new(object, name, text);
    free(name);
}

static bool identify_mixture(json_t *identity, const Phases *phases, const Corpus *corpus, Error *error) {
    const Mixture *mixture = &phases->mixture;
    for (int i = 0; i < mixture->source_count; i++) {
        const char *name = mixture->sources[i].name;
        put_identity_text(identity, memory_format(SOURCE "%s", name), json_string(mixture->sources[i].path));
        SCOPED_FREE char *content = memory_format(SOURCE "%s.content", name);
        if (!describe_set(identity, content, &corpus->train[i], error)) return false;
        put_identity_text(identity, memory_format(SOURCE "%s.order", name),
            json_sprintf("number %d, in pieces of %" PRId64 " tokens", i + 1, phases_piece(phases, i)));
    }
    for (int i = 0; i < phases->count; i++) {
        SCOPED_FREE char *text = phases_text(phases, i), *batch = phases_batch_text(phases, i);
        put_identity_text(identity, memory_format(PHASE "%d", i + 1), json_string(text));
        put_identity_text(identity, memory_format(PHASE "%d.batch", i + 1), json_string(batch));
    }
    return true;
}

static bool identify_prompts(json_t *identity, const char *name, const char *path, Error *error) {
    json_t *content = identity_of_text(path, false, error);
    return content ? json_object_set_new(identity, name, content) == 0 : false;
}

/* Describes the content of training and validation data. */
static bool identify_data(json_t *identity, const Config *config, const Phases *phases, const Corpus *corpus, Error *error) {
    static const char train[] = "data.train.content", valid[] = "data.valid.content";
    if (corpus->image_length)
        return identify_images(identity, train, &corpus->images, error) &&
               (!corpus->has_valid || identify_images(identity, valid, &corpus->valid_images, error));
    if (corpus->prompts.count)
        return identify_prompts(identity, train, config->data.train, error) &&
               (!corpus->has_valid || identify_prompts(identity, valid, config->data.valid, error));
    bool good = mixture_is(config->data.train) ? identify_mixture(identity, phases, corpus, error)
                                               : describe_set(identity, train, &corpus->train[0], error);
    return good && (!corpus->has_valid || describe_set(identity, valid, &corpus->valid, error));
}

static bool describe_tokenizer(json_t *identity, const Config *config, const Corpus *corpus, Error *error) {
    json_t *tokenizer = corpus->tokenizer ? content_of_tokenizer(config->run, error) : json_string(corpus->bytes ? "bytes" : "not known");
    return json_object_set_new(identity, "data.tokenizer.content", tokenizer) == 0;
}

void identity_put_reference(json_t *identity, const Reference *reference) {
    json_object_set_new(identity, "preference.reference", json_sprintf("xxh3 %016" PRIx64, reference->checksum));
}

json_t *identity_create(
    const Config *config, const Phases *phases, const Corpus *corpus, const char *run, bool started, bool whole, Error *error) {
    bool init = config->init[0] && (!started || config->lora.rank);
    json_t *identity = json_pack("{s:s, s:s}", "run", run, "version", SMELT_VERSION);
    json_object_update_new(identity, identity_settings(config, false));
    bool good = identify_data(identity, config, phases, corpus, error);
    good = (corpus->image_length || describe_tokenizer(identity, config, corpus, error)) && good;
    if (started && reference_is_open(&corpus->reference)) identity_put_reference(identity, &corpus->reference);
    json_t *source = !good || !init               ? NULL
                     : config->lora.rank && whole ? identity_of_base(config->init, config->run, true, error)
                                                  : identity_of_source(config->init, error);
    if (good && init && json_object_set_new(identity, "init.content", source) != 0)
        good = error_context(error, "init=%s (if it has moved: smelt train %s init=FOLDER)", config->init, config->run);
    if (good) return identity;
    json_decref(identity);
    return NULL;
}

/* -- Comparing ----------------------------------------------------------------------------------------------------- */

/* Called for each text that differs between two objects, except for a moved path with equal content
 * (`may_move`). */
typedef void Report(void *context, const char *name, const char *saved, const char *now);

/* Returns a text, or "none" if the object lacks it. */
static const char *identity_text(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "none";
}

static const char *shown(const char *text) { return *text ? text : "\"\""; }

/* Compares the checksums if both have one, because the words before the checksum have had other
 * forms, "1 documents". Older contents lack the checksum of whole files. */
bool identity_same_content(const char *content, const char *other) {
    const char *sum = strstr(content, "xxh3 "), *second = sum ? strstr(other, "xxh3 ") : NULL;
    const char *whole = second ? strstr(sum, whole_mark) : NULL, *also = second ? strstr(second, whole_mark) : NULL;
    if (!second) return !strcmp(content, other);
    if (whole && also) return !strcmp(sum, second);
    size_t length = whole ? (size_t)(whole - sum) : strlen(sum), size = also ? (size_t)(also - second) : strlen(second);
    return length == size && !memcmp(sum, second, size);
}

static bool differs(const json_t *saved, const json_t *now, const char *name) {
    const char *before = identity_text(saved, name), *after = identity_text(now, name);
    return ends_with(name, ".content") ? !identity_same_content(before, after) : strcmp(before, after) != 0;
}

/* Returns whether only the path moved. A path represents its content: while the content is equal,
 * the setting is too. A path that was not given has not moved. */
static bool is_moved(const json_t *saved, const json_t *now, const char *name) {
    const Option *option = config_find(name);
    bool path = option && option->path && option_decides(option) && *identity_text(saved, name) && *identity_text(now, name);
    SCOPED_FREE char *content = memory_format("%s.content", name);
    bool text = !strcmp(name, "data.train") && differs(saved, now, "data.train.text");
    bool source = starts_with(name, SOURCE) && !ends_with(name, ".content") && !ends_with(name, ".order"); /* its content decides */
    return source || (path && !text && !differs(saved, now, content)) ||
           !strcmp(name, "data.valid.text"); /* repacked, which the content shows */
}

bool identity_restore(const json_t *saved, const json_t *now, Config *config, OptionStrings *strings, Error *error) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)saved, name, value) {
        const Option *option = config_find(name);
        if (!option || !option_decides(option) || is_moved(saved, now, name)) continue;
        SCOPED_FREE char *setting = memory_format("%s=%s", name, identity_text(saved, name));
        if (!options_set(&config_table, config, strings, setting, error)) return false;
    }
    return true;
}

static void compare_texts(const json_t *saved, const json_t *now, bool may_move, Report *report, void *context) {
    const char *name;
    json_t *value;
    json_auto_t *all = json_copy((json_t *)now);
    json_object_update_missing(all, (json_t *)saved);
    json_object_foreach(all, name, value) if (differs(saved, now, name) && !(may_move && is_moved(saved, now, name)))
        report(context, name, shown(identity_text(saved, name)), shown(identity_text(now, name)));
}

bool identity_accepts(const char *list, const char *name) {
    for (const char *word = list; *word; word += strcspn(word, ","), word += *word == ',') {
        size_t length = strcspn(word, ",");
        if (length && !strncmp(word, name, length) && (name[length] == '.' || !name[length])) return true;
    }
    return false;
}

bool identity_accepts_packing(const char *list) {
    static const char *const names[] = {
        "data.train.text", "data.tokenizer.content", "data.separator", "data.template", "data.valid_fraction", "data.valid_documents"};
    bool accepts = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) accepts = accepts || identity_accepts(list, names[i]);
    return accepts;
}

/* Returns whether a difference is accepted. Accepting a change of text or of packing also
 * accepts the change of tokens that follows. */
static bool is_accepted(const char *list, const char *name) {
    bool tokens = !strcmp(name, "data.train.content") || !strcmp(name, "data.valid.content");
    return identity_accepts(list, name) || (tokens && identity_accepts_packing(list));
}

bool identity_check_words(const char *accepted, Error *error) {
    json_auto_t *names = identity_saved_settings(NULL);
    static const char *const others[] = {"run", "version", "data.train.content", "data.valid.content", "data.tokenizer.content",
        "init.content", "data.train.text", "data.valid.text", "preference.reference", "checkpoints"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) json_object_set_new(names, others[i], json_null());
    for (const char *word = accepted; *word; word += strcspn(word, ","), word += *word == ',') {
        const char *name;
        json_t *value;
        bool known = starts_with(word, SOURCE) || starts_with(word, PHASE);
        SCOPED_FREE char *alone = memory_format("%.*s", (int)strcspn(word, ","), word);
        json_object_foreach(names, name, value) known |= identity_accepts(alone, name);
        if (!known)
            return error_set(error, ERROR_USAGE,
                "resume.accept=%s: '%s' does not affect results: use settings or groups of settings, run, version or checkpoints", accepted,
                alone);
    }
    return true;
}

/* Returns whether the precision keeps fp32 state, which such precisions share. */
static bool keeps_fp32(const char *precision) { return !strcmp(precision, "bf16") || !strcmp(precision, "fp32"); }

/* Returns the setting of an identity's name; "NAME.content" belongs to setting NAME. */
static const Option *option_of(const char *name) {
    static const char content[] = ".content";
    return options_find(&config_table, name, strlen(name) - (ends_with(name, content) ? strlen(content) : 0));
}

/* Returns whether a checkpoint does not fix this text of its mixture. */
static bool is_open(const char *name, const Phases *phases, int begun) {
    const Mixture *mixture = &phases->mixture;
    bool used = false;
    if (starts_with(name, PHASE)) return ends_with(name, ".batch") || strtol(name + strlen(PHASE), NULL, 10) > begun;
    if (!starts_with(name, SOURCE)) return false;
    for (int i = 0; i < mixture->source_count; i++) {
        const char *rest = name + strlen(SOURCE), *source = mixture->sources[i].name;
        if (strncmp(rest, source, strlen(source)) || (rest[strlen(source)] && rest[strlen(source)] != '.')) continue;
        for (int j = 0; j < begun && j < phases->count; j++) used = used || mixture->phases[j].weights[i] > 0;
    }
    return !used;
}

bool identity_settle_reference(const json_t *identity, json_t *changes) {
    static const char name[] = "preference.reference: ", arrow[] = " -> ";
    const char *now = identity_text(identity, "preference.reference");
    for (size_t i = 0; i < json_array_size(changes); i++) {
        const char *line = json_string_value(json_array_get(changes, i));
        if (!starts_with(line, name)) continue;
        SCOPED_FREE char *before = memory_format("%.*s", (int)(strstr(line, arrow) - line), line);
        bool same = !strcmp(before + strlen(name), now);
        if (same) json_array_remove(changes, i);
        else json_array_set_new(changes, i, json_sprintf("%s%s%s (resume.accept)", before, arrow, now));
        return same;
    }
    return true;
}

void identity_settle_mixture(json_t *saved, const json_t *now, const Phases *phases, int begun, json_t *changes) {
    const char *name;
    json_t *value;
    json_auto_t *all = json_copy((json_t *)now);
    json_object_update_missing(all, saved);
    json_object_foreach(all, name, value) {
        if (!is_open(name, phases, begun) || !differs(saved, now, name)) continue;
        if (!is_moved(saved, now, name))
            json_array_append_new(changes, json_sprintf("%s: %s -> %s", name, identity_text(saved, name), identity_text(now, name)));
        if (json_object_get(now, name)) json_object_set(saved, name, json_object_get(now, name));
        else json_object_del(saved, name);
    }
}

static bool follows_origin(const char *saved, const char *now) {
    const OptimizerRule *last = optimizer_named(saved), *next = optimizer_named(now);
    return last && next && optimizer_may_follow(next, last);
}

/* Returns whether the checkpoint's state works only with this value of the setting. With adapters,
 * init is read again. */
static bool is_bound(const Option *option, const char *saved, const char *now, bool adapters) {
    if (!option || !option->state) return false;
    if (!strcmp(option->name, "precision")) return !keeps_fp32(saved) || !keeps_fp32(now);
    if (!strcmp(option->name, "optimizer.name")) return !follows_origin(saved, now);
    return strcmp(option->name, "init") != 0 || !adapters;
}

/* The differences of a check: the allowed ones, and the others as lines. The names of the others
 * are words for resume.accept; those that it cannot accept are listed separately. */
typedef struct Differences {
    const char *accepted;
    bool adapters;
    json_t *allowed;
    FILE *refused, *words, *bound;
    int acceptable, other; /* number of words of each */
    bool weights;          /* another run can start from these weights */
} Differences;

static void sort_difference(void *context, const char *name, const char *saved, const char *now) {
    Differences *differences = context;
    const Option *option = option_of(name);
    bool bound = is_bound(option, saved, now, differences->adapters), changes = option && option->class == OPTION_CHANGES && !bound;
    if (changes || (!bound && is_accepted(differences->accepted, name))) {
        json_array_append_new(differences->allowed, json_sprintf("%s: %s -> %s%s", name, saved, now, changes ? "" : " (resume.accept)"));
        return;
    }
    fprintf(differences->refused, "%s: %s -> %s\n", name, saved, now);
    if (bound) fprintf(differences->bound, "%s%s", differences->other++ ? ", " : "", name);
    else fprintf(differences->words, "%s%s", differences->acceptable++ ? "," : "", name);
    differences->weights &= !bound || (!starts_with(name, "model.") && !starts_with(name, "init"));
}

/* Describes remedies for the refused differences. */
static char *describe_cure(const Differences *differences, const char *run, const char *words, const char *bound) {
    static const char first[] = "use the settings and data that the run was started with, or another run folder";
    if (!differences->other) return memory_format("%s; resume.accept=%s continues with the given ones", first, words);
    SCOPED_FREE char *start = differences->weights ? memory_format("  with init=%s, which starts from these weights", run) : NULL;
    return memory_format(
        "%s%s; resume.accept does not allow its checkpoints to continue with another %s", first, start ? start : "", bound);
}

bool identity_check(const char *what, const json_t *saved, const json_t *now, const char *accepted, json_t *changes, Error *error) {
    SCOPED_FREE char *refused = NULL, *words = NULL, *bound = NULL;
    size_t sizes[3];
    json_auto_t *complete = identity_saved_settings(saved);
    json_object_update_missing(complete, (json_t *)saved);
    if (*identity_text(complete, "data.train") && !*identity_text(now, "data.train"))
        return error_set(error, ERROR_USAGE,
            "data.train is missing: the run in %s trains on %s. Set data.train to it, set run=FOLDER to start another run, or continue "
            "with smelt train %s",
            what, identity_text(complete, "data.train"), what);
    Differences differences = {.accepted = accepted,
        .adapters = strcmp(identity_text(now, "lora.rank"), "0") != 0,
        .allowed = changes,
        .refused = open_memstream(&refused, &sizes[0]),
        .words = open_memstream(&words, &sizes[1]),
        .bound = open_memstream(&bound, &sizes[2]),
        .weights = true};
    if (!differences.refused || !differences.words || !differences.bound)
        return error_set(error, ERROR_MEMORY, "no memory to compare runs: free some memory");
    compare_texts(complete, now, true, sort_difference, &differences);
    fclose(differences.refused);
    fclose(differences.words);
    fclose(differences.bound);
    if (!differences.acceptable && !differences.other) return true;
    SCOPED_FREE char *cure = describe_cure(&differences, what, words, bound);
    return error_set(error, ERROR_USAGE,
        "%s was started with other settings or data, which must stay the same (saved -> given):\n"
        "%s%s",
        what, refused, cure);
}

static void note_model(void *context, const char *name, const char *saved, const char *now) {
    Error *error = context;
    if (!strcmp(name, "model.context")) return; /* a user may want fewer; if positions are weights, their shapes reveal a difference */
    if (starts_with(name, "model.") || starts_with(name, "lora."))
        error_set(
            error, ERROR_CHECKPOINT, "the checkpoint was saved with %s=%s, but config.yaml has %s: correct config.yaml", name, saved, now);
}

bool identity_check_model(const char *run, const json_t *saved, const Config *config, Error *error) {
    json_auto_t *model = identity_settings(config, false), *before = json_copy(model);
    Error difference = {0};
    json_object_update_existing(before, (json_t *)saved); /* settings that the saving program did not know are not differences */
    compare_texts(before, model, true, note_model, &difference);
    return !difference.code || error_set(error, difference.code, "%s: %s", run, difference.message);
}

json_t *identity_content(const json_t *identity) {
    const char *name;
    json_t *value, *content = json_object();
    json_object_foreach((json_t *)identity, name, value) if (!config_find(name)) json_object_set(content, name, value);
    return content;
}

/* -- Ranks --------------------------------------------------------------------------------------------------------- */

typedef struct RankReport {
    char text[1024];
    int count;
} RankReport;

static void append_rank(void *context, const char *name, const char *first, const char *mine) {
    RankReport *report = context;
    size_t used = strlen(report->text);
    if (++report->count <= 8)
        snprintf(report->text + used, sizeof report->text - used, "%s%s is %s on rank 0, but %s here", used ? "; " : "", name, first, mine);
}

bool identity_agree(Comm *comm, const char *what, const json_t *mine, Error *error) {
    SCOPED_FREE char *text = json_dumps(mine, JSON_COMPACT | JSON_SORT_KEYS);
    int64_t length = (int64_t)strlen(text), first_length = length;
    if (!comm_host_broadcast(comm, what, &first_length, 1, COMM_I64, 0, error)) return false;
    SCOPED_FREE char *first = memory_allocate((size_t)first_length + 1);
    if (comm_rank(comm) == 0) memcpy(first, text, (size_t)length);
    if (!comm_host_broadcast(comm, what, first, first_length, COMM_U8, 0, error)) return false;
    if (!strcmp(first, text)) return true;
    RankReport report = {0};
    json_auto_t *theirs = json_loads(first, 0, NULL);
    compare_texts(theirs, mine, false, append_rank, &report);
    if (!report.count) return true; /* only one has checksums of whole files */
    return error_set(error, ERROR_USAGE, "rank %d and rank 0 differ in %s: %s%s; start all ranks with the same command and files",
        comm_rank(comm), what, report.text, report.count > 8 ? "; and more" : "");
}

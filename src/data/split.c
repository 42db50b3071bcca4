/* Splits shards (split.h): one pass over the documents. A Splitter owns the open input and both
 * writers. Called by `smelt data split`. */
#include "data/split.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/version.h"
#include "data/byte_tokenizer.h"
#include "data/data_internal.h"
#include "data/pack_internal.h"
#include "data/shard_set.h"
#include "data/split_internal.h"
#include "token/tokenizer.h"

typedef struct Splitter {
    const SplitOptions *options;
    ShardSet set;
    char *tokenizer; /* of the input, as for shard_set_tokenizer */
    char *names[2];  /* OUTPUT-train, OUTPUT-valid */
    ShardWriter *writers[2];
    SplitPart *parts[2];
} Splitter;

static bool split_all(Splitter *split, Error *error) {
    SCOPED(split_reader_close) SplitReader reader;
    Progress progress = progress_start("splitting", "tokens", split->set.token_count);
    bool good = true;
    split_reader_open(&reader, &split->set, split->options->valid_fraction, split->set.masked);
    for (SplitDocument document = {0}; good && document.end >= 0;) {
        good = split_reader_next(&reader, &document, error);
        if (!good || document.end < 0) break;
        split->parts[document.valid]->documents++;
        split->parts[document.valid]->tokens += document.end - document.start;
        good = split_reader_copy(&reader, &document, split->writers[document.valid], error);
        progress_update(&progress, reader.cursor.token);
    }
    progress_finish(&progress);
    return good;
}

/* -- Input and output ---------------------------------------------------------------------------------------------- */

static bool open_set(Splitter *split, Error *error) {
    const SplitOptions *options = split->options;
    if (!shard_set_exists(options->input))
        return error_set(error, ERROR_USAGE, "%s is not a token shard: pack text with smelt data pack valid=", options->input);
    if (!shard_set_tokenizer(options->input, &split->tokenizer, error) || !shard_set_open(&split->set, options->input, error)) return false;
    if (!split->tokenizer && *options->tokenizer) split->tokenizer = memory_copy_string(options->tokenizer);
    Tokenizer *tokenizer = split->tokenizer && *split->tokenizer ? tokenizer_open(split->tokenizer, error) : NULL;
    if (split->tokenizer && *split->tokenizer && !tokenizer) return false;
    if (split->tokenizer) split->set.end_token = tokenizer ? tokenizer_end_of_text(tokenizer) : BYTE_SEPARATOR;
    tokenizer_free(tokenizer);
    return split->set.document_count >= 0 || split->set.end_token >= 0 ||
           error_set(error, ERROR_USAGE,
               "%s has no index of documents, and its end-of-text token is unknown: set tokenizer= to the one that made it",
               options->input);
}

/* Refuses existing files; with `overwrite`, only files that are not part of a shard. */
static bool check_output(const Splitter *split, const char *name, Error *error) {
    static const char *const suffixes[] = {".idx", ".bin", ".tokenizer"};
    SCOPED_FREE char *index = memory_format("%s.idx", name), *folder = memory_format("%s/", name);
    bool shard = file_begins(index, SHARD_MAGIC, sizeof SHARD_MAGIC);
    if (shard_set_exists(folder))
        return error_set(error, ERROR_USAGE, "%s already exists as a folder of shards: choose another OUTPUT, or move it", name);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        SCOPED_FREE char *path = memory_format("%s%s", name, suffixes[i]);
        if (file_exists(path) && !split->options->overwrite)
            return error_set(error, ERROR_USAGE, "%s exists: give another name, or overwrite=true to replace it", path);
        if (file_exists(path) && !shard)
            return error_set(error, ERROR_USAGE,
                "%s is not part of a token shard, and overwrite=true replaces nothing else: choose another OUTPUT, or move the file", path);
        for (int64_t k = 0; k < split->set.count; k++)
            if (file_same(path, split->set.shards[k].file.path))
                return error_set(error, ERROR_USAGE, "%s is both SHARDS and OUTPUT: choose another OUTPUT", path);
    }
    return true;
}

/* Opens the outputs. If an earlier command was killed while it renamed the files of this output,
 * finishes the renaming first. */
static bool open_outputs(Splitter *split, Error *error) {
    static const char *const endings[] = {"-train", "-valid"};
    const char *output = split->options->output;
    for (int i = 0; i < 2; i++) split->names[i] = memory_format("%.*s%s", (int)path_length(output), output, endings[i]);
    SCOPED_FREE char *record = memory_format("%s" SHARDS_FILE, split->names[0]);
    bool resumed;
    if (!file_make_parents(record, error) ||
        !shard_names_resume((const char *[]){split->names[1], split->names[0], NULL}, record, &resumed, error))
        return error_recode(error, ERROR_USAGE);
    for (int i = 0; i < 2; i++) {
        if (!check_output(split, split->names[i], error) ||
            !(split->writers[i] = shard_writer_open(split->names[i], split_token_bytes(&split->set), error)))
            return false;
        if (split->set.pairs) shard_writer_pairs(split->writers[i]);
        if (split->set.masked) shard_writer_mask(split->writers[i]);
        if (split->tokenizer) shard_writer_tokenizer(split->writers[i], split->tokenizer, "");
    }
    return true;
}

static bool finish(Splitter *split, Error *error) {
    static const char *const names[] = {"training", "validation"};
    for (int i = 0; i < 2; i++)
        if (!split->parts[i]->tokens)
            return error_set(error, ERROR_DATA, "no document of %s is in the %s part: set valid to another value than %g",
                split->options->input, names[i], split->options->valid_fraction);
    SCOPED_FREE char *record = memory_format("%s" SHARDS_FILE, split->names[0]);
    json_auto_t *content = json_pack("{ss sb s{so sf} s{sI sI} s{sI sI}}", "smelt", SMELT_VERSION, "complete", 1, "split", "input",
        pack_json_text(split->options->input), "valid", split->options->valid_fraction, "train", "documents",
        (json_int_t)split->parts[0]->documents, "tokens", (json_int_t)split->parts[0]->tokens, "valid", "documents",
        (json_int_t)split->parts[1]->documents, "tokens", (json_int_t)split->parts[1]->tokens);
    SCOPED_FREE char *text = content ? json_dumps(content, JSON_INDENT(1)) : NULL;
    if (!text) memory_refused(1 << 12);
    ShardWriter *writers[] = {split->writers[1], split->writers[0]};
    split->writers[0] = split->writers[1] = NULL;
    return shard_writers_finish(writers, 2, &(ShardsFile){record, text}, error);
}

bool split_shards(const SplitOptions *options, SplitPart *train, SplitPart *valid, Error *error) {
    *train = *valid = (SplitPart){0};
    if (!(options->valid_fraction > 0 && options->valid_fraction < 1))
        return error_set(error, ERROR_USAGE, "valid=%g must be above 0 and below 1, the share of the documents in the validation part",
            options->valid_fraction);
    Splitter split = {.options = options, .parts = {train, valid}};
    bool good = open_set(&split, error) && open_outputs(&split, error) && split_all(&split, error) && finish(&split, error);
    for (int i = 0; i < 2; i++) {
        shard_writer_cancel(split.writers[i]);
        free(split.names[i]);
    }
    shard_set_close(&split.set);
    free(split.tokenizer);
    return good;
}

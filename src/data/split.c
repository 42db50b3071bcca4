/* Splits shards (split.h): one pass over the documents. A Splitter owns the open input, both writers
 * and the tokens of one document, or of a part of a long one. Called by `smelt data split`. */
#include "data/split.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/version.h"
#include "data/byte_tokenizer.h"
#include "data/data_internal.h"
#include "data/pack_internal.h"
#include "data/shard_set.h"
#include "data/shard_writer_internal.h"
#include "token/tokenizer.h"

enum { HELD_TOKENS = 1 << 20 /* a longer document is read twice */ };
static const int64_t ANY_TOKEN = (int64_t)INT32_MAX + 1;

typedef struct Splitter {
    const SplitOptions *options;
    ShardSet set;
    char *tokenizer; /* of the input, as for shard_set_tokenizer */
    char *names[2];  /* OUTPUT-train, OUTPUT-valid */
    ShardWriter *writers[2];
    SplitPart *parts[2];
    int32_t *tokens; /* [HELD_TOKENS]: those from token `held` on */
    uint8_t *marks;  /* [HELD_TOKENS] */
    int64_t held, held_count;
    XXH3_state_t *hash;
} Splitter;

/* -- Documents ----------------------------------------------------------------------------------------------------- */

/* Reads the tokens from `at` to `end`, at most HELD_TOKENS, unless they are held already. Returns
 * their number, or -1 after an error. */
static int64_t hold(Splitter *split, int64_t at, int64_t end, Error *error) {
    int64_t count = int_min(end - at, HELD_TOKENS);
    if (at >= split->held && at + count <= split->held + split->held_count) return count;
    split->held_count = 0;
    if (!shard_set_read(&split->set, at, count, ANY_TOKEN, split->tokens, split->marks, error)) return -1;
    split->held = at;
    split->held_count = count;
    return count;
}

static bool is_valid(Splitter *split, int64_t start, int64_t end, bool *valid, Error *error) {
    const double unit = 0x1p-53;
    XXH3_64bits_reset(split->hash);
    for (int64_t at = start, count; at < end; at += count) {
        count = hold(split, at, end, error);
        if (count < 0) return false;
        XXH3_64bits_update(split->hash, split->tokens + (at - split->held), (size_t)count * sizeof *split->tokens);
    }
    *valid = (double)(XXH3_64bits_digest(split->hash) >> 11) * unit < split->options->valid_fraction;
    return true;
}

/* Appends held tokens; *trained is the kind of the open span of a masked shard. */
static bool append(const Splitter *split, ShardWriter *writer, int64_t at, int64_t count, bool *trained, Error *error) {
    const int32_t *tokens = split->tokens + (at - split->held);
    const uint8_t *marks = split->marks + (at - split->held);
    for (int64_t i = 0, run; i < count; i += run) {
        bool next = split->set.masked && !(marks[i] & TOKEN_UNTRAINED);
        for (run = 1; i + run < count && (!split->set.masked || next == !(marks[i + run] & TOKEN_UNTRAINED));) run++;
        if (next != *trained && !shard_writer_end_span(writer, error)) return false;
        *trained = next;
        if (!shard_writer_append(writer, tokens + i, run, error)) return false;
    }
    return true;
}

static bool copy(Splitter *split, ShardWriter *writer, int64_t start, int64_t end, Error *error) {
    bool trained = false;
    for (int64_t at = start, count; at < end; at += count) {
        count = hold(split, at, end, error);
        if (count < 0 || !append(split, writer, at, count, &trained, error)) return false;
    }
    return (!split->set.masked || shard_writer_end_span(writer, error)) && shard_writer_end_document(writer, error);
}

/* Takes the next document, or pair; *end is -1 after the last. */
static bool take_document(Splitter *split, DocumentCursor *cursor, int64_t *end, Error *error) {
    int64_t start, middle = -1;
    bool valid;
    if (!document_cursor_next(cursor, &start, end, error)) return false;
    if (*end < 0) return true;
    if (split->set.pairs) {
        middle = *end;
        int64_t second;
        if (!document_cursor_next(cursor, &second, end, error)) return false;
        if (*end < 0) return error_set(error, ERROR_DATA, "%s ends in half a pair: pack it again", split->set.path);
    }
    if (!is_valid(split, start, *end, &valid, error)) return false;
    split->parts[valid]->documents++;
    split->parts[valid]->tokens += *end - start;
    return (middle < 0 || copy(split, split->writers[valid], start, middle, error)) &&
           copy(split, split->writers[valid], middle < 0 ? start : middle, *end, error);
}

static bool split_all(Splitter *split, Error *error) {
    DocumentCursor cursor = {.set = &split->set};
    Progress progress = progress_start("splitting", "tokens", split->set.token_count);
    bool good = true;
    for (int64_t end = 0; good && end >= 0;) {
        good = take_document(split, &cursor, &end, error);
        progress_update(&progress, cursor.token);
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
    int width = 2;
    for (int64_t i = 0; i < split->set.count; i++) width = split->set.shards[i].token_bytes > 2 ? 4 : width;
    for (int i = 0; i < 2; i++) split->names[i] = memory_format("%.*s%s", (int)path_length(output), output, endings[i]);
    SCOPED_FREE char *record = memory_format("%s" SHARDS_FILE, split->names[0]);
    bool resumed;
    if (!file_make_parents(record, error) ||
        !shard_names_resume((const char *[]){split->names[1], split->names[0], NULL}, record, &resumed, error))
        return error_recode(error, ERROR_USAGE);
    for (int i = 0; i < 2; i++) {
        if (!check_output(split, split->names[i], error) || !(split->writers[i] = shard_writer_open(split->names[i], width, error)))
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
    split.tokens = memory_allocate(HELD_TOKENS * sizeof *split.tokens);
    split.marks = memory_allocate(HELD_TOKENS);
    split.hash = XXH3_createState();
    if (!split.hash) memory_refused(sizeof(XXH64_hash_t));
    bool good = open_set(&split, error) && open_outputs(&split, error) && split_all(&split, error) && finish(&split, error);
    for (int i = 0; i < 2; i++) {
        shard_writer_cancel(split.writers[i]);
        free(split.names[i]);
    }
    XXH3_freeState(split.hash);
    shard_set_close(&split.set);
    free(split.tokenizer);
    free(split.tokens);
    free(split.marks);
    return good;
}

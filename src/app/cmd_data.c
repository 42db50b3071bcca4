/* `smelt data pack` turns text into token shards, `smelt data show` describes and checks a shard,
 * and `smelt data train-tokenizer` learns a vocabulary from text. Results go to stdout, everything
 * else to stderr. A group in the command table of cmd_smelt.c. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/options.h"
#include "app/cmd_data_internal.h"
#include "data/byte_tokenizer.h"
#include "data/shard_set.h"
#include "token/tokenizer.h"
#include "data/pack.h"
#include "data/split.h"
#include "infer/utf8.h"

typedef struct DataOptions {
    double valid;
    const char *separator, *tokenizer, *field, *tokens, *template, *where, *rules, *bad_words, *fasttext, *decontaminate, *against,
        *staging, *restore, *lines;
    bool special, check, overwrite;
    int64_t vocabulary, minimum_count, shard_tokens;
    int pattern, format, invalid, dedup, turns, bos;
    int64_t sample, length, document;
} DataOptions;

#define FIELD(name) offsetof(DataOptions, name)
#define SEPARATOR_ROW                                                                                                  \
    STRING_OPTION(separator, "", "", "line that separates documents in a text file; empty: one document per file")

#define RECORD_ROWS(formats)                                                                                                                  \
    SEPARATOR_ROW, CHOICE_OPTION(format, "auto", formats, "format of the inputs; auto: recognized by content and file name; conversations and preference pairs, by the first record"),                   \
        STRING_OPTION(field, "text", "", "JSON, tables and Parquet: name of the text field or column"),                                                     \
        CHOICE_OPTION(invalid, "replace", PACK_INVALIDS,                                                                             \
            "invalid UTF-8: replace it with U+FFFD, keep it, or skip the text; stop: any invalid record ends the job")

static const Option pack_rows[] = {
    REAL_OPTION(valid, "0", 0, 0.5, "",
        "fraction of each file for validation: written to OUTPUT-valid, and the rest to OUTPUT-train; 0: all to OUTPUT"),
    RECORD_ROWS(PACK_FORMATS),
    STRING_OPTION(
        tokens, "", "", "JSON lines and Parquet: name of a field or column with lists of token ids of tokenizer=, in place of text"),
    STRING_OPTION(tokenizer, "", "",
        "a tokenizer.json, tokenizer.model, tekken.json or .tiktoken file, or a folder with one; empty: tokens are bytes", .path = true),
    BOOL_OPTION(special, "false",
        "parse special tokens spelled out in the text; false: keep them as text, and skip conversations that contain them"),
    CHOICE_OPTION(bos, "auto", BOS_CHOICES,
        "prepend bos_token to each text; auto: as the tokenizer's template does. Conversations begin as their chat template says"),
    STRING_OPTION(template, "", "",
        "conversations and pairs: file with the chat template, or chatml; empty: the template in the tokenizer's folder", .path = true),
    CHOICE_OPTION(turns, "all", CHAT_TURNS, "conversations and pairs: answers to train on, if the template does not mark them"),
    INT_OPTION(shard_tokens, "0", 0, 1e15, "tokens",
        "size of a shard in the folder OUTPUT (a shard ends with the document that fills it); 0: one shard"),
    STRING_OPTION(staging, "", "",
        "for OUTPUT in a bucket: local folder for the shards that are not uploaded yet; empty: NAME.upload in the current folder",
        .path = true),
    CHOICE_OPTION(dedup, "none", PACK_DEDUPS,
        "exact: keep only the first of documents with the same text; near: also drop documents that share most of their text with an "
        "earlier one"),
    STRING_OPTION(against, "", "", "with dedup: packings whose documents count as seen, each named as OUTPUT, with commas", .path = true),
    STRING_OPTION(restore, "", "",
        "a packing of the same INPUT with dedup: pack only what it dropped as repeats, and compare that with it and with against=; use "
        "it after another packing is withdrawn",
        .path = true),
    STRING_OPTION(where, "", "",
        "keep documents for which this holds, as in language_score > 0.8 and text.words >= 50; fields of the record, text.STATISTIC, "
        "MODEL.label"),
    STRING_OPTION(
        rules, "", "", "keep documents that pass published rules: gopher, c4, fineweb, or single ones such as gopher.words, with commas"),
    STRING_OPTION(lines, "", "", "remove lines of documents by published rules: c4, or single ones such as c4.javascript, with commas"),
    STRING_OPTION(bad_words, "", "", "drop documents with a word or phrase of this file, one on each line", .path = true),
    STRING_OPTION(
        decontaminate, "", "", "drop documents that share 13 words in a row with this evaluation set of JSON lines", .path = true),
    STRING_OPTION(fasttext, "", "", "fastText models for where=: NAME:FILE, with commas; they give NAME.label, NAME.score, NAME.SOMELABEL"),
    BOOL_OPTION(overwrite, "false", "replace a shard or a folder of shards of that name"),
};

#define PATTERNS "gpt2|llama3|qwen"
static const char *const pattern_names[] = {"gpt2", "llama3", "qwen"};
static const Option train_rows[] = {
    INT_OPTION(vocabulary, "32768", 257, 1 << 22, "tokens", "total number of tokens: <|endoftext|>, 256 bytes and the learned ones"),
    CHOICE_OPTION(pattern, "llama3", PATTERNS, "pattern that splits text into words"),
    INT_OPTION(minimum_count, "2", 1, 1e15, "", "minimum occurrences of a pair that becomes a token"),
    RECORD_ROWS("auto|text|jsonl"),
    BOOL_OPTION(overwrite, "false", "replace a tokenizer of that name"),
};

enum { MOST_SHOWN = 1 << 20 };
static const Option show_rows[] = {
    BOOL_OPTION(check, "false", "read all tokens and verify the checksums"),
    INT_OPTION(sample, "0", 0, INT64_MAX / MOST_SHOWN, "number", "index of the sequence to print"),
    INT_OPTION(length, "200", 1, MOST_SHOWN, "tokens", "length of that sequence"),
    INT_OPTION(document, "-1", -1, INT64_MAX / MOST_SHOWN, "number",
        "print this document and mark its trained tokens; -1: print tokens, or the first document of shards with a loss mask"),
    STRING_OPTION(tokenizer, "", "", "decode with this tokenizer if the shard records none", .path = true),
};

static const Option split_rows[] = {
    REAL_OPTION(valid, "0.01", 0, 1, "", "share of the documents in OUTPUT-valid; a hash of each document's tokens decides"),
    STRING_OPTION(tokenizer, "", "", "the tokenizer of the shards if they record none", .path = true),
    BOOL_OPTION(overwrite, "false", "replace shards of that name"),
};

/* -- pack ---------------------------------------------------------------------------------------------------------- */

/* Prints a histogram of document lengths, one row per power of two from the shortest to the
 * longest. */
static void print_lengths(const PackResult *result, bool pairs) {
    enum { WIDTH = 40 };
    int first = 0, last = PACK_LENGTHS - 1;
    int64_t most = 1;
    while (first < last && !result->lengths[first]) first++;
    while (last > first && !result->lengths[last]) last--;
    for (int i = first; i <= last; i++) most = result->lengths[i] > most ? result->lengths[i] : most;
    printf("tokens of a %s:\n", pairs ? "pair" : "document");
    for (int i = first; i <= last; i++) {
        char low[32], count[32];
        log_format_count((double)((int64_t)1 << i), low);
        log_format_count((double)result->lengths[i], count);
        int bar = (int)((result->lengths[i] * WIDTH + most - 1) / most);
        printf("%8s+ %7s %.*s\n", low, count, bar, "########################################");
    }
}

static void print_bad(const PackResult *result) {
    for (int kind = 1; kind < PACK_BAD_KINDS; kind++)
        if (result->bad[kind])
            printf("%-10s %" PRId64 " record%s\n", pack_bad_name((PackBad)kind), result->bad[kind], plural(result->bad[kind]));
}

static void print_trained(int64_t trained, int64_t tokens) {
    printf("trained:          %" PRId64 " of %" PRId64 " tokens (%.1f%%)\n", trained, tokens, 100.0 * (double)trained / (double)tokens);
}

static void print_packed(const DataOptions *options, const PackResult *result, const char *output, double seconds) {
    char size[32], duration[32], rate[32];
    log_format_bytes((double)result->bytes, size);
    log_format_duration(seconds, duration);
    log_format_bytes((double)result->bytes / (seconds > 1e-9 ? seconds : 1e-9), rate);
    int64_t tokens = result->train_tokens + result->valid_tokens;
    bool split = options->valid > 0, pairs = result->format == PACK_PREFERENCE;
    if (result->resumed) printf("packed the rest of %s in %s", size, duration);
    else printf("packed %s of input in %s (%s/s)", size, duration, rate);
    printf(": %" PRId64 " file%s, %" PRId64 " %s%s%s\n", result->files, plural(result->files), result->documents,
        pairs ? "pair" : "document", plural(result->documents), split && !pairs ? " (a divided one counts twice)" : "");
    print_lengths(result, pairs);
    if (*options->tokens)
        printf("%" PRId64 " tokens as given; %" PRId64 " document%s with the tokens of an earlier one", tokens, result->duplicates,
            plural(result->duplicates));
    else
        printf("%" PRId64 " tokens of %.2f bytes; %" PRId64 " document%s with the text of an earlier one", tokens,
            (double)result->text_bytes / (double)tokens, result->duplicates, plural(result->duplicates));
    if (options->dedup == PACK_DEDUP_NEAR) printf(", %" PRId64 " with most of the text of one", result->near);
    printf("%s\n", result->left_out ? ", left out" : "");
    print_bad(result);
    if (result->filtered) printf("%-10s %" PRId64 " of %" PRId64 " documents\n", "rules", result->filtered, result->records);
    if (result->filtered || result->left_out)
        printf("dropped    %s%s%s" PACK_DROPPED "\n", output, split ? "-train" : "", options->shard_tokens > 0 ? "/" : ".");
    if (pack_is_chat(result->format)) print_trained(result->trained_train + result->trained_valid, tokens);
    printf("%s%s: %" PRId64 " tokens", output, split ? "-train" : "", result->train_tokens);
    if (options->shard_tokens > 0) printf(" in %" PRId64 " shard%s", result->shards, plural(result->shards));
    printf("\n");
    if (split) printf("%s-valid: %" PRId64 " tokens\n", output, result->valid_tokens);
    printf("next     smelt train FILE.yaml run=RUN data.train=%s%s%s%s%s\n", output, split ? "-train" : "", split ? " data.valid=" : "",
        split ? output : "", split ? "-valid" : "");
}

static bool run_pack(Invocation *invocation, Error *error) {
    const DataOptions *options = invocation->options;
    const char **inputs = invocation->words, *output = inputs[invocation->word_count - 1];
    if (invocation->word_count < 2)
        return error_set(error, ERROR_USAGE, "smelt data pack takes INPUT... OUTPUT, but only 1 argument was given");
    inputs[invocation->word_count - 1] = NULL;
    FilterOptions rules = {options->where, options->rules, options->bad_words, options->fasttext, options->decontaminate, options->lines};
    DocumentFilter *filter;
    if (!filter_open(&rules, &filter, error)) return false;
    PackOptions pack = {.inputs = inputs,
        .output = output,
        .valid_fraction = options->valid,
        .separator = options->separator,
        .tokenizer = options->tokenizer,
        .field = options->field,
        .tokens = options->tokens,
        .format = (PackFormat)options->format,
        .template = options->template,
        .turns = (ChatTurns)options->turns,
        .invalid = (PackInvalid)options->invalid,
        .dedup = (PackDedup)options->dedup,
        .against = options->against,
        .restore = options->restore,
        .filter = filter,
        .special = options->special,
        .bos = (TokenizerBos)options->bos,
        .staging = options->staging,
        .shard_tokens = options->shard_tokens,
        .overwrite = options->overwrite};
    PackResult result;
    double start = log_seconds();
    bool good = pack_text(&pack, &result, error);
    filter_free(filter);
    if (!good) return false;
    SCOPED_FREE char *name = memory_format("%.*s", (int)path_length(output), output); /* without slashes at its end */
    print_packed(options, &result, name, log_seconds() - start);
    return true;
}

/* -- train-tokenizer ----------------------------------------------------------------------------------------------- */

/* Returns whether an existing file is inside a folder, under any name. */
static bool output_lies_in(const char *path, const char *folder) {
    SCOPED_FREE char *file = realpath(path, NULL), *root = realpath(folder, NULL);
    size_t length = root ? strlen(root) : 0;
    return file && root && starts_with(file, root) && (root[length - 1] == '/' || file[length] == '/' || !file[length]);
}

static bool is_tokenizer(const char *path) {
    Error ignored = {0};
    Tokenizer *tokenizer = file_kind(path, NULL) == FILE_REGULAR ? tokenizer_open(path, &ignored) : NULL;
    tokenizer_free(tokenizer);
    return tokenizer != NULL;
}

static bool run_train_tokenizer(Invocation *invocation, Error *error) {
    const DataOptions *options = invocation->options;
    const char *text = invocation->words[0], *output = invocation->words[1];
    PackOptions input = {.inputs = (const char *[]){text, NULL},
        .output = output,
        .separator = options->separator,
        .field = options->field,
        .format = (PackFormat)options->format,
        .invalid = (PackInvalid)options->invalid};
    TokenizerTraining training = {pattern_names[options->pattern], (int32_t)options->vocabulary, options->minimum_count};
    PackResult result;
    int32_t learned;
    if (output_lies_in(output, text)) return error_set(error, ERROR_USAGE, "%s is both input and output: choose another output", output);
    if (!file_check_overwrite(output, options->overwrite, is_tokenizer, "a tokenizer", error)) return false;
    double start = log_seconds();
    if (!pack_train_tokenizer(&input, &training, &result, &learned, error)) return false;
    char size[32], duration[32];
    log_format_bytes((double)result.bytes, size);
    log_format_duration(log_seconds() - start, duration);
    printf("%s: %" PRId32 " tokens, learned from %s of input in %s\n", output, learned, size, duration);
    if (learned < training.vocabulary)
        log_warn("the text has enough pairs for only %" PRId32 " of %" PRId32 " tokens: use more text, or a smaller minimum_count", learned,
            training.vocabulary);
    return true;
}

/* -- show ---------------------------------------------------------------------------------------------------------- */

static void print_byte(int byte) {
    switch (byte) {
    case '\n': fputs("\\n", stdout); break;
    case '\r': fputs("\\r", stdout); break;
    case '\t': fputs("\\t", stdout); break;
    case '"': fputs("\\\"", stdout); break;
    case '\\': fputs("\\\\", stdout); break;
    default: printf(byte >= 0x20 && byte < 0x7f ? "%c" : "\\x%02x", byte);
    }
}

/* Prints a token as text: with `decoder`, or as a byte if it has no tokenizer. */
static void print_text(TokenizerDecoder *decoder, int32_t token) {
    const char byte = (char)token, *text = &byte;
    size_t length = 1;
    int32_t end = decoder->tokenizer ? tokenizer_end_of_text(decoder->tokenizer) : BYTE_SEPARATOR;
    if (decoder->tokenizer) text = tokenizer_decode(decoder, token, &length);
    if (token == end) fputs("<end>", stdout);
    for (size_t i = 0; i < length && token != end; i++) print_byte((unsigned char)text[i]);
}

/* What is shown, and how. */
typedef struct Shown {
    const ShardSet *set;
    const DataOptions *options;
    const char *name;     /* of the tokenizer, from shard_set_tokenizer; "": bytes, NULL: not known */
    Tokenizer *tokenizer; /* NULL: bytes, or not known */
} Shown;

/* Prints a sample as text if its tokenizer is known, otherwise as numbers. */
static bool print_tokens(const Shown *shown, Error *error) {
    const ShardSet *set = shown->set;
    const DataOptions *options = shown->options;
    bool text = shown->name != NULL;
    int64_t first = options->sample * options->length, count = int_min(options->length, set->token_count - first);
    if (count < 1)
        return error_set(error, ERROR_USAGE,
            "sample=%" PRId64 " of length=%" PRId64 " is past the last of %" PRId64 " tokens: use a smaller sample", options->sample,
            options->length, set->token_count);
    SCOPED_FREE int32_t *tokens = memory_allocate((size_t)count * sizeof *tokens);
    if (!shard_set_read(set, first, count, (int64_t)INT32_MAX + 1, tokens, NULL, error)) return false;
    TokenizerDecoder decoder = {0};
    if (shown->tokenizer) decoder = tokenizer_decoder(shown->tokenizer, false);
    if (first > 0) printf("tokens from %" PRId64 ": %s", first, text ? "\"" : "");
    else printf("first tokens:     %s", text ? "\"" : "");
    for (int64_t i = 0; i < count; i++)
        if (text) print_text(&decoder, tokens[i]);
        else printf("%s%" PRId32, i > 0 ? " " : "", tokens[i]);
    printf("%s%s\n", text ? "\"" : "", first + count < set->token_count ? " ..." : "");
    return true;
}

/* Finds the tokens [*start, *end) of the document to show. */
static bool find_shown(const ShardSet *set, int64_t number, int64_t *start, int64_t *end, Error *error) {
    DocumentCursor cursor = {.set = set};
    for (int64_t i = 0; i <= number; i++) {
        if (!document_cursor_next(&cursor, start, end, error)) return false;
        if (*end < 0)
            return error_set(
                error, ERROR_USAGE, "document=%" PRId64 " is past the last of %" PRId64 " documents: use a smaller number", number, i);
    }
    return true;
}

/* Prints the start or end mark of trained tokens: green on a terminal, otherwise {+ and +}. */
static void trained_mark(bool trained, bool color) {
    if (color) fputs(trained ? "\033[32m" : "\033[0m", stdout);
    else fputs(trained ? "{+" : "+}", stdout);
}

/* Prints a part of a text with its line ends, in whole characters; control characters are
 * escaped. */
static void print_text_part(Utf8Stream *stream, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        char piece[UTF8_OUTPUT];
        int size = utf8_put(stream, (uint8_t)text[i], piece);
        bool c1 = size == 2 && piece[0] == '\xc2' && (unsigned char)piece[1] < 0xa0, visible = size > 1 && !c1;
        for (int k = 0; k < size; k++)
            if (visible || strchr("\n\t\"\\", piece[k])) putchar(piece[k]);
            else print_byte((unsigned char)piece[k]);
    }
}

/* Counts the trained tokens in [start, end); parts are read into `tokens` and `marks`. */
static bool count_trained_tokens(
    const ShardSet *set, int64_t start, int64_t end, int32_t *tokens, uint8_t *marks, int64_t *trained, Error *error) {
    *trained = 0;
    for (int64_t count; start < end; start += count) {
        count = int_min(end - start, MOST_SHOWN);
        if (!shard_set_read(set, start, count, (int64_t)INT32_MAX + 1, tokens, marks, error)) return false;
        for (int64_t i = 0; i < count; i++) *trained += !(marks[i] & TOKEN_UNTRAINED);
    }
    return true;
}

/* Prints one document as text, with its trained tokens marked. */
static bool print_document(const Shown *shown, int64_t number, Error *error) {
    const ShardSet *set = shown->set;
    int64_t start, end, trained;
    if (!find_shown(set, number, &start, &end, error)) return false;
    int64_t count = int_min(end - start, MOST_SHOWN);
    SCOPED_FREE int32_t *tokens = memory_allocate((size_t)(count + 1) * sizeof *tokens);
    SCOPED_FREE uint8_t *marks = memory_allocate((size_t)(count + 1));
    if (!count_trained_tokens(set, start, end, tokens, marks, &trained, error)) return false;
    if (count && !shard_set_read(set, start, count, (int64_t)INT32_MAX + 1, tokens, marks, error)) return false;
    TokenizerDecoder decoder = {0};
    if (shown->tokenizer) decoder = tokenizer_decoder(shown->tokenizer, false);
    bool color = isatty(STDOUT_FILENO) && !getenv("NO_COLOR"), marked = false;
    Utf8Stream stream = {0};
    printf("document %" PRId64 "%s: %" PRId64 " tokens, %" PRId64 " trained\n", number,
        !set->pairs       ? ""
        : number % 2 == 0 ? ", chosen"
                          : ", rejected",
        end - start, trained);
    for (int64_t i = 0; i < count; i++) {
        bool now = !(marks[i] & TOKEN_UNTRAINED);
        char byte = (char)tokens[i];
        size_t length = 1;
        const char *text = shown->tokenizer ? tokenizer_decode(&decoder, tokens[i], &length) : &byte;
        if (now != marked) trained_mark(marked = now, color);
        if (!shown->name) printf("%s%" PRId32, i > 0 ? " " : "", tokens[i]);
        else if (!shown->tokenizer && tokens[i] == BYTE_SEPARATOR) fputs("<end>", stdout);
        else print_text_part(&stream, text, length);
    }
    if (marked) trained_mark(false, color);
    printf("%s\n", count < end - start ? " ..." : "");
    return true;
}

static bool print_mask(const ShardSet *set, Error *error) {
    int64_t trained;
    if (!set->masked) return true;
    if (!shard_set_trained(set, &trained, error)) return false;
    print_trained(trained, set->token_count);
    return true;
}

static bool measure_documents(const ShardSet *set, int64_t *documents, int64_t *longest, Error *error) {
    DocumentCursor cursor = {.set = set};
    int64_t start = 0, end = 0;
    *longest = 0;
    for (*documents = -1; end >= 0; ++*documents, *longest = int_max(*longest, end - start))
        if (!document_cursor_next(&cursor, &start, &end, error)) return false;
    return true;
}

/* Prints the document counts. Without a document index, the ends are only found when all tokens are
 * read. */
static bool print_documents(const ShardSet *set, const DataOptions *options, Error *error) {
    int64_t documents = set->document_count, longest;
    if (documents < 0 && !options->check) {
        printf("documents:        not indexed by this format; check=true counts them%s\n",
            set->end_token < 0 ? " if tokenizer= is given" : "");
        return true;
    }
    if (!measure_documents(set, &documents, &longest, error)) return false;
    printf("documents:        %" PRId64 "%s\n", documents, set->pairs ? ", in pairs of a chosen answer and a rejected one" : "");
    printf("longest document: %" PRId64 " tokens\n", longest);
    printf("mean document:    %.1f tokens\n", (double)set->token_count / (double)documents);
    return true;
}

static bool print_set(const Shown *shown, Error *error) {
    char size[32];
    const ShardSet *set = shown->set;
    const DataOptions *options = shown->options;
    int64_t bytes = shard_set_bytes(set);
    SCOPED_FREE char *types = shard_set_types(set), *formats = shard_set_formats(set);
    log_format_bytes((double)bytes, size);
    printf("shard:            %s\n", set->path);
    printf("format:           %s\n", formats);
    if (set->count > 1) printf("shards:           %" PRId64 "\n", set->count);
    printf("tokenizer:        %s\n", !shown->name ? "not recorded" : *shown->name ? shown->name : "bytes");
    printf("type:             %s\n", types);
    printf("tokens:           %" PRId64 "\n", set->token_count);
    printf("size:             %" PRId64 " bytes (%s)\n", bytes, size);
    bool document = options->document >= 0 || (set->masked && options->sample == 0);
    if (!print_mask(set, error) || !print_documents(set, options, error)) return false;
    if (!document) return print_tokens(shown, error);
    bool pair = set->pairs && options->document < 0;
    return print_document(shown, int_max(options->document, 0), error) && (!pair || print_document(shown, 1, error));
}

static bool print_check(ShardSet *set, Error *error) {
    if (!shard_set_verify(set, error)) return false;
    printf("largest token:    %" PRId64 "\n", set->max_token);
    if (shard_set_checksummed(set)) printf("check:            passed, all bytes of all files are as written\n");
    else printf("check:            passed for sizes, boundaries and signs; the files carry no checksums of their bytes\n");
    return true;
}

/* Returns PREFIX for PREFIX.bin, PREFIX.idx or PREFIX. */
static char *prefix_of(const char *path) {
    size_t length = strlen(path);
    if (length > 4 && (ends_with(path, ".bin") || ends_with(path, ".idx"))) length -= 4;
    return memory_format("%.*s", (int)length, path);
}

/* Refuses a folder without shards; names the folder that a run has packed. */
static bool refuse_folder(const char *folder, Error *error) {
    SCOPED_FREE char *data = memory_format("%s/data", folder);
    if (shard_set_exists(data))
        return error_set(error, ERROR_USAGE, "%s contains no token shards, but %s does: give that folder", folder, data);
    return error_set(error, ERROR_USAGE,
        "%s is a folder without token shards: give a folder with token shards, or the prefix of a shard's .bin and .idx", folder);
}

static bool run_show(Invocation *invocation, Error *error) {
    const DataOptions *options = invocation->options;
    const char *given = invocation->words[0];
    SCOPED_FREE char *path = shard_set_exists(given) ? memory_copy_string(given) : prefix_of(given);
    SCOPED(shard_set_close) ShardSet set = {0};
    if (!shard_set_exists(path) && file_kind(path, NULL) == FILE_FOLDER) return refuse_folder(path, error);
    SCOPED_FREE char *recorded = NULL;
    if (!shard_set_tokenizer(path, &recorded, error)) return false;
    Shown shown = {.set = &set, .options = options, .name = options->tokenizer[0] ? options->tokenizer : recorded};
    if (!shard_set_open(&set, path, error)) return false;
    if (shown.name && *shown.name && !(shown.tokenizer = tokenizer_open(shown.name, error))) return false;
    if (shown.name) set.end_token = shown.tokenizer ? tokenizer_end_of_text(shown.tokenizer) : BYTE_SEPARATOR;
    bool good = print_set(&shown, error) && (!options->check || print_check(&set, error));
    tokenizer_free(shown.tokenizer);
    return good;
}

/* -- split --------------------------------------------------------------------------------------------------------- */

static bool run_split(Invocation *invocation, Error *error) {
    const DataOptions *options = invocation->options;
    const char *output = invocation->words[1];
    SplitPart parts[2];
    SplitOptions split = {.input = invocation->words[0],
        .output = output,
        .tokenizer = options->tokenizer,
        .valid_fraction = options->valid,
        .overwrite = options->overwrite};
    if (!split_shards(&split, &parts[0], &parts[1], error)) return false;
    SCOPED_FREE char *name = memory_format("%.*s", (int)path_length(output), output);
    for (int i = 0; i < 2; i++)
        printf("%s-%s: %" PRId64 " document%s, %" PRId64 " tokens\n", name, i ? "valid" : "train", parts[i].documents,
            plural(parts[i].documents), parts[i].tokens);
    printf("next     smelt train FILE.yaml run=RUN data.train=%s-train data.valid=%s-valid\n", name, name);
    return true;
}

/* -- The commands -------------------------------------------------------------------------------------------------- */

#define TABLE(rows) &(const OptionTable)OPTION_TABLE(rows)
static const Command members[] = {
    {.name = "data pack",
        .summary = "convert text, JSON, CSV, Parquet, conversations or preference pairs to token shards",
        .words = "INPUT...",
        .usage = "INPUT... OUTPUT [key=value ...]",
        .explanation = "Writes the text of files and folders, or of standard input (-), as token shards, OUTPUT.bin and OUTPUT.idx. An "
                       "input is text, JSON or CSV, plain or compressed by gzip, zlib, zstd, xz or lzma, or Parquet. With shard_tokens=N, "
                       "OUTPUT is a folder of shards, and the same command continues a killed job.\n",
        .table = TABLE(pack_rows),
        .options_size = sizeof(DataOptions),
        .run = run_pack},
    {.name = "data split",
        .summary = "split token shards into a training and a validation part by documents",
        .words = "SHARDS OUTPUT",
        .explanation = "Writes each document of SHARDS, or pair of answers, to OUTPUT-train or OUTPUT-valid. A hash of its tokens decides, "
                       "so equal documents go to the same part, even if their shards are split separately.\n",
        .table = TABLE(split_rows),
        .options_size = sizeof(DataOptions),
        .run = run_split},
    {.name = "data train-tokenizer",
        .summary = "train a byte-level BPE tokenizer on text",
        .words = "INPUT OUTPUT.json",
        .explanation = "Trains a byte-level BPE vocabulary on the text of a file or folder, and writes it as a tokenizer.json.\n",
        .table = TABLE(train_rows),
        .options_size = sizeof(DataOptions),
        .run = run_train_tokenizer},
    {.name = "data show",
        .summary = "print the contents of token shards",
        .words = "PATH",
        .explanation = "Prints the contents of token shards and their first tokens. PATH is the prefix of PATH.bin and PATH.idx, a file of "
                       "llm.c or llmq, a folder of any of these, or a folder of Mosaic's MDS.\n",
        .table = TABLE(show_rows),
        .options_size = sizeof(DataOptions),
        .run = run_show},
};

static const Command *data_member(int index) {
    static const Command *const others[] = {&command_data_encode, &command_data_decode};
    enum { HERE = sizeof members / sizeof *members, ALL = HERE + sizeof others / sizeof *others };
    return index < HERE ? &members[index] : index < ALL ? others[index - HERE] : NULL;
}

const Command command_data = {
    .name = "data",
    .summary = "pack text into token shards, show shards, train a tokenizer, encode and decode",
    .explanation = "Prepares and shows training data.",
    .member = data_member,
};

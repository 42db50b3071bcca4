/* `smelt data pack` turns text into token shards, `smelt data show` tells what a shard holds and checks it, and `smelt
 * data train-tokenizer` learns a vocabulary from text. Results go to stdout, everything else to stderr. Called from the
 * command table in main.c with argv[0] being "data". */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/options.h"
#include "app/command.h"
#include "data/data.h"

enum { SHOWN_TOKENS = 200 };

typedef struct DataOptions {
    double valid;
    const char *separator, *tokenizer;
    bool special, check, overwrite;
    int64_t vocabulary, minimum_count;
    int pattern;
} DataOptions;

#define FIELD(name) offsetof(DataOptions, name)
#define SEPARATOR_ROW                                                                                                  \
    STRING_OPTION(separator, "", "", "a line equal to this separates documents (% for fortunes); empty: one document per file")

static const Option pack_rows[] = {
    REAL_OPTION(valid, "0", 0, 0.5, "", "fraction of each file that goes to OUTPUT-valid, the rest to OUTPUT-train; 0: all to OUTPUT"),
    SEPARATOR_ROW,
    STRING_OPTION(tokenizer, "", "", "a tokenizer.json, a model folder with one, or a .tiktoken file; empty: tokens are bytes"),
    BOOL_OPTION(special, "true", "special tokens spelled out in the text become those tokens; false: they stay text"),
    BOOL_OPTION(overwrite, "false", "replace a shard of that name"),
};

#define PATTERNS "gpt2|llama3|qwen"
static const char *const pattern_names[] = {"gpt2", "llama3", "qwen"};
static const Option train_rows[] = {
    INT_OPTION(vocabulary, "32768", 257, 1 << 22, "tokens", "tokens in all: <|endoftext|>, 256 bytes, and what is learned"),
    CHOICE_OPTION(pattern, "llama3", PATTERNS, "how text is divided into words"),
    INT_OPTION(minimum_count, "2", 1, 1e15, "", "a pair that occurs less often does not become a token"),
    SEPARATOR_ROW,
    BOOL_OPTION(overwrite, "false", "replace a file of that name"),
};

static const Option show_rows[] = {
    BOOL_OPTION(check, "false", "read all tokens and verify the checksums"),
};

/* -- pack ---------------------------------------------------------------------------------------------------------- */

static bool refuse_existing(const DataOptions *options, const char *path, Error *error) {
    return options->overwrite || !file_exists(path) ||
           error_set(error, ERROR_USAGE, "%s exists: give another name, or overwrite=true to replace it", path);
}

/* Runs may train on the shards that are there, and files of such a name may be no shard's. */
static bool refuse_existing_shards(const DataOptions *options, const char *output, Error *error) {
    static const char *const parts[] = {"", "-train", "-valid"}, *const suffixes[] = {".idx", ".bin", ".tokenizer"};
    bool free_names = true;
    for (int i = options->valid > 0; i < (options->valid > 0 ? 3 : 1); i++)
        for (int j = 0; j < 3 && free_names; j++) {
            SCOPED_FREE char *path = memory_format("%s%s%s", output, parts[i], suffixes[j]);
            free_names = refuse_existing(options, path, error);
        }
    return free_names;
}

static bool run_pack(Invocation *invocation, Error *error) {
    const DataOptions *options = invocation->options;
    const char *output = invocation->words[1];
    PackOptions pack = {invocation->words[0], output, options->valid, options->separator, options->tokenizer, !options->special};
    PackResult result;
    double start = log_seconds();
    if (!refuse_existing_shards(options, output, error)) return false;
    if (!pack_text(&pack, &result, error)) return false;
    double seconds = log_seconds() - start;
    char size[32], duration[32], rate[32];
    log_format_bytes((double)result.bytes, size);
    log_format_duration(seconds, duration);
    log_format_bytes((double)result.bytes / (seconds > 1e-9 ? seconds : 1e-9), rate);
    bool split = options->valid > 0;
    printf("packed %s of text in %s (%s/s): %" PRId64 " file%s, %" PRId64 " document%s%s\n", size, duration, rate, result.files,
        plural(result.files), result.documents, plural(result.documents), split ? " (a divided one counts twice)" : "");
    printf("%s%s: %" PRId64 " tokens\n", output, split ? "-train" : "", result.train_tokens);
    if (split) printf("%s-valid: %" PRId64 " tokens\n", output, result.valid_tokens);
    printf("next     smelt train FILE.yaml run=RUN data.train=%s%s%s%s%s\n", output, split ? "-train" : "", split ? " data.valid=" : "",
        split ? output : "", split ? "-valid" : "");
    return true;
}

/* -- train-tokenizer ----------------------------------------------------------------------------------------------- */

/* Whether a file that exists lies in a folder, by whatever name. */
static bool lies_in(const char *path, const char *folder) {
    SCOPED_FREE char *file = realpath(path, NULL), *root = realpath(folder, NULL);
    size_t length = root ? strlen(root) : 0;
    return file && root && starts_with(file, root) && (root[length - 1] == '/' || file[length] == '/' || !file[length]);
}

static bool run_train_tokenizer(Invocation *invocation, Error *error) {
    const DataOptions *options = invocation->options;
    const char *text = invocation->words[0], *output = invocation->words[1];
    PackOptions input = {.input = text, .output = output, .separator = options->separator};
    TokenizerTraining training = {pattern_names[options->pattern], (int32_t)options->vocabulary, options->minimum_count};
    PackResult result;
    int32_t learned;
    if (lies_in(output, text)) return error_set(error, ERROR_USAGE, "%s is both input and output; name another output", output);
    if (!refuse_existing(options, output, error)) return false;
    double start = log_seconds();
    if (!pack_train_tokenizer(&input, &training, &result, &learned, error)) return false;
    char size[32], duration[32];
    log_format_bytes((double)result.bytes, size);
    log_format_duration(log_seconds() - start, duration);
    printf("%s: %" PRId32 " tokens, learned from %s of text in %s\n", output, learned, size, duration);
    if (learned < training.vocabulary)
        log_warn("the text has pairs for %" PRId32 " of %" PRId32 " tokens; give more text or a smaller minimum_count", learned,
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

/* A token as text: by `decoder`, or, where it has no tokenizer, as a byte. */
static void print_text(TokenizerDecoder *decoder, int32_t token) {
    const char byte = (char)token, *text = &byte;
    size_t length = 1;
    int32_t end = decoder->tokenizer ? tokenizer_end_of_text(decoder->tokenizer) : BYTE_SEPARATOR;
    if (decoder->tokenizer) text = tokenizer_decode(decoder, token, &length);
    if (token == end) fputs("<end>", stdout);
    for (size_t i = 0; i < length && token != end; i++) print_byte((unsigned char)text[i]);
}

/* As text where what made them is recorded (`record` as of shard_tokenizer), else as numbers. */
static void print_tokens(const Shard *shard, const char *record) {
    Error ignored = {0};
    int64_t count = shard->token_count < SHOWN_TOKENS ? shard->token_count : SHOWN_TOKENS;
    Tokenizer *tokenizer = record && *record ? tokenizer_open(record, "", &ignored) : NULL;
    TokenizerDecoder decoder = {0};
    if (tokenizer) decoder = tokenizer_decoder(tokenizer, false);
    bool text = record && (tokenizer || !*record);
    printf("first tokens:     %s", text ? "\"" : "");
    for (int64_t i = 0; i < count; i++)
        if (text) print_text(&decoder, shard_token(shard, i));
        else printf("%s%" PRId32, i > 0 ? " " : "", shard_token(shard, i));
    printf("%s%s\n", text ? "\"" : "", count < shard->token_count ? " ..." : "");
    tokenizer_free(tokenizer);
}

static int64_t longest_document(const Shard *shard) {
    int64_t longest = 0, start = 0;
    for (int64_t i = 0; i < shard->document_count; i++) {
        int64_t length = shard->document_end[i] - start;
        if (length > longest) longest = length;
        start = shard->document_end[i];
    }
    return longest;
}

static void print_shard(const Shard *shard) {
    char size[32];
    log_format_bytes((double)shard->map.size, size);
    printf("shard:            %s\n", shard->prefix);
    SCOPED_FREE char *tokenizer = shard_tokenizer(shard->prefix);
    printf("tokenizer:        %s\n", !tokenizer ? "not recorded" : *tokenizer ? tokenizer : "bytes");
    printf("type:             %s\n", shard_type_name(shard));
    printf("tokens:           %" PRId64 "\n", shard->token_count);
    printf("documents:        %" PRId64 "\n", shard->document_count);
    printf("size:             %zu bytes (%s)\n", shard->map.size, size);
    printf("longest document: %" PRId64 " tokens\n", longest_document(shard));
    printf("mean document:    %.1f tokens\n", (double)shard->token_count / (double)shard->document_count);
    print_tokens(shard, tokenizer);
}

static bool print_check(Shard *shard, Error *error) {
    if (!shard_verify(shard, error)) return false;
    printf("largest token:    %" PRIu32 "\n", shard->max_token);
    if (shard->checksummed) printf("check:            passed, all bytes of both files are as written\n");
    else printf("check:            passed for sizes, boundaries and signs; the index carries no checksums of the bytes\n");
    return true;
}

/* PREFIX.bin and PREFIX.idx are understood as PREFIX. */
static char *prefix_of(const char *path) {
    size_t length = strlen(path);
    if (length > 4 && (ends_with(path, ".bin") || ends_with(path, ".idx"))) length -= 4;
    return memory_format("%.*s", (int)length, path);
}

/* Names a shard that lies in a folder, or in a run's folder of packed text. */
static bool refuse_folder(const char *folder, Error *error) {
    static const char *const parts[] = {"/data", ""};
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *place = memory_format("%s%s", folder, parts[i]);
        SCOPED(file_list_free) FileList list = {0};
        if (!file_list(place, &list, error)) continue;
        for (size_t j = 0; j < list.count; j++)
            if (ends_with(list.entries[j].name, ".idx"))
                return error_set(error, ERROR_USAGE, "%s is a folder: give the prefix of a token shard, such as %s/%.*s", folder, place,
                    (int)strlen(list.entries[j].name) - 4, list.entries[j].name);
    }
    return error_set(error, ERROR_USAGE, "%s is a folder without token shards: give the prefix of a shard's .bin and .idx", folder);
}

static bool run_show(Invocation *invocation, Error *error) {
    const DataOptions *options = invocation->options;
    SCOPED_FREE char *prefix = prefix_of(invocation->words[0]);
    SCOPED(shard_close) Shard shard = {0};
    if (!shard_exists(prefix) && file_kind(prefix, NULL) == FILE_FOLDER) return refuse_folder(prefix, error);
    if (!shard_map(&shard, prefix, error)) return false;
    print_shard(&shard);
    return !options->check || print_check(&shard, error);
}

/* -- The commands -------------------------------------------------------------------------------------------------- */

#define TABLE(rows) &(const OptionTable)OPTION_TABLE(rows)
static const Command members[] = {
    {.name = "data pack",
        .summary = "text file or folder to token shards",
        .words = "INPUT OUTPUT",
        .explanation = "Writes the text of a file or folder, or of standard input (-), as token shards, OUTPUT.bin and OUTPUT.idx.\n"
                       "  zcat texts.gz | smelt data pack - OUTPUT\n",
        .table = TABLE(pack_rows),
        .options_size = sizeof(DataOptions),
        .run = run_pack},
    {.name = "data train-tokenizer",
        .summary = "text file or folder to a byte-level BPE vocabulary",
        .words = "INPUT OUTPUT.json",
        .explanation = "Learns a byte-level BPE vocabulary from the text of a file or folder, and writes it as a tokenizer.json.\n",
        .table = TABLE(train_rows),
        .options_size = sizeof(DataOptions),
        .run = run_train_tokenizer},
    {.name = "data show",
        .summary = "what a shard holds",
        .words = "PREFIX",
        .explanation = "Prints what the token shard PREFIX.bin and PREFIX.idx holds, and its first tokens.\n",
        .table = TABLE(show_rows),
        .options_size = sizeof(DataOptions),
        .run = run_show},
};

static const Command *data_member(int index) { return index < (int)(sizeof members / sizeof *members) ? &members[index] : NULL; }

const Command command_data = {
    .name = "data",
    .summary = "pack text into token shards, show them, or learn a vocabulary",
    .explanation = "Makes and shows the data that a model is trained on.",
    .member = data_member,
};

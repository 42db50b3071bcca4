/* `smelt data pack` turns text into token shards, `smelt data show` tells what a shard holds and checks it, and `smelt
 * data train-tokenizer` learns a vocabulary from text. Results go to stdout, everything else to stderr. Called from the
 * command table in main.c with argv[0] being "data". */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "app/arguments.h"
#include "app/commands.h"
#include "data/data.h"

enum { POSITIONALS = 2, SHOWN_TOKENS = 200 };

typedef struct DataOptions {
    double valid;
    const char *separator, *tokenizer;
    bool special, check;
    int64_t vocabulary, minimum_count;
    int pattern;
} DataOptions;

#define FIELD(name) offsetof(DataOptions, name)
#define SEPARATOR_ROW                                                                                                  \
    STRING_OPTION(separator, "", "", "a line equal to this separates documents (% for fortunes); empty: one document per file")

static const Option pack_rows[] = {
    REAL_OPTION(valid, "0", 0, 0.5, "", "part of each file that goes to OUTPUT-valid, the rest to OUTPUT-train; 0: all to OUTPUT"),
    SEPARATOR_ROW,
    STRING_OPTION(tokenizer, "", "", "a tokenizer.json, a model folder with one, or a .tiktoken file; empty: tokens are bytes"),
    BOOL_OPTION(special, "true", "special tokens that a text spells out become those tokens; false: they stay ordinary text"),
};

#define PATTERNS "gpt2|llama3|qwen"
static const char *const pattern_names[] = {"gpt2", "llama3", "qwen"};
static const Option train_rows[] = {
    INT_OPTION(vocabulary, "32768", 257, 1 << 22, "tokens", "tokens in all: <|endoftext|>, 256 bytes, and what is learned"),
    CHOICE_OPTION(pattern, "llama3", PATTERNS, "how text is divided into words"),
    INT_OPTION(minimum_count, "2", 1, 1e15, "", "a pair that is seen less often does not become a token"),
    SEPARATOR_ROW,
};

static const Option show_rows[] = {
    BOOL_OPTION(check, "false", "read all tokens and compare them with the checksum"),
};

typedef struct Action {
    const char *name, *arguments, *help;
    int positionals;
    OptionTable table;
    bool (*run)(const char *const *positionals, const DataOptions *options, Error *error);
} Action;

/* -- pack -------------------------------------------------------------------------------------------------------- */

static bool run_pack(const char *const *positionals, const DataOptions *options, Error *error) {
    PackOptions pack = {positionals[0], positionals[1], options->valid, options->separator, options->tokenizer, !options->special};
    PackResult result;
    double start = log_seconds();
    if (!pack_text(&pack, &result, error)) return false;
    double seconds = log_seconds() - start;
    char size[32], duration[32], rate[32];
    log_format_bytes((double)result.bytes, size);
    log_format_duration(seconds, duration);
    log_format_bytes((double)result.bytes / (seconds > 1e-9 ? seconds : 1e-9), rate);
    printf("packed %s of text in %s (%s/s): %" PRId64 " documents\n", size, duration, rate, result.documents);
    if (options->valid > 0) {
        printf("%s-train: %" PRId64 " tokens\n", positionals[1], result.train_tokens);
        printf("%s-valid: %" PRId64 " tokens\n", positionals[1], result.valid_tokens);
    } else {
        printf("%s: %" PRId64 " tokens\n", positionals[1], result.train_tokens);
    }
    return true;
}

/* -- train-tokenizer --------------------------------------------------------------------------------------------- */

/* Whether a file that exists lies in a folder, by whatever name. */
static bool lies_in(const char *path, const char *folder) {
    char *file = realpath(path, NULL), *root = realpath(folder, NULL);
    size_t length = root ? strlen(root) : 0;
    bool inside = file && root && !strncmp(file, root, length) && (root[length - 1] == '/' || file[length] == '/' || !file[length]);
    free(file);
    free(root);
    return inside;
}

static bool run_train_tokenizer(const char *const *positionals, const DataOptions *options, Error *error) {
    PackOptions input = {.input = positionals[0], .output = positionals[1], .separator = options->separator};
    TokenizerTraining training = {pattern_names[options->pattern], (int32_t)options->vocabulary, options->minimum_count};
    PackResult result;
    int32_t learned;
    if (lies_in(positionals[1], positionals[0]))
        return error_set(error, ERROR_USAGE, "%s is both input and output; name another output", positionals[1]);
    double start = log_seconds();
    if (!pack_train_tokenizer(&input, &training, &result, &learned, error)) return false;
    char size[32], duration[32];
    log_format_bytes((double)result.bytes, size);
    log_format_duration(log_seconds() - start, duration);
    printf("%s: %" PRId32 " tokens, learned from %s of text in %s\n", positionals[1], learned, size, duration);
    if (learned < training.vocabulary)
        log_warn("the text has pairs for %" PRId32 " of %" PRId32 " tokens; give more text or a smaller minimum_count", learned,
            training.vocabulary);
    return true;
}

/* -- show -------------------------------------------------------------------------------------------------------- */

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

/* Tokens of the byte tokenizer as text, others as numbers: their text needs the model's tokenizer. */
static void print_tokens(const Shard *shard) {
    int64_t count = shard->token_count < SHOWN_TOKENS ? shard->token_count : SHOWN_TOKENS;
    bool bytes = true;
    for (int64_t i = 0; i < count; i++) {
        int32_t token = shard_token(shard, i);
        bytes = bytes && token >= 0 && token < BYTE_VOCABULARY;
    }
    printf("first tokens:     %s", bytes ? "\"" : "");
    for (int64_t i = 0; i < count; i++) {
        int32_t token = shard_token(shard, i);
        if (!bytes) printf("%s%" PRId32, i > 0 ? " " : "", token);
        else if (token == BYTE_SEPARATOR) fputs("<end>", stdout);
        else print_byte(token);
    }
    printf("%s%s\n", bytes ? "\"" : "", count < shard->token_count ? " ..." : "");
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
    log_format_bytes((double)shard->mapped_bytes, size);
    printf("shard:            %s\n", shard->prefix);
    printf("type:             %s\n", shard_type_name(shard));
    printf("tokens:           %" PRId64 "\n", shard->token_count);
    printf("documents:        %" PRId64 "\n", shard->document_count);
    printf("size:             %zu bytes (%s)\n", shard->mapped_bytes, size);
    printf("longest document: %" PRId64 " tokens\n", longest_document(shard));
    printf("mean document:    %.1f tokens\n", (double)shard->token_count / (double)shard->document_count);
    print_tokens(shard);
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
    const char *suffix = length > 4 ? path + length - 4 : "";
    if (strcmp(suffix, ".bin") == 0 || strcmp(suffix, ".idx") == 0) length -= 4;
    return memory_format("%.*s", (int)length, path);
}

static bool run_show(const char *const *positionals, const DataOptions *options, Error *error) {
    char *prefix = prefix_of(positionals[0]);
    Shard shard;
    bool good = shard_map(&shard, prefix, error);
    free(prefix);
    if (!good) return false;
    print_shard(&shard);
    if (options->check) good = print_check(&shard, error);
    shard_close(&shard);
    return good;
}

/* -- Arguments --------------------------------------------------------------------------------------------------- */

static const Action actions[] = {
    {"pack", "INPUT OUTPUT", "text file or folder to token shards", 2, OPTION_TABLE(pack_rows), run_pack},
    {"train-tokenizer", "INPUT OUTPUT.json", "text file or folder to a byte-level BPE vocabulary", 2, OPTION_TABLE(train_rows),
        run_train_tokenizer},
    {"show", "PREFIX", "what a shard holds", 1, OPTION_TABLE(show_rows), run_show},
};
enum { ACTIONS = sizeof actions / sizeof *actions };

static const Action *find_action(const char *name) {
    for (int i = 0; i < ACTIONS; i++)
        if (strcmp(actions[i].name, name) == 0) return &actions[i];
    return NULL;
}

static void print_help(const Action *only) {
    for (int i = 0; i < ACTIONS; i++) {
        if (only && only != &actions[i]) continue;
        printf("usage: smelt data %s %s [key=value ...]    %s\n", actions[i].name, actions[i].arguments, actions[i].help);
        options_print_help(&actions[i].table, stdout);
    }
}

/* argv[0] is the first argument after the action's name. */
static bool run_action(const Action *action, int argc, char **argv, OptionStrings *strings, Error *error) {
    DataOptions options = {.separator = "", .tokenizer = "", .special = true};
    const char *positionals[POSITIONALS] = {0};
    char *command = memory_format("smelt data %s", action->name);
    ArgumentSyntax syntax = {command, action->arguments, action->positionals, &action->table};
    bool good = arguments_read(&syntax, argc, argv, &options, strings, positionals, error) && action->run(positionals, &options, error);
    free(command);
    return good;
}

int cmd_data(int argc, char **argv) {
    const Action *action = argc > 1 ? find_action(argv[1]) : NULL;
    if (arguments_want_help(argc, argv)) {
        print_help(action);
        return ERROR_NONE;
    }
    Error error = {0};
    OptionStrings strings = {0};
    if (action) run_action(action, argc - 2, argv + 2, &strings, &error);
    else
        error_set(&error, ERROR_USAGE,
            "smelt data %s is unknown; the actions are pack, train-tokenizer and show, `smelt data --help` explains them",
            argc > 1 ? argv[1] : "without an action");
    options_free_strings(&strings);
    return error.code == ERROR_NONE ? 0 : cmd_fail(&error);
}

/* `smelt data encode` turns text on standard input into ids on standard output, and `smelt data
 * decode` turns ids back. Both work on pipes: output follows input immediately. Memory does not
 * grow with the input, except with the longest document if the tokenizer has no place to cut it.
 * Members of the group in cmd_data.c. */
#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/cmd_data_internal.h"
#include "base/array.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/byte_tokenizer.h"
#include "data/shard_set.h"
#include "token/tokenizer.h"
#include "infer/utf8.h"
#include "run/source.h"

enum { PART_BYTES = 1 << 20, DOCUMENT_LIMIT = 1 << 30 };

typedef enum Documents { DOCUMENTS_LINE, DOCUMENTS_JSON, DOCUMENTS_ALL } Documents;
typedef struct TokensOptions {
    int documents;
    const char *field;
    bool special, template, skip_special;
} TokensOptions;

#define FIELD(name) offsetof(TokensOptions, name)
static const Option encode_rows[] = {
    CHOICE_OPTION(documents, "line", "line|json|all", "unit of a document: a line, the text of a line of JSON, or the whole input"),
    STRING_OPTION(field, "text", "", "documents=json: field with the text"),
    BOOL_OPTION(special, "false", "parse special tokens spelled out in the text; false: keep them as text"),
    BOOL_OPTION(template, "false", "add the tokens that the tokenizer puts around a text, such as bos_token"),
};
static const Option decode_rows[] = {
    CHOICE_OPTION(
        documents, "line", "line|json|all", "output for a line of ids: its text and a line feed, the text as JSON, or only the text"),
    BOOL_OPTION(skip_special, "false", "omit special tokens from the text"),
};

/* -- The tokenizer ------------------------------------------------------------------------------------------------- */

typedef struct InputText {
    Tokenizer *tokenizer; /* NULL: bytes */
    char *name;
} InputText;

static void text_close(InputText *text) {
    tokenizer_free(text->tokenizer);
    free(text->name);
}

/* Returns the tokenizer of a run, a model folder or shards, or else the path itself. The caller
 * frees; NULL: none is recorded. */
static char *tokenizer_path(const char *name, Error *error) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config config;
    if (file_kind(name, NULL) == FILE_REGULAR) return memory_copy_string(name);
    char *recorded;
    if (shard_set_exists(name)) return shard_set_tokenizer(name, &recorded, error) ? recorded : NULL;
    if (!source_is_run(name) && !source_is_model_folder(name)) return memory_copy_string(name);
    return source_read_config(name, &config, &strings, error) ? source_tokenizer(name, &config) : NULL;
}

static bool text_open(InputText *text, const char *name, Error *error) {
    text->name = tokenizer_path(name, error);
    if (!text->name)
        return error->code == ERROR_NONE ? error_set(error, ERROR_USAGE, "%s records no tokenizer: give a tokenizer file instead", name)
                                         : false;
    if (*text->name && !(text->tokenizer = tokenizer_open(text->name, error))) return false;
    if (*text->name) return true;
    free(text->name);
    text->name = memory_copy_string("the byte tokenizer");
    return true;
}

/* -- encode -------------------------------------------------------------------------------------------------------- */

typedef struct Encoding {
    const TokensOptions *options;
    InputText text;
    TokenizerEncoder *encoder;
    TokenIds ids;
    char *bytes; /* bytes of a document that are read and not encoded yet */
    size_t size, capacity;
    int64_t line;
    bool begun; /* ids of this document were printed */
    bool pipe;
} Encoding;

/* Prints a number. printf would take longer than encoding. */
static void print_number(int32_t number) {
    char digits[12], *at = digits + sizeof digits;
    do *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    fwrite_unlocked(at, 1, (size_t)(digits + sizeof digits - at), stdout);
}

/* Ends a line. On a pipe each answer is flushed immediately. */
static void end_line(bool pipe) {
    putchar_unlocked('\n');
    if (pipe) fflush(stdout);
}

static bool print_ids(Encoding *encoding, const char *bytes, size_t size, bool last, Error *error) {
    const TokensOptions *options = encoding->options;
    unsigned flags = (options->special ? 0 : TOKENIZER_PLAIN_SPECIAL) | (options->template ? TOKENIZER_ADD_SPECIAL : 0) |
                     (encoding->begun ? TOKENIZER_CONTINUED : 0);
    encoding->ids.count = 0;
    if (encoding->encoder && !tokenizer_encode(encoding->encoder, bytes, size, flags, &encoding->ids, error)) return false;
    for (size_t i = 0; i < size && !encoding->encoder; i++) token_ids_append(&encoding->ids, (unsigned char)bytes[i]);
    for (size_t i = 0; i < encoding->ids.count; i++) {
        if (encoding->begun || i > 0) putchar_unlocked(' ');
        print_number(encoding->ids.items[i]);
    }
    encoding->begun = !last && (encoding->begun || encoding->ids.count > 0);
    if (last) end_line(encoding->pipe);
    return true;
}

/* Encodes the text of a JSON line: a string, or the field of an object. */
static bool print_encoding_json(Encoding *encoding, Error *error) {
    Error problem;
    json_auto_t *value = json_parse(encoding->bytes, encoding->size, JSON_DECODE_ANY, &problem);
    const char *field = encoding->options->field;
    const json_t *text = json_is_object(value) ? json_object_get(value, field) : value;
    if (!value) return error_set(error, ERROR_DATA, "not valid JSON: %s", problem.message);
    if (!json_is_string(text))
        return error_set(
            error, ERROR_DATA, "neither a string nor an object with text in \"%s\"; set field= to the name of its field", field);
    return print_ids(encoding, json_string_value(text), json_string_length(text), true, error);
}

/* Encodes the part of an unfinished document that ends at a safe place. */
static bool print_ids_part(Encoding *encoding, Error *error) {
    size_t cut = encoding->size;
    if (encoding->encoder) cut = tokenizer_safe_cut(encoding->text.tokenizer, encoding->bytes, encoding->size, encoding->size);
    if (cut == 0 && encoding->size > DOCUMENT_LIMIT)
        return error_set(error, ERROR_DATA, "a document has more than %d bytes, and this tokenizer cannot split it", DOCUMENT_LIMIT);
    if (cut == 0) return true;
    if (!print_ids(encoding, encoding->bytes, cut, false, error)) return false;
    encoding->begun = true;
    encoding->size -= cut;
    memmove(encoding->bytes, encoding->bytes + cut, encoding->size);
    return true;
}

static bool print_encoded(Encoding *encoding, Error *error) {
    bool json = encoding->options->documents == DOCUMENTS_JSON;
    bool good = json ? print_encoding_json(encoding, error) : print_ids(encoding, encoding->bytes, encoding->size, true, error);
    encoding->begun = false;
    encoding->size = 0;
    return good;
}

static bool encode_input(Encoding *encoding, Error *error) {
    const bool lines = encoding->options->documents != DOCUMENTS_ALL;
    const bool parts = encoding->options->documents != DOCUMENTS_JSON && !encoding->options->template;
    size_t next_part = PART_BYTES;
    for (int byte; (byte = getc_unlocked(stdin)) != EOF;) {
        if (lines && byte == '\n') {
            if (!print_encoded(encoding, error)) return false;
            encoding->line++;
            next_part = PART_BYTES;
            continue;
        }
        array_reserve(encoding->bytes, encoding->capacity, encoding->size + 1);
        encoding->bytes[encoding->size++] = (char)byte;
        if (encoding->size < next_part) continue;
        if (parts && !print_ids_part(encoding, error)) return false;
        next_part = encoding->size + (encoding->size > PART_BYTES ? encoding->size : PART_BYTES);
    }
    if (ferror(stdin)) return file_fail(error, "read", "standard input"), error_recode(error, ERROR_DATA);
    return (encoding->size == 0 && !encoding->begun) || print_encoded(encoding, error);
}

static bool run_encode(Invocation *invocation, Error *error) {
    Encoding encoding = {.options = invocation->options, .line = 1, .pipe = file_kind("/dev/stdin", NULL) != FILE_REGULAR};
    bool good = text_open(&encoding.text, invocation->words[0], error);
    if (good && encoding.text.tokenizer) encoding.encoder = tokenizer_encoder_open(encoding.text.tokenizer);
    good = good && (encode_input(&encoding, error) || error_context(error, "standard input, line %" PRId64, encoding.line));
    tokenizer_encoder_free(encoding.encoder);
    token_ids_free(&encoding.ids);
    free(encoding.bytes);
    text_close(&encoding.text);
    return good;
}

/* -- decode -------------------------------------------------------------------------------------------------------- */

typedef struct TokenDecoding {
    const TokensOptions *options;
    InputText text;
    TokenizerDecoder decoder;
    Utf8Stream stream; /* JSON cannot hold bytes that are not UTF-8 */
    char *json;
    size_t size, capacity;
    int64_t line;
    bool pipe;
} TokenDecoding;

static void put_json(TokenDecoding *decoding, const char *bytes, size_t size) {
    array_reserve(decoding->json, decoding->capacity, decoding->size + (size + 1) * UTF8_OUTPUT);
    for (size_t i = 0; i < size; i++)
        decoding->size += (size_t)utf8_put(&decoding->stream, (uint8_t)bytes[i], decoding->json + decoding->size);
}

static bool put_id(TokenDecoding *decoding, int64_t id, Error *error) {
    const Tokenizer *tokenizer = decoding->text.tokenizer;
    int64_t limit = tokenizer ? tokenizer_vocabulary(tokenizer) : BYTE_VOCABULARY;
    const char byte = (char)id, *bytes = &byte;
    size_t size = id != BYTE_SEPARATOR;
    if (id >= limit)
        return error_set(
            error, ERROR_DATA, "%" PRId64 " is not a token of %s, which has 0 to %" PRId64, id, decoding->text.name, limit - 1);
    if (tokenizer) bytes = tokenizer_decode(&decoding->decoder, (int32_t)id, &size);
    if (decoding->options->documents == DOCUMENTS_JSON) put_json(decoding, bytes, size);
    else fwrite(bytes, 1, size, stdout);
    return true;
}

static void begin_document(TokenDecoding *decoding) {
    const Tokenizer *tokenizer = decoding->text.tokenizer;
    if (tokenizer) decoding->decoder = tokenizer_decoder(tokenizer, decoding->options->skip_special);
}

static void end_document(TokenDecoding *decoding) {
    if (decoding->options->documents == DOCUMENTS_ALL) return;
    if (decoding->options->documents == DOCUMENTS_JSON) {
        put_json(decoding, "", 0);
        decoding->size += (size_t)utf8_finish(&decoding->stream, decoding->json + decoding->size);
        json_auto_t *text = json_stringn(decoding->json, decoding->size);
        json_dumpf(text, stdout, JSON_ENCODE_ANY);
    }
    end_line(decoding->pipe);
    decoding->size = 0;
    begin_document(decoding);
}

/* Decodes numbers between blanks, commas or brackets, including JSON lists. */
static bool decode_input(TokenDecoding *decoding, Error *error) {
    enum { NONE = -1 };
    int64_t id = NONE;
    bool empty = true;
    for (int byte = 0; byte != EOF;) {
        byte = getc_unlocked(stdin);
        empty = empty && byte == EOF;
        if (byte >= '0' && byte <= '9') {
            id = (id == NONE ? 0 : id) * 10 + byte - '0';
            if (id > INT32_MAX) id = INT32_MAX; /* above the ids of any tokenizer */
            continue;
        }
        if (byte != EOF && !memchr(" \t\r\n,[]", byte, 8))
            return error_set(error, ERROR_DATA,
                isgraph(byte) ? "'%c' is not part of a token id; ids are whole numbers"
                              : "byte 0x%02x is not part of a token id; ids are whole numbers",
                byte);
        if (id != NONE && !put_id(decoding, id, error)) return false;
        id = NONE;
        if (byte == '\n' || (byte == EOF && !empty)) end_document(decoding);
        if (byte == '\n') decoding->line++, empty = true;
    }
    return !ferror(stdin) || (file_fail(error, "read", "standard input"), error_recode(error, ERROR_DATA));
}

static bool run_decode(Invocation *invocation, Error *error) {
    TokenDecoding decoding = {.options = invocation->options, .line = 1, .pipe = file_kind("/dev/stdin", NULL) != FILE_REGULAR};
    bool good = text_open(&decoding.text, invocation->words[0], error);
    if (good) begin_document(&decoding);
    good = good && (decode_input(&decoding, error) || error_context(error, "standard input, line %" PRId64, decoding.line));
    free(decoding.json);
    text_close(&decoding.text);
    return good;
}

/* -- The commands -------------------------------------------------------------------------------------------------- */

#define TOKENIZER_WORD "TOKENIZER is a tokenizer file, or a run, model folder or token shards with one.\n"
const Command command_data_encode = {
    .name = "data encode",
    .summary = "encode text from standard input as token ids",
    .words = "TOKENIZER",
    .explanation =
        "Writes the ids of each document on one line, separated by spaces. " TOKENIZER_WORD "  smelt data encode tokenizer.json < text\n",
    .table = &(const OptionTable)OPTION_TABLE(encode_rows),
    .options_size = sizeof(TokensOptions),
    .run = run_encode,
};
const Command command_data_decode = {
    .name = "data decode",
    .summary = "decode token ids from standard input to text",
    .words = "TOKENIZER",
    .explanation = "Writes the text of each line of ids. " TOKENIZER_WORD "  echo 1 2 3 | smelt data decode RUN\n",
    .table = &(const OptionTable)OPTION_TABLE(decode_rows),
    .options_size = sizeof(TokensOptions),
    .run = run_decode,
};

/* Tokenizers: text to token ids and back, with the same ids as Hugging Face's `tokenizers`,
 * OpenAI's `tiktoken` and Google's `sentencepiece`.
 *
 * Supported files are `tokenizer.json` with a BPE model (byte-level like GPT-2, Llama 3 and Qwen;
 * SentencePiece-like with byte fallback like Llama 2, Mistral and Gemma) or a unigram model,
 * `.tiktoken` files, Mistral's `tekken.json`, and SentencePiece's own models (BPE and unigram). A
 * part of a file that smelt does not know is refused by name, never ignored; only "truncation" and
 * "padding" are left to the caller.
 *
 * A Tokenizer is read-only once opened and shared by all threads; each thread has its own
 * TokenizerEncoder. Encoding takes O(n log n) time on any text.
 *
 * Text need not be valid UTF-8: an ill-formed stretch of bytes is encoded separately, byte by byte
 * and then merged, so a vocabulary with all bytes loses nothing. The stretches around it are
 * encoded as if the text ended there. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "gguf/gguf.h"

typedef struct Tokenizer Tokenizer;
typedef struct TokenizerEncoder TokenizerEncoder;

/* A growing list of ids; zero-initialize, free with token_ids_free. */
typedef struct TokenIds {
    int32_t *items;
    size_t count, capacity;
} TokenIds;
void token_ids_append(TokenIds *ids, int32_t id);
void token_ids_free(TokenIds *ids);

/* Opens a tokenizer. `path` is a file, which may be a GGUF file, or a folder with tokenizer.json,
 * tokenizer.model (SentencePiece's, or lines of base64 and rank) or tekken.json. Data that a
 * .tiktoken file lacks is read from the tokenizer_config.json beside it: "pattern", which is a
 * regular expression or gpt2, cl100k, o200k, llama3 or qwen, and Hugging Face's
 * added_tokens_decoder. Without them the number of ranks decides. NULL with ERROR_DATA or
 * ERROR_USAGE. */
Tokenizer *tokenizer_open(const char *path, Error *error);
/* Returns the tokenizer.json of a folder, or else its tokenizer.model, or else its tekken.json;
 * NULL: it has none. The caller frees. */
char *tokenizer_find(const char *folder);
/* The files of a tokenizer. */
typedef struct TokenizerFiles {
    char *tokens; /* the file that tokenizer_open reads, with a NUL after its bytes; NULL: there is none */
    int64_t bytes;
    /* The side files as one tokenizer_config.json, as transformers reads them: tokenizer_config.json,
     * special_tokens_map.json and added_tokens.json of old folders, chat_template.jinja and
     * additional_chat_templates. An empty object if there are none. */
    json_t *config;
    /* `tokens` is a tokenizer.json that was made from a GGUF file, or from a SentencePiece model
     * with side files; it includes their added tokens. */
    bool made;
} TokenizerFiles;
/* Reads the files. A side file that exists and cannot be read is an error, never taken as absent.
 * ERROR_DATA. */
bool tokenizer_files(TokenizerFiles *files, const char *path, Error *error);
void tokenizer_files_free(TokenizerFiles *files);
/* tokenizer_read returns the tokens, which must exist; the caller frees. tokenizer_config returns
 * the configuration; the caller owns the reference. NULL with ERROR_DATA. */
char *tokenizer_read(const char *path, int64_t *bytes, Error *error);
json_t *tokenizer_config(const char *path, Error *error);
/* Adds the tokens that a configuration of tokenizer_config names to the added_tokens of a
 * tokenizer.json that lacks them, with transformers' ids. ERROR_DATA if the configuration gives
 * other ids. */
bool tokenizer_add_side_tokens(json_t *tokenizer, const json_t *config, Error *error);
/* Returns the chat_template.jinja beside a tokenizer; NULL: there is none. The caller frees. */
char *tokenizer_chat_template(const char *path);
/* Sets *other if the tokenizer in `path` has chat templates, and the one in `base` has none or
 * different ones. */
bool tokenizer_has_other_template(const char *path, const char *base, bool *other, Error *error);
/* Makes a folder and copies the tokenizer into it: the tokens as tokenizer.json, tokenizer.model or
 * tekken.json, and the side files. */
bool tokenizer_copy(const char *path, const char *folder, Error *error);
/* Copies only the side files. The file or folder need not have tokens. */
bool tokenizer_copy_side_files(const char *path, const char *folder, Error *error);
/* Copies the chat templates that are files beside another tokenizer to a tokenizer's folder, which
 * keeps no others. */
bool tokenizer_copy_templates(const char *path, const char *folder, Error *error);
/* Makes a text the chat template of a tokenizer's folder, also for conversations with tools. */
bool tokenizer_put_template(const char *folder, const char *source, Error *error);
bool tokenizer_copies(const char *name); /* whether tokenizer_copy may write a file of this name */
/* Sets *differs if the files that two paths name both exist and differ; "" names the byte
 * tokenizer. Returns false if one cannot be read. */
bool tokenizer_differs(const char *path, const char *other, bool *differs, Error *error);
void tokenizer_free(Tokenizer *tokenizer); /* after all its encoders; NULL is fine */

/* The largest id + 1, added tokens included. */
int32_t tokenizer_vocabulary(const Tokenizer *tokenizer);
/* Returns the id of a token by its spelling in the file ("<|endoftext|>"); -1: none. */
int32_t tokenizer_id(const Tokenizer *tokenizer, const char *token);
/* Returns the id that ends a document: eos_token of the tokenizer_config.json beside the file, or
 * else the first that exists of <|endoftext|>, <|end_of_text|>, </s>, <eos>, <EOT> and DeepSeek's;
 * -1: none. */
int32_t tokenizer_end_of_text(const Tokenizer *tokenizer);

/* The ids before a text. BOS_AUTO: those of the tokenizer's own template. BOS_TRUE: the same, or
 * else its bos_token. BOS_FALSE: none. */
typedef enum TokenizerBos { BOS_AUTO, BOS_TRUE, BOS_FALSE } TokenizerBos;
#define BOS_CHOICES "auto|true|false"
/* Sets the ids before a text for all encoders that are opened afterwards; NULL: the byte tokenizer.
 * ERROR_USAGE: the tokenizer has no bos_token. */
bool tokenizer_set_bos(Tokenizer *tokenizer, TokenizerBos bos, Error *error);
/* Returns the ids before a text, unless BOS_FALSE was set; usually one or none. */
const TokenIds *tokenizer_bos(const Tokenizer *tokenizer);

enum {
    TOKENIZER_ADD_SPECIAL = 1,   /* add the tokens that the file's template puts around a text, such as bos */
    TOKENIZER_PLAIN_SPECIAL = 2, /* special tokens spelled in the text are ordinary text, not matched */
    TOKENIZER_CONTINUED = 4,     /* the text continues after a cut of tokenizer_safe_cut: adds no token or space before it */
    TOKENIZER_ADD_BOS = 8,       /* add only the tokens before a text */
};

TokenizerEncoder *tokenizer_encoder_open(const Tokenizer *tokenizer);
void tokenizer_encoder_free(TokenizerEncoder *encoder); /* NULL is fine */
/* Appends the ids of `text` to `out`. At most 1 GiB of text. ERROR_DATA if the text is too long or
 * the file's regular expression gives up; `out` then holds a part. */
bool tokenizer_encode(TokenizerEncoder *encoder, const char *text, size_t length, unsigned flags, TokenIds *out, Error *error);

/* Returns a place where `text`, a part of at most `size` bytes of a longer text, may be cut so that
 * the parts give the ids of the whole. All parts except a document's first must be encoded with
 * TOKENIZER_CONTINUED, and none with TOKENIZER_ADD_SPECIAL. The text begins with the document or at
 * such a place, and may continue. Returns the last place at or before `wanted`, which is more than
 * 0. Returns 0 if there is none, also for tokenizers that are not known to divide text into words
 * (smelt knows the regular expressions of model makers, not any). */
size_t tokenizer_safe_cut(const Tokenizer *tokenizer, const char *text, size_t size, size_t wanted);

/* -- Parts of a text that are encoded at the same time ---------------------------------------------------------------
 *
 * SentencePiece's unigram models add up scores from the start of a text, and rounding decides
 * between sums that are nearly equal. The ids of a part then depend on the text before it. Any
 * thread may encode a part as if they did not; a joiner, which sees all parts in order, knows the
 * sum and encodes the few words again for which it matters. */

/* A word of a part. */
typedef struct PartWord {
    size_t ids;  /* index of its first id */
    size_t text; /* index of its normalized text in PartWords.text */
    uint32_t count, size;
    float holds; /* its ids are right after a sum of at most this absolute value; negative: after none */
} PartWord;
/* The words of parts, in order; none for tokenizers whose parts do not depend on each other.
 * Zero-initialize, free with part_words_free. */
typedef struct PartWords {
    PartWord *items;
    size_t count, capacity;
    char *text;
    size_t text_size, text_capacity;
} PartWords;
void part_words_clear(PartWords *words);
void part_words_free(PartWords *words);

/* Like tokenizer_safe_cut, for parts that a joiner joins. */
size_t tokenizer_part_cut(const Tokenizer *tokenizer, const char *text, size_t size, size_t wanted);
/* Like tokenizer_encode, for a part; appends its words. */
bool tokenizer_encode_part(
    TokenizerEncoder *encoder, const char *text, size_t length, unsigned flags, TokenIds *out, PartWords *words, Error *error);

/* A part: its ranges of ids and words. */
typedef struct TextPart {
    bool first; /* begins a text */
    size_t ids, id_count, words, word_count;
} TextPart;
typedef struct TokenizerJoiner TokenizerJoiner;
/* `flags` as for the parts. */
TokenizerJoiner *tokenizer_joiner_open(const Tokenizer *tokenizer, unsigned flags);
void tokenizer_joiner_free(TokenizerJoiner *joiner); /* NULL is fine */
/* Appends the ids that the part has in its text. */
void tokenizer_join(TokenizerJoiner *joiner, const TextPart *part, const TokenIds *ids, const PartWords *words, TokenIds *out);

/* Decodes ids to bytes, token by token; only together do the bytes form UTF-8 (see
 * infer/utf8.h). */
typedef struct TokenizerDecoder {
    const Tokenizer *tokenizer;
    bool skip_special, started;
    int strip; /* leading blanks left to strip */
} TokenizerDecoder;
TokenizerDecoder tokenizer_decoder(const Tokenizer *tokenizer, bool skip_special);
/* Returns the bytes that `id` adds, owned by the tokenizer; none for an unknown id. */
const char *tokenizer_decode(TokenizerDecoder *decoder, int32_t id, size_t *length);

/* Writes the printable character that represents a byte in byte-level vocabularies (GPT-2's
 * alphabet), in UTF-8. Returns its bytes. */
size_t tokenizer_spell_byte(int byte, char out[5]);

/* -- New special tokens (add_tokens.c) ----------------------------------------------------------------------------- */

/* Counts the texts of a comma-separated list. ERROR_USAGE: a text is empty, not UTF-8, repeated or already a token,
 * or the tokenizer is not a tokenizer.json. */
bool tokenizer_check_new(const Tokenizer *tokenizer, const char *list, int32_t *count, Error *error);
/* Writes the tokens of the list into the tokenizer.json and tokenizer_config.json of a folder, with
 * ids from `first` on. ERROR_DATA. */
bool tokenizer_add_new(const char *folder, const char *list, int32_t first, Error *error);

/* -- GGUF (gguf_tokenizer.c) --------------------------------------------------------------------------------------- */

/* Returns whether `path` is a GGUF file that has tokens. */
bool gguf_has_tokenizer(const char *path);
/* Writes a tokenizer.json, for a table of `rows` rows, as llama.cpp's keys. The special tokens and
 * the chat template come from a tokenizer_config.json (may be NULL); special tokens that it does
 * not name come from a config.json (may be NULL). ERROR_USAGE names the part that llama.cpp does
 * not support. */
bool gguf_put_tokenizer(
    GgufWriter *writer, const json_t *tokenizer, const json_t *config, const json_t *origin, int64_t rows, Error *error);

/* Writes the Unicode versions of the libraries that divide and normalize text: "15.0.0 ...". */
void tokenizer_unicode(char *text, size_t size);

/* -- Training (bpe_train.c) ---------------------------------------------------------------------------------------- */

typedef struct TokenizerTraining {
    const char *pattern;   /* gpt2, llama3 or qwen: how text is divided into words */
    int32_t vocabulary;    /* ids in total: <|endoftext|> is 0, then 256 bytes, then merges; 257 to 4,194,304 */
    int64_t minimum_count; /* a rarer pair is not merged; at least 1 */
} TokenizerTraining;

typedef struct TokenizerTrainer TokenizerTrainer;
/* Opens a trainer of byte-level BPE with the results of the `tokenizers` library: the most frequent
 * pair first, ties to the lower ids. */
TokenizerTrainer *tokenizer_trainer_open(const TokenizerTraining *training, Error *error);
/* Counts the words of one document; uses all OpenMP threads on a long one. The result does not depend on their
 * number. */
bool tokenizer_trainer_add(TokenizerTrainer *trainer, const char *text, size_t length, Error *error);
/* Learns the merges and writes `path`, a tokenizer.json, atomically. *learned is the vocabulary
 * reached; it is smaller than requested if the text has too few pairs. Call once per trainer. */
bool tokenizer_trainer_finish(TokenizerTrainer *trainer, const char *path, int32_t *learned, Error *error);
void tokenizer_trainer_free(TokenizerTrainer *trainer); /* NULL is fine */

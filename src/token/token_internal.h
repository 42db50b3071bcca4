/* Internals of the tokenizer: hash tables, regular expressions, and the Tokenizer itself. The
 * readers (read_json.c, read_tiktoken.c, read_sentencepiece.c) fill it; the encoder and the decoder
 * use it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/scope.h"
#include "token/tokenizer.h"

#define TOKENIZER_FILES "tokenizer.json, tokenizer.model, tekken.json or .tiktoken file" /* the files that can be read, for messages */
enum { TOKEN_NONE = -1, STEPS = 16, BYTES = 256, MAXIMUM_ID = 1 << 22, WORD_LIMIT = 1 << 16 };

/* -- Text (text.c) ------------------------------------------------------------------------------------------------- */

typedef struct Buffer {
    char *bytes;
    size_t size, capacity;
} Buffer;
void buffer_append(Buffer *buffer, const char *bytes, size_t size);
static inline void buffer_free(Buffer *buffer) { free(buffer->bytes); }
/* Borrowed bytes. */
typedef struct Span {
    const char *bytes;
    size_t size;
} Span;
static inline Span buffer_span(const Buffer *buffer) { return (Span){buffer->bytes, buffer->size}; }
/* Appends `text` with `to` in place of each `from`, which is not empty. */
void text_replace(Buffer *out, Span text, Span from, Span to);

/* Returns the length of the longest well-formed prefix (Unicode 15, table 3-7). */
size_t text_well_formed(const char *text, size_t length);
/* Returns the length of the longest prefix without a well-formed character; `text` begins with an
 * ill-formed one. */
size_t text_ill_formed(const char *text, size_t length);
/* Returns the bytes of the well-formed character that a non-empty text begins with; 0 if it is
 * ill-formed. */
size_t text_character_size(const char *text, size_t length);
/* Returns the character at text[0..] of well-formed text; *size is its bytes. */
uint32_t text_character(const char *text, size_t *size);
size_t text_spaces(const char *text, size_t length);          /* bytes of leading white space */
size_t text_trailing_spaces(const char *text, size_t length); /* bytes of trailing white space */

/* Returns the printable character of a byte in GPT-2's alphabet. */
uint32_t text_byte_character(int byte);
/* Decodes text in GPT-2's alphabet; returns false if it has another character. `out` holds `length`
 * bytes. */
bool text_from_alphabet(const char *text, size_t length, char *out, size_t *size);

/* Decodes base64 with or without padding; `out` holds 3 bytes for every 4 characters, plus 2. */
bool text_from_base64(const char *text, size_t length, char *out, size_t *size);

/* -- Hash tables (map.c) ------------------------------------------------------------------------------------------- */

/* Byte strings to ids. The strings are copied. */
typedef struct TokenSlot {
    uint64_t hash;
    size_t at;
    uint32_t length;
    int32_t id; /* TOKEN_NONE: free */
} TokenSlot;
typedef struct TokenMap {
    TokenSlot *slots;
    size_t mask, count;
    Buffer pool;
} TokenMap;
/* Returns false, and changes nothing, if the string exists. */
bool token_map_put(TokenMap *map, const char *bytes, size_t length, int32_t id);
int32_t token_map_get(const TokenMap *map, const char *bytes, size_t length);
void token_map_free(TokenMap *map);

/* Numbers, such as pairs of 32-bit numbers, to 64-bit values. */
typedef struct PairSlot { uint64_t key, value; } PairSlot;
typedef struct PairMap {
    PairSlot *slots;
    unsigned shift;
    size_t mask, count;
} PairMap;
#define PAIR_NONE UINT64_MAX /* no value, and not a key; as an id it is TOKEN_NONE */
static inline uint64_t pair_key(uint32_t left, uint32_t right) { return (uint64_t)left << 32 | right; }
static inline size_t pair_place(const PairMap *map, uint64_t key) { return (key * 0x9E3779B97F4A7C15u) >> map->shift; }
static inline uint64_t pair_map_get(const PairMap *map, uint64_t key) {
    if (!map->slots) return PAIR_NONE;
    for (size_t i = pair_place(map, key);; i = (i + 1) & map->mask) {
        if (map->slots[i].key == key) return map->slots[i].value;
        if (map->slots[i].key == PAIR_NONE) return PAIR_NONE;
    }
}
/* Returns the value's place, PAIR_NONE if new; valid until the next put. */
uint64_t *pair_map_put(PairMap *map, uint64_t key);
void pair_map_free(PairMap *map);

/* -- Regular expressions (regex.c) --------------------------------------------------------------------------------- */

typedef struct Regex Regex;
typedef struct RegexScratch RegexScratch; /* one per thread */
typedef enum RegexSyntax {
    REGEX_ONIGURUMA, /* for a tokenizer.json */
    REGEX_RUST,      /* for tiktoken */
} RegexSyntax;
Regex *regex_open(const char *pattern, size_t length, RegexSyntax syntax, Error *error);
void regex_free(Regex *regex);
/* How the matches of an expression relate to the cuts of cut.c. The expression's text decides it. */
typedef enum RegexDivision {
    DIVIDES_UNKNOWN,
    DIVIDES_WORDS,  /* a word ends at each cut */
    DIVIDES_SPACES, /* \s: each white space character separately */
    DIVIDES_OTHER,  /* digits and the like: no match touches a cut */
} RegexDivision;
RegexDivision regex_division(const Regex *regex);
RegexScratch *regex_scratch_open(void);
void regex_scratch_free(RegexScratch *scratch);
/* The matches of one expression in one well-formed text. */
typedef struct RegexSearch {
    RegexScratch *scratch;
    Span text;
    size_t work; /* spent of the budget that bounds the total time of all matches */
} RegexSearch;
/* Finds the first match at or after `from`: 1 with its bounds, 0 for none, -1 with `error`.
 * ERROR_DATA: the budget is spent. */
int regex_find(const Regex *regex, RegexSearch *search, size_t from, size_t *start, size_t *end, Error *error);

/* A search pattern of a tokenizer.json: a regular expression or, if `regex` is NULL, a fixed text,
 * which is not empty. */
typedef struct Pattern {
    Regex *regex;
    Buffer text;
} Pattern;
int pattern_find(const Pattern *pattern, RegexSearch *search, size_t from, size_t *start, size_t *end, Error *error);
void pattern_free(Pattern *pattern);

typedef struct KnownPattern {
    const char *name;
    const char *json;     /* as model makers write it in tokenizer.json; NULL: not for training */
    const char *tiktoken; /* NULL: the same */
} KnownPattern;
const KnownPattern *known_pattern(const char *name); /* NULL when unknown */

/* -- Double arrays (double_array.c) -------------------------------------------------------------------------------- */

typedef struct DoubleArray {
    uint32_t *units; /* bits 0 to 7 and 31: the label; 8: a key ends here; 9 and 10 to 31: the offset of the base */
    size_t count;
} DoubleArray;
typedef struct TrieKey {
    Span text;
    int32_t value;
} TrieKey;
/* Builds the array. Sorts the keys, which are distinct, not empty, and without zero bytes. Returns
 * false if there are too many. */
bool double_array_build(DoubleArray *array, TrieKey *keys, size_t count);
/* Copies the units of a file; returns false if the size is not valid. */
bool double_array_copy(DoubleArray *array, const char *bytes, size_t size);
void double_array_free(DoubleArray *array);
/* Returns the base of a node's children; node 0 is the root. */
static inline size_t double_array_base(const DoubleArray *array, size_t node) {
    uint32_t unit = array->units[node];
    return node ^ (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}
/* Moves from a base to the base of the child for `byte`; returns false if there is none. *value is
 * the value of the key that ends there, or TOKEN_NONE. */
static inline bool double_array_step(const DoubleArray *array, size_t *base, unsigned char byte, int32_t *value) {
    size_t node = *base ^ byte;
    if (node >= array->count || (array->units[node] & (1u << 31 | 0xFF)) != byte || byte == 0) return false;
    *base = double_array_base(array, node);
    bool ends = (array->units[node] & 1u << 8) && *base < array->count;
    *value = ends ? (int32_t)(array->units[*base] & INT32_MAX) : TOKEN_NONE;
    return true;
}

/* -- The tokenizer ------------------------------------------------------------------------------------------------- */

/* The character map of a SentencePiece model; empty: characters do not change. */
typedef struct Charsmap {
    DoubleArray trie;
    char *texts; /* replacements of sequences, by the value of the trie; each ends with a zero byte */
    size_t size;
    bool joins_spaces; /* a sequence or its replacement may join a space and an ASCII letter */
} Charsmap;
/* SentencePiece's treatment of spaces: one is put before a text, or after it; runs become one;
 * spaces become U+2581. */
typedef struct Whitespace { bool prefix, suffix, squeeze, escape; } Whitespace;

typedef enum NormalKind {
    NORMAL_PREPEND,
    NORMAL_REPLACE,
    NORMAL_FORM,
    NORMAL_STRIP,
    NORMAL_PRECOMPILED,   /* the map, as `tokenizers` applies it */
    NORMAL_SENTENCEPIECE, /* the map and the white space; also for ill-formed text */
} NormalKind;
typedef struct NormalStep {
    NormalKind kind;
    Pattern pattern;  /* NORMAL_REPLACE: the text to replace */
    Buffer with;      /* NORMAL_REPLACE: the replacement; NORMAL_PREPEND: the prefix */
    int form;         /* NORMAL_FORM: utf8proc's options */
    bool left, right; /* NORMAL_STRIP */
    Charsmap charsmap;
    Whitespace whitespace;
} NormalStep;

typedef enum SplitKind { SPLIT_PATTERN, SPLIT_PREFIX_SPACE, SPLIT_METASPACE } SplitKind;
typedef enum SplitBehavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT } SplitBehavior;
typedef enum PrependScheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } PrependScheme;
typedef struct SplitStep {
    SplitKind kind;
    Pattern pattern; /* SPLIT_METASPACE: the character that represents a space */
    SplitBehavior behavior;
    bool invert;
    PrependScheme prepend; /* SPLIT_METASPACE */
    bool whole;            /* the text is rewritten, not divided */
} SplitStep;

/* The text that an added token is matched in, and the pattern that it is matched by. */
typedef enum AddedMatch {
    MATCH_RAW,
    MATCH_NORMALIZED,  /* normalized text, by the normalized content */
    MATCH_NORMAL_FORM, /* normalized text, by the content */
} AddedMatch;
typedef struct AddedToken {
    Buffer content;
    int32_t id;
    bool special, single_word, left_strip, right_strip;
    AddedMatch match;
} AddedToken;

/* A set of patterns; a pattern is an index into Tokenizer.added. */
typedef struct Trie {
    PairMap edges;    /* (node, byte) to node; node 0 is the root */
    int32_t *pattern; /* by node; TOKEN_NONE: no pattern ends here */
    size_t nodes;
    bool first[BYTES]; /* bytes that a pattern begins with */
} Trie;

/* How a token's spelling becomes its bytes. All fields except `strip` apply to one token at a time,
 * in the order of the fields. */
typedef struct Decoding {
    bool fused, spaced; /* fused: only a strip may follow; spaced: a file without a decoder joins tokens by spaces */
    bool byte_level;
    Buffer metaspace;
    bool metaspace_first; /* the first token of a text loses its spaces */
    int replaces;
    Buffer from[STEPS], to[STEPS];
    bool byte_fallback;
    int strip; /* blanks to strip at the start of a text */
} Decoding;
/* The bytes that a token adds to a text: a range of Tokenizer.decoded. */
typedef struct Decoded {
    size_t at, size;
    bool waits; /* adds no text: the next token is still the first */
} Decoded;

struct Tokenizer {
    char *path; /* for messages */
    int32_t vocabulary;
    int32_t end_of_text, bos_token; /* TOKEN_NONE: none */
    TokenizerBos bos;

    /* The model. Byte-level: words and tokens are raw bytes; otherwise they are UTF-8. */
    bool byte_level, byte_fallback, fuse_unknown, whole_words; /* whole_words: a word that is a token needs no merges */
    int32_t unknown;
    int32_t byte_id[BYTES];  /* byte-level: a byte's token; otherwise its <0xXX>, used only with byte_fallback */
    PairMap characters;      /* not byte-level: a character's token */
    TokenMap words;          /* tokens of the model */
    PairMap merges;          /* (left, right) to rank << 32 | id; equal ranks merge from left to right */
    bool space_begins_words; /* no merge or piece joins U+2581 to another character before it: text may be cut there */
    bool sentencepiece;      /* a SentencePiece model: accepts text that is not UTF-8, adds scores in fp32 */

    /* A unigram model has scores instead of merges. */
    double *scores, unknown_score; /* by id; NULL: BPE */
    DoubleArray pieces;
    size_t longest_piece; /* bytes, at least 4 */
    Trie symbols;         /* tokens that normalization does not change */

    unsigned cuts; /* bits of CUT_SPACE, CUT_LINE: cut.c */

    TokenMap contents; /* all tokens by their spelling in the file */
    AddedToken *added;
    int32_t added_count;
    Trie raw, normal; /* added tokens that are matched before and after normalization */
    NormalStep normals[STEPS];
    SplitStep splits[STEPS];
    int normal_count, split_count;
    TokenIds before, after; /* ids that the template puts before and after a text */

    /* Decoding, by id. */
    Decoding decoding;
    Decoded *first, *rest; /* for the first token of a text, and for later ones; may be one array */
    char zero_key[4];      /* while a tokenizer.json is read: the character that replaces U+0000 in keys; "": none */
    bool *special;
    Buffer decoded; /* bytes of all tokens, concatenated */
};

/* Reports which file of a tokenizer is missing, and what to do. Returns false. In files.c. */
bool tokenizer_refuse_absent(const char *path, Error *error);
/* Converts the tokenizer of a GGUF file to a tokenizer.json, or with `config` to a
 * tokenizer_config.json; the caller owns the reference. In gguf_tokenizer.c. */
json_t *gguf_tokenizer(const char *path, bool config, Error *error);
/* `config`: from tokenizer_files. */
bool read_json(Tokenizer *tokenizer, const char *bytes, size_t size, const json_t *config, Error *error);
bool read_sentencepiece(Tokenizer *tokenizer, const char *bytes, size_t size, Error *error);
/* Builds the tokenizer.json that transformers makes of a SentencePiece model, side files and the
 * model_type of config.json ("": none). `config` receives the names of tokens that the class adds,
 * and loses added_tokens_decoder, whose tokens the result has. The caller owns the reference. NULL
 * with ERROR_DATA naming the unsupported part. */
json_t *sentencepiece_json(const char *bytes, size_t size, json_t *config, const char *model_type, Error *error);
bool read_tiktoken(Tokenizer *tokenizer, const char *bytes, size_t size, const json_t *config, Error *error);
bool read_tekken(Tokenizer *tokenizer, const json_t *root, Error *error); /* `root`: an object without "model" */

/* Sets added_tokens_decoder of a configuration to the tokens of an added_tokens.json
 * (side_tokens.c). */
bool side_tokens_from_old(json_t *config, const json_t *added, Error *error);
typedef struct NumberedToken {
    int32_t id;
    const json_t *token; /* an object */
    const char *text;    /* the token's text; not empty */
} NumberedToken;
/* Lists the tokens of added_tokens_decoder by id, borrowed from the configuration; the caller
 * frees. NULL with ERROR_DATA. */
NumberedToken *side_tokens_numbered(const json_t *config, size_t *count, Error *error);
/* Checks for settings of a tokenizer_config.json, beside a tokenizer.json, that change ids and are
 * not implemented. ERROR_DATA names the setting. */
bool side_settings_check(const json_t *tokenizer, const json_t *config, Error *error);
/* Returns the id that `tokenizers` gives an added token, whatever a file says
 * (AddedVocabulary::add_tokens). A token of the model keeps its id `own`. Any other token (`own` is
 * TOKEN_NONE) follows the vocabulary of `words` tokens and the largest id `most` of the added
 * tokens, without a gap. `most` is TOKEN_NONE before the first added token. */
static inline int64_t added_token_id(int64_t own, int64_t words, int64_t most) {
    return own != TOKEN_NONE ? own : most >= words ? most + 1 : words;
}

/* Finds the id of the token that a member of the configuration names, such as eos_token. TOKEN_NONE: the member is
 * absent. ERROR_DATA: its value is not a token of the tokenizer. */
bool side_token_id(const Tokenizer *tokenizer, const json_t *config, const char *name, int32_t *id, Error *error);

/* Vocabularies of ranks, where two tokens merge if their bytes together are a token
 * (read_tiktoken.c). Ranks order tokens as ids do. */
bool ranks_add(Tokenizer *tokenizer, const char *bytes, size_t size, int32_t id, Error *error);
void ranks_add_special(Tokenizer *tokenizer, const char *text, int32_t id);
bool ranks_finish(Tokenizer *tokenizer, Span pattern, Error *error);

void decoding_build(Tokenizer *tokenizer);

enum { CUT_SPACE = 1, CUT_LINE = 2 };
/* Returns whether `plain` text must not become this token: special tokens of the model's own
 * vocabulary can spell text. */
static inline bool token_is_barred(const Tokenizer *tokenizer, bool plain, int32_t id) {
    return plain && id != TOKEN_NONE && tokenizer->special[id];
}

/* Sets `cuts` from the steps of the tokenizer. */
void cuts_find(Tokenizer *tokenizer);
/* Removes the cuts that an added token breaks. A token, matched as `content`, may cross a place
 * between two parts or include the white space beyond it. */
void cuts_respect_added(Tokenizer *tokenizer, const AddedToken *token, Span content);

/* Adds a token to both the model and the contents; ids are below MAXIMUM_ID. */
bool tokenizer_add_word(Tokenizer *tokenizer, const char *bytes, size_t length, int32_t id, Error *error);
/* ids: of left, right and the merged token. */
void tokenizer_add_merge(Tokenizer *tokenizer, Span left, Span right, const int32_t ids[3], uint64_t rank);
/* Returns the byte of a token "<0xE2>"; -1: the token is not of this form. */
int token_byte(Span text);
/* Takes over the token's content. */
void tokenizer_add_added(Tokenizer *tokenizer, AddedToken *token);
void trie_add(Trie *trie, const char *bytes, size_t length, int32_t pattern);
/* Returns the longest pattern that text[0..] begins with, or TOKEN_NONE. */
int32_t trie_match(const Trie *trie, const char *text, size_t length, size_t *matched);

/* Applies all steps to well-formed text; the result is `text` itself or is in `out` (`spare` is scratch). With
 * `continued` nothing is prepended. */
bool normalize(
    const Tokenizer *tokenizer, RegexScratch *scratch, Span text, bool continued, Buffer *out, Buffer *spare, Span *result, Error *error);

bool charsmap_read(Charsmap *map, Span blob, Error *error);
void charsmap_free(Charsmap *map);
void charsmap_normalize(const Tokenizer *tokenizer, const NormalStep *step, Span text, bool continued, Buffer *out);
void charsmap_normalize_clusters(const Charsmap *map, Span text, Buffer *out);

/* -- Unigram models (unigram.c) ------------------------------------------------------------------------------------ */

/* The best way to a place in a text, from the tokens that end there. */
typedef struct LatticeNode {
    double best, second; /* sums of scores: of the best way, and of the second best */
    uint32_t length;     /* of the last token, in bytes; 0: no token ends here */
    int32_t id;
} LatticeNode;
typedef struct Lattice {
    LatticeNode *nodes;
    size_t capacity;
    double score; /* sum of scores of the text so far */
    bool plain;   /* special tokens, except the unknown one, are not used */
} Lattice;
/* Builds the trie of a model whose scores are set. */
bool unigram_build(Tokenizer *tokenizer, TrieKey *keys, size_t count, Error *error);
/* Appends the ids of the next part of a text, and continues its score. */
void unigram_encode(const Tokenizer *tokenizer, Lattice *lattice, Span text, TokenIds *out);
/* Appends the ids of a separate word. Returns the largest absolute score of the preceding text with
 * which the ids stay the same; negative: none. */
float unigram_encode_word(const Tokenizer *tokenizer, Lattice *lattice, Span word, TokenIds *out);
/* Returns whether the ids of a text depend on the scores of the text before it. */
static inline bool unigram_sums(const Tokenizer *tokenizer) { return tokenizer->scores && tokenizer->sentencepiece; }
/* Returns the score at the start of a word that follows text of `score`. */
double unigram_start(double score);
void lattice_free(Lattice *lattice);

/* -- Merging (merge.c) --------------------------------------------------------------------------------------------- */

/* The symbols of one word during merging; reused from word to word. */
typedef struct Merger {
    int32_t *symbol;
    uint64_t *pair; /* result of merging the pair that begins here: rank << 32 | id, or PAIR_NONE */
    uint32_t *next, *previous;
    uint64_t *heap; /* rank << 32 | place, the lowest first; stale entries are skipped */
    size_t count, capacity, heap_count, heap_capacity;
    bool plain; /* special tokens, except the unknown one, are not used */
    bool lost;  /* a word had a character that only a special token spells */
} Merger;
void merge_word(const Tokenizer *tokenizer, Merger *merger, const char *word, size_t length, TokenIds *out);
void merger_free(Merger *merger);

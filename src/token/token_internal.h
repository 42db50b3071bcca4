/* What the files of the tokenizer share: hash tables, regular expressions, and the tokenizer itself as the readers
 * (read_json.c, read_tiktoken.c, read_sentencepiece.c) fill it and the encoder and decoder use it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/scope.h"
#include "token/tokenizer.h"

#define TOKENIZER_FILES "tokenizer.json, tokenizer.model, tekken.json or .tiktoken file" /* what can be read, for messages */
enum { TOKEN_NONE = -1, STEPS = 16, BYTES = 256, MAXIMUM_ID = 1 << 22, WORD_LIMIT = 1 << 16 };

/* -- Text (text.c) ------------------------------------------------------------------------------------------------- */

typedef struct Buffer {
    char *bytes;
    size_t size, capacity;
} Buffer;
void buffer_append(Buffer *buffer, const char *bytes, size_t size);
static inline void buffer_free(Buffer *buffer) { free(buffer->bytes); }
/* Bytes that somebody else owns. */
typedef struct Span {
    const char *bytes;
    size_t size;
} Span;
static inline Span buffer_span(const Buffer *buffer) { return (Span){buffer->bytes, buffer->size}; }
/* Appends `text` with `to` in place of each `from`, which is not empty. */
void text_replace(Buffer *out, Span text, Span from, Span to);

/* The length of the longest well-formed prefix (Unicode 15, table 3-7). */
size_t text_well_formed(const char *text, size_t length);
/* The length of the longest prefix in which no character is well-formed; `text` begins with an ill-formed one. */
size_t text_ill_formed(const char *text, size_t length);
/* The bytes of the well-formed character that a text, which is not empty, begins with; 0 when it is ill-formed. */
size_t text_character_size(const char *text, size_t length);
/* The character at text[0..] of well-formed text; *size is its bytes. */
uint32_t text_character(const char *text, size_t *size);
bool text_is_space(uint32_t character);                       /* Unicode's White_Space */
size_t text_spaces(const char *text, size_t length);          /* bytes of white space that it begins with */
size_t text_trailing_spaces(const char *text, size_t length); /* that it ends with */

/* GPT-2's alphabet: every byte as a printable character. */
uint32_t text_byte_character(int byte);
/* The bytes that a text in the alphabet stands for; false when it has another character. `out` holds `length` bytes. */
bool text_from_alphabet(const char *text, size_t length, char *out, size_t *size);

/* The bytes that base64 stands for, with or without padding; `out` holds 3 bytes for every 4 characters, and 2 more. */
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
/* False when the string is there: nothing changes. */
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
#define PAIR_NONE UINT64_MAX /* no value, and no key; as an id it is TOKEN_NONE */
static inline uint64_t pair_key(uint32_t left, uint32_t right) { return (uint64_t)left << 32 | right; }
static inline size_t pair_place(const PairMap *map, uint64_t key) { return (key * 0x9E3779B97F4A7C15u) >> map->shift; }
static inline uint64_t pair_map_get(const PairMap *map, uint64_t key) {
    if (!map->slots) return PAIR_NONE;
    for (size_t i = pair_place(map, key);; i = (i + 1) & map->mask) {
        if (map->slots[i].key == key) return map->slots[i].value;
        if (map->slots[i].key == PAIR_NONE) return PAIR_NONE;
    }
}
/* The value's place, PAIR_NONE when new; valid until the next put. */
uint64_t *pair_map_put(PairMap *map, uint64_t key);
void pair_map_free(PairMap *map);

/* -- Regular expressions (regex.c) --------------------------------------------------------------------------------- */

typedef struct Regex Regex;
typedef struct RegexScratch RegexScratch; /* one per thread */
typedef enum RegexSyntax {
    REGEX_ONIGURUMA, /* of a tokenizer.json */
    REGEX_RUST,      /* of tiktoken */
} RegexSyntax;
Regex *regex_open(const char *pattern, size_t length, RegexSyntax syntax, Error *error);
void regex_free(Regex *regex);
/* What is known of an expression, by its text: whether its matches reach over the places of cut.c. */
typedef enum RegexDivision {
    DIVIDES_UNKNOWN,
    DIVIDES_WORDS,  /* a word ends at each such place */
    DIVIDES_SPACES, /* \s: every white space by itself */
    DIVIDES_OTHER,  /* digits and the like: no match reaches there */
} RegexDivision;
RegexDivision regex_division(const Regex *regex);
RegexScratch *regex_scratch_open(void);
void regex_scratch_free(RegexScratch *scratch);
/* The matches of one expression in one text, which is well-formed. */
typedef struct RegexSearch {
    RegexScratch *scratch;
    Span text;
    size_t work; /* spent of the budget that bounds the time of all matches together */
} RegexSearch;
/* The first match at or after `from`: 1 with its bounds, 0 for none, -1 with `error`. ERROR_DATA: the budget is spent. */
int regex_find(const Regex *regex, RegexSearch *search, size_t from, size_t *start, size_t *end, Error *error);

/* What a tokenizer.json searches for: a regular expression or, where `regex` is NULL, a fixed text, which is not
 * empty. */
typedef struct Pattern {
    Regex *regex;
    Buffer text;
} Pattern;
int pattern_find(const Pattern *pattern, RegexSearch *search, size_t from, size_t *start, size_t *end, Error *error);
void pattern_free(Pattern *pattern);

typedef struct KnownPattern {
    const char *name;
    const char *json;     /* as model makers write it in tokenizer.json; NULL: not trained with */
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
/* Sorts the keys, which are all different, not empty, and without zero bytes. False when they are too many. */
bool double_array_build(DoubleArray *array, TrieKey *keys, size_t count);
/* Takes a copy of units in a file; false when their size cannot be. */
bool double_array_copy(DoubleArray *array, const char *bytes, size_t size);
void double_array_free(DoubleArray *array);
/* Where the children of a node lie; node 0 is the root. */
static inline size_t double_array_base(const DoubleArray *array, size_t node) {
    uint32_t unit = array->units[node];
    return node ^ (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}
/* Goes on from a base to that of the child for `byte`; false when there is none. *value is that of the key which ends
 * there, or TOKEN_NONE. */
static inline bool double_array_step(const DoubleArray *array, size_t *base, unsigned char byte, int32_t *value) {
    size_t node = *base ^ byte;
    if (node >= array->count || (array->units[node] & (1u << 31 | 0xFF)) != byte || byte == 0) return false;
    *base = double_array_base(array, node);
    bool ends = (array->units[node] & 1u << 8) && *base < array->count;
    *value = ends ? (int32_t)(array->units[*base] & INT32_MAX) : TOKEN_NONE;
    return true;
}

/* -- The tokenizer ------------------------------------------------------------------------------------------------- */

/* The map of characters of a SentencePiece model; empty: every character stays. */
typedef struct Charsmap {
    DoubleArray trie;
    char *texts; /* what sequences become, by the value of the trie; each ends with a zero byte */
    size_t size;
    bool joins_spaces; /* a sequence has a space behind an ASCII letter, or makes one of the letter that it ends with */
} Charsmap;
/* What SentencePiece does to spaces: one is put in front of a text, or behind it; runs become one; they become U+2581. */
typedef struct Whitespace { bool prefix, suffix, squeeze, escape; } Whitespace;

typedef enum NormalKind {
    NORMAL_PREPEND,
    NORMAL_REPLACE,
    NORMAL_FORM,
    NORMAL_STRIP,
    NORMAL_PRECOMPILED,   /* the map, as `tokenizers` applies it */
    NORMAL_SENTENCEPIECE, /* the map and the white space; also of text that is not well-formed */
} NormalKind;
typedef struct NormalStep {
    NormalKind kind;
    Pattern pattern;  /* NORMAL_REPLACE: what is replaced */
    Buffer with;      /* NORMAL_REPLACE: by what; NORMAL_PREPEND: what is prepended */
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
    Pattern pattern; /* SPLIT_METASPACE: the character that stands for a space */
    SplitBehavior behavior;
    bool invert;
    PrependScheme prepend; /* SPLIT_METASPACE */
    bool whole;            /* the text is rewritten, not divided */
} SplitStep;

/* What text an added token is matched in, and by what. */
typedef enum AddedMatch {
    MATCH_RAW,
    MATCH_NORMALIZED,  /* normalised text, by its content normalised */
    MATCH_NORMAL_FORM, /* normalised text, by its content */
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
    int32_t *pattern; /* by node; TOKEN_NONE: none ends here */
    size_t nodes;
    bool first[BYTES]; /* bytes that a pattern begins with */
} Trie;

/* How a token's spelling becomes its bytes. All but `strip` works on one token at a time, in the order of the
 * fields. */
typedef struct Decoding {
    bool fused, spaced; /* fused: only a strip may follow; spaced: a file without a decoder joins tokens by spaces */
    bool byte_level;
    Buffer metaspace;
    bool metaspace_first; /* the first token of a text loses its spaces */
    int replaces;
    Buffer from[STEPS], to[STEPS];
    bool byte_fallback;
    int strip; /* blanks that a text loses at its start */
} Decoding;
/* What a token adds to a text: bytes of Tokenizer.decoded. */
typedef struct Decoded {
    size_t at, size;
    bool waits; /* the next token is still the first of the text */
} Decoded;

struct Tokenizer {
    char *path; /* for messages */
    int32_t vocabulary;
    int32_t end_of_text, bos_token; /* TOKEN_NONE: it names none */
    TokenizerBos bos;

    /* The model. Byte-level: words and tokens are raw bytes; else they are UTF-8. */
    bool byte_level, byte_fallback, fuse_unknown, whole_words; /* whole_words: a word that is a token needs no merges */
    int32_t unknown;
    int32_t byte_id[BYTES];  /* byte-level: a byte's token; else its <0xXX>, which counts only with byte_fallback */
    PairMap characters;      /* else: a character's token */
    TokenMap words;          /* tokens of the model */
    PairMap merges;          /* (left, right) to rank << 32 | id; equal ranks merge from left to right */
    bool space_begins_words; /* no merge or piece joins U+2581 to another character before it: text may be cut there */
    bool sentencepiece;      /* a SentencePiece model, with its ways: takes text that is not UTF-8, adds scores in fp32 */

    /* A unigram model has scores instead of merges. */
    double *scores, unknown_score; /* by id; NULL: BPE */
    DoubleArray pieces;
    size_t longest_piece; /* bytes, at least 4 */
    Trie symbols;         /* tokens that normalisation leaves as they are */

    unsigned cuts; /* places where any text may be cut: cut.c */

    TokenMap contents; /* all tokens as the file spells them */
    AddedToken *added;
    int32_t added_count;
    Trie raw, normal; /* added tokens matched before and after normalisation */
    NormalStep normals[STEPS];
    SplitStep splits[STEPS];
    int normal_count, split_count;
    TokenIds before, after; /* the template */

    /* Decoding, by id. */
    Decoding decoding;
    Decoded *first, *rest; /* of the first token of a text, and of later ones; may be one array */
    char zero_key[4];      /* while a tokenizer.json is read: the character that stands for U+0000 in keys; "": none does */
    bool *special;
    Buffer decoded; /* what all tokens add, end to end */
};

/* Says which file of a tokenizer is missing, and what to do. Returns false. In files.c. */
bool tokenizer_refuse_absent(const char *path, Error *error);
/* The tokenizer.json, or with `config` the tokenizer_config.json, that say what a GGUF file does; the caller owns the
 * reference. In gguf_tokenizer.c. */
json_t *gguf_tokenizer(const char *path, bool config, Error *error);
/* `config`: of tokenizer_files. */
bool read_json(Tokenizer *tokenizer, const char *bytes, size_t size, const json_t *config, Error *error);
bool read_sentencepiece(Tokenizer *tokenizer, const char *bytes, size_t size, Error *error);
/* The tokenizer.json that transformers makes of a SentencePiece model, side files and the model_type of config.json ("":
 * there is none). `config` receives the names of tokens that the class adds, and loses added_tokens_decoder, whose tokens
 * the result has. The caller owns the reference. NULL with ERROR_DATA naming what smelt does not make. */
json_t *sentencepiece_json(const char *bytes, size_t size, json_t *config, const char *model_type, Error *error);
bool read_tiktoken(Tokenizer *tokenizer, const char *bytes, size_t size, const json_t *config, Error *error);
bool read_tekken(Tokenizer *tokenizer, const json_t *root, Error *error); /* an object without "model" */

/* Side files (side_tokens.c). Sets added_tokens_decoder of a configuration to the tokens of an added_tokens.json. */
bool side_tokens_from_old(json_t *config, const json_t *added, Error *error);
typedef struct NumberedToken {
    int32_t id;
    const json_t *token; /* an object */
    const char *text;    /* of the token; not empty */
} NumberedToken;
/* The tokens of added_tokens_decoder by id, borrowed from the configuration; the caller frees. NULL with ERROR_DATA. */
NumberedToken *side_tokens_numbered(const json_t *config, size_t *count, Error *error);
/* ERROR_DATA naming a setting of a tokenizer_config.json, beside a tokenizer.json, that changes ids and is not computed. */
bool side_settings_check(const json_t *tokenizer, const json_t *config, Error *error);
/* The id that `tokenizers` gives an added token, whatever a file says (AddedVocabulary::add_tokens). A token of the model
 * keeps its id `own`. Any other token (`own` is TOKEN_NONE) follows the vocabulary of `words` tokens and the largest id
 * `most` of the added tokens, without a gap. `most` is TOKEN_NONE before the first added token. */
static inline int64_t added_token_id(int64_t own, int64_t words, int64_t most) {
    return own != TOKEN_NONE ? own : most >= words ? most + 1 : words;
}

/* Finds the id of the token that a member of the configuration names, such as eos_token. TOKEN_NONE: the member is
 * absent. ERROR_DATA: its value is not a token of the tokenizer. */
bool side_token_id(const Tokenizer *tokenizer, const json_t *config, const char *name, int32_t *id, Error *error);

/* Vocabularies of ranks, where two tokens merge when their bytes together are a token (read_tiktoken.c). The rank orders
 * tokens as their id does. */
bool ranks_add(Tokenizer *tokenizer, const char *bytes, size_t size, int32_t id, Error *error);
void ranks_add_special(Tokenizer *tokenizer, const char *text, int32_t id);
bool ranks_finish(Tokenizer *tokenizer, Span pattern, Error *error);

void decoding_build(Tokenizer *tokenizer);

enum { CUT_SPACE = 1, CUT_LINE = 2 };
/* Returns true if `plain` text must not become this token: special tokens of the model's own vocabulary can spell text. */
static inline bool token_is_barred(const Tokenizer *tokenizer, bool plain, int32_t id) {
    return plain && id != TOKEN_NONE && tokenizer->special[id];
}

/* Sets `cuts` by the steps of the tokenizer. */
void cuts_find(Tokenizer *tokenizer);
/* An added token, matched as `content`, may reach over a place between two parts or take in white space beyond it. */
void cuts_respect_added(Tokenizer *tokenizer, const AddedToken *token, Span content);

/* Adds a token to both the model and the contents; ids are below MAXIMUM_ID. */
bool tokenizer_add_word(Tokenizer *tokenizer, const char *bytes, size_t length, int32_t id, Error *error);
/* ids: of left, right and both together. */
void tokenizer_add_merge(Tokenizer *tokenizer, Span left, Span right, const int32_t ids[3], uint64_t rank);
/* The byte of a token "<0xE2>"; -1: it is another. */
int token_byte(Span text);
/* Takes over the token's content. */
void tokenizer_add_added(Tokenizer *tokenizer, AddedToken *token);
void trie_add(Trie *trie, const char *bytes, size_t length, int32_t pattern);
/* The longest pattern that text[0..] begins with, or TOKEN_NONE. */
int32_t trie_match(const Trie *trie, const char *text, size_t length, size_t *matched);

/* Applies all steps to well-formed text; the result is `text` itself or lies in `out` (`spare` is scratch). With
 * `continued` nothing is prepended. */
bool normalize(
    const Tokenizer *tokenizer, RegexScratch *scratch, Span text, bool continued, Buffer *out, Buffer *spare, Span *result, Error *error);

bool charsmap_read(Charsmap *map, Span blob, Error *error);
void charsmap_free(Charsmap *map);
void charsmap_normalize(const Tokenizer *tokenizer, const NormalStep *step, Span text, bool continued, Buffer *out);
void charsmap_normalize_clusters(const Charsmap *map, Span text, Buffer *out);

/* -- Unigram models (unigram.c) ------------------------------------------------------------------------------------ */

/* The best way to a place in a text. */
typedef struct LatticeNode {
    double best, second; /* sums of scores: of this way, and of the next best */
    uint32_t length;     /* of the last token, in bytes; 0: none ends here */
    int32_t id;
} LatticeNode;
typedef struct Lattice {
    LatticeNode *nodes;
    size_t capacity;
    double score; /* of the text so far */
    bool plain;   /* no token is special but the unknown one */
} Lattice;
/* Takes the tokens of a model whose scores are set. */
bool unigram_build(Tokenizer *tokenizer, TrieKey *keys, size_t count, Error *error);
/* Appends the ids of what follows in a text, and goes on with its score. */
void unigram_encode(const Tokenizer *tokenizer, Lattice *lattice, Span text, TokenIds *out);
/* Appends the ids of a word by itself; returns the greatest score of the text before it, as to its size, with which they
 * are the same. */
float unigram_encode_word(const Tokenizer *tokenizer, Lattice *lattice, Span word, TokenIds *out);
/* The score with which a word begins behind a text of `score`. */
double unigram_start(double score);
void lattice_free(Lattice *lattice);

/* -- Merging (merge.c) --------------------------------------------------------------------------------------------- */

/* The symbols of one word while it is merged; reused from word to word. */
typedef struct Merger {
    int32_t *symbol;
    uint64_t *pair; /* what the pair that begins here merges into: rank << 32 | id, or PAIR_NONE */
    uint32_t *next, *previous;
    uint64_t *heap; /* rank << 32 | place, the least first; stale entries are skipped */
    size_t count, capacity, heap_count, heap_capacity;
    bool plain; /* no token is special but the unknown one */
    bool lost;  /* a word had a character that only a special token spells */
} Merger;
void merge_word(const Tokenizer *tokenizer, Merger *merger, const char *word, size_t length, TokenIds *out);
void merger_free(Merger *merger);

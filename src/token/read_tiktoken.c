/* Reads a .tiktoken file: lines with a base64 token and its rank, which is also its id. The file
 * has no merges: two tokens merge if their bytes together are a token, with the rank of that token.
 * All such pairs are listed once, so that merging is the same for all files. The file has no
 * pre-tokenizer and no special tokens either. They come from a tokenizer_config.json beside it
 * ("pattern", "added_tokens_decoder"), or else follow from the number of ranks. Owns nothing after
 * it returns. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/memory.h"
#include "token/token_internal.h"

enum { TOKEN_BYTES = 1024, LLAMA3_SPECIAL = 256 };

typedef struct Special {
    const char *text;
    int32_t id;
} Special;
typedef struct Family {
    const char *pattern;
    int32_t ranks; /* as published */
    Special special[6];
} Family;

static const Family families[] = {
    {"gpt2", 50256, {{"<|endoftext|>", 50256}}},
    {"gpt2", 50257, {{"<|endoftext|>", 50257}}}, /* Whisper's multilingual file */
    {"gpt2", 50280, {{"<|endoftext|>", 50256}}},
    {"cl100k", 100256,
        {{"<|endoftext|>", 100257}, {"<|fim_prefix|>", 100258}, {"<|fim_middle|>", 100259}, {"<|fim_suffix|>", 100260},
            {"<|endofprompt|>", 100276}}},
    {"o200k", 199998, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
    {"llama3", 128000, {{0}}},
    {"qwen", 151643, {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* -- Tokens -------------------------------------------------------------------------------------------------------- */

/* Decodes a token into `out` of TOKEN_BYTES. Whisper's vocabulary has an empty token, which no text
 * produces. */
static bool read_token(const char *text, size_t length, char *out, size_t *size) {
    return length * 3 / 4 <= TOKEN_BYTES && text_from_base64(text, length, out, size);
}

static bool parse_rank(const char *text, size_t length, int32_t *rank) {
    int64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || value >= MAXIMUM_ID) return false;
        value = value * 10 + (text[i] - '0');
    }
    *rank = (int32_t)value;
    return length > 0 && value < MAXIMUM_ID;
}

bool ranks_add(Tokenizer *tokenizer, const char *bytes, size_t size, int32_t id, Error *error) {
    if (!token_map_put(&tokenizer->contents, bytes, size, id)) return error_set(error, ERROR_DATA, "the token is a duplicate");
    if (size > 0) token_map_put(&tokenizer->words, bytes, size, id);
    if (size == 1) tokenizer->byte_id[(unsigned char)bytes[0]] = id;
    if (id >= tokenizer->vocabulary) tokenizer->vocabulary = id + 1;
    return true;
}

static bool read_token_line(Tokenizer *tokenizer, const char *line, size_t length, Error *error) {
    char token[TOKEN_BYTES + 3];
    size_t size;
    int32_t id;
    if (length > 0 && line[length - 1] == '\r') length--;
    const char *space = memchr(line, ' ', length);
    if (!space || space == line || !read_token(line, (size_t)(space - line), token, &size) ||
        !parse_rank(space + 1, length - (size_t)(space + 1 - line), &id))
        return error_set(error, ERROR_DATA, "not base64 of at most %d bytes, a space and a rank below %d", TOKEN_BYTES, MAXIMUM_ID);
    return ranks_add(tokenizer, token, size, id, error);
}

static bool read_token_lines(Tokenizer *tokenizer, const char *bytes, size_t size, Error *error) {
    int64_t number = 1;
    for (size_t at = 0; at < size; number++) {
        const char *newline = memchr(bytes + at, '\n', size - at);
        size_t length = newline ? (size_t)(newline - bytes) - at : size - at;
        bool good = length == 0 || read_token_line(tokenizer, bytes + at, length, error);
        if (!good && number == 1) return error_set(error, ERROR_DATA, "it is not a " TOKENIZER_FILES);
        if (!good) return error_context(error, "line %" PRId64, number);
        at += length + 1;
    }
    return true;
}

static bool ranks_complete(const Tokenizer *tokenizer, Error *error) {
    for (int byte = 0; byte < BYTES; byte++)
        if (tokenizer->byte_id[byte] == TOKEN_NONE)
            return error_set(error, ERROR_DATA, "it has no token for the single byte 0x%02x", (unsigned)byte);
    return true;
}

/* Lists the merges. Two tokens with the same rank would make ids ambiguous. */
static bool add_tiktoken_merges(Tokenizer *tokenizer, Error *error) {
    const TokenMap *words = &tokenizer->words;
    SCOPED_FREE bool *seen = memory_allocate((size_t)tokenizer->vocabulary);
    for (size_t i = 0; i <= words->mask; i++) {
        const TokenSlot *slot = &words->slots[i];
        if (slot->id == TOKEN_NONE) continue;
        const char *bytes = words->pool.bytes + slot->at;
        if (seen[slot->id]) return error_set(error, ERROR_DATA, "rank %d is a duplicate", slot->id);
        seen[slot->id] = true;
        for (uint32_t cut = 1; cut < slot->length; cut++) {
            int32_t left = token_map_get(words, bytes, cut),
                    right = left == TOKEN_NONE ? left : token_map_get(words, bytes + cut, slot->length - cut);
            if (right != TOKEN_NONE)
                *pair_map_put(&tokenizer->merges, pair_key((uint32_t)left, (uint32_t)right)) =
                    (uint64_t)slot->id << 32 | (uint32_t)slot->id;
        }
    }
    return true;
}

/* -- Special tokens and pattern ------------------------------------------------------------------------------------ */

void ranks_add_special(Tokenizer *tokenizer, const char *text, int32_t id) {
    AddedToken token = {.id = id, .special = true};
    buffer_append(&token.content, text, strlen(text));
    tokenizer_add_added(tokenizer, &token);
}

/* The first special ids have names; the others are reserved, and numbered after the reserved names
 * of the list. */
static void add_llama3_special(Tokenizer *tokenizer, int32_t first) {
    static const char *const names[] = {"begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1",
        "finetune_right_pad_id", "step_id", "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag", "image"};
    enum { NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < LLAMA3_SPECIAL; i++) {
        SCOPED_FREE char *text =
            i < NAMES ? memory_format("<|%s|>", names[i]) : memory_format("<|reserved_special_token_%d|>", i - NAMES + 2);
        ranks_add_special(tokenizer, text, first + i);
    }
}

/* Adds the special tokens after the ranks, or in the gaps that the file leaves. */
static void add_specials(Tokenizer *tokenizer, const Family *family, int32_t ranks) {
    if (family && strcmp(family->pattern, "llama3") == 0) {
        add_llama3_special(tokenizer, tokenizer->vocabulary);
        token_ids_append(&tokenizer->before, tokenizer->vocabulary - LLAMA3_SPECIAL);
    } else if (family && ranks == family->ranks) {
        for (size_t i = 0; i < sizeof family->special / sizeof *family->special && family->special[i].text; i++)
            ranks_add_special(tokenizer, family->special[i].text, family->special[i].id);
    } else {
        ranks_add_special(tokenizer, "<|endoftext|>", tokenizer->vocabulary);
    }
}

/* Finds a family by name, preferring one with this number of ranks; without a name, by the number
 * of ranks only. */
static const Family *find_family(const char *pattern, int32_t ranks) {
    const Family *found = NULL;
    for (int i = 0; i < FAMILIES; i++) {
        bool named = strcmp(families[i].pattern, pattern) == 0, fits = families[i].ranks == ranks;
        if ((named && (fits || !found)) || (!*pattern && fits)) found = &families[i];
    }
    return found;
}

bool ranks_finish(Tokenizer *tokenizer, Span pattern, Error *error) {
    tokenizer->byte_level = tokenizer->whole_words = true;
    SplitStep *step = &tokenizer->splits[tokenizer->split_count++];
    if (!ranks_complete(tokenizer, error) || !add_tiktoken_merges(tokenizer, error)) return false;
    step->pattern.regex = regex_open(pattern.bytes, pattern.size, REGEX_RUST, error);
    if (step->pattern.regex) decoding_build(tokenizer);
    return step->pattern.regex;
}

/* Returns whether the pattern is a word. A word is a name, which must be known. */
static bool is_word_pattern(const char *pattern) {
    return pattern[strspn(pattern, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")] == '\0';
}

/* Adds the tokens of added_tokens_decoder, if any. */
static bool add_config_tokens(Tokenizer *tokenizer, const json_t *config, Error *error) {
    size_t count;
    SCOPED_FREE NumberedToken *tokens = side_tokens_numbered(config, &count, error);
    for (size_t i = 0; i < count; i++)
        if (tokenizer_id(tokenizer, tokens[i].text) == TOKEN_NONE) ranks_add_special(tokenizer, tokens[i].text, tokens[i].id);
    return tokens;
}

bool read_tiktoken(Tokenizer *tokenizer, const char *bytes, size_t size, const json_t *config, Error *error) {
    const char *given = json_string_value(json_object_get(config, "pattern")), *pattern = given ? given : "";
    if (!read_token_lines(tokenizer, bytes, size, error) || !ranks_complete(tokenizer, error)) return false;
    int32_t ranks = (int32_t)tokenizer->contents.count;
    const Family *family = find_family(pattern, ranks);
    if (!family && is_word_pattern(pattern))
        return error_set(error, ERROR_USAGE,
            "%s%s%s of a file with %d ranks is unknown: set {\"pattern\": \"...\"} in a tokenizer_config.json in its folder to a regular "
            "expression, gpt2, cl100k, o200k, llama3 or qwen",
            *pattern ? "the pattern '" : "the pattern", pattern, *pattern ? "'" : "", ranks);
    const KnownPattern *known = family ? known_pattern(family->pattern) : NULL;
    if (known) pattern = known->tiktoken ? known->tiktoken : known->json;
    if (!add_config_tokens(tokenizer, config, error)) return false;
    if (tokenizer->added_count == 0) add_specials(tokenizer, family, ranks);
    return ranks_finish(tokenizer, (Span){pattern, strlen(pattern)}, error);
}

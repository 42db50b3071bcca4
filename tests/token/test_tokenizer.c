/* Tests of the tokenizer: ids and texts as the `tokenizers` library gives them (tests/golden/tokenizers, written by
 * tokenizer_vectors.py), merging against a naive loop, long words, broken files, training, packing. Run from the
 * root of the repository by `make test`. */
#include <omp.h>
#include <time.h>

#include "support/data_files.h"
#include "support/unigram_model.h"

#include "data/pack.h"
#include "support/mentions.h"
#include "token/token_internal.h"

static const char *const kinds[] = {
    "gpt2", "llama3", "qwen", "added", "llama2", "metaspace", "gemma", "spm-bpe", "spm-bpe-bytes", "spm-unigram", "unigram"};
enum { KINDS = sizeof kinds / sizeof *kinds };
static char root[4096];

static Tokenizer *open_tokenizer(const char *path) {
    Error error = {0};
    Tokenizer *tokenizer = tokenizer_open(path, &error);
    if (!tokenizer) fail_msg("%s", error.message);
    return tokenizer;
}

static char *golden_path(const char *kind) {
    return memory_format("%s/tests/golden/tokenizers/%s.%s", root, kind, strncmp(kind, "spm", 3) ? "json" : "model");
}

static Tokenizer *open_golden(const char *kind) {
    char *path = golden_path(kind);
    Tokenizer *tokenizer = open_tokenizer(path);
    free(path);
    return tokenizer;
}

static TokenIds encode_with(TokenizerEncoder *encoder, const char *text, size_t length, unsigned flags) {
    TokenIds ids = {0};
    Error error = {0};
    if (!tokenizer_encode(encoder, text, length, flags, &ids, &error)) fail_msg("%s", error.message);
    return ids;
}

static TokenIds encode(const Tokenizer *tokenizer, const char *text, size_t length, unsigned flags) {
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    TokenIds ids = encode_with(encoder, text, length, flags);
    tokenizer_encoder_free(encoder);
    return ids;
}

static Buffer decode(const Tokenizer *tokenizer, const TokenIds *ids, bool skip_special) {
    TokenizerDecoder decoder = tokenizer_decoder(tokenizer, skip_special);
    Buffer text = {0};
    for (size_t i = 0, length; i < ids->count; i++) {
        const char *bytes = tokenizer_decode(&decoder, ids->items[i], &length);
        buffer_append(&text, bytes, length);
    }
    return text;
}

static void assert_ids(const TokenIds *ids, const int32_t *expected, size_t count) {
    assert_int_equal(ids->count, count);
    for (size_t i = 0; i < count; i++) assert_int_equal(ids->items[i], expected[i]);
}

/* -- Golden vectors ------------------------------------------------------------------------------------------------ */

typedef struct Vector {
    char *kind;
    unsigned flags;
    Buffer text, decoded;
    TokenIds ids;
} Vector;

static Buffer from_hex(const char *hex) {
    Buffer bytes = {0};
    buffer_append(&bytes, "", 0);
    for (unsigned byte; *hex != '-' && sscanf(hex, "%2x", &byte) == 1; hex += 2) buffer_append(&bytes, &(char){(char)byte}, 1);
    return bytes;
}

/* Cuts the next word off a line. */
static char *next_word(char **line) {
    char *word = strsep(line, " \n");
    assert_non_null(word);
    return word;
}

static void each_vector(const char *name, void (*check)(const Tokenizer *, const Vector *)) {
    char *path = memory_format("%s/tests/golden/tokenizers/%s", root, name), *line = NULL, *kind = NULL;
    FILE *file = fopen(path, "r");
    Tokenizer *tokenizer = NULL;
    size_t capacity = 0, count = 0;
    assert_non_null(file);
    for (; getline(&line, &capacity, file) > 0; count++) {
        char *rest = line;
        Vector vector = {.kind = next_word(&rest)};
        vector.flags = *next_word(&rest) == '1' ? TOKENIZER_ADD_SPECIAL : 0;
        vector.text = from_hex(next_word(&rest));
        char *ids = next_word(&rest);
        for (char *id; *ids != '-' && (id = strsep(&ids, ","));) {
            token_ids_append(&vector.ids, atoi(id));
            if (!ids) break;
        }
        vector.decoded = from_hex(next_word(&rest));
        if (!kind || strcmp(kind, vector.kind) != 0) {
            tokenizer_free(tokenizer);
            tokenizer = open_golden(vector.kind);
            free(kind);
            kind = memory_copy_string(vector.kind);
        }
        check(tokenizer, &vector);
        free(vector.text.bytes);
        free(vector.decoded.bytes);
        token_ids_free(&vector.ids);
    }
    assert_true(count >= 200);
    tokenizer_free(tokenizer);
    free(kind);
    free(line);
    free(path);
    fclose(file);
}

static void check_ids(const Tokenizer *tokenizer, const Vector *vector) {
    TokenIds ids = encode(tokenizer, vector->text.bytes, vector->text.size, vector->flags);
    bool same = ids.count == vector->ids.count;
    for (size_t i = 0; same && i < ids.count; i++) same = ids.items[i] == vector->ids.items[i];
    if (!same) fail_msg("%s: other ids for '%.*s'", vector->kind, (int)vector->text.size, vector->text.bytes);
    token_ids_free(&ids);
}

/* Text as sentencepiece gives it: U+FFFD for each byte that is not UTF-8. */
static Buffer well_formed(Span text) {
    Buffer out = {0};
    for (size_t at = 0, size; at < text.size; at += size) {
        size = text_character_size(text.bytes + at, text.size - at);
        buffer_append(&out, size > 0 ? text.bytes + at : "\xEF\xBF\xBD", size > 0 ? size : 3);
        if (size == 0) size = 1;
    }
    return out;
}

static void check_decoded(const Tokenizer *tokenizer, const Vector *vector) {
    Buffer bytes = decode(tokenizer, &vector->ids, false), text = bytes;
    if (tokenizer->sentencepiece) text = well_formed(buffer_span(&bytes));
    if (text.size != vector->decoded.size || (text.size > 0 && memcmp(text.bytes, vector->decoded.bytes, text.size) != 0))
        fail_msg("%s: other text for '%.*s'", vector->kind, (int)vector->text.size, vector->text.bytes);
    if (tokenizer->sentencepiece) free(text.bytes);
    free(bytes.bytes);
}

static void ids_are_those_of_the_library(void **state) {
    (void)state;
    each_vector("vectors.txt", check_ids);
    each_vector("sentencepiece.txt", check_ids);
}

static void decoded_texts_are_those_of_the_library(void **state) {
    (void)state;
    each_vector("vectors.txt", check_decoded);
    each_vector("sentencepiece.txt", check_decoded);
}

/* -- Any bytes ----------------------------------------------------------------------------------------------------- */

static uint32_t next_random(uint32_t *seed) { return *seed = *seed * 1664525 + 1013904223, *seed >> 8; }

#define SPECIAL(id, text) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":true}"

/* The ids of `text` without and with TOKENIZER_PLAIN_SPECIAL, by one encoder, twice: its words are cached. */
static void check_plain(const char *json, const char *text, TokenIds matched, TokenIds plain) {
    Error error = {0};
    write_text("tokenizer.json", json);
    Tokenizer *tokenizer = tokenizer_open("tokenizer.json", &error);
    if (!tokenizer) fail_msg("%s", error.message);
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    for (int i = 0; i < 4; i++) {
        const TokenIds *expected = i % 2 ? &plain : &matched;
        TokenIds ids = encode_with(encoder, text, strlen(text), i % 2 ? TOKENIZER_PLAIN_SPECIAL : 0);
        assert_ids(&ids, expected->items, expected->count);
        token_ids_free(&ids);
    }
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
}
#define IDS(...) ((TokenIds){.items = (int32_t[]){__VA_ARGS__}, .count = sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t)})

/* The model's own vocabulary has the special tokens: as a piece, a whole word, what merges make, and a character. */
static void a_model_that_spells_special_tokens_spells_plain_text_otherwise(void **state) {
    (void)state;
    static const char unigram[] =
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<u>\",0],[\"<s>\",0],[\"<\",-4],[\"s\",-4],[\">\","
        "-4],[\"~\",0]]},\"added_tokens\":[" SPECIAL(0, "<u>") "," SPECIAL(1, "<s>") "," SPECIAL(5, "~") "]}";
    check_plain(unigram, "s<s>", IDS(3, 1), IDS(3, 2, 3, 4));
    check_plain(unigram, "s~", IDS(3, 5), IDS(3, 0));
    static const char words[] =
        "{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"unk_token\":\"u\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"u\":3},"
        "\"merges\":[]},\"added_tokens\":[" SPECIAL(2, "ab") "," SPECIAL(1, "b") "]}";
    check_plain(words, "ab", IDS(2), IDS(0, 3));
    static const char merges[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]},\"added_tokens\":[" SPECIAL(2, "ab") "]}";
    check_plain(merges, "aab", IDS(0, 2), IDS(0, 0, 1));
}

/* Without an unknown token the character would be lost. */
static void plain_text_that_a_special_token_alone_spells_is_refused(void **state) {
    (void)state;
    static const char *const models[] = {"", "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"};
    for (int i = 0; i < 2; i++) {
        char json[400];
        Error error = {0};
        TokenIds ids = {0};
        snprintf(json, sizeof json,
            "{%s\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]},\"added_tokens\":[" SPECIAL(1, "b") "]}", models[i]);
        write_text("tokenizer.json", json);
        Tokenizer *tokenizer = tokenizer_open("tokenizer.json", &error);
        if (!tokenizer) fail_msg("%s", error.message);
        TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
        for (int again = 0; again < 2; again++) {
            assert_false(tokenizer_encode(encoder, "ab", 2, TOKENIZER_PLAIN_SPECIAL, &ids, &error));
            assert_mentions(error.message, "character");
        }
        assert_true(tokenizer_encode(encoder, "ab", 2, 0, &ids, &error));
        token_ids_free(&ids);
        tokenizer_encoder_free(encoder);
        tokenizer_free(tokenizer);
    }
}

static void any_bytes_come_back_from_byte_level_tokens(void **state) {
    (void)state;
    uint32_t seed = 1;
    Tokenizer *tokenizer = open_golden("llama3");
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    for (int round = 0; round < 300; round++) {
        char text[400];
        size_t length = next_random(&seed) % sizeof text;
        for (size_t i = 0; i < length; i++)
            text[i] = round % 2 ? (char)next_random(&seed) : "a \n'\xE2\x82\xAC\xFFz"[next_random(&seed) % 9];
        TokenIds ids = encode_with(encoder, text, length, TOKENIZER_PLAIN_SPECIAL);
        Buffer back = decode(tokenizer, &ids, false);
        assert_int_equal(back.size, length);
        if (length > 0) assert_memory_equal(back.bytes, text, length);
        free(back.bytes);
        token_ids_free(&ids);
    }
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
}

static void bytes_fall_back_to_byte_tokens(void **state) {
    (void)state;
    Tokenizer *tokenizer = open_golden("gemma");
    TokenIds ids = encode(tokenizer, "\xFF\xE2\x82", 3, 0);
    int32_t expected[] = {tokenizer_id(tokenizer, "<0xFF>"), tokenizer_id(tokenizer, "<0xE2>"), tokenizer_id(tokenizer, "<0x82>")};
    assert_ids(&ids, expected, 3);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

static void special_tokens_in_a_text_can_stay_text(void **state) {
    (void)state;
    Tokenizer *tokenizer = open_golden("gpt2");
    const char text[] = "a<|endoftext|>";
    TokenIds matched = encode(tokenizer, text, sizeof text - 1, 0),
             plain = encode(tokenizer, text, sizeof text - 1, TOKENIZER_PLAIN_SPECIAL);
    assert_int_equal(matched.count, 2);
    assert_int_equal(matched.items[1], tokenizer_end_of_text(tokenizer));
    for (size_t i = 0; i < plain.count; i++) assert_int_not_equal(plain.items[i], tokenizer_end_of_text(tokenizer));
    Buffer text_without = decode(tokenizer, &matched, true), text_with = decode(tokenizer, &plain, true);
    assert_int_equal(text_without.size, 1);
    assert_int_equal(text_with.size, sizeof text - 1);
    free(text_without.bytes);
    free(text_with.bytes);
    token_ids_free(&matched);
    token_ids_free(&plain);
    tokenizer_free(tokenizer);
}

/* -- Cutting ------------------------------------------------------------------------------------------------------- */

/* Text of what steps look at, joined at random. */
static Buffer random_text(uint32_t *seed, size_t size) {
    static const char *const parts[] = {"a", "e", "the", "Zebra", " b", " of", "n\nm", " ", " ", "  ", "\n", "\n", "\n\n", "\r\n", "\t",
        "'s", "'LL", "12", "3", ".", "!?", "(", "/", "_", "\xE2\x96\x81", "\xE6\x97\xA5\xE6\x9C\xAC", "\xE3\x81\x8B", "\xE3\x82\x99",
        "\xED\x95\x9C", "\xE3\x80\x82", "\xCC\x81", "\xC2\xA0", "\xE1\x85\xA1", "\xFF", "\xE2\x82", "\0", "\x7F", "<s>", "<|endoftext|>",
        "<0x41>", "\xF0\x9F\x98\x80", "word"};
    Buffer text = {0};
    while (text.size < size) {
        uint32_t part = next_random(seed) % (sizeof parts / sizeof *parts);
        buffer_append(&text, parts[part], *parts[part] ? strlen(parts[part]) : 1);
    }
    return text;
}

/* The ids of a text that is cut every `step` bytes, or more where no place is nearer, each place found with `sight` bytes
 * behind what is wanted in view. */
static TokenIds encode_in_parts(TokenizerEncoder *encoder, const Tokenizer *tokenizer, Span text, size_t step, size_t sight, int *cuts) {
    TokenIds ids = {0}, joined = {0};
    PartWords words = {0};
    TokenizerJoiner *joiner = tokenizer_joiner_open(tokenizer, 0);
    unsigned flags = 0;
    for (size_t at = 0, cut = 0; at < text.size; at += cut, flags = TOKENIZER_CONTINUED) {
        size_t left = text.size - at;
        cut = 0;
        for (size_t wanted = step; cut == 0 && wanted < left; wanted *= 2) {
            size_t seen = wanted + sight < left ? wanted + sight : left,
                   safe = tokenizer_safe_cut(tokenizer, text.bytes + at, seen, wanted);
            cut = tokenizer_part_cut(tokenizer, text.bytes + at, seen, wanted);
            assert_true(safe == 0 || safe == cut);
            assert_true(cut <= wanted);
        }
        if (cut > 0) ++*cuts;
        else cut = left;
        Error error = {0};
        TextPart part = {.first = at == 0, .ids = ids.count, .words = words.count};
        if (!tokenizer_encode_part(encoder, text.bytes + at, cut, flags, &ids, &words, &error)) fail_msg("%s", error.message);
        part.id_count = ids.count - part.ids;
        part.word_count = words.count - part.words;
        tokenizer_join(joiner, &part, &ids, &words, &joined);
    }
    token_ids_free(&ids);
    part_words_free(&words);
    tokenizer_joiner_free(joiner);
    return joined;
}

static void parts_cut_at_safe_places_give_the_ids_of_the_whole(void **state) {
    (void)state;
    uint32_t seed = 21;
    for (int kind = 0; kind < KINDS; kind++) {
        Tokenizer *tokenizer = open_golden(kinds[kind]);
        TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
        int cuts = 0;
        for (int round = 0; round < 300; round++) {
            Buffer text = random_text(&seed, 1 + next_random(&seed) % 600);
            TokenIds whole = encode_with(encoder, text.bytes, text.size, 0);
            size_t step = 1 + next_random(&seed) % 100, sight = next_random(&seed) % 5;
            TokenIds parts = encode_in_parts(encoder, tokenizer, buffer_span(&text), step, sight, &cuts);
            if (parts.count != whole.count || (whole.count > 0 && memcmp(parts.items, whole.items, whole.count * sizeof *whole.items) != 0))
                fail_msg("%s: other ids for parts of '%.*s'", kinds[kind], (int)text.size, text.bytes);
            token_ids_free(&parts);
            token_ids_free(&whole);
            free(text.bytes);
        }
        bool none = !strcmp(kinds[kind], "added"); /* a token takes in white space */
        if (none ? cuts > 0 : cuts < 200) fail_msg("%s: %d cuts", kinds[kind], cuts);
        tokenizer_encoder_free(encoder);
        tokenizer_free(tokenizer);
    }
}

/* Sums pass 100,000 some dozen times, at which they start anew, and rounding decides in many words. */
static void long_parts_of_a_unigram_model_give_the_ids_of_the_whole(void **state) {
    (void)state;
    enum { BYTES = 3000000 };
    write_rivals_model("rivals.model");
    Tokenizer *tokenizer = open_tokenizer("rivals.model");
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    SCOPED_FREE char *words = random_words(BYTES);
    Span text = {words, BYTES};
    assert_int_equal(tokenizer_safe_cut(tokenizer, text.bytes, text.size, BYTES / 2), 0);
    TokenIds whole = encode_with(encoder, text.bytes, text.size, 0);
    for (size_t step = 1000; step < BYTES; step *= 37) {
        int cuts = 0;
        TokenizerEncoder *other = tokenizer_encoder_open(tokenizer); /* its cache is empty */
        TokenIds parts = encode_in_parts(other, tokenizer, text, step, 8, &cuts);
        assert_true(cuts > 0 && parts.count == whole.count);
        assert_memory_equal(parts.items, whole.items, whole.count * sizeof *whole.items);
        token_ids_free(&parts);
        tokenizer_encoder_free(other);
    }
    token_ids_free(&whole);
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
}

static void a_text_is_not_cut_where_an_unknown_expression_may_reach(void **state) {
    (void)state;
    static const char text[] = "one two three\nfour";
    write_text("tokenizer.json",
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a-z "
        "]+\"},\"behavior\":\"Isolated\"},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
        "\"use_regex\":false}]}}");
    Tokenizer *unknown = open_tokenizer("tokenizer.json"), *known = open_golden("gpt2");
    assert_int_equal(tokenizer_safe_cut(unknown, text, sizeof text - 1, 10), 0);
    assert_int_equal(tokenizer_safe_cut(known, text, sizeof text - 1, 10), 7);
    assert_int_equal(tokenizer_safe_cut(known, text, sizeof text - 1, 99), 14);
    assert_int_equal(tokenizer_safe_cut(known, text, 14, 14), 7); /* what follows the line feed is not seen */
    tokenizer_free(unknown);
    tokenizer_free(known);
}

/* -- Merging ------------------------------------------------------------------------------------------------------- */

/* The definition: of all adjacent pairs the one of the lowest rank, the leftmost of these, until none merges. */
static size_t merge_naively(const Tokenizer *tokenizer, int32_t *symbols, size_t count) {
    for (;;) {
        size_t best = 0;
        uint64_t least = PAIR_NONE;
        for (size_t i = 0; i + 1 < count; i++) {
            uint64_t found = pair_map_get(&tokenizer->merges, pair_key((uint32_t)symbols[i], (uint32_t)symbols[i + 1]));
            if (found < least) least = found, best = i;
        }
        if (least == PAIR_NONE) return count;
        symbols[best] = (int32_t)(uint32_t)least;
        count--;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
    }
}

static void short_and_long_words_merge_as_defined(void **state) {
    (void)state;
    uint32_t seed = 5;
    Tokenizer *tokenizer = open_golden("gpt2");
    Merger merger = {0};
    for (size_t length = 2; length < 600; length += length < 100 ? 1 : 37) {
        char word[600];
        int32_t symbols[600];
        for (size_t i = 0; i < length; i++) {
            word[i] = "etaoin_srsize  "[next_random(&seed) % 15];
            symbols[i] = tokenizer->byte_id[(unsigned char)word[i]];
        }
        TokenIds ids = {0};
        merge_word(tokenizer, &merger, word, length, &ids);
        assert_ids(&ids, symbols, merge_naively(tokenizer, symbols, length));
        token_ids_free(&ids);
    }
    merger_free(&merger);
    tokenizer_free(tokenizer);
}

/* A quadratic loop would take 10^12 steps, hours; the bound leaves room for sanitizers and busy machines. */
/* The sum of scores passes 100,000, where it starts again; near there many ways are as good as the best, in fp32. */
static void words_from_the_cache_are_those_of_the_whole_text(void **state) {
    (void)state;
    enum { SIZE = 400000 };
    static const char *const alphabets[] = {"llllll ", "--------- ", "etaoin shrdlu\xC3\xA9"};
    uint32_t seed = 3;
    Tokenizer *tokenizer = open_golden("spm-unigram");
    for (size_t j = 0; j < sizeof alphabets / sizeof *alphabets; j++) {
        Buffer text = {0}, normal = {0};
        while (text.size < SIZE) buffer_append(&text, &alphabets[j][next_random(&seed) % strlen(alphabets[j])], 1);
        charsmap_normalize(tokenizer, &tokenizer->normals[0], buffer_span(&text), false, &normal);
        Lattice lattice = {0};
        TokenIds whole = {0}, words = encode(tokenizer, text.bytes, text.size, 0);
        unigram_encode(tokenizer, &lattice, buffer_span(&normal), &whole);
        assert_ids(&words, whole.items, whole.count);
        lattice_free(&lattice);
        token_ids_free(&words);
        token_ids_free(&whole);
        free(normal.bytes);
        free(text.bytes);
    }
    tokenizer_free(tokenizer);
}

static void a_word_of_a_megabyte_takes_seconds(void **state) {
    (void)state;
    enum { SIZE = 1 << 20, SECONDS = 20 };
    static const char *const alphabets[] = {"a", " ", "\n", "etaoin", "\xFF", "1", "!?", " a"};
    char *text = memory_allocate(SIZE);
    uint32_t seed = 9;
    for (int kind = 0; kind < KINDS; kind += kind < 8 ? 4 : 1) {
        Tokenizer *tokenizer = open_golden(kinds[kind]);
        for (size_t j = 0; j < sizeof alphabets / sizeof *alphabets; j++) {
            for (size_t i = 0; i < SIZE; i++) text[i] = alphabets[j][next_random(&seed) % strlen(alphabets[j])];
            clock_t start = clock();
            TokenIds ids = encode(tokenizer, text, SIZE, 0);
            assert_true((double)(clock() - start) / CLOCKS_PER_SEC < SECONDS);
            bool blank = strspn(alphabets[j], " \n") == strlen(alphabets[j]);   /* SentencePiece leaves it out */
            assert_true((ids.count > 0 || blank) && ids.count <= SIZE * 3 + 1); /* and makes three bytes of one that is not UTF-8 */
            token_ids_free(&ids);
        }
        tokenizer_free(tokenizer);
    }
    free(text);
}

static void threads_share_one_tokenizer(void **state) {
    (void)state;
    Tokenizer *tokenizer = open_golden("qwen");
    char *path = memory_format("%s/src/token/encode.c", root);
    size_t size;
    char *text = (char *)read_bytes(path, &size);
    TokenIds expected = encode(tokenizer, text, size, 0);
    int wrong = 0;
#pragma omp parallel num_threads(4) reduction(+ : wrong)
    {
        TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
        TokenIds ids = {0};
        Error error = {0};
        for (int i = 0; i < 8; i++) {
            ids.count = 0;
            bool good = tokenizer_encode(encoder, text, size, 0, &ids, &error) && ids.count == expected.count;
            if (!good || memcmp(ids.items, expected.items, ids.count * sizeof *ids.items) != 0) wrong++;
        }
        token_ids_free(&ids);
        tokenizer_encoder_free(encoder);
    }
    assert_int_equal(wrong, 0);
    token_ids_free(&expected);
    tokenizer_free(tokenizer);
    free(text);
    free(path);
}

/* -- Files --------------------------------------------------------------------------------------------------------- */

static void assert_refused(const char *text, ErrorCode code, const char *part) {
    Error error = {0};
    write_text("tokenizer.json", text);
    Tokenizer *tokenizer = tokenizer_open("tokenizer.json", &error);
    tokenizer_free(tokenizer);
    if (tokenizer) fail_msg("%s was read", text);
    assert_int_equal(error.code, code);
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
static void parts_that_are_not_known_are_refused_by_name(void **state) {
    (void)state;
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Lowercase\"}}", ERROR_DATA, "normalizer is of type 'Lowercase'");
    assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}", ERROR_DATA, "BertPreTokenizer");
    assert_refused("{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", ERROR_DATA, "WordPiece");
    assert_refused("{" MODEL ",\"post_processor\":{\"type\":\"Other\"}}", ERROR_DATA, "Other");
    assert_refused("{\"model\":{\"type\":\"WordLevel\",\"vocab\":{}}}", ERROR_DATA, "WordLevel");
    assert_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", ERROR_DATA, "vocab");
    assert_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}", ERROR_DATA, "unk_id");
    assert_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1],[\"b\"]]}}", ERROR_DATA, "token 1");
    assert_refused(
        "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}}", ERROR_DATA, "precompiled_charsmap truncated");
    assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a(\"},\"content\":\"\"}}", ERROR_DATA, "a(");
    assert_refused(
        "{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a{1,2}+\"},\"content\":\"\"}}", ERROR_DATA, "+ {...}");
}

static void broken_files_are_refused(void **state) {
    (void)state;
    assert_refused("", ERROR_DATA, "tokenizer.json 0x00");
    assert_refused("{", ERROR_DATA, "JSON column 2");
    assert_refused("{}", ERROR_DATA, "model");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", ERROR_DATA, "duplicate");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", ERROR_DATA, "-1");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}", ERROR_DATA, "99999999");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[\"a b\"]}}", ERROR_DATA, "merge 0");
    assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]}}", ERROR_DATA, "tokens");
    assert_refused("{\"normalizer\":{\"type\":\"a\\nb\\u001b[31m\"}}", ERROR_DATA, "of type 'a?b?[31m'");
    Error error = {0};
    assert_null(tokenizer_open("missing", &error));
    assert_mentions(error.message, "cannot open missing");
}

static void what_is_no_tokenizer_is_told_what_is_one(void **state) {
    (void)state;
    Error error = {0};
    assert_null(tokenizer_open("gpt2", &error));
    assert_int_equal(error.code, ERROR_DATA);
    assert_mentions(error.message, "gpt2: tokenizer.json");
    write_text("s.yaml", "model:\n  layers: 2\n");
    assert_null(tokenizer_open("s.yaml", &error));
    assert_mentions(error.message, "s.yaml tokenizer.json tokenizer.model tekken.json");
}

static void write_tiktoken(const char *path, const char *more) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int byte = 0; byte < 256; byte++) fprintf(file, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    fputs(more, file);
    assert_int_equal(fclose(file), 0);
}

static void a_tiktoken_file_merges_by_rank(void **state) {
    (void)state;
    write_tiktoken("t.tiktoken", "YmM= 256\nYWI= 257\nYWJj 258\n"); /* bc, ab, abc */
    write_text("tokenizer_config.json", "{\"pattern\":\"cl100k\"}");
    Tokenizer *tokenizer = open_tokenizer("t.tiktoken");
    assert_int_equal(tokenizer_vocabulary(tokenizer), 260);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 259);
    TokenIds ids = encode(tokenizer, "abc abcb<|endoftext|>", 21, 0);
    int32_t expected[] = {258, ' ', 258, 'b', 259};
    assert_ids(&ids, expected, 5);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

static void a_broken_tiktoken_file_is_refused_with_its_line(void **state) {
    (void)state;
    static const char *const lines[] = {"YWI\n", "YW* 256\n", "YWI= x\n", "YWI= 99999999999\n", "AA== 300\n", " 256\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        Error error = {0};
        write_tiktoken("t.tiktoken", lines[i]);
        assert_null(tokenizer_open("t.tiktoken", &error));
        assert_int_equal(error.code, ERROR_DATA);
        if (!strstr(error.message, "line 257")) fail_msg("%s: %s", lines[i], error.message);
    }
    Error error = {0};
    write_tiktoken("t.tiktoken", "");
    assert_null(tokenizer_open("t.tiktoken", &error));
    assert_mentions(error.message, "pattern 256 ranks");
    write_text("tokenizer_config.json", "{\"pattern\":\"gpt7\"}");
    assert_null(tokenizer_open("t.tiktoken", &error));
    assert_mentions(error.message, "the pattern 'gpt7'");
}

static void what_a_tiktoken_file_leaves_out_stands_beside_it_and_travels_with_it(void **state) {
    (void)state;
    static const char config[] =
        "{\"pattern\":\"[a-z]+|[^a-z]\",\"eos_token\":\"<e>\",\"added_tokens_decoder\":{\"300\":{\"content\":\"<e>\"}}}";
    Error error = {0};
    write_tiktoken("t.tiktoken", "YmM= 256\nIGI= 257\n 258\n= 259\n"); /* bc; " b", which the pattern divides; an empty one */
    write_text("tokenizer_config.json", config);
    assert_null(tokenizer_open("t.tiktoken", &error));
    assert_mentions(error.message, "line 259");
    write_tiktoken("t.tiktoken", "YmM= 256\nIGI= 257\n= 258\n");
    assert_true(tokenizer_copy("t.tiktoken", "copy", &error));
    write_text("tokenizer_config.json", "{\"pattern\":\"gpt2\"}");
    bool differs;
    assert_true(tokenizer_differs("t.tiktoken", "copy", &differs, &error) && differs);
    assert_true(remove("tokenizer_config.json") == 0 && symlink("tokenizer_config.json", "tokenizer_config.json") == 0);
    assert_false(tokenizer_differs("t.tiktoken", "copy", &differs, &error)); /* it is there, and cannot be read */
    assert_mentions(error.message, "tokenizer_config.json");
    assert_int_equal(remove("tokenizer_config.json"), 0);
    write_text("tokenizer_config.json", config);
    assert_true(tokenizer_differs("t.tiktoken", "copy", &differs, &error) && !differs);
    Tokenizer *tokenizer = open_tokenizer("copy");
    assert_int_equal(tokenizer_vocabulary(tokenizer), 301);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 300);
    TokenIds ids = encode(tokenizer, "a bc<e>", 7, 0);
    int32_t expected[] = {'a', ' ', 256, 300};
    assert_ids(&ids, expected, 4);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

/* Two special tokens, then the bytes, then "ab", then one that the vocabulary has no room for. */
static void mistrals_files_begin_with_special_tokens(void **state) {
    (void)state;
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    Error error = {0};
    FILE *file = fopen("tekken.json", "w");
    assert_non_null(file);
    fputs("{\"config\":{\"pattern\":\"[a-z]+|[^a-z]\",\"default_vocab_size\":260,\"default_num_special_tokens\":3},\"vocab\":[", file);
    for (int byte = 0; byte < 256; byte++)
        fprintf(file, "{\"rank\":%d,\"token_bytes\":\"%c%c==\",\"token_str\":null},", byte, digits[byte >> 2], digits[(byte & 3) << 4]);
    fputs("{\"rank\":256,\"token_bytes\":\"YWI=\"},{\"rank\":257,\"token_bytes\":\"YmM=\"}],\"special_tokens\":["
          "{\"rank\":0,\"token_str\":\"<s>\"},{\"rank\":1,\"token_str\":\"</s>\"}]}",
        file);
    assert_int_equal(fclose(file), 0);
    assert_true(tokenizer_copy("tekken.json", "copy", &error));
    assert_true(file_exists("copy/tekken.json"));
    Tokenizer *tokenizer = open_tokenizer("copy");
    assert_int_equal(tokenizer_vocabulary(tokenizer), 260);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 1);
    assert_int_equal(tokenizer_id(tokenizer, "<SPECIAL_2>"), 2);
    TokenIds ids = encode(tokenizer, "abc</s>", 7, TOKENIZER_ADD_SPECIAL);
    int32_t expected[] = {0, 259, 'c' + 3, 1};
    assert_ids(&ids, expected, 4);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
    assert_refused(
        "{\"config\":{\"pattern\":\"a\",\"default_vocab_size\":9,\"default_num_special_tokens\":3},\"vocab\":[]}", ERROR_DATA, "9 tokens");
}

static void a_vocabulary_may_have_the_zero_character(void **state) {
    (void)state;
    write_text("tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\u0000\":1,\"\\\\u0000\":2,\"\\u0000a\" "
                                 ":3,\"\\\"\":4},\"merges\":[\"\\u0000 a\"]}}");
    Tokenizer *tokenizer = open_tokenizer("tokenizer.json");
    TokenIds ids = encode(tokenizer, "a\0\0a\"", 5, 0);
    int32_t expected[] = {0, 1, 3, 4};
    assert_ids(&ids, expected, 4);
    assert_int_equal(tokenizer_id(tokenizer, "\\u0000"), 2);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

static void the_end_of_text_is_that_of_the_configuration_beside_it(void **state) {
    (void)state;
    write_text("tokenizer.json", "{" MODEL ",\"added_tokens\":[{\"id\":3,\"content\":\"</s>\",\"special\":true}]}");
    Tokenizer *tokenizer = open_tokenizer(".");
    assert_int_equal(tokenizer_vocabulary(tokenizer), 4);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 3);
    tokenizer_free(tokenizer);
    write_text("tokenizer_config.json", "{\"eos_token\":{\"content\":\"ab\"}}");
    tokenizer = open_tokenizer(".");
    assert_int_equal(tokenizer_end_of_text(tokenizer), 2);
    tokenizer_free(tokenizer);
}

/* Any damage must give an error with words or a tokenizer that encodes. */
static void damaged_files_never_crash(void **state) {
    (void)state;
    uint32_t seed = 77;
    for (int round = 0; round < 210; round++) {
        char *path = golden_path(kinds[round % KINDS]);
        size_t size, hole = next_random(&seed) % 40;
        char *bytes = (char *)read_bytes(path, &size);
        size_t at = next_random(&seed) % (size - hole);
        if (round % 3 == 0) memmove(bytes + at, bytes + at + hole, size - at - hole), size -= hole;
        for (size_t i = 0; round % 3 == 1 && i < hole; i++) bytes[next_random(&seed) % size] = (char)next_random(&seed);
        if (round % 3 == 2) memmove(bytes + at, bytes + next_random(&seed) % (size - hole), hole);
        write_bytes("tokenizer.json", bytes, size);
        Error error = {0};
        Tokenizer *tokenizer = tokenizer_open("tokenizer.json", &error);
        if (!tokenizer) assert_true(error.code != ERROR_NONE && *error.message);
        if (tokenizer) {
            TokenIds ids = encode(tokenizer, "some text, \xE2\x82\xAC 12\n", 18, TOKENIZER_ADD_SPECIAL);
            Buffer text = decode(tokenizer, &ids, false);
            free(text.bytes);
            token_ids_free(&ids);
        }
        tokenizer_free(tokenizer);
        free(bytes);
        free(path);
    }
}

/* -- Training ------------------------------------------------------------------------------------------------------ */

static int32_t train(const char *text, size_t length, int32_t vocabulary, const char *path) {
    Error error = {0};
    int32_t learned = 0;
    TokenizerTraining training = {"gpt2", vocabulary, 1};
    TokenizerTrainer *trainer = tokenizer_trainer_open(&training, &error);
    if (!trainer || !tokenizer_trainer_add(trainer, text, length, &error) || !tokenizer_trainer_finish(trainer, path, &learned, &error))
        fail_msg("%s", error.message);
    tokenizer_trainer_free(trainer);
    return learned;
}

static void training_merges_the_most_frequent_pair_first(void **state) {
    (void)state;
    assert_int_equal(train("ab ab abc abc abc xy xy", 23, 260, "t.json"), 260);
    Tokenizer *tokenizer = open_tokenizer("t.json");
    static const char *const learned[] = {
        "ab", "Ġab", "Ġabc"}; /* 5, 4 and 3 times; "Ġabc" and "xy" are then the most frequent with 3 and 2 */
    for (int i = 0; i < 3; i++) assert_int_equal(tokenizer_id(tokenizer, learned[i]), 257 + i);
    TokenIds ids = encode(tokenizer, " abc xy", 7, 0);
    assert_int_equal(ids.items[0], 259);
    token_ids_free(&ids);
    tokenizer_free(tokenizer);
}

static void training_stops_when_no_pair_is_left(void **state) {
    (void)state;
    assert_int_equal(train("aaa", 3, 1000, "t.json"), 259);
    Error error = {0};
    int32_t learned;
    TokenizerTraining training = {"gpt2", 300, 1};
    TokenizerTrainer *trainer = tokenizer_trainer_open(&training, &error);
    assert_false(tokenizer_trainer_finish(trainer, "none.json", &learned, &error));
    assert_int_equal(error.code, ERROR_DATA);
    tokenizer_trainer_free(trainer);
    assert_int_equal(access("none.json", F_OK), -1);
}

static void training_does_not_depend_on_the_number_of_threads(void **state) {
    (void)state;
    enum { SIZE = 9 << 20 };
    char *text = memory_allocate(SIZE);
    uint32_t seed = 4;
    for (size_t i = 0; i < SIZE; i++) text[i] = i % 60 == 59 ? '\n' : "etaoin shrdlu, \xC3\xA9"[next_random(&seed) % 17];
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    train(text, SIZE, 400, "one.json");
    omp_set_num_threads(4);
    train(text, SIZE, 400, "four.json");
    omp_set_num_threads(threads);
    size_t one_size, four_size;
    unsigned char *one = read_bytes("one.json", &one_size), *four = read_bytes("four.json", &four_size);
    assert_int_equal(one_size, four_size);
    assert_memory_equal(one, four, one_size);
    free(one);
    free(four);
    free(text);
}

/* -- Packing ------------------------------------------------------------------------------------------------------- */

static void packing_encodes_documents_and_ends_each(void **state) {
    (void)state;
    char *path = golden_path("gpt2");
    Tokenizer *tokenizer = open_golden("gpt2");
    write_text("in", "the first one\n%\nthe second <|endoftext|> one\n%\n");
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%", .tokenizer = path};
    PackResult result;
    Error error = {0};
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    assert_int_equal(result.documents, 2);
    ShardSet set = open_set("out");
    SCOPED_FREE char *types = shard_set_types(&set);
    SCOPED_FREE uint8_t *ends = NULL;
    SCOPED_FREE int32_t *tokens = read_tokens(&set, &ends);
    assert_string_equal(types, "u16");
    assert_int_equal(set.document_count, 2);
    assert_int_equal(set.token_count, result.train_tokens);
    TokenIds ids = encode(tokenizer, "the first one\n", 14, TOKENIZER_PLAIN_SPECIAL);
    for (size_t i = 0; i < ids.count; i++) assert_int_equal(tokens[i], ids.items[i]);
    for (int64_t i = 0; i < set.token_count; i++) {
        assert_int_equal(ends[i], tokens[i] == tokenizer_end_of_text(tokenizer));
        assert_int_equal(ends[i], (size_t)i == ids.count || i == set.token_count - 1);
    }
    token_ids_free(&ids);
    shard_set_close(&set);
    tokenizer_free(tokenizer);
    free(path);
}

static void a_tokenizer_without_an_end_of_text_cannot_pack(void **state) {
    (void)state;
    write_text("in", "ab");
    write_text("tokenizer.json", "{" MODEL "}");
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "", .tokenizer = "tokenizer.json"};
    PackResult result;
    Error error = {0};
    assert_false(pack_text(&options, &result, &error));
    assert_mentions(error.message, "document");
}

static void a_vocabulary_learned_from_documents_packs_them(void **state) {
    (void)state;
    write_text("in", "one two two three three three\n%\nthree two one\n");
    PackOptions input = {.inputs = (const char *[]){"in", NULL}, .output = "t.json", .separator = "%"},
                options = {.inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "%", .tokenizer = "t.json"};
    TokenizerTraining training = {"llama3", 265, 1};
    PackResult result;
    int32_t learned;
    Error error = {0};
    if (!pack_train_tokenizer(&input, &training, &result, &learned, &error)) fail_msg("%s", error.message);
    assert_int_equal(learned, 265);
    assert_int_equal(result.documents, 2);
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    assert_true(result.train_tokens < result.bytes);
}

int main(void) {
    if (!getcwd(root, sizeof root)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_library),
        cmocka_unit_test(decoded_texts_are_those_of_the_library),
        cmocka_unit_test(any_bytes_come_back_from_byte_level_tokens),
        cmocka_unit_test(bytes_fall_back_to_byte_tokens),
        cmocka_unit_test(special_tokens_in_a_text_can_stay_text),
        IN_FOLDER(a_model_that_spells_special_tokens_spells_plain_text_otherwise),
        IN_FOLDER(plain_text_that_a_special_token_alone_spells_is_refused),
        cmocka_unit_test(parts_cut_at_safe_places_give_the_ids_of_the_whole),
        IN_FOLDER(long_parts_of_a_unigram_model_give_the_ids_of_the_whole),
        IN_FOLDER(a_text_is_not_cut_where_an_unknown_expression_may_reach),
        cmocka_unit_test(short_and_long_words_merge_as_defined),
        cmocka_unit_test(words_from_the_cache_are_those_of_the_whole_text),
        cmocka_unit_test(a_word_of_a_megabyte_takes_seconds),
        cmocka_unit_test(threads_share_one_tokenizer),
        IN_FOLDER(parts_that_are_not_known_are_refused_by_name),
        IN_FOLDER(broken_files_are_refused),
        IN_FOLDER(what_is_no_tokenizer_is_told_what_is_one),
        IN_FOLDER(a_tiktoken_file_merges_by_rank),
        IN_FOLDER(a_broken_tiktoken_file_is_refused_with_its_line),
        IN_FOLDER(what_a_tiktoken_file_leaves_out_stands_beside_it_and_travels_with_it),
        IN_FOLDER(mistrals_files_begin_with_special_tokens),
        IN_FOLDER(a_vocabulary_may_have_the_zero_character),
        IN_FOLDER(the_end_of_text_is_that_of_the_configuration_beside_it),
        IN_FOLDER(damaged_files_never_crash),
        IN_FOLDER(training_merges_the_most_frequent_pair_first),
        IN_FOLDER(training_stops_when_no_pair_is_left),
        IN_FOLDER(training_does_not_depend_on_the_number_of_threads),
        IN_FOLDER(packing_encodes_documents_and_ends_each),
        IN_FOLDER(a_tokenizer_without_an_end_of_text_cannot_pack),
        IN_FOLDER(a_vocabulary_learned_from_documents_packs_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

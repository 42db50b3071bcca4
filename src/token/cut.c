/* Finds places where a text may be cut so that its parts, encoded separately, give the ids of the
 * whole. There are two kinds of places; the tokenizer's steps decide which of them it allows:
 *
 * CUT_SPACE: before a space between two ASCII letters, because no word continues from a letter to a
 * space after it.
 *
 * CUT_LINE: after a newline that follows a visible character and precedes a letter, because no word
 * of a known regular expression continues from a newline to a letter.
 *
 * Both hold for any surrounding text: the steps read from left to right, normal forms join nothing
 * to a space, a newline or an ASCII letter, and TOKENIZER_CONTINUED omits the prefix that a step
 * adds to a text. */
#include "token/token_internal.h"

static const char metaspace[] = "\xE2\x96\x81";

/* -- Steps --------------------------------------------------------------------------------------------------------- */

static bool cuts_at_space(const Pattern *pattern) { return !pattern->regex && pattern->text.size == 1 && pattern->text.bytes[0] == ' '; }

/* Returns whether the step treats parts like the whole. */
static bool pieces_keep_apart(const NormalStep *step) {
    return !step->charsmap.joins_spaces && step->whitespace.escape && !step->whitespace.suffix;
}

static bool normals_keep_apart(const Tokenizer *tokenizer) {
    for (int i = 0; i < tokenizer->normal_count; i++) {
        const NormalStep *step = &tokenizer->normals[i];
        if (step->kind == NORMAL_SENTENCEPIECE && !pieces_keep_apart(step)) return false;
        if (step->kind == NORMAL_PRECOMPILED && step->charsmap.joins_spaces) return false;
        if (step->kind == NORMAL_SENTENCEPIECE || step->kind == NORMAL_PRECOMPILED) continue;
        bool replaces = step->kind == NORMAL_REPLACE && cuts_at_space(&step->pattern) && step->with.size == 3 &&
                        !memcmp(step->with.bytes, metaspace, 3);
        if (step->kind != NORMAL_FORM && (tokenizer->byte_level || (step->kind != NORMAL_PREPEND && !replaces))) return false;
    }
    return true;
}

/* Returns the cuts of byte-level tokenizers, whose words are found by regular expressions. */
static unsigned cuts_of_expressions(const Tokenizer *tokenizer) {
    unsigned cuts = CUT_SPACE | CUT_LINE;
    bool divided = false;
    for (int i = 0; i < tokenizer->split_count; i++) {
        const SplitStep *step = &tokenizer->splits[i];
        if (step->kind == SPLIT_PREFIX_SPACE) {
            cuts &= CUT_SPACE; /* no space is added to a text that begins with a space */
            continue;
        }
        RegexDivision division = step->pattern.regex ? regex_division(step->pattern.regex) : DIVIDES_UNKNOWN;
        if (step->kind != SPLIT_PATTERN || division == DIVIDES_UNKNOWN || step->behavior != SPLIT_ISOLATED || step->invert) return 0;
        divided = divided || division == DIVIDES_WORDS;
    }
    return divided ? cuts : 0;
}

/* Returns the cuts of tokenizers whose words begin with U+2581, by a step or by the model's merges.
 * Spaces are U+2581 already, so a step that divides at spaces changes nothing (Gemma), or no space
 * is left (WhitespaceSplit). */
static unsigned cuts_of_metaspaces(const Tokenizer *tokenizer) {
    bool divided = tokenizer->space_begins_words, replaced = false;
    for (int i = 0; i < tokenizer->normal_count; i++) replaced = replaced || tokenizer->normals[i].kind == NORMAL_REPLACE;
    for (int i = 0; i < tokenizer->split_count; i++) {
        const SplitStep *step = &tokenizer->splits[i];
        bool spaces = step->kind == SPLIT_PATTERN && step->pattern.regex && regex_division(step->pattern.regex) == DIVIDES_SPACES;
        if (step->kind == SPLIT_METASPACE || (spaces && step->behavior == SPLIT_REMOVED && !step->invert))
            divided = divided || !step->whole;
        else if (!replaced || !cuts_at_space(&step->pattern)) return 0;
    }
    return divided ? CUT_SPACE : 0;
}

void cuts_find(Tokenizer *tokenizer) {
    tokenizer->cuts = !normals_keep_apart(tokenizer) ? 0
                      : tokenizer->byte_level        ? cuts_of_expressions(tokenizer)
                                                     : cuts_of_metaspaces(tokenizer);
}

/* -- Text ---------------------------------------------------------------------------------------------------------- */

static bool is_latin_letter(char byte) { return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z'); }

/* Returns whether the text begins with a letter that combines with nothing before it: ASCII, kana,
 * Han or a Hangul syllable. */
static bool begins_with_letter(const char *text, size_t size) {
    if (is_latin_letter(text[0])) return true;
    if (size < 3 || text_well_formed(text, 3) != 3) return false;
    uint32_t character = text_character(text, &(size_t){0});
    return (character >= 0x3041 && character <= 0x3096) || (character >= 0x30A1 && character <= 0x30FA) ||
           (character >= 0x4E00 && character <= 0x9FA5) || (character >= 0xAC00 && character <= 0xD7A3);
}

/* Returns whether the character that ends at text[at], before a newline, is neither white space nor
 * a control character. */
static bool is_visible(const char *text, size_t at) {
    if ((unsigned char)text[at] < 0x80) return text[at] > ' ' && text[at] != 0x7F;
    return at >= 2 && !is_latin_letter(text[at - 2]) && begins_with_letter(text + at - 2, 3);
}

static bool cuts_before(unsigned cuts, const char *text, size_t size, size_t at) {
    if (text[at] == ' ') return (cuts & CUT_SPACE) && at + 1 < size && is_latin_letter(text[at - 1]) && is_latin_letter(text[at + 1]);
    return text[at - 1] == '\n' && (cuts & CUT_LINE) && at >= 2 && is_visible(text, at - 2) && begins_with_letter(text + at, size - at);
}

size_t tokenizer_part_cut(const Tokenizer *tokenizer, const char *text, size_t size, size_t wanted) {
    if (tokenizer->cuts == 0 || size == 0) return 0;
    size_t at = wanted < size ? wanted : size - 1;
    while (at > 0 && !cuts_before(tokenizer->cuts, text, size, at)) at--;
    return at;
}

size_t tokenizer_safe_cut(const Tokenizer *tokenizer, const char *text, size_t size, size_t wanted) {
    return unigram_sums(tokenizer) ? 0 : tokenizer_part_cut(tokenizer, text, size, wanted);
}

void cuts_respect_added(Tokenizer *tokenizer, const AddedToken *token, Span content) {
    bool reaches = token->left_strip || token->right_strip;
    for (size_t i = 0; i + 1 < content.size; i++) {
        const char *next = content.bytes + i + 1;
        bool space = *next == ' ' || (!tokenizer->byte_level && content.size - i > 3 && memcmp(next, metaspace, 3) == 0);
        reaches = reaches || (is_latin_letter(content.bytes[i]) && space) || content.bytes[i] == '\n';
    }
    if (reaches) tokenizer->cuts = 0;
}

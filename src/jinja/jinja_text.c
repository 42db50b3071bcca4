/* Python's rules for texts: characters are code points, white space is Unicode's. Texts are UTF-8
 * in the pool of the rendering; a part of a text shares its bytes. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "jinja/jinja_internal.h"

/* -- Characters -------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of the character that begins with `lead`. */
static size_t character_bytes(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; }

Text str_character(Text text, size_t at) {
    size_t size = character_bytes((unsigned char)text.bytes[at]);
    return (Text){text.bytes + at, size < text.size - at ? size : text.size - at};
}

uint32_t str_code(Text character) {
    const unsigned char *at = (const unsigned char *)character.bytes;
    switch (character.size) {
    case 1: return at[0];
    case 2: return (uint32_t)(at[0] & 31) << 6 | (at[1] & 63);
    case 3: return (uint32_t)(at[0] & 15) << 12 | (uint32_t)(at[1] & 63) << 6 | (at[2] & 63);
    default: return (uint32_t)(at[0] & 7) << 18 | (uint32_t)(at[1] & 63) << 12 | (uint32_t)(at[2] & 63) << 6 | (at[3] & 63);
    }
}

/* Implements str.isspace(): white space, and the paragraph separators of Unicode's bidirectional
 * classes. */
bool str_is_space(Text character) {
    uint32_t code = str_code(character);
    return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

static bool begins_character(char byte) { return ((unsigned char)byte & 0xc0) != 0x80; }

int64_t str_length(Render *render, Text text) {
    int64_t count = 0;
    if (!jinja_charge(render, text.size)) return 0;
    for (size_t i = 0; i < text.size; i++) count += begins_character(text.bytes[i]);
    return count;
}

bool str_equal(Text a, Text b) { return a.size == b.size && (a.size == 0 || !memcmp(a.bytes, b.bytes, a.size)); }

/* Byte order of UTF-8 is the order of code points. */
int str_compare(Text a, Text b) {
    size_t common = a.size < b.size ? a.size : b.size;
    int order = common ? memcmp(a.bytes, b.bytes, common) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

int64_t str_find(Text text, Text part, size_t from) {
    if (from > text.size) return -1;
    if (part.size == 0) return (int64_t)from;
    if (text.size == from) return -1;
    const char *found = memmem(text.bytes + from, text.size - from, part.bytes, part.size);
    return found ? found - text.bytes : -1;
}

/* memmem compares up to 256 bytes of `part` again at each place. */
int64_t str_search(Render *render, Text text, Text part, size_t from) {
    enum { COMPARED = 256, AT_ONCE = 32 };
    int64_t found = str_find(text, part, from);
    size_t passed = found >= 0 ? (size_t)found - from : text.size - (from < text.size ? from : text.size);
    size_t compared = part.size < COMPARED ? part.size : COMPARED;
    return jinja_charge(render, JINJA_STEP + part.size + passed * (1 + compared / AT_ONCE)) ? found : -1;
}

/* -- Building ---------------------------------------------------------------------------------------------------------- */

void build(SequenceBuilder *builder, Text text) {
    if (text.size == 0) return;
    if (builder->capacity - builder->size < text.size) {
        size_t capacity = 2 * (builder->size + text.size);
        char *bytes = jinja_take(builder->render, capacity);
        if (!bytes) return;
        if (builder->size) memcpy(bytes, builder->bytes, builder->size);
        builder->bytes = bytes;
        builder->capacity = capacity;
    }
    memcpy(builder->bytes + builder->size, text.bytes, text.size);
    builder->size += text.size;
}

void build_format(SequenceBuilder *builder, const char *format, ...) {
    char text[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    build(builder, str_of(text));
}

/* -- Cutting ----------------------------------------------------------------------------------------------------------- */

static bool strips(Text character, const Text *set) {
    if (!set) return str_is_space(character);
    for (size_t at = 0; at < set->size;) {
        Text each = str_character(*set, at);
        if (str_equal(each, character)) return true;
        at += each.size;
    }
    return false;
}

/* Returns the last character of a text that is not empty. */
static Text last_character(Text text) {
    size_t at = text.size - 1;
    while (at > 0 && !begins_character(text.bytes[at])) at--;
    return (Text){text.bytes + at, text.size - at};
}

Text str_strip(Text text, const Text *set, int sides) {
    while (sides & STRIP_LEFT && text.size > 0) {
        Text first = str_character(text, 0);
        if (!strips(first, set)) break;
        text = (Text){text.bytes + first.size, text.size - first.size};
    }
    while (sides & STRIP_RIGHT && text.size > 0) {
        Text last = last_character(text);
        if (!strips(last, set)) break;
        text.size -= last.size;
    }
    return text;
}

Text str_trim(Render *render, Text text, const Text *set, int sides) {
    return jinja_charge(render, text.size * (set && set->size ? set->size : 1)) ? str_strip(text, set, sides) : text;
}

/* Returns `count` characters from number `start` on, `step` apart. */
Value str_slice(Render *render, Text text, int64_t start, int64_t step, int64_t count) {
    SequenceBuilder builder = {.render = render};
    uint32_t *places = jinja_take(render, (text.size + 1) * sizeof *places);
    if (!places) return value_none();
    size_t characters = 0;
    for (size_t i = 0; i < text.size; i++)
        if (begins_character(text.bytes[i])) places[characters++] = (uint32_t)i;
    for (int64_t i = 0; i < count; i++) build(&builder, str_character(text, places[start + i * step]));
    return value_text(built(&builder));
}

static void add_part(Render *render, Value list, Text text, size_t from, size_t to) {
    items_append(render, list.items, value_text((Text){text.bytes + from, to - from}));
}

/* Splits at runs of white space; none is left at the ends. */
static Value split_at_space(Render *render, Text text, int64_t most) {
    Value list = value_items(render, VALUE_LIST);
    text = str_strip(text, NULL, STRIP_LEFT);
    while (text.size > 0 && !render->failed) {
        size_t end = 0;
        while (end < text.size && !str_is_space(str_character(text, end))) end += str_character(text, end).size;
        bool rest = most >= 0 && (int64_t)list.items->count == most;
        add_part(render, list, text, 0, rest ? str_strip(text, NULL, STRIP_RIGHT).size : end);
        if (rest) break;
        text = str_strip((Text){text.bytes + end, text.size - end}, NULL, STRIP_LEFT);
    }
    return list;
}

/* Returns the last place of `part` that ends at or before `end`; -1: none. */
static int64_t find_last(Render *render, Text text, Text part, size_t end) {
    for (size_t at = end; at >= part.size && jinja_charge(render, 1 + part.size / JINJA_STEP); at--)
        if (!memcmp(text.bytes + at - part.size, part.bytes, part.size)) return (int64_t)(at - part.size);
    return -1;
}

static Value split_from_right(Render *render, Text text, Text separator, int64_t most) {
    Value list = value_items(render, VALUE_LIST);
    size_t end = text.size;
    for (int64_t at; (int64_t)list.items->count < most && (at = find_last(render, text, separator, end)) >= 0; end = (size_t)at)
        add_part(render, list, text, (size_t)at + separator.size, end);
    add_part(render, list, text, 0, end);
    for (size_t i = 0, j = list.items->count; i + 1 < j; i++) {
        Value swapped = list.items->at[i];
        list.items->at[i] = list.items->at[--j];
        list.items->at[j] = swapped;
    }
    return list;
}

/* Splits a text. `most` < 0: at each separator. NULL: at white space. */
Value str_split(Render *render, Text text, const Text *separator, int64_t most, bool from_right) {
    if (!jinja_charge(render, text.size)) return value_none();
    if (!separator && from_right && most >= 0) return jinja_unknown(render, "rsplit with a limit and without a separator is not supported");
    if (!separator) return split_at_space(render, text, most);
    if (separator->size == 0) return jinja_fail(render, "the separator of split is empty");
    if (from_right && most >= 0) return split_from_right(render, text, *separator, most);
    Value list = value_items(render, VALUE_LIST);
    size_t from = 0;
    for (int64_t at; (most < 0 || (int64_t)list.items->count < most) && (at = str_search(render, text, *separator, from)) >= 0;
        from = (size_t)at + separator->size)
        add_part(render, list, text, from, (size_t)at);
    add_part(render, list, text, from, text.size);
    return list;
}

/* Returns the bytes of the line end at `at`; 0: there is none. */
static size_t text_line_end(Text text, size_t at) {
    Text character = str_character(text, at);
    uint32_t code = str_code(character);
    if (code == '\r' && at + 1 < text.size && text.bytes[at + 1] == '\n') return 2;
    bool ends = (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 || code == 0x2029;
    return ends ? character.size : 0;
}

Value str_split_lines(Render *render, Text text, bool keep) {
    Value list = value_items(render, VALUE_LIST);
    size_t from = 0;
    if (!jinja_charge(render, text.size)) return list;
    for (size_t at = 0; at < text.size && !render->failed;) {
        size_t end = text_line_end(text, at);
        if (end > 0) {
            add_part(render, list, text, from, keep ? at + end : at);
            from = at + end;
        }
        at += end ? end : str_character(text, at).size;
    }
    if (from < text.size) add_part(render, list, text, from, text.size);
    return list;
}

Text str_replace(Render *render, Text text, Text old, Text by, int64_t most) {
    SequenceBuilder builder = {.render = render};
    size_t from = 0;
    if (!jinja_charge(render, text.size)) return text;
    while (most != 0 && !render->failed) {
        int64_t at = str_search(render, text, old, from);
        if (at < 0) break;
        if (old.size == 0) { /* an empty `old`: insert before each character, and at the end */
            build(&builder, by);
            if (from >= text.size) return built(&builder);
            Text character = str_character(text, from);
            build(&builder, character);
            from += character.size;
        } else {
            build(&builder, (Text){text.bytes + from, (size_t)at - from});
            build(&builder, by);
            from = (size_t)at + old.size;
        }
        most--;
    }
    build(&builder, (Text){text.bytes + from, text.size - from});
    return built(&builder);
}

Text str_case(Render *render, Text text, TextCase which) {
    char *out = jinja_take(render, text.size + 1);
    bool inside = false;
    for (size_t i = 0; i < text.size && out; i++) {
        char c = text.bytes[i];
        bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
        if ((unsigned char)c >= 0x80) jinja_unknown(render, "upper and lower case are supported only for ASCII");
        bool raise = which == CASE_UPPER || (which == CASE_TITLE && !inside) || (which == CASE_CAPITAL && i == 0);
        out[i] = (char)(lower && raise ? c - 32 : upper && !raise ? c + 32 : c);
        inside = lower || upper;
    }
    return (Text){out, out ? text.size : 0};
}

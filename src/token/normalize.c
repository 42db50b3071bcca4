/* Normalization of well-formed text before it is divided into words: Unicode's normal forms (by
 * utf8proc), replacing, prepending and stripping. Steps alternate between the caller's two buffers.
 * Called by the encoder, and for added tokens when a tokenizer is read. */
#include <stdlib.h>
#include <utf8proc.h>

#include "token/token_internal.h"

/* Text below this lead byte is unchanged by the normal form, unless a later character combines with
 * it: NFC changes nothing below U+0300. */
static unsigned char plain_limit(int form) { return form == (UTF8PROC_STABLE | UTF8PROC_COMPOSE) ? 0xCC : 0x80; }

static bool form_run(const char *text, size_t size, int form, Buffer *out, Error *error) {
    utf8proc_uint8_t *formed = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &formed, (utf8proc_option_t)form);
    if (length < 0) return error_set(error, ERROR_DATA, "cannot normalize a text: %s", utf8proc_errmsg(length));
    buffer_append(out, (const char *)formed, (size_t)length);
    free(formed);
    return true;
}

/* Applies the form to each run that needs it. A run begins one character early, because that
 * character may combine with the next, and ends before an ASCII character, which never combines
 * with text before it. */
static bool apply_form(int form, Span text, Buffer *out, Error *error) {
    unsigned char limit = plain_limit(form);
    size_t copied = 0, at = 0;
    while (at < text.size) {
        if ((unsigned char)text.bytes[at] < limit || ((unsigned char)text.bytes[at] & 0xC0) == 0x80) {
            at++;
            continue;
        }
        size_t start = at;
        if (start > copied) start--;
        while (start > copied && (text.bytes[start] & 0xC0) == 0x80) start--;
        while (at < text.size && (unsigned char)text.bytes[at] >= 0x80) at++;
        buffer_append(out, text.bytes + copied, start - copied);
        if (!form_run(text.bytes + start, at - start, form, out, error)) return false;
        copied = at;
    }
    buffer_append(out, text.bytes + copied, text.size - copied);
    return true;
}

static bool apply_replace(const NormalStep *step, RegexScratch *scratch, Span text, Buffer *out, Error *error) {
    RegexSearch search = {.scratch = scratch, .text = text};
    size_t copied = 0, from = 0, start, end;
    int found = 0;
    while (from <= text.size && (found = pattern_find(&step->pattern, &search, from, &start, &end, error)) > 0) {
        buffer_append(out, text.bytes + copied, start - copied);
        buffer_append(out, step->with.bytes, step->with.size);
        copied = end;
        from = end;
        if (end == start) { /* after an empty match, continue at the next character */
            size_t size = 1;
            if (from < text.size) text_character(text.bytes + from, &size);
            from += size;
        }
    }
    buffer_append(out, text.bytes + copied, text.size - copied);
    return found >= 0;
}

static Span stripped(const NormalStep *step, Span text) {
    if (step->right) text.size -= text_trailing_spaces(text.bytes, text.size);
    size_t left = step->left ? text_spaces(text.bytes, text.size) : 0;
    return (Span){text.bytes + left, text.size - left};
}

static bool apply_step(const NormalStep *step, RegexScratch *scratch, Span text, bool continued, Buffer *out, Error *error) {
    switch (step->kind) {
    case NORMAL_PREPEND:
        buffer_append(out, step->with.bytes, text.size > 0 && !continued ? step->with.size : 0);
        buffer_append(out, text.bytes, text.size);
        return true;
    case NORMAL_REPLACE: return apply_replace(step, scratch, text, out, error);
    case NORMAL_FORM: return apply_form(step->form, text, out, error);
    case NORMAL_PRECOMPILED: return charsmap_normalize_clusters(&step->charsmap, text, out), true;
    case NORMAL_SENTENCEPIECE:
    case NORMAL_STRIP: break;
    }
    Span rest = stripped(step, text);
    buffer_append(out, rest.bytes, rest.size);
    return true;
}

bool normalize(
    const Tokenizer *tokenizer, RegexScratch *scratch, Span text, bool continued, Buffer *out, Buffer *spare, Span *result, Error *error) {
    *result = text;
    for (int i = 0; i < tokenizer->normal_count; i++) {
        out->size = 0;
        bool pieces = tokenizer->normals[i].kind == NORMAL_SENTENCEPIECE;
        if (pieces) charsmap_normalize(tokenizer, &tokenizer->normals[i], *result, continued, out);
        else if (!apply_step(&tokenizer->normals[i], scratch, *result, continued, out, error)) return false;
        *result = buffer_span(out);
        Buffer *used = out;
        out = spare;
        spare = used;
    }
    return true;
}

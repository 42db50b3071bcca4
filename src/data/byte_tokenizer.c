/* The byte tokenizer as a tokenizer.json, so that shards and models made with it can name it for
 * transformers and other readers. Called by the writers of shards and model folders, and by their
 * readers to recognize it. */
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "token/tokenizer.h"

json_t *byte_tokenizer(void) {
    json_t *vocabulary = json_object();
    for (int byte = 0; byte < BYTE_SEPARATOR; byte++) {
        char text[5];
        tokenizer_spell_byte(byte, text);
        json_object_set_new(vocabulary, text, json_integer(byte));
    }
    json_t *separator = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", BYTE_SEPARATOR, "content", BYTE_SEPARATOR_TEXT,
        "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0);
    json_t *model =
        json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
            "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary, "merges");
    return json_pack("{s:s, s:n, s:n, s:[o], s:n, s:O, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding", "added_tokens",
        separator, "normalizer", "pre_tokenizer", level, "post_processor", "decoder", level, "model", model);
}

bool byte_tokenizer_is(const char *place, bool *is, Error *error) {
    enum { LIMIT = 1 << 16 }; /* the byte tokenizer's file is smaller */
    bool gguf = gguf_is_file(place);
    int64_t bytes = 0;
    SCOPED_FREE char *path = file_kind(place, NULL) == FILE_REGULAR ? memory_copy_string(place) : memory_format("%s/tokenizer.json", place);
    FileKind kind = gguf ? FILE_REGULAR : file_kind(path, &bytes);
    *is = false;
    if (kind == FILE_UNREADABLE) return file_fail(error, "read", path);
    if (kind != FILE_REGULAR || bytes > LIMIT) return true;
    SCOPED_FREE char *text = gguf ? tokenizer_read(place, &bytes, error) : file_read(path, LIMIT, NULL, error);
    if (!text) return false;
    json_auto_t *theirs = json_loads(text, 0, NULL), *ours = byte_tokenizer();
    *is = json_equal(theirs, ours);
    return true;
}

bool byte_tokenizer_differs(const char *record, const char *other, bool *differs, Error *error) {
    bool bytes = false, others = false;
    if (*record && !byte_tokenizer_is(record, &bytes, error)) return false;
    if (*other && !byte_tokenizer_is(other, &others, error)) return false;
    return tokenizer_differs(bytes ? "" : record, others ? "" : other, differs, error);
}

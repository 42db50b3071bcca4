/* The byte tokenizer as transformers and other readers of tokenizer.json know it. Called by the writer of model
 * folders, and by their reader to recognise it. */
#include "base/memory.h"
#include "data/data.h"
#include "model/hf_internal.h"
#include "token/tokenizer.h"

json_t *hf_tokenizer(void) {
    json_t *vocabulary = json_object();
    for (int byte = 0; byte < BYTE_SEPARATOR; byte++) {
        char text[5];
        tokenizer_spell_byte(byte, text);
        hf_put_integer(vocabulary, text, byte);
    }
    json_t *separator = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", BYTE_SEPARATOR, "content", HF_SEPARATOR, "single_word", 0,
        "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0);
    json_t *model =
        json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
            "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary, "merges");
    return json_pack("{s:s, s:n, s:n, s:[o], s:n, s:O, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding", "added_tokens",
        separator, "normalizer", "pre_tokenizer", level, "post_processor", "decoder", level, "model", model);
}

json_t *hf_tokenizer_config(const ModelConfig *config, const char *end) {
    return json_pack("{s:s, s:s*, s:s*, s:I, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token", end, "pad_token", end,
        "model_max_length", (json_int_t)config->context, "clean_up_tokenization_spaces", 0);
}

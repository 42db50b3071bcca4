/* Writes tokenizer_config.json, from which transformers learns how to read tokenizer.json.
 * Called by the writer of model folders. */
#include "formats/hf_internal.h"

json_t *hf_tokenizer_config(const ModelConfig *config, const char *end) {
    return json_pack("{s:s, s:s*, s:s*, s:I, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token", end, "pad_token", end,
        "model_max_length", (json_int_t)config->context, "clean_up_tokenization_spaces", 0);
}

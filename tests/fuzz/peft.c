/* A libFuzzer entry for PEFT's folders: adapter_config.json up to the first NUL, adapter_model.safetensors behind it. The folder is
 * refused, or gives settings and targets that pass their checks; its adapters are those of a small model, or refused. */
#include "config/lora_targets.h"
#include "fuzz.h"
#include "formats/peft.h"

static const ModelConfig config = FUZZ_MODEL(.experts = 2, .experts_per_token = 1, .experts_period = 1);

FUZZ(peft) {
    enum { MOST_RANK = 16, MOST_TARGETS = 1 << 12 };
    const uint8_t *end = memchr(data, 0, size);
    size_t length = end ? (size_t)(end - data) : size;
    PeftFolder peft = {0};
    Error error = {0};
    fuzz_file("adapter_config.json", data, length);
    fuzz_file("adapter_model.safetensors", data + length + (end != NULL), size - length - (end != NULL));
    if (!peft_open(&peft, fuzz_folder(), &error)) {
        require_line(&error);
        return;
    }
    require(lora_check_list(&peft.lora, &error) && peft.lora.rank >= 1 && lora_factor(&peft.lora) > 0);
    bool small = peft.lora.rank <= MOST_RANK && strlen(peft.targets) <= MOST_TARGETS;
    if (small && lora_check_targets(&config, &peft.lora, &error)) {
        Model model = model_build_adapted(NULL, &config, &peft.lora, PRECISION_FP32, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
        void *master = calloc(1, (size_t)model.graph->parameter_bytes);
        if (!peft_load(&peft, &peft.lora, model.graph, master, &error)) require_line(&error);
        free(master);
        model_free(&model);
    } else if (small) {
        require_line(&error);
    }
    peft_close(&peft);
}

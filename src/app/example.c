/* Example configurations: `smelt train --example llama`. They are files of configs/, embedded in
 * the program, because an installation may lack this folder. */
#include <stdio.h>
#include <string.h>

#include "app/command.h"

#define EXAMPLE(symbol, file) __asm__(".section .rodata\n" #symbol ":\n.incbin \"configs/" file "\"\n.byte 0\n.text\n")
EXAMPLE(example_llama, "llama-tiny.yaml");
EXAMPLE(example_zaya, "zaya1-tiny.yaml");
EXAMPLE(example_mpt, "mpt-tiny.yaml");
EXAMPLE(example_gpt2, "gpt2-tiny.yaml");
EXAMPLE(example_flux, "flux-digits.yaml");
EXAMPLE(example_finetune, "finetune.yaml");
EXAMPLE(example_qwen3_moe, "qwen3-30b-a3b.yaml");
EXAMPLE(example_olmoe, "olmoe-1b-7b.yaml");
EXAMPLE(example_olmo3, "olmo3-7b.yaml");
EXAMPLE(example_gpt_oss, "gpt-oss-20b.yaml");
EXAMPLE(example_deepseek_v2, "deepseek-v2-lite.yaml");
EXAMPLE(example_deepseek_v3, "deepseek-v3.yaml");
EXAMPLE(example_gemma3, "gemma3-4b.yaml");
extern const char example_llama[], example_zaya[], example_mpt[], example_gpt2[], example_flux[], example_finetune[], example_qwen3_moe[],
    example_olmoe[], example_olmo3[], example_gpt_oss[], example_deepseek_v2[], example_deepseek_v3[], example_gemma3[];

bool example_print(const char *name, Error *error) {
    static const struct {
        const char *name, *text;
    } examples[] = {{"llama", example_llama}, {"zaya", example_zaya}, {"mpt", example_mpt}, {"gpt2", example_gpt2}, {"flux", example_flux},
        {"finetune", example_finetune}, {"qwen3-30b-a3b", example_qwen3_moe}, {"olmoe-1b-7b", example_olmoe}, {"olmo3-7b", example_olmo3},
        {"gpt-oss-20b", example_gpt_oss}, {"deepseek-v2-lite", example_deepseek_v2}, {"deepseek-v3", example_deepseek_v3},
        {"gemma3-4b", example_gemma3}};
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        if (!strcmp(examples[i].name, name)) return fputs(examples[i].text, stdout), true;
    return error_set(error, ERROR_USAGE,
        "'%s' is not an example: use llama, zaya, mpt, gpt2, flux, finetune, qwen3-30b-a3b, olmoe-1b-7b, olmo3-7b, gpt-oss-20b, "
        "deepseek-v2-lite, deepseek-v3 or "
        "gemma3-4b, as in smelt train --example llama",
        name);
}

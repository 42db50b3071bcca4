/* A libFuzzer entry for the files of llm.c: a model, and multiple-choice questions. They are refused, or the numbers in
 * them are possible. Owns a file in the entries' folder. */
#include "eval/multiple_choice.h"
#include "formats/llmc.h"
#include "fuzz.h"

static void require_sound_choices(const MultipleChoice *set) {
    volatile uint16_t last;
    for (int64_t i = 0; i < set->count; i++) {
        const ChoiceExample *example = &set->examples[i];
        require(example->endings >= 2 && example->endings <= CHOICE_ENDINGS && example->label >= 0 && example->label < example->endings);
        for (int e = 0; e < example->endings; e++) {
            require(example->ending[e].count > 0 && example->context.count + example->ending[e].count <= set->longest);
            last = example->ending[e].tokens[example->ending[e].count - 1];
        }
    }
    (void)last;
}

FUZZ(llmc) {
    Error error = {0};
    ModelConfig model;
    Precision precision;
    MultipleChoice set;
    const char *path = fuzz_file("file.bin", data, size);
    if (!llmc_read(path, &model, &precision, &error)) require_line(&error);
    error = (Error){0};
    multiple_choice_is_file(path);
    if (multiple_choice_open(&set, path, &error)) require_sound_choices(&set);
    else require_line(&error);
    multiple_choice_close(&set);
}

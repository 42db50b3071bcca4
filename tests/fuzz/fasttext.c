/* A libFuzzer entry for models of fastText: a file is refused with a message of one line, or scores a text with one number
 * for each label. */
#include <stdlib.h>

#include "base/memory.h"
#include "filter/filter_internal.h"
#include "fuzz.h"

FUZZ(fasttext) {
    static const char text[] = "the cat </w d\xc3\xa9j\xc3\xa0 __label__en der\nHund </s> more";
    Error error = {0};
    Fasttext *model = fasttext_open(fuzz_file("model.bin", data, size), &error);
    if (!model) {
        require_line(&error);
        return;
    }
    float *hidden = memory_allocate((size_t)fasttext_width(model) * sizeof *hidden);
    float *scores = memory_allocate((size_t)fasttext_labels(model) * sizeof *scores);
    fasttext_score(model, text, sizeof text - 1, hidden, scores);
    for (int32_t i = 0; i < fasttext_labels(model); i++) require(fasttext_label(model, i));
    free(hidden);
    free(scores);
    fasttext_free(model);
}

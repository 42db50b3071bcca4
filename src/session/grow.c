/* Fills a model whose vocabulary grows; grow.h has the formula. */
#include "session/grow.h"

#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "session/weights.h"

VocabularyGrowth vocabulary_growth(int64_t rows, int64_t tokens, int64_t added) {
    enum { MULTIPLE = 64 };
    int64_t needed = tokens + added;
    return (VocabularyGrowth){tokens, added, rows, needed <= rows ? rows : round_up(needed, MULTIPLE)};
}

/* values [grown_rows, width]; the first [rows, width] are filled */
static void fill_new_rows(float *values, int64_t width, const VocabularyGrowth *growth) {
    SCOPED_FREE double *mean = memory_allocate((size_t)width * sizeof *mean);
    int64_t known = int_min(growth->tokens, growth->rows);
    for (int64_t row = 0; row < known; row++)
        for (int64_t c = 0; c < width; c++) mean[c] += values[row * width + c];
    for (int64_t row = growth->tokens; row < growth->grown_rows; row++) {
        if (row >= growth->tokens + growth->added && row < growth->rows) continue; /* padding is unchanged */
        for (int64_t c = 0; c < width; c++) values[row * width + c] = (float)(mean[c] / (double)known);
    }
}

bool vocabulary_grow(
    const char *folder, const Config *config, const VocabularyGrowth *growth, const Graph *graph, float *master, Error *error) {
    SCOPED(host_model_close) HostModel old = {0};
    if (!host_model_open(&old, &config->model, NULL, graph->precision, error) ||
        !weights_load(folder, config, old.model.graph, old.master, NULL, error))
        return false;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i], *q = &old.model.graph->parameters[graph_find_parameter(old.model.graph, p->name)];
        float *values = parameter_in(p, master);
        memcpy(values, parameter_in(q, old.master), (size_t)q->count * sizeof *values);
        bool table = p->kind == PARAMETER_EMBEDDING && p->shape[0] == growth->grown_rows && q->shape[0] == growth->rows;
        if (table && !ends_with(p->name, ".wpe.weight")) fill_new_rows(values, p->shape[1], growth);
    }
    return true;
}

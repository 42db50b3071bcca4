/* The table of linear layers by what computes them. Called by the pages of plan=true and smelt size. */
#include "advise/fp8_print_internal.h"

#include <string.h>

#include "base/math.h"
#include "model/model.h"

/* By Fp8Choice: in the table, and below it. */
static const struct {
    const char *word, *reason;
} choices[] = {[FP8_CHOSEN] = {"fp8", NULL},
    [FP8_BY_RULE] = {"by rule", "a head, router or adapter, whatever its size"},
    [FP8_UNEVEN] = {"uneven", "rows or columns that are no multiple of 16"},
    [FP8_UNEVEN_ROWS] = {"rows", "a microbatch whose rows are no multiple of 16"},
    [FP8_TOO_SMALL] = {"size", "below fp8.min_size, by which casting costs more than is gained"},
    [FP8_TWO_PARTS] = {"parts", "ranks of layout.tp share out parts of it differently"}};
enum { CHOICES = sizeof choices / sizeof *choices };

static void print_layer(const Fp8Layer *layer, int width, FILE *file) {
    char shape[64], each[32] = "";
    if (layer->experts > 1) snprintf(each, sizeof each, "%lld: ", (long long)layer->experts);
    snprintf(shape, sizeof shape, "%s%lld x %lld", each, (long long)layer->out, (long long)layer->in);
    fprintf(file, "  %-*s %4d %16s  %s", width, layer->name, layer->count, shape, choices[layer->choice].word);
    if (layer->choice == FP8_TOO_SMALL) fprintf(file, " %.0f", fp8_layer_size(layer->out, layer->in, layer->expert_rows));
    fputc('\n', file);
}

void fp8_print(const Graph *graph, const Config *config, FILE *file) {
    Fp8Layer layers[FP8_LAYERS];
    char recipe[16];
    double flops = 0, in_fp8 = 0;
    int width = (int)strlen("layer");
    bool met[CHOICES] = {false};
    if (config->model.fp8.recipe == FP8_NONE) return;
    int count = fp8_list_layers(graph, &config->model, layers);
    for (int i = 0; i < count; i++) {
        width = (int)int_max(width, (int64_t)strlen(layers[i].name));
        met[layers[i].choice] = true;
        flops += layers[i].flops;
        if (layers[i].choice == FP8_CHOSEN) in_fp8 += layers[i].flops;
    }
    config_recipe_name(config, recipe);
    fprintf(
        file, "\nlinear layers with fp8.recipe=%s: %.1f%% of their arithmetic is in fp8\n", recipe, flops > 0 ? 100 * in_fp8 / flops : 0);
    fprintf(file, "  %-*s %4s %16s  %s\n", width, "layer", "n", "out x in", "GEMMs");
    for (int i = 0; i < count; i++) print_layer(&layers[i], width, file);
    for (int i = 0; i < CHOICES; i++)
        if (met[i] && choices[i].reason)
            fprintf(file, "  %s: %s, in %s\n", choices[i].word, choices[i].reason, precision_name((Precision)config->precision));
}

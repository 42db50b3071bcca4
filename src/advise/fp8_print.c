/* Prints a table of the linear layers and how each is computed. Called by the pages of plan=true
 * and smelt size. */
#include "advise/fp8_print_internal.h"

#include <string.h>

#include "base/math.h"
#include "model/model.h"

/* Words of the table, by Fp8Choice. */
static const char *const words[] = {[FP8_CHOSEN] = "fp8",
    [FP8_BY_RULE] = "by rule",
    [FP8_UNEVEN] = "uneven",
    [FP8_UNEVEN_ROWS] = "rows",
    [FP8_TOO_SMALL] = "size",
    [FP8_TWO_PARTS] = "parts"};
enum { CHOICES = sizeof words / sizeof *words };

static void print_layer(const Fp8Layer *layer, int width, FILE *file) {
    char shape[64], each[32] = "";
    if (layer->experts > 1) snprintf(each, sizeof each, "%lld: ", (long long)layer->experts);
    snprintf(shape, sizeof shape, "%s%lld x %lld", each, (long long)layer->out, (long long)layer->in);
    fprintf(file, "  %-*s %4d %16s  %s", width, layer->name, layer->count, shape, words[layer->choice]);
    if (layer->choice == FP8_TOO_SMALL) fprintf(file, " %.0f", fp8_layer_size(layer->out, layer->in, layer->expert_rows));
    fputc('\n', file);
}

/* Returns the FP8 percentage of the arithmetic of linear layers. */
static double part_in_fp8(const Fp8Layer *layers, int count) {
    double flops = 0, in_fp8 = 0;
    for (int i = 0; i < count; i++) {
        flops += layers[i].flops;
        if (layers[i].choice == FP8_CHOSEN) in_fp8 += layers[i].flops;
    }
    return flops > 0 ? 100 * in_fp8 / flops : 0;
}

void fp8_print_part(const Graph *graph, const Config *config, FILE *file) {
    Fp8Layer layers[FP8_LAYERS];
    if (config->model.fp8.recipe == FP8_NONE) return;
    int count = fp8_list_layers(graph, &config->model, layers);
    fprintf(file, ", %.1f%% of linear layers in fp8", part_in_fp8(layers, count));
}

void fp8_print(const Graph *graph, const Config *config, FILE *file) {
    Fp8Layer layers[FP8_LAYERS];
    char recipe[16];
    int width = (int)strlen("layer");
    bool met[CHOICES] = {false};
    if (config->model.fp8.recipe == FP8_NONE) return;
    int count = fp8_list_layers(graph, &config->model, layers);
    for (int i = 0; i < count; i++) {
        width = (int)int_max(width, (int64_t)strlen(layers[i].name));
        met[layers[i].choice] = true;
    }
    config_recipe_name(config, recipe);
    fprintf(file, "\nlinear layers with fp8.recipe=%s: %.1f%% of their arithmetic is in fp8\n", recipe, part_in_fp8(layers, count));
    fprintf(file, "  %-*s %4s %16s  %s\n", width, "layer", "n", "out x in", "GEMMs");
    for (int i = 0; i < count; i++) print_layer(&layers[i], width, file);
    for (int i = 0; i < CHOICES; i++)
        if (met[i] && fp8_reason(i))
            fprintf(file, "  %s: %s, in %s\n", words[i], fp8_reason(i), precision_name((Precision)config->precision));
}

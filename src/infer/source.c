/* Weights from run folders, in the type that is asked for. Checkpoints of fp64 runs hold doubles and all others floats. */
#include "infer/source.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "model/model.h"
#include "train/run.h"
#include "train/session.h"

static bool exists(const char *folder, const char *name) {
    char *path = memory_format("%s/%s", folder, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error) {
    if (!exists(folder, "config.yaml") && exists(folder, "config.json"))
        return error_set(error, ERROR_CHECKPOINT, "%s is an exported model (it has a config.json), and only run folders can be read: give the run folder",
                         folder);
    return run_read_config(folder, config, strings, error);
}

static void convert(Precision to, void *target, Precision from, const void *source, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        double value = from == PRECISION_FP64 ? ((const double *)source)[i] : ((const float *)source)[i];
        if (to == PRECISION_FP64) ((double *)target)[i] = value;
        else ((float *)target)[i] = (float)value;
    }
}

bool source_load_weights(const char *folder, const Config *config, Precision precision, void *master, int64_t *step, Error *error) {
    Precision saved = config->precision;
    Model model = model_build(&config->model, saved, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    size_t bytes = model.graph->parameter_extent * precision_bytes(saved, TYPE_WIDE);
    bool same = precision_bytes(saved, TYPE_WIDE) == precision_bytes(precision, TYPE_WIDE);
    void *weights = same ? master : memory_map(bytes, error);
    bool loaded = weights && session_load_weights(model.graph, folder, weights, step, error);
    if (loaded && !same) convert(precision, master, saved, weights, model.graph->parameter_extent);
    if (!same) memory_unmap(weights, bytes);
    model_free(&model);
    return loaded;
}

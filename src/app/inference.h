/* What the commands that use a model, generate and eval, have in common: the ranks that were started, their mesh, and
 * this rank's device. One process is one rank. */
#pragma once

#include "comm/mesh.h"
#include "config/config.h"
#include "graph/graph.h"

typedef struct Inference {
    bool images; /* set by a command that can use a model of images */
    Comm *comm;
    Device *device;
    Precision precision;
    Mesh mesh;
} Inference;

/* Finds the other ranks. From now on those but the first print neither log nor progress, and the caller prints no results
 * on them. Zero-initialise. ERROR_COMMUNICATION. */
bool inference_join(Inference *inference, Error *error);
bool inference_leads(const Inference *inference);
/* ERROR_USAGE where the model makes images, which commands of text call as soon as they know. */
bool inference_check_text(const Config *config, Error *error);
/* Choices of fp8.recipe= where a model is used: those of training and "same", as in training. */
#define INFERENCE_FP8 "none|tensor|row|row_gw_hp|block|mxfp8|same"
/* The rows of fp8 in the table of such a command, whose options have the field `fp8`. */
#define INFERENCE_FP8_OPTIONS                                                                                                              \
    CHOICE_OPTION(fp8.recipe, "none", INFERENCE_FP8,                                                                                       \
        "GEMMs of linear layers and experts in fp8, whatever the training had; same: as in training"),                                     \
        REAL_OPTION(fp8.min_size, "-1", -1, 1e9, "", "size below which layers stay in the precision; -1: that of the run, of folders 400")
/* Sets what is computed in fp8 by what was given of them. ERROR_USAGE. */
bool inference_choose_fp8(Config *config, const Fp8Config *given, Error *error);
/* Warns where a program of the configuration has no layer that the recipe is for. */
void inference_check_fp8(const Inference *inference, const Config *config, const Graph *graph);
/* Lays the ranks out as config->layout says, and opens this rank's device (DeviceKind) for `precision` (as in
 * command_precision). Collective. ERROR_USAGE, ERROR_DEVICE, ERROR_COMMUNICATION. */
bool inference_open(Inference *inference, const Config *config, int device, int precision, int64_t threads, Error *error);
/* With what went wrong, which then ends the other ranks too, or NULL. */
void inference_close(Inference *inference, const Error *error);

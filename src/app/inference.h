/* What the commands that use a model, generate and eval, have in common: the ranks that were started, their mesh, and
 * this rank's device. One process is one rank. */
#pragma once

#include "comm/mesh.h"
#include "config/config.h"
#include "graph/graph.h"

typedef struct Inference {
    Comm *comm;
    Device *device;
    Precision precision;
    Mesh mesh;
} Inference;

/* Finds the other ranks. From now on those but the first print neither log nor progress, and the caller prints no results
 * on them. Zero-initialise. ERROR_COMMUNICATION. */
bool inference_join(Inference *inference, Error *error);
bool inference_leads(const Inference *inference);
/* Choices of fp8.recipe= where a model is used: those of training and "same", as in training. */
#define INFERENCE_FP8 "none|tensor|row|row_gw_hp|block|same"
/* Sets what is computed in fp8 by one of them. */
void inference_choose_fp8(Config *config, int choice);
/* Warns where a program of the configuration has no layer that the recipe is for. */
void inference_check_fp8(const Inference *inference, const Config *config, const Graph *graph);
/* Lays the ranks out as config->layout says, and opens this rank's device (DeviceKind) for `precision` (as in
 * command_precision). Collective. ERROR_USAGE, ERROR_DEVICE, ERROR_COMMUNICATION. */
bool inference_open(Inference *inference, const Config *config, int device, int precision, int64_t threads, Error *error);
/* With what went wrong, which then ends the other ranks too, or NULL. */
void inference_close(Inference *inference, const Error *error);

/* Shared by the commands that use a model, generate, chat and eval: the started ranks, their mesh,
 * and this rank's device. One process is one rank. */
#pragma once

#include "comm/mesh.h"
#include "config/config.h"
#include "graph/graph.h"

typedef struct Inference {
    bool images; /* set by a command that supports image models */
    Comm *comm;
    Device *device;
    Precision precision;
    Mesh mesh;
} Inference;

/* Finds the other ranks. From then on, only the first rank prints log and progress; the caller
 * prints results only on it. Zero-initialize. ERROR_COMMUNICATION. */
bool inference_join(Inference *inference, Error *error);
bool inference_leads(const Inference *inference);
/* Refuses an image model with ERROR_USAGE; text commands call it as soon as they know the
 * configuration. */
bool inference_check_text(const Config *config, Error *error);
/* Choices of fp8.recipe= for a command that uses a model: the choices of training, and "same" for
 * the recipe of training. */
#define INFERENCE_FP8 "none|tensor|row|row_gw_hp|block|mxfp8|same"
/* The options of such a command's arithmetic, whose options struct has the fields `fp8` and `exact`. */
#define INFERENCE_ARITHMETIC_OPTIONS                                                                                                              \
    CHOICE_OPTION(fp8.recipe, "none", INFERENCE_FP8,                                                                                       \
        "fp8 GEMMs of linear layers and experts, whatever the run trained with; same: as in training"),                                     \
        REAL_OPTION(fp8.min_size, "-1", -1, 1e9, "", "smaller layers stay in the precision; -1: the run's value, for folders 400"),             \
        BOOL_OPTION(exact, "false",                                                                                                       \
            "log-probabilities have the bits of a training pass, whatever else runs at once; a GPU is then slower")
/* Sets the configuration's settings of arithmetic from the given ones, whatever the run trained with.
 * ERROR_USAGE. */
bool inference_choose_arithmetic(Config *config, const Fp8Config *fp8, bool exact, Error *error);
/* Warns if a program of the configuration has no layer for the recipe. */
void inference_check_fp8(const Inference *inference, const Config *config, const Graph *graph);
/* Lays the ranks out by config->layout, and opens this rank's device (DeviceKind) for `precision`
 * (as in command_precision). Collective. ERROR_USAGE, ERROR_DEVICE, ERROR_COMMUNICATION. */
bool inference_open(Inference *inference, const Config *config, int device, int precision, int64_t threads, Error *error);
/* Closes the ranks. `error`: the failure, which then ends the other ranks too, or NULL. */
void inference_close(Inference *inference, const Error *error);

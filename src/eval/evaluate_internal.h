/* Shared by the files that evaluate. */
#pragma once

#include "eval/evaluate.h"

/* Like evaluate, for an image model, on fixed noise: the mean squared error of a velocity value,
 * each sample at one of eight times. It does not depend on seeds, so runs are comparable. */
bool evaluate_images(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error);

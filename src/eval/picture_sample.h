/* Pictures that a model of images makes at an evaluation. */
#pragma once

#include "base/stop.h"
#include "launch/watchdog.h"
#include "run/corpus.h"
#include "session/session.h"

/* Checks what the pictures of a run need, before its first step: whole weights, and pixels or an
 * eval.vae that fits. ERROR_USAGE, ERROR_CHECKPOINT. */
bool picture_sample_check(const Session *session, const Corpus *corpus, Error *error);
/* Makes a picture for each of the first eval.pictures captions of data.valid, in the size of their
 * images, and writes them as *path, RUN/pictures/step-STEP.png, on rank 0. *path is for the caller to
 * free; NULL: the run makes none, they are not finite, which is warned of, or a stop was requested.
 * Call it on all ranks. */
bool picture_sample(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, char **path, Error *error);

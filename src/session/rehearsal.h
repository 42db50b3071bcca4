/* A rehearsal runs steps of a planned session on a device that computes nothing, over groups that
 * move no data, only to list the collectives that the rank issues. It runs the executor, the
 * exchange, the pipeline and the optimizer of training, so its list is that of a real step. Sizes of
 * all-to-alls between experts, which depend on the data, are those of balanced experts. */
#pragma once

#include "comm/trace.h"
#include "session/session.h"

/* Seconds of work, for the events between collectives. */
typedef struct RehearsalTimes {
    const double *nodes;   /* of one run of each node of the training program */
    const double *updates; /* of each bucket of the layout */
} RehearsalTimes;

/* Appends `steps` steps of the session's rank to the trace. The session is planned and not started.
 * NULL times: no work. */
bool session_rehearse(const Session *planned, const RehearsalTimes *times, int steps, Trace *trace, Error *error);

/* Rehearses a step on every rank and compares the lists within each group, by hashes. Two ranks that
 * would issue other collectives, or in another order, are ERROR_USAGE before training
 * begins, with the first difference. Collective over `comm`. */
bool rehearsal_agree(const Session *planned, Comm *comm, Error *error);
/* Compares the traces of all ranks, one per rank. */
bool trace_agree(const Trace *trace, Comm *comm, Error *error);

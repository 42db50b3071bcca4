/* What travels between ranks while they train: gradients of a bucket from the moment when the program has made them, beside the rest of the backward part;
 * weights of a bucket from the moment when they are updated, beside the other updates and the next step's forward part. All ranks do this in the same order,
 * which the schedule and the layout decide. With one rank nothing travels and nothing is waited for.
 *
 * With layout->narrows, gradients of matrices are rounded to bf16 where they lie before they are sent, and widened again where this rank needs them.
 *
 * Owned by the session; the layout, the schedule, the comms and the executor outlive it. */
#pragma once

#include "comm/comm.h"
#include "layout/comm_schedule.h"

typedef struct Exchange Exchange;

/* The ranks that exchange: all of them, those of this rank's group, and those of the other groups in its place. */
typedef struct Ranks { Comm *all, *group, *replicas; } Ranks;

/* For the program that the executor runs; sets its stops. ERROR_MEMORY. */
Exchange *exchange_create(const Layout *layout, const CommSchedule *schedule, const Ranks *ranks, Executor *executor, Error *error);
/* What it takes of the device's memory. */
int64_t exchange_bytes(const Layout *layout, const CommSchedule *schedule);
void exchange_free(Exchange *exchange);

/* Whether the gradients are complete after the next run, so that they are summed over the ranks during it. */
void exchange_set_last(Exchange *exchange, bool last);
/* Waits until they are. Each rank has those of its pieces. */
void exchange_finish_gradients(Exchange *exchange);

/* Makes the weights of a bucket anew from the master weights that the ranks hold of it, and sends them. */
void exchange_make_weights(Exchange *exchange, int bucket);
/* Sends the weights of this rank's piece of a bucket to the others; an OptimizerHook. */
void exchange_send_weights(void *exchange, int bucket);
/* Waits until the weights of all buckets are here. Not needed before a run of the program itself, which waits for each when it reads it. */
void exchange_finish_weights(Exchange *exchange);

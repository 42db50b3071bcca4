/* Collectives of a training step. The gradients of a bucket are reduced as soon as the program has computed them,
 * beside the rest of the backward pass; its weights are gathered as soon as they are updated, beside the other updates
 * and the next step's forward pass. All ranks issue the same collectives in the same order, which the schedule and the
 * layout decide. With one rank there are none.
 *
 * Weights of layers in fp8 are gathered as codes where the program wants them so (weight_codes_internal.h).
 *
 * With layout->reduces_in_bf16, gradients of matrices are cast to bf16 in place before they are sent, and this rank's
 * shard back to fp32 when it is reduced.
 *
 * Owned by the session; the layout, its mesh with the groups of the buckets, the schedule and the executor outlive it. */
#pragma once

#include "comm/comm.h"
#include "layout/comm_schedule.h"

typedef struct Exchange Exchange;

/* For the program that the executor runs; sets its comm points. ERROR_MEMORY. */
Exchange *exchange_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error);
/* Device memory that exchange_create allocates for the program of a graph. */
int64_t exchange_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph);
void exchange_free(Exchange *exchange);

/* Whether the gradients are complete after the next run, so that they are summed over the ranks during it. */
void exchange_set_last(Exchange *exchange, bool last);
/* In a program of several parts: which one runs next, and whether for the last time of the step. */
void exchange_set_part(Exchange *exchange, int part, bool last);
/* With layout->in_backward: `update` is called in the last run of a step for each bucket, when its gradients are complete on
 * this rank (exchange_gradients) and no node that follows reads its weights. It sends the weights itself. */
typedef void (*ExchangeUpdate)(void *context, int bucket);
void exchange_set_update(Exchange *exchange, ExchangeUpdate update, void *context);
/* What the gradients of a bucket's parameters lie in, at the parameters' offsets: an address to which these are added. */
const void *exchange_gradients(const Exchange *exchange, int bucket);
/* Waits until they are. Afterwards each rank has those of its shards, summed over both ends of a pipeline where both hold
 * them. Collective. */
void exchange_finish_gradients(Exchange *exchange);

/* Of weights that are gathered as codes, the largest magnitudes: finds them, once a step before its first run, which is
 * collective; and writes them to the inputs of the next run. */
bool exchange_find_magnitudes(Exchange *exchange, Error *error);
void exchange_put_magnitudes(const Exchange *exchange);

/* Casts this rank's master weights of a bucket to weights, and gathers those of all ranks. */
void exchange_make_weights(Exchange *exchange, int bucket);
/* Gathers the weights of a bucket from the ranks' shards; an OptimizerHook. */
void exchange_send_weights(void *exchange, int bucket);
/* Waits until the weights of all buckets are here. Not needed before a run of the program itself, which waits for each
 * when it reads it. */
void exchange_finish_weights(Exchange *exchange);

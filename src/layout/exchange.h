/* Collectives of a training step. The gradients of a bucket are reduced as soon as the program has
 * computed them, concurrently with the rest of the backward pass. Its weights are gathered as soon
 * as they are updated, concurrently with the other updates and the next step's forward pass. All
 * ranks issue the same collectives in the same order, which the schedule and the layout decide. One
 * rank issues no collectives.
 *
 * FP8 layers gather their weights as quantized values if the program reads them so
 * (quantized_weights_internal.h).
 *
 * With layout->reduces_in_bf16, gradients of matrices are cast to bf16 in place before they are
 * sent. This rank's shard is cast back to fp32 after it is reduced.
 *
 * Owned by the program; the layout, its mesh with the groups of the buckets, the schedule and the executor outlive it. */
#pragma once

#include "comm/comm.h"
#include "layout/comm_schedule.h"

typedef struct Exchange Exchange;

/* Makes the exchange of the executor's program and sets its comm points. ERROR_MEMORY. */
Exchange *exchange_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error);
/* Returns the device memory that exchange_create allocates for the program of a graph. */
int64_t exchange_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph);
void exchange_free(Exchange *exchange);

/* Sets whether the gradients are complete after the next run. If so, they are summed over the ranks
 * during it. */
void exchange_set_last(Exchange *exchange, bool last);
/* For a program of several parts: sets the part that runs next, and whether this is its last run of
 * the step. */
void exchange_set_part(Exchange *exchange, int part, bool last);
/* With layout->in_backward: in the last run of a step, `update` is called for each bucket once its
 * gradients are complete on this rank (exchange_gradients) and no later node reads its weights. The
 * callback sends the weights itself. */
typedef void (*ExchangeUpdate)(void *context, int bucket);
void exchange_set_update(Exchange *exchange, ExchangeUpdate update, void *context);
/* Returns the base address of a bucket's gradients: add a parameter's offset to it. */
const void *exchange_gradients(const Exchange *exchange, int bucket);
/* Waits until all gradients are reduced. Afterwards each rank has the gradients of its shards;
 * gradients that both ends of a pipeline hold are summed over both. Collective. */
void exchange_finish_gradients(Exchange *exchange);

/* Handle the amax of weights that are gathered as quantized values. exchange_find_amax
 * computes it once per step, before the first run, and is collective; exchange_put_amax
 * writes it to the inputs of the next run. */
bool exchange_find_amax(Exchange *exchange, Error *error);
void exchange_put_amax(const Exchange *exchange);

/* Casts this rank's master weights of a bucket to weights, and gathers all ranks' shards. */
void exchange_make_weights(Exchange *exchange, int bucket);
/* Gathers the weights of a bucket from the ranks' shards; an OptimizerHook. */
void exchange_send_weights(void *exchange, int bucket);
/* Waits until the weights of all buckets have arrived. A run of the program does not need this
 * call, because it waits for each bucket when it reads it. */
void exchange_finish_weights(Exchange *exchange);

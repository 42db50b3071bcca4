/* Samples of the machine of rank 0 (launch/sensors.h), taken by a thread while it trains, so that training never waits for
 * them. */
#pragma once

#include <stdbool.h>

#include "launch/sensors.h"

typedef struct Sampler Sampler;

/* Starts to sample every `every` seconds. NULL: 0 seconds, or the system gives no thread, which is a warning. */
Sampler *sampler_open(double every);
/* Returns whether there is a sample since the previous call; its joules are those since then. `now` takes one immediately. NULL is fine. */
bool sampler_take(Sampler *sampler, bool now, SensorReading *reading);
void sampler_close(Sampler *sampler); /* NULL is fine */

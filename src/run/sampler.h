/* Samples of the machine of rank 0 (launch/sensors.h), taken by a thread while it trains, so that training never waits for
 * them. */
#pragma once

#include <stdbool.h>

#include "launch/sensors.h"

typedef struct Sampler Sampler;

/* Starts to sample every `every` seconds. Returns NULL if `every` is 0, or, with a warning, if no thread can be created. */
Sampler *sampler_open(double every);
/* Returns whether there is a new sample since the previous call; its joules count from that call. `now` takes a sample
 * immediately. NULL is fine. */
bool sampler_take(Sampler *sampler, bool now, SensorReading *reading);
void sampler_close(Sampler *sampler); /* NULL is fine */

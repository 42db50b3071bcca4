/* The node self-test before ranks start: `smelt doctor self_test=true` in a separate process, which
 * may crash or hang without harm. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/stop.h"
#include "launch/rendezvous_internal.h"

/* Returns whether the doctor finds no error on this node, with the GPUs `devices` (NULL: as the
 * environment says); if it finds one, `reason` describes it. Takes under a minute, at most two;
 * meanwhile the rendezvous (NULL: none) is tended. A request to stop ends the test early, as
 * passed. */
bool self_test(const char *devices, Rendezvous *rendezvous, const StopRequest *stop, char *reason, size_t size);

/* The node self-test before ranks start: `smelt doctor self_test=true` in a process of its own, which may crash or
 * hang without harm. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/stop.h"
#include "launch/rendezvous_internal.h"

/* Whether the doctor finds no error on this node, with the GPUs `devices` (NULL: as the environment says); else
 * `reason` says which. Takes under a minute, two at most; the rendezvous (NULL: none) is tended meanwhile. A request
 * to stop ends it early, as passed. */
bool self_test(const char *devices, Rendezvous *rendezvous, const StopRequest *stop, char *reason, size_t size);

/* The node smoke test before ranks start: `smelt doctor smoke=true` in a process of its own, which may crash or hang without harm. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/* Whether the doctor finds no error on this node, with the GPUs `devices` (NULL: as the environment says); else `reason` says which. Under a minute,
 * two at most. *stop not 0 ends it early, as passed. */
bool self_test(const char *devices, const volatile sig_atomic_t *stop, char *reason, size_t size);

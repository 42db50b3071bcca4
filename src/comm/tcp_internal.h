/* How TCP ranks find each other. */
#pragma once

#include "comm/comm_internal.h"

/* Connects all ranks of the run with each other: they meet at rank 0's address and port, which tells everyone where
 * the others listen. Returns one socket for each rank (-1 for this one), which the caller closes and frees.
 * ERROR_COMMUNICATION when one has not appeared in options->appear seconds. */
int *tcp_meet(const Place *place, const CommOptions *options, Error *error);

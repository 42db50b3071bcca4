/* The NaN search. */
#pragma once

#include "session/session.h"

/* Runs the work of a step again and describes the first parameter or tensor with a NaN or infinity.
 * Leaves `text` unchanged if there is none, or if it is not empty. Collective. */
void numerics_find(const Session *session, const ProgramWork *work, char *text, size_t size);
/* ERROR_NUMERICS if weights of this rank, frozen ones included, are NaN or infinite. */
bool numerics_check_parameters(const Session *session, Error *error);
/* Returns the first parameter with a NaN or infinity in this rank's shard, or NULL. */
const char *numerics_bad_parameter(const Session *session);

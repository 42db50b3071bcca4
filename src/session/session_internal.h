/* Shared by session.c and the rehearsal of its steps. */
#pragma once

#include "session/session.h"

/* Opens the groups of a planned session, and starts its training program and its optimizer, without
 * weights. session_start does so; a rehearsal does nothing else. */
bool session_start_training(Session *session, Comm *comm, Error *error);

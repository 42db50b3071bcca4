/* A lease says which living run writes into a store: the object lease.json with the run's number, its folder and its
 * process, renewed while it lives. Two runs on one store would replace each other's checkpoints, and a folder that is
 * moved away under a living run would take its later checkpoints elsewhere: the first is refused at the start, both are
 * noticed before anything is saved and before a checkpoint is published.
 *
 * Of runs that start at the same instant one gets the lease: a folder creates it for one only, and so does a bucket
 * whose server knows If-None-Match; with another server both write, wait for a second and look whose it is. */
#pragma once

#include "base/error.h"

typedef struct Lease Lease;

enum { LEASE_HOLDER_BYTES = 320 };

/* Takes the lease of the store at `where` for the run `number` in `folder`, and renews it in a thread. A lease is taken
 * over when its process has ended on this machine, when it was not renewed for 90 seconds (or its clock is as far
 * ahead), or when the same run has it from the same folder, whose lock the caller holds. ERROR_USAGE when another
 * living run has it; ERROR_CHECKPOINT. */
Lease *lease_take(const char *where, const char *number, const char *folder, Error *error);
/* "HOST PID START", which is equal for no two processes. */
const char *lease_holder(const Lease *lease);
/* Whether the lease is still this process's; one that was removed from a folder that is still there, or from a bucket,
 * is written again. ERROR_USAGE: another run has it. ERROR_CHECKPOINT: nothing can be saved. From any thread. */
bool lease_check(Lease *lease, Error *error);
/* Gives the lease back, if it still is this process's. NULL is fine. */
void lease_release(Lease *lease);

/* For processes that share the store with the holder: waits until its lease is seen there, since file systems over
 * networks show new files late. ERROR_USAGE after `seconds`. */
bool lease_await(const char *where, const char *holder, double seconds, Error *error);

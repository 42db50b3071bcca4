/* A lease says which living run writes into a store: the object lease.json with the run's number, its folder and its
 * process, renewed while it lives. Two runs on one store would replace each other's checkpoints, and a folder that is
 * moved away under a living run would take its later checkpoints elsewhere: the first is refused at the start, both are
 * noticed before anything is saved and before a checkpoint is published.
 *
 * Of runs that start at the same instant one gets the lease: a folder creates it for one only, and so does a bucket
 * whose server knows If-None-Match; with another server both write, wait for a second and look whose it is. */
#pragma once

#include <stdint.h>

#include "base/error.h"

typedef struct Lease Lease;

enum { LEASE_HOLDER_BYTES = 320 };

/* Takes the lease of the store at `where` for the run `number` in `folder`, and renews it in a thread. A lease is taken
 * over when its process has ended on this machine, when the same run has it from the same folder, whose lock the caller
 * holds, or when it was watched for 90 seconds, three intervals of its holder, and did not change. Clocks of two machines
 * are never compared. ERROR_USAGE when another living run has it; ERROR_CHECKPOINT, also when it cannot be read. */
Lease *lease_take(const char *where, const char *number, const char *folder, Error *error);
/* "HOST PID START", which is equal for no two processes. */
const char *lease_holder(const Lease *lease);
/* Checks that the lease is still this process's. A lease that is damaged, or was removed from an existing folder or
 * from a bucket, is written again. ERROR_USAGE with FINDING_FOREIGN: another run has it, or has saved while it was
 * gone. ERROR_CHECKPOINT: nothing can be saved now. From any thread. */
bool lease_check(Lease *lease, Error *error);
/* Takes note of a step that this process has saved. From any thread. */
void lease_note_saved(Lease *lease, int64_t step);
/* Gives the lease back, if it still is this process's. NULL is fine. */
void lease_release(Lease *lease);

/* For processes that share the store with the holder: waits until its lease is seen there, since file systems over
 * networks show new files late. ERROR_USAGE after `seconds`. */
bool lease_await(const char *where, const char *holder, double seconds, Error *error);

/* A lease says which living run writes to a store. It is the object lease.json with the run's
 * number, its folder and its process, renewed while the run lives. Two runs on one store would
 * replace each other's checkpoints, and a folder that is moved away during a run would receive the
 * run's later checkpoints in the wrong place. The first case is refused at the start. Both are
 * detected before anything is saved and before a checkpoint is published.
 *
 * If several runs start at the same instant, one of them gets the lease: a folder creates it for
 * one only, and so does a bucket whose server supports If-None-Match. On other servers all of them
 * write, wait for a second, and check whose lease it is. */
#pragma once

#include <stdint.h>

#include "base/error.h"

typedef struct Lease Lease;

enum { LEASE_HOLDER_BYTES = 320 };

/* Takes the lease of the store at `where` for the run `number` in `folder`, and renews it in a
 * thread. A lease can be taken over in three cases. Its process has ended on this machine; the same
 * run holds it from the same folder, whose lock the caller holds; or it did not change for 90
 * seconds, three intervals of its holder. Clocks of two machines are never compared. ERROR_USAGE if
 * another living run has it; ERROR_CHECKPOINT, also if it cannot be read. */
Lease *lease_take(const char *where, const char *number, const char *folder, Error *error);
/* Returns "HOST PID START", which is unique to a process. */
const char *lease_holder(const Lease *lease);
/* Checks that the lease is still this process's. A lease that is damaged, or was removed from an
 * existing folder or from a bucket, is rewritten. ERROR_USAGE with FINDING_FOREIGN: another run has
 * it, or has saved while it was missing. ERROR_CHECKPOINT: nothing can be saved now. Callable from
 * any thread. */
bool lease_check(Lease *lease, Error *error);
/* Notes a step that this process has saved. Callable from any thread. */
void lease_note_saved(Lease *lease, int64_t step);
/* Releases the lease if it is still this process's. NULL is fine. */
void lease_release(Lease *lease);

/* For processes that share the store with the holder: waits until they see its lease, because
 * network file systems show new files late. ERROR_USAGE after `seconds`. */
bool lease_await(const char *where, const char *holder, double seconds, Error *error);

/* What a lease says to a process that only looks at it. */
typedef enum LeaseLife {
    LEASE_UNKNOWN, /* its holder is on another machine, or the lease is in a bucket, which is not asked */
    LEASE_HELD,    /* its holder lives on this machine */
    LEASE_ENDED,   /* its holder, on this machine, has ended without releasing it */
    LEASE_ABSENT,
} LeaseLife;
typedef struct LeaseSign {
    LeaseLife life;
    double taken, renewed; /* Unix seconds by the holder's clock; NaN: unknown */
} LeaseSign;
/* Looks at the lease of the store at `where`. A lease of another folder than `folder` is absent. */
LeaseSign lease_look(const char *where, const char *folder);

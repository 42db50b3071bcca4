/* Power cuts in a test. A program runs once, traced by the test, which records every change that the program makes to
 * the files below one folder. From that log follows what a disk may hold when the power fails before any of these
 * changes, so one run gives hundreds of power cuts.
 *
 * A file system promises little, and the model promises no more than POSIX does: the contents of a file are safe once
 * the file was synced (fsync, fdatasync), a name once its folder was synced. A name is an entry of a folder, whether it
 * came or went by creating, renaming, exchanging, linking or removing. Of everything else any part may survive, in any
 * order: names without contents, contents without names, sizes without contents (zeros), some sectors of a write.
 * DiskChance says which part. A rename within a folder happens whole or not at all.
 *
 * Files below the root must be written by write and its kin; symbolic links and shared mappings are not modeled.
 * disk_log_is_complete finds out whether the program did anything else. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct DiskLog DiskLog;

/* Runs arguments[0], with all its threads and children, to the end, and records what becomes of the files below `root`,
 * an existing folder named by its absolute path. What lies there before counts as synced. NULL where this machine does
 * not let one process trace another. The caller frees. */
DiskLog *disk_log_record(const char *root, char *const *arguments);
void disk_log_free(DiskLog *log);

int disk_log_exit_code(const DiskLog *log); /* -1: ended by a signal */
/* How many changes and syncs were recorded: a power cut happens before one of them, 0 to count - 1, or after the end,
 * count. */
size_t disk_log_count(const DiskLog *log);
/* What change `at` was, for messages. The caller frees. */
char *disk_log_describe(const DiskLog *log, size_t at);
/* What the program had printed by then. The caller frees. */
char *disk_log_output(const DiskLog *log, size_t cut);

/* The first cut after which a file or folder has the name that it has at `cut`, which must be a name that something was given. */
size_t disk_log_named(const DiskLog *log, size_t cut, const char *name);

/* What survives of what was not synced: probabilities from 0 to 1, of which 0 and 1 leave nothing to chance. */
typedef struct DiskChance {
    const char *name;
    double names;    /* of a change of names */
    double contents; /* of a sector that was written */
    double sizes;    /* of the size that a file got by a write or a truncation; what has not survived of it is zeros */
    uint64_t seed;
} DiskChance;

/* Makes the folder `target`, which is removed first, what `root` may be after a power cut. */
void disk_log_cut(const DiskLog *log, size_t cut, const DiskChance *chance, const char *target);

/* Whether the log explains all that is below `root` now, that is, after the program's end. `scratch` names a folder
 * that may be written. */
bool disk_log_is_complete(const DiskLog *log, const char *scratch);

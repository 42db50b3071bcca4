/* The log that disk_trace.c writes and disk_log.c reads. */
#pragma once

#include "support/disk_log.h"

enum { DISK_ROOT = 0, DISK_NOTHING = -1 };

typedef enum DiskChangeKind { DISK_WRITE, DISK_RESIZE, DISK_NAMES, DISK_SYNC, DISK_SYNC_ALL } DiskChangeKind;

/* An entry of a folder: its object from now on, DISK_NOTHING when the name goes. */
typedef struct DiskName {
    int folder;
    char *name;
    int object;
} DiskName;

typedef struct DiskChange {
    DiskChangeKind kind;
    int object;            /* of all kinds but DISK_NAMES and DISK_SYNC_ALL: the file, or the folder that is synced */
    int64_t offset, bytes; /* DISK_WRITE; `bytes` is the new size for DISK_RESIZE */
    char *data;            /* DISK_WRITE */
    DiskName names[2];     /* DISK_NAMES: those that change at once */
    int name_count;
    int64_t printed; /* bytes on standard error when it began */
} DiskChange;

/* Objects are files and folders, by whatever names; DISK_ROOT is the root. */
struct DiskLog {
    char *root;
    bool *is_folder; /* by object */
    int object_count;
    DiskChange *changes;
    size_t count;
    size_t before; /* how many of them describe what was there before the program began */
    char *output;
    int code;
};

int disk_log_add_object(DiskLog *log, bool is_folder);
void disk_log_add(DiskLog *log, DiskChange change); /* takes over data and names */

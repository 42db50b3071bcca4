/* Files and folders: the only code that opens, reads, maps, writes, syncs, renames and removes them.
 *
 * There is one way to write a file so that it lasts. It is written under a temporary name in its folder
 * (PATH.partial-PID), synced and renamed, and the folder is synced, because only then does the name survive a power
 * cut. After `true` the new contents are on disk; after `false` PATH is what it was. A process that is killed leaves
 * at most a temporary name behind, which file_remove_partials finds.
 *
 * A failure is ERROR_CHECKPOINT, "cannot ACTION PATH: REASON; what to do". Callers that read training data or
 * configurations change the code with error_recode. `errno` still holds the reason when a function returns. The
 * failure is FINDING_ABSENT (base/error.h) only if the system says that the name does not exist. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* "cannot ACTION PATH: reason of errno; what to do". Returns false; errno stays. */
bool file_fail(Error *error, const char *action, const char *path);

/* -- Names --------------------------------------------------------------------------------------------------------- */

/* FILE_UNREADABLE: the system cannot tell now; errno says why. Only FILE_ABSENT means that there is nothing. */
typedef enum FileKind { FILE_ABSENT, FILE_REGULAR, FILE_FOLDER, FILE_OTHER, FILE_UNREADABLE } FileKind;
/* Links are followed. `bytes` (may be NULL) receives the size of a regular file, else 0. */
FileKind file_kind(const char *path, int64_t *bytes);
/* False only if the name does not exist. If the system cannot tell, the result is true, and the read that follows
 * reports the reason. */
bool file_exists(const char *path);
int64_t file_modified(const char *path);      /* when, in nanoseconds since 1970; 0 when it is absent */
bool file_same(const char *a, const char *b); /* whether both exist and are one file */
/* What a file or folder keeps when it is renamed, and shares with no other one; all zero when it is absent. */
typedef struct FileId { uint64_t device, number; } FileId;
FileId file_id(const char *path);
bool file_id_same(FileId a, FileId b);
/* Removes a file or a folder with all that it holds; links are removed, not followed; absence is fine. */
bool file_remove(const char *path, Error *error);
/* Makes `to` another name of a file; an existing `to` stays. */
bool file_link(const char *from, const char *to, Error *error);
/* Bytes that are free on the disk that holds `path`; -1 when unknown. */
double file_free_bytes(const char *path);

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* An open file. Zeroed: not open. */
typedef struct File {
    char *path;      /* for messages, and the final name of a file that is being replaced */
    char *temporary; /* the name that a replacement still has, or NULL */
    int descriptor;
    int64_t bytes; /* the size when it was opened, and what file_append added */
} File;

/* Opens a regular file for reading. */
bool file_open(File *file, const char *path, Error *error);
/* All `bytes` at `offset` or failure: short reads are continued, and the end of the file is an error. */
bool file_read_at(const File *file, void *data, int64_t bytes, int64_t offset, Error *error);
/* Asks the system to read what will be needed, and returns at once. */
void file_prefetch(const File *file, int64_t offset, int64_t bytes);
/* Also of a zeroed File. A replacement that was not committed disappears. */
void file_close(File *file);

/* A regular file of at most `limit` bytes, with a NUL behind it; the caller frees. `bytes` may be NULL. */
char *file_read(const char *path, int64_t limit, int64_t *bytes, Error *error);
/* The first size - 1 bytes at most of a regular file, also one of /proc or /sys, with a NUL behind them. Returns how many
 * they are; -1, and the empty text, on failure. errno is EINVAL for what is no file: a pipe would be waited for. */
int64_t file_read_start(const char *path, char *text, size_t size);

/* A regular file mapped for reading. An empty one has no bytes. A mapped file must not be overwritten in place. */
typedef struct FileMap {
    const unsigned char *bytes;
    size_t size;
} FileMap;
bool file_map(FileMap *map, const char *path, Error *error);
void file_unmap(FileMap *map); /* also of a zeroed one */
/* Asks the system to read a part of a mapped file, and returns at once. */
void file_map_prefetch(const void *address, size_t bytes);
/* The path of the mapped file that `address` lies in, or NULL. For the handler of SIGBUS, which a mapped file raises
 * where it was truncated or its disk cannot be read: takes no lock and allocates nothing. */
const char *file_mapped_at(const void *address);

/* Reads lines with bounded memory. The last line of a file whose writer was killed has no newline. */
enum { FILE_LINE_LIMIT = 4 << 20 }; /* bytes of a line: the load of some 400,000 experts */
typedef enum FileLine {
    FILE_LINE_WHOLE, /* `line` and `length`, without the newline, with a NUL behind */
    FILE_LINE_LONG,  /* a line above the limit was skipped */
    FILE_LINE_TORN,  /* the last line has no newline */
    FILE_LINE_END,
} FileLine;
typedef struct FileReader {
    File file;
    FILE *stream;
    char *line;
    size_t length, capacity;
} FileReader;
bool file_reader_open(FileReader *reader, const char *path, Error *error);
FileLine file_reader_next(FileReader *reader);
bool file_reader_close(FileReader *reader, Error *error); /* false when reading failed on the way */

/* -- Writing ------------------------------------------------------------------------------------------------------- */

/* Creates or replaces a file as described above. */
bool file_write(const char *path, const void *data, int64_t bytes, Error *error);

/* file_write of a file that must be absent: of several processes that create it at once one succeeds, and for the others
 * errno is EEXIST. */
bool file_create(const char *path, const void *data, int64_t bytes, Error *error);

/* file_write in steps: the file is written with file_append or file_write_at, and gets its name with the commit.
 * file_replace_commit closes it in any case; file_close before the commit gives up. */
bool file_replace_begin(File *file, const char *path, Error *error);
bool file_replace_commit(File *file, Error *error);

/* Appends to a file, which may be absent. `exclusive`: fails with errno EEXIST unless it is absent. */
bool file_open_append(File *file, const char *path, bool exclusive, Error *error);
/* The same of a journal of a run folder. The folder may be a stranger's: a symbolic link is refused (ERROR_CHECKPOINT). */
bool file_open_journal(File *file, const char *path, Error *error);
/* A journal that is open for appending and has lost its last name, since it was removed or another was renamed over it,
 * would be lost with the process: opens what has the name now, or a new file. `*lost`: it had. */
bool file_follow_name(File *file, bool *lost, Error *error);
/* One write, all or nothing: what a full disk took of the data is cut off again, so that no record is torn. */
bool file_append(File *file, const void *data, int64_t bytes, Error *error);

/* Writes to whatever has the name, be it a file, a link or a pipe, without a sync: for results that can be remade. */
bool file_output(const char *path, const void *data, int64_t bytes, Error *error);
/* Whether file_output could write, which leaves no trace; else errno says why not. */
bool file_can_output(const char *path);

/* For disks: several threads may write at once. */
bool file_write_at(const File *file, const void *data, int64_t bytes, int64_t offset, Error *error);
bool file_sync(const File *file, Error *error);
bool file_sync_data(const File *file, Error *error); /* not the times and other metadata */
/* Makes the last change of the name `path` durable: that it came, that it went, or which file has it. */
bool file_sync_name(const char *path, Error *error);
/* Asks for all the space at once: a full disk is noticed before anything is written. */
bool file_reserve(const File *file, int64_t bytes, Error *error);
/* Goes past the page cache (O_DIRECT); false where the file system cannot. Addresses, offsets and lengths are then
 * whole sectors of FILE_SECTOR_BYTES, and file_truncate cuts the last one. */
enum { FILE_SECTOR_BYTES = 4096 };
bool file_bypass_cache(const File *file);
bool file_truncate(const File *file, int64_t bytes, Error *error);
/* A file for reading and writing that has no name, so that nothing is left of it. Its `path` is the folder. */
bool file_open_unnamed(File *file, const char *folder, Error *error);

/* Opens a file of exactly `bytes` for reading and writing in place, by several processes at once. Where it is absent or
 * has another size it is made anew, with all its space, and no content to rely on. */
bool file_open_shared(File *file, const char *path, int64_t bytes, Error *error);

/* -- Folders ------------------------------------------------------------------------------------------------------- */

/* The length in bytes of SCHEME in SCHEME://PLACE. 0: `path` is a path on this machine. */
size_t file_scheme(const char *path);
/* Refuses SCHEME://PLACE by its name (ERROR_USAGE). `bucket` allows s3://. */
bool file_check_place(const char *path, bool bucket, Error *error);
bool file_make_folder(const char *path, Error *error);  /* with parents, durable; an existing folder is fine */
bool file_make_parents(const char *path, Error *error); /* the folders that `path` is to lie in */
/* Those of them below `folder`, with which `path` begins, and which must exist. */
bool file_make_parents_below(const char *folder, const char *path, Error *error);
/* "$TMPDIR/NAME-XXXXXX", or in /tmp; the caller frees. NULL on failure. */
char *file_make_temporary_folder(const char *name, Error *error);

typedef struct FileEntry {
    char *name;
    FileKind kind; /* a link is FILE_OTHER; FILE_UNREADABLE if the system cannot tell */
} FileEntry;
typedef struct FileList {
    FileEntry *entries;
    size_t count;
} FileList;
/* Lists the entries of a folder, without those of its subfolders, in order of name (2 before 10). */
bool file_list(const char *folder, FileList *list, Error *error);
void file_list_add(FileList *list, char *name, FileKind kind); /* takes over `name` */
bool file_list_has(const FileList *list, const char *name);
void file_list_free(FileList *list);

/* Removes what killed writers left of the files and folders in `folder` whose names begin with `prefix`. Those of living
 * writers, which hold them locked, stay, and so does that of `own`, which may be NULL. What cannot be removed only takes
 * space: a warning. Returns whether another writer lives, or may live
 * since the folder cannot be listed. */
bool file_remove_partials(const char *folder, const char *prefix, const File *own);
/* Likewise of the file or folder `path` alone. */
bool file_remove_partials_of(const char *path);

/* Gives the folder `from` the name `to`. A folder that had the name `to` gets the name `aside`. If it cannot get that
 * name, it keeps the name `from`, with a warning. After a failure it is back in its place. Durable. */
bool file_exchange_folder(const char *from, const char *to, const char *aside, Error *error);
/* Gives the folder `from` the name `to`, and removes what had this name. Durable. */
bool file_replace_folder(const char *from, const char *to, Error *error);

/* A folder that is written under a temporary name (PATH.partial-PID), as files are, and gets its own with the commit. Zeroed:
 * none. */
typedef struct FolderDraft {
    char *path, *temporary; /* the latter NULL once it has its name */
    int lock;               /* says that the writer lives; -1 without locking */
} FolderDraft;
bool file_folder_begin(FolderDraft *draft, const char *path, Error *error);
/* Replaces what had the name. Durable. */
bool file_folder_commit(FolderDraft *draft, Error *error);
void file_folder_close(FolderDraft *draft); /* one without a commit disappears; also of a zeroed one */

/* Holds a file or folder for this process until `*lock` is closed. False: another process holds it (errno
 * EWOULDBLOCK), or it cannot be opened. *lock is -1 if the file does not exist, or the file system has no locks. */
bool file_lock(const char *path, int *lock);

/* Opens /dev/null as each standard stream that the parent closed, so that no other file gets its descriptor and then
 * the messages. Input is opened for writing and output for reading, so that using such a stream still fails. */
void file_fill_standard_streams(void);

/* Files and folders: the only code that opens, reads, maps, writes, syncs, renames and removes them.
 *
 * Durable files are all written in one way: under a temporary name in their folder
 * (PATH.partial-PID), synced and renamed. Then the folder is synced, because only then does the
 * name survive a power cut. After `true` the new contents are on disk; after `false` PATH is
 * unchanged. A process that is killed leaves at most a temporary name, which file_remove_partials
 * finds.
 *
 * A failure is ERROR_CHECKPOINT, "cannot ACTION PATH: REASON; what to do". Callers that read training data or
 * configurations change the code with error_recode. `errno` still holds the reason when a function returns. The
 * failure is FINDING_ABSENT (base/error.h) only if the system says that the name does not exist, and the listing of its
 * folder agrees. A name that is listed and cannot be found is FILE_UNREADABLE, with errno ESTALE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* Sets "cannot ACTION PATH: reason of errno; what to do". Returns false; errno is unchanged. */
bool file_fail(Error *error, const char *action, const char *path);

/* -- Names --------------------------------------------------------------------------------------------------------- */

/* FILE_UNREADABLE: the system cannot answer now; errno has the reason. Only FILE_ABSENT means that
 * there is no such file. */
typedef enum FileKind { FILE_ABSENT, FILE_REGULAR, FILE_FOLDER, FILE_OTHER, FILE_UNREADABLE } FileKind;
/* Follows links. `bytes` (may be NULL) receives the size of a regular file, else 0. */
FileKind file_kind(const char *path, int64_t *bytes);
/* Returns false only if the name does not exist. If the system cannot answer, the result is true,
 * and the read that follows reports the reason. */
bool file_exists(const char *path);
/* Returns whether `path` is a regular file that begins with these bytes, at most 64. */
bool file_begins(const char *path, const char *start, size_t size);
/* Checks that a command may write the file `path`. It may if there is none, or with `overwrite` if the
 * file is empty or `is_kind`. Messages call the kind `kind`. ERROR_USAGE with the way out. */
bool file_check_overwrite(const char *path, bool overwrite, bool (*is_kind)(const char *path), const char *kind, Error *error);
int64_t file_modified(const char *path);      /* time in nanoseconds since 1970; 0 if it is absent */
bool file_same(const char *a, const char *b); /* whether both exist and are the same file */
/* An identity that a file or folder keeps when it is renamed; all zero if it is absent. */
typedef struct FileId { uint64_t device, number; } FileId;
FileId file_id(const char *path);
bool file_id_same(FileId a, FileId b);
/* Removes a file or a folder with all its contents. Links are removed, not followed. It may be
 * absent. */
bool file_remove(const char *path, Error *error);
/* Makes `to` another name of a file; an existing `to` is kept. */
bool file_link(const char *from, const char *to, Error *error);
/* Returns the free bytes of the disk that holds `path`; -1 if unknown. */
double file_free_bytes(const char *path);

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* An open file. Zeroed: not open. */
typedef struct File {
    char *path;      /* for messages; the final name of a file that is being replaced */
    char *temporary; /* the present name of a replacement, or NULL */
    int descriptor;
    int64_t bytes; /* size at opening, plus the bytes that file_append added */
} File;

/* Opens a regular file for reading. */
bool file_open(File *file, const char *path, Error *error);
/* Reads exactly `bytes` at `offset`: short reads are continued, and the end of the file is an
 * error. */
bool file_read_at(const File *file, void *data, int64_t bytes, int64_t offset, Error *error);
/* Asks the system to read this range, and returns at once. */
void file_prefetch(const File *file, int64_t offset, int64_t bytes);
/* A zeroed File is fine. A replacement that was not committed is removed. */
void file_close(File *file);

/* Reads a regular file of at most `limit` bytes and adds a NUL; the caller frees it. `bytes` may be
 * NULL. */
char *file_read(const char *path, int64_t limit, int64_t *bytes, Error *error);
/* Reads at most the first size - 1 bytes of a regular file, including files of /proc or /sys, and
 * adds a NUL. Returns their number; -1, and the empty text, on failure. errno is EINVAL if it is
 * not a regular file, because reading a pipe could block. */
int64_t file_read_start(const char *path, char *text, size_t size);

/* A regular file mapped for reading. An empty file has no bytes. A mapped file must not be
 * overwritten in place. */
typedef struct FileMap {
    const unsigned char *bytes;
    size_t size;
} FileMap;
bool file_map(FileMap *map, const char *path, Error *error);
void file_unmap(FileMap *map); /* a zeroed one is fine */
/* Asks the system to read a part of a mapped file, and returns at once. */
void file_map_prefetch(const void *address, size_t bytes);
/* Returns the path of the mapped file that contains `address`, or NULL. For the handler of SIGBUS,
 * which a mapped file raises if it was truncated or its disk cannot be read: takes no lock and
 * allocates nothing. */
const char *file_mapped_at(const void *address);

/* Reads lines with bounded memory. The last line of a file whose writer was killed has no newline. */
enum { FILE_LINE_LIMIT = 4 << 20 }; /* bytes of a line: the load of about 400,000 experts */
typedef enum FileLine {
    FILE_LINE_WHOLE, /* `line` and `length`, without the newline, with a final NUL */
    FILE_LINE_LONG,  /* a line beyond the limit was skipped */
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
bool file_reader_close(FileReader *reader, Error *error); /* false if reading failed before */

/* -- Writing ------------------------------------------------------------------------------------------------------- */

/* Creates or replaces a file as described above. */
bool file_write(const char *path, const void *data, int64_t bytes, Error *error);

/* Like file_write for a file that must be absent. If several processes create it at once, one
 * succeeds, and the others get errno EEXIST. */
bool file_create(const char *path, const void *data, int64_t bytes, Error *error);

/* Like file_write, in steps: the file is written with file_append or file_write_at, and gets its
 * name with the commit. file_replace_commit always closes it; file_close before the commit gives
 * up. */
bool file_replace_begin(File *file, const char *path, Error *error);
bool file_replace_commit(File *file, Error *error);

/* Appends to a file, which may be absent. `exclusive`: fails with errno EEXIST unless it is absent. */
bool file_open_append(File *file, const char *path, bool exclusive, Error *error);
/* The same for a journal of a run folder. The folder may not be trusted, so a symbolic link is
 * refused (ERROR_CHECKPOINT). */
bool file_open_journal(File *file, const char *path, Error *error);
/* Reopens a journal that has lost its name. A journal that was removed, or over which another file
 * was renamed, would vanish with the process. Opens the file that has the name now, or a new file.
 * `*lost`: the name was lost. */
bool file_follow_name(File *file, bool *lost, Error *error);
/* Makes one write, all or nothing: if the disk is full, the part that was written is truncated, so
 * that no record is torn. */
bool file_append(File *file, const void *data, int64_t bytes, Error *error);

/* Writes to whatever has the name, a file, a link or a pipe, without a sync: for reproducible
 * results. */
bool file_output(const char *path, const void *data, int64_t bytes, Error *error);
/* Returns whether file_output could write, without leaving a trace; if not, errno has the
 * reason. */
bool file_can_output(const char *path);

/* For disks: several threads may write at once. */
bool file_write_at(const File *file, const void *data, int64_t bytes, int64_t offset, Error *error);
bool file_sync(const File *file, Error *error);
bool file_sync_data(const File *file, Error *error); /* without times and other metadata */
/* Makes the last change of the name `path` durable: its creation, its removal or its target. */
bool file_sync_name(const char *path, Error *error);
/* Reserves all the space at once, so that a full disk is detected before anything is written. */
bool file_reserve(const File *file, int64_t bytes, Error *error);
/* Bypasses the page cache (O_DIRECT); returns false if the file system cannot. Addresses, offsets
 * and lengths must then be whole sectors of FILE_SECTOR_BYTES, and file_truncate cuts the last
 * one. */
enum { FILE_SECTOR_BYTES = 4096 };
bool file_bypass_cache(const File *file);
bool file_truncate(const File *file, int64_t bytes, Error *error);
/* Opens a file without a name for reading and writing; it vanishes on closing. Its `path` is the
 * folder. */
bool file_open_unnamed(File *file, const char *folder, Error *error);

/* Opens a file of exactly `bytes` for reading and writing in place, by several processes at once.
 * If it is absent or has another size, it is created with all its space and undefined content. */
bool file_open_shared(File *file, const char *path, int64_t bytes, Error *error);

/* -- Folders ------------------------------------------------------------------------------------------------------- */

/* Returns the length in bytes of SCHEME in SCHEME://PLACE; 0: `path` is a path on this machine. */
size_t file_scheme(const char *path);
/* Refuses SCHEME://PLACE by its name (ERROR_USAGE). `bucket` allows s3://. */
bool file_check_place(const char *path, bool bucket, Error *error);
bool file_make_folder(const char *path, Error *error);  /* with parents, durable; an existing folder is fine */
bool file_make_parents(const char *path, Error *error); /* the parent folders of `path` */
/* Makes the parents below `folder`, which is a prefix of `path` and must exist. */
bool file_make_parents_below(const char *folder, const char *path, Error *error);
/* Makes "$TMPDIR/NAME-XXXXXX", or in /tmp; the caller frees the name. NULL on failure. */
char *file_make_temporary_folder(const char *name, Error *error);

typedef struct FileEntry {
    char *name;
    FileKind kind; /* a link is FILE_OTHER; FILE_UNREADABLE if the system cannot tell */
} FileEntry;
typedef struct FileList {
    FileEntry *entries;
    size_t count;
} FileList;
/* Lists the entries of a folder, without those of its subfolders, sorted by name (2 before 10). */
bool file_list(const char *folder, FileList *list, Error *error);
void file_list_add(FileList *list, char *name, FileKind kind); /* takes ownership of `name` */
bool file_list_has(const FileList *list, const char *name);
void file_list_free(FileList *list);

/* Removes the remains of killed writers of the files and folders in `folder` whose names begin with
 * `prefix`. Remains of living writers, which hold locks, are kept. So are the remains of `own`
 * (NULL: none). A remain that cannot be removed only takes space and gives a warning. Returns
 * whether another writer lives, or may live because the folder cannot be listed. */
bool file_remove_partials(const char *folder, const char *prefix, const File *own);
/* The same for the file or folder `path` alone. */
bool file_remove_partials_of(const char *path);

/* Renames the folder `from` to `to`. An existing folder `to` is renamed to `aside`; if this fails,
 * it keeps the name `from`, with a warning. After a failure it is restored. Without `aside` (NULL),
 * a folder `to` that is not empty is kept, and the call fails. Durable. */
bool file_exchange_folder(const char *from, const char *to, const char *aside, Error *error);
/* Renames the folder `from` to `to`, and removes what had that name. Durable. */
bool file_replace_folder(const char *from, const char *to, Error *error);

/* A folder that is written under a temporary name (PATH.partial-PID), like files, and gets its name
 * with the commit. Zeroed: none. */
typedef struct FolderDraft {
    char *path, *temporary; /* temporary: NULL once the folder has its name */
    int lock;               /* shows that the writer lives; -1 without locking */
} FolderDraft;
bool file_folder_begin(FolderDraft *draft, const char *path, Error *error);
/* Replaces what had the name. Durable. */
bool file_folder_commit(FolderDraft *draft, Error *error);
void file_folder_close(FolderDraft *draft); /* removes the folder if it was not committed; a zeroed one is fine */

/* Locks a file or folder for this process until `*lock` is closed. Returns false if another process
 * holds it (errno EWOULDBLOCK), or it cannot be opened. *lock is -1 if the file does not exist, or
 * the file system has no locks. */
bool file_lock(const char *path, int *lock);

/* Opens /dev/null as each standard stream that the parent closed, so that no other file gets its
 * descriptor and receives the messages. Input is opened for writing and output for reading, so that
 * using such a stream still fails. */
void file_fill_standard_streams(void);

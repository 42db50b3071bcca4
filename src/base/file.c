/* Files and folders: system calls with descriptive errors. A File owns its descriptor and names, a
 * FileMap its pages. Called by all code that uses files: stores, shards, journals, model folders,
 * /proc and /sys. */
#include "base/file.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"

static const char PARTIAL[] = ".partial-"; /* followed by the process id */

/* These errors say that the name does not exist. All other errors say nothing about it. */
static bool is_absence(int code) { return code == ENOENT || code == ENOTDIR || code == ENAMETOOLONG; }

bool file_fail(Error *error, const char *action, const char *path) {
    const char *advice = "";
    char reason[256];
    int code = errno;
    if (code == ENOSPC || code == EDQUOT) advice = "; free disk space or choose another folder";
    else if (code == EROFS || code == EACCES || code == EPERM) advice = "; check its permissions or choose another folder";
    else if (code == EIO) advice = "; the disk may be failing";
    else if (code == EFBIG) advice = "; raise the file size limit (ulimit -f) or choose another file system";
    else if (code == EMFILE) advice = "; raise the limit on open files (ulimit -n)";
    else if (code == ENFILE) advice = "; the system-wide limit on open files is reached: end some programs";
    error_set(error, ERROR_CHECKPOINT, "cannot %s %s: %s%s", action, path, strerror_r(code, reason, sizeof reason), advice);
    errno = code;
    return error_find(error, FINDING_UNREADABLE);
}

/* file_fail of a call that looks a name up: the file is absent if errno says so. */
static bool fail_to_find(Error *error, const char *action, const char *path) {
    file_fail(error, action, path);
    return error_find(error, is_absence(errno) ? FINDING_ABSENT : FINDING_UNREADABLE);
}

/* Returns the folder that holds a name; the caller frees it. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? memory_format("%.*s", slash == path ? 1 : (int)(slash - path), path) : memory_copy_string(".");
}

/* -- Absence ------------------------------------------------------------------------------------------------------- */

/* Checks a name that the system calls absent: returns whether its folder lists the name, or
 * cannot be listed now. A link to an absent file counts as absent. A folder that forbids
 * listing, or has more than MOST names, does not contradict the system. */
static bool is_listed_name(const char *path) {
    enum { MOST = 1024 };
    SCOPED_FREE char *whole = memory_format("%.*s", (int)path_length(path), path), *folder = folder_of(whole);
    const char *slash = strrchr(whole, '/'), *name = slash ? slash + 1 : whole;
    if (!*name || !strcmp(name, ".")) return false;
    DIR *stream = opendir(folder);
    if (!stream && errno == ENOENT) return is_listed_name(folder);
    if (!stream) return errno != EACCES && errno != EPERM && !is_absence(errno);
    bool found = false;
    const struct dirent *entry;
    errno = 0;
    for (int i = 0; i < MOST && !found && (entry = readdir(stream)); i++) found = !strcmp(entry->d_name, name);
    bool failed = !found && errno != 0;
    closedir(stream);
    char target;
    return failed || (found && readlink(whole, &target, 1) < 0);
}

/* Returns whether to repeat a call that failed, after a pause: a network file system can often
 * answer a moment later. ENOENT is final only if the folder does not list the name, else errno
 * becomes ESTALE. */
static bool ask_again(const char *path, int *repeated) {
    enum { MOST = 4 };
    int code = errno;
    if (code == ENOENT && is_listed_name(path)) code = ESTALE;
    bool again = !is_absence(code) && *repeated < MOST;
    if (again) thread_sleep(1e-3 * (1 << (*repeated)++));
    errno = code;
    return again;
}

static int descriptor_open(const char *path, int flags) { return TEMP_FAILURE_RETRY(open(path, flags | O_CLOEXEC, 0666)); }

static int descriptor_open_old(const char *path) {
    int descriptor, repeated = 0;
    do descriptor = descriptor_open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    while (descriptor < 0 && errno == ENOENT && ask_again(path, &repeated));
    return descriptor;
}

/* -- Names --------------------------------------------------------------------------------------------------------- */

static FileKind kind_of_mode(mode_t mode) { return S_ISREG(mode) ? FILE_REGULAR : S_ISDIR(mode) ? FILE_FOLDER : FILE_OTHER; }

/* Calls stat, and retries if the system cannot answer: callers that ask twice should get equal
 * answers. */
static int status_of(const char *path, struct stat *status) {
    int result, repeated = 0;
    do result = stat(path, status);
    while (result != 0 && ask_again(path, &repeated));
    return result;
}

FileKind file_kind(const char *path, int64_t *bytes) {
    struct stat status = {0};
    FileKind kind = status_of(path, &status) == 0 ? kind_of_mode(status.st_mode) : is_absence(errno) ? FILE_ABSENT : FILE_UNREADABLE;
    if (bytes) *bytes = kind == FILE_REGULAR ? status.st_size : 0;
    return kind;
}

int64_t file_modified(const char *path) {
    struct stat status;
    return status_of(path, &status) == 0 ? (int64_t)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec : 0;
}

bool file_exists(const char *path) { return file_kind(path, NULL) != FILE_ABSENT; }

FileId file_id(const char *path) {
    struct stat status;
    return status_of(path, &status) == 0 ? (FileId){status.st_dev, status.st_ino} : (FileId){0};
}

bool file_begins(const char *path, const char *start, size_t size) {
    char found[65];
    assert(size < sizeof found);
    return file_kind(path, NULL) == FILE_REGULAR && file_read_start(path, found, size + 1) == (int64_t)size && !memcmp(found, start, size);
}

bool file_check_overwrite(const char *path, bool overwrite, bool (*is_kind)(const char *path), const char *kind, Error *error) {
    int64_t bytes;
    FileKind found = file_kind(path, &bytes);
    if (found == FILE_ABSENT) return true;
    if (!overwrite) return error_set(error, ERROR_USAGE, "%s already exists: choose another name, or set overwrite=true", path);
    if (found == FILE_UNREADABLE) return file_fail(error, "inspect", path);
    return (found == FILE_REGULAR && !bytes) || is_kind(path) ||
           error_set(error, ERROR_USAGE, "%s is not %s, and overwrite=true replaces nothing else: choose another name, or move the file",
               path, kind);
}

bool file_id_same(FileId a, FileId b) { return a.device == b.device && a.number == b.number; }

bool file_same(const char *a, const char *b) {
    FileId id = file_id(a);
    return id.number && file_id_same(id, file_id(b));
}

static int tree_entry_remove(const char *path, const struct stat *status, int kind, struct FTW *position) {
    (void)status, (void)kind, (void)position;
    return remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

bool file_remove(const char *path, Error *error) {
    enum { OPEN_FOLDERS = 16 };
    int code, repeated = 0;
    do {
        code = nftw(path, tree_entry_remove, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
        if (code > 0) errno = code;
    } while (code != 0 && errno == ENOENT && ask_again(path, &repeated));
    return code == 0 || errno == ENOENT || file_fail(error, "remove", path);
}

bool file_link(const char *from, const char *to, Error *error) {
    return link(from, to) == 0 || errno == EEXIST || file_fail(error, "link", from);
}

double file_free_bytes(const char *path) {
    struct statvfs disk;
    return statvfs(path, &disk) == 0 ? (double)disk.f_bavail * (double)disk.f_frsize : -1;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* Takes ownership of the descriptor of an open that may have failed; fails if it is not a regular
 * file. */
static bool file_take(File *file, const char *path, int descriptor, const char *action, Error *error) {
    struct stat status;
    *file = (File){0};
    if (descriptor < 0) return fail_to_find(error, action, path);
    *file = (File){.path = memory_copy_string(path), .descriptor = descriptor};
    bool good = fstat(descriptor, &status) == 0 || file_fail(error, action, path);
    if (good && !S_ISREG(status.st_mode)) {
        good = error_set(error, ERROR_CHECKPOINT, "%s is not a regular file", path);
        errno = EINVAL;
    }
    if (good) file->bytes = status.st_size;
    else file_close(file);
    return good;
}

bool file_open(File *file, const char *path, Error *error) {
    /* O_NONBLOCK: a named pipe is refused instead of waiting for its writer. */
    return file_take(file, path, descriptor_open_old(path), "open", error);
}

static bool file_ends(const File *file, int64_t needed, Error *error) {
    struct stat now;
    if (fstat(file->descriptor, &now) < 0) return file_fail(error, "read", file->path);
    return error_set(error, ERROR_CHECKPOINT, "%s is truncated: it ends at byte %lld, but byte %lld is needed", file->path,
               (long long)now.st_size, (long long)needed) ||
           error_find(error, FINDING_DAMAGED);
}

bool file_read_at(const File *file, void *data, int64_t bytes, int64_t offset, Error *error) {
    char *to = data;
    while (bytes > 0) {
        ssize_t got = TEMP_FAILURE_RETRY(pread(file->descriptor, to, (size_t)bytes, offset));
        if (got < 0) return file_fail(error, "read", file->path);
        if (got == 0) return file_ends(file, offset + bytes, error);
        to += got;
        bytes -= got;
        offset += got;
    }
    return true;
}

void file_prefetch(const File *file, int64_t offset, int64_t bytes) { posix_fadvise(file->descriptor, offset, bytes, POSIX_FADV_WILLNEED); }

void file_close(File *file) {
    int code = errno; /* errno of the failure that the caller is about to report */
    if (!file->path) return;
    if (file->descriptor >= 0) close(file->descriptor);
    if (file->temporary) unlink(file->temporary);
    free(file->temporary);
    free(file->path);
    *file = (File){0};
    errno = code;
}

char *file_read(const char *path, int64_t limit, int64_t *bytes, Error *error) {
    SCOPED(file_close) File file;
    if (!file_open(&file, path, error)) return NULL;
    if (bytes) *bytes = file.bytes;
    if (file.bytes > limit) {
        error_set(error, ERROR_CHECKPOINT, "%s has %lld bytes; the limit is %lld", path, (long long)file.bytes, (long long)limit);
        errno = EFBIG;
        return NULL;
    }
    char *text = memory_allocate((size_t)file.bytes + 1);
    if (file_read_at(&file, text, file.bytes, 0, error)) return text;
    free(text);
    return NULL;
}

/* Files of /proc and /sys are regular files whose size is meaningless. */
static bool is_readable(int descriptor) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) return false;
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    return S_ISREG(status.st_mode);
}

int64_t file_read_start(const char *path, char *text, size_t size) {
    size_t length = 0;
    int descriptor = descriptor_open_old(path);
    ssize_t got = descriptor >= 0 && is_readable(descriptor) ? 1 : -1;
    while (got > 0 && length < size - 1) {
        got = TEMP_FAILURE_RETRY(read(descriptor, text + length, size - 1 - length));
        if (got > 0) length += (size_t)got;
    }
    int code = errno;
    if (descriptor >= 0) close(descriptor);
    errno = code;
    text[got < 0 ? 0 : length] = '\0';
    return got < 0 ? -1 : (int64_t)length;
}

/* -- Mapped files -------------------------------------------------------------------------------------------------- */

/* The existing maps, from which a signal handler finds a file's name by address. A slot is free
 * while `bytes` is NULL. `size` and `path` are written before it is set, under the lock, so a
 * reader without the lock sees a set slot complete. Global, because a signal handler gets no
 * context. */
typedef struct MapSlot {
    const unsigned char *_Atomic bytes;
    size_t size;
    char path[256]; /* truncated if longer */
} MapSlot;
enum { MAP_SLOTS = 512 }; /* beyond this number, maps have no name */
static MapSlot map_slots[MAP_SLOTS];
static pthread_mutex_t map_slots_lock = PTHREAD_MUTEX_INITIALIZER;

static MapSlot *map_slot_find(const unsigned char *bytes) {
    for (MapSlot *slot = map_slots; slot < map_slots + MAP_SLOTS; slot++)
        if (atomic_load(&slot->bytes) == bytes) return slot;
    return NULL;
}

static void map_slot_fill(const FileMap *map, const char *path) {
    pthread_mutex_lock(&map_slots_lock);
    MapSlot *slot = map_slot_find(NULL);
    if (slot) {
        slot->size = map->size;
        snprintf(slot->path, sizeof slot->path, "%s", path);
        atomic_store(&slot->bytes, map->bytes);
    }
    pthread_mutex_unlock(&map_slots_lock);
}

static void map_slot_clear(const FileMap *map) {
    pthread_mutex_lock(&map_slots_lock);
    MapSlot *slot = map_slot_find(map->bytes);
    if (slot) atomic_store(&slot->bytes, NULL);
    pthread_mutex_unlock(&map_slots_lock);
}

const char *file_mapped_at(const void *address) {
    for (const MapSlot *slot = map_slots; slot < map_slots + MAP_SLOTS; slot++) {
        uintptr_t begin = (uintptr_t)atomic_load(&slot->bytes), at = (uintptr_t)address;
        if (begin && at >= begin && at - begin < slot->size) return slot->path;
    }
    return NULL;
}

bool file_map(FileMap *map, const char *path, Error *error) {
    SCOPED(file_close) File file;
    *map = (FileMap){0};
    if (!file_open(&file, path, error)) return false;
    void *bytes = file.bytes > 0 ? mmap(NULL, (size_t)file.bytes, PROT_READ, MAP_SHARED, file.descriptor, 0) : NULL;
    if (bytes == MAP_FAILED) return file_fail(error, "map", path);
    *map = (FileMap){bytes, (size_t)file.bytes};
    if (bytes) map_slot_fill(map, path);
    return true;
}

void file_unmap(FileMap *map) {
    if (map->bytes) {
        map_slot_clear(map);
        munmap((void *)map->bytes, map->size);
    }
    *map = (FileMap){0};
}

void file_map_prefetch(const void *address, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)address / page * page;
    posix_madvise((void *)begin, (uintptr_t)address + bytes - begin, POSIX_MADV_WILLNEED);
}

/* -- Lines --------------------------------------------------------------------------------------------------------- */

bool file_reader_open(FileReader *reader, const char *path, Error *error) {
    *reader = (FileReader){0};
    if (!file_open(&reader->file, path, error)) return false;
    reader->stream = fdopen(reader->file.descriptor, "r");
    if (reader->stream) return true;
    file_fail(error, "read", path);
    file_close(&reader->file);
    return false;
}

FileLine file_reader_next(FileReader *reader) {
    bool too_long = false;
    int byte;
    reader->length = 0;
    while ((byte = getc_unlocked(reader->stream)) != EOF && byte != '\n') {
        too_long = too_long || reader->length == FILE_LINE_LIMIT;
        if (too_long) continue;
        array_reserve(reader->line, reader->capacity, reader->length + 2);
        reader->line[reader->length++] = (char)byte;
    }
    array_reserve(reader->line, reader->capacity, reader->length + 1);
    reader->line[reader->length] = '\0';
    if (byte == EOF) return reader->length > 0 ? FILE_LINE_TORN : FILE_LINE_END;
    return too_long ? FILE_LINE_LONG : FILE_LINE_WHOLE;
}

bool file_reader_close(FileReader *reader, Error *error) {
    bool good = !ferror(reader->stream) || error_set(error, ERROR_INTERNAL, "cannot read the end of %s", reader->file.path);
    fclose(reader->stream);
    reader->file.descriptor = -1; /* the stream closed it */
    file_close(&reader->file);
    free(reader->line);
    return good;
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

bool file_write_at(const File *file, const void *data, int64_t bytes, int64_t offset, Error *error) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = TEMP_FAILURE_RETRY(pwrite(file->descriptor, from, (size_t)bytes, offset));
        if (written == 0) errno = ENOSPC;
        if (written <= 0) return file_fail(error, "write", file->path);
        from += written;
        bytes -= written;
        offset += written;
    }
    return true;
}

bool file_sync(const File *file, Error *error) {
    /* EINVAL: some file systems cannot sync folders, and there is no alternative. */
    return TEMP_FAILURE_RETRY(fsync(file->descriptor)) == 0 || errno == EINVAL || file_fail(error, "sync", file->path);
}

bool file_sync_data(const File *file, Error *error) { return fdatasync(file->descriptor) == 0 || file_fail(error, "sync", file->path); }

/* Names are contents of their folder, which is synced. */
bool file_sync_name(const char *path, Error *error) {
    SCOPED(file_close) File folder = {.path = folder_of(path)};
    folder.descriptor = descriptor_open(folder.path, O_RDONLY | O_DIRECTORY);
    return folder.descriptor >= 0 ? file_sync(&folder, error) : file_fail(error, "open", folder.path);
}

bool file_replace_begin(File *file, const char *path, Error *error) {
    char *temporary = memory_format("%s%s%ld", path, PARTIAL, (long)getpid());
    int descriptor = descriptor_open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
    *file = (File){0};
    if (descriptor >= 0) {
        flock(descriptor, LOCK_EX | LOCK_NB); /* for file_remove_partials; skipped if the file system has no locks */
        *file = (File){.path = memory_copy_string(path), .temporary = temporary, .descriptor = descriptor};
        return true;
    }
    file_fail(error, "create", path);
    free(temporary);
    return false;
}

/* Network file systems report a full disk on close. After EINTR the file is closed, and its data
 * was already synced. */
static bool descriptor_close(File *file, Error *error) {
    int result = close(file->descriptor);
    file->descriptor = -1;
    return result == 0 || errno == EINTR || file_fail(error, "close", file->path);
}

bool file_replace_commit(File *file, Error *error) {
    assert(file->path && file->temporary);
    bool good = file_sync(file, error) && descriptor_close(file, error);
    if (good && rename(file->temporary, file->path) != 0) good = file_fail(error, "replace", file->path);
    if (good) {
        free(file->temporary);
        file->temporary = NULL;
        good = file_sync_name(file->path, error);
    }
    file_close(file);
    return good;
}

bool file_write(const char *path, const void *data, int64_t bytes, Error *error) {
    SCOPED(file_close) File file;
    return file_replace_begin(&file, path, error) && file_write_at(&file, data, bytes, 0, error) && file_replace_commit(&file, error);
}

/* Not every file system has links; file systems without links can refuse to rename over a file. */
static bool name_new(const char *from, const char *to, Error *error) {
    bool named = link(from, to) == 0;
    if (!named && errno != EEXIST) named = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0;
    return named || file_fail(error, "create", to);
}

bool file_create(const char *path, const void *data, int64_t bytes, Error *error) {
    SCOPED(file_close) File file;
    return file_replace_begin(&file, path, error) && file_write_at(&file, data, bytes, 0, error) && file_sync(&file, error) &&
           name_new(file.temporary, path, error) && file_sync_name(path, error);
}

enum { APPEND = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY };

bool file_open_append(File *file, const char *path, bool exclusive, Error *error) {
    return file_take(file, path, descriptor_open(path, APPEND | (exclusive ? O_EXCL : 0)), "open", error);
}

bool file_open_journal(File *file, const char *path, Error *error) {
    int descriptor = descriptor_open(path, APPEND | O_NOFOLLOW);
    *file = (File){0};
    if (descriptor < 0 && errno == ELOOP)
        return error_set(
            error, ERROR_CHECKPOINT, "%s is a symbolic link. A run does not write its records through a symbolic link: remove it", path);
    return file_take(file, path, descriptor, "open", error);
}

bool file_follow_name(File *file, bool *lost, Error *error) {
    struct stat status;
    SCOPED(file_close) File fresh = {0};
    *lost = fstat(file->descriptor, &status) == 0 && status.st_nlink == 0;
    if (!*lost) return true;
    if (!file_open_journal(&fresh, file->path, error)) return false;
    File removed = *file;
    *file = fresh;
    fresh = removed;
    return true;
}

bool file_append(File *file, const void *data, int64_t bytes, Error *error) {
    const char *from = data;
    for (int64_t done = 0; done < bytes;) {
        ssize_t written = TEMP_FAILURE_RETRY(write(file->descriptor, from + done, (size_t)(bytes - done)));
        if (written <= 0) {
            int code = written < 0 ? errno : ENOSPC;
            if (done > 0 && ftruncate(file->descriptor, file->bytes) != 0)
                return file_fail(error, "remove an incomplete record from", file->path);
            errno = code;
            return file_fail(error, "write", file->path);
        }
        done += written;
    }
    file->bytes += bytes;
    return true;
}

bool file_output(const char *path, const void *data, int64_t bytes, Error *error) {
    SCOPED(file_close)
    File file = {.path = memory_copy_string(path), .descriptor = descriptor_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY)};
    if (file.descriptor < 0) return file_fail(error, "create", path);
    return file_append(&file, data, bytes, error) && descriptor_close(&file, error);
}

bool file_can_output(const char *path) {
    if (file_kind(path, NULL) == FILE_OTHER) return true; /* opening a pipe would be noticed at its other end */
    int descriptor = descriptor_open(path, O_WRONLY | O_CREAT | O_EXCL);
    bool made = descriptor >= 0; /* only then may this function remove it */
    if (!made) descriptor = descriptor_open(path, O_WRONLY | O_CREAT);
    if (descriptor < 0) return false;
    close(descriptor);
    if (made) unlink(path);
    return true;
}

bool file_reserve(const File *file, int64_t bytes, Error *error) {
    return bytes == 0 || TEMP_FAILURE_RETRY(fallocate(file->descriptor, 0, 0, bytes)) == 0 || errno == EOPNOTSUPP || errno == ENOSYS ||
           file_fail(error, "write", file->path);
}

bool file_bypass_cache(const File *file) {
    int flags = fcntl(file->descriptor, F_GETFL);
    return flags >= 0 && fcntl(file->descriptor, F_SETFL, flags | O_DIRECT) == 0;
}

bool file_truncate(const File *file, int64_t bytes, Error *error) {
    return ftruncate(file->descriptor, bytes) == 0 || file_fail(error, "write", file->path);
}

bool file_open_shared(File *file, const char *path, int64_t bytes, Error *error) {
    int64_t size;
    if (file_kind(path, &size) != FILE_REGULAR || size != bytes) {
        SCOPED(file_close) File made = {0};
        if (!file_replace_begin(&made, path, error) || !file_reserve(&made, bytes, error) || !file_truncate(&made, bytes, error) ||
            !file_replace_commit(&made, error))
            return false;
    }
    return file_take(file, path, descriptor_open(path, O_RDWR | O_NONBLOCK | O_NOCTTY), "open", error);
}

bool file_open_unnamed(File *file, const char *folder, Error *error) {
    SCOPED_FREE char *name = memory_format("%s/.smelt-XXXXXX", folder);
    int descriptor = mkostemp(name, O_CLOEXEC);
    *file = (File){.path = memory_copy_string(folder), .descriptor = descriptor};
    if (descriptor >= 0 && unlink(name) == 0) return true;
    file_fail(error, "create a file in", folder);
    file_close(file);
    return false;
}

/* -- Folders ------------------------------------------------------------------------------------------------------- */

static bool folder_make_one(const char *path, Error *error) {
    if (mkdir(path, 0777) == 0) return file_sync_name(path, error);
    int code = errno;
    if (file_kind(path, NULL) == FILE_FOLDER) return true;
    errno = code;
    return file_fail(error, "create folder", path);
}

bool file_make_parents(const char *path, Error *error) { return file_make_parents_below("", path, error); }

bool file_make_parents_below(const char *folder, const char *path, Error *error) {
    SCOPED_FREE char *prefix = memory_copy_string(path);
    size_t first = *path ? strlen(folder) + 1 : 0;
    for (char *slash = strchr(prefix + first, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (!folder_make_one(prefix, error)) return false;
        *slash = '/';
    }
    return true;
}

size_t file_scheme(const char *path) {
    size_t length = 0;
    while (isalnum((unsigned char)path[length]) || (length > 0 && path[length] && strchr("+-.", path[length]))) length++;
    return starts_with(path + length, "://") ? length : 0;
}

bool file_check_place(const char *path, bool bucket, Error *error) {
    size_t scheme = file_scheme(path);
    bool s3 = scheme == 2 && starts_with(path, "s3");
    if (!scheme || (s3 && bucket)) return true;
    return error_set(error, ERROR_USAGE, "%s is a %.*s:// location, which is not supported%s: give a local path", path, (int)scheme, path,
        s3 ? " here" : "");
}

bool file_make_folder(const char *path, Error *error) {
    size_t length = strlen(path);
    return file_check_place(path, false, error) && file_make_parents(path, error) &&
           ((length > 0 && path[length - 1] == '/') || folder_make_one(path, error));
}

char *file_make_temporary_folder(const char *name, Error *error) {
    const char *place = getenv("TMPDIR");
    char *folder = memory_format("%s/%s-XXXXXX", place && *place ? place : "/tmp", name);
    if (mkdtemp(folder)) return folder;
    file_fail(error, "create folder", folder);
    free(folder);
    return NULL;
}

void file_list_add(FileList *list, char *name, FileKind kind) { array_append(list->entries, list->count, (FileEntry){name, kind}); }

bool file_list_has(const FileList *list, const char *name) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->entries[i].name, name) == 0) return true;
    return false;
}

void file_list_free(FileList *list) {
    for (size_t i = 0; i < list->count; i++) free(list->entries[i].name);
    free(list->entries);
    *list = (FileList){0};
}

static FileKind entry_kind(const char *folder, const struct dirent *entry) {
    struct stat status;
    if (entry->d_type != DT_UNKNOWN) return kind_of_mode(DTTOIF(entry->d_type));
    SCOPED_FREE char *path = memory_format("%s/%s", folder, entry->d_name);
    return lstat(path, &status) == 0 ? kind_of_mode(status.st_mode) : FILE_UNREADABLE;
}

static int is_named(const struct dirent *entry) { return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0; }

bool file_list(const char *folder, FileList *list, Error *error) {
    struct dirent **found;
    int count, repeated = 0;
    do count = scandir(folder, &found, is_named, versionsort);
    while (count < 0 && errno == ENOENT && ask_again(folder, &repeated));
    *list = (FileList){0};
    if (count < 0) return fail_to_find(error, "read folder", folder);
    for (int i = 0; i < count; free(found[i++])) file_list_add(list, memory_copy_string(found[i]->d_name), entry_kind(folder, found[i]));
    free(found);
    return true;
}

/* Returns whether file_replace_begin or file_folder_begin could have made this name. */
static bool is_partial(const char *name) {
    const char *mark = strstr(name, PARTIAL), *number = mark ? mark + sizeof PARTIAL - 1 : "";
    return *number && number[strspn(number, "0123456789")] == '\0';
}

bool file_remove_partials(const char *folder, const char *prefix, const File *own) {
    SCOPED(file_list_free) FileList list;
    Error error = {0};
    bool lives = false;
    const char *slash = own ? strrchr(own->temporary, '/') : NULL, *own_name = !own ? "" : slash ? slash + 1 : own->temporary;
    if (!file_list(folder, &list, &error)) {
        if (error.finding != FINDING_ABSENT) log_warn("%s; temporary files of killed processes were not removed", error.message);
        return error.finding != FINDING_ABSENT;
    }
    for (const FileEntry *entry = list.entries; entry < list.entries + list.count; entry++) {
        if (entry->kind == FILE_OTHER || strncmp(entry->name, prefix, strlen(prefix)) != 0 || !is_partial(entry->name)) continue;
        SCOPED_FREE char *path = memory_format("%s/%s", folder, entry->name);
        int lock = -1;
        if (!strcmp(entry->name, own_name)) continue;
        bool held = !file_lock(path, &lock);
        lives = lives || held;
        if (!held && !file_remove(path, &error)) log_warn("%s; this temporary file of a killed process was not removed", error.message);
        if (lock >= 0) close(lock);
    }
    return lives;
}

bool file_remove_partials_of(const char *path) {
    SCOPED_FREE char *whole = memory_format("%.*s", (int)path_length(path), path);
    const char *slash = strrchr(whole, '/');
    SCOPED_FREE char *folder = folder_of(whole);
    SCOPED_FREE char *prefix = memory_format("%s%s", slash ? slash + 1 : whole, PARTIAL);
    return file_remove_partials(folder, prefix, NULL);
}

/* Moves `to` away if two names cannot be exchanged. */
static bool replace_by_turns(const char *from, const char *to, const char *aside, Error *error) {
    if (rename(to, aside) != 0) return file_fail(error, "rename", to);
    if (rename(from, to) == 0) return true;
    int code = errno;
    if (rename(aside, to) != 0) log_warn("%s could not be restored; it is now named %s", to, aside);
    errno = code;
    return file_fail(error, "rename", from);
}

static bool exchange_names(const char *from, const char *to, const char *aside, Error *error) {
    if (rename(from, to) == 0) return true;
    if (!aside || (errno != ENOTEMPTY && errno != EEXIST)) return file_fail(error, "rename", from);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) {
        if (rename(from, aside) != 0) log_warn("the replaced %s could not be removed and is now named %s: %s", to, from, strerror(errno));
        return true;
    }
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return file_fail(error, "replace", to);
    return replace_by_turns(from, to, aside, error);
}

bool file_exchange_folder(const char *from, const char *to, const char *aside, Error *error) {
    return exchange_names(from, to, aside, error) && file_sync_name(to, error);
}

bool file_replace_folder(const char *from, const char *to, Error *error) {
    SCOPED_FREE char *aside = memory_format("%s.replaced", to);
    return file_remove(aside, error) && file_exchange_folder(from, to, aside, error) && file_remove(from, error) &&
           file_remove(aside, error);
}

bool file_lock(const char *path, int *lock) {
    *lock = descriptor_open_old(path);
    if (*lock < 0) return is_absence(errno);
    if (flock(*lock, LOCK_EX | LOCK_NB) == 0) return true;
    int code = errno;
    close(*lock);
    *lock = -1;
    errno = code;
    return code != EWOULDBLOCK;
}

bool file_folder_begin(FolderDraft *draft, const char *path, Error *error) {
    *draft = (FolderDraft){.path = memory_format("%.*s", (int)path_length(path), path), .lock = -1};
    draft->temporary = memory_format("%s%s%ld", draft->path, PARTIAL, (long)getpid());
    return file_make_folder(draft->temporary, error) &&
           (file_lock(draft->temporary, &draft->lock) || file_fail(error, "lock", draft->temporary));
}

bool file_folder_commit(FolderDraft *draft, Error *error) {
    if (!file_replace_folder(draft->temporary, draft->path, error)) return false;
    free(draft->temporary);
    draft->temporary = NULL;
    return true;
}

void file_folder_close(FolderDraft *draft) {
    int code = errno; /* errno of the failure that the caller is about to report */
    Error ignored = {0};
    if (!draft->path) return;
    if (draft->temporary) file_remove(draft->temporary, &ignored);
    if (draft->lock >= 0) close(draft->lock);
    free(draft->temporary);
    free(draft->path);
    *draft = (FolderDraft){0};
    errno = code;
}

void file_fill_standard_streams(void) {
    for (int i = 0; i <= STDERR_FILENO; i++)
        if (fcntl(i, F_GETFD) < 0 && open("/dev/null", i == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0) return;
}

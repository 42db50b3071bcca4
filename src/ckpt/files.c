/* Files and folders: system calls with their failures spelled out. Every write that matters is synced, file first and
 * then the folder that names it, because only then does it survive a power cut. Owns no memory beyond a call, except
 * what files_read_whole returns. Called by the rest of this module, and by whoever writes small files into a run. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "ckpt/ckpt_internal.h"

bool files_fail(Error *error, const char *action, const char *path, int code) {
    const char *advice = "";
    if (code == ENOSPC || code == EDQUOT) advice = "; free some space or choose another folder";
    else if (code == EROFS || code == EACCES || code == EPERM) advice = "; choose a folder that you may write to";
    else if (code == EIO) advice = "; the disk may be failing";
    char buffer[256];
    return error_set(error, ERROR_CHECKPOINT, "cannot %s %s: %s%s", action, path, strerror_r(code, buffer, sizeof buffer), advice);
}

static int file_open(const char *path, int flags) {
    int file;
    do file = open(path, flags | O_CLOEXEC, 0666);
    while (file < 0 && errno == EINTR);
    return file;
}

int files_open_read(const char *path, int64_t *size, Error *error) {
    /* O_NONBLOCK: opening a named pipe must fail below instead of waiting for a writer. */
    int file = file_open(path, O_RDONLY | O_NONBLOCK);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
        int code = errno;
        if (file >= 0) close(file);
        files_fail(error, "open", path, code);
        return -1;
    }
    if (!S_ISREG(status.st_mode)) {
        close(file);
        error_set(error, ERROR_CHECKPOINT, "%s is not a regular file", path);
        return -1;
    }
    *size = status.st_size;
    return file;
}

int files_open_write(const char *path, Error *error) {
    int file = file_open(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (file < 0) files_fail(error, "create", path, errno);
    return file;
}

bool files_write_at(int file, const char *path, const void *data, int64_t bytes, int64_t offset, Error *error) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = pwrite(file, from, (size_t)bytes, offset);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return files_fail(error, "write", path, written < 0 ? errno : ENOSPC);
        from += written;
        bytes -= written;
        offset += written;
    }
    return true;
}

bool files_read_at(int file, const char *path, void *data, int64_t bytes, int64_t offset, Error *error) {
    char *to = data;
    while (bytes > 0) {
        ssize_t got = pread(file, to, (size_t)bytes, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return files_fail(error, "read", path, errno);
        if (got == 0)
            return error_set(error, ERROR_CHECKPOINT, "%s is truncated: it ends at byte %lld, but %lld more are needed", path,
                (long long)offset, (long long)bytes);
        to += got;
        bytes -= got;
        offset += got;
    }
    return true;
}

static bool file_sync(int file, const char *path, Error *error) {
    int result;
    do result = fsync(file);
    while (result != 0 && errno == EINTR);
    /* EINVAL: some file systems cannot sync folders; nothing can be done there. */
    if (result != 0 && errno != EINVAL) return files_fail(error, "sync", path, errno);
    return true;
}

bool files_sync_close(int file, const char *path, bool good, Error *error) {
    good = good && file_sync(file, path, error);
    /* Network file systems report a full disk here. After EINTR the descriptor is gone and the data was synced. */
    if (close(file) != 0 && errno != EINTR && good) return files_fail(error, "close", path, errno);
    return good;
}

bool files_sync_folder(const char *path, Error *error) {
    int folder = file_open(path, O_RDONLY | O_DIRECTORY);
    if (folder < 0) return files_fail(error, "open", path, errno);
    return files_sync_close(folder, path, true, error);
}

bool files_sync_parent(const char *path, Error *error) {
    char *parent = memory_copy_string(path);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = '\0';
    bool good = files_sync_folder(slash ? parent : ".", error);
    free(parent);
    return good;
}

char *files_read_whole(const char *path, int64_t limit, int64_t *length, Error *error) {
    int file = files_open_read(path, length, error);
    if (file < 0) return NULL;
    char *text = NULL;
    if (*length > limit) {
        error_set(error, ERROR_CHECKPOINT, "%s has %lld bytes; at most %lld are accepted", path, (long long)*length, (long long)limit);
    } else {
        text = memory_allocate((size_t)*length + 1);
        if (!files_read_at(file, path, text, *length, 0, error)) {
            free(text);
            text = NULL;
        }
    }
    close(file);
    return text;
}

bool files_write_atomic(const char *path, const void *data, size_t length, Error *error) {
    char *temporary = memory_format("%s.partial-%ld", path, (long)getpid());
    int file = files_open_write(temporary, error);
    bool good = file >= 0;
    if (good) {
        good = files_write_at(file, temporary, data, (int64_t)length, 0, error);
        good = files_sync_close(file, temporary, good, error);
        if (good && rename(temporary, path) != 0) good = files_fail(error, "replace", path, errno);
        if (!good) unlink(temporary);
    }
    free(temporary);
    return good && files_sync_parent(path, error);
}

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool folder_make_one(const char *path, Error *error) {
    if (mkdir(path, 0777) == 0) return files_sync_parent(path, error);
    int code = errno;
    return is_folder(path) || files_fail(error, "create folder", path, code);
}

bool files_make_folder(const char *path, Error *error) {
    char *prefix = memory_copy_string(path);
    bool good = true;
    for (char *slash = strchr(prefix + (prefix[0] != '\0'), '/'); slash && good; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        good = folder_make_one(prefix, error);
        *slash = '/';
    }
    size_t length = strlen(path);
    if (good && (length == 0 || path[length - 1] != '/')) good = folder_make_one(path, error);
    free(prefix);
    return good;
}

static int tree_entry_remove(const char *path, const struct stat *status, int kind, struct FTW *position) {
    (void)status, (void)kind, (void)position;
    return remove(path) == 0 || errno == ENOENT ? 0 : errno;
}

bool files_remove_tree(const char *path, Error *error) {
    enum { OPEN_FOLDERS = 16 };
    int code = nftw(path, tree_entry_remove, OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS);
    if (code < 0) code = errno;
    return code == 0 || code == ENOENT || files_fail(error, "remove", path, code);
}

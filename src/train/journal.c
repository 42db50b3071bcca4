/* Append-only files of a run. A process can be killed at any time, so a record is one write, and a reader must expect
 * that the last one is torn. A Journal owns its descriptor and path, a JournalReader its file and one line. Called by
 * metrics.c, tensorboard.c and history.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/journal.h"

bool journal_fail(Error *error, const char *action, const char *path, int code) {
    char reason[256];
    const char *advice = "";
    if (code == ENOSPC || code == EDQUOT) advice = "; free some space or choose another folder";
    if (code == EACCES || code == EPERM || code == EROFS) advice = "; check its permissions or choose another folder";
    return error_set(error, ERROR_CHECKPOINT, "cannot %s %s: %s%s", action, path, strerror_r(code, reason, sizeof reason), advice);
}

bool journal_open(Journal *journal, const char *path, bool exclusive, Error *error) {
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (exclusive ? O_EXCL : 0), 0666);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0) {
        int code = errno;
        if (file >= 0) close(file);
        journal_fail(error, "open", path, code);
        errno = code;
        return false;
    }
    *journal = (Journal){memory_copy_string(path), file, status.st_size};
    return true;
}

bool journal_append(Journal *journal, const void *data, size_t bytes, Error *error) {
    const char *from = data;
    size_t done = 0;
    while (done < bytes) {
        ssize_t written = write(journal->file, from + done, bytes - done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            int code = written < 0 ? errno : ENOSPC;
            if (done > 0 && ftruncate(journal->file, journal->size) != 0)
                return journal_fail(error, "cut a torn record off", journal->path, errno);
            return journal_fail(error, "write", journal->path, code);
        }
        done += (size_t)written;
    }
    journal->size += (int64_t)bytes;
    return true;
}

void journal_close(Journal *journal) {
    close(journal->file);
    free(journal->path);
}

bool journal_reader_open(JournalReader *reader, const char *path, Error *error) {
    enum { FIRST_CAPACITY = 1 << 16 };
    struct stat status;
    /* O_NONBLOCK: a named pipe must be refused below, not waited for. */
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    int code = file < 0 ? errno : fstat(file, &status) != 0 ? errno : S_ISREG(status.st_mode) ? 0 : EINVAL;
    if (code != 0) {
        if (file >= 0) close(file);
        if (code == EINVAL) error_set(error, ERROR_INTERNAL, "%s is not a regular file", path);
        else journal_fail(error, "read", path, code);
        errno = code;
        return false;
    }
    *reader = (JournalReader){fdopen(file, "r"), memory_allocate(FIRST_CAPACITY), 0, FIRST_CAPACITY};
    return true;
}

JournalLine journal_read(JournalReader *reader) {
    bool too_long = false;
    int byte;
    reader->length = 0;
    while ((byte = getc_unlocked(reader->file)) != EOF && byte != '\n') {
        too_long = too_long || reader->length == JOURNAL_LINE_LIMIT;
        if (too_long) continue;
        if (reader->length + 1 == reader->capacity) {
            reader->capacity *= 2;
            reader->line = memory_resize(reader->line, reader->capacity);
        }
        reader->line[reader->length++] = (char)byte;
    }
    reader->line[reader->length] = '\0';
    if (byte == EOF) return reader->length > 0 ? JOURNAL_TORN : JOURNAL_END;
    return too_long ? JOURNAL_LONG : JOURNAL_LINE;
}

bool journal_reader_close(JournalReader *reader, const char *path, Error *error) {
    bool good = !ferror(reader->file) || error_set(error, ERROR_INTERNAL, "cannot read %s to its end", path);
    fclose(reader->file);
    free(reader->line);
    return good;
}

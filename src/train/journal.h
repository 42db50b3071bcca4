/* Append-only files of a run: whole records or nothing when writing, bounded memory when reading lines. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum { JOURNAL_LINE_LIMIT = 4 << 20 }; /* bytes of a line that readers accept: the load of some 400,000 experts */

/* "cannot ACTION PATH: reason of the errno `code`; what to do", as ERROR_CHECKPOINT. */
bool journal_fail(Error *error, const char *action, const char *path, int code);

typedef struct Journal {
    char *path;
    int file;
    int64_t size; /* bytes that are in the file */
} Journal;

/* Opens for appending; `path` is copied. `exclusive`: fails with errno EEXIST, which the caller can test, when it
 * exists. */
bool journal_open(Journal *journal, const char *path, bool exclusive, Error *error);
/* One write. When the system takes only a part (a full disk), the part is cut off again, so that no record is torn. */
bool journal_append(Journal *journal, const void *data, size_t bytes, Error *error);
void journal_close(Journal *journal);

typedef enum JournalLine {
    JOURNAL_LINE, /* `line` and `length`, without the newline, with a NUL behind */
    JOURNAL_LONG, /* a line above the limit was skipped */
    JOURNAL_TORN, /* the last line has no newline: its writer died */
    JOURNAL_END,
} JournalLine;

typedef struct JournalReader {
    FILE *file;
    char *line;
    size_t length, capacity;
} JournalReader;

/* A regular file; errno tells the caller why it failed (ENOENT). */
bool journal_reader_open(JournalReader *reader, const char *path, Error *error);
JournalLine journal_read(JournalReader *reader);
/* False when reading failed on the way. */
bool journal_reader_close(JournalReader *reader, const char *path, Error *error);

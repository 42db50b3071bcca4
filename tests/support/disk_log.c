/* What a disk holds after a power cut, computed from the log. Every change is judged by itself: it survives when its
 * file or folder was synced later and before the cut, or else by chance. The survivors, in their order, give the
 * entries of folders and the contents of files. disk_trace.c makes logs. */
#include "support/disk_log_internal.h"

#include "base/array.h"
#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "support/files.h"

enum { SECTOR_BYTES = 4096 };

/* -- The log ------------------------------------------------------------------------------------------------------- */

int disk_log_add_object(DiskLog *log, bool is_folder) {
    array_append(log->is_folder, log->object_count, is_folder);
    return log->object_count - 1;
}

void disk_log_add(DiskLog *log, DiskChange change) { array_append(log->changes, log->count, change); }

void disk_log_free(DiskLog *log) {
    if (!log) return;
    for (size_t i = 0; i < log->count; i++) {
        free(log->changes[i].data);
        for (int j = 0; j < log->changes[i].name_count; j++) free(log->changes[i].names[j].name);
    }
    free(log->changes);
    free(log->is_folder);
    free(log->output);
    free(log->root);
    free(log);
}

int disk_log_exit_code(const DiskLog *log) { return log->code; }

size_t disk_log_count(const DiskLog *log) { return log->count - log->before; }

char *disk_log_output(const DiskLog *log, size_t cut) {
    size_t at = log->before + cut;
    return memory_format("%.*s", at < log->count ? (int)log->changes[at].printed : (int)strlen(log->output), log->output);
}

/* The last name that an object was given before change `at`. */
static const char *name_of(const DiskLog *log, int object, size_t at) {
    const char *name = object == DISK_ROOT ? "the root" : "?";
    for (size_t i = 0; i < at; i++)
        for (int j = 0; j < log->changes[i].name_count; j++)
            if (log->changes[i].names[j].object == object) name = log->changes[i].names[j].name;
    return name;
}

char *disk_log_describe(const DiskLog *log, size_t at) {
    static const char *const verbs[] = {"write", "resize", "names", "sync", "sync all"};
    at += log->before;
    if (at >= log->count) return memory_copy_string("the end");
    const DiskChange *change = &log->changes[at];
    if (change->kind == DISK_SYNC_ALL) return memory_copy_string(verbs[change->kind]);
    if (change->kind != DISK_NAMES)
        return memory_format("%s %s (%lld at %lld)", verbs[change->kind], name_of(log, change->object, at), (long long)change->bytes,
            (long long)change->offset);
    char *text = memory_copy_string("names");
    for (int i = 0; i < change->name_count; i++) {
        const DiskName *name = &change->names[i];
        char *longer = memory_format("%s %s%s", text, name->object < 0 ? "-" : "+", name->name);
        free(text);
        text = longer;
    }
    return text;
}

size_t disk_log_named(const DiskLog *log, size_t cut, const char *name) {
    for (size_t at = log->before + cut; at-- > log->before;) {
        const DiskChange *change = &log->changes[at];
        for (int i = 0; i < change->name_count; i++)
            if (change->names[i].object >= 0 && !strcmp(change->names[i].name, name)) return at + 1 - log->before;
    }
    fail_msg("nothing was named %s", name);
    return 0;
}

/* -- What survives ------------------------------------------------------------------------------------------------- */

/* A power cut: which changes were synced before it, and what decides about the others. */
typedef struct Cut {
    const DiskLog *log;
    size_t end; /* of the changes that had happened */
    const DiskChance *chance;
    bool *synced; /* two for each change: its names may lie in two folders */
} Cut;

static void find_synced(Cut *cut) {
    const DiskLog *log = cut->log;
    SCOPED_FREE bool *later = memory_allocate((size_t)log->object_count * sizeof *later);
    bool all = false;
    for (size_t i = cut->end; i-- > 0;) {
        const DiskChange *change = &log->changes[i];
        if (change->kind == DISK_SYNC) later[change->object] = true;
        all = all || change->kind == DISK_SYNC_ALL || i < log->before;
        cut->synced[2 * i] = all || (change->object >= 0 && later[change->object]);
        for (int j = 0; j < change->name_count; j++) cut->synced[2 * i + (size_t)j] = all || later[change->names[j].folder];
    }
}

/* The same decision for the same change, part and seed. */
static bool is_lucky(const Cut *cut, size_t change, int64_t part, double probability) {
    const double span = 4294967296.0; /* of 32 random bits */
    return (double)rng_bits(cut->chance->seed, change, (uint64_t)part).word[0] < probability * span;
}

/* A part of a change of a file. */
static bool survives(const Cut *cut, size_t change, int64_t part, double probability) {
    return cut->synced[2 * change] || is_lucky(cut, change, part, probability);
}

/* -- Names --------------------------------------------------------------------------------------------------------- */

typedef struct Entries {
    DiskName *items; /* names are borrowed */
    size_t count;
} Entries;

static void entries_set(Entries *entries, const DiskName *name) {
    size_t i = 0;
    while (i < entries->count && (entries->items[i].folder != name->folder || strcmp(entries->items[i].name, name->name) != 0)) i++;
    if (i == entries->count) array_append(entries->items, entries->count, *name);
    else entries->items[i] = *name;
}

static Entries surviving_entries(const Cut *cut) {
    Entries entries = {0};
    for (size_t i = 0; i < cut->end; i++) {
        const DiskChange *change = &cut->log->changes[i];
        for (int j = 0; j < change->name_count; j++)
            if (cut->synced[2 * i + (size_t)j] || is_lucky(cut, i, change->names[j].folder, cut->chance->names))
                entries_set(&entries, &change->names[j]);
    }
    return entries;
}

/* -- Contents ------------------------------------------------------------------------------------------------------ */

typedef struct Contents {
    char *bytes;
    int64_t size, capacity;
} Contents;

static void contents_resize(Contents *contents, int64_t size) {
    if (size > contents->capacity) {
        char *larger = memory_allocate((size_t)(2 * size));
        if (contents->size) memcpy(larger, contents->bytes, (size_t)contents->size);
        free(contents->bytes);
        contents->bytes = larger;
        contents->capacity = 2 * size;
    }
    if (size < contents->size) memset(contents->bytes + size, 0, (size_t)(contents->size - size));
    contents->size = size;
}

static void apply_write(const Cut *cut, size_t at, Contents *contents) {
    const DiskChange *write = &cut->log->changes[at];
    const int64_t end = write->offset + write->bytes;
    if (end > contents->size && survives(cut, at, -1, cut->chance->sizes)) contents_resize(contents, end);
    for (int64_t from = write->offset, to; from < end; from = to) {
        to = int_min(end, (from / SECTOR_BYTES + 1) * SECTOR_BYTES);
        if (!survives(cut, at, from, cut->chance->contents)) continue;
        if (to > contents->size) contents_resize(contents, to);
        memcpy(contents->bytes + from, write->data + (from - write->offset), (size_t)(to - from));
    }
}

static Contents surviving_contents(const Cut *cut, int object) {
    Contents contents = {0};
    for (size_t i = 0; i < cut->end; i++) {
        const DiskChange *change = &cut->log->changes[i];
        if (change->object != object) continue;
        if (change->kind == DISK_WRITE) apply_write(cut, i, &contents);
        if (change->kind == DISK_RESIZE && survives(cut, i, -1, cut->chance->sizes)) contents_resize(&contents, change->bytes);
    }
    return contents;
}

/* -- The folder ---------------------------------------------------------------------------------------------------- */

static void restore(const Cut *cut, const Entries *entries, int object, const char *path) {
    if (!cut->log->is_folder[object]) {
        Contents contents = surviving_contents(cut, object);
        write_bytes(path, contents.bytes ? contents.bytes : "", (size_t)contents.size);
        free(contents.bytes);
        return;
    }
    assert_int_equal(mkdir(path, 0777), 0);
    for (size_t i = 0; i < entries->count; i++) {
        const DiskName *entry = &entries->items[i];
        if (entry->folder != object || entry->object < 0) continue;
        SCOPED_FREE char *below = memory_format("%s/%s", path, entry->name);
        restore(cut, entries, entry->object, below);
    }
}

void disk_log_cut(const DiskLog *log, size_t cut, const DiskChance *chance, const char *target) {
    Error error = {0};
    if (!file_remove(target, &error)) fail_msg("%s", error.message);
    SCOPED_FREE bool *synced = memory_allocate((2 * log->count + 1) * sizeof *synced);
    Cut state = {.log = log, .end = log->before + cut, .chance = chance, .synced = synced};
    find_synced(&state);
    Entries entries = surviving_entries(&state);
    restore(&state, &entries, DISK_ROOT, target);
    free(entries.items);
}

bool disk_log_is_complete(const DiskLog *log, const char *scratch) {
    const DiskChance everything = {.names = 1, .contents = 1, .sizes = 1};
    disk_log_cut(log, disk_log_count(log), &everything, scratch);
    SCOPED_FREE char *command = memory_format("diff -r '%s' '%s'", log->root, scratch);
    return system(command) == 0;
}

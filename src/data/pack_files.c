/* Which files the inputs of a packing are. A folder is listed with all folders in it, in byte order of paths. A link is
 * followed where it leads to a file or folder inside the folder that was named, so that no file is read from elsewhere
 * without being named. What is left out is counted, with the first by name. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack_internal.h"

static int compare_paths(const void *left, const void *right) {
    return strcmp(((const FileEntry *)left)->name, ((const FileEntry *)right)->name);
}

static void skip(Skipped *skipped, const char *path) {
    skipped->count++;
    if (skipped->first && strcmp(skipped->first, path) <= 0) return;
    free(skipped->first);
    skipped->first = memory_copy_string(path);
}

/* Whether `path` is `folder` or lies in it; both are real paths. */
static bool lies_in(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return starts_with(path, folder) && (!path[length] || path[length] == '/' || folder[length - 1] == '/');
}

static bool is_link(const char *path) {
    char start;
    return readlink(path, &start, 1) >= 0;
}

/* What a link leads to, if it may be followed from `root`, a real path; else FILE_ABSENT. No folder is entered by two
 * links, nor the root by any: so loops of links end. */
static FileKind follow(PackFiles *files, const char *root, const char *path) {
    SCOPED_FREE char *target = realpath(path, NULL);
    if (!target || !lies_in(target, root) || !strcmp(target, root)) return FILE_ABSENT;
    FileKind kind = file_kind(path, NULL);
    if (kind != FILE_FOLDER) return kind;
    if (file_list_has(&files->followed, target)) return FILE_ABSENT;
    file_list_add(&files->followed, memory_copy_string(target), kind);
    return kind;
}

/* The folders and files of one folder; a deeper one comes later, by `folders`. */
static bool list_folder(PackFiles *files, FileList *folders, const char *root, const char *path, Error *error) {
    SCOPED(file_list_free) FileList list;
    if (!file_list(path, &list, error)) return false;
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    for (FileEntry *entry = list.entries; entry < list.entries + list.count; entry++) {
        char *name = memory_format("%s%s%s", path, slash, entry->name);
        FileKind kind = entry->kind;
        Skipped *skipped = entry->name[0] == '.' ? &files->hidden : NULL;
        bool link = kind == FILE_OTHER && is_link(name);
        if (!skipped && link) kind = follow(files, root, name);
        if (!skipped && kind != FILE_FOLDER && kind != FILE_REGULAR)
            skipped = link && kind == FILE_ABSENT ? &files->outside : &files->irregular;
        if (skipped) skip(skipped, name);
        if (skipped) free(name);
        else file_list_add(kind == FILE_FOLDER ? folders : &files->list, name, kind);
    }
    return true;
}

static bool list_input(PackFiles *files, const char *input, Error *error) {
    FileKind kind = strcmp(input, "-") ? file_kind(input, NULL) : FILE_OTHER;
    if (kind == FILE_ABSENT)
        return error_set(error, ERROR_DATA, "cannot read %s: %s; name a text file or a folder of text files", input, strerror(errno));
    if (kind != FILE_FOLDER) {
        file_list_add(&files->list, memory_copy_string(input), kind);
        return true;
    }
    SCOPED_FREE char *root = realpath(input, NULL);
    SCOPED(file_list_free) FileList folders = {0};
    size_t first = files->list.count;
    file_list_add(&folders, memory_copy_string(input), kind);
    for (size_t i = 0; i < folders.count; i++)
        if (!list_folder(files, &folders, root ? root : input, folders.entries[i].name, error)) return error_recode(error, ERROR_DATA);
    if (files->list.count > first) qsort(files->list.entries + first, files->list.count - first, sizeof(FileEntry), compare_paths);
    return true;
}

static bool add_sizes(PackFiles *files, Error *error) {
    for (size_t i = 0; i < files->list.count; i++) {
        const char *path = files->list.entries[i].name;
        int64_t bytes = 0;
        if (strcmp(path, "-") && file_kind(path, &bytes) == FILE_ABSENT)
            return file_fail(error, "inspect", path) || error_recode(error, ERROR_DATA);
        files->bytes += bytes;
    }
    return true;
}

bool pack_files_list(PackFiles *files, const char *const *inputs, Error *error) {
    *files = (PackFiles){0};
    bool good = true;
    size_t count = 0, capacity = 0;
    for (; *inputs && good; inputs++) {
        good = list_input(files, *inputs, error);
        array_reserve(files->named, capacity, files->list.count + 1);
        for (bool named = file_kind(*inputs, NULL) != FILE_FOLDER; count < files->list.count; count++) files->named[count] = named;
    }
    return good && add_sizes(files, error);
}

void pack_files_warn(const PackFiles *files) {
    const Skipped *irregular = &files->irregular, *outside = &files->outside, *hidden = &files->hidden;
    if (irregular->count > 0)
        log_warn("skipped %" PRId64 " pipe%s or device%s, the first being %s", irregular->count, plural(irregular->count),
            plural(irregular->count), irregular->first);
    if (outside->count > 0)
        log_warn("skipped %" PRId64 " link%s that lead%s nowhere, back, or out of the folder, the first being %s; name what it leads to as "
                 "another INPUT if it is wanted",
            outside->count, plural(outside->count), outside->count == 1 ? "s" : "", outside->first);
    if (hidden->count > 0)
        log_info("left out %" PRId64 " hidden file%s or folder%s, the first being %s", hidden->count, plural(hidden->count),
            plural(hidden->count), hidden->first);
}

void pack_files_free(PackFiles *files) {
    file_list_free(&files->list);
    file_list_free(&files->followed);
    free(files->named);
    free(files->irregular.first);
    free(files->hidden.first);
    free(files->outside.first);
}

bool pack_list(const char *input, FileList *list, Error *error) {
    PackFiles files;
    bool listed = pack_files_list(&files, (const char *[]){input, NULL}, error);
    *list = listed ? files.list : (FileList){0};
    if (listed) files.list = (FileList){0};
    pack_files_free(&files);
    return listed;
}

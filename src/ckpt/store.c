/* Selects the kind of a store, and implements the common parts. A Store owns its kind's state until
 * it is closed. Called by the checkpoints. */
#include "ckpt/store_internal.h"

#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "ckpt/store_kind_internal.h"

Store *store_open(const char *where, Error *error) {
    if (strncmp(where, "s3://", 5) == 0) return store_s3_open(where, error);
    return store_files_open(where, error);
}

void store_close(Store *store) {
    if (!store) return;
    if (store->kind->close) store->kind->close(store);
    free(store->where);
    free(store);
}

StorePath store_format(const char *format, ...) {
    StorePath path;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path.text, sizeof path.text, format, arguments);
    va_end(arguments);
    return path;
}

StorePath store_path(const Store *store, const char *name) { return store_format("%s/%s", store->where, name); }

bool store_make(Store *store, Error *error) { return !store->kind->make || store->kind->make(store, error); }

bool store_put(Store *store, const char *name, const StoreSpan *spans, size_t count, Error *error) {
    return store->kind->put(store, store_path(store, name).text, spans, count, error);
}

bool store_create(Store *store, const char *name, const StoreSpan *span, bool *exists, Error *error) {
    *exists = false;
    return store->kind->create(store, store_path(store, name).text, span, exists, error);
}

bool store_object_open(Store *store, const char *name, StoreObject *object, Error *error) {
    *object = (StoreObject){.store = store, .path = store_path(store, name)};
    if (store->kind->object_open(object, error)) return true;
    store_object_close(object);
    return false;
}

bool store_object_read(const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    return object->store->kind->object_read(object, data, bytes, offset, error);
}

void store_object_close(StoreObject *object) { file_close(&object->file); }

int64_t store_block_bytes(const Store *store) { return store->kind->block_bytes; }

int store_parallelism(const Store *store) { return store->kind->parallelism ? store->kind->parallelism : omp_get_max_threads(); }

char *store_get(Store *store, const char *name, int64_t limit, int64_t *length, Error *error) {
    SCOPED(store_object_close) StoreObject object;
    if (!store_object_open(store, name, &object, error)) return NULL;
    *length = object.bytes;
    if (object.bytes > limit) {
        error_set(
            error, ERROR_CHECKPOINT, "%s has %lld bytes; the limit is %lld", object.path.text, (long long)object.bytes, (long long)limit);
        error_find(error, FINDING_DAMAGED);
        return NULL;
    }
    char *text = memory_allocate((size_t)object.bytes + 1);
    if (store_object_read(&object, text, object.bytes, 0, error)) return text;
    free(text);
    return NULL;
}

bool store_list(Store *store, const char *folder, FileList *list, Error *error) {
    *list = (FileList){0};
    if (store->kind->list(store, store_path(store, folder).text, list, error)) return true;
    file_list_free(list);
    return false;
}

bool store_link(Store *store, const char *from, const char *to, Error *error) {
    return store->kind->link(store, store_path(store, from).text, store_path(store, to).text, error);
}

bool store_remove(Store *store, const char *name, Error *error) { return store->kind->remove(store, store_path(store, name).text, error); }

bool store_clean(Store *store, const char *folder, const char *except, Error *error) {
    return !store->kind->clean || store->kind->clean(store, store_path(store, folder).text, except, error);
}

bool store_renames(const Store *store) { return store->kind->rename != NULL; }

bool store_rename(Store *store, const char *from, const char *to, const char *aside, Error *error) {
    StorePath place = store_path(store, aside ? aside : "");
    return store->kind->rename(store, store_path(store, from).text, store_path(store, to).text, aside ? place.text : NULL, error);
}

void store_append_free(const Store *store, char *text, size_t size) {
    char left[32];
    size_t length = strlen(text);
    double bytes = store_renames(store) ? file_free_bytes(store_path(store, "checkpoints").text) : -1;
    if (bytes < 0) return;
    log_format_bytes(bytes, left);
    snprintf(text + length, size - length, ", %s free", left);
}

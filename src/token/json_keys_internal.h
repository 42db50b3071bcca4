/* Keys of JSON objects by bytes and length. jansson has these functions since 2.14. They are
 * implemented here for 2.13, which Ubuntu 22.04 has, and which cannot read keys with a zero
 * byte. */
#pragma once

#include <jansson.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"

#if JANSSON_VERSION_HEX < 0x020e00
static inline json_t *json_object_getn(const json_t *object, const char *key, size_t length) {
    SCOPED_FREE char *text = memory_format("%.*s", (int)length, key);
    return strlen(text) == length ? json_object_get(object, text) : NULL;
}

/* Returns -1, like jansson, if the object or the value is NULL, or the key has a zero byte. */
static inline int json_object_setn_new(json_t *object, const char *key, size_t length, json_t *value) {
    SCOPED_FREE char *text = memory_format("%.*s", (int)length, key);
    if (strlen(text) == length) return json_object_set_new(object, text, value);
    json_decref(value);
    return -1;
}

#define json_object_keylen_foreach(object, key, length, value)                                                              \
    for (void *json_place = json_object_iter(object);                                                                        \
         json_place && ((key) = json_object_iter_key(json_place), (length) = strlen(key), (value) = json_object_iter_value(json_place)); \
         json_place = json_object_iter_next(object, json_place))
#endif

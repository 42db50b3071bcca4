/* Libraries that are opened at run time (dlopen), so that smelt starts on machines without them. A
 * library's functions are one macro table, `#define X_CALLS(CALL) CALL(name, symbol, arguments)
 * ...`. LIBRARY_FIELD makes the struct of function pointers from it, and LIBRARY_NAME the list of
 * names that fills the struct. These functions return int; for other types, LIBRARY_TYPED_FIELD
 * makes the struct from `CALL(name, type, arguments)`. */
#pragma once

#include <assert.h>
#include <dlfcn.h>
#include <stddef.h>

#define LIBRARY_FIELD(name, symbol, arguments) int(*name) arguments;
#define LIBRARY_TYPED_FIELD(name, type, arguments) type(*name) arguments;
#define LIBRARY_NAME(name, symbol, arguments) #symbol,

/* Opens the first of these files that exists; NULL ends the list. Returns NULL if none exists.
 * `flags` are dlopen's. */
void *library_open(const char *const *files, int flags);

/* Sets each pointer of the struct `functions` to the function whose name has the same index in
 * the array `names`; the name "" leaves a pointer NULL. Returns NULL, or the first name that the
 * library lacks. */
#define library_find(library, names, functions)                                              \
    ({                                                                                       \
        static_assert(sizeof(names) == sizeof *(functions), "one name for each pointer");    \
        library_find_all(library, names, sizeof(names) / sizeof *(names), functions);        \
    })
const char *library_find_all(void *library, const char *const *names, size_t count, void *functions);

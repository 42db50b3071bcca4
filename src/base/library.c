/* Opens libraries and looks up their functions. Owns nothing: callers close what they opened.
 * Called by the GPU back ends, communication, S3 stores, the live page and the health watch of a
 * node. */
#include "base/library.h"

#include <string.h>

void *library_open(const char *const *files, int flags) {
    void *library = NULL;
    for (; *files && !library; files++) library = dlopen(*files, flags);
    return library;
}

const char *library_find_all(void *library, const char *const *names, size_t count, void *functions) {
    for (size_t i = 0; i < count; i++) {
        void *function = *names[i] ? dlsym(library, names[i]) : NULL;
        if (!function && *names[i]) return names[i];
        memcpy((char *)functions + i * sizeof function, &function, sizeof function);
    }
    return NULL;
}

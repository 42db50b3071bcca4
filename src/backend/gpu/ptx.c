/* Compiles PTX to machine code with NVIDIA's libnvJitLink, opened at run time. Called by launch.c
 * from many threads. Function names include the version that introduced them; smelt uses the first
 * version of each major release. */
#include "backend/gpu/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "base/memory.h"

enum { INPUT_PTX = 2 }; /* nvJitLinkInputType */

/* (smelt's name, symbol without prefix and version, arguments) */
#define LINK_CALLS(CALL)                                                                          \
    CALL(create, Create, (void **link, uint32_t options, const char **texts))                     \
    CALL(destroy, Destroy, (void **link))                                                         \
    CALL(add, AddData, (void *link, int type, const void *data, size_t size, const char *name))   \
    CALL(complete, Complete, (void *link))                                                        \
    CALL(size, GetLinkedCubinSize, (void *link, size_t *size))                                    \
    CALL(get, GetLinkedCubin, (void *link, void *code))

struct PtxCompiler {
    void *library;
    struct { LINK_CALLS(LIBRARY_FIELD) } call;
};

PtxCompiler *ptx_open(void) {
#define NAME_13(name, symbol, arguments) "__nvJitLink" #symbol "_13_0",
#define NAME_12(name, symbol, arguments) "__nvJitLink" #symbol "_12_0",
    static const char *const files[] = {"libnvJitLink.so.13", "libnvJitLink.so.12"};
    static const char *const names[][6] = {{LINK_CALLS(NAME_13)}, {LINK_CALLS(NAME_12)}};
    PtxCompiler *compiler = memory_allocate(sizeof *compiler);
    for (int i = 0; i < 2; i++) {
        compiler->library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        if (compiler->library && !library_find(compiler->library, names[i], &compiler->call)) return compiler;
        if (compiler->library) dlclose(compiler->library);
    }
    free(compiler);
    return NULL;
}

void ptx_close(PtxCompiler *compiler) {
    if (compiler) dlclose(compiler->library);
    free(compiler);
}

void *ptx_compile(const PtxCompiler *compiler, const char *ptx, const char *target) {
    void *link = NULL, *code = NULL;
    char architecture[32];
    const char *options[] = {architecture, "-O3"};
    size_t size = 0;
    /* The library compiles relocatable code, in which setmaxnreg has no effect, so the driver
     * compiles such kernels. */
    if (strstr(ptx, "setmaxnreg")) return NULL;
    snprintf(architecture, sizeof architecture, "-arch=%s", target);
    if (compiler->call.create(&link, 2, options) != 0) return NULL;
    if (compiler->call.add(link, INPUT_PTX, ptx, strlen(ptx) + 1, "kernel") == 0 && compiler->call.complete(link) == 0 &&
        compiler->call.size(link, &size) == 0 && size) {
        code = memory_allocate(size);
        if (compiler->call.get(link, code) != 0) {
            free(code);
            code = NULL;
        }
    }
    compiler->call.destroy(&link);
    return code;
}

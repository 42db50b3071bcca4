/* Compiles PTX to machine code by NVIDIA's libnvJitLink, opened at run time. Called by launch.c, from many threads. The
 * library's function names carry the version that introduced them; those of the first version of each major are
 * used. */
#include "backend/gpu/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { INPUT_PTX = 2 }; /* nvJitLinkInputType */

struct PtxCompiler {
    void *library;
    int (*create)(void **link, uint32_t options, const char **texts);
    int (*destroy)(void **link);
    int (*add)(void *link, int type, const void *data, size_t size, const char *name);
    int (*complete)(void *link);
    int (*size)(void *link, size_t *size);
    int (*get)(void *link, void *code);
};

static bool find_functions(PtxCompiler *compiler, int version) {
    struct {
        const char *name;
        void *function;
    } symbols[] = {{"Create", &compiler->create}, {"Destroy", &compiler->destroy}, {"AddData", &compiler->add},
        {"Complete", &compiler->complete}, {"GetLinkedCubinSize", &compiler->size}, {"GetLinkedCubin", &compiler->get}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        char name[64];
        snprintf(name, sizeof name, "__nvJitLink%s_%d_0", symbols[i].name, version);
        void *symbol = dlsym(compiler->library, name);
        if (!symbol) return false;
        memcpy(symbols[i].function, &symbol, sizeof symbol);
    }
    return true;
}

PtxCompiler *ptx_open(void) {
    PtxCompiler compiler = {0};
    for (int version = 13; version >= 12; version--) {
        char name[32];
        snprintf(name, sizeof name, "libnvJitLink.so.%d", version);
        compiler.library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (compiler.library && find_functions(&compiler, version)) {
            PtxCompiler *made = memory_allocate(sizeof *made);
            *made = compiler;
            return made;
        }
        if (compiler.library) dlclose(compiler.library);
    }
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
    /* The library compiles relocatable code, where setmaxnreg has no effect and the kernel spills: the driver compiles
     * it. */
    if (strstr(ptx, "setmaxnreg")) return NULL;
    snprintf(architecture, sizeof architecture, "-arch=%s", target);
    if (compiler->create(&link, 2, options) != 0) return NULL;
    if (compiler->add(link, INPUT_PTX, ptx, strlen(ptx) + 1, "kernel") == 0 && compiler->complete(link) == 0 &&
        compiler->size(link, &size) == 0 && size) {
        code = memory_allocate(size);
        if (compiler->get(link, code) != 0) {
            free(code);
            code = NULL;
        }
    }
    compiler->destroy(&link);
    return code;
}

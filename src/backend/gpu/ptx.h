/* PTX to machine code by NVIDIA's libnvJitLink, where it is installed: the driver compiles one kernel after another, this library as many at once as there
 * are threads. Opened at run time; without it the driver does the work. */
#pragma once

#include <stddef.h>

typedef struct PtxCompiler PtxCompiler;

/* NULL when the library is not there. */
PtxCompiler *ptx_open(void);
void ptx_close(PtxCompiler *compiler);
/* Machine code for `target`, such as sm_90a; the caller frees. NULL when the text is not for the library, but for the driver. May be called by several threads at once. */
void *ptx_compile(const PtxCompiler *compiler, const char *ptx, const char *target);

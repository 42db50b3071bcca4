/* Memory. A refused allocation ends the process by design: smelt plans its large memory first and
 * refuses a plan that does not fit, so a failing small allocation means that the machine is in
 * trouble. main decides how the process ends (memory_on_refusal). Large arenas come from
 * memory_map, which can fail and reports it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Receives the bytes that the system refused and ends the process; must not allocate. If none is
 * set (tests, tools), memory_refused prints a message and calls abort(), the only abort() of the
 * program. */
typedef void MemoryRefused(size_t bytes);
/* Called by main before other threads start. */
void memory_on_refusal(MemoryRefused *handler);

void *memory_allocate(size_t bytes);                                                /* zeroed */
void *memory_resize(void *block, size_t bytes);                                     /* like realloc */
_Noreturn void memory_refused(size_t bytes);                                        /* for callers of other allocators */
char *memory_format(const char *format, ...) __attribute__((format(printf, 1, 2))); /* a new string; the caller frees */
char *memory_copy_string(const char *string);

/* Maps zeroed pages (so at least 64-byte aligned) and requests huge pages; 0 bytes give a valid
 * block. NULL with ERROR_MEMORY if refused. Linux promises pages before it has them: check
 * memory_available first. */
void *memory_map(size_t bytes, Error *error);
/* Maps memory that processes share: of a memfd or, with descriptor -1, with children forked
 * later. */
void *memory_map_shared(int descriptor, size_t bytes, Error *error);
void memory_unmap(void *block, size_t bytes); /* the same bytes as mapped; NULL is fine */

/* Returns the bytes that this process may still take: the minimum of available RAM and the rest of
 * its cgroups' limits (version 1 or 2, with all parents); -1 if unknown. */
int64_t memory_available(void);
/* Like memory_available, from the /proc and /sys below `root`: for tests and containers that mount
 * the host's elsewhere. */
int64_t memory_available_under(const char *root);
/* ERROR_MEMORY "NAME needs ... and ... are available: ADVICE" if `bytes` exceed
 * memory_available(). */
bool memory_check(int64_t bytes, const char *name, const char *advice, Error *error);
/* Returns the peak resident set of this process in bytes; -1 if unknown. */
int64_t memory_peak(void);

/* The limits of a process that runs generated code. docs/rewards.md lists what it can and cannot do. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct SandboxLimits {
    int64_t cpu_seconds, memory_bytes, file_bytes; /* file_bytes: of its output, since it can write no other file */
} SandboxLimits;

/* Limits this process permanently; `limits` is a SandboxLimits. Returns NULL, or the reason of a failure,
 * after which the caller must not run a program. Called in a child, before it starts a program. */
const char *sandbox_enter(void *limits);

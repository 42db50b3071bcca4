/* Memory: the allocators of smelt, and the system's memory limits. Blocks belong to the caller.
 * Called from everywhere; the planner calls memory_available before it sizes arenas. Keeps one
 * pointer for the whole process: the handler of refused memory, which main sets before anything
 * else runs. */
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

static MemoryRefused *refused_handler;

void memory_on_refusal(MemoryRefused *handler) { refused_handler = handler; }

/* Must not allocate; the handler must not either. */
_Noreturn void memory_refused(size_t bytes) {
    if (refused_handler) refused_handler(bytes);
    fprintf(stderr, "error: out of memory: cannot allocate %zu bytes\n", bytes);
    abort();
}

void *memory_allocate(size_t bytes) {
    void *block = calloc(1, bytes ? bytes : 1);
    if (!block) memory_refused(bytes);
    return block;
}

void *memory_resize(void *block, size_t bytes) {
    void *resized = realloc(block, bytes ? bytes : 1);
    if (!resized) memory_refused(bytes);
    return resized;
}

char *memory_format(const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) memory_refused(strlen(format));
    return text;
}

char *memory_copy_string(const char *string) {
    size_t bytes = strlen(string) + 1;
    return memcpy(memory_allocate(bytes), string, bytes);
}

/* Rounds up to whole pages, at least one, so that an empty arena is a valid block; 0 on
 * overflow. */
static size_t page_bytes(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), rounded;
    if (__builtin_add_overflow(bytes ? bytes : 1, page - 1, &rounded)) return 0;
    return rounded / page * page;
}

void *memory_map(size_t bytes, Error *error) {
    size_t mapped = page_bytes(bytes);
    void *block = MAP_FAILED;
    errno = ENOMEM;
    if (mapped) /* an arena may exceed the memory, if only part of it is touched */
        block = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) {
        const char *reason = strerror(errno);
        error_set(error, ERROR_MEMORY,
            "cannot allocate %zu bytes of memory (%s); %" PRId64 " bytes are available: use a smaller model or microbatch, or free memory",
            bytes, reason, memory_available());
        return NULL;
    }
    madvise(block, mapped, MADV_HUGEPAGE); /* a hint: kernels without huge pages refuse it without harm */
    return block;
}

void *memory_map_shared(int descriptor, size_t bytes, Error *error) {
    int flags = MAP_SHARED | (descriptor < 0 ? MAP_ANONYMOUS : 0);
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (block != MAP_FAILED) return block;
    error_set(error, ERROR_MEMORY, "cannot allocate %zu bytes of shared memory: %s", bytes, strerror(errno));
    return NULL;
}

void memory_unmap(void *block, size_t bytes) {
    if (block) munmap(block, page_bytes(bytes));
}

enum { KERNEL_TEXT_BYTES = 1 << 14 }; /* more than /proc/meminfo and memory.stat have */

/* Returns the number after `key` at the start of a line of a kernel text file ("" matches the first
 * line); -1 if the file, the line or a number is missing ("max"). */
static int64_t kernel_value(const char *path, const char *key) {
    char text[KERNEL_TEXT_BYTES];
    int64_t value;
    if (file_read_start(path, text, sizeof text) < 0) return -1;
    for (char *line = text, *end; *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        if (strncmp(line, key, strlen(key)) == 0) return sscanf(line + strlen(key), "%" SCNd64, &value) == 1 ? value : -1;
    }
    return -1;
}

typedef struct ControlGroupFiles { const char *mount, *limit, *usage, *reclaimable; } ControlGroupFiles;
static const ControlGroupFiles control_group_v1 = {
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
static const ControlGroupFiles control_group_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};

/* Returns the memory that one group still allows, with reclaimable page cache counted as free; -1
 * if it has no limit. */
static int64_t group_available(const char *root, const ControlGroupFiles *files, const char *group) {
    char path[4096];
    int64_t values[3];
    const char *names[3] = {files->limit, files->usage, "memory.stat"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, names[i]);
        values[i] = kernel_value(path, i == 2 ? files->reclaimable : "");
    }
    if (values[0] < 0 || values[1] < 0) return -1;
    int64_t used = values[1] - (values[2] > 0 ? values[2] : 0);
    return used >= values[0] ? 0 : values[0] - (used > 0 ? used : 0);
}

static int64_t least_known(int64_t a, int64_t b) { return a < 0 ? b : b < 0 || a < b ? a : b; }

/* The group itself or any parent may have a limit. Inside a container the path may be the host's
 * and not exist; then only the root, which is the container's own group, answers. */
static int64_t group_and_parents_available(const char *root, const ControlGroupFiles *files, char *group) {
    int64_t available = -1;
    for (;;) {
        available = least_known(available, group_available(root, files, group));
        char *slash = strrchr(group, '/');
        if (!slash) return available;
        *slash = '\0';
    }
}

int64_t memory_available_under(const char *root) {
    char path[4096], text[KERNEL_TEXT_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    int64_t available = kernel_value(path, "MemAvailable:");
    if (available >= 0) available *= 1024;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    file_read_start(path, text, sizeof text);
    for (char *line, *rest = text; (line = strsep(&rest, "\n"));) { /* "4:memory:/path" or, version 2, "0::/path" */
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        controllers++;
        if (*controllers == '\0') available = least_known(available, group_and_parents_available(root, &control_group_v2, group));
        else if (strcmp(controllers, "memory") == 0)
            available = least_known(available, group_and_parents_available(root, &control_group_v1, group));
    }
    return available;
}

int64_t memory_available(void) { return memory_available_under(""); }

bool memory_check(int64_t bytes, const char *name, const char *advice, Error *error) {
    int64_t available = memory_available();
    if (available < 0 || bytes <= available) return true;
    char need[32], have[32];
    log_format_bytes((double)bytes, need);
    log_format_bytes((double)available, have);
    return error_set(error, ERROR_MEMORY, "%s needs %s, but only %s are available: %s", name, need, have, advice);
}

int64_t memory_peak(void) {
    int64_t kibibytes = kernel_value("/proc/self/status", "VmHWM:");
    return kibibytes < 0 ? -1 : kibibytes * 1024;
}

/* The GPUs that are emulated, and what differs between them. */
#include <string.h>

#include "emulator.h"

static const Architecture architectures[] = {
    {"gfx942", "AMD Instinct MI300X (emulated)", .machine = 0x4c, .minor = 4, .compute_units = 304, .lds_bytes = 64 << 10},
    {"gfx90a", "AMD Instinct MI250X (emulated)", .machine = 0x3f, .minor = 0, .compute_units = 110, .lds_bytes = 64 << 10,
        .buffer_scratch = true},
    {"gfx950", "AMD Instinct MI355X (emulated)", .machine = 0x4f, .minor = 5, .compute_units = 256, .lds_bytes = LDS_BYTES,
        .ocp_fp8 = true},
};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

const Architecture *architecture_named(const char *name) {
    for (int i = 0; name && i < ARCHITECTURES; i++)
        if (!strcmp(architectures[i].name, name)) return &architectures[i];
    return architectures;
}

const Architecture *architecture_of_machine(unsigned machine) {
    for (int i = 0; i < ARCHITECTURES; i++)
        if (architectures[i].machine == machine) return &architectures[i];
    return NULL;
}

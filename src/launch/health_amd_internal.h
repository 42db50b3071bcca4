/* What AMD's management library (librocm_smi64) counts and measures on each GPU: memory errors of every block,
 * errors of xGMI, heat, throttling. A part of health_internal.h. */
#pragma once

#include <stdbool.h>

typedef struct HealthAmd HealthAmd;
typedef void (*HealthReport)(void *context, const char *line);

/* Opens the library below `root` ("": wherever the system has it) and notes all counters. NULL when it is not there,
 * or knows no GPU. */
HealthAmd *health_amd_open(const char *root);
/* Reports what grew or began since the last look; returns how many lines. */
int health_amd_look(HealthAmd *amd, HealthReport report, void *context);
void health_amd_close(HealthAmd *amd); /* NULL is fine */

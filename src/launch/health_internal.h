/* Counters that show failing hardware: memory errors (EDAC, AMD RAS, rocm-smi, NVML), links that went down and
 * packets with errors (Ethernet, InfiniBand and RoCE, xGMI), heat. The supervisor reads them every few seconds and
 * reports what grew. */
#pragma once

#include <stddef.h>

typedef struct Health Health;

/* Notes all counters below `root` ("": this machine; tests give a folder). Never NULL; a counter that is not there
 * is not watched. */
Health *health_open(const char *root);
/* Calls `report` with a line for everything that grew since the last look or is too hot now; returns how many lines. */
int health_look(Health *health, void (*report)(void *context, const char *line), void *context);
void health_close(Health *health); /* NULL is fine */

/* Counters that reveal failing hardware: memory errors (EDAC, AMD RAS, rocm-smi, NVML), links that
 * went down and packets with errors (Ethernet, InfiniBand and RoCE, xGMI), heat. The supervisor
 * reads them every few seconds and reports increases. */
#pragma once

/* Receives a line about each counter that grew and each condition that began. */
typedef struct HealthListener {
    void (*report)(void *context, const char *line); /* NULL: lines are dropped */
    void *context;
} HealthListener;

typedef struct Health Health;

/* Notes all counters below `root` ("": this machine; tests pass a folder). Never NULL. A missing
 * counter is not watched. */
Health *health_open(const char *root);
/* Reports every counter that grew since the last call, and all parts that are too hot now. */
void health_look(Health *health, HealthListener listener);
void health_close(Health *health); /* NULL is fine */

/* For the sources of counters: reports a line of at most 511 bytes. */
void health_report(HealthListener listener, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* -- AMD's management library: memory errors of every block, errors of xGMI, heat, throttling (health_amd.c) --------- */

typedef struct HealthAmd HealthAmd;

/* Opens librocm_smi64 below `root` ("": the system's own) and notes all counters. Returns NULL if
 * the library is missing or knows no GPU. */
HealthAmd *health_amd_open(const char *root);
void health_amd_look(HealthAmd *amd, HealthListener listener);
void health_amd_close(HealthAmd *amd); /* NULL is fine */

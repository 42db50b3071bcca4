/* The numbers of runs for systems that watch many machines: the text format of Prometheus, and OTLP's JSON. Both read one
 * table of names: a number of metrics.jsonl is exported once it has a row. */
#pragma once

#include "run/run_state.h"

typedef struct ExportedRun {
    const char *name;
    const RunState *state;
} ExportedRun;

/* Prometheus' text format, version 0.0.4. Unknown numbers are left out. The caller frees. */
char *export_prometheus(const ExportedRun *runs, int count);
/* The body of a POST to .../v1/metrics. The caller frees. */
char *export_otlp(const ExportedRun *run, double now);
/* The status of a TrainJob of Kubeflow Trainer v2: progress, seconds left, and the metrics as strings. The caller frees. */
char *export_kubeflow(const ExportedRun *run, double now);
/* Returns whether nobody needs to look at the run: it is not silent, failed or stopped. */
bool export_is_healthy(const RunState *state);
#define EXPORT_PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

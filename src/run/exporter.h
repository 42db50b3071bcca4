/* Exports the numbers of a training while it trains, from a thread of rank 0: over HTTP (metrics.listen: /metrics and
 * /healthz), as a file for node_exporter's textfile collector (metrics.file), and by POST to an
 * OpenTelemetry collector (metrics.otlp) and to the status server of a TrainJob (if Kubeflow Trainer sets its variables).
 * The thread reads the run folder as `smelt watch` does, so training never waits. */
#pragma once

#include "config/config.h"
#include "http/http.h"
#include "run/export.h"

typedef struct Exporter Exporter;

/* Returns false after a failure: ERROR_USAGE if the address is unavailable or a library is missing. *exporter is NULL if
 * nothing is to be exported. `config` must outlive it. */
bool exporter_open(const Config *config, Exporter **exporter, Error *error);
/* Exports the last numbers. NULL is fine. */
void exporter_close(Exporter *exporter);
/* Answers /metrics and /healthz with the numbers of these runs. On other addresses than the loopback any host name is
 * served, because Prometheus asks by the names of its targets. */
enum MHD_Result exporter_answer(const HttpListener *listener, const HttpCall *call, const ExportedRun *runs, int count);

/* The page of runs, live in a browser: an HTTP server (libmicrohttpd, which is opened at run time) that answers
 *
 *     /                the page, with a script that asks for changes every second
 *     /watch.js        the script
 *     /metrics         the numbers of the runs, for Prometheus
 *     /healthz         200, or 503 if a run is silent, failed or stopped
 *     /changes?from=N  {"version": M, "parts": {"loss": "<section>..."}}: the parts that changed
 *     after version N
 *
 * and nothing else: no path is a file. The answers forbid other scripts and other hosts. A request
 * must name a host that can only be this server: an address, localhost, or the name that it was
 * started with. So a page of another site cannot read data by DNS rebinding. */
#pragma once

#include "base/stop.h"
#include "report/report.h"

typedef struct Watch Watch;

/* `report` must outlive the watch, which updates it. A report of a folder also serves pages of its runs: /?runs=a/b.
 * Listens at `host` alone (a name or an address); port 0: any free one. Returns NULL with ERROR_USAGE if the library is missing or the address is unavailable. */
Watch *watch_open(Report *report, const char *host, int port, Error *error);
void watch_close(Watch *watch);
/* Updates the report, and the pages of chosen runs that browsers show. */
void watch_update(Watch *watch);
const char *watch_url(const Watch *watch); /* "http://127.0.0.1:6160/" */
/* Answers for `seconds`, or until a stop is requested. Starts no thread. */
void watch_serve(Watch *watch, double seconds, const StopRequest *stop);

/* The page of runs, live in a browser: an HTTP server (libmicrohttpd, which is opened at run time) that answers
 *
 *     /                the page, with a script that asks for changes each second
 *     /watch.js        the script
 *     /changes?from=N  {"version": M, "parts": {"loss": "<section>..."}}: the parts that became others after version N
 *
 * and nothing else: no path is a file. The answers forbid scripts but that one, and other hosts. A request must name a
 * host that can only be this server (an address, localhost, or the name that it was started with), so that a page of
 * another site whose name is made to lead here (DNS rebinding) reads nothing. */
#pragma once

#include "base/stop.h"
#include "report/report.h"

typedef struct Watch Watch;

/* `report` outlives it. Listens at `host` alone (a name or an address); port 0: any that is free. ERROR_USAGE when the
 * library is missing or the address cannot be had; NULL. */
Watch *watch_open(const Report *report, const char *host, int port, Error *error);
void watch_close(Watch *watch);
const char *watch_url(const Watch *watch); /* "http://127.0.0.1:6160/" */
/* Answers for so long, or until a stop is asked for. Starts no thread. */
void watch_serve(Watch *watch, double seconds, const StopRequest *stop);

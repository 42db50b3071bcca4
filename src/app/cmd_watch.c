/* `smelt watch RUN...`: the report page, live, until it is interrupted. */
#include <stddef.h>
#include <stdio.h>

#include "app/command.h"
#include "app/process.h"
#include "base/log.h"
#include "report/report.h"
#include "report/watch.h"

typedef struct WatchOptions {
    const char *host;
    int64_t port;
} WatchOptions;

#define FIELD(name) offsetof(WatchOptions, name)
static const Option rows[] = {
    STRING_OPTION(host, "127.0.0.1", "", "address of this machine to listen at; others than the default let other machines read the page"),
    INT_OPTION(port, "6160", 0, 65535, "", "port to listen at; 0: any that is free"),
};
static const OptionTable table = OPTION_TABLE(rows);

static const double update_seconds = 1;

static bool watch_in_browser(Report *report, const WatchOptions *options, const StopRequest *stop, Error *error) {
    Watch *watch = watch_open(report, options->host, (int)options->port, error);
    if (!watch) return false;
    report_update(report);
    printf("open %s in a browser; Ctrl-C ends\n", watch_url(watch));
    fflush(stdout);
    while (stop->count == 0) {
        watch_serve(watch, update_seconds, stop);
        report_update(report);
    }
    watch_close(watch);
    return true;
}

static bool run(Invocation *invocation, Error *error) {
    static StopRequest stop;
    Report *report = report_open(invocation->words, invocation->word_count, error);
    if (!report) return false;
    stop.heeded = 1;
    process_catch_stop(&stop, true);
    bool good = watch_in_browser(report, invocation->options, &stop, error);
    report_close(report);
    return good;
}

const Command command_watch = {
    .name = "watch",
    .summary = "show a run, or several beside each other, while they train",
    .words = "RUN...",
    .explanation =
        "Serves the page of smelt report, which follows the run each second, to browsers of this machine. From another machine:\n"
        "ssh -L 6160:127.0.0.1:6160 MACHINE, and open http://127.0.0.1:6160/ there.\n",
    .table = &table,
    .options_size = sizeof(WatchOptions),
    .run = run,
};

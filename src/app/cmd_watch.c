/* `smelt watch RUN...`: the live report page, in a browser or in the terminal, until it is
 * interrupted. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/command.h"
#include "app/process.h"
#include "app/screen.h"
#include "base/scope.h"
#include "report/report.h"
#include "report/run_index.h"
#include "report/terminal.h"
#include "report/watch.h"

typedef struct WatchOptions {
    const char *host;
    int64_t port;
    bool terminal;
} WatchOptions;

#define FIELD(name) offsetof(WatchOptions, name)
static const Option rows[] = {
    STRING_OPTION(host, "127.0.0.1", "", "address to listen on; any other than the default lets other machines read the page"),
    INT_OPTION(port, "6160", 0, 65535, "", "port to listen on; 0: any free port"),
    BOOL_OPTION(terminal, "false", "show the runs in this terminal; q quits"),
};
static const OptionTable table = OPTION_TABLE(rows);

static const double update_seconds = 1;

static bool watch_in_browser(Report *report, const WatchOptions *options, const StopRequest *stop, Error *error) {
    Watch *watch = watch_open(report, options->host, (int)options->port, error);
    if (!watch) return false;
    watch_update(watch);
    printf("open %s in a browser; Ctrl-C ends\n", watch_url(watch));
    fflush(stdout);
    while (stop->count == 0) {
        watch_serve(watch, update_seconds, stop);
        watch_update(watch);
    }
    watch_close(watch);
    return true;
}

static bool watch_in_terminal(Report *report, const StopRequest *stop, Error *error) {
    Screen screen;
    const bool color = !getenv("NO_COLOR");
    report_update(report);
    if (!screen_open(&screen, error)) return false;
    for (int key = 0; stop->count == 0 && key != 'q';) {
        SCOPED_FREE char *frame = terminal_frame(report, screen.columns, screen.rows, color);
        screen_show(frame);
        key = screen_wait(&screen, update_seconds, stop);
        report_update(report);
    }
    screen_close(&screen);
    return true;
}

static bool run_watch(Invocation *invocation, Error *error) {
    static StopRequest stop;
    const WatchOptions *options = invocation->options;
    bool folder = invocation->word_count == 1 && run_index_is_folder(invocation->words[0]);
    if (folder && options->terminal)
        return error_set(error, ERROR_USAGE, "%s is a folder of runs, and terminal=true shows up to %d runs: name them",
            invocation->words[0], REPORT_RUNS);
    Report *report = folder ? report_open_folder(invocation->words[0]) : report_open(invocation->words, invocation->word_count, error);
    if (!report) return false;
    stop.heeded = 1;
    process_catch_stop(&stop, true);
    bool good = options->terminal ? watch_in_terminal(report, &stop, error) : watch_in_browser(report, options, &stop, error);
    report_close(report);
    return good;
}

const Command command_watch = {
    .name = "watch",
    .summary = "show a run, several side by side, or a folder of runs, while they train",
    .words = "RUN...",
    .usage = "RUN...|FOLDER [key=value ...]",
    .most_words = REPORT_RUNS,
    .explanation =
        "Serves the page of smelt report to browsers on this machine and updates it every second. For a folder of runs, its first page\n"
        "lists them, and runs are chosen there. /metrics and /healthz are for Prometheus. From another machine, run\n"
        "ssh -L 6160:127.0.0.1:6160 MACHINE, and open http://127.0.0.1:6160/ there. terminal=true shows the runs in this terminal.\n",
    .table = &table,
    .options_size = sizeof(WatchOptions),
    .run = run_watch,
};

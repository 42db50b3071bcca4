/* `smelt report RUN [out=FILE]` */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/options.h"
#include "app/command.h"
#include "report/report.h"

typedef struct ReportOptions { const char *out; } ReportOptions;

#define FIELD(name) offsetof(ReportOptions, name)
static const Option rows[] = {
    STRING_OPTION(out, "", "", "the page; empty: RUN/report.html"),
};
static const OptionTable table = OPTION_TABLE(rows);

static bool run(Invocation *invocation, Error *error) {
    const char *folder = invocation->words[0], *out = ((const ReportOptions *)invocation->options)->out;
    SCOPED_FREE char *path = *out ? memory_copy_string(out) : memory_format("%s/report.html", folder);
    char size[32];
    ReportResult result;
    if (!report_write(folder, path, &result, error)) return false;
    if (result.ignored > 0)
        log_warn("%lld line%s of %s/metrics.jsonl could not be used and %s left out", (long long)result.ignored,
            result.ignored == 1 ? "" : "s", folder, result.ignored == 1 ? "was" : "were");
    log_format_bytes((double)result.bytes, size);
    printf("wrote %s (%s)\n", path, size);
    return true;
}

const Command command_report = {
    .name = "report",
    .summary = "write a run's report page: RUN",
    .words = "RUN",
    .explanation = "Writes what a run folder tells as one page of HTML with everything in it. It may be run while the run trains.\n",
    .table = &table,
    .options_size = sizeof(ReportOptions),
    .run = run,
};

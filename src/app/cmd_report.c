/* `smelt report RUN... [out=FILE]` */
#include <stddef.h>
#include <stdio.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/options.h"
#include "base/strings.h"
#include "app/command.h"
#include "report/report.h"

typedef struct ReportOptions { const char *out; } ReportOptions;

#define FIELD(name) offsetof(ReportOptions, name)
static const Option rows[] = {
    STRING_OPTION(out, "", "", "output file; empty: RUN/report.html, or compare.html in this folder for several runs"),
};
static const OptionTable table = OPTION_TABLE(rows);

static void warn_of_ignored(const char *run, int64_t lines) {
    if (lines > 0) log_warn("ignored %lld invalid line%s of %s/metrics.jsonl", (long long)lines, plural(lines), run);
}

static bool run_report(Invocation *invocation, Error *error) {
    const char *const *runs = invocation->words, *out = ((const ReportOptions *)invocation->options)->out;
    const int count = invocation->word_count;
    SCOPED_FREE char *path = *out        ? memory_copy_string(out)
                             : count > 1 ? memory_copy_string("compare.html")
                                         : memory_format("%s/report.html", *runs);
    char size[32];
    ReportResult result;
    if (!report_write(runs, count, path, &result, error)) return false;
    for (int i = 0; i < count; i++) warn_of_ignored(runs[i], result.ignored[i]);
    log_format_bytes((double)result.bytes, size);
    printf("wrote %s (%s)\n", one_line(path), size);
    return true;
}

const Command command_report = {
    .name = "report",
    .summary = "write a report page of a run, or of several side by side",
    .words = "RUN...",
    .most_words = REPORT_RUNS,
    .explanation = "Writes one self-contained HTML page about a run folder. It also works while the run trains.\n"
                   "For two to eight runs, the page compares figures, differing settings and curves.\n",
    .table = &table,
    .options_size = sizeof(ReportOptions),
    .run = run_report,
};

/* `smelt report RUN... [out=FILE]` */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

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
    STRING_OPTION(out, "", "", "the page; empty: RUN/report.html, and of several runs compare.html here"),
};
static const OptionTable table = OPTION_TABLE(rows);

static void warn_of_ignored(const char *run, int64_t lines) {
    if (lines > 0)
        log_warn("%lld line%s of %s/metrics.jsonl could not be used and %s left out", (long long)lines, plural(lines), run,
            lines == 1 ? "was" : "were");
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
    .summary = "write the page of a run, or of several beside each other",
    .words = "RUN...",
    .most_words = REPORT_RUNS,
    .explanation = "Writes what a run folder tells as one page of HTML with everything in it. It may be run while the run trains.\n"
                   "Of two to eight runs the page compares figures, settings that differ, and curves.\n",
    .table = &table,
    .options_size = sizeof(ReportOptions),
    .run = run_report,
};

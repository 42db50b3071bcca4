/* `smelt report RUN [out=FILE]` */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "app/arguments.h"
#include "app/commands.h"
#include "report/report.h"

typedef struct ReportOptions { const char *out; } ReportOptions;

#define FIELD(name) offsetof(ReportOptions, name)
static const Option rows[] = {
    STRING_OPTION(out, "", "", "the page; empty: RUN/report.html"),
};
static const OptionTable table = OPTION_TABLE(rows);

static void print_help(FILE *file) {
    fprintf(file, "Usage: smelt report RUN [out=FILE]\n\n"
                  "Writes what a run folder tells as one page of HTML with everything in it. It may be run while the run trains.\n\n");
    options_print_help(&table, file);
}

static bool write_report(const char *run, const char *out, Error *error) {
    char *path = *out ? memory_copy_string(out) : memory_format("%s/report.html", run), size[32];
    ReportResult result;
    bool good = report_write(run, path, &result, error);
    if (good) {
        if (result.ignored > 0)
            log_warn("%lld line%s of %s/metrics.jsonl could not be used and %s left out", (long long)result.ignored,
                result.ignored == 1 ? "" : "s", run, result.ignored == 1 ? "was" : "were");
        log_format_bytes((double)result.bytes, size);
        printf("wrote %s (%s)\n", path, size);
    }
    free(path);
    return good;
}

/* RUN comes first, so that a folder whose name holds '=' needs no special spelling. */
static bool run_report(int argc, char **argv, ReportOptions *options, OptionStrings *strings, Error *error) {
    for (int i = 2; i < argc; i++) {
        if (!strchr(argv[i], '='))
            return error_set(error, ERROR_USAGE, "'%s' is one argument too many: smelt report takes RUN [out=FILE]", argv[i]);
        if (!options_set(&table, options, strings, argv[i], error)) return false;
    }
    return write_report(argv[1], options->out, error);
}

int cmd_report(int argc, char **argv) {
    bool help = arguments_want_help(argc, argv);
    if (argc < 2 || help) {
        print_help(help ? stdout : stderr);
        return help ? ERROR_NONE : ERROR_USAGE;
    }
    ReportOptions options = {0};
    OptionStrings strings = {0};
    Error error = {0};
    options_defaults(&table, &options, &strings);
    bool good = run_report(argc, argv, &options, &strings, &error);
    options_free_strings(&strings);
    return good ? 0 : cmd_fail(&error);
}

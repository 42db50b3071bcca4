/* How the rows of a table are explained: --help. Called by commands. */
#include <string.h>

#include "base/options.h"
#include "base/options_internal.h"
#include "base/wrap.h"

void options_explain(const Option *option, char text[OPTIONS_EXPLANATION]) {
    char limits[512];
    options_format_limits(option, limits);
    bool both = *option->unit && *limits, any = *option->unit || *limits;
    snprintf(
        text, OPTIONS_EXPLANATION, "%s%s%s%s%s%s", option->help, any ? " (" : "", option->unit, both ? ", " : "", limits, any ? ")" : "");
}

void options_print_help(const OptionTable *table, FILE *file) {
    enum { EXPLANATION_COLUMN = 30 };
    for (size_t i = 0; i < table->count; i++) {
        const Option *option = &table->rows[i];
        int group = (int)options_group_length(option->name);
        char text[OPTIONS_EXPLANATION];
        if (options_opens_group(table, i)) fprintf(file, "%s%.*s\n", i ? "\n" : "", group ? group : 7, group ? option->name : "general");
        int column = fprintf(file, "  %s=%s", option->name, option->initial);
        bool fits = column <= EXPLANATION_COLUMN - 2;
        fprintf(file, "%s%*s", fits ? "" : "\n", EXPLANATION_COLUMN - (fits ? column : 0), "");
        options_explain(option, text);
        wrap_words(file, text, EXPLANATION_COLUMN, EXPLANATION_COLUMN);
    }
}

/* How the rows of a table are explained: --help. Called by commands. */
#include <string.h>

#include "base/options.h"
#include "base/options_internal.h"
#include "base/wrap.h"

/* "peak learning rate (0 to 100)", "width of a head (channels, at least 1)" */
static void format_explanation(const Option *option, char text[1024]) {
    char limits[512];
    options_format_limits(option, limits);
    bool both = *option->unit && *limits, any = *option->unit || *limits;
    snprintf(text, 1024, "%s%s%s%s%s%s", option->help, any ? " (" : "", option->unit, both ? ", " : "", limits, any ? ")" : "");
}

void options_print_help(const OptionTable *table, FILE *file) {
    enum { EXPLANATION_COLUMN = 30 };
    for (size_t i = 0; i < table->count; i++) {
        const Option *option = &table->rows[i];
        int group = (int)options_group_length(option->name);
        char text[1024];
        if (options_opens_group(table, i)) fprintf(file, "%s%.*s\n", i ? "\n" : "", group ? group : 7, group ? option->name : "general");
        int column = fprintf(file, "  %s=%s", option->name, option->initial);
        bool fits = column <= EXPLANATION_COLUMN - 2;
        fprintf(file, "%s%*s", fits ? "" : "\n", EXPLANATION_COLUMN - (fits ? column : 0), "");
        format_explanation(option, text);
        wrap_words(file, text, EXPLANATION_COLUMN, EXPLANATION_COLUMN);
    }
}

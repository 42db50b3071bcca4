/* Explains the rows of a table: --help. Called by commands. */

#include "base/options.h"
#include "base/options_internal.h"
#include "base/wrap.h"

/* Fixed rows have no word, so that tables without settings of a run show none. */
static const char *const class_words[] = {
    [OPTION_FIXED] = "", [OPTION_CHANGES] = "changes", [OPTION_FREE] = "free", [OPTION_ONCE] = "once"};

void options_explain(const OptionTable *table, const Option *option, char text[OPTIONS_EXPLANATION]) {
    char limits[512], needs[512] = "";
    options_format_limits(option, limits);
    if (table->explain) table->explain(option, needs, sizeof needs);
    const char *class = class_words[option->class], *comma = *option->unit && *limits ? ", " : "";
    bool ranged = *option->unit || *limits, last = *needs || *class, any = ranged || last;
    snprintf(text, OPTIONS_EXPLANATION, "%s%s%s%s%s%s%s%s%s%s", option->help, any ? " (" : "", option->unit, comma, limits,
        ranged && last ? "; " : "", needs, *needs && *class ? "; " : "", class, any ? ")" : "");
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
        options_explain(table, option, text);
        wrap_words(file, text, EXPLANATION_COLUMN, EXPLANATION_COLUMN);
    }
}

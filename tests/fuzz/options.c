/* A libFuzzer entry for the YAML reader: any bytes must be refused with a message or give values that are written
 * and read back unchanged. Owns nothing beyond one call. */
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "fuzz.h"

typedef struct Settings {
    const char *run;
    int64_t width;
    double lr;
    int mode;
    bool verbose;
} Settings;

static const Option rows[] = {
    {"run", OPTION_STRING, offsetof(Settings, run), "", 0, 0, NULL, "", "a text"},
    {"lr", OPTION_REAL, offsetof(Settings, lr), "0", -INFINITY, INFINITY, NULL, "", "a number"},
    {"verbose", OPTION_BOOL, offsetof(Settings, verbose), "no", 0, 0, NULL, "", "a flag"},
    {"model.width", OPTION_INT, offsetof(Settings, width), "1", -0x1p63, 0x1p63, NULL, "channels", "a whole number"},
    {"model.part.mode", OPTION_CHOICE, offsetof(Settings, mode), "a", 0, 0, "a|b|none", "", "a choice"},
};
static const OptionTable table = {rows, sizeof rows / sizeof *rows};

static void require_same_settings(const Settings *values) {
    Settings copy;
    OptionStrings strings = {0};
    Error error = {0};
    char *text;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    options_write_yaml(&table, values, file);
    fclose(file);
    options_defaults(&table, &copy, &strings);
    require(options_parse_yaml(&table, &copy, &strings, text, length, "written", &error) ||
            length > 1 << 20); /* escapes may lengthen a text of nearly the limit beyond it */
    require(length > 1 << 20 || options_difference(&table, values, &copy, NULL, 0) == 0);
    options_free_strings(&strings);
    free(text);
}

FUZZ(options) {
    Settings values;
    OptionStrings strings = {0};
    Error error = {0};
    options_defaults(&table, &values, &strings);
    if (options_parse_yaml(&table, &values, &strings, (const char *)data, size, "fuzz", &error)) require_same_settings(&values);
    else require_line(&error);
    char *assignment = strndup((const char *)data, size);
    error = (Error){0};
    if (options_set(&table, &values, &strings, assignment, &error)) require_same_settings(&values);
    else require_line(&error);
    free(assignment);
    options_free_strings(&strings);
}

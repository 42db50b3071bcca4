/* Reading a configuration and a command's own settings from one list of arguments. */
#include "advise/settings.h"

#include <string.h>
#include <sys/stat.h>

#include "train/source.h"

static bool read_config(const char *path, Config *config, OptionStrings *strings, Error *error) {
    struct stat status;
    bool folder = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    if (folder) return source_read_config(path, config, strings, error);
    options_defaults(&config_table, config, strings);
    return options_read_yaml(&config_table, config, strings, path, error);
}

bool settings_read(const OptionTable *table, void *values, Config *config, OptionStrings *strings, int argc, char **argv, Error *error) {
    options_defaults(table, values, strings);
    if (argc < 2 || strchr(argv[1], '='))
        return error_set(
            error, ERROR_USAGE, "the first argument is a configuration file, a run folder or a model folder; then come key=value");
    if (!read_config(argv[1], config, strings, error)) return false;
    for (int i = 2; i < argc; i++) {
        const char *text = !strncmp(argv[i], "--", 2) ? argv[i] + 2 : argv[i];
        if (!strchr(text, '=')) return error_set(error, ERROR_USAGE, "'%s' is not key=value", argv[i]);
        bool own = options_find(table, text, strcspn(text, "=")) != NULL;
        if (!options_set(own ? table : &config_table, own ? values : config, strings, text, error)) return false;
    }
    return config_check(config, error);
}

bool settings_hardware(const char *gpu, const char *bench, Hardware *hardware, Measured *measured, Error *error) {
    *measured = (Measured){0};
    if (!hardware_find(hardware, gpu, error)) return false;
    if (!*bench) return true;
    if (!measured_read(measured, bench, error)) return false;
    hardware_calibrate(hardware, measured->best, measured->bandwidth);
    return true;
}

/* Reading a configuration with settings on top, and the processor that it is judged for. */
#include "advise/settings.h"

#include "base/file.h"
#include "train/source.h"
#include "train/train.h"

bool settings_read(Config *config, const char *path, const OptionStrings *settings, OptionStrings *strings, Error *error) {
    options_defaults(&config_table, config, strings);
    bool read = source_is_run(path) || file_kind(path, NULL) == FILE_FOLDER
                    ? source_read_config(path, config, strings, error)
                    : options_read_yaml(&config_table, config, strings, path, error);
    for (size_t i = 0; read && i < settings->count; i++) read = options_set(&config_table, config, strings, settings->items[i], error);
    return read && corpus_resolve(config, strings, error) && config_check(config, error);
}

bool settings_hardware(const char *gpu, const char *bench, Hardware *hardware, Measured *measured, Error *error) {
    *measured = (Measured){0};
    if (!hardware_find(hardware, gpu, error)) return false;
    if (!*bench) return true;
    if (!measured_read(measured, bench, error)) return false;
    hardware_calibrate(hardware, measured->best, measured->bandwidth);
    return true;
}

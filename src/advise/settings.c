/* Reads a configuration with settings applied, and the processor to judge it for. */
#include "advise/settings.h"

#include "backend/backend.h"
#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "config/needs.h"
#include "run/corpus.h"
#include "run/phases.h"
#include "run/source.h"

/* Chooses the training settings that a model folder lacks and `settings` do not give: sequences
 * of the model's context, at most LENGTH tokens, and steps of SEQUENCES microbatches of one
 * sequence. */
static void assume(Config *config, const char *path) {
    enum { LENGTH = 8192, SEQUENCES = 64 };
    bool all = config->data.length && config->batch.sequences && config->batch.tokens;
    if (!config->data.length) config->data.length = int_min(config->model.context, LENGTH);
    if (!config->batch.sequences) config->batch.sequences = 1;
    if (!config->batch.tokens) config->batch.tokens = SEQUENCES * config->batch.sequences * config->data.length;
    if (!all)
        log_info("%s is a model without training settings: assuming data.length=%lld batch.sequences=%lld batch.tokens=%lld", path,
            (long long)config->data.length, (long long)config->batch.sequences, (long long)config->batch.tokens);
}

bool settings_read(Config *config, const char *path, const OptionStrings *settings, OptionStrings *strings, Error *error) {
    Config said;
    options_defaults(&config_table, config, strings);
    options_defaults(&config_table, &said, strings);
    config->steps = 0; /* not given */
    bool file = !source_is_run(path) && file_kind(path, NULL) != FILE_FOLDER;
    bool read = file ? options_read_yaml(&config_table, config, strings, path, error) : source_read_config(path, config, strings, error);
    bool model = read && source_is_model_folder(path);
    if (file) said = *config;
    if (model) config->data.length = config->batch.sequences = config->batch.tokens = 0; /* not given */
    read = read && options_set_all(&config_table, config, strings, settings, error) &&
           options_set_all(&config_table, &said, strings, settings, error);
    if (model) assume(config, path);
    if (!file && !said.layout.dp) config->layout.dp = 0; /* the run's number of copies was for its own ranks */
    if (!read || !needs_check(config, &said, error) || !phases_resolve(config, error) || !corpus_resolve(config, strings, error))
        return false;
    if (!config_check(config, error) || !corpus_resolve_steps(config, 0, (Position){0}, error)) return false;
    needs_warn(config, &said, NULL);
    return true;
}

/* Finds the hardware of the device that training would choose on this machine. */
static bool own_hardware(Hardware *hardware, Error *error) {
    Device *device = device_open(DEVICE_AUTO, 0, error);
    if (!device) return false;
    bool found = hardware_of_device(hardware, device);
    if (!found)
        error_set(error, ERROR_USAGE, "this machine's %s is not in the table of hardware: set gpu= to one of %s", device_info(device)->name,
            hardware_names());
    device_close(device);
    return found;
}

bool settings_hardware(const char *gpu, const char *bench, Hardware *hardware, Measured *measured, Error *error) {
    *measured = (Measured){0};
    if (!(*gpu ? hardware_find(hardware, gpu, error) : own_hardware(hardware, error))) return false;
    if (!*bench) return true;
    if (!measured_read(measured, bench, error)) return false;
    hardware_calibrate(hardware, measured->best, measured->bandwidth);
    return true;
}
